/* IDX, the container of MNIST and its relatives, and gzip around it. */
#include "client/lib/data.h"
#include "client/lib/wipe.h"
#include "kernels/base/bytes.h"

#include <stdlib.h>
#include <zlib.h>

static uint32_t read_big_u32(const uint8_t *b) {
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

static uint32_t idx_width(uint8_t type) {
    switch (type) {
    case 0x08:
    case 0x09:
        return 1;
    case 0x0B:
        return 2;
    case 0x0C:
    case 0x0D:
        return 4;
    case 0x0E:
        return 8;
    default:
        return 0;
    }
}

static double idx_element(const uint8_t *at, uint8_t type) {
    switch (type) {
    case 0x08:
        return at[0];
    case 0x09:
        return (int8_t)at[0];
    case 0x0B:
        return (int16_t)(uint16_t)(at[0] << 8 | at[1]);
    case 0x0C:
        return (int32_t)read_big_u32(at);
    case 0x0D: {
        const uint32_t bits = read_big_u32(at);
        float f;
        memcpy(&f, &bits, sizeof f);
        return (double)f;
    }
    default: {
        const uint64_t bits = (uint64_t)read_big_u32(at) << 32 | read_big_u32(at + 4);
        double d;
        memcpy(&d, &bits, sizeof d);
        return d;
    }
    }
}

ckks_status idx_parse(data_matrix *out, const void *bytes, size_t size, ckks_error *err) {
    const uint8_t *b = bytes;
    uint64_t shape[DATA_AXES_MAX];
    ckks_status rc;
    *out = (data_matrix){0};
    if (size < 4 || b[0] || b[1]) return ckks_error_set(err, CKKS_MALFORMED, "magic", "not an IDX file");
    const uint8_t type = b[2];
    const uint32_t width = idx_width(type), axis_count = b[3];
    if (!width) return ckks_error_set(err, CKKS_UNSUPPORTED, "type", "IDX element type 0x%02x", type);
    if (axis_count < 1 || axis_count > DATA_AXES_MAX)
        return ckks_error_set(err, CKKS_MALFORMED, "axes", "%u axes (1 to %u are read)", axis_count,
                              DATA_AXES_MAX);
    const size_t prefix = 4 + 4 * (size_t)axis_count;
    if (size < prefix) return ckks_error_set(err, CKKS_MALFORMED, "axes", "cut short");
    for (uint32_t i = 0; i < axis_count; i++) shape[i] = read_big_u32(b + 4 + 4 * (size_t)i);

    /* the size first: a header may claim what the file does not have */
    uint64_t need = width;
    for (uint32_t i = 0; i < axis_count; i++)
        if (!size_multiply(&need, need, shape[i]))
            return ckks_error_set(err, CKKS_TOO_LARGE, "axes", "the sizes overflow");
    if (need != size - prefix)
        return ckks_error_set(err, CKKS_MALFORMED, "data", "the axes need %llu bytes, the file has %zu",
                              (unsigned long long)need, size - prefix);
    if ((rc = data_matrix_allocate(out, shape, axis_count, err)) != CKKS_OK) return rc;
    const uint64_t count = out->row_count * out->column_count;
    for (uint64_t i = 0; i < count; i++) out->values[i] = idx_element(b + prefix + i * width, type);
    return CKKS_OK;
}

/* zlib's window holds what was inflated last */
static void *inflate_allocate(void *context, uInt count, uInt size) {
    (void)context;
    return calloc(count, size);
}
static void inflate_free(void *context, void *memory) {
    (void)context;
    wipe_free(memory);
}

ckks_status gzip_inflate(uint8_t **out, size_t *out_size, const void *bytes, size_t size, uint64_t size_max,
                         ckks_error *err) {
    ckks_status rc = CKKS_OK;
    z_stream z = {.zalloc = inflate_allocate, .zfree = inflate_free};
    uint8_t *buffer = NULL;
    size_t capacity = size < (64u << 10) ? (256u << 10) : size * 4, used = 0;
    int result = Z_OK;

    *out = NULL, *out_size = 0;
    if (size > UINT32_MAX) return ckks_error_set(err, CKKS_TOO_LARGE, "gzip", "over 4 GiB compressed");
    if (capacity > size_max) capacity = (size_t)size_max;
    if (capacity == 0) capacity = 1;
    if (inflateInit2(&z, 15 + 16) != Z_OK)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "gzip", "no memory");
    union {
        const void *in;
        Bytef *z;
    } input = {.in = bytes}; /* zlib only reads it */
    z.next_in = input.z;
    z.avail_in = (uInt)size;
    if (!(buffer = malloc(capacity))) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "gzip", "no memory for %zu bytes", capacity);
        goto out;
    }
    while (result != Z_STREAM_END) {
        if (used == capacity) {
            if (capacity >= size_max) {
                rc = ckks_error_set(err, CKKS_TOO_LARGE, "gzip", "expands to more than %llu bytes",
                                    (unsigned long long)size_max);
                goto out;
            }
            const size_t larger = capacity > size_max / 2 ? (size_t)size_max : capacity * 2;
            uint8_t *moved = wipe_grow(buffer, used, larger);
            if (!moved) {
                rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "gzip", "no memory for %zu bytes", larger);
                goto out;
            }
            buffer = moved, capacity = larger;
        }
        const size_t room = capacity - used < (1u << 30) ? capacity - used : (1u << 30);
        z.next_out = buffer + used;
        z.avail_out = (uInt)room;
        result = inflate(&z, Z_NO_FLUSH);
        used += room - z.avail_out;
        if (result != Z_OK && result != Z_STREAM_END) {
            rc = ckks_error_set(err, CKKS_MALFORMED, "gzip", "damaged or cut short (%s)",
                                z.msg ? z.msg : "end of data");
            goto out;
        }
        /* files of several streams are files as well: bgzip makes them, and cat */
        if (result == Z_STREAM_END && gzip_is(z.next_in, z.avail_in)) result = inflateReset(&z);
    }
    if (z.avail_in != 0) {
        rc = ckks_error_set(err, CKKS_MALFORMED, "gzip", "%u bytes after the end of the stream", z.avail_in);
        goto out;
    }
    *out = buffer, buffer = NULL;
    *out_size = used;
out:
    inflateEnd(&z);
    wipe_free(buffer);
    return rc;
}
