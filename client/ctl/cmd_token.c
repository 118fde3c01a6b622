/* ckksctl token add: the only way tokens come into being. */
#include "client/ctl/ctl.h"

#include "proto/token.h"

#include <fcntl.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct arguments {
    ctl_options common;
    const char *action, *file, *id, *tenant, *scopes, *output;
    token_quota quota;
} arguments;

enum {
    OPTION_FILE = CTL_KEY_FIRST,
    OPTION_ID,
    OPTION_TENANT,
    OPTION_SCOPES,
    OPTION_KEY_BYTES,
    OPTION_KEY_SETS,
    OPTION_QUEUED,
    OPTION_KEY_DAYS
};
static const struct argp_option options[] = {
    {"file", OPTION_FILE, "FILE", 0, "the daemon's token file (default /etc/ckksd/tokens)", 0},
    {"id", OPTION_ID, "NAME", 0, "public name of the token (default: the tenant and a number)", 0},
    {"tenant", OPTION_TENANT, "NAME", 0, "whose token it is: keys and quotas belong to tenants", 0},
    {"scopes", OPTION_SCOPES, "LIST", 0, "infer, key-write, admin (default infer,key-write)", 0},
    {"output", 'o', "FILE", 0, "write the token here (mode 0600) instead of to standard output", 0},
    {"key-bytes", OPTION_KEY_BYTES, "N", 0, "quota: bytes of keys", 0},
    {"key-sets", OPTION_KEY_SETS, "N", 0, "quota: key sets", 0},
    {"queued", OPTION_QUEUED, "N", 0, "quota: requests waiting or running", 0},
    {"key-days", OPTION_KEY_DAYS, "N", 0, "keys unused for so many days are evicted, to be uploaded again",
     0},
    {0}};

