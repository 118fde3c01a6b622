/*
 * The CPU's kernel table: one row per kernel_id, one column per instruction set. A launch runs the best
 * filled column at or below the instruction set that was chosen when the device was opened (the machine's
 * best, or the environment variable CKKSD_ISA = scalar | avx2 | avx512). All columns of a row write the same
 * words; the scalar one is the definition.
 *
 * A kernel receives its argument struct (kernels.h), already checked by kernel_describe. It runs on a
 * stream's thread and hands tasks to that stream's team (team.h), whose width it does not choose. It does not
 * allocate, wait for anything but its own tasks, or fail.
 *
 * To add a version: write `void cpu_NAME_ISA(const void *arguments)` in a file whose name ends in _ISA.c (the
 * build adds the instruction set's flags), declare it here and put it into its row in kernels_cpu.c.
 */
#ifndef CKKS_CPU_KERNELS_CPU_H
#define CKKS_CPU_KERNELS_CPU_H

#include "kernels/kernels.h"
#include "kernels/scheme/internal.h"

typedef void (*cpu_kernel)(const void *arguments);

typedef enum cpu_isa { CPU_ISA_SCALAR, CPU_ISA_AVX2, CPU_ISA_AVX512, CPU_ISA_COUNT } cpu_isa;

/* cpu_isa_choose: what this machine can run, bounded by `forced` (NULL or "" = no bound).
 * CKKS_INVALID_ARGUMENT (field CKKSD_ISA) for an unknown name, CKKS_UNSUPPORTED if the machine lacks it. */
ckks_status cpu_isa_choose(cpu_isa *out, const char *forced, ckks_error *err);
const char *cpu_isa_name(cpu_isa isa);
/* cpu_kernel_find: the row's best column at or below `isa`; NULL when the row is empty. `used` (may be NULL)
 * is the column taken. */
cpu_kernel cpu_kernel_find(kernel_id kernel, cpu_isa isa, cpu_isa *used);

/* ---- scalar.  keyswitch_scalar.c, switch_scalar.c, linear_scalar.c: MOD_UP ... MATRIX_PRODUCT ---- */

void cpu_copy_scalar(const void *arguments);
void cpu_negate_scalar(const void *arguments);
void cpu_add_scalar(const void *arguments);
void cpu_subtract_scalar(const void *arguments);
void cpu_add_plain_scalar(const void *arguments);
void cpu_multiply_plain_scalar(const void *arguments);
void cpu_add_scalars_scalar(const void *arguments);
void cpu_multiply_scalars_scalar(const void *arguments);
void cpu_multiply_scalar(const void *arguments);
void cpu_square_scalar(const void *arguments);
void cpu_ntt_forward_scalar(const void *arguments);
void cpu_ntt_inverse_scalar(const void *arguments);
void cpu_automorphism_scalar(const void *arguments);
void cpu_mod_up_scalar(const void *arguments);
void cpu_key_product_scalar(const void *arguments);
void cpu_switch_product_scalar(const void *arguments);
void cpu_key_switch_scalar(const void *arguments);
void cpu_hoisted_switch_scalar(const void *arguments);
void cpu_mod_down_scalar(const void *arguments);
void cpu_rescale_scalar(const void *arguments);
void cpu_multiply_rescale_scalar(const void *arguments);
void cpu_diagonal_sum_scalar(const void *arguments);
void cpu_permute_sum_scalar(const void *arguments);
void cpu_matrix_product_scalar(const void *arguments);
void cpu_unpack_scalar(const void *arguments);
void cpu_expand_scalar(const void *arguments);
void cpu_check_nonzero_scalar(const void *arguments);
void cpu_narrow_key_scalar(const void *arguments);
void cpu_pack_scalar(const void *arguments);
void cpu_sample_scalar(const void *arguments);
void cpu_counter_advance_scalar(const void *arguments);

/* ---- AVX2 and AVX-512: one source each (*_lanes.h), included by *_avx2.c and *_avx512.c ---- */

