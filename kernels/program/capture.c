/*
 * Capture: from a configuration to a recording that is known to compute what the callable computes.
 *
 * Admission counts before it allocates. The eager reference and the warm-up runs work on buffers of their
 * own, so the retained ones are first touched by the recording's validation replay, which must equal the
 * reference bit for bit. What the recording writes is read off its nodes: the arena, the outputs and the
 * random counter, or it is refused. Whatever goes wrong, the stage and the first cause are kept and every
 * byte is given back.
 *
 * With eager execution the same steps run, except that a planning recording stands in for the real one, and
 * the validation "replay" is a run of the callable.
 */
#include "kernels/base/bytes.h"
#include "kernels/program/graph_internal.h"

#include <sodium.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What only capture needs. */
typedef struct capture_run {
    graph_program *program;
    const ckks_value *examples;
    resident_keys *keys;
    uint32_t warmup;
    uint8_t *reference_block;     /* device: inputs and outputs once more */
    ckks_value *inputs, *outputs; /* in it */
    void *expected, *actual;      /* pinned: words of all outputs */
    graph_program_stats stats;    /* in the making: others may look at the program's */
} capture_run;

/* ---- admission ---- */

static bool overlaps(const ckks_value *a, const ckks_value *b) {
    const uintptr_t x = (uintptr_t)a->words, y = (uintptr_t)b->words;
    return x < y + b->signature.bytes && y < x + a->signature.bytes;
}

static ckks_status check_examples(const graph_program *program, const ckks_value *examples, ckks_error *err) {
    const graph_program_config *config = &program->config;
    if (examples == NULL) return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "inputs", "no example inputs");
    for (uint32_t i = 0; i < config->input_count; i++) {
        char field[32];
        snprintf(field, sizeof field, "input %u", i);
        const ckks_status rc = value_signature_compare(&config->inputs[i], &examples[i].signature, err);
        if (rc != CKKS_OK) return rc;
        if (!device_owns(program->slot->dev, examples[i].words, examples[i].signature.bytes))
            return ckks_error_set(err, CKKS_INVALID_ARGUMENT, field,
                                  "the example is not in this device's memory");
        for (uint32_t j = 0; j < i; j++)
            if (overlaps(&examples[i], &examples[j]))
                return ckks_error_set(err, CKKS_ALIASING, field, "it shares storage with input %u", j);
    }
    return CKKS_OK;
}

ckks_status program_check_keys(const graph_program *program, const resident_keys *keys, ckks_error *err) {
    const graph_program_config *config = &program->config;
    if (keys == NULL && config->key_count == 0) return CKKS_OK;
    if (keys == NULL) return ckks_error_set(err, CKKS_KEY_MISSING, "keys", "the program needs a key set");
    if (resident_keys_device(keys) != program->slot->dev)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "keys", "the key set is on another device");
    if (memcmp(resident_keys_parameter_id(keys), context_params(config->context)->id,
               CKKS_PARAMETER_ID_BYTES) != 0)
        return ckks_error_set(err, CKKS_PARAMS_MISMATCH, "keys", "the key set is of another parameter set");
    return resident_keys_satisfy(keys, config->keys, config->key_count, err);
}

