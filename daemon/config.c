/*
 * The table below is the whole of the configuration: a key is one line here, one field of `config` and one
 * paragraph of the sample file. libinih splits lines; we count them ourselves for messages.
 */
#include "daemon/config.h"

#include "daemon/certificate.h"
#include "daemon/logging.h"
#include "kernels/base/bytes.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef enum value_type {
    TYPE_TEXT,
    TYPE_LIST,
    TYPE_BOOL,
    TYPE_U32,
    TYPE_U32_OR_AUTO,
    TYPE_U64,
    TYPE_BYTES,
    TYPE_MODE,
    TYPE_DEVICE,
    TYPE_EXECUTION,
    TYPE_LEVEL,
} value_type;

typedef struct key_info {
    const char *section, *name;
    value_type type;
    size_t offset;
    const char *default_text;
    uint64_t minimum, maximum;
} key_info;

#define KEY(section, name, type, field, text, low, high)                                                     \
    { section, name, type, offsetof(config, field), text, low, high }
#define KIB    (1ull << 10)
#define MIB    (1ull << 20)
#define TIB    (1ull << 40)
#define DAY_MS 86400000ull

static const key_info keys[] = {
    KEY("server", "name", TYPE_TEXT, name, "ckksd", 1, 63),
    KEY("server", "models", TYPE_TEXT, models, "/var/lib/ckksd/models", 1, CONFIG_TEXT_MAX),
    KEY("server", "data", TYPE_TEXT, data, "/var/lib/ckksd", 1, CONFIG_TEXT_MAX),
    KEY("server", "tokens", TYPE_TEXT, tokens, "/etc/ckksd/tokens", 1, CONFIG_TEXT_MAX),
    KEY("server", "allow_insecure", TYPE_BOOL, allow_insecure, "no", 0, 0),
    KEY("listen", "control", TYPE_LIST, control, "ipc:///run/ckksd/control.sock", 0, 0),
    KEY("listen", "bulk", TYPE_LIST, bulk, "ipc:///run/ckksd/bulk.sock", 0, 0),
    KEY("listen", "allow_plaintext", TYPE_BOOL, allow_plaintext, "no", 0, 0),
    KEY("listen", "tls_certificate", TYPE_TEXT, tls_certificate, "", 0, CONFIG_TEXT_MAX),
    KEY("listen", "tls_key", TYPE_TEXT, tls_key, "", 0, CONFIG_TEXT_MAX),
    KEY("listen", "tls_client_ca", TYPE_TEXT, tls_client_ca, "", 0, CONFIG_TEXT_MAX),
    KEY("listen", "ipc_mode", TYPE_MODE, ipc_mode, "0660", 0, 0777),
    KEY("listen", "pipes_max", TYPE_U32, pipes_max, "256", 1, 65536),
    KEY("listen", "unauthenticated_max", TYPE_U32, unauthenticated_max, "0", 0, 65536),
    KEY("listen", "unauthenticated_timeout_ms", TYPE_U64, unauthenticated_timeout_ms, "60000", 100, DAY_MS),
    KEY("listen", "control_contexts", TYPE_U32, control_contexts, "32", 1, 4096),
    KEY("listen", "control_message_bytes", TYPE_BYTES, control_message_bytes, "256K", 80 * KIB, 16 * MIB),
    KEY("listen", "bulk_message_bytes", TYPE_BYTES, bulk_message_bytes, "64M", 256 * KIB, 4096 * MIB),
    KEY("listen", "idle_timeout_ms", TYPE_U64, idle_timeout_ms, "600000", 100, 30 * DAY_MS),
    KEY("listen", "send_timeout_ms", TYPE_U64, send_timeout_ms, "30000", 100, DAY_MS),
    KEY("listen", "local_memory_peers", TYPE_U32, local_memory_peers, "32", 0, 4096),
    KEY("admin", "socket", TYPE_TEXT, admin_socket, "", 0, CONFIG_TEXT_MAX),
    KEY("admin", "uid", TYPE_LIST, admin_uids, "", 0, 0),
    KEY("ops", "listen", TYPE_TEXT, ops_listen, "127.0.0.1:9464", 0, CONFIG_TEXT_MAX),
    KEY("device", "kind", TYPE_DEVICE, device_kind, "auto", 0, 0),
    KEY("device", "selector", TYPE_TEXT, device_selector, "", 0, CONFIG_TEXT_MAX),
    KEY("device", "threads", TYPE_U32, device_threads, "0", 0, 1024),
    KEY("device", "memory_bytes", TYPE_BYTES, device_memory_bytes, "0", 0, 16 * TIB),
    KEY("slots", "count", TYPE_U32, slot_count, "0", 0, 64),
    KEY("slots", "arena_bytes", TYPE_BYTES, arena_bytes, "0", 0, 16 * TIB),
    KEY("slots", "execution", TYPE_EXECUTION, execution, "graph", 0, 0),
    KEY("slots", "warmup", TYPE_U32, warmup, "1", 0, 100),
    KEY("slots", "spin_us", TYPE_U32_OR_AUTO, spin_us, "auto", 0, 10000),
    KEY("slots", "stall_timeout_ms", TYPE_U64, stall_timeout_ms, "60000", 100, DAY_MS),
    KEY("queue", "requests_max", TYPE_U32, requests_max, "256", 1, 65536),
    KEY("queue", "tenant_requests_max", TYPE_U32, tenant_requests_max, "128", 1, 65536),
    KEY("queue", "model_requests_max", TYPE_U32, model_requests_max, "256", 1, 65536),
    KEY("queue", "bytes_max", TYPE_BYTES, bytes_max, "1G", 256 * KIB, 16 * TIB),
    KEY("queue", "default_timeout_ms", TYPE_U64, default_timeout_ms, "60000", 1, DAY_MS),
    KEY("queue", "timeout_max_ms", TYPE_U64, timeout_max_ms, "600000", 1, DAY_MS),
    KEY("queue", "orphan_grace_ms", TYPE_U64, orphan_grace_ms, "5000", 0, DAY_MS),
    KEY("queue", "dedupe_s", TYPE_U64, dedupe_s, "120", 0, 86400),
    KEY("queue", "dedupe_bytes", TYPE_BYTES, dedupe_bytes, "32M", 0, 16 * TIB),
    KEY("keys", "resident_bytes", TYPE_BYTES, resident_bytes, "8G", 1 * MIB, 16 * TIB),
    KEY("keys", "tenant_key_bytes", TYPE_BYTES, tenant_key_bytes, "16G", 1 * MIB, 16 * TIB),
    KEY("keys", "tenant_key_sets", TYPE_U32, tenant_key_sets, "64", 1, 65536),
    KEY("keys", "upload_expire_s", TYPE_U64, upload_expire_s, "86400", 1, 31536000),
    KEY("keys", "unused_days", TYPE_U32, unused_days, "0", 0, 36500),
    KEY("log", "level", TYPE_LEVEL, log_level, "info", 0, 0),
    KEY("drain", "linger_ms", TYPE_U64, linger_ms, "0", 0, DAY_MS),
    KEY("drain", "drain_timeout_ms", TYPE_U64, drain_timeout_ms, "30000", 0, DAY_MS),
};
#define KEY_COUNT (sizeof keys / sizeof keys[0])
_Static_assert(KEY_COUNT <= CONFIG_KEYS_MAX, "config.line has room for every key");

