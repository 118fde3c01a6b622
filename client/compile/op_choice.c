/*
 * Where. A constant condition is a matrix. A comparison of an encrypted value with a number chooses between
 * two functions of that value, as exporters spell activations of pieces (torch: softplus beyond its
 * threshold, leaky slopes): where both sides meet at that number it is a sum with a Relu, or the side that
 * serves everywhere.
 */
#include "client/compile/gate.h"
#include "client/compile/operator.h"

#include <math.h>
#include <string.h>

static ckks_status indices(uint32_t **out, evaluation *e, uint32_t input, ckks_error *err) {
    *out = arena_take(e->memory, e->out[0]->count, sizeof **out);
    if (!*out) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, e->node->label, "no memory for a row");
    broadcast_index(*out, e->out[0], e->in[input]);
    return CKKS_OK;
}

static ckks_status where_evaluate(evaluation *e, ckks_error *err) {
    int64_t dims[TENSOR_RANK_MAX];
    uint32_t rank, *index[3];
    tensor both_shapes;
    ckks_status rc = broadcast_shape(dims, &rank, e->node, e->in[0], e->in[1], err);
    if (rc == CKKS_OK) rc = tensor_shape(&both_shapes, dims, rank, e->count_max, e->node->label, err);
    if (rc == CKKS_OK) rc = broadcast_shape(dims, &rank, e->node, &both_shapes, e->in[2], err);
    if (rc == CKKS_OK) rc = output_shape(e, 0, dims, rank, err);
    for (uint32_t k = 0; k < 3 && rc == CKKS_OK; k++) rc = indices(&index[k], e, k, err);
    if (rc != CKKS_OK) return rc;
    for (uint32_t i = 0; i < e->out[0]->count; i++) {
        const uint32_t side = e->in[0]->data[index[0][i]] != 0 ? 1 : 2;
        e->out[0]->data[i] = e->in[side]->data[index[side][i]];
    }
    e->out[0]->is_integer = e->in[1]->is_integer;
    return CKKS_OK;
}

/* Where between encrypted values by a constant mask: one entry in each row, of one of two terms. */
static ckks_status lower_mask(lowering *l, const model_node *node, ckks_error *err) {
    const model_value *v = l->model->values;
    const tensor *y = &v[node->outputs[0]].sample, *mask = &v[node->inputs[0]].constant;
    ir_node made = {.kind = IR_LINEAR, .count = y->count};
    uint32_t *chosen = arena_take(l->memory, y->count, sizeof *chosen);
    uint32_t *index = arena_take(l->memory, y->count, sizeof *index);
    made.terms = arena_take(l->memory, 2, sizeof *made.terms);
    made.bias = arena_take(l->memory, y->count, sizeof *made.bias);
    if (!chosen || !index || !made.terms || !made.bias)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for a choice");
    broadcast_index(chosen, y, mask);
    for (uint32_t side = 1; side < 3; side++) {
        const bool is_encrypted = lower_is_encrypted(l, node, side);
        const tensor *x = is_encrypted ? &v[node->inputs[side]].sample : &v[node->inputs[side]].constant;
        sparse *m;
        uint32_t entry = 0;
        broadcast_index(index, y, x);
        const ckks_status rc = sparse_create(&m, l->memory, y->count, x->count, y->count, err);
        if (rc != CKKS_OK) return rc;
        for (uint32_t i = 0; i < y->count; i++) {
            if ((mask->data[chosen[i]] != 0) == (side == 1)) {
                if (is_encrypted)
                    m->column[entry] = index[i], m->value[entry++] = 1;
                else
                    made.bias[i] = x->data[index[i]];
            }
            m->row_start[i + 1] = entry;
        }
        if (is_encrypted) made.terms[made.term_count++] = (ir_term){lower_symbol(l, node, side)->node, m};
    }
    return lower_append(l, node, &made, err);
}

/* ---- a condition that is encrypted ---- */

