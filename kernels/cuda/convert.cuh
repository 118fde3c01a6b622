/*
 * Base conversion fused with the column pass of the forward transform, FP64 path: a thread loads its 8
 * coefficients of every source residue once, keeps them in registers, and makes from them its part of `chunk`
 * target limbs one after the other. The sources are read once per chunk instead of once per target: at 6
 * sources and 96 targets that traffic was what bound the pass.
 *
 * An IO names for each unit (grid.z: a digit, or a value to divide) its conversion, sources and targets.
 */
#ifndef CKKS_CUDA_CONVERT_CUH
#define CKKS_CUDA_CONVERT_CUH

#include "kernels/cuda/ntt_run.cuh"

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

const u32 convert_chunk_max = 12;
const int convert_fused_max = 2; /* sources; with three, doing them again costs more than the launch */
const int convert_tile_log = 10; /* 128 threads: three blocks a multiprocessor at 168 registers */

/*
 * The sum of all products is kept as two doubles, reduced once at the end: 4 operations a term instead of 7.
 * `high` starts at 1.5 * 2^102, where a double's unit is 2^50: adding a product there rounds it to a multiple
 * of 2^50 (|product| < 2^98, so seven of them stay in range); what it gained is exact, and so is the rest of
 * the product, at most 2^49. At the end |sum| / q < 7 * 2^48; three roundings of 2^-53 put the quotient at
 * most 0.66 off before it is rounded, so what is left is at most 1.16 q, and high - quotient * q, which
 * differs from it by the rests, below 2^53. Four stages later that is 1.16 q + 4 * 0.85 q < 2^53, and the
 * fourth multiplies at most 3.71 q.
 */
template <int SOURCES> struct ConvertJob {
    static_assert(SOURCES <= 7, "the sum of all products is exact");
    PathF64 path;
    u32 prime;
    const double (&y)[SOURCES][8];
    const double *hat;
    u64 *out;
    template <int COUNT> __device__ __forceinline__ void load(double (&x)[COUNT], u32, u32) const {
        const double magic = 6755399441055744.0 * 1125899906842624.0; /* 1.5 * 2^102 */
        double high[COUNT], low[COUNT];
#pragma unroll
        for (int k = 0; k < COUNT; k++) high[k] = magic, low[k] = 0.0;
#pragma unroll
        for (int s = 0; s < SOURCES; s++) {
            const double w = hat[s];
#pragma unroll
            for (int k = 0; k < COUNT; k++) {
                const double sum = __fma_rn(y[s][k], w, high[k]);
                const double rest = __fma_rn(y[s][k], w, -__dadd_rn(sum, -high[k]));
                high[k] = sum;
                low[k] = s == 0 ? rest : __dadd_rn(low[k], rest);
            }
        }
#pragma unroll
        for (int k = 0; k < COUNT; k++) {
            GPU_BOUND(fabs(low[k]) <= SOURCES * 562949953421312.0);
            const double large = __dadd_rn(high[k], -magic);
            const double quotient = PathF64::round(__dmul_rn(__dadd_rn(large, low[k]), path.qi));
            x[k] = __dadd_rn(__fma_rn(-quotient, path.q, large), low[k]);
            GPU_BOUND(fabs(x[k]) <= 1.16 * path.q);
        }
    }
    template <int COUNT>
    __device__ __forceinline__ void store(const double (&x)[COUNT], u32 at, u32 step) const {
        raw_store<PathF64>(out, x, at, step);
    }
};

/* The last group of a source's inverse columns leaves y where the conversion wants it. */
struct SourceJob {
    PathF64 path;
    double hat_inverse;
    double (&y)[8];
    template <int COUNT> __device__ __forceinline__ void load(double (&)[COUNT], u32, u32) const {}
    template <int COUNT> __device__ __forceinline__ void store(const double (&x)[COUNT], u32, u32) const {
#pragma unroll
        for (int k = 0; k < COUNT; k++) y[k] = path.centre(path.mul(x[k], hat_inverse));
    }
};

/* Inverse columns of all sources at once, for FUSED: from the row pass's raw values to y. The group that the
 * inverse ends with is the one that the forward transform begins with, so y stays in registers. */
