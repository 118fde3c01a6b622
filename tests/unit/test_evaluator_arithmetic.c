/*
 * Operations without rotations: each decrypts to the clear result within the stated noise bound (printed
 * beside what was seen), its scale follows the binary64 rules bit for bit, and operands that do not match are
 * refused by the name of the field.
 */
#include "tests/support/evaluator_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LEVEL 3u
#define BATCH 2u
#define SCALE 0x1p35

static evaluator_fixture f;

static int open_fixture(void **state) {
    (void)state;
    const key_requirement keys[] = {{KEY_RELINEARISATION, 0, LEVEL}};
    evaluator_fixture_open(&f, fixture_context(11, LEVEL + 1, 2, 2), keys, 1);
    return 0;
}
static int close_fixture(void **state) {
    (void)state;
    evaluator_fixture_close(&f);
    return 0;
}

typedef enum what {
    ADD,
    SUBTRACT,
    NEGATE,
    ADD_PLAIN,
    MULTIPLY_PLAIN,
    ADD_CONSTANT,
    MULTIPLY_CONSTANT,
    MULTIPLY,
    SQUARE,
    RELINEARISE,
    RELINEARISE_RESCALE,
    RELINEARISE_THEN_RESCALE,
    RESCALE_OF_THREE,
    ADD_OF_TWO_AND_THREE,
    SUBTRACT_THREE_FROM_TWO,
    DROP_LEVEL,
    PLAIN_RESCALE,
    PLAIN_RESCALE_AT_ONCE,
    OPERATION_COUNT
} what;

static const char *const name[OPERATION_COUNT] = {
    "add",
    "subtract",
    "negate",
    "add plain",
    "multiply plain",
    "add constant",
    "multiply constant",
    "multiply",
    "square",
    "relinearise",
    "relinearise with rescale",
    "relinearise, then rescale",
    "rescale of three components",
    "two components plus three",
    "two components minus three",
    "drop level",
    "multiply plain, rescale",
    "the same at once",
};

typedef struct operation {
    what kind;
    ckks_value a, b, plain, plain_rescaling;
    double constant, constant_scale;
} operation;

static ckks_status product_then(const operation *o, evaluator *ev, ckks_value *out, ckks_error *err) {
    ckks_status rc;
    ckks_value product = {0}, linear = {0};
    if ((rc = evaluator_multiply(ev, &product, &o->a, &o->b, err)) != CKKS_OK) return rc;
    switch (o->kind) {
    case RELINEARISE:
        rc = evaluator_relinearise(ev, out, &product, 0, false, err);
        break;
    case RELINEARISE_RESCALE:
        rc = evaluator_relinearise(ev, out, &product, 0, true, err);
        break;
    case RESCALE_OF_THREE:
        rc = evaluator_rescale(ev, out, &product, err);
        break;
    default:
        if ((rc = evaluator_relinearise(ev, &linear, &product, 0, false, err)) == CKKS_OK)
            rc = evaluator_rescale(ev, out, &linear, err);
    }
    evaluator_release(ev, &linear);
    evaluator_release(ev, &product);
    return rc;
}

/* a * plain has the scale of a * b: two components beside three */
static ckks_status mixed(const operation *o, evaluator *ev, ckks_value *out, ckks_error *err) {
    ckks_status rc;
    ckks_value product = {0}, scaled = {0};
    if ((rc = evaluator_multiply(ev, &product, &o->a, &o->b, err)) != CKKS_OK) goto out;
    if ((rc = evaluator_multiply_constant(ev, &scaled, &o->a, 1, o->b.signature.scale, err)) != CKKS_OK)
        goto out;
    rc = o->kind == ADD_OF_TWO_AND_THREE ? evaluator_add(ev, out, &scaled, &product, err)
                                         : evaluator_subtract(ev, out, &scaled, &product, err);
out:
    evaluator_release(ev, &product);
    evaluator_release(ev, &scaled);
    return rc;
}

