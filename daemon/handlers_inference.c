#include "daemon/clock.h"
#include "daemon/inference.h"
#include "daemon/request.h"
#include "daemon/server.h"
#include "proto/local_memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void on_server_live(Ckksd__V1__Inference_Service *service, const Ckksd__V1__Empty *input,
                           Ckksd__V1__ServerLiveReply_Closure closure, void *closure_data) {
    Ckksd__V1__ServerLiveReply reply = CKKSD__V1__SERVER_LIVE_REPLY__INIT;
    (void)service, (void)input;
    reply.has_live = true, reply.live = metrics_is_live(clock_now_ns(), NULL);
    closure(&reply, closure_data);
}

/* What a tenant may know: the cause's name, which says whether it may pass; its text is for the log. */
static void describe_trouble(Ckksd__V1__ServerReadyReply__Trouble *out, const model *m, uint64_t now_ns) {
    ckksd__v1__server_ready_reply__trouble__init(out);
    out->state = (char *)(uintptr_t)model_state_name(m->state);
    if (m->error.code != CKKS_OK) out->cause = (char *)(uintptr_t)ckks_status_name(m->error.code);
    if (!m->retry_ns) return;
    out->has_retry = out->has_retries_max = out->has_retry_in_ms = true;
    out->retry = m->retries + 1, out->retries_max = MODEL_RETRIES_MAX;
    out->retry_in_ms = m->retry_ns > now_ns ? (uint32_t)((m->retry_ns - now_ns) / NS_PER_MS) : 0;
}

static void on_server_ready(Ckksd__V1__Inference_Service *service, const Ckksd__V1__Empty *input,
                            Ckksd__V1__ServerReadyReply_Closure closure, void *closure_data) {
    Ckksd__V1__ServerReadyReply reply = CKKSD__V1__SERVER_READY_REPLY__INIT;
    Ckksd__V1__ServerReadyReply__Service state = CKKSD__V1__SERVER_READY_REPLY__SERVICE__INIT;
    Ckksd__V1__ServerReadyReply__Trouble items[SLOT_MODELS_MAX], *list[SLOT_MODELS_MAX];
    char names[SLOT_MODELS_MAX][2 * MODEL_NAME_MAX + 2];
    const request *r = closure_data;
    const server *s = r->server;
    const uint64_t now = clock_now_ns();
    (void)service, (void)input;
    reply.has_ready = true, reply.ready = server_is_ready(s);
    reply.service = &state;
    if (!reply.ready) state.reason = (char *)(uintptr_t)server_why_not_ready(s);
    state.has_slots = state.has_slots_in_service = true;
    state.slots = s->slots.count, state.slots_in_service = slots_in_service(&s->slots);
    state.troubles = list;
    LIST_EACH(link, &s->models.all) {
        const model *m = LIST_ENTRY(link, model, link);
        if (!model_is_expected(m) || model_slot_count(s, m)) continue;
        const size_t i = state.n_troubles++;
        describe_trouble(&items[i], m, now);
        snprintf(names[i], sizeof names[0], "%s/%s", m->name, m->version);
        items[i].model = names[i], list[i] = &items[i];
    }
    closure(&reply, closure_data);
}

/* ---- ServerMetadata ---- */

static uint32_t list_endpoints(const server *s, Ckksd__V1__Endpoint *items, Ckksd__V1__Endpoint **list) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->transport.endpoint_count; i++) {
        const transport_endpoint *endpoint = &s->transport.endpoints[i];
        if (endpoint->kind == TRANSPORT_ADMIN) continue;
        ckksd__v1__endpoint__init(&items[count]);
        items[count].address = (char *)(uintptr_t)endpoint->url;
        items[count].has_bulk = true, items[count].bulk = endpoint->kind == TRANSPORT_BULK;
        list[count] = &items[count];
        count++;
    }
    return count;
}

