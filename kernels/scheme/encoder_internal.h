/* What encoding and decoding share. Included by kernels/scheme only. */
#ifndef CKKS_SCHEME_ENCODER_INTERNAL_H
#define CKKS_SCHEME_ENCODER_INTERNAL_H

#include "kernels/scheme/limb_loops_internal.h"

/* Teams wake for more words than this: two limbs of N = 2^15. */
#define ENCODER_TEAM_WORDS ((size_t)1 << 16)

ckks_status encoder_check_shape(const ckks_params *p, uint32_t slot_count, uint32_t level, ckks_error *err);
ckks_status encoder_check_scale(double scale, ckks_error *err);

#endif
