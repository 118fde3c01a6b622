/*
 * Checking a plan, in one walk: each operation's operands, tables and outputs against the evaluator's rules,
 * collecting on the way which keys it needs at which level. plan_key_requirements is the same walk with the
 * collection as its result. A plan comes from a file that a stranger may have written.
 */
#include "kernels/program/plan.h"

#include "kernels/evaluator/evaluator.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCH_COUNT_MAX     65536u
#define COMPONENT_COUNT_MAX 3u
#define STEPS_MAX           4096u
#define FLOOD_BITS_MAX      48u
#define TABLE_ENTRIES_MAX   (1u << 18)
#define TRANSFORM_TERMS_MAX (1u << 18)
#define MATRIX_SIDE_MAX     65536u

static const char *const operation_names[] = {
    [PLAN_ADD] = "ADD",
    [PLAN_SUBTRACT] = "SUBTRACT",
    [PLAN_NEGATE] = "NEGATE",
    [PLAN_ADD_PLAIN] = "ADD_PLAIN",
    [PLAN_MULTIPLY_PLAIN] = "MULTIPLY_PLAIN",
    [PLAN_ADD_CONSTANT] = "ADD_CONSTANT",
    [PLAN_MULTIPLY_CONSTANT] = "MULTIPLY_CONSTANT",
    [PLAN_MULTIPLY] = "MULTIPLY",
    [PLAN_SQUARE] = "SQUARE",
    [PLAN_RELINEARISE] = "RELINEARISE",
    [PLAN_RESCALE] = "RESCALE",
    [PLAN_DROP_LEVEL] = "DROP_LEVEL",
    [PLAN_ROTATE] = "ROTATE",
    [PLAN_ROTATE_HOISTED] = "ROTATE_HOISTED",
    [PLAN_CONJUGATE] = "CONJUGATE",
    [PLAN_INNER_SUM] = "INNER_SUM",
    [PLAN_LINEAR_TRANSFORM] = "LINEAR_TRANSFORM",
    [PLAN_CHEBYSHEV] = "CHEBYSHEV",
    [PLAN_MATRIX_PRODUCT] = "MATRIX_PRODUCT",
    [PLAN_RERANDOMISE] = "RERANDOMISE",
};

const char *plan_operation_name(uint32_t kind) {
    const char *name = kind < sizeof operation_names / sizeof *operation_names ? operation_names[kind] : NULL;
    return name ? name : "UNKNOWN";
}

/* ---- the keys that operations ask for ---- */

/* Levels are stored plus one; 0 = not needed. */
typedef struct key_collection {
    uint8_t relinearisation, public_key;
    uint8_t *galois; /* [N], by element / 2: odd elements below 2N */
} key_collection;
_Static_assert(CKKS_PRIMES_MAX < 255, "a level plus one fits a byte");

static void raise_level(uint8_t *entry, uint32_t level) {
    if (*entry < level + 1) *entry = (uint8_t)(level + 1);
}

typedef struct walk {
    const plan *p;
    uint32_t n;
    uint32_t operation; /* index */
    uint32_t value_next;
    key_collection keys;
    ckks_error *err;
} walk;

static const plan_operation *current(const walk *w) {
    return &w->p->operations[w->operation];
}

__attribute__((format(printf, 3, 4))) static ckks_status refuse(const walk *w, ckks_status code,
                                                                const char *format, ...) {
    char field[sizeof w->err->field], message[240];
    const plan_operation *op = current(w);
    snprintf(field, sizeof field, "operation %u (%s, %.24s)", w->operation, plan_operation_name(op->kind),
             op->source ? op->source : "");
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return ckks_error_set(w->err, code, field, "%s", message);
}

static ckks_status need_key_switching(const walk *w) {
    if (w->p->params->p_count == 0)
        return refuse(w, CKKS_MALFORMED, "these parameters have no special prime for key switching");
    return CKKS_OK;
}

static ckks_status need_relinearisation(walk *w, uint32_t level) {
    raise_level(&w->keys.relinearisation, level);
    return need_key_switching(w);
}

