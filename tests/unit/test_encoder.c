/* The encoder against MPFR's evaluation of the embedding, coefficient by coefficient and slot by slot. */
#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"
#include "kernels/scheme/encoder.h"
#include "kernels/scheme/encoder_roots.h"
#include "kernels/scheme/internal.h"
#include "kernels/scheme/limb_loops_internal.h"
#include "tests/support/fixtures.h"

#include <flint/fmpz.h>
#include <float.h>
#include <math.h>
#include <mpfr.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PRECISION 200

static void *create(size_t count, size_t size) {
    void *memory = calloc(count, size);
    assert_non_null(memory);
    return memory;
}

static void random_slots(double *out, uint32_t count, double magnitude, uint64_t seed) {
    prng r;
    prng_init(&r, seed);
    for (uint32_t i = 0; i < count; i++) out[i] = magnitude * prng_symmetric(&r);
}

/* ---- a table of cos and sin of 2 pi i / order, i < order, at high precision ---- */

typedef struct circle {
    uint32_t order;
    mpfr_t *cosine, *sine;
} circle;

static void circle_init(circle *c, uint32_t order) {
    c->order = order;
    c->cosine = create(order, sizeof *c->cosine);
    c->sine = create(order, sizeof *c->sine);
    mpfr_t x;
    mpfr_init2(x, PRECISION);
    for (uint32_t i = 0; i < order; i++) {
        mpfr_init2(c->cosine[i], PRECISION), mpfr_init2(c->sine[i], PRECISION);
        mpfr_const_pi(x, MPFR_RNDN);
        mpfr_mul_ui(x, x, 2 * (unsigned long)i, MPFR_RNDN);
        mpfr_div_ui(x, x, order, MPFR_RNDN);
        mpfr_sin_cos(c->sine[i], c->cosine[i], x, MPFR_RNDN);
    }
    mpfr_clear(x);
}

static void circle_fini(circle *c) {
    for (uint32_t i = 0; i < c->order; i++) mpfr_clear(c->cosine[i]), mpfr_clear(c->sine[i]);
    free(c->cosine), free(c->sine);
}

/* ---- roots ---- */

static void roots_are_correctly_rounded(void **state) {
    (void)state;
    const uint32_t log_n = 17, slots = 1u << (log_n - 1);
    double *roots = NULL;
    assert_int_equal(encoder_roots_create(&roots, log_n), CKKS_OK);
    mpfr_t x, c, s;
    mpfr_init2(x, 160), mpfr_init2(c, 160), mpfr_init2(s, 160);
    const double *at = roots;
    for (uint32_t length = 2; length <= slots; length *= 2) {
        for (uint32_t j = 0, power = 1; j < length / 2; j++, power = power * 5 % (4 * length), at++) {
            /* every root of the short stages, one in seven of the long ones */
            if (length > 4096 && j % 7) continue;
            mpfr_const_pi(x, MPFR_RNDN);
            mpfr_mul_ui(x, x, power, MPFR_RNDN);
            mpfr_div_ui(x, x, 2 * length, MPFR_RNDN);
            mpfr_sin_cos(s, c, x, MPFR_RNDN);
            assert_true(at[0] == mpfr_get_d(c, MPFR_RNDN));
            assert_true(at[slots] == mpfr_get_d(s, MPFR_RNDN));
        }
    }
    mpfr_clear(x), mpfr_clear(c), mpfr_clear(s);
    free(roots);
}

/* ---- encode ---- */

/* The coefficients by definition: m_k = (scale/s) Re(sum_j z_j zeta^(-5^j k)), k < 2s, zeta = exp(2 pi i /
 * 4s). */
static void exact_coefficient(mpfr_t out, uint32_t k, const double *re, const double *im, uint32_t slots,
                              double scale, const circle *c) {
    const uint32_t order = 4 * slots;
    mpfr_t term;
    mpfr_init2(term, PRECISION);
    mpfr_set_zero(out, 1);
    for (uint32_t j = 0, power = 1; j < slots; j++, power = power * 5 % order) {
        const uint32_t at = (uint32_t)((uint64_t)power * k % order);
        mpfr_mul_d(term, c->cosine[at], re[j], MPFR_RNDN);
        mpfr_add(out, out, term, MPFR_RNDN);
        if (!im) continue;
        mpfr_mul_d(term, c->sine[at], im[j], MPFR_RNDN);
        mpfr_add(out, out, term, MPFR_RNDN);
    }
    mpfr_mul_d(out, out, scale, MPFR_RNDN);
    mpfr_div_ui(out, out, slots, MPFR_RNDN);
    mpfr_clear(term);
}

/* centred value of one limb's coefficient: enough where coefficients are far below the prime */
static double centred(uint64_t word, uint64_t q) {
    return word > q / 2 ? -(double)(q - word) : (double)word;
}

