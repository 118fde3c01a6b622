/*
 * Every kernel of the catalogue on the CUDA device gives the CPU's words, on edge, adversarial and random
 * residues, for several ring degrees and prime sizes, on both data paths. Without a card each test says so
 * and is skipped.
 */
#include "kernels/device.h"
#include "kernels/device_graph.h"
#include "kernels/scheme/internal.h"
#include "tests/support/fixtures.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

typedef struct side {
    device *dev;
    device_stream *stream;
    const device_tables *tables;
} side;

static side sides[2]; /* 0 = CPU, 1 = CUDA */
static ckks_context *context;
static const ckks_params *params;
static prng rng;

static void must(ckks_status rc, const ckks_error *err) {
    char text[512];
    if (rc != CKKS_OK) fail_msg("%s", ckks_error_print(err, text, sizeof text));
}

static bool open_sides(ckks_context *made, const char *path) {
    ckks_error err = {0};
    context = made, params = context_params(context);
    setenv("CKKSD_CUDA_PATH", path, 1);
    device_config cpu = {.kind = DEVICE_CPU, .threads = fixture_is_short() ? 2 : 0},
                  cuda = {.kind = DEVICE_CUDA};
    const ckks_status rc = device_open(&sides[1].dev, &cuda, &err);
    if (rc != CKKS_OK && fixture_device_kind() != DEVICE_CUDA) { /* else a card was asked for */
        print_message("skipped: no device (%.*s)\n", (int)strcspn(err.message, ":"), err.message);
        context_destroy(context);
        return false;
    }
    must(rc, &err);
    must(device_open(&sides[0].dev, &cpu, &err), &err);
    for (int s = 0; s < 2; s++) {
        must(device_stream_create(sides[s].dev, &sides[s].stream, &err), &err);
        must(device_tables_acquire(sides[s].dev, &sides[s].tables, context, &err), &err);
    }
    return true;
}

static void close_sides(void) {
    for (int s = 0; s < 2; s++) {
        device_tables_release(sides[s].dev, sides[s].tables);
        device_stream_destroy(sides[s].stream);
        device_close(sides[s].dev);
        memset(&sides[s], 0, sizeof sides[s]);
    }
    context_destroy(context);
}

/* One buffer on both devices. */
typedef struct twin {
    void *at[2];
    uint64_t bytes;
} twin;

static twin twin_create(const void *host, uint64_t bytes) {
    twin t = {.bytes = bytes};
    ckks_error err = {0};
    for (int s = 0; s < 2; s++) {
        must(device_allocate(sides[s].dev, &t.at[s], bytes, MEMORY_STATIC, &err), &err);
        if (host)
            must(device_copy_in(sides[s].stream, t.at[s], host, bytes, &err), &err);
        else
            must(device_fill(sides[s].stream, t.at[s], 0x5a, bytes, &err), &err);
        must(device_stream_synchronize(sides[s].stream, &err), &err);
    }
    return t;
}

static void twin_destroy(twin *t) {
    for (int s = 0; s < 2; s++) device_free(sides[s].dev, t->at[s]);
}

static uint64_t *twin_read(const twin *t, int s) {
    uint64_t *words = malloc(t->bytes);
    ckks_error err = {0};
    assert_non_null(words);
    must(device_copy_out(sides[s].stream, words, t->at[s], t->bytes, &err), &err);
    must(device_stream_synchronize(sides[s].stream, &err), &err);
    return words;
}

static void twin_compare(const twin *t, const char *what) {
    uint64_t *words[2];
    for (int s = 0; s < 2; s++) words[s] = twin_read(t, s);
    for (uint64_t i = 0; i < t->bytes / 8; i++)
        if (words[0][i] != words[1][i])
            fail_msg("%s: word %llu: CPU %llu, CUDA %llu", what, (unsigned long long)i,
                     (unsigned long long)words[0][i], (unsigned long long)words[1][i]);
    free(words[0]), free(words[1]);
}

static void launch(int s, kernel_id kernel, const void *arguments) {
    ckks_error err = {0};
    must(device_launch(sides[s].stream, kernel, arguments, &err), &err);
    must(device_stream_synchronize(sides[s].stream, &err), &err);
}