static ckks_status need_element(walk *w, uint32_t element, uint32_t level) {
    if (element == 1) return CKKS_OK;
    raise_level(&w->keys.galois[element / 2], level);
    return need_key_switching(w);
}

static ckks_status need_step(walk *w, int32_t step, uint32_t level) {
    const int64_t slots = (int64_t)w->n / 2;
    if (step <= -slots || step >= slots)
        return refuse(w, CKKS_MALFORMED, "step %" PRId32 " is not within the %" PRId64 " slots", step, slots);
    return need_element(w, galois_element_rotate(w->p->params->log_n, step), level);
}

/* ---- values and tables ---- */

static bool is_scale(double scale) {
    return isfinite(scale) && scale > 0;
}

/* bit for bit */
static bool same_scale(double a, double b) {
    uint64_t x, y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    return x == y;
}

static ckks_status check_value(const plan *p, uint32_t index, ckks_error *err) {
    const plan_value *v = &p->values[index];
    char field[32];
    snprintf(field, sizeof field, "value %u", index);
    if (v->level > params_level_max(p->params))
        return ckks_error_set(err, CKKS_MALFORMED, field, "level %u, these parameters have 0 to %u", v->level,
                              params_level_max(p->params));
    if (v->component_count < 2 || v->component_count > COMPONENT_COUNT_MAX)
        return ckks_error_set(err, CKKS_MALFORMED, field, "%u components: 2 or %u are possible",
                              v->component_count, COMPONENT_COUNT_MAX);
    if (v->batch_count == 0 || v->batch_count > BATCH_COUNT_MAX)
        return ckks_error_set(err, CKKS_MALFORMED, field, "batch of %u: 1 to %u are possible", v->batch_count,
                              BATCH_COUNT_MAX);
    if (!is_scale(v->scale))
        return ckks_error_set(err, CKKS_MALFORMED, field, "scale %a is not a positive number", v->scale);
    if (index < p->input_count && v->component_count != 2)
        return ckks_error_set(err, CKKS_MALFORMED, field, "an input has two components, not %u",
                              v->component_count);
    return CKKS_OK;
}

static ckks_status check_plain(const plan *p, uint32_t index, ckks_error *err) {
    const plan_plain *v = &p->plains[index];
    char field[32];
    snprintf(field, sizeof field, "plain %u", index);
    if (v->slot_count == 0 || (v->slot_count & (v->slot_count - 1)) != 0 ||
        v->slot_count > params_slot_count_max(p->params))
        return ckks_error_set(err, CKKS_MALFORMED, field, "%u slots: a power of two up to %u is wanted",
                              v->slot_count, params_slot_count_max(p->params));
    if (v->level > params_level_max(p->params))
        return ckks_error_set(err, CKKS_MALFORMED, field, "level %u, these parameters have 0 to %u", v->level,
                              params_level_max(p->params));
    if (v->with_p && p->params->p_count == 0)
        return ckks_error_set(err, CKKS_MALFORMED, field,
                              "encoded over P, of which these parameters have none");
    if (!is_scale(v->scale))
        return ckks_error_set(err, CKKS_MALFORMED, field, "scale %a is not a positive number", v->scale);
    for (uint32_t i = 0; i < v->slot_count; i++)
        if (!isfinite(v->slots[i]))
            return ckks_error_set(err, CKKS_MALFORMED, field, "slot %u is not a number", i);
    return CKKS_OK;
}

/* All diagonals of one transform share level, scale and basis, so that they can be summed. */
static ckks_status check_transform(const plan *p, uint32_t index, ckks_error *err) {
    const plan_transform *t = &p->transforms[index];
    char field[32];
    snprintf(field, sizeof field, "transform %u", index);
    if (t->term_count == 0 || t->term_count > TRANSFORM_TERMS_MAX || t->baby_count == 0 ||
        t->baby_count > STEPS_MAX || t->giant_count == 0 || t->giant_count > STEPS_MAX)
        return ckks_error_set(err, CKKS_MALFORMED, field, "%u terms of %u baby and %u giant steps",
                              t->term_count, t->baby_count, t->giant_count);
    for (uint32_t i = 0; i < t->term_count; i++) {
        const plan_transform_term *term = &t->terms[i];
        if (term->giant >= t->giant_count || term->baby >= t->baby_count || term->plain >= p->plain_count)
            return ckks_error_set(err, CKKS_MALFORMED, field,
                                  "term %u names giant step %u, baby step %u, plain %u: one does not exist",
                                  i, term->giant, term->baby, term->plain);
        const plan_plain *plain = &p->plains[term->plain], *first = &p->plains[t->terms[0].plain];
        if (!plain->with_p || plain->level != first->level || !same_scale(plain->scale, first->scale))
            return ckks_error_set(
                err, CKKS_SIGNATURE_MISMATCH, field,
                "term %u: plain %u is not encoded over QP at the level and scale of the first", i,
                term->plain);
    }
    return CKKS_OK;
}

