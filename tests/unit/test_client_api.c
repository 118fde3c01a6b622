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
    info.struct_bytes = 8; /* a caller of another version */
    assert_int_equal(ckksc_model_describe(&info, model, &error), CKKSC_INPUT);
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
    assert_int_equal(ckksc_model_create(NULL, NULL, 0, NULL, NULL), CKKSC_INPUT);
    assert_int_equal(ckksc_encrypt(&c, model, key, NULL, far, &error), CKKSC_INPUT);
    assert_string_equal(error.field, "alpha");
    assert_null(c);
    assert_int_equal(ckksc_encrypt(&c, model, NULL, NULL, far, &error), CKKSC_INPUT);
    ckksc_connect_options options = CKKSC_CONNECT_OPTIONS_INIT;
    options.address = "inproc://nobody-here";
    assert_int_equal(ckksc_connect(&connection, &options, &error), CKKSC_UNREACHABLE);
    assert_true(error.is_retryable);
    options.struct_bytes = 4;
    assert_int_equal(ckksc_connect(&connection, &options, &error), CKKSC_INPUT);
    assert_null(connection);
    ckksc_model_destroy(NULL), ckksc_secret_key_destroy(NULL), ckksc_public_key_destroy(NULL);
    ckksc_key_set_destroy(NULL), ckksc_ciphertext_destroy(NULL), ckksc_disconnect(NULL), ckksc_free(NULL, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_describes_itself),
        cmocka_unit_test(a_row_comes_back_through_buffers_and_files),
        cmocka_unit_test(keys_travel_as_images),
        cmocka_unit_test(misuse_is_an_error_and_never_a_crash),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
