#include "kernels/scheme/limb_loops_internal.h"

#include "kernels/cpu/transform.h"

static cpu_isa forced = CPU_ISA_COUNT;

const limb_loops *limb_loops_of(cpu_isa isa) {
    static const limb_loops *const table[CPU_ISA_COUNT] = {&limb_loops_scalar, &limb_loops_avx2,
                                                           &limb_loops_avx512};
    return table[isa];
}

const limb_loops *limb_loops_best(void) {
    return limb_loops_of(forced < CPU_ISA_COUNT ? forced : transform_isa());
}

void limb_loops_force(cpu_isa isa) {
    forced = isa;
}
