/*
 * The CUDA back end: memory, streams, events, copies, launches, graphs.
 *
 * A recorded graph is built node by node with cudaStreamBeginCaptureToGraph: each operation is captured
 * behind the tails of the operations that it depends on, so that branches which the front end found
 * independent stay parallel, and an operation that is several kernels is a chain inside.
 *
 * Every call makes its device current: nothing here depends on the calling thread. A sticky error (the
 * context is lost) is remembered: every later call says so, and the process is expected to end.
 */
#include "kernels/cuda/cuda_internal.cuh"
#include "kernels/cuda/host_pool.h"

extern "C" {
#include "kernels/device_select.h"
}

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

namespace {

struct CudaDevice {
    bool is_f64; /* first: tables.cu reads it */
    int index;
    cudaStream_t capture; /* graphs are captured on it; never runs anything */
    struct HostPool *pool;
};

/* The first failure of a stream, shared with the events recorded on it: whoever waits for one of them learns
 * of it, until the stream recovers. Events may outlive their stream. Guarded: events are waited for on other
 * threads. */
struct Fault {
    std::mutex lock;
    ckks_error cause = {};

    void set(const ckks_error &error) {
        std::lock_guard<std::mutex> hold(lock);
        if (cause.code == CKKS_OK) cause = error;
    }
    void clear() {
        std::lock_guard<std::mutex> hold(lock);
        cause = ckks_error{};
    }
    ckks_status get(ckks_error *err) {
        std::lock_guard<std::mutex> hold(lock);
        if (cause.code != CKKS_OK && err && err->code == CKKS_OK) *err = cause;
        return cause.code;
    }
};

struct CudaStream {
    CudaDevice *device;
    cudaStream_t stream;
    std::shared_ptr<Fault> fault;
    bool last_is_kernel;
    uint64_t recorded_ns; /* when the last event was recorded on it */
    uint64_t launch_ns;   /* what launching a graph on it takes the host at least */
};

struct CudaEvent {
    CudaDevice *device;
    cudaEvent_t event;
    std::shared_ptr<Fault> fault; /* of the stream that recorded it last; empty: never recorded */
};

struct CudaGraph {
    CudaDevice *device;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
};

uint64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

bool is_sticky(cudaError_t status) {
    return status == cudaErrorIllegalAddress || status == cudaErrorLaunchFailure ||
           status == cudaErrorMisalignedAddress || status == cudaErrorInvalidAddressSpace ||
           status == cudaErrorInvalidPc || status == cudaErrorHardwareStackError ||
           status == cudaErrorIllegalInstruction || status == cudaErrorAssert ||
           status == cudaErrorECCUncorrectable || status == cudaErrorNvlinkUncorrectable ||
           status == cudaErrorLaunchTimeout || status == cudaErrorDevicesUnavailable;
}

/* A sticky error was seen. All cards of the process share the mark: whoever sees it ends the process. */
std::atomic<bool> is_context_lost{false};

/* Selects the device for this thread; cheap when it is current already. */
ckks_status use(const CudaDevice *device, ckks_error *err) {
    CUDA_TRY(cudaSetDevice(device->index));
    return CKKS_OK;
}
#define USE(device)                                                                                          \
    do {                                                                                                     \
        const ckks_status use_status = use((device), err);                                                   \
        if (use_status != CKKS_OK) return use_status;                                                        \
    } while (0)

/* ---- memory ---- */

#ifdef CKKS_FAULT_INJECTION
/* CKKSD_TEST_HOST_VISIBLE=1: what is allocated is pinned host memory, which the card reaches too, for tests
 * that look at a device's memory without asking. */
bool is_host_visible() {
    static const bool is_on = getenv("CKKSD_TEST_HOST_VISIBLE") != nullptr;
    return is_on;
}
/* CKKSD_TEST_OPENED=FILE: a line for each card that was opened, so that whoever runs tests knows which of
 * them use one. */
void note_opened(const char *description) {
    const char *path = getenv("CKKSD_TEST_OPENED");
    FILE *file = path ? fopen(path, "ae") : nullptr;
    if (!file) return;
    fprintf(file, "%s\n", description);
    fclose(file);
}
#else
bool is_host_visible() {
    return false;
}
void note_opened(const char *) {}
#endif

/* The budget allowed it and the card has not got it: somebody else has. */
ckks_status refuse_memory(uint64_t bytes, ckks_error *err) {
    const double mib = 1048576.0;
    size_t available = 0, total = 0;
    if (cudaMemGetInfo(&available, &total) != cudaSuccess) available = total = 0;
    return ckks_error_set(
        err, CKKS_RESOURCE_EXHAUSTED, "device memory",
        "the card has no %.1f MiB left: %.1f of its %.1f MiB are free; nvidia-smi shows who has "
        "the rest",
        (double)bytes / mib, (double)available / mib, (double)total / mib);
}

ckks_status cuda_allocate(void *self, void **out, uint64_t bytes, ckks_error *err) {
    USE(static_cast<CudaDevice *>(self));
    const cudaError_t status =
        is_host_visible() ? cudaHostAlloc(out, bytes, cudaHostAllocPortable) : cudaMalloc(out, bytes);
    if (status != cudaErrorMemoryAllocation) return cuda_check(status, "cudaMalloc", err);
    (void)cudaGetLastError();
    return refuse_memory(bytes, err);
}
void cuda_release(void *self, void *address) {
    cudaSetDevice(static_cast<CudaDevice *>(self)->index);
    if (is_host_visible())
        cudaFreeHost(address);
    else
        cudaFree(address);
}
ckks_status cuda_allocate_host(void *self, void **out, uint64_t bytes, ckks_error *err) {
    CudaDevice *device = static_cast<CudaDevice *>(self);
    USE(device);
    try {
        if ((*out = device->pool->take(bytes)) != nullptr) return CKKS_OK;
        CUDA_TRY(cudaHostAlloc(out, bytes, cudaHostAllocPortable));
        device->pool->add(*out, bytes);
    } catch (const std::bad_alloc &) {
        if (*out) cudaFreeHost(*out);
        *out = nullptr;
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "pinned memory", "out of host memory");
    }
    return CKKS_OK;
}
void cuda_release_host(void *self, void *address) {
    CudaDevice *device = static_cast<CudaDevice *>(self);
    cudaSetDevice(device->index);
    bool is_kept = false;
    try {
        is_kept = device->pool->give(address);
    } catch (const std::bad_alloc &) {
        is_kept = false;
    }
    if (!is_kept) cudaFreeHost(address);
}

