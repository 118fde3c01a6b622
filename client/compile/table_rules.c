/*
 * What operators are to the client. Three kinds of rule: elements move (found by sending their numbers
 * through the interpreter); everything depends on one text column (the interpreter knows the rest); one of
 * the few operators on numbers that become steps of the package.
 */
#include "client/compile/operator.h"
#include "client/compile/table.h"

#include <math.h>
#include <string.h>

#define NO_MEMORY(err) ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for the model's columns")

static bool is_type(const model_node *node, const char *type) {
    return strcmp(node->type, type) == 0;
}

/* the lanes of output `k`, to be filled */
static const table_expr **output_lanes(onnx_model *m, const model_node *node, uint32_t k) {
    return arena_take(&m->memory, m->values[node->outputs[k]].sample.count, sizeof(void *));
}

/* ---- elements that move ---- */

static bool is_mover(const model_node *node) {
    static const char *const movers[] = {"Concat",
                                         "Reshape",
                                         "Identity",
                                         "Gather",
                                         "Slice",
                                         "Split",
                                         "Flatten",
                                         "Transpose",
                                         "Squeeze",
                                         "Unsqueeze",
                                         "Dropout",
                                         "Expand",
                                         "ai.onnx.ml.ArrayFeatureExtractor",
                                         "ai.onnx.ml.FeatureVectorizer"};
    for (size_t i = 0; i < sizeof movers / sizeof *movers; i++)
        if (is_type(node, movers[i])) return true;
    return false;
}

/* each lane of the inputs gets a number, the interpreter moves the numbers */
static ckks_status number_inputs(tensor *values, const table_expr ***list, uint32_t *total, onnx_model *m,
                                 const model_node *node, arena *scratch, ckks_error *err) {
    uint64_t room = 0;
    for (uint32_t k = 0; k < node->input_count; k++)
        if (node->inputs[k] != MODEL_NONE) room += m->values[node->inputs[k]].sample.count;
    *total = 0;
    *list = arena_take(scratch, room, sizeof(void *));
    if (!*list) return NO_MEMORY(err);
    for (uint32_t k = 0; k < node->input_count; k++) {
        const uint32_t v = node->inputs[k];
        if (v == MODEL_NONE) continue;
        values[v] = m->values[v].constant;
        if (!m->table->lanes[v]) continue;
        values[v] = m->values[v].sample;
        values[v].data = arena_take(scratch, values[v].count, sizeof *values[v].data);
        if (!values[v].data) return NO_MEMORY(err);
        for (uint32_t i = 0; i < values[v].count; i++) {
            values[v].data[i] = *total;
            (*list)[(*total)++] = m->table->lanes[v][i];
        }
    }
    return CKKS_OK;
}

/* a mover's constants are shapes and indices, not elements: at most the first input may be one */
static bool moves_constants(const onnx_model *m, const model_node *node) {
    const bool takes_many = is_type(node, "Concat") || is_type(node, "ai.onnx.ml.FeatureVectorizer");
    for (uint32_t k = 0; k < node->input_count; k++)
        if (node->inputs[k] != MODEL_NONE && (takes_many || k == 0) && !m->table->lanes[node->inputs[k]])
            return true;
    for (uint32_t k = 1; k < node->input_count && !takes_many; k++)
        if (node->inputs[k] != MODEL_NONE && m->table->lanes[node->inputs[k]]) return true;
    return false;
}

static ckks_status move(onnx_model *m, const model_node *node, ckks_error *err) {
    arena scratch = {0};
    const table_expr **list = NULL, **made[OPERATOR_MANY];
    uint32_t total = 0;
    ckks_status rc;
    tensor *values = arena_take(&scratch, m->value_count, sizeof *values);
    uint64_t work_left = model_work_max(m);
    rc = values ? number_inputs(values, &list, &total, m, node, &scratch, err) : NO_MEMORY(err);
    if (rc == CKKS_OK) rc = model_evaluate_node(m, node, false, &work_left, values, &scratch, err);
    for (uint32_t k = 0; k < node->output_count && rc == CKKS_OK; k++) {
        const tensor *t = &values[node->outputs[k]];
        if (!t->data) goto out; /* not by this interpreter */
        if (!(made[k] = output_lanes(m, node, k))) rc = NO_MEMORY(err);
        for (uint32_t i = 0; i < t->count && rc == CKKS_OK; i++) {
            if (!(t->data[i] >= 0 && t->data[i] < total)) goto out; /* a pad, not an element */
            made[k][i] = list[(uint32_t)t->data[i]];
        }
    }
    for (uint32_t k = 0; k < node->output_count && rc == CKKS_OK; k++)
        m->table->lanes[node->outputs[k]] = made[k];
out:
    arena_fini(&scratch);
    return rc;
}

