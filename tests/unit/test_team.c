/* Teams: every task runs once, whatever the counts and widths; what tasks wrote is seen; nested, several at
 * once, idle at the end; threads that do not come. */
#include "kernels/cpu/team.h"
#include "tests/support/alloc_fault.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define COUNT_MAX 1000u

static team *made(uint32_t width) {
    team *t = NULL;
    assert_int_equal(team_create(&t, width, NULL), CKKS_OK);
    return t;
}

/* plain words: that each is written by one task, and read after it, is for ThreadSanitizer to see */
typedef struct job {
    uint32_t seen[COUNT_MAX], member[COUNT_MAX];
    uint32_t input;
    _Atomic uint32_t width_inside;
} job;

static void count_task(const void *context, uint32_t task) {
    job *j = (job *)(uintptr_t)context;
    j->seen[task] += j->input;
    j->member[task] = team_member();
    atomic_store(&j->width_inside, team_width());
}

static void check_counts(job *j, uint32_t count, uint32_t width) {
    for (uint32_t i = 0; i < COUNT_MAX; i++) {
        assert_int_equal(j->seen[i], i < count ? j->input : 0);
        assert_true(j->member[i] < width);
    }
}

static void every_task_runs_once_for_all_counts_and_widths(void **state) {
    (void)state;
    uint32_t launches = 0;
    for (uint32_t width = 1; width <= 8; width++) {
        team *t = made(width);
        assert_null(team_enter(t));
        assert_int_equal(team_width(), width);
        for (uint32_t count = 0; count <= COUNT_MAX; count += count < 40 ? 1 : 37, launches++) {
            job j = {.input = launches + 1};
            team_each(count, true, count_task, &j);
            check_counts(&j, count, width);
        }
        assert_ptr_equal(team_enter(NULL), t);
        team_destroy(t);
    }
    print_message("  %u launches\n", launches);
}

static void tally_task(const void *context, uint32_t task) {
    uint8_t *seen = (uint8_t *)(uintptr_t)context;
    seen[task]++; /* a launch's own tasks are below its count, those of the other are below the larger
                          one */
    for (volatile uint32_t i = 0; i < 20;) i = i + 1;
}

/* a member that is still looking for tasks of a small launch while the next, a large one, is prepared */
static void members_that_come_late_take_no_task_of_another_launch(void **state) {
    (void)state;
    static uint8_t seen[2 * COUNT_MAX], ones[COUNT_MAX], zeros[2 * COUNT_MAX];
    memset(ones, 1, sizeof ones);
    team *t = made(6);
    (void)team_enter(t);
    for (uint32_t launch = 0; launch < 20000; launch++) {
        const uint32_t count = launch % 2 ? COUNT_MAX : 6;
        memset(seen, 0, sizeof seen);
        team_each(count, true, tally_task, seen);
        assert_memory_equal(seen, ones, count);
        assert_memory_equal(seen + count, zeros, sizeof seen - count);
    }
    (void)team_enter(NULL);
    team_destroy(t);
}

static void order_task(const void *context, uint32_t task) {
    job *j = (job *)(uintptr_t)context;
    assert_int_equal(task, j->input++);
}

static void tasks_run_in_order_on_the_caller_without_a_team_or_when_told(void **state) {
    (void)state;
    job j = {0};
    assert_int_equal(team_width(), 1);
    team_each(COUNT_MAX, true, order_task, &j);
    assert_int_equal(j.input, COUNT_MAX);
    team *t = made(4);
    (void)team_enter(t);
    j.input = 0;
    team_each(COUNT_MAX, false, order_task, &j);
    assert_int_equal(j.input, COUNT_MAX);
    (void)team_enter(NULL);
    team_destroy(t);
}

static void meet_task(const void *context, uint32_t task) {
    _Atomic uint32_t *come = (_Atomic uint32_t *)(uintptr_t)context;
    (void)task;
    atomic_fetch_add(come, 1);
    while (atomic_load(come) < 4) (void)sched_yield();
}

/* four tasks that wait for each other end only on four threads */
static void members_take_part_after_any_pause(void **state) {
    (void)state;
    static const uint32_t pauses_us[] = {0, 1, 10, 50, 300, 2000, 20000};
    team *t = made(4);
    (void)team_enter(t);
    for (uint32_t round = 0; round < 40; round++) {
        _Atomic uint32_t come = 0;
        const uint32_t pause_us = pauses_us[round % (sizeof pauses_us / sizeof *pauses_us)];
        if (pause_us) usleep(pause_us);
        if (round % 3 == 0) team_rouse(t);
        team_each(4, true, meet_task, &come);
        assert_int_equal(come, 4);
    }
    (void)team_enter(NULL);
    team_destroy(t);
}

