#include "daemon/ops.h"

#include "daemon/clock.h"
#include "daemon/config.h"
#include "daemon/metrics.h"
#include "kernels/base/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONNECTIONS_MAX 32u
#define TIMEOUT_S       10u

struct ops {
    struct MHD_Daemon *daemon;
};

static enum MHD_Result respond(struct MHD_Connection *connection, unsigned code, char *text, size_t size,
                               enum MHD_ResponseMemoryMode mode, const char *type) {
    struct MHD_Response *response = MHD_create_response_from_buffer(size, text, mode);
    if (!response) {
        if (mode == MHD_RESPMEM_MUST_FREE) free(text);
        return MHD_NO;
    }
    MHD_add_response_header(response, "Content-Type", type);
    MHD_add_response_header(response, "Cache-Control", "no-store");
    if (code == MHD_HTTP_METHOD_NOT_ALLOWED) MHD_add_response_header(response, "Allow", "GET, HEAD");
    const enum MHD_Result result = MHD_queue_response(connection, code, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result respond_text(struct MHD_Connection *connection, unsigned code, const char *text) {
    return respond(connection, code, (char *)(uintptr_t)text, strlen(text), MHD_RESPMEM_MUST_COPY,
                   "text/plain; charset=utf-8");
}

static enum MHD_Result handle(void *context, struct MHD_Connection *connection, const char *url,
                              const char *method, const char *version, const char *upload,
                              size_t *upload_size, void **state) {
    static int seen; /* an address: the second call of a request answers */
    (void)context, (void)version, (void)upload;
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return respond_text(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "GET or HEAD\n");
    if (*upload_size) return MHD_NO;
    if (!*state) {
        *state = &seen;
        return MHD_YES;
    }
    if (strcmp(url, "/livez") == 0) {
        uint32_t stalled = 0;
        char text[64];
        if (metrics_is_live(clock_now_ns(), &stalled)) return respond_text(connection, MHD_HTTP_OK, "ok\n");
        snprintf(text, sizeof text, "slot %u makes no progress\n", stalled);
        return respond_text(connection, MHD_HTTP_SERVICE_UNAVAILABLE, text);
    }
    if (strcmp(url, "/readyz") == 0) {
        size_t size = 0;
        bool is_ready = false;
        char *text = metrics_print_readiness(&is_ready, &size);
        if (!text) return MHD_NO;
        return respond(connection, is_ready ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE, text, size,
                       MHD_RESPMEM_MUST_FREE, "text/plain; charset=utf-8");
    }
    if (strcmp(url, "/metrics") == 0) {
        size_t size = 0;
        char *text = metrics_print(&size);
        if (!text) return MHD_NO;
        return respond(connection, MHD_HTTP_OK, text, size, MHD_RESPMEM_MUST_FREE,
                       "text/plain; version=0.0.4; charset=utf-8");
    }
    return respond_text(connection, MHD_HTTP_NOT_FOUND, "/livez /readyz /metrics\n");
}

static bool make_address(struct sockaddr_storage *out, const char *listen_on) {
    char host[CONFIG_TEXT_MAX];
    uint16_t port;
    memset(out, 0, sizeof *out);
    if (!config_split_address(listen_on, host, sizeof host, &port)) return false;
    struct sockaddr_in *four = (struct sockaddr_in *)(void *)out;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)(void *)out;
    if (strcmp(host, "localhost") == 0) snprintf(host, sizeof host, "127.0.0.1");
    if (inet_pton(AF_INET, host, &four->sin_addr) == 1) {
        four->sin_family = AF_INET, four->sin_port = htons(port);
        return true;
    }
    if (inet_pton(AF_INET6, host, &six->sin6_addr) == 1) {
        six->sin6_family = AF_INET6, six->sin6_port = htons(port);
        return true;
    }
    return false;
}

ckks_status ops_start(ops **out, const char *listen_on, ckks_error *err) {
    struct sockaddr_storage address;
    ops *o = calloc(1, sizeof *o);
    if (!o) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "ops", "out of memory");
    if (!make_address(&address, listen_on)) {
        free(o);
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "listen", "[ops] listen: '%s' is not address:port",
                              listen_on);
    }
    /* AUTO: not select(), which knows descriptors below 1,024 only. Nor MHD_OPTION_LISTENING_ADDRESS_REUSE,
     * with which the port is shared: whoever came second would get half of the questions. Without it, an
     * address that closed connections still hold can be listened on all the same. */
    const unsigned flags =
        MHD_USE_AUTO | MHD_USE_INTERNAL_POLLING_THREAD | (address.ss_family == AF_INET6 ? MHD_USE_IPv6 : 0u);
    errno = 0;
    o->daemon =
        MHD_start_daemon(flags, 0, NULL, NULL, handle, o, MHD_OPTION_SOCK_ADDR, (struct sockaddr *)&address,
                         MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT,
                         TIMEOUT_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)16384, MHD_OPTION_END);
    if (!o->daemon) {
        const int cause = errno;
        free(o);
        return ckks_error_set(err, CKKS_IO, "listen", "[ops] listen: cannot listen on %s%s%s%s", listen_on,
                              cause ? ": " : "", cause ? strerror(cause) : "",
                              cause == EADDRINUSE ? ": another ckksd or another service has it" : "");
    }
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(o->daemon, MHD_DAEMON_INFO_BIND_PORT);
    log_write(LOG_LEVEL_NOTICE, "event=listening socket=ops address=%s port=%u", listen_on,
              info ? info->port : 0u);
    *out = o;
    return CKKS_OK;
}

void ops_stop(ops *o) {
    if (!o) return;
    MHD_stop_daemon(o->daemon);
    free(o);
}
