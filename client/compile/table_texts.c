/*
 * Text columns: which categories a model knows, and what it makes of each, found by running it on all of
 * them.
 */
#include "client/compile/table.h"

#include "client/compile/operator.h"

#include <math.h>
#include <string.h>

#define NO_MEMORY(err) ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for the model's columns")
/* nodes times categories: a small file must not be able to ask for hours of work */
#define TABULATION_MAX (UINT64_C(1) << 22)

static ckks_status add_category(onnx_model *m, uint32_t column, const char *text, ckks_error *err) {
    model_column *c = &m->columns[column];
    for (uint32_t i = 0; i < c->category_count; i++)
        if (strcmp(c->categories[i], text) == 0) return CKKS_OK;
    if (c->category_count == TABLE_CATEGORIES_MAX)
        return ckks_error_set(err, CKKS_TOO_LARGE, c->name ? c->name : "input", "more than %u categories",
                              TABLE_CATEGORIES_MAX);
    if ((c->category_count & (c->category_count - 1)) == 0) { /* full at powers of two */
        const char **grown =
            arena_take(&m->memory, c->category_count ? 2 * c->category_count : 1, sizeof *grown);
        if (!grown) return NO_MEMORY(err);
        if (c->category_count) memcpy(grown, c->categories, c->category_count * sizeof *grown);
        c->categories = grown;
    }
    c->categories[c->category_count++] = text;
    return CKKS_OK;
}

/* the texts that an encoder knows, or that a comparison names */
static ckks_status known_texts(double **numbers, uint32_t *count, onnx_model *m, const model_node *node,
                               arena *scratch, ckks_error *err) {
    *count = 0;
    if (strcmp(node->type, "ai.onnx.ml.LabelEncoder") == 0) {
        double *mapped, otherwise;
        return encoder_codes(numbers, &mapped, count, &otherwise, m, node, scratch, err);
    }
    if (strcmp(node->type, "ai.onnx.ml.OneHotEncoder") == 0) {
        const Onnx__Attribute *a = node_attribute(node, "cats_strings");
        *count = a ? (uint32_t)a->n_strings : 0;
        *numbers = arena_take(scratch, *count, sizeof **numbers);
        if (!*numbers) return NO_MEMORY(err);
        for (uint32_t i = 0; i < *count; i++)
            (*numbers)[i] = model_find_text(m, a->strings[i].data, a->strings[i].len);
        return CKKS_OK;
    }
    for (uint32_t k = 0; k < node->input_count; k++) {
        if (node->inputs[k] == MODEL_NONE || !m->values[node->inputs[k]].is_text) continue;
        const tensor *constant = &m->values[node->inputs[k]].constant;
        if (constant->data) *numbers = constant->data, *count = constant->count;
    }
    return CKKS_OK;
}

ckks_status table_categories(onnx_model *m, const model_node *node, ckks_error *err) {
    arena scratch = {0};
    double *numbers = NULL;
    uint32_t count = 0;
    ckks_status rc = CKKS_OK;
    for (uint32_t k = 0; k < node->input_count; k++) {
        const uint32_t v = node->inputs[k];
        if (v == MODEL_NONE || !m->values[v].is_text || !m->table->lanes[v]) continue;
        if (!count && (rc = known_texts(&numbers, &count, m, node, &scratch, err)) != CKKS_OK) break;
        /* once for each column: lanes of one column stand together */
        uint32_t last = MODEL_NONE;
        for (uint32_t i = 0; i < m->values[v].sample.count && rc == CKKS_OK; i++) {
            const uint32_t column = m->table->lanes[v][i]->column;
            for (uint32_t c = 0; column != last && c < count && rc == CKKS_OK; c++)
                rc = add_category(m, column, model_text(m, numbers[c]), err);
            last = column;
        }
    }
    arena_fini(&scratch);
    return rc;
}

/* ---- tables ---- */

/* what the model makes of category `which` of every text column; NaN in a table: refused */
static ckks_status run_categories(onnx_model *m, uint32_t which, double *row, arena *scratch,
                                  ckks_error *err) {
    model_table *t = m->table;
    uint64_t work_left = model_work_max(m);
    ckks_status rc;
    arena_reset(scratch);
    tensor *values = arena_take(scratch, m->value_count, sizeof *values);
    if (!values) return NO_MEMORY(err);
    for (uint32_t c = 0; c < m->input_shape.count; c++)
        row[c] = !m->columns[c].is_text ? 0 : which < m->columns[c].category_count ? which : -1.0;
    if ((rc = model_evaluate_start(m, row, values, scratch, err)) != CKKS_OK) return rc;
    for (uint32_t n = 0; n < m->node_count; n++) {
        if (!t->is_client[n] || values[m->nodes[n].outputs[0]].data) continue;
        rc = model_evaluate_node(m, &m->nodes[n], false, &work_left, values, scratch, err);
        if (rc != CKKS_OK) return rc;
    }
    for (uint32_t i = 0; i < t->text_count; i++) {
        table_expr *e = t->texts[i];
        const tensor *from = &values[e->value];
        if (!from->data || e->element >= from->count)
            return ckks_error_set(err, CKKS_INTERNAL, m->values[e->value].name, "is not known to the client");
        if (which < m->columns[e->column].category_count) e->table[which] = from->data[e->element];
        /* the last run is beyond every list */
        e->otherwise = from->data[e->element];
    }
    return CKKS_OK;
}

