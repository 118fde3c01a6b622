/*
 * The negacyclic transform in two passes, as a template over the data path, the direction and what happens at
 * load and store (so that base conversion, constants and ModDown's last step ride along).
 *
 * N = R_columns * R_rows. Forward: the column pass (stride R_rows between the elements of one sub-transform)
 * does the first log R_columns stages, the row pass (contiguous sub-transforms) the rest; inverse the other
 * way round. A block holds a tile of C sub-transforms of length R; a thread keeps 8 elements in registers and
 * does up to 3 stages between two exchanges through shared memory. Twiddles of a group are loaded before the
 * exchange that precedes it.
 *
 * An IO opens a Job for each grid.y: the prime, and everything that is constant over the job (pointers,
 * constants of a conversion), worked out once; its load and store move 8 elements at once, so that their
 * memory accesses overlap. Elements between the two passes are stored as the path's raw values.
 *
 * When values are reduced (FP64 path) is fixed at compile time: forward, before stage FIRST_REDUCE and then
 * every 4 stages, where FIRST_REDUCE is 3 after canonical words, 4 after reduced values, 0 after another
 * pass; inverse, sums after every second stage and at the end of a pass. The bounds are in cuda_internal.cuh.
 */
#ifndef CKKS_CUDA_NTT_CUH
#define CKKS_CUDA_NTT_CUH

#include "kernels/cuda/cuda_internal.cuh"

#include <type_traits>

enum { REDUCE_AFTER_CANONICAL = 3, REDUCE_AFTER_REDUCED = 4, REDUCE_AFTER_PASS = 0 };

const u32 ntt_constants_max = CKKS_DIGIT_SIZE_MAX + 2; /* constants of one base conversion */

/* T_LOG 0: the tile that suits a plain pass */
template <int R_LOG, int T_LOG = 0> struct PassShape {
    static const int E_LOG = 3, E = 8; /* elements per thread */
    static const int GROUPS = (R_LOG + 2) / 3;
    static const int TILE_LOG = T_LOG ? T_LOG : R_LOG >= 9 ? 12 : R_LOG == 8 ? 11 : 10;
    static const int THREADS = 1 << (TILE_LOG - E_LOG);
    static const int C_LOG = TILE_LOG - R_LOG;
    /* group g does stages [first(g), first(g) + size(g)): 3, then what is left as evenly as it goes */
    static __host__ __device__ constexpr int size(int g) {
        return GROUPS == 2 ? (g == 0 ? 3 : R_LOG - 3)
               : g == 0    ? 3
               : g == 1    ? (R_LOG - 3 + 1) / 2
                           : R_LOG - 3 - (R_LOG - 3 + 1) / 2;
    }
    static __host__ __device__ constexpr int first(int g) {
        return g == 0 ? 0 : g == 1 ? size(0) : size(0) + size(1);
    }
};

/* Shared-memory index with padding against bank conflicts. Of two indices that have no bit in common, the
 * sum's is the sum of theirs: the part that the compiler knows goes into the instruction. */
__host__ __device__ constexpr __forceinline__ u32 ntt_pad(u32 i) {
    return i + (i >> 3);
}

__host__ __device__ constexpr bool ntt_reduces_before(int stage, int first_reduce) {
    return stage >= first_reduce && (stage - first_reduce) % 4 == 0;
}

/* Where this thread's n-th radix butterfly of a group sits. Tiles that a kernel chose itself (T_LOG) keep a
 * warp's butterflies together, so that what the second and third group exchange stays inside the warp; a tile
 * of 256 elements is a warp's own. */
