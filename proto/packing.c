#include "proto/packing.h"

#include "kernels/base/bytes.h"

#include <endian.h>
#include <string.h>

#define PACKING_ALIGNMENT 16u

typedef unsigned __int128 uint128;

static uint32_t bit_width(uint64_t prime) {
    return prime == 0 ? 0 : 64u - (uint32_t)__builtin_clzll(prime);
}

uint64_t packing_limb_bytes(uint32_t n, uint64_t prime) {
    return align_up(((uint64_t)n * bit_width(prime) + 7) / 8, PACKING_ALIGNMENT);
}

/* One polynomial of q[0..level] and, if with_p, all p. At most 80 limbs of 2^17 fields of 50 bits: no
 * overflow. */
static uint64_t component_bytes(const ckks_params *params, uint32_t level, bool with_p) {
    uint64_t total = 0;
    for (uint32_t i = 0; i <= level; i++) total += packing_limb_bytes(params_n(params), params->prime[i]);
    for (uint32_t i = 0; with_p && i < params->p_count; i++)
        total += packing_limb_bytes(params_n(params), params->prime[params->q_count + i]);
    return total;
}

uint64_t packing_poly_bytes(const ckks_params *params, uint32_t level, bool with_p,
                            uint32_t component_count) {
    CKKS_ASSERT(level < params->q_count);
    return component_bytes(params, level, with_p) * component_count;
}

uint64_t packing_key_bytes(const ckks_params *params, const key_requirement *key) {
    CKKS_ASSERT(key->level < params->q_count);
    if (key->kind == KEY_PUBLIC) return component_bytes(params, key->level, false);
    return component_bytes(params, key->level, true) * params_digit_count(params, key->level);
}

bool packing_key_set_bytes(uint64_t *out, const ckks_params *params, const key_requirement *keys,
                           uint32_t count) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < count; i++)
        if (!size_add(&total, total, packing_key_bytes(params, &keys[i]))) return false;
    *out = total;
    return true;
}

/*
 * Eight fields of b bits are b whole bytes. In such a group each field lies in one unaligned 64-bit word, as
 * b <= 50 and a field begins at most 7 bits into a byte: no field needs a branch, and groups do not wait for
 * one another. What is over at the end goes field by field.
 */
#define GROUP 8u

/* The widths that moduli mostly have get code of their own, where every place and every shift is a constant:
 * CALL(width) for `bits`. */
