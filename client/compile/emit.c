#include "client/compile/emit.h"

#include "client/compile/calibrate.h"
#include "client/compile/layout_search.h"
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
    uint32_t *values;  /* [block]: of the plan, at its own level */
    uint32_t *dropped; /* [block]: the same value at a lower level, UINT32_MAX = none yet */
    double *variance;  /* [count]: of the error of each element */
} emitted_value;

typedef struct emission {
    plan_builder builder;
    const ir_graph *graph;
    const ckks_params *params;
    double nominal; /* scale */
    arena *memory;
    uint32_t *levels;
    slot_map *maps; /* [node] */
    emitted_value *values;
    layout_rotations rotations;
    double shared_cost; /* of a hoisted rotation that several output blocks share */
    double end_scale;   /* of scores that are not rescaled */
    bool is_one_batch;  /* the output's blocks are the entries of one value */
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

/*
 * Scores that are not rescaled fill what q0 has: for inputs anywhere in the declared range nothing may wrap
 * around. What there is is divided between the input's scale S and the weights' W so that the errors of
 * encryption (and rotation), A / S^2, and of rounded weights, B / W^2, come to the least sum.
 */
static ckks_status choose_end_scale(emission *e, ckks_error *err) {
    const ir_node *n = &e->graph->nodes[e->graph->output], *x = &e->graph->nodes[0];
    const double fresh = noise_fresh(e->params, 1) + noise_key_switch(e->params, 0, 1);
    double worst = 0, norm = 0, squares = 0, low, high;
    ir_input_range(&low, &high, e->graph);
    const double widest = fmax(fabs(low), fabs(high));
    for (uint32_t i = 0; i < n->count; i++) {
        double sum = fabs(n->bias[i]), square = 0;
        for (uint32_t t = 0; t < n->term_count; t++) {
            const sparse *m = n->terms[t].matrix;
            for (uint32_t k = m->row_start[i]; k < m->row_start[i + 1]; k++)
                sum += fabs(m->value[k]) * widest, square += m->value[k] * m->value[k];
        }
        worst = fmax(worst, sum), norm = fmax(norm, square);
    }
    for (uint32_t i = 0; i < x->count; i++) squares += x->peak[i] * x->peak[i];
    if (!(worst > 0) || !(squares > 0))
        return ckks_error_set(err, CKKS_PRECISION, n->source,
                              "all its weights or inputs are zero: there is nothing to compute");
    e->end_scale = exp2(floor(log2((double)e->params->prime[0] / 2 / worst)));
    const double rounded = squares * params_slot_count_max(e->params) / 12;
    e->nominal = exp2(round(log2(e->end_scale * sqrt(fresh * norm / rounded)) / 2));
    return CKKS_OK;
}

/* ---- operations ---- */

/* a plan value that one block of the node's value is at exactly `level` */
static ckks_status value_at_level(uint32_t *out, emission *e, uint32_t node, uint32_t block, uint32_t level,
                                  ckks_error *err) {
    const uint32_t own = e->values[node].values[block];
    uint32_t *dropped = &e->values[node].dropped[block];
    plan_value result = *builder_get(&e->builder, own);
    *out = own;
    if (result.level == level) return CKKS_OK;
    CKKS_ASSERT(result.level > level);
    *out = *dropped;
    if (*dropped != UINT32_MAX && builder_get(&e->builder, *dropped)->level == level) return CKKS_OK;
    result.level = level;
    const plan_operation drop = {.kind = PLAN_DROP_LEVEL, .a = own, .source = e->graph->nodes[node].source};
    const ckks_status rc = builder_operation(dropped, &e->builder, &drop, &result, err);
    *out = *dropped;
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

/* d[(m - shift) mod slots] at m */
static ckks_status add_diagonal(uint32_t *out, emission *e, const layout_matrix *m, const layout_diagonal *d,
                                uint32_t shift, uint32_t level, bool with_p, double scale, ckks_error *err) {
    double *slots = arena_take(e->memory, m->slot_count, sizeof *slots);
    if (!slots) return NO_MEMORY(err);
    for (uint32_t i = 0; i < m->slot_count; i++) slots[i] = d->slots[(i - shift) & (m->slot_count - 1)];
    const plan_plain plain = {
        .slots = slots, .slot_count = m->slot_count, .level = level, .with_p = with_p, .scale = scale};
    return builder_plain(out, &e->builder, &plain, err);
}

static uint32_t nonzero_count(const int32_t *steps, uint32_t count) {
    uint32_t nonzero = 0;
    for (uint32_t i = 0; i < count; i++) nonzero += steps[i] != 0;
    return nonzero;
}

/* one pair of blocks by diagonals: value `x` -> a value at result's level, one below or the same, and scale
 */
static ckks_status emit_transform(uint32_t *out, emission *e, uint32_t x, const layout_matrix *m,
                                  double scale, const plan_value *result, emitted_layer *row,
                                  const char *source, ckks_error *err) {
    layout_split split;
    const uint32_t level = builder_get(&e->builder, x)->level;
    ckks_status rc = layout_choose_split(&split, m, &e->rotations, e->memory, err);
    if (rc != CKKS_OK) return rc;
    plan_transform_term *terms = arena_take(e->memory, m->count, sizeof *terms);
    if (!terms) return NO_MEMORY(err);
    const plan_transform t = {.baby_steps = split.babies,
                              .giant_steps = split.giants,
                              .baby_count = split.baby_count,
                              .giant_count = split.giant_count,
                              .term_count = m->count,
                              .terms = terms};
    for (uint32_t d = 0; d < m->count; d++) {
        terms[d] = (plan_transform_term){.baby = split.term_baby[d], .giant = split.term_giant[d]};
        rc = add_diagonal(&terms[d].plain, e, m, &m->diagonals[d], split.term_shift[d], level, true, scale,
                          err);
        if (rc != CKKS_OK) return rc;
    }
    row->diagonals += m->count;
    row->babies += nonzero_count(split.babies, split.baby_count);
    row->giants += nonzero_count(split.giants, split.giant_count);
    plan_operation op = {
        .kind = PLAN_LINEAR_TRANSFORM, .a = x, .with_rescale = level > result->level, .source = source};
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
    uint32_t value = 0;
    ckks_status rc = add_diagonal(&op.plain, e, m, &m->diagonals[0], 0, product.level, false, scale, err);
    if (rc == CKKS_OK) rc = builder_operation(&value, &e->builder, &op, &product, err);
    if (rc != CKKS_OK || product.level == result->level) {
        *out = value;
        row->diagonals++;
        return rc;
    }
    const plan_operation rescale = {.kind = PLAN_RESCALE, .a = value, .source = source};
    row->diagonals++;
    return builder_operation(out, &e->builder, &rescale, result, err);
}

static bool is_elementwise(const layout_matrix *m) {
    return m->count == 1 && m->diagonals[0].step == 0;
}

/* adds up the slots at distances from/2, ..., to */
static ckks_status emit_fold(uint32_t *value, emission *e, uint32_t from, uint32_t to,
                             const plan_value *result, emitted_layer *row, const char *source,
                             ckks_error *err) {
    uint32_t count = 0;
    for (uint32_t step = from; step > to; step /= 2) count++;
    if (!count) return CKKS_OK;
    int32_t *steps = arena_take(e->memory, count, sizeof *steps);
    if (!steps) return NO_MEMORY(err);
    for (uint32_t i = 0; i < count; i++) {
        steps[i] = (int32_t)(from >> (i + 1));
        layout_mark(&e->rotations, steps[i]);
    }
    row->folds += count;
    const plan_operation op = {
        .kind = PLAN_INNER_SUM, .a = *value, .steps = steps, .step_count = count, .source = source};
    return builder_operation(value, &e->builder, &op, result, err);
}

/* One output block of a linear layer while it grows. */
typedef struct block_sum {
    uint32_t number, block; /* node, block */
    uint32_t from_level;    /* of what it reads */
    const double *scales;   /* [term]: of the plaintexts */
    plan_value result;
    emitted_layer *row;
    uint32_t value; /* UINT32_MAX: nothing yet */
    uint32_t
        *shared; /* [term][input block][block]: parts that were made together; UINT32_MAX: not so. NULL */
} block_sum;

static ckks_status add_part(uint32_t *sum, emission *e, uint32_t part, const block_sum *b, ckks_error *err) {
    if (*sum == UINT32_MAX) {
        *sum = part;
        return CKKS_OK;
    }
    const plan_operation add = {
        .kind = PLAN_ADD, .a = *sum, .b = part, .source = e->graph->nodes[b->number].source};
    return builder_operation(sum, &e->builder, &add, &b->result, err);
}

/* ---- blocks of the output that read the same block of the input ---- */

static uint32_t shared_index(const emission *e, const block_sum *b, uint32_t term, uint32_t x_block) {
    const ir_node *n = &e->graph->nodes[b->number];
    uint32_t at = x_block;
    for (uint32_t t = 0; t < term; t++) at += e->maps[n->terms[t].from].block_count;
    return at * e->maps[b->number].block_count + b->block;
}

/* the diagonals of a shared set of rotations, and which they are */
static ckks_status list_together(plan_transform *t, emission *e, const layout_matrix *const *matrices,
                                 uint32_t count, const block_sum *b, double scale, ckks_error *err) {
    uint32_t *place = arena_take(e->memory, e->rotations.capacity, sizeof *place); /* of a step, plus one */
    uint32_t terms = 0;
    *t = (plan_transform){.giant_count = count};
    for (uint32_t k = 0; k < count; k++) t->term_count += matrices[k]->count;
    plan_transform_term *term = arena_take(e->memory, t->term_count, sizeof *term);
    int32_t *babies = arena_take(e->memory, t->term_count, sizeof *babies);
    t->terms = term, t->baby_steps = babies;
    t->giant_steps = arena_take(e->memory, count, sizeof *t->giant_steps);
    if (!place || !term || !babies || !t->giant_steps) return NO_MEMORY(err);
    for (uint32_t k = 0; k < count; k++)
        for (uint32_t d = 0; d < matrices[k]->count; d++, terms++) {
            const layout_diagonal *diagonal = &matrices[k]->diagonals[d];
            if (!place[diagonal->step]) {
                babies[t->baby_count] = (int32_t)diagonal->step;
                place[diagonal->step] = ++t->baby_count;
                layout_mark(&e->rotations, diagonal->step);
            }
            term[terms] = (plan_transform_term){.giant = k, .baby = place[diagonal->step] - 1};
            /* as they are, and in memory that stays */
            const plan_plain plain = {.slots = diagonal->slots,
                                      .slot_count = matrices[k]->slot_count,
                                      .level = b->from_level,
                                      .with_p = true,
                                      .scale = scale};
            const ckks_status rc = builder_plain(&term[terms].plain, &e->builder, &plain, err);
            if (rc != CKKS_OK) return rc;
        }
    b->row->diagonals += terms;
    b->row->babies += nonzero_count(babies, t->baby_count);
    return CKKS_OK;
}

/* one set of hoisted rotations for all `count` matrices; values[k] is the result of matrix k, or, as one
 * batch, values[0] all of them */
static ckks_status emit_together(uint32_t *values, emission *e, uint32_t x,
                                 const layout_matrix *const *matrices, uint32_t count, const block_sum *b,
                                 double scale, bool is_one_batch, ckks_error *err) {
    plan_transform t;
    plan_operation op = {.kind = PLAN_LINEAR_TRANSFORM,
                         .a = x,
                         .with_rescale = b->from_level > b->result.level,
                         .source = e->graph->nodes[b->number].source};
    plan_value result = b->result;
    ckks_status rc = list_together(&t, e, matrices, count, b, scale, err);
    if (rc == CKKS_OK) rc = builder_transform(&op.transform, &e->builder, &t, err);
    if (rc != CKKS_OK) return rc;
    if (is_one_batch) result.batch_count = count;
    return builder_operations(values, is_one_batch ? 1 : count, &e->builder, &op, &result, err);
}

/* scores that one ciphertext gives alone, with nothing to fold or to add, may be one value of many entries:
 * one launch closes them all */
static bool may_be_one_batch(const emission *e, const block_sum *b, uint32_t count) {
    const ir_node *n = &e->graph->nodes[b->number];
    if (b->number != e->graph->output || n->term_count != 1 || count != e->maps[b->number].block_count)
        return false;
    const slot_map *x = &e->maps[n->terms[0].from];
    if (x->block_count != 1 || x->period > e->maps[b->number].period) return false;
    for (uint32_t i = 0; i < n->count; i++)
        if (n->bias[i] != 0) return false;
    return true;
}

/* the parts of all output blocks that come from one block of a term's input, if that is cheaper together */
static ckks_status share_block(emission *e, block_sum *b, uint32_t term, uint32_t x_block, ckks_error *err) {
    arena scratch = {0};
    const ir_node *n = &e->graph->nodes[b->number];
    const uint32_t from = n->terms[term].from, blocks = e->maps[b->number].block_count;
    uint32_t count = 0, x = 0;
    bool is_cheaper = false;
    layout_matrix *made = arena_take(&scratch, blocks, sizeof *made);
    const layout_matrix **matrices = arena_take(&scratch, blocks, sizeof(void *));
    uint32_t *block = arena_take(&scratch, blocks, sizeof *block);
    uint32_t *values = arena_take(&scratch, blocks, sizeof *values);
    ckks_status rc = made && matrices && block && values ? CKKS_OK : NO_MEMORY(err);
    for (uint32_t k = 0; k < blocks && rc == CKKS_OK; k++) {
        rc = layout_create(&made[k], n->terms[term].matrix, &e->maps[b->number], k, &e->maps[from], x_block,
                           e->memory, err);
        if (rc == CKKS_OK && made[k].count && !is_elementwise(&made[k]))
            matrices[count] = &made[k], block[count++] = k;
    }
    if (rc == CKKS_OK && count > 1)
        rc = layout_is_cheaper_together(&is_cheaper, matrices, count, e->shared_cost, &e->rotations, err);
    if (rc != CKKS_OK || !is_cheaper) goto out;
    e->is_one_batch = may_be_one_batch(e, b, count);
    rc = value_at_level(&x, e, from, x_block, b->from_level, err);
    if (rc == CKKS_OK)
        rc = emit_together(values, e, x, matrices, count, b, b->scales[term], e->is_one_batch, err);
    if (e->is_one_batch) e->values[b->number].values[0] = values[0];
    for (uint32_t k = 0; k < count && rc == CKKS_OK && !e->is_one_batch; k++) {
        b->block = block[k];
        b->shared[shared_index(e, b, term, x_block)] = values[k];
    }
out:
    arena_fini(&scratch);
    return rc;
}

static ckks_status share_blocks(emission *e, block_sum *b, ckks_error *err) {
    const ir_node *n = &e->graph->nodes[b->number];
    uint64_t places = 0;
    ckks_status rc = CKKS_OK;
    for (uint32_t t = 0; t < n->term_count; t++) places += e->maps[n->terms[t].from].block_count;
    places *= e->maps[b->number].block_count;
    if (e->maps[b->number].block_count < 2) return CKKS_OK;
    if (!(b->shared = arena_take(e->memory, places, sizeof *b->shared))) return NO_MEMORY(err);
    for (uint64_t i = 0; i < places; i++) b->shared[i] = UINT32_MAX;
    for (uint32_t t = 0; t < n->term_count; t++)
        for (uint32_t k = 0; k < e->maps[n->terms[t].from].block_count && rc == CKKS_OK; k++)
            rc = share_block(e, b, t, k, err);
    return rc;
}

/* what block x_block of a term's input adds; `keep_zero`: also if that is nothing */
static ckks_status emit_part(uint32_t *sum, emission *e, const block_sum *b, uint32_t term, uint32_t x_block,
                             bool keep_zero, ckks_error *err) {
    const ir_node *n = &e->graph->nodes[b->number];
    const uint32_t from = n->terms[term].from;
    arena scratch = {0};
    layout_matrix m;
    uint32_t x = 0, part = b->shared ? b->shared[shared_index(e, b, term, x_block)] : UINT32_MAX;
    if (part != UINT32_MAX) return add_part(sum, e, part, b, err);
    ckks_status rc = layout_create(&m, n->terms[term].matrix, &e->maps[b->number], b->block, &e->maps[from],
                                   x_block, &scratch, err);
    if (rc != CKKS_OK || (!m.count && !keep_zero)) goto out;
    layout_diagonal zero = {0, arena_take(&scratch, m.slot_count, sizeof *zero.slots)};
    if (!zero.slots) {
        rc = NO_MEMORY(err);
        goto out;
    }
    if (!m.count) m.count = 1, m.diagonals = &zero;
    if ((rc = value_at_level(&x, e, from, x_block, b->from_level, err)) != CKKS_OK) goto out;
    const double scale = b->scales[term];
    rc = is_elementwise(&m) ? emit_elementwise(&part, e, x, &m, scale, &b->result, b->row, n->source, err)
                            : emit_transform(&part, e, x, &m, scale, &b->result, b->row, n->source, err);
    if (rc == CKKS_OK) rc = add_part(sum, e, part, b, err);
out:
    arena_fini(&scratch);
    return rc;
}

/* all terms whose input repeats with `period` are added up before they are folded together */
static ckks_status emit_period(emission *e, block_sum *b, uint32_t period, bool is_last, ckks_error *err) {
    const ir_node *n = &e->graph->nodes[b->number];
    uint32_t sum = UINT32_MAX;
    ckks_status rc = CKKS_OK;
    for (uint32_t t = 0; t < n->term_count && rc == CKKS_OK; t++) {
        const slot_map *x = &e->maps[n->terms[t].from];
        const bool is_end = is_last && b->value == UINT32_MAX && t + 1 == n->term_count;
        for (uint32_t k = 0; k < x->block_count && rc == CKKS_OK && x->period == period; k++)
            rc = emit_part(&sum, e, b, t, k, is_end && sum == UINT32_MAX && k + 1 == x->block_count, err);
    }
    if (rc != CKKS_OK || sum == UINT32_MAX) return rc;
    rc = emit_fold(&sum, e, period, e->maps[b->number].period, &b->result, b->row, n->source, err);
    return rc == CKKS_OK ? add_part(&b->value, e, sum, b, err) : rc;
}

static void add_noise(emission *e, const block_sum *b) {
    const uint32_t number = b->number;
    const double *scales = b->scales;
    const plan_value *result = &b->result;
    const ir_node *n = &e->graph->nodes[number];
    const slot_map *y = &e->maps[number];
    for (uint32_t t = 0; t < n->term_count; t++) {
        const uint32_t from = n->terms[t].from;
        const slot_map *x = &e->maps[from];
        const bool is_folded = x->period > y->period;
        const noise_dense noise = {.level = b->from_level,
                                   .scale = builder_get(&e->builder, e->values[from].values[0])->scale,
                                   .plain_scale = scales[t],
                                   .slot_count = is_folded ? x->period : y->period,
                                   .result_scale = result->scale,
                                   .is_rotated = true,
                                   .fold = is_folded ? (double)x->period / y->period : 1,
                                   .parts = x->block_count};
        noise_dense_add(e->values[number].variance, e->params, &noise, n->terms[t].matrix,
                        e->values[from].variance, e->graph->nodes[from].peak);
    }
}

/* the scale nearest to the wanted one that all terms can meet exactly; scales[term] are their plaintexts' */
static ckks_status meet_scales(double *target, double *scales, const emission *e, const ir_node *n, double q,
                               double wanted, ckks_error *err) {
    for (int ulps = 0; ulps <= 2 * TARGET_ULPS_MAX; ulps++) {
        *target = wanted;
        for (int i = 0; i < (ulps + 1) / 2; i++) *target = nextafter(*target, ulps & 1 ? INFINITY : 0);
        uint32_t t = 0;
        while (t < n->term_count &&
               plain_scale(&scales[t], builder_get(&e->builder, e->values[n->terms[t].from].values[0])->scale,
                           q, *target))
            t++;
        if (t == n->term_count) return CKKS_OK;
    }
    return ckks_error_set(err, CKKS_INTERNAL, n->source, "no scale is met exactly by its %u terms",
                          n->term_count);
}

static ckks_status add_bias(emission *e, block_sum *b, ckks_error *err) {
    const ir_node *n = &e->graph->nodes[b->number];
    const slot_map *map = &e->maps[b->number];
    bool is_zero = true;
    double *slots = arena_take(e->memory, map->period, sizeof *slots);
    if (!slots) return NO_MEMORY(err);
    for (uint32_t i = 0; i < n->count; i++) {
        if (map->block[i] != b->block) continue;
        slots[map->slot[i]] = n->bias[i];
        is_zero = is_zero && n->bias[i] == 0;
    }
    if (is_zero) return CKKS_OK;
    const plan_plain plain = {
        .slots = slots, .slot_count = map->period, .level = b->result.level, .scale = b->result.scale};
    plan_operation op = {.kind = PLAN_ADD_PLAIN, .a = b->value, .source = n->source};
    const ckks_status rc = builder_plain(&op.plain, &e->builder, &plain, err);
    return rc == CKKS_OK ? builder_operation(&b->value, &e->builder, &op, &b->result, err) : rc;
}

static ckks_status emit_block(uint32_t *out, emission *e, block_sum *b, ckks_error *err) {
    const ir_node *n = &e->graph->nodes[b->number];
    uint32_t last = 0;
    ckks_status rc = CKKS_OK;
    for (uint32_t t = 0; t < n->term_count; t++) last = e->maps[n->terms[t].from].period;
    for (uint32_t period = 1; period <= params_slot_count_max(e->params) && rc == CKKS_OK; period *= 2)
        if (period != last) rc = emit_period(e, b, period, false, err);
    if (rc == CKKS_OK) rc = emit_period(e, b, last, true, err);
    if (rc == CKKS_OK) rc = add_bias(e, b, err);
    *out = b->value;
    return rc;
}

static ckks_status emit_linear(emission *e, uint32_t number, emitted_layer *row, ckks_error *err) {
    const ir_node *n = &e->graph->nodes[number];
    double *scales = arena_take(e->memory, n->term_count, sizeof *scales);
    block_sum b = {.number = number, .scales = scales, .row = row};
    b.result = (plan_value){.level = e->levels[number], .component_count = 2, .batch_count = 1};
    const bool is_unscaled = e->graph->ends_unscaled && number == e->graph->output;
    b.from_level = b.result.level + (is_unscaled ? 0 : 1);
    const double q = is_unscaled ? 1 : (double)e->params->prime[b.from_level];
    const double wanted = is_unscaled ? e->end_scale : wanted_scale(e, number);
    if (!scales) return NO_MEMORY(err);
    ckks_status rc = meet_scales(&b.result.scale, scales, e, n, q, wanted, err);
    if (rc == CKKS_OK) rc = share_blocks(e, &b, err);
    for (uint32_t k = 0; k < e->maps[number].block_count && rc == CKKS_OK && !e->is_one_batch; k++) {
        b.block = k, b.value = UINT32_MAX;
        rc = emit_block(&e->values[number].values[k], e, &b, err);
    }
    if (rc == CKKS_OK) add_noise(e, &b);
    row->kind = "dense";
    row->elements_in = n->term_count ? e->graph->nodes[n->terms[0].from].count : 0;
    return rc;
}

static ckks_status emit_product(emission *e, uint32_t number, emitted_layer *row, ckks_error *err) {
    const ir_node *n = &e->graph->nodes[number];
    const uint32_t level = e->levels[number] + 1;
    const bool is_square = n->a == n->b;
    plan_operation op = {.kind = is_square ? PLAN_SQUARE : PLAN_MULTIPLY, .source = n->source};
    plan_value product = {0}, result = {0};
    ckks_status rc = CKKS_OK;
    for (uint32_t k = 0; k < e->maps[number].block_count && rc == CKKS_OK; k++) {
        uint32_t value;
        if ((rc = value_at_level(&op.a, e, n->a, k, level, err)) != CKKS_OK) return rc;
        if ((rc = value_at_level(&op.b, e, n->b, k, level, err)) != CKKS_OK) return rc;
        product = *builder_get(&e->builder, op.a);
        product.component_count = 3;
        product.scale *= builder_get(&e->builder, op.b)->scale;
        if (is_square) op.b = 0;
        if ((rc = builder_operation(&value, &e->builder, &op, &product, err)) != CKKS_OK) return rc;
        result = product;
        result.component_count = 2;
        result.level--;
        result.scale /= (double)e->params->prime[level];
        const plan_operation relinearise = {
            .kind = PLAN_RELINEARISE, .a = value, .with_rescale = true, .source = n->source};
        rc = builder_operation(&e->values[number].values[k], &e->builder, &relinearise, &result, err);
    }
    row->kind = is_square ? "square" : "product";
    row->elements_in = n->count;
    noise_product(e->values[number].variance, e->params, level, product.scale, result.scale,
                  &e->graph->nodes[n->a], e->values[n->a].variance, &e->graph->nodes[n->b],
                  e->values[n->b].variance);
    return rc;
}

static ckks_status emit_polynomial(emission *e, uint32_t number, emitted_layer *row, ckks_error *err) {
    const ir_node *n = &e->graph->nodes[number];
    const uint32_t level = e->levels[number] + chebyshev_depth(n->degree);
    plan_operation op = {.kind = PLAN_CHEBYSHEV, .source = n->source};
    const plan_polynomial polynomial = {.coefficients = n->coefficients, .degree = n->degree};
    const double scale = wanted_scale(e, number);
    ckks_status rc = builder_polynomial(&op.polynomial, &e->builder, &polynomial, err);
    for (uint32_t k = 0; k < e->maps[number].block_count && rc == CKKS_OK; k++) {
        if ((rc = value_at_level(&op.a, e, n->a, k, level, err)) != CKKS_OK) return rc;
        plan_value result = *builder_get(&e->builder, op.a);
        result.level = e->levels[number];
        result.scale = scale;
        rc = builder_operation(&e->values[number].values[k], &e->builder, &op, &result, err);
    }
    row->kind = ir_function_name(n->function);
    row->elements_in = n->count;
    row->degree = n->degree;
    row->interval_low = n->interval_low, row->interval_high = n->interval_high;
    row->polynomial_error = n->polynomial_error;
    noise_polynomial(e->values[number].variance, e->params, scale, n, e->values[n->a].variance);
    return rc;
}

static ckks_status emit_input(emission *e, ckks_error *err) {
    const plan_value input = {
        .level = e->levels[0], .component_count = 2, .batch_count = 1, .scale = wanted_scale(e, 0)};
    ckks_status rc = CKKS_OK;
    for (uint32_t i = 0; i < e->graph->nodes[0].count; i++)
        e->values[0].variance[i] = noise_fresh(e->params, input.scale);
    for (uint32_t k = 0; k < e->maps[0].block_count && rc == CKKS_OK; k++)
        rc = builder_value(&e->values[0].values[k], &e->builder, &input, err);
    return rc;
}

static ckks_status make_room(emission *e, uint32_t number, ckks_error *err) {
    emitted_value *v = &e->values[number];
    const uint32_t blocks = e->maps[number].block_count;
    v->variance = arena_take(e->memory, e->graph->nodes[number].count, sizeof *v->variance);
    v->values = arena_take(e->memory, blocks, sizeof *v->values);
    v->dropped = arena_take(e->memory, blocks, sizeof *v->dropped);
    if (!v->variance || !v->values || !v->dropped) return NO_MEMORY(err);
    for (uint32_t k = 0; k < blocks; k++) v->dropped[k] = UINT32_MAX;
    return CKKS_OK;
}

static ckks_status emit_node(emission *e, uint32_t number, ckks_error *err) {
    const ir_node *n = &e->graph->nodes[number];
    emitted_layer *row = &e->out->layers[e->out->layer_count];
    ckks_status rc = check_magnitude(e, n, err);
    if (rc != CKKS_OK) return rc;
    if ((rc = make_room(e, number, err)) != CKKS_OK) return rc;
    if (n->kind == IR_INPUT) return emit_input(e, err);
    *row = (emitted_layer){.source = n->source,
                           .elements_out = n->count,
                           .level_out = e->levels[number],
                           .blocks = e->maps[number].block_count,
                           .period = e->maps[number].period};
    row->level_in = row->level_out + ir_node_depth(e->graph, number);
    rc = n->kind == IR_LINEAR    ? emit_linear(e, number, row, err)
         : n->kind == IR_PRODUCT ? emit_product(e, number, row, err)
                                 : emit_polynomial(e, number, row, err);
    if (rc != CKKS_OK) return rc;
    row->noise = largest_deviation(e, number);
    e->out->rotation_count += row->babies + row->giants + row->folds;
    e->out->layer_count++;
    return CKKS_OK;
}

ckks_status program_cost(double *cost, const ir_graph *g, const parameter_choice *choice, ckks_error *err) {
    arena scratch = {0};
    layout_rotations rotations = {.capacity = params_slot_count_max(&choice->params),
                                  .key_cost = LAYOUT_KEY_COST};
    uint32_t *levels = arena_take(&scratch, g->count, sizeof *levels);
    slot_map *maps = arena_take(&scratch, g->count, sizeof *maps);
    rotations.is_used = arena_take(&scratch, rotations.capacity, 1);
    ckks_status rc = levels && maps && rotations.is_used ? CKKS_OK : NO_MEMORY(err);
    if (rc == CKKS_OK) {
        graph_levels(levels, g);
        rc = layout_search(maps, cost, g, levels, rotations.capacity, &rotations, &scratch, err);
    }
    *cost *= (double)params_n(&choice->params) * choice->params.log_n;
    arena_fini(&scratch);
    return rc;
}

ckks_status program_emit(emitted_program *out, const ir_graph *g, const parameter_choice *choice,
                         const emit_options *options, arena *memory, ckks_error *err) {
    emission e = {
        .graph = g, .params = &choice->params, .nominal = choice->scale, .memory = memory, .out = out};
    ckks_status rc;
    double cost;
    *out = (emitted_program){0};
    plan_builder_init(&e.builder, e.params, memory);
    e.levels = arena_take(memory, g->count, sizeof *e.levels);
    e.maps = arena_take(memory, g->count, sizeof *e.maps);
    e.values = arena_take(memory, g->count, sizeof *e.values);
    out->layers = arena_take(memory, g->count, sizeof *out->layers);
    e.rotations.key_cost = options && options->key_cost > 0 ? options->key_cost : LAYOUT_KEY_COST;
    e.shared_cost = options && options->is_for_gpu ? LAYOUT_SHARED_COST_GPU : LAYOUT_SHARED_COST_CPU;
    e.rotations.capacity = params_slot_count_max(e.params);
    e.rotations.is_used = arena_take(memory, e.rotations.capacity, 1);
    if (!e.levels || !e.maps || !e.values || !out->layers || !e.rotations.is_used) return NO_MEMORY(err);
    graph_levels(e.levels, g);
    if (g->ends_unscaled && (rc = choose_end_scale(&e, err)) != CKKS_OK) return rc;
    rc = layout_search(e.maps, &cost, g, e.levels, e.rotations.capacity, &e.rotations, memory, err);
    if (rc != CKKS_OK) return rc;
    for (uint32_t i = 0; i < g->count; i++)
        if (g->nodes[i].use_count && (rc = emit_node(&e, i, err)) != CKKS_OK) return rc;
    out->input_map = e.maps[0];
    out->output_map = e.maps[g->output];
    plan_builder_finish(&out->plan, &e.builder, out->input_map.block_count);
    out->plains = e.builder.plains.items;
    out->plan.output_count = e.is_one_batch ? 1 : out->output_map.block_count;
    out->plan.outputs = e.values[g->output].values;
    out->noise = largest_deviation(&e, g->output);
    return CKKS_OK;
}
