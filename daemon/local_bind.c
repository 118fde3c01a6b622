#include "daemon/local_bind.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* A socket file that nobody listens on any more: a daemon was killed. */
static bool is_dead_socket(const struct sockaddr_un *address) {
    struct stat st;
    bool is_dead = false;
    if (lstat(address->sun_path, &st) != 0 || !S_ISSOCK(st.st_mode)) return false;
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return false;
    is_dead = connect(fd, (const struct sockaddr *)address, sizeof *address) != 0 && errno == ECONNREFUSED;
    close(fd);
    return is_dead;
}

static bool folder_is_there(const char *path) {
    char folder[sizeof((struct sockaddr_un *)0)->sun_path] = ".";
    const char *slash = strrchr(path, '/');
    if (slash) memcpy(folder, path, (size_t)(slash - path)), folder[slash - path] = 0;
    return folder[0] == 0 || access(folder, F_OK) == 0;
}

ckks_status local_bind(uv_pipe_t *pipe, const char *path, uint32_t mode, ckks_error *err) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const size_t length = strlen(path);
    if (length >= sizeof address.sun_path)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "listen",
                              "ipc://%.200s: the path is longer than %zu bytes", path,
                              sizeof address.sun_path - 1);
    memcpy(address.sun_path, path, length + 1);
    int n = uv_pipe_bind(pipe, path);
    if (n == UV_EADDRINUSE && is_dead_socket(&address) && unlink(path) == 0) n = uv_pipe_bind(pipe, path);
    if (n == UV_EACCES && !folder_is_there(path)) n = UV_ENOENT; /* libuv says the former for both */
    if (n == 0 && chmod(path, (mode_t)mode) != 0) n = uv_translate_sys_error(errno);
    if (n != 0)
        return ckks_error_set(err, CKKS_IO, "listen", "cannot listen on ipc://%s: %s", path, uv_strerror(n));
    return CKKS_OK;
}
