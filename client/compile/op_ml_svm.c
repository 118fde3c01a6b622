/*
 * ai.onnx.ml's support vector machines. A row meets every support vector in a kernel, and the results are
 * weighed: with the linear kernel all of it is one dense layer; else a dense layer, the kernel's function of
 * each number (a power, tanh, or exp of minus the distance) and another dense layer. Classifiers of several
 * classes have one machine for each pair; votes and probabilities are the client's.
 */
#include "client/compile/operator.h"
#include "client/lib/crypto.h"

#include <math.h>
#include <string.h>

typedef enum kernel { KERNEL_LINEAR, KERNEL_POLY, KERNEL_RBF, KERNEL_SIGMOID } kernel;

typedef struct machine {
    uint32_t columns, rows, support_count;
    kernel kernel;
    double gamma, offset, degree;
    const float *supports; /* [support_count][columns]; NULL: weights are of the columns themselves */
    double *weights;       /* [rows][support_count, or columns] */
    double *bias;          /* [rows] */
    uint32_t link;         /* POST_* */
    /* classifiers */
    uint32_t class_count;
    bool has_pairs, is_mirrored; /* one machine a pair; of two classes without probabilities: [-s, s] */
    const float *pair_scale, *pair_offset; /* [rows], or NULL */
    const Onnx__Attribute *texts, *numbers;
} machine;

static ckks_status no_memory(const model_node *node, ckks_error *err) {
    return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for support vectors");
}

static ckks_status read_kernel(machine *m, const model_node *node, ckks_error *err) {
    static const char *const names[] = {"LINEAR", "POLY", "RBF", "SIGMOID"};
    const float *numbers;
    size_t size, count;
    const uint8_t *text = node_text(node, "kernel_type", &size);
    uint32_t k = 0;
    while (text && k < 4 && !node_text_is(text, size, names[k])) k++;
    if (k == 4) return node_error(node, err, "an unknown kernel_type");
    m->kernel = (kernel)k;
    const ckks_status rc = node_floats(&numbers, &count, node, "kernel_params", err);
    if (rc != CKKS_OK) return rc;
    if (count != 0 && count != 3) return node_error(node, err, "%zu kernel_params, not 3", count);
    if (count) m->gamma = (double)numbers[0], m->offset = (double)numbers[1], m->degree = (double)numbers[2];
    if (m->kernel == KERNEL_POLY && !(m->degree >= 1 && m->degree <= 16 && m->degree == floor(m->degree)))
        return node_error(node, err, "a kernel of degree %g: 1 to 16 are compiled", m->degree);
    return CKKS_OK;
}

static ckks_status make_room(machine *m, const model_node *node, arena *memory, ckks_error *err) {
    const uint32_t width = m->supports ? m->support_count : m->columns;
    m->weights = arena_take(memory, (uint64_t)m->rows * width, sizeof *m->weights);
    m->bias = arena_take(memory, m->rows, sizeof *m->bias);
    return m->weights && m->bias ? CKKS_OK : no_memory(node, err);
}

static ckks_status read_supports(machine *m, const model_node *node, uint64_t count, ckks_error *err) {
    size_t vector_count;
    const ckks_status rc = node_floats(&m->supports, &vector_count, node, "support_vectors", err);
    if (rc != CKKS_OK) return rc;
    if (!count || count > MODEL_ROW_MAX || vector_count != count * m->columns)
        return node_error(node, err, "%zu numbers for %llu support vectors of %u columns", vector_count,
                          (unsigned long long)count, m->columns);
    m->support_count = (uint32_t)count;
    return CKKS_OK;
}

/* ---- regressors ---- */

