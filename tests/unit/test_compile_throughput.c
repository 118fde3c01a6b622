/* The throughput layout: what becomes of every operator, of the committed models, and what is refused. */
#include "client/compile/calibrate.h"
#include "client/compile/throughput.h"
#include "tests/support/alloc_fault.h"
#include "tests/support/compiled_fixture.h"
#include "tests/support/onnx_cases.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
// cmocka wants these first
#include <cmocka.h>

#define CHECK_STATUS(call, expected) assert_string_equal(ckks_status_name(call), ckks_status_name(expected))
#define MODELS                       "tests/models/"

/* ---- vocabulary ---- */

/* scores of many rows, as a client would have them, in the clear: row s is slot s, element i entry i */
static double *run_clear(const compiled *c, const double *raw, uint32_t row_count) {
    const Ckksd__V1__ModelDescription *d = c->package->manifest->description;
    const uint32_t slots = params_slot_count_max(&c->package->params);
    const uint32_t elements = d->input_layout->element_count, scores = d->output_layout->element_count;
    double *input = calloc((size_t)elements * slots, sizeof *input);
    double *output = calloc((size_t)scores * slots, sizeof *output);
    double *out = calloc((size_t)row_count * scores, sizeof *out);
    ckks_error err = {0};
    assert_true(row_count <= slots);
    for (uint32_t r = 0; r < row_count; r++)
        for (uint32_t i = 0; i < elements; i++) {
            double x = raw[(size_t)r * elements + i];
            if (d->n_preprocess) {
                const Ckksd__V1__PreprocessStep *s = d->preprocess[0];
                x = (x - s->offset[s->n_offset == 1 ? 0 : i]) * s->scale[s->n_scale == 1 ? 0 : i];
            }
            input[(size_t)i * slots + r] = x;
        }
    must(plan_interpret(&output, &c->package->plan, (const double *const[]){input}, &err), &err);
    const double factor = d->n_postprocess && d->postprocess[0]->kind == 1 ? d->postprocess[0]->scale[0] : 1;
    for (uint32_t r = 0; r < row_count; r++)
        for (uint32_t i = 0; i < scores; i++)
            out[(size_t)r * scores + i] = factor * output[(size_t)i * slots + r];
    free(input);
    free(output);
    return out;
}

static void check_operations(const plan *p) {
    for (uint32_t i = 0; i < p->operation_count; i++) {
        const uint32_t kind = p->operations[i].kind;
        assert_true(kind == PLAN_MATRIX_PRODUCT || kind == PLAN_SQUARE || kind == PLAN_MULTIPLY ||
                    kind == PLAN_RELINEARISE || kind == PLAN_RESCALE || kind == PLAN_CHEBYSHEV ||
                    kind == PLAN_DROP_LEVEL || kind == PLAN_ADD);
    }
    assert_true(p->key_count <= 1);
    if (p->key_count) assert_int_equal(p->keys[0].kind, KEY_RELINEARISATION);
}

/* ---- every operator ---- */

#define OPSETS "tests/data/opsets"

static bool compile_case(const char *folder, const char *name) {
    onnx_case k;
    ckks_error err = {0};
    onnx_model *model;
    compiled c = {0};
    double original[ONNX_CASE_WIDTH_MAX], worst = 0;
    onnx_case_read_from(&k, folder, name);
    const bool is_rough = strcmp(name, "relu") == 0 || strcmp(folder, OPSETS) == 0;
    const compile_options options = {.onnx_path = k.path,
                                     .calibration = {k.inputs, k.row_count, k.input_count, NULL},
                                     .log_n = 11,
                                     .allow_insecure = true,
                                     .target_error = is_rough ? 0.05 : 0,
                                     .check_rows = 3,
                                     .layout = COMPILE_LAYOUT_THROUGHPUT};
    const ckks_status rc = compile_model(&c.bytes, &c.size, &c.report, &options, &err);
    if (rc == CKKS_UNSUPPORTED || rc == CKKS_INSECURE_PARAMETERS) {
        print_message("  %-18s %s\n", name, err.message);
        compile_report_destroy(c.report);
        return false;
    }
    must(rc, &err);
    compile_report_summary(c.report, &c.summary);
    must(package_parse(&c.package, c.bytes, c.size, true, &err), &err);
    must(onnx_model_load(&model, k.path, &err), &err);
    check_operations(&c.package->plan);
    double *scores = run_clear(&c, k.inputs, k.row_count);
    const uint32_t count = onnx_model_score_count(model);
    for (unsigned r = 0; r < k.row_count; r++) {
        must(onnx_interpret(original, model, k.inputs + r * k.input_count, 1, &err), &err);
        for (uint32_t i = 0; i < count; i++) worst = fmax(worst, fabs(scores[r * count + i] - original[i]));
    }
    print_message("  %-18s depth %u, %u keys, in the clear %.1e from ONNX; encrypted %.1e, promised %.1e\n",
                  name, c.summary.depth, c.summary.key_count, worst, c.summary.measured_error,
                  c.summary.promised_error);
    assert_true(worst <= c.summary.polynomial_error + 1e-7);
    assert_true(c.summary.measured_error <= c.summary.promised_error);
    assert_int_equal(c.summary.rows_per_request, 1024);
    free(scores);
    onnx_model_destroy(model);
    compiled_fini(&c);
    return true;
}

