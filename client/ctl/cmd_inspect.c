/* ckksctl inspect: what a file of ours is. Reads manifests and sizes; of a secret key nothing but its label.
 */
#include "client/ctl/ctl.h"

#include "kernels/base/bytes.h"
#include "proto/ciphertext_file.h"
#include "proto/key_file.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct arguments {
    ctl_options common;
    const char *files[256];
    uint32_t file_count;
} arguments;

static error_t parse(int key, char *argument, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->common;
        return 0;
    case ARGP_KEY_ARG:
        if (a->file_count == sizeof a->files / sizeof *a->files) ctl_refuse_more(state, argument);
        a->files[a->file_count++] = argument;
        return 0;
    case ARGP_KEY_END:
        ctl_need(state, a->files[0], "FILE", "what to look into");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp parser = {
    NULL,
    parse,
    "FILE...",
    "Say what is in a secret key, public key, key set, ciphertext, package or metadata "
    "file.\v"
    "Never prints secrets; needs no passphrase.\n\n"
    "Examples:\n"
    "  ckksctl inspect model.ckm\n"
    "  ckksctl inspect ~/.config/ckksctl/keys/* --json\n",
    ctl_common_children,
    0,
    0};

/* One fact on a line, or one member of an object. */
typedef struct printer {
    bool is_json;
    json_writer j;
} printer;

static void say(printer *p, const char *key, const char *value) {
    if (p->is_json)
        json_string(&p->j, key, value);
    else
        printf("  %-16s %s\n", key, value);
}
static void say_count(printer *p, const char *key, uint64_t value) {
    if (p->is_json)
        json_integer(&p->j, key, value);
    else
        printf("  %-16s %llu\n", key, (unsigned long long)value);
}
static void say_bytes(printer *p, const char *key, uint64_t value) {
    char text[32];
    if (p->is_json)
        json_integer(&p->j, key, value);
    else
        printf("  %-16s %s\n", key, ctl_bytes(text, value));
}
static void say_real(printer *p, const char *key, double value) {
    if (p->is_json)
        json_number(&p->j, key, value);
    else
        printf("  %-16s %g\n", key, value);
}
static void say_hex(printer *p, const char *key, const uint8_t *data, size_t size) {
    char text[129];
    say(p, key, hex_encode(text, data, size));
}
static void say_flag(printer *p, const char *key, bool value) {
    if (p->is_json)
        json_bool(&p->j, key, value);
    else if (value)
        printf("  %-16s yes\n", key);
}

static void say_params(printer *p, const ckks_params *params) {
    say_hex(p, "parameters", params->id, sizeof params->id);
    say_count(p, "log_n", params->log_n);
    say_count(p, "levels", params_level_max(params));
    say_count(p, "log_qp", params_log_qp(params));
    say_count(p, "security_bits", params_security_bits(params));
    say_flag(p, "INSECURE", params_security_bits(params) < 128);
}

static ckks_status inspect_secret(printer *p, const uint8_t *image, size_t size, ckks_error *err) {
    secret_file_info info;
    const ckks_status rc = secret_file_inspect(&info, image, size, err);
    if (rc != CKKS_OK) return rc;
    say_params(p, &info.params);
    say_hex(p, "lineage", info.lineage, sizeof info.lineage);
    say(p, "passphrase", info.is_sealed ? "needed" : "none: the file alone is the key");
    char when[32] = "unknown";
    const time_t created = (time_t)info.created_unix;
    struct tm tm;
    if (info.created_unix < UINT64_C(253402300800) && gmtime_r(&created, &tm))
        strftime(when, sizeof when, "%Y-%m-%d %H:%M UTC", &tm);
    say(p, "created", when);
    return CKKS_OK;
}

static ckks_status inspect_keys(printer *p, const container_view *file, ckks_error *err) {
    key_set_view view = {0};
    const ckks_status rc = key_set_from_container(&view, file, true, err);
    if (rc == CKKS_OK) {
        uint32_t galois = 0, lowest = UINT32_MAX, highest = 0;
        for (uint32_t i = 0; i < view.count; i++) {
            const key_requirement *k = &view.requirements[i];
            galois += k->kind == KEY_GALOIS;
            lowest = k->level < lowest ? k->level : lowest;
            highest = k->level > highest ? k->level : highest;
        }
        say_hex(p, "id", view.id, sizeof view.id);
        say_params(p, &view.params);
        say_hex(p, "lineage", view.lineage, sizeof view.lineage);
        say_count(p, "keys", view.count);
        say_count(p, "galois_keys", galois);
        say_count(p, "lowest_level", lowest);
        say_count(p, "highest_level", highest);
        say_bytes(p, "payload", view.payload_bytes);
    }
    key_set_view_fini(&view);
    return rc;
}

static ckks_status inspect_ciphertext(printer *p, const container_view *file, ckks_error *err) {
    ProtobufCMessage *message = NULL;
    const ckks_status rc =
        message_unpack(&message, &ckksd__v1__ciphertext_manifest__descriptor, file->manifest,
                       file->manifest_bytes, CIPHERTEXT_ARENA_BYTES, "ciphertext manifest", err);
    if (rc != CKKS_OK) return rc;
    const Ckksd__V1__CiphertextManifest *m = (const Ckksd__V1__CiphertextManifest *)message;
    uint64_t bytes = 0, seeded = 0;
    for (uint32_t i = 0; i < file->segment_count; i++) bytes += file->segments[i].bytes;
    for (size_t i = 0; i < m->n_seeds; i++) seeded += m->seeds[i].len != 0;
    if (m->model) {
        text_make_printable(m->model);
        say(p, "model", m->model);
    }
    if (m->model_digest.len && m->model_digest.len <= 32)
        say_hex(p, "model_digest", m->model_digest.data, m->model_digest.len);
    if (m->parameter_id.len && m->parameter_id.len <= 32)
        say_hex(p, "parameters", m->parameter_id.data, m->parameter_id.len);
    if (m->lineage.len && m->lineage.len <= 32) say_hex(p, "lineage", m->lineage.data, m->lineage.len);
    say_count(p, "ciphertexts", file->segment_count);
    say_count(p, "seeded", seeded);
    say_count(p, "rows", m->sample_count);
    say_bytes(p, "payload", bytes);
    message_free(message);
    return CKKS_OK;
}

static ckks_status inspect_model(printer *p, const uint8_t *image, size_t size, ckks_error *err) {
    /* looking is no encrypting: an insecure package can be looked at */
    const client_model_options options = {.allow_insecure = true};
    client_model *m = NULL;
    const ckks_status rc = client_model_from_file(&m, image, size, &options, err);
    if (rc != CKKS_OK) return rc;
    const Ckksd__V1__ModelDescription *d = m->description;
    say(p, "model", d->name);
    if (d->version) say(p, "version", d->version);
    if (m->has_digest) say_hex(p, "digest", m->digest, sizeof m->digest);
    say_params(p, &m->params);
    say_count(p, "depth", d->depth);
    say_count(p, "inputs", m->raw_count);
    say_count(p, "columns", d->n_columns);
    say_count(p, "scores", m->score_count);
    if (d->has_promised_error) say_real(p, "promised_error", d->promised_error);
    if (d->has_minimum) say_real(p, "minimum", d->minimum);
    if (d->has_maximum) say_real(p, "maximum", d->maximum);
    say_count(p, "keys", m->key_count);
    say_bytes(p, "key_bytes", m->key_bytes);
    client_model_destroy(m);
    return CKKS_OK;
}

static ckks_status inspect_program(printer *p, const uint8_t *image, size_t size, ckks_error *err) {
    package *k = NULL;
    const ckks_status rc = package_parse(&k, image, size, true, err);
    if (rc != CKKS_OK) return rc;
    say_count(p, "operations", k->plan.operation_count);
    say_count(p, "plaintexts", k->plan.plain_count);
    say_flag(p, "self_test", k->plan.has_self_test);
    const Ckksd__V1__CompileReport *r = k->manifest->report;
    if (r && r->producer) {
        text_make_printable(r->producer);
        say(p, "made_by", r->producer);
    }
    package_destroy(k);
    return CKKS_OK;
}

static ckks_status inspect(printer *p, const char *path, ckks_error *err) {
    ckks_status rc;
    uint8_t *image = NULL;
    size_t size = 0;
    container_view view = {0};
    ckks_error inner = {0};
    if ((rc = file_read(&image, &size, path, KEY_FILE_BYTES_MAX, err)) != CKKS_OK) return rc;
    if ((rc = container_parse(&view, image, size, 0, &inner)) != CKKS_OK) goto out;
    if (p->is_json) {
        json_object(&p->j, NULL);
        json_string(&p->j, "file", path);
        json_string(&p->j, "kind", container_kind_name(view.kind));
    } else {
        printf("%s: %s (format version %u)\n", path, container_kind_name(view.kind), view.version);
    }
    say_bytes(p, "size", size);
    switch (view.kind) {
    case CONTAINER_SECRET_KEY:
        rc = inspect_secret(p, image, size, &inner);
        break;
    case CONTAINER_PUBLIC_KEY:
    case CONTAINER_KEY_SET:
        rc = inspect_keys(p, &view, &inner);
        break;
    case CONTAINER_CIPHERTEXT:
        rc = inspect_ciphertext(p, &view, &inner);
        break;
    case CONTAINER_PACKAGE:
        rc = inspect_model(p, image, size, &inner);
        if (rc == CKKS_OK) rc = inspect_program(p, image, size, &inner);
        break;
    default:
        rc = inspect_model(p, image, size, &inner);
        break;
    }
    if (p->is_json) json_close_object(&p->j);
out:
    file_name_error(&inner, path);
    if (rc != CKKS_OK && err->code == CKKS_OK) *err = inner;
    container_view_fini(&view);
    sodium_memzero(image, size < (1u << 20) ? size : 0); /* secret keys are small */
    free(image);
    return rc;
}

int command_inspect(int argc, char **argv) {
    arguments a = {0};
    ckks_error err = {0};
    ckks_status rc = CKKS_OK;
    argp_parse(&parser, argc, argv, 0, NULL, &a);
    printer p = {.is_json = a.common.json};
    json_begin(&p.j);
    if (p.is_json) json_list(&p.j, NULL);
    for (uint32_t i = 0; i < a.file_count && rc == CKKS_OK; i++) rc = inspect(&p, a.files[i], &err);
    if (p.is_json && rc == CKKS_OK) {
        json_close_list(&p.j);
        json_end(&p.j);
    }
    json_discard(&p.j);
    return rc == CKKS_OK ? EXIT_GOOD : ctl_fail(&a.common, &err);
}
