/*
 * How a matrix acts on slots. A vector of n elements lives in the slots of its period P(n), the next power of
 * two, zeros after the end, and repeats over all slots of the ciphertext. Every value is laid out so; a
 * matrix of R x C periods becomes min(R, C) generalised diagonals of max(R, C) slots:
 *
 *   R >= C   y[j] = sum_k d_k[j] x[j + k],  d_k[j] = M[j][(j + k) mod C]
 *   R <  C   the same with d_k[j] = M[j mod R][(j + k) mod C] for k < R: each slot j collects the part of row
 *            j mod R that lies in its own stretch of columns; adding up the C/R slots j, j + R, ... (an inner
 *            sum by rotation) completes the rows, and leaves them repeated with period R.
 *
 * Diagonals that are zero are left out.
 */
#ifndef CKKS_COMPILE_LAYOUT_H
#define CKKS_COMPILE_LAYOUT_H

#include "client/compile/sparse.h"

typedef struct layout_diagonal {
    uint32_t step; /* k */
    double *slots; /* [slot_count] */
} layout_diagonal;

typedef struct layout_matrix {
    uint32_t slot_count;         /* max(R, C) */
    uint32_t fold_from, fold_to; /* C and R: inner sum by fold_from/2, ..., fold_to; equal: none */
    uint32_t count;
    layout_diagonal *diagonals; /* ascending steps; at least one (a zero matrix keeps diagonal 0) */
} layout_matrix;

uint32_t layout_period(uint32_t element_count);

/* layout_create lists the diagonals of m. Memory in `memory`. */
ckks_status layout_create(layout_matrix *out, const sparse *m, arena *memory, ckks_error *err);

/* Baby-step giant-step: step k = giant + baby, baby = k mod stride. */
typedef struct layout_split {
    uint32_t stride;
    uint32_t baby_count, giant_count; /* distinct ones that occur, 0 included */
    uint32_t *babies, *giants;        /* ascending */
} layout_split;

/* Rotations that keys exist for already: is_used[step], step < capacity. */
typedef struct layout_rotations {
    uint8_t *is_used;
    uint32_t capacity;
} layout_rotations;

/* layout_choose_split tries each power of two as stride over the diagonals that are there and takes the
 * cheapest: a hoisted baby step costs 1, a giant step GIANT_COST, a rotation without a key KEY_COST more;
 * marks the rotations used. */
ckks_status layout_choose_split(layout_split *out, const layout_matrix *m, layout_rotations *rotations,
                                arena *memory, ckks_error *err);

#endif
