/* Duplicates: one evaluation per tenant, id and body inside a window of time and bytes. */
#include "daemon/dedupe.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static dedupe d;
static uint8_t id[16], other_id[16], digest[DEDUPE_DIGEST_BYTES], other_digest[DEDUPE_DIGEST_BYTES];
static int owner;

static int setup(void **state) {
    (void)state;
    assert_int_equal(dedupe_init(&d, 100, 1 << 20, NULL), CKKS_OK);
    memset(id, 1, sizeof id), memset(other_id, 2, sizeof other_id);
    memset(digest, 3, sizeof digest), memset(other_digest, 4, sizeof other_digest);
    return 0;
}
static int teardown(void **state) {
    (void)state;
    dedupe_fini(&d);
    return 0;
}

static void digest_tells_any_change_and_any_shift_of_the_border(void **state) {
    uint8_t a[1000], first[DEDUPE_DIGEST_BYTES], other[DEDUPE_DIGEST_BYTES];
    (void)state;
    for (size_t i = 0; i < sizeof a; i++) a[i] = (uint8_t)(i * 7);
    assert_int_equal(dedupe_digest(&d, first, a, 40, a + 40, 960, NULL), CKKS_OK);
    assert_int_equal(dedupe_digest(&d, other, a, 40, a + 40, 960, NULL), CKKS_OK);
    assert_memory_equal(first, other, sizeof first);
    assert_int_equal(dedupe_digest(&d, other, a, 41, a + 41, 959, NULL), CKKS_OK);
    assert_memory_not_equal(first, other, sizeof first);
    for (size_t i = 0; i < sizeof a; i++) {
        a[i] ^= 1;
        assert_int_equal(dedupe_digest(&d, other, a, 40, a + 40, 960, NULL), CKKS_OK);
        assert_memory_not_equal(first, other, sizeof first);
        a[i] ^= 1;
    }
}

static void digest_of_another_process_is_another(void **state) {
    static dedupe second;
    uint8_t a[64] = {0}, one[DEDUPE_DIGEST_BYTES], two[DEDUPE_DIGEST_BYTES];
    (void)state;
    assert_int_equal(dedupe_init(&second, 100, 1 << 20, NULL), CKKS_OK);
    assert_int_equal(dedupe_digest(&d, one, a, 0, a, sizeof a, NULL), CKKS_OK);
    assert_int_equal(dedupe_digest(&second, two, a, 0, a, sizeof a, NULL), CKKS_OK);
    assert_memory_not_equal(one, two, sizeof one);
    dedupe_fini(&second);
}

static dedupe_entry *enter(const char *tenant, const uint8_t *which, uint64_t now, bool *is_new) {
    dedupe_entry *entry = NULL;
    assert_int_equal(dedupe_enter(&d, &entry, is_new, tenant, which, digest, &owner, now, NULL), CKKS_OK);
    return entry;
}

static nng_msg *message(size_t size) {
    nng_msg *m;
    assert_int_equal(nng_msg_alloc(&m, size), 0);
    memset(nng_msg_body(m), 7, size);
    return m;
}

static void finish(dedupe_entry *entry, size_t size, uint64_t now) {
    nng_msg *m = message(size);
    dedupe_finish(&d, entry, m, now);
}

static void a_retry_finds_the_running_request(void **state) {
    (void)state;
    bool is_new;
    dedupe_entry *first = enter("acme", id, 0, &is_new);
    assert_true(is_new);
    assert_ptr_equal(enter("acme", id, 1, &is_new), first);
    assert_false(is_new);
    assert_ptr_equal(first->owner, &owner);
    dedupe_forget(&d, first);
}

static void a_late_retry_gets_the_finished_reply(void **state) {
    (void)state;
    bool is_new;
    finish(enter("acme", id, 0, &is_new), 50, 10);
    dedupe_entry *entry = enter("acme", id, 109, &is_new);
    assert_false(is_new);
    assert_null(entry->owner);
    assert_int_equal(nng_msg_len(entry->reply), 50);
    assert_int_equal(((uint8_t *)nng_msg_body(entry->reply))[49], 7);
}

static void another_body_under_the_same_id_is_refused_running_or_finished(void **state) {
    (void)state;
    bool is_new;
    ckks_error err = {0};
    dedupe_entry *entry = enter("acme", id, 0, &is_new), *out;
    assert_int_equal(dedupe_enter(&d, &out, &is_new, "acme", id, other_digest, &owner, 0, &err),
                     CKKS_REQUEST_ID_REUSED);
    finish(entry, 10, 0);
    assert_int_equal(dedupe_enter(&d, &out, &is_new, "acme", id, other_digest, &owner, 0, NULL),
                     CKKS_REQUEST_ID_REUSED);
}

