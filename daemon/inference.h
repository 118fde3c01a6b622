/*
 * ModelInfer from its checks to its reply. Stages: HASHING (pool: the body's digest, for duplicates), HELD
 * (admitted, waits for its keys), QUEUED, RUNNING (on a slot), then gone. In each stage exactly one party
 * holds it; deadline, cancellation and a lost peer answer or drop it at once if it waits, and mark it if it
 * is in someone's hands. Loop thread only, but for the job on the slot.
 *
 * What a request does not need is not waited for: the slot makes the digest while the device evaluates (a
 * retry that comes before makes it itself), and writes the reply to a local peer before the loop hears of it.
 */
#ifndef CKKSD_INFERENCE_H
#define CKKSD_INFERENCE_H

#include "daemon/dedupe.h"
#include "daemon/keys.h"
#include "daemon/local.h"
#include "daemon/models.h"
#include "daemon/request.h"
#include "daemon/scheduler.h"

typedef enum inference_stage {
    INFERENCE_HASHING,
    INFERENCE_HELD,
    INFERENCE_QUEUED,
    INFERENCE_RUNNING,
} inference_stage;

typedef struct inference {
    request *request;
    inference_stage stage;
    scheduler_item item;
    list_node model_link, key_link;
    model *model;
    key_entry *keys; /* NULL for a model that needs none */
    graph_input *inputs;
    uint32_t input_count;
    uv_timer_t deadline, orphan;
    uint32_t timers_open;
    loop_work hash;
    uint8_t digest[DEDUPE_DIGEST_BYTES];
    bool has_digest;
    dedupe_entry *entry;
    uint32_t attempts;
    slot_job job;
    resident_keys *resident;       /* for the slot, while RUNNING */
    nng_msg *room;                 /* for the reply, on the slot */
    nng_msg *reply;                /* from the slot */
    local_ticket ticket;           /* for the slot, if it may write the reply to the waiter itself */
    _Atomic bool is_claimed;       /* with a ticket: who sets it may answer */
    size_t offered;                /* bytes of the reply, by the slot, */
    size_t sent;                   /* of which the socket took so many: see local_send */
    bool is_sender;                /* the slot: it set is_claimed */
    uint64_t started_ns, ended_ns; /* on the slot */
    uint64_t check_ns, queue_ns, stage_ns, replay_ns, copy_out_ns,
        pack_ns; /* queue has check, copy_out pack */
} inference;

/* inference_begin: the handler of ModelInfer. */
void inference_begin(request *r, const Ckksd__V1__InferRequest *input);

void inference_keys_ready(inference *inf);
void inference_keys_failed(inference *inf, const ckks_error *cause);
/* The last waiter is gone. */
void inference_orphaned(inference *inf);
/* inference_cancel answers CANCELLED; *removed: it had not started. */
void inference_cancel(inference *inf, bool *removed);
/* inference_abandon answers DRAINING: the daemon waits for it no more. */
void inference_abandon(inference *inf);

/* inference_pump starts what can be started on free slots. */
void inference_pump(struct server *s);

#endif
