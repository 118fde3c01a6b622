/*
 * Noise that is drawn apart stays apart: the digits of one key, and the two components of one encryption.
 * Where two of them shared it, their difference would be free of noise, and a secret a matter of linear
 * algebra; decryption would not notice.
 */
#include "kernels/scheme/internal.h"
#include "kernels/scheme/key_internal.h"
#include "kernels/scheme/sample.h"
#include "tests/support/fixtures.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t *create(size_t count) {
    uint64_t *words = calloc(count, sizeof *words);
    assert_non_null(words);
    return words;
}

/* from evaluations modulo one prime to small coefficients, which they must be */
static void to_small(uint64_t *words, const ntt_table *t) {
    const uint32_t n = 1u << t->log_n;
    const uint64_t q = t->m.value;
    ntt_inverse_scalar(words, words, t);
    for (uint32_t k = 0; k < n; k++)
        assert_true(words[k] <= SAMPLE_ERROR_MAX || q - words[k] <= SAMPLE_ERROR_MAX);
}

/* Two independent draws agree in 8.7 % of their coefficients (deviation 3.24), up to a sign in 17 %. Of
 * 1,024, less than one in 32 or more than one in 5 is for one draw in 10^12; less than one in 20 was for one
 * in 450,000. */
static void assert_apart(const uint64_t *a, const uint64_t *b, uint32_t n, uint64_t q) {
    uint32_t equal = 0, opposite = 0;
    for (uint32_t k = 0; k < n; k++) {
        equal += a[k] == b[k];
        opposite += mod_add(a[k], b[k], q) == 0;
    }
    assert_in_range(equal, n / 32, n / 5);
    assert_in_range(opposite, n / 32, n / 5);
}

/* Modulo a special prime the gadget is zero: b + a s is the noise of the digit. */
static void the_digits_of_a_key_have_noise_of_their_own(void **state) {
    (void)state;
    static const key_requirement keys[] = {
        {KEY_RELINEARISATION, 0, 5}, {KEY_GALOIS, 5, 5}, {KEY_GALOIS, 2047, 3}};
    ckks_context *context = fixture_context(10, 6, 2, 2);
    const ckks_params *p = context_params(context);
    const uint32_t n = params_n(p), full = params_digit_count_full(p), special = p->q_count;
    const ntt_table *t = context_ntt(context, special);
    const uint8_t seed[SEED_BYTES] = {3, 1, 4};
    secret_key *sk = NULL;
    assert_int_equal(secret_key_generate(&sk, context, NULL), CKKS_OK);
    const uint64_t *s = secret_key_evaluations(sk, special);
    uint64_t *a = create(n), *noise = create((size_t)full * n);
    for (uint32_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const uint32_t digits = params_digit_count(p, keys[i].level), limbs = keys[i].level + 1 + p->p_count;
        uint64_t *words = create(key_seeded_word_count(p, &keys[i]));
        assert_int_equal(key_generate(words, sk, &keys[i], seed, i, NULL), CKKS_OK);
        assert_true(digits > 1);
        for (uint32_t d = 0; d < digits; d++) {
            const uint64_t *b = words + ((size_t)d * limbs + keys[i].level + 1) * n;
            seed_expand(a, n, t->m.value, seed, SEED_KEY_SET, i * full + d, special);
            for (uint32_t k = 0; k < n; k++)
                noise[d * n + k] = mod_add(b[k], mod_mul(a[k], s[k], &t->m), t->m.value);
            to_small(noise + d * n, t);
            for (uint32_t e = 0; e < d; e++) assert_apart(noise + d * n, noise + e * n, n, t->m.value);
        }
        free(words);
    }
    free(a), free(noise);
    secret_key_destroy(sk);
    context_destroy(context);
}

/* Under a public key of zeros a message of zeros leaves the two errors alone. */
static void the_components_of_an_encryption_have_noise_of_their_own(void **state) {
    (void)state;
    ckks_context *context = fixture_context(10, 3, 1, 1);
    const uint32_t n = params_n(context_params(context)), words = 3 * n;
    const ntt_table *t = context_ntt(context, 1);
    uint64_t *zero = create(words), *c = create(4 * (size_t)words), *again = c + 2 * words;
    assert_int_equal(encrypt_public(c, c + words, context, zero, zero, zero, 2, NULL), CKKS_OK);
    assert_int_equal(encrypt_public(again, again + words, context, zero, zero, zero, 2, NULL), CKKS_OK);
    for (size_t i = 0; i < 4; i++) to_small(c + i * words + n, t);
    for (size_t i = 0; i < 4; i++)
        for (size_t k = 0; k < i; k++) assert_apart(c + i * words + n, c + k * words + n, n, t->m.value);
    free(zero), free(c);
    context_destroy(context);
}

/* The mask is the same for both, and ternary: under (1, 1) the difference of the components has none of it.
 */
static void the_mask_of_an_encryption_is_one_ternary_polynomial(void **state) {
    (void)state;
    ckks_context *context = fixture_context(10, 1, 1, 1);
    const ckks_params *p = context_params(context);
    const uint32_t n = params_n(p);
    const ntt_table *t = context_ntt(context, 0);
    const uint64_t q = t->m.value, big = 1u << 20;
    uint64_t *pk = create(n), *zero = create(n), *c = create(2 * (size_t)n);
    uint32_t seen[3] = {0};
    for (uint32_t k = 0; k < n; k++) pk[k] = big; /* the constant 2^20 at every point */
    assert_int_equal(encrypt_public(c, c + n, context, pk, pk, zero, 0, NULL), CKKS_OK);
    for (size_t i = 0; i < 2; i++) ntt_inverse_scalar(c + i * n, c + i * n, t);
    for (uint32_t k = 0; k < n; k++) {
        int64_t mask[2];
        for (size_t i = 0; i < 2; i++) {
            const int64_t x = c[i * n + k] > q / 2 ? -(int64_t)(q - c[i * n + k]) : (int64_t)c[i * n + k];
            mask[i] = (x + (int64_t)(big / 2) + (int64_t)big) / (int64_t)big - 1; /* nearest multiple */
            assert_true(llabs(x - mask[i] * (int64_t)big) <= SAMPLE_ERROR_MAX);
        }
        assert_int_equal(mask[0], mask[1]);
        assert_in_range(mask[0] + 1, 0, 2);
        seen[mask[0] + 1]++;
    }
    for (size_t i = 0; i < 3; i++) assert_in_range(seen[i], n / 4, n / 2);
    free(pk), free(zero), free(c);
    context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_digits_of_a_key_have_noise_of_their_own),
        cmocka_unit_test(the_components_of_an_encryption_have_noise_of_their_own),
        cmocka_unit_test(the_mask_of_an_encryption_is_one_ternary_polynomial),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
