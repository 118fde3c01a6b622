/* What a lying server says, and how the client's gate answers. */
#include "proto/package.h"

#include "kernels/base/bytes.h"
#include "proto/packing.h"
#include "tests/support/alloc_fault.h"
#include "tests/support/model_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const description_limits defaults = {0};

static void an_honest_description_passes(void **state) {
    (void)state;
    model_fixture f;
    ckks_error err = {0};
    model_fixture_init(&f);
    if (description_check(&f.description, &defaults, &err) != CKKS_OK)
        fail_msg("%s: %s", err.field, err.message);
    /* all that is optional left out */
    f.description.n_preprocess = f.description.n_postprocess = 0;
    f.description.has_minimum = f.description.has_maximum = 0;
    f.description.has_output_minimum = f.description.has_output_maximum = 0;
    f.description.has_promised_error = f.description.has_digest = f.description.has_security_bits = 0;
    f.description.version = NULL;
    assert_int_equal(description_check(&f.description, &defaults, NULL), CKKS_OK);
    /* columns given by the shape instead */
    static uint32_t shape[] = {2, 2};
    f.description.n_columns = 0;
    f.description.n_input_shape = 2, f.description.input_shape = shape;
    assert_int_equal(description_check(&f.description, &defaults, NULL), CKKS_OK);
    f.description.n_input_shape = 0;
    assert_int_equal(description_check(&f.description, &defaults, NULL), CKKS_OK);
}

typedef Ckksd__V1__ModelDescription description;
#define LIE(name) static void name(description *d)

