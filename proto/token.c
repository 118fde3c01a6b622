#include "proto/token.h"

#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"
#include "proto/durable.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct {
    const char *name;
    uint32_t bit;
} scope_names[] = {
    {"infer", TOKEN_SCOPE_INFER},
    {"key-write", TOKEN_SCOPE_KEY_WRITE},
    {"admin", TOKEN_SCOPE_ADMIN},
};
#define SCOPE_COUNT (sizeof scope_names / sizeof scope_names[0])

bool token_name_is_valid(const char *name) {
    const size_t length = strnlen(name, TOKEN_NAME_MAX + 1);
    if (length == 0 || length > TOKEN_NAME_MAX) return false;
    for (size_t i = 0; i < length; i++) {
        const char c = name[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
              c == '_'))
            return false;
    }
    return true;
}

static ckks_status scopes_parse(uint32_t *out, const char *text, size_t length, ckks_error *err) {
    uint32_t scopes = 0;
    for (size_t at = 0; at <= length;) {
        size_t end = at;
        while (end < length && text[end] != ',') end++;
        uint32_t bit = 0;
        for (size_t i = 0; i < SCOPE_COUNT; i++)
            if (strlen(scope_names[i].name) == end - at &&
                memcmp(scope_names[i].name, text + at, end - at) == 0)
                bit = scope_names[i].bit;
        if (bit == 0)
            return ckks_error_set(err, CKKS_MALFORMED, "scopes",
                                  "unknown scope '%.*s' (infer, key-write, admin)",
                                  (int)(end - at > 32 ? 32 : end - at), text + at);
        scopes |= bit;
        at = end + 1;
    }
    *out = scopes;
    return CKKS_OK;
}

ckks_status token_scopes_parse(uint32_t *out, const char *text, ckks_error *err) {
    return scopes_parse(out, text, strlen(text), err);
}

char *token_scopes_print(uint32_t scopes, char *text, size_t capacity) {
    size_t used = 0;
    text[0] = 0;
    for (size_t i = 0; i < SCOPE_COUNT; i++) {
        if (!(scopes & scope_names[i].bit)) continue;
        const int n = snprintf(text + used, capacity - used, "%s%s", used ? "," : "", scope_names[i].name);
        if (n < 0 || (size_t)n >= capacity - used) break;
        used += (size_t)n;
    }
    return text;
}

/* ---- lines ---- */

typedef struct word {
    const char *text;
    size_t length;
} word;

static bool word_number(uint64_t *out, const char *text, size_t length, bool with_unit) {
    uint64_t value = 0, unit = 1;
    if (length > 0 && with_unit) {
        const char *units = "KMGT", *found = strchr(units, text[length - 1]);
        if (found) {
            unit = 1ull << (10u * (unsigned)(found - units + 1));
            length--;
        }
    }
    if (length == 0 || length > 20) return false;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        if (!size_multiply(&value, value, 10) || !size_add(&value, value, (uint64_t)(text[i] - '0')))
            return false;
    }
    return size_multiply(out, value, unit) && *out > 0;
}

static ckks_status quota_parse(token_quota *out, const char *text, size_t length, ckks_error *err) {
    for (size_t at = 0; at <= length;) {
        size_t end = at;
        while (end < length && text[end] != ',') end++;
        const char *item = text + at, *colon = memchr(item, ':', end - at);
        const size_t name = colon ? (size_t)(colon - item) : end - at;
        const size_t digits = colon ? end - at - name - 1 : 0;
        uint64_t value = 0;
        const bool is_bytes = name == 9 && memcmp(item, "key_bytes", 9) == 0;
        const bool is_sets = name == 8 && memcmp(item, "key_sets", 8) == 0;
        const bool is_queued = name == 6 && memcmp(item, "queued", 6) == 0;
        const bool is_days = name == 8 && memcmp(item, "key_days", 8) == 0;
        if (!is_bytes && !is_sets && !is_queued && !is_days)
            return ckks_error_set(err, CKKS_MALFORMED, "quota",
                                  "unknown quota '%.*s' (key_bytes, key_sets, queued, key_days)",
                                  (int)(name > 32 ? 32 : name), item);
        if (!colon || !word_number(&value, colon + 1, digits, is_bytes) || (!is_bytes && value > UINT32_MAX))
            return ckks_error_set(err, CKKS_MALFORMED, "quota", "quota %.*s needs a positive number",
                                  (int)name, item);
        if (is_bytes) out->key_bytes = value;
        if (is_sets) out->key_sets = (uint32_t)value;
        if (is_queued) out->queued = (uint32_t)value;
        if (is_days) out->key_days = (uint32_t)value;
        at = end + 1;
    }
    return CKKS_OK;
}

