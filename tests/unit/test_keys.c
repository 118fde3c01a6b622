/* Keys, encryption and the samplers: what they promise, measured through the secret key. */
#include "kernels/scheme/internal.h"
#include "kernels/scheme/key_internal.h"
#include "kernels/scheme/sample.h"
#include "kernels/scheme/secret_memory.h"
#include "tests/support/fixtures.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <sodium.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void *create(size_t count, size_t size) {
    void *memory = calloc(count, size);
    assert_non_null(memory);
    return memory;
}

static secret_key *key_of(const ckks_context *context) {
    secret_key *sk = NULL;
    assert_int_equal(secret_key_generate(&sk, context, NULL), CKKS_OK);
    return sk;
}

/* Coefficients of a polynomial given by residues modulo several primes (evaluation domain, list `prime`): all
 * limbs must hold the same small integers. Returns the largest magnitude; *square_sum adds up. words is
 * overwritten. */
static int64_t small_magnitude(uint64_t *words, const ckks_context *context, const uint32_t *prime,
                               uint32_t count, double *square_sum) {
    const ckks_params *p = context_params(context);
    const uint32_t n = params_n(p);
    int64_t worst = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t *limb = words + (size_t)i * n;
        ntt_inverse_scalar(limb, limb, context_ntt(context, prime[i]));
    }
    for (uint32_t k = 0; k < n; k++) {
        int64_t first = 0;
        for (uint32_t i = 0; i < count; i++) {
            const uint64_t w = words[(size_t)i * n + k], q = p->prime[prime[i]];
            const int64_t value = w > q / 2 ? -(int64_t)(q - w) : (int64_t)w;
            if (i == 0) first = value;
            assert_int_equal(value, first);
        }
        if (llabs(first) > worst) worst = llabs(first);
        *square_sum += (double)first * (double)first;
    }
    return worst;
}

static void prime_list(uint32_t *prime, const ckks_params *p, uint32_t level, bool with_p) {
    for (uint32_t i = 0; i <= level; i++) prime[i] = i;
    for (uint32_t i = 0; with_p && i < p->p_count; i++) prime[level + 1 + i] = p->q_count + i;
}

/* ---- secret key ---- */

static void a_secret_is_ternary_and_survives_export_and_import(void **state) {
    (void)state;
    ckks_context *context = fixture_context(12, 3, 1, 1);
    const uint32_t n = 1u << 12;
    secret_key *sk = key_of(context), *again = NULL, *other = key_of(context);
    int8_t *s = create(n, 1);
    secret_key_export(sk, s);
    uint32_t count[3] = {0};
    for (uint32_t i = 0; i < n; i++) {
        assert_in_range(s[i] + 1, 0, 2);
        count[s[i] + 1]++;
    }
    for (int i = 0; i < 3; i++) assert_in_range(count[i], n / 3 - 250, n / 3 + 250); /* eight deviations */
    assert_int_equal(secret_key_import(&again, context, s, secret_key_lineage(sk), NULL), CKKS_OK);
    assert_memory_equal(secret_key_lineage(again), secret_key_lineage(sk), LINEAGE_BYTES);
    assert_memory_not_equal(secret_key_lineage(other), secret_key_lineage(sk), LINEAGE_BYTES);
    assert_ptr_equal(secret_key_context(again), context);
    for (uint32_t i = 0; i < 4; i++)
        assert_memory_equal(secret_key_evaluations(again, i), secret_key_evaluations(sk, i), 8 * n);
    secret_key_destroy(again), secret_key_destroy(sk), secret_key_destroy(other), secret_key_destroy(NULL);
    const int8_t bad[] = {2, -2, 127, -128, 3, -3};
    for (size_t i = 0; i < sizeof bad; i++) {
        ckks_error err = {0};
        s[n - 1] = bad[i];
        assert_int_equal(secret_key_import(&again, context, s, (const uint8_t[LINEAGE_BYTES]){0}, &err),
                         CKKS_MALFORMED);
        assert_string_equal(err.field, "coefficients");
        assert_null(again);
    }
    free(s);
    context_destroy(context);
}

/* runs `touch` in a child: the signal that ends it, or 0 */
static int signal_of(void (*touch)(volatile uint8_t *), volatile uint8_t *at) {
    fflush(stdout);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL), signal(SIGBUS, SIG_DFL), signal(SIGABRT, SIG_DFL);
        touch(at);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}
