/* What the files of the server share. */
#ifndef CKKSD_SERVER_INTERNAL_H
#define CKKSD_SERVER_INTERNAL_H

#include "daemon/server.h"

/* The job that brings a slot back after a device error. */
typedef struct server_recovery {
    slot_job job;
    server *server;
    model *models[SLOT_MODELS_MAX];
    uint32_t model_count;
} server_recovery;

/* server_drain.c */
void server_drain_step(server *s);
/* server_start.c */
ckks_status server_start(server *s, ckks_error *err);
void server_stop(server *s);

#endif
