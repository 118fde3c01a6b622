/* Reading ONNX: every operator against onnx.reference, every refusal by name, hostile files. */
#include "client/compile/compile.h"
#include "client/compile/lower.h"
#include "client/compile/model.h"
#include "tests/support/onnx_builder.h"
#include "tests/support/onnx_cases.h"
#include "tests/support/onnx_failures.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
// cmocka wants these first
#include <cmocka.h>

#define CHECK_STATUS(call, expected) assert_string_equal(ckks_status_name(call), ckks_status_name(expected))

/* ---- against onnx.reference ---- */

static void evaluate_case(const char *name) {
    onnx_case c;
    ckks_error err = {0};
    onnx_model *m;
    double worst = 0;
    arena scratch = {0};
    onnx_case_read(&c, name);
    CHECK_STATUS(model_read_file(&m, c.path, &err), CKKS_OK);
    assert_int_equal(c.input_count, onnx_model_input_count(m));
    for (unsigned r = 0; r < c.row_count; r++) {
        tensor *values = arena_take(&scratch, m->value_count, sizeof *values);
        CHECK_STATUS(model_evaluate(m, c.inputs + r * c.input_count, false, values, &scratch, &err), CKKS_OK);
        const double *expected = c.outputs + r * c.output_count;
        unsigned seen = 0;
        for (uint32_t o = 0; o < m->output_count; o++)
            for (uint32_t i = 0; i < values[m->outputs[o]].count; i++, seen++) {
                assert_true(seen < c.output_count);
                worst = fmax(worst, fabs(values[m->outputs[o]].data[i] - expected[seen]) /
                                        (1 + fabs(expected[seen])));
            }
        assert_int_equal(seen, c.output_count);
    }
    print_message("  %-18s worst relative difference %.1e\n", name, worst);
    assert_true(worst < 1e-5); /* the reference works in binary32 */
    arena_fini(&scratch);
    onnx_model_destroy(m);
}

static void every_operator_gives_what_onnx_reference_gives(void **state) {
    (void)state;
    for (size_t i = 0; onnx_cases[i]; i++) evaluate_case(onnx_cases[i]);
}

static void interpret_gives_scores_before_the_clients_part(void **state) {
    (void)state;
    ckks_error err = {0};
    onnx_model *m;
    const double row[4] = {0.512319446, 0.788728952, -0.709364235, 0.619887471};
    double scores[3], total = 0;
    CHECK_STATUS(onnx_model_load(&m, "tests/data/onnx/silu.onnx", &err), CKKS_OK);
    assert_int_equal(onnx_model_score_count(m), 3);
    CHECK_STATUS(onnx_interpret(scores, m, row, 1, &err), CKKS_OK);
    for (int i = 0; i < 3; i++) total += exp(scores[i]);
    /* first row of silu.txt */
    assert_true(fabs(exp(scores[2]) / total - 0.837828696) < 1e-6);
    onnx_model_destroy(m);
}

/* ---- small models ---- */

static const int64_t row_of_4[] = {-1, 4}, square_4[] = {4, 4}, four[] = {4};

static onnx_builder *dense_model(void) {
    onnx_builder *b = onnx_builder_create();
    onnx_builder_input(b, "x", 2, row_of_4);
    onnx_builder_tensor(b, "w", 2, square_4, 16, NULL);
    onnx_builder_node(b, "", "MatMul", "layer", "x,w", "y");
    onnx_builder_output(b, "y");
    return b;
}

static ckks_status parse(onnx_builder *b, ckks_error *err) {
    size_t size;
    uint8_t *bytes = onnx_builder_finish(b, &size);
    onnx_model *m = NULL;
    *err = (ckks_error){0};
    const ckks_status rc = onnx_model_parse(&m, bytes, size, err);
    if (rc != CKKS_OK) assert_null(m);
    onnx_model_destroy(m);
    free(bytes);
    onnx_builder_destroy(b);
    return rc;
}

static void plain_dense_model_is_read(void **state) {
    (void)state;
    ckks_error err;
    CHECK_STATUS(parse(dense_model(), &err), CKKS_OK);
}

/* ---- refusals ---- */

typedef struct refusal_case {
    const char *domain, *type, *inputs;
    const char *reason_has, *way_out_has;
} refusal_case;

