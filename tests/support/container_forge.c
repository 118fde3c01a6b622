#include "tests/support/container_forge.h"

#include "kernels/base/hash.h"
#include "proto/frame.h"
#include "tests/support/model_fixture.h"
#include "tests/support/plan_fixture.h"

#include "rpc.pb-c.h"

#include <stdlib.h>
#include <string.h>

#include "tests/support/fixtures.h"

const key_requirement forge_requirements[FORGE_KEYS] = {
    {KEY_RELINEARISATION, 0, 1}, {KEY_GALOIS, 5, 0}, {KEY_GALOIS, 2047, 1}};

#define MUST(call)                                                                                           \
    do {                                                                                                     \
        const ckks_status must = (call);                                                                     \
        CKKS_ASSERT(must == CKKS_OK);                                                                        \
    } while (0)

static void *need(void *memory) {
    CKKS_ASSERT(memory);
    return memory;
}

static void count_up(uint8_t *bytes, size_t size, uint8_t from) {
    for (size_t i = 0; i < size; i++) bytes[i] = (uint8_t)(from + i);
}

ckks_params forge_params(void) {
    static const uint32_t q_bits[] = {38, 28}, p_bits[] = {38};
    ckks_params params;
    MUST(params_generate(&params, 10, q_bits, 2, p_bits, 1, 1, NULL));
    return params;
}

static void forge_poly(uint8_t *out, const ckks_params *params, uint32_t level, bool with_p, prng *r) {
    const size_t limbs = level + 1 + (with_p ? params->p_count : 0);
    uint64_t *words = need(malloc(limbs * params_n(params) * sizeof *words));
    fixture_random_poly(words, params, level, with_p, r);
    packing_pack(out, words, params, level, with_p, 1);
    free(words);
}

uint8_t *forge_payload(uint64_t *bytes, const ckks_params *params, const key_requirement *keys,
                       uint32_t count) {
    prng r;
    prng_init(&r, 2024);
    CKKS_ASSERT(packing_key_set_bytes(bytes, params, keys, count));
    uint8_t *payload = need(malloc(*bytes)), *at = payload;
    for (uint32_t k = 0; k < count; k++) {
        const bool with_p = keys[k].kind != KEY_PUBLIC;
        const uint32_t digits = with_p ? params_digit_count(params, keys[k].level) : 1;
        for (uint32_t d = 0; d < digits; d++, at += packing_poly_bytes(params, keys[k].level, with_p, 1))
            forge_poly(at, params, keys[k].level, with_p, &r);
    }
    return payload;
}

static uint8_t *forge_keys(size_t *size, uint32_t kind, const key_requirement *keys, uint32_t count) {
    const ckks_params params = forge_params();
    uint8_t lineage[LINEAGE_BYTES], seed[SEED_BYTES], *image;
    uint64_t payload_bytes;
    uint8_t *payload = forge_payload(&payload_bytes, &params, keys, count);
    count_up(lineage, sizeof lineage, 0xa0);
    count_up(seed, sizeof seed, 0x10);
    const key_set_content content = {&params, lineage, seed, keys, count, true};
    MUST(key_set_build(&image, size, NULL, kind, &content, payload, payload_bytes, NULL));
    free(payload);
    return image;
}

uint8_t *forge_key_set(size_t *size) {
    return forge_keys(size, CONTAINER_KEY_SET, forge_requirements, FORGE_KEYS);
}

uint8_t *forge_public_key(size_t *size) {
    static const key_requirement key = {KEY_PUBLIC, 0, 0};
    return forge_keys(size, CONTAINER_PUBLIC_KEY, &key, 1);
}

uint8_t *forge_ciphertext(size_t *size) {
    const ckks_params params = forge_params();
    packed_ciphertext list[2] = {0};
    ciphertext_view view = {.count = 2, .ciphertexts = list, .sample_count = 1, .has_model_digest = true};
    uint8_t *image;
    prng r;
    prng_init(&r, 7);
    view.model = (char *)(uintptr_t) "identity";
    count_up(view.lineage, sizeof view.lineage, 0xa0);
    count_up(view.model_digest, sizeof view.model_digest, 0xc0);
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t level = 1 - i, components = i + 1;
        uint8_t *packed;
        list[i].packed_bytes = packing_poly_bytes(&params, level, false, components);
        list[i].packed = packed = need(malloc(list[i].packed_bytes));
        for (uint32_t c = 0; c < components; c++)
            forge_poly(packed + c * packing_poly_bytes(&params, level, false, 1), &params, level, false, &r);
        value_signature_ciphertext(&list[i].signature, &params, 2, level, 0x1p28, 0);
    }
    list[0].is_seeded = true;
    count_up(list[0].seed, SEED_BYTES, 0x30);
    MUST(ciphertext_build(&image, size, &params, &view, NULL));
    for (uint32_t i = 0; i < 2; i++) free((void *)(uintptr_t)list[i].packed);
    return image;
}

