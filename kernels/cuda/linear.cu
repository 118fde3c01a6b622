/* Sums over sparse lists: DIAGONAL_SUM, PERMUTE_SUM; and MATRIX_PRODUCT, the linear layer of the throughput
 * layout. */
#include "kernels/cuda/cuda_internal.cuh"

namespace {

__device__ __forceinline__ u32 prime_of(const GpuTables &t, const kernel_basis &b, u32 limb) {
    return limb < b.q_count ? b.q_first + limb : t.q_count + (limb - b.q_count);
}

/* grid: (outs, N / 128, limbs): outs fastest, so that the inputs that they share are still in the cache.
 * Items of one out are contiguous: find the first by bisection. */
template <class P>
__global__ void __launch_bounds__(128) diagonal_sum(GpuTables t, kernel_diagonal_sum_args a) {
    gpu_release_next();
    gpu_wait();
    const u32 i = blockIdx.y * blockDim.x + threadIdx.x, limb = blockIdx.z, out = blockIdx.x;
    const u32 limbs = a.basis.q_count + a.basis.p_count;
    const P path(t.prime[prime_of(t, a.basis, limb)]);
    u32 low = 0, high = a.item_count;
    while (low < high) {
        const u32 middle = (low + high) / 2;
        if (a.items[middle].out < out)
            low = middle + 1;
        else
            high = middle;
    }
    for (u32 c0 = 0; c0 < a.component_count; c0 += 2) {
        const bool two = c0 + 1 < a.component_count;
        typename P::Accumulator s0 = P::sum_zero(), s1 = P::sum_zero();
        u32 terms = 0;
        for (u32 n = low; n < a.item_count && a.items[n].out == out; n++) {
            const u64 w = __ldg((const u64 *)a.items[n].plain + ((size_t)limb << t.log_n) + i);
            const u64 *in =
                a.in + ((((size_t)a.items[n].in * a.component_count + c0) * limbs + limb) << t.log_n) + i;
            path.sum_add(s0, in[0], w);
            if (two) path.sum_add(s1, in[(size_t)limbs << t.log_n], w);
            if (++terms % P::sum_terms == 0) path.sum_fold(s0), path.sum_fold(s1);
        }
        u64 *to = a.out + ((((size_t)out * a.component_count + c0) * limbs + limb) << t.log_n) + i;
        to[0] = path.sum_finish(s0);
        if (two) to[(size_t)limbs << t.log_n] = path.sum_finish(s1);
    }
}

__global__ void __launch_bounds__(128) permute_sum(GpuTables t, kernel_permute_sum_args a) {
    gpu_release_next();
    gpu_wait();
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x, limb = blockIdx.y;
    const u64 q = t.prime[prime_of(t, a.out.basis, limb)].q;
    u64 sum = a.start ? a.start[((size_t)limb << t.log_n) + i] : 0;
    for (u32 n = 0; n < a.item_count; n++) {
        const u32 g = a.items[n].galois_element, from = g == 1 ? i : gpu_permute(i, g, t.log_n);
        sum = gpu_add(sum, a.in[(((size_t)a.items[n].in * a.in_stride + limb) << t.log_n) + from], q);
    }
    a.out.words[((size_t)limb << t.log_n) + i] = sum;
}

/* grid: (N / 64, row tiles, components * limbs). A block computes ROWS rows for 64 coefficients; the inputs
 * of a tile of columns pass through registers once per row tile, weights through shared memory. */
const u32 matrix_rows = 16, matrix_columns = 32;

template <class P>
__global__ void __launch_bounds__(64) matrix_product(GpuTables t, kernel_matrix_product_args a) {
    gpu_release_next();
    gpu_wait();
    __shared__ u64 weight[matrix_rows][matrix_columns];
    const u32 i = blockIdx.x * 64 + threadIdx.x, row0 = blockIdx.y * matrix_rows;
    const u32 limbs = a.basis.q_count + a.basis.p_count, component = blockIdx.z / limbs,
              limb = blockIdx.z % limbs;
    const P path(t.prime[prime_of(t, a.basis, limb)]);
    const u64 *w = a.weight + (size_t)limb * a.row_count * a.column_count;
    typename P::Accumulator sum[matrix_rows];
#pragma unroll
    for (u32 r = 0; r < matrix_rows; r++) sum[r] = P::sum_zero();
    for (u32 column0 = 0; column0 < a.column_count; column0 += matrix_columns) {
        __syncthreads();
        for (u32 k = threadIdx.x; k < matrix_rows * matrix_columns; k += 64) {
            const u32 r = row0 + k / matrix_columns, c = column0 + k % matrix_columns;
            weight[k / matrix_columns][k % matrix_columns] =
                r < a.row_count && c < a.column_count ? w[(size_t)r * a.column_count + c] : 0;
        }
        __syncthreads();
        const u32 columns = min(matrix_columns, a.column_count - column0);
        for (u32 c = 0; c < columns; c++) {
            const u64 x =
                a.in[((((size_t)(column0 + c)) * a.component_count + component) * limbs + limb << t.log_n) +
                     i];
#pragma unroll
            for (u32 r = 0; r < matrix_rows; r++) path.sum_add(sum[r], x, weight[r][c]);
            if ((c + 1) % (P::sum_terms < matrix_columns ? P::sum_terms : matrix_columns) == 0) {
#pragma unroll
                for (u32 r = 0; r < matrix_rows; r++) path.sum_fold(sum[r]);
            }
        }
#pragma unroll
        for (u32 r = 0; r < matrix_rows; r++) path.sum_fold(sum[r]);
    }
#pragma unroll
    for (u32 r = 0; r < matrix_rows; r++)
        if (row0 + r < a.row_count) {
            u64 x = path.sum_finish(sum[r]);
            if (a.bias && component == 0)
                x = gpu_add(x, __ldg(a.bias + (size_t)limb * a.row_count + row0 + r),
                            t.prime[prime_of(t, a.basis, limb)].q);
            a.out[((((size_t)(row0 + r)) * a.component_count + component) * limbs + limb << t.log_n) + i] = x;
        }
}

} // namespace

cudaError_t cuda_diagonal_sum(cudaStream_t stream, const kernel_diagonal_sum_args *a) {
    const CudaTables *tables = cuda_tables(a->tables);
    const dim3 grid(a->out_count, (1u << tables->device.log_n) / 128, basis_limb_count(a->basis));
    LAUNCH_PATH(tables, diagonal_sum, grid, 128, stream, tables->device, *a);
}

cudaError_t cuda_permute_sum(cudaStream_t stream, const kernel_permute_sum_args *a) {
    const CudaTables *tables = cuda_tables(a->tables);
    const dim3 grid((1u << tables->device.log_n) / 128, basis_limb_count(a->out.basis));
    return gpu_launch(permute_sum, grid, 128, stream, tables->device.log_n, tables->device, *a);
}

cudaError_t cuda_matrix_product(cudaStream_t stream, const kernel_matrix_product_args *a) {
    const CudaTables *tables = cuda_tables(a->tables);
    const dim3 grid((1u << tables->device.log_n) / 64, (a->row_count + matrix_rows - 1) / matrix_rows,
                    a->component_count * basis_limb_count(a->basis));
    LAUNCH_PATH(tables, matrix_product, grid, 64, stream, tables->device, *a);
}