/* Peak of the capture: what stays, the reference buffers, and two results on the host. */
static ckks_status admit(graph_program *program, ckks_error *err) {
    const program_layout *l = &program->layout;
    graph_slot *slot = program->slot;
    const workspace_plan *plan = program->config.workspace;
    const uint64_t work = plan != NULL ? workspace_plan_bytes(plan) : 0;
    if (plan == NULL) return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "workspace", "no workspace plan");
    if (work > slot->arena_bytes)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "arena_bytes",
                              "the program needs an arena of %llu bytes, the slot has %llu",
                              (unsigned long long)work, (unsigned long long)slot->arena_bytes);
    const uint64_t on_device = l->device_bytes + l->reference_bytes;
    const uint64_t total = on_device + l->host_bytes + 2 * l->result_bytes;
    device_memory_account account;
    device_memory(slot->dev, &account);
    const uint64_t left = account.bytes_used < account.bytes_max ? account.bytes_max - account.bytes_used : 0;
    if (account.bytes_max > 0 && on_device > left)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "device memory",
                              "the program needs %llu bytes, the device has %llu left of %llu",
                              (unsigned long long)on_device, (unsigned long long)left,
                              (unsigned long long)account.bytes_max);
    const uint64_t room =
        slot->program_bytes < slot->program_bytes_max ? slot->program_bytes_max - slot->program_bytes : 0;
    if (slot->program_bytes_max > 0 && total > room)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "program_bytes_max",
                              "the program needs %llu bytes, the slot has %llu left of %llu",
                              (unsigned long long)total, (unsigned long long)room,
                              (unsigned long long)slot->program_bytes_max);
    program->memory.charged_bytes = l->device_bytes + l->host_bytes;
    slot->program_bytes += program->memory.charged_bytes;
    return CKKS_OK;
}

/* ---- allocation ---- */

static ckks_status create_events(graph_program *program, ckks_error *err) {
    program_memory *m = &program->memory;
    device *dev = program->slot->dev;
    ckks_status rc;
    for (uint32_t i = 0; i < COPY_EVENT_COUNT; i++) {
        if ((rc = device_event_create(dev, &m->copied[i], err)) != CKKS_OK) return rc;
        if ((rc = device_event_create(dev, &m->copy_started[i], err)) != CKKS_OK) return rc;
    }
    if ((rc = device_event_create(dev, &m->staged, err)) != CKKS_OK) return rc;
    if ((rc = device_event_create(dev, &m->replay_complete, err)) != CKKS_OK) return rc;
    for (uint32_t i = 0; i < GRAPH_PENDING_MAX; i++) {
        graph_pending *pending = &program->pending[i];
        if ((rc = device_event_create(dev, &pending->started, err)) != CKKS_OK) return rc;
        if ((rc = device_event_create(dev, &pending->replayed, err)) != CKKS_OK) return rc;
        if ((rc = device_event_create(dev, &pending->done, err)) != CKKS_OK) return rc;
        pending->readback = (program_readback *)(void *)(m->host_block + program->layout.readback_at +
                                                         i * program->layout.readback_bytes);
    }
    return CKKS_OK;
}

static void place_values(const graph_program *program, uint8_t *block, ckks_value *inputs,
                         ckks_value *outputs) {
    const graph_program_config *config = &program->config;
    for (uint32_t i = 0; i < config->input_count; i++)
        inputs[i] =
            (ckks_value){config->inputs[i], (uint64_t *)(void *)(block + program->layout.input_at[i])};
    for (uint32_t i = 0; i < config->output_count; i++)
        outputs[i] =
            (ckks_value){config->outputs[i], (uint64_t *)(void *)(block + program->layout.output_at[i])};
}

static ckks_status allocate(capture_run *run, ckks_error *err) {
    graph_program *program = run->program;
    const program_layout *l = &program->layout;
    program_memory *m = &program->memory;
    device *dev = program->slot->dev;
    void *block;
    ckks_status rc;
    if ((rc = device_allocate(dev, &block, l->device_bytes, MEMORY_RETAINED, err)) != CKKS_OK) return rc;
    m->device_block = block;
    if ((rc = device_allocate_host(dev, &block, l->host_bytes, err)) != CKKS_OK) return rc;
    m->host_block = block;
    m->key_table = (key_table_entry *)(void *)(m->device_block + l->key_table_at);
    m->random = (random_state *)(void *)(m->device_block + l->random_at);
    m->verdict = (uint32_t *)(void *)(m->device_block + l->random_at + sizeof(random_state));
    m->landing = m->device_block + l->landing_block_at;
    m->staging = m->host_block;
    place_values(program, m->device_block, m->inputs, m->outputs);
    if ((rc = create_events(program, err)) != CKKS_OK) return rc;
    if ((rc = result_pool_create(&m->pool, dev, l->result_bytes, err)) != CKKS_OK) return rc;
    if ((rc = output_views_create(&m->views, program->slot, err)) != CKKS_OK) return rc;
    if ((rc = workspace_create_fixed(&m->work, program->config.workspace, program->slot->arena, err)) !=
        CKKS_OK)
        return rc;

    run->inputs =
        calloc((size_t)program->config.input_count + program->config.output_count, sizeof(ckks_value));
    if (run->inputs == NULL) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "out of memory");
    run->outputs = run->inputs + program->config.input_count;
    if ((rc = device_allocate(dev, &block, l->reference_bytes, MEMORY_RETAINED, err)) != CKKS_OK) return rc;
    run->reference_block = block;
    place_values(program, run->reference_block, run->inputs, run->outputs);
    if ((rc = result_pool_take(m->pool, &run->expected, err)) != CKKS_OK) return rc;
    return result_pool_take(m->pool, &run->actual, err);
}

