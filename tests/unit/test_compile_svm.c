/* Support vector machines of scikit-learn, every kernel: in the clear, and compiled with the encrypted check;
 * labels and probabilities as scikit-learn's own. */
#include "client/compile/compile.h"
#include "client/lib/crypto.h"
#include "tests/support/alloc_fault.h"
#include "tests/support/onnx_failures.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
// cmocka wants these first
#include <cmocka.h>

#define ROWS      24u
#define WIDTH_MAX 8u

typedef struct svm_case {
    char path[80];
    uint32_t row_count, width, share_count;
    double rows[ROWS * WIDTH_MAX], shares[ROWS][4];
    char labels[ROWS][32];
} svm_case;

static void must(ckks_status rc, const ckks_error *err) {
    if (rc != CKKS_OK) fail_msg("%s: %s: %s", ckks_status_name(rc), err->field, err->message);
}

static double word_number(FILE *file) {
    char word[64];
    assert_int_equal(fscanf(file, "%63s", word), 1);
    return strtod(word, NULL);
}

static void case_read(svm_case *c, const char *name) {
    snprintf(c->path, sizeof c->path, "tests/data/svm/%s.txt", name);
    FILE *file = fopen(c->path, "r");
    assert_non_null(file);
    c->row_count = (uint32_t)word_number(file), c->width = (uint32_t)word_number(file);
    c->share_count = (uint32_t)word_number(file);
    assert_true(c->row_count == ROWS && c->width <= WIDTH_MAX && c->share_count <= 4);
    for (uint32_t r = 0; r < ROWS; r++) {
        for (uint32_t i = 0; i < c->width; i++) c->rows[r * c->width + i] = word_number(file);
        assert_int_equal(fscanf(file, "%31s", c->labels[r]), 1);
        for (uint32_t i = 0; i < c->share_count; i++) c->shares[r][i] = word_number(file);
    }
    fclose(file);
    snprintf(c->path, sizeof c->path, "tests/data/svm/%s.onnx", name);
}

static ckks_status compile_case(uint8_t **image, size_t *size, compile_summary *summary, const svm_case *c,
                                ckks_error *err) {
    const compile_options options = {.onnx_path = c->path,
                                     .calibration = {c->rows, ROWS, c->width, NULL},
                                     .log_n = 11,
                                     .allow_insecure = true,
                                     .check_rows = 2};
    compile_report *report = NULL;
    const ckks_status rc = compile_model(image, size, &report, &options, err);
    if (rc == CKKS_OK) compile_report_summary(report, summary);
    compile_report_destroy(report);
    return rc;
}

/* the scores of the original model through the steps that the package gives the client */
static void check_case(const char *name) {
    static const client_model_options trusting = {.allow_insecure = true};
    svm_case c;
    ckks_error err = {0};
    onnx_model *m;
    client_model *client;
    compile_summary summary;
    uint8_t *image;
    size_t size;
    double scores[8], worst = 0;
    case_read(&c, name);
    must(onnx_model_load(&m, c.path, &err), &err);
    must(compile_case(&image, &size, &summary, &c, &err), &err);
    must(client_model_from_file(&client, image, size, &trusting, &err), &err);
    assert_true(client->score_count == onnx_model_score_count(m) && client->score_count <= 8);
    for (uint32_t r = 0; r < ROWS; r++) {
        client_prediction p;
        must(onnx_interpret(scores, m, c.rows + r * c.width, 1, &err), &err);
        for (uint32_t i = 0; i < client->score_count; i++) scores[i] /= client_score_factor(client);
        must(client_postprocess(&p, client, scores, &err), &err);
        if (strcmp(name, "regression") == 0) {
            worst = fmax(worst, fabs(p.values[0] - strtod(c.labels[r], NULL)));
        } else if (strcmp(p.label, c.labels[r]) != 0) {
            fail_msg("%s: row %u is '%s', scikit-learn says '%s'", name, r, p.label, c.labels[r]);
        }
        if (c.share_count) assert_int_equal(p.value_count, c.share_count);
        for (uint32_t i = 0; i < c.share_count; i++) worst = fmax(worst, fabs(p.values[i] - c.shares[r][i]));
        client_prediction_fini(&p);
    }
    print_message("  %-10s depth %2u, encrypted error %.1e, off scikit-learn by %.1e, agreement %.3f\n", name,
                  summary.depth, summary.measured_error, worst, summary.agreement);
    /* weights are binary32, and coupling stops at 0.005 / classes, where both stop */
    assert_true(worst < 1e-3);
    assert_true(summary.checked_rows == 2 && summary.measured_error <= summary.promised_error);
    /* rows on the edge of what is usual score zero, which the polynomial may turn */
    assert_true(summary.agreement >= (strcmp(name, "novelty") == 0 ? 0.85 : 0.95));
    client_model_destroy(client);
    onnx_model_destroy(m);
    free(image);
}

static void every_kernel_runs_encrypted_and_says_what_scikit_learn_says(void **state) {
    (void)state;
    static const char *const names[] = {"linear2", "linear3",  "rbf3", "rbf2",       "square2",
                                        "cubic3",  "sigmoid2", "nu3",  "regression", "novelty"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) check_case(names[i]);
}

static void outputs_made_of_votes_are_left_out(void **state) {
    (void)state;
    svm_case c;
    ckks_error err = {0};
    compile_report *report = NULL;
    uint8_t *image;
    size_t size, text_size;
    char *text = NULL;
    case_read(&c, "rbf3");
    const compile_options options = {.onnx_path = c.path,
                                     .calibration = {c.rows, ROWS, c.width, NULL},
                                     .log_n = 11,
                                     .allow_insecure = true,
                                     .check_rows = 1};
    must(compile_model(&image, &size, &report, &options, &err), &err);
    FILE *to = open_memstream(&text, &text_size);
    compile_report_print(to, report);
    fclose(to);
    assert_non_null(strstr(text, "left out"));
    assert_non_null(strstr(text, "output_probability"));
    free(text);
    free(image);
    compile_report_destroy(report);
}

static void couplings_add_up_and_follow_the_shares(void **state) {
    (void)state;
    ckks_error err = {0};
    /* shares of p = (0.6, 0.3, 0.1) */
    const double shares[] = {0.6 / 0.9, 0.6 / 0.7, 0.3 / 0.4}, expected[] = {0.6, 0.3, 0.1};
    double p[3], total = 0;
    must(client_pair_couple(p, shares, 3, &err), &err);
    for (int i = 0; i < 3; i++) {
        total += p[i];
        assert_true(fabs(p[i] - expected[i]) < 5e-3);
    }
    assert_true(fabs(total - 1) < 1e-12);
    assert_int_equal(client_pair_classes(3), 3);
    assert_int_equal(client_pair_classes(4), 0);
    assert_int_equal(client_pair_winner((const double[]){1, -1, 1}, 3), 0); /* one vote each: the first */
    alloc_fault_set(1);
    assert_int_equal(client_pair_couple(p, shares, 3, &err), CKKS_RESOURCE_EXHAUSTED);
    alloc_fault_set(0);
}

static void failing_allocations_of_a_machine_are_reported(void **state) {
    (void)state;
    onnx_load_with_failing_allocations("tests/data/svm/rbf2.onnx");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kernel_runs_encrypted_and_says_what_scikit_learn_says),
        cmocka_unit_test(outputs_made_of_votes_are_left_out),
        cmocka_unit_test(couplings_add_up_and_follow_the_shares),
        cmocka_unit_test(failing_allocations_of_a_machine_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