static void read_byte(volatile uint8_t *at) {
    (void)*at;
}

static void secrets_end_at_a_guard_page_and_are_unmapped_when_freed(void **state) {
    (void)state;
    const size_t bytes = 4096;
    uint8_t *memory = secret_allocate(bytes);
    assert_non_null(memory);
    assert_int_equal((uintptr_t)memory % 64, 0);
    assert_int_equal(signal_of(read_byte, memory + bytes - 1), 0);
    assert_int_equal(signal_of(read_byte, memory + bytes), SIGSEGV);
    ckks_context *context = fixture_context(10, 1, 1, 1);
    secret_key *sk = key_of(context);
    uint64_t *evaluations = (uint64_t *)(uintptr_t)secret_key_evaluations(sk, 0);
    assert_int_equal(signal_of(read_byte, (uint8_t *)evaluations), 0);
    assert_int_equal(signal_of(read_byte, (uint8_t *)evaluations + 2 * 1024 * 8), SIGSEGV);
    secret_key_destroy(sk); /* libsodium wipes before it unmaps: nothing is left to read */
    assert_int_equal(signal_of(read_byte, (uint8_t *)evaluations), SIGSEGV);
    secret_free(memory);
    assert_int_equal(signal_of(read_byte, memory), SIGSEGV);
    secret_free(NULL);
    assert_null(secret_allocate(0));
    assert_null(secret_allocate(SIZE_MAX));
    context_destroy(context);
}

/* ---- samplers, on a fixed stream: the figures are the same on every run ---- */

static sampler *sampler_of(uint32_t stream) {
    static const uint8_t key[SAMPLER_KEY_BYTES] = {1, 2, 3, 4, 5};
    sampler *s = create(1, sizeof *s);
    sampler_init_key(s, key, stream);
    return s;
}

static void ternary_samples_are_uniform(void **state) {
    (void)state;
    enum { COUNT = 3 << 18 };
    sampler *s = sampler_of(0);
    int8_t *x = create(COUNT, 1);
    sample_ternary(x, COUNT, s);
    double seen[3] = {0}, pair[9] = {0}, chi = 0, chi_pair = 0;
    for (size_t i = 0; i < COUNT; i++) {
        assert_in_range(x[i] + 1, 0, 2);
        seen[x[i] + 1]++;
        if (i) pair[3 * (x[i - 1] + 1) + x[i] + 1]++;
    }
    for (int i = 0; i < 3; i++) chi += pow(seen[i] - COUNT / 3.0, 2) / (COUNT / 3.0);
    for (int i = 0; i < 9; i++) chi_pair += pow(pair[i] - COUNT / 9.0, 2) / (COUNT / 9.0);
    print_message("chi-square: %.2f of 2 degrees, pairs %.2f of 8\n", chi, chi_pair);
    assert_true(chi < 20 && chi_pair < 35); /* one in 20,000 by chance; this stream is fixed */
    free(x), free(s);
}

static void error_samples_are_centred_binomial(void **state) {
    (void)state;
    enum { COUNT = 1 << 20 };
    sampler *s = sampler_of(1);
    int8_t *x = create(COUNT, 1);
    sample_error(x, COUNT, s);
    double seen[43] = {0}, mean = 0, square = 0, neighbour = 0;
    for (size_t i = 0; i < COUNT; i++) {
        assert_in_range(x[i] + SAMPLE_ERROR_MAX, 0, 42);
        seen[x[i] + 21]++, mean += x[i], square += x[i] * x[i];
        if (i) neighbour += x[i] * x[i - 1];
    }
    /* P(k) = C(42, 21 + k) / 2^42; tails with few expected are pooled */
    double chi = 0, pooled_seen = 0, pooled = 0, binomial = 1;
    int degrees = 0;
    for (int k = 0; k <= 42; k++) {
        const double expected = COUNT * binomial / 0x1p42;
        if (expected < 20)
            pooled += expected, pooled_seen += seen[k];
        else
            chi += pow(seen[k] - expected, 2) / expected, degrees++;
        binomial = binomial * (42 - k) / (k + 1);
    }
    chi += pow(pooled_seen - pooled, 2) / pooled;
    mean /= COUNT, square /= COUNT, neighbour /= COUNT;
    print_message("chi-square %.1f of %d, mean %.4f, variance %.3f (10.5), lag 1 %.4f\n", chi, degrees, mean,
                  square, neighbour);
    assert_true(chi < degrees + 40);
    assert_true(fabs(mean) < 0.02 && fabs(square - 10.5) < 0.08 && fabs(neighbour) < 0.06);
    free(x), free(s);
}

