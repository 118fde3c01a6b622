/*
 * A graph program: a fixed evaluator recorded once and replayed many times. It owns one set of input buffers,
 * one recorded graph and one set of retained outputs, and works in its slot's arena.
 *
 *   create -- capture --> READY -- copy_inputs_from --> PREPARED -- replay_prepared(handle) --> READY
 *                         READY -- replay(inputs) --> READY          any -- close --> CLOSED
 *
 * Threads: one instance is used by one thread at a time; a second concurrent caller gets
 * CKKS_FAILED_PRECONDITION. Distinct instances are independent, except that a binding set and a key set may
 * be shared (both are thread-safe).
 */
#ifndef CKKS_GRAPH_PROGRAM_H
#define CKKS_GRAPH_PROGRAM_H

#include "kernels/evaluator/evaluator.h"
#include "kernels/scheme/keys.h"

/* ---- slot: an arena of fixed size and address, a compute stream; its programs never overlap ---- */

typedef struct graph_slot graph_slot;
/* Reserves the arena once. bytes = what programs of this slot share (the largest workspace). The caller owns
 * *out. */
ckks_status graph_slot_create(graph_slot **out, device *dev, uint64_t arena_bytes, ckks_error *err);
void graph_slot_destroy(graph_slot *slot);
device_stream *graph_slot_stream(graph_slot *slot);

/* ---- binding set: weights at fixed addresses, one per device and model version ---- */

typedef struct binding_set binding_set;

typedef struct binding_descriptor {
    uint64_t id;
    uint64_t word_count;
    value_signature signature;
} binding_descriptor;

typedef struct binding_update {
    uint64_t id;
    const uint64_t *words; /* host; word_count of them */
    uint64_t word_count;
    value_signature signature;
} binding_update;

typedef struct binding_info {
    uint64_t id;
    uint64_t generation; /* 1 after the first upload, then one more for each refresh that changed it */
    uint8_t digest[32];  /* SHA-256 of the words */
    uint64_t *words;     /* device address, fixed */
} binding_info;

ckks_status binding_set_create(binding_set **out, device *dev, const binding_descriptor *bindings,
                               uint32_t count, ckks_error *err);
/* CKKS_FAILED_PRECONDITION while programs are attached. */
ckks_status binding_set_destroy(binding_set *set, ckks_error *err);
/* binding_set_refresh waits for replay-complete of every attached program, holds back their next replay,
 * changes all bindings of the call together; refuses whole on unknown id, size or signature. Blocks.
 * Thread-safe. */
ckks_status binding_set_refresh(binding_set *set, const binding_update *updates, uint32_t count,
                                ckks_error *err);
uint32_t binding_set_count(const binding_set *set);
void binding_set_info(binding_set *set, uint32_t index, binding_info *out);
/* generation of the whole set: 1, then one more per refresh */
uint64_t binding_set_generation(binding_set *set);

/* ---- key set resident on a device ---- */

typedef struct resident_keys resident_keys;

/* One key's packed, seeded component 0 as it travels. */
typedef struct packed_key {
    key_requirement requirement;
    const uint8_t *packed; /* host; limbs in order [digit][limb], each zero-padded to 16 bytes */
    uint64_t packed_bytes;
} packed_key;

/* resident_keys_upload unpacks, checks and expands on the device; `keys` in manifest order (it defines
 * polynomial indices). CKKS_RESIDUE_RANGE names the key. Blocks; uses its own stream. Reference-counted:
 * starts with one. */
ckks_status resident_keys_upload(resident_keys **out, device *dev, const ckks_context *context,
                                 const packed_key *keys, uint32_t count, const uint8_t seed[SEED_BYTES],
                                 const uint8_t lineage[LINEAGE_BYTES], ckks_error *err);
/* for tests and the self test: words given whole, [key] = resident layout of kernels.h, host memory */
ckks_status resident_keys_from_words(resident_keys **out, device *dev, const ckks_context *context,
                                     const key_requirement *requirements, const uint64_t *const *words,
                                     uint32_t count, const uint8_t lineage[LINEAGE_BYTES], ckks_error *err);
void resident_keys_retain(resident_keys *keys);
void resident_keys_release(resident_keys *keys); /* the last one frees; replays in flight hold a reference */
uint64_t resident_keys_bytes(const resident_keys *keys);
/* CKKS_KEY_MISSING naming the first requirement (element, level) that the set does not meet */
ckks_status resident_keys_satisfy(const resident_keys *keys, const key_requirement *requirements,
                                  uint32_t count, ckks_error *err);

/* ---- program ---- */

/* What the callable works with. */
typedef struct graph_region {
    evaluator *evaluator;
    uint32_t output_count;
    const ckks_value
        *outputs; /* retained output buffers: write into them (graph_region_output copies if you did not) */
} graph_region;

/* graph_callable enqueues the whole evaluation on region->evaluator->stream and names each result with
 * graph_region_output. It runs several times (planning, eager reference, warm-up, recording), must do the
 * same each time, must neither allocate nor wait. */
typedef ckks_status (*graph_callable)(void *context, graph_region *region, const ckks_value *inputs,
                                      uint32_t input_count, ckks_error *err);

/* graph_region_output: value is result `index`; its words are copied to the retained buffer unless they are
 * that buffer. */
ckks_status graph_region_output(graph_region *region, uint32_t index, const ckks_value *value,
                                ckks_error *err);

typedef struct graph_program graph_program;

