/*
 * ai.onnx.ml: Scaler, LinearClassifier, Normalizer, ZipMap. This is how scikit-learn pipelines are exported.
 * A classifier is a dense layer; its link function and labels are the client's.
 */
#include "client/compile/groups.h"

#include <math.h>
#include <string.h>

/* ---- Scaler: (x - offset) * scale, per column or one for all ---- */

static double scaler_number(const model_node *node, const char *name, uint32_t i, double otherwise) {
    const Onnx__Attribute *a = node_attribute(node, name);
    return !a || !a->n_floats ? otherwise : (double)a->floats[a->n_floats == 1 ? 0 : i];
}

static ckks_status scaler_check(const model_node *node, const tensor *x, ckks_error *err) {
    static const char *const names[] = {"offset", "scale"};
    for (int k = 0; k < 2; k++) {
        const Onnx__Attribute *a = node_attribute(node, names[k]);
        if (a && a->n_floats > 1 && a->n_floats != x->count)
            return node_error(node, err, "%s has %zu numbers for %u columns", names[k], a->n_floats,
                              x->count);
        for (size_t i = 0; a && i < a->n_floats; i++)
            if (!isfinite(a->floats[i]))
                return node_error(node, err, "%s has a number that is not finite", names[k]);
    }
    return CKKS_OK;
}

static ckks_status scaler_evaluate(evaluation *e, ckks_error *err) {
    const tensor *x = e->in[0];
    ckks_status rc = scaler_check(e->node, x, err);
    if (rc == CKKS_OK) rc = output_like(e, 0, x, err);
    for (uint32_t i = 0; rc == CKKS_OK && i < x->count; i++)
        e->out[0]->data[i] =
            (x->data[i] - scaler_number(e->node, "offset", i, 0)) * scaler_number(e->node, "scale", i, 1);
    return rc;
}

static ckks_status scaler_lower(lowering *l, const model_node *node, ckks_error *err) {
    const uint32_t count = l->model->values[node->inputs[0]].sample.count;
    double *factor = arena_take(l->memory, count, sizeof *factor);
    double *bias = arena_take(l->memory, count, sizeof *bias);
    sparse *matrix;
    if (!factor || !bias)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for constants");
    for (uint32_t i = 0; i < count; i++) {
        factor[i] = scaler_number(node, "scale", i, 1);
        bias[i] = -scaler_number(node, "offset", i, 0) * factor[i];
    }
    const ckks_status rc = sparse_gather(&matrix, l->memory, count, count, NULL, factor, err);
    return rc == CKKS_OK ? lower_linear(l, node, lower_symbol(l, node, 0)->node, matrix, bias, err) : rc;
}

/* ---- LinearClassifier ---- */

typedef struct classifier {
    uint32_t columns, rows;                 /* of the coefficients */
    bool is_mirrored;                       /* one row for two classes: the scores are [-s, s] */
    uint32_t link;                          /* POST_* */
    const float *coefficients, *intercepts; /* intercepts may be NULL */
    const Onnx__Attribute *texts, *numbers; /* class labels: one of them, or neither */
} classifier;

static ckks_status classifier_read(classifier *c, const model_node *node, const tensor *x, ckks_error *err) {
    const Onnx__Attribute *weights = node_attribute(node, "coefficients");
    const Onnx__Attribute *bias = node_attribute(node, "intercepts");
    *c = (classifier){.columns = x->count};
    if (node->output_count != 2) return node_error(node, err, "must have two outputs, label and scores");
    if (!weights || !weights->n_floats || weights->n_floats % c->columns ||
        weights->n_floats / c->columns > MODEL_ROW_MAX)
        return node_error(node, err, "%zu coefficients for %u columns",
                          weights ? weights->n_floats : (size_t)0, c->columns);
    c->rows = (uint32_t)(weights->n_floats / c->columns);
    c->coefficients = weights->floats;
    if (bias && bias->n_floats > c->rows && weights->n_floats % bias->n_floats == 0)
        return node_error(
            node, err,
            "coefficients for %zu columns, its input has %u: the exporter joined others than the "
            "model was trained on (skl2onnx does for a RidgeClassifier in a StackingClassifier: "
            "take LogisticRegression)",
            weights->n_floats / bias->n_floats, c->columns);
    if (bias && bias->n_floats && bias->n_floats != c->rows)
        return node_error(node, err, "%zu intercepts for %u scores", bias->n_floats, c->rows);
    c->intercepts = bias && bias->n_floats ? bias->floats : NULL;
    const Onnx__Attribute *texts = node_attribute(node, "classlabels_strings"),
                          *numbers = node_attribute(node, "classlabels_ints");
    c->texts = texts && texts->n_strings ? texts : NULL;
    c->numbers = !c->texts && numbers && numbers->n_ints ? numbers : NULL;
    const size_t labels = c->texts ? c->texts->n_strings : c->numbers ? c->numbers->n_ints : 0;
    c->is_mirrored = c->rows == 1 && labels == 2;
    if (labels && labels != c->rows && !c->is_mirrored)
        return node_error(node, err, "%zu class labels for %u scores", labels, c->rows);
    if (c->rows == 1 && !c->is_mirrored) return node_error(node, err, "one score and no two class labels");
    for (size_t i = 0; i < weights->n_floats + (c->intercepts ? c->rows : 0); i++)
        if (!isfinite(i < weights->n_floats ? weights->floats[i] : c->intercepts[i - weights->n_floats]))
            return node_error(node, err, "a coefficient is not finite");
    return node_link(&c->link, node, err);
}

