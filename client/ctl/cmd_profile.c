/* ckksctl profile */
#include "client/ctl/ctl.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

typedef struct arguments {
    ctl_options common;
    const char *name;
    bool use, remove;
} arguments;

enum { OPTION_USE = CTL_KEY_FIRST, OPTION_DELETE };
static const struct argp_option options[] = {
    {"use", OPTION_USE, 0, 0, "make this the current profile", 0},
    {"delete", OPTION_DELETE, 0, 0, "forget this profile (keys stay where they are)", 0},
    {0}};

static error_t parse(int key, char *argument, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->common;
        return 0;
    case OPTION_USE:
        a->use = true;
        return 0;
    case OPTION_DELETE:
        a->remove = true;
        return 0;
    case ARGP_KEY_ARG:
        ctl_take_one(state, &a->name, argument);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp parser = {
    options,
    parse,
    "[NAME]",
    "Remember a server, a token file and where keys are.\v"
    "Without settings, shows profiles. The environment variable CKKSCTL_PROFILE chooses one for a shell. A "
    "profile never holds a token, only the path of its file.\n\n"
    "Examples:\n"
    "  ckksctl profile --server tcp://10.0.0.5:7000 --token-file ~/.ckks-token\n"
    "  ckksctl profile lab --server ipc:///run/ckksd/control.sock --use\n"
    "  ckksctl profile lab --delete\n",
    ctl_common_children,
    0,
    0};

static bool is_address(const char *text) {
    static const char *const schemes[] = {"tcp://", "tls+tcp://", "ipc://", "ws://", "wss://"};
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++)
        if (!strncmp(text, schemes[i], strlen(schemes[i]))) return text[strlen(schemes[i])] != 0;
    return false;
}

/* a relative path would mean another file from another folder */
static ckks_status set_path(char *to, const char *value, ckks_error *err) {
    char absolute[PATH_MAX];
    if (!value) return CKKS_OK;
    const size_t size = strlen(value);
    if (value[0] == '/') {
        if (size >= CTL_PATH_MAX)
            return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "", "the path is too long");
        memcpy(to, value, size + 1);
        return CKKS_OK;
    }
    if (!realpath(".", absolute) || snprintf(to, CTL_PATH_MAX, "%s/%s", absolute, value) >= (int)CTL_PATH_MAX)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "", "%.200s: the path is too long", value);
    return CKKS_OK;
}

static bool has_settings(const ctl_options *o) {
    return o->server || o->token_file || o->ca_file || o->key;
}

static ckks_status change(const arguments *a, const char *name, ckks_error *err) {
    const ctl_options *o = &a->common;
    ckks_status rc;
    ctl_profile p;
    rc = profile_load(&p, name, NULL);
    if (rc != CKKS_OK && rc != CKKS_NOT_FOUND) return profile_load(&p, name, err);
    snprintf(p.name, sizeof p.name, "%s", name);
    if (rc == CKKS_NOT_FOUND && !has_settings(o)) return profile_load(&p, name, err);
    if (o->server) {
        if (!is_address(o->server) || strlen(o->server) >= sizeof p.server)
            return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "server",
                                  "an address begins with tcp://, tls+tcp://, ipc://, ws:// or wss://");
        snprintf(p.server, sizeof p.server, "%s", o->server);
    }
    if ((rc = set_path(p.token_file, o->token_file, err)) != CKKS_OK) return rc;
    if ((rc = set_path(p.ca_file, o->ca_file, err)) != CKKS_OK) return rc;
    if ((rc = set_path(p.key, o->key, err)) != CKKS_OK) return rc;
    return profile_save(&p, a->use, err);
}

/* all profiles, or `only` that one */
static ckks_status show(const ctl_options *o, const char *only, ckks_error *err) {
    char **names = NULL, current[64];
    size_t count = 0;
    ctl_profile one;
    ckks_status rc = only ? profile_load(&one, only, err) : CKKS_OK;
    if (rc == CKKS_OK) rc = profile_names(&names, &count, current, err);
    json_writer j;
    json_begin(&j);
    if (o->json && rc == CKKS_OK) {
        json_object(&j, NULL);
        json_string(&j, "current", current);
        json_list(&j, "profiles");
    }
    for (size_t i = 0; i < count && rc == CKKS_OK; i++) {
        ctl_profile p;
        if (only && strcmp(names[i], only) != 0) continue;
        if ((rc = profile_load(&p, names[i], err)) != CKKS_OK) break;
        if (o->json) {
            json_object(&j, NULL);
            json_string(&j, "name", p.name);
            json_string(&j, "server", p.server);
            json_string(&j, "token_file", p.token_file);
            json_string(&j, "ca", p.ca_file);
            json_string(&j, "key", p.key);
            json_close_object(&j);
            continue;
        }
        printf("%c %-16s %s\n", strcmp(names[i], current) ? ' ' : '*', p.name,
               p.server[0] ? p.server : "(no server)");
        if (p.token_file[0]) printf("    token file   %s\n", p.token_file);
        if (p.ca_file[0]) printf("    authority    %s\n", p.ca_file);
        if (p.key[0]) printf("    keys         %s\n", p.key);
    }
    if (o->json && rc == CKKS_OK) {
        json_close_list(&j);
        json_close_object(&j);
        json_end(&j);
    } else if (!count && rc == CKKS_OK) {
        printf(
            "no profiles yet; for example: ckksctl profile --server tcp://host:7000 --token-file ~/token\n");
    }
    json_discard(&j);
    profile_names_free(names, count);
    return rc;
}

static void say_done(const ctl_options *o, const char *name, bool is_deleted) {
    json_writer j;
    if (!o->json) {
        ctl_note(o, "profile \"%s\" %s", name, is_deleted ? "deleted" : "saved");
        return;
    }
    json_begin(&j);
    json_object(&j, NULL);
    json_string(&j, "profile", name);
    json_bool(&j, is_deleted ? "deleted" : "saved", true);
    json_close_object(&j);
    json_end(&j);
}

int command_profile(int argc, char **argv) {
    arguments a = {0};
    ckks_error err = {0};
    argp_parse(&parser, argc, argv, 0, NULL, &a);
    const ctl_options *o = &a.common;
    const char *name = a.name ? a.name : o->profile_name;
    ckks_status rc;
    if (a.remove) {
        rc = name ? profile_delete(name, &err)
                  : ckks_error_set(&err, CKKS_INVALID_ARGUMENT, "profile", "delete which one?");
        if (rc == CKKS_OK) say_done(o, name, true);
    } else if (has_settings(o) || a.use) {
        ctl_profile current;
        rc = profile_load(&current, NULL, &err);
        if (rc == CKKS_NOT_FOUND) err = (ckks_error){0}, rc = CKKS_OK; /* CKKSCTL_PROFILE names a new one */
        if (rc == CKKS_OK) rc = change(&a, name ? name : current.name, &err);
        if (rc == CKKS_OK) say_done(o, name ? name : current.name, false);
    } else {
        rc = show(o, name, &err);
    }
    return rc == CKKS_OK ? EXIT_GOOD : ctl_fail(o, &err);
}
