/*
 * Public keys and key sets as they travel and rest: a KeySetManifest and one payload, the packed component 0
 * of every key in manifest order. In a file (CONTAINER_KEY_SET, CONTAINER_PUBLIC_KEY) the payload is the only
 * segment; on the wire it is cut into parts. Component 1 of each key comes from the manifest's seed.
 *
 * A key set's id names exactly this content:
 *   SHA-256( "CKKSKSET", parameter id, lineage, seed, u32le count,
 *            per key u32le kind, u32le galois_element, u32le level, SHA-256(payload) )
 *
 * Deliberately absent: a look at the residues. They are checked where they are unpacked (on the device), or
 * here by key_set_check_residues for those who have no device.
 */
#ifndef CKKS_PROTO_KEY_FILE_H
#define CKKS_PROTO_KEY_FILE_H

#include "kernels/program/graph_program.h"
#include "proto/package.h"
#include "proto/packing.h"

#define KEY_SET_ID_BYTES    32u
#define KEY_SET_ARENA_BYTES (2u << 20) /* enough for a manifest of 4,096 keys */

/* key_set_id is pure; payload_digest is SHA-256 of the payload. */
void key_set_id(uint8_t out[KEY_SET_ID_BYTES], const ckks_params *params,
                const uint8_t lineage[LINEAGE_BYTES], const uint8_t seed[SEED_BYTES],
                const key_requirement *keys, uint32_t count, const uint8_t payload_digest[32]);

/* What a manifest says, checked; with a payload attached, where each key's bytes are. Owns its two arrays,
 * not the payload. Zero-initialise; key_set_view_fini. */
typedef struct key_set_view {
    ckks_params params;
    bool is_insecure; /* the manifest says so, or the parameters are over the security table */
    uint8_t lineage[LINEAGE_BYTES];
    uint8_t seed[SEED_BYTES];
    uint8_t id[KEY_SET_ID_BYTES]; /* as declared; equal to the content's after key_set_attach */
    uint32_t count;
    key_requirement *requirements; /* [count] */
    packed_key *keys;              /* [count]: requirement and size; `packed` is NULL until key_set_attach */
    uint64_t payload_bytes;        /* what these keys take, exactly */
    const uint8_t *payload;        /* NULL until key_set_attach */
} key_set_view;

/*
 * key_set_from_message checks everything that a manifest can say (parameters and their id, security gate
 * unless `allow_insecure`, lineage, seed and id sizes, key kinds, elements, levels, duplicates) and fills the
 * view without payload. A public key (`is_public`) is exactly one KEY_PUBLIC key. Copies: `message` may go.
 * CKKS_MALFORMED, CKKS_PARAMS_MISMATCH, CKKS_INSECURE_PARAMETERS, CKKS_TOO_LARGE, naming the field.
 */
ckks_status key_set_from_message(key_set_view *out, const Ckksd__V1__KeySetManifest *message, bool is_public,
                                 bool allow_insecure, ckks_error *err);
/* the same from the serialised manifest */
ckks_status key_set_from_bytes(key_set_view *out, const void *manifest, size_t manifest_bytes, bool is_public,
                               bool allow_insecure, ckks_error *err);

/* key_set_attach checks the payload's size and that manifest and payload hash to the declared id, and points
 * each key into the payload, which must outlive the view. CKKS_DIGEST_MISMATCH if the id differs. Hashes the
 * payload. key_set_attach_hashed: for a caller who has the payload's SHA-256 already. */
ckks_status key_set_attach(key_set_view *view, const void *payload, uint64_t payload_bytes, ckks_error *err);
ckks_status key_set_attach_hashed(key_set_view *view, const void *payload, uint64_t payload_bytes,
                                  const uint8_t payload_digest[32], ckks_error *err);

/* key_set_from_container: both steps, for a parsed file of kind CONTAINER_KEY_SET or CONTAINER_PUBLIC_KEY,
 * which must outlive the view. */
ckks_status key_set_from_container(key_set_view *out, const container_view *file, bool allow_insecure,
                                   ckks_error *err);

/* key_set_check_residues: every residue below its modulus, padding zero. CKKS_RESIDUE_RANGE names the key.
 * Slow (about 1 GB/s). */
ckks_status key_set_check_residues(const key_set_view *view, ckks_error *err);

void key_set_view_fini(key_set_view *view);

/* What a manifest is made of. The arrays are the caller's. */
typedef struct key_set_content {
    const ckks_params *params;
    const uint8_t *lineage; /* [LINEAGE_BYTES] */
    const uint8_t *seed;    /* [SEED_BYTES] */
    const key_requirement *keys;
    uint32_t count;
    bool is_insecure;
} key_set_content;

/* key_set_manifest_build serialises a manifest, id included; free *out with free(). */
ckks_status key_set_manifest_build(uint8_t **out, size_t *bytes, const key_set_content *content,
                                   const uint8_t payload_digest[32], ckks_error *err);

/* key_set_build makes the file image: packs nothing, `payload` is the packed keys. kind CONTAINER_KEY_SET or
 * CONTAINER_PUBLIC_KEY. id may be NULL. free *out with free(). */
ckks_status key_set_build(uint8_t **out, size_t *size, uint8_t id[KEY_SET_ID_BYTES], uint32_t kind,
                          const key_set_content *content, const uint8_t *payload, uint64_t payload_bytes,
                          ckks_error *err);

#endif
