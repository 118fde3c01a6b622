/*
 * Every method of Keys but KeyList is one job of the store's writer: the request waits for it, whatever
 * happens to its peer meanwhile.
 */
#include "daemon/clock.h"
#include "daemon/request.h"
#include "daemon/server.h"

#include <stdlib.h>
#include <string.h>

typedef struct call {
    key_job job;
    request *request;
    char tenant[TOKEN_NAME_MAX + 1];
    token_quota quota;
    uint8_t id[KEY_SET_ID_BYTES];
    uint32_t index;
    keystore_state state;
    keystore_missing missing;
    uint64_t bytes, expires_s;
    keystore_record record;
    key_entry *room; /* of a commit: for the set */
    ckks_status rc;
    ckks_error err;
} call;

static void call_end(call *c) {
    keystore_record_fini(&c->record);
    free(c->room);
    free(c);
}

/* A failed call answers and ends; true if it did. */
static bool call_failed(call *c) {
    if (c->rc == CKKS_OK) return false;
    if (c->err.code == CKKS_OK) c->err.code = c->rc;
    request_fail(c->request, &c->err);
    call_end(c);
    return true;
}

/* Makes the job and hands it over; fails the request if it cannot. `key_set` may be NULL. */
static void call_start(request *r, bool wants_id, bool has_id, const ProtobufCBinaryData *id, uint32_t index,
                       void (*run)(key_job *), void (*done)(key_job *)) {
    ckks_error err = {0};
    call *c = NULL;
    if (wants_id && (!has_id || id->len != KEY_SET_ID_BYTES))
        ckks_error_set(&err, CKKS_MALFORMED, "key_set", "a key set's id has %u bytes", KEY_SET_ID_BYTES);
    else if (keys_admit(r->server, r->tenant->name, &err) == CKKS_OK && !(c = calloc(1, sizeof *c)))
        ckks_error_set(&err, CKKS_RESOURCE_EXHAUSTED, "", "out of memory");
    if (!c) {
        request_fail(r, &err);
        return;
    }
    c->request = r;
    c->index = index;
    memcpy(c->tenant, r->tenant->name, sizeof c->tenant);
    c->quota = r->tenant->quota;
    if (wants_id) memcpy(c->id, id->data, KEY_SET_ID_BYTES);
    c->job.tenant = c->tenant;
    c->job.run = run;
    c->job.done = done;
    keys_submit(r->server, &c->job);
}

static call *call_of(key_job *job) {
    return LIST_ENTRY(job, call, job);
}
static keystore *store_of(const key_job *job) {
    return job->server->keys.store;
}

/* ---- KeyStatus ---- */

static void status_run(key_job *job) {
    call *c = call_of(job);
    c->rc = keystore_status(store_of(job), c->tenant, c->id, clock_unix_s(), &c->state, &c->missing,
                            &c->bytes, &c->expires_s, &c->err);
}
static void status_done(key_job *job) {
    call *c = call_of(job);
    Ckksd__V1__KeyStatusReply reply = CKKSD__V1__KEY_STATUS_REPLY__INIT;
    if (call_failed(c)) return;
    if (c->state == KEYSTORE_COMMITTED) keys_found(job->server, c->tenant, c->id);
    reply.has_state = reply.has_bytes = true;
    reply.state = (Ckksd__V1__KeyStatusReply__State)c->state;
    reply.bytes = c->bytes;
    reply.n_missing_parts = c->missing.listed, reply.missing_parts = c->missing.parts;
    reply.has_expires_in_s = c->state == KEYSTORE_UPLOADING, reply.expires_in_s = c->expires_s;
    request_reply(c->request, &reply.base);
    call_end(c);
}
static void keys_key_status(Ckksd__V1__Keys_Service *service, const Ckksd__V1__KeyStatusRequest *input,
                            Ckksd__V1__KeyStatusReply_Closure closure, void *closure_data) {
    (void)service, (void)closure;
    call_start(closure_data, true, input->has_key_set, &input->key_set, 0, status_run, status_done);
}

/* ---- KeyBegin ---- */