static double classifier_weight(const classifier *c, uint32_t row, uint32_t column) {
    if (c->is_mirrored) return (row ? 1.0 : -1.0) * (double)c->coefficients[column];
    return (double)c->coefficients[(size_t)row * c->columns + column];
}
static double classifier_bias(const classifier *c, uint32_t row) {
    if (!c->intercepts) return 0;
    return c->is_mirrored ? (row ? 1.0 : -1.0) * (double)c->intercepts[0] : (double)c->intercepts[row];
}

/* the normal quantile, by halving: the client's */
static double quantile(double p) {
    double low = -38, high = 38;
    for (int i = 0; i < 80; i++) {
        const double middle = 0.5 * (low + high);
        *(0.5 * erfc(-middle / 1.4142135623730951) < p ? &low : &high) = middle;
    }
    return 0.5 * (low + high);
}

void classifier_apply_link(double *v, uint32_t count, uint32_t link) {
    double top = -INFINITY, total = 0;
    for (uint32_t i = 0; link == POST_PROBIT && i < count; i++) v[i] = quantile(v[i]);
    for (uint32_t i = 0; link == POST_SIGMOID && i < count; i++) v[i] = 1 / (1 + exp(-v[i]));
    if (link != POST_SOFTMAX && link != POST_SOFTMAX_ZERO) return;
    for (uint32_t i = 0; i < count; i++) top = fmax(top, v[i]);
    for (uint32_t i = 0; i < count; i++)
        total += v[i] = link == POST_SOFTMAX_ZERO && fabs(v[i]) < 1e-7 ? v[i] * exp(-top) : exp(v[i] - top);
    for (uint32_t i = 0; i < count; i++) v[i] /= total;
}

static ckks_status classifier_evaluate(evaluation *e, ckks_error *err) {
    classifier c;
    ckks_status rc = classifier_read(&c, e->node, e->in[0], err);
    if (rc != CKKS_OK) return rc;
    const int64_t dims[2] = {1, c.is_mirrored ? 2 : c.rows};
    if ((rc = output_shape(e, 0, dims, 1, err)) != CKKS_OK) return rc;
    if ((rc = output_shape(e, 1, dims, 2, err)) != CKKS_OK) return rc;
    double *scores = e->out[1]->data;
    const uint32_t count = (uint32_t)dims[1];
    uint32_t best = 0;
    for (uint32_t i = 0; i < count; i++) {
        scores[i] = classifier_bias(&c, i);
        for (uint32_t k = 0; k < c.columns; k++) scores[i] += classifier_weight(&c, i, k) * e->in[0]->data[k];
        if (scores[i] > scores[best]) best = i;
    }
    e->out[0]->data[0] = best; /* the class's number: texts have no place in a tensor of numbers */
    e->out[0]->is_integer = true;
    if (!e->scores_only) classifier_apply_link(scores, count, c.link);
    return CKKS_OK;
}

