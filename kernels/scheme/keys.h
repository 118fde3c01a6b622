/*
 * Key generation, encryption and decryption primitives: the client's arithmetic. No I/O. Constant time in
 * secrets: no %, no 128-bit division, no secret-dependent branch or index (tests/unit/test_secrets.c follows
 * them through valgrind); the randomness is the operating system's (libsodium). Wiped on destroy; secrets
 * live in guarded memory (sodium_malloc).
 *
 * Threads: encryption, decryption and key generation use the OpenMP team of the calling thread where there is
 * enough to share (from about 65,000 words on), and one thread where the caller set it so or is itself part
 * of a team.
 */
#ifndef CKKS_SCHEME_KEYS_H
#define CKKS_SCHEME_KEYS_H

#include "kernels/scheme/expand.h"
#include "kernels/scheme/params.h"

#define LINEAGE_BYTES 16u

/* Ternary secret and what derives from it, in guarded memory. */
typedef struct secret_key secret_key;

/* secret_key_generate draws a fresh secret and a random lineage id. Caller owns *out; secret_key_destroy
 * wipes it. */
ckks_status secret_key_generate(secret_key **out, const ckks_context *context, ckks_error *err);
/* secret_key_import / export: the N coefficients as int8 in {-1, 0, 1}; import refuses others. The caller
 * wipes its copy. */
ckks_status secret_key_import(secret_key **out, const ckks_context *context, const int8_t *coefficients,
                              const uint8_t lineage[LINEAGE_BYTES], ckks_error *err);
void secret_key_export(const secret_key *sk, int8_t *coefficients);
const uint8_t *secret_key_lineage(const secret_key *sk);
const ckks_context *secret_key_context(const secret_key *sk);
void secret_key_destroy(secret_key *sk);

typedef enum key_kind { KEY_RELINEARISATION = 1, KEY_GALOIS = 2, KEY_PUBLIC = 3 } key_kind;

/* One key of a set. Manifest order defines polynomial indices. */
typedef struct key_requirement {
    uint32_t kind;           /* key_kind */
    uint32_t galois_element; /* KEY_GALOIS: odd, below 2N, not 1 (2N - 1 is conjugation); else 0 */
    uint32_t level;          /* highest level at which it is used */
} key_requirement;

/* key_requirement_check: CKKS_INVALID_ARGUMENT naming the field if kind, element or level is impossible. */
ckks_status key_requirement_check(const ckks_params *params, const key_requirement *key, ckks_error *err);

/* Words of one seeded key as it travels (component 0 only): [digit][limb][N], limbs q[0..level] then p;
 * KEY_PUBLIC: [limb][N], limbs q[0..level]. The requirement has passed key_requirement_check. */
uint64_t key_seeded_word_count(const ckks_params *params, const key_requirement *key);
/* Words of one key as a device holds it, both components. */
uint64_t key_resident_word_count(const ckks_params *params, const key_requirement *key);

/* key_generate writes key_seeded_word_count words: component 0 for component 1 = seed_expand(seed,
 * SEED_KEY_SET (KEY_PUBLIC: SEED_PUBLIC_KEY), key_index * dnum_full + digit, prime). Runs on the OpenMP team
 * of the calling thread. */
ckks_status key_generate(uint64_t *words, const secret_key *sk, const key_requirement *key,
                         const uint8_t seed[SEED_BYTES], uint32_t key_index, ckks_error *err);

/* encrypt_symmetric: plain [limb][N] evaluation domain, canonical -> c0 [limb][N] with c1 = seed_expand(seed,
 * SEED_CIPHERTEXT, 0, prime). `seed` is output: drawn fresh inside, never reused. */
ckks_status encrypt_symmetric(uint64_t *c0, uint8_t seed[SEED_BYTES], const secret_key *sk,
                              const uint64_t *plain, uint32_t level, ckks_error *err);
/* encrypt_symmetric_entry: the same for entry `entry` of a batch under one seed: c1 = seed_expand(seed,
 * SEED_CIPHERTEXT, entry, prime). The caller drew the seed for this batch and uses each entry's number once:
 * two messages under one seed and number give their difference away. Any thread. */
ckks_status encrypt_symmetric_entry(uint64_t *c0, const uint8_t seed[SEED_BYTES], uint32_t entry,
                                    const secret_key *sk, const uint64_t *plain, uint32_t level,
                                    ckks_error *err);
/* encrypt_public: pk0, pk1 [limb][N] of at least level + 1 limbs. Writes c0, c1 whole. */
ckks_status encrypt_public(uint64_t *c0, uint64_t *c1, const ckks_context *context, const uint64_t *pk0,
                           const uint64_t *pk1, const uint64_t *plain, uint32_t level, ckks_error *err);
/* decrypt: plain = c0 + c1*s (+ c2*s^2 when component_count is 3); words [component][limb][N], canonical (the
 * caller has checked what a peer sent). plain may not overlap words. */
ckks_status decrypt(uint64_t *plain, const secret_key *sk, const uint64_t *words, uint32_t component_count,
                    uint32_t level, ckks_error *err);

#endif