uint32_t config_key_count(void) {
    return (uint32_t)KEY_COUNT;
}
void config_key_info(uint32_t index, const char **section, const char **name, const char **default_text) {
    *section = keys[index].section, *name = keys[index].name, *default_text = keys[index].default_text;
}

/* ---- values ---- */

static bool parse_number(uint64_t *out, const char *text, bool with_unit) {
    uint64_t value = 0, unit = 1;
    size_t length = strlen(text);
    if (with_unit && length > 0) {
        const char *units = "KMGT", *found = strchr(units, text[length - 1]);
        if (found && *found) unit = 1ull << (10u * (unsigned)(found - units + 1)), length--;
    }
    if (length == 0 || length > 20) return false;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        if (!size_multiply(&value, value, 10) || !size_add(&value, value, (uint64_t)(text[i] - '0')))
            return false;
    }
    return size_multiply(out, value, unit);
}

static ckks_status set_number(config *c, const key_info *key, const char *text, ckks_error *err) {
    uint64_t value = 0;
    char *at = (char *)c + key->offset;
    if (!parse_number(&value, text, key->type == TYPE_BYTES))
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, key->name, "%s: '%s' is not a number%s", key->name,
                              text, key->type == TYPE_BYTES ? " of bytes (units K, M, G, T)" : "");
    if (value < key->minimum || value > key->maximum)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, key->name, "%s: %s is outside %llu to %llu",
                              key->name, text, (unsigned long long)key->minimum,
                              (unsigned long long)key->maximum);
    if (key->type == TYPE_U32 || key->type == TYPE_U32_OR_AUTO) {
        const uint32_t narrow = (uint32_t)value;
        memcpy(at, &narrow, sizeof narrow);
    } else {
        memcpy(at, &value, sizeof value);
    }
    return CKKS_OK;
}

