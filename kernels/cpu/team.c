/*
 * A launch is a generation. Its tasks are claimed by compare-and-swap on a run's ticket, which carries the
 * generation and how many tasks the run still has, so a member that comes late cannot claim from a launch
 * that is over, whose runs have none: what it read of that launch, the run's end included, is used only once
 * a claim has shown that the launch was still going on. (With the next task in the ticket and its end beside
 * it, a late member could meet the old ticket with the end of the launch that is being prepared.) For the
 * same reason everything that a late member may read is atomic.
 *
 * A task's pieces (team_share) are handed out in the same way, by a share of the thread that is at the task,
 * whose tickets carry the share's number. Who waits for a launch, or for one to end, looks into the shares
 * of the others. A thread that waits for the pieces that others have taken takes none: its own places are in
 * use.
 */
#include "kernels/cpu/team.h"

#include "kernels/base/relax.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define RUNS_MAX 64u /* wider teams share runs */
#define LINE     64u

#define LOOK_NS     100000u /* about what waking a thread takes in a virtual machine */
#define LOOK_MIN_NS 1000u
#define AWAY_NS     30000u   /* between two looks at the clock: something else was given the core */
#define ASIDE_NS    1000000u /* from one move to another core to the next */

typedef struct task_run {
    _Alignas(LINE) _Atomic uint64_t ticket; /* generation << 32 | tasks left */
    _Atomic uint32_t end;                   /* the task behind the run's last */
} task_run;

typedef struct share {
    _Alignas(LINE) _Atomic uint64_t ticket; /* number << 32 | pieces left */
    _Atomic(team_task) run;
    _Atomic(const void *) context;
    _Atomic uint32_t count;
    _Atomic uint32_t done; /* the futex */
    _Atomic bool is_awaited;
} share;

typedef struct member {
    team *t;
    uint32_t index;
    pthread_t thread;
} member;

struct team {
    uint32_t width;
    member *members; /* [width - 1] */
    /* of the launch: written by the owner alone */
    _Alignas(LINE) _Atomic uint32_t generation;
    _Atomic(team_task) run;
    _Atomic(const void *) context;
    _Atomic uint32_t count;
    _Atomic uint32_t active; /* threads that may take part; 1 .. width */
    _Atomic bool is_closing;
    _Atomic int owner_cpu; /* where it was when it last woke members */
    /* how members sleep */
    _Alignas(LINE) _Atomic uint32_t call; /* the futex: changes whenever somebody is woken */
    _Atomic uint32_t sleepers;
    /* how the owner does */
    _Alignas(LINE) _Atomic uint32_t done; /* tasks; the futex */
    _Atomic bool is_awaited;
    task_run runs[RUNS_MAX];
    share shares[RUNS_MAX]; /* of the first members */
};

static _Thread_local team *current;
static _Thread_local uint32_t member_index;
static _Thread_local bool is_in_task, may_share;
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
    uint64_t begin_ns, last_ns;
    uint32_t turns;
} patience;

#define TURNS 16u /* between two looks at the clock, and at what others share */

static bool is_look(const patience *p) {
    return (p->turns + 1) % TURNS == 0;
}

/* one turn of waiting; false when it is time to sleep */
static bool wait_turn(patience *p) {
    if (++p->turns % TURNS != 0) {
        cpu_relax();
        return true;
    }
    const uint64_t now = now_ns();
    if (p->begin_ns == 0) p->begin_ns = p->last_ns = now;
    if (now - p->last_ns > AWAY_NS) look_ns = LOOK_MIN_NS;
    p->last_ns = now;
    return now - p->begin_ns <= look_ns;
}

static void looked(bool in_vain) {
    if (in_vain)
        look_ns = look_ns / 2 > LOOK_MIN_NS ? look_ns / 2 : LOOK_MIN_NS;
    else
        look_ns = look_ns * 2 < LOOK_NS ? look_ns * 2 : LOOK_NS;
}

/* ---- tasks ---- */

