/*
 * Values: what a ciphertext or plaintext on a device *is* (its signature) and where its words are.
 *
 * Words are u64, canonical residues, laid out [batch][component][limb][N]. Limb i of basis Q is prime q[i];
 * basis QP at level l has q[0..l] and then all p.
 */
#ifndef CKKS_VALUE_H
#define CKKS_VALUE_H

#include "kernels/scheme/params.h"

#define VALUE_SCHEMA_VERSION 1u
#define VALUE_ALIGNMENT      256u

typedef enum value_kind { VALUE_CIPHERTEXT = 1, VALUE_PLAINTEXT = 2 } value_kind;
typedef enum value_domain { VALUE_EVALUATION = 1, VALUE_COEFFICIENT = 2 } value_domain;
typedef enum value_basis { VALUE_BASIS_Q = 1, VALUE_BASIS_QP = 2 } value_basis;

/* Everything that recording froze. Comparison is exact, field by field, the scale bit for bit. */
typedef struct value_signature {
    uint32_t kind;           /* value_kind */
    uint32_t schema_version; /* VALUE_SCHEMA_VERSION */
    uint8_t parameter_id[CKKS_PARAMETER_ID_BYTES];
    uint32_t component_count;
    uint32_t batch_count;
    uint32_t limb_count; /* level + 1, without the P limbs */
    uint32_t domain;     /* value_domain */
    uint32_t basis;      /* value_basis */
    double scale;
    uint64_t bytes;     /* of the words */
    uint32_t alignment; /* of the storage */
    uint32_t device;    /* device_id */
} value_signature;

/* A view: does not own its words. */
typedef struct ckks_value {
    value_signature signature;
    uint64_t *words; /* device address */
} ckks_value;

/* value_signature_ciphertext fills a signature for a ciphertext in Q, evaluation domain, batch 1. */
void value_signature_ciphertext(value_signature *out, const ckks_params *params, uint32_t component_count,
                                uint32_t level, double scale, uint32_t device);

/* value_signature_compare: CKKS_SIGNATURE_MISMATCH naming the first differing field (err->field is its name
 * in value_signature), expected and actual; scales are compared and printed as bits and as %a. */
ckks_status value_signature_compare(const value_signature *expected, const value_signature *actual,
                                    ckks_error *err);

static inline uint32_t value_level(const ckks_value *v) {
    return v->signature.limb_count - 1;
}

#endif
