/* Memory that the server of a local address lends (proto/local_memory.h). One thread at a time. */
#ifndef CKKS_CLIENT_RPC_MEMORY_H
#define CKKS_CLIENT_RPC_MEMORY_H

#include "proto/local_memory.h"

#include <stdbool.h>
#include <sys/uio.h>

/* Zero: none. */
typedef struct rpc_memory {
    local_memory_head *head;
    uint8_t *area;
    size_t bytes; /* of the area */
} rpc_memory;

/* rpc_memory_receive reads the server's answer, which is there to be read on `fd`, to a question of `type`
 * (LOCAL_MEMORY_TYPE_LEND, or LOCAL_MEMORY_TYPE_LEND_REPLIES: then it is mapped to be read only). 0: *out is
 * what was lent, or zero if nothing was, or nothing of use. EAGAIN: not all of it is there (nothing was
 * read); EPROTO; ECONNRESET; else errno. Does not block. */
int rpc_memory_receive(rpc_memory *out, int fd, uint8_t type);
/* rpc_memory_put copies count parts, which fit, into the area, and says how far it is as it goes. */
void rpc_memory_put(rpc_memory *m, const struct iovec *parts, size_t count);
void rpc_memory_end(rpc_memory *m); /* accepts zeroed */

#endif
