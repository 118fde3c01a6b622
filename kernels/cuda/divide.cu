/*
 * MOD_DOWN and RESCALE: inverse rows and columns of the D residues, conversion + forward columns for the
 * limbs that stay, forward rows with the division in their store: four launches for all values together
 * (three where the conversion does its inverse columns itself).
 * KEY_SWITCH comes here with the first of them done.
 */
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/divide.cuh"
#include "kernels/cuda/rows.cuh"

namespace {

/* One limb of one numerator: a, plus P * permuted add where there is one. */
template <class P> struct Numerator {
    const u64 *a, *add; /* add NULL: none */
    typename P::C p_product;
    u32 galois, log_n;
    u64 q;
    template <int COUNT>
    __device__ __forceinline__ void words(u64 (&w)[COUNT], const P &path, u32 at, u32 step) const {
#pragma unroll
        for (int k = 0; k < COUNT; k++) w[k] = a[at + (u32)k * step];
        if (!add) return;
        u64 extra[COUNT];
#pragma unroll
        for (int k = 0; k < COUNT; k++) {
            const u32 i = at + (u32)k * step;
            extra[k] = add[galois == 1 ? i : gpu_permute(i, galois, log_n)];
        }
#pragma unroll
        for (int k = 0; k < COUNT; k++)
            w[k] = gpu_add(w[k], path.mul_canonical(path.load(extra[k]), p_product), q);
    }
};
template <class P>
__device__ __forceinline__ Numerator<P> numerator_of(const P &path, const GpuTables &t, const DivideArgs &d,
                                                     u32 value, u32 limb, u32 prime) {
    const u32 components = d.out.component_count, batch = value / components, component = value % components;
    const bool has_add = d.add.words != nullptr && component < d.add.component_count && limb < d.q_limbs;
    return {
        d.a.words +
            (((size_t)batch * d.a_batch_stride + (size_t)component * d.a.component_stride + limb) << t.log_n),
        has_add
            ? d.add.words +
                  (((size_t)batch * d.add_batch_stride + (size_t)component * d.add.component_stride + limb)
                   << t.log_n)
            : nullptr,
        path.constant(has_add ? t.prime[prime].p_product : 0),
        d.add_galois,
        t.log_n,
        t.prime[prime].q};
}

template <class P, bool LAST> struct DivideInverseJob {
    P path;
    u32 prime;
    Numerator<P> numerator;
    typename P::C hat_inverse_n;
    u64 *y;
    template <int COUNT>
    __device__ __forceinline__ void load(typename P::T (&x)[COUNT], u32 at, u32 step) const {
        if constexpr (LAST) {
            raw_load<P>(x, y, at, step);
        } else {
            u64 w[COUNT];
            numerator.words(w, path, at, step);
#pragma unroll
            for (int k = 0; k < COUNT; k++) x[k] = path.load(w[k]);
        }
    }
    template <int COUNT>
    __device__ __forceinline__ void store(const typename P::T (&x)[COUNT], u32 at, u32 step) const {
        if constexpr (!LAST) {
            raw_store<P>(y, x, at, step);
        } else {
#pragma unroll
            for (int k = 0; k < COUNT; k++) y[at + (u32)k * step] = source_raw(path, x[k], hat_inverse_n);
        }
    }
};

template <bool LAST> struct DivideInverseIO {
    DivideArgs d;
    __device__ __forceinline__ bool skip(const GpuTables &, u32) const { return false; }
    __device__ __forceinline__ void bypass(const GpuTables &, u32, u32, u32) const {}
    /* job = value * sources + source */
    template <class P>
    __device__ __forceinline__ DivideInverseJob<P, LAST> open(const GpuTables &t, u32 job,
                                                              typename P::C *) const {
        const u32 source = job % d.sources, prime = __ldg(d.conversion->source + source);
        const u32 limb = prime < t.q_count ? prime : d.q_limbs + (prime - t.q_count);
        const P path(t.prime[prime]);
        return {path, prime, numerator_of(path, t, d, job / d.sources, limb, prime),
                path.constant(LAST ? __ldg(d.conversion->hat_inverse_n + source) : 0),
                d.y + ((size_t)job << t.log_n)};
    }
};

template <class P, bool LAST> struct DivideForwardJob {
    P path;
    u32 prime;
    const GpuTables &t;
    const GpuConversion *conversion;
    u32 sources;
    const typename P::C *hat;
    const u64 *y;
    u64 *middle, *out;
    Numerator<P> numerator;
    typename P::C inverse;
    template <int COUNT>
    __device__ __forceinline__ void load(typename P::T (&x)[COUNT], u32 at, u32 step) const {
        if constexpr (LAST)
            raw_load<P>(x, middle, at, step);
        else
            convert(x, path, t, conversion, sources, prime, hat, y, at, step);
    }
    template <int COUNT>
    __device__ __forceinline__ void store(const typename P::T (&x)[COUNT], u32 at, u32 step) const {
        if constexpr (!LAST) {
            raw_store<P>(middle, x, at, step);
        } else {
            u64 w[COUNT];
            numerator.words(w, path, at, step);
#pragma unroll
            for (int k = 0; k < COUNT; k++)
                out[at + (u32)k * step] =
                    path.mul_canonical(path.load(gpu_sub(w[k], path.finish(x[k]), numerator.q)), inverse);
        }
    }
};

template <bool LAST> struct DivideForwardIO {
    DivideArgs d;
    __device__ __forceinline__ bool skip(const GpuTables &, u32) const { return false; }
    __device__ __forceinline__ void bypass(const GpuTables &, u32, u32, u32) const {}
    /* job = value * out_limbs + limb */
    template <class P>
    __device__ __forceinline__ DivideForwardJob<P, LAST> open(const GpuTables &t, u32 job,
                                                              typename P::C *constants) const {
        const u32 value = job / d.out_limbs, limb = job % d.out_limbs;
        const u32 batch = value / d.out.component_count, component = value % d.out.component_count;
        const P path(t.prime[limb]);
        if (!LAST) stage_constants(path, t, d.conversion, d.sources, limb, constants);
        return {path,
                limb,
                t,
                d.conversion,
                d.sources,
                constants,
                d.y + (((size_t)value * d.sources) << t.log_n),
                d.middle + ((size_t)job << t.log_n),
                d.out.words +
                    (((size_t)batch * d.out_batch_stride + (size_t)component * d.out.component_stride + limb)
                     << t.log_n),
                numerator_of(path, t, d, value, limb, limb),
                path.constant(LAST ? __ldg(d.conversion->product_inverse + limb) : 0)};
    }
};

/* unit = value; targets are the limbs of the quotient */
struct DivideConvertIO {
    DivideArgs d;
    __device__ __forceinline__ u32 sources(const GpuTables &, u32) const { return d.sources; }
    __device__ __forceinline__ u32 targets(const GpuTables &, u32) const { return d.out_limbs; }
    __device__ __forceinline__ u32 prime(const GpuTables &, u32, u32 target) const { return target; }
    __device__ __forceinline__ const GpuConversion *conversion(const GpuTables &, u32) const {
        return d.conversion;
    }
    __device__ __forceinline__ const u64 *y(const GpuTables &t, u32 unit) const {
        return d.y + (((size_t)unit * d.sources) << t.log_n);
    }
    __device__ __forceinline__ u64 *out(const GpuTables &t, u32 unit, u32 target) const {
        return d.middle + (((size_t)unit * d.out_limbs + target) << t.log_n);
    }
};

/* ---- the row pass of the conversion and the division, FP64 path: see rows.cuh ---- */

/* The terms of one value's numerator in one limb. */
struct NumeratorWords {
    const u64 *a, *add; /* add NULL: none */
};
__device__ __forceinline__ NumeratorWords numerator_words(const GpuTables &t, const DivideArgs &d, u32 value,
                                                          u32 limb) {
    const u32 components = d.out.component_count, batch = value / components, component = value % components;
    NumeratorWords w = {
        d.a.words +
            (((size_t)batch * d.a_batch_stride + (size_t)component * d.a.component_stride + limb) << t.log_n),
        nullptr};
    if (d.add.words && component < d.add.component_count)
        w.add = d.add.words +
                (((size_t)batch * d.add_batch_stride + (size_t)component * d.add.component_stride + limb)
                 << t.log_n);
    return w;
}

/* grid: (row segments / (rows_warps / GROUPS), limbs, chunks of values). GROUPS warps share a segment and
 * take its values in turn. */
template <int R_LOG, int GROUPS>
__global__ void __launch_bounds__(rows_warps * 32, 4)
    divide_rows(GpuTables t, DivideArgs d, u32 values, u32 chunk) {
    typedef Rows<R_LOG> R;
    __shared__ double tiles[rows_warps][R::tile_words];
    __shared__ u64 nexts[rows_warps][rows_elements], adds[rows_warps][rows_elements];
    __shared__ ulonglong2 numerators[rows_warps][rows_elements / 2];
    gpu_release_next();
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, limb = blockIdx.y;
    const u32 segment = blockIdx.x * (rows_warps / GROUPS) + warp / GROUPS, base = segment * rows_elements;
    const u32 end = min(values, (blockIdx.z + 1) * chunk);
    double *tile = tiles[warp];
    u64 *next = nexts[warp] + lane, *extra = adds[warp] + lane;
    ulonglong2 *numerator = numerators[warp];
    const u64 once = row_once();
    const PathF64 path(t.prime[limb]);
    const double inverse = path.constant(__ldg(d.conversion->product_inverse + limb)),
                 p_product = path.constant(t.prime[limb].p_product);
    typename R::template Twiddles<false> w;
    w.load(t, limb, segment, lane);
    gpu_wait();
    auto fetch_middle = [&](u32 value) {
        const u64 *from =
            d.middle + (((size_t)value * d.out_limbs + limb) << t.log_n) + base + R::first_lane(lane);
#pragma unroll
        for (int e = 0; e < 8; e++) row_copy8_once(next + 32 * e, from + R::first_at(e), once);
    };
    auto fetch_numerator = [&](u32 value) {
        const NumeratorWords words = numerator_words(t, d, value, limb);
        row_copy_words<R_LOG>(numerator, words.a + base, lane, once);
        if (!words.add) return;
#pragma unroll
        for (int e = 0; e < 8; e++) {
            const u32 i = base + R::last_lane(lane) + R::last_at(e);
            row_copy8(extra + 32 * e,
                      words.add + (d.add_galois == 1 ? i : gpu_permute(i, d.add_galois, t.log_n)));
        }
    };
    u32 value = blockIdx.z * chunk + warp % GROUPS;
    if (value < end) fetch_middle(value);
    row_commit();
    if (value < end) fetch_numerator(value);
    row_commit();
    w.finish(path);
    for (; value < end; value += GROUPS) {
        const u32 after = value + GROUPS, component = value % d.out.component_count;
        double x[8];
        row_wait<1>();
#pragma unroll
        for (int e = 0; e < 8; e++) x[e] = PathF64::raw(next[32 * e]);
        R::forward(path, w, x, tile, lane);
        if (after < end) fetch_middle(after);
        row_commit();
        row_wait<1>();
        __syncwarp();
        u64 words[8];
        const bool has_add = d.add.words && component < d.add.component_count;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const ulonglong2 pair = numerator[R::pair_slot(lane, j)];
            words[2 * j] = pair.x, words[2 * j + 1] = pair.y;
        }
#pragma unroll
        for (int e = 0; e < 8; e++) {
            double n = path.load(words[e]);
            if (has_add) n += path.mul(path.load(extra[32 * e]), p_product);
            words[e] = path.mul_canonical(n - path.reduce(x[e]), inverse);
        }
        u64 *to = d.out.words + (((size_t)(value / d.out.component_count) * d.out_batch_stride +
                                  (size_t)component * d.out.component_stride + limb)
                                 << t.log_n);
        row_store_words<R_LOG>(to + base, words, numerator, lane);
        __syncwarp();
        if (after < end) fetch_numerator(after);
        row_commit();
    }
}

