#include "tests/support/plan_fixture.h"

#include "kernels/evaluator/chebyshev.h"
#include "tests/support/fixtures.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *keep(plan_fixture *f, const void *data, size_t bytes) {
    void *copy = malloc(bytes ? bytes : 1);
    CKKS_ASSERT(copy && f->owned_count < sizeof f->owned / sizeof *f->owned);
    if (bytes) memcpy(copy, data, bytes);
    f->owned[f->owned_count++] = copy;
    return copy;
}

plan_fixture *plan_fixture_create(const ckks_params *params) {
    plan_fixture *f = calloc(1, sizeof *f);
    CKKS_ASSERT(f);
    f->params = *params;
    f->plan.params = &f->params;
    f->plan.values = f->values;
    f->plan.operations = f->operations;
    f->plan.outputs = f->outputs;
    f->plan.plains = f->plains;
    f->plan.transforms = f->transforms;
    f->plan.polynomials = f->polynomials;
    f->plan.matrices = f->matrices;
    return f;
}

void plan_fixture_destroy(plan_fixture *f) {
    if (!f) return;
    for (uint32_t i = 0; i < f->owned_count; i++) free(f->owned[i]);
    free(f->keys);
    free(f);
}

uint32_t plan_fixture_input(plan_fixture *f, uint32_t level, uint32_t batch_count, double scale) {
    f->values[f->plan.value_count] = (plan_value){level, 2, batch_count, scale};
    f->plan.input_count++;
    return f->plan.value_count++;
}

/* The operation, with output_count values that all look like `out`. */
static uint32_t append(plan_fixture *f, plan_operation op, plan_value out, uint32_t output_count) {
    CKKS_ASSERT(f->plan.operation_count < PLAN_FIXTURE_MAX);
    CKKS_ASSERT(f->plan.value_count + output_count <= PLAN_FIXTURE_MAX);
    op.first_output = f->plan.value_count;
    op.output_count = output_count;
    if (!op.source) op.source = "test";
    f->operations[f->plan.operation_count++] = op;
    for (uint32_t i = 0; i < output_count; i++) f->values[f->plan.value_count++] = out;
    return op.first_output;
}

static void rescaled(const plan_fixture *f, plan_value *v) {
    v->scale /= (double)f->params.prime[v->level];
    v->level--;
}

uint32_t plan_fixture_operation(plan_fixture *f, uint32_t kind, uint32_t a, uint32_t b) {
    plan_value out = f->values[a];
    const plan_value *second = kind == PLAN_SQUARE ? &f->values[a] : &f->values[b];
    if (kind == PLAN_MULTIPLY || kind == PLAN_SQUARE) out.component_count = 3, out.scale *= second->scale;
    if ((kind == PLAN_ADD || kind == PLAN_SUBTRACT) && second->component_count > out.component_count)
        out.component_count = second->component_count;
    if (kind == PLAN_RELINEARISE) out.component_count = 2;
    if (kind == PLAN_RESCALE) rescaled(f, &out);
    return append(f, (plan_operation){.kind = kind, .a = a, .b = b}, out, 1);
}

uint32_t plan_fixture_relinearise_rescale(plan_fixture *f, uint32_t a) {
    plan_value out = f->values[a];
    out.component_count = 2;
    rescaled(f, &out);
    return append(f, (plan_operation){.kind = PLAN_RELINEARISE, .a = a, .with_rescale = true}, out, 1);
}

uint32_t plan_fixture_drop_level(plan_fixture *f, uint32_t a, uint32_t level) {
    plan_value out = f->values[a];
    out.level = level;
    return append(f, (plan_operation){.kind = PLAN_DROP_LEVEL, .a = a}, out, 1);
}

uint32_t plan_fixture_constant(plan_fixture *f, uint32_t kind, uint32_t a, double constant, double scale) {
    plan_value out = f->values[a];
    plan_operation op = {.kind = kind, .a = a, .constant = constant};
    if (kind == PLAN_MULTIPLY_CONSTANT) op.constant_scale = scale, out.scale *= scale;
    return append(f, op, out, 1);
}

uint32_t plan_fixture_steps(plan_fixture *f, uint32_t kind, uint32_t a, const int32_t *steps,
                            uint32_t count) {
    const plan_operation op = {
        .kind = kind, .a = a, .step_count = count, .steps = keep(f, steps, count * sizeof *steps)};
    return append(f, op, f->values[a], kind == PLAN_ROTATE_HOISTED ? count : 1);
}

static uint32_t add_plain(plan_fixture *f, const double *slots, uint32_t slot_count, uint32_t level,
                          bool with_p, double scale) {
    CKKS_ASSERT(f->plan.plain_count < PLAN_FIXTURE_MAX);
    f->plains[f->plan.plain_count] = (plan_plain){.slots = keep(f, slots, slot_count * sizeof *slots),
                                                  .slot_count = slot_count,
                                                  .level = level,
                                                  .with_p = with_p,
                                                  .scale = scale};
    return f->plan.plain_count++;
}

