/* Shared by rpc_*.c alone. */
#ifndef CKKS_CLIENT_RPC_INTERNAL_H
#define CKKS_CLIENT_RPC_INTERNAL_H

#include "client/lib/rpc.h"
#include "proto/frame.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/uio.h>
#include <time.h>

typedef struct rpc_pipe rpc_pipe; /* a connection to a local address */

typedef struct rpc_socket {
    nng_socket socket; /* not used by a local one */
    atomic_bool is_open;
    bool is_local;
    bool lends, lends_for_replies; /* a local one, of a server that lends memory */
    uint64_t receive_max;
    char address[RPC_ADDRESS_MAX];
    atomic_uint pipe_id;       /* nng's, of the connection that stands; 0 = none yet */
    uint64_t spin_ns;          /* of a local one */
    pthread_mutex_t idle_lock; /* of a local one: guards the next two */
    rpc_pipe *idle;
    uint32_t idle_count;
    atomic_uint in_flight;   /* calls that wait for an answer */
    atomic_bool is_draining; /* the server said so: hang up when no call is in flight */
} rpc_socket;

struct rpc_connection {
    rpc_socket control;
    rpc_socket bulk; /* opened when first needed, under `lock` */
    char bulk_address[RPC_ADDRESS_MAX];
    char *token, *ca_file; /* owned; never NULL */
    uint32_t connect_ms, timeout_ms, attempt_ms, spin_us;
    uint64_t reply_bytes_max;
    Ckksd__V1__ServerMetadataReply *server; /* owned */
    pthread_mutex_t lock;
};

uint64_t rpc_now_ns(void);
void rpc_socket_close(rpc_socket *s); /* accepts one that is not open */
/* *out must stay where it is while it is open. */
bool rpc_local_is(const char *address);
/* Pipes of local sockets; these return nng's error numbers. rpc_pipe_take: an idle one, or a new one. Blocks
 * up to wait_ms. */
int rpc_pipe_dial(rpc_pipe **out, const char *address, uint32_t wait_ms);
int rpc_pipe_take(rpc_pipe **out, rpc_socket *s, uint32_t wait_ms);
void rpc_pipe_give(rpc_socket *s, rpc_pipe *p); /* accepts NULL */
void rpc_pipe_close(rpc_pipe *p);               /* accepts NULL */
void rpc_pipe_close_idle(rpc_socket *s);
/* rpc_pipe_may_borrow: the server lends memory, for which a seasoned pipe asks with its first large request;
 * and, for replies, with the first request behind a large reply. */
void rpc_pipe_may_borrow(rpc_pipe *p, bool for_requests, bool for_replies);
bool rpc_pipe_is_seasoned(const rpc_pipe *p);
/* rpc_pipe_exchange sends parts[1..count) (parts[0] is for the pipe's own use; all are consumed) and waits
 * for the reply, which the caller owns: `spin_ns` of it awake. NNG_ETIMEDOUT: silence, the pipe may be used
 * again; NNG_EMSGSIZE: a reply over bytes_max. */
int rpc_pipe_exchange(nng_msg **reply, rpc_trip *trip, rpc_pipe *p, struct iovec *parts, size_t count,
                      uint64_t bytes_max, uint64_t spin_ns, uint32_t wait_ms);
ckks_status rpc_socket_open(rpc_socket *out, const rpc_connection *c, const char *address,
                            uint64_t receive_max, ckks_error *err);
/* rpc_socket_leave: one call less in flight. A server that drains ends when its clients have hung up, so the
 * last call does that; the dialer then waits for the next server. */
void rpc_socket_leave(rpc_connection *c, rpc_socket *s, bool is_draining);
ckks_status rpc_socket_for(rpc_socket **out, rpc_connection *c, bool is_bulk, ckks_error *err);

#endif
