#include "tests/support/daemon_fixture.h"

#include "proto/token.h"
#include "tests/support/fixtures.h"
#include "tests/support/temporary.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <nng/protocol/reqrep0/req.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define START_TIMEOUT_MS 120000
#define CALL_TIMEOUT_MS  60000

static const char *const socket_names[] = {"control", "bulk", "admin"};

/* ---- the process ---- */

static void add_token(daemon_fixture *d, char *text, const char *id, const char *tenant, uint32_t scopes) {
    char path[128];
    token_entry entry;
    snprintf(path, sizeof path, "%s/tokens", d->folder);
    ckks_status rc = token_generate(text, &entry, id, tenant, scopes, NULL);
    if (rc == CKKS_OK) rc = token_file_add(path, &entry, NULL);
    CKKS_ASSERT(rc == CKKS_OK);
}

void daemon_prepare(daemon_fixture *d) {
    char path[128];
    memset(d, 0, sizeof *d);
    d->notify = -1;
    temporary_folder_in_memory(d->folder, sizeof d->folder, "test-ckksd");
    snprintf(path, sizeof path, "%s/models", d->folder);
    (void)mkdir(path, 0755);
    snprintf(path, sizeof path, "%s/data", d->folder);
    (void)mkdir(path, 0700);
    add_token(d, d->alice, "alice", "acme", TOKEN_SCOPE_INFER | TOKEN_SCOPE_KEY_WRITE);
    add_token(d, d->bob, "bob", "bolt", TOKEN_SCOPE_INFER | TOKEN_SCOPE_KEY_WRITE);
    add_token(d, d->reader, "reader", "acme", TOKEN_SCOPE_INFER);
}

static void write_config(const daemon_fixture *d, const char *extra) {
    char path[128];
    snprintf(path, sizeof path, "%s/ckksd.conf", d->folder);
    FILE *file = fopen(path, "we");
    CKKS_ASSERT(file);
    fprintf(
        file,
        "[server]\nmodels = %s/models\ndata = %s/data\ntokens = %s/tokens\nallow_insecure = yes\n"
        "[listen]\ncontrol = ipc://%s/control.sock\ncontrol = tcp://127.0.0.1:0\nbulk = ipc://%s/bulk.sock\n"
        "bulk = tcp://127.0.0.1:0\n[admin]\nsocket = ipc://%s/admin.sock\n[ops]\nlisten = 127.0.0.1:0\n"
        "[device]\nkind = %s\nthreads = 1\n[log]\nlevel = debug\n%s",
        d->folder, d->folder, d->folder, d->folder, d->folder, d->folder,
        fixture_device_kind() == DEVICE_CUDA ? "cuda" : "cpu", extra ? extra : "");
    /* as on a CPU, unless a test says otherwise: tests count on what one slot does */
    if (!extra || !strstr(extra, "[slots]")) fprintf(file, "[slots]\ncount = 1\n");
    fclose(file);
}

static void open_notify(daemon_fixture *d) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/notify", d->folder);
    (void)unlink(address.sun_path);
    if (d->notify >= 0) close(d->notify);
    d->notify = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    CKKS_ASSERT(d->notify >= 0);
    const int rc = bind(d->notify, (struct sockaddr *)&address, sizeof address);
    CKKS_ASSERT(rc == 0);
    d->heard[0] = 0;
}

static void run_daemon(const daemon_fixture *d, const char *environment, const char *environment2) {
    char program[256], config[128], notify[128], log[128];
    const char *build = getenv("B");
    snprintf(program, sizeof program, "%s/tests/ckksd-fault", build ? build : "build/gcc");
    snprintf(config, sizeof config, "%s/ckksd.conf", d->folder);
    snprintf(notify, sizeof notify, "%s/notify", d->folder);
    snprintf(log, sizeof log, "%s/log", d->folder);
    const int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (fd >= 0) dup2(fd, STDERR_FILENO);
    setenv("NOTIFY_SOCKET", notify, 1);
    if (environment) putenv((char *)(uintptr_t)environment);
    if (environment2) putenv((char *)(uintptr_t)environment2);
    execl(program, "ckksd", "--config", config, (char *)NULL);
    _exit(127);
}

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static bool has_ended(const daemon_fixture *d) {
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)d->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == d->pid;
}

void daemon_start(daemon_fixture *d, const char *extra, const char *environment, const char *environment2) {
    write_config(d, extra);
    open_notify(d);
    d->pid = fork();
    CKKS_ASSERT(d->pid >= 0);
    if (d->pid == 0) run_daemon(d, environment, environment2);
    const int64_t until = now_ms() + START_TIMEOUT_MS;
    bool is_ready = false, is_over = false;
    while (!is_ready && !is_over) {
        is_over = has_ended(d) || now_ms() > until; /* and what it said before is heard */
        is_ready = daemon_hear(d, "READY=1", 200);
    }
    if (!is_ready) {
        char command[128];
        snprintf(command, sizeof command, "tail -20 %s/log >&2", d->folder);
        fprintf(stderr, "the daemon does not get ready\n");
        if (system(command) != 0) fprintf(stderr, "no log\n");
        abort();
    }
}