static double worst_encoding_error(uint32_t log_n, uint32_t slots, double magnitude, double scale,
                                   bool is_complex, uint32_t step) {
    const ckks_params p = fixture_params_bits(log_n, 2, 1, 1, 50, 40, 50);
    ckks_context *context = fixture_context_of(&p);
    const uint32_t n = params_n(&p), gap = n / (2 * slots);
    double *re = create(slots, sizeof *re), *im = create(slots, sizeof *im), worst = 0;
    uint64_t *words = create((size_t)3 * n, sizeof *words);
    random_slots(re, slots, magnitude, slots + 1), random_slots(im, slots, magnitude, slots + 2);
    assert_int_equal(encoder_encode(words, context, re, is_complex ? im : NULL, slots, 1, true, scale, NULL),
                     CKKS_OK);
    for (uint32_t i = 0; i < 3; i++)
        ntt_inverse_scalar(words + i * n, words + i * n, context_ntt(context, i));
    circle c;
    circle_init(&c, 4 * slots);
    mpfr_t exact;
    mpfr_init2(exact, PRECISION);
    for (uint32_t k = 0; k < n; k++) {
        const double value = centred(words[k], p.prime[0]);
        if (k % gap) assert_int_equal(words[k], 0);
        for (uint32_t i = 1; i < 3; i++) /* one integer in all limbs, P's included */
            assert_true(centred(words[i * n + k], p.prime[i]) == value);
        if (k % gap || k / gap % step) continue;
        exact_coefficient(exact, k / gap, re, is_complex ? im : NULL, slots, scale, &c);
        mpfr_sub_d(exact, exact, value, MPFR_RNDN);
        const double error = fabs(mpfr_get_d(exact, MPFR_RNDN));
        if (error > worst) worst = error;
    }
    mpfr_clear(exact);
    circle_fini(&c);
    free(re), free(im), free(words);
    context_destroy(context);
    return worst;
}

