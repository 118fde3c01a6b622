/* Common options and what follows from them: server, token, keys, models. */
#include "client/ctl/ctl.h"

#include "client/lib/rpc_internal.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOADING_POLL_MS    500u
#define TOKEN_NAME_LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"

enum {
    OPTION_PROFILE = CTL_COMMON_FIRST,
    OPTION_SERVER,
    OPTION_TOKEN_FILE,
    OPTION_CA,
    OPTION_KEY,
    OPTION_PASSPHRASE_FILE,
    OPTION_JSON,
    OPTION_INSECURE,
    OPTION_TIMEOUT
};

static const struct argp_option common_options[] = {
    {0, 0, 0, 0, "Common options:", 10},
    {"profile", OPTION_PROFILE, "NAME", 0, "settings to use (default: the current profile)", 10},
    {"server", OPTION_SERVER, "ADDRESS", 0,
     "tcp://HOST:PORT, tls+tcp://HOST:PORT, ipc:///PATH or ws://HOST:PORT/PATH", 10},
    {"token-file", OPTION_TOKEN_FILE, "FILE", 0, "file whose first line is your token", 10},
    {"ca", OPTION_CA, "FILE", 0, "PEM file of the authority that signed the server's certificate", 10},
    {"key", OPTION_KEY, "PATH", 0, "folder of keys, or PREFIX of PREFIX.secret, PREFIX.keys, PREFIX.public",
     10},
    {"passphrase-file", OPTION_PASSPHRASE_FILE, "FILE", 0,
     "first line unlocks a sealed secret key (default: ask)", 10},
    {"timeout", OPTION_TIMEOUT, "MS", 0, "how long a call may take, retries included (default 60000)", 10},
    {"json", OPTION_JSON, 0, 0, "results and errors as JSON on standard output", 10},
    {"quiet", 'q', 0, 0, "no progress, no notes", 10},
    {"allow-insecure", OPTION_INSECURE, 0, 0, "accept parameters below 128 bits of security: tests only", 10},
    {0}};

