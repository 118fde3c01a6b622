#include "daemon/inference.h"

#include "daemon/clock.h"
#include "daemon/fault.h"
#include "daemon/reply.h"
#include "daemon/server.h"
#include "kernels/base/log.h"
#include "proto/ingest.h"

#include <stdlib.h>
#include <string.h>

/* What is smaller gets its digest beside the evaluation, and on the loop where a retry comes before that: 170
 * us at most. What is larger, on the pool before all else. */
#define HASH_LATER_MAX (1u << 20)
#define PART_BYTES     (32u << 10) /* of a reply, worth a way to the peer of its own */
#define PIECE_WORDS    4096u       /* packed at a time; a power of two */
#define ROOM_SPARE     64u         /* the times in a reply are longer or shorter */

/* ---- the end: one way out ---- */

static void on_timer_closed(uv_handle_t *handle) {
    inference *inf = handle->data;
    if (--inf->timers_open == 0) free(inf);
}

/* Releases everything and finishes the request, which has been answered or has no waiter. */
static void inference_end(inference *inf) {
    request *r = inf->request;
    server *s = r->server;
    model *m = inf->model;
    scheduler_remove(&s->scheduler, &inf->item);
    keys_let_go(s, inf);
    local_ticket_give(&inf->ticket);
    list_remove(&inf->model_link);
    free(inf->inputs);
    inf->inputs = NULL;
    r->inference = NULL;
    request_finish(r);
    uv_close((uv_handle_t *)&inf->deadline, on_timer_closed);
    uv_close((uv_handle_t *)&inf->orphan, on_timer_closed);
    if (m->state == MODEL_RETIRING) models_retire_step(s, m);
}

static void count_failure(inference *inf, ckks_status code) {
    metrics_model *m = inf->model->metrics;
    atomic_fetch_add_explicit(&m->code[ckks_status_rpc(code)], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&m->fail_count, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&m->fail_ns, clock_now_ns() - inf->request->received_ns, memory_order_relaxed);
}

/* Answers with a failure; a retry with the same id may run. */
static void answer_failure(inference *inf, const ckks_error *cause) {
    request *r = inf->request;
    if (!r->is_answered) count_failure(inf, cause->code);
    request_answer_error(r, cause, 0);
}

static void fail_and_end(inference *inf, const ckks_error *cause) {
    answer_failure(inf, cause);
    dedupe_forget(&inf->request->server->dedupe, inf->entry);
    inf->entry = NULL;
    inference_end(inf);
}

/* ---- what can happen at any time ---- */

/* Answers now; ends now if nobody else has it in hand. */
static void interrupt(inference *inf, ckks_status code, const char *what) {
    ckks_error cause = {0};
    ckks_error_set(&cause, code, "", "%s", what);
    if (inf->stage == INFERENCE_HELD || inf->stage == INFERENCE_QUEUED)
        fail_and_end(inf, &cause);
    else if (!inf->ticket.out || !atomic_exchange(&inf->is_claimed, true))
        answer_failure(inf, &cause); /* else the slot is just answering */
}

static void on_deadline(uv_timer_t *timer) {
    inference *inf = timer->data;
    const bool is_waiting = inf->stage == INFERENCE_HELD || inf->stage == INFERENCE_QUEUED;
    interrupt(inf, CKKS_DEADLINE,
              is_waiting ? "the deadline passed before the request had its turn"
                         : "the deadline passed while the request was being evaluated");
}

static void on_orphan(uv_timer_t *timer) {
    inference *inf = timer->data;
    ckks_error cause = {0};
    if (!list_is_empty(&inf->request->waiters)) return;
    if (inf->stage != INFERENCE_HELD && inf->stage != INFERENCE_QUEUED) return;
    ckks_error_set(&cause, CKKS_CANCELLED, "", "the peer went away and did not come back in time");
    fail_and_end(inf, &cause);
}