/* each becomes a node "bad" between a dense layer and another one */
static const refusal_case refusal_cases[] = {

    {"", "Greater", "y,four", "compared", "client"},
    {"", "MatMul", "y,y2", "two encrypted", "constant"},
    {"", "Pow", "y,y", "exponent", "products"},
    {"", "Reshape", "y,x", "shape", "constant"},
    {"com.example", "Frobnicate", "y", "not compiled", "Gemm"},
    {"", "LSTM", "y,w,w", "levels", "convolutions"},
    {"", "QuantizeLinear", "y,half", "rounded", "before quantisation"},
    {"", "TopK", "y,half", "compared", "sorts"},
    {"ai.onnx.ml", "TreeEnsembleClassifier", "y", "compare", "distil"},
};

static onnx_builder *refused_model(const refusal_case *c) {
    onnx_builder *b = dense_model();
    const int64_t one[] = {1};
    const float half = 0.5f;
    onnx_builder_tensor(b, "four", 1, four, 4, NULL);
    onnx_builder_tensor(b, "half", 1, one, 1, &half);
    onnx_builder_node(b, "", "MatMul", "left", "x,w", "y2");
    onnx_builder_node(b, c->domain, c->type, "bad", c->inputs, "z");
    onnx_builder_node(b, "", "MatMul", "after", "z,w", "out");
    onnx_builder_model(b)->graph->n_output = 0;
    onnx_builder_output(b, "out");
    return b;
}

static void what_cannot_run_is_refused_by_node_name(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refusal_cases / sizeof *refusal_cases; i++) {
        const refusal_case *c = &refusal_cases[i];
        size_t size;
        onnx_builder *b = refused_model(c);
        uint8_t *bytes = onnx_builder_finish(b, &size);
        onnx_model *m;
        ckks_error err = {0};
        arena memory = {0};
        lowered_model lowered;
        /* a square times a square has no shape problem; a shape from data is one for ONNX too */
        const ckks_status read = model_read(&m, bytes, size, &err);
        if (strcmp(c->type, "Reshape") == 0) {
            assert_int_not_equal(read, CKKS_OK);
            assert_string_equal(err.field, "bad");
        } else if (strcmp(c->type, "MatMul") == 0 || strcmp(c->type, "Conv") == 0) {
            /* [1, 4] by [1, 4]; an image has more axes */
            CHECK_STATUS(read, CKKS_MALFORMED);
            assert_string_equal(err.field, "bad");
        } else {
            CHECK_STATUS(read, CKKS_OK);
            CHECK_STATUS(model_lower(&lowered, m, &memory, &err), CKKS_UNSUPPORTED);
            assert_string_equal(err.field, "bad");
            assert_int_equal(m->refusal_count, 1);
            assert_string_equal(m->refusals[0].node, "bad");
            assert_non_null(strstr(m->refusals[0].type, c->type));
            if (!strstr(m->refusals[0].reason, c->reason_has) ||
                !strstr(m->refusals[0].way_out, c->way_out_has))
                fail_msg("%s: %s / %s", c->type, m->refusals[0].reason, m->refusals[0].way_out);
        }
        onnx_model_destroy(read == CKKS_OK ? m : NULL);
        arena_fini(&memory);
        free(bytes);
        onnx_builder_destroy(b);
    }
}

/* an image through a pool, a division and, behind a recurrent layer of unknown shape, another pool */
static void every_refusal_behind_a_refusal_is_found(void **state) {
    (void)state;
    const int64_t image[] = {-1, 1, 4, 4}, kernel[] = {2, 2};
    ckks_error err;
    onnx_builder *b = onnx_builder_create();
    onnx_builder_input(b, "x", 4, image);
    Onnx__Node *pool = onnx_builder_node(b, "", "MaxPool", "pool_1", "x", "p");
    onnx_builder_ints(b, pool, "kernel_shape", 2, kernel);
    onnx_builder_node(b, "", "Mod", "ratio", "p,p", "r");
    onnx_builder_node(b, "", "LSTM", "lstm_1", "r", "s");
    Onnx__Node *again = onnx_builder_node(b, "", "MaxPool", "pool_2", "s", "t");
    onnx_builder_ints(b, again, "kernel_shape", 2, kernel);
    onnx_builder_node(b, "", "Relu", "relu_1", "t", "y");
    onnx_builder_output(b, "y");
    CHECK_STATUS(parse(b, &err), CKKS_UNSUPPORTED);
    static const char *const all[] = {"4 operators", "pool_1 (MaxPool)", "ratio (Mod)", "lstm_1 (LSTM)",
                                      "pool_2 (MaxPool)"};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strstr(err.message, all[i])) fail_msg("'%s' is not in '%s'", all[i], err.message);
}

