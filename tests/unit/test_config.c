/* The configuration: the sample is its manual and cannot drift; what is wrong is named by file and line. */
#include "daemon/server.h"

#include <openssl/pem.h>
#include <openssl/x509.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static ckks_status parse(config *c, const char *text, ckks_error *err) {
    return config_parse(c, text, strlen(text), "x.conf", err);
}

/* ---- the sample ---- */

static char *read_sample(size_t *size) {
    FILE *file = fopen("config/ckksd.conf", "r");
    char *text = calloc(1, 1 << 20);
    if (!file) fail_msg("run from the repository's root");
    *size = fread(text, 1, (1 << 20) - 1, file);
    fclose(file);
    return text;
}

/* "#key = value" at the start of a line documents a key; "# prose" does not. */
static bool documented(const char *line, char *name, char *value) {
    if (line[0] != '#' || line[1] < 'a' || line[1] > 'z') return false;
    const char *equals = strstr(line, " =");
    if (!equals || strcspn(line, " ") != (size_t)(equals - line)) return false;
    snprintf(name, 64, "%.*s", (int)(equals - line - 1), line + 1);
    const char *at = equals + 2;
    snprintf(value, CONFIG_TEXT_MAX, "%s", *at == ' ' ? at + 1 : at);
    return true;
}

static void the_sample_documents_every_key_with_its_default_and_no_other(void **state) {
    (void)state;
    size_t size;
    char *text = read_sample(&size), section[64] = "", name[64], value[CONFIG_TEXT_MAX];
    uint32_t seen[CONFIG_KEYS_MAX] = {0};
    char *rest = text;
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        if (line[0] == '[') snprintf(section, sizeof section, "%.*s", (int)strcspn(line + 1, "]"), line + 1);
        if (!documented(line, name, value)) continue;
        bool found = false;
        for (uint32_t i = 0; i < config_key_count(); i++) {
            const char *s, *n, *d;
            config_key_info(i, &s, &n, &d);
            if (strcmp(s, section) != 0 || strcmp(n, name) != 0) continue;
            if (strcmp(d, value) != 0)
                fail_msg("[%s] %s: the sample says '%s', the default is '%s'", s, n, value, d);
            seen[i]++, found = true;
        }
        if (!found) fail_msg("the sample documents [%s] %s, which does not exist", section, name);
    }
    for (uint32_t i = 0; i < config_key_count(); i++) {
        const char *s, *n, *d;
        config_key_info(i, &s, &n, &d);
        if (seen[i] != 1) fail_msg("[%s] %s stands %u times in the sample", s, n, seen[i]);
    }
    free(text);
}

static void the_sample_as_it_is_and_with_every_line_live_gives_the_defaults(void **state) {
    (void)state;
    size_t size;
    char *text = read_sample(&size), *live = calloc(1, size + 1), name[64], value[CONFIG_TEXT_MAX];
    config *a = calloc(1, sizeof *a), *b = calloc(1, sizeof *b), *c = calloc(1, sizeof *c);
    ckks_error err = {0};
    assert_int_equal(config_parse(a, text, size, "sample", &err), CKKS_OK);
    char *rest = text;
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        const bool is_key = documented(line, name, value) && value[0];
        strcat(strcat(live, line + (is_key ? 1 : 0)), "\n");
    }
    if (parse(b, live, &err) != CKKS_OK) fail_msg("%s", err.message);
    config_default(c);
    memset(a->line, 0, sizeof a->line), memset(b->line, 0, sizeof b->line);
    memset(a->file, 0, sizeof a->file), memset(b->file, 0, sizeof b->file);
    assert_memory_equal(a, c, sizeof *a);
    assert_memory_equal(b, c, sizeof *b);
    free(a), free(b), free(c), free(text), free(live);
}

/* ---- values ---- */

