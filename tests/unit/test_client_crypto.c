/* The cryptographic half of the client library: what it trusts, rows in and scores out. */
#include "client/lib/crypto.h"
#include "tests/support/alloc_fault.h"

#include "kernels/base/bytes.h"
#include "proto/packing.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
// and these come after it
#include "tests/support/client_words.h"

/* ---- trust ---- */

static double numbers_nan[4] = {0, NAN, 0, 0};
static uint32_t far_slots[4] = {0, 1, 2, 4};
static Ckksd__V1__KeyRequirement *many_keys[100000];

static void lie_weak(model_fixture *f) {
    /* the same ring with more modulus than the table allows, consistent in everything else */
    static const uint32_t q_bits[] = {45, 45}, p_bits[] = {46};
    if (params_generate(&f->params, 12, q_bits, 2, p_bits, 1, 1, NULL) != CKKS_OK) abort();
    params_to_message(&f->parameters, &f->params);
    f->description.security_bits = 0;
    uint64_t bytes;
    const key_requirement keys[2] = {{KEY_RELINEARISATION, 0, 1}, {KEY_GALOIS, 5, 1}};
    packing_key_set_bytes(&bytes, &f->params, keys, 2);
    f->description.key_bytes = bytes;
}
static void lie_weak_and_says_so(model_fixture *f) {
    lie_weak(f);
    f->description.has_insecure = 1, f->description.insecure = 1;
}
static void lie_many_keys(model_fixture *f) {
    for (size_t i = 0; i < 100000; i++) many_keys[i] = &f->key[1];
    f->description.n_keys = 100000, f->description.keys = many_keys;
}
static void lie_key_bytes(model_fixture *f) {
    f->description.key_bytes++;
}
static void lie_even_element(model_fixture *f) {
    f->key[1].galois_element = 6;
}
static void lie_level(model_fixture *f) {
    f->key[0].level = 2;
}
static void lie_nan(model_fixture *f) {
    f->affine.scale = numbers_nan;
}
static void lie_infinite_error(model_fixture *f) {
    f->description.promised_error = INFINITY;
}
static void lie_slot(model_fixture *f) {
    f->input_layout.slot = far_slots;
}
static void lie_elements(model_fixture *f) {
    f->input_layout.element_count = 5;
}
static void lie_parameter_id(model_fixture *f) {
    f->params.id[0] ^= 1;
}
static void lie_composite(model_fixture *f) {
    f->params.prime[0] -= 2;
}
static void lie_scale(model_fixture *f) {
    const double nan = NAN;
    memcpy(&f->signature.scale_bits, &nan, sizeof nan);
}
static void lie_shape(model_fixture *f) {
    static uint32_t shape[3] = {65536, 65536, 65536};
    f->description.n_columns = 0;
    f->description.n_input_shape = 3, f->description.input_shape = shape;
}
static void lie_name(model_fixture *f) {
    f->description.name = "x\x1b[2J";
}

static void a_lying_description_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *what;
        void (*lie)(model_fixture *f);
        ckks_status expected;
    } table[] = {
        {"weak parameters", lie_weak, CKKS_INSECURE_PARAMETERS},
        {"weak parameters that say so", lie_weak_and_says_so, CKKS_INSECURE_PARAMETERS},
        {"100,000 keys", lie_many_keys, CKKS_UNTRUSTED_SERVER},
        {"key bytes", lie_key_bytes, CKKS_UNTRUSTED_SERVER},
        {"an even Galois element", lie_even_element, CKKS_UNTRUSTED_SERVER},
        {"a key level above the top", lie_level, CKKS_UNTRUSTED_SERVER},
        {"NaN in preprocessing", lie_nan, CKKS_UNTRUSTED_SERVER},
        {"an infinite error", lie_infinite_error, CKKS_UNTRUSTED_SERVER},
        {"a slot outside", lie_slot, CKKS_UNTRUSTED_SERVER},
        {"an element too many", lie_elements, CKKS_UNTRUSTED_SERVER},
        {"another parameter id", lie_parameter_id, CKKS_UNTRUSTED_SERVER},
        {"a modulus that is no prime", lie_composite, CKKS_UNTRUSTED_SERVER},
        {"a scale that is no number", lie_scale, CKKS_UNTRUSTED_SERVER},
        {"a shape that overflows", lie_shape, CKKS_UNTRUSTED_SERVER},
        {"terminal escapes in the name", lie_name, CKKS_UNTRUSTED_SERVER},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        model_fixture f;
        client_model *m = NULL;
        ckks_error err = {0};
        size_t size;
        model_fixture_init(&f);
        table[i].lie(&f);
        uint8_t *bytes = model_fixture_pack(&f, &size);
        const ckks_status rc = client_model_create(&m, bytes, size, NULL, NULL, &err);
        printf("  %-32s %s: %s: %s\n", table[i].what, ckks_status_name(rc), err.field, err.message);
        assert_int_equal(rc, table[i].expected);
        assert_null(m);
        assert_true(err.field[0] || err.message[0]);
        free(bytes);
    }
}

