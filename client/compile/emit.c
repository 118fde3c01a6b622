#include "client/compile/emit.h"

#include "client/compile/calibrate.h"
#include "client/compile/layout.h"
#include "client/compile/noise.h"
#include "client/compile/plan_builder.h"
#include "kernels/evaluator/chebyshev.h"

#include <math.h>

#define NO_MEMORY(err) ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for the program")

/* how far from its nominal place a scale may be moved to find one that is met exactly */
#define TARGET_ULPS_MAX 256
#define PLAIN_ULPS_MAX  4

/* What a graph node has become. */
typedef struct emitted_value {
    uint32_t value;   /* of the plan, at its own level */
    uint32_t dropped; /* the same value at a lower level, UINT32_MAX = none yet */
    double *variance; /* [count]: of the error of each element */
} emitted_value;

typedef struct emission {
    plan_builder builder;
    const ir_graph *graph;
    const ckks_params *params;
    double nominal; /* scale */
    arena *memory;
    uint32_t *levels;
    emitted_value *values;
    layout_rotations rotations;
    emitted_program *out;
} emission;

static double magnitude(const ir_node *n) {
    return fmax(fabs(n->minimum), fabs(n->maximum));
}

static double largest_deviation(const emission *e, uint32_t node) {
    double largest = 0;
    for (uint32_t i = 0; i < e->graph->nodes[node].count; i++)
        largest = fmax(largest, e->values[node].variance[i]);
    return sqrt(largest);
}

/* ---- scales ---- */

/* p with RN(RN(s * p) / q) == target, if a double has that */
static bool plain_scale(double *p, double s, double q, double target) {
    const double start = target * q / s;
    for (int ulps = 0; ulps <= 2 * PLAIN_ULPS_MAX; ulps++) {
        double candidate = start;
        for (int i = 0; i < (ulps + 1) / 2; i++) candidate = nextafter(candidate, ulps & 1 ? INFINITY : 0);
        if (s * candidate / q == target) {
            *p = candidate;
            return true;
        }
    }
    return false;
}

/* the scale at which a value should arrive: before squares only, the root that squares back to the nominal */
static double wanted_scale(const emission *e, uint32_t node) {
    const ir_graph *g = e->graph;
    bool is_squared = false;
    uint32_t level = 0;
    for (uint32_t i = node + 1; i < g->count; i++) {
        const ir_node *n = &g->nodes[i];
        if (!n->use_count) continue;
        const bool is_square = n->kind == IR_PRODUCT && n->a == node && n->b == node;
        bool is_used = n->kind != IR_LINEAR && n->kind != IR_INPUT &&
                       (n->a == node || (n->kind == IR_PRODUCT && n->b == node));
        for (uint32_t t = 0; t < n->term_count; t++) is_used = is_used || n->terms[t].from == node;
        if (is_used && !is_square) return e->nominal;
        if (is_square) is_squared = true, level = e->levels[i] + 1;
    }
    return is_squared ? sqrt(e->nominal * (double)e->params->prime[level]) : e->nominal;
}

/* ---- operations ---- */

/* a plan value that the node's value is at exactly `level` */
static ckks_status value_at_level(uint32_t *out, emission *e, uint32_t node, uint32_t level,
                                  ckks_error *err) {
    emitted_value *v = &e->values[node];
    const plan_value *have = builder_get(&e->builder, v->value);
    *out = v->value;
    if (have->level == level) return CKKS_OK;
    CKKS_ASSERT(have->level > level);
    *out = v->dropped;
    if (v->dropped != UINT32_MAX && builder_get(&e->builder, v->dropped)->level == level) return CKKS_OK;
    plan_value result = *have;
    result.level = level;
    const plan_operation drop = {
        .kind = PLAN_DROP_LEVEL, .a = v->value, .source = e->graph->nodes[node].source};
    const ckks_status rc = builder_operation(&v->dropped, &e->builder, &drop, &result, err);
    *out = v->dropped;
    return rc;
}

