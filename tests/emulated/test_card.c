/* The emulated card sees what it is for: a kernel that waits once too little gives wrong words on it. */
#include "kernels/cuda/emulated/planted.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void a_correct_program_has_the_right_words(void **state) {
    (void)state;
    for (int i = 0; i < 10; i++) assert_int_equal(planted_wrong_words(PLANTED_NONE), 0);
}

static void sees(planted_fault fault) {
    const uint32_t wrong = planted_wrong_words(fault);
    assert_true(wrong > 0 && wrong != UINT32_MAX);
}
static void a_missing_wait_of_a_block_is_seen(void **state) {
    (void)state;
    sees(PLANTED_BLOCK_WAIT);
}
static void a_missing_wait_of_a_warp_is_seen(void **state) {
    (void)state;
    sees(PLANTED_WARP_WAIT);
}
static void shared_memory_reused_too_early_is_seen(void **state) {
    (void)state;
    sees(PLANTED_REUSE);
}
static void a_warp_that_goes_ahead_too_early_is_seen(void **state) {
    (void)state;
    sees(PLANTED_AHEAD);
}
static void an_asynchronous_copy_not_waited_for_is_seen(void **state) {
    (void)state;
    sees(PLANTED_COPY_WAIT);
}
static void a_read_before_the_wait_for_the_kernel_ahead_is_seen(void **state) {
    (void)state;
    sees(PLANTED_KERNEL_WAIT);
}
static void branches_of_a_graph_that_race_are_seen(void **state) {
    (void)state;
    sees(PLANTED_BRANCH);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_correct_program_has_the_right_words),
        cmocka_unit_test(a_missing_wait_of_a_block_is_seen),
        cmocka_unit_test(a_missing_wait_of_a_warp_is_seen),
        cmocka_unit_test(shared_memory_reused_too_early_is_seen),
        cmocka_unit_test(a_warp_that_goes_ahead_too_early_is_seen),
        cmocka_unit_test(an_asynchronous_copy_not_waited_for_is_seen),
        cmocka_unit_test(a_read_before_the_wait_for_the_kernel_ahead_is_seen),
        cmocka_unit_test(branches_of_a_graph_that_race_are_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
