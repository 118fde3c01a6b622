/* What a running daemon answers, and how it refuses each fault by name. */
#include "client/lib/rpc_internal.h"
#include "tests/support/daemon_words.h"

#include <arpa/inet.h>
#include <nng/protocol/reqrep0/req.h>
#include <nng/supplemental/tls/tls.h>
#include <sys/socket.h>
#include <sys/un.h>

static void an_encrypted_request_gets_the_right_answer(void **state) {
    (void)state;
    char page[65536];
    start_with_keys(NULL, NULL, NULL);
    assert_int_equal(tiny_client_infer(&alice, x, 0), 0);
    assert_int_equal(tiny_client_infer(&alice, (double[]){-2, 0.25, 3, 1}, 0), 0);
    assert_int_equal(daemon_http(&d, "/livez", page, sizeof page), 200);
    assert_int_equal(daemon_http(&d, "/readyz", page, sizeof page), 200);
    metric_wait("ckksd_inferences_total{model=\"tiny\",version=\"1\",code=\"OK\"}", 2);
    metric_wait("ckksd_replay_seconds_count{model=\"tiny\",version=\"1\"}", 2);
    assert_int_equal(daemon_http(&d, "/nothing", page, sizeof page), 404);
    assert_int_equal(daemon_stop(&d), 0);
}

static void tokens_and_secrets_never_reach_the_log(void **state) {
    (void)state;
    start_with_keys(NULL, NULL, NULL);
    assert_int_equal(tiny_client_infer(&alice, x, 0), 0);
    assert_int_equal(control_code("Keys/KeyList", "alice.00", NULL), RPC_UNAUTHENTICATED);
    assert_true(daemon_logged(&d, "method=Inference/ModelInfer"));
    assert_false(daemon_logged(&d, d.alice + 6));
    assert_false(daemon_logged(&d, "alice.00"));
}

#ifdef __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HAS_SANITIZER
#endif
#endif

/* How often is `text` in what the daemon may write to, freed memory included? Its stacks and mapped files do
 * not count. -1 where this user may not look. */
static int count_in_memory(const char *text) {
    static uint8_t piece[1 << 20];
    const size_t length = strlen(text);
    char path[64], line[512];
    int found = 0;
    snprintf(path, sizeof path, "/proc/%d/mem", (int)d.pid);
    const int memory = open(path, O_RDONLY | O_CLOEXEC);
    snprintf(path, sizeof path, "/proc/%d/maps", (int)d.pid);
    FILE *maps = fopen(path, "re");
    while (maps && memory >= 0 && fgets(line, sizeof line, maps)) {
        char *next;
        const unsigned long begin = strtoul(line, &next, 16), end = strtoul(next + 1, &next, 16);
        const char *name = strpbrk(line, "[/");
        if (strncmp(next, " rw-p ", 6) != 0 || (name && strncmp(name, "[heap]", 6) != 0)) continue;
        for (unsigned long at = begin; at < end; at += sizeof piece - length) {
            const size_t wanted = end - at < sizeof piece ? end - at : sizeof piece;
            const ssize_t got = pread(memory, piece, wanted, (off_t)at);
            for (const uint8_t *from = piece, *hit; got > 0; from = hit + 1, found++)
                if (!(hit = memmem(from, (size_t)(piece + got - from), text, length))) break;
        }
    }
    const bool may_look = maps && memory >= 0;
    if (maps) fclose(maps);
    if (memory >= 0) close(memory);
    return may_look ? found : -1;
}

