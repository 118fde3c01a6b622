/*
 * What the files of graph_program share. Who holds what:
 *
 *   slot       two streams, `compute` (warm-up, recording, replay, owned copies) and `copy` (ingest), and a
 * lock that whoever enqueues on them holds. Never held while waiting for a replay. program    one block of
 * device memory (inputs, outputs, key table, random state, verdicts, landing place of packed bytes), one of
 * pinned memory (staging, what each pending replay reads back), one recording. payload    what the input
 * buffers and the key table hold, or will hold when the copy stream gets there. pending    a replay that was
 * begun: its event, its key reference, its result in the making. views      shared by a program's capture and
 * the results that look into its outputs; outlives the capture. pool       pinned blocks of owned results;
 * outlives the program as long as a result does.
 *
 * Order of locks: program guard (not held across calls) - views - binding set - slot.
 */
#ifndef CKKS_GRAPH_INTERNAL_H
#define CKKS_GRAPH_INTERNAL_H

#include "kernels/device_graph.h"
#include "kernels/program/graph_program.h"

#include <pthread.h>
#include <stdatomic.h>

/* ---- slot.c ---- */

struct graph_slot {
    device *dev;
    device_stream *compute, *copy;
    void *arena;
    uint64_t arena_bytes;
    pthread_mutex_t lock; /* all below, and enqueueing on both streams */
    uint64_t program_bytes_max;
    uint64_t program_bytes; /* owned by captured programs */
    uint32_t program_count; /* created and not destroyed */
    uint64_t epoch;         /* recoveries so far: work of an earlier epoch may have been dropped */
};

/* stream_drain waits until nothing of the stream is running, even if the first try to wait fails; returns the
 * stream's error. */
ckks_status stream_drain(device_stream *stream, ckks_error *err);
/* event_drain: the same for an event. */
ckks_status event_drain(device_event *event, ckks_error *err);
uint64_t monotonic_ns(void);

/* ---- binding_set.c ---- */

/* One program's place in a set. `last_replay` is recorded behind each replay, under binding_set_enter. */
typedef struct binding_attachment {
    struct binding_attachment *next;
    device_event *last_replay;
    uint64_t refreshes; /* of the set, when attached */
} binding_attachment;

ckks_status binding_set_attach(binding_set *set, binding_attachment *at, ckks_error *err);
void binding_set_detach(binding_set *set, binding_attachment *at);
/* enter holds back refreshes until leave, and is held back by one; refuses while any binding has no words.
 * generations (may be NULL) [count] and *generation are what the set holds now. */
ckks_status binding_set_enter(binding_set *set, uint64_t *generations, uint64_t *generation, ckks_error *err);
void binding_set_leave(binding_set *set);
uint64_t binding_set_refreshes(binding_set *set);
/* binding_set_waiting: threads that wait now, a refresh for those inside, others for a refresh. Any thread.
 */
uint32_t binding_set_waiting(binding_set *set);
device *binding_set_device(const binding_set *set);

/* ---- resident_keys.c ---- */

/* key_table_fill writes entries[count] for the requirements; CKKS_KEY_MISSING as resident_keys_satisfy. */
ckks_status key_table_fill(key_table_entry *entries, const resident_keys *keys, const key_requirement *needs,
                           uint32_t count, ckks_error *err);
device *resident_keys_device(const resident_keys *keys);
const uint8_t *resident_keys_parameter_id(const resident_keys *keys);

/* ---- result.c ---- */

typedef struct result_pool result_pool;
typedef struct output_views output_views;
typedef struct result_body result_body;

ckks_status result_pool_create(result_pool **out, device *dev, uint64_t block_bytes, ckks_error *err);
ckks_status result_pool_take(result_pool *pool, void **block, ckks_error *err);
void result_pool_give(result_pool *pool, void *block);
/* close frees the idle blocks; the pool itself goes with the last block out. Accepts NULL. */
void result_pool_close(result_pool *pool);

ckks_status output_views_create(output_views **out, graph_slot *slot, ckks_error *err);
/* close refuses later reads with CKKS_CLOSED. Accepts NULL. */
void output_views_close(output_views *views);
/* advance makes every older view stale and returns the new generation; CKKS_LEASE_HELD while one is. */
ckks_status output_views_check(output_views *views, ckks_error *err);
ckks_status output_views_advance(output_views *views, bool with_lease, uint64_t *generation, ckks_error *err);
void output_views_end_lease(output_views *views, uint64_t generation);

/* result_body_create makes all that a result needs, so that finishing cannot fail for memory. Owned: values
 * point into a block of `pool` at offsets[]; borrowed: they are the retained ones. pool NULL: a block of its
 * own. */
ckks_status result_body_create(result_body **out, graph_ownership ownership, result_pool *pool,
                               output_views *views, const ckks_value *outputs, const uint64_t *offsets,
                               uint32_t output_count, uint32_t binding_count, ckks_error *err);
void result_body_destroy(result_body *body); /* accepts NULL */
/* the owned block's words of output `index` */
uint64_t *result_body_words(result_body *body, uint32_t index);
uint64_t *result_body_generations(result_body *body);
void result_body_set_generation(result_body *body, uint64_t generation, bool is_leased);
/* moves the body into *out */
void result_body_finish(result_body *body, graph_result *out);

/* ---- graph_program.c ---- */

/* What the device holds beside the random state and each replay reads back: laid out behind it. */
typedef struct program_readback {
    uint64_t counter;
    uint32_t verdict[]; /* one word per input */
} program_readback;

