/*
 * LayerNormalization and its kin, taken apart by exporters. Each root is where one may be: what it is taken
 * of must be the variance of some value before it, and what follows must be that value normalised, for
 * numbers that tell one formula from another. The nodes in between are then lowered for nobody and drop out.
 */
#include "client/compile/normal.h"

#include <math.h>
#include <string.h>

/* nodes before a root and behind it that are looked at */
#define BEFORE_MAX 32u
#define BEHIND_MAX 24u
/* values are binary64 and constants are what the file has: formulas agree to rounding errors */
#define AGREES 1e-9

typedef struct search {
    lowering *l;
    const onnx_model *model;
    tensor *values; /* [value_count]: constants, and what `run` computed last */
    arena scratch;
    uint64_t work_left;
} search;

/* one root, and what may be normalised there */
typedef struct place {
    uint32_t root;        /* node */
    uint32_t x;           /* value */
    uint32_t first, last; /* nodes that may depend on x */
    normal normal;
} place;

static uint32_t place_in_order(const onnx_model *m, uint32_t value) {
    const uint32_t producer = m->values[value].producer;
    return producer == MODEL_NONE ? 0 : producer + 1;
}

static bool is_root(const model_node *node, const onnx_model *m) {
    if (!node->op || node->input_count < 1 || node->inputs[0] == MODEL_NONE) return false;
    if (strcmp(node->type, "Sqrt") == 0) return true;
    if (strcmp(node->type, "Pow") != 0 || node->inputs[1] == MODEL_NONE) return false;
    const tensor *power = &m->values[node->inputs[1]].constant;
    return power->data && power->count == 1 && fabs(power->data[0]) == 0.5;
}

/* values[] of the nodes that depend on x alone, where x has the numbers `input`. Others stay without data. */
static ckks_status run(search *s, const place *p, double *input, ckks_error *err) {
    const onnx_model *m = s->model;
    ckks_status rc = CKKS_OK;
    for (uint32_t n = p->first; n <= p->last; n++)
        for (uint32_t k = 0; k < m->nodes[n].output_count; k++)
            s->values[m->nodes[n].outputs[k]] = m->values[m->nodes[n].outputs[k]].constant;
    s->values[p->x] = m->values[p->x].sample;
    s->values[p->x].data = input;
    for (uint32_t n = p->first; n <= p->last && rc != CKKS_RESOURCE_EXHAUSTED; n++) {
        const model_node *node = &m->nodes[n];
        ckks_error none = {0};
        if (!node->op || lower_has_weights(node)) continue;
        rc = model_evaluate_node(m, node, false, &s->work_left, s->values, &s->scratch, &none);
        if (rc == CKKS_OK) continue;
        for (uint32_t k = 0; k < node->output_count; k++) s->values[node->outputs[k]].data = NULL;
        if (rc == CKKS_RESOURCE_EXHAUSTED) ckks_error_set(err, rc, none.field, "%s", none.message);
    }
    s->values[p->x] = (tensor){0};
    return rc == CKKS_RESOURCE_EXHAUSTED ? rc : CKKS_OK;
}

/* ---- what is before the root ---- */

/* Values that the root's input is made of and that have several of its numbers' elements each, nearest first.
 */
static uint32_t list_candidates(uint32_t candidates[BEFORE_MAX], const search *s, uint32_t root) {
    const onnx_model *m = s->model;
    uint32_t seen[BEFORE_MAX] = {m->nodes[root].inputs[0]}, seen_count = 1, count = 0;
    const uint32_t statistics = m->values[seen[0]].sample.count;
    for (uint32_t i = 0; i < seen_count; i++) {
        const tensor *t = &m->values[seen[i]].sample;
        if (t->data && t->count > statistics && t->count % statistics == 0) {
            uint32_t at = count++;
            for (; at && place_in_order(m, candidates[at - 1]) < place_in_order(m, seen[i]); at--)
                candidates[at] = candidates[at - 1];
            candidates[at] = seen[i];
        }
        const uint32_t producer = m->values[seen[i]].producer;
        const model_node *node = producer == MODEL_NONE ? NULL : &m->nodes[producer];
        if (!node || lower_has_weights(node)) continue;
        for (uint32_t k = 0; k < node->input_count && seen_count < BEFORE_MAX; k++) {
            const uint32_t value = node->inputs[k];
            bool is_new = value != MODEL_NONE && !m->values[value].constant.data;
            for (uint32_t j = 0; j < seen_count; j++) is_new = is_new && seen[j] != value;
            if (is_new) seen[seen_count++] = value;
        }
    }
    return count;
}

