/* Model packages: exact round trip, and each way of being wrong by the table. */
#include "proto/package.h"

#include "kernels/base/hash.h"
#include "tests/support/alloc_fault.h"
#include "tests/support/model_fixture.h"
#include "tests/support/plan_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint8_t *build(size_t *size, const plan *p) {
    model_fixture model;
    Ckksd__V1__CompileReport report;
    uint8_t *image;
    ckks_error err = {0};
    model_fixture_init(&model);
    model.description.version = NULL;
    ckksd__v1__compile_report__init(&report);
    report.producer = (char *)(uintptr_t) "test";
    if (package_build(&image, size, p, &model.description, &report, &err) != CKKS_OK)
        fail_msg("%s: %s", err.field, err.message);
    return image;
}

static void number_digests(plan_fixture *f) {
    for (uint32_t i = 0; i < f->plan.plain_count; i++) memset(f->plains[i].digest, (int)i + 1, 32);
    for (uint32_t i = 0; i < f->plan.matrix_count; i++) memset(f->matrices[i].digest, (int)i + 101, 32);
}

#define SAME(a, b) assert_memory_equal(&(a), &(b), sizeof(a))

static void assert_same_operation(const plan_operation *a, const plan_operation *b) {
    assert_int_equal(a->kind, b->kind);
    assert_int_equal(a->a, b->a);
    assert_int_equal(a->b, b->b);
    assert_int_equal(a->first_output, b->first_output);
    assert_int_equal(a->output_count, b->output_count);
    assert_int_equal(a->plain, b->plain);
    assert_int_equal(a->transform, b->transform);
    assert_int_equal(a->polynomial, b->polynomial);
    assert_int_equal(a->matrix, b->matrix);
    SAME(a->constant, b->constant);
    SAME(a->constant_scale, b->constant_scale);
    assert_int_equal(a->with_rescale, b->with_rescale);
    assert_int_equal(a->flood_bits, b->flood_bits);
    assert_int_equal(a->step_count, b->step_count);
    if (a->step_count) assert_memory_equal(a->steps, b->steps, a->step_count * sizeof *a->steps);
    assert_string_equal(a->source, b->source);
}

static void assert_same_tables(const plan *a, const plan *b) {
    assert_int_equal(a->plain_count, b->plain_count);
    for (uint32_t i = 0; i < a->plain_count; i++) {
        const plan_plain *x = &a->plains[i], *y = &b->plains[i];
        assert_int_equal(x->slot_count, y->slot_count);
        assert_memory_equal(x->slots, y->slots, x->slot_count * sizeof *x->slots);
        assert_int_equal(x->level, y->level);
        assert_int_equal(x->with_p, y->with_p);
        SAME(x->scale, y->scale);
        SAME(x->digest, y->digest);
    }
    assert_int_equal(a->transform_count, b->transform_count);
    for (uint32_t i = 0; i < a->transform_count; i++) {
        const plan_transform *x = &a->transforms[i], *y = &b->transforms[i];
        assert_int_equal(x->baby_count, y->baby_count);
        assert_int_equal(x->giant_count, y->giant_count);
        assert_int_equal(x->term_count, y->term_count);
        assert_memory_equal(x->baby_steps, y->baby_steps, x->baby_count * sizeof *x->baby_steps);
        assert_memory_equal(x->giant_steps, y->giant_steps, x->giant_count * sizeof *x->giant_steps);
        assert_memory_equal(x->terms, y->terms, x->term_count * sizeof *x->terms);
    }
    assert_int_equal(a->polynomial_count, b->polynomial_count);
    for (uint32_t i = 0; i < a->polynomial_count; i++) {
        const plan_polynomial *x = &a->polynomials[i], *y = &b->polynomials[i];
        assert_int_equal(x->degree, y->degree);
        assert_memory_equal(x->coefficients, y->coefficients, (x->degree + 1) * sizeof *x->coefficients);
    }
    assert_int_equal(a->matrix_count, b->matrix_count);
    for (uint32_t i = 0; i < a->matrix_count; i++) {
        const plan_matrix *x = &a->matrices[i], *y = &b->matrices[i];
        assert_true(!x->bias == !y->bias && x->bias_scale == y->bias_scale);
        if (x->bias) assert_memory_equal(x->bias, y->bias, x->row_count * sizeof *x->bias);
        assert_int_equal(x->row_count, y->row_count);
        assert_int_equal(x->column_count, y->column_count);
        assert_memory_equal(x->weights, y->weights, x->row_count * x->column_count * sizeof *x->weights);
        SAME(x->scale, y->scale);
        SAME(x->digest, y->digest);
    }
}