uint8_t *forge_secret_key(size_t *size) {
    const ckks_params params = forge_params();
    Ckksd__V1__SecretKeyManifest m = CKKSD__V1__SECRET_KEY_MANIFEST__INIT;
    params_message p;
    uint8_t lineage[LINEAGE_BYTES], manifest[1024], *image;
    int8_t coefficients[1024];
    prng r;
    prng_init(&r, 3);
    count_up(lineage, sizeof lineage, 0xa0);
    for (size_t i = 0; i < sizeof coefficients; i++) coefficients[i] = (int8_t)((int)prng_below(&r, 3) - 1);
    params_to_message(&p, &params);
    m.parameters = &p.message;
    m.has_lineage = 1, m.lineage = (ProtobufCBinaryData){sizeof lineage, lineage};
    m.has_created_unix = 1, m.created_unix = 1700000000;
    m.has_insecure = 1, m.insecure = 1;
    CKKS_ASSERT(ckksd__v1__secret_key_manifest__get_packed_size(&m) <= sizeof manifest);
    const size_t bytes = ckksd__v1__secret_key_manifest__pack(&m, manifest);
    const container_segment segment = {(const uint8_t *)coefficients, sizeof coefficients};
    MUST(container_build(&image, size, CONTAINER_SECRET_KEY, manifest, (uint32_t)bytes, &segment, 1, NULL));
    return image;
}

uint8_t *forge_metadata(size_t *size) {
    model_fixture f;
    size_t bytes;
    uint8_t *image;
    model_fixture_init(&f);
    uint8_t *packed = model_fixture_pack(&f, &bytes);
    MUST(container_build(&image, size, CONTAINER_METADATA, packed, (uint32_t)bytes, NULL, 0, NULL));
    free(packed);
    return image;
}

uint8_t *forge_package(size_t *size) {
    plan_fixture *f = plan_fixture_tiny(true);
    model_fixture model;
    Ckksd__V1__CompileReport report = CKKSD__V1__COMPILE_REPORT__INIT;
    uint8_t *image, source[32];
    model_fixture_init(&model);
    model.description.version = NULL;
    count_up(source, sizeof source, 0x50);
    count_up(f->plains[0].digest, 32, 0x60);
    count_up(f->plan.self_test_seed, 32, 0x70);
    count_up(f->plan.self_test_digest, 32, 0x80);
    f->plan.has_self_test = true;
    report.producer = (char *)(uintptr_t) "ckksctl 0.1.0";
    report.has_source_digest = 1, report.source_digest = (ProtobufCBinaryData){sizeof source, source};
    report.has_calibration_rows = 1, report.calibration_rows = 100;
    MUST(package_build(&image, size, &f->plan, &model.description, &report, NULL));
    plan_fixture_destroy(f);
    return image;
}

/* the inner message of forge_frame */
static size_t forge_infer_request(uint8_t *out, const ckks_params *params, const uint8_t *seed) {
    Ckksd__V1__InferRequest request = CKKSD__V1__INFER_REQUEST__INIT;
    uint8_t key_set[KEY_SET_ID_BYTES], lineage[LINEAGE_BYTES];
    value_signature s;
    signature_message sm;
    Ckksd__V1__Signature *list[1] = {&sm.message};
    ProtobufCBinaryData seeds[1] = {{SEED_BYTES, (uint8_t *)(uintptr_t)seed}};
    count_up(key_set, sizeof key_set, 0x90);
    count_up(lineage, sizeof lineage, 0xa0);
    value_signature_ciphertext(&s, params, 2, 1, 0x1p28, 0);
    signature_to_message(&sm, &s);
    request.model = (char *)(uintptr_t) "identity";
    request.has_key_set = 1, request.key_set = (ProtobufCBinaryData){sizeof key_set, key_set};
    request.has_lineage = 1, request.lineage = (ProtobufCBinaryData){sizeof lineage, lineage};
    request.n_inputs = 1, request.inputs = list;
    request.n_seeds = 1, request.seeds = seeds;
    return ckksd__v1__infer_request__pack(&request, out);
}

uint8_t *forge_frame(size_t *size) {
    const ckks_params params = forge_params();
    Ckksd__V1__RequestHeader header = CKKSD__V1__REQUEST_HEADER__INIT;
    Ckksd__V1__Segment segment_message = CKKSD__V1__SEGMENT__INIT, *list[1] = {&segment_message};
    uint8_t seed[SEED_BYTES], id[16], payload[512];
    prng r;
    prng_init(&r, 5);
    count_up(seed, sizeof seed, 0x30);
    count_up(id, sizeof id, 0xe0);
    frame_segment segment = {CKKSD__V1__SEGMENT_KIND__SEGMENT_CIPHERTEXT, 0,
                             packing_poly_bytes(&params, 1, false, 1)};
    segment_message.has_kind = segment_message.has_offset = segment_message.has_length = 1;
    segment_message.kind = segment.kind, segment_message.length = segment.length;
    header.method = (char *)(uintptr_t) "Inference/ModelInfer";
    header.token =
        (char *)(uintptr_t) "alice.00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    header.has_request_id = 1, header.request_id = (ProtobufCBinaryData){sizeof id, id};
    header.has_timeout_ms = 1, header.timeout_ms = 1500;
    header.has_payload = 1;
    header.payload = (ProtobufCBinaryData){forge_infer_request(payload, &params, seed), payload};
    header.n_segments = 1, header.segments = list;
    const uint32_t header_bytes = (uint32_t)ckksd__v1__request_header__get_packed_size(&header);
    *size = frame_layout(header_bytes, &segment, 1);
    uint8_t *body = need(malloc(*size));
    ckksd__v1__request_header__pack(&header, body + FRAME_PREFIX_BYTES);
    uint8_t *area = frame_write_prefix(body, header_bytes);
    forge_poly(area + segment.offset, &params, 1, false, &r);
    return body;
}

void forge_digest(uint8_t *image, size_t size) {
    CKKS_ASSERT(size >= SHA256_BYTES);
    sha256(image + size - SHA256_BYTES, image, size - SHA256_BYTES);
}
