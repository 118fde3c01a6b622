/*
 * Life of a program: create, the door that lets one thread in at a time, failure, close; and how its callable
 * is run. Capture, ingest and replay have files of their own.
 */
#include "kernels/base/bytes.h"
#include "kernels/program/graph_internal.h"

#include <sodium.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- one thread at a time ---- */

ckks_status program_enter(graph_program *program, ckks_error *err) {
    if (program == NULL) return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "program", "no program");
    ckks_status rc = CKKS_OK;
    pthread_mutex_lock(&program->guard);
    if (program->is_closing)
        rc = ckks_error_set(err, CKKS_CLOSED, "program", "the program is closed");
    else if (program->is_busy)
        rc = ckks_error_set(err, CKKS_FAILED_PRECONDITION, "program", "another thread is using the program");
    else
        program->is_busy = true;
    pthread_mutex_unlock(&program->guard);
    return rc;
}

void program_leave(graph_program *program) {
    pthread_mutex_lock(&program->guard);
    program->is_busy = false;
    program->has_outstanding = program->outstanding != 0;
    program->is_poisoned = program->payload.is_poisoned;
    pthread_cond_broadcast(&program->idle);
    pthread_mutex_unlock(&program->guard);
}

static void set_state(graph_program *program, graph_program_state state) {
    pthread_mutex_lock(&program->guard);
    program->state = state;
    pthread_mutex_unlock(&program->guard);
}

graph_program_state graph_program_get_state(graph_program *program) {
    pthread_mutex_lock(&program->guard);
    graph_program_state state = program->state;
    if (state == GRAPH_PROGRAM_READY && program->is_poisoned)
        state = GRAPH_PROGRAM_POISONED;
    else if (state == GRAPH_PROGRAM_READY && program->has_outstanding)
        state = GRAPH_PROGRAM_PREPARED;
    pthread_mutex_unlock(&program->guard);
    return state;
}

void graph_program_get_stats(graph_program *program, graph_program_stats *out) {
    pthread_mutex_lock(&program->guard);
    *out = program->stats;
    if (program->is_attached)
        out->refreshes = binding_set_refreshes(program->config.bindings) - program->attachment.refreshes;
    pthread_mutex_unlock(&program->guard);
}

ckks_status program_check_ready(graph_program *program, ckks_error *err) {
    if (program->state == GRAPH_PROGRAM_CREATED)
        return ckks_error_set(err, CKKS_FAILED_PRECONDITION, "program", "the program was not captured");
    pthread_mutex_lock(&program->slot->lock);
    const bool is_present = program->epoch == program->slot->epoch;
    pthread_mutex_unlock(&program->slot->lock);
    if (program->state == GRAPH_PROGRAM_READY && is_present) return CKKS_OK;
    program_fail(program);
    return ckks_error_set(err, CKKS_DEVICE_ERROR, "program",
                          "the program failed on the device: recover the slot and capture again");
}

/* ---- create and destroy ---- */

static void *copy_array(const void *from, size_t count, size_t size) {
    void *to = calloc(count > 0 ? count : 1, size);
    if (to != NULL && count > 0) memcpy(to, from, count * size);
    return to;
}

static ckks_status config_copy(graph_program *program, const graph_program_config *config, ckks_error *err) {
    program->config = *config;
    program->config.inputs = copy_array(config->inputs, config->input_count, sizeof *config->inputs);
    program->config.outputs = copy_array(config->outputs, config->output_count, sizeof *config->outputs);
    program->config.keys = copy_array(config->keys, config->key_count, sizeof *config->keys);
    program->memory.inputs = calloc(config->input_count, sizeof(ckks_value));
    program->memory.outputs = calloc(config->output_count, sizeof(ckks_value));
    program->named = calloc(config->output_count, 1);
    if (program->config.inputs == NULL || program->config.outputs == NULL || program->config.keys == NULL ||
        program->memory.inputs == NULL || program->memory.outputs == NULL || program->named == NULL)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "out of memory");
    return CKKS_OK;
}

