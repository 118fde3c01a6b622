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
 * is copied out once, to where a message from the socket would be, and is like any other from then on. A
 * large reply may go through another.
 *
 * A reply goes to the socket from the loop, or, if a ticket was taken, from the thread that made it
 * (local_out.h): that spares waking the loop first. Who writes holds the peer's lock, never waits, and leaves
 * the rest of what the socket does not take to the loop. All else is loop thread only.
 */
#ifndef CKKSD_LOCAL_H
#define CKKSD_LOCAL_H

#include "daemon/local_out.h"
#include "daemon/transport.h"

/* local_ticket_take: none if the context is not local or its peer is gone. Loop thread. */
void local_ticket_take(local_ticket *out, const transport_context *context);
/* local_ticket_is_of: is it this context's? Loop thread. */
bool local_ticket_is_of(const local_ticket *ticket, const transport_context *context);
/* local_replied takes the message, of which local_send wrote ticket->sent > 0 bytes, writes the rest if there
 * is one, and frees the context then. NULL: there was no memory for it; the peer is hung up on if it lacks
 * some. `bytes`: of the message. Loop thread. */
void local_replied(transport_context *context, nng_msg *message, const local_ticket *ticket, size_t bytes);

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
