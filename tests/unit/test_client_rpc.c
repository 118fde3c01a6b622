/* The RPC half against a server that lies, stalls and refuses. */
#include "tests/support/fake_server.h"
#include "tests/support/library_fault.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void an_honest_reply_decrypts(void **state) {
    (void)state;
    double scores[2] = {0};
    ckks_error err = {0};
    rpc_timing timing = {0};
    assert_int_equal(fake_server_infer(HONEST, 0, scores, &timing, &err), CKKS_OK);
    assert_true(fabs(scores[0] - 1.25) < 1e-3 && fabs(scores[1] + 3) < 1e-3);
    assert_int_equal(timing.attempts, 1);
    assert_true(timing.request_bytes > 0 && timing.reply_bytes > timing.request_bytes);
}

static void a_reply_that_is_not_what_was_asked_for_is_never_decrypted(void **state) {
    (void)state;
    static const struct {
        const char *what;
        lie mode;
        ckks_status expected;
    } table[] = {
        {"another model", OTHER_MODEL, CKKS_UNTRUSTED_SERVER},
        {"another version", OTHER_VERSION, CKKS_UNTRUSTED_SERVER},
        {"another package", OTHER_DIGEST, CKKS_UNTRUSTED_SERVER},
        {"no package digest", NO_DIGEST, CKKS_UNTRUSTED_SERVER},
        {"no outputs", NO_OUTPUTS, CKKS_UNTRUSTED_SERVER},
        {"a ciphertext too many", EXTRA_SEGMENT, CKKS_UNTRUSTED_SERVER},
        {"a scale off by one bit", SCALE_ONE_ULP_OFF, CKKS_UNTRUSTED_SERVER},
        {"other parameters", OTHER_PARAMETERS, CKKS_UNTRUSTED_SERVER},
        {"a short ciphertext", SHORT_SEGMENT, CKKS_UNTRUSTED_SERVER},
        {"a long ciphertext", LONG_SEGMENT, CKKS_UNTRUSTED_SERVER},
        {"a segment of another kind", WRONG_SEGMENT_KIND, CKKS_UNTRUSTED_SERVER},
        {"another request's id", WRONG_REQUEST_ID, CKKS_UNTRUSTED_SERVER},
        {"no status", NO_STATUS, CKKS_UNTRUSTED_SERVER},
        {"no message", NO_PAYLOAD, CKKS_UNTRUSTED_SERVER},
        {"a frame cut short", CUT_FRAME, CKKS_UNTRUSTED_SERVER},
        {"garbage", GARBAGE, CKKS_UNTRUSTED_SERVER},
        {"dirty padding", DIRTY_PADDING, CKKS_UNTRUSTED_SERVER},
        {"segments outside of the frame", OVERLAPPING_SEGMENT, CKKS_UNTRUSTED_SERVER},
        {"residues over their modulus", BAD_RESIDUES, CKKS_UNTRUSTED_SERVER},
        {"an unknown key", REFUSE_UNKNOWN_KEY, CKKS_KEY_UNKNOWN},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        double scores[2] = {0};
        ckks_error err = {0};
        const ckks_status rc = fake_server_infer(table[i].mode, 0, scores, NULL, &err);
        printf("  %-32s %s: %s: %s\n", table[i].what, ckks_status_name(rc), err.field, err.message);
        assert_int_equal(rc, table[i].expected);
        assert_true(scores[0] == 0 && scores[1] == 0);
        assert_int_equal(server.calls, 1); /* and nothing was sent again because of it */
    }
}

static void what_the_server_says_cannot_drive_a_terminal(void **state) {
    (void)state;
    double scores[2];
    ckks_error err = {0};
    assert_int_equal(fake_server_infer(REFUSE_WITH_ESCAPES, 0, scores, NULL, &err), CKKS_INVALID_ARGUMENT);
    assert_true(rpc_error_is_from_server(&err));
    assert_string_equal(err.message, "look:?[31m??red ???? (said the server)");
}

