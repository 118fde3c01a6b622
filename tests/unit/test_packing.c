/* Packed residues against a reference that moves one bit at a time. */
#include "proto/packing.h"

#include "tests/support/fixtures.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define N 64u

static const uint64_t primes[] = {
    3, 5, 12289, 0x7fffffff, 0xffffffffff - 86, 0x1ffffffffffff - 110, 0x3ffffffffffff - 26};
#define PRIME_COUNT (sizeof primes / sizeof *primes)

static uint32_t width_of(uint64_t prime) {
    uint32_t bits = 0;
    for (; prime; prime >>= 1) bits++;
    return bits;
}

/* bit k of residue i is bit i * width + k of the stream, stream bit s is bit s % 8 of byte s / 8 */
static size_t reference_pack(uint8_t *out, const uint64_t *words, uint32_t n, uint64_t prime) {
    const uint32_t width = width_of(prime);
    const size_t bytes = ((size_t)n * width + 127) / 128 * 16;
    memset(out, 0, bytes);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < width; k++) {
            const size_t s = (size_t)i * width + k;
            if (words[i] >> k & 1) out[s / 8] = (uint8_t)(out[s / 8] | 1u << s % 8);
        }
    return bytes;
}

static void packing_equals_the_bit_by_bit_reference(void **state) {
    (void)state;
    prng r;
    prng_init(&r, 1);
    for (size_t p = 0; p < PRIME_COUNT; p++)
        for (uint32_t n = 1; n <= N; n++) {
            uint64_t words[N], back[N];
            uint8_t expected[N * 8 + 16], packed[N * 8 + 16];
            fixture_random_words(words, n, primes[p], &r);
            if (n > 2) words[0] = primes[p] - 1, words[n - 1] = primes[p] - 1, words[1] = 0;
            const size_t bytes = reference_pack(expected, words, n, primes[p]);
            assert_int_equal(packing_limb_bytes(n, primes[p]), bytes);
            memset(packed, 0xee, sizeof packed);
            packing_pack_limb(packed, words, n, primes[p]);
            assert_memory_equal(packed, expected, bytes);
            assert_int_equal(packed[bytes], 0xee);
            assert_int_equal(packing_unpack_limb(back, packed, n, primes[p], NULL), CKKS_OK);
            assert_memory_equal(back, words, n * sizeof *words);
        }
}

static void a_residue_at_or_above_its_modulus_is_refused(void **state) {
    (void)state;
    for (size_t p = 0; p < PRIME_COUNT; p++) {
        const uint64_t top = ((uint64_t)1 << width_of(primes[p])) - 1;
        for (uint32_t i = 0; i < 5; i++)
            for (uint64_t bad = primes[p]; bad <= top; bad = bad == primes[p] && bad != top ? top : top + 1) {
                uint64_t words[5] = {0}, back[5];
                uint8_t packed[5 * 8 + 16];
                char index[32];
                ckks_error err = {0};
                words[i] = bad;
                reference_pack(packed, words, 5, primes[p]);
                assert_int_equal(packing_unpack_limb(back, packed, 5, primes[p], &err), CKKS_RESIDUE_RANGE);
                assert_string_equal(err.field, "residue");
                snprintf(index, sizeof index, "residue %u ", i);
                assert_non_null(strstr(err.message, index));
            }
    }
}

static void every_padding_bit_is_looked_at(void **state) {
    (void)state;
    for (size_t p = 0; p < PRIME_COUNT; p++)
        for (uint32_t n = 1; n <= 9; n += 4) {
            const size_t bytes = packing_limb_bytes(n, primes[p]);
            for (size_t bit = (size_t)n * width_of(primes[p]); bit < bytes * 8; bit++) {
                uint8_t packed[9 * 8 + 16] = {0};
                uint64_t back[9];
                ckks_error err = {0};
                packed[bit / 8] = (uint8_t)(1u << bit % 8);
                assert_int_equal(packing_unpack_limb(back, packed, n, primes[p], &err), CKKS_RESIDUE_RANGE);
                assert_string_equal(err.field, "padding");
            }
        }
}

