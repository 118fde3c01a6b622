/*
 * kernel_describe: what a launch may look like, which memory it touches, and the field that a refusal names.
 * Addresses are nobody's: describing never looks into them.
 */
#include "tests/support/device_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
// cmocka wants the four above first
#include <cmocka.h>

#define N 1024u

/* parameters: q 0..4, p 0..1, two primes per digit */
static const device_tables *tables;
static device_fixture fixture;

static int setup(void **state) {
    (void)state;
    device_fixture_open(&fixture, fixture_context(10, 5, 2, 2), 1);
    tables = fixture.tables;
    return 0;
}
static int teardown(void **state) {
    (void)state;
    device_fixture_close(&fixture);
    return 0;
}

/* a place of its own for each letter, 64 MiB apart */
static uint64_t *at(char letter) {
    return (uint64_t *)(((uintptr_t)(letter - 'A' + 1) << 26) + ((uintptr_t)1 << 44));
}
static kernel_poly poly(char letter, uint32_t components, uint32_t q_count, uint32_t p_count) {
    return device_fixture_poly(at(letter), components, (kernel_basis){0, q_count, p_count});
}

/* Any argument struct. */
typedef union arguments {
    const device_tables *tables;
    kernel_unary_args unary;
    kernel_binary_args binary;
    kernel_scalars_args scalars;
    kernel_automorphism_args automorphism;
    kernel_mod_up_args mod_up;
    kernel_key_product_args key_product;
    kernel_switch_product_args switch_product;
    kernel_mod_down_args mod_down;
    kernel_key_switch_args key_switch;
    kernel_rescale_args rescale;
    kernel_diagonal_sum_args diagonal;
    kernel_permute_sum_args permute;
    kernel_hoisted_switch_args hoisted;
    kernel_multiply_rescale_args product;
    kernel_narrow_key_args narrow;
    kernel_matrix_product_args matrix;
    kernel_unpack_args unpack;
    kernel_expand_args expand;
    kernel_check_nonzero_args nonzero;
    kernel_pack_args pack;
    kernel_sample_args sample;
    kernel_counter_args counter;
} arguments;

static key_product_item key_items[3], switch_items[2], hoisted_items[3];
static diagonal_item diagonal_items[3];
static permute_item permute_items[2];

static uint64_t packed_bytes(uint32_t q_count, uint32_t components) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < q_count; i++)
        for (uint32_t bits = 1;; bits++)
            if (fixture.params->prime[i] >> bits == 0) {
                bytes += (uint64_t)N * bits / 8;
                break;
            }
    return components * bytes;
}