typedef struct nest {
    job inner[8];
} nest;

static void nest_task(const void *context, uint32_t task) {
    nest *n = (nest *)(uintptr_t)context;
    const uint32_t member = team_member();
    assert_int_equal(team_width(), 1);
    team_each(100, true, count_task, &n->inner[task]);
    assert_int_equal(team_member(), member);
}

static void a_task_that_hands_out_tasks_runs_them_itself(void **state) {
    (void)state;
    nest *n = calloc(1, sizeof *n);
    assert_non_null(n);
    for (uint32_t i = 0; i < 8; i++) n->inner[i].input = i + 1;
    team *t = made(3);
    (void)team_enter(t);
    team_each(8, true, nest_task, n);
    for (uint32_t i = 0; i < 8; i++) {
        check_counts(&n->inner[i], 100, 1);
        assert_int_equal(n->inner[i].width_inside, 1);
    }
    assert_int_equal(team_width(), 3);
    (void)team_enter(NULL);
    team_destroy(t);
    free(n);
}

/* ---- pieces ---- */

#define PIECES_MAX 40u

typedef struct shared_job {
    uint32_t seen[PIECES_MAX], member[PIECES_MAX], inner[PIECES_MAX];
    uint32_t count, input, sum;
    _Atomic uint32_t width_inside;
} shared_job;

static void inner_piece(const void *context, uint32_t piece) {
    uint32_t *inner = (uint32_t *)(uintptr_t)context;
    assert_int_equal(piece, 0);
    (*inner)++;
}
static void count_piece(const void *context, uint32_t piece) {
    shared_job *j = (shared_job *)(uintptr_t)context;
    const uint32_t member = team_member();
    j->seen[piece] += j->input;
    j->member[piece] = member;
    atomic_store(&j->width_inside, team_width());
    team_share(1, inner_piece, &j->inner[piece]); /* a piece has no pieces that others take */
    team_each_shared(1, true, inner_piece, &j->inner[piece]);
    assert_int_equal(team_member(), member);
}
static void share_task(const void *context, uint32_t task) {
    shared_job *j = &((shared_job *)(uintptr_t)context)[task];
    for (uint32_t round = 0; round < 3; round++) {
        j->input = task + round + 1; /* what was written before is seen */
        team_share(j->count, count_piece, j);
        for (uint32_t i = 0; i < j->count; i++) j->sum += j->seen[i]; /* and what they wrote, afterwards */
    }
}

static void every_piece_runs_once_for_all_counts_and_widths(void **state) {
    (void)state;
    static shared_job jobs[12];
    uint32_t by_others = 0, pieces = 0;
    for (uint32_t width = 1; width <= 7; width++) {
        team *t = made(width);
        (void)team_enter(t);
        for (uint32_t launch = 0; launch < 120; launch++) {
            const uint32_t tasks = 1 + launch % 12;
            memset(jobs, 0, sizeof jobs);
            for (uint32_t i = 0; i < tasks; i++) jobs[i].count = (launch + i * 7) % (PIECES_MAX + 1);
            team_each_shared(tasks, true, share_task, jobs);
            for (uint32_t i = 0; i < tasks; i++) {
                const uint32_t a = i + 1, all = 3 * a + 3; /* a, a + 1, a + 2 */
                assert_int_equal(jobs[i].sum, jobs[i].count * (a + (2 * a + 1) + all));
                for (uint32_t k = 0; k < jobs[i].count; k++) {
                    assert_int_equal(jobs[i].seen[k], all);
                    assert_int_equal(jobs[i].inner[k], 6);
                    assert_true(jobs[i].member[k] < width);
                    by_others += jobs[i].member[k] != jobs[i].member[0];
                }
                if (jobs[i].count) assert_int_equal(jobs[i].width_inside, 1);
                pieces += jobs[i].count;
            }
        }
        (void)team_enter(NULL);
        team_destroy(t);
    }
    print_message("  %u pieces, at least %u by threads that had no task\n", pieces, by_others);
}

static double wall_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
/* the pieces wait for each other, but not for ever: members help when they are awake */
static void hope_piece(const void *context, uint32_t piece) {
    _Atomic uint32_t *come = (_Atomic uint32_t *)(uintptr_t)context;
    const double begin = wall_s();
    (void)piece;
    atomic_fetch_add(come, 1);
    while (atomic_load(come) % 4 != 0 && wall_s() - begin < 0.005) (void)sched_yield();
    if (team_member() != 0) atomic_fetch_add(come, 1u << 16); /* helped */
}
static void hope_task(const void *context, uint32_t task) {
    (void)task;
    team_share(4, hope_piece, context);
}

