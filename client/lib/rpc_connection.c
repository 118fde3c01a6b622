/*
 * Sockets: dialing with a bound on time, TLS, the pair of sockets. nng's blocking dial has no time limit of
 * its own and its background dial does not say why it fails, so that a helper thread dials and this one
 * waits.
 */
#include "client/lib/rpc_internal.h"
#include "proto/local_memory.h"

#include <nng/protocol/reqrep0/req.h>
#include <nng/supplemental/tls/tls.h>
#include <nng/transport/tls/tls.h>

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CLOSE_LIMIT_S  1
#define SYSTEM_CA_FILE "/etc/ssl/certs/ca-certificates.crt"

uint64_t rpc_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- dial ---- */

typedef struct dial_state {
    nng_dialer dialer;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_done;
    int result;
} dial_state;

static void *dial_main(void *context) {
    dial_state *d = context;
    const int result = nng_dialer_start(d->dialer, 0);
    pthread_mutex_lock(&d->lock);
    d->result = result;
    d->is_done = true;
    pthread_cond_signal(&d->changed);
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* nng error number, or NNG_ETIMEDOUT after connect_ms */
static int dial(nng_dialer dialer, uint32_t connect_ms) {
    dial_state d = {.dialer = dialer};
    pthread_condattr_t attributes;
    pthread_t thread;
    struct timespec until;

    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&d.lock, NULL);
    pthread_cond_init(&d.changed, &attributes);
    clock_gettime(CLOCK_MONOTONIC, &until);
    const uint64_t end = (uint64_t)until.tv_nsec + (uint64_t)connect_ms * 1000000u;
    until.tv_sec += (time_t)(end / 1000000000u);
    until.tv_nsec = (long)(end % 1000000000u);
    if (pthread_create(&thread, NULL, dial_main, &d) != 0) {
        d.result = NNG_ENOMEM;
        goto out;
    }
    pthread_mutex_lock(&d.lock);
    int waited = 0;
    while (!d.is_done && waited != ETIMEDOUT) waited = pthread_cond_timedwait(&d.changed, &d.lock, &until);
    const bool is_late = !d.is_done;
    pthread_mutex_unlock(&d.lock);
    if (is_late) nng_dialer_close(dialer); /* ends the start */
    pthread_join(thread, NULL);
    if (is_late) d.result = NNG_ETIMEDOUT;
out:
    pthread_cond_destroy(&d.changed);
    pthread_mutex_destroy(&d.lock);
    pthread_condattr_destroy(&attributes);
    return d.result;
}

static bool is_tls(const char *address) {
    return !strncmp(address, "tls+tcp", 7) || !strncmp(address, "wss", 3);
}

/* host of "scheme://host:port..." for the certificate's name */
static void address_host(char *out, size_t capacity, const char *address) {
    const char *host = strstr(address, "://");
    host = host ? host + 3 : address;
    size_t size = *host == '[' ? strcspn(host, "]") : strcspn(host, ":/");
    if (*host == '[') host++, size = size ? size - 1 : 0;
    snprintf(out, capacity, "%.*s", (int)size, host);
}

static ckks_status set_tls(nng_dialer dialer, const rpc_connection *c, const char *address, ckks_error *err) {
    nng_tls_config *config = NULL;
    char host[256];
    const char *ca = c->ca_file[0] ? c->ca_file : SYSTEM_CA_FILE;
    int nrc;
    if (access(ca, R_OK) != 0)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "ca",
                              "%s: %s (name the server's authority with --ca)", ca, strerror(errno));
    address_host(host, sizeof host, address);
    if ((nrc = nng_tls_config_alloc(&config, NNG_TLS_MODE_CLIENT)) == 0 &&
        (nrc = nng_tls_config_auth_mode(config, NNG_TLS_AUTH_MODE_REQUIRED)) == 0 &&
        (nrc = nng_tls_config_ca_file(config, ca)) == 0 &&
        (nrc = nng_tls_config_server_name(config, host)) == 0)
        nrc = nng_dialer_set_ptr(dialer, NNG_OPT_TLS_CONFIG, config);
    if (config) nng_tls_config_free(config); /* the dialer holds its own reference */
    if (nrc != 0) return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "ca", "%s: %s", ca, nng_strerror(nrc));
    return CKKS_OK;
}

