/*
 * The public face: every exported function is a few lines over the internal halves. Errors are translated
 * here and nowhere else, so that internal codes may grow without touching the ABI.
 */
#include "client/include/ckksclient.h"

#include "client/lib/exit_class.h"
#include "client/lib/rpc.h"

#include <sodium.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct ckksc_ciphertext {
    client_ciphertexts list;
};

/* Opaque public types are the internal ones under another name. */
static client_model *model_in(const ckksc_model *m) {
    union {
        const ckksc_model *out;
        client_model *in;
    } u = {.out = m};
    return u.in;
}
static client_secret_key *secret_in(const ckksc_secret_key *k) {
    union {
        const ckksc_secret_key *out;
        client_secret_key *in;
    } u = {.out = k};
    return u.in;
}
static client_public_key *public_in(const ckksc_public_key *k) {
    union {
        const ckksc_public_key *out;
        client_public_key *in;
    } u = {.out = k};
    return u.in;
}
static client_key_set *set_in(const ckksc_key_set *k) {
    union {
        const ckksc_key_set *out;
        client_key_set *in;
    } u = {.out = k};
    return u.in;
}
static rpc_connection *connection_in(ckksc_connection *c) {
    union {
        ckksc_connection *out;
        rpc_connection *in;
    } u = {.out = c};
    return u.in;
}

/*
 * Structures that callers pass have the size of the header that they were compiled with: an earlier one lacks
 * members at the end, which read as zeros and are not written; a later one has more, which this library does
 * not know. What is smaller than the first published form was never initialised.
 */
#define FIRST_ERROR_BYTES           (offsetof(ckksc_error, is_retryable) + sizeof(uint32_t))
#define FIRST_MODEL_OPTIONS_BYTES   (offsetof(ckksc_model_options, key_bytes_max) + sizeof(uint64_t))
#define FIRST_MODEL_INFO_BYTES      (offsetof(ckksc_model_info, rows_per_request) + sizeof(uint32_t))
#define FIRST_CONNECT_OPTIONS_BYTES (offsetof(ckksc_connect_options, reply_bytes_max) + sizeof(uint64_t))

/* to[size], ours, from a caller's structure of from_bytes. False: not initialised. */
static bool take_struct(void *to, size_t size, const void *from, uint32_t from_bytes, size_t first_bytes) {
    memset(to, 0, size);
    if (from_bytes < first_bytes) return false;
    memcpy(to, from, from_bytes < size ? from_bytes : size);
    return true;
}

#define MISUSE "arguments" /* stage of an error that is the calling program's */

/* `status` of the internal error, translated; fills as much of *error as the caller's version of it has. */
static ckksc_status finish(ckksc_error *error, ckks_status rc, const ckks_error *inner) {
    ckks_error cause = *inner;
    if (cause.code == CKKS_OK) cause.code = rc;
    const bool is_misuse = rc != CKKS_OK && !strcmp(cause.stage, MISUSE);
    const ckksc_status status = rc == CKKS_OK ? CKKSC_OK
                                : is_misuse   ? CKKSC_USAGE
                                              : (ckksc_status)client_exit_class(&cause);
    if (!error || error->struct_bytes < FIRST_ERROR_BYTES) return status;
    const uint32_t struct_bytes = error->struct_bytes;
    *error = (ckksc_error){.struct_bytes = struct_bytes, .status = status};
    if (rc == CKKS_OK) return status;
    snprintf(error->code, sizeof error->code, "%s", ckks_status_name(rc));
    snprintf(error->reason, sizeof error->reason, "%s", ckks_status_reason(rc));
    snprintf(error->field, sizeof error->field, "%s", cause.field);
    snprintf(error->message, sizeof error->message, "%s",
             cause.message[0] ? cause.message : ckks_status_text(rc));
    error->is_retryable = ckks_status_is_retryable(rc);
    return status;
}

static ckks_status missing(ckks_error *inner, const char *argument) {
    const ckks_status rc = ckks_error_set(inner, CKKS_INVALID_ARGUMENT, argument,
                                          "is NULL, or its struct_bytes was not initialised");
    ckks_error_stage(inner, MISUSE);
    return rc;
}