static error_t parse_common(int key, char *argument, struct argp_state *state) {
    ctl_options *o = state->input;
    switch (key) {
    case OPTION_PROFILE:
        o->profile_name = argument;
        return 0;
    case OPTION_SERVER:
        o->server = argument;
        return 0;
    case OPTION_TOKEN_FILE:
        o->token_file = argument;
        return 0;
    case OPTION_CA:
        o->ca_file = argument;
        return 0;
    case OPTION_KEY:
        o->key = argument;
        return 0;
    case OPTION_PASSPHRASE_FILE:
        o->passphrase_file = argument;
        return 0;
    case OPTION_TIMEOUT:
        o->timeout_ms = (uint32_t)ctl_take_count(state, argument, 86400000, "timeout");
        return 0;
    case OPTION_JSON:
        o->json = true;
        return 0;
    case 'q':
        o->quiet = true;
        return 0;
    case OPTION_INSECURE:
        o->allow_insecure = true;
        return 0;
    case ARGP_KEY_ARG: /* comes here where the subcommand takes none */
        ctl_refuse_more(state, argument);
        return EINVAL;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

const struct argp ctl_common_argp = {.options = common_options, .parser = parse_common};
const struct argp_child ctl_common_children[] = {{&ctl_common_argp, 0, NULL, 0}, {0}};

/* a path cut off would be another path */
static ckks_status override(char *to, size_t capacity, const char *value, const char *option,
                            ckks_error *err) {
    if (value && strlen(value) >= capacity)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, option, "longer than %zu bytes", capacity - 1);
    if (value) snprintf(to, capacity, "%s", value);
    return CKKS_OK;
}

ckks_status ctl_resolve(ctl_options *options, ckks_error *err) {
    ckks_status rc;
    ctl_profile *p = &options->profile;
    if ((rc = profile_load(p, options->profile_name, err)) != CKKS_OK) return rc;
    if ((rc = override(p->server, sizeof p->server, options->server, "server", err)) != CKKS_OK ||
        (rc = override(p->token_file, sizeof p->token_file, options->token_file, "token-file", err)) !=
            CKKS_OK ||
        (rc = override(p->ca_file, sizeof p->ca_file, options->ca_file, "ca", err)) != CKKS_OK ||
        (rc = override(p->key, sizeof p->key, options->key, "key", err)) != CKKS_OK)
        return rc;
    if (!p->key[0]) profile_path(p->key, "keys/");
    return CKKS_OK;
}

/* NAME.64 hexadecimal digits. Anything else stays here: it may be the first line of a wrong file. */
static bool looks_like_token(const char *text) {
    const char *dot = strchr(text, '.');
    if (!dot || dot == text || strlen(dot + 1) != 64) return false;
    return strspn(text, TOKEN_NAME_LETTERS) == (size_t)(dot - text) &&
           strspn(dot + 1, "0123456789abcdefABCDEF") == 64;
}

/* first line of the token file, in `token`, wiped by the caller */
static ckks_status read_token(char token[RPC_TOKEN_MAX + 1], const char *path, ckks_error *err) {
    ckks_status rc;
    uint8_t *bytes = NULL;
    size_t size = 0;
    if ((rc = file_read(&bytes, &size, path, 65536, err)) != CKKS_OK) return rc;
    size_t length = 0;
    while (length < size && bytes[length] != '\n' && bytes[length] != '\r') length++;
    if (length > 0 && length <= RPC_TOKEN_MAX) {
        memcpy(token, bytes, length);
        token[length] = 0;
    }
    if (!looks_like_token(token)) {
        sodium_memzero(token, RPC_TOKEN_MAX + 1);
        rc = ckks_error_set(err, CKKS_INVALID_ARGUMENT, "token-file", "%s: its first line is no token", path);
    }
    sodium_memzero(bytes, size);
    free(bytes);
    return rc;
}

ckks_status ctl_connect(rpc_connection **out, const ctl_options *options, ckks_error *err) {
    const ctl_profile *p = &options->profile;
    ckks_status rc = CKKS_OK;
    char token[RPC_TOKEN_MAX + 1] = "";
    *out = NULL;
    if (!p->server[0])
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "server",
                              "which one? give --server, or once: ckksctl profile --server ADDRESS");
    if (p->token_file[0] && (rc = read_token(token, p->token_file, err)) != CKKS_OK) return rc;
    const rpc_config config = {.address = p->server,
                               .token = token[0] ? token : NULL,
                               .ca_file = p->ca_file[0] ? p->ca_file : NULL,
                               .timeout_ms = options->timeout_ms,
                               .spin_us = options->spin_us};
    rc = rpc_connect(out, &config, err);
    sodium_memzero(token, sizeof token);
    return rc;
}

ckks_status ctl_load_secret(client_secret_key **out, const ctl_options *options, const char *path,
                            ckks_error *err) {
    ckks_status rc;
    uint8_t *image = NULL;
    size_t size = 0;
    secret_file_info info;
    passphrase p = {0};
    *out = NULL;
    if ((rc = file_read(&image, &size, path, 1u << 20, err)) == CKKS_OK)
        rc = secret_file_inspect(&info, image, size, err);
    if (image) sodium_memzero(image, size);
    free(image);
    if (rc == CKKS_NOT_FOUND && err) err->code = rc = CKKS_KEY_MISSING;
    if (rc != CKKS_OK) return rc;
    if (info.is_sealed) {
        rc = options->passphrase_file ? passphrase_from_file(&p, options->passphrase_file, err)
                                      : passphrase_from_tty(&p, "Passphrase of the secret key: ", false, err);
    }
    if (rc == CKKS_OK) rc = secret_file_read(out, path, &p, options->allow_insecure, err);
    passphrase_fini(&p);
    return rc;
}

