#include "client/lib/wipe.h"

#include <malloc.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

void wipe_free(void *memory) {
    /* the allocator knows the size better than a caller that has since changed a count */
    if (memory) sodium_memzero(memory, malloc_usable_size(memory));
    free(memory);
}

void *wipe_grow(void *memory, size_t used, size_t bytes) {
    void *moved = malloc(bytes);
    if (!moved) return NULL;
    if (used) memcpy(moved, memory, used);
    wipe_free(memory);
    return moved;
}
