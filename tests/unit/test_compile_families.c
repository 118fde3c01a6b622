/* One small model of each family of operators, compiled with the encrypted check: the graph says what ONNX
 * says (the compiler compares), polynomials keep the target, and the encrypted result keeps its promise. */
#include "client/compile/compile.h"
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

#define ROWS  32u
#define WIDTH 16u

static const int64_t image[] = {-1, 1, 4, 4}, flat[] = {-1, 16}, one[] = {1}, sixteen[] = {16};

static void whole(onnx_builder *b, const char *name, size_t count, const int64_t *values) {
    const int64_t dims[] = {(int64_t)count};
    Onnx__Tensor *t = onnx_builder_tensor(b, name, 1, dims, count, NULL);
    t->data_type = 7;
    t->n_float_data = 0;
    t->int64_data = (int64_t *)(uintptr_t)values, t->n_int64_data = count;
}

static void grow(onnx_builder *b) {
    static const int64_t kernel[] = {1, 2, 2, 2}, sizes[] = {1, 2, 8, 8}, strides[] = {2, 2};
    static const float w[] = {0.5f, -0.25f, 1, 0.125f, -1, 0.75f, 0.5f, 0.25f};
    onnx_builder_input(b, "x", 4, image);
    onnx_builder_tensor(b, "w", 4, kernel, 8, w);
    onnx_builder_ints(b, onnx_builder_node(b, "", "ConvTranspose", "grow", "x,w", "g"), "strides", 2,
                      strides);
    whole(b, "sizes", 4, sizes);
    onnx_builder_text(b, onnx_builder_node(b, "", "Resize", "resize", "g,,,sizes", "r"), "mode", "linear");
    onnx_builder_node(b, "", "GlobalAveragePool", "pool", "r", "p");
    onnx_builder_node(b, "", "Mul", "square", "p,p", "y");
}
static void normalise(onnx_builder *b) {
    static float ones[16], steps[16];
    for (int i = 0; i < 16; i++) ones[i] = 0.5f, steps[i] = (float)i / 16;
    onnx_builder_input(b, "x", 2, flat);
    onnx_builder_tensor(b, "scale", 1, sixteen, 16, ones);
    onnx_builder_tensor(b, "bias", 1, sixteen, 16, steps);
    onnx_builder_node(b, "", "LayerNormalization", "norm", "x,scale,bias", "y");
}
static void divide(onnx_builder *b) {
    static const float two[] = {2};
    onnx_builder_input(b, "x", 2, flat);
    onnx_builder_tensor(b, "two", 1, one, 1, two);
    onnx_builder_node(b, "", "Mul", "square", "x,x", "s");
    onnx_builder_node(b, "", "Add", "away", "s,two", "d");
    onnx_builder_node(b, "", "Sqrt", "root", "d", "r");
    onnx_builder_node(b, "", "Div", "ratio", "x,r", "q");
    onnx_builder_node(b, "", "Log", "log", "d", "l");
    onnx_builder_node(b, "", "Div", "over", "two,d", "o");
    onnx_builder_node(b, "", "Sum", "sum", "q,l,o", "y");
}
static void waves(onnx_builder *b) {
    onnx_builder_input(b, "x", 2, flat);
    onnx_builder_node(b, "", "Sin", "sine", "x", "s");
    onnx_builder_node(b, "", "Cos", "cosine", "x", "c");
    onnx_builder_node(b, "", "Atan", "arc", "x", "a");
    onnx_builder_node(b, "", "Sum", "sum", "s,c,a", "y");
}
static void logarithms(onnx_builder *b) {
    static const float two[] = {2};
    onnx_builder_input(b, "x", 2, flat);
    onnx_builder_tensor(b, "two", 1, one, 1, two);
    onnx_builder_node(b, "", "Mul", "scores", "x,two", "s");
    onnx_builder_node(b, "", "LogSoftmax", "shares", "s", "y");
}
static void exponents(onnx_builder *b) {
    static const float half[] = {0.5f};
    onnx_builder_input(b, "x", 2, flat);
    onnx_builder_tensor(b, "half", 1, one, 1, half);
    onnx_builder_node(b, "", "Mul", "link", "x,half", "s");
    onnx_builder_node(b, "", "Exp", "counts", "s", "y");
}

