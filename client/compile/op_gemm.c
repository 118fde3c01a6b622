/* Gemm and MatMul: dense layers where one factor is constant, products of two encrypted matrices. */
#include "client/compile/operator.h"

/* Products seen as matrices: y[t][m][n] = alpha * sum_k a[t][m][k] * b[t][k][n], each side possibly stored
 * transposed; of a side that broadcasts, several t read the same matrix. */
typedef struct product {
    uint32_t m, n, k;
    uint32_t a_row, a_column, b_row, b_column; /* strides in elements */
    double alpha;
    uint32_t batch;
    uint32_t *a_start, *b_start; /* [batch]: where the matrix begins */
    uint32_t rank;               /* of y */
    int64_t dims[TENSOR_RANK_MAX];
} product;

static void set_sides(product *p, bool is_a_transposed, bool is_b_transposed) {
    p->a_row = is_a_transposed ? 1 : p->k, p->a_column = is_a_transposed ? p->m : 1;
    p->b_row = is_b_transposed ? 1 : p->n, p->b_column = is_b_transposed ? p->k : 1;
}

static ckks_status set_batch(product *p, const model_node *node, arena *memory, uint32_t batch,
                             ckks_error *err) {
    p->batch = batch;
    p->a_start = arena_take(memory, batch, sizeof *p->a_start);
    p->b_start = arena_take(memory, batch, sizeof *p->b_start);
    if (p->a_start && p->b_start) return CKKS_OK;
    return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for a row");
}

static ckks_status misfit(const model_node *node, const tensor *a, const tensor *b, ckks_error *err) {
    char text_a[80], text_b[80];
    return node_error(node, err, "cannot multiply %s by %s", tensor_text(a, text_a, sizeof text_a),
                      tensor_text(b, text_b, sizeof text_b));
}

static ckks_status gemm_product(product *p, const model_node *node, const tensor *a, const tensor *b,
                                arena *memory, ckks_error *err) {
    const bool ta = node_int(node, "transA", 0) != 0, tb = node_int(node, "transB", 0) != 0;
    if (a->rank != 2 || b->rank != 2 || a->dims[ta ? 0 : 1] != b->dims[tb ? 1 : 0])
        return misfit(node, a, b, err);
    *p = (product){.m = a->dims[ta ? 1 : 0], .n = b->dims[tb ? 0 : 1], .k = a->dims[ta ? 0 : 1]};
    p->alpha = node_float(node, "alpha", 1.0);
    p->rank = 2, p->dims[0] = p->m, p->dims[1] = p->n;
    set_sides(p, ta, tb);
    return set_batch(p, node, memory, 1, err);
}

/* the axes before the last two */
static tensor leading_axes(const tensor *t) {
    tensor out = {.rank = t->rank > 2 ? t->rank - 2 : 0, .count = 1};
    for (uint32_t i = 0; i < out.rank; i++) {
        out.dims[i] = t->dims[i];
        out.count *= t->dims[i]; /* of t, which fits, or nothing at all */
    }
    return out;
}

/* numpy's rule: a vector is one row on the left and one column on the right, and its axis goes away */
static ckks_status matmul_product(product *p, const model_node *node, const tensor *a, const tensor *b,
                                  arena *memory, ckks_error *err) {
    if (!a->rank || !b->rank || !a->count || !b->count) return misfit(node, a, b, err);
    const uint32_t k = a->dims[a->rank - 1], m = a->rank > 1 ? a->dims[a->rank - 2] : 1;
    const uint32_t n = b->rank > 1 ? b->dims[b->rank - 1] : 1;
    if (b->dims[b->rank > 1 ? b->rank - 2 : 0] != k) return misfit(node, a, b, err);
    const tensor before_a = leading_axes(a), before_b = leading_axes(b);
    tensor batch;
    *p = (product){.m = m, .n = n, .k = k, .alpha = 1.0};
    ckks_status rc = broadcast_shape(p->dims, &p->rank, node, &before_a, &before_b, err);
    if (rc != CKKS_OK) return rc;
    if ((rc = tensor_shape(&batch, p->dims, p->rank, COMPUTED_MAX, node->label, err)) != CKKS_OK) return rc;
    if ((rc = set_batch(p, node, memory, batch.count, err)) != CKKS_OK) return rc;
    broadcast_index(p->a_start, &batch, &before_a);
    broadcast_index(p->b_start, &batch, &before_b);
    for (uint32_t t = 0; t < p->batch; t++) p->a_start[t] *= m * k, p->b_start[t] *= k * n;
    if (a->rank > 1) p->dims[p->rank++] = m;
    if (b->rank > 1) p->dims[p->rank++] = n;
    set_sides(p, false, false);
    return CKKS_OK;
}

