/*
 * Local addresses (ipc://) without nng's threads: the calling thread writes the request and reads the reply
 * itself, where nng would change threads nine times. The bytes are the same (SP over IPC, REQ), so any REP
 * socket answers. A pipe carries one call at a time; idle ones are kept for the next.
 *
 * A request that heard nothing is sent again on the same pipe under a new id of the pipe's own; replies to
 * older ids are read and dropped. A pipe that was left in the middle of a message is closed.
 *
 * Large requests go through memory that the server lends, where it does. A pipe whose request lies there and
 * heard nothing is closed too: the server may not have read it yet, and the next would be put in its place.
 * So is one whose reply may come through memory: it may come yet, and the next would be put in its place.
 */
#include "client/lib/rpc_internal.h"
#include "client/lib/rpc_memory.h"
#include "kernels/base/relax.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define GREETING_BYTES       8u
#define MESSAGE_PREFIX_BYTES 9u  /* type, length */
#define PREFIX_BYTES         13u /* type, length, request id */
#define TYPE_MESSAGE         1u
#define ID_BIT               0x80000000u /* of the last (here: the only) id in front of a message */
#define PARTS_AT_ONCE        64u
#define IDLE_MAX             64u
#define SEND_BYTES           (4 << 20) /* in the kernel on their way, if the system allows it: fewer wake-ups */
#define BUSY_MS              10        /* between tries when the server's backlog is full */
#define PAUSE_NS             50000u /* in the middle of a message the other side is at it: waited for awake */
#define CORES_MIN            4      /* on fewer it may want ours for that */

static const uint8_t greeting[GREETING_BYTES] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
static const uint8_t greeting_of_rep[GREETING_BYTES] = {0, 'S', 'P', 0, 0, 0x31, 0, 0};

struct rpc_pipe {
    rpc_pipe *next;
    int fd;
    uint32_t id;                                    /* of the last request */
    uint32_t owed;                                  /* replies, to requests that were given up among them */
    bool is_broken;                                 /* in the middle of a message: of no more use */
    bool is_seasoned;                               /* had an answer before: the server may have gone since */
    bool may_borrow;                                /* the server lends memory, and was not asked yet */
    bool may_borrow_for_replies, wants_for_replies; /* likewise; a reply was large */
    rpc_memory memory, replies;
};

void rpc_pipe_close(rpc_pipe *p) {
    if (!p) return;
    rpc_memory_end(&p->memory);
    rpc_memory_end(&p->replies);
    close(p->fd);
    free(p);
}

/* nng's number for what the system said */
static int fault_of(int number) {
    switch (number) {
    case ENOENT:
    case ECONNREFUSED:
        return NNG_ECONNREFUSED;
    case EACCES:
    case EPERM:
        return NNG_EPERM;
    case ENOMEM:
    case ENOBUFS:
    case EMFILE:
    case ENFILE:
        return NNG_ENOMEM;
    default:
        return NNG_ECONNRESET;
    }
}

/* Waits for the pipe to be ready. 0, NNG_ETIMEDOUT, or another fault. */
static int wait_for(const rpc_pipe *p, short events, uint64_t until_ns) {
    for (;;) {
        struct pollfd one = {.fd = p->fd, .events = events};
        const uint64_t now = rpc_now_ns();
        const uint64_t left_ms = now >= until_ns ? 0 : (until_ns - now + 999999u) / 1000000u;
        const int n = poll(&one, 1, left_ms > INT32_MAX ? INT32_MAX : (int)left_ms);
        if (n > 0) return 0;
        if (n == 0) return NNG_ETIMEDOUT;
        if (errno != EINTR) return fault_of(errno);
    }
}

/* How long a pause in a message is waited for awake. */
static uint64_t pause_ns(void) {
    static atomic_int cores;
    int n = atomic_load_explicit(&cores, memory_order_relaxed);
    if (!n) {
        n = (int)sysconf(_SC_NPROCESSORS_ONLN);
        atomic_store_explicit(&cores, n, memory_order_relaxed);
    }
    return n >= CORES_MIN ? PAUSE_NS : 0;
}

/* In the middle of a message: true to try again at once. *since_ns: 0 at first and after each success. */
static bool stay_awake(uint64_t *since_ns) {
    const uint64_t limit_ns = pause_ns();
    if (!limit_ns) return false;
    const uint64_t now = rpc_now_ns();
    if (!*since_ns) *since_ns = now;
    cpu_relax();
    return now - *since_ns < limit_ns;
}

