/*
 * ai.onnx.ml: Imputer, encoders, and what picks or joins columns. They stand before the encrypted part, where
 * the client runs them (table_rules.c says how they become steps); their lowering is reached only where their
 * input is encrypted already. Behind the scores, an extractor or an encoder names classes.
 */
#include "client/compile/operator.h"

#include <math.h>
#include <string.h>

#define NO_MEMORY(node, err)                                                                                 \
    ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, (node)->label, "no memory for an encoder")

static ckks_status before_encryption(lowering *l, const model_node *node, ckks_error *err) {
    return lower_refuse(l, node, "it looks at single values, which are encrypted here",
                        "it must come before arithmetic: directly behind the inputs the client runs it", err);
}

/* ---- Imputer ---- */

static ckks_status imputer_evaluate(evaluation *e, ckks_error *err) {
    const tensor *x = e->in[0];
    const Onnx__Attribute *reals = node_attribute(e->node, "imputed_value_floats"),
                          *whole = node_attribute(e->node, "imputed_value_int64s");
    const size_t count = whole && whole->n_ints ? whole->n_ints : reals ? reals->n_floats : 0;
    const bool is_whole = whole && whole->n_ints;
    const double replaced = is_whole ? (double)node_int(e->node, "replaced_value_int64", 0)
                                     : node_float(e->node, "replaced_value_float", (double)NAN);
    if (count != 1 && (!count || x->count % count || x->dims[x->rank ? x->rank - 1 : 0] != count))
        return node_error(e->node, err, "%zu imputed values for %u columns", count, x->count);
    const ckks_status rc = output_like(e, 0, x, err);
    for (uint32_t i = 0; rc == CKKS_OK && i < x->count; i++) {
        const size_t k = count == 1 ? 0 : i % count;
        const bool is_missing = isnan(replaced) ? isnan(x->data[i]) : x->data[i] == replaced;
        const double value = is_whole ? (double)whole->ints[k] : (double)reals->floats[k];
        if (!isfinite(value)) return node_error(e->node, err, "an imputed value is not finite");
        e->out[0]->data[i] = is_missing ? value : x->data[i];
    }
    if (rc == CKKS_OK) e->out[0]->is_integer = is_whole;
    return rc;
}

/* ---- OneHotEncoder ---- */

static ckks_status refuse_unknown(const evaluation *e, double value, bool is_text, ckks_error *err) {
    if (is_text)
        return ckks_error_set(err, CKKS_OUT_OF_RANGE, e->node->label,
                              "a category that the model does not know");
    return ckks_error_set(err, CKKS_OUT_OF_RANGE, e->node->label,
                          "%g is a category that the model does not know", value);
}

static ckks_status one_hot_evaluate(evaluation *e, ckks_error *err) {
    const tensor *x = e->in[0];
    const Onnx__Attribute *texts = node_attribute(e->node, "cats_strings"),
                          *numbers = node_attribute(e->node, "cats_int64s");
    const bool is_text = texts && texts->n_strings;
    const size_t count = is_text ? texts->n_strings : numbers ? numbers->n_ints : 0;
    int64_t dims[TENSOR_RANK_MAX + 1];
    if (!count || (is_text && numbers && numbers->n_ints))
        return node_error(e->node, err, "needs a list of categories, texts or integers");
    if (is_text != e->model->values[e->node->inputs[0]].is_text)
        return node_error(e->node, err, "its categories are not what its input is");
    if (x->rank >= TENSOR_RANK_MAX) return node_error(e->node, err, "its input has too many axes");
    for (uint32_t i = 0; i < x->rank; i++) dims[i] = x->dims[i];
    dims[x->rank] = (int64_t)count;
    ckks_status rc = output_shape(e, 0, dims, x->rank + 1, err);
    if (rc != CKKS_OK) return rc;
    const bool refuses = node_int(e->node, "zeros", 1) == 0;
    for (uint32_t i = 0; i < x->count; i++) {
        bool is_known = false;
        for (uint32_t k = 0; k < count; k++) {
            const double key = is_text
                                   ? model_find_text(e->model, texts->strings[k].data, texts->strings[k].len)
                                   : (double)numbers->ints[k];
            const bool hit = (is_text ? x->data[i] : trunc(x->data[i])) == key;
            e->out[0]->data[i * count + k] = hit;
            is_known = is_known || hit;
        }
        if (is_known || !refuses) continue;
        if (!e->model->is_tabulating) return refuse_unknown(e, x->data[i], is_text, err);
        for (uint32_t k = 0; k < count; k++) e->out[0]->data[i * count + k] = (double)NAN;
    }
    e->out[0]->is_integer = true;
    return CKKS_OK;
}

