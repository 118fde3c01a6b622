/* ckksctl status, models, metadata: what a server says about itself. */
#include "client/ctl/ctl.h"

#include "client/lib/rpc_internal.h"
#include "kernels/base/bytes.h"
#include "proto/packing.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- calls ---- */

static ckks_status ask(rpc_reply *reply, rpc_connection *c, const char *method,
                       const ProtobufCMessage *payload, const ProtobufCMessageDescriptor *expected,
                       ckks_error *err) {
    const rpc_request request = {.method = method, .payload = payload, .reply = expected};
    return rpc_call(c, &request, reply, err);
}

/* ---- status ---- */

typedef struct arguments {
    ctl_options common;
    const char *model, *output;
} arguments;

static error_t parse_plain(int key, char *argument, struct argp_state *state) {
    arguments *a = state->input;
    (void)argument;
    if (key != ARGP_KEY_INIT) return ARGP_ERR_UNKNOWN;
    state->child_inputs[0] = &a->common;
    return 0;
}

static const struct argp status_parser = {
    NULL,
    parse_plain,
    "",
    "Is the server there, what does it serve, and which key sets of yours does it have.\v"
    "Examples:\n"
    "  ckksctl status\n"
    "  ckksctl status --server ipc:///run/ckksd/control.sock --json\n",
    ctl_common_children,
    0,
    0};

static void print_keys(json_writer *j, const ctl_options *o, const Ckksd__V1__KeyListReply *r) {
    for (size_t i = 0; i < r->n_entries; i++) {
        const Ckksd__V1__KeyListReply__Entry *e = r->entries[i];
        char id[65] = "", size[32];
        if (e->key_set.len == 32) hex_encode(id, e->key_set.data, 32);
        if (o->json) {
            json_object(j, NULL);
            json_string(j, "key_set", id);
            json_integer(j, "bytes", e->bytes);
            json_integer(j, "key_count", e->key_count);
            json_integer(j, "created_unix", e->created_unix);
            json_integer(j, "used_unix", e->used_unix);
            json_close_object(j);
        } else {
            printf("key set      %.16s  %u keys, %s\n", id, e->key_count, ctl_bytes(size, e->bytes));
        }
    }
}

/* pages of the tenant's key sets; a token without that scope sees none, which is no failure of the status */
static ckks_status list_keys(json_writer *j, rpc_connection *c, const ctl_options *o, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    uint8_t after[32];
    bool more = true, has_after = false;
    for (int page = 0; more && page < 64 && rc == CKKS_OK; page++) {
        rpc_reply reply = {0};
        Ckksd__V1__KeyListRequest request = CKKSD__V1__KEY_LIST_REQUEST__INIT;
        request.has_after = has_after, request.after = (ProtobufCBinaryData){sizeof after, after};
        rc = ask(&reply, c, "Keys/KeyList", &request.base, &ckksd__v1__key_list_reply__descriptor, err);
        more = false;
        if (rc == CKKS_OK) {
            const Ckksd__V1__KeyListReply *r = (const Ckksd__V1__KeyListReply *)reply.payload;
            print_keys(j, o, r);
            const ProtobufCBinaryData *last = r->n_entries ? &r->entries[r->n_entries - 1]->key_set : NULL;
            more = r->more && last && last->len == sizeof after;
            if (more) memcpy(after, last->data, sizeof after), has_after = true;
        }
        rpc_reply_fini(&reply);
    }
    return rc;
}

static void make_printable(Ckksd__V1__ServerReadyReply__Service *s) {
    if (s->reason) text_make_printable(s->reason);
    for (size_t i = 0; i < s->n_troubles; i++) {
        if (s->troubles[i]->model) text_make_printable(s->troubles[i]->model);
        if (s->troubles[i]->state) text_make_printable(s->troubles[i]->state);
        if (s->troubles[i]->cause) text_make_printable(s->troubles[i]->cause);
    }
}

