/*
 * The walk over the ONNX graph, and what its outputs say about the client's part.
 */
#include "client/compile/lower.h"

#include "client/compile/normal.h"
#include "client/compile/operator.h"
#include "client/compile/table.h"

#include <string.h>

/* layers with weights: what stands before the first of them prepares columns */
bool lower_has_weights(const model_node *node) {
    static const char *const types[] = {"MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(node->type, types[i]) == 0) return true;
    return strncmp(node->type, "ai.onnx.ml.Linear", 17) == 0 ||
           strncmp(node->type, "ai.onnx.ml.SVM", 14) == 0;
}

static void set_prepared(lowering *l, const model_node *node) {
    bool is_prepared = !lower_has_weights(node);
    for (uint32_t k = 0; k < node->input_count; k++)
        if (node->inputs[k] != MODEL_NONE) is_prepared = is_prepared && l->is_prepared[node->inputs[k]];
    for (uint32_t k = 0; k < node->output_count; k++) l->is_prepared[node->outputs[k]] = is_prepared;
}

/* Comparisons and the like that prepare columns of a table, as pipelines of scikit-learn do */
static bool prepares_columns(const lowering *l, const model_node *node) {
    const onnx_model *m = l->model;
    if (!node->op || (node->op->flags & OPERATOR_REFUSED) || !l->is_prepared[node->outputs[0]]) return false;
    for (uint32_t n = (uint32_t)(node - m->nodes) + 1; n < m->node_count; n++)
        if (lower_has_weights(&m->nodes[n])) return true;
    return false;
}

#define PREPARE                                                                                              \
    "it prepares columns: do that before encryption, with the data in the clear (scikit-learn: export "      \
    "pipeline[-1] alone, and give rows as pipeline[:-1].transform makes them)"

ckks_status lower_refuse(lowering *l, const model_node *node, const char *reason, const char *way_out,
                         ckks_error *err) {
    return model_refuse(l->model, node, reason, prepares_columns(l, node) ? PREPARE : way_out, err);
}

ckks_status lower_refuse_comparison(lowering *l, const model_node *node, ckks_error *err) {
    return lower_refuse(l, node, "encrypted numbers cannot be compared or rounded",
                        "leave the score as output: the client compares", err);
}

void lower_pass(lowering *l, const model_node *node) {
    l->symbols[node->outputs[0]] = l->symbols[node->inputs[0]];
}

static void set_shape(ir_node *node, const tensor *shape) {
    if (node->rank || shape->count != node->count) return;
    node->rank = shape->rank;
    memcpy(node->dims, shape->dims, shape->rank * sizeof *shape->dims);
}
_Static_assert(TENSOR_RANK_MAX <= IR_RANK_MAX, "a tensor's axes fit a node");

ckks_status lower_count(lowering *l, const model_node *node, const sparse *matrix, ckks_error *err) {
    l->entry_count += sparse_entry_count(matrix);
    /* what the file itself holds, twice over, is fine */
    const uint64_t most = LOWERING_ENTRIES_MAX + l->model->memory.bytes_taken / (sizeof(double) / 2);
    if (l->entry_count <= most) return CKKS_OK;
    return ckks_error_set(err, CKKS_TOO_LARGE, node->label,
                          "linear layers of more than %llu weights together", (unsigned long long)most);
}

static ckks_status count_entries(lowering *l, const model_node *node, const ir_node *made, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    for (uint32_t t = 0; t < made->term_count && rc == CKKS_OK; t++)
        rc = lower_count(l, node, made->terms[t].matrix, err);
    return rc;
}

ckks_status lower_linear_output(lowering *l, const model_node *node, uint32_t index, uint32_t from,
                                const sparse *matrix, const double *bias, ckks_error *err) {
    uint32_t made;
    const ckks_status rc = ir_linear(&made, l->graph, from, matrix, bias, node->label, err);
    if (rc != CKKS_OK) return rc;
    set_shape(&l->graph->nodes[made], &l->model->values[node->outputs[index]].sample);
    l->symbols[node->outputs[index]] = (symbol){.kind = SYMBOL_ENCRYPTED, .node = made};
    return count_entries(l, node, &l->graph->nodes[made], err);
}

ckks_status lower_linear(lowering *l, const model_node *node, uint32_t from, const sparse *matrix,
                         const double *bias, ckks_error *err) {
    return lower_linear_output(l, node, 0, from, matrix, bias, err);
}

ckks_status lower_append(lowering *l, const model_node *node, ir_node *made, ckks_error *err) {
    uint32_t number;
    made->source = node->label;
    set_shape(made, &l->model->values[node->outputs[0]].sample);
    const ckks_status rc = ir_append(&number, l->graph, made, err);
    if (rc != CKKS_OK) return rc;
    l->symbols[node->outputs[0]] = (symbol){.kind = SYMBOL_ENCRYPTED, .node = number};
    return count_entries(l, node, made, err);
}

ckks_status lower_inputs(const tensor ***in, lowering *l, const model_node *node, ckks_error *err) {
    *in = arena_take(l->memory, (uint64_t)node->input_count + OPERATOR_INPUTS_MIN, sizeof(tensor *));
    if (!*in) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for the graph");
    for (uint32_t k = 0; k < node->input_count; k++) {
        if (node->inputs[k] == MODEL_NONE) continue;
        const model_value *v = &l->model->values[node->inputs[k]];
        (*in)[k] = v->constant.data ? &v->constant : &v->sample;
    }
    return CKKS_OK;
}

bool lower_only_encrypted(const lowering *l, const model_node *node, uint32_t index) {
    for (uint32_t k = 0; k < node->input_count; k++)
        if (k != index && node->inputs[k] != MODEL_NONE && lower_symbol(l, node, k)->kind != SYMBOL_CONSTANT)
            return false;
    return true;
}

static const model_node *producer_of(const onnx_model *m, uint32_t value, const char *type) {
    const uint32_t n = value == MODEL_NONE ? MODEL_NONE : m->values[value].producer;
    return n != MODEL_NONE && strcmp(m->nodes[n].type, type) == 0 ? &m->nodes[n] : NULL;
}

/* Classifiers of two classes end in p = Sigmoid(s), Concat(Sub(1, p), p): the client's work. */
static void find_pairs(lowering *l) {
    const onnx_model *m = l->model;
    for (uint32_t n = 0; n < m->node_count; n++) {
        const model_node *join = &m->nodes[n];
        if (strcmp(join->type, "Concat") != 0 || join->input_count != 2) continue;
        const model_node *sub = producer_of(m, join->inputs[0], "Sub");
        if (!sub || !producer_of(m, join->inputs[1], "Sigmoid") || sub->inputs[1] != join->inputs[1])
            continue;
        const tensor *one = sub->inputs[0] == MODEL_NONE ? NULL : &m->values[sub->inputs[0]].constant;
        if (!one || !one->data || one->count != 1 || one->data[0] != 1) continue;
        if (m->values[join->inputs[1]].sample.count != 1 || m->values[join->inputs[0]].consumer_count != 1)
            continue;
        l->is_pair[n] = l->is_pair[sub - m->nodes] = 1;
    }
}

/* backwards: a value is final unless an operator that must run encrypted uses it */
static void find_final(lowering *l) {
    const onnx_model *m = l->model;
    memset(l->is_final, 1, m->value_count);
    for (uint32_t n = m->node_count; n-- > 0;) {
        const model_node *node = &m->nodes[n];
        bool is_client = node->op && ((node->op->flags & OPERATOR_AFTER_SCORES) || l->is_pair[n]);
        for (uint32_t k = 0; k < node->output_count; k++)
            is_client = is_client && l->is_final[node->outputs[k]];
        for (uint32_t k = 0; !is_client && k < node->input_count; k++)
            if (node->inputs[k] != MODEL_NONE) l->is_final[node->inputs[k]] = 0;
    }
}

/* A stand-in for what a refused operator would give, so that the operators behind it are looked at too: all
 * refusals come at once. */
static ckks_status stand_in(lowering *l, const model_node *node, uint32_t output, ckks_error *err) {
    const tensor *sample = &l->model->values[node->outputs[output]].sample;
    ir_node made = {.kind = IR_INPUT, .count = sample->count, .source = node->label};
    symbol *s = &l->symbols[node->outputs[output]];
    if (!sample->data || !sample->count) return CKKS_OK; /* its shape is not known */
    set_shape(&made, sample);
    *s = (symbol){.kind = SYMBOL_ENCRYPTED, .is_refused = true};
    return ir_append(&s->node, l->graph, &made, err);
}

static ckks_status lower_operator(lowering *l, const model_node *node, ckks_error *err) {
    const uint32_t refusals = l->model->refusal_count;
    bool is_refused = false;
    for (uint32_t k = 0; k < node->input_count; k++)
        is_refused = is_refused || (node->inputs[k] != MODEL_NONE && lower_symbol(l, node, k)->is_refused);
    ckks_status rc = node->op->lower(l, node, err);
    for (uint32_t k = 0; k < node->output_count && rc == CKKS_OK; k++) {
        const model_value *value = &l->model->values[node->outputs[k]];
        symbol *s = &l->symbols[node->outputs[k]];
        s->is_refused = s->is_refused || is_refused;
        if (s->kind != SYMBOL_UNKNOWN) continue;
        if (l->model->refusal_count == refusals && (value->consumer_count || value->is_graph_output))
            rc = lower_refuse(l, node, "an output beside the first is used", "keep the first output alone",
                              err);
        if (rc == CKKS_OK && l->model->refusal_count > refusals) rc = stand_in(l, node, k, err);
    }
    return rc;
}

/* a comparison that something else than a Where uses is refused after all */
static ckks_status refuse_condition(lowering *l, uint32_t value, ckks_error *err) {
    const model_node *node = &l->model->nodes[l->model->values[value].producer];
    l->symbols[value].kind = SYMBOL_UNKNOWN;
    const ckks_status rc = lower_refuse_comparison(l, node, err);
    return rc == CKKS_OK ? stand_in(l, node, 0, err) : rc;
}

static ckks_status refuse_after_scores(lowering *l, const model_node *node, ckks_error *err) {
    for (uint32_t k = 0; k < node->input_count; k++)
        if (node->inputs[k] != MODEL_NONE && lower_symbol(l, node, k)->kind == SYMBOL_CLIENT &&
            lower_symbol(l, node, k)->is_label)
            return lower_refuse(
                l, node, "it counts labels, which only the client can compute",
                "let the models' scores decide: in scikit-learn OneVsRestClassifier in place of "
                "OneVsOneClassifier, voting='soft' in place of 'hard', BaggingClassifier in place of "
                "AdaBoost; "
                "or end the model at the scores and apply the rest to the decrypted result",
                err);
    return lower_refuse(l, node, "it comes after a step that only the client can compute (softmax, label)",
                        "end the model at the scores and apply the rest to the decrypted result", err);
}

static ckks_status lower_node(lowering *l, const model_node *node, ckks_error *err) {
    bool is_constant = true, is_client = false, is_unknown = false, is_done;
    set_prepared(l, node);
    for (uint32_t k = 0; k < node->input_count; k++) {
        if (node->inputs[k] == MODEL_NONE || lower_symbol(l, node, k)->kind != SYMBOL_CONDITION) continue;
        if (k == 0 && strcmp(node->type, "Where") == 0) continue;
        const ckks_status rc = refuse_condition(l, node->inputs[k], err);
        if (rc != CKKS_OK) return rc;
    }
    if (!node->op || l->symbols[node->outputs[0]].kind == SYMBOL_CONSTANT) return CKKS_OK;
    for (uint32_t k = 0; k < node->input_count; k++) {
        if (node->inputs[k] == MODEL_NONE) continue;
        const symbol_kind kind = lower_symbol(l, node, k)->kind;
        is_unknown = is_unknown || kind == SYMBOL_UNKNOWN;
        is_constant = is_constant && kind == SYMBOL_CONSTANT;
        is_client = is_client || kind == SYMBOL_CLIENT;
    }
    /* behind something of unknown shape only what is refused whatever it gets can be told */
    if (is_unknown) return node->op->flags & OPERATOR_REFUSED ? lower_operator(l, node, err) : CKKS_OK;
    if (is_constant) {
        for (uint32_t k = 0; k < node->output_count; k++) l->symbols[node->outputs[k]].kind = SYMBOL_CONSTANT;
        return CKKS_OK;
    }
    if (is_client && l->is_pair[node - l->model->nodes]) {
        symbol made = l->symbols[node->inputs[1]];
        made.steps.append_complement = strcmp(node->type, "Concat") == 0;
        l->symbols[node->outputs[0]] = made;
        return CKKS_OK;
    }
    if (is_client && !(node->op->flags & OPERATOR_AFTER_SCORES)) return refuse_after_scores(l, node, err);
    const ckks_status rc = normal_lower_found(&is_done, l, node, err);
    return rc != CKKS_OK || is_done ? rc : lower_operator(l, node, err);
}

static bool steps_merge(client_steps *into, const client_steps *from) {
    if (into->link && from->link && into->link != from->link) return false;
    if (!into->link) {
        into->link = from->link;
        into->pair_count = from->pair_count;
        into->pair_scale = from->pair_scale, into->pair_offset = from->pair_offset;
    }
    into->has_label = into->has_label || from->has_label;
    into->append_complement = into->append_complement || from->append_complement;
    if (!into->label_count) {
        into->label_count = from->label_count;
        into->labels = from->labels;
        into->label_numbers = from->label_numbers;
    }
    return true;
}

/* A model that ends in one sigmoid is a classifier of two classes. */
static void complete_steps(client_steps *steps, uint32_t score_count) {
    if (score_count == 1 && steps->link != POST_ONE_VS_ONE) {
        steps->is_binary = steps->link == POST_SIGMOID;
        steps->threshold = 0.5;
        steps->has_label = steps->is_binary;
    }
}

/* Exports of classifiers have the label first, and scores behind it that may be made of it in ways that only
 * clear numbers allow: the label is enough then. */
static bool label_suffices(const lowering *l) {
    const symbol *first = &l->symbols[l->model->outputs[0]];
    return first->kind == SYMBOL_CLIENT && first->is_label && !first->is_refused;
}

static ckks_status leave_out(onnx_model *m, uint32_t value, ckks_error *err) {
    const char *name = m->values[value].name;
    m->left_out = m->left_out ? arena_format(&m->memory, "%s, %s", m->left_out, name) : name;
    return m->left_out ? CKKS_OK
                       : ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, name, "no memory for the graph");
}

