/*
 * Negacyclic number-theoretic transform, scalar. Position i of the evaluation domain is the value at
 * psi^(2*bitrev(i)+1), which is the natural output order of in-place Cooley-Tukey butterflies with psi folded
 * into the roots (Longa and Naehrig, "Speeding up the Number Theoretic Transform", 2016), with the lazy
 * reduction of Harvey ("Faster arithmetic for number-theoretic transforms", 2014).
 *
 * Bounds, q < 2^50: forward words stay below 4q, inverse words below 2q, so no sum passes 2^52.
 */
#include "kernels/scheme/internal.h"

#include <string.h>

/* Two stages go over memory together where there are two left: half the loads and stores, and no inner loop
 * of one or two butterflies. */

/* in < 4q, out < 4q */
static inline void forward_butterfly(uint64_t *x, uint64_t *y, uint64_t w, uint64_t w_shoup, uint64_t q) {
    const uint64_t u = mod_correct(*x, 2 * q), t = mod_mul_shoup_lazy(*y, w, w_shoup, q);
    *x = u + t;
    *y = u + 2 * q - t;
}

static void forward_stage(uint64_t *out, const ntt_table *t, uint32_t blocks) {
    const size_t half = ((size_t)1 << t->log_n >> 1) >> __builtin_ctz(blocks);
    const uint64_t q = t->m.value;
    for (size_t b = 0; b < blocks; b++) {
        const uint64_t w = t->forward[blocks + b], w_shoup = t->forward_shoup[blocks + b];
        uint64_t *low = out + 2 * half * b, *high = low + half;
        for (size_t j = 0; j < half; j++) forward_butterfly(low + j, high + j, w, w_shoup, q);
    }
}

static void forward_two_stages(uint64_t *out, const ntt_table *t, uint32_t blocks) {
    const size_t quarter = ((size_t)1 << t->log_n >> 2) >> __builtin_ctz(blocks);
    const uint64_t q = t->m.value;
    for (size_t b = 0; b < blocks; b++) {
        const uint64_t *w = t->forward + 2 * (blocks + b), *w_shoup = t->forward_shoup + 2 * (blocks + b);
        const uint64_t first = t->forward[blocks + b], first_shoup = t->forward_shoup[blocks + b];
        uint64_t *at = out + 4 * quarter * b;
        for (size_t j = 0; j < quarter; j++, at++) {
            uint64_t x0 = at[0], x1 = at[quarter], x2 = at[2 * quarter], x3 = at[3 * quarter];
            forward_butterfly(&x0, &x2, first, first_shoup, q);
            forward_butterfly(&x1, &x3, first, first_shoup, q);
            forward_butterfly(&x0, &x1, w[0], w_shoup[0], q);
            forward_butterfly(&x2, &x3, w[1], w_shoup[1], q);
            at[0] = x0, at[quarter] = x1, at[2 * quarter] = x2, at[3 * quarter] = x3;
        }
    }
}

void ntt_forward_scalar(uint64_t *out, const uint64_t *in, const ntt_table *table) {
    const uint32_t n = 1u << table->log_n;
    const uint64_t q = table->m.value;
    uint32_t blocks = 1;
    if (out != in) memcpy(out, in, n * sizeof *out);
    if (table->log_n % 2) {
        forward_stage(out, table, blocks);
        blocks = 2;
    }
    for (; blocks < n; blocks *= 4) forward_two_stages(out, table, blocks);
    for (uint32_t i = 0; i < n; i++) out[i] = mod_correct(mod_correct(out[i], 2 * q), q);
}

/* in < 2q, out < 2q */
static inline void inverse_butterfly(uint64_t *x, uint64_t *y, uint64_t w, uint64_t w_shoup, uint64_t q) {
    const uint64_t u = *x, v = *y;
    *x = mod_correct(u + v, 2 * q);
    *y = mod_mul_shoup_lazy(u + 2 * q - v, w, w_shoup, q);
}

