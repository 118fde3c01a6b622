/*
 * The RPC half of libckksclient: one connection to one server, over REQ sockets: nng's, or for local
 * addresses (ipc://) pipes of our own that speak the same (rpc_local.c).
 *
 * A connection has two sockets, control and bulk, so that a limit on large messages is not a limit on all.
 * The user gives one address; the other socket's comes from ServerMetadata, reduced to the same scheme and
 * host as the given one: a server cannot send a client, and its token, elsewhere.
 *
 * nng never resends for us. A call that hears nothing (lost connection, silence) is sent again with the same
 * request id and the same bytes until its time is over; the server joins it to the first. A call that was
 * refused with "try later" is sent again under a new id. Nothing that was decrypted ever decides about
 * sending.
 *
 * Threads: a connection may be used by any number of threads; each call has a context of its own. Calls
 * block.
 */
#ifndef CKKS_CLIENT_RPC_H
#define CKKS_CLIENT_RPC_H

#include "client/lib/crypto.h"

#include "rpc.pb-c.h"

#include <nng/nng.h>

#define RPC_ADDRESS_MAX        512u
#define RPC_TOKEN_MAX          1024u
#define RPC_TIMEOUT_MS         60000u
#define RPC_CONNECT_MS         5000u
#define RPC_ATTEMPT_MS         10000u
#define RPC_CONTROL_BYTES_MAX  (16u << 20)
#define RPC_BULK_BYTES_MAX     (256u << 20)
#define RPC_KEY_PART_BYTES     (4u << 20)
#define RPC_KEY_PART_BYTES_MAX (16u << 20)

typedef struct rpc_config {
    const char
        *address; /* tcp://host:port, tls+tcp://host:port, ipc:///path, ws://..., wss://..., inproc://name */
    const char *token;        /* "id.secret"; NULL = none */
    const char *ca_file;      /* PEM, for tls+tcp and wss; NULL = the system's */
    uint32_t connect_ms;      /* 0 = RPC_CONNECT_MS */
    uint32_t timeout_ms;      /* of a call, retries included; 0 = RPC_TIMEOUT_MS */
    uint64_t reply_bytes_max; /* of a bulk reply; 0 = RPC_BULK_BYTES_MAX */
    uint32_t attempt_ms;      /* silence before a request is sent again, doubling; 0 = 10,000 */
    uint32_t spin_us;         /* of a call to a local address: how long it waits for the reply awake before it
                                 sleeps, which takes a core and spares a wake-up, 10 to 50 us */
} rpc_config;

typedef struct rpc_connection rpc_connection;

/* The token is copied. Copies are wiped before they are freed; the one in the message of a request that goes
 * by nng (not to ipc://) only where nng gave the message back unsent: what it sent, it frees as it is, and so
 * does TLS with its buffers.
 *
 * rpc_connect dials, asks for the server's metadata and checks the wire version. The caller owns *out. Blocks
 * up to connect_ms. CKKS_UNAVAILABLE when nothing answers, CKKS_UNTRUSTED_SERVER for an answer that makes no
 * sense. */
ckks_status rpc_connect(rpc_connection **out, const rpc_config *config, ckks_error *err);
/* rpc_close accepts NULL; no call may be in flight. Blocks for a second where the transport does not let go.
 */
void rpc_close(rpc_connection *connection);
const Ckksd__V1__ServerMetadataReply *rpc_server(const rpc_connection *connection);
const char *rpc_address(const rpc_connection *connection);

typedef struct rpc_segment {
    uint32_t kind; /* SegmentKind */
    const uint8_t *data;
    uint64_t bytes;
} rpc_segment;

typedef struct rpc_request {
    const char *method;              /* "Inference/ModelInfer" */
    const ProtobufCMessage *payload; /* NULL = Empty */
    const ProtobufCMessageDescriptor *reply;
    bool is_bulk;
    bool is_patient; /* wait and try again when the server says "later" */
    const rpc_segment *segments;
    uint32_t segment_count;
    uint32_t timeout_ms; /* 0 = the connection's */
} rpc_request;

/* When a message went and its reply came, by rpc_now_ns. nng tells neither `came_ns` (it is then done_ns)
 * nor, exactly, `sent_ns`: its threads may still be at it. */
typedef struct rpc_trip {
    uint64_t begin_ns; /* the first byte goes */
    uint64_t sent_ns;  /* the last one went */
    uint64_t came_ns;  /* the reply's first byte is here */
    uint64_t done_ns;  /* its last one is */
} rpc_trip;

/* Owns its message; segments point into it. Zero-safe rpc_reply_fini. */
typedef struct rpc_reply {
    nng_msg *message;
    Ckksd__V1__ReplyHeader *header;
    ProtobufCMessage *payload;
    rpc_segment *segments;
    uint32_t segment_count;
    uint64_t request_bytes, reply_bytes; /* whole messages */
    uint32_t attempts;
    rpc_trip trip; /* the last attempt's */
} rpc_reply;
void rpc_reply_fini(rpc_reply *reply);

/* rpc_call blocks until answered or out of time. A refusal by the server is the status that its code and
 * reason stand for, with err->stage "server"; its texts are made printable. */
ckks_status rpc_call(rpc_connection *connection, const rpc_request *request, rpc_reply *reply,
                     ckks_error *err);
bool rpc_error_is_from_server(const ckks_error *err);

/* rpc_choose_endpoint: which address to use for the other socket. *out becomes "" when the server names none
 * of the same scheme. Pure. */
void rpc_choose_endpoint(char out[RPC_ADDRESS_MAX], const char *given,
                         const Ckksd__V1__ServerMetadataReply *server, bool want_bulk);
/* rpc_status_from maps a reply's status. Pure. */
ckks_status rpc_status_from(const Ckksd__V1__Status *status, ckks_error *err);
/* text_make_printable replaces control characters and broken UTF-8 in place: terminals obey them. */
void text_make_printable(char *text);

/* ---- methods ---- */

/* rpc_model fetches and checks a model. version NULL = newest. The caller owns *out. */
ckks_status rpc_model(client_model **out, rpc_connection *connection, const char *name, const char *version,
                      const client_model_options *options, ckks_error *err);

/* rpc_register uploads a key set: begin, the parts that the server lacks, commit. Resumes where an earlier
 * try stopped. *was_there: nothing had to be sent. progress counts bytes. */
ckks_status rpc_register(rpc_connection *connection, const client_key_set *set, bool *was_there,
                         client_progress progress, void *progress_context, ckks_error *err);

typedef struct rpc_timing {
    uint64_t queue_ns, stage_ns, replay_ns, copy_out_ns; /* the server's */
    uint64_t receive_ns, check_ns;                       /* likewise; check is part of queue; 0: not told */
    uint64_t begin_ns;                                   /* this side's, by rpc_now_ns */
    rpc_trip trip;
    uint64_t total_ns; /* this side's, from send to reply */
    uint64_t request_bytes, reply_bytes;
    uint32_t attempts;
} rpc_timing;

/* rpc_infer sends ciphertexts and returns the model's outputs, validated (model, digest, signatures, sizes)
 * but not yet looked at. key_set is not looked at where the model needs no keys. timing may be NULL. */
ckks_status rpc_infer(client_ciphertexts *out, rpc_connection *connection, const client_model *model,
                      const uint8_t key_set[32], const client_ciphertexts *inputs, uint32_t timeout_ms,
                      rpc_timing *timing, ckks_error *err);

#endif