uint32_t plan_fixture_plain(plan_fixture *f, uint32_t kind, uint32_t a, const double *slots,
                            uint32_t slot_count, double scale) {
    plan_value out = f->values[a];
    plan_operation op = {.kind = kind, .a = a};
    if (kind == PLAN_ADD_PLAIN) scale = out.scale;
    op.plain = add_plain(f, slots, slot_count, out.level, false, scale);
    if (kind == PLAN_MULTIPLY_PLAIN) out.scale *= scale;
    return append(f, op, out, 1);
}

uint32_t plan_fixture_transform(plan_fixture *f, uint32_t a, const int32_t *giants, uint32_t giant_count,
                                const int32_t *babies, uint32_t baby_count, const double *const *diagonals,
                                double scale) {
    const uint32_t slots = params_slot_count_max(&f->params), term_count = giant_count * baby_count;
    plan_transform_term terms[PLAN_FIXTURE_MAX];
    double *rotated = malloc(slots * sizeof *rotated);
    CKKS_ASSERT(rotated && term_count <= PLAN_FIXTURE_MAX);
    for (uint32_t k = 0; k < term_count; k++) {
        const uint32_t g = k / baby_count;
        for (uint32_t i = 0; i < slots; i++) /* to the right by the giant step */
            rotated[i] = diagonals[k][(i + slots - (uint32_t)giants[g]) % slots];
        terms[k] = (plan_transform_term){g, k % baby_count,
                                         add_plain(f, rotated, slots, f->values[a].level, true, scale)};
    }
    free(rotated);
    f->transforms[f->plan.transform_count] = (plan_transform){keep(f, babies, baby_count * sizeof *babies),
                                                              keep(f, giants, giant_count * sizeof *giants),
                                                              baby_count,
                                                              giant_count,
                                                              keep(f, terms, term_count * sizeof *terms),
                                                              term_count};
    plan_value out = f->values[a];
    out.scale *= scale;
    rescaled(f, &out);
    const plan_operation op = {
        .kind = PLAN_LINEAR_TRANSFORM, .a = a, .transform = f->plan.transform_count++, .with_rescale = true};
    return append(f, op, out, 1);
}

uint32_t plan_fixture_chebyshev(plan_fixture *f, uint32_t a, const double *coefficients, uint32_t degree,
                                double scale_out) {
    plan_value out = f->values[a];
    out.level -= chebyshev_depth(degree);
    out.scale = scale_out;
    f->polynomials[f->plan.polynomial_count] =
        (plan_polynomial){keep(f, coefficients, (degree + 1) * sizeof *coefficients), degree};
    return append(f,
                  (plan_operation){.kind = PLAN_CHEBYSHEV, .a = a, .polynomial = f->plan.polynomial_count++},
                  out, 1);
}

uint32_t plan_fixture_matrix(plan_fixture *f, uint32_t a, const double *weights, const double *bias,
                             uint32_t row_count, double scale) {
    plan_value out = f->values[a];
    const uint32_t column_count = out.batch_count;
    out.batch_count = row_count;
    out.scale *= scale;
    f->matrices[f->plan.matrix_count] =
        (plan_matrix){.weights = keep(f, weights, (size_t)row_count * column_count * sizeof *weights),
                      .bias = bias ? keep(f, bias, row_count * sizeof *bias) : NULL,
                      .bias_scale = bias ? out.scale : 0,
                      .row_count = row_count,
                      .column_count = column_count,
                      .scale = scale};
    return append(f, (plan_operation){.kind = PLAN_MATRIX_PRODUCT, .a = a, .matrix = f->plan.matrix_count++},
                  out, 1);
}

uint32_t plan_fixture_rerandomise(plan_fixture *f, uint32_t a, uint32_t flood_bits) {
    return append(f, (plan_operation){.kind = PLAN_RERANDOMISE, .a = a, .flood_bits = flood_bits},
                  f->values[a], 1);
}

void plan_fixture_output(plan_fixture *f, uint32_t value) {
    f->outputs[f->plan.output_count++] = value;
}

const plan *plan_fixture_finish(plan_fixture *f) {
    ckks_error err = {0};
    char text[512];
    uint32_t count;
    f->plan.is_insecure = params_security_bits(&f->params) == 0;
    if (plan_key_requirements(&f->plan, &f->keys, &count, &err) != CKKS_OK) {
        fprintf(stderr, "plan fixture: %s\n", ckks_error_print(&err, text, sizeof text));
        abort();
    }
    f->plan.keys = f->keys;
    f->plan.key_count = count;
    return &f->plan;
}

