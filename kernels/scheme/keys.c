/*
 * Secret keys and the public material made from them.
 *
 * Hybrid key switching: the key of digit d is b = -a*s + e + gadget, where the gadget holds P*s' in the limbs
 * that belong to the digit and zero in all others and modulo each p. A key of a lower level has fewer limbs
 * and digits and nothing else changes: in each limb it still holds, the words are those of the key at full
 * level with the same noise.
 *
 * Secrets (ternary coefficients, their transforms, the noise, the sampler) live in guarded memory. The noise
 * of a limb stands in the output's words for the moment in which it is transformed, masked by a*s right
 * after.
 */
#include "kernels/scheme/keys.h"

#include "kernels/cpu/permute_block.h"
#include "kernels/scheme/expand_internal.h"
#include "kernels/scheme/key_internal.h"
#include "kernels/scheme/sample.h"
#include "kernels/scheme/secret_marks.h"
#include "kernels/scheme/secret_memory.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

struct secret_key {
    const ckks_context *context;
    uint8_t lineage[LINEAGE_BYTES];
    int8_t *coefficients;  /* [N], guarded */
    uint64_t *evaluations; /* [prime][N], guarded */
};

/* ---- the secret ---- */

static ckks_status no_memory(const char *what, ckks_error *err) {
    ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, what, "no guarded memory for it");
    return CKKS_RESOURCE_EXHAUSTED;
}

static ckks_status secret_create(secret_key **out, const ckks_context *context, ckks_error *err) {
    const ckks_params *p = context_params(context);
    const size_t n = params_n(p);
    secret_key *sk = calloc(1, sizeof *sk);
    if (!sk) return no_memory("secret_key", err);
    sk->context = context;
    sk->coefficients = secret_allocate(n);
    sk->evaluations = secret_allocate(params_prime_count(p) * n * sizeof *sk->evaluations);
    if (!sk->coefficients || !sk->evaluations) {
        secret_key_destroy(sk);
        return no_memory("secret_key", err);
    }
    *out = sk;
    return CKKS_OK;
}

static void secret_transform(secret_key *sk) {
    const ckks_params *p = context_params(sk->context);
    const size_t n = params_n(p);
    const int count = (int)params_prime_count(p);
    const limb_loops *loops = limb_loops_best();
#pragma omp parallel for
    for (int i = 0; i < count; i++) {
        uint64_t *limb = sk->evaluations + (size_t)i * n;
        loops->forward_small(limb, sk->coefficients, context_ntt(sk->context, (uint32_t)i));
    }
}

ckks_status secret_key_generate(secret_key **out, const ckks_context *context, ckks_error *err) {
    secret_key *sk = NULL;
    *out = NULL;
    sampler *s = secret_allocate(sizeof *s);
    ckks_status rc = s ? secret_create(&sk, context, err) : no_memory("sampler", err);
    if (rc == CKKS_OK) {
        sampler_init(s);
        sample_ternary(sk->coefficients, params_n(context_params(context)), s);
        randombytes_buf(sk->lineage, sizeof sk->lineage);
        secret_transform(sk);
        *out = sk;
    }
    secret_free(s);
    return rc;
}

ckks_status secret_key_import(secret_key **out, const ckks_context *context, const int8_t *coefficients,
                              const uint8_t lineage[LINEAGE_BYTES], ckks_error *err) {
    const size_t n = params_n(context_params(context));
    secret_key *sk = NULL;
    *out = NULL;
    unsigned outside = 0; /* one verdict for all: which coefficient is bad stays unsaid */
    for (size_t i = 0; i < n; i++) outside |= (unsigned)(coefficients[i] + 1) / 3u;
    secret_declassify(&outside, sizeof outside); /* whether a key is refused */
    if (outside)
        return ckks_error_set(err, CKKS_MALFORMED, "coefficients", "a coefficient is not -1, 0 or 1");
    const ckks_status rc = secret_create(&sk, context, err);
    if (rc != CKKS_OK) return rc;
    memcpy(sk->coefficients, coefficients, n);
    memcpy(sk->lineage, lineage, LINEAGE_BYTES);
    secret_transform(sk);
    *out = sk;
    return CKKS_OK;
}

void secret_key_export(const secret_key *sk, int8_t *coefficients) {
    memcpy(coefficients, sk->coefficients, params_n(context_params(sk->context)));
}

const uint8_t *secret_key_lineage(const secret_key *sk) {
    return sk->lineage;
}

const ckks_context *secret_key_context(const secret_key *sk) {
    return sk->context;
}

const uint64_t *secret_key_evaluations(const secret_key *sk, uint32_t prime_index) {
    return sk->evaluations + (size_t)prime_index * params_n(context_params(sk->context));
}

void secret_key_destroy(secret_key *sk) {
    if (!sk) return;
    secret_free(sk->coefficients);
    secret_free(sk->evaluations);
    free(sk);
}

/* ---- shapes of keys ---- */

static uint32_t key_digit_count(const ckks_params *p, const key_requirement *key) {
    return key->kind == KEY_PUBLIC ? 1 : params_digit_count(p, key->level);
}

static uint32_t key_limb_count(const ckks_params *p, const key_requirement *key) {
    return key->level + 1 + (key->kind == KEY_PUBLIC ? 0 : p->p_count);
}

