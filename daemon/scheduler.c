#include "daemon/scheduler.h"

#include "kernels/base/bytes.h"

#define COST_MIN_NS 1000u /* a free request would let one tenant run for ever */

void scheduler_init(scheduler *s) {
    list_init(&s->tenants);
    s->virtual_ns = 0;
}

void scheduler_tenant_init(scheduler_tenant *tenant, uint32_t weight, uint32_t items_max) {
    list_init(&tenant->link);
    list_init(&tenant->held);
    list_init(&tenant->queued);
    list_init(&tenant->running);
    tenant->virtual_ns = 0;
    tenant->weight = weight ? weight : 1;
    tenant->items_max = items_max;
}

typedef struct totals {
    uint32_t items, tenant_items, model_items;
    uint64_t bytes, tenant_bytes;
} totals;

static void add_up(totals *t, const list_node *items, bool is_own, uint32_t model) {
    LIST_EACH(link, items) {
        const scheduler_item *item = LIST_ENTRY(link, scheduler_item, link);
        t->items++;
        t->tenant_items += is_own;
        t->model_items += item->model == model;
        t->bytes += item->bytes;
        if (is_own) t->tenant_bytes += item->bytes;
        CKKS_ASSERT(link->next);
    }
}

static totals total_of(const scheduler *s, const scheduler_tenant *own, uint32_t model) {
    totals t = {0};
    LIST_EACH(link, &s->tenants) {
        const scheduler_tenant *tenant = LIST_ENTRY(link, scheduler_tenant, link);
        add_up(&t, &tenant->held, tenant == own, model);
        add_up(&t, &tenant->queued, tenant == own, model);
        add_up(&t, &tenant->running, tenant == own, model);
        CKKS_ASSERT(link->next); /* links of a list that is in use are never NULL */
    }
    return t;
}

static uint64_t tenant_bytes_max(const scheduler *s) {
    return s->tenant_items_max < s->items_max ? s->bytes_max / s->items_max * s->tenant_items_max
                                              : s->bytes_max;
}

ckks_status scheduler_admit(scheduler *s, scheduler_tenant *tenant, scheduler_item *item, ckks_error *err) {
    const totals t = total_of(s, tenant, item->model);
    uint64_t bytes;
    if (tenant->items_max && t.tenant_items >= tenant->items_max)
        return ckks_error_set(err, CKKS_QUOTA, "queued", "the tenant has its %u requests waiting or running",
                              tenant->items_max);
    if (t.items >= s->items_max)
        return ckks_error_set(err, CKKS_QUEUE_FULL, "requests_max", "%u requests wait or run", t.items);
    if (t.tenant_items >= s->tenant_items_max)
        return ckks_error_set(err, CKKS_QUEUE_FULL, "tenant_requests_max",
                              "%u requests of the tenant wait or run", t.tenant_items);
    if (t.model_items >= s->model_items_max)
        return ckks_error_set(err, CKKS_QUEUE_FULL, "model_requests_max",
                              "%u requests for the model wait or run", t.model_items);
    if (!size_add(&bytes, t.bytes, item->bytes) || bytes > s->bytes_max)
        return ckks_error_set(err, CKKS_QUEUE_FULL, "bytes_max", "%llu bytes of requests wait or run",
                              (unsigned long long)t.bytes);
    if (t.tenant_items && t.tenant_bytes + item->bytes > tenant_bytes_max(s))
        return ckks_error_set(err, CKKS_QUEUE_FULL, "bytes_max",
                              "%llu bytes of the tenant's requests wait or run: its share of bytes_max",
                              (unsigned long long)t.tenant_bytes);
    if (list_is_empty(&tenant->link)) {
        list_append(&s->tenants, &tenant->link);
        if (tenant->virtual_ns < s->virtual_ns) tenant->virtual_ns = s->virtual_ns; /* idling earns nothing */
    }
    item->tenant = tenant;
    list_append(&tenant->held, &item->link);
    return CKKS_OK;
}

void scheduler_enqueue(scheduler *s, scheduler_item *item) {
    (void)s;
    list_remove(&item->link);
    list_node *at = item->tenant->queued.next;
    while (at != &item->tenant->queued && LIST_ENTRY(at, scheduler_item, link)->priority >= item->priority)
        at = at->next;
    list_insert_before(at, &item->link);
}

static scheduler_item *first_runnable(scheduler_tenant *tenant, bool (*can_run)(void *, scheduler_item *),
                                      void *context) {
    LIST_EACH(link, &tenant->queued) {
        scheduler_item *item = LIST_ENTRY(link, scheduler_item, link);
        if (can_run(context, item)) return item;
    }
    return NULL;
}

scheduler_item *scheduler_next(scheduler *s, bool (*can_run)(void *context, scheduler_item *item),
                               void *context) {
    scheduler_item *best = NULL;
    LIST_EACH(link, &s->tenants) {
        scheduler_tenant *tenant = LIST_ENTRY(link, scheduler_tenant, link);
        if (best && tenant->virtual_ns >= best->tenant->virtual_ns) continue;
        scheduler_item *item = first_runnable(tenant, can_run, context);
        if (item) best = item;
    }
    if (!best) return NULL;
    const uint64_t cost = best->cost_ns > COST_MIN_NS ? best->cost_ns : COST_MIN_NS;
    s->virtual_ns = best->tenant->virtual_ns;
    best->tenant->virtual_ns += cost / best->tenant->weight;
    list_remove(&best->link);
    list_append(&best->tenant->running, &best->link);
    return best;
}

void scheduler_requeue(scheduler *s, scheduler_item *item) {
    (void)s;
    list_remove(&item->link);
    list_prepend(&item->tenant->queued, &item->link);
}

void scheduler_remove(scheduler *s, scheduler_item *item) {
    (void)s;
    scheduler_tenant *tenant = item->tenant;
    if (!tenant) return;
    list_remove(&item->link);
    item->tenant = NULL;
    if (list_is_empty(&tenant->held) && list_is_empty(&tenant->queued) && list_is_empty(&tenant->running))
        list_remove(&tenant->link);
}

uint32_t scheduler_count(const scheduler *s, scheduler_list which) {
    uint32_t count = 0;
    LIST_EACH(link, &s->tenants) {
        const scheduler_tenant *tenant = LIST_ENTRY(link, scheduler_tenant, link);
        count += list_count(which == SCHEDULER_HELD     ? &tenant->held
                            : which == SCHEDULER_QUEUED ? &tenant->queued
                                                        : &tenant->running);
    }
    return count;
}

uint64_t scheduler_bytes(const scheduler *s) {
    return total_of(s, NULL, UINT32_MAX).bytes;
}
