/*
 * The card's health, read every few seconds on the pool and published as metrics; what an operator must know
 * is logged when it begins and when it ends. A CPU has none, nor has a machine without NVML.
 */
#ifndef CKKSD_HEALTH_H
#define CKKSD_HEALTH_H

#include "daemon/loop.h"
#include "kernels/device_health.h"

#include <stdbool.h>

struct server;

typedef struct health_monitor {
    struct server *server;
    health_source *source; /* NULL: nothing to watch */
    loop_work work;
    bool is_reading;
    uint64_t next_ns;
    device_health now, before;
} health_monitor;

/* health_start opens the card's source after the device was opened, and reads once. Blocks shortly. */
void health_start(struct server *s);
/* health_tick: loop thread, often. */
void health_tick(struct server *s, uint64_t now_ns);
void health_stop(health_monitor *h); /* no reading may be under way; accepts zeroed */

#endif
