/*
 * Where a request's time goes. The stages below follow one another, but for sending, which the daemon's
 * receipt goes beside; what no stage has is the rest: changes of threads, the socket's two ways, and what the
 * daemon does after it wrote its times into the reply (packing is in the copy). Of the latter the daemon
 * keeps sums, which say a mean.
 */
#include "client/ctl/bench.h"

#include <stdlib.h>
#include <string.h>

#define KEPT_MAX (1u << 15)

typedef struct stage_text {
    const char *name, *json, *note;
} stage_text;

static const stage_text texts[BENCH_STAGES] = {
    [BENCH_BUILD] = {"client: build", "build", "checks, headers"},
    [BENCH_SEND] = {"client: send", "send", "until the socket has all; beside the next"},
    [BENCH_RECEIVE] = {"daemon: receive", "receive", "from its first bytes to its last"},
    [BENCH_CHECK] = {"daemon: check", "check", "frame, token, inputs, admission"},
    [BENCH_QUEUE] = {"daemon: queue", "queue", "admitted until a slot has it"},
    [BENCH_STAGE] = {"daemon: stage", "stage", "to the device, unpacked"},
    [BENCH_REPLAY] = {"daemon: replay", "replay", "the evaluation"},
    [BENCH_COPY_OUT] = {"daemon: copy out", "copy_out", "back to the host"},
    [BENCH_REPLY] = {"client: receive", "reply", "the reply, from its first bytes"},
    [BENCH_READ] = {"client: read", "read", "its headers"},
    [BENCH_REST] = {"rest", "rest", "wake-ups, the ways, packing"},
    [BENCH_TOTAL] = {"total", "total", ""},
};

ckks_status bench_breakdown_init(bench_breakdown *b, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    *b = (bench_breakdown){0};
    for (uint32_t i = 0; i < BENCH_STAGES && rc == CKKS_OK; i++)
        rc = bench_latencies_init(&b->stage[i], KEPT_MAX, err);
    return rc;
}

void bench_breakdown_fini(bench_breakdown *b) {
    for (uint32_t i = 0; i < BENCH_STAGES; i++) bench_latencies_fini(&b->stage[i]);
}

static uint64_t less(uint64_t a, uint64_t b) {
    return a > b ? a - b : 0;
}

void bench_breakdown_keep(bench_breakdown *b, const rpc_timing *t) {
    uint64_t ns[BENCH_STAGES] = {
        [BENCH_BUILD] = less(t->trip.begin_ns, t->begin_ns),
        [BENCH_SEND] = less(t->trip.sent_ns, t->trip.begin_ns),
        [BENCH_RECEIVE] = t->receive_ns,
        [BENCH_CHECK] = t->check_ns,
        [BENCH_QUEUE] = less(t->queue_ns, t->check_ns),
        [BENCH_STAGE] = t->stage_ns,
        [BENCH_REPLAY] = t->replay_ns,
        [BENCH_COPY_OUT] = t->copy_out_ns,
        [BENCH_REPLY] = less(t->trip.done_ns, t->trip.came_ns),
        [BENCH_READ] = less(t->begin_ns + t->total_ns, t->trip.done_ns),
        [BENCH_TOTAL] = t->total_ns,
    };
    uint64_t known = 0;
    for (uint32_t i = 0; i < BENCH_REST; i++)
        if (i != BENCH_SEND) known += ns[i];
    ns[BENCH_REST] = less(t->total_ns, known);
    for (uint32_t i = 0; i < BENCH_STAGES; i++) bench_latencies_keep(&b->stage[i], ns[i]);
}

ckks_status bench_breakdown_merge(bench_breakdown_row out[BENCH_STAGES], const bench_breakdown *const *parts,
                                  uint32_t count, ckks_error *err) {
    const bench_latencies *of_stage[BENCH_SLOTS_MAX];
    for (uint32_t i = 0; i < BENCH_STAGES; i++) {
        bench_latencies all;
        for (uint32_t p = 0; p < count; p++) of_stage[p] = &parts[p]->stage[i];
        const ckks_status rc = bench_latencies_merge(&all, of_stage, count, err);
        if (rc != CKKS_OK) return rc;
        out[i].median_us = bench_latencies_us(&all, 0.5);
        out[i].p90_us = bench_latencies_us(&all, 0.9);
        bench_latencies_fini(&all);
    }
    return CKKS_OK;
}

/* ---- the daemon's own sums ---- */

static void add(bench_sum *sum, const Ckksd__V1__Duration *d) {
    if (!d) return;
    sum->count += d->count, sum->ns += d->ns;
}

ckks_status bench_sums_read(bench_sums *out, rpc_connection *connection, const client_model *model,
                            ckks_error *err) {
    Ckksd__V1__ModelRequest payload = CKKSD__V1__MODEL_REQUEST__INIT;
    const rpc_request request = {.method = "Inference/ModelStatistics",
                                 .payload = &payload.base,
                                 .reply = &ckksd__v1__model_statistics_reply__descriptor};
    rpc_reply reply = {0};
    payload.name = model->description->name, payload.version = model->description->version;
    const ckks_status rc = rpc_call(connection, &request, &reply, err);
    *out = (bench_sums){0};
    if (rc == CKKS_OK) {
        const Ckksd__V1__ModelStatisticsReply *r = (const Ckksd__V1__ModelStatisticsReply *)reply.payload;
        for (size_t i = 0; i < r->n_models; i++)
            add(&out->pack, r->models[i]->pack), add(&out->reply, r->models[i]->reply);
    }
    rpc_reply_fini(&reply);
    return rc;
}

static double mean_us(const bench_sum *before, const bench_sum *after) {
    const uint64_t count = less(after->count, before->count);
    return count ? (double)less(after->ns, before->ns) / (double)count * 1e-3 : 0;
}

void bench_sums_means(double *pack_us, double *reply_us, const bench_sums *before, const bench_sums *after) {
    *pack_us = mean_us(&before->pack, &after->pack);
    *reply_us = mean_us(&before->reply, &after->reply);
}

/* ---- to people and programs ---- */

void bench_breakdown_print(const bench_breakdown_row rows[BENCH_STAGES], double pack_us, double reply_us) {
    printf("  %-18s %10s %9s\n", "", "median us", "90 %");
    for (uint32_t i = 0; i < BENCH_STAGES; i++)
        printf("  %-18s %10.1f %9.1f  %s\n", texts[i].name, rows[i].median_us, rows[i].p90_us, texts[i].note);
    printf("  of the rest, by the daemon's sums: packing and, here, writing the reply %.1f us a request, the "
           "loop's end of it %.1f\n\n",
           pack_us, reply_us);
    fflush(stdout);
}

void bench_breakdown_json(json_writer *j, const bench_breakdown_row rows[BENCH_STAGES], double pack_us,
                          double reply_us) {
    json_object(j, "breakdown");
    for (uint32_t i = 0; i < BENCH_STAGES; i++) {
        json_object(j, texts[i].json);
        json_number(j, "median_us", rows[i].median_us);
        json_number(j, "p90_us", rows[i].p90_us);
        json_close_object(j);
    }
    json_number(j, "mean_pack_us", pack_us);
    json_number(j, "mean_reply_us", reply_us);
    json_close_object(j);
}
