/*
 * Secret keys: in guarded memory while they live, in a file image between. The image's only segment holds the
 * coefficients, one signed byte each; under a passphrase it is sealed with XChaCha20-Poly1305 under an
 * Argon2id key, with lineage and parameter id as associated data, so that a sealed key cannot be moved to
 * other parameters.
 */
#include "client/lib/crypto.h"

#include "kernels/base/bytes.h"

#include <sodium.h>
#include <stdlib.h>

#define MANIFEST_ARENA_BYTES (1u << 20)
/* what a file may ask of this machine, whoever wrote it */
#define OPSLIMIT_MAX UINT64_C(16)
#define MEMLIMIT_MAX (UINT64_C(2) << 30)

#define SALT_BYTES    crypto_pwhash_SALTBYTES
#define NONCE_BYTES   crypto_aead_xchacha20poly1305_ietf_NPUBBYTES
#define SEAL_BYTES    crypto_aead_xchacha20poly1305_ietf_ABYTES
#define SEAL_KEY_SIZE crypto_aead_xchacha20poly1305_ietf_KEYBYTES
#define BINDING_BYTES (LINEAGE_BYTES + CKKS_PARAMETER_ID_BYTES)

void client_secret_key_destroy(client_secret_key *sk) {
    if (!sk) return;
    secret_key_destroy(sk->key);
    context_destroy(sk->context);
    free(sk);
}

static ckks_status allocate(client_secret_key **out, const ckks_params *params, ckks_error *err) {
    ckks_status rc;
    if ((rc = client_init(err)) != CKKS_OK) return rc;
    client_secret_key *sk = calloc(1, sizeof *sk);
    if (!sk) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a secret key");
    if ((rc = context_create(&sk->context, params, err)) != CKKS_OK) {
        free(sk);
        return rc;
    }
    *out = sk;
    return CKKS_OK;
}

ckks_status client_secret_key_generate(client_secret_key **out, const ckks_params *params, ckks_error *err) {
    ckks_status rc;
    client_secret_key *sk = NULL;
    *out = NULL;
    if ((rc = allocate(&sk, params, err)) != CKKS_OK) return rc;
    if ((rc = secret_key_generate(&sk->key, sk->context, err)) != CKKS_OK) {
        client_secret_key_destroy(sk);
        return rc;
    }
    *out = sk;
    return CKKS_OK;
}

static void binding_bytes(uint8_t out[BINDING_BYTES], const uint8_t *lineage, const ckks_params *params) {
    memcpy(out, lineage, LINEAGE_BYTES);
    memcpy(out + LINEAGE_BYTES, params->id, CKKS_PARAMETER_ID_BYTES);
}

/* The sealing key, in guarded memory; sodium_free it. */
static ckks_status derive(uint8_t **out, const client_passphrase *passphrase, const uint8_t *salt,
                          uint64_t opslimit, uint64_t memlimit, ckks_error *err) {
    uint8_t *key = sodium_malloc(SEAL_KEY_SIZE);
    if (!key || crypto_pwhash(key, SEAL_KEY_SIZE, passphrase->text, passphrase->bytes, salt, opslimit,
                              (size_t)memlimit, crypto_pwhash_ALG_ARGON2ID13) != 0) {
        sodium_free(key);
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "passphrase", "Argon2id needs %llu MiB of memory",
                              (unsigned long long)(memlimit >> 20));
    }
    *out = key;
    return CKKS_OK;
}

