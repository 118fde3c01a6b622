/*
 * Reading a model package: its manifest into a plan. The message stays in memory with the package: strings,
 * steps and coefficients are used where the parser put them. Numbers (weights) are copied out of the file's
 * segments, so that the file may go.
 */
#include "proto/package.h"

#include "kernels/base/bytes.h"
#include "proto/packing.h"

#include <stdio.h>
#include <stdlib.h>

#define PACKAGE_ARENA_BYTES (256u << 20)

#define PACKAGE_BYTES_MAX (UINT64_C(8) << 30)

typedef Ckksd__V1__ModelDescription description;

/* Owns what the plan points to beside the message. */
typedef struct package_memory {
    ProtobufCMessage *message;
    plan_value *values;
    plan_operation *operations;
    plan_plain *plains;
    plan_transform *transforms;
    plan_transform_term *terms; /* of all transforms, one after another */
    plan_polynomial *polynomials;
    plan_matrix *matrices;
    key_requirement *keys;
    double **segments; /* [segment_count], each NULL until a number of it is asked for */
    uint32_t segment_count;
} package_memory;

typedef struct reader {
    package *p;
    package_memory *memory;
    const container_view *file;
    const Ckksd__V1__Program *program;
    ckks_error *err;
} reader;

static ckks_status refuse(const reader *r, const char *table, size_t index, const char *what) {
    char field[64];
    snprintf(field, sizeof field, "%s %zu", table, index);
    return ckks_error_set(r->err, CKKS_MALFORMED, field, "%s", what);
}

/* Zeroed; count 0 gives one unused element, so that NULL always means failure. */
static ckks_status make_table(const reader *r, void *out, size_t count, size_t size, const char *table) {
    void *memory = count > UINT32_MAX ? NULL : calloc(count ? count : 1, size);
    if (!memory)
        return ckks_error_set(r->err, CKKS_RESOURCE_EXHAUSTED, table, "no memory for %zu entries", count);
    memcpy(out, &memory, sizeof memory);
    return CKKS_OK;
}