void inference_orphaned(inference *inf) {
    if (inf->request->is_answered) return;
    uv_timer_start(&inf->orphan, on_orphan, inf->request->server->config.orphan_grace_ms, 0);
}

void inference_cancel(inference *inf, bool *removed) {
    *removed = inf->stage == INFERENCE_HELD || inf->stage == INFERENCE_QUEUED;
    interrupt(inf, CKKS_CANCELLED, "cancelled by its tenant");
}

void inference_abandon(inference *inf) {
    interrupt(inf, CKKS_DRAINING, "the server shuts down and cannot wait any longer");
}

/* ---- on the slot's thread ---- */

/* What there is of the reply, up to its first `bytes`, to the one who waits, unless somebody else answers. */
static void send_reply(inference *inf, size_t bytes) {
    if (!inf->ticket.out) return;
    if (!inf->is_sender && atomic_exchange(&inf->is_claimed, true)) return;
    inf->is_sender = true;
    inf->offered = bytes;
    inf->sent = local_send(&inf->ticket, inf->reply, bytes);
}

/* Piece by piece: a large reply is on its way while the rest of it is packed. A piece takes a multiple of
 * 16 bytes, so that pieces make the stream that the whole limb would. */
static void pack_output(inference *inf, uint8_t *to, const ckks_value *output) {
    const value_signature *sig = &output->signature;
    const ckks_params *params = &inf->model->package->params;
    const uint32_t n = params_n(params), piece = n < PIECE_WORDS ? n : PIECE_WORDS;
    const uint32_t limbs = sig->batch_count * sig->component_count * sig->limb_count;
    const uint8_t *const body = nng_msg_body(inf->reply);
    const uint64_t *words = output->words;
    for (uint32_t i = 0; i < limbs; i++) {
        const uint64_t prime = params->prime[i % sig->limb_count];
        for (uint32_t at = 0; at < n; at += piece) {
            packing_pack_limb(to, words, piece, prime);
            to += packing_limb_bytes(piece, prime), words += piece;
            if ((size_t)(to - body) >= inf->offered + PART_BYTES) send_reply(inf, (size_t)(to - body));
        }
    }
}

static ckks_status write_outputs(inference *inf, const graph_result *result, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    const model *m = inf->model;
    const ckks_params *params = &m->package->params;
    const uint32_t count = result->output_count;
    uint8_t *area;
    frame_segment *segments = calloc(count + 1u, sizeof *segments);
    signature_message *signatures = calloc(count + 1u, sizeof *signatures);
    Ckksd__V1__Signature **list = calloc(count + 1u, sizeof(void *));
    Ckksd__V1__InferReply reply = CKKSD__V1__INFER_REPLY__INIT;
    Ckksd__V1__Timing timing = CKKSD__V1__TIMING__INIT;
    if (!segments || !signatures || !list) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "reply", "out of memory");
        goto out;
    }
    for (uint32_t i = 0; i < count; i++) {
        signature_to_message(&signatures[i], &result->outputs[i].signature);
        list[i] = &signatures[i].message;
        segments[i].kind = CKKSD__V1__SEGMENT_KIND__SEGMENT_CIPHERTEXT;
        segments[i].length = graph_packed_bytes(params, &result->outputs[i].signature, false);
    }
    reply.model = (char *)(uintptr_t)m->name, reply.version = (char *)(uintptr_t)m->version;
    reply.has_model_digest = true;
    reply.model_digest = (ProtobufCBinaryData){32, (uint8_t *)(uintptr_t)m->package->digest};
    reply.n_outputs = count, reply.outputs = list;
    reply.has_binding_generation = true, reply.binding_generation = result->binding_generation;
    timing.has_queue_ns = timing.has_stage_ns = timing.has_replay_ns = timing.has_copy_out_ns = true;
    timing.queue_ns = inf->queue_ns, timing.stage_ns = inf->stage_ns;
    timing.replay_ns = inf->replay_ns, timing.copy_out_ns = inf->copy_out_ns;
    timing.has_check_ns = true, timing.check_ns = inf->check_ns;
    timing.has_receive_ns = inf->request->receive_ns != 0, timing.receive_ns = inf->request->receive_ns;
    reply.timing = &timing;
    const reply_parts parts = {.request_id = inf->request->has_id ? inf->request->id : NULL,
                               .payload = &reply.base,
                               .segments = segments,
                               .segment_count = count,
                               .room = &inf->room};
    if ((rc = reply_create(&inf->reply, &area, &parts, err)) != CKKS_OK) goto out;
    atomic_store_explicit(&inf->model->reply_bytes, nng_msg_len(inf->reply), memory_order_relaxed);
    /* in memory, what there is can be announced with little: the peer wakes up while the rest is packed */
    if (inf->ticket.may_use_memory && nng_msg_len(inf->reply) >= LOCAL_MEMORY_REPLY_MIN)
        send_reply(inf, (size_t)(area - (uint8_t *)nng_msg_body(inf->reply)));
    for (uint32_t i = 0; i < count; i++) pack_output(inf, area + segments[i].offset, &result->outputs[i]);
    send_reply(inf, nng_msg_len(inf->reply));
