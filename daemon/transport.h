/*
 * Sockets: control (small messages), bulk (ciphertexts and key parts) and, if configured, admin. Each is an
 * nng REP socket with a fixed number of contexts, and as many for its local addresses (ipc://), which the
 * loop serves itself (local.h); a context is one accepted request at most, so contexts and pipes bound the
 * memory that peers can make us hold.
 *
 * nng's callbacks run on its own threads and only post to the loop; everything else here is loop thread only.
 *
 * Who connects and shows no valid token holds a share of the pipes at most, and for a limited time: one more
 * takes the place of the oldest of them, local or not, so that such peers keep nobody out who has a token.
 *
 * Rules that are easy to break: the message limit is set on the socket before any listener exists (the
 * default is unlimited); a successful send means only that the transport took it; closing a listener resets
 * its connections, so draining closes none; asynchronous operations are stopped before sockets are closed and
 * freed after.
 */
#ifndef CKKSD_TRANSPORT_H
#define CKKSD_TRANSPORT_H

#include "daemon/config.h"
#include "daemon/loop.h"

#include <nng/nng.h>

#define TRANSPORT_ENDPOINTS_MAX  (2u * CONFIG_LIST_MAX + 1u)
#define TRANSPORT_PIPES_MAX      65536u
#define TRANSPORT_FAILED_TOKENS  3u
#define TRANSPORT_CLOSE_DELAY_MS 250u
#define TRANSPORT_BLOCKS_MAX     64u

typedef enum transport_kind {
    TRANSPORT_CONTROL,
    TRANSPORT_BULK,
    TRANSPORT_ADMIN,
    TRANSPORT_KINDS
} transport_kind;

typedef enum transport_context_state {
    CONTEXT_RECEIVING,
    CONTEXT_HANDLING, /* the owner has it, and answers with transport_reply or transport_release */
    CONTEXT_SENDING,
    CONTEXT_CLOSED,
} transport_context_state;

struct transport;

/* A part of lent memory, for one message. */
typedef struct transport_block {
    uint8_t *memory;
    bool is_used;
} transport_block;

/* The bytes of a message that came. Zero-initialise. */
typedef struct transport_body {
    uint8_t *data;
    size_t bytes;
    nng_msg *message;       /* has them, or */
    transport_block *block; /* has */
} transport_body;

/* One context. `link` and `owner` are the owner's while it handles. */
typedef struct transport_context {
    list_node link;
    void *owner;
    uint32_t pipe;
    transport_kind kind;
    transport_context_state state;
    bool close_after;
    uint64_t began_ns; /* when the message's first bytes were there; 0: not known (nng's) */
    loop_event completed;
    struct transport *transport;
    nng_ctx nng;
    nng_aio *aio;
    bool is_local;             /* then instead of the two: */
    struct local_peer *peer;   /* NULL once it is gone */
    struct local_write *write; /* while SENDING */
    uint8_t trail[32];         /* the request ids that go back in front of the reply */
    uint32_t trail_bytes;
    bool takes_memory; /* the reply may go through memory that the peer was lent */
} transport_context;

typedef struct transport_pipe {
    uint32_t id; /* 0 = free */
    transport_kind kind;
    uint32_t failed_tokens;
    uint64_t last_message_ns;
    uint64_t close_at_ns; /* 0 = not marked */
    uint64_t opened_ns;
    bool is_trusted; /* its peer showed a valid token, or is an administrator */
    bool is_leaving; /* for another, or it was late */
} transport_pipe;

typedef struct transport_pipe_counts {
    uint32_t open, unauthenticated;
    uint64_t refused, displaced, expired; /* in all */
} transport_pipe_counts;

typedef struct transport_socket {
    nng_socket nng;
    bool is_open;
    transport_context *contexts;
    uint32_t context_count;
    transport_context *local;
    uint32_t local_count;
    list_node local_free; /* of `local`, by link */
    uint64_t message_bytes_max;
} transport_socket;

typedef struct transport_endpoint {
    char url[CONFIG_TEXT_MAX + 16]; /* as bound: a port of 0 is replaced */
    transport_kind kind;
} transport_endpoint;

