/* Models made to hurt: each is refused with a typed error that names the node, and none takes long or much.
 */
#include "client/compile/compile.h"
#include "client/compile/model.h"
#include "client/compile/operator.h"
#include "tests/support/onnx_builder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
// cmocka wants these first
#include <cmocka.h>

#define CHECK_STATUS(call, expected) assert_string_equal(ckks_status_name(call), ckks_status_name(expected))

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define IS_SANITIZED 1
#endif
#endif
#ifndef IS_SANITIZED
#define IS_SANITIZED 0
#endif

static const int64_t image[] = {-1, 2, 8, 8};

/* the builder borrows names */
static const char *numbered(const char *stem, int i) {
    static char texts[4096][12];
    static int next;
    char *text = texts[next++ % 4096];
    snprintf(text, sizeof texts[0], "%s%d", stem, i);
    return text;
}

static Onnx__Tensor *whole(onnx_builder *b, const char *name, size_t count, const int64_t *values) {
    const int64_t dims[] = {(int64_t)count};
    Onnx__Tensor *t = onnx_builder_tensor(b, name, 1, dims, count, NULL);
    t->data_type = ELEMENT_INT64;
    t->n_float_data = 0;
    t->int64_data = (int64_t *)(uintptr_t)values, t->n_int64_data = count;
    return t;
}

static Onnx__Node *bad(onnx_builder *b, const char *type, const char *inputs) {
    return onnx_builder_node(b, "", type, "bad", inputs, "y");
}

typedef void (*make)(onnx_builder *b);