static int read_all(rpc_pipe *p, void *to, size_t bytes, uint64_t until_ns) {
    uint8_t *at = to;
    uint64_t since_ns = 0;
    while (bytes) {
        const ssize_t n = recv(p->fd, at, bytes, MSG_DONTWAIT);
        if (n == 0) return NNG_ECONNRESET;
        if (n > 0) {
            at += n, bytes -= (size_t)n;
            since_ns = 0;
            continue;
        }
        if (errno == EINTR) continue;
        if (errno != EAGAIN) return fault_of(errno);
        if (stay_awake(&since_ns)) continue;
        const int rc = wait_for(p, POLLIN, until_ns);
        if (rc != 0) return rc;
    }
    return 0;
}

/* Consumes `parts`. */
static int write_all(rpc_pipe *p, struct iovec *parts, size_t count, uint64_t until_ns) {
    uint64_t since_ns = 0;
    while (count) {
        const struct msghdr message = {.msg_iov = parts,
                                       .msg_iovlen = count < PARTS_AT_ONCE ? count : PARTS_AT_ONCE};
        const ssize_t n = sendmsg(p->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno != EAGAIN) return fault_of(errno);
        if (n < 0 && stay_awake(&since_ns)) continue;
        if (n < 0) {
            const int rc = wait_for(p, POLLOUT, until_ns);
            if (rc != 0) return rc;
            continue;
        }
        since_ns = 0;
        size_t done = (size_t)n;
        while (count && done >= parts->iov_len) done -= parts->iov_len, parts++, count--;
        if (count) parts->iov_base = (uint8_t *)parts->iov_base + done, parts->iov_len -= done;
    }
    return 0;
}

/* ---- dial ---- */

bool rpc_local_is(const char *address) {
    return !strncmp(address, "ipc://", 6);
}

static int connect_to(rpc_pipe *p, const char *path, uint64_t until_ns) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const size_t length = strlen(path);
    if (!length || length >= sizeof address.sun_path) return NNG_EADDRINVAL;
    memcpy(address.sun_path, path, length + 1);
    while (connect(p->fd, (const struct sockaddr *)&address, sizeof address) != 0) {
        if (errno == EINTR) continue;
        if (errno != EAGAIN) return fault_of(errno);
        if (rpc_now_ns() >= until_ns) return NNG_ETIMEDOUT;
        (void)poll(NULL, 0, BUSY_MS);
    }
    return 0;
}

int rpc_pipe_dial(rpc_pipe **out, const char *address, uint32_t wait_ms) {
    const uint64_t until_ns = rpc_now_ns() + (uint64_t)wait_ms * 1000000u;
    uint8_t theirs[GREETING_BYTES];
    uint8_t ours[GREETING_BYTES];
    int rc = 0;
    *out = NULL;
    rpc_pipe *p = calloc(1, sizeof *p);
    if (!p) return NNG_ENOMEM;
    memcpy(ours, greeting, sizeof ours);
    struct iovec hello = {ours, sizeof ours};
    p->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (p->fd < 0) {
        rc = fault_of(errno);
        free(p);
        return rc;
    }
    const int send_bytes = SEND_BYTES;
    (void)setsockopt(p->fd, SOL_SOCKET, SO_SNDBUF, &send_bytes, sizeof send_bytes);
    if ((rc = connect_to(p, address + strlen("ipc://"), until_ns)) == 0 &&
        (rc = write_all(p, &hello, 1, until_ns)) == 0 &&
        (rc = read_all(p, theirs, sizeof theirs, until_ns)) == 0 &&
        memcmp(theirs, greeting_of_rep, sizeof theirs) != 0)
        rc = NNG_EPROTO;
    if (rc == 0)
        *out = p;
    else
        rpc_pipe_close(p);
    return rc;
}

/* ---- idle pipes ---- */

int rpc_pipe_take(rpc_pipe **out, rpc_socket *s, uint32_t wait_ms) {
    pthread_mutex_lock(&s->idle_lock);
    *out = s->idle;
    if (*out) s->idle = (*out)->next, s->idle_count--;
    pthread_mutex_unlock(&s->idle_lock);
    if (*out) return 0;
    const int rc = rpc_pipe_dial(out, s->address, wait_ms);
    if (rc == 0) rpc_pipe_may_borrow(*out, s->lends, s->lends_for_replies);
    return rc;
}

void rpc_pipe_may_borrow(rpc_pipe *p, bool for_requests, bool for_replies) {
    p->may_borrow = for_requests, p->may_borrow_for_replies = for_replies;
}

void rpc_pipe_give(rpc_socket *s, rpc_pipe *p) {
    if (!p) return;
    pthread_mutex_lock(&s->idle_lock);
    const bool is_kept = !p->is_broken && s->idle_count < IDLE_MAX;
    if (is_kept) p->next = s->idle, s->idle = p, s->idle_count++;
    pthread_mutex_unlock(&s->idle_lock);
    if (!is_kept) rpc_pipe_close(p);
}

