#include "kernels/scheme/seed_stream.h"

#include "kernels/base/bytes.h"
#include "kernels/base/status.h"

#include <openssl/evp.h>
#include <sodium.h>

static const uint8_t zeros[SEED_STREAM_BYTES_MAX];

void seed_stream_open(seed_stream *s, const uint8_t seed[SEED_BYTES], uint32_t purpose, uint32_t polynomial,
                      uint32_t prime_index) {
    uint8_t counter_and_nonce[16] = {0};
    s->block = 0;
    memcpy(s->seed, seed, sizeof s->seed);
    bytes_write_u32(s->nonce, purpose);
    bytes_write_u32(s->nonce + 4, polynomial);
    bytes_write_u32(s->nonce + 8, prime_index);
    memcpy(counter_and_nonce + 4, s->nonce, sizeof s->nonce);
    EVP_CIPHER_CTX *cipher = EVP_CIPHER_CTX_new();
    if (cipher && EVP_EncryptInit_ex(cipher, EVP_chacha20(), NULL, seed, counter_and_nonce) != 1) {
        EVP_CIPHER_CTX_free(cipher);
        cipher = NULL;
    }
    s->cipher = cipher;
}

void seed_stream_next(seed_stream *s, uint8_t *out, size_t bytes) {
    int written = 0;
    CKKS_ASSERT(bytes <= sizeof zeros);
    if (s->cipher && EVP_EncryptUpdate(s->cipher, out, &written, zeros, (int)bytes) == 1 &&
        written == (int)bytes) {
        s->block += (uint32_t)(bytes / 64);
        return;
    }
    seed_stream_close(s);
    crypto_stream_chacha20_ietf_xor_ic(out, zeros, bytes, s->nonce, s->block, s->seed);
    s->block += (uint32_t)(bytes / 64);
}

void seed_stream_close(seed_stream *s) {
    EVP_CIPHER_CTX_free(s->cipher);
    s->cipher = NULL;
}