static ckks_status run(void *context, evaluator *ev, ckks_value *out, ckks_error *err) {
    const operation *o = context;
    ckks_status rc;
    ckks_value t = {0};
    switch (o->kind) {
    case ADD:
        return evaluator_add(ev, out, &o->a, &o->b, err);
    case SUBTRACT:
        return evaluator_subtract(ev, out, &o->a, &o->b, err);
    case NEGATE:
        return evaluator_negate(ev, out, &o->a, err);
    case ADD_PLAIN:
        return evaluator_add_plain(ev, out, &o->a, &o->plain, err);
    case MULTIPLY_PLAIN:
        return evaluator_multiply_plain(ev, out, &o->a, &o->plain, err);
    case ADD_CONSTANT:
        return evaluator_add_constant(ev, out, &o->a, o->constant, err);
    case MULTIPLY_CONSTANT:
        return evaluator_multiply_constant(ev, out, &o->a, o->constant, o->constant_scale, err);
    case MULTIPLY:
        return evaluator_multiply(ev, out, &o->a, &o->b, err);
    case SQUARE:
        return evaluator_square(ev, out, &o->a, err);
    case DROP_LEVEL:
        return evaluator_drop_level(ev, out, &o->a, 1, err);
    case ADD_OF_TWO_AND_THREE:
    case SUBTRACT_THREE_FROM_TWO:
        return mixed(o, ev, out, err);
    case PLAIN_RESCALE:
        if ((rc = evaluator_multiply_plain(ev, &t, &o->a, &o->plain_rescaling, err)) != CKKS_OK) return rc;
        rc = evaluator_rescale(ev, out, &t, err);
        evaluator_release(ev, &t);
        return rc;
    case PLAIN_RESCALE_AT_ONCE:
        return evaluator_multiply_plain_rescale(ev, out, &o->a, &o->plain_rescaling, err);
    default:
        return product_then(o, ev, out, err);
    }
}

static double expect(what kind, double a, double b, double plain, double constant) {
    switch (kind) {
    case ADD:
        return a + b;
    case SUBTRACT:
        return a - b;
    case NEGATE:
        return -a;
    case ADD_PLAIN:
        return a + plain;
    case MULTIPLY_PLAIN:
    case PLAIN_RESCALE:
    case PLAIN_RESCALE_AT_ONCE:
        return a * plain;
    case ADD_CONSTANT:
        return a + constant;
    case MULTIPLY_CONSTANT:
        return a * constant;
    case SQUARE:
        return a * a;
    case DROP_LEVEL:
        return a;
    case ADD_OF_TWO_AND_THREE:
        return a + a * b;
    case SUBTRACT_THREE_FROM_TWO:
        return a - a * b;
    default:
        return a * b;
    }
}

static double expect_scale(what kind) {
    const double last = (double)f.on.params->prime[LEVEL];
    switch (kind) {
    case RELINEARISE_RESCALE:
    case RELINEARISE_THEN_RESCALE:
    case RESCALE_OF_THREE:
        return SCALE * SCALE / last;
    case PLAIN_RESCALE:
    case PLAIN_RESCALE_AT_ONCE:
        return SCALE * last / last;
    case ADD:
    case SUBTRACT:
    case NEGATE:
    case ADD_PLAIN:
    case ADD_CONSTANT:
    case DROP_LEVEL:
        return SCALE;
    default:
        return SCALE * SCALE;
    }
}

