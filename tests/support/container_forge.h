/*
 * Deterministic files of every kind that proto/ writes, small, for tests, golden files and fuzz corpora; and
 * the digest put right again after damage, which chance could not do.
 */
#ifndef CKKS_TESTS_CONTAINER_FORGE_H
#define CKKS_TESTS_CONTAINER_FORGE_H

#include "proto/ciphertext_file.h"
#include "proto/key_file.h"

/* N = 2^10, q 38 + 28 bits, p 38 bits */
ckks_params forge_params(void);

#define FORGE_KEYS 3u
extern const key_requirement forge_requirements[FORGE_KEYS]; /* relinearisation, Galois 5, Galois 2047 */

/* Payload bytes are packed pseudorandom residues: well-formed, no key of anyone. free() the results. */
uint8_t *forge_payload(uint64_t *bytes, const ckks_params *params, const key_requirement *keys,
                       uint32_t count);
uint8_t *forge_key_set(size_t *size);
uint8_t *forge_public_key(size_t *size);
/* two ciphertexts: one seeded at level 1, one whole at level 0 */
uint8_t *forge_ciphertext(size_t *size);
uint8_t *forge_secret_key(size_t *size);
/* the description of tests/support/model_fixture.h as a saved model description */
uint8_t *forge_metadata(size_t *size);
/* tests/support/plan_fixture.h's tiny plan, secure, with self test */
uint8_t *forge_package(size_t *size);
/* a ModelInfer request with one seeded ciphertext */
uint8_t *forge_frame(size_t *size);

/* writes the right SHA-256 over the last 32 bytes; size >= 32 */
void forge_digest(uint8_t *image, size_t size);

#endif
