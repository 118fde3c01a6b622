/*
 * Every vector kernel writes the words of the scalar one, which defines them: for each instruction set, on
 * edge, adversarial and random residues, for primes of 14 to 50 bits and rings of 2^10 to 2^16. A set that
 * this machine lacks is skipped and says so.
 */
#include "kernels/cpu/kernels_cpu.h"
#include "kernels/cpu/team.h"
#include "kernels/cpu/transform.h"
#include "tests/support/device_fixture.h"

#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* what the running test compares */
static struct {
    cpu_isa isa;
    device_fixture f;
    prng rng;
    bool is_seen[KERNEL_COUNT];
    uint64_t launches;
    uint32_t switches_seen; /* how often */
} now;

#define PATTERN_RANDOM FIXTURE_PATTERNS
#define PATTERN_GROWTH (FIXTURE_PATTERNS + 1)
#define PATTERN_COUNT  (FIXTURE_PATTERNS + 2)

/* this thread's team; 1: none */
static void set_team(uint32_t width) {
    team *t = NULL;
    if (width > 1) assert_int_equal(team_create(&t, width, NULL), CKKS_OK);
    team_destroy(team_enter(t));
}

static void *memory(uint64_t bytes) {
    void *at = NULL;
    assert_int_equal(posix_memalign(&at, 64, bytes ? bytes : 64), 0);
    memset(at, 0x5a, bytes);
    return at;
}

/* Coefficients whose forward transform adds (q-1)/2 at every level on the way to position 0: element i is
 * multiplied for the first time at the level of its highest bit, after it has collected one addend per level
 * above. */
static void growth_words(uint64_t *words, const ntt_table *t) {
    const uint64_t q = t->m.value, half = q >> 1;
    words[0] = q - 1;
    for (uint32_t level = 0; level < t->log_n; level++) {
        const uint64_t multiplier = mod_inverse(t->forward[(size_t)1 << level], &t->m);
        const uint64_t x = mod_sub(mod_mul(half, multiplier, &t->m), mod_mul(half, level, &t->m), q);
        for (size_t i = (size_t)1 << (t->log_n - 1 - level); i < (size_t)2 << (t->log_n - 1 - level); i++)
            words[i] = x;
    }
}

static void fill(uint64_t *words, kernel_basis basis, uint32_t polynomials, uint32_t pattern) {
    const uint32_t n = now.f.n, limbs = basis_limb_count(basis);
    for (uint32_t i = 0, at = 0; i < polynomials * limbs; i++, at = at + 1 < limbs ? at + 1 : 0) {
        const ntt_table *t = context_ntt(now.f.context, basis_prime(basis, at, now.f.params->q_count));
        uint64_t *limb = words + (size_t)i * n;
        if (pattern < FIXTURE_PATTERNS)
            fixture_adversarial_words(limb, n, t->m.value, pattern);
        else if (pattern == PATTERN_GROWTH)
            growth_words(limb, t);
        else
            fixture_random_words(limb, n, t->m.value, &now.rng);
    }
}
static uint64_t *poly(kernel_basis basis, uint32_t polynomials, uint32_t pattern) {
    uint64_t *words = memory((uint64_t)polynomials * basis_limb_count(basis) * now.f.n * 8);
    fill(words, basis, polynomials, pattern);
    return words;
}

/* Runs both versions; *out is the place in `args` that says where to. False where the set has no version. */
static bool compare(kernel_id kernel, const void *args, void *out_slot, uint64_t bytes) {
    cpu_isa used = CPU_ISA_SCALAR;
    const cpu_kernel vector = cpu_kernel_find(kernel, now.isa, &used);
    if (used != now.isa) return false;
    uint8_t *const expected = memory(bytes), *const actual = memory(bytes);
    memcpy(out_slot, &expected, sizeof expected);
    cpu_kernel_find(kernel, CPU_ISA_SCALAR, NULL)(args);
    memcpy(out_slot, &actual, sizeof actual);
    vector(args);
    for (uint64_t i = 0; i < bytes; i++)
        if (expected[i] != actual[i])
            fail_msg("%s, %s, N = %u: byte %llu of %llu differs", kernel_name(kernel), cpu_isa_name(now.isa),
                     now.f.n, (unsigned long long)i, (unsigned long long)bytes);
    free(expected), free(actual);
    now.is_seen[kernel] = true;
    now.launches++;
    return true;
}

/* One pattern for each set under ThreadSanitizer, which looks at who touches what and not at the words. */
#ifdef __has_feature
#if __has_feature(thread_sanitizer)
#define PATTERNS_ARE_FEW 1
#endif
#endif
#ifndef PATTERNS_ARE_FEW
#define PATTERNS_ARE_FEW 0
#endif

static kernel_basis basis_q(uint32_t level) {
    return (kernel_basis){0, level + 1, 0};
}
static kernel_basis basis_qp(uint32_t level) {
    return (kernel_basis){0, level + 1, now.f.params->p_count};
}
static uint64_t poly_bytes(kernel_basis b) {
    return (uint64_t)basis_limb_count(b) * now.f.n * 8;
}

