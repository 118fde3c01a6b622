#include "kernels/cpu/team.h"

#include "kernels/base/status.h"

#include <omp.h>
#include <stdatomic.h>

#define RUNS_MAX 64u /* wider teams share runs */

/* a cache line each: the owner counts without disturbing its neighbours */
typedef struct task_run {
    _Alignas(64) _Atomic uint32_t next;
    uint32_t end;
} task_run;

typedef struct task_runs {
    uint32_t count;
    task_run run[RUNS_MAX];
} task_runs;

/* the next task, from run *at or the first one behind it that has any; false when none is left */
static bool take(task_runs *runs, uint32_t *at, uint32_t *task) {
    for (uint32_t tried = 0; tried < runs->count; tried++, *at = (*at + 1) % runs->count) {
        task_run *r = &runs->run[*at];
        if (atomic_load_explicit(&r->next, memory_order_relaxed) >= r->end) continue;
        *task = atomic_fetch_add_explicit(&r->next, 1, memory_order_relaxed);
        if (*task < r->end) return true;
    }
    return false;
}

void team_each(uint32_t count, bool is_team, team_task run, const void *context) {
    const uint32_t threads = (uint32_t)omp_get_max_threads();
    CKKS_ASSERT(threads >= 1 && count < 1u << 26);
    if (!is_team || threads == 1) {
        for (uint32_t task = 0; task < count; task++) run(context, task);
        return;
    }
    task_runs runs = {.count = threads < RUNS_MAX ? threads : RUNS_MAX};
    for (uint32_t i = 0; i < runs.count; i++) {
        atomic_init(&runs.run[i].next, count * i / runs.count);
        runs.run[i].end = count * (i + 1) / runs.count;
    }
#pragma omp parallel
    {
        uint32_t at = (uint32_t)omp_get_thread_num() % runs.count, task = 0;
        while (take(&runs, &at, &task)) run(context, task);
    }
}