static void a_full_queue_is_tried_again_under_new_ids(void **state) {
    (void)state;
    double scores[2];
    ckks_error err = {0};
    assert_int_equal(fake_server_infer(FULL_TWICE, 0, scores, NULL, &err), CKKS_OK);
    assert_int_equal(server.calls, 3);
    assert_memory_not_equal(server.ids[0], server.ids[1], 16);
    assert_memory_not_equal(server.ids[1], server.ids[2], 16);
}

static void a_draining_server_is_left_and_found_again(void **state) {
    (void)state;
    double scores[2];
    ckks_error err = {0};
    const unsigned before = atomic_load(&server.pipes_gone);
    assert_int_equal(fake_server_infer(DRAIN_ONCE, 0, scores, NULL, &err), CKKS_OK);
    assert_int_equal(server.calls, 2);
    /* a server that drains waits for this; the other end hears of it in its own time */
    for (int i = 0; i < 60000 && atomic_load(&server.pipes_gone) == before; i++) usleep(1000);
    assert_true(atomic_load(&server.pipes_gone) > before);
}

/* One inference on a connection that waits `attempt_ms` for an answer. */
static ckks_status infer_impatiently(lie mode, uint32_t attempt_ms, uint32_t timeout_ms, rpc_timing *timing,
                                     ckks_error *err) {
    double scores[2];
    rpc_connection *const patient = connection;
    const rpc_config config = {.address = server.address,
                               .token = "id.secret",
                               .connect_ms = 60000,
                               .timeout_ms = 120000,
                               .attempt_ms = attempt_ms};
    assert_int_equal(rpc_connect(&connection, &config, err), CKKS_OK);
    const ckks_status rc = fake_server_infer(mode, timeout_ms, scores, timing, err);
    rpc_close(connection);
    connection = patient;
    return rc;
}

static void silence_is_answered_with_the_same_request(void **state) {
    (void)state;
    ckks_error err = {0};
    rpc_timing timing = {0};
    assert_int_equal(infer_impatiently(SILENT_ONCE, 100, 0, &timing, &err), CKKS_OK);
    pthread_mutex_lock(&server.lock);
    assert_true(server.calls >= 2); /* a busy machine may be silent once more */
    for (uint32_t i = 1; i < server.calls && i < 8; i++)
        assert_memory_equal(server.ids[0], server.ids[i], 16);
    pthread_mutex_unlock(&server.lock);
    assert_true(timing.attempts >= 2);
}

static void a_server_that_never_answers_is_unreachable_in_time(void **state) {
    (void)state;
    ckks_error err = {0};
    assert_int_equal(infer_impatiently(SILENT, 100, 700, NULL, &err), CKKS_UNAVAILABLE);
    assert_false(rpc_error_is_from_server(&err));
}

static void nobody_at_the_address_is_unreachable_at_once(void **state) {
    (void)state;
    static const char *const addresses[] = {"inproc://nobody", "ipc:///tmp/ckksd-no-such-socket",
                                            "tcp://127.0.0.1:1"};
    for (size_t i = 0; i < 3; i++) {
        rpc_connection *c = NULL;
        ckks_error err = {0};
        const rpc_config config = {.address = addresses[i], .connect_ms = 2000};
        assert_int_equal(rpc_connect(&c, &config, &err), CKKS_UNAVAILABLE);
        assert_null(c);
    }
    rpc_connection *c = NULL;
    ckks_error err = {0};
    const rpc_config config = {.address = "gopher://x"};
    assert_int_equal(rpc_connect(&c, &config, &err), CKKS_INVALID_ARGUMENT);
}

static void a_model_that_lies_is_refused_over_the_wire_too(void **state) {
    (void)state;
    client_model *m = NULL;
    ckks_error err = {0};
    pthread_mutex_lock(&server.lock);
    server.fixture.description.key_bytes++;
    pthread_mutex_unlock(&server.lock);
    assert_int_equal(rpc_model(&m, connection, "identity", NULL, NULL, &err), CKKS_UNTRUSTED_SERVER);
    pthread_mutex_lock(&server.lock);
    server.fixture.description.key_bytes--;
    pthread_mutex_unlock(&server.lock);
    err = (ckks_error){0};
    assert_int_equal(rpc_model(&m, connection, "another", NULL, NULL, &err), CKKS_UNTRUSTED_SERVER);
    assert_null(m);
    err = (ckks_error){0};
    assert_int_equal(rpc_model(&m, connection, "identity", "9", NULL, &err), CKKS_UNTRUSTED_SERVER);
    assert_string_equal(err.field, "version");
    assert_null(m);
    assert_int_equal(rpc_model(&m, connection, "identity", server.fixture.description.version, NULL, &err),
                     CKKS_OK);
    client_model_destroy(m);
}