static void write_service(json_writer *j, const Ckksd__V1__ServerReadyReply__Service *s) {
    json_string(j, "not_ready_because", s->reason && s->reason[0] ? s->reason : NULL);
    json_integer(j, "slots", s->slots);
    json_integer(j, "slots_in_service", s->slots_in_service);
    json_list(j, "models_not_served");
    for (size_t i = 0; i < s->n_troubles; i++) {
        const Ckksd__V1__ServerReadyReply__Trouble *t = s->troubles[i];
        json_object(j, NULL);
        json_string(j, "model", t->model);
        json_string(j, "state", t->state);
        json_string(j, "cause", t->cause);
        if (t->has_retry) {
            json_integer(j, "retry", t->retry);
            json_integer(j, "retries_max", t->retries_max);
            json_integer(j, "retry_in_ms", t->retry_in_ms);
        }
        json_close_object(j);
    }
    json_close_list(j);
}

static void print_service(const Ckksd__V1__ServerReadyReply__Service *s) {
    if (s->reason && s->reason[0]) printf("not ready    %s\n", s->reason);
    if (s->slots_in_service < s->slots)
        printf("slots        %u of %u in service\n", s->slots_in_service, s->slots);
    for (size_t i = 0; i < s->n_troubles; i++) {
        const Ckksd__V1__ServerReadyReply__Trouble *t = s->troubles[i];
        printf("model        %s NOT SERVED: %s%s%s", t->model ? t->model : "?", t->state ? t->state : "",
               t->cause ? ", " : "", t->cause ? t->cause : "");
        if (t->has_retry)
            printf("; retry %u of %u in %.0f s", t->retry, t->retries_max, (double)t->retry_in_ms / 1e3);
        printf("\n");
    }
}

static ckks_status status(json_writer *j, rpc_connection *c, const ctl_options *o, ckks_error *err) {
    ckks_status rc;
    const Ckksd__V1__ServerMetadataReply *s = rpc_server(c);
    rpc_reply readiness = {0};
    if ((rc = ask(&readiness, c, "Inference/ServerReady", NULL, &ckksd__v1__server_ready_reply__descriptor,
                  err)) != CKKS_OK)
        goto out;
    const Ckksd__V1__ServerReadyReply *told = (const Ckksd__V1__ServerReadyReply *)readiness.payload;
    const bool ready = told->has_ready && told->ready;
    if (told->service) make_printable(told->service);
    if (o->json) {
        json_object(j, NULL);
        json_string(j, "address", rpc_address(c));
        json_string(j, "name", s->name);
        json_string(j, "version", s->version);
        json_string(j, "device", s->device);
        json_bool(j, "ready", ready);
        if (told->service) write_service(j, told->service);
        json_list(j, "models");
        for (size_t i = 0; i < s->n_models; i++) json_string(j, NULL, s->models[i]);
        json_close_list(j);
        json_list(j, "key_sets");
    } else {
        char bulk[32], control[32];
        printf("server       %s %s at %s, %s\n", s->name ? s->name : "?", s->version ? s->version : "",
               rpc_address(c), ready ? "ready" : "NOT READY");
        if (s->device) printf("device       %s\n", s->device);
        if (s->limits)
            printf("limits       %s control messages, %s bulk messages\n",
                   ctl_bytes(control, s->limits->control_message_bytes),
                   ctl_bytes(bulk, s->limits->bulk_message_bytes));
        for (size_t i = 0; i < s->n_models; i++) printf("model        %s\n", s->models[i]);
        if (!s->n_models) printf("model        none\n");
        if (told->service) print_service(told->service);
    }
    ckks_error inner = {0};
    rc = o->profile.token_file[0] ? list_keys(j, c, o, &inner) : CKKS_OK;
    if (rc != CKKS_OK && !rpc_error_is_from_server(&inner)) {
        *err = inner;
        goto out;
    }
    if (rc != CKKS_OK) ctl_note(o, "key sets cannot be listed: %s", inner.message);
    if (o->json) {
        json_close_list(j);
        json_close_object(j);
        json_end(j);
    }
    rc = CKKS_OK;
out:
    rpc_reply_fini(&readiness);
    return rc;
}

