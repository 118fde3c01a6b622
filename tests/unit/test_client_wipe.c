/*
 * What a client was given in the clear is nowhere in its memory once it is done: not a row's text, not its
 * numbers, not what preprocessing made of them. The whole heap is searched, freed memory included. Each
 * search is first seen to find the rows while they are there.
 *
 * The sources are compiled in here, over a server that is a function: the fixture's program is the identity.
 */
#include "client/ctl/ctl.h"
#include "client/ctl/infer.h"
#include "client/lib/rpc_internal.h"
#include "tests/support/model_fixture.h"
#include "tests/support/temporary.h"

#include <fcntl.h>
#include <nng/protocol/reqrep0/req.h>
#include <pthread.h>
#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>
// cmocka wants others first
#include <cmocka.h>

/* the reply holds what was sent */
static ckks_status fake_infer(client_ciphertexts *out, rpc_connection *connection, const client_model *model,
                              const uint8_t key_set[32], const client_ciphertexts *inputs,
                              uint32_t timeout_ms, rpc_timing *timing, ckks_error *err) {
    (void)connection, (void)model, (void)key_set, (void)timeout_ms, (void)timing;
    *out = *inputs;
    out->items = calloc(inputs->count, sizeof *out->items);
    for (uint32_t i = 0; out->items && i < inputs->count; i++) {
        out->items[i] = inputs->items[i];
        if (!(out->items[i].packed = malloc(inputs->items[i].packed_bytes))) abort();
        memcpy(out->items[i].packed, inputs->items[i].packed, inputs->items[i].packed_bytes);
    }
    return out->items ? CKKS_OK : ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory");
}

/* NOLINTBEGIN(bugprone-suspicious-include) */
#include "client/ctl/output.c"
#include "client/ctl/rows.c"
#include "client/ctl/rows_stream.c"
#include "client/ctl/top.c"
#include "client/lib/rpc_call.c"
#define rpc_infer fake_infer
#include "client/ctl/infer_run.c"
#include "client/ctl/journal.c"
#define run_request run_stream_request
#include "client/ctl/infer_stream.c"
/* NOLINTEND(bugprone-suspicious-include) */

#ifdef __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HAS_SANITIZER
#endif
#endif

/* ---- looking for things in memory ---- */

/* What is looked for, kept in a disguise, so that this program's own data are no finding. */
#define DISGUISE 0x5a
typedef struct needle {
    const char *what;
    uint8_t byte[16];
    size_t size;
} needle;

static needle needle_of(const char *what, const void *data, size_t size) {
    needle n = {what, {0}, size};
    assert_true(size <= sizeof n.byte);
    for (size_t i = 0; i < size; i++) n.byte[i] = ((const uint8_t *)data)[i] ^ DISGUISE;
    return n;
}

static size_t count_in(const uint8_t *at, size_t bytes, const needle *n) {
    const uint8_t *const end = at + bytes;
    uint8_t bare[sizeof n->byte]; /* on the stack, which is not searched */
    size_t found = 0;
    for (size_t i = 0; i < n->size; i++) bare[i] = n->byte[i] ^ DISGUISE;
    for (; at && (at = memmem(at, (size_t)(end - at), bare, n->size)); at++) found++;
    explicit_bzero(bare, sizeof bare);
    return found;
}

/* How often is it in the heap? Other anonymous memory counts too, for allocations that got a mapping of their
 * own; stacks do not. */
static size_t count_in_heap(const needle *n) {
    size_t found = 0;
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "re");
    assert_non_null(maps);
    setvbuf(maps, NULL, _IONBF, 0);
    while (fgets(line, sizeof line, maps)) {
        char *next;
        const unsigned long begin = strtoul(line, &next, 16), end = strtoul(next + 1, &next, 16);
        const bool is_writable = strncmp(next, " rw-p ", 6) == 0;
        const char *name = strpbrk(line, "[/"); /* none: anonymous */
        if (!is_writable || (name && strncmp(name, "[heap]", 6) != 0)) continue;
        const union {
            unsigned long number;
            const uint8_t *memory;
        } at = {begin};
        if (at.memory) found += count_in(at.memory, end - begin, n);
    }
    fclose(maps);
    return found;
}