/* Key table from the capture's keys; random state with a fresh key. */
static ckks_status write_state(capture_run *run, ckks_error *err) {
    graph_program *program = run->program;
    program_memory *m = &program->memory;
    device_stream *stream = program->slot->compute;
    const uint32_t key_count = program->config.key_count;
    ckks_status rc;
    if ((rc = device_fill(stream, m->random, 0,
                          sizeof(random_state) + program->config.input_count * sizeof(uint32_t), err)) !=
        CKKS_OK)
        return rc;
    if (key_count > 0) {
        key_table_entry *entries = (key_table_entry *)(void *)m->staging;
        if ((rc = key_table_fill(entries, run->keys, program->config.keys, key_count, err)) != CKKS_OK)
            return rc;
        if ((rc = device_copy_in(stream, m->key_table, entries, key_count * sizeof *entries, err)) != CKKS_OK)
            return rc;
    }
    if ((rc = stream_drain(stream, err)) != CKKS_OK) return rc;
    program->counter_next = 0;
    if (!program->config.uses_randomness) return CKKS_OK;
    uint8_t key[32];
    randombytes_buf(key, sizeof key);
    rc = program_write_random(program, key, 0, err);
    sodium_memzero(key, sizeof key);
    return rc;
}

/* ---- eager runs ---- */

static ckks_status copy_examples(capture_run *run, const ckks_value *to, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    for (uint32_t i = 0; i < run->program->config.input_count && rc == CKKS_OK; i++)
        rc = device_copy(run->program->slot->compute, to[i].words, run->examples[i].words,
                         to[i].signature.bytes, err);
    return rc;
}

static ckks_status fetch_outputs(capture_run *run, const ckks_value *outputs, void *block, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    for (uint32_t i = 0; i < run->program->config.output_count && rc == CKKS_OK; i++)
        rc =
            device_copy_out(run->program->slot->compute, (uint8_t *)block + run->program->layout.result_at[i],
                            outputs[i].words, outputs[i].signature.bytes, err);
    return rc;
}

/* The counter as the device has it; waits. */
static ckks_status fetch_counter(graph_program *program, uint64_t *counter, ckks_error *err) {
    program_readback *pinned = program->pending[0].readback;
    ckks_status rc = device_copy_out(program->slot->compute, &pinned->counter,
                                     &program->memory.random->counter, sizeof pinned->counter, err);
    if (rc == CKKS_OK) rc = stream_drain(program->slot->compute, err);
    if (rc == CKKS_OK) *counter = pinned->counter;
    return rc;
}