static void samples_are_the_stated_bits_of_the_stream(void **state) {
    (void)state;
    enum { COUNT = 1500 }; /* three chunks of error bytes */
    sampler *s = sampler_of(7);
    int8_t *x = create(COUNT, 1);
    uint8_t *stream = create(COUNT, 8), nonce[12] = {7};
    crypto_stream_chacha20_ietf(stream, COUNT * 8, nonce, s->key);
    sample_error(x, COUNT, s);
    for (size_t i = 0; i < COUNT; i++) {
        int ones = 0;
        for (int b = 0; b < 42; b++) {
            const int bit = stream[8 * i + (size_t)b / 8] >> (b % 8) & 1;
            ones += b < 21 ? bit : -bit;
        }
        assert_int_equal(x[i], ones);
    }
    for (size_t i = 0; i < SAMPLER_CHUNK_BYTES; i++) assert_int_equal(s->chunk[i], 0); /* wiped after use */
    free(s);
    s = sampler_of(7);
    sample_ternary(x, COUNT, s);
    for (size_t i = 0, at = 0; i < COUNT; at++) {
        const int draw = stream[at / 4] >> (at % 4 * 2) & 3;
        if (draw != 3) assert_int_equal(x[i++], draw - 1);
    }
    for (size_t i = 0; i < SAMPLER_CHUNK_BYTES; i++) assert_int_equal(s->chunk[i], 0);
    free(x), free(stream), free(s);
}

static void system_samplers_never_repeat(void **state) {
    (void)state;
    sampler *a = create(1, sizeof *a), *b = create(1, sizeof *b);
    sampler_init(a), sampler_init(b);
    assert_memory_not_equal(a->key, b->key, SAMPLER_KEY_BYTES);
    int8_t x[256], y[256];
    sample_error(x, 256, a), sample_error(y, 256, a);
    assert_memory_not_equal(x, y, 256);
    free(a), free(b);
}

/* ---- encryption ---- */

static void symmetric_encryption_decrypts_with_fresh_noise_alone(void **state) {
    (void)state;
    ckks_context *context = fixture_context(12, 4, 1, 1);
    const ckks_params *p = context_params(context);
    const size_t n = params_n(p);
    secret_key *sk = key_of(context);
    uint64_t *plain = create(4 * n, 8), *c = create(8 * n, 8), *out = create(4 * n, 8);
    uint8_t seed[2][SEED_BYTES];
    prng r;
    prng_init(&r, 11);
    for (uint32_t level = 0; level < 4; level++) {
        uint32_t prime[4];
        double square = 0;
        prime_list(prime, p, level, false);
        fixture_random_poly(plain, p, level, false, &r);
        assert_int_equal(encrypt_symmetric(c, seed[0], sk, plain, level, NULL), CKKS_OK);
        for (uint32_t i = 0; i <= level; i++)
            seed_expand(c + (level + 1 + i) * n, (uint32_t)n, p->prime[i], seed[0], SEED_CIPHERTEXT, 0, i);
        assert_int_equal(decrypt(out, sk, c, 2, level, NULL), CKKS_OK);
        for (uint32_t i = 0; i <= level; i++)
            for (size_t k = 0; k < n; k++) {
                assert_true(c[i * n + k] < p->prime[i]);
                out[i * n + k] = mod_sub(out[i * n + k], plain[i * n + k], p->prime[i]);
            }
        const int64_t worst = small_magnitude(out, context, prime, level + 1, &square);
        assert_in_range(worst, 10, SAMPLE_ERROR_MAX);
        assert_true(fabs(square / (double)n - 10.5) < 1.5);
        assert_int_equal(encrypt_symmetric(c, seed[1], sk, plain, level, NULL), CKKS_OK);
        assert_memory_not_equal(seed[0], seed[1], SEED_BYTES);
    }
    ckks_error err = {0};
    assert_int_equal(encrypt_symmetric(c, seed[0], sk, plain, 4, &err), CKKS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "level");
    free(plain), free(c), free(out);
    secret_key_destroy(sk);
    context_destroy(context);
}

