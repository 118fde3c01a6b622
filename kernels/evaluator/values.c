/*
 * What every operation does before it launches anything: check shapes by name, take memory, build arguments.
 */
#include "kernels/base/bytes.h"
#include "kernels/evaluator/evaluator_internal.h"

#include <math.h>
#include <string.h>

static ckks_status mismatch(const char *field, uint64_t expected, uint64_t actual, ckks_error *err) {
    return ckks_error_set(err, CKKS_SIGNATURE_MISMATCH, field, "expected %llu, got %llu",
                          (unsigned long long)expected, (unsigned long long)actual);
}

ckks_status value_check(const evaluator *ev, const ckks_value *v, value_kind kind, uint32_t component_count,
                        ckks_error *err) {
    const value_signature *s = &v->signature;
    const ckks_params *params = evaluator_params(ev);
    const uint32_t id = device_id(device_stream_device(ev->stream));
    if (s->kind != (uint32_t)kind) return mismatch("kind", kind, s->kind, err);
    if (s->schema_version != VALUE_SCHEMA_VERSION)
        return mismatch("schema_version", VALUE_SCHEMA_VERSION, s->schema_version, err);
    if (memcmp(s->parameter_id, params->id, sizeof params->id) != 0)
        return ckks_error_set(err, CKKS_SIGNATURE_MISMATCH, "parameter_id", "other parameters");
    if (component_count && s->component_count != component_count)
        return mismatch("component_count", component_count, s->component_count, err);
    if (!s->component_count || s->component_count > 3)
        return mismatch("component_count", 2, s->component_count, err);
    if (!s->batch_count) return mismatch("batch_count", 1, 0, err);
    if (!s->limb_count || s->limb_count > params->q_count)
        return mismatch("limb_count", params->q_count, s->limb_count, err);
    if (s->domain != VALUE_EVALUATION) return mismatch("domain", VALUE_EVALUATION, s->domain, err);
    if (s->basis != VALUE_BASIS_Q) return mismatch("basis", VALUE_BASIS_Q, s->basis, err);
    const uint64_t bytes = (uint64_t)s->component_count * s->limb_count * params_n(params) * sizeof(uint64_t);
    if (s->bytes % bytes || s->bytes / bytes != s->batch_count)
        return mismatch("bytes", bytes * s->batch_count, s->bytes, err);
    if (s->device != id) return mismatch("device", id, s->device, err);
    if (!v->words) return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "words", "a value without words");
    return CKKS_OK;
}

ckks_status value_check_pair(const ckks_value *a, const ckks_value *b, bool with_scale, ckks_error *err) {
    const value_signature *x = &a->signature, *y = &b->signature;
    if (x->batch_count != y->batch_count) return mismatch("batch_count", x->batch_count, y->batch_count, err);
    if (x->limb_count != y->limb_count) return mismatch("limb_count", x->limb_count, y->limb_count, err);
    if (with_scale && !scale_equal(x->scale, y->scale))
        return ckks_error_set(err, CKKS_SIGNATURE_MISMATCH, "scale", "%a and %a differ", x->scale, y->scale);
    return CKKS_OK;
}

ckks_status key_check(const evaluator *ev, uint32_t key, const char *field, ckks_error *err) {
    if (ev->keys && key < ev->key_count) return CKKS_OK;
    return ckks_error_set(err, CKKS_KEY_MISSING, field, "key %u; the key table has %u entries", key,
                          ev->keys ? ev->key_count : 0);
}

void evaluator_place(evaluator *ev, const ckks_value *places, uint32_t count) {
    ev->places = places;
    ev->place_count = count;
}

static bool has_shape(const value_signature *s, const value_signature *t) {
    return s->kind == t->kind && s->component_count == t->component_count &&
           s->batch_count == t->batch_count && s->limb_count == t->limb_count && s->basis == t->basis &&
           s->bytes == t->bytes;
}

uint64_t *place_take(evaluator *ev, const value_signature *signature, uint32_t count) {
    const ckks_value *places = ev->places;
    if (!count || count > ev->place_count) return NULL;
    for (uint32_t i = 0; i < count; i++)
        if (!has_shape(&places[i].signature, signature) ||
            places[i].words != places[0].words + i * (signature->bytes / sizeof(uint64_t)))
            return NULL;
    evaluator_place(ev, places + count, ev->place_count - count);
    return places[0].words;
}

