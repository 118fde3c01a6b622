/* C3: every field of a signature that recording froze is compared exactly, and so is the lineage. */
#include "tests/support/program_fixture.h"

#include <math.h>
#include <string.h>

static ckks_status copy_one(test_program *t, const graph_input *inputs, resident_keys *keys,
                            ckks_error *err) {
    graph_handle handle;
    return graph_program_copy_inputs_from(t->program, &handle, inputs, t->config.input_count, keys, err);
}

typedef void (*spoil)(value_signature *s);
static void spoil_kind(value_signature *s) {
    s->kind = VALUE_PLAINTEXT;
}
static void spoil_schema(value_signature *s) {
    s->schema_version++;
}
static void spoil_parameters(value_signature *s) {
    s->parameter_id[31] ^= 1;
}
static void spoil_components(value_signature *s) {
    s->component_count = 3;
}
static void spoil_batch(value_signature *s) {
    s->batch_count = 2;
}
static void spoil_limbs(value_signature *s) {
    s->limb_count--;
}
static void spoil_scale(value_signature *s) {
    s->scale = nextafter(s->scale, 0);
}
static void spoil_domain(value_signature *s) {
    s->domain = VALUE_COEFFICIENT;
}
static void spoil_basis(value_signature *s) {
    s->basis = VALUE_BASIS_QP;
}
static void spoil_bytes(value_signature *s) {
    s->bytes += 8;
}
static void spoil_alignment(value_signature *s) {
    s->alignment /= 2;
}
static void spoil_device(value_signature *s) {
    s->device++;
}

static void copy_refuses_each_field_that_differs(void **state) {
    (void)state;
    static const struct {
        const char *field;
        spoil spoil;
    } cases[] = {
        {"kind", spoil_kind},
        {"schema_version", spoil_schema},
        {"parameter_id", spoil_parameters},
        {"component_count", spoil_components},
        {"batch_count", spoil_batch},
        {"limb_count", spoil_limbs},
        {"scale", spoil_scale},
        {"domain", spoil_domain},
        {"basis", spoil_basis},
        {"bytes", spoil_bytes},
        {"alignment", spoil_alignment},
        {"device", spoil_device},
    };
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL), *b = sample_create(&f, 2, NULL);
    test_program t;
    test_program_start(&t, &f, NULL, PROGRAM_MULTIPLY);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int which = 0; which < 2; which++) {
            ckks_error err = {0};
            graph_input inputs[2] = {sample_packed(a), sample_packed(b)};
            cases[i].spoil(&inputs[which].signature);
            assert_status(copy_one(&t, inputs, f.keys, &err), CKKS_SIGNATURE_MISMATCH);
            assert_string_equal(err.field, cases[i].field);
        }
    assert_works(&t, a, b);
    test_program_fini(&t);
    sample_destroy(a), sample_destroy(b);
    program_fixture_close(&f);
}

static void a_scale_off_by_one_ulp_is_named_with_both_values(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL);
    test_program t;
    test_program_start(&t, &f, NULL, PROGRAM_ROTATE);
    for (int up = 0; up < 2; up++) {
        ckks_error err = {0};
        graph_input input = sample_packed(a);
        input.signature.scale = nextafter(FIXTURE_SCALE, up ? INFINITY : 0);
        assert_status(copy_one(&t, &input, f.keys, &err), CKKS_SIGNATURE_MISMATCH);
        assert_string_equal(err.field, "scale");
        assert_non_null(strstr(err.message, "0x1p+35"));
    }
    test_program_fini(&t);
    sample_destroy(a);
    program_fixture_close(&f);
}

static void copy_refuses_inputs_and_keys_of_different_secrets(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    secret_key *other = fixture_secret_create(&f);
    resident_keys *other_keys = fixture_keys_create(&f, other);
    sample *a = sample_create(&f, 1, NULL), *b = sample_create(&f, 2, NULL),
           *stranger = sample_create(&f, 3, other);
    test_program t;
    test_program_start(&t, &f, NULL, PROGRAM_MULTIPLY);
    const struct {
        sample *a, *b;
        resident_keys *keys;
        const char *field;
    } cases[] = {
        {stranger, b, f.keys, "input 0"},
        {a, stranger, f.keys, "input 1"},
        {a, b, other_keys, "input 0"},
        {a, stranger, other_keys, "input 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ckks_error err = {0};
        const graph_input inputs[2] = {sample_packed(cases[i].a), sample_packed(cases[i].b)};
        assert_status(copy_one(&t, inputs, cases[i].keys, &err), CKKS_LINEAGE_MISMATCH);
        assert_string_equal(err.field, cases[i].field);
    }
    assert_works(&t, a, b);
    test_program_fini(&t);
    /* a program without keys still wants its inputs to be of one secret */
    test_program_start(&t, &f, NULL, PROGRAM_ADD);
    const graph_input mixed[2] = {sample_packed(a), sample_packed(stranger)};
    assert_status(copy_one(&t, mixed, NULL, NULL), CKKS_LINEAGE_MISMATCH);
    const graph_input good[2] = {sample_packed(a), sample_packed(b)};
    assert_ok(copy_one(&t, good, NULL, NULL));
    test_program_fini(&t);
    sample_destroy(a), sample_destroy(b), sample_destroy(stranger);
    resident_keys_release(other_keys);
    secret_key_destroy(other);
    program_fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copy_refuses_each_field_that_differs),
        cmocka_unit_test(a_scale_off_by_one_ulp_is_named_with_both_values),
        cmocka_unit_test(copy_refuses_inputs_and_keys_of_different_secrets),
    };
    return program_suite("C3 signatures", tests);
}