static void skip_under_a_sanitizer(void) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(HAS_SANITIZER)
    print_message("skipped: under a sanitizer, freed memory is not where the allocator would have it\n");
    skip();
#endif
}

static void must_be_there(const needle *n) {
    if (!count_in_heap(n)) fail_msg("%s: the search finds nothing where it is", n->what);
}
static void must_be_gone(const needle *n) {
    const size_t found = count_in_heap(n);
    if (found) fail_msg("%s: %zu copies are left", n->what, found);
}

/* ---- rows that nothing else looks like ---- */

#define ROWS 200u

/* of row i, alpha is this and the others are small whole numbers; "alpha / 2" is the element */
static double alpha_of(uint32_t i) {
    return 4.0 + (double)((i * 7919u) % 100003u) / 131072.0 + 0x1p-30;
}
static needle text_of(uint32_t i) {
    char text[24];
    snprintf(text, sizeof text, "%.17f", alpha_of(i));
    const needle n = needle_of("a row's text", text, 14);
    explicit_bzero(text, sizeof text);
    return n;
}
static needle number_of(uint32_t i) {
    const double value = alpha_of(i);
    return needle_of("a row's number", &value, sizeof value);
}
static needle element_of(uint32_t i) {
    const double value = alpha_of(i) / 2;
    return needle_of("a row's element", &value, sizeof value);
}

static char folder[64], input[96], packed[96], array[96], labels[96], output[96];
static model_fixture fixture;
static client_model *model;
static client_secret_key *secret;
static ctl_options options = {.quiet = true};

/* in another process, whose memory is not ours */
static void write_files(void) {
    FILE *text = fopen(input, "we"), *npy = fopen(array, "we"), *beside = fopen(labels, "we");
    gzFile zipped = gzopen(packed, "wb");
    if (!text || !npy || !zipped || !beside) _exit(1);
    fputs("alpha,beta,gamma,delta\n", text);
    gzprintf(zipped, "alpha,beta,gamma,delta\n");
    fwrite("\x93NUMPY\x01\0\x76\0", 1, 10, npy);
    const int length = fprintf(npy, "{'descr': '<f8', 'fortran_order': False, 'shape': (%u, 4), }", ROWS);
    fprintf(npy, "%*s\n", 117 - length, "");
    for (uint32_t i = 0; i < ROWS; i++) {
        const double row[4] = {alpha_of(i), 1, 2, 3};
        fprintf(text, "%.17f,1,2,3\n", row[0]);
        gzprintf(zipped, "%.17f,1,2,3\n", row[0]);
        fwrite(row, sizeof row, 1, npy);
        fprintf(beside, "%.17f\n", row[0]);
    }
    _exit(fclose(text) || fclose(npy) || fclose(beside) || gzclose(zipped) != Z_OK);
}

static int set_up(void **state) {
    ckks_error err = {0};
    int status = 1;
    (void)state;
    temporary_folder(folder, sizeof folder, "test-wipe");
    snprintf(input, sizeof input, "%s/rows.csv", folder);
    snprintf(packed, sizeof packed, "%s/rows.csv.gz", folder);
    snprintf(array, sizeof array, "%s/rows.npy", folder);
    snprintf(labels, sizeof labels, "%s/labels.txt", folder);
    snprintf(output, sizeof output, "%s/out.csv", folder);
    const pid_t child = fork();
    if (child == 0) write_files();
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) return -1;
    model_fixture_init(&fixture);
    model = model_fixture_model(&fixture);
    return client_secret_key_generate(&secret, &model->params, &err) == CKKS_OK ? 0 : -1;
}
static int tear_down(void **state) {
    (void)state;
    (void)unlink(input), (void)unlink(packed), (void)unlink(array), (void)unlink(labels),
        (void)unlink(output);
    client_secret_key_destroy(secret);
    client_model_destroy(model);
    return rmdir(folder);
}

/* ---- what must hold ---- */

