/*
 * The transforms as kernels; template, included once per instruction set. One limb of one component is one
 * iteration.
 */
void ISA(cpu_ntt_forward)(const void *arguments) {
    const kernel_unary_args *args = arguments;
    const uint32_t n = tables_n(args->tables), limbs = basis_limb_count(args->out.basis);
    const uint32_t components = args->out.component_count;
#pragma omp parallel for collapse(2) schedule(dynamic) if ((size_t)components * limbs * n >= TEAM_WORDS_HEAVY)
    for (uint32_t c = 0; c < components; c++)
        for (uint32_t i = 0; i < limbs; i++) ISA(vector_forward)
    (poly_limb(&args->out, c, i, n), poly_limb(&args->a, c, basis_find(args->a.basis, args->out.basis, i), n),
     tables_ntt(args->tables, args->out.basis, i), NULL);
}

void ISA(cpu_ntt_inverse)(const void *arguments) {
    const kernel_unary_args *args = arguments;
    const uint32_t n = tables_n(args->tables), limbs = basis_limb_count(args->out.basis);
    const uint32_t components = args->out.component_count;
#pragma omp parallel for collapse(2) schedule(dynamic) if ((size_t)components * limbs * n >= TEAM_WORDS_HEAVY)
    for (uint32_t c = 0; c < components; c++)
        for (uint32_t i = 0; i < limbs; i++) ISA(vector_inverse)
    (poly_limb(&args->out, c, i, n), poly_limb(&args->a, c, basis_find(args->a.basis, args->out.basis, i), n),
     tables_ntt(args->tables, args->out.basis, i));
}