static void tenants_and_ids_are_apart(void **state) {
    (void)state;
    bool is_new;
    dedupe_entry *a = enter("acme", id, 0, &is_new), *b = enter("bolt", id, 0, &is_new);
    assert_true(is_new);
    dedupe_entry *c = enter("acme", other_id, 0, &is_new);
    assert_true(is_new);
    assert_ptr_equal(dedupe_find(&d, "bolt", id, 0), b);
    assert_null(dedupe_find(&d, "bolt", other_id, 0));
    dedupe_forget(&d, a), dedupe_forget(&d, b), dedupe_forget(&d, c);
}

/* more tenants than buckets: most share one with others, where the name alone tells them apart */
static void tenants_whose_hashes_collide_are_apart_too(void **state) {
    (void)state;
    enum { TENANTS = 4 * DEDUPE_BUCKETS };
    static dedupe_entry *entries[TENANTS];
    char name[32];
    bool is_new;
    for (unsigned i = 0; i < TENANTS; i++) {
        snprintf(name, sizeof name, "tenant-%u", i);
        entries[i] = enter(name, id, 0, &is_new);
        assert_true(is_new);
    }
    for (unsigned i = 0; i < TENANTS; i++) {
        snprintf(name, sizeof name, "tenant-%u", i);
        assert_ptr_equal(dedupe_find(&d, name, id, 0), entries[i]);
    }
    for (unsigned i = 0; i < TENANTS; i++) dedupe_forget(&d, entries[i]);
}

static void what_ended_without_an_evaluation_may_run_again(void **state) {
    (void)state;
    bool is_new;
    dedupe_forget(&d, enter("acme", id, 0, &is_new));
    dedupe_forget(&d, enter("acme", id, 0, &is_new));
    assert_true(is_new);
}

static void replies_go_when_their_time_is_over(void **state) {
    (void)state;
    bool is_new;
    finish(enter("acme", id, 0, &is_new), 50, 10);
    assert_non_null(dedupe_find(&d, "acme", id, 109));
    assert_null(dedupe_find(&d, "acme", id, 110));
    assert_int_equal(d.bytes, 0);
}

static void over_the_byte_budget_the_oldest_reply_goes_first(void **state) {
    (void)state;
    bool is_new;
    d.bytes_max = 2 * (1000 + DEDUPE_ENTRY_BYTES);
    for (uint8_t i = 0; i < 5; i++) {
        uint8_t which[16] = {i};
        finish(enter("acme", which, 0, &is_new), 1000, 10);
        assert_true(d.bytes <= d.bytes_max);
    }
    for (uint8_t i = 0; i < 5; i++) {
        uint8_t which[16] = {i};
        assert_int_equal(dedupe_find(&d, "acme", which, 11) != NULL, i >= 3);
    }
    /* a large one takes the room of several */
    finish(enter("acme", id, 11, &is_new), 2000 + DEDUPE_ENTRY_BYTES, 12);
    assert_true(d.bytes <= d.bytes_max);
    assert_non_null(dedupe_find(&d, "acme", id, 12));
}

static void a_window_of_no_time_keeps_nothing(void **state) {
    (void)state;
    bool is_new;
    d.keep_ns = 0;
    finish(enter("acme", id, 0, &is_new), 50, 10);
    assert_null(dedupe_find(&d, "acme", id, 10));
}

static void ten_thousand_entries_are_found_again(void **state) {
    (void)state;
    bool is_new;
    d.bytes_max = 1u << 30;
    for (uint32_t i = 0; i < 10000; i++) {
        uint8_t which[16] = {(uint8_t)i, (uint8_t)(i >> 8)};
        finish(enter("acme", which, 0, &is_new), 8, 10);
        assert_true(is_new);
    }
    for (uint32_t i = 0; i < 10000; i++) {
        uint8_t which[16] = {(uint8_t)i, (uint8_t)(i >> 8)};
        assert_non_null(dedupe_find(&d, "acme", which, 11));
    }
    assert_int_equal(d.bytes, 10000 * (8 + DEDUPE_ENTRY_BYTES));
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(digest_tells_any_change_and_any_shift_of_the_border, setup, teardown),
        cmocka_unit_test_setup_teardown(digest_of_another_process_is_another, setup, teardown),
        T(a_retry_finds_the_running_request),
        T(a_late_retry_gets_the_finished_reply),
        T(another_body_under_the_same_id_is_refused_running_or_finished),
        T(tenants_and_ids_are_apart),
        T(tenants_whose_hashes_collide_are_apart_too),
        T(what_ended_without_an_evaluation_may_run_again),
        T(replies_go_when_their_time_is_over),
        T(over_the_byte_budget_the_oldest_reply_goes_first),
        T(a_window_of_no_time_keeps_nothing),
        T(ten_thousand_entries_are_found_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