/* ---- functions of one text column ---- */

/* the text column that all lanes of all inputs depend on, MODEL_NONE if there is no such */
static uint32_t only_text(const onnx_model *m, const model_node *node) {
    uint32_t column = MODEL_NONE;
    for (uint32_t k = 0; k < node->input_count; k++) {
        const table_expr **lanes = node->inputs[k] == MODEL_NONE ? NULL : m->table->lanes[node->inputs[k]];
        for (uint32_t i = 0; lanes && i < m->values[node->inputs[k]].sample.count; i++) {
            if (lanes[i]->kind != EXPR_TEXT || (column != MODEL_NONE && column != lanes[i]->column))
                return MODEL_NONE;
            column = lanes[i]->column;
        }
    }
    return column;
}

static table_expr *text_lane(onnx_model *m, uint32_t column, uint32_t value, uint32_t element) {
    return table_expr_make(m, (table_expr){.kind = EXPR_TEXT,
                                           .column = column,
                                           .value = value,
                                           .element = element,
                                           .is_integer = m->values[value].sample.is_integer});
}

static ckks_status text_function(onnx_model *m, const model_node *node, uint32_t column, ckks_error *err) {
    for (uint32_t k = 0; k < node->output_count; k++) {
        const uint32_t v = node->outputs[k];
        if (!m->values[v].sample.data) return CKKS_OK;
        const table_expr **lanes = output_lanes(m, node, k);
        if (!lanes) return NO_MEMORY(err);
        for (uint32_t i = 0; i < m->values[v].sample.count; i++)
            if (!(lanes[i] = text_lane(m, column, v, i))) return NO_MEMORY(err);
        m->table->lanes[v] = lanes;
    }
    return CKKS_OK;
}

/* ---- steps over numbers ---- */

/* one element of a node's output from one lane; NULL in *out: not a step */
typedef struct step_maker {
    onnx_model *m;
    const model_node *node;
    const tensor *constant;      /* elementwise arithmetic: the other side, or NULL */
    const uint32_t *from, *read; /* [outputs]: which lane, which constant */
    const table_codes *codes;
    bool is_swapped; /* the constant comes first */
} step_maker;

static table_expr *chain(step_maker *s, const table_expr *from, table_expr what) {
    what.from = from;
    what.column = from->column;
    what.depth = from->depth + 1;
    return table_expr_make(s->m, what);
}

static double list_number(const model_node *node, const char *name, uint32_t i, double otherwise) {
    const Onnx__Attribute *a = node_attribute(node, name);
    if (a && a->n_floats) return (double)a->floats[a->n_floats == 1 ? 0 : i % a->n_floats];
    if (a && a->n_ints) return (double)a->ints[a->n_ints == 1 ? 0 : i % a->n_ints];
    return otherwise;
}

static table_expr *impute_step(step_maker *s, const table_expr *from, uint32_t i) {
    const bool is_integer = node_attribute(s->node, "imputed_value_int64s") != NULL;
    return chain(
        s, from,
        (table_expr){
            .kind = EXPR_IMPUTE,
            .a = list_number(s->node, is_integer ? "imputed_value_int64s" : "imputed_value_floats", i, 0),
            .b = is_integer ? (double)node_int(s->node, "replaced_value_int64", 0)
                            : node_float(s->node, "replaced_value_float", (double)NAN),
            .is_integer = is_integer});
}

static table_expr *arithmetic_step(step_maker *s, const table_expr *from, uint32_t i) {
    const double c = s->constant->data[s->read[i]];
    table_expr what = {.kind = EXPR_AFFINE, .a = 0, .b = 1};
    switch (*s->node->proto->op_type) {
    case 'A':
        what.a = -c;
        break;
    case 'S':
        what.a = c, what.b = s->is_swapped ? -1 : 1;
        break;
    case 'M':
        what.b = c;
        break;
    default:
        if (s->is_swapped || c == 0) return NULL;
        what.b = 1 / c;
    }
    return chain(s, from, what);
}

static table_expr *cast_step(step_maker *s, const table_expr *from) {
    const int64_t to = node_int(s->node, "to", 0);
    const bool is_float =
        to == ELEMENT_FLOAT || to == ELEMENT_DOUBLE || to == ELEMENT_FLOAT16 || to == ELEMENT_BFLOAT16;
    if (to == ELEMENT_BOOL || to == ELEMENT_STRING) return NULL;
    if (is_float || from->is_integer) return (table_expr *)(uintptr_t)from;
    return chain(s, from, (table_expr){.kind = EXPR_TRUNCATE, .is_integer = true});
}

