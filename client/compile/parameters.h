/*
 * The menu of parameter sets, smallest first, and which of them a program may use.
 */
#ifndef CKKS_COMPILE_PARAMETERS_H
#define CKKS_COMPILE_PARAMETERS_H

#include "kernels/scheme/params.h"

/* q0 is this many bits above the scale: values up to half of 2^10 in size survive decryption. */
#define HEADROOM_BITS 10u

/* rows of the menu, at most */
#define PARAMETER_ROWS_MAX 16u

typedef struct parameter_choice {
    ckks_params params;
    double scale; /* nominal, a power of two */
} parameter_choice;

typedef struct parameter_wish {
    uint32_t depth;         /* levels; 0: one layer that is not rescaled */
    uint32_t slot_count;    /* at least so many slots */
    uint32_t security_bits; /* 128, 192, 256 */
    uint32_t log_n;         /* 0 = the menu's; else any chain of the menu at this ring degree */
    bool allow_insecure;
} parameter_wish;

/* parameter_choose finds the first set from menu row *row on that has the depth, the slots and the security;
 * *row then is that row (add one to ask for the next). CKKS_NOT_FOUND when the menu ends;
 * CKKS_INSECURE_PARAMETERS when only the security gate is in the way. */
ckks_status parameter_choose(parameter_choice *out, uint32_t *row, const parameter_wish *wish,
                             ckks_error *err);

/* parameter_depth_max: the most levels that any set of the menu has at that security. */
uint32_t parameter_depth_max(uint32_t security_bits);

#endif
