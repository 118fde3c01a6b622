#include "proto/container.h"

#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"

#include <stdlib.h>

#define ALIGNMENT     16u
#define FIXED_BYTES   28u
#define TRAILER_BYTES ((uint64_t)SHA256_BYTES)
#define LENGTH_BYTES  8u
static const uint8_t magic[CONTAINER_MAGIC_BYTES] = CONTAINER_MAGIC; /* no NUL */
#define MAGIC_STEM 10u /* the part of the magic that a change of line ends leaves alone */

const char *container_kind_name(uint32_t kind) {
    switch (kind) {
    case CONTAINER_SECRET_KEY:
        return "secret key";
    case CONTAINER_PUBLIC_KEY:
        return "public key";
    case CONTAINER_KEY_SET:
        return "key set";
    case CONTAINER_CIPHERTEXT:
        return "ciphertext";
    case CONTAINER_PACKAGE:
        return "model package";
    case CONTAINER_METADATA:
        return "model description";
    default:
        return "unknown";
    }
}

static bool is_zero(const uint8_t *bytes, uint64_t count) {
    uint8_t any = 0;
    for (uint64_t i = 0; i < count; i++) any |= bytes[i];
    return any == 0;
}

/* ---- reading ---- */

static ckks_status check_prefix(const uint8_t *b, size_t size, ckks_error *err) {
    if (size < MAGIC_STEM || memcmp(b, magic, MAGIC_STEM) != 0)
        return ckks_error_set(err, CKKS_MALFORMED, "magic", "not a file of ckksd");
    if (size < CONTAINER_MAGIC_BYTES || memcmp(b, magic, sizeof magic) != 0)
        return ckks_error_set(err, CKKS_MALFORMED, "magic",
                              "the file is cut short or was copied as text: its line ends changed");
    if (size < FIXED_BYTES)
        return ckks_error_set(err, CKKS_MALFORMED, "size", "the file is cut short: %zu bytes", size);
    const uint32_t version = bytes_read_u32(b + 16);
    if (version != CONTAINER_VERSION)
        return ckks_error_set(err, CKKS_UNSUPPORTED_VERSION, "version",
                              "written in file format version %u, this program reads version %u", version,
                              CONTAINER_VERSION);
    return CKKS_OK;
}

/* Advances *at over the zero gap before the next aligned start and then over `bytes`; never past `end`. */
static ckks_status take(const uint8_t **out, const uint8_t *b, uint64_t *at, uint64_t bytes, uint64_t end,
                        const char *field, ckks_error *err) {
    const uint64_t start = align_up(*at, ALIGNMENT);
    if (start > end || bytes > end - start)
        return ckks_error_set(err, CKKS_MALFORMED, field,
                              "the file is cut short: %s of %llu bytes does not fit", field,
                              (unsigned long long)bytes);
    if (!is_zero(b + *at, start - *at))
        return ckks_error_set(err, CKKS_MALFORMED, "padding", "bytes before %s are not zero", field);
    *out = b + start;
    *at = start + bytes;
    return CKKS_OK;
}

static ckks_status read_layout(container_view *view, const uint8_t *b, size_t size, ckks_error *err) {
    ckks_status rc;
    view->kind = bytes_read_u32(b + 12);
    view->version = bytes_read_u32(b + 16);
    view->manifest_bytes = bytes_read_u32(b + 20);
    const uint32_t count = bytes_read_u32(b + 24);
    if (view->manifest_bytes > CONTAINER_MANIFEST_MAX)
        return ckks_error_set(err, CKKS_MALFORMED, "manifest", "manifest of %u bytes, at most %u are taken",
                              view->manifest_bytes, CONTAINER_MANIFEST_MAX);
    if (count > CONTAINER_SEGMENTS_MAX)
        return ckks_error_set(err, CKKS_MALFORMED, "segments", "%u segments, at most %u are taken", count,
                              CONTAINER_SEGMENTS_MAX);
    uint64_t at = FIXED_BYTES + (uint64_t)count * LENGTH_BYTES;
    if (size < TRAILER_BYTES || at > size - TRAILER_BYTES)
        return ckks_error_set(err, CKKS_MALFORMED, "size", "the file is cut short: %zu bytes", size);
    const uint64_t end = size - TRAILER_BYTES;
    if ((rc = take(&view->manifest, b, &at, view->manifest_bytes, end, "manifest", err)) != CKKS_OK)
        return rc;
    if (count && !(view->segments = calloc(count, sizeof *view->segments)))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "segments", "no memory for %u segments", count);
    view->segment_count = count;
    for (uint32_t i = 0; i < count; i++) {
        container_segment *s = &view->segments[i];
        s->bytes = bytes_read_u64(b + FIXED_BYTES + (uint64_t)i * LENGTH_BYTES);
        if ((rc = take(&s->data, b, &at, s->bytes, end, "segment", err)) != CKKS_OK) return rc;
    }
    if (at != end)
        return ckks_error_set(err, CKKS_MALFORMED, "size", "%llu bytes too many",
                              (unsigned long long)(end - at));
    return CKKS_OK;
}

