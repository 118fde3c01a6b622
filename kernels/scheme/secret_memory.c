#include "kernels/scheme/secret_memory.h"

#include <sodium.h>
#include <stdlib.h>

void *secret_allocate(size_t bytes) {
#ifdef CKKS_FAULT_INJECTION
    /* libsodium maps pages itself: a probe makes this allocation visible to injected failures */
    void *volatile probe = malloc(1); /* volatile: a compiler may drop a block that nobody looks at */
    if (!probe) return NULL;
    free(probe);
#endif
    if (bytes == 0 || bytes > SIZE_MAX - 63) return NULL;
    /* the end touches the guard page, so the start is as aligned as the size */
    return sodium_malloc((bytes + 63) & ~(size_t)63);
}

void secret_free(void *memory) {
    sodium_free(memory);
}
