/* Whole compilations: every operator and every committed model becomes a package that runs encrypted. */
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

/* a small ring, over the security table: for speed */
static compile_options fast(const char *path, const data_matrix *rows, const char *const *names) {
    return (compile_options){
        .onnx_path = path,
        .calibration = {rows->values, rows->row_count, (uint32_t)rows->column_count, names},
        .log_n = 11,
        .allow_insecure = true,
        .check_rows = 3};
}

/* what a client does before encryption, what the program computes, what it picks out afterwards: in the clear
 */
static void run_clear(double *scores, const compiled *c, const double *row) {
    const Ckksd__V1__ModelDescription *d = c->package->manifest->description;
    const uint32_t slot_count = params_slot_count_max(&c->package->params);
    double *input = calloc(slot_count, sizeof *input), *output = calloc(slot_count, sizeof *output);
    ckks_error err = {0};
    for (uint32_t i = 0; i < d->input_layout->element_count; i++) {
        double x = row[i];
        if (d->n_preprocess) {
            const Ckksd__V1__PreprocessStep *s = d->preprocess[0];
            x = (x - s->offset[s->n_offset == 1 ? 0 : i]) * s->scale[s->n_scale == 1 ? 0 : i];
        }
        for (uint32_t at = d->input_layout->slot[i]; at < slot_count; at += d->input_layout->slot_count)
            input[at] = x;
    }
    must(plan_interpret(&output, &c->package->plan, (const double *const[]){input}, &err), &err);
    for (uint32_t i = 0; i < d->output_layout->element_count; i++) {
        scores[i] = output[d->output_layout->slot[i]];
        if (d->n_postprocess && d->postprocess[0]->kind == 1) scores[i] *= d->postprocess[0]->scale[0];
    }
    free(output);
    free(input);
}

static uint32_t largest(const double *scores, uint32_t count) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < count; i++)
        if (scores[i] > scores[best]) best = i;
    return best;
}

/* ---- every operator ---- */

static void compile_case(const char *name) {
    onnx_case k;
    double scores[ONNX_CASE_WIDTH_MAX] = {0}, original[ONNX_CASE_WIDTH_MAX], worst = 0;
    ckks_error err = {0};
    onnx_model *model;
    compiled c;
    onnx_case_read(&k, name);
    const data_matrix m = {.row_count = k.row_count, .column_count = k.input_count, .values = k.inputs};
    compile_options options = fast(k.path, &m, NULL);
    if (strcmp(name, "relu") == 0) options.target_error = 0.05;
    must(compiled_try(&c, &options, &err), &err);
    must(onnx_model_load(&model, k.path, &err), &err);
    const uint32_t count = onnx_model_score_count(model);
    assert_true(count <= ONNX_CASE_WIDTH_MAX);
    for (unsigned r = 0; r < k.row_count; r++) {
        run_clear(scores, &c, k.inputs + r * k.input_count);
        must(onnx_interpret(original, model, k.inputs + r * k.input_count, 1, &err), &err);
        for (uint32_t i = 0; i < count; i++) worst = fmax(worst, fabs(scores[i] - original[i]));
    }
    print_message("  %-18s depth %u, %2u keys, in the clear %.1e from ONNX; encrypted %.1e, promised %.1e\n",
                  name, c.summary.depth, c.summary.key_count, worst, c.summary.measured_error,
                  c.summary.promised_error);
    assert_true(worst <= c.summary.polynomial_error + 1e-7);
    assert_true(c.summary.measured_error <= c.summary.promised_error);
    assert_int_equal(c.summary.checked_rows, 3);
    assert_true(c.package->plan.has_self_test);
    onnx_model_destroy(model);
    compiled_fini(&c);
}

static void every_operator_runs_encrypted(void **state) {
    (void)state;
    for (size_t i = 0; onnx_cases[i]; i++) compile_case(onnx_cases[i]);
}

/* ---- committed models ---- */

