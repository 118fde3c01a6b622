/* An ONNX file from a stranger: read, lowered and, if it makes sense, run on one row. */
#include "client/compile/compile.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    onnx_model *model;
    ckks_error err = {0};
    if (onnx_model_parse(&model, data, size, &err) != CKKS_OK) {
        if (!err.code || !err.message[0]) abort(); /* no refusal without a reason */
        return 0;
    }
    double *row = calloc(onnx_model_input_count(model), sizeof *row);
    double *scores = calloc(onnx_model_score_count(model), sizeof *scores);
    if (row && scores) onnx_interpret(scores, model, row, 1, &err);
    free(scores);
    free(row);
    onnx_model_destroy(model);
    return 0;
}
