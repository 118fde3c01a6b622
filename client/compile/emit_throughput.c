/* From the compiler's graph to matrix products on batches. */
#include "client/compile/noise.h"
#include "client/compile/plan_builder.h"
#include "client/compile/throughput.h"
#include "kernels/evaluator/chebyshev.h"

#include <math.h>

#define NO_MEMORY(err) ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for the program")

#define MATRIX_ENTRIES_MAX (UINT64_C(1) << 25)
#define ULPS_MAX           4

/* What a graph node has become. */
typedef struct emitted_value {
    uint32_t value;   /* of the plan, at its own level */
    uint32_t dropped; /* the same value at a lower level, UINT32_MAX = none yet */
    double *variance; /* [count]: of the error of each element */
} emitted_value;

typedef struct emission {
    plan_builder builder;
    const ir_graph *graph;
    const throughput_choice *choice;
    const ckks_params *params;
    arena *memory;
    uint32_t *levels;
    emitted_value *values;
    emitted_program *out;
} emission;

static double large_scale(const emission *e) {
    return ldexp(1, (int)(e->choice->value_bits + e->choice->weight_bits));
}
static double wanted_scale(const emission *e, uint32_t node) {
    if (throughput_is_large(e->graph, node)) return large_scale(e);
    return ldexp(1, (int)(node ? e->choice->result_bits : e->choice->value_bits));
}

/* twice the size seen, in both signs, below Q */
static ckks_status check_size(const emission *e, const ir_node *n, double peak, const plan_value *v,
                              ckks_error *err) {
    double log_q = 0;
    for (uint32_t l = 0; l <= v->level; l++) log_q += log2((double)e->params->prime[l]);
    if (log2(fmax(peak, 1)) + log2(v->scale) + 2 <= log_q) return CKKS_OK;
    return ckks_error_set(err, CKKS_PRECISION, n->source,
                          "its values reach %.4g on the calibration rows, these parameters carry %.4g: scale "
                          "the inputs or train with weight decay",
                          peak, exp2(log_q - 2) / v->scale);
}

static double node_peak(const ir_node *n) {
    return fmax(fabs(n->minimum), fabs(n->maximum));
}

static double largest_deviation(const emission *e, uint32_t node) {
    double largest = 0;
    for (uint32_t i = 0; i < e->graph->nodes[node].count; i++)
        largest = fmax(largest, e->values[node].variance[i]);
    return sqrt(largest);
}

static ckks_status value_at_level(uint32_t *out, emission *e, uint32_t node, uint32_t level,
                                  ckks_error *err) {
    emitted_value *v = &e->values[node];
    plan_value result = *builder_get(&e->builder, v->value);
    *out = v->value;
    if (result.level == level) return CKKS_OK;
    CKKS_ASSERT(result.level > level);
    *out = v->dropped;
    if (v->dropped != UINT32_MAX && builder_get(&e->builder, v->dropped)->level == level) return CKKS_OK;
    result.level = level;
    const plan_operation drop = {
        .kind = PLAN_DROP_LEVEL, .a = v->value, .source = e->graph->nodes[node].source};
    const ckks_status rc = builder_operation(&v->dropped, &e->builder, &drop, &result, err);
    *out = v->dropped;
    return rc;
}

/* ---- linear layers ---- */

/* p with RN(s * p) == target: all terms of a sum meet at one scale */
static bool weight_scale(double *p, double s, double target) {
    const double start = target / s;
    for (int ulps = 0; ulps <= 2 * ULPS_MAX; ulps++) {
        double candidate = start;
        for (int i = 0; i < (ulps + 1) / 2; i++) candidate = nextafter(candidate, ulps & 1 ? INFINITY : 0);
        if (s * candidate == target) {
            *p = candidate;
            return true;
        }
    }
    return false;
}

