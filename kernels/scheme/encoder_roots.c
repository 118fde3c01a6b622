#include "kernels/scheme/encoder_roots.h"

#include "kernels/scheme/mod.h"

#include <stdlib.h>

/* Fixed point with 126 fraction bits: both coordinates of a root in the first octant are in [0, 1]. */
typedef uint128 fixed;
#define FRACTION_BITS 126
#define FIXED_ONE     ((fixed)1 << FRACTION_BITS)
/* pi * 2^125, rounded down: bits of pi from the hexadecimal expansion 3.243F6A88 85A308D3 13198A2E 03707344
 * A4... */
#define PI_HIGH 0x6487ED5110B4611Aull
#define PI_LOW  0x62633145C06E0E68ull

typedef struct fixed_root {
    fixed cosine, sine;
} fixed_root;

/* a * b / 2^126, rounded to nearest; a, b <= 1, so the result fits. */
static fixed fixed_multiply(fixed a, fixed b) {
    const uint64_t a0 = (uint64_t)a, a1 = (uint64_t)(a >> 64), b0 = (uint64_t)b, b1 = (uint64_t)(b >> 64);
    const uint128 p00 = (uint128)a0 * b0, p01 = (uint128)a0 * b1, p10 = (uint128)a1 * b0;
    uint128 high = (uint128)a1 * b1;
    uint128 middle = (p00 >> 64) + (uint64_t)p01 + (uint64_t)p10;
    high += (p01 >> 64) + (p10 >> 64) + (middle >> 64);
    /* the product is high * 2^128 + (low word of middle) * 2^64 + ...: take it from bit 126 */
    return (high << 2) + ((uint64_t)middle >> 62) + (((uint64_t)middle >> 61) & 1u);
}

/* Angles add; both stay in the first octant, so no coordinate is negative. */
static fixed_root root_multiply(fixed_root a, fixed_root b) {
    return (fixed_root){fixed_multiply(a.cosine, b.cosine) - fixed_multiply(a.sine, b.sine),
                        fixed_multiply(a.cosine, b.sine) + fixed_multiply(a.sine, b.cosine)};
}

/* exp(2 pi i / 2^k), k >= 3, by the Taylor series of sine and cosine: x <= pi/4, so 34 terms are below
 * 2^-126. */
static fixed_root generator(uint32_t k) {
    const fixed pi = (fixed)PI_HIGH << 64 | PI_LOW; /* pi * 2^125 */
    const fixed x = pi >> (k - 2);                  /* pi / 2^(k-1), times 2^126 */
    fixed_root r = {0, 0};
    fixed term = FIXED_ONE;
    for (uint32_t i = 0; i < 40; i++) {
        fixed *sum = i % 2 ? &r.sine : &r.cosine;
        *sum = i % 4 < 2 ? *sum + term : *sum - term;
        term = fixed_multiply(term, x) / (i + 1);
    }
    return r;
}

/* to nearest, ties to even: what the conversion of a 128-bit integer does; scaling by a power of two is exact
 */
static double fixed_to_double(fixed a) {
    return (double)a * 0x1p-126;
}

typedef struct octant {
    uint32_t log_order; /* roots of order 2^log_order */
    double *pair;       /* (cos, sin) of 2 pi i / order, i = 0 .. order/8 */
} octant;

/* octant_fill: root i + 2^b is root i times root 2^b: at most log_order - 3 roundings of 2^-126 deep. */
static void octant_fill(octant *o, fixed_root *scratch) {
    const uint32_t count = 1u << (o->log_order - 3);
    scratch[0] = (fixed_root){FIXED_ONE, 0};
    for (uint32_t bit = 1, k = o->log_order; bit <= count; bit *= 2, k--) {
        const fixed_root g = generator(k);
        for (uint32_t i = 0; i < bit && bit + i <= count; i++)
            scratch[bit + i] = root_multiply(scratch[i], g);
    }
    for (uint32_t i = 0; i <= count; i++) {
        o->pair[2 * i] = fixed_to_double(scratch[i].cosine);
        o->pair[2 * i + 1] = fixed_to_double(scratch[i].sine);
    }
}

/* Any root from the first octant by symmetry: exact. */
static void octant_root(double *cosine_out, double *sine_out, const octant *o, uint32_t index) {
    const uint32_t quarter = 1u << (o->log_order - 2), quadrant = index / quarter, within = index % quarter;
    const bool is_upper = within > quarter / 2;
    const double *base = o->pair + (size_t)2 * (is_upper ? quarter - within : within);
    const double c = is_upper ? base[1] : base[0], s = is_upper ? base[0] : base[1];
    const double cosine[4] = {c, -s, -c, s}, sine[4] = {s, c, -s, -c};
    *cosine_out = cosine[quadrant];
    *sine_out = sine[quadrant];
}

ckks_status encoder_roots_create(double **out, uint32_t log_n) {
    const uint32_t slots = 1u << (log_n - 1), order = 2u << log_n;
    ckks_status rc = CKKS_RESOURCE_EXHAUSTED;
    octant o = {.log_order = log_n + 1};
    fixed_root *scratch = malloc((order / 8 + 1) * sizeof *scratch);
    double *roots = calloc((size_t)2 * slots, sizeof *roots);
    o.pair = malloc((size_t)2 * (order / 8 + 1) * sizeof *o.pair);
    if (!scratch || !roots || !o.pair) goto out;
    octant_fill(&o, scratch);
    double *at = roots;
    for (uint32_t length = 2; length <= slots; length *= 2) {
        const uint32_t stride = order / (4 * length);
        for (uint32_t j = 0, power = 1; j < length / 2; j++, power = power * 5 % (4 * length), at++)
            octant_root(at, at + slots, &o, power * stride);
    }
    *out = roots, roots = NULL;
    rc = CKKS_OK;
out:
    free(scratch);
    free(o.pair);
    free(roots);
    return rc;
}
