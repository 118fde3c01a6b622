/*
 * Key switching: MOD_UP, MOD_DOWN, RESCALE, KEY_PRODUCT.
 *
 * MOD_UP is four launches (inverse rows, inverse columns, conversion + forward columns, forward rows) for all
 * digits and all batch entries together; MOD_DOWN and RESCALE likewise, with the division in the last pass's
 * store.
 */
#include "kernels/cuda/convert.cuh"

namespace {

/* Centred y of one source residue after the inverse transform: times (D/s)^-1 * N^-1, as the path's raw
 * value. */
__device__ __forceinline__ u64 source_raw(const PathF64 &path, double x, double hat_inverse_n) {
    return PathF64::unraw(path.centre(path.mul(x, hat_inverse_n)));
}
__device__ __forceinline__ u64 source_raw(const PathI64 &path, u64 x, u64 hat_inverse_n) {
    return gpu_mul(x, hat_inverse_n, path.m);
}

/* The constants of one conversion to one target prime, in shared memory; every thread of the block calls. */
template <class P>
__device__ __forceinline__ void stage_constants(const P &path, const GpuTables &t, const GpuConversion *c,
                                                u32 sources, u32 target, typename P::C *constants) {
    if (threadIdx.x < sources)
        constants[threadIdx.x] = path.constant(__ldg(c->hat + (size_t)threadIdx.x * t.prime_count + target));
    __syncthreads();
}

/* x[k] = sum over sources of y * hat - #{y > half} * D modulo the target prime; y of source s at y + s * N */
template <int COUNT>
__device__ __forceinline__ void convert(double (&x)[COUNT], const PathF64 &path, const GpuTables &t,
                                        const GpuConversion *, u32 sources, u32, const double *hat,
                                        const u64 *y, u32 at, u32 step) {
    double next[COUNT];
    raw_load<PathF64>(next, y, at, step);
#pragma unroll
    for (int k = 0; k < COUNT; k++) x[k] = 0.0;
    for (u32 s = 0; s < sources; s++) {
        double now[COUNT];
#pragma unroll
        for (int k = 0; k < COUNT; k++) now[k] = next[k];
        if (s + 1 < sources) raw_load<PathF64>(next, y + ((size_t)(s + 1) << t.log_n), at, step);
        const double w = hat[s];
#pragma unroll
        for (int k = 0; k < COUNT; k++) x[k] += path.mul(now[k], w);
        if ((s & 3) == 3) {
#pragma unroll
            for (int k = 0; k < COUNT; k++) x[k] = path.reduce(x[k]);
        }
    }
#pragma unroll
    for (int k = 0; k < COUNT; k++) x[k] = path.reduce(x[k]);
}
template <int COUNT>
__device__ __forceinline__ void convert(u64 (&x)[COUNT], const PathI64 &path, const GpuTables &t,
                                        const GpuConversion *c, u32 sources, u32 target, const u64 *hat,
                                        const u64 *y, u32 at, u32 step) {
    const u64 minus_product = path.m.q - __ldg(c->product + target);
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
        PathI64::Accumulator sum = PathI64::sum_zero();
        u32 above = 0;
        for (u32 s = 0; s < sources; s++) {
            const u64 value = y[((size_t)s << t.log_n) + at + (u32)k * step];
            above += value > t.prime[c->source[s]].q / 2;
            path.sum_add(sum, value, hat[s]);
        }
        path.sum_add(sum, above, minus_product);
        x[k] = path.sum_finish(sum);
    }
}

/* ---- MOD_UP ---- */

template <class P, bool LAST> struct ModUpInverseJob {
    P path;
    u32 prime;
    const u64 *in;
    u64 *scratch;
    typename P::C hat_inverse_n;
    template <int COUNT>
    __device__ __forceinline__ void load(typename P::T (&x)[COUNT], u32 at, u32 step) const {
        if constexpr (LAST) {
            raw_load<P>(x, scratch, at, step);
        } else {
#pragma unroll
            for (int k = 0; k < COUNT; k++) x[k] = path.load(in[at + (u32)k * step]);
        }
    }
    template <int COUNT>
    __device__ __forceinline__ void store(const typename P::T (&x)[COUNT], u32 at, u32 step) const {
        if constexpr (!LAST) {
            raw_store<P>(scratch, x, at, step);
        } else {
#pragma unroll
            for (int k = 0; k < COUNT; k++)
                scratch[at + (u32)k * step] = source_raw(path, x[k], hat_inverse_n);
        }
    }
};