/* component 0 of the public key, component 1 expanded */
static void public_key_of(uint64_t *pk0, uint64_t *pk1, const secret_key *sk, uint32_t level,
                          uint32_t index) {
    const ckks_params *p = context_params(secret_key_context(sk));
    const key_requirement key = {KEY_PUBLIC, 0, level};
    uint8_t seed[SEED_BYTES];
    randombytes_buf(seed, sizeof seed);
    assert_int_equal(key_seeded_word_count(p, &key), (level + 1) * params_n(p));
    assert_int_equal(key_generate(pk0, sk, &key, seed, index, NULL), CKKS_OK);
    for (uint32_t i = 0; i <= level; i++)
        seed_expand(pk1 + (size_t)i * params_n(p), params_n(p), p->prime[i], seed, SEED_PUBLIC_KEY,
                    index * params_digit_count_full(p), i);
}

static void public_encryption_decrypts_within_its_noise_bound(void **state) {
    (void)state;
    ckks_context *context = fixture_context(12, 4, 2, 2);
    const ckks_params *p = context_params(context);
    const size_t n = params_n(p);
    secret_key *sk = key_of(context);
    uint64_t *pk = create(8 * n, 8), *plain = create(4 * n, 8), *c = create(8 * n, 8),
             *out = create(4 * n, 8);
    public_key_of(pk, pk + 4 * n, sk, 3, 9);
    prng r;
    prng_init(&r, 12);
    for (uint32_t level = 0; level < 4; level++) {
        uint32_t prime[4];
        double square = 0;
        prime_list(prime, p, level, false);
        fixture_random_poly(plain, p, level, false, &r);
        assert_int_equal(encrypt_public(c, c + (level + 1) * n, context, pk, pk + 4 * n, plain, level, NULL),
                         CKKS_OK);
        assert_int_equal(decrypt(out, sk, c, 2, level, NULL), CKKS_OK);
        for (uint32_t i = 0; i <= level; i++)
            for (size_t k = 0; k < n; k++)
                out[i * n + k] = mod_sub(out[i * n + k], plain[i * n + k], p->prime[i]);
        /* e v + e0 + e1 s: variance 10.5 (2N/3 + 2N/3 + ...), about 10.5 * (4N/3 + 1) */
        const double variance = 10.5 * (4.0 * (double)n / 3 + 1);
        const int64_t worst = small_magnitude(out, context, prime, level + 1, &square);
        print_message("level %u: worst %lld, deviation %.1f (%.1f)\n", level, (long long)worst,
                      sqrt(square / (double)n), sqrt(variance));
        assert_true((double)worst < 8 * sqrt(variance));
        assert_true(fabs(square / (double)n / variance - 1) < 0.2);
    }
    assert_int_equal(encrypt_public(c, c + n, context, pk, pk + 4 * n, plain, 4, NULL),
                     CKKS_INVALID_ARGUMENT);
    free(pk), free(plain), free(c), free(out);
    secret_key_destroy(sk);
    context_destroy(context);
}

static void decryption_is_c0_plus_c1_s_plus_c2_s_squared(void **state) {
    (void)state;
    ckks_context *context = fixture_context(10, 3, 1, 1);
    const ckks_params *p = context_params(context);
    const size_t n = params_n(p), component = 3 * n;
    secret_key *sk = key_of(context);
    uint64_t *c = create(3 * component, 8), *out = create(component, 8);
    prng r;
    prng_init(&r, 13);
    for (int k = 0; k < 3; k++) fixture_random_poly(c + (size_t)k * component, p, 2, false, &r);
    fixture_adversarial_words(c, n, p->prime[0], 2);
    for (uint32_t count = 2; count <= 3; count++) {
        assert_int_equal(decrypt(out, sk, c, count, 2, NULL), CKKS_OK);
        for (uint32_t i = 0; i < 3; i++)
            for (size_t k = 0; k < n; k++) {
                const uint64_t q = p->prime[i], s = secret_key_evaluations(sk, i)[k];
                const uint64_t square = (uint64_t)((uint128)s * s % q);
                uint128 sum = c[i * n + k] + (uint128)c[component + i * n + k] * s % q;
                if (count == 3) sum += (uint128)c[2 * component + i * n + k] * square % q;
                assert_int_equal(out[i * n + k], (uint64_t)(sum % q));
            }
    }
    ckks_error err = {0};
    assert_int_equal(decrypt(out, sk, c, 1, 2, &err), CKKS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "component_count");
    assert_int_equal(decrypt(out, sk, c, 4, 2, NULL), CKKS_INVALID_ARGUMENT);
    assert_int_equal(decrypt(out, sk, c, 2, 3, NULL), CKKS_INVALID_ARGUMENT);
    free(c), free(out);
    secret_key_destroy(sk);
    context_destroy(context);
}

