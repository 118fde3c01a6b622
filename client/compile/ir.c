#include "client/compile/ir.h"

#include "client/compile/gate.h"
#include "kernels/evaluator/chebyshev.h"

#include <math.h>
#include <string.h>

#define NO_MEMORY(err) ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for the compiler's graph")

const char ir_scaling[] = "scaling";

void ir_init(ir_graph *g, arena *memory) {
    *g = (ir_graph){.memory = memory};
}

/* A power of a root is one power, and one polynomial instead of two that follow each other: exporters write a
 * normalisation as Sqrt and Reciprocal, or Sqrt and Div. Roots are of numbers above zero. */
static void join_powers(ir_node *node, const ir_graph *g) {
    if (node->kind != IR_ACTIVATION || node->function != IR_POW) return;
    const ir_node *root = &g->nodes[node->a];
    if (root->kind != IR_ACTIVATION || root->function != IR_POW) return;
    const double power = root->parameters[0] * node->parameters[0];
    if (root->parameters[0] == floor(root->parameters[0]) || fabs(power) > IR_POWER_MAX) return;
    node->a = root->a, node->parameters[0] = power;
}

/* of a node that is made of another by a factor and an offset, the same for all elements: that other one */
static uint32_t base_of(double *factor, double *offset, const ir_graph *g, uint32_t number) {
    double f, o;
    *factor = 1, *offset = 0;
    while (gate_step(&number, &f, &o, g)) *offset += *factor * o, *factor *= f;
    return number;
}

/* relu(-x) is relu(x) - x: Keras writes PReLU with both, which are one polynomial. `node` becomes what it is
 * of an earlier one. */
static ckks_status join_relus(ir_node *node, const ir_graph *g, ckks_error *err) {
    double factor, offset, f, o;
    if (node->kind != IR_ACTIVATION || node->function != IR_RELU) return CKKS_OK;
    const uint32_t base = base_of(&factor, &offset, g, node->a);
    for (uint32_t i = g->count; i-- > base;) {
        const ir_node *other = &g->nodes[i];
        if (other->kind != IR_ACTIVATION || other->function != IR_RELU) continue;
        if (other->count != node->count || base_of(&f, &o, g, other->a) != base) continue;
        const double ratio = factor / f, size = fabs(ratio);
        if (!(fabs(offset - ratio * o) <= 1e-12 * fabs(offset))) continue;
        ir_node made = {.kind = IR_LINEAR, .count = node->count, .source = node->source};
        double *factors = arena_take(g->memory, 2 * (uint64_t)node->count, sizeof *factors);
        made.terms = arena_take(g->memory, 2, sizeof *made.terms);
        made.bias = arena_take(g->memory, node->count, sizeof *made.bias);
        if (!factors || !made.terms || !made.bias) return NO_MEMORY(err);
        for (uint32_t k = 0; k < node->count; k++) factors[k] = size, factors[node->count + k] = -size;
        for (uint32_t t = 0; t < (ratio < 0 ? 2u : 1u); t++) {
            sparse *m;
            const ckks_status rc = sparse_gather(&m, g->memory, node->count, node->count, NULL,
                                                 factors + (size_t)t * node->count, err);
            if (rc != CKKS_OK) return rc;
            made.terms[made.term_count++] = (ir_term){t ? other->a : i, m};
        }
        ir_copy_shape(&made, node);
        *node = made;
        return CKKS_OK;
    }
    return CKKS_OK;
}

/* 1 / (o + c exp(z)) is sigmoid(-z - log(c / o)) / o: as calibrated classifiers write it, with a quotient
 * whose divisor is as large as the exponential */
static ckks_status join_sigmoid(ir_node *node, ir_graph *g, ckks_error *err) {
    double factor, offset;
    if (node->kind != IR_ACTIVATION || node->function != IR_POW || node->parameters[0] != -1) return CKKS_OK;
    const ir_node *power = &g->nodes[base_of(&factor, &offset, g, node->a)];
    if (power->kind != IR_ACTIVATION || power->function != IR_EXP || power->count != node->count)
        return CKKS_OK;
    if (!(factor > 0) || offset != 1) return CKKS_OK;
    ir_node made = *node;
    double *minus = arena_take(g->memory, node->count, sizeof *minus);
    double *bias = arena_take(g->memory, node->count, sizeof *bias);
    sparse *m;
    if (!minus || !bias) return NO_MEMORY(err);
    for (uint32_t i = 0; i < node->count; i++) minus[i] = -1, bias[i] = -log(factor);
    made.function = IR_SIGMOID, made.parameters[0] = 0;
    ckks_status rc = sparse_gather(&m, g->memory, node->count, node->count, NULL, minus, err);
    if (rc == CKKS_OK) rc = ir_linear(&made.a, g, power->a, m, bias, node->source, err);
    *node = made;
    return rc;
}

