#include "daemon/request.h"
#include "daemon/server.h"

#include <stdio.h>
#include <string.h>

static void reply_status(request *r, Ckksd__V1__HealthCheckReply__ServingStatus status,
                         Ckksd__V1__HealthCheckReply_Closure closure) {
    Ckksd__V1__HealthCheckReply reply = CKKSD__V1__HEALTH_CHECK_REPLY__INIT;
    reply.has_status = true, reply.status = status;
    closure(&reply, r);
}

/* "" is the server, "model" or "model/version" that model. */
static void health_check(Ckksd__V1__Health_Service *service, const Ckksd__V1__HealthCheckRequest *input,
                         Ckksd__V1__HealthCheckReply_Closure closure, void *closure_data) {
    request *r = closure_data;
    server *s = r->server;
    ckks_error err = {0};
    model *m = NULL;
    char name[2 * MODEL_NAME_MAX + 2];
    (void)service;
    const char *what = input->service ? input->service : "";
    if (what[0] == 0) {
        reply_status(r,
                     server_is_ready(s) ? CKKSD__V1__HEALTH_CHECK_REPLY__SERVING_STATUS__SERVING
                                        : CKKSD__V1__HEALTH_CHECK_REPLY__SERVING_STATUS__NOT_SERVING,
                     closure);
        return;
    }
    snprintf(name, sizeof name, "%s", what);
    char *slash = strchr(name, '/');
    if (slash) *slash = 0;
    if (strlen(what) >= sizeof name ||
        models_find(s, &m, name, slash ? slash + 1 : NULL, true, &err) != CKKS_OK) {
        ckks_error_set(&err, CKKS_NOT_FOUND, "service", "there is no such model");
        request_fail(r, &err);
        return;
    }
    const bool is_serving = server_is_ready(s) && model_slot_count(s, m) > 0;
    reply_status(r,
                 is_serving ? CKKSD__V1__HEALTH_CHECK_REPLY__SERVING_STATUS__SERVING
                            : CKKSD__V1__HEALTH_CHECK_REPLY__SERVING_STATUS__NOT_SERVING,
                 closure);
}

ProtobufCService *handlers_health(void) {
    static Ckksd__V1__Health_Service service = CKKSD__V1__HEALTH__INIT(health_);
    return &service.base;
}
