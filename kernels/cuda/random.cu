/* SAMPLE and COUNTER_ADVANCE: noise from a stream whose block counter lives in device memory. */
#include "kernels/cuda/chacha.cuh"

namespace {

__device__ __forceinline__ void store_signed(const GpuTables &t, const kernel_poly &out, u32 i,
                                             long long value) {
    for (u32 limb = 0; limb < out.basis.q_count + out.basis.p_count; limb++) {
        const u32 prime =
            limb < out.basis.q_count ? out.basis.q_first + limb : t.q_count + (limb - out.basis.q_count);
        const GpuPrime &m = t.prime[prime];
        const u64 magnitude = gpu_reduce128(0, value < 0 ? (u64)-value : (u64)value, m);
        out.words[((size_t)limb << t.log_n) + i] = value < 0 && magnitude ? m.q - magnitude : magnitude;
    }
}

/* one block of the stream a thread: 4 (ternary) or 8 coefficients */
__global__ void __launch_bounds__(64) sample(GpuTables t, kernel_sample_args a) {
    gpu_release_next();
    gpu_wait();
    const u32 block = blockIdx.x * 64 + threadIdx.x, per_block = a.kind == SAMPLE_TERNARY ? 4 : 8;
    if (((u64)block * per_block) >> t.log_n) return;
    const u64 counter = a.random->counter + a.block_offset + block;
    u32 s[16];
    chacha_block(s, a.random->key, (u32)counter, (u32)(counter >> 32), 0, 0);
    for (u32 k = 0; k < per_block; k++) {
        long long value;
        if (a.kind == SAMPLE_TERNARY) {
            /* 2^32 = 1 mod 3: the 128-bit word mod 3 is the sum of its digits mod 3 */
            const u64 sum = (u64)s[4 * k] + s[4 * k + 1] + s[4 * k + 2] + s[4 * k + 3];
            value = (long long)(sum % 3) - 1;
        } else {
            const u64 bits = (u64)s[2 * k + 1] << 32 | s[2 * k];
            if (a.kind == SAMPLE_ERROR)
                value = __popcll(bits & 0x1fffff) - __popcll((bits >> 21) & 0x1fffff);
            else
                value = (long long)(bits & ((2ull << a.flood_bits) - 1)) - (long long)(1ull << a.flood_bits);
        }
        store_signed(t, a.out, block * per_block + k, value);
    }
}

__global__ void advance(kernel_counter_args a) {
    gpu_release_next();
    gpu_wait();
    a.random->counter += a.block_count;
}

} // namespace

cudaError_t cuda_sample(cudaStream_t stream, const kernel_sample_args *a) {
    const GpuTables &t = cuda_tables(a->tables)->device;
    const u32 blocks = (u32)sample_block_count(a->kind, 1u << t.log_n);
    return gpu_launch(sample, dim3((blocks + 63) / 64), 64, stream, t.log_n, t, *a);
}

cudaError_t cuda_counter_advance(cudaStream_t stream, const kernel_counter_args *a) {
    return gpu_launch(advance, dim3(1), 1, stream, cuda_tables(a->tables)->device.log_n, *a);
}
