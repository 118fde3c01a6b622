/*
 * Linear transforms and matrix products against the clear ones. A transform's diagonals are cut from a dense
 * clear matrix here, pre-rotation included, so that a wrong sign cannot hide.
 */
#include "kernels/scheme/internal.h"
#include "tests/support/evaluator_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LOG_N         11u
#define LEVEL         3u
#define SCALE         0x1p35
#define DIMENSION_MAX 64u

static evaluator_fixture f;
static const int64_t key_steps[] = {1, 2, 3, 4, 5, 6, 7, 8, 16, 24, 32, 40, 48, 56, -1, -2, -3, -8, -16, 100};
#define KEY_STEPS (sizeof key_steps / sizeof key_steps[0])

static int open_fixture(void **state) {
    (void)state;
    key_requirement keys[KEY_STEPS];
    for (size_t i = 0; i < KEY_STEPS; i++)
        keys[i] = (key_requirement){KEY_GALOIS, galois_element_rotate(LOG_N, key_steps[i]), LEVEL};
    evaluator_fixture_open(&f, fixture_context(LOG_N, LEVEL + 1, 2, 2), keys, KEY_STEPS);
    return 0;
}
static int close_fixture(void **state) {
    (void)state;
    evaluator_fixture_close(&f);
    return 0;
}

/* A transform on vectors of `dimension` slots, repeated over all slots. */
typedef struct transform {
    uint32_t dimension, level, baby_count, giant_count, term_count;
    bool with_rescale;
    double plain_scale;
    int64_t baby_steps[16], giant_steps[16];
    galois_step babies[16], giants[16];
    linear_transform_term terms[256];
    double matrix[DIMENSION_MAX][DIMENSION_MAX]; /* what the terms add up to */
    linear_transform *made;
    ckks_value a;
} transform;

static uint32_t wrapped(int64_t index, uint32_t dimension) {
    return (uint32_t)(index & (int64_t)(dimension - 1));
}

/* a random diagonal giant + baby, encoded rotated right by the giant step */
static void add_term(transform *t, uint32_t giant, uint32_t baby) {
    double diagonal[DIMENSION_MAX], placed[DIMENSION_MAX];
    const int64_t k = t->giant_steps[giant] + t->baby_steps[baby];
    for (uint32_t i = 0; i < t->dimension; i++) {
        diagonal[i] = prng_symmetric(&f.r);
        t->matrix[i][wrapped(i + k, t->dimension)] += diagonal[i];
    }
    for (uint32_t i = 0; i < t->dimension; i++)
        placed[i] = diagonal[wrapped((int64_t)i - t->giant_steps[giant], t->dimension)];
    t->terms[t->term_count++] = (linear_transform_term){
        giant, baby, evaluator_fixture_diagonal(&f, placed, t->dimension, t->level, t->plain_scale)};
}

static ckks_status make(transform *t, ckks_error *err) {
    for (uint32_t i = 0; i < t->baby_count; i++)
        t->babies[i] = evaluator_fixture_rotation(&f, t->baby_steps[i]);
    for (uint32_t i = 0; i < t->giant_count; i++)
        t->giants[i] = evaluator_fixture_rotation(&f, t->giant_steps[i]);
    return linear_transform_create(&t->made, f.on.dev, f.on.context, t->level, t->babies, t->baby_count,
                                   t->giants, t->giant_count, t->terms, t->term_count, t->with_rescale,
                                   t->plain_scale, err);
}

static ckks_status run(void *context, evaluator *ev, ckks_value *out, ckks_error *err) {
    const transform *t = context;
    return evaluator_linear_transform(ev, out, t->made, &t->a, err);
}

