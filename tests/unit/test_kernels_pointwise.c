/*
 * Pointwise kernels, transforms and automorphisms of the CPU device against plain definitions: FLINT's
 * modular arithmetic for the former, evaluation by Horner and X -> X^g on coefficients for the latter.
 */
#include "kernels/cpu/kernels_cpu.h"
#include "tests/support/device_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
// cmocka wants the four above first
#include <cmocka.h>
#include <flint/nmod_poly.h>

/* rings and prime sizes that are met in practice and at the edges: bits of q0, of the other q, of p */
static const struct {
    uint32_t log_n, q_count, p_count, digit_size, q0_bits, q_bits, p_bits, threads;
} rings[] = {
    {10, 3, 1, 1, 50, 25, 50, 1},
    {11, 4, 2, 2, 45, 36, 47, 2},
    {12, 2, 1, 1, 38, 28, 38, 2},
    {13, 5, 1, 1, 40, 30, 50, 3},
};
#define RINGS (sizeof rings / sizeof *rings)

static void ring_open(device_fixture *f, size_t ring) {
    const ckks_params params = fixture_params_bits(
        rings[ring].log_n, rings[ring].q_count, rings[ring].p_count, rings[ring].digit_size,
        rings[ring].q0_bits, rings[ring].q_bits, rings[ring].p_bits);
    device_fixture_open(f, fixture_context_of(&params), rings[ring].threads);
}

/* a polynomial on the host, with its device copy */
typedef struct operand {
    kernel_poly poly;
    uint64_t *host;
    uint64_t bytes;
} operand;

static uint64_t prime_of(const device_fixture *f, kernel_basis b, uint32_t limb) {
    return f->params->prime[basis_prime(b, limb, f->params->q_count)];
}

/* pattern below FIXTURE_PATTERNS: adversarial; else random. `gap` limbs between components hold garbage */
static operand operand_create(device_fixture *f, uint32_t components, kernel_basis b, uint32_t gap,
                              uint32_t pattern, prng *r) {
    const uint32_t limbs = basis_limb_count(b), stride = limbs + gap;
    operand o = {.poly = {NULL, components, stride, b}, .bytes = (uint64_t)components * stride * f->n * 8};
    o.host = malloc(o.bytes + 8); /* never 0 */
    memset(o.host, 0xa5, o.bytes);
    for (uint32_t c = 0; c < components; c++)
        for (uint32_t i = 0; i < limbs; i++) {
            uint64_t *words = o.host + ((uint64_t)c * stride + i) * f->n;
            if (pattern < FIXTURE_PATTERNS)
                fixture_adversarial_words(words, f->n, prime_of(f, b, i),
                                          (pattern + c * 3) % FIXTURE_PATTERNS);
            else
                fixture_random_words(words, f->n, prime_of(f, b, i), r);
        }
    o.poly.words = device_fixture_upload(f, o.host, o.bytes);
    return o;
}
/* an output: garbage everywhere */
static operand operand_output(device_fixture *f, uint32_t components, kernel_basis b, uint32_t gap) {
    operand o = {.poly = {NULL, components, basis_limb_count(b) + gap, b},
                 .bytes = (uint64_t)components * (basis_limb_count(b) + gap) * f->n * 8};
    o.host = malloc(o.bytes + 8); /* never 0 */
    o.poly.words = device_fixture_upload(f, NULL, o.bytes);
    return o;
}
static void operand_destroy(device_fixture *f, operand *o) {
    device_free(f->dev, o->poly.words);
    free(o->host);
}
static void operand_download(device_fixture *f, operand *o) {
    device_fixture_download(f, o->host, o->poly.words, o->bytes);
}
/* word k of the limb of `o` that has the prime of `limb` in `out` */
static uint64_t word(const device_fixture *f, const operand *o, uint32_t c, kernel_basis out, uint32_t limb,
                     uint32_t k) {
    if (c >= o->poly.component_count) return 0;
    const uint64_t prime = prime_of(f, out, limb);
    for (uint32_t i = 0; i < basis_limb_count(o->poly.basis); i++)
        if (prime_of(f, o->poly.basis, i) == prime)
            return o->host[((uint64_t)c * o->poly.component_stride + i) * f->n + k];
    fail_msg("prime is missing");
    return 0;
}

/* six components are three ciphertexts, one after the other */
static uint32_t every_of(const operand *a) {
    return a->poly.component_count == 6 ? 2 : 0;
}