/* a row with fewer products is done before a team of threads has met */
#define TEAM_PRODUCTS (1u << 18)

static ckks_status evaluate_product(evaluation *e, const product *p, ckks_error *err) {
    ckks_status rc = output_shape(e, 0, p->dims, p->rank, err);
    if (rc == CKKS_OK) rc = evaluation_work(e, e->out[0]->count, p->k, err);
    if (rc != CKKS_OK) return rc;
    double *y = e->out[0]->data;
    for (uint32_t t = 0; t < p->batch; t++) {
        const double *a = e->in[0]->data + p->a_start[t], *b = e->in[1]->data + p->b_start[t];
        for (uint32_t i = 0; i < p->m; i++, y += p->n) {
#pragma omp parallel for schedule(static) if ((uint64_t)p->n * p->k >= TEAM_PRODUCTS)
            for (uint32_t j = 0; j < p->n; j++) {
                double sum = 0;
                for (uint32_t k = 0; k < p->k; k++)
                    sum += a[i * p->a_row + k * p->a_column] * b[k * p->b_row + j * p->b_column];
                y[j] = p->alpha * sum;
            }
        }
    }
    return CKKS_OK;
}

/* C must broadcast to the product's own shape */
static ckks_status check_bias(const model_node *node, const tensor *y, const tensor *c, ckks_error *err) {
    int64_t dims[TENSOR_RANK_MAX];
    uint32_t rank;
    const ckks_status rc = broadcast_shape(dims, &rank, node, y, c, err);
    if (rc != CKKS_OK) return rc;
    if (rank != y->rank || c->count == 0) return node_error(node, err, "its C has the wrong shape");
    for (uint32_t i = 0; i < rank; i++)
        if (dims[i] != y->dims[i]) return node_error(node, err, "its C has the wrong shape");
    return CKKS_OK;
}

static ckks_status gemm_evaluate(evaluation *e, ckks_error *err) {
    product p = {0};
    const tensor *c = e->in[2];
    ckks_status rc = gemm_product(&p, e->node, e->in[0], e->in[1], e->memory, err);
    if (rc == CKKS_OK) rc = evaluate_product(e, &p, err);
    if (rc != CKKS_OK || !c) return rc;
    tensor *y = e->out[0];
    if ((rc = check_bias(e->node, y, c, err)) != CKKS_OK) return rc;
    const double beta = node_float(e->node, "beta", 1.0);
    uint32_t *index = arena_take(e->memory, y->count, sizeof *index);
    if (!index) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, e->node->label, "no memory for a row");
    broadcast_index(index, y, c);
    for (uint32_t i = 0; i < y->count; i++) y->data[i] += beta * c->data[index[i]];
    return CKKS_OK;
}

static ckks_status matmul_evaluate(evaluation *e, ckks_error *err) {
    product p = {0};
    const ckks_status rc = matmul_product(&p, e->node, e->in[0], e->in[1], e->memory, err);
    return rc == CKKS_OK ? evaluate_product(e, &p, err) : rc;
}

/* Row (t, i, j) of the matrix over the flattened encrypted factor: of side a it reads a[t][i][.], of side b
 * b[t][.][j]. */