static void conv_weight(onnx_builder *b, int64_t out, int64_t in, int64_t k) {
    const int64_t dims[] = {out, in, k, k};
    onnx_builder_tensor(b, "w", 4, dims, (size_t)(out * in * k * k), NULL);
}
static void conv_of_huge_dilation(onnx_builder *b) {
    static const int64_t d[] = {INT64_MAX, 1};
    conv_weight(b, 2, 2, 3);
    onnx_builder_ints(b, bad(b, "Conv", "x,w"), "dilations", 2, d);
}
static void conv_of_stride_zero(onnx_builder *b) {
    static const int64_t s[] = {0, 1};
    conv_weight(b, 2, 2, 3);
    onnx_builder_ints(b, bad(b, "Conv", "x,w"), "strides", 2, s);
}
static void conv_of_negative_pads(onnx_builder *b) {
    static const int64_t p[] = {-1, 0, 0, 0};
    conv_weight(b, 2, 2, 3);
    onnx_builder_ints(b, bad(b, "Conv", "x,w"), "pads", 4, p);
}
static void conv_of_huge_pads(onnx_builder *b) {
    static const int64_t p[] = {65536, 65536, 65536, 65536};
    conv_weight(b, 2, 2, 3);
    onnx_builder_ints(b, bad(b, "Conv", "x,w"), "pads", 4, p);
}
static void conv_of_few_pads(onnx_builder *b) {
    static const int64_t p[] = {1, 1, 1};
    conv_weight(b, 2, 2, 3);
    onnx_builder_ints(b, bad(b, "Conv", "x,w"), "pads", 3, p);
}
static void conv_of_group_zero(onnx_builder *b) {
    conv_weight(b, 2, 2, 3);
    onnx_builder_int(b, bad(b, "Conv", "x,w"), "group", 0);
}
static void conv_of_odd_groups(onnx_builder *b) {
    conv_weight(b, 3, 1, 3);
    onnx_builder_int(b, bad(b, "Conv", "x,w"), "group", 2);
}
static void conv_that_does_not_fit(onnx_builder *b) {
    conv_weight(b, 2, 2, 9);
    bad(b, "Conv", "x,w");
}
static void conv_of_no_channel(onnx_builder *b) {
    conv_weight(b, 0, 2, 3);
    bad(b, "Conv", "x,w");
}
static void pool_without_kernel(onnx_builder *b) {
    bad(b, "AveragePool", "x");
}
static void pool_of_huge_kernel(onnx_builder *b) {
    static const int64_t k[] = {65536, 65536}, p[] = {65536, 65536, 65536, 65536};
    Onnx__Node *n = bad(b, "AveragePool", "x");
    onnx_builder_ints(b, n, "kernel_shape", 2, k);
    onnx_builder_ints(b, n, "pads", 4, p);
}
static void pad_to_2_62(onnx_builder *b) {
    static const int64_t p[] = {0, 0, 0, 0, 0, 0, 0, INT64_C(1) << 62};
    whole(b, "p", 8, p);
    bad(b, "Pad", "x,p");
}
static void pad_below_nothing(onnx_builder *b) {
    static const int64_t p[] = {0, 0, -5, 0, 0, 0, -5, 0};
    whole(b, "p", 8, p);
    bad(b, "Pad", "x,p");
}
static void slice_of_step_zero(onnx_builder *b) {
    static const int64_t one[] = {1}, zero[] = {0};
    whole(b, "s", 1, one), whole(b, "e", 1, one), whole(b, "a", 1, one), whole(b, "t", 1, zero);
    bad(b, "Slice", "x,s,e,a,t");
}
static void slice_of_one_axis_twice(onnx_builder *b) {
    static const int64_t zeros[] = {0, 0}, ones[] = {1, -3};
    whole(b, "s", 2, zeros), whole(b, "e", 2, ones), whole(b, "a", 2, ones);
    bad(b, "Slice", "x,s,e,a");
}
static void transpose_of_one_axis_twice(onnx_builder *b) {
    static const int64_t p[] = {0, 1, 1, 2};
    onnx_builder_ints(b, bad(b, "Transpose", "x"), "perm", 4, p);
}
static void gather_behind_the_end(onnx_builder *b) {
    static const int64_t i[] = {0, 2};
    whole(b, "i", 2, i);
    onnx_builder_int(b, bad(b, "Gather", "x,i"), "axis", 1);
}
static void gather_half_an_index(onnx_builder *b) {
    static const int64_t dims[] = {1};
    static const float half[] = {0.5f};
    onnx_builder_tensor(b, "i", 1, dims, 1, half);
    onnx_builder_int(b, bad(b, "Gather", "x,i"), "axis", 1);
}
static void tile_2_40_times(onnx_builder *b) {
    static const int64_t r[] = {1, 1, INT64_C(1) << 40, INT64_C(1) << 40};
    whole(b, "r", 4, r);
    bad(b, "Tile", "x,r");
}
static void expand_to_a_wrapping_product(onnx_builder *b) {
    static const int64_t s[] = {INT64_C(1) << 32, INT64_C(1) << 32, 1, 2, 8, 8};
    whole(b, "s", 6, s);
    bad(b, "Expand", "x,s");
}
static void fill_2_62(onnx_builder *b) {
    static const int64_t s[] = {INT64_C(1) << 31, INT64_C(1) << 31};
    whole(b, "s", 2, s);
    bad(b, "ConstantOfShape", "s");
}
static void range_without_end(onnx_builder *b) {
    static const int64_t dims[] = {1};
    static const float from[] = {0}, to[] = {1e18f}, by[] = {0};
    onnx_builder_tensor(b, "from", 0, dims, 1, from);
    onnx_builder_tensor(b, "to", 0, dims, 1, to);
    onnx_builder_tensor(b, "by", 0, dims, 1, by);
    bad(b, "Range", "from,to,by");
}
static void split_into_more_than_there_is(onnx_builder *b) {
    static const int64_t s[] = {1, INT64_MAX};
    whole(b, "s", 2, s);
    Onnx__Node *n = onnx_builder_node(b, "", "Split", "bad", "x,s", "y,z");
    onnx_builder_int(b, n, "axis", 1);
}
static void reshape_to_another_size(onnx_builder *b) {
    static const int64_t s[] = {1, INT64_C(1) << 40, INT64_C(1) << 40};
    whole(b, "s", 3, s);
    bad(b, "Reshape", "x,s");
}
static void squeeze_what_is_long(onnx_builder *b) {
    static const int64_t a[] = {1};
    whole(b, "a", 1, a);
    bad(b, "Squeeze", "x,a");
}
static void unsqueeze_beyond_the_axes(onnx_builder *b) {
    static const int64_t a[] = {INT64_MAX};
    whole(b, "a", 1, a);
    bad(b, "Unsqueeze", "x,a");
}
static void reduce_an_axis_that_is_not(onnx_builder *b) {
    static const int64_t a[] = {4};
    whole(b, "a", 1, a);
    bad(b, "ReduceSum", "x,a");
}
static void concat_of_other_axes(onnx_builder *b) {
    static const int64_t dims[] = {1, 2, 8, 7};
    onnx_builder_tensor(b, "c", 4, dims, 112, NULL);
    onnx_builder_int(b, bad(b, "Concat", "x,c"), "axis", 1);
}
static void depth_of_block_zero(onnx_builder *b) {
    onnx_builder_int(b, bad(b, "DepthToSpace", "x"), "blocksize", 0);
}
static void normalise_with_few_numbers(onnx_builder *b) {
    static const int64_t dims[] = {3};
    onnx_builder_tensor(b, "s", 1, dims, 3, NULL);
    bad(b, "BatchNormalization", "x,s,s,s,s");
}
static void normalise_by_a_negative_variance(onnx_builder *b) {
    static const int64_t dims[] = {2};
    static const float v[] = {1, -2};
    onnx_builder_tensor(b, "v", 1, dims, 2, v);
    bad(b, "BatchNormalization", "x,v,v,v,v");
}
static void resize_by_2_60(onnx_builder *b) {
    static const int64_t s[] = {1, 2, INT64_C(1) << 60, INT64_C(1) << 60};
    whole(b, "s", 4, s);
    bad(b, "Resize", "x,,,s");
}
static void resize_to_nothing(onnx_builder *b) {
    static const int64_t s[] = {1, 2, 0, -8};
    whole(b, "s", 4, s);
    bad(b, "Resize", "x,,,s");
}
static void resize_of_three_sizes(onnx_builder *b) {
    static const int64_t s[] = {1, 2, 8};
    whole(b, "s", 3, s);
    bad(b, "Resize", "x,,,s");
}
static void transposed_of_huge_stride(onnx_builder *b) {
    static const int64_t s[] = {65536, 65536};
    conv_weight(b, 2, 2, 3);
    onnx_builder_ints(b, bad(b, "ConvTranspose", "x,w"), "strides", 2, s);
}
static void transposed_of_stride_zero(onnx_builder *b) {
    static const int64_t s[] = {0, 1};
    conv_weight(b, 2, 2, 3);
    onnx_builder_ints(b, bad(b, "ConvTranspose", "x,w"), "strides", 2, s);
}
static void transposed_padded_away(onnx_builder *b) {
    static const int64_t p[] = {9, 9, 9, 9};
    conv_weight(b, 2, 2, 3);
    onnx_builder_ints(b, bad(b, "ConvTranspose", "x,w"), "pads", 4, p);
}
static void transposed_of_many_groups(onnx_builder *b) {
    conv_weight(b, 2, 2, 3);
    onnx_builder_int(b, bad(b, "ConvTranspose", "x,w"), "group", INT64_MAX);
}
static Onnx__Node *machine(onnx_builder *b, const char *type, int64_t supports, size_t coefficients) {
    static const float zeros[1024];
    Onnx__Node *n = onnx_builder_node(b, "ai.onnx.ml", type, "bad", "x", "y,z");
    if (strcmp(type, "SVMRegressor") == 0) n->n_output = 1;
    onnx_builder_int(b, n, "n_supports", supports);
    onnx_builder_floats(b, n, "coefficients", coefficients, zeros);
    onnx_builder_floats(b, n, "support_vectors", 128, zeros);
    return n;
}
static void machine_of_too_many_supports(onnx_builder *b) {
    machine(b, "SVMRegressor", INT64_MAX, 7);
}
static void machine_of_wrapping_classes(onnx_builder *b) {
    static const int64_t sizes[] = {INT64_MAX, INT64_MAX, 3}, labels[] = {0, 1, 2};
    Onnx__Node *n = machine(b, "SVMClassifier", 0, 2);
    onnx_builder_ints(b, n, "vectors_per_class", 3, sizes);
    onnx_builder_ints(b, n, "classlabels_ints", 3, labels);
}
static void machine_of_many_labels(onnx_builder *b) {
    static const int64_t sizes[] = {1, 0}, labels[] = {0, 1, 2};
    Onnx__Node *n = machine(b, "SVMClassifier", 0, 1);
    onnx_builder_ints(b, n, "vectors_per_class", 2, sizes);
    onnx_builder_ints(b, n, "classlabels_ints", 3, labels);
}
static void machine_of_an_unknown_kernel(onnx_builder *b) {
    onnx_builder_text(b, machine(b, "SVMRegressor", 1, 1), "kernel_type", "PRECOMPUTED");
}
/* doubles what it has forty times over */
static void concat_doubles(onnx_builder *b) {
    const char *last = "x";
    for (int i = 0; i < 40; i++) {
        char inputs[32];
        const char *name = numbered("d", i);
        snprintf(inputs, sizeof inputs, "%s,%s", last, last);
        onnx_builder_int(b, onnx_builder_node(b, "", "Concat", i == 9 ? "bad" : name, inputs, name), "axis",
                         1);
        last = name;
    }
    onnx_builder_node(b, "", "Identity", "end", last, "y");
}
/* constants made of one number, each of four million elements */
static void constants_without_end(onnx_builder *b) {
    static const int64_t s[] = {2048, 2048};
    whole(b, "s", 2, s);
    for (int i = 0; i < 100; i++)
        onnx_builder_node(b, "", "ConstantOfShape", i == 2 ? "bad" : numbered("n", i), "s", numbered("c", i));
    onnx_builder_node(b, "", "Identity", "end", "c99", "y");
}
/* products of constants, 2^24 multiplications each */
static void work_without_end(onnx_builder *b) {
    static const int64_t s[] = {256, 256};
    whole(b, "s", 2, s);
    onnx_builder_node(b, "", "ConstantOfShape", "fill", "s", "c0");
    for (int i = 1; i < 200; i++) {
        char inputs[32];
        snprintf(inputs, sizeof inputs, "c%d,c%d", i - 1, i - 1);
        onnx_builder_node(b, "", "MatMul", i == 8 ? "bad" : numbered("n", i), inputs, numbered("c", i));
    }
    onnx_builder_node(b, "", "Identity", "end", "c199", "y");
}
/* 2^44 products in a dozen letters */
static void einsum_of_everything(onnx_builder *b) {
    static const int64_t s[] = {2048, 2048};
    whole(b, "s", 2, s);
    onnx_builder_node(b, "", "ConstantOfShape", "fill", "s", "c");
    onnx_builder_text(b, onnx_builder_node(b, "", "Einsum", "bad", "c,c", "y"), "equation", "ab,cd->abcd");
}
static void einsum_without_sense(onnx_builder *b) {
    onnx_builder_text(b, onnx_builder_node(b, "", "Einsum", "bad", "x", "y"), "equation", "...a...b,,->->");
}
/* a sum of 2^16 numbers for each of 2^16 */
static void sums_that_run(onnx_builder *b) {
    static const int64_t repeats[] = {1, 1, 16, 32}, flat[] = {1, 65536}, one[] = {1};
    whole(b, "repeats", 4, repeats);
    whole(b, "flat", 2, flat);
    whole(b, "one", 1, one);
    onnx_builder_node(b, "", "Tile", "wide", "x,repeats", "w");
    onnx_builder_node(b, "", "Reshape", "line", "w,flat", "l");
    onnx_builder_node(b, "", "CumSum", "bad", "l,one", "y");
}
static void spectrum_of_millions(onnx_builder *b) {
    static const int64_t length[] = {1 << 22};
    whole(b, "length", 1, length);
    onnx_builder_node(b, "", "Concat", "pair", "x,x", "p");
    onnx_builder_node(b, "", "DFT", "bad", "x,length", "y");
}
static void scatter_beyond_its_data(onnx_builder *b) {
    static const int64_t at[] = {7};
    whole(b, "at", 1, at);
    onnx_builder_node(b, "", "ScatterND", "bad", "x,at,at", "y");
}
/* every sum reads the one before it twice: 2^40 paths for whoever walks back without a bound */
static void sums_of_sums(onnx_builder *b) {
    const char *last = "x";
    for (int i = 0; i < 40; i++) {
        char inputs[32];
        const char *gate = numbered("g", i), *name = numbered("a", i);
        onnx_builder_node(b, "", "Tanh", gate, last, gate);
        snprintf(inputs, sizeof inputs, "%s,%s", last, gate);
        onnx_builder_node(b, "", i % 2 ? "Mul" : "Add", name, inputs, name);
        last = name;
    }
    onnx_builder_node(b, "", "ReduceMax", "bad", last, "y");
}

