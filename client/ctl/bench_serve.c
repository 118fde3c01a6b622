/*
 * Serving without the network: several slots of one device, each with a thread that asks, waits and asks
 * again, as the daemon's slots do under full load. Requests are packed and seeded as they come over the wire;
 * every answer is compared word for word with the CPU's.
 */
#include "client/ctl/bench.h"

#include "client/lib/rpc_internal.h"
#include "kernels/device_health.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WARMUP_SECONDS 0.5
#define FLAT_BYTES     (1u << 20) /* a difference below this is no growth */

enum { PHASE_WARMUP, PHASE_COUNTING, PHASE_OVER };

/* Same key set as the request before on this slot, or another. */
enum { KIND_SAME_KEYS, KIND_OTHER_KEYS, KINDS };

typedef struct worker {
    const bench_requests *requests;
    _Atomic int *phase;
    bench_count *count;
    uint32_t index;
    pthread_t thread;
    graph_slot *slot;
    graph_program *program;
    bench_latencies latency[KINDS];
    uint64_t answers, wrong;
    uint64_t replay_ns, stage_ns, copy_out_ns; /* the device's, from event to event */
    uint64_t host_stage_ns, host_launch_ns;    /* what the calls cost this thread */
    ckks_status rc;
    ckks_error error;
} worker;

typedef struct memory_state {
    uint64_t accounted, free, resident;
} memory_state;

/* What one number of slots came to. */
typedef struct serve_result {
    uint32_t slots;
    double seconds, rate;
    uint64_t answers, wrong, recordings;
    double median_us, p90_us, p99_us;
    double replay_us, stage_us, copy_out_us; /* means */
    double host_stage_us, host_launch_us;
    double busy;              /* of the slots' time, spent in replays */
    double same_us, other_us; /* medians, with several tenants */
    memory_state before, after;
    bool is_flat;
    device_health health; /* of the card, near the end of the load */
} serve_result;

typedef struct serve_run {
    const bench_requests *requests;
    workload *load;
    health_source *health; /* NULL: none to ask */
    double seconds;
} serve_run;

/* ---- one slot ---- */

static ckks_status ask(worker *w, const bench_request *r, uint32_t kind, ckks_error *err) {
    const bench_requests *all = w->requests;
    graph_result result = {0};
    graph_handle handle;
    graph_pending *pending = NULL;
    const uint64_t begin = rpc_now_ns();
    ckks_status rc = graph_program_copy_inputs_from(w->program, &handle, r->inputs, all->program.input_count,
                                                    all->tenants[r->tenant].keys, err);
    const uint64_t staged = rpc_now_ns();
    if (rc == CKKS_OK) rc = graph_program_replay_begin(w->program, &pending, handle, GRAPH_OUTPUT_OWNED, err);
    const uint64_t launched = rpc_now_ns();
    if (rc == CKKS_OK) rc = graph_program_replay_finish(w->program, pending, &result, err);
    const uint64_t ns = rpc_now_ns() - begin;
    if (rc == CKKS_OK) {
        w->wrong += !bench_requests_match(all, r, &result); /* also while warming up */
        if (atomic_load_explicit(w->phase, memory_order_relaxed) == PHASE_COUNTING) {
            bench_latencies_keep(&w->latency[kind], ns);
            w->answers++;
            w->replay_ns += result.replay_ns;
            w->stage_ns += result.stage_ns;
            w->copy_out_ns += result.copy_out_ns;
            w->host_stage_ns += staged - begin;
            w->host_launch_ns += launched - staged;
            atomic_fetch_add(&w->count->answers, 1);
        }
    }
    graph_result_release(&result);
    return rc;
}

/* Two requests of one tenant, then two of the next: every other request finds its keys in place. */
static void *work(void *context) {
    worker *w = context;
    const bench_requests *all = w->requests;
    uint32_t last_tenant = UINT32_MAX;
    for (uint64_t i = w->index; w->rc == CKKS_OK && atomic_load(w->phase) != PHASE_OVER; i++) {
        const uint32_t tenant = (uint32_t)(i / 2 % all->tenant_count);
        const uint32_t one = (uint32_t)(i * 2654435761u >> 7) % all->per_tenant;
        const bench_request *r = &all->requests[tenant * all->per_tenant + one];
        w->rc = ask(w, r, tenant == last_tenant ? KIND_SAME_KEYS : KIND_OTHER_KEYS, &w->error);
        last_tenant = tenant;
    }
    if (w->rc != CKKS_OK) atomic_store(&w->count->has_failed, true);
    return NULL;
}

