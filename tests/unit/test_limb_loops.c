/*
 * The inner loops of encoding, encryption and decryption: every instruction set writes the words of the
 * scalar ones, which other tests hold against the definitions, and the doubles bit for bit. What this machine
 * lacks is skipped and says so.
 */
#include "kernels/scheme/encoder.h"
#include "kernels/scheme/keys.h"
#include "kernels/scheme/limb_loops_internal.h"
#include "kernels/scheme/seed_stream.h"
#include "tests/support/fixtures.h"

#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void *create(size_t count, size_t size) {
    void *p = calloc(count, size);
    assert_non_null(p);
    return p;
}

static bool machine_has(cpu_isa isa) {
    cpu_isa chosen;
#ifdef AVX512_DEFINED /* test_limb_avx512_defined: any machine runs it */
    if (isa == CPU_ISA_AVX512) return true;
#endif
    return cpu_isa_choose(&chosen, isa == CPU_ISA_AVX512 ? "avx512" : "avx2", NULL) == CKKS_OK;
}

/* one prime of one ring with room for any operands */
typedef struct bench {
    const limb_loops *loops;
    ckks_context *context;
    const ntt_table *t;
    size_t n;
    uint64_t q;
    prng r;
    uint64_t *a, *b, *c, *d, *expected, *actual;
    uint8_t *bytes;
    int8_t *small;
    double *x;
} bench;

static void bench_open(bench *s, const limb_loops *loops, uint32_t log_n, uint32_t bits, uint64_t seed) {
    const ckks_params p = fixture_params_bits(log_n, 1, 1, 1, bits, bits, bits > 45 ? 50 : bits + 3);
    *s = (bench){.loops = loops, .context = fixture_context_of(&p), .n = (size_t)1 << log_n};
    s->t = context_ntt(s->context, 0);
    s->q = s->t->m.value;
    prng_init(&s->r, seed);
    uint64_t **const words[] = {&s->a, &s->b, &s->c, &s->d, &s->expected, &s->actual};
    for (size_t i = 0; i < 6; i++) *words[i] = create(s->n, 8);
    s->bytes = create(s->n, 16), s->small = create(s->n, 1), s->x = create(s->n, 8);
}
static void bench_close(bench *s) {
    uint64_t *const words[] = {s->a, s->b, s->c, s->d, s->expected, s->actual};
    for (size_t i = 0; i < 6; i++) free(words[i]);
    free(s->bytes), free(s->small), free(s->x);
    context_destroy(s->context);
}

/* pattern FIXTURE_PATTERNS and above: random */
static void fill(bench *s, uint64_t *words, uint32_t pattern) {
    if (pattern < FIXTURE_PATTERNS)
        fixture_adversarial_words(words, s->n, s->q, pattern);
    else
        fixture_random_words(words, s->n, s->q, &s->r);
}
static void fill_all(bench *s, uint32_t pattern) {
    fill(s, s->a, pattern), fill(s, s->b, pattern * 5 % 11), fill(s, s->c, pattern * 3 % 11);
    fill(s, s->d, pattern * 7 % 11);
    for (size_t i = 0; i < 16 * s->n; i++) /* ones throughout, alternating, random */
        s->bytes[i] = pattern == 0 ? 0 : pattern == 1 ? 0xFF : (uint8_t)prng_u64(&s->r);
    for (size_t i = 0; i < s->n; i++)
        s->small[i] = pattern == 0 ? -128 : pattern == 1 ? 127 : (int8_t)prng_below(&s->r, 256);
}

static void assert_same(const bench *s, const char *what, uint32_t pattern) {
    for (size_t i = 0; i < s->n; i++)
        if (s->expected[i] != s->actual[i])
            fail_msg("%s, N = %zu, q = %llu, pattern %u: word %zu is %llx, expected %llx", what, s->n,
                     (unsigned long long)s->q, pattern, i, (unsigned long long)s->actual[i],
                     (unsigned long long)s->expected[i]);
}

