/* C17: two devices, each with its rank's program; their typed sum is the answer of one device. */
#include "tests/support/program_fixture.h"

#include <stdlib.h>
#include <string.h>

typedef struct ranks_case {
    program_fixture f[2];
    test_program t[2];
    sample *a[2], *b[2];
} ranks_case;

static void setup(ranks_case *c, program_kind kind) {
    program_fixture_open(&c->f[0]);
    program_fixture_open_second(&c->f[1], &c->f[0]);
    for (uint64_t r = 0; r < 2; r++) {
        c->a[r] = sample_create(&c->f[r], 1 + 2 * r, NULL),
        c->b[r] = sample_create(&c->f[r], 2 + 2 * r, NULL);
        test_program_start(&c->t[r], &c->f[r], NULL, kind);
    }
}
static void teardown(ranks_case *c) {
    for (int r = 0; r < 2; r++) {
        test_program_fini(&c->t[r]);
        sample_destroy(c->a[r]), sample_destroy(c->b[r]);
    }
    program_fixture_close(&c->f[1]);
    program_fixture_close(&c->f[0]);
}

/* The same words as evaluator_add of both ranks' results on one device. */
static void add_on_one_device(ranks_case *c, uint64_t *sum, const value_signature *signature,
                              const uint64_t *x, const uint64_t *y) {
    program_fixture *f = &c->f[0];
    void *words[3];
    for (int i = 0; i < 3; i++)
        assert_ok(device_allocate(f->dev, &words[i], signature->bytes, MEMORY_RETAINED, NULL));
    assert_ok(device_copy_in(f->stream, words[0], x, signature->bytes, NULL));
    assert_ok(device_copy_in(f->stream, words[1], y, signature->bytes, NULL));
    kernel_poly poly[3];
    for (int i = 0; i < 3; i++)
        poly[i] = (kernel_poly){words[i], 2, signature->limb_count, {0, signature->limb_count, 0}};
    const kernel_binary_args args = {f->tables, poly[2], poly[0], poly[1]};
    assert_ok(device_launch(f->stream, KERNEL_ADD, &args, NULL));
    assert_ok(device_copy_out(f->stream, sum, words[2], signature->bytes, NULL));
    assert_ok(device_stream_synchronize(f->stream, NULL));
    for (int i = 0; i < 3; i++) device_free(f->dev, words[i]);
}

static void sum_of_two_ranks_equals_the_answer_of_one(void **state) {
    (void)state;
    ranks_case c;
    setup(&c, PROGRAM_MULTIPLY);
    graph_result ranks[2], sum;
    for (int r = 0; r < 2; r++) assert_ok(test_replay(&c.t[r], &ranks[r], c.a[r], c.b[r], NULL));
    assert_ok(graph_reduce(&sum, c.f[0].context, ranks, 2, NULL, NULL));
    assert_int_equal(sum.output_count, 2);
    assert_int_equal(sum.ownership, GRAPH_OUTPUT_OWNED);
    for (uint32_t i = 0; i < 2; i++) {
        const value_signature *s = &c.t[0].outputs[i];
        uint64_t *one = malloc(s->bytes);
        add_on_one_device(&c, one, s, ranks[0].outputs[i].words, ranks[1].outputs[i].words);
        assert_memory_equal(sum.outputs[i].words, one, s->bytes);
        free(one);
        double actual[FIXTURE_SLOTS], expected[FIXTURE_SLOTS], part[FIXTURE_SLOTS];
        test_expected(&c.t[0], expected, i, c.a[0], c.b[0]);
        test_expected(&c.t[1], part, i, c.a[1], c.b[1]);
        for (uint32_t k = 0; k < FIXTURE_SLOTS; k++) expected[k] += part[k];
        fixture_decrypt(&c.f[0], actual, sum.outputs[i].words, s, NULL);
        assert_close(actual, expected);
    }
    /* the ranks' own results are as they were, and may go before the sum */
    for (int r = 0; r < 2; r++) {
        assert_result(&c.t[r], &ranks[r], c.a[r], c.b[r]);
        graph_result_release(&ranks[r]);
    }
    assert_true(sum.outputs[0].words[0] < c.f[0].params->prime[0]);
    graph_result_release(&sum);
    teardown(&c);
}

/* Words at the ends of their range: 0 and q - 1 in every pairing with 0, 1 and q - 1. */
static void sums_wrap_at_each_prime(void **state) {
    (void)state;
    ranks_case c;
    setup(&c, PROGRAM_ADD);
    const ckks_params *params = c.f[0].params;
    graph_result ranks[2], sum;
    for (int r = 0; r < 2; r++) assert_ok(test_replay(&c.t[r], &ranks[r], c.a[r], c.b[r], NULL));
    for (uint32_t limb = 0; limb <= FIXTURE_LEVEL; limb++) {
        const uint64_t q = params->prime[limb], edge[4] = {0, 1, q - 2, q - 1};
        for (uint32_t k = 0; k < 16; k++) {
            ranks[0].outputs[0].words[limb * c.f[0].n + k] = edge[k / 4];
            ranks[1].outputs[0].words[limb * c.f[0].n + k] = edge[k % 4];
        }
    }
    assert_ok(graph_reduce(&sum, c.f[0].context, ranks, 2, NULL, NULL));
    for (uint32_t limb = 0; limb <= FIXTURE_LEVEL; limb++) {
        const uint64_t q = params->prime[limb], edge[4] = {0, 1, q - 2, q - 1};
        for (uint32_t k = 0; k < 16; k++)
            assert_int_equal(sum.outputs[0].words[limb * c.f[0].n + k], (edge[k / 4] + edge[k % 4]) % q);
    }
    for (int r = 0; r < 2; r++) graph_result_release(&ranks[r]);
    graph_result_release(&sum);
    teardown(&c);
}

