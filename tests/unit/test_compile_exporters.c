/* What exporters make of common layers, spelled as they spell it: read for what it means, or refused with the
 * way out. */
#include "client/compile/calibrate.h"
#include "client/compile/compile.h"
#include "client/compile/lower.h"
#include "client/compile/model.h"
#include "client/compile/operator.h"
#include "tests/support/onnx_builder.h"
#include "tests/support/onnx_failures.h"
#include "tests/support/temporary.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
// cmocka wants these first
#include <cmocka.h>

#define CHECK_STATUS(call, expected) assert_string_equal(ckks_status_name(call), ckks_status_name(expected))

static const int64_t four[] = {-1, 4}, one_row[] = {1, 4};

static ckks_status parse(onnx_model **out, onnx_builder *b, ckks_error *err) {
    size_t size;
    uint8_t *bytes = onnx_builder_finish(b, &size);
    onnx_builder_destroy(b);
    const ckks_status rc = onnx_model_parse(out, bytes, size, err);
    free(bytes);
    return rc;
}

/* 0.5 x * Erfc(-x / sqrt 2), Erfc being no operator of ONNX */
static void gelu_of_keras_with_tensorflow_is_gelu(void **state) {
    (void)state;
    static const float half = 0.5f, root = 0.70710678f;
    ckks_error err = {0};
    onnx_model *m;
    lowered_model lowered;
    arena memory = {0};
    const double row[4] = {-3, -0.5, 0.25, 2};
    double scores[4];
    onnx_builder *b = onnx_builder_create();
    onnx_builder_input(b, "x", 2, four);
    onnx_builder_tensor(b, "half", 0, NULL, 1, &half);
    onnx_builder_tensor(b, "root", 0, NULL, 1, &root);
    onnx_builder_node(b, "", "Mul", "Gelu/mul", "half,x", "h");
    onnx_builder_node(b, "", "Neg", "Gelu/Neg", "x", "n");
    onnx_builder_node(b, "", "Mul", "Gelu/mul_1", "n,root", "z");
    onnx_builder_node(b, "", "Erfc", "Gelu/Erfc", "z", "e");
    onnx_builder_node(b, "", "Mul", "Gelu/mul_2", "h,e", "y");
    onnx_builder_output(b, "y");
    CHECK_STATUS(parse(&m, b, &err), CKKS_OK);
    CHECK_STATUS(onnx_interpret(scores, m, row, 1, &err), CKKS_OK);
    for (int i = 0; i < 4; i++)
        assert_true(fabs(scores[i] - 0.5 * row[i] * (1 + erf(row[i] / sqrt(2)))) < 1e-7);
    CHECK_STATUS(model_lower(&lowered, m, &memory, &err), CKKS_OK);
    ir_graph *g = &lowered.graph;
    ir_count_uses(g);
    CHECK_STATUS(ir_fold(g, &err), CKKS_OK);
    uint32_t activations = 0, products = 0;
    for (uint32_t k = 0; k < g->count; k++) {
        if (!g->nodes[k].use_count) continue;
        products += g->nodes[k].kind == IR_PRODUCT;
        if (g->nodes[k].kind != IR_ACTIVATION) continue;
        activations++;
        assert_string_equal(ir_function_name(g->nodes[k].function), "gelu");
    }
    assert_int_equal(activations, 1);
    assert_int_equal(products, 0);
    arena_fini(&memory);
    onnx_model_destroy(m);
}

static onnx_builder *two_inputs(const char *second) {
    onnx_builder *b = onnx_builder_create();
    onnx_builder_input(b, "x", 2, four);
    onnx_builder_input(b, second, 2, one_row);
    char inputs[64];
    snprintf(inputs, sizeof inputs, "x,%s", second);
    onnx_builder_node(b, "", "Sub", "difference", inputs, "y");
    onnx_builder_output(b, "y");
    return b;
}

static void a_constant_that_became_an_input_is_refused_with_the_way_out(void **state) {
    (void)state;
    ckks_error err = {0};
    onnx_model *m;
    CHECK_STATUS(parse(&m, two_inputs("net/normalization_1/Sub/y:0"), &err), CKKS_UNSUPPORTED);
    assert_string_equal(err.field, "net/normalization_1/Sub/y:0");
    assert_non_null(strstr(err.message, "Rescaling"));
    /* an input whose batch axis was forgotten is one */
    CHECK_STATUS(parse(&m, two_inputs("z"), &err), CKKS_OK);
    assert_int_equal(onnx_model_input_count(m), 8);
    onnx_model_destroy(m);
}

