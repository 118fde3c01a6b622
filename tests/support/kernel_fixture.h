/*
 * Polynomials on the host for tests of kernels: random or adversarial words, and automorphisms by their
 * meaning on coefficients.
 */
#ifndef CKKS_TESTS_KERNEL_FIXTURE_H
#define CKKS_TESTS_KERNEL_FIXTURE_H

#include "kernels/scheme/internal.h"
#include "tests/support/device_fixture.h"

/* The caller frees what these return. limbs * N zero words: */
uint64_t *kernel_fixture_words(const device_fixture *f, uint64_t limbs);
/* [polynomials][limb][N] canonical residues; pattern < FIXTURE_PATTERNS: that adversarial pattern in the
 * coefficient domain, transformed; KERNEL_FIXTURE_RANDOM; KERNEL_FIXTURE_RAW + pattern: that adversarial
 * pattern as evaluation words */
#define KERNEL_FIXTURE_RANDOM FIXTURE_PATTERNS
#define KERNEL_FIXTURE_RAW    (FIXTURE_PATTERNS + 1)
uint64_t *kernel_fixture_poly(const device_fixture *f, kernel_basis basis, uint32_t polynomials,
                              uint32_t pattern, prng *r);
/* one limb of prime index `prime`, evaluation domain, through X -> X^g on its coefficients */
uint64_t *kernel_fixture_galois_limb(const device_fixture *f, const uint64_t *in, uint32_t g, uint32_t prime);
/* inverse transforms in place */
void kernel_fixture_to_coefficients(const device_fixture *f, uint64_t *w, kernel_basis basis,
                                    uint32_t polynomials);

#endif
