/*
 * A card that is lost in the middle of work (a kernel traps): no wrong answer leaves, every call says so,
 * everything can still be closed. Each case runs in a process of its own, since such a process is good for
 * nothing afterwards.
 */
#include "tests/support/program_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* in the child a failed check ends the process: the parent does the asserting */
#define check(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                          \
            _exit(1);                                                                                        \
        }                                                                                                    \
    } while (0)

static void in_a_process_of_its_own(void (*scenario)(void)) {
    int status = 0;
    if (fixture_is_short()) {
        print_message("skipped: it breaks its card on purpose, which a tool would report\n");
        skip();
    }
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        scenario();
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* a result that was given out is right, or there is none */
static void check_right_or_void(test_program *t, ckks_status rc, graph_result *result, const sample *a) {
    double actual[FIXTURE_SLOTS], expected[FIXTURE_SLOTS];
    if (rc == CKKS_OK) {
        fixture_decrypt(t->f, actual, result->outputs[0].words, &t->outputs[0], NULL);
        test_expected(t, expected, 0, a, NULL);
        check(is_close(actual, expected));
    } else {
        check(rc == CKKS_DEVICE_ERROR);
        check(result->outputs == NULL);
    }
    graph_result_release(result);
}

static void lose_and_replay(void) {
    program_fixture f;
    test_program first, second;
    graph_slot *other = NULL;
    graph_result result = {0};
    ckks_error err = {0};
    program_fixture_open(&f);
    check(graph_slot_create(&other, f.dev, 4u << 20, NULL) == CKKS_OK);
    sample *a = sample_create(&f, 1, NULL);
    const ckks_value example = sample_value(a);
    test_program_start(&first, &f, NULL, PROGRAM_ROTATE);
    test_program_start(&second, &f, other, PROGRAM_ROTATE);
    check(test_replay(&first, &result, a, NULL, NULL) == CKKS_OK);
    check_right_or_void(&first, CKKS_OK, &result, a);
    check(!device_is_lost(f.dev));

    device_fault_lose(f.dev);
    check(test_replay(&first, &result, a, NULL, &err) == CKKS_DEVICE_ERROR);
    check(result.outputs == NULL);
    check(err.message[0] != 0);
    check(device_is_lost(f.dev));
    check(graph_program_get_state(first.program) == GRAPH_PROGRAM_FAILED);
    /* it is the whole device: other slots have it too, and no recovery brings it back */
    check(test_replay(&second, &result, a, NULL, NULL) == CKKS_DEVICE_ERROR);
    check(result.outputs == NULL);
    check(graph_slot_recover(f.slot, NULL) == CKKS_DEVICE_ERROR);
    check(graph_slot_recover(other, NULL) == CKKS_DEVICE_ERROR);
    check(graph_program_capture(first.program, 0, &example, f.keys, NULL) == CKKS_DEVICE_ERROR);
    void *memory = NULL;
    check(device_is_lost(f.dev));
    (void)device_allocate(f.dev, &memory, 4096, MEMORY_STATIC, NULL);
    device_free(f.dev, memory);
    test_program_fini(&first), test_program_fini(&second);
    sample_destroy(a);
    graph_slot_destroy(other);
    program_fixture_close(&f); /* asserts that every byte came back */
}

static void replay_that_loses_the_device_gives_no_answer(void **state) {
    (void)state;
    in_a_process_of_its_own(lose_and_replay);
}

static void lose_with_replays_pending(void) {
    program_fixture f;
    test_program t;
    graph_pending *pending[GRAPH_PENDING_MAX] = {0};
    sample *samples[GRAPH_PENDING_MAX];
    program_fixture_open(&f);
    for (uint32_t i = 0; i < GRAPH_PENDING_MAX; i++) samples[i] = sample_create(&f, i + 1, NULL);
    test_program_init_slow(&t, &f, NULL, 20);
    check(test_program_capture(&t, 0, NULL) == CKKS_OK);
    for (uint32_t i = 0; i < GRAPH_PENDING_MAX; i++) {
        graph_handle handle;
        if (i == 2) device_fault_lose(f.dev); /* two are on their way */
        if (test_copy(&t, &handle, samples[i], NULL, NULL) != CKKS_OK) break;
        if (graph_program_replay_begin(t.program, &pending[i], handle, GRAPH_OUTPUT_OWNED, NULL) != CKKS_OK)
            pending[i] = NULL;
    }
    bool all_good = true;
    for (uint32_t i = 0; i < GRAPH_PENDING_MAX; i++) {
        graph_result result = {0};
        if (pending[i] == NULL) {
            all_good = false;
            continue;
        }
        const ckks_status rc = graph_program_replay_finish(t.program, pending[i], &result, NULL);
        all_good &= rc == CKKS_OK;
        check_right_or_void(&t, rc, &result, samples[i]);
    }
    check(!all_good);
    check(device_is_lost(f.dev));
    test_program_fini(&t);
    for (uint32_t i = 0; i < GRAPH_PENDING_MAX; i++) sample_destroy(samples[i]);
    program_fixture_close(&f);
}

static void answers_begun_before_the_loss_are_right_or_void(void **state) {
    (void)state;
    in_a_process_of_its_own(lose_with_replays_pending);
}

static void lose_in_capture(void) {
    program_fixture f;
    test_program t;
    ckks_error err = {0};
    program_fixture_open(&f);
    const memory_mark mark = memory_mark_take(&f);
    test_program_init(&t, &f, NULL, PROGRAM_ROTATE);
    sample *a = sample_create(&f, 1, NULL);
    const ckks_value example = sample_value(a);
    device_fault_lose(f.dev);
    check(graph_program_capture(t.program, 1, &example, f.keys, &err) == CKKS_DEVICE_ERROR);
    check(err.stage[0] != 0);
    sample_destroy(a);
    test_program_fini(&t);
    device_memory_account account;
    device_memory(f.dev, &account);
    check(account.bytes_used == mark.account.bytes_used);
    program_fixture_close(&f);
}

static void capture_on_a_device_that_is_lost_meanwhile_names_its_stage(void **state) {
    (void)state;
    in_a_process_of_its_own(lose_in_capture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replay_that_loses_the_device_gives_no_answer),
        cmocka_unit_test(answers_begun_before_the_loss_are_right_or_void),
        cmocka_unit_test(capture_on_a_device_that_is_lost_meanwhile_names_its_stage),
    };
    return program_suite("a lost device", tests);
}
