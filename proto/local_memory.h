/*
 * Memory that a server lends to a client on the same machine, so that large requests and replies need not go
 * through the socket: it costs the kernel's pages and two copies more than half a mebibyte takes otherwise.
 *
 * On a local socket, beside the messages of the scalability protocols (type 1), a client that knows the
 * server to be of this kind may send, each with the usual prefix of a type byte and a length of 8 bytes,
 * big-endian, for its requests ("local_memory" among the server's extensions):
 *
 * - type 2, length 0: asks for memory, when no request of its is on the way. The answer is type 2 with the
 *   length of the message area and its descriptor beside it; length 0: there is none.
 * - type 3: a message of that length (request ids first, as ever) is being put into the area. `have` says how
 *   much of it is there; a byte BELL on the socket, that all of it is.
 *
 * and for the replies ("local_memory_replies"):
 *
 * - type 4, length 0: asks for memory as type 2 does, and is answered as type 4. It is another area, which
 * the client can but read.
 * - FREE added to type 1 or 3 of a request: the client has read what lay in that area, and the reply to this
 *   request may go through it. Who has requests on the way that it said this with has not read their replies.
 * - Such a reply is type 5, with the length of the whole and then the request ids, as in type 1; what follows
 *   in type 1 is being put into the area, `have` says how much of that, and a byte BELL on the socket ends
 * it. The server may send any reply as type 1 all the same.
 *
 * The server makes the memory and seals its size: it can be trusted by whoever made it, and after a look at
 * the seals by the other. What is in it may change at any time: a reader copies once, and looks at the copy
 * alone. A server reads nothing from an area for replies: what it sends again comes from elsewhere.
 */
#ifndef CKKS_PROTO_LOCAL_MEMORY_H
#define CKKS_PROTO_LOCAL_MEMORY_H

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LOCAL_MEMORY_EXTENSION         "local_memory"
#define LOCAL_MEMORY_REPLIES_EXTENSION "local_memory_replies"
#define LOCAL_MEMORY_TYPE_LEND         2u
#define LOCAL_MEMORY_TYPE              3u
#define LOCAL_MEMORY_TYPE_LEND_REPLIES 4u
#define LOCAL_MEMORY_TYPE_REPLY        5u
#define LOCAL_MEMORY_FREE              0x40u
#define LOCAL_MEMORY_BELL              0xb3u
#define LOCAL_MEMORY_BYTES             (1u << 20)  /* of each area that the daemon lends */
#define LOCAL_MEMORY_BYTES_MAX         (1u << 28)  /* that a client takes */
#define LOCAL_MEMORY_MESSAGE_MIN       (64u << 10) /* smaller requests go through the socket as fast */
#define LOCAL_MEMORY_REPLY_MIN         (32u << 10) /* likewise replies, without their ids */
#define LOCAL_MEMORY_PART              (32u << 10) /* the reader is told of so much at a time */

/* In front of the area. */
typedef struct local_memory_head {
    _Atomic uint64_t
        have; /* of the message, so far; a hint: whoever reads does not believe more than its length */
    uint8_t reserved[4088];
} local_memory_head;
static_assert(sizeof(local_memory_head) == 4096, "the area begins on a page");
static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "of use between processes");

/* local_memory_take copies what there is of a message of `bytes`, which the area behind `head` has room for,
 * of which the first *have were copied before, to to[*have...]; is_all: everything is there. What the other
 * side says or does there meanwhile changes nothing of what was copied, and no byte beyond `bytes` is looked
 * at. */
void local_memory_take(const local_memory_head *head, uint8_t *to, size_t *have, size_t bytes, bool is_all);

#endif