static void worker_fini(worker *w) {
    graph_program_destroy(w->program);
    graph_slot_destroy(w->slot);
    for (int k = 0; k < KINDS; k++) bench_latencies_fini(&w->latency[k]);
}

static ckks_status worker_init(worker *w, const bench_requests *all, workload *load, ckks_error *err) {
    workload_memory memory;
    ckks_status rc;
    workload_memory_account(load, &memory);
    for (int k = 0; k < KINDS; k++)
        if ((rc = bench_latencies_init(&w->latency[k], 0, err)) != CKKS_OK) return rc;
    if ((rc = graph_slot_create(&w->slot, all->dev, memory.arena_bytes, err)) != CKKS_OK) return rc;
    if ((rc = graph_program_create(&w->program, w->slot, &all->program, err)) != CKKS_OK) return rc;
    return workload_capture(load, w->program, 1, err);
}

/* ---- all slots ---- */

static memory_state memory_now(device *dev) {
    device_memory_account account;
    memory_state m = {0};
    unsigned long size = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fscanf(f, "%lu %lu", &size, &resident) == 2) /* NOLINT(cert-err34-c) */
        m.resident = (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
    if (f) fclose(f);
    device_memory(dev, &account);
    m.accounted = account.bytes_used + account.bytes_by_purpose[MEMORY_STAGING];
    m.free = device_bytes_free(dev);
    return m;
}

static bool is_flat(const memory_state *before, const memory_state *after) {
    return after->accounted == before->accounted && after->free + FLAT_BYTES >= before->free &&
           after->resident <= before->resident + FLAT_BYTES + before->resident / 100;
}

/* kinds: bit k = take kind k. The caller ends *out. */
static ckks_status gather(bench_latencies *out, const worker *workers, uint32_t count, uint32_t kinds,
                          ckks_error *err) {
    const bench_latencies *parts[KINDS * BENCH_SLOTS_MAX];
    uint32_t part_count = 0;
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t k = 0; k < KINDS; k++)
            if (kinds >> k & 1) parts[part_count++] = &workers[i].latency[k];
    return bench_latencies_merge(out, parts, part_count, err);
}

static ckks_status summarise(serve_result *out, const worker *workers, uint32_t count, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    uint64_t replay = 0, stage = 0, copy_out = 0, host_stage = 0, host_launch = 0;
    for (uint32_t i = 0; i < count; i++) {
        out->answers += workers[i].answers;
        out->wrong += workers[i].wrong;
        replay += workers[i].replay_ns, stage += workers[i].stage_ns, copy_out += workers[i].copy_out_ns;
        host_stage += workers[i].host_stage_ns, host_launch += workers[i].host_launch_ns;
    }
    const double answers = out->answers ? (double)out->answers : 1;
    out->rate = (double)out->answers / out->seconds;
    out->replay_us = (double)replay * 1e-3 / answers;
    out->stage_us = (double)stage * 1e-3 / answers;
    out->copy_out_us = (double)copy_out * 1e-3 / answers;
    out->host_stage_us = (double)host_stage * 1e-3 / answers;
    out->host_launch_us = (double)host_launch * 1e-3 / answers;
    out->busy = (double)replay * 1e-9 / (out->seconds * count);
    for (uint32_t kinds = 1; kinds <= 3 && rc == CKKS_OK; kinds++) {
        bench_latencies l;
        if ((rc = gather(&l, workers, count, kinds, err)) != CKKS_OK) break;
        const double median = bench_latencies_us(&l, 0.5);
        if (kinds == 1u << KIND_SAME_KEYS) out->same_us = median;
        if (kinds == 1u << KIND_OTHER_KEYS) out->other_us = median;
        if (kinds == 3) {
            out->median_us = median;
            out->p90_us = bench_latencies_us(&l, 0.9), out->p99_us = bench_latencies_us(&l, 0.99);
        }
        bench_latencies_fini(&l);
    }
    return rc;
}

