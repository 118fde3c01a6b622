#include "daemon/certificate.h"

#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdio.h>

static int no_passphrase(char *buffer, int size, int is_write, void *context) {
    (void)buffer, (void)size, (void)is_write, (void)context;
    return 0;
}

ckks_status certificate_check(const char *certificate_path, const char *key_path, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    X509 *certificate = NULL;
    EVP_PKEY *key = NULL;
    FILE *file = fopen(certificate_path, "re");
    if (file) certificate = PEM_read_X509(file, NULL, no_passphrase, NULL);
    if (file) fclose(file);
    if (!certificate) {
        rc = ckks_error_set(err, CKKS_INVALID_ARGUMENT, "tls_certificate",
                            "%s: no certificate in PEM can be read", certificate_path);
        goto out;
    }
    if ((file = fopen(key_path, "re"))) key = PEM_read_PrivateKey(file, NULL, no_passphrase, NULL);
    if (file) fclose(file);
    if (!key) {
        rc = ckks_error_set(err, CKKS_INVALID_ARGUMENT, "tls_key",
                            "%s: no private key in PEM without a passphrase can be read", key_path);
        goto out;
    }
    if (X509_check_private_key(certificate, key) != 1)
        rc = ckks_error_set(err, CKKS_INVALID_ARGUMENT, "tls_key",
                            "%s is not the key of the certificate in %s", key_path, certificate_path);
out:
    EVP_PKEY_free(key); /* wipes it */
    X509_free(certificate);
    return rc;
}
