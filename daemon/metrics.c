#include "daemon/metrics.h"

#include "daemon/clock.h"
#include "kernels/device_health.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

metrics daemon_metrics;
static pthread_mutex_t names_lock = PTHREAD_MUTEX_INITIALIZER; /* a page is of one set of models */

static const double bucket_s[METRICS_BUCKETS] = {0.00002, 0.00005, 0.0001, 0.00025, 0.0005, 0.001,
                                                 0.0025,  0.005,   0.01,   0.025,   0.05,   0.1,
                                                 0.25,    0.5,     1,      2.5,     10,     60};

static pthread_mutex_t causes_lock = PTHREAD_MUTEX_INITIALIZER; /* held while one text is copied */

static inline uint64_t load(const _Atomic uint64_t *value) {
    return atomic_load_explicit(value, memory_order_relaxed);
}

void histogram_add(histogram *h, uint64_t ns) {
    uint32_t i = 0;
    while (i < METRICS_BUCKETS && (double)ns > bucket_s[i] * 1e9) i++;
    atomic_fetch_add_explicit(&h->bucket[i], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&h->sum_ns, ns, memory_order_relaxed);
}

uint64_t histogram_count(const histogram *h) {
    uint64_t count = 0;
    for (uint32_t i = 0; i <= METRICS_BUCKETS; i++) count += load(&h->bucket[i]);
    return count;
}

metrics_model *metrics_model_add(const char *name, const char *version) {
    metrics *m = &daemon_metrics;
    const uint32_t count = atomic_load(&m->model_count);
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(m->models[i].name, name) == 0 && strcmp(m->models[i].version, version) == 0)
            return &m->models[i];
    if (count == METRICS_MODELS_MAX) return NULL;
    snprintf(m->models[count].name, METRICS_NAME_SIZE, "%s", name);
    snprintf(m->models[count].version, METRICS_NAME_SIZE, "%s", version);
    atomic_store(&m->model_count, count + 1);
    return &m->models[count];
}

void metrics_model_replace(metrics_model *m, const char *name, const char *version) {
    pthread_mutex_lock(&names_lock);
    memset(m, 0, sizeof *m);
    snprintf(m->name, METRICS_NAME_SIZE, "%s", name);
    snprintf(m->version, METRICS_NAME_SIZE, "%s", version);
    pthread_mutex_unlock(&names_lock);
}

void metrics_set_cause(char cause[METRICS_CAUSE_SIZE], const char *text) {
    pthread_mutex_lock(&causes_lock);
    snprintf(cause, METRICS_CAUSE_SIZE, "%s", text ? text : "");
    pthread_mutex_unlock(&causes_lock);
}

static void get_cause(char out[METRICS_CAUSE_SIZE], const char cause[METRICS_CAUSE_SIZE]) {
    pthread_mutex_lock(&causes_lock);
    memcpy(out, cause, METRICS_CAUSE_SIZE);
    pthread_mutex_unlock(&causes_lock);
}

void metrics_slot_left(metrics_slot *s, const char *cause) {
    if (atomic_load(&s->left_ns)) return;
    metrics_set_cause(s->cause, cause);
    atomic_store(&s->left_ns, clock_now_ns());
}

void metrics_slot_back(metrics_slot *s) {
    atomic_store(&s->left_ns, 0);
    metrics_set_cause(s->cause, NULL);
}

metrics_method *metrics_method_add(const char *name) {
    metrics *m = &daemon_metrics;
    const uint32_t count = atomic_load(&m->method_count);
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(m->methods[i].name, name) == 0) return &m->methods[i];
    if (count == METRICS_METHODS_MAX) return NULL;
    m->methods[count].name = name;
    atomic_store(&m->method_count, count + 1);
    return &m->methods[count];
}

bool metrics_is_live(uint64_t now_ns, uint32_t *stalled) {
    const uint32_t count = atomic_load(&daemon_metrics.slot_count);
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t progress = load(&daemon_metrics.slots[i].progress_ns);
        const uint64_t limit = load(&daemon_metrics.slots[i].limit_ns);
        if (now_ns <= progress || now_ns - progress <= limit) continue;
        if (stalled) *stalled = i;
        return false;
    }
    return true;
}

const char *slot_state_name(slot_state state) {
    static const char *const names[] = {"starting", "idle", "busy", "quarantined", "lost"};
    return state < SLOT_STATES ? names[state] : "unknown";
}

