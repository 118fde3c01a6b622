/*
 * Inputs of a graph, which may be several (one for each column of a table, as scikit-learn's exporters make
 * them) and may be text; and the texts of a model, which have numbers so that every tensor is one of numbers.
 */
#include "client/compile/model.h"
#include "client/compile/operator.h"
#include "client/compile/table.h"

#include <stdio.h>
#include <string.h>

#define NO_MEMORY(err) ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for the model")
#define TEXTS_MAX      65536u
#define TEXT_BYTES_MAX 4096u

/* ---- shapes ---- */

/* The batch axis is the first one where it is symbolic, missing or 1, and there is more than one axis. */
static ckks_status read_shape(tensor *out, const Onnx__ValueInfo *info, ckks_error *err) {
    const Onnx__TensorType *type = info->type ? info->type->tensor_type : NULL;
    if (!type || !type->shape)
        return ckks_error_set(err, CKKS_UNSUPPORTED, info->name, "the input's shape is not in the file");
    int64_t dims[TENSOR_RANK_MAX];
    const size_t rank = type->shape->n_dim;
    if (rank == 0 || rank > TENSOR_RANK_MAX)
        return ckks_error_set(err, CKKS_UNSUPPORTED, info->name, "an input of %zu axes", rank);
    for (size_t i = 0; i < rank; i++) {
        const Onnx__Dimension *d = type->shape->dim[i];
        dims[i] = d->has_dim_value ? d->dim_value : 0;
        if (i == 0 && rank > 1) {
            if (dims[0] > 1)
                return ckks_error_set(
                    err, CKKS_UNSUPPORTED, info->name,
                    "a fixed batch of %lld: export with a dynamic batch axis, or a batch of 1",
                    (long long)dims[0]);
            dims[0] = 1;
        }
        if (dims[i] <= 0)
            return ckks_error_set(
                err, CKKS_UNSUPPORTED, info->name,
                "axis %zu (%.40s) has no fixed size: only the batch axis (the first) may vary, "
                "export with fixed sizes for the others",
                i, d->dim_param ? d->dim_param : "nameless");
    }
    return tensor_shape(out, dims, rank, MODEL_ROW_MAX, info->name, err);
}

ckks_status model_add_input(onnx_model *m, const Onnx__ValueInfo *info, uint32_t value, ckks_error *err) {
    model_input *in = &m->inputs[m->input_count];
    *in = (model_input){.value = value};
    const ckks_status rc = read_shape(&in->shape, info, err);
    if (rc != CKKS_OK) return rc;
    const Onnx__Dimension *first = info->type->tensor_type->shape->dim[0];
    in->is_one_row = in->shape.rank > 1 && first->has_dim_value && first->dim_value == 1;
    const int32_t type = info->type->tensor_type->has_elem_type ? info->type->tensor_type->elem_type : 0;
    in->is_text = type == ELEMENT_STRING;
    in->is_integer = !in->is_text && type != 0 && type != ELEMENT_FLOAT && type != ELEMENT_DOUBLE &&
                     type != ELEMENT_FLOAT16 && type != ELEMENT_BFLOAT16;
    m->values[value].is_text = in->is_text;
    m->input_count++;
    return CKKS_OK;
}

/* Exporters of TensorFlow turn what a layer keeps outside of its variables into an input of one row, named
 * after its operation ("scope/Sub/y:0"): nothing in the file has its numbers. */
static ckks_status refuse_lost_constants(const onnx_model *m, ckks_error *err) {
    bool has_batch = false;
    for (uint32_t k = 0; k < m->input_count; k++) has_batch = has_batch || !m->inputs[k].is_one_row;
    for (uint32_t k = 0; k < m->input_count && has_batch; k++) {
        const char *name = m->values[m->inputs[k].value].name, *end = strrchr(name, ':');
        if (m->inputs[k].is_one_row && strchr(name, '/') && end && strcmp(end, ":0") == 0)
            return ckks_error_set(
                err, CKKS_UNSUPPORTED, name,
                "a constant that the exporter made an input of: its numbers are not in the file. Keras with "
                "TensorFlow does so for Normalization: put Rescaling(1 / std, -mean / std) in its place, or "
                "export with KERAS_BACKEND=torch");
    }
    return CKKS_OK;
}

