#include "kernels/base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    rpc_code rpc;
    const char *reason;
    bool is_retryable;
    const char *text;
} table[CKKS_STATUS_COUNT] = {
#define X(id, code, wire_reason, retryable, description) {#id, code, wire_reason, retryable, description},
    CKKS_STATUS_TABLE(X)
#undef X
};

static ckks_status clamp(ckks_status status) {
    return (unsigned)status < CKKS_STATUS_COUNT ? status : CKKS_INTERNAL;
}

const char *ckks_status_name(ckks_status status) {
    return table[clamp(status)].name;
}
const char *ckks_status_text(ckks_status status) {
    return table[clamp(status)].text;
}
const char *ckks_status_reason(ckks_status status) {
    return table[clamp(status)].reason;
}
rpc_code ckks_status_rpc(ckks_status status) {
    return table[clamp(status)].rpc;
}
bool ckks_status_is_retryable(ckks_status status) {
    return table[clamp(status)].is_retryable;
}

const char *rpc_code_name(rpc_code code) {
    static const char *const names[] = {
        "OK",        "CANCELLED",       "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
        "NOT_FOUND", "ALREADY_EXISTS",  "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
        "ABORTED",   "OUT_OF_RANGE",    "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
        "DATA_LOSS", "UNAUTHENTICATED",
    };
    return (unsigned)code < sizeof names / sizeof *names ? names[code] : "UNKNOWN";
}

#undef ckks_error_set
ckks_status ckks_error_set(ckks_error *err, ckks_status code, const char *field, const char *format, ...) {
    if (!err || err->code != CKKS_OK) return code;
    err->code = code;
    snprintf(err->field, sizeof err->field, "%s", field ? field : "");
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(err->message, sizeof err->message, format, arguments);
    va_end(arguments);
    return code;
}

void ckks_error_stage(ckks_error *err, const char *stage) {
    if (err && err->code != CKKS_OK && !err->stage[0]) snprintf(err->stage, sizeof err->stage, "%s", stage);
}

char *ckks_error_print(const ckks_error *err, char *buffer, uint32_t capacity) {
    if (!err || err->code == CKKS_OK) {
        snprintf(buffer, capacity, "ok");
        return buffer;
    }
    const bool has_field = err->field[0] != 0, has_stage = err->stage[0] != 0;
    snprintf(buffer, capacity, "%s%s%s%s%s%s%s%s", ckks_status_text(err->code), has_stage ? " at " : "",
             err->stage, has_field ? ": " : "", err->field, err->message[0] ? ": " : "", err->message, "");
    return buffer;
}

void ckks_assert_failed(const char *condition, const char *file, int line, const char *function) {
    fprintf(stderr, "ckksd: assertion failed: %s (%s:%d, %s)\n", condition, file, line, function);
    fflush(stderr);
    abort();
}