/* What the owner does about messages. Loop thread. */
typedef struct transport_callbacks {
    /* A message arrived on `context`, which is now HANDLING; the callee owns what `body` holds. */
    void (*message)(void *context_data, transport_context *context, const transport_body *body);
    /* The pipe of a HANDLING context is gone: detach, then transport_release. */
    void (*lost)(void *context_data, transport_context *context);
    /* A message of `bytes` has begun to arrive on a local address; may be NULL. */
    void (*coming)(void *context_data, transport_kind kind, uint64_t bytes);
    void *data;
} transport_callbacks;

typedef struct transport {
    loop *loop;
    transport_callbacks callbacks;
    transport_socket sockets[TRANSPORT_KINDS];
    transport_endpoint endpoints[TRANSPORT_ENDPOINTS_MAX];
    uint32_t endpoint_count;
    uint64_t idle_timeout_ns, send_timeout_ns, unauthenticated_timeout_ns;
    uv_timer_t sweep;
    loop_event pipes_changed;
    loop_event displaced; /* a local pipe, by one that nng's threads let in */
    list_node local_peers, local_listeners;
    uint32_t local_serial;
    uint32_t lent_max; /* local peers that are lent memory of each kind at one time */
    transport_block blocks[TRANSPORT_BLOCKS_MAX];
    uint32_t block_count;
    uint64_t block_bytes;
    pthread_mutex_t lock; /* guards the rest: nng's threads add and remove pipes */
    transport_pipe *pipes;
    uint32_t pipe_capacity, unauthenticated_max;
    bool refuses_pipes;
    uint64_t refused_pipes, displaced_pipes, expired_pipes;
    bool is_initialised;
} transport;

/* transport_open creates sockets, contexts and listeners as configured and starts receiving. On failure
 * everything is closed. CKKS_INVALID_ARGUMENT, CKKS_IO (naming the address), CKKS_RESOURCE_EXHAUSTED. */
ckks_status transport_open(transport *t, loop *l, const config *c, uint32_t bulk_contexts,
                           const transport_callbacks *callbacks, ckks_error *err);

/* transport_reply takes the message and sends it; the context then receives again. `close_pipe` closes the
 * peer's pipe once the reply had time to leave. */
void transport_reply(transport_context *context, nng_msg *message, bool close_pipe);
/* transport_release gives a context back without a reply. */
void transport_release(transport_context *context);
/* transport_body_free ends a body that a callback got; accepts zeroed. Loop thread. */
void transport_body_free(transport *t, transport_body *body);
/* transport_lend_blocks: local messages that fit are received into `count` blocks of `block_bytes` each at
 * `memory` (aligned to 16 at least; the caller's, until transport_close) while there is a free one, so that
 * who reads them finds them where the device copies from; the rest gets memory of its own. Loop thread, once.
 */
void transport_lend_blocks(transport *t, uint8_t *memory, uint64_t block_bytes, uint32_t count);

/* transport_token_failed counts a failed token of the context's pipe; true when the pipe must be closed. */
bool transport_token_failed(transport_context *context);
/* transport_trust: the context's peer showed a valid token, or may administer: its pipe is none of the
 * unauthenticated any more, which have a share of the pipes and a deadline. Loop thread. */
void transport_trust(const transport_context *context);
/* transport_admin_peer: the peer's user number on the admin socket; false if it cannot be told. */
bool transport_admin_peer(const transport_context *context, const transport_body *body, uint64_t *uid);

/* From now on new pipes are turned away; those that are there stay. */
void transport_refuse_pipes(transport *t);
uint32_t transport_pipe_count(transport *t);
void transport_count_pipes(transport *t, transport_pipe_counts *out);
uint32_t transport_count_state(const transport *t, transport_context_state state);

/* transport_close: after the loop has stopped deciding. Stops all operations, closes sockets (bounded wait),
 * frees. Accepts zeroed. */
void transport_stop(transport *t);
void transport_close(transport *t);

/* ---- for local.c ---- */

/* transport_pipe_add: false if pipes are refused, or there are too many; counted. The oldest pipe of the
 * unauthenticated goes when their share is over. Loop thread for local pipes, nng's for its own. */
bool transport_pipe_add(transport *t, uint32_t id, transport_kind kind);
void transport_pipe_remove(transport *t, uint32_t id);
void transport_pipe_touch(transport *t, uint32_t id);
/* transport_pipe_mark: to be closed once the last reply had time to leave. */
void transport_pipe_mark(transport *t, uint32_t id);

#endif
