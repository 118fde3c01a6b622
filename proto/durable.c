#include "proto/durable.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

int durable_folder_at(int folder) {
    int n;
    do n = fsync(folder);
    while (n != 0 && errno == EINTR);
    if (n == 0) return 0;
    switch (errno) {
    case EINVAL: /* the system's word for what cannot be synced */
    case EROFS:
    case ENOSYS:
    case EOPNOTSUPP:
    case EISDIR:
    case EBADF: /* some file systems in user space want a folder open for writing, which none can be */
        return 0;
    default:
        return errno;
    }
}

int durable_folder(const char *path) {
    const int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return errno == EACCES || errno == EPERM ? 0 : errno;
    const int error = durable_folder_at(folder);
    close(folder);
    return error;
}
