/*
 * What the tests of lent memory say beside local_words.h: prefixes, questions for memory, answers to them,
 * and what of it is open or mapped in this process.
 */
#ifndef CKKS_TESTS_MEMORY_WORDS_H
#define CKKS_TESTS_MEMORY_WORDS_H

#include "client/lib/rpc_memory.h"
#include "daemon/local_memory.h"
#include "tests/support/local_words.h"

#include <sys/mman.h>

#define MAP_BYTES (sizeof(local_memory_head) + LOCAL_MEMORY_BYTES)

static void put_prefix(int fd, uint8_t type, uint64_t length) {
    uint8_t prefix[9] = {type};
    for (int i = 0; i < 8; i++) prefix[1 + i] = (uint8_t)(length >> (56 - 8 * i));
    put(fd, prefix, sizeof prefix);
}

/* *memory < 0: it was refused. false: hung up on */
static inline bool ask_for_memory(int *memory, int fd, uint8_t type) {
    uint8_t text[9];
    char beside[CMSG_SPACE(sizeof(int))];
    struct iovec part = {text, sizeof text};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = beside, .msg_controllen = sizeof beside};
    *memory = -1;
    put_prefix(fd, type, 0);
    struct pollfd one = {.fd = fd, .events = POLLIN};
    if (poll(&one, 1, WAIT_MS) != 1 || recvmsg(fd, &message, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof text)
        return false;
    assert_int_equal(text[0], type);
    uint64_t bytes = 0;
    for (int i = 1; i < 9; i++) bytes = bytes << 8 | text[i];
    const struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    if (c) memcpy(memory, CMSG_DATA(c), sizeof *memory);
    assert_int_equal(bytes, c ? LOCAL_MEMORY_BYTES : 0);
    return true;
}

static inline int count_open(void) {
    int count = 0;
    for (int fd = 0; fd < 256; fd++) count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* in this process, the server's and the client's */
static inline int count_mappings_of(const char *name) {
    char line[512];
    int count = 0;
    FILE *file = fopen("/proc/self/maps", "re");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) count += strstr(line, name) != NULL;
    fclose(file);
    return count;
}

static inline int memory_of(size_t bytes, int seals) {
    const int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    if (seals) assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

/* `text`, with `count` descriptors beside it. */
static inline void answer(int fd, const void *text, size_t size, const int *beside, size_t count) {
    char room[CMSG_SPACE(2 * sizeof(int))] = {0};
    union {
        const void *in;
        void *out;
    } at = {.in = text};
    struct iovec part = {at.out, size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (count) {
        message.msg_control = room, message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(c), beside, count * sizeof(int));
    }
    assert_int_equal(sendmsg(fd, &message, 0), (ssize_t)size);
}

#endif
