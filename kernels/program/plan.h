/*
 * A plan: the operation list of a model package as plain structures. It is what `ckksctl compile` writes,
 * what `workload` prepares and what the clear-text interpreter runs. Kernels know nothing of files:
 * proto/package.c turns a package into this.
 *
 * Values are numbered in single assignment: inputs first (0..input_count-1), then each operation's outputs in
 * order. Every level and scale is written down; nothing is inferred at load, only checked.
 */
#ifndef CKKS_PROGRAM_PLAN_H
#define CKKS_PROGRAM_PLAN_H

#include "kernels/scheme/keys.h"
#include "kernels/scheme/params.h"

#define PLAN_VALUES_MAX     65536u
#define PLAN_OPERATIONS_MAX 65536u

typedef struct plan_value {
    uint32_t level;
    uint32_t component_count;
    uint32_t batch_count;
    double scale;
} plan_value;

typedef enum plan_operation_kind {
    PLAN_ADD = 1,           /* a, b */
    PLAN_SUBTRACT,          /* a, b */
    PLAN_NEGATE,            /* a */
    PLAN_ADD_PLAIN,         /* a, plain: encoded at a's level and scale */
    PLAN_MULTIPLY_PLAIN,    /* a, plain: encoded at a's level and its own scale */
    PLAN_ADD_CONSTANT,      /* a, constant */
    PLAN_MULTIPLY_CONSTANT, /* a, constant, constant_scale */
    PLAN_MULTIPLY,          /* a, b -> 3 components */
    PLAN_SQUARE,            /* a -> 3 components */
    PLAN_RELINEARISE,       /* a (3 components), with_rescale */
    PLAN_RESCALE,           /* a */
    PLAN_DROP_LEVEL,        /* a; the output value's level says how far */
    PLAN_ROTATE,            /* a, steps[0] */
    PLAN_ROTATE_HOISTED,    /* a, steps[...]: one output per step */
    PLAN_CONJUGATE,         /* a */
    PLAN_INNER_SUM,         /* a, steps[...]: out = a; for each step: out += rotate(out, step) */
    PLAN_LINEAR_TRANSFORM,  /* a, transform, with_rescale; of several results: see plan_transform */
    PLAN_CHEBYSHEV,         /* a, polynomial */
    PLAN_MATRIX_PRODUCT,    /* a (batch), matrix */
    PLAN_RERANDOMISE,       /* a, flood_bits */
} plan_operation_kind;

typedef struct plan_operation {
    uint32_t kind; /* plan_operation_kind */
    uint32_t a, b; /* value numbers */
    uint32_t first_output, output_count;
    uint32_t plain;      /* index into plains */
    uint32_t transform;  /* index into transforms */
    uint32_t polynomial; /* index into polynomials */
    uint32_t matrix;     /* index into matrices */
    double constant, constant_scale;
    bool with_rescale;
    uint32_t flood_bits;
    uint32_t step_count;
    const int32_t *steps; /* rotations to the left */
    const char *source;   /* the ONNX node it came from, for reports; never NULL */
} plan_operation;

/* A clear vector, encoded at load at exactly this level and scale; `digest` is SHA-256 of the encoded words.
 */
typedef struct plan_plain {
    const double *slots; /* [slot_count] */
    uint32_t slot_count; /* power of two */
    uint32_t level;
    bool with_p; /* encoded over QP (diagonals) */
    double scale;
    uint8_t digest[32];
} plan_plain;

/* diagonal k of the transform: y[i] += d_k[i] * x[i + k]. Term (giant, baby) has its plain stored already
 * rotated right by the giant step. giant and baby steps are rotations to the left; step 0 needs no key.
 * Several giant steps, all 0: as many results, which share the baby steps. They are the operation's outputs,
 * or, where it has one output, the entries of that batch (of a single operand). */
typedef struct plan_transform_term {
    uint32_t giant, baby; /* indices into giant_steps and baby_steps */
    uint32_t plain;
} plan_transform_term;

typedef struct plan_transform {
    const int32_t *baby_steps, *giant_steps;
    uint32_t baby_count, giant_count;
    const plan_transform_term *terms;
    uint32_t term_count;
} plan_transform;

/* giant steps that are all 0, and more than one of them */
static inline bool plan_transform_has_results(const plan_transform *t) {
    for (uint32_t i = 0; i < t->giant_count; i++)
        if (t->giant_steps[i] != 0) return false;
    return t->giant_count > 1;
}

typedef struct plan_polynomial {
    const double *coefficients; /* Chebyshev, [degree + 1] */
    uint32_t degree;
} plan_polynomial;

/* Clear weights [row][column], encoded per limb as round(w * scale) mod q at load, for the highest level of
 * its uses, and fitting half of Q at the lowest: [limb][row][column]. bias: NULL, or [row], added to each
 * result, encoded as round(b * bias_scale) behind the weights: [limb][row]; bias_scale is the scale of every
 * result, so that uses of a matrix with a bias agree in the scale of their operand. */
typedef struct plan_matrix {
    const double *weights;
    const double *bias;
    uint32_t row_count, column_count;
    double scale, bias_scale;
    uint8_t digest[32];
} plan_matrix;

typedef struct plan {
    const ckks_params *params;
    bool is_insecure; /* made with --allow-insecure: tests and benchmarks only */
    uint32_t input_count;
    uint32_t value_count;
    const plan_value *values;
    uint32_t operation_count;
    const plan_operation *operations;
    uint32_t output_count;
    const uint32_t *outputs; /* value numbers */
    uint32_t plain_count;
    const plan_plain *plains;
    uint32_t transform_count;
    const plan_transform *transforms;
    uint32_t polynomial_count;
    const plan_polynomial *polynomials;
    uint32_t matrix_count;
    const plan_matrix *matrices;
    uint32_t key_count;
    const key_requirement *keys; /* sorted: relinearisation, Galois by element, public; no duplicates */
    bool has_self_test;
    uint8_t self_test_seed[32];
    uint8_t self_test_digest[32];
} plan;

/*
 * plan_check verifies everything that can be checked without encoding: numbering, levels, exact scales (bit
 * for bit, by the evaluator's rules), component counts, batch counts, table indices, `keys` equal to
 * plan_key_requirements, the security gate (unless is_insecure). CKKS_MALFORMED or CKKS_SIGNATURE_MISMATCH;
 * err->field names the operation as "operation 12 (ROTATE, dense_1)". Pure.
 */
ckks_status plan_check(const plan *p, ckks_error *err);

/* plan_key_requirements lists what the operations need, in the order of plan.keys, after every check of
 * plan_check but the comparison with plan.keys and the gate: a compiler calls it first. Caller frees *out
 * with free(). */
ckks_status plan_key_requirements(const plan *p, key_requirement **out, uint32_t *count, ckks_error *err);

const char *plan_operation_name(uint32_t kind);

/*
 * plan_interpret runs the plan on clear slot vectors, the same polynomials: inputs[input][slot_count full],
 * outputs likewise. No noise, no encoding: binary64. The oracle for whole programs. slot_count = N/2 always;
 * batch values are consecutive vectors. `p` has passed plan_check. Allocates what is alive; pure otherwise.
 */
ckks_status plan_interpret(double *const *outputs, const plan *p, const double *const *inputs,
                           ckks_error *err);

#endif