static void a_wrong_digest_is_refused_when_pinned(void **state) {
    (void)state;
    uint8_t pin[32];
    size_t size;
    client_model *m = NULL;
    ckks_error err = {0};
    uint8_t *bytes = model_fixture_pack(&fixture, &size);
    memset(pin, 0x5a, sizeof pin);
    client_model_options options = {.pinned_digest = pin};
    assert_int_equal(client_model_create(&m, bytes, size, NULL, &options, &err), CKKS_OK);
    client_model_destroy(m);
    pin[31] ^= 1;
    assert_int_equal(client_model_create(&m, bytes, size, NULL, &options, &err), CKKS_UNTRUSTED_SERVER);
    assert_string_equal(err.field, "digest");
    free(bytes);
}

static void weak_parameters_pass_only_when_declared_and_allowed(void **state) {
    (void)state;
    model_fixture f;
    client_model *m = NULL;
    ckks_error err = {0};
    size_t size;
    const client_model_options options = {.allow_insecure = true};
    model_fixture_init(&f);
    lie_weak_and_says_so(&f);
    uint8_t *bytes = model_fixture_pack(&f, &size);
    assert_int_equal(client_model_create(&m, bytes, size, NULL, &options, &err), CKKS_OK);
    client_model_destroy(m);
    free(bytes);
}

/* ---- rows and scores ---- */

static void rows_come_back_within_the_promised_error(void **state) {
    (void)state;
    const double rows[3][4] = {{1, -2, 3, -4}, {9.99, -9.99, 0, 10}, {0, 0, 0, 0}};
    double worst = 0;
    for (int r = 0; r < 3; r++) {
        double elements[4], scores[2];
        client_ciphertexts list;
        ckks_error err = {0};
        assert_int_equal(client_preprocess(elements, model, rows[r], &err), CKKS_OK);
        assert_int_equal(client_encrypt(&list, model, secret, NULL, elements, 1, &err), CKKS_OK);
        assert_true(list.items[0].is_seeded);
        assert_int_equal(client_decrypt(scores, model, secret, &list, 1, &err), CKKS_OK);
        for (int i = 0; i < 2; i++) worst = fmax(worst, fabs(scores[i] - rows[r][i] / 2));
        assert_true(client_scores_are_plausible(model, scores, 2));
        client_ciphertexts_fini(&list);
    }
    printf("  worst error %.2e\n", worst);
    assert_true(worst < 1e-3);
}

static void public_key_encryption_decrypts_and_needs_no_secret(void **state) {
    (void)state;
    uint8_t *image = NULL;
    size_t size = 0;
    client_public_key *pk = NULL;
    client_ciphertexts list;
    ckks_error err = {0};
    double scores[2];
    const double elements[4] = {1.5, -2.5, 0, 0};
    assert_int_equal(client_public_key_export(&image, &size, secret, &err), CKKS_OK);
    assert_int_equal(client_public_key_import(&pk, image, size, false, &err), CKKS_OK);
    assert_int_equal(client_encrypt(&list, model, NULL, pk, elements, 1, &err), CKKS_OK);
    assert_false(list.items[0].is_seeded);
    assert_int_equal(client_decrypt(scores, model, secret, &list, 1, &err), CKKS_OK);
    printf("  errors %.2e %.2e\n", fabs(scores[0] - 1.5), fabs(scores[1] + 2.5));
    assert_true(fabs(scores[0] - 1.5) < 1e-2 && fabs(scores[1] + 2.5) < 1e-2);
    client_ciphertexts_fini(&list);
    client_public_key_destroy(pk);
    free(image);
}

/* ---- many rows in one request ---- */

/* the same elements and scores, one ciphertext per element and one slot per row */
static client_model *batch_model(model_fixture *f, bool secret_key_only) {
    model_fixture_init(f);
    f->signature.batch_count = MODEL_FIXTURE_COLUMNS;
    f->input_layout.kind = f->output_layout.kind = 2;
    f->input_layout.slot_count = f->output_layout.slot_count = 2048;
    f->input_layout.has_sample_count_max = 1, f->input_layout.sample_count_max = 2048;
    f->input_layout.n_input = f->input_layout.n_slot = 0;
    f->output_layout.n_output = f->output_layout.n_slot = 0;
    f->input_layout.has_secret_key_only = 1, f->input_layout.secret_key_only = secret_key_only;
    return model_fixture_model(f);
}

