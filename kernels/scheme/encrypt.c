/*
 * Encryption with the secret key (seeded: half the bytes) or the public key, and decryption. All in the
 * evaluation domain, limb by limb; see keys.c for where secrets stand.
 */
#include "kernels/scheme/expand_internal.h"
#include "kernels/scheme/key_internal.h"
#include "kernels/scheme/sample.h"
#include "kernels/scheme/secret_memory.h"

#include <omp.h>
#include <sodium.h>
#include <stdlib.h>

static ckks_status check_level(const ckks_params *p, uint32_t level, ckks_error *err) {
    if (level <= params_level_max(p)) return CKKS_OK;
    return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "level", "%u is over the highest level %u", level,
                          params_level_max(p));
}

/* Teams wake for more than this: two limbs of N = 2^15. */
#define TEAM_WORDS ((size_t)1 << 16)

/* The secrets of one encryption, in one guarded allocation: small polynomials, one after the other. */
typedef struct noise {
    sampler s;
    int8_t small[];
} noise;

static ckks_status no_memory(ckks_error *err) {
    ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "encryption", "no memory for noise");
    return CKKS_RESOURCE_EXHAUSTED;
}

ckks_status encrypt_symmetric(uint64_t *c0, uint8_t seed[SEED_BYTES], const secret_key *sk,
                              const uint64_t *plain, uint32_t level, ckks_error *err) {
    randombytes_buf(seed, SEED_BYTES);
    return encrypt_symmetric_entry(c0, seed, 0, sk, plain, level, err);
}

ckks_status encrypt_symmetric_entry(uint64_t *c0, const uint8_t seed[SEED_BYTES], uint32_t entry,
                                    const secret_key *sk, const uint64_t *plain, uint32_t level,
                                    ckks_error *err) {
    const ckks_context *context = secret_key_context(sk);
    const ckks_params *p = context_params(context);
    const size_t n = params_n(p);
    ckks_status rc = check_level(p, level, err);
    if (rc != CKKS_OK) return rc;
    noise *e = secret_allocate(sizeof *e + n);
    if (!e) return no_memory(err);
    sampler_init(&e->s);
    sample_error(e->small, n, &e->s);
    const limb_loops *loops = limb_loops_best();
    const int limbs = (int)level + 1;
#pragma omp parallel for schedule(dynamic) if ((size_t)limbs * n >= TEAM_WORDS)
    for (int i = 0; i < limbs; i++) {
        const ntt_table *t = context_ntt(context, (uint32_t)i);
        uint64_t *out = c0 + (size_t)i * n;
        loops->forward_small(out, e->small, t);
        seed_subtract_product(out, secret_key_evaluations(sk, (uint32_t)i), plain + (size_t)i * n, t, seed,
                              SEED_CIPHERTEXT, entry, (uint32_t)i);
    }
    secret_free(e);
    return CKKS_OK;
}

ckks_status encrypt_public(uint64_t *c0, uint64_t *c1, const ckks_context *context, const uint64_t *pk0,
                           const uint64_t *pk1, const uint64_t *plain, uint32_t level, ckks_error *err) {
    const ckks_params *p = context_params(context);
    const size_t n = params_n(p);
    ckks_status rc = check_level(p, level, err);
    if (rc != CKKS_OK) return rc;
    const int limbs = (int)level + 1;
    const int threads = (size_t)limbs * n >= TEAM_WORDS ? omp_get_max_threads() : 1;
    const int team = threads < limbs ? threads : limbs;
    noise *e = secret_allocate(sizeof *e + 3 * n);
    /* The mask modulo one prime, one per thread. Ordinary memory, wiped: it protects this one message, which
     * stands in ordinary memory itself, and guarded memory for a team takes longer than the encryption. */
    uint64_t *masks = malloc((size_t)team * n * sizeof *masks);
    if (!e || !masks) {
        rc = no_memory(err);
        goto out;
    }
    const int8_t *mask = e->small, *error0 = mask + n, *error1 = mask + 2 * n;
    sampler_init(&e->s);
    sample_ternary(e->small, n, &e->s);
    sample_error(e->small + n, 2 * n, &e->s);
    const limb_loops *loops = limb_loops_best();
#pragma omp parallel for schedule(dynamic) num_threads(team)
    for (int i = 0; i < limbs; i++) {
        const ntt_table *t = context_ntt(context, (uint32_t)i);
        const size_t at = (size_t)i * n;
        uint64_t *u = masks + (size_t)omp_get_thread_num() * n;
        loops->forward_small(u, mask, t);
        loops->forward_small(c0 + at, error0, t);
        loops->add_product(c0 + at, pk0 + at, u, plain + at, n, &t->m);
        loops->forward_small(c1 + at, error1, t);
        loops->add_product(c1 + at, pk1 + at, u, NULL, n, &t->m);
    }
    sodium_memzero(masks, (size_t)team * n * sizeof *masks);
out:
    free(masks);
    secret_free(e);
    return rc;
}

ckks_status decrypt(uint64_t *plain, const secret_key *sk, const uint64_t *words, uint32_t component_count,
                    uint32_t level, ckks_error *err) {
    const ckks_context *context = secret_key_context(sk);
    const ckks_params *p = context_params(context);
    const size_t n = params_n(p), component = (level + (size_t)1) * n;
    const ckks_status rc = check_level(p, level, err);
    if (rc != CKKS_OK) return rc;
    if (component_count != 2 && component_count != 3)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "component_count", "%u is neither 2 nor 3",
                              component_count);
    const limb_loops *loops = limb_loops_best();
    const bool has_c2 = component_count == 3;
    const int limbs = (int)level + 1;
#pragma omp parallel for if ((size_t)limbs * n >= TEAM_WORDS)
    for (int i = 0; i < limbs; i++) {
        const uint64_t *c0 = words + (size_t)i * n, *c1 = c0 + component;
        loops->decrypt(plain + (size_t)i * n, c0, c1, has_c2 ? c1 + component : NULL,
                       secret_key_evaluations(sk, (uint32_t)i), n, &context_ntt(context, (uint32_t)i)->m);
    }
    return CKKS_OK;
}
