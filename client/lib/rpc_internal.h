/* Shared by rpc_*.c alone. */
#ifndef CKKS_CLIENT_RPC_INTERNAL_H
#define CKKS_CLIENT_RPC_INTERNAL_H

#include "client/lib/rpc.h"
#include "proto/frame.h"

#include <pthread.h>
#include <time.h>

typedef struct rpc_socket {
    nng_socket socket;
    bool is_open;
    uint64_t receive_max;
    char address[RPC_ADDRESS_MAX];
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
ckks_status rpc_socket_open(rpc_socket *out, const rpc_connection *c, const char *address,
                            uint64_t receive_max, ckks_error *err);
ckks_status rpc_socket_for(rpc_socket **out, rpc_connection *c, bool is_bulk, ckks_error *err);

#endif