static void batches_come_back_within_the_promised_error(void **state) {
    (void)state;
    static const uint32_t counts[] = {1, 7, 2048};
    model_fixture f;
    client_model *m = batch_model(&f, false);
    assert_int_equal(client_rows_per_request(m), 2048);
    assert_int_equal(client_input_ciphertexts(m), 4);
    for (int k = 0; k < 3; k++) {
        const uint32_t rows = counts[k];
        double *elements = malloc(rows * 4 * sizeof *elements), *scores = malloc(rows * 2 * sizeof *scores),
               worst = 0;
        uint8_t *image = NULL;
        size_t size = 0;
        client_ciphertexts list, again;
        ckks_error err = {0};
        for (uint32_t i = 0; i < rows * 4; i++) elements[i] = (double)(i * 37 % 101) / 20 - 2.5;
        assert_int_equal(client_encrypt(&list, m, secret, NULL, elements, rows, &err), CKKS_OK);
        assert_int_equal(list.count, 1);
        assert_int_equal(list.items[0].signature.batch_count, 4);
        assert_int_equal(client_ciphertexts_export(&image, &size, &list, m, &err), CKKS_OK);
        assert_int_equal(client_ciphertexts_import(&again, m, true, image, size, &err), CKKS_OK);
        assert_int_equal(again.row_count, rows);
        assert_int_equal(client_decrypt(scores, m, secret, &again, rows, &err), CKKS_OK);
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t i = 0; i < 2; i++)
                worst = fmax(worst, fabs(scores[r * 2 + i] - elements[r * 4 + i]));
        printf("  %u rows: worst error %.2e\n", rows, worst);
        assert_true(worst < 1e-3);
        client_ciphertexts_fini(&list);
        client_ciphertexts_fini(&again);
        free(image);
        free(elements);
        free(scores);
    }
    client_model_destroy(m);
}

/* entries of one value share a seed, so their second components must come from different polynomials */
static void entries_of_a_batch_have_their_own_randomness(void **state) {
    (void)state;
    model_fixture f;
    client_model *m = batch_model(&f, false);
    client_ciphertexts list;
    const double elements[4] = {1, 1, 1, 1};
    assert_int_equal(client_encrypt(&list, m, secret, NULL, elements, 1, NULL), CKKS_OK);
    const size_t bytes = list.items[0].packed_bytes / 4;
    for (int a = 0; a < 4; a++)
        for (int b = 0; b < a; b++)
            assert_memory_not_equal(list.items[0].packed + (size_t)a * bytes,
                                    list.items[0].packed + (size_t)b * bytes, 64);
    client_ciphertexts_fini(&list);
    client_model_destroy(m);
}

static void the_number_of_rows_is_checked(void **state) {
    (void)state;
    model_fixture f;
    client_model *m = batch_model(&f, false);
    client_ciphertexts list;
    double *elements = calloc(2049 * 4, sizeof *elements);
    static const struct {
        uint32_t most, rows;
    } bad[] = {{2048, 0}, {2048, 2049}, {100, 101}}; /* a model may take less than the slots have room for */
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char says[32];
        ckks_error err = {0};
        m->description->input_layout->sample_count_max = bad[i].most;
        assert_int_equal(client_encrypt(&list, m, secret, NULL, elements, bad[i].rows, &err),
                         CKKS_INVALID_ARGUMENT);
        assert_string_equal(err.field, "rows");
        snprintf(says, sizeof says, "1 to %u", bad[i].most);
        assert_non_null(strstr(err.message, says));
        assert_null(list.items);
    }
    free(elements);
    client_model_destroy(m);
}

static void a_promise_under_the_secret_key_is_not_made_under_the_public_one(void **state) {
    (void)state;
    model_fixture f;
    client_model *m = batch_model(&f, true), *both = batch_model(&f, false);
    uint8_t *image = NULL;
    size_t size = 0;
    client_public_key *pk = NULL;
    client_ciphertexts list;
    ckks_error err = {0};
    double scores[2];
    const double elements[4] = {1.5, -2.5, 0, 0};
    assert_int_equal(client_public_key_export(&image, &size, secret, &err), CKKS_OK);
    assert_int_equal(client_public_key_import(&pk, image, size, false, &err), CKKS_OK);
    assert_int_equal(client_encrypt(&list, m, NULL, pk, elements, 1, &err), CKKS_UNSUPPORTED);
    assert_int_equal(client_encrypt(&list, both, NULL, pk, elements, 1, NULL), CKKS_OK);
    assert_int_equal(client_decrypt(scores, both, secret, &list, 1, NULL), CKKS_OK);
    assert_true(fabs(scores[0] - 1.5) < 1e-2 && fabs(scores[1] + 2.5) < 1e-2);
    client_ciphertexts_fini(&list);
    client_public_key_destroy(pk);
    free(image);
    client_model_destroy(both);
    client_model_destroy(m);
}

