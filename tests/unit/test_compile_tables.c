/* Pipelines over tables: scikit-learn's own predictions (tests/models/tables.py) are what the model in the
 * clear, the client's steps and the compiled program must give. */
#include "client/compile/compile.h"
#include "client/lib/crypto.h"
#include "client/lib/data.h"
#include "tests/support/alloc_fault.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
// cmocka wants these first
#include <cmocka.h>

#define CHECK_STATUS(call, expected) assert_string_equal(ckks_status_name(call), ckks_status_name(expected))

static void must(ckks_status rc, const ckks_error *err) {
    char text[480];
    if (rc != CKKS_OK) fail_msg("%s", ckks_error_print(err, text, sizeof text));
}

/* ---- rows of a file, as a model's columns take them ---- */

typedef struct table {
    data_file file;
    data_matrix rows;
    const char **names;
    uint32_t ignored;
} table;

static ckks_status table_read(table *t, const onnx_model *model, const char *path, ckks_error *err) {
    *t = (table){0};
    must(data_file_read(&t->file, path, err), err);
    const uint32_t count = onnx_model_input_count(model);
    data_column *columns = calloc(count, sizeof *columns);
    t->names = calloc(count, sizeof *t->names);
    for (uint32_t i = 0; i < count; i++) {
        const onnx_column c = onnx_model_column(model, i);
        columns[i] = (data_column){.name = c.name ? c.name : t->file.csv.names[i],
                                   .is_categorical = c.is_text,
                                   .categories = c.categories,
                                   .category_count = c.category_count,
                                   .refuses_unknown = c.refuses_unknown,
                                   .refuses_missing = !c.takes_missing};
        t->names[i] = columns[i].name;
    }
    const ckks_status rc = csv_select(&t->rows, &t->ignored, &t->file.csv, columns, count, NULL, err);
    free(columns);
    return rc;
}

static void table_fini(table *t) {
    free(t->names);
    data_matrix_fini(&t->rows);
    data_file_fini(&t->file);
}

/* ---- a compiled model and the client's view of it ---- */

typedef struct subject {
    char folder[160], path[200];
    onnx_model *model;
    table calibration, test;
    uint8_t *bytes;
    size_t size;
    compile_report *report;
    compile_summary summary;
    package *package;
    client_model *client;
} subject;

static void subject_open(subject *s, const char *folder) {
    ckks_error err = {0};
    const char *slash = strrchr(folder, '/');
    char path[240];
    *s = (subject){0};
    snprintf(s->folder, sizeof s->folder, "%s", folder);
    snprintf(s->path, sizeof s->path, "%s%s.onnx", folder, slash);
    must(onnx_model_load(&s->model, s->path, &err), &err);
    assert_true(onnx_model_is_table(s->model));
    snprintf(path, sizeof path, "%s/calibration.csv", folder);
    must(table_read(&s->calibration, s->model, path, &err), &err);
    snprintf(path, sizeof path, "%s/test.csv", folder);
    must(table_read(&s->test, s->model, path, &err), &err);
}

static void subject_compile(subject *s) {
    ckks_error err = {0};
    const compile_options options = {
        .onnx_path = s->path,
        .calibration = {s->calibration.rows.values, s->calibration.rows.row_count,
                        (uint32_t)s->calibration.rows.column_count, s->calibration.names},
        .log_n = 11,
        .allow_insecure = true,
        .check_rows = 2};
    const client_model_options trusting = {.allow_insecure = true};
    must(compile_model(&s->bytes, &s->size, &s->report, &options, &err), &err);
    compile_report_summary(s->report, &s->summary);
    must(package_parse(&s->package, s->bytes, s->size, true, &err), &err);
    must(client_model_from_file(&s->client, s->bytes, s->size, &trusting, &err), &err);
}

static void subject_close(subject *s) {
    client_model_destroy(s->client);
    package_destroy(s->package);
    compile_report_destroy(s->report);
    free(s->bytes);
    table_fini(&s->calibration);
    table_fini(&s->test);
    onnx_model_destroy(s->model);
}

