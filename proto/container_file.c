/* The files of proto/container.h: blocking I/O, apart from the pure format in container.c. */
#include "proto/container.h"

#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
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

typedef struct file_sink {
    int fd;
    const char *path;
    hash_state *hash;
} file_sink;

static ckks_status write_all(int fd, const uint8_t *bytes, uint64_t size, const char *path, ckks_error *err) {
    while (size) {
        const ssize_t put = write(fd, bytes, size < (1u << 30) ? size : 1u << 30);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return io_error(path, "write", err);
        bytes += put;
        size -= (uint64_t)put;
    }
    return CKKS_OK;
}

static ckks_status file_put(void *context, const void *data, uint64_t bytes, ckks_error *err) {
    const file_sink *sink = context;
    if (!bytes) return CKKS_OK;
    hash_update(sink->hash, data, bytes);
    return write_all(sink->fd, data, bytes, sink->path, err);
}

/* A fresh name in the target's folder. */
static ckks_status open_temporary(int *fd, char *name, size_t capacity, const char *path, mode_t mode,
                                  ckks_error *err) {
    for (unsigned attempt = 0; attempt < 1000; attempt++) {
        const int length = snprintf(name, capacity, "%s.%d-%u.tmp", path, (int)getpid(), attempt);
        if (length < 0 || (size_t)length >= capacity)
            return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "file", "path is too long: %.180s", path);
        *fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        if (*fd >= 0) return CKKS_OK;
        if (errno != EEXIST) break;
    }
    name[0] = 0;
    return io_error(path, "create", err);
}

/* Without `overwrite` the name must still be free at this moment: not a check and then a rename. */
static ckks_status publish(const char *temporary, const char *path, bool overwrite, ckks_error *err) {
    if (overwrite) return rename(temporary, path) == 0 ? CKKS_OK : io_error(path, "write", err);
    if (renameat2(AT_FDCWD, temporary, AT_FDCWD, path, RENAME_NOREPLACE) == 0) return CKKS_OK;
    if (errno != EINVAL && errno != ENOSYS) return io_error(path, "write", err);
    if (link(temporary, path) != 0) return io_error(path, "write", err);
    unlink(temporary);
    return CKKS_OK;
}

static ckks_status sync_folder(const char *path, ckks_error *err) {
    char folder[4096];
    const char *slash = strrchr(path, '/');
    const int length = slash ? snprintf(folder, sizeof folder, "%.*s/", (int)(slash - path), path)
                             : snprintf(folder, sizeof folder, ".");
    if (length < 0 || (size_t)length >= sizeof folder)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "file", "path is too long: %.180s", path);
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return io_error(folder, "open", err);
    const ckks_status rc = fsync(fd) == 0 ? CKKS_OK : io_error(folder, "sync", err);
    close(fd);
    return rc;
}

ckks_status container_write(const char *path, uint32_t kind, const void *manifest, uint32_t manifest_bytes,
                            const container_segment *segments, uint32_t segment_count, bool overwrite,
                            ckks_error *err) {
    ckks_status rc;
    uint64_t total;
    char temporary[4096] = "";
    file_sink file = {.fd = -1, .path = path};
    uint8_t digest[SHA256_BYTES];
    if ((rc = container_size(&total, manifest_bytes, segments, segment_count, err)) != CKKS_OK) return rc;
    if (!(file.hash = hash_create())) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "file", "no memory to write %.180s", path);
        goto out;
    }
    if ((rc = open_temporary(&file.fd, temporary, sizeof temporary, path,
                             kind == CONTAINER_SECRET_KEY ? 0600 : 0644, err)) != CKKS_OK)
        goto out;
    const container_sink sink = {file_put, &file};
    rc = container_emit(&sink, kind, manifest, manifest_bytes, segments, segment_count, err);
    if (rc != CKKS_OK) goto out;
    hash_finish(file.hash, digest);
    if ((rc = write_all(file.fd, digest, sizeof digest, path, err)) != CKKS_OK) goto out;
    if (fsync(file.fd) != 0) {
        rc = io_error(path, "sync", err);
        goto out;
    }
    if ((rc = publish(temporary, path, overwrite, err)) != CKKS_OK) goto out;
    temporary[0] = 0;
    rc = sync_folder(path, err);
out:
    if (file.fd >= 0) close(file.fd);
    if (temporary[0]) unlink(temporary);
    hash_destroy(file.hash);
    return rc;
}