static void each_operation_decrypts_to_the_clear_result(void **state) {
    (void)state;
    double *a = evaluator_fixture_slots(&f, BATCH, 2), *b = evaluator_fixture_slots(&f, BATCH, 2);
    double *plain = evaluator_fixture_slots(&f, 1, 2), *imag = evaluator_fixture_slots(&f, BATCH, 0);
    double *expected = evaluator_fixture_slots(&f, BATCH, 0);
    operation o = {.a = evaluator_fixture_encrypt(&f, a, imag, BATCH, LEVEL, SCALE),
                   .b = evaluator_fixture_encrypt(&f, b, imag, BATCH, LEVEL, SCALE),
                   .plain = evaluator_fixture_plain(&f, plain, LEVEL, SCALE),
                   .plain_rescaling =
                       evaluator_fixture_plain(&f, plain, LEVEL, (double)f.on.params->prime[LEVEL]),
                   .constant = -1.375,
                   .constant_scale = SCALE};
    for (o.kind = ADD; o.kind < OPERATION_COUNT; o.kind++) {
        host_value v;
        ckks_error err = {0};
        assert_int_equal(evaluator_fixture_run(&f, &v, 1, run, &o, &err), CKKS_OK);
        for (size_t i = 0; i < (size_t)BATCH * f.slot_count; i++)
            expected[i] = expect(o.kind, a[i], b[i], plain[i % f.slot_count], o.constant);
        /* operands of magnitude 2: a product carries at most 2 + 2 fresh errors, sums of products 6; the
         * rounding of a third component meets s^2, whose coefficients are sqrt(N) times those of s */
        const double error = evaluator_fixture_error(&f, &v, expected, NULL);
        const double bound =
            evaluator_fixture_bound(&f, SCALE, o.kind == RESCALE_OF_THREE ? 6 * sqrt((double)f.on.n) : 6);
        print_message("%-28s error 2^%.1f, bound 2^%.1f\n", name[o.kind], log2(error), log2(bound));
        assert_true(error < bound);
        assert_true(v.signature.scale == expect_scale(o.kind));
        assert_int_equal(v.signature.batch_count, BATCH);
        host_value_free(&v);
    }
    free(a);
    free(b);
    free(plain);
    free(imag);
    free(expected);
}

static void complex_slots_multiply_as_complex_numbers(void **state) {
    (void)state;
    double *re = evaluator_fixture_slots(&f, 1, 1), *im = evaluator_fixture_slots(&f, 1, 1);
    double *square_re = evaluator_fixture_slots(&f, 1, 0), *square_im = evaluator_fixture_slots(&f, 1, 0);
    operation o = {.kind = RELINEARISE_RESCALE, .a = evaluator_fixture_encrypt(&f, re, im, 1, LEVEL, SCALE)};
    o.b = o.a;
    host_value v;
    assert_int_equal(evaluator_fixture_run(&f, &v, 1, run, &o, NULL), CKKS_OK);
    for (uint32_t i = 0; i < f.slot_count; i++) {
        square_re[i] = re[i] * re[i] - im[i] * im[i];
        square_im[i] = 2 * re[i] * im[i];
    }
    assert_true(evaluator_fixture_error(&f, &v, square_re, square_im) <
                evaluator_fixture_bound(&f, SCALE, 4));
    host_value_free(&v);
    free(re);
    free(im);
    free(square_re);
    free(square_im);
}

static void a_product_rescaled_at_once_has_the_words_of_the_two(void **state) {
    (void)state;
    double *a = evaluator_fixture_slots(&f, BATCH, 2), *plain = evaluator_fixture_slots(&f, 1, 2);
    for (uint32_t level = 1; level <= LEVEL; level++) {
        operation o = {.kind = PLAIN_RESCALE,
                       .a = evaluator_fixture_encrypt(&f, a, NULL, BATCH, level, SCALE),
                       .plain_rescaling =
                           evaluator_fixture_plain(&f, plain, level, (double)f.on.params->prime[level])};
        host_value two, one;
        assert_int_equal(evaluator_fixture_run(&f, &two, 1, run, &o, NULL), CKKS_OK);
        o.kind = PLAIN_RESCALE_AT_ONCE;
        for (int is_lacking = 0; is_lacking < 2; is_lacking++) { /* the kernel that does both */
            device_fault_hide(f.on.dev, KERNEL_MULTIPLY_RESCALE, is_lacking);
            assert_int_equal(evaluator_fixture_run(&f, &one, 1, run, &o, NULL), CKKS_OK);
            assert_memory_equal(&one.signature, &two.signature, sizeof one.signature);
            assert_memory_equal(one.words, two.words, two.signature.bytes);
            host_value_free(&one);
        }
        device_fault_hide(f.on.dev, KERNEL_MULTIPLY_RESCALE, false);
        host_value_free(&two);
    }
    operation o = {.kind = PLAIN_RESCALE_AT_ONCE,
                   .a = evaluator_fixture_encrypt(&f, a, NULL, BATCH, 0, SCALE),
                   .plain_rescaling = evaluator_fixture_plain(&f, plain, 0, SCALE)};
    host_value none;
    ckks_error err = {0};
    assert_int_equal(evaluator_fixture_run(&f, &none, 1, run, &o, &err), CKKS_SIGNATURE_MISMATCH);
    assert_string_equal(err.field, "limb_count");
    free(a);
    free(plain);
}

