/* The public interface, used as a program outside would: ckksclient.h alone (the fixture only makes a
 * description). */
#include "client/include/ckksclient.h"
#include "tests/support/model_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static ckksc_model *model;
static ckksc_secret_key *key;

static int set_up(void **state) {
    (void)state;
    model_fixture fixture;
    size_t size, image_size = 0;
    uint8_t *image = NULL;
    ckksc_error error = CKKSC_ERROR_INIT;
    model_fixture_init(&fixture);
    uint8_t *manifest = model_fixture_pack(&fixture, &size);
    if (container_build(&image, &image_size, CONTAINER_METADATA, manifest, (uint32_t)size, NULL, 0, NULL) !=
        CKKS_OK)
        return -1;
    free(manifest);
    const ckksc_status status = ckksc_model_create(&model, image, image_size, NULL, &error);
    free(image);
    if (status != CKKSC_OK) return -1;
    return ckksc_secret_key_generate(&key, model, &error) == CKKSC_OK ? 0 : -1;
}
static int tear_down(void **state) {
    (void)state;
    ckksc_secret_key_destroy(key);
    ckksc_model_destroy(model);
    return 0;
}

static void a_model_describes_itself(void **state) {
    (void)state;
    ckksc_model_info info = {.struct_bytes = sizeof info};
    ckksc_error error = CKKSC_ERROR_INIT;
    assert_int_equal(ckksc_model_describe(&info, model, &error), CKKSC_OK);
    assert_string_equal(info.name, "identity");
    assert_int_equal(info.input_count, 4);
    assert_int_equal(info.score_count, 2);
    assert_int_equal(info.label_count, 2);
    assert_int_equal(info.security_bits, 128);
    assert_true(info.promised_step == 1e-3);
    assert_string_equal(ckksc_model_column(model, 3), "delta");
    assert_null(ckksc_model_column(model, 4));
    assert_null(ckksc_model_category(model, 3, 0)); /* a column of numbers */
    assert_null(ckksc_model_category(model, 4, 0));
    assert_null(ckksc_model_category(NULL, 0, 0));
    info.struct_bytes = 8; /* smaller than any that was published */
    assert_int_equal(ckksc_model_describe(&info, model, &error), CKKSC_USAGE);
}

static void a_row_comes_back_through_buffers_and_files(void **state) {
    (void)state;
    ckksc_error error = CKKSC_ERROR_INIT;
    ckksc_ciphertext *request = NULL, *again = NULL;
    uint8_t *image = NULL;
    size_t bytes = 0;
    double scores[2], values[4];
    uint32_t count = 0;
    char label[16];
    const double row[4] = {2.5, -7, 1, 0};
    assert_int_equal(ckksc_encrypt(&request, model, key, NULL, row, &error), CKKSC_OK);
    assert_int_equal(ckksc_ciphertext_export(&image, &bytes, model, request, &error), CKKSC_OK);
    assert_int_equal(ckksc_ciphertext_import(&again, model, 1, image, bytes, &error), CKKSC_OK);
    assert_int_equal(ckksc_decrypt(scores, model, key, again, &error), CKKSC_OK);
    assert_true(fabs(scores[0] - 1.25) < 1e-3 && fabs(scores[1] + 3.5) < 1e-3);
    ckksc_round(scores, model);
    assert_true(scores[0] == 1.25 && scores[1] == -3.5);
    assert_int_equal(ckksc_classify(values, 4, &count, label, sizeof label, model, scores, &error), CKKSC_OK);
    assert_int_equal(count, 2);
    assert_string_equal(label, "no");
    assert_int_equal(ckksc_classify(values, 1, &count, label, sizeof label, model, scores, &error),
                     CKKSC_INPUT);
    ckksc_free(image, bytes);
    ckksc_ciphertext_destroy(again);
    ckksc_ciphertext_destroy(request);
}

static void keys_travel_as_images(void **state) {
    (void)state;
    ckksc_error error = CKKSC_ERROR_INIT;
    ckksc_secret_key *back = NULL;
    ckksc_public_key *public_key = NULL;
    ckksc_key_set *keys = NULL, *same = NULL;
    ckksc_ciphertext *request = NULL;
    uint8_t *image = NULL;
    size_t bytes = 0;
    double scores[2];
    const double row[4] = {1, 2, 3, 4};
    assert_int_equal(ckksc_secret_key_export(&image, &bytes, key, "open sesame", &error), CKKSC_OK);
    assert_int_equal(ckksc_secret_key_import(&back, image, bytes, "open barley", 0, &error), CKKSC_KEY);
    assert_string_equal(error.code, "CKKS_PASSPHRASE");
    assert_null(back);
    assert_int_equal(ckksc_secret_key_import(&back, image, bytes, "open sesame", 0, &error), CKKSC_OK);
    ckksc_free(image, bytes);
    assert_int_equal(ckksc_public_key_export(&image, &bytes, key, &error), CKKSC_OK);
    assert_int_equal(ckksc_public_key_import(&public_key, image, bytes, 0, &error), CKKSC_OK);
    ckksc_free(image, bytes);
    assert_int_equal(ckksc_encrypt(&request, model, NULL, public_key, row, &error), CKKSC_OK);
    assert_int_equal(ckksc_decrypt(scores, model, back, request, &error), CKKSC_OK);
    assert_true(fabs(scores[0] - 0.5) < 1e-2);
    assert_int_equal(ckksc_key_set_generate(&keys, back, &model, 1, &error), CKKSC_OK);
    assert_int_equal(ckksc_key_set_export(&image, &bytes, keys, &error), CKKSC_OK);
    assert_int_equal(ckksc_key_set_import(&same, image, bytes, 0, &error), CKKSC_OK);
    assert_memory_equal(ckksc_key_set_id(same), ckksc_key_set_id(keys), 32);
    assert_int_equal(ckksc_key_set_bytes(same), ckksc_key_set_bytes(keys));
    ckksc_free(image, bytes);
    ckksc_key_set_destroy(same);
    ckksc_key_set_destroy(keys);
    ckksc_ciphertext_destroy(request);
    ckksc_public_key_destroy(public_key);
    ckksc_secret_key_destroy(back);
}

