#include "kernels/scheme/expand.h"

#include "kernels/base/bytes.h"
#include "kernels/scheme/mod.h"

#include <sodium.h>

/* The stream is produced a piece at a time: 256 coefficients of 16 bytes are 64 blocks of 64 bytes. */
#define CHUNK_COEFFICIENTS 256u
#define CHUNK_BLOCKS       (CHUNK_COEFFICIENTS * 16u / 64u)

void seed_expand(uint64_t *words, uint32_t n, uint64_t prime, const uint8_t seed[SEED_BYTES],
                 uint32_t purpose, uint32_t polynomial, uint32_t prime_index) {
    const modulus m = modulus_create(prime);
    uint8_t nonce[crypto_stream_chacha20_ietf_NONCEBYTES], chunk[CHUNK_COEFFICIENTS * 16];
    bytes_write_u32(nonce, purpose);
    bytes_write_u32(nonce + 4, polynomial);
    bytes_write_u32(nonce + 8, prime_index);
    uint32_t block = 0;
    for (uint32_t done = 0; done < n; done += CHUNK_COEFFICIENTS, block += CHUNK_BLOCKS) {
        const uint32_t count = n - done < CHUNK_COEFFICIENTS ? n - done : CHUNK_COEFFICIENTS;
        memset(chunk, 0, (size_t)count * 16);
        crypto_stream_chacha20_ietf_xor_ic(chunk, chunk, (unsigned long long)count * 16, nonce, block, seed);
        for (uint32_t i = 0; i < count; i++) {
            const uint64_t low = bytes_read_u64(chunk + 16 * i), high = bytes_read_u64(chunk + 16 * i + 8);
            words[done + i] = mod_reduce128((uint128)high << 64 | low, &m);
        }
    }
}
