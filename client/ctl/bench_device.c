/* Rows of `ckksctl bench ops` that run on the device: transforms, products, key switches. */
#include "client/ctl/bench_rows.h"

#include "kernels/scheme/encoder.h"
#include "kernels/scheme/internal.h"

#include <stdlib.h>
#include <string.h>

#define HOISTED_COUNT 8u

static uint32_t mask(const bench_run *r) {
    return params_slot_count_max(r->rig.params) - 1;
}

static void take_input(bench_run *r, const bench_sample *sample) {
    r->now.inputs[r->now.input_count++] = sample;
}
static void give_output(bench_run *r, value_signature signature) {
    r->now.outputs[r->now.output_count++] = signature;
}

/* ---- forward transform: of component 0, as if it were coefficients ---- */

static ckks_status ntt_open(bench_run *r, ckks_error *err) {
    (void)err;
    value_signature s = bench_output(r, r->level, r->scale);
    s.kind = VALUE_PLAINTEXT;
    s.component_count = 1;
    s.bytes /= 2;
    take_input(r, &r->a);
    give_output(r, s);
    return CKKS_OK;
}

static ckks_status ntt_record(bench_run *r, graph_region *region, const ckks_value *inputs, ckks_error *err) {
    const uint32_t limbs = r->level + 1;
    const kernel_basis basis = {0, limbs, 0};
    const kernel_unary_args arguments = {.tables = r->rig.tables,
                                         .out = {region->outputs[0].words, 1, limbs, basis},
                                         .a = {inputs[0].words, 1, limbs, basis}};
    const ckks_status rc = device_launch(region->evaluator->stream, KERNEL_NTT_FORWARD, &arguments, err);
    return rc == CKKS_OK ? graph_region_output(region, 0, &region->outputs[0], err) : rc;
}

static ckks_status ntt_check(bench_run *r, const uint64_t *words, ckks_error *err) {
    const size_t n = params_n(r->rig.params);
    uint64_t *limb;
    ckks_status rc = bench_words(&limb, n, err);
    for (uint32_t i = 0; i <= r->level && rc == CKKS_OK; i++) {
        ntt_forward_scalar(limb, r->a.words + i * n, context_ntt(r->rig.context, i));
        if (memcmp(limb, words + i * n, n * sizeof *limb) != 0)
            rc = ckks_error_set(err, CKKS_INTERNAL, r->row->name, "limb %u is wrong", i);
    }
    free(limb);
    return rc;
}

/* ---- products and rescaling ---- */

static double squared_scale(const bench_run *r) {
    return r->scale * r->scale;
}
static double rescaled(const bench_run *r, double scale) {
    return scale / (double)r->rig.params->prime[r->level];
}

static double product_expected(const bench_run *r, uint32_t index, uint32_t slot) {
    (void)index;
    return r->a.slots[slot] * r->b.slots[slot];
}

static ckks_status plain_open(bench_run *r, ckks_error *err) {
    const uint64_t count = (uint64_t)(r->level + 1) * params_n(r->rig.params);
    ckks_status rc = bench_words(&r->now.words[0], (size_t)count, err);
    if (rc == CKKS_OK)
        rc = encoder_encode(r->now.words[0], r->rig.context, r->b.slots, NULL, mask(r) + 1, r->level, false,
                            r->scale, err);
    if (rc == CKKS_OK) rc = bench_device_words(r, count, err);
    if (rc != CKKS_OK) return rc;
    r->now.plain = (ckks_value){r->a.signature, r->now.on_device};
    r->now.plain.signature.kind = VALUE_PLAINTEXT;
    r->now.plain.signature.component_count = 1;
    r->now.plain.signature.bytes = count * sizeof(uint64_t);
    take_input(r, &r->a);
    give_output(r, bench_output(r, r->level - 1, rescaled(r, squared_scale(r))));
    rc = device_copy_in(r->rig.stream, r->now.on_device, r->now.words[0], count * sizeof(uint64_t), err);
    return rc == CKKS_OK ? device_stream_synchronize(r->rig.stream, err) : rc;
}
static ckks_status plain_record(bench_run *r, graph_region *region, const ckks_value *inputs,
                                ckks_error *err) {
    evaluator *ev = region->evaluator;
    ckks_value out = {0};
    evaluator_place(ev, region->outputs, 1);
    ckks_status rc = evaluator_multiply_plain_rescale(ev, &out, &inputs[0], &r->now.plain, err);
    if (rc == CKKS_OK) rc = graph_region_output(region, 0, &out, err);
    evaluator_release(ev, &out);
    return rc;
}

