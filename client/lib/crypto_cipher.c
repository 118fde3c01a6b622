/* Rows to ciphertexts and ciphertexts to scores. Whole slot vectors of plain values are wiped after use. */
#include "client/lib/crypto.h"

#include "client/lib/wipe.h"
#include "kernels/base/bytes.h"
#include "kernels/scheme/encoder.h"
#include "proto/ciphertext_file.h"
#include "proto/packing.h"

#include <sodium.h>
#include <stdlib.h>

void client_ciphertexts_fini(client_ciphertexts *list) {
    if (!list) return;
    for (uint32_t i = 0; list->items && i < list->count; i++) free(list->items[i].packed);
    free(list->items);
    *list = (client_ciphertexts){0};
}

static ckks_status list_allocate(client_ciphertexts *out, uint32_t count, ckks_error *err) {
    if (!(out->items = calloc(count, sizeof *out->items)))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for %u ciphertexts", count);
    out->count = count;
    return CKKS_OK;
}

/* What all ciphertexts of one request are made from. */
typedef struct encryption {
    const client_model *model;
    const client_secret_key *sk; /* or pk */
    const client_public_key *pk;
    const ckks_context *context;
    const double *elements;
    uint32_t row_count;
    client_ciphertexts *list;
} encryption;

static size_t entry_words(const value_signature *s, const ckks_params *params) {
    return (size_t)s->limb_count * params_n(params);
}

/* entry `entry` of input `input`; scratch: plain, c0 and c1 words. `ciphertext` counts through all inputs. */
static ckks_status encrypt_one(const encryption *e, uint32_t input, uint32_t entry, uint32_t ciphertext,
                               double *slots, uint64_t *scratch, ckks_error *err) {
    const ckks_params *params = context_params(e->context);
    client_ciphertext *out = &e->list->items[input];
    const value_signature *s = &out->signature;
    const uint32_t level = s->limb_count - 1, components = e->sk ? 1 : 2;
    uint64_t *plain = scratch, *c0 = scratch + entry_words(s, params), *c1 = c0 + entry_words(s, params);
    ckks_status rc = client_slots(slots, e->model, e->elements, e->row_count, ciphertext, err);
    if (rc == CKKS_OK)
        rc = encoder_encode(plain, e->context, slots, NULL, client_slot_count(e->model), level, false,
                            s->scale, err);
    if (rc != CKKS_OK) return rc;
    if (e->sk)
        rc = encrypt_symmetric_entry(c0, out->seed, entry, e->sk->key, plain, level, err);
    else
        rc = encrypt_public(c0, c1, e->context, e->pk->words,
                            e->pk->words + (size_t)params->q_count * params_n(params), plain, level, err);
    if (rc == CKKS_OK) /* c0 and c1 are neighbours */
        packing_pack(out->packed + out->packed_bytes / s->batch_count * entry, c0, params, level, false,
                     components);
    return rc;
}

/* every thread has its scratch; the first failure counts */
static ckks_status encrypt_all(const encryption *e, ckks_error *err) {
    const ckks_params *params = &e->model->params;
    const size_t slots_bytes = client_slot_count(e->model) * sizeof(double);
    const size_t scratch_bytes = (size_t)3 * params->q_count * params_n(params) * sizeof(uint64_t);
    ckks_error first = {0};
    uint32_t before = 0;
    for (uint32_t i = 0; i < e->model->input_count && first.code == CKKS_OK; i++) {
        const uint32_t batch = e->model->inputs[i].batch_count;
#pragma omp parallel if (batch > 1)
        {
            ckks_error local = {0};
            double *slots = malloc(slots_bytes);
            uint64_t *scratch = malloc(scratch_bytes);
            if (!slots || !scratch)
                ckks_error_set(&local, CKKS_RESOURCE_EXHAUSTED, "", "no memory to encrypt");
#pragma omp for schedule(dynamic)
            for (uint32_t entry = 0; entry < batch; entry++)
                if (local.code == CKKS_OK) encrypt_one(e, i, entry, before + entry, slots, scratch, &local);
            wipe_free(slots);
            wipe_free(scratch);
#pragma omp critical(client_encrypt)
            if (first.code == CKKS_OK) first = local;
        }
        before += batch;
    }
    return first.code == CKKS_OK ? CKKS_OK
                                 : ckks_error_set(err, first.code, first.field, "%s", first.message);
}

