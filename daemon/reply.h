/*
 * Building replies: one nng message per reply, written in place. Pure but for the allocation; any thread.
 *
 * A payload message too long for the header travels as the reply's first segment, of kind SEGMENT_LIST, with
 * no payload in the header.
 */
#ifndef CKKSD_REPLY_H
#define CKKSD_REPLY_H

#include "kernels/base/status.h"
#include "proto/frame.h"

#include "rpc.pb-c.h"

#include <nng/nng.h>

#define REPLY_PAYLOAD_INLINE_MAX (FRAME_HEADER_BYTES_MAX - 4096u)

typedef struct reply_parts {
    const uint8_t *request_id;       /* 16 bytes, or NULL */
    const ProtobufCMessage *payload; /* may be NULL */
    frame_segment *segments;         /* kind and length filled by the caller; offsets come out */
    uint32_t segment_count;
    nng_msg *
        *room; /* NULL, or a message that is taken for the reply if it is long enough (then *room = NULL) */
} reply_parts;

/* reply_create lays out a good reply; segment i must then be written at (*area) + segments[i].offset, whole.
 * The caller owns *out. CKKS_RESOURCE_EXHAUSTED, CKKS_TOO_LARGE. */
ckks_status reply_create(nng_msg **out, uint8_t **area, const reply_parts *parts, ckks_error *err);

/* reply_create_error: NULL only when memory is out. retry_after_ms 0 = no hint. */
nng_msg *reply_create_error(const ckks_error *cause, const uint8_t *request_id, uint32_t retry_after_ms);

#endif
