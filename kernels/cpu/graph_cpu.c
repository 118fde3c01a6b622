/*
 * Replay of recorded graphs. Recorded order is one valid order; adversarial mode draws another one for each
 * replay, since a GPU overlaps whatever nothing orders: every fourth replay runs the latest-recorded ready
 * node first (as far from the recorded order as dependencies allow), the others pick among the ready nodes at
 * random.
 */
#include "kernels/cpu/device_cpu.h"

#include <stdlib.h>

static ckks_status fill_successors(cpu_graph *g, ckks_error *err) {
    uint64_t edges = 0;
    for (uint32_t i = 0; i < g->count; i++) edges += g->nodes[i].dependency_count;
    if (edges > UINT32_MAX) {
        ckks_error_set(err, CKKS_TOO_LARGE, "graph", "%llu dependencies", (unsigned long long)edges);
        return CKKS_TOO_LARGE;
    }
    g->kernels = calloc((size_t)g->count + 1, sizeof(cpu_kernel));
    g->successor_begin = calloc((size_t)g->count + 2, sizeof *g->successor_begin);
    g->successors = malloc((edges + 1) * sizeof *g->successors);
    if (!g->kernels || !g->successor_begin || !g->successors) {
        ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "graph", "out of memory");
        return CKKS_RESOURCE_EXHAUSTED;
    }
    for (uint32_t i = 0; i < g->count; i++)
        for (uint32_t k = 0; k < g->nodes[i].dependency_count; k++)
            g->successor_begin[g->nodes[i].dependencies[k] + 2]++;
    for (uint32_t i = 0; i < g->count; i++) g->successor_begin[i + 2] += g->successor_begin[i + 1];
    for (uint32_t i = 0; i < g->count; i++)
        for (uint32_t k = 0; k < g->nodes[i].dependency_count; k++)
            g->successors[g->successor_begin[g->nodes[i].dependencies[k] + 1]++] = i;
    return CKKS_OK;
}

ckks_status cpu_graph_create(void *self, void **graph, const device_operation *operations,
                             const graph_node *nodes, uint32_t count, ckks_error *err) {
    ckks_status rc;
    int made = 0;
    cpu_graph *g = calloc(1, sizeof *g);
    if (!g) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "graph", "out of memory");
    g->dev = self;
    g->operations = operations;
    g->nodes = nodes;
    g->count = count;
    if ((rc = fill_successors(g, err)) != CKKS_OK) goto fail;
    for (uint32_t i = 0; i < count; i++)
        if (nodes[i].kind == GRAPH_NODE_KERNEL)
            g->kernels[i] = cpu_kernel_find(nodes[i].kernel, g->dev->isa, NULL);
    rc = CKKS_RESOURCE_EXHAUSTED;
    if (cpu_mutex_init(&g->lock) != 0) goto fail;
    made++;
    if (cpu_cond_init(&g->idle) != 0) goto fail;
    *graph = g;
    return CKKS_OK;
fail:
    ckks_error_set(err, rc, "graph", "no lock");
    if (made > 0) pthread_mutex_destroy(&g->lock);
    free(g->kernels);
    free(g->successor_begin);
    free(g->successors);
    free(g);
    return rc;
}

void cpu_graph_destroy(void *graph) {
    cpu_graph *g = graph;
    pthread_mutex_lock(&g->lock);
    while (g->pending > 0) pthread_cond_wait(&g->idle, &g->lock);
    pthread_mutex_unlock(&g->lock);
    pthread_cond_destroy(&g->idle);
    pthread_mutex_destroy(&g->lock);
    free(g->kernels);
    free(g->successor_begin);
    free(g->successors);
    free(g);
}

void cpu_graph_finished(cpu_graph *graph) {
    pthread_mutex_lock(&graph->lock);
    graph->pending--;
    pthread_cond_broadcast(&graph->idle);
    pthread_mutex_unlock(&graph->lock);
}

void cpu_graph_run(const cpu_graph *graph, const uint32_t *order) {
    for (uint32_t i = 0; i < graph->count; i++) {
        const uint32_t node = order ? order[i] : i;
        cpu_operation_run(graph->dev, &graph->operations[node], graph->kernels[node]);
    }
}

/* SplitMix64 (Steele, Lea, Flood 2014): order needs variety, not secrecy */
static uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint32_t pick(const uint32_t *ready, uint32_t count, bool latest_first, uint64_t *state) {
    if (!latest_first) return (uint32_t)(next_random(state) % count);
    uint32_t best = 0;
    for (uint32_t i = 1; i < count; i++)
        if (ready[i] > ready[best]) best = i;
    return best;
}

/* order[count] that respects every dependency */
static bool draw_order(uint32_t *order, const cpu_graph *g, uint64_t seed, uint64_t replay) {
    uint64_t state = seed ^ (replay * 0xd1342543de82ef95u);
    uint32_t ready_count = 0, done = 0;
    uint32_t *waiting = malloc(2 * ((size_t)g->count + 1) * sizeof *waiting);
    if (!waiting) return false;
    uint32_t *ready = waiting + g->count;
    for (uint32_t i = 0; i < g->count; i++) {
        waiting[i] = g->nodes[i].dependency_count;
        if (waiting[i] == 0) ready[ready_count++] = i;
    }
    while (ready_count > 0) {
        const uint32_t at = pick(ready, ready_count, replay % 4 == 0, &state), node = ready[at];
        ready[at] = ready[--ready_count];
        order[done++] = node;
        for (uint32_t k = g->successor_begin[node]; k < g->successor_begin[node + 1]; k++)
            if (--waiting[g->successors[k]] == 0) ready[ready_count++] = g->successors[k];
    }
    CKKS_ASSERT(done == g->count);
    free(waiting);
    return true;
}

ckks_status cpu_graph_replay(void *graph, void *stream, ckks_error *err) {
    cpu_graph *g = graph;
    const uint64_t seed = atomic_load(&g->dev->adversarial_seed);
    uint32_t *order = NULL;
    if (seed) {
        order = malloc(((size_t)g->count + 1) * sizeof *order);
        if (!order || !draw_order(order, g, seed, atomic_fetch_add(&g->dev->adversarial_replays, 1))) {
            free(order);
            return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "graph", "out of memory");
        }
    }
    return cpu_stream_replay(stream, g, order, err);
}
