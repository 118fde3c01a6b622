/*
 * MATRIX_PRODUCT: the linear layer of the throughput layout, a clear matrix times a batch of ciphertexts.
 *
 * FP64 path, on the matrix units: operands are centred and split into a multiple of 2^s and a rest of at most
 * 2^(s - 1), so that a product is up to four exact ones, which add up without reduction in any order: high *
 * high, the two middle ones, low * low. Where all weights of a piece of the matrix are small (as fixed-point
 * weights are), they have no high part and half of the work is left out; a prime of at most 32 bits leaves
 * the ciphertexts whole. Sums are folded into one residue only before they could pass what a double holds:
 * the largest pieces of the weights at hand say when.
 *
 *   low     each piece is at most 2^24 (or x 2^(bits - 1), w 2^(49 - bits)): 16 terms stay below 2^52
 *   middle  two of them: 2^53; |sum| / q is below 2^30, so one reduction leaves q / 2 + 1
 *   high    |sum| / q <= 2^52: the quotient is rounded to an even number (fold_high) and off by at most 3, so
 *           the remainder is exact and at most 3 q
 *   all together, with a residue from the fold before: q / 2 + 2^52 + q / 2 + 1 + 3 q < 2^53
 */
#include "kernels/cuda/cuda_internal.cuh"

namespace {

__device__ __forceinline__ u32 prime_of(const GpuTables &t, const kernel_basis &b, u32 limb) {
    return limb < b.q_count ? b.q_first + limb : t.q_count + (limb - b.q_count);
}

struct SplitDouble {
    double high, low;
};
/* magic: 1.5 * 2^(52 + s) rounds to multiples of 2^s */
__device__ __forceinline__ SplitDouble split(double x, double magic) {
    const double high = __dadd_rn(__dadd_rn(x, magic), -magic);
    return {high, x - high};
}

__device__ __forceinline__ double fold_high(const PathF64 &path, double x) {
    const double magic = 6755399441055744.0 * 2.0; /* 1.5 * 2^53 */
    const double quotient = __dadd_rn(__dadd_rn(__dmul_rn(x, path.qi), magic), -magic);
    return __fma_rn(-quotient, path.q, x);
}

/* c += a * b: a is 16 rows by 8 columns, b 8 by 8. With row = lane / 4 and k = lane % 4, a lane holds a at
 * (row, k), (row + 8, k), (row, k + 4), (row + 8, k + 4), b at (k, row), (k + 4, row), and c at (row, 2 k),
 * (row, 2 k + 1), (row + 8, 2 k), (row + 8, 2 k + 1). */
__device__ __forceinline__ void matrix_step(double (&c)[4], const double (&a)[4], const double (&b)[2]) {
    ptx_matrix_step(c, a, b);
}

/* A block makes `rows` rows of the result at `positions` positions of one limb of one component, `columns`
 * columns of the matrix at a time; a warp 16 positions of M_TILES times 16 rows. */
template <int WARPS, int ROW_WARPS, int M_TILES> struct MatrixShape {
    static const u32 warps = WARPS, threads = 32 * warps, columns = 8;
    static const u32 rows = 16 * M_TILES * ROW_WARPS, positions = 16 * (warps / ROW_WARPS);
    /* rows of shared memory with padding: neither order of access meets bank conflicts */
    static const u32 weight_step = columns + 4, word_step = positions + 2;
    static const u32 weights_each = rows * columns / threads, words_each = positions * columns / threads;
};

/* How the operands of one prime are split, and how much of the sums' range is in use. */
struct MatrixRange {
    bool splits_words;
    double word_magic, weight_magic, weight_unit; /* weight_unit: 2^s of the weights */
    double word_bound;                            /* largest piece of a word, in its unit */
    double low, middle, high;                     /* bounds of the sums; high: of its quotient */

