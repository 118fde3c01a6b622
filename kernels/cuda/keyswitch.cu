/*
 * Key switching: MOD_UP, MOD_DOWN, RESCALE, KEY_PRODUCT.
 *
 * MOD_UP is four launches (inverse rows, inverse columns, conversion + forward columns, forward rows) for all
 * digits and all batch entries together; MOD_DOWN and RESCALE likewise, with the division in the last pass's
 * store.
 */
#include "kernels/cuda/ntt.cuh"

namespace {

/* Centred y of one source residue after the inverse transform: times (D/s)^-1 * N^-1, centred. As the path's
 * raw value. */
__device__ __forceinline__ u64 source_raw(const PathF64 &path, double x, u64 hat_inverse_n) {
    return PathF64::unraw(path.centre(path.mul(x, path.constant(hat_inverse_n))));
}
__device__ __forceinline__ u64 source_raw(const PathI64 &path, u64 x, u64 hat_inverse_n) {
    return gpu_mul(x, hat_inverse_n, path.m);
}

/* sum of y_i * hat_i - #{y_i > half} * D modulo the target prime; y at stride N words */
__device__ __forceinline__ double convert(const PathF64 &path, const GpuTables &t, const GpuConversion &c,
                                          u32 target, const u64 *y, u32 i) {
    double sum = 0.0;
    for (u32 s = 0; s < c.source_count; s++) {
        const double w = path.constant(__ldg(c.hat + (size_t)s * t.prime_count + target));
        sum += path.mul(PathF64::raw(y[((size_t)s << t.log_n) + i]), w);
        if ((s & 3) == 3) sum = path.reduce(sum);
    }
    return path.reduce(sum);
}
__device__ __forceinline__ u64 convert(const PathI64 &path, const GpuTables &t, const GpuConversion &c,
                                       u32 target, const u64 *y, u32 i) {
    PathI64::Accumulator sum = PathI64::sum_zero();
    u32 above = 0;
    for (u32 s = 0; s < c.source_count; s++) {
        const u64 value = y[((size_t)s << t.log_n) + i];
        above += value > t.prime[c.source[s]].q / 2;
        path.sum_add(sum, value, __ldg(c.hat + (size_t)s * t.prime_count + target));
    }
    path.sum_add(sum, above, path.m.q - __ldg(c.product + target));
    return path.sum_finish(sum);
}

/* ---- MOD_UP ---- */

struct ModUpInverseIO {
    kernel_mod_up_args a;
    u32 level;
    bool last;
    __device__ __forceinline__ bool skip(const GpuTables &, u32) const { return false; }
    __device__ __forceinline__ void bypass(const GpuTables &, u32, u32, u32) const {}
    __device__ __forceinline__ u32 prime(const GpuTables &, u32 job) const { return job % (level + 1); }
    template <class P>
    __device__ __forceinline__ typename P::T load(const P &path, const GpuTables &t, u32 job, u32 prime,
                                                  u32 i) const {
        if (last) return P::raw(a.scratch[((size_t)job << t.log_n) + i]);
        const u32 batch = job / (level + 1);
        return path.load(a.a.words[(((size_t)batch * a.a_batch_stride + prime) << t.log_n) + i]);
    }
    template <class P>
    __device__ __forceinline__ void store(const P &path, const GpuTables &t, u32 job, u32 prime, u32 i,
                                          typename P::T x) const {
        u64 word = P::unraw(x);
        if (last) {
            const u32 digit = prime / t.digit_size;
            const GpuConversion &c = t.mod_up[(size_t)level * t.dnum + digit];
            word = source_raw(path, x, __ldg(c.hat_inverse_n + prime % t.digit_size));
        }
        a.scratch[((size_t)job << t.log_n) + i] = word;
    }
};

struct ModUpForwardIO {
    kernel_mod_up_args a;
    u32 level, limbs, digits;
    bool last;
    /* job = (batch * digits + digit) * limbs + limb */
    __device__ __forceinline__ u32 limb(u32 job) const { return job % limbs; }
    __device__ __forceinline__ u32 digit(u32 job) const { return job / limbs % digits; }
    __device__ __forceinline__ u32 batch(u32 job) const { return job / limbs / digits; }
    __device__ __forceinline__ bool skip(const GpuTables &t, u32 job) const {
        return limb(job) <= level && limb(job) / t.digit_size == digit(job);
    }
    __device__ __forceinline__ void bypass(const GpuTables &t, u32 job, u32 base, u32 count) const {
        if (last) return;
        const u64 *from = a.a.words + (((size_t)batch(job) * a.a_batch_stride + limb(job)) << t.log_n);
        u64 *to = a.out + ((size_t)job << t.log_n);
        for (u32 i = base + threadIdx.x; i < base + count; i += blockDim.x) to[i] = from[i];
    }
    __device__ __forceinline__ u32 prime(const GpuTables &t, u32 job) const {
        return limb(job) <= level ? limb(job) : t.q_count + limb(job) - level - 1;
    }
    template <class P>
    __device__ __forceinline__ typename P::T load(const P &path, const GpuTables &t, u32 job, u32 prime,
                                                  u32 i) const {
        if (last) return P::raw(a.out[((size_t)job << t.log_n) + i]);
        const GpuConversion &c = t.mod_up[(size_t)level * t.dnum + digit(job)];
        const u64 *y =
            a.scratch + (((size_t)batch(job) * (level + 1) + digit(job) * t.digit_size) << t.log_n);
        return convert(path, t, c, prime, y, i);
    }
    template <class P>
    __device__ __forceinline__ void store(const P &path, const GpuTables &t, u32 job, u32, u32 i,
                                          typename P::T x) const {
        a.out[((size_t)job << t.log_n) + i] = last ? path.finish(x) : P::unraw(x);
    }
};

/* ---- division by D: MOD_DOWN and RESCALE ---- */

struct DivideArgs {
    kernel_poly out, a, add; /* add.words NULL = absent */
    u32 add_galois;
    u32 batch_count, out_batch_stride, a_batch_stride, add_batch_stride;
    u32 level;   /* of the numerator */
    u32 q_limbs; /* of the numerator: level + 1 */
    u32 out_limbs;
    u32 p_limbs;                     /* P limbs among the sources: p_count or 0 */
    const GpuConversion *conversion; /* device */
    u32 sources;
    u64 *y, *middle; /* scratch: [value][source][N], [value][out limb][N] */
};

/* numerator limb i of component c, position at: a, plus P * permuted add in the q limbs */
template <class P>
__device__ __forceinline__ u64 numerator(const P &path, const GpuTables &t, const DivideArgs &d, u32 value,
                                         u32 limb, u32 prime, u32 i) {
    const u32 components = d.out.component_count, batch = value / components, component = value % components;
    const u64 word =
        d.a.words[(((size_t)batch * d.a_batch_stride + (size_t)component * d.a.component_stride + limb)
                   << t.log_n) +
                  i];
    if (d.add.words == nullptr || component >= d.add.component_count || limb >= d.q_limbs) return word;
    const u32 from = d.add_galois == 1 ? i : gpu_permute(i, d.add_galois, t.log_n);
    const u64 extra =
        d.add.words[(((size_t)batch * d.add_batch_stride + (size_t)component * d.add.component_stride + limb)
                     << t.log_n) +
                    from];
    return gpu_add(word, path.mul_canonical(path.load(extra), path.constant(t.prime[prime].p_product)),
                   t.prime[prime].q);
}

struct DivideInverseIO {
    DivideArgs d;
    bool last;
    __device__ __forceinline__ bool skip(const GpuTables &, u32) const { return false; }
    __device__ __forceinline__ void bypass(const GpuTables &, u32, u32, u32) const {}
    /* job = value * sources + source; sources: all p, then q_level where it is one */
    __device__ __forceinline__ u32 prime(const GpuTables &, u32 job) const {
        return __ldg(d.conversion->source + job % d.sources);
    }
    template <class P>
    __device__ __forceinline__ typename P::T load(const P &path, const GpuTables &t, u32 job, u32 prime,
                                                  u32 i) const {
        if (last) return P::raw(d.y[((size_t)job << t.log_n) + i]);
        const u32 limb = prime < t.q_count ? prime : d.q_limbs + (prime - t.q_count);
        return path.load(numerator(path, t, d, job / d.sources, limb, prime, i));
    }
    template <class P>
    __device__ __forceinline__ void store(const P &path, const GpuTables &t, u32 job, u32, u32 i,
                                          typename P::T x) const {
        d.y[((size_t)job << t.log_n) + i] =
            last ? source_raw(path, x, __ldg(d.conversion->hat_inverse_n + job % d.sources)) : P::unraw(x);
    }
};

struct DivideForwardIO {
    DivideArgs d;
    bool last;
    /* job = value * out_limbs + limb */
    __device__ __forceinline__ bool skip(const GpuTables &, u32) const { return false; }
    __device__ __forceinline__ void bypass(const GpuTables &, u32, u32, u32) const {}
    __device__ __forceinline__ u32 prime(const GpuTables &, u32 job) const { return job % d.out_limbs; }
    template <class P>
    __device__ __forceinline__ typename P::T load(const P &path, const GpuTables &t, u32 job, u32 prime,
                                                  u32 i) const {
        if (last) return P::raw(d.middle[((size_t)job << t.log_n) + i]);
        return convert(path, t, *d.conversion, prime,
                       d.y + (((size_t)(job / d.out_limbs) * d.sources) << t.log_n), i);
    }
    template <class P>
    __device__ __forceinline__ void store(const P &path, const GpuTables &t, u32 job, u32 prime, u32 i,
                                          typename P::T x) const {
        if (!last) {
            d.middle[((size_t)job << t.log_n) + i] = P::unraw(x);
            return;
        }
        const u32 value = job / d.out_limbs, limb = job % d.out_limbs;
        const u32 batch = value / d.out.component_count, component = value % d.out.component_count;
        const u64 q = t.prime[prime].q;
        const u64 difference = gpu_sub(numerator(path, t, d, value, limb, prime, i), path.finish(x), q);
        d.out.words[(((size_t)batch * d.out_batch_stride + (size_t)component * d.out.component_stride + limb)
                     << t.log_n) +
                    i] = path.mul_canonical(path.load(difference),
                                            path.constant(__ldg(d.conversion->product_inverse + prime)));
    }
};

cudaError_t divide(cudaStream_t stream, const CudaTables *tables, const DivideArgs &d) {
    const u32 values = d.batch_count * d.out.component_count;
    cudaError_t rc;
    if ((rc = ntt_run<true, false>(stream, tables, DivideInverseIO{d, false}, values * d.sources)) !=
        cudaSuccess)
        return rc;
    if ((rc = ntt_run<true, true>(stream, tables, DivideInverseIO{d, true}, values * d.sources)) !=
        cudaSuccess)
        return rc;
    if ((rc = ntt_run<false, true>(stream, tables, DivideForwardIO{d, false}, values * d.out_limbs)) !=
        cudaSuccess)
        return rc;
    return ntt_run<false, false>(stream, tables, DivideForwardIO{d, true}, values * d.out_limbs);
}

/* ---- KEY_PRODUCT ---- */

struct KeyProductShape {
    u32 level, q_limbs, limbs, digits, p_count;
};

/* grid: (N / threads, limbs, out_count); one coefficient of one limb of one out, both components */
template <class P>
__global__ void __launch_bounds__(128)
    key_product(GpuTables t, kernel_key_product_args a, KeyProductShape s) {
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
    cudaError_t rc;
    if ((rc = ntt_run<true, false>(stream, tables, ModUpInverseIO{*a, level, false},
                                   a->batch_count * (level + 1))) != cudaSuccess)
        return rc;
    if ((rc = ntt_run<true, true>(stream, tables, ModUpInverseIO{*a, level, true},
                                  a->batch_count * (level + 1))) != cudaSuccess)
        return rc;
    const u32 jobs = a->batch_count * digits * limbs;
    if ((rc = ntt_run<false, true>(stream, tables, ModUpForwardIO{*a, level, limbs, digits, false}, jobs)) !=
        cudaSuccess)
        return rc;
    return ntt_run<false, false>(stream, tables, ModUpForwardIO{*a, level, limbs, digits, true}, jobs);
}

cudaError_t cuda_mod_down(cudaStream_t stream, const kernel_mod_down_args *a) {
    const CudaTables *tables = cuda_tables(a->tables);
    const GpuTables &t = tables->device;
    const u32 level = a->a.basis.q_count - 1, values = a->batch_count * a->out.component_count;
    const u32 sources = t.p_count + (a->with_rescale ? 1 : 0);
    DivideArgs d = {a->out,
                    a->a,
                    a->add,
                    a->add_galois_element,
                    a->batch_count,
                    a->out_batch_stride,
                    a->a_batch_stride,
                    a->add_batch_stride,
                    level,
                    level + 1,
                    level + 1 - (a->with_rescale ? 1 : 0),
                    t.p_count,
                    t.mod_down + 2 * level + (a->with_rescale ? 1 : 0),
                    sources,
                    a->scratch,
                    a->scratch + (((size_t)values * sources) << t.log_n)};
    return divide(stream, tables, d);
}

cudaError_t cuda_rescale(cudaStream_t stream, const kernel_rescale_args *a) {
    const CudaTables *tables = cuda_tables(a->tables);
    const GpuTables &t = tables->device;
    const u32 level = a->a.basis.q_count - 1;
    DivideArgs d = {a->out,
                    a->a,
                    {},
                    1,
                    1,
                    0,
                    0,
                    0,
                    level,
                    level + 1,
                    level,
                    0,
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
    return cudaGetLastError();
}
