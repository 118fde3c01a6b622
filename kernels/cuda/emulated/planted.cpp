#include "kernels/cuda/emulated/planted.h"
#include "kernels/cuda/cuda_internal.cuh"

namespace {

const u32 threads = 64, blocks = 3, words = threads * blocks, rounds = 12;

/* out[i] = in[i] + 1 */
__global__ void increment(u64 *out, const u64 *in) {
    gpu_release_next();
    gpu_wait();
    const u32 i = blockIdx.x * threads + threadIdx.x;
    out[i] = in[i] + 1;
}

/* out = in + 2 with each block's words rotated by 5, through shared memory, twice: by 3 within the block and
 * by 2 within each warp */
__global__ void rotate(u64 *out, const u64 *in, planted_fault fault) {
    __shared__ u64 tile[threads];
    gpu_release_next();
    const u32 i = threadIdx.x, warp = i & ~31u, base = blockIdx.x * threads;
    u64 early = 0;
    if (fault == PLANTED_KERNEL_WAIT) early = in[base + i];
    gpu_wait();
    if (fault == PLANTED_KERNEL_WAIT) {
        tile[i] = early;
    } else {
        ptx_copy_async8(tile + i, in + base + i);
        ptx_copy_commit();
        if (fault != PLANTED_COPY_WAIT) ptx_copy_wait<0>();
    }
    if (fault != PLANTED_BLOCK_WAIT) __syncthreads();
    const u64 x = tile[(i + 3) % threads] + 2;
    if (fault == PLANTED_AHEAD)
        __syncwarp();
    else if (fault != PLANTED_REUSE)
        __syncthreads();
    tile[i] = x;
    if (fault != PLANTED_WARP_WAIT) __syncwarp();
    out[base + i] = tile[warp + ((i + 2) & 31)];
}

u64 expected(u32 at) {
    const u32 i = at % threads, lane = ((i & ~31u) + ((i + 2) & 31));
    return (at / threads * threads + (lane + 3) % threads) * 7 + 1 + 2;
}

/* words -> increment -> rotate (a chain) -> one more word behind them, or beside them */
cudaError_t record(cudaStream_t stream, cudaGraph_t graph, u64 *memory, planted_fault fault) {
    u64 *in = memory, *middle = memory + words, *out = memory + 2 * words;
    cudaError_t rc =
        cudaStreamBeginCaptureToGraph(stream, graph, nullptr, nullptr, 0, cudaStreamCaptureModeThreadLocal);
    if (rc != cudaSuccess) return rc;
    gpu_may_overlap = false;
    if ((rc = gpu_launch(increment, dim3(blocks), threads, stream, 10, middle, in)) != cudaSuccess) return rc;
    if ((rc = gpu_launch(rotate, dim3(blocks), threads, stream, 10, out, middle, fault)) != cudaSuccess)
        return rc;
    cudaGraph_t same;
    if ((rc = cudaStreamEndCapture(stream, &same)) != cudaSuccess || fault != PLANTED_BRANCH) return rc;
    rc = cudaStreamBeginCaptureToGraph(stream, graph, nullptr, nullptr, 0, cudaStreamCaptureModeThreadLocal);
    if (rc == cudaSuccess) rc = cudaMemsetAsync(middle, 0, 8, stream);
    return rc == cudaSuccess ? cudaStreamEndCapture(stream, &same) : rc;
}

cudaError_t run(u64 *memory, planted_fault fault, u32 *wrong) {
    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    cudaError_t rc = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (rc == cudaSuccess) rc = cudaGraphCreate(&graph, 0);
    if (rc == cudaSuccess) rc = record(stream, graph, memory, fault);
    if (rc == cudaSuccess) rc = cudaGraphInstantiate(&exec, graph, 0);
    for (u32 round = 0; round < rounds && rc == cudaSuccess; round++) {
        for (u32 i = 0; i < words; i++) memory[i] = i * 7, memory[words + i] = memory[2 * words + i] = ~0ull;
        if ((rc = cudaGraphLaunch(exec, stream)) == cudaSuccess) rc = cudaStreamSynchronize(stream);
        for (u32 i = 0; i < words; i++) *wrong += memory[2 * words + i] != expected(i);
    }
    if (exec) cudaGraphExecDestroy(exec);
    if (graph) cudaGraphDestroy(graph);
    if (stream) cudaStreamDestroy(stream);
    return rc;
}

} // namespace

uint32_t planted_wrong_words(planted_fault fault) {
    u64 *memory = nullptr;
    u32 wrong = 0;
    if (cudaHostAlloc(reinterpret_cast<void **>(&memory), 3 * words * 8, cudaHostAllocPortable) !=
        cudaSuccess)
        return UINT32_MAX;
    const cudaError_t rc = run(memory, fault, &wrong);
    cudaFreeHost(memory);
    return rc == cudaSuccess ? wrong : UINT32_MAX;
}
