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

void ntt_forward_scalar(uint64_t *out, const uint64_t *in, const ntt_table *table) {
    const uint32_t n = 1u << table->log_n;
    const uint64_t q = table->m.value, q2 = 2 * q;
    if (out != in) memcpy(out, in, n * sizeof *out);
    for (uint32_t blocks = 1, half = n / 2; blocks < n; blocks *= 2, half /= 2) {
        for (uint32_t b = 0; b < blocks; b++) {
            const uint64_t w = table->forward[blocks + b], w_shoup = table->forward_shoup[blocks + b];
            uint64_t *low = out + (size_t)2 * half * b, *high = low + half;
            for (uint32_t j = 0; j < half; j++) { /* in < 4q, out < 4q */
                const uint64_t x = mod_correct(low[j], q2);
                const uint64_t y = mod_mul_shoup_lazy(high[j], w, w_shoup, q);
                low[j] = x + y;
                high[j] = x + q2 - y;
            }
        }
    }
    for (uint32_t i = 0; i < n; i++) out[i] = mod_correct(mod_correct(out[i], q2), q);
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
    const uint64_t q = table->m.value, q2 = 2 * q;
    if (out != in) memcpy(out, in, n * sizeof *out);
    for (uint32_t blocks = n / 2, half = 1; blocks > 1; blocks /= 2, half *= 2) {
        for (uint32_t b = 0; b < blocks; b++) {
            const uint64_t w = table->inverse[blocks + b], w_shoup = table->inverse_shoup[blocks + b];
            uint64_t *low = out + (size_t)2 * half * b, *high = low + half;
            for (uint32_t j = 0; j < half; j++) { /* in < 2q, out < 2q */
                const uint64_t x = low[j], y = high[j];
                low[j] = mod_correct(x + y, q2);
                high[j] = mod_mul_shoup_lazy(x + q2 - y, w, w_shoup, q);
            }
        }
    }
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