static ckks_status set_text(config *c, const key_info *key, const char *text, ckks_error *err) {
    const size_t length = strlen(text);
    if (length < key->minimum)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, key->name, "%s: must not be empty", key->name);
    if (length >= CONFIG_TEXT_MAX || length > key->maximum)
        return ckks_error_set(
            err, CKKS_TOO_LARGE, key->name, "%s: longer than %llu bytes", key->name,
            (unsigned long long)(key->maximum < CONFIG_TEXT_MAX ? key->maximum : CONFIG_TEXT_MAX - 1));
    memcpy((char *)c + key->offset, text, length + 1);
    return CKKS_OK;
}

/* One of a few words, by position. */
static ckks_status set_word(uint32_t *out, const key_info *key, const char *text, const char *const *words,
                            ckks_error *err) {
    char all[96] = "";
    for (uint32_t i = 0; words[i]; i++) {
        if (strcmp(words[i], text) == 0) {
            *out = i;
            return CKKS_OK;
        }
        strncat(all, i ? ", " : "", sizeof all - strlen(all) - 1);
        strncat(all, words[i], sizeof all - strlen(all) - 1);
    }
    return ckks_error_set(err, CKKS_INVALID_ARGUMENT, key->name, "%s: '%s' is none of: %s", key->name, text,
                          all);
}

static ckks_status set_mode(config *c, const key_info *key, const char *text, ckks_error *err) {
    uint32_t value = 0;
    const size_t length = strlen(text);
    bool is_octal = length >= 3 && length <= 4;
    for (size_t i = 0; i < length && is_octal; i++) {
        is_octal = text[i] >= '0' && text[i] <= '7';
        value = value * 8 + (uint32_t)(text[i] - '0');
    }
    if (!is_octal || value > key->maximum)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, key->name,
                              "%s: '%s' is not an octal mode such as 0660", key->name, text);
    memcpy((char *)c + key->offset, &value, sizeof value);
    return CKKS_OK;
}

static ckks_status set_list(config *c, const key_info *key, const char *text, ckks_error *err) {
    config_list *all = (config_list *)(void *)((char *)c + key->offset);
    if (text[0] == 0) return CKKS_OK;
    if (all->count == CONFIG_LIST_MAX)
        return ckks_error_set(err, CKKS_TOO_LARGE, key->name, "%s: more than %u lines", key->name,
                              CONFIG_LIST_MAX);
    if (strlen(text) >= CONFIG_TEXT_MAX)
        return ckks_error_set(err, CKKS_TOO_LARGE, key->name, "%s: longer than %u bytes", key->name,
                              CONFIG_TEXT_MAX - 1);
    memcpy(all->item[all->count++], text, strlen(text) + 1);
    return CKKS_OK;
}

