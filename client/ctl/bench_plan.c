/*
 * What `bench program` and `bench serve` run: a package, one operation of a parameter set, or a built-in
 * chain of multiplications and rotations.
 */
#include "client/ctl/bench.h"
#include "client/ctl/bench_rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHAIN_DEPTH 4u
#define CHAIN_ROUND 4u /* operations of one round: square, relinearise, rotate, add */

/* x -> rotate(x^2) + x^2, CHAIN_DEPTH times, at N = 2^13. Scales by the evaluator's rule, so that they match
 * bit for bit. */
typedef struct chain {
    ckks_params params;
    plan_value values[1 + CHAIN_ROUND * CHAIN_DEPTH];
    plan_operation operations[CHAIN_ROUND * CHAIN_DEPTH];
    key_requirement keys[2];
    uint32_t output;
    plan plan;
} chain;

static const int32_t chain_step[1] = {1};

static ckks_status chain_init(chain *c, ckks_error *err) {
    static const uint32_t q_bits[] = {40, 30, 30, 30, 30}, p_bits[] = {50};
    ckks_status rc = params_generate(&c->params, 13, q_bits, CHAIN_DEPTH + 1, p_bits, 1, 1, err);
    if (rc != CKKS_OK) return rc;
    uint32_t at = 0, level = CHAIN_DEPTH;
    double scale = 0x1p30;
    c->values[0] = (plan_value){.level = level, .component_count = 2, .batch_count = 1, .scale = scale};
    for (uint32_t i = 0; i < CHAIN_DEPTH; i++) {
        plan_operation *o = &c->operations[CHAIN_ROUND * i];
        const double square = scale * scale, next = square / (double)c->params.prime[level];
        o[0] = (plan_operation){
            .kind = PLAN_SQUARE, .a = at, .first_output = at + 1, .output_count = 1, .source = "square"};
        c->values[at + 1] =
            (plan_value){.level = level, .component_count = 3, .batch_count = 1, .scale = square};
        o[1] = (plan_operation){.kind = PLAN_RELINEARISE,
                                .a = at + 1,
                                .first_output = at + 2,
                                .output_count = 1,
                                .with_rescale = true,
                                .source = "relinearise"};
        o[2] = (plan_operation){.kind = PLAN_ROTATE,
                                .a = at + 2,
                                .first_output = at + 3,
                                .output_count = 1,
                                .step_count = 1,
                                .steps = chain_step,
                                .source = "rotate"};
        o[3] = (plan_operation){.kind = PLAN_ADD,
                                .a = at + 2,
                                .b = at + 3,
                                .first_output = at + 4,
                                .output_count = 1,
                                .source = "add"};
        level--;
        for (uint32_t k = 2; k <= CHAIN_ROUND; k++)
            c->values[at + k] =
                (plan_value){.level = level, .component_count = 2, .batch_count = 1, .scale = next};
        scale = next;
        at += CHAIN_ROUND;
    }
    c->output = at;
    c->keys[0] = (key_requirement){KEY_RELINEARISATION, 0, CHAIN_DEPTH};
    c->keys[1] = (key_requirement){KEY_GALOIS, galois_element_rotate(13, 1), CHAIN_DEPTH - 1};
    c->plan = (plan){.params = &c->params,
                     .input_count = 1,
                     .value_count = 1 + CHAIN_ROUND * CHAIN_DEPTH,
                     .values = c->values,
                     .operation_count = CHAIN_ROUND * CHAIN_DEPTH,
                     .operations = c->operations,
                     .output_count = 1,
                     .outputs = &c->output,
                     .key_count = 2,
                     .keys = c->keys};
    return CKKS_OK;
}

/* ---- one operation ---- */

typedef struct single {
    ckks_params params;
    plan_value values[3];
    plan_operation operations[2];
    key_requirement key;
    uint32_t output;
    char name[160];
    plan plan;
} single;

