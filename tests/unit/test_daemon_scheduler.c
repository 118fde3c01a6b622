/* Admission and order: bounded, fair between tenants, ordered within one. */
#include "daemon/scheduler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static scheduler s;
static scheduler_tenant alice, bob;
static scheduler_item items[64];

static int setup(void **state) {
    (void)state;
    scheduler_init(&s);
    s.items_max = 8, s.tenant_items_max = 6, s.model_items_max = 7, s.bytes_max = 1000;
    scheduler_tenant_init(&alice, 1, 0);
    scheduler_tenant_init(&bob, 1, 0);
    memset(items, 0, sizeof items);
    for (size_t i = 0; i < 64; i++) list_init(&items[i].link), items[i].bytes = 1, items[i].cost_ns = 1000000;
    return 0;
}

static bool any(void *context, scheduler_item *item) {
    (void)context, (void)item;
    return true;
}
static bool of_model(void *context, scheduler_item *item) {
    return item->model == *(uint32_t *)context;
}

static ckks_status admit(scheduler_tenant *tenant, scheduler_item *item, ckks_error *err) {
    const ckks_status rc = scheduler_admit(&s, tenant, item, err);
    if (rc == CKKS_OK) scheduler_enqueue(&s, item);
    return rc;
}

static void each_bound_refuses_and_names_itself(void **state) {
    (void)state;
    ckks_error err = {0};
    for (uint32_t i = 0; i < 6; i++)
        items[i].model = i, assert_int_equal(admit(&alice, &items[i], NULL), CKKS_OK);
    assert_int_equal(admit(&alice, &items[6], &err), CKKS_QUEUE_FULL);
    assert_string_equal(err.field, "tenant_requests_max");
    for (uint32_t i = 6; i < 8; i++)
        items[i].model = i, assert_int_equal(admit(&bob, &items[i], NULL), CKKS_OK);
    memset(&err, 0, sizeof err);
    assert_int_equal(admit(&bob, &items[8], &err), CKKS_QUEUE_FULL);
    assert_string_equal(err.field, "requests_max");
}

static void the_bound_of_a_model_counts_all_tenants(void **state) {
    (void)state;
    ckks_error err = {0};
    for (uint32_t i = 0; i < 7; i++) assert_int_equal(admit(i & 1 ? &alice : &bob, &items[i], NULL), CKKS_OK);
    assert_int_equal(admit(&bob, &items[7], &err), CKKS_QUEUE_FULL);
    assert_string_equal(err.field, "model_requests_max");
    items[8].model = 1;
    assert_int_equal(admit(&bob, &items[8], NULL), CKKS_OK);
}

static void bytes_are_bounded_and_cannot_overflow(void **state) {
    (void)state;
    ckks_error err = {0};
    items[0].bytes = 600, items[1].bytes = 401, items[2].bytes = 400, items[3].bytes = UINT64_MAX;
    assert_int_equal(admit(&alice, &items[0], NULL), CKKS_OK);
    assert_int_equal(admit(&alice, &items[1], &err), CKKS_QUEUE_FULL);
    assert_string_equal(err.field, "bytes_max");
    assert_int_equal(admit(&alice, &items[3], NULL), CKKS_QUEUE_FULL);
    assert_int_equal(admit(&bob, &items[2], NULL), CKKS_OK);
    assert_int_equal(scheduler_bytes(&s), 1000);
}

/* six of eight requests, so 750 of 1,000 bytes */
static void a_tenant_has_its_share_of_the_bytes_and_one_request_in_any_case(void **state) {
    (void)state;
    ckks_error err = {0};
    items[0].bytes = 600, items[1].bytes = 151, items[2].bytes = 150, items[3].bytes = 250;
    assert_int_equal(admit(&alice, &items[0], NULL), CKKS_OK);
    assert_int_equal(admit(&alice, &items[1], &err), CKKS_QUEUE_FULL);
    assert_string_equal(err.field, "bytes_max");
    assert_int_equal(admit(&alice, &items[2], NULL), CKKS_OK);
    assert_int_equal(admit(&bob, &items[3], NULL), CKKS_OK); /* what another left is there */
    scheduler_remove(&s, &items[0]), scheduler_remove(&s, &items[2]), scheduler_remove(&s, &items[3]);
    items[4].bytes = 1000;
    assert_int_equal(admit(&alice, &items[4], NULL), CKKS_OK);
    scheduler_remove(&s, &items[4]);
    s.tenant_items_max = 8; /* no tenant is held to less than all */
    items[5].bytes = 900, items[6].bytes = 100;
    assert_int_equal(admit(&alice, &items[5], NULL), CKKS_OK);
    assert_int_equal(admit(&alice, &items[6], NULL), CKKS_OK);
}

static void a_tenants_own_quota_is_a_quota_and_not_a_full_queue(void **state) {
    (void)state;
    scheduler_tenant_init(&alice, 1, 2);
    assert_int_equal(admit(&alice, &items[0], NULL), CKKS_OK);
    assert_int_equal(admit(&alice, &items[1], NULL), CKKS_OK);
    assert_int_equal(admit(&alice, &items[2], NULL), CKKS_QUOTA);
    assert_int_equal(admit(&bob, &items[3], NULL), CKKS_OK);
}

