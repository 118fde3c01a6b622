/* Arithmetic modulo a prime against FLINT and 128-bit division. */
#include "kernels/scheme/bigint.h"
#include "kernels/scheme/mod.h"
#include "tests/support/fixtures.h"

#include <flint/fmpz.h>
#include <flint/ulong_extras.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t moduli[] = {
    3,
    12289,
    65537,
    1073692673,
    274877816833,
    1099510054913,
    (1ull << 50) - 27,
    (1ull << 49) - 81,
    (1ull << 49) + 69,
    (1ull << 36) - 5,
    (1ull << 32) + 15,
    5,
};
#define MODULI (sizeof moduli / sizeof *moduli)

static void reduction_of_128_bits_equals_division_for_every_input_class(void **state) {
    (void)state;
    prng r;
    prng_init(&r, 1);
    for (size_t k = 0; k < MODULI; k++) {
        const uint64_t q = moduli[k];
        const modulus m = modulus_create(q);
        assert_int_equal(m.bits, 64 - (uint32_t)__builtin_clzll(q));
        const uint128 quotient = (uint128)m.barrett_high << 64 | m.barrett_low; /* floor(2^128 / q) */
        assert_true(quotient * q + q == 0 || (uint128)0 - quotient * q < q);
        /* words at every edge, as high and as low half */
        const uint64_t edge[] = {0,
                                 1,
                                 q - 1,
                                 q,
                                 q + 1,
                                 2 * q - 1,
                                 2 * q,
                                 q / 2,
                                 UINT64_MAX,
                                 UINT64_MAX - 1,
                                 UINT64_MAX / q * q,
                                 UINT64_MAX / q * q - 1,
                                 1ull << 63,
                                 (1ull << 63) - 1,
                                 m.barrett_low,
                                 m.barrett_high};
        const size_t edges = sizeof edge / sizeof *edge;
        for (size_t i = 0; i < edges; i++)
            for (size_t j = 0; j < edges; j++) {
                const uint128 x = (uint128)edge[i] << 64 | edge[j];
                assert_int_equal(mod_reduce128(x, &m), (uint64_t)(x % q));
            }
        /* multiples of q and their neighbours over the whole range: where a quotient estimate errs */
        for (int i = 0; i < 20000; i++) {
            uint128 x = (uint128)prng_u64(&r) << 64 | prng_u64(&r);
            x >>= prng_below(&r, 128);
            assert_int_equal(mod_reduce128(x, &m), (uint64_t)(x % q));
            x = x / q * q;
            assert_int_equal(mod_reduce128(x, &m), 0);
            if (x) assert_int_equal(mod_reduce128(x - 1, &m), q - 1);
            assert_int_equal(mod_reduce128(x + q - 1, &m), (uint64_t)((x + q - 1) % q));
        }
        const uint128 all = ~(uint128)0;
        assert_int_equal(mod_reduce128(all, &m), (uint64_t)(all % q));
        assert_int_equal(mod_reduce128(all / q * q - 1, &m), q - 1);
    }
}

static void operations_equal_flint_on_edges_and_random_residues(void **state) {
    (void)state;
    prng r;
    prng_init(&r, 2);
    for (size_t k = 0; k < MODULI; k++) {
        const uint64_t q = moduli[k];
        const modulus m = modulus_create(q);
        const mp_limb_t inverse = n_preinvert_limb(q);
        for (int i = 0; i < 3000; i++) {
            const uint64_t edge[] = {0, 1, q - 1, q / 2, q / 2 + 1, q - 2};
            uint64_t a = prng_below(&r, q), b = prng_below(&r, q);
            if (i < 36) a = edge[i / 6] % q, b = edge[i % 6] % q;
            assert_int_equal(mod_add(a, b, q), n_addmod(a, b, q));
            assert_int_equal(mod_sub(a, b, q), n_submod(a, b, q));
            assert_int_equal(mod_negate(a, q), n_negmod(a, q));
            assert_int_equal(mod_mul(a, b, &m), n_mulmod2_preinv(a, b, q, inverse));
            assert_int_equal(mod_shoup(b, q), n_mulmod_precomp_shoup(b, q));
            assert_int_equal(mod_shoup_fast(b, &m), mod_shoup(b, q));
            assert_int_equal(mod_mul_shoup(a, b, mod_shoup(b, q), q), n_mulmod2_preinv(a, b, q, inverse));
            const uint64_t any = i < 8 ? UINT64_MAX - (uint64_t)i : prng_u64(&r);
            const uint64_t lazy = mod_mul_shoup_lazy(any, b, mod_shoup(b, q), q);
            assert_true(lazy < 2 * q);
            assert_int_equal(lazy % q, (uint64_t)((uint128)any * b % q));
            const uint64_t exponent = i % 3 ? prng_u64(&r) : (uint64_t)i;
            assert_int_equal(mod_pow(a, exponent, &m), n_powmod2_ui_preinv(a, exponent, q, inverse));
            if (a) assert_int_equal(mod_mul(mod_inverse(a, &m), a, &m), 1);
        }
    }
}

