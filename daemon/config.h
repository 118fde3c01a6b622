/*
 * Configuration: one ini file, a table of keys, no surprise. An unknown section or key, a bad value or a
 * missing file is refused with "file:line: what". config/ckksd.conf documents every key with its default and
 * is checked against the table by a test.
 */
#ifndef CKKSD_CONFIG_H
#define CKKSD_CONFIG_H

#include "kernels/base/log.h"
#include "kernels/device.h"

#include <limits.h>

#define CONFIG_TEXT_MAX  200u /* of a line */
#define CONFIG_LIST_MAX  16u
#define CONFIG_KEYS_MAX  64u
#define CONFIG_FILE_MAX  (1u << 20)
#define CONFIG_NAME_SIZE 512u
#define CONFIG_AUTO      UINT32_MAX

typedef struct config_list {
    uint32_t count;
    char item[CONFIG_LIST_MAX][CONFIG_TEXT_MAX];
} config_list;

typedef enum config_execution { EXECUTION_GRAPH, EXECUTION_EAGER } config_execution;

typedef struct config {
    /* [server] */
    char name[CONFIG_TEXT_MAX];
    char models[CONFIG_TEXT_MAX];
    char data[CONFIG_TEXT_MAX];
    char tokens[CONFIG_TEXT_MAX];
    bool allow_insecure;
    /* [listen] */
    config_list control, bulk;
    bool allow_plaintext;
    char tls_certificate[CONFIG_TEXT_MAX], tls_key[CONFIG_TEXT_MAX], tls_client_ca[CONFIG_TEXT_MAX];
    uint32_t ipc_mode;
    uint32_t pipes_max, unauthenticated_max;
    uint64_t unauthenticated_timeout_ms;
    uint32_t control_contexts;
    uint64_t control_message_bytes, bulk_message_bytes;
    uint64_t idle_timeout_ms, send_timeout_ms;
    uint32_t local_memory_peers;
    /* [admin] */
    char admin_socket[CONFIG_TEXT_MAX];
    config_list admin_uids;
    /* [ops] */
    char ops_listen[CONFIG_TEXT_MAX];
    /* [device] */
    uint32_t device_kind; /* device_kind */
    char device_selector[CONFIG_TEXT_MAX];
    uint32_t device_threads;
    uint64_t device_memory_bytes;
    /* [slots] */
    uint32_t slot_count;
    uint64_t arena_bytes;
    uint32_t execution; /* config_execution */
    uint32_t warmup;
    uint32_t spin_us; /* or CONFIG_AUTO */
    uint64_t stall_timeout_ms;
    /* [queue] */
    uint32_t requests_max, tenant_requests_max, model_requests_max;
    uint64_t bytes_max;
    uint64_t default_timeout_ms, timeout_max_ms;
    uint64_t orphan_grace_ms;
    uint64_t dedupe_s, dedupe_bytes;
    /* [keys] */
    uint64_t resident_bytes;
    uint64_t tenant_key_bytes;
    uint32_t tenant_key_sets;
    uint64_t upload_expire_s;
    uint32_t unused_days; /* 0: key sets stay */
    /* [log] */
    uint32_t log_level; /* log_level */
    /* [drain] */
    uint64_t linger_ms, drain_timeout_ms;

    uint32_t line[CONFIG_KEYS_MAX]; /* where each key was set; 0 = default */
    char file[CONFIG_NAME_SIZE];
} config;

/* config_default fills every key's default. */
void config_default(config *out);

/* config_parse reads text over the defaults and checks what can be checked without looking at files; `name`
 * stands in messages. CKKS_INVALID_ARGUMENT, CKKS_TOO_LARGE. Pure. */
ckks_status config_parse(config *out, const char *text, size_t size, const char *name, ckks_error *err);

/* config_load reads and parses the file and checks that the files it names are there. Blocks. */
ckks_status config_load(config *out, const char *path, ckks_error *err);

/* For the test of the sample: the number of keys, and each one's section, name and default as text ("" for an
 * empty list or path). */
uint32_t config_key_count(void);
void config_key_info(uint32_t index, const char **section, const char **name, const char **default_text);

/* config_url_check: a listener's address: scheme known, plaintext only on loopback unless `allow_plaintext`.
 * Pure. */
ckks_status config_url_check(const char *url, bool allow_plaintext, bool has_certificate, ckks_error *err);

/* "[address]:port" or "address:port" into its parts; false on anything else. */
bool config_split_address(const char *text, char *host, size_t host_size, uint16_t *port);

#endif