static void what_a_server_calls_itself_is_printable(void **state) {
    (void)state;
    assert_string_equal(rpc_server(connection)->name, "fake?[2J?");
}

/* parts without end, out of order, or in crumbs */
static void an_upload_does_not_follow_a_server_that_asks_for_nonsense(void **state) {
    (void)state;
    static const uint32_t again[] = {0, 0}, back[] = {1, 0}, beyond[] = {0, 63}, far[] = {UINT32_MAX};
    static const struct {
        const uint32_t *asked;
        size_t count;
        const char *field;
    } table[] = {
        {again, 2, "missing_parts"},
        {back, 2, "missing_parts"},
        {beyond, 2, "missing_parts"},
        {far, 1, "missing_parts"},
    };
    client_key_set *set = NULL;
    bool was_there;
    ckks_error err = {0};
    assert_int_equal(client_key_set_generate(&set, secret, model->keys, model->key_count, NULL, NULL, &err),
                     CKKS_OK);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        pthread_mutex_lock(&server.lock);
        server.asked = table[i].asked, server.asked_count = table[i].count;
        server.parts_seen = 0;
        pthread_mutex_unlock(&server.lock);
        err = (ckks_error){0};
        assert_int_equal(rpc_register(connection, set, &was_there, NULL, NULL, &err), CKKS_UNTRUSTED_SERVER);
        assert_string_equal(err.field, table[i].field);
        pthread_mutex_lock(&server.lock);
        assert_int_equal(server.parts_seen, 0);
        server.asked = NULL;
        pthread_mutex_unlock(&server.lock);
    }
    for (uint64_t limit = 1; limit <= 16; limit += 15) {
        pthread_mutex_lock(&server.lock);
        server.part_limit = limit;
        pthread_mutex_unlock(&server.lock);
        rpc_connection *c = NULL;
        const rpc_config config = {.address = server.address, .connect_ms = 60000, .timeout_ms = 120000};
        err = (ckks_error){0};
        assert_int_equal(rpc_connect(&c, &config, &err), CKKS_OK);
        assert_int_equal(rpc_register(c, set, &was_there, NULL, NULL, &err), CKKS_UNTRUSTED_SERVER);
        assert_string_equal(err.field, "key_part_bytes");
        rpc_close(c);
    }
    pthread_mutex_lock(&server.lock);
    server.part_limit = 20000;
    pthread_mutex_unlock(&server.lock);
    client_key_set_destroy(set);
}

static void a_message_too_long_for_the_header_is_read_from_its_segment(void **state) {
    (void)state;
    client_model *m = NULL;
    ckks_error err = {0};
    pthread_mutex_lock(&server.lock);
    server.mode = PAYLOAD_APART;
    pthread_mutex_unlock(&server.lock);
    assert_int_equal(rpc_model(&m, connection, "identity", NULL, NULL, &err), CKKS_OK);
    pthread_mutex_lock(&server.lock);
    server.mode = HONEST;
    pthread_mutex_unlock(&server.lock);
    client_model_destroy(m);
}

