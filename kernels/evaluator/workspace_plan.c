/*
 * The planner. A replay may run recorded nodes in any order that their dependencies allow, so "used earlier"
 * is not enough to reuse memory: buffer B may take the place of A only if every node that touches A is an
 * ancestor of every node that touches B. Ancestors are bitsets, one row per node; which pairs of buffers
 * interfere is a bitset too. Offsets come from first fit, tried in order of decreasing size and in order of
 * first use; the smaller arena wins.
 */
#include "kernels/base/bytes.h"
#include "kernels/evaluator/workspace_internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct plan_buffer {
    uint64_t bytes, offset;
} plan_buffer;

struct workspace_plan {
    plan_buffer *buffers;
    uint32_t buffer_count;
    uint64_t bytes, bytes_live;
};

/* Which nodes touch which buffer: users[first[b] .. first[b + 1]), ascending, without repeats. */
typedef struct user_lists {
    uint32_t *first;
    uint32_t *users;
} user_lists;

typedef struct planner {
    const workspace_buffer *buffers;
    const graph_node *const *nodes;
    uint32_t buffer_count, node_count;
    uint64_t *ancestors;  /* [node_count][node_words], without the node itself */
    uint64_t *interferes; /* [buffer_count][buffer_words], symmetric */
    size_t node_words, buffer_words;
    user_lists lists;
    uint32_t *order;   /* [buffer_count] */
    uint32_t *blocked; /* [buffer_count] placed buffers that the next one may not overlap */
    uint64_t *offset;  /* [buffer_count] */
} planner;

static bool bit_get(const uint64_t *bits, uint32_t index) {
    return bits[index / 64] >> (index % 64) & 1;
}
static void bit_set(uint64_t *bits, uint32_t index) {
    bits[index / 64] |= UINT64_C(1) << (index % 64);
}

static void planner_fini(planner *p) {
    free(p->ancestors);
    free(p->interferes);
    free(p->lists.first);
    free(p->lists.users);
    free(p->order);
    free(p->blocked);
    free(p->offset);
}

static bool planner_allocate(planner *p) {
    const size_t buffers = p->buffer_count;
    p->node_words = (p->node_count + 63) / 64;
    p->buffer_words = (buffers + 63) / 64;
    p->ancestors = calloc(p->node_count * p->node_words + 1, sizeof *p->ancestors);
    p->interferes = calloc(buffers * p->buffer_words + 1, sizeof *p->interferes);
    p->lists.first = calloc(buffers + 2, sizeof *p->lists.first);
    p->order = calloc(buffers + 1, sizeof *p->order);
    p->blocked = calloc(buffers + 1, sizeof *p->blocked);
    p->offset = calloc(buffers + 1, sizeof *p->offset);
    return p->ancestors && p->interferes && p->lists.first && p->order && p->blocked && p->offset;
}

static ckks_status find_ancestors(planner *p, ckks_error *err) {
    for (uint32_t i = 0; i < p->node_count; i++) {
        uint64_t *row = p->ancestors + i * p->node_words;
        for (uint32_t d = 0; d < p->nodes[i]->dependency_count; d++) {
            const uint32_t from = p->nodes[i]->dependencies[d];
            if (from >= i)
                return ckks_error_set(err, CKKS_INTERNAL, "graph", "node %u depends on node %u", i, from);
            const uint64_t *above = p->ancestors + from * p->node_words;
            for (size_t w = 0; w < p->node_words; w++) row[w] |= above[w];
            bit_set(row, from);
        }
    }
    return CKKS_OK;
}