static void values_of_every_type_are_read(void **state) {
    (void)state;
    config *c = calloc(1, sizeof *c);
    ckks_error err = {0};
    const char *text = "[server]\nname = box ; why\nallow_insecure = yes\n"
                       "[listen]\ncontrol = ipc:///b\ncontrol = ipc:///a\nipc_mode = 0600\n"
                       "bulk_message_bytes = 3M\n[slots]\nexecution = eager\ncount = 4\n"
                       "[ops]\nlisten = [::1]:0\n"
                       "[queue]\nbytes_max = 2G\n[device]\nkind = cpu\n[log]\nlevel = warning\n";
    if (parse(c, text, &err) != CKKS_OK) fail_msg("%s", err.message);
    assert_string_equal(c->name, "box");
    assert_true(c->allow_insecure);
    assert_int_equal(c->control.count, 2);
    assert_string_equal(c->control.item[1], "ipc:///a");
    assert_int_equal(c->ipc_mode, 0600);
    assert_int_equal(c->bulk_message_bytes, 3u << 20);
    assert_int_equal(c->execution, EXECUTION_EAGER);
    assert_int_equal(c->slot_count, 4);
    assert_int_equal(c->bytes_max, 2ull << 30);
    assert_int_equal(c->device_kind, DEVICE_CPU);
    assert_int_equal(c->log_level, LOG_LEVEL_WARNING);
    assert_int_equal(c->bulk.count, 1); /* the default stays */
    free(c);
}

static void what_is_wrong_is_named_by_file_and_line(void **state) {
    (void)state;
    static const char long_line[] = "[server]\nname = "
                                    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
                                    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
                                    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
                                    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n";
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"[server]\n\nnmae = x\n", "x.conf:3: unknown key 'nmae' in [server]"},
        {"[sever]\nname = x\n", "x.conf:2: unknown section [sever]"},
        {"name = x\n", "x.conf:1: key 'name' stands before any [section]"},
        {"[server]\nname\n", "x.conf:2: neither [section], nor key = value"},
        {"[server\nname = x\n", "x.conf:1: neither [section]"},
        {"[server]\nname = a\nname = b\n", "x.conf:3: name is set twice (first on line 2)"},
        {"[server]\nname =\n", "x.conf:2: name: must not be empty"},
        {"[server]\nallow_insecure = maybe\n", "x.conf:2: allow_insecure: 'maybe' is none of: no, yes"},
        {"[slots]\ncount = many\n", "x.conf:2: count: 'many' is not a number"},
        {"[slots]\ncount = -1\n", "x.conf:2: count: '-1' is not a number"},
        {"[slots]\ncount = 65\n", "x.conf:2: count: 65 is outside 0 to 64"},
        {"[slots]\ncount = 99999999999999999999999\n", "is not a number"},
        {"[queue]\nbytes_max = 18446744073709551615T\n", "is not a number of bytes"},
        {"[queue]\nbytes_max = 1.5G\n", "is not a number of bytes"},
        {"[listen]\nipc_mode = 0888\n", "x.conf:2: ipc_mode: '0888' is not an octal mode"},
        {"[log]\nlevel = loud\n", "level: 'loud' is none of"},
        {"[device]\nkind = tpu\n", "kind: 'tpu' is none of: auto, cpu, cuda"},
        {"[listen]\ncontrol = tcp://0.0.0.0:7700\n",
         "x.conf:2: control: 'tcp://0.0.0.0:7700' is plaintext beyond loopback"},
        {"[listen]\nbulk = ws://10.0.0.1:80/x\n", "x.conf:2: bulk: 'ws://10.0.0.1:80/x' is plaintext"},
        {"[listen]\ncontrol = tcp://127.0.0.1:7700\n", "control has a tcp address and bulk has none"},
        {"[listen]\ncontrol = tls+tcp://0.0.0.0:7700\n", "needs tls_certificate and tls_key"},
        {"[listen]\ntls_key = /k\n", "x.conf:2: tls_key: tls_certificate and tls_key go together"},
        {"[listen]\ncontrol = http://x:1\n", "the scheme is none of"},
        {"[listen]\ncontrol = tcp://127.0.0.1\n", "expected tcp://host:port"},
        {"[listen]\ncontrol = ipc://relative\n", "an ipc address is"},
        {"[admin]\nsocket = tcp://127.0.0.1:1\n", "x.conf:2: socket: the admin socket is an ipc"},
        {"[admin]\nuid = root\n", "x.conf:2: uid: a user number"},
        {"[ops]\nlisten = 9464\n", "x.conf:2: listen: expected address:port"},
        {"[ops]\nlisten = metrics.example.org:9464\n", "x.conf:2: listen: expected an address in numbers"},
        {"[ops]\nlisten = 127.0.0.1.1:9464\n", "x.conf:2: listen: expected an address in numbers"},
        {"[device]\nthreads = 1025\n", "x.conf:2: threads: 1025 is outside 0 to 1024"},
        {"[listen]\ntls_client_ca = /ca\n", "x.conf:2: tls_client_ca: asks nobody for a certificate"},
        {"[listen]\ncontrol = ipc:///a\nbulk = ipc:///a\n", "x.conf:3: bulk: 'ipc:///a' stands there twice"},
        {"[listen]\nbulk = ipc:///b\nbulk = ipc:///b\n", "x.conf:2: bulk: 'ipc:///b' stands there twice"},
        {"[admin]\nsocket = ipc:///run/ckksd/bulk.sock\n", "x.conf:2: socket: is an address of [listen]"},
        {"[queue]\ndefault_timeout_ms = 700000\n", "x.conf:2: default_timeout_ms: is over timeout_max_ms"},
        {"[queue]\nbytes_max = 1M\n", "x.conf:2: bytes_max: is less than one bulk message"},
        {long_line, "x.conf:2: line is longer than"},
    };
    config *c = calloc(1, sizeof *c);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ckks_error err = {0};
        assert_int_not_equal(parse(c, cases[i].text, &err), CKKS_OK);
        if (!strstr(err.message, cases[i].message)) fail_msg("case %zu: %s", i, err.message);
    }
    free(c);
}