/* the run's next task, if it is one of launch `generation` */
static bool claim_of(task_run *r, uint32_t generation, uint32_t *task) {
    uint64_t ticket = atomic_load_explicit(&r->ticket, memory_order_acquire);
    while (ticket >> 32 == generation && (uint32_t)ticket > 0) {
        const uint32_t end = atomic_load_explicit(&r->end, memory_order_relaxed);
        if (!atomic_compare_exchange_weak_explicit(&r->ticket, &ticket, ticket - 1, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        *task = end - (uint32_t)ticket;
        return true;
    }
    return false;
}

static uint32_t run_count(uint32_t active) {
    return active < RUNS_MAX ? active : RUNS_MAX;
}

/* the next task of launch `generation`, from run *at or the first one behind it that has any */
static bool claim(team *t, uint32_t generation, uint32_t runs, uint32_t *at, uint32_t *task) {
    for (uint32_t tried = 0; tried < runs; tried++, *at = (*at + 1) % runs)
        if (claim_of(&t->runs[*at], generation, task)) return true;
    return false;
}

static void count_done(_Atomic uint32_t *done, const _Atomic bool *is_awaited, uint32_t own, uint32_t count) {
    if (atomic_fetch_add(done, own) + own == count && atomic_load(is_awaited)) futex_wake(done, 1);
}

/* Takes part in launch `generation` until it has no more tasks to claim. What is read of it here is the
 * launch's own, or a claim fails. A launch is not over before the tasks that were claimed are counted. */
static void take_part(team *t, uint32_t generation) {
    const team_task run = atomic_load_explicit(&t->run, memory_order_relaxed);
    const void *context = atomic_load_explicit(&t->context, memory_order_relaxed);
    const uint32_t count = atomic_load_explicit(&t->count, memory_order_relaxed);
    const uint32_t active = atomic_load_explicit(&t->active, memory_order_relaxed);
    const uint32_t runs = run_count(active);
    uint32_t at = member_index % runs, task = 0, own = 0;
    if (member_index >= active) return;
    is_in_task = true;
    may_share = member_index < RUNS_MAX;
    for (; claim(t, generation, runs, &at, &task); own++) run(context, task);
    is_in_task = may_share = false;
    if (own > 0) count_done(&t->done, &t->is_awaited, own, count);
}

/* ---- pieces of tasks ---- */

/* runs a piece of somebody else's task, if there is one */
static bool help(team *t) {
    const uint32_t active = atomic_load_explicit(&t->active, memory_order_relaxed), slots = run_count(active);
    if (member_index >= active) return false;
    for (uint32_t i = 1; i < slots; i++) {
        share *s = &t->shares[(member_index + i) % slots];
        uint64_t ticket = atomic_load_explicit(&s->ticket, memory_order_acquire);
        if ((uint32_t)ticket == 0) continue;
        const team_task run = atomic_load_explicit(&s->run, memory_order_relaxed);
        const void *context = atomic_load_explicit(&s->context, memory_order_relaxed);
        const uint32_t count = atomic_load_explicit(&s->count, memory_order_relaxed);
        /* the same ticket still: what was read belongs to it */
        if (!atomic_compare_exchange_strong_explicit(&s->ticket, &ticket, ticket - 1, memory_order_acq_rel,
                                                     memory_order_relaxed))
            continue;
        is_in_task = true;
        run(context, count - (uint32_t)ticket);
        is_in_task = false;
        count_done(&s->done, &s->is_awaited, 1, count);
        return true;
    }
    return false;
}

/* until `count` are done; t: whom to help meanwhile, NULL for nobody */
static void await_done(team *t, _Atomic uint32_t *done, _Atomic bool *is_awaited, uint32_t count) {
    patience p = {0};
    while (atomic_load_explicit(done, memory_order_acquire) < count) {
        if (t && is_look(&p) && help(t)) {
            p = (patience){.turns = TURNS - 1};
            continue;
        }
        if (wait_turn(&p)) continue;
        looked(true);
        atomic_store(is_awaited, true);
        const uint32_t seen = atomic_load(done);
        if (seen < count) futex_wait(done, seen);
        atomic_store_explicit(is_awaited, false, memory_order_relaxed);
        p = (patience){0};
    }
    if (p.turns > 0) looked(false);
}

void team_share(uint32_t count, team_task run, const void *context) {
    CKKS_ASSERT(count < 1u << 26);
    if (!may_share || count < 2) {
        for (uint32_t piece = 0; piece < count; piece++) run(context, piece);
        return;
    }
    share *s = &current->shares[member_index];
    uint64_t ticket = ((atomic_load_explicit(&s->ticket, memory_order_relaxed) >> 32) + 1) << 32 | count;
    atomic_store_explicit(&s->run, run, memory_order_relaxed);
    atomic_store_explicit(&s->context, context, memory_order_relaxed);
    atomic_store_explicit(&s->count, count, memory_order_relaxed);
    atomic_store_explicit(&s->done, 0, memory_order_relaxed);
    atomic_store_explicit(&s->ticket, ticket, memory_order_release);
    may_share = false;
    uint32_t own = 0;
    while ((uint32_t)ticket > 0) {
        if (!atomic_compare_exchange_weak_explicit(&s->ticket, &ticket, ticket - 1, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        run(context, count - (uint32_t)ticket);
        own++;
        ticket = atomic_load_explicit(&s->ticket, memory_order_acquire);
    }
    may_share = true;
    if (own < count && atomic_fetch_add(&s->done, own) + own < count)
        await_done(NULL, &s->done, &s->is_awaited, count);
}

/* ---- launches ---- */

static void run_here(uint32_t count, team_task run, const void *context) {
    const uint32_t index = member_index;
    const bool might_share = may_share;
    member_index = 0; /* width is 1 here */
    may_share = false;
    for (uint32_t task = 0; task < count; task++) run(context, task);
    member_index = index, may_share = might_share;
}

static void launch(team *t, uint32_t count, team_task run, const void *context) {
    const uint32_t generation = atomic_load_explicit(&t->generation, memory_order_relaxed) + 1;
    const uint32_t runs = run_count(team_width());
    atomic_store_explicit(&t->run, run, memory_order_relaxed);
    atomic_store_explicit(&t->context, context, memory_order_relaxed);
    atomic_store_explicit(&t->count, count, memory_order_relaxed);
    atomic_store_explicit(&t->done, 0, memory_order_relaxed);
    for (uint32_t i = 0; i < runs; i++) {
        const uint64_t begin = (uint64_t)count * i / runs, end = (uint64_t)count * (i + 1) / runs;
        atomic_store_explicit(&t->runs[i].end, (uint32_t)end, memory_order_relaxed);
        atomic_store_explicit(&t->runs[i].ticket, (uint64_t)generation << 32 | (end - begin),
                              memory_order_release);
    }
    atomic_store(&t->generation, generation);
    /* those that may not take part sleep, and are left alone while no others do */
    if (atomic_load(&t->sleepers) > t->width - team_width()) {
        atomic_store_explicit(&t->owner_cpu, sched_getcpu(), memory_order_relaxed);
        team_rouse(t);
    }
    take_part(t, generation);
    await_done(t, &t->done, &t->is_awaited, count);
}

void team_each(uint32_t count, bool is_team, team_task run, const void *context) {
    CKKS_ASSERT(count < 1u << 26);
    if (!is_team || count < 2 || team_width() == 1)
        run_here(count, run, context);
    else
        launch(current, count, run, context);
}

void team_each_shared(uint32_t count, bool is_team, team_task run, const void *context) {
    CKKS_ASSERT(count < 1u << 26);
    if (!is_team || count == 0 || team_width() == 1)
        run_here(count, run, context);
    else
        launch(current, count, run, context);
}

/* ---- members ---- */

static bool is_called(const team *t, uint32_t seen) {
    return atomic_load(&t->generation) != seen || atomic_load(&t->is_closing);
}

/* To another core than the owner's, if this is it: left alone, the system can keep both on one for long. Does
 * nothing where the system does not let it. The thread may run where it could before, the owner's core too.
 */
static void step_aside(const team *t) {
    static _Thread_local uint64_t last_ns;
    const int here = sched_getcpu(); /* -1: the system does not say */
    cpu_set_t allowed, others;
    if (here < 0 || here != atomic_load_explicit(&t->owner_cpu, memory_order_relaxed)) return;
    const uint64_t now = now_ns();
    if (now - last_ns < ASIDE_NS || sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    last_ns = now;
    others = allowed;
    CPU_CLR((size_t)here, &others);
    if (CPU_COUNT(&others) > 0 && sched_setaffinity(0, sizeof others, &others) == 0)
        (void)sched_setaffinity(0, sizeof allowed, &allowed);
}

/* Returns when there is a launch after `seen`, or the team closes. Whoever changes what is_called looks at
 * `sleepers` afterwards, and a member counts itself before it looks for the last time: one of the
 * two sees the other. */
static void await_launch(team *t, uint32_t seen) {
    patience p = {0};
    while (!is_called(t, seen)) {
        if (is_look(&p) && help(t)) {
            p = (patience){.turns = TURNS - 1};
            continue;
        }
        if (wait_turn(&p)) continue;
        looked(true);
        atomic_fetch_add(&t->sleepers, 1);
        const uint32_t call = atomic_load(&t->call);
        if (!is_called(t, seen)) futex_wait(&t->call, call);
        atomic_fetch_sub(&t->sleepers, 1);
        step_aside(t);
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
    atomic_store(&t->active, width);
    atomic_store(&t->owner_cpu, -1);
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

void team_fit(uint32_t width) {
    if (!current) return;
    CKKS_ASSERT(!is_in_task && width > 0);
    atomic_store_explicit(&current->active, width < current->width ? width : current->width,
                          memory_order_relaxed);
}

uint32_t team_width(void) {
    return current && !is_in_task ? atomic_load_explicit(&current->active, memory_order_relaxed) : 1;
}

uint32_t team_member(void) {
    return member_index;
}