static void single_rotate(single *o, uint32_t level, double scale) {
    o->operations[0] = (plan_operation){.kind = PLAN_ROTATE,
                                        .first_output = 1,
                                        .output_count = 1,
                                        .step_count = 1,
                                        .steps = chain_step,
                                        .source = "rotate"};
    o->values[1] = (plan_value){.level = level, .component_count = 2, .batch_count = 1, .scale = scale};
    o->key = (key_requirement){KEY_GALOIS, galois_element_rotate(o->params.log_n, 1), level};
    o->output = 1;
}

static void single_multiply(single *o, uint32_t level, double scale) {
    const double square = scale * scale;
    o->operations[0] =
        (plan_operation){.kind = PLAN_SQUARE, .first_output = 1, .output_count = 1, .source = "square"};
    o->operations[1] = (plan_operation){.kind = PLAN_RELINEARISE,
                                        .a = 1,
                                        .first_output = 2,
                                        .output_count = 1,
                                        .with_rescale = true,
                                        .source = "relinearise"};
    o->values[1] = (plan_value){.level = level, .component_count = 3, .batch_count = 1, .scale = square};
    o->values[2] = (plan_value){.level = level - 1,
                                .component_count = 2,
                                .batch_count = 1,
                                .scale = square / (double)o->params.prime[level]};
    o->key = (key_requirement){KEY_RELINEARISATION, 0, level};
    o->output = 2;
}

static ckks_status single_init(single *o, const bench_options *options, ckks_error *err) {
    const bench_set *set = bench_set_find(options->set);
    const bool is_rotate = options->row && strstr("rotate", options->row);
    if (!set)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "set", "no parameter set has \"%s\" in its name",
                              options->set);
    if (!is_rotate && (!options->row || !strstr("square, relinearise, rescale", options->row)))
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "row", "--row rotate or --row square");
    const ckks_status rc = bench_set_params(&o->params, set, err);
    if (rc != CKKS_OK) return rc;
    const uint32_t level = params_level_max(&o->params);
    const double scale = (double)(UINT64_C(1) << set->scale_bits);
    o->values[0] = (plan_value){.level = level, .component_count = 2, .batch_count = 1, .scale = scale};
    if (is_rotate)
        single_rotate(o, level, scale);
    else
        single_multiply(o, level, scale);
    o->plan = (plan){.params = &o->params,
                     .is_insecure = params_security_bits(&o->params) < 128,
                     .input_count = 1,
                     .value_count = o->output + 1,
                     .values = o->values,
                     .operation_count = o->output,
                     .operations = o->operations,
                     .output_count = 1,
                     .outputs = &o->output,
                     .key_count = 1,
                     .keys = &o->key};
    snprintf(o->name, sizeof o->name, "%s, %s", is_rotate ? "rotate" : "square, relinearise, rescale",
             set->name);
    return CKKS_OK;
}

ckks_status bench_plan_open(bench_plan *out, const bench_options *options, ckks_error *err) {
    ckks_status rc;
    *out = (bench_plan){.name = options->package};
    if (options->package) {
        if ((rc = package_load(&out->package, options->package, options->common->allow_insecure, err)) ==
            CKKS_OK)
            out->plan = &out->package->plan;
        return rc;
    }
    if (options->set) {
        single *o = out->built_in = calloc(1, sizeof *o);
        if (!o) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a program");
        if ((rc = single_init(o, options, err)) != CKKS_OK) return rc;
        out->name = o->name;
        out->plan = &o->plan;
        return CKKS_OK;
    }
    chain *c = out->built_in = calloc(1, sizeof *c);
    if (!c) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a program");
    if ((rc = chain_init(c, err)) != CKKS_OK) return rc;
    out->name = "chain of 4 squares and rotations, N = 2^13";
    out->plan = &c->plan;
    return CKKS_OK;
}

void bench_plan_close(bench_plan *p) {
    package_destroy(p->package);
    free(p->built_in);
    *p = (bench_plan){0};
}