/* ---- LabelEncoder ---- */

/* one side of the map; version 4 may have a tensor */
static ckks_status code_list(double **out, uint32_t *count, bool *is_text, const char *side,
                             const onnx_model *m, const model_node *node, arena *memory, ckks_error *err) {
    char name[32];
    const Onnx__Attribute *found = NULL;
    size_t n = 0;
    static const char *const kinds[] = {"strings", "int64s", "floats", "tensor"};
    for (size_t k = 0; k < 4; k++) {
        snprintf(name, sizeof name, "%s_%s", side, kinds[k]);
        const Onnx__Attribute *a = node_attribute(node, name);
        if (a && (a->t || a->n_strings || a->n_ints || a->n_floats)) found = a;
    }
    if (!found) return node_error(node, err, "has no %s", side);
    if (found->t) {
        tensor t = {0};
        *is_text = found->t->data_type == ELEMENT_STRING;
        const ckks_status rc = *is_text ? model_text_tensor(&t, m, found->t, memory, node->label, err)
                                        : tensor_from_message(&t, found->t, memory, node->label, err);
        *out = t.data, *count = t.count;
        return rc;
    }
    *is_text = found->n_strings != 0;
    n = *is_text ? found->n_strings : found->n_ints ? found->n_ints : found->n_floats;
    *count = (uint32_t)n;
    *out = arena_take(memory, n, sizeof **out);
    if (!*out) return NO_MEMORY(node, err);
    for (size_t i = 0; i < n; i++)
        (*out)[i] = *is_text        ? model_find_text(m, found->strings[i].data, found->strings[i].len)
                    : found->n_ints ? (double)found->ints[i]
                                    : (double)found->floats[i];
    return CKKS_OK;
}

/* what others become, as the file says it; NaN where it does not */
static double default_code(const onnx_model *m, const model_node *node, bool is_text, bool is_whole) {
    const Onnx__Attribute *t = node_attribute(node, "default_tensor");
    size_t size;
    if (t && t->t) {
        if (is_text)
            return t->t->n_string_data == 1
                       ? model_find_text(m, t->t->string_data[0].data, t->t->string_data[0].len)
                       : (double)NAN;
        if (t->t->n_int64_data == 1) return (double)t->t->int64_data[0];
        return t->t->n_float_data == 1 ? (double)t->t->float_data[0] : (double)NAN;
    }
    if (is_text) {
        const uint8_t *text = node_text(node, "default_string", &size);
        return text ? model_find_text(m, text, size) : (double)NAN;
    }
    const Onnx__Attribute *a = node_attribute(node, is_whole ? "default_int64" : "default_float");
    if (!a) return (double)NAN;
    /* an exporter that writes a zero leaves the field out, not the attribute */
    return is_whole ? (a->has_i ? (double)a->i : 0) : a->has_f ? (double)a->f : 0;
}

ckks_status encoder_codes(double **keys, double **mapped, uint32_t *count, double *otherwise,
                          const onnx_model *m, const model_node *node, arena *memory, ckks_error *err) {
    const Onnx__Attribute *classes = node_attribute(node, "classes_strings");
    const bool takes_text = m->values[node->inputs[0]].is_text;
    bool keys_text = true, mapped_text = false;
    uint32_t mapped_count;
    ckks_status rc;
    if (classes && classes->n_strings) { /* version 1: a text's place in the list, or the other way round */
        double **texts = takes_text ? keys : mapped, **places = takes_text ? mapped : keys;
        *count = (uint32_t)classes->n_strings;
        *texts = arena_take(memory, *count, sizeof **texts);
        *places = arena_take(memory, *count, sizeof **places);
        if (!*texts || !*places) return NO_MEMORY(node, err);
        for (uint32_t i = 0; i < *count; i++) {
            (*texts)[i] = model_find_text(m, classes->strings[i].data, classes->strings[i].len);
            (*places)[i] = i;
        }
        *otherwise = default_code(m, node, !takes_text, true);
        return CKKS_OK;
    }
    if ((rc = code_list(keys, count, &keys_text, "keys", m, node, memory, err)) != CKKS_OK) return rc;
    if ((rc = code_list(mapped, &mapped_count, &mapped_text, "values", m, node, memory, err)) != CKKS_OK)
        return rc;
    if (mapped_count != *count) return node_error(node, err, "%u values for %u keys", mapped_count, *count);
    if (keys_text != takes_text) return node_error(node, err, "its keys are not what its input is");
    const Onnx__Attribute *whole = node_attribute(node, "values_int64s");
    *otherwise = default_code(m, node, mapped_text, whole && whole->n_ints);
    return CKKS_OK;
}

