#include "client/lib/files.h"

#include "proto/durable.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

ckks_status file_io_error(ckks_error *err, const char *path, const char *what) {
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
    snprintf(joined, sizeof joined, "%.*s: %.*s", (int)room, strcmp(path, "-") ? path : "standard input",
             (int)room - 4, err->message);
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
            const ckks_status rc = file_io_error(err, path, "read");
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
    if (fd < 0) return file_io_error(err, path, "open");
    ckks_status rc;
    struct stat st;
    if (fstat(fd, &st) != 0)
        rc = file_io_error(err, path, "stat");
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

/* Of the folder that `path` is in. */
static bool folder_of(char folder[PATH_MAX], const char *path) {
    const char *slash = strrchr(path, '/');
    const int length = slash ? (int)(slash - path) : 0;
    return snprintf(folder, PATH_MAX, "%.*s", length ? length : 1,
                    length  ? path
                    : slash ? "/"
                            : ".") < PATH_MAX;
}

/* the name itself, after a crash: a key that was reported must not be gone */
static ckks_status sync_folder(const char *folder, const char *path, ckks_error *err) {
    const int number = durable_folder(folder);
    return number == 0
               ? CKKS_OK
               : ckks_error_set(err, CKKS_IO, "folder",
                                "%.200s: written, but it may not survive a crash: sync of its folder: %s",
                                path, strerror(number));
}

/* Where the system can, the new file has no name until it is whole: whatever ends this program, even a
 * power failure, leaves nothing of it (a part of a secret key, say) behind. Else a name beside the target.
 * No system gives a nameless file the name of another: one that is replaced may leave, if the program is
 * killed between two calls, a second name of the whole new file. */
typedef struct new_file {
    int fd;
    char own[32];        /* its name for the system while it has none: /proc/self/fd/N; "" if it has one */
    char name[PATH_MAX]; /* of what is to be removed after a failure; "" if there is nothing */
} new_file;

static bool name_beside(char name[PATH_MAX], const char *path) {
    return snprintf(name, PATH_MAX, "%s.%08x", path, randombytes_random()) < PATH_MAX;
}

/* `mode` is less what the umask takes away, as for any file that a program makes. */
static ckks_status new_file_open(new_file *out, const char *folder, const char *path, unsigned mode,
                                 ckks_error *err) {
    *out = (new_file){.fd = -1};
    if (access("/proc/self/fd", X_OK) == 0) {
        out->fd = open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, (mode_t)mode);
        if (out->fd >= 0) snprintf(out->own, sizeof out->own, "/proc/self/fd/%d", out->fd);
        if (out->fd < 0 && errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)
            return file_io_error(err, path, "create");
    }
    while (out->fd < 0) {
        if (!name_beside(out->name, path))
            return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "file", "%.200s: the path is too long", path);
        out->fd = open(out->name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, (mode_t)mode);
        if (out->fd >= 0 || errno == EEXIST) continue;
        out->name[0] = 0;
        return file_io_error(err, path, "create");
    }
    return CKKS_OK;
}

/* Under a name that must be free: what a rename would replace is refused. Some file systems have no links. */
static int give_new_name(new_file *f, const char *name) {
    if (f->own[0]) return linkat(AT_FDCWD, f->own, AT_FDCWD, name, AT_SYMLINK_FOLLOW);
    if (renameat2(AT_FDCWD, f->name, AT_FDCWD, name, RENAME_NOREPLACE) == 0) {
        f->name[0] = 0;
        return 0;
    }
    return errno == EINVAL || errno == ENOSYS ? link(f->name, name) : -1;
}

static ckks_status new_file_publish(new_file *f, const char *path, bool overwrite, ckks_error *err) {
    char beside[PATH_MAX];
    if (!overwrite || !f->name[0]) { /* also where nothing is replaced: one call, so nothing beside it ever */
        if (give_new_name(f, path) == 0) return CKKS_OK;
        if (!overwrite || errno != EEXIST) return file_io_error(err, path, "create");
    }
    while (!f->name[0]) {
        if (!name_beside(beside, path))
            return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "file", "%.200s: the path is too long", path);
        if (give_new_name(f, beside) == 0)
            memcpy(f->name, beside, sizeof beside);
        else if (errno != EEXIST)
            return file_io_error(err, path, "create");
    }
    if (rename(f->name, path) != 0) return file_io_error(err, path, "rename");
    f->name[0] = 0;
    return CKKS_OK;
}

/* A device, a pipe or a terminal takes the bytes; a file in its place would be a disaster (/dev/null). */
static ckks_status write_through(const char *path, const void *bytes, size_t size, ckks_error *err) {
    const int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) return file_io_error(err, path, "open");
    ckks_status rc = write_all(fd, bytes, size) ? CKKS_OK : file_io_error(err, path, "write");
    if (close(fd) != 0 && rc == CKKS_OK) rc = file_io_error(err, path, "close");
    return rc;
}

ckks_status file_resolve(char out[PATH_MAX], const char *path, bool *is_special, ckks_error *err) {
    struct stat st, link_st;
    *is_special = false;
    if (snprintf(out, PATH_MAX, "%s", path) >= PATH_MAX)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "file", "%.200s: the path is too long", path);
    if (stat(path, &st) != 0) return CKKS_OK; /* whoever writes there says what is wrong with it */
    if (S_ISDIR(st.st_mode))
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "file", "%.200s: is a folder", path);
    *is_special = !S_ISREG(st.st_mode);
    if (!*is_special && lstat(path, &link_st) == 0 && S_ISLNK(link_st.st_mode) && !realpath(path, out))
        return file_io_error(err, path, "follow the link");
    return CKKS_OK;
}

unsigned file_mode(const char *path, unsigned mode) {
    struct stat st;
    return stat(path, &st) == 0 ? mode & st.st_mode & 0777 : mode;
}

ckks_status file_write(const char *path, const void *bytes, size_t size, unsigned mode, bool overwrite,
                       ckks_error *err) {
    ckks_status rc;
    new_file f;
    char target[PATH_MAX], folder[PATH_MAX];
    bool is_special = false;
    if (overwrite) {
        if ((rc = file_resolve(target, path, &is_special, err)) != CKKS_OK) return rc;
        if (is_special) return write_through(path, bytes, size, err);
        mode = file_mode(target, mode);
    } else if (snprintf(target, sizeof target, "%s", path) >= (int)sizeof target) {
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "file", "%.200s: the path is too long", path);
    }
    if (!folder_of(folder, target))
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "file", "%.200s: the path is too long", path);
    if ((rc = new_file_open(&f, folder, target, mode, err)) != CKKS_OK) return rc;
    if (!write_all(f.fd, bytes, size) || fsync(f.fd) != 0) rc = file_io_error(err, path, "write");
    if (rc == CKKS_OK) rc = new_file_publish(&f, target, overwrite, err);
    if (close(f.fd) != 0 && rc == CKKS_OK) rc = file_io_error(err, path, "close");
    if (f.name[0]) unlink(f.name);
    return rc == CKKS_OK ? sync_folder(folder, path, err) : rc;
}

ckks_status file_make_parents(const char *path, ckks_error *err) {
    char folder[4096];
    if (snprintf(folder, sizeof folder, "%s", path) >= (int)sizeof folder)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "file", "%.200s: the path is too long", path);
    for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(folder, 0700) != 0 && errno != EEXIST) return file_io_error(err, folder, "create folder");
        *slash = '/';
    }
    return CKKS_OK;
}
