/*
 * A launch is a generation. Its tasks are claimed by compare-and-swap on a run's ticket, which carries the
 * generation and how many tasks the run still has, so a member that comes late cannot claim from a launch
 * that is over, whose runs have none: what it read of that launch, the run's end included, is used only once
 * a claim has shown that the launch was still going on. (With the next task in the ticket and its end beside
 * it, a late member could meet the old ticket with the end of the launch that is being prepared.) For the
 * same reason everything that a late member may read is atomic.
 */
#include "kernels/cpu/team.h"

#include "kernels/base/relax.h"

#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define RUNS_MAX 64u /* wider teams share runs */
#define LINE     64u

#define LOOK_NS     40000u /* about what waking a thread takes, and more than a launch that stays on one */
#define LOOK_MIN_NS 1000u

typedef struct task_run {
    _Alignas(LINE) _Atomic uint64_t ticket; /* generation << 32 | tasks left */
    _Atomic uint32_t end;                   /* the task behind the run's last */
} task_run;

typedef struct member {
    team *t;
    uint32_t index;
    pthread_t thread;
} member;

struct team {
    uint32_t width, run_count;
    member *members; /* [width - 1] */
    /* of the launch: written by the owner alone */
    _Alignas(LINE) _Atomic uint32_t generation;
    _Atomic(team_task) run;
    _Atomic(const void *) context;
    _Atomic uint32_t count;
    _Atomic bool is_closing;
    /* how members sleep */
    _Alignas(LINE) _Atomic uint32_t call; /* the futex: changes whenever somebody is woken */
    _Atomic uint32_t sleepers;
    /* how the owner does */
    _Alignas(LINE) _Atomic uint32_t done; /* tasks; the futex */
    _Atomic bool is_awaited;
    task_run runs[RUNS_MAX];
};

static _Thread_local team *current;
static _Thread_local uint32_t member_index;
static _Thread_local bool is_in_task;
/* How long this thread looks before it sleeps: half as long each time that was in vain, twice as long each
 * time it was not. With more threads than cores what is waited for is rarely there in time. */
static _Thread_local uint32_t look_ns = LOOK_NS;

/* ---- waiting ---- */

