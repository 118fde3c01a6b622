/* Forward rows of all digits, times the key (SWITCH_PRODUCT, KEY_SWITCH), FP64 path: see row_product.cu. */
#ifndef CKKS_CUDA_ROW_PRODUCT_CUH
#define CKKS_CUDA_ROW_PRODUCT_CUH

#include "kernels/cuda/cuda_internal.cuh"

struct RowProductArgs {
    kernel_switch_product_args a;
    const u64 *digits; /* [batch][digit][limb][N], raw values after the column pass; own limbs are in a */
    u32 level, limbs, digit_count;
    /* KEY_SWITCH: limbs that are divided by go on into the inverse rows, y: [value][source][N]; else NULL */
    u64 *y;
    const GpuConversion *down; /* device */
    u32 sources;
    kernel_poly add;
    u32 add_batch_stride;
    u32 with_rescale;
};

cudaError_t gpu_row_product(cudaStream_t stream, const GpuTables &t, const RowProductArgs &r);

#endif