out:
    free(segments);
    free(signatures);
    free(list);
    return rc;
}

/*
 * What must be equal for two requests to be the same: the method's message and the segments. Time-outs and
 * tracing may differ between a request and its retry.
 */
static bool digest_of(const request *r, uint8_t digest[DEDUPE_DIGEST_BYTES]) {
    return dedupe_digest(&r->server->dedupe, digest, r->header->payload.data, r->header->payload.len,
                         r->frame.segments, r->frame.segments_bytes, NULL) == CKKS_OK;
}

/* The reply's memory, which takes its time to be cleared: about as much as the last one had. */
static void make_room(inference *inf) {
    const uint64_t last = atomic_load_explicit(&inf->model->reply_bytes, memory_order_relaxed);
    if (last && nng_msg_alloc(&inf->room, (size_t)last + ROOM_SPARE) != 0) inf->room = NULL;
}

/* The replay, and beside it what need not wait for its end. */
static ckks_status replay(inference *inf, graph_program *program, graph_handle handle, graph_result *result,
                          ckks_error *err) {
    graph_pending *pending = NULL;
    const ckks_status rc = graph_program_replay_begin(program, &pending, handle, GRAPH_OUTPUT_OWNED, err);
    if (rc != CKKS_OK) return rc;
    make_room(inf);
    if (inf->request->has_id && !inf->has_digest) inf->has_digest = digest_of(inf->request, inf->digest);
    return graph_program_replay_finish(program, pending, result, err);
}

static void run_on_slot(slot_job *job) {
    inference *inf = LIST_ENTRY(job, inference, job);
    slot *s = job->slot;
    graph_program *program = s->programs[inf->model->index];
    graph_handle handle = {0};
    graph_result result = {0};
    device *dev = graph_slot_device(s->graph);
    inf->started_ns = clock_now_ns();
    inf->queue_ns = inf->started_ns - inf->request->received_ns;
    fault_replay(dev, s->index);
    job->rc = graph_program_copy_inputs_from(program, &handle, inf->inputs, inf->input_count, inf->resident,
                                             &job->err);
    const uint64_t staged_ns = clock_now_ns();
    slot_progress(s);
    if (job->rc == CKKS_OK) job->rc = replay(inf, program, handle, &result, &job->err);
    fault_replay_end(dev);
    if (job->rc == CKKS_OK) {
        slot_progress(s);
        const uint64_t replayed_ns = clock_now_ns();
        /* the host's part of staging and the device's part overlap: wall time less what the replay took */
        inf->replay_ns = result.replay_ns, inf->copy_out_ns = result.copy_out_ns;
        const uint64_t rest = replayed_ns - staged_ns, inner = result.replay_ns + result.copy_out_ns;
        inf->stage_ns = staged_ns - inf->started_ns + (rest > inner ? rest - inner : 0);
        job->rc = write_outputs(inf, &result, &job->err);
        inf->ended_ns = clock_now_ns();
        inf->pack_ns = inf->ended_ns - replayed_ns;
        inf->copy_out_ns += inf->pack_ns;
    }
    /* whatever failed it: such a program answers no request any more until its slot has been recovered */
    if (job->rc != CKKS_OK && graph_program_get_state(program) == GRAPH_PROGRAM_FAILED)
        job->rc = CKKS_DEVICE_ERROR;
    if (inf->room) nng_msg_free(inf->room); /* too small, or of no use */
    inf->room = NULL;
    graph_result_release(&result);
}