/* words of `polys` polynomials over `basis`: pattern 0 = random, else an adversarial pattern */
static twin random_polys(kernel_basis basis, uint32_t polys, uint32_t pattern) {
    const uint32_t n = params_n(params), limbs = basis_limb_count(basis);
    uint64_t *words = malloc((uint64_t)polys * limbs * n * 8);
    assert_non_null(words);
    for (uint32_t p = 0; p < polys; p++)
        for (uint32_t i = 0; i < limbs; i++) {
            uint64_t *limb = words + ((uint64_t)p * limbs + i) * n,
                     q = params->prime[basis_prime(basis, i, params->q_count)];
            if (pattern == 0)
                fixture_random_words(limb, n, q, &rng);
            else
                fixture_adversarial_words(limb, n, q, pattern - 1);
        }
    const twin t = twin_create(words, (uint64_t)polys * limbs * n * 8);
    free(words);
    return t;
}
enum { WEIGHTS_RANDOM, WEIGHTS_MINUS_ONE, WEIGHTS_LARGEST, WEIGHTS_SMALL };
/* numbers[per_limb] of each q, one limb after the other; the last two kinds are of either sign */
static twin random_numbers(uint32_t limbs, uint32_t per_limb, uint32_t kind) {
    uint64_t *words = malloc((uint64_t)limbs * per_limb * 8);
    assert_non_null(words);
    for (uint32_t i = 0; i < limbs * per_limb; i++) {
        const uint64_t q = params->prime[i / per_limb];
        const uint64_t small = prng_below(&rng, 1u << 20);
        words[i] = kind == WEIGHTS_RANDOM      ? prng_below(&rng, q)
                   : kind == WEIGHTS_MINUS_ONE ? q - 1
                   : kind == WEIGHTS_LARGEST   ? (q - 1) / 2 + (small & 1)
                   : small & 1                 ? q - small
                                               : small;
    }
    const twin t = twin_create(words, (uint64_t)limbs * per_limb * 8);
    free(words);
    return t;
}

static kernel_poly poly_of(const twin *t, int s, uint32_t components, kernel_basis basis) {
    return (kernel_poly){.words = t->at[s],
                         .component_count = components,
                         .component_stride = basis_limb_count(basis),
                         .basis = basis};
}

static kernel_basis basis_q(uint32_t level) {
    return (kernel_basis){0, level + 1, 0};
}
static kernel_basis basis_qp(uint32_t level) {
    return (kernel_basis){0, level + 1, params->p_count};
}
static uint64_t poly_bytes(kernel_basis b) {
    return (uint64_t)basis_limb_count(b) * params_n(params) * 8;
}

static void check_unary(kernel_id kernel, uint32_t in_components, uint32_t out_components, kernel_basis basis,
                        uint32_t pattern) {
    twin a = random_polys(basis, in_components, pattern),
         out = twin_create(NULL, out_components * poly_bytes(basis));
    for (int s = 0; s < 2; s++) {
        kernel_unary_args args = {sides[s].tables, poly_of(&out, s, out_components, basis),
                                  poly_of(&a, s, in_components, basis)};
        launch(s, kernel, &args);
    }
    twin_compare(&out, kernel_name(kernel));
    twin_destroy(&a), twin_destroy(&out);
}

static void check_binary(kernel_id kernel, uint32_t a_components, uint32_t b_components,
                         uint32_t out_components, uint32_t pattern) {
    const kernel_basis basis = basis_qp(params->q_count - 1);
    twin a = random_polys(basis, a_components, pattern), b = random_polys(basis, b_components, pattern);
    twin out = twin_create(NULL, out_components * poly_bytes(basis));
    for (int s = 0; s < 2; s++) {
        kernel_binary_args args = {sides[s].tables, poly_of(&out, s, out_components, basis),
                                   poly_of(&a, s, a_components, basis), poly_of(&b, s, b_components, basis)};
        launch(s, kernel, &args);
    }
    twin_compare(&out, kernel_name(kernel));
    twin_destroy(&a), twin_destroy(&b), twin_destroy(&out);
}

static void check_scalars(kernel_id kernel, uint32_t components, uint32_t every, uint32_t pattern) {
    const kernel_basis basis = basis_q(params->q_count - 1);
    twin a = random_polys(basis, components, pattern),
         out = twin_create(NULL, components * poly_bytes(basis));
    uint64_t scalar[CKKS_PRIMES_MAX] = {0};
    for (uint32_t i = 0; i < params->q_count; i++)
        scalar[i] = pattern ? params->prime[i] - 1 : prng_below(&rng, params->prime[i]);
    for (int s = 0; s < 2; s++) {
        kernel_scalars_args args = {.tables = sides[s].tables,
                                    .out = poly_of(&out, s, components, basis),
                                    .a = poly_of(&a, s, components, basis),
                                    .every = every};
        memcpy(args.scalar, scalar, sizeof scalar);
        launch(s, kernel, &args);
    }
    twin_compare(&out, kernel_name(kernel));
    twin_destroy(&a), twin_destroy(&out);
}

