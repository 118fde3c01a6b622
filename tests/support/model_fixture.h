/*
 * A small model description that passes every check (N = 2^12, secure at 128 bits), for tests of what a
 * client does with descriptions: change one field, pack, and see. Its program is the identity: outputs have
 * the signature of the inputs, so that a fake server may answer with what it was sent.
 */
#ifndef CKKS_TESTS_MODEL_FIXTURE_H
#define CKKS_TESTS_MODEL_FIXTURE_H

#include "client/lib/crypto.h"

#define MODEL_FIXTURE_COLUMNS 4u
#define MODEL_FIXTURE_KEYS    2u

typedef struct model_fixture {
    Ckksd__V1__ModelDescription description;
    ckks_params params;
    params_message parameters;
    Ckksd__V1__Signature signature, *inputs[1], *outputs[1];
    Ckksd__V1__Column column[MODEL_FIXTURE_COLUMNS], *columns[MODEL_FIXTURE_COLUMNS];
    Ckksd__V1__PreprocessStep affine, *preprocess[1];
    Ckksd__V1__InputLayout input_layout;
    Ckksd__V1__OutputLayout output_layout;
    Ckksd__V1__PostprocessStep argmax, labels, *postprocess[2];
    Ckksd__V1__KeyRequirement key[MODEL_FIXTURE_KEYS], *keys[MODEL_FIXTURE_KEYS];
    double offset[MODEL_FIXTURE_COLUMNS], scale[MODEL_FIXTURE_COLUMNS];
    uint32_t places[MODEL_FIXTURE_COLUMNS], slots[MODEL_FIXTURE_COLUMNS];
    char *names[2];
    uint8_t digest[32];
} model_fixture;

/* columns "alpha" to "delta" in -10..10, element i = column i / 2, scores = the first two elements, labels
 * "no" and "yes", promised error 1e-3, keys: relinearisation and the rotation by one, both at level 1. */
void model_fixture_init(model_fixture *f);
/* packed bytes: free() them */
uint8_t *model_fixture_pack(const model_fixture *f, size_t *size);
client_model *model_fixture_model(const model_fixture *f);

#endif
