/* Parameter sets: the security gate by its table, identity, validation, the choice of primes. */
#include "kernels/base/bytes.h"
#include "kernels/scheme/mod.h"
#include "kernels/scheme/params.h"
#include "tests/support/fixtures.h"

#include <flint/fmpz.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- the gate ---- */

/* ceil(log2) of the product by FLINT */
static uint32_t flint_log_qp(const ckks_params *p) {
    fmpz_t x;
    fmpz_init_set_ui(x, 1);
    for (uint32_t i = 0; i < params_prime_count(p); i++) fmpz_mul_ui(x, x, p->prime[i]);
    const uint32_t bits = (uint32_t)fmpz_clog_ui(x, 2);
    fmpz_clear(x);
    return bits;
}

/* A valid set whose log QP is exactly `bits`: primes just below powers of two, so that the logarithm of the
 * product is the sum of sizes, rounded up. */
static ckks_params set_of_log_qp(uint32_t log_n, uint32_t bits) {
    ckks_params p = {.log_n = log_n, .digit_size = 1, .secret_distribution = 1, .transform_order = 1};
    const uint32_t smallest = log_n + 8;
    uint32_t size[CKKS_PRIMES_MAX], count = 0, left = bits;
    if (left > 100) size[count++] = 50, left -= 50; /* P, the largest */
    while (left >= 50 + smallest) size[count++] = 50, left -= 50;
    if (left > 50) size[count++] = left - left / 2, left /= 2;
    size[count++] = left;
    uint64_t list[CKKS_PRIMES_MAX];
    uint32_t made = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t q = (((uint64_t)1 << size[i]) - 2) >> (log_n + 1) << (log_n + 1) | 1;
        for (;; q -= (uint64_t)2 << log_n) {
            bool is_new = is_prime_u64(q);
            for (uint32_t k = 0; k < made; k++) is_new &= list[k] != q;
            if (is_new) break;
        }
        list[made++] = q;
    }
    p.q_count = made - 1, p.p_count = 1;
    for (uint32_t i = 1; i < made; i++) p.prime[i - 1] = list[i];
    p.prime[made - 1] = list[0];
    ckks_error err = {0};
    if (params_finish(&p, &err) != CKKS_OK) fail_msg("log N %u, %u bits: %s", log_n, bits, err.message);
    assert_int_equal(params_log_qp(&p), flint_log_qp(&p));
    assert_int_equal(params_log_qp(&p), bits);
    return p;
}

static const struct {
    uint32_t log_n, limit[3];
} published[] = {
    {12, {106, 73, 56}},   {13, {214, 147, 114}},   {14, {430, 297, 230}},
    {15, {868, 597, 462}}, {16, {1747, 1199, 929}}, {17, {3523, 2411, 1866}},
};
static const uint32_t security[3] = {128, 192, 256};

static void each_limit_is_accepted_exactly_and_one_more_bit_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof published / sizeof *published; i++)
        for (int k = 0; k < 3; k++) {
            const uint32_t log_n = published[i].log_n, limit = published[i].limit[k];
            assert_int_equal(params_log_qp_max(log_n, security[k]), limit);
            const ckks_params at = set_of_log_qp(log_n, limit), over = set_of_log_qp(log_n, limit + 1);
            ckks_error err = {0};
            assert_int_equal(params_gate(&at, security[k], &err), CKKS_OK);
            assert_int_equal(params_security_bits(&at), security[k]);
            assert_int_equal(params_gate(&over, security[k], &err), CKKS_INSECURE_PARAMETERS);
            assert_int_equal(params_security_bits(&over), k == 0 ? 0 : security[k - 1]);
            char number[16];
            snprintf(number, sizeof number, "%u", limit + 1);
            assert_non_null(strstr(err.message, number)); /* both figures are told */
            snprintf(number, sizeof number, "%u", limit);
            assert_non_null(strstr(err.message, number));
        }
}

