/*
 * A graph program: a fixed evaluator recorded once and replayed many times. It owns one set of input buffers,
 * one recorded graph and one set of retained outputs, and works in its slot's arena.
 *
 *   create -- capture --> READY -- copy_inputs_from --> PREPARED -- replay_prepared(handle) --> READY
 *                         READY -- replay(inputs) --> READY          any -- close --> CLOSED
 *
 * Refusals by the host change nothing. A device call that fails leaves the program in one of three places,
 * which graph_program_get_state tells: as it was (the payload may be replayed again), POISONED (a copy
 * stopped half-way: a full good copy must come first) or FAILED (work already accepted failed on the device:
 * all memory has been given back, graph_slot_recover and then graph_program_capture bring the program back).
 *
 * Threads: one instance is used by one thread at a time; a second concurrent caller gets
 * CKKS_FAILED_PRECONDITION. Distinct instances are independent, except that a binding set and a key set may
 * be shared (both are thread-safe). Programs of one slot take turns on its streams, on whatever thread.
 */
#ifndef CKKS_GRAPH_PROGRAM_H
#define CKKS_GRAPH_PROGRAM_H

#include "kernels/evaluator/evaluator.h"
#include "kernels/scheme/keys.h"

/* ---- slot: an arena of fixed size and address, a compute stream; its programs never overlap ---- */

typedef struct graph_slot graph_slot;
/* Reserves the arena once. bytes = what programs of this slot share (the largest workspace; 0 is possible).
 * The caller owns *out. */
ckks_status graph_slot_create(graph_slot **out, device *dev, uint64_t arena_bytes, ckks_error *err);
/* Accepts NULL. All programs of the slot must have been destroyed (asserted). */
void graph_slot_destroy(graph_slot *slot);
/* The slot's compute stream, for work that must come before or after its programs' replays. */
device_stream *graph_slot_stream(graph_slot *slot);
device *graph_slot_device(graph_slot *slot);
/* Limits what captured programs of the slot may own beside the arena: retained buffers, staging on the device
 * and pinned on the host, the reference buffers of a capture. 0 (the start) = only the device's own budget.
 */
void graph_slot_limit(graph_slot *slot, uint64_t program_bytes_max);
/* graph_slot_recover waits for the slot's work and clears the sticky errors of its streams, so that programs
 * can be captured again; every program captured before must be (their calls return CKKS_DEVICE_ERROR).
 * Blocks. CKKS_DEVICE_ERROR if the device itself is lost. */
ckks_status graph_slot_recover(graph_slot *slot, ckks_error *err);

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

/* Allocates every binding; none has words yet, and no program captures or replays before each has. The caller
 * owns *out. Ids must differ. */
ckks_status binding_set_create(binding_set **out, device *dev, const binding_descriptor *bindings,
                               uint32_t count, ckks_error *err);
/* Accepts NULL. CKKS_FAILED_PRECONDITION while programs are attached (from create to close). */
ckks_status binding_set_destroy(binding_set *set, ckks_error *err);
/* binding_set_refresh waits for replay-complete of every attached program, holds back their next replay,
 * changes all bindings of the call together; refuses whole on unknown id, size or signature, before any byte
 * moves. If the device fails half-way, the bindings of the call hold unknown words: replays are refused with
 * CKKS_DEVICE_ERROR until a refresh that covers them succeeds. Blocks. Thread-safe. */
ckks_status binding_set_refresh(binding_set *set, const binding_update *updates, uint32_t count,
                                ckks_error *err);
uint32_t binding_set_count(const binding_set *set);
void binding_set_info(binding_set *set, uint32_t index, binding_info *out);
/* generation of the whole set: 0, then one more per refresh */
uint64_t binding_set_generation(binding_set *set);

/* ---- key set resident on a device ---- */

typedef struct resident_keys resident_keys;

/* One key's packed, seeded component 0 as it travels. */
typedef struct packed_key {
    key_requirement requirement;
    const uint8_t *packed; /* host; limbs in order [digit][limb], each zero-padded to 16 bytes */
    uint64_t packed_bytes;
} packed_key;