/* of a dialer that could not be made (the address is at fault) or did not reach anybody */
static ckks_status dial_error(const char *address, int nrc, bool is_dialling, ckks_error *err) {
    if (nrc == NNG_EPEERAUTH || nrc == NNG_ECRYPTO)
        return ckks_error_set(err, CKKS_UNTRUSTED_SERVER, "certificate",
                              "%.200s: not accepted: its authority, its name or its date is wrong, or no TLS "
                              "is spoken there (%s)",
                              address, nng_strerror(nrc));
    if (nrc == NNG_ENOMEM)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "server", "%.300s: %s", address,
                              nng_strerror(nrc));
    if (nrc == NNG_EADDRINVAL && is_dialling)
        return ckks_error_set(err, CKKS_UNAVAILABLE, "server",
                              "%.300s: the host's name or its port is not known", address);
    if (nrc == NNG_EADDRINVAL || nrc == NNG_EINVAL || nrc == NNG_ENOTSUP)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "server",
                              "%.200s is no address: tcp://HOST:PORT, tls+tcp://HOST:PORT, ipc:///PATH, "
                              "ws://HOST:PORT/PATH or wss://HOST:PORT/PATH is needed",
                              address);
    return ckks_error_set(err, CKKS_UNAVAILABLE, "server", "%.300s: %s", address, nng_strerror(nrc));
}

/* on nng's threads */
static void pipe_changed(nng_pipe pipe, nng_pipe_ev event, void *context) {
    rpc_socket *s = context;
    (void)event;
    atomic_store(&s->pipe_id, pipe.id);
}

static void hang_up_if_idle(rpc_socket *s) {
    if (!s->is_open || atomic_load(&s->in_flight) || !atomic_exchange(&s->is_draining, false)) return;
    if (s->is_local) {
        rpc_pipe_close_idle(s);
        return;
    }
    const nng_pipe pipe = {.id = atomic_load(&s->pipe_id)};
    if (pipe.id) nng_pipe_close(pipe); /* one that is gone already is an error to ignore */
}

void rpc_socket_leave(rpc_connection *c, rpc_socket *s, bool is_draining) {
    if (is_draining) {
        atomic_store(&c->control.is_draining, true);
        atomic_store(&c->bulk.is_draining, true);
    }
    atomic_fetch_sub(&s->in_flight, 1);
    hang_up_if_idle(&c->control);
    hang_up_if_idle(&c->bulk);
}

static void *close_main(void *context) {
    const nng_socket socket = *(nng_socket *)context;
    free(context);
    nng_close(socket);
    return NULL;
}

/* nng_close may wait for ever for a peer that sends without end what nobody asked for: then a thread goes on
 * waiting, and this one goes on. */
static void close_in_time(nng_socket socket) {
    pthread_t closer;
    struct timespec limit;
    nng_socket *own = malloc(sizeof *own);
    nng_pipe_notify(socket, NNG_PIPE_EV_ADD_POST, NULL, NULL); /* what it would tell is about to go */
    if (own) *own = socket;
    if (!own || pthread_create(&closer, NULL, close_main, own) != 0) {
        free(own);
        nng_close(socket);
        return;
    }
    clock_gettime(CLOCK_REALTIME, &limit); /* ThreadSanitizer does not know a join by the other clock */
    limit.tv_sec += CLOSE_LIMIT_S;
    if (pthread_timedjoin_np(closer, NULL, &limit) != 0) pthread_detach(closer);
}

void rpc_socket_close(rpc_socket *s) {
    if (!s->is_open) return;
    s->is_open = false;
    if (s->is_local) {
        rpc_pipe_close_idle(s);
        pthread_mutex_destroy(&s->idle_lock);
    } else {
        close_in_time(s->socket);
    }
}

/* The first pipe tells whether anybody is there. */
static ckks_status open_local(rpc_socket *out, const rpc_connection *c, const char *address,
                              ckks_error *err) {
    rpc_pipe *first = NULL;
    const int nrc = rpc_pipe_dial(&first, address, c->connect_ms);
    if (nrc != 0) return dial_error(address, nrc, false, err);
    pthread_mutex_init(&out->idle_lock, NULL);
    out->idle = NULL, out->idle_count = 0;
    rpc_pipe_may_borrow(first, out->lends, out->lends_for_replies);
    rpc_pipe_give(out, first);
    out->is_open = true;
    return CKKS_OK;
}

