/* The compiler's pieces: polynomials, folding, peeling, diagonals, scales, parameters. */
#include "client/compile/calibrate.h"
#include "client/compile/emit.h"
#include "client/compile/layout.h"
#include "client/compile/noise.h"
#include "client/compile/parameters.h"
#include "tests/support/fixtures.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
// cmocka wants these first
#include <cmocka.h>

#define CHECK_STATUS(call, expected) assert_string_equal(ckks_status_name(call), ckks_status_name(expected))

/* ---- polynomials ---- */

typedef struct fit_case {
    ir_function function;
    uint32_t degree;
    double expected; /* published errors on [-8, 8] */
} fit_case;

static void chebyshev_errors_are_the_published_ones(void **state) {
    (void)state;
    static const fit_case table[] = {
        {IR_SIGMOID, 7, 3e-2}, {IR_SIGMOID, 15, 1.4e-3}, {IR_SIGMOID, 31, 3e-6},
        {IR_SILU, 7, 0.19},    {IR_SILU, 15, 8.7e-3},    {IR_SILU, 31, 1.9e-5},
        {IR_RELU, 7, 0.51},    {IR_RELU, 15, 0.25},      {IR_RELU, 31, 0.13},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const ir_node activation = {.function = table[i].function};
        double coefficients[32], error;
        chebyshev_fit(coefficients, &error, &activation, -8, 8, table[i].degree);
        print_message("  %-8s degree %2u on [-8, 8]: %.2e, published %.2e\n",
                      ir_function_name(table[i].function), table[i].degree, error, table[i].expected);
        assert_true(error < 1.1 * table[i].expected && error > 0.5 * table[i].expected);
    }
}

/* ---- graphs ---- */

static sparse *random_matrix(arena *memory, uint32_t rows, uint32_t columns, double density, prng *r) {
    ckks_error err = {0};
    sparse *m;
    CHECK_STATUS(sparse_create(&m, memory, rows, columns, (uint64_t)rows * columns, &err), CKKS_OK);
    uint32_t entry = 0;
    for (uint32_t i = 0; i < rows; i++) {
        for (uint32_t c = 0; c < columns; c++) {
            if (prng_symmetric(r) >= 2 * density - 1) continue;
            m->column[entry] = c;
            m->value[entry++] = prng_symmetric(r);
        }
        m->row_start[i + 1] = entry;
    }
    return m;
}

static uint32_t append(ir_graph *g, ir_node node) {
    ckks_error err = {0};
    uint32_t number;
    node.source = "test";
    CHECK_STATUS(ir_append(&number, g, &node, &err), CKKS_OK);
    return number;
}
static uint32_t dense(ir_graph *g, uint32_t from, uint32_t rows, prng *r) {
    ckks_error err = {0};
    uint32_t number;
    double bias[64];
    for (uint32_t i = 0; i < rows; i++) bias[i] = prng_symmetric(r);
    const sparse *m = random_matrix(g->memory, rows, g->nodes[from].count, 1, r);
    CHECK_STATUS(ir_linear(&number, g, from, m, bias, "test", &err), CKKS_OK);
    return number;
}
static uint32_t diagonal(ir_graph *g, uint32_t from, double factor, double offset) {
    ckks_error err = {0};
    uint32_t number;
    double factors[64], bias[64];
    sparse *m;
    const uint32_t n = g->nodes[from].count;
    for (uint32_t i = 0; i < n; i++) factors[i] = factor + i, bias[i] = offset - i;
    CHECK_STATUS(sparse_gather(&m, g->memory, n, n, NULL, factors, &err), CKKS_OK);
    CHECK_STATUS(ir_linear(&number, g, from, m, bias, "test", &err), CKKS_OK);
    return number;
}
static void evaluate(double *out, ir_graph *g, const double *row) {
    ckks_error err = {0};
    ir_run run;
    ir_count_uses(g);
    CHECK_STATUS(ir_run_init(&run, g, g->memory, &err), CKKS_OK);
    CHECK_STATUS(ir_run_row(&run, g, row, &err), CKKS_OK);
    memcpy(out, run.values[g->output], g->nodes[g->output].count * sizeof *out);
}
static uint32_t live_count(const ir_graph *g) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < g->count; i++) count += g->nodes[i].use_count != 0;
    return count;
}

