/* A card's health through a table of functions: what cannot be read is not known, what is read is plain. */
#include "kernels/device_health.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* A driver with two cards of which everything can be made to fail. */
static uint32_t failing; /* HEALTH_ bits, and the two below */
enum { FAIL_INIT = 1u << 16, FAIL_TEXT = 1u << 17, FAIL_COUNT = 1u << 18 };
static int opened, closed;
static int cards[2];

static int fails(uint32_t bit) {
    return failing & bit ? 999 : 0;
}
static int fake_init(void) {
    opened += !(failing & FAIL_INIT);
    return fails(FAIL_INIT);
}
static int fake_shutdown(void) {
    closed++;
    return 0;
}
static const char *fake_error(int status) {
    return status == 999 ? "insufficient permissions" : NULL;
}
static int fake_driver_version(char *text, unsigned size) {
    memset(text, 'v', size); /* without an end: ours to put */
    return fails(FAIL_TEXT);
}
static int fake_count(unsigned *out) {
    *out = 2;
    return fails(FAIL_COUNT);
}
static int fake_by_uuid(const char *uuid, health_card **out) {
    *out = (health_card *)&cards[1];
    return strcmp(uuid, "GPU-two") != 0 ? 6 : 0;
}
static int fake_by_index(unsigned index, health_card **out) {
    if (index > 1) return 2;
    *out = (health_card *)&cards[index];
    return 0;
}
static int number(const health_card *card) {
    return (const int *)(const void *)card == &cards[1] ? 2 : 1;
}
static int fake_name(health_card *card, char *text, unsigned size) {
    snprintf(text, size, "card %d\n\"\\\x1b", number(card));
    return fails(FAIL_TEXT);
}
static int fake_capability(health_card *card, int *major, int *minor) {
    *major = 8, *minor = number(card);
    return fails(HEALTH_CAPABILITY);
}
static int fake_temperature(health_card *card, int sensor, unsigned *out) {
    assert_int_equal(sensor, 0);
    *out = 30u + (unsigned)number(card);
    return fails(HEALTH_TEMPERATURE);
}
static int fake_power(health_card *card, unsigned *mw) {
    (void)card;
    *mw = 76500;
    return fails(HEALTH_POWER);
}
static int fake_power_limit(health_card *card, unsigned *mw) {
    (void)card;
    *mw = 700000;
    return fails(HEALTH_POWER_LIMIT);
}
static int fake_utilisation(health_card *card, health_utilisation *out) {
    (void)card;
    *out = (health_utilisation){90, 40};
    return fails(HEALTH_UTILISATION);
}
static int fake_memory(health_card *card, health_memory *out) {
    (void)card;
    *out = (health_memory){100, 60, 40};
    return fails(HEALTH_MEMORY);
}
static int fake_ecc(health_card *card, int type, int counter, unsigned long long *out) {
    (void)card;
    assert_int_equal(counter, 0);
    *out = type ? 3 : 5;
    return type ? fails(HEALTH_ECC) : 0; /* half an answer is none */
}
static int fake_clock(health_card *card, int type, unsigned *mhz) {
    (void)card;
    assert_int_equal(type, 1);
    *mhz = 1980;
    return fails(HEALTH_CLOCK);
}
static int fake_throttle(health_card *card, unsigned long long *bits) {
    (void)card;
    *bits = 0x60;
    return fails(HEALTH_THROTTLE);
}
static const health_driver fake = {
    .init = fake_init,
    .shutdown = fake_shutdown,
    .error_string = fake_error,
    .driver_version = fake_driver_version,
    .count = fake_count,
    .by_uuid = fake_by_uuid,
    .by_index = fake_by_index,
    .name = fake_name,
    .capability = fake_capability,
    .temperature = fake_temperature,
    .power = fake_power,
    .power_limit = fake_power_limit,
    .utilisation = fake_utilisation,
    .memory = fake_memory,
    .ecc_errors = fake_ecc,
    .clock = fake_clock,
    .throttle = fake_throttle,
};
#define EVERYTHING ((HEALTH_CAPABILITY << 1) - 1)

static int setup(void **state) {
    (void)state;
    failing = 0, opened = closed = 0;
    return 0;
}