static void published_sets_over_the_table_are_refused(void **state) {
    (void)state;
    const struct {
        uint32_t log_n, log_qp;
        const char *name;
    } sets[] = {{16, 1767, "Lattigo bootstrapping, dense secret"},
                {16, 1788, "Lattigo bootstrapping, dense secret"},
                {16, 1793, "Lattigo bootstrapping, dense secret"},
                {15, 880, "Lattigo bootstrapping, dense secret"},
                {13, 217, "Orion, small"}};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        const ckks_params p = set_of_log_qp(sets[i].log_n, sets[i].log_qp);
        for (int k = 0; k < 3; k++) {
            ckks_error err = {0};
            assert_int_equal(params_gate(&p, security[k], &err), CKKS_INSECURE_PARAMETERS);
            assert_string_equal(err.field, "log_qp");
        }
        assert_int_equal(params_security_bits(&p), 0);
    }
}

static void what_the_table_lacks_is_insecure(void **state) {
    (void)state;
    const ckks_params p = fixture_params_bits(11, 1, 1, 1, 20, 20, 21);
    ckks_error err = {0};
    assert_int_equal(params_gate(&p, 128, &err), CKKS_INSECURE_PARAMETERS);
    assert_string_equal(err.field, "log_n");
    assert_int_equal(params_security_bits(&p), 0);
    assert_int_equal(params_log_qp_max(12, 100), 0);
    assert_int_equal(params_log_qp_max(12, 0), 0);
    assert_int_equal(params_log_qp_max(18, 128), 0);
    const ckks_params q = fixture_params_bits(12, 1, 1, 1, 20, 20, 21);
    assert_int_equal(params_gate(&q, 129, NULL), CKKS_INSECURE_PARAMETERS);
}

/* ---- identity ---- */

static void identities_equal_an_independent_computation(void **state) {
    (void)state;
    FILE *file = fopen("tests/data/params_id.txt", "r");
    assert_non_null(file);
    char line[4096];
    int cases = 0;
    while (fgets(line, sizeof line, file)) {
        if (line[0] == '#') continue;
        ckks_params p = {.secret_distribution = 1, .transform_order = 1};
        char *at = line;
        p.log_n = (uint32_t)strtoul(at, &at, 10), p.q_count = (uint32_t)strtoul(at, &at, 10);
        p.p_count = (uint32_t)strtoul(at, &at, 10), p.digit_size = (uint32_t)strtoul(at, &at, 10);
        const uint32_t count = params_prime_count(&p);
        uint64_t psi[CKKS_PRIMES_MAX];
        for (uint32_t i = 0; i < count; i++) p.prime[i] = strtoull(at, &at, 10);
        for (uint32_t i = 0; i < count; i++) psi[i] = strtoull(at, &at, 10);
        char expected[65], id[65];
        assert_int_equal(sscanf(at, "%64s", expected), 1);
        assert_int_equal(params_finish(&p, NULL), CKKS_OK); /* finds the smallest roots itself */
        for (uint32_t i = 0; i < count; i++) assert_int_equal(p.psi[i], psi[i]);
        assert_string_equal(hex_encode(id, p.id, sizeof p.id), expected);
        assert_int_equal(params_finish(&p, NULL), CKKS_OK); /* and accepts them when given */
        assert_string_equal(hex_encode(id, p.id, sizeof p.id), expected);
        cases++;
    }
    fclose(file);
    assert_int_equal(cases, 6);
}

static void every_field_changes_the_identity(void **state) {
    (void)state;
    const ckks_params base = fixture_params(10, 4, 2, 2);
    ckks_params p = base;
    p.digit_size = 1;
    assert_int_equal(params_finish(&p, NULL), CKKS_OK);
    assert_memory_not_equal(p.id, base.id, sizeof p.id);
    p = base; /* another order of the same primes */
    const uint64_t prime = p.prime[1], psi = p.psi[1];
    p.prime[1] = p.prime[2], p.psi[1] = p.psi[2], p.prime[2] = prime, p.psi[2] = psi;
    assert_int_equal(params_finish(&p, NULL), CKKS_OK);
    assert_memory_not_equal(p.id, base.id, sizeof p.id);
    p = base; /* another root: psi^3 */
    const modulus m = modulus_create(p.prime[0]);
    p.psi[0] = mod_pow(p.psi[0], 3, &m);
    assert_int_equal(params_finish(&p, NULL), CKKS_OK);
    assert_memory_not_equal(p.id, base.id, sizeof p.id);
    p = base; /* a q becomes a p */
    p.q_count = 3, p.p_count = 3;
    assert_int_equal(params_finish(&p, NULL), CKKS_OK);
    assert_memory_not_equal(p.id, base.id, sizeof p.id);
}

