/* Memory lent to local peers (proto/local_memory.h): made, sealed and given away here. Loop thread
 * only, but for local_memory_end, _clear and _put. */
#ifndef CKKSD_LOCAL_MEMORY_H
#define CKKSD_LOCAL_MEMORY_H

#include "kernels/base/status.h"
#include "proto/local_memory.h"

#include <stdbool.h>

/* Zero: none. */
typedef struct local_memory {
    local_memory_head *head;
    uint8_t *area; /* of LOCAL_MEMORY_BYTES */
    bool is_for_replies;
} local_memory;

/* local_memory_lend makes memory for requests or for replies (which the peer cannot write to, where the
 * system knows how) and sends it as the answer to a peer that asked on `fd`, a socket with nothing else on
 * its way; never blocks. CKKS_RESOURCE_EXHAUSTED: there is none; the peer was told so. CKKS_IO: the peer does
 * not read.
 */
ckks_status local_memory_lend(local_memory *out, int fd, bool is_for_replies);
/* local_memory_refuse: the answer that there is none. CKKS_IO likewise. */
ckks_status local_memory_refuse(int fd, bool is_for_replies);
/* local_memory_end: the peer keeps what it has of it. Accepts zeroed. */
void local_memory_end(local_memory *m);
/* local_memory_clear: nothing of the next reply is there. */
void local_memory_clear(const local_memory *m);
/* local_memory_put copies the first `bytes` <= LOCAL_MEMORY_BYTES of a reply, of which *have were put before,
 * and says how far it is. */
void local_memory_put(const local_memory *m, size_t *have, const uint8_t *from, size_t bytes);

#endif