/* a row through the client's steps and the program's plan, in the clear */
static void run_program(double *scores, const subject *s, const double *row) {
    ckks_error err = {0};
    const uint32_t slots = client_slot_count(s->client), full = params_slot_count_max(&s->client->params);
    double *elements = calloc(s->client->element_count, sizeof *elements);
    double *packed = calloc(slots, sizeof *packed), *input = calloc(full, sizeof *input);
    double *output = calloc(full, sizeof *output);
    assert_int_equal(s->client->input_count, 1);
    must(client_preprocess(elements, s->client, row, &err), &err);
    must(client_slots(packed, s->client, elements, 1, 0, &err), &err);
    for (uint32_t i = 0; i < full; i++) input[i] = packed[i % slots];
    must(plan_interpret(&output, &s->package->plan, (const double *const[]){input}, &err), &err);
    must(client_scores(scores, s->client, (const double *const[]){output}, 1, &err), &err);
    free(elements);
    free(packed);
    free(input);
    free(output);
}

/* what scikit-learn says of row `r`: a label and numbers */
typedef struct expectation {
    FILE *file;
    char label[64];
    double values[8];
    uint32_t count;
} expectation;

static void expect_next(expectation *e) {
    char line[512], *rest = NULL;
    assert_non_null(fgets(line, sizeof line, e->file));
    snprintf(e->label, sizeof e->label, "%s", strtok_r(line, "\t\n", &rest));
    e->count = 0;
    for (char *cell; (cell = strtok_r(NULL, "\t\n", &rest));) e->values[e->count++] = strtod(cell, NULL);
}

static double check_prediction(const subject *s, const double *scores, const expectation *e,
                               double tolerance) {
    ckks_error err = {0};
    client_prediction p;
    double worst = 0;
    must(client_postprocess(&p, s->client, scores, &err), &err);
    assert_int_equal(p.value_count, e->count);
    for (uint32_t i = 0; i < e->count; i++)
        worst = fmax(worst, fabs(p.values[i] - e->values[i]) / fmax(1, fabs(e->values[i])));
    if (worst > tolerance) fail_msg("%s: %g from scikit-learn, %g is allowed", s->folder, worst, tolerance);
    if (strcmp(e->label, "-") == 0)
        assert_false(p.has_label);
    else if (p.margin > tolerance)
        assert_string_equal(p.label, e->label);
    client_prediction_fini(&p);
    return worst;
}

static void check_folder(const char *folder) {
    subject s;
    char path[240];
    double original[8], scores[8], worst_clear = 0, worst_program = 0;
    ckks_error err = {0};
    subject_open(&s, folder);
    subject_compile(&s);
    snprintf(path, sizeof path, "%s/expected.txt", folder);
    expectation e = {.file = fopen(path, "r")};
    assert_non_null(e.file);
    for (uint64_t r = 0; r < s.test.rows.row_count; r++) {
        const double *row = s.test.rows.values + r * s.test.rows.column_count;
        expect_next(&e);
        must(onnx_interpret(original, s.model, row, 1, &err), &err);
        for (uint32_t k = 0; k < s.client->score_count; k++) original[k] /= client_score_factor(s.client);
        /* the file has the pipeline's numbers as binary32 */
        worst_clear = fmax(worst_clear, check_prediction(&s, original, &e, 2e-6));
        run_program(scores, &s, row);
        const double allowed = 2 * s.summary.polynomial_error + 2e-6 + 1e-3 * s.summary.promised_error;
        worst_program = fmax(worst_program, check_prediction(&s, scores, &e, allowed));
    }
    print_message(
        "  %-15s %2u columns, %3u elements, %2zu steps: %.1e from scikit-learn in the clear, %.1e by "
        "the program\n",
        strrchr(folder, '/') + 1, s.client->raw_count, s.client->element_count,
        s.client->description->n_preprocess, worst_clear, worst_program);
    assert_true(s.summary.measured_error <= s.summary.promised_error);
    fclose(e.file);
    subject_close(&s);
}

