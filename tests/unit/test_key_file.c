/* Key sets, ciphertext files and what arrives in a request: round trips and refusals. */
#include "proto/key_file.h"

#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"
#include "proto/ingest.h"
#include "tests/support/alloc_fault.h"
#include "tests/support/container_forge.h"
#include "tests/support/fixtures.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- key sets ---- */

typedef struct forged {
    uint8_t *image;
    size_t size;
    container_view view;
} forged;

static forged open_forged(uint8_t *(*make)(size_t *)) {
    forged f;
    f.image = make(&f.size);
    assert_int_equal(container_parse(&f.view, f.image, f.size, 0, NULL), CKKS_OK);
    return f;
}
static void close_forged(forged *f) {
    container_view_fini(&f->view);
    free(f->image);
}

static void a_key_set_comes_back_as_it_was_built(void **state) {
    (void)state;
    forged f = open_forged(forge_key_set);
    const ckks_params params = forge_params();
    key_set_view view;
    uint64_t at = 0, payload_bytes;
    uint8_t *payload = forge_payload(&payload_bytes, &params, forge_requirements, FORGE_KEYS);
    assert_int_equal(key_set_from_container(&view, &f.view, true, NULL), CKKS_OK);
    assert_memory_equal(view.params.id, params.id, 32);
    assert_true(view.is_insecure);
    assert_int_equal(view.lineage[15], 0xaf);
    assert_int_equal(view.seed[31], 0x2f);
    assert_int_equal(view.count, FORGE_KEYS);
    assert_memory_equal(view.requirements, forge_requirements, sizeof forge_requirements);
    for (uint32_t k = 0; k < FORGE_KEYS; k++) {
        assert_ptr_equal(view.keys[k].packed, view.payload + at);
        assert_int_equal(view.keys[k].packed_bytes, packing_key_bytes(&params, &forge_requirements[k]));
        at += view.keys[k].packed_bytes;
    }
    assert_int_equal(at, view.payload_bytes);
    assert_int_equal(at, payload_bytes);
    assert_memory_equal(view.payload, payload, at);
    assert_int_equal(key_set_check_residues(&view, NULL), CKKS_OK);
    key_set_view_fini(&view);
    free(payload);
    close_forged(&f);
}

/* The id written out once more, by hand. */
static void the_id_is_the_hash_that_the_header_states(void **state) {
    (void)state;
    forged f = open_forged(forge_key_set);
    key_set_view view;
    uint8_t text[8 + 32 + 16 + 32 + 4 + FORGE_KEYS * 12 + 32], *at = text, id[32];
    assert_int_equal(key_set_from_container(&view, &f.view, true, NULL), CKKS_OK);
    memcpy(at, "CKKSKSET", 8), at += 8;
    memcpy(at, view.params.id, 32), at += 32;
    memcpy(at, view.lineage, 16), at += 16;
    memcpy(at, view.seed, 32), at += 32;
    bytes_write_u32(at, FORGE_KEYS), at += 4;
    for (uint32_t k = 0; k < FORGE_KEYS; k++, at += 12) {
        bytes_write_u32(at, forge_requirements[k].kind);
        bytes_write_u32(at + 4, forge_requirements[k].galois_element);
        bytes_write_u32(at + 8, forge_requirements[k].level);
    }
    sha256(at, f.view.segments[0].data, f.view.segments[0].bytes), at += 32;
    assert_int_equal(at - text, sizeof text);
    sha256(id, text, sizeof text);
    assert_memory_equal(id, view.id, 32);
    key_set_view_fini(&view);
    close_forged(&f);
}

static void manifest_and_payload_may_come_apart(void **state) {
    (void)state;
    forged f = open_forged(forge_key_set);
    const container_segment *payload = &f.view.segments[0];
    key_set_view view;
    uint8_t digest[32];
    ckks_error err = {0};
    assert_int_equal(key_set_from_bytes(&view, f.view.manifest, f.view.manifest_bytes, false, true, NULL),
                     CKKS_OK);
    assert_int_equal(view.payload_bytes, payload->bytes);
    assert_null(view.keys[0].packed);
    assert_int_equal(key_set_attach(&view, payload->data, payload->bytes - 16, &err), CKKS_MALFORMED);
    assert_string_equal(err.field, "payload");
    sha256(digest, payload->data, payload->bytes);
    assert_int_equal(key_set_attach_hashed(&view, payload->data, payload->bytes, digest, NULL), CKKS_OK);
    assert_ptr_equal(view.keys[0].packed, payload->data);
    digest[0] ^= 1;
    assert_int_equal(key_set_attach_hashed(&view, payload->data, payload->bytes, digest, NULL),
                     CKKS_DIGEST_MISMATCH);
    ((uint8_t *)(uintptr_t)payload->data)[5] ^= 1;
    assert_int_equal(key_set_attach(&view, payload->data, payload->bytes, NULL), CKKS_DIGEST_MISMATCH);
    key_set_view_fini(&view);
    close_forged(&f);
}