static ckks_status name_parse(char out[TOKEN_NAME_MAX + 1], word w, const char *field, ckks_error *err) {
    if (w.length <= TOKEN_NAME_MAX) {
        memcpy(out, w.text, w.length);
        out[w.length] = 0;
        if (strlen(out) == w.length && token_name_is_valid(out)) return CKKS_OK;
    }
    return ckks_error_set(err, CKKS_MALFORMED, field, "%s must be 1 to %u letters, digits, '-' or '_'", field,
                          TOKEN_NAME_MAX);
}

/* entry_parse: *is_empty for a line of blanks and comment. */
static ckks_status entry_parse(token_entry *out, bool *is_empty, const char *line, size_t length,
                               ckks_error *err) {
    ckks_status rc;
    word words[5];
    size_t count = 0;
    memset(out, 0, sizeof *out);
    const char *comment = memchr(line, '#', length);
    if (comment) length = (size_t)(comment - line);
    for (size_t at = 0; at < length;) {
        while (at < length && (line[at] == ' ' || line[at] == '\t' || line[at] == '\r')) at++;
        size_t end = at;
        while (end < length && line[end] != ' ' && line[end] != '\t' && line[end] != '\r') end++;
        if (end == at) break;
        if (count == 5) return ckks_error_set(err, CKKS_MALFORMED, "line", "more than five words");
        words[count++] = (word){line + at, end - at};
        at = end;
    }
    *is_empty = count == 0;
    if (count == 0) return CKKS_OK;
    if (count < 4)
        return ckks_error_set(err, CKKS_MALFORMED, "line", "expected: id sha256 tenant scopes [quota=...]");
    if ((rc = name_parse(out->id, words[0], "id", err)) != CKKS_OK) return rc;
    char hex[65] = {0};
    if (words[1].length == 64) memcpy(hex, words[1].text, 64);
    if (!hex_decode(out->digest, sizeof out->digest, hex))
        return ckks_error_set(err, CKKS_MALFORMED, "sha256", "expected 64 hexadecimal digits");
    if ((rc = name_parse(out->tenant, words[2], "tenant", err)) != CKKS_OK) return rc;
    if ((rc = scopes_parse(&out->scopes, words[3].text, words[3].length, err)) != CKKS_OK) return rc;
    if (count == 5) {
        if (words[4].length < 6 || memcmp(words[4].text, "quota=", 6) != 0)
            return ckks_error_set(err, CKKS_MALFORMED, "quota", "expected quota=name:value[,name:value...]");
        return quota_parse(&out->quota, words[4].text + 6, words[4].length - 6, err);
    }
    return CKKS_OK;
}

static int entry_order(const void *a, const void *b) {
    return strcmp(((const token_entry *)a)->id, ((const token_entry *)b)->id);
}

static ckks_status table_push(token_table *table, size_t *capacity, const token_entry *entry,
                              ckks_error *err) {
    if (table->count == TOKEN_COUNT_MAX)
        return ckks_error_set(err, CKKS_TOO_LARGE, "tokens", "more than %u tokens", TOKEN_COUNT_MAX);
    if (table->count == *capacity) {
        const size_t wanted = *capacity ? *capacity * 2 : 16;
        token_entry *grown = realloc(table->entries, wanted * sizeof *grown);
        if (!grown) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "tokens", "out of memory");
        table->entries = grown;
        *capacity = wanted;
    }
    table->entries[table->count++] = *entry;
    return CKKS_OK;
}

/* Puts "name:line: " before the cause. */
static ckks_status at_line(ckks_error *err, const ckks_error *cause, const char *name, size_t line) {
    return ckks_error_set(err, cause->code, cause->field, "%s:%zu: %s", name, line, cause->message);
}

