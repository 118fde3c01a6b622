/*
 * The original model in the clear: nodes evaluated in order, one row at a time, in binary64.
 */
#include "client/compile/lower.h"
#include "client/compile/model.h"
#include "client/compile/operator.h"

#include <math.h>
#include <string.h>

ckks_status model_evaluate_node(const onnx_model *m, const model_node *node, bool scores_only,
                                uint64_t *work_left, tensor *values, arena *memory, ckks_error *err) {
    evaluation e = {.model = m, .node = node, .memory = memory, .work_left = work_left};
    for (uint32_t k = 0; k < node->output_count; k++)
        e.scores_only = e.scores_only || (scores_only && node->outputs[k] == m->score_value);
    if (!node->op || values[node->outputs[0]].data) return CKKS_OK; /* unknown, or a folded constant */
    e.in = arena_take(memory, (uint64_t)node->input_count + OPERATOR_INPUTS_MIN, sizeof(tensor *));
    e.out = arena_take(memory, node->output_count, sizeof(tensor *));
    if (!e.in || !e.out)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for a row");
    e.is_constant = true;
    for (uint32_t k = 0; k < node->input_count; k++) {
        if (node->inputs[k] == MODEL_NONE) continue;
        e.in[k] = &values[node->inputs[k]];
        if (!e.in[k]->data) return CKKS_OK; /* depends on something unknown, or on an output not computed */
        if (!m->values[node->inputs[k]].constant.data) e.is_constant = false;
    }
    e.count_max = e.is_constant ? COMPUTED_MAX : MODEL_ROW_MAX;
    /* a large matrix gives large rows, as large as the file that holds it */
    for (uint32_t k = 0; k < node->input_count && !e.is_constant; k++)
        if (e.in[k] && e.in[k]->count > e.count_max) e.count_max = e.in[k]->count;
    for (uint32_t k = 0; k < node->output_count; k++) e.out[k] = &values[node->outputs[k]];
    return node->op->evaluate(&e, err);
}

ckks_status model_evaluate_start(const onnx_model *m, const double *row, tensor *values, arena *scratch,
                                 ckks_error *err) {
    for (uint32_t i = 0; i < m->value_count; i++) values[i] = m->values[i].constant;
    for (uint32_t k = 0; k < m->input_count; k++) {
        const model_input *in = &m->inputs[k];
        tensor *t = &values[in->value];
        *t = in->shape;
        t->is_integer = in->is_integer;
        t->data = arena_take(scratch, t->count, sizeof *t->data);
        if (!t->data) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a row");
        for (uint32_t i = 0; i < t->count; i++) {
            if (in->columns[i] == MODEL_NONE) continue;
            const model_column *column = &m->columns[in->columns[i]];
            const double raw = row[in->columns[i]];
            if (!column->is_text)
                t->data[i] = raw;
            else if (raw >= 0 && raw < column->category_count) {
                const char *text = column->categories[(uint32_t)raw];
                t->data[i] = model_find_text(m, (const uint8_t *)text, strlen(text));
            } else
                t->data[i] = -1;
        }
    }
    return CKKS_OK;
}

ckks_status model_evaluate(const onnx_model *m, const double *row, bool scores_only, tensor *values,
                           arena *scratch, ckks_error *err) {
    uint64_t work_left = model_work_max(m);
    const ckks_status started = model_evaluate_start(m, row, values, scratch, err);
    if (started != CKKS_OK) return started;
    for (uint32_t n = 0; n < m->node_count; n++) {
        if (scores_only && values[m->score_value].data) break;
        const ckks_status rc =
            model_evaluate_node(m, &m->nodes[n], scores_only, &work_left, values, scratch, err);
        if (rc != CKKS_OK) return rc;
    }
    return CKKS_OK;
}

/* where the scores are is known only after lowering: refusals stay in the model */
static ckks_status find_scores(onnx_model *m, ckks_error *err) {
    /* a small file must not be able to fill the memory */
    arena memory = {.bytes_max = (UINT64_C(1) << 30) + 2 * m->memory.bytes_taken};
    lowered_model lowered;
    const ckks_status rc = model_lower(&lowered, m, &memory, err);
    arena_fini(&memory);
    return rc;
}

ckks_status onnx_model_parse(onnx_model **out, const void *bytes, size_t size, ckks_error *err) {
    onnx_model *m;
    *out = NULL;
    ckks_status rc = model_read(&m, bytes, size, err);
    if (rc == CKKS_OK) rc = find_scores(m, err);
    if (rc == CKKS_OK)
        *out = m;
    else
        onnx_model_destroy(m);
    return rc;
}

ckks_status onnx_model_load(onnx_model **out, const char *path, ckks_error *err) {
    onnx_model *m;
    *out = NULL;
    ckks_status rc = model_read_file(&m, path, err);
    if (rc == CKKS_OK) rc = find_scores(m, err);
    if (rc == CKKS_OK)
        *out = m;
    else
        onnx_model_destroy(m);
    return rc;
}

uint32_t onnx_model_score_count(const onnx_model *model) {
    return model->score_count;
}

ckks_status onnx_interpret(double *scores, const onnx_model *model, const double *rows, uint64_t row_count,
                           ckks_error *err) {
    arena scratch = {0};
    ckks_status rc = CKKS_OK;
    const uint32_t score_count = onnx_model_score_count(model);
    for (uint64_t r = 0; r < row_count && rc == CKKS_OK; r++) {
        arena_reset(&scratch);
        tensor *values = arena_take(&scratch, model->value_count, sizeof *values);
        if (!values) {
            rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a row");
            break;
        }
        rc = model_evaluate(model, rows + r * model->input_shape.count, true, values, &scratch, err);
        for (uint32_t i = 0; i < score_count && rc == CKKS_OK; i++) {
            scores[r * score_count + i] = values[model->score_value].data[i];
            if (model->is_negated) scores[r * score_count + i] = -scores[r * score_count + i];
            if (!isfinite(scores[r * score_count + i]))
                rc = ckks_error_set(err, CKKS_OUT_OF_RANGE, "row", "row %llu: score %u is not finite",
                                    (unsigned long long)r, i);
        }
    }
    arena_fini(&scratch);
    return rc;
}
