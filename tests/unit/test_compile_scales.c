/* The audit of scales: what the evaluator tracks is what the schedule says, at every operation, bit for bit.
 */
#include "client/compile/calibrate.h"
#include "client/compile/emit.h"
#include "kernels/program/workload.h"
#include "tests/support/fixtures.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
// cmocka wants these first
#include <cmocka.h>

#define CHECK_STATUS(call, expected) assert_string_equal(ckks_status_name(call), ckks_status_name(expected))

#define WIDTH 8u
#define ROWS  4u

/* A graph in which every way of meeting scales occurs: a skip over a polynomial, a square, a product of two
 * values of different level, and a sum of all. */
typedef struct audited {
    arena memory;
    ir_graph graph;
    parameter_choice choice;
    emitted_program program;
    plan plan; /* with keys */
} audited;

static uint32_t append(ir_graph *g, ir_node node) {
    ckks_error err = {0};
    uint32_t number;
    node.source = "node";
    node.count = WIDTH;
    CHECK_STATUS(ir_append(&number, g, &node, &err), CKKS_OK);
    return number;
}
static const sparse *weights(arena *memory, prng *r) {
    ckks_error err = {0};
    sparse *m;
    CHECK_STATUS(sparse_create(&m, memory, WIDTH, WIDTH, WIDTH * WIDTH, &err), CKKS_OK);
    for (uint32_t i = 0; i < WIDTH * WIDTH; i++) {
        m->column[i] = i % WIDTH;
        m->value[i] = prng_symmetric(r) / WIDTH;
        m->row_start[i / WIDTH + 1] = i + 1;
    }
    return m;
}
static uint32_t layer(ir_graph *g, const uint32_t *from, uint32_t count, prng *r) {
    ir_node n = {.kind = IR_LINEAR, .term_count = count};
    n.terms = arena_take(g->memory, count, sizeof *n.terms);
    n.bias = arena_take(g->memory, WIDTH, sizeof *n.bias);
    for (uint32_t i = 0; i < count; i++) n.terms[i] = (ir_term){from[i], weights(g->memory, r)};
    for (uint32_t i = 0; i < WIDTH; i++) n.bias[i] = prng_symmetric(r);
    return append(g, n);
}

static void audited_init(audited *a, uint32_t log_n, uint32_t menu_row) {
    ckks_error err = {0};
    prng r;
    double rows[ROWS * WIDTH];
    ir_graph exact;
    const calibration data = {rows, ROWS, WIDTH};
    *a = (audited){0};
    prng_init(&r, 3);
    for (uint32_t i = 0; i < ROWS * WIDTH; i++) rows[i] = prng_symmetric(&r);
    ir_init(&exact, &a->memory);
    const uint32_t input = append(&exact, (ir_node){.kind = IR_INPUT});
    const uint32_t first = layer(&exact, &input, 1, &r);
    const uint32_t silu = append(&exact, (ir_node){.kind = IR_ACTIVATION, .a = first, .function = IR_SILU});
    const uint32_t skip = layer(&exact, (const uint32_t[]){silu, first}, 2, &r);
    const uint32_t square = append(&exact, (ir_node){.kind = IR_PRODUCT, .a = skip, .b = skip});
    const uint32_t product = append(&exact, (ir_node){.kind = IR_PRODUCT, .a = square, .b = first});
    exact.output = layer(&exact, (const uint32_t[]){product, skip, input}, 3, &r);
    CHECK_STATUS(graph_observe(&exact, &data, NULL, &err), CKKS_OK);
    CHECK_STATUS(graph_substitute(&a->graph, &exact, 0.05, 0.25, &err), CKKS_OK);
    CHECK_STATUS(graph_observe(&a->graph, &data, NULL, &err), CKKS_OK);
    uint32_t *levels = arena_take(&a->memory, a->graph.count, sizeof *levels);
    const parameter_wish wish = {graph_levels(levels, &a->graph), 1, 128, log_n, true};
    CHECK_STATUS(parameter_choose(&a->choice, &menu_row, &wish, &err), CKKS_OK);
    if (program_emit(&a->program, &a->graph, &a->choice, NULL, &a->memory, &err) != CKKS_OK)
        fail_msg("%s: %s", err.field, err.message);
    a->plan = a->program.plan;
    a->plan.is_insecure = true;
    key_requirement *keys;
    if (plan_key_requirements(&a->plan, &keys, &a->plan.key_count, &err) != CKKS_OK)
        fail_msg("%s: %s", err.field, err.message);
    a->plan.keys = keys;
}
static void audited_fini(audited *a) {
    free((void *)(uintptr_t)a->plan.keys);
    arena_fini(&a->memory);
}

