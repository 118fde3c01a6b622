/* Pointwise kernels, automorphism, copies of limbs. One thread a coefficient; grid (N / 256, limbs of the
 * output, 1 or, for a batch, its components or ciphertexts). */
#include "kernels/cuda/cuda_internal.cuh"

namespace {

const u32 threads = 256;

__device__ __forceinline__ u32 prime_of(const GpuTables &t, const kernel_basis &b, u32 limb) {
    return limb < b.q_count ? b.q_first + limb : t.q_count + (limb - b.q_count);
}
/* where limb `limb` of `from` sits in `p`, which may have more limbs: matched by prime */
__device__ __forceinline__ u32 limb_in(const kernel_poly &p, const kernel_basis &from, u32 limb) {
    return limb < from.q_count ? from.q_first + limb - p.basis.q_first
                               : p.basis.q_count + (limb - from.q_count);
}
__device__ __forceinline__ u64 *word_at(const GpuTables &t, const kernel_poly &p, u32 component, u32 limb,
                                        u32 i) {
    return p.words + (((size_t)component * p.component_stride + limb) << t.log_n) + i;
}

template <class P>
__global__ void __launch_bounds__(threads)
    unary(GpuTables t, kernel_id kernel, kernel_poly out, kernel_poly a) {
    gpu_release_next();
    gpu_wait();
    const u32 i = blockIdx.x * threads + threadIdx.x, limb = blockIdx.y, prime = prime_of(t, out.basis, limb);
    const u32 a_limb = limb_in(a, out.basis, limb);
    const P path(t.prime[prime]);
    const u64 q = t.prime[prime].q;
    if (kernel == KERNEL_SQUARE) {
        const u32 from = 2 * blockIdx.z, to = 3 * blockIdx.z;
        const u64 a0 = *word_at(t, a, from, a_limb, i), a1 = *word_at(t, a, from + 1, a_limb, i);
        typename P::Accumulator s0 = P::sum_zero(), s1 = P::sum_zero(), s2 = P::sum_zero();
        path.sum_add(s0, a0, a0);
        path.sum_add(s1, a0, a1), path.sum_add(s1, a1, a0);
        path.sum_add(s2, a1, a1);
        *word_at(t, out, to, limb, i) = path.sum_finish(s0);
        *word_at(t, out, to + 1, limb, i) = path.sum_finish(s1);
        *word_at(t, out, to + 2, limb, i) = path.sum_finish(s2);
        return;
    }
    for (u32 c = blockIdx.z; c < out.component_count; c += gridDim.z) {
        const u64 x = *word_at(t, a, c, a_limb, i);
        *word_at(t, out, c, limb, i) = kernel == KERNEL_NEGATE && x != 0 ? q - x : x;
    }
}

template <class P>
__global__ void __launch_bounds__(threads)
    binary(GpuTables t, kernel_id kernel, kernel_poly out, kernel_poly a, kernel_poly b) {
    gpu_release_next();
    gpu_wait();
    const u32 i = blockIdx.x * threads + threadIdx.x, limb = blockIdx.y, prime = prime_of(t, out.basis, limb);
    const u32 a_limb = limb_in(a, out.basis, limb), b_limb = limb_in(b, out.basis, limb);
    const P path(t.prime[prime]);
    const u64 q = t.prime[prime].q;
    if (kernel == KERNEL_MULTIPLY) {
        const u32 from = 2 * blockIdx.z, to = 3 * blockIdx.z;
        const u64 a0 = *word_at(t, a, from, a_limb, i), a1 = *word_at(t, a, from + 1, a_limb, i);
        const u64 b0 = *word_at(t, b, from, b_limb, i), b1 = *word_at(t, b, from + 1, b_limb, i);
        typename P::Accumulator s0 = P::sum_zero(), s1 = P::sum_zero(), s2 = P::sum_zero();
        path.sum_add(s0, a0, b0);
        path.sum_add(s1, a0, b1), path.sum_add(s1, a1, b0);
        path.sum_add(s2, a1, b1);
        *word_at(t, out, to, limb, i) = path.sum_finish(s0);
        *word_at(t, out, to + 1, limb, i) = path.sum_finish(s1);
        *word_at(t, out, to + 2, limb, i) = path.sum_finish(s2);
        return;
    }
    for (u32 c = blockIdx.z; c < out.component_count; c += gridDim.z) {
        const u64 x = c < a.component_count ? *word_at(t, a, c, a_limb, i) : 0;
        u64 r = x;
        if (kernel == KERNEL_MULTIPLY_PLAIN) {
            typename P::Accumulator s = P::sum_zero();
            path.sum_add(s, x, *word_at(t, b, 0, b_limb, i));
            r = path.sum_finish(s);
        } else if (c < b.component_count) {
            const u64 y = *word_at(t, b, c, b_limb, i);
            r = kernel == KERNEL_SUBTRACT ? gpu_sub(x, y, q) : gpu_add(x, y, q);
        }
        *word_at(t, out, c, limb, i) = r;
    }
}

template <class P>
__global__ void __launch_bounds__(threads) scalars(GpuTables t, kernel_id kernel, kernel_scalars_args a) {
    gpu_release_next();
    gpu_wait();
    const u32 i = blockIdx.x * threads + threadIdx.x, limb = blockIdx.y,
              prime = prime_of(t, a.out.basis, limb);
    const P path(t.prime[prime]);
    const u64 w = a.scalar[limb];
    for (u32 c = blockIdx.z; c < a.out.component_count; c += gridDim.z) {
        u64 x = *word_at(t, a.a, c, limb_in(a.a, a.out.basis, limb), i);
        if (kernel == KERNEL_MULTIPLY_SCALARS) {
            typename P::Accumulator s = P::sum_zero();
            path.sum_add(s, x, w);
            x = path.sum_finish(s);
        } else if (c == 0 || (a.every != 0 && c % a.every == 0)) {
            x = gpu_add(x, w, t.prime[prime].q);
        }
        *word_at(t, a.out, c, limb, i) = x;
    }
}

__global__ void __launch_bounds__(threads) automorphism(GpuTables t, kernel_automorphism_args a) {
    gpu_release_next();
    gpu_wait();
    const u32 i = blockIdx.x * threads + threadIdx.x, limb = blockIdx.y,
              from = gpu_permute(i, a.galois_element, t.log_n);
    for (u32 c = blockIdx.z; c < a.out.component_count; c += gridDim.z)
        *word_at(t, a.out, c, limb, i) = *word_at(t, a.a, c, limb_in(a.a, a.out.basis, limb), from);
}

/* components of one ciphertext share a thread, those of a batch (65,536 at most) do not */
dim3 grid_of(const CudaTables *tables, const kernel_poly &out, bool is_product = false) {
    const u32 parts = is_product                ? out.component_count / 3
                      : out.component_count > 3 ? min(out.component_count, 65535u)
                                                : 1;
    return dim3((1u << tables->device.log_n) / threads, basis_limb_count(out.basis), parts);
}

} // namespace

