/*
 * Admission and order of inference requests. Bounded by count, in all and per model and tenant, and by bytes,
 * in all and per tenant, who has the same share of them as of the count, and one request in any case; full
 * means refused now. Between tenants: weighted fair by a virtual clock (each start charges the tenant
 * the expected cost over its weight; an idle tenant earns no credit). Within a tenant: priority, then
 * arrival.
 *
 * An admitted item waits for its keys (HELD), then for a slot (QUEUED), then runs; it counts against the
 * bounds in all three. Counts are walked from the lists. Knows nothing of requests, slots or time. Loop
 * thread only.
 */
#ifndef CKKSD_SCHEDULER_H
#define CKKSD_SCHEDULER_H

#include "daemon/list.h"
#include "kernels/base/status.h"

typedef struct scheduler_tenant {
    list_node link; /* in scheduler.tenants while it has items */
    list_node held, queued, running;
    uint64_t virtual_ns;
    uint32_t weight;    /* at least 1 */
    uint32_t items_max; /* quota; 0 = the scheduler's */
} scheduler_tenant;

typedef struct scheduler_item {
    list_node link;
    scheduler_tenant *tenant; /* NULL: not admitted */
    uint32_t model;
    uint32_t priority; /* larger goes first, within the tenant */
    uint64_t bytes;
    uint64_t cost_ns;
} scheduler_item;

typedef struct scheduler {
    list_node tenants; /* those with items */
    uint32_t items_max, tenant_items_max, model_items_max;
    uint64_t bytes_max;
    uint64_t virtual_ns;
} scheduler;

typedef enum scheduler_list { SCHEDULER_HELD, SCHEDULER_QUEUED, SCHEDULER_RUNNING } scheduler_list;

void scheduler_init(scheduler *s);
void scheduler_tenant_init(scheduler_tenant *tenant, uint32_t weight, uint32_t items_max);

/* scheduler_admit: CKKS_QUEUE_FULL or CKKS_QUOTA (the tenant's own bound), naming what is full; else the item
 * is HELD. */
ckks_status scheduler_admit(scheduler *s, scheduler_tenant *tenant, scheduler_item *item, ckks_error *err);
/* HELD -> QUEUED */
void scheduler_enqueue(scheduler *s, scheduler_item *item);
/* The next item to run, QUEUED -> RUNNING, among those for which `can_run` is true; NULL if there is none. */
scheduler_item *scheduler_next(scheduler *s, bool (*can_run)(void *context, scheduler_item *item),
                               void *context);
/* RUNNING -> QUEUED, first of its tenant: it did not get its turn. */
void scheduler_requeue(scheduler *s, scheduler_item *item);
/* Out of all lists; safe on an item that was never admitted or is out already. */
void scheduler_remove(scheduler *s, scheduler_item *item);

uint32_t scheduler_count(const scheduler *s, scheduler_list which);
uint64_t scheduler_bytes(const scheduler *s);

#endif