/* what a caller frees after a failure is NULL */
static void nothing_yet(uint8_t **image, size_t *bytes) {
    if (image) *image = NULL;
    if (bytes) *bytes = 0;
}

const char *ckksc_version(void) {
    return CKKSD_VERSION;
}

void ckksc_free(void *buffer, size_t bytes) {
    if (buffer) sodium_memzero(buffer, bytes);
    free(buffer);
}

/* ---- models ---- */

/* options that cannot be read are refused: a pinned digest must not be overlooked */
static ckks_status options_in(client_model_options *out, const ckksc_model_options *options,
                              ckks_error *inner) {
    ckksc_model_options o = CKKSC_MODEL_OPTIONS_INIT;
    *out = (client_model_options){0};
    if (options && !take_struct(&o, sizeof o, options, options->struct_bytes, FIRST_MODEL_OPTIONS_BYTES))
        return missing(inner, "options.struct_bytes");
    out->allow_insecure = o.allow_insecure != 0;
    out->pinned_digest = o.pinned_digest;
    out->key_count_max = o.key_count_max;
    out->key_bytes_max = o.key_bytes_max;
    return CKKS_OK;
}

ckksc_status ckksc_model_create(ckksc_model **out, const void *image, size_t bytes,
                                const ckksc_model_options *options, ckksc_error *error) {
    ckks_error inner = {0};
    client_model *m = NULL;
    client_model_options o;
    ckks_status rc = out && image ? options_in(&o, options, &inner) : missing(&inner, "out or image");
    if (rc == CKKS_OK) rc = client_model_from_file(&m, image, bytes, &o, &inner);
    if (out) *out = (ckksc_model *)m;
    return finish(error, rc, &inner);
}

ckksc_status ckksc_model_fetch(ckksc_model **out, ckksc_connection *connection, const char *name,
                               const char *version, const ckksc_model_options *options, ckksc_error *error) {
    ckks_error inner = {0};
    client_model *m = NULL;
    client_model_options o;
    ckks_status rc = out && connection && name ? options_in(&o, options, &inner)
                                               : missing(&inner, "out, connection or name");
    if (rc == CKKS_OK) rc = rpc_model(&m, connection_in(connection), name, version, &o, &inner);
    if (out) *out = (ckksc_model *)m;
    return finish(error, rc, &inner);
}

void ckksc_model_destroy(ckksc_model *model) {
    client_model_destroy(model_in(model));
}

ckksc_status ckksc_model_describe(ckksc_model_info *out, const ckksc_model *model, ckksc_error *error) {
    ckks_error inner = {0};
    if (!out || out->struct_bytes < FIRST_MODEL_INFO_BYTES || !model)
        return finish(error, missing(&inner, "out or model"), &inner);
    const client_model *m = model_in(model);
    const uint32_t struct_bytes = out->struct_bytes;
    ckksc_model_info info = {
        .struct_bytes = struct_bytes,
        .input_count = m->raw_count,
        .score_count = m->score_count,
        .label_count = client_model_label_count(m),
        .log_n = m->params.log_n,
        .security_bits = params_security_bits(&m->params),
        .key_count = m->key_count,
        .key_bytes = m->key_bytes,
        .promised_error = m->description->has_promised_error ? m->description->promised_error : 0,
        .promised_step = client_promised_step(m),
        .name = m->description->name,
        .version = m->description->version ? m->description->version : "",
        .rows_per_request = client_rows_per_request(m),
    };
    memcpy(info.parameter_id, m->params.id, sizeof info.parameter_id);
    memcpy(info.digest, m->digest, sizeof info.digest);
    memcpy(out, &info, struct_bytes < sizeof info ? struct_bytes : sizeof info);
    return finish(error, CKKS_OK, &inner);
}

const char *ckksc_model_column(const ckksc_model *model, uint32_t index) {
    const Ckksd__V1__ModelDescription *d = model ? model_in(model)->description : NULL;
    return d && index < d->n_columns ? d->columns[index]->name : NULL;
}