static void a_function_left_by_tensorflow_is_refused_with_the_way_out(void **state) {
    (void)state;
    ckks_error err = {0};
    onnx_model *m;
    const char *reason, *way_out;
    onnx_builder *b = onnx_builder_create();
    onnx_builder_input(b, "x", 2, four);
    onnx_builder_node(b, "", "StatefulPartitionedCall", "conv/StatefulPartitionedCall", "x", "y");
    onnx_builder_output(b, "y");
    CHECK_STATUS(parse(&m, b, &err), CKKS_UNSUPPORTED);
    assert_string_equal(err.field, "conv/StatefulPartitionedCall");
    operator_way_out("StatefulPartitionedCall", &reason, &way_out);
    assert_non_null(strstr(way_out, "KERAS_BACKEND=torch"));
}

/* ---- several models of scikit-learn in one: probabilities that more of the program reads ---- */

#define CLASSES 3
static const float first_weights[12] = {0.5f, -0.25f, 1, 0, -0.5f, 0.75f, 0.25f, 0.5f, 0, 1, -1, 0.25f};
static const float second_weights[12] = {1, 0, 0.5f, -0.75f, 0, 0.5f, -0.5f, 0.25f, -1, 0.25f, 0, 1};
static const int64_t class_numbers[CLASSES] = {0, 1, 2};

static void classifier(onnx_builder *b, const char *name, const char *input, const char *outputs,
                       size_t weight_count, const float *weights, size_t classes, const char *link) {
    static const float zeros[CLASSES];
    Onnx__Node *n = onnx_builder_node(b, "ai.onnx.ml", "LinearClassifier", name, input, outputs);
    onnx_builder_floats(b, n, "coefficients", weight_count, weights);
    onnx_builder_floats(b, n, "intercepts", weight_count == 12 ? 3 : weight_count == 8 ? 2 : 1, zeros);
    onnx_builder_ints(b, n, "classlabels_ints", classes, class_numbers);
    onnx_builder_text(b, n, "post_transform", link);
}

static void whole(onnx_builder *b, const char *name, size_t count, const int64_t *values) {
    const int64_t dims[] = {(int64_t)count};
    Onnx__Tensor *t = onnx_builder_tensor(b, name, 1, dims, 0, NULL);
    t->data_type = ELEMENT_INT64;
    t->int64_data = (int64_t *)(uintptr_t)values, t->n_int64_data = count;
}

static void normalizer(onnx_builder *b, const char *input, const char *output) {
    onnx_builder_text(b, onnx_builder_node(b, "ai.onnx.ml", "Normalizer", "sum_to_one", input, output),
                      "norm", "L1");
}

static void shares(double *out, const float *weights, const double *row) {
    double total = 0;
    for (int c = 0; c < CLASSES; c++) {
        double score = 0;
        for (int k = 0; k < 4; k++) score += (double)weights[4 * c + k] * row[k];
        total += out[c] = exp(score);
    }
    for (int c = 0; c < CLASSES; c++) out[c] /= total;
}

static double logistic(double x) {
    return 1 / (1 + exp(-x));
}

/* the interpreter's scores and the graph's, for one row */
static void evaluate(double *clear, double *graph, onnx_builder *b, const double *row, uint32_t count) {
    ckks_error err = {0};
    onnx_model *m;
    lowered_model lowered;
    arena memory = {0};
    ir_run run;
    if (parse(&m, b, &err) != CKKS_OK) fail_msg("%s: %s", err.field, err.message);
    assert_int_equal(onnx_model_score_count(m), count);
    CHECK_STATUS(onnx_interpret(clear, m, row, 1, &err), CKKS_OK);
    CHECK_STATUS(model_lower(&lowered, m, &memory, &err), CKKS_OK);
    ir_count_uses(&lowered.graph);
    CHECK_STATUS(ir_fold(&lowered.graph, &err), CKKS_OK);
    CHECK_STATUS(ir_run_init(&run, &lowered.graph, &memory, &err), CKKS_OK);
    CHECK_STATUS(ir_run_row(&run, &lowered.graph, row, &err), CKKS_OK);
    memcpy(graph, run.values[lowered.graph.output], count * sizeof *graph);
    arena_fini(&memory);
    onnx_model_destroy(m);
}

