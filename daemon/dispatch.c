#include "daemon/dispatch.h"

#include "proto/token.h"

#include <stdio.h>
#include <string.h>

#define METHODS_MAX    METRICS_METHODS_MAX
#define ON_CONTROL     (1u << TRANSPORT_CONTROL)
#define ON_BULK        (1u << TRANSPORT_BULK)
#define ON_ADMIN       (1u << TRANSPORT_ADMIN)
#define UNKNOWN_METHOD "unknown"

static dispatch_method methods[METHODS_MAX];
static uint32_t method_count;
static metrics_method *unknown_method;

/* The exceptions to a service's own rule. */
static const struct {
    const char *name;
    uint32_t sockets, scope;
} exceptions[] = {
    {"Inference/ServerLive", ON_CONTROL | ON_ADMIN, 0},
    {"Inference/ServerReady", ON_CONTROL | ON_ADMIN, 0},
    {"Inference/ServerMetadata", ON_CONTROL | ON_BULK | ON_ADMIN, 0}, /* names the other sockets */
    {"Inference/ModelInfer", ON_BULK, TOKEN_SCOPE_INFER},
    {"Keys/KeyPart", ON_BULK, TOKEN_SCOPE_KEY_WRITE},
};

static void add_service(ProtobufCService *service, uint32_t sockets, uint32_t scope) {
    const ProtobufCServiceDescriptor *descriptor = service->descriptor;
    for (unsigned i = 0; i < descriptor->n_methods; i++) {
        CKKS_ASSERT(method_count < METHODS_MAX);
        dispatch_method *m = &methods[method_count++];
        snprintf(m->name, sizeof m->name, "%s/%s", descriptor->short_name, descriptor->methods[i].name);
        m->service = service;
        m->index = i;
        m->descriptor = &descriptor->methods[i];
        m->sockets = sockets, m->scope = scope;
        for (size_t e = 0; e < sizeof exceptions / sizeof exceptions[0]; e++)
            if (strcmp(exceptions[e].name, m->name) == 0)
                m->sockets = exceptions[e].sockets, m->scope = exceptions[e].scope;
        m->metrics = metrics_method_add(m->name);
    }
}

void dispatch_init(void) {
    if (method_count) return;
    add_service(handlers_health(), ON_CONTROL | ON_ADMIN, 0);
    add_service(handlers_inference(), ON_CONTROL, TOKEN_SCOPE_INFER);
    add_service(handlers_keys(), ON_CONTROL, TOKEN_SCOPE_KEY_WRITE);
    add_service(handlers_admin(), ON_ADMIN, 0);
    unknown_method = metrics_method_add(UNKNOWN_METHOD);
}

const dispatch_method *dispatch_find(const char *name) {
    for (uint32_t i = 0; i < method_count; i++)
        if (strcmp(methods[i].name, name) == 0) return &methods[i];
    return NULL;
}

metrics_method *dispatch_unknown(void) {
    return unknown_method;
}
