/* The same rows in the clear, for comparison: through the package's own polynomials. */
#include "client/ctl/infer.h"

#include "client/lib/rpc_internal.h"
#include "client/lib/wipe.h"

#include <stdlib.h>
#include <string.h>

void clear_run_fini(clear_run *run) {
    if (!run) return;
    wipe_free(run->polynomial);
    free(run->polynomial_ms);
    wipe_free(run->original);
    free(run->original_ms);
    *run = (clear_run){0};
}

/* Slot vectors of full length, one per ciphertext: the layout's repeat. */
typedef struct vectors {
    uint32_t input_count, output_count; /* ciphertexts */
    uint32_t length;
    double *slots;                    /* [layout slots] */
    double *memory;                   /* input ciphertexts, then outputs, each of `length` */
    const double **inputs, **decoded; /* per input value; per output ciphertext */
    double **outputs;                 /* per output value */
} vectors;

static void vectors_fini(vectors *v) {
    wipe_free(v->slots);
    wipe_free(v->memory);
    free(v->inputs);
    free(v->decoded);
    free(v->outputs);
}

static ckks_status vectors_init(vectors *v, const client_model *model, ckks_error *err) {
    *v = (vectors){.input_count = client_input_ciphertexts(model),
                   .output_count = client_output_ciphertexts(model),
                   .length = params_slot_count_max(&model->params)};
    const size_t count = (size_t)v->input_count + v->output_count;
    v->slots = malloc(client_slot_count(model) * sizeof *v->slots);
    v->memory = malloc(count * v->length * sizeof *v->memory);
    v->inputs = malloc(model->input_count * sizeof *v->inputs);
    v->outputs = malloc(model->output_count * sizeof *v->outputs);
    v->decoded = malloc(v->output_count * sizeof *v->decoded);
    if (!v->slots || !v->memory || !v->inputs || !v->outputs || !v->decoded)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for the clear model");
    double *at = v->memory;
    for (uint32_t i = 0; i < model->input_count; at += (size_t)model->inputs[i++].batch_count * v->length)
        v->inputs[i] = at;
    for (uint32_t i = 0; i < v->output_count; i++) v->decoded[i] = at + (size_t)i * v->length;
    for (uint32_t i = 0; i < model->output_count; at += (size_t)model->outputs[i++].batch_count * v->length)
        v->outputs[i] = at;
    return CKKS_OK;
}

/* as many rows as go into one request */
static ckks_status run_rows(double *scores, vectors *v, const client_model *model, const plan *p,
                            const double *values, uint32_t row_count, double *elements, ckks_error *err) {
    const uint32_t slot_count = client_slot_count(model);
    ckks_status rc;
    for (uint32_t k = 0; k < row_count; k++)
        if ((rc = client_preprocess(elements + (size_t)k * model->element_count, model,
                                    values + (size_t)k * model->raw_count, err)) != CKKS_OK)
            return rc;
    for (uint32_t i = 0; i < v->input_count; i++) {
        if ((rc = client_slots(v->slots, model, elements, row_count, i, err)) != CKKS_OK) return rc;
        for (uint32_t k = 0; k < v->length; k++)
            v->memory[(size_t)i * v->length + k] = v->slots[k % slot_count];
    }
    if ((rc = plan_interpret(v->outputs, p, v->inputs, err)) != CKKS_OK) return rc;
    return client_scores(scores, model, v->decoded, row_count, err);
}

ckks_status clear_polynomial_of(clear_run *run, const client_model *model, const rows *data, const package *p,
                                ckks_error *err) {
    ckks_status rc;
    vectors v = {0};
    const uint32_t per_request = client_rows_per_request(model);
    run->polynomial = malloc((size_t)(data->count * model->score_count) * sizeof *run->polynomial);
    run->polynomial_ms = malloc((size_t)data->count * sizeof *run->polynomial_ms);
    double *elements = malloc((size_t)per_request * model->element_count * sizeof *elements);
    if (!run->polynomial || !run->polynomial_ms || !elements) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for the clear model");
        goto out;
    }
    if ((rc = vectors_init(&v, model, err)) != CKKS_OK) goto out;
    for (uint64_t first = 0; first < data->count; first += per_request) {
        const uint64_t begin_ns = rpc_now_ns(), left = data->count - first;
        const uint32_t count = left < per_request ? (uint32_t)left : per_request;
        rc = run_rows(run->polynomial + first * model->score_count, &v, model, &p->plan,
                      data->values + first * data->width, count, elements, err);
        if (rc != CKKS_OK) goto out;
        const double each_ms = (double)(rpc_now_ns() - begin_ns) * 1e-6 / count;
        for (uint32_t k = 0; k < count; k++) run->polynomial_ms[first + k] = each_ms;
    }
    run->has_polynomial = true;
out:
    wipe_free(elements);
    vectors_fini(&v);
    return rc;
}

ckks_status clear_polynomial(clear_run *run, const client_model *model, const rows *data,
                             const char *package_path, bool allow_insecure, ckks_error *err) {
    package *p = NULL;
    ckks_status rc = package_load(&p, package_path, allow_insecure, err);
    if (rc == CKKS_OK && model->has_digest && memcmp(p->digest, model->digest, sizeof p->digest) != 0)
        rc = ckks_error_set(err, CKKS_SIGNATURE_MISMATCH, "reference",
                            "%s is not the package that the server runs", package_path);
    if (rc == CKKS_OK) rc = clear_polynomial_of(run, model, data, p, err);
    package_destroy(p);
    return rc;
}
