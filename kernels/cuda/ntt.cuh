/*
 * The negacyclic transform in two passes, as a template over the data path, the direction and what happens at
 * load and store (so that base conversion, constants, key product and ModDown's last step ride along).
 *
 * N = R_columns * R_rows. Forward: the column pass (stride R_rows between the elements of one sub-transform)
 * does the first log R_columns stages, the row pass (contiguous sub-transforms) the rest; inverse the other
 * way round. A block holds a tile of C sub-transforms of length R; a thread keeps E elements in registers,
 * groups of up to 4 stages, one exchange through shared memory between groups.
 *
 * An IO names, for each job (grid.y), the prime and where elements come from and go to. Elements between the
 * two passes are stored as the path's raw values.
 */
#ifndef CKKS_CUDA_NTT_CUH
#define CKKS_CUDA_NTT_CUH

#include "kernels/cuda/cuda_internal.cuh"

template <int R_LOG> struct PassShape {
    static const int G1 = R_LOG == 9 ? 3 : (R_LOG + 1) / 2;
    static const int G2 = R_LOG == 9 ? 3 : R_LOG - G1;
    static const int G3 = R_LOG - G1 - G2;
    static const int E_LOG = G1; /* elements per thread */
    static const int TILE_LOG = R_LOG >= 8 ? 12 : R_LOG == 7 ? 11 : 10;
    static const int THREADS = 1 << (TILE_LOG - E_LOG);
    static const int C_LOG = TILE_LOG - R_LOG;
};

/* shared-memory index with padding against bank conflicts */
__device__ __forceinline__ u32 ntt_pad(u32 i) {
    return i + (i >> 3);
}

/* Stage S of a group of G that begins at stage A (of R_LOG); radix butterfly `hi`, elements in registers.
 * Stages are template parameters because registers cannot be indexed at run time. */
template <class P, int A, int G, int S, bool INVERSE>
__device__ __forceinline__ void ntt_stage(const P &path, const GpuTables &t, u32 prime, u32 s0, u32 row,
                                          u32 hi, typename P::T *x) {
    constexpr int half = 1 << (G - 1 - S);
    const u32 base = (1u << (s0 + A + S)) + (row << (A + S)) + (hi << S);
#pragma unroll
    for (int b = 0; b < (1 << S); b++) {
        const typename P::W w = P::twiddle(t, INVERSE, prime, base + (u32)b);
#pragma unroll
        for (int k = 0; k < half; k++) {
            typename P::T &u = x[2 * half * b + k], &v = x[2 * half * b + k + half];
            if constexpr (INVERSE) {
                path.butterfly_inverse(u, v, w);
                if constexpr (((G - 1 - S) & 1) == 1 || S == 0) path.reduce_sum(u);
            } else {
                path.butterfly_forward(u, v, w);
            }
        }
    }
    if constexpr (!INVERSE && S + 1 < G) ntt_stage<P, A, G, S + 1, false>(path, t, prime, s0, row, hi, x);
    if constexpr (INVERSE && S > 0) ntt_stage<P, A, G, S - 1, true>(path, t, prime, s0, row, hi, x);
}

template <class P, int A, int G, bool INVERSE>
__device__ __forceinline__ void ntt_group(const P &path, const GpuTables &t, u32 prime, u32 s0, u32 row,
                                          u32 hi, typename P::T *x) {
    if constexpr (!INVERSE) {
#pragma unroll
        for (int k = 0; k < (1 << G); k++) path.begin_forward(x[k]);
    }
    ntt_stage<P, A, G, INVERSE ? G - 1 : 0, INVERSE>(path, t, prime, s0, row, hi, x);
}

/* Applies group (A, G) to the tile's elements held by this thread; IN and OUT say whether they come from / go
 * to shared memory or the IO. */
