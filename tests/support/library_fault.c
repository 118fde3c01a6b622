#include "tests/support/library_fault.h"

#include <errno.h>
#include <nng/nng.h>
#include <nng/protocol/reqrep0/rep.h>
#include <nng/protocol/reqrep0/req.h>
#include <nng/supplemental/tls/tls.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <uv.h>

static _Atomic uint64_t fail_at, calls;
static _Atomic bool is_late;
static const char *_Atomic name_of_failed;

static bool fails(const char *name) {
    const uint64_t nth = atomic_load_explicit(&fail_at, memory_order_relaxed);
    const uint64_t call = atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed) + 1;
    if (nth == 0 || call != nth) return false;
    atomic_store(&name_of_failed, name);
    return true;
}

void library_fault_set(uint64_t nth, bool late) {
    atomic_store(&calls, 0);
    atomic_store(&is_late, late);
    atomic_store(&name_of_failed, NULL);
    atomic_store(&fail_at, nth);
}
uint64_t library_fault_calls(void) {
    return atomic_load(&calls);
}
const char *library_fault_name(void) {
    return atomic_load(&name_of_failed);
}

/* the linker's names: what the product calls, and what it meant */
#define WRAP(name, failed, parameters, arguments)                                                            \
    int __real_##name parameters;                                                                            \
    int __wrap_##name parameters;                                                                            \
    int __wrap_##name parameters {                                                                           \
        return fails(#name) ? (failed) : __real_##name arguments;                                            \
    }
