/*
 * The row pass, FP64 path, for work that does more with its rows than store them. A row has at most 256
 * elements, so a warp holds 256 elements, 8 a lane: its exchanges stay inside the warp and no block ever
 * waits as a whole. A warp keeps the twiddles of its rows in registers and runs the rows of several
 * polynomials of one prime through them (the digits of a key switch, the components of a quotient), while the
 * words of the next are on their way into shared memory.
 *
 * "First" order is that of the transform's first group of stages (8 elements a lane, a step apart), "last"
 * that of its last group: lanes hold runs of 2^LAST elements. A forward pass takes first order to last order,
 * an inverse pass the other way.
 */
#ifndef CKKS_CUDA_ROWS_CUH
#define CKKS_CUDA_ROWS_CUH

#include "kernels/cuda/ntt.cuh"

const u32 rows_warps = 4;      /* a block */
const u32 rows_elements = 256; /* a warp */
/* Below this many elements in a launch, warps share out the polynomials of a row instead of looping over
 * them; and blocks that fill the card a few times over. */
const u64 rows_few_elements = 1u << 18;
const u32 rows_blocks_wanted = 1056;

/* Stages [A, A + G) of a row of 2^R_LOG: where a lane's elements sit among its warp's 256. The parts that the
 * lane and the element's number give have no bit in common. */
template <int R_LOG, int A, int G> struct RowGroup {
    static const int UNITS = 8 >> G, LO = R_LOG - A - G;
    static __device__ __forceinline__ constexpr u32 hi(u32 id) { return (id >> LO) & ((1u << A) - 1); }
    static __device__ __forceinline__ constexpr u32 row(u32 id) { return id >> (LO + A); }
    static __device__ __forceinline__ constexpr u32 at(u32 lane, int unit, int k) {
        const u32 id = lane + 32u * (u32)unit;
        return (row(id) << R_LOG) + (hi(id) << (R_LOG - A)) + (id & ((1u << LO) - 1)) + ((u32)k << LO);
    }
};

template <int R_LOG, int A, int G, bool INVERSE> struct RowTwiddles {
    typedef RowGroup<R_LOG, A, G> Group;
    double w[Group::UNITS][(1 << G) - 1];
    /* first_row: the warp's first row in its polynomial */
    __device__ __forceinline__ void load(const GpuTables &t, u32 prime, u32 log_other, u32 first_row,
                                         u32 lane) {
        const double *table = PathF64::twiddles(t, INVERSE, prime);
#pragma unroll
        for (int u = 0; u < Group::UNITS; u++) {
            const u32 id = lane + 32u * (u32)u;
            const u32 at = (1u << (log_other + A)) + ((first_row + Group::row(id)) << A) + Group::hi(id);
            PathF64::twiddles_load<1>(w[u], table + at);
            if constexpr (G > 1) PathF64::twiddles_load<2>(w[u] + 1, table + 2 * at);
            if constexpr (G > 2) PathF64::twiddles_load<4>(w[u] + 3, table + 4 * at);
        }
    }
};

/*
 * Rows of 256: the twiddles of the last two stages are 192 of a row's 255, as many bytes as the row itself.
 * The table holds psi^brev(index), so that with r = 2^(log N - 1) + 2^7 * row
 *     table[r + 2 hi] = table[r] * table[2 hi],  table[r + 2 hi + 1] = table[r + 2 hi] * table[1],
 *     table[(r + 2 hi) / 2] = table[r + 2 hi]^2:
 * one word of a row's own, and the head of the table, which stays in the cache. Each product is reduced:
 * at most q/2 + 1, which the bound of a multiplication allows as q < 2^50 - 2.
 */
template <int R_LOG, int A, bool INVERSE> struct MadeTwiddles {
    typedef RowGroup<R_LOG, A, 2> Group;
    double row, quarter, point[Group::UNITS];
    __device__ __forceinline__ void load(const GpuTables &t, u32 prime, u32 log_other, u32 first_row,
                                         u32 lane) {
        const double *table = PathF64::twiddles(t, INVERSE, prime);
        row = gpu_constant(table + (1u << (log_other + A + 1)) + (first_row << (A + 1)));
        quarter = gpu_constant(table + 1);
#pragma unroll
        for (int u = 0; u < Group::UNITS; u++)
            point[u] = gpu_constant(table + 2 * Group::hi(lane + 32u * (u32)u));
    }
    __device__ __forceinline__ void finish(const PathF64 &path, double (&w)[Group::UNITS][3]) const {
#pragma unroll
        for (int u = 0; u < Group::UNITS; u++) {
            w[u][1] = path.reduce(path.mul(row, point[u]));
            w[u][0] = path.reduce(path.mul(w[u][1], w[u][1]));
            w[u][2] = path.reduce(path.mul(w[u][1], quarter));
        }
    }
};

