/* Gemm and MatMul with one constant factor: dense layers. */
#include "client/compile/operator.h"

/* A product seen as matrices: y[m][n] = alpha * sum_k a[m][k] * b[k][n], each possibly stored transposed. */
typedef struct product {
    uint32_t m, n, k;
    uint32_t a_row, a_column, b_row, b_column; /* strides in elements */
    double alpha;
} product;

static void set_sides(product *p, bool is_a_transposed, bool is_b_transposed) {
    p->a_row = is_a_transposed ? 1 : p->k, p->a_column = is_a_transposed ? p->m : 1;
    p->b_row = is_b_transposed ? 1 : p->n, p->b_column = is_b_transposed ? p->k : 1;
}

static ckks_status gemm_product(product *p, const model_node *node, const tensor *a, const tensor *b,
                                ckks_error *err) {
    const bool ta = node_int(node, "transA", 0) != 0, tb = node_int(node, "transB", 0) != 0;
    char text_a[80], text_b[80];
    if (a->rank == 2 && b->rank == 2 && a->dims[ta ? 0 : 1] == b->dims[tb ? 1 : 0]) {
        *p = (product){.m = a->dims[ta ? 1 : 0], .n = b->dims[tb ? 0 : 1], .k = a->dims[ta ? 0 : 1]};
        p->alpha = node_float(node, "alpha", 1.0);
        set_sides(p, ta, tb);
        return CKKS_OK;
    }
    return node_error(node, err, "cannot multiply %s by %s", tensor_text(a, text_a, sizeof text_a),
                      tensor_text(b, text_b, sizeof text_b));
}

/* [..., k] x [k, n] or [k]; axes before the last two of the right side must be 1; a vector on the left is one
 * row. */
static ckks_status matmul_product(product *p, const model_node *node, const tensor *a, const tensor *b,
                                  ckks_error *err) {
    char text_a[80], text_b[80];
    const uint32_t k = a->rank ? a->dims[a->rank - 1] : 0;
    const uint32_t n = b->rank > 1 ? b->dims[b->rank - 1] : 1;
    if (k && b->rank && b->count == (uint64_t)k * n && b->dims[b->rank > 1 ? b->rank - 2 : 0] == k) {
        *p = (product){.m = a->count / k, .n = n, .k = k, .alpha = 1.0};
        set_sides(p, false, false);
        return CKKS_OK;
    }
    return node_error(node, err, "cannot multiply %s by %s", tensor_text(a, text_a, sizeof text_a),
                      tensor_text(b, text_b, sizeof text_b));
}

/* the left side's axes but the last, led by ones to the longer rank, then n */
static uint32_t matmul_shape(int64_t dims[TENSOR_RANK_MAX], const tensor *a, const tensor *b, uint32_t n) {
    uint32_t rank = 0;
    for (uint32_t i = a->rank > 2 ? a->rank : 2; i < b->rank; i++) dims[rank++] = 1;
    for (uint32_t i = 0; i + 1 < a->rank; i++) dims[rank++] = a->dims[i];
    if (b->rank > 1) dims[rank++] = n;
    return rank;
}

static ckks_status check_work(const product *p, const model_node *node, ckks_error *err) {
    const uint64_t results = (uint64_t)p->m * p->n;
    if (results <= OPERATOR_WORK_MAX && results * p->k <= OPERATOR_WORK_MAX) return CKKS_OK;
    return ckks_error_set(err, CKKS_TOO_LARGE, node->label, "a product of %u x %u by %u x %u", p->m, p->k,
                          p->k, p->n);
}

static ckks_status evaluate_product(evaluation *e, const product *p, const tensor *c, double beta) {
    const double *a = e->in[0]->data, *b = e->in[1]->data;
    tensor *y = e->out[0];
    for (uint32_t i = 0; i < p->m; i++)
        for (uint32_t j = 0; j < p->n; j++) {
            double sum = 0;
            for (uint32_t k = 0; k < p->k; k++)
                sum += a[i * p->a_row + k * p->a_column] * b[k * p->b_row + j * p->b_column];
            y->data[i * p->n + j] = p->alpha * sum;
        }
    if (!c || beta == 0) return CKKS_OK;
    uint32_t *index = arena_take(e->memory, y->count, sizeof *index);
    if (!index) return CKKS_RESOURCE_EXHAUSTED;
    broadcast_index(index, y, c);
    for (uint32_t i = 0; i < y->count; i++) y->data[i] += beta * c->data[index[i]];
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
    ckks_status rc = gemm_product(&p, e->node, e->in[0], e->in[1], err);
    if (rc == CKKS_OK) rc = check_work(&p, e->node, err);
    if (rc != CKKS_OK) return rc;
    const int64_t dims[2] = {p.m, p.n};
    if ((rc = output_shape(e, 0, dims, 2, err)) != CKKS_OK) return rc;
    if (e->in[2] && (rc = check_bias(e->node, e->out[0], e->in[2], err)) != CKKS_OK) return rc;
    rc = evaluate_product(e, &p, e->in[2], node_float(e->node, "beta", 1.0));
    return rc == CKKS_OK ? rc : ckks_error_set(err, rc, e->node->label, "no memory for a row");
}