static void begin_run(key_job *job) {
    call *c = call_of(job);
    const Ckksd__V1__KeyBeginRequest *input =
        (const Ckksd__V1__KeyBeginRequest *)(const void *)c->request->input;
    c->rc = keystore_begin(store_of(job), c->tenant, &c->quota, input, clock_unix_s(), c->id, &c->state,
                           &c->missing, &c->err);
}
static void begin_done(key_job *job) {
    call *c = call_of(job);
    Ckksd__V1__KeyBeginReply reply = CKKSD__V1__KEY_BEGIN_REPLY__INIT;
    if (call_failed(c)) return;
    if (c->state == KEYSTORE_COMMITTED) keys_found(job->server, c->tenant, c->id);
    reply.has_key_set = reply.has_committed = true;
    reply.key_set = (ProtobufCBinaryData){KEY_SET_ID_BYTES, c->id};
    reply.committed = c->state == KEYSTORE_COMMITTED;
    reply.n_missing_parts = c->missing.listed, reply.missing_parts = c->missing.parts;
    request_reply(c->request, &reply.base);
    call_end(c);
}
static void keys_key_begin(Ckksd__V1__Keys_Service *service, const Ckksd__V1__KeyBeginRequest *input,
                           Ckksd__V1__KeyBeginReply_Closure closure, void *closure_data) {
    (void)service, (void)closure, (void)input;
    call_start(closure_data, false, false, NULL, 0, begin_run, begin_done);
}

/* ---- KeyPart ---- */

static void part_run(key_job *job) {
    call *c = call_of(job);
    const request *r = c->request;
    c->rc =
        keystore_part(store_of(job), c->tenant, c->id, c->index, r->frame.segments + r->segments[0].offset,
                      r->segments[0].length, &c->missing.count, &c->err);
}
static void part_done(key_job *job) {
    call *c = call_of(job);
    Ckksd__V1__KeyPartReply reply = CKKSD__V1__KEY_PART_REPLY__INIT;
    if (call_failed(c)) return;
    reply.has_missing_count = true, reply.missing_count = c->missing.count;
    request_reply(c->request, &reply.base);
    call_end(c);
}
static void keys_key_part(Ckksd__V1__Keys_Service *service, const Ckksd__V1__KeyPartRequest *input,
                          Ckksd__V1__KeyPartReply_Closure closure, void *closure_data) {
    request *r = closure_data;
    ckks_error err = {0};
    (void)service, (void)closure;
    if (r->segment_count != 1 || r->segments[0].kind != CKKSD__V1__SEGMENT_KIND__SEGMENT_KEY_PART)
        ckks_error_set(&err, CKKS_MALFORMED, "segments",
                       "a key part is exactly one segment of kind KEY_PART");
    else if (r->segments[0].length > KEYSTORE_PART_BYTES_MAX)
        ckks_error_set(&err, CKKS_TOO_LARGE, "segments", "a part has at most %u bytes",
                       KEYSTORE_PART_BYTES_MAX);
    else if (!input->has_index)
        ckks_error_set(&err, CKKS_MALFORMED, "index", "the part's index is missing");
    if (err.code != CKKS_OK) {
        request_fail(r, &err);
        return;
    }
    call_start(r, true, input->has_key_set, &input->key_set, input->index, part_run, part_done);
}

/* ---- KeyCommit ---- */

/* What the catalogue has must be known here: there is room for it before it is committed. */
static void commit_run(key_job *job) {
    call *c = call_of(job);
    if ((c->rc = keys_reserve(job->server, &c->room, &c->err)) != CKKS_OK) return;
    c->rc = keystore_commit(store_of(job), c->tenant, c->id, clock_unix_s(), &c->record, &c->err);
}
static void commit_done(key_job *job) {
    call *c = call_of(job);
    Ckksd__V1__KeyCommitReply reply = CKKSD__V1__KEY_COMMIT_REPLY__INIT;
    if (call_failed(c)) return;
    reply.has_bytes = true, reply.bytes = c->record.payload_bytes;
    const key_entry *known = keys_find(job->server, c->tenant, c->id);
    if (!known || known->record.state != KEYSTORE_COMMITTED) keys_add(job->server, &c->record, &c->room);
    request_reply(c->request, &reply.base);
    call_end(c);
}
static void keys_key_commit(Ckksd__V1__Keys_Service *service, const Ckksd__V1__KeyCommitRequest *input,
                            Ckksd__V1__KeyCommitReply_Closure closure, void *closure_data) {
    (void)service, (void)closure;
    call_start(closure_data, true, input->has_key_set, &input->key_set, 0, commit_run, commit_done);
}

/* ---- KeyDelete ---- */

