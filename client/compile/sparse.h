/*
 * Sparse matrices over flattened tensors, in rows: what every linear operator becomes. Immutable once built;
 * memory belongs to the arena.
 */
#ifndef CKKS_COMPILE_SPARSE_H
#define CKKS_COMPILE_SPARSE_H

#include "client/compile/arena.h"
#include "kernels/base/status.h"

#define SPARSE_ENTRIES_MAX (1u << 28)

typedef struct sparse {
    uint32_t row_count, column_count;
    uint32_t *row_start; /* [row_count + 1] */
    uint32_t *column;    /* ascending within a row */
    double *value;
} sparse;

/* sparse_create: room for `entry_count` entries; the caller fills row_start, column and value. */
ckks_status sparse_create(sparse **out, arena *memory, uint32_t row_count, uint32_t column_count,
                          uint64_t entry_count, ckks_error *err);
/* sparse_gather: row i has `value[i]` (1 if NULL) in column index[i] (i if NULL). */
ckks_status sparse_gather(sparse **out, arena *memory, uint32_t row_count, uint32_t column_count,
                          const uint32_t *index, const double *value, ckks_error *err);
/* sparse_multiply: out = a * b. sparse_add: out = a + b. Entries that are zero stay out. */
ckks_status sparse_multiply(sparse **out, arena *memory, const sparse *a, const sparse *b, ckks_error *err);
ckks_status sparse_add(sparse **out, arena *memory, const sparse *a, const sparse *b, ckks_error *err);
/* sparse_apply_add: y += m x */
void sparse_apply_add(double *y, const sparse *m, const double *x);
/* sparse_diagonal fills diagonal[n] and returns true if m is square and diagonal. */
bool sparse_diagonal(double *diagonal, const sparse *m);
/* sparse_diagonal_count: the distances between row and column that occur, counted modulo the smaller side's
 * next power of two: a measure of what the matrix costs by diagonals. UINT32_MAX when out of memory. */
uint32_t sparse_diagonal_count(const sparse *m);
static inline uint32_t sparse_entry_count(const sparse *m) {
    return m->row_start[m->row_count];
}

#endif