static ckks_status regressor_read(machine *m, const model_node *node, const tensor *x, arena *memory,
                                  ckks_error *err) {
    const float *weights, *rho;
    size_t count, rho_count;
    *m = (machine){.columns = x->count, .rows = 1};
    ckks_status rc = read_kernel(m, node, err);
    if (rc == CKKS_OK) rc = node_link(&m->link, node, err);
    if (rc == CKKS_OK) rc = node_floats(&weights, &count, node, "coefficients", err);
    if (rc == CKKS_OK) rc = node_floats(&rho, &rho_count, node, "rho", err);
    if (rc != CKKS_OK) return rc;
    if (node_int(node, "n_supports", 0) > 0)
        rc = read_supports(m, node, count, err);
    else if (m->kernel != KERNEL_LINEAR)
        return node_error(node, err, "a kernel without support vectors");
    if (rc != CKKS_OK) return rc;
    if ((!m->supports && count != m->columns) || rho_count > 1)
        return node_error(node, err, "%zu coefficients and %zu rho for %u columns", count, rho_count,
                          m->columns);
    if ((rc = make_room(m, node, memory, err)) != CKKS_OK) return rc;
    for (size_t i = 0; i < count; i++) m->weights[i] = (double)weights[i];
    m->bias[0] = rho_count ? (double)rho[0] : 0;
    return CKKS_OK;
}

/* ---- classifiers ---- */

/* row p is the pair (i, j): supports of class i have the weights that stand against j, and the other way */
static void pair_weights(machine *m, const float *coefficients, const float *rho, const int64_t *sizes) {
    uint32_t row = 0, start_i = 0;
    for (uint32_t i = 0; i < m->class_count; start_i += (uint32_t)sizes[i++]) {
        uint32_t start_j = start_i + (uint32_t)sizes[i];
        for (uint32_t j = i + 1; j < m->class_count; start_j += (uint32_t)sizes[j++], row++) {
            double *w = m->weights + (size_t)row * m->support_count;
            for (uint32_t s = start_i; s < start_i + (uint32_t)sizes[i]; s++)
                w[s] = (double)coefficients[(size_t)(j - 1) * m->support_count + s];
            for (uint32_t s = start_j; s < start_j + (uint32_t)sizes[j]; s++)
                w[s] = (double)coefficients[(size_t)i * m->support_count + s];
            m->bias[row] = (double)rho[row];
        }
    }
}

static void mirror(machine *m) {
    for (uint32_t s = 0; s < m->support_count; s++) {
        m->weights[m->support_count + s] = m->weights[s];
        m->weights[s] = -m->weights[s];
    }
    m->bias[1] = m->bias[0], m->bias[0] = -m->bias[0];
}

static ckks_status read_classes(machine *m, const model_node *node, ckks_error *err) {
    const Onnx__Attribute *sizes = node_attribute(node, "vectors_per_class");
    const Onnx__Attribute *texts = node_attribute(node, "classlabels_strings"),
                          *numbers = node_attribute(node, "classlabels_ints");
    m->texts = texts && texts->n_strings ? texts : NULL;
    m->numbers = !m->texts && numbers && numbers->n_ints ? numbers : NULL;
    const size_t labels = m->texts ? m->texts->n_strings : m->numbers ? m->numbers->n_ints : 0;
    const size_t groups = sizes ? sizes->n_ints : 0, count = groups ? groups : labels;
    m->has_pairs = groups > 0;
    if (count < 2 || count > CLIENT_CLASSES_MAX || (labels && labels != count))
        return node_error(node, err, "%zu class labels for %zu groups of support vectors", labels, groups);
    m->class_count = (uint32_t)count;
    return CKKS_OK;
}

/* one machine for each pair of classes */
static ckks_status pairs_read(machine *m, const model_node *node, const float *coefficients, size_t count,
                              const float *rho, size_t rho_count, arena *memory, ckks_error *err) {
    const Onnx__Attribute *sizes = node_attribute(node, "vectors_per_class");
    uint64_t total = 0;
    size_t scales, offsets;
    ckks_status rc = node_floats(&m->pair_scale, &scales, node, "prob_a", err);
    if (rc == CKKS_OK) rc = node_floats(&m->pair_offset, &offsets, node, "prob_b", err);
    if (rc != CKKS_OK) return rc;
    for (size_t i = 0; i < sizes->n_ints; i++) {
        if (sizes->ints[i] < 0 || sizes->ints[i] > MODEL_ROW_MAX)
            return node_error(node, err, "class %zu has %lld support vectors", i, (long long)sizes->ints[i]);
        total += (uint64_t)sizes->ints[i];
    }
    if ((rc = read_supports(m, node, total, err)) != CKKS_OK) return rc;
    m->rows = m->class_count * (m->class_count - 1) / 2;
    if (count != (uint64_t)(m->class_count - 1) * m->support_count || rho_count != m->rows ||
        scales != offsets || (scales && scales != m->rows))
        return node_error(
            node, err,
            "%zu coefficients, %zu rho, %zu prob_a and %zu prob_b for %u support vectors of %u classes",
            count, rho_count, scales, offsets, m->support_count, m->class_count);
    if (!scales) m->pair_scale = m->pair_offset = NULL;
    m->is_mirrored = m->class_count == 2 && !scales;
    if (m->is_mirrored) m->rows = 2;
    if ((rc = make_room(m, node, memory, err)) != CKKS_OK) return rc;
    pair_weights(m, coefficients, rho, sizes->ints);
    if (m->is_mirrored) mirror(m);
    return CKKS_OK;
}

