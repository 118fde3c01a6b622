/*
 * The clear-text oracle of whole programs: the plan's own polynomials, rotations and products in binary64 on
 * real slot vectors. Levels, scales and key switching leave slots alone, so they do nothing here; on reals,
 * neither does conjugation.
 */
#include "kernels/program/plan.h"

#include <stdlib.h>
#include <string.h>

typedef struct interpreter {
    const plan *p;
    uint32_t slot_count;
    double **values; /* [value_count]: batch vectors of slot_count each, or NULL when not (any more) alive */
    uint32_t *last_use; /* operation after which a value is dead; operation_count = an output */
    double *scratch;    /* two vectors */
} interpreter;

static size_t value_doubles(const interpreter *t, uint32_t value) {
    return (size_t)t->p->values[value].batch_count * t->slot_count;
}

static void rotate_left(double *out, const double *in, int64_t step, uint32_t count) {
    CKKS_ASSERT(count > 0);
    const uint32_t by = (uint32_t)(((step % count) + count) % count);
    memcpy(out, in + by, (count - by) * sizeof *out);
    memcpy(out + count - by, in, by * sizeof *out);
}

static void clenshaw(double *x, const plan_polynomial *polynomial, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        double b1 = 0, b2 = 0;
        for (uint32_t k = polynomial->degree; k > 0; k--) {
            const double b0 = polynomial->coefficients[k] + 2 * x[i] * b1 - b2;
            b2 = b1;
            b1 = b0;
        }
        x[i] = polynomial->coefficients[0] + x[i] * b1 - b2;
    }
}

/* y = sum_g rot_g( sum_b plain[g][b] * rot_b(x) ) over giants first .. end - 1; scratch: rotated x, then the
 * inner sum */
static void transform(double *y, const double *x, const plan *p, const plan_transform *t, uint32_t first,
                      uint32_t end, uint32_t count, double *scratch) {
    double *rotated = scratch, *inner = scratch + count;
    memset(y, 0, count * sizeof *y);
    for (uint32_t g = first; g < end; g++) {
        memset(inner, 0, count * sizeof *inner);
        for (uint32_t k = 0; k < t->term_count; k++) {
            if (t->terms[k].giant != g) continue;
            const plan_plain *plain = &p->plains[t->terms[k].plain];
            rotate_left(rotated, x, t->baby_steps[t->terms[k].baby], count);
            for (uint32_t i = 0; i < count; i++) inner[i] += plain->slots[i % plain->slot_count] * rotated[i];
        }
        rotate_left(rotated, inner, t->giant_steps[g], count);
        for (uint32_t i = 0; i < count; i++) y[i] += rotated[i];
    }
}

static void inner_sum(double *x, const plan_operation *op, uint32_t count, double *rotated) {
    for (uint32_t k = 0; k < op->step_count; k++) {
        rotate_left(rotated, x, op->steps[k], count);
        for (uint32_t i = 0; i < count; i++) x[i] += rotated[i];
    }
}

static void matrix_product(double *out, const double *in, const plan_matrix *m, uint32_t count) {
    for (uint32_t r = 0; r < m->row_count; r++) {
        for (uint32_t i = 0; m->bias && i < count; i++) out[(size_t)r * count + i] = m->bias[r];
        for (uint32_t c = 0; c < m->column_count; c++) {
            const double w = m->weights[(size_t)r * m->column_count + c];
            for (uint32_t i = 0; i < count; i++) out[(size_t)r * count + i] += w * in[(size_t)c * count + i];
        }
    }
}

/* Everything that works element by element; x is a copy of operand a, b the second operand or NULL. */
static void elementwise(double *x, const double *b, const plan *p, const plan_operation *op, size_t doubles) {
    const plan_plain *plain =
        op->kind == PLAN_ADD_PLAIN || op->kind == PLAN_MULTIPLY_PLAIN ? &p->plains[op->plain] : NULL;
    for (size_t i = 0; i < doubles; i++) {
        switch ((plan_operation_kind)op->kind) {
        case PLAN_ADD:
            x[i] += b[i];
            break;
        case PLAN_SUBTRACT:
            x[i] -= b[i];
            break;
        case PLAN_NEGATE:
            x[i] = -x[i];
            break;
        case PLAN_ADD_PLAIN:
            x[i] += plain->slots[i % plain->slot_count];
            break;
        case PLAN_MULTIPLY_PLAIN:
            x[i] *= plain->slots[i % plain->slot_count];
            break;
        case PLAN_ADD_CONSTANT:
            x[i] += op->constant;
            break;
        case PLAN_MULTIPLY_CONSTANT:
            x[i] *= op->constant;
            break;
        case PLAN_MULTIPLY:
            x[i] *= b[i];
            break;
        case PLAN_SQUARE:
            x[i] *= x[i];
            break;
        default:
            return;
        }
    }
}

static bool has_second_operand(const plan_operation *op) {
    return op->kind == PLAN_ADD || op->kind == PLAN_SUBTRACT || op->kind == PLAN_MULTIPLY;
}