/* clang-format off */
#define FIVE_WIDTHS(first, CALL)                                                                             \
    case first: return CALL(first##u);                                                                       \
    case first + 1: return CALL(first##u + 1);                                                               \
    case first + 2: return CALL(first##u + 2);                                                               \
    case first + 3: return CALL(first##u + 3);                                                               \
    case first + 4: return CALL(first##u + 4);
#define FOR_WIDTH(bits, CALL)                                                                                \
    switch (bits) {                                                                                          \
        FIVE_WIDTHS(26, CALL) FIVE_WIDTHS(31, CALL) FIVE_WIDTHS(36, CALL) FIVE_WIDTHS(41, CALL)              \
        FIVE_WIDTHS(46, CALL)                                                                                \
    default:                                                                                                 \
        return CALL(bits);                                                                                   \
    }
/* clang-format on */

#define ALWAYS_INLINE static inline __attribute__((always_inline))

static inline void store(uint8_t *at, uint64_t v) {
    v = htole64(v);
    memcpy(at, &v, sizeof v);
}

static inline uint64_t load(const uint8_t *at) {
    uint64_t v;
    memcpy(&v, at, sizeof v);
    return le64toh(v);
}

/* Whole groups from the front that end in `out`; *is_above gets its top bit set if a word is not below
 * `prime`, which is below 2^50. Returns their fields' number. */
ALWAYS_INLINE uint32_t pack_width(uint8_t *out, uint64_t *is_above, const uint64_t *words, uint32_t n,
                                  uint64_t prime, uint32_t bits) {
    const uint64_t total = packing_limb_bytes(n, prime);
    uint64_t at = 0, above = 0; /* what is written may lie anywhere, for all that the compiler knows */
    uint32_t done = 0;
    for (; n - done >= GROUP && at + (GROUP - 1) * bits / 8 + sizeof(uint64_t) <= total;
         done += GROUP, at += bits) {
        uint64_t carry = 0;
#pragma GCC unroll 8
        for (uint32_t i = 0; i < GROUP; i++) {
            const uint64_t word = words[done + i];
            const uint64_t field = word << i * bits % 8 | carry;
            above |= word | (prime - 1 - word);
            store(out + at + i * bits / 8, field);
            carry = field >> ((i + 1) * bits / 8 - i * bits / 8) * 8;
        }
    }
    *is_above = above;
    return done;
}

static uint32_t pack_groups(uint8_t *out, uint64_t *is_above, const uint64_t *words, uint32_t n,
                            uint64_t prime) {
#define CALL(width) pack_width(out, is_above, words, n, prime, width)
    FOR_WIDTH(bit_width(prime), CALL)
#undef CALL
}

void packing_pack_limb(uint8_t *out, const uint64_t *words, uint32_t n, uint64_t prime) {
    const uint32_t bits = bit_width(prime);
    const uint64_t total = packing_limb_bytes(n, prime);
    uint64_t is_above = 0;
    const uint32_t done = pack_groups(out, &is_above, words, n, prime);
    CKKS_ASSERT(is_above >> 63 == 0);
    uint64_t at = (uint64_t)done / GROUP * bits;
    uint128 pending = 0;
    uint32_t fill = 0;
    for (uint32_t i = done; i < n; i++) {
        CKKS_ASSERT(words[i] < prime);
        pending |= (uint128)words[i] << fill;
        for (fill += bits; fill >= 8; fill -= 8, pending >>= 8) out[at++] = (uint8_t)pending;
    }
    for (; at < total; pending >>= 8) out[at++] = (uint8_t)pending;
}

static ckks_status refuse_residue(uint32_t index, uint64_t value, uint64_t prime, ckks_error *err) {
    return ckks_error_set(err, CKKS_RESIDUE_RANGE, "residue",
                          "residue %u is %llu, not below its modulus %llu", index, (unsigned long long)value,
                          (unsigned long long)prime);
}

/* Whole groups from the front, as many as are in order. Returns their fields' number. */
ALWAYS_INLINE uint32_t read_width(uint64_t *words, const uint8_t *packed, uint32_t n, uint64_t prime,
                                  uint32_t bits) {
    const uint64_t mask = ((uint64_t)1 << bits) - 1, total = packing_limb_bytes(n, prime);
    uint64_t at = 0;
    uint32_t done = 0;
    for (; n - done >= GROUP && at + (GROUP - 1) * bits / 8 + sizeof(uint64_t) <= total;
         done += GROUP, at += bits) {
        uint64_t is_above = 0;
#pragma GCC unroll 8
        for (uint32_t i = 0; i < GROUP; i++) {
            const uint64_t value = load(packed + at + i * bits / 8) >> i * bits % 8 & mask;
            is_above |= prime - 1 - value;
            if (words) words[done + i] = value;
        }
        if (is_above >> 63) break;
    }
    return done;
}

static uint32_t read_groups(uint64_t *words, const uint8_t *packed, uint32_t n, uint64_t prime) {
#define CALL(width) read_width(words, packed, n, prime, width)
    FOR_WIDTH(bit_width(prime), CALL)
#undef CALL
}

/* The shared walk of unpack and check: words may be NULL. */
static ckks_status read_limb(uint64_t *words, const uint8_t *packed, uint32_t n, uint64_t prime,
                             ckks_error *err) {
    const uint32_t bits = bit_width(prime);
    const uint64_t mask = ((uint64_t)1 << bits) - 1; /* primes are below 2^50 */
    const uint64_t total = packing_limb_bytes(n, prime);
    const uint32_t done = read_groups(words, packed, n, prime);
    uint64_t at = (uint64_t)done / GROUP * bits;
    uint128 pending = 0;
    uint32_t fill = 0;
    for (uint32_t i = done; i < n; i++) {
        for (; fill < bits; fill += 8) pending |= (uint128)packed[at++] << fill;
        const uint64_t value = (uint64_t)pending & mask;
        pending >>= bits;
        fill -= bits;
        if (value >= prime) return refuse_residue(i, value, prime, err);
        if (words) words[i] = value;
    }
    uint64_t rest = (uint64_t)pending;
    for (; at < total; at++) rest |= packed[at];
    if (rest != 0)
        return ckks_error_set(err, CKKS_RESIDUE_RANGE, "padding", "padding after residue %u is not zero",
                              n - 1);
    return CKKS_OK;
}

ckks_status packing_unpack_limb(uint64_t *words, const uint8_t *packed, uint32_t n, uint64_t prime,
                                ckks_error *err) {
    return read_limb(words, packed, n, prime, err);
}

static uint32_t limb_prime(const ckks_params *params, uint32_t level, uint32_t limb) {
    return limb <= level ? limb : params->q_count + (limb - level - 1);
}

void packing_pack(uint8_t *out, const uint64_t *words, const ckks_params *params, uint32_t level, bool with_p,
                  uint32_t component_count) {
    const uint32_t n = params_n(params), limbs = level + 1 + (with_p ? params->p_count : 0);
    CKKS_ASSERT(level < params->q_count);
    for (uint32_t c = 0; c < component_count; c++)
        for (uint32_t i = 0; i < limbs; i++) {
            const uint64_t prime = params->prime[limb_prime(params, level, i)];
            packing_pack_limb(out, words, n, prime);
            out += packing_limb_bytes(n, prime);
            words += n;
        }
}

static ckks_status read_poly(uint64_t *words, const uint8_t *packed, const ckks_params *params,
                             uint32_t level, bool with_p, uint32_t component_count, ckks_error *err) {
    const uint32_t n = params_n(params), limbs = level + 1 + (with_p ? params->p_count : 0);
    CKKS_ASSERT(level < params->q_count);
    for (uint32_t c = 0; c < component_count; c++)
        for (uint32_t i = 0; i < limbs; i++) {
            const uint64_t prime = params->prime[limb_prime(params, level, i)];
            const ckks_status rc = read_limb(words, packed, n, prime, err);
            if (rc != CKKS_OK) return rc;
            packed += packing_limb_bytes(n, prime);
            if (words) words += n;
        }
    return CKKS_OK;
}

ckks_status packing_unpack(uint64_t *words, const uint8_t *packed, const ckks_params *params, uint32_t level,
                           bool with_p, uint32_t component_count, ckks_error *err) {
    return read_poly(words, packed, params, level, with_p, component_count, err);
}

ckks_status packing_check(const uint8_t *packed, const ckks_params *params, uint32_t level, bool with_p,
                          uint32_t component_count, ckks_error *err) {
    return read_poly(NULL, packed, params, level, with_p, component_count, err);
}