ckks_status ir_append(uint32_t *out, ir_graph *g, const ir_node *node, ckks_error *err) {
    ir_node made = *node;
    join_powers(&made, g);
    ckks_status rc = join_sigmoid(&made, g, err);
    if (rc == CKKS_OK) rc = join_relus(&made, g, err);
    if (rc != CKKS_OK) return rc;
    if (g->count == g->capacity) {
        const uint32_t capacity = g->capacity ? 2 * g->capacity : 16;
        ir_node *grown = capacity <= IR_NODES_MAX ? arena_take(g->memory, capacity, sizeof *grown) : NULL;
        if (!grown) return NO_MEMORY(err);
        if (g->count) memcpy(grown, g->nodes, g->count * sizeof *grown);
        g->nodes = grown, g->capacity = capacity;
    }
    g->nodes[g->count] = made;
    *out = g->count++;
    return CKKS_OK;
}

ckks_status ir_linear(uint32_t *out, ir_graph *g, uint32_t from, const sparse *matrix, const double *bias,
                      const char *source, ckks_error *err) {
    ir_node node = {.kind = IR_LINEAR, .count = matrix->row_count, .source = source, .term_count = 1};
    CKKS_ASSERT(matrix->column_count == g->nodes[from].count);
    node.terms = arena_take(g->memory, 1, sizeof *node.terms);
    node.bias = arena_take(g->memory, node.count, sizeof *node.bias);
    if (!node.terms || !node.bias) return NO_MEMORY(err);
    node.terms[0] = (ir_term){from, matrix};
    if (bias) memcpy(node.bias, bias, node.count * sizeof *bias);
    return ir_append(out, g, &node, err);
}

uint32_t ir_node_depth(const ir_graph *g, uint32_t number) {
    const ir_node *node = &g->nodes[number];
    if (g->ends_unscaled && number == g->output) return 0;
    return node->kind == IR_POLYNOMIAL ? chebyshev_depth(node->degree) : node->kind != IR_INPUT;
}

double ir_range_slack(const ir_graph *g) {
    for (uint32_t i = 1; i < g->count; i++)
        if (g->nodes[i].use_count && g->nodes[i].kind != IR_LINEAR) return IR_RANGE_SLACK;
    return g->ends_unscaled ? IR_RANGE_SLACK : IR_RANGE_SLACK_LINEAR;
}

void ir_widen(double *low, double *high, double slack) {
    const double span = *high > *low ? *high - *low : fmax(fabs(*high), 1.0);
    *low -= slack * span, *high += slack * span;
}

void ir_input_range(double *low, double *high, const ir_graph *g) {
    *low = g->nodes[0].minimum, *high = g->nodes[0].maximum;
    ir_widen(low, high, ir_range_slack(g));
}

void ir_count_uses(ir_graph *g) {
    for (uint32_t i = 0; i < g->count; i++) g->nodes[i].use_count = 0;
    g->nodes[g->output].use_count = 1;
    for (uint32_t i = g->count; i-- > 0;) {
        const ir_node *n = &g->nodes[i];
        if (!n->use_count) continue;
        for (uint32_t t = 0; t < n->term_count; t++) g->nodes[n->terms[t].from].use_count++;
        if (n->kind == IR_PRODUCT || n->kind == IR_ACTIVATION || n->kind == IR_POLYNOMIAL)
            g->nodes[n->a].use_count++;
        if (n->kind == IR_PRODUCT && n->b != n->a) g->nodes[n->b].use_count++;
    }
}

/* ---- folding ---- */

/* A fold saves a level. It is not worth more than twice the diagonals, and some: a layer through a narrow
 * middle stays two thin matrices. */
#define FOLD_FACTOR 2u
#define FOLD_FREE   64u

static bool fold_is_cheaper(const sparse *outer, const ir_node *inner, sparse *const *products) {
    uint64_t apart = sparse_diagonal_count(outer), together = 0;
    for (uint32_t t = 0; t < inner->term_count; t++) {
        apart += sparse_diagonal_count(inner->terms[t].matrix);
        together += sparse_diagonal_count(products[t]);
    }
    return together <= FOLD_FACTOR * apart + FOLD_FREE;
}

/* term `index` of the node, which reads `inner`, becomes terms that read what inner reads, if that costs less
 */
