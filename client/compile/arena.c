#include "client/compile/arena.h"

#include "kernels/base/bytes.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define ARENA_CHUNK_BYTES (64u << 10)

typedef struct arena_chunk {
    struct arena_chunk *next;
    uint64_t capacity, used;
    _Alignas(16) uint8_t bytes[];
} arena_chunk;

static arena_chunk *chunk_create(uint64_t bytes) {
    const uint64_t capacity = bytes > ARENA_CHUNK_BYTES ? bytes : ARENA_CHUNK_BYTES;
    arena_chunk *chunk = malloc(sizeof *chunk + capacity);
    if (!chunk) return NULL;
    chunk->next = NULL;
    chunk->capacity = capacity;
    chunk->used = 0;
    return chunk;
}

void *arena_take(arena *a, uint64_t count, uint64_t size) {
    uint64_t bytes;
    if (!size_multiply(&bytes, count, size) || bytes > UINT64_MAX / 4) return NULL;
    bytes = align_up(bytes ? bytes : 1, 16);
    if (a->bytes_max && bytes > a->bytes_max - a->bytes_taken) return NULL;
    while (a->current && a->current->capacity - a->current->used < bytes && a->current->next)
        a->current = a->current->next;
    if (!a->current || a->current->capacity - a->current->used < bytes) {
        arena_chunk *chunk = chunk_create(bytes);
        if (!chunk) return NULL;
        if (a->current)
            a->current->next = chunk;
        else
            a->first = chunk;
        a->current = chunk;
    }
    void *piece = a->current->bytes + a->current->used;
    a->current->used += bytes;
    a->bytes_taken += bytes;
    memset(piece, 0, bytes);
    return piece;
}

char *arena_text(arena *a, const char *text) {
    const size_t bytes = strlen(text) + 1;
    char *copy = arena_take(a, bytes, 1);
    if (copy) memcpy(copy, text, bytes);
    return copy;
}

char *arena_format(arena *a, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    va_list again;
    va_copy(again, arguments);
    const int length = vsnprintf(NULL, 0, format, arguments);
    char *text = length < 0 ? NULL : arena_take(a, (uint64_t)length + 1, 1);
    if (text) vsnprintf(text, (size_t)length + 1, format, again);
    va_end(again);
    va_end(arguments);
    return text;
}

void arena_reset(arena *a) {
    for (arena_chunk *chunk = a->first; chunk; chunk = chunk->next) chunk->used = 0;
    a->current = a->first;
    a->bytes_taken = 0;
}

void arena_fini(arena *a) {
    for (arena_chunk *chunk = a->first; chunk;) {
        arena_chunk *next = chunk->next;
        free(chunk);
        chunk = next;
    }
    *a = (arena){0};
}