ckks_status value_acquire(evaluator *ev, ckks_value *out, uint32_t component_count, uint32_t batch_count,
                          uint32_t level, double scale, ckks_error *err) {
    void *words = NULL;
    ckks_value value;
    memset(out, 0, sizeof *out);
    if (!isnormal(scale) || scale <= 0)
        return ckks_error_set(err, CKKS_OUT_OF_RANGE, "scale", "the result's scale would be %a", scale);
    value_signature_ciphertext(&value.signature, evaluator_params(ev), component_count, level, scale,
                               device_id(device_stream_device(ev->stream)));
    value.signature.batch_count = batch_count;
    if (!size_multiply(&value.signature.bytes, value.signature.bytes, batch_count))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "batch_count", "%u entries", batch_count);
    value.words = place_take(ev, &value.signature, 1);
    if (!value.words) {
        const ckks_status rc = workspace_acquire(ev->memory, &words, value.signature.bytes, err);
        if (rc != CKKS_OK) return rc;
        value.words = words;
    }
    *out = value;
    return CKKS_OK;
}

ckks_status evaluator_release(evaluator *ev, ckks_value *value) {
    workspace_release(ev->memory, value->words);
    memset(value, 0, sizeof *value);
    return CKKS_OK;
}

ckks_status scratch_acquire(evaluator *ev, uint64_t **out, uint64_t words, ckks_error *err) {
    void *memory = NULL;
    uint64_t bytes = 0;
    *out = NULL;
    if (!size_multiply(&bytes, words, sizeof(uint64_t)))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "workspace", "%llu words of scratch",
                              (unsigned long long)words);
    const ckks_status rc = workspace_acquire(ev->memory, &memory, bytes, err);
    *out = memory;
    return rc;
}

void scratch_release(evaluator *ev, uint64_t **words) {
    workspace_release(ev->memory, *words);
    *words = NULL;
}

ckks_status launch_unary(evaluator *ev, kernel_id kernel, kernel_poly out, kernel_poly a, ckks_error *err) {
    const kernel_unary_args args = {ev->tables, out, a};
    return device_launch(ev->stream, kernel, &args, err);
}

ckks_status launch_binary(evaluator *ev, kernel_id kernel, kernel_poly out, kernel_poly a, kernel_poly b,
                          ckks_error *err) {
    const kernel_binary_args args = {ev->tables, out, a, b};
    return device_launch(ev->stream, kernel, &args, err);
}

ckks_status launch_constant(evaluator *ev, kernel_id kernel, kernel_poly out, kernel_poly a, double constant,
                            double scale, uint32_t every, ckks_error *err) {
    kernel_scalars_args args = {.tables = ev->tables, .out = out, .a = a, .every = every};
    const ckks_status rc = encoder_constant(args.scalar, evaluator_params(ev), constant, scale,
                                            out.basis.q_count - 1, false, err);
    return rc != CKKS_OK ? rc : device_launch(ev->stream, kernel, &args, err);
}

ckks_status descriptors_upload(void **out, device *dev, const void *list, uint64_t bytes, ckks_error *err) {
    ckks_status rc;
    void *memory = NULL;
    device_stream *stream = NULL;
    *out = NULL;
    if (!bytes) return CKKS_OK;
    if ((rc = device_allocate(dev, &memory, bytes, MEMORY_STATIC, err)) != CKKS_OK) goto out;
    if ((rc = device_stream_create(dev, &stream, err)) != CKKS_OK) goto out;
    if ((rc = device_copy_in(stream, memory, list, bytes, err)) != CKKS_OK) goto out;
    if ((rc = device_stream_synchronize(stream, err)) != CKKS_OK) goto out;
    *out = memory, memory = NULL;
out:
    device_stream_destroy(stream);
    device_free(dev, memory);
    return rc;
}

ckks_status steps_check(const ckks_params *params, const galois_step *steps, uint32_t count, bool is_set,
                        const char *field, ckks_error *err) {
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t g = steps[i].galois_element;
        if (!(g & 1) || g >= 2 * params_n(params))
            return ckks_error_set(err, CKKS_INVALID_ARGUMENT, field, "Galois element %u of step %u", g, i);
        for (uint32_t k = 0; is_set && k < i; k++)
            if (steps[k].galois_element == g)
                return ckks_error_set(err, CKKS_INVALID_ARGUMENT, field, "Galois element %u comes twice", g);
    }
    return CKKS_OK;
}

uint32_t galois_element_rotate(uint32_t log_n, int64_t steps) {
    const uint32_t mask = (2u << log_n) - 1;
    /* the powers of 5 have order N/2 */
    uint64_t exponent = (uint64_t)steps & ((1u << (log_n - 1)) - 1);
    uint32_t power = 5, element = 1;
    for (; exponent; exponent >>= 1) {
        if (exponent & 1) element = element * power & mask;
        power = power * power & mask;
    }
    return element;
}
