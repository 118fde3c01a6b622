#include "client/lib/files_keys.h"

#include "kernels/base/bytes.h"
#include "proto/key_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define SECRET_FILE_BYTES_MAX (1u << 20)

ckks_status key_paths_for(key_paths *out, const char *where, const ckks_params *params, ckks_error *err) {
    struct stat st;
    char name[17];
    const size_t length = strlen(where);
    if (length == 0 || length > KEY_PATH_MAX - 32)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "key", "the path is empty or too long");
    const bool is_folder = where[length - 1] == '/' || (stat(where, &st) == 0 && S_ISDIR(st.st_mode));
    const char *slash = where[length - 1] == '/' ? "" : "/";
    hex_encode(name, params->id, 8);
    snprintf(out->secret, sizeof out->secret, "%s%s%s.secret", where, is_folder ? slash : "",
             is_folder ? name : "");
    snprintf(out->keys, sizeof out->keys, "%s%s%s.keys", where, is_folder ? slash : "",
             is_folder ? name : "");
    snprintf(out->public, sizeof out->public, "%s%s%s.public", where, is_folder ? slash : "",
             is_folder ? name : "");
    return CKKS_OK;
}

/* ---- passphrases ---- */

void passphrase_fini(passphrase *p) {
    if (!p) return;
    sodium_free(p->text); /* wipes; accepts NULL */
    *p = (passphrase){0};
}

static ckks_status passphrase_allocate(passphrase *out, ckks_error *err) {
    ckks_status rc;
    *out = (passphrase){0};
    if ((rc = client_init(err)) != CKKS_OK) return rc;
    if (!(out->text = sodium_malloc(PASSPHRASE_BYTES_MAX + 1)))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "passphrase", "no guarded memory");
    return CKKS_OK;
}

/* one line, byte by byte: no buffered reader may keep a copy */
static ckks_status read_line(passphrase *p, int fd, ckks_error *err) {
    char c;
    p->bytes = 0;
    for (;;) {
        const ssize_t got = read(fd, &c, 1);
        if (got < 0) return ckks_error_set(err, CKKS_IO, "passphrase", "it cannot be read");
        if (got == 0 || c == '\n') break;
        if (p->bytes == PASSPHRASE_BYTES_MAX)
            return ckks_error_set(err, CKKS_TOO_LARGE, "passphrase", "longer than %u bytes",
                                  PASSPHRASE_BYTES_MAX);
        p->text[p->bytes++] = c;
    }
    if (p->bytes && p->text[p->bytes - 1] == '\r') p->bytes--;
    p->text[p->bytes] = 0;
    if (!p->bytes) return ckks_error_set(err, CKKS_PASSPHRASE, "passphrase", "it is empty");
    return CKKS_OK;
}

ckks_status passphrase_from_file(passphrase *out, const char *path, ckks_error *err) {
    ckks_status rc;
    if ((rc = passphrase_allocate(out, err)) != CKKS_OK) return rc;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    rc = fd < 0 ? ckks_error_set(err, CKKS_NOT_FOUND, "passphrase", "%s cannot be opened", path)
                : read_line(out, fd, err);
    if (fd >= 0) close(fd);
    if (rc != CKKS_OK) passphrase_fini(out);
    return rc;
}

static ckks_status ask(passphrase *out, int tty, const char *prompt, ckks_error *err) {
    ckks_status rc;
    struct termios shown, hidden;
    if ((rc = passphrase_allocate(out, err)) != CKKS_OK) return rc;
    if (tcgetattr(tty, &shown) != 0)
        return ckks_error_set(err, CKKS_PASSPHRASE, "passphrase", "the terminal cannot be used");
    hidden = shown;
    hidden.c_lflag &= ~(tcflag_t)ECHO;
    if (tcsetattr(tty, TCSAFLUSH, &hidden) != 0)
        return ckks_error_set(err, CKKS_PASSPHRASE, "passphrase",
                              "the terminal's echo cannot be switched off");
    /* asked for only now: what is typed at once must be neither shown nor lost */
    rc = write(tty, prompt, strlen(prompt)) < 0
             ? ckks_error_set(err, CKKS_IO, "passphrase", "the terminal cannot be written")
             : read_line(out, tty, err);
    tcsetattr(tty, TCSAFLUSH, &shown);
    if (write(tty, "\n", 1) < 0)
        rc = rc == CKKS_OK ? ckks_error_set(err, CKKS_IO, "passphrase", "terminal") : rc;
    return rc;
}