static ckks_status check_input_signatures(const client_model *model, ckks_error *err) {
    for (uint32_t i = 0; i < model->input_count; i++) {
        const value_signature *s = &model->inputs[i];
        if (s->component_count != 2 || s->domain != VALUE_EVALUATION || s->basis != VALUE_BASIS_Q)
            return ckks_error_set(err, CKKS_UNSUPPORTED, "inputs",
                                  "input %u is no plain ciphertext: this client is too old for the model", i);
    }
    return CKKS_OK;
}

static ckks_status allocate_values(client_ciphertexts *list, const client_model *model, bool is_seeded,
                                   ckks_error *err) {
    ckks_status rc = list_allocate(list, model->input_count, err);
    for (uint32_t i = 0; i < model->input_count && rc == CKKS_OK; i++) {
        client_ciphertext *c = &list->items[i];
        c->signature = model->inputs[i];
        c->is_seeded = is_seeded;
        if (is_seeded) randombytes_buf(c->seed, sizeof c->seed);
        rc = ciphertext_packed_bytes(&c->packed_bytes, &model->params, &c->signature, is_seeded, err);
        if (rc == CKKS_OK && !(c->packed = malloc((size_t)c->packed_bytes)))
            rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a ciphertext");
    }
    return rc;
}

ckks_status client_encrypt(client_ciphertexts *out, const client_model *model, const client_secret_key *sk,
                           const client_public_key *pk, const double *elements, uint32_t row_count,
                           ckks_error *err) {
    client_ciphertexts list = {.row_count = row_count};
    const encryption e = {.model = model,
                          .sk = sk,
                          .pk = pk,
                          .context = sk   ? sk->context
                                     : pk ? pk->context
                                          : NULL,
                          .elements = elements,
                          .row_count = row_count,
                          .list = &list};
    ckks_status rc;

    *out = (client_ciphertexts){0};
    if (!e.context)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "key", "a secret or a public key is needed");
    if (memcmp(context_params(e.context)->id, model->params.id, CKKS_PARAMETER_ID_BYTES) != 0)
        return ckks_error_set(err, CKKS_PARAMS_MISMATCH, "key",
                              "the key was made for other parameters than the model's");
    if (!sk && model->description->input_layout->secret_key_only)
        return ckks_error_set(
            err, CKKS_UNSUPPORTED, "key",
            "the model's promise does not hold for inputs under the public key: encrypt with "
            "the secret key");
    if ((rc = check_input_signatures(model, err)) != CKKS_OK) return rc;
    if ((rc = client_check_rows(model, row_count, err)) != CKKS_OK) return rc;
    memcpy(list.lineage, sk ? secret_key_lineage(sk->key) : pk->lineage, LINEAGE_BYTES);
    rc = allocate_values(&list, model, sk != NULL, err);
    if (rc == CKKS_OK) rc = encrypt_all(&e, err);
    if (rc == CKKS_OK) *out = list, list = (client_ciphertexts){0};
    client_ciphertexts_fini(&list);
    return rc;
}

/* ---- back ---- */

ckks_status client_ciphertexts_check(const client_ciphertexts *list, const ckks_params *params,
                                     const value_signature *expected, uint32_t expected_count,
                                     ckks_error *err) {
    ckks_status rc;
    if (list->count != expected_count)
        return ckks_error_set(err, CKKS_SIGNATURE_MISMATCH, "count", "%u ciphertexts, expected %u",
                              list->count, expected_count);
    for (uint32_t i = 0; i < list->count; i++) {
        uint64_t bytes;
        const client_ciphertext *c = &list->items[i];
        if ((rc = value_signature_compare(&expected[i], &c->signature, err)) != CKKS_OK) return rc;
        if ((rc = ciphertext_packed_bytes(&bytes, params, &c->signature, c->is_seeded, err)) != CKKS_OK)
            return rc;
        if (bytes != c->packed_bytes)
            return ckks_error_set(err, CKKS_SIGNATURE_MISMATCH, "bytes",
                                  "ciphertext %u has %llu bytes, expected %llu", i,
                                  (unsigned long long)c->packed_bytes, (unsigned long long)bytes);
    }
    return CKKS_OK;
}