typedef struct hostile {
    const char *what;
    make build;
    ckks_status status;
} hostile;

static const hostile table[] = {
    {"a dilation of 2^63", conv_of_huge_dilation, CKKS_MALFORMED},
    {"a stride of 0", conv_of_stride_zero, CKKS_MALFORMED},
    {"negative pads of a Conv", conv_of_negative_pads, CKKS_MALFORMED},
    {"pads of 65536", conv_of_huge_pads, CKKS_TOO_LARGE},
    {"three pads for two axes", conv_of_few_pads, CKKS_MALFORMED},
    {"group 0", conv_of_group_zero, CKKS_MALFORMED},
    {"groups that do not divide", conv_of_odd_groups, CKKS_MALFORMED},
    {"a kernel larger than the image", conv_that_does_not_fit, CKKS_MALFORMED},
    {"no output channel", conv_of_no_channel, CKKS_MALFORMED},
    {"a pool without kernel", pool_without_kernel, CKKS_MALFORMED},
    {"a pool of 2^32 taps", pool_of_huge_kernel, CKKS_TOO_LARGE},
    {"a pad of 2^62", pad_to_2_62, CKKS_TOO_LARGE},
    {"pads that take more than there is", pad_below_nothing, CKKS_MALFORMED},
    {"a step of 0", slice_of_step_zero, CKKS_MALFORMED},
    {"an axis sliced twice", slice_of_one_axis_twice, CKKS_MALFORMED},
    {"an axis moved twice", transpose_of_one_axis_twice, CKKS_MALFORMED},
    {"an index behind the end", gather_behind_the_end, CKKS_MALFORMED},
    {"half an index", gather_half_an_index, CKKS_MALFORMED},
    {"2^80 copies", tile_2_40_times, CKKS_TOO_LARGE},
    {"a shape whose product wraps", expand_to_a_wrapping_product, CKKS_TOO_LARGE},
    {"a constant of 2^62", fill_2_62, CKKS_TOO_LARGE},
    {"a range by steps of 0", range_without_end, CKKS_MALFORMED},
    {"parts that are more than the whole", split_into_more_than_there_is, CKKS_MALFORMED},
    {"a reshape that wraps", reshape_to_another_size, CKKS_MALFORMED},
    {"a squeeze of two", squeeze_what_is_long, CKKS_MALFORMED},
    {"an axis beyond all", unsqueeze_beyond_the_axes, CKKS_MALFORMED},
    {"a sum over no axis", reduce_an_axis_that_is_not, CKKS_MALFORMED},
    {"parts that do not fit", concat_of_other_axes, CKKS_MALFORMED},
    {"blocks of 0", depth_of_block_zero, CKKS_MALFORMED},
    {"three factors for two channels", normalise_with_few_numbers, CKKS_MALFORMED},
    {"a negative variance", normalise_by_a_negative_variance, CKKS_OUT_OF_RANGE},
    {"an image of 2^60 rows", resize_by_2_60, CKKS_TOO_LARGE},
    {"an image of no rows", resize_to_nothing, CKKS_MALFORMED},
    {"three sizes for four axes", resize_of_three_sizes, CKKS_MALFORMED},
    {"a transposed stride of 65536", transposed_of_huge_stride, CKKS_TOO_LARGE},
    {"a transposed stride of 0", transposed_of_stride_zero, CKKS_MALFORMED},
    {"a transposed convolution padded away", transposed_padded_away, CKKS_MALFORMED},
    {"2^63 groups", transposed_of_many_groups, CKKS_MALFORMED},
    {"2^63 support vectors", machine_of_too_many_supports, CKKS_MALFORMED},
    {"classes whose sizes wrap", machine_of_wrapping_classes, CKKS_MALFORMED},
    {"more labels than classes", machine_of_many_labels, CKKS_MALFORMED},
    {"an unknown kernel", machine_of_an_unknown_kernel, CKKS_MALFORMED},
    {"values that double", concat_doubles, CKKS_TOO_LARGE},
    {"constants that fill the memory", constants_without_end, CKKS_TOO_LARGE},
    {"products that take for ever", work_without_end, CKKS_TOO_LARGE},
    {"2^44 products in a dozen letters", einsum_of_everything, CKKS_TOO_LARGE},
    {"an equation without sense", einsum_without_sense, CKKS_MALFORMED},
    {"sums that run over 2^32 numbers", sums_that_run, CKKS_TOO_LARGE},
    {"a spectrum of millions", spectrum_of_millions, CKKS_MALFORMED},
    {"places beyond the data", scatter_beyond_its_data, CKKS_MALFORMED},
    {"a graph of 2^40 paths", sums_of_sums, CKKS_UNSUPPORTED},
};