ckks_status client_secret_key_export(uint8_t **image, size_t *size, const client_secret_key *sk,
                                     const client_passphrase *passphrase, uint64_t created_unix,
                                     ckks_error *err) {
    const ckks_params *params = context_params(sk->context);
    const size_t n = params_n(params);
    const bool is_sealed = passphrase && passphrase->text;
    ckks_status rc = CKKS_OK;
    uint8_t salt[SALT_BYTES], nonce[NONCE_BYTES], binding[BINDING_BYTES];
    uint8_t *key = NULL, *segment = NULL, *manifest = NULL;
    size_t segment_bytes = n;
    params_message pm;
    uint8_t lineage[LINEAGE_BYTES];

    *image = NULL, *size = 0;
    int8_t *coefficients = sodium_malloc(n);
    if (!coefficients || !(segment = malloc(n + SEAL_BYTES))) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a secret key");
        goto out;
    }
    secret_key_export(sk->key, coefficients);
    memcpy(lineage, secret_key_lineage(sk->key), sizeof lineage);
    params_to_message(&pm, params);
    Ckksd__V1__SecretKeyManifest m = CKKSD__V1__SECRET_KEY_MANIFEST__INIT;
    m.parameters = &pm.message;
    m.has_lineage = 1, m.lineage = (ProtobufCBinaryData){sizeof lineage, lineage};
    m.has_created_unix = 1, m.created_unix = created_unix;
    m.has_insecure = 1, m.insecure = params_security_bits(params) < 128;
    if (is_sealed) {
        m.has_opslimit = 1, m.opslimit = crypto_pwhash_OPSLIMIT_MODERATE;
        m.has_memlimit = 1, m.memlimit = crypto_pwhash_MEMLIMIT_MODERATE;
        m.has_salt = 1, m.salt = (ProtobufCBinaryData){sizeof salt, salt};
        m.has_nonce = 1, m.nonce = (ProtobufCBinaryData){sizeof nonce, nonce};
        randombytes_buf(salt, sizeof salt);
        randombytes_buf(nonce, sizeof nonce);
        binding_bytes(binding, lineage, params);
        if ((rc = derive(&key, passphrase, salt, m.opslimit, m.memlimit, err)) != CKKS_OK) goto out;
        unsigned long long sealed_bytes = 0;
        crypto_aead_xchacha20poly1305_ietf_encrypt(segment, &sealed_bytes, (const uint8_t *)coefficients, n,
                                                   binding, sizeof binding, NULL, nonce, key);
        segment_bytes = (size_t)sealed_bytes;
    } else {
        memcpy(segment, coefficients, n);
    }
    const size_t manifest_bytes = ckksd__v1__secret_key_manifest__get_packed_size(&m);
    if (!(manifest = malloc(manifest_bytes))) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a manifest");
        goto out;
    }
    ckksd__v1__secret_key_manifest__pack(&m, manifest);
    const container_segment segments[1] = {{segment, segment_bytes}};
    rc = container_build(image, size, CONTAINER_SECRET_KEY, manifest, (uint32_t)manifest_bytes, segments, 1,
                         err);
out:
    sodium_free(key);
    sodium_free(coefficients);
    if (segment) sodium_memzero(segment, n + SEAL_BYTES);
    free(segment);
    free(manifest);
    return rc;
}

/* ---- import ---- */

static ckks_status check_manifest(const Ckksd__V1__SecretKeyManifest *m, ckks_error *err) {
    if (!m->parameters) return ckks_error_set(err, CKKS_MALFORMED, "parameters", "the secret key names none");
    if (!m->has_lineage || m->lineage.len != LINEAGE_BYTES)
        return ckks_error_set(err, CKKS_MALFORMED, "lineage", "%u bytes are needed", LINEAGE_BYTES);
    if (m->has_salt != m->has_nonce || m->has_salt != m->has_opslimit || m->has_salt != m->has_memlimit)
        return ckks_error_set(err, CKKS_MALFORMED, "salt", "passphrase protection is incomplete");
    if (!m->has_salt) return CKKS_OK;
    if (m->salt.len != SALT_BYTES || m->nonce.len != NONCE_BYTES)
        return ckks_error_set(err, CKKS_MALFORMED, "salt", "salt or nonce has a wrong length");
    if (m->opslimit < crypto_pwhash_OPSLIMIT_MIN || m->opslimit > OPSLIMIT_MAX ||
        m->memlimit < crypto_pwhash_MEMLIMIT_MIN || m->memlimit > MEMLIMIT_MAX)
        return ckks_error_set(err, CKKS_MALFORMED, "memlimit", "asks for %llu passes over %llu bytes",
                              (unsigned long long)m->opslimit, (unsigned long long)m->memlimit);
    return CKKS_OK;
}

