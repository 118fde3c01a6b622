/*
 * Ingest: from what a request brought to words in the input buffers.
 *
 * All checks that the host can make come first and change nothing. Packed bytes then go to pinned staging, to
 * a landing place on the device, and are unpacked, expanded and checked by kernels that write one verdict
 * word per input; the transfer overlaps a running replay, the unpacking waits for it. Nobody waits for the
 * verdict here: the replay reads it back with its result.
 *
 * From the first device call on, the payload counts as poisoned until the last one has been accepted.
 */
#include "kernels/base/bytes.h"
#include "kernels/program/graph_internal.h"

#include <stdio.h>
#include <string.h>

static bool is_packed(const graph_input *input) {
    return input->source == GRAPH_SOURCE_PACKED_HOST || input->source == GRAPH_SOURCE_PACKED_PINNED;
}

/* ---- checks of the host ---- */

/* Pageable words are checked here, since no kernel will. Pinned and device words are the process's own. */
static ckks_status check_residues(const graph_program *program, uint32_t index, const graph_input *input,
                                  const char *field, ckks_error *err) {
    const ckks_params *params = context_params(program->config.context);
    const value_signature *s = &program->config.inputs[index];
    const kernel_basis basis = value_kernel_basis(params, s);
    const uint32_t n = params_n(params), limb_count = basis_limb_count(basis);
    const uint64_t poly_count = (uint64_t)s->batch_count * s->component_count;
    const uint64_t *word = input->data;
    for (uint64_t poly = 0; poly < poly_count; poly++)
        for (uint32_t limb = 0; limb < limb_count; limb++) {
            const uint64_t q = params->prime[basis_prime(basis, limb, params->q_count)];
            uint64_t above = 0;
            for (uint32_t i = 0; i < n; i++) above |= (uint64_t)(*word++ >= q);
            if (above)
                return ckks_error_set(err, CKKS_RESIDUE_RANGE, field, "a residue is not below its modulus");
        }
    return CKKS_OK;
}

static ckks_status check_device_words(const graph_program *program, const graph_input *input,
                                      const char *field, ckks_error *err) {
    if (!device_owns(program->slot->dev, input->data, input->bytes))
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, field, "the words are not in this device's memory");
    const uint64_t inputs_bytes = program->layout.inputs_bytes;
    const uintptr_t from = (uintptr_t)input->data, buffers = (uintptr_t)program->memory.device_block;
    if (from < buffers + inputs_bytes && buffers < from + input->bytes)
        return ckks_error_set(err, CKKS_ALIASING, field, "the words are the program's own input buffers");
    return CKKS_OK;
}

static ckks_status check_input(const graph_program *program, uint32_t index, const graph_input *input,
                               ckks_error *err) {
    char field[32];
    snprintf(field, sizeof field, "input %u", index);
    const value_signature *s = &program->config.inputs[index];
    const ckks_status rc = value_signature_compare(s, &input->signature, err);
    if (rc != CKKS_OK) return rc;
    if (!is_packed(input) && input->source != GRAPH_SOURCE_WORDS_HOST &&
        input->source != GRAPH_SOURCE_WORDS_PINNED && input->source != GRAPH_SOURCE_WORDS_DEVICE)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, field, "unknown source %u",
                              (unsigned)input->source);
    if (input->data == NULL) return ckks_error_set(err, CKKS_INVALID_ARGUMENT, field, "no data");
    if (input->is_seeded && (!is_packed(input) || s->component_count != 2 || input->seed == NULL))
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, field,
                              "a seed stands for the second of two packed components");
    const uint64_t bytes =
        is_packed(input) ? graph_packed_bytes(context_params(program->config.context), s, input->is_seeded)
                         : s->bytes;
    if (input->bytes != bytes)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, field, "%llu bytes instead of %llu",
                              (unsigned long long)input->bytes, (unsigned long long)bytes);
    if (!is_packed(input) && (uintptr_t)input->data % sizeof(uint64_t) != 0)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, field, "the words are not aligned");
    if (input->source == GRAPH_SOURCE_WORDS_HOST) return check_residues(program, index, input, field, err);
    if (input->source == GRAPH_SOURCE_WORDS_DEVICE) return check_device_words(program, input, field, err);
    return CKKS_OK;
}