static ckks_status label_encoder_evaluate(evaluation *e, ckks_error *err) {
    const tensor *x = e->in[0];
    double *keys, *mapped, otherwise;
    uint32_t count;
    const bool gives_text = e->model->values[e->node->outputs[0]].is_text;
    ckks_status rc = encoder_codes(&keys, &mapped, &count, &otherwise, e->model, e->node, e->memory, err);
    if (rc != CKKS_OK) return rc;
    if ((rc = output_like(e, 0, x, err)) != CKKS_OK) return rc;
    for (uint32_t i = 0; i < x->count; i++) {
        double y = otherwise;
        bool is_known = !isnan(otherwise);
        for (uint32_t k = 0; k < count; k++)
            if (x->data[i] == keys[k] || (isnan(x->data[i]) && isnan(keys[k]))) {
                y = mapped[k], is_known = true;
                break;
            }
        if (!is_known && !e->model->is_tabulating)
            return refuse_unknown(e, x->data[i], e->model->values[e->node->inputs[0]].is_text, err);
        /* a text that is nowhere in the model has a number of its own */
        e->out[0]->data[i] = gives_text && isnan(y) ? -1 : y;
    }
    e->out[0]->is_integer = node_attribute(e->node, "values_int64s") != NULL;
    return CKKS_OK;
}

/* ---- Binarizer, FeatureVectorizer ---- */

static ckks_status binarizer_evaluate(evaluation *e, ckks_error *err) {
    const double threshold = node_float(e->node, "threshold", 0);
    const ckks_status rc = output_like(e, 0, e->in[0], err);
    for (uint32_t i = 0; rc == CKKS_OK && i < e->in[0]->count; i++)
        e->out[0]->data[i] = e->in[0]->data[i] > threshold;
    return rc;
}

static ckks_status vectorizer_evaluate(evaluation *e, ckks_error *err) {
    int64_t dims[2] = {1, 0};
    for (uint32_t k = 0; k < e->node->input_count; k++)
        if (e->in[k]) dims[1] += e->in[k]->count;
    const ckks_status rc = output_shape(e, 0, dims, 2, err);
    uint32_t at = 0;
    for (uint32_t k = 0; rc == CKKS_OK && k < e->node->input_count; k++) {
        if (!e->in[k]) continue;
        memcpy(e->out[0]->data + at, e->in[k]->data, e->in[k]->count * sizeof *e->in[k]->data);
        at += e->in[k]->count;
    }
    return rc;
}

/* ---- ArrayFeatureExtractor: elements of the last axis ---- */

static ckks_status extractor_evaluate(evaluation *e, ckks_error *err) {
    const tensor *x = e->in[0], *index = e->in[1];
    int64_t dims[TENSOR_RANK_MAX] = {1};
    if (!x->rank) return node_error(e->node, err, "its input has no axis");
    const uint32_t width = x->dims[x->rank - 1], rows = width ? x->count / width : 0;
    const uint32_t rank = x->rank == 1 ? 2 : x->rank;
    for (uint32_t i = 0; i + 1 < x->rank; i++) dims[i] = x->dims[i];
    dims[rank - 1] = index->count;
    const ckks_status rc = output_shape(e, 0, dims, rank, err);
    for (uint32_t r = 0; rc == CKKS_OK && r < rows; r++)
        for (uint32_t i = 0; i < index->count; i++) {
            if (!(index->data[i] >= 0 && index->data[i] < width))
                return node_error(e->node, err, "element %g of %u", index->data[i], width);
            e->out[0]->data[r * index->count + i] = x->data[r * width + (uint32_t)index->data[i]];
        }
    if (rc == CKKS_OK) e->out[0]->is_integer = x->is_integer;
    return rc;
}

/* A list of class names, and the label as index: names for the client. */
static ckks_status name_labels(lowering *l, const model_node *node, ckks_error *err) {
    const model_value *names = &l->model->values[node->inputs[0]];
    symbol made = *lower_symbol(l, node, 1);
    client_steps *steps = &made.steps;
    if (steps->label_count) return node_error(node, err, "names classes that have names");
    steps->label_count = names->constant.count;
    steps->labels = names->is_text ? arena_take(l->memory, steps->label_count, sizeof *steps->labels) : NULL;
    steps->label_numbers =
        names->is_text ? NULL : arena_take(l->memory, steps->label_count, sizeof *steps->label_numbers);
    if (!steps->labels && !steps->label_numbers) return NO_MEMORY(node, err);
    for (uint32_t i = 0; i < steps->label_count; i++) {
        const double value = names->constant.data[i];
        if (names->is_text)
            steps->labels[i] = model_text(l->model, value);
        else
            steps->label_numbers[i] = (int64_t)value;
    }
    l->symbols[node->outputs[0]] = made;
    return CKKS_OK;
}

