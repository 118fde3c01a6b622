/*
 * The part of the CUDA runtime that this back end uses, without a card: its kernels and its host code are
 * compiled as C++ for this machine, and a test of the CUDA device runs anywhere, under the sanitizers too.
 * Names and numbers are the runtime's; what they do is in runtime.cpp (memory, streams, events, graphs) and
 * threads.cpp (the threads of a block).
 *
 * For tests alone: nothing that is installed contains it. It is right rather than fast, and adversarial where
 * the runtime leaves something open (emulated/README.md).
 */
#ifndef CKKS_CUDA_EMULATED_RUNTIME_H
#define CKKS_CUDA_EMULATED_RUNTIME_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#define CUDART_VERSION 13000

/* ---- types ---- */

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInsufficientDriver = 35,
    cudaErrorDevicesUnavailable = 46,
    cudaErrorInvalidDeviceFunction = 98,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorNoKernelImageForDevice = 209,
    cudaErrorECCUncorrectable = 214,
    cudaErrorUnsupportedPtxVersion = 222,
    cudaErrorNvlinkUncorrectable = 220,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700,
    cudaErrorLaunchTimeout = 702,
    cudaErrorAssert = 710,
    cudaErrorHardwareStackError = 714,
    cudaErrorIllegalInstruction = 715,
    cudaErrorMisalignedAddress = 716,
    cudaErrorInvalidAddressSpace = 717,
    cudaErrorInvalidPc = 718,
    cudaErrorLaunchFailure = 719,
    cudaErrorNotSupported = 801,
    cudaErrorStreamCaptureUnsupported = 900,
};

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(16) double2 {
    double x, y;
};
struct alignas(16) ulonglong2 {
    unsigned long x, y; /* 64 bits, of the type that uint64_t is here */
};
static inline ulonglong2 make_ulonglong2(unsigned long x, unsigned long y) {
    return {x, y};
}
static inline double2 make_double2(double x, double y) {
    return {x, y};
}

typedef struct EmulatedStream *cudaStream_t;
typedef struct EmulatedEvent *cudaEvent_t;
typedef struct EmulatedGraph *cudaGraph_t;
typedef struct EmulatedExec *cudaGraphExec_t;
typedef struct EmulatedNode *cudaGraphNode_t;
struct cudaGraphEdgeData;

struct cudaUUID_t {
    char bytes[16];
};
struct cudaDeviceProp {
    char name[256];
    cudaUUID_t uuid;
    int major, minor;
};
struct cudaFuncAttributes {
    int numRegs;
};

enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive };
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount = 16 };
const unsigned cudaStreamNonBlocking = 1, cudaHostAllocPortable = 1;

enum cudaLaunchAttributeID {
    cudaLaunchAttributeProgrammaticStreamSerialization = 6,
    cudaLaunchAttributePreferredSharedMemoryCarveout = 14
};
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    union {
        int programmaticStreamSerializationAllowed;
        unsigned sharedMemCarveout;
    } val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};

/* ---- the runtime ---- */

cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device);
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetLastError();
const char *cudaGetErrorString(cudaError_t error);
const char *cudaGetErrorName(cudaError_t error);

cudaError_t cudaMemGetInfo(size_t *available, size_t *total);
cudaError_t cudaMalloc(void **out, size_t bytes);
cudaError_t cudaFree(void *address);
cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void *address);
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreate(cudaEvent_t *out);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);

cudaError_t cudaGraphCreate(cudaGraph_t *out, unsigned flags);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph,
                                          const cudaGraphNode_t *dependencies, const cudaGraphEdgeData *data,
                                          size_t count, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out);
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **tails, const cudaGraphEdgeData **data,
                                     size_t *count);

/* A kernel to be executed: body() is one thread of it. */
struct EmulatedLaunch {
    const void *kernel;
    dim3 grid, block;
    bool may_overlap; /* with the kernel before it */
    std::function<void()> body;
};
cudaError_t emulated_launch(cudaStream_t stream, EmulatedLaunch &&launch);

template <class... Parameters, class... Arguments>
static cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(Parameters...),
                                      Arguments... arguments) {
    EmulatedLaunch launch = {reinterpret_cast<const void *>(kernel), config->gridDim, config->blockDim, false,
                             [=] { kernel(arguments...); }};
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization)
            launch.may_overlap = config->attrs[i].val.programmaticStreamSerializationAllowed != 0;
    return emulated_launch(config->stream, static_cast<EmulatedLaunch &&>(launch));
}
template <class... Parameters>
static cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *out, void (*)(Parameters...)) {
    out->numRegs = 1;
    return cudaSuccess;
}
static inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *, int,
                                                                        size_t) {
    *blocks = 4;
    return cudaSuccess;
}

