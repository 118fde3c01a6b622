/* Where values lie: whole graphs of convolutions, products and dense layers, laid out on small rings so that
 * they need gaps, channels in gaps and several ciphertexts; each compared with the graph itself. */
#include "client/compile/calibrate.h"
#include "client/compile/emit.h"
#include "client/compile/layout_search.h"
#include "tests/support/fixtures.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
// cmocka wants these first
#include <cmocka.h>

#define CHECK_STATUS(call, expected) assert_string_equal(ckks_status_name(call), ckks_status_name(expected))

typedef struct shape {
    uint32_t channels, height, width;
} shape;
typedef struct window {
    uint32_t kernel, stride, padding, groups;
} window;

static uint32_t count_of(shape s) {
    return s.channels * s.height * s.width;
}
static void set_dims(ir_node *n, shape s) {
    const uint32_t dims[4] = {1, s.channels, s.height, s.width};
    n->rank = 4;
    memcpy(n->dims, dims, sizeof dims);
}
static shape after(shape in, uint32_t channels, window w) {
    return (shape){channels, (in.height + 2 * w.padding - w.kernel) / w.stride + 1,
                   (in.width + 2 * w.padding - w.kernel) / w.stride + 1};
}

/* a convolution with random weights, by its definition */
static sparse *convolution(arena *memory, shape in, shape out, window w, prng *r) {
    ckks_error err = {0};
    sparse *m;
    const uint32_t depth = in.channels / w.groups, taps = depth * w.kernel * w.kernel;
    double *weight = arena_take(memory, (uint64_t)out.channels * taps, sizeof *weight);
    for (uint32_t i = 0; i < out.channels * taps; i++) weight[i] = prng_symmetric(r) / sqrt(taps);
    CHECK_STATUS(sparse_create(&m, memory, count_of(out), count_of(in), (uint64_t)count_of(out) * taps, &err),
                 CKKS_OK);
    uint32_t entry = 0, row = 0;
    for (uint32_t c = 0; c < out.channels; c++)
        for (uint32_t y = 0; y < out.height; y++)
            for (uint32_t x = 0; x < out.width; x++) {
                const uint32_t first = c / (out.channels / w.groups) * depth;
                for (uint32_t t = 0; t < taps; t++) {
                    const uint32_t ci = first + t / (w.kernel * w.kernel);
                    const uint32_t iy = y * w.stride + t / w.kernel % w.kernel - w.padding;
                    const uint32_t ix = x * w.stride + t % w.kernel - w.padding;
                    if (iy >= in.height || ix >= in.width) continue;
                    m->column[entry] = (ci * in.height + iy) * in.width + ix;
                    m->value[entry++] = weight[c * taps + t];
                }
                m->row_start[++row] = entry;
            }
    return m;
}

static sparse *dense_matrix(arena *memory, uint32_t rows, uint32_t columns, prng *r) {
    ckks_error err = {0};
    sparse *m;
    CHECK_STATUS(sparse_create(&m, memory, rows, columns, (uint64_t)rows * columns, &err), CKKS_OK);
    for (uint32_t i = 0; i < rows * columns; i++) {
        m->column[i] = i % columns;
        m->value[i] = prng_symmetric(r) / sqrt(columns);
        m->row_start[i / columns + 1] = i + 1;
    }
    return m;
}

static uint32_t linear(ir_graph *g, uint32_t from, const sparse *m, prng *r) {
    ckks_error err = {0};
    uint32_t number;
    double *bias = arena_take(g->memory, m->row_count, sizeof *bias);
    for (uint32_t i = 0; i < m->row_count; i++) bias[i] = prng_symmetric(r);
    CHECK_STATUS(ir_linear(&number, g, from, m, bias, "linear", &err), CKKS_OK);
    return number;
}
static uint32_t convolve(ir_graph *g, uint32_t from, shape *s, uint32_t channels, window w, prng *r) {
    const shape out = after(*s, channels, w);
    const uint32_t number = linear(g, from, convolution(g->memory, *s, out, w, r), r);
    set_dims(&g->nodes[number], out);
    *s = out;
    return number;
}
static uint32_t product(ir_graph *g, uint32_t a, uint32_t b) {
    ckks_error err = {0};
    uint32_t number;
    ir_node node = {.kind = IR_PRODUCT, .count = g->nodes[a].count, .a = a, .b = b, .source = "product"};
    ir_copy_shape(&node, &g->nodes[a]);
    CHECK_STATUS(ir_append(&number, g, &node, &err), CKKS_OK);
    return number;
}
static uint32_t image(ir_graph *g, shape s) {
    ckks_error err = {0};
    uint32_t number;
    ir_node node = {.kind = IR_INPUT, .count = count_of(s), .source = "image"};
    set_dims(&node, s);
    CHECK_STATUS(ir_append(&number, g, &node, &err), CKKS_OK);
    return number;
}

