/*
 * The operator's door: /livez, /readyz and /metrics over HTTP on its own thread, so that it answers while
 * everything else is busy. GET and HEAD only; reads what metrics.h has, and nothing else. /readyz says 503
 * also while no slot is in service; which slots are not, since when and why, and which models no slot serves,
 * is in its text, whatever its status.
 */
#ifndef CKKSD_OPS_H
#define CKKSD_OPS_H

#include "kernels/base/status.h"

typedef struct ops ops;

/* ops_start listens on "address:port" (port 0: any; the log says which), which nobody else may listen on.
 * CKKS_IO, CKKS_INVALID_ARGUMENT, CKKS_RESOURCE_EXHAUSTED, of field "listen" but for memory. */
ckks_status ops_start(ops **out, const char *listen, ckks_error *err);
void ops_stop(ops *o);

#endif