static void probabilities_of_several_classifiers_are_averaged(void **state) {
    (void)state;
    static const float half = 0.5f;
    const double row[4] = {0.7, -1.2, 0.4, 2};
    double a[CLASSES], c[CLASSES], clear[CLASSES], graph[CLASSES];
    onnx_builder *b = onnx_builder_create();
    onnx_builder_input(b, "x", 2, four);
    onnx_builder_tensor(b, "half", 0, NULL, 1, &half);
    classifier(b, "first", "x", "l1,p1", 12, first_weights, CLASSES, "SOFTMAX");
    classifier(b, "second", "x", "l2,p2", 12, second_weights, CLASSES, "SOFTMAX");
    normalizer(b, "p1", "n1");
    normalizer(b, "p2", "n2");
    onnx_builder_node(b, "", "Add", "both", "n1,n2", "sum");
    onnx_builder_node(b, "", "Mul", "mean", "sum,half", "probabilities");
    onnx_builder_int(b, onnx_builder_node(b, "", "ArgMax", "place", "probabilities", "place"), "axis", 1);
    onnx_builder_output(b, "place");
    onnx_builder_output(b, "probabilities");
    evaluate(clear, graph, b, row, CLASSES);
    shares(a, first_weights, row);
    shares(c, second_weights, row);
    for (int i = 0; i < CLASSES; i++) {
        assert_true(fabs(clear[i] - 0.5 * (a[i] + c[i])) < 1e-9);
        assert_true(fabs(graph[i] - 0.5 * (a[i] + c[i])) < 1e-9);
    }
}

/* StackingClassifier: the second column of each model's probabilities goes into another one, whose place of
 * the largest is named */
static void a_classifier_reads_the_probabilities_of_others(void **state) {
    (void)state;
    static const float last[2] = {1.5f, -2};
    const double row[4] = {0.3, 1.1, -0.6, 0.9};
    double clear[2], graph[2], p = 0, q[2] = {0, 0};
    onnx_builder *b = onnx_builder_create();
    onnx_builder_input(b, "x", 2, four);
    whole(b, "column", 1, class_numbers + 1);
    whole(b, "classes", 2, class_numbers);
    classifier(b, "first", "x", "l1,p1", 4, first_weights, 2, "LOGISTIC");
    /* two columns of a softmax are one sigmoid */
    classifier(b, "second", "x", "l2,p2", 8, second_weights, 2, "SOFTMAX");
    onnx_builder_node(b, "ai.onnx.ml", "ArrayFeatureExtractor", "of_first", "p1,column", "c1");
    onnx_builder_node(b, "ai.onnx.ml", "ArrayFeatureExtractor", "of_second", "p2,column", "c2");
    onnx_builder_int(b, onnx_builder_node(b, "", "Concat", "join", "c1,c2", "joined"), "axis", 1);
    classifier(b, "stacked", "joined", "label,scores", 2, last, 2, "LOGISTIC");
    onnx_builder_int(b, onnx_builder_node(b, "", "ArgMax", "place", "scores", "place"), "axis", 1);
    onnx_builder_node(b, "ai.onnx.ml", "ArrayFeatureExtractor", "name", "classes,place", "named");
    onnx_builder_output(b, "named");
    onnx_builder_output(b, "scores");
    evaluate(clear, graph, b, row, 2);
    for (int k = 0; k < 4; k++) {
        p += (double)first_weights[k] * row[k];
        q[0] += (double)second_weights[k] * row[k], q[1] += (double)second_weights[4 + k] * row[k];
    }
    const double score = 1.5 * logistic(p) - 2 * logistic(q[1] - q[0]);
    assert_true(fabs(clear[1] - score) < 1e-9 && fabs(clear[0] + score) < 1e-9);
    assert_true(fabs(graph[1] - score) < 1e-9 && fabs(graph[0] + score) < 1e-9);
}

/* ---- normalisations taken apart ---- */

/* x over the root of the mean of its squares: Sqrt and then Reciprocal (Keras), or Div (torch before
 * LayerNormalization) */
static onnx_builder *normalised(bool divides) {
    static const float small = 1e-3f;
    onnx_builder *b = onnx_builder_create();
    onnx_builder_input(b, "x", 2, four);
    onnx_builder_tensor(b, "small", 0, NULL, 1, &small);
    onnx_builder_node(b, "", "Mul", "square", "x,x", "s");
    Onnx__Node *mean = onnx_builder_node(b, "", "ReduceMean", "mean", "s", "m");
    onnx_builder_ints(b, mean, "axes", 1, (const int64_t[]){1});
    onnx_builder_node(b, "", "Add", "away_from_zero", "m,small", "v");
    onnx_builder_node(b, "", "Sqrt", "root", "v", "r");
    if (!divides) onnx_builder_node(b, "", "Reciprocal", "inverse", "r", "i");
    onnx_builder_node(b, "", divides ? "Div" : "Mul", "scale", divides ? "x,r" : "x,i", "y");
    onnx_builder_output(b, "y");
    return b;
}