/* ---- what a program computes ---- */

typedef struct built {
    parameter_choice choice;
    emitted_program program;
    double *row, *expected;
} built;

static void build(built *out, ir_graph *g, uint32_t log_n, prng *r) {
    ckks_error err = {0};
    const uint32_t count = g->nodes[0].count;
    uint32_t *levels = arena_take(g->memory, g->count, sizeof *levels), row = 0;
    out->row = arena_take(g->memory, count, sizeof *out->row);
    out->expected = arena_take(g->memory, g->nodes[g->output].count, sizeof *out->expected);
    for (uint32_t i = 0; i < count; i++) out->row[i] = prng_symmetric(r);
    const calibration data = {out->row, 1, count};
    CHECK_STATUS(graph_observe(g, &data, out->expected, &err), CKKS_OK);
    const parameter_wish wish = {graph_levels(levels, g), 1, 128, log_n, true};
    CHECK_STATUS(parameter_choose(&out->choice, &row, &wish, &err), CKKS_OK);
    if (program_emit(&out->program, g, &out->choice, NULL, g->memory, &err) != CKKS_OK)
        fail_msg("%s: %s", err.field, err.message);
    out->program.plan.is_insecure = true;
}

/* every slot of every output is its element, or clean */
static void check_slots(const built *b, double *const *outputs, uint32_t slot_count) {
    const slot_map *map = &b->program.output_map;
    for (uint32_t k = 0; k < map->block_count; k++) {
        double *wanted = calloc(map->period, sizeof *wanted);
        for (uint32_t i = 0; i < map->count; i++)
            if (map->block[i] == k) wanted[map->slot[i]] = b->expected[i];
        for (uint32_t i = 0; i < slot_count; i++)
            assert_true(fabs(outputs[k][i] - wanted[i & (map->period - 1)]) < 1e-9);
        free(wanted);
    }
}

static void check_program(built *b) {
    plan *p = &b->program.plan;
    ckks_error err = {0};
    key_requirement *keys;
    uint32_t key_count;
    const uint32_t slot_count = params_slot_count_max(&b->choice.params);
    const slot_map *map = &b->program.input_map;
    if (plan_key_requirements(p, &keys, &key_count, &err) != CKKS_OK)
        fail_msg("%s: %s", err.field, err.message);
    p->keys = keys, p->key_count = key_count;
    /* one stretch of memory: entries of a batch follow each other */
    const uint32_t vectors = p->input_count + b->program.output_map.block_count;
    double **at = calloc(vectors, sizeof *at), *slots = calloc((size_t)vectors * slot_count, sizeof *slots);
    for (uint32_t k = 0; k < vectors; k++) at[k] = slots + (size_t)k * slot_count;
    for (uint32_t i = 0; i < map->count; i++)
        for (uint32_t s = map->slot[i]; s < slot_count; s += map->period) at[map->block[i]][s] = b->row[i];
    if (plan_interpret(at + p->input_count, p, (const double *const *)at, &err) != CKKS_OK)
        fail_msg("%s: %s", err.field, err.message);
    check_slots(b, at + p->input_count, slot_count);
    free(slots);
    free(at);
    free(keys);
    p->keys = NULL;
}

/* ---- tests ---- */

