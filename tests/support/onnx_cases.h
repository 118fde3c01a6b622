/* The small models in tests/data/onnx: every operator, with inputs and what onnx.reference makes of them. */
#ifndef CKKS_TESTS_ONNX_CASES_H
#define CKKS_TESTS_ONNX_CASES_H

#include <stddef.h>

#define ONNX_CASE_ROWS_MAX  8
#define ONNX_CASE_WIDTH_MAX 160

extern const char *const onnx_cases[]; /* names, ends in NULL */

typedef struct onnx_case {
    char path[128]; /* of the model */
    unsigned row_count, input_count, output_count;
    double inputs[ONNX_CASE_ROWS_MAX * ONNX_CASE_WIDTH_MAX]; /* [row][input_count] */
    double outputs[ONNX_CASE_ROWS_MAX * ONNX_CASE_WIDTH_MAX];
} onnx_case;

/* aborts the test if the file is not as it should be */
void onnx_case_read(onnx_case *out, const char *name);
void onnx_case_read_from(onnx_case *out, const char *folder, const char *name);

#endif