/* Both shares on one device, or one on each: the same words. */
static void sum_does_not_depend_on_which_device_ran_a_rank(void **state) {
    (void)state;
    ranks_case c;
    setup(&c, PROGRAM_ADD);
    sample there_a = *c.a[0], there_b = *c.b[0]; /* the same ciphertexts, for the other device */
    there_a.signature.device = there_b.signature.device = device_id(c.f[1].dev);
    graph_result spread[2], single[2], spread_sum, single_sum;
    assert_ok(test_replay(&c.t[0], &spread[0], c.a[0], c.b[0], NULL));
    assert_ok(test_replay(&c.t[1], &spread[1], &there_a, &there_b, NULL));
    for (int r = 0; r < 2; r++) assert_ok(test_replay(&c.t[0], &single[r], c.a[0], c.b[0], NULL));
    assert_ok(graph_reduce(&spread_sum, c.f[0].context, spread, 2, NULL, NULL));
    assert_ok(graph_reduce(&single_sum, c.f[0].context, single, 2, NULL, NULL));
    assert_memory_equal(spread_sum.outputs[0].words, single_sum.outputs[0].words, c.t[0].outputs[0].bytes);
    for (int r = 0; r < 2; r++) graph_result_release(&spread[r]), graph_result_release(&single[r]);
    graph_result_release(&spread_sum), graph_result_release(&single_sum);
    teardown(&c);
}

static void layout_mismatch_is_refused_on_every_rank_before_anything_moves(void **state) {
    (void)state;
    ranks_case c;
    setup(&c, PROGRAM_MULTIPLY);
    test_program other;
    test_program_start(&other, &c.f[1], NULL, PROGRAM_ROTATE);
    graph_result good, shorter, borrowed, sum = {0};
    graph_handle handle;
    assert_ok(test_replay(&c.t[0], &good, c.a[0], c.b[0], NULL));
    assert_ok(test_replay(&other, &shorter, c.a[1], NULL, NULL));
    graph_result scaled = good; /* a view with another scale */
    ckks_value outputs[2] = {good.outputs[0], good.outputs[1]};
    outputs[1].signature.scale *= 2;
    scaled.outputs = outputs;
    assert_ok(test_copy(&c.t[1], &handle, c.a[1], c.b[1], NULL));
    assert_ok(graph_program_replay_prepared(c.t[1].program, &borrowed, handle, GRAPH_OUTPUT_BORROWED, NULL));
    const struct {
        graph_result bad;
        ckks_status expected;
        const char *field;
    } cases[] = {
        {shorter, CKKS_SIGNATURE_MISMATCH, "rank 1"},
        {scaled, CKKS_SIGNATURE_MISMATCH, "rank 1, output 1, scale"},
        {borrowed, CKKS_INVALID_ARGUMENT, "rank 1"},
        {{0}, CKKS_INVALID_ARGUMENT, "rank 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const graph_result ranks[2] = {good, cases[i].bad};
        ckks_error each[2] = {{0}}, err = {0};
        assert_status(graph_reduce(&sum, c.f[0].context, ranks, 2, each, &err), cases[i].expected);
        assert_null(sum.internal);
        assert_string_equal(err.field, cases[i].field);
        for (int r = 0; r < 2; r++) {
            assert_int_equal(each[r].code, cases[i].expected);
            assert_string_equal(each[r].message, err.message);
        }
        assert_result(&c.t[0], &good, c.a[0], c.b[0]);
    }
    /* all alike, and none of them what its shape takes */
    outputs[1] = good.outputs[1];
    outputs[0].signature.bytes += 8;
    const graph_result longer[2] = {scaled, scaled};
    ckks_error too_long = {0};
    assert_status(graph_reduce(&sum, c.f[0].context, longer, 2, NULL, &too_long), CKKS_SIGNATURE_MISMATCH);
    assert_string_equal(too_long.field, "rank 0");
    ckks_context *foreign = fixture_context(10, FIXTURE_LEVEL + 2, 1, 1);
    assert_status(graph_reduce(&sum, foreign, &good, 1, NULL, NULL), CKKS_PARAMS_MISMATCH);
    assert_status(graph_reduce(&sum, c.f[0].context, &good, 0, NULL, NULL), CKKS_INVALID_ARGUMENT);
    context_destroy(foreign);
    graph_result_release(&good), graph_result_release(&shorter), graph_result_release(&borrowed);
    test_program_fini(&other);
    teardown(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sum_of_two_ranks_equals_the_answer_of_one),
        cmocka_unit_test(sums_wrap_at_each_prime),
        cmocka_unit_test(sum_does_not_depend_on_which_device_ran_a_rank),
        cmocka_unit_test(layout_mismatch_is_refused_on_every_rank_before_anything_moves),
    };
    return program_suite("C17 ranks", tests);
}
