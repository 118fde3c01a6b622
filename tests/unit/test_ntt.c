/* The transform against its definition, against FLINT's products modulo X^N + 1, and its own inverse. */
#include "kernels/scheme/internal.h"
#include "tests/support/fixtures.h"

#include <flint/nmod_poly.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* prime sizes that occur: small, middle, the largest */
static const uint32_t prime_bits[] = {28, 30, 35, 40, 45, 50};
#define PRIME_SIZES (sizeof prime_bits / sizeof *prime_bits)

static ckks_context *context_of_size(uint32_t log_n, uint32_t bits) {
    const ckks_params p = fixture_params_bits(log_n, 2, 1, 1, bits, bits, bits);
    return fixture_context_of(&p);
}

static uint64_t *words_create(size_t n) {
    uint64_t *w = malloc(n * sizeof *w);
    assert_non_null(w);
    return w;
}

static uint64_t evaluate_at(const uint64_t *in, uint32_t n, uint64_t x, const modulus *m) {
    uint64_t value = 0;
    for (uint32_t k = n; k-- > 0;) value = mod_add(mod_mul(value, x, m), in[k], m->value);
    return value;
}

static void forward_equals_the_definition_word_for_word(void **state) {
    (void)state;
    for (uint32_t log_n = 10; log_n <= 12; log_n++) {
        const uint32_t n = 1u << log_n, patterns = log_n == 10 ? FIXTURE_PATTERNS + 2 : 2;
        uint64_t *in = words_create(n), *out = words_create(n), *expected = words_create(n);
        for (size_t s = log_n == 12 ? PRIME_SIZES - 1 : 0; s < PRIME_SIZES; s += log_n == 11 ? 5 : 1) {
            ckks_context *context = context_of_size(log_n, prime_bits[s]);
            const ntt_table *t = context_ntt(context, 0);
            prng r;
            prng_init(&r, log_n * 64 + s);
            for (uint32_t k = 0; k < patterns; k++) {
                if (k + 2 < patterns + (log_n != 10))
                    fixture_adversarial_words(in, n, t->m.value, log_n == 10 ? k : 8);
                else
                    fixture_random_words(in, n, t->m.value, &r);
                ntt_forward_ref(expected, in, t);
                ntt_forward_scalar(out, in, t);
                assert_memory_equal(out, expected, n * sizeof *out);
                memcpy(out, in, n * sizeof *out);
                ntt_forward_scalar(out, out, t); /* in place */
                assert_memory_equal(out, expected, n * sizeof *out);
            }
            context_destroy(context);
        }
        free(in), free(out), free(expected);
    }
}

static void positions_of_large_rings_are_the_stated_powers_of_psi(void **state) {
    (void)state;
    for (uint32_t log_n = 13; log_n <= 17; log_n++) {
        const uint32_t n = 1u << log_n;
        ckks_context *context = context_of_size(log_n, log_n == 17 ? 50 : 40);
        const ntt_table *t = context_ntt(context, 1);
        const uint64_t psi = context_params(context)->psi[1];
        uint64_t *in = words_create(n), *out = words_create(n);
        prng r;
        prng_init(&r, log_n);
        fixture_random_words(in, n, t->m.value, &r);
        ntt_forward_scalar(out, in, t);
        for (uint32_t k = 0; k < 8; k++) {
            const uint32_t i = k == 0 ? 0 : k == 1 ? n - 1 : k == 2 ? 1 : (uint32_t)prng_below(&r, n);
            const uint64_t x = mod_pow(psi, 2 * bit_reverse(i, log_n) + 1, &t->m);
            assert_int_equal(out[i], evaluate_at(in, n, x, &t->m));
        }
        free(in), free(out);
        context_destroy(context);
    }
}

static void inverse_undoes_forward_on_every_pattern(void **state) {
    (void)state;
    for (uint32_t log_n = 10; log_n <= 17; log_n += log_n < 14 ? 1 : 3) {
        const uint32_t n = 1u << log_n;
        uint64_t *in = words_create(n), *out = words_create(n);
        for (size_t s = 0; s < PRIME_SIZES; s++) {
            ckks_context *context = context_of_size(log_n, prime_bits[s]);
            const ntt_table *t = context_ntt(context, 0);
            for (uint32_t k = 0; k < FIXTURE_PATTERNS; k++) {
                fixture_adversarial_words(in, n, t->m.value, k);
                ntt_forward_scalar(out, in, t);
                for (uint32_t i = 0; i < n; i++) assert_true(out[i] < t->m.value);
                ntt_inverse_scalar(out, out, t);
                assert_memory_equal(out, in, n * sizeof *out);
                ntt_inverse_scalar(out, in, t);
                for (uint32_t i = 0; i < n; i++) assert_true(out[i] < t->m.value);
                ntt_forward_scalar(out, out, t);
                assert_memory_equal(out, in, n * sizeof *out);
            }
            context_destroy(context);
        }
        free(in), free(out);
    }
}