/* a good launch of each kernel: outputs at O, inputs at A.., scratch at S */
static arguments good(kernel_id kernel) {
    arguments a;
    memset(&a, 0, sizeof a);
    const key_product_item items[3] = {{0, 0, 1, 0}, {1, 1, 5, 1}, {1, 2, 2047, 1}};
    const diagonal_item diagonals[3] = {{0, 0, 4096}, {0, 1, 8192}, {1, 0, 4096}};
    const permute_item permutes[2] = {{0, 1}, {1, 25}};
    const key_product_item switches[2] = {{0, 2, 1, 0}, {1, 0, 5, 0}};
    memcpy(key_items, items, sizeof items);
    memcpy(switch_items, switches, sizeof switches);
    memcpy(hoisted_items, items, sizeof items);
    hoisted_items[1].digits = hoisted_items[2].digits = 0;
    memcpy(diagonal_items, diagonals, sizeof diagonals);
    memcpy(permute_items, permutes, sizeof permutes);
    switch (kernel) {
    case KERNEL_SQUARE:
        a.unary = (kernel_unary_args){NULL, poly('O', 3, 4, 2), poly('A', 2, 5, 2)};
        break;
    case KERNEL_COPY:
    case KERNEL_NEGATE:
    case KERNEL_NTT_FORWARD:
    case KERNEL_NTT_INVERSE:
        a.unary = (kernel_unary_args){NULL, poly('O', 2, 4, 2), poly('A', 2, 5, 2)};
        break;
    case KERNEL_ADD:
    case KERNEL_SUBTRACT:
        a.binary = (kernel_binary_args){NULL, poly('O', 3, 3, 0), poly('A', 3, 3, 0), poly('B', 2, 4, 0)};
        break;
    case KERNEL_ADD_PLAIN:
    case KERNEL_MULTIPLY_PLAIN:
        a.binary = (kernel_binary_args){NULL, poly('O', 2, 3, 0), poly('A', 2, 3, 0), poly('B', 1, 5, 0)};
        break;
    case KERNEL_MULTIPLY:
        a.binary = (kernel_binary_args){NULL, poly('O', 3, 3, 0), poly('A', 2, 3, 0), poly('B', 2, 3, 0)};
        break;
    case KERNEL_ADD_SCALARS:
    case KERNEL_MULTIPLY_SCALARS:
        a.scalars = (kernel_scalars_args){NULL, poly('O', 2, 3, 0), poly('A', 2, 3, 0), {1, 2, 3}, 0};
        break;
    case KERNEL_AUTOMORPHISM:
        a.automorphism = (kernel_automorphism_args){NULL, poly('O', 2, 3, 0), poly('A', 2, 3, 0), 5};
        break;
    case KERNEL_MOD_UP:
        a.mod_up = (kernel_mod_up_args){NULL, at('O'), poly('A', 1, 3, 0), 6, 2, at('S')};
        break;
    case KERNEL_KEY_PRODUCT:
        a.key_product = (kernel_key_product_args){.out = at('O'),
                                                  .out_count = 2,
                                                  .level = 2,
                                                  .digits = at('A'),
                                                  .digits_count = 2,
                                                  .add = at('B'),
                                                  .add_stride = 6,
                                                  .keys = (void *)at('K'),
                                                  .key_count = 3,
                                                  .items = (void *)at('I'),
                                                  .items_host = key_items,
                                                  .item_count = 3};
        break;
    case KERNEL_SWITCH_PRODUCT:
        a.switch_product = (kernel_switch_product_args){.out = at('O'),
                                                        .a = poly('A', 1, 3, 0),
                                                        .a_batch_stride = 6,
                                                        .batch_count = 2,
                                                        .keys = (void *)at('K'),
                                                        .key_count = 3,
                                                        .items = (void *)at('I'),
                                                        .items_host = switch_items,
                                                        .is_sum = 1,
                                                        .scratch = at('S')};
        break;
    case KERNEL_KEY_SWITCH:
        a.key_switch = (kernel_key_switch_args){.out = poly('O', 2, 2, 0),
                                                .a = poly('A', 1, 3, 0),
                                                .add = poly('B', 1, 3, 0),
                                                .key = 2,
                                                .galois_element = 5,
                                                .batch_count = 2,
                                                .out_batch_stride = 4,
                                                .a_batch_stride = 6,
                                                .add_batch_stride = 3,
                                                .with_rescale = 1,
                                                .keys = (void *)at('K'),
                                                .key_count = 3,
                                                .scratch = at('S')};
        break;
    case KERNEL_HOISTED_SWITCH:
        a.hoisted = (kernel_hoisted_switch_args){.out = poly('O', 2, 3, 0),
                                                 .a = poly('A', 1, 3, 0),
                                                 .add = poly('B', 1, 3, 0),
                                                 .out_count = 2,
                                                 .out_batch_stride = 6,
                                                 .keys = (void *)at('K'),
                                                 .key_count = 3,
                                                 .items = (void *)at('I'),
                                                 .items_host = hoisted_items,
                                                 .item_count = 3,
                                                 .scratch = at('S')};
        break;
    case KERNEL_MOD_DOWN:
        a.mod_down = (kernel_mod_down_args){.out = poly('O', 2, 2, 0),
                                            .a = poly('A', 2, 3, 2),
                                            .add = poly('B', 1, 3, 0),
                                            .add_galois_element = 5,
                                            .batch_count = 2,
                                            .out_batch_stride = 4,
                                            .a_batch_stride = 10,
                                            .add_batch_stride = 3,
                                            .with_rescale = 1,
                                            .scratch = at('S')};
        break;
    case KERNEL_RESCALE:
        a.rescale = (kernel_rescale_args){NULL, poly('O', 2, 2, 0), poly('A', 2, 3, 0), at('S')};
        break;
    case KERNEL_MULTIPLY_RESCALE:
        a.product = (kernel_multiply_rescale_args){NULL, poly('O', 2, 2, 0), poly('A', 2, 3, 0),
                                                   poly('B', 1, 3, 0), at('S')};
        break;
    case KERNEL_DIAGONAL_SUM:
        a.diagonal = (kernel_diagonal_sum_args){.out = at('O'),
                                                .in = at('A'),
                                                .out_count = 2,
                                                .in_count = 2,
                                                .component_count = 2,
                                                .basis = {0, 3, 2},
                                                .items = (void *)at('I'),
                                                .items_host = diagonal_items,
                                                .item_count = 3};
        break;
    case KERNEL_PERMUTE_SUM:
        a.permute = (kernel_permute_sum_args){.out = poly('O', 1, 3, 0),
                                              .start = at('B'),
                                              .in = at('A'),
                                              .in_stride = 6,
                                              .in_count = 2,
                                              .items = (void *)at('I'),
                                              .items_host = permute_items,
                                              .item_count = 2};
        break;
    case KERNEL_MATRIX_PRODUCT:
        a.matrix = (kernel_matrix_product_args){NULL, at('O'), at('A'), at('W'), 2, 3, 2, {0, 3, 0}, NULL};
        break;
    case KERNEL_UNPACK:
        a.unpack = (kernel_unpack_args){NULL, poly('O', 2, 3, 0), (void *)at('A'), packed_bytes(3, 2),
                                        (void *)at('V')};
        break;
    case KERNEL_EXPAND:
        a.expand = (kernel_expand_args){NULL, poly('O', 1, 3, 2), (void *)at('A'), 1, 0};
        break;
    case KERNEL_CHECK_NONZERO:
        a.nonzero = (kernel_check_nonzero_args){NULL, poly('A', 1, 3, 0), (void *)at('V')};
        break;
    case KERNEL_NARROW_KEY:
        a.narrow = (kernel_narrow_key_args){NULL, poly('A', 4, 3, 2)};
        break;
    case KERNEL_PACK:
        a.pack = (kernel_pack_args){NULL, (void *)at('O'), packed_bytes(3, 2), poly('A', 2, 3, 0)};
        break;
    case KERNEL_SAMPLE:
        a.sample = (kernel_sample_args){NULL, poly('O', 1, 3, 2), (void *)at('R'), 0, SAMPLE_FLOOD, 48};
        break;
    case KERNEL_COUNTER_ADVANCE:
        a.counter = (kernel_counter_args){NULL, (void *)at('R'), 4};
        break;
    case KERNEL_COUNT:
        break;
    }
    a.tables = tables;
    return a;
}

/* one access per letter: 'O' + words, lower case w = write */
typedef struct listed {
    char letter;
    uint64_t bytes;
    bool is_write;
} listed;
#define LIMBS(count) ((uint64_t)(count)*N * 8)

