#include "client/lib/files.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static ckks_status io_error(ckks_error *err, const char *path, const char *what) {
    const int number = errno;
    const ckks_status code = number == ENOENT                      ? CKKS_NOT_FOUND
                             : number == EEXIST                    ? CKKS_ALREADY_EXISTS
                             : number == EACCES || number == EPERM ? CKKS_PERMISSION_DENIED
                                                                   : CKKS_IO;
    return ckks_error_set(err, code, "file", "%.200s: %s: %s", path, what, strerror(number));
}

void file_name_error(ckks_error *err, const char *path) {
    if (!err || err->code == CKKS_OK) return;
    char joined[sizeof err->message];
    const size_t room = sizeof joined / 2;
    snprintf(joined, sizeof joined, "%.*s: %.*s", (int)room, path, (int)room - 4, err->message);
    memcpy(err->message, joined, sizeof joined);
}

/* what was read may be a secret key or a token */
static void discard(uint8_t *buffer, size_t size) {
    if (buffer) sodium_memzero(buffer, size);
    free(buffer);
}

/* pipes have no size to ask for: the buffer grows */
static ckks_status read_all(uint8_t **out, size_t *size, int fd, const char *path, uint64_t size_max,
                            size_t hint, ckks_error *err) {
    size_t capacity = hint + 1 > 65536 ? hint + 1 : 65536, used = 0;
    uint8_t *buffer = malloc(capacity);
    while (buffer) {
        const ssize_t got = read(fd, buffer + used, capacity - used);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            const ckks_status rc = io_error(err, path, "read");
            discard(buffer, used);
            return rc;
        }
        used += (size_t)got;
        if (used > size_max) {
            discard(buffer, used);
            return ckks_error_set(err, CKKS_TOO_LARGE, "file", "%.200s: more than %llu bytes", path,
                                  (unsigned long long)size_max);
        }
        if (got == 0) {
            *out = buffer, *size = used;
            return CKKS_OK;
        }
        if (used < capacity) continue;
        uint8_t *moved = malloc(capacity * 2); /* realloc would leave what it moves from */
        if (moved) memcpy(moved, buffer, used);
        discard(buffer, used);
        buffer = moved, capacity *= 2;
    }
    return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "%.200s: no memory to read it", path);
}

ckks_status file_read(uint8_t **out, size_t *size, const char *path, uint64_t size_max, ckks_error *err) {
    *out = NULL, *size = 0;
    if (!strcmp(path, "-")) return read_all(out, size, STDIN_FILENO, "standard input", size_max, 0, err);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return io_error(err, path, "open");
    ckks_status rc;
    struct stat st;
    if (fstat(fd, &st) != 0)
        rc = io_error(err, path, "stat");
    else if (S_ISDIR(st.st_mode))
        rc = ckks_error_set(err, CKKS_INVALID_ARGUMENT, "file", "%.200s: is a folder", path);
    else if (S_ISREG(st.st_mode) && (uint64_t)st.st_size > size_max)
        rc = ckks_error_set(err, CKKS_TOO_LARGE, "file", "%.200s: %lld bytes, at most %llu are read", path,
                            (long long)st.st_size, (unsigned long long)size_max);
    else
        rc = read_all(out, size, fd, path, size_max, S_ISREG(st.st_mode) ? (size_t)st.st_size : 0, err);
    close(fd);
    return rc;
}

static bool write_all(int fd, const uint8_t *bytes, size_t size) {
    while (size) {
        const ssize_t done = write(fd, bytes, size);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return false;
        bytes += done, size -= (size_t)done;
    }
    return true;
}

/* the name itself, after a crash: a key that was reported must not be gone. What cannot be synced (some file
 * systems refuse) is as good as it gets. */
static void sync_folder(const char *path) {
    char folder[4096];
    const char *slash = strrchr(path, '/');
    const int length = slash ? (int)(slash - path) : 0;
    if (length >= (int)sizeof folder) return;
    snprintf(folder, sizeof folder, "%.*s", length ? length : 1, length ? path : slash ? "/" : ".");
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    (void)fsync(fd);
    close(fd);
}

ckks_status file_write(const char *path, const void *bytes, size_t size, unsigned mode, bool overwrite,
                       ckks_error *err) {
    ckks_status rc = CKKS_OK;
    char temporary[4096];
    if (snprintf(temporary, sizeof temporary, "%s.XXXXXX", path) >= (int)sizeof temporary)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "file", "%.200s: the path is too long", path);
    const int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0) return io_error(err, path, "create");
    if (!write_all(fd, bytes, size) || fchmod(fd, mode) != 0 || fsync(fd) != 0)
        rc = io_error(err, path, "write");
    if (close(fd) != 0 && rc == CKKS_OK) rc = io_error(err, path, "close");
    if (rc == CKKS_OK && overwrite && rename(temporary, path) != 0) rc = io_error(err, path, "rename");
    /* link refuses an existing name, where rename would replace it */
    if (rc == CKKS_OK && !overwrite) {
        if (link(temporary, path) != 0) rc = io_error(err, path, "create");
        unlink(temporary);
    } else if (rc != CKKS_OK) {
        unlink(temporary);
    }
    if (rc == CKKS_OK) sync_folder(path);
    return rc;
}

ckks_status file_make_parents(const char *path, ckks_error *err) {
    char folder[4096];
    if (snprintf(folder, sizeof folder, "%s", path) >= (int)sizeof folder)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "file", "%.200s: the path is too long", path);
    for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(folder, 0700) != 0 && errno != EEXIST) return io_error(err, folder, "create folder");
        *slash = '/';
    }
    return CKKS_OK;
}
