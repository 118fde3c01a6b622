#include "daemon/program.h"

#include "kernels/base/log.h"

ckks_status program_bring_up(slot *s, model *m, int32_t warmup, ckks_error *err) {
    ckks_status rc;
    graph_program *program = NULL;
    graph_program_stats stats;
    uint8_t digest[32];
    if ((rc = graph_program_create(&program, s->graph, &m->program, err)) != CKKS_OK) goto out;
    if ((rc = workload_capture(m->workload, program, warmup, err)) != CKKS_OK) goto out;
    slot_progress(s);
    if ((rc = workload_self_test(m->workload, program, digest, err)) != CKKS_OK) {
        ckks_error_stage(err, "self test");
        goto out;
    }
    /* the self test used a fixed stream key */
    if (m->program.uses_randomness && (rc = graph_program_reseed(program, NULL, err)) != CKKS_OK) goto out;
    /* nor need anybody keep its keys */
    if ((rc = graph_program_drop_payload(program, err)) != CKKS_OK) goto out;
    graph_program_get_stats(program, &stats);
    log_write(
        LOG_LEVEL_INFO,
        "event=captured model=%s version=%s slot=%u kernels=%u copies=%u warmup_ms=%.1f capture_ms=%.1f "
        "replay_ms=%.1f arena_bytes=%llu",
        m->name, m->version, s->index, stats.kernel_nodes, stats.copy_nodes, (double)stats.warmup_ns / 1e6,
        (double)stats.capture_ns / 1e6, (double)stats.first_replay_ns / 1e6,
        (unsigned long long)stats.arena_bytes);
    s->programs[m->index] = program, program = NULL;
out:
    graph_program_destroy(program);
    return rc;
}

void program_take_down(slot *s, const model *m) {
    graph_program_destroy(s->programs[m->index]);
    s->programs[m->index] = NULL;
}