static void an_upload_sends_what_is_missing_and_no_more(void **state) {
    (void)state;
    client_key_set *set = NULL;
    bool was_there = true;
    ckks_error err = {0};
    assert_int_equal(client_key_set_generate(&set, secret, model->keys, model->key_count, NULL, NULL, &err),
                     CKKS_OK);
    pthread_mutex_lock(&server.lock);
    server.drop_first_parts = true; /* the first part is lost: it must be asked for and sent again */
    pthread_mutex_unlock(&server.lock);
    assert_int_equal(rpc_register(connection, set, &was_there, NULL, NULL, &err), CKKS_OK);
    assert_false(was_there);
    pthread_mutex_lock(&server.lock);
    const uint32_t parts_seen = server.parts_seen, part_count = server.part_count,
                   commits = server.commit_count;
    const uint32_t wrong_parts = server.wrong_parts;
    server.parts_seen = 0; /* all parts are there now: a resumed upload goes straight to the commit */
    pthread_mutex_unlock(&server.lock);
    assert_int_equal(parts_seen, part_count + 1);
    assert_int_equal(commits, 1);
    assert_true(part_count > 2);
    assert_int_equal(wrong_parts, 0);
    assert_int_equal(rpc_register(connection, set, &was_there, NULL, NULL, &err), CKKS_OK);
    pthread_mutex_lock(&server.lock);
    assert_int_equal(server.parts_seen, 0);
    assert_int_equal(server.commit_count, 2);
    pthread_mutex_unlock(&server.lock);
    client_key_set_destroy(set);
}

static void the_other_socket_is_looked_for_on_the_same_host_alone(void **state) {
    (void)state;
    static const struct {
        const char *given, *endpoint, *expected;
    } table[] = {
        {"tcp://10.0.0.1:7000", "tcp://0.0.0.0:7001", "tcp://10.0.0.1:7001"},
        {"tcp://host:7000", "tcp://evil.example:7001", "tcp://host:7001"},
        {"tls+tcp://host:7000", "tcp://host:7001", ""},
        {"tls+tcp://host:7000", "tls+tcp://[::]:7443", "tls+tcp://host:7443"},
        {"tcp://[fe80::1]:7000", "tcp://*:7001", "tcp://[fe80::1]:7001"},
        {"ws://host:80/c", "ws://0.0.0.0:80/bulk", "ws://host:80/bulk"},
        {"ipc:///run/a", "ipc:///run/b", "ipc:///run/b"},
        {"ipc:///run/a", "tcp://host:1", ""},
        {"tcp://host:7000", "nonsense", ""},
        {"nonsense", "tcp://host:1", ""},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        Ckksd__V1__ServerMetadataReply r = CKKSD__V1__SERVER_METADATA_REPLY__INIT;
        Ckksd__V1__Endpoint e = CKKSD__V1__ENDPOINT__INIT, *list[1] = {&e};
        char out[RPC_ADDRESS_MAX];
        e.address = fake_server_text(table[i].endpoint);
        e.has_bulk = 1, e.bulk = 1;
        r.n_endpoints = 1, r.endpoints = list;
        rpc_choose_endpoint(out, table[i].given, &r, true);
        assert_string_equal(out, table[i].expected);
        rpc_choose_endpoint(out, table[i].given, &r, false);
        assert_string_equal(out, "");
    }
}

static void every_status_survives_the_wire(void **state) {
    (void)state;
    for (int i = 1; i < CKKS_STATUS_COUNT; i++) {
        Ckksd__V1__Status s = CKKSD__V1__STATUS__INIT;
        ckks_error err = {0};
        s.has_code = 1, s.code = ckks_status_rpc((ckks_status)i);
        s.reason = fake_server_text(ckks_status_reason((ckks_status)i));
        const ckks_status back = rpc_status_from(&s, &err);
        assert_int_equal(ckks_status_rpc(back), s.code);
        if (s.reason[0]) assert_string_equal(ckks_status_reason(back), s.reason);
        assert_true(rpc_error_is_from_server(&err));
    }
}

/* A connection of its own and one inference, as far as they come. */
static ckks_status connect_and_infer(const char *address, double scores[2], ckks_error *err) {
    const double elements[4] = {1.25, -3, 0, 0};
    const uint8_t key_set[32] = {1};
    const rpc_config config = {.address = address,
                               .token = "id.secret",
                               .connect_ms = 60000,
                               .timeout_ms = 120000,
                               .attempt_ms = 300};
    rpc_connection *c = NULL;
    client_ciphertexts in = {0}, out = {0};
    ckks_status rc = client_encrypt(&in, model, secret, NULL, elements, 1, err);
    if (rc == CKKS_OK) rc = rpc_connect(&c, &config, err);
    if (rc == CKKS_OK) rc = rpc_infer(&out, c, model, key_set, &in, 0, NULL, err);
    if (rc == CKKS_OK) rc = client_decrypt(scores, model, secret, &out, 1, err);
    client_ciphertexts_fini(&in);
    client_ciphertexts_fini(&out);
    rpc_close(c);
    return rc;
}