template <bool LAST> struct ModUpInverseIO {
    kernel_mod_up_args a;
    u32 level;
    __device__ __forceinline__ bool skip(const GpuTables &, u32) const { return false; }
    __device__ __forceinline__ void bypass(const GpuTables &, u32, u32, u32) const {}
    template <class P>
    __device__ __forceinline__ ModUpInverseJob<P, LAST> open(const GpuTables &t, u32 job,
                                                             typename P::C *) const {
        const u32 prime = job % (level + 1), batch = job / (level + 1), digit = prime / t.digit_size;
        const P path(t.prime[prime]);
        const GpuConversion *c = t.mod_up + (size_t)level * t.dnum + digit;
        return {path, prime, a.a.words + (((size_t)batch * a.a_batch_stride + prime) << t.log_n),
                a.scratch + ((size_t)job << t.log_n),
                path.constant(LAST ? __ldg(c->hat_inverse_n + prime % t.digit_size) : 0)};
    }
};

template <class P, bool LAST> struct ModUpForwardJob {
    P path;
    u32 prime;
    const GpuTables &t;
    const GpuConversion *conversion;
    u32 sources;
    const typename P::C *hat;
    const u64 *y;
    u64 *out;
    template <int COUNT>
    __device__ __forceinline__ void load(typename P::T (&x)[COUNT], u32 at, u32 step) const {
        if constexpr (LAST)
            raw_load<P>(x, out, at, step);
        else
            convert(x, path, t, conversion, sources, prime, hat, y, at, step);
    }
    template <int COUNT>
    __device__ __forceinline__ void store(const typename P::T (&x)[COUNT], u32 at, u32 step) const {
        if constexpr (!LAST) {
            raw_store<P>(out, x, at, step);
        } else {
#pragma unroll
            for (int k = 0; k < COUNT; k++) out[at + (u32)k * step] = path.finish(x[k]);
        }
    }
};

template <bool LAST> struct ModUpForwardIO {
    kernel_mod_up_args a;
    u32 level, limbs, digits;
    /* job = (batch * digits + digit) * limbs + limb */
    __device__ __forceinline__ u32 limb(u32 job) const { return job % limbs; }
    __device__ __forceinline__ u32 digit(u32 job) const { return job / limbs % digits; }
    __device__ __forceinline__ u32 batch(u32 job) const { return job / limbs / digits; }
    __device__ __forceinline__ bool skip(const GpuTables &t, u32 job) const {
        return limb(job) <= level && limb(job) / t.digit_size == digit(job);
    }
    __device__ __forceinline__ void bypass(const GpuTables &t, u32 job, u32 base, u32 count) const {
        if (!LAST) return;
        const u64 *from = a.a.words + (((size_t)batch(job) * a.a_batch_stride + limb(job)) << t.log_n);
        u64 *to = a.out + ((size_t)job << t.log_n);
        for (u32 i = base + threadIdx.x; i < base + count; i += blockDim.x) to[i] = from[i];
    }
    template <class P>
    __device__ __forceinline__ ModUpForwardJob<P, LAST> open(const GpuTables &t, u32 job,
                                                             typename P::C *constants) const {
        const u32 prime = limb(job) <= level ? limb(job) : t.q_count + limb(job) - level - 1;
        const u32 first = digit(job) * t.digit_size, sources = min(t.digit_size, level + 1 - first);
        const P path(t.prime[prime]);
        const GpuConversion *c = t.mod_up + (size_t)level * t.dnum + digit(job);
        if (!LAST) stage_constants(path, t, c, sources, prime, constants);
        return {path,
                prime,
                t,
                c,
                sources,
                constants,
                a.scratch + (((size_t)batch(job) * (level + 1) + first) << t.log_n),
                a.out + ((size_t)job << t.log_n)};
    }
};