ckks_status model_finish_inputs(onnx_model *m, ckks_error *err) {
    uint64_t total = 0;
    if (m->input_count > 1) {
        const ckks_status rc = refuse_lost_constants(m, err);
        if (rc != CKKS_OK) return rc;
    }
    for (uint32_t k = 0; k < m->input_count; k++) total += m->inputs[k].shape.count;
    if (total > MODEL_ROW_MAX)
        return ckks_error_set(err, CKKS_TOO_LARGE, "input", "rows of %llu numbers, over %u",
                              (unsigned long long)total, MODEL_ROW_MAX);
    m->input_shape = m->inputs[0].shape;
    if (m->input_count > 1) {
        const int64_t dims[2] = {1, (int64_t)total};
        const ckks_status rc = tensor_shape(&m->input_shape, dims, 2, MODEL_ROW_MAX, "input", err);
        if (rc != CKKS_OK) return rc;
    }
    m->columns = arena_take(&m->memory, total, sizeof *m->columns);
    if (!m->columns) return NO_MEMORY(err);
    uint32_t column = 0;
    for (uint32_t k = 0; k < m->input_count; k++) {
        model_input *in = &m->inputs[k];
        const char *name = m->values[in->value].name;
        in->columns = arena_take(&m->memory, in->shape.count, sizeof *in->columns);
        if (!in->columns) return NO_MEMORY(err);
        for (uint32_t i = 0; i < in->shape.count; i++, column++) {
            in->columns[i] = column;
            m->columns[column].is_text = in->is_text;
            if (m->input_count == 1 && in->shape.count > 1) continue; /* a matrix: the header names them */
            m->columns[column].name =
                in->shape.count == 1 ? name : arena_format(&m->memory, "%s[%u]", name, i);
            if (!m->columns[column].name) return NO_MEMORY(err);
        }
    }
    return CKKS_OK;
}

onnx_column onnx_model_column(const onnx_model *model, uint32_t index) {
    const model_column *c = &model->columns[index];
    return (onnx_column){.name = c->name,
                         .is_text = c->is_text,
                         .categories = c->categories,
                         .category_count = c->category_count,
                         .refuses_unknown = c->refuses_unknown,
                         .takes_missing = c->takes_missing};
}

bool onnx_model_is_table(const onnx_model *model) {
    return model->table->is_table;
}

ckks_status onnx_model_peek(onnx_model **out, const char *path, ckks_error *err) {
    return model_read_file(out, path, err);
}

/* ---- texts ---- */

static uint32_t text_bucket(const text_pool *p, const uint8_t *bytes, size_t size) {
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < size; i++) h = (h ^ bytes[i]) * 16777619u;
    for (h &= p->bucket_count - 1; p->buckets[h] != MODEL_NONE; h = (h + 1) & (p->bucket_count - 1)) {
        const char *text = p->texts[p->buckets[h]];
        if (strlen(text) == size && (!size || memcmp(text, bytes, size) == 0)) break;
    }
    return h;
}

double model_find_text(const onnx_model *m, const uint8_t *bytes, size_t size) {
    if (!m->texts.count) return -1;
    const uint32_t number = m->texts.buckets[text_bucket(&m->texts, bytes, size)];
    return number == MODEL_NONE ? -1.0 : (double)number;
}

const char *model_text(const onnx_model *m, double number) {
    return number >= 0 && number < m->texts.count ? m->texts.texts[(uint32_t)number] : "";
}

static ckks_status pool_add(onnx_model *m, const ProtobufCBinaryData *text, ckks_error *err) {
    text_pool *p = &m->texts;
    if (text->len > TEXT_BYTES_MAX)
        return ckks_error_set(err, CKKS_TOO_LARGE, "strings", "a text of %zu bytes, over %u", text->len,
                              TEXT_BYTES_MAX);
    if (text->len && memchr(text->data, 0, text->len))
        return ckks_error_set(err, CKKS_MALFORMED, "strings", "a text with a zero byte");
    const uint32_t at = text_bucket(p, text->data, text->len);
    if (p->buckets[at] != MODEL_NONE) return CKKS_OK;
    char *copy = arena_take(&m->memory, text->len + 1, 1);
    if (!copy) return NO_MEMORY(err);
    if (text->len) memcpy(copy, text->data, text->len);
    p->texts[p->count] = copy;
    p->buckets[at] = p->count++;
    return CKKS_OK;
}

/* the texts of one list or tensor: counted, or taken into the pool */
static ckks_status pool_list(onnx_model *m, uint64_t *count, const ProtobufCBinaryData *list, size_t n,
                             bool is_counting, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    *count += n;
    for (size_t i = 0; !is_counting && i < n && rc == CKKS_OK; i++) rc = pool_add(m, &list[i], err);
    return rc;
}

static ckks_status pool_walk(onnx_model *m, uint64_t *count, bool is_counting, ckks_error *err) {
    const Onnx__Graph *g = m->proto->graph;
    ckks_status rc = CKKS_OK;
    for (size_t i = 0; i < g->n_initializer && rc == CKKS_OK; i++)
        rc = pool_list(m, count, g->initializer[i]->string_data, g->initializer[i]->n_string_data,
                       is_counting, err);
    for (size_t n = 0; n < g->n_node; n++)
        for (size_t k = 0; k < g->node[n]->n_attribute && rc == CKKS_OK; k++) {
            const Onnx__Attribute *a = g->node[n]->attribute[k];
            rc = pool_list(m, count, a->strings, a->n_strings, is_counting, err);
            if (rc == CKKS_OK && a->t)
                rc = pool_list(m, count, a->t->string_data, a->t->n_string_data, is_counting, err);
            if (rc == CKKS_OK && a->has_s && a->name && strncmp(a->name, "default_", 8) == 0)
                rc = pool_list(m, count, &a->s, 1, is_counting, err);
        }
    return rc;
}

