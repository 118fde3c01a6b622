/* ckksctl try: everything about a model in one command, on this machine alone. */
#include "client/ctl/calibration.h"
#include "client/ctl/study.h"

#include <stdlib.h>
#include <string.h>

#define CALIBRATION_ROWS_MAX 2000u

typedef struct arguments {
    ctl_options common;
    compile_options compile;
    const char *calibration, *output;
    study_options study;
} arguments;

enum {
    OPTION_DATA = CTL_KEY_FIRST,
    OPTION_LABELS,
    OPTION_LABEL_COLUMN,
    OPTION_CALIBRATION,
    OPTION_ROWS,
    OPTION_ENCRYPTED,
    OPTION_DEVICE,
    OPTION_TOP,
    OPTION_LAYOUT,
    OPTION_TARGET_ERROR,
    OPTION_SECURITY
};
static const struct argp_option options[] = {
    {"data", OPTION_DATA, "FILE", 0, "rows to try: CSV, .npy or IDX", 0},
    {"labels", OPTION_LABELS, "FILE", 0, "true labels (one a line, .npy or IDX): prints the accuracy", 0},
    {"label-column", OPTION_LABEL_COLUMN, "NAME", 0, "the CSV file's column of true labels", 0},
    {"calibration", OPTION_CALIBRATION, "FILE", 0,
     "other rows that show the ranges (default: the first 2,000 of --data)", 0},
    {"rows", OPTION_ROWS, "N", 0, "the first N rows only", 0},
    {"encrypted", OPTION_ENCRYPTED, "N", 0,
     "run N rows encrypted (default: up to 100, about ten seconds; a whole request in the throughput layout)",
     0},
    {"top", OPTION_TOP, "K", 0, "also compare which scores of a row are the K largest", 0},
    {"device", OPTION_DEVICE, "KIND", 0, "auto (default: the CPU, and a GPU where there is one), cpu or cuda",
     0},
    {"layout", OPTION_LAYOUT, "NAME", 0, "latency (default) or throughput, as for compile", 0},
    {"target-error", OPTION_TARGET_ERROR, "SHARE", 0, "as for compile", 0},
    {"security", OPTION_SECURITY, "BITS", 0, "128 (default), 192 or 256", 0},
    {"output", 'o', "FILE", 0, "also save the package", 0},
    {0}};