static ckks_status check_lineage(const graph_input *inputs, uint32_t count, const resident_keys *keys,
                                 ckks_error *err) {
    const uint8_t *lineage = keys != NULL ? resident_keys_lineage(keys) : inputs[0].lineage;
    for (uint32_t i = 0; i < count; i++) {
        char field[32], has[2 * LINEAGE_BYTES + 1], wanted[2 * LINEAGE_BYTES + 1];
        snprintf(field, sizeof field, "input %u", i);
        if (memcmp(inputs[i].lineage, lineage, LINEAGE_BYTES) != 0)
            return ckks_error_set(err, CKKS_LINEAGE_MISMATCH, field, "its lineage is %s, %s %s",
                                  hex_encode(has, inputs[i].lineage, LINEAGE_BYTES),
                                  keys != NULL ? "the key set's" : "the first input's",
                                  hex_encode(wanted, lineage, LINEAGE_BYTES));
    }
    return CKKS_OK;
}

static ckks_status check_all(const graph_program *program, const graph_input *inputs, uint32_t input_count,
                             const resident_keys *keys, ckks_error *err) {
    ckks_status rc;
    if (inputs == NULL || input_count != program->config.input_count)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "inputs", "%u inputs instead of %u", input_count,
                              program->config.input_count);
    for (uint32_t i = 0; i < input_count; i++)
        if ((rc = check_input(program, i, &inputs[i], err)) != CKKS_OK) return rc;
    if ((rc = program_check_keys(program, keys, err)) != CKKS_OK) return rc;
    return check_lineage(inputs, input_count, keys, err);
}

/* ---- staging ---- */

static bool is_staged(const graph_input *input) {
    return input->source == GRAPH_SOURCE_PACKED_HOST || input->source == GRAPH_SOURCE_WORDS_HOST;
}

static ckks_status fill_staging(graph_program *program, const graph_input *inputs, const resident_keys *keys,
                                ckks_error *err) {
    const program_layout *l = &program->layout;
    uint8_t *staging = program->memory.staging;
    if (program->config.key_count > 0) {
        const ckks_status rc = key_table_fill((key_table_entry *)(void *)staging, keys, program->config.keys,
                                              program->config.key_count, err);
        if (rc != CKKS_OK) return rc;
    }
    for (uint32_t i = 0; i < program->config.input_count; i++) {
        if (is_staged(&inputs[i])) memcpy(staging + l->staging_at[i], inputs[i].data, inputs[i].bytes);
        if (inputs[i].is_seeded)
            memcpy(staging + l->seeds_at + (size_t)i * SEED_BYTES, inputs[i].seed, SEED_BYTES);
    }
    return CKKS_OK;
}

/* What reads the caller's own memory waits until it is there. */
static ckks_status await_source(graph_program *program, const graph_input *input, ckks_error *err) {
    if (is_staged(input) || input->ready == NULL) return CKKS_OK;
    return device_stream_wait(program->slot->copy, input->ready, err);
}

/* Key table, seeds and packed bytes to their landing place: nothing that a running replay reads. */
static ckks_status transfer(graph_program *program, const graph_input *inputs, ckks_error *err) {
    const program_layout *l = &program->layout;
    program_memory *m = &program->memory;
    device_stream *stream = program->slot->copy;
    ckks_status rc;
    if ((rc = device_copy_in(stream, m->landing, m->staging, l->header_bytes, err)) != CKKS_OK) return rc;
    for (uint32_t i = 0; i < program->config.input_count; i++) {
        if (!is_packed(&inputs[i])) continue;
        const void *from = is_staged(&inputs[i]) ? m->staging + l->staging_at[i] : inputs[i].data;
        if ((rc = await_source(program, &inputs[i], err)) != CKKS_OK) return rc;
        if ((rc = device_copy_in(stream, m->landing + l->landing_at[i], from, inputs[i].bytes, err)) !=
            CKKS_OK)
            return rc;
    }
    return CKKS_OK;
}

