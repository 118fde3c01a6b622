/* A client's keys: what models need of them, the images and files that they rest in, passphrases. */
#include "client/lib/crypto.h"
#include "client/lib/files_keys.h"

#include "proto/packing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
// and these come after it
#include "tests/support/client_words.h"

/* ---- keys ---- */

static void union_of_needs_takes_the_highest_level_of_each(void **state) {
    (void)state;
    const key_requirement a[] = {{KEY_GALOIS, 25, 1}, {KEY_RELINEARISATION, 0, 0}};
    const key_requirement b[] = {
        {KEY_PUBLIC, 0, 1}, {KEY_GALOIS, 25, 0}, {KEY_GALOIS, 5, 1}, {KEY_RELINEARISATION, 0, 1}};
    const key_requirement expected[] = {
        {KEY_RELINEARISATION, 0, 1}, {KEY_GALOIS, 5, 1}, {KEY_GALOIS, 25, 1}, {KEY_PUBLIC, 0, 1}};
    key_requirement *all = NULL;
    uint32_t count = 0;
    assert_int_equal(client_requirements_add(&all, &count, a, 2, NULL), CKKS_OK);
    assert_int_equal(client_requirements_add(&all, &count, b, 4, NULL), CKKS_OK);
    assert_int_equal(count, 4);
    assert_memory_equal(all, expected, sizeof expected);
    assert_int_equal(client_requirements_cover(all, count, b, 4, NULL), CKKS_OK);
    ckks_error err = {0};
    assert_int_equal(client_requirements_cover(a, 2, b, 4, &err), CKKS_KEY_MISSING);
    free(all);
}

static void key_set_has_the_size_that_the_model_says(void **state) {
    (void)state;
    client_key_set *set = NULL, *again = NULL;
    uint8_t *image = NULL;
    size_t size = 0;
    ckks_error err = {0};
    assert_int_equal(client_key_set_generate(&set, secret, model->keys, model->key_count, NULL, NULL, &err),
                     CKKS_OK);
    assert_int_equal(set->payload_bytes, model->key_bytes);
    assert_int_equal(client_key_set_export(&image, &size, set, &err), CKKS_OK);
    assert_int_equal(client_key_set_import(&again, image, size, false, &err), CKKS_OK);
    assert_memory_equal(again->id, set->id, 32);
    assert_memory_equal(again->payload, set->payload, (size_t)set->payload_bytes);
    client_key_set_destroy(again);
    image[size / 2] ^= 4;
    assert_int_not_equal(client_key_set_import(&again, image, size, false, &err), CKKS_OK);
    assert_null(again);
    free(image);
    client_key_set_destroy(set);
}

static ckks_status reimport(const uint8_t *image, size_t size, const char *text) {
    client_secret_key *sk = NULL;
    ckks_error err = {0};
    const client_passphrase p = {text, text ? strlen(text) : 0};
    const ckks_status rc = client_secret_key_import(&sk, image, size, &p, false, &err);
    if (rc == CKKS_OK) {
        const size_t n = params_n(&model->params);
        int8_t *a = malloc(n), *b = malloc(n);
        assert_non_null(a);
        assert_non_null(b);
        secret_key_export(secret->key, a);
        secret_key_export(sk->key, b);
        assert_memory_equal(a, b, n);
        assert_memory_equal(secret_key_lineage(sk->key), secret_key_lineage(secret->key), LINEAGE_BYTES);
        free(a);
        free(b);
    }
    client_secret_key_destroy(sk);
    return rc;
}

static void secret_key_survives_its_file_image(void **state) {
    (void)state;
    uint8_t *image = NULL;
    size_t size = 0;
    assert_int_equal(client_secret_key_export(&image, &size, secret, NULL, 1, NULL), CKKS_OK);
    assert_int_equal(reimport(image, size, NULL), CKKS_OK);
    assert_int_equal(reimport(image, size, "superfluous"), CKKS_PASSPHRASE);
    for (size_t cut = 0; cut < size; cut += size / 7 + 1)
        assert_int_not_equal(reimport(image, cut, NULL), CKKS_OK);
    image[size - 40] ^= 1;
    assert_int_equal(reimport(image, size, NULL), CKKS_DIGEST_MISMATCH);
    free(image);
}

static void passphrase_is_needed_and_must_be_right(void **state) {
    (void)state;
    uint8_t *image = NULL, *plain = NULL;
    size_t size = 0, plain_size = 0;
    const client_passphrase p = {"correct horse", 13};
    assert_int_equal(client_secret_key_export(&image, &size, secret, &p, 1, NULL), CKKS_OK);
    assert_int_equal(client_secret_key_export(&plain, &plain_size, secret, NULL, 1, NULL), CKKS_OK);
    assert_int_equal(reimport(image, size, NULL), CKKS_PASSPHRASE);
    assert_int_equal(reimport(image, size, "wrong horse"), CKKS_PASSPHRASE);
    assert_int_equal(reimport(image, size, "correct horse"), CKKS_OK);
    /* no run of the coefficients is left in the sealed image */
    int8_t coefficients[4096];
    secret_key_export(secret->key, coefficients);
    assert_null(memmem(image, size, coefficients, 64));
    assert_non_null(memmem(plain, plain_size, coefficients, 64));
    memset(coefficients, 0, sizeof coefficients);
    free(image);
    free(plain);
}

