/* A whole ModelInfer message as it arrives: frame, header, segments, payload, the order of checks behind. */
#include "proto/ingest.h"
#include "tests/support/container_forge.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_infer(const frame_view *view, const frame_segment *segments, uint32_t count,
                        const ProtobufCBinaryData *payload) {
    static ckks_params params;
    value_signature expected;
    graph_input input;
    ProtobufCMessage *message;
    if (params.q_count == 0) params = forge_params();
    value_signature_ciphertext(&expected, &params, 2, 1, 0x1p28, 1);
    if (message_unpack(&message, &ckksd__v1__infer_request__descriptor, payload->data, payload->len,
                       message_arena_bytes(payload->len, 1 << 18), "payload", NULL) != CKKS_OK)
        return;
    const Ckksd__V1__InferRequest *request = (const Ckksd__V1__InferRequest *)(const void *)message;
    if (infer_inputs_check(&input, &params, &expected, 1, request, view, segments, count, NULL) == CKKS_OK) {
        CKKS_ASSERT((const uint8_t *)input.data >= view->segments);
        CKKS_ASSERT((const uint8_t *)input.data + input.bytes <= view->segments + view->segments_bytes);
        packing_check(input.data, &params, 1, false, input.is_seeded ? 1 : 2, NULL);
    }
    message_free(message);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    frame_view view;
    frame_segment segments[16];
    uint32_t count;
    ProtobufCMessage *message;
    ckks_error err = {0};
    const ckks_status rc = frame_parse(&view, data, size, &err);
    CKKS_ASSERT((rc == CKKS_OK) == (err.code == CKKS_OK));
    if (rc != CKKS_OK) return 0;
    CKKS_ASSERT(view.segments + view.segments_bytes == data + size);
    if (message_unpack(
            &message, &ckksd__v1__request_header__descriptor, view.header, view.header_bytes,
            message_arena_bytes(view.header_bytes, message_arena_bytes(view.header_bytes, 1 << 18)), "header",
            NULL) != CKKS_OK)
        return 0;
    const Ckksd__V1__RequestHeader *header = (const Ckksd__V1__RequestHeader *)(const void *)message;
    if (segments_from_messages(segments, 16, &count, header->segments, header->n_segments, NULL) == CKKS_OK &&
        frame_check_segments(&view, segments, count, NULL) == CKKS_OK && header->has_payload)
        check_infer(&view, segments, count, &header->payload);
    message_free(message);
    return 0;
}
