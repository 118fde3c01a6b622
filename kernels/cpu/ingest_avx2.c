/*
 * What comes from the wire, with AVX2: unpacking, seed expansion, the check for zero. The words and verdicts
 * of ingest_scalar.c. Packing is bound by its one chain of bits and stays scalar. The stream cipher is
 * libsodium's, which does eight blocks at a time.
 */
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/packed_layout.h"
#include "kernels/cpu/team.h"
#include "kernels/scheme/expand.h"

#include <sodium.h>
#include <stdatomic.h>

/* ---- unpacking ---- */

/* Eight fields are as many bytes as a field has bits, so positions repeat. Four fields at a time: half a
 * vector loads the 16 bytes from its first field's byte on, which hold two fields (2 * 50 + 7 bits). */
typedef struct unpack_step {
    uint32_t low, high; /* byte of the first field of either half, from the group's first byte on */
    w64 spread, shift;  /* bytes of each field to its lane; its first bit there */
} unpack_step;

static unpack_step unpack_step_of(uint32_t bits, uint32_t field) {
    uint8_t spread[32];
    uint64_t shift[4];
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t from = (field + i) * bits, half = (field + (i & ~1u)) * bits / 8;
        shift[i] = from % 8;
        for (uint32_t k = 0; k < 8; k++) spread[8 * i + k] = (uint8_t)(from / 8 - half + k);
    }
    return (unpack_step){field * bits / 8, (field + 2) * bits / 8,
                         _mm256_loadu_si256((const __m256i *)(const void *)spread), w64_load(shift)};
}

/* four fields; the sign bit of a lane of *out_of_range is set where one is q or more */
ALWAYS w64 unpack_four(const uint8_t *at, const unpack_step *s, w64 mask, w64 q, w64 *out_of_range) {
    const __m128i low = _mm_loadu_si128((const __m128i *)(const void *)(at + s->low));
    const __m128i high = _mm_loadu_si128((const __m128i *)(const void *)(at + s->high));
    const w64 bytes =
        _mm256_shuffle_epi8(_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1), s->spread);
    const w64 word = _mm256_and_si256(_mm256_srlv_epi64(bytes, s->shift), mask);
    const w64 is_good = _mm256_cmpgt_epi64(q, word);
    *out_of_range = _mm256_or_si256(*out_of_range, _mm256_xor_si256(is_good, _mm256_set1_epi64x(-1)));
    return _mm256_and_si256(word, is_good);
}

static uint32_t unpack_limb(uint64_t *out, const uint8_t *packed, uint32_t n, const modulus *m) {
    const uint8_t *end = packed + field_bytes(n, m->bits), *limb_end = packed + limb_bytes(n, m->bits);
    const uint64_t mask = ((uint64_t)1 << m->bits) - 1;
    const unpack_step first = unpack_step_of(m->bits, 0), second = unpack_step_of(m->bits, 4);
    const w64 masks = w64_all(mask), q = w64_all(m->value);
    w64 bad = w64_all(0);
    uint64_t out_of_range = 0, padding = 0;
    uint32_t k = 0;
    const uint8_t *at = packed;
    for (; k < n && (size_t)(limb_end - at) >= second.high + 16; k += 8, at += m->bits) {
        w64_store(out + k, unpack_four(at, &first, masks, q, &bad));
        w64_store(out + k + 4, unpack_four(at, &second, masks, q, &bad));
    }
    for (; k < n; k++) {
        const uint64_t bit = (uint64_t)k * m->bits;
        const uint64_t word = read_word(packed + bit / 8, end) >> (bit % 8) & mask;
        const uint64_t is_good = (uint64_t)(word < m->value);
        out_of_range |= 1 - is_good;
        out[k] = word & -is_good;
    }
    for (at = end; at < limb_end; at++) padding |= *at;
    if (!_mm256_testz_si256(bad, bad)) out_of_range = 1;
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

void cpu_unpack_avx2(const void *arguments) {
    const kernel_unpack_args *args = arguments;
    const uint32_t count = args->out.component_count * basis_limb_count(args->out.basis);
    _Atomic uint32_t verdict = 0;
    const unpack_launch launch = {args, &verdict};
    team_each(count, (size_t)count * tables_n(args->tables) >= TEAM_WORDS_LIGHT, unpack_task, &launch);
    *args->verdict |= verdict;
}

/* ---- expansion ---- */

#define CHUNK_WORDS  256u /* of 128 bits */
#define CHUNK_BYTES  (CHUNK_WORDS * 16u)
#define CHUNK_BLOCKS (CHUNK_BYTES / 64u)

typedef struct wide_shape {
    lanes_prime p;
    lanes_constant middle, top; /* 2^52, 2^104 mod q */
} wide_shape;

/* four 128-bit words: 52 + 52 + 24 bits, the upper two times what they are worth; the sum is below 2^53 */
ALWAYS w64 reduce_wide(w64 low, w64 high, const wide_shape *s) {
    const w64 ones = w64_all(((uint64_t)1 << 52) - 1);
    const w64 part0 = _mm256_and_si256(low, ones);
    const w64 part1 =
        _mm256_and_si256(_mm256_or_si256(_mm256_srli_epi64(low, 52), _mm256_slli_epi64(high, 12)), ones);
    const w64 part2 = _mm256_srli_epi64(high, 40);
    const f64 middle = f64_multiply_constant(f64_from_word(part1), s->middle, &s->p);
    const f64 top = f64_multiply_constant(f64_from_word(part2), s->top, &s->p);
    const f64 sum = f64_add(f64_add(middle, top), f64_from_word(part0));
    return f64_canonical(f64_reduce(sum, &s->p), &s->p);
}

static void expand_chunk(uint64_t *out, const uint8_t *bytes, const wide_shape *shape) {
    const wide_shape s = *shape;
    for (uint32_t k = 0; k < CHUNK_WORDS; k += 4, bytes += 64) {
        const w64 a = _mm256_loadu_si256((const __m256i *)(const void *)bytes);
        const w64 b = _mm256_loadu_si256((const __m256i *)(const void *)(bytes + 32));
        const w64 words = reduce_wide(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b), &s);
        w64_store(out + k, _mm256_permute4x64_epi64(words, 0xd8)); /* unpacked as 0, 2, 1, 3 */
    }
}

