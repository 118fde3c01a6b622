/*
 * A model description is the only thing through which a server tells a client what to encrypt and which keys
 * to make. A hostile one must not be able to make it encrypt weakly, generate without bound, index past an
 * array or print what moves a terminal's cursor. The same checks hold for the description inside a package.
 */
#include "kernels/base/bytes.h"
#include "proto/ciphertext_file.h"
#include "proto/package.h"
#include "proto/packing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define KEY_COUNT_MAX_DEFAULT 1024u
#define KEY_BYTES_MAX_DEFAULT (UINT64_C(4) << 30)
#define REQUEST_BYTES_MAX     (UINT64_C(1) << 30)
#define TEXT_BYTES_MAX        1024u
#define SHAPE_AXES_MAX        8u
#define WIDTH_MAX             (1u << 24)
#define CLASSES_MAX           256u /* of votes between pairs */

typedef Ckksd__V1__ModelDescription description;

__attribute__((format(printf, 3, 4))) static ckks_status refuse(ckks_error *err, const char *field,
                                                                const char *format, ...) {
    char message[240];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return ckks_error_set(err, CKKS_MALFORMED, field, "%s", message);
}

/* Text that people will see. NULL = absent. */
static ckks_status check_text(const char *text, const char *field, bool is_required, ckks_error *err) {
    if (!text || !*text) return is_required ? refuse(err, field, "%s is absent", field) : CKKS_OK;
    const size_t length = strlen(text);
    if (length > TEXT_BYTES_MAX)
        return refuse(err, field, "%zu bytes of text, at most %u are taken", length, TEXT_BYTES_MAX);
    for (size_t i = 0, step; i < length; i += step)
        if (!(step = text_step(text + i)))
            return refuse(err, field, "no character to show (a control character, or not UTF-8) at byte %zu",
                          i);
    return CKKS_OK;
}

static ckks_status check_finite(const double *values, size_t count, const char *field, ckks_error *err) {
    for (size_t i = 0; i < count; i++)
        if (!isfinite(values[i])) return refuse(err, field, "value %zu is not a number", i);
    return CKKS_OK;
}

/* Both ends or either may be absent; those present are numbers and in order. */
static ckks_status check_range(bool has_minimum, double minimum, bool has_maximum, double maximum,
                               const char *field, ckks_error *err) {
    if ((has_minimum && !isfinite(minimum)) || (has_maximum && !isfinite(maximum)))
        return refuse(err, field, "an end of the range is not a number");
    if (has_minimum && has_maximum && minimum > maximum)
        return refuse(err, field, "the range %g to %g is empty", minimum, maximum);
    return CKKS_OK;
}

/* ---- parameters, signatures, keys ---- */

static ckks_status check_parameters(ckks_params *params, const description *d, bool allow_insecure,
                                    ckks_error *err) {
    ckks_status rc;
    if ((rc = params_from_message(params, d->parameters, err)) != CKKS_OK) return rc;
    const bool declares_insecure = d->has_insecure && d->insecure;
    if (!(declares_insecure && allow_insecure) && (rc = params_gate(params, 128, err)) != CKKS_OK) return rc;
    if (d->has_security_bits && d->security_bits != params_security_bits(params))
        return refuse(err, "security_bits", "%u bits claimed, these parameters have %u", d->security_bits,
                      params_security_bits(params));
    if (d->has_depth && d->depth > params_level_max(params))
        return refuse(err, "depth", "depth %u with %u levels", d->depth, params_level_max(params));
    return CKKS_OK;
}

