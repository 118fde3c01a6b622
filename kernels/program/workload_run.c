/* The callable that a graph program records: a walk over the plan's operations. */
#include "kernels/program/workload_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ckks_status inner_sum(evaluator *ev, ckks_value *out, const ckks_value *a, const prepared_operation *o,
                             ckks_error *err) {
    return evaluator_inner_sum(ev, out, a, o->steps, o->step_count, err);
}

static ckks_status run_operation(evaluator *ev, const workload *w, uint32_t index, ckks_value *values,
                                 ckks_error *err) {
    const plan_operation *op = &w->p->operations[index];
    const prepared_operation *o = &w->operations[index];
    ckks_value *out = &values[op->first_output];
    const ckks_value *a = &values[op->a];
    switch ((plan_operation_kind)op->kind) {
    case PLAN_ADD:
        return evaluator_add(ev, out, a, &values[op->b], err);
    case PLAN_SUBTRACT:
        return evaluator_subtract(ev, out, a, &values[op->b], err);
    case PLAN_NEGATE:
        return evaluator_negate(ev, out, a, err);
    case PLAN_ADD_PLAIN:
        return evaluator_add_plain(ev, out, a, &o->plain, err);
    case PLAN_MULTIPLY_PLAIN:
        return evaluator_multiply_plain(ev, out, a, &o->plain, err);
    case PLAN_ADD_CONSTANT:
        return evaluator_add_constant(ev, out, a, op->constant, err);
    case PLAN_MULTIPLY_CONSTANT:
        return evaluator_multiply_constant(ev, out, a, op->constant, op->constant_scale, err);
    case PLAN_MULTIPLY:
        return evaluator_multiply(ev, out, a, &values[op->b], err);
    case PLAN_SQUARE:
        return evaluator_square(ev, out, a, err);
    case PLAN_RELINEARISE:
        return evaluator_relinearise(ev, out, a, o->key, op->with_rescale, err);
    case PLAN_RESCALE:
        return evaluator_rescale(ev, out, a, err);
    case PLAN_DROP_LEVEL:
        return evaluator_drop_level(ev, out, a, w->p->values[op->first_output].level, err);
    case PLAN_ROTATE:
    case PLAN_CONJUGATE:
        return evaluator_apply_galois(ev, out, a, o->steps[0], err);
    case PLAN_ROTATE_HOISTED:
        return evaluator_rotate_hoisted(ev, out, o->rotations, a, err);
    case PLAN_INNER_SUM:
        return inner_sum(ev, out, a, o, err);
    case PLAN_LINEAR_TRANSFORM:
        return op->output_count > 1
                   ? evaluator_linear_transform_many(ev, out, op->output_count, o->transform, a, err)
                   : evaluator_linear_transform(ev, out, o->transform, a, err);
    case PLAN_CHEBYSHEV:
        return evaluator_chebyshev(ev, out, o->polynomial, a, o->key, err);
    case PLAN_MATRIX_PRODUCT:
        return evaluator_matrix_product(ev, out, a, o->matrix, o->bias, w->p->matrices[op->matrix].row_count,
                                        w->p->matrices[op->matrix].scale, err);
    case PLAN_RERANDOMISE:
        return evaluator_rerandomise(ev, out, a, o->key, op->flood_bits, err);
    }
    return ckks_error_set(err, CKKS_INTERNAL, "operation", "unknown operation %u", op->kind);
}

/* A product with a plaintext that only the rescale behind it reads: the two are one. */
static bool is_product_rescaled(const workload *w, uint32_t index) {
    const plan_operation *op = &w->p->operations[index], *next = op + 1;
    if (op->kind != PLAN_MULTIPLY_PLAIN || index + 1 == w->p->operation_count) return false;
    if (next->kind != PLAN_RESCALE || next->a != op->first_output) return false;
    for (uint32_t i = 0; i < w->p->output_count; i++)
        if (w->p->outputs[i] == op->first_output) return false;
    return w->last_use[op->first_output] == index + 1;
}
static ckks_status product_rescaled(evaluator *ev, const workload *w, uint32_t index, ckks_value *values,
                                    ckks_error *err) {
    const plan_operation *op = &w->p->operations[index], *next = op + 1;
    return evaluator_multiply_plain_rescale(ev, &values[next->first_output], &values[op->a],
                                            &w->operations[index].plain, err);
}

/* The scale that the evaluator tracked is the schedule's, bit for bit, after every operation. Costs nothing
 * at replay: only planning, capture and the eager path run the callable. */