static void batches_survive_every_failed_allocation(void **state) {
    (void)state;
    model_fixture f;
    client_model *m = batch_model(&f, false);
    const double elements[8] = {1, 2, 3, 4, 0, 1, 0, 1};
    double scores[4];
    for (uint64_t n = 1;; n++) {
        client_ciphertexts list = {0};
        ckks_error err = {0};
        alloc_fault_set(n);
        ckks_status rc = client_encrypt(&list, m, secret, NULL, elements, 2, &err);
        if (rc == CKKS_OK) rc = client_decrypt(scores, m, secret, &list, 2, &err);
        const bool was_hit = alloc_fault_calls() >= n;
        alloc_fault_set(0);
        client_ciphertexts_fini(&list);
        assert_int_equal(rc, was_hit ? CKKS_RESOURCE_EXHAUSTED : CKKS_OK);
        if (!was_hit) break;
    }
    client_model_destroy(m);
}

static void two_encryptions_of_one_row_differ_in_seed_and_bytes(void **state) {
    (void)state;
    client_ciphertexts a, b;
    const double elements[4] = {1, 1, 1, 1};
    assert_int_equal(client_encrypt(&a, model, secret, NULL, elements, 1, NULL), CKKS_OK);
    assert_int_equal(client_encrypt(&b, model, secret, NULL, elements, 1, NULL), CKKS_OK);
    assert_memory_not_equal(a.items[0].seed, b.items[0].seed, SEED_BYTES);
    assert_memory_not_equal(a.items[0].packed, b.items[0].packed, 64);
    client_ciphertexts_fini(&a);
    client_ciphertexts_fini(&b);
}

static void rows_out_of_range_never_reach_encryption(void **state) {
    (void)state;
    static const struct {
        double row[4];
        const char *field;
    } table[] = {{{11, 0, 0, 0}, "alpha"},
                 {{0, -10.5, 0, 0}, "beta"},
                 {{0, 0, NAN, 0}, "gamma"},
                 {{0, 0, 0, INFINITY}, "delta"}};
    for (size_t i = 0; i < 4; i++) {
        ckks_error err = {0};
        double elements[4];
        assert_int_equal(client_preprocess(elements, model, table[i].row, &err), CKKS_OUT_OF_RANGE);
        assert_string_equal(err.field, table[i].field);
    }
}

static void results_of_another_secret_or_shape_are_not_decrypted(void **state) {
    (void)state;
    client_secret_key *other = NULL;
    client_ciphertexts list;
    ckks_error err = {0};
    double scores[2];
    const double elements[4] = {1, 2, 0, 0};
    assert_int_equal(client_secret_key_generate(&other, &model->params, &err), CKKS_OK);
    assert_int_equal(client_encrypt(&list, model, other, NULL, elements, 1, &err), CKKS_OK);
    assert_int_equal(client_decrypt(scores, model, secret, &list, 1, &err), CKKS_LINEAGE_MISMATCH);
    err = (ckks_error){0};
    list.items[0].signature.scale = nextafter(list.items[0].signature.scale, 1e300);
    assert_int_equal(client_decrypt(scores, model, other, &list, 1, &err), CKKS_SIGNATURE_MISMATCH);
    assert_string_equal(err.field, "scale");
    list.items[0].signature.scale = 0x1p28;
    list.items[0].packed_bytes -= 16;
    err = (ckks_error){0};
    assert_int_equal(client_decrypt(scores, model, other, &list, 1, &err), CKKS_SIGNATURE_MISMATCH);
    client_ciphertexts_fini(&list);
    client_secret_key_destroy(other);
}

static void labels_and_margins_follow_the_scores(void **state) {
    (void)state;
    client_prediction p;
    const double scores[2] = {0.25, 0.75};
    assert_int_equal(client_postprocess(&p, model, scores, NULL), CKKS_OK);
    assert_string_equal(p.label, "yes");
    assert_true(fabs(p.margin - 0.5) < 1e-15);
    client_prediction_fini(&p);
}

static void rounding_prints_what_it_promises(void **state) {
    (void)state;
    double scores[3] = {0.30004, -1.9996, 12.34567};
    assert_true(client_promised_step(model) == 1e-3);
    client_round(scores, 3, 1e-3);
    assert_true(scores[0] == 0.3 && scores[1] == -2.0 && scores[2] == 12.346);
}