/* Adds up what the values take packed; *total counts ciphertexts over batches. */
static ckks_status check_signatures(uint64_t *packed_bytes, uint64_t *total, const ckks_params *params,
                                    Ckksd__V1__Signature *const *messages, size_t count,
                                    uint32_t component_count_max, const char *field, ckks_error *err) {
    *packed_bytes = 0, *total = 0;
    if (count == 0 || count > CIPHERTEXTS_MAX)
        return refuse(err, field, "%zu %s: 1 to %u are taken", count, field, CIPHERTEXTS_MAX);
    for (size_t i = 0; i < count; i++) {
        value_signature s;
        uint64_t bytes;
        ckks_error inner = {0};
        ckks_status rc = signature_from_message(&s, params, messages[i], &inner);
        if (rc == CKKS_OK) rc = ciphertext_packed_bytes(&bytes, params, &s, false, &inner);
        if (rc == CKKS_OK && s.component_count > component_count_max)
            rc = ckks_error_set(&inner, CKKS_MALFORMED, "component_count", "%u components, at most %u",
                                s.component_count, component_count_max);
        if (rc == CKKS_OK &&
            (!size_add(packed_bytes, *packed_bytes, bytes) || *packed_bytes > REQUEST_BYTES_MAX))
            rc = ckks_error_set(&inner, CKKS_TOO_LARGE, "bytes", "more than %llu bytes in all",
                                (unsigned long long)REQUEST_BYTES_MAX);
        if (rc != CKKS_OK) {
            char name[sizeof inner.field];
            snprintf(name, sizeof name, "%s[%zu].%.40s", field, i, inner.field);
            return ckks_error_set(err, rc, name, "%s", inner.message);
        }
        *total += s.batch_count;
    }
    return CKKS_OK;
}

static ckks_status check_keys(const description *d, const ckks_params *params,
                              const description_limits *limits, ckks_error *err) {
    key_requirement *keys = NULL;
    uint32_t count;
    uint64_t bytes;
    const uint32_t count_max = limits->key_count_max ? limits->key_count_max : KEY_COUNT_MAX_DEFAULT;
    const uint64_t bytes_max = limits->key_bytes_max ? limits->key_bytes_max : KEY_BYTES_MAX_DEFAULT;
    if (d->n_keys > count_max)
        return ckks_error_set(err, CKKS_TOO_LARGE, "keys", "%zu keys are asked for, at most %u are made",
                              d->n_keys, count_max);
    ckks_status rc = key_requirements_from_messages(&keys, &count, params, d->keys, d->n_keys, err);
    if (rc != CKKS_OK) return rc;
    if (!packing_key_set_bytes(&bytes, params, keys, count) || bytes > bytes_max)
        rc = ckks_error_set(err, CKKS_TOO_LARGE, "key_bytes", "the keys take more than %llu bytes",
                            (unsigned long long)bytes_max);
    else if (!d->has_key_bytes || d->key_bytes != bytes)
        rc = refuse(err, "key_bytes", "%llu bytes claimed, these keys take %llu",
                    (unsigned long long)d->key_bytes, (unsigned long long)bytes);
    free(keys);
    return rc;
}

/* ---- raw input: shape, columns, preprocessing ---- */

static int compare_names(const void *left, const void *right) {
    const char *const *a = left, *const *b = right;
    return strcmp(*a, *b);
}

/* A header is matched by name: two columns of one name could not be told apart. */
static ckks_status check_names_differ(const description *d, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    const char **names = malloc(d->n_columns * sizeof *names);
    if (!names) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "columns", "no memory for their names");
    for (size_t i = 0; i < d->n_columns; i++) names[i] = d->columns[i]->name;
    qsort(names, d->n_columns, sizeof *names, compare_names);
    for (size_t i = 1; rc == CKKS_OK && i < d->n_columns; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            rc = refuse(err, "columns.name", "%.64s occurs twice", names[i]);
    free(names);
    return rc;
}

static ckks_status check_column(const Ckksd__V1__Column *c, ckks_error *err) {
    ckks_status rc;
    if ((rc = check_text(c->name, "columns.name", true, err)) != CKKS_OK) return rc;
    if (c->kind != 1 && c->kind != 2) return refuse(err, "columns.kind", "unknown column kind %u", c->kind);
    if ((c->kind == 2) != (c->n_categories != 0))
        return refuse(err, "columns.categories", "%zu categories on a column of kind %u", c->n_categories,
                      c->kind);
    for (size_t i = 0; i < c->n_categories; i++)
        if ((rc = check_text(c->categories[i], "columns.categories", false, err)) != CKKS_OK) return rc;
    return check_range(c->has_minimum, c->minimum, c->has_maximum, c->maximum, "columns.minimum", err);
}

