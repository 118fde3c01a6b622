/*
 * A whole program, eager against recorded: inputs packed and seeded as a request brings them, same staging,
 * same owned results, each compared word for word.
 */
#include "client/ctl/bench.h"

#include "kernels/program/graph_bench.h"
#include "kernels/program/workload.h"
#include "proto/packing.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

static void print_mode(json_writer *j, bool is_json, const char *name, const graph_bench_mode *m) {
    const struct {
        const char *name;
        const graph_bench_figure *figure;
    } rows[] = {{"total", &m->total},
                {"launch", &m->launch},
                {"stage", &m->stage},
                {"replay", &m->replay},
                {"copy_out", &m->copy_out}};
    if (is_json) json_object(j, name);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const graph_bench_figure *f = rows[i].figure;
        if (is_json) {
            json_object(j, rows[i].name);
            json_number(j, "median_us", (double)f->median_ns * 1e-3);
            json_number(j, "low_us", (double)f->low_ns * 1e-3);
            json_number(j, "high_us", (double)f->high_ns * 1e-3);
            json_close_object(j);
        } else {
            printf("  %-6s %-9s %11.1f  %9.1f .. %.1f\n", i ? "" : name, rows[i].name,
                   (double)f->median_ns * 1e-3, (double)f->low_ns * 1e-3, (double)f->high_ns * 1e-3);
        }
    }
    if (is_json) {
        json_integer(j, "device_bytes", m->device_bytes);
        json_integer(j, "host_bytes", m->host_bytes);
        json_integer(j, "arena_bytes", m->arena_bytes);
        json_integer(j, "capture_ns", m->capture_ns);
        json_close_object(j);
    }
}

static void print_result(const bench_options *o, const char *what, const device *dev,
                         const graph_bench_result *r, bool is_insecure) {
    char machine[128], sentence[256], device_bytes[32], host[32], arena[32];
    const bool is_json = o->common->json;
    json_writer j;
    json_begin(&j);
    bench_machine(machine);
    graph_bench_summary(r, sentence, sizeof sentence);
    if (is_json) {
        json_object(&j, NULL);
        json_string(&j, "machine", machine);
        json_string(&j, "device", device_describe(dev));
        json_string(&j, "program", what);
        json_bool(&j, "insecure", is_insecure);
        json_integer(&j, "rounds", r->rounds);
        json_integer(&j, "rounds_checked", r->rounds_checked);
        json_integer(&j, "kernel_nodes", r->kernel_nodes);
        json_integer(&j, "copy_nodes", r->copy_nodes);
    } else {
        printf("%s; %s\n%s%s: %u kernels, %u copies, %u fills recorded\n", machine, device_describe(dev),
               what, is_insecure ? " (INSECURE)" : "", r->kernel_nodes, r->copy_nodes, r->fill_nodes);
        printf("  %-16s %11s  %s\n", "", "median us", "10 % .. 90 %");
    }
    print_mode(&j, is_json, "eager", &r->eager);
    print_mode(&j, is_json, "graph", &r->graph);
    if (is_json) {
        json_string(&j, "summary", sentence);
        json_close_object(&j);
        json_end(&j);
        return;
    }
    printf("  memory of each: %s on the device, %s pinned, %s of arena\n",
           ctl_bytes(device_bytes, r->graph.device_bytes), ctl_bytes(host, r->graph.host_bytes),
           ctl_bytes(arena, r->graph.arena_bytes));
    printf("  %u results compared word for word, all equal; capture %.1f ms once\n  %s\n", r->rounds_checked,
           (double)r->graph.capture_ns * 1e-6, sentence);
}

/* inputs of the plan: one sample each, and its words as a request brings them */
typedef struct inputs {
    uint32_t count;
    bench_sample *samples;
    ckks_value *values;
    graph_input *sources;
    uint8_t **packed;
    uint8_t seed[SEED_BYTES];
} inputs;

static void inputs_fini(inputs *in, bench_rig *rig) {
    for (uint32_t i = 0; in->samples && i < in->count; i++) bench_sample_fini(&in->samples[i], rig);
    for (uint32_t i = 0; in->packed && i < in->count; i++) free(in->packed[i]);
    free(in->packed);
    free(in->samples);
    free(in->values);
    free(in->sources);
}

/* First components packed, second ones from a seed. What that encrypts is noise: words are compared here, and
 * that any words cost the same is what makes the evaluation safe. */
