/*
 * A tenant of the tiny model: its keys, its encrypted requests, its decrypted answers, over daemon_fixture.
 */
#ifndef CKKS_TESTS_TINY_CLIENT_H
#define CKKS_TESTS_TINY_CLIENT_H

#include "tests/support/daemon_fixture.h"
#include "tests/support/tiny_package.h"

typedef struct tiny_client {
    const daemon_fixture *d;
    const char *token;
    ckks_params params;
    key_set_fixture keys;
    value_signature input;
    uint8_t *packed; /* of the last encryption: component 0 */
    uint64_t packed_bytes;
    uint8_t seed[SEED_BYTES];
    signature_message signature;
    Ckksd__V1__Signature *signatures[1];
    ProtobufCBinaryData seeds[1];
    Ckksd__V1__InferRequest request; /* of the last encryption, for model "tiny" */
} tiny_client;

/* tiny_client_init makes keys for the package of `variant` 0 (parameters are the same for all variants) and
 * uploads nothing. */
void tiny_client_init(tiny_client *c, const daemon_fixture *d, const char *token);
void tiny_client_fini(tiny_client *c);
/* tiny_client_upload sends the key set's parts, tiny_client_register commits them, too; abort on failure. */
void tiny_client_upload(tiny_client *c);
void tiny_client_register(tiny_client *c);
/* tiny_client_encrypt fills packed, seed and request. */
void tiny_client_encrypt(tiny_client *c, const double x[TINY_SLOTS]);
/* tiny_client_call: the request as a call, to be changed at will. */
daemon_call tiny_client_call(tiny_client *c);
/* tiny_client_decrypt: the answer of a good reply. */
void tiny_client_decrypt(const tiny_client *c, double y[TINY_SLOTS], const daemon_reply *r);
/* encrypt, call, decrypt, compare with the clear answer of `variant`: the gRPC code; aborts on a wrong answer
 */
int tiny_client_infer(tiny_client *c, const double x[TINY_SLOTS], uint32_t variant);

#endif