static void rows_of_each_kind_of_file_leave_nothing_behind(void **state) {
    (void)state;
    skip_under_a_sanitizer();
    const struct {
        const char *path, *labels;
    } table[] = {{input, NULL}, {packed, NULL}, {array, NULL}, {input, labels}};
    for (size_t f = 0; f < sizeof table / sizeof *table; f++) {
        rows data;
        ckks_error err = {0};
        const rows_source source = {.path = table[f].path, .labels_path = table[f].labels, .limit = 150};
        assert_int_equal(rows_load(&data, model, &source, &options, &err), CKKS_OK);
        assert_int_equal(data.count, 150);
        const needle first = number_of(0), last = number_of(ROWS - 1), text = text_of(77);
        must_be_there(&first);
        if (table[f].labels) must_be_there(&text);
        rows_fini(&data);
        must_be_gone(&first);
        must_be_gone(&last); /* read, and over the limit */
        must_be_gone(&text);
    }
}

static void a_file_that_is_refused_leaves_nothing_behind(void **state) {
    (void)state;
    skip_under_a_sanitizer();
    rows data;
    ckks_error err = {0};
    const rows_source source = {.path = input, .labels_path = array}; /* four labels a row */
    const ckks_status rc = rows_load(&data, model, &source, &options, &err);
    rows_fini(&data); /* nothing is there */
    assert_int_equal(rc, CKKS_INVALID_ARGUMENT);
    const needle number = number_of(3), text = text_of(3);
    must_be_gone(&number);
    must_be_gone(&text);
}

static void rows_that_were_evaluated_leave_nothing_behind(void **state) {
    (void)state;
    skip_under_a_sanitizer();
    rows data;
    ckks_error err = {0};
    ctl_bar bar = {0};
    const rows_source source = {.path = input, .limit = 5};
    assert_int_equal(rows_load(&data, model, &source, &options, &err), CKKS_OK);
    infer_job job = {
        .model = model, .secret = secret, .data = &data, .concurrency = 1, .step = 1e-3, .bar = &bar};
    assert_true(data.count == 5 && model->score_count == 2);
    job.results = calloc(data.count + 1, sizeof *job.results);
    job.scores = calloc(5 * 2, sizeof *job.scores);
    job.shown = calloc(5 * 2, sizeof *job.shown);
    assert_true(job.results && job.scores && job.shown);
    assert_int_equal(infer_check_rows(model, &data, &err), CKKS_OK);
    assert_int_equal(infer_run(&job, &err), CKKS_OK);
    const needle exact = needle_of("an exact score", &job.scores[0], sizeof job.scores[0]);
    must_be_there(&exact);
    for (uint64_t i = 0; i < data.count; i++) client_prediction_fini(&job.results[i].prediction);
    wipe_free(job.results), wipe_free(job.scores), wipe_free(job.shown);
    rows_fini(&data);
    must_be_gone(&exact);
    for (uint32_t i = 0; i < 5; i++) {
        const needle number = number_of(i), element = element_of(i), text = text_of(i);
        must_be_gone(&number);
        must_be_gone(&element);
        must_be_gone(&text);
    }
}

static void a_large_file_leaves_nothing_behind(void **state) {
    (void)state;
    skip_under_a_sanitizer();
    infer_stream_figures figures;
    ckks_error err = {0};
    ctl_bar bar = {0};
    infer_stream_job job = {
        .model = model, .secret = secret, .concurrency = 1, .step = 1e-3, .output = output, .bar = &bar};
    const rows_source source = {.path = input};
    const ckks_status rc = infer_stream(&figures, &job, &source, &options, &err);
    if (rc != CKKS_OK) fail_msg("%s: %s", err.field, err.message);
    assert_int_equal(figures.rows, ROWS);
    for (uint32_t i = 1; i < ROWS; i += 33) {
        const needle number = number_of(i), element = element_of(i), text = text_of(i);
        must_be_gone(&number);
        must_be_gone(&element);
        must_be_gone(&text);
    }
}

/* ---- secrets ---- */

/* what of a secret key's image is the key itself, without a passphrase */
static needle key_needle(const client_secret_key *sk) {
    uint8_t *image = NULL;
    size_t size = 0;
    ckks_error err = {0};
    assert_int_equal(client_secret_key_export(&image, &size, sk, NULL, 0, &err), CKKS_OK);
    const needle n = needle_of("a secret key", image + size - 32 - 1000, 16);
    must_be_there(&n);
    explicit_bzero(image, size);
    free(image);
    return n;
}