/* *is_step false: this operator is none */
static table_expr *number_step(step_maker *s, const table_expr *from, uint32_t i, bool *is_step) {
    const model_node *node = s->node;
    *is_step = from->depth < TABLE_DEPTH_MAX;
    if (!*is_step) return NULL;
    if (is_type(node, "ai.onnx.ml.Imputer")) return impute_step(s, from, i);
    if (is_type(node, "ai.onnx.ml.Scaler"))
        return chain(s, from,
                     (table_expr){.kind = EXPR_AFFINE,
                                  .a = list_number(node, "offset", i, 0),
                                  .b = list_number(node, "scale", i, 1)});
    if (is_type(node, "ai.onnx.ml.Binarizer"))
        return chain(
            s, from,
            (table_expr){.kind = EXPR_THRESHOLD, .a = node_float(node, "threshold", 0), .is_integer = true});
    if (is_type(node, "ai.onnx.ml.OneHotEncoder")) {
        if (!from->is_integer) from = chain(s, from, (table_expr){.kind = EXPR_TRUNCATE, .is_integer = true});
        return from && s->codes ? chain(s, from,
                                        (table_expr){.kind = EXPR_ONE_HOT,
                                                     .codes = s->codes,
                                                     .index = i % s->codes->count,
                                                     .is_integer = true})
                                : NULL;
    }
    if (is_type(node, "ai.onnx.ml.LabelEncoder"))
        return chain(s, from, (table_expr){.kind = EXPR_LOOK_UP, .codes = s->codes});
    if (is_type(node, "Cast")) {
        table_expr *made = cast_step(s, from);
        *is_step =
            made || (node_int(node, "to", 0) != ELEMENT_BOOL && node_int(node, "to", 0) != ELEMENT_STRING);
        return made;
    }
    if (s->constant) {
        *is_step = isfinite(s->constant->data[s->read[i]]) &&
                   (*node->proto->op_type != 'D' || (!s->is_swapped && s->constant->data[s->read[i]] != 0));
        return *is_step ? arithmetic_step(s, from, i) : NULL;
    }
    *is_step = false;
    return NULL;
}