/* ---- the page ---- */

static void head(FILE *out, const char *name, const char *type, const char *help) {
    fprintf(out, "# HELP ckksd_%s %s\n# TYPE ckksd_%s %s\n", name, help, name, type);
}
static void one(FILE *out, const char *name, const char *type, const char *help, uint64_t value) {
    head(out, name, type, help);
    fprintf(out, "ckksd_%s %llu\n", name, (unsigned long long)value);
}

static void print_histogram(FILE *out, const char *name, const char *help, size_t offset) {
    const uint32_t count = atomic_load(&daemon_metrics.model_count);
    head(out, name, "histogram", help);
    for (uint32_t i = 0; i < count; i++) {
        const metrics_model *model = &daemon_metrics.models[i];
        const histogram *h = (const histogram *)(const void *)((const char *)model + offset);
        uint64_t total = 0;
        for (uint32_t b = 0; b < METRICS_BUCKETS; b++) {
            total += load(&h->bucket[b]);
            fprintf(out, "ckksd_%s_bucket{model=\"%s\",version=\"%s\",le=\"%g\"} %llu\n", name, model->name,
                    model->version, bucket_s[b], (unsigned long long)total);
        }
        total += load(&h->bucket[METRICS_BUCKETS]);
        fprintf(out, "ckksd_%s_bucket{model=\"%s\",version=\"%s\",le=\"+Inf\"} %llu\n", name, model->name,
                model->version, (unsigned long long)total);
        fprintf(out, "ckksd_%s_sum{model=\"%s\",version=\"%s\"} %.9f\n", name, model->name, model->version,
                (double)load(&h->sum_ns) / 1e9);
        fprintf(out, "ckksd_%s_count{model=\"%s\",version=\"%s\"} %llu\n", name, model->name, model->version,
                (unsigned long long)total);
    }
}

static void print_requests(FILE *out) {
    const metrics *m = &daemon_metrics;
    head(out, "requests_total", "counter", "Requests answered, by method and gRPC code.");
    for (uint32_t i = 0; i < atomic_load(&m->method_count); i++)
        for (uint32_t c = 0; c < METRICS_CODES; c++)
            if (c == 0 || load(&m->methods[i].code[c]))
                fprintf(out, "ckksd_requests_total{method=\"%s\",code=\"%s\"} %llu\n", m->methods[i].name,
                        rpc_code_name((rpc_code)c), (unsigned long long)load(&m->methods[i].code[c]));
    head(out, "inferences_total", "counter", "Inference requests answered, by model and gRPC code.");
    for (uint32_t i = 0; i < atomic_load(&m->model_count); i++)
        for (uint32_t c = 0; c < METRICS_CODES; c++)
            if (c == 0 || load(&m->models[i].code[c]))
                fprintf(out, "ckksd_inferences_total{model=\"%s\",version=\"%s\",code=\"%s\"} %llu\n",
                        m->models[i].name, m->models[i].version, rpc_code_name((rpc_code)c),
                        (unsigned long long)load(&m->models[i].code[c]));
    head(out, "rejections_total", "counter", "Refusals, by cause and wire reason.");
    for (uint32_t s = 1; s < CKKS_STATUS_COUNT; s++)
        if (load(&m->rejected[s]))
            fprintf(out, "ckksd_rejections_total{cause=\"%s\",reason=\"%s\"} %llu\n",
                    ckks_status_name((ckks_status)s), ckks_status_reason((ckks_status)s),
                    (unsigned long long)load(&m->rejected[s]));
}

static void print_slots(FILE *out) {
    const metrics *m = &daemon_metrics;
    uint64_t by_state[SLOT_STATES] = {0};
    const uint64_t now = clock_now_ns();
    const uint32_t count = atomic_load(&m->slot_count);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t state = atomic_load(&m->slots[i].state);
        if (state < SLOT_STATES) by_state[state]++;
    }
    head(out, "slots", "gauge", "Worker slots, by state.");
    for (uint32_t s = 0; s < SLOT_STATES; s++)
        fprintf(out, "ckksd_slots{state=\"%s\"} %llu\n", slot_state_name((slot_state)s),
                (unsigned long long)by_state[s]);
    head(out, "slot_progress_age_seconds", "gauge", "Time since each slot last made progress.");
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t progress = load(&m->slots[i].progress_ns);
        fprintf(out, "ckksd_slot_progress_age_seconds{slot=\"%u\"} %.3f\n", i,
                now > progress ? (double)(now - progress) / 1e9 : 0.0);
    }
    head(out, "slot_out_of_service_seconds", "gauge",
         "Time since each slot left service; 0: it is in service.");
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t left = load(&m->slots[i].left_ns);
        fprintf(out, "ckksd_slot_out_of_service_seconds{slot=\"%u\"} %.3f\n", i,
                left && now > left ? (double)(now - left) / 1e9 : 0.0);
    }
    one(out, "slot_recoveries_total", "counter", "Slots that came back from quarantine.",
        load(&m->slot_recoveries));
}