ckks_status comparison_lower(lowering *l, const model_node *node, ckks_error *err) {
    const bool is_first = lower_is_encrypted(l, node, 0);
    const uint32_t side = is_first ? 0 : 1;
    const model_value *v = l->model->values;
    const tensor *bound = &v[node->inputs[1 - side]].constant;
    if (!bound->data || !bound->count || !lower_only_encrypted(l, node, side) ||
        v[node->inputs[side]].sample.count != v[node->outputs[0]].sample.count)
        return lower_refuse_comparison(l, node, err);
    for (uint32_t i = 1; i < bound->count; i++)
        if (bound->data[i] != bound->data[0]) return lower_refuse_comparison(l, node, err);
    l->symbols[node->outputs[0]] = (symbol){.kind = SYMBOL_CONDITION,
                                            .node = lower_symbol(l, node, side)->node,
                                            .threshold = bound->data[0],
                                            .is_above = (node->proto->op_type[0] == 'G') == is_first};
    return CKKS_OK;
}

#define SAMPLES 33
#define FAR     64.0 /* how far from the threshold two sides are compared */

/* x where the condition changes, in terms of node `from`; above it `above` holds, below it `below` */
typedef struct choice {
    uint32_t from;
    double threshold;
    ir_node above, below;
} choice;

/* a side as a node about to be appended: an encrypted value, or one number */
static bool read_side(ir_node *out, lowering *l, const model_node *node, uint32_t side) {
    const model_value *v = l->model->values;
    const tensor *y = &v[node->outputs[0]].sample, *c = &v[node->inputs[side]].constant;
    sparse *m;
    ckks_error none = {0};
    *out = (ir_node){.kind = IR_LINEAR, .count = y->count, .source = node->label};
    out->terms = arena_take(l->memory, 1, sizeof *out->terms);
    out->bias = arena_take(l->memory, y->count, sizeof *out->bias);
    if (!out->terms || !out->bias) return false;
    if (!lower_is_encrypted(l, node, side)) {
        for (uint32_t i = 0; i < c->count; i++)
            if (c->data[i] != c->data[0]) return false;
        for (uint32_t i = 0; i < y->count; i++) out->bias[i] = c->data[0];
        return true;
    }
    if (v[node->inputs[side]].sample.count != y->count) return false;
    if (sparse_gather(&m, l->memory, y->count, y->count, NULL, NULL, &none) != CKKS_OK) return false;
    out->terms[out->term_count++] = (ir_term){lower_symbol(l, node, side)->node, m};
    return true;
}

/* both sides between the threshold and `to`: y[0] at the threshold */
static bool sample(double *above, double *below, const choice *c, const ir_graph *g, double to) {
    double x[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) x[i] = c->threshold + to * i / (SAMPLES - 1);
    return gate_sample(above, g, &c->above, c->from, x, SAMPLES) &&
           gate_sample(below, g, &c->below, c->from, x, SAMPLES);
}

/* the condition may be on a multiple of what both sides are functions of */
static bool find_from(choice *c, const ir_graph *g) {
    double above[SAMPLES], below[SAMPLES], factor, offset;
    for (int step = 0; step < 4; step++) {
        if (sample(above, below, c, g, FAR) && sample(above, below, c, g, -FAR)) return true;
        if (!gate_step(&c->from, &factor, &offset, g)) return false;
        c->threshold = (c->threshold - offset) / factor;
        if (factor < 0) {
            const ir_node side = c->above;
            c->above = c->below, c->below = side;
        }
    }
    return false;
}

static bool is_close(double a, double b) {
    return fabs(a - b) <= 1e-6 * (1 + fabs(a) + fabs(b));
}

static bool agree(const double *a, const double *b) {
    for (int i = 0; i < SAMPLES; i++)
        if (!is_close(a[i], b[i])) return false;
    return true;
}

/* the slope of samples that are `step` apart; false: they lie on no line */
static bool slope_of(double *slope, const double *y, double step) {
    *slope = (y[SAMPLES - 1] - y[0]) / (step * (SAMPLES - 1));
    for (int i = 0; i < SAMPLES; i++)
        if (!is_close(y[i], y[0] + *slope * step * i)) return false;
    return true;
}