/* values too large for q0 would wrap around when they are decrypted or rescaled at the last level */
static ckks_status check_magnitude(const emission *e, const ir_node *n, ckks_error *err) {
    const double limit = (double)e->params->prime[0] / e->nominal / 4;
    if (magnitude(n) <= limit) return CKKS_OK;
    return ckks_error_set(
        err, CKKS_PRECISION, n->source,
        "its values reach %.4g on the calibration rows, the parameters carry %.4g: scale the inputs or "
        "train with weight decay",
        magnitude(n), limit);
}

/* d[(m - giant) mod slots] at m: rotated right, so that it meets its input after the giant step */
static ckks_status add_diagonal(uint32_t *out, emission *e, const layout_matrix *m, const layout_diagonal *d,
                                uint32_t giant, uint32_t level, bool with_p, double scale, ckks_error *err) {
    double *slots = arena_take(e->memory, m->slot_count, sizeof *slots);
    if (!slots) return NO_MEMORY(err);
    for (uint32_t i = 0; i < m->slot_count; i++) slots[i] = d->slots[(i - giant) & (m->slot_count - 1)];
    const plan_plain plain = {
        .slots = slots, .slot_count = m->slot_count, .level = level, .with_p = with_p, .scale = scale};
    return builder_plain(out, &e->builder, &plain, err);
}

static uint32_t index_of(const uint32_t *list, uint32_t count, uint32_t wanted) {
    uint32_t i = 0;
    while (i < count && list[i] != wanted) i++;
    CKKS_ASSERT(i < count);
    return i;
}

static int32_t *signed_steps(arena *memory, const uint32_t *steps, uint32_t count) {
    int32_t *list = arena_take(memory, count, sizeof *list);
    for (uint32_t i = 0; list && i < count; i++) list[i] = (int32_t)steps[i];
    return list;
}

/* one dense term by diagonals: value `x` at `level` -> a value one level below, at exactly `target` */
static ckks_status emit_transform(uint32_t *out, emission *e, uint32_t x, const layout_matrix *m,
                                  double scale, const plan_value *result, emitted_layer *row,
                                  const char *source, ckks_error *err) {
    layout_split split;
    ckks_status rc = layout_choose_split(&split, m, &e->rotations, e->memory, err);
    if (rc != CKKS_OK) return rc;
    plan_transform_term *terms = arena_take(e->memory, m->count, sizeof *terms);
    plan_transform t = {.baby_count = split.baby_count,
                        .giant_count = split.giant_count,
                        .term_count = m->count,
                        .terms = terms};
    t.baby_steps = signed_steps(e->memory, split.babies, split.baby_count);
    t.giant_steps = signed_steps(e->memory, split.giants, split.giant_count);
    if (!terms || !t.baby_steps || !t.giant_steps) return NO_MEMORY(err);
    for (uint32_t d = 0; d < m->count; d++) {
        const uint32_t baby = m->diagonals[d].step % split.stride, giant = m->diagonals[d].step - baby;
        terms[d].baby = index_of(split.babies, split.baby_count, baby);
        terms[d].giant = index_of(split.giants, split.giant_count, giant);
        rc =
            add_diagonal(&terms[d].plain, e, m, &m->diagonals[d], giant, result->level + 1, true, scale, err);
        if (rc != CKKS_OK) return rc;
    }
    row->diagonals += m->count, row->babies += split.baby_count - 1, row->giants += split.giant_count - 1;
    plan_operation op = {.kind = PLAN_LINEAR_TRANSFORM, .a = x, .with_rescale = true, .source = source};
    if ((rc = builder_transform(&op.transform, &e->builder, &t, err)) != CKKS_OK) return rc;
    return builder_operation(out, &e->builder, &op, result, err);
}

