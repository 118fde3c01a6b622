/*
 * Recording: operations with the operations they wait for, and the check that what nothing orders does not
 * meet in memory.
 *
 * Order between nodes is decided with one number per (node, timeline): a timeline is one stream's chain of
 * nodes, which is totally ordered, so "everything of timeline t up to node i comes before me" says it all.
 * Reachability is one comparison, and the race check keeps, per piece of memory and timeline, only the latest
 * read and write.
 */
#include "kernels/device_internal.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* ---- fronts ---- */

void front_fini(front *f) {
    free(f->node);
    *f = (front){0};
}

static bool front_reserve(front *f, uint32_t count) {
    if (count <= f->capacity) return true;
    uint32_t *grown = realloc(f->node, count * sizeof *grown);
    if (!grown) return false;
    f->node = grown;
    f->capacity = count;
    return true;
}

static bool front_copy(front *to, const front *from) {
    if (!front_reserve(to, from->count)) return false;
    if (from->count) memcpy(to->node, from->node, from->count * sizeof *to->node);
    to->count = from->count;
    return true;
}

static bool front_merge(front *to, const front *from) {
    if (!front_reserve(to, to->count + from->count)) return false;
    for (uint32_t i = 0; i < from->count; i++) {
        uint32_t at = to->count;
        while (at > 0 && to->node[at - 1] > from->node[i]) at--;
        if (at > 0 && to->node[at - 1] == from->node[i]) continue;
        memmove(&to->node[at + 1], &to->node[at], (to->count - at) * sizeof *to->node);
        to->node[at] = from->node[i];
        to->count++;
    }
    return true;
}

/* ---- the recording ---- */

ckks_status recording_poison(recording *r, const ckks_error *cause) {
    return ckks_error_set(&r->error, cause->code, cause->field, "%s", cause->message);
}

/* first cause to the recording and to the caller */
static ckks_status spoil(recording *r, ckks_error *err, ckks_status code, const char *field,
                         const char *what) {
    ckks_error cause = {0};
    ckks_error_set(&cause, code, field, "%s", what);
    if (r) recording_poison(r, &cause);
    return ckks_error_set(err, code, field, "%s", what);
}
static ckks_status out_of_memory(recording *r, ckks_error *err) {
    return spoil(r, err, CKKS_RESOURCE_EXHAUSTED, "recording", "out of memory");
}
static ckks_status report(const recording *r, ckks_error *err) {
    return ckks_error_set(err, r->error.code, r->error.field, "%s", r->error.message);
}

static void join(recording *r, device_stream *stream) {
    stream->recording = r;
    stream->timeline = r->stream_count++;
    stream->front.count = 0;
    stream->next_joined = r->streams;
    r->streams = stream;
}

static void node_fini(recorded_node *n) {
    free((void *)(uintptr_t)n->operation.arguments);
    free((void *)(uintptr_t)n->node.accesses);
    free((void *)(uintptr_t)n->node.dependencies);
}

/* gives the streams back and frees everything that was not moved into a graph */
static void recording_destroy(recording *r) {
    if (!r) return;
    for (device_stream *s = r->streams, *next; s; s = next) {
        next = s->next_joined;
        s->recording = NULL;
        s->next_joined = NULL;
        s->front.count = 0;
    }
    pthread_mutex_lock(&r->dev->lock);
    recording **at = &r->dev->recordings;
    while (*at != r) at = &(*at)->next;
    *at = r->next;
    pthread_mutex_unlock(&r->dev->lock);
    for (uint32_t i = 0; i < r->node_count; i++) node_fini(&r->nodes[i]);
    free(r->nodes);
    free(r);
}

static ckks_status record_begin(device_stream *stream, bool is_planning, ckks_error *err) {
    static _Atomic uint64_t last_serial;
    ckks_status rc;
    device *dev = stream->dev;
    if (stream->recording)
        return spoil(stream->recording, err, CKKS_RECORDING_VIOLATION, "stream", "is recording already");
    if ((rc = device_call(dev, CALL_OTHER, NULL, err)) != CKKS_OK) return rc;
    recording *r = calloc(1, sizeof *r);
    if (!r) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "recording", "out of memory");
    r->dev = dev;
    r->serial = atomic_fetch_add(&last_serial, 1) + 1;
    r->thread = pthread_self();
    r->is_planning = is_planning;
    r->origin = stream;
    join(r, stream);
    pthread_mutex_lock(&dev->lock);
    r->next = dev->recordings;
    dev->recordings = r;
    dev->recordings_begun++;
    pthread_mutex_unlock(&dev->lock);
    return CKKS_OK;
}