int command_status(int argc, char **argv) {
    arguments a = {0};
    ckks_error err = {0};
    rpc_connection *c = NULL;
    json_writer j;
    argp_parse(&status_parser, argc, argv, 0, NULL, &a);
    json_begin(&j);
    ckks_status rc = ctl_resolve(&a.common, &err);
    if (rc == CKKS_OK) rc = ctl_connect(&c, &a.common, &err);
    if (rc == CKKS_OK) rc = status(&j, c, &a.common, &err);
    json_discard(&j);
    rpc_close(c);
    return rc == CKKS_OK ? EXIT_GOOD : ctl_fail(&a.common, &err);
}

/* ---- models ---- */

static const struct argp models_parser = {
    NULL,
    parse_plain,
    "",
    "What each model of the server needs and promises, as this client checked it.\v"
    "Examples:\n"
    "  ckksctl models\n"
    "  ckksctl models --json | jq '.[].key_bytes'\n",
    ctl_common_children,
    0,
    0};

static uint64_t request_bytes(const client_model *m) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < m->input_count; i++)
        total += packing_poly_bytes(&m->params, m->inputs[i].limb_count - 1, false, 1);
    return total;
}

static void print_model(json_writer *j, const ctl_options *o, const client_model *m) {
    const Ckksd__V1__ModelDescription *d = m->description;
    const uint32_t bits = params_security_bits(&m->params);
    char keys[32], request[32];
    if (o->json) {
        json_object(j, NULL);
        json_string(j, "name", d->name);
        json_string(j, "version", d->version);
        if (m->has_digest) json_hex(j, "digest", m->digest, sizeof m->digest);
        json_hex(j, "parameter_id", m->params.id, sizeof m->params.id);
        json_integer(j, "log_n", m->params.log_n);
        json_integer(j, "log_qp", params_log_qp(&m->params));
        json_integer(j, "security_bits", bits);
        json_integer(j, "depth", d->depth);
        json_integer(j, "inputs", m->raw_count);
        json_integer(j, "outputs", m->score_count);
        json_integer(j, "key_count", m->key_count);
        json_integer(j, "key_bytes", m->key_bytes);
        json_integer(j, "request_bytes", request_bytes(m));
        json_number(j, "promised_error", d->has_promised_error ? d->promised_error : 0);
        json_list(j, "columns");
        for (size_t i = 0; i < d->n_columns; i++) json_string(j, NULL, d->columns[i]->name);
        json_close_list(j);
        json_close_object(j);
        return;
    }
    printf("%s%s%s\n", d->name, d->version ? "/" : "", d->version ? d->version : "");
    printf("  takes        %u numbers%s, gives %u scores", m->raw_count,
           d->n_columns ? " in named columns" : "", m->score_count);
    if (d->has_promised_error) printf(", right to %.1e", d->promised_error);
    printf("\n  parameters   N = 2^%u, log QP = %u, %s%u bits of security, depth %u\n", m->params.log_n,
           params_log_qp(&m->params), bits ? "" : "INSECURE: ", bits, d->depth);
    printf("  needs        %u keys, %s once; %s a request\n", m->key_count, ctl_bytes(keys, m->key_bytes),
           ctl_bytes(request, request_bytes(m)));
}

static ckks_status models(json_writer *j, rpc_connection *c, const ctl_options *o, ckks_error *err) {
    const Ckksd__V1__ServerMetadataReply *s = rpc_server(c);
    const client_model_options model_options = {.allow_insecure = o->allow_insecure};
    ckks_status rc = CKKS_OK;
    if (o->json) json_list(j, NULL);
    for (size_t i = 0; i < s->n_models && rc == CKKS_OK; i++) {
        client_model *m = NULL;
        char *name = NULL;
        const char *version;
        if ((rc = ctl_split_model(&name, &version, s->models[i], err)) == CKKS_OK &&
            (rc = rpc_model(&m, c, name, version, &model_options, err)) == CKKS_OK)
            print_model(j, o, m);
        client_model_destroy(m);
        free(name);
    }
    if (o->json && rc == CKKS_OK) {
        json_close_list(j);
        json_end(j);
    } else if (!s->n_models && rc == CKKS_OK) {
        bool ready = true;
        rc = ctl_is_ready(&ready, c, err);
        if (rc == CKKS_OK)
            ctl_note(o, ready ? "the server has no model that is ready"
                              : "the server is still loading its models: none is ready yet");
    }
    return rc;
}