/* unit = batch * digits + digit; targets are all limbs but the digit's own */
struct ModUpConvertIO {
    kernel_mod_up_args a;
    u32 level, limbs, digits;
    __device__ __forceinline__ u32 first(const GpuTables &t, u32 unit) const {
        return unit % digits * t.digit_size;
    }
    __device__ __forceinline__ u32 sources(const GpuTables &t, u32 unit) const {
        return min(t.digit_size, level + 1 - first(t, unit));
    }
    __device__ __forceinline__ u32 targets(const GpuTables &t, u32 unit) const {
        return limbs - sources(t, unit);
    }
    __device__ __forceinline__ u32 limb(const GpuTables &t, u32 unit, u32 target) const {
        return target < first(t, unit) ? target : target + sources(t, unit);
    }
    __device__ __forceinline__ u32 prime(const GpuTables &t, u32 unit, u32 target) const {
        const u32 i = limb(t, unit, target);
        return i <= level ? i : t.q_count + i - level - 1;
    }
    __device__ __forceinline__ const GpuConversion *conversion(const GpuTables &t, u32 unit) const {
        return t.mod_up + (size_t)level * t.dnum + unit % digits;
    }
    __device__ __forceinline__ const u64 *y(const GpuTables &t, u32 unit) const {
        return a.scratch + (((size_t)(unit / digits) * (level + 1) + first(t, unit)) << t.log_n);
    }
    __device__ __forceinline__ u64 *out(const GpuTables &t, u32 unit, u32 target) const {
        return a.out + (((size_t)unit * limbs + limb(t, unit, target)) << t.log_n);
    }
};

/* ---- division by D: MOD_DOWN and RESCALE ---- */

struct DivideArgs {
    kernel_poly out, a, add; /* add.words NULL = absent */
    u32 add_galois;
    u32 batch_count, out_batch_stride, a_batch_stride, add_batch_stride;
    u32 q_limbs; /* of the numerator: its level + 1 */
    u32 out_limbs;
    const GpuConversion *conversion; /* device */
    u32 sources;
    u64 *y, *middle; /* scratch: [value][source][N], [value][out limb][N] */
};

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

cudaError_t divide(cudaStream_t stream, const CudaTables *tables, const DivideArgs &d) {
    const u32 values = d.batch_count * d.out.component_count;
    cudaError_t rc;
    if ((rc = ntt_run<true, false, 0>(stream, tables, DivideInverseIO<false>{d}, values * d.sources)) !=
        cudaSuccess)
        return rc;
    if ((rc = ntt_run<true, true, 0>(stream, tables, DivideInverseIO<true>{d}, values * d.sources)) !=
        cudaSuccess)
        return rc;
    rc = convert_run(stream, tables, DivideConvertIO{d}, d.sources, values, d.out_limbs);
    if (rc == cudaErrorNotSupported)
        rc = ntt_run<false, true, REDUCE_AFTER_REDUCED>(stream, tables, DivideForwardIO<false>{d},
                                                        values * d.out_limbs);
    if (rc != cudaSuccess) return rc;
    return ntt_run<false, false, REDUCE_AFTER_PASS>(stream, tables, DivideForwardIO<true>{d},
                                                    values * d.out_limbs);
}

/* ---- KEY_PRODUCT ---- */

struct KeyProductShape {
    u32 level, q_limbs, limbs, digits, p_count;
};

