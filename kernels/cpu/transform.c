#include "kernels/cpu/transform.h"

#include "kernels/cpu/ntt_vector.h"

#include <stdatomic.h>
#include <stdlib.h>

/* cpu_isa + 1; 0 = not chosen yet. Threads that choose at the same time choose the same. */
static _Atomic int chosen;

cpu_isa transform_isa(void) {
    const int known = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (known) return (cpu_isa)(known - 1);
    cpu_isa isa = CPU_ISA_SCALAR;
    ckks_error err = {0};
    if (cpu_isa_choose(&isa, getenv("CKKSD_ISA"), &err) != CKKS_OK) (void)cpu_isa_choose(&isa, NULL, &err);
    atomic_store_explicit(&chosen, (int)isa + 1, memory_order_relaxed);
    return isa;
}

void transform_forward(uint64_t *out, const uint64_t *in, const ntt_table *table) {
    switch (transform_isa()) {
    case CPU_ISA_AVX512:
        vector_forward_avx512(out, in, table, NULL);
        return;
    case CPU_ISA_AVX2:
        vector_forward_avx2(out, in, table, NULL);
        return;
    default:
        ntt_forward_scalar(out, in, table);
    }
}

void transform_inverse(uint64_t *out, const uint64_t *in, const ntt_table *table) {
    switch (transform_isa()) {
    case CPU_ISA_AVX512:
        vector_inverse_avx512(out, in, table);
        return;
    case CPU_ISA_AVX2:
        vector_inverse_avx2(out, in, table);
        return;
    default:
        ntt_inverse_scalar(out, in, table);
    }
}