/* words [2 or 3 components][limb][N] of one entry */
static ckks_status unpack_one(uint64_t *words, const ckks_params *params, const client_ciphertext *c,
                              uint32_t entry, ckks_error *err) {
    const uint32_t level = c->signature.limb_count - 1, n = params_n(params);
    const uint8_t *packed = c->packed + c->packed_bytes / c->signature.batch_count * entry;
    ckks_status rc;
    if (!c->is_seeded)
        return packing_unpack(words, packed, params, level, false, c->signature.component_count, err);
    if ((rc = packing_unpack(words, packed, params, level, false, 1, err)) != CKKS_OK) return rc;
    uint64_t *c1 = words + (size_t)c->signature.limb_count * n;
    for (uint32_t i = 0; i <= level; i++)
        seed_expand(c1 + (size_t)i * n, n, params->prime[i], c->seed, SEED_CIPHERTEXT, entry, i);
    return CKKS_OK;
}

static ckks_status decrypt_one(double *decoded, const client_secret_key *sk, const client_ciphertext *c,
                               uint32_t entry, uint64_t *words, uint64_t *plain, ckks_error *err) {
    const ckks_params *params = context_params(sk->context);
    const uint32_t level = c->signature.limb_count - 1;
    ckks_status rc;
    if ((rc = unpack_one(words, params, c, entry, err)) != CKKS_OK) return rc;
    if ((rc = decrypt(plain, sk->key, words, c->signature.component_count, level, err)) != CKKS_OK) return rc;
    return encoder_decode(decoded, NULL, sk->context, plain, params_slot_count_max(params), level,
                          c->signature.scale, err);
}

/* values[ciphertext][N/2]; decoded points to each */
static ckks_status decrypt_all(const double **decoded, double *values, const client_secret_key *sk,
                               const client_ciphertexts *outputs, ckks_error *err) {
    const ckks_params *params = context_params(sk->context);
    const size_t slots = params_slot_count_max(params), poly = (size_t)params->q_count * params_n(params);
    ckks_error first = {0};
    uint32_t before = 0;
    for (uint32_t i = 0; i < outputs->count && first.code == CKKS_OK; i++) {
        const client_ciphertext *c = &outputs->items[i];
        const uint32_t batch = c->signature.batch_count;
#pragma omp parallel if (batch > 1)
        {
            ckks_error local = {0};
            uint64_t *words = malloc(4 * poly * sizeof *words);
            if (!words) ckks_error_set(&local, CKKS_RESOURCE_EXHAUSTED, "", "no memory to decrypt");
#pragma omp for schedule(dynamic)
            for (uint32_t entry = 0; entry < batch; entry++) {
                double *to = values + (before + entry) * slots;
                decoded[before + entry] = to;
                if (local.code == CKKS_OK) decrypt_one(to, sk, c, entry, words, words + 3 * poly, &local);
            }
            wipe_free(words);
#pragma omp critical(client_decrypt)
            if (first.code == CKKS_OK) first = local;
        }
        before += batch;
    }
    return first.code == CKKS_OK ? CKKS_OK
                                 : ckks_error_set(err, first.code, first.field, "%s", first.message);
}

ckks_status client_decrypt(double *scores, const client_model *model, const client_secret_key *sk,
                           const client_ciphertexts *outputs, uint32_t row_count, ckks_error *err) {
    const ckks_params *params = &model->params;
    ckks_status rc;

    if (memcmp(context_params(sk->context)->id, params->id, CKKS_PARAMETER_ID_BYTES) != 0)
        return ckks_error_set(err, CKKS_PARAMS_MISMATCH, "key",
                              "the key was made for other parameters than the model's");
    if ((rc = client_ciphertexts_check(outputs, params, model->outputs, model->output_count, err)) != CKKS_OK)
        return rc;
    if (memcmp(outputs->lineage, secret_key_lineage(sk->key), LINEAGE_BYTES) != 0)
        return ckks_error_set(err, CKKS_LINEAGE_MISMATCH, "lineage",
                              "the result belongs to another secret key");
    for (uint32_t i = 0; i < outputs->count; i++)
        if (outputs->items[i].signature.component_count > 3)
            return ckks_error_set(err, CKKS_UNSUPPORTED, "outputs", "this client is too old for the model");
    if ((rc = client_check_rows(model, row_count, err)) != CKKS_OK) return rc;
    const size_t count = client_output_ciphertexts(model);
    const double **decoded = malloc(count * sizeof *decoded);
    double *values = malloc(count * params_slot_count_max(params) * sizeof *values);
    if (!decoded || !values)
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory to decrypt");
    else if ((rc = decrypt_all(decoded, values, sk, outputs, err)) == CKKS_OK)
        rc = client_scores(scores, model, decoded, row_count, err);
    if (rc == CKKS_RESIDUE_RANGE && outputs->is_received) {
        rc = CKKS_UNTRUSTED_SERVER;
        if (err && err->code != CKKS_OK) err->code = rc;
    }
    free(decoded);
    wipe_free(values);
    return rc;
}