static void futex_wait(_Atomic uint32_t *word, uint32_t value) {
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}
static void futex_wake(_Atomic uint32_t *word, int count) {
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

typedef struct patience {
    uint64_t begin_ns;
    uint32_t turns;
} patience;

#define TURNS 16u /* between two looks at the clock */

/* one turn of waiting; false when it is time to sleep */
static bool wait_turn(patience *p) {
    if (++p->turns % TURNS != 0) {
        cpu_relax();
        return true;
    }
    const uint64_t now = now_ns();
    if (p->begin_ns == 0) p->begin_ns = now;
    return now - p->begin_ns <= look_ns;
}

static void looked(bool in_vain) {
    if (in_vain)
        look_ns = look_ns / 2 > LOOK_MIN_NS ? look_ns / 2 : LOOK_MIN_NS;
    else
        look_ns = look_ns * 2 < LOOK_NS ? look_ns * 2 : LOOK_NS;
}

/* ---- tasks ---- */

/* the next task of launch `generation`, from run *at or the first one behind it that has any */
static bool claim(team *t, uint32_t generation, uint32_t *at, uint32_t *task) {
    for (uint32_t tried = 0; tried < t->run_count; tried++, *at = (*at + 1) % t->run_count) {
        task_run *r = &t->runs[*at];
        uint64_t ticket = atomic_load_explicit(&r->ticket, memory_order_acquire);
        while (ticket >> 32 == generation && (uint32_t)ticket > 0) {
            const uint32_t end = atomic_load_explicit(&r->end, memory_order_relaxed);
            if (!atomic_compare_exchange_weak_explicit(&r->ticket, &ticket, ticket - 1, memory_order_acq_rel,
                                                       memory_order_acquire))
                continue;
            *task = end - (uint32_t)ticket;
            return true;
        }
    }
    return false;
}

/* takes part in launch `generation` until it has no more tasks to claim */
static void take_part(team *t, uint32_t generation) {
    const team_task run = atomic_load_explicit(&t->run, memory_order_relaxed);
    const void *context = atomic_load_explicit(&t->context, memory_order_relaxed);
    const uint32_t count = atomic_load_explicit(&t->count, memory_order_relaxed);
    uint32_t at = member_index % t->run_count, task = 0, own = 0;
    is_in_task = true;
    for (; claim(t, generation, &at, &task); own++) run(context, task);
    is_in_task = false;
    /* the launch is not over before its last tasks are counted, so this is still of the same one */
    if (own > 0 && atomic_fetch_add(&t->done, own) + own == count && member_index != 0 &&
        atomic_load(&t->is_awaited))
        futex_wake(&t->done, 1);
}

static void await_tasks(team *t, uint32_t count) {
    patience p = {0};
    while (atomic_load_explicit(&t->done, memory_order_acquire) < count) {
        if (wait_turn(&p)) continue;
        looked(true);
        atomic_store(&t->is_awaited, true);
        const uint32_t done = atomic_load(&t->done);
        if (done < count) futex_wait(&t->done, done);
        atomic_store_explicit(&t->is_awaited, false, memory_order_relaxed);
        p = (patience){0};
    }
    if (p.turns > 0) looked(false);
}

static void run_here(uint32_t count, team_task run, const void *context) {
    const uint32_t index = member_index;
    member_index = 0; /* width is 1 here */
    for (uint32_t task = 0; task < count; task++) run(context, task);
    member_index = index;
}

void team_each(uint32_t count, bool is_team, team_task run, const void *context) {
    CKKS_ASSERT(count < 1u << 26);
    team *t = current;
    if (!is_team || count < 2 || team_width() == 1) {
        run_here(count, run, context);
        return;
    }
    const uint32_t generation = atomic_load_explicit(&t->generation, memory_order_relaxed) + 1;
    atomic_store_explicit(&t->run, run, memory_order_relaxed);
    atomic_store_explicit(&t->context, context, memory_order_relaxed);
    atomic_store_explicit(&t->count, count, memory_order_relaxed);
    atomic_store_explicit(&t->done, 0, memory_order_relaxed);
    for (uint32_t i = 0; i < t->run_count; i++) {
        const uint64_t begin = (uint64_t)count * i / t->run_count,
                       end = (uint64_t)count * (i + 1) / t->run_count;
        atomic_store_explicit(&t->runs[i].end, (uint32_t)end, memory_order_relaxed);
        atomic_store_explicit(&t->runs[i].ticket, (uint64_t)generation << 32 | (end - begin),
                              memory_order_release);
    }
    atomic_store(&t->generation, generation);
    team_rouse(t);
    take_part(t, generation);
    await_tasks(t, count);
}

/* ---- members ---- */

static bool is_called(const team *t, uint32_t seen) {
    return atomic_load(&t->generation) != seen || atomic_load(&t->is_closing);
}

/* Returns when there is a launch after `seen`, or the team closes. Whoever changes what is_called looks at
 * `sleepers` afterwards, and a member counts itself before it looks for the last time: one of the
 * two sees the other. */
static void await_launch(team *t, uint32_t seen) {
    patience p = {0};
    while (!is_called(t, seen)) {
        if (wait_turn(&p)) continue;
        looked(true);
        atomic_fetch_add(&t->sleepers, 1);
        const uint32_t call = atomic_load(&t->call);
        if (!is_called(t, seen)) futex_wait(&t->call, call);
        atomic_fetch_sub(&t->sleepers, 1);
        p = (patience){0};
    }
    if (p.turns > 0) looked(false);
}

static void *member_main(void *argument) {
    const member *m = argument;
    team *t = m->t;
    current = t;
    member_index = m->index;
    for (uint32_t seen = 0;;) {
        await_launch(t, seen);
        if (atomic_load(&t->is_closing)) return NULL;
        seen = atomic_load(&t->generation);
        take_part(t, seen);
    }
}

#ifdef CKKS_FAULT_INJECTION
static _Atomic uint32_t thread_fault;
void team_fault_thread(uint32_t nth) {
    atomic_store(&thread_fault, nth);
}
static bool thread_start_fails(void) {
    return atomic_load(&thread_fault) != 0 && atomic_fetch_sub(&thread_fault, 1) == 1;
}
#else
static bool thread_start_fails(void) {
    return false;
}
#endif

int team_thread_start(pthread_t *out, const char *name, void *(*run)(void *), void *argument) {
    sigset_t all, before;
    if (thread_start_fails()) return -1;
    sigfillset(&all);
    if (pthread_sigmask(SIG_SETMASK, &all, &before) != 0) return -1;
    const int rc = pthread_create(out, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc == 0) pthread_setname_np(*out, name);
    return rc;
}

/* ends the first `count` members */
static void end_members(team *t, uint32_t count) {
    atomic_store(&t->is_closing, true);
    team_rouse(t);
    for (uint32_t i = 0; i < count; i++) pthread_join(t->members[i].thread, NULL);
    free(t->members);
    free(t);
}

ckks_status team_create(team **out, uint32_t width, ckks_error *err) {
    CKKS_ASSERT(width >= 1 && width <= TEAM_WIDTH_MAX);
    void *memory = NULL;
    if (posix_memalign(&memory, LINE, sizeof(team)) != 0)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "team", "out of memory");
    team *t = memset(memory, 0, sizeof *t);
    t->width = width;
    t->run_count = width < RUNS_MAX ? width : RUNS_MAX;
    if (!(t->members = calloc(width, sizeof *t->members))) {
        free(t);
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "team", "out of memory");
    }
    for (uint32_t i = 0; i + 1 < width; i++) {
        t->members[i] = (member){.t = t, .index = i + 1};
        if (team_thread_start(&t->members[i].thread, "ckks-team", member_main, &t->members[i]) == 0) continue;
        end_members(t, i);
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "team", "the system starts %u of %u threads", i,
                              width - 1);
    }
    *out = t;
    return CKKS_OK;
}

void team_destroy(team *t) {
    if (t) end_members(t, t->width - 1);
}

team *team_enter(team *t) {
    team *before = current;
    current = t;
    return before;
}

void team_rouse(team *t) {
    if (atomic_load(&t->sleepers) == 0) return;
    atomic_fetch_add(&t->call, 1);
    futex_wake(&t->call, INT_MAX);
}

uint32_t team_width(void) {
    return current && !is_in_task ? current->width : 1;
}

uint32_t team_member(void) {
    return member_index;
}
