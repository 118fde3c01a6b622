/* NTT_FORWARD and NTT_INVERSE as kernels of their own: canonical words in, canonical words out. */
#include "kernels/cuda/ntt.cuh"

namespace {

struct PlainIO {
    kernel_poly in, out;
    bool load_raw, store_raw; /* between the passes */
    bool scale_n;             /* last inverse pass: times N^-1 */

    __device__ __forceinline__ bool skip(const GpuTables &, u32) const { return false; }
    __device__ __forceinline__ void bypass(const GpuTables &, u32, u32, u32) const {}
    __device__ __forceinline__ u32 limb(u32 job) const { return job % (in.basis.q_count + in.basis.p_count); }
    __device__ __forceinline__ u32 prime(const GpuTables &t, u32 job) const {
        const u32 i = limb(job);
        return i < in.basis.q_count ? in.basis.q_first + i : t.q_count + (i - in.basis.q_count);
    }
    __device__ __forceinline__ size_t at(const GpuTables &t, const kernel_poly &p, u32 job) const {
        const u32 limbs = in.basis.q_count + in.basis.p_count;
        return ((size_t)(job / limbs) * p.component_stride + job % limbs) << t.log_n;
    }
    template <class P>
    __device__ __forceinline__ typename P::T load(const P &path, const GpuTables &t, u32 job, u32,
                                                  u32 i) const {
        if (load_raw) return P::raw(out.words[at(t, out, job) + i]);
        return path.load(in.words[at(t, in, job) + i]);
    }
    template <class P>
    __device__ __forceinline__ void store(const P &path, const GpuTables &t, u32 job, u32 prime, u32 i,
                                          typename P::T x) const {
        u64 word;
        if (store_raw)
            word = P::unraw(x);
        else if (scale_n)
            word = path.mul_canonical(x, path.constant(t.prime[prime].n_inverse));
        else
            word = path.finish(x);
        out.words[at(t, out, job) + i] = word;
    }
};

} // namespace

cudaError_t cuda_ntt(cudaStream_t stream, const kernel_unary_args *a, bool inverse) {
    const CudaTables *tables = cuda_tables(a->tables);
    const u32 jobs = a->a.component_count * basis_limb_count(a->a.basis);
    PlainIO first = {a->a, a->out, false, true, false}, second = {a->a, a->out, true, false, inverse};
    cudaError_t rc = inverse ? ntt_run<true, false>(stream, tables, first, jobs)
                             : ntt_run<false, true>(stream, tables, first, jobs);
    if (rc != cudaSuccess) return rc;
    return inverse ? ntt_run<true, true>(stream, tables, second, jobs)
                   : ntt_run<false, false>(stream, tables, second, jobs);
}