void cpu_unpack_avx2(const void *arguments);
void cpu_expand_avx2(const void *arguments);
void cpu_check_nonzero_avx2(const void *arguments);
void cpu_negate_avx2(const void *arguments);
void cpu_add_avx2(const void *arguments);
void cpu_subtract_avx2(const void *arguments);
void cpu_add_plain_avx2(const void *arguments);
void cpu_multiply_plain_avx2(const void *arguments);
void cpu_add_scalars_avx2(const void *arguments);
void cpu_multiply_scalars_avx2(const void *arguments);
void cpu_multiply_avx2(const void *arguments);
void cpu_square_avx2(const void *arguments);
void cpu_ntt_forward_avx2(const void *arguments);
void cpu_ntt_inverse_avx2(const void *arguments);
void cpu_automorphism_avx2(const void *arguments);
void cpu_mod_up_avx2(const void *arguments);
void cpu_key_product_avx2(const void *arguments);
void cpu_switch_product_avx2(const void *arguments);
void cpu_key_switch_avx2(const void *arguments);
void cpu_hoisted_switch_avx2(const void *arguments);
void cpu_mod_down_avx2(const void *arguments);
void cpu_rescale_avx2(const void *arguments);
void cpu_multiply_rescale_avx2(const void *arguments);
void cpu_diagonal_sum_avx2(const void *arguments);
void cpu_permute_sum_avx2(const void *arguments);
void cpu_matrix_product_avx2(const void *arguments);
void cpu_negate_avx512(const void *arguments);
void cpu_add_avx512(const void *arguments);
void cpu_subtract_avx512(const void *arguments);
void cpu_add_plain_avx512(const void *arguments);
void cpu_multiply_plain_avx512(const void *arguments);
void cpu_add_scalars_avx512(const void *arguments);
void cpu_multiply_scalars_avx512(const void *arguments);
void cpu_multiply_avx512(const void *arguments);
void cpu_square_avx512(const void *arguments);
void cpu_ntt_forward_avx512(const void *arguments);
void cpu_ntt_inverse_avx512(const void *arguments);
void cpu_automorphism_avx512(const void *arguments);
void cpu_mod_up_avx512(const void *arguments);
void cpu_key_product_avx512(const void *arguments);
void cpu_narrow_key_avx512(const void *arguments);
void cpu_switch_product_avx512(const void *arguments);
void cpu_key_switch_avx512(const void *arguments);
void cpu_hoisted_switch_avx512(const void *arguments);
void cpu_mod_down_avx512(const void *arguments);
void cpu_rescale_avx512(const void *arguments);
void cpu_multiply_rescale_avx512(const void *arguments);
void cpu_diagonal_sum_avx512(const void *arguments);
void cpu_permute_sum_avx512(const void *arguments);
void cpu_matrix_product_avx512(const void *arguments);

/* ---- what kernels share ---- */

/* Handing a launch to a team that is awake costs about a microsecond: launches of fewer words, which take a
 * few, stay on their thread. Light: additions and products position by position; heavy: transforms and sums
 * of many products. */
#define TEAM_WORDS_LIGHT ((size_t)1 << 13)
#define TEAM_WORDS_HEAVY ((size_t)1 << 12)

static inline const ntt_table *tables_ntt(const device_tables *tables, kernel_basis basis, uint32_t limb) {
    const ckks_context *context = device_tables_context(tables);
    return context_ntt(context, basis_prime(basis, limb, context_params(context)->q_count));
}
static inline uint32_t tables_n(const device_tables *tables) {
    return params_n(context_params(device_tables_context(tables)));
}

/* words of component c, limb i of a polynomial */
static inline uint64_t *poly_limb(const kernel_poly *poly, uint32_t component, uint32_t limb, uint32_t n) {
    return poly->words + ((uint64_t)component * poly->component_stride + limb) * n;
}

/* basis_find: the limb of `wide` that holds the prime of limb `limb` of `narrow`, whose primes are a subset.
 */
static inline uint32_t basis_find(kernel_basis wide, kernel_basis narrow, uint32_t limb) {
    return limb < narrow.q_count ? narrow.q_first + limb - wide.q_first
                                 : wide.q_count + (limb - narrow.q_count);
}

/* reverse_bits: bit_reverse without its loop. bits 1..32 */
static inline uint32_t reverse_bits(uint32_t value, uint32_t bits) {
    value = (value & 0x55555555u) << 1 | ((value >> 1) & 0x55555555u);
    value = (value & 0x33333333u) << 2 | ((value >> 2) & 0x33333333u);
    value = (value & 0x0f0f0f0fu) << 4 | ((value >> 4) & 0x0f0f0f0fu);
    return __builtin_bswap32(value) >> (32 - bits);
}

#endif
