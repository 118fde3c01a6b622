/*
 * What encryption needs of a secret key. Included by kernels/scheme and its tests only.
 */
#ifndef CKKS_SCHEME_KEY_INTERNAL_H
#define CKKS_SCHEME_KEY_INTERNAL_H

#include "kernels/scheme/keys.h"

/* s modulo prime `prime_index` of the full list, evaluation domain, [N], in guarded memory of the key. */
const uint64_t *secret_key_evaluations(const secret_key *sk, uint32_t prime_index);

#endif