static ckks_status check_polynomial(const plan *p, uint32_t index, ckks_error *err) {
    const plan_polynomial *v = &p->polynomials[index];
    char field[32];
    snprintf(field, sizeof field, "polynomial %u", index);
    if (v->degree == 0 || v->degree > CHEBYSHEV_DEGREE_MAX)
        return ckks_error_set(err, CKKS_MALFORMED, field, "degree %u: 1 to %u are possible", v->degree,
                              CHEBYSHEV_DEGREE_MAX);
    for (uint32_t i = 0; i <= v->degree; i++)
        if (!isfinite(v->coefficients[i]))
            return ckks_error_set(err, CKKS_MALFORMED, field, "coefficient %u is not a number", i);
    return CKKS_OK;
}

static ckks_status check_matrix(const plan *p, uint32_t index, ckks_error *err) {
    const plan_matrix *m = &p->matrices[index];
    char field[32];
    snprintf(field, sizeof field, "matrix %u", index);
    if (m->row_count == 0 || m->row_count > MATRIX_SIDE_MAX || m->column_count == 0 ||
        m->column_count > MATRIX_SIDE_MAX)
        return ckks_error_set(err, CKKS_MALFORMED, field, "%u rows of %u columns", m->row_count,
                              m->column_count);
    if (!is_scale(m->scale))
        return ckks_error_set(err, CKKS_MALFORMED, field, "scale %a is not a positive number", m->scale);
    for (uint64_t i = 0; i < (uint64_t)m->row_count * m->column_count; i++)
        if (!isfinite(m->weights[i]))
            return ckks_error_set(err, CKKS_MALFORMED, field, "weight %" PRIu64 " is not a number", i);
    if (!m->bias) return CKKS_OK;
    if (!is_scale(m->bias_scale))
        return ckks_error_set(err, CKKS_MALFORMED, field, "the bias's scale %a is not a positive number",
                              m->bias_scale);
    for (uint32_t i = 0; i < m->row_count; i++)
        if (!isfinite(m->bias[i]))
            return ckks_error_set(err, CKKS_MALFORMED, field, "bias %" PRIu32 " is not a number", i);
    return CKKS_OK;
}

static ckks_status check_tables(const plan *p, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    if (p->plain_count > TABLE_ENTRIES_MAX || p->transform_count > TABLE_ENTRIES_MAX ||
        p->polynomial_count > TABLE_ENTRIES_MAX || p->matrix_count > TABLE_ENTRIES_MAX)
        return ckks_error_set(err, CKKS_TOO_LARGE, "tables", "a table has more than %u entries",
                              TABLE_ENTRIES_MAX);
    for (uint32_t i = 0; rc == CKKS_OK && i < p->value_count; i++) rc = check_value(p, i, err);
    for (uint32_t i = 0; rc == CKKS_OK && i < p->plain_count; i++) rc = check_plain(p, i, err);
    for (uint32_t i = 0; rc == CKKS_OK && i < p->transform_count; i++) rc = check_transform(p, i, err);
    for (uint32_t i = 0; rc == CKKS_OK && i < p->polynomial_count; i++) rc = check_polynomial(p, i, err);
    for (uint32_t i = 0; rc == CKKS_OK && i < p->matrix_count; i++) rc = check_matrix(p, i, err);
    return rc;
}