/* coefficients [n], guarded, from the segment */
static ckks_status open_segment(int8_t *coefficients, size_t n, const container_segment *segment,
                                const Ckksd__V1__SecretKeyManifest *m, const ckks_params *params,
                                const client_passphrase *passphrase, ckks_error *err) {
    const bool has_passphrase = passphrase && passphrase->text;
    ckks_status rc;
    uint8_t *key = NULL, binding[BINDING_BYTES];
    if (segment->bytes != n + (m->has_salt ? SEAL_BYTES : 0))
        return ckks_error_set(err, CKKS_MALFORMED, "segment", "%llu bytes for %zu coefficients",
                              (unsigned long long)segment->bytes, n);
    if (!m->has_salt) {
        if (has_passphrase)
            return ckks_error_set(err, CKKS_PASSPHRASE, "", "this key has no passphrase, yet one was given");
        memcpy(coefficients, segment->data, n);
        return CKKS_OK;
    }
    if (!has_passphrase)
        return ckks_error_set(err, CKKS_PASSPHRASE, "", "this key is protected by a passphrase");
    if ((rc = derive(&key, passphrase, m->salt.data, m->opslimit, m->memlimit, err)) != CKKS_OK) return rc;
    binding_bytes(binding, m->lineage.data, params);
    if (crypto_aead_xchacha20poly1305_ietf_decrypt((uint8_t *)coefficients, NULL, NULL, segment->data,
                                                   segment->bytes, binding, sizeof binding, m->nonce.data,
                                                   key) != 0)
        rc = ckks_error_set(err, CKKS_PASSPHRASE, "", "the passphrase is wrong");
    sodium_free(key);
    return rc;
}

ckks_status client_secret_key_import(client_secret_key **out, const void *image, size_t size,
                                     const client_passphrase *passphrase, bool allow_insecure,
                                     ckks_error *err) {
    ckks_status rc;
    container_view view = {0};
    ProtobufCMessage *message = NULL;
    client_secret_key *sk = NULL;
    int8_t *coefficients = NULL;
    ckks_params params;

    *out = NULL;
    if ((rc = client_init(err)) != CKKS_OK) goto out;
    if ((rc = container_parse(&view, image, size, CONTAINER_SECRET_KEY, err)) != CKKS_OK) goto out;
    rc = message_unpack(&message, &ckksd__v1__secret_key_manifest__descriptor, view.manifest,
                        view.manifest_bytes, MANIFEST_ARENA_BYTES, "secret key manifest", err);
    if (rc != CKKS_OK) goto out;
    const Ckksd__V1__SecretKeyManifest *m = (const Ckksd__V1__SecretKeyManifest *)message;
    if ((rc = check_manifest(m, err)) != CKKS_OK) goto out;
    if ((rc = params_from_message(&params, m->parameters, err)) != CKKS_OK) goto out;
    if (!allow_insecure && (rc = params_gate(&params, 128, err)) != CKKS_OK) goto out;
    if (view.segment_count != 1) {
        rc = ckks_error_set(err, CKKS_MALFORMED, "segment", "%u segments, one was expected",
                            view.segment_count);
        goto out;
    }
    const size_t n = params_n(&params);
    if (!(coefficients = sodium_malloc(n))) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no guarded memory for a secret key");
        goto out;
    }
    if ((rc = open_segment(coefficients, n, &view.segments[0], m, &params, passphrase, err)) != CKKS_OK)
        goto out;
    if ((rc = allocate(&sk, &params, err)) != CKKS_OK) goto out;
    if ((rc = secret_key_import(&sk->key, sk->context, coefficients, m->lineage.data, err)) != CKKS_OK)
        goto out;
    *out = sk, sk = NULL;
out:
    sodium_free(coefficients);
    client_secret_key_destroy(sk);
    message_free(message);
    container_view_fini(&view);
    return rc;
}
