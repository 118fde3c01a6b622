/* ckksctl doctor: everything between here and a first answer, one line each, each with what to do. */
#include "client/ctl/ctl.h"

#include "client/lib/rpc_internal.h"
#include "kernels/base/bytes.h"
#include "kernels/device_health.h"
#include "kernels/device_select.h"

#include <glob.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct arguments {
    ctl_options common;
} arguments;

static error_t parse(int key, char *argument, struct argp_state *state) {
    arguments *a = state->input;
    (void)argument;
    if (key != ARGP_KEY_INIT) return ARGP_ERR_UNKNOWN;
    state->child_inputs[0] = &a->common;
    return 0;
}

static const struct argp parser = {
    NULL,
    parse,
    "",
    "Check profile, clock, memory, GPUs, keys, server, token, models and registered keys.\v"
    "Exit code 0 when nothing failed; the first failure's code otherwise.\n\n"
    "Example:\n"
    "  ckksctl doctor\n",
    ctl_common_children,
    0,
    0};

typedef enum verdict { GOOD, WARNING, BAD } verdict;

typedef struct doctor {
    ctl_options *options;
    json_writer j;
    rpc_connection *connection;
    int code;
    uint32_t problems, warnings;
} doctor;

static void line(doctor *d, verdict v, const char *what, const char *found, const char *advice) {
    static const char *const word[] = {"ok", "warning", "FAILED"};
    d->problems += v == BAD;
    d->warnings += v == WARNING;
    if (d->options->json) {
        json_object(&d->j, NULL);
        json_string(&d->j, "check", what);
        json_string(&d->j, "result", v == GOOD ? "ok" : v == WARNING ? "warning" : "failed");
        json_string(&d->j, "found", found);
        json_string(&d->j, "advice", v == GOOD ? "" : advice);
        json_close_object(&d->j);
        return;
    }
    printf("%-8s %-12s %s\n", word[v], what, found);
    if (v != GOOD && advice[0]) printf("%21s -> %s\n", "", advice);
}

static void fail(doctor *d, const char *what, const ckks_error *err, const char *advice) {
    char text[512];
    ckks_error copy = *err;
    copy.stage[0] = 0;
    line(d, BAD, what, ckks_error_print(&copy, text, sizeof text), advice);
    if (!d->code) d->code = ctl_exit_code(err);
}

static void check_profile(doctor *d) {
    const ctl_profile *p = &d->options->profile;
    char text[RPC_ADDRESS_MAX + 128];
    struct stat st;
    if (!p->server[0]) {
        line(d, BAD, "profile", "no server is known", "ckksctl profile --server ADDRESS --token-file FILE");
        if (!d->code) d->code = EXIT_USAGE;
    } else {
        snprintf(text, sizeof text, "\"%s\", server %s", p->name, p->server);
        line(d, GOOD, "profile", text, "");
    }
    if (!p->token_file[0])
        line(d, WARNING, "token", "no token file is set",
             "ask the operator for a token; then ckksctl profile --token-file FILE");
    else if (stat(p->token_file, &st) != 0)
        line(d, BAD, "token", "the token file does not exist",
             "check ckksctl profile, or save the token there");
    else if (st.st_mode & 077)
        line(d, WARNING, "token", "others on this machine may read the token file", "chmod 600 it");
    else
        line(d, GOOD, "token", "the file is there and private", "");
}

static void check_machine(doctor *d) {
    char text[96];
    const time_t now = time(NULL);
    struct tm tm;
    /* certificates and creation times depend on it; nothing else does */
    if (now < 1700000000 || !gmtime_r(&now, &tm)) {
        line(d, WARNING, "clock", "the clock is before 2023", "set it: certificates will not verify");
    } else {
        strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &tm);
        line(d, GOOD, "clock", text, "");
    }
    void *guarded = sodium_malloc(4096);
    if (guarded)
        line(d, GOOD, "memory", "guarded and locked memory for secrets is available", "");
    else
        line(d, BAD, "memory", "no guarded memory for secrets",
             "raise the limit of locked memory (ulimit -l)");
    sodium_free(guarded);
}