static ckks_status set_value(config *c, const key_info *key, const char *text, ckks_error *err) {
    static const char *const no_yes[] = {"no", "yes", NULL};
    static const char *const devices[] = {"auto", "cpu", "cuda", NULL};
    static const char *const executions[] = {"graph", "eager", NULL};
    ckks_status rc;
    uint32_t word = 0;
    char *at = (char *)c + key->offset;
    switch (key->type) {
    case TYPE_TEXT:
        return set_text(c, key, text, err);
    case TYPE_LIST:
        return set_list(c, key, text, err);
    case TYPE_U32:
    case TYPE_U64:
    case TYPE_BYTES:
        return set_number(c, key, text, err);
    case TYPE_U32_OR_AUTO:
        if (strcmp(text, "auto") != 0) return set_number(c, key, text, err);
        word = CONFIG_AUTO, rc = CKKS_OK;
        break;
    case TYPE_MODE:
        return set_mode(c, key, text, err);
    case TYPE_BOOL:
        if ((rc = set_word(&word, key, text, no_yes, err)) == CKKS_OK) *(bool *)at = word == 1;
        return rc;
    case TYPE_DEVICE:
        rc = set_word(&word, key, text, devices, err);
        break;
    case TYPE_EXECUTION:
        rc = set_word(&word, key, text, executions, err);
        break;
    case TYPE_LEVEL: {
        log_level level;
        if (!log_level_parse(&level, text))
            return ckks_error_set(err, CKKS_INVALID_ARGUMENT, key->name,
                                  "%s: '%s' is none of: error, warning, notice, info, debug", key->name,
                                  text);
        word = (uint32_t)level, rc = CKKS_OK;
        break;
    }
    default:
        return ckks_error_set(err, CKKS_INTERNAL, key->name, "unknown type of key");
    }
    if (rc == CKKS_OK) memcpy(at, &word, sizeof word);
    return rc;
}

void config_default(config *out) {
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < KEY_COUNT; i++) {
        key_info key = keys[i];
        key.minimum = 0; /* an empty default stands for "off" */
        const ckks_status rc = set_value(out, &key, keys[i].default_text, NULL);
        CKKS_ASSERT(rc == CKKS_OK);
    }
}

/* ---- reading ---- */

typedef struct reader {
    config *config;
    const char *text;
    size_t size, at;
    uint32_t line;
    const char *name;
    ckks_error err; /* the first complaint, of line `failed_line` */
    uint32_t failed_line;
    ckks_status rc;
} reader;

/* Puts "file:line: " before the cause; the first one stays. */
static void reader_fail(reader *r, const ckks_error *cause) {
    if (r->rc != CKKS_OK) return;
    r->failed_line = r->line;
    r->rc = ckks_error_set(&r->err, cause->code, cause->field, "%s:%u: %s", r->name, r->line, cause->message);
}

/* One line for libinih, as fgets would give it. */
static char *reader_line(char *buffer, int capacity, void *stream) {
    reader *r = stream;
    if (r->at >= r->size || r->rc != CKKS_OK) return NULL;
    const char *start = r->text + r->at, *newline = memchr(start, '\n', r->size - r->at);
    const size_t length = newline ? (size_t)(newline - start) + 1 : r->size - r->at;
    ckks_error cause = {0};
    r->line++;
    r->at += length;
    if (memchr(start, 0, length))
        ckks_error_set(&cause, CKKS_INVALID_ARGUMENT, "line", "a NUL byte");
    else if (length >= (size_t)capacity || length >= CONFIG_TEXT_MAX)
        ckks_error_set(&cause, CKKS_TOO_LARGE, "line", "line is longer than %d bytes",
                       capacity < (int)CONFIG_TEXT_MAX ? capacity - 1 : (int)CONFIG_TEXT_MAX - 1);
    if (cause.code != CKKS_OK) {
        reader_fail(r, &cause);
        return NULL;
    }
    memcpy(buffer, start, length);
    buffer[length] = 0;
    return buffer;
}

static int reader_key(void *context, const char *section, const char *name, const char *value) {
    reader *r = context;
    ckks_error cause = {0};
    bool is_section = false;
    for (size_t i = 0; i < KEY_COUNT; i++) {
        if (strcmp(keys[i].section, section) != 0) continue;
        is_section = true;
        if (strcmp(keys[i].name, name) != 0) continue;
        config *c = r->config;
        if (c->line[i] != 0 && keys[i].type != TYPE_LIST)
            ckks_error_set(&cause, CKKS_INVALID_ARGUMENT, name, "%s is set twice (first on line %u)", name,
                           c->line[i]);
        else if (c->line[i] == 0 && keys[i].type == TYPE_LIST)
            ((config_list *)(void *)((char *)c + keys[i].offset))->count =
                0; /* the first line replaces the default */
        if (cause.code == CKKS_OK) set_value(c, &keys[i], value, &cause);
        if (c->line[i] == 0) c->line[i] = r->line;
        if (cause.code != CKKS_OK) reader_fail(r, &cause);
        return cause.code == CKKS_OK;
    }
    if (is_section)
        ckks_error_set(&cause, CKKS_INVALID_ARGUMENT, "key", "unknown key '%.60s' in [%.40s]", name, section);
    else if (section[0] == 0)
        ckks_error_set(&cause, CKKS_INVALID_ARGUMENT, "key", "key '%.60s' stands before any [section]", name);
    else
        ckks_error_set(&cause, CKKS_INVALID_ARGUMENT, "section", "unknown section [%.40s]", section);
    reader_fail(r, &cause);
    return 0;
}