static ckks_status run_eagerly(capture_run *run, ckks_error *err) {
    graph_program *program = run->program;
    ckks_status rc;
    uint64_t counter = 0;
    const uint64_t begin = monotonic_ns();
    CKKS_ASSERT(run->examples != NULL && run->inputs != NULL && run->outputs != NULL);
    if ((rc = copy_examples(run, run->inputs, err)) != CKKS_OK) return rc;
    if ((rc = program_run(program, run->inputs, run->outputs, err)) != CKKS_OK) return rc;
    if ((rc = fetch_outputs(run, run->outputs, run->expected, err)) != CKKS_OK) return rc;
    if ((rc = fetch_counter(program, &counter, err)) != CKKS_OK) return rc;
    program->blocks_per_run = counter;
    for (uint32_t i = 0; i < run->warmup; i++)
        if ((rc = program_run(program, run->inputs, run->outputs, err)) != CKKS_OK) return rc;
    if ((rc = fetch_counter(program, &counter, err)) != CKKS_OK) return rc;
    if (counter != program->blocks_per_run * (run->warmup + UINT64_C(1)))
        return ckks_error_set(err, CKKS_RECORDING_VIOLATION, "callable", "its runs draw different amounts");
    run->stats.warmup_ns = monotonic_ns() - begin;
    return CKKS_OK;
}

/* ---- recording ---- */

static bool inside(const kernel_access *access, const void *base, uint64_t bytes) {
    const uintptr_t a = (uintptr_t)access->address, b = (uintptr_t)base;
    return a >= b && a - b <= bytes && access->bytes <= bytes - (a - b);
}

/* from output `first` on: those that lie one behind the other, which a launch may write together */
static uint64_t adjacent_bytes(const graph_program *program, uint32_t first) {
    const ckks_value *outputs = program->memory.outputs;
    uint64_t bytes = outputs[first].signature.bytes;
    for (uint32_t i = first + 1; i < program->config.output_count; i++) {
        if ((uintptr_t)outputs[i].words != (uintptr_t)outputs[first].words + bytes) break;
        bytes += outputs[i].signature.bytes;
    }
    return bytes;
}

static ckks_status check_write(const graph_program *program, const kernel_access *access, ckks_error *err) {
    const program_memory *m = &program->memory;
    if (inside(access, program->slot->arena, program->slot->arena_bytes)) return CKKS_OK;
    if (program->config.uses_randomness && inside(access, m->random, sizeof *m->random)) return CKKS_OK;
    for (uint32_t i = 0; i < program->config.output_count; i++)
        if (inside(access, m->outputs[i].words, adjacent_bytes(program, i))) return CKKS_OK;
    for (uint32_t i = 0; i < program->config.input_count; i++) {
        const ckks_value written = {.signature.bytes = access->bytes,
                                    .words = (uint64_t *)(uintptr_t)access->address};
        char field[32];
        snprintf(field, sizeof field, "input %u", i);
        if (overlaps(&m->inputs[i], &written))
            return ckks_error_set(err, CKKS_RECORDING_VIOLATION, field, "the recorded region writes it");
    }
    return ckks_error_set(err, CKKS_RECORDING_VIOLATION, "callable",
                          "the recorded region writes %llu bytes outside its workspace and outputs",
                          (unsigned long long)access->bytes);
}

static ckks_status check_graph(const graph_program *program, graph_program_stats *stats,
                               const device_graph *graph, ckks_error *err) {
    const uint32_t count = device_graph_node_count(graph);
    for (uint32_t i = 0; i < count; i++) {
        const graph_node *node = device_graph_node(graph, i);
        for (uint32_t k = 0; k < node->access_count; k++) {
            if (!node->accesses[k].is_write) continue;
            const ckks_status rc = check_write(program, &node->accesses[k], err);
            if (rc != CKKS_OK) return rc;
        }
        stats->kernel_nodes += node->kind == GRAPH_NODE_KERNEL;
        stats->copy_nodes += node->kind == GRAPH_NODE_COPY;
        stats->fill_nodes += node->kind == GRAPH_NODE_FILL;
    }
    return CKKS_OK;
}

