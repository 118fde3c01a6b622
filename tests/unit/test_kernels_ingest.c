/*
 * What comes from the wire and from randomness: UNPACK and PACK against a packer that works bit by bit,
 * EXPAND and SAMPLE against the stream recomputed block by block with libsodium.
 */
#include "kernels/base/bytes.h"
#include "kernels/cpu/kernels_cpu.h"
#include "kernels/scheme/expand.h"
#include "tests/support/device_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
// cmocka wants the four above first
#include <cmocka.h>

static uint64_t prime_of(const device_fixture *f, kernel_basis b, uint32_t limb) {
    return f->params->prime[basis_prime(b, limb, f->params->q_count)];
}
static uint32_t width_of(uint64_t prime) {
    uint32_t bits = 0;
    while (prime >> bits) bits++;
    return bits;
}

/* ---- packing, bit by bit ---- */

static uint64_t packed_limb_bytes(const device_fixture *f, uint64_t prime) {
    return (((uint64_t)f->n * width_of(prime) + 7) / 8 + 15) / 16 * 16;
}
static void set_field(uint8_t *packed, uint64_t index, uint32_t width, uint64_t value) {
    for (uint32_t k = 0; k < width; k++) {
        const uint64_t bit = index * width + k;
        packed[bit / 8] = (uint8_t)((packed[bit / 8] & ~(1u << bit % 8)) | ((value >> k & 1u) << bit % 8));
    }
}
static uint64_t packed_poly_bytes(const device_fixture *f, uint32_t components, kernel_basis b) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < basis_limb_count(b); i++) bytes += packed_limb_bytes(f, prime_of(f, b, i));
    return components * bytes;
}
static uint64_t packed_limb_at(const device_fixture *f, kernel_basis b, uint32_t component, uint32_t limb) {
    uint64_t bytes = component * packed_poly_bytes(f, 1, b);
    for (uint32_t i = 0; i < limb; i++) bytes += packed_limb_bytes(f, prime_of(f, b, i));
    return bytes;
}
static void pack_by_bits(const device_fixture *f, uint8_t *packed, const uint64_t *words, uint32_t components,
                         kernel_basis b) {
    memset(packed, 0, packed_poly_bytes(f, components, b));
    for (uint32_t c = 0; c < components; c++)
        for (uint32_t i = 0; i < basis_limb_count(b); i++)
            for (uint32_t k = 0; k < f->n; k++)
                set_field(packed + packed_limb_at(f, b, c, i), k, width_of(prime_of(f, b, i)),
                          words[((uint64_t)c * basis_limb_count(b) + i) * f->n + k]);
}

typedef struct packed_case {
    device_fixture f;
    kernel_basis basis;
    uint32_t components;
    uint64_t bytes, word_bytes;
    uint64_t *words; /* host */
    uint8_t *packed; /* host, by bits */
    void *device_words, *device_packed;
    uint32_t *verdict;
} packed_case;

static void packed_open(packed_case *x, uint32_t log_n, uint32_t q0_bits, uint32_t q_bits, uint32_t pattern) {
    prng r;
    prng_init(&r, log_n * 100 + q_bits);
    const ckks_params params = fixture_params_bits(log_n, 3, 1, 1, q0_bits, q_bits, 50);
    device_fixture_open(&x->f, fixture_context_of(&params), 2);
    x->basis = (kernel_basis){0, 3, 1};
    x->components = 2;
    x->bytes = packed_poly_bytes(&x->f, 2, x->basis);
    x->word_bytes = 2ull * 4 * x->f.n * 8;
    x->words = malloc(x->word_bytes);
    x->packed = malloc(x->bytes);
    for (uint32_t i = 0; i < 8; i++) {
        const uint64_t q = prime_of(&x->f, x->basis, i % 4);
        if (pattern < FIXTURE_PATTERNS)
            fixture_adversarial_words(x->words + (uint64_t)i * x->f.n, x->f.n, q, pattern);
        else
            fixture_random_words(x->words + (uint64_t)i * x->f.n, x->f.n, q, &r);
    }
    pack_by_bits(&x->f, x->packed, x->words, 2, x->basis);
    x->device_words = device_fixture_upload(&x->f, NULL, x->word_bytes);
    x->device_packed = device_fixture_upload(&x->f, x->packed, x->bytes);
    const uint32_t good = 0;
    x->verdict = device_fixture_upload(&x->f, &good, sizeof good);
}
static void packed_close(packed_case *x) {
    device_free(x->f.dev, x->device_words), device_free(x->f.dev, x->device_packed);
    device_free(x->f.dev, x->verdict);
    free(x->words), free(x->packed);
    device_fixture_close(&x->f);
}
static uint32_t unpack(packed_case *x) {
    const kernel_unpack_args args = {x->f.tables,
                                     device_fixture_poly(x->device_words, x->components, x->basis),
                                     x->device_packed, x->bytes, x->verdict};
    uint32_t verdict;
    device_fixture_launch(&x->f, KERNEL_UNPACK, &args);
    device_fixture_download(&x->f, &verdict, x->verdict, sizeof verdict);
    return verdict;
}

