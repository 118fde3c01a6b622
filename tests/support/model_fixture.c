#include "tests/support/model_fixture.h"

#include "proto/packing.h"

#include <stdlib.h>
#include <string.h>

static char *const column_names[MODEL_FIXTURE_COLUMNS] = {"alpha", "beta", "gamma", "delta"};

static void fill_columns(model_fixture *f) {
    for (uint32_t i = 0; i < MODEL_FIXTURE_COLUMNS; i++) {
        Ckksd__V1__Column *c = &f->column[i];
        ckksd__v1__column__init(c);
        c->name = column_names[i];
        c->has_kind = 1, c->kind = 1;
        c->has_minimum = c->has_maximum = 1;
        c->minimum = -10, c->maximum = 10;
        f->columns[i] = c;
        f->offset[i] = 0, f->scale[i] = 0.5;
        f->places[i] = 0, f->slots[i] = i;
    }
}

static void fill_layouts(model_fixture *f) {
    ckksd__v1__input_layout__init(&f->input_layout);
    f->input_layout.has_kind = f->input_layout.has_element_count = f->input_layout.has_slot_count = 1;
    f->input_layout.kind = 1, f->input_layout.element_count = 4, f->input_layout.slot_count = 4;
    f->input_layout.n_input = f->input_layout.n_slot = 4;
    f->input_layout.input = f->places, f->input_layout.slot = f->slots;
    ckksd__v1__output_layout__init(&f->output_layout);
    f->output_layout.has_kind = f->output_layout.has_element_count = f->output_layout.has_slot_count = 1;
    f->output_layout.kind = 1, f->output_layout.element_count = 2, f->output_layout.slot_count = 4;
    f->output_layout.n_output = f->output_layout.n_slot = 2;
    f->output_layout.output = f->places, f->output_layout.slot = f->slots;
}

static void fill_steps(model_fixture *f) {
    ckksd__v1__preprocess_step__init(&f->affine);
    f->affine.has_kind = 1, f->affine.kind = 1;
    f->affine.n_offset = f->affine.n_scale = 4;
    f->affine.offset = f->offset, f->affine.scale = f->scale;
    f->preprocess[0] = &f->affine;
    ckksd__v1__postprocess_step__init(&f->argmax);
    f->argmax.has_kind = 1, f->argmax.kind = 4;
    ckksd__v1__postprocess_step__init(&f->labels);
    f->labels.has_kind = 1, f->labels.kind = 5;
    f->names[0] = "no", f->names[1] = "yes";
    f->labels.n_labels = 2, f->labels.labels = f->names;
    f->postprocess[0] = &f->argmax, f->postprocess[1] = &f->labels;
}

static void fill_keys(model_fixture *f) {
    const key_requirement keys[MODEL_FIXTURE_KEYS] = {{KEY_RELINEARISATION, 0, 1}, {KEY_GALOIS, 5, 1}};
    uint64_t bytes = 0;
    key_requirements_to_messages(f->key, f->keys, keys, MODEL_FIXTURE_KEYS);
    if (!packing_key_set_bytes(&bytes, &f->params, keys, MODEL_FIXTURE_KEYS)) abort();
    f->description.has_key_bytes = 1, f->description.key_bytes = bytes;
}

void model_fixture_init(model_fixture *f) {
    static const uint32_t q_bits[] = {38, 28}, p_bits[] = {38};
    Ckksd__V1__ModelDescription *d = &f->description;
    value_signature signature;
    memset(f, 0, sizeof *f);
    if (params_generate(&f->params, 12, q_bits, 2, p_bits, 1, 1, NULL) != CKKS_OK) abort();
    ckksd__v1__model_description__init(d);
    params_to_message(&f->parameters, &f->params);
    value_signature_ciphertext(&signature, &f->params, 2, 1, 0x1p28, 0);
    signature_message sm;
    signature_to_message(&sm, &signature);
    f->signature = sm.message;
    f->signature.parameter_id = (ProtobufCBinaryData){sizeof f->params.id, f->params.id};
    f->inputs[0] = f->outputs[0] = &f->signature;
    fill_columns(f), fill_layouts(f), fill_steps(f), fill_keys(f);
    d->name = "identity", d->version = "1";
    d->parameters = &f->parameters.message;
    d->n_inputs = d->n_outputs = 1, d->inputs = f->inputs, d->outputs = f->outputs;
    d->n_columns = 4, d->columns = f->columns;
    d->n_preprocess = 1, d->preprocess = f->preprocess;
    d->input_layout = &f->input_layout, d->output_layout = &f->output_layout;
    d->n_postprocess = 2, d->postprocess = f->postprocess;
    d->n_keys = MODEL_FIXTURE_KEYS, d->keys = f->keys;
    memset(f->digest, 0x5a, sizeof f->digest);
    d->has_digest = 1, d->digest = (ProtobufCBinaryData){sizeof f->digest, f->digest};
    d->has_promised_error = 1, d->promised_error = 1e-3;
    d->has_minimum = d->has_maximum = 1, d->minimum = -5, d->maximum = 5;
    d->has_output_minimum = d->has_output_maximum = 1, d->output_minimum = -6, d->output_maximum = 6;
    d->has_security_bits = 1, d->security_bits = 128;
}

uint8_t *model_fixture_pack(const model_fixture *f, size_t *size) {
    *size = ckksd__v1__model_description__get_packed_size(&f->description);
    uint8_t *bytes = malloc(*size + 1);
    if (!bytes) abort();
    ckksd__v1__model_description__pack(&f->description, bytes);
    return bytes;
}

client_model *model_fixture_model(const model_fixture *f) {
    client_model *model = NULL;
    size_t size;
    ckks_error err = {0};
    uint8_t *bytes = model_fixture_pack(f, &size);
    if (client_model_create(&model, bytes, size, NULL, NULL, &err) != CKKS_OK) {
        char text[512];
        ckks_assert_failed(ckks_error_print(&err, text, sizeof text), __FILE__, __LINE__, __func__);
    }
    free(bytes);
    return model;
}
