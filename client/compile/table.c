#include "client/compile/table.h"

#include "client/compile/operator.h"

#include <math.h>
#include <string.h>

#define NO_MEMORY(err) ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for the model's columns")

table_expr *table_expr_make(onnx_model *m, table_expr what) {
    table_expr *made = arena_take(&m->memory, 1, sizeof *made);
    if (made) *made = what;
    return made;
}

/* ---- the walk ---- */

static ckks_status input_lanes(onnx_model *m, const model_input *in, ckks_error *err) {
    const table_expr **lanes = arena_take(&m->memory, in->shape.count, sizeof(void *));
    if (!lanes) return NO_MEMORY(err);
    for (uint32_t i = 0; i < in->shape.count; i++) {
        lanes[i] = table_expr_make(m, (table_expr){.kind = in->is_text ? EXPR_TEXT : EXPR_RAW,
                                                   .column = in->columns[i],
                                                   .is_integer = in->is_integer,
                                                   .value = in->value,
                                                   .element = i});
        if (!lanes[i]) return NO_MEMORY(err);
    }
    m->table->lanes[in->value] = lanes;
    return CKKS_OK;
}

/* columns of a table, rather than one tensor of numbers? */
static bool has_columns(const onnx_model *m) {
    static const char *const signs[] = {"ai.onnx.ml.Imputer", "ai.onnx.ml.OneHotEncoder",
                                        "ai.onnx.ml.FeatureVectorizer", "ai.onnx.ml.Binarizer"};
    if (m->input_count > 1 || m->inputs[0].is_text) return true;
    for (uint32_t n = 0; n < m->node_count; n++)
        for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
            if (strcmp(m->nodes[n].type, signs[i]) == 0) return true;
    return false;
}

/* a normaliser, an extractor or an encoder behind the input, not behind the scores */
static ckks_status has_encoder(bool *out, const onnx_model *m, ckks_error *err) {
    static const char *const encoders[] = {"ai.onnx.ml.Normalizer", "ai.onnx.ml.ArrayFeatureExtractor",
                                           "ai.onnx.ml.LabelEncoder"};
    static const char *const passing[] = {"ai.onnx.ml.Scaler", "Cast", "Identity", "Concat"};
    arena scratch = {0};
    bool *is_input = arena_take(&scratch, m->value_count, sizeof *is_input);
    *out = false;
    if (!is_input) return NO_MEMORY(err);
    is_input[m->inputs[0].value] = true;
    for (uint32_t n = 0; n < m->node_count; n++) {
        const model_node *node = &m->nodes[n];
        if (!node->input_count || node->inputs[0] == MODEL_NONE || !is_input[node->inputs[0]]) continue;
        for (size_t i = 0; i < sizeof encoders / sizeof *encoders; i++)
            *out = *out || strcmp(node->type, encoders[i]) == 0;
        for (size_t i = 0; i < sizeof passing / sizeof *passing; i++)
            if (strcmp(node->type, passing[i]) == 0) is_input[node->outputs[0]] = true;
    }
    arena_fini(&scratch);
    return CKKS_OK;
}

static ckks_status walk(onnx_model *m, ckks_error *err) {
    model_table *t = m->table;
    for (uint32_t n = 0; n < m->node_count && t->is_table; n++) {
        const model_node *node = &m->nodes[n];
        bool is_ours = node->op && !m->values[node->outputs[0]].constant.data, has_lanes = false;
        for (uint32_t k = 0; k < node->input_count && is_ours; k++) {
            if (node->inputs[k] == MODEL_NONE) continue;
            const bool lanes = t->lanes[node->inputs[k]] != NULL;
            has_lanes = has_lanes || lanes;
            is_ours = lanes || m->values[node->inputs[k]].constant.data;
        }
        if (!is_ours || !has_lanes) continue;
        ckks_status rc = table_categories(m, node, err);
        if (rc == CKKS_OK) rc = table_rule(m, node, err);
        if (rc != CKKS_OK) return rc;
        t->is_client[n] = true;
        for (uint32_t k = 0; k < node->output_count; k++)
            t->is_client[n] = t->is_client[n] && t->lanes[node->outputs[k]];
    }
    return CKKS_OK;
}

/* ---- what is encrypted ---- */

/* a value crosses over where an operator that runs encrypted reads it */
static void find_crossings(const onnx_model *m, bool *is_crossing) {
    const model_table *t = m->table;
    for (uint32_t n = 0; n < m->node_count; n++) {
        const model_node *node = &m->nodes[n];
        if (t->is_client[n] || !node->op || m->values[node->outputs[0]].constant.data) continue;
        for (uint32_t k = 0; k < node->input_count; k++)
            if (node->inputs[k] != MODEL_NONE && t->lanes[node->inputs[k]])
                is_crossing[node->inputs[k]] = true;
    }
    for (uint32_t i = 0; i < m->output_count; i++)
        if (t->lanes[m->outputs[i]]) is_crossing[m->outputs[i]] = true;
}

