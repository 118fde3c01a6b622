/*
 * The compiler's own graph: values are vectors (flattened tensors of one row), operators are few. Nodes are
 * in order: a node refers to earlier ones only.
 *
 *   INPUT       the encrypted input vector
 *   LINEAR      sum over terms of matrix * value, plus bias
 *   PRODUCT     a[i] * b[i]; a square when a == b
 *   ACTIVATION  f(a[i]), exact
 *   POLYNOMIAL  p(a[i]), Chebyshev series on [-1, 1]: what an activation becomes
 */
#ifndef CKKS_COMPILE_IR_H
#define CKKS_COMPILE_IR_H

#include "client/compile/sparse.h"

#define IR_NODES_MAX 8192u

typedef enum ir_kind { IR_INPUT = 1, IR_LINEAR, IR_PRODUCT, IR_ACTIVATION, IR_POLYNOMIAL } ir_kind;

#define IR_RANK_MAX   8u
#define IR_PARAMETERS 2u
#define IR_POWER_MAX  16.0 /* of exponents, either sign */

/* What the parameters are: in brackets; the others take none. */
typedef enum ir_function {
    IR_RELU = 1,
    IR_SIGMOID,
    IR_TANH,
    IR_SILU,
    IR_LEAKY_RELU, /* [slope below zero] */
    IR_ELU,        /* [alpha] */
    IR_SELU,       /* [alpha, gamma] */
    IR_CELU,       /* [alpha] */
    IR_SOFTPLUS,
    IR_SOFTSIGN,
    IR_HARD_SIGMOID, /* [alpha, beta]: alpha x + beta within 0 and 1 */
    IR_HARD_SWISH,
    IR_GELU,      /* with erf */
    IR_GELU_TANH, /* the approximation of it that some exporters mean */
    IR_MISH,
    IR_ERF,
    IR_ERFC, /* 1 - erf */
    IR_CLIP, /* [low, high], may be infinite */
    IR_ABS,
    IR_EXP,
    IR_LOG, /* of numbers above zero */
    IR_SIN,
    IR_COS,
    IR_SINH,
    IR_COSH,
    IR_ATAN,
    IR_ASINH,
    IR_POW /* [exponent]: a whole number >= 0 is a polynomial as it stands; others as ir_function_domain says
            */
} ir_function;
/* the source of nodes that come from no ONNX node */
extern const char ir_scaling[];

/* "relu"; "" if there is no such function */
const char *ir_function_name(ir_function function);
typedef enum ir_domain {
    IR_DOMAIN_ALL,
    IR_DOMAIN_POSITIVE, /* a logarithm, a root */
    IR_DOMAIN_NOT_ZERO  /* a reciprocal: all on one side of zero */
} ir_domain;
/* where the function has values that a polynomial can follow */
ir_domain ir_function_domain(ir_function function, const double parameters[IR_PARAMETERS]);
double ir_function_value(ir_function function, const double parameters[IR_PARAMETERS], double x);

typedef struct ir_term {
    uint32_t from; /* node */
    const sparse *matrix;
} ir_term;

typedef struct ir_node {
    ir_kind kind;
    uint32_t count;             /* elements */
    uint32_t rank;              /* axes of its tensor, the batch axis of 1 included; 0: not known */
    uint32_t dims[IR_RANK_MAX]; /* [rank], product = count */
    const char *source;         /* the ONNX node it came from */
    uint32_t term_count;
    ir_term *terms;                     /* LINEAR */
    double *bias;                       /* LINEAR: [count] */
    uint32_t a, b;                      /* PRODUCT; a: ACTIVATION, POLYNOMIAL */
    ir_function function;               /* ACTIVATION, POLYNOMIAL */
    double parameters[IR_PARAMETERS];   /* of the function */
    uint32_t degree;                    /* POLYNOMIAL */
    double *coefficients;               /* POLYNOMIAL: [degree + 1] */
    double polynomial_error;            /* POLYNOMIAL: largest on its interval */
    double interval_low, interval_high; /* POLYNOMIAL: where it holds, before normalisation */
    double minimum, maximum;            /* observed on the calibration rows, over all elements */
    double *peak;                       /* [count]: largest size observed, element by element */
    uint32_t use_count; /* by live nodes, plus one for the output; 0 = dead. Set by ir_count_uses. */
} ir_node;

typedef struct ir_graph {
    arena *memory;
    ir_node *nodes;
    uint32_t count, capacity;
    uint32_t output;    /* node */
    bool ends_unscaled; /* the output, a linear layer of the input, is not rescaled: it takes no level */
} ir_graph;

void ir_init(ir_graph *g, arena *memory);
/* ir_append copies *node to the end; its number in *out. */
ckks_status ir_append(uint32_t *out, ir_graph *g, const ir_node *node, ckks_error *err);
/* ir_linear appends matrix * from + bias (NULL = none, else copied). */
ckks_status ir_linear(uint32_t *out, ir_graph *g, uint32_t from, const sparse *matrix, const double *bias,
                      const char *source, ckks_error *err);
static inline void ir_copy_shape(ir_node *to, const ir_node *from) {
    to->rank = from->rank;
    for (uint32_t i = 0; i < from->rank; i++) to->dims[i] = from->dims[i];
}
/* ir_node_depth: levels that node `number` itself takes; 0 for the input. */
uint32_t ir_node_depth(const ir_graph *g, uint32_t number);
/* What an element of the input may be: the observed range, widened. Clients refuse what is outside. A graph
 * of linear layers holds anywhere but for the size of its scores, polynomials hold over a range of their own.
 */
#define IR_RANGE_SLACK        0.5
#define IR_RANGE_SLACK_LINEAR 2.0
double ir_range_slack(const ir_graph *g); /* on each side, as a share of the range */
void ir_input_range(double *low, double *high, const ir_graph *g);
/* ir_widen: by that share; a range that is one number still has a size */
void ir_widen(double *low, double *high, double slack);
/* ir_count_uses marks what the output needs. */
void ir_count_uses(ir_graph *g);

/* ir_fold merges linear nodes into linear nodes, never across a value that something else uses as well, and
 * terms of one node that read the same value. */
ckks_status ir_fold(ir_graph *g, ckks_error *err);

/* ir_reroute: layers that read what is brought to a polynomial's interval read it there, so that ir_fold can
 * fold the interval into the layer before. */
ckks_status ir_reroute(bool *is_changed, ir_graph *g, ckks_error *err);

/* Leading affine steps: input' = (raw - offset) * scale, taken by the client. offset and scale are [count].
 */
typedef struct ir_preprocess {
    bool is_present;
    double *offset, *scale;
} ir_preprocess;
/* ir_peel removes elementwise affine nodes that alone use the input, and says what the client does instead.
 */
ckks_status ir_peel(ir_graph *g, ir_preprocess *out, ckks_error *err);

/* A run of the graph on clear vectors: values[node] has the node's count. */
typedef struct ir_run {
    double **values;
} ir_run;
ckks_status ir_run_init(ir_run *run, const ir_graph *g, arena *memory, ckks_error *err);
/* ir_run_row evaluates one input row through every live node. CKKS_OUT_OF_RANGE if a value is not finite. */
ckks_status ir_run_row(ir_run *run, const ir_graph *g, const double *row, ckks_error *err);

#endif