typedef struct graph_program_config {
    const ckks_context *context;
    const device_tables *tables; /* of the slot's device */
    graph_callable callable;
    void *callable_context;
    const value_signature *inputs;
    uint32_t input_count;
    const value_signature *outputs;
    uint32_t output_count;
    const key_requirement *keys; /* key table order */
    uint32_t key_count;
    binding_set *bindings;           /* may be NULL */
    const workspace_plan *workspace; /* must fit the slot's arena */
    bool uses_randomness;
    bool execution_eager; /* the operator chose execution = eager: same steps, launches enqueued each time */
} graph_program_config;

/* An input of one request. Packed (as it travels) or words. */
typedef enum graph_source {
    GRAPH_SOURCE_PACKED_HOST = 1,
    GRAPH_SOURCE_WORDS_HOST,
    GRAPH_SOURCE_WORDS_PINNED,
    GRAPH_SOURCE_WORDS_DEVICE
} graph_source;
typedef struct graph_input {
    graph_source source;
    value_signature signature; /* as the sender declares it; compared with the program's */
    uint8_t lineage[LINEAGE_BYTES];
    const void *data; /* packed: both components, or component 0 alone when seeded */
    uint64_t bytes;
    bool is_seeded; /* packed only: component 1 from `seed`, purpose SEED_CIPHERTEXT */
    uint8_t seed[SEED_BYTES];
} graph_input;

typedef struct graph_handle {
    uint64_t program_id; /* unique in the process */
    uint64_t sequence;   /* 0 = no handle */
} graph_handle;

typedef enum graph_ownership { GRAPH_OUTPUT_BORROWED = 1, GRAPH_OUTPUT_OWNED } graph_ownership;

/* A result. Owned: words are host memory (device_allocate_host) of the caller, returned with
 * graph_result_release. Borrowed: device views of the retained buffers under a lease that must be released
 * before the next replay. */
typedef struct graph_result {
    graph_ownership ownership;
    uint32_t output_count;
    ckks_value *outputs;         /* [output_count], owned by the result */
    uint64_t generation;         /* of the retained outputs */
    uint64_t binding_generation; /* of the whole binding set: one number, never mixed */
    uint64_t stage_ns, replay_ns, copy_out_ns;
    void *internal;
} graph_result;

/* create checks the configuration; no device memory yet. The caller owns *out; graph_program_destroy closes
 * first. */
ckks_status graph_program_create(graph_program **out, graph_slot *slot, const graph_program_config *config,
                                 ckks_error *err);
void graph_program_destroy(graph_program *program);

/* graph_program_capture: admission, eager reference, `warmup` more runs, recording, validation replay against
 * the eager reference, bit for bit. examples[input_count]: device values. keys: words in place of keys (may
 * be self-test keys). err->stage is one of "admission", "warmup", "capture", "first replay". On failure every
 * byte is given back and capture may be tried again. Blocks. */
ckks_status graph_program_capture(graph_program *program, int32_t warmup, const ckks_value *examples,
                                  resident_keys *keys, ckks_error *err);

/* Asynchronous after host checks; `inputs` data must stay alive until the handle was replayed or superseded
 * and its copy completed (pageable data is copied to pinned staging before return, so it need not). */
ckks_status graph_program_copy_inputs_from(graph_program *program, graph_handle *out,
                                           const graph_input *inputs, uint32_t input_count,
                                           resident_keys *keys, ckks_error *err);
/* Blocks until the result is there (owned) or enqueued and complete (borrowed). handle.sequence == 0:
 * recompute the held payload. */
ckks_status graph_program_replay_prepared(graph_program *program, graph_result *out, graph_handle handle,
                                          graph_ownership ownership, ckks_error *err);
ckks_status graph_program_replay(graph_program *program, graph_result *out, const graph_input *inputs,
                                 uint32_t input_count, resident_keys *keys, graph_ownership ownership,
                                 ckks_error *err);
/* The asynchronous pair of replay_prepared: begin enqueues, finish waits and fills the result. One in flight
 * per program; another begin before finish queues behind it in stream order (C9, C11). */
typedef struct graph_pending graph_pending;
ckks_status graph_program_replay_begin(graph_program *program, graph_pending **out, graph_handle handle,
                                       graph_ownership ownership, ckks_error *err);
ckks_status graph_program_replay_finish(graph_program *program, graph_pending *pending, graph_result *out,
                                        ckks_error *err);

/* Releases an owned result's memory or a borrowed result's lease. Accepts zeroed. */
void graph_result_release(graph_result *result);
/* graph_result_read copies words of output `index` to host memory: CKKS_STALE_GENERATION for a borrowed view
 * of an older generation. */
ckks_status graph_result_read(const graph_result *result, uint32_t index, uint64_t *words,
                              uint64_t word_count, ckks_error *err);

/* Idempotent; waits for pending work; returns all memory; every later call is CKKS_CLOSED. */
void graph_program_close(graph_program *program);

/* Replaces the random stream key with fresh bytes from the operating system (create does so too); `fixed` !=
 * NULL: a fixed key, for the self test only. */
ckks_status graph_program_reseed(graph_program *program, const uint8_t fixed[32], ckks_error *err);

typedef struct graph_program_stats {
    uint32_t kernel_nodes, copy_nodes, fill_nodes;
    uint64_t input_bytes, output_bytes, staging_bytes, arena_bytes, key_table_bytes;
    uint64_t warmup_ns, capture_ns, first_replay_ns;
    uint64_t replays, superseded_copies, refreshes;
} graph_program_stats;
void graph_program_get_stats(const graph_program *program, graph_program_stats *out);

/* ---- ranks ---- */

/* graph_reduce adds, limb by limb modulo each prime, the results of several ranks (one per device) into an
 * owned accumulator in host memory. All layouts are compared before any payload moves, so that every rank
 * fails together. */
ckks_status graph_reduce(graph_result *out, const ckks_context *context, const graph_result *ranks,
                         uint32_t rank_count, ckks_error *err);

#endif
