/*
 * How long a program will take, from its operations alone. An operation is work for a few kernels, counted
 * in passes over one limb (N words); what one pass costs on this machine with this parameter set is measured
 * once, by programs of a few operations, and kept in the user's cache folder.
 *
 * The counts follow the evaluator: a key switch raises one polynomial to the modulus Q P digit by digit,
 * multiplies by the key and divides by P; a linear transform raises once for all baby steps, keeps them over
 * Q P, and switches once more for each giant step. What is left out: caches (a key that is used for the first
 * time costs more).
 *
 * On a CPU a pass costs what it costs, and an operation a little besides. On a GPU small launches take the
 * time that a launch takes, however little they do: there the launches that wait for one another are counted
 * as well (COST_STAGE), and the start of a replay; probes are small operations, which show what a launch
 * costs, and some with many rotations at once, which show what a pass costs where there are enough of them.
 * One launch takes all rotations of a value, and each of its threads looks through their list (COST_LIST):
 * 127 rotations at 2^12 cost an H200 eight times as much as 31.
 */
#ifndef CKKS_CTL_COST_H
#define CKKS_CTL_COST_H

#include "client/ctl/ctl.h"
#include "kernels/program/plan.h"

typedef enum cost_kernel {
    COST_CALL,       /* an operation, once; CPU */
    COST_TRANSFORM,  /* a number-theoretic transform of one limb */
    COST_POINTWISE,  /* a sum or product, word by word */
    COST_KEY,        /* a product with one limb of one digit of a key, both components */
    COST_CONVERSION, /* basis conversion: one source limb into one target limb */
    COST_DIAGONAL,   /* a product with a limb of a diagonal, both components, added up */
    COST_MATRIX,     /* a weight times a limb, added up */
    COST_LIST,       /* of hoisted rotations, seen from a limb of each of them: their number squared; GPU */
    COST_STAGE,      /* a launch that waits for the one before; GPU */
    COST_REPLAY,     /* a replay, once; GPU */
    COST_KERNELS
} cost_kernel;

/* one of the programs that a model is fitted to */
typedef struct cost_probe {
    char name[48];
    double passes[COST_KERNELS];
    double ns; /* shortest replay */
} cost_probe;

#define COST_PROBES_MAX 48u

typedef struct cost_model {
    double pass_ns[COST_KERNELS];
    double fit; /* largest relative error on the programs that it was fitted to */
    /* of a model measured just now; not kept */
    bool is_unsteady; /* the machine did other work */
    uint32_t probe_count;
    cost_probe probes[COST_PROBES_MAX];
} cost_model;

/* cost_count adds up what a replay of operations [first, first + count) of `p` is for each kernel. Pure. */
void cost_count(double passes[COST_KERNELS], const plan *p, uint32_t first, uint32_t count);
/* cost_sum: nanoseconds of so many passes; cost_predict: of those operations. Pure. */
double cost_sum(const cost_model *model, const double passes[COST_KERNELS]);
double cost_predict(const cost_model *model, const plan *p, uint32_t first, uint32_t count);

/* cost_kernel_name: one word. */
const char *cost_kernel_name(cost_kernel kernel);

/* cost_model_get reads the model of this machine, device kind and parameter set from the cache, or measures
 * it (seconds, with a bar on a terminal) and writes it there; `anew` measures in any case. A cache that
 * cannot be written is no error. cost_model_cached only looks. */
bool cost_model_cached(cost_model *out, const plan *p, uint32_t device_kind);
ckks_status cost_model_get(cost_model *out, const plan *p, uint32_t device_kind, bool anew,
                           const ctl_options *options, ckks_error *err);

#endif