static ckks_status run_workers(serve_result *out, worker *workers, uint32_t count, const serve_run *run,
                               _Atomic int *phase, ckks_error *err) {
    device *dev = run->requests->dev;
    uint32_t started = 0;
    ckks_status rc = CKKS_OK;
    while (started < count && pthread_create(&workers[started].thread, NULL, work, &workers[started]) == 0)
        started++;
    if (started == count) {
        bench_wait(WARMUP_SECONDS);
        out->before = memory_now(dev);
        const uint64_t begin = rpc_now_ns(), recordings = device_recordings(dev);
        atomic_store(phase, PHASE_COUNTING);
        bench_wait_for(run->seconds, workers->count, 2u * count);
        if (run->health) health_read(run->health, &out->health);
        atomic_store(phase, PHASE_OVER);
        out->seconds = (double)(rpc_now_ns() - begin) * 1e-9;
        out->recordings = device_recordings(dev) - recordings;
        out->after = memory_now(dev);
        out->is_flat = is_flat(&out->before, &out->after);
    } else {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "cannot start a thread");
    }
    atomic_store(phase, PHASE_OVER);
    for (uint32_t i = 0; i < started; i++) pthread_join(workers[i].thread, NULL);
    for (uint32_t i = 0; i < started && rc == CKKS_OK; i++) {
        rc = workers[i].rc;
        if (rc != CKKS_OK) *err = workers[i].error;
    }
    return rc;
}

static ckks_status serve(serve_result *out, const serve_run *run, uint32_t count, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    _Atomic int phase = PHASE_WARMUP;
    bench_count answered = {0};
    *out = (serve_result){.slots = count};
    worker *workers = calloc(count, sizeof *workers);
    if (!workers) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for slots");
    for (uint32_t i = 0; i < count && rc == CKKS_OK; i++) {
        workers[i].requests = run->requests, workers[i].phase = &phase, workers[i].index = i;
        workers[i].count = &answered;
        rc = worker_init(&workers[i], run->requests, run->load, err);
    }
    workload_self_test_end(run->load);
    if (rc == CKKS_OK) rc = run_workers(out, workers, count, run, &phase, err);
    if (rc == CKKS_OK) rc = summarise(out, workers, count, err);
    for (uint32_t i = 0; i < count; i++) worker_fini(&workers[i]);
    free(workers);
    return rc;
}

/* ---- the report ---- */

static void print_json(const bench_options *o, const bench_plan *p, const device *dev,
                       const serve_result *all, uint32_t count) {
    char machine[128];
    json_writer j;
    json_begin(&j);
    json_object(&j, NULL);
    json_string(&j, "machine", bench_machine(machine));
    json_string(&j, "device", device_describe(dev));
    json_string(&j, "program", p->name);
    json_bool(&j, "insecure", params_security_bits(p->plan->params) < 128);
    json_integer(&j, "tenants", o->tenants);
    json_integer(&j, "inputs", o->inputs);
    json_list(&j, "runs");
    for (uint32_t i = 0; i < count; i++) {
        const serve_result *r = &all[i];
        json_object(&j, NULL);
        json_integer(&j, "slots", r->slots);
        json_number(&j, "seconds", r->seconds);
        json_integer(&j, "answers", r->answers);
        json_integer(&j, "wrong", r->wrong);
        json_number(&j, "requests_per_s", r->rate);
        json_number(&j, "median_us", r->median_us);
        json_number(&j, "p90_us", r->p90_us);
        json_number(&j, "p99_us", r->p99_us);
        json_number(&j, "stage_us", r->stage_us);
        json_number(&j, "replay_us", r->replay_us);
        json_number(&j, "copy_out_us", r->copy_out_us);
        json_number(&j, "host_stage_us", r->host_stage_us);
        json_number(&j, "host_launch_us", r->host_launch_us);
        json_number(&j, "busy", r->busy);
        json_number(&j, "same_keys_us", o->tenants > 1 ? r->same_us : 0);
        json_number(&j, "other_keys_us", o->tenants > 1 ? r->other_us : 0);
        json_integer(&j, "recordings", r->recordings);
        json_integer(&j, "accounted_before", r->before.accounted);
        json_integer(&j, "accounted_after", r->after.accounted);
        json_integer(&j, "card_free_before", r->before.free);
        json_integer(&j, "card_free_after", r->after.free);
        json_integer(&j, "resident_before", r->before.resident);
        json_integer(&j, "resident_after", r->after.resident);
        json_bool(&j, "flat", r->is_flat);
        if (r->health.known & HEALTH_UTILISATION) {
            json_integer(&j, "card_busy_percent", r->health.utilisation_percent);
            json_number(&j, "card_power_w", (double)r->health.power_mw * 1e-3);
            json_integer(&j, "card_clock_mhz", r->health.clock_mhz);
        }
        json_close_object(&j);
    }
    json_close_list(&j);
    json_close_object(&j);
    json_end(&j);
}

