#include "kernels/evaluator/workspace.h"

#include "kernels/base/bytes.h"
#include "kernels/evaluator/workspace_internal.h"

#include <stdlib.h>
#include <string.h>

/* Above every address that a process can own, so that no buffer of the program is mistaken for a planned one.
 */
#define VIRTUAL_BASE UINT64_C(0x4000000000000000)
#define VIRTUAL_END  UINT64_C(0x5000000000000000)

struct workspace {
    /* planning */
    bool is_planning;
    workspace_buffer *buffers;
    uint32_t buffer_count, buffer_capacity;
    uint64_t next; /* virtual address */
    /* fixed */
    const workspace_plan *plan;
    uint8_t *base;
    uint32_t cursor;
};

ckks_status workspace_create_planning(workspace **out, ckks_error *err) {
    workspace *ws = calloc(1, sizeof *ws);
    if (!ws) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "workspace", "no memory");
    ws->is_planning = true;
    ws->next = VIRTUAL_BASE;
    *out = ws;
    return CKKS_OK;
}

ckks_status workspace_create_fixed(workspace **out, const workspace_plan *plan, void *base, ckks_error *err) {
    if ((uintptr_t)base % VALUE_ALIGNMENT || (!base && workspace_plan_bytes(plan)))
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "base",
                              "the arena is missing or not aligned to %u bytes", VALUE_ALIGNMENT);
    workspace *ws = calloc(1, sizeof *ws);
    if (!ws) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "workspace", "no memory");
    ws->plan = plan;
    ws->base = base;
    *out = ws;
    return CKKS_OK;
}

void workspace_destroy(workspace *ws) {
    if (!ws) return;
    free(ws->buffers);
    free(ws);
}

static ckks_status buffers_grow(workspace *ws, ckks_error *err) {
    if (ws->buffer_count < ws->buffer_capacity) return CKKS_OK;
    if (ws->buffer_count >= WORKSPACE_BUFFERS_MAX)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "workspace", "more than %u buffers",
                              WORKSPACE_BUFFERS_MAX);
    const uint32_t capacity = ws->buffer_capacity ? 2 * ws->buffer_capacity : 64;
    workspace_buffer *grown = realloc(ws->buffers, capacity * sizeof *grown);
    if (!grown) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "workspace", "no memory");
    ws->buffers = grown;
    ws->buffer_capacity = capacity;
    return CKKS_OK;
}

static ckks_status acquire_planning(workspace *ws, void **out, uint64_t part_bytes, uint32_t part_count,
                                    uint64_t bytes, ckks_error *err) {
    if (bytes > VIRTUAL_END - ws->next)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "workspace", "planned addresses are used up");
    const ckks_status rc = buffers_grow(ws, err);
    if (rc != CKKS_OK) return rc;
    ws->buffers[ws->buffer_count++] = (workspace_buffer){ws->next, bytes, part_bytes, part_count};
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address that nothing dereferences
    *out = (void *)(uintptr_t)ws->next;
    ws->next += bytes;
    return CKKS_OK;
}

static ckks_status acquire_fixed(workspace *ws, void **out, uint64_t bytes, ckks_error *err) {
    uint64_t offset = 0, planned = 0;
    if (ws->cursor >= workspace_plan_buffer_count(ws->plan))
        return ckks_error_set(err, CKKS_RECORDING_VIOLATION, "workspace", "acquire %u: the plan has only %u",
                              ws->cursor, workspace_plan_buffer_count(ws->plan));
    workspace_plan_buffer(ws->plan, ws->cursor, &offset, &planned);
    if (planned != bytes)
        return ckks_error_set(err, CKKS_RECORDING_VIOLATION, "workspace",
                              "acquire %u: %llu bytes where %llu were planned", ws->cursor,
                              (unsigned long long)bytes, (unsigned long long)planned);
    ws->cursor++;
    *out = ws->base + offset;
    return CKKS_OK;
}

ckks_status workspace_acquire_parts(workspace *ws, void **out, uint64_t part_bytes, uint32_t part_count,
                                    ckks_error *err) {
    uint64_t bytes = 0;
    *out = NULL;
    if (!part_count || !part_bytes || part_bytes % VALUE_ALIGNMENT)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "part_bytes", "%u parts of %llu bytes", part_count,
                              (unsigned long long)part_bytes);
    if (!size_multiply(&bytes, part_bytes, part_count) || bytes > VIRTUAL_END - VIRTUAL_BASE)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "workspace", "%u parts of %llu bytes", part_count,
                              (unsigned long long)part_bytes);
    return ws->is_planning ? acquire_planning(ws, out, part_bytes, part_count, bytes, err)
                           : acquire_fixed(ws, out, bytes, err);
}

ckks_status workspace_acquire(workspace *ws, void **out, uint64_t bytes, ckks_error *err) {
    *out = NULL;
    if (!bytes || bytes > VIRTUAL_END - VIRTUAL_BASE)
        return ckks_error_set(err, bytes ? CKKS_RESOURCE_EXHAUSTED : CKKS_INVALID_ARGUMENT, "bytes",
                              "a buffer of %llu bytes", (unsigned long long)bytes);
    return workspace_acquire_parts(ws, out, align_up(bytes, VALUE_ALIGNMENT), 1, err);
}

/* the buffer that holds `address`; buffers are in ascending order. NULL if none does */
static workspace_buffer *buffer_find(const workspace *ws, uint64_t address) {
    uint32_t low = 0;
    for (uint32_t high = ws->buffer_count; low < high;) {
        const uint32_t middle = low + (high - low) / 2;
        if (ws->buffers[middle].address + ws->buffers[middle].bytes <= address)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == ws->buffer_count || ws->buffers[low].address > address) return NULL;
    return &ws->buffers[low];
}

void workspace_release(workspace *ws, void *address) {
    if (!address || !ws->is_planning) return;
    if ((uintptr_t)address < VIRTUAL_BASE || (uintptr_t)address >= VIRTUAL_END) return;
    workspace_buffer *buffer = buffer_find(ws, (uintptr_t)address);
    CKKS_ASSERT(buffer && ((uintptr_t)address - buffer->address) % buffer->part_bytes == 0);
    CKKS_ASSERT(buffer->parts_held > 0);
    buffer->parts_held--;
}

void workspace_rewind(workspace *ws) {
    ws->cursor = 0;
}

const workspace_buffer *workspace_buffers(const workspace *ws, uint32_t *count) {
    CKKS_ASSERT(ws->is_planning);
    *count = ws->buffer_count;
    return ws->buffers;
}