/* the definition of one output word */
static uint64_t expected_word(const device_fixture *f, kernel_id kernel, const operand *a, const operand *b,
                              const uint64_t *scalar, uint32_t c, kernel_basis out, uint32_t limb,
                              uint32_t k) {
    nmod_t m;
    nmod_init(&m, prime_of(f, out, limb));
    const uint64_t x = word(f, a, c, out, limb, k);
    switch (kernel) {
    case KERNEL_COPY:
        return x;
    case KERNEL_NEGATE:
        return nmod_neg(x, m);
    case KERNEL_ADD:
        return nmod_add(x, word(f, b, c, out, limb, k), m);
    case KERNEL_SUBTRACT:
        return nmod_sub(x, word(f, b, c, out, limb, k), m);
    case KERNEL_ADD_PLAIN:
        return c == 0 ? nmod_add(x, word(f, b, 0, out, limb, k), m) : x;
    case KERNEL_MULTIPLY_PLAIN:
        return nmod_mul(x, word(f, b, 0, out, limb, k), m);
    case KERNEL_ADD_SCALARS:
        return c == 0 || (every_of(a) && c % every_of(a) == 0) ? nmod_add(x, scalar[limb], m) : x;
    case KERNEL_MULTIPLY_SCALARS:
        return nmod_mul(x, scalar[limb], m);
    case KERNEL_MULTIPLY:
    case KERNEL_SQUARE: {
        uint64_t sum = 0;
        const uint32_t from = c / 3 * 2; /* of the ciphertext in a batch */
        for (uint32_t i = 0; i <= c % 3; i++)
            if (i < 2 && c % 3 - i < 2)
                sum = nmod_add(sum,
                               nmod_mul(word(f, a, from + i, out, limb, k),
                                        word(f, b, from + c % 3 - i, out, limb, k), m),
                               m);
        return sum;
    }
    default:
        fail();
        return 0;
    }
}

static uint64_t words_checked;

static void check(device_fixture *f, kernel_id kernel, operand *out, const operand *a, const operand *b,
                  const uint64_t *scalar) {
    const kernel_basis basis = out->poly.basis;
    operand_download(f, out);
    for (uint32_t c = 0; c < out->poly.component_count; c++)
        for (uint32_t i = 0; i < out->poly.component_stride; i++)
            for (uint32_t k = 0; k < f->n; k++) {
                const uint64_t got = out->host[((uint64_t)c * out->poly.component_stride + i) * f->n + k];
                const uint64_t want = i < basis_limb_count(basis)
                                          ? expected_word(f, kernel, a, b, scalar, c, basis, i, k)
                                          : 0xa5a5a5a5a5a5a5a5u; /* gaps are not touched */
                if (got != want)
                    fail_msg("%s component %u limb %u word %u: %lu, expected %lu", kernel_name(kernel), c, i,
                             k, got, want);
                words_checked++;
            }
}

static bool is_scalars(kernel_id kernel) {
    return kernel == KERNEL_ADD_SCALARS || kernel == KERNEL_MULTIPLY_SCALARS;
}
static bool is_unary(kernel_id kernel) {
    return kernel == KERNEL_COPY || kernel == KERNEL_NEGATE || kernel == KERNEL_SQUARE;
}

static void launch(device_fixture *f, kernel_id kernel, const operand *out, const operand *a,
                   const operand *b, const uint64_t *scalar) {
    const kernel_unary_args unary = {f->tables, out->poly, a->poly};
    const kernel_binary_args binary = {f->tables, out->poly, a->poly, b->poly};
    kernel_scalars_args scalars = {f->tables, out->poly, a->poly, {0}, every_of(a)};
    memcpy(scalars.scalar, scalar, sizeof scalars.scalar);
    device_fixture_launch(f, kernel,
                          is_unary(kernel)     ? (const void *)&unary
                          : is_scalars(kernel) ? (const void *)&scalars
                                               : (const void *)&binary);
}

typedef struct shape {
    uint32_t a, b, out; /* components */
} shape;
/* the shapes a kernel takes; returns how many */
static uint32_t shapes_of(kernel_id kernel, shape s[4]) {
    switch (kernel) {
    case KERNEL_ADD:
    case KERNEL_SUBTRACT:
        s[0] = (shape){2, 2, 2}, s[1] = (shape){3, 1, 3}, s[2] = (shape){1, 3, 3}, s[3] = (shape){5, 5, 5};
        return 4;
    case KERNEL_ADD_PLAIN:
    case KERNEL_MULTIPLY_PLAIN:
        s[0] = (shape){1, 1, 1}, s[1] = (shape){2, 1, 2};
        return 2;
    case KERNEL_MULTIPLY:
    case KERNEL_SQUARE:
        s[0] = (shape){2, 2, 3}, s[1] = (shape){6, 6, 9};
        return 2;
    default:
        s[0] = (shape){1, 1, 1}, s[1] = (shape){3, 1, 3}, s[2] = (shape){6, 1, 6};
        return 3;
    }
}

