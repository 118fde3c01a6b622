/* Shared by rpc_*.c alone. */
#ifndef CKKS_CLIENT_RPC_INTERNAL_H
#define CKKS_CLIENT_RPC_INTERNAL_H

#include "client/lib/rpc.h"
#include "proto/frame.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

typedef struct rpc_socket {
    nng_socket socket;
    atomic_bool is_open;
    uint64_t receive_max;
    char address[RPC_ADDRESS_MAX];
    atomic_uint pipe_id;     /* nng's, of the connection that stands; 0 = none yet */
    atomic_uint in_flight;   /* calls that wait for an answer */
    atomic_bool is_draining; /* the server said so: hang up when no call is in flight */
} rpc_socket;

struct rpc_connection {
    rpc_socket control;
    rpc_socket bulk; /* opened when first needed, under `lock` */
    char bulk_address[RPC_ADDRESS_MAX];
    char *token, *ca_file; /* owned; never NULL */
    uint32_t connect_ms, timeout_ms, attempt_ms;
    uint64_t reply_bytes_max;
    Ckksd__V1__ServerMetadataReply *server; /* owned */
    pthread_mutex_t lock;
};

uint64_t rpc_now_ns(void);
/* *out must stay where it is while it is open. */
ckks_status rpc_socket_open(rpc_socket *out, const rpc_connection *c, const char *address,
                            uint64_t receive_max, ckks_error *err);
/* rpc_socket_leave: one call less in flight. A server that drains ends when its clients have hung up, so the
 * last call does that; the dialer then waits for the next server. */
void rpc_socket_leave(rpc_connection *c, rpc_socket *s, bool is_draining);
ckks_status rpc_socket_for(rpc_socket **out, rpc_connection *c, bool is_bulk, ckks_error *err);

#endif
