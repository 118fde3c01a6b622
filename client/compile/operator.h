/*
 * The operator table: one row per ONNX operator, one file per family (op_*.c). To add an operator: write
 * `evaluate` (what ONNX says, on clear tensors) and `lower` (what it becomes: a sparse matrix over the
 * flattened tensor, a product, an activation, or a step that the client takes after decryption), declare the
 * row in its file and list the file's rows in operator_table.c.
 */
#ifndef CKKS_COMPILE_OPERATOR_H
#define CKKS_COMPILE_OPERATOR_H

#include "client/compile/lower.h"
#include "client/compile/model.h"

/* in[] has at least so many entries, whatever the node has */
#define OPERATOR_INPUTS_MIN 8u
/* inputs of an operator that takes any number (Concat), outputs of one that gives any number (Split) */
#define OPERATOR_MANY 4096u
/* multiplications of one row, all nodes together: a small file must not be able to ask for hours of work, and
 * a large one may use each of its weights (model_work_max) */
#define OPERATOR_WORK_MAX        (UINT64_C(1) << 27)
#define OPERATOR_WORK_PER_WEIGHT 2u

typedef struct evaluation {
    const onnx_model *model;
    const model_node *node;
    const tensor **in; /* NULL: left out */
    tensor **out;      /* one for each of the node's outputs */
    arena *memory;
    bool scores_only;    /* the node gives the scores: without what the client does later */
    bool is_constant;    /* all inputs are constants */
    uint32_t count_max;  /* elements that an output may have */
    uint64_t *work_left; /* of model_work_max */
} evaluation;

/* evaluate sets shape and data of each output; inputs have data. CKKS_MALFORMED where shapes do not fit. */
typedef ckks_status (*operator_evaluate)(evaluation *e, ckks_error *err);
/* lower sets the symbol of each output (lowering.h); the node has at least one input that is not constant.
 * What cannot run encrypted is recorded with lower_refuse and is no error. */
typedef ckks_status (*operator_lower)(lowering *l, const model_node *node, ckks_error *err);

enum {
    OPERATOR_AFTER_SCORES = 1,  /* may stand behind what the client computes (a softmax, a label) */
    OPERATOR_SHAPE_ONLY = 2,    /* reads its inputs' shapes alone: a constant, whatever the inputs are */
    OPERATOR_CONSTANT_ONLY = 4, /* constants are computed with it; encrypted values are refused */
    OPERATOR_CLIENT_SIDE = 8,   /* the client applies it to the decrypted scores */
    OPERATOR_REFUSED = 16,      /* no part of shape arithmetic: refused also where its input is not known */
};

typedef struct operator_row {
    const char *domain, *type;
    uint32_t input_min, input_max, output_max, flags;
    operator_evaluate evaluate;
    operator_lower lower;
    const char *note; /* what of it runs encrypted, for the table of operators; NULL: all of it */
} operator_row;

/* operator_find: NULL if unknown. "" and "ai.onnx" are the same domain. */
const operator_row *operator_find(const char *domain, const char *type);
/* operator_way_out fills why an operator that is not in the table cannot run, and what to do instead. */
void operator_way_out(const char *type, const char **reason, const char **way_out);
/* operator_refusals: how many types have a reason of their own; entry `index` of them. */
uint32_t operator_refusals(uint32_t index, const char **type, const char **reason, const char **way_out);
/* operator_row_at: row `index` of all families in order, NULL past the end. */
const operator_row *operator_row_at(uint32_t index);

/* the families */
extern const operator_row operators_gemm[], operators_window[], operators_normalization[],
    operators_elementwise[], operators_shape[], operators_classifier[], operators_encode[],
    operators_linear[], operators_activation[], operators_output[], operators_move[], operators_reduce[],
    operators_constant[], operators_svm[], operators_resize[], operators_transposed[], operators_normalise[],
    operators_einsum[], operators_place[], operators_fourier[], operators_choice[];

/* ---- help for evaluate ---- */

/* encoder_codes (op_ml_encode.c): what a LabelEncoder maps to what. Texts are numbers of the pool.
 * *otherwise: NaN where the file does not say what becomes of others. */
ckks_status encoder_codes(double **keys, double **mapped, uint32_t *count, double *otherwise,
                          const onnx_model *m, const model_node *node, arena *memory, ckks_error *err);

/* classifier_apply_link: POST_* in place, as the client does it (op_classifier.c). */
void classifier_apply_link(double *values, uint32_t count, uint32_t link);

/* classifier_labels copies class labels, texts or numbers or neither; classifier_swap_labels exchanges two.
 */
ckks_status classifier_labels(client_steps *steps, const Onnx__Attribute *texts,
                              const Onnx__Attribute *numbers, arena *memory, const model_node *node,
                              ckks_error *err);
void classifier_swap_labels(client_steps *steps);

/* comparison_lower (op_choice.c): a condition for Where, or a refusal. */
ckks_status comparison_lower(lowering *l, const model_node *node, ckks_error *err);

/* node_link: post_transform as POST_*. */
ckks_status node_link(uint32_t *link, const model_node *node, ckks_error *err);
/* node_floats: a list attribute, all numbers finite; none if absent. */
ckks_status node_floats(const float **out, size_t *count, const model_node *node, const char *name,
                        ckks_error *err);
/* node_text_is: text may be NULL */
bool node_text_is(const uint8_t *text, size_t size, const char *expected);

/* output_like gives out[index] the shape of `like` and room for its data. */
ckks_status output_like(evaluation *e, uint32_t index, const tensor *like, ckks_error *err);
ckks_status output_shape(evaluation *e, uint32_t index, const int64_t *dims, size_t rank, ckks_error *err);

/* evaluation_work takes rows * per_row from the budget; CKKS_TOO_LARGE when it does not suffice. */
ckks_status evaluation_work(evaluation *e, uint64_t rows, uint64_t per_row, ckks_error *err);

/* Whole numbers that came as attributes in old operator sets and as an input in new ones. */
typedef struct number_list {
    bool is_present;
    uint32_t count;
    int64_t *values;
} number_list;
/* node_list takes them from in[index] where the node has it (in as in `evaluation`; MODEL_NONE: there is no
 * such input), else from the attribute. Beyond +-2^62 they are clamped. */
ckks_status node_list(number_list *out, const model_node *node, const tensor *const *in, uint32_t index,
                      const char *attribute, arena *memory, ckks_error *err);
/* node_axis: an axis counted from the front or, negative, from the end of `rank` axes. */
ckks_status node_axis(uint32_t *out, const model_node *node, int64_t axis, uint32_t rank, ckks_error *err);
/* node_axes marks the axes of a list in is_listed[TENSOR_RANK_MAX]; CKKS_MALFORMED if one is there twice. */
ckks_status node_axes(bool *is_listed, const model_node *node, const number_list *axes, uint32_t rank,
                      ckks_error *err);

/* broadcast_shape: numpy's rule; CKKS_MALFORMED if the shapes do not go together. */
ckks_status broadcast_shape(int64_t dims[TENSOR_RANK_MAX], uint32_t *rank, const model_node *node,
                            const tensor *a, const tensor *b, ckks_error *err);
/* broadcast_index fills index[out->count]: the flat element of `in` that each output element takes. */
void broadcast_index(uint32_t *index, const tensor *out, const tensor *in);

#endif
