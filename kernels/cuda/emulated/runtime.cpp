/*
 * Memory, streams, events and graphs without a card. Each stream has a thread of its own that does what was
 * enqueued, in order, some time later: what the host changes too early, or reads too early, is wrong here as
 * it would be on a card, and ThreadSanitizer and AddressSanitizer see it. A graph's nodes are executed in an
 * order that changes from launch to launch, each after those that it depends on.
 *
 * "Device" memory is the process's. Copies check that it is where they say it is.
 */
#include "kernels/cuda/emulated/threads.h"

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

namespace {

const size_t card_bytes = (size_t)8 << 30;
const size_t fill_bytes_max = 16 << 20; /* what is larger stays untouched: arenas */

thread_local cudaError_t last_error = cudaSuccess;

cudaError_t said(cudaError_t error) {
    if (error != cudaSuccess) last_error = error;
    return error;
}
/* every call of a lost device fails with what lost it */
cudaError_t answer(cudaError_t error = cudaSuccess) {
    return said(emulated_is_lost() ? cudaErrorLaunchFailure : error);
}
#define LIVE()                                                                                               \
    do {                                                                                                     \
        if (emulated_is_lost()) return answer();                                                             \
    } while (0)

/* ---- memory ---- */

struct Memory {
    std::mutex lock;
    std::map<uintptr_t, size_t> device, pinned;
    size_t used = 0;

    static bool has(const std::map<uintptr_t, size_t> &all, const void *address, size_t bytes) {
        const uintptr_t at = reinterpret_cast<uintptr_t>(address);
        auto next = all.upper_bound(at);
        if (next == all.begin()) return false;
        --next;
        return at >= next->first && at - next->first <= next->second &&
               bytes <= next->second - (at - next->first);
    }
    /* all of it where a card reaches: its own memory, or the host's that is pinned */
    bool is_reachable(const void *address, size_t bytes) {
        std::lock_guard<std::mutex> hold(lock);
        return has(device, address, bytes) || has(pinned, address, bytes);
    }
    cudaError_t take(std::map<uintptr_t, size_t> &of, void **out, size_t bytes, bool counts) {
        std::lock_guard<std::mutex> hold(lock);
        if (bytes == 0) return *out = nullptr, cudaSuccess;
        const size_t rounded = (bytes + 255) / 256 * 256;
        if (rounded < bytes || (counts && rounded > card_bytes - used)) return cudaErrorMemoryAllocation;
        /* not a byte more than was asked for: what lies behind it is found */
        void *address = nullptr;
        try {
            address = ::operator new(bytes, std::align_val_t(256), std::nothrow);
            if (!address) return cudaErrorMemoryAllocation;
            of[reinterpret_cast<uintptr_t>(address)] = bytes;
        } catch (const std::bad_alloc &) {
            ::operator delete(address, std::align_val_t(256));
            return cudaErrorMemoryAllocation;
        }
        if (counts) used += rounded;
        if (bytes <= fill_bytes_max) memset(address, 0xa7, bytes); /* nobody may count on what is there */
        *out = address;
        return cudaSuccess;
    }
    cudaError_t give(std::map<uintptr_t, size_t> &of, void *address, bool counts) {
        if (!address) return cudaSuccess;
        std::lock_guard<std::mutex> hold(lock);
        const auto found = of.find(reinterpret_cast<uintptr_t>(address));
        if (found == of.end()) return cudaErrorInvalidValue;
        if (counts) used -= (found->second + 255) / 256 * 256;
        of.erase(found);
        ::operator delete(address, std::align_val_t(256));
        return cudaSuccess;
    }
};
/* never destroyed: streams may outlive main */
Memory &memory = *new Memory;

/* ---- operations and events ---- */

struct Operation {
    bool is_kernel;
    EmulatedLaunch launch;
    std::function<void()> run; /* what is no kernel */
};

/* One time that an event was recorded; guarded by `lock` below. */
struct Record {
    bool is_done = false;
    std::chrono::steady_clock::time_point at;
};
std::mutex &lock = *new std::mutex; /* of events and of streams' queues */
std::condition_variable &changed = *new std::condition_variable;

} // namespace