uint64_t cuda_bytes_free(const void *self) {
    size_t available = 0, total = 0;
    if (cudaSetDevice(static_cast<const CudaDevice *>(self)->index) != cudaSuccess) return 0;
    return cudaMemGetInfo(&available, &total) == cudaSuccess ? available : 0;
}

/* ---- streams ---- */

ckks_status cuda_stream_create(void *self, void **out, ckks_error *err) {
    CudaDevice *device = static_cast<CudaDevice *>(self);
    USE(device);
    CudaStream *s = new (std::nothrow) CudaStream{device, nullptr, nullptr, false, 0, 0};
    Fault *fault = new (std::nothrow) Fault;
    if (!s || !fault) {
        delete s;
        delete fault;
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "stream", "out of host memory");
    }
    try {
        s->fault.reset(fault); /* frees `fault` itself if it throws */
    } catch (const std::bad_alloc &) {
        delete s;
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "stream", "out of host memory");
    }
    const ckks_status rc = cuda_check(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking),
                                      "cudaStreamCreateWithFlags", err);
    if (rc != CKKS_OK) {
        delete s;
        return rc;
    }
    *out = s;
    return CKKS_OK;
}
void cuda_stream_destroy(void *stream) {
    CudaStream *s = static_cast<CudaStream *>(stream);
    cudaSetDevice(s->device->index);
    cudaStreamSynchronize(s->stream);
    cudaStreamDestroy(s->stream);
    delete s;
}
ckks_status cuda_stream_synchronize(void *stream, ckks_error *err) {
    CudaStream *s = static_cast<CudaStream *>(stream);
    USE(s->device);
    const ckks_status rc = cuda_check(cudaStreamSynchronize(s->stream), "cudaStreamSynchronize", err);
    return rc != CKKS_OK ? rc : s->fault->get(err);
}
ckks_status cuda_stream_recover(void *stream, ckks_error *err) {
    CudaStream *s = static_cast<CudaStream *>(stream);
    USE(s->device);
    const ckks_status rc = cuda_check(cudaStreamSynchronize(s->stream), "cudaStreamSynchronize", err);
    if (rc == CKKS_OK) s->fault->clear();
    return rc;
}
ckks_status cuda_stream_fail(void *stream, const ckks_error *cause, ckks_error *) {
    static_cast<CudaStream *>(stream)->fault->set(*cause);
    return CKKS_OK;
}

