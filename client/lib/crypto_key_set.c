/* Evaluation keys and public keys: what a client makes once and gives away. */
#include "client/lib/crypto.h"

#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"
#include "proto/key_file.h"
#include "proto/packing.h"

#include <omp.h>
#include <sodium.h>
#include <stdlib.h>

/* ---- requirements ---- */

static int compare_requirements(const void *a, const void *b) {
    const key_requirement *x = a, *y = b;
    if (x->kind != y->kind) return x->kind < y->kind ? -1 : 1;
    if (x->galois_element != y->galois_element) return x->galois_element < y->galois_element ? -1 : 1;
    return 0;
}

static key_requirement *find(key_requirement *list, uint32_t count, const key_requirement *wanted) {
    for (uint32_t i = 0; i < count; i++)
        if (compare_requirements(&list[i], wanted) == 0) return &list[i];
    return NULL;
}

ckks_status client_requirements_add(key_requirement **requirements, uint32_t *count,
                                    const key_requirement *more, uint32_t more_count, ckks_error *err) {
    if (!more_count) return CKKS_OK;
    key_requirement *list = realloc(*requirements, ((size_t)*count + more_count) * sizeof *list);
    if (!list)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "keys", "no memory for %u keys", more_count);
    *requirements = list;
    for (uint32_t i = 0; i < more_count; i++) {
        key_requirement *known = find(list, *count, &more[i]);
        if (!known)
            list[(*count)++] = more[i];
        else if (known->level < more[i].level)
            known->level = more[i].level;
    }
    qsort(list, *count, sizeof *list, compare_requirements);
    return CKKS_OK;
}

ckks_status client_requirements_cover(const key_requirement *have, uint32_t have_count,
                                      const key_requirement *need, uint32_t need_count, ckks_error *err) {
    for (uint32_t i = 0; i < need_count; i++) {
        bool is_met = false;
        for (uint32_t k = 0; k < have_count && !is_met; k++)
            is_met = compare_requirements(&have[k], &need[i]) == 0 && have[k].level >= need[i].level;
        if (!is_met)
            return ckks_error_set(err, CKKS_KEY_MISSING, "keys", "kind %u, Galois element %u, level %u",
                                  need[i].kind, need[i].galois_element, need[i].level);
    }
    return CKKS_OK;
}

/* ---- key sets ---- */

void client_key_set_destroy(client_key_set *set) {
    if (!set) return;
    free(set->keys);
    free(set->payload);
    free(set);
}

/* component 0 of one key, packed digit by digit */
static void pack_key(uint8_t *out, const uint64_t *words, const ckks_params *params,
                     const key_requirement *key) {
    if (key->kind == KEY_PUBLIC) {
        packing_pack(out, words, params, key->level, false, 1);
        return;
    }
    const uint32_t digits = params_digit_count(params, key->level);
    const uint64_t bytes = packing_poly_bytes(params, key->level, true, 1);
    const uint64_t word_count = (uint64_t)(key->level + 1 + params->p_count) * params_n(params);
    for (uint32_t d = 0; d < digits; d++)
        packing_pack(out + d * bytes, words + d * word_count, params, key->level, true, 1);
}

typedef struct generation {
    const client_secret_key *sk;
    client_key_set *set;
    const uint64_t *offset; /* of each key in the payload */
    client_progress progress;
    void *progress_context;
    uint64_t done;
    ckks_status rc;
    ckks_error error;
} generation;

static void generate_one(generation *g, uint32_t index) {
    const key_requirement *key = &g->set->keys[index];
    ckks_error error = {0};
    ckks_status rc;
    const uint64_t word_count = key_seeded_word_count(&g->set->params, key);
    uint64_t *words = malloc((size_t)word_count * sizeof *words);
    if (!words) {
        rc = ckks_error_set(&error, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a key");
    } else {
        rc = key_generate(words, g->sk->key, key, g->set->seed, index, &error);
        if (rc == CKKS_OK) pack_key(g->set->payload + g->offset[index], words, &g->set->params, key);
    }
    free(words);
#pragma omp critical(client_key_generation)
    {
        g->done++;
        if (rc != CKKS_OK && g->rc == CKKS_OK) g->rc = rc, g->error = error;
        if (g->progress) g->progress(g->progress_context, g->done, g->set->key_count);
    }
}

static ckks_status set_allocate(client_key_set **out, const ckks_params *params, const key_requirement *keys,
                                uint32_t key_count, uint64_t payload_bytes, ckks_error *err) {
    client_key_set *set = calloc(1, sizeof *set);
    if (!set) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "keys", "no memory");
    set->params = *params;
    set->key_count = key_count;
    set->payload_bytes = payload_bytes;
    set->is_insecure = params_security_bits(params) < 128;
    set->keys = malloc(((size_t)key_count + 1) * sizeof *set->keys);
    set->payload = malloc((size_t)payload_bytes + 1);
    if (!set->keys || !set->payload) {
        client_key_set_destroy(set);
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "keys", "no memory for %llu bytes of keys",
                              (unsigned long long)payload_bytes);
    }
    memcpy(set->keys, keys, key_count * sizeof *keys);
    *out = set;
    return CKKS_OK;
}

static void set_identify(client_key_set *set) {
    uint8_t digest[SHA256_BYTES];
    sha256(digest, set->payload, (size_t)set->payload_bytes);
    key_set_id(set->id, &set->params, set->lineage, set->seed, set->keys, set->key_count, digest);
}

