/*
 * Profiles: a small ini file in the user's configuration folder,
 *
 *   current = NAME
 *   [NAME]
 *   server = tcp://host:port
 *   token_file = /path
 *   ca = /path
 *   key = /folder/
 *
 * Read and written whole. A token is never in it, only where the token is.
 */
#include "client/ctl/ctl.h"

#include <ctype.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROFILES_MAX     64u
#define PROFILE_FILE_MAX (1u << 20)

typedef struct profile_file {
    char current[64];
    size_t count;
    ctl_profile *list; /* [PROFILES_MAX] */
} profile_file;

const char *ctl_home(void) {
    const char *home = getenv("HOME");
    if (home && home[0]) return home;
    const struct passwd *me = getpwuid(getuid());
    return me ? me->pw_dir : NULL;
}

const char *profile_path(char path[CTL_PATH_MAX], const char *file) {
    const char *base = getenv("XDG_CONFIG_HOME"), *home = ctl_home();
    if (base && base[0] == '/')
        snprintf(path, CTL_PATH_MAX, "%s/ckksctl/%s", base, file);
    else
        snprintf(path, CTL_PATH_MAX, "%s/.config/ckksctl/%s", home ? home : ".", file);
    return path;
}

static bool name_is_good(const char *name) {
    const size_t size = strlen(name);
    if (size == 0 || size >= 64) return false;
    for (size_t i = 0; i < size; i++)
        if (!isalnum((unsigned char)name[i]) && !strchr("-_.", name[i])) return false;
    return true;
}

static char *trim(char *text) {
    while (isspace((unsigned char)*text)) text++;
    size_t size = strlen(text);
    while (size && isspace((unsigned char)text[size - 1])) text[--size] = 0;
    return text;
}

static ctl_profile *find(profile_file *f, const char *name) {
    for (size_t i = 0; i < f->count; i++)
        if (!strcmp(f->list[i].name, name)) return &f->list[i];
    return NULL;
}

/* where a setting's text goes */
static char *field(ctl_profile *p, const char *key, size_t *capacity) {
    *capacity = CTL_PATH_MAX;
    if (!strcmp(key, "token_file")) return p->token_file;
    if (!strcmp(key, "ca")) return p->ca_file;
    if (!strcmp(key, "key")) return p->key;
    *capacity = RPC_ADDRESS_MAX;
    return strcmp(key, "server") ? NULL : p->server;
}

static ckks_status parse_line(profile_file *f, ctl_profile **section, char *line, unsigned number,
                              const char *path, ckks_error *err) {
    char *text = trim(line);
    if (!*text || *text == '#' || *text == ';') return CKKS_OK;
    if (*text == '[') {
        char *end = strchr(text, ']');
        if (!end || end[1])
            return ckks_error_set(err, CKKS_MALFORMED, "", "%s:%u: a section is [name]", path, number);
        *end = 0;
        if (!name_is_good(text + 1) || find(f, text + 1) || f->count == PROFILES_MAX)
            return ckks_error_set(err, CKKS_MALFORMED, "", "%s:%u: bad or repeated profile name", path,
                                  number);
        *section = &f->list[f->count++];
        snprintf((*section)->name, sizeof(*section)->name, "%.63s", text + 1);
        return CKKS_OK;
    }
    char *equals = strchr(text, '=');
    if (!equals)
        return ckks_error_set(err, CKKS_MALFORMED, "", "%s:%u: \"key = value\" is needed", path, number);
    *equals = 0;
    const char *key = trim(text), *value = trim(equals + 1);
    size_t capacity = sizeof f->current;
    char *to = *section ? field(*section, key, &capacity) : strcmp(key, "current") ? NULL : f->current;
    if (!to || strlen(value) >= capacity)
        return ckks_error_set(err, CKKS_MALFORMED, "", "%s:%u: unknown key or value too long: %.60s", path,
                              number, key);
    snprintf(to, capacity, "%s", value);
    return CKKS_OK;
}

static void file_fini(profile_file *f) {
    free(f->list);
    *f = (profile_file){0};
}

static ckks_status file_load(profile_file *out, ckks_error *err) {
    ckks_status rc;
    char path[CTL_PATH_MAX];
    uint8_t *bytes = NULL;
    size_t size = 0;
    *out = (profile_file){.current = "default", .list = calloc(PROFILES_MAX, sizeof *out->list)};
    if (!out->list) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for profiles");
    profile_path(path, "config");
    if (access(path, F_OK) != 0) return CKKS_OK;
    if ((rc = file_read(&bytes, &size, path, PROFILE_FILE_MAX, err)) != CKKS_OK) return rc;
    ctl_profile *section = NULL;
    unsigned number = 0;
    for (size_t at = 0; at < size && rc == CKKS_OK;) {
        char line[CTL_PATH_MAX + 64];
        const uint8_t *end = memchr(bytes + at, '\n', size - at);
        const size_t length = end ? (size_t)(end - bytes) - at : size - at;
        number++;
        if (length >= sizeof line || memchr(bytes + at, 0, length)) {
            rc = ckks_error_set(err, CKKS_MALFORMED, "", "%s:%u: not a line of text", path, number);
            break;
        }
        memcpy(line, bytes + at, length);
        line[length] = 0;
        rc = parse_line(out, &section, line, number, path, err);
        at += length + 1;
    }
    free(bytes);
    return rc;
}

