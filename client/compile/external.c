#include "client/compile/external.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_BYTES_MAX 1024u

/* entry of the tensor's list; NULL if it is not there */
static const char *entry(const Onnx__Tensor *t, const char *key) {
    for (size_t i = 0; i < t->n_external_data; i++)
        if (t->external_data[i]->key && strcmp(t->external_data[i]->key, key) == 0)
            return t->external_data[i]->value;
    return NULL;
}

/* a decimal number without sign or blanks */
static ckks_status read_number(uint64_t *out, const char *text, uint64_t otherwise, const char *what,
                               ckks_error *err) {
    *out = otherwise;
    if (!text) return CKKS_OK;
    uint64_t value = 0;
    const char *at = text;
    for (; *at >= '0' && *at <= '9'; at++)
        if (__builtin_mul_overflow(value, UINT64_C(10), &value) ||
            __builtin_add_overflow(value, (uint64_t)(*at - '0'), &value))
            break;
    if (*at || at == text)
        return ckks_error_set(err, CKKS_MALFORMED, what, "'%.40s' is no place in a file", text);
    *out = value;
    return CKKS_OK;
}

static ckks_status bad_path(const char *path, const char *what, ckks_error *err) {
    return ckks_error_set(err, CKKS_MALFORMED, what,
                          "its data is at '%.100s', which is not below the model's own folder", path);
}

static ckks_status cannot_open(const char *path, int error, const char *what, ckks_error *err) {
    if (error == ELOOP || error == ENOTDIR)
        return ckks_error_set(err, CKKS_UNSUPPORTED, what,
                              "its data is at '%.100s', behind a symbolic link: put the file itself there",
                              path);
    return ckks_error_set(err, error == ENOENT ? CKKS_NOT_FOUND : CKKS_IO, what, "its data at '%.100s': %s",
                          path, strerror(error));
}

/* Walks the path name by name, each opened below the one before and none through a link, so that nothing
 * that changes meanwhile can lead outside. */
static ckks_status open_below(int *out, const char *folder, const char *path, const char *what,
                              ckks_error *err) {
    char copy[PATH_BYTES_MAX], *rest = NULL;
    const size_t length = strlen(path);
    *out = -1;
    if (!length || length >= sizeof copy || path[0] == '/' || path[length - 1] == '/')
        return bad_path(path, what, err);
    memcpy(copy, path, length + 1);
    int at = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (at < 0) return cannot_open(folder, errno, what, err);
    for (char *name = strtok_r(copy, "/", &rest); name;) {
        char *next = strtok_r(NULL, "/", &rest);
        if (strcmp(name, "..") == 0) {
            close(at);
            return bad_path(path, what, err);
        }
        /* not blocking: a pipe would wait for a writer */
        const int flags = O_RDONLY | O_NOFOLLOW | O_CLOEXEC | (next ? O_DIRECTORY : O_NONBLOCK);
        const int below = openat(at, name, flags);
        const int error = errno;
        close(at);
        if (below < 0) return cannot_open(path, error, what, err);
        at = below, name = next;
    }
    *out = at;
    return CKKS_OK;
}

static ckks_status read_range(uint8_t **bytes, int file, uint64_t offset, size_t size, const char *what,
                              ckks_error *err) {
    size_t done = 0;
    *bytes = malloc(size ? size : 1);
    if (!*bytes)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, what, "no memory for %zu bytes of weights", size);
    while (done < size) {
        const ssize_t got = pread(file, *bytes + done, size - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            free(*bytes);
            *bytes = NULL;
            return ckks_error_set(err, CKKS_IO, what, "its data: %s",
                                  got ? strerror(errno) : "the file shrank");
        }
        done += (size_t)got;
    }
    return CKKS_OK;
}

ckks_status external_read(uint8_t **bytes, size_t *size, const char *folder, const Onnx__Tensor *message,
                          uint64_t bytes_max, const char *what, ckks_error *err) {
    ckks_status rc;
    uint64_t offset, length;
    struct stat info;
    int file = -1;
    const char *path = entry(message, "location");
    *bytes = NULL, *size = 0;
    if (!path) return ckks_error_set(err, CKKS_MALFORMED, what, "its data is in a file without a name");
    if ((rc = open_below(&file, folder, path, what, err)) != CKKS_OK) return rc;
    if (fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) {
        rc = ckks_error_set(err, CKKS_UNSUPPORTED, what, "its data is at '%.100s', which is no plain file",
                            path);
        goto out;
    }
    const uint64_t have = (uint64_t)info.st_size;
    if ((rc = read_number(&offset, entry(message, "offset"), 0, what, err)) != CKKS_OK) goto out;
    const uint64_t rest = offset <= have ? have - offset : 0;
    if ((rc = read_number(&length, entry(message, "length"), rest, what, err)) != CKKS_OK) goto out;
    if (offset > have || length > rest) {
        rc = ckks_error_set(err, CKKS_MALFORMED, what, "its data is %llu bytes at %llu of a file of %llu",
                            (unsigned long long)length, (unsigned long long)offset, (unsigned long long)have);
        goto out;
    }
    if (length > bytes_max) {
        rc = ckks_error_set(err, CKKS_TOO_LARGE, what, "%llu bytes of weights, %llu are left",
                            (unsigned long long)length, (unsigned long long)bytes_max);
        goto out;
    }
    rc = read_range(bytes, file, offset, (size_t)length, what, err);
    if (rc == CKKS_OK) *size = (size_t)length;
out:
    close(file);
    return rc;
}