static void pipelines_predict_as_scikit_learn_does(void **state) {
    static const char *const folders[] = {
        "tests/models/credit-pipeline",   "tests/models/pima-diabetes",     "tests/models/progression",
        "tests/data/tables/ordinal",      "tests/data/tables/refusing",     "tests/data/tables/first_dropped",
        "tests/data/tables/text_imputed", "tests/data/tables/scaled_codes", "tests/data/tables/normalised",
        "tests/data/tables/matrix",       "tests/data/tables/support",      "tests/data/tables/descent"};
    (void)state;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) check_folder(folders[i]);
}

/* ---- what the package says, and what it refuses ---- */

static const Ckksd__V1__Column *column_of(const subject *s, const char *name) {
    const Ckksd__V1__ModelDescription *d = s->client->description;
    for (size_t i = 0; i < d->n_columns; i++)
        if (strcmp(d->columns[i]->name, name) == 0) return d->columns[i];
    fail_msg("no column %s", name);
    return NULL;
}

static void a_package_says_what_its_columns_take(void **state) {
    subject s;
    (void)state;
    subject_open(&s, "tests/models/credit-pipeline");
    subject_compile(&s);
    assert_int_equal(s.client->raw_count, 20);
    assert_int_equal(s.test.ignored, 1);
    const Ckksd__V1__Column *age = column_of(&s, "age"), *purpose = column_of(&s, "purpose");
    assert_int_equal(age->kind, 1);
    assert_true(age->missing_is_imputed);
    assert_true(age->has_minimum && age->minimum < 20 && age->maximum > 70);
    assert_int_equal(purpose->kind, 2);
    assert_false(purpose->unknown_is_refused || purpose->missing_is_imputed);
    assert_true(purpose->n_categories >= 9);
    bool has_one_hot = false, has_impute = false;
    for (size_t i = 0; i < s.client->description->n_preprocess; i++) {
        has_one_hot = has_one_hot || s.client->description->preprocess[i]->kind == 2;
        has_impute = has_impute || s.client->description->preprocess[i]->kind == 3;
    }
    assert_true(has_one_hot && has_impute);
    subject_close(&s);
}

static void an_unknown_category_is_what_the_encoder_says(void **state) {
    subject s;
    double row[32], elements[128];
    ckks_error err = {0};
    uint32_t at = 0;
    (void)state;
    /* zeros */
    subject_open(&s, "tests/models/credit-pipeline");
    subject_compile(&s);
    memcpy(row, s.test.rows.values, s.client->raw_count * sizeof *row);
    while (strcmp(s.client->description->columns[at]->name, "purpose") != 0) at++;
    must(client_preprocess(elements, s.client, row, &err), &err);
    double before = 0, after = 0;
    for (uint32_t i = 0; i < s.client->element_count; i++) before += elements[i];
    row[at] = -1;
    must(client_preprocess(elements, s.client, row, &err), &err);
    for (uint32_t i = 0; i < s.client->element_count; i++) after += elements[i];
    assert_true(fabs(before - after - 1) < 1e-9);
    subject_close(&s);

    /* an error that names the column */
    subject_open(&s, "tests/data/tables/refusing");
    subject_compile(&s);
    memcpy(row, s.test.rows.values, s.client->raw_count * sizeof *row);
    for (at = 0; strcmp(s.client->description->columns[at]->name, "town") != 0;) at++;
    row[at] = -1;
    CHECK_STATUS(client_preprocess(elements, s.client, row, &err), CKKS_OUT_OF_RANGE);
    assert_string_equal(err.field, "town");
    double scores[8];
    err = (ckks_error){0};
    CHECK_STATUS(onnx_interpret(scores, s.model, row, 1, &err), CKKS_OUT_OF_RANGE);
    /* integers have categories too */
    memcpy(row, s.test.rows.values, s.client->raw_count * sizeof *row);
    for (at = 0; strcmp(s.client->description->columns[at]->name, "size") != 0;) at++;
    row[at] = s.client->description->columns[at]->maximum;
    err = (ckks_error){0};
    CHECK_STATUS(client_preprocess(elements, s.client, row, &err), CKKS_OUT_OF_RANGE);
    subject_close(&s);
}