static void print_models(FILE *out) {
    const metrics *m = &daemon_metrics;
    const uint32_t count = atomic_load(&m->model_count);
    head(out, "model_ready", "gauge", "1 when a slot in service has the model's program.");
    for (uint32_t i = 0; i < count; i++)
        if (atomic_load(&m->models[i].state))
            fprintf(out, "ckksd_model_ready{model=\"%s\",version=\"%s\"} %d\n", m->models[i].name,
                    m->models[i].version, atomic_load(&m->models[i].slots) > 0);
    head(out, "model_slots", "gauge", "Slots in service that have the model's program.");
    for (uint32_t i = 0; i < count; i++)
        if (atomic_load(&m->models[i].state))
            fprintf(out, "ckksd_model_slots{model=\"%s\",version=\"%s\"} %u\n", m->models[i].name,
                    m->models[i].version, atomic_load(&m->models[i].slots));
}

static void print_retries(FILE *out) {
    const metrics *m = &daemon_metrics;
    head(out, "model_retries_total", "counter",
         "Loads of a model by itself after a device error kept it from getting ready.");
    for (uint32_t i = 0; i < atomic_load(&m->model_count); i++)
        if (atomic_load(&m->models[i].state))
            fprintf(out, "ckksd_model_retries_total{model=\"%s\",version=\"%s\"} %llu\n", m->models[i].name,
                    m->models[i].version, (unsigned long long)load(&m->models[i].retries));
}

/* One line for each slot that is out of service, and for each model that is not served. */
static void print_troubles(FILE *out) {
    const metrics *m = &daemon_metrics;
    const uint64_t now = clock_now_ns();
    char cause[METRICS_CAUSE_SIZE];
    for (uint32_t i = 0; i < atomic_load(&m->slot_count); i++) {
        const metrics_slot *s = &m->slots[i];
        const uint64_t left = load(&s->left_ns);
        if (!left) continue;
        get_cause(cause, s->cause);
        fprintf(out, "slot %u: %s for %.0f s: %s\n", i, slot_state_name((slot_state)atomic_load(&s->state)),
                now > left ? (double)(now - left) / 1e9 : 0.0, cause);
    }
    pthread_mutex_lock(&names_lock);
    for (uint32_t i = 0; i < atomic_load(&m->model_count); i++) {
        const metrics_model *one_model = &m->models[i];
        const char *state = atomic_load(&one_model->state);
        if (!state || atomic_load(&one_model->slots)) continue;
        get_cause(cause, one_model->cause);
        fprintf(out, "model %s/%s: %s, on no slot%s%s", one_model->name, one_model->version, state,
                cause[0] ? ": " : "", cause);
        const uint64_t retry_ns = load(&one_model->retry_ns);
        if (retry_ns)
            fprintf(out, "; retry %u of %u in %.0f s", atomic_load(&one_model->retry),
                    atomic_load(&one_model->retry_of), retry_ns > now ? (double)(retry_ns - now) / 1e9 : 0.0);
        fputc('\n', out);
    }
    pthread_mutex_unlock(&names_lock);
}

char *metrics_print_readiness(bool *is_ready, size_t *size) {
    const metrics *m = &daemon_metrics;
    char *text = NULL;
    FILE *out = open_memstream(&text, size);
    if (!out) return NULL;
    *is_ready = atomic_load(&m->is_ready);
    fputs(*is_ready                         ? "ok\n"
          : atomic_load(&m->is_draining)    ? "draining\n"
          : atomic_load(&m->is_interrupted) ? "no slot is in service\n"
                                            : "starting\n",
          out);
    if (*is_ready || atomic_load(&m->is_interrupted)) print_troubles(out);
    const bool is_whole = !ferror(out);
    if (fclose(out) == 0 && is_whole) return text;
    free(text);
    return NULL;
}