static void check_pointwise(uint32_t pattern) {
    const kernel_basis q = basis_q(params->q_count - 1), qp = basis_qp(params->q_count - 1);
    check_unary(KERNEL_COPY, 2, 2, q, pattern);
    check_unary(KERNEL_NEGATE, 2, 2, q, pattern);
    check_unary(KERNEL_SQUARE, 2, 3, q, pattern);
    check_unary(KERNEL_SQUARE, 6, 9, q, pattern);
    check_unary(KERNEL_NEGATE, 6, 6, q, pattern);
    check_unary(KERNEL_NTT_FORWARD, 2, 2, qp, pattern);
    check_unary(KERNEL_NTT_INVERSE, 2, 2, qp, pattern);
    check_binary(KERNEL_ADD, 2, 3, 3, pattern);
    check_binary(KERNEL_SUBTRACT, 3, 2, 3, pattern);
    check_binary(KERNEL_ADD_PLAIN, 2, 1, 2, pattern);
    check_binary(KERNEL_MULTIPLY_PLAIN, 2, 1, 2, pattern);
    check_binary(KERNEL_MULTIPLY, 2, 2, 3, pattern);
    check_binary(KERNEL_MULTIPLY, 6, 6, 9, pattern);
    check_binary(KERNEL_ADD, 6, 6, 6, pattern);
    check_scalars(KERNEL_ADD_SCALARS, 2, 0, pattern);
    check_scalars(KERNEL_ADD_SCALARS, 6, 2, pattern);
    check_scalars(KERNEL_MULTIPLY_SCALARS, 2, 0, pattern);
    twin a = random_polys(q, 2, pattern), out = twin_create(NULL, 2 * poly_bytes(q));
    for (int s = 0; s < 2; s++) {
        kernel_automorphism_args args = {sides[s].tables, poly_of(&out, s, 2, q), poly_of(&a, s, 2, q), 125};
        launch(s, KERNEL_AUTOMORPHISM, &args);
    }
    twin_compare(&out, "AUTOMORPHISM");
    twin_destroy(&a), twin_destroy(&out);
}

/* both batch entries of a under the two keys of the table: apart, summed, and as whole key switches */
static void check_switches(const twin *a, const twin *table, uint32_t level) {
    const uint32_t n = params_n(params), batch = 2;
    const kernel_basis q = basis_q(level), qp = basis_qp(level);
    twin scratch = twin_create(NULL, key_switch_scratch(params, level + 1, batch) * n * 8);
    for (uint32_t is_sum = 0; is_sum < 2; is_sum++) {
        const key_product_item items[2] = {{0, 1, 5, 0}, {1, 0, 2 * n - 1, is_sum ? 0 : 1}};
        twin list = twin_create(items, sizeof items),
             out = twin_create(NULL, (is_sum ? 1 : batch) * 2 * poly_bytes(qp));
        for (int s = 0; s < 2; s++) {
            kernel_switch_product_args args = {.tables = sides[s].tables,
                                               .out = out.at[s],
                                               .a = poly_of(a, s, 1, q),
                                               .a_batch_stride = level + 1,
                                               .batch_count = batch,
                                               .keys = table->at[s],
                                               .key_count = 2,
                                               .items = list.at[s],
                                               .items_host = items,
                                               .is_sum = is_sum,
                                               .scratch = scratch.at[s]};
            launch(s, KERNEL_SWITCH_PRODUCT, &args);
        }
        twin_compare(&out, is_sum ? "SWITCH_PRODUCT, summed" : "SWITCH_PRODUCT");
        twin_destroy(&list), twin_destroy(&out);
    }
    for (uint32_t kind = 0; kind < 4; kind++) {
        const uint32_t with_rescale = kind & 1, kept = kind & 2 ? 2 : 1;
        if (with_rescale && level == 0) continue;
        const kernel_basis down = basis_q(level - with_rescale);
        const uint32_t add_stride = kept * (level + 1), out_limbs = basis_limb_count(down);
        twin add = random_polys(q, batch * kept, kind), out = twin_create(NULL, batch * 2 * poly_bytes(down));
        for (int s = 0; s < 2; s++) {
            kernel_key_switch_args args = {.tables = sides[s].tables,
                                           .out = poly_of(&out, s, 2, down),
                                           .a = poly_of(a, s, 1, q),
                                           .add = poly_of(&add, s, kept, q),
                                           .key = 1,
                                           .galois_element = kind == 3 ? 1 : 25,
                                           .batch_count = batch,
                                           .out_batch_stride = 2 * out_limbs,
                                           .a_batch_stride = level + 1,
                                           .add_batch_stride = add_stride,
                                           .with_rescale = with_rescale,
                                           .keys = table->at[s],
                                           .key_count = 2,
                                           .scratch = scratch.at[s]};
            launch(s, KERNEL_KEY_SWITCH, &args);
        }
        twin_compare(&out, with_rescale ? "KEY_SWITCH with rescale" : "KEY_SWITCH");
        twin_destroy(&add), twin_destroy(&out);
    }
    twin_destroy(&scratch);
}

