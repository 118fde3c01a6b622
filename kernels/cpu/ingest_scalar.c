/*
 * What comes from and goes to the wire, in plain C. A packed limb is one stream of N fields, least
 * significant bit first, each as wide as its prime, zero-padded to 16 bytes. The fields end at a byte (8
 * divides N), so padding is whole bytes. Safe on any input: what is out of range is replaced by zero and
 * reported in the verdict.
 */
#include "kernels/base/bytes.h"
#include "kernels/cpu/kernels_cpu.h"
#include "kernels/scheme/expand.h"

#define PACKED_ALIGNMENT 16u
_Static_assert(CKKS_PRIME_BITS_MAX + 7 <= 64, "a field and its bit offset fit one word");

static uint64_t field_bytes(uint32_t n, uint32_t bits) {
    return (uint64_t)n * bits / 8;
}
static uint64_t limb_bytes(uint32_t n, uint32_t bits) {
    return align_up(field_bytes(n, bits), PACKED_ALIGNMENT);
}

/* where component c, limb i begins */
static uint64_t packed_offset(const device_tables *tables, const kernel_poly *poly, uint32_t component,
                              uint32_t limb) {
    const uint32_t n = tables_n(tables), limbs = basis_limb_count(poly->basis);
    uint64_t all = 0, before = 0;
    for (uint32_t i = 0; i < limbs; i++) {
        if (i == limb) before = all;
        all += limb_bytes(n, tables_ntt(tables, poly->basis, i)->m.bits);
    }
    return component * all + before;
}

/* the low 8 bytes from `at` on, zero beyond `end` */
static uint64_t read_word(const uint8_t *at, const uint8_t *end) {
    if (end - at >= 8) return bytes_read_u64(at);
    uint64_t word = 0;
    for (uint32_t i = 0; at + i < end; i++) word |= (uint64_t)at[i] << (8 * i);
    return word;
}

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

void cpu_unpack_scalar(const void *arguments) {
    const kernel_unpack_args *args = arguments;
    const uint32_t n = tables_n(args->tables), limbs = basis_limb_count(args->out.basis);
    const uint32_t components = args->out.component_count;
    uint32_t verdict = 0;
#pragma omp parallel for collapse(2) schedule(static) reduction(| : verdict)
    for (uint32_t c = 0; c < components; c++)
        for (uint32_t i = 0; i < limbs; i++)
            verdict |= unpack_limb(poly_limb(&args->out, c, i, n),
                                   args->packed + packed_offset(args->tables, &args->out, c, i), n,
                                   &tables_ntt(args->tables, args->out.basis, i)->m);
    *args->verdict |= verdict;
}

static void pack_limb(uint8_t *packed, const uint64_t *words, uint32_t n, const modulus *m) {
    const uint64_t mask = ((uint64_t)1 << m->bits) - 1;
    uint8_t *to = packed, *end = packed + limb_bytes(n, m->bits);
    uint64_t pending = 0;
    uint32_t pending_bits = 0; /* below 8 between words */
    for (uint32_t k = 0; k < n; k++) {
        pending |= (words[k] & mask) << pending_bits;
        pending_bits += m->bits;
        for (; pending_bits >= 8; pending_bits -= 8, pending >>= 8) *to++ = (uint8_t)pending;
    }
    while (to < end) *to++ = 0;
}

void cpu_pack_scalar(const void *arguments) {
    const kernel_pack_args *args = arguments;
    const uint32_t n = tables_n(args->tables), limbs = basis_limb_count(args->a.basis);
    const uint32_t components = args->a.component_count;
#pragma omp parallel for collapse(2) schedule(static)
    for (uint32_t c = 0; c < components; c++)
        for (uint32_t i = 0; i < limbs; i++)
            pack_limb(args->packed + packed_offset(args->tables, &args->a, c, i),
                      poly_limb(&args->a, c, i, n), n, &tables_ntt(args->tables, args->a.basis, i)->m);
}

void cpu_expand_scalar(const void *arguments) {
    const kernel_expand_args *args = arguments;
    const uint32_t n = tables_n(args->tables), limbs = basis_limb_count(args->out.basis);
    const uint32_t q_count = context_params(device_tables_context(args->tables))->q_count;
#pragma omp parallel for schedule(static)
    for (uint32_t i = 0; i < limbs; i++)
        seed_expand(poly_limb(&args->out, 0, i, n), n, tables_ntt(args->tables, args->out.basis, i)->m.value,
                    args->seed, args->purpose, args->polynomial, basis_prime(args->out.basis, i, q_count));
}

void cpu_check_nonzero_scalar(const void *arguments) {
    const kernel_check_nonzero_args *args = arguments;
    const uint32_t n = tables_n(args->tables), limbs = basis_limb_count(args->a.basis);
    uint64_t any = 0;
#pragma omp parallel for schedule(static) reduction(| : any)
    for (uint32_t i = 0; i < limbs; i++) {
        const uint64_t *words = poly_limb(&args->a, 0, i, n);
        for (uint32_t k = 0; k < n; k++) any |= words[k];
    }
    if (any == 0) *args->verdict |= VERDICT_ZERO;
}