template <int R_LOG, int GROUPS>
cudaError_t divide_rows_enqueue(cudaStream_t stream, const GpuTables &t, const DivideArgs &d, u32 values) {
    const u32 blocks = ((1u << t.log_n) / rows_elements) / (rows_warps / GROUPS) * d.out_limbs;
    const u32 chunks = min((values + GROUPS - 1) / GROUPS, (rows_blocks_wanted + blocks - 1) / blocks);
    const u32 chunk = (values + chunks - 1) / chunks;
    return gpu_launch(divide_rows<R_LOG, GROUPS>,
                      dim3(blocks / d.out_limbs, d.out_limbs, (values + chunk - 1) / chunk), rows_warps * 32,
                      stream, t.log_n, t, d, values, chunk);
}

template <int R_LOG>
cudaError_t divide_rows_groups(cudaStream_t stream, const GpuTables &t, const DivideArgs &d, u32 values) {
    /* small rings: as many warps as there are; large ones: twiddles read once for two values */
    return values > 1 && ((u64)d.out_limbs << t.log_n) <= rows_few_elements
               ? divide_rows_enqueue<R_LOG, 2>(stream, t, d, values)
               : divide_rows_enqueue<R_LOG, 1>(stream, t, d, values);
}

cudaError_t divide_rows_run(cudaStream_t stream, const CudaTables *tables, const DivideArgs &d, u32 values) {
    switch (ntt_rows_log(tables->device.log_n)) {
    case 5:
        return divide_rows_groups<5>(stream, tables->device, d, values);
    case 6:
        return divide_rows_groups<6>(stream, tables->device, d, values);
    case 7:
        return divide_rows_groups<7>(stream, tables->device, d, values);
    case 8:
        return divide_rows_groups<8>(stream, tables->device, d, values);
    default:
        return cudaErrorInvalidValue;
    }
}

} // namespace