/* squares in the thousands, and what they are multiplied with */
static void large(onnx_builder *b) {
    static const float twenty[] = {20}, small[] = {0.001f};
    onnx_builder_input(b, "x", 2, flat);
    onnx_builder_tensor(b, "twenty", 1, one, 1, twenty);
    onnx_builder_tensor(b, "small", 1, one, 1, small);
    onnx_builder_node(b, "", "Mul", "wide", "x,twenty", "w");
    onnx_builder_node(b, "", "Add", "moved", "w,twenty", "m");
    onnx_builder_node(b, "", "Mul", "square", "w,w", "s");
    onnx_builder_node(b, "", "Mul", "cube", "s,m", "c");
    onnx_builder_node(b, "", "Mul", "back", "c,small", "t");
    onnx_builder_node(b, "", "Sum", "sum", "t,s,m", "y");
}
/* squared distances to centres, |x|^2 being an encrypted C, as scikit-learn's KMeans is exported */
static void nearest(onnx_builder *b) {
    static const int64_t centres[] = {3, 16};
    static float c[48];
    for (int i = 0; i < 48; i++) c[i] = (float)(i * 7 % 11) / 5 - 1;
    onnx_builder_input(b, "x", 2, flat);
    onnx_builder_tensor(b, "centres", 2, centres, 48, c);
    onnx_builder_ints(b, onnx_builder_node(b, "", "ReduceSumSquare", "size", "x", "s"), "axes", 1, one);
    Onnx__Node *gemm = onnx_builder_node(b, "", "Gemm", "distance", "x,centres,s", "d");
    onnx_builder_int(b, gemm, "transB", 1);
    Onnx__Node *least = onnx_builder_node(b, "", "ArgMin", "nearest", "d", "y");
    onnx_builder_int(b, least, "axis", 1);
}

typedef struct family {
    const char *name;
    void (*build)(onnx_builder *b);
} family;

static const family families[] = {{"grow", grow},   {"normalise", normalise},   {"divide", divide},
                                  {"waves", waves}, {"logarithms", logarithms}, {"exponents", exponents},
                                  {"large", large}, {"nearest", nearest}};

static void write_model(char path[64], const family *f) {
    size_t size;
    onnx_builder *b = onnx_builder_create();
    onnx_builder_model(b)->opset_import[0]->version = 17;
    f->build(b);
    onnx_builder_output(b, "y");
    uint8_t *bytes = onnx_builder_finish(b, &size);
    temporary_file(path, 64, "ckks-family", bytes, size);
    free(bytes);
    onnx_builder_destroy(b);
}

static void every_family_runs_encrypted_as_the_original_does(void **state) {
    (void)state;
    double rows[ROWS * WIDTH];
    for (uint32_t i = 0; i < ROWS * WIDTH; i++) rows[i] = 2 * sin(0.7 * i + 0.013 * i * i);
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        char path[64];
        ckks_error err = {0};
        compile_report *report = NULL;
        compile_summary s;
        uint8_t *bytes = NULL;
        size_t size;
        write_model(path, &families[f]);
        const compile_options options = {.onnx_path = path,
                                         .calibration = {rows, ROWS, WIDTH, NULL},
                                         .log_n = 11,
                                         .allow_insecure = true,
                                         .check_rows = 2};
        const ckks_status rc = compile_model(&bytes, &size, &report, &options, &err);
        unlink(path);
        if (rc != CKKS_OK) fail_msg("%s: %s: %s", families[f].name, err.field, err.message);
        compile_report_summary(report, &s);
        print_message("  %-10s depth %2u, polynomials %.1e, encrypted %.1e of [%.2f, %.2f]\n",
                      families[f].name, s.depth, s.polynomial_error, s.measured_error, s.score_minimum,
                      s.score_maximum);
        assert_int_equal(s.checked_rows, 2);
        assert_true(s.measured_error <= s.promised_error);
        assert_true(s.polynomial_error <= 0.01 * (s.score_maximum - s.score_minimum) * 1.1);
        free(bytes);
        compile_report_destroy(report);
    }
}

static void failing_allocations_are_reported_by_every_family(void **state) {
    (void)state;
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        char path[64];
        write_model(path, &families[f]);
        onnx_load_with_failing_allocations(path);
        unlink(path);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_runs_encrypted_as_the_original_does),
        cmocka_unit_test(failing_allocations_are_reported_by_every_family),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
