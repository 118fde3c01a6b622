/* ckksctl compile: the command line of client/compile. */
#include "client/ctl/calibration.h"
#include "client/ctl/cost.h"
#include "kernels/device.h"
#include "proto/package.h"

#include <stdlib.h>
#include <string.h>

typedef struct arguments {
    ctl_options common;
    const char *calibration, *output, *label_column, *compatible_with;
    bool predicts;
    compile_options options;
    bool lists_operators;
} arguments;

enum {
    OPTION_CALIBRATION = CTL_KEY_FIRST,
    OPTION_NAME,
    OPTION_LABEL_COLUMN,
    OPTION_SECURITY,
    OPTION_LOG_N,
    OPTION_TARGET_ERROR,
    OPTION_RANGE_MARGIN,
    OPTION_CHECK_ROWS,
    OPTION_KEY_BUDGET,
    OPTION_COMPATIBLE_WITH,
    OPTION_PREDICT,
    OPTION_TUNE,
    OPTION_LAYOUT,
    OPTION_BATCH,
    OPTION_OPERATORS
};
static const struct argp_option options[] = {
    {"calibration", OPTION_CALIBRATION, "FILE", 0, "rows that show the ranges of inputs: CSV, .npy or IDX",
     0},
    {"output", 'o', "FILE", 0, "the package (default: the model's name with .ckm)", 0},
    {"name", OPTION_NAME, "NAME", 0, "name of the model (default: from the file's)", 0},
    {"label-column", OPTION_LABEL_COLUMN, "NAME", 0, "column of the CSV file that is no input", 0},
    {"security", OPTION_SECURITY, "BITS", 0, "128 (default), 192 or 256", 0},
    {"log-n", OPTION_LOG_N, "N", 0, "ring degree 2^N instead of the smallest that serves", 0},
    {"target-error", OPTION_TARGET_ERROR, "SHARE", 0,
     "largest error that polynomials in place of activations may cause, as a share of the scores' range "
     "(default 0.01, or less where more than one label in 1,000 would be expected to change)",
     0},
    {"range-margin", OPTION_RANGE_MARGIN, "SHARE", 0,
     "how much wider than the rows show inputs may be (default 0.25)", 0},
    {"check-rows", OPTION_CHECK_ROWS, "N", 0,
     "rows to run encrypted before the package is written (default 8)", 0},
    {"tune", OPTION_TUNE, "cpu|gpu", 0,
     "the server's device (default cpu); either runs the package, a GPU likes fewer and larger steps", 0},
    {"key-budget", OPTION_KEY_BUDGET, "MIB", 0,
     "let the clients' evaluation keys take at most so many MiB, for slower rotations", 0},
    {"compatible-with", OPTION_COMPATIBLE_WITH, "FILE", 0,
     "use the parameters of another package (or of saved metadata), so that its clients keep their secret "
     "key",
     0},
    {"predict", OPTION_PREDICT, 0, 0,
     "measure this machine's cost model where there is none yet, and predict the latency", 0},
    {"layout", OPTION_LAYOUT, "NAME", 0,
     "latency (default): one row at a time; throughput: many rows in one request; auto: see --batch", 0},
    {"batch", OPTION_BATCH, "ROWS", 0,
     "rows that come together: auto takes the layout that is faster for them", 0},
    {"operators", OPTION_OPERATORS, NULL, 0,
     "list the ONNX operators that run encrypted, that clients apply, and that are refused; nothing else", 0},
    {0}};

static double real(struct argp_state *state, const char *text, double max, const char *name) {
    double value = 0;
    if (!csv_number(&value, text) || !(value > 0) || value > max)
        argp_error(state, "--%s takes a number up to %g", name, max);
    return value;
}
static uint32_t integer(struct argp_state *state, const char *text, double min, double max,
                        const char *name) {
    const double value = real(state, text, max, name);
    if (value < min || value != (double)(uint32_t)value)
        argp_error(state, "--%s takes a whole number, %g to %g", name, min, max);
    return (uint32_t)value;
}

