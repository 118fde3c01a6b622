/*
 * Replay: begin enqueues on the compute stream, finish waits and judges.
 *
 *   wait for copy-complete - the recording - read back verdicts and random counter - owned copy -
 * replay-complete
 *
 * The order is the stream's own, so no thread waits between a copy and its replay, or between an owned copy
 * and the next replay. Finish trusts nothing: the device's error, the slot's epoch, the copy's error, the
 * verdict and the counter each can void the reply.
 */
#include "kernels/program/graph_internal.h"

#include <stddef.h>
#include <stdio.h>

/* ---- handles ---- */

static ckks_status resolve_handle(const graph_program *program, graph_handle handle, ckks_error *err) {
    if (handle.sequence != 0 &&
        (handle.program_id != program->id || handle.sequence > program->last_sequence))
        return ckks_error_set(err, CKKS_HANDLE_FOREIGN, "handle",
                              "the handle is of program %llu, this is %llu",
                              (unsigned long long)handle.program_id, (unsigned long long)program->id);
    if (program->payload.is_poisoned)
        return ckks_error_set(err, CKKS_PAYLOAD_POISONED, "handle", "the last copy was not good");
    if (handle.sequence == 0 && program->outstanding != 0)
        return ckks_error_set(err, CKKS_HANDLE_MISSING, "handle", "copy %llu is outstanding",
                              (unsigned long long)program->outstanding);
    if (handle.sequence == 0 && program->payload.sequence == 0)
        return ckks_error_set(err, CKKS_FAILED_PRECONDITION, "handle", "the program holds no payload");
    if (handle.sequence == 0 || handle.sequence == program->outstanding) return CKKS_OK;
    const uint64_t age = program->last_sequence - handle.sequence;
    if (age < 64 && (program->consumed >> age & 1) != 0)
        return ckks_error_set(err, CKKS_HANDLE_CONSUMED, "handle", "copy %llu was replayed",
                              (unsigned long long)handle.sequence);
    return ckks_error_set(err, CKKS_HANDLE_SUPERSEDED, "handle", "copy %llu was superseded",
                          (unsigned long long)handle.sequence);
}

/* ---- begin ---- */

static ckks_status check_begin(const graph_program *program, graph_ownership ownership,
                               graph_pending **pending, ckks_error *err) {
    if (ownership != GRAPH_OUTPUT_BORROWED && ownership != GRAPH_OUTPUT_OWNED)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "ownership", "unknown ownership %u",
                              (unsigned)ownership);
    const ckks_status rc = output_views_check(program->memory.views, err);
    if (rc != CKKS_OK) return rc;
    for (uint32_t i = 0; i < GRAPH_PENDING_MAX; i++)
        if (!program->pending[i].is_used) {
            *pending = (graph_pending *)&program->pending[i];
            return CKKS_OK;
        }
    return ckks_error_set(err, CKKS_FAILED_PRECONDITION, "program",
                          "%u replays were begun and not finished: finish one first", GRAPH_PENDING_MAX);
}

/* *is_launched: the recording was accepted. Under the slot's lock. */
static ckks_status enqueue(graph_program *program, graph_pending *pending, bool *is_launched,
                           ckks_error *err) {
    program_memory *m = &program->memory;
    device_stream *stream = program->slot->compute;
    ckks_status rc;
    if ((rc = device_stream_wait(stream, m->copied[program->payload.event_index], err)) != CKKS_OK) return rc;
    if ((rc = device_event_record(pending->started, stream, err)) != CKKS_OK) return rc;
    rc = m->graph != NULL ? device_graph_replay(m->graph, stream, err)
                          : program_run(program, m->inputs, m->outputs, err);
    if (rc != CKKS_OK) return rc;
    *is_launched = true;
    if ((rc = device_event_record(pending->replayed, stream, err)) != CKKS_OK) return rc;
    if ((rc = device_copy_out(stream, pending->readback, &m->random->counter,
                              sizeof *pending->readback + program->config.input_count * sizeof *m->verdict,
                              err)) != CKKS_OK)
        return rc;
    for (uint32_t i = 0; pending->ownership == GRAPH_OUTPUT_OWNED && i < program->config.output_count; i++)
        if ((rc = device_copy_out(stream, result_body_words(pending->body, i), m->outputs[i].words,
                                  m->outputs[i].signature.bytes, err)) != CKKS_OK)
            return rc;
    if ((rc = device_event_record(pending->done, stream, err)) != CKKS_OK) return rc;
    if (program->is_attached &&
        (rc = device_event_record(program->attachment.last_replay, stream, err)) != CKKS_OK)
        return rc;
    return device_event_record(m->replay_complete, stream, err);
}

