#include "daemon/local_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define ANSWER_BYTES 9u
#define MAP_BYTES    (sizeof(local_memory_head) + LOCAL_MEMORY_BYTES)

/* The answer, with the descriptor `memory` if that is not negative. */
static ckks_status answer(int fd, int memory) {
    uint8_t text[ANSWER_BYTES] = {LOCAL_MEMORY_TYPE_LEND};
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

/* Its size stays what it is, whoever has it: reading it raises no signal. Every page is there from the start,
 * so that who fills it is charged for none. */
static int make(local_memory *out) {
    const int fd = memfd_create("ckksd-request", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return -1;
    void *at = MAP_FAILED;
    if (ftruncate(fd, (off_t)MAP_BYTES) == 0 &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        at = mmap(NULL, MAP_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (at == MAP_FAILED) {
        close(fd);
        return -1;
    }
    *out = (local_memory){.head = at, .area = (const uint8_t *)at + sizeof(local_memory_head)};
    return fd;
}

ckks_status local_memory_refuse(int fd) {
    return answer(fd, -1);
}

ckks_status local_memory_lend(local_memory *out, int fd) {
    *out = (local_memory){0};
    const int memory = make(out);
    ckks_status rc = answer(fd, memory);
    if (rc != CKKS_OK)
        local_memory_end(out);
    else if (memory < 0)
        rc = CKKS_RESOURCE_EXHAUSTED;
    if (memory >= 0) close(memory);
    return rc;
}

void local_memory_end(local_memory *m) {
    if (m->head) munmap(m->head, MAP_BYTES);
    *m = (local_memory){0};
}

void local_memory_copy(const local_memory *m, uint8_t *to, size_t *have, size_t bytes, bool is_all) {
    const uint64_t said = atomic_load_explicit(&m->head->have, memory_order_acquire);
    const size_t there = is_all || said > bytes ? bytes : (size_t)said;
    CKKS_ASSERT(bytes <= LOCAL_MEMORY_BYTES && *have <= bytes);
    if (there <= *have) return;
    memcpy(to + *have, m->area + *have, there - *have);
    *have = there;
}