static void strided_convolution_needs_one_diagonal_for_each_place_of_its_kernel(void **state) {
    (void)state;
    arena memory = {0};
    ir_graph g;
    prng r;
    built b;
    shape s = {1, 28, 28};
    prng_init(&r, 1);
    ir_init(&g, &memory);
    g.output = convolve(&g, image(&g, s), &s, 5, (window){5, 2, 1, 1}, &r);
    build(&b, &g, 14, &r);
    check_program(&b);
    assert_int_equal(b.program.layers[0].diagonals, 25);
    assert_int_equal(b.program.layers[0].folds, 0);
    assert_int_equal(b.program.layers[0].blocks, 1);
    assert_true(b.program.layers[0].babies + b.program.layers[0].giants <= 12);
    arena_fini(&memory);
}

static void second_convolution_reads_the_gaps_of_the_first(void **state) {
    (void)state;
    arena memory = {0};
    ir_graph g;
    prng r;
    built b;
    shape s = {1, 28, 28};
    prng_init(&r, 2);
    ir_init(&g, &memory);
    uint32_t at = convolve(&g, image(&g, s), &s, 6, (window){5, 2, 2, 1}, &r);
    at = product(&g, at, at);
    at = convolve(&g, at, &s, 16, (window){5, 2, 0, 1}, &r);
    at = product(&g, at, at);
    g.output = linear(&g, at, dense_matrix(&memory, 20, count_of(s), &r), &r);
    build(&b, &g, 15, &r);
    check_program(&b);
    /* 25 places, 8 differences of channel numbers */
    assert_true(b.program.layers[2].diagonals <= 200);
    assert_true(b.program.layers[4].diagonals <= 32);
    for (uint32_t i = 0; i < b.program.layer_count; i++) assert_int_equal(b.program.layers[i].blocks, 1);
    print_message("  %u rotations, %u plaintexts\n", b.program.rotation_count, b.program.plan.plain_count);
    arena_fini(&memory);
}

typedef struct net {
    uint32_t log_n;
    shape in;
    uint32_t channels[2];
    window windows[2];
    uint32_t outputs;
} net;

static void small_rings_hold_networks_in_several_ciphertexts(void **state) {
    (void)state;
    static const net nets[] = {
        {10, {3, 10, 10}, {4, 6}, {{3, 1, 1, 1}, {3, 2, 1, 1}}, 10}, /* 512 slots */
        {10, {1, 28, 28}, {5, 8}, {{5, 2, 1, 1}, {3, 2, 0, 1}}, 10}, /* an image that is larger than that */
        {11, {4, 12, 12}, {4, 8}, {{3, 1, 1, 4}, {1, 1, 0, 1}}, 7},  /* depthwise, then pointwise */
        {11, {2, 9, 7}, {2, 4}, {{2, 2, 0, 2}, {3, 1, 1, 1}}, 1500}, /* more scores than fit */
        {12, {8, 8, 8}, {16, 32}, {{3, 2, 1, 1}, {3, 2, 1, 1}}, 100},
        {10, {1, 1, 1}, {3, 5}, {{1, 1, 0, 1}, {1, 1, 0, 1}}, 1},
    };
    for (size_t i = 0; i < sizeof nets / sizeof *nets; i++) {
        const net *n = &nets[i];
        arena memory = {0};
        ir_graph g;
        prng r;
        built b;
        shape s = n->in;
        prng_init(&r, 10 + i);
        ir_init(&g, &memory);
        uint32_t at = convolve(&g, image(&g, s), &s, n->channels[0], n->windows[0], &r);
        at = product(&g, at, at);
        at = convolve(&g, at, &s, n->channels[1], n->windows[1], &r);
        at = product(&g, at, at);
        g.output = linear(&g, at, dense_matrix(&memory, n->outputs, count_of(s), &r), &r);
        build(&b, &g, n->log_n, &r);
        check_program(&b);
        print_message("  net %zu: %u inputs, %u outputs, %u rotations, %u plaintexts\n", i,
                      b.program.plan.input_count, b.program.plan.output_count, b.program.rotation_count,
                      b.program.plan.plain_count);
        arena_fini(&memory);
    }
}