/* Expressions that are already elements keep their place. Pairs sorted by address would do as well; a bucket
 * table of the elements keeps the order of the file. */
typedef struct element_index {
    uint32_t bucket_count;
    uint32_t *buckets;
} element_index;

static uint32_t *element_place(const element_index *x, const model_table *t, const table_expr *e) {
    uint32_t at = (uint32_t)(((uintptr_t)e >> 4) * 2654435761u) & (x->bucket_count - 1);
    while (x->buckets[at] != MODEL_NONE && t->elements[x->buckets[at]] != e)
        at = (at + 1) & (x->bucket_count - 1);
    return &x->buckets[at];
}

static ckks_status pick_elements(onnx_model *m, const element_index *x, uint32_t v, ckks_error *err) {
    model_table *t = m->table;
    const uint32_t count = m->values[v].sample.count;
    t->picks[v] = arena_take(&m->memory, count, sizeof *t->picks[v]);
    if (!t->picks[v]) return NO_MEMORY(err);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t *place = element_place(x, t, t->lanes[v][i]);
        if (*place == MODEL_NONE) {
            t->elements[t->element_count] = t->lanes[v][i];
            *place = t->element_count++;
        }
        t->picks[v][i] = *place;
    }
    return CKKS_OK;
}

static ckks_status refuse_text(onnx_model *m, uint32_t value, ckks_error *err) {
    for (uint32_t n = 0; n < m->node_count; n++)
        for (uint32_t k = 0; k < m->nodes[n].input_count; k++)
            if (m->nodes[n].inputs[k] == value && !m->table->is_client[n])
                return model_refuse(m, &m->nodes[n], "it reads text that is not encoded as numbers",
                                    "encode the column (OneHotEncoder, OrdinalEncoder)", err);
    return ckks_error_set(err, CKKS_UNSUPPORTED, m->values[value].name, "an output that is an input's text");
}

static ckks_status collect_elements(onnx_model *m, ckks_error *err) {
    model_table *t = m->table;
    bool *is_crossing = arena_take(&m->memory, m->value_count, sizeof *is_crossing);
    uint64_t most = 0;
    if (!is_crossing) return NO_MEMORY(err);
    find_crossings(m, is_crossing);
    if (!t->is_table) is_crossing[m->inputs[0].value] = true;
    for (uint32_t v = 0; v < m->value_count; v++)
        if (is_crossing[v]) most += m->values[v].sample.count;
    if (most > 4u * MODEL_ROW_MAX)
        return ckks_error_set(err, CKKS_TOO_LARGE, "input", "%llu numbers of a row would be encrypted",
                              (unsigned long long)most);
    element_index x = {.bucket_count = 16};
    while (x.bucket_count < 2 * most) x.bucket_count *= 2;
    x.buckets = arena_take(&m->memory, x.bucket_count, sizeof *x.buckets);
    t->elements = arena_take(&m->memory, most, sizeof(void *));
    if (!x.buckets || !t->elements) return NO_MEMORY(err);
    for (uint32_t i = 0; i < x.bucket_count; i++) x.buckets[i] = MODEL_NONE;
    for (uint32_t v = 0; v < m->value_count; v++) {
        if (!is_crossing[v]) continue;
        const ckks_status rc = m->values[v].is_text ? refuse_text(m, v, err) : pick_elements(m, &x, v, err);
        if (rc != CKKS_OK) return rc;
    }
    if (t->element_count > MODEL_ROW_MAX)
        return ckks_error_set(err, CKKS_TOO_LARGE, "input", "%u numbers of a row would be encrypted, over %u",
                              t->element_count, MODEL_ROW_MAX);
    return CKKS_OK;
}