    __device__ __forceinline__ explicit MatrixRange(u32 bits) {
        splits_words = bits > 32;
        const u32 s = splits_words ? (bits + 1) / 2 : 50 - bits;
        weight_unit = (double)(1ull << s);
        weight_magic = word_magic = 6755399441055744.0 * weight_unit;
        word_bound = splits_words ? 0.5 * weight_unit : (double)(1ull << (bits - 1));
        low = middle = high = 0.0;
    }
    /* Takes terms of weights with pieces of at most these sizes; false: fold first. */
    __device__ __forceinline__ bool take(u32 terms, double low_max, double high_max) {
        const double each = (double)terms * word_bound;
        const double l = low + each * low_max,
                     m = middle + each * (high_max + (splits_words ? low_max : 0.0)),
                     h = high + 0.5 * (double)terms * high_max * weight_unit;
        if (l > 4503599627370496.0 || m > 9007199254740992.0 || h > 4503599627370496.0) return false;
        low = l, middle = m, high = h;
        return true;
    }
};

/* grid: (N / positions, row tiles, components * limbs) */
template <int WARPS, int ROW_WARPS, int M_TILES>
__global__ void __launch_bounds__(32 * WARPS, 8 / WARPS)
    matrix_product_f64(GpuTables t, kernel_matrix_product_args a) {
    typedef MatrixShape<WARPS, ROW_WARPS, M_TILES> S;
    __shared__ double weights[2][2][S::rows][S::weight_step]; /* [turn][low, high] */
    __shared__ double2 words[2][S::columns][S::word_step];    /* low, high */
    __shared__ u32 largest[3][2];                             /* pieces of a chunk's weights: low, high */
    gpu_release_next();
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, lane_row = lane >> 2, lane_k = lane & 3;
    const u32 warp_row = warp % ROW_WARPS * (16 * M_TILES), warp_at = warp / ROW_WARPS * 16;
    const u32 limbs = a.basis.q_count + a.basis.p_count, component = blockIdx.z / limbs,
              limb = blockIdx.z % limbs, row0 = blockIdx.y * S::rows, base = blockIdx.x * S::positions;
    const GpuPrime &prime = t.prime[prime_of(t, a.basis, limb)];
    const PathF64 path(prime);
    MatrixRange range(prime.bits);
    const u64 *w = a.weight + (size_t)limb * a.row_count * a.column_count;
    const size_t in_step = (size_t)a.component_count * limbs << t.log_n;
    const u64 *in = a.in + (((size_t)component * limbs + limb) << t.log_n) + base;
    if (threadIdx.x < 6) largest[threadIdx.x / 2][threadIdx.x % 2] = 0;
    gpu_wait();
    /* What a chunk will be made of, on its way from memory while two others are worked on. */
    struct Fetched {
        u64 weight[S::weights_each], word[S::words_each];
    } even, odd;
    auto fetch = [&](Fetched &next, u32 column0) {
#pragma unroll
        for (u32 i = 0; i < S::weights_each; i++) {
            const u32 at = threadIdx.x + S::threads * i, r = row0 + at / S::columns,
                      c = column0 + at % S::columns;
            next.weight[i] = r < a.row_count && c < a.column_count ? w[(size_t)r * a.column_count + c] : 0;
        }
#pragma unroll
        for (u32 i = 0; i < S::words_each; i++) {
            const u32 at = threadIdx.x + S::threads * i, c = column0 + at / S::positions;
            next.word[i] = c < a.column_count ? in[c * in_step + at % S::positions] : 0;
        }
    };
    auto stage = [&](const Fetched &next, u32 turn, u32 slot) {
        u32 low_max = 0, high_max = 0;
#pragma unroll
        for (u32 i = 0; i < S::weights_each; i++) {
            const u32 at = threadIdx.x + S::threads * i;
            const SplitDouble x = split(path.constant(next.weight[i]), range.weight_magic);
            weights[turn][0][at / S::columns][at % S::columns] = x.low;
            weights[turn][1][at / S::columns][at % S::columns] = x.high;
            /* low words of 2^52 + |piece|, in units of the piece */
            low_max = max(low_max, (u32)__double2loint(fabs(x.low) + 4503599627370496.0));
            high_max =
                max(high_max, (u32)__double2loint(fabs(x.high) + 4503599627370496.0 * range.weight_unit));
        }
#pragma unroll
        for (u32 i = 0; i < S::words_each; i++) {
            const u32 at = threadIdx.x + S::threads * i;
            const double x = path.constant(next.word[i]);
            const SplitDouble pieces = range.splits_words ? split(x, range.word_magic) : SplitDouble{0.0, x};
            words[turn][at / S::positions][at % S::positions] = make_double2(pieces.low, pieces.high);
        }
        low_max = __reduce_max_sync(0xffffffff, low_max), high_max = __reduce_max_sync(0xffffffff, high_max);
        if (lane == 0) atomicMax(&largest[slot][0], low_max), atomicMax(&largest[slot][1], high_max);
    };
    double low[M_TILES][2][4] = {}, middle[M_TILES][2][4] = {}, high[M_TILES][2][4] = {};
    auto fold = [&]() {
#pragma unroll
        for (int m = 0; m < M_TILES; m++)
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    GPU_BOUND(fabs(low[m][n][i]) <= 4503599627370496.0 + path.q);
                    GPU_BOUND(fabs(middle[m][n][i]) <= 9007199254740992.0 * range.weight_unit);
                    low[m][n][i] = path.reduce(low[m][n][i] + path.reduce(middle[m][n][i]) +
                                               fold_high(path, high[m][n][i]));
                    middle[m][n][i] = high[m][n][i] = 0.0;
                }
        range.low = range.middle = range.high = 0.0;
    };
    u32 turn = 0, slot = 0;
    auto chunk = [&](Fetched &next, u32 column0) {
        stage(next, turn, slot);
        fetch(next, column0 + 2 * S::columns); /* beyond the last: zeros, not read */
        __syncthreads();                       /* who is here has read the other buffer: it is written next */
        const u32 low_max = largest[slot][0], high_max = largest[slot][1];
        slot = slot == 2 ? 0 : slot + 1;
        if (threadIdx.x < 2) largest[slot == 2 ? 0 : slot + 1][threadIdx.x] = 0; /* all have read it */
        if (!range.take(S::columns, low_max, high_max)) {
            fold();
            range.take(S::columns, low_max, high_max);
        }
        double x[2][2][2]; /* [tile][low, high][k] */
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const double2 pieces = words[turn][lane_k + 4 * k][warp_at + 8 * n + lane_row];
                x[n][0][k] = pieces.x, x[n][1][k] = pieces.y;
            }
        auto load_weights = [&](double(&y)[M_TILES][4], u32 piece) {
#pragma unroll
            for (int m = 0; m < M_TILES; m++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    y[m][i] = weights[turn][piece][warp_row + 16 * m + lane_row + 8 * (i & 1)]
                                     [lane_k + 4 * (i >> 1)];
        };
        auto multiply = [&](double(&sum)[M_TILES][2][4], const double(&y)[M_TILES][4], int piece) {
#pragma unroll
            for (int m = 0; m < M_TILES; m++)
#pragma unroll
                for (int n = 0; n < 2; n++) matrix_step(sum[m][n], y[m], x[n][piece]);
        };
        double y[M_TILES][4];
        load_weights(y, 0);
        multiply(low, y, 0);
        if (range.splits_words) multiply(middle, y, 1);
        if (high_max != 0) {
            load_weights(y, 1);
            if (range.splits_words) multiply(high, y, 1);
            multiply(middle, y, 0);
        }
        turn ^= 1;
    };
    fetch(even, 0);
    fetch(odd, S::columns);
    __syncthreads();
    for (u32 column0 = 0; column0 < a.column_count; column0 += 2 * S::columns) {
        chunk(even, column0);
        if (column0 + S::columns < a.column_count) chunk(odd, column0 + S::columns);
    }
    fold();
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            const u32 row = row0 + warp_row + 16 * m + lane_row + 4 * (u32)i;
            if (row >= a.row_count) continue;
            u64 *to = a.out + ((((size_t)row * a.component_count + component) * limbs + limb) << t.log_n) +
                      base + warp_at + 2 * lane_k;
            const u64 bias = a.bias && component == 0 ? __ldg(a.bias + (size_t)limb * a.row_count + row) : 0;
#pragma unroll
            for (int n = 0; n < 2; n++)
                *reinterpret_cast<ulonglong2 *>(to + 8 * n) =
                    make_ulonglong2(gpu_add(path.canonical(low[m][n][i]), bias, prime.q),
                                    gpu_add(path.canonical(low[m][n][i + 1]), bias, prime.q));
        }
}

