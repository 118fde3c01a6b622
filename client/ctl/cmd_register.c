/* ckksctl register: upload key sets. Secret keys are refused here as well: their kind of file is never opened
 * for it. */
#include "client/ctl/ctl.h"

#include "client/lib/rpc_internal.h"
#include "kernels/base/bytes.h"

#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define FILES_MAX 256u

typedef struct arguments {
    ctl_options common;
    const char *models[FILES_MAX], *files[FILES_MAX];
    uint32_t model_count, file_count;
} arguments;

enum { OPTION_FOR = CTL_KEY_FIRST };
static const struct argp_option options[] = {
    {"for", OPTION_FOR, "MODEL", 0, "only the keys of this model's parameters; may be repeated", 0}, {0}};

static error_t parse(int key, char *argument, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->common;
        return 0;
    case OPTION_FOR:
        if (a->model_count == FILES_MAX) ctl_refuse_more(state, argument);
        a->models[a->model_count++] = ctl_take_model(state, argument);
        return 0;
    case ARGP_KEY_ARG:
        if (a->file_count == FILES_MAX) ctl_refuse_more(state, argument);
        a->files[a->file_count++] = argument;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp parser = {
    options,
    parse,
    "[FILE.keys...]",
    "Upload evaluation keys. The secret key stays where it is.\v"
    "Without files or --for, uploads every key set of the profile's key folder. An upload that was cut off "
    "goes on "
    "where it stopped; what the server has already is not sent again.\n\n"
    "Examples:\n"
    "  ckksctl register\n"
    "  ckksctl register --for mnist\n"
    "  ckksctl register alice.keys --profile lab\n",
    ctl_common_children,
    0,
    0};

typedef struct run {
    const arguments *a;
    rpc_connection *connection;
    json_writer json;
    uint32_t sent;
} run;

static ckks_status register_file(run *r, const char *path, ckks_error *err) {
    const ctl_options *o = &r->a->common;
    ckks_status rc;
    client_key_set *set = NULL;
    bool was_there = false;
    ctl_bar bar;
    char text[32], id[65];
    if ((rc = key_set_file_read(&set, path, o->allow_insecure, err)) != CKKS_OK) return rc;
    const uint64_t begin_ns = rpc_now_ns();
    ctl_bar_begin(&bar, o, "uploading", true);
    rc = rpc_register(r->connection, set, &was_there, ctl_bar_update, &bar, err);
    ctl_bar_end(&bar);
    const double seconds = (double)(rpc_now_ns() - begin_ns) * 1e-9;
    if (rc == CKKS_OK && o->json) {
        json_object(&r->json, NULL);
        json_string(&r->json, "file", path);
        json_hex(&r->json, "key_set", set->id, sizeof set->id);
        json_integer(&r->json, "key_count", set->key_count);
        json_integer(&r->json, "bytes", set->payload_bytes);
        json_bool(&r->json, "was_there", was_there);
        json_number(&r->json, "seconds", seconds);
        json_close_object(&r->json);
    } else if (rc == CKKS_OK) {
        printf("%s  %s  %u keys, %s, %s", hex_encode(id, set->id, 8), path, set->key_count,
               ctl_bytes(text, set->payload_bytes), was_there ? "was there already\n" : "");
        if (!was_there) printf("uploaded in %.1f s\n", seconds);
    }
    r->sent++;
    client_key_set_destroy(set);
    return rc;
}

static ckks_status register_models(run *r, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    for (uint32_t i = 0; i < r->a->model_count && rc == CKKS_OK; i++) {
        client_model *m = NULL;
        key_paths paths;
        rc = ctl_model(&m, &r->connection, &r->a->common, r->a->models[i], NULL, err);
        if (rc == CKKS_OK && !m->key_count)
            ctl_note(&r->a->common, "%s needs no evaluation keys", r->a->models[i]);
        else if (rc == CKKS_OK &&
                 (rc = key_paths_for(&paths, r->a->common.profile.key, &m->params, err)) == CKKS_OK)
            rc = register_file(r, paths.keys, err);
        if (rc == CKKS_NOT_FOUND && err && !rpc_error_is_from_server(err)) err->code = rc = CKKS_KEY_MISSING;
        client_model_destroy(m);
    }
    return rc;
}

static ckks_status register_folder(run *r, ckks_error *err) {
    const char *where = r->a->common.profile.key;
    ckks_status rc = CKKS_OK;
    struct stat st;
    char pattern[CTL_PATH_MAX + 16];
    const bool is_folder = stat(where, &st) == 0 && S_ISDIR(st.st_mode);
    glob_t found = {0};
    snprintf(pattern, sizeof pattern, "%s%s.keys", where,
             !is_folder                        ? ""
             : where[strlen(where) - 1] == '/' ? "*"
                                               : "/*");
    if (glob(pattern, 0, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc && rc == CKKS_OK; i++)
            rc = register_file(r, found.gl_pathv[i], err);
    globfree(&found);
    if (rc == CKKS_OK && !r->sent)
        rc = ckks_error_set(err, CKKS_KEY_MISSING, "key", "there are no keys in %s", where);
    return rc;
}

int command_register(int argc, char **argv) {
    arguments a = {0};
    ckks_error err = {0};
    argp_parse(&parser, argc, argv, 0, NULL, &a);
    run r = {.a = &a};
    json_begin(&r.json);
    ckks_status rc = ctl_resolve(&a.common, &err);
    if (rc == CKKS_OK) rc = ctl_connect(&r.connection, &a.common, &err);
    if (a.common.json && rc == CKKS_OK) json_list(&r.json, NULL);
    for (uint32_t i = 0; i < a.file_count && rc == CKKS_OK; i++) rc = register_file(&r, a.files[i], &err);
    if (rc == CKKS_OK && a.model_count) rc = register_models(&r, &err);
    if (rc == CKKS_OK && !a.model_count && !a.file_count) rc = register_folder(&r, &err);
    if (a.common.json && rc == CKKS_OK) {
        json_close_list(&r.json);
        json_end(&r.json);
    }
    json_discard(&r.json);
    rpc_close(r.connection);
    return rc == CKKS_OK ? EXIT_GOOD : ctl_fail(&a.common, &err);
}