static void a_token_is_not_kept_in_memory(void **state) {
    (void)state;
    int found = 0;
    char wrong[sizeof d.alice];
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(HAS_SANITIZER)
    print_message("skipped: a sanitizer's shadow memory takes too long to look through\n");
    skip();
#endif
    start_with_keys(NULL, NULL, NULL);
    if (count_in_memory(d.folder) < 0) {
        print_message("skipped: a process of this user's whose memory it may read\n");
        skip();
    }
    assert_true(count_in_memory(d.folder) > 0); /* of the configuration: the search finds what is there */
    snprintf(wrong, sizeof wrong, "%s", d.alice);
    memset(wrong + strlen(wrong) - 40, 'a', 40);
    assert_int_equal(tiny_client_infer(&alice, x, 0), 0);
    assert_int_equal(control_code("Keys/KeyList", d.alice, NULL), 0);
    assert_int_equal(control_code("Keys/KeyList", wrong, NULL), RPC_UNAUTHENTICATED);
    assert_int_equal(control_code("Keys/NoSuch", wrong, NULL), RPC_UNIMPLEMENTED);
    const uint64_t end_ns = rpc_now_ns() + EVENT_MS * UINT64_C(1000000);
    do found = count_in_memory(d.alice + 8) + count_in_memory(wrong + 8);
    while (found && rpc_now_ns() < end_ns); /* a request ends a moment behind its answer */
    assert_int_equal(found, 0);
}

/* One address in a client's configuration is enough, whichever it is. */
static void the_bulk_address_leads_to_the_control_one_and_back(void **state) {
    (void)state;
    start_with_keys(NULL, NULL, NULL);
    static const char *const names[] = {"control", "bulk"};
    for (int i = 0; i < 2; i++) {
        char address[128];
        ckks_error err = {0};
        rpc_connection *c = NULL;
        rpc_reply reply = {0};
        Ckksd__V1__ModelRequest model = CKKSD__V1__MODEL_REQUEST__INIT;
        model.name = "tiny";
        snprintf(address, sizeof address, "ipc://%s/%s.sock", d.folder, names[i]);
        const rpc_config config = {.address = address, .token = d.alice};
        if (rpc_connect(&c, &config, &err) != CKKS_OK) fail_msg("%s: %s", names[i], err.message);
        rpc_request request = {.method = "Inference/ModelMetadata",
                               .payload = &model.base,
                               .reply = &ckksd__v1__model_metadata_reply__descriptor};
        assert_int_equal(rpc_call(c, &request, &reply, &err), CKKS_OK);
        rpc_reply_fini(&reply);
        request.is_bulk = true; /* where it is not served */
        assert_int_equal(rpc_call(c, &request, &reply, &err), CKKS_PERMISSION_DENIED);
        assert_non_null(strstr(err.message, "is not served on this socket: use the control one"));
        rpc_reply_fini(&reply);
        rpc_close(c);
    }
}

static void anyone_may_ask_for_health_and_server_metadata(void **state) {
    (void)state;
    daemon_reply r;
    daemon_start(&d, NULL, NULL, NULL);
    const daemon_call c = {.socket = DAEMON_CONTROL,
                           .method = "Inference/ServerMetadata",
                           .output = &ckksd__v1__server_metadata_reply__descriptor};
    assert_int_equal(daemon_do(&d, &c, &r), 0);
    const Ckksd__V1__ServerMetadataReply *m = (const Ckksd__V1__ServerMetadataReply *)r.payload;
    assert_int_equal(m->n_endpoints, 4);
    assert_null(strstr(m->endpoints[1]->address, ":0")); /* the port that was bound */
    assert_int_equal(m->n_models, 1);
    assert_string_equal(m->models[0], "tiny/1");
    daemon_reply_fini(&r);
    Ckksd__V1__HealthCheckRequest health = CKKSD__V1__HEALTH_CHECK_REQUEST__INIT;
    assert_int_equal(control_code("Health/Check", NULL, &health.base), 0);
    health.service = "tiny";
    assert_int_equal(control_code("Health/Check", NULL, &health.base), 0);
    health.service = "tiny/1";
    assert_int_equal(control_code("Health/Check", NULL, &health.base), 0);
    health.service = "tiny/2";
    assert_int_equal(control_code("Health/Check", NULL, &health.base), RPC_NOT_FOUND);
    health.service = "other";
    assert_int_equal(control_code("Health/Check", NULL, &health.base), RPC_NOT_FOUND);
}

/* ---- refusing ---- */

