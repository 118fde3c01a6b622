#include "kernels/cpu/kernels_cpu.h"

#include <string.h>

/* columns: scalar, AVX2, AVX-512; an empty row is refused at launch */
static const cpu_kernel table[KERNEL_COUNT][CPU_ISA_COUNT] = {
    [KERNEL_COPY] = {cpu_copy_scalar},
    [KERNEL_NEGATE] = {cpu_negate_scalar, cpu_negate_avx2, cpu_negate_avx512},
    [KERNEL_ADD] = {cpu_add_scalar, cpu_add_avx2, cpu_add_avx512},
    [KERNEL_SUBTRACT] = {cpu_subtract_scalar, cpu_subtract_avx2, cpu_subtract_avx512},
    [KERNEL_ADD_PLAIN] = {cpu_add_plain_scalar, cpu_add_plain_avx2, cpu_add_plain_avx512},
    [KERNEL_MULTIPLY_PLAIN] = {cpu_multiply_plain_scalar, cpu_multiply_plain_avx2, cpu_multiply_plain_avx512},
    [KERNEL_ADD_SCALARS] = {cpu_add_scalars_scalar, cpu_add_scalars_avx2, cpu_add_scalars_avx512},
    [KERNEL_MULTIPLY_SCALARS] = {cpu_multiply_scalars_scalar, cpu_multiply_scalars_avx2,
                                 cpu_multiply_scalars_avx512},
    [KERNEL_MULTIPLY] = {cpu_multiply_scalar, cpu_multiply_avx2, cpu_multiply_avx512},
    [KERNEL_SQUARE] = {cpu_square_scalar, cpu_square_avx2, cpu_square_avx512},
    [KERNEL_NTT_FORWARD] = {cpu_ntt_forward_scalar, cpu_ntt_forward_avx2, cpu_ntt_forward_avx512},
    [KERNEL_NTT_INVERSE] = {cpu_ntt_inverse_scalar, cpu_ntt_inverse_avx2, cpu_ntt_inverse_avx512},
    [KERNEL_AUTOMORPHISM] = {cpu_automorphism_scalar, cpu_automorphism_avx2, cpu_automorphism_avx512},
    [KERNEL_MOD_UP] = {cpu_mod_up_scalar, cpu_mod_up_avx2, cpu_mod_up_avx512},
    [KERNEL_KEY_PRODUCT] = {cpu_key_product_scalar, cpu_key_product_avx2, cpu_key_product_avx512},
    [KERNEL_SWITCH_PRODUCT] = {cpu_switch_product_scalar, cpu_switch_product_avx2, cpu_switch_product_avx512},
    [KERNEL_KEY_SWITCH] = {cpu_key_switch_scalar, cpu_key_switch_avx2, cpu_key_switch_avx512},
    [KERNEL_HOISTED_SWITCH] = {cpu_hoisted_switch_scalar, cpu_hoisted_switch_avx2, cpu_hoisted_switch_avx512},
    [KERNEL_MOD_DOWN] = {cpu_mod_down_scalar, cpu_mod_down_avx2, cpu_mod_down_avx512},
    [KERNEL_RESCALE] = {cpu_rescale_scalar, cpu_rescale_avx2, cpu_rescale_avx512},
    [KERNEL_MULTIPLY_RESCALE] = {cpu_multiply_rescale_scalar, cpu_multiply_rescale_avx2,
                                 cpu_multiply_rescale_avx512},
    [KERNEL_DIAGONAL_SUM] = {cpu_diagonal_sum_scalar, cpu_diagonal_sum_avx2, cpu_diagonal_sum_avx512},
    [KERNEL_PERMUTE_SUM] = {cpu_permute_sum_scalar, cpu_permute_sum_avx2, cpu_permute_sum_avx512},
    [KERNEL_MATRIX_PRODUCT] = {cpu_matrix_product_scalar, cpu_matrix_product_avx2, cpu_matrix_product_avx512},
    [KERNEL_UNPACK] = {cpu_unpack_scalar, cpu_unpack_avx2},
    [KERNEL_EXPAND] = {cpu_expand_scalar, cpu_expand_avx2},
    [KERNEL_CHECK_NONZERO] = {cpu_check_nonzero_scalar, cpu_check_nonzero_avx2},
    [KERNEL_NARROW_KEY] = {cpu_narrow_key_scalar, NULL, cpu_narrow_key_avx512},
    [KERNEL_PACK] = {cpu_pack_scalar},
    [KERNEL_SAMPLE] = {cpu_sample_scalar},
    [KERNEL_COUNTER_ADVANCE] = {cpu_counter_advance_scalar},
};

static const char *const isa_name[CPU_ISA_COUNT] = {"scalar", "AVX2", "AVX-512"};
static const char *const isa_option[CPU_ISA_COUNT] = {"scalar", "avx2", "avx512"};

const char *cpu_isa_name(cpu_isa isa) {
    return isa_name[isa];
}

static cpu_isa machine_isa(void) {
    __builtin_cpu_init();
    const bool has_avx2 =
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                            __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512ifma") &&
                            __builtin_cpu_supports("avx512vbmi");
    return has_avx512 ? CPU_ISA_AVX512 : has_avx2 ? CPU_ISA_AVX2 : CPU_ISA_SCALAR;
}

ckks_status cpu_isa_choose(cpu_isa *out, const char *forced, ckks_error *err) {
    const cpu_isa best = machine_isa();
    *out = best;
    if (!forced || !*forced) return CKKS_OK;
    for (int isa = CPU_ISA_SCALAR; isa < CPU_ISA_COUNT; isa++) {
        if (strcmp(forced, isa_option[isa]) != 0) continue;
        if (isa > (int)best)
            return ckks_error_set(err, CKKS_UNSUPPORTED, "CKKSD_ISA", "this machine has no %s",
                                  isa_name[isa]);
        *out = (cpu_isa)isa;
        return CKKS_OK;
    }
    return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "CKKSD_ISA", "'%.32s' is not scalar, avx2 or avx512",
                          forced);
}

cpu_kernel cpu_kernel_find(kernel_id kernel, cpu_isa isa, cpu_isa *used) {
    for (int column = (int)isa; column >= 0; column--) {
        if (!table[kernel][column]) continue;
        if (used) *used = (cpu_isa)column;
        return table[kernel][column];
    }
    return NULL;
}