static void operators_run_on_batches(void **state) {
    (void)state;
    uint32_t done = 0, all = 0;
    for (; onnx_cases[all]; all++) done += compile_case("tests/data/onnx", onnx_cases[all]);
    print_message("  %u of %u\n", done, all);
    assert_int_equal(done, all);
}

/* layers want them at the small scale, products at the large one; layers behind layers have neither */
static void values_that_layers_and_products_both_read_run_on_batches(void **state) {
    (void)state;
    static const char *const names[] = {"group_norm-21", "lrn-13", "einsum-12", "choices-18"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) assert_true(compile_case(OPSETS, names[i]));
}

/* ---- committed models, at 128 bits ---- */

static compile_options options_for(const char *path, const file_rows *r, const char *const *names,
                                   uint32_t layout) {
    return (compile_options){
        .onnx_path = path,
        .calibration = {r->matrix.values, r->matrix.row_count, (uint32_t)r->matrix.column_count, names},
        .layout = layout};
}

static void a_polynomial_network_needs_one_small_key(void **state) {
    (void)state;
    file_rows known = {0}, test = {0};
    ckks_error err = {0};
    onnx_model *model;
    compiled c;
    uint32_t differ = 0;
    rows_read(&known, MODELS "credit-g/calibration.csv");
    rows_read(&test, MODELS "credit-g/test.csv");
    const compile_options options =
        options_for(MODELS "credit-g/credit-g.onnx", &known, known.file.csv.names, COMPILE_LAYOUT_THROUGHPUT);
    compiled_make(&c, &options);
    const Ckksd__V1__ModelDescription *d = c.package->manifest->description;
    check_operations(&c.package->plan);
    assert_int_equal(d->security_bits, 128);
    assert_int_equal(c.summary.key_count, 1);
    assert_true(c.summary.key_bytes < 1100000);
    assert_int_equal(d->n_inputs, 1);
    assert_int_equal(d->inputs[0]->batch_count, 61);
    assert_int_equal(d->input_layout->kind, 2);
    assert_int_equal(d->input_layout->element_count, 61);
    assert_int_equal(d->input_layout->sample_count_max, params_slot_count_max(&c.package->params));
    assert_int_equal(d->input_layout->n_input, 0);
    assert_int_equal(d->output_layout->kind, 2);
    assert_int_equal(c.summary.depth, 4); /* the polynomial's alone: dense layers take none */
    double *scores = run_clear(&c, test.matrix.values, (uint32_t)test.matrix.row_count);
    must(onnx_model_load(&model, options.onnx_path, &err), &err);
    for (uint64_t r = 0; r < test.matrix.row_count; r++) {
        double original = 0;
        must(onnx_interpret(&original, model, test.matrix.values + r * 61, 1, &err), &err);
        differ += (scores[r] > 0) != (original > 0);
    }
    print_message("  %u of %llu labels differ; %u bits, keys %llu bytes\n", differ,
                  (unsigned long long)test.matrix.row_count, c.summary.log_qp,
                  (unsigned long long)c.summary.key_bytes);
    assert_int_equal(differ, 0);
    free(scores);
    onnx_model_destroy(model);
    compiled_fini(&c);
    rows_fini(&test);
    rows_fini(&known);
}