static ckks_status check_counts(const plan *p, ckks_error *err) {
    if (p->input_count == 0 || p->input_count > p->value_count || p->value_count > PLAN_VALUES_MAX)
        return ckks_error_set(err, CKKS_MALFORMED, "values", "%u inputs among %u values (at most %u)",
                              p->input_count, p->value_count, PLAN_VALUES_MAX);
    if (p->operation_count == 0 || p->operation_count > PLAN_OPERATIONS_MAX)
        return ckks_error_set(err, CKKS_MALFORMED, "operations", "%u operations: 1 to %u are possible",
                              p->operation_count, PLAN_OPERATIONS_MAX);
    if (p->output_count == 0 || p->output_count > p->value_count)
        return ckks_error_set(err, CKKS_MALFORMED, "outputs", "%u outputs of %u values", p->output_count,
                              p->value_count);
    return CKKS_OK;
}

/* An output is what an operation made: an input handed back would be the client's own ciphertext. */
static ckks_status check_outputs(const plan *p, ckks_error *err) {
    for (uint32_t i = 0; i < p->output_count; i++) {
        const uint32_t value = p->outputs[i];
        if (value < p->input_count || value >= p->value_count)
            return ckks_error_set(err, CKKS_MALFORMED, "outputs",
                                  "output %u is value %u, no operation's result", i, value);
    }
    return CKKS_OK;
}

/* ---- operations: what each must give ---- */

static ckks_status expect_two(const walk *w, const plan_value *a) {
    if (a->component_count != 2)
        return refuse(w, CKKS_MALFORMED, "value %u is not relinearised", current(w)->a);
    return CKKS_OK;
}

static ckks_status drop_prime(const walk *w, plan_value *v) {
    if (v->level == 0) return refuse(w, CKKS_MALFORMED, "there is no prime left to rescale by");
    v->scale = v->scale / (double)w->p->params->prime[v->level];
    v->level -= 1;
    return CKKS_OK;
}

static ckks_status expect_sum(const walk *w, plan_value *out, const plan_value *a, const plan_value *b) {
    if (a->level != b->level)
        return refuse(w, CKKS_SIGNATURE_MISMATCH, "levels %u and %u of its operands differ", a->level,
                      b->level);
    if (!same_scale(a->scale, b->scale))
        return refuse(w, CKKS_SIGNATURE_MISMATCH, "scales %a and %a of its operands differ", a->scale,
                      b->scale);
    if (a->batch_count != b->batch_count)
        return refuse(w, CKKS_SIGNATURE_MISMATCH, "batches of %u and %u differ", a->batch_count,
                      b->batch_count);
    if (b->component_count > a->component_count) out->component_count = b->component_count;
    return CKKS_OK;
}

static ckks_status expect_plain(const walk *w, plan_value *out, const plan_value *a, bool is_product) {
    const plan_operation *op = current(w);
    if (op->plain >= w->p->plain_count)
        return refuse(w, CKKS_MALFORMED, "plain %u does not exist", op->plain);
    const plan_plain *plain = &w->p->plains[op->plain];
    if (plain->level != a->level || plain->with_p)
        return refuse(w, CKKS_SIGNATURE_MISMATCH, "plain %u is encoded at level %u%s, value %u is at %u",
                      op->plain, plain->level, plain->with_p ? " over QP" : "", op->a, a->level);
    if (is_product)
        out->scale = a->scale * plain->scale;
    else if (!same_scale(plain->scale, a->scale))
        return refuse(w, CKKS_SIGNATURE_MISMATCH, "plain %u has scale %a, value %u has %a", op->plain,
                      plain->scale, op->a, a->scale);
    return CKKS_OK;
}

static ckks_status expect_constant(const walk *w, plan_value *out, bool is_product) {
    const plan_operation *op = current(w);
    if (!isfinite(op->constant)) return refuse(w, CKKS_MALFORMED, "its constant is not a number");
    if (!is_product) return CKKS_OK;
    if (!is_scale(op->constant_scale))
        return refuse(w, CKKS_MALFORMED, "its constant's scale %a is not a positive number",
                      op->constant_scale);
    out->scale *= op->constant_scale;
    return CKKS_OK;
}