static void set_passphrase(passphrase *p, char first) {
    p->bytes = 20;
    p->text = sodium_malloc(p->bytes + 1);
    assert_non_null(p->text);
    for (size_t i = 0; i < p->bytes; i++) p->text[i] = (char)(first + (char)i);
    p->text[p->bytes] = 0;
}

static void a_secret_key_leaves_nothing_behind(void **state) {
    (void)state;
    skip_under_a_sanitizer();
    client_secret_key *sk = NULL;
    ckks_error err = {0};
    passphrase right = {0}, wrong = {0};
    assert_int_equal(client_secret_key_generate(&sk, &model->params, &err), CKKS_OK);
    const needle key = key_needle(sk);
    set_passphrase(&right, '0');
    set_passphrase(&wrong, 'A');
    const needle words = needle_of("a passphrase", right.text, 16);
    must_be_there(&words);
    for (int sealed = 0; sealed < 2; sealed++) {
        (void)unlink(output);
        assert_int_equal(secret_file_write(output, sk, sealed ? &right : NULL, &err), CKKS_OK);
        assert_int_equal(secret_file_write(output, sk, sealed ? &right : NULL, NULL), CKKS_ALREADY_EXISTS);
        client_secret_key_destroy(sk);
        must_be_gone(&key);
        assert_int_equal(secret_file_read(&sk, output, &wrong, false, NULL), CKKS_PASSPHRASE);
        must_be_gone(&key);
        assert_int_equal(chmod(output, 0640), 0);
        assert_int_equal(secret_file_read(&sk, output, NULL, false, NULL), CKKS_PERMISSION_DENIED);
        must_be_gone(&key);
        assert_int_equal(chmod(output, 0600), 0);
        assert_int_equal(secret_file_read(&sk, output, sealed ? &right : NULL, false, &err), CKKS_OK);
    }
    client_secret_key_destroy(sk);
    passphrase_fini(&right), passphrase_fini(&wrong);
    must_be_gone(&key);
    must_be_gone(&words);
}

/* greets as a server would, reads a request and hangs up, until the listener is closed */
static void *hang_up(void *listener) {
    static const uint8_t greeting[8] = {0, 'S', 'P', 0, 0, 0x31, 0, 0};
    uint8_t taken[4096];
    for (int pipe; (pipe = accept(*(int *)listener, NULL, NULL)) >= 0; close(pipe)) {
        /* the client may have given up and gone already */
        if (send(pipe, greeting, sizeof greeting, MSG_NOSIGNAL) < 0 || read(pipe, taken, 8) < 0) continue;
        (void)!read(pipe, taken, sizeof taken);
        explicit_bzero(taken, sizeof taken);
    }
    return NULL;
}

static void a_token_leaves_nothing_behind(void **state) {
    (void)state;
    skip_under_a_sanitizer();
    char token[40], address[128];
    pthread_t thread;
    rpc_connection *c = NULL;
    ckks_error err = {0};
    struct sockaddr_un where = {.sun_family = AF_UNIX};
    snprintf(where.sun_path, sizeof where.sun_path, "%s/socket", folder);
    snprintf(address, sizeof address, "ipc://%s", where.sun_path);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&where, sizeof where), 0);
    assert_int_equal(listen(listener, 8), 0);
    assert_int_equal(pthread_create(&thread, NULL, hang_up, &listener), 0);
    memcpy(token, "alice.", 6);
    for (size_t i = 6; i < sizeof token; i++) token[i] = (char)('a' + (char)(i * 7 % 23));
    token[sizeof token - 1] = 0;
    const needle n = needle_of("a token", token + 8, 16);
    const rpc_config config = {.address = address, .token = token, .connect_ms = 400};
    assert_int_equal(rpc_connect(&c, &config, &err), CKKS_UNAVAILABLE);
    assert_null(c);
    explicit_bzero(token, sizeof token);
    shutdown(listener, SHUT_RDWR);
    pthread_join(thread, NULL);
    close(listener);
    (void)unlink(where.sun_path);
    must_be_gone(&n);
}