static void nul_bytes_and_overlong_files_are_refused(void **state) {
    (void)state;
    config *c = calloc(1, sizeof *c);
    ckks_error err = {0};
    assert_int_equal(config_parse(c, "[server]\nna\0me = x\n", 19, "x.conf", &err), CKKS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "x.conf:2: a NUL byte"));
    char *large = calloc(1, CONFIG_FILE_MAX + 1);
    memset(large, '\n', CONFIG_FILE_MAX + 1);
    assert_int_equal(config_parse(c, large, CONFIG_FILE_MAX + 1, "x.conf", NULL), CKKS_TOO_LARGE);
    free(large);
    free(c);
}

static void plaintext_beyond_loopback_needs_a_word(void **state) {
    (void)state;
    assert_int_equal(config_url_check("tcp://127.0.0.1:1", false, false, NULL), CKKS_OK);
    assert_int_equal(config_url_check("tcp://127.8.8.8:1", false, false, NULL), CKKS_OK);
    assert_int_equal(config_url_check("tcp://localhost:1", false, false, NULL), CKKS_OK);
    assert_int_equal(config_url_check("tcp://[::1]:1", false, false, NULL), CKKS_OK);
    assert_int_not_equal(config_url_check("tcp://127.example.org:1", false, false, NULL), CKKS_OK);
    assert_int_not_equal(config_url_check("tcp://[::]:1", false, false, NULL), CKKS_OK);
    assert_int_not_equal(config_url_check("tcp://*:1", false, false, NULL), CKKS_OK);
    assert_int_equal(config_url_check("tcp://*:1", true, false, NULL), CKKS_OK);
    assert_int_equal(config_url_check("tls+tcp://*:1", false, true, NULL), CKKS_OK);
    assert_int_equal(config_url_check("wss://*:1/path", false, true, NULL), CKKS_OK);
}

static void root_the_daemons_user_and_those_listed_may_administer(void **state) {
    (void)state;
    server *s = calloc(1, sizeof *s);
    assert_non_null(s);
    const uint64_t nobody = (uint64_t)geteuid() + 4711;
    snprintf(s->config.admin_uids.item[0], CONFIG_TEXT_MAX, "%llu", (unsigned long long)nobody);
    assert_true(server_is_admin(s, 0) && server_is_admin(s, geteuid()));
    assert_false(server_is_admin(s, nobody)); /* the list has no line yet */
    s->config.admin_uids.count = 1;
    assert_true(server_is_admin(s, nobody));
    assert_false(server_is_admin(s, nobody + 1));
    free(s);
}

/* ---- files ---- */

static void a_missing_file_of_the_configuration_is_named_with_its_line(void **state) {
    (void)state;
    char folder[] = "/tmp/test-config.XXXXXX", path[64], text[512];
    config *c = calloc(1, sizeof *c);
    ckks_error err = {0};
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/c", folder);
    assert_int_equal(config_load(c, path, &err), CKKS_NOT_FOUND);
    assert_non_null(strstr(err.message, path));
    FILE *file = fopen(path, "w");
    snprintf(text, sizeof text, "[server]\nmodels = %s\ndata = %s\n\ntokens = %s/none\n", folder, folder,
             folder);
    fputs(text, file);
    fclose(file);
    memset(&err, 0, sizeof err);
    assert_int_equal(config_load(c, path, &err), CKKS_INVALID_ARGUMENT);
    snprintf(text, sizeof text, "%s:5: tokens: %s/none: No such file", path, folder);
    if (!strstr(err.message, text)) fail_msg("%s", err.message);
    unlink(path);
    rmdir(folder);
    free(c);
}