ckks_status device_record_begin(device_stream *stream, ckks_error *err) {
    return record_begin(stream, false, err);
}
ckks_status device_record_begin_planning(device_stream *stream, ckks_error *err) {
    return record_begin(stream, true, err);
}
bool device_is_recording(const device_stream *stream) {
    return stream->recording != NULL;
}
uint64_t device_recordings(const device *dev) {
    pthread_mutex_t *lock = &((device *)(uintptr_t)dev)->lock; /* no part of what is observed */
    pthread_mutex_lock(lock);
    const uint64_t begun = dev->recordings_begun;
    pthread_mutex_unlock(lock);
    return begun;
}
void device_record_abort(device_stream *stream) {
    recording_destroy(stream->recording);
}
void recording_forget_stream(device_stream *stream) {
    recording_destroy(stream->recording);
}

/* NULL when out of memory; an empty copy is one unused byte, so that NULL says one thing */
static void *duplicate(const void *from, size_t size) {
    void *copy = malloc(size ? size : 1);
    if (copy && size) memcpy(copy, from, size);
    return copy;
}

ckks_status recording_append(device_stream *stream, const device_operation *operation,
                             const kernel_access *accesses, uint32_t access_count, ckks_error *err) {
    recording *r = stream->recording;
    if (r->error.code != CKKS_OK) return report(r, err);
    if (r->node_count == r->node_capacity) {
        const uint32_t capacity = r->node_capacity ? r->node_capacity * 2 : 64;
        recorded_node *grown = realloc(r->nodes, capacity * sizeof *grown);
        if (!grown) return out_of_memory(r, err);
        r->nodes = grown;
        r->node_capacity = capacity;
    }
    recorded_node n = {.operation = *operation, .timeline = stream->timeline};
    n.operation.arguments = NULL;
    n.node = (graph_node){
        .kind = operation->kind,
        .kernel = operation->kernel,
        .access_count = access_count,
        .accesses = duplicate(accesses, access_count * sizeof *accesses),
        .dependency_count = stream->front.count,
        .dependencies = duplicate(stream->front.node, stream->front.count * sizeof *stream->front.node)};
    if (operation->kind == GRAPH_NODE_KERNEL)
        n.operation.arguments = duplicate(operation->arguments, kernel_arguments_size(operation->kernel));
    if (!n.node.accesses || !n.node.dependencies || !front_reserve(&stream->front, 1) ||
        (operation->kind == GRAPH_NODE_KERNEL && !n.operation.arguments)) {
        node_fini(&n);
        return out_of_memory(r, err);
    }
    stream->front.node[0] = r->node_count;
    stream->front.count = 1;
    r->nodes[r->node_count++] = n;
    return CKKS_OK;
}

ckks_status recording_event_record(device_event *event, device_stream *stream, ckks_error *err) {
    recording *r = stream->recording;
    if (r->error.code != CKKS_OK) return report(r, err);
    if (!front_copy(&event->front, &stream->front)) return out_of_memory(r, err);
    event->recording_serial = r->serial;
    event->was_recorded = true;
    return CKKS_OK;
}

static recording *find_recording(device *dev, uint64_t serial) {
    pthread_mutex_lock(&dev->lock);
    recording *r = dev->recordings;
    while (r && r->serial != serial) r = r->next;
    pthread_mutex_unlock(&dev->lock);
    return r;
}

ckks_status recording_wait(device_stream *stream, device_event *event, ckks_error *err) {
    recording *r = stream->recording;
    if (r && r->error.code != CKKS_OK) return report(r, err);
    if (!event->was_recorded) return CKKS_OK;
    if (!event->recording_serial)
        return spoil(r, err, CKKS_RECORDING_VIOLATION, "event", "was recorded outside of this recording");
    recording *of_event = find_recording(stream->dev, event->recording_serial);
    if (!of_event)
        return spoil(r, err, CKKS_RECORDING_VIOLATION, "event", "was recorded into a graph that is finished");
    if (r && r != of_event)
        return spoil(r, err, CKKS_RECORDING_VIOLATION, "event", "was recorded into another recording");
    if (of_event->error.code != CKKS_OK) return report(of_event, err);
    if (!r) join(of_event, stream);
    if (!front_merge(&stream->front, &event->front)) return out_of_memory(of_event, err);
    return CKKS_OK;
}

/* ---- order and races ---- */