static void accesses_are_those_of_the_definition(void **state) {
    (void)state;
    const struct {
        kernel_id kernel;
        listed access[4];
    } table[] = {
        {KERNEL_COPY, {{'O', LIMBS(12), true}, {'A', LIMBS(14), false}}},
        {KERNEL_NEGATE, {{'O', LIMBS(12), true}, {'A', LIMBS(14), false}}},
        {KERNEL_ADD, {{'O', LIMBS(9), true}, {'A', LIMBS(9), false}, {'B', LIMBS(8), false}}},
        {KERNEL_SUBTRACT, {{'O', LIMBS(9), true}, {'A', LIMBS(9), false}, {'B', LIMBS(8), false}}},
        {KERNEL_ADD_PLAIN, {{'O', LIMBS(6), true}, {'A', LIMBS(6), false}, {'B', LIMBS(5), false}}},
        {KERNEL_MULTIPLY_PLAIN, {{'O', LIMBS(6), true}, {'A', LIMBS(6), false}, {'B', LIMBS(5), false}}},
        {KERNEL_ADD_SCALARS, {{'O', LIMBS(6), true}, {'A', LIMBS(6), false}}},
        {KERNEL_MULTIPLY_SCALARS, {{'O', LIMBS(6), true}, {'A', LIMBS(6), false}}},
        {KERNEL_MULTIPLY, {{'O', LIMBS(9), true}, {'A', LIMBS(6), false}, {'B', LIMBS(6), false}}},
        {KERNEL_SQUARE, {{'O', LIMBS(18), true}, {'A', LIMBS(14), false}}},
        {KERNEL_NTT_FORWARD, {{'O', LIMBS(12), true}, {'A', LIMBS(14), false}}},
        {KERNEL_NTT_INVERSE, {{'O', LIMBS(12), true}, {'A', LIMBS(14), false}}},
        {KERNEL_AUTOMORPHISM, {{'O', LIMBS(6), true}, {'A', LIMBS(6), false}}},
        /* 2 entries x 2 digits x 5 limbs; entries 6 limbs apart */
        {KERNEL_MOD_UP, {{'O', LIMBS(20), true}, {'A', LIMBS(9), false}, {'S', LIMBS(6), true}}},
        {KERNEL_KEY_PRODUCT, {{'O', LIMBS(20), true}, {'A', LIMBS(20), false}, {'B', LIMBS(9), false}}},
        /* scratch: 2 entries x (3 + 2 digits x 5), then 2 x 2 x 5 for the product and 2 x 2 x 8 */
        {KERNEL_SWITCH_PRODUCT, {{'O', LIMBS(10), true}, {'A', LIMBS(9), false}, {'S', LIMBS(26), true}}},
        {KERNEL_MOD_DOWN,
         {{'O', LIMBS(8), true}, {'A', LIMBS(20), false}, {'B', LIMBS(6), false}, {'S', LIMBS(32), true}}},
        {KERNEL_KEY_SWITCH,
         {{'O', LIMBS(8), true}, {'A', LIMBS(9), false}, {'B', LIMBS(6), false}, {'S', LIMBS(78), true}}},
        /* scratch: 3 + 2 digits x 5, and for each of 2 outs 2 x (5 + 8) */
        {KERNEL_HOISTED_SWITCH,
         {{'O', LIMBS(12), true}, {'A', LIMBS(3), false}, {'B', LIMBS(3), false}, {'S', LIMBS(65), true}}},
        {KERNEL_RESCALE, {{'O', LIMBS(4), true}, {'A', LIMBS(6), false}, {'S', LIMBS(6), true}}},
        {KERNEL_MULTIPLY_RESCALE,
         {{'O', LIMBS(4), true}, {'A', LIMBS(6), false}, {'B', LIMBS(3), false}, {'S', LIMBS(2), true}}},
        {KERNEL_DIAGONAL_SUM, {{'O', LIMBS(20), true}, {'A', LIMBS(20), false}}},
        {KERNEL_PERMUTE_SUM, {{'O', LIMBS(3), true}, {'A', LIMBS(9), false}, {'B', LIMBS(3), false}}},
        {KERNEL_MATRIX_PRODUCT, {{'O', LIMBS(12), true}, {'A', LIMBS(18), false}}},
        {KERNEL_UNPACK, {{'O', LIMBS(6), true}, {'A', packed_bytes(3, 2), false}, {'V', 4, true}}},
        {KERNEL_EXPAND, {{'O', LIMBS(5), true}, {'A', 32, false}}},
        {KERNEL_CHECK_NONZERO, {{'A', LIMBS(3), false}, {'V', 4, true}}},
        {KERNEL_NARROW_KEY, {{'A', LIMBS(20), false}, {'A', LIMBS(20), true}}},
        {KERNEL_PACK, {{'A', LIMBS(6), false}, {'O', packed_bytes(3, 2), true}}},
        {KERNEL_SAMPLE, {{'O', LIMBS(5), true}, {'R', 40, false}}},
        {KERNEL_COUNTER_ADVANCE, {{'R', 40, true}}},
    };
    assert_int_equal(sizeof table / sizeof *table, KERNEL_COUNT);
    for (size_t i = 0; i < KERNEL_COUNT; i++) {
        assert_int_equal(table[i].kernel, (kernel_id)i);
        const arguments a = good((kernel_id)i);
        kernel_access access[KERNEL_ACCESS_MAX];
        uint32_t count = 0, expected = 0;
        ckks_error err = {0};
        if (kernel_describe((kernel_id)i, &a, access, &count, &err) != CKKS_OK)
            fail_msg("%s: %s: %s", kernel_name((kernel_id)i), err.field, err.message);
        for (; expected < 4 && table[i].access[expected].letter; expected++) {
            const listed *want = &table[i].access[expected];
            bool found = false;
            for (uint32_t k = 0; k < count; k++)
                found |= access[k].address == at(want->letter) && access[k].bytes == want->bytes &&
                         access[k].is_write == want->is_write;
            if (!found)
                fail_msg("%s: access at %c is not listed as expected", kernel_name((kernel_id)i),
                         want->letter);
        }
        assert_int_equal(count, expected);
    }
}

