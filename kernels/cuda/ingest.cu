/* What arrives and leaves: UNPACK with range and padding check, EXPAND, CHECK_NONZERO, PACK. Memory-safe on
 * any word. */
#include "kernels/cuda/chacha.cuh"

namespace {

const u32 threads = 256;

__device__ __forceinline__ u32 prime_of(const GpuTables &t, const kernel_basis &b, u32 limb) {
    return limb < b.q_count ? b.q_first + limb : t.q_count + (limb - b.q_count);
}
/* byte offset of packed limb `limb` of component `component` */
__device__ u64 packed_offset(const GpuTables &t, const kernel_basis &b, u32 component, u32 limb) {
    const u32 limbs = b.q_count + b.p_count;
    u64 offset = 0, whole = 0;
    for (u32 i = 0; i < limbs; i++) {
        const u64 bytes = ((((u64)t.prime[prime_of(t, b, i)].bits << t.log_n) + 127) / 128) * 16;
        whole += bytes;
        if (i < limb) offset += bytes;
    }
    return component * whole + offset;
}

/* grid: (N / threads, limbs, components) */
__global__ void __launch_bounds__(threads) unpack(GpuTables t, kernel_unpack_args a) {
    gpu_release_next();
    gpu_wait();
    __shared__ u64 start;
    const u32 i = blockIdx.x * threads + threadIdx.x, limb = blockIdx.y, component = blockIdx.z;
    if (threadIdx.x == 0) start = packed_offset(t, a.out.basis, component, limb);
    __syncthreads();
    const GpuPrime &m = t.prime[prime_of(t, a.out.basis, limb)];
    const u64 stream_bits = (u64)m.bits << t.log_n, stream_bytes = (stream_bits + 127) / 128 * 16;
    if (start + stream_bytes > a.packed_bytes) return;  /* refused on the host; never a wild read here */
    const u64 *words = (const u64 *)(a.packed + start); /* limbs start at multiples of 16 */
    const u64 bit = (u64)i * m.bits, word = bit >> 6;
    const u32 shift = (u32)(bit & 63);
    u64 value = words[word] >> shift;
    if (shift + m.bits > 64) value |= words[word + 1] << (64 - shift);
    value &= (1ull << m.bits) - 1;
    if (value >= m.q) {
        atomicOr(a.verdict, VERDICT_RESIDUE);
        value = 0;
    }
    a.out.words[(((size_t)component * a.out.component_stride + limb) << t.log_n) + i] = value;
    if (i == 0) { /* bits after the last field */
        u64 bad = 0;
        for (u64 b = stream_bits; b < stream_bytes * 8;) {
            const u32 inside = (u32)(b & 63);
            bad |= words[b >> 6] >> inside;
            b += 64 - inside;
        }
        if (bad) atomicOr(a.verdict, VERDICT_PADDING);
    }
}

/* grid: (N / 4 / 64, limbs, components): one block of the stream, four coefficients, a thread */
__global__ void __launch_bounds__(64) expand(GpuTables t, kernel_expand_args a) {
    gpu_release_next();
    gpu_wait();
    const u32 block = blockIdx.x * 64 + threadIdx.x, limb = blockIdx.y,
              prime = prime_of(t, a.out.basis, limb);
    const GpuPrime m = t.prime[prime];
    u32 s[16];
    chacha_block(s, a.seed, block, a.purpose, a.polynomial + blockIdx.z, prime);
    u64 *out =
        a.out.words + (((size_t)blockIdx.z * a.out.component_stride + limb) << t.log_n) + (size_t)block * 4;
#pragma unroll
    for (int k = 0; k < 4; k++)
        out[k] = gpu_reduce128((u64)s[4 * k + 3] << 32 | s[4 * k + 2], (u64)s[4 * k + 1] << 32 | s[4 * k], m);
}

/* A word that is not zero anywhere: block-wide votes into a flag, then the last block decides. One block is
 * enough: it runs once per input and stops at the first non-zero word. */
__global__ void __launch_bounds__(1024) check_nonzero(GpuTables t, kernel_check_nonzero_args a) {
    gpu_release_next();
    gpu_wait();
    const u64 count = (u64)(a.a.basis.q_count + a.a.basis.p_count) << t.log_n;
    for (u64 base = 0; base < count; base += 1024)
        if (__syncthreads_or(a.a.words[base + threadIdx.x] != 0)) return;
    if (threadIdx.x == 0) atomicOr(a.verdict, VERDICT_ZERO);
}

/* grid: (ceil(64-bit words of the widest limb / threads), limbs, components): a thread gathers one 64-bit
 * word of the stream */
__global__ void __launch_bounds__(threads) pack(GpuTables t, kernel_pack_args a) {
    gpu_release_next();
    gpu_wait();
    __shared__ u64 start;
    const u32 limb = blockIdx.y, component = blockIdx.z;
    if (threadIdx.x == 0) start = packed_offset(t, a.a.basis, component, limb);
    __syncthreads();
    const u32 bits = t.prime[prime_of(t, a.a.basis, limb)].bits, n = 1u << t.log_n;
    const u64 bytes = ((((u64)bits << t.log_n) + 127) / 128) * 16,
              word = (u64)blockIdx.x * threads + threadIdx.x;
    if (word >= bytes / 8 || start + bytes > a.packed_bytes) return;
    const u64 *in = a.a.words + (((size_t)component * a.a.component_stride + limb) << t.log_n);
    u64 value = 0;
    u64 k = word * 64 / bits;
    for (; k < n && k * bits < word * 64 + 64; k++) {
        const long long at = (long long)(k * bits) - (long long)(word * 64);
        value |= at >= 0 ? in[k] << at : in[k] >> -at;
    }
    *(u64 *)(a.packed + start + word * 8) = value;
}

} // namespace

cudaError_t cuda_unpack(cudaStream_t stream, const kernel_unpack_args *a) {
    const GpuTables &t = cuda_tables(a->tables)->device;
    gpu_may_overlap = false; /* what it reads a copy has brought */
    return gpu_launch(unpack,
                      dim3((1u << t.log_n) / threads, basis_limb_count(a->out.basis), a->out.component_count),
                      threads, stream, t.log_n, t, *a);
}

cudaError_t cuda_expand(cudaStream_t stream, const kernel_expand_args *a) {
    const GpuTables &t = cuda_tables(a->tables)->device;
    return gpu_launch(expand,
                      dim3((1u << t.log_n) / 256, basis_limb_count(a->out.basis), a->out.component_count), 64,
                      stream, t.log_n, t, *a);
}

cudaError_t cuda_check_nonzero(cudaStream_t stream, const kernel_check_nonzero_args *a) {
    const GpuTables &t = cuda_tables(a->tables)->device;
    return gpu_launch(check_nonzero, dim3(1), 1024, stream, t.log_n, t, *a);
}

cudaError_t cuda_pack(cudaStream_t stream, const kernel_pack_args *a) {
    const GpuTables &t = cuda_tables(a->tables)->device;
    const u32 words = ((CKKS_PRIME_BITS_MAX << t.log_n) / 128 + 1) * 2;
    const dim3 grid((words + threads - 1) / threads, basis_limb_count(a->a.basis), a->a.component_count);
    return gpu_launch(pack, grid, threads, stream, t.log_n, t, *a);
}