/* clock[node * timelines + t]: 1 + the highest node of timeline t at or before `node`; 0 = none */
static uint32_t *clocks_create(const recording *r) {
    const uint32_t width = r->stream_count;
    uint32_t *clock = calloc((size_t)r->node_count * width + 1, sizeof *clock);
    if (!clock) return NULL;
    for (uint32_t i = 0; i < r->node_count; i++) {
        uint32_t *mine = clock + (size_t)i * width;
        const graph_node *node = &r->nodes[i].node;
        for (uint32_t k = 0; k < node->dependency_count; k++) {
            const uint32_t *theirs = clock + (size_t)node->dependencies[k] * width;
            for (uint32_t t = 0; t < width; t++)
                if (theirs[t] > mine[t]) mine[t] = theirs[t];
        }
        mine[r->nodes[i].timeline] = i + 1;
    }
    return clock;
}

static ckks_status check_joined(const recording *r, const uint32_t *clock, ckks_error *err) {
    const front *end = &r->origin->front;
    for (const device_stream *s = r->streams; s; s = s->next_joined) {
        for (uint32_t i = 0; i < s->front.count; i++) {
            const uint32_t node = s->front.node[i], timeline = r->nodes[node].timeline;
            bool is_before_end = false;
            for (uint32_t k = 0; k < end->count; k++)
                is_before_end |= clock[(size_t)end->node[k] * r->stream_count + timeline] > node;
            if (!is_before_end)
                return ckks_error_set(err, CKKS_RECORDING_VIOLATION, "stream",
                                      "%u of %u recorded work that the first stream does not wait for",
                                      s->timeline, r->stream_count);
        }
    }
    return CKKS_OK;
}

static const char *node_name(const graph_node *node) {
    return node->kind == GRAPH_NODE_KERNEL ? kernel_name(node->kernel)
           : node->kind == GRAPH_NODE_COPY ? "copy"
                                           : "fill";
}

static int compare_addresses(const void *a, const void *b) {
    const uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;
    return x < y ? -1 : x > y;
}

/* every address where an access begins or ends, ascending, each once; NULL when out of memory */
static uintptr_t *collect_points(const recording *r, size_t *count) {
    size_t total = 0, unique = 0;
    for (uint32_t i = 0; i < r->node_count; i++) total += 2 * (size_t)r->nodes[i].node.access_count;
    uintptr_t *point = malloc((total + 1) * sizeof *point);
    if (!point) return NULL;
    for (uint32_t i = 0; i < r->node_count; i++) {
        const graph_node *node = &r->nodes[i].node;
        for (uint32_t k = 0; k < node->access_count; k++) {
            point[unique++] = (uintptr_t)node->accesses[k].address;
            point[unique++] = (uintptr_t)node->accesses[k].address + node->accesses[k].bytes;
        }
    }
    qsort(point, total, sizeof *point, compare_addresses);
    unique = 0;
    for (size_t i = 0; i < total; i++)
        if (unique == 0 || point[unique - 1] != point[i]) point[unique++] = point[i];
    *count = unique;
    return point;
}

static size_t find_point(const uintptr_t *point, size_t count, uintptr_t address) {
    return (size_t)((const uintptr_t *)bsearch(&address, point, count, sizeof *point, compare_addresses) -
                    point);
}

typedef struct latest {
    uint32_t write, read; /* 1 + node; 0 = none */
} latest;

/* one access against one piece of memory; the conflicting node + 1, or 0 */
static uint32_t visit(latest *piece, uint32_t timelines, uint32_t timeline, uint32_t node,
                      const uint32_t *clock, bool is_write) {
    for (uint32_t t = 0; t < timelines; t++) {
        if (t == timeline) continue;
        if (piece[t].write > clock[t]) return piece[t].write;
        if (is_write && piece[t].read > clock[t]) return piece[t].read;
    }
    if (is_write)
        piece[timeline].write = node + 1;
    else
        piece[timeline].read = node + 1;
    return 0;
}