const u32 matrix_rows = 8, matrix_columns = 16, matrix_threads = 128;

/* The integer path: 128-bit sums. grid: (N / matrix_threads, row tiles, components * limbs) */
__global__ void __launch_bounds__(matrix_threads)
    matrix_product_i64(GpuTables t, kernel_matrix_product_args a) {
    __shared__ u64 weight[matrix_columns][matrix_rows];
    gpu_release_next();
    gpu_wait();
    const u32 i = blockIdx.x * matrix_threads + threadIdx.x, row0 = blockIdx.y * matrix_rows;
    const u32 limbs = a.basis.q_count + a.basis.p_count, component = blockIdx.z / limbs,
              limb = blockIdx.z % limbs;
    const PathI64 path(t.prime[prime_of(t, a.basis, limb)]);
    const u64 *w = a.weight + (size_t)limb * a.row_count * a.column_count;
    PathI64::Accumulator sum[matrix_rows];
#pragma unroll
    for (u32 r = 0; r < matrix_rows; r++) sum[r] = PathI64::sum_zero();
    for (u32 column0 = 0; column0 < a.column_count; column0 += matrix_columns) {
        const u32 columns = min(matrix_columns, a.column_count - column0);
        __syncthreads();
        for (u32 k = threadIdx.x; k < matrix_rows * matrix_columns; k += matrix_threads) {
            const u32 r = row0 + k / matrix_columns, c = column0 + k % matrix_columns;
            weight[k % matrix_columns][k / matrix_columns] =
                r < a.row_count && c < a.column_count ? w[(size_t)r * a.column_count + c] : 0;
        }
        __syncthreads();
        for (u32 c = 0; c < columns; c++) {
            const u64 x =
                a.in[(((((size_t)(column0 + c)) * a.component_count + component) * limbs + limb) << t.log_n) +
                     i];
#pragma unroll
            for (u32 r = 0; r < matrix_rows; r++) path.sum_add(sum[r], x, weight[c][r]);
        }
    }
#pragma unroll
    for (u32 r = 0; r < matrix_rows; r++)
        if (row0 + r < a.row_count)
            a.out[(((((size_t)(row0 + r)) * a.component_count + component) * limbs + limb) << t.log_n) + i] =
                a.bias && component == 0
                    ? gpu_add(path.sum_finish(sum[r]), __ldg(a.bias + (size_t)limb * a.row_count + row0 + r),
                              path.m.q)
                    : path.sum_finish(sum[r]);
}

} // namespace