static ckks_status absorb(bool *is_done, ir_graph *g, ir_node *node, uint32_t index, const ir_node *inner,
                          ckks_error *err) {
    const sparse *matrix = node->terms[index].matrix;
    ir_term *terms = arena_take(g->memory, (uint64_t)node->term_count + inner->term_count, sizeof *terms);
    sparse **products = arena_take(g->memory, inner->term_count, sizeof(void *));
    if (!terms || !products) return NO_MEMORY(err);
    for (uint32_t t = 0; t < inner->term_count; t++) {
        ckks_error local = {0};
        const ckks_status rc =
            sparse_multiply(&products[t], g->memory, matrix, inner->terms[t].matrix, &local);
        if (rc == CKKS_TOO_LARGE) return CKKS_OK; /* they stay apart */
        if (rc != CKKS_OK) return ckks_error_set(err, rc, local.field, "%s", local.message);
    }
    *is_done = fold_is_cheaper(matrix, inner, products);
    if (!*is_done) return CKKS_OK;
    memcpy(terms, node->terms, node->term_count * sizeof *terms);
    terms[index] = terms[--node->term_count];
    for (uint32_t t = 0; t < inner->term_count; t++)
        terms[node->term_count++] = (ir_term){inner->terms[t].from, products[t]};
    sparse_apply_add(node->bias, matrix, inner->bias);
    node->terms = terms;
    if (inner->source != ir_scaling)
        node->source = inner->source; /* a bias or a factor is known by its layer */
    return CKKS_OK;
}

static ckks_status merge_terms(ir_graph *g, ir_node *node, ckks_error *err) {
    for (uint32_t a = 0; a < node->term_count; a++)
        for (uint32_t b = a + 1; b < node->term_count;) {
            sparse *sum;
            if (node->terms[a].from != node->terms[b].from) {
                b++;
                continue;
            }
            const ckks_status rc =
                sparse_add(&sum, g->memory, node->terms[a].matrix, node->terms[b].matrix, err);
            if (rc != CKKS_OK) return rc;
            node->terms[a].matrix = sum;
            node->terms[b] = node->terms[--node->term_count];
        }
    return CKKS_OK;
}

/* An elementwise layer that only layers read is folded into each of them: none has more diagonals for it. */
static ckks_status find_elementwise(uint8_t *is_free, const ir_graph *g, ckks_error *err) {
    for (uint32_t i = 0; i < g->count; i++) {
        const ir_node *n = &g->nodes[i];
        is_free[i] = n->use_count > 1 && n->kind == IR_LINEAR && n->term_count == 1 && i != g->output;
        if (!is_free[i]) continue;
        double *diagonal = arena_take(g->memory, n->count, sizeof *diagonal);
        if (!diagonal) return NO_MEMORY(err);
        is_free[i] = sparse_diagonal(diagonal, n->terms[0].matrix);
    }
    for (uint32_t i = 0; i < g->count; i++) {
        const ir_node *n = &g->nodes[i];
        if (!n->use_count || n->kind == IR_INPUT || n->kind == IR_LINEAR) continue;
        is_free[n->a] = 0;
        if (n->kind == IR_PRODUCT) is_free[n->b] = 0;
    }
    return CKKS_OK;
}

ckks_status ir_fold(ir_graph *g, ckks_error *err) {
    ir_count_uses(g);
    uint8_t *is_free = arena_take(g->memory, g->count, 1);
    if (!is_free) return NO_MEMORY(err);
    const ckks_status found = find_elementwise(is_free, g, err);
    if (found != CKKS_OK) return found;
    for (uint32_t i = 0; i < g->count; i++) {
        ir_node *node = &g->nodes[i];
        if (node->kind != IR_LINEAR || !node->use_count) continue;
        ckks_status rc = merge_terms(g, node, err);
        for (uint32_t t = 0; t < node->term_count && rc == CKKS_OK;) {
            const ir_node *inner = &g->nodes[node->terms[t].from];
            if (inner->kind != IR_LINEAR || (inner->use_count != 1 && !is_free[node->terms[t].from])) {
                t++;
                continue;
            }
            bool is_done = false;
            rc = absorb(&is_done, g, node, t, inner, err);
            if (!is_done) t++;
        }
        if (rc == CKKS_OK) rc = merge_terms(g, node, err);
        if (rc != CKKS_OK) return rc;
    }
    ir_count_uses(g);
    return CKKS_OK;
}

/* ---- peeling ---- */