/* ---- files ---- */

ckks_status client_ciphertexts_export(uint8_t **image, size_t *size, const client_ciphertexts *list,
                                      const client_model *model, ckks_error *err) {
    ckks_status rc;
    ciphertext_view view = {.count = list->count, .sample_count = list->row_count};
    view.model = model->description->name;
    view.has_model_digest = model->has_digest;
    memcpy(view.model_digest, model->digest, sizeof view.model_digest);
    memcpy(view.parameter_id, model->params.id, sizeof view.parameter_id);
    memcpy(view.lineage, list->lineage, sizeof view.lineage);
    if (!(view.ciphertexts = calloc(list->count, sizeof *view.ciphertexts)))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory");
    for (uint32_t i = 0; i < list->count; i++) {
        packed_ciphertext *to = &view.ciphertexts[i];
        const client_ciphertext *from = &list->items[i];
        *to = (packed_ciphertext){from->signature, from->packed, from->packed_bytes, from->is_seeded, {0}};
        memcpy(to->seed, from->seed, sizeof to->seed);
    }
    rc = ciphertext_build(image, size, &model->params, &view, err);
    free(view.ciphertexts);
    return rc;
}

static ckks_status check_model(const client_model *model, const ciphertext_view *view, ckks_error *err) {
    if (view->has_model_digest && model->has_digest && memcmp(view->model_digest, model->digest, 32) != 0)
        return ckks_error_set(err, CKKS_SIGNATURE_MISMATCH, "model",
                              "the ciphertexts were made for another model (%s)", view->model);
    return CKKS_OK;
}

/* a request that was taken for a result, or the reverse, is called that: its signature alone tells little */
static ckks_status check_direction(const client_ciphertexts *list, const client_model *m, bool is_request,
                                   ckks_error *err) {
    ckks_error inner = {0};
    const ckks_status rc = client_ciphertexts_check(list, &m->params, is_request ? m->inputs : m->outputs,
                                                    is_request ? m->input_count : m->output_count, &inner);
    if (rc == CKKS_OK) return CKKS_OK;
    if (client_ciphertexts_check(list, &m->params, is_request ? m->outputs : m->inputs,
                                 is_request ? m->output_count : m->input_count, NULL) == CKKS_OK)
        return ckks_error_set(err, rc, "ciphertexts", "%s",
                              is_request ? "this is a result; a request is needed"
                                         : "this is a request; a result is needed");
    return ckks_error_set(err, rc, inner.field, "%s", inner.message);
}

ckks_status client_ciphertexts_import(client_ciphertexts *out, const client_model *model, bool is_request,
                                      const void *image, size_t size, ckks_error *err) {
    ckks_status rc;
    container_view file = {0};
    ciphertext_view view = {0};
    client_ciphertexts list = {0};
    *out = (client_ciphertexts){0};
    if ((rc = container_parse(&file, image, size, CONTAINER_CIPHERTEXT, err)) != CKKS_OK) goto out;
    if ((rc = ciphertext_from_container(&view, &file, &model->params, err)) != CKKS_OK) goto out;
    if ((rc = check_model(model, &view, err)) != CKKS_OK) goto out;
    if ((rc = list_allocate(&list, view.count, err)) != CKKS_OK) goto out;
    list.row_count = view.sample_count ? view.sample_count : 1;
    memcpy(list.lineage, view.lineage, sizeof list.lineage);
    for (uint32_t i = 0; i < view.count; i++) {
        const packed_ciphertext *from = &view.ciphertexts[i];
        client_ciphertext *to = &list.items[i];
        to->signature = from->signature;
        to->is_seeded = from->is_seeded;
        memcpy(to->seed, from->seed, sizeof to->seed);
        to->packed_bytes = from->packed_bytes;
        if (!(to->packed = malloc((size_t)from->packed_bytes + 1))) {
            rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a ciphertext");
            goto out;
        }
        memcpy(to->packed, from->packed, (size_t)from->packed_bytes);
    }
    if ((rc = check_direction(&list, model, is_request, err)) != CKKS_OK) goto out;
    *out = list, list = (client_ciphertexts){0};
out:
    client_ciphertexts_fini(&list);
    ciphertext_view_fini(&view);
    container_view_fini(&file);
    return rc;
}