bool cuda_is_lost(const void *) {
    return is_context_lost.load();
}
#ifdef CKKS_FAULT_INJECTION
__global__ void trap() {
    __trap();
}
ckks_status cuda_stream_trap(void *stream, ckks_error *err) {
    CudaStream *s = static_cast<CudaStream *>(stream);
    USE(s->device);
    s->last_is_kernel = false;
    gpu_may_overlap = false;
    return cuda_check(gpu_launch(trap, dim3(1), 1, s->stream, 0), "trap", err);
}
#else
ckks_status (*const cuda_stream_trap)(void *, ckks_error *) = nullptr;
#endif

/* ---- events ---- */

ckks_status cuda_event_create(void *self, void **out, ckks_error *err) {
    CudaDevice *device = static_cast<CudaDevice *>(self);
    USE(device);
    CudaEvent *e = new (std::nothrow) CudaEvent{device, nullptr, nullptr};
    if (!e) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "event", "out of host memory");
    const ckks_status rc = cuda_check(cudaEventCreate(&e->event), "cudaEventCreate", err);
    if (rc != CKKS_OK) {
        delete e;
        return rc;
    }
    *out = e;
    return CKKS_OK;
}
void cuda_event_destroy(void *event) {
    CudaEvent *e = static_cast<CudaEvent *>(event);
    cudaSetDevice(e->device->index);
    cudaEventDestroy(e->event);
    delete e;
}
ckks_status cuda_event_record(void *event, void *stream, ckks_error *err) {
    CudaEvent *e = static_cast<CudaEvent *>(event);
    CudaStream *s = static_cast<CudaStream *>(stream);
    USE(s->device);
    CUDA_TRY(cudaEventRecord(e->event, s->stream));
    s->last_is_kernel = false;
    s->recorded_ns = now_ns();
    e->fault = s->fault;
    return CKKS_OK;
}
ckks_status cuda_stream_wait(void *stream, void *event, ckks_error *err) {
    CudaStream *s = static_cast<CudaStream *>(stream);
    CudaEvent *e = static_cast<CudaEvent *>(event);
    USE(s->device);
    if (!e->fault) return CKKS_OK;
    s->last_is_kernel = false;
    CUDA_TRY(cudaStreamWaitEvent(s->stream, e->event, 0));
    ckks_error cause = {};
    if (e->fault != s->fault && e->fault->get(&cause) != CKKS_OK) s->fault->set(cause);
    return CKKS_OK;
}
ckks_status cuda_event_synchronize(void *event, ckks_error *err) {
    CudaEvent *e = static_cast<CudaEvent *>(event);
    USE(e->device);
    if (!e->fault) return CKKS_OK;
    const ckks_status rc = cuda_check(cudaEventSynchronize(e->event), "cudaEventSynchronize", err);
    return rc != CKKS_OK ? rc : e->fault->get(err);
}
bool cuda_event_is_complete(void *event) {
    CudaEvent *e = static_cast<CudaEvent *>(event);
    cudaSetDevice(e->device->index);
    return !e->fault || cudaEventQuery(e->event) != cudaErrorNotReady;
}
uint64_t cuda_event_elapsed_ns(const void *from, const void *to) {
    const CudaEvent *a = static_cast<const CudaEvent *>(from), *b = static_cast<const CudaEvent *>(to);
    float ms = 0;
    if (cudaEventElapsedTime(&ms, a->event, b->event) != cudaSuccess || ms < 0) return 0;
    return (uint64_t)((double)ms * 1e6);
}

