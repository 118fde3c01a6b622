/*
 * A model as the client trusts it: parsed from bytes that a server or a file gave, and refused unless
 * everything in it holds together, beginning with the security of its parameters.
 */
#include "client/lib/crypto.h"

#include "kernels/base/bytes.h"
#include "proto/packing.h"

#include <sodium.h>
#include <stdlib.h>

#define DESCRIPTION_ARENA_BYTES (16u << 20)
#define PACKAGE_ARENA_BYTES     (64u << 20)

ckks_status client_init(ckks_error *err) {
    if (sodium_init() < 0)
        return ckks_error_set(err, CKKS_INTERNAL, "",
                              "libsodium does not start: no randomness from the system?");
    return CKKS_OK;
}

void client_model_destroy(client_model *model) {
    if (!model) return;
    message_free((ProtobufCMessage *)model->description);
    free(model->inputs);
    free(model->outputs);
    free(model->keys);
    free(model);
}

static ckks_status read_signatures(value_signature **out, uint32_t *count, const ckks_params *params,
                                   Ckksd__V1__Signature *const *messages, size_t message_count,
                                   const char *field, ckks_error *err) {
    ckks_status rc;
    if (message_count == 0 || message_count > CLIENT_INPUTS_MAX)
        return ckks_error_set(err, CKKS_UNTRUSTED_SERVER, field, "%zu ciphertexts", message_count);
    if (!(*out = calloc(message_count, sizeof **out)))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, field, "no memory");
    for (size_t i = 0; i < message_count; i++)
        if ((rc = signature_from_message(&(*out)[i], params, messages[i], err)) != CKKS_OK) return rc;
    *count = (uint32_t)message_count;
    return CKKS_OK;
}

/* Numbers of a raw row: the columns, or the product of the shape, or (with neither) the elements themselves.
 */
static ckks_status count_raw(client_model *m, ckks_error *err) {
    const Ckksd__V1__ModelDescription *d = m->description;
    uint64_t count = 1;
    if (d->n_columns) {
        count = d->n_columns;
    } else if (d->n_input_shape) {
        for (size_t i = 0; i < d->n_input_shape; i++)
            if (!size_multiply(&count, count, d->input_shape[i]) || count > (1u << 24))
                return ckks_error_set(err, CKKS_UNTRUSTED_SERVER, "input_shape", "too many elements");
    } else {
        count = m->element_count;
    }
    if (!count || count > (1u << 24))
        return ckks_error_set(err, CKKS_UNTRUSTED_SERVER, "input_shape", "%llu elements",
                              (unsigned long long)count);
    m->raw_count = (uint32_t)count;
    return CKKS_OK;
}

static ckks_status check_digest(client_model *m, const uint8_t *digest, const uint8_t *pinned,
                                ckks_error *err) {
    const Ckksd__V1__ModelDescription *d = m->description;
    char wanted[65], got[65] = "none";
    m->has_digest = digest || (d->has_digest && d->digest.len == sizeof m->digest);
    if (m->has_digest) memcpy(m->digest, digest ? digest : d->digest.data, sizeof m->digest);
    if (!pinned) return CKKS_OK;
    if (m->has_digest && !memcmp(m->digest, pinned, sizeof m->digest)) return CKKS_OK;
    if (m->has_digest) hex_encode(got, m->digest, sizeof m->digest);
    return ckks_error_set(err, CKKS_UNTRUSTED_SERVER, "digest", "the model is %s, pinned is %s", got,
                          hex_encode(wanted, pinned, sizeof m->digest));
}