/* the dense matrix, in multiples of 1 / scale */
static ckks_status make_matrix(plan_matrix *out, const emission *e, const sparse *m, double scale,
                               ckks_error *err) {
    const uint64_t entries = (uint64_t)m->row_count * m->column_count;
    if (entries > MATRIX_ENTRIES_MAX)
        return ckks_error_set(err, CKKS_TOO_LARGE, "matrix",
                              "%u x %u weights in one layer: use --layout latency", m->row_count,
                              m->column_count);
    double *weights = arena_take(e->memory, entries, sizeof *weights);
    if (!weights) return NO_MEMORY(err);
    for (uint32_t r = 0; r < m->row_count; r++)
        for (uint32_t k = m->row_start[r]; k < m->row_start[r + 1]; k++)
            weights[(uint64_t)r * m->column_count + m->column[k]] = nearbyint(m->value[k] * scale) / scale;
    *out = (plan_matrix){
        .weights = weights, .row_count = m->row_count, .column_count = m->column_count, .scale = scale};
    return CKKS_OK;
}

/* A value at the large scale leaves weights no room but for whole numbers: fine for what only passes it on.
 */
static bool is_fine(const plan_matrix *rounded, const sparse *m, double scale) {
    if (scale >= ldexp(1, WEIGHT_BITS_LEAST)) return true;
    for (uint32_t r = 0; r < m->row_count; r++)
        for (uint32_t k = m->row_start[r]; k < m->row_start[r + 1]; k++)
            if (rounded->weights[(uint64_t)r * m->column_count + m->column[k]] != m->value[k]) return false;
    return true;
}

static ckks_status emit_term(uint32_t *out, emission *e, const ir_node *n, const ir_term *term,
                             const plan_value *result, bool with_bias, double *variance, ckks_error *err) {
    plan_matrix matrix;
    double scale;
    plan_operation op = {.kind = PLAN_MATRIX_PRODUCT, .source = n->source};
    ckks_status rc = value_at_level(&op.a, e, term->from, result->level, err);
    if (rc != CKKS_OK) return rc;
    plan_value made = *result;
    made.component_count = builder_get(&e->builder, op.a)->component_count;
    if (!weight_scale(&scale, builder_get(&e->builder, op.a)->scale, result->scale) || scale < 1)
        return ckks_error_set(err, CKKS_UNSUPPORTED, n->source,
                              "its inputs are at scales that do not meet: compile this model with --layout "
                              "latency");
    if ((rc = make_matrix(&matrix, e, term->matrix, scale, err)) != CKKS_OK) return rc;
    if (!is_fine(&matrix, term->matrix, scale)) {
        if (!throughput_is_large(e->graph, term->from)) return CKKS_PRECISION; /* other sizes may do */
        return ckks_error_set(
            err, CKKS_UNSUPPORTED, n->source,
            "its input is an activation's as well, or a product's, at a scale that leaves no "
            "room for weights: compile this model with --layout latency");
    }
    if (with_bias) matrix.bias = n->bias, matrix.bias_scale = result->scale;
    for (uint32_t r = 0; r < matrix.row_count; r++)
        for (uint32_t c = 0; c < matrix.column_count; c++) {
            const double w = matrix.weights[(uint64_t)r * matrix.column_count + c];
            variance[r] += w * w * e->values[term->from].variance[c];
        }
    if ((rc = builder_matrix(&op.matrix, &e->builder, &matrix, err)) != CKKS_OK) return rc;
    return builder_operation(out, &e->builder, &op, &made, err);
}

static bool has_bias(const ir_node *n) {
    for (uint32_t i = 0; i < n->count; i++)
        if (n->bias[i] != 0) return true;
    return false;
}