/* ---- back on the loop ---- */

static void count_success(inference *inf) {
    metrics_model *m = inf->model->metrics;
    atomic_fetch_add_explicit(&m->code[RPC_OK], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&m->success_count, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&m->success_ns, clock_now_ns() - inf->request->received_ns,
                              memory_order_relaxed);
    histogram_add(&m->queue, inf->queue_ns);
    histogram_add(&m->stage, inf->stage_ns);
    histogram_add(&m->replay, inf->replay_ns);
    histogram_add(&m->copy_out, inf->copy_out_ns);
    if (inf->request->receive_ns) histogram_add(&m->receive, inf->request->receive_ns);
    histogram_add(&m->check, inf->check_ns);
    histogram_add(&m->pack, inf->pack_ns);
    const uint64_t cost = inf->stage_ns + inf->replay_ns + inf->copy_out_ns;
    inf->model->cost_ns = inf->model->cost_ns ? (7 * inf->model->cost_ns + cost) / 8 : cost;
}

/* For retries, if there can be any; takes `reply`, which may be NULL: there was no memory for it. */
static void keep_reply(inference *inf, nng_msg *reply) {
    dedupe *d = &inf->request->server->dedupe;
    dedupe_entry *entry = inf->entry;
    inf->entry = NULL;
    if (entry && !entry->has_digest && inf->has_digest) dedupe_set_digest(entry, inf->digest);
    if (entry && entry->has_digest) {
        dedupe_finish(d, entry, reply, clock_now_ns());
        return;
    }
    dedupe_forget(d, entry);
    if (reply) nng_msg_free(reply);
}

static void succeeded(inference *inf) {
    request *r = inf->request;
    nng_msg *reply = inf->reply;
    inf->reply = NULL;
    const bool is_late = r->is_answered; /* with a failure: its deadline, or it was cancelled */
    if (!is_late) count_success(inf);
    if (inf->sent) r->ticket = &inf->ticket;
    if (request_was_answered(r, reply)) {
        keep_reply(inf, reply);
    } else {
        nng_msg *copy = NULL;
        if (inf->entry && nng_msg_dup(&copy, reply) != 0) copy = NULL;
        keep_reply(inf, copy);
        request_answer(r, reply);
    }
    if (!is_late) histogram_add(&inf->model->metrics->reply, clock_now_ns() - inf->ended_ns);
    inference_end(inf);
}

static void failed(inference *inf) {
    ckks_error cause = inf->job.err;
    server *s = inf->request->server;
    if (cause.code == CKKS_OK) cause.code = inf->job.rc;
    if (inf->job.rc == CKKS_DEVICE_ERROR) {
        if (inf->attempts < 2 && !inf->request->is_answered && server_has_other_slot(s, inf->job.slot)) {
            inf->stage = INFERENCE_QUEUED;
            scheduler_requeue(&s->scheduler, &inf->item);
            log_write(LOG_LEVEL_WARNING, "event=retry request=%s slot=%u", inf->request->id_text,
                      inf->job.slot->index);
            return;
        }
        cause = (ckks_error){0};
        ckks_error_set(&cause, CKKS_UNAVAILABLE, "", "the device failed; the slot is being brought back");
    }
    fail_and_end(inf, &cause);
}