static void unpack_and_pack_match_a_packer_that_works_bit_by_bit(void **state) {
    (void)state;
    static const uint32_t sizes[][3] = {{10, 50, 20}, {10, 49, 33}, {11, 45, 24},
                                        {11, 47, 40}, {12, 38, 28}, {13, 50, 31}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (uint32_t pattern = sizes[i][0] < 12 ? 0 : FIXTURE_PATTERNS; pattern <= FIXTURE_PATTERNS;
             pattern++) {
            packed_case x;
            packed_open(&x, sizes[i][0], sizes[i][1], sizes[i][2], pattern);
            assert_int_equal(unpack(&x), 0);
            assert_memory_equal(x.device_words, x.words, x.word_bytes);
            memset(x.device_packed, 0xff, x.bytes);
            const kernel_pack_args args = {x.f.tables, x.device_packed, x.bytes,
                                           device_fixture_poly(x.device_words, 2, x.basis)};
            device_fixture_launch(&x.f, KERNEL_PACK, &args);
            assert_memory_equal(x.device_packed, x.packed, x.bytes);
            packed_close(&x);
        }
    }
}

static void unpack_reports_every_field_that_is_not_below_its_prime(void **state) {
    (void)state;
    packed_case x;
    prng r;
    prng_init(&r, 5);
    packed_open(&x, 10, 45, 31, FIXTURE_PATTERNS);
    for (uint32_t round = 0; round < 60; round++) {
        const uint32_t c = round % 2, limb = round / 2 % 4;
        const uint32_t k = round < 8    ? 0
                           : round < 16 ? x.f.n - 1 /* the last field ends the limb */
                                        : (uint32_t)prng_below(&r, x.f.n);
        const uint64_t q = prime_of(&x.f, x.basis, limb), all = ((uint64_t)1 << width_of(q)) - 1;
        const uint64_t bad = round % 3 == 0 ? q : round % 3 == 1 ? all : q + prng_below(&r, all - q + 1);
        uint8_t *at = (uint8_t *)x.device_packed + packed_limb_at(&x.f, x.basis, c, limb);
        const uint64_t index = ((uint64_t)c * 4 + limb) * x.f.n + k;
        set_field(at, k, width_of(q), bad);
        *x.verdict = 8; /* bits of others stay */
        assert_int_equal(unpack(&x), 8 | VERDICT_RESIDUE);
        const uint64_t *got = x.device_words;
        for (uint64_t i = 0; i < x.word_bytes / 8; i++)
            if (i == index)
                assert_true(got[i] < q);
            else
                assert_true(got[i] == x.words[i]);
        set_field(at, k, width_of(q), q - 1);
        *x.verdict = 0;
        assert_int_equal(unpack(&x), 0);
        set_field(at, k, width_of(q), x.words[index]);
    }
    memset(x.device_packed, 0xff, x.bytes);
    assert_int_equal(unpack(&x), VERDICT_RESIDUE);
    packed_close(&x);
}