/* at the scale that the rescale takes back to the set's */
static ckks_status rescale_open(bench_run *r, ckks_error *err) {
    const double scale = r->scale * (double)r->rig.params->prime[r->level];
    take_input(r, &r->now.own);
    give_output(r, bench_output(r, r->level - 1, rescaled(r, scale)));
    return bench_sample_make(&r->now.own, &r->rig, r->level, scale, 3, err);
}
static ckks_status rescale_record(bench_run *r, graph_region *region, const ckks_value *inputs,
                                  ckks_error *err) {
    (void)r;
    ckks_value out = {0};
    evaluator_place(region->evaluator, region->outputs, 1);
    ckks_status rc = evaluator_rescale(region->evaluator, &out, &inputs[0], err);
    if (rc == CKKS_OK) rc = graph_region_output(region, 0, &out, err);
    evaluator_release(region->evaluator, &out);
    return rc;
}
static double own_expected(const bench_run *r, uint32_t index, uint32_t slot) {
    (void)index;
    return r->now.own.slots[slot];
}

static ckks_status multiply(graph_region *region, const ckks_value *inputs, bool with_rescale,
                            ckks_error *err) {
    evaluator *ev = region->evaluator;
    ckks_value product = {0}, out = {0};
    ckks_status rc = evaluator_multiply(ev, &product, &inputs[0], &inputs[1], err);
    evaluator_place(ev, region->outputs, 1);
    if (rc == CKKS_OK) rc = evaluator_relinearise(ev, &out, &product, 0, with_rescale, err);
    if (rc == CKKS_OK) rc = graph_region_output(region, 0, &out, err);
    evaluator_release(ev, &product);
    evaluator_release(ev, &out);
    return rc;
}
static ckks_status multiply_open(bench_run *r, ckks_error *err) {
    (void)err;
    take_input(r, &r->a), take_input(r, &r->b);
    give_output(r, bench_output(r, r->level - 1, rescaled(r, squared_scale(r))));
    return CKKS_OK;
}
static ckks_status multiply_record(bench_run *r, graph_region *region, const ckks_value *inputs,
                                   ckks_error *err) {
    (void)r;
    return multiply(region, inputs, true, err);
}
static ckks_status unscaled_open(bench_run *r, ckks_error *err) {
    (void)err;
    take_input(r, &r->a), take_input(r, &r->b);
    give_output(r, bench_output(r, r->level, squared_scale(r)));
    return CKKS_OK;
}
static ckks_status unscaled_record(bench_run *r, graph_region *region, const ckks_value *inputs,
                                   ckks_error *err) {
    (void)r;
    return multiply(region, inputs, false, err);
}

/* ---- rotations ---- */

static uint32_t one_step(int64_t *steps) {
    steps[0] = 1;
    return 1;
}
static uint32_t hoisted_steps(int64_t *steps) {
    for (uint32_t i = 0; i < HOISTED_COUNT; i++) steps[i] = i + 1;
    return HOISTED_COUNT;
}

static ckks_status rotate_open(bench_run *r, ckks_error *err) {
    (void)err;
    take_input(r, &r->a);
    give_output(r, bench_output(r, r->level, r->scale));
    return CKKS_OK;
}
static ckks_status rotate_record(bench_run *r, graph_region *region, const ckks_value *inputs,
                                 ckks_error *err) {
    ckks_value out = {0};
    evaluator_place(region->evaluator, region->outputs, 1);
    ckks_status rc = evaluator_apply_galois(region->evaluator, &out, &inputs[0], bench_step(r, 1), err);
    if (rc == CKKS_OK) rc = graph_region_output(region, 0, &out, err);
    evaluator_release(region->evaluator, &out);
    return rc;
}
/* output `index` is rotated by index + 1 */
static double rotate_expected(const bench_run *r, uint32_t index, uint32_t slot) {
    return r->a.slots[(slot + index + 1) & mask(r)];
}
static double sum_expected(const bench_run *r, uint32_t index, uint32_t slot) {
    double sum = 0;
    (void)index;
    for (uint32_t k = 0; k < HOISTED_COUNT; k++) sum += rotate_expected(r, k, slot);
    return sum;
}