static ckks_status expect_product(const walk *w, plan_value *out, const plan_value *a, const plan_value *b) {
    if (b->component_count != 2)
        return refuse(w, CKKS_MALFORMED, "value %u is not relinearised", current(w)->b);
    if (a->level != b->level || a->batch_count != b->batch_count)
        return refuse(w, CKKS_SIGNATURE_MISMATCH, "its operands have levels %u and %u, batches of %u and %u",
                      a->level, b->level, a->batch_count, b->batch_count);
    out->scale = a->scale * b->scale;
    out->component_count = 3;
    return expect_two(w, a);
}

static ckks_status expect_relinearise(walk *w, plan_value *out, const plan_value *a) {
    ckks_status rc;
    if (a->component_count != 3)
        return refuse(w, CKKS_MALFORMED, "value %u has %u components: nothing to relinearise", current(w)->a,
                      a->component_count);
    out->component_count = 2;
    if ((rc = need_relinearisation(w, a->level)) != CKKS_OK) return rc;
    return current(w)->with_rescale ? drop_prime(w, out) : CKKS_OK;
}

static ckks_status expect_drop_level(const walk *w, plan_value *out, const plan_value *a,
                                     const plan_value *declared) {
    if (declared->level >= a->level)
        return refuse(w, CKKS_MALFORMED, "from level %u to %u is not down", a->level, declared->level);
    out->level = declared->level;
    return CKKS_OK;
}

static ckks_status expect_steps(walk *w, const plan_value *a, uint32_t count_max) {
    const plan_operation *op = current(w);
    if (op->step_count == 0 || op->step_count > count_max)
        return refuse(w, CKKS_MALFORMED, "%u steps: 1 to %u are possible", op->step_count, count_max);
    for (uint32_t i = 0; i < op->step_count; i++) {
        const ckks_status rc = need_step(w, op->steps[i], a->level);
        if (rc != CKKS_OK) return rc;
    }
    return expect_two(w, a);
}

/* Two steps of one Galois element would share a place in the transform's lists. */
static ckks_status need_distinct_steps(walk *w, const int32_t *steps, uint32_t count, uint32_t level) {
    ckks_status rc = CKKS_OK;
    bool *seen = calloc(w->n, sizeof *seen);
    if (!seen) return ckks_error_set(w->err, CKKS_RESOURCE_EXHAUSTED, "transform", "no memory for its steps");
    for (uint32_t i = 0; rc == CKKS_OK && i < count; i++) {
        if ((rc = need_step(w, steps[i], level)) != CKKS_OK) break;
        bool *element = &seen[galois_element_rotate(w->p->params->log_n, steps[i]) / 2];
        if (*element)
            rc = refuse(w, CKKS_MALFORMED, "step %" PRId32 " rotates as another step of the transform does",
                        steps[i]);
        *element = true;
    }
    free(seen);
    return rc;
}

/* a transform of several results, none empty: as many outputs, or one that is a batch of them */
static ckks_status need_results(const walk *w, const plan_transform *t, plan_value *out,
                                const plan_value *a) {
    const plan_operation *op = current(w);
    ckks_status rc = CKKS_OK;
    if (op->output_count != t->giant_count && op->output_count != 1)
        return refuse(w, CKKS_MALFORMED, "%u outputs of %u giant steps", op->output_count, t->giant_count);
    for (uint32_t g = 0; g < t->giant_count; g++)
        if (t->giant_steps[g] != 0)
            return refuse(w, CKKS_MALFORMED, "giant step %u of several outputs rotates", g);
    if (op->output_count == 1 && a->batch_count != 1)
        return refuse(w, CKKS_MALFORMED, "a batch of %u results from a batch of %u", t->giant_count,
                      a->batch_count);
    if (op->output_count == 1) out->batch_count = t->giant_count;
    bool *has_term = calloc(t->giant_count, sizeof *has_term);
    if (!has_term)
        return ckks_error_set(w->err, CKKS_RESOURCE_EXHAUSTED, "transform", "no memory for its results");
    for (uint32_t k = 0; k < t->term_count; k++) has_term[t->terms[k].giant] = true;
    for (uint32_t g = 0; g < t->giant_count && rc == CKKS_OK; g++)
        if (!has_term[g]) rc = refuse(w, CKKS_MALFORMED, "output %u has no term", g);
    free(has_term);
    return rc;
}