const char *ckksc_model_category(const ckksc_model *model, uint32_t index, uint32_t category) {
    const Ckksd__V1__ModelDescription *d = model ? model_in(model)->description : NULL;
    return d && index < d->n_columns && category < d->columns[index]->n_categories
               ? d->columns[index]->categories[category]
               : NULL;
}

/* ---- keys ---- */

ckksc_status ckksc_secret_key_generate(ckksc_secret_key **out, const ckksc_model *model, ckksc_error *error) {
    ckks_error inner = {0};
    client_secret_key *k = NULL;
    const ckks_status rc = out && model ? client_secret_key_generate(&k, &model_in(model)->params, &inner)
                                        : missing(&inner, "out or model");
    if (out) *out = (ckksc_secret_key *)k;
    return finish(error, rc, &inner);
}

ckksc_status ckksc_secret_key_export(uint8_t **image, size_t *bytes, const ckksc_secret_key *key,
                                     const char *passphrase, ckksc_error *error) {
    ckks_error inner = {0};
    nothing_yet(image, bytes);
    const client_passphrase p = {passphrase, passphrase ? strlen(passphrase) : 0};
    const ckks_status rc = image && bytes && key ? client_secret_key_export(image, bytes, secret_in(key), &p,
                                                                            (uint64_t)time(NULL), &inner)
                                                 : missing(&inner, "image, bytes or key");
    return finish(error, rc, &inner);
}

ckksc_status ckksc_secret_key_import(ckksc_secret_key **out, const void *image, size_t bytes,
                                     const char *passphrase, uint32_t allow_insecure, ckksc_error *error) {
    ckks_error inner = {0};
    client_secret_key *k = NULL;
    const client_passphrase p = {passphrase, passphrase ? strlen(passphrase) : 0};
    const ckks_status rc = out && image
                               ? client_secret_key_import(&k, image, bytes, &p, allow_insecure != 0, &inner)
                               : missing(&inner, "out or image");
    if (out) *out = (ckksc_secret_key *)k;
    return finish(error, rc, &inner);
}

void ckksc_secret_key_destroy(ckksc_secret_key *key) {
    client_secret_key_destroy(secret_in(key));
}

ckksc_status ckksc_public_key_export(uint8_t **image, size_t *bytes, const ckksc_secret_key *key,
                                     ckksc_error *error) {
    ckks_error inner = {0};
    nothing_yet(image, bytes);
    const ckks_status rc = image && bytes && key
                               ? client_public_key_export(image, bytes, secret_in(key), &inner)
                               : missing(&inner, "image, bytes or key");
    return finish(error, rc, &inner);
}

ckksc_status ckksc_public_key_import(ckksc_public_key **out, const void *image, size_t bytes,
                                     uint32_t allow_insecure, ckksc_error *error) {
    ckks_error inner = {0};
    client_public_key *k = NULL;
    const ckks_status rc = out && image
                               ? client_public_key_import(&k, image, bytes, allow_insecure != 0, &inner)
                               : missing(&inner, "out or image");
    if (out) *out = (ckksc_public_key *)k;
    return finish(error, rc, &inner);
}

void ckksc_public_key_destroy(ckksc_public_key *key) {
    client_public_key_destroy(public_in(key));
}

ckksc_status ckksc_key_set_generate(ckksc_key_set **out, const ckksc_secret_key *key,
                                    ckksc_model *const *models, uint32_t model_count, ckksc_error *error) {
    ckks_error inner = {0};
    ckks_status rc = CKKS_OK;
    client_key_set *set = NULL;
    key_requirement *needs = NULL;
    uint32_t count = 0;
    if (out) *out = NULL;
    if (!out || !key || !models || !model_count)
        return finish(error, missing(&inner, "out, key or models"), &inner);
    const ckks_params *params = context_params(secret_in(key)->context);
    for (uint32_t i = 0; i < model_count && rc == CKKS_OK; i++) {
        const client_model *m = model_in(models[i]);
        if (!m)
            rc = missing(&inner, "models");
        else if (memcmp(m->params.id, params->id, CKKS_PARAMETER_ID_BYTES) != 0)
            rc = ckks_error_set(&inner, CKKS_PARAMS_MISMATCH, m->description->name,
                                "the secret key was made for other parameters");
        else
            rc = client_requirements_add(&needs, &count, m->keys, m->key_count, &inner);
    }
    if (rc == CKKS_OK) rc = client_key_set_generate(&set, secret_in(key), needs, count, NULL, NULL, &inner);
    free(needs);
    *out = (ckksc_key_set *)set;
    return finish(error, rc, &inner);
}