typedef struct spoiled {
    const char *what;
    void (*spoil)(tiny_client *c, daemon_call *call);
    int code;
    const char *reason, *field;
} spoiled;

static Ckksd__V1__Signature *sig(tiny_client *c) {
    return &c->signature.message;
}
static void no_token(tiny_client *c, daemon_call *call) {
    (void)c;
    call->token = NULL;
}
static void wrong_token(tiny_client *c, daemon_call *call) {
    (void)c;
    call->token = "alice.0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
}
static void unknown_method(tiny_client *c, daemon_call *call) {
    (void)c;
    call->method = "Inference/ModelGuess";
}
static void control_method(tiny_client *c, daemon_call *call) {
    (void)c;
    call->method = "Inference/ModelMetadata";
}
static void admin_method(tiny_client *c, daemon_call *call) {
    (void)c;
    call->method = "Admin/Reload";
}
static void unknown_model(tiny_client *c, daemon_call *call) {
    (void)call;
    c->request.model = "other";
}
static void no_model(tiny_client *c, daemon_call *call) {
    (void)call;
    c->request.model = NULL;
}
static void unknown_version(tiny_client *c, daemon_call *call) {
    (void)call;
    c->request.version = "9";
}
static void pinned_digest(tiny_client *c, daemon_call *call) {
    (void)call;
    c->request.has_model_digest = true;
    c->request.model_digest = (ProtobufCBinaryData){32, c->keys.id};
}
static void unknown_keys(tiny_client *c, daemon_call *call) {
    static uint8_t id[32] = {9};
    (void)call;
    c->request.key_set.data = id;
}
static void short_key_id(tiny_client *c, daemon_call *call) {
    (void)call;
    c->request.key_set.len = 31;
}
static void other_lineage(tiny_client *c, daemon_call *call) {
    static uint8_t lineage[16] = {1};
    (void)call;
    c->request.lineage.data = lineage;
}
static void no_lineage(tiny_client *c, daemon_call *call) {
    (void)call;
    c->request.has_lineage = false;
}
static void other_parameters(tiny_client *c, daemon_call *call) {
    (void)call;
    sig(c)->parameter_id.data = c->keys.id;
}
static void wrong_kind(tiny_client *c, daemon_call *call) {
    (void)call;
    sig(c)->kind = 2;
}
static void wrong_components(tiny_client *c, daemon_call *call) {
    (void)call;
    sig(c)->component_count = 3;
}
static void wrong_batch(tiny_client *c, daemon_call *call) {
    (void)call;
    sig(c)->batch_count = 2;
}
static void wrong_limbs(tiny_client *c, daemon_call *call) {
    (void)call;
    sig(c)->limb_count = 2;
}
static void scale_off_by_one_ulp(tiny_client *c, daemon_call *call) {
    (void)call;
    sig(c)->scale_bits++;
}
static void wrong_domain(tiny_client *c, daemon_call *call) {
    (void)call;
    sig(c)->domain = 2;
}
static void wrong_basis(tiny_client *c, daemon_call *call) {
    (void)call;
    sig(c)->basis = 2;
}
static void no_signature(tiny_client *c, daemon_call *call) {
    (void)call;
    c->request.n_inputs = 0;
}
static void short_segment(tiny_client *c, daemon_call *call) {
    (void)c;
    call->segment_bytes[0] -= 16;
}
static void long_segment(tiny_client *c, daemon_call *call) {
    static uint8_t longer[1 << 20];
    CKKS_ASSERT(c->packed_bytes + 16 <= sizeof longer);
    memcpy(longer, c->packed, c->packed_bytes);
    call->segments[0] = longer, call->segment_bytes[0] += 16;
}
static void no_segment(tiny_client *c, daemon_call *call) {
    (void)c;
    call->segment_count = 0;
}
static void two_segments(tiny_client *c, daemon_call *call) {
    call->segment_count = 2, call->segment_kinds[1] = 1;
    call->segments[1] = c->packed, call->segment_bytes[1] = c->packed_bytes;
}
static void wrong_segment_kind(tiny_client *c, daemon_call *call) {
    (void)c;
    call->segment_kinds[0] = CKKSD__V1__SEGMENT_KIND__SEGMENT_KEY_PART;
}
static void short_seed(tiny_client *c, daemon_call *call) {
    (void)call;
    c->seeds[0].len = 31;
}
static void residue_out_of_range(tiny_client *c, daemon_call *call) {
    (void)call;
    memset(c->packed, 0xff, 64);
}
static void padding_not_zero(tiny_client *c, daemon_call *call) {
    /* limb 0 has 45 bits x 1024, a multiple of 16 bytes: no padding; so spoil the last residue's top bits */
    (void)call;
    memset(c->packed + c->packed_bytes - 16, 0xff, 16);
}