static void unpack_takes_exactly_the_bytes_that_it_needs(void **state) {
    (void)state;
    packed_case x;
    packed_open(&x, 10, 45, 31, 0);
    kernel_unpack_args args = {x.f.tables, device_fixture_poly(x.device_words, 2, x.basis), x.device_packed,
                               x.bytes, x.verdict};
    ckks_error err = {0};
    args.packed_bytes = x.bytes - 16;
    assert_int_equal(device_launch(x.f.stream, KERNEL_UNPACK, &args, &err), CKKS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "UNPACK.packed_bytes");
    args.packed_bytes = x.bytes + 16;
    assert_int_equal(device_launch(x.f.stream, KERNEL_UNPACK, &args, NULL), CKKS_INVALID_ARGUMENT);
    args.packed_bytes = x.bytes;
    args.packed = (uint8_t *)x.device_packed + 8;
    assert_int_equal(device_launch(x.f.stream, KERNEL_UNPACK, &args, NULL), CKKS_INVALID_ARGUMENT);
    packed_close(&x);
}

static void check_nonzero_finds_a_polynomial_of_zeros_only(void **state) {
    (void)state;
    device_fixture f;
    device_fixture_open(&f, NULL, 2);
    const kernel_basis b = {0, 2, 0};
    uint64_t *zero = calloc(2 * f.n, 8);
    uint64_t *words = device_fixture_upload(&f, zero, 2ull * f.n * 8);
    uint32_t *verdict = device_fixture_upload(&f, zero, 4);
    const kernel_check_nonzero_args args = {f.tables, device_fixture_poly(words, 1, b), verdict};
    const uint32_t places[] = {0, 1, f.n - 1, f.n, 2 * f.n - 1};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        words[places[i]] = 1;
        device_fixture_launch(&f, KERNEL_CHECK_NONZERO, &args);
        assert_int_equal(*verdict, 0);
        words[places[i]] = 0;
    }
    *verdict = VERDICT_RESIDUE;
    device_fixture_launch(&f, KERNEL_CHECK_NONZERO, &args);
    assert_int_equal(*verdict, VERDICT_RESIDUE | VERDICT_ZERO);
    device_free(f.dev, words), device_free(f.dev, verdict);
    free(zero);
    device_fixture_close(&f);
}

/* ---- streams ---- */

static void expand_matches_the_stream_of_libsodium(void **state) {
    (void)state;
    const ckks_params params = fixture_params(11, 3, 2, 2);
    device_fixture f;
    device_fixture_open(&f, fixture_context_of(&params), 2);
    uint8_t seed[SEED_BYTES];
    for (uint32_t i = 0; i < SEED_BYTES; i++) seed[i] = (uint8_t)(i * 7 + 1);
    uint8_t *device_seed = device_fixture_upload(&f, seed, sizeof seed);
    const kernel_basis bases[] = {{0, 3, 2}, {1, 2, 0}, {0, 0, 2}};
    uint8_t *bytes = malloc(f.n * 16);
    for (size_t b = 0; b < 3; b++) {
        const uint32_t limbs = basis_limb_count(bases[b]), purpose = SEED_KEY_SET,
                       polynomial = 1000 + (uint32_t)b;
        uint64_t *words = device_fixture_upload(&f, NULL, (uint64_t)2 * limbs * f.n * 8);
        const kernel_expand_args args = {f.tables, device_fixture_poly(words, 2, bases[b]), device_seed,
                                         purpose, polynomial};
        device_fixture_launch(&f, KERNEL_EXPAND, &args);
        for (uint32_t i = 0; i < 2 * limbs; i++) {
            uint8_t nonce[12];
            bytes_write_u32(nonce, purpose);
            bytes_write_u32(nonce + 4, polynomial + i / limbs);
            bytes_write_u32(nonce + 8, basis_prime(bases[b], i % limbs, f.params->q_count));
            crypto_stream_chacha20_ietf(bytes, f.n * 16, nonce, seed);
            for (uint32_t k = 0; k < f.n; k++) {
                const uint128 word =
                    (uint128)bytes_read_u64(bytes + 16 * k + 8) << 64 | bytes_read_u64(bytes + 16 * k);
                assert_true(words[(uint64_t)i * f.n + k] ==
                            (uint64_t)(word % prime_of(&f, bases[b], i % limbs)));
            }
        }
        device_free(f.dev, words);
    }
    free(bytes);
    device_free(f.dev, device_seed);
    device_fixture_close(&f);
}