/* grid: (N / threads, limbs, out_count); one coefficient of one limb of one out, both components */
template <class P>
__global__ void __launch_bounds__(128)
    key_product(GpuTables t, kernel_key_product_args a, KeyProductShape s) {
    gpu_release_next();
    gpu_wait();
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x, limb = blockIdx.y, out_index = blockIdx.z;
    const u32 prime = limb < s.q_limbs ? limb : t.q_count + limb - s.q_limbs;
    const P path(t.prime[prime]);
    typename P::Accumulator sum0 = P::sum_zero(), sum1 = P::sum_zero();
    u32 terms = 0;
    for (u32 n = a.items ? 0 : out_index; n < (a.items ? a.item_count : out_index + 1); n++) {
        key_product_item item = a.uniform;
        if (a.items) {
            item = a.items[n];
            if (item.out_index != out_index) continue;
        } else {
            item.digits = n;
        }
        const u32 from = item.galois_element == 1 ? i : gpu_permute(i, item.galois_element, t.log_n);
        const key_table_entry entry = a.keys[item.key];
        if (a.add && limb < s.q_limbs) {
            path.sum_add(sum0, a.add[(((size_t)item.digits * a.add_stride + limb) << t.log_n) + from],
                         t.prime[prime].p_product);
            if (++terms % P::sum_terms == 0) path.sum_fold(sum0), path.sum_fold(sum1);
        }
        if (entry.address == 0 || entry.q_limb_count < s.q_limbs) continue;
        const u32 key_limbs = entry.q_limb_count + s.p_count;
        const u32 key_limb = limb < s.q_limbs ? limb : entry.q_limb_count + limb - s.q_limbs;
        const u64 *key = (const u64 *)entry.address + (((size_t)key_limb) << t.log_n) + i;
        const u64 *digit = a.digits + ((((size_t)item.digits * s.digits) * s.limbs + limb) << t.log_n) + from;
        for (u32 d = 0; d < s.digits; d++) {
            const u64 x = digit[((size_t)d * s.limbs) << t.log_n];
            path.sum_add(sum0, x, key[((size_t)(2 * d) * key_limbs) << t.log_n]);
            path.sum_add(sum1, x, key[((size_t)(2 * d + 1) * key_limbs) << t.log_n]);
            if (++terms % P::sum_terms == 0) path.sum_fold(sum0), path.sum_fold(sum1);
        }
    }
    u64 *out = a.out + ((((size_t)out_index * 2) * s.limbs + limb) << t.log_n) + i;
    out[0] = path.sum_finish(sum0);
    out[(size_t)s.limbs << t.log_n] = path.sum_finish(sum1);
}

} // namespace

cudaError_t cuda_mod_up(cudaStream_t stream, const kernel_mod_up_args *a) {
    const CudaTables *tables = cuda_tables(a->tables);
    const u32 level = a->a.basis.q_count - 1, limbs = level + 1 + tables->device.p_count;
    const u32 digits = (level + tables->device.digit_size) / tables->device.digit_size;
    const u32 sources = a->batch_count * (level + 1), jobs = a->batch_count * digits * limbs;
    cudaError_t rc;
    if ((rc = ntt_run<true, false, 0>(stream, tables, ModUpInverseIO<false>{*a, level}, sources)) !=
        cudaSuccess)
        return rc;
    if ((rc = ntt_run<true, true, 0>(stream, tables, ModUpInverseIO<true>{*a, level}, sources)) !=
        cudaSuccess)
        return rc;
    const u32 most = min(tables->device.digit_size, level + 1),
              least = level + 1 - (digits - 1) * tables->device.digit_size;
    rc = convert_run(stream, tables, ModUpConvertIO{*a, level, limbs, digits}, most, a->batch_count * digits,
                     limbs - min(least, most));
    if (rc == cudaErrorNotSupported)
        rc = ntt_run<false, true, REDUCE_AFTER_REDUCED>(
            stream, tables, ModUpForwardIO<false>{*a, level, limbs, digits}, jobs);
    if (rc != cudaSuccess) return rc;
    return ntt_run<false, false, REDUCE_AFTER_PASS>(stream, tables,
                                                    ModUpForwardIO<true>{*a, level, limbs, digits}, jobs);
}

cudaError_t cuda_mod_down(cudaStream_t stream, const kernel_mod_down_args *a) {
    const CudaTables *tables = cuda_tables(a->tables);
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
    return divide(stream, tables, d);
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
    return divide(stream, tables, d);
}

cudaError_t cuda_key_product(cudaStream_t stream, const kernel_key_product_args *a) {
    const CudaTables *tables = cuda_tables(a->tables);
    const GpuTables &t = tables->device;
    KeyProductShape s = {a->level, a->level + 1, 0, 0, a->is_public ? 0 : t.p_count};
    s.limbs = s.q_limbs + s.p_count;
    s.digits = a->is_public ? 1 : (a->level + t.digit_size) / t.digit_size;
    const u32 n = 1u << t.log_n;
    LAUNCH_PATH(tables, key_product, dim3(n / 128, s.limbs, a->out_count), 128, stream, t, *a, s);
}