ckks_status client_key_set_generate(client_key_set **out, const client_secret_key *sk,
                                    const key_requirement *keys, uint32_t key_count, client_progress progress,
                                    void *progress_context, ckks_error *err) {
    const ckks_params *params = context_params(sk->context);
    ckks_status rc;
    client_key_set *set = NULL;
    uint64_t *offset = NULL, payload_bytes;

    *out = NULL;
    if (!key_count || key_count > KEY_REQUIREMENTS_MAX)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "keys", "%u keys", key_count);
    if (!packing_key_set_bytes(&payload_bytes, params, keys, key_count))
        return ckks_error_set(err, CKKS_TOO_LARGE, "keys", "their size overflows");
    if ((rc = set_allocate(&set, params, keys, key_count, payload_bytes, err)) != CKKS_OK) goto out;
    memcpy(set->lineage, secret_key_lineage(sk->key), LINEAGE_BYTES);
    randombytes_buf(set->seed, sizeof set->seed);
    if (!(offset = malloc((size_t)key_count * sizeof *offset))) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "keys", "no memory");
        goto out;
    }
    for (uint64_t i = 0, at = 0; i < key_count; at += packing_key_bytes(params, &keys[i++])) offset[i] = at;
    generation g = {
        .sk = sk, .set = set, .offset = offset, .progress = progress, .progress_context = progress_context};
#pragma omp parallel for schedule(dynamic, 1)
    for (uint32_t i = 0; i < key_count; i++) generate_one(&g, i);
    if (g.rc != CKKS_OK) {
        rc = g.rc;
        if (err && err->code == CKKS_OK) *err = g.error;
        goto out;
    }
    set_identify(set);
    *out = set, set = NULL;
out:
    free(offset);
    client_key_set_destroy(set);
    return rc;
}

ckks_status client_key_set_export(uint8_t **image, size_t *size, const client_key_set *set, ckks_error *err) {
    const key_set_content content = {&set->params, set->lineage,   set->seed,
                                     set->keys,    set->key_count, set->is_insecure};
    return key_set_build(image, size, NULL, CONTAINER_KEY_SET, &content, set->payload, set->payload_bytes,
                         err);
}

ckks_status client_key_set_import(client_key_set **out, const void *image, size_t size, bool allow_insecure,
                                  ckks_error *err) {
    ckks_status rc;
    container_view file = {0};
    key_set_view view = {0};
    client_key_set *set = NULL;
    *out = NULL;
    if ((rc = client_init(err)) != CKKS_OK) goto out;
    if ((rc = container_parse(&file, image, size, CONTAINER_KEY_SET, err)) != CKKS_OK) goto out;
    if ((rc = key_set_from_container(&view, &file, allow_insecure, err)) != CKKS_OK) goto out;
    rc = set_allocate(&set, &view.params, view.requirements, view.count, view.payload_bytes, err);
    if (rc != CKKS_OK) goto out;
    memcpy(set->lineage, view.lineage, sizeof set->lineage);
    memcpy(set->seed, view.seed, sizeof set->seed);
    memcpy(set->id, view.id, sizeof set->id);
    memcpy(set->payload, view.payload, (size_t)view.payload_bytes);
    set->is_insecure = view.is_insecure;
    *out = set;
out:
    key_set_view_fini(&view);
    container_view_fini(&file);
    return rc;
}

/* ---- public keys ---- */

ckks_status client_public_key_export(uint8_t **image, size_t *size, const client_secret_key *sk,
                                     ckks_error *err) {
    const ckks_params *params = context_params(sk->context);
    const key_requirement key = {KEY_PUBLIC, 0, params_level_max(params)};
    ckks_status rc;
    client_key_set *set = NULL;
    *image = NULL, *size = 0;
    if ((rc = client_key_set_generate(&set, sk, &key, 1, NULL, NULL, err)) != CKKS_OK) return rc;
    const key_set_content content = {params, set->lineage, set->seed, &key, 1, set->is_insecure};
    rc = key_set_build(image, size, NULL, CONTAINER_PUBLIC_KEY, &content, set->payload, set->payload_bytes,
                       err);
    client_key_set_destroy(set);
    return rc;
}

void client_public_key_destroy(client_public_key *pk) {
    if (!pk) return;
    context_destroy(pk->context);
    free(pk->words);
    free(pk);
}

ckks_status client_public_key_import(client_public_key **out, const void *image, size_t size,
                                     bool allow_insecure, ckks_error *err) {
    ckks_status rc;
    container_view file = {0};
    key_set_view view = {0};
    client_public_key *pk = NULL;
    *out = NULL;
    if ((rc = client_init(err)) != CKKS_OK) goto out;
    if ((rc = container_parse(&file, image, size, CONTAINER_PUBLIC_KEY, err)) != CKKS_OK) goto out;
    if ((rc = key_set_from_container(&view, &file, allow_insecure, err)) != CKKS_OK) goto out;
    const ckks_params *params = &view.params;
    const uint32_t level = params_level_max(params), n = params_n(params);
    if (view.requirements[0].level != level) {
        rc = ckks_error_set(err, CKKS_MALFORMED, "level", "a public key of level %u of %u",
                            view.requirements[0].level, level);
        goto out;
    }
    const size_t half = (size_t)(level + 1) * n;
    if (!(pk = calloc(1, sizeof *pk)) || !(pk->words = malloc(2 * half * sizeof *pk->words))) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a public key");
        goto out;
    }
    if ((rc = context_create(&pk->context, params, err)) != CKKS_OK) goto out;
    memcpy(pk->lineage, view.lineage, sizeof pk->lineage);
    if ((rc = packing_unpack(pk->words, view.payload, params, level, false, 1, err)) != CKKS_OK) goto out;
    for (uint32_t i = 0; i <= level; i++)
        seed_expand(pk->words + half + (size_t)i * n, n, params->prime[i], view.seed, SEED_PUBLIC_KEY, 0, i);
    *out = pk, pk = NULL;
out:
    client_public_key_destroy(pk);
    key_set_view_fini(&view);
    container_view_fini(&file);
    return rc;
}