static void each_call_of_nng_that_fails_is_a_typed_error_or_tried_again(void **state) {
    (void)state;
    uint32_t failures = 0, typed = 0;
    char tcp[64];
    nng_listener listener;
    int port = 0;
    assert_int_equal(nng_listen(server.socket, "tcp://127.0.0.1:0", &listener, 0), 0);
    assert_int_equal(nng_listener_get_int(listener, NNG_OPT_TCP_BOUND_PORT, &port), 0);
    snprintf(tcp, sizeof tcp, "tcp://127.0.0.1:%d", port);
    char local_bulk[sizeof server.bulk_address];
    memcpy(local_bulk, server.bulk_address, sizeof local_bulk);
    for (int is_tcp = 0; is_tcp < 2; is_tcp++) {
        if (is_tcp) snprintf(server.bulk_address, sizeof server.bulk_address, "%s", tcp);
        for (uint64_t n = 1;; n++) {
            double scores[2] = {0};
            ckks_error err = {0};
            assert_true(n < 500);
            fake_server_set_mode(HONEST);
            library_fault_set(n, false);
            const ckks_status rc = connect_and_infer(is_tcp ? tcp : server.address, scores, &err);
            const char *failed = library_fault_name();
            library_fault_set(0, false);
            if (rc != CKKS_OK && rc != CKKS_UNAVAILABLE && rc != CKKS_RESOURCE_EXHAUSTED &&
                rc != CKKS_UNTRUSTED_SERVER)
                fail_msg("call %lu, %s: %s: %s", n, failed, ckks_status_name(rc), err.message);
            if (rc != CKKS_OK) assert_true(rc == err.code && err.message[0]);
            if (rc == CKKS_OK) assert_true(fabs(scores[0] - 1.25) < 1e-3 && fabs(scores[1] + 3) < 1e-3);
            if (!failed) {
                if (rc != CKKS_OK) fail_msg("%s", err.message);
                break;
            }
            failures++, typed += rc != CKKS_OK;
            err = (ckks_error){0};
            if (connect_and_infer(is_tcp ? tcp : server.address, scores, &err) != CKKS_OK)
                fail_msg("after call %lu, %s: %s", n, failed, err.message);
        }
    }
    memcpy(server.bulk_address, local_bulk, sizeof local_bulk);
    printf("  %u calls failed, %u as an error\n", failures, typed);
    assert_true(typed > 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_honest_reply_decrypts),
        cmocka_unit_test(a_reply_that_is_not_what_was_asked_for_is_never_decrypted),
        cmocka_unit_test(what_the_server_says_cannot_drive_a_terminal),
        cmocka_unit_test(a_full_queue_is_tried_again_under_new_ids),
        cmocka_unit_test(a_draining_server_is_left_and_found_again),
        cmocka_unit_test(silence_is_answered_with_the_same_request),
        cmocka_unit_test(a_server_that_never_answers_is_unreachable_in_time),
        cmocka_unit_test(nobody_at_the_address_is_unreachable_at_once),
        cmocka_unit_test(a_model_that_lies_is_refused_over_the_wire_too),
        cmocka_unit_test(what_a_server_calls_itself_is_printable),
        cmocka_unit_test(an_upload_does_not_follow_a_server_that_asks_for_nonsense),
        cmocka_unit_test(a_message_too_long_for_the_header_is_read_from_its_segment),
        cmocka_unit_test(an_upload_sends_what_is_missing_and_no_more),
        cmocka_unit_test(the_other_socket_is_looked_for_on_the_same_host_alone),
        cmocka_unit_test(every_status_survives_the_wire),
        cmocka_unit_test(each_call_of_nng_that_fails_is_a_typed_error_or_tried_again),
    };
    return cmocka_run_group_tests(tests, fake_server_start, fake_server_stop);
}