ckks_status token_table_parse(token_table *out, const char *text, size_t size, const char *name,
                              ckks_error *err) {
    ckks_status rc = CKKS_OK;
    token_table table = {0};
    size_t capacity = 0, line = 0;
    memset(out, 0, sizeof *out);
    if (size > TOKEN_FILE_MAX) {
        rc = ckks_error_set(err, CKKS_TOO_LARGE, "tokens", "%s: more than %u bytes", name, TOKEN_FILE_MAX);
        goto out;
    }
    for (size_t at = 0; at < size;) {
        ckks_error cause = {0};
        token_entry entry;
        bool is_empty = true;
        const char *newline = memchr(text + at, '\n', size - at);
        const size_t length = newline ? (size_t)(newline - (text + at)) : size - at;
        line++;
        if (memchr(text + at, 0, length)) rc = ckks_error_set(&cause, CKKS_MALFORMED, "line", "a NUL byte");
        if (rc == CKKS_OK && length >= TOKEN_LINE_MAX)
            rc = ckks_error_set(&cause, CKKS_TOO_LARGE, "line", "longer than %u bytes", TOKEN_LINE_MAX - 1);
        if (rc == CKKS_OK) rc = entry_parse(&entry, &is_empty, text + at, length, &cause);
        if (rc == CKKS_OK && !is_empty) rc = table_push(&table, &capacity, &entry, &cause);
        if (rc != CKKS_OK) {
            at_line(err, &cause, name, line);
            goto out;
        }
        at += length + 1;
    }
    if (table.count > 1) qsort(table.entries, table.count, sizeof *table.entries, entry_order);
    for (size_t i = 1; i < table.count; i++)
        if (strcmp(table.entries[i - 1].id, table.entries[i].id) == 0) {
            rc = ckks_error_set(err, CKKS_ALREADY_EXISTS, "id", "%s: token id '%s' stands twice", name,
                                table.entries[i].id);
            goto out;
        }
    *out = table;
    table = (token_table){0};
out:
    token_table_fini(&table);
    return rc;
}

/* file_read: the whole file, with its stat; the caller frees *text. */
static ckks_status file_read(char **text, size_t *size, struct stat *st, const char *path, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    char *buffer = NULL;
    size_t used = 0;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        const int cause = errno;
        return ckks_error_set(err, cause == ENOENT ? CKKS_NOT_FOUND : CKKS_IO, "tokens", "%s: %s", path,
                              strerror(cause));
    }
    if (fstat(fd, st) != 0 || !S_ISREG(st->st_mode)) {
        rc = ckks_error_set(err, CKKS_IO, "tokens", "%s: not a regular file", path);
        goto out;
    }
    if (st->st_mode & (S_IWGRP | S_IRWXO)) {
        rc = ckks_error_set(err, CKKS_PERMISSION_DENIED, "tokens",
                            "%s: mode %04o lets others in; set it to 0640", path, st->st_mode & 07777u);
        goto out;
    }
    if (st->st_size > (off_t)TOKEN_FILE_MAX) {
        rc = ckks_error_set(err, CKKS_TOO_LARGE, "tokens", "%s: more than %u bytes", path, TOKEN_FILE_MAX);
        goto out;
    }
    const size_t wanted = (size_t)st->st_size;
    if (!(buffer = malloc(wanted + 1))) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "tokens", "out of memory");
        goto out;
    }
    while (used < wanted) {
        const ssize_t n = read(fd, buffer + used, wanted - used);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            rc = ckks_error_set(err, CKKS_IO, "tokens", "%s: %s", path, strerror(errno));
            goto out;
        }
        if (n == 0) break;
        used += (size_t)n;
    }
    *text = buffer, buffer = NULL;
    *size = used;
out:
    free(buffer);
    close(fd);
    return rc;
}

ckks_status token_table_load(token_table *out, const char *path, ckks_error *err) {
    char *text = NULL;
    size_t size = 0;
    struct stat st;
    memset(out, 0, sizeof *out);
    ckks_status rc = file_read(&text, &size, &st, path, err);
    if (rc == CKKS_OK) rc = token_table_parse(out, text, size, path, err);
    free(text);
    return rc;
}

void token_table_fini(token_table *table) {
    if (!table) return;
    free(table->entries);
    *table = (token_table){0};
}

