#include "tests/support/key_set_fixture.h"

#include "kernels/base/hash.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

static void pack_keys(key_set_fixture *f, const ckks_params *params) {
    bool fits = packing_key_set_bytes(&f->payload_bytes, params, f->keys, f->key_count);
    CKKS_ASSERT(fits);
    uint8_t *at = f->payload = calloc(1, f->payload_bytes);
    CKKS_ASSERT(at);
    for (uint32_t k = 0; k < f->key_count; k++) {
        const key_requirement *key = &f->keys[k];
        const uint64_t count = key_seeded_word_count(params, key);
        uint64_t *words = calloc(count, sizeof *words);
        CKKS_ASSERT(words && key_generate(words, f->sk, key, f->seed, k, NULL) == CKKS_OK);
        const bool with_p = key->kind != KEY_PUBLIC;
        const uint64_t digit_words =
            (key->level + 1u + (with_p ? params->p_count : 0u)) * (uint64_t)params_n(params);
        for (uint64_t w = 0; w < count; w += digit_words) {
            packing_pack(at, words + w, params, key->level, with_p, 1);
            at += packing_poly_bytes(params, key->level, with_p, 1);
        }
        free(words);
    }
    CKKS_ASSERT(at == f->payload + f->payload_bytes);
}

static void describe(key_set_fixture *f, const ckks_params *params) {
    uint8_t payload_digest[32];
    const key_set_content content = {.params = params,
                                     .lineage = secret_key_lineage(f->sk),
                                     .seed = f->seed,
                                     .keys = f->keys,
                                     .count = f->key_count,
                                     .is_insecure = params_security_bits(params) == 0};
    sha256(payload_digest, f->payload, f->payload_bytes);
    ckks_status rc =
        key_set_manifest_build(&f->manifest_bytes, &f->manifest_size, &content, payload_digest, NULL);
    CKKS_ASSERT(rc == CKKS_OK);
    key_set_id(f->id, params, content.lineage, f->seed, f->keys, f->key_count, payload_digest);
    rc = message_unpack(&f->manifest, &ckksd__v1__key_set_manifest__descriptor, f->manifest_bytes,
                        f->manifest_size, KEY_SET_ARENA_BYTES, "manifest", NULL);
    CKKS_ASSERT(rc == CKKS_OK);
    f->digests = calloc(f->part_count, sizeof *f->digests);
    f->digest_list = calloc(f->part_count, sizeof *f->digest_list);
    CKKS_ASSERT(f->digests && f->digest_list);
    for (uint32_t i = 0; i < f->part_count; i++) {
        uint64_t bytes;
        const uint8_t *part = key_set_fixture_part(f, i, &bytes);
        sha256(f->digests[i], part, bytes);
        f->digest_list[i] = (ProtobufCBinaryData){32, f->digests[i]};
    }
    ckksd__v1__key_begin_request__init(&f->begin);
    f->begin.manifest = (Ckksd__V1__KeySetManifest *)f->manifest;
    f->begin.has_payload_bytes = f->begin.has_part_bytes = true;
    f->begin.payload_bytes = f->payload_bytes, f->begin.part_bytes = f->part_bytes;
    f->begin.n_part_digests = f->part_count, f->begin.part_digests = f->digest_list;
}

void key_set_fixture_init(key_set_fixture *f, const ckks_params *params, const key_requirement *keys,
                          uint32_t count, uint32_t part_bytes) {
    memset(f, 0, sizeof *f);
    int ready = sodium_init();
    CKKS_ASSERT(ready >= 0);
    ckks_status rc = context_create(&f->context, params, NULL);
    CKKS_ASSERT(rc == CKKS_OK);
    rc = secret_key_generate(&f->sk, f->context, NULL);
    CKKS_ASSERT(rc == CKKS_OK);
    randombytes_buf(f->seed, sizeof f->seed);
    f->keys = calloc(count, sizeof *keys);
    CKKS_ASSERT(f->keys);
    memcpy(f->keys, keys, count * sizeof *keys);
    f->key_count = count;
    pack_keys(f, params);
    f->part_bytes = part_bytes;
    f->part_count = (uint32_t)((f->payload_bytes + part_bytes - 1) / part_bytes);
    describe(f, params);
}

const uint8_t *key_set_fixture_part(const key_set_fixture *f, uint32_t index, uint64_t *bytes) {
    const uint64_t offset = (uint64_t)index * f->part_bytes, left = f->payload_bytes - offset;
    *bytes = left < f->part_bytes ? left : f->part_bytes;
    return f->payload + offset;
}

void key_set_fixture_fini(key_set_fixture *f) {
    message_free(f->manifest);
    free(f->manifest_bytes);
    free(f->digests);
    free(f->digest_list);
    free(f->payload);
    free(f->keys);
    secret_key_destroy(f->sk);
    context_destroy(f->context);
    memset(f, 0, sizeof *f);
}