static void each_fault_is_refused_by_name_and_a_good_request_still_works(void **state) {
    (void)state;
    static const spoiled cases[] = {
        {"no token", no_token, RPC_UNAUTHENTICATED, "AUTH", "token"},
        {"wrong token", wrong_token, RPC_UNAUTHENTICATED, "AUTH", "token"},
        {"unknown method", unknown_method, RPC_UNIMPLEMENTED, "", "method"},
        {"control method on the bulk socket", control_method, RPC_PERMISSION_DENIED, "AUTH", "method"},
        {"admin method on the bulk socket", admin_method, RPC_PERMISSION_DENIED, "AUTH", "method"},
        {"unknown model", unknown_model, RPC_NOT_FOUND, "", "model"},
        {"no model", no_model, RPC_INVALID_ARGUMENT, "MALFORMED", "model"},
        {"unknown version", unknown_version, RPC_NOT_FOUND, "", "model"},
        {"pinned digest", pinned_digest, RPC_FAILED_PRECONDITION, "CONFIG_RETIRED", "model_digest"},
        {"unknown keys", unknown_keys, RPC_NOT_FOUND, "KEY_UNKNOWN", "key_set"},
        {"short key id", short_key_id, RPC_INVALID_ARGUMENT, "MALFORMED", "key_set"},
        {"other lineage", other_lineage, RPC_FAILED_PRECONDITION, "LINEAGE_MISMATCH", "lineage"},
        {"no lineage", no_lineage, RPC_INVALID_ARGUMENT, "MALFORMED", "lineage"},
        {"other parameters", other_parameters, RPC_FAILED_PRECONDITION, "PARAMS_MISMATCH", NULL},
        {"wrong kind", wrong_kind, RPC_INVALID_ARGUMENT, NULL, NULL},
        {"wrong components", wrong_components, RPC_INVALID_ARGUMENT, NULL, NULL},
        {"wrong batch", wrong_batch, RPC_INVALID_ARGUMENT, NULL, NULL},
        {"wrong limbs", wrong_limbs, RPC_INVALID_ARGUMENT, "SIGNATURE_MISMATCH", NULL},
        {"scale off by one ulp", scale_off_by_one_ulp, RPC_INVALID_ARGUMENT, "SIGNATURE_MISMATCH", NULL},
        {"wrong domain", wrong_domain, RPC_INVALID_ARGUMENT, NULL, NULL},
        {"wrong basis", wrong_basis, RPC_INVALID_ARGUMENT, NULL, NULL},
        {"no signature", no_signature, RPC_INVALID_ARGUMENT, NULL, NULL},
        {"short segment", short_segment, RPC_INVALID_ARGUMENT, NULL, NULL},
        {"long segment", long_segment, RPC_INVALID_ARGUMENT, NULL, NULL},
        {"no segment", no_segment, RPC_INVALID_ARGUMENT, NULL, NULL},
        {"two segments", two_segments, RPC_INVALID_ARGUMENT, NULL, NULL},
        {"wrong segment kind", wrong_segment_kind, RPC_INVALID_ARGUMENT, NULL, NULL},
        {"short seed", short_seed, RPC_INVALID_ARGUMENT, "MALFORMED", NULL},
        {"residue out of range", residue_out_of_range, RPC_INVALID_ARGUMENT, "RESIDUE_RANGE", NULL},
        {"last residue out of range", padding_not_zero, RPC_INVALID_ARGUMENT, "RESIDUE_RANGE", NULL},
    };
    start_with_keys(NULL, NULL, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        daemon_reply r;
        tiny_client_encrypt(&alice, x);
        daemon_call call = tiny_client_call(&alice);
        call.output = NULL;
        cases[i].spoil(&alice, &call);
        const int code = daemon_do(&d, &call, &r);
        if (code < 0) fail_msg("%s: no reply", cases[i].what);
        const Ckksd__V1__Status *s = r.header->status;
        if (code != cases[i].code || (cases[i].reason && strcmp(s->reason, cases[i].reason) != 0) ||
            (cases[i].field && (!s->field || strcmp(s->field, cases[i].field) != 0)))
            fail_msg("%s: code %d reason %s field %s: %s", cases[i].what, code, s->reason,
                     s->field ? s->field : "-", s->message);
        daemon_reply_fini(&r);
        assert_int_equal(tiny_client_infer(&alice, x, 0), 0);
    }
    assert_int_equal(daemon_stop(&d), 0);
}

