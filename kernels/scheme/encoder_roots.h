/*
 * Correctly rounded roots of unity without libm: 128-bit fixed point throughout, one rounding at the end, so
 * the words are the same on every machine.
 */
#ifndef CKKS_SCHEME_ENCODER_ROOTS_H
#define CKKS_SCHEME_ENCODER_ROOTS_H

#include "kernels/base/status.h"

/* encoder_roots_create allocates the table that context_encoder_roots describes: N doubles; the caller frees
 * it with free(). CKKS_RESOURCE_EXHAUSTED without memory. */
ckks_status encoder_roots_create(double **out, uint32_t log_n);

#endif
