/*
 * From the compiler's graph to the operation list: diagonals, baby and giant steps, exact scales.
 *
 * Levels come from behind (graph_levels). Scales: a linear layer lands exactly on the scale that its value is
 * wanted at, since its plaintexts are encoded at the scale that makes the rescale land there bit for bit;
 * that is the nominal scale, or, before a square, the one whose square rescales to the nominal. What squares
 * make of it is computed as the evaluator computes it, and the next linear layer takes it from there.
 */
#ifndef CKKS_COMPILE_EMIT_H
#define CKKS_COMPILE_EMIT_H

#include "client/compile/ir.h"
#include "client/compile/layout.h"
#include "client/compile/parameters.h"
#include "kernels/program/plan.h"

/* One row of the report. */
typedef struct emitted_layer {
    const char *source;
    const char *kind; /* "dense", "square", "product", "silu", ... */
    uint32_t elements_in, elements_out;
    uint32_t level_in, level_out;
    uint32_t blocks, period; /* ciphertexts of its value, and the slots after which it repeats */
    uint32_t diagonals, babies, giants, folds; /* dense */
    uint32_t degree;                           /* polynomials */
    double interval_low, interval_high, polynomial_error;
    double noise; /* estimated deviation of an element afterwards */
} emitted_layer;

typedef struct emitted_program {
    plan plan;             /* without keys, digests and self test; all arrays in `memory` */
    plan_plain *plains;    /* plan.plains, to fill digests in */
    plan_matrix *matrices; /* plan.matrices, likewise */
    bool is_batch;         /* throughput layout: element i is entry i of the batch, sample s slot s */
    bool secret_key_only;  /* the promise holds for inputs under the secret key alone */
    slot_map input_map, output_map; /* where the input's and the scores' elements are; not in a batch */
    double noise;                   /* of a score */
    uint32_t layer_count;
    emitted_layer *layers;
    uint32_t rotation_count; /* key switches by rotation */
} emitted_program;

/* What emission may spend. Zero: the default. */
typedef struct emit_options {
    double key_cost; /* of a rotation that needs a key of its own, in hoisted rotations */
    bool is_for_gpu; /* fewer, larger kernels, and more keys for them */
} emit_options;

/* program_cost measures what the program would cost with these parameters, to compare sets: nothing is
 * emitted. CKKS_TOO_LARGE if a value would need too many ciphertexts. */
ckks_status program_cost(double *cost, const ir_graph *g, const parameter_choice *choice, ckks_error *err);

/* program_emit: choice->params must have graph_levels' depth and slots; it must outlive the plan.
 * CKKS_PRECISION naming the node whose observed values are too large for the headroom. */
ckks_status program_emit(emitted_program *out, const ir_graph *g, const parameter_choice *choice,
                         const emit_options *options, arena *memory, ckks_error *err);

#endif
