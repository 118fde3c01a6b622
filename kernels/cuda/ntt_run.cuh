/* Passes of a transform by ring degree and data path: the row passes of the FP64 path are those of rows.cuh,
 * all others ntt_pass. */
#ifndef CKKS_CUDA_NTT_RUN_CUH
#define CKKS_CUDA_NTT_RUN_CUH

#include "kernels/cuda/rows.cuh"

#include <type_traits>

template <class P, class IO, int R_LOG, bool INVERSE, bool COLUMNS, int REDUCE>
static cudaError_t ntt_enqueue(cudaStream_t stream, const GpuTables &t, const IO &io, u32 jobs) {
    if constexpr (std::is_same<P, PathF64>::value && !COLUMNS)
        return gpu_launch(rows_pass<IO, R_LOG, INVERSE>,
                          dim3((1u << t.log_n) / (rows_warps * rows_elements), jobs), rows_warps * 32, stream,
                          t.log_n, t, io);
    else {
        typedef PassShape<R_LOG> S;
        const dim3 grid((1u << t.log_n) >> S::TILE_LOG, jobs);
        return gpu_launch(ntt_pass<P, IO, R_LOG, INVERSE, COLUMNS, REDUCE>, grid, S::THREADS, stream, t.log_n,
                          t, io, t.log_n - R_LOG);
    }
}

template <class P, bool INVERSE, bool COLUMNS, int REDUCE, class IO>
static cudaError_t ntt_run_path(cudaStream_t stream, const GpuTables &t, const IO &io, u32 jobs) {
    switch (COLUMNS ? ntt_columns_log(t.log_n) : ntt_rows_log(t.log_n)) {
    case 5:
        return ntt_enqueue<P, IO, 5, INVERSE, COLUMNS, REDUCE>(stream, t, io, jobs);
    case 6:
        return ntt_enqueue<P, IO, 6, INVERSE, COLUMNS, REDUCE>(stream, t, io, jobs);
    case 7:
        return ntt_enqueue<P, IO, 7, INVERSE, COLUMNS, REDUCE>(stream, t, io, jobs);
    case 8:
        return ntt_enqueue<P, IO, 8, INVERSE, COLUMNS, REDUCE>(stream, t, io, jobs);
    case 9:
        /* only columns: N = 2^17 */
        if constexpr (COLUMNS) return ntt_enqueue<P, IO, 9, INVERSE, COLUMNS, REDUCE>(stream, t, io, jobs);
        return cudaErrorInvalidValue;
    default:
        return cudaErrorInvalidValue;
    }
}

/* The same pass on the integer path alone, where the FP64 path has a kernel of its own. */
template <bool INVERSE, bool COLUMNS, int REDUCE, class IO>
static cudaError_t ntt_run_i64(cudaStream_t stream, const CudaTables *tables, const IO &io, u32 jobs) {
    if (tables->is_f64) return cudaErrorNotSupported;
    return jobs == 0 ? cudaSuccess
                     : ntt_run_path<PathI64, INVERSE, COLUMNS, REDUCE>(stream, tables->device, io, jobs);
}

/* One pass of a transform over `jobs` polynomials, on the data path of this card. */
template <bool INVERSE, bool COLUMNS, int REDUCE, class IO>
static cudaError_t ntt_run(cudaStream_t stream, const CudaTables *tables, const IO &io, u32 jobs) {
    if (jobs == 0) return cudaSuccess;
    return tables->is_f64 ? ntt_run_path<PathF64, INVERSE, COLUMNS, REDUCE>(stream, tables->device, io, jobs)
                          : ntt_run_path<PathI64, INVERSE, COLUMNS, REDUCE>(stream, tables->device, io, jobs);
}

#endif