/* ---- work ---- */

cudaError_t enqueue(cudaStream_t stream, const device_operation *o) {
    switch (o->kind) {
    case GRAPH_NODE_KERNEL:
        return cuda_launchers[o->kernel](stream, o->arguments);
    case GRAPH_NODE_COPY: {
        const cudaMemcpyKind kind = is_host_visible()     ? cudaMemcpyDefault
                                    : o->copy == COPY_IN  ? cudaMemcpyHostToDevice
                                    : o->copy == COPY_OUT ? cudaMemcpyDeviceToHost
                                                          : cudaMemcpyDeviceToDevice;
        return cudaMemcpyAsync(o->to, o->from, o->bytes, kind, stream);
    }
    case GRAPH_NODE_FILL:
        return cudaMemsetAsync(o->to, o->byte, o->bytes, stream);
    }
    return cudaErrorInvalidValue;
}

ckks_status cuda_can_launch(void *, kernel_id kernel, ckks_error *err) {
    if (cuda_launchers[kernel]) return CKKS_OK;
    return ckks_error_set(err, CKKS_UNSUPPORTED, kernel_name(kernel), "no CUDA version of this kernel");
}
/* May a kernel start before this operation has ended? Not before copies; nor before what writes keys, which
 * kernels read ahead of their wait (row_product.cu). */
bool lets_next_overlap(const device_operation *o) {
    return o->kind == GRAPH_NODE_KERNEL && o->kernel != KERNEL_NARROW_KEY;
}
ckks_status cuda_run(void *stream, const device_operation *operation, ckks_error *err) {
    CudaStream *s = static_cast<CudaStream *>(stream);
    USE(s->device);
    gpu_may_overlap = s->last_is_kernel;
    s->last_is_kernel = lets_next_overlap(operation);
    return cuda_check(enqueue(s->stream, operation),
                      operation->kind == GRAPH_NODE_KERNEL ? kernel_name(operation->kernel) : "copy", err);
}

/* ---- graphs ---- */

/* what later work must wait for: the capture's current tails */
ckks_status capture_tails(cudaStream_t stream, std::vector<cudaGraphNode_t> &tails, ckks_error *err) {
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    const cudaGraphNode_t *last = nullptr;
    size_t count = 0;
    unsigned long long id = 0;
    cudaGraph_t graph = nullptr;
#if CUDART_VERSION >= 13000
    CUDA_TRY(cudaStreamGetCaptureInfo(stream, &capturing, &id, &graph, &last, nullptr, &count));
#else
    CUDA_TRY(cudaStreamGetCaptureInfo_v2(stream, &capturing, &id, &graph, &last, &count));
#endif
    tails.assign(last, last + count);
    return CKKS_OK;
}

/* Captures operations [from, to), each of which depends on the one before alone, behind `dependencies`. */
ckks_status capture_chain(CudaDevice *device, cudaGraph_t graph, const device_operation *operations,
                          uint32_t from, uint32_t to, const std::vector<cudaGraphNode_t> &dependencies,
                          std::vector<std::vector<cudaGraphNode_t>> &tails, ckks_error *err) {
    CUDA_TRY(cudaStreamBeginCaptureToGraph(device->capture, graph, dependencies.data(), nullptr,
                                           dependencies.size(), cudaStreamCaptureModeThreadLocal));
    ckks_status rc = CKKS_OK;
    bool is_begun = false; /* the operation before did the first pass of this one */
    for (uint32_t i = from; i < to && rc == CKKS_OK; i++) {
        const device_operation *o = operations + i;
        const bool begins = i + 1 < to && cuda_product_begins(o, o + 1);
        gpu_may_overlap = i > from && lets_next_overlap(operations + i - 1);
        rc = cuda_check(begins ? cuda_product_begin(device->capture, o, o + 1)
                        : is_begun
                            ? cuda_key_switch(device->capture,
                                              static_cast<const kernel_key_switch_args *>(o->arguments), true)
                            : enqueue(device->capture, o),
                        o->kind == GRAPH_NODE_KERNEL ? kernel_name(o->kernel) : "copy", err);
        is_begun = begins;
        if (rc == CKKS_OK) rc = capture_tails(device->capture, tails[i], err);
    }
    cudaGraph_t same = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(device->capture, &same);
    if (rc != CKKS_OK) return rc;
    CUDA_TRY(ended);
    return CKKS_OK;
}