const token_entry *token_table_verify(const token_table *table, const char *token) {
    static const token_entry nobody; /* compared when the id is unknown, so that both cost the same */
    token_entry wanted;
    uint8_t secret[TOKEN_SECRET_BYTES] = {0}, digest[SHA256_BYTES];
    const size_t length = strnlen(token, TOKEN_TEXT_MAX + 1);
    const char *dot = memchr(token, '.', length);
    if (length > TOKEN_TEXT_MAX || !dot || (size_t)(dot - token) > TOKEN_NAME_MAX) return NULL;
    memcpy(wanted.id, token, (size_t)(dot - token));
    wanted.id[dot - token] = 0;
    const bool is_well_formed = hex_decode(secret, sizeof secret, dot + 1);
    const token_entry *entry =
        table->count ? bsearch(&wanted, table->entries, table->count, sizeof *table->entries, entry_order)
                     : NULL;
    sha256(digest, secret, sizeof secret);
    const bool is_equal = sodium_memcmp(digest, (entry ? entry : &nobody)->digest, sizeof digest) == 0;
    sodium_memzero(secret, sizeof secret);
    sodium_memzero(digest, sizeof digest);
    return entry && is_well_formed && is_equal ? entry : NULL;
}

/* ---- making tokens ---- */

ckks_status token_generate(char text[TOKEN_TEXT_SIZE], token_entry *entry, const char *id, const char *tenant,
                           uint32_t scopes, ckks_error *err) {
    uint8_t secret[TOKEN_SECRET_BYTES];
    char hex[2 * TOKEN_SECRET_BYTES + 1];
    if (!token_name_is_valid(id))
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "id",
                              "a token id has 1 to %u letters, digits, '-' or '_'", TOKEN_NAME_MAX);
    if (!token_name_is_valid(tenant))
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "tenant",
                              "a tenant has 1 to %u letters, digits, '-' or '_'", TOKEN_NAME_MAX);
    if (scopes == 0 || scopes & ~(uint32_t)(TOKEN_SCOPE_INFER | TOKEN_SCOPE_KEY_WRITE | TOKEN_SCOPE_ADMIN))
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "scopes",
                              "a token needs at least one of infer, key-write, admin");
    if (sodium_init() < 0) return ckks_error_set(err, CKKS_INTERNAL, "", "no source of randomness");
    memset(entry, 0, sizeof *entry);
    memcpy(entry->id, id, strlen(id) + 1);
    memcpy(entry->tenant, tenant, strlen(tenant) + 1);
    entry->scopes = scopes;
    randombytes_buf(secret, sizeof secret);
    sha256(entry->digest, secret, sizeof secret);
    snprintf(text, TOKEN_TEXT_SIZE, "%s.%s", id, hex_encode(hex, secret, sizeof secret));
    sodium_memzero(secret, sizeof secret);
    sodium_memzero(hex, sizeof hex);
    return CKKS_OK;
}

char *token_entry_print(const token_entry *entry, char line[TOKEN_LINE_MAX]) {
    char hex[65], scopes[64], quota[128] = "";
    size_t used = 0;
    const struct {
        const char *name;
        uint64_t value;
    } quotas[] = {{"key_bytes", entry->quota.key_bytes},
                  {"key_sets", entry->quota.key_sets},
                  {"queued", entry->quota.queued},
                  {"key_days", entry->quota.key_days}};
    for (size_t i = 0; i < sizeof quotas / sizeof *quotas; i++)
        if (quotas[i].value)
            used +=
                (size_t)snprintf(quota + used, sizeof quota - used, "%s%s:%llu",
                                 used ? "," : " quota=", quotas[i].name, (unsigned long long)quotas[i].value);
    snprintf(line, TOKEN_LINE_MAX, "%s %s %s %s%s", entry->id, hex_encode(hex, entry->digest, 32),
             entry->tenant, token_scopes_print(entry->scopes, scopes, sizeof scopes), quota);
    return line;
}

static ckks_status write_all(int fd, const char *text, size_t size, const char *path, ckks_error *err) {
    for (size_t at = 0; at < size;) {
        const ssize_t n = write(fd, text + at, size - at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return ckks_error_set(err, CKKS_IO, "tokens", "%s: %s", path, strerror(errno));
        at += (size_t)n;
    }
    return CKKS_OK;
}

/* The folder that the file is in, locked: two who add at the same time must not lose each other's token. */
static ckks_status lock_folder(int *out, const char *path, ckks_error *err) {
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    const size_t length = slash ? (size_t)(slash - path) : 1;
    if (length >= sizeof folder)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "tokens", "path is too long");
    memcpy(folder, slash ? path : ".", length);
    folder[length] = 0;
    *out = open(length ? folder : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*out < 0)
        return ckks_error_set(err,
                              errno == ENOENT   ? CKKS_NOT_FOUND
                              : errno == EACCES ? CKKS_PERMISSION_DENIED
                                                : CKKS_IO,
                              "tokens", "%s: %s", path, strerror(errno));
    (void)flock(*out, LOCK_EX); /* where the file system has no locks, there is none */
    return CKKS_OK;
}