static void product_of_two_large_encrypted_matrices_is_refused(void **state) {
    (void)state;
    const int64_t in[] = {-1, 48, 48};
    ckks_error err;
    onnx_builder *b = onnx_builder_create();
    onnx_builder_input(b, "x", 3, in);
    const float dims[] = {48, 48};
    const int64_t two[] = {2};
    onnx_builder_tensor(b, "shape", 1, two, 2, dims);
    onnx_builder_node(b, "", "Reshape", "square", "x,shape", "a");
    onnx_builder_node(b, "", "MatMul", "attention", "a,a", "y");
    onnx_builder_output(b, "y");
    CHECK_STATUS(parse(b, &err), CKKS_UNSUPPORTED);
    assert_string_equal(err.field, "attention");
    assert_non_null(strstr(err.message, "attention (MatMul)"));
}

static void all_refused_operators_are_named_at_once(void **state) {
    (void)state;
    ckks_error err;
    onnx_builder *b = dense_model();
    onnx_builder_node(b, "", "LSTM", "lstm_1", "y,w", "c");
    onnx_builder_node(b, "", "MaxPool", "pool_1", "c", "p");
    onnx_builder_node(b, "", "ReduceMax", "max_1", "y", "e");
    onnx_builder_node(b, "", "Mod", "ratio", "x,y", "r");
    onnx_builder_output(b, "p");
    onnx_builder_output(b, "e");
    onnx_builder_output(b, "r");
    CHECK_STATUS(parse(b, &err), CKKS_UNSUPPORTED);
    static const char *const all[] = {"4 operators", "lstm_1 (LSTM)", "pool_1 (MaxPool)", "max_1 (ReduceMax)",
                                      "ratio (Mod)"};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strstr(err.message, all[i])) fail_msg("'%s' is not in '%s'", all[i], err.message);
}

static void comparisons_that_prepare_columns_are_sent_before_encryption(void **state) {
    (void)state;
    size_t size;
    onnx_model *m;
    arena memory = {0};
    lowered_model lowered;
    ckks_error err = {0};
    onnx_builder *b = onnx_builder_create();
    onnx_builder_input(b, "x", 2, row_of_4);
    onnx_builder_tensor(b, "w", 2, square_4, 16, NULL);
    onnx_builder_tensor(b, "edges", 1, four, 4, NULL);
    onnx_builder_node(b, "", "Less", "bins", "x,edges", "c");
    onnx_builder_node(b, "", "Where", "chosen", "c,x,edges", "d");
    onnx_builder_node(b, "", "MatMul", "layer", "d,w", "h");
    onnx_builder_node(b, "", "Floor", "steps", "h", "y");
    onnx_builder_output(b, "y");
    uint8_t *bytes = onnx_builder_finish(b, &size);
    CHECK_STATUS(model_read(&m, bytes, size, &err), CKKS_OK);
    CHECK_STATUS(model_lower(&lowered, m, &memory, &err), CKKS_UNSUPPORTED);
    assert_int_equal(m->refusal_count, 3);
    assert_non_null(strstr(m->refusals[0].way_out, "pipeline[-1]"));
    assert_non_null(strstr(m->refusals[1].way_out, "pipeline[-1]"));
    assert_null(strstr(m->refusals[2].way_out, "pipeline"));
    onnx_model_destroy(m);
    arena_fini(&memory);
    free(bytes);
    onnx_builder_destroy(b);
}

static void a_choice_that_jumps_is_refused_by_name(void **state) {
    (void)state;
    ckks_error err;
    const float half = 0.5f, none = 0;
    const int64_t one[] = {1};
    onnx_builder *b = dense_model();
    onnx_builder_tensor(b, "half", 1, one, 1, &half);
    onnx_builder_tensor(b, "none", 1, one, 1, &none);
    onnx_builder_node(b, "", "Greater", "over", "y,half", "c");
    onnx_builder_node(b, "", "Where", "threshold", "c,y,none", "t");
    onnx_builder_node(b, "", "MatMul", "after", "t,w", "out");
    onnx_builder_model(b)->graph->n_output = 0;
    onnx_builder_output(b, "out");
    CHECK_STATUS(parse(b, &err), CKKS_UNSUPPORTED);
    assert_string_equal(err.field, "threshold");
}