static void square_writes_the_words_of_multiply(void **state) {
    (void)state;
    double *a = evaluator_fixture_slots(&f, 1, 1);
    operation o = {.kind = MULTIPLY, .a = evaluator_fixture_encrypt(&f, a, NULL, 1, LEVEL, SCALE)};
    o.b = o.a;
    host_value product, square;
    assert_int_equal(evaluator_fixture_run(&f, &product, 1, run, &o, NULL), CKKS_OK);
    o.kind = SQUARE;
    assert_int_equal(evaluator_fixture_run(&f, &square, 1, run, &o, NULL), CKKS_OK);
    assert_memory_equal(product.words, square.words, product.signature.bytes);
    host_value_free(&product);
    host_value_free(&square);
    free(a);
}

/* ---- refusals ---- */

typedef struct refusal {
    const char *field;
    ckks_status code;
    what kind;
    void (*spoil)(operation *o);
} refusal;

static void spoil_scale(operation *o) {
    o->b.signature.scale = nextafter(o->b.signature.scale, INFINITY);
}
static void spoil_plain_scale(operation *o) {
    o->plain.signature.scale *= 2;
}
static void spoil_level(operation *o) {
    o->b.signature.limb_count--;
    o->b.signature.bytes = o->b.signature.bytes / (LEVEL + 1) * LEVEL;
}
static void spoil_batch(operation *o) {
    o->b.signature.batch_count = 1;
    o->b.signature.bytes /= BATCH;
}
static void spoil_kind(operation *o) {
    o->a.signature.kind = VALUE_PLAINTEXT;
}
static void spoil_version(operation *o) {
    o->a.signature.schema_version++;
}
static void spoil_parameters(operation *o) {
    o->a.signature.parameter_id[31] ^= 1;
}
static void spoil_domain(operation *o) {
    o->a.signature.domain = VALUE_COEFFICIENT;
}
static void spoil_basis(operation *o) {
    o->a.signature.basis = VALUE_BASIS_QP;
}
static void spoil_device(operation *o) {
    o->a.signature.device++;
}
static void spoil_bytes(operation *o) {
    o->a.signature.bytes -= 8;
}
static void spoil_bytes_upward(operation *o) {
    o->a.signature.bytes += 8;
}
static void spoil_components(operation *o) {
    o->a.signature.component_count = 3;
    o->a.signature.bytes = o->a.signature.bytes / 2 * 3;
}
static void spoil_words(operation *o) {
    o->a.words = NULL;
}
static void spoil_limbs(operation *o) {
    o->a.signature.limb_count = 100;
}
/* one more than there are primes of q: the next one is of P */
static void spoil_limbs_by_one(operation *o) {
    const uint32_t q_count = f.on.params->q_count;
    o->a.signature.bytes = o->a.signature.bytes / o->a.signature.limb_count * (q_count + 1);
    o->a.signature.limb_count = q_count + 1;
}
static void spoil_both_scales(operation *o) {
    o->a.signature.scale = o->b.signature.scale = -SCALE;
}
static void spoil_constant(operation *o) {
    o->constant = NAN;
}
static void spoil_constant_scale(operation *o) {
    o->constant_scale = INFINITY;
}
static void spoil_large_constant(operation *o) {
    o->constant = 0x1p300;
}
static void spoil_to_level_zero(operation *o) {
    o->a.signature.limb_count = 1;
    o->a.signature.bytes /= LEVEL + 1;
    o->b = o->a;
}

