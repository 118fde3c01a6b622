/*
 * What the evaluator's files share: views of values as kernel polynomials, checks, scratch, and the key
 * switch that relinearisation, rotation and polynomials are made of. Included by kernels/evaluator only.
 */
#ifndef CKKS_EVALUATOR_INTERNAL_H
#define CKKS_EVALUATOR_INTERNAL_H

#include "kernels/evaluator/evaluator.h"
#include "kernels/scheme/encoder.h"
#include "kernels/scheme/internal.h"

#include <string.h>

static inline const ckks_params *evaluator_params(const evaluator *ev) {
    return context_params(ev->context);
}
static inline uint32_t evaluator_n(const evaluator *ev) {
    return params_n(evaluator_params(ev));
}
static inline kernel_basis basis_q(uint32_t level) {
    return (kernel_basis){0, level + 1, 0};
}
static inline kernel_basis basis_qp(const ckks_params *params, uint32_t level) {
    return (kernel_basis){0, level + 1, params->p_count};
}

/* All components of all batch entries, one after the other, cut to `level` (at most the value's own). */
static inline kernel_poly value_all(const ckks_value *v, uint32_t level) {
    return (kernel_poly){v->words, v->signature.batch_count * v->signature.component_count,
                         v->signature.limb_count, basis_q(level)};
}
/* Components first .. first + count - 1 of one batch entry, cut to `level`. */
static inline kernel_poly value_part(const ckks_value *v, uint32_t entry, uint32_t first, uint32_t count,
                                     uint32_t level, uint32_t n) {
    const uint64_t at = (uint64_t)entry * v->signature.component_count + first;
    return (kernel_poly){v->words + at * v->signature.limb_count * n, count, v->signature.limb_count,
                         basis_q(level)};
}
static inline kernel_poly value_entry(const ckks_value *v, uint32_t entry, uint32_t level, uint32_t n) {
    return value_part(v, entry, 0, v->signature.component_count, level, n);
}
/* limbs from one batch entry to the next */
static inline uint32_t value_stride(const ckks_value *v) {
    return v->signature.component_count * v->signature.limb_count;
}

/* CKKS_SIGNATURE_MISMATCH naming the field unless v is a ciphertext (plaintext) of these parameters on this
 * device, in the evaluation domain and basis Q, with `component_count` components (0 = any up to 3). */
ckks_status value_check(const evaluator *ev, const ckks_value *v, value_kind kind, uint32_t component_count,
                        ckks_error *err);
/* a and b agree in batch count and level; with_scale: and in scale */
ckks_status value_check_pair(const ckks_value *a, const ckks_value *b, bool with_scale, ckks_error *err);
ckks_status key_check(const evaluator *ev, uint32_t key, const char *field, ckks_error *err);

/* place_take: memory of `count` results with this signature, one after the other as one block, where the
 * caller of the operation has offered it; else NULL. */
uint64_t *place_take(evaluator *ev, const value_signature *signature, uint32_t count);
/* value_acquire: a ciphertext in workspace memory, or where the caller placed it. CKKS_OUT_OF_RANGE (field
 * "scale") unless the scale is a positive normal number. */
ckks_status value_acquire(evaluator *ev, ckks_value *out, uint32_t component_count, uint32_t batch_count,
                          uint32_t level, double scale, ckks_error *err);
ckks_status scratch_acquire(evaluator *ev, uint64_t **out, uint64_t words, ckks_error *err);
void scratch_release(evaluator *ev, uint64_t **words);

/* launches, cut to the polynomials given */
ckks_status launch_unary(evaluator *ev, kernel_id kernel, kernel_poly out, kernel_poly a, ckks_error *err);
ckks_status launch_binary(evaluator *ev, kernel_id kernel, kernel_poly out, kernel_poly a, kernel_poly b,
                          ckks_error *err);
/* constant encoded at `scale`; every: as in kernel_scalars_args */
ckks_status launch_constant(evaluator *ev, kernel_id kernel, kernel_poly out, kernel_poly a, double constant,
                            double scale, uint32_t every, ckks_error *err);
/* every digit of component `component` of each batch entry of a, from `first` entries on: out is scratch that
 * the caller releases, [count][digit][limb][N] */
ckks_status launch_mod_up(evaluator *ev, uint64_t **digits, const uint64_t *words, uint32_t batch_stride,
                          uint32_t batch_count, uint32_t level, ckks_error *err);
ckks_status launch_mod_down(evaluator *ev, kernel_mod_down_args *args, ckks_error *err);
ckks_status launch_rescale(evaluator *ev, kernel_poly out, kernel_poly a, ckks_error *err);

/* key_switch_into: out = (a.0, a.1 as far as kept) + switched a.from, by `key`, through galois_element. out
 * [batch][2][limb] holds level + 1 limbs, or level where with_rescale. kept_count: 1 (rotation) or 2
 * (relinearisation). */
ckks_status key_switch_into(evaluator *ev, ckks_value *out, const ckks_value *a, uint32_t from,
                            uint32_t kept_count, uint32_t key, uint32_t galois_element, bool with_rescale,
                            ckks_error *err);

/* scales are compared bit for bit */
static inline bool scale_equal(double a, double b) {
    uint64_t x, y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    return x == y;
}
/* RN(scale / q_level) */
static inline double scale_rescaled(const ckks_params *params, double scale, uint32_t level) {
    return scale / (double)params->prime[level];
}

/* descriptors_upload: device copy of a host list, made before any recording. NULL for an empty list. Blocks.
 */
ckks_status descriptors_upload(void **out, device *dev, const void *list, uint64_t bytes, ckks_error *err);
/* CKKS_INVALID_ARGUMENT naming `field` unless each element is odd and below 2N and, with `is_set`, none comes
 * twice. */
ckks_status steps_check(const ckks_params *params, const galois_step *steps, uint32_t count, bool is_set,
                        const char *field, ckks_error *err);

#endif