/*
 * resident_keys_upload unpacks, checks and expands on the device; `keys` in manifest order (it defines
 * polynomial indices). CKKS_RESIDUE_RANGE names the key. Blocks; uses its own stream. Reference-counted:
 * starts with one.
 *
 * The others take keys one after another, so that a set need not be in host memory as a whole, and can take
 * over the memory of a set that is not needed any more: `storage`, NULL or with its last reference, is
 * consumed in any case. resident_keys_pack: `pack` gives key `index` (only packed and packed_bytes are read),
 * valid until it is called again. resident_keys_fill, for the self test: `fill` writes whole words in the
 * resident layout of kernels.h. Both are called for 0, 1, ... on the calling thread; what they return ends
 * it.
 */
typedef struct resident_keys_config {
    const key_requirement *requirements; /* [count] */
    uint32_t count;
    const uint8_t *lineage; /* [LINEAGE_BYTES] */
    const uint8_t *seed;    /* [SEED_BYTES]; resident_keys_pack */
    resident_keys *storage;
    ckks_status (*pack)(void *source, uint32_t index, packed_key *out, ckks_error *err);
    ckks_status (*fill)(void *source, uint32_t index, uint64_t *words, ckks_error *err);
    void *source;
} resident_keys_config;
ckks_status resident_keys_upload(resident_keys **out, device *dev, const ckks_context *context,
                                 const packed_key *keys, uint32_t count, const uint8_t seed[SEED_BYTES],
                                 const uint8_t lineage[LINEAGE_BYTES], ckks_error *err);
ckks_status resident_keys_pack(resident_keys **out, device *dev, const ckks_context *context,
                               const resident_keys_config *config, ckks_error *err);
ckks_status resident_keys_fill(resident_keys **out, device *dev, const ckks_context *context,
                               const resident_keys_config *config, ckks_error *err);
/* Any thread. */
void resident_keys_retain(resident_keys *keys);
void resident_keys_release(resident_keys *keys); /* the last one frees; replays in flight hold a reference */
uint64_t resident_keys_bytes(const resident_keys *keys);
const uint8_t *resident_keys_lineage(const resident_keys *keys);
/* CKKS_KEY_MISSING naming the first requirement (element, level) that the set does not meet. A key of a
 * higher level meets a requirement of a lower one. */
ckks_status resident_keys_satisfy(const resident_keys *keys, const key_requirement *requirements,
                                  uint32_t count, ckks_error *err);

/* ---- program ---- */

/* What the callable works with. */
typedef struct graph_region {
    evaluator *evaluator;
    uint32_t output_count;
    const ckks_value *outputs; /* where results go: write into them, or let graph_region_output copy */
    void *internal;            /* the program's own; NULL in a region made by hand (planning) */
} graph_region;

/* graph_callable enqueues the whole evaluation on region->evaluator->stream and names each result with
 * graph_region_output. It runs several times (planning, eager reference, warm-up, recording), must do the
 * same each time, must neither allocate nor wait, and writes the workspace, its outputs and (through the
 * evaluator) the random counter: nothing else. The program itself records the counter advance. A callable
 * that uses streams of its own and fails while it is not recorded leaves no work running on them. */
typedef ckks_status (*graph_callable)(void *context, graph_region *region, const ckks_value *inputs,
                                      uint32_t input_count, ckks_error *err);

/* graph_region_output: value is result `index`; its words are copied to the output buffer unless they are
 * that buffer. Each result is named once. CKKS_SIGNATURE_MISMATCH if it is not what the configuration says,
 * CKKS_INVALID_ARGUMENT if the words are not on the device, CKKS_ALIASING if they are an input's. */
ckks_status graph_region_output(graph_region *region, uint32_t index, const ckks_value *value,
                                ckks_error *err);

typedef struct graph_program graph_program;

/* Arrays are copied by graph_program_create; everything else must outlive the program. */
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

/* graph_plan_workspace runs the callable once under a planning recording on `dev` (nothing is computed, no
 * device memory) and plans the workspace; config->workspace is ignored. The caller owns *out. Blocks shortly.
 */
ckks_status graph_plan_workspace(workspace_plan **out, device *dev, const graph_program_config *config,
                                 ckks_error *err);