static void linear_chains_fold_into_one_matrix(void **state) {
    (void)state;
    arena memory = {0};
    ir_graph g;
    prng r;
    ckks_error err = {0};
    double row[6], before[3], after[3];
    prng_init(&r, 1);
    ir_init(&g, &memory);
    const uint32_t input = append(&g, (ir_node){.kind = IR_INPUT, .count = 6});
    g.output = dense(&g, diagonal(&g, dense(&g, input, 9, &r), 2, 1), 3, &r);
    for (int i = 0; i < 6; i++) row[i] = prng_symmetric(&r);
    evaluate(before, &g, row);
    CHECK_STATUS(ir_fold(&g, &err), CKKS_OK);
    evaluate(after, &g, row);
    assert_int_equal(live_count(&g), 2);
    for (int i = 0; i < 3; i++) assert_true(fabs(before[i] - after[i]) < 1e-12);
    arena_fini(&memory);
}

static void layer_through_a_narrow_middle_stays_two(void **state) {
    (void)state;
    arena memory = {0};
    ir_graph g;
    prng r;
    ckks_error err = {0};
    double row[300], before[300], after[300];
    uint32_t number;
    prng_init(&r, 8);
    ir_init(&g, &memory);
    const uint32_t input = append(&g, (ir_node){.kind = IR_INPUT, .count = 300});
    const sparse *down = random_matrix(&memory, 4, 300, 1, &r), *up = random_matrix(&memory, 300, 4, 1, &r);
    CHECK_STATUS(ir_linear(&number, &g, input, down, NULL, "down", &err), CKKS_OK);
    CHECK_STATUS(ir_linear(&g.output, &g, number, up, NULL, "up", &err), CKKS_OK);
    for (int i = 0; i < 300; i++) row[i] = prng_symmetric(&r);
    evaluate(before, &g, row);
    CHECK_STATUS(ir_fold(&g, &err), CKKS_OK);
    evaluate(after, &g, row);
    assert_int_equal(live_count(&g), 3); /* 512 diagonals in one, 4 + 4 in two */
    for (int i = 0; i < 300; i++) assert_true(fabs(before[i] - after[i]) < 1e-12);
    arena_fini(&memory);
}

static void nothing_folds_across_a_value_with_a_second_consumer(void **state) {
    (void)state;
    arena memory = {0};
    ir_graph g;
    prng r;
    ckks_error err = {0};
    double row[4], before[4], after[4];
    prng_init(&r, 2);
    ir_init(&g, &memory);
    const uint32_t input = append(&g, (ir_node){.kind = IR_INPUT, .count = 4});
    const uint32_t shared = dense(&g, input, 4, &r),
                   square = append(&g, (ir_node){.kind = IR_PRODUCT, .count = 4, .a = shared, .b = shared});
    const uint32_t branch = dense(&g, shared, 4, &r);
    ir_node sum = {.kind = IR_LINEAR, .count = 4, .term_count = 2};
    ir_term terms[2] = {{square, NULL}, {branch, NULL}};
    sparse *identity;
    CHECK_STATUS(sparse_gather(&identity, &memory, 4, 4, NULL, NULL, &err), CKKS_OK);
    terms[0].matrix = terms[1].matrix = identity;
    sum.terms = terms, sum.bias = arena_take(&memory, 4, sizeof(double));
    g.output = append(&g, sum);
    for (int i = 0; i < 4; i++) row[i] = prng_symmetric(&r);
    evaluate(before, &g, row);
    CHECK_STATUS(ir_fold(&g, &err), CKKS_OK);
    evaluate(after, &g, row);
    /* input, shared, square, and a sum that took the branch in */
    assert_int_equal(live_count(&g), 4);
    assert_int_not_equal(g.nodes[shared].use_count, 0);
    assert_int_equal(g.nodes[branch].use_count, 0);
    for (int i = 0; i < 4; i++) assert_true(fabs(before[i] - after[i]) < 1e-12);
    arena_fini(&memory);
}

