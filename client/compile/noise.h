/*
 * How large errors get: variances of the real part of each slot, in units of the message. Estimates
 * (independent errors, dense embedding, values as large as the calibration rows show, element by element);
 * the compiler checks them against an encrypted run.
 */
#ifndef CKKS_COMPILE_NOISE_H
#define CKKS_COMPILE_NOISE_H

#include "client/compile/ir.h"
#include "kernels/scheme/params.h"

/* a fresh ciphertext under the public key (the larger of the two kinds), encoding included */
double noise_fresh(const ckks_params *params, double scale);
/* the same under the secret key */
double noise_fresh_secret(const ckks_params *params, double scale);
/* rounding of a rescale or ModDown that ends at `scale` */
double noise_rounding(const ckks_params *params, double scale);
/* the same where a product was not relinearised: c0 + c1 s + c2 s^2, all three rounded */
double noise_rounding_three(const ckks_params *params, double scale);
/* one key switch at `level` on a value of `scale` */
double noise_key_switch(const ckks_params *params, uint32_t level, double scale);

/* One term of a dense layer by diagonals. */
typedef struct noise_dense {
    uint32_t level;      /* of its input */
    double scale;        /* of its input */
    double plain_scale;  /* of the diagonals */
    uint32_t slot_count; /* of the diagonals */
    double result_scale;
    bool is_rotated; /* some diagonal is not at step 0 */
    double fold;     /* slots added up afterwards: 1 = none */
    double parts;    /* ciphertexts that are added up: blocks of the input */
} noise_dense;
/* adds the term's variance to out[rows] */
void noise_dense_add(double *out, const ckks_params *params, const noise_dense *d, const sparse *matrix,
                     const double *variance_in, const double *peak_in);

/* out[i] for a product (a == b: a square) relinearised and rescaled from `level` to result_scale */
void noise_product(double *out, const ckks_params *params, uint32_t level, double product_scale,
                   double result_scale, const ir_node *a, const double *variance_a, const ir_node *b,
                   const double *variance_b);

/* the same with `added` the variance of what ends the product: a rescale alone, for instance */
void noise_product_ending(double *out, double added, const ir_node *a, const double *variance_a,
                          const ir_node *b, const double *variance_b);

/* out[i] for a polynomial node */
void noise_polynomial(double *out, const ckks_params *params, double scale, const ir_node *node,
                      const double *variance_in);

#endif