static void run_case(device_fixture *f, kernel_id kernel, shape s, kernel_basis out_basis,
                     kernel_basis in_basis, uint32_t gap, uint32_t pattern, prng *r) {
    operand a = operand_create(f, s.a, in_basis, gap, pattern, r);
    operand b = operand_create(
        f, s.b, in_basis, 0, pattern < FIXTURE_PATTERNS ? (pattern * 5 + 2) % FIXTURE_PATTERNS : pattern, r);
    operand out = operand_output(f, s.out, out_basis, gap);
    uint64_t scalar[CKKS_PRIMES_MAX] = {0};
    for (uint32_t i = 0; i < basis_limb_count(out_basis); i++) {
        const uint64_t q = prime_of(f, out_basis, i), edge[] = {0, 1, q - 1, prng_below(r, q)};
        scalar[i] = edge[(pattern + i) % 4];
    }
    const operand *second = kernel == KERNEL_SQUARE ? &a : &b;
    launch(f, kernel, &out, &a, second, scalar);
    check(f, kernel, &out, &a, second, scalar);
    operand_destroy(f, &a), operand_destroy(f, &b), operand_destroy(f, &out);
}

static const kernel_id pointwise[] = {
    KERNEL_COPY,      KERNEL_NEGATE,         KERNEL_ADD,         KERNEL_SUBTRACT,
    KERNEL_ADD_PLAIN, KERNEL_MULTIPLY_PLAIN, KERNEL_ADD_SCALARS, KERNEL_MULTIPLY_SCALARS,
    KERNEL_MULTIPLY,  KERNEL_SQUARE,
};
#define POINTWISE (sizeof pointwise / sizeof *pointwise)

static void pointwise_kernels_match_flint_word_for_word(void **state) {
    (void)state;
    for (size_t ring = 0; ring < RINGS; ring++) {
        device_fixture f;
        prng r;
        prng_init(&r, 100 + ring);
        ring_open(&f, ring);
        const uint32_t q_count = f.params->q_count, p_count = f.params->p_count;
        const kernel_basis all = {0, q_count, p_count}, one = {1, 1, 0}, p_alone = {0, 0, p_count};
        const uint32_t patterns = rings[ring].log_n <= 11 ? FIXTURE_PATTERNS : 3;
        for (size_t i = 0; i < POINTWISE; i++) {
            shape s[4];
            const uint32_t count = shapes_of(pointwise[i], s);
            for (uint32_t k = 0; k < count; k++) {
                run_case(&f, pointwise[i], s[k], all, all, k % 2, FIXTURE_PATTERNS, &r);
                run_case(&f, pointwise[i], s[k], one, all, 1, FIXTURE_PATTERNS, &r);
                run_case(&f, pointwise[i], s[k], p_alone, all, 0, FIXTURE_PATTERNS, &r);
            }
            for (uint32_t pattern = 0; pattern < patterns; pattern++)
                run_case(&f, pointwise[i], s[0], all, all, 0, rings[ring].log_n <= 11 ? pattern : pattern + 2,
                         &r);
        }
        device_fixture_close(&f);
    }
    print_message("  %lu words compared\n", words_checked);
}

/* out is a, then out is b: the same words as with separate storage */
static void pointwise_kernels_work_in_place(void **state) {
    (void)state;
    device_fixture f;
    prng r;
    prng_init(&r, 3);
    ring_open(&f, 1);
    const kernel_basis all = {0, f.params->q_count, f.params->p_count};
    for (size_t i = 0; i < POINTWISE; i++) {
        for (int over_b = 0; over_b < 2; over_b++) {
            const kernel_id kernel = pointwise[i];
            if (over_b && (is_unary(kernel) || is_scalars(kernel))) continue;
            shape s[4];
            (void)shapes_of(kernel, s);
            if (kernel == KERNEL_MULTIPLY_PLAIN && over_b) s[0] = (shape){1, 1, 1};
            operand a = operand_create(&f, s[0].a, all, 0, FIXTURE_PATTERNS, &r);
            operand b = operand_create(&f, s[0].b, all, 0, FIXTURE_PATTERNS, &r);
            uint64_t scalar[CKKS_PRIMES_MAX] = {1, 2, 3, 4, 5, 6};
            /* room for a third component behind the two */
            operand out = operand_output(&f, s[0].out, all, 0);
            const operand *source = over_b ? &b : &a;
            memcpy(out.poly.words, source->host, source->bytes);
            operand in_a = a, in_b = kernel == KERNEL_SQUARE ? a : b;
            if (over_b)
                in_b.poly.words = out.poly.words;
            else
                in_a.poly.words = out.poly.words;
            launch(&f, kernel, &out, &in_a, &in_b, scalar);
            check(&f, kernel, &out, &a, kernel == KERNEL_SQUARE ? &a : &b, scalar);
            operand_destroy(&f, &a), operand_destroy(&f, &b), operand_destroy(&f, &out);
        }
    }
    device_fixture_close(&f);
}