static void leading_affine_steps_become_the_clients(void **state) {
    (void)state;
    arena memory = {0};
    ir_graph g;
    prng r;
    ckks_error err = {0};
    ir_preprocess p;
    double row[5], prepared[5], before[2], after[2];
    prng_init(&r, 3);
    ir_init(&g, &memory);
    const uint32_t input = append(&g, (ir_node){.kind = IR_INPUT, .count = 5});
    g.output = dense(&g, diagonal(&g, diagonal(&g, input, 0.5, 3), 7, -2), 2, &r);
    for (int i = 0; i < 5; i++) row[i] = 10 * prng_symmetric(&r);
    evaluate(before, &g, row);
    CHECK_STATUS(ir_peel(&g, &p, &err), CKKS_OK);
    assert_true(p.is_present);
    for (int i = 0; i < 5; i++) prepared[i] = (row[i] - p.offset[i]) * p.scale[i];
    evaluate(after, &g, prepared);
    assert_int_equal(live_count(&g), 2);
    for (int i = 0; i < 2; i++) assert_true(fabs(before[i] - after[i]) < 1e-9);
    arena_fini(&memory);
}

static void a_model_that_is_only_affine_keeps_its_last_layer(void **state) {
    (void)state;
    arena memory = {0};
    ir_graph g;
    ckks_error err = {0};
    ir_preprocess p;
    ir_init(&g, &memory);
    g.output = diagonal(&g, append(&g, (ir_node){.kind = IR_INPUT, .count = 5}), 2, 1);
    CHECK_STATUS(ir_peel(&g, &p, &err), CKKS_OK);
    assert_false(p.is_present);
    assert_int_equal(g.nodes[g.output].kind, IR_LINEAR);
    arena_fini(&memory);
}

/* every function of the list, on the range that rows show plus its margin */
static void every_activation_becomes_a_polynomial_within_its_tolerance(void **state) {
    (void)state;
    static const double parameters[][IR_PARAMETERS] = {
        [IR_LEAKY_RELU] = {0.1}, [IR_ELU] = {1},        [IR_SELU] = {1.6733, 1.0507},
        [IR_CELU] = {2},         [IR_CLIP] = {-1, 1.5}, [IR_HARD_SIGMOID] = {0.2, 0.5},
        [IR_POW] = {3},
    };
    /* roots, reciprocals and logarithms where the rows stay above zero */
    static const double broken[][IR_PARAMETERS] = {{0.5}, {-0.5}, {-1}, {-2}};
    prng r;
    prng_init(&r, 60);
    for (uint32_t number = IR_RELU; number <= IR_POW + 4; number++) {
        const uint32_t f = number < IR_POW ? number : IR_POW;
        const bool is_above_zero = number > IR_POW || f == IR_LOG;
        arena memory = {0};
        ir_graph exact, g;
        ckks_error err = {0};
        double rows[64], before[64], after[64];
        const double tolerance = 0.02;
        const calibration data = {rows, 64, 1};
        for (int i = 0; i < 64; i++)
            rows[i] = is_above_zero ? 2.2 + 2 * prng_symmetric(&r) : 3 * prng_symmetric(&r);
        ir_init(&exact, &memory);
        ir_node activation = {.kind = IR_ACTIVATION, .count = 1, .function = (ir_function)f};
        if (f < sizeof parameters / sizeof *parameters)
            memcpy(activation.parameters, number > IR_POW ? broken[number - IR_POW - 1] : parameters[f],
                   sizeof activation.parameters);
        activation.a = append(&exact, (ir_node){.kind = IR_INPUT, .count = 1});
        exact.output = append(&exact, activation);
        CHECK_STATUS(graph_observe(&exact, &data, before, &err), CKKS_OK);
        CHECK_STATUS(graph_substitute(&g, &exact, tolerance, 0.25, &err), CKKS_OK);
        CHECK_STATUS(graph_observe(&g, &data, after, &err), CKKS_OK);
        const ir_node *p = &g.nodes[g.output];
        double low = INFINITY, high = -INFINITY, worst = 0;
        for (int i = 0; i <= 1000; i++) {
            const double x = p->interval_low + (p->interval_high - p->interval_low) * i / 1000;
            const double y = ir_function_value((ir_function)f, activation.parameters, x);
            low = fmin(low, y), high = fmax(high, y);
        }
        for (int i = 0; i < 64; i++) worst = fmax(worst, fabs(before[i] - after[i]));
        print_message("  %-12s degree %2u on [%.2f, %.2f], error %.1e\n", ir_function_name((ir_function)f),
                      p->degree, p->interval_low, p->interval_high, worst);
        assert_int_equal(p->kind, IR_POLYNOMIAL);
        assert_true(p->polynomial_error <= tolerance * (high - low) / 2 * 1.01);
        assert_true(worst <= p->polynomial_error * 1.01);
        if (is_above_zero) assert_true(p->interval_low > 0);
        if (number == IR_POW) assert_true(p->degree <= 3); /* it is one as it stands */
        arena_fini(&memory);
    }
}

