/*
 * Timings of single operations. Device operations are recorded programs, as the daemon runs them, timed on
 * the device; encoding, encryption and decryption are host functions. Every result of an operation is
 * decrypted and compared before it is timed: a fast wrong answer is no figure.
 */
#include "client/ctl/bench.h"

#include "client/lib/rpc_internal.h"
#include "kernels/scheme/encoder.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HOISTED_COUNT 8u
#define ROUNDS_MIN    5u
#define ROUNDS_MAX    2000u

typedef struct bench_set {
    const char *name;
    uint32_t log_n, q0_bits, q_bits, q_count, p_bits, p_count, digit_size, scale_bits;
    bool is_large; /* gigabytes of keys: on request */
} bench_set;

/* The menu that compilation chooses from, and the sizes that other libraries publish figures for (over the
 * security table: marked insecure, never offered for use). */
static const bench_set sets[] = {
    {"2^12 depth 1", 12, 38, 28, 2, 38, 1, 1, 28, false},
    {"2^13 depth 4", 13, 40, 30, 5, 50, 1, 1, 30, false},
    {"2^14 depth 8", 14, 50, 40, 9, 50, 1, 1, 40, false},
    {"2^14 depth 7, 2 primes a digit", 14, 50, 40, 8, 50, 2, 2, 40, false},
    {"2^15 depth 16", 15, 50, 40, 17, 50, 3, 3, 40, false},
    {"2^16 depth 34", 16, 50, 40, 35, 50, 6, 6, 40, true},
    {"2^14, 8 + 2 limbs, 4 digits", 14, 50, 50, 8, 50, 2, 2, 45, false},
    {"2^15, 16 + 4 limbs, 4 digits", 15, 50, 50, 16, 50, 4, 4, 45, true},
    {"2^16, 24 + 6 limbs, 4 digits", 16, 50, 50, 24, 50, 6, 6, 45, true},
};

typedef enum operation {
    OP_ENCODE,
    OP_ENCRYPT,
    OP_DECRYPT,
    OP_NTT,
    OP_MULTIPLY_PLAIN,
    OP_MULTIPLY,
    OP_ROTATE,
    OP_ROTATE_HOISTED,
    OP_COUNT
} operation;
static const char *const operation_names[OP_COUNT] = {"encode",
                                                      "encrypt",
                                                      "decrypt and decode",
                                                      "NTT of one ciphertext",
                                                      "multiply by plaintext, rescale",
                                                      "multiply, relinearise, rescale",
                                                      "rotate",
                                                      "sum of 8 hoisted rotations"};

typedef struct bench_run {
    const bench_options *options;
    const bench_set *set;
    bench_rig rig;
    bench_sample a, b;
    double scale;
    uint32_t level;
    uint64_t *plain_host;
    ckks_value plain; /* on the device: b's slots */
    hoisted_rotations *hoisted;
    operation op;
    json_writer *json;
    bench_earlier earlier;
    uint32_t worse; /* operations at least a tenth slower than before */
} bench_run;

typedef struct figure {
    double median_us, low_us, high_us;
    uint32_t rounds;
} figure;

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* rounds of `one`, which returns nanoseconds, until `seconds` are over */
static ckks_status measure(figure *out, const bench_run *r,
                           ckks_status (*one)(uint64_t *ns, void *context, ckks_error *err), void *context,
                           ckks_error *err) {
    double values[ROUNDS_MAX], total = 0;
    uint32_t count = 0;
    uint64_t ns = 0;
    ckks_status rc = one(&ns, context, err); /* warm */
    while (rc == CKKS_OK && count < ROUNDS_MAX && (count < ROUNDS_MIN || total < r->options->seconds * 1e6)) {
        const uint64_t begin = rpc_now_ns();
        if ((rc = one(&ns, context, err)) != CKKS_OK) break;
        values[count++] = (double)ns * 1e-3;
        total += (double)(rpc_now_ns() - begin) * 1e-3;
    }
    if (rc != CKKS_OK) return rc;
    qsort(values, count, sizeof *values, compare_doubles);
    *out = (figure){values[count / 2], values[count / 10], values[count - 1 - count / 10], count};
    return CKKS_OK;
}

/* ---- host operations ---- */