static void assert_same_plan(const plan *a, const plan *b) {
    SAME(a->params->id, b->params->id);
    assert_int_equal(a->is_insecure, b->is_insecure);
    assert_int_equal(a->input_count, b->input_count);
    assert_int_equal(a->value_count, b->value_count);
    for (uint32_t i = 0; i < a->value_count; i++) {
        assert_int_equal(a->values[i].level, b->values[i].level);
        assert_int_equal(a->values[i].component_count, b->values[i].component_count);
        assert_int_equal(a->values[i].batch_count, b->values[i].batch_count);
        SAME(a->values[i].scale, b->values[i].scale);
    }
    assert_int_equal(a->operation_count, b->operation_count);
    for (uint32_t i = 0; i < a->operation_count; i++)
        assert_same_operation(&a->operations[i], &b->operations[i]);
    assert_int_equal(a->output_count, b->output_count);
    assert_memory_equal(a->outputs, b->outputs, a->output_count * sizeof *a->outputs);
    assert_same_tables(a, b);
    assert_int_equal(a->key_count, b->key_count);
    if (a->key_count) assert_memory_equal(a->keys, b->keys, a->key_count * sizeof *a->keys);
    assert_int_equal(a->has_self_test, b->has_self_test);
    SAME(a->self_test_seed, b->self_test_seed);
    SAME(a->self_test_digest, b->self_test_digest);
}

static void check_round_trip(plan_fixture *f) {
    size_t size, again_size;
    package *p;
    ckks_error err = {0};
    uint8_t digest[32], *again;
    number_digests(f);
    uint8_t *image = build(&size, &f->plan);
    sha256(digest, image, size);
    if (package_parse(&p, image, size, true, &err) != CKKS_OK) fail_msg("%s: %s", err.field, err.message);
    memset(image, 0xdd, size); /* may be freed afterwards */
    free(image);
    assert_same_plan(&f->plan, &p->plan);
    assert_memory_equal(p->digest, digest, 32);
    assert_string_equal(p->manifest->description->name, "identity");
    assert_int_equal(p->manifest->description->n_columns, 4);
    assert_string_equal(p->manifest->report->producer, "test");
    /* what was read is written again to the byte */
    assert_int_equal(
        package_build(&again, &again_size, &p->plan, p->manifest->description, p->manifest->report, NULL),
        CKKS_OK);
    assert_int_equal(again_size, size);
    sha256(digest, again, size);
    assert_memory_equal(p->digest, digest, 32);
    free(again);
    package_destroy(p);
    plan_fixture_destroy(f);
}

static void a_package_comes_back_as_it_was_built(void **state) {
    (void)state;
    check_round_trip(plan_fixture_small());
    check_round_trip(plan_fixture_batch());
    check_round_trip(plan_fixture_tiny(true));
    plan_fixture *f = plan_fixture_tiny(false);
    f->plan.has_self_test = true;
    memset(f->plan.self_test_seed, 7, 32);
    memset(f->plan.self_test_digest, 9, 32);
    check_round_trip(f);
}

static void an_insecure_package_is_refused_unless_allowed(void **state) {
    (void)state;
    size_t size;
    package *p;
    ckks_error err = {0};
    plan_fixture *f = plan_fixture_small();
    uint8_t *image = build(&size, &f->plan);
    assert_int_equal(package_parse(&p, image, size, false, &err), CKKS_INSECURE_PARAMETERS);
    assert_null(p);
    free(image);
    plan_fixture_destroy(f);
    f = plan_fixture_tiny(true);
    image = build(&size, &f->plan);
    assert_int_equal(package_parse(&p, image, size, false, NULL), CKKS_OK);
    package_destroy(p);
    free(image);
    plan_fixture_destroy(f);
}

/* ---- damage: one thing of the manifest changed, the file's hash right ---- */

typedef Ckksd__V1__PackageManifest manifest;