/* A product and the switch of its last component, recorded: the card may do both at once, unless the switch's
 * scratch is where an operand was. */
static void record_product(int s, bool is_square, uint32_t batch, uint32_t level, const kernel_poly *operand,
                           const twin *b, const twin *product, const twin *out, const twin *scratch,
                           const twin *table) {
    const kernel_basis q = basis_q(level), down = basis_q(level > 0 ? level - 1 : 0);
    const uint32_t limbs = level + 1;
    const kernel_poly all = poly_of(product, s, 3 * batch, q);
    const kernel_unary_args square = {sides[s].tables, all, *operand};
    const kernel_binary_args multiply = {sides[s].tables, all, *operand, poly_of(b, s, 2 * batch, q)};
    kernel_key_switch_args args = {.tables = sides[s].tables,
                                   .out = poly_of(out, s, 2, down),
                                   .a = poly_of(product, s, 1, q),
                                   .add = poly_of(product, s, 2, q),
                                   .key = 1,
                                   .galois_element = 1,
                                   .batch_count = batch,
                                   .out_batch_stride = 2 * basis_limb_count(down),
                                   .a_batch_stride = 3 * limbs,
                                   .add_batch_stride = 3 * limbs,
                                   .with_rescale = level > 0,
                                   .keys = table->at[s],
                                   .key_count = 2,
                                   .scratch = scratch->at[s]};
    device_graph *graph = NULL;
    ckks_error err = {0};
    args.a.words += 2ull * limbs * params_n(params);
    must(device_record_begin(sides[s].stream, &err), &err);
    must(is_square ? device_launch(sides[s].stream, KERNEL_SQUARE, &square, &err)
                   : device_launch(sides[s].stream, KERNEL_MULTIPLY, &multiply, &err),
         &err);
    must(device_launch(sides[s].stream, KERNEL_KEY_SWITCH, &args, &err), &err);
    must(device_record_end(sides[s].stream, &graph, &err), &err);
    must(device_graph_replay(graph, sides[s].stream, &err), &err);
    must(device_stream_synchronize(sides[s].stream, &err), &err);
    device_graph_destroy(graph);
}

static void check_recorded_products(const twin *table, uint32_t level, uint32_t pattern) {
    enum { APART, SQUARES, IN_SCRATCH, KINDS };
    const kernel_basis q = basis_q(level);
    for (int kind = 0; kind < KINDS; kind++) {
        const uint32_t batch = kind == SQUARES ? 2 : 1;
        const uint64_t scratch_limbs = key_switch_scratch(params, level + 1, batch);
        twin a = random_polys(q, 2 * batch, pattern), b = random_polys(q, 2 * batch, pattern);
        twin scratch = random_polys(q, (uint32_t)(scratch_limbs / (level + 1)) + 1, pattern);
        twin product = twin_create(NULL, 3 * batch * poly_bytes(q)),
             out = twin_create(NULL, 2 * batch * poly_bytes(basis_q(level > 0 ? level - 1 : 0)));
        for (int s = 0; s < 2; s++) {
            const kernel_poly operand = poly_of(kind == IN_SCRATCH ? &scratch : &a, s, 2 * batch, q);
            record_product(s, kind == SQUARES, batch, level, &operand, &b, &product, &out, &scratch, table);
        }
        twin_compare(&product, "a recorded product");
        twin_compare(&out, "the switch of a recorded product");
        twin_destroy(&a), twin_destroy(&b), twin_destroy(&scratch), twin_destroy(&product),
            twin_destroy(&out);
    }
}

/* The card's copy of a key, laid out as the card wants it: the parts of each block of residues where they
 * belong. */
