#include "tests/support/system_fault.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static _Atomic uint64_t fail_at, calls;
static _Atomic int fail_with;

/* one that fails, or 0; *is_next: the one behind this fails */
static int fails(bool *is_next) {
    const uint64_t nth = atomic_load_explicit(&fail_at, memory_order_relaxed);
    const uint64_t call = atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed) + 1;
    if (is_next) *is_next = nth == call + 1;
    if (nth == 0 || call != nth) return 0;
    const int error = atomic_load(&fail_with);
    if (error == SYSTEM_FAULT_KILL) (void)raise(SIGKILL);
    errno = error;
    return error;
}

void system_fault_set(uint64_t nth, int error) {
    atomic_store(&calls, 0);
    atomic_store(&fail_with, error);
    atomic_store(&fail_at, nth);
}
uint64_t system_fault_calls(void) {
    return atomic_load(&calls);
}

/* the linker's names: what the product calls, and what it meant */
#define WRAP(type, name, failed, parameters, arguments)                                                      \
    type __real_##name parameters;                                                                           \
    type __wrap_##name parameters;                                                                           \
    type __wrap_##name parameters {                                                                          \
        return fails(NULL) ? (failed) : __real_##name arguments;                                             \
    }

WRAP(int, mkostemp, -1, (char *name, int flags), (name, flags))
WRAP(int, mkstemp, -1, (char *name), (name))
WRAP(ssize_t, read, -1, (int fd, void *data, size_t bytes), (fd, data, bytes))
WRAP(ssize_t, pread, -1, (int fd, void *data, size_t bytes, off_t at), (fd, data, bytes, at))
WRAP(int, fsync, -1, (int fd), (fd))
WRAP(int, fdatasync, -1, (int fd), (fd))
WRAP(int, ftruncate, -1, (int fd, off_t bytes), (fd, bytes))
WRAP(int, fchmod, -1, (int fd, mode_t mode), (fd, mode))
WRAP(int, fstat, -1, (int fd, struct stat *st), (fd, st))
WRAP(int, rename, -1, (const char *from, const char *to), (from, to))
WRAP(int, renameat2, -1, (int a, const char *from, int b, const char *to, unsigned flags),
     (a, from, b, to, flags))
WRAP(int, link, -1, (const char *from, const char *to), (from, to))
WRAP(int, linkat, -1, (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags))
WRAP(int, mkdir, -1, (const char *path, mode_t mode), (path, mode))
WRAP(DIR *, opendir, NULL, (const char *path), (path))
WRAP(void *, mmap, MAP_FAILED, (void *at, size_t bytes, int rights, int flags, int fd, off_t from),
     (at, bytes, rights, flags, fd, from))

WRAP(int, memfd_create, -1, (const char *name, unsigned flags), (name, flags))

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    const mode_t mode = flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? (mode_t)va_arg(more, int) : 0;
    va_end(more);
    return fails(NULL) ? -1 : __real_open(path, flags, mode);
}

/* a disk that gets full takes what it can first */
ssize_t __real_write(int fd, const void *data, size_t bytes);
ssize_t __wrap_write(int fd, const void *data, size_t bytes);
ssize_t __wrap_write(int fd, const void *data, size_t bytes) {
    bool is_next;
    if (fails(&is_next)) return -1;
    return __real_write(fd, data, is_next && bytes > 1 ? bytes / 2 : bytes);
}
ssize_t __real_pwrite(int fd, const void *data, size_t bytes, off_t at);
ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t at);
ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t at) {
    bool is_next;
    if (fails(&is_next)) return -1;
    return __real_pwrite(fd, data, is_next && bytes > 1 ? bytes / 2 : bytes, at);
}

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *context);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *context);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *context) {
    const int error = fails(NULL);
    return error ? error : __real_pthread_create(thread, attributes, run, context);
}