/* one row of weights for each class */
static ckks_status rows_read(machine *m, const model_node *node, const float *coefficients, size_t count,
                             const float *rho, size_t rho_count, arena *memory, ckks_error *err) {
    m->rows = m->class_count;
    m->kernel = KERNEL_LINEAR;
    if (count != (uint64_t)m->class_count * m->columns || rho_count != 1)
        return node_error(node, err, "%zu coefficients and %zu rho for %u classes of %u columns", count,
                          rho_count, m->class_count, m->columns);
    const ckks_status rc = make_room(m, node, memory, err);
    if (rc != CKKS_OK) return rc;
    for (size_t i = 0; i < count; i++) m->weights[i] = (double)coefficients[i];
    for (uint32_t i = 0; i < m->rows; i++) m->bias[i] = (double)rho[0];
    return CKKS_OK;
}

static ckks_status classifier_read(machine *m, const model_node *node, const tensor *x, arena *memory,
                                   ckks_error *err) {
    const float *coefficients, *rho;
    size_t count, rho_count;
    *m = (machine){.columns = x->count};
    if (node->output_count != 2) return node_error(node, err, "must have two outputs, label and scores");
    ckks_status rc = read_kernel(m, node, err);
    if (rc == CKKS_OK) rc = node_link(&m->link, node, err);
    if (rc == CKKS_OK) rc = node_floats(&coefficients, &count, node, "coefficients", err);
    if (rc == CKKS_OK) rc = node_floats(&rho, &rho_count, node, "rho", err);
    if (rc == CKKS_OK) rc = read_classes(m, node, err);
    if (rc != CKKS_OK) return rc;
    return m->has_pairs ? pairs_read(m, node, coefficients, count, rho, rho_count, memory, err)
                        : rows_read(m, node, coefficients, count, rho, rho_count, memory, err);
}

/* ---- in the clear ---- */

static double kernel_value(const machine *m, const double *x, uint32_t support) {
    const float *v = m->supports + (size_t)support * m->columns;
    double sum = 0;
    for (uint32_t k = 0; k < m->columns; k++) {
        const double difference = x[k] - (double)v[k];
        sum += m->kernel == KERNEL_RBF ? difference * difference : x[k] * (double)v[k];
    }
    switch (m->kernel) {
    case KERNEL_POLY:
        return pow(m->gamma * sum + m->offset, m->degree);
    case KERNEL_RBF:
        return exp(-m->gamma * sum);
    case KERNEL_SIGMOID:
        return tanh(m->gamma * sum + m->offset);
    default:
        return sum;
    }
}

static ckks_status machine_run(double *y, const machine *m, evaluation *e, ckks_error *err) {
    const uint32_t width = m->supports ? m->support_count : m->columns;
    const double *values = e->in[0]->data;
    ckks_status rc = evaluation_work(e, width, (uint64_t)m->rows + m->columns, err);
    if (rc != CKKS_OK) return rc;
    if (m->supports) {
        double *kernels = arena_take(e->memory, width, sizeof *kernels);
        if (!kernels) return no_memory(e->node, err);
        for (uint32_t i = 0; i < width; i++) kernels[i] = kernel_value(m, values, i);
        values = kernels;
    }
    for (uint32_t i = 0; i < m->rows; i++) {
        y[i] = m->bias[i];
        for (uint32_t k = 0; k < width; k++) y[i] += m->weights[(size_t)i * width + k] * values[k];
    }
    return CKKS_OK;
}