static void split_key(const twin *key, kernel_basis basis, uint32_t components) {
    const kernel_narrow_key_args args = {sides[1].tables, poly_of(key, 1, components, basis)};
    uint64_t *words = twin_read(key, 1);
    assert_int_equal(device_key_layout(sides[1].dev), KEY_SPLIT);
    launch(1, KERNEL_NARROW_KEY, &args);
    uint64_t *split = twin_read(key, 1);
    for (uint64_t i = 0; i < key->bytes / 8; i++) {
        const uint64_t at = i % KEY_SPLIT_RESIDUES;
        const uint8_t *block = (const uint8_t *)(split + (i - at));
        uint32_t low = 0;
        uint16_t middle = 0;
        memcpy(&low, block + 4 * at, sizeof low);
        memcpy(&middle, block + KEY_SPLIT_MIDDLE + 2 * at, sizeof middle);
        const uint64_t top = block[KEY_SPLIT_TOP + at / 4] >> (2 * (at % 4)) & 3;
        if ((top << 48 | (uint64_t)middle << 32 | low) != words[i])
            fail_msg("NARROW_KEY: residue %llu", (unsigned long long)i);
    }
    free(words), free(split);
}

static void check_keyswitch(uint32_t level, uint32_t key_level, uint32_t pattern) {
    const uint32_t n = params_n(params), digits = params_digit_count(params, level), batch = 2;
    const kernel_basis q = basis_q(level), qp = basis_qp(level);
    const uint32_t limbs = basis_limb_count(qp);
    twin a = random_polys(q, batch, pattern), out = twin_create(NULL, batch * digits * poly_bytes(qp));
    twin scratch = twin_create(NULL, (uint64_t)batch * (level + 1) * n * 8);
    for (int s = 0; s < 2; s++) {
        kernel_mod_up_args args = {sides[s].tables, out.at[s], poly_of(&a, s, 1, q),
                                   level + 1,       batch,     scratch.at[s]};
        launch(s, KERNEL_MOD_UP, &args);
    }
    twin_compare(&out, "MOD_UP");

    /* two keys of a higher level, one of them under a rotation, two items summed into one out; on the card
     * one is of words, the other split */
    const kernel_basis key_basis = basis_qp(key_level);
    const uint32_t key_digits = params_digit_count(params, key_level);
    twin key[2] = {random_polys(key_basis, 2 * key_digits, 0),
                   random_polys(key_basis, 2 * key_digits, pattern)};
    const key_product_item items[3] = {{0, 0, 5, 0}, {1, 1, 1, 0}, {1, 0, 25, 1}};
    twin list = twin_create(items, sizeof items);
    twin sum = twin_create(NULL, 2 * 2 * poly_bytes(qp)), table = {.bytes = 2 * sizeof(key_table_entry)};
    ckks_error err = {0};
    split_key(&key[1], key_basis, 2 * key_digits);
    for (int s = 0; s < 2; s++) {
        key_table_entry entries[2] = {
            {(uint64_t)(uintptr_t)key[0].at[s], key_level + 1, KEY_WORDS},
            {(uint64_t)(uintptr_t)key[1].at[s], key_level + 1, s ? KEY_SPLIT : KEY_WORDS}};
        must(device_allocate(sides[s].dev, &table.at[s], sizeof entries, MEMORY_STATIC, &err), &err);
        must(device_copy_in(sides[s].stream, table.at[s], entries, sizeof entries, &err), &err);
        must(device_stream_synchronize(sides[s].stream, &err), &err);
        kernel_key_product_args args = {.tables = sides[s].tables,
                                        .out = sum.at[s],
                                        .out_count = 2,
                                        .level = level,
                                        .digits = out.at[s],
                                        .digits_count = batch,
                                        .add = a.at[s],
                                        .add_stride = level + 1,
                                        .keys = table.at[s],
                                        .key_count = 2,
                                        .items = list.at[s],
                                        .items_host = items,
                                        .item_count = 3};
        launch(s, KERNEL_KEY_PRODUCT, &args);
    }
    twin_compare(&sum, "KEY_PRODUCT");

    check_switches(&a, &table, level);
    if (pattern <= 1) check_recorded_products(&table, level, pattern);

    for (uint32_t with_rescale = 0; with_rescale < 2; with_rescale++) {
        if (with_rescale && level == 0) continue;
        const kernel_basis down = basis_q(level - with_rescale);
        twin result = twin_create(NULL, 2 * poly_bytes(down));
        twin more = twin_create(NULL, 2ull * (params->p_count + 2 * (level + 1)) * n * 8);
        for (int s = 0; s < 2; s++) {
            kernel_mod_down_args args = {.tables = sides[s].tables,
                                         .out = poly_of(&result, s, 2, down),
                                         .a = poly_of(&sum, s, 2, qp),
                                         .add = poly_of(&a, s, 1, q),
                                         .add_galois_element = 5,
                                         .batch_count = 1,
                                         .out_batch_stride = 2 * basis_limb_count(down),
                                         .a_batch_stride = 2 * limbs,
                                         .add_batch_stride = level + 1,
                                         .with_rescale = with_rescale,
                                         .scratch = more.at[s]};
            launch(s, KERNEL_MOD_DOWN, &args);
        }
        twin_compare(&result, with_rescale ? "MOD_DOWN with rescale" : "MOD_DOWN");
        twin_destroy(&result), twin_destroy(&more);
    }
    if (level > 0) {
        const kernel_basis down = basis_q(level - 1);
        twin c = random_polys(q, 2, pattern), result = twin_create(NULL, 2 * poly_bytes(down));
        twin more = twin_create(NULL, 2ull * (level + 1) * n * 8);
        for (int s = 0; s < 2; s++) {
            kernel_rescale_args args = {sides[s].tables, poly_of(&result, s, 2, down), poly_of(&c, s, 2, q),
                                        more.at[s]};
            launch(s, KERNEL_RESCALE, &args);
        }
        twin_compare(&result, "RESCALE");
        twin_destroy(&c), twin_destroy(&result), twin_destroy(&more);
    }
    twin_destroy(&a), twin_destroy(&out), twin_destroy(&scratch), twin_destroy(&key[0]),
        twin_destroy(&key[1]);
    twin_destroy(&list), twin_destroy(&sum), twin_destroy(&table);
}

