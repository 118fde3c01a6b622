#include "tests/support/onnx_cases.h"

#include "kernels/base/status.h"

#include <stdio.h>
#include <stdlib.h>

const char *const onnx_cases[] = {"gemm",
                                  "matmul_axes",
                                  "elementwise",
                                  "squares",
                                  "residual",
                                  "shapes",
                                  "relu",
                                  "sigmoid",
                                  "tanh",
                                  "silu",
                                  "scaler",
                                  "classifier_many",
                                  "classifier_binary",
                                  "raw_numbers",
                                  NULL};

static double read_number(FILE *file) {
    char word[64], *end;
    CKKS_ASSERT(fscanf(file, "%63s", word) == 1);
    const double value = strtod(word, &end);
    CKKS_ASSERT(*end == 0);
    return value;
}

void onnx_case_read(onnx_case *out, const char *name) {
    onnx_case_read_from(out, "tests/data/onnx", name);
}

void onnx_case_read_from(onnx_case *out, const char *folder, const char *name) {
    snprintf(out->path, sizeof out->path, "%s/%s.txt", folder, name);
    FILE *file = fopen(out->path, "r");
    CKKS_ASSERT(file != NULL);
    out->row_count = (unsigned)read_number(file);
    out->input_count = (unsigned)read_number(file);
    out->output_count = (unsigned)read_number(file);
    CKKS_ASSERT(out->row_count && out->row_count <= ONNX_CASE_ROWS_MAX);
    CKKS_ASSERT(out->input_count <= ONNX_CASE_WIDTH_MAX && out->output_count <= ONNX_CASE_WIDTH_MAX);
    for (unsigned r = 0; r < out->row_count; r++) {
        for (unsigned i = 0; i < out->input_count; i++)
            out->inputs[r * out->input_count + i] = read_number(file);
        for (unsigned i = 0; i < out->output_count; i++)
            out->outputs[r * out->output_count + i] = read_number(file);
    }
    fclose(file);
    snprintf(out->path, sizeof out->path, "%s/%s.onnx", folder, name);
}
