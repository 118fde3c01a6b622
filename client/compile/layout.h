/*
 * Where the elements of a value are, and how a matrix acts on them.
 *
 * A value lies in one or more ciphertexts (blocks); its slot map says in which block and slot each element
 * is. All blocks repeat with the same period, a power of two; slots between elements hold nothing that
 * depends on data: the diagonals that made them are zero there.
 *
 * A matrix from map x (period C) to map y (period R) becomes generalised diagonals of max(R, C) slots, for
 * each pair of blocks:
 *
 *   R >= C   y[j] = sum_k d_k[j] x[j + k];  entry (r, c) is in diagonal slot_x(c) - slot_y(r) mod C
 *   R <  C   the same modulo R: each slot j collects the part of its row that lies in its own stretch of
 *            columns; adding up the C/R slots j, j + R, ... (an inner sum by rotation) completes the rows,
 *            and leaves them repeated with period R.
 *
 * So a convolution whose output stays on its input's grid (gaps where it strides) has one diagonal per place
 * of its kernel and pair of channels, however many channels lie side by side. Diagonals that are zero are
 * left out.
 */
#ifndef CKKS_COMPILE_LAYOUT_H
#define CKKS_COMPILE_LAYOUT_H

#include "client/compile/sparse.h"

#define LAYOUT_BLOCKS_MAX 1024u

typedef struct slot_map {
    uint32_t count;         /* elements */
    uint32_t block_count;   /* ciphertexts */
    uint32_t period;        /* slots, of every block */
    uint32_t channel_pitch; /* of a grid: slots from channel to channel; 0: no grid */
    uint32_t *block, *slot; /* [count]; slot < period */
} slot_map;

uint32_t layout_period(uint32_t element_count);
/* slot_map_dense: element i in slot i * spread; past slot_count in the next block. The period is that of the
 * elements, at least `period_min` (a power of two). */
ckks_status slot_map_dense(slot_map *out, uint32_t count, uint32_t spread, uint32_t period_min,
                           uint32_t slot_count, arena *memory, ckks_error *err);
bool slot_map_equal(const slot_map *a, const slot_map *b);

typedef struct layout_diagonal {
    uint32_t step; /* k */
    double *slots; /* [slot_count] */
} layout_diagonal;

typedef struct layout_matrix {
    uint32_t slot_count;         /* max(R, C) */
    uint32_t modulus;            /* min(R, C): steps are below it */
    uint32_t fold_from, fold_to; /* C and R: inner sum by fold_from/2, ..., fold_to; equal: none */
    uint32_t count;
    layout_diagonal *diagonals; /* ascending steps; count 0: the blocks have nothing to do with each other */
} layout_matrix;

/* layout_create lists the diagonals of m's part from block x_block to block y_block. Memory in `memory`. */
ckks_status layout_create(layout_matrix *out, const sparse *m, const slot_map *y, uint32_t y_block,
                          const slot_map *x, uint32_t x_block, arena *memory, ckks_error *err);

/* Baby-step giant-step: step k = giant + baby modulo the matrix's modulus; steps may be negative (rotations
 * to the right). */
typedef struct layout_split {
    uint32_t baby_count, giant_count; /* distinct ones, 0 included where it occurs */
    int32_t *babies, *giants;
    uint32_t *term_baby, *term_giant; /* [m->count]: of each diagonal, indices */
    uint32_t *term_shift;             /* [m->count]: the plaintext's slot i is the diagonal's i - shift */
    double cost;                      /* in hoisted rotations */
} layout_split;

/* Rotations that keys exist for already: is_used[step mod capacity]; capacity is the number of slots. A
 * rotation without a key costs key_cost hoisted rotations more. */
typedef struct layout_rotations {
    uint8_t *is_used;
    uint32_t capacity;
    double key_cost;
} layout_rotations;

#define LAYOUT_KEY_COST 1.0
/* what operations cost, in hoisted rotations of the same level */
#define LAYOUT_GIANT_COST     4.0  /* a rotation that is not hoisted */
#define LAYOUT_TRANSFORM_COST 3.0  /* opening and closing a set of rotations */
#define LAYOUT_DIAGONAL_COST  0.15 /* one product with a plaintext, its memory traffic included */
#define LAYOUT_PRODUCT_COST   5.0  /* product of ciphertexts, relinearised */

/* layout_choose_split tries strides that occur between the diagonals, and powers of two, and takes the
 * cheapest; marks the rotations used. m->count is at least 1. */
ckks_status layout_choose_split(layout_split *out, const layout_matrix *m, layout_rotations *rotations,
                                arena *memory, ckks_error *err);

/* layout_is_cheaper_together: should the matrices, which all read the same ciphertext, share one set of
 * hoisted rotations (one for each step that occurs, no giant steps) rather than be split each for itself?
 * hoisted_cost is what such a rotation costs: less than one of a set of its own, since there are fewer and
 * larger kernels, and each block of slots is read from cache by all matrices. */
#define LAYOUT_SHARED_COST_CPU 0.75
#define LAYOUT_SHARED_COST_GPU 0.25 /* fewer, larger kernels */
ckks_status layout_is_cheaper_together(bool *is_cheaper, const layout_matrix *const *matrices, uint32_t count,
                                       double hoisted_cost, const layout_rotations *rotations,
                                       ckks_error *err);

/* layout_cost: what the matrix costs between the maps, without building it: diagonals and rotations of all
 * pairs of blocks, and folding. INFINITY, sooner, where it is more than `limit`. */
ckks_status layout_cost(double *cost, const sparse *m, const slot_map *y, const slot_map *x,
                        const layout_rotations *rotations, double limit, ckks_error *err);

static inline void layout_mark(layout_rotations *rotations, int64_t step) {
    rotations->is_used[step & (int64_t)(rotations->capacity - 1)] = 1;
}

#endif