ckks_status passphrase_from_tty(passphrase *out, const char *prompt, bool confirm, ckks_error *err) {
    ckks_status rc;
    passphrase again = {0};
    *out = (passphrase){0};
    const int tty = open("/dev/tty", O_RDWR | O_CLOEXEC | O_NOCTTY);
    if (tty < 0)
        return ckks_error_set(err, CKKS_PASSPHRASE, "passphrase",
                              "there is no terminal to ask on: use --passphrase-file");
    if ((rc = ask(out, tty, prompt, err)) == CKKS_OK && confirm) {
        rc = ask(&again, tty, "The same again: ", err);
        if (rc == CKKS_OK &&
            (again.bytes != out->bytes || sodium_memcmp(again.text, out->text, out->bytes) != 0))
            rc = ckks_error_set(err, CKKS_PASSPHRASE, "passphrase", "the two differ");
    }
    passphrase_fini(&again);
    close(tty);
    if (rc != CKKS_OK) passphrase_fini(out);
    return rc;
}

/* ---- secret keys ---- */

ckks_status secret_file_write(const char *path, const client_secret_key *sk, const passphrase *p,
                              ckks_error *err) {
    ckks_status rc;
    uint8_t *image = NULL;
    size_t size = 0;
    const client_passphrase seal = {p ? p->text : NULL, p ? p->bytes : 0};
    if ((rc = file_make_parents(path, err)) != CKKS_OK) return rc;
    rc = client_secret_key_export(&image, &size, sk, &seal, (uint64_t)time(NULL), err);
    if (rc == CKKS_OK) rc = file_write(path, image, size, 0600, false, err);
    if (image) sodium_memzero(image, size);
    free(image);
    return rc;
}

ckks_status secret_file_read(client_secret_key **out, const char *path, const passphrase *p,
                             bool allow_insecure, ckks_error *err) {
    ckks_status rc;
    container_file file = {0};
    const client_passphrase seal = {p ? p->text : NULL, p ? p->bytes : 0};
    *out = NULL;
    if ((rc = container_read(&file, path, CONTAINER_SECRET_KEY, SECRET_FILE_BYTES_MAX, err)) == CKKS_OK) {
        ckks_error inner = {0};
        rc = client_secret_key_import(out, file.bytes, file.size, &seal, allow_insecure, &inner);
        file_name_error(&inner, path);
        if (rc != CKKS_OK && err && err->code == CKKS_OK) *err = inner;
    }
    if (file.bytes) sodium_memzero(file.bytes, file.size);
    container_file_fini(&file);
    return rc;
}

ckks_status secret_file_inspect(secret_file_info *out, const void *image, size_t size, ckks_error *err) {
    ckks_status rc;
    container_view view = {0};
    ProtobufCMessage *message = NULL;
    *out = (secret_file_info){0};
    if ((rc = container_parse(&view, image, size, CONTAINER_SECRET_KEY, err)) != CKKS_OK) goto out;
    rc = message_unpack(&message, &ckksd__v1__secret_key_manifest__descriptor, view.manifest,
                        view.manifest_bytes, 1u << 20, "secret key manifest", err);
    if (rc != CKKS_OK) goto out;
    const Ckksd__V1__SecretKeyManifest *m = (const Ckksd__V1__SecretKeyManifest *)message;
    if (!m->parameters || m->lineage.len != LINEAGE_BYTES) {
        rc = ckks_error_set(err, CKKS_MALFORMED, "lineage", "the manifest is incomplete");
        goto out;
    }
    if ((rc = params_from_message(&out->params, m->parameters, err)) != CKKS_OK) goto out;
    memcpy(out->lineage, m->lineage.data, LINEAGE_BYTES);
    out->is_sealed = m->has_salt;
    out->is_insecure = params_security_bits(&out->params) < 128;
    out->created_unix = m->created_unix;
out:
    message_free(message);
    container_view_fini(&view);
    return rc;
}

/* ---- key sets ---- */

ckks_status key_set_file_write(const char *path, const client_key_set *set, bool overwrite, ckks_error *err) {
    ckks_status rc;
    uint8_t *image = NULL;
    size_t size = 0;
    if ((rc = file_make_parents(path, err)) != CKKS_OK) return rc;
    if ((rc = client_key_set_export(&image, &size, set, err)) == CKKS_OK)
        rc = file_write(path, image, size, 0644, overwrite, err);
    free(image);
    return rc;
}

