/* What the tests of the client's keys and of its cryptography share: a model and a secret key for it.
 * Included by a test file, after cmocka. */
#ifndef CKKS_TESTS_CLIENT_WORDS_H
#define CKKS_TESTS_CLIENT_WORDS_H

#include "tests/support/model_fixture.h"

static model_fixture fixture;
static client_model *model;
static client_secret_key *secret;

static int set_up(void **state) {
    (void)state;
    ckks_error err = {0};
    model_fixture_init(&fixture);
    model = model_fixture_model(&fixture);
    return client_secret_key_generate(&secret, &model->params, &err) == CKKS_OK ? 0 : -1;
}
static int tear_down(void **state) {
    (void)state;
    client_secret_key_destroy(secret);
    client_model_destroy(model);
    return 0;
}

#endif