LIE(no_name) {
    d->name = NULL;
}
LIE(name_moves_the_cursor) {
    d->name = (char *)(uintptr_t) "model\033[2J";
}
LIE(name_of_a_megabyte) {
    static char text[1 << 20];
    memset(text, 'a', sizeof text - 1);
    d->name = text;
}
LIE(version_with_newline) {
    d->version = (char *)(uintptr_t) "1\n2";
}
LIE(no_parameters) {
    d->parameters = NULL;
}
LIE(parameter_id) {
    d->parameters->id.data[0] ^= 1;
}
LIE(security_bits) {
    d->security_bits = 256;
}
LIE(depth) {
    d->has_depth = 1, d->depth = 2;
}
LIE(no_inputs) {
    d->n_inputs = 0;
}
LIE(no_outputs) {
    d->n_outputs = 0;
}
LIE(input_limbs) {
    d->inputs[0]->limb_count = 3;
}
LIE(input_of_three_components) {
    d->inputs[0]->component_count = 3;
}
LIE(input_in_coefficients) {
    d->inputs[0]->domain = 2;
}
LIE(input_over_qp) {
    d->inputs[0]->basis = 2;
}
LIE(input_plaintext) {
    d->inputs[0]->kind = 2;
}
LIE(input_scale) {
    d->inputs[0]->scale_bits = UINT64_C(0x7ff0000000000000);
}
LIE(request_of_many_gigabytes) {
    d->inputs[0]->batch_count = 65536;
}
LIE(keys_100000) {
    d->n_keys = 100000;
}
LIE(key_bytes_short) {
    d->key_bytes -= 1;
}
LIE(key_bytes_absent) {
    d->has_key_bytes = 0;
}
LIE(key_element_even) {
    d->keys[1]->galois_element = 4;
}
LIE(key_level) {
    d->keys[1]->level = 2;
}
LIE(key_twice) {
    d->keys[0] = d->keys[1];
}
LIE(column_without_name) {
    d->columns[2]->name = NULL;
}
LIE(column_turns_text_around) {
    static char name[] = {'a', (char)0xe2, (char)0x80, (char)0xae, 'b', 0}; /* U+202E */
    d->columns[2]->name = name;
}
LIE(column_is_no_utf8) {
    d->columns[2]->name = (char *)(uintptr_t) "gr\xf6\xdf"
                                              "e";
}
LIE(label_with_an_eight_bit_escape) {
    static char csi[] = {(char)0xc2, (char)0x9b, '2', 'J', 0}, good[] = "gr\xc3\xb6\xc3\x9f"
                                                                        "er \xf0\x9f\x90\x80";
    static char *names[] = {good, csi};
    for (size_t i = 0; i < d->n_postprocess; i++)
        if (d->postprocess[i]->kind == 5) {
            d->postprocess[i]->labels = names;
            return;
        }
    fail_msg("the fixture has no labels");
}
LIE(column_twice) {
    d->columns[2]->name = d->columns[0]->name;
}
LIE(column_kind) {
    d->columns[2]->kind = 3;
}
LIE(column_categories_on_numbers) {
    static char *names[] = {(char *)(uintptr_t) "x"};
    d->columns[2]->n_categories = 1, d->columns[2]->categories = names;
}
LIE(column_without_categories) {
    d->columns[2]->kind = 2;
}
LIE(column_range_nan) {
    d->columns[2]->minimum = NAN;
}
LIE(column_range_reversed) {
    d->columns[2]->minimum = 11;
}
LIE(one_column_too_few) {
    d->n_columns = 3;
}
LIE(shape_of_zero) {
    static uint32_t shape[] = {4, 0};
    d->n_columns = 0, d->n_input_shape = 2, d->input_shape = shape;
}
LIE(shape_that_overflows) {
    static uint32_t shape[] = {0x10000, 0x10000, 0x10000, 0x10000, 4};
    d->n_columns = 0, d->n_input_shape = 5, d->input_shape = shape;
}
LIE(shape_of_many_axes) {
    static uint32_t shape[] = {4, 1, 1, 1, 1, 1, 1, 1, 1};
    d->n_columns = 0, d->n_input_shape = 9, d->input_shape = shape;
}
LIE(shape_unlike_columns) {
    static uint32_t shape[] = {5};
    d->n_input_shape = 1, d->input_shape = shape;
}
LIE(step_unknown) {
    d->preprocess[0]->kind = 9;
}
LIE(step_offsets_too_few) {
    d->preprocess[0]->n_offset = 3;
}
LIE(step_scale_nan) {
    d->preprocess[0]->scale[2] = NAN;
}
LIE(select_out_of_range) {
    static uint32_t index[] = {0, 1, 2, 4};
    d->preprocess[0]->kind = 5;
    d->preprocess[0]->n_index = 4, d->preprocess[0]->index = index;
}
LIE(select_nothing) {
    d->preprocess[0]->kind = 5;
}
LIE(one_hot_out_of_range) {
    static double codes[] = {0, 1};
    d->preprocess[0]->kind = 2;
    d->preprocess[0]->has_column = 1, d->preprocess[0]->column = 4;
    d->preprocess[0]->n_values = 2, d->preprocess[0]->values = codes;
}
LIE(one_hot_widens_past_the_layout) {
    static double codes[] = {0, 1};
    d->preprocess[0]->kind = 2;
    d->preprocess[0]->has_column = 1, d->preprocess[0]->column = 3;
    d->preprocess[0]->n_values = 2, d->preprocess[0]->values = codes;
}
LIE(normaliser_unknown) {
    d->preprocess[0]->kind = 4, d->preprocess[0]->norm = 4;
}
LIE(no_input_layout) {
    d->input_layout = NULL;
}
LIE(layout_kind) {
    d->input_layout->kind = 3;
}
LIE(layout_of_no_elements) {
    d->input_layout->element_count = 0;
}
LIE(layout_of_4_billion_elements) {
    d->input_layout->element_count = UINT32_MAX;
}
LIE(layout_slots_not_a_power_of_two) {
    d->input_layout->slot_count = 6;
}
LIE(layout_slots_too_many) {
    d->input_layout->slot_count = 4096;
}
LIE(layout_slot_out_of_range) {
    d->input_layout->slot[3] = 4;
}
LIE(layout_input_out_of_range) {
    static uint32_t places[] = {0, 0, 1, 0};
    d->input_layout->input = places;
}
LIE(layout_slots_overlap) {
    static uint32_t slots[] = {0, 1, 2, 1};
    d->input_layout->slot = slots;
}
LIE(layout_lists_short) {
    d->input_layout->n_slot = 3;
}
LIE(layout_samples) {
    d->input_layout->has_sample_count_max = 1, d->input_layout->sample_count_max = 5;
}
LIE(throughput_without_ciphertexts) {
    d->input_layout->kind = 2;
}
LIE(no_output_layout) {
    d->output_layout = NULL;
}
LIE(output_slot_out_of_range) {
    static uint32_t slots[] = {0, 4};
    d->output_layout->slot = slots;
}
LIE(output_value_out_of_range) {
    static uint32_t values[] = {0, 1};
    d->output_layout->output = values;
}
LIE(outputs_overlap) {
    static uint32_t slots[] = {1, 1};
    d->output_layout->slot = slots;
}
LIE(output_lists_short) {
    d->output_layout->n_output = 1;
}
LIE(post_unknown) {
    d->postprocess[0]->kind = 13;
}
LIE(labels_too_few) {
    d->postprocess[1]->n_labels = 1;
}
LIE(label_moves_the_cursor) {
    d->postprocess[1]->labels[1] = (char *)(uintptr_t) "\r";
}
LIE(binary_of_two_scores) {
    d->postprocess[0]->kind = 6;
}
LIE(threshold_nan) {
    d->postprocess[0]->has_threshold = 1, d->postprocess[0]->threshold = NAN;
}
LIE(post_affine_width) {
    static double three[3];
    d->postprocess[0]->kind = 1, d->postprocess[0]->n_scale = 3, d->postprocess[0]->scale = three;
}
LIE(range_nan) {
    d->maximum = NAN;
}
LIE(range_reversed) {
    d->minimum = 6;
}
LIE(output_range_infinite) {
    d->output_minimum = -INFINITY;
}
LIE(promise_negative) {
    d->promised_error = -1;
}
LIE(promise_nan) {
    d->promised_error = NAN;
}
LIE(digest_short) {
    d->digest.len = 31;
}