static uint32_t line_of(const config *c, const void *field) {
    const size_t offset = (size_t)((const char *)field - (const char *)c);
    for (size_t i = 0; i < KEY_COUNT; i++)
        if (keys[i].offset == offset) return c->line[i];
    return 0;
}
static const char *key_of(const config *c, const void *field) {
    const size_t offset = (size_t)((const char *)field - (const char *)c);
    for (size_t i = 0; i < KEY_COUNT; i++)
        if (keys[i].offset == offset) return keys[i].name;
    return "";
}

/* A complaint about a key, at its line if it was set. */
static ckks_status complain(const config *c, const void *field, const char *what, ckks_error *err) {
    const char *key = key_of(c, field);
    const uint32_t line = line_of(c, field);
    if (line)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, key, "%s:%u: %s: %s", c->file, line, key, what);
    return ckks_error_set(err, CKKS_INVALID_ARGUMENT, key, "%s: %s (not set; its default): %s", c->file, key,
                          what);
}

/* ---- addresses ---- */

bool config_split_address(const char *text, char *host, size_t host_size, uint16_t *port) {
    const char *colon = strrchr(text, ':');
    uint64_t number = 0;
    if (!colon || !parse_number(&number, colon + 1, false) || number > 65535) return false;
    size_t length = (size_t)(colon - text);
    if (length >= 2 && text[0] == '[' && text[length - 1] == ']') text++, length -= 2;
    if (length == 0 || length >= host_size) return false;
    memcpy(host, text, length);
    host[length] = 0;
    *port = (uint16_t)number;
    return true;
}

static bool is_loopback(const char *host) {
    /* a name may begin with digits too */
    return (strncmp(host, "127.", 4) == 0 && strspn(host, "0123456789.") == strlen(host)) ||
           strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0;
}

ckks_status config_url_check(const char *url, bool allow_plaintext, bool has_certificate, ckks_error *err) {
    static const struct {
        const char *prefix;
        bool is_network, is_encrypted, has_path;
    } schemes[] = {{"ipc://", false, false, true},
                   {"tcp://", true, false, false},
                   {"tls+tcp://", true, true, false},
                   {"ws://", true, false, true},
                   {"wss://", true, true, true}};
    char address[CONFIG_TEXT_MAX], host[CONFIG_TEXT_MAX];
    uint16_t port;
    for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++) {
        const size_t prefix = strlen(schemes[i].prefix);
        if (strncmp(url, schemes[i].prefix, prefix) != 0) continue;
        if (!schemes[i].is_network) {
            if (url[prefix] != '/' || strlen(url + prefix) > 100)
                return ckks_error_set(
                    err, CKKS_INVALID_ARGUMENT, "address",
                    "'%s': an ipc address is ipc:// and an absolute path of at most 100 bytes", url);
            return CKKS_OK;
        }
        snprintf(address, sizeof address, "%s", url + prefix);
        if (schemes[i].has_path) address[strcspn(address, "/")] = 0;
        if (!config_split_address(address, host, sizeof host, &port))
            return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "address", "'%s': expected %shost:port", url,
                                  schemes[i].prefix);
        if (schemes[i].is_encrypted && !has_certificate)
            return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "address",
                                  "'%s' needs tls_certificate and tls_key", url);
        if (!schemes[i].is_encrypted && !is_loopback(host) && !allow_plaintext)
            return ckks_error_set(
                err, CKKS_INVALID_ARGUMENT, "address",
                "'%s' is plaintext beyond loopback: use tls+tcp://, or say allow_plaintext = yes", url);
        return CKKS_OK;
    }
    return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "address",
                          "'%s': the scheme is none of ipc, tcp, tls+tcp, ws, wss", url);
}

