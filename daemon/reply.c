#include "daemon/reply.h"

#include "kernels/base/bytes.h"

#include <stdlib.h>

/* A message of `bytes`: what is in it is zero, or anything where `room` was long enough. */
static nng_msg *message_create(size_t bytes, nng_msg **room) {
    nng_msg *message = NULL;
    if (room && *room && nng_msg_len(*room) >= bytes &&
        nng_msg_chop(*room, nng_msg_len(*room) - bytes) == 0) {
        message = *room;
        *room = NULL;
        return message;
    }
    return nng_msg_alloc(&message, bytes) == 0 ? message : NULL;
}

/* Packs the header into a new message of the right size. */
static ckks_status pack(nng_msg **out, uint8_t **area, const Ckksd__V1__ReplyHeader *header,
                        frame_segment *segments, uint32_t count, nng_msg **room, ckks_error *err) {
    const size_t header_bytes = ckksd__v1__reply_header__get_packed_size(header);
    if (header_bytes > FRAME_HEADER_BYTES_MAX)
        return ckks_error_set(err, CKKS_TOO_LARGE, "reply", "a reply header of %zu bytes", header_bytes);
    const uint64_t total = frame_layout((uint32_t)header_bytes, segments, count);
    if (total == 0 || total > SIZE_MAX)
        return ckks_error_set(err, CKKS_TOO_LARGE, "reply", "the reply is too large");
    nng_msg *message = message_create((size_t)total, room);
    if (!message)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "reply", "no memory for a reply of %llu bytes",
                              (unsigned long long)total);
    uint8_t *body = nng_msg_body(message);
    ckksd__v1__reply_header__pack(header, body + FRAME_PREFIX_BYTES);
    *area = frame_write_prefix(body, (uint32_t)header_bytes);
    for (uint32_t i = 0; i < count; i++) { /* gaps are zero */
        const uint64_t end = segments[i].offset + segments[i].length, next = align_up(end, FRAME_ALIGNMENT);
        const uint64_t all = total - (uint64_t)(*area - body);
        if (end < all) memset(*area + end, 0, (size_t)((next < all ? next : all) - end));
    }
    *out = message;
    return CKKS_OK;
}

ckks_status reply_create(nng_msg **out, uint8_t **area, const reply_parts *parts, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    uint8_t *payload = NULL;
    frame_segment own = {0};
    Ckksd__V1__Segment *items = NULL, **pointers = NULL;
    Ckksd__V1__Status status = CKKSD__V1__STATUS__INIT;
    Ckksd__V1__ReplyHeader header = CKKSD__V1__REPLY_HEADER__INIT;
    const size_t payload_bytes = parts->payload ? protobuf_c_message_get_packed_size(parts->payload) : 0;
    const bool is_apart = payload_bytes > REPLY_PAYLOAD_INLINE_MAX;
    frame_segment *segments = is_apart ? &own : parts->segments;
    const uint32_t count = is_apart ? 1 : parts->segment_count;
    if (is_apart && parts->segment_count != 0)
        return ckks_error_set(err, CKKS_TOO_LARGE, "reply",
                              "a long reply message cannot carry other segments");
    if (!(payload = malloc(payload_bytes + 1)) || !(items = calloc(count + 1u, sizeof *items)) ||
        !(pointers = calloc(count + 1u, sizeof(void *)))) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "reply", "out of memory");
        goto out;
    }
    if (parts->payload) protobuf_c_message_pack(parts->payload, payload);
    if (is_apart)
        own = (frame_segment){.kind = CKKSD__V1__SEGMENT_KIND__SEGMENT_LIST, .length = payload_bytes};
    if (frame_layout(0, segments, count) == 0) {
        rc = ckks_error_set(err, CKKS_TOO_LARGE, "reply", "the reply is too large");
        goto out;
    }
    for (uint32_t i = 0; i < count; i++) {
        ckksd__v1__segment__init(&items[i]);
        items[i].has_kind = items[i].has_offset = items[i].has_length = true;
        items[i].kind = segments[i].kind, items[i].offset = segments[i].offset,
        items[i].length = segments[i].length;
        pointers[i] = &items[i];
    }
    status.has_code = true, status.code = RPC_OK;
    header.status = &status;
    if (parts->request_id) {
        header.has_request_id = true;
        header.request_id = (ProtobufCBinaryData){16, (uint8_t *)(uintptr_t)parts->request_id};
    }
    if (!is_apart) {
        header.has_payload = parts->payload != NULL;
        header.payload = (ProtobufCBinaryData){payload_bytes, payload};
    }
    header.n_segments = count, header.segments = pointers;
    if ((rc = pack(out, area, &header, segments, count, parts->room, err)) != CKKS_OK) goto out;
    if (is_apart) memcpy(*area + own.offset, payload, payload_bytes);
out:
    free(payload);
    free(items);
    free(pointers);
    return rc;
}

nng_msg *reply_create_error(const ckks_error *cause, const uint8_t *request_id, uint32_t retry_after_ms) {
    nng_msg *message = NULL;
    uint8_t *area;
    Ckksd__V1__Status status = CKKSD__V1__STATUS__INIT;
    Ckksd__V1__ReplyHeader header = CKKSD__V1__REPLY_HEADER__INIT;
    const ckks_status code = cause->code == CKKS_OK ? CKKS_INTERNAL : cause->code;
    status.has_code = true, status.code = (uint32_t)ckks_status_rpc(code);
    status.message = (char *)(uintptr_t)(cause->message[0] ? cause->message : ckks_status_text(code));
    status.reason = (char *)(uintptr_t)ckks_status_reason(code);
    if (cause->field[0]) status.field = (char *)(uintptr_t)cause->field;
    if (retry_after_ms) status.has_retry_after_ms = true, status.retry_after_ms = retry_after_ms;
    if (code == CKKS_UNSUPPORTED_VERSION) {
        status.has_wire_version_min = status.has_wire_version_max = true;
        status.wire_version_min = status.wire_version_max = FRAME_WIRE_VERSION;
    }
    header.status = &status;
    if (request_id) {
        header.has_request_id = true;
        header.request_id = (ProtobufCBinaryData){16, (uint8_t *)(uintptr_t)request_id};
    }
    return pack(&message, &area, &header, NULL, 0, NULL, NULL) == CKKS_OK ? message : NULL;
}
