/* Header bytes, and its payload as each message that a peer may send. */
#include "proto/package.h"

#include "rpc.pb-c.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define PAYLOAD_COUNT 12u
static const ProtobufCMessageDescriptor *const payloads[PAYLOAD_COUNT] = {
    &ckksd__v1__health_check_request__descriptor, &ckksd__v1__model_request__descriptor,
    &ckksd__v1__infer_request__descriptor,        &ckksd__v1__cancel_request__descriptor,
    &ckksd__v1__key_status_request__descriptor,   &ckksd__v1__key_begin_request__descriptor,
    &ckksd__v1__key_part_request__descriptor,     &ckksd__v1__key_commit_request__descriptor,
    &ckksd__v1__key_list_request__descriptor,     &ckksd__v1__infer_reply__descriptor,
    &ckksd__v1__model_metadata_reply__descriptor, &ckksd__v1__server_metadata_reply__descriptor,
};

static void unpack(const ProtobufCMessageDescriptor *descriptor, const void *bytes, size_t size) {
    ProtobufCMessage *message;
    ckks_error err = {0};
    const ckks_status rc = message_unpack(&message, descriptor, bytes, size,
                                          message_arena_bytes(size, 1 << 18), "message", &err);
    CKKS_ASSERT((rc == CKKS_OK) == (message != NULL));
    if (message) CKKS_ASSERT(protobuf_c_message_get_packed_size(message) <= 64 * (size + 1));
    message_free(message);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ProtobufCMessage *message;
    for (size_t i = 0; i < PAYLOAD_COUNT; i++) unpack(payloads[i], data, size);
    unpack(&ckksd__v1__reply_header__descriptor, data, size);
    if (message_unpack(&message, &ckksd__v1__request_header__descriptor, data, size,
                       message_arena_bytes(size, 1 << 18), "header", NULL) != CKKS_OK)
        return 0;
    const Ckksd__V1__RequestHeader *header = (const Ckksd__V1__RequestHeader *)(const void *)message;
    if (header->has_payload)
        for (size_t i = 0; i < PAYLOAD_COUNT; i++)
            unpack(payloads[i], header->payload.data, header->payload.len);
    message_free(message);
    return 0;
}