static void each_lie_is_refused_by_name(void **state) {
    (void)state;
    static const struct {
        void (*lie)(description *);
        const char *field;
    } table[] = {
        {no_name, "name"},
        {name_moves_the_cursor, "name"},
        {name_of_a_megabyte, "name"},
        {version_with_newline, "version"},
        {no_parameters, "parameters"},
        {parameter_id, "parameters.id"},
        {security_bits, "security_bits"},
        {depth, "depth"},
        {no_inputs, "inputs"},
        {no_outputs, "outputs"},
        {input_limbs, "inputs[0].limb_count"},
        {input_of_three_components, "inputs[0].component_count"},
        {input_in_coefficients, "inputs[0].domain"},
        {input_over_qp, "inputs[0].basis"},
        {input_plaintext, "inputs[0].kind"},
        {input_scale, "inputs[0].scale"},
        {request_of_many_gigabytes, "inputs[0].bytes"},
        {keys_100000, "keys"},
        {key_bytes_short, "key_bytes"},
        {key_bytes_absent, "key_bytes"},
        {key_element_even, "keys.galois_element"},
        {key_level, "keys.level"},
        {key_twice, "keys"},
        {column_turns_text_around, "columns.name"},
        {column_is_no_utf8, "columns.name"},
        {label_with_an_eight_bit_escape, "postprocess.labels"},
        {column_without_name, "columns.name"},
        {column_twice, "columns.name"},
        {column_kind, "columns.kind"},
        {column_categories_on_numbers, "columns.categories"},
        {column_without_categories, "columns.categories"},
        {column_range_nan, "columns.minimum"},
        {column_range_reversed, "columns.minimum"},
        {one_column_too_few, "preprocess.offset"},
        {shape_of_zero, "input_shape"},
        {shape_that_overflows, "input_shape"},
        {shape_of_many_axes, "input_shape"},
        {shape_unlike_columns, "columns"},
        {step_unknown, "preprocess.kind"},
        {step_offsets_too_few, "preprocess.offset"},
        {step_scale_nan, "preprocess.scale"},
        {select_out_of_range, "preprocess.index"},
        {select_nothing, "preprocess.index"},
        {one_hot_out_of_range, "preprocess.column"},
        {one_hot_widens_past_the_layout, "input_layout"},
        {normaliser_unknown, "preprocess.norm"},
        {no_input_layout, "input_layout"},
        {layout_kind, "input_layout"},
        {layout_of_no_elements, "input_layout"},
        {layout_of_4_billion_elements, "input_layout"},
        {layout_slots_not_a_power_of_two, "input_layout"},
        {layout_slots_too_many, "input_layout"},
        {layout_slot_out_of_range, "input_layout"},
        {layout_input_out_of_range, "input_layout"},
        {layout_slots_overlap, "input_layout"},
        {layout_lists_short, "input_layout"},
        {layout_samples, "input_layout"},
        {throughput_without_ciphertexts, "input_layout"},
        {no_output_layout, "output_layout"},
        {output_slot_out_of_range, "output_layout"},
        {output_value_out_of_range, "output_layout"},
        {outputs_overlap, "output_layout"},
        {output_lists_short, "output_layout"},
        {post_unknown, "postprocess.kind"},
        {labels_too_few, "postprocess.labels"},
        {label_moves_the_cursor, "postprocess.labels"},
        {binary_of_two_scores, "postprocess"},
        {threshold_nan, "postprocess.threshold"},
        {post_affine_width, "postprocess.scale"},
        {range_nan, "minimum"},
        {range_reversed, "minimum"},
        {output_range_infinite, "output_minimum"},
        {promise_negative, "promised_error"},
        {promise_nan, "promised_error"},
        {digest_short, "digest"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        model_fixture f;
        ckks_error err = {0};
        model_fixture_init(&f);
        table[i].lie(&f.description);
        const ckks_status rc = description_check(&f.description, &defaults, &err);
        if (rc != CKKS_UNTRUSTED_SERVER || strcmp(err.field, table[i].field) != 0)
            print_message("entry %zu: %s: %s: %s\n", i, ckks_status_name(rc), err.field, err.message);
        assert_int_equal(rc, CKKS_UNTRUSTED_SERVER);
        assert_string_equal(err.field, table[i].field);
        assert_int_not_equal(description_validate(&f.description, &defaults, NULL), CKKS_UNTRUSTED_SERVER);
    }
}

/* Parameters over the security table, everything else consistent. */
static void make_weak(model_fixture *f) {
    static const uint32_t q_bits[] = {45, 45, 45}, p_bits[] = {45};
    const key_requirement keys[] = {{KEY_RELINEARISATION, 0, 1}, {KEY_GALOIS, 5, 1}};
    assert_int_equal(params_generate(&f->params, 12, q_bits, 3, p_bits, 1, 1, NULL), CKKS_OK);
    assert_int_equal(params_security_bits(&f->params), 0);
    params_to_message(&f->parameters, &f->params);
    assert_true(packing_key_set_bytes(&f->description.key_bytes, &f->params, keys, 2));
    f->description.security_bits = 0;
}

static void weak_parameters_are_refused_unless_allowed_and_admitted(void **state) {
    (void)state;
    const description_limits allowed = {.allow_insecure = true};
    model_fixture f;
    model_fixture_init(&f);
    make_weak(&f);
    assert_int_equal(description_check(&f.description, &defaults, NULL), CKKS_INSECURE_PARAMETERS);
    assert_int_equal(description_check(&f.description, &allowed, NULL), CKKS_INSECURE_PARAMETERS);
    f.description.has_insecure = 1, f.description.insecure = 1;
    assert_int_equal(description_check(&f.description, &defaults, NULL), CKKS_INSECURE_PARAMETERS);
    assert_int_equal(description_check(&f.description, &allowed, NULL), CKKS_OK);
}

static void the_client_s_own_limits_hold(void **state) {
    (void)state;
    model_fixture f;
    ckks_error err = {0};
    model_fixture_init(&f);
    const description_limits one_key = {.key_count_max = 1},
                             few_bytes = {.key_bytes_max = f.description.key_bytes - 1},
                             exact = {.key_count_max = 2, .key_bytes_max = f.description.key_bytes};
    assert_int_equal(description_check(&f.description, &one_key, &err), CKKS_UNTRUSTED_SERVER);
    assert_string_equal(err.field, "keys");
    assert_int_equal(description_check(&f.description, &few_bytes, NULL), CKKS_UNTRUSTED_SERVER);
    assert_int_equal(description_check(&f.description, &exact, NULL), CKKS_OK);
}

static void no_description_is_refused(void **state) {
    (void)state;
    assert_int_equal(description_check(NULL, &defaults, NULL), CKKS_UNTRUSTED_SERVER);
}

static void checking_survives_every_failed_allocation(void **state) {
    (void)state;
    model_fixture f;
    model_fixture_init(&f);
    for (uint64_t n = 1;; n++) {
        alloc_fault_set(n);
        const ckks_status rc = description_check(&f.description, &defaults, NULL);
        const bool was_hit = alloc_fault_calls() >= n;
        alloc_fault_set(0);
        assert_int_equal(rc, was_hit ? CKKS_RESOURCE_EXHAUSTED : CKKS_OK);
        if (!was_hit) break;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_honest_description_passes),
        cmocka_unit_test(each_lie_is_refused_by_name),
        cmocka_unit_test(weak_parameters_are_refused_unless_allowed_and_admitted),
        cmocka_unit_test(the_client_s_own_limits_hold),
        cmocka_unit_test(no_description_is_refused),
        cmocka_unit_test(checking_survives_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