static void misuse_is_an_error_and_never_a_crash(void **state) {
    (void)state;
    ckksc_error error = CKKSC_ERROR_INIT;
    ckksc_model *m = (ckksc_model *)&error;
    ckksc_ciphertext *c = NULL;
    ckksc_connection *connection = NULL;
    const double far[4] = {11, 0, 0, 0};
    assert_int_equal(ckksc_model_create(&m, "x", 1, NULL, &error), CKKSC_INPUT);
    assert_null(m);
    assert_true(error.message[0]);
    assert_int_equal(ckksc_model_create(NULL, NULL, 0, NULL, NULL), CKKSC_USAGE);
    assert_int_equal(ckksc_encrypt(&c, model, key, NULL, far, &error), CKKSC_INPUT);
    assert_string_equal(error.field, "alpha");
    assert_null(c);
    assert_int_equal(ckksc_encrypt(&c, model, NULL, NULL, far, &error), CKKSC_USAGE);
    uint8_t *image = (uint8_t *)&error;
    size_t bytes = 1;
    assert_int_equal(ckksc_secret_key_export(&image, &bytes, NULL, NULL, &error), CKKSC_USAGE);
    assert_null(image);
    assert_int_equal(bytes, 0);
    ckksc_key_set *keys = (ckksc_key_set *)&error;
    ckksc_model *const none[1] = {NULL};
    assert_int_equal(ckksc_key_set_generate(&keys, key, none, 1, &error), CKKSC_USAGE);
    assert_string_equal(error.field, "models");
    assert_null(keys);
    ckksc_connect_options options = CKKSC_CONNECT_OPTIONS_INIT;
    options.address = "inproc://nobody-here";
    assert_int_equal(ckksc_connect(&connection, &options, &error), CKKSC_UNREACHABLE);
    assert_true(error.is_retryable);
    options.address = "gopher://nobody-here";
    assert_int_equal(ckksc_connect(&connection, &options, &error), CKKSC_USAGE);
    options.struct_bytes = 4;
    assert_int_equal(ckksc_connect(&connection, &options, &error), CKKSC_USAGE);
    assert_null(connection);
    ckksc_model_destroy(NULL), ckksc_secret_key_destroy(NULL), ckksc_public_key_destroy(NULL);
    ckksc_key_set_destroy(NULL), ckksc_ciphertext_destroy(NULL), ckksc_disconnect(NULL), ckksc_free(NULL, 0);
}

/* what a program compiled with a later header hands over: members that this library does not know */
typedef struct later_info {
    ckksc_model_info known;
    uint64_t added;
} later_info;
typedef struct later_error {
    ckksc_error known;
    uint64_t added;
} later_error;

static void a_program_of_a_later_version_gets_what_this_library_knows(void **state) {
    (void)state;
    later_info info = {.known.struct_bytes = sizeof info, .added = 7};
    later_error error = {.known.struct_bytes = sizeof error, .added = 7};
    assert_int_equal(ckksc_model_describe(&info.known, model, &error.known), CKKSC_OK);
    assert_string_equal(info.known.name, "identity");
    assert_int_equal(info.known.struct_bytes, sizeof info);
    assert_int_equal(ckksc_model_describe(&info.known, NULL, &error.known), CKKSC_USAGE);
    assert_int_equal(error.known.status, CKKSC_USAGE);
    assert_int_equal(error.known.struct_bytes, sizeof error);
    assert_true(info.added == 7 && error.added == 7);
}

static void a_pinned_digest_is_never_overlooked(void **state) {
    (void)state;
    ckksc_error error = CKKSC_ERROR_INIT;
    ckksc_model *m = NULL;
    model_fixture fixture;
    size_t size, image_size = 0;
    uint8_t *image = NULL;
    const uint8_t other[32] = {1};
    model_fixture_init(&fixture);
    uint8_t *manifest = model_fixture_pack(&fixture, &size);
    assert_int_equal(
        container_build(&image, &image_size, CONTAINER_METADATA, manifest, (uint32_t)size, NULL, 0, NULL),
        CKKS_OK);
    ckksc_model_options options = CKKSC_MODEL_OPTIONS_INIT;
    assert_int_equal(ckksc_model_create(&m, image, image_size, &options, &error), CKKSC_OK);
    ckksc_model_destroy(m);
    options.pinned_digest = other;
    assert_int_not_equal(ckksc_model_create(&m, image, image_size, &options, &error), CKKSC_OK);
    assert_null(m);
    options.struct_bytes = 0; /* never initialised: whatever it asks for cannot be known */
    assert_int_equal(ckksc_model_create(&m, image, image_size, &options, &error), CKKSC_USAGE);
    assert_null(m);
    assert_string_equal(error.field, "options.struct_bytes");
    free(image);
    free(manifest);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_program_of_a_later_version_gets_what_this_library_knows),
        cmocka_unit_test(a_pinned_digest_is_never_overlooked),
        cmocka_unit_test(a_model_describes_itself),
        cmocka_unit_test(a_row_comes_back_through_buffers_and_files),
        cmocka_unit_test(keys_travel_as_images),
        cmocka_unit_test(misuse_is_an_error_and_never_a_crash),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
