/*
 * Which function enqueues which kernel here. Kernels that are missing are other kernels' sequences, or have
 * nothing to do on a card.
 */
#include "kernels/cuda/cuda_internal.cuh"

#define POINTWISE(K) [](cudaStream_t s, const void *a) { return cuda_pointwise(s, K, a); }
#define SCALARS(K)   [](cudaStream_t s, const void *a) { return cuda_scalars(s, K, a); }
#define TYPED(F, T)  [](cudaStream_t s, const void *a) { return F(s, static_cast<const T *>(a)); }

/* in the order of KERNEL_TABLE */
const cuda_launcher cuda_launchers[KERNEL_COUNT] = {
    POINTWISE(KERNEL_COPY),
    POINTWISE(KERNEL_NEGATE),
    POINTWISE(KERNEL_ADD),
    POINTWISE(KERNEL_SUBTRACT),
    POINTWISE(KERNEL_ADD_PLAIN),
    POINTWISE(KERNEL_MULTIPLY_PLAIN),
    SCALARS(KERNEL_ADD_SCALARS),
    SCALARS(KERNEL_MULTIPLY_SCALARS),
    POINTWISE(KERNEL_MULTIPLY),
    POINTWISE(KERNEL_SQUARE),
    [](cudaStream_t s, const void *a) {
        return cuda_ntt(s, static_cast<const kernel_unary_args *>(a), false);
    },
    [](cudaStream_t s, const void *a) {
        return cuda_ntt(s, static_cast<const kernel_unary_args *>(a), true);
    },
    TYPED(cuda_automorphism, kernel_automorphism_args),
    TYPED(cuda_mod_up, kernel_mod_up_args),
    TYPED(cuda_key_product, kernel_key_product_args),
    TYPED(cuda_switch_product, kernel_switch_product_args),
    TYPED(cuda_mod_down, kernel_mod_down_args),
    [](cudaStream_t s, const void *a) {
        return cuda_key_switch(s, static_cast<const kernel_key_switch_args *>(a), false);
    },
    nullptr, /* HOISTED_SWITCH: the three kernels that it stands for are as fast here */
    TYPED(cuda_rescale, kernel_rescale_args),
    nullptr, /* MULTIPLY_RESCALE: two kernels */
    TYPED(cuda_diagonal_sum, kernel_diagonal_sum_args),
    TYPED(cuda_permute_sum, kernel_permute_sum_args),
    TYPED(cuda_matrix_product, kernel_matrix_product_args),
    TYPED(cuda_unpack, kernel_unpack_args),
    TYPED(cuda_expand, kernel_expand_args),
    TYPED(cuda_check_nonzero, kernel_check_nonzero_args),
    TYPED(cuda_narrow_key, kernel_narrow_key_args),
    TYPED(cuda_pack, kernel_pack_args),
    TYPED(cuda_sample, kernel_sample_args),
    TYPED(cuda_counter_advance, kernel_counter_args),
};
static_assert(sizeof cuda_launchers / sizeof *cuda_launchers == KERNEL_COUNT && KERNEL_COUNT == 31,
              "one launcher a kernel");