static ckks_status extractor_lower(lowering *l, const model_node *node, ckks_error *err) {
    const model_value *v = l->model->values;
    const symbol *from = lower_symbol(l, node, 0), *index = lower_symbol(l, node, 1);
    if (from->kind == SYMBOL_CONSTANT && index->kind == SYMBOL_CLIENT && index->is_label)
        return name_labels(l, node, err);
    if (from->kind != SYMBOL_ENCRYPTED || index->kind != SYMBOL_CONSTANT)
        return lower_refuse(l, node, "an index that depends on encrypted data cannot be followed",
                            "select columns by constants", err);
    const tensor *x = &v[node->inputs[0]].sample, *y = &v[node->outputs[0]].sample;
    const uint32_t width = x->dims[x->rank - 1], each = v[node->inputs[1]].constant.count;
    sparse *matrix;
    uint32_t *source = arena_take(l->memory, y->count, sizeof *source);
    if (!source) return NO_MEMORY(node, err);
    for (uint32_t i = 0; i < y->count; i++)
        source[i] = i / each * width + (uint32_t)v[node->inputs[1]].constant.data[i % each];
    const ckks_status rc = sparse_gather(&matrix, l->memory, y->count, x->count, source, NULL, err);
    return rc == CKKS_OK ? lower_linear(l, node, from->node, matrix, NULL, err) : rc;
}

/* Behind the scores: names for labels. */
static ckks_status label_encoder_lower(lowering *l, const model_node *node, ckks_error *err) {
    symbol made = *lower_symbol(l, node, 0);
    double *keys = NULL, *mapped = NULL, otherwise = (double)NAN;
    uint32_t count = 0;
    if (made.kind != SYMBOL_CLIENT || !made.is_label) return before_encryption(l, node, err);
    ckks_status rc = encoder_codes(&keys, &mapped, &count, &otherwise, l->model, node, l->memory, err);
    if (rc != CKKS_OK) return rc;
    if (made.steps.labels)
        return lower_refuse(l, node, "it renames labels that have names already",
                            "end the model at the classifier's label", err);
    /* the classifier's own numbers, or those of the classes */
    const int64_t *numbers = made.steps.label_numbers;
    const uint32_t classes = numbers ? made.steps.label_count : count;
    const bool is_text = l->model->values[node->outputs[0]].is_text;
    const char **names = arena_take(l->memory, classes, sizeof(void *));
    int64_t *renamed = arena_take(l->memory, classes, sizeof *renamed);
    if (!names || !renamed) return NO_MEMORY(node, err);
    for (uint32_t i = 0; i < classes; i++) {
        uint32_t at = 0;
        while (at < count && keys[at] != (numbers ? (double)numbers[i] : i)) at++;
        if (at == count && isnan(otherwise))
            return lower_refuse(l, node, "it has no key for a class of the classifier",
                                "end the model at the classifier's label", err);
        const double value = at < count ? mapped[at] : otherwise;
        names[i] = model_text(l->model, value);
        renamed[i] = is_text ? 0 : (int64_t)value;
    }
    made.steps.label_count = classes;
    made.steps.labels = is_text ? names : NULL;
    made.steps.label_numbers = is_text ? NULL : renamed;
    l->symbols[node->outputs[0]] = made;
    return CKKS_OK;
}

#define BEFORE "before encryption, by the client"
const operator_row operators_encode[] = {
    {"ai.onnx.ml", "Imputer", 1, 1, 1, OPERATOR_CLIENT_SIDE, imputer_evaluate, before_encryption, BEFORE},
    {"ai.onnx.ml", "OneHotEncoder", 1, 1, 1, OPERATOR_CLIENT_SIDE, one_hot_evaluate, before_encryption,
     BEFORE},
    {"ai.onnx.ml", "LabelEncoder", 1, 1, 1, OPERATOR_AFTER_SCORES | OPERATOR_CLIENT_SIDE,
     label_encoder_evaluate, label_encoder_lower, BEFORE ", or behind the scores: names of classes"},
    {"ai.onnx.ml", "Binarizer", 1, 1, 1, OPERATOR_CLIENT_SIDE, binarizer_evaluate, before_encryption, BEFORE},
    {"ai.onnx.ml", "FeatureVectorizer", 1, OPERATOR_MANY, 1, OPERATOR_CLIENT_SIDE, vectorizer_evaluate,
     before_encryption, BEFORE},
    {"ai.onnx.ml", "ArrayFeatureExtractor", 2, 2, 1, OPERATOR_AFTER_SCORES | OPERATOR_CLIENT_SIDE,
     extractor_evaluate, extractor_lower, "columns, or a label"},
    {0},
};
