/* What `bench program` and `bench serve` run: a package, or a built-in chain of multiplications and
 * rotations.
 */
#include "client/ctl/bench.h"

#include <stdlib.h>

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

ckks_status bench_plan_open(bench_plan *out, const bench_options *options, ckks_error *err) {
    ckks_status rc;
    *out = (bench_plan){.name = options->package};
    if (options->package) {
        if ((rc = package_load(&out->package, options->package, options->common->allow_insecure, err)) ==
            CKKS_OK)
            out->plan = &out->package->plan;
        return rc;
    }
    chain *c = out->chain = calloc(1, sizeof *c);
    if (!c) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a program");
    if ((rc = chain_init(c, err)) != CKKS_OK) return rc;
    out->name = "chain of 4 squares and rotations, N = 2^13";
    out->plan = &c->plan;
    return CKKS_OK;
}

void bench_plan_close(bench_plan *p) {
    package_destroy(p->package);
    free(p->chain);
    *p = (bench_plan){0};
}