ckks_status rpc_socket_open(rpc_socket *out, const rpc_connection *c, const char *address,
                            uint64_t receive_max, ckks_error *err) {
    nng_dialer dialer = NNG_DIALER_INITIALIZER;
    ckks_status rc;
    int nrc;
    out->socket = (nng_socket)NNG_SOCKET_INITIALIZER;
    out->is_open = false;
    snprintf(out->address, sizeof out->address, "%s", address);
    out->receive_max = receive_max;
    out->spin_ns = (uint64_t)c->spin_us * 1000;
    if ((out->is_local = rpc_local_is(address))) return open_local(out, c, address, err);
    if ((nrc = nng_req0_open(&out->socket)) != 0) return dial_error(address, nrc, false, err);
    /* before the first connection: a later limit would not hold for it */
    if ((nrc = nng_socket_set_size(out->socket, NNG_OPT_RECVMAXSZ, (size_t)receive_max)) != 0 ||
        (nrc = nng_socket_set_ms(out->socket, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE)) != 0 ||
        (nrc = nng_socket_set_ms(out->socket, NNG_OPT_RECONNMINT, 50)) != 0 ||
        (nrc = nng_socket_set_ms(out->socket, NNG_OPT_RECONNMAXT, 2000)) != 0 ||
        (nrc = nng_pipe_notify(out->socket, NNG_PIPE_EV_ADD_POST, pipe_changed, out)) != 0 ||
        (nrc = nng_dialer_create(&dialer, out->socket, address)) != 0) {
        rc = dial_error(address, nrc, false, err);
        goto out;
    }
    if (is_tls(address) && (rc = set_tls(dialer, c, address, err)) != CKKS_OK) goto out;
    rc = (nrc = dial(dialer, c->connect_ms)) ? dial_error(address, nrc, true, err) : CKKS_OK;
out:
    if (rc != CKKS_OK) {
        close_in_time(out->socket);
        return rc;
    }
    out->is_open = true;
    return CKKS_OK;
}

/* ---- connection ---- */

static ckks_status copy_text(char **out, const char *text, ckks_error *err) {
    if (!(*out = strdup(text ? text : "")))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory");
    return CKKS_OK;
}

/* They are printed, by programs that do not know where they come from. */
static void make_texts_printable(Ckksd__V1__ServerMetadataReply *s) {
    if (s->name) text_make_printable(s->name);
    if (s->version) text_make_printable(s->version);
    if (s->device) text_make_printable(s->device);
    for (size_t i = 0; i < s->n_models; i++) text_make_printable(s->models[i]);
    for (size_t i = 0; i < s->n_extensions; i++) text_make_printable(s->extensions[i]);
    for (size_t i = 0; i < s->n_endpoints; i++)
        if (s->endpoints[i]->address) text_make_printable(s->endpoints[i]->address);
}

static ckks_status ask_server(rpc_connection *c, ckks_error *err) {
    ckks_status rc;
    rpc_reply reply = {0};
    const rpc_request request = {.method = "Inference/ServerMetadata",
                                 .reply = &ckksd__v1__server_metadata_reply__descriptor,
                                 .timeout_ms = c->connect_ms};
    if ((rc = rpc_call(c, &request, &reply, err)) != CKKS_OK) goto out;
    c->server = (Ckksd__V1__ServerMetadataReply *)reply.payload;
    reply.payload = NULL;
    make_texts_printable(c->server);
    const Ckksd__V1__ServerMetadataReply *s = c->server;
    if (!s->has_wire_version_min || !s->has_wire_version_max || s->wire_version_min > FRAME_WIRE_VERSION ||
        s->wire_version_max < FRAME_WIRE_VERSION)
        rc = ckks_error_set(err, CKKS_UNSUPPORTED_VERSION, "wire version",
                            "the server speaks %u to %u, this client %u", s->wire_version_min,
                            s->wire_version_max, FRAME_WIRE_VERSION);
out:
    rpc_reply_fini(&reply);
    return rc;
}