/* one diagonal at step 0 needs no rotation and no key */
static ckks_status emit_elementwise(uint32_t *out, emission *e, uint32_t x, const layout_matrix *m,
                                    double scale, const plan_value *result, emitted_layer *row,
                                    const char *source, ckks_error *err) {
    plan_operation op = {.kind = PLAN_MULTIPLY_PLAIN, .a = x, .source = source};
    plan_value product = *builder_get(&e->builder, x);
    product.scale *= scale;
    uint32_t value;
    ckks_status rc = add_diagonal(&op.plain, e, m, &m->diagonals[0], 0, product.level, false, scale, err);
    if (rc == CKKS_OK) rc = builder_operation(&value, &e->builder, &op, &product, err);
    if (rc != CKKS_OK) return rc;
    const plan_operation rescale = {.kind = PLAN_RESCALE, .a = value, .source = source};
    row->diagonals++;
    return builder_operation(out, &e->builder, &rescale, result, err);
}

static ckks_status emit_fold(uint32_t *value, emission *e, const layout_matrix *m, const plan_value *result,
                             emitted_layer *row, const char *source, ckks_error *err) {
    uint32_t count = 0;
    for (uint32_t step = m->fold_from; step > m->fold_to; step /= 2) count++;
    if (!count) return CKKS_OK;
    int32_t *steps = arena_take(e->memory, count, sizeof *steps);
    if (!steps) return NO_MEMORY(err);
    for (uint32_t i = 0; i < count; i++) {
        steps[i] = (int32_t)(m->fold_from >> (i + 1));
        e->rotations.is_used[steps[i]] = 1;
    }
    row->folds += count;
    const plan_operation op = {
        .kind = PLAN_INNER_SUM, .a = *value, .steps = steps, .step_count = count, .source = source};
    return builder_operation(value, &e->builder, &op, result, err);
}

static ckks_status emit_term(uint32_t *out, emission *e, const ir_node *n, const ir_term *term, double scale,
                             const plan_value *result, emitted_layer *row, double *variance,
                             ckks_error *err) {
    layout_matrix m;
    uint32_t x;
    ckks_status rc = layout_create(&m, term->matrix, e->memory, err);
    if (rc == CKKS_OK) rc = value_at_level(&x, e, term->from, result->level + 1, err);
    if (rc != CKKS_OK) return rc;
    const bool is_elementwise = m.count == 1 && m.diagonals[0].step == 0;
    const noise_dense noise = {.level = result->level + 1,
                               .scale = builder_get(&e->builder, x)->scale,
                               .plain_scale = scale,
                               .slot_count = m.slot_count,
                               .result_scale = result->scale,
                               .is_rotated = !is_elementwise,
                               .fold = (double)m.fold_from / m.fold_to};
    noise_dense_add(variance, e->params, &noise, term->matrix, e->values[term->from].variance,
                    e->graph->nodes[term->from].peak);
    rc = is_elementwise ? emit_elementwise(out, e, x, &m, scale, result, row, n->source, err)
                        : emit_transform(out, e, x, &m, scale, result, row, n->source, err);
    return rc == CKKS_OK ? emit_fold(out, e, &m, result, row, n->source, err) : rc;
}

/* the scale nearest to the wanted one that all terms can meet exactly; scales[term] are their plaintexts' */
static ckks_status meet_scales(double *target, double *scales, const emission *e, const ir_node *n, double q,
                               double wanted, ckks_error *err) {
    for (int ulps = 0; ulps <= 2 * TARGET_ULPS_MAX; ulps++) {
        *target = wanted;
        for (int i = 0; i < (ulps + 1) / 2; i++) *target = nextafter(*target, ulps & 1 ? INFINITY : 0);
        uint32_t t = 0;
        while (t < n->term_count &&
               plain_scale(&scales[t], builder_get(&e->builder, e->values[n->terms[t].from].value)->scale, q,
                           *target))
            t++;
        if (t == n->term_count) return CKKS_OK;
    }
    return ckks_error_set(err, CKKS_INTERNAL, n->source, "no scale is met exactly by its %u terms",
                          n->term_count);
}