struct EmulatedEvent {
    std::shared_ptr<Record> last; /* empty: never recorded */
};

struct EmulatedNode {
    Operation operation;
    std::vector<EmulatedNode *> after;
    size_t index;
};
struct EmulatedGraph {
    std::vector<std::unique_ptr<EmulatedNode>> nodes;
};
/* What is launched: it lives until its last launch has ended, as a card's does. */
struct Executable {
    std::vector<Operation> operations;
    std::vector<std::vector<size_t>> after, before; /* what each depends on, and what depends on it */
};
struct EmulatedExec {
    std::shared_ptr<Executable> body = std::make_shared<Executable>();
    uint64_t launches = 0; /* guarded by lock */
};

struct EmulatedStream {
    std::deque<Operation> queue; /* its front is being done */
    bool ends = false;
    std::thread worker;
    /* while it captures */
    EmulatedGraph *graph = nullptr;
    std::vector<EmulatedNode *> tails;

    EmulatedStream() : worker([this] { work(); }) {}
    void work();
    cudaError_t enqueue(Operation &&operation);
    void drain() {
        std::unique_lock<std::mutex> hold(lock);
        changed.wait(hold, [this] { return queue.empty(); });
    }
};

void EmulatedStream::work() {
    std::unique_lock<std::mutex> hold(lock);
    for (;;) {
        changed.wait(hold, [this] { return !queue.empty() || ends; });
        if (queue.empty()) return;
        const Operation &now = queue.front();
        const Operation *next = queue.size() > 1 ? &queue[1] : nullptr;
        hold.unlock();
        if (now.is_kernel && !emulated_is_lost())
            emulated_execute(now.launch, next && next->is_kernel ? &next->launch : nullptr);
        else if (!now.is_kernel)
            now.run();
        hold.lock();
        queue.pop_front();
        changed.notify_all();
    }
}

cudaError_t EmulatedStream::enqueue(Operation &&operation) {
    try {
        if (graph) {
            std::unique_ptr<EmulatedNode> node(
                new EmulatedNode{static_cast<Operation &&>(operation), tails, graph->nodes.size()});
            tails.assign(1, node.get());
            graph->nodes.push_back(static_cast<std::unique_ptr<EmulatedNode> &&>(node));
            return cudaSuccess;
        }
        std::lock_guard<std::mutex> hold(lock);
        queue.push_back(static_cast<Operation &&>(operation));
        changed.notify_all();
        return cudaSuccess;
    } catch (const std::bad_alloc &) {
        return cudaErrorMemoryAllocation;
    }
}

/* ---- the device ---- */

cudaError_t cudaGetDeviceCount(int *count) {
    *count = __builtin_cpu_supports("fma") ? 1 : 0;
    return *count ? cudaSuccess : said(cudaErrorNoDevice);
}
cudaError_t cudaDriverGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device) {
    if (device != 0) return said(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "emulated card");
    memcpy(p->uuid.bytes, "emulated-card-00", sizeof p->uuid.bytes);
    p->major = 9;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr, int device) {
    if (device != 0) return said(cudaErrorInvalidDevice);
    *value = 132;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return answer();
}
cudaError_t cudaSetDevice(int device) {
    return answer(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}
cudaError_t cudaGetLastError() {
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}
#define ERRORS(X)                                                                                            \
    X(cudaSuccess, "no error")                                                                               \
    X(cudaErrorInvalidValue, "invalid argument")                                                             \
    X(cudaErrorMemoryAllocation, "out of memory")                                                            \
    X(cudaErrorNoDevice, "no CUDA-capable device is detected")                                               \
    X(cudaErrorInvalidDevice, "invalid device ordinal")                                                      \
    X(cudaErrorInvalidResourceHandle, "invalid resource handle")                                             \
    X(cudaErrorNotReady, "device not ready")                                                                 \
    X(cudaErrorLaunchFailure, "unspecified launch failure")                                                  \
    X(cudaErrorNotSupported, "operation not supported")                                                      \
    X(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing")
const char *cudaGetErrorString(cudaError_t error) {
    switch (error) {
#define TEXT(name, text)                                                                                     \
    case name:                                                                                               \
        return text;
        ERRORS(TEXT)
#undef TEXT
    default:
        return "an error that the emulated card does not make";
    }
}
const char *cudaGetErrorName(cudaError_t error) {
    switch (error) {
#define TEXT(name, text)                                                                                     \
    case name:                                                                                               \
        return #name;
        ERRORS(TEXT)
#undef TEXT
    default:
        return "unknown";
    }
}

/* ---- memory ---- */

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    LIVE();
    std::lock_guard<std::mutex> hold(memory.lock);
    *total = card_bytes, *available = card_bytes - memory.used;
    return cudaSuccess;
}
cudaError_t cudaMalloc(void **out, size_t bytes) {
    LIVE();
    return said(memory.take(memory.device, out, bytes, true));
}
cudaError_t cudaFree(void *address) {
    const cudaError_t given = memory.give(memory.device, address, true);
    return answer(given);
}
cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned) {
    LIVE();
    return said(memory.take(memory.pinned, out, bytes, false));
}
cudaError_t cudaFreeHost(void *address) {
    const cudaError_t given = memory.give(memory.pinned, address, false);
    return answer(given);
}