void destroy_graph(void *graph) {
    CudaGraph *g = static_cast<CudaGraph *>(graph);
    cudaSetDevice(g->device->index);
    if (g->exec) cudaGraphExecDestroy(g->exec);
    if (g->graph) cudaGraphDestroy(g->graph);
    free(g);
}

ckks_status build_graph(CudaGraph *g, const device_operation *operations, const graph_node *nodes,
                        uint32_t count, ckks_error *err) {
    CUDA_TRY(cudaGraphCreate(&g->graph, 0));
    std::vector<std::vector<cudaGraphNode_t>> tails(count);
    std::vector<cudaGraphNode_t> dependencies;
    for (uint32_t i = 0; i < count;) {
        uint32_t end = i + 1;
        while (end < count && nodes[end].dependency_count == 1 && nodes[end].dependencies[0] == end - 1)
            end++;
        dependencies.clear();
        for (uint32_t d = 0; d < nodes[i].dependency_count; d++) {
            const std::vector<cudaGraphNode_t> &of = tails[nodes[i].dependencies[d]];
            dependencies.insert(dependencies.end(), of.begin(), of.end());
        }
        const ckks_status rc =
            capture_chain(g->device, g->graph, operations, i, end, dependencies, tails, err);
        if (rc != CKKS_OK) return rc;
        i = end;
    }
    CUDA_TRY(cudaGraphInstantiate(&g->exec, g->graph, 0));
    CUDA_TRY(cudaGraphUpload(g->exec, g->device->capture));
    CUDA_TRY(cudaStreamSynchronize(g->device->capture));
    return CKKS_OK;
}

ckks_status cuda_graph_create(void *self, void **out, const device_operation *operations,
                              const graph_node *nodes, uint32_t count, ckks_error *err) {
    CudaDevice *device = static_cast<CudaDevice *>(self);
    USE(device);
    CudaGraph *g = static_cast<CudaGraph *>(calloc(1, sizeof *g));
    if (!g) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "graph", "out of host memory");
    g->device = device;
    /* one capture stream of the device's own per recording thread would do as well; captures are rare, so a
     * stream is made for each */
    CudaDevice local = *device;
    local.capture = nullptr;
    ckks_status rc = cuda_check(cudaStreamCreateWithFlags(&local.capture, cudaStreamNonBlocking),
                                "cudaStreamCreateWithFlags", err);
    if (rc == CKKS_OK) {
        g->device = &local;
        try {
            rc = build_graph(g, operations, nodes, count, err);
        } catch (const std::bad_alloc &) {
            rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "graph", "out of host memory");
        }
        g->device = device;
        cudaStreamDestroy(local.capture);
    }
    if (rc != CKKS_OK) {
        destroy_graph(g);
        return rc;
    }
    *out = g;
    return CKKS_OK;
}
/*
 * The front of the card puts an idle queue aside once it has done what it found there, and a submission that
 * arrives meanwhile waits for 7 to 8 us. That is where a graph lands on a fast host, 1.4 us behind the event
 * that marks its start; with 2 us it never did (the notebook has the figures). So a launch returns at least
 * this long after an event was recorded on its stream.
 */
const uint64_t start_gap_ns = 2000;

ckks_status cuda_graph_replay(void *graph, void *stream, ckks_error *err) {
    CudaGraph *g = static_cast<CudaGraph *>(graph);
    CudaStream *s = static_cast<CudaStream *>(stream);
    USE(s->device);
    s->last_is_kernel = false;
    uint64_t begin = now_ns();
    const uint64_t due = s->recorded_ns + start_gap_ns;
    while (begin + s->launch_ns < due) begin = now_ns(); /* at most start_gap_ns */
    CUDA_TRY(cudaGraphLaunch(g->exec, s->stream));
    const uint64_t took = now_ns() - begin;
    /* what a launch takes at least: believed to take longer, it would come too early */
    const uint64_t bounded = took < start_gap_ns ? took : start_gap_ns;
    s->launch_ns = bounded < s->launch_ns ? bounded : s->launch_ns + (bounded - s->launch_ns) / 8;
    return CKKS_OK;
}
ckks_status cuda_set_adversarial_order(void *, uint64_t, ckks_error *err) {
    return ckks_error_set(err, CKKS_UNSUPPORTED, "adversarial order",
                          "only the CPU device can choose the order of a graph's nodes");
}