/* x + conv(conv(x)^2), then a product of two different layers of it */
static void branches_meet_in_one_layout(void **state) {
    (void)state;
    static const uint32_t rings[] = {10, 13};
    for (int i = 0; i < 2; i++) {
        arena memory = {0};
        ckks_error err = {0};
        ir_graph g;
        prng r;
        built b;
        shape s = {4, 14, 14};
        sparse *identity;
        const window same = {3, 1, 1, 1};
        prng_init(&r, 20);
        ir_init(&g, &memory);
        const uint32_t stem = convolve(&g, image(&g, s), &s, 4, same, &r);
        uint32_t at = product(&g, stem, stem);
        at = convolve(&g, at, &s, 4, same, &r);
        ir_node sum = g.nodes[at];
        CHECK_STATUS(sparse_gather(&identity, &memory, count_of(s), count_of(s), NULL, NULL, &err), CKKS_OK);
        sum.term_count = 2;
        sum.terms = arena_take(&memory, 2, sizeof *sum.terms);
        sum.terms[0] = (ir_term){stem, identity};
        sum.terms[1] = g.nodes[at].terms[0];
        CHECK_STATUS(ir_append(&at, &g, &sum, &err), CKKS_OK);
        shape left = s, right = s;
        const window half = {2, 2, 0, 1};
        const uint32_t a = convolve(&g, at, &left, 3, half, &r), c = convolve(&g, stem, &right, 3, half, &r);
        g.output = product(&g, a, c);
        build(&b, &g, rings[i], &r);
        check_program(&b);
        arena_fini(&memory);
    }
}

static void gathers_and_elementwise_layers_need_no_rotation(void **state) {
    (void)state;
    arena memory = {0};
    ckks_error err = {0};
    ir_graph g;
    prng r;
    built b;
    sparse *m;
    uint32_t index[40];
    double factor[40];
    prng_init(&r, 30);
    ir_init(&g, &memory);
    const uint32_t input = image(&g, (shape){1, 10, 10});
    for (uint32_t i = 0; i < 40; i++) index[i] = (i * 37) % 100, factor[i] = prng_symmetric(&r);
    CHECK_STATUS(sparse_gather(&m, &memory, 40, 100, index, factor, &err), CKKS_OK);
    const uint32_t at = linear(&g, input, m, &r);
    g.output = product(&g, at, at);
    build(&b, &g, 12, &r);
    check_program(&b);
    assert_int_equal(b.program.rotation_count, 0);
    arena_fini(&memory);
}

static void dear_keys_make_fewer_of_them(void **state) {
    (void)state;
    arena memory = {0};
    ir_graph g;
    prng r;
    built b;
    uint32_t counts[2], rotations[2];
    prng_init(&r, 40);
    ir_init(&g, &memory);
    uint32_t at = linear(&g, image(&g, (shape){1, 1, 100}), dense_matrix(&memory, 60, 100, &r), &r);
    at = product(&g, at, at);
    g.output = linear(&g, at, dense_matrix(&memory, 30, 60, &r), &r);
    build(&b, &g, 12, &r);
    for (int i = 0; i < 2; i++) {
        ckks_error err = {0};
        key_requirement *keys;
        const emit_options options = {.key_cost = i ? 100 : 0};
        CHECK_STATUS(program_emit(&b.program, &g, &b.choice, &options, &memory, &err), CKKS_OK);
        b.program.plan.is_insecure = true;
        CHECK_STATUS(plan_key_requirements(&b.program.plan, &keys, &counts[i], &err), CKKS_OK);
        free(keys);
        rotations[i] = b.program.rotation_count;
        check_program(&b);
    }
    print_message("  %u keys for %u rotations, or %u for %u\n", counts[0], rotations[0], counts[1],
                  rotations[1]);
    assert_true(counts[1] < counts[0]);
    arena_fini(&memory);
}