static void on_server_metadata(Ckksd__V1__Inference_Service *service, const Ckksd__V1__Empty *input,
                               Ckksd__V1__ServerMetadataReply_Closure closure, void *closure_data) {
    static char *extensions[] = {"keys",
                                 "dedupe",
                                 "cancel",
                                 "statistics",
                                 "health",
                                 LOCAL_MEMORY_EXTENSION,
                                 LOCAL_MEMORY_REPLIES_EXTENSION};
    Ckksd__V1__ServerMetadataReply reply = CKKSD__V1__SERVER_METADATA_REPLY__INIT;
    Ckksd__V1__Limits limits = CKKSD__V1__LIMITS__INIT;
    Ckksd__V1__Endpoint items[TRANSPORT_ENDPOINTS_MAX], *list[TRANSPORT_ENDPOINTS_MAX];
    char names[SLOT_MODELS_MAX][2 * MODEL_NAME_MAX + 2], *models[SLOT_MODELS_MAX];
    const request *r = closure_data;
    const server *s = r->server;
    (void)service, (void)input;
    limits.has_control_message_bytes = true, limits.control_message_bytes = s->config.control_message_bytes;
    limits.has_bulk_message_bytes = true, limits.bulk_message_bytes = s->config.bulk_message_bytes;
    limits.has_key_part_bytes = limits.has_token_bytes = limits.has_header_bytes = true;
    const uint64_t room = s->config.bulk_message_bytes - FRAME_HEADER_BYTES_MAX - 256;
    limits.key_part_bytes = room < KEYSTORE_PART_BYTES_MAX ? room & ~(uint64_t)15 : KEYSTORE_PART_BYTES_MAX;
    limits.token_bytes = TOKEN_TEXT_MAX;
    limits.header_bytes = FRAME_HEADER_BYTES_MAX;
    reply.name = (char *)(uintptr_t)s->config.name;
    reply.version = CKKSD_VERSION;
    reply.has_wire_version_min = reply.has_wire_version_max = true;
    reply.wire_version_min = reply.wire_version_max = FRAME_WIRE_VERSION;
    reply.limits = &limits;
    reply.endpoints = list, reply.n_endpoints = list_endpoints(s, items, list);
    reply.extensions = extensions, reply.n_extensions = sizeof extensions / sizeof extensions[0];
    if (!s->config.local_memory_peers) reply.n_extensions -= 2; /* the last */
    reply.device = (char *)(uintptr_t)device_describe(s->device);
    reply.models = models;
    LIST_EACH(link, &s->models.all) {
        const model *m = LIST_ENTRY(link, model, link);
        if (m->state != MODEL_READY) continue;
        snprintf(names[reply.n_models], sizeof names[0], "%s/%s", m->name, m->version);
        models[reply.n_models] = names[reply.n_models];
        reply.n_models++;
    }
    closure(&reply, closure_data);
}

/* ---- models ---- */

/* The named model, or a failed request and NULL. */
static model *find_or_fail(request *r, const Ckksd__V1__ModelRequest *input, bool any_state) {
    ckks_error err = {0};
    model *m = NULL;
    if (!input->name)
        ckks_error_set(&err, CKKS_MALFORMED, "name", "the request names no model");
    else
        (void)models_find(r->server, &m, input->name, input->version, any_state, &err);
    if (err.code == CKKS_OK) return m;
    request_fail(r, &err);
    return NULL;
}

static void on_model_ready(Ckksd__V1__Inference_Service *service, const Ckksd__V1__ModelRequest *input,
                           Ckksd__V1__ModelReadyReply_Closure closure, void *closure_data) {
    Ckksd__V1__ModelReadyReply reply = CKKSD__V1__MODEL_READY_REPLY__INIT;
    request *r = closure_data;
    (void)service;
    const model *m = find_or_fail(r, input, true);
    if (!m) return;
    reply.has_ready = true, reply.ready = server_is_ready(r->server) && model_slot_count(r->server, m) > 0;
    closure(&reply, closure_data);
}

static void on_model_metadata(Ckksd__V1__Inference_Service *service, const Ckksd__V1__ModelRequest *input,
                              Ckksd__V1__ModelMetadataReply_Closure closure, void *closure_data) {
    Ckksd__V1__ModelMetadataReply reply = CKKSD__V1__MODEL_METADATA_REPLY__INIT;
    char *versions[SLOT_MODELS_MAX];
    request *r = closure_data;
    server *s = r->server;
    (void)service;
    model *m = find_or_fail(r, input, false);
    if (!m) return;
    Ckksd__V1__ModelDescription description = *m->package->manifest->description;
    description.name = m->name, description.version = m->version;
    description.has_digest = true;
    description.digest = (ProtobufCBinaryData){32, m->package->digest};
    reply.description = &description;
    reply.versions = versions;
    LIST_EACH(link, &s->models.all) {
        model *other = LIST_ENTRY(link, model, link);
        if (other->state == MODEL_READY && strcmp(other->name, m->name) == 0)
            versions[reply.n_versions++] = other->version;
    }
    closure(&reply, closure_data);
}

static void on_model_infer(Ckksd__V1__Inference_Service *service, const Ckksd__V1__InferRequest *input,
                           Ckksd__V1__InferReply_Closure closure, void *closure_data) {
    (void)service, (void)closure; /* the slot writes the reply */
    inference_begin(closure_data, input);
}