static void logistic_regression_compiles_at_128_bits(void **state) {
    (void)state;
    file_rows calibration = {0}, test = {0};
    ckks_error err = {0};
    compiled c;
    rows_read(&calibration, MODELS "breast-cancer/calibration.csv");
    rows_read(&test, MODELS "breast-cancer/test.csv");
    const compile_options options = {.onnx_path = MODELS "breast-cancer/breast-cancer.onnx",
                                     .calibration = {calibration.matrix.values, calibration.matrix.row_count,
                                                     (uint32_t)calibration.matrix.column_count,
                                                     calibration.file.csv.names}};
    must(compiled_try(&c, &options, &err), &err);
    const Ckksd__V1__ModelDescription *d = c.package->manifest->description;
    assert_string_equal(d->name, "breast-cancer");
    assert_int_equal(d->security_bits, 128);
    assert_false(d->insecure);
    assert_int_equal(c.summary.log_n, 12);
    assert_int_equal(c.summary.depth, 1);
    assert_int_equal(d->n_columns, 30);
    assert_string_equal(d->columns[0]->name, "mean_radius");
    assert_string_equal(d->columns[29]->name, "worst_fractal_dimension");
    assert_int_equal(d->n_preprocess, 1);
    assert_int_equal(d->preprocess[0]->n_offset, 30);
    /* sigmoid, argmax, labels: the classifier's link and classes are the client's */
    assert_int_equal(d->n_postprocess, 3);
    assert_int_equal(d->postprocess[0]->kind, 3);
    assert_int_equal(d->postprocess[1]->kind, 4);
    assert_int_equal(d->postprocess[2]->kind, 5);
    assert_string_equal(d->postprocess[2]->labels[0], "malignant");
    assert_true(d->promised_error > 0 && d->promised_error < 1e-2);
    /* every test row is inside of what the description declares */
    for (uint64_t r = 0; r < test.matrix.row_count; r++)
        for (size_t i = 0; i < d->n_columns; i++) {
            const double x = test.matrix.values[r * 30 + i];
            assert_true(x >= d->columns[i]->minimum && x <= d->columns[i]->maximum);
        }
    assert_true(c.summary.agreement == 1.0);
    compiled_fini(&c);
    rows_fini(&test);
    rows_fini(&calibration);
}

static void digits_keep_their_accuracy(void **state) {
    (void)state;
    file_rows calibration = {0}, images = {0}, labels = {0};
    ckks_error err = {0};
    compiled c;
    double scores[10];
    uint32_t right = 0;
    rows_read(&calibration, MODELS "mnist/calibration-images-idx3-ubyte.gz");
    rows_read(&images, MODELS "mnist/test-images-idx3-ubyte.gz");
    rows_read(&labels, MODELS "mnist/test-labels-idx1-ubyte.gz");
    compile_options options = fast(MODELS "mnist/mnist.onnx", &calibration.matrix, NULL);
    must(compiled_try(&c, &options, &err), &err);
    assert_int_equal(c.summary.depth, 3);
    assert_int_equal(images.matrix.row_count, 200);
    for (uint32_t r = 0; r < 200; r++) {
        run_clear(scores, &c, images.matrix.values + (size_t)r * 784);
        right += largest(scores, 10) == (uint32_t)labels.matrix.values[r];
    }
    print_message("  %u of 200 digits are right\n", right);
    assert_true(right >= 192);
    /* division by 255 is the client's; 64 diagonals and a fold of 16, not 784 */
    assert_true(fabs(c.package->manifest->description->preprocess[0]->scale[0] * 255 - 1) < 1e-6);
    assert_true(c.summary.rotation_count <= 40);
    compiled_fini(&c);
    rows_fini(&labels);
    rows_fini(&images);
    rows_fini(&calibration);
}