static void inverse_stage(uint64_t *out, const ntt_table *t, uint32_t blocks) {
    const size_t half = ((size_t)1 << t->log_n >> 1) >> __builtin_ctz(blocks);
    const uint64_t q = t->m.value;
    for (size_t b = 0; b < blocks; b++) {
        const uint64_t w = t->inverse[blocks + b], w_shoup = t->inverse_shoup[blocks + b];
        uint64_t *low = out + 2 * half * b, *high = low + half;
        for (size_t j = 0; j < half; j++) inverse_butterfly(low + j, high + j, w, w_shoup, q);
    }
}

/* the stage of 2 * blocks, then that of blocks */
static void inverse_two_stages(uint64_t *out, const ntt_table *t, uint32_t blocks) {
    const size_t quarter = ((size_t)1 << t->log_n >> 2) >> __builtin_ctz(blocks);
    const uint64_t q = t->m.value;
    for (size_t b = 0; b < blocks; b++) {
        const uint64_t *w = t->inverse + 2 * (blocks + b), *w_shoup = t->inverse_shoup + 2 * (blocks + b);
        const uint64_t second = t->inverse[blocks + b], second_shoup = t->inverse_shoup[blocks + b];
        uint64_t *at = out + 4 * quarter * b;
        for (size_t j = 0; j < quarter; j++, at++) {
            uint64_t x0 = at[0], x1 = at[quarter], x2 = at[2 * quarter], x3 = at[3 * quarter];
            inverse_butterfly(&x0, &x1, w[0], w_shoup[0], q);
            inverse_butterfly(&x2, &x3, w[1], w_shoup[1], q);
            inverse_butterfly(&x0, &x2, second, second_shoup, q);
            inverse_butterfly(&x1, &x3, second, second_shoup, q);
            at[0] = x0, at[quarter] = x1, at[2 * quarter] = x2, at[3 * quarter] = x3;
        }
    }
}

/* The last stage has one root for all butterflies: 1/N goes into both of its products. */
static void last_inverse_stage(uint64_t *out, const ntt_table *table) {
    const uint32_t half = 1u << (table->log_n - 1);
    const uint64_t q = table->m.value, q2 = 2 * q;
    const uint64_t w = mod_mul(table->inverse[1], table->n_inverse, &table->m);
    const uint64_t w_shoup = mod_shoup_fast(w, &table->m);
    for (uint32_t j = 0; j < half; j++) {
        const uint64_t x = out[j], y = out[half + j];
        out[j] = mod_mul_shoup(x + y, table->n_inverse, table->n_inverse_shoup, q);
        out[half + j] = mod_mul_shoup(x + q2 - y, w, w_shoup, q);
    }
}

void ntt_inverse_scalar(uint64_t *out, const uint64_t *in, const ntt_table *table) {
    const uint32_t n = 1u << table->log_n;
    uint32_t blocks = n / 4;
    if (out != in) memcpy(out, in, n * sizeof *out);
    for (; blocks > 1; blocks /= 4) inverse_two_stages(out, table, blocks);
    /* what is left: stages of 2 * blocks and above, without the last */
    if (blocks == 1) inverse_stage(out, table, 2);
    last_inverse_stage(out, table);
}

void ntt_forward_ref(uint64_t *out, const uint64_t *in, const ntt_table *table) {
    const uint32_t n = 1u << table->log_n;
    const uint64_t q = table->m.value;
    const uint64_t psi = table->forward[n / 2]; /* psi^bitrev(N/2) = psi^1 */
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t x = mod_pow(psi, 2 * bit_reverse(i, table->log_n) + 1, &table->m);
        const uint64_t x_shoup = mod_shoup(x, q);
        uint64_t value = 0;
        for (uint32_t k = n; k-- > 0;) value = mod_add(mod_mul_shoup(value, x, x_shoup, q), in[k], q);
        out[i] = value;
    }
}

uint32_t automorphism_index(uint32_t log_n, uint32_t galois_element, uint32_t i) {
    const uint32_t mask = (2u << log_n) - 1;
    const uint32_t exponent =
        ((2 * bit_reverse(i, log_n) + 1) * galois_element) & mask; /* mod 2^32 is enough */
    return bit_reverse((exponent - 1) / 2, log_n);
}