static ckks_status lower_label(lowered_model *out, lowering *l, ckks_error *err) {
    onnx_model *m = l->model;
    const symbol *label = &l->symbols[m->outputs[0]];
    ckks_status rc = CKKS_OK;
    m->left_out = NULL;
    m->score_value = label->score_value;
    m->is_negated = label->is_negated;
    out->graph.output = label->node;
    for (uint32_t i = 0; i < m->output_count && rc == CKKS_OK; i++) {
        const symbol *s = &l->symbols[m->outputs[i]];
        const bool is_same = (s->kind == SYMBOL_CLIENT || s->kind == SYMBOL_ENCRYPTED) && !s->is_refused &&
                             s->node == label->node && steps_merge(&out->steps, &s->steps);
        if (!is_same && s->kind != SYMBOL_CONSTANT) rc = leave_out(m, m->outputs[i], err);
    }
    m->refusal_count = 0; /* of what is left out */
    return rc;
}

static ckks_status finish_outputs(lowered_model *out, lowering *l, ckks_error *err) {
    onnx_model *m = l->model;
    if (l->graph->nodes[out->graph.output].kind == IR_INPUT)
        return ckks_error_set(err, CKKS_UNSUPPORTED, m->proto->graph->output[0]->name,
                              "nothing is computed from the input");
    m->score_count = l->graph->nodes[out->graph.output].count;
    complete_steps(&out->steps, m->score_count);
    return CKKS_OK;
}

