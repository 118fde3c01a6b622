/*
 * What the files of workload share. Included by kernels/program only.
 *
 * After workload_prepare everything here is read-only but for the self-test keys, so that the callable may
 * run for several slots at once.
 */
#ifndef CKKS_WORKLOAD_INTERNAL_H
#define CKKS_WORKLOAD_INTERNAL_H

#include "kernels/program/workload.h"

#include <pthread.h>

/* One operation, ready to enqueue. */
typedef struct prepared_operation {
    hoisted_rotations *rotations;
    linear_transform *transform;
    chebyshev_plan *polynomial;
    galois_step *steps; /* [step_count]; ROTATE, INNER_SUM, CONJUGATE (one) */
    uint32_t step_count;
    uint32_t key;                  /* relinearisation or public key, in the key table */
    ckks_value plain;              /* ADD_PLAIN, MULTIPLY_PLAIN */
    const uint64_t *matrix, *bias; /* MATRIX_PRODUCT; bias NULL if there is none */
} prepared_operation;

struct workload {
    device *dev;
    const plan *p;
    ckks_context *context;
    const device_tables *tables;
    uint32_t binding_count; /* plains, then matrices */
    binding_set *bindings;  /* NULL if there are none */
    binding_descriptor *descriptors;
    uint8_t (*digests)[32];
    uint64_t **words;                          /* [binding_count] device addresses */
    uint32_t *matrix_level, *matrix_level_min; /* [matrix_count] highest and lowest level of use */
    prepared_operation *operations;
    uint32_t *last_use; /* [value_count] last operation that reads the value */
    value_signature *inputs, *outputs;
    bool uses_randomness;
    workspace_plan *workspace;
    workload_memory memory;

    pthread_mutex_t self_test_lock;
    resident_keys *self_test_keys; /* NULL until the first self test or after workload_self_test_end */
};

/* The callable: context is the workload. */
ckks_status workload_callable(void *context, graph_region *region, const ckks_value *inputs,
                              uint32_t input_count, ckks_error *err);

/* workload_encode encodes, verifies and uploads every plain and matrix; fills bindings, digests and words. */
ckks_status workload_encode(workload *w, const workload_progress *progress, ckks_error *err);

#endif