static error_t parse_study(int key, char *argument, struct argp_state *state, arguments *a) {
    switch (key) {
    case OPTION_DATA:
        a->study.source.path = argument;
        return 0;
    case OPTION_LABELS:
        a->study.source.labels_path = argument;
        return 0;
    case OPTION_LABEL_COLUMN:
        a->study.source.label_column = argument;
        return 0;
    case OPTION_ROWS:
        a->study.source.limit = ctl_take_count(state, argument, UINT32_MAX, "rows");
        return 0;
    case OPTION_ENCRYPTED:
        a->study.encrypted_count = ctl_take_count(state, argument, UINT32_MAX, "encrypted");
        return 0;
    case OPTION_TOP:
        a->study.top = (uint32_t)ctl_take_count(state, argument, 10000, "top");
        return 0;
    case OPTION_DEVICE:
        a->study.device_kind = ctl_take_device(state, argument);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse(int key, char *argument, struct argp_state *state) {
    arguments *a = state->input;
    double value = 0;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->common;
        return 0;
    case OPTION_CALIBRATION:
        a->calibration = argument;
        return 0;
    case 'o':
        a->output = ctl_take_output(state, argument, "output");
        return 0;
    case OPTION_LAYOUT:
        if (!strcmp(argument, "throughput"))
            a->compile.layout = COMPILE_LAYOUT_THROUGHPUT;
        else if (strcmp(argument, "latency") != 0)
            argp_error(state, "--layout takes latency or throughput");
        return 0;
    case OPTION_TARGET_ERROR:
        if (!csv_number(&value, argument) || !(value > 0 && value < 1))
            argp_error(state, "--target-error takes a number between 0 and 1");
        a->compile.target_error = value;
        return 0;
    case OPTION_SECURITY:
        a->compile.security_bits = ctl_take_security(state, argument);
        return 0;
    case ARGP_KEY_ARG:
        ctl_take_one(state, &a->compile.onnx_path, argument);
        return 0;
    case ARGP_KEY_END:
        ctl_need(state, a->compile.onnx_path, "MODEL.onnx", "the model to try");
        ctl_need(state, a->study.source.path, "--data FILE", "rows to try it on");
        return 0;
    default:
        return parse_study(key, argument, state, a);
    }
}

static const struct argp parser = {
    options,
    parse,
    "MODEL.onnx --data FILE",
    "Will my model run encrypted, how well, and how fast? Compiles it, makes keys, and runs rows encrypted, "
    "all "
    "on this machine and without a server; prints one table.\v"
    "The original model, the polynomial model that stands for it, and the encrypted program are compared on "
    "the "
    "same rows. Replay is what a server would spend on a request, by the device's clock. Nothing is kept "
    "unless "
    "-o names a file for the package.\n\n"
    "Examples:\n"
    "  ckksctl try credit.onnx --data rows.csv --label-column class\n"
    "  ckksctl try mnist.onnx --data test-images-idx3.gz --labels test-labels-idx1.gz\n"
    "  ckksctl try credit.onnx --data rows.csv --layout throughput --json\n",
    ctl_common_children,
    0,
    0};

/* ---- compiling ---- */

typedef struct trial {
    onnx_model *original;
    calibration_rows calibration;
    uint8_t *image;
    size_t size;
    compile_report *report;
    package *package;
    client_model *model;
    study study;
} trial;

static void trial_fini(trial *t) {
    study_fini(&t->study);
    client_model_destroy(t->model);
    package_destroy(t->package);
    compile_report_destroy(t->report);
    free(t->image);
    calibration_fini(&t->calibration);
    onnx_model_destroy(t->original);
}

static ckks_status compile(trial *t, arguments *a, ckks_error *err) {
    const client_model_options trust = {.allow_insecure = a->common.allow_insecure};
    ctl_stages stages = {.options = &a->common};
    ctl_options silent = a->common; /* the study reads the same rows and says what it leaves out */
    silent.quiet = true;
    ckks_status rc = onnx_model_peek(&t->original, a->compile.onnx_path, err);
    if (rc != CKKS_OK) return rc;
    rc =
        calibration_load(&t->calibration, t->original, a->calibration ? a->calibration : a->study.source.path,
                         a->study.source.label_column, a->calibration ? &a->common : &silent, err);
    if (rc != CKKS_OK) return rc;
    if (!a->calibration) { /* what is wrong with the rows and labels, before the slow part */
        rc = rows_check_labels(&a->study.source, t->calibration.view.row_count, err);
    } else {
        calibration_rows data;
        rc = calibration_load(&data, t->original, a->study.source.path, a->study.source.label_column, &silent,
                              err);
        if (rc == CKKS_OK) {
            rc = rows_check_labels(&a->study.source, data.view.row_count, err);
            calibration_fini(&data);
        }
    }
    if (rc != CKKS_OK) return rc;
    a->compile.calibration = t->calibration.view;
    if (a->compile.calibration.row_count > CALIBRATION_ROWS_MAX)
        a->compile.calibration.row_count = CALIBRATION_ROWS_MAX;
    a->compile.allow_insecure = a->common.allow_insecure;
    a->compile.progress = ctl_stage, a->compile.progress_context = &stages;
    rc = compile_model(&t->image, &t->size, &t->report, &a->compile, err);
    ctl_stages_end(&stages);
    if (rc != CKKS_OK && !a->calibration && err && !strcmp(err->field, "calibration"))
        snprintf(err->field, sizeof err->field, "data"); /* the option that was given */
    if (rc != CKKS_OK) return rc;
    rc = package_parse(&t->package, t->image, t->size, a->common.allow_insecure, err);
    if (rc == CKKS_OK) rc = client_model_from_file(&t->model, t->image, t->size, &trust, err);
    return rc;
}

/* ---- the table ---- */

static void print(const trial *t, const arguments *a) {
    compile_summary s;
    compile_report_summary(t->report, &s);
    printf("model        %s: runs encrypted, %u bits of security%s\n", t->model->description->name,
           s.security_bits, s.security_bits ? "" : " (INSECURE: for tests only)");
    printf("size         N = 2^%u, %u level%s deep; %u operations, %u rotations, %u keys\n", s.log_n, s.depth,
           s.depth == 1 ? "" : "s", s.operation_count, s.rotation_count, s.key_count);
    if (s.closeness_count) {
        const compile_closeness *k = &s.closeness[s.chosen];
        printf("activations  polynomials of degree %u", k->degree_min);
        if (k->degree_max != k->degree_min) printf(" to %u", k->degree_max);
        if (s.has_labels)
            printf(": about %.2g of 1,000 labels are expected to differ from the original's",
                   1000 * s.label_changes);
        printf("\n");
    }
    study_print(&t->study);
    if (!a->output)
        printf("next         ckksctl compile %s --calibration FILE -o model.ckm\n", a->compile.onnx_path);
}

static void print_json(const trial *t) {
    compile_summary s;
    json_writer j;
    compile_report_summary(t->report, &s);
    json_begin(&j);
    json_object(&j, NULL);
    json_string(&j, "model", t->model->description->name);
    json_bool(&j, "runs", true);
    json_integer(&j, "log_n", s.log_n);
    json_integer(&j, "depth", s.depth);
    json_integer(&j, "security_bits", s.security_bits);
    json_integer(&j, "operations", s.operation_count);
    json_integer(&j, "rotations", s.rotation_count);
    json_integer(&j, "keys", s.key_count);
    study_json(&j, &t->study);
    json_close_object(&j);
    json_end(&j);
}

int command_try(int argc, char **argv) {
    arguments a = {0};
    trial t = {0};
    ckks_error err = {0};
    argp_parse(&parser, argc, argv, 0, NULL, &a);
    a.study.common = &a.common;
    a.study.onnx_path = a.compile.onnx_path;
    ckks_status rc = compile(&t, &a, &err);
    if (rc == CKKS_OK && a.output) rc = file_write(a.output, t.image, t.size, 0644, true, &err);
    if (rc == CKKS_OK) rc = study_run(&t.study, t.model, t.package, &a.study, &err);
    int code = EXIT_GOOD;
    if (rc != CKKS_OK) {
        code = ctl_fail(&a.common, &err);
        if (t.report) ctl_print_refusals(t.report);
    } else {
        if (a.common.json)
            print_json(&t);
        else
            print(&t, &a);
        if (!study_is_good(&t.study)) code = EXIT_MISMATCH;
    }
    trial_fini(&t);
    return code;
}
