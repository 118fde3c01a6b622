#include "proto/key_file.h"

#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"

#include <stdlib.h>

static const char id_domain[8] = {'C', 'K', 'K', 'S', 'K', 'S', 'E', 'T'};

#define ID_FIXED_BYTES (sizeof id_domain + CKKS_PARAMETER_ID_BYTES + LINEAGE_BYTES + SEED_BYTES + 4)
#define ID_KEY_BYTES   12u

/* The list is bounded, so it is hashed from one buffer (49 KiB of stack): naming a set cannot fail. */
void key_set_id(uint8_t out[KEY_SET_ID_BYTES], const ckks_params *params,
                const uint8_t lineage[LINEAGE_BYTES], const uint8_t seed[SEED_BYTES],
                const key_requirement *keys, uint32_t count, const uint8_t payload_digest[32]) {
    uint8_t buffer[ID_FIXED_BYTES + KEY_REQUIREMENTS_MAX * ID_KEY_BYTES + SHA256_BYTES];
    uint8_t *at = buffer;
    CKKS_ASSERT(count <= KEY_REQUIREMENTS_MAX);
#define APPEND(data, bytes) (memcpy(at, data, bytes), at += (bytes))
    APPEND(id_domain, sizeof id_domain);
    APPEND(params->id, CKKS_PARAMETER_ID_BYTES);
    APPEND(lineage, LINEAGE_BYTES);
    APPEND(seed, SEED_BYTES);
    bytes_write_u32(at, count);
    at += 4;
    for (uint32_t i = 0; i < count; i++, at += ID_KEY_BYTES) {
        bytes_write_u32(at, keys[i].kind);
        bytes_write_u32(at + 4, keys[i].galois_element);
        bytes_write_u32(at + 8, keys[i].level);
    }
    APPEND(payload_digest, SHA256_BYTES);
#undef APPEND
    sha256(out, buffer, (size_t)(at - buffer));
}

/* ---- reading ---- */

static ckks_status copy_bytes(uint8_t *out, size_t size, protobuf_c_boolean present,
                              const ProtobufCBinaryData *data, const char *field, ckks_error *err) {
    if (!present || data->len != size)
        return ckks_error_set(err, CKKS_MALFORMED, field, "%s must have %zu bytes", field, size);
    memcpy(out, data->data, size);
    return CKKS_OK;
}

/* An insecure set says so itself; one that does not say so must pass the gate whatever the caller allows. */
static ckks_status check_gate(key_set_view *view, bool declares_insecure, bool allow_insecure,
                              ckks_error *err) {
    view->is_insecure = declares_insecure;
    if (declares_insecure && allow_insecure) return CKKS_OK;
    const ckks_status rc = params_gate(&view->params, 128, err);
    if (rc == CKKS_OK) view->is_insecure = false;
    return rc;
}

static ckks_status size_keys(key_set_view *view, ckks_error *err) {
    if (!packing_key_set_bytes(&view->payload_bytes, &view->params, view->requirements, view->count))
        return ckks_error_set(err, CKKS_TOO_LARGE, "keys", "the keys' size does not fit 64 bits");
    if (!(view->keys = calloc(view->count, sizeof *view->keys)))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "keys", "no memory for %u keys", view->count);
    for (uint32_t i = 0; i < view->count; i++) {
        view->keys[i].requirement = view->requirements[i];
        view->keys[i].packed_bytes = packing_key_bytes(&view->params, &view->requirements[i]);
    }
    return CKKS_OK;
}