static void silu_network_agrees_with_its_original(void **state) {
    (void)state;
    file_rows calibration = {0}, test = {0};
    ckks_error err = {0};
    onnx_model *model;
    compiled c;
    uint32_t differ = 0;
    rows_read(&calibration, MODELS "credit-g/calibration.csv");
    rows_read(&test, MODELS "credit-g/test.csv");
    assert_int_equal(calibration.matrix.column_count, 61);
    compile_options options =
        fast(MODELS "credit-g/credit-g.onnx", &calibration.matrix, calibration.file.csv.names);
    must(compiled_try(&c, &options, &err), &err);
    must(onnx_model_load(&model, options.onnx_path, &err), &err);
    for (uint64_t r = 0; r < test.matrix.row_count; r++) {
        double score = 0, original = 0;
        run_clear(&score, &c, test.matrix.values + r * 61);
        must(onnx_interpret(&original, model, test.matrix.values + r * 61, 1, &err), &err);
        assert_true(fabs(score - original) < 0.2);
        differ += (score > 0) != (original > 0);
    }
    print_message("  %u of %llu labels differ from the original model's\n", differ,
                  (unsigned long long)test.matrix.row_count);
    assert_true(differ <= 2);
    /* a lone sigmoid at the end: probability, then a decision between two classes */
    const Ckksd__V1__ModelDescription *d = c.package->manifest->description;
    assert_int_equal(d->n_postprocess, 2);
    assert_int_equal(d->postprocess[0]->kind, 3);
    assert_int_equal(d->postprocess[1]->kind, 6);
    assert_true(d->postprocess[1]->threshold == 0.5);
    onnx_model_destroy(model);
    compiled_fini(&c);
    rows_fini(&test);
    rows_fini(&calibration);
}

static void no_calibration_row_enters_the_package(void **state) {
    (void)state;
    file_rows calibration = {0};
    ckks_error err = {0};
    compiled c;
    rows_read(&calibration, MODELS "credit-g/calibration.csv");
    compile_options options =
        fast(MODELS "credit-g/credit-g.onnx", &calibration.matrix, calibration.file.csv.names);
    must(compiled_try(&c, &options, &err), &err);
    const Ckksd__V1__PreprocessStep *step = c.package->manifest->description->preprocess[0];
    /* the amount asked for is different in nearly every row: neither raw nor standardised, in either width */
    uint32_t column = 0;
    while (strcmp(calibration.file.csv.names[column], "credit_amount") != 0) column++;
    for (uint64_t r = 0; r < calibration.matrix.row_count; r++) {
        const double raw = calibration.matrix.values[r * 61 + column];
        const double standard = (raw - step->offset[column]) * step->scale[column];
        const float narrow = (float)raw, narrow_standard = (float)standard;
        assert_null(memmem(c.bytes, c.size, &raw, sizeof raw));
        assert_null(memmem(c.bytes, c.size, &standard, sizeof standard));
        assert_null(memmem(c.bytes, c.size, &narrow, sizeof narrow));
        assert_null(memmem(c.bytes, c.size, &narrow_standard, sizeof narrow_standard));
    }
    /* the search can find something: a weight's offset is there */
    assert_non_null(memmem(c.bytes, c.size, &step->offset[column], sizeof(double)));
    compiled_fini(&c);
    rows_fini(&calibration);
}

/* ---- refusals ---- */

static const double some_rows[] = {0.1, 0.2, 0.3, 0.4, -0.5, 0.6, 0.7, -0.8};

typedef struct option_case {
    const char *field;
    ckks_status status;
    compile_options options;
} option_case;

