/* Writing a model package: a plan and a description into one manifest and one segment of numbers. */
#include "kernels/base/bytes.h"
#include "proto/package.h"
#include "proto/packing.h"

#include <stdlib.h>

#define NUMBER_BYTES 8u /* binary64 */

/* Everything that the manifest's messages point to while they are packed. */
typedef struct build {
    const plan *p;
    params_message params;
    signature_message *inputs, *outputs;
    Ckksd__V1__Signature **input_list, **output_list;
    Ckksd__V1__KeyRequirement *keys, **key_list;
    Ckksd__V1__PlanValue *values, **value_list;
    Ckksd__V1__PlanOperation *operations, **operation_list;
    Ckksd__V1__PlanPlain *plains, **plain_list;
    Ckksd__V1__PlanTransform *transforms, **transform_list;
    uint32_t *terms; /* three lists per transform */
    Ckksd__V1__PlanPolynomial *polynomials, **polynomial_list;
    Ckksd__V1__PlanMatrix *matrices, **matrix_list;
    Ckksd__V1__ModelDescription description;
    Ckksd__V1__Program program;
    Ckksd__V1__PackageManifest manifest;
    uint8_t *numbers, *packed;
    uint64_t number_count;
} build;

/* protobuf-c's messages have no const pointers; nothing writes through them while packing. */
#define UNCONST(type, pointer) ((type *)(uintptr_t)(pointer))