static bool is_copy_right(const void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    return (!to_device || memory.is_reachable(to, bytes)) &&
           (!from_device || memory.is_reachable(from, bytes));
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
    LIVE();
    if (!is_copy_right(to, from, bytes, kind)) return said(cudaErrorInvalidValue);
    if (bytes != 0) memcpy(to, from, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
    LIVE();
    if (!is_copy_right(to, from, bytes, kind)) return said(cudaErrorInvalidValue);
    const auto copy = [=] {
        if (bytes != 0 && !emulated_is_lost()) memcpy(to, from, bytes);
    };
    /* memory that is not pinned is copied before the call returns */
    const bool is_later =
        stream->graph || (memory.is_reachable(to, bytes) && memory.is_reachable(from, bytes));
    if (is_later) return said(stream->enqueue({false, {}, copy}));
    stream->drain();
    copy();
    return answer();
}
cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream) {
    LIVE();
    if (!memory.is_reachable(to, bytes)) return said(cudaErrorInvalidValue);
    return said(stream->enqueue({false, {}, [=] {
                                     if (bytes != 0 && !emulated_is_lost()) memset(to, byte, bytes);
                                 }}));
}

/* ---- streams and events ---- */

static std::shared_ptr<Record> last_of(cudaEvent_t event) {
    std::lock_guard<std::mutex> hold(lock);
    return event->last;
}
static void await(const std::shared_ptr<Record> &record) {
    std::unique_lock<std::mutex> hold(lock);
    changed.wait(hold, [&] { return !record || record->is_done; });
}

cudaError_t emulated_launch(cudaStream_t stream, EmulatedLaunch &&launch) {
    LIVE();
    return said(stream->enqueue({true, static_cast<EmulatedLaunch &&>(launch), nullptr}));
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned) {
    LIVE();
    try {
        *out = new EmulatedStream;
    } catch (const std::exception &) {
        return said(cudaErrorMemoryAllocation);
    }
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    {
        std::lock_guard<std::mutex> hold(lock);
        stream->ends = true;
        changed.notify_all();
    }
    stream->worker.join();
    delete stream;
    return answer();
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    LIVE();
    if (stream->graph) return said(cudaErrorStreamCaptureUnsupported);
    stream->drain();
    return answer();
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    LIVE();
    const std::shared_ptr<Record> last = last_of(event);
    return said(stream->enqueue({false, {}, [last] { await(last); }}));
}
cudaError_t cudaEventCreate(cudaEvent_t *out) {
    LIVE();
    *out = new (std::nothrow) EmulatedEvent;
    return said(*out ? cudaSuccess : cudaErrorMemoryAllocation);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete event;
    return answer();
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    LIVE();
    const std::shared_ptr<Record> record = std::make_shared<Record>();
    {
        std::lock_guard<std::mutex> hold(lock);
        event->last = record;
    }
    return said(stream->enqueue({false, {}, [record] {
                                     std::lock_guard<std::mutex> hold(lock);
                                     record->is_done = true, record->at = std::chrono::steady_clock::now();
                                     changed.notify_all();
                                 }}));
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    LIVE();
    std::lock_guard<std::mutex> hold(lock);
    return !event->last || event->last->is_done ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    LIVE();
    await(last_of(event));
    return answer();
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    LIVE();
    std::lock_guard<std::mutex> hold(lock);
    if (!from->last || !to->last) return said(cudaErrorInvalidResourceHandle);
    if (!from->last->is_done || !to->last->is_done) return said(cudaErrorNotReady);
    *ms = std::chrono::duration<float, std::milli>(to->last->at - from->last->at).count();
    return cudaSuccess;
}