static void held_queued_and_running_all_count_until_removed(void **state) {
    (void)state;
    s.items_max = 3;
    assert_int_equal(scheduler_admit(&s, &alice, &items[0], NULL), CKKS_OK); /* held */
    assert_int_equal(admit(&alice, &items[1], NULL), CKKS_OK);
    assert_int_equal(admit(&alice, &items[2], NULL), CKKS_OK);
    assert_ptr_equal(scheduler_next(&s, any, NULL), &items[1]);
    assert_int_equal(scheduler_count(&s, SCHEDULER_HELD), 1);
    assert_int_equal(scheduler_count(&s, SCHEDULER_QUEUED), 1);
    assert_int_equal(scheduler_count(&s, SCHEDULER_RUNNING), 1);
    assert_int_equal(admit(&bob, &items[3], NULL), CKKS_QUEUE_FULL);
    scheduler_remove(&s, &items[1]);
    scheduler_remove(&s, &items[1]); /* safe to repeat */
    assert_int_equal(admit(&bob, &items[3], NULL), CKKS_OK);
}

static void within_a_tenant_priority_then_arrival_decides(void **state) {
    (void)state;
    items[1].priority = 5, items[3].priority = 5;
    for (uint32_t i = 0; i < 5; i++) assert_int_equal(admit(&alice, &items[i], NULL), CKKS_OK);
    static const uint32_t order[] = {1, 3, 0, 2, 4};
    for (uint32_t i = 0; i < 5; i++) assert_ptr_equal(scheduler_next(&s, any, NULL), &items[order[i]]);
    assert_null(scheduler_next(&s, any, NULL));
}

static void a_requeued_item_is_the_first_of_its_tenant(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(admit(&alice, &items[i], NULL), CKKS_OK);
    scheduler_item *first = scheduler_next(&s, any, NULL);
    scheduler_requeue(&s, first);
    assert_ptr_equal(scheduler_next(&s, any, NULL), first);
}

static void what_cannot_run_now_does_not_stand_in_the_way(void **state) {
    (void)state;
    uint32_t wanted = 2;
    items[0].model = 1, items[1].model = 2;
    assert_int_equal(admit(&alice, &items[0], NULL), CKKS_OK);
    assert_int_equal(admit(&alice, &items[1], NULL), CKKS_OK);
    assert_ptr_equal(scheduler_next(&s, of_model, &wanted), &items[1]);
    wanted = 3;
    assert_null(scheduler_next(&s, of_model, &wanted));
}

/* Runs until nothing is left; how many of the first `n` starts were alice's? */
static uint32_t starts_of_alice(uint32_t n) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++) {
        scheduler_item *item = scheduler_next(&s, any, NULL);
        assert_non_null(item);
        count += item->tenant == &alice;
        scheduler_remove(&s, item);
    }
    return count;
}

static void a_flood_of_one_tenant_does_not_starve_another(void **state) {
    (void)state;
    s.items_max = s.tenant_items_max = s.model_items_max = 64;
    for (uint32_t i = 0; i < 40; i++) assert_int_equal(admit(&alice, &items[i], NULL), CKKS_OK);
    for (uint32_t i = 40; i < 50; i++) assert_int_equal(admit(&bob, &items[i], NULL), CKKS_OK);
    assert_in_range(starts_of_alice(20), 9, 11);
}

static void shares_follow_weights(void **state) {
    (void)state;
    s.items_max = s.tenant_items_max = s.model_items_max = 64;
    scheduler_tenant_init(&alice, 3, 0);
    for (uint32_t i = 0; i < 64; i++)
        assert_int_equal(admit(i & 1 ? &alice : &bob, &items[i], NULL), CKKS_OK);
    assert_in_range(starts_of_alice(40), 29, 31);
}

static void dear_requests_count_for_more_than_cheap_ones(void **state) {
    (void)state;
    s.items_max = s.tenant_items_max = s.model_items_max = 64;
    for (uint32_t i = 0; i < 64; i++) {
        items[i].cost_ns = i & 1 ? 4000000 : 1000000; /* alice's take four times as long */
        assert_int_equal(admit(i & 1 ? &alice : &bob, &items[i], NULL), CKKS_OK);
    }
    assert_in_range(starts_of_alice(40), 7, 9);
}

static void an_idle_tenant_earns_no_credit(void **state) {
    (void)state;
    s.items_max = s.tenant_items_max = s.model_items_max = 64;
    for (uint32_t i = 0; i < 40; i++) assert_int_equal(admit(&alice, &items[i], NULL), CKKS_OK);
    assert_int_equal(starts_of_alice(20), 20);
    for (uint32_t i = 40; i < 60; i++) assert_int_equal(admit(&bob, &items[i], NULL), CKKS_OK);
    assert_in_range(starts_of_alice(20), 9, 11); /* and not 0: bob slept, he did not save up */
}

int main(void) {
#define T(f) cmocka_unit_test_setup(f, setup)
    const struct CMUnitTest tests[] = {
        T(each_bound_refuses_and_names_itself),
        T(the_bound_of_a_model_counts_all_tenants),
        T(bytes_are_bounded_and_cannot_overflow),
        T(a_tenant_has_its_share_of_the_bytes_and_one_request_in_any_case),
        T(a_tenants_own_quota_is_a_quota_and_not_a_full_queue),
        T(held_queued_and_running_all_count_until_removed),
        T(within_a_tenant_priority_then_arrival_decides),
        T(a_requeued_item_is_the_first_of_its_tenant),
        T(what_cannot_run_now_does_not_stand_in_the_way),
        T(a_flood_of_one_tenant_does_not_starve_another),
        T(shares_follow_weights),
        T(dear_requests_count_for_more_than_cheap_ones),
        T(an_idle_tenant_earns_no_credit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
