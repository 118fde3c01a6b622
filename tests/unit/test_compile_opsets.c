/*
 * Models of operator sets 7 to 21 (tests/models/opsets.py), each in the spelling of its set: the interpreter
 * and the compiler's graph give what onnx.reference gives; taken-apart activations come back as one function.
 */
#include "client/compile/lower.h"
#include "client/compile/model.h"
#include "tests/support/onnx_cases.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
// cmocka wants these first
#include <cmocka.h>

#define FOLDER "tests/data/opsets"

typedef struct loaded {
    onnx_case numbers;
    onnx_model *model;
    lowered_model lowered;
    arena memory;
} loaded;

static void load(loaded *l, const char *name) {
    ckks_error err = {0};
    *l = (loaded){0};
    onnx_case_read_from(&l->numbers, FOLDER, name);
    if (model_read_file(&l->model, l->numbers.path, &err) != CKKS_OK)
        fail_msg("%s: %s: %s", name, err.field, err.message);
    if (model_lower(&l->lowered, l->model, &l->memory, &err) != CKKS_OK)
        fail_msg("%s: %s: %s", name, err.field, err.message);
    ir_count_uses(&l->lowered.graph);
    assert_int_equal(onnx_model_input_count(l->model), l->numbers.input_count);
    assert_int_equal(onnx_model_score_count(l->model), l->numbers.output_count);
}

static void unload(loaded *l) {
    onnx_model_destroy(l->model);
    arena_fini(&l->memory);
}

static double worst(const double *got, const double *expected, unsigned count) {
    double most = 0;
    for (unsigned i = 0; i < count; i++)
        most = fmax(most, fabs(got[i] - expected[i]) / (1 + fabs(expected[i])));
    return most;
}

static void compare(const char *name) {
    loaded l;
    ckks_error err = {0};
    ir_run run;
    double scores[ONNX_CASE_WIDTH_MAX], clear = 0, graph = 0;
    load(&l, name);
    ir_graph *g = &l.lowered.graph;
    assert_int_equal(ir_run_init(&run, g, &l.memory, &err), CKKS_OK);
    for (unsigned r = 0; r < l.numbers.row_count; r++) {
        const double *row = l.numbers.inputs + r * l.numbers.input_count;
        const double *expected = l.numbers.outputs + r * l.numbers.output_count;
        assert_int_equal(onnx_interpret(scores, l.model, row, 1, &err), CKKS_OK);
        clear = fmax(clear, worst(scores, expected, l.numbers.output_count));
        assert_int_equal(ir_run_row(&run, g, row, &err), CKKS_OK);
        graph = fmax(graph, worst(run.values[g->output], expected, l.numbers.output_count));
    }
    print_message("  %-28s interpreter %.1e, graph %.1e\n", name, clear, graph);
    /* the reference works in binary32; pieces of GELU with tanh differ from the whole by their constants */
    assert_true(clear < 1e-5 && graph < 1e-5);
    unload(&l);
}

static void every_operator_set_gives_what_onnx_reference_gives(void **state) {
    (void)state;
    struct dirent **names;
    const int count = scandir(FOLDER, &names, NULL, alphasort);
    uint32_t sets[32] = {0};
    assert_true(count > 0);
    for (int i = 0; i < count; i++) {
        char *end = strstr(names[i]->d_name, ".onnx");
        if (end) {
            *end = 0;
            const char *set = strrchr(names[i]->d_name, '-');
            assert_non_null(set);
            sets[strtoul(set + 1, NULL, 10) & 31]++;
            compare(names[i]->d_name);
        }
        free(names[i]);
    }
    free(names);
    for (int set = 7; set <= 21; set++) assert_true(sets[set] > 0);
}

typedef struct gate_case {
    const char *name;
    ir_function function;
} gate_case;

static const gate_case gates[] = {
    {"gate_silu-17", IR_SILU},
    {"gate_silu_turned-17", IR_SILU},
    {"gate_silu_steep-17", IR_SILU},
    {"gate_gelu_torch-17", IR_GELU},
    {"gate_gelu_keras-17", IR_GELU},
    {"gate_gelu_split-17", IR_GELU},
    {"gate_gelu_tanh_power-17", IR_GELU_TANH},
    {"gate_gelu_tanh_products-17", IR_GELU_TANH},
    {"gate_hardswish_clip-17", IR_HARD_SWISH},
    {"gate_hardswish_gate-17", IR_HARD_SWISH},
    {"gate_mish-17", IR_MISH},
};

static void activations_taken_apart_come_back_as_one_function(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof gates / sizeof *gates; i++) {
        loaded l;
        ckks_error err = {0};
        uint32_t products = 0, activations = 0;
        ir_function function = 0;
        load(&l, gates[i].name);
        ir_graph *g = &l.lowered.graph;
        assert_int_equal(ir_fold(g, &err), CKKS_OK);
        for (uint32_t k = 0; k < g->count; k++) {
            if (!g->nodes[k].use_count) continue;
            products += g->nodes[k].kind == IR_PRODUCT;
            activations += g->nodes[k].kind == IR_ACTIVATION;
            if (g->nodes[k].kind == IR_ACTIVATION) function = g->nodes[k].function;
        }
        if (products || activations != 1 || function != gates[i].function)
            fail_msg("%s: %u products, %u activations, %s", gates[i].name, products, activations,
                     ir_function_name(function));
        unload(&l);
    }
}

/* Compiled and run under encryption, on a small ring over the security table: for speed. Together they have
 * windows, rows without weights (a constant mask), several terms, moved elements and a gate. */
static const char *const encrypted[] = {"selection-20",     "same-12",  "batched-15",
                                        "dynamic_batch-17", "types-16", "gate_gelu_tanh_power-17",
                                        "sequence-18"};

static void models_of_many_operators_run_encrypted(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof encrypted / sizeof *encrypted; i++) {
        onnx_case numbers;
        compile_report *report = NULL;
        compile_summary summary;
        uint8_t *package = NULL;
        size_t size = 0;
        ckks_error err = {0};
        onnx_case_read_from(&numbers, FOLDER, encrypted[i]);
        const compile_options options = {
            .onnx_path = numbers.path,
            .calibration = {numbers.inputs, numbers.row_count, numbers.input_count, NULL},
            .log_n = 11,
            .allow_insecure = true,
            .target_error = 0.05,
            .check_rows = 2};
        if (compile_model(&package, &size, &report, &options, &err) != CKKS_OK)
            fail_msg("%s: %s: %s", encrypted[i], err.field, err.message);
        compile_report_summary(report, &summary);
        print_message("  %-28s depth %u, encrypted %.1e, promised %.1e\n", encrypted[i], summary.depth,
                      summary.measured_error, summary.promised_error);
        assert_true(summary.checked_rows >= 2);
        assert_true(summary.measured_error <= summary.promised_error);
        compile_report_destroy(report);
        free(package);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operator_set_gives_what_onnx_reference_gives),
        cmocka_unit_test(activations_taken_apart_come_back_as_one_function),
        cmocka_unit_test(models_of_many_operators_run_encrypted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
