/*
 * Einsum: sums of products over named axes. With one encrypted operand it is a matrix, made of the constant
 * ones; with two it is a sum of products of two encrypted values.
 */
#include "client/compile/operator.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define OPERANDS_MAX 8u
#define LABELS_MAX   64u
#define ELLIPSIS     '.' /* as a label: one axis of it, counted from its last */
#define WORK_MAX     (UINT64_C(1) << 40)

/* One axis of an operand or of the output: a letter, or place `number` of the ellipsis. */
typedef struct label {
    char letter;
    uint32_t number;
} label;

typedef struct term {
    uint32_t count;
    label labels[TENSOR_RANK_MAX];
    uint32_t ellipsis; /* axes that "..." stands for */
    bool has_ellipsis;
} term;

typedef struct einsum {
    uint32_t operand_count, label_count, output_count; /* labels of the output come first */
    label labels[LABELS_MAX];
    uint32_t size[LABELS_MAX];
    uint32_t stride[OPERANDS_MAX]
                   [LABELS_MAX]; /* elements of an operand from one value of a label to the next */
    uint64_t rows, run;          /* elements of the output; products in each */
    int64_t dims[TENSOR_RANK_MAX];
} einsum;

static uint32_t find_label(const einsum *s, label wanted) {
    uint32_t i = 0;
    while (i < s->label_count &&
           (s->labels[i].letter != wanted.letter || s->labels[i].number != wanted.number))
        i++;
    return i;
}

/* ---- the equation ---- */

/* reads "ij...k" from *at to a comma, "->" or the end; `rank`: axes that it must have, MODEL_NONE: of the
 * output, whose ellipsis has as many axes as `longest` says */
static ckks_status read_term(term *t, const char **at, const char *end, uint32_t rank, uint32_t longest,
                             const model_node *node, ckks_error *err) {
    uint32_t letters = 0;
    const char *c = *at;
    *t = (term){0};
    for (const char *p = c; p < end && *p != ',' && *p != '-'; p++)
        letters += isalpha((unsigned char)*p) != 0;
    for (; c < end && *c != ',' && *c != '-'; c++) {
        if (*c == ' ') continue;
        if (isalpha((unsigned char)*c)) {
            if (t->count == TENSOR_RANK_MAX) return node_error(node, err, "its equation has too many axes");
            t->labels[t->count++] = (label){*c, 0};
            continue;
        }
        if (end - c < 3 || memcmp(c, "...", 3) != 0 || t->has_ellipsis)
            return node_error(node, err, "its equation cannot be read");
        if (rank != MODEL_NONE && rank < letters)
            return node_error(node, err, "its equation has %u axes for %u", letters, rank);
        t->has_ellipsis = true;
        t->ellipsis = rank == MODEL_NONE ? longest : rank - letters;
        if (t->count + t->ellipsis > TENSOR_RANK_MAX)
            return node_error(node, err, "its equation has too many axes");
        for (uint32_t i = t->ellipsis; i-- > 0;) t->labels[t->count++] = (label){ELLIPSIS, i};
        c += 2;
    }
    if (rank != MODEL_NONE && t->count != rank)
        return node_error(node, err, "its equation has %u axes for %u", t->count, rank);
    *at = c;
    return CKKS_OK;
}

static ckks_status add_label(einsum *s, label wanted, const model_node *node, ckks_error *err) {
    if (find_label(s, wanted) < s->label_count) return CKKS_OK;
    if (s->label_count == LABELS_MAX) return node_error(node, err, "its equation has too many axes");
    s->labels[s->label_count] = wanted;
    s->size[s->label_count++] = 1;
    return CKKS_OK;
}

/* without "->": the ellipsis, then letters that occur once, in alphabetical order */
static void implied_output(term *out, const term *terms, uint32_t count, uint32_t longest) {
    uint32_t seen[128] = {0};
    *out = (term){0};
    for (uint32_t k = 0; k < count; k++)
        for (uint32_t i = 0; i < terms[k].count; i++)
            if (terms[k].labels[i].letter != ELLIPSIS) seen[(unsigned char)terms[k].labels[i].letter & 127]++;
    for (uint32_t i = longest; i-- > 0;) out->labels[out->count++] = (label){ELLIPSIS, i};
    for (int letter = 'A'; letter <= 'z'; letter++)
        if (seen[letter] == 1 && out->count < TENSOR_RANK_MAX)
            out->labels[out->count++] = (label){(char)letter, 0};
}

