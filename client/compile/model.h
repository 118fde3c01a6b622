/*
 * An ONNX graph as the compiler sees it: values numbered, nodes in order, constants evaluated, and one sample
 * row run through it so that every shape is known. The batch axis is 1 throughout: a row is one inference.
 *
 * What comes from the file is hostile: each count, index, name, shape and size is checked here or in
 * onnx_tensor.c before use. Memory: everything in model->memory, except the parsed protobuf message.
 */
#ifndef CKKS_COMPILE_MODEL_H
#define CKKS_COMPILE_MODEL_H

#include "client/compile/arena.h"
#include "client/compile/compile.h"

#include "onnx.pb-c.h"

#define TENSOR_RANK_MAX      8u
#define TENSOR_ELEMENTS_MAX  (1u << 28) /* of a constant in the file */
#define COMPUTED_MAX         (1u << 22) /* of a constant made from constants */
#define MODEL_ROW_MAX        65536u /* elements of a value that depends on the input, unless a constant has more */
#define MODEL_FILE_BYTES_MAX (UINT64_C(256) << 20)
#define EXTERNAL_BYTES_MAX   (UINT64_C(4) << 30) /* of weights in files beside it */
#define MODEL_NODES_MAX      65536u
#define MODEL_NONE           UINT32_MAX

/* ONNX element types that occur here */
enum {
    ELEMENT_FLOAT = 1,
    ELEMENT_UINT8 = 2,
    ELEMENT_INT8 = 3,
    ELEMENT_UINT16 = 4,
    ELEMENT_INT16 = 5,
    ELEMENT_INT32 = 6,
    ELEMENT_INT64 = 7,
    ELEMENT_STRING = 8,
    ELEMENT_BOOL = 9,
    ELEMENT_FLOAT16 = 10,
    ELEMENT_DOUBLE = 11,
    ELEMENT_UINT32 = 12,
    ELEMENT_UINT64 = 13,
    ELEMENT_BFLOAT16 = 16
};

typedef struct tensor {
    uint32_t rank;
    uint32_t dims[TENSOR_RANK_MAX];
    uint32_t count; /* product of dims */
    double *data;   /* NULL: unknown (an operator before it cannot be evaluated) */
    bool is_integer;
} tensor;

/* tensor_shape sets rank, dims and count; CKKS_TOO_LARGE over `count_max`, products checked. */
ckks_status tensor_shape(tensor *t, const int64_t *dims, size_t rank, uint32_t count_max, const char *what,
                         ckks_error *err);
/* tensor_from_message reads an ONNX tensor with its data. `what` names it in errors. */
ckks_status tensor_from_message(tensor *out, const Onnx__Tensor *message, arena *memory, const char *what,
                                ckks_error *err);
/* tensor_from_bytes reads one whose data, raw, lies elsewhere: `bytes`, not NULL. */
ckks_status tensor_from_bytes(tensor *out, const Onnx__Tensor *message, const uint8_t *bytes, size_t size,
                              arena *memory, const char *what, ckks_error *err);
/* tensor_text writes "[1, 28, 28]" into text[capacity] and returns it. */
char *tensor_text(const tensor *t, char *text, size_t capacity);

typedef struct model_value {
    const char *name;
    tensor constant; /* data != NULL: the same for every row */
    tensor sample;   /* shapes of a row; data of an arbitrary one */
    uint32_t consumer_count;
    uint32_t producer; /* node, or MODEL_NONE: input or initialiser */
    bool is_defined, is_graph_output;
    bool is_text; /* elements are numbers of texts (text_pool) */
} model_value;

struct operator_row;

typedef struct model_node {
    const Onnx__Node *proto;
    const struct operator_row *op; /* NULL: not known here */
    const char *label;             /* its name, or its first output's */
    const char *type;              /* op_type, with the domain unless it is ONNX's own */
    uint32_t input_count, output_count;
    uint32_t *inputs, *outputs; /* values; MODEL_NONE for an input left out */
} model_node;

typedef struct model_input {
    uint32_t value;
    tensor shape; /* of one row */
    bool is_text, is_integer;
    bool is_one_row;   /* the file gives the batch axis the size 1 */
    uint32_t *columns; /* [shape.count]: of the raw row, MODEL_NONE: no operator reads this element */
} model_input;

/* One number of a raw row. */
typedef struct model_column {
    const char *name; /* NULL: as the header of the data says */
    bool is_text;     /* the raw number is an index into `categories`, -1: none of them */
    bool refuses_unknown, takes_missing;
    uint32_t category_count;
    const char **categories;
} model_column;

/* Texts have numbers, so that tensors stay numbers: a text tensor's data are indices into the pool. -1 is a
 * text that is nowhere in the model. */
typedef struct text_pool {
    uint32_t count, capacity, bucket_count;
    const char **texts;
    uint32_t *buckets;
} text_pool;

struct model_table;

