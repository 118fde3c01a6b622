#include "kernels/base/hash.h"

#include "kernels/base/status.h"

#include <openssl/evp.h>

/* EVP_MD_CTX is libcrypto's own opaque heap object; ours is the same object under our name. */
hash_state *hash_create(void) {
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    if (!context) return NULL;
    if (EVP_DigestInit_ex(context, EVP_sha256(), NULL) != 1) {
        EVP_MD_CTX_free(context);
        return NULL;
    }
    return (hash_state *)context;
}

void hash_update(hash_state *hash, const void *data, size_t size) {
    const int rc = EVP_DigestUpdate((EVP_MD_CTX *)hash, data, size);
    CKKS_ASSERT(rc == 1);
}

void hash_finish(hash_state *hash, uint8_t digest[SHA256_BYTES]) {
    const int rc = EVP_DigestFinal_ex((EVP_MD_CTX *)hash, digest, NULL);
    CKKS_ASSERT(rc == 1);
}

void hash_destroy(hash_state *hash) {
    EVP_MD_CTX_free((EVP_MD_CTX *)hash);
}

void sha256(uint8_t digest[SHA256_BYTES], const void *data, size_t size) {
    const int rc = EVP_Digest(data, size, digest, NULL, EVP_sha256(), NULL);
    CKKS_ASSERT(rc == 1);
}
