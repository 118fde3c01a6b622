/*
 * The instructions that CUDA C++ has no name for, a function each. Without a card they are what
 * emulated/ptx.cuh says they are: the rest of the back end knows neither assembly nor who executes it.
 */
#ifndef CKKS_CUDA_PTX_CUH
#define CKKS_CUDA_PTX_CUH

#ifdef CKKS_CUDA_EMULATED
#include "kernels/cuda/emulated/ptx.cuh"
#else

/* what no kernel writes */
__device__ __forceinline__ double ptx_load_constant(const double *from) {
    double x;
    asm volatile("ld.global.nc.f64 %0, [%1];" : "=d"(x) : "l"(from));
    return x;
}
__device__ __forceinline__ void ptx_load_constants(double &a, double &b, const double *from) {
    asm volatile("ld.global.nc.v2.f64 {%0, %1}, [%2];" : "=d"(a), "=d"(b) : "l"(from));
}
__device__ __forceinline__ uint64_t ptx_load(const uint64_t *from) {
    uint64_t x;
    asm volatile("ld.global.b64 %0, [%1];" : "=l"(x) : "l"(from));
    return x;
}
/* Loads a sector into the first-level cache. The assembler leaves out a load that nobody needs; here it
 * cannot know that the value, no residue and no double of ours, never asks for the prefetch. */
__device__ __forceinline__ void ptx_touch(const void *from) {
    asm volatile("{\n\t.reg .b64 x;\n\t.reg .pred p;\n\tld.global.nc.b64 x, [%0];\n\t"
                 "setp.eq.b64 p, x, 0x7ff0000000000001;\n\t@p prefetch.global.L1 [%0];\n\t}" ::"l"(from));
}
__device__ __forceinline__ void ptx_prefetch(const void *from) {
    asm volatile("prefetch.global.L1 [%0];" ::"l"(from));
}

/* programmatic dependent launch */
__device__ __forceinline__ void ptx_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void ptx_launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* copies into shared memory, in groups */
__device__ __forceinline__ void ptx_copy_async8(void *to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from)
                 : "memory");
}
/* policy: how the second-level cache keeps what is read */
__device__ __forceinline__ uint64_t ptx_evict_first() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ __forceinline__ void ptx_copy_async8(void *to, const void *from, uint64_t policy) {
    asm volatile("cp.async.ca.shared.global.L2::cache_hint [%0], [%1], 8, %2;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "l"(policy)
                 : "memory");
}
__device__ __forceinline__ void ptx_copy_async16(void *to, const void *from, uint64_t policy) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "l"(policy)
                 : "memory");
}
__device__ __forceinline__ void ptx_copy_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int PENDING> __device__ __forceinline__ void ptx_copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* c += a * b on the matrix units, by a whole warp: see matrix.cu for who holds what */
__device__ __forceinline__ void ptx_matrix_step(double (&c)[4], const double (&a)[4], const double (&b)[2]) {
#if __CUDA_ARCH__ >= 900
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
#else
#pragma unroll
    for (int i = 0; i < 4; i++)
        asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
            : "+d"(c[2 * (i & 1)]), "+d"(c[2 * (i & 1) + 1])
            : "d"(a[i]), "d"(b[i >> 1]));
#endif
}

#endif
#endif