static void no_description(manifest *m) {
    ckksd__v1__model_description__free_unpacked(m->description, NULL);
    m->description = NULL;
}
static void no_program(manifest *m) {
    ckksd__v1__program__free_unpacked(m->program, NULL);
    m->program = NULL;
}
static void no_input_count(manifest *m) {
    m->program->has_input_count = 0;
}
static void value_without_level(manifest *m) {
    m->program->values[3]->has_level = 0;
}
static void operation_without_kind(manifest *m) {
    m->program->operations[3]->has_kind = 0;
}
static void operation_without_source(manifest *m) {
    free(m->program->operations[3]->source);
    m->program->operations[3]->source = NULL;
}
static void operand_out_of_range(manifest *m) {
    m->program->operations[3]->a = 70000;
}
static void operation_kind_unknown(manifest *m) {
    m->program->operations[3]->kind = 21;
}
static void plain_index(manifest *m) {
    m->program->operations[4]->plain = 77;
}
static void transform_index(manifest *m) {
    m->program->operations[0]->has_transform = 1, m->program->operations[0]->transform = 1;
}
static void polynomial_index(manifest *m) {
    m->program->operations[3]->has_polynomial = 1, m->program->operations[3]->polynomial = 1;
}
static void plain_segment(manifest *m) {
    m->program->plains[2]->segment = 1;
}
static void plain_offset(manifest *m) {
    m->program->plains[2]->offset = UINT64_MAX - 100;
}
static void plain_past_the_end(manifest *m) {
    m->program->plains[m->program->n_plains - 1]->offset += 1;
}
static void plain_slot_count(manifest *m) {
    m->program->plains[2]->slot_count = UINT32_MAX;
}
static void plain_without_digest(manifest *m) {
    m->program->plains[2]->has_digest = 0;
}
static void plain_short_digest(manifest *m) {
    m->program->plains[2]->digest.len = 31;
}
static void plain_scale_nan(manifest *m) {
    m->program->plains[2]->scale_bits = UINT64_C(0x7ff8000000000000);
}
static void plain_level(manifest *m) {
    m->program->plains[2]->level = 7;
}
static void term_lists_differ(manifest *m) {
    m->program->transforms[0]->n_term_baby--;
}
static void term_plain(manifest *m) {
    m->program->transforms[0]->term_plain[1] = 1000;
}
static void no_terms(manifest *m) {
    Ckksd__V1__PlanTransform *t = m->program->transforms[0];
    t->n_term_baby = t->n_term_giant = t->n_term_plain = 0;
}
static void polynomial_of_one_coefficient(manifest *m) {
    m->program->polynomials[0]->n_coefficients = 1;
}
static void output_index(manifest *m) {
    m->program->outputs[0] = 500;
}
static void no_outputs(manifest *m) {
    m->program->n_outputs = 0;
}
static void seed_without_digest(manifest *m) {
    m->program->has_self_test_seed = 1;
    m->program->self_test_seed.data = calloc(1, 32), m->program->self_test_seed.len = 32;
}
static void program_key_missing(manifest *m) {
    Ckksd__V1__ModelDescription *d = m->description;
    d->n_keys--;
    ckksd__v1__key_requirement__free_unpacked(d->keys[d->n_keys], NULL);
}
static void input_scale(manifest *m) {
    m->description->inputs[0]->scale_bits ^= 1;
}
static void output_level(manifest *m) {
    m->description->outputs[0]->limb_count--;
}
static void one_output_signature_too_few(manifest *m) {
    m->description->n_outputs--;
    ckksd__v1__signature__free_unpacked(m->description->outputs[1], NULL);
}
static void parameter_id(manifest *m) {
    m->description->parameters->id.data[0] ^= 1;
}
static void prime_not_prime(manifest *m) {
    m->description->parameters->q[1] += 2;
}
static void root_zero(manifest *m) {
    m->description->parameters->psi[1] = 0;
}
static void duplicate_key(manifest *m) {
    m->description->keys[2]->galois_element = m->description->keys[1]->galois_element;
}
static void claims_to_be_secure(manifest *m) {
    m->description->has_insecure = 0;
}
static void sources_with_escape(manifest *m) {
    m->description->name[0] = 27;
}