static void program_free(graph_program *program) {
    if (program == NULL) return;
    free((void *)program->config.inputs);
    free((void *)program->config.outputs);
    free((void *)program->config.keys);
    free(program->memory.inputs);
    free(program->memory.outputs);
    free(program->named);
    program_layout_destroy(&program->layout);
    pthread_cond_destroy(&program->idle);
    pthread_mutex_destroy(&program->guard);
    free(program);
}

ckks_status graph_program_create(graph_program **out, graph_slot *slot, const graph_program_config *config,
                                 ckks_error *err) {
    static atomic_uint_fast64_t last_id;
    ckks_status rc;
    graph_program *program = NULL;
    if (out == NULL || slot == NULL || config == NULL) {
        rc = ckks_error_set(err, CKKS_INVALID_ARGUMENT, "config", "no slot or no configuration");
        goto out;
    }
    if ((rc = program_config_check(config, slot->dev, err)) != CKKS_OK) goto out;
    if (sodium_init() < 0) {
        rc = ckks_error_set(err, CKKS_INTERNAL, "", "libsodium does not start");
        goto out;
    }
    if ((program = calloc(1, sizeof *program)) == NULL) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "out of memory");
        goto out;
    }
    program->slot = slot;
    program->state = GRAPH_PROGRAM_CREATED;
    pthread_mutex_init(&program->guard, NULL);
    pthread_cond_init(&program->idle, NULL);
    if ((rc = config_copy(program, config, err)) != CKKS_OK) goto out;
    if ((rc = program_layout_create(&program->layout, config, err)) != CKKS_OK) goto out;
    if (config->bindings != NULL &&
        (rc = binding_set_attach(config->bindings, &program->attachment, err)) != CKKS_OK)
        goto out;
    program->is_attached = config->bindings != NULL;
    program->id = (uint64_t)atomic_fetch_add(&last_id, 1) + 1;
    for (uint32_t i = 0; i < GRAPH_PENDING_MAX; i++) program->pending[i].program = program;
    pthread_mutex_lock(&slot->lock);
    slot->program_count++;
    pthread_mutex_unlock(&slot->lock);
    *out = program, program = NULL;
out:
    program_free(program);
    if (rc != CKKS_OK) ckks_error_stage(err, "admission");
    return rc;
}

void graph_program_destroy(graph_program *program) {
    if (program == NULL) return;
    graph_program_close(program);
    pthread_mutex_lock(&program->slot->lock);
    program->slot->program_count--;
    pthread_mutex_unlock(&program->slot->lock);
    program_free(program);
}

/* ---- giving back ---- */

static void event_destroy(device_event **event) {
    if (*event != NULL) device_event_destroy(*event);
    *event = NULL;
}

void program_release_memory(graph_program *program) {
    program_memory *m = &program->memory;
    graph_slot *slot = program->slot;
    if (m->charged_bytes == 0) return; /* was never admitted */
    pthread_mutex_lock(&slot->lock);
    if (m->random != NULL && program->config.uses_randomness)
        (void)device_fill(slot->compute, m->random, 0, sizeof *m->random, NULL); /* no key stays behind */
    (void)stream_drain(slot->copy, NULL);
    (void)stream_drain(slot->compute, NULL);
    slot->program_bytes -= m->charged_bytes;
    pthread_mutex_unlock(&slot->lock);

    output_views_close(m->views);
    result_pool_close(m->pool);
    if (m->graph != NULL) device_graph_destroy(m->graph);
    workspace_destroy(m->work);
    for (uint32_t i = 0; i < COPY_EVENT_COUNT; i++)
        event_destroy(&m->copied[i]), event_destroy(&m->copy_started[i]);
    event_destroy(&m->staged);
    event_destroy(&m->replay_complete);
    for (uint32_t i = 0; i < GRAPH_PENDING_MAX; i++) {
        graph_pending *pending = &program->pending[i];
        event_destroy(&pending->started);
        event_destroy(&pending->replayed);
        event_destroy(&pending->done);
        pending->readback = NULL;
    }
    device_free(slot->dev, m->device_block);
    device_free_host(slot->dev, m->host_block);
    *m =
        (program_memory){.inputs = m->inputs, .outputs = m->outputs}; /* the arrays are the configuration's */
    memset(m->inputs, 0, program->config.input_count * sizeof *m->inputs);
    memset(m->outputs, 0, program->config.output_count * sizeof *m->outputs);

    pthread_mutex_lock(&program->guard);
    graph_program_stats *stats = &program->stats;
    stats->input_bytes = stats->output_bytes = stats->staging_bytes = stats->device_staging_bytes = 0;
    stats->arena_bytes = stats->key_table_bytes = 0;
    pthread_mutex_unlock(&program->guard);
}