/* the last argument is also the output of an in-place launch */
static void check_unary(kernel_id kernel, uint32_t in_components, uint32_t out_components, kernel_basis basis,
                        uint32_t pattern) {
    uint64_t *a = poly(basis, in_components, pattern);
    kernel_unary_args args = {now.f.tables, device_fixture_poly(NULL, out_components, basis),
                              device_fixture_poly(a, in_components, basis)};
    compare(kernel, &args, &args.out.words, out_components * poly_bytes(basis));
    free(a);
}

static void check_in_place(kernel_id kernel, kernel_basis basis) {
    cpu_isa used = CPU_ISA_SCALAR;
    const cpu_kernel vector = cpu_kernel_find(kernel, now.isa, &used);
    if (used != now.isa) return;
    uint64_t *a = poly(basis, 1, PATTERN_RANDOM), *expected = memory(poly_bytes(basis));
    const kernel_unary_args in_place = {now.f.tables, device_fixture_poly(a, 1, basis),
                                        device_fixture_poly(a, 1, basis)};
    const kernel_unary_args apart = {now.f.tables, device_fixture_poly(expected, 1, basis),
                                     device_fixture_poly(a, 1, basis)};
    vector(&apart);
    vector(&in_place);
    assert_memory_equal(a, expected, poly_bytes(basis));
    free(a), free(expected);
}

static void check_binary(kernel_id kernel, uint32_t a_components, uint32_t b_components,
                         uint32_t out_components, uint32_t pattern) {
    const kernel_basis basis = basis_qp(now.f.params->q_count - 1);
    uint64_t *a = poly(basis, 4, pattern), *b = poly(basis, b_components, PATTERN_RANDOM);
    kernel_binary_args args = {now.f.tables, device_fixture_poly(NULL, out_components, basis),
                               device_fixture_poly(a, a_components, basis),
                               device_fixture_poly(b, b_components, basis)};
    compare(kernel, &args, &args.out.words, out_components * poly_bytes(basis));
    args.b = device_fixture_poly(a, b_components, basis);
    compare(kernel, &args, &args.out.words, out_components * poly_bytes(basis));
    free(a), free(b);
}

static void check_scalars(kernel_id kernel, uint32_t components, uint32_t every, uint32_t pattern) {
    const kernel_basis basis = basis_qp(now.f.params->q_count - 1);
    uint64_t *a = poly(basis, components, pattern);
    kernel_scalars_args args = {.tables = now.f.tables,
                                .out = device_fixture_poly(NULL, components, basis),
                                .a = device_fixture_poly(a, components, basis),
                                .every = every};
    for (uint32_t i = 0; i < basis_limb_count(basis); i++) {
        const uint64_t q = now.f.params->prime[i], edge[4] = {0, 1, q - 1, q >> 1};
        args.scalar[i] = pattern < 4 ? edge[pattern] : prng_below(&now.rng, q);
    }
    compare(kernel, &args, &args.out.words, components * poly_bytes(basis));
    free(a);
}

static void check_pointwise(uint32_t pattern) {
    const kernel_basis qp = basis_qp(now.f.params->q_count - 1);
    check_unary(KERNEL_NTT_FORWARD, 1, 1, qp, pattern);
    check_unary(KERNEL_NTT_INVERSE, 1, 1, qp, pattern);
    check_unary(KERNEL_COPY, 2, 2, qp, pattern);
    check_unary(KERNEL_NEGATE, 2, 2, qp, pattern);
    check_unary(KERNEL_SQUARE, 2, 3, qp, pattern);
    check_unary(KERNEL_SQUARE, 4, 6, qp, pattern);
    check_binary(KERNEL_ADD, 2, 3, 3, pattern);
    check_binary(KERNEL_SUBTRACT, 3, 2, 3, pattern);
    check_binary(KERNEL_SUBTRACT, 2, 3, 3, pattern);
    check_binary(KERNEL_ADD_PLAIN, 2, 1, 2, pattern);
    check_binary(KERNEL_MULTIPLY_PLAIN, 2, 1, 2, pattern);
    check_binary(KERNEL_MULTIPLY, 2, 2, 3, pattern);
    check_binary(KERNEL_MULTIPLY, 4, 4, 6, pattern);
    check_scalars(KERNEL_ADD_SCALARS, 2, 0, pattern);
    check_scalars(KERNEL_ADD_SCALARS, 6, 2, pattern);
    check_scalars(KERNEL_MULTIPLY_SCALARS, 2, 0, pattern);
}

