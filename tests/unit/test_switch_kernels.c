/*
 * SWITCH_PRODUCT and KEY_SWITCH, word for word against the kernels that define them, launched one after the
 * other: apart and summed, one or two components kept, with and without the rescale, at the keys' level and
 * below it.
 */
#include "tests/support/kernel_fixture.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct shape {
    uint32_t q_count, p_count, digit_size;
} shapes[] = {{1, 1, 1}, {4, 1, 1}, {5, 2, 2}, {6, 3, 3}, {4, 4, 4}};
#define SHAPE_COUNT (sizeof shapes / sizeof shapes[0])

static device_fixture f;

static void open_shape(size_t i) {
    device_fixture_open(&f, fixture_context(10, shapes[i].q_count, shapes[i].p_count, shapes[i].digit_size),
                        2);
}

static uint64_t *key_new(uint32_t key_level, uint64_t *word_count, uint32_t pattern, prng *r) {
    const kernel_basis qp = {0, key_level + 1, f.params->p_count};
    const uint32_t digits = params_digit_count(f.params, key_level);
    *word_count = (uint64_t)digits * 2 * basis_limb_count(qp) * f.n;
    return kernel_fixture_poly(&f, qp, digits * 2, pattern, r);
}

typedef struct switch_case {
    uint32_t level, top, limbs, limbs_qp, digits;
    uint64_t *a, *add, *digit_words, *product, *scratch, *result; /* device */
    void *keys, *list;
    key_product_item items[2];
} switch_case;

static uint64_t *words_of(uint64_t limbs) {
    return device_fixture_upload(&f, NULL, limbs * f.n * sizeof(uint64_t));
}
static void assert_same(const uint64_t *left, const uint64_t *right, uint64_t limbs) {
    const uint64_t bytes = limbs * f.n * sizeof(uint64_t);
    uint64_t *l = kernel_fixture_words(&f, limbs), *r = kernel_fixture_words(&f, limbs);
    device_fixture_download(&f, l, left, bytes);
    device_fixture_download(&f, r, right, bytes);
    assert_memory_equal(l, r, bytes);
    free(l), free(r);
}

/* MOD_UP and KEY_PRODUCT by themselves; items NULL: uniform */
static void product_apart(const switch_case *t, const key_product_item *items, key_product_item uniform,
                          uint32_t out_count) {
    const kernel_basis q = {0, t->limbs, 0};
    const kernel_mod_up_args up = {f.tables, t->digit_words, {t->a, 1, t->limbs, q}, t->limbs, 2, t->scratch};
    device_fixture_launch(&f, KERNEL_MOD_UP, &up);
    const kernel_key_product_args product = {
        .tables = f.tables,
        .out = t->product,
        .out_count = out_count,
        .level = t->level,
        .digits = t->digit_words,
        .digits_count = 2,
        .keys = t->keys,
        .key_count = 2,
        .items = items ? t->list : NULL,
        .items_host = items,
        .item_count = 2,
        .uniform = uniform,
    };
    device_fixture_launch(&f, KERNEL_KEY_PRODUCT, &product);
}

static void check_switch_product(switch_case *t, bool is_sum) {
    const uint32_t out_count = is_sum ? 1 : 2;
    const key_product_item items[2] = {{0, 1, 5, 0}, {1, 0, 2 * f.n - 1, is_sum ? 0 : 1}};
    memcpy(t->items, items, sizeof items);
    t->list = device_fixture_upload(&f, items, sizeof items);
    product_apart(t, t->items, (key_product_item){0}, out_count);
    const kernel_switch_product_args args = {
        .tables = f.tables,
        .out = t->result,
        .a = {t->a, 1, t->limbs, {0, t->limbs, 0}},
        .a_batch_stride = t->limbs,
        .batch_count = 2,
        .keys = t->keys,
        .key_count = 2,
        .items = t->list,
        .items_host = t->items,
        .is_sum = is_sum,
        .scratch = t->scratch,
    };
    device_fixture_launch(&f, KERNEL_SWITCH_PRODUCT, &args);
    assert_same(t->result, t->product, 2ull * out_count * t->limbs_qp);
    device_free(f.dev, t->list);
}