static ckks_status record(capture_run *run, ckks_error *err) {
    graph_program *program = run->program;
    program_memory *m = &program->memory;
    device_stream *stream = program->slot->compute;
    const bool is_eager = program->config.execution_eager;
    const uint64_t begin = monotonic_ns();
    ckks_status rc = is_eager ? device_record_begin_planning(stream, err) : device_record_begin(stream, err);
    if (rc != CKKS_OK) return rc;
    if ((rc = program_run(program, m->inputs, m->outputs, err)) != CKKS_OK) {
        device_record_abort(stream);
        return rc;
    }
    if ((rc = device_record_end(stream, &m->graph, err)) != CKKS_OK) {
        m->graph = NULL;
        return rc;
    }
    if ((rc = check_graph(program, &run->stats, m->graph, err)) != CKKS_OK) return rc;
    if (is_eager) {
        device_graph_destroy(m->graph);
        m->graph = NULL;
    }
    run->stats.capture_ns = monotonic_ns() - begin;
    return CKKS_OK;
}

/* ---- validation ---- */

static ckks_status compare_outputs(const capture_run *run, ckks_error *err) {
    const graph_program *program = run->program;
    CKKS_ASSERT(run->expected != NULL && run->actual != NULL);
    for (uint32_t i = 0; i < program->config.output_count; i++) {
        const uint64_t at = program->layout.result_at[i] / 8, count = program->config.outputs[i].bytes / 8;
        const uint64_t *expected = (const uint64_t *)run->expected + at,
                       *actual = (uint64_t *)run->actual + at;
        if (memcmp(expected, actual, count * 8) == 0) continue;
        uint64_t word = 0;
        while (expected[word] == actual[word]) word++;
        char field[32];
        snprintf(field, sizeof field, "output %u", i);
        return ckks_error_set(err, CKKS_INTERNAL, field,
                              "word %llu of the replay differs from the eager reference",
                              (unsigned long long)word);
    }
    return CKKS_OK;
}

static ckks_status validate(capture_run *run, ckks_error *err) {
    graph_program *program = run->program;
    program_memory *m = &program->memory;
    ckks_status rc;
    if (program->config.uses_randomness && (rc = program_write_random(program, NULL, 0, err)) != CKKS_OK)
        return rc;
    if ((rc = copy_examples(run, m->inputs, err)) != CKKS_OK) return rc;
    const uint64_t begin = monotonic_ns();
    rc = m->graph != NULL ? device_graph_replay(m->graph, program->slot->compute, err)
                          : program_run(program, m->inputs, m->outputs, err);
    if (rc != CKKS_OK) return rc;
    if ((rc = fetch_outputs(run, m->outputs, run->actual, err)) != CKKS_OK) return rc;
    uint64_t counter = 0;
    if ((rc = fetch_counter(program, &counter, err)) != CKKS_OK) return rc;
    run->stats.first_replay_ns = monotonic_ns() - begin;
    if ((rc = compare_outputs(run, err)) != CKKS_OK) return rc;
    if (counter != program->blocks_per_run)
        return ckks_error_set(err, CKKS_INTERNAL, "random state",
                              "the replay moved the counter by %llu blocks instead of %llu",
                              (unsigned long long)counter, (unsigned long long)program->blocks_per_run);
    return CKKS_OK;
}

/* Moves the counter behind everything drawn so far, and forgets the capture's keys. */
static ckks_status settle(capture_run *run, ckks_error *err) {
    graph_program *program = run->program;
    program_memory *m = &program->memory;
    ckks_status rc;
    if (program->config.uses_randomness &&
        (rc = program_write_random(program, NULL, program->blocks_per_run * (run->warmup + UINT64_C(1)),
                                   err)) != CKKS_OK)
        return rc;
    if (program->config.key_count > 0 &&
        (rc = device_fill(program->slot->compute, m->key_table, 0,
                          program->config.key_count * sizeof(key_table_entry), err)) != CKKS_OK)
        return rc;
    return stream_drain(program->slot->compute, err);
}

/* ---- all of it ---- */