static void copy_drops_levels(void **state) {
    (void)state;
    device_fixture f;
    prng r;
    prng_init(&r, 4);
    ring_open(&f, 3);
    const kernel_basis high = {0, f.params->q_count, 0};
    for (uint32_t limbs = 1; limbs <= f.params->q_count; limbs++)
        run_case(&f, KERNEL_COPY, (shape){2, 1, 2}, (kernel_basis){0, limbs, 0}, high, 0, FIXTURE_PATTERNS,
                 &r);
    device_fixture_close(&f);
}

/* ---- transforms ---- */

/* value at psi^(2 * bitrev(i) + 1), by FLINT */
static uint64_t evaluate(const device_fixture *f, const uint64_t *coefficients, uint32_t prime_index,
                         uint32_t i) {
    const uint64_t q = f->params->prime[prime_index];
    nmod_poly_t poly;
    nmod_poly_init2(poly, q, f->n);
    for (uint32_t k = 0; k < f->n; k++) nmod_poly_set_coeff_ui(poly, k, coefficients[k]);
    nmod_t m;
    nmod_init(&m, q);
    const uint64_t point =
        nmod_pow_ui(f->params->psi[prime_index], 2 * (uint64_t)bit_reverse(i, f->params->log_n) + 1, m);
    const uint64_t value = nmod_poly_evaluate_nmod(poly, point);
    nmod_poly_clear(poly);
    return value;
}

static void transforms_evaluate_and_interpolate(void **state) {
    (void)state;
    for (size_t ring = 0; ring < RINGS; ring++) {
        device_fixture f;
        prng r;
        prng_init(&r, 200 + ring);
        ring_open(&f, ring);
        const kernel_basis all = {0, f.params->q_count, f.params->p_count};
        for (uint32_t pattern = FIXTURE_PATTERNS - 2; pattern <= FIXTURE_PATTERNS; pattern++) {
            operand a = operand_create(&f, 2, all, 1, pattern, &r);
            operand out = operand_output(&f, 2, all, 0);
            const kernel_unary_args forward = {f.tables, out.poly, a.poly};
            device_fixture_launch(&f, KERNEL_NTT_FORWARD, &forward);
            operand_download(&f, &out);
            for (uint32_t c = 0; c < 2; c++)
                for (uint32_t i = 0; i < basis_limb_count(all); i++)
                    for (uint32_t probe = 0; probe < 6; probe++) {
                        const uint32_t k = probe == 0   ? 0
                                           : probe == 1 ? f.n - 1
                                                        : (uint32_t)prng_below(&r, f.n);
                        const uint64_t *coefficients =
                            a.host + ((uint64_t)c * a.poly.component_stride + i) * f.n;
                        assert_true(out.host[((uint64_t)c * out.poly.component_stride + i) * f.n + k] ==
                                    evaluate(&f, coefficients, i, k));
                    }
            const kernel_unary_args inverse = {f.tables, out.poly, out.poly}; /* in place */
            device_fixture_launch(&f, KERNEL_NTT_INVERSE, &inverse);
            check(&f, KERNEL_COPY, &out, &a, NULL, NULL);
            operand_destroy(&f, &a), operand_destroy(&f, &out);
        }
        device_fixture_close(&f);
    }
}

static void forward_transform_in_place_equals_out_of_place(void **state) {
    (void)state;
    device_fixture f;
    prng r;
    prng_init(&r, 9);
    ring_open(&f, 2);
    const kernel_basis all = {0, f.params->q_count, f.params->p_count};
    operand a = operand_create(&f, 1, all, 0, FIXTURE_PATTERNS, &r), out = operand_output(&f, 1, all, 0);
    const kernel_unary_args apart = {f.tables, out.poly, a.poly}, in_place = {f.tables, a.poly, a.poly};
    device_fixture_launch(&f, KERNEL_NTT_FORWARD, &apart);
    device_fixture_launch(&f, KERNEL_NTT_FORWARD, &in_place);
    assert_memory_equal(out.poly.words, a.poly.words, a.bytes);
    operand_destroy(&f, &a), operand_destroy(&f, &out);
    device_fixture_close(&f);
}

