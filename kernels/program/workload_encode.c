/*
 * Weights: encoded at exactly the level and scale of their use, compared with the digest that the compiler
 * wrote, uploaded. In chunks: encoding takes all cores, and a model's encoded weights may be larger than what
 * the host likes to hold twice.
 */
#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"
#include "kernels/program/workload_internal.h"
#include "kernels/scheme/encoder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES (UINT64_C(128) << 20)
#define CHUNK_COUNT 256u

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "digests are of little-endian words");

/* ---- shapes ---- */

static void describe_plain(binding_descriptor *out, const ckks_params *params, const plan_plain *plain,
                           uint32_t id, uint32_t device_number) {
    value_signature_ciphertext(&out->signature, params, 1, plain->level, plain->scale, device_number);
    out->signature.kind = VALUE_PLAINTEXT;
    if (plain->with_p) {
        out->signature.basis = VALUE_BASIS_QP;
        out->signature.bytes += (uint64_t)params->p_count * params_n(params) * sizeof(uint64_t);
    }
    out->id = id;
    out->word_count = out->signature.bytes / sizeof(uint64_t);
}

/* A matrix is residues alone: [limb][row][column], then its bias [limb][row]; no polynomial. */
static void describe_matrix(binding_descriptor *out, const ckks_params *params, const plan_matrix *matrix,
                            uint32_t level, uint32_t id, uint32_t device_number) {
    value_signature_ciphertext(&out->signature, params, 1, level, matrix->scale, device_number);
    out->signature.kind = VALUE_PLAINTEXT;
    out->id = id;
    out->word_count =
        (uint64_t)(level + 1) * matrix->row_count * ((uint64_t)matrix->column_count + (matrix->bias ? 1 : 0));
    out->signature.bytes = out->word_count * sizeof(uint64_t);
}

static void describe_all(workload *w) {
    const plan *p = w->p;
    const uint32_t device_number = device_id(w->dev);
    for (uint32_t i = 0; i < p->matrix_count; i++) w->matrix_level_min[i] = params_level_max(p->params);
    for (uint32_t k = 0; k < p->operation_count; k++) {
        const plan_operation *op = &p->operations[k];
        if (op->kind != PLAN_MATRIX_PRODUCT) continue;
        const uint32_t level = p->values[op->a].level;
        if (w->matrix_level[op->matrix] < level) w->matrix_level[op->matrix] = level;
        if (w->matrix_level_min[op->matrix] > level) w->matrix_level_min[op->matrix] = level;
    }
    for (uint32_t i = 0; i < p->plain_count; i++)
        describe_plain(&w->descriptors[i], p->params, &p->plains[i], i, device_number);
    for (uint32_t i = 0; i < p->matrix_count; i++)
        describe_matrix(&w->descriptors[p->plain_count + i], p->params, &p->matrices[i], w->matrix_level[i],
                        p->plain_count + i, device_number);
}

/* ---- words ---- */

static ckks_status encode_numbers(uint64_t *words, const ckks_params *params, const double *numbers,
                                  uint64_t count, double scale, uint32_t level, ckks_error *err) {
    for (uint64_t i = 0; i < count; i++) {
        uint64_t residue[CKKS_PRIMES_MAX];
        const ckks_status rc = encoder_constant(residue, params, numbers[i], scale, level, false, err);
        if (rc != CKKS_OK) return rc;
        for (uint32_t limb = 0; limb <= level; limb++) words[limb * count + i] = residue[limb];
    }
    return CKKS_OK;
}

/* what is encoded for the highest level of use must not wrap at the lowest */
static ckks_status check_fit(const ckks_params *params, const double *numbers, uint64_t count, double scale,
                             uint32_t level_min, ckks_error *err) {
    uint64_t residue[CKKS_PRIMES_MAX];
    double largest = 0;
    for (uint64_t i = 0; i < count; i++) largest = fabs(numbers[i]) > largest ? fabs(numbers[i]) : largest;
    return encoder_constant(residue, params, largest, scale, level_min, false, err);
}

static ckks_status encode_matrix(uint64_t *words, const workload *w, uint32_t index, ckks_error *err) {
    const ckks_params *params = w->p->params;
    const plan_matrix *m = &w->p->matrices[index];
    const uint32_t level = w->matrix_level[index], level_min = w->matrix_level_min[index];
    const uint64_t count = (uint64_t)m->row_count * m->column_count;
    ckks_status rc;
    if ((rc = check_fit(params, m->weights, count, m->scale, level_min, err)) != CKKS_OK) return rc;
    if ((rc = encode_numbers(words, params, m->weights, count, m->scale, level, err)) != CKKS_OK || !m->bias)
        return rc;
    if ((rc = check_fit(params, m->bias, m->row_count, m->bias_scale, level_min, err)) != CKKS_OK) return rc;
    return encode_numbers(words + (level + 1) * count, params, m->bias, m->row_count, m->bias_scale, level,
                          err);
}