static void a_root_and_what_divides_by_it_are_one_polynomial(void **state) {
    (void)state;
    const double row[4] = {0.5, -1, 2, 0.25};
    double mean = 1e-3;
    for (int k = 0; k < 4; k++) mean += row[k] * row[k] / 4;
    for (int divides = 0; divides < 2; divides++) {
        double clear[4], graph[4];
        ckks_error err = {0};
        onnx_model *m;
        lowered_model lowered;
        arena memory = {0};
        uint32_t activations = 0;
        evaluate(clear, graph, normalised(divides), row, 4);
        for (int k = 0; k < 4; k++) {
            assert_true(fabs(clear[k] - row[k] / sqrt(mean)) < 1e-7);
            assert_true(fabs(graph[k] - row[k] / sqrt(mean)) < 1e-7);
        }
        CHECK_STATUS(parse(&m, normalised(divides), &err), CKKS_OK);
        CHECK_STATUS(model_lower(&lowered, m, &memory, &err), CKKS_OK);
        ir_count_uses(&lowered.graph);
        for (uint32_t k = 0; k < lowered.graph.count; k++) {
            const ir_node *n = &lowered.graph.nodes[k];
            if (!n->use_count || n->kind != IR_ACTIVATION) continue;
            activations++;
            assert_true(n->function == IR_POW && n->parameters[0] == -0.5);
        }
        assert_int_equal(activations, 1);
        arena_fini(&memory);
        onnx_model_destroy(m);
    }
}

/* ---- LayerNormalization in many operators ---- */

#define ROWS  40u
#define WIDTH 8u

/* how it is written: one operator; with moments, as Keras does; around the mean, as torch did before there
 * was an operator; two groups for a row, with a power in place of a root */
typedef enum spelling { AS_ONE, WITH_MOMENTS, AROUND_MEAN, IN_GROUPS, SPELLINGS } spelling;

static void mean_of(onnx_builder *b, const char *input, const char *output, int64_t axis) {
    Onnx__Node *mean = onnx_builder_node(b, "", "ReduceMean", output, input, output);
    onnx_builder_ints(b, mean, "axes", 1, &axis);
}

static void moments(onnx_builder *b) {
    mean_of(b, "h", "mean", -1);
    onnx_builder_node(b, "", "Mul", "squares", "h,h", "squares");
    mean_of(b, "squares", "size", -1);
    onnx_builder_node(b, "", "Mul", "mean_squared", "mean,mean", "mean_squared");
    onnx_builder_node(b, "", "Sub", "variance", "size,mean_squared", "variance");
    onnx_builder_node(b, "", "Add", "kept", "variance,small", "kept");
    onnx_builder_node(b, "", "Sqrt", "root", "kept", "root");
    onnx_builder_node(b, "", "Reciprocal", "inverse", "root", "inverse");
    onnx_builder_node(b, "", "Mul", "factor", "inverse,scale", "factor");
    onnx_builder_node(b, "", "Mul", "moved", "mean,factor", "moved");
    onnx_builder_node(b, "", "Sub", "rest", "bias,moved", "rest");
    onnx_builder_node(b, "", "Mul", "scaled", "h,factor", "scaled");
    onnx_builder_node(b, "", "Add", "norm", "scaled,rest", "n");
}

static void around_mean(onnx_builder *b) {
    mean_of(b, "h", "mean", -1);
    onnx_builder_node(b, "", "Sub", "centred", "h,mean", "centred");
    onnx_builder_node(b, "", "Mul", "squares", "centred,centred", "squares");
    mean_of(b, "squares", "variance", -1);
    onnx_builder_node(b, "", "Add", "kept", "variance,small", "kept");
    onnx_builder_node(b, "", "Sqrt", "root", "kept", "root");
    onnx_builder_node(b, "", "Div", "unit", "centred,root", "unit");
    onnx_builder_node(b, "", "Mul", "scaled", "unit,scale", "scaled");
    onnx_builder_node(b, "", "Add", "norm", "scaled,bias", "n");
}

