#include "client/lib/rpc_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define ANSWER_BYTES 9u
#define SEALS        (F_SEAL_SHRINK | F_SEAL_GROW)

/* Maps it if it is what it should be: a size that nobody can take back, since a look beyond it would end us.
 */
static void take(rpc_memory *out, int memory, uint64_t bytes, int rights) {
    struct stat st;
    if (bytes == 0 || bytes > LOCAL_MEMORY_BYTES_MAX) return;
    const size_t all = sizeof(local_memory_head) + (size_t)bytes;
    if ((fcntl(memory, F_GET_SEALS) & SEALS) != SEALS || fstat(memory, &st) != 0 || (size_t)st.st_size < all)
        return;
    void *at = mmap(NULL, all, rights, MAP_SHARED | MAP_POPULATE, memory, 0);
    if (at == MAP_FAILED) return;
    *out = (rpc_memory){at, (uint8_t *)at + sizeof(local_memory_head), (size_t)bytes};
}

int rpc_memory_receive(rpc_memory *out, int fd, uint8_t type) {
    uint8_t text[ANSWER_BYTES];
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } beside;
    struct iovec part = {text, sizeof text};
    /* no room for a second descriptor, which the system closes then */
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = beside.bytes,
                             .msg_controllen = CMSG_LEN(sizeof(int))};
    uint64_t bytes = 0;
    int memory = -1;
    *out = (rpc_memory){0};
    ssize_t n;
    do n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n < 0) return errno;
    if (n == 0) return ECONNRESET;
    const struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
        c->cmsg_len == CMSG_LEN(sizeof memory))
        memcpy(&memory, CMSG_DATA(c), sizeof memory);
    for (uint32_t i = 1; i < ANSWER_BYTES; i++) bytes = bytes << 8 | text[i];
    /* it was sent in one piece, and comes so */
    const bool is_answer = n == (ssize_t)sizeof text && text[0] == type;
    const int rights = type == LOCAL_MEMORY_TYPE_LEND_REPLIES ? PROT_READ : PROT_READ | PROT_WRITE;
    if (is_answer && memory >= 0) take(out, memory, bytes, rights);
    if (memory >= 0) close(memory);
    return is_answer ? 0 : EPROTO;
}

void rpc_memory_put(rpc_memory *m, const struct iovec *parts, size_t count) {
    size_t have = 0, said = 0;
    for (size_t i = 0; i < count; i++) {
        const uint8_t *from = parts[i].iov_base;
        for (size_t left = parts[i].iov_len; left;) {
            const size_t room = said + LOCAL_MEMORY_PART - have, n = left < room ? left : room;
            memcpy(m->area + have, from, n);
            have += n, from += n, left -= n;
            if (have < said + LOCAL_MEMORY_PART) continue;
            said = have;
            atomic_store_explicit(&m->head->have, said, memory_order_release);
        }
    }
    atomic_store_explicit(&m->head->have, have, memory_order_release);
}

void rpc_memory_end(rpc_memory *m) {
    if (m->head) munmap(m->head, sizeof(local_memory_head) + m->bytes);
    *m = (rpc_memory){0};
}
