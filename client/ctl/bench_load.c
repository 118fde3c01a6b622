/*
 * Full load on a running daemon: requests that were encrypted before, several at a time, each connection
 * asking again as soon as it has its answer. The first answer to each request is kept, and every later one
 * must have the same words.
 */
#include "client/ctl/bench.h"

#include "client/lib/rpc_internal.h"

#include <pthread.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define WARMUP_SECONDS 0.5

enum { PHASE_WARMUP, PHASE_COUNTING, PHASE_OVER };

typedef struct load {
    const bench_options *options;
    rpc_connection *connection;
    client_model *model;
    client_secret_key *secret;
    uint8_t key_set[32];
    client_ciphertexts *requests, *answers; /* [options->inputs] */
    bool is_random;                         /* the model draws: its answers are not compared */
} load;

typedef struct worker {
    const load *load;
    _Atomic int *phase;
    bench_count *count;
    uint32_t index;
    pthread_t thread;
    rpc_connection *connection;
    bench_latencies latency;
    bench_breakdown breakdown;
    uint64_t answers, wrong;
    rpc_timing sum;
    ckks_status rc;
    ckks_error error;
} worker;

typedef struct load_result {
    uint32_t at_a_time;
    double seconds, rate, median_us, p90_us, p99_us;
    double queue_us, stage_us, replay_us, copy_out_us; /* means, the server's */
    uint64_t answers, wrong, request_bytes, reply_bytes;
    bench_breakdown_row breakdown[BENCH_STAGES];
    double pack_us, reply_us; /* means, the daemon's; with the breakdown alone */
} load_result;

static bool are_equal(const client_ciphertexts *a, const client_ciphertexts *b) {
    if (a->count != b->count) return false;
    for (uint32_t i = 0; i < a->count; i++)
        if (a->items[i].packed_bytes != b->items[i].packed_bytes ||
            memcmp(a->items[i].packed, b->items[i].packed, a->items[i].packed_bytes) != 0)
            return false;
    return true;
}

/* ---- before: keys, requests, first answers ---- */

static ckks_status load_keys(load *l, ckks_error *err) {
    const ctl_options *o = l->options->common;
    key_paths paths;
    client_key_set *set = NULL;
    ckks_status rc = key_paths_for(&paths, o->profile.key, &l->model->params, err);
    if (rc == CKKS_OK && l->model->key_count) {
        rc = key_set_file_peek(&set, paths.keys, o->allow_insecure, err);
        if (rc == CKKS_OK) memcpy(l->key_set, set->id, sizeof l->key_set);
        client_key_set_destroy(set);
    }
    if (rc == CKKS_OK) rc = ctl_load_secret(&l->secret, o, paths.secret, err);
    return rc;
}

static ckks_status encrypt_one(load *l, client_ciphertexts *out, ckks_error *err) {
    const uint32_t rows = client_rows_per_request(l->model);
    const size_t count = (size_t)rows * l->model->element_count;
    double *elements = malloc(count * sizeof *elements);
    if (!elements) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a request");
    for (size_t i = 0; i < count; i++) elements[i] = (double)(int32_t)randombytes_random() * 0x1p-32;
    const ckks_status rc = client_encrypt(out, l->model, l->secret, NULL, elements, rows, err);
    free(elements);
    return rc;
}

static ckks_status prepare(load *l, ckks_error *err) {
    const ctl_options *o = l->options->common;
    const uint32_t count = l->options->inputs;
    ckks_status rc;
    client_ciphertexts again = {0};
    if ((rc = ctl_connect(&l->connection, o, err)) != CKKS_OK) return rc;
    if ((rc = ctl_model(&l->model, &l->connection, o, l->options->package, NULL, err)) != CKKS_OK) return rc;
    if ((rc = load_keys(l, err)) != CKKS_OK) return rc;
    l->requests = calloc(count, sizeof *l->requests);
    l->answers = calloc(count, sizeof *l->answers);
    if (!l->requests || !l->answers)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for requests");
    for (uint32_t i = 0; i < count && rc == CKKS_OK; i++) {
        if ((rc = encrypt_one(l, &l->requests[i], err)) != CKKS_OK) break;
        rc = rpc_infer(&l->answers[i], l->connection, l->model, l->key_set, &l->requests[i], 0, NULL, err);
    }
    if (rc == CKKS_OK)
        rc = rpc_infer(&again, l->connection, l->model, l->key_set, &l->requests[0], 0, NULL, err);
    l->is_random = rc == CKKS_OK && !are_equal(&again, &l->answers[0]);
    client_ciphertexts_fini(&again);
    return rc;
}

static void load_fini(load *l) {
    for (uint32_t i = 0; i < l->options->inputs; i++) {
        if (l->requests) client_ciphertexts_fini(&l->requests[i]);
        if (l->answers) client_ciphertexts_fini(&l->answers[i]);
    }
    free(l->requests);
    free(l->answers);
    client_secret_key_destroy(l->secret);
    client_model_destroy(l->model);
    rpc_close(l->connection);
}

