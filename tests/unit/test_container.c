/* The file format: round trip, damage of every kind, and the files on disk. */
#include "proto/container.h"

#include "client/lib/files.h"
#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"
#include "tests/support/alloc_fault.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static const uint8_t manifest[] = {1, 2, 3, 4, 5, 6, 7};
static const uint8_t first[] = "the first segment";
static const uint8_t second[] = "2nd";
static const container_segment segments[] = {{first, sizeof first}, {second, sizeof second}, {NULL, 0}};

static uint8_t *build(size_t *size) {
    uint8_t *image;
    assert_int_equal(
        container_build(&image, size, CONTAINER_KEY_SET, manifest, sizeof manifest, segments, 3, NULL),
        CKKS_OK);
    return image;
}

static void a_file_comes_back_as_it_was_built(void **state) {
    (void)state;
    size_t size;
    uint8_t digest[32], *image = build(&size);
    container_view view;
    ckks_error err = {0};
    assert_int_equal(container_parse(&view, image, size, CONTAINER_KEY_SET, &err), CKKS_OK);
    assert_int_equal(view.kind, CONTAINER_KEY_SET);
    assert_int_equal(view.version, 1);
    assert_int_equal(view.manifest_bytes, sizeof manifest);
    assert_memory_equal(view.manifest, manifest, sizeof manifest);
    assert_int_equal(view.segment_count, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(view.segments[i].bytes, segments[i].bytes);
        if (segments[i].bytes)
            assert_memory_equal(view.segments[i].data, segments[i].data, segments[i].bytes);
        assert_int_equal((view.segments[i].data - image) % 16, 0);
    }
    assert_int_equal((view.manifest - image) % 16, 0);
    sha256(digest, image, size);
    assert_memory_equal(view.digest, digest, 32);
    container_view_fini(&view);
    free(image);
}

static void every_truncation_is_refused(void **state) {
    (void)state;
    size_t size;
    uint8_t *image = build(&size);
    for (size_t cut = 0; cut < size; cut++) {
        uint8_t *exact = malloc(cut ? cut : 1);
        container_view view;
        memcpy(exact, image, cut);
        assert_int_not_equal(container_parse(&view, exact, cut, 0, NULL), CKKS_OK);
        assert_null(view.segments);
        free(exact);
    }
    free(image);
}

static void every_flipped_bit_is_refused(void **state) {
    (void)state;
    size_t size;
    uint8_t *image = build(&size);
    container_view view;
    for (size_t bit = 0; bit < size * 8; bit++) {
        image[bit / 8] = (uint8_t)(image[bit / 8] ^ 1u << bit % 8);
        assert_int_not_equal(container_parse(&view, image, size, 0, NULL), CKKS_OK);
        image[bit / 8] = (uint8_t)(image[bit / 8] ^ 1u << bit % 8);
    }
    assert_int_equal(container_parse(&view, image, size, 0, NULL), CKKS_OK);
    container_view_fini(&view);
    free(image);
}

/* Overwrites bytes and makes the trailing hash right again: what damage alone could not do. */
static void forge(uint8_t *image, size_t size, size_t offset, const void *bytes, size_t count) {
    memcpy(image + offset, bytes, count);
    sha256(image + size - 32, image, size - 32);
}

static void forged_fields_are_refused_by_name(void **state) {
    (void)state;
    static const struct {
        size_t offset, count;
        uint8_t bytes[8];
        ckks_status code;
        const char *field;
    } table[] = {
        {0, 1, {'X'}, CKKS_MALFORMED, "magic"},
        {10, 2, {'\n', '\n'}, CKKS_MALFORMED, "magic"},
        {16, 4, {2}, CKKS_UNSUPPORTED_VERSION, "version"},
        {20, 4, {0xff, 0xff, 0xff, 0xff}, CKKS_MALFORMED, "manifest"},
        {20, 4, {0, 1}, CKKS_MALFORMED, "manifest"},
        {20, 4, {6}, CKKS_MALFORMED, "padding"},
        {24, 4, {0xff, 0xff, 0xff, 0xff}, CKKS_MALFORMED, "segments"},
        {24, 4, {0xff, 0xff}, CKKS_MALFORMED, "size"},
        {24, 4, {1}, CKKS_MALFORMED, "manifest"},
        {28, 8, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, CKKS_MALFORMED, "segment"},
        {28, 8, {40}, CKKS_MALFORMED, "segment"},
        {28, 8, {13}, CKKS_MALFORMED, "padding"},
        {36, 8, {2}, CKKS_MALFORMED, "padding"},
        {44, 8, {1}, CKKS_MALFORMED, "segment"},
        {60, 4, {1}, CKKS_MALFORMED, "padding"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        size_t size;
        uint8_t *image = build(&size);
        container_view view;
        ckks_error err = {0};
        forge(image, size, table[i].offset, table[i].bytes, table[i].count);
        const ckks_status rc = container_parse(&view, image, size, 0, &err);
        if (rc != table[i].code) print_message("entry %zu: %s\n", i, err.message);
        assert_int_equal(rc, table[i].code);
        if (i != 8) assert_string_equal(err.field, table[i].field);
        free(image);
    }
}

static void a_newer_version_is_named(void **state) {
    (void)state;
    size_t size;
    uint8_t *image = build(&size);
    container_view view;
    ckks_error err = {0};
    forge(image, size, 16, "\x07", 1);
    assert_int_equal(container_parse(&view, image, size, 0, &err), CKKS_UNSUPPORTED_VERSION);
    assert_non_null(strstr(err.message, "version 7"));
    free(image);
}

static void another_kind_says_what_it_is_and_what_was_wanted(void **state) {
    (void)state;
    size_t size;
    uint8_t *image = build(&size);
    container_view view;
    ckks_error err = {0};
    assert_int_equal(container_parse(&view, image, size, CONTAINER_PACKAGE, &err), CKKS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "key set"));
    assert_non_null(strstr(err.message, "model package"));
    free(image);
}