static void a_root_or_quotient_that_meets_zero_is_refused_by_node(void **state) {
    (void)state;
    static const ir_node functions[] = {{.function = IR_LOG},
                                        {.function = IR_POW, .parameters = {0.5}},
                                        {.function = IR_POW, .parameters = {-1}}};
    for (int f = 0; f < 3; f++) {
        arena memory = {0};
        ir_graph exact, g;
        ckks_error err = {0};
        const double rows[] = {0.5, 2, -0.25};
        const calibration data = {rows, 2, 1}, all = {rows, 3, 1};
        ir_init(&exact, &memory);
        ir_node activation = functions[f];
        activation.kind = IR_ACTIVATION, activation.count = 1;
        activation.a = append(&exact, (ir_node){.kind = IR_INPUT, .count = 1});
        exact.output = append(&exact, activation);
        exact.nodes[exact.output].source = "root_1";
        CHECK_STATUS(graph_observe(&exact, &data, NULL, &err), CKKS_OK);
        CHECK_STATUS(graph_substitute(&g, &exact, 0.02, 0.25, &err), CKKS_OK);
        exact.nodes[activation.a].minimum = all.rows[2];
        CHECK_STATUS(graph_substitute(&g, &exact, 0.02, 0.25, &err), CKKS_PRECISION);
        assert_string_equal(err.field, "root_1");
        assert_non_null(strstr(err.message, "-0.25"));
        arena_fini(&memory);
    }
}

/* ---- layout ---- */

/* what diagonals, rotations and folding do to one block of x; y has l->slot_count slots */
static void apply_layout(double *y, const layout_matrix *l, const layout_split *s, const double *x,
                         uint32_t x_period) {
    const uint32_t n = l->slot_count;
    double *sum = calloc(n, sizeof *sum), *inner = calloc(n, sizeof *inner);
    for (uint32_t g = 0; g < s->giant_count; g++) {
        const uint32_t giant = (uint32_t)s->giants[g];
        memset(inner, 0, n * sizeof *inner);
        for (uint32_t d = 0; d < l->count; d++) {
            if (s->term_giant[d] != g) continue;
            const uint32_t baby = (uint32_t)s->babies[s->term_baby[d]];
            for (uint32_t m = 0; m < n; m++)
                inner[m] +=
                    l->diagonals[d].slots[(m - s->term_shift[d]) & (n - 1)] * x[(m + baby) & (x_period - 1)];
        }
        for (uint32_t m = 0; m < n; m++) sum[m] += inner[(m + giant) & (n - 1)];
    }
    for (uint32_t step = l->fold_from / 2; step >= l->fold_to && l->fold_from > l->fold_to; step /= 2) {
        memcpy(inner, sum, n * sizeof *sum);
        for (uint32_t m = 0; m < n; m++) sum[m] += inner[(m + step) & (n - 1)];
    }
    for (uint32_t m = 0; m < n; m++) y[m] += sum[m];
    free(inner);
    free(sum);
}

/* elements at random places of their blocks, or where slot_map_dense puts them */
static slot_map some_map(uint32_t count, uint32_t blocks, uint32_t period, arena *memory, prng *r) {
    slot_map map = {.count = count, .block_count = blocks, .period = period};
    uint32_t *place = arena_take(memory, (uint64_t)blocks * period, sizeof *place);
    map.block = arena_take(memory, count, sizeof *map.block);
    map.slot = arena_take(memory, count, sizeof *map.slot);
    for (uint32_t i = 0; i < blocks * period; i++) place[i] = i;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t other = i + (uint32_t)((prng_symmetric(r) + 1) / 2 * (blocks * period - i - 1));
        const uint32_t taken = place[other];
        place[other] = place[i];
        map.block[i] = taken / period, map.slot[i] = taken % period;
    }
    return map;
}

