/*
 * How large errors get: standard deviations of the real part of a slot, in units of the message, for one
 * operation at one scale. Estimates (independent errors, dense embedding); the compiler checks them against
 * an encrypted run.
 */
#ifndef CKKS_COMPILE_NOISE_H
#define CKKS_COMPILE_NOISE_H

#include "kernels/scheme/params.h"

/* a fresh ciphertext under the public key (the larger of the two kinds), encoding included */
double noise_fresh(const ckks_params *params, double scale);
/* rounding of a rescale or ModDown that ends at `scale` */
double noise_rounding(const ckks_params *params, double scale);
/* one key switch at `level` on a value of `scale` */
double noise_key_switch(const ckks_params *params, uint32_t level, double scale);
/* rounding of an encoded plaintext */
double noise_plain(const ckks_params *params, double scale);

#endif
