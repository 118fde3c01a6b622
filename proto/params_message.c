/* Parameters, signatures and key requirements: from hostile messages to plain structures and back. */
#include "proto/package.h"

#include "kernels/base/bytes.h"

#include <math.h>
#include <stdlib.h>

#define BATCH_COUNT_MAX     65536u
#define COMPONENT_COUNT_MAX 3u

static ckks_status refuse_absent(const char *field, ckks_error *err) {
    return ckks_error_set(err, CKKS_MALFORMED, field, "%s is absent", field);
}

ckks_status params_from_message(ckks_params *out, const Ckksd__V1__Parameters *m, ckks_error *err) {
    ckks_status rc;
    ckks_params p = {0};
    *out = p;
    if (!m) return refuse_absent("parameters", err);
    if (!m->has_id || m->id.len != CKKS_PARAMETER_ID_BYTES)
        return ckks_error_set(err, CKKS_MALFORMED, "parameters.id", "the parameter id must have %u bytes",
                              CKKS_PARAMETER_ID_BYTES);
    if (!m->has_log_n) return refuse_absent("parameters.log_n", err);
    if (!m->has_digit_size) return refuse_absent("parameters.digit_size", err);
    if (!m->has_secret_distribution) return refuse_absent("parameters.secret_distribution", err);
    if (!m->has_transform_order) return refuse_absent("parameters.transform_order", err);
    if (m->n_q == 0 || m->n_q > CKKS_PRIMES_MAX || m->n_p > CKKS_PRIMES_MAX - m->n_q)
        return ckks_error_set(err, CKKS_MALFORMED, "parameters.q", "%zu + %zu primes: 1 to %u are taken",
                              m->n_q, m->n_p, CKKS_PRIMES_MAX);
    if (m->n_psi != m->n_q + m->n_p)
        return ckks_error_set(err, CKKS_MALFORMED, "parameters.psi", "%zu roots for %zu primes", m->n_psi,
                              m->n_q + m->n_p);
    p.log_n = m->log_n;
    p.q_count = (uint32_t)m->n_q;
    p.p_count = (uint32_t)m->n_p;
    p.digit_size = m->digit_size;
    p.secret_distribution = m->secret_distribution;
    p.transform_order = m->transform_order;
    for (size_t i = 0; i < m->n_q; i++) p.prime[i] = m->q[i];
    for (size_t i = 0; i < m->n_p; i++) p.prime[m->n_q + i] = m->p[i];
    for (size_t i = 0; i < m->n_psi; i++) {
        if (m->psi[i] == 0) /* params_finish would choose one */
            return ckks_error_set(err, CKKS_MALFORMED, "parameters.psi", "root %zu is 0", i);
        p.psi[i] = m->psi[i];
    }
    if ((rc = params_finish(&p, err)) != CKKS_OK) return rc;
    if (memcmp(p.id, m->id.data, CKKS_PARAMETER_ID_BYTES) != 0)
        return ckks_error_set(err, CKKS_PARAMS_MISMATCH, "parameters.id",
                              "the parameter id is not the hash of these parameters");
    *out = p;
    return CKKS_OK;
}

/* protobuf-c's messages have no const pointers; nothing writes through them while packing. */
void params_to_message(params_message *out, const ckks_params *params) {
    Ckksd__V1__Parameters *m = &out->message;
    ckks_params *p = (ckks_params *)(uintptr_t)params;
    ckksd__v1__parameters__init(m);
    m->has_id = 1, m->id = (ProtobufCBinaryData){CKKS_PARAMETER_ID_BYTES, p->id};
    m->has_log_n = 1, m->log_n = p->log_n;
    m->n_q = p->q_count, m->q = p->prime;
    m->n_p = p->p_count, m->p = p->prime + p->q_count;
    m->n_psi = params_prime_count(p), m->psi = p->psi;
    m->has_digit_size = 1, m->digit_size = p->digit_size;
    m->has_secret_distribution = 1, m->secret_distribution = p->secret_distribution;
    m->has_transform_order = 1, m->transform_order = p->transform_order;
}

/* bytes = batch * components * limbs * N * 8: at most 2^16 * 3 * 80 * 2^17 * 8, and still checked. */
static bool value_bytes(uint64_t *out, const ckks_params *params, const value_signature *s) {
    const uint64_t limbs = s->limb_count + (s->basis == VALUE_BASIS_QP ? params->p_count : 0);
    uint64_t bytes = sizeof(uint64_t);
    if (!size_multiply(&bytes, bytes, params_n(params)) || !size_multiply(&bytes, bytes, limbs) ||
        !size_multiply(&bytes, bytes, s->component_count) || !size_multiply(&bytes, bytes, s->batch_count))
        return false;
    *out = bytes;
    return true;
}