static void each_damaged_manifest_is_refused_by_name(void **state) {
    (void)state;
    static const struct {
        void (*damage)(manifest *);
        ckks_status code;
        const char *field;
    } table[] = {
        {no_description, CKKS_MALFORMED, "description"},
        {no_program, CKKS_MALFORMED, "program"},
        {no_input_count, CKKS_MALFORMED, "inputs"},
        {value_without_level, CKKS_MALFORMED, "value 3"},
        {operation_without_kind, CKKS_MALFORMED, "operation 3"},
        {operation_without_source, CKKS_MALFORMED, "operation 3"},
        {operand_out_of_range, CKKS_MALFORMED, "operation 3 (CHEBYSHEV, test)"},
        {operation_kind_unknown, CKKS_MALFORMED, "operation 3 (UNKNOWN, test)"},
        {plain_index, CKKS_MALFORMED, "operation 4 (ADD_PLAIN, test)"},
        {transform_index, CKKS_MALFORMED, "operation 0 (LINEAR_TRANSFORM, test)"},
        {polynomial_index, CKKS_MALFORMED, "operation 3 (CHEBYSHEV, test)"},
        {plain_segment, CKKS_MALFORMED, "plain 2"},
        {plain_offset, CKKS_MALFORMED, "plain 2"},
        {plain_past_the_end, CKKS_MALFORMED, "plain 7"},
        {plain_slot_count, CKKS_MALFORMED, "plain 2"},
        {plain_without_digest, CKKS_MALFORMED, "plain 2"},
        {plain_short_digest, CKKS_MALFORMED, "plain 2"},
        {plain_scale_nan, CKKS_MALFORMED, "plain 2"},
        {plain_level, CKKS_MALFORMED, "plain 2"},
        {term_lists_differ, CKKS_MALFORMED, "transform 0"},
        {term_plain, CKKS_MALFORMED, "transform 0"},
        {no_terms, CKKS_MALFORMED, "transform 0"},
        {polynomial_of_one_coefficient, CKKS_MALFORMED, "polynomial 0"},
        {output_index, CKKS_MALFORMED, "outputs"},
        {no_outputs, CKKS_MALFORMED, "outputs"},
        {seed_without_digest, CKKS_MALFORMED, "self test digest 0"},
        {program_key_missing, CKKS_MALFORMED, "key_bytes"},
        {input_scale, CKKS_SIGNATURE_MISMATCH, "inputs[0].scale"},
        {output_level, CKKS_SIGNATURE_MISMATCH, "outputs[0].limb_count"},
        {one_output_signature_too_few, CKKS_MALFORMED, "inputs"},
        {parameter_id, CKKS_PARAMS_MISMATCH, "parameters.id"},
        {prime_not_prime, CKKS_INVALID_ARGUMENT, NULL},
        {root_zero, CKKS_MALFORMED, "parameters.psi"},
        {duplicate_key, CKKS_MALFORMED, "keys"},
        {claims_to_be_secure, CKKS_INSECURE_PARAMETERS, NULL},
        {sources_with_escape, CKKS_MALFORMED, "name"},
    };
    plan_fixture *f = plan_fixture_small();
    size_t size;
    uint8_t *image = build(&size, &f->plan);
    container_view view;
    assert_int_equal(container_parse(&view, image, size, CONTAINER_PACKAGE, NULL), CKKS_OK);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        manifest *m = ckksd__v1__package_manifest__unpack(NULL, view.manifest_bytes, view.manifest);
        table[i].damage(m);
        const size_t bytes = ckksd__v1__package_manifest__get_packed_size(m);
        uint8_t *packed = malloc(bytes), *forged;
        size_t forged_size;
        ckksd__v1__package_manifest__pack(m, packed);
        assert_int_equal(container_build(&forged, &forged_size, CONTAINER_PACKAGE, packed, (uint32_t)bytes,
                                         view.segments, view.segment_count, NULL),
                         CKKS_OK);
        package *p;
        ckks_error err = {0};
        const ckks_status rc = package_parse(&p, forged, forged_size, true, &err);
        if (rc != table[i].code || (table[i].field && strcmp(err.field, table[i].field) != 0))
            print_message("entry %zu: %s: %s: %s\n", i, ckks_status_name(rc), err.field, err.message);
        assert_int_equal(rc, table[i].code);
        if (table[i].field) assert_string_equal(err.field, table[i].field);
        assert_null(p);
        free(packed), free(forged);
        ckksd__v1__package_manifest__free_unpacked(m, NULL);
    }
    container_view_fini(&view);
    free(image);
    plan_fixture_destroy(f);
}