static ckks_status regressor_evaluate(evaluation *e, ckks_error *err) {
    machine m;
    const int64_t dims[2] = {1, 1};
    ckks_status rc = regressor_read(&m, e->node, e->in[0], e->memory, err);
    if (rc == CKKS_OK) rc = output_shape(e, 0, dims, 2, err);
    if (rc == CKKS_OK) rc = machine_run(e->out[0]->data, &m, e, err);
    if (rc == CKKS_OK && !e->scores_only) classifier_apply_link(e->out[0]->data, 1, m.link);
    return rc;
}

static uint32_t chosen_class(const machine *m, const double *scores) {
    uint32_t best = 0;
    if (m->is_mirrored) return scores[1] > 0 ? 0 : 1;
    if (m->has_pairs) return client_pair_winner(scores, m->class_count);
    for (uint32_t i = 1; i < m->rows; i++)
        if (scores[i] > scores[best]) best = i;
    return best;
}

static ckks_status classifier_evaluate(evaluation *e, ckks_error *err) {
    machine m;
    ckks_status rc = classifier_read(&m, e->node, e->in[0], e->memory, err);
    if (rc != CKKS_OK) return rc;
    const bool is_probability = m.pair_scale && !e->scores_only;
    const int64_t label = 1, dims[2] = {1, is_probability ? m.class_count : m.rows};
    double *scores = arena_take(e->memory, m.rows, sizeof *scores);
    if (!scores) return no_memory(e->node, err);
    if ((rc = output_shape(e, 0, &label, 1, err)) != CKKS_OK) return rc;
    if ((rc = output_shape(e, 1, dims, 2, err)) != CKKS_OK) return rc;
    if ((rc = machine_run(scores, &m, e, err)) != CKKS_OK) return rc;
    e->out[0]->data[0] = chosen_class(&m, scores);
    e->out[0]->is_integer = true;
    double *y = e->out[1]->data;
    if (!is_probability) {
        memcpy(y, scores, m.rows * sizeof *y);
        if (!e->scores_only) classifier_apply_link(y, m.rows, m.link);
        return CKKS_OK;
    }
    for (uint32_t i = 0; i < m.rows; i++)
        scores[i] = client_pair_share(scores[i], (double)m.pair_scale[i], (double)m.pair_offset[i]);
    return client_pair_couple(y, scores, m.class_count, err);
}

/* ---- in the graph ---- */

/* sum over columns of a row of `from` */
static ckks_status append_dense(uint32_t *out, lowering *l, const model_node *node, uint32_t from,
                                const double *weights, uint32_t rows, uint32_t columns, const double *bias,
                                ckks_error *err) {
    sparse *matrix;
    ckks_status rc = sparse_create(&matrix, l->memory, rows, columns, (uint64_t)rows * columns, err);
    uint32_t entry = 0;
    for (uint32_t i = 0; i < rows && rc == CKKS_OK; i++) {
        for (uint32_t k = 0; k < columns; k++) {
            const double weight = weights[(size_t)i * columns + k];
            if (weight == 0) continue;
            matrix->column[entry] = k;
            matrix->value[entry++] = weight;
        }
        matrix->row_start[i + 1] = entry;
    }
    if (rc == CKKS_OK) rc = lower_count(l, node, matrix, err);
    return rc == CKKS_OK ? ir_linear(out, l->graph, from, matrix, bias, node->label, err) : rc;
}

/* the linear kernel: supports add up */
static ckks_status lower_linear_kernel(uint32_t *out, lowering *l, const model_node *node, const machine *m,
                                       uint32_t from, ckks_error *err) {
    if (!m->supports) return append_dense(out, l, node, from, m->weights, m->rows, m->columns, m->bias, err);
    double *sum = arena_take(l->memory, (uint64_t)m->rows * m->columns, sizeof *sum);
    if (!sum) return no_memory(node, err);
    for (uint32_t i = 0; i < m->rows; i++)
        for (uint32_t s = 0; s < m->support_count; s++) {
            const double weight = m->weights[(size_t)i * m->support_count + s];
            for (uint32_t k = 0; weight != 0 && k < m->columns; k++)
                sum[(size_t)i * m->columns + k] += weight * (double)m->supports[(size_t)s * m->columns + k];
        }
    return append_dense(out, l, node, from, sum, m->rows, m->columns, m->bias, err);
}