cudaError_t cuda_pointwise(cudaStream_t stream, kernel_id kernel, const void *arguments) {
    if (kernel == KERNEL_COPY || kernel == KERNEL_NEGATE || kernel == KERNEL_SQUARE) {
        const kernel_unary_args *a = static_cast<const kernel_unary_args *>(arguments);
        const CudaTables *tables = cuda_tables(a->tables);
        LAUNCH_PATH(tables, unary, grid_of(tables, a->out, kernel == KERNEL_SQUARE), threads, stream,
                    tables->device, kernel, a->out, a->a);
    } else {
        const kernel_binary_args *a = static_cast<const kernel_binary_args *>(arguments);
        const CudaTables *tables = cuda_tables(a->tables);
        LAUNCH_PATH(tables, binary, grid_of(tables, a->out, kernel == KERNEL_MULTIPLY), threads, stream,
                    tables->device, kernel, a->out, a->a, a->b);
    }
}

cudaError_t cuda_scalars(cudaStream_t stream, kernel_id kernel, const void *arguments) {
    const kernel_scalars_args *a = static_cast<const kernel_scalars_args *>(arguments);
    const CudaTables *tables = cuda_tables(a->tables);
    LAUNCH_PATH(tables, scalars, grid_of(tables, a->out), threads, stream, tables->device, kernel, *a);
}

cudaError_t cuda_automorphism(cudaStream_t stream, const kernel_automorphism_args *a) {
    const CudaTables *tables = cuda_tables(a->tables);
    return gpu_launch(automorphism, grid_of(tables, a->out), threads, stream, tables->device.log_n,
                      tables->device, *a);
}