/* ---- opening ---- */

void cuda_close(void *self) {
    CudaDevice *device = static_cast<CudaDevice *>(self);
    cudaSetDevice(device->index);
    for (const HostPool::Block &block : device->pool->free) cudaFreeHost(block.address);
    delete device->pool;
    free(device);
}

const device_backend backend = {
    DEVICE_CUDA,
    cuda_close,
    cuda_allocate,
    cuda_release,
    cuda_allocate_host,
    cuda_release_host,
    cuda_bytes_free,
    cuda_stream_create,
    cuda_stream_destroy,
    cuda_stream_synchronize,
    cuda_stream_recover,
    cuda_stream_fail,
    cuda_stream_trap,
    cuda_is_lost,
    cuda_event_create,
    cuda_event_destroy,
    cuda_event_record,
    cuda_stream_wait,
    cuda_event_synchronize,
    cuda_event_is_complete,
    cuda_event_elapsed_ns,
    cuda_can_launch,
    cuda_run,
    cuda_tables_create,
    cuda_tables_destroy,
    cuda_graph_create,
    destroy_graph,
    cuda_graph_replay,
    cuda_set_adversarial_order,
};

void uuid_text(char text[48], const cudaUUID_t &uuid) {
    const unsigned char *b = reinterpret_cast<const unsigned char *>(uuid.bytes);
    snprintf(text, 48, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
             b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

/* What the driver says, as plain data. cards[] are in the runtime's order, which the index means. */
ckks_status take_inventory(gpu_inventory *out, ckks_error *err) {
    int count = 0;
    *out = gpu_inventory{};
    out->needed_version = CUDART_VERSION;
    const cudaError_t found = cudaGetDeviceCount(&count);
    if (found != cudaSuccess) {
        (void)cudaGetLastError();
        out->cause = cudaGetErrorString(found);
        const bool is_old =
            cudaDriverGetVersion(&out->driver_version) == cudaSuccess && out->driver_version != 0;
        out->presence = found == cudaErrorInsufficientDriver && is_old ? GPU_DRIVER_TOO_OLD
                        : found == cudaErrorInsufficientDriver         ? GPU_NO_DRIVER
                        : found == cudaErrorNoDevice                   ? GPU_NO_CARD
                                                                       : GPU_NOT_USABLE;
        return CKKS_OK;
    }
    out->presence = count > 0 ? GPU_PRESENT : GPU_NO_CARD;
    out->count = count < (int)GPU_CARDS_MAX ? (u32)count : GPU_CARDS_MAX;
    for (u32 i = 0; i < out->count; i++) {
        cudaDeviceProp p;
        CUDA_TRY(cudaGetDeviceProperties(&p, (int)i));
        gpu_card *card = &out->cards[i];
        snprintf(card->name, sizeof card->name, "%.90s", p.name);
        uuid_text(card->uuid, p.uuid);
        card->major = p.major, card->minor = p.minor;
    }
    return CKKS_OK;
}

/* FP64 at full rate (half of FP32): data-centre cards of compute capability 8.0, 9.0 and 10.0.
 * CKKSD_CUDA_PATH=f64|i64 forces one, for tests. */
bool prefers_f64(const gpu_card *p) {
    const char *forced = getenv("CKKSD_CUDA_PATH");
    if (forced && strcmp(forced, "f64") == 0) return true;
    if (forced && strcmp(forced, "i64") == 0) return false;
    return p->minor == 0 && (p->major == 8 || p->major == 9 || p->major == 10);
}

} // namespace

ckks_status cuda_check(cudaError_t status, const char *call, ckks_error *err) {
    if (status == cudaSuccess) return CKKS_OK;
    if (is_sticky(status))
        is_context_lost.store(true);
    else
        (void)cudaGetLastError(); /* clears what can be cleared */
    if (status == cudaErrorMemoryAllocation)
        return ckks_error_set(
            err, CKKS_RESOURCE_EXHAUSTED, "device memory",
            "the card or its host has no memory left for %.60s; nvidia-smi shows who has it", call);
    return ckks_error_set(err, CKKS_DEVICE_ERROR, is_sticky(status) ? "sticky" : "", "%.60s: %s (%s)", call,
                          cudaGetErrorString(status), cudaGetErrorName(status));
}

namespace {

__global__ void is_there() {}

/* Everything is loaded now: lazy loading inside a capture could break it. */
ckks_status load_all_kernels(const gpu_card *card, ckks_error *err) {
    CUDA_TRY(cudaFree(nullptr));
    cudaFuncAttributes attributes;
    const cudaError_t found = cudaFuncGetAttributes(&attributes, is_there);
    if (found == cudaErrorNoKernelImageForDevice || found == cudaErrorInvalidDeviceFunction ||
        found == cudaErrorUnsupportedPtxVersion) {
        (void)cudaGetLastError();
        return ckks_error_set(err, CKKS_UNSUPPORTED, "device",
                              "this build has no code for %.60s (compute capability %d.%d): build it with "
                              "CUDA_ARCH=all or on that machine, or take the CPU (kind = cpu in [device], "
                              "--device cpu)",
                              card->name, card->major, card->minor);
    }
    return cuda_check(found, "cudaFuncGetAttributes", err);
}

void describe(backend_device *out, const gpu_card *card, const CudaDevice *device, size_t total) {
    snprintf(out->description, sizeof out->description, "%.80s (sm_%d%d, %s), %.0f GiB", card->name,
             card->major, card->minor, device->is_f64 ? "FP64 path" : "64-bit integer path",
             (double)total / 1073741824.0);
    snprintf(out->hardware_id, sizeof out->hardware_id, "%s", card->uuid);
}

} // namespace

ckks_status device_cuda_open(backend_device *out, const device_config *config, ckks_error *err) {
    gpu_inventory cards;
    u32 index = 0;
    ckks_status rc;
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    /* a queue of the card for every stream: with the default of 8, one slot's copies wait behind another's
     * replay */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    if ((rc = take_inventory(&cards, err)) != CKKS_OK) return rc;
    if ((rc = gpu_choose(&index, out->reason, sizeof out->reason, &cards, config->selector, err)) != CKKS_OK)
        return rc;
    const gpu_card *card = &cards.cards[index];
    const cudaError_t begun = cudaSetDevice((int)index); /* makes the context */
    if (begun == cudaErrorMemoryAllocation)
        return ckks_error_set(
            err, CKKS_RESOURCE_EXHAUSTED, "device memory",
            "%.60s has no memory left even to be opened, which takes some 500 MiB: nvidia-smi "
            "shows who has it",
            card->name);
    if ((rc = cuda_check(begun, "cudaSetDevice", err)) != CKKS_OK) return rc;
    if ((rc = load_all_kernels(card, err)) != CKKS_OK) return rc;
    size_t available = 0, total = 0;
    CUDA_TRY(cudaMemGetInfo(&available, &total));
    CudaDevice *device = static_cast<CudaDevice *>(calloc(1, sizeof *device));
    HostPool *pool = new (std::nothrow) HostPool;
    if (!device || !pool) {
        free(device);
        delete pool;
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "device", "out of host memory");
    }
    device->pool = pool;
    device->index = (int)index;
    device->is_f64 = prefers_f64(card);
    const char *overlap = getenv("CKKSD_CUDA_OVERLAP");
    if (card->major < 9 || (overlap && strcmp(overlap, "0") == 0)) gpu_overlap_log_n_max = 0;
    out->backend = &backend;
    out->self = device;
    out->bytes_total = available;
    out->keys = KEY_SPLIT; /* key products wait for memory, and 50 bits of 64 are read */
    describe(out, card, device, total);
    note_opened(out->description);
    return CKKS_OK;
}

u32 gpu_overlap_log_n_max = CKKS_LOG_N_MAX;
thread_local bool gpu_may_overlap;