/* What was begun is lost; its finish will say so. */
static void lose_work(graph_program *program) {
    program_release_memory(program);
    for (uint32_t i = 0; i < GRAPH_PENDING_MAX; i++) {
        graph_pending *pending = &program->pending[i];
        pending->is_lost = pending->is_used;
        result_body_destroy(pending->body);
        resident_keys_release(pending->keys);
        pending->body = NULL, pending->keys = NULL;
    }
    resident_keys_release(program->payload.keys);
    program->payload = (graph_payload){0};
    program->outstanding = 0;
}

void program_fail(graph_program *program) {
    if (program->state == GRAPH_PROGRAM_FAILED) return;
    lose_work(program);
    set_state(program, GRAPH_PROGRAM_FAILED);
}

void graph_program_close(graph_program *program) {
    if (program == NULL) return;
    pthread_mutex_lock(&program->guard);
    program->is_closing = true;
    while (program->is_busy) pthread_cond_wait(&program->idle, &program->guard);
    const bool is_first = program->state != GRAPH_PROGRAM_CLOSED;
    program->is_busy = is_first;
    const bool was_attached = program->is_attached;
    program->is_attached = false;
    pthread_mutex_unlock(&program->guard);
    if (!is_first) return;
    lose_work(program);
    if (was_attached) binding_set_detach(program->config.bindings, &program->attachment);
    set_state(program, GRAPH_PROGRAM_CLOSED);
    program_leave(program);
}

ckks_status graph_program_drop_payload(graph_program *program, ckks_error *err) {
    ckks_status rc = program_enter(program, err);
    if (rc != CKKS_OK) return rc;
    if ((rc = program_check_ready(program, err)) != CKKS_OK) goto out;
    if (program->outstanding != 0) {
        rc = ckks_error_set(err, CKKS_FAILED_PRECONDITION, "handle", "a copy is outstanding");
        goto out;
    }
    resident_keys_release(program->payload.keys); /* what was begun has a reference of its own */
    program->payload = (graph_payload){0};
out:
    program_leave(program);
    return rc;
}

/* ---- running the callable ---- */

/* What graph_region_output knows of the run it is called in. */
typedef struct region_run {
    device *dev; /* NULL while planning: addresses are virtual */
    const ckks_value *inputs;
    uint32_t input_count;
    uint8_t *named;
} region_run;

static bool overlaps(const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes) {
    const uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return x < y + b_bytes && y < x + a_bytes;
}

static ckks_status check_output(const region_run *run, const ckks_value *value, const char *field,
                                ckks_error *err) {
    if (run == NULL) return CKKS_OK;
    const uint64_t bytes = value->signature.bytes;
    if (run->dev != NULL && !device_owns(run->dev, value->words, bytes))
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, field, "the result is not in this device's memory");
    for (uint32_t i = 0; i < run->input_count; i++)
        if (overlaps(value->words, bytes, run->inputs[i].words, run->inputs[i].signature.bytes))
            return ckks_error_set(err, CKKS_ALIASING, field, "the result lies in input %u", i);
    return CKKS_OK;
}