static void on_cancel(Ckksd__V1__Inference_Service *service, const Ckksd__V1__CancelRequest *input,
                      Ckksd__V1__CancelReply_Closure closure, void *closure_data) {
    Ckksd__V1__CancelReply reply = CKKSD__V1__CANCEL_REPLY__INIT;
    request *r = closure_data;
    server *s = r->server;
    ckks_error err = {0};
    bool removed = false;
    (void)service;
    if (!input->has_request_id || input->request_id.len != DEDUPE_ID_BYTES) {
        ckks_error_set(&err, CKKS_MALFORMED, "request_id", "a request id has %u bytes", DEDUPE_ID_BYTES);
        request_fail(r, &err);
        return;
    }
    dedupe_entry *entry = dedupe_find(&s->dedupe, r->tenant->name, input->request_id.data, clock_now_ns());
    reply.has_found = reply.has_removed = true;
    reply.found = entry && entry->owner;
    if (reply.found) inference_cancel(entry->owner, &removed);
    reply.removed = removed;
    closure(&reply, r);
}

/* ---- statistics ---- */

static void set_duration(Ckksd__V1__Duration *out, uint64_t count, uint64_t ns) {
    ckksd__v1__duration__init(out);
    out->has_count = out->has_ns = true;
    out->count = count, out->ns = ns;
}
static void set_histogram(Ckksd__V1__Duration *out, const histogram *h) {
    set_duration(out, histogram_count(h), atomic_load(&h->sum_ns));
}

typedef struct statistics_entry {
    Ckksd__V1__ModelStatisticsReply__Entry entry;
    Ckksd__V1__Duration success, fail, queue, stage, replay, copy_out, receive, check, pack, reply;
} statistics_entry;

static void fill_entry(statistics_entry *e, model *m) {
    const metrics_model *counted = m->metrics;
    ckksd__v1__model_statistics_reply__entry__init(&e->entry);
    e->entry.name = m->name, e->entry.version = m->version;
    const uint64_t success = atomic_load(&counted->success_count), fail = atomic_load(&counted->fail_count);
    e->entry.has_inference_count = true, e->entry.inference_count = success;
    set_duration(&e->success, success, atomic_load(&counted->success_ns));
    set_duration(&e->fail, fail, atomic_load(&counted->fail_ns));
    set_histogram(&e->queue, &counted->queue);
    set_histogram(&e->stage, &counted->stage);
    set_histogram(&e->replay, &counted->replay);
    set_histogram(&e->copy_out, &counted->copy_out);
    set_histogram(&e->receive, &counted->receive);
    set_histogram(&e->check, &counted->check);
    set_histogram(&e->pack, &counted->pack);
    set_histogram(&e->reply, &counted->reply);
    e->entry.success = &e->success, e->entry.fail = &e->fail, e->entry.queue = &e->queue;
    e->entry.stage = &e->stage, e->entry.replay = &e->replay, e->entry.copy_out = &e->copy_out;
    e->entry.receive = &e->receive, e->entry.check = &e->check;
    e->entry.pack = &e->pack, e->entry.reply = &e->reply;
}

/* Without a name: all models. */
static void on_model_statistics(Ckksd__V1__Inference_Service *service, const Ckksd__V1__ModelRequest *input,
                                Ckksd__V1__ModelStatisticsReply_Closure closure, void *closure_data) {
    Ckksd__V1__ModelStatisticsReply reply = CKKSD__V1__MODEL_STATISTICS_REPLY__INIT;
    Ckksd__V1__ModelStatisticsReply__Entry *list[SLOT_MODELS_MAX];
    request *r = closure_data;
    ckks_error err = {0};
    (void)service;
    if (input->name && input->name[0] && !find_or_fail(r, input, true)) return;
    statistics_entry *entries = calloc(SLOT_MODELS_MAX, sizeof *entries);
    if (!entries) {
        ckks_error_set(&err, CKKS_RESOURCE_EXHAUSTED, "", "out of memory");
        request_fail(r, &err);
        return;
    }
    reply.models = list;
    LIST_EACH(link, &r->server->models.all) {
        model *m = LIST_ENTRY(link, model, link);
        if (input->name && input->name[0] && strcmp(m->name, input->name) != 0) continue;
        if (input->version && input->version[0] && strcmp(m->version, input->version) != 0) continue;
        fill_entry(&entries[reply.n_models], m);
        list[reply.n_models] = &entries[reply.n_models].entry;
        reply.n_models++;
    }
    closure(&reply, r);
    free(entries);
}

ProtobufCService *handlers_inference(void) {
    static Ckksd__V1__Inference_Service service = CKKSD__V1__INFERENCE__INIT(on_);
    return &service.base;
}