static void reading_has_all_that_the_card_says(void **state) {
    (void)state;
    health_source *s = NULL;
    device_health h;
    assert_int_equal(health_open(&s, "GPU-two", &fake, NULL), CKKS_OK);
    assert_int_equal(health_count(s), 2);
    health_read(s, &h);
    assert_int_equal(h.known, EVERYTHING);
    assert_string_equal(h.name, "card 2????"); /* it goes into labels and onto terminals */
    assert_int_equal(strlen(h.driver), sizeof h.driver - 1);
    assert_int_equal(h.major, 8);
    assert_int_equal(h.minor, 2);
    assert_int_equal(h.temperature_c, 32);
    assert_int_equal(h.power_mw, 76500);
    assert_int_equal(h.power_limit_mw, 700000);
    assert_int_equal(h.utilisation_percent, 90);
    assert_int_equal(h.memory_utilisation_percent, 40);
    assert_int_equal(h.clock_mhz, 1980);
    assert_int_equal(h.memory_used, 40);
    assert_int_equal(h.memory_total, 100);
    assert_int_equal(h.ecc_corrected, 5);
    assert_int_equal(h.ecc_uncorrected, 3);
    assert_int_equal(h.throttle & HEALTH_THROTTLE_BAD, 0x60);
    assert_int_equal(health_select(s, 0, NULL), CKKS_OK);
    health_read(s, &h);
    assert_int_equal(h.temperature_c, 31);
    health_close(s);
    assert_int_equal(opened, 1);
    assert_int_equal(closed, 1);
}

static void what_cannot_be_read_is_not_known_and_the_rest_is(void **state) {
    (void)state;
    for (uint32_t bit = 1; bit <= HEALTH_CAPABILITY; bit <<= 1) {
        health_source *s = NULL;
        device_health h;
        failing = bit;
        assert_int_equal(health_open(&s, NULL, &fake, NULL), CKKS_OK);
        health_read(s, &h);
        assert_int_equal(h.known, EVERYTHING & ~bit);
        if (bit == HEALTH_ECC) assert_int_equal(h.ecc_corrected, 0);
        health_close(s);
    }
    health_source *s = NULL;
    device_health h;
    failing = FAIL_TEXT | FAIL_COUNT;
    assert_int_equal(health_open(&s, NULL, &fake, NULL), CKKS_OK);
    health_read(s, &h);
    assert_string_equal(h.name, "");
    assert_string_equal(h.driver, "");
    assert_int_equal(health_count(s), 0);
    health_close(s);
}

static void source_that_cannot_be_opened_says_why(void **state) {
    (void)state;
    health_source *s = NULL;
    ckks_error err = {0};
    failing = FAIL_INIT;
    assert_int_equal(health_open(&s, NULL, &fake, &err), CKKS_UNSUPPORTED);
    assert_null(s);
    assert_string_equal(err.message, "NVML does not start: insufficient permissions");
    assert_int_equal(closed, 0);
    failing = 0;
    err = (ckks_error){0};
    assert_int_equal(health_open(&s, "GPU-three", &fake, &err), CKKS_UNSUPPORTED);
    assert_null(s);
    assert_string_equal(err.message, "GPU-three: unknown error");
    assert_int_equal(closed, 1); /* what was started is ended */
    assert_int_equal(health_open(&s, NULL, &fake, NULL), CKKS_OK);
    err = (ckks_error){0};
    assert_int_equal(health_select(s, 2, &err), CKKS_UNSUPPORTED);
    assert_string_equal(err.field, "health");
    health_close(s);
    health_close(NULL);
}

/* Whatever this machine has: it answers or says why not. */
static void machines_own_library_is_opened_or_missed_politely(void **state) {
    (void)state;
    health_source *s = NULL;
    device_health h;
    ckks_error err = {0};
    if (health_open(&s, NULL, NULL, &err) != CKKS_OK) {
        print_message("%s\n", err.message);
        assert_int_equal(err.code, CKKS_UNSUPPORTED);
        assert_true(err.message[0] != 0);
        return;
    }
    assert_true(health_count(s) > 0);
    health_read(s, &h);
    print_message("%s, driver %s, %u degrees, %.0f W of %.0f W, %u %% busy, %llu of %llu MiB, clock %u MHz, "
                  "throttle 0x%llx, memory errors %llu and %llu, known 0x%x\n",
                  h.name, h.driver, h.temperature_c, h.power_mw * 1e-3, h.power_limit_mw * 1e-3,
                  h.utilisation_percent, (unsigned long long)h.memory_used >> 20,
                  (unsigned long long)h.memory_total >> 20, h.clock_mhz, (unsigned long long)h.throttle,
                  (unsigned long long)h.ecc_corrected, (unsigned long long)h.ecc_uncorrected, h.known);
    assert_true(h.known & HEALTH_MEMORY);
    assert_true(h.memory_total >= h.memory_used);
    health_close(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(reading_has_all_that_the_card_says, setup),
        cmocka_unit_test_setup(what_cannot_be_read_is_not_known_and_the_rest_is, setup),
        cmocka_unit_test_setup(source_that_cannot_be_opened_says_why, setup),
        cmocka_unit_test_setup(machines_own_library_is_opened_or_missed_politely, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