static bool is_lanewise(const model_node *node) {
    static const char *const types[] = {"ai.onnx.ml.Imputer",      "ai.onnx.ml.Scaler",
                                        "ai.onnx.ml.Binarizer",    "ai.onnx.ml.OneHotEncoder",
                                        "ai.onnx.ml.LabelEncoder", "Cast"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (is_type(node, types[i])) return true;
    return false;
}

static bool is_arithmetic(const model_node *node) {
    return is_type(node, "Add") || is_type(node, "Sub") || is_type(node, "Mul") || is_type(node, "Div");
}

/* one lane for each element of the output: text stays text, numbers get a step */
static ckks_status lanewise(step_maker *s, uint32_t input, ckks_error *err) {
    onnx_model *m = s->m;
    const uint32_t v = s->node->outputs[0];
    const table_expr **from = m->table->lanes[s->node->inputs[input]], **lanes = output_lanes(m, s->node, 0);
    if (!lanes) return NO_MEMORY(err);
    for (uint32_t i = 0; i < m->values[v].sample.count; i++) {
        const table_expr *source = from[s->from[i]];
        bool is_step = true;
        lanes[i] = source->kind == EXPR_TEXT ? text_lane(m, source->column, v, i)
                                             : number_step(s, source, i, &is_step);
        if (!is_step) return CKKS_OK;
        if (!lanes[i]) return NO_MEMORY(err);
    }
    m->table->lanes[v] = lanes;
    return CKKS_OK;
}

static ckks_status number_codes(table_codes **out, onnx_model *m, const model_node *node, ckks_error *err) {
    table_codes *codes = *out = arena_take(&m->memory, 1, sizeof *codes);
    const Onnx__Attribute *cats = node_attribute(node, "cats_int64s");
    if (!codes) return NO_MEMORY(err);
    if (is_type(node, "ai.onnx.ml.LabelEncoder"))
        return encoder_codes(&codes->keys, &codes->mapped, &codes->count, &codes->otherwise, m, node,
                             &m->memory, err);
    codes->count = cats ? (uint32_t)cats->n_ints : 0;
    codes->keys = arena_take(&m->memory, codes->count, sizeof *codes->keys);
    codes->refuses_unknown = node_int(node, "zeros", 1) == 0;
    if (!codes->keys) return NO_MEMORY(err);
    for (uint32_t i = 0; i < codes->count; i++) codes->keys[i] = (double)cats->ints[i];
    return CKKS_OK;
}

static ckks_status lanewise_rule(onnx_model *m, const model_node *node, ckks_error *err) {
    const uint32_t v = node->outputs[0], count = m->values[v].sample.count;
    const uint32_t each = count / m->values[node->inputs[0]].sample.count;
    step_maker s = {.m = m, .node = node};
    ckks_status rc;
    if (!m->values[v].sample.data || !m->table->lanes[node->inputs[0]]) return CKKS_OK;
    uint32_t *from = arena_take(&m->memory, count, sizeof *from);
    if (!from) return NO_MEMORY(err);
    for (uint32_t i = 0; i < count; i++) from[i] = i / each; /* a one-hot encoder gives several each */
    s.from = from;
    if (is_type(node, "ai.onnx.ml.OneHotEncoder") || is_type(node, "ai.onnx.ml.LabelEncoder")) {
        table_codes *codes;
        if ((rc = number_codes(&codes, m, node, err)) != CKKS_OK) return rc;
        if (!codes->count) return node_error(node, err, "has no categories");
        s.codes = codes;
    }
    return lanewise(&s, 0, err);
}

static ckks_status arithmetic_rule(onnx_model *m, const model_node *node, ckks_error *err) {
    const uint32_t side = m->table->lanes[node->inputs[0]] ? 0 : 1;
    const tensor *y = &m->values[node->outputs[0]].sample;
    step_maker s = {.m = m, .node = node, .is_swapped = side == 1};
    if (m->table->lanes[node->inputs[1 - side]] || !y->data) return CKKS_OK; /* both from the row */
    s.constant = &m->values[node->inputs[1 - side]].constant;
    uint32_t *from = arena_take(&m->memory, y->count, sizeof *from);
    uint32_t *read = arena_take(&m->memory, y->count, sizeof *read);
    if (!from || !read) return NO_MEMORY(err);
    broadcast_index(from, y, &m->values[node->inputs[side]].sample);
    broadcast_index(read, y, s.constant);
    s.from = from, s.read = read;
    return lanewise(&s, side, err);
}

/* every element divided by the norm of all */
static ckks_status normalise_rule(onnx_model *m, const model_node *node, ckks_error *err) {
    static const struct {
        const char *name;
        uint32_t norm;
    } norms[] = {{"L1", 1}, {"L2", 2}, {"MAX", 3}};
    const uint32_t count = m->values[node->inputs[0]].sample.count;
    const table_expr **from = m->table->lanes[node->inputs[0]];
    size_t size;
    const uint8_t *name = node_text(node, "norm", &size);
    table_group *group = arena_take(&m->memory, 1, sizeof *group);
    const table_expr **lanes = output_lanes(m, node, 0);
    if (!group || !lanes) return NO_MEMORY(err);
    group->count = count;
    group->members = from;
    group->norm = name ? 0 : 3;
    for (size_t i = 0; name && i < sizeof norms / sizeof *norms; i++)
        if (size == strlen(norms[i].name) && memcmp(name, norms[i].name, size) == 0)
            group->norm = norms[i].norm;
    if (!group->norm) return node_error(node, err, "an unknown norm");
    for (uint32_t i = 0; i < count; i++)
        for (const table_expr *e = from[i]; e->from; e = e->from)
            if (e->kind == EXPR_NORMALISE)
                return model_refuse(m, node, "it normalises what is normalised already",
                                    "leave one of the normalisers out", err);
    for (uint32_t i = 0; i < count; i++) {
        lanes[i] = table_expr_make(m, (table_expr){.kind = EXPR_NORMALISE,
                                                   .from = from[i],
                                                   .column = from[i]->column,
                                                   .depth = from[i]->depth + 1,
                                                   .group = group,
                                                   .index = i});
        if (!lanes[i]) return NO_MEMORY(err);
    }
    m->table->lanes[node->outputs[0]] = lanes;
    return CKKS_OK;
}

ckks_status table_rule(onnx_model *m, const model_node *node, ckks_error *err) {
    if (node->output_count > OPERATOR_MANY) return CKKS_OK;
    if (is_mover(node) && !moves_constants(m, node)) return move(m, node, err);
    const uint32_t column = only_text(m, node);
    if (column != MODEL_NONE) return text_function(m, node, column, err);
    if (is_type(node, "ai.onnx.ml.Normalizer")) return normalise_rule(m, node, err);
    if (is_lanewise(node)) return lanewise_rule(m, node, err);
    if (is_arithmetic(node)) return arithmetic_rule(m, node, err);
    return CKKS_OK;
}
