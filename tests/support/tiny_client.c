#include "tests/support/tiny_client.h"

#include "kernels/scheme/encoder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void tiny_client_init(tiny_client *c, const daemon_fixture *d, const char *token) {
    size_t size;
    package *p = NULL;
    memset(c, 0, sizeof *c);
    uint8_t *image = tiny_package_build(&size, "tiny", 0);
    const ckks_status rc = package_parse(&p, image, size, true, NULL);
    CKKS_ASSERT(rc == CKKS_OK);
    c->d = d, c->token = token;
    c->params = p->params;
    key_set_fixture_init(&c->keys, &p->params, p->plan.keys, p->plan.key_count, 1u << 16);
    value_signature_ciphertext(&c->input, &c->params, 2, p->plan.values[0].level, p->plan.values[0].scale, 0);
    package_destroy(p);
    free(image);
}

void tiny_client_fini(tiny_client *c) {
    key_set_fixture_fini(&c->keys);
    free(c->packed);
    memset(c, 0, sizeof *c);
}

static void must(int code, const char *what, const daemon_reply *r) {
    if (code == 0) return;
    fprintf(stderr, "%s: %d %s\n", what, code, code > 0 ? r->header->status->message : "no reply");
    abort();
}

void tiny_client_upload(tiny_client *c) {
    daemon_reply r;
    daemon_call begin = {.socket = DAEMON_CONTROL,
                         .method = "Keys/KeyBegin",
                         .token = c->token,
                         .input = &c->keys.begin.base,
                         .output = &ckksd__v1__key_begin_reply__descriptor};
    must(daemon_do(c->d, &begin, &r), "KeyBegin", &r);
    daemon_reply_fini(&r);
    for (uint32_t i = 0; i < c->keys.part_count; i++) {
        Ckksd__V1__KeyPartRequest part = CKKSD__V1__KEY_PART_REQUEST__INIT;
        daemon_call send = {
            .socket = DAEMON_BULK, .method = "Keys/KeyPart", .token = c->token, .input = &part.base};
        part.has_key_set = part.has_index = true;
        part.key_set = (ProtobufCBinaryData){KEY_SET_ID_BYTES, c->keys.id};
        part.index = i;
        send.segment_count = 1, send.segment_kinds[0] = CKKSD__V1__SEGMENT_KIND__SEGMENT_KEY_PART;
        send.segments[0] = key_set_fixture_part(&c->keys, i, &send.segment_bytes[0]);
        must(daemon_do(c->d, &send, &r), "KeyPart", &r);
        daemon_reply_fini(&r);
    }
}

void tiny_client_register(tiny_client *c) {
    daemon_reply r;
    tiny_client_upload(c);
    Ckksd__V1__KeyCommitRequest commit = CKKSD__V1__KEY_COMMIT_REQUEST__INIT;
    commit.has_key_set = true, commit.key_set = (ProtobufCBinaryData){KEY_SET_ID_BYTES, c->keys.id};
    daemon_call last = {
        .socket = DAEMON_CONTROL, .method = "Keys/KeyCommit", .token = c->token, .input = &commit.base};
    must(daemon_do(c->d, &last, &r), "KeyCommit", &r);
    daemon_reply_fini(&r);
}