static void each_word_loop(bench *s, uint32_t pattern) {
    const limb_loops *ref = &limb_loops_scalar, *fast = s->loops;
    const modulus *m = &s->t->m;
    fill_all(s, pattern);
    ref->forward(s->expected, s->a, s->t), fast->forward(s->actual, s->a, s->t);
    assert_same(s, "forward", pattern);
    ref->forward_small(s->expected, s->small, s->t), fast->forward_small(s->actual, s->small, s->t);
    assert_same(s, "forward_small", pattern);
    ref->inverse_centred((double *)(void *)s->expected, s->a, s->t);
    fast->inverse_centred((double *)(void *)s->actual, s->a, s->t);
    for (size_t i = 0; i < s->n; i++) /* numbers: a vector's zero may be negative */
        assert_true(((double *)(void *)s->expected)[i] == ((double *)(void *)s->actual)[i]);
    ref->reduce_wide(s->expected, s->bytes, s->n, m), fast->reduce_wide(s->actual, s->bytes, s->n, m);
    assert_same(s, "reduce_wide", pattern);
    ref->multiply(s->expected, s->a, s->b, s->n, m), fast->multiply(s->actual, s->a, s->b, s->n, m);
    assert_same(s, "multiply", pattern);
    for (uint32_t with = 0; with < 2; with++) {
        const uint64_t *plus = with ? s->c : NULL;
        memcpy(s->expected, s->d, s->n * 8), memcpy(s->actual, s->d, s->n * 8);
        ref->subtract_wide_product(s->expected, s->bytes, s->b, plus, s->n, m);
        fast->subtract_wide_product(s->actual, s->bytes, s->b, plus, s->n, m);
        assert_same(s, "subtract_wide_product", pattern);
        ref->add_product(s->expected, s->a, s->b, plus, s->n, m);
        fast->add_product(s->actual, s->a, s->b, plus, s->n, m);
        assert_same(s, "add_product", pattern);
        ref->decrypt(s->expected, s->a, s->b, plus, s->d, s->n, m);
        fast->decrypt(s->actual, s->a, s->b, plus, s->d, s->n, m);
        assert_same(s, "decrypt", pattern);
    }
    const uint64_t factors[] = {0, 1, s->q - 1, s->q / 2, prng_below(&s->r, s->q)};
    for (size_t i = 0; i < 5; i++) {
        ref->add_scaled(s->expected, s->a, factors[i], s->n, m);
        fast->add_scaled(s->actual, s->a, factors[i], s->n, m);
        assert_same(s, "add_scaled", pattern);
    }
}

static void each_integer_size(bench *s) {
    for (int exponent = 0; exponent <= 63; exponent++) {
        const double bound = ldexp(1, exponent);
        for (size_t i = 0; i < s->n; i++) s->x[i] = rint(prng_symmetric(&s->r) * bound);
        s->x[0] = -0.0, s->x[1] = nextafter(bound, 0), s->x[2] = -s->x[1], s->x[3] = 0;
        if (exponent < 53) s->x[1] = bound - 1, s->x[2] = 1 - bound;
        limb_loops_scalar.forward_integers(s->expected, s->x, s->t);
        s->loops->forward_integers(s->actual, s->x, s->t);
        assert_same(s, "forward_integers", (uint32_t)exponent);
        for (size_t i = 0; i < s->n; i++) s->x[i] = exponent < 63 ? bound * (i % 2 ? 1 : -1) : -(double)s->q;
        memcpy(s->actual, s->x, s->n * 8);
        limb_loops_scalar.forward_integers(s->expected, s->x, s->t);
        s->loops->forward_integers(s->actual, (double *)(void *)s->actual, s->t); /* in place */
        assert_same(s, "forward_integers", (uint32_t)exponent);
    }
    for (size_t i = 0; i < s->n; i++) s->x[i] = -0.0;
    s->loops->forward_integers(s->actual, s->x, s->t);
    for (size_t i = 0; i < s->n; i++) assert_int_equal(s->actual[i], 0);
}

