#include "proto/local_memory.h"

#include "kernels/base/status.h"

#include <string.h>

void local_memory_take(const local_memory_head *head, uint8_t *to, size_t *have, size_t bytes, bool is_all) {
    const uint64_t said = atomic_load_explicit(&head->have, memory_order_acquire);
    const size_t there = is_all || said > bytes ? bytes : (size_t)said;
    CKKS_ASSERT(*have <= bytes);
    if (there <= *have) return;
    memcpy(to + *have, (const uint8_t *)(head + 1) + *have, there - *have);
    *have = there;
}
