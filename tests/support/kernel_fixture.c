#include "tests/support/kernel_fixture.h"

#include <stdlib.h>

uint64_t *kernel_fixture_words(const device_fixture *f, uint64_t limbs) {
    uint64_t *w = calloc(limbs * f->n, sizeof *w);
    if (!w) abort();
    return w;
}

uint64_t *kernel_fixture_poly(const device_fixture *f, kernel_basis basis, uint32_t polynomials,
                              uint32_t pattern, prng *r) {
    const uint32_t limbs = basis_limb_count(basis);
    uint64_t *w = kernel_fixture_words(f, (uint64_t)polynomials * limbs);
    for (uint32_t k = 0; k < polynomials; k++)
        for (uint32_t i = 0; i < limbs; i++) {
            uint64_t *limb = w + ((uint64_t)k * limbs + i) * f->n;
            const uint32_t prime = basis_prime(basis, i, f->params->q_count);
            if (pattern < FIXTURE_PATTERNS) {
                fixture_adversarial_words(limb, f->n, f->params->prime[prime], pattern);
                ntt_forward_scalar(limb, limb, context_ntt(f->context, prime));
            } else if (pattern >= KERNEL_FIXTURE_RAW) {
                fixture_adversarial_words(limb, f->n, f->params->prime[prime], pattern - KERNEL_FIXTURE_RAW);
            } else {
                fixture_random_words(limb, f->n, f->params->prime[prime], r);
            }
        }
    return w;
}

void kernel_fixture_to_coefficients(const device_fixture *f, uint64_t *w, kernel_basis basis,
                                    uint32_t polynomials) {
    const uint32_t limbs = basis_limb_count(basis);
    for (uint32_t k = 0; k < polynomials; k++)
        for (uint32_t i = 0; i < limbs; i++) {
            uint64_t *limb = w + ((uint64_t)k * limbs + i) * f->n;
            ntt_inverse_scalar(limb, limb,
                               context_ntt(f->context, basis_prime(basis, i, f->params->q_count)));
        }
}

uint64_t *kernel_fixture_galois_limb(const device_fixture *f, const uint64_t *in, uint32_t g,
                                     uint32_t prime) {
    uint64_t *coefficients = kernel_fixture_words(f, 1), *out = kernel_fixture_words(f, 1);
    ntt_inverse_scalar(coefficients, in, context_ntt(f->context, prime));
    for (uint64_t i = 0; i < f->n; i++) {
        const uint64_t at = i * g % (2 * f->n);
        out[at % f->n] = at < f->n ? coefficients[i] : mod_negate(coefficients[i], f->params->prime[prime]);
    }
    ntt_forward_scalar(out, out, context_ntt(f->context, prime));
    free(coefficients);
    return out;
}