cudaError_t gpu_divide(cudaStream_t stream, const CudaTables *tables, const DivideArgs &d, bool is_begun) {
    const u32 values = d.batch_count * d.out.component_count;
    cudaError_t rc;
    if (!is_begun && (rc = ntt_run<true, false, 0>(stream, tables, DivideInverseIO<false>{d},
                                                   values * d.sources)) != cudaSuccess)
        return rc;
    if (!convert_fuses(tables, d.sources) &&
        (rc = ntt_run<true, true, 0>(stream, tables, DivideInverseIO<true>{d}, values * d.sources)) !=
            cudaSuccess)
        return rc;
    rc = convert_run(stream, tables, DivideConvertIO{d}, d.sources, values, d.out_limbs);
    if (rc == cudaErrorNotSupported)
        rc = ntt_run<false, true, REDUCE_AFTER_REDUCED>(stream, tables, DivideForwardIO<false>{d},
                                                        values * d.out_limbs);
    if (rc != cudaSuccess) return rc;
    if (tables->is_f64) return divide_rows_run(stream, tables, d, values);
    return ntt_run_i64<false, false, REDUCE_AFTER_PASS>(stream, tables, DivideForwardIO<true>{d},
                                                        values * d.out_limbs);
}

DivideArgs gpu_divide_mod_down(const CudaTables *tables, const kernel_mod_down_args *a) {
    const GpuTables &t = tables->device;
    const u32 level = a->a.basis.q_count - 1, values = a->batch_count * a->out.component_count,
              rescale = a->with_rescale ? 1 : 0;
    const u32 sources = t.p_count + rescale;
    const DivideArgs d = {a->out,
                          a->a,
                          a->add,
                          a->add_galois_element,
                          a->batch_count,
                          a->out_batch_stride,
                          a->a_batch_stride,
                          a->add_batch_stride,
                          level + 1,
                          level + 1 - rescale,
                          t.mod_down + 2 * level + rescale,
                          sources,
                          a->scratch,
                          a->scratch + (((size_t)values * sources) << t.log_n)};
    return d;
}

cudaError_t cuda_mod_down(cudaStream_t stream, const kernel_mod_down_args *a) {
    const CudaTables *tables = cuda_tables(a->tables);
    return gpu_divide(stream, tables, gpu_divide_mod_down(tables, a), false);
}

cudaError_t cuda_rescale(cudaStream_t stream, const kernel_rescale_args *a) {
    const CudaTables *tables = cuda_tables(a->tables);
    const GpuTables &t = tables->device;
    const u32 level = a->a.basis.q_count - 1;
    const DivideArgs d = {a->out,
                          a->a,
                          {},
                          1,
                          1,
                          0,
                          0,
                          0,
                          level + 1,
                          level,
                          t.rescale + level,
                          1,
                          a->scratch,
                          a->scratch + ((size_t)a->out.component_count << t.log_n)};
    return gpu_divide(stream, tables, d, false);
}
