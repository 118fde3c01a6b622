/*
 * Encryption with the secret key (seeded: half the bytes) or the public key, and decryption. All in the
 * evaluation domain, limb by limb; see keys.c for where secrets stand.
 */
#include "kernels/scheme/internal.h"
#include "kernels/scheme/key_internal.h"
#include "kernels/scheme/sample.h"
#include "kernels/scheme/secret_memory.h"

#include <sodium.h>
#include <stdlib.h>

static ckks_status check_level(const ckks_params *p, uint32_t level, ckks_error *err) {
    if (level <= params_level_max(p)) return CKKS_OK;
    return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "level", "%u is over the highest level %u", level,
                          params_level_max(p));
}

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
    sampler *s = secret_allocate(sizeof *s);
    int8_t *error = secret_allocate(n);
    uint64_t *a = malloc(n * sizeof *a);
    if (!s || !error || !a) {
        rc = no_memory(err);
        goto out;
    }
    sampler_init(s);
    sample_error(error, n, s);
    for (uint32_t i = 0; i <= level; i++) {
        const ntt_table *t = context_ntt(context, i);
        const uint64_t q = t->m.value, *key = secret_key_evaluations(sk, i);
        uint64_t *out_limb = c0 + i * n;
        const uint64_t *message = plain + i * n;
        small_to_residues(out_limb, error, n, q);
        ntt_forward_scalar(out_limb, out_limb, t);
        seed_expand(a, (uint32_t)n, q, seed, SEED_CIPHERTEXT, entry, i);
        for (size_t k = 0; k < n; k++) {
            const uint64_t noisy = mod_add(out_limb[k], message[k], q);
            out_limb[k] = mod_sub(noisy, mod_mul(a[k], key[k], &t->m), q);
        }
    }
out:
    free(a);
    secret_free(error);
    secret_free(s);
    return rc;
}

/* The secrets of one public-key encryption, in one guarded allocation. */
typedef struct ephemeral {
    sampler *s;
    int8_t *mask, *error0, *error1; /* [N] each */
    uint64_t *limb;                 /* [N]: the mask modulo one prime */
} ephemeral;

static bool ephemeral_draw(ephemeral *e, size_t n) {
    e->s = secret_allocate(sizeof *e->s);
    e->mask = secret_allocate(3 * n);
    e->limb = secret_allocate(n * sizeof *e->limb);
    if (!e->s || !e->mask || !e->limb) return false;
    e->error0 = e->mask + n, e->error1 = e->mask + 2 * n;
    sampler_init(e->s);
    sample_ternary(e->mask, n, e->s);
    sample_error(e->error0, 2 * n, e->s);
    return true;
}

static void ephemeral_wipe(ephemeral *e) {
    secret_free(e->s);
    secret_free(e->mask);
    secret_free(e->limb);
}

/* out = pk * mask + error (+ message) modulo one prime */
static void mask_limb(uint64_t *out, const uint64_t *pk, const ephemeral *e, const int8_t *error,
                      const uint64_t *message, const ntt_table *t) {
    const size_t n = (size_t)1 << t->log_n;
    const uint64_t q = t->m.value;
    small_to_residues(out, error, n, q);
    ntt_forward_scalar(out, out, t);
    for (size_t k = 0; k < n; k++) {
        const uint64_t noisy = message ? mod_add(out[k], message[k], q) : out[k];
        out[k] = mod_add(noisy, mod_mul(pk[k], e->limb[k], &t->m), q);
    }
}

ckks_status encrypt_public(uint64_t *c0, uint64_t *c1, const ckks_context *context, const uint64_t *pk0,
                           const uint64_t *pk1, const uint64_t *plain, uint32_t level, ckks_error *err) {
    const ckks_params *p = context_params(context);
    const size_t n = params_n(p);
    ckks_status rc = check_level(p, level, err);
    if (rc != CKKS_OK) return rc;
    ephemeral e = {0};
    if (ephemeral_draw(&e, n)) {
        for (uint32_t i = 0; i <= level; i++) {
            const ntt_table *t = context_ntt(context, i);
            small_to_residues(e.limb, e.mask, n, t->m.value);
            ntt_forward_scalar(e.limb, e.limb, t);
            mask_limb(c0 + i * n, pk0 + i * n, &e, e.error0, plain + i * n, t);
            mask_limb(c1 + i * n, pk1 + i * n, &e, e.error1, NULL, t);
        }
    } else {
        rc = no_memory(err);
    }
    ephemeral_wipe(&e);
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
    for (uint32_t i = 0; i <= level; i++) {
        const modulus m = context_ntt(context, i)->m;
        const uint64_t *s = secret_key_evaluations(sk, i), *c0 = words + i * n, *c1 = c0 + component;
        const bool has_c2 = component_count == 3;
        const uint64_t *c2 = has_c2 ? c1 + component : c1;
        uint64_t *out = plain + i * n;
        for (size_t k = 0; k < n; k++) { /* (c2 * s + c1) * s + c0 */
            const uint64_t high = has_c2 ? mod_add(mod_mul(c2[k], s[k], &m), c1[k], m.value) : c1[k];
            out[k] = mod_add(mod_mul(high, s[k], &m), c0[k], m.value);
        }
    }
    return CKKS_OK;
}