typedef Ckksd__V1__KeySetManifest manifest;

static void no_parameters(manifest *m) {
    ckksd__v1__parameters__free_unpacked(m->parameters, NULL);
    m->parameters = NULL;
}
static void short_lineage(manifest *m) {
    m->lineage.len--;
}
static void no_seed(manifest *m) {
    m->has_seed = 0;
}
static void short_seed(manifest *m) {
    m->seed.len = 16;
}
static void no_id(manifest *m) {
    m->has_id = 0;
}
static void other_id(manifest *m) {
    m->id.data[3] ^= 4;
}
static void other_seed(manifest *m) {
    m->seed.data[3] ^= 4;
}
static void other_lineage(manifest *m) {
    m->lineage.data[3] ^= 4;
}
static void no_keys(manifest *m) {
    for (size_t i = 0; i < m->n_keys; i++) ckksd__v1__key_requirement__free_unpacked(m->keys[i], NULL);
    m->n_keys = 0;
}
static void key_twice(manifest *m) {
    m->keys[1]->galois_element = 2047;
}
static void even_element(manifest *m) {
    m->keys[1]->galois_element = 6;
}
static void other_element(manifest *m) {
    m->keys[1]->galois_element = 25;
}
static void lower_level(manifest *m) {
    m->keys[0]->level = 0;
}
static void hides_that_it_is_insecure(manifest *m) {
    m->has_insecure = 0;
}

static void each_damaged_key_set_is_refused_by_name(void **state) {
    (void)state;
    static const struct {
        void (*damage)(manifest *);
        ckks_status code;
        const char *field;
    } table[] = {
        {no_parameters, CKKS_MALFORMED, "parameters"},
        {short_lineage, CKKS_MALFORMED, "lineage"},
        {no_seed, CKKS_MALFORMED, "seed"},
        {short_seed, CKKS_MALFORMED, "seed"},
        {no_id, CKKS_MALFORMED, "id"},
        {other_id, CKKS_DIGEST_MISMATCH, "id"},
        {other_seed, CKKS_DIGEST_MISMATCH, "id"},
        {other_lineage, CKKS_DIGEST_MISMATCH, "id"},
        {no_keys, CKKS_MALFORMED, "keys"},
        {key_twice, CKKS_MALFORMED, "keys"},
        {even_element, CKKS_MALFORMED, "keys.galois_element"},
        {other_element, CKKS_DIGEST_MISMATCH, "id"},
        {lower_level, CKKS_MALFORMED, "payload"},
        {hides_that_it_is_insecure, CKKS_INSECURE_PARAMETERS, NULL},
    };
    forged f = open_forged(forge_key_set);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        manifest *m = ckksd__v1__key_set_manifest__unpack(NULL, f.view.manifest_bytes, f.view.manifest);
        table[i].damage(m);
        uint8_t packed[2048];
        key_set_view view;
        ckks_error err = {0};
        container_view damaged = f.view;
        damaged.manifest_bytes = (uint32_t)ckksd__v1__key_set_manifest__pack(m, packed);
        damaged.manifest = packed;
        assert_int_equal(key_set_from_container(&view, &damaged, true, &err), table[i].code);
        if (table[i].field) assert_string_equal(err.field, table[i].field);
        assert_null(view.keys);
        ckksd__v1__key_set_manifest__free_unpacked(m, NULL);
    }
    close_forged(&f);
}

static void an_insecure_set_is_refused_unless_allowed(void **state) {
    (void)state;
    forged f = open_forged(forge_key_set);
    key_set_view view;
    assert_int_equal(key_set_from_container(&view, &f.view, false, NULL), CKKS_INSECURE_PARAMETERS);
    close_forged(&f);
}