/* ---- a thread of a block ---- */

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
/* one kernel runs at a time, and one block of it (threads.cpp) */
#define __shared__ static

/* of the thread of a block that runs on this thread of the process (threads.cpp) */
struct EmulatedIndex {
    unsigned x, y, z;
};
extern thread_local EmulatedIndex threadIdx, blockIdx, blockDim, gridDim;

/* The calling thread waits for its block, or its warp; nobody may be missing who has not ended. */
void emulated_sync_block(const char *where);
void emulated_sync_warp(const char *where);
/* Each thread of the warp gives `bytes` (at most 64) and gets what each of the 32 gave: [lane]. Valid until
 * its next exchange. */
const unsigned char (*emulated_exchange(const void *given, size_t bytes, const char *where))[64];
[[noreturn]] void emulated_trap(const char *file, int line);

#define EMULATED_TEXT2(x) #x
#define EMULATED_TEXT(x)  EMULATED_TEXT2(x)
#define EMULATED_HERE     __FILE__ ":" EMULATED_TEXT(__LINE__)
#define __trap()          emulated_trap(__FILE__, __LINE__)
#define __syncthreads()   emulated_sync_block(EMULATED_HERE)
#define __syncwarp()      emulated_sync_warp(EMULATED_HERE)

static inline unsigned emulated_lane() {
    return threadIdx.x & 31;
}
static inline int __syncthreads_or(int condition) {
    static int any; /* of the one block that runs */
    emulated_sync_block("__syncthreads_or");
    any = 0;
    emulated_sync_block("__syncthreads_or");
    if (condition) any = 1;
    emulated_sync_block("__syncthreads_or");
    return any;
}
template <class T> static T __shfl_xor_sync(unsigned, T x, int distance) {
    T got;
    memcpy(&got, emulated_exchange(&x, sizeof x, "__shfl_xor_sync")[emulated_lane() ^ (unsigned)distance],
           sizeof got);
    return got;
}
static inline unsigned __reduce_max_sync(unsigned, unsigned x) {
    unsigned most = 0;
    const unsigned char(*all)[64] = emulated_exchange(&x, sizeof x, "__reduce_max_sync");
    for (int lane = 0; lane < 32; lane++) {
        unsigned one;
        memcpy(&one, all[lane], sizeof one);
        if (one > most) most = one;
    }
    return most;
}

/* one thread of the kernel runs at a time */
static inline unsigned atomicOr(unsigned *at, unsigned bits) {
    const unsigned before = *at;
    *at |= bits;
    return before;
}
static inline unsigned atomicMax(unsigned *at, unsigned x) {
    const unsigned before = *at;
    if (x > before) *at = x;
    return before;
}

/* ---- what an instruction does ---- */

template <class T> static T __ldg(const T *from) {
    return *from;
}
template <class T> static T __ldcs(const T *from) {
    return *from;
}
template <class T> static T min(T a, T b) {
    return b < a ? b : a;
}
template <class T> static T max(T a, T b) {
    return a < b ? b : a;
}
static inline double __fma_rn(double a, double b, double c) {
    return __builtin_fma(a, b, c);
}
static inline double __dadd_rn(double a, double b) {
    return a + b;
}
static inline double __dmul_rn(double a, double b) {
    return a * b;
}
static inline unsigned long __umul64hi(unsigned long a, unsigned long b) {
    return (unsigned long)((unsigned __int128)a * b >> 64);
}
static inline unsigned __brev(unsigned x) {
    x = (x & 0x55555555u) << 1 | (x >> 1 & 0x55555555u);
    x = (x & 0x33333333u) << 2 | (x >> 2 & 0x33333333u);
    x = (x & 0x0f0f0f0fu) << 4 | (x >> 4 & 0x0f0f0f0fu);
    return __builtin_bswap32(x);
}
static inline int __popcll(unsigned long long x) {
    return __builtin_popcountll(x);
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned count) {
    return (unsigned)(((unsigned long)high << 32 | low) << (count & 31) >> 32);
}
static inline double __longlong_as_double(long long x) {
    double d;
    memcpy(&d, &x, sizeof d);
    return d;
}
static inline long long __double_as_longlong(double d) {
    long long x;
    memcpy(&x, &d, sizeof x);
    return x;
}
static inline int __double2loint(double d) {
    return (int)(unsigned)__double_as_longlong(d);
}
static inline double __hiloint2double(int high, int low) {
    return __longlong_as_double((long long)((unsigned long)(unsigned)high << 32 | (unsigned)low));
}

#endif