ckks_status classifier_labels(client_steps *steps, const Onnx__Attribute *texts,
                              const Onnx__Attribute *numbers, arena *memory, const model_node *node,
                              ckks_error *err) {
    if (!texts && !numbers) return CKKS_OK;
    steps->label_count = (uint32_t)(texts ? texts->n_strings : numbers->n_ints);
    steps->labels = texts ? arena_take(memory, steps->label_count, sizeof *steps->labels) : NULL;
    steps->label_numbers =
        texts ? NULL : arena_take(memory, steps->label_count, sizeof *steps->label_numbers);
    if (!steps->labels && !steps->label_numbers) goto exhausted;
    for (uint32_t i = 0; i < steps->label_count; i++) {
        if (!texts) {
            steps->label_numbers[i] = numbers->ints[i];
            continue;
        }
        const ProtobufCBinaryData *text = &texts->strings[i];
        char *copy = arena_take(memory, text->len + 1, 1);
        if (!copy) goto exhausted;
        if (text->len) memcpy(copy, text->data, text->len);
        steps->labels[i] = copy;
    }
    return CKKS_OK;
exhausted:
    return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for labels");
}

void classifier_swap_labels(client_steps *steps) {
    if (steps->label_count != 2) return;
    if (steps->labels) {
        const char *first = steps->labels[0];
        steps->labels[0] = steps->labels[1], steps->labels[1] = first;
    } else {
        const int64_t first = steps->label_numbers[0];
        steps->label_numbers[0] = steps->label_numbers[1], steps->label_numbers[1] = first;
    }
}

static ckks_status classifier_layer(ir_node *made, lowering *l, const model_node *node, const classifier *c,
                                    ckks_error *err) {
    const uint32_t rows = c->is_mirrored ? 2 : c->rows;
    sparse *matrix;
    const ckks_status rc =
        sparse_create(&matrix, l->memory, rows, c->columns, (uint64_t)rows * c->columns, err);
    if (rc != CKKS_OK) return rc;
    *made = (ir_node){.kind = IR_LINEAR, .count = rows, .term_count = 1, .source = node->label};
    made->bias = arena_take(l->memory, rows, sizeof *made->bias);
    made->terms = arena_take(l->memory, 1, sizeof *made->terms);
    if (!made->bias || !made->terms)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for a layer");
    uint32_t entry = 0;
    for (uint32_t i = 0; i < rows; i++) {
        made->bias[i] = classifier_bias(c, i);
        for (uint32_t k = 0; k < c->columns; k++) {
            matrix->column[entry] = k;
            matrix->value[entry++] = classifier_weight(c, i, k);
        }
        matrix->row_start[i + 1] = entry;
    }
    made->terms[0] = (ir_term){lower_symbol(l, node, 0)->node, matrix};
    return CKKS_OK;
}

/* one of several models: probabilities that more of the program reads */
static ckks_status probabilities_within(symbol *scores, lowering *l, const model_node *node,
                                        const classifier *c, ckks_error *err) {
    const uint32_t from = scores->node;
    groups g;
    const tensor *shares = &l->model->values[node->outputs[1]].sample;
    ir_node last = {.kind = IR_ACTIVATION,
                    .function = IR_SIGMOID,
                    .count = l->graph->nodes[from].count,
                    .a = from,
                    .source = node->label};
    ckks_status rc = CKKS_OK;
    *scores = (symbol){.kind = SYMBOL_ENCRYPTED, .adds_up = c->is_mirrored || c->link == POST_SOFTMAX};
    if (c->link == POST_SOFTMAX) {
        rc = groups_by_runs(&g, node, shares, shares->count, l->memory, err);
        if (rc == CKKS_OK) rc = groups_softmax(&last, l, node, &g, from, false, err);
    }
    return rc == CKKS_OK ? ir_append(&scores->node, l->graph, &last, err) : rc;
}

static ckks_status classifier_lower(lowering *l, const model_node *node, ckks_error *err) {
    classifier c;
    ir_node made;
    symbol scores = {.kind = SYMBOL_CLIENT, .score_value = node->outputs[1]};
    ckks_status rc = classifier_read(&c, node, &l->model->values[node->inputs[0]].sample, err);
    if (rc != CKKS_OK) return rc;
    if ((rc = classifier_layer(&made, l, node, &c, err)) != CKKS_OK) return rc;
    if ((rc = ir_append(&scores.node, l->graph, &made, err)) != CKKS_OK) return rc;
    scores.steps.link = c.link;
    if ((rc = classifier_labels(&scores.steps, c.texts, c.numbers, l->memory, node, err)) != CKKS_OK)
        return rc;
    symbol label = scores;
    label.is_label = label.steps.has_label = true;
    l->symbols[node->outputs[0]] = label;
    if (c.link == POST_NONE) scores.kind = SYMBOL_ENCRYPTED;
    if ((c.link == POST_SIGMOID || c.link == POST_SOFTMAX) && !l->is_final[node->outputs[1]])
        rc = probabilities_within(&scores, l, node, &c, err);
    l->symbols[node->outputs[1]] = scores;
    return rc;
}