static void in_groups(onnx_builder *b) {
    static const float minus_half = -0.5f;
    static const int64_t apart[] = {1, 2, 4}, together[] = {1, 8};
    onnx_builder_tensor(b, "minus_half", 0, NULL, 1, &minus_half);
    whole(b, "apart", 3, apart);
    whole(b, "together", 2, together);
    onnx_builder_node(b, "", "Reshape", "split", "h,apart", "g");
    mean_of(b, "g", "mean", 2);
    onnx_builder_node(b, "", "Mul", "squares", "g,g", "squares");
    mean_of(b, "squares", "size", 2);
    onnx_builder_node(b, "", "Mul", "mean_squared", "mean,mean", "mean_squared");
    onnx_builder_node(b, "", "Sub", "variance", "size,mean_squared", "variance");
    onnx_builder_node(b, "", "Add", "kept", "variance,small", "kept");
    onnx_builder_node(b, "", "Pow", "inverse", "kept,minus_half", "inverse");
    onnx_builder_node(b, "", "Mul", "of_mean", "mean,inverse", "of_mean");
    onnx_builder_node(b, "", "Mul", "of_each", "g,inverse", "of_each");
    onnx_builder_node(b, "", "Sub", "unit", "of_each,of_mean", "unit");
    onnx_builder_node(b, "", "Reshape", "join", "unit,together", "flat");
    onnx_builder_node(b, "", "Mul", "scaled", "flat,scale", "scaled");
    onnx_builder_node(b, "", "Add", "norm", "scaled,bias", "n");
}

static onnx_builder *layer_norm(spelling how) {
    static const int64_t eight[] = {8}, eight_rows[] = {-1, 8}, square[] = {8, 8};
    static const float small = 1e-2f;
    static float scale[8], bias[8], weights[64];
    onnx_builder *b = onnx_builder_create();
    onnx_builder_model(b)->opset_import[0]->version = 17;
    for (int i = 0; i < 64; i++) weights[i] = (float)sin(0.3 * i * i);
    for (int i = 0; i < 8; i++) scale[i] = 1 + 0.1f * (float)i, bias[i] = 0.2f * (float)(i % 3) - 0.1f;
    onnx_builder_input(b, "x", 2, eight_rows);
    onnx_builder_tensor(b, "w", 2, square, 64, weights);
    onnx_builder_tensor(b, "scale", 1, eight, 8, scale);
    onnx_builder_tensor(b, "bias", 1, eight, 8, bias);
    onnx_builder_tensor(b, "small", 0, NULL, 1, &small);
    onnx_builder_node(b, "", "MatMul", "before", "x,w", "h");
    if (how == AS_ONE) {
        Onnx__Node *norm = onnx_builder_node(b, "", "LayerNormalization", "norm", "h,scale,bias", "n");
        onnx_builder_float(b, norm, "epsilon", small);
    } else if (how == WITH_MOMENTS)
        moments(b);
    else if (how == AROUND_MEAN)
        around_mean(b);
    else
        in_groups(b);
    onnx_builder_node(b, "", "Sigmoid", "gate", "n", "s");
    onnx_builder_node(b, "", "MatMul", "behind", "s,w", "y");
    onnx_builder_output(b, "y");
    return b;
}

/* what the compiler makes of it */
typedef struct outcome {
    uint32_t levels, products, polynomials, polynomial_levels;
    double scores[ROWS * WIDTH];
} outcome;

static void substitute(outcome *out, onnx_builder *b) {
    ckks_error err = {0};
    onnx_model *m;
    lowered_model lowered;
    ir_graph g;
    arena memory = {0};
    double rows[ROWS * WIDTH], scores[ROWS * WIDTH];
    const calibration data = {rows, ROWS, WIDTH};
    for (uint32_t i = 0; i < ROWS * WIDTH; i++) rows[i] = 2 * sin(0.7 * i + 0.013 * i * i);
    if (parse(&m, b, &err) != CKKS_OK) fail_msg("%s: %s", err.field, err.message);
    CHECK_STATUS(onnx_interpret(out->scores, m, rows, ROWS, &err), CKKS_OK);
    CHECK_STATUS(model_lower(&lowered, m, &memory, &err), CKKS_OK);
    ir_count_uses(&lowered.graph);
    CHECK_STATUS(ir_fold(&lowered.graph, &err), CKKS_OK);
    CHECK_STATUS(graph_observe(&lowered.graph, &data, scores, &err), CKKS_OK);
    const uint32_t width = lowered.graph.nodes[lowered.graph.output].count;
    for (uint32_t i = 0; i < ROWS * width; i++) assert_true(fabs(scores[i] - out->scores[i]) < 1e-9);
    if (graph_substitute(&g, &lowered.graph, 0.02, 0.25, &err) != CKKS_OK) fail_msg("%s", err.message);
    ir_count_uses(&g);
    uint32_t *levels = calloc(g.count, sizeof *levels);
    assert_non_null(levels);
    out->levels = graph_levels(levels, &g);
    out->products = out->polynomials = out->polynomial_levels = 0;
    for (uint32_t k = 0; k < g.count; k++) {
        out->products += g.nodes[k].use_count && g.nodes[k].kind == IR_PRODUCT;
        if (!g.nodes[k].use_count || g.nodes[k].kind != IR_POLYNOMIAL) continue;
        out->polynomials++;
        out->polynomial_levels += ir_node_depth(&g, k);
    }
    free(levels);
    arena_fini(&memory);
    onnx_model_destroy(m);
}