static void on_slot_done(loop_event *event) {
    inference *inf = LIST_ENTRY(event, inference, job.done);
    server *s = inf->request->server;
    slot *where = inf->job.slot;
    slot_job_finished(&inf->job);
    resident_keys_release(inf->resident);
    inf->resident = NULL;
    if (inf->job.rc == CKKS_DEVICE_ERROR) server_quarantine(s, where, inf->job.err.message);
    if (inf->job.rc == CKKS_OK) {
        inference_pump(s); /* the slot goes on while this one is put away */
        succeeded(inf);
        return;
    }
    failed(inf);
    inference_pump(s);
}

/* ---- order ---- */

static bool can_run(void *context, scheduler_item *item) {
    const slot *s = context;
    return s->has_program[item->model];
}

static void start(inference *inf, slot *where) {
    inf->stage = INFERENCE_RUNNING;
    inf->attempts++;
    if (inf->keys) {
        inf->resident = inf->keys->resident;
        resident_keys_retain(inf->resident);
    }
    uv_timer_stop(&inf->orphan);
    local_ticket_give(&inf->ticket); /* an earlier try's */
    atomic_store(&inf->is_claimed, false);
    inf->sent = inf->offered = 0, inf->is_sender = false;
    const list_node *waiter = inf->request->waiters.next;
    if (waiter != &inf->request->waiters && !inf->request->is_answered)
        local_ticket_take(&inf->ticket, LIST_ENTRY(waiter, transport_context, link));
    inf->job.run = run_on_slot;
    inf->job.done.run = on_slot_done;
    slot_submit(where, &inf->job);
}

void inference_pump(server *s) {
    for (uint32_t i = 0; i < s->slots.count; i++) {
        slot *one = &s->slots.slots[i];
        if (!slot_is_free(one)) continue;
        scheduler_item *item = scheduler_next(&s->scheduler, can_run, one);
        if (item) start(LIST_ENTRY(item, inference, item), one);
    }
}

/* ---- keys ---- */

void inference_keys_ready(inference *inf) {
    server *s = inf->request->server;
    inf->stage = INFERENCE_QUEUED;
    scheduler_enqueue(&s->scheduler, &inf->item);
    inference_pump(s);
}

void inference_keys_failed(inference *inf, const ckks_error *cause) {
    fail_and_end(inf, cause);
}

/* ---- from the digest to the queue ---- */

static void admit(inference *inf) {
    request *r = inf->request;
    server *s = r->server;
    bool is_ready = true;
    ckks_error err = {0};
    inf->item.model = inf->model->index;
    inf->item.priority = r->header->has_priority ? r->header->priority : 0;
    inf->item.bytes = r->body.bytes;
    inf->item.cost_ns = inf->model->cost_ns;
    inf->check_ns = clock_now_ns() - r->received_ns;
    if (scheduler_admit(&s->scheduler, &r->tenant->schedule, &inf->item, &err) != CKKS_OK) {
        fail_and_end(inf, &err);
        return;
    }
    inf->stage = INFERENCE_HELD;
    if (list_is_empty(&r->waiters)) inference_orphaned(inf);
    if (inf->keys && keys_acquire(s, inf, &is_ready, &err) != CKKS_OK) {
        fail_and_end(inf, &err);
        return;
    }
    if (is_ready) inference_keys_ready(inf);
}

