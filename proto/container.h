/*
 * Every file of ours: 12-byte magic, u32 kind, u32 format version, u32 manifest length, u32 segment count,
 * then for each segment u64 length, the protobuf manifest, then the segments; manifest and each segment start
 * at a multiple of 16 from the file's start, gaps zero; last a SHA-256 over everything before it.
 *
 * Readers refuse unknown versions with a message that says which version wrote the file. Writers build the
 * image; who keeps it writes it (the client: client/lib/files.h).
 */
#ifndef CKKS_PROTO_CONTAINER_H
#define CKKS_PROTO_CONTAINER_H

#include "kernels/base/status.h"

#include <stddef.h>

#define CONTAINER_MAGIC        "CKKSD-FILE\r\n" /* 12 bytes; the line end shows text-mode damage */
#define CONTAINER_MAGIC_BYTES  12u
#define CONTAINER_VERSION      1u
#define CONTAINER_MANIFEST_MAX (16u << 20)
#define CONTAINER_SEGMENTS_MAX 65536u

typedef enum container_kind {
    CONTAINER_SECRET_KEY = 1,
    CONTAINER_PUBLIC_KEY = 2,
    CONTAINER_KEY_SET = 3,
    CONTAINER_CIPHERTEXT = 4,
    CONTAINER_PACKAGE = 5,
    CONTAINER_METADATA = 6, /* a saved ModelDescription */
} container_kind;

const char *container_kind_name(uint32_t kind);

typedef struct container_segment {
    const uint8_t *data;
    uint64_t bytes;
} container_segment;

/* A parsed file: points into `bytes`. */
typedef struct container_view {
    uint32_t kind, version;
    const uint8_t *manifest;
    uint32_t manifest_bytes;
    uint32_t segment_count;
    container_segment *segments; /* owned: container_view_fini frees */
    uint8_t digest[32];          /* SHA-256 of the whole file, trailer included: the "package digest" */
} container_view;

/* container_parse: `expected_kind` 0 = any. CKKS_MALFORMED, CKKS_UNSUPPORTED_VERSION, CKKS_DIGEST_MISMATCH,
 * CKKS_INVALID_ARGUMENT (wrong kind: says what the file is and what was wanted). Hashes the whole file. */
ckks_status container_parse(container_view *out, const void *bytes, size_t size, uint32_t expected_kind,
                            ckks_error *err);
void container_view_fini(container_view *view);

/* container_build allocates the file image (free with free()). CKKS_TOO_LARGE. */
ckks_status container_build(uint8_t **out, size_t *size, uint32_t kind, const void *manifest,
                            uint32_t manifest_bytes, const container_segment *segments,
                            uint32_t segment_count, ckks_error *err);

/* ---- files (blocking I/O) ---- */

typedef struct container_file {
    container_view view;
    uint8_t *bytes; /* owned */
    size_t size;
} container_file;
/* container_read: size_max bounds what is read; errors name the path. Secret keys: refused unless mode has no
 * group or other bits. */
ckks_status container_read(container_file *out, const char *path, uint32_t expected_kind, uint64_t size_max,
                           ckks_error *err);
void container_file_fini(container_file *file);

#endif
