/*
 * A file of ciphertexts: CiphertextManifest, and one segment per ciphertext, its packed components in order;
 * component 0 alone where the manifest has a 32-byte seed for it.
 */
#ifndef CKKS_PROTO_CIPHERTEXT_FILE_H
#define CKKS_PROTO_CIPHERTEXT_FILE_H

#include "kernels/program/graph_program.h"
#include "proto/package.h"
#include "proto/packing.h"

#define CIPHERTEXTS_MAX        4096u
#define CIPHERTEXT_ARENA_BYTES (4u << 20)

/* ciphertext_packed_bytes: what a ciphertext of this signature takes packed: all its components, or component
 * 0 of each batch entry when seeded. CKKS_MALFORMED naming the field if a signature is not one that travels
 * (a ciphertext in Q, evaluation domain; seeded only with two components). */
ckks_status ciphertext_packed_bytes(uint64_t *out, const ckks_params *params,
                                    const value_signature *signature, bool is_seeded, ckks_error *err);

/* One ciphertext as it travels. Points into what it was made from. */
typedef struct packed_ciphertext {
    value_signature signature;
    const uint8_t *packed;
    uint64_t packed_bytes;
    bool is_seeded;
    uint8_t seed[SEED_BYTES];
} packed_ciphertext;

/* seeds_check: each is absent (empty) or has exactly SEED_BYTES bytes, and none occurs twice. count is that
 * of ciphertexts; seed_count must equal it, or be 0: all whole. CKKS_MALFORMED, field "seeds". */
ckks_status seeds_check(const ProtobufCBinaryData *seeds, size_t seed_count, uint32_t count, ckks_error *err);

/* A parsed file: points into the container's bytes, which must outlive it; the strings belong to it. */
typedef struct ciphertext_view {
    uint32_t count;
    packed_ciphertext *ciphertexts; /* owned */
    uint8_t parameter_id[CKKS_PARAMETER_ID_BYTES];
    uint8_t lineage[LINEAGE_BYTES];
    char *model; /* owned; "" if the file names none */
    bool has_model_digest;
    uint8_t model_digest[32];
    uint32_t sample_count; /* 0 if the file does not say */
} ciphertext_view;

/* ciphertext_from_container checks manifest and sizes against `params`: CKKS_PARAMS_MISMATCH if the file is
 * of other parameters; CKKS_MALFORMED. Residues are checked by whoever unpacks. */
ckks_status ciphertext_from_container(ciphertext_view *out, const container_view *file,
                                      const ckks_params *params, ckks_error *err);
void ciphertext_view_fini(ciphertext_view *view);

/* ciphertext_build makes the file image (free with free()) from a filled view; `model` may be NULL. */
ckks_status ciphertext_build(uint8_t **out, size_t *size, const ckks_params *params,
                             const ciphertext_view *view, ckks_error *err);

#endif