ckksc_status ckksc_key_set_export(uint8_t **image, size_t *bytes, const ckksc_key_set *keys,
                                  ckksc_error *error) {
    ckks_error inner = {0};
    nothing_yet(image, bytes);
    const ckks_status rc = image && bytes && keys ? client_key_set_export(image, bytes, set_in(keys), &inner)
                                                  : missing(&inner, "image, bytes or keys");
    return finish(error, rc, &inner);
}

ckksc_status ckksc_key_set_import(ckksc_key_set **out, const void *image, size_t bytes,
                                  uint32_t allow_insecure, ckksc_error *error) {
    ckks_error inner = {0};
    client_key_set *set = NULL;
    const ckks_status rc = out && image
                               ? client_key_set_import(&set, image, bytes, allow_insecure != 0, &inner)
                               : missing(&inner, "out or image");
    if (out) *out = (ckksc_key_set *)set;
    return finish(error, rc, &inner);
}

const uint8_t *ckksc_key_set_id(const ckksc_key_set *keys) {
    return keys ? set_in(keys)->id : NULL;
}
uint64_t ckksc_key_set_bytes(const ckksc_key_set *keys) {
    return keys ? set_in(keys)->payload_bytes : 0;
}
void ckksc_key_set_destroy(ckksc_key_set *keys) {
    client_key_set_destroy(set_in(keys));
}

/* ---- ciphertexts ---- */