static void a_public_key_file_holds_one_public_key(void **state) {
    (void)state;
    forged set = open_forged(forge_key_set), public_key = open_forged(forge_public_key);
    key_set_view view;
    assert_int_equal(key_set_from_container(&view, &public_key.view, true, NULL), CKKS_OK);
    assert_int_equal(view.count, 1);
    assert_int_equal(view.requirements[0].kind, KEY_PUBLIC);
    assert_int_equal(key_set_check_residues(&view, NULL), CKKS_OK);
    key_set_view_fini(&view);
    set.view.kind = CONTAINER_PUBLIC_KEY;
    assert_int_equal(key_set_from_container(&view, &set.view, true, NULL), CKKS_MALFORMED);
    set.view.kind = CONTAINER_CIPHERTEXT;
    assert_int_equal(key_set_from_container(&view, &set.view, true, NULL), CKKS_INVALID_ARGUMENT);
    close_forged(&set);
    close_forged(&public_key);
}

static void a_residue_out_of_range_names_its_key(void **state) {
    (void)state;
    forged f = open_forged(forge_key_set);
    key_set_view view;
    ckks_error err = {0};
    assert_int_equal(key_set_from_container(&view, &f.view, true, NULL), CKKS_OK);
    memset((uint8_t *)(uintptr_t)view.keys[1].packed + 100, 0xff, 16);
    assert_int_equal(key_set_check_residues(&view, &err), CKKS_RESIDUE_RANGE);
    assert_non_null(strstr(err.message, "key 1 "));
    key_set_view_fini(&view);
    close_forged(&f);
}

static void reading_and_building_survive_every_failed_allocation(void **state) {
    (void)state;
    forged f = open_forged(forge_key_set), c = open_forged(forge_ciphertext);
    const ckks_params params = forge_params();
    for (uint64_t n = 1, hits = 1; hits; n++) {
        key_set_view view;
        ciphertext_view ciphertexts;
        uint8_t *image = NULL;
        size_t size;
        hits = 0;
        for (int which = 0; which < 4; which++) {
            ckks_status rc;
            if (which == 3 && ciphertext_from_container(&ciphertexts, &c.view, &params, NULL) != CKKS_OK)
                fail();
            alloc_fault_set(n);
            if (which == 0)
                rc = key_set_from_container(&view, &f.view, true, NULL);
            else if (which == 1)
                rc = ciphertext_from_container(&ciphertexts, &c.view, &params, NULL);
            else if (which == 2) {
                const key_set_content content = {&params,    params.id, params.id, forge_requirements,
                                                 FORGE_KEYS, true};
                rc = key_set_build(&image, &size, NULL, CONTAINER_KEY_SET, &content, params.id, 32, NULL);
            } else
                rc = ciphertext_build(&image, &size, &params, &ciphertexts, NULL);
            const bool was_hit = alloc_fault_calls() >= n;
            alloc_fault_set(0);
            assert_int_equal(rc, was_hit ? CKKS_RESOURCE_EXHAUSTED : CKKS_OK);
            if (which == 0) key_set_view_fini(&view);
            if (which == 1 || which == 3) ciphertext_view_fini(&ciphertexts);
            if (which >= 2) free(image);
            hits += was_hit;
        }
    }
    close_forged(&f), close_forged(&c);
}

/* ---- ciphertext files ---- */

static void a_ciphertext_file_comes_back_as_it_was_built(void **state) {
    (void)state;
    forged f = open_forged(forge_ciphertext);
    const ckks_params params = forge_params();
    ciphertext_view view;
    uint8_t *again;
    size_t size;
    assert_int_equal(ciphertext_from_container(&view, &f.view, &params, NULL), CKKS_OK);
    assert_int_equal(view.count, 2);
    assert_string_equal(view.model, "identity");
    assert_true(view.has_model_digest);
    assert_int_equal(view.sample_count, 1);
    assert_true(view.ciphertexts[0].is_seeded);
    assert_int_equal(view.ciphertexts[0].seed[31], 0x4f);
    assert_int_equal(view.ciphertexts[0].signature.limb_count, 2);
    assert_false(view.ciphertexts[1].is_seeded);
    assert_int_equal(view.ciphertexts[1].packed_bytes, packing_poly_bytes(&params, 0, false, 2));
    assert_int_equal(ciphertext_build(&again, &size, &params, &view, NULL), CKKS_OK);
    assert_int_equal(size, f.size);
    assert_memory_equal(again, f.image, size);
    free(again);
    ciphertext_view_fini(&view);
    close_forged(&f);
}

