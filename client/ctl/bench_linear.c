/*
 * Rows of `ckksctl bench ops`: linear layers. Matrices are reproducible numbers of (row, column), so that
 * nothing clear needs to be kept to check a result.
 */
#include "client/ctl/bench_rows.h"

#include "kernels/scheme/encoder.h"

#include <stdlib.h>
#include <string.h>

/* 64 diagonals of all slots, 8 baby and 8 giant steps; a dense matrix as compilation lays it out: its
 * generalised diagonals, 16 baby and 16 giant steps, on a vector that repeats over the slots. */
#define DIAGONALS_SIDE   8u
#define MATRIX_SIDE      16u
#define MATRIX_DIMENSION (MATRIX_SIDE * MATRIX_SIDE)

/* the throughput layout: one ciphertext per column, one sample per slot */
#define PRODUCT_COLUMNS 784u
#define PRODUCT_ROWS    64u

/* in [-1, 1] */
static double entry(uint32_t row, uint32_t column) {
    uint64_t x = ((uint64_t)row << 32 | column) * UINT64_C(0x9E3779B97F4A7C15) + 0x1234567;
    x ^= x >> 31, x *= UINT64_C(0xBF58476D1CE4E5B9), x ^= x >> 29, x *= UINT64_C(0x94D049BB133111EB);
    x ^= x >> 32;
    return (double)(int64_t)x * 0x1p-63;
}

/* ---- diagonals ---- */

typedef struct diagonals {
    uint32_t side;   /* baby steps, and giant steps of `side` each */
    uint32_t period; /* slots that a diagonal repeats after */
    double (*value)(uint32_t diagonal, uint32_t slot);
} diagonals;

static double diagonal_value(uint32_t diagonal, uint32_t slot) {
    return entry(diagonal, slot) / 8;
}
static double matrix_value(uint32_t diagonal, uint32_t slot) {
    return entry(slot, (slot + diagonal) % MATRIX_DIMENSION) / 16;
}

static uint32_t side_steps(int64_t *steps, uint32_t side) {
    uint32_t count = 0;
    for (uint32_t i = 1; i < side; i++) steps[count++] = i, steps[count++] = (int64_t)i * side;
    return count;
}
static uint32_t diagonals_steps(int64_t *steps) {
    return side_steps(steps, DIAGONALS_SIDE);
}
static uint32_t matrix_steps(int64_t *steps) {
    return side_steps(steps, MATRIX_SIDE);
}

/* diagonal k of d, encoded over QP for use under the giant step of k, to its place on the device */
static ckks_status encode_diagonal(bench_run *r, const diagonals *d, uint32_t k, double scale,
                                   ckks_error *err) {
    const ckks_params *p = r->rig.params;
    const size_t count = (size_t)params_prime_count(p) * params_n(p);
    const uint32_t giant = k / d->side * d->side;
    uint64_t *words = malloc(count * sizeof *words);
    double *slots = malloc(d->period * sizeof *slots);
    ckks_status rc = CKKS_RESOURCE_EXHAUSTED;
    if (words && slots) {
        for (uint32_t i = 0; i < d->period; i++) slots[(i + giant) % d->period] = d->value(k, i);
        rc = encoder_encode(words, r->rig.context, slots, NULL, d->period, r->level, true, scale, err);
    }
#pragma omp critical(bench_copy)
    {
        if (rc == CKKS_OK)
            rc = device_copy_in(r->rig.stream, (uint64_t *)r->now.on_device + k * count, words,
                                count * sizeof *words, err);
        if (rc == CKKS_OK) rc = device_stream_synchronize(r->rig.stream, err);
    }
    free(words);
    free(slots);
    return rc;
}

static ckks_status encode_diagonals(bench_run *r, const diagonals *d, double scale, ckks_error *err) {
    const uint32_t count = d->side * d->side;
    ckks_status rc = CKKS_OK;
#pragma omp parallel for schedule(dynamic)
    for (uint32_t k = 0; k < count; k++) {
        ckks_error inner = {0};
        const ckks_status one = encode_diagonal(r, d, k, scale, &inner);
#pragma omp critical(bench_status)
        if (one != CKKS_OK && rc == CKKS_OK)
            rc = ckks_error_set(err, one, inner.field, "%s", inner.message[0] ? inner.message : "no memory");
    }
    return rc;
}

/* plaintexts at the scale that the rescale takes away again */
static ckks_status transform_open(bench_run *r, const diagonals *d, const bench_sample *input,
                                  ckks_error *err) {
    const ckks_params *p = r->rig.params;
    const uint32_t count = d->side * d->side;
    const uint64_t words_each = (uint64_t)params_prime_count(p) * params_n(p);
    const double scale = (double)p->prime[r->level];
    galois_step babies[MATRIX_SIDE], giants[MATRIX_SIDE];
    linear_transform_term terms[MATRIX_DIMENSION];
    ckks_status rc = bench_device_words(r, count * words_each, err);
    if (rc == CKKS_OK) rc = encode_diagonals(r, d, scale, err);
    if (rc != CKKS_OK) return rc;
    for (uint32_t i = 0; i < d->side; i++) {
        babies[i] = bench_step(r, i);
        giants[i] = bench_step(r, (int64_t)i * d->side);
    }
    for (uint32_t k = 0; k < count; k++)
        terms[k] =
            (linear_transform_term){k / d->side, k % d->side, (uint64_t *)r->now.on_device + k * words_each};
    r->now.inputs[r->now.input_count++] = input;
    r->now.outputs[r->now.output_count++] = bench_output(r, r->level - 1, r->scale * scale / scale);
    return linear_transform_create(&r->now.transform, r->rig.dev, r->rig.context, r->level, babies, d->side,
                                   giants, d->side, terms, count, true, scale, err);
}

