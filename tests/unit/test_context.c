/* Base conversion constants against their definition in exact integers (FLINT). */
#include "kernels/scheme/internal.h"
#include "tests/support/fixtures.h"

#include <flint/fmpz.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void product_of(fmpz_t out, const ckks_params *p, const uint32_t *source, uint32_t count) {
    fmpz_one(out);
    for (uint32_t i = 0; i < count; i++) fmpz_mul_ui(out, out, p->prime[source[i]]);
}

static uint64_t shoup_of(uint64_t w, uint64_t q) {
    return (uint64_t)(((uint128)w << 64) / q);
}

/* every constant of `c` for the source primes given */
static void check_conversion(const base_conversion *c, const ckks_params *p, const uint32_t *source,
                             uint32_t count) {
    const uint32_t primes = params_prime_count(p);
    fmpz_t d, hat;
    fmpz_init(d), fmpz_init(hat);
    assert_int_equal(c->source_count, count);
    product_of(d, p, source, count);
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t q = p->prime[source[i]];
        assert_int_equal(c->source[i], source[i]);
        fmpz_divexact_ui(hat, d, q);
        const uint64_t reduced = fmpz_fdiv_ui(hat, q);
        assert_int_equal((uint64_t)((uint128)c->hat_inverse[i] * reduced % q), 1);
        assert_int_equal(c->hat_inverse_shoup[i], shoup_of(c->hat_inverse[i], q));
        for (uint32_t j = 0; j < primes; j++)
            assert_int_equal(c->hat[i * primes + j], fmpz_fdiv_ui(hat, p->prime[j]));
    }
    for (uint32_t j = 0; j < primes; j++) {
        const uint64_t q = p->prime[j], product = fmpz_fdiv_ui(d, q);
        assert_int_equal(c->product[j], product);
        if (product)
            assert_int_equal((uint64_t)((uint128)c->product_inverse[j] * product % q), 1);
        else
            assert_int_equal(c->product_inverse[j], 0);
        assert_int_equal(c->product_inverse_shoup[j], shoup_of(c->product_inverse[j], q));
    }
    fmpz_clear(d), fmpz_clear(hat);
}

static void conversion_constants_equal_their_definition_at_every_level(void **state) {
    (void)state;
    const struct {
        uint32_t q_count, p_count, digit_size;
    } shapes[] = {{1, 1, 1}, {5, 1, 1}, {7, 3, 3}, {8, 2, 2}, {16, 16, 16}, {3, 2, 2}};
    for (size_t t = 0; t < sizeof shapes / sizeof *shapes; t++) {
        ckks_context *context =
            fixture_context(10, shapes[t].q_count, shapes[t].p_count, shapes[t].digit_size);
        const ckks_params *p = context_params(context);
        uint32_t source[CKKS_DIGIT_SIZE_MAX + 2], all_p[CKKS_DIGIT_SIZE_MAX];
        for (uint32_t i = 0; i < p->p_count; i++) all_p[i] = p->q_count + i;
        for (uint32_t level = 0; level < p->q_count; level++) {
            uint32_t covered = 0;
            for (uint32_t digit = 0; digit < params_digit_count(p, level); digit++) {
                uint32_t count = 0;
                for (uint32_t i = digit * p->digit_size; i <= level && count < p->digit_size; i++)
                    source[count++] = i;
                check_conversion(context_mod_up(context, level, digit), p, source, count);
                covered += count;
            }
            assert_int_equal(covered, level + 1);
            check_conversion(context_mod_down(context, level, false), p, all_p, p->p_count);
            memcpy(source, all_p, sizeof all_p);
            source[p->p_count] = level;
            check_conversion(context_mod_down(context, level, true), p, source, p->p_count + 1);
            check_conversion(context_rescale(context, level), p, &level, 1);
        }
        for (uint32_t j = 0; j < params_prime_count(p); j++) {
            uint64_t value, shoup;
            context_p_product(context, j, &value, &shoup);
            assert_int_equal(value, context_mod_down(context, 0, false)->product[j]);
            assert_int_equal(shoup, shoup_of(value, p->prime[j]));
        }
        context_destroy(context);
    }
}

static void transform_tables_hold_powers_in_bit_reversed_order(void **state) {
    (void)state;
    ckks_context *context = fixture_context(11, 2, 1, 1);
    const ckks_params *p = context_params(context);
    for (uint32_t i = 0; i < 3; i++) {
        const ntt_table *t = context_ntt(context, i);
        const uint64_t q = p->prime[i];
        assert_int_equal(t->m.value, q);
        assert_int_equal(t->log_n, 11);
        assert_int_equal((uint64_t)((uint128)t->n_inverse * 2048 % q), 1);
        assert_int_equal(t->n_inverse_shoup, shoup_of(t->n_inverse, q));
        for (uint32_t k = 0; k < 2048; k++) {
            assert_int_equal(t->forward[k], mod_pow(p->psi[i], bit_reverse(k, 11), &t->m));
            assert_int_equal(mod_mul(t->forward[k], t->inverse[k], &t->m), 1);
            assert_int_equal(t->forward_shoup[k], shoup_of(t->forward[k], q));
            assert_int_equal(t->inverse_shoup[k], shoup_of(t->inverse[k], q));
        }
    }
    context_destroy(context);
    context_destroy(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversion_constants_equal_their_definition_at_every_level),
        cmocka_unit_test(transform_tables_hold_powers_in_bit_reversed_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