ckks_status ctl_split_model(char **name, const char **version, const char *text, ckks_error *err) {
    *version = NULL;
    if (!(*name = strdup(text))) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory");
    char *slash = strchr(*name, '/');
    if (slash) *slash = 0, *version = slash + 1;
    if (!**name || (slash && !slash[1])) {
        free(*name);
        *name = NULL;
        return ckks_error_set(err, CKKS_UNTRUSTED_SERVER, "model", "%.100s: NAME or NAME/VERSION is expected",
                              text);
    }
    return CKKS_OK;
}

ckks_status ctl_is_ready(bool *out, rpc_connection *connection, ckks_error *err) {
    rpc_reply reply = {0};
    const rpc_request request = {.method = "Inference/ServerReady",
                                 .reply = &ckksd__v1__server_ready_reply__descriptor};
    const ckks_status rc = rpc_call(connection, &request, &reply, err);
    *out = rc == CKKS_OK && ((const Ckksd__V1__ServerReadyReply *)reply.payload)->ready;
    rpc_reply_fini(&reply);
    return rc;
}

static ckks_status model_of_server(client_model **out, rpc_connection *connection, const ctl_options *options,
                                   const char *name, const char *version,
                                   const client_model_options *model_options, ckks_error *err) {
    const uint64_t wait_ms = options->timeout_ms ? options->timeout_ms : RPC_TIMEOUT_MS;
    const uint64_t end_ns = rpc_now_ns() + wait_ms * UINT64_C(1000000);
    for (bool is_last = false, is_told = false;;) {
        ckks_error inner = {0};
        const ckks_status rc = rpc_model(out, connection, name, version, model_options, &inner);
        if (rc != CKKS_UNAVAILABLE || !rpc_error_is_from_server(&inner) || is_last) {
            if (err && err->code == CKKS_OK) *err = inner;
            return rc;
        }
        /* a model that becomes ready between the two questions is asked for once more */
        is_last = ctl_is_ready(&is_last, connection, NULL) != CKKS_OK || is_last || rpc_now_ns() >= end_ns;
        if (is_last) continue;
        if (!is_told) ctl_note(options, "the server is still loading its models: waiting");
        is_told = true;
        usleep(LOADING_POLL_MS * 1000);
    }
}

/* a path is none of a server's names: its operator would be asked about a file that is missing here */
static bool may_be_of_server(const char *text) {
    const char *slash = strchr(text, '/');
    return text[0] != '.' && slash != text && (!slash || (slash[1] && !strchr(slash + 1, '/')));
}

ckks_status ctl_model(client_model **out, rpc_connection **connection, const ctl_options *options,
                      const char *text, const uint8_t *pin, ckks_error *err) {
    const client_model_options model_options = {.allow_insecure = options->allow_insecure,
                                                .pinned_digest = pin};
    ckks_status rc;
    *out = NULL;
    struct stat st;
    if (stat(text, &st) == 0 && S_ISREG(st.st_mode)) {
        uint8_t *image = NULL;
        size_t size = 0;
        ckks_error inner = {0};
        if ((rc = file_read(&image, &size, text, UINT64_C(4) << 30, err)) != CKKS_OK) return rc;
        rc = client_model_from_file(out, image, size, &model_options, &inner);
        file_name_error(&inner, text);
        if (rc != CKKS_OK && err && err->code == CKKS_OK) *err = inner;
        free(image);
        return rc;
    }
    if (!may_be_of_server(text))
        return ckks_error_set(err, CKKS_NOT_FOUND, "file",
                              "%.200s: there is no such file, and a server's model is MODEL or MODEL/VERSION",
                              text);
    char *name = NULL;
    const char *version;
    if ((rc = ctl_split_model(&name, &version, text, err)) != CKKS_OK) return rc;
    if (!*connection) rc = ctl_connect(connection, options, err);
    if (rc == CKKS_OK) rc = model_of_server(out, *connection, options, name, version, &model_options, err);
    free(name);
    return rc;
}