static void wrong_options_are_refused_by_name(void **state) {
    (void)state;
    static const double missing[] = {0.1, (double)NAN, 0.3, 0.4};
    const char *silu = "tests/data/onnx/silu.onnx";
    const compile_calibration good = {some_rows, 2, 4, NULL};
    const option_case table[] = {
        {"onnx_path", CKKS_INVALID_ARGUMENT, {.calibration = good}},
        {"tests/absent.onnx", CKKS_NOT_FOUND, {.onnx_path = "tests/absent.onnx", .calibration = good}},
        {"calibration", CKKS_INVALID_ARGUMENT, {.onnx_path = silu}},
        {"calibration", CKKS_INVALID_ARGUMENT, {.onnx_path = silu, .calibration = {some_rows, 2, 3, NULL}}},
        {"calibration", CKKS_INVALID_ARGUMENT, {.onnx_path = silu, .calibration = {missing, 1, 4, NULL}}},
        {"security_bits",
         CKKS_INVALID_ARGUMENT,
         {.onnx_path = silu, .calibration = good, .security_bits = 80}},
        {"log_n", CKKS_INVALID_ARGUMENT, {.onnx_path = silu, .calibration = good, .log_n = 30}},
        {"target_error", CKKS_INVALID_ARGUMENT, {.onnx_path = silu, .calibration = good, .target_error = -1}},
        {"range_margin", CKKS_INVALID_ARGUMENT, {.onnx_path = silu, .calibration = good, .range_margin = 99}},
        /* four levels do not fit 2^12 at any security */
        {"params", CKKS_INSECURE_PARAMETERS, {.onnx_path = silu, .calibration = good, .log_n = 12}},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        compiled c;
        ckks_error err;
        const ckks_status rc = compiled_try(&c, &table[i].options, &err);
        if (rc != table[i].status ||
            (table[i].status != CKKS_INSECURE_PARAMETERS && strcmp(err.field, table[i].field) != 0))
            fail_msg("case %zu: %s, field '%s', %s", i, ckks_status_name(rc), err.field, err.message);
        compiled_fini(&c);
    }
}

static void insecure_package_is_marked_for_ever(void **state) {
    (void)state;
    const compile_options options = {.onnx_path = "tests/data/onnx/silu.onnx",
                                     .calibration = {some_rows, 2, 4, NULL},
                                     .log_n = 11,
                                     .allow_insecure = true,
                                     .check_rows = 1};
    compiled c;
    ckks_error err = {0};
    package *refused = NULL;
    must(compiled_try(&c, &options, &err), &err);
    assert_true(c.package->manifest->description->insecure);
    assert_int_equal(c.summary.security_bits, 0);
    CHECK_STATUS(package_parse(&refused, c.bytes, c.size, false, &err), CKKS_INSECURE_PARAMETERS);
    assert_null(refused);
    compiled_fini(&c);
}

static char *printed(const compile_report *report, bool is_json) {
    char *text = NULL;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    if (is_json)
        compile_report_json(to, report);
    else
        compile_report_print(to, report);
    fclose(to);
    return text;
}

static void report_names_every_refused_operator(void **state) {
    (void)state;
    compiled c;
    ckks_error err;
    const compile_options options = {.onnx_path = "tests/data/onnx/refused.onnx",
                                     .calibration = {some_rows, 2, 4, NULL}};
    const compile_refusal *list;
    CHECK_STATUS(compiled_try(&c, &options, &err), CKKS_UNSUPPORTED);
    assert_int_equal(compile_report_refusals(c.report, &list), 3);
    static const char *const nodes[] = {"maximum_1", "floor_1", "ratio"};
    char *text = printed(c.report, false), *json = printed(c.report, true);
    for (int i = 0; i < 3; i++) {
        assert_string_equal(list[i].node, nodes[i]);
        assert_true(list[i].reason[0] && list[i].way_out[0]);
        assert_non_null(strstr(text, nodes[i]));
        assert_non_null(strstr(json, nodes[i]));
    }
    assert_non_null(strstr(text, "way out"));
    assert_non_null(strstr(json, "\"compiled\":false"));
    free(json);
    free(text);
    compiled_fini(&c);
}

static void too_deep_says_which_levels_and_what_takes_most(void **state) {
    (void)state;
    compiled c;
    ckks_error err = {0};
    const compile_options options = {.onnx_path = "tests/data/onnx/deep.onnx",
                                     .calibration = {some_rows, 2, 4, NULL}};
    CHECK_STATUS(compiled_try(&c, &options, &err), CKKS_UNSUPPORTED);
    assert_string_equal(err.field, "depth");
    print_message("  %s\n", err.message);
    assert_non_null(strstr(err.message, "34 are available"));
    assert_non_null(strstr(err.message, "tanh_"));
    assert_non_null(strstr(err.message, "degree"));
    compiled_fini(&c);
}

