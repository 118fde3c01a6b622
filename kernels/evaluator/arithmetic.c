/*
 * Operations without a key. Batch entries are worked on together where a kernel treats all components alike
 * (entries are then just more components), and one after the other where component 0 is special.
 */
#include "kernels/evaluator/evaluator_internal.h"

#include <string.h>

static uint32_t max_u32(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

/* one component of all batch entries */
static kernel_poly value_component(const ckks_value *v, uint32_t component, uint32_t level, uint32_t n) {
    kernel_poly p = value_part(v, 0, component, 1, level, n);
    p.component_count = v->signature.batch_count;
    p.component_stride = value_stride(v);
    return p;
}

/* A batch whose operands have different component counts: component by component, all entries in one launch;
 * what one side lacks counts zero. */
static ckks_status combine_parts(evaluator *ev, kernel_id kernel, const ckks_value *out, const ckks_value *a,
                                 const ckks_value *b, ckks_error *err) {
    const uint32_t level = value_level(a), n = evaluator_n(ev);
    ckks_status rc = CKKS_OK;
    for (uint32_t c = 0; c < out->signature.component_count && rc == CKKS_OK; c++) {
        const kernel_poly to = value_component(out, c, level, n);
        if (c >= b->signature.component_count)
            rc = launch_unary(ev, KERNEL_COPY, to, value_component(a, c, level, n), err);
        else if (c >= a->signature.component_count)
            rc = launch_unary(ev, kernel == KERNEL_SUBTRACT ? KERNEL_NEGATE : KERNEL_COPY, to,
                              value_component(b, c, level, n), err);
        else
            rc = launch_binary(ev, kernel, to, value_component(a, c, level, n),
                               value_component(b, c, level, n), err);
    }
    return rc;
}

/* out = a op b for two ciphertexts */
static ckks_status combine(evaluator *ev, kernel_id kernel, ckks_value *out, const ckks_value *a,
                           const ckks_value *b, ckks_error *err) {
    ckks_status rc;
    ckks_value v = {0};
    const uint32_t level = value_level(a), batch = a->signature.batch_count;
    const uint32_t components = max_u32(a->signature.component_count, b->signature.component_count);
    if ((rc = value_acquire(ev, &v, components, batch, level, a->signature.scale, err)) != CKKS_OK) goto out;
    if (a->signature.component_count == b->signature.component_count) {
        rc = launch_binary(ev, kernel, value_all(&v, level), value_all(a, level), value_all(b, level), err);
    } else if (batch == 1) {
        rc = launch_binary(ev, kernel, value_all(&v, level), value_all(a, level), value_all(b, level), err);
    } else {
        rc = combine_parts(ev, kernel, &v, a, b, err);
    }
    if (rc == CKKS_OK) *out = v, v = (ckks_value){0};
out:
    evaluator_release(ev, &v);
    return rc;
}

static ckks_status combine_checked(evaluator *ev, kernel_id kernel, ckks_value *out, const ckks_value *a,
                                   const ckks_value *b, ckks_error *err) {
    ckks_status rc;
    memset(out, 0, sizeof *out);
    if ((rc = value_check(ev, a, VALUE_CIPHERTEXT, 0, err)) != CKKS_OK) return rc;
    if ((rc = value_check(ev, b, VALUE_CIPHERTEXT, 0, err)) != CKKS_OK) return rc;
    if ((rc = value_check_pair(a, b, true, err)) != CKKS_OK) return rc;
    return combine(ev, kernel, out, a, b, err);
}

ckks_status evaluator_add(evaluator *ev, ckks_value *out, const ckks_value *a, const ckks_value *b,
                          ckks_error *err) {
    return combine_checked(ev, KERNEL_ADD, out, a, b, err);
}

ckks_status evaluator_subtract(evaluator *ev, ckks_value *out, const ckks_value *a, const ckks_value *b,
                               ckks_error *err) {
    return combine_checked(ev, KERNEL_SUBTRACT, out, a, b, err);
}

ckks_status evaluator_negate(evaluator *ev, ckks_value *out, const ckks_value *a, ckks_error *err) {
    ckks_status rc;
    ckks_value v = {0};
    memset(out, 0, sizeof *out);
    if ((rc = value_check(ev, a, VALUE_CIPHERTEXT, 0, err)) != CKKS_OK) return rc;
    const uint32_t level = value_level(a);
    if ((rc = value_acquire(ev, &v, a->signature.component_count, a->signature.batch_count, level,
                            a->signature.scale, err)) != CKKS_OK)
        return rc;
    rc = launch_unary(ev, KERNEL_NEGATE, value_all(&v, level), value_all(a, level), err);
    if (rc == CKKS_OK)
        *out = v;
    else
        evaluator_release(ev, &v);
    return rc;
}

/* The plaintext is one polynomial for all batch entries. */
static ckks_status plain_check(const evaluator *ev, const ckks_value *a, const ckks_value *plain,
                               bool with_scale, ckks_error *err) {
    ckks_status rc;
    if ((rc = value_check(ev, a, VALUE_CIPHERTEXT, 0, err)) != CKKS_OK) return rc;
    if ((rc = value_check(ev, plain, VALUE_PLAINTEXT, 1, err)) != CKKS_OK) return rc;
    if (plain->signature.batch_count != 1)
        return ckks_error_set(err, CKKS_SIGNATURE_MISMATCH, "batch_count", "a plaintext of %u entries",
                              plain->signature.batch_count);
    ckks_value one = *a;
    one.signature.batch_count = 1;
    return value_check_pair(&one, plain, with_scale, err);
}

ckks_status evaluator_add_plain(evaluator *ev, ckks_value *out, const ckks_value *a, const ckks_value *plain,
                                ckks_error *err) {
    ckks_status rc;
    ckks_value v = {0};
    memset(out, 0, sizeof *out);
    if ((rc = plain_check(ev, a, plain, true, err)) != CKKS_OK) return rc;
    const uint32_t level = value_level(a), n = evaluator_n(ev);
    rc = value_acquire(ev, &v, a->signature.component_count, a->signature.batch_count, level,
                       a->signature.scale, err);
    for (uint32_t i = 0; i < a->signature.batch_count && rc == CKKS_OK; i++)
        rc = launch_binary(ev, KERNEL_ADD_PLAIN, value_entry(&v, i, level, n), value_entry(a, i, level, n),
                           value_all(plain, level), err);
    if (rc == CKKS_OK)
        *out = v;
    else
        evaluator_release(ev, &v);
    return rc;
}

ckks_status evaluator_multiply_plain(evaluator *ev, ckks_value *out, const ckks_value *a,
                                     const ckks_value *plain, ckks_error *err) {
    ckks_status rc;
    ckks_value v = {0};
    memset(out, 0, sizeof *out);
    if ((rc = plain_check(ev, a, plain, false, err)) != CKKS_OK) return rc;
    const uint32_t level = value_level(a);
    rc = value_acquire(ev, &v, a->signature.component_count, a->signature.batch_count, level,
                       a->signature.scale * plain->signature.scale, err);
    if (rc == CKKS_OK)
        rc = launch_binary(ev, KERNEL_MULTIPLY_PLAIN, value_all(&v, level), value_all(a, level),
                           value_all(plain, level), err);
    if (rc == CKKS_OK)
        *out = v;
    else
        evaluator_release(ev, &v);
    return rc;
}

ckks_status evaluator_add_constant(evaluator *ev, ckks_value *out, const ckks_value *a, double constant,
                                   ckks_error *err) {
    ckks_status rc;
    ckks_value v = {0};
    memset(out, 0, sizeof *out);
    if ((rc = value_check(ev, a, VALUE_CIPHERTEXT, 0, err)) != CKKS_OK) return rc;
    const uint32_t level = value_level(a);
    rc = value_acquire(ev, &v, a->signature.component_count, a->signature.batch_count, level,
                       a->signature.scale, err);
    if (rc == CKKS_OK)
        rc = launch_constant(ev, KERNEL_ADD_SCALARS, value_all(&v, level), value_all(a, level), constant,
                             a->signature.scale, a->signature.component_count, err);
    if (rc == CKKS_OK)
        *out = v;
    else
        evaluator_release(ev, &v);
    return rc;
}

ckks_status evaluator_multiply_constant(evaluator *ev, ckks_value *out, const ckks_value *a, double constant,
                                        double constant_scale, ckks_error *err) {
    ckks_status rc;
    ckks_value v = {0};
    memset(out, 0, sizeof *out);
    if ((rc = value_check(ev, a, VALUE_CIPHERTEXT, 0, err)) != CKKS_OK) return rc;
    const uint32_t level = value_level(a);
    rc = value_acquire(ev, &v, a->signature.component_count, a->signature.batch_count, level,
                       a->signature.scale * constant_scale, err);
    if (rc == CKKS_OK)
        rc = launch_constant(ev, KERNEL_MULTIPLY_SCALARS, value_all(&v, level), value_all(a, level), constant,
                             constant_scale, 0, err);
    if (rc == CKKS_OK)
        *out = v;
    else
        evaluator_release(ev, &v);
    return rc;
}

ckks_status evaluator_multiply(evaluator *ev, ckks_value *out, const ckks_value *a, const ckks_value *b,
                               ckks_error *err) {
    ckks_status rc;
    ckks_value v = {0};
    memset(out, 0, sizeof *out);
    if ((rc = value_check(ev, a, VALUE_CIPHERTEXT, 2, err)) != CKKS_OK) return rc;
    if ((rc = value_check(ev, b, VALUE_CIPHERTEXT, 2, err)) != CKKS_OK) return rc;
    if ((rc = value_check_pair(a, b, false, err)) != CKKS_OK) return rc;
    const uint32_t level = value_level(a);
    rc = value_acquire(ev, &v, 3, a->signature.batch_count, level, a->signature.scale * b->signature.scale,
                       err);
    if (rc == CKKS_OK)
        rc = launch_binary(ev, KERNEL_MULTIPLY, value_all(&v, level), value_all(a, level),
                           value_all(b, level), err);
    if (rc == CKKS_OK)
        *out = v;
    else
        evaluator_release(ev, &v);
    return rc;
}

ckks_status evaluator_square(evaluator *ev, ckks_value *out, const ckks_value *a, ckks_error *err) {
    ckks_status rc;
    ckks_value v = {0};
    memset(out, 0, sizeof *out);
    if ((rc = value_check(ev, a, VALUE_CIPHERTEXT, 2, err)) != CKKS_OK) return rc;
    const uint32_t level = value_level(a);
    rc = value_acquire(ev, &v, 3, a->signature.batch_count, level, a->signature.scale * a->signature.scale,
                       err);
    if (rc == CKKS_OK) rc = launch_unary(ev, KERNEL_SQUARE, value_all(&v, level), value_all(a, level), err);
    if (rc == CKKS_OK)
        *out = v;
    else
        evaluator_release(ev, &v);
    return rc;
}

ckks_status launch_rescale(evaluator *ev, kernel_poly out, kernel_poly a, ckks_error *err) {
    kernel_rescale_args args = {.tables = ev->tables, .out = out, .a = a};
    const uint64_t words = (uint64_t)a.component_count * a.basis.q_count * evaluator_n(ev);
    ckks_status rc = scratch_acquire(ev, &args.scratch, words, err);
    if (rc == CKKS_OK) rc = device_launch(ev->stream, KERNEL_RESCALE, &args, err);
    scratch_release(ev, &args.scratch);
    return rc;
}

ckks_status evaluator_rescale(evaluator *ev, ckks_value *out, const ckks_value *a, ckks_error *err) {
    ckks_status rc;
    ckks_value v = {0};
    memset(out, 0, sizeof *out);
    if ((rc = value_check(ev, a, VALUE_CIPHERTEXT, 0, err)) != CKKS_OK) return rc;
    const uint32_t level = value_level(a);
    if (!level)
        return ckks_error_set(err, CKKS_SIGNATURE_MISMATCH, "limb_count", "no prime is left to rescale by");
    rc = value_acquire(ev, &v, a->signature.component_count, a->signature.batch_count, level - 1,
                       scale_rescaled(evaluator_params(ev), a->signature.scale, level), err);
    if (rc == CKKS_OK) rc = launch_rescale(ev, value_all(&v, level - 1), value_all(a, level), err);
    if (rc == CKKS_OK)
        *out = v;
    else
        evaluator_release(ev, &v);
    return rc;
}

/* both kernels in one launch, into `v` */
static ckks_status launch_multiply_rescale(evaluator *ev, const ckks_value *v, const ckks_value *a,
                                           const ckks_value *plain, ckks_error *err) {
    const uint32_t level = value_level(a);
    kernel_multiply_rescale_args args = {.tables = ev->tables,
                                         .out = value_all(v, level - 1),
                                         .a = value_all(a, level),
                                         .b = value_all(plain, level)};
    ckks_status rc =
        scratch_acquire(ev, &args.scratch, (uint64_t)args.a.component_count * evaluator_n(ev), err);
    if (rc == CKKS_OK) rc = device_launch(ev->stream, KERNEL_MULTIPLY_RESCALE, &args, err);
    scratch_release(ev, &args.scratch);
    return rc;
}

ckks_status evaluator_multiply_plain_rescale(evaluator *ev, ckks_value *out, const ckks_value *a,
                                             const ckks_value *plain, ckks_error *err) {
    ckks_status rc;
    ckks_value v = {0};
    memset(out, 0, sizeof *out);
    if ((rc = plain_check(ev, a, plain, false, err)) != CKKS_OK) return rc;
    const uint32_t level = value_level(a);
    const double scale = a->signature.scale * plain->signature.scale;
    if (!level)
        return ckks_error_set(err, CKKS_SIGNATURE_MISMATCH, "limb_count", "no prime is left to rescale by");
    if (!device_has_kernel(device_stream_device(ev->stream), KERNEL_MULTIPLY_RESCALE)) {
        ckks_value product = {0};
        const ckks_value *const places = ev->places;
        const uint32_t place_count = ev->place_count;
        evaluator_place(ev, NULL, 0);
        rc = evaluator_multiply_plain(ev, &product, a, plain, err);
        evaluator_place(ev, places, place_count);
        if (rc == CKKS_OK) rc = evaluator_rescale(ev, out, &product, err);
        evaluator_release(ev, &product);
        return rc;
    }
    rc = value_acquire(ev, &v, a->signature.component_count, a->signature.batch_count, level - 1,
                       scale_rescaled(evaluator_params(ev), scale, level), err);
    if (rc == CKKS_OK) rc = launch_multiply_rescale(ev, &v, a, plain, err);
    if (rc == CKKS_OK)
        *out = v;
    else
        evaluator_release(ev, &v);
    return rc;
}

ckks_status evaluator_drop_level(evaluator *ev, ckks_value *out, const ckks_value *a, uint32_t level,
                                 ckks_error *err) {
    ckks_status rc;
    ckks_value v = {0};
    memset(out, 0, sizeof *out);
    if ((rc = value_check(ev, a, VALUE_CIPHERTEXT, 0, err)) != CKKS_OK) return rc;
    if (level > value_level(a))
        return ckks_error_set(err, CKKS_SIGNATURE_MISMATCH, "limb_count",
                              "level %u is above the value's level %u", level, value_level(a));
    rc = value_acquire(ev, &v, a->signature.component_count, a->signature.batch_count, level,
                       a->signature.scale, err);
    if (rc == CKKS_OK)
        rc = launch_unary(ev, KERNEL_COPY, value_all(&v, level), value_all(a, value_level(a)), err);
    if (rc == CKKS_OK)
        *out = v;
    else
        evaluator_release(ev, &v);
    return rc;
}