static ckks_status expect_transform(walk *w, plan_value *out, const plan_value *a) {
    ckks_status rc;
    const plan_operation *op = current(w);
    if (op->transform >= w->p->transform_count)
        return refuse(w, CKKS_MALFORMED, "transform %u does not exist", op->transform);
    const plan_transform *t = &w->p->transforms[op->transform];
    const plan_plain *first = &w->p->plains[t->terms[0].plain];
    if (first->level != a->level)
        return refuse(w, CKKS_SIGNATURE_MISMATCH, "transform %u is encoded at level %u, value %u is at %u",
                      op->transform, first->level, op->a, a->level);
    if ((rc = expect_two(w, a)) != CKKS_OK) return rc;
    if ((rc = need_key_switching(w)) != CKKS_OK) return rc;
    if ((rc = need_distinct_steps(w, t->baby_steps, t->baby_count, a->level)) != CKKS_OK) return rc;
    rc = op->output_count > 1 || plan_transform_has_results(t)
             ? need_results(w, t, out, a)
             : need_distinct_steps(w, t->giant_steps, t->giant_count, a->level);
    if (rc != CKKS_OK) return rc;
    out->scale = a->scale * first->scale;
    return op->with_rescale ? drop_prime(w, out) : CKKS_OK;
}

/* The polynomial's scale is what the plan says: its constants are encoded so that it is met. Its schedule
 * knows at which level it relinearises. */
static ckks_status expect_chebyshev(walk *w, plan_value *out, const plan_value *a,
                                    const plan_value *declared) {
    const plan_operation *op = current(w);
    chebyshev_plan *schedule = NULL;
    ckks_error inner = {0};
    uint32_t level;
    if (op->polynomial >= w->p->polynomial_count)
        return refuse(w, CKKS_MALFORMED, "polynomial %u does not exist", op->polynomial);
    const plan_polynomial *v = &w->p->polynomials[op->polynomial];
    ckks_status rc = chebyshev_plan_create(&schedule, w->p->params, v->coefficients, v->degree, a->level,
                                           a->scale, declared->scale, &inner);
    if (rc != CKKS_OK)
        return refuse(w, rc == CKKS_RESOURCE_EXHAUSTED ? rc : CKKS_MALFORMED, "polynomial %u: %s",
                      op->polynomial, inner.message);
    out->level = chebyshev_plan_level_out(schedule);
    out->scale = declared->scale;
    if (chebyshev_plan_relin_level(schedule, &level)) rc = need_relinearisation(w, level);
    chebyshev_plan_destroy(schedule);
    return rc == CKKS_OK ? expect_two(w, a) : rc;
}

static ckks_status expect_matrix(const walk *w, plan_value *out, const plan_value *a) {
    const plan_operation *op = current(w);
    if (op->matrix >= w->p->matrix_count)
        return refuse(w, CKKS_MALFORMED, "matrix %u does not exist", op->matrix);
    const plan_matrix *m = &w->p->matrices[op->matrix];
    if (m->column_count != a->batch_count)
        return refuse(w, CKKS_SIGNATURE_MISMATCH, "%u columns meet a batch of %u", m->column_count,
                      a->batch_count);
    out->batch_count = m->row_count;
    out->scale = a->scale * m->scale;
    if (m->bias && !same_scale(m->bias_scale, out->scale))
        return refuse(w, CKKS_SIGNATURE_MISMATCH, "matrix %u has its bias at scale %a, its result is at %a",
                      op->matrix, m->bias_scale, out->scale);
    return CKKS_OK;
}

static ckks_status expect_rerandomise(walk *w, const plan_value *a) {
    const plan_operation *op = current(w);
    if (op->flood_bits > FLOOD_BITS_MAX)
        return refuse(w, CKKS_MALFORMED, "%u flooding bits, at most %u are possible", op->flood_bits,
                      FLOOD_BITS_MAX);
    raise_level(&w->keys.public_key, a->level);
    return expect_two(w, a);
}