static ckks_status emit_linear(uint32_t *out, emission *e, uint32_t number, emitted_layer *row,
                               ckks_error *err) {
    const ir_node *n = &e->graph->nodes[number];
    plan_value result = {.level = e->levels[number], .batch_count = n->count};
    ckks_status rc = CKKS_OK;
    if (!n->term_count)
        return ckks_error_set(err, CKKS_UNSUPPORTED, n->source, "its result does not depend on the input");
    const plan_value *operand = builder_get(&e->builder, e->values[n->terms[0].from].value);
    const double first = operand->scale;
    result.component_count = operand->component_count;
    result.scale =
        first * (throughput_is_last(e->graph, number) ? ldexp(1, (int)e->choice->weight_bits)
                                                      : exp2(nearbyint(log2(large_scale(e) / first))));
    for (uint32_t t = 0; t < n->term_count && rc == CKKS_OK; t++) {
        uint32_t value = 0;
        rc = emit_term(&value, e, n, &n->terms[t], &result, t == 0 && has_bias(n), e->values[number].variance,
                       err);
        if (rc != CKKS_OK || t == 0) {
            *out = value;
            continue;
        }
        const uint32_t components = builder_get(&e->builder, value)->component_count;
        if (result.component_count < components) result.component_count = components;
        const plan_operation add = {.kind = PLAN_ADD, .a = *out, .b = value, .source = n->source};
        rc = builder_operation(out, &e->builder, &add, &result, err);
    }
    row->kind = "dense";
    row->elements_in = e->graph->nodes[n->terms[0].from].count;
    return rc;
}

/* ---- activations ---- */

static ckks_status emit_product(uint32_t *out, emission *e, uint32_t number, emitted_layer *row,
                                ckks_error *err) {
    const ir_node *n = &e->graph->nodes[number];
    const uint32_t level = e->levels[number] + 1;
    const bool is_square = n->a == n->b;
    plan_operation op = {.kind = is_square ? PLAN_SQUARE : PLAN_MULTIPLY, .source = n->source};
    uint32_t value;
    ckks_status rc = value_at_level(&op.a, e, n->a, level, err);
    if (rc == CKKS_OK) rc = value_at_level(&op.b, e, n->b, level, err);
    if (rc != CKKS_OK) return rc;
    plan_value product = *builder_get(&e->builder, op.a);
    product.component_count = 3;
    product.scale *= builder_get(&e->builder, op.b)->scale;
    if (is_square) op.b = 0;
    if ((rc = check_size(e, n, node_peak(n), &product, err)) != CKKS_OK) return rc;
    if ((rc = builder_operation(&value, &e->builder, &op, &product, err)) != CKKS_OK) return rc;
    const bool has_key =
        e->params->p_count != 0; /* else three components stay: nothing multiplies them again */
    plan_value result = product;
    result.component_count = has_key ? 2 : 3;
    result.level--;
    result.scale /= (double)e->params->prime[level];
    const plan_operation last = {.kind = has_key ? PLAN_RELINEARISE : PLAN_RESCALE,
                                 .a = value,
                                 .with_rescale = has_key,
                                 .source = n->source};
    const double added =
        has_key ? noise_rounding(e->params, result.scale) + noise_key_switch(e->params, level, product.scale)
                : noise_rounding_three(e->params, result.scale);
    row->kind = is_square ? "square" : "product";
    row->elements_in = n->count;
    noise_product_ending(e->values[number].variance, added, &e->graph->nodes[n->a], e->values[n->a].variance,
                         &e->graph->nodes[n->b], e->values[n->b].variance);
    return builder_operation(out, &e->builder, &last, &result, err);
}

static ckks_status emit_polynomial(uint32_t *out, emission *e, uint32_t number, emitted_layer *row,
                                   ckks_error *err) {
    const ir_node *n = &e->graph->nodes[number];
    const uint32_t depth = chebyshev_depth(n->degree);
    plan_operation op = {.kind = PLAN_CHEBYSHEV, .source = n->source};
    const plan_polynomial polynomial = {.coefficients = n->coefficients, .degree = n->degree};
    ckks_status rc = value_at_level(&op.a, e, n->a, e->levels[number] + depth, err);
    if (rc == CKKS_OK) rc = builder_polynomial(&op.polynomial, &e->builder, &polynomial, err);
    if (rc != CKKS_OK) return rc;
    plan_value result = *builder_get(&e->builder, op.a);
    const double scale_in = result.scale;
    result.level = e->levels[number];
    result.scale = wanted_scale(e, number);
    row->kind = ir_function_name(n->function);
    row->elements_in = n->count;
    row->degree = n->degree;
    row->interval_low = n->interval_low, row->interval_high = n->interval_high;
    row->polynomial_error = n->polynomial_error;
    /* powers are formed at the large scale; the sums that lead to the result end at its own */
    noise_polynomial(e->values[number].variance, e->params, scale_in, n, e->values[n->a].variance);
    for (uint32_t i = 0; i < n->count; i++)
        e->values[number].variance[i] += depth * noise_rounding(e->params, result.scale);
    return builder_operation(out, &e->builder, &op, &result, err);
}