static void whole_polynomials_are_limb_after_limb(void **state) {
    (void)state;
    prng r;
    prng_init(&r, 2);
    const ckks_params params = fixture_params(10, 3, 1, 1);
    const uint32_t n = params_n(&params);
    for (uint32_t level = 0; level < 3; level++)
        for (int with_p = 0; with_p < 2; with_p++) {
            const uint32_t limbs = level + 1 + (with_p ? 1 : 0);
            uint64_t *words = calloc(2 * (size_t)limbs * n, sizeof *words),
                     *back = calloc(2 * (size_t)limbs * n, sizeof *back);
            for (uint32_t c = 0; c < 2; c++)
                fixture_random_poly(words + (size_t)c * limbs * n, &params, level, with_p != 0, &r);
            const uint64_t bytes = packing_poly_bytes(&params, level, with_p != 0, 2);
            uint8_t *packed = malloc(bytes), *expected = malloc(bytes + 16);
            packing_pack(packed, words, &params, level, with_p != 0, 2);
            size_t at = 0;
            for (uint32_t i = 0; i < 2 * limbs; i++) {
                const uint32_t limb = i % limbs,
                               prime = limb <= level ? limb : params.q_count + limb - level - 1;
                at += reference_pack(expected + at, words + (size_t)i * n, n, params.prime[prime]);
            }
            assert_int_equal(at, bytes);
            assert_memory_equal(packed, expected, bytes);
            assert_int_equal(packing_unpack(back, packed, &params, level, with_p != 0, 2, NULL), CKKS_OK);
            assert_memory_equal(back, words, 2 * (size_t)limbs * n * sizeof *words);
            assert_int_equal(packing_check(packed, &params, level, with_p != 0, 2, NULL), CKKS_OK);
            memset(packed + bytes - 8, 0xff, 8);
            assert_int_equal(packing_unpack(back, packed, &params, level, with_p != 0, 2, NULL),
                             CKKS_RESIDUE_RANGE);
            assert_int_equal(packing_check(packed, &params, level, with_p != 0, 2, NULL), CKKS_RESIDUE_RANGE);
            free(words), free(back), free(packed), free(expected);
        }
}

static void key_bytes_follow_limbs_and_digits_of_the_key_s_level(void **state) {
    (void)state;
    const ckks_params params = fixture_params(10, 5, 2, 2);
    for (uint32_t level = 0; level < 5; level++) {
        const key_requirement galois = {KEY_GALOIS, 5, level}, relin = {KEY_RELINEARISATION, 0, level},
                              public_key = {KEY_PUBLIC, 0, level};
        const uint64_t with_p = packing_poly_bytes(&params, level, true, 1),
                       without_p = packing_poly_bytes(&params, level, false, 1);
        const uint32_t digits = (level + 2) / 2;
        uint64_t total;
        assert_int_equal(packing_key_bytes(&params, &galois), digits * with_p);
        assert_int_equal(packing_key_bytes(&params, &relin), digits * with_p);
        assert_int_equal(packing_key_bytes(&params, &public_key), without_p);
        const key_requirement set[] = {relin, galois, public_key};
        assert_true(packing_key_set_bytes(&total, &params, set, 3));
        assert_int_equal(total, 2 * digits * with_p + without_p);
        /* as many words as the key generator writes */
        assert_int_equal(key_seeded_word_count(&params, &galois),
                         (uint64_t)digits * (level + 3) * params_n(&params));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packing_equals_the_bit_by_bit_reference),
        cmocka_unit_test(a_residue_at_or_above_its_modulus_is_refused),
        cmocka_unit_test(every_padding_bit_is_looked_at),
        cmocka_unit_test(whole_polynomials_are_limb_after_limb),
        cmocka_unit_test(key_bytes_follow_limbs_and_digits_of_the_key_s_level),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