#define WRAP_LATE(name, failed, parameters, arguments)                                                       \
    int __real_##name parameters;                                                                            \
    int __wrap_##name parameters;                                                                            \
    int __wrap_##name parameters {                                                                           \
        if (!fails(#name)) return __real_##name arguments;                                                   \
        if (atomic_load(&is_late)) (void)__real_##name arguments;                                            \
        return failed;                                                                                       \
    }

/* of the C library too: what tells whether a file is there */
WRAP(stat, (errno = EIO, -1), (const char *path, struct stat *st), (path, st))
WRAP(posix_memalign, ENOMEM, (void **out, size_t alignment, size_t bytes), (out, alignment, bytes))

WRAP_LATE(sqlite3_open_v2, SQLITE_CANTOPEN, (const char *path, sqlite3 **out, int flags, const char *vfs),
          (path, out, flags, vfs))
WRAP_LATE(sqlite3_exec, SQLITE_IOERR,
          (sqlite3 * db, const char *text, int (*row)(void *, int, char **, char **), void *context,
           char **said),
          (db, text, row, context, said))
WRAP(sqlite3_prepare_v2, SQLITE_NOMEM,
     (sqlite3 * db, const char *text, int bytes, sqlite3_stmt **out, const char **rest),
     (db, text, bytes, out, rest))
WRAP_LATE(sqlite3_step, SQLITE_IOERR, (sqlite3_stmt * statement), (statement))
WRAP(sqlite3_bind_text, SQLITE_NOMEM,
     (sqlite3_stmt * statement, int at, const char *text, int bytes, void (*free_it)(void *)),
     (statement, at, text, bytes, free_it))
WRAP(sqlite3_bind_blob, SQLITE_NOMEM,
     (sqlite3_stmt * statement, int at, const void *data, int bytes, void (*free_it)(void *)),
     (statement, at, data, bytes, free_it))
WRAP(sqlite3_bind_int64, SQLITE_NOMEM, (sqlite3_stmt * statement, int at, sqlite3_int64 number),
     (statement, at, number))

WRAP(nng_rep0_open, NNG_ENOMEM, (nng_socket * out), (out))
WRAP(nng_req0_open, NNG_ENOMEM, (nng_socket * out), (out))
WRAP(nng_socket_set_size, NNG_ENOMEM, (nng_socket s, const char *option, size_t size), (s, option, size))
WRAP(nng_socket_set_ms, NNG_ENOMEM, (nng_socket s, const char *option, nng_duration ms), (s, option, ms))
WRAP(nng_pipe_notify, NNG_ECLOSED, (nng_socket s, nng_pipe_ev event, nng_pipe_cb run, void *context),
     (s, event, run, context))
WRAP(nng_listener_create, NNG_ENOMEM, (nng_listener * out, nng_socket s, const char *url), (out, s, url))
WRAP(nng_listener_set_ptr, NNG_ENOMEM, (nng_listener l, const char *option, void *value), (l, option, value))
WRAP(nng_listener_set_bool, NNG_ENOMEM, (nng_listener l, const char *option, bool value), (l, option, value))
WRAP(nng_listener_start, NNG_EADDRINUSE, (nng_listener l, int flags), (l, flags))
WRAP(nng_aio_alloc, NNG_ENOMEM, (nng_aio * *out, void (*done)(void *), void *context), (out, done, context))
WRAP(nng_ctx_open, NNG_ENOMEM, (nng_ctx * out, nng_socket s), (out, s))
WRAP(nng_msg_alloc, NNG_ENOMEM, (nng_msg * *out, size_t bytes), (out, bytes))
WRAP(nng_msg_dup, NNG_ENOMEM, (nng_msg * *out, const nng_msg *from), (out, from))
WRAP(nng_msg_trim, NNG_ENOMEM, (nng_msg * message, size_t bytes), (message, bytes))
WRAP(nng_dialer_create, NNG_ENOMEM, (nng_dialer * out, nng_socket s, const char *url), (out, s, url))
WRAP(nng_dialer_set_ptr, NNG_ENOMEM, (nng_dialer d, const char *option, void *value), (d, option, value))
WRAP(nng_dialer_start, NNG_ECONNREFUSED, (nng_dialer d, int flags), (d, flags))
WRAP(nng_tls_config_alloc, NNG_ENOMEM, (nng_tls_config * *out, nng_tls_mode mode), (out, mode))
WRAP(nng_tls_config_own_cert, NNG_ECRYPTO,
     (nng_tls_config * tls, const char *certificate, const char *key, const char *pass),
     (tls, certificate, key, pass))
WRAP(nng_tls_config_ca_chain, NNG_ECRYPTO, (nng_tls_config * tls, const char *chain, const char *revoked),
     (tls, chain, revoked))
WRAP(nng_tls_config_auth_mode, NNG_ECRYPTO, (nng_tls_config * tls, nng_tls_auth_mode mode), (tls, mode))
WRAP(nng_tls_config_ca_file, NNG_ECRYPTO, (nng_tls_config * tls, const char *path), (tls, path))
WRAP(nng_tls_config_server_name, NNG_ECRYPTO, (nng_tls_config * tls, const char *name), (tls, name))

WRAP(uv_loop_init, UV_EMFILE, (uv_loop_t * l), (l))
WRAP(uv_async_init, UV_EMFILE, (uv_loop_t * l, uv_async_t *handle, uv_async_cb run), (l, handle, run))
WRAP(uv_pipe_init, UV_ENOMEM, (uv_loop_t * l, uv_pipe_t *handle, int ipc), (l, handle, ipc))
WRAP(uv_pipe_bind, UV_EACCES, (uv_pipe_t * handle, const char *path), (handle, path))
WRAP(uv_listen, UV_EADDRINUSE, (uv_stream_t * stream, int backlog, uv_connection_cb run),
     (stream, backlog, run))
WRAP(uv_accept, UV_EMFILE, (uv_stream_t * server, uv_stream_t *client), (server, client))
WRAP(uv_read_start, UV_ENOTCONN, (uv_stream_t * stream, uv_alloc_cb room, uv_read_cb run),
     (stream, room, run))
WRAP(uv_write, UV_ENOMEM,
     (uv_write_t * request, uv_stream_t *stream, const uv_buf_t parts[], unsigned count, uv_write_cb run),
     (request, stream, parts, count, run))
WRAP(uv_try_write, UV_EAGAIN, (uv_stream_t * stream, const uv_buf_t parts[], unsigned count),
     (stream, parts, count))
WRAP(uv_signal_init, UV_EMFILE, (uv_loop_t * l, uv_signal_t *handle), (l, handle))
WRAP(uv_signal_start, UV_EINVAL, (uv_signal_t * handle, uv_signal_cb run, int number), (handle, run, number))
WRAP(uv_fileno, UV_EBADF, (const uv_handle_t *handle, uv_os_fd_t *fd), (handle, fd))