/* Under the slot's lock. *stage is where it stands. */
static ckks_status capture_steps(capture_run *run, const char **stage, ckks_error *err) {
    ckks_status rc;
    *stage = "admission";
    if ((rc = admit(run->program, err)) != CKKS_OK) return rc;
    if ((rc = allocate(run, err)) != CKKS_OK) return rc;
    *stage = "warmup";
    if ((rc = write_state(run, err)) != CKKS_OK) return rc;
    if ((rc = run_eagerly(run, err)) != CKKS_OK) return rc;
    *stage = "capture";
    if ((rc = record(run, err)) != CKKS_OK) return rc;
    *stage = "first replay";
    if ((rc = validate(run, err)) != CKKS_OK) return rc;
    return settle(run, err);
}

static void capture_fini(capture_run *run) {
    program_memory *m = &run->program->memory;
    device *dev = run->program->slot->dev;
    if (run->expected != NULL) result_pool_give(m->pool, run->expected);
    if (run->actual != NULL) result_pool_give(m->pool, run->actual);
    device_free(dev, run->reference_block);
    free(run->inputs);
}

static void publish(graph_program *program, const graph_program_stats *measured) {
    const program_layout *l = &program->layout;
    pthread_mutex_lock(&program->guard);
    graph_program_stats *stats = &program->stats;
    stats->kernel_nodes = measured->kernel_nodes;
    stats->copy_nodes = measured->copy_nodes;
    stats->fill_nodes = measured->fill_nodes;
    stats->warmup_ns = measured->warmup_ns;
    stats->capture_ns = measured->capture_ns;
    stats->first_replay_ns = measured->first_replay_ns;
    stats->input_bytes = l->inputs_bytes;
    stats->output_bytes = l->outputs_bytes;
    stats->staging_bytes = l->host_bytes;
    stats->device_staging_bytes = l->landing_bytes;
    stats->arena_bytes = workspace_plan_bytes(program->config.workspace);
    stats->key_table_bytes = program->config.key_count * sizeof(key_table_entry);
    stats->random_blocks = program->blocks_per_run;
    program->state = GRAPH_PROGRAM_READY;
    pthread_mutex_unlock(&program->guard);
}

static ckks_status capture(graph_program *program, int32_t warmup, const ckks_value *examples,
                           resident_keys *keys, const char **stage, ckks_error *err) {
    ckks_status rc;
    graph_slot *slot = program->slot;
    uint64_t generation;
    *stage = "admission";
    if (program->state != GRAPH_PROGRAM_CREATED && program->state != GRAPH_PROGRAM_FAILED)
        return ckks_error_set(err, CKKS_FAILED_PRECONDITION, "program", "the program is captured already");
    if (warmup < 0) return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "warmup", "%d warm-up runs", warmup);
    if ((rc = check_examples(program, examples, err)) != CKKS_OK) return rc;
    if ((rc = program_check_keys(program, keys, err)) != CKKS_OK) return rc;
    capture_run run = {.program = program, .examples = examples, .keys = keys, .warmup = (uint32_t)warmup};
    if (program->is_attached &&
        (rc = binding_set_enter(program->config.bindings, NULL, &generation, err)) != CKKS_OK)
        return rc;
    pthread_mutex_lock(&slot->lock);
    rc = capture_steps(&run, stage, err);
    if (rc != CKKS_OK && program->memory.charged_bytes > 0)
        (void)stream_drain(slot->compute, NULL); /* before the reference buffers go */
    capture_fini(&run);
    program->epoch = slot->epoch;
    pthread_mutex_unlock(&slot->lock);
    if (program->is_attached) binding_set_leave(program->config.bindings);
    if (rc != CKKS_OK)
        program_release_memory(program);
    else
        publish(program, &run.stats);
    return rc;
}

ckks_status graph_program_capture(graph_program *program, int32_t warmup, const ckks_value *examples,
                                  resident_keys *keys, ckks_error *err) {
    ckks_status rc = program_enter(program, err);
    if (rc != CKKS_OK) return rc;
    const char *stage = "";
    rc = capture(program, warmup, examples, keys, &stage, err);
    if (rc != CKKS_OK) ckks_error_stage(err, stage);
    program_leave(program);
    return rc;
}
