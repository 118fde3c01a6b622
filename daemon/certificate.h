/* What a TLS certificate and its private key say about each other, before a listener has them. */
#ifndef CKKSD_CERTIFICATE_H
#define CKKSD_CERTIFICATE_H

#include "kernels/base/status.h"

/*
 * certificate_check reads both files (PEM): is the first certificate the key's? The TLS library itself takes
 * any two, and every client would then be turned away without a word here. CKKS_INVALID_ARGUMENT naming
 * tls_certificate or tls_key. Blocks on the disk. Never asks for a passphrase: a key that has one is refused.
 */
ckks_status certificate_check(const char *certificate_path, const char *key_path, ckks_error *err);

#endif
