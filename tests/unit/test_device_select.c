/* Which card is taken and what is said when none can be: all from plain data, so that no card is needed. */
#include "kernels/device.h"
#include "kernels/device_select.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define UUID_A "GPU-00000000-1111-2222-3333-444444444444"
#define UUID_B "GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"

static const gpu_card old = {.name = "Old Card", .uuid = UUID_A, .major = 7, .minor = 5};
static const gpu_card new = {.name = "New Card", .uuid = UUID_B, .major = 9, .minor = 0};

static gpu_inventory machine(uint32_t count, const gpu_card *first, const gpu_card *second) {
    gpu_inventory g = {.presence = GPU_PRESENT, .count = count, .needed_version = 13000};
    if (count > 0) g.cards[0] = *first;
    if (count > 1) g.cards[1] = *second;
    return g;
}

static void is_chosen(const gpu_inventory *g, const char *selector, uint32_t expected, const char *why) {
    ckks_error err = {0};
    uint32_t index = 99;
    char reason[160];
    assert_int_equal(gpu_choose(&index, reason, sizeof reason, g, selector, &err), CKKS_OK);
    assert_int_equal(index, expected);
    assert_string_equal(reason, why);
}

static void is_refused(const gpu_inventory *g, const char *selector, ckks_status code, const char *part) {
    ckks_error err = {0};
    uint32_t index = 99;
    char reason[160];
    assert_int_equal(gpu_choose(&index, reason, sizeof reason, g, selector, &err), code);
    assert_int_equal(index, 99);
    assert_string_equal(err.field, "device");
    if (!strstr(err.message, part)) print_error("message: %s\n", err.message);
    assert_non_null(strstr(err.message, part));
}

static void without_a_selector_the_first_card_that_is_new_enough_is_taken(void **state) {
    (void)state;
    const gpu_inventory one = machine(1, &new, NULL), two = machine(2, &new, &new),
                        mixed = machine(2, &old, &new);
    is_chosen(&one, NULL, 0, "the only GPU");
    is_chosen(&one, "", 0, "the only GPU");
    is_chosen(&two, NULL, 0, "the first of 2 GPUs");
    is_chosen(&mixed, NULL, 1, "GPU 1 of 2, the first of compute capability 8.0 or newer");
}

static void card_is_selected_by_index_or_uuid(void **state) {
    (void)state;
    const gpu_inventory g = machine(2, &old, &new);
    is_chosen(&g, "1", 1, "GPU 1, selected by index");
    is_chosen(&g, UUID_B, 1, "GPU 1, selected by UUID");
    is_chosen(&g, "gpu-AAAAAAAA-BBBB-cccc-dddd-eeeeeeeeeeee", 1, "GPU 1, selected by UUID");
}