static void expand_task(const void *arguments, uint32_t task) {
    const kernel_expand_args *args = arguments;
    const uint32_t n = tables_n(args->tables), limbs = basis_limb_count(args->out.basis);
    const uint32_t q_count = context_params(device_tables_context(args->tables))->q_count;
    const uint32_t k = task / (n / CHUNK_WORDS), chunk = task % (n / CHUNK_WORDS);
    const uint32_t c = k / limbs, i = k % limbs;
    const modulus *m = &tables_ntt(args->tables, args->out.basis, i)->m;
    wide_shape s = {.p = lanes_prime_of(m)};
    s.middle = lanes_constant_residue(mod_reduce128((uint128)1 << 52, m), m, &s.p);
    s.top = lanes_constant_residue(mod_reduce128((uint128)1 << 104, m), m, &s.p);
    uint8_t nonce[crypto_stream_chacha20_ietf_NONCEBYTES], bytes[CHUNK_BYTES] = {0};
    bytes_write_u32(nonce, args->purpose);
    bytes_write_u32(nonce + 4, args->polynomial + c);
    bytes_write_u32(nonce + 8, basis_prime(args->out.basis, i, q_count));
    crypto_stream_chacha20_ietf_xor_ic(bytes, bytes, sizeof bytes, nonce, chunk * CHUNK_BLOCKS, args->seed);
    expand_chunk(poly_limb(&args->out, c, i, n) + (size_t)chunk * CHUNK_WORDS, bytes, &s);
}

void cpu_expand_avx2(const void *arguments) {
    const kernel_expand_args *args = arguments;
    const uint32_t n = tables_n(args->tables);
    const uint32_t limb_total = args->out.component_count * basis_limb_count(args->out.basis);
    team_each(limb_total * (n / CHUNK_WORDS), (size_t)limb_total * n >= TEAM_WORDS_HEAVY, expand_task, args);
}

/* ---- the check for zero ---- */

void cpu_check_nonzero_avx2(const void *arguments) {
    const kernel_check_nonzero_args *args = arguments;
    const uint32_t n = tables_n(args->tables), limbs = basis_limb_count(args->a.basis);
    w64 any = w64_all(0);
    for (uint32_t i = 0; i < limbs; i++) {
        const uint64_t *words = poly_limb(&args->a, 0, i, n);
        for (uint32_t k = 0; k < n; k += LANES) any = _mm256_or_si256(any, w64_load(words + k));
    }
    if (_mm256_testz_si256(any, any)) *args->verdict |= VERDICT_ZERO;
}
