/* ckksctl check: a package against the model that it was made from, on real rows. */
#include "client/ctl/study.h"

#include <stdlib.h>
#include <string.h>

typedef struct arguments {
    ctl_options common;
    const char *package;
    study_options study;
} arguments;

enum {
    OPTION_DATA = CTL_KEY_FIRST,
    OPTION_ONNX,
    OPTION_LABELS,
    OPTION_LABEL_COLUMN,
    OPTION_ROWS,
    OPTION_ENCRYPTED,
    OPTION_DEVICE,
    OPTION_TOP
};
static const struct argp_option options[] = {
    {"onnx", OPTION_ONNX, "FILE", 0, "the original model: compares with it, and looks into each layer", 0},
    {"data", OPTION_DATA, "FILE", 0, "rows to check: CSV, .npy or IDX", 0},
    {"labels", OPTION_LABELS, "FILE", 0, "true labels (one a line, .npy or IDX): prints the accuracy", 0},
    {"label-column", OPTION_LABEL_COLUMN, "NAME", 0, "the CSV file's column of true labels", 0},
    {"rows", OPTION_ROWS, "N", 0, "the first N rows only", 0},
    {"encrypted", OPTION_ENCRYPTED, "N", 0,
     "run N rows encrypted (default: up to 100, about ten seconds; a whole request in the throughput layout)",
     0},
    {"top", OPTION_TOP, "K", 0, "also compare which scores of a row are the K largest", 0},
    {"device", OPTION_DEVICE, "KIND", 0, "auto (default: the CPU, and a GPU where there is one), cpu or cuda",
     0},
    {0}};

static error_t parse(int key, char *argument, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->common;
        return 0;
    case OPTION_ONNX:
        a->study.onnx_path = argument;
        return 0;
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
    case ARGP_KEY_ARG:
        ctl_take_one(state, &a->package, argument);
        return 0;
    case ARGP_KEY_END:
        ctl_need(state, a->package, "MODEL.ckm", "the package to check");
        ctl_need(state, a->study.source.path, "--data FILE", "rows to check it on");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp parser = {
    options,
    parse,
    "MODEL.ckm --onnx MODEL.onnx --data FILE",
    "Compare a package with the model that it was made from: the original, the polynomial model and the "
    "encrypted program on the same rows, without a server.\v"
    "Rows outside of the ranges that the package declares are named column by column, and layer by layer "
    "with "
    "--onnx, with how far they go, and left out of the comparison: a client would refuse them. Exit code 8: "
    "encrypted labels differ from the polynomial model's, or an error is over the promised one.\n\n"
    "Examples:\n"
    "  ckksctl check credit.ckm --onnx credit.onnx --data new-rows.csv --label-column class\n"
    "  ckksctl check mnist.ckm --onnx mnist.onnx --data images-idx3.gz --labels labels-idx1.gz --json\n",
    ctl_common_children,
    0,
    0};

static ckks_status load(package **p, client_model **model, const arguments *a, ckks_error *err) {
    const client_model_options trust = {.allow_insecure = a->common.allow_insecure};
    uint8_t *image = NULL;
    size_t size = 0;
    ckks_status rc = file_read(&image, &size, a->package, UINT64_C(1) << 32, err);
    if (rc == CKKS_OK) rc = client_model_from_file(model, image, size, &trust, err);
    if (rc == CKKS_OK) rc = package_parse(p, image, size, a->common.allow_insecure, err);
    free(image);
    return rc;
}

int command_check(int argc, char **argv) {
    arguments a = {0};
    ckks_error err = {0};
    package *p = NULL;
    client_model *model = NULL;
    study s = {0};
    argp_parse(&parser, argc, argv, 0, NULL, &a);
    a.study.common = &a.common;
    ckks_status rc = load(&p, &model, &a, &err);
    if (rc == CKKS_OK) rc = study_run(&s, model, p, &a.study, &err);
    int code = EXIT_GOOD;
    if (rc != CKKS_OK) {
        code = ctl_fail(&a.common, &err);
    } else if (a.common.json) {
        json_writer j;
        json_begin(&j);
        json_object(&j, NULL);
        json_string(&j, "model", model->description->name);
        study_json(&j, &s);
        json_close_object(&j);
        json_end(&j);
    } else {
        printf("model        %s\n", model->description->name);
        study_print(&s);
    }
    if (rc == CKKS_OK && !study_is_good(&s)) code = EXIT_MISMATCH;
    study_fini(&s);
    client_model_destroy(model);
    package_destroy(p);
    return code;
}
