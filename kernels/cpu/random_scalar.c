/*
 * Randomness on the device, in plain C: small polynomials from a counter-mode stream. The 64-bit block
 * counter is the stream's block counter (low half) and the nonce's first word (high half), so it never wraps
 * in practice. No branch, index or division depends on the drawn values.
 */
#include "kernels/base/bytes.h"
#include "kernels/cpu/kernels_cpu.h"
#include "kernels/cpu/team.h"

#include <sodium.h>
#include <string.h>

#define STREAM_BLOCK_BYTES 64u
#define PIECE_BLOCKS       64u
#define PIECE_BYTES        (PIECE_BLOCKS * STREAM_BLOCK_BYTES)

/* PIECE_BYTES of stream from block `counter` on; a piece may cross the carry into the nonce */
static void stream_piece(uint8_t *bytes, const uint8_t key[32], uint64_t counter) {
    memset(bytes, 0, PIECE_BYTES);
    for (uint64_t block = 0; block < PIECE_BLOCKS;) {
        const uint64_t now = counter + block, to_carry = ((uint64_t)1 << 32) - (now & UINT32_MAX);
        const uint64_t left = PIECE_BLOCKS - block, count = left < to_carry ? left : to_carry;
        uint8_t nonce[crypto_stream_chacha20_ietf_NONCEBYTES] = {0};
        bytes_write_u32(nonce, (uint32_t)(now >> 32));
        uint8_t *at = bytes + block * STREAM_BLOCK_BYTES;
        crypto_stream_chacha20_ietf_xor_ic(at, at, count * STREAM_BLOCK_BYTES, nonce, (uint32_t)now, key);
        block += count;
    }
}

/* a 128-bit word mod 3, minus 1: 2^32 = 1 mod 3, so its four halves add up */
static int64_t ternary(const uint8_t *bytes) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < 16; i += 4) sum += bytes_read_u32(bytes + i);
    sum = (sum >> 32) + (sum & UINT32_MAX);
    sum = (sum >> 16) + (sum & 0xffff); /* below 2^17 */
    const uint64_t third = (sum * 0xaaaaaaabu) >> 33;
    return (int64_t)(sum - 3 * third) - 1;
}

static uint32_t ones(uint64_t x) {
    x -= (x >> 1) & 0x5555555555555555u;
    x = (x & 0x3333333333333333u) + ((x >> 2) & 0x3333333333333333u);
    x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0fu;
    return (uint32_t)((x * 0x0101010101010101u) >> 56);
}
static int64_t binomial(const uint8_t *bytes) {
    const uint64_t word = bytes_read_u64(bytes), mask = (1u << 21) - 1;
    return (int64_t)ones(word & mask) - (int64_t)ones((word >> 21) & mask);
}

static int64_t flood(const uint8_t *bytes, uint32_t flood_bits) {
    const uint64_t span = (uint64_t)2 << flood_bits;
    return (int64_t)(bytes_read_u64(bytes) & (span - 1)) - (int64_t)(span >> 1);
}

/* the residue of a value whose magnitude is at most 2^48 */
static uint64_t residue(int64_t value, const modulus *m) {
    const uint64_t sign = (uint64_t)(value >> 63), magnitude = ((uint64_t)value ^ sign) - sign;
    const uint64_t reduced = mod_reduce128(magnitude, m);
    return (reduced & ~sign) | (mod_negate(reduced, m->value) & sign);
}

static int64_t draw(const kernel_sample_args *args, const uint8_t *bytes) {
    switch (args->kind) { /* public */
    case SAMPLE_TERNARY:
        return ternary(bytes);
    case SAMPLE_ERROR:
        return binomial(bytes);
    default:
        return flood(bytes, args->flood_bits);
    }
}

static uint32_t per_piece(const kernel_sample_args *args) {
    return PIECE_BYTES / (args->kind == SAMPLE_TERNARY ? 16 : 8);
}

static void sample_task(const void *arguments, uint32_t task) {
    const kernel_sample_args *args = arguments;
    const uint32_t n = tables_n(args->tables), limbs = basis_limb_count(args->out.basis);
    const uint32_t count = per_piece(args), bytes_each = PIECE_BYTES / count;
    uint8_t bytes[PIECE_BYTES];
    int64_t value[PIECE_BYTES / 8];
    stream_piece(bytes, args->random->key,
                 args->random->counter + args->block_offset + (uint64_t)task * PIECE_BLOCKS);
    for (uint32_t k = 0; k < count; k++) value[k] = draw(args, bytes + (size_t)k * bytes_each);
    for (uint32_t i = 0; i < limbs; i++) {
        const modulus *m = &tables_ntt(args->tables, args->out.basis, i)->m;
        uint64_t *out = poly_limb(&args->out, 0, i, n) + (size_t)task * count;
        for (uint32_t k = 0; k < count; k++) out[k] = residue(value[k], m);
    }
    sodium_memzero(bytes, sizeof bytes);
    sodium_memzero(value, sizeof value);
}
void cpu_sample_scalar(const void *arguments) {
    const kernel_sample_args *args = arguments;
    team_each(tables_n(args->tables) / per_piece(args), true, sample_task, args);
}

void cpu_counter_advance_scalar(const void *arguments) {
    const kernel_counter_args *args = arguments;
    args->random->counter += args->block_count;
}
