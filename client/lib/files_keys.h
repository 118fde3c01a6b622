/*
 * Keys on disk. A key folder holds, for each parameter set, files named by the first 16 hexadecimal digits of
 * the parameter id: ID.secret (0600), ID.keys (what is uploaded), ID.public (what may be given to others). A
 * prefix names them explicitly: PREFIX.secret and so on.
 */
#ifndef CKKS_CLIENT_FILES_KEYS_H
#define CKKS_CLIENT_FILES_KEYS_H

#include "client/lib/crypto.h"
#include "client/lib/files.h"

#define KEY_PATH_MAX         4096u
#define KEY_FILE_BYTES_MAX   (UINT64_C(8) << 30)
#define PASSPHRASE_BYTES_MAX 1024u

typedef struct key_paths {
    char secret[KEY_PATH_MAX], keys[KEY_PATH_MAX], public[KEY_PATH_MAX];
} key_paths;
/* key_paths_for: `where` is a folder if it ends in '/' or is one, else a prefix. */
ckks_status key_paths_for(key_paths *out, const char *where, const ckks_params *params, ckks_error *err);

/* A passphrase in guarded memory. */
typedef struct passphrase {
    char *text; /* sodium_malloc, NUL-terminated; NULL = none */
    size_t bytes;
} passphrase;
/* passphrase_from_file reads the first line. passphrase_from_tty asks on the terminal, twice if `confirm`,
 * with echo off; CKKS_PASSPHRASE without a terminal or when the two differ. */
ckks_status passphrase_from_file(passphrase *out, const char *path, ckks_error *err);
ckks_status passphrase_from_tty(passphrase *out, const char *prompt, bool confirm, ckks_error *err);
void passphrase_fini(passphrase *p); /* wipes; accepts zeroed */

/* secret_file_write: mode 0600, synced; refuses an existing file. */
ckks_status secret_file_write(const char *path, const client_secret_key *sk, const passphrase *p,
                              ckks_error *err);
/* secret_file_read refuses a file that group or others may read (CKKS_PERMISSION_DENIED, says chmod). */
ckks_status secret_file_read(client_secret_key **out, const char *path, const passphrase *p,
                             bool allow_insecure, ckks_error *err);
/* secret_file_is_sealed: does the file need a passphrase? Also gives its parameters and lineage; reveals
 * nothing else. */
typedef struct secret_file_info {
    ckks_params params;
    uint8_t lineage[LINEAGE_BYTES];
    bool is_sealed, is_insecure;
    uint64_t created_unix;
} secret_file_info;
ckks_status secret_file_inspect(secret_file_info *out, const void *image, size_t size, ckks_error *err);

ckks_status key_set_file_write(const char *path, const client_key_set *set, bool overwrite, ckks_error *err);
ckks_status key_set_file_read(client_key_set **out, const char *path, bool allow_insecure, ckks_error *err);
/* key_set_file_peek reads the manifest alone, so that using a set of gigabytes does not mean reading it:
 * payload is NULL, and its digest is not verified (the server does, when it is registered). Destroy with
 * client_key_set_destroy. */
ckks_status key_set_file_peek(client_key_set **out, const char *path, bool allow_insecure, ckks_error *err);

#endif