/* What has come already; false when there is no more of it. The same thing is written down once: a watchdog
 * that is fed each millisecond would fill all the room before a slow daemon is ready. */
static bool take_one(daemon_fixture *d) {
    char said[512];
    const size_t used = strlen(d->heard);
    const ssize_t n = recv(d->notify, said, sizeof said - 2, MSG_DONTWAIT);
    if (n <= 0) return false;
    said[n] = '\n', said[n + 1] = 0;
    for (const char *at = d->heard; (at = strstr(at, said)) != NULL; at++)
        if (at == d->heard || at[-1] == '\n') return true;
    CKKS_ASSERT(used + (size_t)n + 2 <= sizeof d->heard);
    memcpy(d->heard + used, said, (size_t)n + 2);
    return true;
}

void daemon_forget(daemon_fixture *d) {
    while (take_one(d)) d->heard[0] = 0;
    d->heard[0] = 0;
}

bool daemon_hear(daemon_fixture *d, const char *text, int timeout_ms) {
    const int64_t until = now_ms() + timeout_ms;
    while (!strstr(d->heard, text)) {
        struct pollfd wait = {.fd = d->notify, .events = POLLIN};
        const int64_t left = until - now_ms();
        if (take_one(d)) continue;
        if (left <= 0 || poll(&wait, 1, (int)left) < 0) return false;
    }
    return true;
}

void daemon_signal(const daemon_fixture *d, int number) {
    if (d->pid > 0) kill(d->pid, number);
}