static void gaps_between_components_are_not_touched(void **state) {
    (void)state;
    arguments a = good(KERNEL_NEGATE);
    a.unary.out = poly('O', 2, 2, 0);
    a.unary.a = poly('O', 2, 2, 0); /* behind each component of the output */
    a.unary.a.words += 2 * N;
    a.unary.out.component_stride = a.unary.a.component_stride = 4;
    kernel_access access[KERNEL_ACCESS_MAX];
    uint32_t count;
    assert_int_equal(kernel_describe(KERNEL_NEGATE, &a, access, &count, NULL), CKKS_OK);
    assert_int_equal(count, 4);
    assert_ptr_equal(access[1].address, at('O') + 4 * N);
    assert_true(access[1].bytes == LIMBS(2));
    a.unary.a.words -= N; /* now they meet */
    assert_int_equal(kernel_describe(KERNEL_NEGATE, &a, access, &count, NULL), CKKS_ALIASING);
    assert_int_equal(count, 0);
}

static void refuse(kernel_id kernel, const arguments *a, ckks_status code, const char *field) {
    kernel_access access[KERNEL_ACCESS_MAX];
    uint32_t count;
    ckks_error err = {0};
    char expected[64];
    snprintf(expected, sizeof expected, "%s.%s", kernel_name(kernel), field);
    assert_string_equal(ckks_status_name(kernel_describe(kernel, a, access, &count, &err)),
                        ckks_status_name(code));
    assert_string_equal(err.field, expected);
    assert_int_equal(count, 0);
}