static void word_loops(cpu_isa isa) {
#ifdef AVX512_DEFINED /* slow */
    static const uint32_t sizes[][2] = {{10, 14}, {10, 30}, {10, 50}, {11, 50}, {12, 40}};
#else
    static const uint32_t sizes[][2] = {{10, 14}, {10, 16}, {10, 20}, {10, 30}, {10, 40}, {10, 50},
                                        {11, 50}, {12, 46}, {13, 28}, {13, 50}, {15, 50}};
#endif
    if (!machine_has(isa)) {
        print_message("this machine has no %s\n", cpu_isa_name(isa));
        skip();
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        bench s;
        bench_open(&s, limb_loops_of(isa), sizes[i][0], sizes[i][1], i + 1);
        const uint32_t rounds = s.n > 2048 ? 3 : 1;
        for (uint32_t pattern = 0; pattern < FIXTURE_PATTERNS + 4; pattern += rounds)
            each_word_loop(&s, pattern);
        if (s.n <= 2048) each_integer_size(&s);
        bench_close(&s);
    }
}

/* ---- the sampler ---- */

static void samples(cpu_isa isa) {
    enum { COUNT = 1000 };
    if (!machine_has(isa)) skip();
    uint8_t *draws = create(COUNT, 8);
    int8_t expected[COUNT], actual[COUNT];
    prng r;
    prng_init(&r, 5);
    for (size_t i = 0; i < 8 * (size_t)COUNT; i++) draws[i] = (uint8_t)prng_u64(&r);
    memset(draws, 0xFF, 64), memset(draws + 64, 0, 64);
    for (int bit = 0; bit < 64; bit++) { /* one bit at a time */
        memset(draws + 128 + 8 * bit, 0, 8);
        draws[128 + 8 * bit + bit / 8] = (uint8_t)(1u << (bit % 8));
    }
    const size_t counts[] = {COUNT, 992, 512, 33, 32, 31, 8, 1, 0};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        memset(actual, 99, sizeof actual), memset(expected, 99, sizeof expected);
        limb_loops_scalar.count_errors(expected, draws, counts[i]);
        limb_loops_of(isa)->count_errors(actual, draws, counts[i]);
        assert_memory_equal(actual, expected, COUNT);
    }
    free(draws);
}

/* ---- the encoder ---- */

static void assert_bits(const double *actual, const double *expected, size_t n, const char *what) {
    for (size_t i = 0; i < n; i++) {
        uint64_t a, e;
        memcpy(&a, &actual[i], 8), memcpy(&e, &expected[i], 8);
        if (a != e) fail_msg("%s: number %zu is %a, expected %a", what, i, actual[i], expected[i]);
    }
}

static void embeddings(cpu_isa isa) {
    if (!machine_has(isa)) skip();
    ckks_context *context = fixture_context(15, 1, 1, 1);
    const uint32_t root_count = 1u << 14;
    const double *roots = context_encoder_roots(context);
    const limb_loops *ref = &limb_loops_scalar, *fast = limb_loops_of(isa);
    double *in = create(4 * root_count, 8), *copy = create(2 * root_count, 8);
    double *expected = create(2 * root_count, 8), *actual = create(2 * root_count, 8);
    prng r;
    prng_init(&r, 8);
    for (uint32_t count = 1; count <= root_count; count *= 2)
        for (int kind = 0; kind < 3; kind++) {
            for (uint32_t i = 0; i < 2 * count; i++)
                in[i] = kind == 0   ? prng_symmetric(&r)
                        : kind == 1 ? ldexp(prng_symmetric(&r), (int)prng_below(&r, 1200) - 600)
                                    : (double)(int)prng_below(&r, 3) - 1;
            memcpy(copy, in, 16 * (size_t)count);
            ref->embed(expected, expected + count, in, in + count, count, roots, root_count);
            fast->embed(actual, actual + count, copy, copy + count, count, roots, root_count);
            assert_bits(actual, expected, 2 * (size_t)count, "embed");
            memcpy(in, expected, 16 * (size_t)count), memcpy(copy, expected, 16 * (size_t)count);
            ref->embed_inverse(expected, expected + count, in, in + count, count, roots, root_count);
            fast->embed_inverse(actual, actual + count, copy, copy + count, count, roots, root_count);
            assert_bits(actual, expected, 2 * (size_t)count, "embed_inverse");
        }
    free(in), free(copy), free(expected), free(actual);
    context_destroy(context);
}