static void work_behind_a_softmax_is_refused(void **state) {
    (void)state;
    ckks_error err;
    onnx_builder *b = dense_model();
    onnx_builder_node(b, "", "Softmax", "softmax", "y", "p");
    onnx_builder_node(b, "", "MatMul", "mix", "p,w", "z");
    onnx_builder_output(b, "z");
    CHECK_STATUS(parse(b, &err), CKKS_UNSUPPORTED);
    assert_string_equal(err.field, "mix");
    assert_non_null(strstr(err.message, "mix (MatMul)"));
}

static void second_independent_output_is_refused(void **state) {
    (void)state;
    ckks_error err;
    onnx_builder *b = dense_model();
    onnx_builder_node(b, "", "MatMul", "other", "x,w", "z");
    onnx_builder_output(b, "z");
    CHECK_STATUS(parse(b, &err), CKKS_UNSUPPORTED);
    assert_string_equal(err.field, "other");
}

/* ---- hostile files ---- */

typedef struct hostile_case {
    const char *what;
    ckks_status status;
    const char *field;
    void (*spoil)(onnx_builder *b, Onnx__Model *m);
} hostile_case;

static void spoil_no_graph(onnx_builder *b, Onnx__Model *m) {
    (void)b;
    m->graph = NULL;
}
static void spoil_huge_dims(onnx_builder *b, Onnx__Model *m) {
    (void)b;
    m->graph->initializer[0]->dims[0] = INT64_C(1) << 33;
    m->graph->initializer[0]->dims[1] = INT64_C(1) << 33;
}
static void spoil_wrapping_dims(onnx_builder *b, Onnx__Model *m) {
    (void)b;
    /* 2^32 * 2^32 wraps to 0, 2^34 * 2^30 + 16 elements to 16 */
    m->graph->initializer[0]->dims[0] = INT64_C(1) << 32;
    m->graph->initializer[0]->dims[1] = INT64_C(1) << 32;
}
static void spoil_negative_dim(onnx_builder *b, Onnx__Model *m) {
    (void)b;
    m->graph->initializer[0]->dims[0] = -4;
}
static void spoil_short_data(onnx_builder *b, Onnx__Model *m) {
    (void)b;
    m->graph->initializer[0]->n_float_data = 15;
}
static void spoil_raw_length(onnx_builder *b, Onnx__Model *m) {
    (void)b;
    static uint8_t raw[7];
    m->graph->initializer[0]->n_float_data = 0;
    m->graph->initializer[0]->has_raw_data = 1;
    m->graph->initializer[0]->raw_data = (ProtobufCBinaryData){sizeof raw, raw};
}
static void spoil_many_axes(onnx_builder *b, Onnx__Model *m) {
    (void)b;
    static int64_t dims[40];
    for (int i = 0; i < 40; i++) dims[i] = 1;
    m->graph->initializer[0]->dims = dims, m->graph->initializer[0]->n_dims = 40;
}
static void spoil_nan(onnx_builder *b, Onnx__Model *m) {
    (void)b;
    m->graph->initializer[0]->float_data[3] = NAN;
}
static void spoil_string_tensor(onnx_builder *b, Onnx__Model *m) {
    (void)b;
    m->graph->initializer[0]->data_type = 8;
}
static void spoil_external(onnx_builder *b, Onnx__Model *m) {
    (void)b;
    static Onnx__Entry entry = ONNX__ENTRY__INIT;
    static Onnx__Entry *list[] = {&entry};
    entry.key = (char[]){"location"};
    static char path[] = "../../../../etc/passwd";
    static char key[] = "location";
    entry.key = key, entry.value = path;
    m->graph->initializer[0]->external_data = list, m->graph->initializer[0]->n_external_data = 1;
    m->graph->initializer[0]->has_data_location = 1, m->graph->initializer[0]->data_location = 1;
}
static void spoil_no_initialiser(onnx_builder *b, Onnx__Model *m) {
    (void)b;
    m->graph->n_initializer = 0;
}
static void spoil_cycle(onnx_builder *b, Onnx__Model *m) {
    (void)m;
    onnx_builder_node(b, "", "Add", "first", "y,b", "a");
    onnx_builder_node(b, "", "Add", "second", "y,a", "b");
    onnx_builder_output(b, "b");
}
static void spoil_self_loop(onnx_builder *b, Onnx__Model *m) {
    (void)m;
    onnx_builder_node(b, "", "Identity", "loop", "l", "l");
}
static void spoil_twice(onnx_builder *b, Onnx__Model *m) {
    (void)m;
    onnx_builder_node(b, "", "Identity", "again", "x", "y");
}
static void spoil_output(onnx_builder *b, Onnx__Model *m) {
    (void)m;
    onnx_builder_output(b, "nowhere");
}
static void spoil_no_output(onnx_builder *b, Onnx__Model *m) {
    (void)b;
    m->graph->n_output = 0;
}
static void spoil_input_size(onnx_builder *b, Onnx__Model *m) {
    (void)b;
    m->graph->input[0]->type->tensor_type->shape->dim[1]->dim_value = INT64_C(1) << 40;
}
static void spoil_input_unknown(onnx_builder *b, Onnx__Model *m) {
    (void)b;
    m->graph->input[0]->type->tensor_type->shape->dim[1]->has_dim_value = 0;
}
static void spoil_fixed_batch(onnx_builder *b, Onnx__Model *m) {
    (void)b;
    Onnx__Dimension *d = m->graph->input[0]->type->tensor_type->shape->dim[0];
    d->has_dim_value = 1, d->dim_value = 64;
}
static void spoil_shapes(onnx_builder *b, Onnx__Model *m) {
    (void)b;
    m->graph->initializer[0]->dims[0] = 2, m->graph->initializer[0]->dims[1] = 8;
}
static void spoil_arity(onnx_builder *b, Onnx__Model *m) {
    (void)b;
    m->graph->node[0]->n_input = 1;
}
static void spoil_no_type(onnx_builder *b, Onnx__Model *m) {
    (void)b;
    m->graph->node[0]->op_type = NULL;
}
static void spoil_opset(onnx_builder *b, Onnx__Model *m) {
    (void)b;
    m->opset_import[0]->version = 5;
}
static void spoil_expansion(onnx_builder *b, Onnx__Model *m) {
    (void)m;
    /* broadcasts one row against ever more columns: 4 * 1024 * 1024 elements */
    static const int64_t tall[] = {1024, 1, 1}, wide[] = {1, 1024, 1};
    onnx_builder_tensor(b, "tall", 3, tall, 1024, NULL);
    onnx_builder_tensor(b, "wide", 3, wide, 1024, NULL);
    onnx_builder_node(b, "", "Add", "grow_1", "y,tall", "g1");
    onnx_builder_node(b, "", "Add", "grow_2", "g1,wide", "g2");
}