static void selector_that_names_no_card_is_refused_with_what_there_is(void **state) {
    (void)state;
    const gpu_inventory g = machine(2, &old, &new);
    static const char *const wrong[] = {"2", "-1", "4294967296", "1x", " ", "GPU-", "H200"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        is_refused(&g, wrong[i], CKKS_INVALID_ARGUMENT, "1 (New Card, 9.0, " UUID_B ")");
}

static void unsupported_compute_capability_is_named(void **state) {
    (void)state;
    const gpu_inventory g = machine(2, &old, &new), none = machine(1, &old, NULL);
    is_refused(&g, "0", CKKS_UNSUPPORTED,
               "Old Card, has compute capability 7.5 and 8.0 is needed: select a newer card");
    is_refused(&none, NULL, CKKS_NOT_FOUND,
               "8.0 or newer is needed and this machine has GPU 0 (Old Card, 7.5): ");
}

static void machine_without_a_usable_card_says_why(void **state) {
    (void)state;
    gpu_inventory g = {.presence = GPU_NO_DRIVER, .needed_version = 13000};
    is_refused(&g, NULL, CKKS_NOT_FOUND,
               "no NVIDIA driver on this machine: install one for CUDA 13.0 or newer");
    g.presence = GPU_DRIVER_TOO_OLD, g.driver_version = 12020;
    is_refused(&g, NULL, CKKS_NOT_FOUND,
               "driver is for CUDA 12.2 and this build needs 13.0: update the driver, or");
    g.presence = GPU_NO_CARD;
    is_refused(&g, "0", CKKS_NOT_FOUND, "driver finds no GPU: give the container its card");
    g.presence = GPU_NOT_USABLE, g.cause = "system not yet initialized";
    is_refused(&g, NULL, CKKS_NOT_FOUND, "(system not yet initialized): nvidia-smi must work for this user");
    g.presence = GPU_PRESENT;
    is_refused(&g, NULL, CKKS_NOT_FOUND, "finds no GPU");
    is_refused(&g, NULL, CKKS_NOT_FOUND, "or take the CPU (kind = cpu in [device], --device cpu)");
}

static void long_lists_of_cards_are_cut_not_overrun(void **state) {
    (void)state;
    gpu_inventory g = {.presence = GPU_PRESENT, .count = GPU_CARDS_MAX};
    for (uint32_t i = 0; i < GPU_CARDS_MAX; i++) {
        g.cards[i] = old;
        memset(g.cards[i].name, 'x', sizeof g.cards[i].name - 1);
    }
    is_refused(&g, "77", CKKS_INVALID_ARGUMENT, "there is no GPU 77");
    is_refused(&g, NULL, CKKS_NOT_FOUND, "8.0 or newer is needed");
}

static void device_says_why_it_was_taken(void **state) {
    (void)state;
    device *dev = NULL;
    device_config config = {.kind = DEVICE_CPU, .threads = 1};
    assert_int_equal(device_open(&dev, &config, NULL), CKKS_OK);
    assert_string_equal(device_reason(dev), "configured");
    assert_string_equal(device_hardware_id(dev), "");
    assert_false(device_is_lost(dev));
    device_close(dev);
    config.kind = DEVICE_AUTO;
    assert_int_equal(device_open(&dev, &config, NULL), CKKS_OK);
    print_message("%s: %s\n", device_describe(dev), device_reason(dev));
    assert_int_equal(strncmp(device_reason(dev), "auto: ", 6), 0);
    if (device_get_kind(dev) == DEVICE_CPU) {
        assert_non_null(strstr(device_reason(dev), ", so the CPU"));
        assert_null(strstr(device_reason(dev), "or take")); /* advice is for who gets nothing */
    } else
        assert_int_equal(strncmp(device_hardware_id(dev), "GPU-", 4), 0);
    device_close(dev);
}

static void a_card_that_was_asked_for_and_is_not_there_is_no_reason_to_take_the_cpu(void **state) {
    (void)state;
    device *dev = NULL;
    ckks_error err = {0};
    const device_config config = {.kind = DEVICE_CUDA, .selector = "999", .threads = 1};
    const ckks_status rc = device_open(&dev, &config, &err);
    print_message("%s: %s\n", ckks_status_name(rc), err.message);
    assert_null(dev);
    assert_true(rc == CKKS_NOT_FOUND || rc == CKKS_UNSUPPORTED || rc == CKKS_INVALID_ARGUMENT);
    assert_true(err.message[0] != 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_selector_the_first_card_that_is_new_enough_is_taken),
        cmocka_unit_test(card_is_selected_by_index_or_uuid),
        cmocka_unit_test(selector_that_names_no_card_is_refused_with_what_there_is),
        cmocka_unit_test(unsupported_compute_capability_is_named),
        cmocka_unit_test(machine_without_a_usable_card_says_why),
        cmocka_unit_test(long_lists_of_cards_are_cut_not_overrun),
        cmocka_unit_test(device_says_why_it_was_taken),
        cmocka_unit_test(a_card_that_was_asked_for_and_is_not_there_is_no_reason_to_take_the_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