/* Under the slot's lock. */
static ckks_status check_present(const graph_program *program, ckks_error *err) {
    if (program->epoch == program->slot->epoch) return CKKS_OK;
    return ckks_error_set(err, CKKS_DEVICE_ERROR, "slot",
                          "the slot was recovered since the replay was asked for");
}

/* Something failed while enqueueing. Leaves the payload as it was, or fails the program where the device's
 * state is not known. */
static void abandon(graph_program *program, bool is_launched, ckks_status drained) {
    const bool is_partly_drawn =
        !is_launched && program->memory.graph == NULL && program->config.uses_randomness;
    if (drained != CKKS_OK || is_partly_drawn) program_fail(program);
}

static ckks_status enqueue_all(graph_program *program, graph_pending *pending, ckks_error *err) {
    graph_slot *slot = program->slot;
    bool is_launched = false;
    ckks_status drained = CKKS_OK, rc;
    if (program->is_attached &&
        (rc = binding_set_enter(program->config.bindings, result_body_generations(pending->body),
                                &pending->binding_generation, err)) != CKKS_OK)
        return rc;
    const bool with_lease = pending->ownership == GRAPH_OUTPUT_BORROWED;
    rc = output_views_advance(program->memory.views, with_lease, &pending->generation, err);
    if (rc == CKKS_OK) {
        result_body_set_generation(pending->body, pending->generation, with_lease);
        pthread_mutex_lock(&slot->lock);
        /* while a refresh held this back, the slot may have been recovered, and the copy been dropped */
        if ((rc = drained = check_present(program, err)) == CKKS_OK &&
            (rc = enqueue(program, pending, &is_launched, err)) != CKKS_OK)
            drained = stream_drain(slot->compute, NULL);
        pthread_mutex_unlock(&slot->lock);
    }
    if (program->is_attached) binding_set_leave(program->config.bindings);
    if (is_launched) program->counter_next += program->blocks_per_run;
    if (rc != CKKS_OK) abandon(program, is_launched, drained);
    return rc;
}

static ckks_status begin(graph_program *program, graph_pending **out, graph_handle handle,
                         graph_ownership ownership, ckks_error *err) {
    ckks_status rc;
    graph_pending *pending = NULL;
    if ((rc = check_begin(program, ownership, &pending, err)) != CKKS_OK) return rc;
    if ((rc = resolve_handle(program, handle, err)) != CKKS_OK) return rc;
    CKKS_ASSERT(pending != NULL);
    const uint32_t binding_count = program->is_attached ? binding_set_count(program->config.bindings) : 0;
    result_body *body = NULL;
    if ((rc = result_body_create(&body, ownership, program->memory.pool, program->memory.views,
                                 program->memory.outputs, program->layout.result_at,
                                 program->config.output_count, binding_count, err)) != CKKS_OK)
        return rc;
    pending->ownership = ownership;
    pending->body = body;
    pending->binding_generation = 0;
    if ((rc = enqueue_all(program, pending, err)) != CKKS_OK) {
        result_body_destroy(pending->body); /* gone already if the program failed */
        pending->body = NULL;
        return rc;
    }
    pending->is_used = true;
    pending->is_lost = false;
    pending->counter_expected = program->counter_next;
    pending->payload_sequence = program->payload.sequence;
    pending->event_index = program->payload.event_index;
    pending->is_timed = program->payload.is_timed;
    pending->keys = program->payload.keys;
    if (pending->keys != NULL) resident_keys_retain(pending->keys);
    program->payload.is_timed = false;
    if (handle.sequence != 0) {
        program->consumed |= UINT64_C(1) << (program->last_sequence - handle.sequence);
        program->outstanding = 0;
    }
    *out = pending;
    return CKKS_OK;
}

/* ---- finish ---- */

static ckks_status judge_verdict(graph_program *program, const graph_pending *pending, ckks_error *err) {
    for (uint32_t i = 0; i < program->config.input_count; i++) {
        const uint32_t verdict = pending->readback->verdict[i];
        if (verdict == 0) continue;
        char field[32];
        snprintf(field, sizeof field, "input %u", i);
        /* a newer copy may have replaced it meanwhile */
        if (program->payload.sequence == pending->payload_sequence) program->payload.is_poisoned = true;
        return ckks_error_set(err, CKKS_RESIDUE_RANGE, field, "%s",
                              verdict & VERDICT_RESIDUE   ? "a residue is not below its modulus"
                              : verdict & VERDICT_PADDING ? "padding is not zero"
                                                          : "the second component is zero");
    }
    return CKKS_OK;
}