/* the only user of the input, if it is elementwise affine and not the output; else NULL */
static ir_node *leading_affine(ir_graph *g, uint32_t input, double *diagonal, uint32_t *number) {
    ir_node *found = NULL;
    if (g->nodes[input].use_count != 1) return NULL;
    for (uint32_t i = input + 1; i < g->count && !found; i++) {
        ir_node *n = &g->nodes[i];
        if (n->use_count && n->kind == IR_LINEAR && n->term_count == 1 && n->terms[0].from == input)
            found = n, *number = i;
    }
    if (!found || *number == g->output || !sparse_diagonal(diagonal, found->terms[0].matrix)) return NULL;
    for (uint32_t i = 0; i < found->count; i++)
        if (diagonal[i] == 0) return NULL;
    return found;
}

ckks_status ir_peel(ir_graph *g, ir_preprocess *out, ckks_error *err) {
    const uint32_t count = g->nodes[0].count;
    uint32_t number = 0;
    double *diagonal = arena_take(g->memory, count, sizeof *diagonal);
    *out = (ir_preprocess){0};
    out->offset = arena_take(g->memory, count, sizeof *out->offset);
    out->scale = arena_take(g->memory, count, sizeof *out->scale);
    if (!diagonal || !out->offset || !out->scale) return NO_MEMORY(err);
    for (uint32_t i = 0; i < count; i++) out->scale[i] = 1;
    ir_count_uses(g);
    for (ir_node *n; (n = leading_affine(g, 0, diagonal, &number));) {
        out->is_present = true;
        /* d ((x - o) s) + b = (x - (o - b / (d s))) (d s) */
        for (uint32_t i = 0; i < count; i++) {
            out->scale[i] *= diagonal[i];
            out->offset[i] -= n->bias[i] / out->scale[i];
        }
        for (uint32_t i = 0; i < g->count; i++) {
            ir_node *user = &g->nodes[i];
            for (uint32_t t = 0; t < user->term_count; t++)
                if (user->terms[t].from == number) user->terms[t].from = 0;
            if (user->kind == IR_PRODUCT && user->b == number) user->b = 0;
            if ((user->kind == IR_PRODUCT || user->kind == IR_ACTIVATION) && user->a == number) user->a = 0;
        }
        ir_count_uses(g);
    }
    return CKKS_OK;
}

/* ---- running ---- */

ckks_status ir_run_init(ir_run *run, const ir_graph *g, arena *memory, ckks_error *err) {
    run->values = arena_take(memory, g->count, sizeof *run->values);
    if (!run->values) return NO_MEMORY(err);
    for (uint32_t i = 0; i < g->count; i++) {
        run->values[i] =
            arena_take(memory, g->nodes[i].use_count ? g->nodes[i].count : 0, sizeof **run->values);
        if (!run->values[i]) return NO_MEMORY(err);
    }
    return CKKS_OK;
}

/* Clenshaw */
static double chebyshev_value(const double *c, uint32_t degree, double t) {
    double b1 = 0, b2 = 0;
    for (uint32_t k = degree; k >= 1; k--) {
        const double b0 = c[k] + 2 * t * b1 - b2;
        b2 = b1, b1 = b0;
    }
    return c[0] + t * b1 - b2;
}

static double node_value(const ir_node *n, double *const *values, uint32_t i) {
    switch (n->kind) {
    case IR_PRODUCT:
        return values[n->a][i] * values[n->b][i];
    case IR_ACTIVATION:
        return ir_function_value(n->function, n->parameters, values[n->a][i]);
    default:
        return chebyshev_value(n->coefficients, n->degree, values[n->a][i]);
    }
}

ckks_status ir_run_row(ir_run *run, const ir_graph *g, const double *row, ckks_error *err) {
    for (uint32_t k = 0; k < g->count; k++) {
        const ir_node *n = &g->nodes[k];
        double *y = run->values[k];
        if (!n->use_count) continue;
        if (n->kind == IR_INPUT) {
            memcpy(y, row, n->count * sizeof *y);
        } else if (n->kind == IR_LINEAR) {
            memcpy(y, n->bias, n->count * sizeof *y);
            for (uint32_t t = 0; t < n->term_count; t++)
                sparse_apply_add(y, n->terms[t].matrix, run->values[n->terms[t].from]);
        } else {
            for (uint32_t i = 0; i < n->count; i++) y[i] = node_value(n, run->values, i);
        }
        for (uint32_t i = 0; i < n->count; i++)
            if (!isfinite(y[i]))
                return ckks_error_set(err, CKKS_OUT_OF_RANGE, n->source,
                                      "element %u is not finite on a calibration row", i);
    }
    return CKKS_OK;
}