static ckks_status add_bias(uint32_t *value, emission *e, const ir_node *n, const plan_value *result,
                            ckks_error *err) {
    const uint32_t period = layout_period(n->count);
    bool is_zero = true;
    double *slots = arena_take(e->memory, period, sizeof *slots);
    if (!slots) return NO_MEMORY(err);
    for (uint32_t i = 0; i < n->count; i++) {
        slots[i] = n->bias[i];
        is_zero = is_zero && n->bias[i] == 0;
    }
    if (is_zero) return CKKS_OK;
    const plan_plain plain = {
        .slots = slots, .slot_count = period, .level = result->level, .scale = result->scale};
    plan_operation op = {.kind = PLAN_ADD_PLAIN, .a = *value, .source = n->source};
    const ckks_status rc = builder_plain(&op.plain, &e->builder, &plain, err);
    return rc == CKKS_OK ? builder_operation(value, &e->builder, &op, result, err) : rc;
}

static ckks_status emit_linear(uint32_t *out, emission *e, uint32_t number, emitted_layer *row,
                               ckks_error *err) {
    const ir_node *n = &e->graph->nodes[number];
    plan_value result = {.level = e->levels[number], .component_count = 2, .batch_count = 1};
    double *scales = arena_take(e->memory, n->term_count, sizeof *scales);
    const double q = (double)e->params->prime[result.level + 1];
    if (!scales) return NO_MEMORY(err);
    ckks_status rc = meet_scales(&result.scale, scales, e, n, q, wanted_scale(e, number), err);
    for (uint32_t t = 0; t < n->term_count && rc == CKKS_OK; t++) {
        uint32_t value = 0;
        rc = emit_term(&value, e, n, &n->terms[t], scales[t], &result, row, e->values[number].variance, err);
        if (rc != CKKS_OK || t == 0) {
            *out = value;
            continue;
        }
        const plan_operation add = {.kind = PLAN_ADD, .a = *out, .b = value, .source = n->source};
        rc = builder_operation(out, &e->builder, &add, &result, err);
    }
    row->kind = "dense";
    row->elements_in = n->term_count ? e->graph->nodes[n->terms[0].from].count : 0;
    return rc == CKKS_OK ? add_bias(out, e, n, &result, err) : rc;
}

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
    if (is_square) op.b = 0;
    plan_value product = *builder_get(&e->builder, op.a);
    product.component_count = 3;
    product.scale *= is_square ? product.scale : builder_get(&e->builder, op.b)->scale;
    if ((rc = builder_operation(&value, &e->builder, &op, &product, err)) != CKKS_OK) return rc;
    plan_value result = product;
    result.component_count = 2;
    result.level--;
    result.scale /= (double)e->params->prime[level];
    const plan_operation relinearise = {
        .kind = PLAN_RELINEARISE, .a = value, .with_rescale = true, .source = n->source};
    row->kind = is_square ? "square" : "product";
    row->elements_in = n->count;
    noise_product(e->values[number].variance, e->params, level, product.scale, result.scale,
                  &e->graph->nodes[n->a], e->values[n->a].variance, &e->graph->nodes[n->b],
                  e->values[n->b].variance);
    return builder_operation(out, &e->builder, &relinearise, &result, err);
}

static ckks_status emit_polynomial(uint32_t *out, emission *e, uint32_t number, emitted_layer *row,
                                   ckks_error *err) {
    const ir_node *n = &e->graph->nodes[number];
    plan_operation op = {.kind = PLAN_CHEBYSHEV, .source = n->source};
    const plan_polynomial polynomial = {.coefficients = n->coefficients, .degree = n->degree};
    ckks_status rc = value_at_level(&op.a, e, n->a, e->levels[number] + chebyshev_depth(n->degree), err);
    if (rc == CKKS_OK) rc = builder_polynomial(&op.polynomial, &e->builder, &polynomial, err);
    if (rc != CKKS_OK) return rc;
    plan_value result = *builder_get(&e->builder, op.a);
    result.level = e->levels[number];
    result.scale = wanted_scale(e, number);
    row->kind = ir_function_name(n->function);
    row->elements_in = n->count;
    row->degree = n->degree;
    row->interval_low = n->interval_low, row->interval_high = n->interval_high;
    row->polynomial_error = n->polynomial_error;
    noise_polynomial(e->values[number].variance, e->params, result.scale, n, e->values[n->a].variance);
    return builder_operation(out, &e->builder, &op, &result, err);
}

