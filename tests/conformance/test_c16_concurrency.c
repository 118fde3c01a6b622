/* C16, C19: instances on threads of their own do not notice each other, nor a capture; one instance is one
 * thread's. */
#include "tests/support/program_fixture.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* ---- C16 ---- */

#define THREADS 8u

typedef struct worker {
    program_fixture *f;
    graph_slot *slot;
    program_kind kind;
    uint32_t number, rounds, right;
    atomic_bool *stop; /* NULL: `rounds` rounds */
    atomic_uint done;
} worker;

static bool replay_is_right(test_program *t, sample *a, sample *b) {
    graph_result result;
    bool is_right = true;
    if (test_replay(t, &result, a, b, NULL) != CKKS_OK) return false;
    for (uint32_t i = 0; i < result.output_count; i++) {
        double actual[FIXTURE_SLOTS], expected[FIXTURE_SLOTS];
        fixture_decrypt(t->f, actual, result.outputs[i].words, &t->outputs[i], NULL);
        test_expected(t, expected, i, a, b);
        is_right &= is_close(actual, expected);
    }
    graph_result_release(&result);
    return is_right;
}

/* a whole life on one thread: create, capture, replay, close */
static void *work(void *context) {
    worker *w = context;
    sample *a = sample_create(w->f, 10 + w->number, NULL), *b = sample_create(w->f, 30 + w->number, NULL);
    test_program t;
    test_program_init(&t, w->f, w->slot, w->kind);
    const ckks_value examples[2] = {sample_value(a), sample_value(b)};
    if (graph_program_capture(t.program, 1, examples, w->f->keys, NULL) == CKKS_OK)
        for (uint32_t i = 0; w->stop != NULL ? !atomic_load(w->stop) : i < w->rounds; i++) {
            w->right += replay_is_right(&t, a, b);
            atomic_fetch_add(&w->done, 1);
        }
    test_program_fini(&t);
    sample_destroy(a), sample_destroy(b);
    return NULL;
}

static void eight_instances_on_eight_threads_are_independent(void **state) {
    (void)state;
    static const program_kind kinds[4] = {PROGRAM_ADD, PROGRAM_MULTIPLY, PROGRAM_ROTATE, PROGRAM_RANDOM};
    program_fixture f, own[THREADS];
    program_fixture_open(&f);
    worker workers[THREADS];
    pthread_t threads[THREADS];
    for (uint32_t i = 0; i < THREADS; i++) {
        own[i] =
            f; /* the device, the keys and the context are shared; a fixture's test stream is one thread's */
        assert_ok(device_stream_create(f.dev, &own[i].stream, NULL));
        const uint32_t rounds = fixture_is_short() ? 2 : 12;
        workers[i] = (worker){.f = &own[i], .kind = kinds[i % 4], .number = i, .rounds = rounds};
        assert_ok(graph_slot_create(&workers[i].slot, f.dev, 1u << 20, NULL));
    }
    for (uint32_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    for (uint32_t i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < THREADS; i++) {
        assert_int_equal(workers[i].right, workers[i].rounds);
        graph_slot_destroy(workers[i].slot);
        device_stream_destroy(own[i].stream);
    }
    program_fixture_close(&f);
}

typedef struct blocked_call {
    test_program *t;
    sample *a;
    ckks_status status;
    atomic_bool is_over;
} blocked_call;

static void *call_once(void *context) {
    blocked_call *call = context;
    graph_result result = {0};
    call->status = test_replay(call->t, &result, call->a, NULL, NULL);
    graph_result_release(&result);
    atomic_store(&call->is_over, true);
    return NULL;
}

static void second_thread_on_one_instance_is_refused(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL);
    test_program t;
    test_program_init_slow(&t, &f, NULL, 100);
    assert_ok(test_program_capture(&t, 0, NULL));
    uint32_t refused = 0;
    for (int round = 0; round < 500 && refused == 0; round++) {
        blocked_call call = {.t = &t, .a = a};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, call_once, &call), 0);
        while (!atomic_load(&call.is_over)) {
            graph_result result = {0};
            ckks_error err = {0};
            const graph_handle nothing = {0};
            const ckks_status rc =
                graph_program_replay_prepared(t.program, &result, nothing, GRAPH_OUTPUT_OWNED, &err);
            if (rc == CKKS_FAILED_PRECONDITION && strcmp(err.field, "program") == 0) refused++;
            graph_result_release(&result);
            (void)graph_program_get_state(t.program); /* any thread may look */
            graph_program_stats stats;
            graph_program_get_stats(t.program, &stats);
            sched_yield();
        }
        pthread_join(thread, NULL);
        /* whoever was second was refused; the first was served */
        assert_true(call.status == CKKS_OK || call.status == CKKS_FAILED_PRECONDITION);
        refused += call.status == CKKS_FAILED_PRECONDITION; /* this thread was the first */
    }
    assert_true(refused > 0);
    assert_works(&t, a, NULL);
    test_program_fini(&t);
    sample_destroy(a);
    program_fixture_close(&f);
}

