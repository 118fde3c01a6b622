/*
 * What comes from and goes to the wire, in plain C. Safe on any input: what is out of range is replaced by
 * zero and reported in the verdict.
 */
#include "kernels/cpu/packed_layout.h"
#include "kernels/cpu/team.h"
#include "kernels/scheme/expand.h"

#include <stdatomic.h>

static uint32_t unpack_limb(uint64_t *out, const uint8_t *packed, uint32_t n, const modulus *m) {
    const uint8_t *end = packed + field_bytes(n, m->bits);
    const uint64_t mask = ((uint64_t)1 << m->bits) - 1;
    uint64_t out_of_range = 0, padding = 0;
    for (uint32_t k = 0; k < n; k++) {
        const uint64_t bit = (uint64_t)k * m->bits;
        const uint64_t word = read_word(packed + bit / 8, end) >> (bit % 8) & mask;
        const uint64_t is_good = (uint64_t)(word < m->value);
        out_of_range |= 1 - is_good;
        out[k] = word & -is_good;
    }
    for (const uint8_t *at = end; at < packed + limb_bytes(n, m->bits); at++) padding |= *at;
    return (out_of_range ? VERDICT_RESIDUE : 0u) | (padding ? VERDICT_PADDING : 0u);
}

typedef struct unpack_launch {
    const kernel_unpack_args *args;
    _Atomic uint32_t *verdict;
} unpack_launch;

static void unpack_task(const void *context, uint32_t task) {
    const unpack_launch *launch = context;
    const kernel_unpack_args *args = launch->args;
    const uint32_t n = tables_n(args->tables), limbs = basis_limb_count(args->out.basis);
    const uint32_t c = task / limbs, i = task % limbs;
    const uint32_t verdict = unpack_limb(poly_limb(&args->out, c, i, n),
                                         args->packed + packed_offset(args->tables, &args->out, c, i), n,
                                         &tables_ntt(args->tables, args->out.basis, i)->m);
    if (verdict) atomic_fetch_or(launch->verdict, verdict);
}
void cpu_unpack_scalar(const void *arguments) {
    const kernel_unpack_args *args = arguments;
    _Atomic uint32_t verdict = 0;
    const unpack_launch launch = {args, &verdict};
    team_each(args->out.component_count * basis_limb_count(args->out.basis), true, unpack_task, &launch);
    *args->verdict |= verdict;
}

/* eight bytes at a time: a field is never as wide as a word, so at most one word fills up per field */
static void pack_limb(uint8_t *packed, const uint64_t *words, uint32_t n, const modulus *m) {
    const uint64_t mask = ((uint64_t)1 << m->bits) - 1;
    uint8_t *to = packed, *end = packed + limb_bytes(n, m->bits);
    uint64_t pending = 0;
    uint32_t pending_bits = 0; /* below 64 */
    for (uint32_t k = 0; k < n; k++) {
        const uint64_t field = words[k] & mask;
        pending |= field << pending_bits;
        pending_bits += m->bits;
        if (pending_bits < 64) continue;
        bytes_write_u64(to, pending);
        to += 8;
        pending_bits -= 64;
        pending = field >> (m->bits - pending_bits);
    }
    for (; pending_bits > 0; pending_bits -= 8, pending >>= 8) *to++ = (uint8_t)pending;
    while (to < end) *to++ = 0;
}

static void pack_task(const void *arguments, uint32_t task) {
    const kernel_pack_args *args = arguments;
    const uint32_t n = tables_n(args->tables), limbs = basis_limb_count(args->a.basis);
    const uint32_t c = task / limbs, i = task % limbs;
    pack_limb(args->packed + packed_offset(args->tables, &args->a, c, i), poly_limb(&args->a, c, i, n), n,
              &tables_ntt(args->tables, args->a.basis, i)->m);
}
void cpu_pack_scalar(const void *arguments) {
    const kernel_pack_args *args = arguments;
    team_each(args->a.component_count * basis_limb_count(args->a.basis), true, pack_task, args);
}

static void expand_task(const void *arguments, uint32_t task) {
    const kernel_expand_args *args = arguments;
    const uint32_t n = tables_n(args->tables), limbs = basis_limb_count(args->out.basis);
    const uint32_t q_count = context_params(device_tables_context(args->tables))->q_count;
    const uint32_t c = task / limbs, i = task % limbs;
    seed_expand(poly_limb(&args->out, c, i, n), n, tables_ntt(args->tables, args->out.basis, i)->m.value,
                args->seed, args->purpose, args->polynomial + c, basis_prime(args->out.basis, i, q_count));
}
void cpu_expand_scalar(const void *arguments) {
    const kernel_expand_args *args = arguments;
    team_each(args->out.component_count * basis_limb_count(args->out.basis), true, expand_task, args);
}

void cpu_check_nonzero_scalar(const void *arguments) {
    const kernel_check_nonzero_args *args = arguments;
    const uint32_t n = tables_n(args->tables), limbs = basis_limb_count(args->a.basis);
    uint64_t any = 0;
    for (uint32_t i = 0; i < limbs; i++) {
        const uint64_t *words = poly_limb(&args->a, 0, i, n);
        for (uint32_t k = 0; k < n; k++) any |= words[k];
    }
    if (any == 0) *args->verdict |= VERDICT_ZERO;
}