static ckks_status ciphertext_allocate(ckksc_ciphertext **out, ckks_error *inner) {
    *out = calloc(1, sizeof **out);
    return *out ? CKKS_OK : ckks_error_set(inner, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a ciphertext");
}

void ckksc_ciphertext_destroy(ckksc_ciphertext *ciphertext) {
    if (ciphertext) client_ciphertexts_fini(&ciphertext->list);
    free(ciphertext);
}

/* gives *c away on success, destroys it otherwise */
static ckksc_status deliver(ckksc_ciphertext **out, ckksc_ciphertext *c, ckksc_error *error, ckks_status rc,
                            const ckks_error *inner) {
    if (rc == CKKS_OK) {
        *out = c;
    } else {
        if (out) *out = NULL;
        ckksc_ciphertext_destroy(c);
    }
    return finish(error, rc, inner);
}

static ckks_status preprocess_rows(double *elements, const client_model *m, const double *rows,
                                   uint32_t row_count, ckks_error *inner) {
    for (uint32_t k = 0; k < row_count; k++) {
        ckks_error local = {0};
        const ckks_status rc = client_preprocess(elements + (size_t)k * m->element_count, m,
                                                 rows + (size_t)k * m->raw_count, &local);
        if (rc == CKKS_OK) continue;
        if (row_count == 1) return ckks_error_set(inner, rc, local.field, "%s", local.message);
        return ckks_error_set(inner, rc, local.field, "row %u: %s", k + 1, local.message);
    }
    return CKKS_OK;
}

ckksc_status ckksc_encrypt_rows(ckksc_ciphertext **out, const ckksc_model *model, const ckksc_secret_key *key,
                                const ckksc_public_key *public_key, const double *rows, uint32_t row_count,
                                ckksc_error *error) {
    ckks_error inner = {0};
    ckksc_ciphertext *c = NULL;
    double *elements = NULL;
    size_t bytes = 0;
    ckks_status rc;
    if (!out || !model || !rows || (!key && !public_key)) {
        rc = missing(&inner, "out, model, key or rows");
        goto out;
    }
    const client_model *m = model_in(model);
    if ((rc = client_check_rows(m, row_count, &inner)) != CKKS_OK) goto out;
    if ((rc = ciphertext_allocate(&c, &inner)) != CKKS_OK) goto out;
    bytes = (size_t)row_count * m->element_count * sizeof *elements;
    if (!(elements = malloc(bytes))) {
        rc = ckks_error_set(&inner, CKKS_RESOURCE_EXHAUSTED, "", "no memory for rows");
        goto out;
    }
    if ((rc = preprocess_rows(elements, m, rows, row_count, &inner)) == CKKS_OK)
        rc = client_encrypt(&c->list, m, key ? secret_in(key) : NULL, key ? NULL : public_in(public_key),
                            elements, row_count, &inner);
    sodium_memzero(elements, bytes);
out:
    free(elements);
    return deliver(out, c, error, rc, &inner);
}

ckksc_status ckksc_encrypt(ckksc_ciphertext **out, const ckksc_model *model, const ckksc_secret_key *key,
                           const ckksc_public_key *public_key, const double *row, ckksc_error *error) {
    return ckksc_encrypt_rows(out, model, key, public_key, row, 1, error);
}

ckksc_status ckksc_decrypt_rows(double *scores, const ckksc_model *model, const ckksc_secret_key *key,
                                const ckksc_ciphertext *result, uint32_t row_count, ckksc_error *error) {
    ckks_error inner = {0};
    if (!scores || !model || !key || !result)
        return finish(error, missing(&inner, "scores, model, key or result"), &inner);
    const client_model *m = model_in(model);
    const ckks_status rc = client_decrypt(scores, m, secret_in(key), &result->list, row_count, &inner);
    const ckksc_status status = finish(error, rc, &inner);
    if (status != CKKSC_OK) return status;
    for (uint32_t k = 0; k < row_count; k++) {
        if (client_scores_are_plausible(m, scores + (size_t)k * m->score_count, m->score_count)) continue;
        ckks_error_set(&inner, CKKS_OUT_OF_RANGE, "scores",
                       "outside of what the model produces: wrong key, or a faulty server");
        finish(error, CKKS_OUT_OF_RANGE, &inner);
        if (error && error->struct_bytes >= sizeof *error) error->status = CKKSC_IMPLAUSIBLE;
        return CKKSC_IMPLAUSIBLE;
    }
    return CKKSC_OK;
}

ckksc_status ckksc_decrypt(double *scores, const ckksc_model *model, const ckksc_secret_key *key,
                           const ckksc_ciphertext *result, ckksc_error *error) {
    return ckksc_decrypt_rows(scores, model, key, result, 1, error);
}

void ckksc_round(double *scores, const ckksc_model *model) {
    const client_model *m = model_in(model);
    client_round(scores, m->score_count, client_promised_step(m));
}

ckksc_status ckksc_ciphertext_export(uint8_t **image, size_t *bytes, const ckksc_model *model,
                                     const ckksc_ciphertext *ciphertext, ckksc_error *error) {
    ckks_error inner = {0};
    nothing_yet(image, bytes);
    const ckks_status rc =
        image && bytes && model && ciphertext
            ? client_ciphertexts_export(image, bytes, &ciphertext->list, model_in(model), &inner)
            : missing(&inner, "image, bytes, model or ciphertext");
    return finish(error, rc, &inner);
}

ckksc_status ckksc_ciphertext_import(ckksc_ciphertext **out, const ckksc_model *model, uint32_t is_result,
                                     const void *image, size_t bytes, ckksc_error *error) {
    ckks_error inner = {0};
    ckksc_ciphertext *c = NULL;
    ckks_status rc =
        out && model && image ? ciphertext_allocate(&c, &inner) : missing(&inner, "out, model or image");
    if (rc == CKKS_OK)
        rc = client_ciphertexts_import(&c->list, model_in(model), !is_result, image, bytes, &inner);
    return deliver(out, c, error, rc, &inner);
}

ckksc_status ckksc_classify(double *values, uint32_t value_capacity, uint32_t *value_count, char *label,
                            size_t label_capacity, const ckksc_model *model, const double *scores,
                            ckksc_error *error) {
    ckks_error inner = {0};
    client_prediction p;
    if (!values || !value_count || !model || !scores)
        return finish(error, missing(&inner, "values, value_count, model or scores"), &inner);
    ckks_status rc = client_postprocess(&p, model_in(model), scores, &inner);
    if (rc == CKKS_OK && p.value_count > value_capacity)
        rc = ckks_error_set(&inner, CKKS_INVALID_ARGUMENT, "value_capacity", "%u values do not fit",
                            p.value_count);
    if (rc == CKKS_OK) {
        *value_count = p.value_count;
        memcpy(values, p.values, p.value_count * sizeof *values);
        if (label && label_capacity) snprintf(label, label_capacity, "%s", p.has_label ? p.label : "");
    }
    client_prediction_fini(&p);
    return finish(error, rc, &inner);
}

/* ---- a server ---- */

ckksc_status ckksc_connect(ckksc_connection **out, const ckksc_connect_options *options, ckksc_error *error) {
    ckks_error inner = {0};
    rpc_connection *c = NULL;
    ckksc_connect_options o;
    ckks_status rc;
    if (!out || !options ||
        !take_struct(&o, sizeof o, options, options->struct_bytes, FIRST_CONNECT_OPTIONS_BYTES)) {
        rc = missing(&inner, "out or options");
    } else {
        const rpc_config config = {o.address,    o.token,           o.ca_file, o.connect_ms,
                                   o.timeout_ms, o.reply_bytes_max, 0,         o.spin_us};
        rc = rpc_connect(&c, &config, &inner);
    }
    if (out) *out = (ckksc_connection *)c;
    return finish(error, rc, &inner);
}

void ckksc_disconnect(ckksc_connection *connection) {
    rpc_close(connection_in(connection));
}

ckksc_status ckksc_register(ckksc_connection *connection, const ckksc_key_set *keys, ckksc_error *error) {
    ckks_error inner = {0};
    bool was_there;
    const ckks_status rc = connection && keys ? rpc_register(connection_in(connection), set_in(keys),
                                                             &was_there, NULL, NULL, &inner)
                                              : missing(&inner, "connection or keys");
    return finish(error, rc, &inner);
}

ckksc_status ckksc_evaluate(ckksc_ciphertext **result, ckksc_connection *connection, const ckksc_model *model,
                            const uint8_t key_set_id[32], const ckksc_ciphertext *request,
                            ckksc_error *error) {
    ckks_error inner = {0};
    ckksc_ciphertext *c = NULL;
    ckks_status rc = result && connection && model && request && (key_set_id || !model_in(model)->key_count)
                         ? ciphertext_allocate(&c, &inner)
                         : missing(&inner, "result, connection, model, key_set_id or request");
    if (rc == CKKS_OK)
        rc = rpc_infer(&c->list, connection_in(connection), model_in(model), key_set_id, &request->list, 0,
                       NULL, &inner);
    return deliver(result, c, error, rc, &inner);
}

ckksc_status ckksc_infer_rows(double *scores, ckksc_connection *connection, const ckksc_model *model,
                              const ckksc_secret_key *key, const uint8_t key_set_id[32], const double *rows,
                              uint32_t row_count, ckksc_error *error) {
    ckksc_ciphertext *request = NULL, *result = NULL;
    ckksc_status status = ckksc_encrypt_rows(&request, model, key, NULL, rows, row_count, error);
    if (status == CKKSC_OK) status = ckksc_evaluate(&result, connection, model, key_set_id, request, error);
    if (status == CKKSC_OK) status = ckksc_decrypt_rows(scores, model, key, result, row_count, error);
    if (status == CKKSC_OK || status == CKKSC_IMPLAUSIBLE)
        for (uint32_t k = 0; k < row_count; k++)
            ckksc_round(scores + (size_t)k * model_in(model)->score_count, model);
    ckksc_ciphertext_destroy(request);
    ckksc_ciphertext_destroy(result);
    return status;
}

ckksc_status ckksc_infer(double *scores, ckksc_connection *connection, const ckksc_model *model,
                         const ckksc_secret_key *key, const uint8_t key_set_id[32], const double *row,
                         ckksc_error *error) {
    return ckksc_infer_rows(scores, connection, model, key, key_set_id, row, 1, error);
}
