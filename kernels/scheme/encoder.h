/*
 * Canonical embedding with 5^j indexing, so that X -> X^(5^k) rotates slots left by k. Any power-of-two slot
 * count up to N/2: a vector of s < N/2 slots is encoded in X^(N/2s), which repeats it N/(2s) times over the
 * full slots.
 *
 * Bit-reproducible on every machine: fixed operation order, no contraction, root tables made without libm.
 * Rounds half to even. Oracle: MPFR.
 *
 * No address and no branch of encoding depends on the values, save on those that are refused and on whether a
 * coefficient reaches 2^63. In decoding they depend on nothing but whether the coefficients are all below
 * half of q0 * q1 where the machine has vector units, and on their magnitude where it has none or where they
 * are not.
 */
#ifndef CKKS_SCHEME_ENCODER_H
#define CKKS_SCHEME_ENCODER_H

#include "kernels/scheme/params.h"

/*
 * encoder_encode writes limbs [limb][N] in the evaluation domain for the primes q[0..level] and, if `with_p`,
 * all p. real[slot_count]; imag may be NULL. |coefficient| must be below Q_level / 2 (without P), else
 * CKKS_PRECISION; a NaN or infinity is CKKS_OUT_OF_RANGE naming the slot. Thread-safe; allocates scratch; no
 * I/O.
 */
ckks_status encoder_encode(uint64_t *words, const ckks_context *context, const double *real,
                           const double *imag, uint32_t slot_count, uint32_t level, bool with_p, double scale,
                           ckks_error *err);

/* encoder_decode: words [limb][N], evaluation domain, q[0..level]; exact CRT to centred integers, then the
 * embedding. imag may be NULL. CKKS_OUT_OF_RANGE if a coefficient over the scale is beyond binary64, as after
 * decryption with another key. Thread-safe; allocates scratch; no I/O. */
ckks_status encoder_decode(double *real, double *imag, const ckks_context *context, const uint64_t *words,
                           uint32_t slot_count, uint32_t level, double scale, ckks_error *err);

/* encoder_constant: round_half_even(value * scale) mod each of q[0..level] and, if with_p, all p. */
ckks_status encoder_constant(uint64_t *residue, const ckks_params *params, double value, double scale,
                             uint32_t level, bool with_p, ckks_error *err);

#endif