/* low * x + (high - low) * relu(x - threshold) + what both are at the threshold */
static ckks_status lower_kink(lowering *l, const model_node *node, const choice *c, double low, double high,
                              double at_threshold, ckks_error *err) {
    const uint32_t count = l->model->values[node->outputs[0]].sample.count;
    ir_node relu = {.kind = IR_ACTIVATION, .function = IR_RELU, .count = count, .source = node->label};
    ir_node made = {.kind = IR_LINEAR, .count = count, .term_count = 2};
    double *factor = arena_take(l->memory, 2 * (uint64_t)count, sizeof *factor);
    double *shift = arena_take(l->memory, count, sizeof *shift);
    sparse *same, *terms[2];
    uint32_t number;
    made.terms = arena_take(l->memory, 2, sizeof *made.terms);
    made.bias = arena_take(l->memory, count, sizeof *made.bias);
    if (!factor || !shift || !made.terms || !made.bias)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for a choice");
    for (uint32_t i = 0; i < count; i++) {
        shift[i] = -c->threshold;
        factor[i] = low, factor[count + i] = high - low;
        made.bias[i] = at_threshold - low * c->threshold;
    }
    ckks_status rc = sparse_gather(&same, l->memory, count, count, NULL, NULL, err);
    if (rc == CKKS_OK) rc = ir_linear(&relu.a, l->graph, c->from, same, shift, node->label, err);
    if (rc == CKKS_OK) rc = ir_append(&number, l->graph, &relu, err);
    for (uint32_t t = 0; t < 2 && rc == CKKS_OK; t++) {
        rc = sparse_gather(&terms[t], l->memory, count, count, NULL, factor + (size_t)t * count, err);
        if (rc == CKKS_OK) made.terms[t] = (ir_term){t ? number : c->from, terms[t]};
    }
    return rc == CKKS_OK ? lower_append(l, node, &made, err) : rc;
}

static ckks_status lower_choice(lowering *l, const model_node *node, ckks_error *err) {
    const symbol *condition = lower_symbol(l, node, 0);
    double above[2][SAMPLES], below[2][SAMPLES], low, high;
    choice c = {.from = condition->node, .threshold = condition->threshold};
    const uint32_t first = condition->is_above ? 1 : 2;
    if (l->graph->nodes[c.from].count != l->model->values[node->outputs[0]].sample.count ||
        !read_side(&c.above, l, node, first) || !read_side(&c.below, l, node, 3 - first) ||
        !find_from(&c, l->graph) || !sample(above[0], below[0], &c, l->graph, FAR) ||
        !sample(above[1], below[1], &c, l->graph, -FAR))
        return lower_refuse(l, node,
                            "it chooses by an encrypted number between values that are not functions of it",
                            "leave the score as output: the client decides; or use Relu, Max or Min", err);
    if (c.below.term_count && agree(above[0], below[0])) return lower_append(l, node, &c.below, err);
    if (c.above.term_count && agree(above[1], below[1])) return lower_append(l, node, &c.above, err);
    if (!is_close(above[0][0], below[0][0]))
        return lower_refuse(l, node, "it jumps where the condition changes, and polynomials do not",
                            "use Relu, LeakyRelu or x*Sigmoid(x) and train again", err);
    if (!slope_of(&high, above[0], FAR / (SAMPLES - 1)) || !slope_of(&low, below[1], -FAR / (SAMPLES - 1)))
        return lower_refuse(l, node, "it has another curve on either side of a number",
                            "two straight sides are compiled: use an activation that has a name, like Elu",
                            err);
    return lower_kink(l, node, &c, low, high, above[0][0], err);
}

static ckks_status where_lower(lowering *l, const model_node *node, ckks_error *err) {
    const symbol_kind kind = lower_symbol(l, node, 0)->kind;
    if (kind == SYMBOL_CONSTANT) return lower_mask(l, node, err);
    if (kind == SYMBOL_CONDITION) return lower_choice(l, node, err);
    return lower_refuse(l, node, "encrypted numbers cannot be compared",
                        "leave the score as output: the client decides", err);
}

const operator_row operators_choice[] = {
    {"", "Where", 3, 3, 1, 0, where_evaluate, where_lower,
     "constant condition; or a comparison with a number, at which both sides meet: polynomial"},
    {0},
};
