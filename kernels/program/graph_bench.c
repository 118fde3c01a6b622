#include "kernels/program/graph_bench.h"

#include "kernels/program/graph_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SERIES_TOTAL, SERIES_LAUNCH, SERIES_STAGE, SERIES_REPLAY, SERIES_COPY_OUT, SERIES_COUNT };

/* One way of running: its program and its samples. */
typedef struct contender {
    graph_program *program;
    uint64_t *series[SERIES_COUNT]; /* [rounds] each */
} contender;

typedef struct bench {
    const graph_bench_config *config;
    contender ways[2]; /* eager, graph */
    uint64_t *samples;
    graph_result reference;
    uint32_t checked;
} bench;

static ckks_status check(bench *b, const graph_result *result, ckks_error *err) {
    for (uint32_t i = 0; i < result->output_count; i++) {
        const ckks_value *expected = &b->reference.outputs[i];
        if (memcmp(expected->words, result->outputs[i].words, expected->signature.bytes) == 0) continue;
        return ckks_error_set(err, CKKS_INTERNAL, "words", "output %u differs from the eager reference", i);
    }
    b->checked++;
    return CKKS_OK;
}

/* series NULL: not counted */
static ckks_status one_round(bench *b, contender *way, uint32_t round, bool is_counted, graph_result *out,
                             ckks_error *err) {
    const graph_bench_config *config = b->config;
    graph_handle handle;
    graph_pending *pending = NULL;
    ckks_status rc;
    const uint64_t begin = monotonic_ns();
    if ((rc = graph_program_copy_inputs_from(way->program, &handle, config->inputs,
                                             config->program->input_count, config->keys, err)) != CKKS_OK)
        return rc;
    const uint64_t copied = monotonic_ns();
    if ((rc = graph_program_replay_begin(way->program, &pending, handle, GRAPH_OUTPUT_OWNED, err)) != CKKS_OK)
        return rc;
    const uint64_t launched = monotonic_ns();
    if ((rc = graph_program_replay_finish(way->program, pending, out, err)) != CKKS_OK) return rc;
    const uint64_t end = monotonic_ns();
    if (!is_counted) return CKKS_OK;
    way->series[SERIES_TOTAL][round] = end - begin;
    way->series[SERIES_LAUNCH][round] = launched - copied;
    way->series[SERIES_STAGE][round] = out->stage_ns;
    way->series[SERIES_REPLAY][round] = out->replay_ns;
    way->series[SERIES_COPY_OUT][round] = out->copy_out_ns;
    return CKKS_OK;
}

static ckks_status checked_round(bench *b, contender *way, uint32_t round, bool is_counted,
                                 bool is_comparable, ckks_error *err) {
    graph_result result = {0};
    ckks_status rc = one_round(b, way, round, is_counted, &result, err);
    if (rc == CKKS_OK && is_comparable) rc = check(b, &result, err);
    graph_result_release(&result);
    return rc;
}

/* The eager result that all others must equal, and the first of the recording. */
static ckks_status compare_once(bench *b, ckks_error *err) {
    static const uint8_t fixed[32] = "the same stream for both";
    const bool is_random = b->config->program->uses_randomness;
    ckks_status rc = CKKS_OK;
    for (int i = 0; i < 2 && is_random && rc == CKKS_OK; i++)
        rc = graph_program_reseed(b->ways[i].program, fixed, err);
    if (rc == CKKS_OK) rc = one_round(b, &b->ways[0], 0, false, &b->reference, err);
    if (rc == CKKS_OK) rc = checked_round(b, &b->ways[1], 0, false, true, err);
    for (int i = 0; i < 2 && is_random && rc == CKKS_OK; i++)
        rc = graph_program_reseed(b->ways[i].program, NULL, err);
    return rc;
}

static ckks_status run_rounds(bench *b, ckks_error *err) {
    const graph_bench_config *config = b->config;
    const bool is_comparable = !config->program->uses_randomness;
    ckks_status rc;
    for (uint32_t round = 0; round < config->warmup + config->rounds; round++)
        for (uint32_t turn = 0; turn < 2; turn++) {
            const bool is_counted = round >= config->warmup;
            contender *way = &b->ways[(round + turn) % 2]; /* who goes first alternates too */
            if ((rc = checked_round(b, way, is_counted ? round - config->warmup : 0, is_counted,
                                    is_comparable, err)) != CKKS_OK)
                return rc;
        }
    return CKKS_OK;
}