static ckks_status capture(const audited *a, double *nudge, ckks_error *err) {
    const device_config config = {.kind = DEVICE_CPU};
    device *dev;
    workload *work = NULL;
    graph_slot *slot = NULL;
    graph_program *captured = NULL;
    graph_program_config program;
    workload_memory account;
    CHECK_STATUS(device_open(&dev, &config, err), CKKS_OK);
    ckks_status rc = workload_prepare(&work, dev, &a->plan, NULL, err);
    if (rc == CKKS_OK) {
        if (nudge) *nudge = nextafter(*nudge, INFINITY);
        workload_memory_account(work, &account);
        CHECK_STATUS(graph_slot_create(&slot, dev, account.arena_bytes, err), CKKS_OK);
        workload_program_config(work, &program);
        CHECK_STATUS(graph_program_create(&captured, slot, &program, err), CKKS_OK);
        rc = workload_capture(work, captured, 0, err);
    }
    graph_program_destroy(captured);
    graph_slot_destroy(slot);
    if (work) workload_self_test_end(work);
    workload_destroy(work);
    device_close(dev);
    return rc;
}

static void tracked_scale_is_the_schedules_at_every_operation(void **state) {
    (void)state;
    static const uint32_t rows[] = {2, 3, 4, 5, 7}; /* of the menu: each kind of chain */
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        audited a;
        ckks_error err = {0};
        audited_init(&a, 10, rows[i]);
        if (capture(&a, NULL, &err) != CKKS_OK) fail_msg("%s: %s", err.field, err.message);
        print_message("  %u operations over %u levels, all at their scale\n", a.plan.operation_count,
                      a.choice.params.q_count - 1);
        audited_fini(&a);
    }
}

/* the audit itself finds the last bit, wherever it is */
static void scale_that_is_off_by_one_bit_is_found(void **state) {
    (void)state;
    audited a;
    audited_init(&a, 10, 3);
    plan_value *values = (plan_value *)(uintptr_t)a.plan.values;
    for (uint32_t k = a.plan.input_count; k < a.plan.value_count; k += 5) {
        ckks_error err = {0};
        const double scale = values[k].scale;
        CHECK_STATUS(capture(&a, &values[k].scale, &err), CKKS_SIGNATURE_MISMATCH);
        assert_non_null(strstr(err.field, "operation"));
        assert_non_null(strstr(err.message, "scale"));
        values[k].scale = scale;
    }
    audited_fini(&a);
}

static void mis_scaled_plaintext_is_refused(void **state) {
    (void)state;
    audited a;
    uint32_t refused = 0;
    audited_init(&a, 10, 3);
    for (uint32_t k = 0; k < a.plan.plain_count; k++) {
        ckks_error err = {0};
        plan_plain *plain = &a.program.plains[k];
        const double scale = plain->scale;
        plain->scale *= 1 + 0x1p-40;
        CHECK_STATUS(plan_check(&a.plan, &err), CKKS_SIGNATURE_MISMATCH);
        assert_true(err.field[0]);
        plain->scale = scale;
        refused++;
    }
    ckks_error err = {0};
    CHECK_STATUS(plan_check(&a.plan, &err), CKKS_OK);
    print_message("  %u plaintexts, each refused when its scale was off by 2^-40\n", refused);
    audited_fini(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tracked_scale_is_the_schedules_at_every_operation),
        cmocka_unit_test(scale_that_is_off_by_one_bit_is_found),
        cmocka_unit_test(mis_scaled_plaintext_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