/* ---- keys ---- */

/* s' modulo one prime, from the coefficients: by schoolbook rules, not by the permutation under test */
static void target_of(uint64_t *out, const secret_key *sk, const key_requirement *key, uint32_t prime) {
    const ckks_context *context = secret_key_context(sk);
    const ckks_params *p = context_params(context);
    const uint32_t n = params_n(p);
    const ntt_table *t = context_ntt(context, prime);
    int8_t *s = create(n, 1), *moved = create(n, 1);
    secret_key_export(sk, s);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t g = key->kind == KEY_GALOIS ? key->galois_element : 1;
        const uint32_t to = (uint32_t)((uint64_t)i * g % (2 * n));
        moved[to % n] = (int8_t)(to < n ? s[i] : -s[i]);
    }
    small_to_residues(out, moved, n, t->m.value);
    ntt_forward_scalar(out, out, t);
    for (uint32_t i = 0; key->kind == KEY_RELINEARISATION && i < n; i++)
        out[i] = mod_mul(out[i], out[i], &t->m);
    free(s), free(moved);
}

/* b + a*s - gadget must be one small polynomial in all limbs, for each digit */
static void check_key(const secret_key *sk, const key_requirement *key, uint32_t index) {
    const ckks_context *context = secret_key_context(sk);
    const ckks_params *p = context_params(context);
    const uint32_t n = params_n(p), digits = params_digit_count(p, key->level);
    const uint32_t limbs = key->level + 1 + p->p_count, full = params_digit_count_full(p);
    const uint8_t seed[SEED_BYTES] = {(uint8_t)index, 77};
    const uint64_t count = key_seeded_word_count(p, key);
    assert_int_equal(count, (uint64_t)digits * limbs * n);
    assert_int_equal(key_resident_word_count(p, key), 2 * count);
    uint64_t *words = create(count + 1, 8), *a = create(n, 8), *target = create(n, 8);
    uint32_t prime[CKKS_PRIMES_MAX];
    prime_list(prime, p, key->level, true);
    words[count] = 0xABCDEF;
    assert_int_equal(key_generate(words, sk, key, seed, index, NULL), CKKS_OK);
    assert_int_equal(words[count], 0xABCDEF);
    double square = 0;
    for (uint32_t d = 0; d < digits; d++) {
        uint64_t *b = words + (size_t)d * limbs * n;
        for (uint32_t i = 0; i < limbs; i++) {
            const modulus m = context_ntt(context, prime[i])->m;
            const uint64_t *s = secret_key_evaluations(sk, prime[i]);
            uint64_t big_p = 1;
            for (uint32_t k = 0; k < p->p_count; k++)
                big_p = mod_mul(big_p, p->prime[p->q_count + k] % m.value, &m);
            if (i > key->level || i / p->digit_size != d) big_p = 0;
            seed_expand(a, n, m.value, seed, SEED_KEY_SET, index * full + d, prime[i]);
            target_of(target, sk, key, prime[i]);
            for (uint32_t k = 0; k < n; k++) {
                uint64_t *at = b + (size_t)i * n + k;
                assert_true(*at < m.value);
                *at = mod_add(*at, mod_mul(a[k], s[k], &m), m.value);
                *at = mod_sub(*at, mod_mul(big_p, target[k], &m), m.value);
            }
        }
        assert_in_range(small_magnitude(b, context, prime, limbs, &square), 6, SAMPLE_ERROR_MAX);
    }
    assert_true(fabs(square / ((double)n * digits) - 10.5) < 4); /* eight deviations of one digit */
    free(words), free(a), free(target);
}