/* *width: numbers of one raw row */
static ckks_status check_raw(uint64_t *width, const description *d, ckks_error *err) {
    ckks_status rc;
    uint64_t elements = 1;
    if (d->n_input_shape > SHAPE_AXES_MAX)
        return refuse(err, "input_shape", "%zu axes, at most %u are taken", d->n_input_shape, SHAPE_AXES_MAX);
    for (size_t i = 0; i < d->n_input_shape; i++) {
        elements *= d->input_shape[i]; /* below 2^24 before, so below 2^56 here */
        if (elements == 0 || elements > WIDTH_MAX)
            return refuse(err, "input_shape", "its elements must be 1 to %u", WIDTH_MAX);
    }
    if (d->n_columns > WIDTH_MAX || (d->n_columns && d->n_input_shape && elements != d->n_columns))
        return refuse(err, "columns", "%zu columns for %llu elements", d->n_columns,
                      (unsigned long long)elements);
    for (size_t i = 0; i < d->n_columns; i++)
        if ((rc = check_column(d->columns[i], err)) != CKKS_OK) return rc;
    /* with neither columns nor shape, a row is the elements themselves */
    *width = d->n_columns ? d->n_columns : d->n_input_shape ? elements : d->input_layout->element_count;
    return d->n_columns > 1 ? check_names_differ(d, err) : CKKS_OK;
}

/* A list for `width` elements: none, one for all, or one each. */
static ckks_status check_list(const double *values, size_t count, uint64_t width, const char *field,
                              ckks_error *err) {
    if (count > 1 && count != width)
        return refuse(err, field, "%zu values for %llu elements", count, (unsigned long long)width);
    return check_finite(values, count, field, err);
}

static ckks_status check_select(uint64_t *width, const Ckksd__V1__PreprocessStep *s, ckks_error *err) {
    if (s->n_index == 0 || s->n_index > WIDTH_MAX)
        return refuse(err, "preprocess.index", "selects %zu elements", s->n_index);
    for (size_t i = 0; i < s->n_index; i++)
        if (s->index[i] >= *width)
            return refuse(err, "preprocess.index", "element %u of %llu", s->index[i],
                          (unsigned long long)*width);
    *width = s->n_index;
    return CKKS_OK;
}

/* One element becomes `grows` more. */
static ckks_status check_codes(uint64_t *width, const Ckksd__V1__PreprocessStep *s, bool grows,
                               ckks_error *err) {
    if (!s->has_column || s->column >= *width)
        return refuse(err, "preprocess.column", "element %u of %llu", s->column, (unsigned long long)*width);
    if (s->n_values == 0 || (grows && s->n_values > WIDTH_MAX - *width) || s->n_values > WIDTH_MAX)
        return refuse(err, "preprocess.values", "%zu categories", s->n_values);
    if (grows) *width += s->n_values - 1;
    return CKKS_OK;
}

static ckks_status check_look_up(uint64_t *width, const Ckksd__V1__PreprocessStep *s, ckks_error *err) {
    ckks_status rc = check_codes(width, s, false, err);
    if (rc != CKKS_OK) return rc;
    if (s->n_mapped != s->n_values)
        return refuse(err, "preprocess.mapped", "%zu results for %zu values", s->n_mapped, s->n_values);
    if (s->has_otherwise == (s->has_unknown_is_error && s->unknown_is_error))
        return refuse(err, "preprocess.otherwise", "it must say what becomes of other values");
    if ((rc = check_finite(s->mapped, s->n_mapped, "preprocess.mapped", err)) != CKKS_OK) return rc;
    return check_finite(&s->otherwise, s->has_otherwise ? 1 : 0, "preprocess.otherwise", err);
}

/* *listed: how many elements the step is about */
static ckks_status check_index(uint64_t *listed, const Ckksd__V1__PreprocessStep *s, uint64_t width,
                               ckks_error *err) {
    for (size_t i = 0; i < s->n_index; i++)
        if (s->index[i] >= width || (i && s->index[i] <= s->index[i - 1]))
            return refuse(err, "preprocess.index", "element %u of %llu, or not in order", s->index[i],
                          (unsigned long long)width);
    *listed = s->n_index ? s->n_index : width;
    return CKKS_OK;
}