int command_models(int argc, char **argv) {
    arguments a = {0};
    ckks_error err = {0};
    rpc_connection *c = NULL;
    json_writer j;
    argp_parse(&models_parser, argc, argv, 0, NULL, &a);
    json_begin(&j);
    ckks_status rc = ctl_resolve(&a.common, &err);
    if (rc == CKKS_OK) rc = ctl_connect(&c, &a.common, &err);
    if (rc == CKKS_OK) rc = models(&j, c, &a.common, &err);
    json_discard(&j);
    rpc_close(c);
    return rc == CKKS_OK ? EXIT_GOOD : ctl_fail(&a.common, &err);
}

/* ---- metadata ---- */

static const struct argp_option metadata_options[] = {
    {"output", 'o', "FILE", 0, "where to save it (default: NAME.meta)", 0}, {0}};

static error_t parse_metadata(int key, char *argument, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->common;
        return 0;
    case 'o':
        a->output = ctl_take_output(state, argument, "output");
        return 0;
    case ARGP_KEY_ARG:
        ctl_take_one(state, &a->model, argument);
        (void)ctl_take_model(state, argument);
        return 0;
    case ARGP_KEY_END:
        ctl_need(state, a->model, "MODEL", "a server's model, or its package or saved metadata");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp metadata_parser = {
    metadata_options,
    parse_metadata,
    "MODEL[/VERSION]",
    "Save a model's metadata: with it keys can be made, and rows encrypted, on a machine without a network.\v"
    "What is saved has passed every check that a fetched description passes, and is checked again when it is "
    "used.\n\n"
    "Examples:\n"
    "  ckksctl metadata mnist -o mnist.meta\n"
    "  ckksctl keygen --for mnist.meta --key alice\n"
    "  ckksctl encrypt mnist.meta rows.npy --key alice -o requests/\n",
    ctl_common_children,
    0,
    0};

static ckks_status save_metadata(const client_model *m, const char *path, ckks_error *err) {
    const size_t size = ckksd__v1__model_description__get_packed_size(m->description);
    ckks_status rc;
    uint8_t *manifest = malloc(size + 1), *image = NULL;
    size_t image_size = 0;
    if (!manifest) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory");
    ckksd__v1__model_description__pack(m->description, manifest);
    rc = container_build(&image, &image_size, CONTAINER_METADATA, manifest, (uint32_t)size, NULL, 0, err);
    if (rc == CKKS_OK) rc = file_write(path, image, image_size, 0644, true, err);
    free(image);
    free(manifest);
    return rc;
}

int command_metadata(int argc, char **argv) {
    arguments a = {0};
    ckks_error err = {0};
    rpc_connection *c = NULL;
    client_model *m = NULL;
    char path[CTL_PATH_MAX];
    argp_parse(&metadata_parser, argc, argv, 0, NULL, &a);
    ckks_status rc = ctl_resolve(&a.common, &err);
    if (rc == CKKS_OK) rc = ctl_check_output(a.output, &err);
    if (rc == CKKS_OK) rc = ctl_model(&m, &c, &a.common, a.model, NULL, &err);
    if (rc == CKKS_OK) {
        snprintf(path, sizeof path, "%s%s", a.output ? a.output : m->description->name,
                 a.output ? "" : ".meta");
        if (!a.output && strchr(m->description->name, '/'))
            rc = ckks_error_set(&err, CKKS_INVALID_ARGUMENT, "output", "where to? -o FILE");
        else
            rc = save_metadata(m, path, &err);
    }
    if (rc == CKKS_OK && a.common.json) {
        json_writer j;
        json_begin(&j);
        json_object(&j, NULL);
        json_string(&j, "file", path);
        json_string(&j, "model", m->description->name);
        if (m->has_digest) json_hex(&j, "digest", m->digest, sizeof m->digest);
        json_close_object(&j);
        json_end(&j);
    } else if (rc == CKKS_OK) {
        ctl_note(&a.common, "%s saved", path);
    }
    client_model_destroy(m);
    rpc_close(c);
    return rc == CKKS_OK ? EXIT_GOOD : ctl_fail(&a.common, &err);
}