static void a_layer_normalisation_costs_the_same_however_it_is_written(void **state) {
    (void)state;
    outcome one;
    substitute(&one, layer_norm(AS_ONE));
    assert_int_equal(one.products, 2);
    for (spelling how = WITH_MOMENTS; how < SPELLINGS; how++) {
        outcome other;
        substitute(&other, layer_norm(how));
        print_message("  %u levels, %u products, %u polynomials\n", other.levels, other.products,
                      other.polynomials);
        assert_int_equal(other.products, 2);
        assert_int_equal(other.polynomials, 2);
        if (how != IN_GROUPS) assert_int_equal(other.levels, one.levels);
        for (uint32_t i = 0; i < ROWS * WIDTH && how != IN_GROUPS; i++)
            assert_true(fabs(other.scores[i] - one.scores[i]) < 1e-6);
    }
}

/* ---- PReLU ---- */

/* one operator; one slope for all; relu(x) - a relu(-x), as Keras writes it, in either order */
typedef enum slopes { OPERATOR, ONE_SLOPE, TWO_RELUS, NEGATIVE_FIRST } slopes;

static onnx_builder *prelu_network(slopes how) {
    static const int64_t eight[] = {8}, one[] = {1}, eight_rows[] = {-1, 8}, square[] = {8, 8};
    static float slope[8], minus_slope[8], weights[64];
    onnx_builder *b = onnx_builder_create();
    for (int i = 0; i < 64; i++) weights[i] = (float)sin(0.3 * i * i);
    for (int i = 0; i < 8; i++) slope[i] = 0.05f * (float)(i + 1), minus_slope[i] = -slope[i];
    onnx_builder_input(b, "x", 2, eight_rows);
    onnx_builder_tensor(b, "w", 2, square, 64, weights);
    onnx_builder_tensor(b, "slope", 1, eight, 8, slope);
    onnx_builder_tensor(b, "minus_slope", 1, eight, 8, minus_slope);
    onnx_builder_tensor(b, "one_slope", 1, one, 1, slope);
    onnx_builder_node(b, "", "MatMul", "before", "x,w", "h");
    if (how <= ONE_SLOPE)
        onnx_builder_node(b, "", "PRelu", "prelu", how == ONE_SLOPE ? "h,one_slope" : "h,slope", "p");
    if (how == TWO_RELUS) onnx_builder_node(b, "", "Relu", "above", "h", "a");
    if (how > ONE_SLOPE) {
        onnx_builder_node(b, "", "Neg", "negative", "h", "n");
        onnx_builder_node(b, "", "Relu", "below", "n", "r");
    }
    if (how == NEGATIVE_FIRST) onnx_builder_node(b, "", "Relu", "above", "h", "a");
    if (how > ONE_SLOPE) {
        onnx_builder_node(b, "", "Mul", "sloped", "minus_slope,r", "s");
        onnx_builder_node(b, "", "Add", "prelu", "a,s", "p");
    }
    onnx_builder_node(b, "", "MatMul", "behind", "p,w", "y");
    onnx_builder_output(b, "y");
    return b;
}

/* the interval is folded into the layer before although the linear part reads that too */
static void a_prelu_is_one_polynomial_and_takes_no_level_more_than_relu(void **state) {
    (void)state;
    outcome one, other;
    substitute(&one, prelu_network(OPERATOR));
    for (slopes how = OPERATOR; how <= NEGATIVE_FIRST; how++) {
        substitute(&other, prelu_network(how));
        assert_int_equal(other.polynomials, 1);
        /* beside it the layers before and behind */
        assert_int_equal(other.levels, 2 + other.polynomial_levels);
        for (uint32_t i = 0; i < ROWS * WIDTH && how != ONE_SLOPE; i++)
            assert_true(fabs(other.scores[i] - one.scores[i]) < 1e-9);
    }
}

/* ---- what calibrated, wide and imputing models of scikit-learn are made of ---- */

