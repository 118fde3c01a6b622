/* Addresses: what a server may and may not change about them. Pure. */
#include "client/lib/rpc.h"

#include "kernels/base/bytes.h"

#include <stdio.h>
#include <string.h>

/* "scheme://host:port/path" in parts; port and path may be empty. host keeps its brackets. */
typedef struct address_parts {
    char scheme[16], host[256], rest[RPC_ADDRESS_MAX];
} address_parts;

static bool split(address_parts *out, const char *address) {
    const char *mark = strstr(address, "://");
    if (!mark || (size_t)(mark - address) >= sizeof out->scheme || strlen(address) >= RPC_ADDRESS_MAX)
        return false;
    memcpy(out->scheme, address, (size_t)(mark - address));
    out->scheme[mark - address] = 0;
    const char *host = mark + 3, *end;
    if (*host == '[') {
        end = strchr(host, ']');
        if (!end) return false;
        end++;
    } else {
        end = host + strcspn(host, ":/");
    }
    if ((size_t)(end - host) >= sizeof out->host) return false;
    memcpy(out->host, host, (size_t)(end - host));
    out->host[end - host] = 0;
    snprintf(out->rest, sizeof out->rest, "%s", end);
    return true;
}

static bool has_host(const char *scheme) {
    return strcmp(scheme, "ipc") != 0 && strcmp(scheme, "inproc") != 0 && strcmp(scheme, "abstract") != 0 &&
           strcmp(scheme, "unix") != 0;
}

void rpc_choose_endpoint(char out[RPC_ADDRESS_MAX], const char *given,
                         const Ckksd__V1__ServerMetadataReply *server, bool want_bulk) {
    address_parts mine, theirs;
    out[0] = 0;
    if (!split(&mine, given)) return;
    for (size_t i = 0; i < server->n_endpoints && !out[0]; i++) {
        const Ckksd__V1__Endpoint *e = server->endpoints[i];
        if (!e->address || (e->bulk != 0) != want_bulk || !split(&theirs, e->address)) continue;
        if (strcmp(mine.scheme, theirs.scheme) != 0) continue;
        if (!has_host(mine.scheme))
            snprintf(out, RPC_ADDRESS_MAX, "%s", e->address);
        else if (snprintf(out, RPC_ADDRESS_MAX, "%s://%s%s", mine.scheme, mine.host, theirs.rest) >=
                 (int)RPC_ADDRESS_MAX)
            out[0] = 0;
    }
}

void text_make_printable(char *text) {
    while (*text) {
        const size_t step = text_step(text);
        if (!step) *text = '?';
        text += step ? step : 1;
    }
}

/* ---- statuses ---- */

static const struct {
    ckks_status status;
    uint32_t code;
    const char *reason;
} wire_table[] = {
#define X(name, rpc, reason, retryable, text) {name, rpc, reason},
    CKKS_STATUS_TABLE(X)
#undef X
};

/* code and reason, then reason, then code */
static ckks_status find_status(uint32_t code, const char *reason) {
    const size_t count = sizeof wire_table / sizeof *wire_table;
    for (int pass = 0; pass < 3; pass++)
        for (size_t i = 1; i < count; i++) {
            const bool same_reason = !strcmp(wire_table[i].reason, reason),
                       same_code = wire_table[i].code == code;
            if (pass == 0 && same_reason && same_code && reason[0]) return wire_table[i].status;
            if (pass == 1 && same_reason && reason[0]) return wire_table[i].status;
            if (pass == 2 && same_code && !wire_table[i].reason[0] &&
                !(code == RPC_UNAVAILABLE && wire_table[i].status != CKKS_UNAVAILABLE))
                return wire_table[i].status;
        }
    return CKKS_INTERNAL;
}

ckks_status rpc_status_from(const Ckksd__V1__Status *status, ckks_error *err) {
    if (!status || !status->has_code)
        return ckks_error_set(err, CKKS_UNTRUSTED_SERVER, "status", "the reply has none");
    if (status->code == RPC_OK) return CKKS_OK;
    const char *reason = status->reason ? status->reason : "";
    ckks_status rc = find_status(status->code, reason);
    if (rc == CKKS_UNIMPLEMENTED && status->has_wire_version_min) rc = CKKS_UNSUPPORTED_VERSION;
    char message[256], field[64];
    snprintf(message, sizeof message, "%s", status->message ? status->message : "");
    snprintf(field, sizeof field, "%s", status->field ? status->field : "");
    text_make_printable(message);
    text_make_printable(field);
    ckks_error_set(err, rc, field, "%s%s%s", message, message[0] ? " " : "", "(said the server)");
    ckks_error_stage(err, "server");
    return rc;
}

bool rpc_error_is_from_server(const ckks_error *err) {
    return err && !strcmp(err->stage, "server");
}