static uint32_t product_row(sparse *s, uint32_t entry, const product *p, const double *constant,
                            bool is_a_encrypted, uint32_t row) {
    const uint32_t t = row / (p->m * p->n), i = row / p->n % p->m, j = row % p->n;
    for (uint32_t k = 0; k < p->k; k++) {
        const uint32_t at_a = p->a_start[t] + i * p->a_row + k * p->a_column;
        const uint32_t at_b = p->b_start[t] + k * p->b_row + j * p->b_column;
        const double weight = p->alpha * constant[is_a_encrypted ? at_b : at_a];
        if (weight == 0) continue;
        s->column[entry] = is_a_encrypted ? at_a : at_b;
        s->value[entry++] = weight;
    }
    return entry;
}

static ckks_status product_matrix(sparse **out, lowering *l, const product *p, const double *constant,
                                  bool is_a_encrypted, uint32_t column_count, ckks_error *err) {
    const uint32_t rows = p->batch * p->m * p->n;
    const ckks_status rc = sparse_create(out, l->memory, rows, column_count, (uint64_t)rows * p->k, err);
    if (rc != CKKS_OK) return rc;
    for (uint32_t row = 0; row < rows; row++)
        (*out)->row_start[row + 1] =
            product_row(*out, (*out)->row_start[row], p, constant, is_a_encrypted, row);
    return CKKS_OK;
}

/* two encrypted factors: a product for each term of each sum */
static ckks_status lower_encrypted_factors(lowering *l, const model_node *node, const product *p,
                                           const double *bias, ckks_error *err) {
    const uint64_t rows = (uint64_t)p->batch * p->m * p->n, products = rows * p->k;
    if (!products || products / p->k != rows || products > PRODUCTS_MAX)
        return lower_refuse(l, node, "a product of two encrypted matrices with more than 65,536 terms",
                            "make one factor an initialiser, or both smaller", err);
    uint32_t *at_a = arena_take(l->memory, products, sizeof *at_a);
    uint32_t *at_b = arena_take(l->memory, products, sizeof *at_b);
    double *weight = arena_take(l->memory, products, sizeof *weight);
    if (!at_a || !at_b || !weight)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for a product");
    for (uint32_t i = 0; i < products; i++) {
        const uint32_t k = i % p->k, row = i / p->k, column = row % p->n, t = row / p->n / p->m;
        at_a[i] = p->a_start[t] + row / p->n % p->m * p->a_row + k * p->a_column;
        at_b[i] = p->b_start[t] + k * p->b_row + column * p->b_column;
        weight[i] = p->alpha;
    }
    const bilinear form = {.a = lower_symbol(l, node, 0)->node,
                           .b = lower_symbol(l, node, 1)->node,
                           .rows = (uint32_t)rows,
                           .run = p->k,
                           .at_a = at_a,
                           .at_b = at_b,
                           .weight = p->alpha == 1 ? NULL : weight,
                           .bias = bias};
    return lower_bilinear(l, node, &form, err);
}

static ckks_status lower_product(lowering *l, const model_node *node, const product *p, const double *bias,
                                 ckks_error *err) {
    const bool is_a = lower_is_encrypted(l, node, 0);
    const uint32_t constant = node->inputs[is_a ? 1 : 0];
    sparse *matrix;
    if (is_a && lower_is_encrypted(l, node, 1)) return lower_encrypted_factors(l, node, p, bias, err);
    const uint32_t encrypted = node->inputs[is_a ? 0 : 1];
    const ckks_status rc = product_matrix(&matrix, l, p, l->model->values[constant].constant.data, is_a,
                                          l->model->values[encrypted].sample.count, err);
    if (rc != CKKS_OK) return rc;
    return lower_linear(l, node, lower_symbol(l, node, is_a ? 0 : 1)->node, matrix, bias, err);
}