static void check_automorphisms(void) {
    const kernel_basis q = basis_q(now.f.params->q_count - 1);
    const uint32_t n = now.f.n, g[] = {1, 3, 5, 7, 25, n + 1, 2 * n - 1, 2 * n - 5};
    uint64_t *a = poly(q, 2, PATTERN_RANDOM);
    for (size_t i = 0; i < sizeof g / sizeof *g; i++) {
        kernel_automorphism_args args = {now.f.tables, device_fixture_poly(NULL, 2, q),
                                         device_fixture_poly(a, 2, q), g[i]};
        compare(KERNEL_AUTOMORPHISM, &args, &args.out.words, 2 * poly_bytes(q));
    }
    free(a);
}

/* digits as MOD_UP leaves them, of two polynomials */
static uint64_t *check_mod_up(const uint64_t *a, uint32_t level) {
    const uint64_t bytes = 2 * params_digit_count(now.f.params, level) * poly_bytes(basis_qp(level));
    uint64_t *scratch = memory(2 * poly_bytes(basis_q(level))), *digits = memory(bytes), *words = NULL;
    memcpy(&words, &a, sizeof a);
    kernel_mod_up_args args = {now.f.tables, NULL, device_fixture_poly(words, 1, basis_q(level)),
                               level + 1,    2,    scratch};
    compare(KERNEL_MOD_UP, &args, &args.out, bytes);
    args.out = digits;
    cpu_kernel_find(KERNEL_MOD_UP, CPU_ISA_SCALAR, NULL)(&args);
    free(scratch);
    return digits;
}

/* a copy of a key with narrow residues, as kernels.h defines them */
static uint64_t *narrow_key(const uint64_t *key, kernel_basis basis, uint32_t components) {
    const uint32_t n = now.f.n, limbs = basis_limb_count(basis);
    uint64_t *out = memory(components * poly_bytes(basis));
    for (uint32_t i = 0; i < components * limbs; i++) {
        const uint32_t prime = basis_prime(basis, i % limbs, now.f.params->q_count);
        const uint32_t bytes = key_residue_bytes(now.f.params->prime[prime]);
        uint8_t *to = (uint8_t *)(out + (size_t)i * n);
        for (uint32_t k = 0; k < n; k++)
            for (uint32_t b = 0; b < bytes; b++)
                to[(size_t)k * bytes + b] = (uint8_t)(key[(size_t)i * n + k] >> (8 * b));
    }
    return out;
}

/* what is behind the residues of a limb is nobody's */
static void check_narrowing(const uint64_t *key, kernel_basis basis, uint32_t components) {
    const uint32_t n = now.f.n, limbs = basis_limb_count(basis);
    uint64_t *expected = narrow_key(key, basis, components);
    for (uint32_t isa = 0; isa < 2; isa++) {
        cpu_isa used = CPU_ISA_SCALAR;
        const cpu_kernel run = cpu_kernel_find(KERNEL_NARROW_KEY, isa ? now.isa : CPU_ISA_SCALAR, &used);
        uint64_t *words = memory(components * poly_bytes(basis));
        memcpy(words, key, components * poly_bytes(basis));
        const kernel_narrow_key_args args = {now.f.tables, device_fixture_poly(words, components, basis)};
        run(&args);
        for (uint32_t i = 0; i < components * limbs; i++) {
            const uint32_t prime = basis_prime(basis, i % limbs, now.f.params->q_count);
            assert_memory_equal(words + (size_t)i * n, expected + (size_t)i * n,
                                (size_t)n * key_residue_bytes(now.f.params->prime[prime]));
        }
        now.is_seen[KERNEL_NARROW_KEY] |= isa && used == now.isa;
        free(words);
    }
    free(expected);
}

/* narrow keys: the scalar kernel writes what it writes with the words, and the vector one the same */
static void check_narrow_product(kernel_key_product_args *args, const key_table_entry *words,
                                 const key_table_entry *narrow, uint64_t bytes) {
    if (now.isa != CPU_ISA_AVX512) return;
    uint64_t *const expected = memory(bytes), *const actual = memory(bytes);
    const cpu_kernel scalar = cpu_kernel_find(KERNEL_KEY_PRODUCT, CPU_ISA_SCALAR, NULL);
    args->keys = words, args->out = expected, scalar(args);
    args->keys = narrow, args->out = actual, scalar(args);
    assert_memory_equal(actual, expected, bytes);
    compare(KERNEL_KEY_PRODUCT, args, &args->out, bytes);
    args->keys = words;
    free(expected), free(actual);
}