static bool has_second_operand(uint32_t kind) {
    return kind == PLAN_ADD || kind == PLAN_SUBTRACT || kind == PLAN_MULTIPLY;
}

/* `out` starts as a copy of a; `declared` is the value that the plan names as the first output. */
static ckks_status expect_operation(walk *w, plan_value *out, const plan_value *declared) {
    ckks_status rc;
    const plan_operation *op = current(w);
    const plan_value *a = &w->p->values[op->a],
                     *b = has_second_operand(op->kind) ? &w->p->values[op->b] : NULL;
    *out = *a;
    switch ((plan_operation_kind)op->kind) {
    case PLAN_ADD:
    case PLAN_SUBTRACT:
        return expect_sum(w, out, a, b);
    case PLAN_NEGATE:
        return CKKS_OK;
    case PLAN_ADD_PLAIN:
        return expect_plain(w, out, a, false);
    case PLAN_MULTIPLY_PLAIN:
        return expect_plain(w, out, a, true);
    case PLAN_ADD_CONSTANT:
        return expect_constant(w, out, false);
    case PLAN_MULTIPLY_CONSTANT:
        return expect_constant(w, out, true);
    case PLAN_MULTIPLY:
        return expect_product(w, out, a, b);
    case PLAN_SQUARE:
        return expect_product(w, out, a, a);
    case PLAN_RELINEARISE:
        return expect_relinearise(w, out, a);
    case PLAN_RESCALE:
        return drop_prime(w, out);
    case PLAN_DROP_LEVEL:
        return expect_drop_level(w, out, a, declared);
    case PLAN_ROTATE:
        return expect_steps(w, a, 1);
    case PLAN_ROTATE_HOISTED:
    case PLAN_INNER_SUM:
        return expect_steps(w, a, STEPS_MAX);
    case PLAN_CONJUGATE:
        if ((rc = need_element(w, galois_element_conjugate(w->p->params->log_n), a->level)) != CKKS_OK)
            return rc;
        return expect_two(w, a);
    case PLAN_LINEAR_TRANSFORM:
        return expect_transform(w, out, a);
    case PLAN_CHEBYSHEV:
        return expect_chebyshev(w, out, a, declared);
    case PLAN_MATRIX_PRODUCT:
        return expect_matrix(w, out, a);
    case PLAN_RERANDOMISE:
        return expect_rerandomise(w, a);
    }
    return refuse(w, CKKS_MALFORMED, "unknown operation %u", op->kind);
}

static ckks_status compare_output(const walk *w, uint32_t number, const plan_value *expected) {
    const plan_value *actual = &w->p->values[number];
    const char *what = actual->level != expected->level                       ? "level"
                       : actual->component_count != expected->component_count ? "component count"
                       : actual->batch_count != expected->batch_count         ? "batch count"
                       : !same_scale(actual->scale, expected->scale)          ? "scale"
                                                                              : NULL;
    if (!what) return CKKS_OK;
    return refuse(
        w, CKKS_SIGNATURE_MISMATCH,
        "%s of value %u: expected level %u, %u components, batch %u, scale %a; the plan says %u, %u, %u, "
        "%a",
        what, number, expected->level, expected->component_count, expected->batch_count, expected->scale,
        actual->level, actual->component_count, actual->batch_count, actual->scale);
}

static ckks_status check_operation(walk *w) {
    ckks_status rc = CKKS_OK;
    const plan_operation *op = current(w);
    const uint32_t outputs = op->kind == PLAN_ROTATE_HOISTED                             ? op->step_count
                             : op->kind == PLAN_LINEAR_TRANSFORM && op->output_count > 1 ? op->output_count
                                                                                         : 1;
    plan_value expected;
    if (!op->source) return refuse(w, CKKS_MALFORMED, "its source is absent");
    if (op->first_output != w->value_next || op->output_count != outputs || outputs == 0 ||
        outputs > w->p->value_count - w->value_next)
        return refuse(w, CKKS_MALFORMED, "outputs %u to %u: %u from value %u on are due", op->first_output,
                      op->first_output + op->output_count, outputs, w->value_next);
    if (op->a >= w->value_next || (has_second_operand(op->kind) && op->b >= w->value_next))
        return refuse(w, CKKS_MALFORMED, "operands %u, %u: values below %u exist at this point", op->a, op->b,
                      w->value_next);
    if ((rc = expect_operation(w, &expected, &w->p->values[op->first_output])) != CKKS_OK) return rc;
    if (!is_scale(expected.scale)) return refuse(w, CKKS_MALFORMED, "its scale leaves the range of numbers");
    for (uint32_t i = 0; rc == CKKS_OK && i < outputs; i++)
        rc = compare_output(w, op->first_output + i, &expected);
    w->value_next += outputs;
    return rc;
}