static ckks_status check_urls(const config *c, const config_list *urls, ckks_error *err) {
    const bool has_certificate = c->tls_certificate[0] && c->tls_key[0];
    if (urls->count == 0) return complain(c, urls, "at least one address is needed", err);
    for (uint32_t i = 0; i < urls->count; i++) {
        ckks_error cause = {0};
        if (config_url_check(urls->item[i], c->allow_plaintext, has_certificate, &cause) != CKKS_OK)
            return complain(c, urls, cause.message, err);
    }
    return CKKS_OK;
}

/* A client takes from the server only addresses of the scheme that it was given itself. */
static ckks_status check_pairs(const config *c, ckks_error *err) {
    for (uint32_t i = 0; i < c->control.count; i++) {
        const size_t scheme = strcspn(c->control.item[i], ":");
        bool is_paired = false;
        for (uint32_t k = 0; k < c->bulk.count && !is_paired; k++)
            is_paired = strncmp(c->control.item[i], c->bulk.item[k], scheme + 1) == 0;
        if (!is_paired) {
            char text[CONFIG_TEXT_MAX];
            snprintf(text, sizeof text,
                     "control has a %.*s address and bulk has none: clients there could send nothing",
                     (int)scheme, c->control.item[i]);
            return complain(c, &c->bulk, text, err);
        }
    }
    return CKKS_OK;
}

/* Only one can listen on an address; a port of 0 is another one each time. */
static ckks_status check_apart(const config *c, const config_list *urls, const config_list *others,
                               ckks_error *err) {
    char text[CONFIG_TEXT_MAX + 32];
    for (uint32_t i = 0; i < urls->count; i++) {
        const char *url = urls->item[i];
        const size_t length = strlen(url);
        if (length > 2 && strcmp(url + length - 2, ":0") == 0) continue;
        if (strcmp(url, c->admin_socket) == 0)
            return complain(c, c->admin_socket, "is an address of [listen] too", err);
        bool is_taken = false;
        for (uint32_t k = 0; k < others->count && !is_taken; k++)
            is_taken = (urls != others || k > i) && strcmp(url, others->item[k]) == 0;
        if (!is_taken) continue;
        snprintf(text, sizeof text, "'%s' stands there twice", url);
        return complain(c, urls, text, err);
    }
    return CKKS_OK;
}

/* "localhost" is for people; other names would be looked up when nobody expects it. */
static bool is_numeric_host(const char *host) {
    struct in6_addr address;
    return strcmp(host, "localhost") == 0 || inet_pton(AF_INET, host, &address) == 1 ||
           inet_pton(AF_INET6, host, &address) == 1;
}

/* What one key cannot say alone. */
static ckks_status check_whole(const config *c, ckks_error *err) {
    ckks_status rc;
    char host[CONFIG_TEXT_MAX];
    uint16_t port;
    if ((rc = check_urls(c, &c->control, err)) != CKKS_OK) return rc;
    if ((rc = check_urls(c, &c->bulk, err)) != CKKS_OK) return rc;
    if ((rc = check_pairs(c, err)) != CKKS_OK) return rc;
    if ((rc = check_apart(c, &c->control, &c->control, err)) != CKKS_OK) return rc;
    if ((rc = check_apart(c, &c->bulk, &c->bulk, err)) != CKKS_OK) return rc;
    if ((rc = check_apart(c, &c->bulk, &c->control, err)) != CKKS_OK) return rc;
    if (!c->tls_certificate[0] != !c->tls_key[0])
        return complain(c, c->tls_certificate[0] ? c->tls_certificate : c->tls_key,
                        "tls_certificate and tls_key go together", err);
    if (c->tls_client_ca[0] && !c->tls_certificate[0])
        return complain(c, c->tls_client_ca, "asks nobody for a certificate without tls_certificate", err);
    if (c->admin_socket[0] && strncmp(c->admin_socket, "ipc:///", 7) != 0)
        return complain(c, c->admin_socket, "the admin socket is an ipc:// address", err);
    for (uint32_t i = 0; i < c->admin_uids.count; i++) {
        uint64_t uid;
        if (!parse_number(&uid, c->admin_uids.item[i], false) || uid > UINT32_MAX)
            return complain(c, &c->admin_uids, "a user number is needed", err);
    }
    if (c->ops_listen[0] && !config_split_address(c->ops_listen, host, sizeof host, &port))
        return complain(c, c->ops_listen, "expected address:port", err);
    if (c->ops_listen[0] && !is_numeric_host(host))
        return complain(c, c->ops_listen, "expected an address in numbers, or localhost", err);
    if (c->default_timeout_ms > c->timeout_max_ms)
        return complain(c, &c->default_timeout_ms, "is over timeout_max_ms", err);
    if (c->bytes_max < c->bulk_message_bytes)
        return complain(c, &c->bytes_max, "is less than one bulk message", err);
    return CKKS_OK;
}