static void damaged_ciphertext_files_are_refused_by_name(void **state) {
    (void)state;
    forged f = open_forged(forge_ciphertext);
    const ckks_params params = forge_params(), other = fixture_params(10, 2, 1, 1);
    ciphertext_view view;
    for (int i = 0; i < 8; i++) {
        Ckksd__V1__CiphertextManifest *m =
            ckksd__v1__ciphertext_manifest__unpack(NULL, f.view.manifest_bytes, f.view.manifest);
        container_view damaged = f.view;
        container_segment segments[2] = {f.view.segments[0], f.view.segments[1]};
        uint8_t packed[2048];
        ckks_error err = {0};
        const char *field = "";
        ckks_status code = CKKS_MALFORMED;
        damaged.segments = segments;
        switch (i) {
        case 0:
            m->parameter_id.data[0] ^= 1, field = "parameter_id", code = CKKS_PARAMS_MISMATCH;
            break;
        case 1:
            m->lineage.len = 15, field = "lineage";
            break;
        case 2:
            damaged.segment_count = 1, field = "signatures";
            break;
        case 3:
            segments[1].bytes -= 16, field = "segments";
            break;
        case 4:
            m->seeds[0].len = 31, field = "seeds";
            break;
        case 5:
            m->seeds[0].len = 0, field = "segments";
            break; /* then both components are due */
        case 6:
            m->signatures[1]->limb_count = 9, field = "limb_count";
            break;
        case 7:
            m->model_digest.len = 3, field = "model_digest";
            break;
        }
        damaged.manifest_bytes = (uint32_t)ckksd__v1__ciphertext_manifest__pack(m, packed);
        damaged.manifest = packed;
        assert_int_equal(ciphertext_from_container(&view, &damaged, &params, &err), code);
        assert_string_equal(err.field, field);
        assert_null(view.ciphertexts);
        ckksd__v1__ciphertext_manifest__free_unpacked(m, NULL);
    }
    assert_int_equal(ciphertext_from_container(&view, &f.view, &other, NULL), CKKS_PARAMS_MISMATCH);
    close_forged(&f);
}

/* ---- requests ---- */

typedef struct request {
    uint8_t *body;
    size_t size;
    frame_view view;
    ProtobufCMessage *header, *payload;
    Ckksd__V1__InferRequest *infer;
    frame_segment segments[4];
    uint32_t segment_count;
} request;

static void open_request(request *r) {
    r->body = forge_frame(&r->size);
    assert_int_equal(frame_parse(&r->view, r->body, r->size, NULL), CKKS_OK);
    assert_int_equal(message_unpack(&r->header, &ckksd__v1__request_header__descriptor, r->view.header,
                                    r->view.header_bytes, 1 << 16, "header", NULL),
                     CKKS_OK);
    const Ckksd__V1__RequestHeader *h = (const Ckksd__V1__RequestHeader *)(const void *)r->header;
    assert_int_equal(
        segments_from_messages(r->segments, 4, &r->segment_count, h->segments, h->n_segments, NULL), CKKS_OK);
    assert_int_equal(frame_check_segments(&r->view, r->segments, r->segment_count, NULL), CKKS_OK);
    assert_int_equal(message_unpack(&r->payload, &ckksd__v1__infer_request__descriptor, h->payload.data,
                                    h->payload.len, 1 << 16, "payload", NULL),
                     CKKS_OK);
    r->infer = (Ckksd__V1__InferRequest *)(void *)r->payload;
}
static void close_request(request *r) {
    message_free(r->payload);
    message_free(r->header);
    free(r->body);
}

static void a_good_request_becomes_inputs(void **state) {
    (void)state;
    request r;
    const ckks_params params = forge_params();
    value_signature expected;
    graph_input input;
    ckks_error err = {0};
    value_signature_ciphertext(&expected, &params, 2, 1, 0x1p28, 17);
    open_request(&r);
    if (infer_inputs_check(&input, &params, &expected, 1, r.infer, &r.view, r.segments, r.segment_count,
                           &err))
        fail_msg("%s: %s", err.field, err.message);
    assert_int_equal(input.source, GRAPH_SOURCE_PACKED_HOST);
    assert_int_equal(value_signature_compare(&expected, &input.signature, NULL), CKKS_OK);
    assert_true(input.is_seeded);
    assert_int_equal(input.seed[0], 0x30);
    assert_int_equal(input.lineage[0], 0xa0);
    assert_ptr_equal(input.data, r.view.segments);
    assert_int_equal(input.bytes, packing_poly_bytes(&params, 1, false, 1));
    assert_int_equal(((const uint8_t *)input.data - r.body) % 16, 12);
    close_request(&r);
}