static void trailing_bytes_are_refused(void **state) {
    (void)state;
    size_t size;
    uint8_t *image = build(&size), *longer = calloc(1, size + 16);
    container_view view;
    ckks_error err = {0};
    memcpy(longer, image, size - 32);
    sha256(longer + size - 16, longer, size - 16);
    assert_int_equal(container_parse(&view, longer, size + 16, 0, &err), CKKS_MALFORMED);
    assert_string_equal(err.field, "size");
    free(image), free(longer);
}

static void sizes_that_do_not_fit_are_refused_before_any_allocation(void **state) {
    (void)state;
    const container_segment huge[] = {{first, UINT64_MAX / 2}, {first, UINT64_MAX / 2}};
    uint8_t *image;
    size_t size;
    alloc_fault_set(0);
    assert_int_equal(container_build(&image, &size, 3, manifest, 1, huge, 2, NULL), CKKS_TOO_LARGE);
    assert_int_equal(container_build(&image, &size, 3, manifest, CONTAINER_MANIFEST_MAX + 1, NULL, 0, NULL),
                     CKKS_TOO_LARGE);
    assert_int_equal(container_build(&image, &size, 3, manifest, 1, huge, CONTAINER_SEGMENTS_MAX + 1, NULL),
                     CKKS_TOO_LARGE);
    assert_int_equal(alloc_fault_calls(), 0);
}

/* ---- on disk ---- */

static char folder[] = "/tmp/ckksd-container-XXXXXX";
static char path[128];

static int make_folder(void **state) {
    (void)state;
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/file", folder);
    return 0;
}
static int remove_folder(void **state) {
    (void)state;
    unlink(path);
    return rmdir(folder); /* fails if a temporary file was left */
}
static int remove_file(void **state) {
    (void)state;
    unlink(path);
    return 0;
}

/* a file of that kind, with that mode */
static void spill(uint32_t kind, unsigned mode) {
    size_t size;
    uint8_t *image;
    assert_int_equal(container_build(&image, &size, kind, manifest, sizeof manifest, segments, 3, NULL),
                     CKKS_OK);
    assert_int_equal(file_write(path, image, size, mode, true, NULL), CKKS_OK);
    free(image);
}

static void a_file_is_read_as_it_was_built(void **state) {
    (void)state;
    size_t size;
    uint8_t *image = build(&size);
    container_file file;
    spill(CONTAINER_KEY_SET, 0644);
    assert_int_equal(container_read(&file, path, CONTAINER_KEY_SET, 1 << 20, NULL), CKKS_OK);
    assert_int_equal(file.size, size);
    assert_memory_equal(file.bytes, image, size);
    assert_int_equal(file.view.segment_count, 3);
    container_file_fini(&file);
    free(image);
}

static void a_secret_key_that_others_may_read_is_refused(void **state) {
    (void)state;
    container_file file;
    ckks_error err = {0};
    spill(CONTAINER_SECRET_KEY, 0600);
    assert_int_equal(container_read(&file, path, CONTAINER_SECRET_KEY, 1 << 20, NULL), CKKS_OK);
    container_file_fini(&file);
    assert_int_equal(chmod(path, 0640), 0);
    assert_int_equal(container_read(&file, path, CONTAINER_SECRET_KEY, 1 << 20, &err),
                     CKKS_PERMISSION_DENIED);
    assert_string_equal(err.field, "mode");
    assert_int_equal(container_read(&file, path, 0, 1 << 20, NULL), CKKS_PERMISSION_DENIED);
}

static void reading_is_bounded_and_errors_name_the_path(void **state) {
    (void)state;
    container_file file;
    ckks_error missing = {0}, large = {0}, directory = {0};
    assert_int_equal(container_read(&file, path, 0, 1 << 20, &missing), CKKS_NOT_FOUND);
    assert_non_null(strstr(missing.message, path));
    spill(CONTAINER_KEY_SET, 0644);
    assert_int_equal(container_read(&file, path, 0, 100, &large), CKKS_TOO_LARGE);
    assert_non_null(strstr(large.message, path));
    assert_int_equal(container_read(&file, folder, 0, 100, &directory), CKKS_INVALID_ARGUMENT);
}

static void reading_survives_every_failed_allocation(void **state) {
    (void)state;
    spill(CONTAINER_KEY_SET, 0644);
    for (uint64_t n = 1;; n++) {
        container_file file;
        alloc_fault_set(n);
        const ckks_status rc = container_read(&file, path, 0, 1 << 20, NULL);
        const bool was_hit = alloc_fault_calls() >= n;
        alloc_fault_set(0);
        container_file_fini(&file);
        if (!was_hit) {
            assert_int_equal(rc, CKKS_OK);
            assert_true(n >= 3);
            break;
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_comes_back_as_it_was_built),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(every_flipped_bit_is_refused),
        cmocka_unit_test(forged_fields_are_refused_by_name),
        cmocka_unit_test(a_newer_version_is_named),
        cmocka_unit_test(another_kind_says_what_it_is_and_what_was_wanted),
        cmocka_unit_test(trailing_bytes_are_refused),
        cmocka_unit_test(sizes_that_do_not_fit_are_refused_before_any_allocation),
        cmocka_unit_test_teardown(a_file_is_read_as_it_was_built, remove_file),
        cmocka_unit_test_teardown(a_secret_key_that_others_may_read_is_refused, remove_file),
        cmocka_unit_test_teardown(reading_is_bounded_and_errors_name_the_path, remove_file),
        cmocka_unit_test_teardown(reading_survives_every_failed_allocation, remove_file),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
