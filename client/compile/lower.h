/*
 * From ONNX nodes to the compiler's graph. Each ONNX value has a symbol: what it is while the graph is
 * walked.
 */
#ifndef CKKS_COMPILE_LOWER_H
#define CKKS_COMPILE_LOWER_H

#include "client/compile/ir.h"
#include "client/compile/model.h"

typedef enum symbol_kind {
    SYMBOL_UNKNOWN = 0, /* depends on something refused */
    SYMBOL_CONSTANT,
    SYMBOL_ENCRYPTED, /* node of the graph */
    SYMBOL_CLIENT,    /* computed by the client from the scores */
    SYMBOL_CONDITION, /* is the node's value above a number, or below it: for Where alone */
} symbol_kind;

/* package.proto's kinds */
enum {
    POST_NONE = 0,
    POST_AFFINE = 1,
    POST_SOFTMAX = 2,
    POST_SIGMOID = 3,
    POST_ARGMAX = 4,
    POST_LABEL_MAP = 5,
    POST_BINARY = 6,
    POST_SOFTMAX_ZERO = 7,
    POST_PROBIT = 8,
    POST_EXP = 9,
    POST_LOG_SOFTMAX = 10,
    POST_SQRT = 11,
    POST_ONE_VS_ONE = 12
};

/* What the client does with the scores: a link function, then a label. */
typedef struct client_steps {
    uint32_t link; /* POST_* or POST_NONE */
    bool has_label;
    bool is_binary; /* one score against a threshold (after the link), else the largest */
    double threshold;
    bool append_complement;
    uint32_t label_count;
    const char **labels;    /* texts, or NULL */
    int64_t *label_numbers; /* or NULL */
    uint32_t pair_count;    /* POST_ONE_VS_ONE: [pair_count], or none */
    double *pair_scale, *pair_offset;
} client_steps;

typedef struct symbol {
    symbol_kind kind;
    uint32_t node;        /* ENCRYPTED, CONDITION; CLIENT: of the scores */
    uint32_t score_value; /* CLIENT: ONNX value that is the scores when evaluated with scores_only */
    bool is_label;        /* CLIENT: a label, not a vector */
    client_steps steps;   /* CLIENT */
    double threshold;     /* CONDITION */
    bool is_above;        /* CONDITION */
    bool is_negated;      /* CLIENT: the node's elements are the scores' under the other sign */
    bool adds_up;         /* ENCRYPTED: shares of one */
    bool is_refused;      /* stands behind a refused operator: walked on for the sake of further refusals */
} symbol;

/* This value is the value `from`, normalised (normal.h); NULL: it is not. */
typedef struct found_normal {
    const struct normal *normal;
    uint32_t from;
} found_normal;

typedef struct lowering {
    onnx_model *model;
    arena *memory;
    ir_graph *graph;
    symbol *symbols; /* [value_count] */
    uint8_t
        *is_final; /* [value_count]: only graph outputs and operators that the client runs use this value */
    uint64_t entry_count;  /* of all matrices so far: a small file must not be able to fill the memory */
    uint8_t *is_prepared;  /* [value_count]: no layer with weights stands between the rows and this value */
    uint8_t *is_pair;      /* [node_count]: part of [1 - p, p] (lower.c) */
    found_normal *normals; /* [value_count] */
} lowering;

#define LOWERING_ENTRIES_MAX (UINT64_C(1) << 25)

/* What an ONNX graph computes: `graph.output` are the scores. */
typedef struct lowered_model {
    ir_graph graph;
    client_steps steps;
} lowered_model;

/* model_lower walks the graph; refusals are recorded in the model and returned as CKKS_UNSUPPORTED. Sets
 * model->score_value. `out` lives in `memory`. */
ckks_status model_lower(lowered_model *out, onnx_model *model, arena *memory, ckks_error *err);

/* ---- help for operators ---- */

/* lower_refuse records a refusal; the node's outputs stay SYMBOL_UNKNOWN. Returns CKKS_OK (a refusal is not
 * an error of the walk) or CKKS_RESOURCE_EXHAUSTED. */
ckks_status lower_refuse(lowering *l, const model_node *node, const char *reason, const char *way_out,
                         ckks_error *err);
/* lower_refuse_comparison: the same for all operators that compare or round. */
ckks_status lower_refuse_comparison(lowering *l, const model_node *node, ckks_error *err);
/* lower_pass gives output 0 the symbol of input 0. */
void lower_pass(lowering *l, const model_node *node);
/* lower_linear: output 0 = matrix * node + bias. */
ckks_status lower_linear(lowering *l, const model_node *node, uint32_t from, const sparse *matrix,
                         const double *bias, ckks_error *err);
/* the same for output `index` */
ckks_status lower_linear_output(lowering *l, const model_node *node, uint32_t index, uint32_t from,
                                const sparse *matrix, const double *bias, ckks_error *err);
/* lower_count: layers that an operator appends itself count towards LOWERING_ENTRIES_MAX. CKKS_TOO_LARGE. */
ckks_status lower_count(lowering *l, const model_node *node, const sparse *matrix, ckks_error *err);
/* lower_append: output 0 = a new node. */
ckks_status lower_append(lowering *l, const model_node *node, ir_node *made, ckks_error *err);
/* lower_difference: output 0 = a - b, nodes of `count` elements. */
ckks_status lower_difference(lowering *l, const model_node *node, uint32_t a, uint32_t b, uint32_t count,
                             ckks_error *err);
/* lower_bilinear: output 0 = bias + sums of products of elements of two nodes. Each of the `rows` elements of
 * the output is a sum over `run` products a[at_a[i]] * b[at_b[i]] * weight[i] (NULL: 1), i in row order. What
 * is more than PRODUCTS_MAX is refused by name. bias may be NULL. */
#define PRODUCTS_MAX (1u << 16)
typedef struct bilinear {
    uint32_t a, b; /* nodes */
    uint32_t rows, run;
    const uint32_t *at_a, *at_b; /* [rows * run] */
    const double *weight, *bias;
} bilinear;
ckks_status lower_bilinear(lowering *l, const model_node *node, const bilinear *form, ckks_error *err);
/* lower_inputs lists what evaluate gets: constants with data, samples of the others; NULL: left out. At least
 * OPERATOR_INPUTS_MIN entries. */
ckks_status lower_inputs(const tensor ***in, lowering *l, const model_node *node, ckks_error *err);
/* lower_has_weights: a layer with weights, as Gemm or Conv are */
bool lower_has_weights(const model_node *node);
/* lower_only_encrypted: no input but `index` depends on encrypted data */
bool lower_only_encrypted(const lowering *l, const model_node *node, uint32_t index);
static inline const symbol *lower_symbol(const lowering *l, const model_node *node, uint32_t index) {
    return &l->symbols[node->inputs[index]];
}
static inline bool lower_is_encrypted(const lowering *l, const model_node *node, uint32_t index) {
    return lower_symbol(l, node, index)->kind == SYMBOL_ENCRYPTED;
}

#endif
