/* The same rows in the clear, for comparison: through the package's own polynomials. */
#include "client/ctl/infer.h"

#include "client/lib/rpc_internal.h"

#include <stdlib.h>
#include <string.h>

void clear_run_fini(clear_run *run) {
    if (!run) return;
    free(run->polynomial);
    free(run->polynomial_ms);
    free(run->original);
    free(run->original_ms);
    *run = (clear_run){0};
}

/* Slot vectors of full length: the layout's repeat. */
typedef struct vectors {
    uint32_t input_count, output_count, length;
    double *slots;  /* [input_count][layout slots] */
    double *memory; /* inputs, then outputs, each of `length` */
    const double **inputs;
    double **outputs;
} vectors;

static void vectors_fini(vectors *v) {
    free(v->slots);
    free(v->memory);
    free(v->inputs);
    free(v->outputs);
}

static ckks_status vectors_init(vectors *v, const client_model *model, ckks_error *err) {
    *v = (vectors){model->input_count,
                   model->output_count,
                   params_slot_count_max(&model->params),
                   NULL,
                   NULL,
                   NULL,
                   NULL};
    const size_t count = (size_t)v->input_count + v->output_count;
    v->slots = malloc((size_t)v->input_count * client_slot_count(model) * sizeof *v->slots);
    v->memory = malloc(count * v->length * sizeof *v->memory);
    v->inputs = malloc(v->input_count * sizeof *v->inputs);
    v->outputs = malloc(v->output_count * sizeof *v->outputs);
    if (!v->slots || !v->memory || !v->inputs || !v->outputs)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for the clear model");
    for (uint32_t i = 0; i < v->input_count; i++) v->inputs[i] = v->memory + (size_t)i * v->length;
    for (uint32_t i = 0; i < v->output_count; i++)
        v->outputs[i] = v->memory + (size_t)(v->input_count + i) * v->length;
    return CKKS_OK;
}

static ckks_status run_row(double *scores, vectors *v, const client_model *model, const plan *p,
                           const double *row, double *elements, ckks_error *err) {
    const uint32_t slot_count = client_slot_count(model);
    ckks_status rc;
    if ((rc = client_preprocess(elements, model, row, err)) != CKKS_OK) return rc;
    if ((rc = client_slots(v->slots, model, elements, 1, err)) != CKKS_OK) return rc;
    for (uint32_t i = 0; i < v->input_count; i++)
        for (uint32_t k = 0; k < v->length; k++)
            v->memory[(size_t)i * v->length + k] = v->slots[(size_t)i * slot_count + k % slot_count];
    if ((rc = plan_interpret(v->outputs, p, v->inputs, err)) != CKKS_OK) return rc;
    return client_scores(scores, model, (const double *const *)v->outputs, 1, err);
}

ckks_status clear_polynomial(clear_run *run, const client_model *model, const rows *data,
                             const char *package_path, bool allow_insecure, ckks_error *err) {
    ckks_status rc;
    package *p = NULL;
    vectors v = {0};
    double *elements = NULL;
    if ((rc = package_load(&p, package_path, allow_insecure, err)) != CKKS_OK) goto out;
    if (model->has_digest && memcmp(p->digest, model->digest, sizeof p->digest) != 0) {
        rc = ckks_error_set(err, CKKS_SIGNATURE_MISMATCH, "reference",
                            "%s is not the package that the server runs", package_path);
        goto out;
    }
    run->polynomial = malloc((size_t)(data->count * model->score_count) * sizeof *run->polynomial);
    run->polynomial_ms = malloc((size_t)data->count * sizeof *run->polynomial_ms);
    elements = malloc((size_t)model->element_count * sizeof *elements);
    if (!run->polynomial || !run->polynomial_ms || !elements) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for the clear model");
        goto out;
    }
    if ((rc = vectors_init(&v, model, err)) != CKKS_OK) goto out;
    for (uint64_t i = 0; i < data->count; i++) {
        const uint64_t begin_ns = rpc_now_ns();
        rc = run_row(run->polynomial + i * model->score_count, &v, model, &p->plan,
                     data->values + i * data->width, elements, err);
        if (rc != CKKS_OK) goto out;
        run->polynomial_ms[i] = (double)(rpc_now_ns() - begin_ns) * 1e-6;
    }
    run->has_polynomial = true;
out:
    free(elements);
    vectors_fini(&v);
    package_destroy(p);
    return rc;
}