/* A retry: joins the running request or gets the finished reply. */
static void join_or_replay(inference *inf, dedupe_entry *entry) {
    request *r = inf->request;
    nng_msg *copy = NULL;
    if (entry->owner) {
        inference *running = entry->owner;
        atomic_fetch_add_explicit(&daemon_metrics.dedupe_joined, 1, memory_order_relaxed);
        if (running->request->is_answered) {
            ckks_error cause = running->request->error;
            if (cause.code == CKKS_OK)
                ckks_error_set(&cause, CKKS_UNAVAILABLE, "", "the request is just ending");
            request_answer_error(r, &cause, 0);
        } else {
            request_join(running->request, r);
            uv_timer_stop(&running->orphan);
        }
    } else {
        atomic_fetch_add_explicit(&daemon_metrics.dedupe_replayed, 1, memory_order_relaxed);
        request_answer(r, nng_msg_dup(&copy, entry->reply) == 0 ? copy : NULL);
    }
    inference_end(inf);
}

static void hashed(inference *inf) {
    request *r = inf->request;
    server *s = r->server;
    dedupe_entry *entry = NULL;
    bool is_new = true;
    ckks_error err = {0};
    if (r->is_answered) { /* expired or cancelled meanwhile */
        inference_end(inf);
        return;
    }
    if (!inf->has_digest) {
        ckks_error_set(&err, CKKS_RESOURCE_EXHAUSTED, "", "out of memory");
        fail_and_end(inf, &err);
        return;
    }
    if (dedupe_enter(&s->dedupe, &entry, &is_new, r->tenant->name, r->id, inf->digest, inf, clock_now_ns(),
                     &err) != CKKS_OK) {
        fail_and_end(inf, &err);
        return;
    }
    if (!is_new) {
        join_or_replay(inf, entry);
        return;
    }
    inf->entry = entry;
    admit(inf);
}

static void hash_body(loop_work *job) {
    inference *inf = LIST_ENTRY(job, inference, hash);
    inf->has_digest = digest_of(inf->request, inf->digest);
}
static void hash_done(loop_work *job) {
    inference *inf = LIST_ENTRY(job, inference, hash);
    server *s = inf->request->server;
    s->pool_jobs--;
    hashed(inf);
}

/* Without a digest where no request of this id is known; where one is, theirs is made too if it lacks. */
static void enter_undigested(inference *inf) {
    request *r = inf->request;
    server *s = r->server;
    bool is_new = true;
    ckks_error err = {0};
    dedupe_entry *entry = dedupe_find(&s->dedupe, r->tenant->name, r->id, clock_now_ns());
    if (entry) {
        uint8_t digest[DEDUPE_DIGEST_BYTES];
        if (!entry->has_digest && digest_of(((inference *)entry->owner)->request, digest))
            dedupe_set_digest(entry, digest);
        inf->has_digest = entry->has_digest && digest_of(r, inf->digest);
        hashed(inf);
        return;
    }
    if (dedupe_enter(&s->dedupe, &inf->entry, &is_new, r->tenant->name, r->id, NULL, inf, clock_now_ns(),
                     &err) != CKKS_OK) {
        fail_and_end(inf, &err);
        return;
    }
    admit(inf);
}

/* ---- checks ---- */

static ckks_status find_keys(request *r, inference *inf, const Ckksd__V1__InferRequest *input,
                             ckks_error *err) {
    const model *m = inf->model;
    if (!input->has_lineage || input->lineage.len != LINEAGE_BYTES)
        return ckks_error_set(err, CKKS_MALFORMED, "lineage", "a lineage has %u bytes", LINEAGE_BYTES);
    if (m->program.key_count == 0) return CKKS_OK;
    if (!input->has_key_set || input->key_set.len != KEY_SET_ID_BYTES)
        return ckks_error_set(err, CKKS_MALFORMED, "key_set", "the model needs a key set: an id of %u bytes",
                              KEY_SET_ID_BYTES);
    key_entry *entry = keys_find(r->server, r->tenant->name, input->key_set.data);
    if (!entry) return ckks_error_set(err, CKKS_KEY_UNKNOWN, "key_set", "there is no such key set");
    if (entry->record.state == KEYSTORE_EVICTED)
        return ckks_error_set(err, CKKS_KEY_EVICTED, "key_set", "the key set was evicted: upload it again");
    if (memcmp(entry->record.parameter_id, m->package->params.id, CKKS_PARAMETER_ID_BYTES) != 0)
        return ckks_error_set(err, CKKS_PARAMS_MISMATCH, "key_set",
                              "the key set is of other parameters than the model");
    if (memcmp(entry->record.lineage, input->lineage.data, LINEAGE_BYTES) != 0)
        return ckks_error_set(err, CKKS_LINEAGE_MISMATCH, "lineage",
                              "the inputs are of another secret key than the key set");
    keys_hold(entry, inf);
    return keys_satisfy(entry, m->program.keys, m->program.key_count, err);
}

