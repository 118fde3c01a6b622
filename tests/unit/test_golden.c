/*
 * One committed file of every kind. What an earlier version wrote must be read, field by field, and written
 * again to the byte: a format changes only together with its version. CKKSD_WRITE_GOLDEN=1 writes them anew.
 */
#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"
#include "proto/ingest.h"
#include "tests/support/container_forge.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FOLDER "tests/data/golden/"

static uint8_t *load(const char *name, size_t *size, uint8_t *(*make)(size_t *)) {
    char path[128];
    size_t made_size;
    uint8_t *made = make(&made_size), *bytes = malloc(1 << 20);
    snprintf(path, sizeof path, FOLDER "%s", name);
    if (getenv("CKKSD_WRITE_GOLDEN")) {
        FILE *out = fopen(path, "wb");
        assert_non_null(out);
        assert_int_equal(fwrite(made, 1, made_size, out), made_size);
        assert_int_equal(fclose(out), 0);
    }
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("%s: not there: run from the repository's root", path);
    *size = fread(bytes, 1, 1 << 20, file);
    fclose(file);
    assert_int_equal(*size, made_size);
    assert_memory_equal(bytes, made, made_size);
    free(made);
    return bytes;
}

static void assert_counts_up(const void *bytes, size_t size, uint8_t from) {
    for (size_t i = 0; i < size; i++) assert_int_equal(((const uint8_t *)bytes)[i], (uint8_t)(from + i));
}

/* The fixed part by offset, as the format says it, without the reader. */
static uint8_t *load_container(container_view *view, const char *name, uint32_t kind, uint32_t segments,
                               uint8_t *(*make)(size_t *)) {
    size_t size;
    uint8_t digest[32], *image = load(name, &size, make);
    assert_memory_equal(image, "CKKSD-FILE\r\n", 12);
    assert_int_equal(bytes_read_u32(image + 12), kind);
    assert_int_equal(bytes_read_u32(image + 16), 1);
    assert_int_equal(bytes_read_u32(image + 24), segments);
    sha256(digest, image, size - 32);
    assert_memory_equal(image + size - 32, digest, 32);
    assert_int_equal(container_parse(view, image, size, kind, NULL), CKKS_OK);
    assert_int_equal(view->manifest_bytes, bytes_read_u32(image + 20));
    for (uint32_t i = 0; i < segments; i++)
        assert_int_equal(view->segments[i].bytes, bytes_read_u64(image + 28 + 8 * i));
    return image;
}

/* The primes are part of the format: generation that chose others would make every file foreign. */
static void assert_parameters(const ckks_params *p, uint32_t log_n) {
    static const uint64_t n10[] = {0x3fffff1801, 0x10001801, 0x4000000801},
                          n12[] = {0x3ffffea001, 0x10006001, 0x4000026001};
    const uint64_t *expected = log_n == 10 ? n10 : n12;
    assert_int_equal(p->log_n, log_n);
    assert_int_equal(p->q_count, 2);
    assert_int_equal(p->p_count, 1);
    assert_int_equal(p->digit_size, 1);
    for (int i = 0; i < 3; i++) {
        if (p->prime[i] != expected[i]) print_message("prime %d: %llx\n", i, (unsigned long long)p->prime[i]);
        assert_int_equal(p->prime[i], expected[i]);
    }
}