struct Place {
    u32 c, lo, hi;
};
template <int R_LOG, int T_LOG, int A, int G, bool COLUMNS>
__device__ __forceinline__ Place ntt_place(int n) {
    typedef PassShape<R_LOG, T_LOG> S;
    const int LO_LOG = R_LOG - A - G;
    const u32 lane = threadIdx.x & 31, warp = T_LOG == 8 ? 0 : threadIdx.x >> 5;
    const u32 id =
        T_LOG == 0 ? threadIdx.x + (u32)n * S::THREADS : lane + 32 * ((u32)n + (1u << (S::E_LOG - G)) * warp);
    Place p;
    if (COLUMNS) {
        p.c = id & ((1u << S::C_LOG) - 1);
        p.lo = (id >> S::C_LOG) & ((1u << LO_LOG) - 1);
        p.hi = id >> (S::C_LOG + LO_LOG);
    } else {
        p.lo = id & ((1u << LO_LOG) - 1);
        p.hi = (id >> LO_LOG) & ((1u << A) - 1);
        p.c = id >> (LO_LOG + A);
    }
    return p;
}

/* twiddles of one group for this thread: (2^G - 1) for each of its radix butterflies */
template <class P, int R_LOG, int T_LOG, int A, int G, bool INVERSE, bool COLUMNS> struct Twiddles {
    static const int N = 1 << (3 - G);
    typename P::W w[N][(1 << G) - 1];
    __device__ __forceinline__ void load(const GpuTables &t, u32 prime, u32 log_other) {
        const typename P::W *table = P::twiddles(t, INVERSE, prime);
#pragma unroll
        for (int n = 0; n < N; n++) {
            const Place p = ntt_place<R_LOG, T_LOG, A, G, COLUMNS>(n);
            const u32 row = COLUMNS ? 0 : (blockIdx.x << PassShape<R_LOG, T_LOG>::C_LOG) + p.c,
                      s0 = COLUMNS ? 0 : log_other;
            const u32 at = (1u << (s0 + A)) + (row << A) + p.hi;
            P::template twiddles_load<1>(w[n], table + at);
            if constexpr (G > 1) P::template twiddles_load<2>(w[n] + 1, table + 2 * at);
            if constexpr (G > 2) P::template twiddles_load<4>(w[n] + 3, table + 4 * at);
        }
    }
};

/* Stages S.. of a group of G that begins at stage A, on one radix butterfly in registers. Stages are template
 * parameters because registers cannot be indexed at run time. COUNT: stages of the pass done before this one
 * (inverse). */
template <class P, int A, int G, int S, bool INVERSE, int REDUCE, int R_LOG>
__device__ __forceinline__ void ntt_stage(const P &path, const typename P::W *w, typename P::T *x) {
    constexpr int half = 1 << (G - 1 - S);
    if constexpr (!INVERSE && ntt_reduces_before(A + S, REDUCE)) {
#pragma unroll
        for (int k = 0; k < (1 << G); k++) path.begin_forward(x[k]);
    }
#pragma unroll
    for (int b = 0; b < (1 << S); b++) {
#pragma unroll
        for (int k = 0; k < half; k++) {
            typename P::T &u = x[2 * half * b + k], &v = x[2 * half * b + k + half];
            if constexpr (INVERSE) {
                constexpr int done = R_LOG - 1 - (A + S);
                path.butterfly_inverse(u, v, w[(1 << S) - 1 + b]);
                if constexpr ((done & 1) == 1 || done == R_LOG - 1) path.reduce_sum(u);
            } else {
                path.butterfly_forward(u, v, w[(1 << S) - 1 + b]);
            }
        }
    }
    if constexpr (!INVERSE && S + 1 < G) ntt_stage<P, A, G, S + 1, false, REDUCE, R_LOG>(path, w, x);
    if constexpr (INVERSE && S > 0) ntt_stage<P, A, G, S - 1, true, REDUCE, R_LOG>(path, w, x);
}

/* One group on all of this thread's elements. FROM_IO, TO_IO: from or to the job instead of shared memory. */
template <class P, class Job, int R_LOG, int T_LOG, int A, int G, bool INVERSE, bool COLUMNS, int REDUCE,
          bool FROM_IO, bool TO_IO>
