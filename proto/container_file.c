/* The files of proto/container.h: blocking I/O, apart from the pure format in container.c. */
#include "proto/container.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static ckks_status io_error(const char *path, const char *what, ckks_error *err) {
    const int cause = errno;
    const ckks_status code = cause == ENOENT                     ? CKKS_NOT_FOUND
                             : cause == EEXIST                   ? CKKS_ALREADY_EXISTS
                             : cause == EACCES || cause == EPERM ? CKKS_PERMISSION_DENIED
                                                                 : CKKS_IO;
    char text[96];
    return ckks_error_set(err, code, "file", "cannot %s %.180s: %s", what, path,
                          strerror_r(cause, text, sizeof text));
}

static ckks_status read_all(int fd, uint8_t *bytes, size_t size, const char *path, ckks_error *err) {
    for (size_t done = 0; done < size;) {
        const ssize_t got = read(fd, bytes + done, size - done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return io_error(path, "read", err);
        if (got == 0)
            return ckks_error_set(err, CKKS_IO, "file", "%.180s became shorter while it was read", path);
        done += (size_t)got;
    }
    return CKKS_OK;
}

static ckks_status check_file(const struct stat *st, uint64_t size_max, const char *path, ckks_error *err) {
    if (!S_ISREG(st->st_mode))
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "file", "%.180s is not a regular file", path);
    if ((uint64_t)st->st_size > size_max)
        return ckks_error_set(err, CKKS_TOO_LARGE, "file", "%.180s has %lld bytes, at most %llu are taken",
                              path, (long long)st->st_size, (unsigned long long)size_max);
    return CKKS_OK;
}

/* The parser knows no path: its message is repeated behind one. */
static ckks_status name_path(ckks_status rc, const ckks_error *inner, const char *path, ckks_error *err) {
    return ckks_error_set(err, rc, inner->field, "%.100s: %.200s", path, inner->message);
}

ckks_status container_read(container_file *out, const char *path, uint32_t expected_kind, uint64_t size_max,
                           ckks_error *err) {
    ckks_status rc;
    ckks_error inner = {0};
    struct stat st;
    uint8_t *bytes = NULL;
    *out = (container_file){0};
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return io_error(path, "open", err);
    if (fstat(fd, &st) != 0) {
        rc = io_error(path, "inspect", err);
        goto out;
    }
    if ((rc = check_file(&st, size_max, path, err)) != CKKS_OK) goto out;
    const size_t size = (size_t)st.st_size;
    if (!(bytes = malloc(size ? size : 1))) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "file", "no memory for the %zu bytes of %.180s",
                            size, path);
        goto out;
    }
    if ((rc = read_all(fd, bytes, size, path, err)) != CKKS_OK) goto out;
    if ((rc = container_parse(&out->view, bytes, size, expected_kind, &inner)) != CKKS_OK) {
        rc = name_path(rc, &inner, path, err);
        goto out;
    }
    if (out->view.kind == CONTAINER_SECRET_KEY && (st.st_mode & 077) != 0) {
        rc = ckks_error_set(err, CKKS_PERMISSION_DENIED, "mode",
                            "%.180s: others may read this secret key (mode %04o): chmod 600 it", path,
                            (unsigned)(st.st_mode & 07777));
        goto out;
    }
    out->bytes = bytes, bytes = NULL;
    out->size = size;
out:
    if (rc != CKKS_OK) container_view_fini(&out->view);
    if (bytes) explicit_bzero(bytes, (size_t)st.st_size);
    free(bytes);
    close(fd);
    return rc;
}

void container_file_fini(container_file *file) {
    if (file->bytes && file->view.kind == CONTAINER_SECRET_KEY) explicit_bzero(file->bytes, file->size);
    container_view_fini(&file->view);
    free(file->bytes);
    *file = (container_file){0};
}