/* every slot of every block of y: rows repeat, and what is no row is clean */
static void check_maps(const sparse *m, const slot_map *y_map, const slot_map *x_map, arena *memory,
                       prng *r) {
    ckks_error err = {0};
    uint8_t used[1024] = {0};
    layout_rotations rotations = {used, sizeof used, LAYOUT_KEY_COST};
    const uint32_t xp = x_map->period, yp = y_map->period, longest = xp > yp ? xp : yp;
    double *x = arena_take(memory, m->column_count, sizeof *x),
           *expected = arena_take(memory, m->row_count, sizeof *x);
    double *slots = arena_take(memory, (uint64_t)xp * x_map->block_count, sizeof *slots);
    for (uint32_t i = 0; i < m->column_count; i++) {
        x[i] = prng_symmetric(r);
        slots[x_map->block[i] * xp + x_map->slot[i]] = x[i];
    }
    sparse_apply_add(expected, m, x);
    for (uint32_t block = 0; block < y_map->block_count; block++) {
        double *y = arena_take(memory, longest, sizeof *y), *wanted = arena_take(memory, yp, sizeof *wanted);
        for (uint32_t k = 0; k < x_map->block_count; k++) {
            layout_matrix l;
            layout_split s;
            CHECK_STATUS(layout_create(&l, m, y_map, block, x_map, k, memory, &err), CKKS_OK);
            assert_true(l.count <= (xp < yp ? xp : yp));
            if (!l.count) continue;
            CHECK_STATUS(layout_choose_split(&s, &l, &rotations, memory, &err), CKKS_OK);
            apply_layout(y, &l, &s, slots + k * xp, xp);
        }
        for (uint32_t i = 0; i < m->row_count; i++)
            if (y_map->block[i] == block) wanted[y_map->slot[i]] = expected[i];
        for (uint32_t i = 0; i < longest; i++) assert_true(fabs(y[i] - wanted[i & (yp - 1)]) < 1e-12);
    }
}

static void diagonals_compute_the_matrix_and_leave_clean_slots(void **state) {
    (void)state;
    static const uint32_t sizes[] = {1, 2, 3, 5, 8, 13, 32, 61};
    ckks_error err = {0};
    prng r;
    prng_init(&r, 4);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t k = 0; k < 2 * sizeof sizes / sizeof *sizes; k++) {
            arena memory = {0};
            slot_map x, y;
            const uint32_t rows = sizes[i], columns = sizes[k / 2];
            const sparse *m = random_matrix(&memory, rows, columns, k & 1 ? 1 : 0.1, &r);
            CHECK_STATUS(slot_map_dense(&x, columns, 1, 1, 512, &memory, &err), CKKS_OK);
            CHECK_STATUS(slot_map_dense(&y, rows, 1, 1, 512, &memory, &err), CKKS_OK);
            check_maps(m, &y, &x, &memory, &r);
            /* spread out, in several ciphertexts, and at random places */
            CHECK_STATUS(slot_map_dense(&x, columns, 2, 4, 32, &memory, &err), CKKS_OK);
            CHECK_STATUS(slot_map_dense(&y, rows, 4, 1, 64, &memory, &err), CKKS_OK);
            check_maps(m, &y, &x, &memory, &r);
            x = some_map(columns, 3, 64, &memory, &r);
            y = some_map(rows, 2, k & 2 ? 32 : 128, &memory, &r);
            check_maps(m, &y, &x, &memory, &r);
            arena_fini(&memory);
        }
}

static layout_matrix dense_layout(const sparse *m, arena *memory) {
    ckks_error err = {0};
    layout_matrix l;
    slot_map x, y;
    CHECK_STATUS(slot_map_dense(&x, m->column_count, 1, 1, 4096, memory, &err), CKKS_OK);
    CHECK_STATUS(slot_map_dense(&y, m->row_count, 1, 1, 4096, memory, &err), CKKS_OK);
    CHECK_STATUS(layout_create(&l, m, &y, 0, &x, 0, memory, &err), CKKS_OK);
    return l;
}

static void wide_matrices_need_few_diagonals_and_rotations(void **state) {
    (void)state;
    arena memory = {0};
    ckks_error err = {0};
    layout_split s;
    prng r;
    uint8_t used[1024] = {0};
    layout_rotations rotations = {used, sizeof used, LAYOUT_KEY_COST};
    prng_init(&r, 5);
    const layout_matrix l = dense_layout(random_matrix(&memory, 64, 784, 1, &r), &memory);
    assert_int_equal(l.count, 64);
    assert_int_equal(l.slot_count, 1024);
    assert_int_equal(l.fold_from / l.fold_to, 16);
    CHECK_STATUS(layout_choose_split(&s, &l, &rotations, &memory, &err), CKKS_OK);
    assert_true(s.baby_count * s.giant_count >= 64);
    assert_true(s.baby_count > s.giant_count); /* babies are hoisted, giants are not */
    assert_true(s.baby_count + s.giant_count <= 20);
    arena_fini(&memory);
}