int daemon_wait(daemon_fixture *d) {
    int status = 0;
    const int64_t until = now_ms() + START_TIMEOUT_MS;
    while (waitpid(d->pid, &status, WNOHANG) == 0) {
        if (now_ms() > until) {
            kill(d->pid, SIGKILL);
            waitpid(d->pid, &status, 0);
            break;
        }
        usleep(2000);
    }
    d->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int daemon_stop(daemon_fixture *d) {
    daemon_signal(d, SIGTERM);
    return daemon_wait(d);
}

void daemon_clean(daemon_fixture *d) {
    char command[128];
    if (d->pid > 0) {
        kill(d->pid, SIGKILL);
        waitpid(d->pid, NULL, 0);
    }
    if (d->notify >= 0) close(d->notify);
    if (d->folder[0] && (daemon_logged(d, "Sanitizer:") || daemon_logged(d, "runtime error:"))) {
        snprintf(command, sizeof command, "cat %s/log >&2", d->folder);
        if (system(command) != 0) fprintf(stderr, "no log\n");
        abort(); /* a sanitizer spoke in the daemon */
    }
    snprintf(command, sizeof command, "rm -rf %s", d->folder);
    if (d->folder[0] && system(command) != 0) fprintf(stderr, "%s stays\n", d->folder);
    memset(d, 0, sizeof *d);
    d->notify = -1;
}

/* ---- the client ---- */

nng_socket daemon_dial(const daemon_fixture *d, int which) {
    char url[128];
    nng_socket s;
    snprintf(url, sizeof url, "ipc://%s/%s.sock", d->folder, socket_names[which]);
    int rc = nng_req0_open(&s);
    if (rc == 0) rc = nng_socket_set_ms(s, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE);
    if (rc == 0) rc = nng_socket_set_ms(s, NNG_OPT_RECVTIMEO, CALL_TIMEOUT_MS);
    if (rc == 0) rc = nng_socket_set_ms(s, NNG_OPT_SENDTIMEO, CALL_TIMEOUT_MS);
    if (rc == 0) rc = nng_dial(s, url, NULL, 0);
    if (rc != 0) fprintf(stderr, "dial %s: %s\n", url, nng_strerror(rc));
    CKKS_ASSERT(rc == 0);
    return s;
}

nng_msg *daemon_frame(const daemon_call *c) {
    Ckksd__V1__RequestHeader header = CKKSD__V1__REQUEST_HEADER__INIT;
    Ckksd__V1__Segment items[4], *list[4];
    frame_segment segments[4];
    nng_msg *message = NULL;
    const size_t payload_bytes = c->input ? protobuf_c_message_get_packed_size(c->input) : 0;
    uint8_t *payload = malloc(payload_bytes + 1);
    CKKS_ASSERT(payload);
    if (c->input) protobuf_c_message_pack(c->input, payload);
    header.method = (char *)(uintptr_t)c->method, header.token = (char *)(uintptr_t)c->token;
    header.has_request_id = c->request_id != NULL;
    header.request_id = (ProtobufCBinaryData){16, (uint8_t *)(uintptr_t)c->request_id};
    header.has_timeout_ms = c->timeout_ms != 0, header.timeout_ms = c->timeout_ms;
    header.has_payload = true;
    header.payload = (ProtobufCBinaryData){payload_bytes, payload};
    for (uint32_t i = 0; i < c->segment_count; i++)
        segments[i] = (frame_segment){.kind = c->segment_kinds[i], .length = c->segment_bytes[i]};
    (void)frame_layout(0, segments, c->segment_count);
    for (uint32_t i = 0; i < c->segment_count; i++) {
        ckksd__v1__segment__init(&items[i]);
        items[i].has_kind = items[i].has_offset = items[i].has_length = true;
        items[i].kind = segments[i].kind, items[i].offset = segments[i].offset,
        items[i].length = segments[i].length;
        list[i] = &items[i];
    }
    header.n_segments = c->segment_count, header.segments = list;
    const size_t header_bytes = ckksd__v1__request_header__get_packed_size(&header);
    const uint64_t total = frame_layout((uint32_t)header_bytes, segments, c->segment_count);
    const int rc = nng_msg_alloc(&message, (size_t)total);
    CKKS_ASSERT(rc == 0 && total > 0);
    uint8_t *body = nng_msg_body(message);
    memset(body, 0, (size_t)total);
    ckksd__v1__request_header__pack(&header, body + FRAME_PREFIX_BYTES);
    uint8_t *area = frame_write_prefix(body, (uint32_t)header_bytes);
    for (uint32_t i = 0; i < c->segment_count; i++)
        memcpy(area + segments[i].offset, c->segments[i], c->segment_bytes[i]);
    free(payload);
    return message;
}

void daemon_send(nng_socket s, nng_msg *message) {
    const int rc = nng_sendmsg(s, message, 0);
    if (rc != 0) nng_msg_free(message);
}

bool daemon_receive(nng_socket s, daemon_reply *out, const ProtobufCMessageDescriptor *output) {
    memset(out, 0, sizeof *out);
    if (nng_recvmsg(s, &out->message, 0) != 0) return false;
    ckks_status rc = frame_parse(&out->frame, nng_msg_body(out->message), nng_msg_len(out->message), NULL);
    CKKS_ASSERT(rc == CKKS_OK);
    rc = message_unpack((ProtobufCMessage **)&out->header, &ckksd__v1__reply_header__descriptor,
                        out->frame.header, out->frame.header_bytes, 1u << 20, "reply", NULL);
    CKKS_ASSERT(rc == CKKS_OK && out->header->status);
    if (out->header->status->code == 0 && output) {
        rc = message_unpack(&out->payload, output, out->header->payload.data, out->header->payload.len,
                            4u << 20, "payload", NULL);
        CKKS_ASSERT(rc == CKKS_OK);
    }
    return true;
}

void daemon_reply_fini(daemon_reply *r) {
    message_free(r->payload);
    message_free((ProtobufCMessage *)r->header);
    if (r->message) nng_msg_free(r->message);
    memset(r, 0, sizeof *r);
}

int daemon_do(const daemon_fixture *d, const daemon_call *c, daemon_reply *out) {
    nng_socket s = daemon_dial(d, c->socket);
    daemon_send(s, daemon_frame(c));
    const bool is_there = daemon_receive(s, out, c->output);
    nng_close(s);
    return is_there ? (int)out->header->status->code : -1;
}

/* ---- the rest ---- */

static size_t read_log(const daemon_fixture *d, char *text, size_t size) {
    char path[128];
    snprintf(path, sizeof path, "%s/log", d->folder);
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    const size_t n = fread(text, 1, size - 1, file);
    text[n] = 0;
    fclose(file);
    return n;
}

bool daemon_logged(const daemon_fixture *d, const char *text) {
    char *log = calloc(1, 1 << 22);
    CKKS_ASSERT(log);
    (void)read_log(d, log, 1 << 22);
    const bool found = strstr(log, text) != NULL;
    free(log);
    return found;
}

uint16_t daemon_ops_port(const daemon_fixture *d) {
    char *log = calloc(1, 1 << 22);
    CKKS_ASSERT(log);
    (void)read_log(d, log, 1 << 22);
    uint16_t port = 0;
    for (const char *at = log; (at = strstr(at, "socket=ops")) != NULL; at++) { /* the last start counts */
        const char *number = strstr(at, "port=");
        if (number) port = (uint16_t)strtoul(number + 5, NULL, 10);
    }
    free(log);
    return port;
}

int daemon_http(const daemon_fixture *d, const char *path, char *text, size_t size) {
    char request[128];
    size_t used = 0;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(daemon_ops_port(d))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CKKS_ASSERT(fd >= 0);
    text[0] = 0;
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) {
        const int n = snprintf(request, sizeof request, "GET %s HTTP/1.0\r\n\r\n", path);
        if (send(fd, request, (size_t)n, MSG_NOSIGNAL) == n)
            for (ssize_t got; used + 1 < size && (got = recv(fd, text + used, size - 1 - used, 0)) > 0;)
                used += (size_t)got;
        text[used] = 0;
    }
    close(fd);
    return strncmp(text, "HTTP/1.", 7) == 0 ? (int)strtol(text + 9, NULL, 10) : -1;
}