static void squares_need_no_key_at_all(void **state) {
    (void)state;
    file_rows known = {0}, images = {0}, labels = {0};
    compiled c;
    uint32_t right = 0;
    rows_read(&known, MODELS "mnist/calibration-images-idx3-ubyte.gz");
    known.matrix.row_count = 100;
    rows_read(&images, MODELS "mnist/test-images-idx3-ubyte.gz");
    rows_read(&labels, MODELS "mnist/test-labels-idx1-ubyte.gz");
    const compile_options options =
        options_for(MODELS "mnist/mnist.onnx", &known, NULL, COMPILE_LAYOUT_THROUGHPUT);
    compiled_make(&c, &options);
    check_operations(&c.package->plan);
    assert_int_equal(c.summary.log_n, 12);
    assert_int_equal(c.summary.key_count, 0);
    assert_int_equal(c.package->params.p_count, 0);
    assert_int_equal(c.package->params.q_count, 2);
    assert_int_equal(c.package->manifest->description->outputs[0]->component_count, 3);
    assert_true(c.summary.measured_error <= c.summary.promised_error);
    double *scores = run_clear(&c, images.matrix.values, 200);
    for (uint32_t r = 0; r < 200; r++) {
        uint32_t best = 0;
        for (uint32_t i = 1; i < 10; i++)
            if (scores[r * 10 + i] > scores[r * 10 + best]) best = i;
        right += best == (uint32_t)labels.matrix.values[r];
    }
    print_message("  %u of 200 digits are right\n", right);
    assert_true(right >= 192);
    free(scores);
    compiled_fini(&c);
    rows_fini(&labels);
    rows_fini(&images);
    rows_fini(&known);
}

static void auto_compares_both_layouts_and_keeps_the_faster(void **state) {
    (void)state;
    file_rows known = {0};
    rows_read(&known, MODELS "breast-cancer/calibration.csv");
    compile_options options = options_for(MODELS "breast-cancer/breast-cancer.onnx", &known,
                                          known.file.csv.names, COMPILE_LAYOUT_AUTO);
    options.batch = 100000;
    compiled c;
    compiled_make(&c, &options);
    assert_int_equal(c.summary.trade_count, 2);
    const compile_trade_row *many = &c.summary.trade[0], *one = &c.summary.trade[1];
    assert_int_equal(many->layout, COMPILE_LAYOUT_THROUGHPUT);
    assert_int_equal(one->layout, COMPILE_LAYOUT_LATENCY);
    assert_int_equal(one->rows_per_request, 1);
    assert_true(many->replay_ns > 0 && one->replay_ns > 0);
    const uint64_t requests = (100000 + many->rows_per_request - 1) / many->rows_per_request;
    const bool is_many = requests * many->replay_ns < 100000 * one->replay_ns;
    assert_int_equal(c.summary.layout, is_many ? COMPILE_LAYOUT_THROUGHPUT : COMPILE_LAYOUT_LATENCY);
    assert_int_equal(c.package->manifest->description->input_layout->kind, is_many ? 2 : 1);
    compiled_fini(&c);
    options.batch = 0;
    ckks_error err = {0};
    CHECK_STATUS(compile_model(&c.bytes, &c.size, &c.report, &options, &err), CKKS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "batch");
    compile_report_destroy(c.report);
    rows_fini(&known);
}

/* ---- the search ---- */

/* input, dense, square, dense: the graph of the smallest network */
static void small_graph(ir_graph *g, arena *memory, ir_kind activation) {
    ckks_error err = {0};
    static const double weights[] = {0.5, -0.25, 1, 0.75}, bias[] = {0.125, -1};
    uint32_t at;
    sparse *m;
    ir_init(g, memory);
    must(ir_append(&at, g, &(ir_node){.kind = IR_INPUT, .count = 2, .source = "x"}, &err), &err);
    must(sparse_create(&m, memory, 2, 2, 4, &err), &err);
    for (uint32_t i = 0; i < 4; i++) m->column[i] = i % 2, m->value[i] = weights[i];
    m->row_start[1] = 2, m->row_start[2] = 4;
    must(ir_linear(&at, g, at, m, bias, "first", &err), &err);
    if (activation == IR_PRODUCT)
        must(ir_append(&at, g,
                       &(ir_node){.kind = IR_PRODUCT, .count = 2, .a = at, .b = at, .source = "square"},
                       &err),
             &err);
    must(ir_linear(&at, g, at, m, bias, "last", &err), &err);
    g->output = at;
    static const double rows_of[] = {1, -1, 0.5, 2};
    must(graph_observe(g, &(calibration){rows_of, 2, 2}, NULL, &err), &err);
}

