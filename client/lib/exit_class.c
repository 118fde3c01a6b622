#include "client/lib/exit_class.h"

#include <string.h>

client_exit client_exit_class(const ckks_error *err) {
    switch (err->code) {
    case CKKS_OK:
        return CLIENT_EXIT_GOOD;
    case CKKS_KEY_UNKNOWN:
    case CKKS_KEY_EVICTED:
    case CKKS_KEY_MISSING:
    case CKKS_LINEAGE_MISMATCH:
    case CKKS_PARAMS_MISMATCH:
    case CKKS_PASSPHRASE:
        return CLIENT_EXIT_KEY;
    case CKKS_UNTRUSTED_SERVER:
    case CKKS_INSECURE_PARAMETERS:
        return CLIENT_EXIT_UNTRUSTED;
    default:
        break;
    }
    if (!strcmp(err->stage, "server")) return CLIENT_EXIT_REFUSED;
    switch (err->code) {
    case CKKS_UNAVAILABLE:
        return CLIENT_EXIT_UNREACHABLE;
    case CKKS_RESOURCE_EXHAUSTED:
    case CKKS_IO:
    case CKKS_INTERNAL:
        return CLIENT_EXIT_OTHER;
    case CKKS_INVALID_ARGUMENT:
        return !strcmp(err->field, "server") || !strcmp(err->field, "profile") ||
                       !strcmp(err->field, "command line")
                   ? CLIENT_EXIT_USAGE
                   : CLIENT_EXIT_INPUT;
    default:
        return CLIENT_EXIT_INPUT;
    }
}