ckks_status key_set_file_read(client_key_set **out, const char *path, bool allow_insecure, ckks_error *err) {
    ckks_status rc;
    uint8_t *image = NULL;
    size_t size = 0;
    *out = NULL;
    if ((rc = file_read(&image, &size, path, KEY_FILE_BYTES_MAX, err)) != CKKS_OK) return rc;
    ckks_error inner = {0};
    rc = client_key_set_import(out, image, size, allow_insecure, &inner);
    file_name_error(&inner, path);
    if (rc != CKKS_OK && err && err->code == CKKS_OK) *err = inner;
    free(image);
    return rc;
}

/* All of it, or what is wrong: the file ends before, or cannot be read. */
static ckks_status read_at(int fd, void *bytes, size_t size, uint64_t at, const char *path,
                           const char *cut_short, ckks_error *err) {
    const ssize_t got = pread(fd, bytes, size, (off_t)at);
    if (got == (ssize_t)size) return CKKS_OK;
    return got < 0 ? ckks_error_set(err, CKKS_IO, "file", "%.200s: read: %s", path, strerror(errno))
                   : ckks_error_set(err, CKKS_MALFORMED, "file", "%.200s: %s", path, cut_short);
}

/* The head of a container: magic, kind, version, manifest length, segment count, one u64 per segment,
 * manifest at the next multiple of 16. */
static ckks_status read_head(uint8_t **manifest, size_t *manifest_bytes, int fd, const char *path,
                             ckks_error *err) {
    uint8_t head[28];
    ckks_status rc = read_at(fd, head, sizeof head, 0, path, "not one of our files", err);
    if (rc != CKKS_OK) return rc;
    if (memcmp(head, CONTAINER_MAGIC, CONTAINER_MAGIC_BYTES) != 0)
        return ckks_error_set(err, CKKS_MALFORMED, "file", "%s: not one of our files", path);
    const uint32_t kind = bytes_read_u32(head + 12), version = bytes_read_u32(head + 16);
    const uint32_t bytes = bytes_read_u32(head + 20), segments = bytes_read_u32(head + 24);
    if (version != CONTAINER_VERSION)
        return ckks_error_set(err, CKKS_UNSUPPORTED_VERSION, "", "%s: written in format version %u", path,
                              version);
    if (kind != CONTAINER_KEY_SET)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "", "%s: is a %s, a key set is needed", path,
                              container_kind_name(kind));
    if (bytes > CONTAINER_MANIFEST_MAX || segments > CONTAINER_SEGMENTS_MAX)
        return ckks_error_set(err, CKKS_MALFORMED, "file", "%s: damaged head", path);
    if (!(*manifest = malloc((size_t)bytes + 1)))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory");
    const uint64_t at = align_up(sizeof head + (uint64_t)segments * 8, 16);
    rc = read_at(fd, *manifest, bytes, at, path, "cut short", err);
    if (rc == CKKS_OK) *manifest_bytes = bytes;
    return rc;
}

ckks_status key_set_file_peek(client_key_set **out, const char *path, bool allow_insecure, ckks_error *err) {
    ckks_status rc;
    uint8_t *manifest = NULL;
    size_t manifest_bytes = 0;
    key_set_view view = {0};
    client_key_set *set = NULL;
    *out = NULL;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return ckks_error_set(err, CKKS_NOT_FOUND, "", "%.200s: open: %s", path, strerror(errno));
    if ((rc = read_head(&manifest, &manifest_bytes, fd, path, err)) != CKKS_OK) goto out;
    if ((rc = key_set_from_bytes(&view, manifest, manifest_bytes, false, allow_insecure, err)) != CKKS_OK)
        goto out;
    if (!(set = calloc(1, sizeof *set)) ||
        !(set->keys = malloc(((size_t)view.count + 1) * sizeof *set->keys))) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a key set");
        goto out;
    }
    set->params = view.params;
    memcpy(set->lineage, view.lineage, sizeof set->lineage);
    memcpy(set->seed, view.seed, sizeof set->seed);
    memcpy(set->id, view.id, sizeof set->id);
    memcpy(set->keys, view.requirements, view.count * sizeof *set->keys);
    set->key_count = view.count;
    set->is_insecure = view.is_insecure;
    set->payload_bytes = view.payload_bytes;
    *out = set, set = NULL;
out:
    client_key_set_destroy(set);
    key_set_view_fini(&view);
    free(manifest);
    close(fd);
    return rc;
}