static void a_token_without_the_scope_is_refused(void **state) {
    (void)state;
    daemon_start(&d, NULL, NULL, NULL);
    assert_int_equal(control_code("Keys/KeyList", d.reader, NULL), RPC_PERMISSION_DENIED);
    assert_int_equal(control_code("Keys/KeyList", d.alice, NULL), 0);
}

static void another_tenants_key_set_looks_exactly_like_none(void **state) {
    (void)state;
    daemon_reply own, other;
    static uint8_t nothing[32] = {1};
    start_with_keys(NULL, NULL, NULL);
    tiny_client_encrypt(&bob, x);
    bob.request.key_set.data = alice.keys.id;
    daemon_call call = tiny_client_call(&bob);
    call.output = NULL;
    assert_int_equal(daemon_do(&d, &call, &other), RPC_NOT_FOUND);
    bob.request.key_set.data = nothing;
    call = tiny_client_call(&bob);
    call.output = NULL;
    assert_int_equal(daemon_do(&d, &call, &own), RPC_NOT_FOUND);
    assert_string_equal(own.header->status->reason, "KEY_UNKNOWN");
    assert_string_equal(own.header->status->message, other.header->status->message);
    assert_string_equal(own.header->status->reason, other.header->status->reason);
    daemon_reply_fini(&own);
    daemon_reply_fini(&other);
    /* deleting it is the same as deleting nothing */
    Ckksd__V1__KeyDeleteRequest gone = CKKSD__V1__KEY_DELETE_REQUEST__INIT;
    gone.has_key_set = true, gone.key_set = (ProtobufCBinaryData){32, alice.keys.id};
    assert_int_equal(control_code("Keys/KeyDelete", d.bob, &gone.base), RPC_NOT_FOUND);
    assert_int_equal(tiny_client_infer(&alice, x, 0), 0);
    assert_int_equal(control_code("Keys/KeyDelete", d.alice, &gone.base), 0);
    assert_int_equal(tiny_client_infer(&alice, x, 0), RPC_NOT_FOUND);
}

static int connect_ipc(const char *name) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    uint8_t hello[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0}, answer[8];
    struct timeval limit = {.tv_sec = 60};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/%s.sock", d.folder, name);
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(send(fd, hello, 8, MSG_NOSIGNAL), 8);
    assert_int_equal(recv(fd, answer, 8, MSG_WAITALL), 8);
    return fd;
}