static ckks_status judge(graph_program *program, const graph_pending *pending, ckks_error *err) {
    ckks_status rc = event_drain(pending->done, err);
    if (rc == CKKS_OK) rc = event_drain(program->memory.copied[pending->event_index], err);
    if (rc == CKKS_OK) {
        pthread_mutex_lock(&program->slot->lock);
        rc = check_present(program, err);
        pthread_mutex_unlock(&program->slot->lock);
    }
    if (rc == CKKS_OK && program->config.uses_randomness &&
        pending->readback->counter != pending->counter_expected)
        rc = ckks_error_set(err, CKKS_INTERNAL, "random state", "the counter is at %llu, not at %llu",
                            (unsigned long long)pending->readback->counter,
                            (unsigned long long)pending->counter_expected);
    if (rc != CKKS_OK) {
        program_fail(program);
        return rc;
    }
    return judge_verdict(program, pending, err);
}

static ckks_status finish(graph_program *program, graph_pending *pending, graph_result *out,
                          ckks_error *err) {
    if (pending->program != program || !pending->is_used)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "pending", "this replay was not begun here");
    ckks_status rc;
    if (pending->is_lost)
        rc = ckks_error_set(err, CKKS_DEVICE_ERROR, "program",
                            "the program failed before this replay was finished");
    else
        rc = judge(program, pending, err);
    if (rc == CKKS_OK) {
        const program_memory *m = &program->memory;
        result_body_finish(pending->body, out);
        pending->body = NULL;
        out->binding_generation = pending->binding_generation;
        out->replay_ns = device_event_elapsed_ns(pending->started, pending->replayed);
        out->copy_out_ns = device_event_elapsed_ns(pending->replayed, pending->done);
        if (pending->is_timed)
            out->stage_ns = device_event_elapsed_ns(m->copy_started[pending->event_index],
                                                    m->copied[pending->event_index]);
        pthread_mutex_lock(&program->guard);
        program->stats.replays++;
        pthread_mutex_unlock(&program->guard);
    }
    result_body_destroy(pending->body);
    resident_keys_release(pending->keys);
    pending->body = NULL, pending->keys = NULL;
    pending->is_used = pending->is_lost = false;
    return rc;
}

/* ---- the public calls ---- */

ckks_status graph_program_replay_begin(graph_program *program, graph_pending **out, graph_handle handle,
                                       graph_ownership ownership, ckks_error *err) {
    if (out == NULL)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "pending", "nowhere to put the replay");
    ckks_status rc = program_enter(program, err);
    if (rc != CKKS_OK) return rc;
    if ((rc = program_check_ready(program, err)) == CKKS_OK) rc = begin(program, out, handle, ownership, err);
    program_leave(program);
    return rc;
}

ckks_status graph_program_replay_finish(graph_program *program, graph_pending *pending, graph_result *out,
                                        ckks_error *err) {
    if (pending == NULL || out == NULL)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "pending",
                              "no replay, or nowhere to put its result");
    ckks_status rc = program_enter(program, err);
    if (rc != CKKS_OK) return rc;
    rc = finish(program, pending, out, err);
    program_leave(program);
    return rc;
}

bool graph_pending_is_complete(graph_pending *pending) {
    return !pending->is_used || pending->is_lost || pending->done == NULL ||
           device_event_is_complete(pending->done);
}

ckks_status graph_program_replay_prepared(graph_program *program, graph_result *out, graph_handle handle,
                                          graph_ownership ownership, ckks_error *err) {
    if (out == NULL) return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "result", "nowhere to put the result");
    ckks_status rc = program_enter(program, err);
    if (rc != CKKS_OK) return rc;
    graph_pending *pending = NULL;
    if ((rc = program_check_ready(program, err)) != CKKS_OK) goto out;
    if ((rc = begin(program, &pending, handle, ownership, err)) != CKKS_OK) goto out;
    rc = finish(program, pending, out, err);
out:
    program_leave(program);
    return rc;
}

ckks_status graph_program_replay(graph_program *program, graph_result *out, const graph_input *inputs,
                                 uint32_t input_count, resident_keys *keys, graph_ownership ownership,
                                 ckks_error *err) {
    if (out == NULL) return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "result", "nowhere to put the result");
    ckks_status rc = program_enter(program, err);
    if (rc != CKKS_OK) return rc;
    graph_pending *pending = NULL;
    graph_handle handle;
    if ((rc = program_check_ready(program, err)) != CKKS_OK) goto out;
    if ((rc = check_begin(program, ownership, &pending, err)) != CKKS_OK) goto out;
    if ((rc = program_copy_inputs(program, &handle, inputs, input_count, keys, err)) != CKKS_OK) goto out;
    if ((rc = begin(program, &pending, handle, ownership, err)) != CKKS_OK) {
        program->outstanding = 0; /* nobody has the handle: the payload is simply held */
        goto out;
    }
    rc = finish(program, pending, out, err);
out:
    program_leave(program);
    return rc;
}
