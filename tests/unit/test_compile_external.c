/* Weights in files beside the model: found where they belong, and nowhere else. */
#include "client/compile/compile.h"
#include "client/compile/model.h"
#include "tests/support/alloc_fault.h"
#include "tests/support/onnx_builder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
// cmocka wants these first
#include <cmocka.h>

#define CHECK_STATUS(call, expected) assert_string_equal(ckks_status_name(call), ckks_status_name(expected))

static char root[] = "/tmp/ckksd-external-XXXXXX", folder[80];
static const float weights[6] = {0.5f, -1.5f, 2, 0.25f, -3, 1};

static void write_file(const char *name, const void *bytes, size_t size) {
    char path[200];
    snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

static void link_to(const char *target, const char *name) {
    char path[200];
    snprintf(path, sizeof path, "%s/%s", root, name);
    assert_int_equal(symlink(target, path), 0);
}

/* root/model is the model's folder; root/outside.bin is none of its business */
static int make_folder(void **state) {
    (void)state;
    char path[200];
    uint8_t padded[8 + sizeof weights] = {0};
    assert_non_null(mkdtemp(root));
    snprintf(folder, sizeof folder, "%s/model", root);
    assert_int_equal(mkdir(folder, 0700), 0);
    snprintf(path, sizeof path, "%s/sub", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    memcpy(padded + 8, weights, sizeof weights);
    write_file("outside.bin", weights, sizeof weights);
    write_file("model/w.bin", padded, sizeof padded);
    write_file("model/sub/w.bin", weights, sizeof weights);
    link_to("../outside.bin", "model/link.bin");
    link_to("w.bin", "model/inner.bin");
    link_to("..", "model/up");
    snprintf(path, sizeof path, "%s/pipe", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    static const char *const names[] = {"outside.bin",     "model/w.bin", "model/sub/w.bin", "model/link.bin",
                                        "model/inner.bin", "model/up",    "model/pipe",      "model/m.onnx"};
    char path[200];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", root, names[i]);
        unlink(path);
    }
    snprintf(path, sizeof path, "%s/sub", folder);
    rmdir(path);
    rmdir(folder);
    rmdir(root);
    return 0;
}

/* [n, 3] x [3, 2], the weights elsewhere */
static void write_model(const char *location, const char *offset, const char *length) {
    static const int64_t in[] = {-1, 3}, dims[] = {3, 2};
    Onnx__Entry entries[3];
    Onnx__Entry *list[3];
    const char *const keys[] = {"location", "offset", "length"}, *const values[] = {location, offset, length};
    onnx_builder *b = onnx_builder_create();
    size_t size, count = 0;
    onnx_builder_input(b, "x", 2, in);
    Onnx__Tensor *w = onnx_builder_tensor(b, "w", 2, dims, 6, weights);
    onnx_builder_node(b, "", "MatMul", "layer", "x,w", "y");
    onnx_builder_output(b, "y");
    w->n_float_data = 0;
    w->has_data_location = 1, w->data_location = 1;
    for (int i = 0; i < 3; i++) {
        if (!values[i]) continue;
        onnx__entry__init(&entries[count]);
        entries[count].key = (char *)(uintptr_t)keys[i], entries[count].value = (char *)(uintptr_t)values[i];
        list[count] = &entries[count];
        count++;
    }
    w->external_data = list, w->n_external_data = count;
    uint8_t *bytes = onnx_builder_finish(b, &size);
    write_file("model/m.onnx", bytes, size);
    free(bytes);
    onnx_builder_destroy(b);
}

static ckks_status load(onnx_model **out, ckks_error *err) {
    char path[200];
    snprintf(path, sizeof path, "%s/m.onnx", folder);
    *err = (ckks_error){0};
    return onnx_model_load(out, path, err);
}

typedef struct place {
    const char *what, *location, *offset, *length;
    ckks_status status;
} place;

static const place places[] = {
    {"a part of a file", "w.bin", "8", "24", CKKS_OK},
    {"from a place to the end", "w.bin", "8", NULL, CKKS_OK},
    {"a whole file in a folder", "sub/w.bin", NULL, NULL, CKKS_OK},
    {"with dots that lead nowhere", "./sub/./w.bin", "0", "24", CKKS_OK},
    {"a file that is not there", "absent.bin", NULL, NULL, CKKS_NOT_FOUND},
    {"a path upwards", "../outside.bin", NULL, NULL, CKKS_MALFORMED},
    {"down and twice up", "sub/../../outside.bin", NULL, NULL, CKKS_MALFORMED},
    {"down and up again", "sub/../sub/w.bin", NULL, NULL, CKKS_MALFORMED},
    {"from the root", "/etc/passwd", NULL, NULL, CKKS_MALFORMED},
    {"no name", NULL, NULL, NULL, CKKS_MALFORMED},
    {"an empty name", "", NULL, NULL, CKKS_MALFORMED},
    {"a folder", "sub", NULL, NULL, CKKS_UNSUPPORTED},
    {"a folder with a slash", "sub/", NULL, NULL, CKKS_MALFORMED},
    {"a link outwards", "link.bin", NULL, NULL, CKKS_UNSUPPORTED},
    {"a link to a file beside it", "inner.bin", "8", "24", CKKS_UNSUPPORTED},
    {"through a linked folder", "up/outside.bin", NULL, NULL, CKKS_UNSUPPORTED},
    {"a pipe that nobody writes", "pipe", NULL, NULL, CKKS_UNSUPPORTED},
    {"a file as a folder", "w.bin/x", NULL, NULL, CKKS_UNSUPPORTED},
    {"behind the end", "w.bin", "33", NULL, CKKS_MALFORMED},
    {"longer than the file", "w.bin", "8", "25", CKKS_MALFORMED},
    {"shorter than the shape", "w.bin", "8", "20", CKKS_MALFORMED},
    {"a place beyond 2^64", "w.bin", "18446744073709551624", "24", CKKS_MALFORMED},
    {"a sum beyond 2^64", "w.bin", "18446744073709551608", "24", CKKS_MALFORMED},
    {"a negative place", "w.bin", "-8", NULL, CKKS_MALFORMED},
    {"a word for a place", "w.bin", "eight", NULL, CKKS_MALFORMED},
    {"a place with a blank", "w.bin", " 8", NULL, CKKS_MALFORMED},
};

static void weights_beside_the_model_are_found_and_no_other_file_is_opened(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const place *p = &places[i];
        onnx_model *m;
        ckks_error err;
        const double row[3] = {1, 2, -1};
        double scores[2];
        write_model(p->location, p->offset, p->length);
        const ckks_status rc = load(&m, &err);
        if (rc != p->status || (rc != CKKS_OK && strcmp(err.field, "w") != 0))
            fail_msg("%s: %s, field '%s', %s", p->what, ckks_status_name(rc), err.field, err.message);
        if (rc != CKKS_OK) continue;
        CHECK_STATUS(onnx_interpret(scores, m, row, 1, &err), CKKS_OK);
        assert_true(scores[0] == 0.5 + 2 * 2 + 3 && scores[1] == -1.5 + 2 * 0.25 - 1);
        onnx_model_destroy(m);
    }
}

static void a_model_from_memory_opens_no_file(void **state) {
    (void)state;
    onnx_model *m;
    ckks_error err = {0};
    char path[200];
    uint8_t bytes[4096];
    write_model("w.bin", "8", "24");
    snprintf(path, sizeof path, "%s/m.onnx", folder);
    FILE *file = fopen(path, "rb");
    const size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    CHECK_STATUS(onnx_model_parse(&m, bytes, size, &err), CKKS_UNSUPPORTED);
    assert_string_equal(err.field, "w");
}

static void other_weights_are_another_model(void **state) {
    (void)state;
    onnx_model *a, *b;
    ckks_error err;
    const float others[6] = {0.5f, -1.5f, 2, 0.25f, -3, 2};
    write_model("sub/w.bin", NULL, NULL);
    CHECK_STATUS(load(&a, &err), CKKS_OK);
    write_file("model/sub/w.bin", others, sizeof others);
    CHECK_STATUS(load(&b, &err), CKKS_OK);
    assert_memory_not_equal(a->digest, b->digest, sizeof a->digest);
    onnx_model_destroy(a);
    onnx_model_destroy(b);
    write_file("model/sub/w.bin", weights, sizeof weights);
}

static void every_failing_allocation_is_reported(void **state) {
    (void)state;
    uint64_t nth = 1;
    write_model("sub/w.bin", NULL, NULL);
    for (; nth < 1000; nth++) {
        onnx_model *m = NULL;
        ckks_error err;
        alloc_fault_set(nth);
        const ckks_status rc = load(&m, &err);
        const bool is_past = alloc_fault_calls() < nth;
        alloc_fault_set(0);
        onnx_model_destroy(m);
        if (is_past) break;
        if (rc != CKKS_OK && rc != CKKS_RESOURCE_EXHAUSTED && rc != CKKS_IO && rc != CKKS_NOT_FOUND)
            fail_msg("allocation %llu: %s", (unsigned long long)nth, ckks_status_name(rc));
    }
    assert_true(nth > 3 && nth < 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_beside_the_model_are_found_and_no_other_file_is_opened),
        cmocka_unit_test(a_model_from_memory_opens_no_file),
        cmocka_unit_test(other_weights_are_another_model),
        cmocka_unit_test(every_failing_allocation_is_reported),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