/* ---- what stands behind a classifier ---- */

static ckks_status after_evaluate(evaluation *e, ckks_error *err) {
    const ckks_status rc = output_like(e, 0, e->in[0], err);
    if (rc == CKKS_OK) memcpy(e->out[0]->data, e->in[0]->data, e->in[0]->count * sizeof *e->in[0]->data);
    return rc;
}

/* a row is one vector, whatever its axes */
static ckks_status normalizer_evaluate(evaluation *e, ckks_error *err) {
    const tensor *x = e->in[0];
    size_t size;
    const uint8_t *norm = node_text(e->node, "norm", &size);
    const bool is_max = !norm || node_text_is(norm, size, "MAX"),
               is_root = norm && node_text_is(norm, size, "L2");
    double total = 0;
    if (!is_max && !is_root && !node_text_is(norm, size, "L1"))
        return node_error(e->node, err, "an unknown norm");
    const ckks_status rc = output_like(e, 0, x, err);
    if (rc != CKKS_OK) return rc;
    for (uint32_t i = 0; i < x->count; i++)
        total = is_max    ? fmax(total, fabs(x->data[i]))
                : is_root ? total + x->data[i] * x->data[i]
                          : total + fabs(x->data[i]);
    if (is_root) total = sqrt(total);
    for (uint32_t i = 0; i < x->count; i++) e->out[0]->data[i] = total > 0 ? x->data[i] / total : x->data[i];
    return CKKS_OK;
}

static ckks_status zipmap_lower(lowering *l, const model_node *node, ckks_error *err) {
    (void)err;
    lower_pass(l, node);
    return CKKS_OK;
}

/* two scores that are each other's negatives: their sigmoids add up to one */
static bool is_mirrored_pair(const ir_node *scores) {
    if (scores->kind != IR_LINEAR || scores->term_count != 1 || scores->count != 2) return false;
    const sparse *m = scores->terms[0].matrix;
    const uint32_t width = m->row_start[1];
    if (m->row_start[2] != 2 * width || scores->bias[0] != -scores->bias[1]) return false;
    for (uint32_t i = 0; i < width; i++)
        if (m->column[i] != m->column[width + i] || m->value[i] != -m->value[width + i]) return false;
    return true;
}

/* scikit-learn's exports normalise probabilities that add up to one already */
static ckks_status normalizer_lower(lowering *l, const model_node *node, ckks_error *err) {
    const symbol *from = lower_symbol(l, node, 0);
    size_t size;
    const uint8_t *norm = node_text(node, "norm", &size);
    const bool adds_up =
        (from->kind == SYMBOL_ENCRYPTED && from->adds_up) ||
        (from->kind == SYMBOL_CLIENT && !from->is_label &&
         (from->steps.link == POST_SOFTMAX || from->steps.link == POST_SOFTMAX_ZERO ||
          (from->steps.link == POST_SIGMOID && is_mirrored_pair(&l->graph->nodes[from->node]))));
    if (!adds_up || !norm || !node_text_is(norm, size, "L1"))
        return lower_refuse(l, node, "it divides by a sum of values that are known only when decrypted",
                            "leave it out: the client can normalise the scores", err);
    lower_pass(l, node);
    return CKKS_OK;
}

const operator_row operators_classifier[] = {
    {"ai.onnx.ml", "Scaler", 1, 1, 1, 0, scaler_evaluate, scaler_lower, "at the beginning: by the client"},
    {"ai.onnx.ml", "LinearClassifier", 1, 1, 2, 0, classifier_evaluate, classifier_lower,
     "link and labels: by the client"},
    {"ai.onnx.ml", "Normalizer", 1, 1, 1, OPERATOR_AFTER_SCORES | OPERATOR_CLIENT_SIDE, normalizer_evaluate,
     normalizer_lower, "before encryption, or probabilities behind the scores"},
    {"ai.onnx.ml", "ZipMap", 1, 1, 1, OPERATOR_AFTER_SCORES | OPERATOR_CLIENT_SIDE, after_evaluate,
     zipmap_lower, NULL},
    {0},
};
