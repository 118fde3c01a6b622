/* A plan while it grows. Arrays live in the arena; plan pointers are valid after plan_builder_finish. */
#ifndef CKKS_COMPILE_PLAN_BUILDER_H
#define CKKS_COMPILE_PLAN_BUILDER_H

#include "client/compile/arena.h"
#include "kernels/program/plan.h"

typedef struct builder_list {
    void *items;
    uint32_t count, capacity, count_max;
} builder_list;

typedef struct plan_builder {
    arena *memory;
    const ckks_params *params;
    builder_list values, operations, plains, transforms, polynomials, matrices;
} plan_builder;

void plan_builder_init(plan_builder *b, const ckks_params *params, arena *memory);
/* Each adds one entry and gives its number; CKKS_TOO_LARGE past the format's limits. */
ckks_status builder_value(uint32_t *out, plan_builder *b, const plan_value *value, ckks_error *err);
ckks_status builder_plain(uint32_t *out, plan_builder *b, const plan_plain *plain, ckks_error *err);
ckks_status builder_transform(uint32_t *out, plan_builder *b, const plan_transform *transform,
                              ckks_error *err);
ckks_status builder_polynomial(uint32_t *out, plan_builder *b, const plan_polynomial *polynomial,
                               ckks_error *err);
ckks_status builder_matrix(uint32_t *out, plan_builder *b, const plan_matrix *matrix, ckks_error *err);
/* builder_operation adds the operation and its single output value; *out is that value. */
ckks_status builder_operation(uint32_t *out, plan_builder *b, const plan_operation *operation,
                              const plan_value *result, ckks_error *err);
/* builder_operations adds one operation with `count` outputs that are all like *result; out[count]. */
ckks_status builder_operations(uint32_t *out, uint32_t count, plan_builder *b,
                               const plan_operation *operation, const plan_value *result, ckks_error *err);
const plan_value *builder_get(const plan_builder *b, uint32_t value);
void plan_builder_finish(plan *out, const plan_builder *b, uint32_t input_count);

#endif