static bool is_zero_digest(const uint8_t digest[32]) {
    uint8_t any = 0;
    for (int i = 0; i < 32; i++) any |= digest[i];
    return any == 0;
}

/* Encodes binding `index` into words and verifies it. Any thread. */
static ckks_status encode_one(workload *w, uint64_t *words, uint32_t index, ckks_error *err) {
    const plan *p = w->p;
    ckks_error inner = {0};
    ckks_status rc;
    char field[32];
    const uint8_t *expected;
    if (index < p->plain_count) {
        const plan_plain *plain = &p->plains[index];
        snprintf(field, sizeof field, "plain %u", index);
        expected = plain->digest;
        rc = encoder_encode(words, w->context, plain->slots, NULL, plain->slot_count, plain->level,
                            plain->with_p, plain->scale, &inner);
    } else {
        const uint32_t i = index - p->plain_count;
        snprintf(field, sizeof field, "matrix %u", i);
        expected = p->matrices[i].digest;
        rc = encode_matrix(words, w, i, &inner);
    }
    if (rc != CKKS_OK) return ckks_error_set(err, rc, field, "%s", inner.message);
    sha256(w->digests[index], words, w->descriptors[index].word_count * sizeof *words);
    if (is_zero_digest(expected) || memcmp(expected, w->digests[index], 32) == 0) return CKKS_OK;
    return ckks_error_set(err, CKKS_DIGEST_MISMATCH, field,
                          "its encoded words differ from what the compiler wrote: the package is damaged");
}

/* As many bindings from `first` on as fit a chunk; at least one. */
static uint32_t chunk_end(const workload *w, uint32_t first, uint64_t *word_count) {
    uint32_t end = first;
    *word_count = 0;
    while (end < w->binding_count && end - first < CHUNK_COUNT) {
        const uint64_t more = w->descriptors[end].word_count;
        if (end > first && (*word_count + more) * sizeof(uint64_t) > CHUNK_BYTES) break;
        *word_count += more;
        end++;
    }
    return end;
}

/* `words` have room for the chunk */
static ckks_status encode_chunk(workload *w, uint32_t first, uint32_t end, uint64_t *words, ckks_error *err) {
    binding_update updates[CHUNK_COUNT];
    ckks_error errors[CHUNK_COUNT] = {0};
    ckks_status rc = CKKS_OK;
    uint64_t *at = words;
    for (uint32_t i = first; i < end; i++) {
        const binding_descriptor *d = &w->descriptors[i];
        updates[i - first] = (binding_update){d->id, at, d->word_count, d->signature};
        at += d->word_count;
    }
#pragma omp parallel for schedule(dynamic)
    for (uint32_t i = first; i < end; i++)
        encode_one(w, words + (updates[i - first].words - words), i, &errors[i - first]);
    for (uint32_t i = first; rc == CKKS_OK && i < end; i++)
        if (errors[i - first].code != CKKS_OK)
            rc = ckks_error_set(err, errors[i - first].code, errors[i - first].field, "%s",
                                errors[i - first].message);
    return rc == CKKS_OK ? binding_set_refresh(w->bindings, updates, end - first, err) : rc;
}

/* one piece of memory for all chunks: memory that is new costs more than what is written to it */
static ckks_status allocate_chunk(uint64_t **words, const workload *w, ckks_error *err) {
    uint64_t word_count, largest = 0;
    for (uint32_t first = 0; first < w->binding_count;) {
        first = chunk_end(w, first, &word_count);
        if (word_count > largest) largest = word_count;
    }
    if ((*words = malloc((largest + 1) * sizeof **words))) return CKKS_OK;
    return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "weights", "no memory for %llu encoded words",
                          (unsigned long long)largest);
}

ckks_status workload_encode(workload *w, const workload_progress *progress, ckks_error *err) {
    ckks_status rc;
    describe_all(w);
    if (w->binding_count == 0) return CKKS_OK;
    uint64_t *words = NULL;
    rc = binding_set_create(&w->bindings, w->dev, w->descriptors, w->binding_count, err);
    if (rc == CKKS_OK) rc = allocate_chunk(&words, w, err);
    for (uint32_t first = 0; rc == CKKS_OK && first < w->binding_count;) {
        uint64_t word_count;
        if (progress && progress->report)
            progress->report(progress->context, "encode", first, w->binding_count);
        const uint32_t end = chunk_end(w, first, &word_count);
        rc = encode_chunk(w, first, end, words, err);
        first = end;
    }
    free(words);
    for (uint32_t i = 0; rc == CKKS_OK && i < w->binding_count; i++) {
        binding_info info;
        binding_set_info(w->bindings, i, &info);
        w->words[i] = info.words;
        w->memory.weights_bytes += w->descriptors[i].word_count * sizeof(uint64_t);
    }
    return rc;
}