static void every_bad_shape_is_refused_by_kernel_and_field(void **state) {
    (void)state;
    for (int kernel = 0; kernel < KERNEL_COUNT; kernel++) {
        arguments a = good((kernel_id)kernel);
        a.tables = NULL;
        refuse((kernel_id)kernel, &a, CKKS_INVALID_ARGUMENT, "tables");
    }
    kernel_access access[KERNEL_ACCESS_MAX];
    uint32_t count;
    arguments any = good(KERNEL_COPY);
    assert_int_equal(kernel_describe(KERNEL_COUNT, &any, access, &count, NULL), CKKS_INVALID_ARGUMENT);
    assert_int_equal(kernel_describe(KERNEL_COPY, NULL, access, &count, NULL), CKKS_INVALID_ARGUMENT);
#define BAD(kernel, change, code, field)                                                                     \
    do {                                                                                                     \
        arguments a = good(kernel);                                                                          \
        change;                                                                                              \
        refuse(kernel, &a, code, field);                                                                     \
    } while (0)
#define INVALID(kernel, change, field) BAD(kernel, change, CKKS_INVALID_ARGUMENT, field)
#define ALIAS(kernel, change, field)   BAD(kernel, change, CKKS_ALIASING, field)
    /* polynomials */
    INVALID(KERNEL_COPY, a.unary.out.words = NULL, "out");
    INVALID(KERNEL_COPY, a.unary.a.words = NULL, "a");
    INVALID(KERNEL_COPY, a.unary.a.words++, "a");
    INVALID(KERNEL_COPY, a.unary.out.component_count = 0, "out");
    INVALID(KERNEL_COPY, a.unary.out.component_count = UINT32_MAX, "out");
    INVALID(KERNEL_COPY, a.unary.out.component_stride = 5, "out");
    INVALID(KERNEL_COPY, a.unary.out.component_stride = UINT32_MAX, "out");
    INVALID(KERNEL_COPY, a.unary.a.basis.q_count = 6, "a");
    INVALID(KERNEL_COPY, a.unary.a.basis.q_first = UINT32_MAX, "a");
    INVALID(KERNEL_COPY, a.unary.a.basis.p_count = 3, "a");
    INVALID(KERNEL_COPY, (a.unary.out.basis = (kernel_basis){0, 0, 0}), "out");
    INVALID(KERNEL_COPY, a.unary.a.basis.q_count = 3, "a"); /* lacks the fourth prime */
    INVALID(KERNEL_COPY, a.unary.a.basis.q_first = 1; a.unary.a.basis.q_count = 4, "a");
    INVALID(KERNEL_COPY, a.unary.a.basis.p_count = 1, "a");
    INVALID(KERNEL_COPY, a.unary.out.component_count = 1, "out");
    INVALID(KERNEL_COPY, a.unary.a.words = (uint64_t *)(UINTPTR_MAX - 15), "a");
    INVALID(KERNEL_SQUARE, a.unary.a.component_count = 3, "a");
    INVALID(KERNEL_SQUARE, a.unary.out.component_count = 2, "out");
    INVALID(KERNEL_SQUARE, a.unary.a.component_count = 4, "out");
    ALIAS(KERNEL_SQUARE, a.unary.a.component_count = 4; a.unary.out.component_count = 6;
          a.unary.out.words = at('A'); a.unary.out.component_stride = a.unary.a.component_stride, "a");
    ALIAS(KERNEL_NEGATE, a.unary.out.words = at('A') + N, "a");
    ALIAS(KERNEL_NEGATE, a.unary.out.words = at('A'), "a"); /* another stride */
    INVALID(KERNEL_ADD, a.binary.out.component_count = 2, "out");
    INVALID(KERNEL_ADD, a.binary.b.basis.q_count = 2, "b");
    ALIAS(KERNEL_ADD, a.binary.b.words = at('O') + 2, "b");
    /* in place, but the limbs of p would be read where others are written */
    ALIAS(KERNEL_NEGATE, a.unary.a = poly('O', 1, 3, 1); a.unary.out = a.unary.a;
          a.unary.out.basis.q_count = 2, "a");
    ALIAS(KERNEL_NEGATE, a.unary.a = poly('O', 1, 3, 0); a.unary.out = a.unary.a;
          a.unary.out.basis.q_first = 1; a.unary.out.basis.q_count = 2, "a");
    ALIAS(KERNEL_NEGATE, a.unary.a = poly('O', 2, 2, 0); a.unary.out = a.unary.a;
          a.unary.out.component_stride = 3, "a");
    INVALID(KERNEL_ADD_PLAIN, a.binary.b.component_count = 2, "b");
    INVALID(KERNEL_MULTIPLY_PLAIN, a.binary.out.component_count = 3, "out");
    ALIAS(KERNEL_MULTIPLY_PLAIN, a.binary.b.words = at('O'), "b");
    ALIAS(KERNEL_MULTIPLY_PLAIN, a.binary.b = a.binary.out; a.binary.b.component_count = 1, "b");
    INVALID(KERNEL_MULTIPLY, a.binary.a.component_count = a.binary.b.component_count = 1, "a");
    INVALID(KERNEL_MULTIPLY, a.binary.a.component_count = 4, "b");
    INVALID(KERNEL_MULTIPLY, a.binary.b.component_count = 3, "b");
    INVALID(KERNEL_MULTIPLY, a.binary.out.component_count = 2, "out");
    INVALID(KERNEL_ADD_SCALARS, a.scalars.scalar[1] = fixture.params->prime[1], "scalar");
    INVALID(KERNEL_MULTIPLY_SCALARS, a.scalars.out.component_count = 1, "out");
    INVALID(KERNEL_ADD_SCALARS, a.scalars.every = a.scalars.out.component_count + 1, "every");
    INVALID(KERNEL_AUTOMORPHISM, a.automorphism.galois_element = 4, "galois_element");
    INVALID(KERNEL_AUTOMORPHISM, a.automorphism.galois_element = 2 * N + 1, "galois_element");
    ALIAS(KERNEL_AUTOMORPHISM, a.automorphism.out.words = at('A'), "a");
    /* key switching */
    INVALID(KERNEL_MOD_UP, a.mod_up.out = NULL, "out");
    INVALID(KERNEL_MOD_UP, a.mod_up.scratch = NULL, "scratch");
    INVALID(KERNEL_MOD_UP, a.mod_up.a.component_count = 2, "a");
    INVALID(KERNEL_MOD_UP, a.mod_up.a.basis.q_first = 1, "a");
    INVALID(KERNEL_MOD_UP, a.mod_up.batch_count = 0, "batch_count");
    INVALID(KERNEL_MOD_UP, a.mod_up.a_batch_stride = 2, "a");
    ALIAS(KERNEL_MOD_UP, a.mod_up.scratch = at('A') + 8 * N, "scratch");
    ALIAS(KERNEL_MOD_UP, a.mod_up.scratch = at('O') + 19 * N, "scratch");
    ALIAS(KERNEL_MOD_UP, a.mod_up.out = at('A'), "a");
    INVALID(KERNEL_KEY_PRODUCT, a.key_product.level = 5, "level");
    INVALID(KERNEL_KEY_PRODUCT, a.key_product.out_count = 0, "out_count");
    INVALID(KERNEL_KEY_PRODUCT, a.key_product.digits_count = 0, "digits_count");
    INVALID(KERNEL_KEY_PRODUCT, a.key_product.keys = NULL, "keys");
    INVALID(KERNEL_KEY_PRODUCT, a.key_product.items = NULL, "items");
    INVALID(KERNEL_KEY_PRODUCT, a.key_product.item_count = 0, "item_count");
    INVALID(KERNEL_KEY_PRODUCT, key_items[2].key = 3, "items");
    INVALID(KERNEL_KEY_PRODUCT, key_items[1].digits = 2, "items");
    INVALID(KERNEL_KEY_PRODUCT, key_items[1].out_index = 2, "items");
    INVALID(KERNEL_KEY_PRODUCT, key_items[1].galois_element = 6, "items");
    INVALID(KERNEL_KEY_PRODUCT, a.key_product.items = NULL; a.key_product.items_host = NULL, "item_count");
    INVALID(KERNEL_KEY_PRODUCT, a.key_product.items = NULL; a.key_product.items_host = NULL;
            a.key_product.item_count = 2; a.key_product.uniform.key = 3, "uniform");
    INVALID(KERNEL_KEY_PRODUCT, a.key_product.items = NULL; a.key_product.items_host = NULL;
            a.key_product.item_count = 2, "uniform"); /* Galois element 0 */
    INVALID(KERNEL_KEY_PRODUCT, a.key_product.add_stride = 2, "add_stride");
    INVALID(KERNEL_KEY_PRODUCT, a.key_product.is_public = 1, "add");
    ALIAS(KERNEL_KEY_PRODUCT, a.key_product.out = at('A'), "digits");
    ALIAS(KERNEL_KEY_PRODUCT, a.key_product.out = at('B'), "add");
    INVALID(KERNEL_SWITCH_PRODUCT, a.switch_product.out = NULL, "out");
    INVALID(KERNEL_SWITCH_PRODUCT, a.switch_product.scratch = NULL, "scratch");
    INVALID(KERNEL_SWITCH_PRODUCT, a.switch_product.keys = NULL, "keys");
    INVALID(KERNEL_SWITCH_PRODUCT, a.switch_product.batch_count = 0, "batch_count");
    INVALID(KERNEL_SWITCH_PRODUCT, a.switch_product.a.component_count = 2, "a");
    INVALID(KERNEL_SWITCH_PRODUCT, a.switch_product.a.basis.q_first = 1, "a");
    INVALID(KERNEL_SWITCH_PRODUCT, a.switch_product.items_host = NULL, "items");
    INVALID(KERNEL_SWITCH_PRODUCT, switch_items[1].digits = 0, "items");
    INVALID(KERNEL_SWITCH_PRODUCT, switch_items[1].out_index = 1, "items");
    INVALID(KERNEL_SWITCH_PRODUCT, switch_items[1].key = 3, "items");
    INVALID(KERNEL_SWITCH_PRODUCT, switch_items[1].galois_element = 6, "items");
    INVALID(KERNEL_SWITCH_PRODUCT, a.switch_product.is_sum = 0, "items");
    INVALID(KERNEL_SWITCH_PRODUCT, a.switch_product.items = NULL;
            a.switch_product.items_host = NULL, "is_sum");
    ALIAS(KERNEL_SWITCH_PRODUCT, a.switch_product.out = at('A'), "a");
    ALIAS(KERNEL_SWITCH_PRODUCT, a.switch_product.scratch = at('O') + 9 * N, "scratch");
    ALIAS(KERNEL_SWITCH_PRODUCT, a.switch_product.scratch = at('A') + 8 * N, "scratch");
    INVALID(KERNEL_KEY_SWITCH, a.key_switch.key = 3, "key");
    INVALID(KERNEL_KEY_SWITCH, a.key_switch.keys = NULL, "keys");
    INVALID(KERNEL_KEY_SWITCH, a.key_switch.galois_element = 4, "galois_element");
    INVALID(KERNEL_KEY_SWITCH, a.key_switch.batch_count = 0, "batch_count");
    INVALID(KERNEL_KEY_SWITCH, a.key_switch.out.component_count = 1, "out");
    INVALID(KERNEL_KEY_SWITCH, a.key_switch.with_rescale = 0, "out");
    INVALID(KERNEL_KEY_SWITCH, a.key_switch.add.component_count = 3, "add");
    INVALID(KERNEL_KEY_SWITCH, a.key_switch.add.basis.q_count = 2, "add");
    INVALID(KERNEL_KEY_SWITCH, a.key_switch.scratch = NULL, "scratch");
    INVALID(KERNEL_KEY_SWITCH, a.key_switch.a.basis.q_count = 1;
            a.key_switch.a.component_stride = 1, "with_rescale");
    ALIAS(KERNEL_KEY_SWITCH, a.key_switch.out.words = at('A'), "a");
    ALIAS(KERNEL_KEY_SWITCH, a.key_switch.out.words = at('B'), "add");
    ALIAS(KERNEL_KEY_SWITCH, a.key_switch.scratch = at('B'), "scratch");
    INVALID(KERNEL_MOD_DOWN, a.mod_down.with_rescale = 0, "out");
    INVALID(KERNEL_MOD_DOWN, a.mod_down.a.basis.q_count = 1, "with_rescale");
    INVALID(KERNEL_MOD_DOWN, a.mod_down.a.basis.p_count = 1, "a");
    INVALID(KERNEL_MOD_DOWN, a.mod_down.out.basis.p_count = 1; a.mod_down.out.component_stride = 3, "out");
    INVALID(KERNEL_MOD_DOWN, a.mod_down.out.component_count = 1, "out");
    INVALID(KERNEL_MOD_DOWN, a.mod_down.add.component_count = 3, "add");
    INVALID(KERNEL_MOD_DOWN, a.mod_down.add.basis.q_count = 2, "add");
    INVALID(KERNEL_MOD_DOWN, a.mod_down.add_galois_element = 0, "add_galois_element");
    INVALID(KERNEL_MOD_DOWN, a.mod_down.out_batch_stride = 3, "out");
    INVALID(KERNEL_MOD_DOWN, a.mod_down.batch_count = UINT32_MAX, "batch_count");
    ALIAS(KERNEL_MOD_DOWN, a.mod_down.scratch = at('B'), "scratch");
    ALIAS(KERNEL_MOD_DOWN, a.mod_down.add.words = at('O'), "add");
    INVALID(KERNEL_HOISTED_SWITCH, a.hoisted.a.component_count = 2, "a");
    INVALID(KERNEL_HOISTED_SWITCH, a.hoisted.a.basis.q_count = 2, "out");
    INVALID(KERNEL_HOISTED_SWITCH, a.hoisted.out.component_count = 1, "out");
    INVALID(KERNEL_HOISTED_SWITCH, a.hoisted.out_count = 0, "out_count");
    INVALID(KERNEL_HOISTED_SWITCH, a.hoisted.keys = NULL, "keys");
    INVALID(KERNEL_HOISTED_SWITCH, a.hoisted.items_host = NULL, "items");
    INVALID(KERNEL_HOISTED_SWITCH, hoisted_items[1].digits = 1, "items");
    INVALID(KERNEL_HOISTED_SWITCH, hoisted_items[0].out_index = 1, "items");
    INVALID(KERNEL_HOISTED_SWITCH, hoisted_items[2].key = 3, "items");
    INVALID(KERNEL_HOISTED_SWITCH, hoisted_items[2].galois_element = 6, "items");
    INVALID(KERNEL_HOISTED_SWITCH, a.hoisted.add.basis.q_count = 2, "add");
    INVALID(KERNEL_HOISTED_SWITCH, a.hoisted.scratch = NULL, "scratch");
    ALIAS(KERNEL_HOISTED_SWITCH, a.hoisted.out.words = at('A'), "a");
    ALIAS(KERNEL_HOISTED_SWITCH, a.hoisted.out.words = at('B'), "add");
    ALIAS(KERNEL_HOISTED_SWITCH, a.hoisted.scratch = at('O') + 11 * N, "scratch");
    INVALID(KERNEL_RESCALE, a.rescale.a = poly('A', 2, 1, 0), "a");
    INVALID(KERNEL_RESCALE, a.rescale.out = poly('O', 2, 3, 0), "out");
    INVALID(KERNEL_RESCALE, a.rescale.out.component_count = 1, "out");
    ALIAS(KERNEL_RESCALE, a.rescale.scratch = at('A') + 5 * N, "scratch");
    INVALID(KERNEL_MULTIPLY_RESCALE, a.product.a = poly('A', 2, 1, 0), "a");
    INVALID(KERNEL_MULTIPLY_RESCALE, a.product.out = poly('O', 2, 3, 0), "out");
    INVALID(KERNEL_MULTIPLY_RESCALE, a.product.out.component_count = 1, "out");
    INVALID(KERNEL_MULTIPLY_RESCALE, a.product.b = poly('B', 2, 3, 0), "b");
    INVALID(KERNEL_MULTIPLY_RESCALE, a.product.b = poly('B', 1, 2, 0), "b");
    INVALID(KERNEL_MULTIPLY_RESCALE, a.product.scratch = NULL, "scratch");
    ALIAS(KERNEL_MULTIPLY_RESCALE, a.product.out.words = at('A'), "a");
    ALIAS(KERNEL_MULTIPLY_RESCALE, a.product.out.words = at('B'), "b");
    ALIAS(KERNEL_MULTIPLY_RESCALE, a.product.scratch = at('O') + N, "scratch");
    ALIAS(KERNEL_MULTIPLY_RESCALE, a.product.scratch = at('B') + N, "scratch");
    ALIAS(KERNEL_MULTIPLY_RESCALE, a.product.scratch = at('A') + 5 * N, "scratch");
    /* sums */
    INVALID(KERNEL_DIAGONAL_SUM, diagonal_items[2].out = 2, "items");
    INVALID(KERNEL_DIAGONAL_SUM, diagonal_items[2].in = 2, "items");
    INVALID(KERNEL_DIAGONAL_SUM, diagonal_items[2].plain = 0, "items");
    INVALID(KERNEL_DIAGONAL_SUM, diagonal_items[0].out = 1, "items"); /* not ascending */
    INVALID(KERNEL_DIAGONAL_SUM, a.diagonal.component_count = 4, "component_count");
    INVALID(KERNEL_DIAGONAL_SUM, a.diagonal.out_count = 0, "out_count");
    INVALID(KERNEL_DIAGONAL_SUM, a.diagonal.in_count = 65537, "in_count");
    INVALID(KERNEL_DIAGONAL_SUM, a.diagonal.basis.q_count = 6, "basis");
    ALIAS(KERNEL_DIAGONAL_SUM, a.diagonal.in = at('O') + 19 * N, "in");
    INVALID(KERNEL_PERMUTE_SUM, permute_items[1].in = 2, "items");
    INVALID(KERNEL_PERMUTE_SUM, permute_items[1].galois_element = 2, "items");
    INVALID(KERNEL_PERMUTE_SUM, a.permute.in_stride = 2, "in_stride");
    ALIAS(KERNEL_PERMUTE_SUM, a.permute.start = at('O') + N, "start");
    INVALID(KERNEL_MATRIX_PRODUCT, a.matrix.weight = NULL, "weight");
    INVALID(KERNEL_MATRIX_PRODUCT, a.matrix.row_count = 0, "row_count");
    INVALID(KERNEL_MATRIX_PRODUCT, a.matrix.row_count = 65537, "row_count");
    INVALID(KERNEL_MATRIX_PRODUCT, a.matrix.column_count = 0, "column_count");
    INVALID(KERNEL_MATRIX_PRODUCT, a.matrix.component_count = 4, "component_count");
    INVALID(KERNEL_MATRIX_PRODUCT, a.matrix.bias = (const uint64_t *)((uintptr_t)at('B') + 4), "bias");
    ALIAS(KERNEL_MATRIX_PRODUCT, a.matrix.in = at('O'), "in");
    /* ingest and randomness */
    INVALID(KERNEL_UNPACK, a.unpack.packed_bytes--, "packed_bytes");
    INVALID(KERNEL_UNPACK, a.unpack.packed += 8, "packed");
    INVALID(KERNEL_UNPACK, a.unpack.verdict = NULL, "verdict");
    ALIAS(KERNEL_UNPACK, a.unpack.packed = (void *)at('O'), "packed");
    INVALID(KERNEL_NARROW_KEY, a.narrow.key.component_count = 0, "key");
    INVALID(KERNEL_PACK, a.pack.packed_bytes += 16, "packed_bytes");
    INVALID(KERNEL_EXPAND, a.expand.out.component_count = 0, "out");
    INVALID(KERNEL_EXPAND, a.expand.seed = NULL, "seed");
    INVALID(KERNEL_CHECK_NONZERO, a.nonzero.a.component_count = 2, "a");
    INVALID(KERNEL_SAMPLE, a.sample.flood_bits = 49, "flood_bits");
    INVALID(KERNEL_SAMPLE, a.sample.kind = 0, "kind");
    INVALID(KERNEL_SAMPLE, a.sample.random = NULL, "random");
    INVALID(KERNEL_COUNTER_ADVANCE, a.counter.random = NULL, "random");
}

