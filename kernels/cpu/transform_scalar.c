/*
 * Transforms and automorphisms of whole polynomials, in plain C: one limb of one component is one task.
 */
#include "kernels/cpu/permute_block.h"
#include "kernels/cpu/team.h"

typedef void (*limb_transform)(uint64_t *out, const uint64_t *in, const ntt_table *table);

typedef struct transform_launch {
    const kernel_unary_args *args;
    limb_transform run;
} transform_launch;

static void transform_task(const void *context, uint32_t task) {
    const transform_launch *launch = context;
    const kernel_unary_args *args = launch->args;
    const uint32_t n = tables_n(args->tables), limbs = basis_limb_count(args->out.basis);
    const uint32_t c = task / limbs, i = task % limbs;
    launch->run(poly_limb(&args->out, c, i, n),
                poly_limb(&args->a, c, basis_find(args->a.basis, args->out.basis, i), n),
                tables_ntt(args->tables, args->out.basis, i));
}
static void transform(const kernel_unary_args *args, limb_transform run) {
    const transform_launch launch = {args, run};
    team_each(args->out.component_count * basis_limb_count(args->out.basis), true, transform_task, &launch);
}

void cpu_ntt_forward_scalar(const void *arguments) {
    transform(arguments, ntt_forward_scalar);
}
void cpu_ntt_inverse_scalar(const void *arguments) {
    transform(arguments, ntt_inverse_scalar);
}

static void permute_limb(uint64_t *out, const uint64_t *in, uint32_t log_n, uint32_t galois_element) {
    uint8_t index[PERMUTE_BLOCK];
    for (uint32_t block = 0; block < (1u << log_n) / PERMUTE_BLOCK; block++) {
        const uint64_t *from = in + permute_block_fill(index, log_n, galois_element, block);
        uint64_t *to = out + (size_t)block * PERMUTE_BLOCK;
        for (uint32_t j = 0; j < PERMUTE_BLOCK; j++) to[j] = from[index[j]];
    }
}

static void automorphism_task(const void *arguments, uint32_t task) {
    const kernel_automorphism_args *args = arguments;
    const uint32_t n = tables_n(args->tables), limbs = basis_limb_count(args->out.basis);
    const uint32_t c = task / limbs, i = task % limbs;
    permute_limb(poly_limb(&args->out, c, i, n),
                 poly_limb(&args->a, c, basis_find(args->a.basis, args->out.basis, i), n),
                 context_params(device_tables_context(args->tables))->log_n, args->galois_element);
}
void cpu_automorphism_scalar(const void *arguments) {
    const kernel_automorphism_args *args = arguments;
    team_each(args->out.component_count * basis_limb_count(args->out.basis), true, automorphism_task, args);
}