static uint64_t *check_key_product(const uint64_t *a, const uint64_t *digits, uint32_t level,
                                   uint32_t key_level, uint32_t pattern) {
    const uint32_t key_digits = params_digit_count(now.f.params, key_level);
    const uint64_t bytes = 2 * 2 * poly_bytes(basis_qp(level));
    uint64_t *key[2] = {poly(basis_qp(key_level), 2 * key_digits, PATTERN_RANDOM),
                        poly(basis_qp(key_level), 2 * key_digits, pattern)};
    const key_table_entry entries[4] = {{(uint64_t)(uintptr_t)key[0], key_level + 1, 0},
                                        {(uint64_t)(uintptr_t)key[1], key_level + 1, 0},
                                        {0, key_level + 1, 0},
                                        {(uint64_t)(uintptr_t)key[0], level, 0}};
    const key_product_item items[] = {{0, 0, 5, 0},  {1, 1, 1, 0}, {1, 0, 2 * now.f.n - 1, 1},
                                      {0, 2, 25, 1}, {1, 3, 7, 1}, {0, 9, 1, 0}};
    kernel_key_product_args args = {.tables = now.f.tables,
                                    .out_count = 2,
                                    .level = level,
                                    .digits = digits,
                                    .digits_count = 2,
                                    .add = a,
                                    .add_stride = level + 1,
                                    .keys = entries,
                                    .key_count = 4,
                                    .items = items,
                                    .items_host = items,
                                    .item_count = 6};
    compare(KERNEL_KEY_PRODUCT, &args, &args.out, bytes);
    uint64_t *narrow[3] = {narrow_key(key[0], basis_qp(key_level), 2 * key_digits),
                           narrow_key(key[1], basis_qp(key_level), 2 * key_digits)};
    key_table_entry narrow_entries[4];
    memcpy(narrow_entries, entries, sizeof entries);
    narrow_entries[0].address = (uint64_t)(uintptr_t)narrow[0], narrow_entries[0].layout = KEY_NARROW;
    narrow_entries[1].address = (uint64_t)(uintptr_t)narrow[1], narrow_entries[1].layout = KEY_NARROW;
    check_narrowing(key[0], basis_qp(key_level), 2 * key_digits);
    check_narrow_product(&args, entries, narrow_entries, bytes);
    args.items = args.items_host = NULL;
    args.uniform = (key_product_item){.key = 1, .galois_element = 125};
    compare(KERNEL_KEY_PRODUCT, &args, &args.out, bytes);
    args.add = NULL;
    args.out = memory(bytes);
    cpu_kernel_find(KERNEL_KEY_PRODUCT, CPU_ISA_SCALAR, NULL)(&args);
    uint64_t *const sum = args.out;
    /* public keys: one digit in q alone */
    uint64_t *public_key = poly(basis_q(key_level), 2, pattern),
             *small = poly(basis_q(level), 2, PATTERN_RANDOM);
    const key_table_entry public_entries[2] = {{0}, {(uint64_t)(uintptr_t)public_key, key_level + 1, 0}};
    args.digits = small, args.keys = public_entries, args.key_count = 2;
    args.is_public = 1;
    compare(KERNEL_KEY_PRODUCT, &args, &args.out, 2 * 2 * poly_bytes(basis_q(level)));
    narrow[2] = narrow_key(public_key, basis_q(key_level), 2);
    const key_table_entry narrow_public[2] = {{0}, {(uintptr_t)narrow[2], key_level + 1, KEY_NARROW}};
    check_narrow_product(&args, public_entries, narrow_public, 2 * 2 * poly_bytes(basis_q(level)));
    free(key[0]), free(key[1]), free(public_key), free(small);
    free(narrow[0]), free(narrow[1]), free(narrow[2]);
    return sum;
}

static void check_mod_down(uint64_t *sum, uint64_t *add, uint32_t level, uint32_t with_rescale) {
    const kernel_basis down = basis_q(level - with_rescale);
    uint64_t *scratch = memory(4ull * (now.f.params->p_count + 2 * (level + 1)) * now.f.n * 8);
    kernel_mod_down_args args = {.tables = now.f.tables,
                                 .out = device_fixture_poly(NULL, 2, down),
                                 .a = device_fixture_poly(sum, 2, basis_qp(level)),
                                 .add = device_fixture_poly(add, 1, basis_q(level)),
                                 .add_galois_element = 5,
                                 .batch_count = 2,
                                 .out_batch_stride = 2 * basis_limb_count(down),
                                 .a_batch_stride = 2 * basis_limb_count(basis_qp(level)),
                                 .add_batch_stride = level + 1,
                                 .with_rescale = with_rescale,
                                 .scratch = scratch};
    compare(KERNEL_MOD_DOWN, &args, &args.out.words, 4 * poly_bytes(down));
    args.add.words = NULL;
    compare(KERNEL_MOD_DOWN, &args, &args.out.words, 4 * poly_bytes(down));
    free(scratch);
}