static const hostile_case hostile_cases[] = {
    {"no graph", CKKS_MALFORMED, "graph", spoil_no_graph},
    {"huge dimensions", CKKS_TOO_LARGE, "w", spoil_huge_dims},
    {"dimensions whose product wraps", CKKS_TOO_LARGE, "w", spoil_wrapping_dims},
    {"a negative dimension", CKKS_MALFORMED, "w", spoil_negative_dim},
    {"too little data", CKKS_MALFORMED, "w", spoil_short_data},
    {"raw data of odd length", CKKS_MALFORMED, "w", spoil_raw_length},
    {"forty axes", CKKS_TOO_LARGE, "w", spoil_many_axes},
    {"a weight that is not a number", CKKS_OUT_OF_RANGE, "w", spoil_nan},
    {"text as weights", CKKS_MALFORMED, "w", spoil_string_tensor},
    {"a path to another file", CKKS_UNSUPPORTED, "w", spoil_external},
    {"a missing initialiser", CKKS_MALFORMED, "layer", spoil_no_initialiser},
    {"a cycle", CKKS_MALFORMED, "first", spoil_cycle},
    {"a node that feeds itself", CKKS_MALFORMED, "loop", spoil_self_loop},
    {"a value defined twice", CKKS_MALFORMED, "y", spoil_twice},
    {"an output from nowhere", CKKS_MALFORMED, "nowhere", spoil_output},
    {"no output", CKKS_MALFORMED, "graph", spoil_no_output},
    {"an input of 2^40 elements", CKKS_TOO_LARGE, "x", spoil_input_size},
    {"an input of unknown size", CKKS_UNSUPPORTED, "x", spoil_input_unknown},
    {"a fixed batch", CKKS_UNSUPPORTED, "x", spoil_fixed_batch},
    {"shapes that do not multiply", CKKS_MALFORMED, "layer", spoil_shapes},
    {"an operator without its input", CKKS_MALFORMED, "layer", spoil_arity},
    {"a node without type", CKKS_MALFORMED, "layer", spoil_no_type},
    {"an ancient operator set", CKKS_UNSUPPORTED_VERSION, "opset_import", spoil_opset},
    {"values that grow without end", CKKS_TOO_LARGE, "grow_2", spoil_expansion},
};

