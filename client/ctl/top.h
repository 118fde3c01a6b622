/* The largest of many values: what a search asks for. */
#ifndef CKKS_CTL_TOP_H
#define CKKS_CTL_TOP_H

#include <stdint.h>

/* top_select fills indices[] with the places, counted from 0, of the `wanted` largest values (all, if there
 * are fewer), largest first, of equals the first; returns how many. Pure. */
uint32_t top_select(uint32_t *indices, const double *values, uint32_t value_count, uint32_t wanted);

/* top_common: how many of a[count] are in b[count], in any order. Each has no entry twice. Pure. */
uint32_t top_common(const uint32_t *a, const uint32_t *b, uint32_t count);

#endif