/* a CSV file in memory against a model's columns */
static ckks_status read_text(const onnx_model *model, const char *text, ckks_error *err) {
    data_file file;
    data_matrix m = {0};
    uint32_t ignored;
    const uint32_t count = onnx_model_input_count(model);
    data_column columns[32];
    *err = (ckks_error){0};
    must(data_parse(&file, text, strlen(text), err), err);
    for (uint32_t i = 0; i < count; i++) {
        const onnx_column c = onnx_model_column(model, i);
        columns[i] = (data_column){c.name,           c.is_text,         c.categories,
                                   c.category_count, c.refuses_unknown, !c.takes_missing};
    }
    const ckks_status rc = csv_select(&m, &ignored, &file.csv, columns, count, NULL, err);
    data_matrix_fini(&m);
    data_file_fini(&file);
    return rc;
}

static void a_cell_that_does_not_fit_is_named(void **state) {
    static const struct {
        const char *text, *field, *says;
    } cases[] = {
        {"height,weight,colour,size\n1,2,red,1\n", "town", "missing"},
        {"height,weight,colour,size,town\n1,2,pink,1,Ulm\n", "colour", "line 2: \"pink\""},
        {"size,town,colour,weight,height\n1,Ulm,red,80,170\n2,Rom,red,70,160\n", "town", "line 3: \"Rom\""},
        {"height,weight,colour,size,town\n,2,red,1,Ulm\n", "height", "line 2: the value is missing"},
        {"height,weight,colour,size,town\n1,2,,1,Ulm\n", "colour", "line 2: the value is missing"},
        {"height,weight,colour,size,town\ntall,2,red,1,Ulm\n", "height", "not a number"},
    };
    onnx_model *model;
    ckks_error err = {0};
    (void)state;
    must(onnx_model_load(&model, "tests/data/tables/refusing/refusing.onnx", &err), &err);
    CHECK_STATUS(read_text(model, "height,weight,colour,size,town\n1,2,red,1,Ulm\n", &err), CKKS_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_STATUS(read_text(model, cases[i].text, &err), CKKS_INVALID_ARGUMENT);
        assert_string_equal(err.field, cases[i].field);
        assert_non_null(strstr(err.message, cases[i].says));
    }
    onnx_model_destroy(model);
}

static void a_file_cut_anywhere_is_refused_or_read(void **state) {
    ckks_error err = {0};
    FILE *file = fopen("tests/models/credit-pipeline/credit-pipeline.onnx", "rb");
    uint8_t bytes[32768];
    (void)state;
    assert_non_null(file);
    const size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    for (size_t cut = 0; cut < size; cut += 97) {
        onnx_model *model = NULL;
        const ckks_status rc = onnx_model_parse(&model, bytes, cut, &err);
        assert_true((rc == CKKS_OK) == (model != NULL));
        onnx_model_destroy(model);
    }
}

static void running_out_of_memory_while_reading_a_table_is_an_error(void **state) {
    (void)state;
    for (unsigned long fail = 1; fail < 400; fail++) {
        onnx_model *model = NULL;
        ckks_error err = {0};
        alloc_fault_set(fail);
        const ckks_status rc =
            onnx_model_load(&model, "tests/data/tables/text_imputed/text_imputed.onnx", &err);
        const bool is_over = alloc_fault_calls() < fail;
        alloc_fault_set(0);
        if (rc != CKKS_OK) CHECK_STATUS(rc, CKKS_RESOURCE_EXHAUSTED);
        onnx_model_destroy(model);
        if (is_over) {
            assert_int_equal(rc, CKKS_OK);
            return;
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pipelines_predict_as_scikit_learn_does),
        cmocka_unit_test(a_package_says_what_its_columns_take),
        cmocka_unit_test(an_unknown_category_is_what_the_encoder_says),
        cmocka_unit_test(a_cell_that_does_not_fit_is_named),
        cmocka_unit_test(a_file_cut_anywhere_is_refused_or_read),
        cmocka_unit_test(running_out_of_memory_while_reading_a_table_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