static error_t parse(int key, char *argument, struct argp_state *state) {
    arguments *a = state->input;
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
    case OPTION_NAME:
        a->options.name = argument;
        return 0;
    case OPTION_LABEL_COLUMN:
        a->label_column = argument;
        return 0;
    case OPTION_SECURITY:
        a->options.security_bits = ctl_take_security(state, argument);
        return 0;
    case OPTION_LOG_N:
        a->options.log_n = integer(state, argument, CKKS_LOG_N_MIN, CKKS_LOG_N_MAX, "log-n");
        return 0;
    case OPTION_TARGET_ERROR:
        a->options.target_error = real(state, argument, 1, "target-error");
        return 0;
    case OPTION_RANGE_MARGIN:
        a->options.range_margin = real(state, argument, 100, "range-margin");
        return 0;
    case OPTION_CHECK_ROWS:
        a->options.check_rows = integer(state, argument, 1, 100000, "check-rows");
        return 0;
    case OPTION_TUNE:
        a->options.is_for_gpu = strcmp(argument, "gpu") == 0;
        if (!a->options.is_for_gpu && strcmp(argument, "cpu") != 0)
            argp_error(state, "--tune takes cpu or gpu");
        return 0;
    case OPTION_KEY_BUDGET:
        a->options.key_budget_bytes = (uint64_t)(real(state, argument, 1e6, "key-budget") * (1 << 20));
        return 0;
    case OPTION_COMPATIBLE_WITH:
        a->compatible_with = argument;
        return 0;
    case OPTION_PREDICT:
        a->predicts = true;
        return 0;
    case OPTION_LAYOUT:
        a->options.layout = strcmp(argument, "latency") == 0      ? COMPILE_LAYOUT_LATENCY
                            : strcmp(argument, "throughput") == 0 ? COMPILE_LAYOUT_THROUGHPUT
                            : strcmp(argument, "auto") == 0       ? COMPILE_LAYOUT_AUTO
                                                                  : 0;
        if (!a->options.layout) argp_error(state, "--layout takes latency, throughput or auto");
        return 0;
    case OPTION_BATCH:
        a->options.batch = integer(state, argument, 1, 1e9, "batch");
        return 0;
    case OPTION_OPERATORS:
        a->lists_operators = true;
        return 0;
    case ARGP_KEY_ARG:
        ctl_take_one(state, &a->options.onnx_path, argument);
        return 0;
    case ARGP_KEY_END:
        if (a->lists_operators) return 0;
        ctl_need(state, a->options.onnx_path, "MODEL.onnx", "the model to compile");
        ctl_need(state, a->calibration, "--calibration FILE", "rows that show the ranges of inputs");
        if (a->options.layout == COMPILE_LAYOUT_AUTO && !a->options.batch)
            argp_error(state, "--layout auto chooses by the number of rows that come together: --batch ROWS");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp parser = {
    options,
    parse,
    "MODEL.onnx --calibration FILE\n--operators",
    "Turn a trained model into a package that a server evaluates on encrypted inputs.\v"
    "The calibration rows, raw as the model takes them, show which ranges occur: activations become "
    "polynomials that "
    "hold there, and clients refuse inputs outside. A model of one matrix takes a CSV file's columns in its "
    "order and their names; a model with an input for each column (scikit-learn pipelines) finds them by "
    "name. No row enters the package, but ranges do.\n\n"
    "Imputers, encoders of text, scalers and normalisers at the beginning become steps that the client "
    "takes before encryption; links, labels and their names at the end, steps after decryption.\n\n"
    "What cannot be compiled is refused, every operator by name, with a way out. The result is proved on "
    "this machine: "
    "some rows run encrypted under a key that is thrown away.\n\n"
    "Examples:\n"
    "  ckksctl compile mnist.onnx --calibration train-images-idx3.gz -o mnist.ckm\n"
    "  ckksctl compile credit.onnx --calibration rows.csv --label-column class\n"
    "  ckksctl compile credit.onnx --calibration rows.csv --layout auto --batch 100000\n"
    "  ckksctl compile second.onnx --calibration rows.csv --compatible-with first.ckm\n"
    "  ckksctl inspect mnist.ckm\n",
    ctl_common_children,
    0,
    0};

void ctl_print_refusals(const compile_report *report) {
    if (report) compile_refusals_print(stderr, report);
}

void ctl_stage(void *context, const char *stage, uint64_t done, uint64_t total) {
    ctl_stages *s = context;
    if (!s->bar.what || strcmp(s->bar.what, stage) != 0) {
        ctl_bar_end(&s->bar);
        ctl_bar_begin(&s->bar, s->options, stage, false);
    }
    ctl_bar_update(&s->bar, done, total);
}

void ctl_stages_end(ctl_stages *stages) {
    ctl_bar_end(&stages->bar);
}

static void output_path(char path[CTL_PATH_MAX], const arguments *a) {
    if (a->output) {
        snprintf(path, CTL_PATH_MAX, "%s", a->output);
        return;
    }
    const char *slash = strrchr(a->options.onnx_path, '/'), *base = slash ? slash + 1 : a->options.onnx_path;
    const char *dot = strrchr(base, '.');
    const int length = a->options.name ? (int)strlen(a->options.name)
                       : dot           ? (int)(dot - base)
                                       : (int)strlen(base);
    snprintf(path, CTL_PATH_MAX, "%.*s.ckm", length, a->options.name ? a->options.name : base);
}

/* the other model, as far as a client knows it */
static ckks_status load_other(client_model **out, const arguments *a, ckks_error *err) {
    const client_model_options trust = {.allow_insecure = a->common.allow_insecure};
    uint8_t *image = NULL;
    size_t size = 0;
    ckks_status rc = file_read(&image, &size, a->compatible_with, UINT64_C(1) << 32, err);
    if (rc == CKKS_OK) rc = client_model_from_file(out, image, size, &trust, err);
    free(image);
    return rc;
}

/* by the cost model of this machine, where it is known already or asked for; -1: it is not */
static ckks_status predict(double *ms, const arguments *a, const uint8_t *image, size_t size,
                           ckks_error *err) {
    package *p = NULL;
    cost_model model;
    *ms = -1;
    ckks_status rc = package_parse(&p, image, size, a->common.allow_insecure, err);
    if (rc != CKKS_OK) return rc;
    if (a->predicts)
        rc = cost_model_get(&model, &p->plan, DEVICE_CPU, false, &a->common, err);
    else if (!cost_model_cached(&model, &p->plan, DEVICE_CPU))
        rc = CKKS_NOT_FOUND;
    if (rc == CKKS_OK) *ms = 1e-6 * cost_predict(&model, &p->plan, 0, p->plan.operation_count);
    package_destroy(p);
    return rc == CKKS_NOT_FOUND ? CKKS_OK : rc;
}

int command_compile(int argc, char **argv) {
    arguments a = {0};
    ckks_error err = {0};
    calibration_rows rows = {0};
    onnx_model *model = NULL;
    uint8_t *image = NULL;
    size_t size = 0;
    compile_report *report = NULL;
    client_model *other = NULL;
    double predicted_ms = -1;
    char path[CTL_PATH_MAX];
    argp_parse(&parser, argc, argv, 0, NULL, &a);
    if (a.lists_operators) {
        compile_operators_print(stdout, a.common.json);
        return EXIT_GOOD;
    }
    ctl_stages bar = {.options = &a.common};
    a.options.allow_insecure = a.common.allow_insecure;
    a.options.progress = ctl_stage, a.options.progress_context = &bar;
    output_path(path, &a);
    ckks_status rc = ctl_check_output(path, &err);
    if (rc == CKKS_OK) rc = onnx_model_peek(&model, a.options.onnx_path, &err);
    if (rc == CKKS_OK) rc = calibration_load(&rows, model, a.calibration, a.label_column, &a.common, &err);
    if (rc == CKKS_OK && a.compatible_with) rc = load_other(&other, &a, &err);
    if (rc == CKKS_OK) {
        a.options.compatible_with = other ? &other->params : NULL;
        a.options.calibration = rows.view;
        rc = compile_model(&image, &size, &report, &a.options, &err);
        ctl_stages_end(&bar);
    }
    if (rc == CKKS_OK) rc = file_write(path, image, size, 0644, true, &err);
    if (rc == CKKS_OK) rc = predict(&predicted_ms, &a, image, size, &err);
    if (rc == CKKS_OK && predicted_ms > 0) compile_report_predict(report, predicted_ms);
    if (rc == CKKS_OK && a.common.json)
        compile_report_json(stdout, report);
    else if (rc == CKKS_OK && !a.common.quiet)
        compile_report_print(stdout, report);
    int code = EXIT_GOOD;
    if (rc != CKKS_OK) {
        code = ctl_fail(&a.common, &err);
        ctl_print_refusals(report);
    } else {
        ctl_note(&a.common, "%s written", path);
    }
    client_model_destroy(other);
    compile_report_destroy(report);
    free(image);
    calibration_fini(&rows);
    onnx_model_destroy(model);
    return code;
}