__device__ __forceinline__ void ntt_step(const Job &job,
                                         const Twiddles<P, R_LOG, T_LOG, A, G, INVERSE, COLUMNS> &tw,
                                         u32 log_other, typename P::T *tile) {
    typedef PassShape<R_LOG, T_LOG> S;
    constexpr int LO_LOG = R_LOG - A - G, UNITS = 1 << (S::E_LOG - G);
    const u32 step = COLUMNS ? 1u << (LO_LOG + log_other) : 1u << LO_LOG;
    constexpr u32 tile_step = COLUMNS ? 1u << (LO_LOG + S::C_LOG) : 1u << LO_LOG;
    typename P::T x[UNITS][1 << G];
    u32 at[UNITS], tile_at[UNITS];
    /* all loads before the first store: the compiler cannot tell that they are different memory */
#pragma unroll
    for (int n = 0; n < UNITS; n++) {
        const Place p = ntt_place<R_LOG, T_LOG, A, G, COLUMNS>(n);
        const u32 sub = (blockIdx.x << S::C_LOG) + p.c; /* which sub-transform */
        const u32 i = (p.hi << (R_LOG - A)) + p.lo;
        at[n] = COLUMNS ? (i << log_other) + sub : (sub << R_LOG) + i;
        tile_at[n] = ntt_pad(COLUMNS ? (i << S::C_LOG) + p.c : (p.c << R_LOG) + i);
        if constexpr (FROM_IO) {
            job.load(x[n], at[n], step);
        } else {
#pragma unroll
            for (int k = 0; k < (1 << G); k++) x[n][k] = tile[tile_at[n] + ntt_pad((u32)k * tile_step)];
        }
    }
#pragma unroll
    for (int n = 0; n < UNITS; n++) {
        ntt_stage<P, A, G, INVERSE ? G - 1 : 0, INVERSE, REDUCE, R_LOG>(job.path, tw.w[n], x[n]);
        if constexpr (TO_IO) {
            job.store(x[n], at[n], step);
        } else {
#pragma unroll
            for (int k = 0; k < (1 << G); k++) tile[tile_at[n] + ntt_pad((u32)k * tile_step)] = x[n][k];
        }
    }
}

/* 128 registers a thread: left to itself, the compiler takes 40 and loads in turns. grid: (N >> TILE_LOG,
 * jobs). log_other = log N - R_LOG. */