static ckks_status fill(client_model *m, ckks_error *err) {
    const Ckksd__V1__ModelDescription *d = m->description;
    ckks_status rc;
    if ((rc = params_from_message(&m->params, d->parameters, err)) != CKKS_OK) return rc;
    if ((rc = read_signatures(&m->inputs, &m->input_count, &m->params, d->inputs, d->n_inputs, "inputs",
                              err)) != CKKS_OK)
        return rc;
    if ((rc = read_signatures(&m->outputs, &m->output_count, &m->params, d->outputs, d->n_outputs, "outputs",
                              err)) != CKKS_OK)
        return rc;
    if ((rc = key_requirements_from_messages(&m->keys, &m->key_count, &m->params, d->keys, d->n_keys, err)) !=
        CKKS_OK)
        return rc;
    if (!packing_key_set_bytes(&m->key_bytes, &m->params, m->keys, m->key_count))
        return ckks_error_set(err, CKKS_UNTRUSTED_SERVER, "keys", "their size overflows");
    m->element_count = d->input_layout->element_count;
    m->score_count = d->output_layout->element_count;
    return count_raw(m, err);
}

ckks_status client_model_create(client_model **out, const void *description, size_t size,
                                const uint8_t *digest, const client_model_options *options, ckks_error *err) {
    static const client_model_options defaults = {0};
    ckks_status rc;
    ProtobufCMessage *message = NULL;
    client_model *m = NULL;

    *out = NULL;
    if (!options) options = &defaults;
    const description_limits limits = {
        .key_count_max = options->key_count_max ? options->key_count_max : 1024,
        .key_bytes_max = options->key_bytes_max ? options->key_bytes_max : UINT64_C(4) << 30,
        .allow_insecure = options->allow_insecure,
    };
    if ((rc = client_init(err)) != CKKS_OK) goto out;
    rc = message_unpack(&message, &ckksd__v1__model_description__descriptor, description, size,
                        DESCRIPTION_ARENA_BYTES, "model description", err);
    if (rc != CKKS_OK) goto out;
    if (!(m = calloc(1, sizeof *m))) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a model");
        goto out;
    }
    m->description = (Ckksd__V1__ModelDescription *)message, message = NULL;
    if ((rc = description_check(m->description, &limits, err)) != CKKS_OK) goto out;
    if ((rc = fill(m, err)) != CKKS_OK) goto out;
    if ((rc = check_digest(m, digest, options->pinned_digest, err)) != CKKS_OK) goto out;
    *out = m, m = NULL;
out:
    message_free(message);
    client_model_destroy(m);
    return rc;
}

/* The description inside a package, serialised again. */
static ckks_status package_description(uint8_t **out, size_t *size, const container_view *view,
                                       ckks_error *err) {
    ProtobufCMessage *message = NULL;
    ckks_status rc = message_unpack(&message, &ckksd__v1__package_manifest__descriptor, view->manifest,
                                    view->manifest_bytes, PACKAGE_ARENA_BYTES, "package manifest", err);
    if (rc != CKKS_OK) return rc;
    const Ckksd__V1__ModelDescription *d = ((Ckksd__V1__PackageManifest *)message)->description;
    if (!d) {
        rc = ckks_error_set(err, CKKS_MALFORMED, "description", "the package has none");
        goto out;
    }
    *size = ckksd__v1__model_description__get_packed_size(d);
    if (!(*out = malloc(*size ? *size : 1))) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "description", "no memory");
        goto out;
    }
    ckksd__v1__model_description__pack(d, *out);
out:
    message_free(message);
    return rc;
}

ckks_status client_model_from_file(client_model **out, const void *image, size_t size,
                                   const client_model_options *options, ckks_error *err) {
    ckks_status rc;
    container_view view = {0};
    uint8_t *description = NULL;
    size_t description_size = 0;

    *out = NULL;
    if ((rc = container_parse(&view, image, size, 0, err)) != CKKS_OK) goto out;
    if (view.kind == CONTAINER_METADATA) {
        rc = client_model_create(out, view.manifest, view.manifest_bytes, NULL, options, err);
    } else if (view.kind == CONTAINER_PACKAGE) {
        if ((rc = package_description(&description, &description_size, &view, err)) != CKKS_OK) goto out;
        rc = client_model_create(out, description, description_size, view.digest, options, err);
    } else {
        rc = ckks_error_set(err, CKKS_INVALID_ARGUMENT, "",
                            "is a %s; saved metadata or a model package is needed",
                            container_kind_name(view.kind));
    }
out:
    free(description);
    container_view_fini(&view);
    return rc;
}