/* one block of the stream, as the definition says */
static void stream_block(uint8_t block[64], const uint8_t key[32], uint64_t counter) {
    const uint8_t zero[64] = {0};
    uint8_t nonce[12] = {0};
    bytes_write_u32(nonce, (uint32_t)(counter >> 32));
    crypto_stream_chacha20_ietf_xor_ic(block, zero, 64, nonce, (uint32_t)counter, key);
}

static int64_t expected_sample(const uint8_t *at, uint32_t kind, uint32_t flood_bits) {
    const uint64_t low = bytes_read_u64(at);
    if (kind == SAMPLE_TERNARY)
        return (int64_t)(uint64_t)(((uint128)bytes_read_u64(at + 8) << 64 | low) % 3) - 1;
    if (kind == SAMPLE_ERROR) {
        int64_t sum = 0;
        for (uint32_t k = 0; k < 21; k++) sum += (int64_t)(low >> k & 1) - (int64_t)(low >> (k + 21) & 1);
        return sum;
    }
    return (int64_t)(low % ((uint64_t)2 << flood_bits)) - (int64_t)((uint64_t)1 << flood_bits);
}

typedef struct sampled {
    device_fixture f;
    kernel_basis basis;
    random_state *random;
    uint64_t *words;
} sampled;

static void sampled_open(sampled *x, uint32_t log_n, uint64_t counter) {
    const ckks_params params = fixture_params_bits(log_n, 3, 1, 1, 45, 20, 46);
    device_fixture_open(&x->f, fixture_context_of(&params), 2);
    x->basis = (kernel_basis){0, 3, 1};
    random_state random = {.counter = counter};
    for (uint32_t i = 0; i < 32; i++) random.key[i] = (uint8_t)(200 - i);
    x->random = device_fixture_upload(&x->f, &random, sizeof random);
    x->words = device_fixture_upload(&x->f, NULL, 4ull * x->f.n * 8);
}
static void sampled_close(sampled *x) {
    device_free(x->f.dev, x->random), device_free(x->f.dev, x->words);
    device_fixture_close(&x->f);
}
static void sample(sampled *x, uint32_t kind, uint32_t flood_bits, uint64_t block_offset) {
    const kernel_sample_args args = {
        x->f.tables, device_fixture_poly(x->words, 1, x->basis), x->random, block_offset, kind, flood_bits};
    device_fixture_launch(&x->f, KERNEL_SAMPLE, &args);
}
/* the signed value behind coefficient k, from the first limb (45 bits) */
static int64_t value_of(const sampled *x, uint32_t limb, uint32_t k) {
    const uint64_t q = prime_of(&x->f, x->basis, limb), w = x->words[(uint64_t)limb * x->f.n + k];
    return w > q / 2 ? (int64_t)w - (int64_t)q : (int64_t)w;
}

static void samples_are_the_words_that_the_stream_defines(void **state) {
    (void)state;
    static const struct {
        uint32_t kind, flood_bits;
    } kinds[] = {{SAMPLE_TERNARY, 0}, {SAMPLE_ERROR, 0},  {SAMPLE_FLOOD, 0},
                 {SAMPLE_FLOOD, 13},  {SAMPLE_FLOOD, 30}, {SAMPLE_FLOOD, 48}};
    /* the third start crosses the carry of the block counter into the nonce */
    const uint64_t starts[] = {0, 12345, ((uint64_t)1 << 32) - 70, ((uint64_t)7 << 32) + 1};
    for (uint32_t log_n = 10; log_n <= 12; log_n++)
        for (size_t s = 0; s < sizeof starts / sizeof *starts; s++) {
            sampled x;
            sampled_open(&x, log_n, starts[s]);
            for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
                const uint64_t offset = i * 3;
                const uint32_t each = kinds[i].kind == SAMPLE_TERNARY ? 16 : 8, per_block = 64 / each;
                sample(&x, kinds[i].kind, kinds[i].flood_bits, offset);
                assert_true(x.random->counter == starts[s]);
                uint8_t block[64];
                for (uint32_t k = 0; k < x.f.n; k++) {
                    if (k % per_block == 0)
                        stream_block(block, x.random->key, starts[s] + offset + k / per_block);
                    const int64_t v =
                        expected_sample(block + k % per_block * each, kinds[i].kind, kinds[i].flood_bits);
                    for (uint32_t limb = 0; limb < 4; limb++) {
                        const int64_t q = (int64_t)prime_of(&x.f, x.basis, limb);
                        assert_true((int64_t)x.words[(uint64_t)limb * x.f.n + k] == (v % q + q) % q);
                    }
                }
                assert_true(sample_block_count(kinds[i].kind, x.f.n) == x.f.n / per_block);
            }
            sampled_close(&x);
        }
}