/* ---- validation ---- */

static ckks_params base_set(void) {
    return fixture_params(10, 4, 2, 2);
}
static void log_n_small(ckks_params *p) {
    p->log_n = 9;
}
static void log_n_large(ckks_params *p) {
    p->log_n = 18;
}
static void log_n_huge(ckks_params *p) {
    p->log_n = UINT32_MAX;
}
static void no_q(ckks_params *p) {
    p->q_count = 0;
}
static void many_q(ckks_params *p) {
    p->q_count = 81;
}
static void huge_q(ckks_params *p) {
    p->q_count = UINT32_MAX;
}
static void many_p(ckks_params *p) {
    p->p_count = 17;
}
static void too_many_together(ckks_params *p) {
    p->q_count = 79, p->p_count = 2;
}
static void huge_p(ckks_params *p) {
    p->p_count = UINT32_MAX - 3;
}
static void no_digit(ckks_params *p) {
    p->digit_size = 0;
}
static void large_digit(ckks_params *p) {
    p->digit_size = 5;
}
static void large_digit_without_p(ckks_params *p) {
    p->digit_size = 5, p->p_count = 0; /* no P that it could be over */
}
static void digit_over_p(ckks_params *p) {
    p->digit_size = 3;
}
static void other_secret(ckks_params *p) {
    p->secret_distribution = 2;
}
static void other_order(ckks_params *p) {
    p->transform_order = 0;
}
static void composite(ckks_params *p) {
    p->prime[2] = 2048ull * 3 * 5 * 7 + 1;
    while (is_prime_u64(p->prime[2])) p->prime[2] += 2048;
}
static void wrong_class(ckks_params *p) {
    p->prime[1] = 1000003;
}
static void too_wide(ckks_params *p) {
    p->prime[3] = ((uint64_t)1 << 50) + 1;
    while (!is_prime_u64(p->prime[3])) p->prime[3] += 2048;
}
static void twice(ckks_params *p) {
    p->prime[3] = p->prime[1], p->psi[3] = p->psi[1];
}
static void p_is_a_q(ckks_params *p) {
    p->prime[5] = p->prime[0], p->psi[5] = p->psi[0];
}
static void zero_prime(ckks_params *p) {
    p->prime[0] = 0;
}
static void one_prime(ckks_params *p) {
    p->prime[0] = 1;
}
static void psi_of_lower_order(ckks_params *p) {
    const modulus m = modulus_create(p->prime[4]);
    p->psi[4] = mod_mul(p->psi[4], p->psi[4], &m);
}
static void psi_one(ckks_params *p) {
    p->psi[0] = 1;
}
static void psi_over(ckks_params *p) {
    p->psi[0] += p->prime[0];
}