template <class P, class IO, int R_LOG, int A, int G, bool INVERSE, bool COLUMNS, bool FROM_IO, bool TO_IO>
__device__ __forceinline__ void ntt_step(const P &path, const GpuTables &t, const IO &io, u32 job, u32 prime,
                                         u32 log_other, typename P::T *tile) {
    typedef PassShape<R_LOG> S;
    const int BUTTERFLIES = 1 << (S::E_LOG - G); /* per thread */
    const int LO_LOG = R_LOG - A - G;
#pragma unroll
    for (int n = 0; n < BUTTERFLIES; n++) {
        const u32 id = threadIdx.x + (u32)n * S::THREADS;
        u32 c, lo, hi;
        if (COLUMNS) {
            c = id & ((1u << S::C_LOG) - 1);
            lo = (id >> S::C_LOG) & ((1u << LO_LOG) - 1);
            hi = id >> (S::C_LOG + LO_LOG);
        } else {
            lo = id & ((1u << LO_LOG) - 1);
            hi = (id >> LO_LOG) & ((1u << A) - 1);
            c = id >> (LO_LOG + A);
        }
        const u32 sub = (blockIdx.x << S::C_LOG) + c; /* which sub-transform */
        const u32 first = (hi << (R_LOG - A)) + lo;
        typename P::T x[1 << G];
#pragma unroll
        for (int k = 0; k < (1 << G); k++) {
            const u32 i = first + ((u32)k << LO_LOG);
            if (FROM_IO)
                x[k] = io.load(path, t, job, prime, COLUMNS ? (i << log_other) + sub : (sub << R_LOG) + i);
            else
                x[k] = tile[ntt_pad(COLUMNS ? (i << S::C_LOG) + c : (c << R_LOG) + i)];
        }
        ntt_group<P, A, G, INVERSE>(path, t, prime, COLUMNS ? 0 : log_other, COLUMNS ? 0 : sub, hi, x);
#pragma unroll
        for (int k = 0; k < (1 << G); k++) {
            const u32 i = first + ((u32)k << LO_LOG);
            if (TO_IO)
                io.store(path, t, job, prime, COLUMNS ? (i << log_other) + sub : (sub << R_LOG) + i, x[k]);
            else
                tile[ntt_pad(COLUMNS ? (i << S::C_LOG) + c : (c << R_LOG) + i)] = x[k];
        }
    }
}

/* Copies the finished tile from shared memory to the IO in address order: coalesced stores for the row pass.
 */
template <class P, class IO, int R_LOG>
__device__ __forceinline__ void ntt_flush(const P &path, const GpuTables &t, const IO &io, u32 job, u32 prime,
                                          const typename P::T *tile) {
    typedef PassShape<R_LOG> S;
    const u32 base = blockIdx.x << S::TILE_LOG;
#pragma unroll
    for (int k = 0; k < (1 << S::E_LOG); k++) {
        const u32 i = threadIdx.x + (u32)k * S::THREADS;
        io.store(path, t, job, prime, base + i, tile[ntt_pad(i)]);
    }
}
template <class P, class IO, int R_LOG>
__device__ __forceinline__ void ntt_fill(const P &path, const GpuTables &t, const IO &io, u32 job, u32 prime,
                                         typename P::T *tile) {
    typedef PassShape<R_LOG> S;
    const u32 base = blockIdx.x << S::TILE_LOG;
#pragma unroll
    for (int k = 0; k < (1 << S::E_LOG); k++) {
        const u32 i = threadIdx.x + (u32)k * S::THREADS;
        tile[ntt_pad(i)] = io.load(path, t, job, prime, base + i);
    }
}