static ckks_status check_signature_ranges(const value_signature *s, const ckks_params *params,
                                          ckks_error *err) {
    if (s->kind != VALUE_CIPHERTEXT && s->kind != VALUE_PLAINTEXT)
        return ckks_error_set(err, CKKS_MALFORMED, "kind", "unknown value kind %u", s->kind);
    if (s->schema_version != VALUE_SCHEMA_VERSION)
        return ckks_error_set(err, CKKS_UNSUPPORTED_VERSION, "schema_version",
                              "signature schema %u, this program knows %u", s->schema_version,
                              VALUE_SCHEMA_VERSION);
    if (s->component_count == 0 || s->component_count > COMPONENT_COUNT_MAX)
        return ckks_error_set(err, CKKS_MALFORMED, "component_count", "%u components: 1 to %u are taken",
                              s->component_count, COMPONENT_COUNT_MAX);
    if (s->batch_count == 0 || s->batch_count > BATCH_COUNT_MAX)
        return ckks_error_set(err, CKKS_MALFORMED, "batch_count", "batch of %u: 1 to %u are taken",
                              s->batch_count, BATCH_COUNT_MAX);
    if (s->limb_count == 0 || s->limb_count > params->q_count)
        return ckks_error_set(err, CKKS_MALFORMED, "limb_count", "%u limbs, these parameters have 1 to %u",
                              s->limb_count, params->q_count);
    if (!isfinite(s->scale) || !(s->scale > 0))
        return ckks_error_set(err, CKKS_MALFORMED, "scale", "scale %a is not a positive number", s->scale);
    if (s->domain != VALUE_EVALUATION && s->domain != VALUE_COEFFICIENT)
        return ckks_error_set(err, CKKS_MALFORMED, "domain", "unknown domain %u", s->domain);
    if (s->basis != VALUE_BASIS_Q && s->basis != VALUE_BASIS_QP)
        return ckks_error_set(err, CKKS_MALFORMED, "basis", "unknown basis %u", s->basis);
    return CKKS_OK;
}

ckks_status signature_from_message(value_signature *out, const ckks_params *params,
                                   const Ckksd__V1__Signature *m, ckks_error *err) {
    ckks_status rc;
    value_signature s = {0};
    *out = s;
    if (!m) return refuse_absent("signature", err);
    if (!m->has_parameter_id || m->parameter_id.len != CKKS_PARAMETER_ID_BYTES)
        return ckks_error_set(err, CKKS_MALFORMED, "parameter_id", "the parameter id must have %u bytes",
                              CKKS_PARAMETER_ID_BYTES);
    if (memcmp(m->parameter_id.data, params->id, CKKS_PARAMETER_ID_BYTES) != 0)
        return ckks_error_set(err, CKKS_PARAMS_MISMATCH, "parameter_id",
                              "the value belongs to other parameters than these");
    if (!m->has_kind) return refuse_absent("kind", err);
    if (!m->has_schema_version) return refuse_absent("schema_version", err);
    if (!m->has_component_count) return refuse_absent("component_count", err);
    if (!m->has_batch_count) return refuse_absent("batch_count", err);
    if (!m->has_limb_count) return refuse_absent("limb_count", err);
    if (!m->has_scale_bits) return refuse_absent("scale", err);
    if (!m->has_domain) return refuse_absent("domain", err);
    if (!m->has_basis) return refuse_absent("basis", err);
    s.kind = m->kind;
    s.schema_version = m->schema_version;
    memcpy(s.parameter_id, params->id, CKKS_PARAMETER_ID_BYTES);
    s.component_count = m->component_count;
    s.batch_count = m->batch_count;
    s.limb_count = m->limb_count;
    s.domain = m->domain;
    s.basis = m->basis;
    memcpy(&s.scale, &m->scale_bits, sizeof s.scale);
    s.alignment = VALUE_ALIGNMENT;
    if ((rc = check_signature_ranges(&s, params, err)) != CKKS_OK) return rc;
    if (!value_bytes(&s.bytes, params, &s))
        return ckks_error_set(err, CKKS_TOO_LARGE, "bytes", "the value's size does not fit 64 bits");
    *out = s;
    return CKKS_OK;
}

void signature_to_message(signature_message *out, const value_signature *signature) {
    Ckksd__V1__Signature *m = &out->message;
    value_signature *s = (value_signature *)(uintptr_t)signature;
    ckksd__v1__signature__init(m);
    m->has_kind = 1, m->kind = s->kind;
    m->has_schema_version = 1, m->schema_version = s->schema_version;
    m->has_parameter_id = 1;
    m->parameter_id = (ProtobufCBinaryData){CKKS_PARAMETER_ID_BYTES, s->parameter_id};
    m->has_component_count = 1, m->component_count = s->component_count;
    m->has_batch_count = 1, m->batch_count = s->batch_count;
    m->has_limb_count = 1, m->limb_count = s->limb_count;
    m->has_scale_bits = 1;
    memcpy(&m->scale_bits, &s->scale, sizeof s->scale);
    m->has_domain = 1, m->domain = s->domain;
    m->has_basis = 1, m->basis = s->basis;
}

