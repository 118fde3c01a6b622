/*
 * The key stream behind seed expansion: IETF ChaCha20 from block 0. For seeds that travel in clear: the
 * cipher is libcrypto's, which has one for AVX-512 and is half as fast again as libsodium's with AVX2; where
 * it cannot start, libsodium's, whose bytes are the same. Secret streams (sample.h) never come through here.
 */
#ifndef CKKS_SCHEME_SEED_STREAM_H
#define CKKS_SCHEME_SEED_STREAM_H

#include "kernels/scheme/expand.h"

#include <stddef.h>

typedef struct seed_stream {
    void *cipher; /* NULL: libsodium */
    uint32_t block;
    uint8_t seed[SEED_BYTES], nonce[12];
} seed_stream;

void seed_stream_open(seed_stream *s, const uint8_t seed[SEED_BYTES], uint32_t purpose, uint32_t polynomial,
                      uint32_t prime_index);
#define SEED_STREAM_BYTES_MAX 8192u
/* seed_stream_next: the next `bytes` of the stream, a multiple of 64 but for the last call. */
void seed_stream_next(seed_stream *s, uint8_t *out, size_t bytes);
void seed_stream_close(seed_stream *s);

#endif