/* the statistics' axes are x's, or 1; or each is of elements that follow each other */
static ckks_status make_groups(search *s, place *p, ckks_error *err) {
    const model_node *node = &s->model->nodes[p->root];
    const tensor *x = &s->model->values[p->x].sample, *v = &s->model->values[node->inputs[0]].sample;
    bool is_within[TENSOR_RANK_MAX] = {false}, has_axes = x->rank == v->rank;
    for (uint32_t i = 0; i < x->rank && has_axes; i++) {
        is_within[i] = v->dims[i] != x->dims[i];
        has_axes = !is_within[i] || v->dims[i] == 1;
    }
    if (has_axes) return groups_by_axes(&p->normal.groups, node, x, is_within, s->l->memory, err);
    return groups_by_runs(&p->normal.groups, node, x, x->count / v->count, s->l->memory, err);
}

/* A row to look at. */
typedef struct probe {
    double sign, centre, spread, step;
    uint32_t period; /* elements of one sign that follow each other in a group */
} probe;

/* Rows 0 and 1 are each other's negatives and keep away from their groups' means; the others are unlike them
 * and each other. */
#define PROBES 4u
static const probe probes[PROBES] = {
    {1, 0, 0.5, 0.6180339887498949, 1},
    {-1, 0, 0.5, 0.6180339887498949, 1},
    {1, 0.7, 2.5, 0.7548776662466927, 2},
    {-1, -0.4, 1.5, 0.5698402909980532, 1},
};

static double *numbers(search *s, const groups *g, const probe *p) {
    double *out = arena_take(&s->scratch, g->element_count, sizeof *out);
    for (uint32_t i = 0; out && i < g->element_count; i++) {
        const double far = 0.75 + p->spread * fmod(i * p->step, 1);
        out[g->member[i]] = p->centre + p->sign * (i % g->run / p->period % 2 ? far : -far);
    }
    return out;
}

static double group_variance(double *mean, const groups *g, const double *x, uint32_t group) {
    const uint32_t *member = g->member + (size_t)group * g->run;
    double sum = 0, squares = 0;
    for (uint32_t i = 0; i < g->run; i++) sum += x[member[i]];
    *mean = sum / g->run;
    for (uint32_t i = 0; i < g->run; i++) squares += (x[member[i]] - *mean) * (x[member[i]] - *mean);
    return squares / g->run;
}

/* is the root's input x's variance and a constant? */
static ckks_status is_variance(bool *is_found, search *s, place *p, ckks_error *err) {
    const groups *g = &p->normal.groups;
    const uint32_t v = s->model->nodes[p->root].inputs[0];
    double *x = arena_take(&s->scratch, g->element_count, sizeof *x), mean;
    if (!x) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a row");
    *is_found = false;
    ckks_status rc = run(s, p, x, err);
    if (rc != CKKS_OK || !s->values[v].data) return rc;
    p->normal.epsilon = s->values[v].data[0];
    for (uint32_t k = 0; k < g->count; k++)
        if (!(s->values[v].data[k] == p->normal.epsilon && p->normal.epsilon >= 0)) return CKKS_OK;
    if (!(x = numbers(s, g, &probes[2])))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a row");
    if ((rc = run(s, p, x, err)) != CKKS_OK || !s->values[v].data) return rc;
    for (uint32_t k = 0; k < g->count; k++) {
        const double expected = group_variance(&mean, g, x, k) + p->normal.epsilon;
        if (!(fabs(s->values[v].data[k] - expected) <= AGREES * (1 + expected))) return CKKS_OK;
    }
    *is_found = true;
    return CKKS_OK;
}

/* ---- what is behind it ---- */

static void normalise(double *z, const normal *n, const double *x) {
    const groups *g = &n->groups;
    double mean;
    for (uint32_t k = 0; k < g->count; k++) {
        const double root = sqrt(group_variance(&mean, g, x, k) + n->epsilon);
        for (uint32_t i = k * g->run; i < (k + 1) * g->run; i++)
            z[g->member[i]] = (x[g->member[i]] - mean) / root;
    }
}

/* The first two rows' z are each other's negatives too: they give scale and bias, and the others must agree.
 */
static bool fit(normal *n, double *const z[PROBES], double *const y[PROBES]) {
    for (uint32_t r = 0; r < PROBES; r++)
        if (!y[r]) return false;
    for (uint32_t i = 0; i < n->groups.element_count; i++) {
        n->scale[i] = (y[0][i] - y[1][i]) / (2 * z[0][i]);
        n->bias[i] = 0.5 * (y[0][i] + y[1][i]);
        for (uint32_t r = 2; r < PROBES; r++) {
            const double off = y[r][i] - (n->scale[i] * z[r][i] + n->bias[i]);
            if (!(fabs(off) <= AGREES * (fabs(n->scale[i]) + fabs(n->bias[i])))) return false;
        }
        if (n->scale[i] == 0) return false;
    }
    return true;
}