static ckks_status transform_record(bench_run *r, graph_region *region, const ckks_value *inputs,
                                    ckks_error *err) {
    ckks_value out = {0};
    evaluator_place(region->evaluator, region->outputs, 1);
    ckks_status rc = evaluator_linear_transform(region->evaluator, &out, r->now.transform, &inputs[0], err);
    if (rc == CKKS_OK) rc = graph_region_output(region, 0, &out, err);
    evaluator_release(region->evaluator, &out);
    return rc;
}

static bool has_diagonals(const bench_set *set) {
    return set->log_n > 12;
}
static ckks_status diagonals_open(bench_run *r, ckks_error *err) {
    const diagonals d = {DIAGONALS_SIDE, params_slot_count_max(r->rig.params), diagonal_value};
    return transform_open(r, &d, &r->a, err);
}
static double diagonals_expected(const bench_run *r, uint32_t index, uint32_t slot) {
    const uint32_t mask = params_slot_count_max(r->rig.params) - 1;
    double sum = 0;
    (void)index;
    for (uint32_t k = 0; k < DIAGONALS_SIDE * DIAGONALS_SIDE; k++)
        sum += diagonal_value(k, slot) * r->a.slots[(slot + k) & mask];
    return sum;
}

static bool has_matrix(const bench_set *set) {
    return set->has_matrix;
}
static ckks_status matrix_open(bench_run *r, ckks_error *err) {
    const diagonals d = {MATRIX_SIDE, MATRIX_DIMENSION, matrix_value};
    const ckks_status rc =
        bench_sample_make_batch(&r->now.own, &r->rig, r->level, r->scale, 4, 1, MATRIX_DIMENSION, err);
    return rc == CKKS_OK ? transform_open(r, &d, &r->now.own, err) : rc;
}
/* the product by its definition, rows and columns */
static double matrix_expected(const bench_run *r, uint32_t index, uint32_t slot) {
    double sum = 0;
    (void)index;
    for (uint32_t column = 0; column < MATRIX_DIMENSION; column++)
        sum += entry(slot % MATRIX_DIMENSION, column) / 16 * r->now.own.slots[column];
    return sum;
}

/* ---- the modular product of the throughput layout ---- */

static bool has_product(const bench_set *set) {
    return set->has_matrix_mod;
}

static double weight(uint32_t row, uint32_t column) {
    return entry(row, column) / 28;
}

static ckks_status product_open(bench_run *r, ckks_error *err) {
    const uint64_t each = PRODUCT_ROWS * PRODUCT_COLUMNS, count = each * (r->level + 1);
    const double scale = (double)r->rig.params->prime[r->level];
    ckks_status rc = bench_words(&r->now.words[0], (size_t)count, err);
    for (uint32_t row = 0; row < PRODUCT_ROWS && rc == CKKS_OK; row++)
        for (uint32_t column = 0; column < PRODUCT_COLUMNS && rc == CKKS_OK; column++) {
            uint64_t residue[CKKS_PRIMES_MAX];
            rc = encoder_constant(residue, r->rig.params, weight(row, column), scale, r->level, false, err);
            for (uint32_t limb = 0; limb <= r->level && rc == CKKS_OK; limb++)
                r->now.words[0][limb * each + row * PRODUCT_COLUMNS + column] = residue[limb];
        }
    if (rc == CKKS_OK) rc = bench_device_words(r, count, err);
    if (rc == CKKS_OK)
        rc = device_copy_in(r->rig.stream, r->now.on_device, r->now.words[0], count * sizeof(uint64_t), err);
    if (rc == CKKS_OK) rc = device_stream_synchronize(r->rig.stream, err);
    if (rc == CKKS_OK)
        rc = bench_sample_make_batch(&r->now.own, &r->rig, r->level, r->scale, 5, PRODUCT_COLUMNS,
                                     params_slot_count_max(r->rig.params), err);
    if (rc != CKKS_OK) return rc;
    value_signature s = bench_output(r, r->level, r->scale * scale);
    s.batch_count = PRODUCT_ROWS;
    s.bytes *= PRODUCT_ROWS;
    r->now.inputs[r->now.input_count++] = &r->now.own;
    r->now.outputs[r->now.output_count++] = s;
    return CKKS_OK;
}

static ckks_status product_record(bench_run *r, graph_region *region, const ckks_value *inputs,
                                  ckks_error *err) {
    ckks_value out = {0};
    evaluator_place(region->evaluator, region->outputs, 1);
    ckks_status rc = evaluator_matrix_product(region->evaluator, &out, &inputs[0], r->now.on_device, NULL,
                                              PRODUCT_ROWS, (double)r->rig.params->prime[r->level], err);
    if (rc == CKKS_OK) rc = graph_region_output(region, 0, &out, err);
    evaluator_release(region->evaluator, &out);
    return rc;
}

static double product_expected(const bench_run *r, uint32_t index, uint32_t slot) {
    const size_t slot_count = params_slot_count_max(r->rig.params);
    double sum = 0;
    for (uint32_t column = 0; column < PRODUCT_COLUMNS; column++)
        sum += weight(index, column) * r->now.own.slots[column * slot_count + slot];
    return sum;
}

const bench_row bench_linear_rows[] = {
    {"64 diagonals, 8 x 8", .is_for = has_diagonals, .steps = diagonals_steps, .open = diagonals_open,
     .record = transform_record, .expected = diagonals_expected},
    {"256 x 256 matrix, one vector", .is_for = has_matrix, .steps = matrix_steps, .open = matrix_open,
     .record = transform_record, .expected = matrix_expected},
    {"784 x 64 modular matrix product", .is_for = has_product, .open = product_open, .record = product_record,
     .expected = product_expected},
    {0},
};