/* text among the elements, and among the members of groups that elements are normalised with */
static ckks_status collect_texts(onnx_model *m, ckks_error *err) {
    model_table *t = m->table;
    uint64_t most = t->element_count;
    for (uint32_t i = 0; i < t->element_count; i++)
        for (const table_expr *e = t->elements[i]; e; e = e->from)
            if (e->kind == EXPR_NORMALISE && !e->group->is_listed) {
                e->group->is_listed = true;
                most += e->group->count;
            }
    t->groups = arena_take(&m->memory, most, sizeof(void *));
    t->texts = arena_take(&m->memory, most, sizeof(void *));
    if (!t->texts || !t->groups) return NO_MEMORY(err);
    for (uint32_t i = 0; i < t->element_count; i++)
        for (const table_expr *e = t->elements[i]; e; e = e->from) {
            if (e->kind == EXPR_TEXT) t->texts[t->text_count++] = (table_expr *)(uintptr_t)e;
            if (e->kind != EXPR_NORMALISE || e->group->is_marked) continue;
            e->group->is_marked = true;
            t->groups[t->group_count++] = e->group;
            for (uint32_t k = 0; k < e->group->count; k++)
                for (const table_expr *f = e->group->members[k]; f; f = f->from)
                    if (f->kind == EXPR_TEXT) t->texts[t->text_count++] = (table_expr *)(uintptr_t)f;
        }
    return CKKS_OK;
}

/* ---- columns ---- */

static void mark_chain(const table_expr *e, bool *is_used) {
    while (e->from) e = e->from;
    is_used[e->column] = true;
}

/* An imputer must come first: whatever else a missing number meets, it stays missing. */
static bool fills_missing(const table_expr *e) {
    bool fills = false;
    for (; e->from; e = e->from) {
        if (e->kind == EXPR_IMPUTE) fills = isnan(e->b);
        for (uint32_t i = 0; e->kind == EXPR_LOOK_UP && i < e->codes->count; i++)
            fills = fills || isnan(e->codes->keys[i]);
    }
    return fills;
}

/* A table's columns that nothing reads are not asked for. */
static void drop_unused(onnx_model *m, const bool *is_used) {
    uint32_t kept = 0;
    for (uint32_t k = 0; k < m->input_count; k++)
        for (uint32_t i = 0; i < m->inputs[k].shape.count; i++) {
            const uint32_t column = m->inputs[k].columns[i];
            m->inputs[k].columns[i] = is_used[column] ? kept : MODEL_NONE;
            m->table->places[column] = m->inputs[k].columns[i];
            if (is_used[column]) m->columns[kept++] = m->columns[column];
        }
    m->input_shape.dims[m->input_shape.rank - 1] = m->input_shape.count = kept;
}

static ckks_status settle_columns(onnx_model *m, ckks_error *err) {
    model_table *t = m->table;
    const uint32_t count = t->raw_count = m->input_shape.count;
    bool *is_used = arena_take(&m->memory, count, sizeof *is_used);
    t->places = arena_take(&m->memory, count, sizeof *t->places);
    if (!is_used || !t->places) return NO_MEMORY(err);
    for (uint32_t i = 0; i < count; i++) {
        m->columns[i].takes_missing = t->is_table;
        t->places[i] = i;
    }
    for (uint32_t i = 0; i < t->element_count; i++) {
        mark_chain(t->elements[i], is_used);
        if (!fills_missing(t->elements[i])) m->columns[t->elements[i]->column].takes_missing = false;
    }
    for (uint32_t g = 0; g < t->group_count; g++)
        for (uint32_t i = 0; i < t->groups[g]->count; i++) {
            const table_expr *e = t->groups[g]->members[i];
            mark_chain(e, is_used);
            if (!fills_missing(e)) m->columns[e->column].takes_missing = false;
        }
    if (m->input_count > 1 && t->element_count) drop_unused(m, is_used);
    return CKKS_OK;
}

ckks_status table_build(onnx_model *m, ckks_error *err) {
    model_table *t = arena_take(&m->memory, 1, sizeof *t);
    ckks_status rc;
    if (!t) return NO_MEMORY(err);
    m->table = t;
    t->lanes = arena_take(&m->memory, m->value_count, sizeof *t->lanes);
    t->picks = arena_take(&m->memory, m->value_count, sizeof *t->picks);
    t->is_client = arena_take(&m->memory, m->node_count, sizeof *t->is_client);
    if (!t->lanes || !t->picks || !t->is_client) return NO_MEMORY(err);
    t->is_table = has_columns(m);
    if (!t->is_table && (rc = has_encoder(&t->is_table, m, err)) != CKKS_OK) return rc;
    for (uint32_t k = 0; k < m->input_count; k++)
        if ((rc = input_lanes(m, &m->inputs[k], err)) != CKKS_OK) return rc;
    if ((rc = walk(m, err)) != CKKS_OK) return rc;
    if ((rc = collect_elements(m, err)) != CKKS_OK) return rc;
    if ((rc = collect_texts(m, err)) != CKKS_OK) return rc;
    if ((rc = table_tabulate(m, err)) != CKKS_OK) return rc;
    if ((rc = settle_columns(m, err)) != CKKS_OK) return rc;
    return table_emit(m, err);
}
