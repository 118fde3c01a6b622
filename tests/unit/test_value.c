/* Signatures: what a ciphertext's is, and that every field is compared by name. */
#include "kernels/value.h"
#include "tests/support/fixtures.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static value_signature signature_of(void) {
    const ckks_params p = fixture_params(10, 4, 1, 1);
    value_signature s;
    value_signature_ciphertext(&s, &p, 3, 2, 0x1.8p40, 7);
    assert_memory_equal(s.parameter_id, p.id, sizeof p.id);
    return s;
}

static void a_ciphertext_signature_states_shape_scale_and_bytes(void **state) {
    (void)state;
    const value_signature s = signature_of();
    assert_int_equal(s.kind, VALUE_CIPHERTEXT);
    assert_int_equal(s.schema_version, VALUE_SCHEMA_VERSION);
    assert_int_equal(s.component_count, 3);
    assert_int_equal(s.batch_count, 1);
    assert_int_equal(s.limb_count, 3);
    assert_int_equal(s.domain, VALUE_EVALUATION);
    assert_int_equal(s.basis, VALUE_BASIS_Q);
    assert_true(s.scale == 0x1.8p40);
    assert_int_equal(s.bytes, 3 * 3 * 1024 * 8);
    assert_int_equal(s.alignment, VALUE_ALIGNMENT);
    assert_int_equal(s.device, 7);
    ckks_error err = {0};
    const value_signature same = signature_of();
    assert_int_equal(value_signature_compare(&s, &same, &err), CKKS_OK);
    assert_int_equal(err.code, CKKS_OK);
    const ckks_value v = {.signature = s};
    assert_int_equal(value_level(&v), 2);
}

static void each_differing_field_is_named(void **state) {
    (void)state;
    const value_signature s = signature_of();
    value_signature t[11];
    for (int i = 0; i < 11; i++) t[i] = s;
    t[0].kind = VALUE_PLAINTEXT, t[1].schema_version = 2, t[2].parameter_id[31] ^= 1,
    t[3].component_count = 2;
    t[4].batch_count = 2, t[5].limb_count = 2, t[6].domain = VALUE_COEFFICIENT, t[7].basis = VALUE_BASIS_QP;
    t[8].bytes = (1ull << 40) + s.bytes, t[9].alignment = 64, t[10].device = 8;
    static const char *const field[11] = {"kind",        "schema_version", "parameter_id", "component_count",
                                          "batch_count", "limb_count",     "domain",       "basis",
                                          "bytes",       "alignment",      "device"};
    for (int i = 0; i < 11; i++) {
        ckks_error err = {0};
        assert_int_equal(value_signature_compare(&s, &t[i], &err), CKKS_SIGNATURE_MISMATCH);
        assert_string_equal(err.field, field[i]);
        assert_non_null(strstr(err.message, "expected"));
        assert_int_equal(value_signature_compare(&s, &t[i], NULL), CKKS_SIGNATURE_MISMATCH);
    }
}

static void scales_are_compared_bit_for_bit(void **state) {
    (void)state;
    value_signature s = signature_of(), t = s;
    ckks_error err = {0};
    t.scale = nextafter(s.scale, INFINITY);
    assert_int_equal(value_signature_compare(&s, &t, &err), CKKS_SIGNATURE_MISMATCH);
    assert_string_equal(err.field, "scale");
    assert_non_null(strstr(err.message, "0x1.8p+40"));
    assert_non_null(strstr(err.message, "0x1.8000000000001p+40"));
    s.scale = 0.0, t.scale = -0.0; /* equal as numbers */
    assert_int_equal(value_signature_compare(&s, &t, NULL), CKKS_SIGNATURE_MISMATCH);
    s.scale = t.scale = (double)NAN; /* unequal as numbers, the same bits */
    assert_int_equal(value_signature_compare(&s, &t, NULL), CKKS_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_ciphertext_signature_states_shape_scale_and_bytes),
        cmocka_unit_test(each_differing_field_is_named),
        cmocka_unit_test(scales_are_compared_bit_for_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