static void delete_run(key_job *job) {
    call *c = call_of(job);
    c->rc = keystore_delete(store_of(job), c->tenant, c->id, &c->err);
}
static void delete_done(key_job *job) {
    call *c = call_of(job);
    Ckksd__V1__Empty reply = CKKSD__V1__EMPTY__INIT;
    key_entry *entry = keys_find(job->server, c->tenant, c->id);
    if (entry && (c->rc == CKKS_OK || c->rc == CKKS_KEY_UNKNOWN)) keys_remove(job->server, entry);
    if (call_failed(c)) return;
    request_reply(c->request, &reply.base);
    call_end(c);
}
static void keys_key_delete(Ckksd__V1__Keys_Service *service, const Ckksd__V1__KeyDeleteRequest *input,
                            Ckksd__V1__Empty_Closure closure, void *closure_data) {
    (void)service, (void)closure;
    call_start(closure_data, true, input->has_key_set, &input->key_set, 0, delete_run, delete_done);
}

/* ---- KeyList: from memory, in the order of ids ---- */

static int entry_order(const void *a, const void *b) {
    const key_entry *const *x = a, *const *y = b;
    return memcmp((*x)->record.id, (*y)->record.id, KEY_SET_ID_BYTES);
}

/* The tenant's sets after `after`, ordered; at most one more than a page. */
static uint32_t page_of(server *s, const char *tenant, const uint8_t *after, key_entry **page) {
    uint32_t count = 0;
    for (uint32_t b = 0; b < KEYS_BUCKETS && count <= KEYSTORE_PAGE;
         b++) { /* a bucket is a first byte of ids */
        const uint32_t first = count;
        LIST_EACH(link, &s->keys.buckets[b]) {
            key_entry *entry = LIST_ENTRY(link, key_entry, link);
            if (strcmp(entry->record.tenant, tenant) != 0) continue;
            if (after && memcmp(entry->record.id, after, KEY_SET_ID_BYTES) <= 0) continue;
            if (count < first + KEYSTORE_PAGE + 1) page[count++] = entry;
        }
        qsort(page + first, count - first, sizeof(void *), entry_order);
    }
    return count;
}

static void keys_key_list(Ckksd__V1__Keys_Service *service, const Ckksd__V1__KeyListRequest *input,
                          Ckksd__V1__KeyListReply_Closure closure, void *closure_data) {
    Ckksd__V1__KeyListReply reply = CKKSD__V1__KEY_LIST_REPLY__INIT;
    Ckksd__V1__KeyListReply__Entry items[KEYSTORE_PAGE], *list[KEYSTORE_PAGE];
    key_entry *page[2 * KEYSTORE_PAGE + 2];
    request *r = closure_data;
    ckks_error err = {0};
    (void)service;
    if (input->has_after && input->after.len != KEY_SET_ID_BYTES) {
        ckks_error_set(&err, CKKS_MALFORMED, "after", "a key set's id has %u bytes", KEY_SET_ID_BYTES);
        request_fail(r, &err);
        return;
    }
    const uint32_t count =
        page_of(r->server, r->tenant->name, input->has_after ? input->after.data : NULL, page);
    for (uint32_t i = 0; i < count && i < KEYSTORE_PAGE; i++) {
        keystore_record *record = &page[i]->record;
        Ckksd__V1__KeyListReply__Entry *item = &items[i];
        ckksd__v1__key_list_reply__entry__init(item);
        item->has_key_set = item->has_parameter_id = item->has_lineage = item->has_bytes = true;
        item->has_key_count = item->has_created_unix = item->has_used_unix = true;
        item->key_set = (ProtobufCBinaryData){KEY_SET_ID_BYTES, record->id};
        item->parameter_id = (ProtobufCBinaryData){CKKS_PARAMETER_ID_BYTES, record->parameter_id};
        item->lineage = (ProtobufCBinaryData){LINEAGE_BYTES, record->lineage};
        item->bytes = record->payload_bytes, item->key_count = record->key_count;
        item->created_unix = record->created_unix, item->used_unix = record->used_unix;
        list[reply.n_entries++] = item;
    }
    reply.entries = list;
    reply.has_more = true, reply.more = count > KEYSTORE_PAGE;
    closure(&reply, r);
}

ProtobufCService *handlers_keys(void) {
    static Ckksd__V1__Keys_Service service = CKKSD__V1__KEYS__INIT(keys_);
    return &service.base;
}