static ckks_status hoisted_create(bench_run *r, ckks_error *err) {
    galois_step steps[HOISTED_COUNT];
    for (uint32_t i = 0; i < HOISTED_COUNT; i++) steps[i] = bench_step(r, i + 1);
    return hoisted_rotations_create(&r->now.hoisted, r->rig.dev, r->rig.context, steps, HOISTED_COUNT, err);
}
static ckks_status hoisted_sum_open(bench_run *r, ckks_error *err) {
    take_input(r, &r->a);
    give_output(r, bench_output(r, r->level, r->scale));
    return hoisted_create(r, err);
}
static ckks_status hoisted_sum_record(bench_run *r, graph_region *region, const ckks_value *inputs,
                                      ckks_error *err) {
    evaluator *ev = region->evaluator;
    ckks_value sum = {0};
    evaluator_place(ev, region->outputs, 1);
    ckks_status rc = evaluator_sum_hoisted(ev, &sum, r->now.hoisted, &inputs[0], err);
    if (rc == CKKS_OK) rc = graph_region_output(region, 0, &sum, err);
    evaluator_release(ev, &sum);
    return rc;
}

static ckks_status hoisted_open(bench_run *r, ckks_error *err) {
    take_input(r, &r->a);
    for (uint32_t i = 0; i < HOISTED_COUNT; i++) give_output(r, bench_output(r, r->level, r->scale));
    return hoisted_create(r, err);
}
static ckks_status hoisted_record(bench_run *r, graph_region *region, const ckks_value *inputs,
                                  ckks_error *err) {
    evaluator *ev = region->evaluator;
    ckks_value rotated[HOISTED_COUNT] = {0};
    evaluator_place(ev, region->outputs, HOISTED_COUNT);
    ckks_status rc = evaluator_rotate_hoisted(ev, rotated, r->now.hoisted, &inputs[0], err);
    for (uint32_t i = 0; i < HOISTED_COUNT; i++) {
        if (rc == CKKS_OK) rc = graph_region_output(region, i, &rotated[i], err);
        evaluator_release(ev, &rotated[i]);
    }
    return rc;
}

const bench_row bench_device_rows[] = {
    {"forward NTT of one polynomial", .open = ntt_open, .record = ntt_record, .check_words = ntt_check},
    {"multiply by plaintext, rescale", .open = plain_open, .record = plain_record,
     .expected = product_expected},
    {"rescale", .open = rescale_open, .record = rescale_record, .expected = own_expected},
    {"multiply, relinearise, rescale", .needs_relinearisation = true, .open = multiply_open,
     .record = multiply_record, .expected = product_expected},
    {"multiply, relinearise", .needs_relinearisation = true, .open = unscaled_open, .record = unscaled_record,
     .expected = product_expected},
    {"rotate", .steps = one_step, .open = rotate_open, .record = rotate_record, .expected = rotate_expected},
    {"sum of 8 hoisted rotations", .steps = hoisted_steps, .open = hoisted_sum_open,
     .record = hoisted_sum_record, .expected = sum_expected},
    {"8 hoisted rotations", .steps = hoisted_steps, .open = hoisted_open, .record = hoisted_record,
     .expected = rotate_expected},
    {0},
};

/* ---- a row as programs ---- */

static ckks_status call(void *context, graph_region *region, const ckks_value *inputs, uint32_t input_count,
                        ckks_error *err) {
    bench_run *r = context;
    (void)input_count;
    return r->row->record(r, region, inputs, err);
}