static double double_of(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* ---- numbers ---- */

/* The whole segment, converted once, whichever entry asks first. */
static ckks_status load_segment(const reader *r, uint32_t segment) {
    const container_segment *s = &r->file->segments[segment];
    double *numbers = malloc(s->bytes ? s->bytes : 1);
    if (!numbers)
        return ckks_error_set(r->err, CKKS_RESOURCE_EXHAUSTED, "segments",
                              "no memory for %llu bytes of weights", (unsigned long long)s->bytes);
    for (uint64_t i = 0; i < s->bytes / sizeof(double); i++)
        numbers[i] = double_of(bytes_read_u64(s->data + i * sizeof(double)));
    r->memory->segments[segment] = numbers;
    return CKKS_OK;
}

static ckks_status find_numbers(const reader *r, const double **out, uint32_t segment, uint64_t offset,
                                uint64_t count, const char *table, size_t index) {
    ckks_status rc;
    if (segment >= r->file->segment_count) return refuse(r, table, index, "its segment does not exist");
    const uint64_t available = r->file->segments[segment].bytes / sizeof(double);
    if (offset > available || count > available - offset)
        return refuse(r, table, index, "its numbers end past the segment");
    if (!r->memory->segments[segment] && (rc = load_segment(r, segment)) != CKKS_OK) return rc;
    *out = r->memory->segments[segment] + offset;
    return CKKS_OK;
}

static ckks_status read_digest(const reader *r, uint8_t out[32], protobuf_c_boolean present,
                               const ProtobufCBinaryData *data, const char *table, size_t index) {
    if (!present || data->len != 32) return refuse(r, table, index, "its digest must have 32 bytes");
    memcpy(out, data->data, 32);
    return CKKS_OK;
}

/* ---- tables ---- */

static ckks_status read_values(const reader *r) {
    const Ckksd__V1__Program *m = r->program;
    ckks_status rc = make_table(r, &r->memory->values, m->n_values, sizeof(plan_value), "values");
    for (size_t i = 0; rc == CKKS_OK && i < m->n_values; i++) {
        const Ckksd__V1__PlanValue *v = m->values[i];
        if (!v->has_level || !v->has_component_count || !v->has_batch_count || !v->has_scale_bits)
            return refuse(r, "value", i, "a field is absent");
        r->memory->values[i] =
            (plan_value){v->level, v->component_count, v->batch_count, double_of(v->scale_bits)};
    }
    return rc;
}

static ckks_status read_operations(const reader *r) {
    const Ckksd__V1__Program *m = r->program;
    ckks_status rc =
        make_table(r, &r->memory->operations, m->n_operations, sizeof(plan_operation), "operations");
    for (size_t i = 0; rc == CKKS_OK && i < m->n_operations; i++) {
        const Ckksd__V1__PlanOperation *o = m->operations[i];
        if (!o->has_kind || !o->has_a || !o->has_first_output || !o->has_output_count)
            return refuse(r, "operation", i, "a field is absent");
        if (!o->source) return refuse(r, "operation", i, "its source is absent");
        if (o->n_steps > UINT32_MAX) return refuse(r, "operation", i, "too many steps");
        r->memory->operations[i] = (plan_operation){
            .kind = o->kind,
            .a = o->a,
            .b = o->b,
            .first_output = o->first_output,
            .output_count = o->output_count,
            .plain = o->plain,
            .transform = o->transform,
            .polynomial = o->polynomial,
            .matrix = o->matrix,
            .constant = double_of(o->constant_bits),
            .constant_scale = double_of(o->constant_scale_bits),
            .with_rescale = o->with_rescale != 0,
            .flood_bits = o->flood_bits,
            .step_count = (uint32_t)o->n_steps,
            .steps = o->steps,
            .source = o->source,
        };
    }
    return rc;
}

static ckks_status read_plains(const reader *r) {
    const Ckksd__V1__Program *m = r->program;
    ckks_status rc = make_table(r, &r->memory->plains, m->n_plains, sizeof(plan_plain), "plains");
    for (size_t i = 0; rc == CKKS_OK && i < m->n_plains; i++) {
        const Ckksd__V1__PlanPlain *v = m->plains[i];
        plan_plain *out = &r->memory->plains[i];
        if (!v->has_segment || !v->has_offset || !v->has_slot_count || !v->has_level || !v->has_scale_bits)
            return refuse(r, "plain", i, "a field is absent");
        out->slot_count = v->slot_count;
        out->level = v->level;
        out->with_p = v->with_p != 0;
        out->scale = double_of(v->scale_bits);
        if ((rc = read_digest(r, out->digest, v->has_digest, &v->digest, "plain", i)) != CKKS_OK) break;
        rc = find_numbers(r, &out->slots, v->segment, v->offset, v->slot_count, "plain", i);
    }
    return rc;
}

static ckks_status read_transforms(const reader *r) {
    const Ckksd__V1__Program *m = r->program;
    ckks_status rc;
    size_t term_total = 0;
    for (size_t i = 0; i < m->n_transforms; i++) {
        const Ckksd__V1__PlanTransform *t = m->transforms[i];
        if (t->n_term_giant != t->n_term_baby || t->n_term_giant != t->n_term_plain)
            return refuse(r, "transform", i, "its lists of terms differ in length");
        if (t->n_baby_steps > UINT32_MAX || t->n_giant_steps > UINT32_MAX || t->n_term_giant > UINT32_MAX)
            return refuse(r, "transform", i, "too many steps");
        term_total += t->n_term_giant; /* bounded by the parser's memory */
    }
    rc = make_table(r, &r->memory->transforms, m->n_transforms, sizeof(plan_transform), "transforms");
    if (rc != CKKS_OK) return rc;
    rc = make_table(r, &r->memory->terms, term_total, sizeof(plan_transform_term), "transforms");
    if (rc != CKKS_OK) return rc;
    plan_transform_term *term = r->memory->terms;
    for (size_t i = 0; i < m->n_transforms; i++) {
        const Ckksd__V1__PlanTransform *t = m->transforms[i];
        r->memory->transforms[i] = (plan_transform){
            .baby_steps = t->baby_steps,
            .giant_steps = t->giant_steps,
            .baby_count = (uint32_t)t->n_baby_steps,
            .giant_count = (uint32_t)t->n_giant_steps,
            .terms = term,
            .term_count = (uint32_t)t->n_term_giant,
        };
        for (size_t k = 0; k < t->n_term_giant; k++)
            *term++ = (plan_transform_term){t->term_giant[k], t->term_baby[k], t->term_plain[k]};
    }
    return CKKS_OK;
}

static ckks_status read_polynomials(const reader *r) {
    const Ckksd__V1__Program *m = r->program;
    ckks_status rc =
        make_table(r, &r->memory->polynomials, m->n_polynomials, sizeof(plan_polynomial), "polynomials");
    for (size_t i = 0; rc == CKKS_OK && i < m->n_polynomials; i++) {
        const Ckksd__V1__PlanPolynomial *v = m->polynomials[i];
        if (v->n_coefficients < 2 || v->n_coefficients > UINT32_MAX)
            return refuse(r, "polynomial", i, "it has fewer than two coefficients");
        r->memory->polynomials[i] = (plan_polynomial){v->coefficients, (uint32_t)v->n_coefficients - 1};
    }
    return rc;
}

static ckks_status read_matrices(const reader *r) {
    const Ckksd__V1__Program *m = r->program;
    ckks_status rc = make_table(r, &r->memory->matrices, m->n_matrices, sizeof(plan_matrix), "matrices");
    for (size_t i = 0; rc == CKKS_OK && i < m->n_matrices; i++) {
        const Ckksd__V1__PlanMatrix *v = m->matrices[i];
        plan_matrix *out = &r->memory->matrices[i];
        if (!v->has_segment || !v->has_offset || !v->has_row_count || !v->has_column_count ||
            !v->has_scale_bits)
            return refuse(r, "matrix", i, "a field is absent");
        out->row_count = v->row_count;
        out->column_count = v->column_count;
        out->scale = double_of(v->scale_bits);
        if ((rc = read_digest(r, out->digest, v->has_digest, &v->digest, "matrix", i)) != CKKS_OK) break;
        const uint64_t weight_count = (uint64_t)v->row_count * v->column_count;
        const uint64_t bias_count = v->has_bias_scale_bits ? v->row_count : 0;
        rc = find_numbers(r, &out->weights, v->segment, v->offset, weight_count + bias_count, "matrix", i);
        if (rc != CKKS_OK || !v->has_bias_scale_bits) continue;
        out->bias = out->weights + weight_count;
        out->bias_scale = double_of(v->bias_scale_bits);
    }
    return rc;
}

static ckks_status read_self_test(const reader *r, plan *out) {
    ckks_status rc;
    const Ckksd__V1__Program *m = r->program;
    if (!m->has_self_test_seed && !m->has_self_test_digest) return CKKS_OK;
    rc = read_digest(r, out->self_test_seed, m->has_self_test_seed, &m->self_test_seed, "self test seed", 0);
    if (rc != CKKS_OK) return rc;
    out->has_self_test = true;
    return read_digest(r, out->self_test_digest, m->has_self_test_digest, &m->self_test_digest,
                       "self test digest", 0);
}

/* ---- the whole ---- */

static ckks_status read_plan(const reader *r) {
    ckks_status rc;
    package *p = r->p;
    const Ckksd__V1__Program *m = r->program;
    const description *d = p->manifest->description;
    if (!m->has_input_count) return ckks_error_set(r->err, CKKS_MALFORMED, "inputs", "input count is absent");
    if ((rc = read_values(r)) != CKKS_OK) return rc;
    if ((rc = read_operations(r)) != CKKS_OK) return rc;
    if ((rc = read_plains(r)) != CKKS_OK) return rc;
    if ((rc = read_transforms(r)) != CKKS_OK) return rc;
    if ((rc = read_polynomials(r)) != CKKS_OK) return rc;
    if ((rc = read_matrices(r)) != CKKS_OK) return rc;
    if ((rc = read_self_test(r, &p->plan)) != CKKS_OK) return rc;
    uint32_t key_count;
    rc = key_requirements_from_messages(&r->memory->keys, &key_count, &p->params, d->keys, d->n_keys, r->err);
    if (rc != CKKS_OK) return rc;
    if (m->n_outputs > PLAN_VALUES_MAX)
        return ckks_error_set(r->err, CKKS_MALFORMED, "outputs", "%zu outputs", m->n_outputs);
    plan *out = &p->plan;
    out->params = &p->params;
    out->is_insecure = d->has_insecure && d->insecure;
    out->input_count = m->input_count;
    out->value_count = (uint32_t)m->n_values, out->values = r->memory->values;
    out->operation_count = (uint32_t)m->n_operations, out->operations = r->memory->operations;
    out->output_count = (uint32_t)m->n_outputs, out->outputs = m->outputs;
    out->plain_count = (uint32_t)m->n_plains, out->plains = r->memory->plains;
    out->transform_count = (uint32_t)m->n_transforms, out->transforms = r->memory->transforms;
    out->polynomial_count = (uint32_t)m->n_polynomials, out->polynomials = r->memory->polynomials;
    out->matrix_count = (uint32_t)m->n_matrices, out->matrices = r->memory->matrices;
    out->key_count = key_count, out->keys = r->memory->keys;
    return plan_check(out, r->err);
}

/* The description's signatures are the plan's values, field by field. */
static ckks_status check_signature(const reader *r, const Ckksd__V1__Signature *message, uint32_t value,
                                   const char *list, size_t index) {
    value_signature declared, expected;
    const plan_value *v = &r->p->plan.values[value];
    ckks_error inner = {0};
    char field[sizeof inner.field];
    ckks_status rc = signature_from_message(&declared, &r->p->params, message, &inner);
    if (rc == CKKS_OK) {
        expected = declared;
        expected.kind = VALUE_CIPHERTEXT, expected.domain = VALUE_EVALUATION, expected.basis = VALUE_BASIS_Q;
        expected.component_count = v->component_count, expected.batch_count = v->batch_count;
        expected.limb_count = v->level + 1, expected.scale = v->scale;
        expected.bytes = (uint64_t)v->batch_count * v->component_count * (v->level + 1) *
                         params_n(&r->p->params) * sizeof(uint64_t);
        rc = value_signature_compare(&expected, &declared, &inner);
    }
    if (rc == CKKS_OK) return CKKS_OK;
    snprintf(field, sizeof field, "%s[%zu].%.40s", list, index, inner.field);
    return ckks_error_set(r->err, rc, field, "%s", inner.message);
}

static ckks_status check_signatures(const reader *r) {
    ckks_status rc = CKKS_OK;
    const plan *p = &r->p->plan;
    const description *d = r->p->manifest->description;
    if (d->n_inputs != p->input_count || d->n_outputs != p->output_count)
        return ckks_error_set(r->err, CKKS_MALFORMED, "inputs",
                              "%zu input and %zu output signatures, the program has %u and %u", d->n_inputs,
                              d->n_outputs, p->input_count, p->output_count);
    for (uint32_t i = 0; rc == CKKS_OK && i < p->input_count; i++)
        rc = check_signature(r, d->inputs[i], i, "inputs", i);
    for (uint32_t i = 0; rc == CKKS_OK && i < p->output_count; i++)
        rc = check_signature(r, d->outputs[i], p->outputs[i], "outputs", i);
    return rc;
}

static ckks_status read_package(const reader *r, bool allow_insecure) {
    ckks_status rc;
    const description_limits limits = {KEY_REQUIREMENTS_MAX, UINT64_MAX, allow_insecure};
    const Ckksd__V1__PackageManifest *m = r->p->manifest;
    if ((rc = description_validate(m->description, &limits, r->err)) != CKKS_OK) return rc;
    if ((rc = params_from_message(&r->p->params, m->description->parameters, r->err)) != CKKS_OK) return rc;
    if (!m->program) return ckks_error_set(r->err, CKKS_MALFORMED, "program", "program is absent");
    if ((rc = read_plan(r)) != CKKS_OK) return rc;
    return check_signatures(r);
}

ckks_status package_parse(package **out, const void *bytes, size_t size, bool allow_insecure,
                          ckks_error *err) {
    ckks_status rc;
    container_view file = {0};
    package *p = NULL;
    package_memory *memory = NULL;
    *out = NULL;
    if ((rc = container_parse(&file, bytes, size, CONTAINER_PACKAGE, err)) != CKKS_OK) goto out;
    if (!(p = calloc(1, sizeof *p)) || !(p->internal = memory = calloc(1, sizeof *memory)) ||
        !(memory->segments = calloc(file.segment_count + 1u, sizeof *memory->segments))) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "package", "no memory for a package");
        goto out;
    }
    memory->segment_count = file.segment_count;
    rc = message_unpack(&memory->message, &ckksd__v1__package_manifest__descriptor, file.manifest,
                        file.manifest_bytes, message_arena_bytes(file.manifest_bytes, PACKAGE_ARENA_BYTES),
                        "package manifest", err);
    if (rc != CKKS_OK) goto out;
    p->manifest = (const Ckksd__V1__PackageManifest *)(const void *)memory->message;
    memcpy(p->digest, file.digest, sizeof p->digest);
    const reader r = {p, memory, &file, p->manifest->program, err};
    if ((rc = read_package(&r, allow_insecure)) != CKKS_OK) goto out;
    *out = p, p = NULL;
out:
    package_destroy(p);
    container_view_fini(&file);
    return rc;
}

ckks_status package_load(package **out, const char *path, bool allow_insecure, ckks_error *err) {
    container_file file = {0};
    ckks_error inner = {0};
    *out = NULL;
    ckks_status rc = container_read(&file, path, CONTAINER_PACKAGE, PACKAGE_BYTES_MAX, err);
    if (rc != CKKS_OK) return rc;
    rc = package_parse(out, file.bytes, file.size, allow_insecure, &inner);
    if (rc != CKKS_OK) ckks_error_set(err, rc, inner.field, "%.100s: %.200s", path, inner.message);
    container_file_fini(&file);
    return rc;
}

void package_destroy(package *p) {
    if (!p) return;
    package_memory *memory = p->internal;
    if (memory) {
        for (uint32_t i = 0; memory->segments && i < memory->segment_count; i++) free(memory->segments[i]);
        free(memory->segments);
        free(memory->values);
        free(memory->operations);
        free(memory->plains);
        free(memory->transforms);
        free(memory->terms);
        free(memory->polynomials);
        free(memory->matrices);
        free(memory->keys);
        message_free(memory->message);
        free(memory);
    }
    free(p);
}