static ckks_status take(lowering *l, const place *p, uint32_t y, ckks_error *err) {
    normal *made = arena_take(l->memory, 1, sizeof *made);
    if (!made) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a row");
    *made = p->normal;
    l->normals[y].normal = made, l->normals[y].from = p->x;
    return CKKS_OK;
}

/* the last of the values behind the root that is x normalised */
static ckks_status find_normalised(search *s, place *p, ckks_error *err) {
    const onnx_model *m = s->model;
    normal *n = &p->normal;
    const uint32_t count = n->groups.element_count;
    double *z[PROBES], *y[BEHIND_MAX + 1][PROBES];
    n->is_centred = true, n->share = 1.0 / n->groups.run;
    n->scale = arena_take(s->l->memory, count, sizeof *n->scale);
    n->bias = arena_take(s->l->memory, count, sizeof *n->bias);
    for (uint32_t r = 0; r < PROBES; r++) {
        double *x = numbers(s, &n->groups, &probes[r]);
        z[r] = arena_take(&s->scratch, count, sizeof **z);
        if (!n->scale || !n->bias || !x || !z[r])
            return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a row");
        normalise(z[r], n, x);
        const ckks_status rc = run(s, p, x, err);
        if (rc != CKKS_OK) return rc;
        for (uint32_t k = 0; p->root + k <= p->last; k++) {
            const uint32_t out = m->nodes[p->root + k].outputs[0];
            const bool is_like = s->values[out].count == count && !m->values[out].constant.data;
            y[k][r] = is_like ? s->values[out].data : NULL;
        }
    }
    for (uint32_t k = p->last - p->root; k; k--)
        if (fit(n, z, y[k])) return take(s->l, p, m->nodes[p->root + k].outputs[0], err);
    return CKKS_OK;
}

static ckks_status look_at_root(search *s, uint32_t root, ckks_error *err) {
    const onnx_model *m = s->model;
    const tensor *v = &m->values[m->nodes[root].inputs[0]].sample;
    uint32_t candidates[BEFORE_MAX];
    if (!v->data || !v->count) return CKKS_OK;
    const uint32_t count = list_candidates(candidates, s, root);
    for (uint32_t i = 0; i < count; i++) {
        place p = {.root = root, .x = candidates[i], .first = place_in_order(m, candidates[i])};
        bool is_found;
        p.last = root + BEHIND_MAX < m->node_count ? root + BEHIND_MAX : m->node_count - 1;
        if (root - p.first > 2 * BEFORE_MAX) continue;
        arena_reset(&s->scratch);
        ckks_status rc = make_groups(s, &p, err);
        if (rc == CKKS_OK) rc = is_variance(&is_found, s, &p, err);
        if (rc == CKKS_OK && is_found) return find_normalised(s, &p, err);
        if (rc != CKKS_OK) return rc;
    }
    return CKKS_OK;
}

ckks_status normal_find(lowering *l, ckks_error *err) {
    search s = {.l = l, .model = l->model, .work_left = model_work_max(l->model)};
    const onnx_model *m = l->model;
    ckks_status rc = CKKS_OK;
    l->normals = arena_take(l->memory, m->value_count, sizeof *l->normals);
    if (!l->normals) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for the graph");
    for (uint32_t n = 0; n < m->node_count && rc == CKKS_OK; n++) {
        if (!is_root(&m->nodes[n], m) || m->values[m->nodes[n].outputs[0]].constant.data) continue;
        if (!s.values) {
            s.values = arena_take(l->memory, m->value_count, sizeof *s.values);
            if (!s.values) rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a row");
            for (uint32_t i = 0; s.values && i < m->value_count; i++) s.values[i] = m->values[i].constant;
        }
        if (rc == CKKS_OK) rc = look_at_root(&s, n, err);
    }
    arena_fini(&s.scratch);
    return rc;
}

ckks_status normal_lower_found(bool *is_done, lowering *l, const model_node *node, ckks_error *err) {
    const normal *n = l->normals[node->outputs[0]].normal;
    const symbol *x = n ? &l->symbols[l->normals[node->outputs[0]].from] : NULL;
    *is_done = x && x->kind == SYMBOL_ENCRYPTED && !x->is_refused;
    return *is_done ? normal_append(l, node, n, x->node, err) : CKKS_OK;
}
