/*
 * Memory of one compilation or one model: many small pieces that die together. Every piece is zeroed; there
 * is no giving back of single pieces, so error paths have nothing to unwind but the arena.
 *
 * Threads: one arena, one thread.
 */
#ifndef CKKS_COMPILE_ARENA_H
#define CKKS_COMPILE_ARENA_H

#include <stddef.h>
#include <stdint.h>

typedef struct arena {
    struct arena_chunk *first, *current;
    uint64_t bytes_taken; /* since the last reset */
    uint64_t bytes_max;   /* 0 = no limit of its own */
} arena;

/* arena_take returns zeroed memory for `count` pieces of `size` bytes, 16-byte aligned; never NULL for a
 * count of zero. NULL: out of memory, over bytes_max, or the product does not fit. */
void *arena_take(arena *a, uint64_t count, uint64_t size);
/* arena_text copies a string; arena_format prints into the arena. NULL when out of memory. */
char *arena_text(arena *a, const char *text);
char *arena_format(arena *a, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* arena_reset forgets all pieces and keeps the memory for the next ones. */
void arena_reset(arena *a);
/* arena_fini gives everything back. Accepts zeroed. */
void arena_fini(arena *a);

#endif
