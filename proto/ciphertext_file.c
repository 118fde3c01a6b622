#include "proto/ciphertext_file.h"

#include "kernels/base/bytes.h"

#include <stdlib.h>

ckks_status ciphertext_packed_bytes(uint64_t *out, const ckks_params *params, const value_signature *s,
                                    bool is_seeded, ckks_error *err) {
    if (s->kind != VALUE_CIPHERTEXT)
        return ckks_error_set(err, CKKS_MALFORMED, "kind", "only ciphertexts travel, not kind %u", s->kind);
    if (s->domain != VALUE_EVALUATION)
        return ckks_error_set(err, CKKS_MALFORMED, "domain", "ciphertexts travel in the evaluation domain");
    if (s->basis != VALUE_BASIS_Q)
        return ckks_error_set(err, CKKS_MALFORMED, "basis", "ciphertexts travel in basis Q");
    if (s->component_count < 2)
        return ckks_error_set(err, CKKS_MALFORMED, "component_count",
                              "a ciphertext has at least two components");
    if (is_seeded && s->component_count != 2)
        return ckks_error_set(err, CKKS_MALFORMED, "seeds",
                              "only ciphertexts of two components can be seeded");
    const uint32_t components = is_seeded ? 1 : s->component_count;
    if (!size_multiply(out, packing_poly_bytes(params, s->limb_count - 1, false, components), s->batch_count))
        return ckks_error_set(err, CKKS_TOO_LARGE, "bytes", "the ciphertext's size does not fit 64 bits");
    return CKKS_OK;
}

static int compare_seeds(const void *left, const void *right) {
    const uint8_t *const *a = left, *const *b = right;
    return memcmp(*a, *b, SEED_BYTES);
}

ckks_status seeds_check(const ProtobufCBinaryData *seeds, size_t seed_count, uint32_t count,
                        ckks_error *err) {
    const uint8_t *sorted[CIPHERTEXTS_MAX];
    size_t present = 0;
    if (seed_count == 0) return CKKS_OK;
    if (seed_count != count || count > CIPHERTEXTS_MAX)
        return ckks_error_set(err, CKKS_MALFORMED, "seeds", "%zu seeds for %u ciphertexts", seed_count,
                              count);
    for (size_t i = 0; i < seed_count; i++) {
        if (seeds[i].len == 0) continue;
        if (seeds[i].len != SEED_BYTES)
            return ckks_error_set(err, CKKS_MALFORMED, "seeds", "seed %zu has %zu bytes, must have %u", i,
                                  seeds[i].len, SEED_BYTES);
        sorted[present++] = seeds[i].data;
    }
    qsort(sorted, present, sizeof *sorted, compare_seeds);
    for (size_t i = 1; i < present; i++)
        if (memcmp(sorted[i - 1], sorted[i], SEED_BYTES) == 0)
            return ckks_error_set(err, CKKS_MALFORMED, "seeds", "one seed occurs twice");
    return CKKS_OK;
}

/* ---- reading ---- */

static ckks_status read_head(ciphertext_view *view, const Ckksd__V1__CiphertextManifest *m,
                             const ckks_params *params, ckks_error *err) {
    if (!m->has_parameter_id || m->parameter_id.len != CKKS_PARAMETER_ID_BYTES)
        return ckks_error_set(err, CKKS_MALFORMED, "parameter_id", "the parameter id must have %u bytes",
                              CKKS_PARAMETER_ID_BYTES);
    if (memcmp(m->parameter_id.data, params->id, CKKS_PARAMETER_ID_BYTES) != 0)
        return ckks_error_set(err, CKKS_PARAMS_MISMATCH, "parameter_id",
                              "the ciphertexts belong to other parameters than these");
    if (!m->has_lineage || m->lineage.len != LINEAGE_BYTES)
        return ckks_error_set(err, CKKS_MALFORMED, "lineage", "the lineage must have %u bytes",
                              LINEAGE_BYTES);
    if (m->has_model_digest && m->model_digest.len != sizeof view->model_digest)
        return ckks_error_set(err, CKKS_MALFORMED, "model_digest", "a model digest has 32 bytes");
    memcpy(view->parameter_id, params->id, CKKS_PARAMETER_ID_BYTES);
    memcpy(view->lineage, m->lineage.data, LINEAGE_BYTES);
    if (m->has_model_digest) memcpy(view->model_digest, m->model_digest.data, sizeof view->model_digest);
    view->has_model_digest = m->has_model_digest;
    view->sample_count = m->has_sample_count ? m->sample_count : 0;
    if (!(view->model = strdup(m->model ? m->model : "")))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "model", "no memory for the model's name");
    return CKKS_OK;
}

static ckks_status read_ciphertext(packed_ciphertext *out, const Ckksd__V1__CiphertextManifest *m, uint32_t i,
                                   const container_segment *segment, const ckks_params *params,
                                   ckks_error *err) {
    ckks_status rc;
    uint64_t bytes = 0;
    if ((rc = signature_from_message(&out->signature, params, m->signatures[i], err)) != CKKS_OK) return rc;
    out->is_seeded = m->n_seeds != 0 && m->seeds[i].len != 0;
    if (out->is_seeded) memcpy(out->seed, m->seeds[i].data, SEED_BYTES);
    if ((rc = ciphertext_packed_bytes(&bytes, params, &out->signature, out->is_seeded, err)) != CKKS_OK)
        return rc;
    if (segment->bytes != bytes)
        return ckks_error_set(err, CKKS_MALFORMED, "segments", "ciphertext %u has %llu bytes, must have %llu",
                              i, (unsigned long long)segment->bytes, (unsigned long long)bytes);
    out->packed = segment->data;
    out->packed_bytes = bytes;
    return CKKS_OK;
}