static void uniform_and_public_key_products_are_described(void **state) {
    (void)state;
    arguments a = good(KERNEL_KEY_PRODUCT);
    a.key_product.items = NULL;
    a.key_product.items_host = NULL;
    a.key_product.item_count = 2;
    a.key_product.uniform = (key_product_item){.key = 1, .galois_element = 5};
    kernel_access access[KERNEL_ACCESS_MAX];
    uint32_t count;
    assert_int_equal(kernel_describe(KERNEL_KEY_PRODUCT, &a, access, &count, NULL), CKKS_OK);
    assert_int_equal(count, 3);
    a.key_product.add = NULL;
    a.key_product.is_public = 1;
    assert_int_equal(kernel_describe(KERNEL_KEY_PRODUCT, &a, access, &count, NULL), CKKS_OK);
    assert_int_equal(count, 2);
    assert_true(access[0].bytes == LIMBS(2 * 2 * 3) && access[1].bytes == LIMBS(2 * 3));
}

/* each operand's basis and memory is looked at by itself, not through another's */
static void operands_of_switches_and_divisions_are_looked_at_one_by_one(void **state) {
    (void)state;
    INVALID(KERNEL_KEY_SWITCH, a.key_switch.a.component_count = 2, "a");
    INVALID(KERNEL_KEY_SWITCH, a.key_switch.a = poly('A', 1, 3, 1), "a");
    INVALID(KERNEL_KEY_SWITCH, a.key_switch.out = poly('O', 2, 2, 1);
            a.key_switch.out_batch_stride = 6, "out");
    INVALID(KERNEL_KEY_SWITCH, a.key_switch.add = poly('B', 1, 3, 1);
            a.key_switch.add_batch_stride = 4, "add");
    ALIAS(KERNEL_KEY_SWITCH, a.key_switch.scratch = at('O') + 7 * N, "scratch");
    ALIAS(KERNEL_KEY_SWITCH, a.key_switch.scratch = at('A') + 8 * N, "scratch");
    INVALID(KERNEL_HOISTED_SWITCH, a.hoisted.a = poly('A', 1, 3, 1), "a");
    INVALID(KERNEL_HOISTED_SWITCH, a.hoisted.out = poly('O', 2, 3, 1); a.hoisted.out_batch_stride = 8, "out");
    INVALID(KERNEL_HOISTED_SWITCH, a.hoisted.add = poly('B', 1, 3, 1), "add");
    ALIAS(KERNEL_HOISTED_SWITCH, a.hoisted.scratch = at('B') + 2 * N, "scratch");
    ALIAS(KERNEL_HOISTED_SWITCH, a.hoisted.scratch = at('A') + 2 * N, "scratch");
    INVALID(KERNEL_MOD_DOWN, a.mod_down.out.basis.q_first = 1, "out");
    INVALID(KERNEL_MOD_DOWN, a.mod_down.add = poly('B', 1, 3, 1); a.mod_down.add_batch_stride = 4, "add");
    ALIAS(KERNEL_MOD_DOWN, a.mod_down.out.words = at('A') + N, "a");
    ALIAS(KERNEL_MOD_DOWN, a.mod_down.scratch = at('O') + 7 * N, "scratch");
    ALIAS(KERNEL_MOD_DOWN, a.mod_down.scratch = at('A') + 19 * N, "scratch");
    INVALID(KERNEL_RESCALE, a.rescale.a = poly('A', 2, 3, 1), "a");
    INVALID(KERNEL_RESCALE, a.rescale.out = poly('O', 2, 2, 1), "out");
    INVALID(KERNEL_MULTIPLY_RESCALE, a.product.b = poly('B', 1, 3, 1), "b");
    /* products of a batch lie elsewhere than both factors */
    ALIAS(KERNEL_MULTIPLY, a.binary.a = poly('A', 4, 3, 0); a.binary.b = poly('B', 4, 3, 0);
          a.binary.out = poly('A', 6, 3, 0), "a");
    ALIAS(KERNEL_MULTIPLY, a.binary.a = poly('A', 4, 3, 0); a.binary.b = poly('B', 4, 3, 0);
          a.binary.out = poly('B', 6, 3, 0), "b");
    INVALID(KERNEL_ADD, a.binary.a.basis.q_count = 2, "a");
    ALIAS(KERNEL_ADD, a.binary.a.words = at('O') + N, "a");
    INVALID(KERNEL_ADD_SCALARS, a.scalars.a.basis.q_count = 2, "a");
    INVALID(KERNEL_AUTOMORPHISM, a.automorphism.a.basis.q_count = 2, "a");
    INVALID(KERNEL_AUTOMORPHISM, a.automorphism.out.component_count = 1, "out");
    INVALID(KERNEL_DIAGONAL_SUM, a.diagonal.items = NULL, "items");
    INVALID(KERNEL_DIAGONAL_SUM, a.diagonal.item_count = 0, "item_count");
    INVALID(KERNEL_PERMUTE_SUM, a.permute.out = poly('O', 2, 3, 0), "out");
    INVALID(KERNEL_PERMUTE_SUM, a.permute.in_count = 0, "in_count");
    INVALID(KERNEL_PERMUTE_SUM, a.permute.items = NULL, "items");
    ALIAS(KERNEL_PACK, a.pack.a.words = at('O'), "a");
    ALIAS(KERNEL_EXPAND, a.expand.seed = (void *)at('O'), "seed");
    INVALID(KERNEL_SAMPLE, a.sample.out = poly('O', 2, 3, 2), "out");
    ALIAS(KERNEL_SAMPLE, a.sample.random = (void *)at('O'), "random");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accesses_are_those_of_the_definition),
        cmocka_unit_test(gaps_between_components_are_not_touched),
        cmocka_unit_test(every_bad_shape_is_refused_by_kernel_and_field),
        cmocka_unit_test(operands_of_switches_and_divisions_are_looked_at_one_by_one),
        cmocka_unit_test(uniform_and_public_key_products_are_described),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