static int compare_u64(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static graph_bench_figure figure_of(uint64_t *series, uint32_t count) {
    qsort(series, count, sizeof *series, compare_u64);
    return (graph_bench_figure){.median_ns = series[count / 2],
                                .low_ns = series[count / 10],
                                .high_ns = series[(uint64_t)count * 9 / 10]};
}

static void fill_mode(graph_bench_mode *mode, contender *way, uint32_t rounds) {
    graph_program_stats stats;
    graph_program_get_stats(way->program, &stats);
    mode->total = figure_of(way->series[SERIES_TOTAL], rounds);
    mode->launch = figure_of(way->series[SERIES_LAUNCH], rounds);
    mode->stage = figure_of(way->series[SERIES_STAGE], rounds);
    mode->replay = figure_of(way->series[SERIES_REPLAY], rounds);
    mode->copy_out = figure_of(way->series[SERIES_COPY_OUT], rounds);
    mode->device_bytes =
        stats.input_bytes + stats.output_bytes + stats.device_staging_bytes + stats.key_table_bytes;
    mode->host_bytes = stats.staging_bytes + stats.output_bytes;
    mode->arena_bytes = stats.arena_bytes;
    mode->capture_ns = stats.warmup_ns + stats.capture_ns + stats.first_replay_ns;
}

static ckks_status start(bench *b, ckks_error *err) {
    const graph_bench_config *config = b->config;
    b->samples = calloc((size_t)config->rounds * SERIES_COUNT * 2, sizeof *b->samples);
    if (b->samples == NULL) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "rounds", "out of memory");
    for (uint32_t i = 0; i < 2; i++) {
        contender *way = &b->ways[i];
        graph_program_config program = *config->program;
        program.execution_eager = i == 0;
        for (uint32_t s = 0; s < SERIES_COUNT; s++)
            way->series[s] = b->samples + (size_t)config->rounds * (i * SERIES_COUNT + s);
        ckks_status rc = graph_program_create(&way->program, config->slot, &program, err);
        if (rc == CKKS_OK) rc = graph_program_capture(way->program, 1, config->examples, config->keys, err);
        if (rc != CKKS_OK) return rc;
    }
    return CKKS_OK;
}

ckks_status graph_bench_run(graph_bench_result *out, const graph_bench_config *config, ckks_error *err) {
    if (out == NULL || config == NULL || config->program == NULL || config->rounds == 0 ||
        config->rounds > GRAPH_BENCH_ROUNDS_MAX || config->warmup > GRAPH_BENCH_ROUNDS_MAX)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "rounds", "1 to %u rounds", GRAPH_BENCH_ROUNDS_MAX);
    bench b = {.config = config};
    ckks_status rc;
    if ((rc = start(&b, err)) != CKKS_OK) goto out;
    if ((rc = compare_once(&b, err)) != CKKS_OK) goto out;
    if ((rc = run_rounds(&b, err)) != CKKS_OK) goto out;
    *out = (graph_bench_result){.rounds = config->rounds, .rounds_checked = b.checked};
    fill_mode(&out->eager, &b.ways[0], config->rounds);
    fill_mode(&out->graph, &b.ways[1], config->rounds);
    graph_program_stats stats;
    graph_program_get_stats(b.ways[1].program, &stats);
    out->kernel_nodes = stats.kernel_nodes;
    out->copy_nodes = stats.copy_nodes;
    out->fill_nodes = stats.fill_nodes;
out:
    graph_result_release(&b.reference);
    for (uint32_t i = 0; i < 2; i++) graph_program_destroy(b.ways[i].program);
    free(b.samples);
    return rc;
}

char *graph_bench_summary(const graph_bench_result *result, char *text, uint32_t capacity) {
    const double eager = (double)result->eager.total.median_ns, graph = (double)result->graph.total.median_ns;
    const uint64_t copies = result->graph.stage.median_ns + result->graph.copy_out.median_ns;
    /* within the spread there is no difference to speak of */
    const bool is_faster = result->graph.total.high_ns < result->eager.total.median_ns ||
                           result->graph.total.median_ns < result->eager.total.low_ns;
    const double saved = eager > 0 ? 100.0 * (eager - graph) / eager : 0;
    if (is_faster)
        snprintf(text, capacity, "the recording helps: %.1f %% less time per request over %u kernels", saved,
                 result->kernel_nodes);
    else if (result->kernel_nodes <= 1)
        snprintf(text, capacity, "the recording does not help: there is only one kernel to launch");
    else if (copies > result->graph.replay.median_ns)
        snprintf(text, capacity,
                 "the recording does not help: staging and copies take longer than the evaluation");
    else
        snprintf(text, capacity,
                 "the recording does not help: the kernels themselves take the time, not their %u launches",
                 result->kernel_nodes);
    return text;
}