static void each_bad_request_is_refused_by_name(void **state) {
    (void)state;
    const ckks_params params = forge_params();
    value_signature expected;
    value_signature_ciphertext(&expected, &params, 2, 1, 0x1p28, 17);
    for (int i = 0; i < 19; i++) {
        request r;
        graph_input input;
        ckks_error err = {0};
        const char *field = "";
        ckks_status code = CKKS_SIGNATURE_MISMATCH;
        open_request(&r);
        Ckksd__V1__Signature *s = r.infer->inputs[0];
        switch (i) {
        case 0:
            s->parameter_id.data[0] ^= 1, field = "inputs[0].parameter_id", code = CKKS_PARAMS_MISMATCH;
            break;
        case 1:
            s->kind = 2, field = "inputs[0].kind";
            break;
        case 2:
            s->kind = 7, field = "inputs[0].kind", code = CKKS_MALFORMED;
            break;
        case 3:
            s->component_count = 3, field = "inputs[0].component_count";
            break;
        case 4:
            s->limb_count = 1, field = "inputs[0].limb_count";
            break;
        case 5:
            s->limb_count = 3, field = "inputs[0].limb_count", code = CKKS_MALFORMED;
            break;
        case 6:
            s->scale_bits ^= 1, field = "inputs[0].scale";
            break;
        case 7:
            s->domain = 2, field = "inputs[0].domain";
            break;
        case 8:
            s->basis = 2, field = "inputs[0].basis";
            break;
        case 9:
            s->batch_count = 2, field = "inputs[0].batch_count";
            break;
        case 10:
            s->schema_version = 9, field = "inputs[0].schema_version", code = CKKS_UNSUPPORTED_VERSION;
            break;
        case 11:
            r.infer->n_inputs = 0, field = "inputs";
            break;
        case 12:
            r.segment_count = 0, field = "inputs";
            break;
        case 13:
            r.segments[0].length -= 16, field = "inputs[0].segment", code = CKKS_MALFORMED;
            break;
        case 14:
            r.segments[0].kind = 2, field = "inputs[0].segment", code = CKKS_MALFORMED;
            break;
        case 15:
            r.infer->n_seeds = 0, field = "inputs[0].segment", code = CKKS_MALFORMED;
            break;
        case 16:
            r.infer->seeds[0].len = 31, field = "seeds", code = CKKS_MALFORMED;
            break;
        case 17:
            r.infer->has_lineage = 0, field = "lineage", code = CKKS_MALFORMED;
            break;
        case 18:
            r.infer->lineage.len = 17, field = "lineage", code = CKKS_MALFORMED;
            break;
        }
        const ckks_status rc = infer_inputs_check(&input, &params, &expected, 1, r.infer, &r.view, r.segments,
                                                  r.segment_count, &err);
        if (rc != code || strcmp(err.field, field) != 0)
            print_message("entry %d: %s: %s: %s\n", i, ckks_status_name(rc), err.field, err.message);
        assert_int_equal(rc, code);
        assert_string_equal(err.field, field);
        close_request(&r);
    }
}

static void segments_need_every_field(void **state) {
    (void)state;
    Ckksd__V1__Segment s = CKKSD__V1__SEGMENT__INIT, *list[] = {&s, &s, &s};
    frame_segment out[2];
    uint32_t count;
    s.has_kind = s.has_offset = s.has_length = 1;
    assert_int_equal(segments_from_messages(out, 2, &count, list, 2, NULL), CKKS_OK);
    assert_int_equal(count, 2);
    assert_int_equal(segments_from_messages(out, 2, &count, list, 3, NULL), CKKS_MALFORMED);
    s.has_length = 0;
    assert_int_equal(segments_from_messages(out, 2, &count, list, 1, NULL), CKKS_MALFORMED);
    s.has_length = 1, s.has_kind = 0;
    assert_int_equal(segments_from_messages(out, 2, &count, list, 1, NULL), CKKS_MALFORMED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_set_comes_back_as_it_was_built),
        cmocka_unit_test(the_id_is_the_hash_that_the_header_states),
        cmocka_unit_test(manifest_and_payload_may_come_apart),
        cmocka_unit_test(each_damaged_key_set_is_refused_by_name),
        cmocka_unit_test(an_insecure_set_is_refused_unless_allowed),
        cmocka_unit_test(a_public_key_file_holds_one_public_key),
        cmocka_unit_test(a_residue_out_of_range_names_its_key),
        cmocka_unit_test(reading_and_building_survive_every_failed_allocation),
        cmocka_unit_test(a_ciphertext_file_comes_back_as_it_was_built),
        cmocka_unit_test(damaged_ciphertext_files_are_refused_by_name),
        cmocka_unit_test(a_good_request_becomes_inputs),
        cmocka_unit_test(each_bad_request_is_refused_by_name),
        cmocka_unit_test(segments_need_every_field),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