static void choices_are_secure_cheapest_first_and_by_the_batch(void **state) {
    (void)state;
    arena memory = {0};
    ir_graph g;
    throughput_choice *list;
    uint32_t count;
    ckks_error err = {0};
    small_graph(&g, &memory, IR_PRODUCT);
    must(throughput_choices(&list, &count, &g, 2048, 128, 0, &memory, &err), &err);
    assert_true(count > 0);
    for (uint32_t i = 0; i < count; i++) {
        assert_true(list[i].bits <= params_log_qp_max(list[i].log_n, 128));
        if (i) assert_true(list[i - 1].cost <= list[i].cost);
    }
    assert_int_equal(list[0].log_n, 12);
    ckks_params params;
    must(throughput_parameters(&params, &list[0], &g, &memory, &err), &err);
    assert_int_equal(params.q_count, 2);
    assert_int_equal(params.p_count, 0);
    /* twice as many rows are two requests at 2^12 and one at 2^13: the same cost of the same bits */
    throughput_choice *larger;
    uint32_t larger_count;
    must(throughput_choices(&larger, &larger_count, &g, 4096, 128, 0, &memory, &err), &err);
    assert_int_equal(larger[0].cost, 2 * list[0].cost);
    /* no ring of 2^12 has room for what 256 bits of security leave */
    must(throughput_choices(&list, &count, &g, 1, 256, 0, &memory, &err), &err);
    for (uint32_t i = 0; i < count; i++) assert_true(list[i].bits <= params_log_qp_max(list[i].log_n, 256));
    CHECK_STATUS(throughput_choices(&list, &count, &g, 1, 256, 11, &memory, &err), CKKS_INSECURE_PARAMETERS);
    arena_fini(&memory);
}

static void emitted_scales_are_what_the_plan_checks(void **state) {
    (void)state;
    for (int is_square = 0; is_square < 2; is_square++) {
        arena memory = {0};
        ir_graph g;
        throughput_choice *list;
        uint32_t count;
        ckks_error err = {0};
        small_graph(&g, &memory, is_square ? IR_PRODUCT : IR_LINEAR);
        must(throughput_choices(&list, &count, &g, 1, 128, 0, &memory, &err), &err);
        for (uint32_t i = 0; i < count; i += count / 40 + 1) {
            ckks_params params;
            emitted_program program;
            key_requirement *keys;
            uint32_t key_count;
            must(throughput_parameters(&params, &list[i], &g, &memory, &err), &err);
            ckks_status rc = program_emit_throughput(&program, &g, &list[i], &params, &memory, &err);
            if (rc == CKKS_PRECISION) continue; /* values too large for it: the search goes on */
            must(rc, &err);
            must(plan_key_requirements(&program.plan, &keys, &key_count, &err), &err);
            assert_int_equal(key_count, 0);
            free(keys);
            /* weights and biases are whole numbers over their scale: the clear plan is exact */
            for (uint32_t m = 0; m < program.plan.matrix_count; m++) {
                const plan_matrix *x = &program.plan.matrices[m];
                assert_non_null(x->bias);
                for (uint32_t k = 0; k < x->row_count * x->column_count; k++)
                    assert_true(fabs(x->weights[k] * x->scale - nearbyint(x->weights[k] * x->scale)) < 1e-6);
            }
        }
        arena_fini(&memory);
    }
}

/* ---- memory ---- */

static void every_failed_allocation_is_reported(void **state) {
    (void)state;
    onnx_case k;
    onnx_case_read(&k, onnx_cases[0]);
    const compile_options options = {.onnx_path = k.path,
                                     .calibration = {k.inputs, k.row_count, k.input_count, NULL},
                                     .log_n = 11,
                                     .allow_insecure = true,
                                     .check_rows = 1,
                                     .layout = COMPILE_LAYOUT_THROUGHPUT};
    uint64_t step = 1;
    for (uint64_t n = 1;; n += step) {
        uint8_t *bytes;
        size_t size;
        compile_report *report;
        ckks_error err = {0};
        alloc_fault_set(n);
        const ckks_status rc = compile_model(&bytes, &size, &report, &options, &err);
        const bool was_hit = alloc_fault_calls() >= n;
        alloc_fault_set(0);
        compile_report_destroy(report);
        free(bytes);
        if (!was_hit) {
            assert_int_equal(rc, CKKS_OK);
            break;
        }
        if (rc != CKKS_OK) CHECK_STATUS(rc, CKKS_RESOURCE_EXHAUSTED);
        if (n > 64) step = n / 24; /* the later ones are inside of keys and kernels, tested where they are */
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operators_run_on_batches),
        cmocka_unit_test(values_that_layers_and_products_both_read_run_on_batches),
        cmocka_unit_test(a_polynomial_network_needs_one_small_key),
        cmocka_unit_test(squares_need_no_key_at_all),
        cmocka_unit_test(auto_compares_both_layouts_and_keeps_the_faster),
        cmocka_unit_test(choices_are_secure_cheapest_first_and_by_the_batch),
        cmocka_unit_test(emitted_scales_are_what_the_plan_checks),
        cmocka_unit_test(every_failed_allocation_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