static void roundings(cpu_isa isa) {
    enum { COUNT = 1000 };
    if (!machine_has(isa)) skip();
    double *in = create(COUNT, 8), *expected = create(COUNT, 8), *actual = create(COUNT, 8);
    prng r;
    prng_init(&r, 9);
    for (int round = 0; round < 200; round++) {
        const size_t n = round < 100 ? COUNT : prng_below(&r, 20);
        double most[2], limit = ldexp(1, round % 80);
        for (size_t i = 0; i < COUNT; i++) in[i] = ldexp(prng_symmetric(&r), (int)prng_below(&r, 80) - 3);
        for (size_t i = 0; i + 4 < n; i += 5) in[i] = rint(in[i]) + 0.5; /* ties */
        if (n && round % 10 == 1) in[prng_below(&r, n)] = NAN;
        if (n && round % 10 == 2) in[prng_below(&r, n)] = -INFINITY;
        if (n && round % 10 == 3) in[n - 1] = limit, in[0] = -limit;
        memcpy(expected, in, 8 * n), memcpy(actual, in, 8 * n);
        const bool fits = limb_loops_scalar.round_scaled(expected, n, 1.5, limit, &most[0]);
        assert_int_equal(limb_loops_of(isa)->round_scaled(actual, n, 1.5, limit, &most[1]), fits);
        for (size_t i = 0; i < n; i++) assert_true(expected[i] == actual[i] || isnan(expected[i]));
        assert_true(most[0] == most[1]);
    }
    free(in), free(expected), free(actual);
}

/* words and doubles of whole calls, as each instruction set leaves them */
static void calls(cpu_isa isa) {
    if (!machine_has(isa)) skip();
    static const uint32_t shapes[][4] = {/* log N, limbs, q bits, slots */
                                         {10, 1, 40, 512},  {10, 2, 30, 512}, {10, 3, 30, 64},
                                         {11, 6, 40, 1024}, {10, 5, 50, 1},   {10, 4, 28, 8},
                                         {13, 5, 30, 4096}, {12, 9, 50, 2048}};
    prng r;
    prng_init(&r, 12);
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
        const uint32_t limbs = shapes[k][1], slots = shapes[k][3];
        const ckks_params p = fixture_params_bits(shapes[k][0], limbs, 1, 1, 50, shapes[k][2], 50);
        ckks_context *context = fixture_context_of(&p);
        const size_t n = params_n(&p), words = (limbs + 1) * n;
        double *re = create(slots, 8), *im = create(slots, 8),
               *out[2] = {create(2 * slots, 8), create(2 * slots, 8)};
        uint64_t *made[2] = {create(words, 8), create(words, 8)};
        for (uint32_t i = 0; i < slots; i++) re[i] = prng_symmetric(&r), im[i] = prng_symmetric(&r);
        /* from far below the first prime to just below Q: near integers, far ones, and mixtures in one block
         */
        for (int bits = 20; bits < 50 + (int)((limbs - 1) * shapes[k][2]) - 2; bits += 7) {
            const double scale = ldexp(1.37, bits);
            for (int which = 0; which < 2; which++) {
                limb_loops_force(which ? isa : CPU_ISA_SCALAR);
                assert_int_equal(encoder_encode(made[which], context, re, bits % 2 ? im : NULL, slots,
                                                limbs - 1, true, scale, NULL),
                                 CKKS_OK);
                assert_int_equal(encoder_decode(out[which], out[which] + slots, context, made[which], slots,
                                                limbs - 1, scale, NULL),
                                 CKKS_OK);
            }
            assert_memory_equal(made[1], made[0], words * 8);
            assert_bits(out[1], out[0], 2 * (size_t)slots, "decoded");
            for (uint32_t i = 0; i < slots; i++)
                assert_true(fabs(out[1][i] - re[i]) < fmax(ldexp(1, 16 - bits), 0x1p-40));
        }
        limb_loops_force(CPU_ISA_COUNT);
        free(re), free(im), free(out[0]), free(out[1]), free(made[0]), free(made[1]);
        context_destroy(context);
    }
}

