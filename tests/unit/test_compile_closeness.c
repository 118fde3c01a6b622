/* How close polynomials are to the activations that they stand for: the default, and what overrides it. */

#include "tests/support/compiled_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
// cmocka wants these first
#include <cmocka.h>

#define CREDIT "tests/models/credit-g/"

/* a small ring, over the security table: for speed */
static compile_options credit(const file_rows *known) {
    return (compile_options){.onnx_path = CREDIT "credit-g.onnx",
                             .calibration = {known->matrix.values, known->matrix.row_count,
                                             (uint32_t)known->matrix.column_count, known->file.csv.names},
                             .log_n = 11,
                             .allow_insecure = true,
                             .check_rows = 1};
}

/* what the program computes of a row of numbers that are encrypted as they are, in the clear */
static double score_of(const compiled *c, const double *row) {
    const Ckksd__V1__ModelDescription *d = c->package->manifest->description;
    const uint32_t slot_count = params_slot_count_max(&c->package->params);
    double *input = calloc(slot_count, sizeof *input), *output = calloc(slot_count, sizeof *output);
    ckks_error err = {0};
    for (uint32_t i = 0; i < d->input_layout->element_count; i++)
        for (uint32_t at = d->input_layout->slot[i]; at < slot_count; at += d->input_layout->slot_count) {
            const Ckksd__V1__PreprocessStep *s = d->n_preprocess ? d->preprocess[0] : NULL;
            input[at] = s ? (row[i] - s->offset[s->n_offset == 1 ? 0 : i]) * s->scale[s->n_scale == 1 ? 0 : i]
                          : row[i];
        }
    must(plan_interpret(&output, &c->package->plan, (const double *const[]){input}, &err), &err);
    const double score = output[d->output_layout->slot[0]];
    free(output);
    free(input);
    return score;
}

/* rows whose label is not the original model's, and the mean difference of a score */
static uint32_t labels_that_differ(double *mean, const compiled *c, const file_rows *test) {
    onnx_model *original;
    ckks_error err = {0};
    uint32_t differ = 0;
    must(onnx_model_load(&original, CREDIT "credit-g.onnx", &err), &err);
    *mean = 0;
    for (uint64_t r = 0; r < test->matrix.row_count; r++) {
        const double *row = test->matrix.values + r * test->matrix.column_count;
        double wanted;
        must(onnx_interpret(&wanted, original, row, 1, &err), &err);
        const double got = score_of(c, row);
        differ += (got > 0) != (wanted > 0);
        *mean += fabs(got - wanted) / (double)test->matrix.row_count;
    }
    onnx_model_destroy(original);
    return differ;
}

static void polynomials_are_closer_than_the_default_error_where_labels_would_change(void **state) {
    (void)state;
    file_rows known = {0}, test = {0};
    compiled loose, chosen;
    double loose_mean, chosen_mean;
    rows_read(&known, CREDIT "calibration.csv");
    rows_read(&test, CREDIT "test.csv");
    compile_options options = credit(&known);
    compiled_make(&chosen, &options);
    options.target_error = 0.01;
    compiled_make(&loose, &options);
    const compile_summary *s = &chosen.summary;
    assert_true(s->has_labels);
    assert_int_equal(s->closeness_count, 3);
    assert_int_equal(s->chosen, 1);
    assert_true(s->closeness[0].label_changes > 1e-3);
    assert_true(s->closeness[1].label_changes <= 1e-3);
    assert_true(s->closeness[2].error < s->closeness[1].error);
    assert_true(s->closeness[1].degree_max > s->closeness[0].degree_max);
    assert_true(s->polynomial_error == s->closeness[1].error);
    const uint32_t before = labels_that_differ(&loose_mean, &loose, &test);
    const uint32_t after = labels_that_differ(&chosen_mean, &chosen, &test);
    print_message(
        "  of %llu labels %u differ with degree %u (%.2f expected), %u with degree %u (%.2f expected)\n",
        (unsigned long long)test.matrix.row_count, before, s->closeness[0].degree_max,
        s->closeness[0].label_changes * (double)test.matrix.row_count, after, s->closeness[1].degree_max,
        s->closeness[1].label_changes * (double)test.matrix.row_count);
    assert_true(before > 0);
    assert_int_equal(after, 0);
    assert_true(chosen_mean < loose_mean / 2);
    compiled_fini(&loose);
    compiled_fini(&chosen);
    rows_fini(&test);
    rows_fini(&known);
}

static void a_target_error_that_is_asked_for_is_all_that_counts(void **state) {
    (void)state;
    file_rows known = {0};
    compiled c;
    rows_read(&known, CREDIT "calibration.csv");
    compile_options options = credit(&known);
    for (int i = 0; i < 2; i++) {
        options.target_error = i ? 0.0005 : 0.01;
        compiled_make(&c, &options);
        assert_int_equal(c.summary.chosen, 0);
        assert_true(c.summary.closeness[0].error_share <= options.target_error);
        assert_true(c.summary.closeness[1].error < c.summary.closeness[0].error);
        if (!i) assert_true(c.summary.closeness[0].label_changes > 1e-3);
        compiled_fini(&c);
    }
    rows_fini(&known);
}

static void numbers_that_are_no_labels_have_the_target_error_alone(void **state) {
    (void)state;
    double values[32];
    compiled c;
    for (int i = 0; i < 32; i++) values[i] = sin(1 + 3.7 * i);
    const compile_options options = {.onnx_path = "tests/data/onnx/sigmoid.onnx",
                                     .calibration = {values, 8, 4, NULL},
                                     .log_n = 11,
                                     .allow_insecure = true,
                                     .check_rows = 1};
    compiled_make(&c, &options);
    assert_false(c.summary.has_labels);
    assert_int_equal(c.summary.chosen, 0);
    assert_true(c.summary.closeness_count >= 1);
    assert_true(c.summary.closeness[0].label_changes < 0);
    assert_true(c.summary.closeness[0].error_share <= 0.01);
    compiled_fini(&c);
}

static void closer_polynomials_that_no_parameters_serve_are_given_up(void **state) {
    (void)state;
    file_rows known = {0};
    compiled shallow, c;
    rows_read(&known, CREDIT "calibration.csv");
    compile_options options = credit(&known);
    options.target_error = 0.01;
    compiled_make(&shallow, &options);
    options.target_error = 0;
    options.log_n = 0;
    options.compatible_with = &shallow.package->params; /* a level too few for the closer ones */
    compiled_make(&c, &options);
    assert_int_equal(c.summary.closeness_count, 3);
    assert_int_equal(c.summary.chosen, 0);
    assert_int_equal(c.summary.depth, shallow.summary.depth);
    assert_true(c.summary.polynomial_error == shallow.summary.polynomial_error);
    assert_true(c.summary.label_changes > 1e-3);
    char *text = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&text, &size);
    assert_non_null(to);
    compile_report_print(to, c.report);
    fclose(to);
    assert_non_null(strstr(text, "closer polynomials would keep more labels"));
    free(text);
    compiled_fini(&c);
    compiled_fini(&shallow);
    rows_fini(&known);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(polynomials_are_closer_than_the_default_error_where_labels_would_change),
        cmocka_unit_test(a_target_error_that_is_asked_for_is_all_that_counts),
        cmocka_unit_test(numbers_that_are_no_labels_have_the_target_error_alone),
        cmocka_unit_test(closer_polynomials_that_no_parameters_serve_are_given_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
