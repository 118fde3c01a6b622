/*
 * A key set as a client would send it: real keys of a fresh secret, packed, with manifest, parts and digests.
 */
#ifndef CKKS_TESTS_KEY_SET_FIXTURE_H
#define CKKS_TESTS_KEY_SET_FIXTURE_H

#include "proto/key_file.h"

#include "rpc.pb-c.h"

typedef struct key_set_fixture {
    ckks_context *context;
    secret_key *sk;
    uint8_t seed[SEED_BYTES];
    key_requirement *keys;
    uint32_t key_count;
    uint8_t *payload;
    uint64_t payload_bytes;
    uint32_t part_bytes, part_count;
    uint8_t id[KEY_SET_ID_BYTES];
    uint8_t *manifest_bytes; /* serialised, "insecure" set */
    size_t manifest_size;
    ProtobufCMessage *manifest;
    uint8_t (*digests)[32];
    ProtobufCBinaryData *digest_list;
    Ckksd__V1__KeyBeginRequest begin; /* points into all this */
} key_set_fixture;

/* keys[count] for these parameters; part_bytes cuts the payload. Aborts on failure. */
void key_set_fixture_init(key_set_fixture *f, const ckks_params *params, const key_requirement *keys,
                          uint32_t count, uint32_t part_bytes);
/* part `index` */
const uint8_t *key_set_fixture_part(const key_set_fixture *f, uint32_t index, uint64_t *bytes);
void key_set_fixture_fini(key_set_fixture *f);

#endif