static void members_help_with_the_only_task(void **state) {
    (void)state;
    static const uint32_t pauses_us[] = {0, 10, 300, 5000};
    uint32_t helped = 0;
    team *t = made(4);
    (void)team_enter(t);
    uint32_t round = 0;
    for (; round < 40 || !helped; round++) { /* on a machine that has other work it takes longer */
        _Atomic uint32_t come = 0;
        assert_in_range(round, 0, 2000);
        if (pauses_us[round % 4]) usleep(pauses_us[round % 4]);
        team_each_shared(1, true, hope_task, &come);
        assert_int_equal(come & 0xffffu, 4);
        helped += come >> 16;
    }
    print_message("  %u of %u pieces by threads without a task\n", helped, 4 * round);
    (void)team_enter(NULL);
    team_destroy(t);
}

static void a_launch_keeps_to_the_threads_that_it_was_given(void **state) {
    (void)state;
    static shared_job jobs[12];
    team *t = made(6);
    team_fit(3); /* no team yet: nothing */
    (void)team_enter(t);
    for (uint32_t launch = 0; launch < 600; launch++) {
        const uint32_t width = 1 + launch * 5 % 8; /* 7, 8: all there are */
        job j = {.input = 1};
        team_fit(width);
        assert_int_equal(team_width(), width < 6 ? width : 6);
        team_each(launch, true, count_task, &j);
        check_counts(&j, launch, team_width());
        memset(jobs, 0, sizeof jobs);
        for (uint32_t i = 0; i < 4; i++) jobs[i].count = PIECES_MAX;
        team_each_shared(4, true, share_task, jobs);
        for (uint32_t i = 0; i < 4 * PIECES_MAX; i++)
            assert_true(jobs[i / PIECES_MAX].member[i % PIECES_MAX] < team_width());
    }
    (void)team_enter(NULL);
    team_destroy(t);
}

/* ---- cores ---- */

typedef struct place {
    cpu_set_t only; /* where the member is put */
    _Atomic int at[2];
    _Atomic uint32_t come;
    bool is_placing;
} place;

static void place_task(const void *context, uint32_t task) {
    place *p = (place *)(uintptr_t)context;
    cpu_set_t before;
    (void)task;
    atomic_fetch_add(&p->come, 1);
    while (atomic_load(&p->come) < 2) (void)sched_yield(); /* one task each */
    if (p->is_placing && team_member() == 1) {
        assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
        assert_int_equal(sched_setaffinity(0, sizeof p->only, &p->only), 0);
        atomic_store(&p->at[1], sched_getcpu());
        assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
        return;
    }
    atomic_store(&p->at[team_member()], sched_getcpu());
}