static ckks_status host_once(uint64_t *ns, void *context, ckks_error *err) {
    bench_run *r = context;
    const uint32_t slot_count = params_slot_count_max(r->rig.params);
    const size_t component = (size_t)(r->level + 1) * params_n(r->rig.params);
    uint8_t seed[SEED_BYTES];
    ckks_status rc;
    uint64_t *words = malloc(component * sizeof *words);
    double *slots = malloc(slot_count * sizeof *slots);
    if (!words || !slots) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a benchmark");
    } else {
        const uint64_t begin = rpc_now_ns();
        if (r->op == OP_ENCODE) {
            rc = encoder_encode(words, r->rig.context, r->a.slots, NULL, slot_count, r->level, false,
                                r->scale, err);
        } else if (r->op == OP_ENCRYPT) {
            rc = encrypt_symmetric(words, seed, r->rig.secret->key, r->plain_host, r->level, err);
        } else {
            rc = decrypt(words, r->rig.secret->key, r->a.words, 2, r->level, err);
            if (rc == CKKS_OK)
                rc = encoder_decode(slots, NULL, r->rig.context, words, slot_count, r->level, r->scale, err);
        }
        *ns = rpc_now_ns() - begin;
    }
    free(words);
    free(slots);
    return rc;
}

/* ---- device operations, as callables that a program records ---- */

static ckks_status hoisted_sum(ckks_value *out, evaluator *ev, const bench_run *r, const ckks_value *a,
                               ckks_error *err) {
    ckks_value rotated[HOISTED_COUNT] = {0}, sum = {0};
    ckks_status rc = evaluator_rotate_hoisted(ev, rotated, r->hoisted, a, err);
    if (rc != CKKS_OK) return rc;
    sum = rotated[0], rotated[0] = (ckks_value){0};
    for (uint32_t i = 1; i < HOISTED_COUNT; i++) {
        ckks_value next = {0};
        if (rc == CKKS_OK) rc = evaluator_add(ev, &next, &sum, &rotated[i], err);
        if (rc == CKKS_OK) rc = evaluator_release(ev, &sum);
        if (rc == CKKS_OK) sum = next;
        evaluator_release(ev, &rotated[i]);
    }
    *out = sum;
    return rc;
}

static ckks_status ntt(const graph_region *region, const bench_run *r, const ckks_value *a, ckks_error *err) {
    const uint32_t limbs = r->level + 1;
    const kernel_basis basis = {0, limbs, 0};
    const kernel_unary_args arguments = {.tables = r->rig.tables,
                                         .out = {region->outputs[0].words, 2, limbs, basis},
                                         .a = {a->words, 2, limbs, basis}};
    return device_launch(region->evaluator->stream, KERNEL_NTT_FORWARD, &arguments, err);
}

static ckks_status call(void *context, graph_region *region, const ckks_value *inputs, uint32_t input_count,
                        ckks_error *err) {
    const bench_run *r = context;
    evaluator *ev = region->evaluator;
    ckks_value product = {0}, out = {0};
    ckks_status rc;
    (void)input_count;
    if (r->op == OP_NTT) {
        if ((rc = ntt(region, r, &inputs[0], err)) != CKKS_OK) return rc;
        return graph_region_output(region, 0, &region->outputs[0], err);
    }
    if (r->op == OP_MULTIPLY_PLAIN) {
        rc = evaluator_multiply_plain(ev, &product, &inputs[0], &r->plain, err);
        if (rc == CKKS_OK) rc = evaluator_rescale(ev, &out, &product, err);
    } else if (r->op == OP_MULTIPLY) {
        rc = evaluator_multiply(ev, &product, &inputs[0], &inputs[1], err);
        if (rc == CKKS_OK) rc = evaluator_relinearise(ev, &out, &product, 0, true, err);
    } else if (r->op == OP_ROTATE) {
        const galois_step step = {galois_element_rotate(r->rig.params->log_n, 1), 1};
        rc = evaluator_apply_galois(ev, &out, &inputs[0], step, err);
    } else {
        rc = hoisted_sum(&out, ev, r, &inputs[0], err);
    }
    if (rc == CKKS_OK) rc = graph_region_output(region, 0, &out, err);
    evaluator_release(ev, &product);
    evaluator_release(ev, &out);
    return rc;
}

