/*
 * protobuf-c has no memory budget and keeps whatever fields it does not know. Messages are therefore parsed
 * out of one block of fixed size, zeroed as far as it is used, which is also all there is to free (and to
 * wipe: a token may be in it), and a message with more than a few unknown fields is refused. No message type
 * of ours contains itself, so the walk below is as deep as the schema.
 */
#include "proto/package.h"

#include "kernels/base/bytes.h"

#include <stdlib.h>
#include <string.h>

#define UNKNOWN_FIELDS_MAX 4u
#define ARENA_PER_BYTE     32u
#define ARENA_AT_LEAST     (64u << 10)
#define ARENA_MAGIC        UINT64_C(0x636b6b7361726e61)

/* Stands right before the message, which is the first thing that the parser allocates. */
typedef struct message_arena {
    uint64_t magic;
    uint8_t *memory;
    size_t used, capacity;
    bool is_exhausted;
    ProtobufCAllocator allocator;
} __attribute__((aligned(16))) message_arena;

static void *arena_allocate(void *data, size_t size) {
    message_arena *arena = data;
    if (size > arena->capacity - arena->used) {
        arena->is_exhausted = true;
        return NULL;
    }
    void *at = arena->memory + arena->used;
    const size_t rounded = (size_t)align_up(size ? size : 1, 16);
    arena->used = rounded > arena->capacity - arena->used ? arena->capacity : arena->used + rounded;
    memset(at, 0,
           (size_t)(arena->memory + arena->used - (uint8_t *)at)); /* what is not used need not be cleared */
    return at;
}
static void arena_free(void *data, void *at) {
    (void)data, (void)at; /* the block goes as a whole */
}

static void arena_destroy(message_arena *arena) {
    if (arena) explicit_bzero(arena->memory, arena->used);
    free(arena);
}

static uint64_t count_unknown(const ProtobufCMessage *message);

/* One field of message type: absent, one, or many. */
static uint64_t count_unknown_field(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field) {
    const uint8_t *base = (const uint8_t *)message;
    uint64_t total = 0;
    if (field->label == PROTOBUF_C_LABEL_REPEATED) {
        size_t count;
        ProtobufCMessage *const *items;
        memcpy(&count, base + field->quantifier_offset, sizeof count);
        memcpy(&items, base + field->offset, sizeof(void *));
        for (size_t i = 0; i < count; i++) total += count_unknown(items[i]);
    } else {
        const ProtobufCMessage *item;
        memcpy(&item, base + field->offset, sizeof(void *));
        if (item) total = count_unknown(item);
    }
    return total;
}

static uint64_t count_unknown(const ProtobufCMessage *message) {
    uint64_t total = message->n_unknown_fields;
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        if (field->type == PROTOBUF_C_TYPE_MESSAGE) total += count_unknown_field(message, field);
    }
    return total;
}

ckks_status message_unpack(ProtobufCMessage **out, const ProtobufCMessageDescriptor *descriptor,
                           const void *bytes, size_t size, size_t arena_bytes, const char *what,
                           ckks_error *err) {
    ckks_status rc = CKKS_OK;
    message_arena *arena = NULL;
    uint64_t block_bytes;
    *out = NULL;
    if (!size_add(&block_bytes, arena_bytes, sizeof *arena) || !(arena = malloc(block_bytes)))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, what, "no memory to parse %s", what);
    *arena = (message_arena){.magic = ARENA_MAGIC};
    arena->memory = (uint8_t *)(arena + 1);
    arena->capacity = arena_bytes;
    arena->allocator = (ProtobufCAllocator){arena_allocate, arena_free, arena};

    ProtobufCMessage *message = protobuf_c_message_unpack(descriptor, &arena->allocator, size, bytes);
    if (arena->is_exhausted) {
        rc = ckks_error_set(err, CKKS_TOO_LARGE, what, "%s needs more than %zu bytes when parsed", what,
                            arena_bytes);
    } else if (!message) {
        rc = ckks_error_set(err, CKKS_MALFORMED, what, "%s of %zu bytes is not a valid %s message", what,
                            size, descriptor->short_name);
    } else if (count_unknown(message) > UNKNOWN_FIELDS_MAX) {
        rc = ckks_error_set(err, CKKS_MALFORMED, what, "%s has more than %u unknown fields", what,
                            UNKNOWN_FIELDS_MAX);
    } else {
        CKKS_ASSERT((uint8_t *)message == arena->memory);
        *out = message;
        arena = NULL;
    }
    arena_destroy(arena);
    return rc;
}

void message_free(ProtobufCMessage *message) {
    if (!message) return;
    message_arena *arena = (message_arena *)(void *)((uint8_t *)message - sizeof *arena);
    CKKS_ASSERT(arena->magic == ARENA_MAGIC);
    arena->magic = 0;
    arena_destroy(arena);
}

size_t message_arena_bytes(size_t size, size_t arena_bytes_max) {
    uint64_t bytes;
    if (!size_multiply(&bytes, size, ARENA_PER_BYTE) || !size_add(&bytes, bytes, ARENA_AT_LEAST) ||
        bytes > arena_bytes_max)
        return arena_bytes_max;
    return bytes;
}