static void encoding_equals_the_exact_embedding_rounded(void **state) {
    (void)state;
    const struct {
        uint32_t log_n, slots, step;
        double magnitude, scale;
        bool is_complex;
    } cases[] = {
        {10, 512, 1, 1, 0x1p30, false},   {10, 512, 1, 1, 0x1p30, true},    {10, 1, 1, 3, 0x1p35, true},
        {10, 2, 1, 3, 0x1p35, false},     {10, 64, 1, 40, 0x1p30, true},    {11, 1024, 5, 1, 0x1p38, true},
        {12, 2048, 31, 8, 0x1p30, false}, {13, 4096, 331, 1, 0x1p36, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const double worst = worst_encoding_error(cases[i].log_n, cases[i].slots, cases[i].magnitude,
                                                  cases[i].scale, cases[i].is_complex, cases[i].step);
        print_message("N = 2^%u, %u slots: worst error %.4f units\n", cases[i].log_n, cases[i].slots, worst);
        /* half a unit of rounding, and what binary64 loses before it: far from another half */
        assert_true(worst < 0.5 + 0.01);
    }
}

/* CRT by FLINT, centred */
static void flint_centred(fmpz_t out, const ckks_params *p, const uint64_t *limb, size_t stride,
                          uint32_t count) {
    fmpz_t product;
    fmpz_init_set_ui(product, 1);
    fmpz_set_ui(out, 0);
    for (uint32_t i = 0; i < count; i++) {
        fmpz_CRT_ui(out, out, product, limb[i * stride], p->prime[i], i + 1 == count);
        fmpz_mul_ui(product, product, p->prime[i]);
    }
    fmpz_clear(product);
}

static double fmpz_to_mpfr_difference(mpfr_t exact, const fmpz_t integer) {
    mpfr_t m;
    mpz_t z;
    mpz_init(z), mpfr_init2(m, 1200);
    fmpz_get_mpz(z, integer);
    mpfr_set_z(m, z, MPFR_RNDN);
    mpfr_sub(m, m, exact, MPFR_RNDN);
    const double difference = fabs(mpfr_get_d(m, MPFR_RNDN));
    mpz_clear(z), mpfr_clear(m);
    return difference;
}

/* One integer in all limbs, those of P too, and it is the exact coefficient to half a unit and what binary64
 * loses of the largest: whether it is some bits long or fills a modulus of 24 primes. */
static void encoding_keeps_its_precision_at_any_scale(void **state) {
    (void)state;
    const struct {
        uint32_t limbs, slots;
        double magnitude, scale;
    } cases[] = {{6, 64, 3, 0x1.3p150},    {12, 8, 20, 0x1p400},      {24, 32, 1, 0x1.8p1010},
                 {1, 16, 0x1p40, 0x1p-10}, {2, 512, 1e-200, 0x1p700}, {3, 4, 0x1p200, 0x1p-120},
                 {2, 64, 0x1p-30, 0x1p30}};
    for (size_t t = 0; t < sizeof cases / sizeof *cases; t++) {
        const uint32_t limbs = cases[t].limbs, slots = cases[t].slots;
        const ckks_params p = fixture_params_bits(10, limbs, 1, 1, 50, 45, 50);
        ckks_context *context = fixture_context_of(&p);
        const uint32_t n = params_n(&p), gap = n / (2 * slots), step = slots > 64 ? 37 : 1;
        double *re = create(slots, 8), *im = create(slots, 8), worst = 0, largest = 0;
        uint64_t *words = create((size_t)(limbs + 1) * n, 8);
        random_slots(re, slots, cases[t].magnitude, t + 1),
            random_slots(im, slots, cases[t].magnitude, t + 9);
        assert_int_equal(encoder_encode(words, context, re, im, slots, limbs - 1, true, cases[t].scale, NULL),
                         CKKS_OK);
        for (uint32_t i = 0; i <= limbs; i++)
            ntt_inverse_scalar(words + i * n, words + i * n, context_ntt(context, i));
        circle c;
        circle_init(&c, 4 * slots);
        mpfr_t exact;
        fmpz_t integer;
        mpfr_init2(exact, PRECISION), fmpz_init(integer);
        for (uint32_t k = 0; k < 2 * slots; k += step) {
            flint_centred(integer, &p, words + k * gap, n, limbs);
            assert_int_equal(words[limbs * n + k * gap], fmpz_fdiv_ui(integer, p.prime[limbs]));
            exact_coefficient(exact, k, re, im, slots, cases[t].scale, &c);
            worst = fmax(worst, fmpz_to_mpfr_difference(exact, integer));
            largest = fmax(largest, fabs(mpfr_get_d(exact, MPFR_RNDN)));
        }
        print_message("scale 2^%.0f: integers up to 2^%.1f, worst error 2^%.1f\n", log2(cases[t].scale),
                      log2(largest), log2(worst));
        assert_true(worst <= 0.5 + largest * 0x1p-49);
        mpfr_clear(exact), fmpz_clear(integer);
        circle_fini(&c);
        free(re), free(im), free(words);
        context_destroy(context);
    }
}

static void ties_go_to_even(void **state) {
    (void)state;
    const ckks_params p = fixture_params(10, 1, 1, 1);
    const struct {
        double value;
        int64_t integer;
    } cases[] = {{0.5, 0},   {1.5, 2}, {2.5, 2},  {-0.5, 0}, {-1.5, -2},
                 {-2.5, -2}, {3.5, 4}, {0.75, 1}, {-0.25, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t residue;
        assert_int_equal(encoder_constant(&residue, &p, cases[i].value, 1.0, 0, false, NULL), CKKS_OK);
        const int64_t x = cases[i].integer;
        assert_int_equal(residue, x < 0 ? p.prime[0] - (uint64_t)-x : (uint64_t)x);
    }
    /* one slot: the constant coefficient is the real part times the scale */
    ckks_context *context = fixture_context_of(&p);
    uint64_t words[1024];
    const double re = 2.5, im = -3.5;
    assert_int_equal(encoder_encode(words, context, &re, &im, 1, 0, false, 1.0, NULL), CKKS_OK);
    ntt_inverse_scalar(words, words, context_ntt(context, 0));
    assert_int_equal(words[0], 2);
    assert_int_equal(words[512], p.prime[0] - 4);
    context_destroy(context);
}

/* the residue of an integral double by FLINT */
static uint64_t flint_residue(double x, uint64_t q) {
    fmpz_t f, r;
    fmpz_init(f), fmpz_init(r);
    fmpz_set_d(f, x);
    const uint64_t residue = fmpz_fdiv_ui(f, q);
    fmpz_clear(f), fmpz_clear(r);
    return residue;
}

static void large_coefficients_reduce_exactly(void **state) {
    (void)state;
    const ckks_params p = fixture_params_bits(10, 24, 3, 3, 50, 40, 50);
    prng r;
    prng_init(&r, 3);
    for (int exponent = 0; exponent < 950; exponent += 3) {
        uint64_t residue[CKKS_PRIMES_MAX];
        double value = prng_symmetric(&r);
        if (exponent % 2 == 0) value = exponent % 4 ? 1.0 : -1.0;
        const double scale = ldexp(1.0, exponent);
        assert_int_equal(encoder_constant(residue, &p, value, scale, 23, true, NULL), CKKS_OK);
        const double integer = rint(value * scale);
        for (uint32_t i = 0; i < params_prime_count(&p); i++)
            assert_int_equal(residue[i], flint_residue(integer, p.prime[i]));
    }
}

/* What a prime divides is zero, and never the prime: also from the other side, and beyond 63 bits. */
static void multiples_of_a_prime_are_zero(void **state) {
    (void)state;
    const ckks_params p = fixture_params_bits(10, 8, 2, 2, 50, 40, 50);
    uint64_t residue[CKKS_PRIMES_MAX];
    for (uint32_t i = 0; i < params_prime_count(&p); i++)
        for (int exponent = 0; exponent < 200; exponent += 7)
            for (int sign = -1; sign <= 1; sign += 2) {
                const double integer = ldexp(sign * (double)p.prime[i], exponent);
                assert_int_equal(encoder_constant(residue, &p, integer, 1, 7, true, NULL), CKKS_OK);
                assert_int_equal(residue[i], 0);
                for (uint32_t k = 0; k < params_prime_count(&p); k++)
                    assert_int_equal(residue[k], flint_residue(integer, p.prime[k]));
            }
}

static void check_edge(const ckks_context *context, double integer, uint32_t level) {
    const ckks_params *p = context_params(context);
    const uint32_t n = params_n(p);
    uint64_t *words = create((size_t)6 * n, sizeof *words), constant[CKKS_PRIMES_MAX];
    const double value = integer * 0x1p-60;
    assert_int_equal(encoder_encode(words, context, &value, NULL, 1, level, true, 0x1p60, NULL), CKKS_OK);
    assert_int_equal(encoder_constant(constant, p, value, 0x1p60, level, true, NULL), CKKS_OK);
    for (uint32_t i = 0; i < level + 3; i++) {
        const uint32_t prime = i <= level ? i : p->q_count + i - level - 1;
        ntt_inverse_scalar(words + i * n, words + i * n, context_ntt(context, prime));
        assert_int_equal(words[i * n], flint_residue(integer, p->prime[prime]));
        assert_int_equal(constant[i], words[i * n]);
        for (uint32_t k = 1; k < n; k++) assert_int_equal(words[i * n + k], 0);
    }
    free(words);
}

/* The border between the two ways to reduce, and primes of P behind those of a level that is not the highest;
 * with the plain loops and with this machine's. */
static void integers_about_63_bits_are_exact_at_every_level(void **state) {
    (void)state;
    static const double edge[] = {
        0x1p63, -0x1p63,  0x1.fffffffffffffp62, -0x1.fffffffffffffp62, 0x1.0000000000001p63, 0x1p62, -0x1p64,
        0x1p51, -0x1.8p52};
    static const cpu_isa loops[] = {CPU_ISA_SCALAR, CPU_ISA_COUNT};
    ckks_context *context = fixture_context(10, 4, 2, 2);
    for (size_t l = 0; l < 2; l++) {
        limb_loops_force(loops[l]);
        for (size_t e = 0; e < sizeof edge / sizeof *edge; e++)
            for (uint32_t level = 1; level < 4; level++) check_edge(context, edge[e], level);
    }
    context_destroy(context);
}

static void whole_vectors_beyond_63_bits_keep_their_integer(void **state) {
    (void)state;
    ckks_context *context = fixture_context(10, 8, 2, 2);
    const ckks_params *p = context_params(context);
    const uint32_t n = params_n(p);
    uint64_t *words = create((size_t)10 * n, sizeof *words);
    double re[2] = {0.7310585786300049, -0.1};
    assert_int_equal(encoder_encode(words, context, re, NULL, 2, 7, true, 0x1p200, NULL), CKKS_OK);
    for (uint32_t i = 0; i < 10; i++)
        ntt_inverse_scalar(words + i * n, words + i * n, context_ntt(context, i));
    const double sum = (re[0] + re[1]) * 0x1p199; /* the constant coefficient: exact but for the sum */
    for (uint32_t i = 0; i < 10; i++) assert_int_equal(words[i * n], flint_residue(sum, p->prime[i]));
    free(words);
    context_destroy(context);
}

static void a_coefficient_over_half_q_is_refused_at_its_level(void **state) {
    (void)state;
    ckks_params p = fixture_params(10, 6, 2, 2);
    for (uint32_t level = 0; level < 6; level++) {
        fmpz_t q;
        fmpz_init_set_ui(q, 1);
        for (uint32_t i = 0; i <= level; i++) fmpz_mul_ui(q, q, p.prime[i]);
        fmpz_fdiv_q_2exp(q, q, 1);
        mpfr_t edge; /* (Q - 1) / 2, rounded down to a double: the largest that fits */
        mpfr_init2(edge, 53);
        mpz_t z;
        mpz_init(z);
        fmpz_get_mpz(z, q);
        mpfr_set_z(edge, z, MPFR_RNDD);
        const double fits = mpfr_get_d(edge, MPFR_RNDD);
        double over = nextafter(fits, INFINITY);
        if (over == rint(over)) {
            uint64_t residue[8];
            ckks_error err = {0};
            for (int sign = -1; sign <= 1; sign += 2) {
                memset(&err, 0, sizeof err);
                assert_int_equal(encoder_constant(residue, &p, sign * fits, 1, level, true, &err), CKKS_OK);
                assert_int_equal(encoder_constant(residue, &p, sign * over, 1, level, true, &err),
                                 CKKS_PRECISION);
                assert_string_equal(err.field, "scale");
            }
        } else { /* below 2^53 every integer is a double */
            uint64_t residue[8];
            assert_int_equal(encoder_constant(residue, &p, floor(fits), 1, level, true, NULL), CKKS_OK);
            assert_int_equal(encoder_constant(residue, &p, floor(fits) + 1, 1, level, true, NULL),
                             CKKS_PRECISION);
        }
        mpz_clear(z), mpfr_clear(edge), fmpz_clear(q);
    }
}

/* ... also where Q is beyond the largest double, and no finite number too large. */
static void what_is_no_number_after_scaling_fits_no_modulus(void **state) {
    (void)state;
    ckks_params p = fixture_params_bits(10, 24, 1, 1, 45, 45, 50); /* 2^1080 */
    ckks_context *context = fixture_context_of(&p);
    uint64_t *words = create((size_t)24 * 1024, 8), residue[CKKS_PRIMES_MAX];
    const double value[2] = {0x1p1000, -0x1p1000};
    ckks_error err = {0};
    assert_int_equal(encoder_constant(residue, &p, value[1], 0x1p23, 23, false, NULL), CKKS_OK);
    assert_int_equal(encoder_constant(residue, &p, value[1], 0x1p24, 23, false, &err), CKKS_PRECISION);
    assert_string_equal(err.field, "scale");
    assert_int_equal(encoder_encode(words, context, value, NULL, 2, 23, false, 0x1p20, NULL), CKKS_OK);
    assert_int_equal(encoder_encode(words, context, value, NULL, 2, 23, false, 0x1p30, NULL), CKKS_PRECISION);
    free(words);
    context_destroy(context);
}

static void bad_arguments_are_named(void **state) {
    (void)state;
    ckks_context *context = fixture_context(10, 2, 1, 1);
    uint64_t words[3 * 1024];
    double re[512] = {0}, im[512] = {0};
    const struct {
        uint32_t slots, level;
        double scale, re3, im5;
        ckks_status status;
        const char *field;
    } cases[] = {
        {0, 0, 1, 0, 0, CKKS_INVALID_ARGUMENT, "slot_count"},
        {3, 0, 1, 0, 0, CKKS_INVALID_ARGUMENT, "slot_count"},
        {1024, 0, 1, 0, 0, CKKS_INVALID_ARGUMENT, "slot_count"},
        {512, 2, 1, 0, 0, CKKS_INVALID_ARGUMENT, "level"},
        {512, 1, 0, 0, 0, CKKS_INVALID_ARGUMENT, "scale"},
        {512, 1, -1, 0, 0, CKKS_INVALID_ARGUMENT, "scale"},
        {512, 1, NAN, 0, 0, CKKS_INVALID_ARGUMENT, "scale"},
        {512, 1, INFINITY, 0, 0, CKKS_INVALID_ARGUMENT, "scale"},
        {512, 1, 0x1p30, NAN, 0, CKKS_OUT_OF_RANGE, "real[3]"},
        {512, 1, 0x1p30, INFINITY, 0, CKKS_OUT_OF_RANGE, "real[3]"},
        {512, 1, 0x1p30, 0, -INFINITY, CKKS_OUT_OF_RANGE, "imag[5]"},
        {512, 1, 0x1p30, 1e30, 0, CKKS_PRECISION, "scale"},
        {512, 1, 0x1p30, 0x1p1023, 0x1p1023, CKKS_PRECISION, "scale"},
        {512, 1, 0x1p1000, 0x1p1000, 0, CKKS_PRECISION, "scale"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ckks_error err = {0};
        re[3] = cases[i].re3, im[5] = cases[i].im5;
        assert_int_equal(encoder_encode(words, context, re, im, cases[i].slots, cases[i].level, true,
                                        cases[i].scale, &err),
                         cases[i].status);
        assert_string_equal(err.field, cases[i].field);
    }
    double full[512];
    for (uint32_t i = 0; i < 512; i++) full[i] = DBL_MAX; /* overflows inside the transform */
    assert_int_equal(encoder_encode(words, context, full, full, 512, 1, false, 1e-300, NULL), CKKS_PRECISION);
    ckks_error err = {0};
    assert_int_equal(encoder_decode(re, im, context, words, 511, 1, 1, &err), CKKS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "slot_count");
    assert_int_equal(encoder_decode(re, im, context, words, 512, 2, 1, NULL), CKKS_INVALID_ARGUMENT);
    assert_int_equal(encoder_decode(re, im, context, words, 512, 1, 0, NULL), CKKS_INVALID_ARGUMENT);
    context_destroy(context);
}

/* ---- decode ---- */

static void decoding_is_the_exact_crt_and_embedding(void **state) {
    (void)state;
    const struct {
        uint32_t log_n, limbs, slots;
    } cases[] = {{10, 1, 512}, {10, 2, 512}, {10, 3, 64}, {10, 7, 1}, {10, 24, 16}, {11, 2, 1024}};
    for (size_t t = 0; t < sizeof cases / sizeof *cases; t++) {
        const ckks_params p = fixture_params_bits(cases[t].log_n, cases[t].limbs, 1, 1, 50, 40, 50);
        ckks_context *context = fixture_context_of(&p);
        const uint32_t n = params_n(&p), slots = cases[t].slots, gap = n / (2 * slots),
                       limbs = cases[t].limbs;
        uint64_t *coefficients = create((size_t)limbs * n, 8), *words = create((size_t)limbs * n, 8);
        double *re = create(slots, 8), *im = create(slots, 8);
        prng r;
        prng_init(&r, t);
        fixture_random_poly(coefficients, &p, limbs - 1, false, &r); /* full range: every centring case */
        for (uint32_t k = 0; k < 6 && gap * k < n; k++)              /* 0, 1, -1, (Q-1)/2, -(Q-1)/2, 2 */
            for (uint32_t i = 0; i < limbs; i++) {
                const uint64_t q = p.prime[i], edge[6] = {0, 1, q - 1, (q - 1) / 2, (q + 1) / 2, 2};
                coefficients[i * n + gap * k] = edge[k];
            }
        for (uint32_t i = 0; i < limbs; i++)
            ntt_forward_scalar(words + i * n, coefficients + i * n, context_ntt(context, i));
        const double scale = ldexp(1.2345, (int)(40 * limbs));
        assert_int_equal(encoder_decode(re, im, context, words, slots, limbs - 1, scale, NULL), CKKS_OK);
        circle c;
        circle_init(&c, 4 * slots);
        mpfr_t *m = create(2 * slots, sizeof *m), x, y, term;
        mpfr_init2(x, PRECISION), mpfr_init2(y, PRECISION), mpfr_init2(term, PRECISION);
        fmpz_t f;
        fmpz_init(f);
        for (uint32_t k = 0; k < 2 * slots; k++) {
            mpfr_init2(m[k], 1200);
            flint_centred(f, &p, coefficients + k * gap, n, limbs);
            mpz_t z;
            mpz_init(z);
            fmpz_get_mpz(z, f);
            mpfr_set_z(m[k], z, MPFR_RNDN);
            mpz_clear(z);
        }
        double worst = 0, largest = 0;
        const uint32_t step = slots > 64 ? slots / 16 + 1 : 1;
        for (uint32_t j = 0, power = 1; j < slots; j++, power = power * 5 % (4 * slots)) {
            if (j % step) continue;
            mpfr_set_zero(x, 1), mpfr_set_zero(y, 1);
            for (uint32_t k = 0; k < 2 * slots; k++) {
                const uint32_t at = (uint32_t)((uint64_t)power * k % (4 * slots));
                mpfr_mul(term, m[k], c.cosine[at], MPFR_RNDN), mpfr_add(x, x, term, MPFR_RNDN);
                mpfr_mul(term, m[k], c.sine[at], MPFR_RNDN), mpfr_add(y, y, term, MPFR_RNDN);
            }
            mpfr_div_d(x, x, scale, MPFR_RNDN), mpfr_div_d(y, y, scale, MPFR_RNDN);
            largest = fmax(largest, fmax(fabs(mpfr_get_d(x, MPFR_RNDN)), fabs(mpfr_get_d(y, MPFR_RNDN))));
            mpfr_sub_d(x, x, re[j], MPFR_RNDN), mpfr_sub_d(y, y, im[j], MPFR_RNDN);
            worst = fmax(worst, fmax(fabs(mpfr_get_d(x, MPFR_RNDN)), fabs(mpfr_get_d(y, MPFR_RNDN))));
        }
        print_message("N = 2^%u, %u limbs, %u slots: worst relative error %.2g\n", cases[t].log_n, limbs,
                      slots, worst / largest);
        assert_true(worst <= largest * 0x1p-49);
        for (uint32_t k = 0; k < 2 * slots; k++) mpfr_clear(m[k]);
        free(m);
        mpfr_clear(x), mpfr_clear(y), mpfr_clear(term), fmpz_clear(f);
        circle_fini(&c);
        free(coefficients), free(words), free(re), free(im);
        context_destroy(context);
    }
}

static void decoding_undoes_encoding_for_every_slot_count(void **state) {
    (void)state;
    ckks_context *context = fixture_context(12, 3, 1, 1);
    const uint32_t n = 1u << 12;
    uint64_t *words = create((size_t)3 * n, 8);
    double *re = create(n / 2, 8), *im = create(n / 2, 8), *re2 = create(n / 2, 8), *im2 = create(n / 2, 8);
    for (uint32_t slots = 1; slots <= n / 2; slots *= 2) {
        random_slots(re, slots, 20, slots), random_slots(im, slots, 20, slots + 5);
        assert_int_equal(encoder_encode(words, context, re, im, slots, 2, false, 0x1p40, NULL), CKKS_OK);
        assert_int_equal(encoder_decode(re2, im2, context, words, slots, 2, 0x1p40, NULL), CKKS_OK);
        for (uint32_t i = 0; i < slots; i++) {
            assert_true(fabs(re[i] - re2[i]) < 0x1p-30);
            assert_true(fabs(im[i] - im2[i]) < 0x1p-30);
        }
        /* over all slots, the vector repeats */
        assert_int_equal(encoder_decode(re2, im2, context, words, n / 2, 2, 0x1p40, NULL), CKKS_OK);
        for (uint32_t i = 0; i < n / 2; i++) assert_true(fabs(re[i % slots] - re2[i]) < 0x1p-30);
    }
    free(words), free(re), free(im), free(re2), free(im2);
    context_destroy(context);
}

static void substituting_x_to_5_to_k_rotates_left_by_k(void **state) {
    (void)state;
    ckks_context *context = fixture_context(10, 1, 1, 1);
    const uint32_t n = 1024, slots = 512;
    uint64_t *words = create(n, 8), *moved = create(n, 8);
    double *re = create(slots, 8), *im = create(slots, 8), *re2 = create(slots, 8), *im2 = create(slots, 8);
    random_slots(re, slots, 1, 1), random_slots(im, slots, 1, 2);
    assert_int_equal(encoder_encode(words, context, re, im, slots, 0, false, 0x1p40, NULL), CKKS_OK);
    uint32_t g = 1;
    for (uint32_t k = 0; k < 5; k++, g = g * 5 % (2 * n)) {
        for (uint32_t i = 0; i < n; i++) moved[i] = words[automorphism_index(10, g, i)];
        assert_int_equal(encoder_decode(re2, im2, context, moved, slots, 0, 0x1p40, NULL), CKKS_OK);
        for (uint32_t i = 0; i < slots; i++) {
            assert_true(fabs(re[(i + k) % slots] - re2[i]) < 0x1p-30);
            assert_true(fabs(im[(i + k) % slots] - im2[i]) < 0x1p-30);
        }
    }
    for (uint32_t i = 0; i < n; i++) moved[i] = words[automorphism_index(10, 2 * n - 1, i)]; /* conjugation */
    assert_int_equal(encoder_decode(re2, im2, context, moved, slots, 0, 0x1p40, NULL), CKKS_OK);
    for (uint32_t i = 0; i < slots; i++) {
        assert_true(fabs(re[i] - re2[i]) < 0x1p-30);
        assert_true(fabs(im[i] + im2[i]) < 0x1p-30);
    }
    free(words), free(moved), free(re), free(im), free(re2), free(im2);
    context_destroy(context);
}

/* Figures of one machine and compiler, committed: any other must give the same words and the same doubles. */
static void words_and_doubles_are_the_same_on_every_machine(void **state) {
    (void)state;
    ckks_context *context = fixture_context(13, 3, 1, 1);
    const uint32_t n = 1u << 13, slots = n / 2;
    uint64_t *words = create((size_t)4 * n, 8);
    double *re = create(slots, 8), *im = create(slots, 8);
    uint8_t digest[SHA256_BYTES];
    char text[2 * SHA256_BYTES + 1];
    random_slots(re, slots, 3, 1), random_slots(im, slots, 3, 2);
    assert_int_equal(encoder_encode(words, context, re, im, slots, 2, true, 0x1p70, NULL), CKKS_OK);
    sha256(digest, words, (size_t)4 * n * 8);
    assert_string_equal(hex_encode(text, digest, sizeof digest),
                        "79c3ebb54a09c54a50a6c7870cc76abfd8c4c0e2bf9d1a1a54f9d1477c0d4a4e");
    assert_int_equal(encoder_decode(re, im, context, words, slots, 2, 0x1.23p69, NULL), CKKS_OK);
    sha256(digest, re, (size_t)slots * 8);
    assert_string_equal(hex_encode(text, digest, sizeof digest),
                        "711364d1e1338b2a15f9a084178a9c6418e37a090344c59d97146af4724f9efe");
    sha256(digest, im, (size_t)slots * 8);
    assert_string_equal(hex_encode(text, digest, sizeof digest),
                        "867ebb7b6f6c20329a029ef6e7058fd98ef8cd9fe59fff949caf42619e87f9c1");
    free(words), free(re), free(im);
    context_destroy(context);
}

/* 2^80 + 2^27 is half way between two doubles: what is below decides, and to even where nothing is. */
static void a_large_integer_is_rounded_once(void **state) {
    (void)state;
    static const struct {
        int64_t low; /* beside 2^80 + 2^27 */
        double expected;
    } cases[] = {{1, 0x1.0000000000001p80}, {0, 0x1p80}, {-1, 0x1p80}, {1 << 26, 0x1.0000000000001p80}};
    ckks_context *context = fixture_context(10, 3, 1, 1); /* q0 q1 is 2^80: the exact way */
    const ckks_params *p = context_params(context);
    const uint32_t n = params_n(p);
    uint64_t *words = create((size_t)3 * n, 8);
    for (size_t t = 0; t < sizeof cases / sizeof *cases; t++)
        for (int sign = -1; sign <= 1; sign += 2) {
            double re;
            for (uint32_t i = 0; i < 3; i++) { /* a constant is the same at every point */
                const uint64_t q = p->prime[i], top = flint_residue(0x1p80 * sign, q),
                               half = flint_residue(0x1p27 * sign, q);
                const uint64_t low = flint_residue((double)cases[t].low * sign, q);
                for (uint32_t k = 0; k < n; k++) words[i * n + k] = (top + half + low) % q;
            }
            assert_int_equal(encoder_decode(&re, NULL, context, words, 1, 2, 1, NULL), CKKS_OK);
            assert_true(re == sign * cases[t].expected);
        }
    free(words);
    context_destroy(context);
}

/* Each coefficient is a number, and their sum is not. */
static void a_sum_beyond_binary64_is_refused_on_decoding(void **state) {
    (void)state;
    ckks_context *context = fixture_context(10, 2, 1, 1);
    const uint32_t n = params_n(context_params(context));
    uint64_t *words = create((size_t)2 * n, 8);
    double re[4];
    ckks_error err = {0};
    for (uint32_t i = 0; i < 2; i++) {
        for (uint32_t k = 0; k < 4; k++) words[i * n + k * n / 8] = 1; /* the real halves of four numbers */
        ntt_forward_scalar(words + i * n, words + i * n, context_ntt(context, i));
    }
    assert_int_equal(encoder_decode(re, NULL, context, words, 4, 1, 0x1p-1022, &err), CKKS_OUT_OF_RANGE);
    assert_string_equal(err.field, "words");
    assert_int_equal(encoder_decode(re, NULL, context, words, 4, 1, 0x1p-1000, NULL), CKKS_OK);
    for (int i = 0; i < 4; i++) assert_true(fabs(re[i]) < 0x1p1003);
    free(words);
    context_destroy(context);
}

static void a_value_beyond_binary64_is_refused_on_decoding(void **state) {
    (void)state;
    const ckks_params p = fixture_params_bits(10, 24, 1, 1, 50, 50, 50);
    ckks_context *context = fixture_context_of(&p);
    const uint32_t n = params_n(&p);
    uint64_t *words = create((size_t)24 * n, 8);
    double *re = create(512, 8);
    prng r;
    prng_init(&r, 1);
    fixture_random_poly(words, &p, 23, false, &r); /* as after decryption with another key */
    ckks_error err = {0};
    assert_int_equal(encoder_decode(re, NULL, context, words, 512, 23, 0x1p40, &err), CKKS_OUT_OF_RANGE);
    assert_string_equal(err.field, "words");
    free(words), free(re);
    context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(roots_are_correctly_rounded),
        cmocka_unit_test(encoding_equals_the_exact_embedding_rounded),
        cmocka_unit_test(encoding_keeps_its_precision_at_any_scale),
        cmocka_unit_test(ties_go_to_even),
        cmocka_unit_test(large_coefficients_reduce_exactly),
        cmocka_unit_test(multiples_of_a_prime_are_zero),
        cmocka_unit_test(integers_about_63_bits_are_exact_at_every_level),
        cmocka_unit_test(a_large_integer_is_rounded_once),
        cmocka_unit_test(a_sum_beyond_binary64_is_refused_on_decoding),
        cmocka_unit_test(whole_vectors_beyond_63_bits_keep_their_integer),
        cmocka_unit_test(a_coefficient_over_half_q_is_refused_at_its_level),
        cmocka_unit_test(what_is_no_number_after_scaling_fits_no_modulus),
        cmocka_unit_test(bad_arguments_are_named),
        cmocka_unit_test(decoding_is_the_exact_crt_and_embedding),
        cmocka_unit_test(decoding_undoes_encoding_for_every_slot_count),
        cmocka_unit_test(substituting_x_to_5_to_k_rotates_left_by_k),
        cmocka_unit_test(words_and_doubles_are_the_same_on_every_machine),
        cmocka_unit_test(a_value_beyond_binary64_is_refused_on_decoding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
