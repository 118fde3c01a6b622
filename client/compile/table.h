/*
 * What the client does with a raw row before encryption. Files from scikit-learn pipelines begin with one
 * input for each column, text among them, and operators that encrypted numbers do not have: imputers,
 * encoders, look-ups. These depend on a column or two, never on secrets of the server, so they become steps
 * of the package.
 *
 * The walk gives every value that the client can have a list of lanes, one expression for each element: a
 * chain of simple steps over one raw column. What comes from one text column, through whichever operators,
 * is a function of finitely many categories, and is found out by running the model on each of them; numbers
 * keep their steps. Where an operator that runs encrypted takes such a value, its lanes are what is
 * encrypted.
 *
 * A plain tensor (an image, a matrix of numbers without encoders) has lanes that do nothing: its arithmetic
 * stays in the program, where ir_peel finds what the client may take over.
 */
#ifndef CKKS_COMPILE_TABLE_H
#define CKKS_COMPILE_TABLE_H

#include "client/compile/model.h"

#include "package.pb-c.h"

#define TABLE_CATEGORIES_MAX 4096u
#define TABLE_DEPTH_MAX      32u

typedef enum expr_kind {
    EXPR_RAW = 1,   /* a number of the raw row */
    EXPR_TEXT,      /* a function of one text column, known by its table */
    EXPR_AFFINE,    /* (x - a) * b */
    EXPR_IMPUTE,    /* a where x is b (NaN: missing) */
    EXPR_ONE_HOT,   /* 1 where x is codes->keys[index] */
    EXPR_LOOK_UP,   /* codes->mapped of the key that x is, else codes->otherwise (NaN: refused) */
    EXPR_TRUNCATE,  /* towards zero */
    EXPR_THRESHOLD, /* 1 where x > a */
    EXPR_NORMALISE  /* member `index` of a group that is divided by its norm */
} expr_kind;

typedef struct table_codes {
    uint32_t count;
    double *keys, *mapped;
    double otherwise;
    bool refuses_unknown; /* ONE_HOT */
} table_codes;

typedef struct table_expr table_expr;

typedef struct table_group {
    uint32_t norm, count;       /* package.proto's numbers */
    const table_expr **members; /* none of them normalised itself */
    bool is_listed, is_marked;
} table_group;

struct table_expr {
    expr_kind kind;
    const table_expr *from; /* NULL: RAW, TEXT */
    uint32_t depth;         /* steps before it */
    uint32_t column;        /* of the raw row, before unused columns are dropped */
    double a, b;
    const table_codes *codes;
    table_group *group;
    uint32_t index;
    bool is_integer;
    uint32_t value, element; /* TEXT: where the interpreter finds it */
    double *table;           /* TEXT: [categories of the column], NaN where the encoder refuses */
    double otherwise;        /* TEXT: of every other text */
};

typedef struct model_table {
    bool is_table;               /* the client does more than hand the numbers over */
    const table_expr ***lanes;   /* [value_count][elements]; NULL: not a value that the client has */
    bool *is_client;             /* [node_count]: the client has all its outputs */
    uint32_t raw_count;          /* columns before unused ones were dropped */
    uint32_t *places;            /* [raw_count]: columns after that, MODEL_NONE for a dropped one */
    uint32_t element_count;      /* what is encrypted */
    const table_expr **elements; /* [element_count] */
    uint32_t **picks;            /* [value_count][elements]: elements of a value that is encrypted, or NULL */
    uint32_t group_count, text_count;
    table_group **groups;
    table_expr **texts; /* text among the elements and what they are made of */
    uint32_t step_count;
    Ckksd__V1__PreprocessStep **steps;
} model_table;

/* table_build walks a model whose shapes are known and sets model->table and its columns; everything lives in
 * model->memory. Refusals are recorded in the model. CKKS_TOO_LARGE, CKKS_RESOURCE_EXHAUSTED, or what an
 * operator says of a malformed node. */
ckks_status table_build(onnx_model *m, ckks_error *err);

/* table_rule (table_rules.c) makes the lanes of a node's outputs where the client can do it: NULL lanes stay
 * where it cannot. Every input is a constant or has lanes, at least one has. */
ckks_status table_rule(onnx_model *m, const model_node *node, ckks_error *err);
/* table_categories (table_texts.c): what a text encoder knows becomes categories of its columns, as far as
 * `node` reads them. */
ckks_status table_categories(onnx_model *m, const model_node *node, ckks_error *err);
/* table_tabulate fills the tables of text elements, and drops categories that the model refuses. */
ckks_status table_tabulate(onnx_model *m, ckks_error *err);
/* table_emit (table_steps.c) writes the elements as steps. */
ckks_status table_emit(onnx_model *m, ckks_error *err);

table_expr *table_expr_make(onnx_model *m, table_expr what);

#endif