static void check_linear(uint32_t pattern) {
    const uint32_t level = params->q_count - 1, n = params_n(params);
    const kernel_basis qp = basis_qp(level);
    twin in = random_polys(qp, 2 * 3, pattern), plain = random_polys(qp, 5, pattern),
         out = twin_create(NULL, 2 * 2 * poly_bytes(qp));
    twin sum = twin_create(NULL, poly_bytes(qp));
    const permute_item turns[3] = {{0, 1}, {1, 5}, {2, 2 * n - 1}};
    twin turn_list = twin_create(turns, sizeof turns);
    ckks_error err = {0};
    for (int s = 0; s < 2; s++) {
        diagonal_item items[5];
        for (uint32_t k = 0; k < 5; k++)
            items[k] = (diagonal_item){k / 3, k % 3, (uint64_t)(uintptr_t)plain.at[s] + k * poly_bytes(qp)};
        void *list = NULL;
        must(device_allocate(sides[s].dev, &list, sizeof items, MEMORY_STATIC, &err), &err);
        must(device_copy_in(sides[s].stream, list, items, sizeof items, &err), &err);
        kernel_diagonal_sum_args args = {sides[s].tables, out.at[s], in.at[s], 2, 3, 2, qp, list, items, 5};
        launch(s, KERNEL_DIAGONAL_SUM, &args);
        device_free(sides[s].dev, list);
        kernel_permute_sum_args turn = {sides[s].tables,
                                        poly_of(&sum, s, 1, qp),
                                        in.at[s],
                                        in.at[s],
                                        basis_limb_count(qp),
                                        3,
                                        turn_list.at[s],
                                        turns,
                                        3};
        launch(s, KERNEL_PERMUTE_SUM, &turn);
    }
    twin_compare(&out, "DIAGONAL_SUM");
    twin_compare(&sum, "PERMUTE_SUM");
    twin_destroy(&in), twin_destroy(&plain), twin_destroy(&out), twin_destroy(&sum), twin_destroy(&turn_list);
}

/* row tiles of every size, whole and in part; sums that are folded at each step, seldom or never */
static void check_matrix(uint32_t rows, uint32_t columns, uint32_t pattern, uint32_t weights) {
    const uint32_t limbs = params->q_count;
    const kernel_basis q = basis_q(limbs - 1);
    twin vectors = random_polys(q, 2 * columns, pattern),
         result = twin_create(NULL, (uint64_t)rows * 2 * poly_bytes(q));
    twin weight = random_numbers(limbs, rows * columns, weights), bias = random_numbers(limbs, rows, weights);
    const uint64_t *const no_bias[2] = {NULL, NULL};
    for (int with_bias = 0; with_bias < 2; with_bias++) {
        for (int s = 0; s < 2; s++) {
            kernel_matrix_product_args args = {sides[s].tables,
                                               result.at[s],
                                               vectors.at[s],
                                               weight.at[s],
                                               rows,
                                               columns,
                                               2,
                                               q,
                                               with_bias ? bias.at[s] : no_bias[s]};
            launch(s, KERNEL_MATRIX_PRODUCT, &args);
        }
        twin_compare(&result, "MATRIX_PRODUCT");
    }
    twin_destroy(&bias);
    twin_destroy(&vectors), twin_destroy(&result), twin_destroy(&weight);
}