static void primality_equals_flint(void **state) {
    (void)state;
    for (uint64_t n = 0; n < 20000; n++) assert_int_equal(is_prime_u64(n), n_is_prime(n) != 0);
    /* strong pseudoprimes to the first few bases, Carmichael numbers, squares, the largest 64-bit prime */
    const uint64_t hard[] = {2047,
                             1373653,
                             25326001,
                             3215031751,
                             2152302898747,
                             3474749660383,
                             341550071728321,
                             3825123056546413051,
                             561,
                             825265,
                             4294836225,
                             18446744073709551557u,
                             18446744073709551615u,
                             1125899839733759};
    for (size_t i = 0; i < sizeof hard / sizeof *hard; i++)
        assert_int_equal(is_prime_u64(hard[i]), n_is_prime(hard[i]) != 0);
    prng r;
    prng_init(&r, 3);
    for (int i = 0; i < 3000; i++) {
        const uint64_t n = prng_u64(&r) >> prng_below(&r, 60) | 1;
        assert_int_equal(is_prime_u64(n), n_is_prime(n) != 0);
    }
}

static void bit_reversal_is_an_involution_that_mirrors(void **state) {
    (void)state;
    assert_int_equal(bit_reverse(1, 10), 512);
    assert_int_equal(bit_reverse(0x0F1, 12), 0x8F0);
    for (uint32_t i = 0; i < 1u << 12; i++) assert_int_equal(bit_reverse(bit_reverse(i, 12), 12), i);
}

/* ---- multi-word integers ---- */

static void to_fmpz(fmpz_t out, const uint64_t *x, uint32_t count) {
    fmpz_set_ui_array(out, x, (slong)count);
}

static void multi_word_operations_equal_flint(void **state) {
    (void)state;
    prng r;
    prng_init(&r, 4);
    fmpz_t x, y, z, wrap;
    fmpz_init(x), fmpz_init(y), fmpz_init(z), fmpz_init(wrap);
    for (int i = 0; i < 4000; i++) {
        const uint32_t count = 1 + (uint32_t)prng_below(&r, 6);
        uint64_t a[6], b[6], factor = i % 4 ? prng_u64(&r) : UINT64_MAX, carry;
        for (uint32_t k = 0; k < count; k++) {
            a[k] = i % 3 == 0 ? UINT64_MAX : i % 3 == 1 ? 0 : prng_u64(&r);
            b[k] = i % 5 == 0 ? UINT64_MAX : prng_u64(&r);
        }
        to_fmpz(x, a, count), to_fmpz(y, b, count);
        fmpz_one(wrap), fmpz_mul_2exp(wrap, wrap, 64 * count);
        assert_int_equal(bigint_is_below(a, b, count), fmpz_cmp(x, y) < 0);
        assert_int_equal(bigint_bits(a, count), fmpz_bits(x));
        uint64_t c[6];
        memcpy(c, a, sizeof c);
        carry = bigint_multiply_word(c, count, factor);
        fmpz_mul_ui(z, x, factor);
        fmpz_t got;
        fmpz_init(got);
        to_fmpz(got, c, count), fmpz_addmul_ui(got, wrap, carry);
        assert_true(fmpz_equal(got, z));
        memcpy(c, a, sizeof c);
        carry = bigint_add_product(c, b, count, factor);
        fmpz_set(z, x), fmpz_addmul_ui(z, y, factor);
        to_fmpz(got, c, count), fmpz_addmul_ui(got, wrap, carry);
        assert_true(fmpz_equal(got, z));
        memcpy(c, a, sizeof c);
        carry = bigint_subtract_product(c, b, count, factor);
        fmpz_set(z, x), fmpz_submul_ui(z, y, factor);
        to_fmpz(got, c, count), fmpz_submul_ui(got, wrap, carry);
        assert_true(fmpz_equal(got, z));
        fmpz_clear(got);
    }
    fmpz_clear(x), fmpz_clear(y), fmpz_clear(z), fmpz_clear(wrap);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reduction_of_128_bits_equals_division_for_every_input_class),
        cmocka_unit_test(operations_equal_flint_on_edges_and_random_residues),
        cmocka_unit_test(primality_equals_flint),
        cmocka_unit_test(bit_reversal_is_an_involution_that_mirrors),
        cmocka_unit_test(multi_word_operations_equal_flint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