uint64_t key_seeded_word_count(const ckks_params *params, const key_requirement *key) {
    return (uint64_t)key_digit_count(params, key) * key_limb_count(params, key) * params_n(params);
}

uint64_t key_resident_word_count(const ckks_params *params, const key_requirement *key) {
    return 2 * key_seeded_word_count(params, key);
}

ckks_status key_requirement_check(const ckks_params *params, const key_requirement *key, ckks_error *err) {
    if (key->kind < KEY_RELINEARISATION || key->kind > KEY_PUBLIC)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "kind", "%u is no kind of key", key->kind);
    if (key->level > params_level_max(params))
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "level", "%u is over the highest level %u",
                              key->level, params_level_max(params));
    const uint32_t g = key->galois_element;
    const bool is_element = g % 2 == 1 && g != 1 && g < 2 * params_n(params);
    if (key->kind == KEY_GALOIS ? !is_element : g != 0)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "galois_element",
                              "%u: a Galois key needs an odd element above 1 and below 2N = %u, others 0", g,
                              2 * params_n(params));
    return CKKS_OK;
}

/* ---- generation ---- */

typedef struct generation {
    const secret_key *sk;
    const key_requirement *key;
    const uint8_t *seed;
    uint32_t polynomial;  /* of digit 0 */
    const int8_t *errors; /* [digit][N], guarded */
} generation;

/* b += P * s' in a limb of the digit's own, a block of positions at a time: the block is wiped */
static void add_gadget(uint64_t *b, const generation *g, uint32_t prime) {
    const ckks_params *p = context_params(g->sk->context);
    const ntt_table *t = context_ntt(g->sk->context, prime);
    const uint64_t *s = secret_key_evaluations(g->sk, prime);
    const limb_loops *loops = limb_loops_best();
    uint64_t target[PERMUTE_BLOCK], big_p, big_p_shoup;
    uint8_t index[PERMUTE_BLOCK];
    context_p_product(g->sk->context, prime, &big_p, &big_p_shoup);
    for (uint32_t block = 0; block < params_n(p) / PERMUTE_BLOCK; block++) {
        const size_t at = (size_t)block * PERMUTE_BLOCK;
        if (g->key->kind == KEY_RELINEARISATION) {
            loops->multiply(target, s + at, s + at, PERMUTE_BLOCK, &t->m);
        } else {
            const uint64_t *from = s + permute_block_fill(index, p->log_n, g->key->galois_element, block);
            for (uint32_t j = 0; j < PERMUTE_BLOCK; j++) target[j] = from[index[j]];
        }
        loops->add_scaled(b + at, target, big_p, PERMUTE_BLOCK, &t->m);
    }
    sodium_memzero(target, sizeof target);
}

/* b = e - a*s, plus P*s' in the digit's own limbs */
static void generate_limb(uint64_t *b, const generation *g, uint32_t digit, uint32_t limb) {
    const ckks_context *context = g->sk->context;
    const ckks_params *p = context_params(context);
    const uint32_t prime = limb <= g->key->level ? limb : p->q_count + (limb - g->key->level - 1);
    const ntt_table *t = context_ntt(context, prime);
    const bool is_public = g->key->kind == KEY_PUBLIC;
    limb_loops_best()->forward_small(b, g->errors + digit * (size_t)params_n(p), t);
    seed_subtract_product(b, secret_key_evaluations(g->sk, prime), NULL, t, g->seed,
                          is_public ? SEED_PUBLIC_KEY : SEED_KEY_SET, g->polynomial + digit, prime);
    if (!is_public && limb <= g->key->level && limb / p->digit_size == digit) add_gadget(b, g, prime);
}

static ckks_status check_generation(const ckks_params *p, const key_requirement *key, uint32_t key_index,
                                    ckks_error *err) {
    const ckks_status rc = key_requirement_check(p, key, err);
    if (rc != CKKS_OK) return rc;
    if (key_index > (UINT32_MAX - params_digit_count_full(p)) / params_digit_count_full(p))
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "key_index",
                              "%u gives polynomial numbers over 2^32", key_index);
    return CKKS_OK;
}

ckks_status key_generate(uint64_t *words, const secret_key *sk, const key_requirement *key,
                         const uint8_t seed[SEED_BYTES], uint32_t key_index, ckks_error *err) {
    const ckks_params *p = context_params(sk->context);
    ckks_status rc = check_generation(p, key, key_index, err);
    if (rc != CKKS_OK) return rc;
    const size_t n = params_n(p);
    const uint32_t digits = key_digit_count(p, key), limbs = key_limb_count(p, key);
    int8_t *errors = secret_allocate(digits * n);
    sampler *s = secret_allocate(sizeof *s);
    if (!errors || !s) {
        rc = no_memory("key", err);
        goto out;
    }
    sampler_init(s);
    sample_error(errors, digits * n, s);
    const generation g = {sk, key, seed, key_index * params_digit_count_full(p), errors};
    const int count = (int)(digits * limbs);
#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < count; i++)
        generate_limb(words + (size_t)i * n, &g, (uint32_t)i / limbs, (uint32_t)i % limbs);
out:
    secret_free(s);
    secret_free(errors);
    return rc;
}