static void hostile_files_are_refused_by_field(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof hostile_cases / sizeof *hostile_cases; i++) {
        const hostile_case *c = &hostile_cases[i];
        onnx_builder *b = dense_model();
        ckks_error err;
        c->spoil(b, onnx_builder_model(b));
        const ckks_status rc = parse(b, &err);
        if (rc != c->status || strcmp(err.field, c->field) != 0)
            fail_msg("%s: %s, field '%s', %s", c->what, ckks_status_name(rc), err.field, err.message);
    }
}

static void truncated_files_are_refused_at_every_length(void **state) {
    (void)state;
    size_t size;
    onnx_builder *b = dense_model();
    uint8_t *bytes = onnx_builder_finish(b, &size);
    for (size_t n = 0; n < size; n++) {
        onnx_model *m = NULL;
        ckks_error err = {0};
        uint8_t *cut = malloc(n ? n : 1); /* its own block, so that reading on is seen */
        memcpy(cut, bytes, n);
        const ckks_status rc = onnx_model_parse(&m, cut, n, &err);
        /* what comes after the graph may be cut off: the model is whole then */
        assert_true(rc != CKKS_OK || n + 24 > size);
        onnx_model_destroy(m);
        free(cut);
    }
    free(bytes);
    onnx_builder_destroy(b);
}

static void flipped_bits_never_do_worse_than_an_error(void **state) {
    (void)state;
    size_t size;
    onnx_builder *b = dense_model();
    uint8_t *bytes = onnx_builder_finish(b, &size);
    uint32_t refused = 0;
    for (size_t bit = 0; bit < 8 * size; bit++) {
        onnx_model *m = NULL;
        ckks_error err = {0};
        bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        if (onnx_model_parse(&m, bytes, size, &err) != CKKS_OK) {
            refused++;
            assert_int_not_equal(err.code, CKKS_OK);
        }
        onnx_model_destroy(m);
        bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    }
    print_message("  %u of %zu flips are refused\n", refused, 8 * size);
    assert_true(refused > size);
    free(bytes);
    onnx_builder_destroy(b);
}

static void a_missing_file_is_named(void **state) {
    (void)state;
    ckks_error err = {0};
    onnx_model *m;
    CHECK_STATUS(onnx_model_load(&m, "tests/data/onnx/absent.onnx", &err), CKKS_NOT_FOUND);
    assert_string_equal(err.field, "tests/data/onnx/absent.onnx");
}

static void every_failing_allocation_is_reported(void **state) {
    (void)state;
    onnx_load_with_failing_allocations("tests/data/onnx/silu.onnx");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operator_gives_what_onnx_reference_gives),
        cmocka_unit_test(interpret_gives_scores_before_the_clients_part),
        cmocka_unit_test(plain_dense_model_is_read),
        cmocka_unit_test(what_cannot_run_is_refused_by_node_name),
        cmocka_unit_test(every_refusal_behind_a_refusal_is_found),
        cmocka_unit_test(product_of_two_large_encrypted_matrices_is_refused),
        cmocka_unit_test(all_refused_operators_are_named_at_once),
        cmocka_unit_test(comparisons_that_prepare_columns_are_sent_before_encryption),
        cmocka_unit_test(a_choice_that_jumps_is_refused_by_name),
        cmocka_unit_test(work_behind_a_softmax_is_refused),
        cmocka_unit_test(second_independent_output_is_refused),
        cmocka_unit_test(hostile_files_are_refused_by_field),
        cmocka_unit_test(truncated_files_are_refused_at_every_length),
        cmocka_unit_test(flipped_bits_never_do_worse_than_an_error),
        cmocka_unit_test(a_missing_file_is_named),
        cmocka_unit_test(every_failing_allocation_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