static void check(transform *t, uint32_t batch, const char *what) {
    ckks_error err = {0};
    double *x = evaluator_fixture_slots(&f, batch, 1), *y = evaluator_fixture_slots(&f, batch, 0);
    host_value v;
    if (make(t, &err) != CKKS_OK) fail_msg("%s: %s", err.field, err.message);
    for (uint32_t b = 0; b < batch; b++)
        for (uint32_t i = 0; i < f.slot_count; i++) {
            double *vector = x + (size_t)b * f.slot_count;
            vector[i] = vector[i % t->dimension]; /* repeated over all slots */
        }
    for (uint32_t b = 0; b < batch; b++)
        for (uint32_t i = 0; i < f.slot_count; i++)
            for (uint32_t k = 0; k < t->dimension; k++)
                y[(size_t)b * f.slot_count + i] +=
                    t->matrix[i % t->dimension][k] * x[(size_t)b * f.slot_count + k];
    t->a = evaluator_fixture_encrypt(&f, x, NULL, batch, t->level, SCALE);
    assert_int_equal(evaluator_fixture_run(&f, &v, 1, run, t, &err), CKKS_OK);
    const double error = evaluator_fixture_error(&f, &v, y, NULL);
    /* each diagonal carries a fresh and a key switch error, random signs */
    const double bound = evaluator_fixture_bound(&f, SCALE, 2 + sqrt((double)t->dimension));
    print_message("%-34s %3u terms, %2u launches, error 2^%.1f, bound 2^%.1f\n", what, t->term_count,
                  f.node_count, log2(error), log2(bound));
    assert_true(error < bound);
    const double last = (double)f.on.params->prime[t->level];
    assert_true(v.signature.scale ==
                (t->with_rescale ? SCALE * t->plain_scale / last : SCALE * t->plain_scale));
    assert_int_equal(v.signature.limb_count, t->level + (t->with_rescale ? 0 : 1));
    host_value_free(&v);
    linear_transform_destroy(t->made);
    t->made = NULL;
    free(x);
    free(y);
}

static transform *transform_new(uint32_t dimension, bool with_rescale) {
    transform *t = calloc(1, sizeof *t);
    assert_non_null(t);
    t->dimension = dimension;
    t->level = LEVEL;
    t->with_rescale = with_rescale;
    t->plain_scale = (double)f.on.params->prime[LEVEL];
    return t;
}

static void a_dense_matrix_of_all_diagonals(void **state) {
    (void)state;
    for (uint32_t round = 0; round < 2; round++) {
        transform *t = transform_new(64, round == 0);
        for (uint32_t i = 0; i < 8; i++) t->baby_steps[i] = i, t->giant_steps[i] = 8 * (int64_t)i;
        t->baby_count = t->giant_count = 8;
        for (uint32_t g = 0; g < 8; g++)
            for (uint32_t b = 0; b < 8; b++) add_term(t, g, b);
        check(t, 1, round ? "dense 64 x 64, not rescaled" : "dense 64 x 64");
        free(t);
    }
}

static void launches_do_not_grow_with_the_diagonals(void **state) {
    (void)state;
    uint32_t nodes[2];
    for (uint32_t round = 0; round < 2; round++) {
        transform *t = transform_new(64, true);
        t->baby_steps[0] = 0, t->baby_steps[1] = 1, t->giant_steps[0] = 0, t->giant_steps[1] = 8;
        for (uint32_t i = 2; i < 8; i++) t->baby_steps[i] = i, t->giant_steps[i] = 8 * (int64_t)i;
        t->baby_count = t->giant_count = round ? 8 : 2;
        for (uint32_t g = 0; g < t->giant_count; g++)
            for (uint32_t b = 0; b < t->baby_count; b++) add_term(t, g, b);
        check(t, 1, "");
        nodes[round] = f.node_count;
        free(t);
    }
    assert_int_equal(nodes[0], nodes[1]);
}

