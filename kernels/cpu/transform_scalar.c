/*
 * Transforms and automorphisms of whole polynomials, in plain C: one limb of one component is one iteration.
 */
#include "kernels/cpu/permute_block.h"

typedef void (*limb_transform)(uint64_t *out, const uint64_t *in, const ntt_table *table);

static void transform(const kernel_unary_args *args, limb_transform run) {
    const uint32_t n = tables_n(args->tables), limbs = basis_limb_count(args->out.basis);
    const uint32_t components = args->out.component_count;
#pragma omp parallel for collapse(2) schedule(static)
    for (uint32_t c = 0; c < components; c++)
        for (uint32_t i = 0; i < limbs; i++)
            run(poly_limb(&args->out, c, i, n),
                poly_limb(&args->a, c, basis_find(args->a.basis, args->out.basis, i), n),
                tables_ntt(args->tables, args->out.basis, i));
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

void cpu_automorphism_scalar(const void *arguments) {
    const kernel_automorphism_args *args = arguments;
    const uint32_t n = tables_n(args->tables), limbs = basis_limb_count(args->out.basis);
    const uint32_t log_n = context_params(device_tables_context(args->tables))->log_n;
    const uint32_t components = args->out.component_count;
#pragma omp parallel for collapse(2) schedule(static)
    for (uint32_t c = 0; c < components; c++)
        for (uint32_t i = 0; i < limbs; i++)
            permute_limb(poly_limb(&args->out, c, i, n),
                         poly_limb(&args->a, c, basis_find(args->a.basis, args->out.basis, i), n), log_n,
                         args->galois_element);
}