/* ---- the plans ---- */

plan_fixture *plan_fixture_small(void) {
    static const int32_t giants[] = {0, 4}, babies[] = {0, 1, 2}, three[] = {3}, pair[] = {1, -2},
                         sums[] = {1, 2};
    static const double coefficients[] = {0.1, 0.5, -0.2, 0.3}, ramp[] = {0.5, -0.25, 0.125, 1};
    const ckks_params params = fixture_params(10, 7, 2, 2);
    const uint32_t slots = params_slot_count_max(&params);
    plan_fixture *f = plan_fixture_create(&params);
    double *numbers = malloc(6 * slots * sizeof *numbers);
    const double *diagonals[6];
    prng r;
    prng_init(&r, 42);
    CKKS_ASSERT(numbers);
    for (uint32_t i = 0; i < 6 * slots; i++) numbers[i] = prng_symmetric(&r) / 6;
    for (uint32_t k = 0; k < 6; k++) diagonals[k] = numbers + k * slots;

    const double scale = 0x1p35;
    uint32_t v = plan_fixture_input(f, 6, 1, scale);
    v = plan_fixture_transform(f, v, giants, 2, babies, 3, diagonals, (double)params.prime[6]);
    v = plan_fixture_operation(f, PLAN_SQUARE, v, 0);
    v = plan_fixture_relinearise_rescale(f, v);
    v = plan_fixture_chebyshev(f, v, coefficients, 3, scale);
    const uint32_t base = plan_fixture_plain(f, PLAN_ADD_PLAIN, v, ramp, 4, 0);
    const uint32_t turned = plan_fixture_steps(f, PLAN_ROTATE, base, three, 1);
    const uint32_t sum = plan_fixture_operation(f, PLAN_ADD, base, turned);
    const uint32_t hoisted = plan_fixture_steps(f, PLAN_ROTATE_HOISTED, sum, pair, 2);
    v = plan_fixture_operation(f, PLAN_SUBTRACT, hoisted, hoisted + 1);
    v = plan_fixture_operation(f, PLAN_CONJUGATE, v, 0);
    plan_fixture_output(f, v);
    v = plan_fixture_plain(f, PLAN_MULTIPLY_PLAIN, v, ramp, 2, (double)params.prime[2]);
    v = plan_fixture_operation(f, PLAN_RESCALE, v, 0);
    v = plan_fixture_constant(f, PLAN_ADD_CONSTANT, v, -0.125, 0);
    v = plan_fixture_steps(f, PLAN_INNER_SUM, v, sums, 2);
    v = plan_fixture_operation(f, PLAN_NEGATE, v, 0);
    v = plan_fixture_constant(f, PLAN_MULTIPLY_CONSTANT, v, 0.5, (double)params.prime[1]);
    v = plan_fixture_operation(f, PLAN_RESCALE, v, 0);
    plan_fixture_output(f, v);
    free(numbers);
    plan_fixture_finish(f);
    return f;
}

plan_fixture *plan_fixture_batch(void) {
    static const double weights[] = {0.5, -0.25, 1, 0.125, 2, -1}, bias[] = {0.375, -1.5};
    const ckks_params params = fixture_params(10, 3, 1, 1);
    plan_fixture *f = plan_fixture_create(&params);
    const uint32_t a = plan_fixture_input(f, 2, 3, 0x1p30), b = plan_fixture_input(f, 1, 1, 0x1p30);
    uint32_t v = plan_fixture_matrix(f, a, weights, bias, 2, (double)params.prime[2]);
    v = plan_fixture_operation(f, PLAN_RESCALE, v, 0);
    plan_fixture_output(f, v);
    v = plan_fixture_rerandomise(f, b, 8);
    v = plan_fixture_drop_level(f, v, 0);
    plan_fixture_output(f, v);
    plan_fixture_finish(f);
    return f;
}

plan_fixture *plan_fixture_tiny(bool is_secure) {
    static const uint32_t bits[] = {38, 28}, special[] = {38};
    ckks_params params;
    const ckks_status rc = params_generate(&params, is_secure ? 12 : 10, bits, 2, special, 1, 1, NULL);
    CKKS_ASSERT(rc == CKKS_OK);
    plan_fixture *f = plan_fixture_create(&params);
    uint32_t v = plan_fixture_input(f, 1, 1, 0x1p28);
    static const double half[] = {0.5};
    v = plan_fixture_plain(f, PLAN_MULTIPLY_PLAIN, v, half, 1, (double)params.prime[1]);
    v = plan_fixture_operation(f, PLAN_RESCALE, v, 0);
    v = plan_fixture_constant(f, PLAN_ADD_CONSTANT, v, 0.25, 0);
    plan_fixture_output(f, v);
    plan_fixture_finish(f);
    return f;
}