/* ---- graphs ---- */

cudaError_t cudaGraphCreate(cudaGraph_t *out, unsigned) {
    LIVE();
    *out = new (std::nothrow) EmulatedGraph;
    return said(*out ? cudaSuccess : cudaErrorMemoryAllocation);
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete graph;
    return answer();
}
cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph,
                                          const cudaGraphNode_t *dependencies, const cudaGraphEdgeData *,
                                          size_t count, cudaStreamCaptureMode) {
    LIVE();
    if (stream->graph) return said(cudaErrorStreamCaptureUnsupported);
    stream->graph = graph;
    stream->tails.assign(dependencies, dependencies + count);
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out) {
    *out = stream->graph;
    stream->graph = nullptr;
    stream->tails.clear();
    return answer();
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **tails, const cudaGraphEdgeData **,
                                     size_t *count) {
    LIVE();
    *status = stream->graph ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    *id = 0, *graph = stream->graph;
    *tails = stream->tails.data(), *count = stream->tails.size();
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long) {
    LIVE();
    try {
        std::unique_ptr<EmulatedExec> exec(new EmulatedExec);
        Executable &body = *exec->body;
        body.before.resize(graph->nodes.size());
        for (const auto &node : graph->nodes) {
            body.operations.push_back(node->operation);
            body.after.emplace_back();
            for (const EmulatedNode *a : node->after) {
                body.after.back().push_back(a->index);
                body.before[a->index].push_back(node->index);
            }
        }
        *out = exec.release();
    } catch (const std::bad_alloc &) {
        return said(cudaErrorMemoryAllocation);
    }
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    delete exec;
    return answer();
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
    return answer();
}

/* Each node after those that it depends on: half of the time what goes on where the last one ended, as
 * kernels of a chain overlap; else any that could be next. */
static std::vector<size_t> order_of(const Executable &body, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<size_t> order, ready, missing(body.operations.size());
    for (size_t i = 0; i < missing.size(); i++)
        if ((missing[i] = body.after[i].size()) == 0) ready.push_back(i);
    bool goes_on = false; /* ready's last has just become so */
    while (!ready.empty()) {
        const size_t pick = goes_on && random() % 2 ? ready.size() - 1 : random() % ready.size();
        const size_t now = ready[pick];
        ready.erase(ready.begin() + (long)pick);
        order.push_back(now);
        goes_on = false;
        for (size_t next : body.before[now])
            if (--missing[next] == 0) ready.push_back(next), goes_on = true;
    }
    return order;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    LIVE();
    const std::shared_ptr<Executable> body = exec->body;
    uint64_t seed;
    {
        std::lock_guard<std::mutex> hold(lock);
        seed = exec->launches++;
    }
    return said(stream->enqueue(
        {false, {}, [body, seed] {
             const std::vector<size_t> order = order_of(*body, seed);
             for (size_t i = 0; i < order.size(); i++) {
                 const Operation &now = body->operations[order[i]];
                 const size_t behind = i + 1 < order.size() ? order[i + 1] : order[i];
                 const bool is_chain = body->after[behind].size() == 1 && body->after[behind][0] == order[i];
                 const Operation *next = is_chain ? &body->operations[behind] : nullptr;
                 if (now.is_kernel && !emulated_is_lost())
                     emulated_execute(now.launch, next && next->is_kernel ? &next->launch : nullptr);
                 else if (!now.is_kernel)
                     now.run();
             }
         }}));
}
