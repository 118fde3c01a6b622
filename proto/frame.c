#include "proto/frame.h"

#include "kernels/base/bytes.h"

static const uint8_t frame_magic[4] = {0x43, 0x4b, 0x44, 0x31};

static bool is_zero(const uint8_t *bytes, uint64_t count) {
    uint8_t any = 0;
    for (uint64_t i = 0; i < count; i++) any |= bytes[i];
    return any == 0;
}

ckks_status frame_parse(frame_view *out, const void *body, size_t size, ckks_error *err) {
    const uint8_t *b = body;
    *out = (frame_view){0};
    if (size < FRAME_PREFIX_BYTES)
        return ckks_error_set(err, CKKS_MALFORMED, "size", "a frame has at least %u bytes, this one %zu",
                              FRAME_PREFIX_BYTES, size);
    if (memcmp(b, frame_magic, sizeof frame_magic) != 0)
        return ckks_error_set(err, CKKS_MALFORMED, "magic", "the message does not start with CKD1");
    out->version = bytes_read_u16(b + 4);
    if (out->version != FRAME_WIRE_VERSION)
        return ckks_error_set(err, CKKS_UNSUPPORTED_VERSION, "version",
                              "wire version %u is not supported: this side speaks version %u", out->version,
                              FRAME_WIRE_VERSION);
    const uint16_t flags = bytes_read_u16(b + 6);
    if (flags != 0) return ckks_error_set(err, CKKS_MALFORMED, "flags", "flags are 0x%04x, must be 0", flags);
    const uint32_t header_bytes = bytes_read_u32(b + 8);
    if (header_bytes > FRAME_HEADER_BYTES_MAX)
        return ckks_error_set(err, CKKS_MALFORMED, "header_length",
                              "header of %u bytes, at most %u are taken", header_bytes,
                              FRAME_HEADER_BYTES_MAX);
    const uint64_t padded = align_up(header_bytes, FRAME_ALIGNMENT);
    if (padded > size - FRAME_PREFIX_BYTES)
        return ckks_error_set(err, CKKS_MALFORMED, "header_length",
                              "a header of %u bytes does not fit a body of %zu", header_bytes, size);
    if (!is_zero(b + FRAME_PREFIX_BYTES + header_bytes, padded - header_bytes))
        return ckks_error_set(err, CKKS_MALFORMED, "header_padding",
                              "bytes between the header and the segments are not zero");
    out->header = b + FRAME_PREFIX_BYTES;
    out->header_bytes = header_bytes;
    out->segments = b + FRAME_PREFIX_BYTES + padded;
    out->segments_bytes = size - FRAME_PREFIX_BYTES - padded;
    return CKKS_OK;
}

ckks_status frame_check_segments(const frame_view *view, const frame_segment *segments, uint32_t count,
                                 ckks_error *err) {
    if (count > FRAME_SEGMENTS_MAX)
        return ckks_error_set(err, CKKS_MALFORMED, "segments", "%u segments, at most %u are taken", count,
                              FRAME_SEGMENTS_MAX);
    uint64_t end = 0;
    for (uint32_t i = 0; i < count; i++) {
        const frame_segment *s = &segments[i];
        /* end is at most segments_bytes, an object's size: rounding up cannot wrap */
        const uint64_t start = align_up(end, FRAME_ALIGNMENT);
        if (s->offset != start)
            return ckks_error_set(err, CKKS_MALFORMED, "segments.offset",
                                  "segment %u starts at %llu, must start at %llu", i,
                                  (unsigned long long)s->offset, (unsigned long long)start);
        if (s->length == 0)
            return ckks_error_set(err, CKKS_MALFORMED, "segments.length", "segment %u is empty", i);
        if (start > view->segments_bytes || s->length > view->segments_bytes - start)
            return ckks_error_set(err, CKKS_MALFORMED, "segments.length",
                                  "segment %u of %llu bytes ends past the body", i,
                                  (unsigned long long)s->length);
        if (!is_zero(view->segments + end, start - end))
            return ckks_error_set(err, CKKS_MALFORMED, "segments.gap", "bytes before segment %u are not zero",
                                  i);
        end = start + s->length;
    }
    if (end != view->segments_bytes)
        return ckks_error_set(err, CKKS_MALFORMED, "size", "the segments end at %llu of %llu bytes",
                              (unsigned long long)end, (unsigned long long)view->segments_bytes);
    return CKKS_OK;
}

uint64_t frame_layout(uint32_t header_bytes, frame_segment *segments, uint32_t count) {
    if (header_bytes > FRAME_HEADER_BYTES_MAX || count > FRAME_SEGMENTS_MAX) return 0;
    uint64_t end = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t start;
        if (!size_add(&start, end, FRAME_ALIGNMENT - 1)) return 0;
        start &= ~(uint64_t)(FRAME_ALIGNMENT - 1);
        segments[i].offset = start;
        if (!size_add(&end, start, segments[i].length)) return 0;
    }
    uint64_t total;
    if (!size_add(&total, end, FRAME_PREFIX_BYTES + align_up(header_bytes, FRAME_ALIGNMENT))) return 0;
    return total;
}

uint8_t *frame_write_prefix(void *body, uint32_t header_bytes) {
    uint8_t *b = body;
    CKKS_ASSERT(header_bytes <= FRAME_HEADER_BYTES_MAX);
    const uint64_t padded = align_up(header_bytes, FRAME_ALIGNMENT);
    memcpy(b, frame_magic, sizeof frame_magic);
    bytes_write_u16(b + 4, FRAME_WIRE_VERSION);
    bytes_write_u16(b + 6, 0);
    bytes_write_u32(b + 8, header_bytes);
    memset(b + FRAME_PREFIX_BYTES + header_bytes, 0, padded - header_bytes);
    return b + FRAME_PREFIX_BYTES + padded;
}
