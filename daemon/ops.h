/*
 * The operator's door: /livez, /readyz and /metrics over HTTP on its own thread, so that it answers while
 * everything else is busy. GET and HEAD only; reads atomics only.
 */
#ifndef CKKSD_OPS_H
#define CKKSD_OPS_H

#include "kernels/base/status.h"

typedef struct ops ops;

/* ops_start listens on "address:port" (port 0: any; the log says which). CKKS_IO. */
ckks_status ops_start(ops **out, const char *listen, ckks_error *err);
void ops_stop(ops *o);

#endif