/* the results of a transform that has several: those of output `o`, one if there are as many outputs */
static void transform_results(double *x, const double *in, const interpreter *t, const plan_operation *op,
                              uint32_t o) {
    const plan_transform *of = &t->p->transforms[op->transform];
    const uint32_t first = op->output_count > 1 ? o : 0, end = op->output_count > 1 ? o + 1 : of->giant_count;
    const bool is_batch = op->output_count == 1 && plan_transform_has_results(of);
    if (!is_batch) {
        transform(x, in, t->p, of, first, end, t->slot_count, t->scratch);
        return;
    }
    memset(x, 0, (size_t)of->giant_count * t->slot_count * sizeof *x);
    for (uint32_t k = 0; k < of->term_count; k++) {
        const plan_transform_term *term = &of->terms[k];
        const plan_plain *plain = &t->p->plains[term->plain];
        double *y = x + (size_t)term->giant * t->slot_count;
        rotate_left(t->scratch, in, of->baby_steps[term->baby], t->slot_count);
        for (uint32_t i = 0; i < t->slot_count; i++)
            y[i] += plain->slots[i & (plain->slot_count - 1)] * t->scratch[i];
    }
}

static ckks_status run_operation(interpreter *t, uint32_t index, ckks_error *err) {
    const plan *p = t->p;
    const plan_operation *op = &p->operations[index];
    const uint32_t count = t->slot_count, batch = p->values[op->a].batch_count;
    const double *a = t->values[op->a];
    for (uint32_t o = 0; o < op->output_count; o++) {
        const size_t doubles = value_doubles(t, op->first_output + o);
        double *x = t->values[op->first_output + o] = calloc(doubles, sizeof *x);
        if (!x)
            return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "values", "no memory for %zu numbers",
                                  doubles);
        if (op->kind == PLAN_MATRIX_PRODUCT) {
            matrix_product(x, a, &p->matrices[op->matrix], count);
            continue;
        }
        if (op->kind == PLAN_LINEAR_TRANSFORM) {
            for (uint32_t k = 0; k < batch; k++)
                transform_results(x + (size_t)k * count, a + (size_t)k * count, t, op, o);
            continue;
        }
        memcpy(x, a, doubles * sizeof *x);
        elementwise(x, has_second_operand(op) ? t->values[op->b] : NULL, p, op, doubles);
        for (uint32_t k = 0; k < batch; k++, x += count) {
            const double *in = a + (size_t)k * count;
            switch ((plan_operation_kind)op->kind) {
            case PLAN_ROTATE:
            case PLAN_ROTATE_HOISTED:
                rotate_left(x, in, op->steps[o], count);
                break;
            case PLAN_INNER_SUM:
                inner_sum(x, op, count, t->scratch);
                break;
            case PLAN_CHEBYSHEV:
                clenshaw(x, &p->polynomials[op->polynomial], count);
                break;
            default:
                break;
            }
        }
    }
    return CKKS_OK;
}

static void find_last_uses(interpreter *t) {
    const plan *p = t->p;
    for (uint32_t k = 0; k < p->operation_count; k++) {
        const plan_operation *op = &p->operations[k];
        for (uint32_t o = 0; o < op->output_count; o++) t->last_use[op->first_output + o] = k;
        t->last_use[op->a] = k;
        if (has_second_operand(op)) t->last_use[op->b] = k;
    }
    for (uint32_t i = 0; i < p->output_count; i++) t->last_use[p->outputs[i]] = p->operation_count;
}

static void release(interpreter *t, uint32_t value, uint32_t operation) {
    if (t->last_use[value] != operation) return;
    free(t->values[value]);
    t->values[value] = NULL;
}

static ckks_status load_inputs(interpreter *t, const double *const *inputs, ckks_error *err) {
    for (uint32_t i = 0; i < t->p->input_count; i++) {
        const size_t bytes = value_doubles(t, i) * sizeof **inputs;
        if (!(t->values[i] = malloc(bytes)))
            return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "inputs", "no memory for input %u", i);
        memcpy(t->values[i], inputs[i], bytes);
    }
    return CKKS_OK;
}

ckks_status plan_interpret(double *const *outputs, const plan *p, const double *const *inputs,
                           ckks_error *err) {
    ckks_status rc;
    interpreter t = {.p = p, .slot_count = params_slot_count_max(p->params)};
    t.values = calloc(p->value_count, sizeof *t.values);
    t.last_use = calloc(p->value_count, sizeof *t.last_use);
    t.scratch = calloc((size_t)2 * t.slot_count, sizeof *t.scratch);
    if (!t.values || !t.last_use || !t.scratch) {
        rc =
            ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "values", "no memory for %u values", p->value_count);
        goto out;
    }
    find_last_uses(&t);
    if ((rc = load_inputs(&t, inputs, err)) != CKKS_OK) goto out;
    for (uint32_t k = 0; k < p->operation_count; k++) {
        const plan_operation *op = &p->operations[k];
        if ((rc = run_operation(&t, k, err)) != CKKS_OK) goto out;
        for (uint32_t o = 0; o < op->output_count; o++) release(&t, op->first_output + o, k);
        release(&t, op->a, k);
        if (has_second_operand(op)) release(&t, op->b, k);
    }
    for (uint32_t i = 0; i < p->output_count; i++)
        memcpy(outputs[i], t.values[p->outputs[i]], value_doubles(&t, p->outputs[i]) * sizeof **outputs);
out:
    for (uint32_t i = 0; t.values && i < p->value_count; i++) free(t.values[i]);
    free(t.values);
    free(t.last_use);
    free(t.scratch);
    return rc;
}
