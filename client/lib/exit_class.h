/*
 * The coarse classes of failure that programs and scripts see: ckksc_status and ckksctl's exit codes are the
 * same numbers.
 */
#ifndef CKKS_CLIENT_EXIT_CLASS_H
#define CKKS_CLIENT_EXIT_CLASS_H

#include "kernels/base/status.h"

typedef enum client_exit {
    CLIENT_EXIT_GOOD = 0,
    CLIENT_EXIT_OTHER = 1,
    CLIENT_EXIT_USAGE = 2,
    CLIENT_EXIT_INPUT = 3,
    CLIENT_EXIT_REFUSED = 4,
    CLIENT_EXIT_UNREACHABLE = 5,
    CLIENT_EXIT_KEY = 6,
    CLIENT_EXIT_UNTRUSTED = 7,
    CLIENT_EXIT_MISMATCH = 8,
} client_exit;

/* client_exit_class is pure; `err` must be filled. */
client_exit client_exit_class(const ckks_error *err);

#endif
