/* The original model in the clear, exact activations and all. */
#include "client/compile/compile.h"
#include "client/ctl/infer.h"

#include "client/lib/rpc_internal.h"

#include <stdlib.h>

ckks_status clear_original(clear_run *run, const client_model *model, const rows *data, const char *onnx_path,
                           ckks_error *err) {
    ckks_status rc;
    onnx_model *original = NULL;
    const double factor = client_score_factor(model); /* as decrypted scores are */
    if ((rc = onnx_model_load(&original, onnx_path, err)) != CKKS_OK) goto out;
    if (onnx_model_input_count(original) != data->width ||
        onnx_model_score_count(original) != model->score_count) {
        rc = ckks_error_set(err, CKKS_SIGNATURE_MISMATCH, "original",
                            "%s maps %u numbers to %u scores, the model %u to %u", onnx_path,
                            onnx_model_input_count(original), onnx_model_score_count(original), data->width,
                            model->score_count);
        goto out;
    }
    run->original = malloc((size_t)(data->count * model->score_count) * sizeof *run->original);
    run->original_ms = malloc((size_t)data->count * sizeof *run->original_ms);
    if (!run->original || !run->original_ms) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for the original model");
        goto out;
    }
    for (uint64_t i = 0; i < data->count; i++) {
        const uint64_t begin_ns = rpc_now_ns();
        rc = onnx_interpret(run->original + i * model->score_count, original, data->values + i * data->width,
                            1, err);
        if (rc != CKKS_OK) goto out;
        for (uint32_t k = 0; k < model->score_count; k++) run->original[i * model->score_count + k] /= factor;
        run->original_ms[i] = (double)(rpc_now_ns() - begin_ns) * 1e-6;
    }
    run->has_original = true;
out:
    onnx_model_destroy(original);
    return rc;
}