ckks_status container_parse(container_view *out, const void *bytes, size_t size, uint32_t expected_kind,
                            ckks_error *err) {
    ckks_status rc;
    const uint8_t *b = bytes;
    container_view view = {0};
    uint8_t digest[SHA256_BYTES];
    *out = view;
    if ((rc = check_prefix(b, size, err)) != CKKS_OK) goto out;
    if ((rc = read_layout(&view, b, size, err)) != CKKS_OK) goto out;
    sha256(digest, b, size - SHA256_BYTES);
    if (memcmp(digest, b + size - SHA256_BYTES, SHA256_BYTES) != 0) {
        rc = ckks_error_set(err, CKKS_DIGEST_MISMATCH, "digest", "the file is damaged: its SHA-256 differs");
        goto out;
    }
    if (expected_kind != 0 && view.kind != expected_kind) {
        rc = ckks_error_set(err, CKKS_INVALID_ARGUMENT, "kind", "the file is a %s, a %s is wanted",
                            container_kind_name(view.kind), container_kind_name(expected_kind));
        goto out;
    }
    sha256(view.digest, b, size);
    *out = view;
    view = (container_view){0};
out:
    container_view_fini(&view);
    return rc;
}

void container_view_fini(container_view *view) {
    free(view->segments);
    *view = (container_view){0};
}

/* ---- writing ---- */

/* bytes of the whole file, trailer included */
static ckks_status size_of(uint64_t *out, uint32_t manifest_bytes, const container_segment *segments,
                           uint32_t segment_count, ckks_error *err) {
    if (manifest_bytes > CONTAINER_MANIFEST_MAX)
        return ckks_error_set(err, CKKS_TOO_LARGE, "manifest", "manifest of %u bytes, at most %u fit a file",
                              manifest_bytes, CONTAINER_MANIFEST_MAX);
    if (segment_count > CONTAINER_SEGMENTS_MAX)
        return ckks_error_set(err, CKKS_TOO_LARGE, "segments", "%u segments, at most %u fit a file",
                              segment_count, CONTAINER_SEGMENTS_MAX);
    uint64_t total =
        align_up(FIXED_BYTES + (uint64_t)segment_count * LENGTH_BYTES, ALIGNMENT) + manifest_bytes;
    bool fits = true;
    for (uint32_t i = 0; fits && i < segment_count; i++) {
        total = align_up(total, ALIGNMENT);
        /* half the range leaves room for gaps and trailer */
        fits = size_add(&total, total, segments[i].bytes) && total < UINT64_MAX / 2;
    }
    if (!fits)
        return ckks_error_set(err, CKKS_TOO_LARGE, "segments", "the segments' total does not fit 63 bits");
    *out = total + TRAILER_BYTES;
    return CKKS_OK;
}

static uint8_t *put(uint8_t *to, const void *data, uint64_t bytes) {
    if (bytes) memcpy(to, data, bytes);
    return to + bytes;
}
static uint8_t *put_gap(uint8_t *to, const uint8_t *image) {
    while ((uint64_t)(to - image) % ALIGNMENT) *to++ = 0;
    return to;
}

ckks_status container_build(uint8_t **out, size_t *size, uint32_t kind, const void *manifest,
                            uint32_t manifest_bytes, const container_segment *segments,
                            uint32_t segment_count, ckks_error *err) {
    ckks_status rc;
    uint64_t total = 0;
    *out = NULL, *size = 0;
    if ((rc = size_of(&total, manifest_bytes, segments, segment_count, err)) != CKKS_OK) return rc;
    CKKS_ASSERT(total > SHA256_BYTES);
    uint8_t *image = malloc(total);
    if (!image)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "file", "no memory for a file of %llu bytes",
                              (unsigned long long)total);
    memcpy(image, magic, sizeof magic);
    bytes_write_u32(image + 12, kind);
    bytes_write_u32(image + 16, CONTAINER_VERSION);
    bytes_write_u32(image + 20, manifest_bytes);
    bytes_write_u32(image + 24, segment_count);
    uint8_t *at = image + FIXED_BYTES;
    for (uint32_t i = 0; i < segment_count; i++, at += LENGTH_BYTES) bytes_write_u64(at, segments[i].bytes);
    at = put(put_gap(at, image), manifest, manifest_bytes);
    for (uint32_t i = 0; i < segment_count; i++)
        at = put(put_gap(at, image), segments[i].data, segments[i].bytes);
    CKKS_ASSERT(at == image + total - SHA256_BYTES);
    sha256(at, image, total - SHA256_BYTES);
    *out = image;
    *size = total;
    return CKKS_OK;
}
