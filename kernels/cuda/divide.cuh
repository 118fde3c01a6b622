/* Division by D (MOD_DOWN, RESCALE, the end of KEY_SWITCH): what the launches share. */
#ifndef CKKS_CUDA_DIVIDE_CUH
#define CKKS_CUDA_DIVIDE_CUH

#include "kernels/cuda/cuda_internal.cuh"

/* Values are batch entries times components. */
struct DivideArgs {
    kernel_poly out, a, add; /* add.words NULL = absent */
    u32 add_galois;
    u32 batch_count, out_batch_stride, a_batch_stride, add_batch_stride;
    u32 q_limbs; /* of the numerator: its level + 1 */
    u32 out_limbs;
    const GpuConversion *conversion; /* device */
    u32 sources;
    u64 *y, *middle; /* scratch: [value][source][N], [value][out limb][N] */
};

DivideArgs gpu_divide_mod_down(const CudaTables *tables, const kernel_mod_down_args *a);
/* gpu_divide: is_begun: y holds the sources after the row pass of their inverse transform already. */
cudaError_t gpu_divide(cudaStream_t stream, const CudaTables *tables, const DivideArgs &d, bool is_begun);

#endif