/* a key and, where asked for, a certificate of it that it signed itself */
static EVP_PKEY *write_key(const char *key_path, const char *certificate_path, const char *passphrase) {
    EVP_PKEY *key = EVP_EC_gen("P-256");
    assert_non_null(key);
    FILE *file = fopen(key_path, "we");
    assert_non_null(file);
    assert_int_equal(PEM_write_PrivateKey(file, key, passphrase ? EVP_aes_128_cbc() : NULL, NULL, 0, NULL,
                                          (void *)(uintptr_t)passphrase),
                     1);
    fclose(file);
    if (!certificate_path) return key;
    X509 *certificate = X509_new();
    assert_non_null(certificate);
    X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    assert_int_equal(X509_set_pubkey(certificate, key), 1);
    assert_true(X509_sign(certificate, key, EVP_sha256()) > 0);
    assert_non_null(file = fopen(certificate_path, "we"));
    assert_int_equal(PEM_write_X509(file, certificate), 1);
    fclose(file);
    X509_free(certificate);
    return key;
}

static void a_certificate_and_a_key_that_do_not_belong_together_are_refused(void **state) {
    (void)state;
    char folder[] = "/tmp/test-config.XXXXXX", path[5][64];
    enum { CONFIG, CERTIFICATE, KEY, OTHER_KEY, SEALED_KEY };
    assert_non_null(mkdtemp(folder));
    for (int i = 0; i < 5; i++) snprintf(path[i], sizeof path[i], "%s/%d", folder, i);
    EVP_PKEY_free(write_key(path[KEY], path[CERTIFICATE], NULL));
    EVP_PKEY_free(write_key(path[OTHER_KEY], NULL, NULL));
    EVP_PKEY_free(write_key(path[SEALED_KEY], NULL, "word"));
    const struct {
        int certificate, key;
        const char *field, *says;
    } table[] = {{CERTIFICATE, KEY, NULL, NULL},
                 {CERTIFICATE, OTHER_KEY, "tls_key", "is not the key of the certificate"},
                 {CERTIFICATE, SEALED_KEY, "tls_key", "without a passphrase"},
                 {CERTIFICATE, CERTIFICATE, "tls_key", "no private key"},
                 {KEY, KEY, "tls_certificate", "no certificate"}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        config *c = calloc(1, sizeof *c);
        ckks_error err = {0};
        FILE *file = fopen(path[CONFIG], "we");
        assert_true(c && file);
        fprintf(
            file,
            "[server]\nmodels = %s\ndata = %s\ntokens = %s\n[listen]\ntls_certificate = %s\ntls_key = %s\n",
            folder, folder, path[KEY], path[table[i].certificate], path[table[i].key]);
        fclose(file);
        const ckks_status rc = config_load(c, path[CONFIG], &err);
        free(c);
        if (!table[i].says) {
            if (rc != CKKS_OK) fail_msg("%s", err.message);
            continue;
        }
        assert_int_equal(rc, CKKS_INVALID_ARGUMENT);
        assert_string_equal(err.field, table[i].field);
        if (!strstr(err.message, table[i].says)) fail_msg("%s", err.message);
    }
    for (int i = 0; i < 5; i++) unlink(path[i]);
    rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_sample_documents_every_key_with_its_default_and_no_other),
        cmocka_unit_test(the_sample_as_it_is_and_with_every_line_live_gives_the_defaults),
        cmocka_unit_test(values_of_every_type_are_read),
        cmocka_unit_test(what_is_wrong_is_named_by_file_and_line),
        cmocka_unit_test(nul_bytes_and_overlong_files_are_refused),
        cmocka_unit_test(plaintext_beyond_loopback_needs_a_word),
        cmocka_unit_test(root_the_daemons_user_and_those_listed_may_administer),
        cmocka_unit_test(a_missing_file_of_the_configuration_is_named_with_its_line),
        cmocka_unit_test(a_certificate_and_a_key_that_do_not_belong_together_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