template <int R_LOG> struct Rows {
    typedef PassShape<R_LOG, 10> S;
    static const bool three = S::GROUPS == 3;
    static const bool makes_last = R_LOG == 8; /* one row a warp; large rings, whose passes wait for memory */
    static const int A1 = S::first(1), G1 = S::size(1), A2 = three ? S::first(2) : 0,
                     G2 = three ? S::size(2) : 1;
    static const int AL = three ? A2 : A1, LAST = three ? G2 : G1; /* the last group */
    typedef RowGroup<R_LOG, 0, 3> First;
    typedef RowGroup<R_LOG, AL, LAST> Last;
    static const u32 first_step = 1u << First::LO;
    static const u32 tile_words = rows_elements + rows_elements / 8;

    /* load begins to read them, finish (when other reads are on their way) makes the rest. */
    template <bool INVERSE> struct Twiddles {
        RowTwiddles<R_LOG, 0, 3, INVERSE> w0;
        RowTwiddles<R_LOG, A1, G1, INVERSE> w1;
        RowTwiddles<R_LOG, A2, G2, INVERSE> w2;
        MadeTwiddles<R_LOG, A2, INVERSE> made;
        __device__ __forceinline__ void load(const GpuTables &t, u32 prime, u32 segment, u32 lane) {
            const u32 log_other = t.log_n - R_LOG, first_row = segment * rows_elements >> R_LOG;
            w0.load(t, prime, log_other, first_row, lane);
            w1.load(t, prime, log_other, first_row, lane);
            if constexpr (makes_last)
                made.load(t, prime, log_other, first_row, lane);
            else if constexpr (three)
                w2.load(t, prime, log_other, first_row, lane);
        }
        __device__ __forceinline__ void finish(const PathF64 &path) {
            if constexpr (makes_last) made.finish(path, w2.w);
        }
    };

    static __device__ __forceinline__ constexpr u32 first_at(int e) { return First::at(0, 0, e); }
    static __device__ __forceinline__ u32 first_lane(u32 lane) { return First::at(lane, 0, 0); }
    static __device__ __forceinline__ constexpr u32 last_at(int e) {
        return Last::at(0, e >> LAST, e & ((1 << LAST) - 1));
    }
    static __device__ __forceinline__ u32 last_lane(u32 lane) { return Last::at(lane, 0, 0); }

    template <class Group>
    static __device__ __forceinline__ void put(double *tile, const double (&x)[8], u32 lane) {
#pragma unroll
        for (int e = 0; e < 8; e++) tile[ntt_pad(Group::at(lane, 0, 0)) + ntt_pad(place<Group>(e))] = x[e];
    }
    template <class Group>
    static __device__ __forceinline__ void get(double (&x)[8], const double *tile, u32 lane) {
#pragma unroll
        for (int e = 0; e < 8; e++) x[e] = tile[ntt_pad(Group::at(lane, 0, 0)) + ntt_pad(place<Group>(e))];
    }
    template <class Group> static __device__ __forceinline__ constexpr u32 place(int e) {
        const int per = 8 / Group::UNITS;
        return Group::at(0, e / per, e % per);
    }

    template <int A, int G, bool INVERSE, class W>
    static __device__ __forceinline__ void stages(const PathF64 &path, const W &tw, double (&x)[8]) {
#pragma unroll
        for (int u = 0; u < (8 >> G); u++)
            ntt_stage<PathF64, A, G, INVERSE ? G - 1 : 0, INVERSE, REDUCE_AFTER_PASS, R_LOG>(path, tw.w[u],
                                                                                             x + (u << G));
    }

    /* first order, |x| < 2^52 -> last order, |x| < 4q */
    static __device__ __forceinline__ void forward(const PathF64 &path, const Twiddles<false> &w,
                                                   double (&x)[8], double *tile, u32 lane) {
        typedef RowGroup<R_LOG, A1, G1> Middle;
        stages<0, 3, false>(path, w.w0, x);
        __syncwarp();
        put<First>(tile, x, lane);
        __syncwarp();
        get<Middle>(x, tile, lane);
        stages<A1, G1, false>(path, w.w1, x);
        if constexpr (three) {
            put<Middle>(tile, x, lane); /* each lane where it read: no wait */
            __syncwarp();
            get<Last>(x, tile, lane);
            stages<A2, G2, false>(path, w.w2, x);
        }
    }
    /* last order, |x| <= q -> first order, reduced */
    static __device__ __forceinline__ void inverse(const PathF64 &path, const Twiddles<true> &w,
                                                   double (&x)[8], double *tile, u32 lane) {
        typedef RowGroup<R_LOG, A1, G1> Middle;
        __syncwarp();
        if constexpr (three) {
            stages<A2, G2, true>(path, w.w2, x);
            put<Last>(tile, x, lane);
            __syncwarp();
            get<Middle>(x, tile, lane);
        }
        stages<A1, G1, true>(path, w.w1, x);
        put<Middle>(tile, x, lane);
        __syncwarp();
        get<First>(x, tile, lane);
        stages<0, 3, true>(path, w.w0, x);
    }

    /* Contiguous words of the warp, in pieces of two: lane and number of the copy -> piece; piece -> place in
     * shared memory, so that neither order meets bank conflicts. */
    static __device__ __forceinline__ constexpr u32 piece_slot(u32 piece) {
        return piece ^ (piece >> 3 & ((1u << (LAST - 1)) - 1));
    }
    /* two words of last order: pair j of 0..3 */
    static __device__ __forceinline__ u32 pair_slot(u32 lane, int j) {
        return piece_slot(last_lane(lane) / 2) ^ piece_slot(last_at(2 * j) / 2);
    }
};

