/*
 * One frame is one request or one reply (one message of the transport). Little-endian.
 *
 *   0  magic 43 4B 44 31 ("CKD1")      4  u16 wire version, u16 flags (0)      8  u32 header length, at most
 * 65,536 12  protobuf header of that length, then zeros up to a multiple of 16 12 + padded header length: raw
 * segments, each at a multiple of 16 counted from here, gaps zero
 *
 * Pure; no allocation except where said; thread-safe. Never reads past `size`; no alignment of `body` is
 * assumed.
 */
#ifndef CKKS_PROTO_FRAME_H
#define CKKS_PROTO_FRAME_H

#include "kernels/base/status.h"

#include <stddef.h>

#define FRAME_PREFIX_BYTES     12u
#define FRAME_HEADER_BYTES_MAX 65536u
#define FRAME_ALIGNMENT        16u
#define FRAME_WIRE_VERSION     1u
#define FRAME_SEGMENTS_MAX     4096u

typedef struct frame_segment {
    uint32_t kind;           /* SegmentKind */
    uint64_t offset, length; /* from the segment area */
} frame_segment;

typedef struct frame_view {
    uint16_t version;
    const uint8_t *header; /* protobuf bytes, inside the body */
    uint32_t header_bytes;
    const uint8_t *segments; /* the segment area, inside the body */
    uint64_t segments_bytes;
} frame_view;

/* frame_parse checks magic, version, flags, header length, zero padding, total. CKKS_UNSUPPORTED_VERSION for
 * another version (view->version is then set), CKKS_MALFORMED naming the field otherwise. */
ckks_status frame_parse(frame_view *out, const void *body, size_t size, ckks_error *err);

/* frame_check_segments: in order, aligned, no overlap, gaps zero, filling the segment area exactly. */
ckks_status frame_check_segments(const frame_view *view, const frame_segment *segments, uint32_t count,
                                 ckks_error *err);

/* Building. frame_layout places segments one after another and returns the body size (0 if it overflows). */
uint64_t frame_layout(uint32_t header_bytes, frame_segment *segments, uint32_t count);
/* frame_write_prefix writes the 12 bytes, and zeros after the header up to the padded length; returns where
 * the segment area starts. The caller has packed the header at body + 12. */
uint8_t *frame_write_prefix(void *body, uint32_t header_bytes);

#endif
