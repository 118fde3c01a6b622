/*
 * Weights that an ONNX model keeps in files beside it. Their names come from a stranger: only files below the
 * model's own folder are opened, without following any symbolic link.
 */
#ifndef CKKS_COMPILE_EXTERNAL_H
#define CKKS_COMPILE_EXTERNAL_H

#include "client/compile/model.h"

/* external_read reads what `message` refers to into *bytes, which the caller frees; at most bytes_max. Blocks
 * on I/O. CKKS_MALFORMED: a path that leaves the folder, numbers that are none, or bytes that the file does
 * not have; CKKS_UNSUPPORTED: a link or no plain file; CKKS_NOT_FOUND, CKKS_IO, CKKS_TOO_LARGE. err->field is
 * `what`. */
ckks_status external_read(uint8_t **bytes, size_t *size, const char *folder, const Onnx__Tensor *message,
                          uint64_t bytes_max, const char *what, ckks_error *err);

#endif