template <int WARPS, int ROW_WARPS, int M_TILES>
static cudaError_t matrix_enqueue(cudaStream_t stream, const GpuTables &t,
                                  const kernel_matrix_product_args &a) {
    typedef MatrixShape<WARPS, ROW_WARPS, M_TILES> S;
    const dim3 grid((1u << t.log_n) / S::positions, (a.row_count + S::rows - 1) / S::rows,
                    a.component_count * basis_limb_count(a.basis));
    return gpu_launch(matrix_product_f64<WARPS, ROW_WARPS, M_TILES>, grid, S::threads, stream, t.log_n, t, a);
}

cudaError_t cuda_matrix_product(cudaStream_t stream, const kernel_matrix_product_args *a) {
    const CudaTables *tables = cuda_tables(a->tables);
    const GpuTables &t = tables->device;
    if (tables->is_f64)
        return a->row_count <= 16   ? matrix_enqueue<4, 1, 1>(stream, t, *a)
               : a->row_count <= 32 ? matrix_enqueue<4, 1, 2>(stream, t, *a)

                                    : matrix_enqueue<8, 2, 2>(stream, t, *a);
    const dim3 grid((1u << t.log_n) / matrix_threads, (a->row_count + matrix_rows - 1) / matrix_rows,
                    a->component_count * basis_limb_count(a->basis));
    return gpu_launch(matrix_product_i64, grid, matrix_threads, stream, t.log_n, t, *a);
}