/* coefficients at and next to every border between near and far, and residues that belong to no small integer
 */
static void borders(cpu_isa isa) {
    if (!machine_has(isa)) skip();
    for (uint32_t limbs = 1; limbs <= 4; limbs++) {
        const ckks_params p = fixture_params_bits(10, limbs, 1, 1, 50, 30 + 10 * (limbs % 2), 50);
        ckks_context *context = fixture_context_of(&p);
        const size_t n = params_n(&p);
        uint64_t *coefficients = create(limbs * n, 8), *words = create(limbs * n, 8);
        double *out[2] = {create(n, 8), create(n, 8)};
        prng r;
        prng_init(&r, limbs);
        const __int128 q0 = (__int128)p.prime[0], pair = limbs > 1 ? q0 * (__int128)p.prime[1] : q0;
        for (int kind = 0; kind < 3; kind++) {
            for (size_t k = 0; k < n; k++) {
                const __int128 edge = kind == 0 ? q0 / 2 : pair / 2;
                const __int128 x = (k % 2 ? edge : -edge) + (__int128)prng_below(&r, 5) - 2;
                for (uint32_t i = 0; i < limbs; i++) {
                    const __int128 q = (__int128)p.prime[i];
                    coefficients[i * n + k] = (uint64_t)((x % q + q) % q);
                }
                /* one limb of one coefficient off by one: no integer near */
                if (kind == 2 && limbs > 2 && k == n / 2) coefficients[2 * n + k] ^= 1;
            }
            for (uint32_t i = 0; i < limbs; i++)
                ntt_forward_scalar(words + i * n, coefficients + i * n, context_ntt(context, i));
            for (int which = 0; which < 2; which++) {
                limb_loops_force(which ? isa : CPU_ISA_SCALAR);
                assert_int_equal(encoder_decode(out[which], out[which] + n / 2, context, words,
                                                (uint32_t)n / 2, limbs - 1, 0x1.7p41, NULL),
                                 CKKS_OK);
            }
            assert_bits(out[1], out[0], n, "decoded");
        }
        limb_loops_force(CPU_ISA_COUNT);
        free(coefficients), free(words), free(out[0]), free(out[1]);
        context_destroy(context);
    }
}

static void avx512_loops_write_the_scalar_words(void **state) {
    (void)state;
    word_loops(CPU_ISA_AVX512);
}
static void avx512_encoding_has_the_scalar_bits(void **state) {
    (void)state;
    samples(CPU_ISA_AVX512), embeddings(CPU_ISA_AVX512), roundings(CPU_ISA_AVX512);
    calls(CPU_ISA_AVX512), borders(CPU_ISA_AVX512);
}

#ifndef AVX512_DEFINED
static void avx2_loops_write_the_scalar_words(void **state) {
    (void)state;
    word_loops(CPU_ISA_AVX2);
}
static void avx2_encoding_has_the_scalar_bits(void **state) {
    (void)state;
    samples(CPU_ISA_AVX2), embeddings(CPU_ISA_AVX2), roundings(CPU_ISA_AVX2);
    calls(CPU_ISA_AVX2), borders(CPU_ISA_AVX2);
}