/* SWITCH_PRODUCT and KEY_SWITCH of two polynomials; now and then by a team, which works in another order */
static void check_switches(uint64_t *a, uint32_t level, uint32_t key_level, uint32_t pattern) {
    const uint32_t key_digits = params_digit_count(now.f.params, key_level), threads = team_width();
    uint64_t *key = poly(basis_qp(key_level), 2 * key_digits, pattern);
    uint64_t *scratch = memory(key_switch_scratch(now.f.params, level + 1, 2) * now.f.n * 8);
    key_table_entry entries[2] = {{(uint64_t)(uintptr_t)key, key_level + 1, 0}, {0, key_level + 1, 0}};
    uint64_t *narrow = narrow_key(key, basis_qp(key_level), 2 * key_digits);
    if (now.isa == CPU_ISA_AVX512 && now.switches_seen % 2)
        entries[0] = (key_table_entry){(uintptr_t)narrow, key_level + 1, KEY_NARROW};
    const key_product_item items[2] = {{0, 0, 5, 0}, {1, 0, 2 * now.f.n - 1, 1}},
                           sum[2] = {{0, 0, 25, 0}, {1, 0, 1, 0}};
    kernel_switch_product_args args = {.tables = now.f.tables,
                                       .a = device_fixture_poly(a, 1, basis_q(level)),
                                       .a_batch_stride = level + 1,
                                       .batch_count = 2,
                                       .keys = entries,
                                       .key_count = 2,
                                       .uniform = {.key = 0, .galois_element = 3},
                                       .scratch = scratch};
    const uint64_t bytes = 2 * poly_bytes(basis_qp(level));
    const uint32_t teams[3] = {threads, 2, 17}; /* the last is wider than there are limbs */
    const uint32_t team_count = now.switches_seen++ % 16 ? 1 : 3;
    for (uint32_t t = 0; t < team_count; t++) {
        set_team(teams[t]);
        args.items = args.items_host = NULL, args.is_sum = 0;
        compare(KERNEL_SWITCH_PRODUCT, &args, &args.out, 2 * bytes);
        args.items = args.items_host = items;
        compare(KERNEL_SWITCH_PRODUCT, &args, &args.out, 2 * bytes);
        args.items = args.items_host = sum, args.is_sum = 1;
        compare(KERNEL_SWITCH_PRODUCT, &args, &args.out, bytes);
        for (uint32_t with_rescale = 0; with_rescale <= (level > 0); with_rescale++)
            for (uint32_t kept = 0; kept <= 2; kept++) {
                const kernel_basis down = basis_q(level - with_rescale);
                kernel_key_switch_args whole = {
                    .tables = now.f.tables,
                    .out = device_fixture_poly(NULL, 2, down),
                    .a = args.a,
                    .add = device_fixture_poly(kept ? a : NULL, kept, basis_q(level)),
                    .key = kept == 2 && with_rescale, /* the one that is absent */
                    .galois_element = kept == 1 ? 5 : 1,
                    .batch_count = 2 - with_rescale,
                    .out_batch_stride = 2 * basis_limb_count(down),
                    .a_batch_stride = level + 1,
                    .add_batch_stride = 0,
                    .with_rescale = with_rescale,
                    .keys = entries,
                    .key_count = 2,
                    .scratch = scratch};
                compare(KERNEL_KEY_SWITCH, &whole, &whole.out.words,
                        whole.batch_count * 2 * poly_bytes(down));
            }
    }
    set_team(threads);
    free(key), free(narrow), free(scratch);
}

/* one polynomial under three keys, one of them absent, to two outs; by teams that take whole limbs and by
 * ones too wide for that */
static void check_hoisted(uint64_t *a, uint32_t level, uint32_t key_level, uint32_t pattern) {
    const uint32_t key_digits = params_digit_count(now.f.params, key_level), threads = team_width();
    uint64_t *key = poly(basis_qp(key_level), 4 * key_digits, pattern);
    uint64_t *scratch = memory(hoisted_switch_scratch(now.f.params, level + 1, 2) * now.f.n * 8);
    const uint64_t key_words = 2 * key_digits * poly_bytes(basis_qp(key_level)) / 8;
    uint64_t *narrow = narrow_key(key, basis_qp(key_level), 4 * key_digits);
    const bool is_narrow = now.isa == CPU_ISA_AVX512 && now.switches_seen % 2;
    const uint64_t *at = is_narrow ? narrow : key;
    const uint32_t layout = is_narrow ? KEY_NARROW : KEY_WORDS;
    const key_table_entry entries[3] = {{(uint64_t)(uintptr_t)at, key_level + 1, layout},
                                        {0, key_level + 1, layout},
                                        {(uint64_t)(uintptr_t)(at + key_words), key_level + 1, layout}};
    const key_product_item items[4] = {{0, 0, 5, 0}, {0, 2, 25, 1}, {0, 1, 3, 1}, {0, 0, 2 * now.f.n - 1, 1}};
    const uint32_t teams[3] = {threads, 2, 7};
    for (uint32_t t = 0; t < (now.switches_seen % 16 == 1 ? 3 : 1); t++)
        for (uint32_t kept = 0; kept < 2; kept++) {
            kernel_hoisted_switch_args args = {
                .tables = now.f.tables,
                .out = device_fixture_poly(NULL, 2, basis_q(level)),
                .a = device_fixture_poly(a, 1, basis_q(level)),
                .add = device_fixture_poly(kept ? a + poly_bytes(basis_q(level)) / 8 : NULL, kept,
                                           basis_q(level)),
                .out_count = 1 + kept,
                .out_batch_stride = 2 * (level + 1),
                .keys = entries,
                .key_count = 3,
                .items = items,
                .items_host = items,
                .item_count = kept ? 4 : 1,
                .scratch = scratch};
            set_team(teams[t]);
            compare(KERNEL_HOISTED_SWITCH, &args, &args.out.words,
                    args.out_count * 2 * poly_bytes(basis_q(level)));
        }
    set_team(threads);
    free(key), free(narrow), free(scratch);
}

