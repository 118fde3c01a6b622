/*
 * What a program's configuration must be, and where everything that a captured program owns will lie: known
 * before anything is allocated, so that admission can refuse first.
 */
#include "kernels/base/bytes.h"
#include "kernels/program/graph_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* far beyond any model, small enough that no sum below overflows */
#define VALUES_MAX      4096u
#define BATCH_MAX       65536u
#define COMPONENTS_MAX  3u
#define VALUE_BYTES_MAX (UINT64_C(1) << 40)

kernel_basis value_kernel_basis(const ckks_params *params, const value_signature *signature) {
    return (kernel_basis){.q_first = 0,
                          .q_count = signature->limb_count,
                          .p_count = signature->basis == VALUE_BASIS_QP ? params->p_count : 0};
}

uint64_t value_batch_words(const ckks_params *params, const value_signature *signature) {
    const uint64_t limbs = basis_limb_count(value_kernel_basis(params, signature));
    return signature->component_count * limbs * params_n(params);
}

uint64_t graph_packed_bytes(const ckks_params *params, const value_signature *signature, bool is_seeded) {
    const kernel_basis basis = value_kernel_basis(params, signature);
    uint64_t component = 0;
    for (uint32_t limb = 0; limb < basis_limb_count(basis); limb++) {
        const uint64_t prime = params->prime[basis_prime(basis, limb, params->q_count)];
        const uint64_t bits = 64u - (uint64_t)__builtin_clzll(prime);
        component += align_up(params_n(params) * bits / 8, 16);
    }
    return component * (is_seeded ? 1 : signature->component_count) * signature->batch_count;
}

static ckks_status refuse(ckks_error *err, ckks_status code, const char *kind, uint32_t index,
                          const char *what) {
    char field[64];
    snprintf(field, sizeof field, "%s %u, %s", kind, index, what);
    return ckks_error_set(err, code, field, "the signature cannot be recorded");
}

static ckks_status check_signature(const value_signature *s, const ckks_params *params,
                                   uint32_t device_number, const char *kind, uint32_t index,
                                   ckks_error *err) {
    if (s->kind != VALUE_CIPHERTEXT && s->kind != VALUE_PLAINTEXT)
        return refuse(err, CKKS_INVALID_ARGUMENT, kind, index, "kind");
    if (s->schema_version != VALUE_SCHEMA_VERSION)
        return refuse(err, CKKS_UNSUPPORTED_VERSION, kind, index, "schema_version");
    if (memcmp(s->parameter_id, params->id, sizeof params->id) != 0)
        return refuse(err, CKKS_PARAMS_MISMATCH, kind, index, "parameter_id");
    if (s->component_count == 0 || s->component_count > COMPONENTS_MAX)
        return refuse(err, CKKS_INVALID_ARGUMENT, kind, index, "component_count");
    if (s->batch_count == 0 || s->batch_count > BATCH_MAX)
        return refuse(err, CKKS_INVALID_ARGUMENT, kind, index, "batch_count");
    if (s->limb_count == 0 || s->limb_count > params->q_count)
        return refuse(err, CKKS_INVALID_ARGUMENT, kind, index, "limb_count");
    if (s->domain != VALUE_EVALUATION && s->domain != VALUE_COEFFICIENT)
        return refuse(err, CKKS_INVALID_ARGUMENT, kind, index, "domain");
    if (s->basis != VALUE_BASIS_Q && s->basis != VALUE_BASIS_QP)
        return refuse(err, CKKS_INVALID_ARGUMENT, kind, index, "basis");
    if (!(s->scale > 0) || s->scale > 0x1p1000)
        return refuse(err, CKKS_INVALID_ARGUMENT, kind, index, "scale");
    const uint64_t bytes = value_batch_words(params, s) * 8 * s->batch_count;
    if (s->bytes != bytes || bytes > VALUE_BYTES_MAX)
        return refuse(err, CKKS_INVALID_ARGUMENT, kind, index, "bytes");
    if (s->alignment != VALUE_ALIGNMENT) return refuse(err, CKKS_INVALID_ARGUMENT, kind, index, "alignment");
    if (s->device != device_number) return refuse(err, CKKS_INVALID_ARGUMENT, kind, index, "device");
    return CKKS_OK;
}