typedef struct device_program {
    workspace_plan *plan;
    graph_slot *slot;
    graph_program *program;
} device_program;

static ckks_status replay_once(uint64_t *ns, void *context, ckks_error *err) {
    device_program *p = context;
    graph_result result = {0};
    const ckks_status rc =
        graph_program_replay_prepared(p->program, &result, (graph_handle){0}, GRAPH_OUTPUT_BORROWED, err);
    *ns = result.replay_ns;
    graph_result_release(&result);
    return rc;
}

static double expected(const bench_run *r, uint32_t i) {
    const uint32_t mask = params_slot_count_max(r->rig.params) - 1;
    double sum = 0;
    switch (r->op) {
    case OP_MULTIPLY:
    case OP_MULTIPLY_PLAIN:
        return r->a.slots[i] * r->b.slots[i];
    case OP_ROTATE:
        return r->a.slots[(i + 1) & mask];
    default:
        for (uint32_t k = 1; k <= HOISTED_COUNT; k++) sum += r->a.slots[(i + k) & mask];
        return sum;
    }
}

static ckks_status check(const bench_run *r, const value_signature *s, const uint64_t *words,
                         ckks_error *err) {
    const uint32_t slot_count = params_slot_count_max(r->rig.params), level = s->limb_count - 1;
    ckks_status rc;
    double worst = 0;
    uint64_t *plain = malloc((size_t)s->limb_count * params_n(r->rig.params) * sizeof *plain);
    double *slots = malloc(slot_count * sizeof *slots);
    if (!plain || !slots) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a benchmark");
        goto out;
    }
    if ((rc = decrypt(plain, r->rig.secret->key, words, 2, level, err)) != CKKS_OK) goto out;
    rc = encoder_decode(slots, NULL, r->rig.context, plain, slot_count, level, s->scale, err);
    for (uint32_t i = 0; i < slot_count && rc == CKKS_OK; i++)
        worst = fmax(worst, fabs(slots[i] - expected(r, i)));
    if (rc == CKKS_OK && !(worst < 1e-2))
        rc = ckks_error_set(err, CKKS_INTERNAL, operation_names[r->op], "the result is wrong by %.2e", worst);
out:
    free(plain);
    free(slots);
    return rc;
}

static value_signature output_signature(const bench_run *r) {
    value_signature s;
    double scale = r->scale;
    uint32_t level = r->level;
    if (r->op == OP_MULTIPLY || r->op == OP_MULTIPLY_PLAIN) {
        scale = scale * scale;
        scale = scale / (double)r->rig.params->prime[level];
        level--;
    }
    value_signature_ciphertext(&s, r->rig.params, 2, level, scale, device_id(r->rig.dev));
    return s;
}

static ckks_status measure_device(figure *out, bench_run *r, ckks_error *err) {
    const uint32_t input_count = r->op == OP_MULTIPLY ? 2 : 1;
    const value_signature inputs[2] = {r->a.signature, r->b.signature}, output = output_signature(r);
    const ckks_value examples[2] = {bench_sample_value(&r->a), bench_sample_value(&r->b)};
    const graph_input sources[2] = {bench_sample_input(&r->a, &r->rig), bench_sample_input(&r->b, &r->rig)};
    graph_program_config config = {.context = r->rig.context,
                                   .tables = r->rig.tables,
                                   .callable = call,
                                   .callable_context = r,
                                   .inputs = inputs,
                                   .input_count = input_count,
                                   .outputs = &output,
                                   .output_count = 1,
                                   .keys = r->rig.requirements,
                                   .key_count = r->rig.key_count};
    device_program p = {0};
    graph_result result = {0};
    ckks_status rc;
    if ((rc = graph_plan_workspace(&p.plan, r->rig.dev, &config, err)) != CKKS_OK) goto out;
    config.workspace = p.plan;
    if ((rc = graph_slot_create(&p.slot, r->rig.dev, workspace_plan_bytes(p.plan), err)) != CKKS_OK) goto out;
    if ((rc = graph_program_create(&p.program, p.slot, &config, err)) != CKKS_OK) goto out;
    if ((rc = graph_program_capture(p.program, 0, examples, r->rig.keys, err)) != CKKS_OK) goto out;
    rc = graph_program_replay(p.program, &result, sources, input_count, r->rig.keys, GRAPH_OUTPUT_OWNED, err);
    if (rc == CKKS_OK && r->op != OP_NTT)
        rc = check(r, &result.outputs[0].signature, result.outputs[0].words, err);
    graph_result_release(&result);
    if (rc == CKKS_OK) rc = measure(out, r, replay_once, &p, err);
out:
    graph_program_destroy(p.program);
    graph_slot_destroy(p.slot);
    workspace_plan_destroy(p.plan);
    return rc;
}