ckks_status config_parse(config *out, const char *text, size_t size, const char *name, ckks_error *err) {
    config_default(out);
    snprintf(out->file, sizeof out->file, "%s", name);
    if (size > CONFIG_FILE_MAX)
        return ckks_error_set(err, CKKS_TOO_LARGE, "", "%s: more than %u bytes", name, CONFIG_FILE_MAX);
    reader r = {.config = out, .text = text, .size = size, .name = name, .rc = CKKS_OK};
    const int line = ini_parse_stream(reader_line, &r, reader_key, &r);
    if (r.rc != CKKS_OK && (line <= 0 || (uint32_t)line >= r.failed_line))
        return ckks_error_set(err, r.rc, r.err.field, "%s", r.err.message);
    if (line < 0) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "%s: out of memory", name);
    if (line > 0)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "line",
                              "%s:%d: neither [section], nor key = value, nor a comment", name, line);
    return check_whole(out, err);
}

/* ---- files ---- */

static ckks_status check_path(const config *c, const char *path, bool is_folder, ckks_error *err) {
    char what[CONFIG_TEXT_MAX + 64];
    struct stat st;
    if (path[0] == 0) return CKKS_OK;
    if (stat(path, &st) != 0)
        snprintf(what, sizeof what, "%s: %s%s", path, strerror(errno),
                 errno != ENOENT     ? ""
                 : path == c->data   ? " (make it first, for the daemon alone: mkdir -m 700)"
                 : path == c->tokens ? " (ckksctl token add makes it)"
                                     : "");
    else if (is_folder != (bool)S_ISDIR(st.st_mode))
        snprintf(what, sizeof what, "%s is %s", path, is_folder ? "not a folder" : "not a file");
    else if (access(path, is_folder ? R_OK | X_OK : R_OK) != 0)
        snprintf(what, sizeof what, "%s: %s", path, strerror(errno));
    else
        return CKKS_OK;
    return complain(c, path, what, err);
}

static ckks_status check_certificate(const config *c, ckks_error *err) {
    ckks_error cause = {0};
    if (!c->tls_certificate[0] || certificate_check(c->tls_certificate, c->tls_key, &cause) == CKKS_OK)
        return CKKS_OK;
    return complain(c, strcmp(cause.field, "tls_key") ? c->tls_certificate : c->tls_key, cause.message, err);
}

ckks_status config_load(config *out, const char *path, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    char *text = NULL;
    size_t used = 0;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return ckks_error_set(err, CKKS_NOT_FOUND, "config", "%s: %s", path, strerror(errno));
    if (!(text = malloc(CONFIG_FILE_MAX + 1))) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "config", "out of memory");
        goto out;
    }
    while (used <= CONFIG_FILE_MAX) {
        const ssize_t n = read(fd, text + used, CONFIG_FILE_MAX + 1 - used);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            rc = ckks_error_set(err, CKKS_IO, "config", "%s: %s", path, strerror(errno));
            goto out;
        }
        if (n == 0) break;
        used += (size_t)n;
    }
    if ((rc = config_parse(out, text, used, path, err)) != CKKS_OK) goto out;
    if ((rc = check_path(out, out->models, true, err)) != CKKS_OK) goto out;
    if ((rc = check_path(out, out->data, true, err)) != CKKS_OK) goto out;
    if ((rc = check_path(out, out->tokens, false, err)) != CKKS_OK) goto out;
    if ((rc = check_path(out, out->tls_certificate, false, err)) != CKKS_OK) goto out;
    if ((rc = check_path(out, out->tls_key, false, err)) != CKKS_OK) goto out;
    if ((rc = check_path(out, out->tls_client_ca, false, err)) != CKKS_OK) goto out;
    rc = check_certificate(out, err);
out:
    free(text);
    close(fd);
    return rc;
}