ckks_status program_config_check(const graph_program_config *config, device *dev, ckks_error *err) {
    ckks_status rc;
    if (config->callable == NULL)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "callable", "there is nothing to record");
    if (config->context == NULL || config->tables == NULL)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "tables", "no parameter set");
    if (config->input_count == 0 || config->inputs == NULL || config->input_count > VALUES_MAX)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "inputs", "a program has 1 to %u inputs, not %u",
                              VALUES_MAX, config->input_count);
    if (config->output_count == 0 || config->outputs == NULL || config->output_count > VALUES_MAX)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "outputs", "a program has 1 to %u outputs, not %u",
                              VALUES_MAX, config->output_count);
    if (config->key_count > VALUES_MAX || (config->key_count > 0 && config->keys == NULL))
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "keys", "%u required keys", config->key_count);
    if (device_tables_context(config->tables) != config->context &&
        memcmp(context_params(device_tables_context(config->tables))->id, context_params(config->context)->id,
               CKKS_PARAMETER_ID_BYTES) != 0)
        return ckks_error_set(err, CKKS_PARAMS_MISMATCH, "tables", "tables are of another parameter set");
    if (config->bindings != NULL && binding_set_device(config->bindings) != dev)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "bindings", "the binding set is on another device");
    const ckks_params *params = context_params(config->context);
    for (uint32_t i = 0; i < config->input_count; i++)
        if ((rc = check_signature(&config->inputs[i], params, device_id(dev), "input", i, err)) != CKKS_OK)
            return rc;
    for (uint32_t i = 0; i < config->output_count; i++)
        if ((rc = check_signature(&config->outputs[i], params, device_id(dev), "output", i, err)) != CKKS_OK)
            return rc;
    return CKKS_OK;
}

static uint64_t take(uint64_t *at, uint64_t bytes) {
    const uint64_t here = *at;
    *at += align_up(bytes, VALUE_ALIGNMENT);
    return here;
}

ckks_status program_layout_create(program_layout *out, const graph_program_config *config, ckks_error *err) {
    const uint32_t ins = config->input_count, outs = config->output_count;
    const ckks_params *params = context_params(config->context);
    program_layout l = {0};
    l.table = calloc(3 * (size_t)ins + 2 * (size_t)outs, sizeof *l.table);
    if (l.table == NULL) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "out of memory");
    l.input_at = l.table, l.landing_at = l.input_at + ins, l.staging_at = l.landing_at + ins;
    l.output_at = l.staging_at + ins, l.result_at = l.output_at + outs;

    for (uint32_t i = 0; i < ins; i++) l.input_at[i] = take(&l.device_bytes, config->inputs[i].bytes);
    l.inputs_bytes = l.device_bytes;
    for (uint32_t i = 0; i < outs; i++) {
        l.output_at[i] = take(&l.device_bytes, config->outputs[i].bytes);
        l.result_at[i] = take(&l.result_bytes, config->outputs[i].bytes);
    }
    l.outputs_bytes = l.device_bytes - l.inputs_bytes;
    l.reference_bytes = l.device_bytes; /* the same offsets, in a block of its own */
    l.key_table_at = take(&l.device_bytes, (uint64_t)config->key_count * sizeof(key_table_entry));
    l.random_at = take(&l.device_bytes, sizeof(random_state) + (uint64_t)ins * sizeof(uint32_t));

    uint64_t header = 0;
    take(&header, (uint64_t)config->key_count * sizeof(key_table_entry));
    l.seeds_at = take(&header, (uint64_t)ins * SEED_BYTES);
    l.header_bytes = header;
    l.landing_bytes = l.host_bytes = header;
    for (uint32_t i = 0; i < ins; i++) {
        l.landing_at[i] = take(&l.landing_bytes, graph_packed_bytes(params, &config->inputs[i], false));
        l.staging_at[i] =
            take(&l.host_bytes, config->inputs[i].bytes); /* words take more than packed bytes */
    }
    l.landing_block_at = take(&l.device_bytes, l.landing_bytes);
    l.readback_bytes = align_up(sizeof(program_readback) + (uint64_t)ins * sizeof(uint32_t), VALUE_ALIGNMENT);
    l.readback_at = take(&l.host_bytes, GRAPH_PENDING_MAX * l.readback_bytes);
    *out = l;
    return CKKS_OK;
}

void program_layout_destroy(program_layout *layout) {
    free(layout->table);
    layout->table = NULL;
}
