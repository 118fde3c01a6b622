/* Rows of `ckksctl bench ops` that run on the host: what a client does. */
#include "client/ctl/bench_rows.h"

#include "kernels/scheme/encoder.h"

#include <stdlib.h>
#include <string.h>

static size_t component_words(const bench_run *r) {
    return ((size_t)r->level + 1) * params_n(r->rig.params);
}

static ckks_status open_slots(bench_run *r, ckks_error *err) {
    r->now.slots = calloc(params_slot_count_max(r->rig.params), sizeof *r->now.slots);
    if (r->now.slots) return CKKS_OK;
    return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a benchmark");
}

static ckks_status encode_into(bench_run *r, uint64_t *words, ckks_error *err) {
    return encoder_encode(words, r->rig.context, r->a.slots, NULL, params_slot_count_max(r->rig.params),
                          r->level, false, r->scale, err);
}

/* ---- encode: words[0] ---- */

static ckks_status encode_open(bench_run *r, ckks_error *err) {
    const ckks_status rc = bench_words(&r->now.words[0], component_words(r), err);
    return rc == CKKS_OK ? open_slots(r, err) : rc;
}
static ckks_status encode_once(bench_run *r, ckks_error *err) {
    return encode_into(r, r->now.words[0], err);
}
static ckks_status encode_check(bench_run *r, ckks_error *err) {
    const ckks_status rc = encoder_decode(r->now.slots, NULL, r->rig.context, r->now.words[0],
                                          params_slot_count_max(r->rig.params), r->level, r->scale, err);
    return rc == CKKS_OK ? bench_compare_slots(r, r->now.slots, r->a.slots, err) : rc;
}

/* ---- encrypt: words[0] the ciphertext, words[1] the plaintext, words[2] the public key ---- */

static ckks_status encrypt_open(bench_run *r, ckks_error *err) {
    ckks_status rc = bench_words(&r->now.words[0], 2 * component_words(r), err);
    if (rc == CKKS_OK) rc = bench_words(&r->now.words[1], component_words(r), err);
    if (rc == CKKS_OK) rc = open_slots(r, err);
    return rc == CKKS_OK ? encode_into(r, r->now.words[1], err) : rc;
}
static ckks_status encrypt_check(bench_run *r, ckks_error *err) {
    const ckks_status rc = bench_decrypt(r, r->now.slots, r->now.words[0], r->level, r->scale, err);
    return rc == CKKS_OK ? bench_compare_slots(r, r->now.slots, r->a.slots, err) : rc;
}

static ckks_status secret_once(bench_run *r, ckks_error *err) {
    return encrypt_symmetric(r->now.words[0], r->now.seed, r->rig.secret->key, r->now.words[1], r->level,
                             err);
}
static ckks_status secret_check(bench_run *r, ckks_error *err) {
    const uint32_t n = params_n(r->rig.params);
    uint64_t *c1 = r->now.words[0] + component_words(r);
    for (uint32_t i = 0; i <= r->level; i++)
        seed_expand(c1 + (size_t)i * n, n, r->rig.params->prime[i], r->now.seed, SEED_CIPHERTEXT, 0, i);
    return encrypt_check(r, err);
}

static ckks_status public_open(bench_run *r, ckks_error *err) {
    const key_requirement key = {KEY_PUBLIC, 0, r->level};
    const uint32_t n = params_n(r->rig.params);
    ckks_status rc = encrypt_open(r, err);
    if (rc == CKKS_OK) rc = bench_words(&r->now.words[2], 2 * component_words(r), err);
    if (rc == CKKS_OK) rc = key_generate(r->now.words[2], r->rig.secret->key, &key, r->now.seed, 0, err);
    for (uint32_t i = 0; i <= r->level && rc == CKKS_OK; i++)
        seed_expand(r->now.words[2] + component_words(r) + (size_t)i * n, n, r->rig.params->prime[i],
                    r->now.seed, SEED_PUBLIC_KEY, 0, i);
    return rc;
}
static ckks_status public_once(bench_run *r, ckks_error *err) {
    const size_t component = component_words(r);
    uint64_t *const *w = r->now.words;
    return encrypt_public(w[0], w[0] + component, r->rig.context, w[2], w[2] + component, w[1], r->level,
                          err);
}

/* ---- decrypt and decode: words[0] plaintext, words[1] the ciphertext cut to one limb ---- */

static ckks_status decrypt_open(bench_run *r, ckks_error *err) {
    const size_t n = params_n(r->rig.params);
    ckks_status rc = bench_words(&r->now.words[0], component_words(r), err);
    if (rc == CKKS_OK) rc = bench_words(&r->now.words[1], 2 * n, err);
    if (rc == CKKS_OK) rc = open_slots(r, err);
    if (rc != CKKS_OK) return rc;
    for (size_t c = 0; c < 2; c++)
        memcpy(r->now.words[1] + c * n, r->a.words + c * component_words(r), n * sizeof(uint64_t));
    return CKKS_OK;
}
static ckks_status decrypt_decode(bench_run *r, const uint64_t *words, uint32_t level, ckks_error *err) {
    const ckks_status rc = decrypt(r->now.words[0], r->rig.secret->key, words, 2, level, err);
    if (rc != CKKS_OK) return rc;
    return encoder_decode(r->now.slots, NULL, r->rig.context, r->now.words[0],
                          params_slot_count_max(r->rig.params), level, r->scale, err);
}
static ckks_status decrypt_one_limb(bench_run *r, ckks_error *err) {
    return decrypt_decode(r, r->now.words[1], 0, err);
}
static ckks_status decrypt_all(bench_run *r, ckks_error *err) {
    return decrypt_decode(r, r->a.words, r->level, err);
}
static ckks_status decrypt_check(bench_run *r, ckks_error *err) {
    return bench_compare_slots(r, r->now.slots, r->a.slots, err);
}

/* ---- keys: their check is every other row ---- */

static key_requirement wanted_key(const bench_run *r) {
    return (key_requirement){KEY_GALOIS, galois_element_rotate(r->rig.params->log_n, 1), r->level};
}
static ckks_status key_open(bench_run *r, ckks_error *err) {
    const key_requirement key = wanted_key(r);
    return bench_words(&r->now.words[0], (size_t)key_seeded_word_count(r->rig.params, &key), err);
}
static ckks_status key_once(bench_run *r, ckks_error *err) {
    const key_requirement key = wanted_key(r);
    return key_generate(r->now.words[0], r->rig.secret->key, &key, r->now.seed, 0, err);
}

static ckks_status secret_key_open(bench_run *r, ckks_error *err) {
    (void)r, (void)err;
    return CKKS_OK;
}
static ckks_status secret_key_once(bench_run *r, ckks_error *err) {
    secret_key *sk = NULL;
    const ckks_status rc = secret_key_generate(&sk, r->rig.context, err);
    secret_key_destroy(sk);
    return rc;
}

const bench_row bench_host_rows[] = {
    {"encode", .open = encode_open, .once = encode_once, .check_host = encode_check},
    {"encrypt, public key", .open = public_open, .once = public_once, .check_host = encrypt_check},
    {"encrypt, secret key", .open = encrypt_open, .once = secret_once, .check_host = secret_check},
    {"decrypt and decode, one limb", .open = decrypt_open, .once = decrypt_one_limb,
     .check_host = decrypt_check},
    {"decrypt and decode, all limbs", .open = decrypt_open, .once = decrypt_all, .check_host = decrypt_check},
    {"generate a secret key", .open = secret_key_open, .once = secret_key_once},
    {"generate a Galois key", .open = key_open, .once = key_once},
    {0},
};