template <class P, class IO, int R_LOG, bool INVERSE, bool COLUMNS, int REDUCE>
__global__ void __launch_bounds__(PassShape<R_LOG>::THREADS, 512 / PassShape<R_LOG>::THREADS)
    ntt_pass(GpuTables t, IO io, u32 log_other) {
    typedef PassShape<R_LOG> S;
    constexpr int G0 = S::size(0), G1 = S::size(1), G2 = S::GROUPS == 3 ? S::size(2) : 1, A1 = S::first(1),
                  A2 = S::GROUPS == 3 ? S::first(2) : 0;
    constexpr bool three = S::GROUPS == 3;
    __shared__ typename P::T tile[(1 << S::TILE_LOG) + (1 << (S::TILE_LOG - 3))];
    __shared__ typename P::C constants[ntt_constants_max];
    gpu_release_next();
    if (io.skip(t, blockIdx.y)) { /* the same for the whole block */
        gpu_wait();
        io.bypass(t, blockIdx.y, blockIdx.x << S::TILE_LOG, 1u << S::TILE_LOG);
        return;
    }
    const auto job = io.template open<P>(t, blockIdx.y, constants);
    const u32 base = blockIdx.x << S::TILE_LOG;
    if constexpr (COLUMNS && std::is_same<P, PathF64>::value)
        if (threadIdx.x < (1u << R_LOG) / gpu_sector)
            gpu_touch(P::twiddles(t, INVERSE, job.prime) + gpu_sector * threadIdx.x);
    Twiddles<P, R_LOG, 0, 0, G0, INVERSE, COLUMNS> w0;
    Twiddles<P, R_LOG, 0, A1, G1, INVERSE, COLUMNS> w1;
    Twiddles<P, R_LOG, 0, A2, G2, INVERSE, COLUMNS> w2;
    /* tables do not change: everything up to here may run while the kernel before is still at work */
    if constexpr (!INVERSE) {
        w0.load(t, job.prime, log_other);
        w1.load(t, job.prime, log_other);
        gpu_wait();
        ntt_step<P, decltype(job), R_LOG, 0, 0, G0, false, COLUMNS, REDUCE, true, false>(job, w0, log_other,
                                                                                         tile);
        __syncthreads();
        if constexpr (three) {
            w2.load(t, job.prime, log_other);
            ntt_step<P, decltype(job), R_LOG, 0, A1, G1, false, COLUMNS, REDUCE, false, false>(
                job, w1, log_other, tile);
            __syncthreads();
            ntt_step<P, decltype(job), R_LOG, 0, A2, G2, false, COLUMNS, REDUCE, false, COLUMNS>(
                job, w2, log_other, tile);
        } else {
            ntt_step<P, decltype(job), R_LOG, 0, A1, G1, false, COLUMNS, REDUCE, false, COLUMNS>(
                job, w1, log_other, tile);
        }
        if constexpr (!COLUMNS) { /* through shared memory once more, for stores in address order */
            __syncthreads();
            typename P::T x[S::E];
#pragma unroll
            for (int k = 0; k < S::E; k++) x[k] = tile[ntt_pad(threadIdx.x) + ntt_pad((u32)k * S::THREADS)];
            job.store(x, base + threadIdx.x, S::THREADS);
        }
    } else {
        if constexpr (three) w2.load(t, job.prime, log_other);
        w1.load(t, job.prime, log_other);
        gpu_wait();
        if constexpr (!COLUMNS) {
            typename P::T x[S::E];
            job.load(x, base + threadIdx.x, S::THREADS);
#pragma unroll
            for (int k = 0; k < S::E; k++) tile[ntt_pad(threadIdx.x) + ntt_pad((u32)k * S::THREADS)] = x[k];
            __syncthreads();
        }
        if constexpr (three) {
            ntt_step<P, decltype(job), R_LOG, 0, A2, G2, true, COLUMNS, REDUCE, COLUMNS, false>(
                job, w2, log_other, tile);
            w0.load(t, job.prime, log_other);
            __syncthreads();
            ntt_step<P, decltype(job), R_LOG, 0, A1, G1, true, COLUMNS, REDUCE, false, false>(
                job, w1, log_other, tile);
        } else {
            w0.load(t, job.prime, log_other);
            ntt_step<P, decltype(job), R_LOG, 0, A1, G1, true, COLUMNS, REDUCE, COLUMNS, false>(
                job, w1, log_other, tile);
        }
        __syncthreads();
        ntt_step<P, decltype(job), R_LOG, 0, 0, G0, true, COLUMNS, REDUCE, false, true>(job, w0, log_other,
                                                                                        tile);
    }
}

/* how log N splits: rows take the smaller half */
static inline u32 ntt_rows_log(u32 log_n) {
    return log_n / 2;
}
static inline u32 ntt_columns_log(u32 log_n) {
    return log_n - log_n / 2;
}

/* Loads and stores of raw values between the passes of one polynomial. */
template <class P, int COUNT>
__device__ __forceinline__ void raw_load(typename P::T (&x)[COUNT], const u64 *from, u32 at, u32 step) {
#pragma unroll
    for (int k = 0; k < COUNT; k++) x[k] = P::raw(gpu_word(from + at + (u32)k * step));
}
template <class P, int COUNT>
__device__ __forceinline__ void raw_store(u64 *to, const typename P::T (&x)[COUNT], u32 at, u32 step) {
#pragma unroll
    for (int k = 0; k < COUNT; k++) to[at + (u32)k * step] = P::unraw(x[k]);
}

#endif
