/*
 * From "Service/Method" to a handler, by the service descriptors that protoc-c generates: a new method is one
 * line of rpc.proto and one handler. Who may call it and on which socket follows from its service, unless the
 * table in dispatch.c says otherwise.
 */
#ifndef CKKSD_DISPATCH_H
#define CKKSD_DISPATCH_H

#include "daemon/metrics.h"
#include "daemon/transport.h"

#include <protobuf-c/protobuf-c.h>

typedef struct dispatch_method {
    char name[48]; /* "Inference/ModelInfer" */
    ProtobufCService *service;
    unsigned index;
    const ProtobufCMethodDescriptor *descriptor;
    uint32_t sockets; /* bits of 1 << transport_kind */
    uint32_t scope;   /* token_scope; 0 = anyone */
    metrics_method *metrics;
} dispatch_method;

/* dispatch_init builds the table from all services; once per process. */
void dispatch_init(void);
/* dispatch_find: NULL if unknown. */
const dispatch_method *dispatch_find(const char *name);
/* dispatch_unknown: where requests without a known method are counted. */
metrics_method *dispatch_unknown(void);

/* The services, one file of handlers each. A handler gets the request as closure data and ends in
 * request_reply, request_fail, or a hand-over to whoever will. */
ProtobufCService *handlers_health(void);
ProtobufCService *handlers_inference(void);
ProtobufCService *handlers_keys(void);
ProtobufCService *handlers_admin(void);

#endif