static void check_keyswitch(uint32_t level, uint32_t pattern) {
    const uint32_t key_level = now.f.params->q_count - 1;
    uint64_t *a = poly(basis_q(level), 2, pattern), *digits = check_mod_up(a, level);
    uint64_t *sum = check_key_product(a, digits, level, key_level, pattern);
    check_mod_down(sum, a, level, 0);
    fill(sum, basis_qp(level), 4, pattern);
    check_mod_down(sum, a, level, 0);
    if (level > 0) {
        check_mod_down(sum, a, level, 1);
        uint64_t *scratch = memory(2 * poly_bytes(basis_q(level)));
        kernel_rescale_args args = {now.f.tables, device_fixture_poly(NULL, 2, basis_q(level - 1)),
                                    device_fixture_poly(a, 2, basis_q(level)), scratch};
        args.a.component_stride = level + 1;
        compare(KERNEL_RESCALE, &args, &args.out.words, 2 * poly_bytes(basis_q(level - 1)));
        kernel_multiply_rescale_args product = {
            .tables = now.f.tables,
            .out = device_fixture_poly(NULL, 2, basis_q(level - 1)),
            .a = device_fixture_poly(a, 2, basis_q(level)),
            .b = device_fixture_poly(poly(basis_q(level), 1, pattern), 1, basis_q(level)),
            .scratch = scratch,
        };
        compare(KERNEL_MULTIPLY_RESCALE, &product, &product.out.words, 2 * poly_bytes(basis_q(level - 1)));
        free(product.b.words), free(scratch);
    }
    if (now.f.params->log_n <= 13 && (pattern == 2 || pattern >= PATTERN_RANDOM))
        check_switches(a, level, key_level, pattern), check_hoisted(a, level, key_level, pattern);
    free(a), free(digits), free(sum);
}

static void check_diagonals(uint32_t pattern) {
    const kernel_basis qp = basis_qp(now.f.params->q_count - 1);
    uint64_t *in = poly(qp, 3 * 3, pattern), *plain = poly(qp, 1, pattern),
             *other = poly(qp, 1, PATTERN_RANDOM);
    diagonal_item items[41]; /* out 0: 37 terms; 1: none; 2: 4 */
    for (uint32_t k = 0; k < 41; k++)
        items[k] = (diagonal_item){k < 37 ? 0 : 2, k % 3, (uint64_t)(uintptr_t)(k % 5 ? plain : other)};
    for (uint32_t components = 1; components <= 3; components++) {
        kernel_diagonal_sum_args args = {now.f.tables, NULL, in, 3, 3, components, qp, items, items, 41};
        compare(KERNEL_DIAGONAL_SUM, &args, &args.out, 3ull * components * poly_bytes(qp));
    }
    const permute_item turns[4] = {{0, 1}, {1, 5}, {2, 2 * now.f.n - 1}, {1, 3}};
    kernel_permute_sum_args sum = {.tables = now.f.tables,
                                   .out = device_fixture_poly(NULL, 1, qp),
                                   .start = in,
                                   .in = in,
                                   .in_stride = basis_limb_count(qp),
                                   .in_count = 3,
                                   .items = turns,
                                   .items_host = turns,
                                   .item_count = 4};
    compare(KERNEL_PERMUTE_SUM, &sum, &sum.out.words, poly_bytes(qp));
    sum.start = NULL;
    compare(KERNEL_PERMUTE_SUM, &sum, &sum.out.words, poly_bytes(qp));
    free(in), free(plain), free(other);
}

static void check_matrix(uint32_t rows, uint32_t columns, uint32_t pattern) {
    const kernel_basis q = basis_q(now.f.params->q_count > 1 ? 1 : 0);
    const uint32_t limbs = basis_limb_count(q);
    uint64_t *in = poly(q, columns, pattern), *weight = memory((uint64_t)limbs * rows * columns * 8);
    for (uint32_t i = 0; i < limbs * rows * columns; i++) {
        const uint64_t prime = now.f.params->prime[i / (rows * columns)];
        weight[i] = pattern == PATTERN_RANDOM ? prng_below(&now.rng, prime) : prime - 1;
    }
    kernel_matrix_product_args args = {now.f.tables, NULL, in, weight, rows, columns, 1, q, NULL};
    compare(KERNEL_MATRIX_PRODUCT, &args, &args.out, rows * poly_bytes(q));
    args.bias = weight; /* a row of residues like any other: the first of each limb's rows */
    if (limbs == 1) compare(KERNEL_MATRIX_PRODUCT, &args, &args.out, rows * poly_bytes(q));
    free(in), free(weight);
}