ckks_status graph_region_output(graph_region *region, uint32_t index, const ckks_value *value,
                                ckks_error *err) {
    char field[32];
    snprintf(field, sizeof field, "output %u", index);
    if (region == NULL || index >= region->output_count || value == NULL || value->words == NULL)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, field,
                              "there is no such output, or it has no words");
    const ckks_value *out = &region->outputs[index];
    region_run *run = region->internal;
    ckks_status rc = value_signature_compare(&out->signature, &value->signature, err);
    if (rc != CKKS_OK) return rc;
    if ((rc = check_output(run, value, field, err)) != CKKS_OK) return rc;
    if (run != NULL) {
        if (run->named[index])
            return ckks_error_set(err, CKKS_INVALID_ARGUMENT, field, "the result was named twice");
        run->named[index] = 1;
    }
    if (value->words == out->words) return CKKS_OK;
    return device_copy(region->evaluator->stream, out->words, value->words, out->signature.bytes, err);
}

static ckks_status run_callable(const graph_program_config *config, evaluator *ev, region_run *run,
                                const ckks_value *outputs, ckks_error *err) {
    graph_region region = {
        .evaluator = ev, .output_count = config->output_count, .outputs = outputs, .internal = run};
    memset(run->named, 0, config->output_count);
    const ckks_status rc =
        config->callable(config->callable_context, &region, run->inputs, config->input_count, err);
    if (rc != CKKS_OK)
        return ckks_error_set(err, rc, "callable", "the evaluator gave up: %s", ckks_status_text(rc));
    for (uint32_t i = 0; i < config->output_count; i++) {
        char field[32];
        snprintf(field, sizeof field, "output %u", i);
        if (!run->named[i])
            return ckks_error_set(err, CKKS_INVALID_ARGUMENT, field,
                                  "the evaluator did not name this result");
    }
    /* whoever draws, the counter moves on: a callable cannot forget it */
    return ev->random_blocks > 0 ? evaluator_random_finish(ev, err) : CKKS_OK;
}

ckks_status program_run(graph_program *program, const ckks_value *inputs, const ckks_value *outputs,
                        ckks_error *err) {
    const graph_program_config *config = &program->config;
    program_memory *m = &program->memory;
    workspace_rewind(m->work);
    evaluator ev = {.stream = program->slot->compute,
                    .tables = config->tables,
                    .context = config->context,
                    .memory = m->work,
                    .keys = m->key_table,
                    .key_count = config->key_count,
                    .random = config->uses_randomness ? m->random : NULL};
    region_run run = {.dev = program->slot->dev,
                      .inputs = inputs,
                      .input_count = config->input_count,
                      .named = program->named};
    return run_callable(config, &ev, &run, outputs, err);
}

/* ---- planning ---- */

/* Where values lie that are not the workspace's: addresses that nothing dereferences and no buffer has. */
#define PLANNED_BASE UINT64_C(0x6000000000000000)

static void *planned_take(uint64_t *next, uint64_t bytes) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): never dereferenced
    void *address = (void *)(uintptr_t)*next;
    *next += align_up(bytes, VALUE_ALIGNMENT);
    return address;
}

static ckks_status plan_run(workspace_plan **out, const graph_program_config *config, device_stream *stream,
                            workspace *planning, ckks_value *inputs, ckks_value *outputs, uint8_t *named,
                            ckks_error *err) {
    uint64_t next = PLANNED_BASE;
    for (uint32_t i = 0; i < config->input_count; i++)
        inputs[i] = (ckks_value){config->inputs[i], planned_take(&next, config->inputs[i].bytes)};
    for (uint32_t i = 0; i < config->output_count; i++)
        outputs[i] = (ckks_value){config->outputs[i], planned_take(&next, config->outputs[i].bytes)};
    evaluator ev = {.stream = stream,
                    .tables = config->tables,
                    .context = config->context,
                    .memory = planning,
                    .keys = planned_take(&next, (uint64_t)config->key_count * sizeof(key_table_entry)),
                    .key_count = config->key_count,
                    .random = config->uses_randomness ? planned_take(&next, sizeof(random_state)) : NULL};
    region_run run = {.inputs = inputs, .input_count = config->input_count, .named = named};
    ckks_status rc = device_record_begin_planning(stream, err);
    if (rc != CKKS_OK) return rc;
    if ((rc = run_callable(config, &ev, &run, outputs, err)) != CKKS_OK) {
        device_record_abort(stream);
        return rc;
    }
    device_graph *graph = NULL;
    if ((rc = device_record_end(stream, &graph, err)) != CKKS_OK) return rc;
    rc = workspace_plan_create(out, planning, graph, err);
    device_graph_destroy(graph);
    return rc;
}