static uint64_t resident_bytes(void) {
    unsigned long size = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (!file) return 0;
    if (fscanf(file, "%lu %lu", &size, &resident) != 2) resident = 0; /* NOLINT(cert-err34-c) */
    fclose(file);
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void print_memory(FILE *out) {
    static const char *const purposes[MEMORY_PURPOSE_COUNT] = {"static", "keys", "arena", "retained",
                                                               "staging"};
    const metrics *m = &daemon_metrics;
    head(out, "device_memory_bytes", "gauge",
         "Memory of the device (staging: pinned host memory), by purpose.");
    for (uint32_t i = 0; i < MEMORY_PURPOSE_COUNT; i++)
        fprintf(out, "ckksd_device_memory_bytes{purpose=\"%s\"} %llu\n", purposes[i],
                (unsigned long long)load(&m->memory[i]));
    one(out, "device_memory_max_bytes", "gauge", "The device's memory budget.", load(&m->memory_max));
    one(out, "resident_memory_bytes", "gauge", "Resident memory of the process.", resident_bytes());
}

static void real(FILE *out, const char *name, const char *help, double value) {
    head(out, name, "gauge", help);
    fprintf(out, "ckksd_%s %g\n", name, value);
}

static void print_gpu(FILE *out) {
    const metrics_gpu *g = &daemon_metrics.gpu;
    const uint32_t known = atomic_load(&g->known);
    if (!known) return;
    head(out, "gpu_info", "gauge", "The card in use.");
    fprintf(out, "ckksd_gpu_info{name=\"%s\",id=\"%s\",driver=\"%s\"} 1\n", g->name, g->id, g->driver);
    if (known & HEALTH_TEMPERATURE)
        one(out, "gpu_temperature_celsius", "gauge", "Temperature of the card.", load(&g->temperature_c));
    if (known & HEALTH_POWER)
        real(out, "gpu_power_watts", "Power that the card draws.", (double)load(&g->power_mw) * 1e-3);
    if (known & HEALTH_POWER_LIMIT)
        real(out, "gpu_power_limit_watts", "Power that it may draw.",
             (double)load(&g->power_limit_mw) * 1e-3);
    if (known & HEALTH_UTILISATION) {
        real(out, "gpu_utilization_ratio", "Share of the last moment in which a kernel ran.",
             (double)load(&g->utilisation_percent) * 1e-2);
        real(out, "gpu_memory_utilization_ratio",
             "Share of it in which the card's memory was read or written.",
             (double)load(&g->memory_utilisation_percent) * 1e-2);
    }
    if (known & HEALTH_CLOCK)
        one(out, "gpu_clock_megahertz", "gauge", "Clock of the multiprocessors.", load(&g->clock_mhz));
    if (known & HEALTH_MEMORY) {
        one(out, "gpu_memory_used_bytes", "gauge", "The card's memory in use, by all processes.",
            load(&g->memory_used));
        one(out, "gpu_memory_total_bytes", "gauge", "Memory of the card.", load(&g->memory_total));
    }
    if (known & HEALTH_ECC) {
        head(out, "gpu_memory_errors_total", "counter", "Memory errors since the driver was loaded.");
        fprintf(out, "ckksd_gpu_memory_errors_total{kind=\"corrected\"} %llu\n",
                (unsigned long long)load(&g->ecc_corrected));
        fprintf(out, "ckksd_gpu_memory_errors_total{kind=\"uncorrected\"} %llu\n",
                (unsigned long long)load(&g->ecc_uncorrected));
    }
    if (known & HEALTH_THROTTLE) {
        const uint64_t bits = load(&g->throttle);
        head(out, "gpu_throttled", "gauge", "1 while clocks are held back, by reason.");
        for (uint32_t i = 0; i < HEALTH_THROTTLE_REASONS; i++)
            fprintf(out, "ckksd_gpu_throttled{reason=\"%s\"} %d\n", health_throttle_reasons[i].name,
                    (bits & health_throttle_reasons[i].bit) != 0);
    }
}

char *metrics_print(size_t *size) {
    const metrics *m = &daemon_metrics;
    char *text = NULL;
    FILE *out = open_memstream(&text, size);
    if (!out) return NULL;
    pthread_mutex_lock(&names_lock);
    head(out, "build_info", "gauge", "The version that runs.");
    fprintf(out, "ckksd_build_info{version=\"%s\"} 1\n", CKKSD_VERSION);
    one(out, "start_time_seconds", "gauge", "Start of the process, Unix time.", load(&m->start_unix_s));
    one(out, "ready", "gauge", "1 when the server accepts inference.", atomic_load(&m->is_ready) ? 1 : 0);
    one(out, "draining", "gauge", "1 while the server finishes its last work.",
        atomic_load(&m->is_draining) ? 1 : 0);
    print_requests(out);
    print_histogram(out, "queue_seconds", "Time from receipt to a slot.", offsetof(metrics_model, queue));
    print_histogram(out, "stage_seconds", "Time to copy and unpack inputs.", offsetof(metrics_model, stage));
    print_histogram(out, "replay_seconds", "Time of the evaluation.", offsetof(metrics_model, replay));
    print_histogram(out, "copy_out_seconds", "Time to copy and pack outputs.",
                    offsetof(metrics_model, copy_out));
    print_histogram(out, "receive_seconds",
                    "Time from a request's first bytes to its last (local addresses).",
                    offsetof(metrics_model, receive));
    print_histogram(out, "check_seconds", "Part of queue_seconds: checks, to admission.",
                    offsetof(metrics_model, check));
    print_histogram(out, "pack_seconds",
                    "Part of copy_out_seconds: packing and, to local peers, writing the reply.",
                    offsetof(metrics_model, pack));
    print_histogram(out, "reply_seconds",
                    "Time from the slot's end until the reply is its socket's, for all the loop knows.",
                    offsetof(metrics_model, reply));
    print_slots(out);
    print_models(out);
    print_retries(out);
    one(out, "queue_depth", "gauge", "Inference requests waiting.", load(&m->queued));
    one(out, "running", "gauge", "Inference requests on a slot.", load(&m->running));
    one(out, "queue_bytes", "gauge", "Bytes of requests waiting or running.", load(&m->queued_bytes));
    one(out, "dedupe_joined_total", "counter", "Retries that joined a running request.",
        load(&m->dedupe_joined));
    one(out, "dedupe_replayed_total", "counter", "Retries answered with a finished reply.",
        load(&m->dedupe_replayed));
    one(out, "dedupe_bytes", "gauge", "Bytes of finished replies kept for retries.", load(&m->dedupe_bytes));
    one(out, "key_sets", "gauge", "Committed key sets.", load(&m->key_sets));
    one(out, "key_set_bytes", "gauge", "Bytes of committed key sets, seeded.", load(&m->key_bytes));
    one(out, "key_sets_resident", "gauge", "Key sets on the device.", load(&m->key_sets_resident));
    one(out, "key_set_resident_bytes", "gauge", "Bytes of key sets on the device.",
        load(&m->key_bytes_resident));
    one(out, "key_loads_total", "counter", "Key sets brought to the device.", load(&m->key_uploads));
    one(out, "key_evictions_total", "counter", "Key sets taken off the device for room.",
        load(&m->key_evictions));
    one(out, "connections", "gauge", "Open connections.", load(&m->pipes));
    one(out, "connections_unauthenticated", "gauge", "Of those, whose peer has shown no valid token yet.",
        load(&m->pipes_unauthenticated));
    one(out, "connections_displaced_total", "counter",
        "Connections without a valid token that were closed for newer ones.", load(&m->pipes_displaced));
    one(out, "connections_expired_total", "counter",
        "Connections closed because they had shown no valid token in time.", load(&m->pipes_expired));
    one(out, "connections_refused_total", "counter", "Connections turned away.", load(&m->pipes_refused));
    one(out, "local_request_memory_bytes", "gauge", "Memory lent to local clients for their requests.",
        load(&m->local_request_bytes));
    one(out, "local_reply_memory_bytes", "gauge", "Memory lent to local clients for replies.",
        load(&m->local_reply_bytes));
    one(out, "local_memory_replies_total", "counter", "Replies that went through lent memory.",
        load(&m->local_replies));
    one(out, "tenants", "gauge", "Tenants in the token file.", load(&m->tenants));
    print_memory(out);
    print_gpu(out);
    pthread_mutex_unlock(&names_lock);
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}
