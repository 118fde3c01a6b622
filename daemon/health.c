#include "daemon/health.h"

#include "daemon/clock.h"
#include "daemon/fault.h"
#include "daemon/logging.h"
#include "daemon/server.h"

#include <stdio.h>
#include <string.h>

static void throttle_text(char *text, size_t size, uint64_t bits) {
    size_t used = 0;
    text[0] = 0;
    for (uint32_t i = 0; i < HEALTH_THROTTLE_REASONS; i++) {
        const health_throttle_reason *r = &health_throttle_reasons[i];
        if (!(bits & r->bit & HEALTH_THROTTLE_BAD) || used >= size) continue;
        used += (size_t)snprintf(text + used, size - used, "%s%s", used ? "," : "", r->name);
    }
}

/* Changes only: a card that is hot for an hour is one line, and one more when it has cooled down. */
static void report(const health_monitor *h) {
    const device_health *now = &h->now, *before = &h->before;
    char reasons[96];
    const uint64_t bad = now->throttle & HEALTH_THROTTLE_BAD, was = before->throttle & HEALTH_THROTTLE_BAD;
    throttle_text(reasons, sizeof reasons, bad);
    if (bad != was && bad)
        log_write(LOG_LEVEL_WARNING, "event=gpu_throttled reasons=%s temperature_c=%u power_w=%.0f", reasons,
                  now->temperature_c, (double)now->power_mw * 1e-3);
    else if (bad != was)
        log_write(LOG_LEVEL_NOTICE, "event=gpu_not_throttled temperature_c=%u", now->temperature_c);
    if (now->ecc_uncorrected > before->ecc_uncorrected)
        log_write(LOG_LEVEL_ERROR,
                  "event=gpu_memory_errors uncorrected=%llu corrected=%llu message=\"memory of the card "
                  "fails: replace it\"",
                  (unsigned long long)now->ecc_uncorrected, (unsigned long long)now->ecc_corrected);
}

static void publish(const device_health *now) {
    metrics_gpu *g = &daemon_metrics.gpu;
    atomic_store(&g->temperature_c, now->temperature_c);
    atomic_store(&g->power_mw, now->power_mw);
    atomic_store(&g->power_limit_mw, now->power_limit_mw);
    atomic_store(&g->utilisation_percent, now->utilisation_percent);
    atomic_store(&g->memory_utilisation_percent, now->memory_utilisation_percent);
    atomic_store(&g->clock_mhz, now->clock_mhz);
    atomic_store(&g->memory_used, now->memory_used);
    atomic_store(&g->memory_total, now->memory_total);
    atomic_store(&g->ecc_corrected, now->ecc_corrected);
    atomic_store(&g->ecc_uncorrected, now->ecc_uncorrected);
    atomic_store(&g->throttle, now->throttle);
    atomic_store(&g->known, now->known);
}

void health_start(server *s) {
    health_monitor *h = &s->health;
    ckks_error err = {0};
    char reasons[96];
    const health_driver *driver = fault_health_driver();
    h->server = s;
    if (!driver && device_get_kind(s->device) != DEVICE_CUDA) return;
    if (health_open(&h->source, device_hardware_id(s->device), driver, &err) != CKKS_OK) {
        log_write(LOG_LEVEL_NOTICE, "event=gpu_health_unknown message=\"%s\"", err.message);
        return;
    }
    health_read(h->source, &h->now);
    snprintf(daemon_metrics.gpu.name, sizeof daemon_metrics.gpu.name, "%s", h->now.name);
    snprintf(daemon_metrics.gpu.id, sizeof daemon_metrics.gpu.id, "%s", device_hardware_id(s->device));
    snprintf(daemon_metrics.gpu.driver, sizeof daemon_metrics.gpu.driver, "%s", h->now.driver);
    throttle_text(reasons, sizeof reasons, h->now.throttle);
    log_write(LOG_LEVEL_NOTICE,
              "event=gpu_health name=\"%s\" driver=%s temperature_c=%u power_w=%.0f memory_used_mib=%llu "
              "ecc_uncorrected=%llu throttled=%s",
              h->now.name, h->now.driver, h->now.temperature_c, (double)h->now.power_mw * 1e-3,
              (unsigned long long)(h->now.memory_used >> 20), (unsigned long long)h->now.ecc_uncorrected,
              reasons[0] ? reasons : "no");
    publish(&h->now);
    h->next_ns = clock_now_ns() + HEALTH_INTERVAL_NS;
}

static void read_now(loop_work *work) {
    health_monitor *h = LIST_ENTRY(work, health_monitor, work);
    health_read(h->source, &h->now);
}

static void have_read(loop_work *work) {
    health_monitor *h = LIST_ENTRY(work, health_monitor, work);
    h->is_reading = false;
    h->server->pool_jobs--;
    report(h);
    publish(&h->now);
    h->next_ns = clock_now_ns() + HEALTH_INTERVAL_NS;
}

void health_tick(server *s, uint64_t now_ns) {
    health_monitor *h = &s->health;
    if (!h->source || h->is_reading || now_ns < h->next_ns) return;
    h->before = h->now;
    h->is_reading = true;
    s->pool_jobs++;
    h->work.work = read_now;
    h->work.done = have_read;
    loop_submit(&s->loop, &h->work);
}

void health_stop(health_monitor *h) {
    health_close(h->source);
    h->source = NULL;
}