static ckks_status check_preprocess_step(uint64_t *width, const Ckksd__V1__PreprocessStep *s,
                                         ckks_error *err) {
    ckks_status rc;
    uint64_t listed = *width;
    if (s->kind == 2) {
        rc = check_codes(width, s, true, err);
        return rc == CKKS_OK ? check_finite(s->values, s->n_values, "preprocess.values", err) : rc;
    }
    if (s->kind == 5) return check_select(width, s, err);
    if (s->kind == 6) return check_look_up(width, s, err);
    if ((rc = check_index(&listed, s, *width, err)) != CKKS_OK) return rc;
    switch (s->kind) {
    case 1:
        if ((rc = check_list(s->offset, s->n_offset, listed, "preprocess.offset", err)) != CKKS_OK) return rc;
        return check_list(s->scale, s->n_scale, listed, "preprocess.scale", err);
    case 3:
        return check_list(s->values, s->n_values, listed, "preprocess.values", err);
    case 4:
        if (s->norm < 1 || s->norm > 3) return refuse(err, "preprocess.norm", "unknown norm %u", s->norm);
        return CKKS_OK;
    case 7:
        return CKKS_OK;
    case 8:
        if (s->n_values != 1) return refuse(err, "preprocess.values", "%zu thresholds", s->n_values);
        return check_finite(s->values, 1, "preprocess.values", err);
    default:
        return ckks_error_set(err, CKKS_UNSUPPORTED, "preprocess.kind", "unknown step %u", s->kind);
    }
}

/* ---- layouts and postprocessing ---- */

static int compare_places(const void *left, const void *right) {
    const uint64_t *a = left, *b = right;
    return *a < *b ? -1 : *a > *b;
}

/* Places (value, slot) in range; `distinct`: no two elements share one. */
static ckks_status check_places(const uint32_t *value, size_t value_n, const uint32_t *slot, size_t slot_n,
                                uint32_t element_count, uint64_t value_count, uint32_t slot_count,
                                const char *field, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    if (value_n != element_count || slot_n != element_count)
        return refuse(err, field, "%zu values and %zu slots for %u elements", value_n, slot_n, element_count);
    uint64_t *places = malloc((size_t)element_count * sizeof *places);
    if (!places) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, field, "no memory for a layout");
    for (uint32_t i = 0; rc == CKKS_OK && i < element_count; i++) {
        if (value[i] >= value_count || slot[i] >= slot_count)
            rc = refuse(err, field, "element %u is in slot %u of ciphertext %u: there are %llu of %u slots",
                        i, slot[i], value[i], (unsigned long long)value_count, slot_count);
        places[i] = (uint64_t)value[i] << 32 | slot[i];
    }
    if (rc == CKKS_OK) qsort(places, element_count, sizeof *places, compare_places);
    for (uint32_t i = 1; rc == CKKS_OK && i < element_count; i++)
        if (places[i - 1] == places[i])
            rc = refuse(err, field, "two elements are in slot %u of ciphertext %u", (uint32_t)places[i],
                        (uint32_t)(places[i] >> 32));
    free(places);
    return rc;
}

static ckks_status check_layout_head(uint32_t kind, uint32_t element_count, uint32_t slot_count,
                                     const ckks_params *params, const char *field, ckks_error *err) {
    if (kind != 1 && kind != 2)
        return ckks_error_set(err, CKKS_UNSUPPORTED, field, "unknown layout %u", kind);
    if (element_count == 0 || element_count > WIDTH_MAX)
        return refuse(err, field, "%u elements: 1 to %u are taken", element_count, WIDTH_MAX);
    if (slot_count == 0 || (slot_count & (slot_count - 1)) != 0 || slot_count > params_slot_count_max(params))
        return refuse(err, field, "%u slots: a power of two up to %u is wanted", slot_count,
                      params_slot_count_max(params));
    return CKKS_OK;
}