ckks_status key_set_from_message(key_set_view *out, const Ckksd__V1__KeySetManifest *m, bool is_public,
                                 bool allow_insecure, ckks_error *err) {
    ckks_status rc;
    key_set_view view = {0};
    *out = view;
    if (!m) return ckks_error_set(err, CKKS_MALFORMED, "manifest", "the manifest is absent");
    if ((rc = params_from_message(&view.params, m->parameters, err)) != CKKS_OK) goto out;
    if ((rc = check_gate(&view, m->has_insecure && m->insecure, allow_insecure, err)) != CKKS_OK) goto out;
    rc = copy_bytes(view.lineage, LINEAGE_BYTES, m->has_lineage, &m->lineage, "lineage", err);
    if (rc != CKKS_OK) goto out;
    if ((rc = copy_bytes(view.seed, SEED_BYTES, m->has_seed, &m->seed, "seed", err)) != CKKS_OK) goto out;
    if ((rc = copy_bytes(view.id, KEY_SET_ID_BYTES, m->has_id, &m->id, "id", err)) != CKKS_OK) goto out;
    if (m->n_keys == 0) {
        rc = ckks_error_set(err, CKKS_MALFORMED, "keys", "a key set has at least one key");
        goto out;
    }
    rc = key_requirements_from_messages(&view.requirements, &view.count, &view.params, m->keys, m->n_keys,
                                        err);
    if (rc != CKKS_OK) goto out;
    if (is_public && (view.count != 1 || view.requirements[0].kind != KEY_PUBLIC)) {
        rc = ckks_error_set(err, CKKS_MALFORMED, "keys",
                            "a public key file holds one public key and no other");
        goto out;
    }
    if ((rc = size_keys(&view, err)) != CKKS_OK) goto out;
    *out = view;
    view = (key_set_view){0};
out:
    key_set_view_fini(&view);
    return rc;
}

ckks_status key_set_from_bytes(key_set_view *out, const void *manifest, size_t manifest_bytes, bool is_public,
                               bool allow_insecure, ckks_error *err) {
    ProtobufCMessage *message = NULL;
    *out = (key_set_view){0};
    ckks_status rc =
        message_unpack(&message, &ckksd__v1__key_set_manifest__descriptor, manifest, manifest_bytes,
                       message_arena_bytes(manifest_bytes, KEY_SET_ARENA_BYTES), "manifest", err);
    if (rc == CKKS_OK)
        rc = key_set_from_message(out, (const Ckksd__V1__KeySetManifest *)(const void *)message, is_public,
                                  allow_insecure, err);
    message_free(message);
    return rc;
}

ckks_status key_set_attach_hashed(key_set_view *view, const void *payload, uint64_t payload_bytes,
                                  const uint8_t payload_digest[32], ckks_error *err) {
    uint8_t id[KEY_SET_ID_BYTES];
    if (payload_bytes != view->payload_bytes)
        return ckks_error_set(err, CKKS_MALFORMED, "payload", "payload of %llu bytes, these keys take %llu",
                              (unsigned long long)payload_bytes, (unsigned long long)view->payload_bytes);
    key_set_id(id, &view->params, view->lineage, view->seed, view->requirements, view->count, payload_digest);
    if (memcmp(id, view->id, sizeof id) != 0)
        return ckks_error_set(err, CKKS_DIGEST_MISMATCH, "id",
                              "the key set's id is not the hash of its content");
    const uint8_t *at = payload;
    view->payload = payload;
    for (uint32_t i = 0; i < view->count; i++) {
        view->keys[i].packed = at;
        at += view->keys[i].packed_bytes;
    }
    return CKKS_OK;
}

ckks_status key_set_attach(key_set_view *view, const void *payload, uint64_t payload_bytes, ckks_error *err) {
    uint8_t digest[SHA256_BYTES];
    if (payload_bytes == view->payload_bytes) /* else refused below without hashing what may be huge */
        sha256(digest, payload, payload_bytes);
    else
        memset(digest, 0, sizeof digest);
    return key_set_attach_hashed(view, payload, payload_bytes, digest, err);
}

ckks_status key_set_from_container(key_set_view *out, const container_view *file, bool allow_insecure,
                                   ckks_error *err) {
    ckks_status rc;
    *out = (key_set_view){0};
    if (file->kind != CONTAINER_KEY_SET && file->kind != CONTAINER_PUBLIC_KEY)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "kind",
                              "the file is a %s, not a key set or public key",
                              container_kind_name(file->kind));
    if (file->segment_count != 1)
        return ckks_error_set(err, CKKS_MALFORMED, "segments", "%u segments, a key file has one",
                              file->segment_count);
    rc = key_set_from_bytes(out, file->manifest, file->manifest_bytes, file->kind == CONTAINER_PUBLIC_KEY,
                            allow_insecure, err);
    if (rc == CKKS_OK) rc = key_set_attach(out, file->segments[0].data, file->segments[0].bytes, err);
    if (rc != CKKS_OK) key_set_view_fini(out);
    return rc;
}