static ckks_status file_save(const profile_file *f, ckks_error *err) {
    ckks_status rc;
    char path[CTL_PATH_MAX], *text = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&text, &size);
    if (!to) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for profiles");
    fprintf(to, "# written by ckksctl profile\ncurrent = %s\n", f->current);
    for (size_t i = 0; i < f->count; i++) {
        const ctl_profile *p = &f->list[i];
        fprintf(to, "\n[%s]\n", p->name);
        if (p->server[0]) fprintf(to, "server = %s\n", p->server);
        if (p->token_file[0]) fprintf(to, "token_file = %s\n", p->token_file);
        if (p->ca_file[0]) fprintf(to, "ca = %s\n", p->ca_file);
        if (p->key[0]) fprintf(to, "key = %s\n", p->key);
    }
    if (fclose(to) != 0) {
        free(text);
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for profiles");
    }
    profile_path(path, "config");
    if ((rc = file_make_parents(path, err)) == CKKS_OK) rc = file_write(path, text, size, 0600, true, err);
    free(text);
    return rc;
}

ckks_status profile_load(ctl_profile *out, const char *name, ckks_error *err) {
    profile_file f;
    ckks_status rc = file_load(&f, err);
    if (rc == CKKS_OK) {
        const char *environment = getenv("CKKSCTL_PROFILE");
        const bool is_named = (name && name[0]) || (environment && environment[0]);
        const char *wanted = name && name[0] ? name : is_named ? environment : f.current;
        const ctl_profile *found = find(&f, wanted);
        *out = found ? *found : (ctl_profile){0};
        snprintf(out->name, sizeof out->name, "%.63s", wanted);
        if (!found && is_named)
            rc = ckks_error_set(err, CKKS_NOT_FOUND, "profile", "there is no profile \"%.63s\"", wanted);
    }
    file_fini(&f);
    return rc;
}

/* what the file could not give back as it is would be another server, another file, or no file to read at all
 */
static ckks_status check_value(const char *value, const char *setting, ckks_error *err) {
    const size_t size = strlen(value);
    bool is_good =
        size == 0 || (!isspace((unsigned char)value[0]) && !isspace((unsigned char)value[size - 1]));
    for (size_t i = 0; i < size && is_good; i++)
        is_good = (unsigned char)value[i] >= 0x20 && (unsigned char)value[i] != 0x7f;
    return is_good
               ? CKKS_OK
               : ckks_error_set(err, CKKS_INVALID_ARGUMENT, "profile",
                                "--%s has a line end, another control character, or a space at its begin or "
                                "end: not kept",
                                setting);
}

ckks_status profile_save(const ctl_profile *profile, bool make_current, ckks_error *err) {
    profile_file f;
    ckks_status rc;
    if (!name_is_good(profile->name))
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "profile",
                              "letters, digits and -_. are needed for a name");
    if ((rc = check_value(profile->server, "server", err)) != CKKS_OK ||
        (rc = check_value(profile->token_file, "token-file", err)) != CKKS_OK ||
        (rc = check_value(profile->ca_file, "ca", err)) != CKKS_OK ||
        (rc = check_value(profile->key, "key", err)) != CKKS_OK)
        return rc;
    if ((rc = file_load(&f, err)) != CKKS_OK) goto out;
    ctl_profile *p = find(&f, profile->name);
    if (!p && f.count == PROFILES_MAX) {
        rc = ckks_error_set(err, CKKS_TOO_LARGE, "profile", "at most %u profiles", PROFILES_MAX);
        goto out;
    }
    if (!p) p = &f.list[f.count++];
    *p = *profile;
    if (make_current || f.count == 1) snprintf(f.current, sizeof f.current, "%s", profile->name);
    rc = file_save(&f, err);
out:
    file_fini(&f);
    return rc;
}

ckks_status profile_delete(const char *name, ckks_error *err) {
    profile_file f;
    ckks_status rc = file_load(&f, err);
    if (rc == CKKS_OK) {
        ctl_profile *p = find(&f, name);
        if (!p) {
            rc = ckks_error_set(err, CKKS_NOT_FOUND, "profile", "there is no profile \"%s\"", name);
        } else {
            *p = f.list[--f.count];
            if (!strcmp(f.current, name))
                snprintf(f.current, sizeof f.current, "%s", f.count ? f.list[0].name : "default");
            rc = file_save(&f, err);
        }
    }
    file_fini(&f);
    return rc;
}

void profile_names_free(char **names, size_t count) {
    for (size_t i = 0; names && i < count; i++) free(names[i]);
    free(names);
}

ckks_status profile_names(char ***names, size_t *count, char current[64], ckks_error *err) {
    profile_file f;
    ckks_status rc = file_load(&f, err);
    *names = NULL, *count = 0;
    if (rc == CKKS_OK && !(*names = calloc(f.count + 1, sizeof **names)))
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for profiles");
    for (size_t i = 0; rc == CKKS_OK && i < f.count; i++) {
        if (!((*names)[i] = strdup(f.list[i].name)))
            rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for profiles");
        else
            (*count)++;
    }
    snprintf(current, 64, "%s", f.current);
    file_fini(&f);
    return rc;
}
