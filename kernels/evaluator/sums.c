/*
 * Inner sums and clear-matrix products.
 */
#include "kernels/evaluator/evaluator_internal.h"

#include <string.h>

ckks_status evaluator_inner_sum(evaluator *ev, ckks_value *out, const ckks_value *a, const galois_step *steps,
                                uint32_t step_count, ckks_error *err) {
    ckks_status rc;
    ckks_value sum = *a, rotated = {0}, next = {0};
    bool is_ours = false; /* the first sum is the caller's value */
    memset(out, 0, sizeof *out);
    if ((rc = value_check(ev, a, VALUE_CIPHERTEXT, 2, err)) != CKKS_OK) return rc;
    if (!step_count) return evaluator_drop_level(ev, out, a, value_level(a), err);
    for (uint32_t i = 0; i < step_count; i++) {
        if ((rc = evaluator_apply_galois(ev, &rotated, &sum, steps[i], err)) != CKKS_OK) goto out;
        if ((rc = evaluator_add(ev, &next, &sum, &rotated, err)) != CKKS_OK) goto out;
        evaluator_release(ev, &rotated);
        if (is_ours) evaluator_release(ev, &sum);
        sum = next, next = (ckks_value){0};
        is_ours = true;
    }
    *out = sum, is_ours = false;
out:
    evaluator_release(ev, &rotated);
    if (is_ours) evaluator_release(ev, &sum);
    return rc;
}

ckks_status evaluator_matrix_product(evaluator *ev, ckks_value *out, const ckks_value *a,
                                     const uint64_t *weight, const uint64_t *bias, uint32_t row_count,
                                     double weight_scale, ckks_error *err) {
    ckks_status rc;
    ckks_value v = {0};
    memset(out, 0, sizeof *out);
    if ((rc = value_check(ev, a, VALUE_CIPHERTEXT, 0, err)) != CKKS_OK) return rc;
    if (!row_count || !weight)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, row_count ? "weight" : "row_count",
                              "a matrix without weights");
    const uint32_t level = value_level(a);
    rc = value_acquire(ev, &v, a->signature.component_count, row_count, level,
                       a->signature.scale * weight_scale, err);
    if (rc != CKKS_OK) return rc;
    const kernel_matrix_product_args args = {
        .tables = ev->tables,
        .out = v.words,
        .in = a->words,
        .weight = weight,
        .bias = bias,
        .row_count = row_count,
        .column_count = a->signature.batch_count,
        .component_count = a->signature.component_count,
        .basis = basis_q(level),
    };
    rc = device_launch(ev->stream, KERNEL_MATRIX_PRODUCT, &args, err);
    if (rc == CKKS_OK)
        *out = v;
    else
        evaluator_release(ev, &v);
    return rc;
}