/* large enough to be shared: the same words from one thread and from three, and ciphertexts that decrypt */
static void a_team_writes_the_words_of_one_thread(void **state) {
    (void)state;
    enum { LOG_N = 16, LIMBS = 3 };
    ckks_context *context = fixture_context(LOG_N, LIMBS, 1, 1);
    const ckks_params *p = context_params(context);
    const size_t n = params_n(p), words = LIMBS * n;
    const uint32_t slots = params_slot_count_max(p), level = LIMBS - 1;
    double *in = create(slots, 8), *out[2] = {create(slots, 8), create(slots, 8)};
    uint64_t *plain[2] = {create(words, 8), create(words, 8)}, *cipher = create(2 * words, 8),
             *pk = create(2 * words, 8);
    uint8_t seed[SEED_BYTES] = {1};
    const key_requirement key = {KEY_PUBLIC, 0, level};
    secret_key *sk;
    prng r;
    prng_init(&r, 77);
    for (uint32_t i = 0; i < slots; i++) in[i] = prng_symmetric(&r);
    for (int which = 0; which < 2; which++) {
        omp_set_num_threads(which ? 3 : 1);
        assert_int_equal(encoder_encode(plain[which], context, in, NULL, slots, level, false, 0x1p35, NULL),
                         CKKS_OK);
        assert_int_equal(encoder_decode(out[which], NULL, context, plain[which], slots, level, 0x1p35, NULL),
                         CKKS_OK);
    }
    assert_memory_equal(plain[1], plain[0], words * 8);
    assert_bits(out[1], out[0], slots, "decoded");
    assert_int_equal(secret_key_generate(&sk, context, NULL), CKKS_OK);
    assert_int_equal(key_generate(pk, sk, &key, seed, 0, NULL), CKKS_OK);
    for (uint32_t i = 0; i <= level; i++)
        seed_expand(pk + words + i * n, (uint32_t)n, p->prime[i], seed, SEED_PUBLIC_KEY, 0, i);
    for (int which = 0; which < 2; which++) {
        if (which) {
            assert_int_equal(
                encrypt_public(cipher, cipher + words, context, pk, pk + words, plain[0], level, NULL),
                CKKS_OK);
        } else {
            assert_int_equal(encrypt_symmetric(cipher, seed, sk, plain[0], level, NULL), CKKS_OK);
            for (uint32_t i = 0; i <= level; i++)
                seed_expand(cipher + words + i * n, (uint32_t)n, p->prime[i], seed, SEED_CIPHERTEXT, 0, i);
        }
        memset(plain[1], 0, words * 8);
        assert_int_equal(decrypt(plain[1], sk, cipher, 2, level, NULL), CKKS_OK);
        assert_int_equal(encoder_decode(out[1], NULL, context, plain[1], slots, level, 0x1p35, NULL),
                         CKKS_OK);
        for (uint32_t i = 0; i < slots; i++) assert_true(fabs(out[1][i] - in[i]) < 1e-3);
    }
    secret_key_destroy(sk);
    free(in), free(out[0]), free(out[1]), free(plain[0]), free(plain[1]), free(cipher), free(pk);
    context_destroy(context);
}

static void seed_streams_of_both_libraries_are_the_same_bytes(void **state) {
    (void)state;
    const uint8_t seed[SEED_BYTES] = {3, 1, 4, 1, 5};
    static uint8_t with[4 * SEED_STREAM_BYTES_MAX], without[sizeof with], expected[sizeof with];
    uint8_t nonce[12] = {2, 0, 0, 0, 7, 0, 0, 0, 1};
    assert_int_equal(crypto_stream_chacha20_ietf(expected, sizeof expected, nonce, seed), 0);
    seed_stream a, b;
    seed_stream_open(&a, seed, 2, 7, 1), seed_stream_open(&b, seed, 2, 7, 1);
    assert_non_null(a.cipher);
    seed_stream_next(&b, without, 4096); /* libcrypto goes away in the middle of a stream */
    seed_stream_close(&b);
    for (size_t at = 0; at < sizeof with; at += SEED_STREAM_BYTES_MAX)
        seed_stream_next(&a, with + at, SEED_STREAM_BYTES_MAX);
    for (size_t at = 4096; at < sizeof without; at += 4096) seed_stream_next(&b, without + at, 4096);
    assert_memory_equal(with, expected, sizeof with);
    assert_memory_equal(without, expected, sizeof without);
    seed_stream_close(&a), seed_stream_close(&b);
}

#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(avx512_loops_write_the_scalar_words),
        cmocka_unit_test(avx512_encoding_has_the_scalar_bits),
#ifndef AVX512_DEFINED
        cmocka_unit_test(avx2_loops_write_the_scalar_words),
        cmocka_unit_test(avx2_encoding_has_the_scalar_bits),
        cmocka_unit_test(a_team_writes_the_words_of_one_thread),
        cmocka_unit_test(seed_streams_of_both_libraries_are_the_same_bytes),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