ckks_status model_read_texts(onnx_model *m, ckks_error *err) {
    uint64_t count = 0;
    ckks_status rc = pool_walk(m, &count, true, err);
    if (rc != CKKS_OK || !count) return rc;
    if (count > TEXTS_MAX)
        return ckks_error_set(err, CKKS_TOO_LARGE, "strings", "%llu texts, over %u",
                              (unsigned long long)count, TEXTS_MAX);
    m->texts.bucket_count = 16;
    while (m->texts.bucket_count < 2 * count) m->texts.bucket_count *= 2;
    m->texts.texts = arena_take(&m->memory, count, sizeof *m->texts.texts);
    m->texts.buckets = arena_take(&m->memory, m->texts.bucket_count, sizeof *m->texts.buckets);
    if (!m->texts.texts || !m->texts.buckets) return NO_MEMORY(err);
    for (uint32_t i = 0; i < m->texts.bucket_count; i++) m->texts.buckets[i] = MODEL_NONE;
    return pool_walk(m, &count, false, err);
}

ckks_status model_text_tensor(tensor *out, const onnx_model *m, const Onnx__Tensor *message, arena *memory,
                              const char *what, ckks_error *err) {
    tensor t = {0};
    const ckks_status rc = tensor_shape(&t, message->dims, message->n_dims, TEXTS_MAX, what, err);
    if (rc != CKKS_OK) return rc;
    if (message->n_string_data != t.count)
        return ckks_error_set(err, CKKS_MALFORMED, what, "has %zu texts, its shape asks for %u",
                              message->n_string_data, t.count);
    t.data = arena_take(memory, t.count, sizeof *t.data);
    if (!t.data) return NO_MEMORY(err);
    for (uint32_t i = 0; i < t.count; i++)
        t.data[i] = model_find_text(m, message->string_data[i].data, message->string_data[i].len);
    *out = t;
    return CKKS_OK;
}

/* ---- which values are text ---- */

/* operators whose output is what its input is; the number says which input */
static const struct {
    const char *type;
    uint32_t input;
} movers[] = {{"Concat", 0},    {"Reshape", 0}, {"Identity", 0},
              {"Gather", 0},    {"Slice", 0},   {"Split", 0},
              {"Transpose", 0}, {"Squeeze", 0}, {"Unsqueeze", 0},
              {"Flatten", 0},   {"Where", 1},   {"ai.onnx.ml.ArrayFeatureExtractor", 0},
              {"Equal", 0},     {"Expand", 0},  {"ai.onnx.ml.OneHotEncoder", 0},
              {"Shape", 0},     {"Dropout", 0}, {"ai.onnx.ml.LabelEncoder", 0},
              {"ZipMap", 0}};

static bool gives_text(const onnx_model *m, const model_node *node, bool takes_text) {
    const char *type = node->type;
    if (strcmp(type, "ai.onnx.ml.LabelEncoder") == 0) {
        const Onnx__Attribute *t = node_attribute(node, "values_tensor");
        const Onnx__Attribute *s = node_attribute(node, "values_strings");
        if (node_attribute(node, "classes_strings")) return !takes_text;
        return (s && s->n_strings) || (t && t->t && t->t->data_type == ELEMENT_STRING);
    }
    if (strcmp(type, "Constant") == 0) {
        const Onnx__Attribute *t = node_attribute(node, "value");
        return t && t->t && t->t->data_type == ELEMENT_STRING;
    }
    if (strcmp(type, "Equal") == 0 || strcmp(type, "Shape") == 0 ||
        strcmp(type, "ai.onnx.ml.OneHotEncoder") == 0)
        return false;
    for (size_t i = 0; i < sizeof movers / sizeof *movers; i++)
        if (strcmp(movers[i].type, type) == 0)
            return node->input_count > movers[i].input && node->inputs[movers[i].input] != MODEL_NONE &&
                   m->values[node->inputs[movers[i].input]].is_text;
    return false;
}

ckks_status model_infer_texts(onnx_model *m, ckks_error *err) {
    for (uint32_t n = 0; n < m->node_count; n++) {
        const model_node *node = &m->nodes[n];
        bool takes_text = false, can = false;
        for (uint32_t k = 0; k < node->input_count; k++)
            takes_text = takes_text || (node->inputs[k] != MODEL_NONE && m->values[node->inputs[k]].is_text);
        const bool text = gives_text(m, node, takes_text);
        for (uint32_t k = 0; k < node->output_count; k++) m->values[node->outputs[k]].is_text = text;
        if (!takes_text || !node->op) continue;
        for (size_t i = 0; i < sizeof movers / sizeof *movers; i++)
            can = can || strcmp(movers[i].type, node->type) == 0;
        if (can) continue;
        const ckks_status rc = model_refuse(
            m, node, "it reads text",
            "encode the column (OneHotEncoder, OrdinalEncoder) or export numeric columns as numbers", err);
        if (rc != CKKS_OK) return rc;
    }
    return CKKS_OK;
}