static error_t parse(int key, char *argument, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->common;
        return 0;
    case OPTION_FILE:
        a->file = argument;
        return 0;
    case OPTION_ID:
        a->id = argument;
        return 0;
    case OPTION_TENANT:
        a->tenant = argument;
        return 0;
    case OPTION_SCOPES:
        a->scopes = argument;
        return 0;
    case 'o':
        a->output = ctl_take_output(state, argument, "output");
        return 0;
    case OPTION_KEY_BYTES:
        a->quota.key_bytes = ctl_take_count(state, argument, UINT64_MAX, "key-bytes");
        return 0;
    case OPTION_KEY_SETS:
        a->quota.key_sets = (uint32_t)ctl_take_count(state, argument, UINT32_MAX, "key-sets");
        return 0;
    case OPTION_QUEUED:
        a->quota.queued = (uint32_t)ctl_take_count(state, argument, UINT32_MAX, "queued");
        return 0;
    case OPTION_KEY_DAYS:
        a->quota.key_days = (uint32_t)ctl_take_count(state, argument, UINT32_MAX, "key-days");
        return 0;
    case ARGP_KEY_ARG:
        ctl_take_one(state, &a->action, argument);
        if (strcmp(argument, "add") != 0) argp_error(state, "%s is no action: the action is add", argument);
        return 0;
    case ARGP_KEY_END:
        ctl_need(state, a->action, "add", "what to do");
        ctl_need(state, a->tenant, "--tenant NAME", "whose token it is");
        if (!token_name_is_valid(a->tenant))
            argp_error(state, "--tenant takes 1 to %u letters, digits, '-' or '_'", TOKEN_NAME_MAX);
        if (a->id && !token_name_is_valid(a->id))
            argp_error(state, "--id takes 1 to %u letters, digits, '-' or '_'", TOKEN_NAME_MAX);
        ckks_error scope_error = {0};
        uint32_t scopes;
        if (a->scopes && token_scopes_parse(&scopes, a->scopes, &scope_error) != CKKS_OK)
            argp_error(state, "--scopes: %s", scope_error.message);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp parser = {
    options,
    parse,
    "add",
    "Make an access token (for operators).\v"
    "The token is printed once; the daemon's file keeps only a hash of it. The daemon reads the file again "
    "on SIGHUP. "
    "Removing a line of the file and reloading takes a token back.\n\n"
    "Examples:\n"
    "  ckksctl token add --tenant clinic -o clinic.token\n"
    "  systemctl reload ckksd\n"
    "  ckksctl token add --tenant ci --scopes infer --queued 4\n",
    ctl_common_children,
    0,
    0};

/* the first of TENANT-1, TENANT-2 ... that the file does not have; file_add would refuse a repeated one */
static ckks_status choose_id(char id[TOKEN_NAME_MAX + 1], const char *tenant, const char *file,
                             ckks_error *err) {
    token_table table = {0};
    ckks_status rc = access(file, F_OK) == 0 ? token_table_load(&table, file, err) : CKKS_OK;
    for (unsigned n = 1; rc == CKKS_OK && n < 100000; n++) {
        bool is_taken = false;
        snprintf(id, TOKEN_NAME_MAX + 1, "%.50s-%u", tenant, n);
        for (size_t i = 0; i < table.count && !is_taken; i++) is_taken = !strcmp(table.entries[i].id, id);
        if (!is_taken) break;
    }
    token_table_fini(&table);
    return rc;
}

/* the file is made before the token is added: a token that nobody got must not be valid */
static ckks_status write_token(const char *path, const char *text, ckks_error *err) {
    char line[TOKEN_TEXT_SIZE + 1];
    const int size = snprintf(line, sizeof line, "%s\n", text);
    const ckks_status rc = file_write(path, line, (size_t)size, 0600, false, err);
    sodium_memzero(line, sizeof line);
    if (rc != CKKS_OK && !strcmp(err->field, "folder")) unlink(path);
    return rc;
}

static ckks_status make_token(char text[TOKEN_TEXT_SIZE], token_entry *entry, const arguments *a,
                              const char *file, uint32_t scopes, ckks_error *err) {
    char id[TOKEN_NAME_MAX + 1] = "";
    ckks_status rc = a->id ? CKKS_OK : choose_id(id, a->tenant, file, err);
    if (rc == CKKS_OK) rc = token_generate(text, entry, a->id ? a->id : id, a->tenant, scopes, err);
    if (rc != CKKS_OK) return rc;
    entry->quota = a->quota;
    if (a->output && (rc = write_token(a->output, text, err)) != CKKS_OK) return rc;
    if ((rc = token_file_add(file, entry, err)) != CKKS_OK && a->output) unlink(a->output);
    return rc;
}

int command_token(int argc, char **argv) {
    arguments a = {0};
    ckks_error err = {0};
    char text[TOKEN_TEXT_SIZE] = "";
    token_entry entry;
    uint32_t scopes = 0;
    argp_parse(&parser, argc, argv, 0, NULL, &a);
    const char *file = a.file ? a.file : "/etc/ckksd/tokens";
    ckks_status rc = token_scopes_parse(&scopes, a.scopes ? a.scopes : "infer,key-write", &err);
    if (rc == CKKS_OK) rc = make_token(text, &entry, &a, file, scopes, &err);
    /* a number that another took in the meantime */
    while (rc == CKKS_ALREADY_EXISTS && !a.id && !strcmp(err.field, "id")) {
        err = (ckks_error){0};
        rc = make_token(text, &entry, &a, file, scopes, &err);
    }
    if (rc == CKKS_OK && a.common.json) {
        json_writer j;
        json_begin(&j);
        json_object(&j, NULL);
        json_string(&j, "id", entry.id);
        json_string(&j, "tenant", entry.tenant);
        json_string(&j, "file", file);
        if (!a.output) json_string(&j, "token", text);
        json_close_object(&j);
        json_end(&j);
    } else if (rc == CKKS_OK && !a.output) {
        printf("%s\n", text);
    }
    sodium_memzero(text, sizeof text);
    if (rc != CKKS_OK) return ctl_fail(&a.common, &err);
    ctl_note(&a.common, "token \"%s\" added to %s; the daemon knows it after a reload", entry.id, file);
    return EXIT_GOOD;
}
