/*
 * Files that the client keeps: data, secret keys, key sets, ciphertexts, saved metadata. Everything here
 * blocks on the disk. Writers write beside the target, sync and rename.
 */
#ifndef CKKS_CLIENT_FILES_H
#define CKKS_CLIENT_FILES_H

#include "kernels/base/status.h"

#include <limits.h>
#include <stddef.h>

/* file_read reads a whole file; "-" is standard input. The caller frees *out with free(). CKKS_TOO_LARGE over
 * size_max; errors name the path. */
ckks_status file_read(uint8_t **out, size_t *size, const char *path, uint64_t size_max, ckks_error *err);
/* file_io_error makes the error of a call that failed (errno), of its path and what it was to do:
 * CKKS_NOT_FOUND, CKKS_ALREADY_EXISTS, CKKS_PERMISSION_DENIED or CKKS_IO. */
ckks_status file_io_error(ckks_error *err, const char *path, const char *what);
/* file_name_error puts the path in front of the message of a filled error; "-" is standard input. */
void file_name_error(ckks_error *err, const char *path);
/* file_write replaces (or, unless `overwrite`, creates) a file with `mode`, less the umask: the new one is
 * written and synced without a name (where the system cannot: beside the target) and gets it when it is
 * whole. Where `path` is a symbolic link, the file behind it is replaced; a device, a pipe or a terminal is
 * written to as it is. What its owner took from the rights of the old file, the new one does not have either.
 * Without `overwrite` any existing name is CKKS_ALREADY_EXISTS, links included. CKKS_IO of the field
 * "folder": the whole file is there, but may not survive a crash. */
ckks_status file_write(const char *path, const void *bytes, size_t size, unsigned mode, bool overwrite,
                       ckks_error *err);
/* file_mode: of `mode` what the file at `path`, if there is one, has. */
unsigned file_mode(const char *path, unsigned mode);
/* file_resolve: the file that writing `path` means, behind symbolic links; *is_special: it is no regular file
 * (nor absent). CKKS_INVALID_ARGUMENT for a folder. */
ckks_status file_resolve(char out[PATH_MAX], const char *path, bool *is_special, ckks_error *err);
/* file_make_parents creates the folders above `path` with mode 0700 where they are missing. */
ckks_status file_make_parents(const char *path, ckks_error *err);

#endif