static void key_switching_keys_hide_p_times_the_target_at_every_level(void **state) {
    (void)state;
    const struct {
        uint32_t q_count, p_count, digit_size;
    } shapes[] = {{1, 1, 1}, {4, 1, 1}, {5, 2, 2}, {7, 3, 3}};
    for (size_t t = 0; t < sizeof shapes / sizeof *shapes; t++) {
        ckks_context *context =
            fixture_context(10, shapes[t].q_count, shapes[t].p_count, shapes[t].digit_size);
        secret_key *sk = key_of(context);
        for (uint32_t level = 0; level < shapes[t].q_count; level++) {
            const key_requirement keys[] = {{KEY_RELINEARISATION, 0, level},
                                            {KEY_GALOIS, 5, level},
                                            {KEY_GALOIS, 125, level},
                                            {KEY_GALOIS, 2047, level}};
            for (uint32_t i = 0; i < 4; i++) check_key(sk, &keys[i], i + 10 * level);
        }
        secret_key_destroy(sk);
        context_destroy(context);
    }
}

static void noise_is_fresh_for_each_key_and_digit(void **state) {
    (void)state;
    ckks_context *context = fixture_context(10, 3, 1, 1);
    const ckks_params *p = context_params(context);
    const key_requirement key = {KEY_GALOIS, 5, 2};
    const uint8_t seed[SEED_BYTES] = {5};
    const uint64_t count = key_seeded_word_count(p, &key);
    secret_key *sk = key_of(context);
    uint64_t *one = create(count, 8), *two = create(count, 8);
    assert_int_equal(key_generate(one, sk, &key, seed, 0, NULL), CKKS_OK);
    assert_int_equal(key_generate(two, sk, &key, seed, 0, NULL), CKKS_OK);
    uint64_t equal = 0;
    for (uint64_t i = 0; i < count; i++) equal += one[i] == two[i];
    assert_true(equal < count / 100);
    free(one), free(two);
    secret_key_destroy(sk);
    context_destroy(context);
}

static void impossible_keys_are_refused_by_field(void **state) {
    (void)state;
    ckks_context *context = fixture_context(10, 3, 1, 1);
    secret_key *sk = key_of(context);
    const struct {
        key_requirement key;
        uint32_t index;
        const char *field;
    } cases[] = {
        {{0, 0, 1}, 0, "kind"},
        {{4, 0, 1}, 0, "kind"},
        {{KEY_RELINEARISATION, 0, 3}, 0, "level"},
        {{KEY_PUBLIC, 0, UINT32_MAX}, 0, "level"},
        {{KEY_RELINEARISATION, 5, 1}, 0, "galois_element"},
        {{KEY_PUBLIC, 5, 1}, 0, "galois_element"},
        {{KEY_GALOIS, 0, 1}, 0, "galois_element"},
        {{KEY_GALOIS, 1, 1}, 0, "galois_element"},
        {{KEY_GALOIS, 4, 1}, 0, "galois_element"},
        {{KEY_GALOIS, 2049, 1}, 0, "galois_element"},
        {{KEY_GALOIS, 5, 1}, UINT32_MAX / 3, "key_index"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ckks_error err = {0};
        uint64_t untouched = 42;
        assert_int_equal(
            key_generate(&untouched, sk, &cases[i].key, (const uint8_t[SEED_BYTES]){0}, cases[i].index, &err),
            CKKS_INVALID_ARGUMENT);
        assert_string_equal(err.field, cases[i].field);
        assert_int_equal(untouched, 42);
    }
    secret_key_destroy(sk);
    context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_secret_is_ternary_and_survives_export_and_import),
        cmocka_unit_test(secrets_end_at_a_guard_page_and_are_unmapped_when_freed),
        cmocka_unit_test(ternary_samples_are_uniform),
        cmocka_unit_test(error_samples_are_centred_binomial),
        cmocka_unit_test(samples_are_the_stated_bits_of_the_stream),
        cmocka_unit_test(system_samplers_never_repeat),
        cmocka_unit_test(symmetric_encryption_decrypts_with_fresh_noise_alone),
        cmocka_unit_test(public_encryption_decrypts_within_its_noise_bound),
        cmocka_unit_test(decryption_is_c0_plus_c1_s_plus_c2_s_squared),
        cmocka_unit_test(key_switching_keys_hide_p_times_the_target_at_every_level),
        cmocka_unit_test(noise_is_fresh_for_each_key_and_digit),
        cmocka_unit_test(impossible_keys_are_refused_by_field),
    };
    if (sodium_init() < 0) return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