static void operands_that_do_not_match_are_refused_by_field(void **state) {
    (void)state;
    static const refusal cases[] = {
        {"scale", CKKS_SIGNATURE_MISMATCH, ADD, spoil_scale},
        {"scale", CKKS_SIGNATURE_MISMATCH, SUBTRACT, spoil_scale},
        {"scale", CKKS_SIGNATURE_MISMATCH, ADD_PLAIN, spoil_plain_scale},
        {"limb_count", CKKS_SIGNATURE_MISMATCH, ADD, spoil_level},
        {"limb_count", CKKS_SIGNATURE_MISMATCH, MULTIPLY, spoil_level},
        {"batch_count", CKKS_SIGNATURE_MISMATCH, MULTIPLY, spoil_batch},
        {"kind", CKKS_SIGNATURE_MISMATCH, NEGATE, spoil_kind},
        {"schema_version", CKKS_SIGNATURE_MISMATCH, NEGATE, spoil_version},
        {"parameter_id", CKKS_SIGNATURE_MISMATCH, NEGATE, spoil_parameters},
        {"domain", CKKS_SIGNATURE_MISMATCH, NEGATE, spoil_domain},
        {"basis", CKKS_SIGNATURE_MISMATCH, NEGATE, spoil_basis},
        {"device", CKKS_SIGNATURE_MISMATCH, NEGATE, spoil_device},
        {"bytes", CKKS_SIGNATURE_MISMATCH, NEGATE, spoil_bytes},
        {"bytes", CKKS_SIGNATURE_MISMATCH, NEGATE, spoil_bytes_upward},
        {"component_count", CKKS_SIGNATURE_MISMATCH, MULTIPLY, spoil_components},
        {"component_count", CKKS_SIGNATURE_MISMATCH, SQUARE, spoil_components},
        {"words", CKKS_INVALID_ARGUMENT, NEGATE, spoil_words},
        {"limb_count", CKKS_SIGNATURE_MISMATCH, NEGATE, spoil_limbs},
        {"limb_count", CKKS_SIGNATURE_MISMATCH, NEGATE, spoil_limbs_by_one},
        {"scale", CKKS_OUT_OF_RANGE, ADD, spoil_both_scales},
        {"value[0]", CKKS_OUT_OF_RANGE, ADD_CONSTANT, spoil_constant},
        {"scale", CKKS_OUT_OF_RANGE, MULTIPLY_CONSTANT, spoil_constant_scale},
        {"scale", CKKS_PRECISION, ADD_CONSTANT, spoil_large_constant},
        {"limb_count", CKKS_SIGNATURE_MISMATCH, RELINEARISE_RESCALE, spoil_to_level_zero},
        {"limb_count", CKKS_SIGNATURE_MISMATCH, RESCALE_OF_THREE, spoil_to_level_zero},
        {"limb_count", CKKS_SIGNATURE_MISMATCH, DROP_LEVEL, spoil_to_level_zero},
    };
    double *a = evaluator_fixture_slots(&f, BATCH, 1);
    const operation good = {.a = evaluator_fixture_encrypt(&f, a, NULL, BATCH, LEVEL, SCALE),
                            .b = evaluator_fixture_encrypt(&f, a, NULL, BATCH, LEVEL, SCALE),
                            .plain = evaluator_fixture_plain(&f, a, LEVEL, SCALE),
                            .constant = 1,
                            .constant_scale = SCALE};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        host_value v;
        ckks_error err = {0};
        operation o = good;
        o.kind = cases[i].kind;
        cases[i].spoil(&o);
        const ckks_status rc = evaluator_fixture_run(&f, &v, 1, run, &o, &err);
        if (rc != cases[i].code || strcmp(err.field, cases[i].field) != 0)
            print_message("case %zu (%s): %s, field %s: %s\n", i, name[o.kind], ckks_status_name(rc),
                          err.field, err.message);
        assert_int_equal(rc, cases[i].code);
        assert_string_equal(err.field, cases[i].field);
    }
    free(a);
}

static ckks_status relinearise_with(void *context, evaluator *ev, ckks_value *out, ckks_error *err) {
    const operation *o = context;
    ckks_value product;
    ckks_status rc = evaluator_square(ev, &product, &o->a, err);
    if (rc == CKKS_OK) rc = evaluator_relinearise(ev, out, &product, 1, false, err);
    return rc;
}

