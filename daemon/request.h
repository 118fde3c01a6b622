/*
 * One accepted request, from its message to its reply. A request has one owner at any time (the front, a
 * handler, a pool job, the queue, a slot) and one exit, request_finish, which answers, accounts and frees.
 * Peers wait on contexts: usually one, more when a retry joined, none when the peer went away. Loop thread
 * only, except where a pool job or slot reads what it was given.
 */
#ifndef CKKSD_REQUEST_H
#define CKKSD_REQUEST_H

#include "daemon/dispatch.h"
#include "daemon/tenants.h"
#include "daemon/transport.h"
#include "proto/frame.h"

#include "rpc.pb-c.h"

struct server;
struct inference;

typedef struct request {
    list_node link;    /* in server.requests */
    list_node waiters; /* transport_context.link */
    struct server *server;
    transport_body body;
    frame_view frame;
    Ckksd__V1__RequestHeader *header;
    frame_segment *segments;
    uint32_t segment_count;
    const dispatch_method *method; /* NULL until known */
    ProtobufCMessage *input;
    tenant_account *tenant; /* NULL where no token was needed */
    bool has_id;
    uint8_t id[16];
    char id_text[33];    /* for logs; made up when the peer gave none */
    uint64_t receive_ns; /* from the first bytes to the last; 0: not known */
    uint64_t received_ns, deadline_ns;
    ckks_error error;            /* of the answer given */
    bool is_answered, is_joined; /* its waiters are another request's now */
    struct local_ticket
        *ticket; /* the reply of this waiter was written already, ticket->sent bytes of it; NULL: none */
    struct inference *inference; /* ModelInfer only */
} request;

/* request_begin takes over the message of a HANDLING context: checks in order, then calls the handler. */
void request_begin(struct server *server, transport_context *context, const transport_body *body);

/* request_answer sends a reply to every waiter, once; takes `message` (NULL: an internal error is sent). Work
 * that still runs for the request keeps it alive. */
void request_answer(request *r, nng_msg *message);
/* request_was_answered: `reply` went whole to its only waiter already (r->ticket); the message stays the
 * caller's. false: somebody is to be answered. */
bool request_was_answered(request *r, const nng_msg *reply);
void request_answer_error(request *r, const ckks_error *cause, uint32_t retry_after_ms);
/* request_finish is the one exit: accounts and frees. The request has been answered, or has no waiter. */
void request_finish(request *r);

/* Both steps, for handlers. */
void request_reply(request *r, const ProtobufCMessage *payload);
void request_fail(request *r, const ckks_error *cause);

/* request_join moves the waiters of `from` to `to`. */
void request_join(request *to, request *from);
/* request_lost: the context's peer is gone; it no longer waits. */
void request_lost(transport_context *context);

#endif
