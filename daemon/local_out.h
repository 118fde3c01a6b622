/*
 * A local peer's way out (local.h): its socket, and memory that it was lent for replies
 * (proto/local_memory.h). The loop writes to it, and so does any thread that has a ticket for the reply to
 * one request.
 *
 * A reply that goes through memory is made in the daemon's own, which is kept for retries, and copied into
 * the peer's as it is made; nothing is ever read from there. The way out, and with it the mapping, outlives
 * its peer for as long as a ticket is held.
 */
#ifndef CKKSD_LOCAL_OUT_H
#define CKKSD_LOCAL_OUT_H

#include "daemon/local_memory.h"

#include <nng/nng.h>
#include <pthread.h>

#define LOCAL_HOPS_MAX     8u /* request ids in front of a message: its own and those of devices on the way */
#define LOCAL_PREFIX_BYTES 9u /* type, length */
#define LOCAL_TYPE_MESSAGE 1u
#define LOCAL_HEAD_MAX     (LOCAL_PREFIX_BYTES + 4u * LOCAL_HOPS_MAX)

typedef enum local_area {
    LOCAL_AREA_FREE,    /* the peer said so */
    LOCAL_AREA_WRITING, /* a thread is at it */
    LOCAL_AREA_WRITTEN, /* a reply lies there */
} local_area;

typedef struct local_out {
    pthread_mutex_t lock;
    uint32_t users;
    int fd; /* not ours: good while is_open */
    bool is_open;
    bool has_rest;        /* a thread wrote a part of a reply, and the loop was not told */
    uint32_t loop_writes; /* that the loop has not finished */
    local_memory replies; /* set once */
    local_area area;
} local_out;

/*
 * A ticket lets another thread write the reply to one request, whatever becomes of its context and peer
 * meanwhile. The loop takes it while the context is HANDLING and is told with local_replied what was written.
 */
typedef struct local_ticket {
    local_out *out; /* NULL: no ticket */
    uint32_t pipe;
    uint8_t trail[4 * LOCAL_HOPS_MAX];
    uint32_t trail_bytes;
    bool may_use_memory; /* the request said so */
    bool is_in_memory;   /* the reply: then the socket has what stands in front of it, and the bell */
    size_t copied;       /* of it, into memory */
    size_t sent;         /* to the socket, by local_send */
} local_ticket;

/* local_out_create: NULL without memory. `fd` stays the caller's. */
local_out *local_out_create(int fd);
void local_out_join(local_out *out);  /* one user more */
void local_out_leave(local_out *out); /* one less; the last frees it. Accepts NULL. Any thread. */
/* local_out_close: nobody writes to its descriptor any more. */
void local_out_close(local_out *out);
/* local_out_begin: may the loop write now? Then it counts as writing, until local_out_end; else a rest of
 * another thread's comes first. */
bool local_out_begin(local_out *out);
void local_out_end(local_out *out);
/* local_out_take_rest: the loop writes it; counts as local_out_begin. */
void local_out_take_rest(local_out *out);
/* local_out_lend: *m is for replies from now on; taken. */
void local_out_lend(local_out *out, local_memory *m);
/* local_out_free_area: the peer says that it read what lies in its memory. */
void local_out_free_area(local_out *out);

/* local_head writes what stands in front of a reply of `bytes`: type, length, trail. Returns its size. */
size_t local_head(uint8_t head[LOCAL_HEAD_MAX], uint8_t type, const uint8_t *trail, uint32_t trail_bytes,
                  size_t bytes);

/* local_ticket_give ends a ticket; accepts zeroed. Any thread. */
void local_ticket_give(local_ticket *ticket);
/* local_send writes the reply up to its first `bytes` from where the last call came to, without waiting: the
 * rest of the message may still be in the making (its length must stand). Less if the socket is full; nothing
 * if others write to the peer or it is gone.
 * Returns how many bytes the socket took in all: of those that the reply has with what stands in front of it,
 * or, where it goes through memory, of those that announce it. The message stays the caller's. Once a byte
 * went, others wait until local_replied, and the last call must be one with the whole reply. One thread at a
 * time, any. */
size_t local_send(local_ticket *ticket, nng_msg *message, size_t bytes);
/* local_reply_bytes: what local_send returns when all went. `bytes`: of the reply. */
size_t local_reply_bytes(const local_ticket *ticket, size_t bytes);
/* local_ticket_rest: of a reply in memory, what the socket did not take of what announces it, at most
 * LOCAL_HEAD_MAX + 1 bytes. Returns how many. `bytes`: of the reply. */
size_t local_ticket_rest(uint8_t *to, const local_ticket *ticket, size_t bytes);

#endif
