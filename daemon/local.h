/*
 * Local sockets (ipc://), served by the loop itself.
 *
 * nng takes a request from a local socket through four of its threads and a reply through as many again; each
 * change of threads costs 10 to 25 us, more than everything else that the daemon does beside evaluating. Here
 * the loop thread reads and writes: what travels is the same (the scalability protocols' mapping on IPC: an
 * exchange of 8 bytes, then messages with a type byte, a length and a trail of request ids), so that nng's
 * and anybody's REQ sockets talk to it as before. All other addresses are nng's.
 *
 * A peer's message is read straight into its nng_msg, one at a time: a complete one waits for a free context
 * and nothing more is read from that peer meanwhile, so that memory stays within pipes + contexts. Loop
 * thread only.
 */
#ifndef CKKSD_LOCAL_H
#define CKKSD_LOCAL_H

#include "daemon/transport.h"

#define LOCAL_HOPS_MAX 8u /* request ids in front of a message: its own and those of devices on the way */

/* local_listen binds `path` (a dead socket there is replaced, nothing else is), gives it `mode` and listens.
 * CKKS_IO naming the path. */
ckks_status local_listen(transport *t, transport_kind kind, const char *path, uint32_t mode, ckks_error *err);

/* local_reply takes the message; the context is free again once it has left. */
void local_reply(transport_context *context, nng_msg *message);
/* local_release: the context is free again; a peer that waits for one gets it. */
void local_release(transport_context *context);

/* local_hang_up ends a peer; contexts that handle a request of its learn of it. An unknown id is ignored. */
void local_hang_up(transport *t, uint32_t pipe);
bool local_is_ours(uint32_t pipe);
/* local_user: the peer's user number. */
bool local_user(const transport_context *context, uint64_t *uid);
/* local_sweep accepts a peer for which there was no memory before. */
void local_sweep(transport *t);
/* local_stop closes listeners and peers; what is left of them goes with the loop. */
void local_stop(transport *t);

#endif