struct onnx_model {
    arena memory;
    Onnx__Model *proto;
    uint32_t value_count, value_capacity;
    model_value *values;
    uint32_t node_count;
    model_node *nodes;
    uint32_t input_count;
    model_input *inputs;
    tensor input_shape;    /* of a raw row: the input's, or [1, columns] where there are several */
    model_column *columns; /* [input_shape.count] */
    text_pool texts;
    bool is_tabulating; /* an unknown category is NaN and no error, while what the client does is found out */
    struct model_table *table; /* what the client does before encryption (table.h) */
    uint32_t output_count;
    uint32_t *outputs;
    int64_t opset, opset_ml;
    uint32_t bucket_count; /* of the name table, a power of two */
    uint32_t *buckets;
    uint32_t score_value; /* where the encrypted part ends; found by lowering, MODEL_NONE before */
    const char *left_out; /* outputs that the package does not give, or NULL; found by lowering */
    bool is_negated;      /* scores are given under the other sign: the label is that of the least */
    uint32_t score_count; /* its elements, before what the client does with them */
    uint32_t refusal_count, refusal_capacity;
    compile_refusal *refusals; /* of operators, by node */
    uint8_t digest[32];        /* SHA-256 of the file, and of what it refers to */
    const char *folder;        /* that it came from; NULL: from memory, and nothing else is opened */
    uint64_t external_bytes;   /* read from files beside it */
    uint64_t weight_count;     /* elements of all initialisers */
};

/* model_read parses and checks; unlike onnx_model_parse it accepts unknown operators (node->op == NULL) and
 * records a refusal for each. */
ckks_status model_read(onnx_model **out, const void *bytes, size_t size, ckks_error *err);
/* The same with a folder, in which weights in other files are looked for. */
ckks_status model_read_in(onnx_model **out, const void *bytes, size_t size, const char *folder,
                          ckks_error *err);
ckks_status model_read_file(onnx_model **out, const char *path, ckks_error *err);
/* model_lookup: value number of a name, MODEL_NONE if there is none. */
uint32_t model_lookup(const onnx_model *m, const char *name);
/* model_tensor reads a tensor of the file, whose data may lie in another one. Memory: the arena's. */
ckks_status model_tensor(tensor *out, onnx_model *m, const Onnx__Tensor *message, const char *what,
                         ckks_error *err);
/* model_work_max: multiplications that evaluating one row may take. */
uint64_t model_work_max(const onnx_model *m);
/* model_refuse records that `node` cannot run encrypted; texts are copied. */
ckks_status model_refuse(onnx_model *m, const model_node *node, const char *reason, const char *way_out,
                         ckks_error *err);
/* model_refusal_status: CKKS_UNSUPPORTED naming all refused operators in one message, or CKKS_OK. */
ckks_status model_refusal_status(const onnx_model *m, ckks_error *err);

/* ---- inputs and texts (model_input.c) ---- */

/* model_add_input appends the input `info`, defined as `value`: shape, type, and its columns. */
ckks_status model_add_input(onnx_model *m, const Onnx__ValueInfo *info, uint32_t value, ckks_error *err);
/* model_finish_inputs sets input_shape and columns once all inputs are known. */
ckks_status model_finish_inputs(onnx_model *m, ckks_error *err);
/* model_find_text: the number of a text, or -1. */
double model_find_text(const onnx_model *m, const uint8_t *bytes, size_t size);
const char *model_text(const onnx_model *m, double number); /* "" for -1 */
/* model_read_texts gives every text of the file its number. Call before initialisers are read. */
ckks_status model_read_texts(onnx_model *m, ckks_error *err);
/* model_text_tensor is tensor_from_message for texts. */
ckks_status model_text_tensor(tensor *out, const onnx_model *m, const Onnx__Tensor *message, arena *memory,
                              const char *what, ckks_error *err);
/* model_infer_texts says of each value whether it is text, and refuses nodes that cannot take one. */
ckks_status model_infer_texts(onnx_model *m, ckks_error *err);

/*
 * model_evaluate runs one row through nodes, into values[value_count] (data in `scratch`). `scores_only`
 * stops after model->score_value and leaves out what the client does later (the link function of a
 * classifier). Nodes that are unknown, or depend on one, leave data == NULL.
 */
ckks_status model_evaluate(const onnx_model *m, const double *row, bool scores_only, tensor *values,
                           arena *scratch, ckks_error *err);

/* The same step by step: start with the row, then node by node. *work_left is what is left of
 * model_work_max. */
ckks_status model_evaluate_start(const onnx_model *m, const double *row, tensor *values, arena *scratch,
                                 ckks_error *err);
ckks_status model_evaluate_node(const onnx_model *m, const model_node *node, bool scores_only,
                                uint64_t *work_left, tensor *values, arena *scratch, ckks_error *err);

/* ---- attributes of a node; a wrong kind reads as absent ---- */
const Onnx__Attribute *node_attribute(const model_node *node, const char *name);
int64_t node_int(const model_node *node, const char *name, int64_t otherwise);
double node_float(const model_node *node, const char *name, double otherwise);
/* node_text copies nothing: bytes, not terminated; NULL and 0 if absent. */
const uint8_t *node_text(const model_node *node, const char *name, size_t *size);

/* node_error: CKKS_MALFORMED with the node's label as field. */
ckks_status node_error(const model_node *node, ckks_error *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