/* walk_plan: w->keys.galois is the caller's to free, also after an error. */
static ckks_status walk_plan(walk *w, const plan *p, ckks_error *err) {
    ckks_status rc;
    *w = (walk){.p = p, .n = params_n(p->params), .value_next = p->input_count, .err = err};
    if ((rc = check_counts(p, err)) != CKKS_OK) return rc;
    if ((rc = check_tables(p, err)) != CKKS_OK) return rc;
    if (!(w->keys.galois = calloc(w->n, 1)))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "keys", "no memory to list the keys");
    for (; w->operation < p->operation_count; w->operation++)
        if ((rc = check_operation(w)) != CKKS_OK) return rc;
    if (w->value_next != p->value_count)
        return ckks_error_set(err, CKKS_MALFORMED, "values", "%u values, inputs and operations make %u",
                              p->value_count, w->value_next);
    return check_outputs(p, err);
}

static ckks_status list_keys(key_requirement **out, uint32_t *count, const walk *w, ckks_error *err) {
    uint32_t total = 0, at = 0;
    if (w->keys.relinearisation) total++;
    if (w->keys.public_key) total++;
    for (uint32_t i = 0; i < w->n; i++)
        if (w->keys.galois[i]) total++;
    key_requirement *keys = calloc(total ? total : 1, sizeof *keys);
    if (!keys) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "keys", "no memory for %u keys", total);
    if (w->keys.relinearisation)
        keys[at++] = (key_requirement){KEY_RELINEARISATION, 0, w->keys.relinearisation - 1u};
    for (uint32_t i = 0; i < w->n; i++)
        if (w->keys.galois[i]) keys[at++] = (key_requirement){KEY_GALOIS, 2 * i + 1, w->keys.galois[i] - 1u};
    if (w->keys.public_key) keys[at++] = (key_requirement){KEY_PUBLIC, 0, w->keys.public_key - 1u};
    *out = keys;
    *count = total;
    return CKKS_OK;
}

ckks_status plan_key_requirements(const plan *p, key_requirement **out, uint32_t *count, ckks_error *err) {
    walk w;
    *out = NULL, *count = 0;
    ckks_status rc = walk_plan(&w, p, err);
    if (rc == CKKS_OK) rc = list_keys(out, count, &w, err);
    free(w.keys.galois);
    return rc;
}

static ckks_status check_keys(const plan *p, ckks_error *err) {
    key_requirement *needed = NULL;
    uint32_t count;
    ckks_status rc = plan_key_requirements(p, &needed, &count, err);
    if (rc != CKKS_OK) return rc;
    if (count != p->key_count)
        rc = ckks_error_set(err, CKKS_MALFORMED, "keys", "%u keys listed, the operations need %u",
                            p->key_count, count);
    for (uint32_t i = 0; rc == CKKS_OK && i < count; i++) {
        const key_requirement *a = &needed[i], *b = &p->keys[i];
        if (a->kind != b->kind || a->galois_element != b->galois_element || a->level != b->level)
            rc = ckks_error_set(err, CKKS_MALFORMED, "keys",
                                "key %u: kind %u, element %u, level %u listed; %u, %u, %u is needed", i,
                                b->kind, b->galois_element, b->level, a->kind, a->galois_element, a->level);
    }
    free(needed);
    return rc;
}

ckks_status plan_check(const plan *p, ckks_error *err) {
    const ckks_status rc = check_keys(p, err);
    if (rc != CKKS_OK || p->is_insecure) return rc;
    return params_gate(p->params, 128, err);
}