/* what the kernel's function is taken of: gamma v.x + offset, or -gamma |x - v|^2 = 2 gamma v.x - gamma |v|^2
 * - gamma |x|^2 */
static ckks_status append_distances(uint32_t *out, lowering *l, const model_node *node, const machine *m,
                                    uint32_t from, ckks_error *err) {
    const bool is_distance = m->kernel == KERNEL_RBF;
    const uint32_t supports = m->support_count, columns = m->columns;
    double *weights = arena_take(l->memory, (uint64_t)supports * columns, sizeof *weights);
    double *bias = arena_take(l->memory, supports, sizeof *bias);
    if (!weights || !bias) return no_memory(node, err);
    for (uint32_t s = 0; s < supports; s++) {
        bias[s] = is_distance ? 0 : m->offset;
        for (uint32_t k = 0; k < columns; k++) {
            const double v = (double)m->supports[(size_t)s * columns + k];
            weights[(size_t)s * columns + k] = (is_distance ? 2 : 1) * m->gamma * v;
            if (is_distance) bias[s] -= m->gamma * v * v;
        }
    }
    ckks_status rc = append_dense(out, l, node, from, weights, supports, columns, bias, err);
    if (rc != CKKS_OK || !is_distance) return rc;
    ir_node square = {.kind = IR_PRODUCT, .count = columns, .a = from, .b = from, .source = node->label};
    ir_node sum = {.kind = IR_LINEAR, .count = supports, .term_count = 2, .source = node->label};
    uint32_t squares, total;
    double *minus = arena_take(l->memory, columns, sizeof *minus);
    double *ones = arena_take(l->memory, supports, sizeof *ones);
    uint32_t *first = arena_take(l->memory, supports, sizeof *first);
    sum.terms = arena_take(l->memory, 2, sizeof *sum.terms);
    sum.bias = arena_take(l->memory, supports, sizeof *sum.bias);
    if (!minus || !ones || !first || !sum.terms || !sum.bias) return no_memory(node, err);
    for (uint32_t k = 0; k < columns; k++) minus[k] = -m->gamma;
    for (uint32_t s = 0; s < supports; s++) ones[s] = 1;
    sparse *same, *spread;
    if ((rc = ir_append(&squares, l->graph, &square, err)) != CKKS_OK) return rc;
    if ((rc = append_dense(&total, l, node, squares, minus, 1, columns, NULL, err)) != CKKS_OK) return rc;
    if ((rc = sparse_gather(&same, l->memory, supports, supports, NULL, ones, err)) != CKKS_OK) return rc;
    if ((rc = sparse_gather(&spread, l->memory, supports, 1, first, ones, err)) != CKKS_OK) return rc;
    sum.terms[0] = (ir_term){*out, same}, sum.terms[1] = (ir_term){total, spread};
    return ir_append(out, l->graph, &sum, err);
}

static ckks_status append_kernels(uint32_t *out, lowering *l, const model_node *node, const machine *m,
                                  uint32_t from, ckks_error *err) {
    const ckks_status rc = append_distances(out, l, node, m, from, err);
    if (rc != CKKS_OK || (m->kernel == KERNEL_POLY && m->degree == 1)) return rc;
    ir_node made = {.kind = IR_ACTIVATION, .count = m->support_count, .a = *out, .source = node->label};
    made.function = m->kernel == KERNEL_RBF ? IR_EXP : m->kernel == KERNEL_SIGMOID ? IR_TANH : IR_POW;
    made.parameters[0] = m->degree;
    if (m->kernel == KERNEL_POLY && m->degree == 2) made.kind = IR_PRODUCT, made.b = *out;
    return ir_append(out, l->graph, &made, err);
}