/* ---- one parameter set ---- */

static ckks_status make_params(ckks_params *out, const bench_set *s, ckks_error *err) {
    uint32_t q[CKKS_PRIMES_MAX], p[CKKS_PRIMES_MAX];
    for (uint32_t i = 0; i < s->q_count; i++) q[i] = i ? s->q_bits : s->q0_bits;
    for (uint32_t i = 0; i < s->p_count; i++) p[i] = s->p_bits;
    return params_generate(out, s->log_n, q, s->q_count, p, s->p_count, s->digit_size, err);
}

static ckks_status make_plain(bench_run *r, ckks_error *err) {
    const uint32_t slot_count = params_slot_count_max(r->rig.params);
    const uint64_t bytes = (uint64_t)(r->level + 1) * params_n(r->rig.params) * sizeof(uint64_t);
    void *words = NULL;
    ckks_status rc;
    if (!(r->plain_host = malloc((size_t)bytes)))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory");
    rc = encoder_encode(r->plain_host, r->rig.context, r->b.slots, NULL, slot_count, r->level, false,
                        r->scale, err);
    if (rc == CKKS_OK) rc = device_allocate(r->rig.dev, &words, bytes, MEMORY_STATIC, err);
    if (rc != CKKS_OK) return rc;
    r->plain.words = words;
    r->plain.signature = r->a.signature;
    r->plain.signature.kind = VALUE_PLAINTEXT;
    r->plain.signature.component_count = 1;
    r->plain.signature.bytes = bytes;
    if ((rc = device_copy_in(r->rig.stream, words, r->plain_host, bytes, err)) != CKKS_OK) return rc;
    return device_stream_synchronize(r->rig.stream, err);
}

static ckks_status set_open(bench_run *r, device *dev, const bench_set *s, ckks_error *err) {
    key_requirement keys[1 + HOISTED_COUNT];
    galois_step steps[HOISTED_COUNT];
    ckks_params params;
    ckks_status rc;
    if ((rc = make_params(&params, s, err)) != CKKS_OK) return rc;
    r->set = s;
    r->level = params_level_max(&params);
    r->scale = ldexp(1, (int)s->scale_bits);
    keys[0] = (key_requirement){KEY_RELINEARISATION, 0, r->level};
    for (uint32_t i = 0; i < HOISTED_COUNT; i++) {
        const uint32_t element = galois_element_rotate(params.log_n, i + 1);
        keys[1 + i] = (key_requirement){KEY_GALOIS, element, r->level};
        steps[i] = (galois_step){element, 1 + i};
    }
    if ((rc = bench_rig_open(&r->rig, dev, &params, keys, 1 + HOISTED_COUNT, err)) != CKKS_OK) return rc;
    if ((rc = bench_sample_make(&r->a, &r->rig, r->level, r->scale, 1, err)) != CKKS_OK) return rc;
    if ((rc = bench_sample_make(&r->b, &r->rig, r->level, r->scale, 2, err)) != CKKS_OK) return rc;
    if ((rc = make_plain(r, err)) != CKKS_OK) return rc;
    return hoisted_rotations_create(&r->hoisted, dev, r->rig.context, steps, HOISTED_COUNT, err);
}

static void set_close(bench_run *r) {
    if (r->rig.dev) {
        hoisted_rotations_destroy(r->hoisted);
        if (r->plain.words) device_free(r->rig.dev, r->plain.words);
        bench_sample_fini(&r->a, &r->rig);
        bench_sample_fini(&r->b, &r->rig);
    }
    free(r->plain_host);
    bench_rig_close(&r->rig);
    r->hoisted = NULL, r->plain = (ckks_value){0}, r->plain_host = NULL;
}