/* ---- automorphisms: X -> X^g on coefficients, then transformed ---- */

static void automorphism_substitutes_in_the_evaluation_domain(void **state) {
    (void)state;
    for (size_t ring = 0; ring < RINGS; ring++) {
        device_fixture f;
        prng r;
        prng_init(&r, 300 + ring);
        ring_open(&f, ring);
        const uint32_t n = f.n;
        const kernel_basis all = {0, f.params->q_count, f.params->p_count};
        const uint32_t elements[] = {1, 5, 25, 2 * n - 1, n + 1, 3, (uint32_t)prng_below(&r, n) * 2 + 1};
        for (size_t e = 0; e < sizeof elements / sizeof *elements; e++) {
            const uint32_t g = elements[e];
            operand a = operand_create(&f, 2, all, 0, FIXTURE_PATTERNS, &r);
            operand b = operand_create(&f, 2, all, 0, FIXTURE_PATTERNS, &r); /* becomes a(X^g) */
            for (uint32_t c = 0; c < 2; c++)
                for (uint32_t i = 0; i < basis_limb_count(all); i++) {
                    const uint64_t q = prime_of(&f, all, i);
                    const uint64_t at = ((uint64_t)c * a.poly.component_stride + i) * n;
                    for (uint32_t k = 0; k < n; k++) {
                        const uint64_t exponent = (uint64_t)k * g % (2 * n), value = a.host[at + k];
                        b.host[at + exponent % n] = exponent < n ? value : (q - value) % q;
                    }
                }
            memcpy(b.poly.words, b.host, b.bytes);
            const kernel_unary_args transform_a = {f.tables, a.poly, a.poly};
            const kernel_unary_args transform_b = {f.tables, b.poly, b.poly};
            device_fixture_launch(&f, KERNEL_NTT_FORWARD, &transform_a);
            device_fixture_launch(&f, KERNEL_NTT_FORWARD, &transform_b);
            operand out = operand_output(&f, 2, all, 0);
            const kernel_automorphism_args args = {f.tables, out.poly, a.poly, g};
            device_fixture_launch(&f, KERNEL_AUTOMORPHISM, &args);
            assert_memory_equal(out.poly.words, b.poly.words, b.bytes);
            operand_destroy(&f, &a), operand_destroy(&f, &b), operand_destroy(&f, &out);
        }
        device_fixture_close(&f);
    }
}

static void team_size_does_not_change_words(void **state) {
    (void)state;
    uint64_t *reference = NULL;
    for (uint32_t threads = 1; threads <= 5; threads++) {
        const ckks_params params = fixture_params(11, 5, 1, 1);
        device_fixture f;
        prng r;
        prng_init(&r, 77);
        device_fixture_open(&f, fixture_context_of(&params), threads);
        const kernel_basis all = {0, 5, 1};
        operand a = operand_create(&f, 2, all, 0, FIXTURE_PATTERNS, &r);
        operand b = operand_create(&f, 2, all, 0, FIXTURE_PATTERNS, &r), out = operand_output(&f, 3, all, 0);
        const kernel_binary_args product = {f.tables, out.poly, a.poly, b.poly};
        const kernel_unary_args transform = {f.tables, out.poly, out.poly};
        device_fixture_launch(&f, KERNEL_MULTIPLY, &product);
        device_fixture_launch(&f, KERNEL_NTT_INVERSE, &transform);
        operand_download(&f, &out);
        if (!reference) {
            reference = malloc(out.bytes);
            memcpy(reference, out.host, out.bytes);
        }
        assert_memory_equal(reference, out.host, out.bytes);
        operand_destroy(&f, &a), operand_destroy(&f, &b), operand_destroy(&f, &out);
        device_fixture_close(&f);
    }
    free(reference);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pointwise_kernels_match_flint_word_for_word),
        cmocka_unit_test(pointwise_kernels_work_in_place),
        cmocka_unit_test(copy_drops_levels),
        cmocka_unit_test(transforms_evaluate_and_interpolate),
        cmocka_unit_test(forward_transform_in_place_equals_out_of_place),
        cmocka_unit_test(automorphism_substitutes_in_the_evaluation_domain),
        cmocka_unit_test(team_size_does_not_change_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