template <int R_LOG, int SOURCES> struct SourceColumns {
    typedef PassShape<R_LOG, convert_tile_log> S;
    static const int T = convert_tile_log;
    static const int A1 = S::first(1), G1 = S::size(1);
    static const int AL = S::GROUPS == 3 ? S::first(2) : A1, GL = S::GROUPS == 3 ? S::size(2) : G1;
    static const int UNITS = 8 >> GL;
    Twiddles<PathF64, R_LOG, T, AL, GL, true, true> last[SOURCES];

    __device__ __forceinline__ void prepare(const GpuTables &t, const GpuConversion *c, u32 sources,
                                            u32 log_other) {
#pragma unroll
        for (int s = 0; s < SOURCES; s++)
            last[s].load(t, __ldg(c->source + min((u32)s, sources - 1)), log_other);
    }
    __device__ __forceinline__ void run(double (&y)[SOURCES][8], const GpuTables &t, const GpuConversion *c,
                                        u32 sources, u32 log_other, const u64 *from,
                                        double (*tiles)[(1 << T) + (1 << (T - 3))]) {
        constexpr int LO = R_LOG - AL - GL;
#pragma unroll
        for (int s = 0; s < SOURCES; s++) {
            const u64 *limb = from + ((size_t)min((u32)s, sources - 1) << t.log_n);
#pragma unroll
            for (int n = 0; n < UNITS; n++) {
                const Place p = ntt_place<R_LOG, T, AL, GL, true>(n);
                const u32 i = (p.hi << (R_LOG - AL)) + p.lo;
                const u32 at = (i << log_other) + (blockIdx.x << S::C_LOG) + p.c;
#pragma unroll
                for (int k = 0; k < (1 << GL); k++)
                    y[s][(n << GL) + k] = PathF64::raw(limb[at + ((u32)k << (LO + log_other))]);
            }
        }
#pragma unroll
        for (int s = 0; s < SOURCES; s++) {
            const PathF64 path(t.prime[__ldg(c->source + min((u32)s, sources - 1))]);
#pragma unroll
            for (int n = 0; n < UNITS; n++) {
                const Place p = ntt_place<R_LOG, T, AL, GL, true>(n);
                const u32 i = (p.hi << (R_LOG - AL)) + p.lo;
                ntt_stage<PathF64, AL, GL, GL - 1, true, 0, R_LOG>(path, last[s].w[n], y[s] + (n << GL));
#pragma unroll
                for (int k = 0; k < (1 << GL); k++)
                    tiles[s][ntt_pad((i << S::C_LOG) + p.c + ((u32)k << (LO + S::C_LOG)))] =
                        y[s][(n << GL) + k];
            }
        }
        __syncthreads();
        if constexpr (S::GROUPS == 3) {
#pragma unroll
            for (int s = 0; s < SOURCES; s++)
                step<A1, G1, false>(y[s], t, c, s, sources, log_other, tiles[s]);
            __syncthreads();
        }
#pragma unroll
        for (int s = 0; s < SOURCES; s++) step<0, 3, true>(y[s], t, c, s, sources, log_other, tiles[s]);
        __syncthreads(); /* the tiles are written next */
    }

  private:
    template <int A, int G, bool TO_IO>
    static __device__ __forceinline__ void step(double (&y)[8], const GpuTables &t, const GpuConversion *c,
                                                int s, u32 sources, u32 log_other, double *tile) {
        const u32 source = min((u32)s, sources - 1), prime = __ldg(c->source + source);
        const PathF64 path(t.prime[prime]);
        const SourceJob job = {path, path.constant(__ldg(c->hat_inverse_n + source)), y};
        Twiddles<PathF64, R_LOG, T, A, G, true, true> w;
        w.load(t, prime, log_other);
        ntt_step<PathF64, SourceJob, R_LOG, T, A, G, true, true, 0, false, TO_IO>(job, w, log_other, tile);
    }
};

/* FUSED: the sources are what the row pass of their inverse transform left: its column pass happens here,
 * again for each chunk of targets. */
