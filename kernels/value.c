#include "kernels/value.h"

#include "kernels/base/bytes.h"

void value_signature_ciphertext(value_signature *out, const ckks_params *params, uint32_t component_count,
                                uint32_t level, double scale, uint32_t device) {
    /* zero first: padding is then defined, so that signatures may be hashed or copied whole */
    memset(out, 0, sizeof *out);
    out->kind = VALUE_CIPHERTEXT;
    out->schema_version = VALUE_SCHEMA_VERSION;
    memcpy(out->parameter_id, params->id, sizeof out->parameter_id);
    out->component_count = component_count;
    out->batch_count = 1;
    out->limb_count = level + 1;
    out->domain = VALUE_EVALUATION;
    out->basis = VALUE_BASIS_Q;
    out->scale = scale;
    out->bytes = (uint64_t)component_count * (level + 1) * params_n(params) * sizeof(uint64_t);
    out->alignment = VALUE_ALIGNMENT;
    out->device = device;
}

static ckks_status differs(const char *field, uint64_t expected, uint64_t actual, ckks_error *err) {
    return ckks_error_set(err, CKKS_SIGNATURE_MISMATCH, field, "expected %llu, got %llu",
                          (unsigned long long)expected, (unsigned long long)actual);
}

static ckks_status id_differs(const uint8_t *expected, const uint8_t *actual, ckks_error *err) {
    char a[2 * CKKS_PARAMETER_ID_BYTES + 1], b[2 * CKKS_PARAMETER_ID_BYTES + 1];
    return ckks_error_set(err, CKKS_SIGNATURE_MISMATCH, "parameter_id", "expected %s, got %s",
                          hex_encode(a, expected, CKKS_PARAMETER_ID_BYTES),
                          hex_encode(b, actual, CKKS_PARAMETER_ID_BYTES));
}

static uint64_t double_bits(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

ckks_status value_signature_compare(const value_signature *expected, const value_signature *actual,
                                    ckks_error *err) {
#define COMPARE(field)                                                                                       \
    if (expected->field != actual->field) return differs(#field, expected->field, actual->field, err)
    COMPARE(kind);
    COMPARE(schema_version);
    if (memcmp(expected->parameter_id, actual->parameter_id, CKKS_PARAMETER_ID_BYTES) != 0)
        return id_differs(expected->parameter_id, actual->parameter_id, err);
    COMPARE(component_count);
    COMPARE(batch_count);
    COMPARE(limb_count);
    COMPARE(domain);
    COMPARE(basis);
    const uint64_t expected_bits = double_bits(expected->scale), actual_bits = double_bits(actual->scale);
    if (expected_bits != actual_bits)
        return ckks_error_set(err, CKKS_SIGNATURE_MISMATCH, "scale",
                              "expected %a (bits %016llx), got %a (bits %016llx)", expected->scale,
                              (unsigned long long)expected_bits, actual->scale,
                              (unsigned long long)actual_bits);
    COMPARE(bytes);
    COMPARE(alignment);
    COMPARE(device);
#undef COMPARE
    return CKKS_OK;
}