/* output blocks that share hoisted rotations, for a GPU */
static void blocks_may_share_their_rotations(void **state) {
    (void)state;
    arena memory = {0};
    ir_graph g;
    prng r;
    built b;
    uint32_t rotations[2], operations[2];
    prng_init(&r, 50);
    ir_init(&g, &memory);
    uint32_t at = linear(&g, image(&g, (shape){1, 1, 600}), dense_matrix(&memory, 40, 600, &r), &r);
    at = product(&g, at, at);
    g.output = linear(&g, at, dense_matrix(&memory, 1200, 40, &r), &r);
    build(&b, &g, 10, &r);
    for (int i = 0; i < 2; i++) {
        ckks_error err = {0};
        const emit_options options = {.is_for_gpu = i == 1};
        CHECK_STATUS(program_emit(&b.program, &g, &b.choice, &options, &memory, &err), CKKS_OK);
        b.program.plan.is_insecure = true;
        check_program(&b);
        rotations[i] = b.program.rotation_count;
        operations[i] = b.program.plan.operation_count;
    }
    print_message("  %u rotations in %u operations, or %u in %u\n", rotations[0], operations[0], rotations[1],
                  operations[1]);
    assert_true(operations[1] < operations[0]);
    /* a plan that claims another number of outputs, or rotates one of them, is refused */
    plan *p = &b.program.plan;
    uint32_t at_operation = 0;
    while (at_operation + 1 < p->operation_count && p->operations[at_operation].output_count == 1)
        at_operation++;
    plan_operation *many = (plan_operation *)(uintptr_t)&p->operations[at_operation];
    assert_int_equal(many->kind, PLAN_LINEAR_TRANSFORM);
    assert_true(many->output_count > 1);
    const plan_transform *t = &p->transforms[many->transform];
    int32_t *steps = (int32_t *)(uintptr_t)t->giant_steps;
    ckks_error err = {0};
    key_requirement *keys;
    uint32_t count;
    steps[1] = 3;
    CHECK_STATUS(plan_key_requirements(p, &keys, &count, &err), CKKS_MALFORMED);
    steps[1] = 0;
    many->output_count--;
    CHECK_STATUS(plan_key_requirements(p, &keys, &count, &err), CKKS_MALFORMED);
    many->output_count++;
    CHECK_STATUS(plan_key_requirements(p, &keys, &count, &err), CKKS_OK);
    free(keys);
    arena_fini(&memory);
}

/* one matrix that is not rescaled: no level, one output with an entry for each block, room in q0 for any
 * input that clients let through */
static void many_scores_of_one_layer_are_one_batch_without_a_level(void **state) {
    (void)state;
    arena memory = {0};
    ir_graph g;
    prng r;
    built b;
    double low, high, worst = 0;
    prng_init(&r, 51);
    ir_init(&g, &memory);
    const sparse *m = dense_matrix(&memory, 1300, 24, &r);
    const uint32_t input = image(&g, (shape){1, 1, 24});
    ckks_error err = {0};
    CHECK_STATUS(ir_linear(&g.output, &g, input, m, NULL, "scores", &err), CKKS_OK);
    g.ends_unscaled = true;
    build(&b, &g, 10, &r);
    const plan *p = &b.program.plan;
    assert_int_equal(b.choice.params.q_count, 1);
    assert_int_equal(p->operation_count, 1);
    assert_int_equal(p->output_count, 1);
    const plan_value *out = &p->values[p->outputs[0]];
    assert_int_equal(out->batch_count, 3);
    assert_int_equal(out->level, 0);
    assert_true(out->scale == p->values[0].scale * p->plains[0].scale);
    ir_input_range(&low, &high, &g);
    for (uint32_t i = 0; i < m->row_count; i++) {
        double sum = 0;
        for (uint32_t e = m->row_start[i]; e < m->row_start[i + 1]; e++)
            sum += fabs(m->value[e]) * fmax(-low, high);
        worst = fmax(worst, sum);
    }
    assert_true(worst * out->scale <= (double)b.choice.params.prime[0] / 2);
    assert_true(4 * worst * out->scale > (double)b.choice.params.prime[0] / 2);
    check_program(&b);
    /* with a bias there is something to add to each block: outputs of their own */
    g.nodes[g.output].bias[7] = 0.5;
    build(&b, &g, 10, &r);
    assert_int_equal(p->output_count, 3);
    check_program(&b);
    arena_fini(&memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_scores_of_one_layer_are_one_batch_without_a_level),
        cmocka_unit_test(strided_convolution_needs_one_diagonal_for_each_place_of_its_kernel),
        cmocka_unit_test(second_convolution_reads_the_gaps_of_the_first),
        cmocka_unit_test(small_rings_hold_networks_in_several_ciphertexts),
        cmocka_unit_test(branches_meet_in_one_layout),
        cmocka_unit_test(gathers_and_elementwise_layers_need_no_rotation),
        cmocka_unit_test(dear_keys_make_fewer_of_them),
        cmocka_unit_test(blocks_may_share_their_rotations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