static double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* all of them within a gibibyte of address space and thirty seconds of one processor, far below a second
 * each: the kernel ends a process that takes more time, and allocations that take more memory fail, which is
 * another status than the table's. Sanitizers map terabytes for themselves: there the time alone is limited.
 */
static void limit_resources(void) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !IS_SANITIZED
    const struct rlimit memory = {UINT64_C(1) << 30, UINT64_C(1) << 30};
    assert_int_equal(setrlimit(RLIMIT_AS, &memory), 0);
    const struct rlimit time = {30, 30};
#else
    const struct rlimit time = {120, 120};
#endif
    assert_int_equal(setrlimit(RLIMIT_CPU, &time), 0);
}

static void models_made_to_hurt_are_refused_by_node(void **state) {
    (void)state;
    limit_resources();
    double slowest = 0;
    const char *slowest_name = "";
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        onnx_builder *b = onnx_builder_create();
        onnx_model *m = NULL;
        ckks_error err = {0};
        size_t size;
        onnx_builder_input(b, "x", 4, image);
        table[i].build(b);
        onnx_builder_output(b, "y");
        uint8_t *bytes = onnx_builder_finish(b, &size);
        const double start = seconds_now();
        const ckks_status rc = onnx_model_parse(&m, bytes, size, &err);
        const double took = seconds_now() - start;
        if (took > slowest) slowest = took, slowest_name = table[i].what;
        if (rc != table[i].status || strcmp(err.field, "bad") != 0)
            fail_msg("%s: %s, field '%s', %s", table[i].what, ckks_status_name(rc), err.field, err.message);
        assert_null(m);
        free(bytes);
        onnx_builder_destroy(b);
    }
    print_message("  slowest: %s, %.3f s\n", slowest_name, slowest);
}

