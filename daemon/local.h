/*
 * Local sockets (ipc://), served by the loop itself.
 *
 * nng takes a request from a local socket through four of its threads and a reply through as many again; each
 * change of threads costs 10 to 25 us, more than everything else that the daemon does beside evaluating. Here
 * the loop thread reads and writes: what travels is the same (the scalability protocols' mapping on IPC: an
 * exchange of 8 bytes, then messages with a type byte, a length and a trail of request ids), so that nng's
 * and anybody's REQ sockets talk to it as before. All other addresses are nng's.
 *
 * A peer's message is read straight to where it stays, one at a time: a complete one waits for a free context
 * and nothing more is read from that peer meanwhile, so that memory stays within pipes + contexts. Nor is a
 * peer given another context while it leaves replies in the socket, so that who does not read holds few; one
 * that takes nothing for `send_timeout_ms` is hung up on.
 *
 * A large message may come through memory that was lent to the peer (proto/local_memory.h), one area each: it
 * is copied out once, to where a message from the socket would be, and is like any other from then on.
 *
 * A reply goes to the socket from the loop, or, if a ticket was taken, from the thread that made it: that
 * spares waking the loop first. Who writes holds the peer's lock, never waits, and leaves the rest of what
 * the socket does not take to the loop. All else is loop thread only.
 */
#ifndef CKKSD_LOCAL_H
#define CKKSD_LOCAL_H

#include "daemon/transport.h"

#define LOCAL_HOPS_MAX 8u /* request ids in front of a message: its own and those of devices on the way */

/*
 * A ticket lets another thread write the reply to one request, whatever becomes of its context and peer
 * meanwhile. The loop takes it while the context is HANDLING and is told with local_replied what was written.
 */
typedef struct local_ticket {
    struct local_out *out; /* NULL: no ticket */
    uint32_t pipe;
    uint8_t trail[4 * LOCAL_HOPS_MAX];
    uint32_t trail_bytes;
    size_t sent; /* of the reply, by local_send */
} local_ticket;

/* local_ticket_take: none if the context is not local or its peer is gone. Loop thread. */
void local_ticket_take(local_ticket *out, const transport_context *context);
/* local_ticket_give ends a ticket; accepts zeroed. Any thread. */
void local_ticket_give(local_ticket *ticket);
/* local_send writes the reply up to its first `bytes` from where the last call came to, without waiting: the
 * rest of the message may still be in the making (its length must stand). Less if the socket is full; nothing
 * if others write to the peer or it is gone. Returns how many bytes went in all, of those that the reply has
 * with what stands in front of it; the message stays the caller's. Once a byte went, others wait until
 * local_replied. One thread at a time, any. */
size_t local_send(local_ticket *ticket, nng_msg *message, size_t bytes);
/* local_ticket_is_of: is it this context's? Loop thread. */
bool local_ticket_is_of(const local_ticket *ticket, const transport_context *context);
/* local_replied takes the message, of which local_send wrote `sent` > 0 bytes, writes the rest if there is
 * one, and frees the context then. NULL: there was no memory for it; the peer is hung up on if it lacks some.
 * `total`: what is all. Loop thread. */
void local_replied(transport_context *context, nng_msg *message, size_t sent, size_t total);
/* local_reply_bytes: what local_send returns when all went. */
size_t local_reply_bytes(const local_ticket *ticket, const nng_msg *message);

/* local_listen binds `path` (local_bind.h) and listens. */
ckks_status local_listen(transport *t, transport_kind kind, const char *path, uint32_t mode, ckks_error *err);

/* local_reply takes the message; the context is free again once it has left. */
void local_reply(transport_context *context, nng_msg *message);
/* local_release: the context is free again; a peer that waits for one gets it. */
void local_release(transport_context *context);

/* local_hang_up ends a peer; contexts that handle a request of its learn of it. An unknown id is ignored. */
void local_hang_up(transport *t, uint32_t pipe);
bool local_is_ours(uint32_t pipe);
/* local_trust: the context's peer showed a good token: it may be lent memory. Ignored if not local. */
void local_trust(const transport_context *context);
/* local_user: the peer's user number. */
bool local_user(const transport_context *context, uint64_t *uid);
/* local_sweep accepts a peer for which there was no memory before, and ends those that take no reply. */
void local_sweep(transport *t);
/* local_stop closes listeners and peers; what is left of them goes with the loop. */
void local_stop(transport *t);

#endif