static uint64_t packed_bytes(kernel_basis basis, uint32_t components) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < basis_limb_count(basis); i++) {
        const uint32_t prime = basis_prime(basis, i, now.f.params->q_count);
        bytes += ((uint64_t)context_ntt(now.f.context, prime)->m.bits * now.f.n + 127) / 128 * 16;
    }
    return bytes * components;
}

/* the verdict is part of what both versions must agree on */
static void compare_verdict(kernel_id kernel, const void *args, uint32_t **slot) {
    cpu_isa used = CPU_ISA_SCALAR;
    const cpu_kernel vector = cpu_kernel_find(kernel, now.isa, &used);
    uint32_t expected = 8, actual = 8; /* or-ed into */
    *slot = &expected;
    cpu_kernel_find(kernel, CPU_ISA_SCALAR, NULL)(args);
    *slot = &actual;
    vector(args);
    assert_int_equal(expected, actual);
    now.is_seen[kernel] |= used == now.isa;
}

static void check_unpack(uint8_t *packed, uint64_t bytes, kernel_basis basis) {
    uint32_t verdict = 0;
    kernel_unpack_args args = {now.f.tables, device_fixture_poly(NULL, 2, basis), packed, bytes, &verdict};
    compare(KERNEL_UNPACK, &args, &args.out.words, 2 * poly_bytes(basis));
    args.out.words = memory(2 * poly_bytes(basis));
    compare_verdict(KERNEL_UNPACK, &args, &args.verdict);
    free(args.out.words);
}

static void check_ingest(uint32_t pattern) {
    const kernel_basis qp = basis_qp(now.f.params->q_count - 1);
    const uint64_t bytes = packed_bytes(qp, 2);
    uint64_t *a = poly(qp, 2, pattern);
    uint8_t *packed = memory(bytes), seed[32];
    kernel_pack_args pack = {now.f.tables, packed, bytes, device_fixture_poly(a, 2, qp)};
    cpu_kernel_find(KERNEL_PACK, CPU_ISA_SCALAR, NULL)(&pack);
    check_unpack(packed, bytes, qp);
    packed[prng_below(&now.rng, bytes)] ^= (uint8_t)(1u << prng_below(&now.rng, 8));
    check_unpack(packed, bytes, qp);
    for (uint64_t i = 0; i < bytes; i++) packed[i] = (uint8_t)prng_u64(&now.rng);
    check_unpack(packed, bytes, qp);
    uint32_t verdict = 0;
    kernel_check_nonzero_args nonzero = {now.f.tables, device_fixture_poly(a, 1, qp), &verdict};
    compare_verdict(KERNEL_CHECK_NONZERO, &nonzero, &nonzero.verdict);
    memset(a, 0, poly_bytes(qp));
    compare_verdict(KERNEL_CHECK_NONZERO, &nonzero, &nonzero.verdict);
    a[prng_below(&now.rng, poly_bytes(qp) / 8)] = (uint64_t)1 << prng_below(&now.rng, 28);
    compare_verdict(KERNEL_CHECK_NONZERO, &nonzero, &nonzero.verdict);
    for (uint32_t i = 0; i < sizeof seed; i++) seed[i] = (uint8_t)prng_u64(&now.rng);
    kernel_expand_args expand = {now.f.tables, device_fixture_poly(NULL, 1, qp), seed, 2, 7};
    compare(KERNEL_EXPAND, &expand, &expand.out.words, poly_bytes(qp));
    expand.out = device_fixture_poly(NULL, 3, qp);
    compare(KERNEL_EXPAND, &expand, &expand.out.words, 3 * poly_bytes(qp));
    free(a), free(packed);
}

static void check_set(uint32_t patterns) {
    const uint32_t level = now.f.params->q_count - 1;
    for (uint32_t pattern = 0; pattern < patterns; pattern++) {
        check_pointwise(pattern);
        check_keyswitch(level, pattern);
        if (level > 1) check_keyswitch(level / 2, pattern);
        if (pattern == 2 || pattern == PATTERN_RANDOM) {
            check_diagonals(pattern);
            check_matrix(6, 19, pattern);
        }
    }
    if (patterns < PATTERN_COUNT) {
        check_pointwise(PATTERN_RANDOM);
        check_pointwise(PATTERN_GROWTH);
        check_keyswitch(level, PATTERN_RANDOM);
    }
    check_ingest(2);
    check_ingest(PATTERN_RANDOM);
    check_automorphisms();
    check_in_place(KERNEL_NTT_FORWARD, basis_qp(level));
    check_in_place(KERNEL_NTT_INVERSE, basis_qp(level));
}