static void check_card(doctor *d, const device_health *h, uint32_t index) {
    char text[320], reasons[96] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < HEALTH_THROTTLE_REASONS; i++) {
        const health_throttle_reason *r = &health_throttle_reasons[i];
        if (h->throttle & r->bit & HEALTH_THROTTLE_BAD && used < sizeof reasons)
            used += (size_t)snprintf(reasons + used, sizeof reasons - used, " %s", r->name);
    }
    snprintf(text, sizeof text,
             "%u: %s, driver %s, compute capability %d.%d, %u C, %.0f W, %.1f of %.1f GiB used", index,
             h->name, h->driver, h->major, h->minor, h->temperature_c, (double)h->power_mw * 1e-3,
             (double)h->memory_used / 1073741824.0, (double)h->memory_total / 1073741824.0);
    if (h->known & HEALTH_CAPABILITY && h->major < GPU_MAJOR_MIN) {
        line(d, WARNING, "gpu", text, "too old for ckksd, which needs compute capability 8.0 or newer");
    } else if (h->ecc_uncorrected) {
        line(d, WARNING, "gpu", text, "its memory has uncorrected errors: replace the card");
    } else if (reasons[0]) {
        const size_t end = strlen(text);
        snprintf(text + end, sizeof text - end, ", held back:%s", reasons);
        line(d, WARNING, "gpu", text, "check its cooling and its power supply");
    } else {
        line(d, GOOD, "gpu", text, "");
    }
}

/* Of this machine, in case a daemon or a benchmark is to run here; a client needs none. */
static void check_gpus(doctor *d) {
    health_source *s = NULL;
    ckks_error err = {0};
    char text[400];
    if (health_open(&s, NULL, NULL, &err) != CKKS_OK) {
        snprintf(text, sizeof text, "none to ask here (%s); a client needs none", err.message);
        line(d, GOOD, "gpu", text, "");
        return;
    }
    const uint32_t count = health_count(s);
    for (uint32_t i = 0; i < count; i++) {
        device_health h;
        if (health_select(s, i, NULL) != CKKS_OK) continue;
        health_read(s, &h);
        check_card(d, &h, i);
    }
    health_close(s);
}

static void check_keys(doctor *d) {
    const ctl_profile *p = &d->options->profile;
    char pattern[CTL_PATH_MAX + 16], text[128];
    struct stat st;
    glob_t found = {0};
    const bool is_folder = stat(p->key, &st) == 0 && S_ISDIR(st.st_mode);
    snprintf(pattern, sizeof pattern, "%s%s.secret", p->key,
             !is_folder                          ? ""
             : p->key[strlen(p->key) - 1] == '/' ? "*"
                                                 : "/*");
    const size_t count = glob(pattern, 0, NULL, &found) == 0 ? found.gl_pathc : 0;
    uint32_t open_count = 0, sealed = 0;
    for (size_t i = 0; i < count; i++) {
        uint8_t *image = NULL;
        size_t size = 0;
        secret_file_info info;
        ckks_error err = {0};
        if (stat(found.gl_pathv[i], &st) == 0 && (st.st_mode & 077)) open_count++;
        if (file_read(&image, &size, found.gl_pathv[i], 1u << 20, &err) != CKKS_OK ||
            secret_file_inspect(&info, image, size, &err) != CKKS_OK)
            fail(d, "keys", &err, "restore the file from a backup, or make a new key with ckksctl keygen");
        else
            sealed += info.is_sealed;
        free(image);
    }
    globfree(&found);
    snprintf(text, sizeof text, "%zu secret key%s, %u with a passphrase", count, count == 1 ? "" : "s",
             sealed);
    if (open_count)
        line(d, BAD, "keys", "a secret key may be read by others", "chmod 600 the .secret files");
    else if (!count)
        line(d, WARNING, "keys", "there is no secret key yet", "ckksctl keygen --for MODEL");
    else
        line(d, GOOD, "keys", text, "");
}

static bool check_server(doctor *d) {
    char text[RPC_ADDRESS_MAX + 128];
    ckks_error err = {0};
    if (!d->options->profile.server[0]) return false;
    const uint64_t begin_ns = rpc_now_ns();
    if (ctl_connect(&d->connection, d->options, &err) != CKKS_OK) {
        fail(d, "server", &err,
             err.code == CKKS_UNTRUSTED_SERVER
                 ? "give the authority that signed its certificate: --ca FILE"
                 : "is the daemon running, is the address right, is a firewall between?");
        return false;
    }
    const Ckksd__V1__ServerMetadataReply *s = rpc_server(d->connection);
    snprintf(text, sizeof text, "%s answers in %.1f ms, version %.32s, wire versions %u to %u",
             rpc_address(d->connection), (double)(rpc_now_ns() - begin_ns) * 1e-6,
             s->version ? s->version : "?", s->wire_version_min, s->wire_version_max);
    const bool is_same = s->version && !strcmp(s->version, CKKSD_VERSION);
    line(d, is_same ? GOOD : WARNING, "server", text,
         "its version differs from this program's " CKKSD_VERSION ": fine while the wire versions overlap");
    if (!strncmp(rpc_address(d->connection), "tcp://", 6) &&
        !strstr(rpc_address(d->connection), "127.0.0.1") && !strstr(rpc_address(d->connection), "localhost"))
        line(d, WARNING, "transport", "the connection is not encrypted: your token can be read on the way",
             "use tls+tcp:// (data and results are encrypted in any case)");
    return true;
}

