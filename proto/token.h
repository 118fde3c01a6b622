/*
 * Tokens: how a peer says who it is.
 *
 * A token is "id.secret": a public name and 32 random bytes in hexadecimal. It is made once by token_generate
 * and never stored; the token file holds the SHA-256 of the 32 bytes. A line of the file:
 *
 *   id  sha256-of-secret  tenant  scope[,scope...]  [quota=name:value[,name:value...]]
 *
 * Scopes: infer, key-write, admin. Quotas: key_bytes (with K, M, G, T), key_sets, queued, key_days; an absent
 * quota is the daemon's default. Empty lines and text after '#' are comments. The secret has 256 bits of
 * entropy, so that a fast hash is enough.
 *
 * Deliberately absent: expiry (remove the line and reload) and tokens chosen by people.
 */
#ifndef CKKS_PROTO_TOKEN_H
#define CKKS_PROTO_TOKEN_H

#include "kernels/base/status.h"

#include <stddef.h>

#define TOKEN_NAME_MAX     63u /* of an id or a tenant: letters, digits, '-', '_' */
#define TOKEN_SECRET_BYTES 32u
#define TOKEN_TEXT_MAX     (TOKEN_NAME_MAX + 1u + 2u * TOKEN_SECRET_BYTES) /* without the NUL */
#define TOKEN_TEXT_SIZE    (TOKEN_TEXT_MAX + 1u)
#define TOKEN_LINE_MAX     1024u
#define TOKEN_COUNT_MAX    65536u
#define TOKEN_FILE_MAX     (16u << 20)

typedef enum token_scope {
    TOKEN_SCOPE_INFER = 1u << 0,
    TOKEN_SCOPE_KEY_WRITE = 1u << 1,
    TOKEN_SCOPE_ADMIN = 1u << 2,
} token_scope;

/* 0 = the daemon's default */
typedef struct token_quota {
    uint64_t key_bytes; /* committed and staged key payloads of the tenant */
    uint32_t key_sets;  /* committed and staged key sets of the tenant */
    uint32_t queued;    /* requests of the tenant waiting or running */
    uint32_t key_days;  /* key sets unused for so long are evicted */
} token_quota;

typedef struct token_entry {
    char id[TOKEN_NAME_MAX + 1];
    char tenant[TOKEN_NAME_MAX + 1];
    uint8_t digest[32]; /* SHA-256 of the secret's bytes */
    uint32_t scopes;    /* token_scope bits, at least one */
    token_quota quota;
} token_entry;

/* A parsed token file, sorted by id. Zero-initialise; token_table_fini accepts zeroed. */
typedef struct token_table {
    token_entry *entries;
    size_t count;
} token_table;

/* token_name_is_valid: 1 to TOKEN_NAME_MAX letters, digits, '-', '_'. Pure. */
bool token_name_is_valid(const char *name);

/* token_scopes_parse reads "infer,key-write"; token_scopes_print writes it (any capacity >= 32). Pure. */
ckks_status token_scopes_parse(uint32_t *out, const char *text, ckks_error *err);
char *token_scopes_print(uint32_t scopes, char *text, size_t capacity);

/*
 * token_table_parse reads a whole token file from memory. `name` stands for the file in messages, which are
 * "name:line: what". On success the caller owns *out (token_table_fini); on failure *out is zeroed.
 * CKKS_MALFORMED, CKKS_ALREADY_EXISTS (an id twice), CKKS_TOO_LARGE, CKKS_RESOURCE_EXHAUSTED. Pure.
 */
ckks_status token_table_parse(token_table *out, const char *text, size_t size, const char *name,
                              ckks_error *err);
/* token_table_load reads a file; refuses one that others may read or that group or others may write. Blocks.
 * CKKS_NOT_FOUND, CKKS_IO, CKKS_PERMISSION_DENIED and the above. */
ckks_status token_table_load(token_table *out, const char *path, ckks_error *err);
void token_table_fini(token_table *table);

/*
 * token_table_verify returns the entry whose secret `token` carries, or NULL. The comparison of secrets takes
 * the same time whatever differs, and an unknown id costs as much as a known one. The entry lives as long as
 * the table. Thread-safe, does not block.
 */
const token_entry *token_table_verify(const token_table *table, const char *token);

/*
 * token_generate draws a secret from the operating system, fills *entry (digest, names, scopes; no quotas)
 * and writes the token into text[TOKEN_TEXT_SIZE]; the caller shows it once and wipes it.
 * CKKS_INVALID_ARGUMENT names id, tenant or scopes. Thread-safe.
 */
ckks_status token_generate(char text[TOKEN_TEXT_SIZE], token_entry *entry, const char *id, const char *tenant,
                           uint32_t scopes, ckks_error *err);

/* token_entry_print writes the entry as a line of the file, without a newline, into line[TOKEN_LINE_MAX]. */
char *token_entry_print(const token_entry *entry, char line[TOKEN_LINE_MAX]);

/*
 * token_file_add appends an entry: reads and checks the file at `path` (absent = empty), writes it whole with
 * the new line into a temporary file beside it, mode 0640 and the old file's owner and group where permitted,
 * syncs and renames, so that a reader sees the old or the new file. Comments stay. CKKS_ALREADY_EXISTS for a
 * known id. After any error the file is as it was, also where only its folder could not be synced. Blocks.
 */
ckks_status token_file_add(const char *path, const token_entry *entry, ckks_error *err);

#endif