typedef struct graph_payload {
    uint64_t sequence; /* 0 = nothing is held */
    bool is_poisoned;
    resident_keys *keys;  /* reference; NULL if the program needs none */
    uint32_t event_index; /* of copied[], copy_started[] */
    bool is_timed;        /* its first replay reports stage_ns */
} graph_payload;

#define COPY_EVENT_COUNT (GRAPH_PENDING_MAX + 2u)

struct graph_pending {
    graph_program *program;
    bool is_used, is_lost;
    device_event *started, *replayed, *done;
    program_readback *readback; /* pinned */
    uint64_t counter_expected;
    uint64_t payload_sequence;
    uint32_t event_index;
    bool is_timed;
    uint64_t generation, binding_generation;
    uint32_t binding_count;
    graph_ownership ownership;
    resident_keys *keys;
    result_body *body;
};

/* All that capture allocates and close, failure or a failed capture gives back. */
typedef struct program_memory {
    uint8_t *device_block;
    uint64_t device_bytes;
    uint8_t *host_block;
    uint64_t host_bytes;
    uint64_t charged_bytes; /* to the slot */
    ckks_value *inputs;     /* [input_count] retained */
    ckks_value *outputs;    /* [output_count] retained */
    key_table_entry *key_table;
    random_state *random; /* the readback's counter is the last word of it, verdicts follow */
    uint32_t *verdict;
    uint8_t *landing; /* key table and seeds, then each input's packed bytes */
    uint8_t *staging; /* pinned */
    device_graph *graph;
    workspace *work;
    device_event *copied[COPY_EVENT_COUNT], *copy_started[COPY_EVENT_COUNT];
    device_event *staged;          /* the staging area has left the host */
    bool is_staging;               /* `staged` was recorded */
    device_event *replay_complete; /* latest replay, its owned copy included */
    result_pool *pool;
    output_views *views;
} program_memory;

/* ---- layout.c ---- */

/* Where things lie in the blocks; known from the configuration alone. */
typedef struct program_layout {
    uint64_t *table;                   /* what the arrays lie in */
    uint64_t *input_at, *output_at;    /* in the device block, and in the reference block of a capture */
    uint64_t *landing_at, *staging_at; /* per input: in the landing place and in the host block */
    uint64_t *result_at;               /* per output, in a result block */
    uint64_t key_table_at, random_at;  /* in the device block */
    uint64_t landing_block_at;
    uint64_t seeds_at; /* landing and staging start with the key table, then a seed per input */
    uint64_t header_bytes;
    uint64_t readback_bytes, readback_at; /* GRAPH_PENDING_MAX of them in the host block */
    uint64_t device_bytes, landing_bytes, host_bytes, result_bytes;
    uint64_t inputs_bytes, outputs_bytes;
    uint64_t reference_bytes;
} program_layout;

ckks_status program_config_check(const graph_program_config *config, device *dev, ckks_error *err);
ckks_status program_layout_create(program_layout *out, const graph_program_config *config, ckks_error *err);
void program_layout_destroy(program_layout *layout);
kernel_basis value_kernel_basis(const ckks_params *params, const value_signature *signature);
/* words of one batch entry */
uint64_t value_batch_words(const ckks_params *params, const value_signature *signature);

struct graph_program {
    uint64_t id;
    graph_slot *slot;
    graph_program_config config; /* arrays are the program's own */
    program_layout layout;

    pthread_mutex_t guard; /* the fields up to `stats`, for a moment only */
    pthread_cond_t idle;
    bool is_busy, is_closing;
    graph_program_state state; /* CREATED, READY, FAILED or CLOSED; the rest follows from the payload */
    bool has_outstanding, is_poisoned;
    graph_program_stats stats;

    /* below: whoever entered */
    program_memory memory;
    binding_attachment attachment;
    bool is_attached;
    uint64_t epoch; /* the slot's at capture */
    graph_payload payload;
    uint64_t outstanding; /* sequence of the handle not yet replayed; 0 = none */
    uint64_t last_sequence;
    uint64_t consumed; /* bit i: handle last_sequence - i was replayed */
    uint64_t counter_next;
    uint64_t blocks_per_run;
    uint8_t *named; /* [output_count] scratch of one run */
    graph_pending pending[GRAPH_PENDING_MAX];
};

ckks_status program_enter(graph_program *program, ckks_error *err);
void program_leave(graph_program *program);
/* Recovers nothing: gives back all memory, marks every pending as lost. Call without the slot's lock. */
void program_fail(graph_program *program);
/* Waits for the slot's streams and gives everything of `memory` back. */
void program_release_memory(graph_program *program);
/* CKKS_OK only in the READY state and in the slot's present epoch; an older epoch fails the program. */
ckks_status program_check_ready(graph_program *program, ckks_error *err);
/* program_run enqueues (or records) the callable once on the compute stream. */
ckks_status program_run(graph_program *program, const ckks_value *inputs, const ckks_value *outputs,
                        ckks_error *err);
ckks_status program_write_random(graph_program *program, const uint8_t *key, uint64_t counter,
                                 ckks_error *err);

/* ---- capture.c ---- */

/* device, parameters and required keys; NULL only if the program needs none */
ckks_status program_check_keys(const graph_program *program, const resident_keys *keys, ckks_error *err);

/* ---- staging.c ---- */

/* Host checks, then the copy; the caller has entered and checked that the program is ready. */
ckks_status program_copy_inputs(graph_program *program, graph_handle *out, const graph_input *inputs,
                                uint32_t input_count, resident_keys *keys, ckks_error *err);

#endif