void tiny_client_encrypt(tiny_client *c, const double x[TINY_SLOTS]) {
    const uint32_t level = c->input.limb_count - 1, n = params_n(&c->params);
    uint64_t *words = calloc((size_t)c->input.limb_count * n, sizeof *words);
    uint64_t *c0 = calloc((size_t)c->input.limb_count * n, sizeof *c0);
    CKKS_ASSERT(words && c0);
    ckks_status rc =
        encoder_encode(words, c->keys.context, x, NULL, TINY_SLOTS, level, false, c->input.scale, NULL);
    if (rc == CKKS_OK) rc = encrypt_symmetric(c0, c->seed, c->keys.sk, words, level, NULL);
    CKKS_ASSERT(rc == CKKS_OK);
    c->packed_bytes = packing_poly_bytes(&c->params, level, false, 1);
    free(c->packed);
    c->packed = calloc(1, c->packed_bytes);
    CKKS_ASSERT(c->packed);
    packing_pack(c->packed, c0, &c->params, level, false, 1);
    free(words);
    free(c0);
    ckksd__v1__infer_request__init(&c->request);
    signature_to_message(&c->signature, &c->input);
    c->signatures[0] = &c->signature.message;
    c->seeds[0] = (ProtobufCBinaryData){SEED_BYTES, c->seed};
    c->request.model = "tiny";
    c->request.has_key_set = c->request.has_lineage = true;
    c->request.key_set = (ProtobufCBinaryData){KEY_SET_ID_BYTES, c->keys.id};
    c->request.lineage =
        (ProtobufCBinaryData){LINEAGE_BYTES, (uint8_t *)(uintptr_t)secret_key_lineage(c->keys.sk)};
    c->request.n_inputs = 1, c->request.inputs = c->signatures;
    c->request.n_seeds = 1, c->request.seeds = c->seeds;
}

daemon_call tiny_client_call(tiny_client *c) {
    daemon_call call = {.socket = DAEMON_BULK,
                        .method = "Inference/ModelInfer",
                        .token = c->token,
                        .input = &c->request.base,
                        .output = &ckksd__v1__infer_reply__descriptor};
    call.segment_count = 1;
    call.segment_kinds[0] = CKKSD__V1__SEGMENT_KIND__SEGMENT_CIPHERTEXT;
    call.segments[0] = c->packed, call.segment_bytes[0] = c->packed_bytes;
    return call;
}

void tiny_client_decrypt(const tiny_client *c, double y[TINY_SLOTS], const daemon_reply *r) {
    const Ckksd__V1__InferReply *reply = (const Ckksd__V1__InferReply *)(const void *)r->payload;
    value_signature sig;
    const uint32_t n = params_n(&c->params);
    CKKS_ASSERT(reply->n_outputs == 1 && r->header->n_segments == 1);
    ckks_status rc = signature_from_message(&sig, &c->params, reply->outputs[0], NULL);
    CKKS_ASSERT(rc == CKKS_OK);
    const uint32_t level = sig.limb_count - 1;
    CKKS_ASSERT(r->header->segments[0]->length ==
                packing_poly_bytes(&c->params, level, false, sig.component_count));
    uint64_t *words = calloc((size_t)sig.component_count * sig.limb_count * n, sizeof *words);
    uint64_t *plain = calloc((size_t)sig.limb_count * n, sizeof *plain);
    CKKS_ASSERT(words && plain);
    rc = packing_unpack(words, r->frame.segments + r->header->segments[0]->offset, &c->params, level, false,
                        sig.component_count, NULL);
    if (rc == CKKS_OK) rc = decrypt(plain, c->keys.sk, words, sig.component_count, level, NULL);
    if (rc == CKKS_OK)
        rc = encoder_decode(y, NULL, c->keys.context, plain, TINY_SLOTS, level, sig.scale, NULL);
    CKKS_ASSERT(rc == CKKS_OK);
    free(words);
    free(plain);
}

int tiny_client_infer(tiny_client *c, const double x[TINY_SLOTS], uint32_t variant) {
    daemon_reply r;
    double y[TINY_SLOTS], expected[TINY_SLOTS];
    tiny_client_encrypt(c, x);
    const daemon_call call = tiny_client_call(c);
    const int code = daemon_do(c->d, &call, &r);
    if (code == 0) {
        tiny_client_decrypt(c, y, &r);
        tiny_package_expect(expected, x, variant);
        for (uint32_t i = 0; i < TINY_SLOTS; i++)
            if (fabs(y[i] - expected[i]) > 1e-4) {
                fprintf(stderr, "slot %u: %.9f, expected %.9f\n", i, y[i], expected[i]);
                abort();
            }
    }
    daemon_reply_fini(&r);
    return code;
}
