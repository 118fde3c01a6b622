/* Admin: only on the admin socket, where the peer's user decides. */
#include "daemon/clock.h"
#include "daemon/logging.h"
#include "daemon/request.h"
#include "daemon/server.h"

#include <stdlib.h>
#include <string.h>

static void reply_empty(request *r) {
    Ckksd__V1__Empty reply = CKKSD__V1__EMPTY__INIT;
    request_reply(r, &reply.base);
}

static void admin_repository_index(Ckksd__V1__Admin_Service *service, const Ckksd__V1__Empty *input,
                                   Ckksd__V1__RepositoryIndexReply_Closure closure, void *closure_data) {
    Ckksd__V1__RepositoryIndexReply reply = CKKSD__V1__REPOSITORY_INDEX_REPLY__INIT;
    Ckksd__V1__RepositoryIndexReply__Entry items[SLOT_MODELS_MAX], *list[SLOT_MODELS_MAX];
    request *r = closure_data;
    (void)service, (void)input;
    reply.models = list;
    LIST_EACH(link, &r->server->models.all) {
        model *m = LIST_ENTRY(link, model, link);
        Ckksd__V1__RepositoryIndexReply__Entry *item = &items[reply.n_models];
        ckksd__v1__repository_index_reply__entry__init(item);
        item->name = m->name, item->version = m->version;
        item->state = (char *)(uintptr_t)model_state_name(m->state);
        if (m->state == MODEL_UNAVAILABLE) item->reason = m->error.message;
        if (m->package) {
            item->has_digest = true;
            item->digest = (ProtobufCBinaryData){32, m->package->digest};
        }
        list[reply.n_models++] = item;
    }
    closure(&reply, r);
}

/* Both names must be given: loading and unloading "the newest" would depend on when it is asked. */
static bool has_names(request *r, const Ckksd__V1__ModelRequest *input) {
    ckks_error err = {0};
    if (input->name && input->version && input->name[0] && input->version[0]) return true;
    ckks_error_set(&err, CKKS_MALFORMED, "version", "name and version are needed");
    request_fail(r, &err);
    return false;
}

static void admin_model_load(Ckksd__V1__Admin_Service *service, const Ckksd__V1__ModelRequest *input,
                             Ckksd__V1__Empty_Closure closure, void *closure_data) {
    request *r = closure_data;
    ckks_error err = {0};
    (void)service, (void)closure;
    if (!has_names(r, input)) return;
    if (models_load(r->server, input->name, input->version, &err) == CKKS_OK)
        reply_empty(r);
    else
        request_fail(r, &err);
}

static void admin_model_unload(Ckksd__V1__Admin_Service *service, const Ckksd__V1__ModelRequest *input,
                               Ckksd__V1__Empty_Closure closure, void *closure_data) {
    request *r = closure_data;
    ckks_error err = {0};
    model *m = NULL;
    (void)service, (void)closure;
    if (!has_names(r, input)) return;
    if (models_find(r->server, &m, input->name, input->version, false, &err) != CKKS_OK) {
        request_fail(r, &err);
        return;
    }
    models_retire(r->server, m);
    reply_empty(r);
}

static void admin_weights_refresh(Ckksd__V1__Admin_Service *service, const Ckksd__V1__ModelRequest *input,
                                  Ckksd__V1__Empty_Closure closure, void *closure_data) {
    ckks_error err = {0};
    (void)service, (void)input, (void)closure;
    ckks_error_set(&err, CKKS_UNIMPLEMENTED, "method",
                   "Admin/WeightsRefresh is not served by this version: load a new model version instead");
    request_fail(closure_data, &err);
}

static void admin_reload(Ckksd__V1__Admin_Service *service, const Ckksd__V1__Empty *input,
                         Ckksd__V1__Empty_Closure closure, void *closure_data) {
    request *r = closure_data;
    (void)service, (void)input, (void)closure;
    server_reload(r->server);
    reply_empty(r);
}

static void admin_drain(Ckksd__V1__Admin_Service *service, const Ckksd__V1__DrainRequest *input,
                        Ckksd__V1__Empty_Closure closure, void *closure_data) {
    request *r = closure_data;
    server *s = r->server;
    (void)service, (void)closure;
    const uint64_t timeout_ms = input->has_timeout_ms ? input->timeout_ms : s->config.drain_timeout_ms;
    reply_empty(r);
    server_drain(s, timeout_ms);
}

static void admin_log_level(Ckksd__V1__Admin_Service *service, const Ckksd__V1__LogLevelRequest *input,
                            Ckksd__V1__Empty_Closure closure, void *closure_data) {
    request *r = closure_data;
    ckks_error err = {0};
    (void)service, (void)closure;
    if (!input->has_level || input->level < LOG_LEVEL_ERROR || input->level > LOG_LEVEL_DEBUG) {
        ckks_error_set(&err, CKKS_INVALID_ARGUMENT, "level", "a level is 3 (error) to 7 (debug)");
        request_fail(r, &err);
        return;
    }
    log_set_level((log_level)input->level);
    reply_empty(r);
}

/* ---- TenantDelete ---- */

typedef struct tenant_call {
    key_job job;
    request *request;
    char tenant[TOKEN_NAME_MAX + 1];
    ckks_status rc;
    ckks_error err;
} tenant_call;

static void tenant_run(key_job *job) {
    tenant_call *c = LIST_ENTRY(job, tenant_call, job);
    c->rc = keystore_delete_tenant(job->server->keys.store, c->tenant, &c->err);
}
static void tenant_done(key_job *job) {
    tenant_call *c = LIST_ENTRY(job, tenant_call, job);
    server *s = job->server;
    for (uint32_t b = 0; b < KEYS_BUCKETS; b++) LIST_EACH_SAFE(link, &s->keys.buckets[b]) {
            key_entry *entry = LIST_ENTRY(link, key_entry, link);
            if (c->rc == CKKS_OK && strcmp(entry->record.tenant, c->tenant) == 0) keys_remove(s, entry);
        }
    if (c->rc == CKKS_OK)
        reply_empty(c->request);
    else
        request_fail(c->request, &c->err);
    free(c);
}

static void admin_tenant_delete(Ckksd__V1__Admin_Service *service,
                                const Ckksd__V1__TenantDeleteRequest *input, Ckksd__V1__Empty_Closure closure,
                                void *closure_data) {
    request *r = closure_data;
    ckks_error err = {0};
    tenant_call *c = NULL;
    (void)service, (void)closure;
    if (!input->tenant || !token_name_is_valid(input->tenant))
        ckks_error_set(&err, CKKS_MALFORMED, "tenant", "a tenant's name is needed");
    else if (!(c = calloc(1, sizeof *c)))
        ckks_error_set(&err, CKKS_RESOURCE_EXHAUSTED, "", "out of memory");
    if (!c) {
        request_fail(r, &err);
        return;
    }
    c->request = r;
    memcpy(c->tenant, input->tenant, strlen(input->tenant) + 1);
    c->job.run = tenant_run;
    c->job.done = tenant_done;
    keys_submit(r->server, &c->job);
}

ProtobufCService *handlers_admin(void) {
    static Ckksd__V1__Admin_Service service = CKKSD__V1__ADMIN__INIT(admin_);
    return &service.base;
}
