#include "kernels/scheme/sample.h"

#include "kernels/base/bytes.h"
#include "kernels/scheme/limb_loops_internal.h"
#include "kernels/scheme/secret_marks.h"

#include <sodium.h>

void sampler_init(sampler *s) {
    s->block = s->stream = 0;
    randombytes_buf(s->key, sizeof s->key);
    secret_mark(s->key, sizeof s->key);
}

void sampler_init_key(sampler *s, const uint8_t key[SAMPLER_KEY_BYTES], uint32_t stream) {
    s->block = 0, s->stream = stream;
    memcpy(s->key, key, sizeof s->key);
}

static void next_chunk(sampler *s) {
    uint8_t nonce[crypto_stream_chacha20_ietf_NONCEBYTES] = {0};
    bytes_write_u32(nonce, s->stream);
    memset(s->chunk, 0, sizeof s->chunk);
    crypto_stream_chacha20_ietf_xor_ic(s->chunk, s->chunk, sizeof s->chunk, nonce, s->block, s->key);
    s->block += SAMPLER_CHUNK_BYTES / 64;
}

void sample_ternary(int8_t *out, size_t n, sampler *s) {
    size_t kept = 0;
    while (kept < n) {
        next_chunk(s);
        for (size_t i = 0; i < SAMPLER_CHUNK_BYTES * 4 && kept < n; i++) {
            const unsigned draw = ((unsigned)s->chunk[i / 4] >> (i % 4 * 2)) & 3u;
            out[kept] = (int8_t)((int)draw - 1);
            size_t is_kept = (draw + 1) >> 2 ^ 1u; /* a 3 is overwritten by the next draw */
            /* which draws are rejected may show: they are independent of those kept */
            secret_declassify(&is_kept, sizeof is_kept);
            kept += is_kept;
        }
    }
    sodium_memzero(s->chunk, sizeof s->chunk);
}

void sample_error(int8_t *out, size_t n, sampler *s) {
    const limb_loops *loops = limb_loops_best();
    for (size_t done = 0; done < n;) {
        const size_t left = n - done, count = left < SAMPLER_CHUNK_BYTES / 8 ? left : SAMPLER_CHUNK_BYTES / 8;
        next_chunk(s);
        loops->count_errors(out + done, s->chunk, count);
        done += count;
    }
    sodium_memzero(s->chunk, sizeof s->chunk);
}

void small_to_residues(uint64_t *out, const int8_t *in, size_t n, uint64_t q) {
    for (size_t i = 0; i < n; i++) {
        const int64_t x = (int64_t)in[i];
        out[i] = (uint64_t)x + (q & (uint64_t)(x >> 63));
    }
}