/* A category that some element refuses is as good as unknown; it leaves the list. */
static ckks_status drop_refused(onnx_model *m, bool *const *is_refused, ckks_error *err) {
    static const char *none[] = {""}; /* of a text that nothing looks at */
    const model_table *t = m->table;
    for (uint32_t i = 0; i < t->text_count; i++) {
        model_column *c = &m->columns[t->texts[i]->column];
        for (uint32_t k = 0, kept = 0; k < c->category_count; k++)
            if (!is_refused[t->texts[i]->column][k]) t->texts[i]->table[kept++] = t->texts[i]->table[k];
        c->refuses_unknown = c->refuses_unknown || isnan(t->texts[i]->otherwise);
    }
    for (uint32_t column = 0; column < m->input_shape.count; column++) {
        model_column *c = &m->columns[column];
        uint32_t kept = 0;
        for (uint32_t k = 0; k < c->category_count; k++)
            if (!is_refused[column][k]) c->categories[kept++] = c->categories[k];
        if (kept < c->category_count && !c->refuses_unknown)
            return ckks_error_set(err, CKKS_UNSUPPORTED, c->name ? c->name : "input",
                                  "one encoder refuses categories of this column that another one knows");
        c->category_count = kept;
        if (c->is_text && !kept) c->categories = none, c->category_count = 1;
    }
    for (uint32_t i = 0; i < t->text_count; i++)
        if (m->columns[t->texts[i]->column].categories == none)
            t->texts[i]->table[0] = t->texts[i]->otherwise;
    return CKKS_OK;
}

static ckks_status find_refused(onnx_model *m, arena *scratch, ckks_error *err) {
    const model_table *t = m->table;
    bool **is_refused = arena_take(scratch, m->input_shape.count, sizeof *is_refused);
    if (!is_refused) return NO_MEMORY(err);
    for (uint32_t c = 0; c < m->input_shape.count; c++)
        if (!(is_refused[c] = arena_take(scratch, m->columns[c].category_count, sizeof **is_refused)))
            return NO_MEMORY(err);
    for (uint32_t i = 0; i < t->text_count; i++)
        for (uint32_t k = 0; k < m->columns[t->texts[i]->column].category_count; k++)
            if (isnan(t->texts[i]->table[k])) is_refused[t->texts[i]->column][k] = true;
    return drop_refused(m, is_refused, err);
}

ckks_status table_tabulate(onnx_model *m, ckks_error *err) {
    model_table *t = m->table;
    arena scratch = {0};
    uint32_t longest = 0, client_nodes = 0;
    bool has_text = false;
    ckks_status rc = CKKS_OK;
    for (uint32_t c = 0; c < m->input_shape.count; c++) {
        has_text = has_text || m->columns[c].is_text;
        if (m->columns[c].category_count > longest) longest = m->columns[c].category_count;
    }
    if (!has_text) return CKKS_OK;
    for (uint32_t n = 0; n < m->node_count; n++) client_nodes += t->is_client[n];
    if ((uint64_t)(longest + 1) * (client_nodes + t->text_count) > TABULATION_MAX)
        return ckks_error_set(err, CKKS_TOO_LARGE, "input", "%u categories through %u nodes", longest,
                              client_nodes);
    double *row = arena_take(&m->memory, m->input_shape.count, sizeof *row);
    if (!row) return NO_MEMORY(err);
    for (uint32_t i = 0; i < t->text_count; i++)
        if (!(t->texts[i]->table = arena_take(&m->memory, longest + 1, sizeof *t->texts[i]->table)))
            return NO_MEMORY(err);
    for (uint32_t which = 0; which <= longest && rc == CKKS_OK; which++)
        rc = run_categories(m, which, row, &scratch, err);
    arena_reset(&scratch);
    if (rc == CKKS_OK) rc = find_refused(m, &scratch, err);
    arena_fini(&scratch);
    return rc;
}
