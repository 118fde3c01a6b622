#include "tests/support/temporary.h"

#include "kernels/base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define UNIQUE 6 /* characters that mkdtemp and mkstemp choose: as many X */

static void name_within(char *path, size_t bytes, const char *where, const char *name) {
    const int length = snprintf(path, bytes, "%s/%s.", where, name);
    CKKS_ASSERT(length > 0 && (size_t)length + UNIQUE < bytes);
    memset(path + length, 'X', UNIQUE);
    path[length + UNIQUE] = 0;
}

static void folder_within(char *path, size_t bytes, const char *where, const char *name) {
    name_within(path, bytes, where, name);
    const char *made = mkdtemp(path);
    CKKS_ASSERT(made);
}

void temporary_folder(char *path, size_t bytes, const char *name) {
    folder_within(path, bytes, "/tmp", name);
}
void temporary_folder_in_memory(char *path, size_t bytes, const char *name) {
    folder_within(path, bytes, access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", name);
}

void temporary_file(char *path, size_t bytes, const char *name, const void *data, size_t size) {
    name_within(path, bytes, "/tmp", name);
    const int fd = mkstemp(path);
    CKKS_ASSERT(fd >= 0);
    const ssize_t written = write(fd, data, size);
    CKKS_ASSERT(written == (ssize_t)size);
    close(fd);
}