static void check_matrices(uint32_t pattern) {
    check_matrix(19, 37, pattern, pattern ? WEIGHTS_MINUS_ONE : WEIGHTS_RANDOM);
    if (params->log_n > 12 || params->q_count > 5) return;
    for (uint32_t weights = WEIGHTS_RANDOM; weights <= WEIGHTS_SMALL; weights++) {
        check_matrix(70, 45, pattern, weights);
        check_matrix(10, 64, pattern, weights);
        check_matrix(32, 8, pattern, weights);
        check_matrix(33, 1, pattern, weights);
    }
}

static uint64_t packed_bytes_of(kernel_basis basis, uint32_t components) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < basis_limb_count(basis); i++) {
        const uint32_t prime = basis_prime(basis, i, params->q_count);
        bytes += ((uint64_t)context_ntt(context, prime)->m.bits * params_n(params) + 127) / 128 * 16;
    }
    return bytes * components;
}

static void check_ingest(uint32_t pattern) {
    const kernel_basis qp = basis_qp(params->q_count - 1);
    const uint64_t bytes = packed_bytes_of(qp, 2);
    twin a = random_polys(qp, 2, pattern), packed = twin_create(NULL, bytes),
         back = twin_create(NULL, 2 * poly_bytes(qp));
    uint64_t zero = 0;
    twin verdict = twin_create(&zero, 8);
    uint8_t seed[32];
    for (int i = 0; i < 32; i++) seed[i] = (uint8_t)prng_u64(&rng);
    twin seeds = twin_create(seed, 32), expanded = twin_create(NULL, poly_bytes(qp));
    for (int s = 0; s < 2; s++) {
        kernel_pack_args out = {sides[s].tables, packed.at[s], bytes, poly_of(&a, s, 2, qp)};
        launch(s, KERNEL_PACK, &out);
        kernel_unpack_args in = {sides[s].tables, poly_of(&back, s, 2, qp), packed.at[s], bytes,
                                 verdict.at[s]};
        launch(s, KERNEL_UNPACK, &in);
        kernel_check_nonzero_args nonzero = {sides[s].tables, poly_of(&a, s, 1, qp), verdict.at[s]};
        launch(s, KERNEL_CHECK_NONZERO, &nonzero);
        kernel_expand_args expand = {sides[s].tables, poly_of(&expanded, s, 1, qp), seeds.at[s], 2, 7};
        launch(s, KERNEL_EXPAND, &expand);
    }
    twin_compare(&packed, "PACK");
    twin_compare(&back, "UNPACK");
    twin_compare(&verdict, "verdict of good words");
    twin_compare(&expanded, "EXPAND");
    /* every bit set: residues and padding out of range, the same verdict on both sides */
    ckks_error err = {0};
    for (int s = 0; s < 2; s++) {
        must(device_fill(sides[s].stream, packed.at[s], 0xff, bytes, &err), &err);
        kernel_unpack_args in = {sides[s].tables, poly_of(&back, s, 2, qp), packed.at[s], bytes,
                                 verdict.at[s]};
        launch(s, KERNEL_UNPACK, &in);
    }
    twin_compare(&verdict, "verdict of bad words");
    twin_destroy(&a), twin_destroy(&packed), twin_destroy(&back), twin_destroy(&verdict),
        twin_destroy(&seeds), twin_destroy(&expanded);
}

static void check_random(void) {
    const kernel_basis qp = basis_qp(params->q_count - 1);
    random_state state = {.counter = 0xfffffff0};
    for (int i = 0; i < 32; i++) state.key[i] = (uint8_t)prng_u64(&rng);
    twin random = twin_create(&state, sizeof state), out = twin_create(NULL, poly_bytes(qp));
    for (uint32_t kind = SAMPLE_TERNARY; kind <= SAMPLE_FLOOD; kind++) {
        for (int s = 0; s < 2; s++) {
            kernel_sample_args args = {sides[s].tables, poly_of(&out, s, 1, qp), random.at[s], 3, kind, 30};
            launch(s, KERNEL_SAMPLE, &args);
            kernel_counter_args advance = {sides[s].tables, random.at[s], 77};
            launch(s, KERNEL_COUNTER_ADVANCE, &advance);
        }
        twin_compare(&out, "SAMPLE");
        twin_compare(&random, "COUNTER_ADVANCE");
    }
    twin_destroy(&random), twin_destroy(&out);
}

typedef struct kernel_set {
    uint32_t log_n, q_count, p_count, digit_size, q0, q, p;
} kernel_set;