static ckks_status lower_outputs(lowered_model *out, lowering *l, ckks_error *err) {
    onnx_model *m = l->model;
    bool is_found = false, is_refused = false;
    if (label_suffices(l)) {
        const ckks_status rc = lower_label(out, l, err);
        return rc == CKKS_OK ? finish_outputs(out, l, err) : rc;
    }
    for (uint32_t i = 0; i < m->output_count; i++) {
        const uint32_t value = m->outputs[i];
        const symbol *s = &l->symbols[value];
        if (s->kind == SYMBOL_UNKNOWN || s->kind == SYMBOL_CONSTANT) continue;
        const model_node *node =
            m->values[value].producer == MODEL_NONE ? NULL : &m->nodes[m->values[value].producer];
        if (!is_found) {
            is_found = true;
            out->graph.output = s->node;
            m->score_value = s->kind == SYMBOL_CLIENT ? s->score_value : value;
            m->is_negated = s->is_negated;
        }
        is_refused = is_refused || s->is_refused;
        const bool is_same = out->graph.output == s->node && steps_merge(&out->steps, &s->steps);
        if (is_same || is_refused) continue;
        if (!node)
            return ckks_error_set(err, CKKS_UNSUPPORTED, m->values[value].name,
                                  "the input is an output as well");
        const ckks_status rc =
            lower_refuse(l, node, "a second output that does not come from the same scores",
                         "keep one output, or concatenate before export", err);
        if (rc != CKKS_OK) return rc;
    }
    const ckks_status rc = model_refusal_status(m, err);
    if (rc != CKKS_OK) return rc;
    if (!is_found) out->graph.output = 0; /* the input */
    return finish_outputs(out, l, err);
}