static ckks_status matmul_evaluate(evaluation *e, ckks_error *err) {
    product p = {0};
    const tensor *a = e->in[0], *b = e->in[1];
    ckks_status rc = matmul_product(&p, e->node, a, b, err);
    if (rc == CKKS_OK) rc = check_work(&p, e->node, err);
    if (rc != CKKS_OK) return rc;
    int64_t dims[TENSOR_RANK_MAX];
    const uint32_t rank = matmul_shape(dims, a, b, p.n);
    if ((rc = output_shape(e, 0, dims, rank, err)) != CKKS_OK) return rc;
    return evaluate_product(e, &p, NULL, 0);
}

/* The matrix over the flattened encrypted factor: of side a, rows (i, j) read a[i][.]; of side b, b[.][j]. */
static ckks_status product_matrix(sparse **out, lowering *l, const product *p, const double *constant,
                                  bool is_a_encrypted, ckks_error *err) {
    const uint32_t rows = p->m * p->n;
    const uint32_t columns = is_a_encrypted ? p->m * p->k : p->k * p->n;
    const ckks_status rc = sparse_create(out, l->memory, rows, columns, (uint64_t)rows * p->k, err);
    if (rc != CKKS_OK) return rc;
    sparse *s = *out;
    uint32_t entry = 0;
    for (uint32_t i = 0; i < p->m; i++)
        for (uint32_t j = 0; j < p->n; j++) {
            for (uint32_t k = 0; k < p->k; k++) {
                const uint32_t at_a = i * p->a_row + k * p->a_column, at_b = k * p->b_row + j * p->b_column;
                const double weight = p->alpha * constant[is_a_encrypted ? at_b : at_a];
                if (weight == 0) continue;
                s->column[entry] = is_a_encrypted ? at_a : at_b;
                s->value[entry++] = weight;
            }
            s->row_start[i * p->n + j + 1] = entry;
        }
    return CKKS_OK;
}

static ckks_status lower_product(lowering *l, const model_node *node, const product *p, const double *bias,
                                 ckks_error *err) {
    const bool is_a = lower_is_encrypted(l, node, 0);
    const uint32_t constant = node->inputs[is_a ? 1 : 0];
    sparse *matrix;
    if (is_a && lower_is_encrypted(l, node, 1))
        return lower_refuse(
            l, node, "a product of two encrypted matrices",
            "only products with constant weights are compiled: make one factor an initialiser", err);
    const ckks_status rc = product_matrix(&matrix, l, p, l->model->values[constant].constant.data, is_a, err);
    if (rc != CKKS_OK) return rc;
    return lower_linear(l, node, lower_symbol(l, node, is_a ? 0 : 1)->node, matrix, bias, err);
}

static ckks_status gemm_lower(lowering *l, const model_node *node, ckks_error *err) {
    product p = {0};
    const model_value *v = l->model->values;
    ckks_status rc = gemm_product(&p, node, &v[node->inputs[0]].sample, &v[node->inputs[1]].sample, err);
    if (rc != CKKS_OK) return rc;
    const bool has_c = node->input_count > 2 && node->inputs[2] != MODEL_NONE;
    if (!has_c) return lower_product(l, node, &p, NULL, err);
    if (lower_symbol(l, node, 2)->kind != SYMBOL_CONSTANT)
        return lower_refuse(l, node, "its C depends on the input", "use MatMul followed by Add", err);
    const tensor *y = &v[node->outputs[0]].sample, *c = &v[node->inputs[2]].constant;
    const double beta = node_float(node, "beta", 1.0);
    uint32_t *index = arena_take(l->memory, y->count, sizeof *index);
    double *bias = arena_take(l->memory, y->count, sizeof *bias);
    if (!index || !bias)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for a bias");
    broadcast_index(index, y, c);
    for (uint32_t i = 0; i < y->count; i++) bias[i] = beta * c->data[index[i]];
    return lower_product(l, node, &p, bias, err);
}

static ckks_status matmul_lower(lowering *l, const model_node *node, ckks_error *err) {
    product p = {0};
    const model_value *v = l->model->values;
    const ckks_status rc =
        matmul_product(&p, node, &v[node->inputs[0]].sample, &v[node->inputs[1]].sample, err);
    return rc == CKKS_OK ? lower_product(l, node, &p, NULL, err) : rc;
}

const operator_row operators_gemm[] = {
    {"", "Gemm", 2, 3, 1, 0, gemm_evaluate, gemm_lower, NULL},
    {"", "MatMul", 2, 2, 1, 0, matmul_evaluate, matmul_lower, NULL},
    {0},
};