static uint64_t bits_of(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* A table of messages and the list of pointers to them, as protobuf-c wants it; both at least one long. */
static bool make_list(void *items, void *list, uint64_t count, size_t size) {
    uint8_t *memory = calloc(count ? count : 1, size);
    uint8_t **pointers = calloc(count ? count : 1, sizeof *pointers);
    for (uint64_t i = 0; memory && pointers && i < count; i++) pointers[i] = memory + i * size;
    memcpy(items, &memory, sizeof memory);
    memcpy(list, &pointers, sizeof pointers);
    return memory && pointers;
}

static bool make_tables(build *b) {
    const plan *p = b->p;
    uint64_t term_total = 0;
    for (uint32_t i = 0; i < p->transform_count; i++) term_total += p->transforms[i].term_count;
    b->terms = calloc(3 * term_total + 1, sizeof *b->terms);
    return b->terms && make_list(&b->inputs, &b->input_list, p->input_count, sizeof *b->inputs) &&
           make_list(&b->outputs, &b->output_list, p->output_count, sizeof *b->outputs) &&
           make_list(&b->keys, &b->key_list, p->key_count, sizeof *b->keys) &&
           make_list(&b->values, &b->value_list, p->value_count, sizeof *b->values) &&
           make_list(&b->operations, &b->operation_list, p->operation_count, sizeof *b->operations) &&
           make_list(&b->plains, &b->plain_list, p->plain_count, sizeof *b->plains) &&
           make_list(&b->transforms, &b->transform_list, p->transform_count, sizeof *b->transforms) &&
           make_list(&b->polynomials, &b->polynomial_list, p->polynomial_count, sizeof *b->polynomials) &&
           make_list(&b->matrices, &b->matrix_list, p->matrix_count, sizeof *b->matrices);
}

static void destroy_tables(build *b) {
    void *const owned[] = {
        b->inputs,      b->input_list,      b->outputs,    b->output_list,    b->keys,
        b->key_list,    b->values,          b->value_list, b->operations,     b->operation_list,
        b->plains,      b->plain_list,      b->transforms, b->transform_list, b->terms,
        b->polynomials, b->polynomial_list, b->matrices,   b->matrix_list,    b->numbers,
        b->packed};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
}

/* ---- numbers: plains in order, then matrices ---- */

static bool make_numbers(build *b) {
    const plan *p = b->p;
    uint64_t total = 0;
    for (uint32_t i = 0; i < p->plain_count; i++) total += p->plains[i].slot_count;
    for (uint32_t i = 0; i < p->matrix_count; i++)
        total += (uint64_t)p->matrices[i].row_count *
                 ((uint64_t)p->matrices[i].column_count + (p->matrices[i].bias ? 1 : 0));
    b->numbers = calloc(total ? total : 1, NUMBER_BYTES);
    return b->numbers != NULL;
}

/* Returns the offset of the first one. */
static uint64_t append_numbers(build *b, const double *values, uint64_t count) {
    const uint64_t offset = b->number_count;
    for (uint64_t i = 0; i < count; i++)
        bytes_write_u64(b->numbers + (offset + i) * NUMBER_BYTES, bits_of(values[i]));
    b->number_count += count;
    return offset;
}

/* ---- program ---- */

static void fill_values(build *b) {
    for (uint32_t i = 0; i < b->p->value_count; i++) {
        const plan_value *v = &b->p->values[i];
        Ckksd__V1__PlanValue *m = b->value_list[i];
        ckksd__v1__plan_value__init(m);
        m->has_level = 1, m->level = v->level;
        m->has_component_count = 1, m->component_count = v->component_count;
        m->has_batch_count = 1, m->batch_count = v->batch_count;
        m->has_scale_bits = 1, m->scale_bits = bits_of(v->scale);
    }
}

/* Fields that an operation does not use are 0 in a plan, and absent here. */
static void fill_operation(Ckksd__V1__PlanOperation *m, const plan_operation *op) {
    ckksd__v1__plan_operation__init(m);
    m->has_kind = 1, m->kind = op->kind;
    m->has_a = 1, m->a = op->a;
    m->has_b = op->b != 0, m->b = op->b;
    m->has_first_output = 1, m->first_output = op->first_output;
    m->has_output_count = 1, m->output_count = op->output_count;
    m->has_plain = op->plain != 0, m->plain = op->plain;
    m->has_transform = op->transform != 0, m->transform = op->transform;
    m->has_polynomial = op->polynomial != 0, m->polynomial = op->polynomial;
    m->has_matrix = op->matrix != 0, m->matrix = op->matrix;
    m->constant_bits = bits_of(op->constant), m->has_constant_bits = m->constant_bits != 0;
    m->constant_scale_bits = bits_of(op->constant_scale);
    m->has_constant_scale_bits = m->constant_scale_bits != 0;
    m->has_with_rescale = op->with_rescale, m->with_rescale = op->with_rescale;
    m->has_flood_bits = op->flood_bits != 0, m->flood_bits = op->flood_bits;
    m->n_steps = op->step_count, m->steps = UNCONST(int32_t, op->steps);
    m->source = UNCONST(char, op->source);
}

static void fill_plains(build *b) {
    for (uint32_t i = 0; i < b->p->plain_count; i++) {
        const plan_plain *v = &b->p->plains[i];
        Ckksd__V1__PlanPlain *m = b->plain_list[i];
        ckksd__v1__plan_plain__init(m);
        m->has_segment = 1, m->segment = 0;
        m->has_offset = 1, m->offset = append_numbers(b, v->slots, v->slot_count);
        m->has_slot_count = 1, m->slot_count = v->slot_count;
        m->has_level = 1, m->level = v->level;
        m->has_with_p = v->with_p, m->with_p = v->with_p;
        m->has_scale_bits = 1, m->scale_bits = bits_of(v->scale);
        m->has_digest = 1, m->digest = (ProtobufCBinaryData){32, UNCONST(uint8_t, v->digest)};
    }
}

static void fill_transforms(build *b) {
    uint32_t *at = b->terms;
    for (uint32_t i = 0; i < b->p->transform_count; i++) {
        const plan_transform *t = &b->p->transforms[i];
        Ckksd__V1__PlanTransform *m = b->transform_list[i];
        ckksd__v1__plan_transform__init(m);
        m->n_baby_steps = t->baby_count, m->baby_steps = UNCONST(int32_t, t->baby_steps);
        m->n_giant_steps = t->giant_count, m->giant_steps = UNCONST(int32_t, t->giant_steps);
        m->n_term_giant = m->n_term_baby = m->n_term_plain = t->term_count;
        m->term_giant = at, m->term_baby = at + t->term_count, m->term_plain = at + 2 * (size_t)t->term_count;
        for (uint32_t k = 0; k < t->term_count; k++) {
            m->term_giant[k] = t->terms[k].giant;
            m->term_baby[k] = t->terms[k].baby;
            m->term_plain[k] = t->terms[k].plain;
        }
        at += 3 * (size_t)t->term_count;
    }
}

static void fill_polynomials_and_matrices(build *b) {
    for (uint32_t i = 0; i < b->p->polynomial_count; i++) {
        const plan_polynomial *v = &b->p->polynomials[i];
        Ckksd__V1__PlanPolynomial *m = b->polynomial_list[i];
        ckksd__v1__plan_polynomial__init(m);
        m->n_coefficients = (size_t)v->degree + 1, m->coefficients = UNCONST(double, v->coefficients);
    }
    for (uint32_t i = 0; i < b->p->matrix_count; i++) {
        const plan_matrix *v = &b->p->matrices[i];
        Ckksd__V1__PlanMatrix *m = b->matrix_list[i];
        ckksd__v1__plan_matrix__init(m);
        m->has_segment = 1, m->segment = 0;
        m->has_offset = 1;
        m->offset = append_numbers(b, v->weights, (uint64_t)v->row_count * v->column_count);
        m->has_row_count = 1, m->row_count = v->row_count;
        m->has_column_count = 1, m->column_count = v->column_count;
        m->has_scale_bits = 1, m->scale_bits = bits_of(v->scale);
        m->has_digest = 1, m->digest = (ProtobufCBinaryData){32, UNCONST(uint8_t, v->digest)};
        if (!v->bias) continue;
        append_numbers(b, v->bias, v->row_count);
        m->has_bias_scale_bits = 1, m->bias_scale_bits = bits_of(v->bias_scale);
    }
}

static void fill_program(build *b) {
    const plan *p = b->p;
    Ckksd__V1__Program *m = &b->program;
    ckksd__v1__program__init(m);
    m->has_input_count = 1, m->input_count = p->input_count;
    m->n_values = p->value_count, m->values = b->value_list;
    fill_values(b);
    m->n_operations = p->operation_count, m->operations = b->operation_list;
    for (uint32_t i = 0; i < p->operation_count; i++) fill_operation(b->operation_list[i], &p->operations[i]);
    m->n_outputs = p->output_count, m->outputs = UNCONST(uint32_t, p->outputs);
    m->n_plains = p->plain_count, m->plains = b->plain_list;
    fill_plains(b);
    m->n_transforms = p->transform_count, m->transforms = b->transform_list;
    fill_transforms(b);
    m->n_polynomials = p->polynomial_count, m->polynomials = b->polynomial_list;
    m->n_matrices = p->matrix_count, m->matrices = b->matrix_list;
    fill_polynomials_and_matrices(b);
    if (!p->has_self_test) return;
    m->has_self_test_seed = 1;
    m->self_test_seed = (ProtobufCBinaryData){32, UNCONST(uint8_t, p->self_test_seed)};
    m->has_self_test_digest = 1;
    m->self_test_digest = (ProtobufCBinaryData){32, UNCONST(uint8_t, p->self_test_digest)};
}

/* ---- description: the caller's, with what the plan decides put in ---- */

static void fill_signature(signature_message *out, const plan *p, uint32_t value) {
    /* signature_to_message points at its source; the parameter id that it names is the plan's */
    value_signature s = {.kind = VALUE_CIPHERTEXT,
                         .schema_version = VALUE_SCHEMA_VERSION,
                         .component_count = p->values[value].component_count,
                         .batch_count = p->values[value].batch_count,
                         .limb_count = p->values[value].level + 1,
                         .domain = VALUE_EVALUATION,
                         .basis = VALUE_BASIS_Q,
                         .scale = p->values[value].scale};
    signature_to_message(out, &s);
    out->message.parameter_id.data = UNCONST(uint8_t, p->params->id);
}

static ckks_status fill_description(build *b, const Ckksd__V1__ModelDescription *description,
                                    ckks_error *err) {
    const plan *p = b->p;
    Ckksd__V1__ModelDescription *m = &b->description;
    *m = *description;
    params_to_message(&b->params, p->params);
    m->parameters = &b->params.message;
    for (uint32_t i = 0; i < p->input_count; i++) {
        fill_signature(&b->inputs[i], p, i);
        b->input_list[i] = &b->inputs[i].message;
    }
    for (uint32_t i = 0; i < p->output_count; i++) {
        fill_signature(&b->outputs[i], p, p->outputs[i]);
        b->output_list[i] = &b->outputs[i].message;
    }
    m->n_inputs = p->input_count, m->inputs = b->input_list;
    m->n_outputs = p->output_count, m->outputs = b->output_list;
    key_requirements_to_messages(b->keys, b->key_list, p->keys, p->key_count);
    m->n_keys = p->key_count, m->keys = b->key_list;
    m->has_key_bytes = 1;
    if (!packing_key_set_bytes(&m->key_bytes, p->params, p->keys, p->key_count))
        return ckks_error_set(err, CKKS_TOO_LARGE, "keys", "the keys' size does not fit 64 bits");
    m->has_insecure = p->is_insecure, m->insecure = p->is_insecure;
    m->has_security_bits = 1, m->security_bits = params_security_bits(p->params);
    /* the digest is of the finished file: whoever serves it knows it */
    m->has_digest = 0, m->digest = (ProtobufCBinaryData){0, NULL};
    return CKKS_OK;
}

ckks_status package_build(uint8_t **out, size_t *size, const plan *p,
                          const Ckksd__V1__ModelDescription *description,
                          const Ckksd__V1__CompileReport *report, ckks_error *err) {
    ckks_status rc;
    build b = {.p = p};
    *out = NULL, *size = 0;
    if ((rc = plan_check(p, err)) != CKKS_OK) return rc;
    if (!make_tables(&b) || !make_numbers(&b)) goto exhausted;
    fill_program(&b);
    if ((rc = fill_description(&b, description, err)) != CKKS_OK) goto out;
    ckksd__v1__package_manifest__init(&b.manifest);
    b.manifest.description = &b.description;
    b.manifest.program = &b.program;
    b.manifest.report = UNCONST(Ckksd__V1__CompileReport, report);
    const size_t manifest_bytes = ckksd__v1__package_manifest__get_packed_size(&b.manifest);
    if (manifest_bytes > CONTAINER_MANIFEST_MAX) {
        rc = ckks_error_set(err, CKKS_TOO_LARGE, "manifest", "a manifest of %zu bytes, at most %u fit",
                            manifest_bytes, CONTAINER_MANIFEST_MAX);
        goto out;
    }
    if (!(b.packed = malloc(manifest_bytes))) goto exhausted;
    ckksd__v1__package_manifest__pack(&b.manifest, b.packed);
    const container_segment numbers = {b.numbers, b.number_count * NUMBER_BYTES};
    rc = container_build(out, size, CONTAINER_PACKAGE, b.packed, (uint32_t)manifest_bytes, &numbers, 1, err);
    goto out;
exhausted:
    rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "package", "no memory to write a package");
out:
    destroy_tables(&b);
    return rc;
}