static void print_head(const bench_options *o, const bench_plan *p, const device *dev) {
    char machine[128];
    printf("%s; %s (%s)\n%s%s: %u key set%s, %u requests each, packed and seeded; every answer compared with "
           "the CPU's words\n",
           bench_machine(machine), device_describe(dev), device_reason(dev), p->name,
           params_security_bits(p->plan->params) < 128 ? " (INSECURE)" : "", o->tenants,
           o->tenants == 1 ? "" : "s", o->inputs);
    printf("  %5s %11s %9s %9s %9s %9s %9s %9s %5s %9s %6s\n", "slots", "requests/s", "median us", "90 %",
           "99 %", "stage", "replay", "copy out", "busy", "answers", "wrong");
}

static void print_row(const bench_options *o, const serve_result *r) {
    char accounted[32], resident[32], grown[32];
    printf("  %5u %11.1f %9.1f %9.1f %9.1f %9.1f %9.1f %9.1f %4.0f%% %9llu %6llu\n", r->slots, r->rate,
           r->median_us, r->p90_us, r->p99_us, r->stage_us, r->replay_us, r->copy_out_us, 100 * r->busy,
           (unsigned long long)r->answers, (unsigned long long)r->wrong);
    const uint64_t more = r->after.resident > r->before.resident ? r->after.resident - r->before.resident : 0;
    printf("        memory %s: %s on the device and pinned, process %s (%s more)",
           r->is_flat ? "flat" : "NOT FLAT", ctl_bytes(accounted, r->after.accounted),
           ctl_bytes(resident, r->after.resident), ctl_bytes(grown, more));
    if (r->after.free)
        printf(", free on the card %+.1f MiB", ((double)r->after.free - (double)r->before.free) / 1048576.0);
    printf("\n");
    printf("        the host spends %.1f us on staging and %.1f us on launching, then waits\n",
           r->host_stage_us, r->host_launch_us);
    if (r->health.known & HEALTH_UTILISATION)
        printf("        card %u %% busy, %.0f W, %u MHz, %u C\n", r->health.utilisation_percent,
               (double)r->health.power_mw * 1e-3, r->health.clock_mhz, r->health.temperature_c);
    if (o->tenants > 1)
        printf("        same keys %.1f us, other keys %.1f us: switching adds %+.1f us; %llu recordings "
               "meanwhile\n",
               r->same_us, r->other_us, r->other_us - r->same_us, (unsigned long long)r->recordings);
    fflush(stdout);
}

int bench_serve(const bench_options *options) {
    ckks_error err = {0};
    device *dev = NULL;
    workload *load = NULL;
    bench_plan program = {0};
    bench_requests requests = {0};
    serve_result results[BENCH_COUNTS_MAX] = {0};
    bool is_good = true;
    const device_config config = {.kind = (device_kind)options->device_kind,
                                  .selector = options->selector,
                                  .threads = options->threads[0]};
    ckks_status rc = device_open(&dev, &config, &err);
    if (rc == CKKS_OK) rc = bench_plan_open(&program, options, &err);
    if (rc == CKKS_OK) rc = workload_prepare(&load, dev, program.plan, NULL, &err);
    if (rc == CKKS_OK)
        rc = bench_requests_make(&requests, dev, load, options->tenants, options->inputs, &err);
    serve_run run = {.requests = &requests, .load = load, .seconds = options->seconds};
    if (rc == CKKS_OK && device_get_kind(dev) == DEVICE_CUDA)
        (void)health_open(&run.health, device_hardware_id(dev), NULL, NULL);
    if (rc == CKKS_OK && !options->common->json) print_head(options, &program, dev);
    for (uint32_t i = 0; i < options->slot_counts && rc == CKKS_OK; i++) {
        rc = serve(&results[i], &run, options->slots[i], &err);
        if (rc != CKKS_OK) break;
        is_good &= results[i].wrong == 0;
        if (!options->common->json) print_row(options, &results[i]);
    }
    if (rc == CKKS_OK && options->common->json)
        print_json(options, &program, dev, results, options->slot_counts);
    health_close(run.health);
    bench_requests_fini(&requests);
    workload_destroy(load);
    bench_plan_close(&program);
    device_close(dev);
    if (rc != CKKS_OK) return ctl_fail(options->common, &err);
    return is_good ? EXIT_GOOD : EXIT_MISMATCH;
}