/* the owner may use one core; its member is put there, sleeps, and is woken */
static void a_member_that_wakes_up_on_its_owners_core_moves(void **state) {
    (void)state;
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    if (CPU_COUNT(&before) < 2) skip();
    team *t = made(2); /* the member may use them all */
    const int here = sched_getcpu();
    CPU_ZERO(&one);
    CPU_SET((size_t)here, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    (void)team_enter(t);
    uint32_t apart = 0;
    uint32_t round = 0;
    for (; round < 20 || !apart; round++) { /* the system may move it back before it looks where it is */
        assert_in_range(round, 0, 500);
        place p = {.only = one, .is_placing = true};
        team_each(2, true, place_task, &p);
        assert_int_equal(p.at[1], here);
        usleep(20000); /* it has gone to sleep */
        p.is_placing = false;
        atomic_store(&p.come, 0);
        team_each(2, true, place_task, &p);
        assert_int_equal(p.at[0], here);
        apart += p.at[1] != here;
    }
    print_message("  apart in %u of %u launches\n", apart, round);
    (void)team_enter(NULL);
    team_destroy(t);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

typedef struct relay {
    uint64_t words[64];
} relay;

static void relay_task(const void *context, uint32_t task) {
    relay *r = (relay *)(uintptr_t)context;
    r[1].words[task] = r[0].words[(task + 17) % 64] + 1;
}

/* each launch reads what the one before wrote, on whatever thread that was */
static void launches_that_follow_each_other_see_what_was_written(void **state) {
    (void)state;
    static relay two[3];
    memset(two, 0, sizeof two);
    team *t = made(4);
    (void)team_enter(t);
    for (uint64_t round = 0; round < 20000; round++) {
        team_each(64, true, relay_task, &two[0]);
        two[0] = two[1];
        if (round % 4096 == 0)
            for (uint32_t i = 0; i < 64; i++) assert_true(two[0].words[i] == round + 1);
    }
    (void)team_enter(NULL);
    team_destroy(t);
}

static void *stream_like(void *argument) {
    const uint32_t width = *(const uint32_t *)argument;
    team *t = NULL;
    uintptr_t wrong = 0;
    if (team_create(&t, width, NULL) != CKKS_OK) return (void *)(uintptr_t)1; // NOLINT
    (void)team_enter(t);
    for (uint32_t round = 0; round < 300; round++) {
        job j = {.input = round + 1};
        const uint32_t count = round * 7 % COUNT_MAX;
        team_each(count, true, count_task, &j);
        for (uint32_t i = 0; i < COUNT_MAX; i++) wrong += j.seen[i] != (i < count ? j.input : 0);
        if (round % 100 == 0) usleep(500); /* so that members sleep now and then */
    }
    (void)team_enter(NULL);
    team_destroy(t);
    return (void *)wrong; // NOLINT
}

static void teams_of_several_streams_do_not_disturb_each_other(void **state) {
    (void)state;
    static const uint32_t widths[6] = {2, 3, 1, 8, 2, 5};
    pthread_t streams[6];
    for (uint32_t i = 0; i < 6; i++)
        assert_int_equal(pthread_create(&streams[i], NULL, stream_like, (void *)(uintptr_t)&widths[i]), 0);
    for (uint32_t i = 0; i < 6; i++) {
        void *wrong = NULL;
        assert_int_equal(pthread_join(streams[i], &wrong), 0);
        assert_null(wrong);
    }
}

static void a_team_can_go_at_any_time_between_launches(void **state) {
    (void)state;
    team_destroy(NULL);
    for (uint32_t round = 0; round < 60; round++) {
        team *t = made(1 + round % 5);
        job j = {.input = 1};
        (void)team_enter(t);
        if (round % 3) team_each(round, true, count_task, &j);
        if (round % 4 == 1) usleep(round * 10);
        (void)team_enter(NULL);
        team_destroy(t); /* members: not begun, looking, asleep */
        check_counts(&j, round % 3 ? round : 0, 5);
    }
}

static void threads_and_memory_that_do_not_come_are_refused(void **state) {
    (void)state;
    team *t = NULL;
    ckks_error err;
    for (uint32_t nth = 1; nth < 4; nth++) {
        err = (ckks_error){0};
        team_fault_thread(nth);
        assert_int_equal(team_create(&t, 4, &err), CKKS_RESOURCE_EXHAUSTED);
        assert_int_equal(err.code, CKKS_RESOURCE_EXHAUSTED);
        assert_string_equal(err.field, "team");
        assert_null(t);
    }
    team_fault_thread(4);
    assert_int_equal(team_create(&t, 4, &err), CKKS_OK); /* three threads, the caller is the fourth */
    team_fault_thread(0);
    team_destroy(t), t = NULL;
    err = (ckks_error){0};
    alloc_fault_set(1);
    assert_int_equal(team_create(&t, 4, &err), CKKS_RESOURCE_EXHAUSTED);
    alloc_fault_set(0);
    assert_null(t);
}

/* processor time of this process, all threads */
static double busy_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void idle_members_sleep(void **state) {
    (void)state;
    team *t = made(8);
    job j = {.input = 1};
    (void)team_enter(t);
    team_each(100, true, count_task, &j);
    double busy = 1;
    for (uint32_t tries = 0; busy > 0.02; tries++) { /* until they have gone to sleep */
        assert_in_range(tries, 0, 100);              /* one that looked all the time would use all it gets */
        const double before = busy_s();
        usleep(200000);
        busy = busy_s() - before;
    }
    print_message("  seven members used %.1f ms of processor time in 200 ms\n", 1e3 * busy);
    (void)team_enter(NULL);
    team_destroy(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_runs_once_for_all_counts_and_widths),
        cmocka_unit_test(members_that_come_late_take_no_task_of_another_launch),
        cmocka_unit_test(tasks_run_in_order_on_the_caller_without_a_team_or_when_told),
        cmocka_unit_test(members_take_part_after_any_pause),
        cmocka_unit_test(a_task_that_hands_out_tasks_runs_them_itself),
        cmocka_unit_test(every_piece_runs_once_for_all_counts_and_widths),
        cmocka_unit_test(members_help_with_the_only_task),
        cmocka_unit_test(a_launch_keeps_to_the_threads_that_it_was_given),
        cmocka_unit_test(a_member_that_wakes_up_on_its_owners_core_moves),
        cmocka_unit_test(launches_that_follow_each_other_see_what_was_written),
        cmocka_unit_test(teams_of_several_streams_do_not_disturb_each_other),
        cmocka_unit_test(a_team_can_go_at_any_time_between_launches),
        cmocka_unit_test(threads_and_memory_that_do_not_come_are_refused),
        cmocka_unit_test(idle_members_sleep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
