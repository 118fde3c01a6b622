/*
 * Where packed limbs lie. A packed limb is one stream of N fields, least significant bit first, each as wide
 * as its prime, zero-padded to 16 bytes. The fields end at a byte (8 divides N), so padding is whole bytes.
 */
#ifndef CKKS_CPU_PACKED_LAYOUT_H
#define CKKS_CPU_PACKED_LAYOUT_H

#include "kernels/base/bytes.h"
#include "kernels/cpu/kernels_cpu.h"

#define PACKED_ALIGNMENT 16u
_Static_assert(CKKS_PRIME_BITS_MAX + 7 <= 64, "a field and its bit offset fit one word");

static inline uint64_t field_bytes(uint32_t n, uint32_t bits) {
    return (uint64_t)n * bits / 8;
}
static inline uint64_t limb_bytes(uint32_t n, uint32_t bits) {
    return align_up(field_bytes(n, bits), PACKED_ALIGNMENT);
}

/* where component c, limb i begins */
static inline uint64_t packed_offset(const device_tables *tables, const kernel_poly *poly, uint32_t component,
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
static inline uint64_t read_word(const uint8_t *at, const uint8_t *end) {
    if (end - at >= 8) return bytes_read_u64(at);
    uint64_t word = 0;
    for (uint32_t i = 0; at + i < end; i++) word |= (uint64_t)at[i] << (8 * i);
    return word;
}

#endif