static void frame_is_version_1(void **state) {
    (void)state;
    size_t size;
    uint8_t *body = load("infer-request.frame", &size, forge_frame);
    static const uint8_t prefix[] = {0x43, 0x4b, 0x44, 0x31, 1, 0, 0, 0};
    frame_view view;
    frame_segment segment;
    uint32_t count;
    ProtobufCMessage *message, *payload;
    assert_memory_equal(body, prefix, sizeof prefix);
    assert_int_equal(frame_parse(&view, body, size, NULL), CKKS_OK);
    assert_int_equal(view.header_bytes, bytes_read_u32(body + 8));
    assert_int_equal(message_unpack(&message, &ckksd__v1__request_header__descriptor, view.header,
                                    view.header_bytes, 1 << 16, "header", NULL),
                     CKKS_OK);
    const Ckksd__V1__RequestHeader *h = (const Ckksd__V1__RequestHeader *)(const void *)message;
    assert_string_equal(h->method, "Inference/ModelInfer");
    assert_string_equal(h->token, "alice.00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff");
    assert_int_equal(h->request_id.len, 16);
    assert_counts_up(h->request_id.data, 16, 0xe0);
    assert_int_equal(h->timeout_ms, 1500);
    assert_int_equal(segments_from_messages(&segment, 1, &count, h->segments, h->n_segments, NULL), CKKS_OK);
    assert_int_equal(frame_check_segments(&view, &segment, count, NULL), CKKS_OK);
    assert_int_equal(segment.length, 1024 * (38 + 29) / 8);
    assert_int_equal(message_unpack(&payload, &ckksd__v1__infer_request__descriptor, h->payload.data,
                                    h->payload.len, 1 << 16, "payload", NULL),
                     CKKS_OK);
    const Ckksd__V1__InferRequest *r = (const Ckksd__V1__InferRequest *)(const void *)payload;
    assert_string_equal(r->model, "identity");
    assert_counts_up(r->key_set.data, 32, 0x90);
    assert_counts_up(r->lineage.data, 16, 0xa0);
    assert_counts_up(r->seeds[0].data, 32, 0x30);
    assert_int_equal(r->inputs[0]->limb_count, 2);
    assert_int_equal(r->inputs[0]->scale_bits, UINT64_C(0x41b0000000000000));
    message_free(payload);
    message_free(message);
    free(body);
}

static void assert_key_set(const container_view *view, uint32_t count, const key_requirement *keys) {
    key_set_view set;
    assert_int_equal(key_set_from_container(&set, view, true, NULL), CKKS_OK);
    assert_parameters(&set.params, 10);
    assert_counts_up(set.lineage, 16, 0xa0);
    assert_counts_up(set.seed, 32, 0x10);
    assert_true(set.is_insecure);
    assert_int_equal(set.count, count);
    assert_memory_equal(set.requirements, keys, count * sizeof *keys);
    assert_int_equal(key_set_check_residues(&set, NULL), CKKS_OK);
    key_set_view_fini(&set);
}

static void key_set_is_version_1(void **state) {
    (void)state;
    static const key_requirement keys[] = {{1, 0, 1}, {2, 5, 0}, {2, 2047, 1}};
    container_view view;
    uint8_t *image = load_container(&view, "key-set.ckks", 3, 1, forge_key_set);
    assert_key_set(&view, 3, keys);
    container_view_fini(&view);
    free(image);
}

static void public_key_is_version_1(void **state) {
    (void)state;
    static const key_requirement keys[] = {{3, 0, 0}};
    container_view view;
    uint8_t *image = load_container(&view, "public-key.ckks", 2, 1, forge_public_key);
    assert_key_set(&view, 1, keys);
    container_view_fini(&view);
    free(image);
}

static void ciphertext_is_version_1(void **state) {
    (void)state;
    const ckks_params params = forge_params();
    container_view view;
    ciphertext_view ciphertexts;
    uint8_t *image = load_container(&view, "ciphertext.ckks", 4, 2, forge_ciphertext);
    assert_int_equal(ciphertext_from_container(&ciphertexts, &view, &params, NULL), CKKS_OK);
    assert_parameters(&params, 10);
    assert_string_equal(ciphertexts.model, "identity");
    assert_counts_up(ciphertexts.lineage, 16, 0xa0);
    assert_counts_up(ciphertexts.model_digest, 32, 0xc0);
    assert_int_equal(ciphertexts.sample_count, 1);
    assert_true(ciphertexts.ciphertexts[0].is_seeded);
    assert_counts_up(ciphertexts.ciphertexts[0].seed, 32, 0x30);
    assert_int_equal(ciphertexts.ciphertexts[0].signature.limb_count, 2);
    assert_int_equal(ciphertexts.ciphertexts[1].signature.limb_count, 1);
    assert_true(ciphertexts.ciphertexts[1].signature.scale == 0x1p28);
    assert_false(ciphertexts.ciphertexts[1].is_seeded);
    ciphertext_view_fini(&ciphertexts);
    container_view_fini(&view);
    free(image);
}