static ckks_status emit_input(emission *e, ckks_error *err) {
    const plan_value input = {
        .level = e->levels[0], .component_count = 2, .batch_count = 1, .scale = wanted_scale(e, 0)};
    for (uint32_t i = 0; i < e->graph->nodes[0].count; i++)
        e->values[0].variance[i] = noise_fresh(e->params, input.scale);
    e->out->input_slots = layout_period(e->graph->nodes[0].count);
    return builder_value(&e->values[0].value, &e->builder, &input, err);
}

static ckks_status emit_node(emission *e, uint32_t number, ckks_error *err) {
    const ir_node *n = &e->graph->nodes[number];
    emitted_layer *row = &e->out->layers[e->out->layer_count];
    ckks_status rc = check_magnitude(e, n, err);
    if (rc != CKKS_OK) return rc;
    if (!(e->values[number].variance = arena_take(e->memory, n->count, sizeof(double))))
        return NO_MEMORY(err);
    if (n->kind == IR_INPUT) return emit_input(e, err);
    *row = (emitted_layer){.source = n->source, .elements_out = n->count, .level_out = e->levels[number]};
    row->level_in = row->level_out + (n->kind == IR_POLYNOMIAL ? chebyshev_depth(n->degree) : 1);
    uint32_t value = 0;
    rc = n->kind == IR_LINEAR    ? emit_linear(&value, e, number, row, err)
         : n->kind == IR_PRODUCT ? emit_product(&value, e, number, row, err)
                                 : emit_polynomial(&value, e, number, row, err);
    if (rc != CKKS_OK) return rc;
    e->values[number].value = value;
    row->noise = largest_deviation(e, number);
    e->out->rotation_count += row->babies + row->giants + row->folds;
    e->out->layer_count++;
    return CKKS_OK;
}

ckks_status program_emit(emitted_program *out, const ir_graph *g, const parameter_choice *choice,
                         arena *memory, ckks_error *err) {
    emission e = {
        .graph = g, .params = &choice->params, .nominal = choice->scale, .memory = memory, .out = out};
    ckks_status rc;
    *out = (emitted_program){0};
    plan_builder_init(&e.builder, e.params, memory);
    e.levels = arena_take(memory, g->count, sizeof *e.levels);
    e.values = arena_take(memory, g->count, sizeof *e.values);
    out->layers = arena_take(memory, g->count, sizeof *out->layers);
    e.rotations.capacity = params_slot_count_max(e.params);
    e.rotations.is_used = arena_take(memory, e.rotations.capacity, 1);
    uint32_t *output = arena_take(memory, 1, sizeof *output);
    if (!e.levels || !e.values || !out->layers || !e.rotations.is_used || !output) return NO_MEMORY(err);
    graph_levels(e.levels, g);
    for (uint32_t i = 0; i < g->count; i++) {
        e.values[i].dropped = UINT32_MAX;
        if (g->nodes[i].use_count && (rc = emit_node(&e, i, err)) != CKKS_OK) return rc;
    }
    *output = e.values[g->output].value;
    plan_builder_finish(&out->plan, &e.builder, 1);
    out->plains = e.builder.plains.items;
    out->plan.output_count = 1;
    out->plan.outputs = output;
    out->output_slots = layout_period(g->nodes[g->output].count);
    out->noise = largest_deviation(&e, g->output);
    return CKKS_OK;
}