static ckks_status audit(const workload *w, uint32_t index, const ckks_value *values, ckks_error *err) {
    const plan_operation *op = &w->p->operations[index];
    for (uint32_t i = 0; i < op->output_count; i++) {
        const plan_value *planned = &w->p->values[op->first_output + i];
        const value_signature *s = &values[op->first_output + i].signature;
        if (s->limb_count != planned->level + 1 || s->component_count != planned->component_count ||
            s->batch_count != planned->batch_count)
            return ckks_error_set(
                err, CKKS_SIGNATURE_MISMATCH, "shape",
                "value %u came out with %u limbs, %u components, batch %u; planned %u, %u, %u",
                op->first_output + i, s->limb_count, s->component_count, s->batch_count, planned->level + 1,
                planned->component_count, planned->batch_count);
        uint64_t tracked, wanted;
        memcpy(&tracked, &s->scale, sizeof tracked);
        memcpy(&wanted, &planned->scale, sizeof wanted);
        if (tracked != wanted)
            return ckks_error_set(err, CKKS_SIGNATURE_MISMATCH, "scale",
                                  "value %u came out at scale %a, planned %a", op->first_output + i, s->scale,
                                  planned->scale);
    }
    return CKKS_OK;
}

/* Inputs belong to the program; everything else goes when its last reader is enqueued. */
static void release_dead(evaluator *ev, const workload *w, uint32_t index, ckks_value *values) {
    const plan_operation *op = &w->p->operations[index];
    const uint32_t operands[2] = {op->a, op->b};
    for (uint32_t i = 0; i < op->output_count; i++)
        if (w->last_use[op->first_output + i] == index) evaluator_release(ev, &values[op->first_output + i]);
    for (int i = 0; i < 2; i++) {
        const uint32_t v = operands[i];
        if (v < w->p->input_count || v >= op->first_output || w->last_use[v] != index) continue;
        if (values[v].words) evaluator_release(ev, &values[v]); /* a value may be both operands */
    }
}

/* The results of an operation that are the program's in the same order go to their buffers at once. */
static void place_outputs(graph_region *region, const workload *w, uint32_t index) {
    const plan_operation *op = &w->p->operations[index];
    const bool acquires_more = op->kind == PLAN_CHEBYSHEV || op->kind == PLAN_RERANDOMISE;
    evaluator_place(region->evaluator, NULL, 0);
    for (uint32_t i = 0; i + op->output_count <= w->p->output_count && !acquires_more; i++) {
        uint32_t k = 0;
        while (k < op->output_count && w->p->outputs[i + k] == op->first_output + k) k++;
        if (k < op->output_count) continue;
        evaluator_place(region->evaluator, &region->outputs[i], op->output_count);
        return;
    }
}

static ckks_status name_outputs(graph_region *region, const workload *w, uint32_t index,
                                const ckks_value *values, ckks_error *err) {
    const plan_operation *op = &w->p->operations[index];
    for (uint32_t i = 0; i < w->p->output_count; i++) {
        const uint32_t v = w->p->outputs[i];
        if (v < op->first_output || v >= op->first_output + op->output_count) continue;
        const ckks_status rc = graph_region_output(region, i, &values[v], err);
        if (rc != CKKS_OK) return rc;
    }
    return CKKS_OK;
}

static ckks_status name_operation(ckks_status rc, const ckks_error *inner, const plan_operation *op,
                                  uint32_t index, ckks_error *err) {
    char field[sizeof inner->field];
    snprintf(field, sizeof field, "operation %u (%s, %.24s)", index, plan_operation_name(op->kind),
             op->source);
    return ckks_error_set(err, rc, field, "%s%s%s", inner->field, inner->field[0] ? ": " : "",
                          inner->message);
}

/* The host array of values is this run's own: slots share the workload. It is no device memory, so that a
 * recording allows it. */
ckks_status workload_callable(void *context, graph_region *region, const ckks_value *inputs,
                              uint32_t input_count, ckks_error *err) {
    const workload *w = context;
    ckks_status rc = CKKS_OK;
    ckks_error inner = {0};
    CKKS_ASSERT(input_count == w->p->input_count);
    ckks_value *values = calloc(w->p->value_count, sizeof *values);
    if (!values) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "values", "no memory for a run");
    memcpy(values, inputs, input_count * sizeof *values);
    for (uint32_t k = 0; k < w->p->operation_count; k++) {
        const uint32_t first = k;
        if (is_product_rescaled(w, k)) k++;
        place_outputs(region, w, k);
        rc = k > first ? product_rescaled(region->evaluator, w, first, values, &inner)
                       : run_operation(region->evaluator, w, k, values, &inner);
        if (rc == CKKS_OK) rc = audit(w, k, values, &inner);
        if (rc == CKKS_OK) rc = name_outputs(region, w, k, values, &inner);
        if (rc != CKKS_OK) {
            rc = name_operation(rc, &inner, &w->p->operations[k], k, err);
            break;
        }
        if (k > first) release_dead(region->evaluator, w, first, values);
        release_dead(region->evaluator, w, k, values);
    }
    free(values);
    return rc;
}