static ckks_status emit_input(uint32_t *out, emission *e, ckks_error *err) {
    const plan_value input = {.level = e->levels[0],
                              .component_count = 2,
                              .batch_count = e->graph->nodes[0].count,
                              .scale = wanted_scale(e, 0)};
    const double fresh = e->choice->secret_key_only ? noise_fresh_secret(e->params, input.scale)
                                                    : noise_fresh(e->params, input.scale);
    for (uint32_t i = 0; i < input.batch_count; i++) e->values[0].variance[i] = fresh;
    return builder_value(out, &e->builder, &input, err);
}

static ckks_status emit_node(emission *e, uint32_t number, ckks_error *err) {
    const ir_node *n = &e->graph->nodes[number];
    emitted_layer *row = &e->out->layers[e->out->layer_count];
    uint32_t value = 0;
    ckks_status rc;
    if (!(e->values[number].variance = arena_take(e->memory, n->count, sizeof(double))))
        return NO_MEMORY(err);
    *row = (emitted_layer){.source = n->source, .elements_out = n->count, .level_out = e->levels[number]};
    row->level_in = row->level_out + (n->kind == IR_POLYNOMIAL ? chebyshev_depth(n->degree)
                                      : n->kind == IR_PRODUCT  ? 1
                                                               : 0);
    rc = n->kind == IR_INPUT     ? emit_input(&value, e, err)
         : n->kind == IR_LINEAR  ? emit_linear(&value, e, number, row, err)
         : n->kind == IR_PRODUCT ? emit_product(&value, e, number, row, err)
                                 : emit_polynomial(&value, e, number, row, err);
    if (rc != CKKS_OK) return rc;
    e->values[number].value = value;
    if ((rc = check_size(e, n, node_peak(n), builder_get(&e->builder, value), err)) != CKKS_OK) return rc;
    row->noise = largest_deviation(e, number);
    if (n->kind != IR_INPUT) e->out->layer_count++;
    return CKKS_OK;
}

ckks_status program_emit_throughput(emitted_program *out, const ir_graph *g, const throughput_choice *choice,
                                    const ckks_params *params, arena *memory, ckks_error *err) {
    emission e = {.graph = g, .choice = choice, .params = params, .memory = memory, .out = out};
    ckks_status rc;
    *out = (emitted_program){.is_batch = true, .secret_key_only = choice->secret_key_only};
    plan_builder_init(&e.builder, e.params, memory);
    e.levels = arena_take(memory, g->count, sizeof *e.levels);
    e.values = arena_take(memory, g->count, sizeof *e.values);
    out->layers = arena_take(memory, g->count, sizeof *out->layers);
    uint32_t *output = arena_take(memory, 1, sizeof *output);
    if (!e.levels || !e.values || !out->layers || !output) return NO_MEMORY(err);
    throughput_levels(e.levels, g);
    for (uint32_t i = 0; i < g->count; i++) {
        e.values[i].dropped = UINT32_MAX;
        if (g->nodes[i].use_count && (rc = emit_node(&e, i, err)) != CKKS_OK) return rc;
    }
    *output = e.values[g->output].value;
    plan_builder_finish(&out->plan, &e.builder, 1);
    out->plains = e.builder.plains.items;
    out->matrices = e.builder.matrices.items;
    out->plan.output_count = 1;
    out->plan.outputs = output;
    out->noise = largest_deviation(&e, g->output);
    return CKKS_OK;
}