/* the first buffer that ends after `address` */
static uint32_t buffer_from(const planner *p, uint64_t address) {
    uint32_t low = 0;
    for (uint32_t high = p->buffer_count; low < high;) {
        const uint32_t middle = low + (high - low) / 2;
        if (p->buffers[middle].address + p->buffers[middle].bytes <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Calls that one node makes on buffers, each buffer once: marks[buffer] = node + 1 where seen. `fill` NULL
 * counts only. */
static void visit_users(planner *p, uint32_t *marks, uint32_t *fill) {
    for (uint32_t i = 0; i < p->node_count; i++)
        for (uint32_t k = 0; k < p->nodes[i]->access_count; k++) {
            const kernel_access *access = &p->nodes[i]->accesses[k];
            const uint64_t begin = (uintptr_t)access->address, end = begin + access->bytes;
            for (uint32_t b = buffer_from(p, begin); b < p->buffer_count && p->buffers[b].address < end;
                 b++) {
                if (marks[b] == i + 1) continue;
                marks[b] = i + 1;
                if (fill)
                    p->lists.users[fill[b]++] = i;
                else
                    p->lists.first[b + 1]++;
            }
        }
}

static ckks_status find_users(planner *p, ckks_error *err) {
    uint32_t *marks = p->order, *fill = p->blocked; /* both free until placement */
    visit_users(p, marks, NULL);
    for (uint32_t b = 0; b < p->buffer_count; b++) p->lists.first[b + 1] += p->lists.first[b];
    p->lists.users = calloc((size_t)p->lists.first[p->buffer_count] + 1, sizeof *p->lists.users);
    if (!p->lists.users) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "workspace", "no memory");
    memset(marks, 0, p->buffer_count * sizeof *marks);
    memcpy(fill, p->lists.first, p->buffer_count * sizeof *fill);
    visit_users(p, marks, fill);
    return CKKS_OK;
}

/* every access of a, and its release, before every access of b? */
static bool is_before(const planner *p, uint32_t a, uint32_t b) {
    if (p->buffers[a].parts_held) return false;
    const uint32_t *first = p->lists.first, *users = p->lists.users;
    for (uint32_t j = first[b]; j < first[b + 1]; j++) {
        const uint64_t *row = p->ancestors + users[j] * p->node_words;
        for (uint32_t i = first[a]; i < first[a + 1]; i++)
            if (users[i] >= users[j] || !bit_get(row, users[i])) return false;
    }
    return true;
}

/* A buffer that no node touches has no content to lose, unless it is held as a result. */
static void find_interference(planner *p) {
    for (uint32_t a = 0; a < p->buffer_count; a++)
        for (uint32_t b = a + 1; b < p->buffer_count; b++) {
            if (is_before(p, a, b) || is_before(p, b, a)) continue;
            bit_set(p->interferes + a * p->buffer_words, b);
            bit_set(p->interferes + b * p->buffer_words, a);
        }
}

/* lowest offset at which a buffer of `bytes` fits beside the blocked ones, which are sorted by offset */
static uint64_t fit(const planner *p, uint64_t bytes, uint32_t blocked_count) {
    uint64_t at = 0;
    for (uint32_t i = 0; i < blocked_count; i++) {
        const uint64_t begin = p->offset[p->blocked[i]];
        if (begin >= at && begin - at >= bytes) return at;
        const uint64_t end = begin + p->buffers[p->blocked[i]].bytes;
        if (end > at) at = end;
    }
    return at;
}

/* first fit in p->order; arena bytes */
static uint64_t place(planner *p) {
    uint64_t top = 0;
    for (uint32_t k = 0; k < p->buffer_count; k++) {
        const uint32_t b = p->order[k];
        uint32_t count = 0;
        for (uint32_t i = 0; i < k; i++) {
            const uint32_t other = p->order[i];
            if (!bit_get(p->interferes + b * p->buffer_words, other)) continue;
            uint32_t at = count++; /* insertion keeps them sorted */
            for (; at && p->offset[p->blocked[at - 1]] > p->offset[other]; at--)
                p->blocked[at] = p->blocked[at - 1];
            p->blocked[at] = other;
        }
        p->offset[b] = fit(p, p->buffers[b].bytes, count);
        if (p->offset[b] + p->buffers[b].bytes > top) top = p->offset[b] + p->buffers[b].bytes;
    }
    return top;
}

static void order_by_acquire(planner *p) {
    for (uint32_t b = 0; b < p->buffer_count; b++) p->order[b] = b;
}

static int compare_size(const void *left, const void *right, void *context) {
    const planner *p = context;
    const uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    if (p->buffers[a].bytes != p->buffers[b].bytes) return p->buffers[a].bytes < p->buffers[b].bytes ? 1 : -1;
    return a < b ? -1 : a > b;
}

/* keeps the placement in p->offset */
static void keep(workspace_plan *plan, const planner *p, uint64_t bytes) {
    if (plan->bytes_live && bytes >= plan->bytes) return;
    plan->bytes = bytes;
    plan->bytes_live = 0;
    for (uint32_t b = 0; b < p->buffer_count; b++) {
        plan->buffers[b] = (plan_buffer){p->buffers[b].bytes, p->offset[b]};
        plan->bytes_live += p->buffers[b].bytes;
    }
}

ckks_status workspace_plan_from_nodes(workspace_plan **out, const workspace_buffer *buffers,
                                      uint32_t buffer_count, const graph_node *const *nodes,
                                      uint32_t node_count, ckks_error *err) {
    ckks_status rc;
    planner p = {.buffers = buffers, .nodes = nodes, .buffer_count = buffer_count, .node_count = node_count};
    workspace_plan *plan = calloc(1, sizeof *plan);
    if (plan) plan->buffers = calloc((size_t)buffer_count + 1, sizeof *plan->buffers);
    if (!plan || !plan->buffers || !planner_allocate(&p)) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "workspace", "no memory to plan %u buffers",
                            buffer_count);
        goto out;
    }
    plan->buffer_count = buffer_count;
    if ((rc = find_ancestors(&p, err)) != CKKS_OK) goto out;
    if ((rc = find_users(&p, err)) != CKKS_OK) goto out;
    find_interference(&p);
    order_by_acquire(&p);
    keep(plan, &p, place(&p));
    qsort_r(p.order, buffer_count, sizeof *p.order, compare_size, &p);
    keep(plan, &p, place(&p));
    *out = plan, plan = NULL;
out:
    planner_fini(&p);
    workspace_plan_destroy(plan);
    return rc;
}