static void scores_outside_of_the_models_range_are_implausible(void **state) {
    (void)state;
    Ckksd__V1__ModelDescription *d = model->description;
    const Ckksd__V1__ModelDescription before = *d;
    d->has_output_minimum = d->has_output_maximum = 1, d->output_minimum = -2, d->output_maximum = 3;
    const struct {
        double scores[2];
        bool plausible;
    } cases[] = {{{-2, 3}, true},
                 {{0, 3.001}, false},
                 {{-2.001, 0}, false},
                 {{0, (double)NAN}, false},
                 {{HUGE_VAL, 0}, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_true(client_scores_are_plausible(model, cases[i].scores, 2) == cases[i].plausible);
    *d = before;
}

static void ciphertext_files_keep_model_and_lineage(void **state) {
    (void)state;
    client_ciphertexts list, back;
    uint8_t *image = NULL;
    size_t size = 0;
    ckks_error err = {0};
    double scores[2];
    const double elements[4] = {2, 1, 0, 0};
    assert_int_equal(client_encrypt(&list, model, secret, NULL, elements, 1, &err), CKKS_OK);
    assert_int_equal(client_ciphertexts_export(&image, &size, &list, model, &err), CKKS_OK);
    assert_int_equal(client_ciphertexts_import(&back, model, true, image, size, &err), CKKS_OK);
    assert_int_equal(client_decrypt(scores, model, secret, &back, 1, &err), CKKS_OK);
    assert_true(fabs(scores[0] - 2) < 1e-3);
    client_ciphertexts_fini(&back);
    model->digest[0] ^= 1;
    assert_int_equal(client_ciphertexts_import(&back, model, true, image, size, &err),
                     CKKS_SIGNATURE_MISMATCH);
    model->digest[0] ^= 1;
    client_ciphertexts_fini(&list);
    free(image);
}

/* Every allocation on the way fails once: a typed error, nothing leaked (the address sanitizer counts). */
static void a_failed_allocation_is_an_error_and_no_more(void **state) {
    (void)state;
    size_t size;
    uint8_t *bytes = model_fixture_pack(&fixture, &size);
    const double elements[4] = {1, 2, 3, 4};
    uint64_t n = 1;
    for (;; n++) {
        client_model *m = NULL;
        client_ciphertexts list = {0};
        double scores[2];
        ckks_error err = {0};
        alloc_fault_set(n);
        ckks_status rc = client_model_create(&m, bytes, size, NULL, NULL, &err);
        if (rc == CKKS_OK) rc = client_encrypt(&list, m, secret, NULL, elements, 1, &err);
        if (rc == CKKS_OK) rc = client_decrypt(scores, m, secret, &list, 1, &err);
        const bool has_failed = alloc_fault_calls() >= n;
        alloc_fault_set(0);
        client_ciphertexts_fini(&list);
        client_model_destroy(m);
        if (!has_failed) {
            assert_int_equal(rc, CKKS_OK);
            break;
        }
        assert_int_not_equal(rc, CKKS_OK);
        assert_true(n < 10000);
    }
    printf("  %llu allocations\n", (unsigned long long)n - 1);
    free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lying_description_is_refused),
        cmocka_unit_test(a_wrong_digest_is_refused_when_pinned),
        cmocka_unit_test(weak_parameters_pass_only_when_declared_and_allowed),
        cmocka_unit_test(rows_come_back_within_the_promised_error),
        cmocka_unit_test(public_key_encryption_decrypts_and_needs_no_secret),
        cmocka_unit_test(batches_come_back_within_the_promised_error),
        cmocka_unit_test(entries_of_a_batch_have_their_own_randomness),
        cmocka_unit_test(the_number_of_rows_is_checked),
        cmocka_unit_test(a_promise_under_the_secret_key_is_not_made_under_the_public_one),
        cmocka_unit_test(batches_survive_every_failed_allocation),
        cmocka_unit_test(two_encryptions_of_one_row_differ_in_seed_and_bytes),
        cmocka_unit_test(rows_out_of_range_never_reach_encryption),
        cmocka_unit_test(results_of_another_secret_or_shape_are_not_decrypted),
        cmocka_unit_test(labels_and_margins_follow_the_scores),
        cmocka_unit_test(rounding_prints_what_it_promises),
        cmocka_unit_test(scores_outside_of_the_models_range_are_implausible),
        cmocka_unit_test(ciphertext_files_keep_model_and_lineage),
        cmocka_unit_test(a_failed_allocation_is_an_error_and_no_more),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
