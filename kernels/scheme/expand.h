/*
 * Uniform polynomials from a 32-byte seed: IETF ChaCha20, counter from 0, nonce = u32le purpose, polynomial,
 * prime index (in the full list, all q then all p). Coefficient i is the i-th little-endian 128-bit word of
 * the stream mod the prime, an evaluation-domain residue in wire order (bias below 2^-78).
 */
#ifndef CKKS_SCHEME_EXPAND_H
#define CKKS_SCHEME_EXPAND_H

#include <stdint.h>

#define SEED_BYTES 32u

typedef enum seed_purpose {
    SEED_CIPHERTEXT = 1,
    SEED_KEY_SET = 2,
    SEED_PUBLIC_KEY = 3,
    SEED_SELF_TEST = 4,
} seed_purpose;

/* seed_expand fills words[n]. Pure, constant memory. */
void seed_expand(uint64_t *words, uint32_t n, uint64_t prime, const uint8_t seed[SEED_BYTES],
                 uint32_t purpose, uint32_t polynomial, uint32_t prime_index);

#endif