void rpc_pipe_close_idle(rpc_socket *s) {
    pthread_mutex_lock(&s->idle_lock);
    rpc_pipe *p = s->idle;
    s->idle = NULL, s->idle_count = 0;
    pthread_mutex_unlock(&s->idle_lock);
    while (p) {
        rpc_pipe *next = p->next;
        rpc_pipe_close(p);
        p = next;
    }
}

bool rpc_pipe_is_seasoned(const rpc_pipe *p) {
    return p->is_seasoned;
}

/* ---- a call ---- */

static void put_u64(uint8_t *to, uint64_t v) {
    for (int i = 0; i < 8; i++) to[i] = (uint8_t)(v >> (56 - 8 * i));
}
static uint64_t get_u64(const uint8_t *from) {
    uint64_t v = 0;
    for (int i = 0; i < 8; i++) v = v << 8 | from[i];
    return v;
}
static void put_u32(uint8_t *to, uint32_t v) {
    for (int i = 0; i < 4; i++) to[i] = (uint8_t)(v >> (24 - 8 * i));
}

/* Awake for a time, if there is one. */
static int wait_for_reply(const rpc_pipe *p, uint64_t spin_ns, uint64_t until_ns) {
    const uint64_t begin_ns = spin_ns ? rpc_now_ns() : 0;
    uint8_t first;
    while (spin_ns && rpc_now_ns() - begin_ns < spin_ns) {
        if (recv(p->fd, &first, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 || errno != EAGAIN) return 0;
        cpu_relax();
    }
    return wait_for(p, POLLIN, until_ns);
}

/* A reply in memory: copied once, as it comes. `to` has room for `bytes`, and so has the area. */
static int take_all(rpc_pipe *p, uint8_t *to, size_t bytes, uint64_t until_ns) {
    uint8_t bell = 0;
    uint64_t since_ns = 0;
    size_t have = 0;
    do {
        const size_t before = have;
        local_memory_take(p->replies.head, to, &have, bytes, false);
        if (have > before) since_ns = 0;
    } while (have < bytes && stay_awake(&since_ns));
    const int rc = read_all(p, &bell, 1, until_ns);
    if (rc != 0) return rc;
    if (bell != LOCAL_MEMORY_BELL) return NNG_EPROTO;
    local_memory_take(p->replies.head, to, &have, bytes, true);
    return 0;
}

/* One message, whatever it answers. NNG_ETIMEDOUT before its first byte leaves the pipe as it was. */
static int read_message(nng_msg **out, rpc_trip *trip, uint32_t *id, rpc_pipe *p, uint64_t bytes_max,
                        uint64_t spin_ns, uint64_t until_ns) {
    uint8_t prefix[PREFIX_BYTES];
    int rc = wait_for_reply(p, spin_ns, until_ns);
    *out = NULL;
    if (rc != 0) return rc;
    trip->came_ns = rpc_now_ns();
    p->is_broken = true;
    if ((rc = read_all(p, prefix, sizeof prefix, until_ns)) != 0) return rc;
    const uint64_t bytes = get_u64(prefix + 1);
    const bool lies_in_memory = prefix[0] == LOCAL_MEMORY_TYPE_REPLY;
    if ((prefix[0] != TYPE_MESSAGE && !lies_in_memory) || bytes < 4) return NNG_EPROTO;
    if (bytes - 4 > bytes_max) return NNG_EMSGSIZE;
    *id = (uint32_t)prefix[9] << 24 | (uint32_t)prefix[10] << 16 | (uint32_t)prefix[11] << 8 | prefix[12];
    /* only the last request's may be there: none other waits for one */
    if (lies_in_memory && (!p->replies.head || bytes - 4 > p->replies.bytes || *id != p->id))
        return NNG_EPROTO;
    /* the body begins 4 bytes behind a 16-byte boundary, as everywhere */
    if (nng_msg_alloc(out, (size_t)bytes) != 0) return NNG_ENOMEM;
    nng_msg_trim(*out, 4);
    uint8_t *body = nng_msg_body(*out);
    rc = lies_in_memory ? take_all(p, body, (size_t)bytes - 4, until_ns)
                        : read_all(p, body, (size_t)bytes - 4, until_ns);
    if (rc != 0) {
        nng_msg_free(*out);
        *out = NULL;
        return rc;
    }
    if (p->owed) p->owed--;
    p->wants_for_replies = bytes - 4 >= LOCAL_MEMORY_REPLY_MIN;
    p->is_broken = false;
    trip->done_ns = rpc_now_ns();
    return 0;
}

/* Asks for memory, once: the server lends it to those it has answered well. */
static int borrow(rpc_memory *out, bool *may_borrow, rpc_pipe *p, uint8_t type, uint64_t until_ns) {
    uint8_t question[MESSAGE_PREFIX_BYTES] = {type};
    struct iovec part = {question, sizeof question};
    int rc;
    *may_borrow = false;
    p->is_broken = true; /* until the answer is there */
    if ((rc = write_all(p, &part, 1, until_ns)) != 0) return rc;
    do {
        if ((rc = wait_for(p, POLLIN, until_ns)) != 0) return rc;
        rc = rpc_memory_receive(out, p->fd, type);
    } while (rc == EAGAIN);
    if (rc != 0) return rc == EPROTO ? NNG_EPROTO : fault_of(rc);
    p->is_broken = false;
    return 0;
}

/* What there may be for a request of `bytes` and its reply. */
static int borrow_some(rpc_pipe *p, uint64_t bytes, uint64_t until_ns) {
    int rc = 0;
    if (!p->is_seasoned || p->owed) return 0; /* the answer would be one of those */
    if (p->may_borrow && bytes >= LOCAL_MEMORY_MESSAGE_MIN)
        rc = borrow(&p->memory, &p->may_borrow, p, LOCAL_MEMORY_TYPE_LEND, until_ns);
    if (rc == 0 && p->may_borrow_for_replies && p->wants_for_replies)
        rc = borrow(&p->replies, &p->may_borrow_for_replies, p, LOCAL_MEMORY_TYPE_LEND_REPLIES, until_ns);
    return rc;
}

/* A message of `bytes`: parts[0] is what stands in front of it, of which the request id belongs to it. */
static int send_request(bool *lies_in_memory, rpc_pipe *p, struct iovec *parts, size_t count, uint64_t bytes,
                        uint64_t until_ns) {
    uint8_t *const front = parts[0].iov_base;
    uint8_t bell = LOCAL_MEMORY_BELL;
    struct iovec ends[2] = {{front, MESSAGE_PREFIX_BYTES}, {&bell, 1}};
    int rc;
    *lies_in_memory = p->memory.head && bytes >= LOCAL_MEMORY_MESSAGE_MIN && bytes <= p->memory.bytes;
    front[0] = *lies_in_memory ? LOCAL_MEMORY_TYPE : TYPE_MESSAGE;
    if (p->replies.head) front[0] |= LOCAL_MEMORY_FREE;
    if (!*lies_in_memory) return write_all(p, parts, count, until_ns);
    parts[0] = (struct iovec){front + MESSAGE_PREFIX_BYTES, PREFIX_BYTES - MESSAGE_PREFIX_BYTES};
    atomic_store_explicit(&p->memory.head->have, 0, memory_order_relaxed);
    /* where the server has a core of its own, it copies beside us; else it would only take ours */
    const bool copies_beside = pause_ns() != 0;
    if (copies_beside && (rc = write_all(p, &ends[0], 1, until_ns)) != 0) return rc;
    rpc_memory_put(&p->memory, parts, count);
    return copies_beside ? write_all(p, &ends[1], 1, until_ns) : write_all(p, ends, 2, until_ns);
}

int rpc_pipe_exchange(nng_msg **reply, rpc_trip *trip, rpc_pipe *p, struct iovec *parts, size_t count,
                      uint64_t bytes_max, uint64_t spin_ns, uint32_t wait_ms) {
    *trip = (rpc_trip){.begin_ns = rpc_now_ns()};
    const uint64_t until_ns = trip->begin_ns + (uint64_t)wait_ms * 1000000u;
    uint8_t prefix[PREFIX_BYTES];
    bool lies_in_memory;
    uint64_t bytes = 4;
    uint32_t id = 0;
    int rc;
    for (size_t i = 1; i < count; i++) bytes += parts[i].iov_len;
    p->id = (p->id + 1) | ID_BIT;
    put_u64(prefix + 1, bytes);
    put_u32(prefix + 9, p->id);
    parts[0] = (struct iovec){prefix, sizeof prefix};
    if ((rc = borrow_some(p, bytes, until_ns)) != 0) return rc;
    p->is_broken = true;
    if ((rc = send_request(&lies_in_memory, p, parts, count, bytes, until_ns)) != 0) return rc;
    p->owed++;
    /* silence is the end of a pipe whose memory somebody may still write or read */
    const bool needs_answer = lies_in_memory || p->replies.head;
    p->is_broken = needs_answer;
    trip->sent_ns = rpc_now_ns();
    while ((rc = read_message(reply, trip, &id, p, bytes_max, spin_ns, until_ns)) == 0) {
        p->is_seasoned = true;
        if (id == p->id) return 0;
        p->is_broken = needs_answer;
        nng_msg_free(*reply); /* to an earlier try */
        *reply = NULL;
        if (rpc_now_ns() >= until_ns) return NNG_ETIMEDOUT; /* a server that never stops talking */
    }
    return rc;
}