/* What the client prepares becomes the input; a value that is a part of it, or has another order, is a layer
 * that picks. */
static ckks_status lower_table(lowering *l, ckks_error *err) {
    const model_table *t = l->model->table;
    ir_node input = {.kind = IR_INPUT,
                     .count = t->element_count,
                     .source = l->model->values[l->model->inputs[0].value].name};
    uint32_t number;
    if (l->model->input_count == 1) set_shape(&input, &l->model->input_shape);
    ckks_status rc = ir_append(&number, l->graph, &input, err);
    for (uint32_t v = 0; v < l->model->value_count && rc == CKKS_OK; v++) {
        const model_value *value = &l->model->values[v];
        sparse *matrix;
        if (!t->picks[v]) continue;
        bool is_whole = value->sample.count == t->element_count;
        for (uint32_t i = 0; i < value->sample.count; i++) is_whole = is_whole && t->picks[v][i] == i;
        l->symbols[v] = (symbol){.kind = SYMBOL_ENCRYPTED, .node = number};
        if (is_whole) continue;
        rc = sparse_gather(&matrix, l->memory, value->sample.count, t->element_count, t->picks[v], NULL, err);
        if (rc == CKKS_OK)
            rc = ir_linear(&l->symbols[v].node, l->graph, number, matrix, NULL, value->name, err);
        if (rc == CKKS_OK) set_shape(&l->graph->nodes[l->symbols[v].node], &value->sample);
    }
    return rc;
}