static void a_hostile_length_ends_the_connection_and_nothing_else(void **state) {
    (void)state;
    static const char *const sockets[] = {"control", "bulk", "admin"};
    start_with_keys(NULL, NULL, NULL);
    for (size_t i = 0; i < 3; i++) {
        const uint8_t length[9] = {1, 0x0f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
        uint8_t byte;
        const int fd = connect_ipc(sockets[i]);
        assert_int_equal(send(fd, length, 9, MSG_NOSIGNAL), 9);
        assert_true(recv(fd, &byte, 1, 0) <= 0);
        close(fd);
    }
    assert_int_equal(tiny_client_infer(&alice, x, 0), 0);
}

/* the first endpoint whose address begins so; false if there is none */
static bool endpoint(const char *prefix, char url[256]) {
    daemon_reply r;
    bool found = false;
    const daemon_call c = {.socket = DAEMON_CONTROL,
                           .method = "Inference/ServerMetadata",
                           .output = &ckksd__v1__server_metadata_reply__descriptor};
    assert_int_equal(daemon_do(&d, &c, &r), 0);
    const Ckksd__V1__ServerMetadataReply *m = (const Ckksd__V1__ServerMetadataReply *)r.payload;
    for (size_t i = 0; i < m->n_endpoints && !found; i++)
        if ((found = strncmp(m->endpoints[i]->address, prefix, strlen(prefix)) == 0))
            snprintf(url, 256, "%s", m->endpoints[i]->address);
    daemon_reply_fini(&r);
    return found;
}

static int connect_port(const char *url) {
    struct timeval limit = {.tv_sec = 60};
    struct sockaddr_in address = {.sin_family = AF_INET};
    address.sin_port = htons((uint16_t)strtoul(strrchr(url, ':') + 1, NULL, 10));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

static void a_hostile_length_over_tcp_does_no_harm_either(void **state) {
    (void)state;
    char url[256];
    uint8_t answer[8];
    const uint8_t hello[16] = {0, 'S', 'P', 0, 0, 0x30, 0, 0, 0x0f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    start_with_keys(NULL, NULL, NULL);
    assert_true(endpoint("tcp://", url));
    const int fd = connect_port(url);
    assert_int_equal(send(fd, hello, 16, MSG_NOSIGNAL), 16);
    assert_int_equal(recv(fd, answer, 8, MSG_WAITALL), 8);
    assert_true(recv(fd, answer, 1, 0) <= 0);
    close(fd);
    assert_int_equal(tiny_client_infer(&alice, x, 0), 0);
}

static void tls_serves_the_same_to_those_who_trust_the_certificate(void **state) {
    (void)state;
    char command[512], extra[400], url[256], file[128];
    uint8_t byte;
    daemon_reply r;
    nng_socket s;
    nng_tls_config *tls = NULL;
    snprintf(command, sizeof command,
             "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj "
             "/CN=localhost "
             "-addext subjectAltName=DNS:localhost -keyout %s/key.pem -out %s/cert.pem 2>/dev/null",
             d.folder, d.folder);
    if (system(command) != 0) skip();
    snprintf(extra, sizeof extra,
             "[listen]\ncontrol = tls+tcp://127.0.0.1:0\nbulk = tls+tcp://127.0.0.1:0\ntls_certificate = "
             "%s/cert.pem\ntls_key = %s/key.pem\n",
             d.folder, d.folder);
    daemon_start(&d, extra, NULL, NULL);
    assert_true(endpoint("tls+tcp://", url));
    const int fd = connect_port(url); /* somebody who does not speak TLS */
    assert_int_equal(send(fd, "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL), 18);
    while (recv(fd, &byte, 1, 0) > 0) {}
    close(fd);
    snprintf(file, sizeof file, "%s/cert.pem", d.folder);
    assert_int_equal(nng_tls_config_alloc(&tls, NNG_TLS_MODE_CLIENT), 0);
    assert_int_equal(nng_tls_config_ca_file(tls, file), 0);
    assert_int_equal(nng_tls_config_server_name(tls, "localhost"), 0);
    assert_int_equal(nng_req0_open(&s), 0);
    nng_socket_set_ms(s, NNG_OPT_RECVTIMEO, 20000);
    nng_dialer dialer;
    assert_int_equal(nng_dialer_create(&dialer, s, url), 0);
    assert_int_equal(nng_dialer_set_ptr(dialer, NNG_OPT_TLS_CONFIG, tls), 0);
    assert_int_equal(nng_dialer_start(dialer, 0), 0);
    const daemon_call c = {.method = "Inference/ServerReady",
                           .output = &ckksd__v1__server_ready_reply__descriptor};
    daemon_send(s, daemon_frame(&c));
    assert_true(daemon_receive(s, &r, c.output));
    assert_true(((Ckksd__V1__ServerReadyReply *)r.payload)->ready);
    daemon_reply_fini(&r);
    nng_close(s);
    nng_tls_config_free(tls);
}

static void a_frame_that_is_none_is_answered_and_its_pipe_closed(void **state) {
    (void)state;
    uint8_t message[9 + 4 + 16] = {1, 0, 0, 0, 0, 0, 0, 0, 20, 0x80, 0, 0, 1, 'h', 'e', 'l', 'l', 'o'};
    uint8_t answer[4096];
    ssize_t n = 0, got;
    start_with_keys(NULL, NULL, NULL);
    const int fd = connect_ipc("bulk");
    assert_int_equal(send(fd, message, sizeof message, MSG_NOSIGNAL), sizeof message);
    while ((got = recv(fd, answer + n, sizeof answer - (size_t)n, 0)) > 0) n += got;
    assert_int_equal(got, 0); /* closed, not timed out */
    assert_true(n > 30);
    assert_memory_equal(answer + 13, "CKD1", 4);
    close(fd);
    assert_int_equal(tiny_client_infer(&alice, x, 0), 0);
}

static void another_wire_version_is_told_which_are_served(void **state) {
    (void)state;
    daemon_reply r;
    daemon_start(&d, NULL, NULL, NULL);
    const daemon_call c = {.socket = DAEMON_CONTROL, .method = "Health/Check"};
    nng_msg *message = daemon_frame(&c);
    ((uint8_t *)nng_msg_body(message))[4] = 7;
    nng_socket s = daemon_dial(&d, DAEMON_CONTROL);
    daemon_send(s, message);
    assert_true(daemon_receive(s, &r, NULL));
    assert_int_equal(r.header->status->code, RPC_UNIMPLEMENTED);
    assert_int_equal(r.header->status->wire_version_max, 1);
    daemon_reply_fini(&r);
    nng_close(s);
}

static void the_third_wrong_token_closes_the_pipe(void **state) {
    (void)state;
    daemon_reply r;
    daemon_start(&d, NULL, NULL, NULL);
    nng_socket s = daemon_dial(&d, DAEMON_CONTROL);
    const daemon_call c = {.socket = DAEMON_CONTROL, .method = "Keys/KeyList", .token = "x.y"};
    for (int i = 0; i < 3; i++) {
        daemon_send(s, daemon_frame(&c));
        assert_true(daemon_receive(s, &r, NULL));
        assert_int_equal(r.header->status->code, RPC_UNAUTHENTICATED);
        daemon_reply_fini(&r);
    }
    nng_close(s);
    metric_wait("ckksd_rejections_total{cause=\"CKKS_AUTH\",reason=\"AUTH\"}", 3);
    metric_wait("ckksd_connections", 0);
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(an_encrypted_request_gets_the_right_answer),
        T(tokens_and_secrets_never_reach_the_log),
        T(a_token_is_not_kept_in_memory),
        T(the_bulk_address_leads_to_the_control_one_and_back),
        T(anyone_may_ask_for_health_and_server_metadata),
        T(each_fault_is_refused_by_name_and_a_good_request_still_works),
        T(a_token_without_the_scope_is_refused),
        T(another_tenants_key_set_looks_exactly_like_none),
        T(a_hostile_length_ends_the_connection_and_nothing_else),
        T(a_hostile_length_over_tcp_does_no_harm_either),
        T(tls_serves_the_same_to_those_who_trust_the_certificate),
        T(a_frame_that_is_none_is_answered_and_its_pipe_closed),
        T(another_wire_version_is_told_which_are_served),
        T(the_third_wrong_token_closes_the_pipe),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