/* ---- parameters ---- */

typedef struct choice_case {
    uint32_t depth, slots, security_bits, log_n;
    bool allow_insecure;
    ckks_status status;
    uint32_t log_n_expected;
} choice_case;

static void smallest_ring_that_passes_the_gate_is_chosen(void **state) {
    (void)state;
    static const choice_case table[] = {
        {1, 32, 128, 0, false, CKKS_OK, 12},
        {1, 4096, 128, 0, false, CKKS_OK, 13}, /* 2^12 has 2,048 slots */
        {2, 32, 128, 0, false, CKKS_OK, 13},
        {4, 32, 128, 0, false, CKKS_OK, 13},
        {5, 32, 128, 0, false, CKKS_OK, 14},
        {7, 32, 128, 0, false, CKKS_OK, 14},
        {8, 32, 128, 0, false, CKKS_OK, 14},
        {9, 32, 128, 0, false, CKKS_OK, 15},
        {16, 32, 128, 0, false, CKKS_OK, 15},
        {17, 32, 128, 0, false, CKKS_OK, 15},
        {22, 32, 128, 0, false, CKKS_OK, 16},
        {34, 32, 128, 0, false, CKKS_OK, 16},
        {35, 32, 128, 0, false, CKKS_NOT_FOUND, 0},
        {1, 32, 192, 0, false, CKKS_OK, 13},
        {1, 32, 256, 0, false, CKKS_OK, 14},
        {8, 32, 256, 0, false, CKKS_OK, 15},
        {3, 32, 128, 12, false, CKKS_INSECURE_PARAMETERS, 0},
        {3, 32, 128, 12, true, CKKS_OK, 12},
        {3, 32, 128, 15, false, CKKS_OK, 15},
        {1, 4096, 128, 12, true, CKKS_NOT_FOUND, 0},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const choice_case *c = &table[i];
        const parameter_wish wish = {c->depth, c->slots, c->security_bits, c->log_n, c->allow_insecure};
        parameter_choice choice;
        uint32_t row = 0;
        ckks_error err = {0};
        const ckks_status rc = parameter_choose(&choice, &row, &wish, &err);
        if (rc != c->status || (rc == CKKS_OK && choice.params.log_n != c->log_n_expected))
            fail_msg("case %zu: %s, 2^%u", i, ckks_status_name(rc), choice.params.log_n);
        if (rc != CKKS_OK) continue;
        assert_int_equal(choice.params.q_count, c->depth + 1);
        assert_true((double)choice.params.prime[0] / choice.scale >= 0.99 * (1u << HEADROOM_BITS));
        if (!c->allow_insecure) CHECK_STATUS(params_gate(&choice.params, c->security_bits, &err), CKKS_OK);
    }
}

/* ---- emission ---- */

