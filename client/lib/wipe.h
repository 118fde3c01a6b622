/*
 * Memory that holds a caller's rows, what was made of them, or decrypted scores: not keys, which live in
 * guarded memory, but private all the same. It is overwritten before it goes back to the allocator, so that
 * neither a later allocation nor a core dump finds it.
 */
#ifndef CKKS_CLIENT_WIPE_H
#define CKKS_CLIENT_WIPE_H

#include <stddef.h>

/* wipe_free overwrites all that the allocation has room for, and frees it. Accepts NULL. */
void wipe_free(void *memory);

/* wipe_grow is realloc to `bytes`, more than before, that leaves no copy behind: the old memory is wiped.
 * NULL without memory, the old memory is then as it was. `used` bytes of it are kept. */
void *wipe_grow(void *memory, size_t used, size_t bytes);

#endif