static void every_kernel(cpu_isa isa) {
    static const struct {
        uint32_t log_n, q_count, p_count, digit_size, q0, q, p, patterns;
    } sets[] = {
#ifdef AVX512_DEFINED /* slow: few sets, every kind of pass */
        {10, 4, 1, 1, 50, 50, 50, 3}, {11, 5, 2, 2, 50, 30, 50, 1}, {10, 9, 9, 9, 50, 48, 50, 1},
        {10, 8, 4, 4, 50, 45, 50, 1}, {12, 3, 3, 3, 38, 28, 50, 0}, {13, 2, 1, 1, 50, 40, 50, 0},
        {10, 3, 2, 2, 50, 14, 50, 1},
#else
        {10, 4, 1, 1, 50, 50, 50, 2},
        {10, 10, 9, 9, 50, 50, 50, 5},
        {11, 5, 2, 2, 50, 30, 50, PATTERN_COUNT},
        {12, 4, 1, 1, 38, 28, 38, 4},
        {10, 6, 1, 1, 50, 50, 50, PATTERN_COUNT},
        {10, 9, 1, 1, 50, 49, 50, PATTERN_COUNT},
        {13, 4, 1, 1, 40, 30, 50, 0},
        {10, 8, 4, 4, 50, 45, 50, PATTERN_COUNT},
        {13, 3, 3, 3, 50, 50, 50, 0},
        {14, 3, 2, 2, 50, 40, 50, 0},
        {15, 2, 2, 2, 50, 50, 50, 0},
        {16, 2, 1, 1, 50, 50, 50, 0},
        /* the smallest primes that a ring has beside the largest: what is converted is 2^36 times its target
         */
        {10, 3, 1, 1, 50, 14, 50, 3},
        {11, 5, 4, 4, 14, 50, 50, 1},
        {10, 4, 2, 2, 50, 15, 50, 1},
#endif
    };
    cpu_isa best = CPU_ISA_SCALAR;
    assert_int_equal(cpu_isa_choose(&best, NULL, NULL), CKKS_OK);
#ifdef AVX512_DEFINED
    best = CPU_ISA_AVX512; /* test_cpu_avx512_defined: any machine runs them */
#endif
    if (best < isa) {
        print_message("skipped: this machine has no %s\n", cpu_isa_name(isa));
        skip();
    }
    memset(&now, 0, sizeof now);
    now.isa = isa;
    prng_init(&now.rng, 11);
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        const ckks_params p = fixture_params_bits(sets[i].log_n, sets[i].q_count, sets[i].p_count,
                                                  sets[i].digit_size, sets[i].q0, sets[i].q, sets[i].p);
        device_fixture_open(&now.f, fixture_context_of(&p), 2);
        set_team(i == 0 ? 3 : 1); /* the first set also shows that pieces tile a launch */
        check_set(PATTERNS_ARE_FEW && sets[i].patterns > 1 ? 1 : sets[i].patterns);
        device_fixture_close(&now.f);
    }
    set_team(1);
    uint32_t kernels = 0;
    for (uint32_t k = 0; k < KERNEL_COUNT; k++) kernels += now.is_seen[k];
    print_message("%s: %u kernels, %llu launches, every word equal\n", cpu_isa_name(isa), kernels,
                  (unsigned long long)now.launches);
    assert_true(kernels >= 19);
}

static void every_avx512_kernel_writes_the_scalar_words(void **state) {
    (void)state;
    every_kernel(CPU_ISA_AVX512);
}

#ifndef AVX512_DEFINED
static void every_avx2_kernel_writes_the_scalar_words(void **state) {
    (void)state;
    every_kernel(CPU_ISA_AVX2);
}

static void transforms_for_host_code_write_the_scalar_words(void **state) {
    (void)state;
    static const uint32_t log_n[] = {10, 13, 16}, bits[] = {50, 30, 50};
    for (size_t i = 0; i < sizeof log_n / sizeof *log_n; i++) {
        const ckks_params p = fixture_params_bits(log_n[i], 2, 1, 1, 50, bits[i], 50);
        device_fixture_open(&now.f, fixture_context_of(&p), 1);
        prng_init(&now.rng, i);
        for (uint32_t prime = 0; prime < 3; prime++) {
            const ntt_table *t = context_ntt(now.f.context, prime);
            const size_t bytes = (size_t)now.f.n * sizeof(uint64_t);
            uint64_t *a = memory(bytes), *expected = memory(bytes), *actual = memory(bytes);
            fixture_random_words(a, now.f.n, t->m.value, &now.rng);
            ntt_forward_scalar(expected, a, t);
            transform_forward(actual, a, t);
            assert_memory_equal(actual, expected, bytes);
            transform_inverse(actual, actual, t);
            assert_memory_equal(actual, a, bytes);
            free(a), free(expected), free(actual);
        }
        device_fixture_close(&now.f);
    }
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
#ifndef AVX512_DEFINED
        cmocka_unit_test(transforms_for_host_code_write_the_scalar_words),
        cmocka_unit_test(every_avx2_kernel_writes_the_scalar_words),
#endif
        cmocka_unit_test(every_avx512_kernel_writes_the_scalar_words),
    };
    return cmocka_run_group_tests_name("cpu vector kernels", tests, NULL, NULL);
}