/* sum of 1 / (1 + factor exp(z)) and of another one, z reaching as far as `wide` says */
static onnx_builder *calibrated(float wide, bool has_quotient) {
    static const int64_t eight_rows[] = {-1, 8}, narrow[] = {8, 2}, two_rows[] = {2, 1};
    static const float one = 1, both[] = {0.5f, 0.25f};
    static float weights[16];
    onnx_builder *b = onnx_builder_create();
    for (int i = 0; i < 16; i++) weights[i] = wide * (float)sin(0.3 * i * i);
    onnx_builder_input(b, "x", 2, eight_rows);
    onnx_builder_tensor(b, "w", 2, narrow, 16, weights);
    onnx_builder_tensor(b, "both", 2, two_rows, 2, both);
    onnx_builder_tensor(b, "one", 0, NULL, 1, &one);
    onnx_builder_node(b, "", "MatMul", "before", "x,w", "h");
    if (has_quotient) {
        onnx_builder_node(b, "", "Exp", "power", "h", "e");
        onnx_builder_node(b, "", "Add", "divisor", "e,one", "d");
        onnx_builder_node(b, "", "Div", "share", "one,d", "s");
    } else
        onnx_builder_node(b, "", "Sigmoid", "share", "h", "s");
    onnx_builder_node(b, "", "MatMul", "behind", "s,both", "y");
    onnx_builder_output(b, "y");
    return b;
}

static void one_over_one_and_an_exponential_is_a_sigmoid(void **state) {
    (void)state;
    outcome made;
    substitute(&made, calibrated(4, true));
    assert_int_equal(made.polynomials, 1);
    assert_int_equal(made.levels, 2 + made.polynomial_levels);
}

/* averaged logistic regressions of columns that were not scaled */
static void a_wide_sigmoid_takes_a_high_degree_and_a_wider_one_is_refused_with_the_way_out(void **state) {
    (void)state;
    outcome made;
    substitute(&made, calibrated(40, false));
    assert_true(made.polynomial_levels > 7);
    static const double rows[8] = {1, 1, 1, 1, 1, 1, 1, 1}, wide[8] = {2e4, -2e4, 2e4, -2e4, 1e4, 0, 0, 0};
    double both[16];
    for (int i = 0; i < 8; i++) both[i] = rows[i] * -wide[i], both[8 + i] = wide[i];
    const calibration data = {both, 2, 8};
    ckks_error err = {0};
    onnx_model *m;
    lowered_model lowered;
    ir_graph g;
    arena memory = {0};
    CHECK_STATUS(parse(&m, calibrated(1, false), &err), CKKS_OK);
    CHECK_STATUS(model_lower(&lowered, m, &memory, &err), CKKS_OK);
    CHECK_STATUS(graph_observe(&lowered.graph, &data, NULL, &err), CKKS_OK);
    CHECK_STATUS(graph_substitute(&g, &lowered.graph, 0.02, 0.25, &err), CKKS_PRECISION);
    assert_string_equal(err.field, "share");
    assert_non_null(strstr(err.message, "StandardScaler"));
    arena_fini(&memory);
    onnx_model_destroy(m);
}