/* ---- during ---- */

static void *work(void *context) {
    worker *w = context;
    const load *l = w->load;
    for (uint64_t i = w->index; w->rc == CKKS_OK && atomic_load(w->phase) != PHASE_OVER; i++) {
        client_ciphertexts answer = {0};
        rpc_timing t;
        const uint32_t one = (uint32_t)(i % l->options->inputs);
        w->rc = rpc_infer(&answer, w->connection, l->model, l->key_set, &l->requests[one], 0, &t, &w->error);
        if (w->rc == CKKS_OK && !l->is_random) w->wrong += !are_equal(&answer, &l->answers[one]);
        if (w->rc == CKKS_OK && atomic_load(w->phase) == PHASE_COUNTING) {
            w->answers++;
            bench_latencies_keep(&w->latency, t.total_ns);
            if (l->options->with_breakdown) bench_breakdown_keep(&w->breakdown, &t);
            w->sum.queue_ns += t.queue_ns, w->sum.stage_ns += t.stage_ns;
            w->sum.replay_ns += t.replay_ns, w->sum.copy_out_ns += t.copy_out_ns;
            w->sum.request_bytes = t.request_bytes, w->sum.reply_bytes = t.reply_bytes;
            atomic_fetch_add(&w->count->answers, 1);
        }
        client_ciphertexts_fini(&answer);
    }
    if (w->rc != CKKS_OK) atomic_store(&w->count->has_failed, true);
    return NULL;
}

static ckks_status summarise(load_result *out, const worker *workers, uint32_t count, ckks_error *err) {
    const bench_latencies *parts[BENCH_SLOTS_MAX];
    const bench_breakdown *breakdowns[BENCH_SLOTS_MAX];
    rpc_timing sum = {0};
    bench_latencies all;
    for (uint32_t i = 0; i < count; i++) {
        const rpc_timing *t = &workers[i].sum;
        parts[i] = &workers[i].latency, breakdowns[i] = &workers[i].breakdown;
        out->answers += workers[i].answers, out->wrong += workers[i].wrong;
        sum.queue_ns += t->queue_ns, sum.stage_ns += t->stage_ns;
        sum.replay_ns += t->replay_ns, sum.copy_out_ns += t->copy_out_ns;
        if (t->request_bytes) out->request_bytes = t->request_bytes, out->reply_bytes = t->reply_bytes;
    }
    const ckks_status rc = bench_latencies_merge(&all, parts, count, err);
    if (rc != CKKS_OK) return rc;
    const double each = 1e-3 / (out->answers ? (double)out->answers : 1);
    out->rate = (double)out->answers / out->seconds;
    out->queue_us = (double)sum.queue_ns * each, out->stage_us = (double)sum.stage_ns * each;
    out->replay_us = (double)sum.replay_ns * each, out->copy_out_us = (double)sum.copy_out_ns * each;
    out->median_us = bench_latencies_us(&all, 0.5);
    out->p90_us = bench_latencies_us(&all, 0.9), out->p99_us = bench_latencies_us(&all, 0.99);
    bench_latencies_fini(&all);
    return workers->load->options->with_breakdown
               ? bench_breakdown_merge(out->breakdown, breakdowns, count, err)
               : CKKS_OK;
}

static ckks_status run(load_result *out, const load *l, uint32_t count, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    uint32_t started = 0;
    bench_sums before = {0}, after = {0};
    const bool with_breakdown = l->options->with_breakdown;
    _Atomic int phase = PHASE_WARMUP;
    bench_count answered = {0};
    *out = (load_result){.at_a_time = count};
    worker *workers = calloc(count, sizeof *workers);
    if (!workers) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for connections");
    for (uint32_t i = 0; i < count && rc == CKKS_OK; i++) {
        workers[i].load = l, workers[i].phase = &phase, workers[i].index = i;
        workers[i].count = &answered;
        rc = bench_latencies_init(&workers[i].latency, 0, err);
        if (rc == CKKS_OK && with_breakdown) rc = bench_breakdown_init(&workers[i].breakdown, err);
        if (rc == CKKS_OK) rc = ctl_connect(&workers[i].connection, l->options->common, err);
    }
    while (rc == CKKS_OK && started < count &&
           pthread_create(&workers[started].thread, NULL, work, &workers[started]) == 0)
        started++;
    if (rc == CKKS_OK && started < count)
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "cannot start a thread");
    if (rc == CKKS_OK) {
        bench_wait(WARMUP_SECONDS);
        if (with_breakdown) rc = bench_sums_read(&before, l->connection, l->model, err);
        const uint64_t begin = rpc_now_ns();
        atomic_store(&phase, PHASE_COUNTING);
        /* some more than one each: the daemon's own figures come behind its answers */
        bench_wait_for(l->options->seconds, &answered, 2u * count + 2);
        out->seconds = (double)(rpc_now_ns() - begin) * 1e-9;
        if (with_breakdown && rc == CKKS_OK) rc = bench_sums_read(&after, l->connection, l->model, err);
    }
    atomic_store(&phase, PHASE_OVER);
    for (uint32_t i = 0; i < started; i++) pthread_join(workers[i].thread, NULL);
    for (uint32_t i = 0; i < started && rc == CKKS_OK; i++)
        if ((rc = workers[i].rc) != CKKS_OK) *err = workers[i].error;
    if (rc == CKKS_OK) rc = summarise(out, workers, count, err);
    bench_sums_means(&out->pack_us, &out->reply_us, &before, &after);
    for (uint32_t i = 0; i < count; i++) {
        bench_latencies_fini(&workers[i].latency);
        bench_breakdown_fini(&workers[i].breakdown);
        rpc_close(workers[i].connection);
    }
    free(workers);
    return rc;
}