template <class IO, int R_LOG, int SOURCES, bool FUSED>
__global__ void __launch_bounds__(128, SOURCES <= 2 ? 4 : 3)
    convert_pass(GpuTables t, IO io, u32 log_other, u32 chunk) {
    typedef PassShape<R_LOG, convert_tile_log> S;
    typedef ConvertJob<SOURCES> Job;
    constexpr int T = convert_tile_log, A1 = S::first(1), G1 = S::size(1),
                  G2 = S::GROUPS == 3 ? S::size(2) : 1, A2 = S::GROUPS == 3 ? S::first(2) : 0;
    static_assert(!FUSED || SOURCES <= convert_fused_max, "a tile for each source");
    static_assert(S::THREADS == 128 && S::size(0) == 3, "one radix-8 butterfly a thread in the first group");
    /* in turn: one wait less for each target */
    __shared__ double tiles[2][(1 << T) + (1 << (T - 3))];
    /* few sources, small rings: each thread reads the constants of a conversion, and nobody waits for them */
    constexpr bool own_hats = SOURCES <= 2;
    __shared__ double hats[own_hats ? 1 : convert_chunk_max][SOURCES];
    gpu_release_next();
    const u32 unit = blockIdx.z, first = blockIdx.y * chunk, total = io.targets(t, unit);
    const u32 count = first < total ? min(chunk, total - first) : 0;
    const u32 sources = io.sources(t, unit);
    const GpuConversion *conversion = io.conversion(t, unit);
    const u64 *hat_words =
        reinterpret_cast<const u64 *>(gpu_word(reinterpret_cast<const u64 *>(&conversion->hat)));
    if constexpr (!own_hats) {
        for (u32 i = threadIdx.x; i < count * SOURCES; i += 128) {
            const u32 prime = io.prime(t, unit, first + i / SOURCES), s = i % SOURCES;
            hats[i / SOURCES][s] =
                s < sources
                    ? PathF64(t.prime[prime]).constant(__ldg(hat_words + (size_t)s * t.prime_count + prime))
                    : 0.0;
        }
        /* the first target's twiddles and prime, by other warps */
        if (count != 0 && threadIdx.x >= 32 && threadIdx.x - 32 < (1u << R_LOG) / gpu_sector) {
            const u32 prime = io.prime(t, unit, first);
            gpu_touch(t.forward_f64 + ((size_t)prime << t.log_n) + gpu_sector * (threadIdx.x - 32));
            if (threadIdx.x == 32) gpu_touch(&t.prime[prime].qd), gpu_touch(&t.prime[prime].q_inverse);
        }
    }
    const u64 *from = io.y(t, unit);
    double y[SOURCES][8];
    if constexpr (FUSED) {
        /* a source too many is another's values: its constant is zero */
        SourceColumns<R_LOG, SOURCES> columns;
        columns.prepare(t, conversion, sources, log_other);
        gpu_wait();
        columns.run(y, t, conversion, sources, log_other, from, tiles);
    } else {
        gpu_wait();
        const Place place = ntt_place<R_LOG, T, 0, 3, true>(0);
        const u32 at = (place.lo << log_other) + (blockIdx.x << S::C_LOG) + place.c,
                  step = 1u << (R_LOG - 3 + log_other);
#pragma unroll
        for (int s = 0; s < SOURCES; s++) {
            if ((u32)s < sources)
                raw_load<PathF64>(y[s], from + ((size_t)s << t.log_n), at, step);
            else {
#pragma unroll
                for (int k = 0; k < 8; k++) y[s][k] = 0.0;
            }
        }
        if constexpr (!own_hats) __syncthreads();
    }
    for (u32 c = 0; c < count; c++) {
        const u32 prime = io.prime(t, unit, first + c);
        double *tile = tiles[c & 1];
        if (c + 1 < count && threadIdx.x < (1u << R_LOG) / 16) /* the next target's twiddles, by lines */
            ptx_prefetch(t.forward_f64 + ((size_t)io.prime(t, unit, first + c + 1) << t.log_n) +
                         16 * threadIdx.x);
        const PathF64 path(gpu_constant(&t.prime[prime].qd), gpu_constant(&t.prime[prime].q_inverse));
        Twiddles<PathF64, R_LOG, T, 0, 3, false, true> w0;
        Twiddles<PathF64, R_LOG, T, A1, G1, false, true> w1;
        u64 words[SOURCES];
        double own[SOURCES];
        if constexpr (own_hats) {
#pragma unroll
            for (u32 s = 0; s < SOURCES; s++)
                words[s] = gpu_word(hat_words + (size_t)min(s, sources - 1) * t.prime_count + prime);
        }
        w0.load(t, prime, log_other);
        w1.load(t, prime, log_other);
        if constexpr (own_hats) {
#pragma unroll
            for (u32 s = 0; s < SOURCES; s++) own[s] = s < sources ? path.constant(words[s]) : 0.0;
        }
        const Job job = {path, prime, y, own_hats ? own : hats[own_hats ? 0 : c], io.out(t, unit, first + c)};
        ntt_step<PathF64, Job, R_LOG, T, 0, 3, false, true, REDUCE_AFTER_REDUCED, true, false>(
            job, w0, log_other, tile);
        __syncthreads();
        if constexpr (S::GROUPS == 3) {
            Twiddles<PathF64, R_LOG, T, A2, G2, false, true> w2;
            w2.load(t, prime, log_other);
            ntt_step<PathF64, Job, R_LOG, T, A1, G1, false, true, REDUCE_AFTER_REDUCED, false, false>(
                job, w1, log_other, tile);
            __syncwarp(); /* a warp's own */
            ntt_step<PathF64, Job, R_LOG, T, A2, G2, false, true, REDUCE_AFTER_REDUCED, false, true>(
                job, w2, log_other, tile);
        } else {
            ntt_step<PathF64, Job, R_LOG, T, A1, G1, false, true, REDUCE_AFTER_REDUCED, false, true>(
                job, w1, log_other, tile);
        }
    }
}