static ckks_status check_input_layout(const Ckksd__V1__InputLayout *l, const ckks_params *params,
                                      uint64_t width, uint64_t value_count, ckks_error *err) {
    ckks_status rc;
    rc = check_layout_head(l->kind, l->element_count, l->slot_count, params, "input_layout", err);
    if (rc != CKKS_OK) return rc;
    if (l->element_count != width)
        return refuse(err, "input_layout", "%u elements, preprocessing gives %llu", l->element_count,
                      (unsigned long long)width);
    if (l->has_sample_count_max && l->sample_count_max > l->slot_count)
        return refuse(err, "input_layout", "%u samples in %u slots", l->sample_count_max, l->slot_count);
    if (l->kind == 2) {
        if (l->element_count != value_count)
            return refuse(err, "input_layout", "%u elements in %llu ciphertexts", l->element_count,
                          (unsigned long long)value_count);
        return CKKS_OK;
    }
    return check_places(l->input, l->n_input, l->slot, l->n_slot, l->element_count, value_count,
                        l->slot_count, "input_layout", err);
}

static ckks_status check_output_layout(const Ckksd__V1__OutputLayout *l, const ckks_params *params,
                                       uint64_t value_count, ckks_error *err) {
    ckks_status rc;
    if (!l) return refuse(err, "output_layout", "output_layout is absent");
    rc = check_layout_head(l->kind, l->element_count, l->slot_count, params, "output_layout", err);
    if (rc != CKKS_OK) return rc;
    if (l->kind == 2) {
        if (l->element_count > value_count)
            return refuse(err, "output_layout", "%u elements in %llu ciphertexts", l->element_count,
                          (unsigned long long)value_count);
        return CKKS_OK;
    }
    return check_places(l->output, l->n_output, l->slot, l->n_slot, l->element_count, value_count,
                        l->slot_count, "output_layout", err);
}

/* of a step over pairs of classes; 0: no count of classes has so many pairs */
static uint64_t classes_of_pairs(uint64_t pairs) {
    for (uint64_t k = 2; k <= CLASSES_MAX; k++)
        if (k * (k - 1) / 2 == pairs) return k;
    return 0;
}

static ckks_status check_pairs(uint64_t *width, uint64_t *classes, const Ckksd__V1__PostprocessStep *s,
                               ckks_error *err) {
    *classes = classes_of_pairs(*width);
    if (!*classes)
        return refuse(err, "postprocess", "%llu scores are not one for each pair of classes",
                      (unsigned long long)*width);
    if (s->n_scale != s->n_offset || (s->n_scale && s->n_scale != *width))
        return refuse(err, "postprocess.scale", "%zu and %zu numbers for %llu pairs", s->n_scale, s->n_offset,
                      (unsigned long long)*width);
    for (size_t i = 0; i < s->n_scale; i++)
        if (!isfinite(s->scale[i]) || !isfinite(s->offset[i]))
            return refuse(err, "postprocess.scale", "pair %zu has a number that is not finite", i);
    if (s->n_scale) *width = *classes;
    return CKKS_OK;
}

/* *counted: the classes that labels are for, 0 until a step says so */
static ckks_status check_postprocess_step(uint64_t *width, uint64_t *counted,
                                          const Ckksd__V1__PostprocessStep *s, ckks_error *err) {
    ckks_status rc;
    if (s->kind < 1 || s->kind > 12)
        return ckks_error_set(err, CKKS_UNSUPPORTED, "postprocess.kind", "unknown step %u", s->kind);
    if (s->kind == 1) {
        if ((rc = check_list(s->offset, s->n_offset, *width, "postprocess.offset", err)) != CKKS_OK)
            return rc;
        if ((rc = check_list(s->scale, s->n_scale, *width, "postprocess.scale", err)) != CKKS_OK) return rc;
    }
    if (s->kind == 6) {
        if (*width != 1)
            return refuse(err, "postprocess", "a binary decision from %llu scores",
                          (unsigned long long)*width);
        if (s->append_complement) *width = 2;
    }
    if (s->kind == 12 && (rc = check_pairs(width, counted, s, err)) != CKKS_OK) return rc;
    if (s->has_threshold && !isfinite(s->threshold))
        return refuse(err, "postprocess.threshold", "the threshold is not a number");
    /* one score names two classes, by its sign or threshold */
    const uint64_t classes = *counted ? *counted : *width == 1 ? 2 : *width;
    if (s->kind == 5 && s->n_labels != classes && s->n_integer_labels != classes)
        return refuse(err, "postprocess.labels", "%zu names for %llu classes",
                      s->n_labels + s->n_integer_labels, (unsigned long long)classes);
    for (size_t i = 0; i < s->n_labels; i++)
        if ((rc = check_text(s->labels[i], "postprocess.labels", false, err)) != CKKS_OK) return rc;
    return CKKS_OK;
}