static void a_key_of_weak_parameters_needs_a_word_to_be_used(void **state) {
    (void)state;
    static const uint32_t q_bits[] = {45, 45}, p_bits[] = {46};
    ckks_params weak;
    client_secret_key *sk = NULL, *back = NULL;
    uint8_t *image = NULL;
    size_t size = 0;
    ckks_error err = {0};
    assert_int_equal(params_generate(&weak, 12, q_bits, 2, p_bits, 1, 1, NULL), CKKS_OK);
    assert_int_equal(client_secret_key_generate(&sk, &weak, NULL), CKKS_OK);
    assert_int_equal(client_secret_key_export(&image, &size, sk, NULL, 1, NULL), CKKS_OK);
    assert_int_equal(client_secret_key_import(&back, image, size, NULL, false, &err),
                     CKKS_INSECURE_PARAMETERS);
    assert_null(back);
    assert_int_equal(client_secret_key_import(&back, image, size, NULL, true, NULL), CKKS_OK);
    free(image);
    client_secret_key_destroy(back);
    client_secret_key_destroy(sk);
}

/* the seal covers what the key belongs to: another lineage around the same ciphertext does not open */
static void a_sealed_key_cannot_be_given_another_lineage(void **state) {
    (void)state;
    uint8_t *image = NULL, *forged = NULL;
    size_t size = 0, forged_size = 0;
    container_view view = {0};
    const client_passphrase p = {"correct horse", 13};
    assert_int_equal(client_secret_key_export(&image, &size, secret, &p, 1, NULL), CKKS_OK);
    assert_int_equal(container_parse(&view, image, size, CONTAINER_SECRET_KEY, NULL), CKKS_OK);
    Ckksd__V1__SecretKeyManifest *m =
        ckksd__v1__secret_key_manifest__unpack(NULL, view.manifest_bytes, view.manifest);
    assert_non_null(m);
    for (int changed = 0; changed < 2; changed++) {
        if (changed) m->lineage.data[3] ^= 1;
        const size_t packed = ckksd__v1__secret_key_manifest__get_packed_size(m);
        uint8_t *manifest = malloc(packed);
        assert_non_null(manifest);
        ckksd__v1__secret_key_manifest__pack(m, manifest);
        const container_segment segment = {view.segments[0].data, view.segments[0].bytes};
        assert_int_equal(container_build(&forged, &forged_size, CONTAINER_SECRET_KEY, manifest,
                                         (uint32_t)packed, &segment, 1, NULL),
                         CKKS_OK);
        assert_int_equal(reimport(forged, forged_size, "correct horse"), changed ? CKKS_PASSPHRASE : CKKS_OK);
        free(forged);
        free(manifest);
    }
    ckksd__v1__secret_key_manifest__free_unpacked(m, NULL);
    container_view_fini(&view);
    free(image);
}

static void secret_file_is_private_and_refused_when_it_is_not(void **state) {
    (void)state;
    char folder[] = "/tmp/ckks-client-XXXXXX", path[128];
    struct stat st;
    client_secret_key *sk = NULL;
    ckks_error err = {0};
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/deep/alice.secret", folder);
    assert_int_equal(secret_file_write(path, secret, NULL, &err), CKKS_OK);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(secret_file_write(path, secret, NULL, &err), CKKS_ALREADY_EXISTS);
    assert_int_equal(secret_file_read(&sk, path, NULL, false, NULL), CKKS_OK);
    client_secret_key_destroy(sk);
    assert_int_equal(chmod(path, 0640), 0);
    err = (ckks_error){0};
    assert_int_equal(secret_file_read(&sk, path, NULL, false, &err), CKKS_PERMISSION_DENIED);
    assert_non_null(strstr(err.message, "chmod"));
    unlink(path);
    *strrchr(path, '/') = 0;
    rmdir(path);
    rmdir(folder);
}

static void key_set_file_can_be_looked_at_without_its_payload(void **state) {
    (void)state;
    char folder[] = "/tmp/ckks-client-XXXXXX", path[128];
    client_key_set *set = NULL, *head = NULL;
    ckks_error err = {0};
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/a.keys", folder);
    assert_int_equal(client_key_set_generate(&set, secret, model->keys, model->key_count, NULL, NULL, &err),
                     CKKS_OK);
    assert_int_equal(key_set_file_write(path, set, false, &err), CKKS_OK);
    assert_int_equal(key_set_file_peek(&head, path, false, &err), CKKS_OK);
    assert_memory_equal(head->id, set->id, 32);
    assert_int_equal(head->payload_bytes, set->payload_bytes);
    assert_null(head->payload);
    assert_int_equal(truncate(path, 40), 0);
    client_key_set_destroy(head);
    assert_int_not_equal(key_set_file_peek(&head, path, false, &err), CKKS_OK);
    client_key_set_destroy(set);
    unlink(path);
    rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(union_of_needs_takes_the_highest_level_of_each),
        cmocka_unit_test(key_set_has_the_size_that_the_model_says),
        cmocka_unit_test(secret_key_survives_its_file_image),
        cmocka_unit_test(passphrase_is_needed_and_must_be_right),
        cmocka_unit_test(a_key_of_weak_parameters_needs_a_word_to_be_used),
        cmocka_unit_test(a_sealed_key_cannot_be_given_another_lineage),
        cmocka_unit_test(secret_file_is_private_and_refused_when_it_is_not),
        cmocka_unit_test(key_set_file_can_be_looked_at_without_its_payload),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