/* ---- key requirements ---- */

static ckks_status key_from_message(key_requirement *out, const ckks_params *params,
                                    const Ckksd__V1__KeyRequirement *m, size_t index, ckks_error *err) {
    if (!m->has_kind || m->kind < KEY_RELINEARISATION || m->kind > KEY_PUBLIC)
        return ckks_error_set(err, CKKS_MALFORMED, "keys.kind", "key %zu: unknown kind %u", index, m->kind);
    const uint32_t element = m->has_galois_element ? m->galois_element : 0;
    if (m->kind == KEY_GALOIS) {
        if ((element & 1) == 0 || element >= 2 * params_n(params) || element == 1)
            return ckks_error_set(err, CKKS_MALFORMED, "keys.galois_element",
                                  "key %zu: Galois element %u must be odd, below %u and not 1", index,
                                  element, 2 * params_n(params));
    } else if (element != 0) {
        return ckks_error_set(err, CKKS_MALFORMED, "keys.galois_element",
                              "key %zu: Galois element %u on a key that has none", index, element);
    }
    if (!m->has_level || m->level > params_level_max(params))
        return ckks_error_set(err, CKKS_MALFORMED, "keys.level", "key %zu: level must be 0 to %u", index,
                              params_level_max(params));
    if (m->kind != KEY_PUBLIC && params->p_count == 0)
        return ckks_error_set(err, CKKS_MALFORMED, "keys.kind",
                              "key %zu: these parameters have no special prime for key switching", index);
    *out = (key_requirement){m->kind, element, m->level};
    return CKKS_OK;
}

static int compare_identity(const void *left, const void *right) {
    const key_requirement *a = left, *b = right;
    if (a->kind != b->kind) return a->kind < b->kind ? -1 : 1;
    return a->galois_element < b->galois_element ? -1 : a->galois_element > b->galois_element;
}

/* Two keys of one kind and element, whatever their levels, are a duplicate. */
static ckks_status refuse_duplicates(const key_requirement *keys, uint32_t count, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    if (count < 2) return rc;
    key_requirement *sorted = malloc(count * sizeof *sorted);
    if (!sorted) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "keys", "no memory for %u keys", count);
    memcpy(sorted, keys, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, compare_identity);
    for (uint32_t i = 1; rc == CKKS_OK && i < count; i++)
        if (compare_identity(&sorted[i - 1], &sorted[i]) == 0)
            rc = ckks_error_set(err, CKKS_MALFORMED, "keys", "kind %u, Galois element %u occurs twice",
                                sorted[i].kind, sorted[i].galois_element);
    free(sorted);
    return rc;
}

ckks_status key_requirements_from_messages(key_requirement **out, uint32_t *count, const ckks_params *params,
                                           Ckksd__V1__KeyRequirement *const *messages, size_t message_count,
                                           ckks_error *err) {
    ckks_status rc = CKKS_OK;
    key_requirement *keys = NULL;
    *out = NULL, *count = 0;
    if (message_count > KEY_REQUIREMENTS_MAX)
        return ckks_error_set(err, CKKS_TOO_LARGE, "keys", "%zu keys, at most %u are taken", message_count,
                              KEY_REQUIREMENTS_MAX);
    if (!(keys = calloc(message_count ? message_count : 1, sizeof *keys)))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "keys", "no memory for %zu keys", message_count);
    for (size_t i = 0; rc == CKKS_OK && i < message_count; i++)
        rc = key_from_message(&keys[i], params, messages[i], i, err);
    if (rc == CKKS_OK) rc = refuse_duplicates(keys, (uint32_t)message_count, err);
    if (rc == CKKS_OK) {
        *out = keys, keys = NULL;
        *count = (uint32_t)message_count;
    }
    free(keys);
    return rc;
}

void key_requirements_to_messages(Ckksd__V1__KeyRequirement *items, Ckksd__V1__KeyRequirement **list,
                                  const key_requirement *keys, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        Ckksd__V1__KeyRequirement *m = &items[i];
        ckksd__v1__key_requirement__init(m);
        m->has_kind = 1, m->kind = keys[i].kind;
        if (keys[i].kind == KEY_GALOIS) m->has_galois_element = 1, m->galois_element = keys[i].galois_element;
        m->has_level = 1, m->level = keys[i].level;
        list[i] = m;
    }
}