ckks_status graph_plan_workspace(workspace_plan **out, device *dev, const graph_program_config *config,
                                 ckks_error *err) {
    if (out == NULL || dev == NULL || config == NULL)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "config", "no device or no configuration");
    ckks_status rc;
    device_stream *stream = NULL;
    workspace *planning = NULL;
    if ((rc = program_config_check(config, dev, err)) != CKKS_OK) return rc;
    ckks_value *inputs = calloc(config->input_count, sizeof *inputs);
    ckks_value *outputs = calloc(config->output_count, sizeof *outputs);
    uint8_t *named = calloc(config->output_count, 1);
    if (inputs == NULL || outputs == NULL || named == NULL) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "out of memory");
        goto out;
    }
    if ((rc = device_stream_create(dev, &stream, err)) != CKKS_OK) goto out;
    if ((rc = workspace_create_planning(&planning, err)) != CKKS_OK) goto out;
    rc = plan_run(out, config, stream, planning, inputs, outputs, named, err);
out:
    workspace_destroy(planning);
    device_stream_destroy(stream);
    free(named);
    free(outputs);
    free(inputs);
    return rc;
}

/* ---- randomness ---- */

ckks_status program_write_random(graph_program *program, const uint8_t *key, uint64_t counter,
                                 ckks_error *err) {
    program_memory *m = &program->memory;
    device_stream *stream = program->slot->compute;
    random_state *pinned =
        (random_state *)(void *)m->host_block; /* staging is idle: both streams are drained */
    ckks_status rc;
    if ((rc = stream_drain(program->slot->copy, err)) != CKKS_OK) return rc;
    if ((rc = stream_drain(stream, err)) != CKKS_OK) return rc;
    pinned->counter = counter;
    if (key != NULL) {
        memcpy(pinned->key, key, sizeof pinned->key);
        rc = device_copy_in(stream, m->random, pinned, sizeof *pinned, err);
    } else {
        rc = device_copy_in(stream, &m->random->counter, &pinned->counter, sizeof pinned->counter, err);
    }
    if (rc == CKKS_OK) rc = stream_drain(stream, err);
    if (rc != CKKS_OK) (void)stream_drain(stream, NULL);
    sodium_memzero(pinned, sizeof *pinned);
    if (rc == CKKS_OK) program->counter_next = counter;
    return rc;
}

ckks_status graph_program_reseed(graph_program *program, const uint8_t fixed[32], ckks_error *err) {
    uint8_t key[32];
    ckks_status rc = program_enter(program, err);
    if (rc != CKKS_OK) return rc;
    if ((rc = program_check_ready(program, err)) != CKKS_OK) goto out;
    if (!program->config.uses_randomness) {
        rc = ckks_error_set(err, CKKS_FAILED_PRECONDITION, "program", "the program draws nothing");
        goto out;
    }
    if (fixed != NULL)
        memcpy(key, fixed, sizeof key);
    else
        randombytes_buf(key, sizeof key);
    pthread_mutex_lock(&program->slot->lock);
    rc = program_write_random(program, key, 0, err);
    pthread_mutex_unlock(&program->slot->lock);
    sodium_memzero(key, sizeof key);
    /* what the device holds now is not known, and a stream must never repeat */
    if (rc != CKKS_OK) program_fail(program);
out:
    program_leave(program);
    return rc;
}