/* what there is so far, plus beta * an encrypted C */
static ckks_status add_encrypted(lowering *l, const model_node *node, const uint32_t *index, double beta,
                                 ckks_error *err) {
    const model_value *v = l->model->values;
    const uint32_t count = v[node->outputs[0]].sample.count;
    const symbol *so_far = &l->symbols[node->outputs[0]];
    ir_node made = {.kind = IR_LINEAR, .count = count, .term_count = 2};
    double *factor = arena_take(l->memory, count, sizeof *factor);
    sparse *same, *c;
    if (so_far->kind != SYMBOL_ENCRYPTED) return CKKS_OK; /* refused */
    made.terms = arena_take(l->memory, 2, sizeof *made.terms);
    made.bias = arena_take(l->memory, count, sizeof *made.bias);
    if (!factor || !made.terms || !made.bias)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for a sum");
    for (uint32_t i = 0; i < count; i++) factor[i] = beta;
    ckks_status rc = sparse_gather(&same, l->memory, count, count, NULL, NULL, err);
    if (rc == CKKS_OK)
        rc = sparse_gather(&c, l->memory, count, v[node->inputs[2]].sample.count, index, factor, err);
    if (rc != CKKS_OK) return rc;
    made.terms[0] = (ir_term){so_far->node, same};
    made.terms[1] = (ir_term){lower_symbol(l, node, 2)->node, c};
    return lower_append(l, node, &made, err);
}

/* both factors are constant, C is not */
static ckks_status lower_constant_product(lowering *l, const model_node *node, const product *p,
                                          const uint32_t *index, ckks_error *err) {
    const model_value *v = l->model->values;
    const double *a = v[node->inputs[0]].constant.data, *b = v[node->inputs[1]].constant.data;
    const uint32_t count = p->m * p->n;
    double *bias = arena_take(l->memory, count, sizeof *bias);
    double *factor = arena_take(l->memory, count, sizeof *factor);
    sparse *c;
    if (!bias || !factor)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for a sum");
    for (uint32_t i = 0; i < count; i++) {
        factor[i] = node_float(node, "beta", 1.0);
        for (uint32_t k = 0; k < p->k; k++)
            bias[i] += p->alpha * a[i / p->n * p->a_row + k * p->a_column] *
                       b[k * p->b_row + i % p->n * p->b_column];
    }
    const ckks_status rc =
        sparse_gather(&c, l->memory, count, v[node->inputs[2]].sample.count, index, factor, err);
    return rc == CKKS_OK ? lower_linear(l, node, lower_symbol(l, node, 2)->node, c, bias, err) : rc;
}

static ckks_status gemm_lower(lowering *l, const model_node *node, ckks_error *err) {
    product p = {0};
    const model_value *v = l->model->values;
    ckks_status rc =
        gemm_product(&p, node, &v[node->inputs[0]].sample, &v[node->inputs[1]].sample, l->memory, err);
    if (rc != CKKS_OK) return rc;
    const bool has_c = node->input_count > 2 && node->inputs[2] != MODEL_NONE;
    if (!has_c) return lower_product(l, node, &p, NULL, err);
    const tensor *y = &v[node->outputs[0]].sample, *c = &v[node->inputs[2]].sample;
    const double beta = node_float(node, "beta", 1.0);
    uint32_t *index = arena_take(l->memory, y->count, sizeof *index);
    double *bias = arena_take(l->memory, y->count, sizeof *bias);
    if (!index || !bias)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for a bias");
    broadcast_index(index, y, c);
    if (lower_is_encrypted(l, node, 2)) {
        if (lower_only_encrypted(l, node, 2)) return lower_constant_product(l, node, &p, index, err);
        rc = lower_product(l, node, &p, NULL, err);
        return rc == CKKS_OK ? add_encrypted(l, node, index, beta, err) : rc;
    }
    for (uint32_t i = 0; i < y->count; i++) bias[i] = beta * v[node->inputs[2]].constant.data[index[i]];
    return lower_product(l, node, &p, bias, err);
}

static ckks_status matmul_lower(lowering *l, const model_node *node, ckks_error *err) {
    product p = {0};
    const model_value *v = l->model->values;
    const ckks_status rc =
        matmul_product(&p, node, &v[node->inputs[0]].sample, &v[node->inputs[1]].sample, l->memory, err);
    return rc == CKKS_OK ? lower_product(l, node, &p, NULL, err) : rc;
}

const operator_row operators_gemm[] = {
    {"", "Gemm", 2, 3, 1, 0, gemm_evaluate, gemm_lower,
     "one factor constant, or two encrypted ones with up to 65,536 terms"},
    {"", "MatMul", 2, 2, 1, 0, matmul_evaluate, matmul_lower,
     "one factor constant, or two encrypted ones with up to 65,536 terms"},
    {0},
};