ckks_status model_lower(lowered_model *out, onnx_model *model, arena *memory, ckks_error *err) {
    lowering l = {.model = model, .memory = memory, .graph = &out->graph};
    ckks_status rc;
    *out = (lowered_model){0};
    ir_init(&out->graph, memory);
    l.symbols = arena_take(memory, model->value_count, sizeof *l.symbols);
    l.is_final = arena_take(memory, model->value_count, 1);
    l.is_prepared = arena_take(memory, model->value_count, 1);
    l.is_pair = arena_take(memory, model->node_count, 1);
    if (!l.symbols || !l.is_final || !l.is_prepared || !l.is_pair)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for the graph");
    memset(l.is_prepared, 1, model->value_count);
    find_pairs(&l);
    find_final(&l);
    for (uint32_t i = 0; i < model->value_count; i++)
        if (model->values[i].constant.data) l.symbols[i].kind = SYMBOL_CONSTANT;
    if ((rc = normal_find(&l, err)) != CKKS_OK) return rc;
    if ((rc = lower_table(&l, err)) != CKKS_OK) return rc;
    for (uint32_t n = 0; n < model->node_count; n++)
        if (!model->table->is_client[n] && (rc = lower_node(&l, &model->nodes[n], err)) != CKKS_OK) return rc;
    for (uint32_t i = 0; i < model->output_count; i++)
        if (l.symbols[model->outputs[i]].kind == SYMBOL_CONDITION &&
            (rc = refuse_condition(&l, model->outputs[i], err)) != CKKS_OK)
            return rc;
    return lower_outputs(out, &l, err);
}