/* by nng, which gives back what it could not send */
static void a_request_that_is_not_sent_leaves_no_token_behind(void **state) {
    (void)state;
    skip_under_a_sanitizer();
    char token[40];
    rpc_trip trip;
    nng_socket s;
    nng_ctx ctx;
    nng_aio *aio = NULL;
    nng_msg *message = NULL;
    for (size_t i = 0; i < sizeof token; i++) token[i] = (char)('A' + (char)(i * 11 % 25));
    const needle n = needle_of("a token", token + 8, 16);
    assert_int_equal(nng_req0_open(&s), 0); /* it is connected to nobody */
    assert_int_equal(nng_ctx_open(&ctx, s), 0);
    assert_int_equal(nng_aio_alloc(&aio, NULL, NULL), 0);
    assert_int_equal(nng_msg_alloc(&message, 0), 0);
    assert_int_equal(nng_msg_append(message, token, sizeof token), 0);
    explicit_bzero(token, sizeof token);
    must_be_there(&n);
    assert_int_equal(exchange(&message, &trip, ctx, aio, 20), NNG_ETIMEDOUT);
    assert_null(message);
    must_be_gone(&n);
    nng_aio_free(aio);
    nng_ctx_close(ctx);
    nng_close(s);
}

static void a_message_that_was_unpacked_leaves_nothing_behind(void **state) {
    (void)state;
    skip_under_a_sanitizer();
    char token[40];
    uint8_t packed_header[256];
    ProtobufCMessage *message = NULL;
    ckks_error err = {0};
    for (size_t i = 0; i < sizeof token - 1; i++) token[i] = (char)('B' + (char)(i * 13 % 24));
    token[sizeof token - 1] = 0;
    const needle n = needle_of("a token", token + 8, 16);
    Ckksd__V1__RequestHeader header;
    ckksd__v1__request_header__init(&header);
    header.token = token;
    const size_t size = ckksd__v1__request_header__pack(&header, packed_header);
    for (int cut = 0; cut < 2; cut++) { /* also where it ends in the middle of the token's neighbour */
        packed_header[size] = 0x12, packed_header[size + 1] = 9;
        const ckks_status rc = message_unpack(&message, &ckksd__v1__request_header__descriptor, packed_header,
                                              size + 2 * (size_t)cut, 4096, "header", &err);
        assert_int_equal(rc, cut ? CKKS_MALFORMED : CKKS_OK);
        if (!cut) must_be_there(&n);
        message_free(message);
        message = NULL;
        must_be_gone(&n);
    }
    explicit_bzero(token, sizeof token);
    explicit_bzero(packed_header, sizeof packed_header);
}

static void growing_keeps_what_was_there_and_no_copy(void **state) {
    (void)state;
    skip_under_a_sanitizer();
    const double value = alpha_of(4242);
    const needle n = needle_of("a number in grown memory", &value, sizeof value);
    uint8_t *memory = wipe_grow(NULL, 0, 64);
    assert_non_null(memory);
    memcpy(memory, &value, sizeof value);
    assert_non_null(memory = wipe_grow(memory, sizeof value, 4096));
    assert_int_equal(count_in_heap(&n), 1);
    assert_memory_equal(memory, &value, sizeof value);
    wipe_free(memory);
    must_be_gone(&n);
    wipe_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_each_kind_of_file_leave_nothing_behind),
        cmocka_unit_test(a_file_that_is_refused_leaves_nothing_behind),
        cmocka_unit_test(rows_that_were_evaluated_leave_nothing_behind),
        cmocka_unit_test(a_large_file_leaves_nothing_behind),
        cmocka_unit_test(a_secret_key_leaves_nothing_behind),
        cmocka_unit_test(a_token_leaves_nothing_behind),
        cmocka_unit_test(a_request_that_is_not_sent_leaves_no_token_behind),
        cmocka_unit_test(a_message_that_was_unpacked_leaves_nothing_behind),
        cmocka_unit_test(growing_keeps_what_was_there_and_no_copy),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