/* Whole ciphertexts are components one after the other; seeded ones leave every second to the seed: then one
 * launch unpacks the first components of all batch entries and another expands the others. */
static ckks_status unpack(graph_program *program, uint32_t index, const graph_input *input, ckks_error *err) {
    const program_layout *l = &program->layout;
    const program_memory *m = &program->memory;
    const ckks_params *params = context_params(program->config.context);
    const value_signature *s = &program->config.inputs[index];
    const kernel_basis basis = value_kernel_basis(params, s);
    const uint32_t limbs = basis_limb_count(basis);
    kernel_poly poly = {.words = m->inputs[index].words,
                        .component_count = s->batch_count * (input->is_seeded ? 1 : s->component_count),
                        .component_stride = limbs * (input->is_seeded ? s->component_count : 1),
                        .basis = basis};
    const kernel_unpack_args args = {.tables = program->config.tables,
                                     .out = poly,
                                     .packed = m->landing + l->landing_at[index],
                                     .packed_bytes = input->bytes,
                                     .verdict = m->verdict + index};
    ckks_status rc = device_launch(program->slot->copy, KERNEL_UNPACK, &args, err);
    if (rc != CKKS_OK || s->component_count < 2) return rc;
    poly.words += (size_t)limbs * params_n(params);
    if (input->is_seeded) {
        const kernel_expand_args expand = {.tables = program->config.tables,
                                           .out = poly,
                                           .seed = m->landing + l->seeds_at + (size_t)index * SEED_BYTES,
                                           .purpose = SEED_CIPHERTEXT};
        return device_launch(program->slot->copy, KERNEL_EXPAND, &expand, err);
    }
    /* a second component of zero would be a message in the clear */
    poly.component_count = 1;
    for (uint32_t b = 0; b < s->batch_count && rc == CKKS_OK; b++) {
        const kernel_check_nonzero_args check = {
            .tables = program->config.tables, .a = poly, .verdict = m->verdict + index};
        rc = device_launch(program->slot->copy, KERNEL_CHECK_NONZERO, &check, err);
        poly.words += value_batch_words(params, s);
    }
    return rc;
}

static ckks_status ingest(graph_program *program, uint32_t index, const graph_input *input, ckks_error *err) {
    program_memory *m = &program->memory;
    device_stream *stream = program->slot->copy;
    if (is_packed(input)) return unpack(program, index, input, err);
    const ckks_status rc = await_source(program, input, err);
    if (rc != CKKS_OK) return rc;
    switch (input->source) {
    case GRAPH_SOURCE_WORDS_HOST:
        return device_copy_in(stream, m->inputs[index].words, m->staging + program->layout.staging_at[index],
                              input->bytes, err);
    case GRAPH_SOURCE_WORDS_PINNED:
        return device_copy_in(stream, m->inputs[index].words, input->data, input->bytes, err);
    default:
        return device_copy(stream, m->inputs[index].words, input->data, input->bytes, err);
    }
}

