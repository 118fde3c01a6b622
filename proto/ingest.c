#include "proto/ingest.h"

#include <stdio.h>
#include <string.h>

ckks_status segments_from_messages(frame_segment *out, uint32_t capacity, uint32_t *count,
                                   Ckksd__V1__Segment *const *messages, size_t message_count,
                                   ckks_error *err) {
    *count = 0;
    if (message_count > capacity)
        return ckks_error_set(err, CKKS_MALFORMED, "segments", "%zu segments, at most %u are taken",
                              message_count, capacity);
    for (size_t i = 0; i < message_count; i++) {
        const Ckksd__V1__Segment *m = messages[i];
        if (!m->has_kind || !m->has_offset || !m->has_length)
            return ckks_error_set(err, CKKS_MALFORMED, "segments", "segment %zu lacks kind, offset or length",
                                  i);
        out[i] = (frame_segment){m->kind, m->offset, m->length};
    }
    *count = (uint32_t)message_count;
    return CKKS_OK;
}

/* The field behind the list that it stands in: "inputs[3].scale". */
static ckks_status name_entry(ckks_status rc, const ckks_error *inner, const char *list, uint32_t index,
                              ckks_error *err) {
    char field[sizeof inner->field];
    snprintf(field, sizeof field, "%s[%u].%.40s", list, index, inner->field);
    return ckks_error_set(err, rc, field, "%s", inner->message);
}

/* One value: declared signature against expected, then its segment's size. */
static ckks_status check_value(value_signature *out, const ckks_params *params,
                               const value_signature *expected, const Ckksd__V1__Signature *message,
                               const frame_segment *segment, bool is_seeded, ckks_error *err) {
    ckks_status rc;
    uint64_t bytes;
    if ((rc = signature_from_message(out, params, message, err)) != CKKS_OK) return rc;
    out->device = expected->device;
    out->alignment = expected->alignment;
    if ((rc = value_signature_compare(expected, out, err)) != CKKS_OK) return rc;
    if ((rc = ciphertext_packed_bytes(&bytes, params, out, is_seeded, err)) != CKKS_OK) return rc;
    if (segment->kind != CKKSD__V1__SEGMENT_KIND__SEGMENT_CIPHERTEXT)
        return ckks_error_set(err, CKKS_MALFORMED, "segment", "its segment is of kind %u, not a ciphertext",
                              segment->kind);
    if (segment->length != bytes)
        return ckks_error_set(err, CKKS_MALFORMED, "segment", "its segment has %llu bytes, must have %llu",
                              (unsigned long long)segment->length, (unsigned long long)bytes);
    return CKKS_OK;
}

static ckks_status check_counts(const char *list, size_t declared, uint32_t segment_count, uint32_t expected,
                                ckks_error *err) {
    if (declared != expected || segment_count != expected)
        return ckks_error_set(err, CKKS_SIGNATURE_MISMATCH, list,
                              "%zu signatures and %u segments, the model has %u %s", declared, segment_count,
                              expected, list);
    return CKKS_OK;
}

ckks_status infer_inputs_check(graph_input *inputs, const ckks_params *params,
                               const value_signature *expected, uint32_t expected_count,
                               const Ckksd__V1__InferRequest *request, const frame_view *view,
                               const frame_segment *segments, uint32_t segment_count, ckks_error *err) {
    ckks_status rc = check_counts("inputs", request->n_inputs, segment_count, expected_count, err);
    if (rc != CKKS_OK) return rc;
    if (!request->has_lineage || request->lineage.len != LINEAGE_BYTES)
        return ckks_error_set(err, CKKS_MALFORMED, "lineage", "the lineage must have %u bytes",
                              LINEAGE_BYTES);
    if (request->n_seeds != 0 && request->n_seeds != expected_count)
        return ckks_error_set(err, CKKS_MALFORMED, "seeds", "%zu seeds for %u ciphertexts", request->n_seeds,
                              expected_count);
    for (uint32_t i = 0; i < expected_count; i++) {
        ckks_error inner = {0};
        graph_input *in = &inputs[i];
        *in = (graph_input){.source = GRAPH_SOURCE_PACKED_HOST};
        in->is_seeded = request->n_seeds != 0 && request->seeds[i].len != 0;
        rc = check_value(&in->signature, params, &expected[i], request->inputs[i], &segments[i],
                         in->is_seeded, &inner);
        if (rc != CKKS_OK) return name_entry(rc, &inner, "inputs", i, err);
        in->data = view->segments + segments[i].offset;
        in->bytes = segments[i].length;
        memcpy(in->lineage, request->lineage.data, LINEAGE_BYTES);
    }
    if ((rc = seeds_check(request->seeds, request->n_seeds, expected_count, err)) != CKKS_OK) return rc;
    for (uint32_t i = 0; i < expected_count; i++)
        if (inputs[i].is_seeded) inputs[i].seed = request->seeds[i].data;
    return CKKS_OK;
}