static void sparse_negative_and_single_sided_transforms(void **state) {
    (void)state;
    transform *t = transform_new(64, true);
    t->baby_steps[0] = -1, t->baby_steps[1] = 0, t->baby_steps[2] = 5, t->baby_steps[3] = 3;
    t->giant_steps[0] = 16, t->giant_steps[1] = -8, t->giant_steps[2] = 0;
    t->baby_count = 4, t->giant_count = 3;
    add_term(t, 2, 2); /* in no order; baby 3 has no term */
    add_term(t, 0, 0);
    add_term(t, 1, 1);
    add_term(t, 2, 0);
    add_term(t, 1, 2);
    check(t, 2, "sparse, negative steps, batch of 2");
    free(t);

    t = transform_new(64, true); /* the identity alone: a plaintext product */
    t->baby_count = t->giant_count = 1;
    add_term(t, 0, 0);
    check(t, 1, "main diagonal alone");
    free(t);

    t = transform_new(64, true); /* no identity on either side */
    t->baby_steps[0] = 2, t->baby_steps[1] = -3, t->giant_steps[0] = 8, t->giant_steps[1] = 24;
    t->baby_count = t->giant_count = 2;
    add_term(t, 0, 0);
    add_term(t, 0, 1);
    add_term(t, 1, 1);
    check(t, 1, "no identity step");
    free(t);

    t = transform_new(64, true); /* baby steps only */
    t->baby_steps[0] = 1, t->baby_steps[1] = 7;
    t->baby_count = 2, t->giant_count = 1;
    add_term(t, 0, 0);
    add_term(t, 0, 1);
    check(t, 1, "baby steps only");
    free(t);

    t = transform_new(64, true); /* giant steps only */
    t->giant_steps[0] = 40, t->giant_steps[1] = -16;
    t->baby_count = 1, t->giant_count = 2;
    add_term(t, 0, 0);
    add_term(t, 1, 0);
    check(t, 1, "giant steps only");
    free(t);

    t = transform_new(16, true); /* lower level than the keys */
    t->level = 1;
    t->plain_scale = (double)f.on.params->prime[1];
    for (uint32_t i = 0; i < 4; i++) t->baby_steps[i] = i, t->giant_steps[i] = 4 * (int64_t)i;
    t->baby_count = 4, t->giant_count = 3;
    for (uint32_t g = 0; g < 3; g++)
        for (uint32_t b = 0; b < 4; b++) add_term(t, g, b);
    check(t, 1, "level 1 with keys of level 3");
    free(t);
}