/* Copies into shared memory that the thread does not wait for until row_wait. */
__device__ __forceinline__ void row_copy8(void *to, const void *from) {
    ptx_copy_async8(to, from);
}
/* The same for words that nothing reads again soon: they make room in the cache first. */
__device__ __forceinline__ u64 row_once() {
    return ptx_evict_first();
}
__device__ __forceinline__ void row_copy16_once(void *to, const void *from, u64 policy) {
    ptx_copy_async16(to, from, policy);
}
__device__ __forceinline__ void row_copy8_once(void *to, const void *from, u64 policy) {
    ptx_copy_async8(to, from, policy);
}
__device__ __forceinline__ void row_commit() {
    ptx_copy_commit();
}
/* all but the last `PENDING` groups have arrived */
template <int PENDING> __device__ __forceinline__ void row_wait() {
    ptx_copy_wait<PENDING>();
}

/* 256 words, contiguous in memory, read once, into `slots` (piece_slot order) */
template <int R_LOG>
__device__ __forceinline__ void row_copy_words(ulonglong2 *slots, const u64 *from, u32 lane, u64 policy) {
    slots += Rows<R_LOG>::piece_slot(lane), from += 2 * lane;
#pragma unroll
    for (u32 i = 0; i < 4; i++) /* piece lane + 32 i: 32 i has none of the bits that piece_slot moves */
        row_copy16_once(slots + 32 * i, from + 64 * i, policy);
}
/* The reverse: last-order words through `slots` into contiguous memory. */
template <int R_LOG>
__device__ __forceinline__ void row_store_words(u64 *to, const u64 (&w)[8], ulonglong2 *slots, u32 lane) {
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 4; j++)
        slots[Rows<R_LOG>::pair_slot(lane, j)] = make_ulonglong2(w[2 * j], w[2 * j + 1]);
    __syncwarp();
    slots += Rows<R_LOG>::piece_slot(lane), to += 2 * lane;
#pragma unroll
    for (u32 i = 0; i < 4; i++) *reinterpret_cast<ulonglong2 *>(to + 64 * i) = slots[32 * i];
}

/* A row pass like any other (ntt_pass), one row segment a warp. grid: (segments / rows_warps, jobs) */
template <class IO, int R_LOG, bool INVERSE>
__global__ void __launch_bounds__(rows_warps * 32, 4) rows_pass(GpuTables t, IO io) {
    typedef Rows<R_LOG> R;
    __shared__ double tiles[rows_warps][R::tile_words];
    gpu_release_next();
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, segment = blockIdx.x * rows_warps + warp,
              base = segment * rows_elements;
    double *tile = tiles[warp], x[8];
    const auto job = io.template open<PathF64>(t, blockIdx.y, nullptr);
    typename R::template Twiddles<INVERSE> w;
    w.load(t, job.prime, segment, lane);
    gpu_wait();
    if constexpr (INVERSE) {
        job.load(x, base + lane, 32);
        w.finish(job.path);
#pragma unroll
        for (u32 e = 0; e < 8; e++) tile[ntt_pad(lane) + ntt_pad(32 * e)] = x[e];
        __syncwarp();
        R::template get<typename R::Last>(x, tile, lane);
        R::inverse(job.path, w, x, tile, lane);
        job.store(x, base + R::first_lane(lane), R::first_step);
    } else {
        job.load(x, base + R::first_lane(lane), R::first_step);
        w.finish(job.path);
        R::forward(job.path, w, x, tile, lane);
        R::template put<typename R::Last>(tile, x, lane);
        __syncwarp();
#pragma unroll
        for (u32 e = 0; e < 8; e++) x[e] = tile[ntt_pad(lane) + ntt_pad(32 * e)];
        job.store(x, base + lane, 32);
    }
}

/* the kernel for this ring's rows */
#define ROWS_SWITCH(call)                                                                                    \
    switch (ntt_rows_log(t.log_n)) {                                                                         \
    case 5:                                                                                                  \
        return call(5);                                                                                      \
    case 6:                                                                                                  \
        return call(6);                                                                                      \
    case 7:                                                                                                  \
        return call(7);                                                                                      \
    case 8:                                                                                                  \
        return call(8);                                                                                      \
    default:                                                                                                 \
        return cudaErrorInvalidValue;                                                                        \
    }

#endif