static void an_elementwise_layer_that_several_layers_read_takes_no_level(void **state) {
    (void)state;
    static const int64_t eight_rows[] = {-1, 8}, eight[] = {8}, narrow[] = {8, 2};
    static const float scale[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    static float weights[16];
    outcome made;
    onnx_builder *b = onnx_builder_create();
    for (int i = 0; i < 16; i++) weights[i] = (float)sin(0.3 * i * i) / 8;
    onnx_builder_input(b, "x", 2, eight_rows);
    onnx_builder_tensor(b, "scale", 1, eight, 8, scale);
    onnx_builder_tensor(b, "w", 2, narrow, 16, weights);
    onnx_builder_node(b, "", "Mul", "square", "x,x", "s");
    onnx_builder_node(b, "", "Mul", "scaled", "s,scale", "h");
    onnx_builder_node(b, "", "MatMul", "first", "h,w", "f");
    onnx_builder_node(b, "", "Mul", "first_square", "f,f", "p");
    onnx_builder_node(b, "", "MatMul", "second", "h,w", "g");
    onnx_builder_node(b, "", "Add", "sum", "p,g", "y");
    onnx_builder_output(b, "y");
    substitute(&made, b);
    assert_int_equal(made.levels, 4);
}

static void a_nearest_neighbour_imputer_is_refused_with_the_way_out(void **state) {
    (void)state;
    const char *reason, *way_out;
    ckks_error err = {0};
    onnx_model *m;
    onnx_builder *b = onnx_builder_create();
    onnx_builder_input(b, "x", 2, four);
    onnx_builder_node(b, "", "IsNaN", "missing", "x", "m");
    onnx_builder_node(b, "", "NonZero", "which", "m", "rows");
    onnx_builder_node(b, "local_domain", "knn_imputer_column", "fill", "x,m,rows", "y");
    onnx_builder_output(b, "y");
    /* no row of the sample has a missing number: how many there are is not known, and no fault of the file */
    CHECK_STATUS(parse(&m, b, &err), CKKS_UNSUPPORTED);
    assert_non_null(strstr(err.message, "knn_imputer_column"));
    operator_way_out("local_domain.knn_imputer_column", &reason, &way_out);
    assert_non_null(strstr(reason, "KNNImputer"));
    assert_non_null(strstr(way_out, "SimpleImputer"));
}

/* CalibratedClassifierCV of several classes: is the sum of what it divides zero? */
static void a_question_for_zero_is_refused_with_the_way_out(void **state) {
    (void)state;
    ckks_error err = {0};
    onnx_model *m;
    lowered_model lowered;
    arena memory = {0};
    onnx_builder *b = onnx_builder_create();
    size_t size;
    onnx_builder_input(b, "x", 2, four);
    onnx_builder_int(b, onnx_builder_node(b, "", "Cast", "is_not_zero", "x", "c"), "to", ELEMENT_BOOL);
    onnx_builder_int(b, onnx_builder_node(b, "", "Cast", "number", "c", "n"), "to", ELEMENT_FLOAT);
    onnx_builder_node(b, "", "Mul", "square", "n,n", "y");
    onnx_builder_output(b, "y");
    uint8_t *bytes = onnx_builder_finish(b, &size);
    onnx_builder_destroy(b);
    CHECK_STATUS(model_read(&m, bytes, size, &err), CKKS_OK);
    CHECK_STATUS(model_lower(&lowered, m, &memory, &err), CKKS_UNSUPPORTED);
    assert_int_equal(m->refusal_count, 1);
    assert_string_equal(m->refusals[0].node, "is_not_zero");
    assert_non_null(strstr(m->refusals[0].way_out, "OneVsRestClassifier"));
    free(bytes);
    arena_fini(&memory);
    onnx_model_destroy(m);
}

/* a stacked model whose exporter gives it both columns of each model's scores, where it knows one of each */
static void coefficients_for_other_columns_are_told_from_wrong_intercepts(void **state) {
    (void)state;
    static const float zeros[2];
    ckks_error err = {0};
    onnx_model *m;
    onnx_builder *b = onnx_builder_create();
    onnx_builder_input(b, "x", 2, four);
    Onnx__Node *n = onnx_builder_node(b, "ai.onnx.ml", "LinearClassifier", "stacked", "x", "label,scores");
    onnx_builder_floats(b, n, "coefficients", 4, first_weights);
    onnx_builder_floats(b, n, "intercepts", 2, zeros);
    onnx_builder_ints(b, n, "classlabels_ints", 2, class_numbers);
    onnx_builder_output(b, "label");
    CHECK_STATUS(parse(&m, b, &err), CKKS_MALFORMED);
    assert_string_equal(err.field, "stacked");
    assert_non_null(strstr(err.message, "coefficients for 2 columns, its input has 4"));
}

static void failing_allocations_are_reported_while_a_normalisation_is_found(void **state) {
    (void)state;
    char path[64];
    size_t size;
    onnx_builder *b = layer_norm(WITH_MOMENTS);
    uint8_t *bytes = onnx_builder_finish(b, &size);
    temporary_file(path, sizeof path, "ckks-exporters", bytes, size);
    onnx_load_with_failing_allocations(path);
    unlink(path);
    free(bytes);
    onnx_builder_destroy(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gelu_of_keras_with_tensorflow_is_gelu),
        cmocka_unit_test(a_constant_that_became_an_input_is_refused_with_the_way_out),
        cmocka_unit_test(a_function_left_by_tensorflow_is_refused_with_the_way_out),
        cmocka_unit_test(probabilities_of_several_classifiers_are_averaged),
        cmocka_unit_test(a_classifier_reads_the_probabilities_of_others),
        cmocka_unit_test(a_root_and_what_divides_by_it_are_one_polynomial),
        cmocka_unit_test(a_layer_normalisation_costs_the_same_however_it_is_written),
        cmocka_unit_test(a_prelu_is_one_polynomial_and_takes_no_level_more_than_relu),
        cmocka_unit_test(one_over_one_and_an_exponential_is_a_sigmoid),
        cmocka_unit_test(a_wide_sigmoid_takes_a_high_degree_and_a_wider_one_is_refused_with_the_way_out),
        cmocka_unit_test(an_elementwise_layer_that_several_layers_read_takes_no_level),
        cmocka_unit_test(a_nearest_neighbour_imputer_is_refused_with_the_way_out),
        cmocka_unit_test(a_question_for_zero_is_refused_with_the_way_out),
        cmocka_unit_test(coefficients_for_other_columns_are_told_from_wrong_intercepts),
        cmocka_unit_test(failing_allocations_are_reported_while_a_normalisation_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