static void secret_key_is_version_1(void **state) {
    (void)state;
    container_view view;
    ProtobufCMessage *message;
    ckks_params params;
    uint8_t *image = load_container(&view, "secret-key.ckks", 1, 1, forge_secret_key);
    assert_int_equal(message_unpack(&message, &ckksd__v1__secret_key_manifest__descriptor, view.manifest,
                                    view.manifest_bytes, 1 << 16, "manifest", NULL),
                     CKKS_OK);
    const Ckksd__V1__SecretKeyManifest *m = (const Ckksd__V1__SecretKeyManifest *)(const void *)message;
    assert_int_equal(params_from_message(&params, m->parameters, NULL), CKKS_OK);
    assert_parameters(&params, 10);
    assert_counts_up(m->lineage.data, 16, 0xa0);
    assert_int_equal(m->created_unix, 1700000000);
    assert_true(m->insecure);
    assert_false(m->has_salt || m->has_nonce);
    assert_int_equal(view.segments[0].bytes, 1024);
    for (int i = 0; i < 1024; i++) assert_in_range((uint8_t)(view.segments[0].data[i] + 1), 0, 2);
    message_free(message);
    container_view_fini(&view);
    free(image);
}

static void metadata_is_version_1(void **state) {
    (void)state;
    const description_limits limits = {0};
    container_view view;
    ProtobufCMessage *message;
    uint8_t *image = load_container(&view, "metadata.ckks", 6, 0, forge_metadata);
    assert_int_equal(message_unpack(&message, &ckksd__v1__model_description__descriptor, view.manifest,
                                    view.manifest_bytes, 1 << 20, "description", NULL),
                     CKKS_OK);
    const Ckksd__V1__ModelDescription *d = (const Ckksd__V1__ModelDescription *)(const void *)message;
    assert_int_equal(description_check(d, &limits, NULL), CKKS_OK);
    assert_string_equal(d->name, "identity");
    assert_string_equal(d->columns[2]->name, "gamma");
    assert_true(d->columns[2]->minimum == -10);
    assert_string_equal(d->postprocess[1]->labels[1], "yes");
    assert_int_equal(d->input_layout->slot[3], 3);
    assert_int_equal(d->n_keys, 2);
    message_free(message);
    container_view_fini(&view);
    free(image);
}

static void package_is_version_1(void **state) {
    (void)state;
    container_view view;
    package *p;
    size_t size;
    uint8_t *image = load("package.ckm", &size, forge_package);
    free(load_container(&view, "package.ckm", 5, 1, forge_package));
    assert_int_equal(package_parse(&p, image, size, false, NULL), CKKS_OK);
    assert_parameters(&p->params, 12);
    assert_int_equal(p->plan.operation_count, 3);
    assert_int_equal(p->plan.operations[0].kind, 5);
    assert_int_equal(p->plan.operations[1].kind, 11);
    assert_int_equal(p->plan.operations[2].kind, 6);
    assert_true(p->plan.operations[2].constant == 0.25);
    assert_int_equal(p->plan.plain_count, 1);
    assert_true(p->plan.plains[0].slots[0] == 0.5);
    assert_true(p->plan.plains[0].scale == (double)p->params.prime[1]);
    assert_counts_up(p->plan.plains[0].digest, 32, 0x60);
    assert_true(p->plan.values[2].level == 0 && p->plan.values[2].scale == 0x1p28);
    assert_int_equal(p->plan.outputs[0], 3);
    assert_true(p->plan.has_self_test);
    assert_counts_up(p->plan.self_test_seed, 32, 0x70);
    assert_counts_up(p->plan.self_test_digest, 32, 0x80);
    assert_string_equal(p->manifest->report->producer, "ckksctl 0.1.0");
    assert_int_equal(p->manifest->description->security_bits, 128);
    package_destroy(p);
    container_view_fini(&view);
    free(image);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frame_is_version_1),      cmocka_unit_test(key_set_is_version_1),
        cmocka_unit_test(public_key_is_version_1), cmocka_unit_test(ciphertext_is_version_1),
        cmocka_unit_test(secret_key_is_version_1), cmocka_unit_test(metadata_is_version_1),
        cmocka_unit_test(package_is_version_1),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