ckks_status key_set_check_residues(const key_set_view *view, ckks_error *err) {
    CKKS_ASSERT(view->payload != NULL);
    for (uint32_t i = 0; i < view->count; i++) {
        const key_requirement *key = &view->requirements[i];
        ckks_error inner = {0};
        const bool is_public = key->kind == KEY_PUBLIC;
        const uint32_t digits = is_public ? 1 : params_digit_count(&view->params, key->level);
        const ckks_status rc =
            packing_check(view->keys[i].packed, &view->params, key->level, !is_public, digits, &inner);
        if (rc != CKKS_OK)
            return ckks_error_set(err, rc, inner.field, "key %u (kind %u, Galois element %u): %s", i,
                                  key->kind, key->galois_element, inner.message);
    }
    return CKKS_OK;
}

void key_set_view_fini(key_set_view *view) {
    free(view->requirements);
    free(view->keys);
    *view = (key_set_view){0};
}

/* ---- writing ---- */

static ckks_status pack_manifest(uint8_t **out, size_t *bytes, const key_set_content *content,
                                 const uint8_t id[KEY_SET_ID_BYTES], ckks_error *err) {
    params_message params;
    Ckksd__V1__KeySetManifest m;
    const uint32_t count = content->count;
    Ckksd__V1__KeyRequirement *items = calloc(count, sizeof *items), **list = calloc(count, sizeof(void *));
    uint8_t *packed = NULL;
    if (!items || !list) goto out;
    ckksd__v1__key_set_manifest__init(&m);
    params_to_message(&params, content->params);
    m.parameters = &params.message;
    m.has_lineage = 1,
    m.lineage = (ProtobufCBinaryData){LINEAGE_BYTES, (uint8_t *)(uintptr_t)content->lineage};
    m.has_seed = 1, m.seed = (ProtobufCBinaryData){SEED_BYTES, (uint8_t *)(uintptr_t)content->seed};
    m.has_id = 1, m.id = (ProtobufCBinaryData){KEY_SET_ID_BYTES, (uint8_t *)(uintptr_t)id};
    if (content->is_insecure) m.has_insecure = 1, m.insecure = 1;
    key_requirements_to_messages(items, list, content->keys, count);
    m.n_keys = count, m.keys = list;
    const size_t size = ckksd__v1__key_set_manifest__get_packed_size(&m);
    if (!(packed = malloc(size))) goto out;
    *bytes = ckksd__v1__key_set_manifest__pack(&m, packed);
out:
    free(items);
    free(list);
    *out = packed;
    return packed ? CKKS_OK
                  : ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "manifest", "no memory for the manifest");
}

ckks_status key_set_manifest_build(uint8_t **out, size_t *bytes, const key_set_content *content,
                                   const uint8_t payload_digest[32], ckks_error *err) {
    uint8_t id[KEY_SET_ID_BYTES];
    *out = NULL, *bytes = 0;
    if (content->count == 0 || content->count > KEY_REQUIREMENTS_MAX)
        return ckks_error_set(err, CKKS_TOO_LARGE, "keys", "%u keys: a set has 1 to %u", content->count,
                              KEY_REQUIREMENTS_MAX);
    key_set_id(id, content->params, content->lineage, content->seed, content->keys, content->count,
               payload_digest);
    return pack_manifest(out, bytes, content, id, err);
}

ckks_status key_set_build(uint8_t **out, size_t *size, uint8_t id[KEY_SET_ID_BYTES], uint32_t kind,
                          const key_set_content *content, const uint8_t *payload, uint64_t payload_bytes,
                          ckks_error *err) {
    ckks_status rc;
    uint8_t *manifest = NULL, digest[SHA256_BYTES];
    size_t manifest_bytes;
    *out = NULL, *size = 0;
    CKKS_ASSERT(kind == CONTAINER_KEY_SET || kind == CONTAINER_PUBLIC_KEY);
    sha256(digest, payload, payload_bytes);
    if ((rc = key_set_manifest_build(&manifest, &manifest_bytes, content, digest, err)) != CKKS_OK) return rc;
    if (id)
        key_set_id(id, content->params, content->lineage, content->seed, content->keys, content->count,
                   digest);
    const container_segment segment = {payload, payload_bytes};
    rc = container_build(out, size, kind, manifest, (uint32_t)manifest_bytes, &segment, 1, err);
    free(manifest);
    return rc;
}