/* Does the server have keys of ours that serve this model? */
static void check_model_keys(doctor *d, const client_model *m) {
    key_paths paths;
    client_key_set *set = NULL;
    rpc_reply reply = {0};
    ckks_error err = {0};
    const char *name = m->description->name;
    char advice[320], text[320];
    snprintf(advice, sizeof advice, "ckksctl keygen --for %.128s && ckksctl register", name);
    snprintf(text, sizeof text, "%.128s: no keys here for its parameters", name);
    if (key_paths_for(&paths, d->options->profile.key, &m->params, &err) != CKKS_OK ||
        key_set_file_peek(&set, paths.keys, d->options->allow_insecure, NULL) != CKKS_OK) {
        line(d, WARNING, "model", text, advice);
        return;
    }
    if (client_requirements_cover(set->keys, set->key_count, m->keys, m->key_count, NULL) != CKKS_OK) {
        snprintf(text, sizeof text, "%.128s: the keys here are not all that it needs", name);
        line(d, WARNING, "model", text, advice);
    } else {
        Ckksd__V1__KeyStatusRequest payload = CKKSD__V1__KEY_STATUS_REQUEST__INIT;
        payload.has_key_set = 1, payload.key_set = (ProtobufCBinaryData){sizeof set->id, set->id};
        const rpc_request request = {.method = "Keys/KeyStatus",
                                     .payload = &payload.base,
                                     .reply = &ckksd__v1__key_status_reply__descriptor};
        if (rpc_call(d->connection, &request, &reply, &err) != CKKS_OK) {
            fail(d, "model", &err, "the token needs the scope key-write to look");
        } else {
            const bool is_there = ((const Ckksd__V1__KeyStatusReply *)reply.payload)->state ==
                                  CKKSD__V1__KEY_STATUS_REPLY__STATE__COMMITTED;
            snprintf(text, sizeof text,
                     is_there ? "%.128s: ready to use" : "%.128s: the server does not have its keys", name);
            line(d, is_there ? GOOD : WARNING, "model", text, "ckksctl register");
        }
    }
    rpc_reply_fini(&reply);
    client_key_set_destroy(set);
}

static void check_models(doctor *d) {
    const Ckksd__V1__ServerMetadataReply *s = rpc_server(d->connection);
    const client_model_options options = {.allow_insecure = d->options->allow_insecure};
    bool is_ready = true;
    if (!s->n_models && ctl_is_ready(&is_ready, d->connection, NULL) == CKKS_OK && !is_ready)
        line(d, WARNING, "models", "the server is still loading them", "wait");
    else if (!s->n_models)
        line(d, WARNING, "models", "the server has none that is ready", "ask its operator");
    for (size_t i = 0; i < s->n_models; i++) {
        client_model *m = NULL;
        char *name = NULL;
        const char *version;
        ckks_error err = {0};
        if (ctl_split_model(&name, &version, s->models[i], &err) == CKKS_OK &&
            rpc_model(&m, d->connection, name, version, &options, &err) == CKKS_OK)
            check_model_keys(d, m);
        else
            fail(d, "model", &err,
                 err.code == CKKS_AUTH ? "the token is missing or wrong: ckksctl profile --token-file FILE"
                                       : "do not use this model");
        client_model_destroy(m);
        free(name);
        if (err.code == CKKS_AUTH) return; /* the same for all */
    }
}

int command_doctor(int argc, char **argv) {
    arguments a = {0};
    ckks_error err = {0};
    argp_parse(&parser, argc, argv, 0, NULL, &a);
    doctor d = {.options = &a.common};
    json_begin(&d.j);
    if (ctl_resolve(&a.common, &err) != CKKS_OK) return ctl_fail(&a.common, &err);
    if (a.common.json) json_list(&d.j, NULL);
    check_profile(&d);
    check_machine(&d);
    check_gpus(&d);
    check_keys(&d);
    if (check_server(&d)) check_models(&d);
    rpc_close(d.connection);
    if (a.common.json) {
        json_close_list(&d.j);
        json_end(&d.j);
    } else if (!d.problems && !d.warnings) {
        printf("everything is in place\n");
    }
    json_discard(&d.j);
    return d.problems ? (d.code ? d.code : EXIT_OTHER) : EXIT_GOOD;
}