static void parent_of(char folder[CTL_PATH_MAX]) {
    char *slash = strrchr(folder, '/');
    if (slash)
        slash[slash == folder] = 0;
    else
        snprintf(folder, CTL_PATH_MAX, ".");
}

static ckks_status check_output(const char *path, bool makes_folders, ckks_error *err) {
    struct stat st;
    char folder[CTL_PATH_MAX];
    if (!path) return CKKS_OK;
    if (strlen(path) >= sizeof folder)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "output", "longer than %u bytes", CTL_PATH_MAX - 1);
    const bool exists = stat(path, &st) == 0;
    if (exists && S_ISDIR(st.st_mode))
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "output", "%.200s is a folder: name a file in it",
                              path);
    if (exists && !S_ISREG(st.st_mode)) return CKKS_OK; /* a device or a pipe is written to as it is */
    snprintf(folder, sizeof folder, "%s", path);
    parent_of(folder);
    while (makes_folders && access(folder, F_OK) != 0 && errno == ENOENT && strcmp(folder, ".") != 0)
        parent_of(folder);
    if (access(folder, W_OK | X_OK) == 0) return CKKS_OK;
    return ckks_error_set(err, errno == ENOENT ? CKKS_NOT_FOUND : CKKS_PERMISSION_DENIED, "output",
                          "%.200s: nothing can be written in %.100s: %s", path, folder, strerror(errno));
}
ckks_status ctl_check_output(const char *path, ckks_error *err) {
    return check_output(path, false, err);
}
ckks_status ctl_check_output_below(const char *path, ckks_error *err) {
    return check_output(path, true, err);
}

/* `text` may be a file's name, from a folder of somebody else */
static const char *quoted(char to[128], const char *text) {
    snprintf(to, 128, "%s", text);
    text_make_printable(to);
    return to;
}

void ctl_refuse_more(struct argp_state *state, const char *text) {
    char shown[128];
    argp_error(state, "one argument too many: %s", quoted(shown, text));
}

void ctl_take_one(struct argp_state *state, const char **to, const char *text) {
    if (*to) ctl_refuse_more(state, text);
    *to = text;
}

const char *ctl_take_model(struct argp_state *state, const char *text) {
    char shown[128];
    const size_t length = strlen(text);
    if (!length || text[length - 1] == '/')
        argp_error(state, "MODEL is \"%s\": %s", quoted(shown, text),
                   length > 1 ? "the version behind the slash is missing (MODEL or MODEL/VERSION)"
                              : "its name is missing (MODEL or MODEL/VERSION)");
    return text;
}

const char *ctl_take_output(struct argp_state *state, const char *text, const char *name) {
    if (!text[0] || !strcmp(text, "-"))
        argp_error(state, "--%s takes the name of a file (one that is called - is ./-)", name);
    return text;
}

void ctl_need(struct argp_state *state, const char *given, const char *name, const char *what) {
    if (!given) argp_error(state, "%s is missing: %s", name, what);
}

uint64_t ctl_take_count(struct argp_state *state, const char *text, uint64_t max, const char *name) {
    char *end;
    errno = 0;
    const unsigned long long value = strtoull(text, &end, 10);
    if (errno || *end || text[0] < '0' || text[0] > '9' || value < 1 || value > max)
        argp_error(state, "--%s takes 1 to %llu", name, (unsigned long long)max);
    return value;
}

uint32_t ctl_take_security(struct argp_state *state, const char *text) {
    static const char *const known[] = {"128", "192", "256"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(text, known[i])) return 128 + 64 * (uint32_t)i;
    argp_error(state, "--security takes 128, 192 or 256");
    return 0;
}

device_kind ctl_take_device(struct argp_state *state, const char *text) {
    if (!strcmp(text, "cpu")) return DEVICE_CPU;
    if (!strcmp(text, "cuda")) return DEVICE_CUDA;
    if (strcmp(text, "auto") != 0) argp_error(state, "--device takes auto, cpu or cuda");
    return DEVICE_AUTO;
}