static void transforms_that_make_no_sense_are_refused(void **state) {
    (void)state;
    const galois_step one[] = {{1, 0}}, same[] = {{5, 0}, {5, 1}}, even[] = {{4, 0}};
    uint64_t words[2] = {0};
    const linear_transform_term good[] = {{0, 0, words}}, beyond[] = {{0, 1, words}},
                                no_plain[] = {{0, 0, NULL}};
    const linear_transform_term twice[] = {{0, 0, words}, {0, 0, words}};
    const struct {
        const char *field;
        const galois_step *babies;
        uint32_t baby_count;
        const linear_transform_term *terms;
        uint32_t term_count, level;
        bool with_rescale;
    } cases[] = {
        {"terms", one, 1, good, 0, LEVEL, false},     {"terms", one, 1, beyond, 1, LEVEL, false},
        {"terms", one, 1, no_plain, 1, LEVEL, false}, {"terms", one, 1, twice, 2, LEVEL, false},
        {"babies", same, 2, good, 1, LEVEL, false},   {"babies", even, 1, good, 1, LEVEL, false},
        {"level", one, 1, good, 1, LEVEL + 1, false}, {"level", one, 1, good, 1, 0, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        linear_transform *lt = NULL;
        ckks_error err = {0};
        assert_int_equal(linear_transform_create(&lt, f.on.dev, f.on.context, cases[i].level, cases[i].babies,
                                                 cases[i].baby_count, one, 1, cases[i].terms,
                                                 cases[i].term_count, cases[i].with_rescale, SCALE, &err),
                         CKKS_INVALID_ARGUMENT);
        assert_string_equal(err.field, cases[i].field);
        assert_null(lt);
    }
}

static void a_value_of_another_level_is_refused(void **state) {
    (void)state;
    double *x = evaluator_fixture_slots(&f, 1, 1);
    for (uint32_t is_above = 0; is_above < 2; is_above++) {
        transform *t = transform_new(16, true);
        host_value v;
        ckks_error err = {0};
        t->level = LEVEL - is_above;
        t->baby_count = t->giant_count = 1;
        add_term(t, 0, 0);
        assert_int_equal(make(t, &err), CKKS_OK);
        t->a = evaluator_fixture_encrypt(&f, x, NULL, 1, is_above ? LEVEL : LEVEL - 1, SCALE);
        assert_int_equal(evaluator_fixture_run(&f, &v, 1, run, t, &err), CKKS_SIGNATURE_MISMATCH);
        assert_string_equal(err.field, "limb_count");
        linear_transform_destroy(t->made);
        free(t);
    }
    free(x);
}

/* babies and giants alike: recorded kernels would read past the table */
static void a_step_without_a_place_in_the_key_table_is_refused(void **state) {
    (void)state;
    double *x = evaluator_fixture_slots(&f, 1, 1);
    for (int is_giant = 0; is_giant < 2; is_giant++) {
        transform *t = transform_new(16, false);
        host_value v;
        ckks_error err = {0};
        t->baby_count = t->giant_count = 1;
        (is_giant ? t->giant_steps : t->baby_steps)[0] = 1;
        add_term(t, 0, 0);
        t->babies[0] = evaluator_fixture_rotation(&f, t->baby_steps[0]);
        t->giants[0] = evaluator_fixture_rotation(&f, t->giant_steps[0]);
        (is_giant ? t->giants : t->babies)[0].key = f.key_count;
        assert_int_equal(linear_transform_create(&t->made, f.on.dev, f.on.context, t->level, t->babies, 1,
                                                 t->giants, 1, t->terms, 1, false, t->plain_scale, &err),
                         CKKS_OK);
        t->a = evaluator_fixture_encrypt(&f, x, NULL, 1, LEVEL, SCALE);
        assert_int_equal(evaluator_fixture_run(&f, &v, 1, run, t, &err), CKKS_KEY_MISSING);
        assert_string_equal(err.field, "steps");
        linear_transform_destroy(t->made);
        free(t);
    }
    free(x);
}

/* every device call of create failing once leaves no memory behind */
static void a_transform_that_cannot_be_uploaded_leaves_nothing(void **state) {
    (void)state;
    transform *t = transform_new(16, true);
    device_memory_account before, after;
    t->baby_steps[1] = 1, t->giant_steps[1] = 8;
    t->baby_count = t->giant_count = 2;
    for (uint32_t i = 0; i < 4; i++) add_term(t, i / 2, i % 2);
    device_memory(f.on.dev, &before);
    for (uint64_t nth = 1;; nth++) {
        device_fault_set(f.on.dev, nth, false);
        const ckks_status rc = make(t, NULL);
        const uint64_t calls = device_fault_calls(f.on.dev);
        device_fault_set(f.on.dev, 0, false);
        if (calls < nth) {
            assert_int_equal(rc, CKKS_OK);
            linear_transform_destroy(t->made);
            print_message("%llu calls\n", (unsigned long long)calls);
            assert_true(calls > 4);
            break;
        }
        assert_int_not_equal(rc, CKKS_OK);
        device_memory(f.on.dev, &after);
        assert_int_equal(before.bytes_used, after.bytes_used);
    }
    device_memory(f.on.dev, &after);
    assert_int_equal(before.bytes_used, after.bytes_used);
    free(t);
}

/* ---- the words, by the definition: one launch per term, and the sums one by one ---- */

typedef struct by_definition {
    const transform *t;
    uint64_t *digits, *steps, *scaled, *sum, *acc, *scratch;
    uint32_t limbs, limbs_qp;
    uint64_t component; /* words of one component over QP */
    kernel_basis q, qp;
} by_definition;

/* to[2][limb of QP] = KEY_PRODUCT(digits, step), plus P * rot(add) where given */
static void switched(const by_definition *d, uint64_t *to, galois_step step, const uint64_t *add) {
    const kernel_key_product_args args = {
        .tables = f.on.tables,
        .out = to,
        .out_count = 1,
        .level = d->t->level,
        .digits = d->digits,
        .digits_count = 1,
        .add = add,
        .add_stride = d->limbs,
        .keys = f.table_device,
        .key_count = f.key_count,
        .item_count = 1,
        .uniform = {.key = step.key, .galois_element = step.galois_element},
    };
    device_fixture_launch(&f.on, KERNEL_KEY_PRODUCT, &args);
}

static void decomposed(const by_definition *d, const uint64_t *polynomial) {
    const kernel_mod_up_args args = {.tables = f.on.tables,
                                     .out = d->digits,
                                     .a = {(uint64_t *)(uintptr_t)polynomial, 1, d->limbs, d->q},
                                     .batch_count = 1,
                                     .scratch = d->scratch};
    device_fixture_launch(&f.on, KERNEL_MOD_UP, &args);
}

static void divided(const by_definition *d, kernel_poly out, kernel_poly in, bool with_rescale) {
    const kernel_mod_down_args args = {.tables = f.on.tables,
                                       .out = out,
                                       .a = in,
                                       .add_galois_element = 1,
                                       .batch_count = 1,
                                       .with_rescale = with_rescale,
                                       .scratch = d->scratch};
    device_fixture_launch(&f.on, KERNEL_MOD_DOWN, &args);
}

static kernel_poly over_qp(const by_definition *d, uint64_t *words, uint32_t components) {
    return (kernel_poly){words, components, d->limbs_qp, d->qp};
}

static void added(const by_definition *d, uint64_t *to, uint64_t *what, uint32_t components) {
    const kernel_binary_args args = {f.on.tables, over_qp(d, to, components), over_qp(d, to, components),
                                     over_qp(d, what, components)};
    device_fixture_launch(&f.on, KERNEL_ADD, &args);
}

/* U_b into d->steps */
static void baby_step(const by_definition *d, galois_step step) {
    const uint64_t *x0 = d->t->a.words, *x1 = x0 + (uint64_t)d->limbs * f.on.n;
    if (step.galois_element != 1) {
        decomposed(d, x1);
        switched(d, d->steps, step, x0);
        return;
    }
    kernel_scalars_args args = {.tables = f.on.tables,
                                .out = {d->steps, 2, d->limbs_qp, d->q},
                                .a = {d->t->a.words, 2, d->limbs, d->q}};
    uint64_t shoup;
    for (uint32_t j = 0; j < d->limbs; j++) context_p_product(f.on.context, j, &args.scalar[j], &shoup);
    assert_int_equal(device_fill(f.on.stream, d->steps, 0, 2 * d->component * sizeof(uint64_t), NULL),
                     CKKS_OK);
    device_fixture_launch(&f.on, KERNEL_MULTIPLY_SCALARS, &args);
}

/* acc += what giant step g makes of V_g in d->sum */
static void giant_step(const by_definition *d, galois_step step) {
    if (step.galois_element == 1) {
        added(d, d->acc, d->sum, 2);
        return;
    }
    const kernel_automorphism_args rotate = {f.on.tables, over_qp(d, d->scaled, 1), over_qp(d, d->sum, 1),
                                             step.galois_element};
    device_fixture_launch(&f.on, KERNEL_AUTOMORPHISM, &rotate);
    added(d, d->acc, d->scaled, 1);
    const kernel_poly down = {d->steps, 1, d->limbs, d->q};
    divided(d, down, over_qp(d, d->sum + d->component, 1), false);
    decomposed(d, d->steps);
    switched(d, d->scaled, step, NULL);
    added(d, d->acc, d->scaled, 2);
}

static void transform_by_definition(const by_definition *d, uint64_t *out) {
    const uint64_t pair_bytes = 2 * d->component * sizeof(uint64_t);
    assert_int_equal(device_fill(f.on.stream, d->acc, 0, pair_bytes, NULL), CKKS_OK);
    for (uint32_t g = 0; g < d->t->giant_count; g++) {
        bool has_term = false;
        assert_int_equal(device_fill(f.on.stream, d->sum, 0, pair_bytes, NULL), CKKS_OK);
        for (uint32_t i = 0; i < d->t->term_count; i++) {
            const linear_transform_term *term = &d->t->terms[i];
            if (term->giant != g) continue;
            baby_step(d, d->t->babies[term->baby]);
            const kernel_binary_args args = {f.on.tables, over_qp(d, d->scaled, 2), over_qp(d, d->steps, 2),
                                             over_qp(d, term->plain, 1)};
            device_fixture_launch(&f.on, KERNEL_MULTIPLY_PLAIN, &args);
            added(d, d->sum, d->scaled, 2);
            has_term = true;
        }
        if (has_term) giant_step(d, d->t->giants[g]);
    }
    const uint32_t limbs_out = d->limbs - (d->t->with_rescale ? 1 : 0);
    const kernel_poly to = {out, 2, limbs_out, {0, limbs_out, 0}};
    divided(d, to, over_qp(d, d->acc, 2), d->t->with_rescale);
}

static void a_transform_writes_the_words_of_its_definition(void **state) {
    (void)state;
    for (uint32_t round = 0; round < 2; round++) {
        transform *t = transform_new(64, round == 0);
        t->baby_steps[0] = 1, t->baby_steps[1] = 0, t->baby_steps[2] = -3;
        t->giant_steps[0] = 8, t->giant_steps[1] = 0, t->giant_steps[2] = -16;
        t->baby_count = t->giant_count = 3;
        for (uint32_t i = 0; i < 9; i++)
            if (i != 4) add_term(t, i / 3, i % 3);
        assert_int_equal(make(t, NULL), CKKS_OK);
        double *x = evaluator_fixture_slots(&f, 1, 1);
        t->a = evaluator_fixture_encrypt(&f, x, NULL, 1, LEVEL, SCALE);
        by_definition d = {.t = t,
                           .limbs = LEVEL + 1,
                           .limbs_qp = LEVEL + 1 + f.on.params->p_count,
                           .q = {0, LEVEL + 1, 0},
                           .qp = {0, LEVEL + 1, f.on.params->p_count}};
        d.component = (uint64_t)d.limbs_qp * f.on.n;
        uint64_t **const buffers[] = {&d.digits, &d.steps, &d.scaled, &d.sum, &d.acc, &d.scratch};
        for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
            *buffers[i] = evaluator_fixture_upload(&f, NULL, 8 * d.component * sizeof(uint64_t));
        host_value v;
        assert_int_equal(evaluator_fixture_run(&f, &v, 1, run, t, NULL), CKKS_OK);
        uint64_t *out = evaluator_fixture_upload(&f, NULL, v.signature.bytes);
        uint64_t *expected = malloc(v.signature.bytes);
        assert_non_null(expected);
        transform_by_definition(&d, out);
        device_fixture_download(&f.on, expected, out, v.signature.bytes);
        assert_memory_equal(v.words, expected, v.signature.bytes);
        host_value_free(&v);
        linear_transform_destroy(t->made);
        free(expected);
        free(x);
        free(t);
    }
}

/* ---- matrix product ---- */

typedef struct product {
    ckks_value a;
    uint64_t *weight;
    uint32_t rows;
    double scale;
} product;

static ckks_status run_product(void *context, evaluator *ev, ckks_value *out, ckks_error *err) {
    const product *t = context;
    return evaluator_matrix_product(ev, out, &t->a, t->weight, NULL, t->rows, t->scale, err);
}

static ckks_status run_many(void *context, evaluator *ev, ckks_value *out, ckks_error *err) {
    const transform *t = context;
    return evaluator_linear_transform_many(ev, out, t->giant_count, t->made, &t->a, err);
}

/* several giants that do not rotate: as many results, each with the words of a transform of its own */
static void results_that_share_baby_steps_have_the_words_of_each_alone(void **state) {
    (void)state;
    ckks_error err = {0};
    transform *t = transform_new(64, true);
    t->baby_steps[0] = 0, t->baby_steps[1] = 1, t->baby_steps[2] = -3, t->baby_steps[3] = 8;
    t->baby_count = 4, t->giant_count = 3;
    for (uint32_t i = 0; i < 12; i++)
        if (i % 5 != 3) add_term(t, i / 4, i % 4);
    assert_int_equal(make(t, &err), CKKS_OK);
    double *x = evaluator_fixture_slots(&f, 2, 1);
    t->a = evaluator_fixture_encrypt(&f, x, NULL, 2, t->level, SCALE);
    host_value many[3];
    assert_int_equal(evaluator_fixture_run(&f, many, 3, run_many, t, &err), CKKS_OK);
    for (uint32_t g = 0; g < 3; g++) {
        transform *alone = transform_new(64, true);
        host_value one;
        memcpy(alone->baby_steps, t->baby_steps, sizeof t->baby_steps);
        alone->baby_count = 4, alone->giant_count = 1;
        for (uint32_t i = 0; i < t->term_count; i++) {
            if (t->terms[i].giant != g) continue;
            alone->terms[alone->term_count] = t->terms[i];
            alone->terms[alone->term_count++].giant = 0;
        }
        assert_int_equal(make(alone, &err), CKKS_OK);
        alone->a = t->a;
        assert_int_equal(evaluator_fixture_run(&f, &one, 1, run, alone, &err), CKKS_OK);
        assert_true(one.signature.scale == many[g].signature.scale);
        assert_int_equal(one.signature.bytes, many[g].signature.bytes);
        assert_memory_equal(one.words, many[g].words, one.signature.bytes);
        host_value_free(&one);
        host_value_free(&many[g]);
        linear_transform_destroy(alone->made);
        free(alone);
    }
    /* asked for another number of results, for one batch of batches, or with a result that has no term */
    ckks_value out[3];
    assert_int_equal(evaluator_linear_transform_many(
                         &(evaluator){.stream = f.on.stream, .tables = f.on.tables, .context = f.on.context},
                         out, 2, t->made, &t->a, &err),
                     CKKS_INVALID_ARGUMENT);
    err = (ckks_error){0};
    assert_int_equal(evaluator_linear_transform_many(
                         &(evaluator){.stream = f.on.stream, .tables = f.on.tables, .context = f.on.context},
                         out, 1, t->made, &t->a, &err),
                     CKKS_SIGNATURE_MISMATCH);
    assert_string_equal(err.field, "batch_count");
    linear_transform_destroy(t->made);
    t->made = NULL, t->giant_count = 4;
    err = (ckks_error){0};
    assert_int_equal(make(t, &err), CKKS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "terms");
    free(t);
    free(x);
}

/* the same results as the entries of one value */
static void results_may_be_one_batch(void **state) {
    (void)state;
    ckks_error err = {0};
    transform *t = transform_new(64, true);
    t->baby_steps[0] = 0, t->baby_steps[1] = 1;
    t->baby_count = 2, t->giant_count = 3;
    for (uint32_t i = 0; i < 6; i++)
        if (i != 3) add_term(t, i / 2, i % 2);
    assert_int_equal(make(t, &err), CKKS_OK);
    double *x = evaluator_fixture_slots(&f, 1, 1);
    t->a = evaluator_fixture_encrypt(&f, x, NULL, 1, t->level, SCALE);
    host_value many[3], batch;
    assert_int_equal(evaluator_fixture_run(&f, many, 3, run_many, t, &err), CKKS_OK);
    assert_int_equal(evaluator_fixture_run(&f, &batch, 1, run, t, &err), CKKS_OK);
    assert_int_equal(batch.signature.batch_count, 3);
    const size_t words = many[0].signature.bytes / sizeof(uint64_t);
    for (uint32_t g = 0; g < 3; g++) {
        assert_memory_equal(batch.words + g * words, many[g].words, many[g].signature.bytes);
        host_value_free(&many[g]);
    }
    host_value_free(&batch);
    linear_transform_destroy(t->made);
    free(t);
    free(x);
}

static void a_matrix_times_a_batch_of_ciphertexts(void **state) {
    (void)state;
    enum { ROWS = 3, COLUMNS = 5 };
    double *x = evaluator_fixture_slots(&f, COLUMNS, 1), *y = evaluator_fixture_slots(&f, ROWS, 0);
    double w[ROWS][COLUMNS];
    uint64_t weight[(LEVEL + 1) * ROWS * COLUMNS];
    for (uint32_t i = 0; i < ROWS; i++)
        for (uint32_t k = 0; k < COLUMNS; k++) {
            uint64_t residue[LEVEL + 1];
            w[i][k] = prng_symmetric(&f.r);
            assert_int_equal(encoder_constant(residue, f.on.params, w[i][k], SCALE, LEVEL, false, NULL),
                             CKKS_OK);
            for (uint32_t j = 0; j <= LEVEL; j++) weight[(j * ROWS + i) * COLUMNS + k] = residue[j];
            for (uint32_t s = 0; s < f.slot_count; s++)
                y[i * f.slot_count + s] += w[i][k] * x[k * f.slot_count + s];
        }
    host_value v;
    ckks_error err = {0};
    product t = {.a = evaluator_fixture_encrypt(&f, x, NULL, COLUMNS, LEVEL, SCALE),
                 .weight = evaluator_fixture_upload(&f, weight, sizeof weight),
                 .rows = ROWS,
                 .scale = SCALE};
    assert_int_equal(evaluator_fixture_run(&f, &v, 1, run_product, &t, &err), CKKS_OK);
    assert_int_equal(v.signature.batch_count, ROWS);
    assert_true(v.signature.scale == SCALE * SCALE);
    const double error = evaluator_fixture_error(&f, &v, y, NULL);
    const double bound = evaluator_fixture_bound(&f, SCALE, COLUMNS);
    print_message("3 x 5: error 2^%.1f, bound 2^%.1f\n", log2(error), log2(bound));
    assert_true(error < bound);
    host_value_free(&v);
    t.rows = 0;
    assert_int_equal(evaluator_fixture_run(&f, &v, 1, run_product, &t, &err), CKKS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "row_count");
    free(x);
    free(y);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dense_matrix_of_all_diagonals),
        cmocka_unit_test(launches_do_not_grow_with_the_diagonals),
        cmocka_unit_test(sparse_negative_and_single_sided_transforms),
        cmocka_unit_test(transforms_that_make_no_sense_are_refused),
        cmocka_unit_test(a_value_of_another_level_is_refused),
        cmocka_unit_test(a_step_without_a_place_in_the_key_table_is_refused),
        cmocka_unit_test(a_transform_that_cannot_be_uploaded_leaves_nothing),
        cmocka_unit_test(a_transform_writes_the_words_of_its_definition),
        cmocka_unit_test(results_that_share_baby_steps_have_the_words_of_each_alone),
        cmocka_unit_test(results_may_be_one_batch),
        cmocka_unit_test(a_matrix_times_a_batch_of_ciphertexts),
    };
    return cmocka_run_group_tests(tests, open_fixture, close_fixture);
}
