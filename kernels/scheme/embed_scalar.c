/*
 * The embedding in plain C: slots from coefficients and back (encoder.c says which transform it is). Complex
 * numbers are two arrays; C's own would add checks for infinities. Roots: context_encoder_roots.
 */
#include "kernels/scheme/limb_loops_internal.h"

static void reverse_order(double *out, const double *in, uint32_t count) {
    if (count == 1) {
        out[0] = in[0];
        return;
    }
    const uint32_t bits = (uint32_t)__builtin_ctz(count);
    for (uint32_t i = 0; i < count; i++) out[i] = in[bit_reverse(i, bits)];
}

void embed_scalar(double *out_re, double *out_im, double *in_re, double *in_im, uint32_t count,
                  const double *roots, uint32_t root_count) {
    reverse_order(out_re, in_re, count);
    reverse_order(out_im, in_im, count);
    for (uint32_t length = 2; length <= count; length *= 2) {
        const uint32_t half = length / 2;
        const double *w_re = roots + (half - 1), *w_im = w_re + root_count;
        for (uint32_t first = 0; first < count; first += length) {
            double *low_re = out_re + first, *high_re = low_re + half;
            double *low_im = out_im + first, *high_im = low_im + half;
            for (uint32_t j = 0; j < half; j++) {
                const double wr = w_re[j], wi = w_im[j], hr = high_re[j], hi = high_im[j];
                const double tr = hr * wr - hi * wi, ti = hr * wi + hi * wr;
                const double lr = low_re[j], li = low_im[j];
                low_re[j] = lr + tr, low_im[j] = li + ti;
                high_re[j] = lr - tr, high_im[j] = li - ti;
            }
        }
    }
}

/* the stages of embed undone in reverse, with conjugate roots */
void embed_inverse_scalar(double *out_re, double *out_im, double *in_re, double *in_im, uint32_t count,
                          const double *roots, uint32_t root_count) {
    for (uint32_t length = count; length >= 2; length /= 2) {
        const uint32_t half = length / 2;
        const double *w_re = roots + (half - 1), *w_im = w_re + root_count;
        for (uint32_t first = 0; first < count; first += length) {
            double *low_re = in_re + first, *high_re = low_re + half;
            double *low_im = in_im + first, *high_im = low_im + half;
            for (uint32_t j = 0; j < half; j++) {
                const double wr = w_re[j], wi = w_im[j];
                const double lr = low_re[j], li = low_im[j], hr = high_re[j], hi = high_im[j];
                const double dr = lr - hr, di = li - hi;
                low_re[j] = lr + hr, low_im[j] = li + hi;
                high_re[j] = dr * wr + di * wi, high_im[j] = di * wr - dr * wi;
            }
        }
    }
    reverse_order(out_re, in_re, count);
    reverse_order(out_im, in_im, count);
}