static ckks_status read_equation(term *terms, term *output, const model_node *node, const tensor *const *in,
                                 ckks_error *err) {
    size_t size;
    uint32_t longest = 0;
    ckks_status rc;
    const uint8_t *text = node_text(node, "equation", &size);
    if (!text) return node_error(node, err, "has no equation");
    const char *at = (const char *)text, *end = at + size;
    for (uint32_t k = 0; k < node->input_count; k++) {
        if (k && (at == end || *at++ != ',')) return node_error(node, err, "its equation has other operands");
        if ((rc = read_term(&terms[k], &at, end, in[k]->rank, 0, node, err)) != CKKS_OK) return rc;
        if (terms[k].ellipsis > longest) longest = terms[k].ellipsis;
    }
    if (at == end) {
        implied_output(output, terms, node->input_count, longest);
        return CKKS_OK;
    }
    if (end - at < 2 || memcmp(at, "->", 2) != 0) return node_error(node, err, "its equation cannot be read");
    at += 2;
    rc = read_term(output, &at, end, MODEL_NONE, longest, node, err);
    return rc != CKKS_OK || at == end ? rc : node_error(node, err, "its equation cannot be read");
}

/* ---- sizes and strides ---- */

static ckks_status set_operand(einsum *s, uint32_t k, const term *t, const tensor *x, const model_node *node,
                               ckks_error *err) {
    uint32_t stride = 1;
    for (uint32_t i = t->count; i-- > 0;) {
        const ckks_status rc = add_label(s, t->labels[i], node, err);
        if (rc != CKKS_OK) return rc;
        const uint32_t at = find_label(s, t->labels[i]), size = x->dims[i];
        if (s->size[at] != size && s->size[at] != 1 && size != 1)
            return node_error(node, err, "an axis is %u here and %u there", s->size[at], size);
        if (s->size[at] == 1) s->size[at] = size;
        if (size != 1) s->stride[k][at] += stride; /* twice the same label: the diagonal */
        stride *= size;
    }
    return CKKS_OK;
}

static ckks_status einsum_read(einsum *s, const model_node *node, const tensor *const *in, ckks_error *err) {
    term terms[OPERANDS_MAX] = {0}, output = {0};
    ckks_status rc;
    *s = (einsum){.operand_count = node->input_count, .rows = 1, .run = 1};
    if (node->input_count > OPERANDS_MAX)
        return node_error(node, err, "it has %u operands", node->input_count);
    for (uint32_t k = 0; k < node->input_count; k++)
        if (!in[k] || !in[k]->count) return node_error(node, err, "input %u has no elements", k);
    if ((rc = read_equation(terms, &output, node, in, err)) != CKKS_OK) return rc;
    for (uint32_t i = 0; i < output.count; i++) {
        if (find_label(s, output.labels[i]) < s->label_count)
            return node_error(node, err, "its output has an axis twice");
        if ((rc = add_label(s, output.labels[i], node, err)) != CKKS_OK) return rc;
    }
    s->output_count = output.count;
    for (uint32_t k = 0; k < node->input_count; k++)
        if ((rc = set_operand(s, k, &terms[k], in[k], node, err)) != CKKS_OK) return rc;
    for (uint32_t i = 0; i < s->label_count; i++) {
        if (s->rows * s->run > WORK_MAX / s->size[i])
            return ckks_error_set(err, CKKS_TOO_LARGE, node->label, "more than 2^40 products");
        if (i < s->output_count)
            s->rows *= s->size[i], s->dims[i] = s->size[i];
        else
            s->run *= s->size[i];
    }
    return CKKS_OK;
}

/* the element of each operand that product number `place` of the whole reads */
static void locate(uint32_t at[OPERANDS_MAX], const einsum *s, uint64_t place) {
    for (uint32_t k = 0; k < s->operand_count; k++) at[k] = 0;
    for (uint32_t i = s->label_count; i-- > 0;) {
        const uint32_t value = (uint32_t)(place % s->size[i]);
        place /= s->size[i];
        for (uint32_t k = 0; k < s->operand_count; k++) at[k] += value * s->stride[k][i];
    }
}

static ckks_status einsum_evaluate(evaluation *e, ckks_error *err) {
    einsum s = {0};
    uint32_t at[OPERANDS_MAX];
    ckks_status rc = einsum_read(&s, e->node, e->in, err);
    if (rc == CKKS_OK) rc = output_shape(e, 0, s.dims, s.output_count, err);
    if (rc == CKKS_OK)
        rc = evaluation_work(e, s.rows * s.run, (uint64_t)s.operand_count * (s.label_count + 1), err);
    if (rc != CKKS_OK) return rc;
    e->out[0]->is_integer = true;
    for (uint64_t i = 0; i < s.rows * s.run; i++) {
        double product = 1;
        locate(at, &s, i);
        for (uint32_t k = 0; k < s.operand_count; k++) product *= e->in[k]->data[at[k]];
        e->out[0]->data[i / s.run] += product;
    }
    for (uint32_t k = 0; k < s.operand_count; k++)
        e->out[0]->is_integer = e->out[0]->is_integer && e->in[k]->is_integer;
    return CKKS_OK;
}

