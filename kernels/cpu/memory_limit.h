/* How much memory control groups leave to this process: containers and service managers set limits far below
 * what the machine has. */
#ifndef CKKS_CPU_MEMORY_LIMIT_H
#define CKKS_CPU_MEMORY_LIMIT_H

#include <stdint.h>

/*
 * memory_limit_of_groups: the smallest limit, in bytes, of the groups that the file `membership`
 * (/proc/self/cgroup) names and of those above them, under the mount point `mount` (/sys/fs/cgroup); versions
 * 1 and 2. UINT64_MAX if none is set or can be read. Blocks on reading a few small files.
 */
uint64_t memory_limit_of_groups(const char *membership, const char *mount);

#endif
