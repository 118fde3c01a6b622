/*
 * Models of tests/data/opsets compiled and run under encryption: the operators that are made of polynomials,
 * products of two encrypted values, and places that constants name. What is decrypted is the clear polynomial
 * model's within the promise, and the original's within the target.
 */
#include "client/compile/compile.h"
#include "tests/support/onnx_cases.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
// cmocka wants these first
#include <cmocka.h>

#define FOLDER "tests/data/opsets"
#define TARGET 0.05

static const char *const normalisations[] = {"group_norm-18",    "group_norm-21", "rms_norm-23",
                                             "mean_variance-13", "lp_norm-22",    "lp_norm_sizes-22",
                                             "lrn-13",           "lp_pool-22",    "global_lp_pool-22"};
static const char *const products[] = {"softmax_within-13", "log_softmax_within-13", "attention-17",
                                       "einsum-12",         "extremes-13",           "choices-18"};
static const char *const places[] = {"placement-18", "spectrum-17", "frames-17", "dft-20", "constants-17"};

static void run(const char *name) {
    onnx_case numbers;
    compile_report *report = NULL;
    compile_summary s;
    uint8_t *package = NULL;
    size_t size = 0;
    ckks_error err = {0};
    onnx_case_read_from(&numbers, FOLDER, name);
    const compile_options options = {
        .onnx_path = numbers.path,
        .calibration = {numbers.inputs, numbers.row_count, numbers.input_count, NULL},
        .log_n = 11, /* over the security table: for speed */
        .allow_insecure = true,
        .target_error = TARGET,
        .check_rows = 2};
    if (compile_model(&package, &size, &report, &options, &err) != CKKS_OK)
        fail_msg("%s: %s: %s", name, err.field, err.message);
    compile_report_summary(report, &s);
    print_message("  %-22s depth %2u, polynomials %.1e, encrypted %.1e, promised %.1e, scores %.2g to %.2g\n",
                  name, s.depth, s.polynomial_error, s.measured_error, s.promised_error, s.score_minimum,
                  s.score_maximum);
    assert_int_equal(s.checked_rows, 2);
    assert_true(s.measured_error <= s.promised_error);
    assert_true(s.polynomial_error <= TARGET * (s.score_maximum - s.score_minimum) * 1.1);
    compile_report_destroy(report);
    free(package);
}

static void normalisations_by_the_rows_own_statistics_run_encrypted(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof normalisations / sizeof *normalisations; i++) run(normalisations[i]);
}
static void softmaxes_attention_and_maxima_of_encrypted_values_run_encrypted(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) run(products[i]);
}
static void places_and_spectra_that_constants_name_run_encrypted(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) run(places[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(normalisations_by_the_rows_own_statistics_run_encrypted),
        cmocka_unit_test(softmaxes_attention_and_maxima_of_encrypted_values_run_encrypted),
        cmocka_unit_test(places_and_spectra_that_constants_name_run_encrypted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