ckks_status bench_replay_timed(uint64_t *ns, void *program, ckks_error *err) {
    graph_result result = {0};
    const ckks_status rc =
        graph_program_replay_prepared(program, &result, (graph_handle){0}, GRAPH_OUTPUT_BORROWED, err);
    *ns = result.replay_ns;
    graph_result_release(&result);
    return rc;
}

/* every output, and every entry of a batch */
static ckks_status check_results(bench_run *r, const graph_result *result, ckks_error *err) {
    const uint32_t slot_count = mask(r) + 1;
    ckks_status rc = CKKS_OK;
    if (r->row->check_words) return r->row->check_words(r, result->outputs[0].words, err);
    double *slots = malloc(slot_count * sizeof *slots), *expected = malloc(slot_count * sizeof *expected);
    if (!slots || !expected)
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a benchmark");
    for (uint32_t o = 0; o < result->output_count && rc == CKKS_OK; o++) {
        const value_signature *s = &result->outputs[o].signature;
        const size_t entry = (size_t)2 * s->limb_count * params_n(r->rig.params);
        for (uint32_t b = 0; b < s->batch_count && rc == CKKS_OK; b++) {
            for (uint32_t i = 0; i < slot_count; i++) expected[i] = r->row->expected(r, o + b, i);
            rc = bench_decrypt(r, slots, result->outputs[o].words + b * entry, s->limb_count - 1, s->scale,
                               err);
            if (rc == CKKS_OK) rc = bench_compare_slots(r, slots, expected, err);
        }
    }
    free(slots);
    free(expected);
    return rc;
}

static ckks_status program_open(graph_program **out, bench_run *r, graph_slot *slot,
                                const graph_program_config *config, ckks_error *err) {
    ckks_value examples[2];
    graph_input sources[2];
    graph_result result = {0};
    ckks_status rc;
    for (uint32_t i = 0; i < r->now.input_count; i++) {
        examples[i] = bench_sample_value(r->now.inputs[i]);
        sources[i] = bench_sample_input(r->now.inputs[i], &r->rig);
    }
    if ((rc = graph_program_create(out, slot, config, err)) != CKKS_OK) return rc;
    if ((rc = graph_program_capture(*out, 0, examples, r->rig.keys, err)) != CKKS_OK) return rc;
    rc = graph_program_replay(*out, &result, sources, r->now.input_count, r->rig.keys, GRAPH_OUTPUT_OWNED,
                              err);
    if (rc == CKKS_OK) rc = check_results(r, &result, err);
    graph_result_release(&result);
    return rc;
}

ckks_status bench_programs_open(bench_programs *out, bench_run *r, bool with_eager, ckks_error *err) {
    value_signature inputs[2];
    ckks_status rc;
    *out = (bench_programs){0};
    for (uint32_t i = 0; i < r->now.input_count; i++) inputs[i] = r->now.inputs[i]->signature;
    graph_program_config config = {.context = r->rig.context,
                                   .tables = r->rig.tables,
                                   .callable = call,
                                   .callable_context = r,
                                   .inputs = inputs,
                                   .input_count = r->now.input_count,
                                   .outputs = r->now.outputs,
                                   .output_count = r->now.output_count,
                                   .keys = r->rig.requirements,
                                   .key_count = r->rig.key_count};
    if ((rc = graph_plan_workspace(&out->memory, r->rig.dev, &config, err)) != CKKS_OK) return rc;
    config.workspace = out->memory;
    if ((rc = graph_slot_create(&out->slot, r->rig.dev, workspace_plan_bytes(out->memory), err)) != CKKS_OK)
        return rc;
    if ((rc = program_open(&out->recorded, r, out->slot, &config, err)) != CKKS_OK || !with_eager) return rc;
    config.execution_eager = true;
    return program_open(&out->eager, r, out->slot, &config, err);
}

void bench_programs_close(bench_programs *p) {
    graph_program_destroy(p->recorded);
    graph_program_destroy(p->eager);
    graph_slot_destroy(p->slot);
    workspace_plan_destroy(p->memory);
    *p = (bench_programs){0};
}
