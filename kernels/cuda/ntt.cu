/* NTT_FORWARD and NTT_INVERSE as kernels of their own: canonical words in, canonical words out. */
#include "kernels/cuda/ntt_run.cuh"

namespace {

template <class P, bool FIRST, bool INVERSE> struct PlainJob {
    P path;
    u32 prime;
    const u64 *in;
    u64 *out;
    typename P::C n_inverse;
    template <int COUNT>
    __device__ __forceinline__ void load(typename P::T (&x)[COUNT], u32 at, u32 step) const {
        if constexpr (FIRST) {
#pragma unroll
            for (int k = 0; k < COUNT; k++) x[k] = path.load(in[at + (u32)k * step]);
        } else {
            raw_load<P>(x, out, at, step);
        }
    }
    template <int COUNT>
    __device__ __forceinline__ void store(const typename P::T (&x)[COUNT], u32 at, u32 step) const {
        if constexpr (FIRST) {
            raw_store<P>(out, x, at, step);
        } else {
#pragma unroll
            for (int k = 0; k < COUNT; k++)
                out[at + (u32)k * step] = INVERSE ? path.mul_canonical(x[k], n_inverse) : path.finish(x[k]);
        }
    }
};

template <bool FIRST, bool INVERSE> struct PlainIO {
    kernel_poly in, out;
    __device__ __forceinline__ bool skip(const GpuTables &, u32) const { return false; }
    __device__ __forceinline__ void bypass(const GpuTables &, u32, u32, u32) const {}
    template <class P>
    __device__ __forceinline__ PlainJob<P, FIRST, INVERSE> open(const GpuTables &t, u32 job,
                                                                typename P::C *) const {
        const kernel_basis &b = out.basis;
        const u32 limbs = b.q_count + b.p_count, component = job / limbs, limb = job % limbs;
        const u32 prime = limb < b.q_count ? b.q_first + limb : t.q_count + (limb - b.q_count);
        const u32 from = limb < b.q_count ? prime - in.basis.q_first : in.basis.q_count + (limb - b.q_count);
        const P path(t.prime[prime]);
        return {path, prime, in.words + (((size_t)component * in.component_stride + from) << t.log_n),
                out.words + (((size_t)component * out.component_stride + limb) << t.log_n),
                path.constant(t.prime[prime].n_inverse)};
    }
};

} // namespace

cudaError_t cuda_ntt(cudaStream_t stream, const kernel_unary_args *a, bool inverse) {
    const CudaTables *tables = cuda_tables(a->tables);
    const u32 jobs = a->out.component_count * basis_limb_count(a->out.basis);
    cudaError_t rc;
    if (inverse) {
        rc = ntt_run<true, false, 0>(stream, tables, PlainIO<true, true>{a->a, a->out}, jobs);
        return rc != cudaSuccess
                   ? rc
                   : ntt_run<true, true, 0>(stream, tables, PlainIO<false, true>{a->a, a->out}, jobs);
    }
    rc = ntt_run<false, true, REDUCE_AFTER_CANONICAL>(stream, tables, PlainIO<true, false>{a->a, a->out},
                                                      jobs);
    return rc != cudaSuccess ? rc
                             : ntt_run<false, false, REDUCE_AFTER_PASS>(
                                   stream, tables, PlainIO<false, false>{a->a, a->out}, jobs);
}
