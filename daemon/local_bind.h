/* The file of a local socket. */
#ifndef CKKSD_LOCAL_BIND_H
#define CKKSD_LOCAL_BIND_H

#include "kernels/base/status.h"

#include <uv.h>

/* local_bind binds `path` (a dead socket there is replaced, nothing else is) and gives it `mode`.
 * CKKS_INVALID_ARGUMENT, CKKS_IO naming the path. Blocks as a file system does. */
ckks_status local_bind(uv_pipe_t *pipe, const char *path, uint32_t mode, ckks_error *err);

#endif
