/*
 * What every receiver of ciphertexts checks about their content, in one order: parameter id, kind, component
 * count; limb count, scale (bit for bit), domain, basis; each size by checked multiplication; seeds. What is
 * left is on the device: residues, padding, an all-zero second component.
 *
 * Pure and thread-safe; nothing here allocates or keeps a pointer beyond what it fills in.
 */
#ifndef CKKS_PROTO_INGEST_H
#define CKKS_PROTO_INGEST_H

#include "proto/ciphertext_file.h"
#include "proto/frame.h"

#include "rpc.pb-c.h"

/* segments_from_messages copies a header's segment list; every field must be there. *count is set.
 * CKKS_MALFORMED. Follow with frame_check_segments. */
ckks_status segments_from_messages(frame_segment *out, uint32_t capacity, uint32_t *count,
                                   Ckksd__V1__Segment *const *messages, size_t message_count,
                                   ckks_error *err);

/*
 * infer_inputs_check compares a request with the model's input signatures (expected[expected_count], with the
 * device that they live on) and fills inputs[expected_count], ready for graph_program_copy_inputs_from: their
 * data point into the frame's body, at segment alignment (12 + 16k from its start), their seeds into
 * `request`; both must stay until the copy has returned. `segments` have passed
 * frame_check_segments. CKKS_PARAMS_MISMATCH, CKKS_SIGNATURE_MISMATCH (err->field "inputs[i].NAME"),
 * CKKS_MALFORMED.
 */
ckks_status infer_inputs_check(graph_input *inputs, const ckks_params *params,
                               const value_signature *expected, uint32_t expected_count,
                               const Ckksd__V1__InferRequest *request, const frame_view *view,
                               const frame_segment *segments, uint32_t segment_count, ckks_error *err);

#endif
