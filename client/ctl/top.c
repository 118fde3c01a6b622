/* A sorted list of the best so far: a value in random order gets into it seldom, so that nearly all cost one
 * comparison. */
#include "client/ctl/top.h"

uint32_t top_select(uint32_t *indices, const double *values, uint32_t value_count, uint32_t wanted) {
    uint32_t count = 0;
    if (!wanted) return 0;
    for (uint32_t i = 0; i < value_count; i++) {
        if (count == wanted && !(values[i] > values[indices[count - 1]])) continue;
        uint32_t at = count < wanted ? count++ : count - 1;
        for (; at && values[i] > values[indices[at - 1]]; at--) indices[at] = indices[at - 1];
        indices[at] = i;
    }
    return count;
}

uint32_t top_common(const uint32_t *a, const uint32_t *b, uint32_t count) {
    uint32_t common = 0;
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t k = 0; k < count; k++) common += a[i] == b[k];
    return common;
}
