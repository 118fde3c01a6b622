#include "daemon/local_memory.h"

#include "daemon/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define ANSWER_BYTES 9u
#define MAP_BYTES    (sizeof(local_memory_head) + LOCAL_MEMORY_BYTES)

/* The answer, with the descriptor `memory` if that is not negative. */
static ckks_status answer(int fd, int memory, bool is_for_replies) {
    uint8_t text[ANSWER_BYTES] = {is_for_replies ? LOCAL_MEMORY_TYPE_LEND_REPLIES : LOCAL_MEMORY_TYPE_LEND};
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } beside;
    struct iovec part = {text, sizeof text};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (memory >= 0) {
        for (uint32_t i = 0; i < 8; i++)
            text[1 + i] = (uint8_t)((uint64_t)LOCAL_MEMORY_BYTES >> (56 - 8 * i));
        memset(&beside, 0, sizeof beside);
        message.msg_control = beside.bytes, message.msg_controllen = sizeof beside.bytes;
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof memory);
        memcpy(CMSG_DATA(c), &memory, sizeof memory);
    }
    ssize_t n;
    do n = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof text ? CKKS_OK : CKKS_IO;
}

static _Atomic uint64_t *account(bool is_for_replies) {
    return is_for_replies ? &daemon_metrics.local_reply_bytes : &daemon_metrics.local_request_bytes;
}

/* The last seals, behind our own mapping: who is lent replies cannot write there, where the system is not too
 * old for that (Linux 5.1). */
static bool seal(int fd, bool is_for_replies) {
    return (is_for_replies && fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0) ||
           fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL) == 0;
}

/* Its size stays what it is, whoever has it: reading it raises no signal. Every page is there from the start,
 * so that who fills it is charged for none, and zero: no peer gets what was another's. */
static int make(local_memory *out, bool is_for_replies) {
    const int fd =
        memfd_create(is_for_replies ? "ckksd-reply" : "ckksd-request", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return -1;
    void *at = MAP_FAILED;
    if (ftruncate(fd, (off_t)MAP_BYTES) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0)
        at = mmap(NULL, MAP_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (at == MAP_FAILED || !seal(fd, is_for_replies)) {
        if (at != MAP_FAILED) munmap(at, MAP_BYTES);
        close(fd);
        return -1;
    }
    *out = (local_memory){at, (uint8_t *)at + sizeof(local_memory_head), is_for_replies};
    atomic_fetch_add_explicit(account(is_for_replies), MAP_BYTES, memory_order_relaxed);
    return fd;
}

ckks_status local_memory_refuse(int fd, bool is_for_replies) {
    return answer(fd, -1, is_for_replies);
}

ckks_status local_memory_lend(local_memory *out, int fd, bool is_for_replies) {
    *out = (local_memory){0};
    const int memory = make(out, is_for_replies);
    ckks_status rc = answer(fd, memory, is_for_replies);
    if (rc != CKKS_OK)
        local_memory_end(out);
    else if (memory < 0)
        rc = CKKS_RESOURCE_EXHAUSTED;
    if (memory >= 0) close(memory);
    return rc;
}

void local_memory_end(local_memory *m) {
    if (m->head) {
        munmap(m->head, MAP_BYTES);
        atomic_fetch_sub_explicit(account(m->is_for_replies), MAP_BYTES, memory_order_relaxed);
    }
    *m = (local_memory){0};
}

void local_memory_clear(const local_memory *m) {
    atomic_store_explicit(&m->head->have, 0, memory_order_relaxed);
}

void local_memory_put(const local_memory *m, size_t *have, const uint8_t *from, size_t bytes) {
    CKKS_ASSERT(bytes <= LOCAL_MEMORY_BYTES);
    while (*have < bytes) {
        const size_t left = bytes - *have, n = left < LOCAL_MEMORY_PART ? left : LOCAL_MEMORY_PART;
        memcpy(m->area + *have, from + *have, n);
        *have += n;
        atomic_store_explicit(&m->head->have, *have, memory_order_release);
    }
}