/* c = a * b mod X^N + 1 by FLINT */
static void flint_product(uint64_t *c, const uint64_t *a, const uint64_t *b, uint32_t n, uint64_t q) {
    nmod_poly_t x, y, z;
    nmod_poly_init(x, q), nmod_poly_init(y, q), nmod_poly_init(z, q);
    for (uint32_t i = 0; i < n; i++) {
        nmod_poly_set_coeff_ui(x, (slong)i, a[i]);
        nmod_poly_set_coeff_ui(y, (slong)i, b[i]);
    }
    nmod_poly_mul(z, x, y);
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t low = nmod_poly_get_coeff_ui(z, (slong)i),
                       high = nmod_poly_get_coeff_ui(z, (slong)i + n);
        c[i] = low >= high ? low - high : low + q - high;
    }
    nmod_poly_clear(x), nmod_poly_clear(y), nmod_poly_clear(z);
}

static void products_equal_flint_modulo_x_to_n_plus_1(void **state) {
    (void)state;
    for (uint32_t log_n = 10; log_n <= 14; log_n++) {
        const uint32_t n = 1u << log_n;
        uint64_t *a = words_create(n), *b = words_create(n), *expected = words_create(n);
        for (size_t s = 0; s < PRIME_SIZES; s++) {
            ckks_context *context = context_of_size(log_n, prime_bits[s]);
            const ntt_table *t = context_ntt(context, 1);
            prng r;
            prng_init(&r, log_n + 100 * s);
            fixture_random_words(a, n, t->m.value, &r);
            fixture_adversarial_words(b, n, t->m.value, 8);
            flint_product(expected, a, b, n, t->m.value);
            ntt_forward_scalar(a, a, t);
            ntt_forward_scalar(b, b, t);
            for (uint32_t i = 0; i < n; i++) a[i] = mod_mul(a[i], b[i], &t->m);
            ntt_inverse_scalar(a, a, t);
            assert_memory_equal(a, expected, n * sizeof *a);
            context_destroy(context);
        }
        free(a), free(b), free(expected);
    }
}

static void automorphism_index_permutes_evaluations_as_substitution_does(void **state) {
    (void)state;
    const uint32_t log_n = 10, n = 1u << log_n, elements[] = {1, 5, 25, 2 * n - 1, 3, n + 1, 2 * n - 5};
    ckks_context *context = context_of_size(log_n, 40);
    const ntt_table *t = context_ntt(context, 0);
    uint64_t *in = words_create(n), *moved = words_create(n), *evaluated = words_create(n);
    prng r;
    prng_init(&r, 7);
    fixture_random_words(in, n, t->m.value, &r);
    ntt_forward_scalar(evaluated, in, t);
    for (size_t e = 0; e < sizeof elements / sizeof *elements; e++) {
        const uint32_t g = elements[e];
        for (uint32_t i = 0; i < n; i++) { /* X^i -> X^(ig), X^N = -1 */
            const uint32_t to = (uint32_t)((uint64_t)i * g % (2 * n));
            moved[to % n] = to < n ? in[i] : mod_negate(in[i], t->m.value);
        }
        ntt_forward_scalar(moved, moved, t);
        for (uint32_t i = 0; i < n; i++)
            assert_int_equal(moved[i], evaluated[automorphism_index(log_n, g, i)]);
    }
    free(in), free(moved), free(evaluated);
    context_destroy(context);
}

/* Position i holds the value at psi^e, e = 2 bitrev(i) + 1 (see above); X -> X^g moves the value at psi^(e g)
 * there. Every element of a small ring, many of each larger one: the positions by a table, not by a formula.
 */
static void automorphism_index_is_right_for_every_element(void **state) {
    (void)state;
    prng r;
    prng_init(&r, 8);
    for (uint32_t log_n = CKKS_LOG_N_MIN; log_n <= CKKS_LOG_N_MAX; log_n++) {
        const uint32_t n = 1u << log_n, rounds = log_n == 10 ? n : 6;
        uint32_t *exponent = calloc(n, sizeof *exponent), *position = calloc(2 * (size_t)n, sizeof *position);
        assert_non_null(exponent);
        assert_non_null(position);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t reversed = 0;
            for (uint32_t bit = 0; bit < log_n; bit++) reversed |= (i >> bit & 1) << (log_n - 1 - bit);
            exponent[i] = 2 * reversed + 1;
            position[exponent[i]] = i;
        }
        for (uint32_t k = 0; k < rounds; k++) {
            const uint32_t g = log_n == 10 ? 2 * k + 1 : k ? 2 * (uint32_t)prng_below(&r, n) + 1 : 2 * n - 1;
            for (uint32_t i = 0; i < n; i++)
                if (automorphism_index(log_n, g, i) != position[(uint64_t)exponent[i] * g % (2 * n)])
                    fail_msg("N = 2^%u, element %u, position %u", log_n, g, i);
        }
        free(exponent), free(position);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(automorphism_index_is_right_for_every_element),
        cmocka_unit_test(forward_equals_the_definition_word_for_word),
        cmocka_unit_test(positions_of_large_rings_are_the_stated_powers_of_psi),
        cmocka_unit_test(inverse_undoes_forward_on_every_pattern),
        cmocka_unit_test(products_equal_flint_modulo_x_to_n_plus_1),
        cmocka_unit_test(automorphism_index_permutes_evaluations_as_substitution_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