static ckks_status check_races(const recording *r, const uint32_t *clock, ckks_error *err) {
    const uint32_t width = r->stream_count;
    if (width < 2) return CKKS_OK; /* one stream orders everything */
    ckks_status rc = CKKS_OK;
    size_t count = 0;
    uintptr_t *point = collect_points(r, &count);
    latest *pieces = point ? calloc((count + 1) * width, sizeof *pieces) : NULL;
    if (!pieces) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "recording", "out of memory");
        goto out;
    }
    for (uint32_t i = 0; i < r->node_count; i++) {
        const graph_node *node = &r->nodes[i].node;
        for (uint32_t k = 0; k < node->access_count; k++) {
            const kernel_access *access = &node->accesses[k];
            const uintptr_t end = (uintptr_t)access->address + access->bytes;
            for (size_t p = find_point(point, count, (uintptr_t)access->address); point[p] < end; p++) {
                const uint32_t other = visit(&pieces[p * width], width, r->nodes[i].timeline, i,
                                             clock + (size_t)i * width, access->is_write);
                if (other == 0) continue;
                rc = ckks_error_set(err, CKKS_RECORDING_VIOLATION, "order",
                                    "%s (node %u) and %s (node %u) touch the same memory, one writes, and "
                                    "nothing orders them",
                                    node_name(&r->nodes[other - 1].node), other - 1, node_name(node), i);
                goto out;
            }
        }
    }
out:
    free(pieces);
    free(point);
    return rc;
}

static bool skips_race_check(const device *dev) {
#ifdef CKKS_FAULT_INJECTION
    return dev->skip_race_check;
#else
    (void)dev;
    return false;
#endif
}
#ifdef CKKS_FAULT_INJECTION
void device_skip_race_check(device *dev, bool skip) {
    dev->skip_race_check = skip;
}
#endif

static ckks_status recording_check(const recording *r, ckks_error *err) {
    uint32_t *clock = clocks_create(r);
    if (!clock) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "recording", "out of memory");
    ckks_status rc = check_joined(r, clock, err);
    if (rc == CKKS_OK && !skips_race_check(r->dev)) rc = check_races(r, clock, err);
    free(clock);
    return rc;
}

/* ---- graphs ---- */

/* moves the nodes of the recording into *out */
static ckks_status graph_create(device_graph **out, recording *r, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    device *dev = r->dev;
    device_graph *graph = calloc(1, sizeof *graph);
    if (!graph) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "graph", "out of memory");
    graph->dev = dev;
    graph->is_planning = r->is_planning;
    graph->operations = malloc((r->node_count + 1) * sizeof *graph->operations);
    graph->nodes = malloc((r->node_count + 1) * sizeof *graph->nodes);
    if (!graph->operations || !graph->nodes) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "graph", "out of memory");
        goto out;
    }
    for (uint32_t i = 0; i < r->node_count; i++) {
        graph->operations[i] = r->nodes[i].operation;
        graph->nodes[i] = r->nodes[i].node;
    }
    if (!graph->is_planning)
        rc = dev->back.backend->graph_create(dev->back.self, &graph->self, graph->operations, graph->nodes,
                                             r->node_count, err);
    if (rc != CKKS_OK) goto out;
    graph->count = r->node_count;
    r->node_count = 0; /* moved */
    pthread_mutex_lock(&dev->lock);
    dev->graph_count++;
    pthread_mutex_unlock(&dev->lock);
    *out = graph, graph = NULL;
out:
    if (graph) {
        free(graph->operations);
        free(graph->nodes);
        free(graph);
    }
    return rc;
}

ckks_status device_record_end(device_stream *stream, device_graph **out, ckks_error *err) {
    ckks_status rc;
    recording *r = stream->recording;
    *out = NULL;
    if (!r) return ckks_error_set(err, CKKS_RECORDING_VIOLATION, "stream", "is not recording");
    if (r->error.code != CKKS_OK)
        rc = report(r, err);
    else if (r->origin != stream)
        rc = ckks_error_set(err, CKKS_RECORDING_VIOLATION, "stream", "did not begin this recording");
    else if ((rc = device_call(stream->dev, CALL_OTHER, NULL, err)) == CKKS_OK &&
             (rc = recording_check(r, err)) == CKKS_OK)
        rc = graph_create(out, r, err);
    recording_destroy(r);
    return rc;
}

void device_graph_destroy(device_graph *graph) {
    if (!graph) return;
    device *dev = graph->dev;
    if (!graph->is_planning) dev->back.backend->graph_destroy(graph->self);
    for (uint32_t i = 0; i < graph->count; i++) {
        recorded_node n = {.operation = graph->operations[i], .node = graph->nodes[i]};
        node_fini(&n);
    }
    free(graph->operations);
    free(graph->nodes);
    free(graph);
    pthread_mutex_lock(&dev->lock);
    dev->graph_count--;
    pthread_mutex_unlock(&dev->lock);
}

uint32_t device_graph_node_count(const device_graph *graph) {
    return graph->count;
}
const graph_node *device_graph_node(const device_graph *graph, uint32_t index) {
    CKKS_ASSERT(index < graph->count);
    return &graph->nodes[index];
}