/* replace_file writes old text and one more line (NULL: none) beside `path` and renames. */
static ckks_status replace_file(const char *path, const char *old, size_t old_size, const char *line,
                                const struct stat *st, ckks_error *err) {
    ckks_status rc;
    char temporary[PATH_MAX];
    int fd = -1;
    if (snprintf(temporary, sizeof temporary, "%s.XXXXXX", path) >= (int)sizeof temporary)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "tokens", "path is too long");
    if ((fd = mkstemp(temporary)) < 0)
        return ckks_error_set(err,
                              errno == ENOENT   ? CKKS_NOT_FOUND
                              : errno == EACCES ? CKKS_PERMISSION_DENIED
                                                : CKKS_IO,
                              "tokens", "%s: %s", path, strerror(errno));
    const bool needs_newline = line && old_size > 0 && old[old_size - 1] != '\n';
    if ((rc = write_all(fd, old, old_size, path, err)) != CKKS_OK) goto out;
    if (needs_newline && (rc = write_all(fd, "\n", 1, path, err)) != CKKS_OK) goto out;
    if (line && (rc = write_all(fd, line, strlen(line), path, err)) != CKKS_OK) goto out;
    if (line && (rc = write_all(fd, "\n", 1, path, err)) != CKKS_OK) goto out;
    /* an unprivileged administrator cannot give a file away; the mode below still holds */
    if (st && fchown(fd, st->st_uid, st->st_gid) != 0) errno = 0;
    if (fchmod(fd, 0640) != 0 || fsync(fd) != 0 || rename(temporary, path) != 0) {
        rc = ckks_error_set(err, CKKS_IO, "tokens", "%s: %s", path, strerror(errno));
        goto out;
    }
    temporary[0] = 0;
out:
    close(fd);
    if (temporary[0]) (void)unlink(temporary);
    return rc;
}

/* A token that may be gone after a crash is none to hand out: it leaves again. */
static ckks_status keep(const char *path, int folder, const char *old, size_t old_size, const struct stat *st,
                        ckks_error *err) {
    const int number = durable_folder_at(folder);
    if (number == 0) return CKKS_OK;
    const bool is_back =
        st ? replace_file(path, old, old_size, NULL, st, NULL) == CKKS_OK : unlink(path) == 0;
    return ckks_error_set(err, CKKS_IO, "tokens", "%s: sync of its folder: %s%s", path, strerror(number),
                          is_back ? "" : "; the new token's line is still in it");
}

ckks_status token_file_add(const char *path, const token_entry *entry, ckks_error *err) {
    char *text = NULL, line[TOKEN_LINE_MAX];
    size_t size = 0;
    struct stat st;
    int folder = -1;
    token_table table = {0};
    ckks_error missing = {0};
    ckks_status rc = lock_folder(&folder, path, err);
    if (rc != CKKS_OK) return rc;
    rc = file_read(&text, &size, &st, path, &missing);
    const bool exists = rc == CKKS_OK;
    if (!exists && rc != CKKS_NOT_FOUND) {
        ckks_error_set(err, rc, missing.field, "%s", missing.message);
        goto out;
    }
    if ((rc = token_table_parse(&table, exists ? text : "", size, path, err)) != CKKS_OK) goto out;
    for (size_t i = 0; i < table.count; i++)
        if (strcmp(table.entries[i].id, entry->id) == 0) {
            rc = ckks_error_set(err, CKKS_ALREADY_EXISTS, "id", "%s has a token '%s' already", path,
                                entry->id);
            goto out;
        }
    const char *old = exists ? text : "";
    const struct stat *old_st = exists ? &st : NULL;
    rc = replace_file(path, old, size, token_entry_print(entry, line), old_st, err);
    if (rc == CKKS_OK) rc = keep(path, folder, old, size, old_st, err);
out:
    token_table_fini(&table);
    free(text);
    close(folder); /* and the lock */
    return rc;
}
