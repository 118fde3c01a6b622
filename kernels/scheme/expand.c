#include "kernels/scheme/expand.h"

#include "kernels/scheme/expand_internal.h"
#include "kernels/scheme/seed_stream.h"

/* The stream is produced a piece at a time: what fits the first-level cache. */
#define CHUNK_COEFFICIENTS (SEED_STREAM_BYTES_MAX / 16u)

void seed_expand(uint64_t *words, uint32_t n, uint64_t prime, const uint8_t seed[SEED_BYTES],
                 uint32_t purpose, uint32_t polynomial, uint32_t prime_index) {
    const modulus m = modulus_create(prime);
    const limb_loops *loops = limb_loops_best();
    uint8_t chunk[SEED_STREAM_BYTES_MAX];
    seed_stream stream;
    seed_stream_open(&stream, seed, purpose, polynomial, prime_index);
    for (uint32_t done = 0; done < n; done += CHUNK_COEFFICIENTS) {
        const uint32_t count = n - done < CHUNK_COEFFICIENTS ? n - done : CHUNK_COEFFICIENTS;
        const uint32_t whole = count & ~7u;
        seed_stream_next(&stream, chunk, (size_t)count * 16);
        loops->reduce_wide(words + done, chunk, whole, &m);
        limb_loops_scalar.reduce_wide(words + done + whole, chunk + (size_t)16 * whole, count - whole, &m);
    }
    seed_stream_close(&stream);
}

void seed_subtract_product(uint64_t *out, const uint64_t *s, const uint64_t *plus, const ntt_table *t,
                           const uint8_t seed[SEED_BYTES], uint32_t purpose, uint32_t polynomial,
                           uint32_t prime_index) {
    const size_t n = (size_t)1 << t->log_n;
    const limb_loops *loops = limb_loops_best();
    uint8_t chunk[SEED_STREAM_BYTES_MAX];
    seed_stream stream;
    seed_stream_open(&stream, seed, purpose, polynomial, prime_index);
    for (size_t done = 0; done < n; done += CHUNK_COEFFICIENTS) {
        seed_stream_next(&stream, chunk, sizeof chunk);
        loops->subtract_wide_product(out + done, chunk, s + done, plus ? plus + done : NULL,
                                     CHUNK_COEFFICIENTS, &t->m);
    }
    seed_stream_close(&stream);
}
