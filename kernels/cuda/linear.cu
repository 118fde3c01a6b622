/* Sums over sparse lists: DIAGONAL_SUM, PERMUTE_SUM. */
#include "kernels/cuda/cuda_internal.cuh"

namespace {

__device__ __forceinline__ u32 prime_of(const GpuTables &t, const kernel_basis &b, u32 limb) {
    return limb < b.q_count ? b.q_first + limb : t.q_count + (limb - b.q_count);
}

/* the first item of `out` or of a later one, by bisection */
__device__ __forceinline__ u32 first_item(const kernel_diagonal_sum_args &a, u32 out) {
    u32 low = 0, high = a.item_count;
    while (low < high) {
        const u32 middle = (low + high) / 2;
        if (a.items[middle].out < out)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}
const u32 diagonal_ahead = 4; /* terms whose words are on their way at once */

/* grid: (outs, N / 256, limbs): outs fastest, so that the inputs that they share are still in the cache. Two
 * coefficients a thread. Items of one out are contiguous: find the first by bisection. */
template <class P>
__global__ void __launch_bounds__(128) diagonal_sum(GpuTables t, kernel_diagonal_sum_args a) {
    gpu_release_next();
    gpu_wait();
    const u32 i = (blockIdx.y * blockDim.x + threadIdx.x) * 2, limb = blockIdx.z, out = blockIdx.x;
    const u32 limbs = a.basis.q_count + a.basis.p_count;
    const P path(t.prime[prime_of(t, a.basis, limb)]);
    const u32 first = first_item(a, out), end = first_item(a, out + 1);
    for (u32 c0 = 0; c0 < a.component_count; c0 += 2) {
        const bool two = c0 + 1 < a.component_count;
        const size_t second = two ? (size_t)limbs << t.log_n : 0; /* else the first once more, not kept */
        typename P::Accumulator sum[2][2] = {{P::sum_zero(), P::sum_zero()}, {P::sum_zero(), P::sum_zero()}};
        u32 terms = 0;
        for (u32 n = first; n < end; n += diagonal_ahead) {
            ulonglong2 w[diagonal_ahead], x[diagonal_ahead], y[diagonal_ahead];
#pragma unroll
            for (u32 k = 0; k < diagonal_ahead; k++) {
                const diagonal_item item = a.items[min(n + k, end - 1)];
                const u64 *in =
                    a.in + ((((size_t)item.in * a.component_count + c0) * limbs + limb) << t.log_n) + i;
                w[k] = __ldcs(reinterpret_cast<const ulonglong2 *>((const u64 *)item.plain +
                                                                   ((size_t)limb << t.log_n) + i));
                x[k] = *reinterpret_cast<const ulonglong2 *>(in);
                y[k] = *reinterpret_cast<const ulonglong2 *>(in + second);
            }
#pragma unroll
            for (u32 k = 0; k < diagonal_ahead; k++) {
                if (n + k >= end) break;
                path.sum_add(sum[0][0], x[k].x, w[k].x), path.sum_add(sum[0][1], x[k].y, w[k].y);
                path.sum_add(sum[1][0], y[k].x, w[k].x), path.sum_add(sum[1][1], y[k].y, w[k].y);
                if (++terms % P::sum_terms == 0) {
                    path.sum_fold(sum[0][0]), path.sum_fold(sum[0][1]);
                    path.sum_fold(sum[1][0]), path.sum_fold(sum[1][1]);
                }
            }
        }
        u64 *to = a.out + ((((size_t)out * a.component_count + c0) * limbs + limb) << t.log_n) + i;
#pragma unroll
        for (u32 c = 0; c < 2; c++)
            if (c == 0 || two)
                *reinterpret_cast<ulonglong2 *>(to + ((size_t)(c * limbs) << t.log_n)) =
                    make_ulonglong2(path.sum_finish(sum[c][0]), path.sum_finish(sum[c][1]));
    }
}

/*
 * The same for many outs of two components: four of them a thread, so that what they read of the inputs is
 * read once, and the plaintexts alone take the bandwidth. Outs of one layer mostly name the same inputs in
 * the same order; one that does not loads its own.
 */
const u32 diagonal_rows = 4, diagonal_rows_min = 8, diagonal_rows_ahead = 2;

struct DiagonalRow {
    u32 first, count;
};

template <class P>
__global__ void __launch_bounds__(128) diagonal_sum_rows(GpuTables t, kernel_diagonal_sum_args a) {
    gpu_release_next();
    gpu_wait();
    const u32 i = (blockIdx.y * blockDim.x + threadIdx.x) * 2, limb = blockIdx.z;
    const u32 row0 = blockIdx.x * diagonal_rows, limbs = a.basis.q_count + a.basis.p_count;
    const size_t second = (size_t)limbs << t.log_n, at = ((size_t)limb << t.log_n) + i;
    const P path(t.prime[prime_of(t, a.basis, limb)]);
    DiagonalRow row[diagonal_rows];
    u32 longest = 0, begin = first_item(a, row0);
#pragma unroll
    for (u32 r = 0; r < diagonal_rows; r++) {
        const u32 end = row0 + r < a.out_count ? first_item(a, row0 + r + 1) : begin;
        row[r].first = begin, row[r].count = end - begin;
        longest = max(longest, end - begin);
        begin = end;
    }
    typename P::Accumulator sum[diagonal_rows][4];
#pragma unroll
    for (u32 r = 0; r < diagonal_rows; r++)
#pragma unroll
        for (u32 k = 0; k < 4; k++) sum[r][k] = P::sum_zero();
    for (u32 n = 0, terms = 0; n < longest; n += diagonal_rows_ahead) {
        ulonglong2 w[diagonal_rows_ahead][diagonal_rows], x[diagonal_rows_ahead], y[diagonal_rows_ahead];
        u32 in[diagonal_rows_ahead][diagonal_rows];
#pragma unroll
        for (u32 k = 0; k < diagonal_rows_ahead; k++) {
#pragma unroll
            for (u32 r = 0; r < diagonal_rows; r++) {
                in[k][r] = 0xffffffffu, w[k][r] = make_ulonglong2(0, 0);
                if (n + k >= row[r].count) continue;
                const diagonal_item item = a.items[row[r].first + n + k];
                in[k][r] = item.in;
                w[k][r] = __ldcs(reinterpret_cast<const ulonglong2 *>((const u64 *)item.plain + at));
            }
            const u32 shared = in[k][0] == 0xffffffffu ? 0 : in[k][0];
            const u64 *from = a.in + 2 * shared * second + at;
            x[k] = *reinterpret_cast<const ulonglong2 *>(from);
            y[k] = *reinterpret_cast<const ulonglong2 *>(from + second);
        }
#pragma unroll
        for (u32 k = 0; k < diagonal_rows_ahead; k++) {
#pragma unroll
            for (u32 r = 0; r < diagonal_rows; r++) {
                ulonglong2 own_x = x[k], own_y = y[k];
                if (in[k][r] == 0xffffffffu) continue;
                if (in[k][r] != in[k][0]) {
                    const u64 *from = a.in + 2 * in[k][r] * second + at;
                    own_x = *reinterpret_cast<const ulonglong2 *>(from);
                    own_y = *reinterpret_cast<const ulonglong2 *>(from + second);
                }
                path.sum_add(sum[r][0], own_x.x, w[k][r].x), path.sum_add(sum[r][1], own_x.y, w[k][r].y);
                path.sum_add(sum[r][2], own_y.x, w[k][r].x), path.sum_add(sum[r][3], own_y.y, w[k][r].y);
            }
            if (++terms % P::sum_terms == 0) {
#pragma unroll
                for (u32 r = 0; r < diagonal_rows; r++)
#pragma unroll
                    for (u32 c = 0; c < 4; c++) path.sum_fold(sum[r][c]);
            }
        }
    }
#pragma unroll
    for (u32 r = 0; r < diagonal_rows; r++) {
        if (row0 + r >= a.out_count) break;
        u64 *to = a.out + 2 * (size_t)(row0 + r) * second + at;
        *reinterpret_cast<ulonglong2 *>(to) =
            make_ulonglong2(path.sum_finish(sum[r][0]), path.sum_finish(sum[r][1]));
        *reinterpret_cast<ulonglong2 *>(to + second) =
            make_ulonglong2(path.sum_finish(sum[r][2]), path.sum_finish(sum[r][3]));
    }
}

__global__ void __launch_bounds__(128) permute_sum(GpuTables t, kernel_permute_sum_args a) {
    gpu_release_next();
    gpu_wait();
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x, limb = blockIdx.y;
    const u64 q = t.prime[prime_of(t, a.out.basis, limb)].q;
    u64 sum = a.start ? a.start[((size_t)limb << t.log_n) + i] : 0;
#pragma unroll 4
    for (u32 n = 0; n < a.item_count; n++) {
        const permute_item item = a.items[n];
        const u32 from = item.galois_element == 1 ? i : gpu_permute(i, item.galois_element, t.log_n);
        sum = gpu_add(sum, a.in[(((size_t)item.in * a.in_stride + limb) << t.log_n) + from], q);
    }
    a.out.words[((size_t)limb << t.log_n) + i] = sum;
}

} // namespace

cudaError_t cuda_diagonal_sum(cudaStream_t stream, const kernel_diagonal_sum_args *a) {
    const CudaTables *tables = cuda_tables(a->tables);
    if (a->out_count >= diagonal_rows_min && a->component_count == 2) {
        const dim3 rows((a->out_count + diagonal_rows - 1) / diagonal_rows,
                        (1u << tables->device.log_n) / 256, basis_limb_count(a->basis));
        LAUNCH_PATH(tables, diagonal_sum_rows, rows, 128, stream, tables->device, *a);
    }
    const dim3 grid(a->out_count, (1u << tables->device.log_n) / 256, basis_limb_count(a->basis));
    LAUNCH_PATH(tables, diagonal_sum, grid, 128, stream, tables->device, *a);
}

cudaError_t cuda_permute_sum(cudaStream_t stream, const kernel_permute_sum_args *a) {
    const CudaTables *tables = cuda_tables(a->tables);
    const dim3 grid((1u << tables->device.log_n) / 128, basis_limb_count(a->out.basis));
    return gpu_launch(permute_sum, grid, 128, stream, tables->device.log_n, tables->device, *a);
}