static void print_figure(bench_run *r, const figure *f) {
    const char *name = operation_names[r->op];
    const bool is_insecure = params_security_bits(r->rig.params) < 128;
    const double before = bench_earlier_find(&r->earlier, r->set->name, name);
    const bool is_worse = before > 0 && f->low_us > 1.1 * before; /* even in its good tenth */
    r->worse += is_worse;
    if (r->options->common->json) {
        json_object(r->json, NULL); /* bench_earlier_find depends on this order */
        json_string(r->json, "set", r->set->name);
        json_string(r->json, "operation", name);
        json_number(r->json, "median_us", f->median_us);
        json_number(r->json, "low_us", f->low_us);
        json_number(r->json, "high_us", f->high_us);
        json_integer(r->json, "rounds", f->rounds);
        json_bool(r->json, "checked", r->op > OP_NTT);
        json_bool(r->json, "insecure", is_insecure);
        if (before > 0) json_number(r->json, "before_us", before);
        json_close_object(r->json);
        return;
    }
    printf("  %-32s %11.1f  %9.1f .. %-9.1f %5u", name, f->median_us, f->low_us, f->high_us, f->rounds);
    if (before > 0) printf("  %+.0f %%%s", 100 * (f->median_us / before - 1), is_worse ? " SLOWER" : "");
    printf("\n");
    fflush(stdout);
}

static ckks_status run_set(bench_run *r, device *dev, const bench_set *s, ckks_error *err) {
    ckks_status rc = set_open(r, dev, s, err);
    if (rc == CKKS_OK && !r->options->common->json)
        printf("%s%s\n", s->name,
               params_security_bits(r->rig.params) < 128 ? "  (INSECURE: for comparison only)" : "");
    for (int op = 0; op < OP_COUNT && rc == CKKS_OK; op++) {
        figure f;
        r->op = (operation)op;
        rc = op <= OP_DECRYPT ? measure(&f, r, host_once, r, err) : measure_device(&f, r, err);
        if (rc == CKKS_OK) print_figure(r, &f);
    }
    set_close(r);
    return rc;
}

static bool is_wanted(const bench_options *o, const bench_set *s) {
    return o->set ? strstr(s->name, o->set) != NULL : o->all_sets || !s->is_large;
}

int bench_ops(const bench_options *options) {
    ckks_error err = {0};
    json_writer j;
    char machine[128];
    uint32_t done = 0;
    device *dev = NULL;
    bench_run r = {.options = options, .json = &j};
    const device_config config = {.kind = (device_kind)options->device_kind,
                                  .selector = options->selector,
                                  .threads = options->threads};
    json_begin(&j);
    ckks_status rc = options->compare ? bench_earlier_load(&r.earlier, options->compare, &err) : CKKS_OK;
    if (rc == CKKS_OK) rc = device_open(&dev, &config, &err);
    if (rc == CKKS_OK && options->common->json) {
        json_object(&j, NULL);
        json_string(&j, "machine", bench_machine(machine));
        json_string(&j, "device", device_describe(dev));
        json_string(&j, "version", CKKSD_VERSION);
        json_list(&j, "results");
    } else if (rc == CKKS_OK) {
        printf("%s; %s\n", bench_machine(machine), device_describe(dev));
        printf("  %-32s %11s  %-22s %5s\n", "", "median us", "10 % .. 90 %", "runs");
    }
    for (size_t i = 0; i < sizeof sets / sizeof *sets && rc == CKKS_OK; i++)
        if (is_wanted(options, &sets[i])) {
            done++;
            rc = run_set(&r, dev, &sets[i], &err);
        }
    if (rc == CKKS_OK && !done)
        rc =
            ckks_error_set(&err, CKKS_INVALID_ARGUMENT, "set", "no set has \"%s\" in its name", options->set);
    if (rc == CKKS_OK && options->common->json) {
        json_close_list(&j);
        json_close_object(&j);
        json_end(&j);
    }
    json_discard(&j);
    bench_earlier_fini(&r.earlier);
    device_close(dev);
    if (rc != CKKS_OK) return ctl_fail(options->common, &err);
    return r.worse ? EXIT_MISMATCH : EXIT_GOOD;
}