static void each_fault_is_refused_by_its_field(void **state) {
    (void)state;
    const struct {
        void (*spoil)(ckks_params *);
        const char *field;
    } cases[] = {
        {log_n_small, "log_n"},
        {log_n_large, "log_n"},
        {log_n_huge, "log_n"},
        {no_q, "q_count"},
        {many_q, "q_count"},
        {huge_q, "q_count"},
        {many_p, "p_count"},
        {too_many_together, "p_count"},
        {huge_p, "p_count"},
        {no_digit, "digit_size"},
        {large_digit, "digit_size"},
        {large_digit_without_p, "digit_size"},
        {digit_over_p, "digit_size"},
        {other_secret, "secret_distribution"},
        {other_order, "transform_order"},
        {composite, "prime[2]"},
        {wrong_class, "prime[1]"},
        {too_wide, "prime[3]"},
        {twice, "prime[3]"},
        {p_is_a_q, "prime[5]"},
        {zero_prime, "prime[0]"},
        {one_prime, "prime[0]"},
        {psi_of_lower_order, "psi[4]"},
        {psi_one, "psi[0]"},
        {psi_over, "psi[0]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ckks_params p = base_set();
        ckks_error err = {0};
        assert_int_equal(params_finish(&p, &err), CKKS_OK);
        cases[i].spoil(&p);
        assert_int_equal(params_finish(&p, &err), CKKS_INVALID_ARGUMENT);
        assert_string_equal(err.field, cases[i].field);
        assert_true(err.message[0] != 0);
    }
}

static void a_digit_equal_to_p_in_size_but_larger_is_refused(void **state) {
    (void)state;
    ckks_params p = fixture_params_bits(10, 1, 1, 1, 40, 40, 40); /* p is the larger of the two */
    assert_true(p.prime[1] > p.prime[0]);
    const uint64_t prime = p.prime[0], psi = p.psi[0];
    p.prime[0] = p.prime[1], p.psi[0] = p.psi[1], p.prime[1] = prime, p.psi[1] = psi;
    ckks_error err = {0};
    assert_int_equal(params_finish(&p, &err), CKKS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "digit_size");
}

/* The widths are the same: only the numbers themselves tell. */
static void a_digit_of_the_width_of_p_is_compared_exactly(void **state) {
    (void)state;
    uint64_t large = ((uint64_t)1 << 40) - 2047, small;
    while (!is_prime_u64(large)) large -= 2048;
    for (small = large - 2048; !is_prime_u64(small);) small -= 2048;
    assert_int_equal(__builtin_clzll(large), __builtin_clzll(small));
    ckks_params p = {.log_n = 10,
                     .q_count = 1,
                     .p_count = 1,
                     .digit_size = 1,
                     .secret_distribution = 1,
                     .transform_order = 1,
                     .prime = {small, large}};
    ckks_error err = {0};
    assert_int_equal(params_finish(&p, &err), CKKS_OK);
    p.prime[0] = large, p.prime[1] = small;
    p.psi[0] = p.psi[1] = 0;
    assert_int_equal(params_finish(&p, &err), CKKS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "digit_size");
}

/* Sets are compared and copied whole. */
static void what_lies_behind_the_primes_is_cleared(void **state) {
    (void)state;
    ckks_params clean = base_set(), p = clean;
    for (uint32_t i = params_prime_count(&p); i < CKKS_PRIMES_MAX; i++) p.prime[i] = i, p.psi[i] = ~0ull;
    assert_int_equal(params_finish(&clean, NULL), CKKS_OK);
    assert_int_equal(params_finish(&p, NULL), CKKS_OK);
    assert_memory_equal(p.prime, clean.prime, sizeof p.prime);
    assert_memory_equal(p.psi, clean.psi, sizeof p.psi);
    assert_memory_equal(p.id, clean.id, sizeof p.id);
}

/* ---- choice of primes ---- */

/* log2 of the largest deviation of the scale from nominal when every level squares and divides */
static double drift(const ckks_params *p, uint32_t bits) {
    double scale = 1, worst = 0;
    for (uint32_t level = p->q_count - 1; level > 0; level--) {
        scale = scale * scale / ((double)p->prime[level] / ldexp(1, (int)bits));
        worst = fmax(worst, fabs(log2(scale)));
    }
    return log2(worst);
}

static void the_order_of_primes_holds_the_scale_at_nominal(void **state) {
    (void)state;
    const struct {
        uint32_t log_n, q0, bits, q_count, p_bits, p_count, digit;
        double limit;
    } menu[] = {{12, 38, 28, 2, 38, 1, 1, -9},   {13, 40, 30, 5, 50, 1, 1, -10},
                {14, 50, 40, 9, 50, 1, 1, -17},  {14, 50, 40, 8, 50, 2, 2, -17},
                {15, 50, 40, 17, 50, 3, 3, -16}, {15, 45, 35, 22, 44, 2, 2, -11},
                {16, 50, 40, 35, 50, 6, 6, -14}};
    for (size_t i = 0; i < sizeof menu / sizeof *menu; i++) {
        const ckks_params p = fixture_params_bits(menu[i].log_n, menu[i].q_count, menu[i].p_count,
                                                  menu[i].digit, menu[i].q0, menu[i].bits, menu[i].p_bits);
        const double worst = drift(&p, menu[i].bits);
        print_message("N = 2^%u, %u levels of %u bits: drift 2^%.1f, log QP %u, %u bits secure\n",
                      menu[i].log_n, menu[i].q_count - 1, menu[i].bits, worst, params_log_qp(&p),
                      params_security_bits(&p));
        assert_true(worst < menu[i].limit);
        assert_true(params_security_bits(&p) >= 128);
        assert_true(p.prime[0] < (uint64_t)1 << menu[i].q0);
        const ckks_params again =
            fixture_params_bits(menu[i].log_n, menu[i].q_count, menu[i].p_count, menu[i].digit, menu[i].q0,
                                menu[i].bits, menu[i].p_bits);
        assert_memory_equal(again.id, p.id, sizeof p.id);
    }
}

static void generation_refuses_what_it_cannot_make(void **state) {
    (void)state;
    const uint32_t fine[CKKS_PRIMES_MAX] = {45, 35, 35, 35}, p46[17] = {46, 46};
    uint32_t bits[CKKS_PRIMES_MAX];
    ckks_params p;
    ckks_error err = {0};
    assert_int_equal(params_generate(&p, 10, fine, 0, p46, 1, 1, &err), CKKS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "q_count");
    memset(&err, 0, sizeof err);
    assert_int_equal(params_generate(&p, 10, fine, 81, p46, 1, 1, &err), CKKS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "q_count");
    memset(&err, 0, sizeof err);
    memcpy(bits, fine, sizeof bits), bits[2] = 51;
    assert_int_equal(params_generate(&p, 10, bits, 4, p46, 1, 1, &err), CKKS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "q_bits[2]");
    memset(&err, 0, sizeof err);
    assert_int_equal(params_generate(&p, 10, fine, 4, (const uint32_t[]){12}, 1, 1, &err),
                     CKKS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "p_bits[0]");
    memset(&err, 0, sizeof err); /* few primes of 14 bits are 1 modulo 2^11 */
    for (uint32_t i = 0; i < 10; i++) bits[i] = 14;
    assert_int_equal(params_generate(&p, 10, bits, 10, p46, 1, 1, &err), CKKS_INVALID_ARGUMENT);
    assert_int_equal(strncmp(err.field, "q_bits[", 7), 0);
    memset(&err, 0, sizeof err); /* two q of a digit do not fit one p */
    assert_int_equal(params_generate(&p, 10, fine, 4, p46, 1, 2, &err), CKKS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "digit_size");
}

static void eighty_primes_of_fifty_bits_are_counted_exactly(void **state) {
    (void)state;
    const ckks_params p = fixture_params_bits(12, 64, 16, 16, 50, 50, 50);
    assert_int_equal(params_log_qp(&p), flint_log_qp(&p));
    assert_int_equal(params_log_qp(&p), 4000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_limit_is_accepted_exactly_and_one_more_bit_refused),
        cmocka_unit_test(published_sets_over_the_table_are_refused),
        cmocka_unit_test(what_the_table_lacks_is_insecure),
        cmocka_unit_test(identities_equal_an_independent_computation),
        cmocka_unit_test(every_field_changes_the_identity),
        cmocka_unit_test(each_fault_is_refused_by_its_field),
        cmocka_unit_test(a_digit_equal_to_p_in_size_but_larger_is_refused),
        cmocka_unit_test(a_digit_of_the_width_of_p_is_compared_exactly),
        cmocka_unit_test(what_lies_behind_the_primes_is_cleared),
        cmocka_unit_test(the_order_of_primes_holds_the_scale_at_nominal),
        cmocka_unit_test(generation_refuses_what_it_cannot_make),
        cmocka_unit_test(eighty_primes_of_fifty_bits_are_counted_exactly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
