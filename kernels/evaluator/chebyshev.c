/*
 * Executes the schedule of a polynomial. Products are added up with three components and relinearised once
 * per step, in the same division that rescales. Values of a higher level are read through a view of their
 * first limbs: dropping a level copies nothing.
 */
#include "kernels/evaluator/chebyshev.h"

#include "kernels/evaluator/evaluator_internal.h"

#include <string.h>

/* The evaluation of one step. */
typedef struct step_run {
    evaluator *ev;
    const chebyshev_plan *plan;
    const chebyshev_step *step;
    const ckks_value *values; /* by value number */
    uint32_t batch;
    ckks_value sum; /* zeroed until the first summand */
    ckks_error *err;
} step_run;

static ckks_status summand_acquire(step_run *run, ckks_value *out, uint32_t component_count) {
    return value_acquire(run->ev, out, component_count, run->batch, run->step->level, run->step->sum_scale,
                         run->err);
}

/* sum += summand; takes the summand over */
static ckks_status accumulate(step_run *run, ckks_value *summand) {
    ckks_value next = {0};
    if (!run->sum.words) {
        run->sum = *summand, *summand = (ckks_value){0};
        return CKKS_OK;
    }
    const ckks_status rc = evaluator_add(run->ev, &next, &run->sum, summand, run->err);
    evaluator_release(run->ev, summand);
    if (rc != CKKS_OK) return rc;
    evaluator_release(run->ev, &run->sum);
    run->sum = next;
    return CKKS_OK;
}

static ckks_status add_product(step_run *run, chebyshev_product product) {
    ckks_status rc;
    ckks_value summand = {0};
    const ckks_value *left = &run->values[product.left], *right = &run->values[product.right];
    const uint32_t level = run->step->level;
    rc = summand_acquire(run, &summand, 3);
    if (rc == CKKS_OK) {
        const kernel_poly out = value_all(&summand, level), a = value_all(left, level);
        rc = left == right
                 ? launch_unary(run->ev, KERNEL_SQUARE, out, a, run->err)
                 : launch_binary(run->ev, KERNEL_MULTIPLY, out, a, value_all(right, level), run->err);
    }
    if (rc == CKKS_OK) rc = accumulate(run, &summand);
    evaluator_release(run->ev, &summand);
    return rc;
}

static ckks_status double_sum(step_run *run) {
    ckks_value next = {0};
    const ckks_status rc = evaluator_add(run->ev, &next, &run->sum, &run->sum, run->err);
    if (rc != CKKS_OK) return rc;
    evaluator_release(run->ev, &run->sum);
    run->sum = next;
    return CKKS_OK;
}

static ckks_status add_scaled(step_run *run, chebyshev_term term) {
    ckks_status rc;
    ckks_value summand = {0};
    const uint32_t level = run->step->level;
    rc = summand_acquire(run, &summand, 2);
    if (rc == CKKS_OK)
        rc = launch_constant(run->ev, KERNEL_MULTIPLY_SCALARS, value_all(&summand, level),
                             value_all(&run->values[term.value], level), term.coefficient,
                             term.constant_scale, 0, run->err);
    if (rc == CKKS_OK) rc = accumulate(run, &summand);
    evaluator_release(run->ev, &summand);
    return rc;
}

static ckks_status add_constant(step_run *run) {
    ckks_value next = {0};
    const ckks_status rc = evaluator_add_constant(run->ev, &next, &run->sum, run->step->constant, run->err);
    if (rc != CKKS_OK) return rc;
    evaluator_release(run->ev, &run->sum);
    run->sum = next;
    return CKKS_OK;
}

static ckks_status form_sum(step_run *run) {
    ckks_status rc;
    const chebyshev_step *s = run->step;
    for (uint32_t k = 0; k < s->product_count; k++)
        if ((rc = add_product(run, run->plan->products[s->first_product + k])) != CKKS_OK) return rc;
    if (s->product_count && s->product_factor == 2 && (rc = double_sum(run)) != CKKS_OK) return rc;
    for (uint32_t k = 0; k < s->term_count; k++)
        if ((rc = add_scaled(run, run->plan->terms[s->first_term + k])) != CKKS_OK) return rc;
    return s->constant != 0 ? add_constant(run) : CKKS_OK;
}

static ckks_status finish_step(step_run *run, ckks_value *out, uint32_t relin_key) {
    ckks_status rc;
    const uint32_t level = run->step->level;
    rc = value_acquire(run->ev, out, 2, run->batch, level - 1, run->step->scale, run->err);
    if (rc != CKKS_OK) return rc;
    rc = run->step->product_count
             ? key_switch_into(run->ev, out, &run->sum, 2, 2, relin_key, 1, true, run->err)
             : launch_rescale(run->ev, value_all(out, level - 1), value_all(&run->sum, level), run->err);
    if (rc != CKKS_OK) evaluator_release(run->ev, out);
    return rc;
}

static ckks_status input_check(const evaluator *ev, const chebyshev_plan *plan, const ckks_value *a,
                               uint32_t relin_key, ckks_error *err) {
    ckks_status rc;
    if ((rc = value_check(ev, a, VALUE_CIPHERTEXT, 2, err)) != CKKS_OK) return rc;
    if (memcmp(plan->parameter_id, a->signature.parameter_id, sizeof plan->parameter_id) != 0)
        return ckks_error_set(err, CKKS_SIGNATURE_MISMATCH, "parameter_id",
                              "the polynomial is scheduled for other parameters");
    if (value_level(a) != plan->level_in)
        return ckks_error_set(err, CKKS_SIGNATURE_MISMATCH, "limb_count",
                              "the polynomial is scheduled for level %u, the value is at level %u",
                              plan->level_in, value_level(a));
    if (!scale_equal(plan->scale_in, a->signature.scale))
        return ckks_error_set(err, CKKS_SIGNATURE_MISMATCH, "scale", "%a and %a differ", plan->scale_in,
                              a->signature.scale);
    return plan->product_count ? key_check(ev, relin_key, "relin_key", err) : CKKS_OK;
}

ckks_status evaluator_chebyshev(evaluator *ev, ckks_value *out, const chebyshev_plan *plan,
                                const ckks_value *a, uint32_t relin_key, ckks_error *err) {
    ckks_status rc;
    ckks_value values[CHEBYSHEV_STEPS_MAX + 1];
    uint32_t done = 0;
    memset(out, 0, sizeof *out);
    if ((rc = input_check(ev, plan, a, relin_key, err)) != CKKS_OK) return rc;
    values[0] = *a;
    for (; done < plan->step_count; done++) {
        step_run run = {.ev = ev,
                        .plan = plan,
                        .step = &plan->steps[done],
                        .values = values,
                        .batch = a->signature.batch_count,
                        .err = err};
        memset(&values[done + 1], 0, sizeof values[0]);
        if ((rc = form_sum(&run)) == CKKS_OK) rc = finish_step(&run, &values[done + 1], relin_key);
        evaluator_release(ev, &run.sum);
        if (rc != CKKS_OK) break;
        for (uint32_t i = 0; i < done; i++)
            if (plan->steps[i].last_use == done) evaluator_release(ev, &values[i + 1]);
    }
    if (rc == CKKS_OK) {
        *out = values[done];
        return CKKS_OK;
    }
    for (uint32_t i = 0; i < done; i++) evaluator_release(ev, &values[i + 1]);
    return rc;
}