static ckks_status check_inputs(request *r, inference *inf, const Ckksd__V1__InferRequest *input,
                                ckks_error *err) {
    const model *m = inf->model;
    if (input->has_model_digest &&
        (input->model_digest.len != 32 || memcmp(input->model_digest.data, m->package->digest, 32) != 0))
        return ckks_error_set(err, CKKS_CONFIG_RETIRED, "model_digest", "%s/%s is another package now",
                              m->name, m->version);
    inf->input_count = m->program.input_count;
    if (!(inf->inputs = calloc(inf->input_count + 1u, sizeof *inf->inputs)))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "out of memory");
    ckks_status rc =
        infer_inputs_check(inf->inputs, &m->package->params, m->program.inputs, m->program.input_count, input,
                           &r->frame, r->segments, r->segment_count, err);
    if (rc != CKKS_OK) return rc;
    if (r->body.block) /* where the device copies from, and stays as long as the request */
        for (uint32_t i = 0; i < inf->input_count; i++) inf->inputs[i].source = GRAPH_SOURCE_PACKED_PINNED;
    return find_keys(r, inf, input, err);
}

static void timers_open(inference *inf) {
    server *s = inf->request->server;
    const uint64_t now = clock_now_ns();
    const uint64_t left_ns = inf->request->deadline_ns > now ? inf->request->deadline_ns - now : 0;
    uv_timer_init(&s->loop.uv, &inf->deadline);
    uv_timer_init(&s->loop.uv, &inf->orphan);
    inf->deadline.data = inf->orphan.data = inf;
    inf->timers_open = 2;
    uv_update_time(&s->loop.uv);
    uv_timer_start(&inf->deadline, on_deadline, left_ns / NS_PER_MS, 0);
}

void inference_begin(request *r, const Ckksd__V1__InferRequest *input) {
    ckks_error err = {0};
    model *m = NULL;
    inference *inf = NULL;
    server *s = r->server;
    if (!input->model) {
        ckks_error_set(&err, CKKS_MALFORMED, "model", "the request names no model");
        request_fail(r, &err);
        return;
    }
    if (models_find(s, &m, input->model, input->version, false, &err) != CKKS_OK ||
        !(inf = calloc(1, sizeof *inf))) {
        if (err.code == CKKS_OK) ckks_error_set(&err, CKKS_RESOURCE_EXHAUSTED, "", "out of memory");
        request_fail(r, &err);
        return;
    }
    inf->request = r, r->inference = inf;
    inf->model = m;
    list_init(&inf->key_link);
    list_init(&inf->item.link);
    list_append(&m->inferences, &inf->model_link);
    timers_open(inf);
    if (check_inputs(r, inf, input, &err) != CKKS_OK) {
        fail_and_end(inf, &err);
        return;
    }
    if (!r->has_id) {
        admit(inf);
        return;
    }
    inf->hash.work = hash_body;
    inf->hash.done = hash_done;
    if (r->body.bytes <= HASH_LATER_MAX) {
        enter_undigested(inf);
        return;
    }
    s->pool_jobs++;
    loop_submit(&s->loop, &inf->hash);
}