static void every_truncated_manifest_is_refused(void **state) {
    (void)state;
    plan_fixture *f = plan_fixture_tiny(true);
    size_t size;
    uint8_t *image = build(&size, &f->plan);
    container_view view;
    assert_int_equal(container_parse(&view, image, size, CONTAINER_PACKAGE, NULL), CKKS_OK);
    /* a cut between two fields leaves a valid message: the report, which is optional, is the last field */
    const uint32_t report_bytes = 8;
    for (uint32_t cut = 0; cut + report_bytes < view.manifest_bytes; cut += 3) {
        uint8_t *forged;
        size_t forged_size;
        package *p;
        assert_int_equal(container_build(&forged, &forged_size, CONTAINER_PACKAGE, view.manifest, cut,
                                         view.segments, view.segment_count, NULL),
                         CKKS_OK);
        assert_int_not_equal(package_parse(&p, forged, forged_size, true, NULL), CKKS_OK);
        free(forged);
    }
    container_view_fini(&view);
    free(image);
    plan_fixture_destroy(f);
}

static void parsing_and_building_survive_every_failed_allocation(void **state) {
    (void)state;
    plan_fixture *f = plan_fixture_tiny(true);
    model_fixture model;
    size_t size, again_size;
    uint8_t *image = build(&size, &f->plan), *again;
    model_fixture_init(&model);
    for (uint64_t n = 1;; n++) {
        package *p;
        alloc_fault_set(n);
        const ckks_status rc = package_parse(&p, image, size, true, NULL);
        const bool was_hit = alloc_fault_calls() >= n;
        alloc_fault_set(0);
        package_destroy(p);
        assert_true(rc == CKKS_OK ? p != NULL : p == NULL);
        if (!was_hit) break;
        assert_int_equal(rc, CKKS_RESOURCE_EXHAUSTED);
    }
    for (uint64_t n = 1;; n++) {
        alloc_fault_set(n);
        const ckks_status rc = package_build(&again, &again_size, &f->plan, &model.description, NULL, NULL);
        const bool was_hit = alloc_fault_calls() >= n;
        alloc_fault_set(0);
        free(again);
        if (!was_hit) break;
        assert_int_equal(rc, CKKS_RESOURCE_EXHAUSTED);
    }
    free(image);
    plan_fixture_destroy(f);
}

static void a_plan_that_fails_its_check_is_not_written(void **state) {
    (void)state;
    plan_fixture *f = plan_fixture_tiny(true);
    model_fixture model;
    size_t size;
    uint8_t *image;
    model_fixture_init(&model);
    f->values[1].scale *= 2;
    assert_int_equal(package_build(&image, &size, &f->plan, &model.description, NULL, NULL),
                     CKKS_SIGNATURE_MISMATCH);
    assert_null(image);
    plan_fixture_destroy(f);
}

static void a_file_that_is_no_package_says_what_it_is(void **state) {
    (void)state;
    uint8_t *image;
    size_t size;
    package *p;
    ckks_error err = {0};
    assert_int_equal(container_build(&image, &size, CONTAINER_KEY_SET, "x", 1, NULL, 0, NULL), CKKS_OK);
    assert_int_equal(package_parse(&p, image, size, true, &err), CKKS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "key set"));
    free(image);
    assert_int_equal(package_load(&p, "/nonexistent.ckm", true, NULL), CKKS_NOT_FOUND);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_package_comes_back_as_it_was_built),
        cmocka_unit_test(an_insecure_package_is_refused_unless_allowed),
        cmocka_unit_test(each_damaged_manifest_is_refused_by_name),
        cmocka_unit_test(every_truncated_manifest_is_refused),
        cmocka_unit_test(parsing_and_building_survive_every_failed_allocation),
        cmocka_unit_test(a_plan_that_fails_its_check_is_not_written),
        cmocka_unit_test(a_file_that_is_no_package_says_what_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
