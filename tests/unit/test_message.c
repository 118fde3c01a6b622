/* Bounded protobuf parsing; parameters, signatures and key requirements as messages. */
#include "kernels/base/bytes.h"
#include "proto/ciphertext_file.h"
#include "proto/package.h"

#include "rpc.pb-c.h"
#include "tests/support/alloc_fault.h"
#include "tests/support/fixtures.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define UNPACK(out, descriptor, bytes, size, arena, err)                                                     \
    message_unpack(out, &ckksd__v1__##descriptor##__descriptor, bytes, size, arena, "test", err)

static void a_message_comes_back(void **state) {
    (void)state;
    Ckksd__V1__Segment segment = CKKSD__V1__SEGMENT__INIT, *list[] = {&segment, &segment};
    Ckksd__V1__RequestHeader header = CKKSD__V1__REQUEST_HEADER__INIT;
    uint8_t packed[256];
    ProtobufCMessage *message;
    segment.has_offset = 1, segment.offset = 4096;
    header.method = (char *)(uintptr_t) "Inference/ModelInfer";
    header.n_segments = 2, header.segments = list;
    const size_t size = ckksd__v1__request_header__pack(&header, packed);
    assert_int_equal(UNPACK(&message, request_header, packed, size, 4096, NULL), CKKS_OK);
    const Ckksd__V1__RequestHeader *back = (const Ckksd__V1__RequestHeader *)(const void *)message;
    assert_string_equal(back->method, "Inference/ModelInfer");
    assert_null(back->token);
    assert_int_equal(back->n_segments, 2);
    assert_int_equal(back->segments[1]->offset, 4096);
    assert_false(back->segments[1]->has_length);
    message_free(message);
    message_free(NULL);
}

static void an_empty_message_is_valid(void **state) {
    (void)state;
    ProtobufCMessage *message;
    assert_int_equal(UNPACK(&message, empty, "", 0, 4096, NULL), CKKS_OK);
    message_free(message);
}

static void parsing_stays_within_its_memory(void **state) {
    (void)state;
    /* each empty submessage of two bytes becomes a structure and a pointer */
    uint8_t bomb[20000];
    ProtobufCMessage *message;
    ckks_error err = {0};
    for (size_t i = 0; i < sizeof bomb; i += 2) bomb[i] = 8 << 3 | 2, bomb[i + 1] = 0;
    assert_int_equal(UNPACK(&message, request_header, bomb, sizeof bomb, 64 << 10, &err), CKKS_TOO_LARGE);
    assert_string_equal(err.field, "test");
    assert_null(message);
    assert_int_equal(UNPACK(&message, request_header, bomb, sizeof bomb, 8 << 20, NULL), CKKS_OK);
    message_free(message);
    for (size_t arena = 0; arena < 2048; arena += 16) { /* wherever the memory ends */
        const ckks_status rc = UNPACK(&message, request_header, bomb, 20, arena, NULL);
        assert_true(rc == CKKS_OK || rc == CKKS_TOO_LARGE);
        message_free(message);
    }
}

static void nonsense_is_malformed(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t size;
    } table[] = {
        {"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 11}, /* varint without end */
        {"\x0a\x7f"
         "abc",
         5},                 /* string longer than the message */
        {"\x0f", 1},         /* wire type 7 */
        {"\x00", 1},         /* field number 0 */
        {"\x0d\x01\x02", 3}, /* fixed32 cut short, where a string is expected */
        {"\x42\x02\x08", 3}, /* submessage cut short */
        {"\x42\x01\x08", 3}, /* submessage with a key and no value */
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        ProtobufCMessage *message;
        ckks_error err = {0};
        assert_int_equal(UNPACK(&message, request_header, table[i].bytes, table[i].size, 4096, &err),
                         CKKS_MALFORMED);
        assert_null(message);
    }
}

static void a_few_unknown_fields_pass_and_more_do_not(void **state) {
    (void)state;
    ProtobufCMessage *message;
    uint8_t bytes[64];
    for (size_t count = 0; count < 8; count++) {
        for (size_t i = 0; i < count; i++) bytes[3 * i] = 0xf8, bytes[3 * i + 1] = 0x07, bytes[3 * i + 2] = 1;
        assert_int_equal(UNPACK(&message, request_header, bytes, 3 * count, 4096, NULL),
                         count <= 4 ? CKKS_OK : CKKS_MALFORMED);
        message_free(message);
        /* the same inside a submessage */
        uint8_t nested[80] = {8 << 3 | 2, (uint8_t)(3 * count)};
        memcpy(nested + 2, bytes, 3 * count);
        assert_int_equal(UNPACK(&message, request_header, nested, 2 + 3 * count, 4096, NULL),
                         count <= 4 ? CKKS_OK : CKKS_MALFORMED);
        message_free(message);
    }
}

static void no_memory_is_said_so(void **state) {
    (void)state;
    ProtobufCMessage *message;
    alloc_fault_set(1);
    assert_int_equal(UNPACK(&message, empty, "", 0, 4096, NULL), CKKS_RESOURCE_EXHAUSTED);
    alloc_fault_set(0);
}

/* ---- parameters ---- */

static void parameters_come_back(void **state) {
    (void)state;
    const ckks_params params = fixture_params(11, 4, 2, 2);
    ckks_params back;
    params_message m;
    params_to_message(&m, &params);
    assert_int_equal(params_from_message(&back, &m.message, NULL), CKKS_OK);
    assert_memory_equal(&back, &params, sizeof params);
}

static void damaged_parameters_are_refused_by_name(void **state) {
    (void)state;
    const ckks_params good = fixture_params(10, 3, 1, 1);
    for (int i = 0; i < 14; i++) {
        ckks_params params = good, back;
        params_message m;
        ckks_error err = {0};
        const char *field = "";
        ckks_status code = CKKS_MALFORMED;
        params_to_message(&m, &params);
        Ckksd__V1__Parameters *p = &m.message;
        switch (i) {
        case 0:
            p->has_id = 0, field = "parameters.id";
            break;
        case 1:
            p->id.len = 31, field = "parameters.id";
            break;
        case 2:
            params.id[5] ^= 1, field = "parameters.id", code = CKKS_PARAMS_MISMATCH;
            break;
        case 3:
            p->has_log_n = 0, field = "parameters.log_n";
            break;
        case 4:
            p->has_digit_size = 0, field = "parameters.digit_size";
            break;
        case 5:
            p->has_secret_distribution = 0, field = "parameters.secret_distribution";
            break;
        case 6:
            p->has_transform_order = 0, field = "parameters.transform_order";
            break;
        case 7:
            p->n_q = 0, field = "parameters.q";
            break;
        case 8:
            p->n_q = SIZE_MAX, field = "parameters.q";
            break;
        case 9:
            p->n_p = 80, field = "parameters.q";
            break;
        case 10:
            p->n_psi--, field = "parameters.psi";
            break;
        case 11:
            params.psi[3] = 0, field = "parameters.psi";
            break;
        case 12:
            p->log_n = 40, field = NULL, code = CKKS_INVALID_ARGUMENT;
            break;
        case 13:
            params.prime[1] = params.prime[2], field = NULL, code = CKKS_INVALID_ARGUMENT;
            break;
        }
        assert_int_equal(params_from_message(&back, p, &err), code);
        if (field) assert_string_equal(err.field, field);
    }
    ckks_params back;
    assert_int_equal(params_from_message(&back, NULL, NULL), CKKS_MALFORMED);
}

/* ---- signatures ---- */

static void signatures_come_back(void **state) {
    (void)state;
    const ckks_params params = fixture_params(10, 3, 1, 1);
    value_signature s, back;
    signature_message m;
    value_signature_ciphertext(&s, &params, 2, 1, 0x1.23456789abcdep35, 0);
    s.batch_count = 3, s.bytes *= 3;
    signature_to_message(&m, &s);
    assert_int_equal(signature_from_message(&back, &params, &m.message, NULL), CKKS_OK);
    assert_int_equal(value_signature_compare(&s, &back, NULL), CKKS_OK);
    s.basis = VALUE_BASIS_QP, s.bytes += 3 * 2 * 1 * 1024 * 8;
    signature_to_message(&m, &s);
    assert_int_equal(signature_from_message(&back, &params, &m.message, NULL), CKKS_OK);
    assert_int_equal(value_signature_compare(&s, &back, NULL), CKKS_OK);
}

static void each_bad_signature_field_is_named(void **state) {
    (void)state;
    const ckks_params params = fixture_params(10, 3, 1, 1);
    const double nan_scale = NAN, infinite = INFINITY, zero = 0;
    for (int i = 0; i < 23; i++) {
        value_signature s, back;
        signature_message m;
        ckks_error err = {0};
        const char *field = "";
        ckks_status code = CKKS_MALFORMED;
        value_signature_ciphertext(&s, &params, 2, 1, 0x1p35, 0);
        signature_to_message(&m, &s);
        Ckksd__V1__Signature *p = &m.message;
        switch (i) {
        case 0:
            p->has_kind = 0, field = "kind";
            break;
        case 1:
            p->kind = 3, field = "kind";
            break;
        case 2:
            p->has_schema_version = 0, field = "schema_version";
            break;
        case 3:
            p->schema_version = 2, field = "schema_version", code = CKKS_UNSUPPORTED_VERSION;
            break;
        case 4:
            p->has_parameter_id = 0, field = "parameter_id";
            break;
        case 5:
            p->parameter_id.len = 0, field = "parameter_id";
            break;
        case 6:
            s.parameter_id[31] ^= 1, field = "parameter_id", code = CKKS_PARAMS_MISMATCH;
            break;
        case 7:
            p->has_component_count = 0, field = "component_count";
            break;
        case 8:
            p->component_count = 0, field = "component_count";
            break;
        case 9:
            p->component_count = 4, field = "component_count";
            break;
        case 10:
            p->has_batch_count = 0, field = "batch_count";
            break;
        case 11:
            p->batch_count = 0, field = "batch_count";
            break;
        case 12:
            p->batch_count = UINT32_MAX, field = "batch_count";
            break;
        case 13:
            p->has_limb_count = 0, field = "limb_count";
            break;
        case 14:
            p->limb_count = 0, field = "limb_count";
            break;
        case 15:
            p->limb_count = 4, field = "limb_count";
            break;
        case 16:
            p->has_scale_bits = 0, field = "scale";
            break;
        case 17:
            memcpy(&p->scale_bits, &nan_scale, 8), field = "scale";
            break;
        case 18:
            memcpy(&p->scale_bits, &infinite, 8), field = "scale";
            break;
        case 19:
            memcpy(&p->scale_bits, &zero, 8), field = "scale";
            break;
        case 20:
            p->scale_bits |= UINT64_C(1) << 63, field = "scale";
            break;
        case 21:
            p->domain = 3, field = "domain";
            break;
        case 22:
            p->basis = 0, field = "basis";
            break;
        }
        assert_int_equal(signature_from_message(&back, &params, p, &err), code);
        assert_string_equal(err.field, field);
    }
}

/* ---- key requirements ---- */

static void key_requirements_come_back(void **state) {
    (void)state;
    const ckks_params params = fixture_params(10, 3, 1, 1);
    const key_requirement keys[] = {
        {KEY_RELINEARISATION, 0, 2}, {KEY_GALOIS, 5, 1}, {KEY_GALOIS, 2047, 0}, {KEY_PUBLIC, 0, 2}};
    Ckksd__V1__KeyRequirement items[4], *list[4];
    key_requirement *back;
    uint32_t count;
    key_requirements_to_messages(items, list, keys, 4);
    assert_int_equal(key_requirements_from_messages(&back, &count, &params, list, 4, NULL), CKKS_OK);
    assert_int_equal(count, 4);
    assert_memory_equal(back, keys, sizeof keys);
    free(back);
    assert_int_equal(key_requirements_from_messages(&back, &count, &params, NULL, 0, NULL), CKKS_OK);
    assert_int_equal(count, 0);
    free(back);
}

static void each_bad_key_requirement_is_named(void **state) {
    (void)state;
    const ckks_params params = fixture_params(10, 3, 1, 1);
    static const struct {
        key_requirement key;
        const char *field;
    } table[] = {
        {{0, 0, 1}, "keys.kind"},
        {{4, 0, 1}, "keys.kind"},
        {{KEY_GALOIS, 0, 1}, "keys.galois_element"},
        {{KEY_GALOIS, 1, 1}, "keys.galois_element"},
        {{KEY_GALOIS, 6, 1}, "keys.galois_element"},
        {{KEY_GALOIS, 2049, 1}, "keys.galois_element"},
        {{KEY_GALOIS, UINT32_MAX, 1}, "keys.galois_element"},
        {{KEY_GALOIS, 5, 3}, "keys.level"},
        {{KEY_RELINEARISATION, 0, UINT32_MAX}, "keys.level"},
        {{KEY_GALOIS, 25, 0}, "keys"}, /* the same element as the good one, at another level */
        {{KEY_PUBLIC, 0, 0}, "keys"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const key_requirement keys[] = {{KEY_GALOIS, 25, 2}, {KEY_PUBLIC, 0, 1}, table[i].key};
        Ckksd__V1__KeyRequirement items[3], *list[3];
        key_requirement *back;
        uint32_t count;
        ckks_error err = {0};
        key_requirements_to_messages(items, list, keys, 3);
        assert_int_equal(key_requirements_from_messages(&back, &count, &params, list, 3, &err),
                         CKKS_MALFORMED);
        assert_string_equal(err.field, table[i].field);
        assert_null(back);
    }
    key_requirement *back;
    uint32_t count;
    assert_int_equal(key_requirements_from_messages(&back, &count, &params, NULL, 100000, NULL),
                     CKKS_TOO_LARGE);
}

static void an_element_on_a_key_without_one_is_refused(void **state) {
    (void)state;
    const ckks_params params = fixture_params(10, 3, 1, 1);
    Ckksd__V1__KeyRequirement item = CKKSD__V1__KEY_REQUIREMENT__INIT, *list[] = {&item};
    key_requirement *back;
    uint32_t count;
    item.has_kind = item.has_level = item.has_galois_element = 1;
    item.kind = KEY_RELINEARISATION, item.galois_element = 5;
    assert_int_equal(key_requirements_from_messages(&back, &count, &params, list, 1, NULL), CKKS_MALFORMED);
    item.galois_element = 0;
    assert_int_equal(key_requirements_from_messages(&back, &count, &params, list, 1, NULL), CKKS_OK);
    free(back);
}

/* ---- seeds ---- */

static void seeds_are_whole_and_differ(void **state) {
    (void)state;
    uint8_t a[32] = {1}, b[32] = {2}, same[32] = {1};
    const ProtobufCBinaryData good[] = {{32, a}, {0, NULL}, {32, b}},
                              twice[] = {{32, a}, {32, b}, {32, same}}, cut[] = {{32, a}, {31, b}, {0, NULL}};
    ckks_error err = {0};
    assert_int_equal(seeds_check(good, 3, 3, NULL), CKKS_OK);
    assert_int_equal(seeds_check(NULL, 0, 3, NULL), CKKS_OK);
    assert_int_equal(seeds_check(good, 3, 2, NULL), CKKS_MALFORMED);
    assert_int_equal(seeds_check(good, 2, 3, NULL), CKKS_MALFORMED);
    assert_int_equal(seeds_check(cut, 3, 3, NULL), CKKS_MALFORMED);
    assert_int_equal(seeds_check(twice, 3, 3, &err), CKKS_MALFORMED);
    assert_string_equal(err.field, "seeds");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_comes_back),
        cmocka_unit_test(an_empty_message_is_valid),
        cmocka_unit_test(parsing_stays_within_its_memory),
        cmocka_unit_test(nonsense_is_malformed),
        cmocka_unit_test(a_few_unknown_fields_pass_and_more_do_not),
        cmocka_unit_test(no_memory_is_said_so),
        cmocka_unit_test(parameters_come_back),
        cmocka_unit_test(damaged_parameters_are_refused_by_name),
        cmocka_unit_test(signatures_come_back),
        cmocka_unit_test(each_bad_signature_field_is_named),
        cmocka_unit_test(key_requirements_come_back),
        cmocka_unit_test(each_bad_key_requirement_is_named),
        cmocka_unit_test(an_element_on_a_key_without_one_is_refused),
        cmocka_unit_test(seeds_are_whole_and_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