static void key_budget_is_kept_or_says_what_is_possible(void **state) {
    (void)state;
    file_rows calibration = {0};
    ckks_error err = {0};
    compiled c;
    rows_read(&calibration, MODELS "mnist/calibration-images-idx3-ubyte.gz");
    compile_options options = fast(MODELS "mnist/mnist.onnx", &calibration.matrix, NULL);
    must(compiled_try(&c, &options, &err), &err);
    const uint64_t free_bytes = c.summary.key_bytes;
    const uint32_t free_count = c.summary.key_count;
    compiled_fini(&c);
    options.key_budget_bytes = free_bytes - free_bytes / 20;
    must(compiled_try(&c, &options, &err), &err);
    print_message("  %u keys of %llu bytes, or %u of %llu\n", free_count, (unsigned long long)free_bytes,
                  c.summary.key_count, (unsigned long long)c.summary.key_bytes);
    assert_true(c.summary.key_bytes <= options.key_budget_bytes);
    compiled_fini(&c);
    options.key_budget_bytes = 1000;
    CHECK_STATUS(compiled_try(&c, &options, &err), CKKS_TOO_LARGE);
    assert_string_equal(err.field, "key_budget");
    compiled_fini(&c);
    rows_fini(&calibration);
}

static void report_tells_what_was_made(void **state) {
    (void)state;
    const compile_options options = {.onnx_path = "tests/data/onnx/silu.onnx",
                                     .calibration = {some_rows, 2, 4, NULL},
                                     .log_n = 11,
                                     .allow_insecure = true,
                                     .check_rows = 1};
    compiled c;
    ckks_error err = {0};
    must(compiled_try(&c, &options, &err), &err);
    char *text = printed(c.report, false), *json = printed(c.report, true);
    static const char *const in_text[] = {"2^11",      "INSECURE", "depth", "keys",
                                          "precision", "first",    "silu",  "degree"};
    for (size_t i = 0; i < sizeof in_text / sizeof *in_text; i++)
        if (!strstr(text, in_text[i])) fail_msg("'%s' is not in the report:\n%s", in_text[i], text);
    assert_non_null(strstr(json, "\"log_n\":11"));
    assert_non_null(strstr(json, "\"kind\":\"silu\""));
    free(json);
    free(text);
    compiled_fini(&c);
}

static void failing_allocations_leave_nothing_behind(void **state) {
    (void)state;
    const compile_options options = {.onnx_path = "tests/data/onnx/gemm.onnx",
                                     .calibration = {some_rows, 1, 5, NULL},
                                     .log_n = 10,
                                     .allow_insecure = true,
                                     .check_rows = 1};
    compiled c;
    ckks_error err = {0};
    alloc_fault_set(UINT64_MAX);
    must(compiled_try(&c, &options, &err), &err);
    const uint64_t total = alloc_fault_calls();
    compiled_fini(&c);
    uint32_t refused = 0;
    for (uint64_t nth = 1; nth < total; nth += 1 + total / 20) {
        alloc_fault_set(nth);
        const ckks_status rc = compiled_try(&c, &options, &err);
        alloc_fault_set(0);
        refused += rc != CKKS_OK;
        compiled_fini(&c);
    }
    print_message("  %llu allocations, %u of 20 failures refused the compilation\n",
                  (unsigned long long)total, refused);
    assert_true(refused >= 15);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operator_runs_encrypted),
        cmocka_unit_test(logistic_regression_compiles_at_128_bits),
        cmocka_unit_test(digits_keep_their_accuracy),
        cmocka_unit_test(silu_network_agrees_with_its_original),
        cmocka_unit_test(no_calibration_row_enters_the_package),
        cmocka_unit_test(wrong_options_are_refused_by_name),
        cmocka_unit_test(insecure_package_is_marked_for_ever),
        cmocka_unit_test(report_names_every_refused_operator),
        cmocka_unit_test(too_deep_says_which_levels_and_what_takes_most),
        cmocka_unit_test(key_budget_is_kept_or_says_what_is_possible),
        cmocka_unit_test(report_tells_what_was_made),
        cmocka_unit_test(failing_allocations_leave_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