static void check_key_switch(const switch_case *t, uint32_t kept, uint32_t g, uint32_t with_rescale) {
    const uint32_t limbs_out = t->limbs - with_rescale;
    if (!limbs_out) return;
    product_apart(t, NULL, (key_product_item){.key = 1, .galois_element = g}, 2);
    uint64_t *expected = words_of(4ull * limbs_out);
    const kernel_mod_down_args down = {
        .tables = f.tables,
        .out = {expected, 2, limbs_out, {0, limbs_out, 0}},
        .a = {t->product, 2, t->limbs_qp, {0, t->limbs, f.params->p_count}},
        .add = {t->add, kept, t->limbs, {0, t->limbs, 0}},
        .add_galois_element = g,
        .batch_count = 2,
        .out_batch_stride = 2 * limbs_out,
        .a_batch_stride = 2 * t->limbs_qp,
        .add_batch_stride = 2 * t->limbs,
        .with_rescale = with_rescale,
        .scratch = t->scratch,
    };
    device_fixture_launch(&f, KERNEL_MOD_DOWN, &down);
    const kernel_key_switch_args args = {
        .tables = f.tables,
        .out = {t->result, 2, limbs_out, {0, limbs_out, 0}},
        .a = {t->a, 1, t->limbs, {0, t->limbs, 0}},
        .add = down.add,
        .key = 1,
        .galois_element = g,
        .batch_count = 2,
        .out_batch_stride = 2 * limbs_out,
        .a_batch_stride = t->limbs,
        .add_batch_stride = 2 * t->limbs,
        .with_rescale = with_rescale,
        .keys = t->keys,
        .key_count = 2,
        .scratch = t->scratch,
    };
    device_fixture_launch(&f, KERNEL_KEY_SWITCH, &args);
    assert_same(t->result, expected, 4ull * limbs_out);
    device_free(f.dev, expected);
}

static void check_switches(uint32_t level, prng *r) {
    const uint32_t top = f.params->q_count - 1, limbs = level + 1, limbs_qp = limbs + f.params->p_count;
    switch_case t = {
        .level = level,
        .top = top,
        .limbs = limbs,
        .limbs_qp = limbs_qp,
        .digits = params_digit_count(f.params, level),
    };
    uint64_t *a = kernel_fixture_poly(&f, (kernel_basis){0, limbs, 0}, 6, KERNEL_FIXTURE_RANDOM, r), words;
    uint64_t *key_device[2];
    t.a = device_fixture_upload(&f, a, 2ull * limbs * f.n * sizeof *a);
    t.add = device_fixture_upload(&f, a + 2ull * limbs * f.n, 4ull * limbs * f.n * sizeof *a);
    for (int i = 0; i < 2; i++) {
        uint64_t *key = key_new(top, &words, KERNEL_FIXTURE_RANDOM, r);
        key_device[i] = device_fixture_upload(&f, key, words * sizeof *key);
        free(key);
    }
    const key_table_entry entries[2] = {{(uintptr_t)key_device[0], top + 1, 0},
                                        {(uintptr_t)key_device[1], top + 1, 0}};
    t.keys = device_fixture_upload(&f, entries, sizeof entries);
    t.digit_words = words_of(2ull * t.digits * limbs_qp);
    t.product = words_of(4ull * limbs_qp);
    t.result = words_of(4ull * limbs_qp);
    t.scratch = words_of(key_switch_scratch(f.params, limbs, 2));
    check_switch_product(&t, false);
    check_switch_product(&t, true);
    check_key_switch(&t, 1, 25, 0);
    check_key_switch(&t, 2, 1, 1);
    void *const all[] = {t.a,      t.add,     t.keys,        t.digit_words, t.product,
                         t.result, t.scratch, key_device[0], key_device[1]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) device_free(f.dev, all[i]);
    free(a);
}

static void switch_product_and_key_switch_are_the_kernels_that_they_are_made_of(void **state) {
    (void)state;
    prng r;
    prng_init(&r, 8);
    for (size_t i = 0; i < SHAPE_COUNT; i++) {
        open_shape(i);
        check_switches(f.params->q_count - 1, &r);
        check_switches(f.params->q_count / 2, &r);
        device_fixture_close(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(switch_product_and_key_switch_are_the_kernels_that_they_are_made_of),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
