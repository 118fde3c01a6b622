/* Latencies under load: kept as they come, sorted once at the end. */
#include "client/ctl/bench.h"

#include "client/lib/rpc_internal.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define KEPT_MAX (1u << 19) /* of each series; later ones are only counted by their owner */
#define UNIT_NS  100.0

ckks_status bench_latencies_init(bench_latencies *l, uint32_t capacity, ckks_error *err) {
    if (!capacity) capacity = KEPT_MAX;
    const size_t bytes = (size_t)capacity * sizeof *l->values;
    *l = (bench_latencies){.values = malloc(bytes), .capacity = capacity};
    if (!l->values) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for latencies");
    memset(l->values, 0, bytes); /* resident now, so that it is no growth later */
    return CKKS_OK;
}

void bench_latencies_fini(bench_latencies *l) {
    free(l->values);
    *l = (bench_latencies){0};
}

void bench_latencies_keep(bench_latencies *l, uint64_t ns) {
    if (l->count == l->capacity) return;
    const double units = (double)ns / UNIT_NS;
    l->values[l->count++] = units < (double)UINT32_MAX ? (uint32_t)units : UINT32_MAX;
}

static int compare(const void *a, const void *b) {
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

ckks_status bench_latencies_merge(bench_latencies *out, const bench_latencies *const *parts, uint32_t count,
                                  ckks_error *err) {
    size_t total = 0;
    for (uint32_t i = 0; i < count; i++) total += parts[i]->count;
    *out = (bench_latencies){.values = malloc((total + 1) * sizeof *out->values)};
    if (!out->values) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for latencies");
    for (uint32_t i = 0; i < count; i++) {
        if (parts[i]->count)
            memcpy(out->values + out->count, parts[i]->values, parts[i]->count * sizeof *out->values);
        out->count += parts[i]->count;
    }
    qsort(out->values, out->count, sizeof *out->values, compare);
    return CKKS_OK;
}

double bench_latencies_us(const bench_latencies *sorted, double share) {
    if (!sorted->count) return 0;
    return (double)sorted->values[(uint32_t)(share * (double)(sorted->count - 1))] * UNIT_NS * 1e-3;
}

void bench_wait_for(double seconds, const bench_count *count, uint64_t answers) {
    const uint64_t begin = rpc_now_ns();
    while (!atomic_load(&count->has_failed) &&
           ((double)(rpc_now_ns() - begin) * 1e-9 < seconds || atomic_load(&count->answers) < answers))
        bench_wait(0.01);
}

void bench_wait(double seconds) {
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&t, &t) != 0) {}
}