ckks_status workspace_plan_create(workspace_plan **out, const workspace *planning, const device_graph *graph,
                                  ckks_error *err) {
    uint32_t buffer_count = 0;
    const uint32_t node_count = device_graph_node_count(graph);
    const workspace_buffer *buffers = workspace_buffers(planning, &buffer_count);
    if (node_count > WORKSPACE_NODES_MAX)
        return ckks_error_set(err, CKKS_TOO_LARGE, "graph", "%u launches; at most %u can be planned",
                              node_count, WORKSPACE_NODES_MAX);
    const graph_node **nodes = calloc((size_t)node_count + 1, sizeof(void *));
    if (!nodes) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "workspace", "no memory");
    for (uint32_t i = 0; i < node_count; i++) nodes[i] = device_graph_node(graph, i);
    const ckks_status rc = workspace_plan_from_nodes(out, buffers, buffer_count, nodes, node_count, err);
    free((void *)nodes);
    return rc;
}

void workspace_plan_destroy(workspace_plan *plan) {
    if (!plan) return;
    free(plan->buffers);
    free(plan);
}
uint64_t workspace_plan_bytes(const workspace_plan *plan) {
    return plan->bytes;
}
uint64_t workspace_plan_bytes_live(const workspace_plan *plan) {
    return plan->bytes_live;
}
uint32_t workspace_plan_buffer_count(const workspace_plan *plan) {
    return plan->buffer_count;
}
void workspace_plan_buffer(const workspace_plan *plan, uint32_t index, uint64_t *offset, uint64_t *bytes) {
    CKKS_ASSERT(index < plan->buffer_count);
    *offset = plan->buffers[index].offset;
    *bytes = plan->buffers[index].bytes;
}