/* An input of one request. Packed (as it travels) or words. */
typedef enum graph_source {
    GRAPH_SOURCE_PACKED_HOST = 1,
    GRAPH_SOURCE_WORDS_HOST,
    GRAPH_SOURCE_WORDS_PINNED,
    GRAPH_SOURCE_WORDS_DEVICE,
    GRAPH_SOURCE_PACKED_PINNED, /* packed, in memory of device_allocate_host */
} graph_source;
typedef struct graph_input {
    graph_source source;
    value_signature signature; /* as the sender declares it; compared with the program's */
    uint8_t lineage[LINEAGE_BYTES];
    const void *data; /* packed: [batch][component][limb], component 0 alone when seeded; else words */
    uint64_t bytes;
    bool is_seeded;      /* packed, two components: component 1 of batch entry i from the seed, purpose
                            SEED_CIPHERTEXT, polynomial i */
    const uint8_t *seed; /* seeded: [SEED_BYTES], host; copied before return */
    device_event *ready; /* pinned and device sources: the copy waits for it on its stream; NULL = now */
} graph_input;

/* Bytes of `data` for a packed input of this signature. */
uint64_t graph_packed_bytes(const ckks_params *params, const value_signature *signature, bool is_seeded);

typedef struct graph_handle {
    uint64_t program_id; /* unique in the process */
    uint64_t sequence;   /* 0 = no handle */
} graph_handle;

typedef enum graph_ownership { GRAPH_OUTPUT_BORROWED = 1, GRAPH_OUTPUT_OWNED } graph_ownership;

/* A result. Owned: words are host memory (pinned; signature.device = 0) of the caller, returned with
 * graph_result_release, valid until then, even after the program closed (the device must stay open).
 * Borrowed: device views of the retained buffers under a lease that must be given up before the next replay.
 */
typedef struct graph_result {
    graph_ownership ownership;
    uint32_t output_count;
    ckks_value *outputs;         /* [output_count], owned by the result */
    uint64_t generation;         /* of the retained outputs: one more for each replay */
    uint64_t binding_generation; /* of the whole binding set: one number, never mixed; 0 without bindings */
    uint32_t binding_count;
    const uint64_t *binding_generations; /* [binding_count], in the set's order, owned by the result */
    /* On the device. stage_ns counts from the transfer to the last check, waiting for an earlier replay
     * included; 0 when the held payload was recomputed. */
    uint64_t stage_ns, replay_ns, copy_out_ns;
    void *internal;
} graph_result;

typedef enum graph_program_state {
    GRAPH_PROGRAM_CREATED = 1, /* not captured yet */
    GRAPH_PROGRAM_READY,       /* no copy outstanding */
    GRAPH_PROGRAM_PREPARED,    /* a handle is outstanding */
    GRAPH_PROGRAM_POISONED,    /* a full good copy must come before the next replay */
    GRAPH_PROGRAM_FAILED,      /* gave back all memory: recover the slot and capture again */
    GRAPH_PROGRAM_CLOSED,
} graph_program_state;

/* create checks the configuration; no device memory yet. The caller owns *out; graph_program_destroy closes
 * first and accepts NULL. */
ckks_status graph_program_create(graph_program **out, graph_slot *slot, const graph_program_config *config,
                                 ckks_error *err);
void graph_program_destroy(graph_program *program);
/* Any thread. */
graph_program_state graph_program_get_state(graph_program *program);

/* graph_program_capture: admission (everything against the slot's limits and the device's budget, before
 * anything is allocated), eager reference, `warmup` more runs, recording, validation replay against the eager
 * reference, bit for bit. examples[input_count]: device values, complete, not written meanwhile. keys: words
 * in place of keys (may be self-test keys; NULL if the program needs none). err->stage is one of "admission",
 * "warmup", "capture", "first replay". On failure every byte is given back and capture may be tried again
 * (after graph_slot_recover where the cause is CKKS_DEVICE_ERROR). Afterwards no payload is held, and neither
 * keys nor examples are kept. Blocks. */
ckks_status graph_program_capture(graph_program *program, int32_t warmup, const ckks_value *examples,
                                  resident_keys *keys, ckks_error *err);

/* Host checks of all arguments (signatures field by field, lineage, sizes, keys) come first and change
 * nothing when they refuse. Then asynchronous: pageable data (packed and words) is copied to pinned staging
 * before return; pinned and device sources must stay alive and unchanged until a replay of the handle was
 * finished or the program closed. May wait for an earlier copy to leave the staging area, never for a replay
 * of this handle. The payload is the inputs and the key set together; the program keeps a reference to `keys`
 * while it is held. */
ckks_status graph_program_copy_inputs_from(graph_program *program, graph_handle *out,
                                           const graph_input *inputs, uint32_t input_count,
                                           resident_keys *keys, ckks_error *err);