typedef struct onlooker {
    graph_program *program;
    atomic_bool stop;
    atomic_uint looks;
} onlooker;

static void *look(void *context) {
    onlooker *o = context;
    graph_program_stats stats;
    while (!atomic_load(&o->stop)) {
        graph_program_get_stats(o->program, &stats);
        const graph_program_state state = graph_program_get_state(o->program);
        atomic_fetch_add(&o->looks, state == GRAPH_PROGRAM_READY ? stats.input_bytes > 0 : 1);
    }
    return NULL;
}

static void any_thread_may_look_at_a_program_through_its_life(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL), *b = sample_create(&f, 2, NULL);
    test_program t;
    pthread_t thread;
    test_program_init(&t, &f, NULL, PROGRAM_MULTIPLY);
    onlooker o = {.program = t.program};
    assert_int_equal(pthread_create(&thread, NULL, look, &o), 0);
    while (atomic_load(&o.looks) == 0) sched_yield(); /* it does look: a card is through all of this first */
    assert_ok(test_program_capture(&t, 2, NULL));
    for (int i = 0; i < 5; i++) assert_works(&t, a, b);
    graph_program_close(t.program);
    atomic_store(&o.stop, true);
    pthread_join(thread, NULL);
    assert_true(atomic_load(&o.looks) > 0);
    test_program_fini(&t);
    sample_destroy(a), sample_destroy(b);
    program_fixture_close(&f);
}

/* ---- C19 ---- */

static void capturing_on_one_slot_disturbs_no_other(void **state) {
    (void)state;
    program_fixture f, own[2];
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL), *b = sample_create(&f, 2, NULL);
    atomic_bool stop = false;
    worker workers[2];
    pthread_t threads[2];
    for (uint32_t i = 0; i < 2; i++) {
        own[i] = f;
        assert_ok(device_stream_create(f.dev, &own[i].stream, NULL));
        workers[i] = (worker){
            .f = &own[i], .kind = i == 0 ? PROGRAM_MULTIPLY : PROGRAM_RANDOM, .number = i, .stop = &stop};
        assert_ok(graph_slot_create(&workers[i].slot, f.dev, 1u << 20, NULL));
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (uint32_t i = 0; i < 2; i++)
        while (atomic_load(&workers[i].done) == 0) sched_yield();
    const uint32_t before = atomic_load(&workers[0].done) + atomic_load(&workers[1].done);
    uint32_t during = 0;
    for (int round = 0; round < (fixture_is_short() ? 2 : 12) || during == 0; round++) {
        test_program t;
        assert_in_range(round, 0, 500);
        test_program_start(&t, &f, NULL, round % 2 == 0 ? PROGRAM_MULTIPLY : PROGRAM_SLOW);
        assert_works(&t, a, b);
        test_program_fini(&t);
        during = atomic_load(&workers[0].done) + atomic_load(&workers[1].done) - before;
    }
    atomic_store(&stop, true);
    for (uint32_t i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(workers[i].right, atomic_load(&workers[i].done));
        graph_slot_destroy(workers[i].slot);
        device_stream_destroy(own[i].stream);
    }
    print_message("captures beside %u replays\n", during);
    sample_destroy(a), sample_destroy(b);
    program_fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eight_instances_on_eight_threads_are_independent),
        cmocka_unit_test(second_thread_on_one_instance_is_refused),
        cmocka_unit_test(any_thread_may_look_at_a_program_through_its_life),
        cmocka_unit_test(capturing_on_one_slot_disturbs_no_other),
    };
    return program_suite("C16 concurrency, C19 capture under traffic", tests);
}