/* The given address may be either socket's. */
static ckks_status sort_sockets(rpc_connection *c, ckks_error *err) {
    char address[RPC_ADDRESS_MAX];
    rpc_choose_endpoint(address, c->control.address, c->server, true);
    if (strcmp(address, c->control.address) != 0) {
        bool names_any = false;
        for (size_t i = 0; i < c->server->n_endpoints; i++) names_any |= c->server->endpoints[i]->bulk != 0;
        /* a server that names no bulk address at all serves everything on the one that we have */
        snprintf(c->bulk_address, sizeof c->bulk_address, "%s",
                 address[0] || names_any ? address : c->control.address);
        return CKKS_OK;
    }
    /* it was the bulk socket's: the limit on its messages is the control one's until it is opened again */
    snprintf(c->bulk_address, sizeof c->bulk_address, "%s", address);
    rpc_choose_endpoint(address, c->bulk_address, c->server, false);
    if (!address[0]) return CKKS_OK;
    rpc_socket_close(&c->control);
    return rpc_socket_open(&c->control, c, address, RPC_CONTROL_BYTES_MAX, err);
}

ckks_status rpc_connect(rpc_connection **out, const rpc_config *config, ckks_error *err) {
    ckks_status rc;
    *out = NULL;
    if (!config->address || !config->address[0] || strlen(config->address) >= RPC_ADDRESS_MAX)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "server", "no address, or one too long");
    if (config->token && strlen(config->token) > RPC_TOKEN_MAX)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "token", "longer than %u bytes", RPC_TOKEN_MAX);
    if ((rc = client_init(err)) != CKKS_OK) return rc;
    rpc_connection *c = calloc(1, sizeof *c);
    if (!c) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a connection");
    pthread_mutex_init(&c->lock, NULL);
    c->connect_ms = config->connect_ms ? config->connect_ms : RPC_CONNECT_MS;
    c->timeout_ms = config->timeout_ms ? config->timeout_ms : RPC_TIMEOUT_MS;
    c->attempt_ms = config->attempt_ms ? config->attempt_ms : RPC_ATTEMPT_MS;
    c->spin_us = config->spin_us;
    c->reply_bytes_max = config->reply_bytes_max ? config->reply_bytes_max : RPC_BULK_BYTES_MAX;
    if ((rc = copy_text(&c->token, config->token, err)) != CKKS_OK) goto out;
    if ((rc = copy_text(&c->ca_file, config->ca_file, err)) != CKKS_OK) goto out;
    if ((rc = rpc_socket_open(&c->control, c, config->address, RPC_CONTROL_BYTES_MAX, err)) != CKKS_OK)
        goto out;
    if ((rc = ask_server(c, err)) != CKKS_OK) goto out;
    if ((rc = sort_sockets(c, err)) != CKKS_OK) goto out;
    *out = c, c = NULL;
out:
    rpc_close(c);
    return rc;
}

void rpc_close(rpc_connection *connection) {
    if (!connection) return;
    rpc_socket_close(&connection->control);
    rpc_socket_close(&connection->bulk);
    if (connection->token) sodium_memzero(connection->token, strlen(connection->token));
    free(connection->token);
    free(connection->ca_file);
    message_free((ProtobufCMessage *)connection->server);
    pthread_mutex_destroy(&connection->lock);
    free(connection);
}

const Ckksd__V1__ServerMetadataReply *rpc_server(const rpc_connection *connection) {
    return connection->server;
}
const char *rpc_address(const rpc_connection *connection) {
    return connection->control.address;
}

static bool server_has(const Ckksd__V1__ServerMetadataReply *s, const char *extension) {
    for (size_t i = 0; s && i < s->n_extensions; i++)
        if (!strcmp(s->extensions[i], extension)) return true;
    return false;
}

ckks_status rpc_socket_for(rpc_socket **out, rpc_connection *c, bool is_bulk, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    *out = &c->control;
    if (!is_bulk) return CKKS_OK;
    /* another scheme or host than the one that we were given is never taken from a server */
    if (!c->bulk_address[0])
        return ckks_error_set(err, CKKS_UNAVAILABLE, "server",
                              "the server names no bulk address for %.*s: its [listen] bulk needs one",
                              (int)strcspn(c->control.address, ":"), c->control.address);
    pthread_mutex_lock(&c->lock);
    if (!c->bulk.is_open) {
        c->bulk.lends = server_has(c->server, LOCAL_MEMORY_EXTENSION);
        c->bulk.lends_for_replies = server_has(c->server, LOCAL_MEMORY_REPLIES_EXTENSION);
    }
    if (!c->bulk.is_open) rc = rpc_socket_open(&c->bulk, c, c->bulk_address, c->reply_bytes_max, err);
    pthread_mutex_unlock(&c->lock);
    *out = &c->bulk;
    return rc;
}