/* graph_program_drop_payload gives up the held payload, and with it the program's reference to the keys (a
 * replay that was begun has its own). Does not block. CKKS_FAILED_PRECONDITION while a copy is outstanding.
 */
ckks_status graph_program_drop_payload(graph_program *program, ckks_error *err);
/* Blocks until the replay and, if owned, the copy of its outputs are complete. handle.sequence == 0:
 * recompute the held payload (CKKS_HANDLE_MISSING while a copy is outstanding, CKKS_FAILED_PRECONDITION if
 * nothing is held). CKKS_RESIDUE_RANGE naming the input: what was copied is no ciphertext, the reply is void
 * and the payload poisoned. CKKS_DEVICE_ERROR: see graph_program_get_state. */
ckks_status graph_program_replay_prepared(graph_program *program, graph_result *out, graph_handle handle,
                                          graph_ownership ownership, ckks_error *err);
ckks_status graph_program_replay(graph_program *program, graph_result *out, const graph_input *inputs,
                                 uint32_t input_count, resident_keys *keys, graph_ownership ownership,
                                 ckks_error *err);
/* The asynchronous pair of replay_prepared: begin enqueues, finish waits and fills the result. Up to
 * GRAPH_PENDING_MAX may be begun and not finished: they run in the order of their begins, each owned copy
 * before the next replay, with no host wait in between. A pending belongs to the program and ends with its
 * finish, whatever that returns (except CKKS_FAILED_PRECONDITION for a second thread). */
#define GRAPH_PENDING_MAX 4u
typedef struct graph_pending graph_pending;
ckks_status graph_program_replay_begin(graph_program *program, graph_pending **out, graph_handle handle,
                                       graph_ownership ownership, ckks_error *err);
ckks_status graph_program_replay_finish(graph_program *program, graph_pending *pending, graph_result *out,
                                        ckks_error *err);
/* Does not block. */
bool graph_pending_is_complete(graph_pending *pending);

/* Releases an owned result's memory or a borrowed result's lease. Accepts zeroed. */
void graph_result_release(graph_result *result);
/* Gives up the lease of a borrowed result and keeps the view, readable with graph_result_read until the next
 * replay. */
void graph_result_end_lease(graph_result *result);
/* graph_result_read copies words of output `index` to host memory: CKKS_STALE_GENERATION for a borrowed view
 * of an older generation, CKKS_CLOSED after the program closed or failed. Blocks. */
ckks_status graph_result_read(const graph_result *result, uint32_t index, uint64_t *words,
                              uint64_t word_count, ckks_error *err);

/* Idempotent; waits for pending work; returns all memory; every later call is CKKS_CLOSED. */
void graph_program_close(graph_program *program);

/* Replaces the random stream key with fresh bytes from the operating system (capture does so too) and starts
 * its counter at 0; `fixed` != NULL: a fixed key, for the self test only. Waits for pending work. */
ckks_status graph_program_reseed(graph_program *program, const uint8_t fixed[32], ckks_error *err);

typedef struct graph_program_stats {
    uint32_t kernel_nodes, copy_nodes, fill_nodes;
    uint64_t input_bytes, output_bytes;
    uint64_t staging_bytes;                /* pinned host memory */
    uint64_t device_staging_bytes;         /* its landing place */
    uint64_t arena_bytes, key_table_bytes; /* arena: what the workspace plan uses of it */
    uint64_t random_blocks;                /* 64-byte blocks of the random stream drawn by each replay */
    uint64_t warmup_ns, capture_ns, first_replay_ns;
    uint64_t replays, superseded_copies, refreshes;
} graph_program_stats;
/* Any thread. Bytes are 0 before capture and after close. */
void graph_program_get_stats(graph_program *program, graph_program_stats *out);

/* ---- ranks ---- */

/* graph_reduce adds, limb by limb modulo each prime, the owned results of several ranks (one per device) into
 * an owned accumulator in host memory. All layouts are compared before any payload moves, so that every rank
 * fails together: rank_errors[rank_count], if not NULL, gets the same cause for each rank. Pure. */
ckks_status graph_reduce(graph_result *out, const ckks_context *context, const graph_result *ranks,
                         uint32_t rank_count, ckks_error *rank_errors, ckks_error *err);

#endif