/* ---- encrypted ---- */

typedef struct entry {
    uint32_t column;
    double value;
} entry;

static int by_column(const void *left, const void *right) {
    const entry *a = left, *b = right;
    return a->column < b->column ? -1 : a->column > b->column;
}

/* what the constant operands give in product number `place`; at[] as locate says */
static double constant_part(uint32_t at[OPERANDS_MAX], const einsum *s, const lowering *l,
                            const model_node *node, const tensor *const *in, uint64_t place) {
    double product = 1;
    locate(at, s, place);
    for (uint32_t k = 0; k < s->operand_count; k++)
        if (!lower_is_encrypted(l, node, k)) product *= in[k]->data[at[k]];
    return product;
}

/* operand `side` is the encrypted one */
static ckks_status lower_one(lowering *l, const model_node *node, const einsum *s, const tensor *const *in,
                             uint32_t side, ckks_error *err) {
    sparse *m;
    uint32_t at[OPERANDS_MAX] = {0}, filled = 0;
    entry *row = arena_take(l->memory, s->run, sizeof *row);
    if (!row) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for a sum");
    ckks_status rc = sparse_create(&m, l->memory, (uint32_t)s->rows, in[side]->count, s->rows * s->run, err);
    if (rc != CKKS_OK) return rc;
    for (uint32_t r = 0; r < s->rows; r++) {
        for (uint32_t i = 0; i < s->run; i++) {
            row[i].value = constant_part(at, s, l, node, in, r * s->run + i);
            row[i].column = at[side];
        }
        qsort(row, s->run, sizeof *row, by_column);
        for (uint32_t i = 0; i < s->run; i++) {
            const bool is_more = filled > m->row_start[r] && m->column[filled - 1] == row[i].column;
            if (is_more)
                m->value[filled - 1] += row[i].value;
            else if (row[i].value != 0)
                m->column[filled] = row[i].column, m->value[filled++] = row[i].value;
        }
        m->row_start[r + 1] = filled;
    }
    return lower_linear(l, node, lower_symbol(l, node, side)->node, m, NULL, err);
}

static ckks_status lower_two(lowering *l, const model_node *node, const einsum *s, const tensor *const *in,
                             uint32_t a, uint32_t b, ckks_error *err) {
    const uint64_t products = s->rows * s->run;
    if (products > PRODUCTS_MAX)
        return lower_refuse(l, node, "a product of two encrypted tensors with more than 65,536 terms",
                            "make one of them an initialiser, or both smaller", err);
    uint32_t *at_a = arena_take(l->memory, products, sizeof *at_a), at[OPERANDS_MAX] = {0};
    uint32_t *at_b = arena_take(l->memory, products, sizeof *at_b);
    double *weight = arena_take(l->memory, products, sizeof *weight);
    if (!at_a || !at_b || !weight)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for a sum");
    for (uint32_t i = 0; i < products; i++) {
        weight[i] = constant_part(at, s, l, node, in, i);
        at_a[i] = at[a], at_b[i] = at[b];
    }
    const bilinear form = {.a = lower_symbol(l, node, a)->node,
                           .b = lower_symbol(l, node, b)->node,
                           .rows = (uint32_t)s->rows,
                           .run = (uint32_t)s->run,
                           .at_a = at_a,
                           .at_b = at_b,
                           .weight = s->operand_count == 2 ? NULL : weight};
    return lower_bilinear(l, node, &form, err);
}

static ckks_status einsum_lower(lowering *l, const model_node *node, ckks_error *err) {
    const tensor **in;
    einsum s = {0};
    uint32_t sides[OPERANDS_MAX], count = 0;
    ckks_status rc = lower_inputs(&in, l, node, err);
    if (rc == CKKS_OK) rc = einsum_read(&s, node, in, err);
    if (rc != CKKS_OK) return rc;
    for (uint32_t k = 0; k < node->input_count; k++)
        if (lower_is_encrypted(l, node, k)) sides[count++] = k;
    if (count == 1) return lower_one(l, node, &s, in, sides[0], err);
    if (count == 2) return lower_two(l, node, &s, in, sides[0], sides[1], err);
    return lower_refuse(l, node, "a product of more than two encrypted tensors",
                        "multiply two of them first, in an Einsum of their own", err);
}

const operator_row operators_einsum[] = {
    {"", "Einsum", 1, OPERANDS_MAX, 1, 0, einsum_evaluate, einsum_lower,
     "one operand encrypted, or two with up to 65,536 products"},
    {0},
};