static ckks_status pack_input(inputs *in, uint32_t index, const bench_rig *rig, ckks_error *err) {
    const bench_sample *sample = &in->samples[index];
    const value_signature *s = &sample->signature;
    const uint64_t entry_words = 2 * (uint64_t)s->limb_count * params_n(rig->params);
    const uint64_t entry_bytes = packing_poly_bytes(rig->params, s->limb_count - 1, false, 1);
    if (!(in->packed[index] = malloc(entry_bytes * s->batch_count)))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a request");
    for (uint32_t b = 0; b < s->batch_count; b++)
        packing_pack(in->packed[index] + b * entry_bytes, sample->words + b * entry_words, rig->params,
                     s->limb_count - 1, false, 1);
    in->sources[index] = bench_sample_input(sample, rig);
    in->sources[index].source = GRAPH_SOURCE_PACKED_HOST;
    in->sources[index].data = in->packed[index];
    in->sources[index].bytes = entry_bytes * s->batch_count;
    in->sources[index].is_seeded = true;
    in->sources[index].seed = in->seed;
    return CKKS_OK;
}

static ckks_status inputs_init(inputs *in, bench_rig *rig, const plan *p, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    *in = (inputs){.count = p->input_count,
                   .samples = calloc(p->input_count, sizeof *in->samples),
                   .values = calloc(p->input_count, sizeof *in->values),
                   .sources = calloc(p->input_count, sizeof *in->sources),
                   .packed = calloc(p->input_count, sizeof *in->packed)};
    randombytes_buf(in->seed, sizeof in->seed);
    if (!in->samples || !in->values || !in->sources || !in->packed)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory");
    for (uint32_t i = 0; i < p->input_count && rc == CKKS_OK; i++) {
        const plan_value *v = &p->values[i];
        rc = bench_sample_make_batch(&in->samples[i], rig, v->level, v->scale, i + 1, v->batch_count,
                                     params_slot_count_max(p->params), err);
        if (rc != CKKS_OK) break;
        in->values[i] = bench_sample_value(&in->samples[i]);
        rc = pack_input(in, i, rig, err);
    }
    return rc;
}

static ckks_status run_plan(graph_bench_result *out, const bench_options *o, device *dev, const plan *p,
                            ckks_error *err) {
    ckks_status rc;
    workload *work = NULL;
    graph_slot *slot = NULL;
    bench_rig rig = {0};
    inputs in = {0};
    workload_memory memory;
    graph_program_config program;
    if ((rc = workload_prepare(&work, dev, p, NULL, err)) != CKKS_OK) goto out;
    workload_memory_account(work, &memory);
    if ((rc = bench_rig_open(&rig, dev, p->params, p->keys, p->key_count, err)) != CKKS_OK) goto out;
    if ((rc = inputs_init(&in, &rig, p, err)) != CKKS_OK) goto out;
    if ((rc = graph_slot_create(&slot, dev, memory.arena_bytes, err)) != CKKS_OK) goto out;
    workload_program_config(work, &program);
    const graph_bench_config config = {.slot = slot,
                                       .program = &program,
                                       .examples = in.values,
                                       .inputs = in.sources,
                                       .keys = rig.keys,
                                       .rounds = o->rounds,
                                       .warmup = 2};
    rc = graph_bench_run(out, &config, err);
out:
    graph_slot_destroy(slot);
    inputs_fini(&in, &rig);
    bench_rig_close(&rig);
    workload_destroy(work);
    return rc;
}

int bench_program(const bench_options *options) {
    ckks_error err = {0};
    device *dev = NULL;
    bench_plan program = {0};
    graph_bench_result result;
    const device_config config = {.kind = (device_kind)options->device_kind,
                                  .selector = options->selector,
                                  .threads = options->threads[0]};
    ckks_status rc = device_open(&dev, &config, &err);
    if (rc == CKKS_OK) rc = bench_plan_open(&program, options, &err);
    if (rc == CKKS_OK) rc = run_plan(&result, options, dev, program.plan, &err);
    if (rc == CKKS_OK)
        print_result(options, program.name, dev, &result, params_security_bits(program.plan->params) < 128);
    bench_plan_close(&program);
    device_close(dev);
    return rc == CKKS_OK ? EXIT_GOOD : ctl_fail(options->common, &err);
}