/* Under compute-sanitizer each launch costs a hundred times as much. CKKSD_TEST_SHORT=LOG_N takes the sets of
 * one ring degree from here, few limbs each: 10, 11, 13, 15 and 17 together have every radix of the row and
 * of the column passes. CKKSD_TEST_SHORT=1: the two smallest. */
static const kernel_set short_sets[] = {{10, 4, 1, 1, 50, 50, 50}, {11, 5, 2, 2, 50, 30, 50},
                                        {12, 3, 1, 1, 38, 28, 38}, {13, 3, 1, 1, 40, 30, 50},
                                        {14, 4, 2, 2, 50, 50, 50}, {15, 2, 1, 1, 50, 40, 50},
                                        {16, 2, 2, 2, 50, 40, 50}, {17, 2, 1, 1, 50, 40, 50}};
static const kernel_set all_sets[] = {
    {10, 4, 1, 1, 50, 50, 50},  {11, 5, 2, 2, 50, 30, 50}, {12, 3, 1, 1, 38, 28, 38},
    {12, 11, 1, 1, 50, 50, 50}, {13, 5, 1, 1, 40, 30, 50}, {14, 8, 2, 2, 50, 50, 50},
    {15, 5, 3, 3, 50, 40, 50},  {16, 3, 2, 2, 50, 40, 50}, {17, 2, 2, 2, 50, 40, 50}};

static void check_set(const kernel_set *s, const char *path, uint32_t patterns) {
    const ckks_params p =
        fixture_params_bits(s->log_n, s->q_count, s->p_count, s->digit_size, s->q0, s->q, s->p);
    if (!open_sides(fixture_context_of(&p), path)) skip();
    for (uint32_t pattern = 0; pattern <= patterns; pattern++) {
        check_pointwise(pattern);
        check_keyswitch(params->q_count - 1, params->q_count - 1, pattern);
        check_keyswitch(params->q_count / 2, params->q_count - 1, pattern);
        if (pattern <= 1) check_linear(pattern);
        if (pattern <= 1 || pattern == 4) check_matrices(pattern);
        check_ingest(pattern);
    }
    check_random();
    close_sides();
}

static void every_kernel(const char *path) {
    const char *chosen = getenv("CKKSD_TEST_SHORT");
    const unsigned long log_n = chosen ? strtoul(chosen, NULL, 10) : 0;
    uint32_t done = 0;
    prng_init(&rng, 7);
    if (chosen) {
        for (size_t i = 0; i < sizeof short_sets / sizeof *short_sets; i++)
            if (log_n == short_sets[i].log_n || (log_n == 1 && i < 2)) {
                check_set(&short_sets[i], path, log_n > 11 ? 0 : 1);
                done++;
            }
    } else
        for (size_t i = 0; i < sizeof all_sets / sizeof *all_sets; i++) {
            const kernel_set *s = &all_sets[i];
            check_set(s, path, s->q_count > 8 ? 1 : s->log_n <= 14 ? FIXTURE_PATTERNS : 4);
            done++;
        }
    if (!done) fail_msg("CKKSD_TEST_SHORT=%s: no set has this ring degree", chosen);
    unsetenv("CKKSD_CUDA_PATH");
}

static void every_kernel_of_the_f64_path_gives_the_cpu_words(void **state) {
    (void)state;
    every_kernel("f64");
}
static void every_kernel_of_the_integer_path_gives_the_cpu_words(void **state) {
    (void)state;
    every_kernel("i64");
}

/* argument: f64 or i64, one path alone; a number: as CKKSD_TEST_SHORT; 11-f64: both; none: everything */
int main(int argc, char **argv) {
    const char *path = argc > 1 ? argv[1] : "";
    if (path[0] >= '0' && path[0] <= '9') {
        const size_t digits = strspn(path, "0123456789");
        char log_n[8];
        snprintf(log_n, sizeof log_n, "%.*s", (int)digits, path);
        setenv("CKKSD_TEST_SHORT", log_n, 1);
        path += digits + (path[digits] == '-');
    }
    const struct CMUnitTest f64[] = {cmocka_unit_test(every_kernel_of_the_f64_path_gives_the_cpu_words)};
    const struct CMUnitTest i64[] = {cmocka_unit_test(every_kernel_of_the_integer_path_gives_the_cpu_words)};
    int failed = 0;
    if (!path[0] || strcmp(path, "f64") == 0)
        failed += cmocka_run_group_tests_name("cuda kernels, FP64", f64, NULL, NULL);
    if (!path[0] || strcmp(path, "i64") == 0)
        failed += cmocka_run_group_tests_name("cuda kernels, 64-bit integers", i64, NULL, NULL);
    return failed;
}