static ckks_status check_ranges(const description *d, ckks_error *err) {
    ckks_status rc;
    rc = check_range(d->has_minimum, d->minimum, d->has_maximum, d->maximum, "minimum", err);
    if (rc != CKKS_OK) return rc;
    rc = check_range(d->has_output_minimum, d->output_minimum, d->has_output_maximum, d->output_maximum,
                     "output_minimum", err);
    if (rc != CKKS_OK) return rc;
    if (d->has_promised_error && (!isfinite(d->promised_error) || d->promised_error < 0))
        return refuse(err, "promised_error", "the promised error %g is no error", d->promised_error);
    if (d->has_digest && d->digest.len != 32)
        return refuse(err, "digest", "a digest has 32 bytes, this one %zu", d->digest.len);
    return CKKS_OK;
}

ckks_status description_validate(const Ckksd__V1__ModelDescription *d, const description_limits *limits,
                                 ckks_error *err) {
    ckks_status rc;
    ckks_params params;
    uint64_t bytes, input_total, output_total, width = 0, score_count, class_count = 0;
    if (!d) return refuse(err, "description", "description is absent");
    if ((rc = check_text(d->name, "name", true, err)) != CKKS_OK) return rc;
    if ((rc = check_text(d->version, "version", false, err)) != CKKS_OK) return rc;
    if ((rc = check_parameters(&params, d, limits->allow_insecure, err)) != CKKS_OK) return rc;
    rc = check_signatures(&bytes, &input_total, &params, d->inputs, d->n_inputs, 2, "inputs", err);
    if (rc != CKKS_OK) return rc;
    rc = check_signatures(&bytes, &output_total, &params, d->outputs, d->n_outputs, 3, "outputs", err);
    if (rc != CKKS_OK) return rc;
    if ((rc = check_keys(d, &params, limits, err)) != CKKS_OK) return rc;
    if (!d->input_layout) return refuse(err, "input_layout", "input_layout is absent");
    if ((rc = check_raw(&width, d, err)) != CKKS_OK) return rc;
    for (size_t i = 0; i < d->n_preprocess; i++)
        if ((rc = check_preprocess_step(&width, d->preprocess[i], err)) != CKKS_OK) return rc;
    if ((rc = check_input_layout(d->input_layout, &params, width, input_total, err)) != CKKS_OK) return rc;
    if ((rc = check_output_layout(d->output_layout, &params, output_total, err)) != CKKS_OK) return rc;
    score_count = d->output_layout->element_count;
    for (size_t i = 0; i < d->n_postprocess; i++)
        if ((rc = check_postprocess_step(&score_count, &class_count, d->postprocess[i], err)) != CKKS_OK)
            return rc;
    return check_ranges(d, err);
}

ckks_status description_check(const Ckksd__V1__ModelDescription *d, const description_limits *limits,
                              ckks_error *err) {
    ckks_error inner = {0};
    ckks_status rc = description_validate(d, limits, &inner);
    if (rc == CKKS_OK) return rc;
    if (rc != CKKS_INSECURE_PARAMETERS && rc != CKKS_RESOURCE_EXHAUSTED) rc = CKKS_UNTRUSTED_SERVER;
    return ckks_error_set(err, rc, inner.field, "%s", inner.message);
}