static ckks_status lower_machine(uint32_t *out, lowering *l, const model_node *node, const machine *m,
                                 ckks_error *err) {
    const uint32_t from = lower_symbol(l, node, 0)->node;
    uint32_t kernels;
    if (m->kernel == KERNEL_LINEAR) return lower_linear_kernel(out, l, node, m, from, err);
    const ckks_status rc = append_kernels(&kernels, l, node, m, from, err);
    return rc == CKKS_OK
               ? append_dense(out, l, node, kernels, m->weights, m->rows, m->support_count, m->bias, err)
               : rc;
}

static ckks_status regressor_lower(lowering *l, const model_node *node, ckks_error *err) {
    machine m;
    symbol *made = &l->symbols[node->outputs[0]];
    if (node_int(node, "one_class", 0))
        return lower_refuse(l, node, "a decision by the sign of an encrypted number",
                            "export the score, and let the client compare it", err);
    ckks_status rc = regressor_read(&m, node, &l->model->values[node->inputs[0]].sample, l->memory, err);
    *made = (symbol){.kind = m.link == POST_NONE ? SYMBOL_ENCRYPTED : SYMBOL_CLIENT,
                     .score_value = node->outputs[0],
                     .steps = {.link = m.link}};
    return rc == CKKS_OK ? lower_machine(&made->node, l, node, &m, err) : rc;
}

/* the client turns scores of pairs into probabilities of classes */
static ckks_status pair_steps(client_steps *steps, const machine *m, lowering *l, const model_node *node,
                              ckks_error *err) {
    steps->link = POST_ONE_VS_ONE;
    if (!m->pair_scale) return CKKS_OK;
    steps->pair_count = m->rows;
    steps->pair_scale = arena_take(l->memory, m->rows, sizeof *steps->pair_scale);
    steps->pair_offset = arena_take(l->memory, m->rows, sizeof *steps->pair_offset);
    if (!steps->pair_scale || !steps->pair_offset) return no_memory(node, err);
    for (uint32_t i = 0; i < m->rows; i++) {
        steps->pair_scale[i] = (double)m->pair_scale[i];
        steps->pair_offset[i] = (double)m->pair_offset[i];
    }
    return CKKS_OK;
}

static ckks_status classifier_lower(lowering *l, const model_node *node, ckks_error *err) {
    machine m;
    symbol label = {.kind = SYMBOL_CLIENT, .score_value = node->outputs[1], .is_label = true};
    ckks_status rc = classifier_read(&m, node, &l->model->values[node->inputs[0]].sample, l->memory, err);
    if (rc != CKKS_OK) return rc;
    if (m.has_pairs && m.link != POST_NONE)
        return lower_refuse(l, node, "a post_transform of scores of pairs",
                            "export without it: probabilities come from prob_a and prob_b", err);
    if ((rc = lower_machine(&label.node, l, node, &m, err)) != CKKS_OK) return rc;
    label.steps.link = m.link;
    rc = classifier_labels(&label.steps, m.texts, m.numbers, l->memory, node, err);
    if (rc == CKKS_OK && m.has_pairs && !m.is_mirrored) rc = pair_steps(&label.steps, &m, l, node, err);
    if (rc != CKKS_OK) return rc;
    /* the score is above zero for the first class, and [-s, s] has its largest number second */
    if (m.is_mirrored) classifier_swap_labels(&label.steps);
    symbol scores = label;
    label.steps.has_label = true;
    scores.is_label = false;
    if (m.link == POST_NONE && !m.pair_scale) scores = (symbol){.kind = SYMBOL_ENCRYPTED, .node = label.node};
    l->symbols[node->outputs[0]] = label;
    l->symbols[node->outputs[1]] = scores;
    return CKKS_OK;
}

const operator_row operators_svm[] = {
    {"ai.onnx.ml", "SVMClassifier", 1, 1, 2, 0, classifier_evaluate, classifier_lower,
     "every kernel; votes and probabilities: by the client"},
    {"ai.onnx.ml", "SVMRegressor", 1, 1, 1, 0, regressor_evaluate, regressor_lower, "every kernel"},
    {0},
};