/* ---- after ---- */

static void print_json(const load *l, const load_result *all, uint32_t count) {
    json_writer j;
    json_begin(&j);
    json_object(&j, NULL);
    json_string(&j, "address", rpc_address(l->connection));
    json_string(&j, "model", l->model->description->name);
    json_bool(&j, "compared", !l->is_random);
    json_list(&j, "runs");
    for (uint32_t i = 0; i < count; i++) {
        const load_result *r = &all[i];
        json_object(&j, NULL);
        json_integer(&j, "at_a_time", r->at_a_time);
        json_number(&j, "seconds", r->seconds);
        json_integer(&j, "answers", r->answers);
        json_integer(&j, "wrong", r->wrong);
        json_number(&j, "requests_per_s", r->rate);
        json_number(&j, "median_us", r->median_us);
        json_number(&j, "p90_us", r->p90_us);
        json_number(&j, "p99_us", r->p99_us);
        json_number(&j, "queue_us", r->queue_us);
        json_number(&j, "stage_us", r->stage_us);
        json_number(&j, "replay_us", r->replay_us);
        json_number(&j, "copy_out_us", r->copy_out_us);
        json_integer(&j, "request_bytes", r->request_bytes);
        json_integer(&j, "reply_bytes", r->reply_bytes);
        if (l->options->with_breakdown) bench_breakdown_json(&j, r->breakdown, r->pack_us, r->reply_us);
        json_close_object(&j);
    }
    json_close_list(&j);
    json_close_object(&j);
    json_end(&j);
}

static void print_head(const load *l) {
    const Ckksd__V1__ServerMetadataReply *s = rpc_server(l->connection);
    printf("%s (%s), model %s: %u requests, encrypted before; %s\n", rpc_address(l->connection),
           s->device ? s->device : "device unknown", l->model->description->name, l->options->inputs,
           l->is_random ? "the model draws, so answers are not compared"
                        : "every answer has the words of the first");
    printf("  %9s %11s %9s %9s %9s %9s %9s %9s %9s %9s %6s\n", "at a time", "requests/s", "median us", "90 %",
           "99 %", "queue", "stage", "replay", "copy out", "answers", "wrong");
}

static void print_row(const load_result *r) {
    printf("  %9u %11.1f %9.1f %9.1f %9.1f %9.1f %9.1f %9.1f %9.1f %9llu %6llu\n", r->at_a_time, r->rate,
           r->median_us, r->p90_us, r->p99_us, r->queue_us, r->stage_us, r->replay_us, r->copy_out_us,
           (unsigned long long)r->answers, (unsigned long long)r->wrong);
    fflush(stdout);
}

int bench_load(const bench_options *options) {
    ckks_error err = {0};
    load l = {.options = options};
    load_result results[BENCH_COUNTS_MAX] = {0};
    bool is_good = true;
    ckks_status rc = ctl_resolve(options->common, &err);
    if (rc == CKKS_OK) rc = prepare(&l, &err);
    if (rc == CKKS_OK && !options->common->json) print_head(&l);
    for (uint32_t i = 0; i < options->slot_counts && rc == CKKS_OK; i++) {
        if ((rc = run(&results[i], &l, options->slots[i], &err)) != CKKS_OK) break;
        is_good &= results[i].wrong == 0;
        if (options->common->json) continue;
        print_row(&results[i]);
        if (options->with_breakdown)
            bench_breakdown_print(results[i].breakdown, results[i].pack_us, results[i].reply_us);
    }
    if (rc == CKKS_OK && options->common->json) print_json(&l, results, options->slot_counts);
    load_fini(&l);
    if (rc != CKKS_OK) return ctl_fail(options->common, &err);
    return is_good ? EXIT_GOOD : EXIT_MISMATCH;
}
