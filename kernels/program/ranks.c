/*
 * The reduction between ranks of a model that is split over several devices: each rank's program ran on its
 * own device and left an owned result; their sum modulo each prime is the answer. Never a plain integer sum:
 * the words of one limb are residues.
 */
#include "kernels/base/bytes.h"
#include "kernels/program/graph_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ckks_status check_rank(const graph_result *first, const graph_result *rank, uint32_t number,
                              const ckks_params *params, ckks_error *err) {
    char field[64];
    snprintf(field, sizeof field, "rank %u", number);
    if (rank->internal == NULL || rank->ownership != GRAPH_OUTPUT_OWNED)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, field, "a reduction takes owned results");
    if (rank->output_count != first->output_count)
        return ckks_error_set(err, CKKS_SIGNATURE_MISMATCH, field, "%u outputs, rank 0 has %u",
                              rank->output_count, first->output_count);
    for (uint32_t i = 0; i < rank->output_count; i++) {
        const value_signature *signature = &rank->outputs[i].signature;
        ckks_error cause = {0};
        const ckks_status rc = value_signature_compare(&first->outputs[i].signature, signature, &cause);
        if (rc != CKKS_OK) {
            snprintf(field, sizeof field, "rank %u, output %u, %.24s", number, i, cause.field);
            return ckks_error_set(err, rc, field, "%s", cause.message);
        }
        if (memcmp(signature->parameter_id, params->id, sizeof params->id) != 0)
            return ckks_error_set(err, CKKS_PARAMS_MISMATCH, field, "not of the reduction's parameters");
        if (signature->bytes != value_batch_words(params, signature) * signature->batch_count * 8)
            return ckks_error_set(err, CKKS_SIGNATURE_MISMATCH, field, "output %u has %llu bytes", i,
                                  (unsigned long long)signature->bytes);
    }
    return CKKS_OK;
}

static void add_output(uint64_t *sum, const uint64_t *term, const ckks_params *params,
                       const value_signature *signature) {
    const kernel_basis basis = value_kernel_basis(params, signature);
    const uint32_t n = params_n(params), limb_count = basis_limb_count(basis);
    const uint64_t poly_count = (uint64_t)signature->batch_count * signature->component_count;
    for (uint64_t poly = 0; poly < poly_count; poly++)
        for (uint32_t limb = 0; limb < limb_count; limb++) {
            const uint64_t q = params->prime[basis_prime(basis, limb, params->q_count)];
            for (uint32_t i = 0; i < n; i++) {
                const uint64_t s = *sum + *term++; /* both < q < 2^50 */
                *sum++ = s >= q ? s - q : s;
            }
        }
}

ckks_status graph_reduce(graph_result *out, const ckks_context *context, const graph_result *ranks,
                         uint32_t rank_count, ckks_error *rank_errors, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    ckks_error cause = {0};
    uint64_t *offsets = NULL;
    result_body *body = NULL;
    if (out == NULL || context == NULL || ranks == NULL || rank_count == 0) {
        rc = ckks_error_set(&cause, CKKS_INVALID_ARGUMENT, "ranks", "no ranks to reduce");
        goto out;
    }
    const ckks_params *params = context_params(context);
    for (uint32_t r = 0; r < rank_count; r++)
        if ((rc = check_rank(&ranks[0], &ranks[r], r, params, &cause)) != CKKS_OK) goto out;

    const uint32_t output_count = ranks[0].output_count;
    offsets = calloc(output_count, sizeof *offsets);
    if (offsets == NULL) {
        rc = ckks_error_set(&cause, CKKS_RESOURCE_EXHAUSTED, "", "out of memory");
        goto out;
    }
    for (uint32_t i = 1; i < output_count; i++)
        offsets[i] = align_up(offsets[i - 1] + ranks[0].outputs[i - 1].signature.bytes, VALUE_ALIGNMENT);
    if ((rc = result_body_create(&body, GRAPH_OUTPUT_OWNED, NULL, NULL, ranks[0].outputs, offsets,
                                 output_count, 0, &cause)) != CKKS_OK)
        goto out;
    for (uint32_t i = 0; i < output_count; i++) {
        uint64_t *sum = result_body_words(body, i);
        memcpy(sum, ranks[0].outputs[i].words, ranks[0].outputs[i].signature.bytes);
        for (uint32_t r = 1; r < rank_count; r++)
            add_output(sum, ranks[r].outputs[i].words, params, &ranks[r].outputs[i].signature);
    }
    result_body_finish(body, out), body = NULL;
out:
    result_body_destroy(body);
    free(offsets);
    if (rc != CKKS_OK) {
        (void)ckks_error_set(err, rc, cause.field, "%s", cause.message);
        for (uint32_t r = 0; ranks != NULL && rank_errors != NULL && r < rank_count; r++)
            (void)ckks_error_set(&rank_errors[r], rc, cause.field, "%s", cause.message);
    }
    return rc;
}