static void a_key_outside_the_table_is_missing(void **state) {
    (void)state;
    double *a = evaluator_fixture_slots(&f, 1, 1);
    operation o = {.a = evaluator_fixture_encrypt(&f, a, NULL, 1, LEVEL, SCALE)};
    host_value v;
    ckks_error err = {0};
    assert_int_equal(evaluator_fixture_run(&f, &v, 1, relinearise_with, &o, &err), CKKS_KEY_MISSING);
    assert_string_equal(err.field, "relin_key");
    free(a);
}

/* ---- the rule on memory ---- */

static ckks_status many_products(void *context, evaluator *ev, ckks_value *out, ckks_error *err) {
    const operation *o = context;
    ckks_status rc = CKKS_OK;
    ckks_value sum = {0}, product = {0}, linear = {0}, next = {0};
    for (uint32_t i = 0; i < 6 && rc == CKKS_OK; i++) {
        if ((rc = evaluator_multiply(ev, &product, &o->a, &o->b, err)) != CKKS_OK) break;
        if ((rc = evaluator_relinearise(ev, &linear, &product, 0, true, err)) != CKKS_OK) break;
        evaluator_release(ev, &product);
        if (!i) {
            sum = linear;
            continue;
        }
        if ((rc = evaluator_add(ev, &next, &sum, &linear, err)) != CKKS_OK) break;
        evaluator_release(ev, &sum);
        evaluator_release(ev, &linear);
        sum = next;
    }
    *out = sum;
    return rc;
}

static void scratch_is_shared_between_operations(void **state) {
    (void)state;
    double *a = evaluator_fixture_slots(&f, 1, 1);
    operation o = {.a = evaluator_fixture_encrypt(&f, a, NULL, 1, LEVEL, SCALE)};
    o.b = o.a;
    workspace *memory = NULL;
    workspace_plan *plan = NULL;
    device_graph *graph = NULL;
    ckks_value out;
    assert_int_equal(workspace_create_planning(&memory, NULL), CKKS_OK);
    evaluator ev = {.stream = f.on.stream,
                    .tables = f.on.tables,
                    .context = f.on.context,
                    .memory = memory,
                    .keys = f.table_device,
                    .key_count = 1};
    assert_int_equal(device_record_begin_planning(f.on.stream, NULL), CKKS_OK);
    assert_int_equal(many_products(&o, &ev, &out, NULL), CKKS_OK);
    assert_int_equal(device_record_end(f.on.stream, &graph, NULL), CKKS_OK);
    assert_int_equal(workspace_plan_create(&plan, memory, graph, NULL), CKKS_OK);
    print_message("arena %llu KiB of %llu KiB unshared\n",
                  (unsigned long long)workspace_plan_bytes(plan) / 1024,
                  (unsigned long long)workspace_plan_bytes_live(plan) / 1024);
    assert_true(workspace_plan_bytes(plan) * 5 < workspace_plan_bytes_live(plan));
    device_graph_destroy(graph);
    workspace_plan_destroy(plan);
    workspace_destroy(memory);
    host_value v;
    assert_int_equal(evaluator_fixture_run(&f, &v, 1, many_products, &o, NULL), CKKS_OK);
    for (uint32_t i = 0; i < f.slot_count; i++) a[i] = 6 * a[i] * a[i];
    assert_true(evaluator_fixture_error(&f, &v, a, NULL) < evaluator_fixture_bound(&f, SCALE, 24));
    host_value_free(&v);
    free(a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_operation_decrypts_to_the_clear_result),
        cmocka_unit_test(complex_slots_multiply_as_complex_numbers),
        cmocka_unit_test(a_product_rescaled_at_once_has_the_words_of_the_two),
        cmocka_unit_test(square_writes_the_words_of_multiply),
        cmocka_unit_test(operands_that_do_not_match_are_refused_by_field),
        cmocka_unit_test(a_key_outside_the_table_is_missing),
        cmocka_unit_test(scratch_is_shared_between_operations),
    };
    return cmocka_run_group_tests(tests, open_fixture, close_fixture);
}