/* more products than a small file may ask for, but not two for each weight */
static void a_large_model_may_use_each_of_its_weights(void **state) {
    (void)state;
    static const int64_t row[] = {-1, 1};
    const int64_t dims[] = {OPERATOR_WORK_MAX / 16, 1};
    ckks_error err = {0};
    onnx_model *model;
    size_t size;
    float *weights = calloc((size_t)dims[0], sizeof *weights);
    assert_non_null(weights);
    weights[dims[0] - 1] = 3;
    onnx_builder *b = onnx_builder_create();
    onnx_builder_input(b, "x", 2, row);
    onnx_builder_tensor(b, "w", 2, dims, (size_t)dims[0], weights);
    onnx_builder_int(b, onnx_builder_node(b, "", "Gemm", "compare", "x,w", "y"), "transB", 1);
    onnx_builder_output(b, "y");
    uint8_t *bytes = onnx_builder_finish(b, &size);
    onnx_builder_destroy(b);
    free(weights);
    CHECK_STATUS(model_read(&model, bytes, size, &err), CKKS_OK);
    assert_int_equal(model->values[model->outputs[0]].sample.count, dims[0]);
    onnx_model_destroy(model);
    free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_made_to_hurt_are_refused_by_node),
        cmocka_unit_test(a_large_model_may_use_each_of_its_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