/* How many targets a block makes: waves of blocks, times targets and what a block does before its first. */
static inline u32 convert_chunk(u32 slots, u32 columns, u32 targets, double before) {
    u32 best = 1;
    double least = 0.0;
    for (u32 chunks = targets; chunks >= 1; chunks--) {
        const u32 chunk = (targets + chunks - 1) / chunks;
        if (chunk > convert_chunk_max) break;
        const u32 blocks = columns * ((targets + chunk - 1) / chunk);
        const double cost = (double)((blocks + slots - 1) / slots) * ((double)chunk + before);
        if (chunks == targets || cost <= least) best = chunk, least = cost;
    }
    return best;
}

template <class IO, int R_LOG, int SOURCES, bool FUSED>
static cudaError_t convert_enqueue(cudaStream_t stream, const GpuTables &t, const IO &io, u32 units,
                                   u32 targets_max) {
    const auto kernel = convert_pass<IO, R_LOG, SOURCES, FUSED>;
    static const u32 slots = gpu_places(reinterpret_cast<const void *>(kernel), 128);
    const u32 tiles = (1u << t.log_n) >> convert_tile_log;
    const u32 chunk = convert_chunk(slots, tiles * units, targets_max, FUSED ? 1.5 + 0.7 * SOURCES : 1.5);
    const dim3 grid(tiles, (targets_max + chunk - 1) / chunk, units);
    return gpu_launch(kernel, grid, 128, stream, t.log_n, t, io, t.log_n - R_LOG, chunk);
}

/* Does the conversion do its sources' inverse columns itself? Where a launch costs more than doing them again
 * for each chunk of targets. */
static inline bool convert_fuses(const CudaTables *tables, u32 sources) {
    const u32 log_n = tables->device.log_n;
    const u32 sources_max = log_n < 11 ? 0 : log_n <= 13 ? (u32)convert_fused_max : log_n == 14 ? 1 : 0;
    return tables->is_f64 && sources >= 1 && sources <= sources_max;
}

template <class IO, int R_LOG, int SOURCES>
static cudaError_t convert_either(cudaStream_t stream, const CudaTables *tables, const IO &io, u32 units,
                                  u32 targets_max) {
    if constexpr (R_LOG < 8 && SOURCES <= convert_fused_max)
        if (convert_fuses(tables, SOURCES))
            return convert_enqueue<IO, R_LOG, SOURCES, true>(stream, tables->device, io, units, targets_max);
    return convert_enqueue<IO, R_LOG, SOURCES, false>(stream, tables->device, io, units, targets_max);
}

/* cudaErrorNotSupported: no instance for this shape; the caller takes the general pass */
template <class IO, int R_LOG>
static cudaError_t convert_sources(cudaStream_t stream, const CudaTables *tables, const IO &io, u32 sources,
                                   u32 units, u32 targets_max) {
    switch (sources) {
    case 1:
        return convert_either<IO, R_LOG, 1>(stream, tables, io, units, targets_max);
    case 2:
        return convert_either<IO, R_LOG, 2>(stream, tables, io, units, targets_max);
    case 3:
        return convert_either<IO, R_LOG, 3>(stream, tables, io, units, targets_max);
    default:
        break;
    }
    if constexpr (R_LOG == 8) { /* N = 2^15, 2^16 */
        switch (sources) {
        case 4:
            return convert_either<IO, R_LOG, 4>(stream, tables, io, units, targets_max);
        case 5:
            return convert_either<IO, R_LOG, 5>(stream, tables, io, units, targets_max);
        case 6:
            return convert_either<IO, R_LOG, 6>(stream, tables, io, units, targets_max);
        case 7:
            return convert_either<IO, R_LOG, 7>(stream, tables, io, units, targets_max);
        default:
            break;
        }
    }
    return cudaErrorNotSupported;
}

template <class IO>
static cudaError_t convert_run(cudaStream_t stream, const CudaTables *tables, const IO &io, u32 sources,
                               u32 units, u32 targets_max) {
    if (!tables->is_f64 || units == 0 || targets_max == 0) return cudaErrorNotSupported;
    switch (ntt_columns_log(tables->device.log_n)) {
    case 6:
        return convert_sources<IO, 6>(stream, tables, io, sources, units, targets_max);
    case 7:
        return convert_sources<IO, 7>(stream, tables, io, sources, units, targets_max);
    case 8:
        return convert_sources<IO, 8>(stream, tables, io, sources, units, targets_max);
    default:
        return cudaErrorNotSupported;
    }
}

#endif