static ckks_status read_manifest(ciphertext_view *view, const Ckksd__V1__CiphertextManifest *m,
                                 const container_view *file, const ckks_params *params, ckks_error *err) {
    ckks_status rc;
    if (m->n_signatures == 0 || m->n_signatures > CIPHERTEXTS_MAX || m->n_signatures != file->segment_count)
        return ckks_error_set(err, CKKS_MALFORMED, "signatures", "%zu signatures for %u segments (1 to %u)",
                              m->n_signatures, file->segment_count, CIPHERTEXTS_MAX);
    if ((rc = read_head(view, m, params, err)) != CKKS_OK) return rc;
    if ((rc = seeds_check(m->seeds, m->n_seeds, file->segment_count, err)) != CKKS_OK) return rc;
    if (!(view->ciphertexts = calloc(file->segment_count, sizeof *view->ciphertexts)))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "signatures", "no memory for %u ciphertexts",
                              file->segment_count);
    view->count = file->segment_count;
    for (uint32_t i = 0; i < view->count; i++) {
        rc = read_ciphertext(&view->ciphertexts[i], m, i, &file->segments[i], params, err);
        if (rc != CKKS_OK) return rc;
    }
    return CKKS_OK;
}

ckks_status ciphertext_from_container(ciphertext_view *out, const container_view *file,
                                      const ckks_params *params, ckks_error *err) {
    ckks_status rc;
    ProtobufCMessage *message = NULL;
    *out = (ciphertext_view){0};
    if (file->kind != CONTAINER_CIPHERTEXT)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "kind", "the file is a %s, not a ciphertext",
                              container_kind_name(file->kind));
    rc = message_unpack(&message, &ckksd__v1__ciphertext_manifest__descriptor, file->manifest,
                        file->manifest_bytes,
                        message_arena_bytes(file->manifest_bytes, CIPHERTEXT_ARENA_BYTES), "manifest", err);
    if (rc == CKKS_OK)
        rc = read_manifest(out, (const Ckksd__V1__CiphertextManifest *)(const void *)message, file, params,
                           err);
    message_free(message);
    if (rc != CKKS_OK) ciphertext_view_fini(out);
    return rc;
}

void ciphertext_view_fini(ciphertext_view *view) {
    free(view->ciphertexts);
    free(view->model);
    *view = (ciphertext_view){0};
}

/* ---- writing ---- */

typedef struct build_arrays {
    signature_message *signatures;
    Ckksd__V1__Signature **list;
    ProtobufCBinaryData *seeds;
    container_segment *segments;
} build_arrays;

static bool fill_arrays(build_arrays *a, const ciphertext_view *view, bool *any_seed) {
    const uint32_t count = view->count;
    a->signatures = calloc(count, sizeof *a->signatures);
    a->list = calloc(count, sizeof(void *));
    a->seeds = calloc(count, sizeof *a->seeds);
    a->segments = calloc(count, sizeof *a->segments);
    if (!a->signatures || !a->list || !a->seeds || !a->segments) return false;
    *any_seed = false;
    for (uint32_t i = 0; i < count; i++) {
        packed_ciphertext *c = &view->ciphertexts[i];
        signature_to_message(&a->signatures[i], &c->signature);
        a->list[i] = &a->signatures[i].message;
        if (c->is_seeded) a->seeds[i] = (ProtobufCBinaryData){SEED_BYTES, c->seed};
        *any_seed |= c->is_seeded;
        a->segments[i] = (container_segment){c->packed, c->packed_bytes};
    }
    return true;
}

ckks_status ciphertext_build(uint8_t **out, size_t *size, const ckks_params *params,
                             const ciphertext_view *view, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    build_arrays arrays = {0};
    Ckksd__V1__CiphertextManifest m;
    bool any_seed;
    uint8_t *manifest = NULL;
    *out = NULL, *size = 0;
    if (view->count == 0 || view->count > CIPHERTEXTS_MAX)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "ciphertexts", "%u ciphertexts: a file has 1 to %u",
                              view->count, CIPHERTEXTS_MAX);
    if (!fill_arrays(&arrays, view, &any_seed)) goto exhausted;
    ckksd__v1__ciphertext_manifest__init(&m);
    m.has_parameter_id = 1;
    m.parameter_id = (ProtobufCBinaryData){CKKS_PARAMETER_ID_BYTES, (uint8_t *)(uintptr_t)params->id};
    m.has_lineage = 1, m.lineage = (ProtobufCBinaryData){LINEAGE_BYTES, (uint8_t *)(uintptr_t)view->lineage};
    m.n_signatures = view->count, m.signatures = arrays.list;
    if (any_seed) m.n_seeds = view->count, m.seeds = arrays.seeds;
    if (view->model && view->model[0]) m.model = view->model;
    if (view->has_model_digest) {
        m.has_model_digest = 1;
        m.model_digest =
            (ProtobufCBinaryData){sizeof view->model_digest, (uint8_t *)(uintptr_t)view->model_digest};
    }
    if (view->sample_count) m.has_sample_count = 1, m.sample_count = view->sample_count;
    if (!(manifest = malloc(ckksd__v1__ciphertext_manifest__get_packed_size(&m)))) goto exhausted;
    const size_t manifest_bytes = ckksd__v1__ciphertext_manifest__pack(&m, manifest);
    rc = container_build(out, size, CONTAINER_CIPHERTEXT, manifest, (uint32_t)manifest_bytes, arrays.segments,
                         view->count, err);
    goto out;
exhausted:
    rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "ciphertexts", "no memory for %u ciphertexts",
                        view->count);
out:
    free(manifest);
    free(arrays.signatures);
    free(arrays.list);
    free(arrays.seeds);
    free(arrays.segments);
    return rc;
}