/* mean and variance within 6 deviations of what 2^13 draws may show; ends of the range are respected */
static void samples_have_the_stated_distribution(void **state) {
    (void)state;
    sampled x;
    sampled_open(&x, 13, 99);
    static const struct {
        uint32_t kind, flood_bits;
        double mean, variance, kurtosis; /* fourth central moment over variance squared */
        int64_t low, high;
    } table[] = {
        {SAMPLE_TERNARY, 0, 0, 2.0 / 3, 1.5, -1, 1},
        {SAMPLE_ERROR, 0, 0, 10.5, 3 - 1.0 / 21, -21, 21},
        {SAMPLE_FLOOD, 20, -0.5, 0x1p42 / 12, 1.8, -(1 << 20), (1 << 20) - 1},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        double sum = 0, squares = 0;
        const double n = x.f.n;
        sample(&x, table[i].kind, table[i].flood_bits, 1000 * i);
        for (uint32_t k = 0; k < x.f.n; k++) {
            const int64_t v = value_of(&x, 0, k);
            assert_true(v >= table[i].low && v <= table[i].high);
            sum += (double)v;
            squares += ((double)v - table[i].mean) * ((double)v - table[i].mean);
        }
        const double mean_off = fabs(sum / n - table[i].mean) / sqrt(table[i].variance / n);
        const double variance_off =
            fabs(squares / n - table[i].variance) / (table[i].variance * sqrt((table[i].kurtosis - 1) / n));
        print_message("  kind %u: mean off by %.2f, variance by %.2f deviations\n", table[i].kind, mean_off,
                      variance_off);
        assert_true(mean_off < 6 && variance_off < 6);
    }
    sampled_close(&x);
}

static void advanced_counter_gives_other_samples_and_never_the_same(void **state) {
    (void)state;
    sampled x;
    sampled_open(&x, 10, ((uint64_t)1 << 32) - 1);
    const uint64_t blocks = sample_block_count(SAMPLE_ERROR, x.f.n);
    uint64_t *before = malloc(x.f.n * 8);
    sample(&x, SAMPLE_ERROR, 0, blocks); /* what comes after the advance */
    memcpy(before, x.words, x.f.n * 8);
    const kernel_counter_args advance = {x.f.tables, x.random, blocks};
    device_fixture_launch(&x.f, KERNEL_COUNTER_ADVANCE, &advance);
    assert_true(x.random->counter == ((uint64_t)1 << 32) - 1 + blocks);
    sample(&x, SAMPLE_ERROR, 0, 0);
    assert_memory_equal(before, x.words, x.f.n * 8);
    device_fixture_launch(&x.f, KERNEL_COUNTER_ADVANCE, &advance);
    sample(&x, SAMPLE_ERROR, 0, 0);
    assert_memory_not_equal(before, x.words, x.f.n * 8);
    free(before);
    sampled_close(&x);
}

int main(void) {
    if (sodium_init() < 0) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unpack_and_pack_match_a_packer_that_works_bit_by_bit),
        cmocka_unit_test(unpack_reports_every_field_that_is_not_below_its_prime),
        cmocka_unit_test(unpack_takes_exactly_the_bytes_that_it_needs),
        cmocka_unit_test(check_nonzero_finds_a_polynomial_of_zeros_only),
        cmocka_unit_test(expand_matches_the_stream_of_libsodium),
        cmocka_unit_test(samples_are_the_words_that_the_stream_defines),
        cmocka_unit_test(samples_have_the_stated_distribution),
        cmocka_unit_test(advanced_counter_gives_other_samples_and_never_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
