/*
 * The daemon as a whole: what every part can reach, the order of coming up and going down, and the few
 * decisions that concern all parts. Loop thread only unless a part says otherwise.
 */
#ifndef CKKSD_SERVER_H
#define CKKSD_SERVER_H

#include "daemon/config.h"
#include "daemon/dedupe.h"
#include "daemon/dispatch.h"
#include "daemon/health.h"
#include "daemon/keys.h"
#include "daemon/loop.h"
#include "daemon/models.h"
#include "daemon/scheduler.h"
#include "daemon/slots.h"
#include "daemon/tenants.h"
#include "daemon/transport.h"

struct ops;
struct server_recovery;

typedef enum server_phase {
    SERVER_STARTING, /* models are on their way; inference is UNAVAILABLE */
    SERVER_READY,
    SERVER_LINGERING, /* not ready, still serving, so that balancers notice */
    SERVER_DRAINING,  /* refuses new work, finishes the old */
    SERVER_STOPPING,
} server_phase;

typedef struct server {
    config config;
    char config_path[CONFIG_NAME_SIZE];
    server_phase phase;
    int exit_code;
    loop loop;
    transport transport;
    tenant_registry tenants;
    scheduler scheduler;
    dedupe dedupe;
    model_registry models;
    slot_group slots;
    key_registry keys;
    device *device;
    void *blocks; /* lent to the transport */
    health_monitor health;
    struct ops *ops;
    list_node requests;
    uint64_t request_serial;
    uint32_t pool_jobs; /* handed to the pool and not returned */
    uint64_t last_finish_ns;
    uint64_t drain_started_ns, drain_timeout_ns;
    uint64_t gave_up_ns;              /* the drain was late, and who waited was told so; 0: not yet */
    bool is_reloading, reloads_again; /* asked while one was on its way: it may have read the old files */
    uv_signal_t signals[3];
    uv_timer_t tick, watchdog, linger;
    uint64_t next_key_tick_ns;
    struct server_recovery *recoveries; /* [slots.count] */
} server;

/* server_run serves until it is told to stop and returns the exit code. */
int server_run(const config *c, const char *config_path);

/* May this method start now? CKKS_DRAINING, CKKS_UNAVAILABLE. */
ckks_status server_accepts(server *s, const dispatch_method *method, ckks_error *err);
void server_request_finished(server *s);
/* server_is_ready: it has come up, is not going down, and a slot is in service. */
bool server_is_ready(const server *s);
/* server_why_not_ready: in words; "" if it is ready. */
const char *server_why_not_ready(const server *s);
/* slots that there are or will be */
uint32_t server_slot_count(const server *s);
/* server_cores: that this process may run on; at least 1. Any thread. */
uint32_t server_cores(void);
/* server_describe_slots: what more slots than cores cost on a CPU, into text; false: there are no more. Any
 * thread. */
bool server_describe_slots(const config *c, char *text, size_t size);
bool server_is_admin(const server *s, uint64_t uid);
uint32_t server_retry_hint_ms(const server *s);
/* something about readiness may have changed */
void server_check_ready(server *s);
/* server_models_settled: every model known at start was loaded or failed: slots can be made. */
void server_models_loaded(server *s);

/* A device error: the slot leaves service, gets its programs again, tests itself and comes back. */
void server_quarantine(server *s, slot *where, const char *why);
/* server_has_other_slot: is one in service beside `than`? */
bool server_has_other_slot(const server *s, const slot *than);

void server_drain(server *s, uint64_t timeout_ms);
/* server_hurry: a drain that has begun waits for nothing any more. */
void server_hurry(server *s);
/* server_reload: of everything that may change while running; asked while one is on its way, once more after
 * it. */
void server_reload(server *s);

/* server_print_memory logs the budget: slots, weights, keys, queues, and what the device has. */
void server_print_memory(const server *s);

#endif