/* Under the slot's lock. */
static ckks_status enqueue(graph_program *program, const graph_input *inputs, uint32_t event_index,
                           ckks_error *err) {
    program_memory *m = &program->memory;
    const graph_program_config *config = &program->config;
    device_stream *stream = program->slot->copy;
    ckks_status rc;
    bool has_words = false; /* that leave the staging area only once the replay is over */
    for (uint32_t i = 0; i < config->input_count; i++)
        has_words |= inputs[i].source == GRAPH_SOURCE_WORDS_HOST;
    if ((rc = device_event_record(m->copy_started[event_index], stream, err)) != CKKS_OK) return rc;
    if ((rc = transfer(program, inputs, err)) != CKKS_OK) return rc;
    if (!has_words && (rc = device_event_record(m->staged, stream, err)) != CKKS_OK) return rc;
    if ((rc = device_stream_wait(stream, m->replay_complete, err)) != CKKS_OK) return rc;
    if ((rc = device_fill(stream, m->verdict, 0, config->input_count * sizeof *m->verdict, err)) != CKKS_OK)
        return rc;
    if (config->key_count > 0 &&
        (rc = device_copy(stream, m->key_table, m->landing, config->key_count * sizeof(key_table_entry),
                          err)) != CKKS_OK)
        return rc;
    for (uint32_t i = 0; i < config->input_count; i++)
        if ((rc = ingest(program, i, &inputs[i], err)) != CKKS_OK) return rc;
    if (has_words && (rc = device_event_record(m->staged, stream, err)) != CKKS_OK) return rc;
    m->is_staging = true;
    return device_event_record(m->copied[event_index], stream, err);
}

/* Waits until the staging area has left the host. */
static ckks_status wait_staging(graph_program *program, ckks_error *err) {
    program_memory *m = &program->memory;
    if (!m->is_staging) return CKKS_OK;
    const ckks_status rc = event_drain(m->staged, err);
    m->is_staging = false;
    return rc;
}

/* Events that a replay in flight looks at are left alone. */
static uint32_t free_event_index(const graph_program *program) {
    for (uint32_t index = 0;; index++) {
        bool is_used = false;
        for (uint32_t i = 0; i < GRAPH_PENDING_MAX; i++)
            is_used |= program->pending[i].is_used && program->pending[i].event_index == index;
        if (!is_used) return index;
    }
}

ckks_status program_copy_inputs(graph_program *program, graph_handle *out, const graph_input *inputs,
                                uint32_t input_count, resident_keys *keys, ckks_error *err) {
    ckks_status rc;
    graph_slot *slot = program->slot;
    if ((rc = check_all(program, inputs, input_count, keys, err)) != CKKS_OK) return rc;
    if ((rc = wait_staging(program, err)) != CKKS_OK) {
        program_fail(program); /* an earlier copy broke on its stream */
        return rc;
    }
    if ((rc = fill_staging(program, inputs, keys, err)) != CKKS_OK) return rc;

    const bool is_superseding = program->outstanding != 0;
    const uint32_t event_index = free_event_index(program);
    program->payload.is_poisoned = true;
    program->outstanding = 0;
    pthread_mutex_lock(&slot->lock);
    rc = enqueue(program, inputs, event_index, err);
    const ckks_status drained = rc != CKKS_OK ? stream_drain(slot->copy, NULL) : CKKS_OK;
    pthread_mutex_unlock(&slot->lock);
    resident_keys_release(program->payload.keys);
    program->payload.keys = NULL;
    if (drained != CKKS_OK) program_fail(program);
    if (rc != CKKS_OK) return rc;

    if (keys != NULL) resident_keys_retain(keys);
    program->last_sequence++;
    program->consumed <<= 1;
    program->outstanding = program->last_sequence;
    program->payload = (graph_payload){
        .sequence = program->last_sequence, .keys = keys, .event_index = event_index, .is_timed = true};
    *out = (graph_handle){.program_id = program->id, .sequence = program->last_sequence};
    if (is_superseding) {
        pthread_mutex_lock(&program->guard);
        program->stats.superseded_copies++;
        pthread_mutex_unlock(&program->guard);
    }
    return CKKS_OK;
}

ckks_status graph_program_copy_inputs_from(graph_program *program, graph_handle *out,
                                           const graph_input *inputs, uint32_t input_count,
                                           resident_keys *keys, ckks_error *err) {
    ckks_status rc;
    if (out == NULL) return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "handle", "nowhere to put the handle");
    if ((rc = program_enter(program, err)) != CKKS_OK) return rc;
    if ((rc = program_check_ready(program, err)) == CKKS_OK)
        rc = program_copy_inputs(program, out, inputs, input_count, keys, err);
    program_leave(program);
    return rc;
}