static void scales_land_exactly_on_every_menu_row(void **state) {
    (void)state;
    prng r;
    prng_init(&r, 6);
    for (uint32_t row = 0; row < 5; row++) {
        arena memory = {0};
        ir_graph g;
        ckks_error err = {0};
        parameter_choice choice;
        emitted_program program;
        double rows[4 * 8];
        const calibration data = {rows, 4, 8};
        ir_init(&g, &memory);
        /* a skip connection: two values of different level and scale meet in a sum */
        const uint32_t input = append(&g, (ir_node){.kind = IR_INPUT, .count = 8});
        uint32_t at = input;
        const uint32_t squares = row == 0 ? 0 : row == 1 ? 1 : 3;
        for (uint32_t i = 0; i < squares; i++) {
            at = dense(&g, at, 8, &r);
            at = append(&g, (ir_node){.kind = IR_PRODUCT, .count = 8, .a = at, .b = at});
        }
        ir_node sum = {.kind = IR_LINEAR, .count = 8, .term_count = squares ? 2 : 1};
        ir_term terms[2] = {{input, random_matrix(&memory, 8, 8, 0.03, &r)},
                            {at, random_matrix(&memory, 8, 8, 1, &r)}};
        sum.terms = terms, sum.bias = arena_take(&memory, 8, sizeof(double));
        g.output = append(&g, sum);
        for (int i = 0; i < 32; i++) rows[i] = prng_symmetric(&r) / 4;
        CHECK_STATUS(graph_observe(&g, &data, NULL, &err), CKKS_OK);
        uint32_t *levels = arena_take(&memory, g.count, sizeof *levels), from = row;
        const parameter_wish wish = {graph_levels(levels, &g), 8, 128, 0, true};
        CHECK_STATUS(parameter_choose(&choice, &from, &wish, &err), CKKS_OK);
        CHECK_STATUS(program_emit(&program, &g, &choice, NULL, &memory, &err), CKKS_OK);
        key_requirement *keys;
        uint32_t count;
        /* the check repeats every scale by the evaluator's rules, bit for bit */
        if (plan_key_requirements(&program.plan, &keys, &count, &err) != CKKS_OK)
            fail_msg("%s: %s", err.field, err.message);
        free(keys);
        /* and squares do not drift */
        for (uint32_t i = 0; i < program.plan.value_count; i++)
            if (program.plan.values[i].scale < 2 * choice.scale &&
                program.plan.values[i].component_count == 2)
                assert_true(program.plan.values[i].scale > choice.scale / 2);
        assert_int_equal(program.plan.values[0].level, wish.depth);
        arena_fini(&memory);
    }
}

static void values_over_the_headroom_are_refused_by_node(void **state) {
    (void)state;
    arena memory = {0};
    ir_graph g;
    prng r;
    ckks_error err = {0};
    parameter_choice choice;
    emitted_program program;
    const double row[4] = {30, -30, 30, 30};
    const calibration data = {row, 1, 4};
    uint32_t at = 0;
    prng_init(&r, 7);
    ir_init(&g, &memory);
    append(&g, (ir_node){.kind = IR_INPUT, .count = 4});
    const uint32_t square = append(&g, (ir_node){.kind = IR_PRODUCT, .count = 4});
    g.output = dense(&g, square, 2, &r);
    CHECK_STATUS(graph_observe(&g, &data, NULL, &err), CKKS_OK);
    const parameter_wish wish = {2, 4, 128, 0, false};
    CHECK_STATUS(parameter_choose(&choice, &at, &wish, &err), CKKS_OK);
    CHECK_STATUS(program_emit(&program, &g, &choice, NULL, &memory, &err), CKKS_PRECISION);
    assert_string_equal(err.field, "test");
    arena_fini(&memory);
}

static void noise_shrinks_with_the_scale(void **state) {
    (void)state;
    const ckks_params params = fixture_params(12, 3, 1, 1);
    assert_true(fabs(noise_fresh(&params, 0x1p30) / noise_fresh(&params, 0x1p40) / 0x1p20 - 1) < 1e-12);
    /* key switching ends in the same rounding, and adds errors of its own */
    assert_true(noise_key_switch(&params, 2, 0x1p30) > noise_rounding(&params, 0x1p30));
    /* a fresh ciphertext of a public key: error times ephemeral secret and secret times error, 4N/3 in all */
    const double expected = 10.5 * 4 * 4096 / 3 * 2048 / 0x1p60;
    assert_true(fabs(noise_fresh(&params, 0x1p30) / expected - 1) < 1e-3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chebyshev_errors_are_the_published_ones),
        cmocka_unit_test(linear_chains_fold_into_one_matrix),
        cmocka_unit_test(layer_through_a_narrow_middle_stays_two),
        cmocka_unit_test(nothing_folds_across_a_value_with_a_second_consumer),
        cmocka_unit_test(leading_affine_steps_become_the_clients),
        cmocka_unit_test(a_model_that_is_only_affine_keeps_its_last_layer),
        cmocka_unit_test(every_activation_becomes_a_polynomial_within_its_tolerance),
        cmocka_unit_test(a_root_or_quotient_that_meets_zero_is_refused_by_node),
        cmocka_unit_test(diagonals_compute_the_matrix_and_leave_clean_slots),
        cmocka_unit_test(wide_matrices_need_few_diagonals_and_rotations),
        cmocka_unit_test(smallest_ring_that_passes_the_gate_is_chosen),
        cmocka_unit_test(scales_land_exactly_on_every_menu_row),
        cmocka_unit_test(values_over_the_headroom_are_refused_by_node),
        cmocka_unit_test(noise_shrinks_with_the_scale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