/* grid: (N >> TILE_LOG, jobs). log_other = log N - R_LOG. */
template <class P, class IO, int R_LOG, bool INVERSE, bool COLUMNS>
__global__ void __launch_bounds__(PassShape<R_LOG>::THREADS) ntt_pass(GpuTables t, IO io, u32 log_other) {
    typedef PassShape<R_LOG> S;
    __shared__ typename P::T tile[(1 << S::TILE_LOG) + (1 << (S::TILE_LOG - 3))];
    const u32 job = blockIdx.y;
    if (io.skip(t, job)) { /* the same for the whole block */
        io.bypass(t, job, blockIdx.x << S::TILE_LOG, 1u << S::TILE_LOG);
        return;
    }
    const u32 prime = io.prime(t, job);
    const P path(t.prime[prime]);
    const int A2 = S::G1, A3 = S::G1 + S::G2;
    if (!INVERSE) {
        ntt_step<P, IO, R_LOG, 0, S::G1, false, COLUMNS, true, false>(path, t, io, job, prime, log_other,
                                                                      tile);
        __syncthreads();
        if (S::G3 != 0) {
            ntt_step<P, IO, R_LOG, A2, S::G2, false, COLUMNS, false, false>(path, t, io, job, prime,
                                                                            log_other, tile);
            __syncthreads();
            ntt_step<P, IO, R_LOG, S::G3 ? A3 : 0, S::G3 ? S::G3 : 1, false, COLUMNS, false, COLUMNS>(
                path, t, io, job, prime, log_other, tile);
        } else {
            ntt_step<P, IO, R_LOG, A2, S::G2, false, COLUMNS, false, COLUMNS>(path, t, io, job, prime,
                                                                              log_other, tile);
        }
        if (!COLUMNS) {
            __syncthreads();
            ntt_flush<P, IO, R_LOG>(path, t, io, job, prime, tile);
        }
    } else {
        if (!COLUMNS) {
            ntt_fill<P, IO, R_LOG>(path, t, io, job, prime, tile);
            __syncthreads();
        }
        if (S::G3 != 0) {
            ntt_step<P, IO, R_LOG, S::G3 ? A3 : 0, S::G3 ? S::G3 : 1, true, COLUMNS, COLUMNS, false>(
                path, t, io, job, prime, log_other, tile);
            __syncthreads();
            ntt_step<P, IO, R_LOG, A2, S::G2, true, COLUMNS, false, false>(path, t, io, job, prime, log_other,
                                                                           tile);
        } else {
            ntt_step<P, IO, R_LOG, A2, S::G2, true, COLUMNS, COLUMNS, false>(path, t, io, job, prime,
                                                                             log_other, tile);
        }
        __syncthreads();
        ntt_step<P, IO, R_LOG, 0, S::G1, true, COLUMNS, false, true>(path, t, io, job, prime, log_other,
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

template <class P, class IO, int R_LOG, bool INVERSE, bool COLUMNS>
static cudaError_t ntt_enqueue(cudaStream_t stream, const GpuTables &t, const IO &io, u32 jobs) {
    typedef PassShape<R_LOG> S;
    const dim3 grid((1u << t.log_n) >> S::TILE_LOG, jobs);
    ntt_pass<P, IO, R_LOG, INVERSE, COLUMNS><<<grid, S::THREADS, 0, stream>>>(t, io, t.log_n - R_LOG);
    return cudaGetLastError();
}

/* One pass of a transform over `jobs` polynomials. */
template <class P, bool INVERSE, bool COLUMNS, class IO>
static cudaError_t ntt_run_path(cudaStream_t stream, const GpuTables &t, const IO &io, u32 jobs) {
    switch (COLUMNS ? ntt_columns_log(t.log_n) : ntt_rows_log(t.log_n)) {
    case 5:
        return ntt_enqueue<P, IO, 5, INVERSE, COLUMNS>(stream, t, io, jobs);
    case 6:
        return ntt_enqueue<P, IO, 6, INVERSE, COLUMNS>(stream, t, io, jobs);
    case 7:
        return ntt_enqueue<P, IO, 7, INVERSE, COLUMNS>(stream, t, io, jobs);
    case 8:
        return ntt_enqueue<P, IO, 8, INVERSE, COLUMNS>(stream, t, io, jobs);
    case 9:
        return ntt_enqueue<P, IO, 9, INVERSE, COLUMNS>(stream, t, io, jobs);
    default:
        return cudaErrorInvalidValue;
    }
}
template <bool INVERSE, bool COLUMNS, class IO>
static cudaError_t ntt_run(cudaStream_t stream, const CudaTables *tables, const IO &io, u32 jobs) {
    if (jobs == 0) return cudaSuccess;
    return tables->is_f64 ? ntt_run_path<PathF64, INVERSE, COLUMNS>(stream, tables->device, io, jobs)
                          : ntt_run_path<PathI64, INVERSE, COLUMNS>(stream, tables->device, io, jobs);
}

#endif
