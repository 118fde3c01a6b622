#include "client/compile/plan_builder.h"

#include <string.h>

void plan_builder_init(plan_builder *b, const ckks_params *params, arena *memory) {
    *b = (plan_builder){.memory = memory, .params = params};
    b->values.count_max = PLAN_VALUES_MAX;
    b->operations.count_max = PLAN_OPERATIONS_MAX;
    b->plains.count_max = b->transforms.count_max = b->polynomials.count_max = b->matrices.count_max = 1u
                                                                                                       << 18;
}

static ckks_status append(uint32_t *out, plan_builder *b, builder_list *list, const void *item, size_t size,
                          const char *what, ckks_error *err) {
    if (list->count == list->count_max)
        return ckks_error_set(err, CKKS_TOO_LARGE, what, "the program needs more than %u", list->count_max);
    if (list->count == list->capacity) {
        const uint32_t capacity = list->capacity ? 2 * list->capacity : 64;
        void *grown = arena_take(b->memory, capacity, size);
        if (!grown) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, what, "no memory for the program");
        if (list->count) memcpy(grown, list->items, list->count * size);
        list->items = grown, list->capacity = capacity;
    }
    memcpy((char *)list->items + list->count * size, item, size);
    *out = list->count++;
    return CKKS_OK;
}

ckks_status builder_value(uint32_t *out, plan_builder *b, const plan_value *value, ckks_error *err) {
    return append(out, b, &b->values, value, sizeof *value, "values", err);
}
ckks_status builder_plain(uint32_t *out, plan_builder *b, const plan_plain *plain, ckks_error *err) {
    return append(out, b, &b->plains, plain, sizeof *plain, "plaintexts", err);
}
ckks_status builder_transform(uint32_t *out, plan_builder *b, const plan_transform *transform,
                              ckks_error *err) {
    return append(out, b, &b->transforms, transform, sizeof *transform, "transforms", err);
}
ckks_status builder_polynomial(uint32_t *out, plan_builder *b, const plan_polynomial *polynomial,
                               ckks_error *err) {
    return append(out, b, &b->polynomials, polynomial, sizeof *polynomial, "polynomials", err);
}
ckks_status builder_matrix(uint32_t *out, plan_builder *b, const plan_matrix *matrix, ckks_error *err) {
    return append(out, b, &b->matrices, matrix, sizeof *matrix, "matrices", err);
}

ckks_status builder_operations(uint32_t *out, uint32_t count, plan_builder *b,
                               const plan_operation *operation, const plan_value *result, ckks_error *err) {
    plan_operation made = *operation;
    uint32_t number;
    for (uint32_t k = 0; k < count; k++) {
        const ckks_status rc = builder_value(&out[k], b, result, err);
        if (rc != CKKS_OK) return rc;
    }
    made.first_output = out[0];
    made.output_count = count;
    return append(&number, b, &b->operations, &made, sizeof made, "operations", err);
}

ckks_status builder_operation(uint32_t *out, plan_builder *b, const plan_operation *operation,
                              const plan_value *result, ckks_error *err) {
    return builder_operations(out, 1, b, operation, result, err);
}

const plan_value *builder_get(const plan_builder *b, uint32_t value) {
    return (const plan_value *)b->values.items + value;
}

void plan_builder_finish(plan *out, const plan_builder *b, uint32_t input_count) {
    *out = (plan){.params = b->params,
                  .input_count = input_count,
                  .value_count = b->values.count,
                  .values = b->values.items,
                  .operation_count = b->operations.count,
                  .operations = b->operations.items,
                  .plain_count = b->plains.count,
                  .plains = b->plains.items,
                  .transform_count = b->transforms.count,
                  .transforms = b->transforms.items,
                  .polynomial_count = b->polynomials.count,
                  .polynomials = b->polynomials.items,
                  .matrix_count = b->matrices.count,
                  .matrices = b->matrices.items};
}
