/* Which layout: the search for the throughput layout's parameters, and the choice between the two. */
#include "client/compile/compile_internal.h"

#include "client/compile/calibrate.h"
#include "client/compile/throughput.h"
#include "proto/packing.h"

#include <math.h>
#include <string.h>

/* what a daemon takes in one message unless it is told otherwise, less a header */
#define DAEMON_MESSAGE_BYTES (63u << 20)

#define NO_MEMORY(err) ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory to compile")

/* Bits are cheap here: results are tried to be so much better than they must be, first. */
#define FINER 4.0

/* What a choice is held against. Noise depends on the sizes of values alone, and grows as they shrink: what
 * is no finer than a choice that failed need not be looked at. */
typedef struct search {
    compilation *c;
    double allowed; /* error of a decrypted score */
    double wanted;  /* difference to the original model */
    double closest; /* of what is not too noisy */
    double label_changes_max;
    uint32_t coarse_bits; /* weights of so many bits are too coarse */
    throughput_choice *noisy;
    uint32_t noisy_count;
    double *scores;
} search;

static bool is_noisier(const search *s, const throughput_choice *t) {
    for (uint32_t i = 0; i < s->noisy_count; i++) {
        const throughput_choice *n = &s->noisy[i];
        if (n->log_n == t->log_n && n->secret_key_only == t->secret_key_only &&
            n->value_bits >= t->value_bits && n->result_bits >= t->result_bits)
            return true;
    }
    return false;
}

static ckks_status too_noisy(const search *s, double promised, ckks_error *err) {
    return ckks_error_set(err, CKKS_PRECISION, "parameters",
                          "scores would be off by %.2g, a thousandth of their range is %.2g: values between "
                          "its layers are far larger than the scores. Scale the columns (StandardScaler) or "
                          "regularise more and train again; the latency layout may do%s",
                          promised * s->c->score_scale, s->allowed * s->c->score_scale,
                          s->c->options.log_n ? ", or a larger --log-n" : "");
}

/* CKKS_PRECISION: the next choice may do */
static ckks_status estimate(search *s, const throughput_choice *choice, arena *scratch, ckks_error *err) {
    compilation *c = s->c;
    double changes;
    ckks_status rc;
    if (choice->weight_bits <= s->coarse_bits || is_noisier(s, choice)) return CKKS_PRECISION;
    rc = throughput_parameters(&c->choice.params, choice, &c->graph, scratch, err);
    if (rc == CKKS_OK && !c->options.allow_insecure)
        rc = params_gate(&c->choice.params, c->options.security_bits, err);
    if (rc != CKKS_OK) return rc == CKKS_RESOURCE_EXHAUSTED ? rc : CKKS_PRECISION;
    rc = program_emit_throughput(&c->program, &c->graph, choice, &c->choice.params, scratch, err);
    if (rc != CKKS_OK) return rc;
    if (DEVIATIONS * c->program.noise > s->allowed) {
        s->noisy[s->noisy_count++] = *choice;
        return too_noisy(s, DEVIATIONS * c->program.noise, err);
    }
    rc = program_batch_scores(s->scores, &c->program.plan, c->rows, c->data.row_count, c->data.column_count,
                              c->score_count, err);
    if (rc != CKKS_OK) return rc;
    c->report->summary.polynomial_error = compile_difference(c, s->scores);
    s->closest = fmin(s->closest, c->report->summary.polynomial_error);
    if ((rc = compile_label_changes(&changes, c, s->scores, err)) != CKKS_OK) return rc;
    if (c->report->summary.polynomial_error <= s->wanted && changes <= s->label_changes_max) return CKKS_OK;
    s->coarse_bits = choice->weight_bits;
    if (changes > s->label_changes_max)
        return ckks_error_set(err, CKKS_PRECISION, "target_error",
                              "%.2g %% of labels would be expected to differ from the original model's",
                              100 * changes);
    return compile_refuse_target(c, c->report->summary.polynomial_error, "", err);
}

static ckks_status prove(search *s, const throughput_choice *choice, ckks_error *err) {
    compilation *c = s->c;
    const workload_progress report = {c->options.progress, c->options.progress_context};
    const uint32_t slots = params_slot_count_max(&c->choice.params);
    const prove_rows rows = {.rows = c->rows,
                             .scores = s->scores,
                             .row_count = c->data.row_count,
                             .element_count = c->data.column_count,
                             .score_count = c->score_count,
                             .check_count = c->options.check_rows < slots ? c->options.check_rows : slots};
    ckks_status rc =
        program_emit_throughput(&c->program, &c->graph, choice, &c->choice.params, &c->memory, err);
    if (rc != CKKS_OK) return rc;
    c->program.plan.is_insecure = c->options.allow_insecure && params_security_bits(&c->choice.params) == 0;
    compile_self_test_seed(c);
    if ((rc = program_prove(&c->proof, &c->program, &rows, &c->memory, &report, err)) != CKKS_OK) return rc;
    c->promised_error = fmax(DEVIATIONS * c->program.noise, MEASURED_FACTOR * c->proof.measured_error);
    return c->promised_error <= s->allowed ? CKKS_OK : too_noisy(s, c->promised_error, err);
}

/* the cheapest choice that keeps both bounds */
static ckks_status find_choice(search *s, const throughput_choice *list, uint32_t count, ckks_error *err) {
    arena scratch = {0};
    ckks_error last = {0};
    ckks_status rc = CKKS_PRECISION;
    s->coarse_bits = s->noisy_count = 0;
    for (uint32_t i = 0; i < count && rc == CKKS_PRECISION; i++) {
        ckks_error local = {0};
        arena_reset(&scratch);
        if ((rc = estimate(s, &list[i], &scratch, &local)) == CKKS_OK) rc = prove(s, &list[i], &local);
        if (local.code) last = local;
    }
    arena_fini(&scratch);
    return rc == CKKS_OK ? CKKS_OK : ckks_error_set(err, rc, last.field, "%s", last.message);
}

/* what its clients and its operator must know */
static ckks_status note_limits(const compilation *c, ckks_error *err) {
    const plan *p = &c->program.plan;
    const uint64_t bytes = packing_poly_bytes(p->params, p->values[0].level, false, p->values[0].batch_count);
    if (bytes > DAEMON_MESSAGE_BYTES) {
        const ckks_status rc = report_note(
            c->report, err, "a request takes %.0f MiB: the daemon must be told (bulk_message_bytes)",
            (double)bytes / (1 << 20));
        if (rc != CKKS_OK) return rc;
    }
    if (!c->program.secret_key_only) return CKKS_OK;
    return report_note(c->report, err,
                       "inputs must be encrypted with the secret key: under the public key their noise would "
                       "break the promise");
}

/* the graph as this layout wants it, observed */
static ckks_status rewrite_graph(compilation *c, ckks_error *err) {
    ir_graph graph;
    bool is_changed;
    const ckks_status rc = throughput_graph(&graph, &is_changed, &c->graph, err);
    if (rc != CKKS_OK || !is_changed) return rc;
    c->graph = graph;
    return graph_observe(&c->graph, &c->data, NULL, err);
}

ckks_status compile_throughput(compilation *c, ckks_error *err) {
    ckks_status rc = rewrite_graph(c, err);
    if (rc != CKKS_OK) return rc;
    const double allowed = PROMISE_SHARE * compile_score_range(c) / c->score_scale;
    const double wanted = c->options.target_error * compile_score_range(c);
    const double polynomials = compile_difference(c, c->scores);
    search s = {.c = c,
                .allowed = allowed / FINER,
                .wanted = fmin(wanted, polynomials + wanted / FINER),
                .closest = INFINITY,
                .label_changes_max = c->label_changes_max};
    throughput_choice *list;
    uint32_t count;
    rc = throughput_choices(&list, &count, &c->graph, c->options.batch,
                            c->options.allow_insecure ? 0 : c->options.security_bits, c->options.log_n,
                            &c->memory, err);
    if (rc != CKKS_OK) return rc;
    s.scores = arena_take(&c->memory, c->data.row_count * c->score_count, sizeof *s.scores);
    s.noisy = arena_take(&c->memory, count, sizeof *s.noisy);
    if (!s.scores || !s.noisy) return NO_MEMORY(err);
    ckks_error finer = {0};
    if ((rc = find_choice(&s, list, count, &finer)) == CKKS_PRECISION) {
        s.allowed = allowed, s.wanted = wanted, s.label_changes_max = INFINITY;
        ckks_error last = {0};
        rc = find_choice(&s, list, count, &last);
        /* finer ones were tried in vain: their noise is not what stands in the way of this target */
        if (rc == CKKS_PRECISION && isfinite(s.closest) && s.closest > wanted)
            return compile_refuse_target(c, s.closest, " in the throughput layout", err);
        if (rc != CKKS_OK) return ckks_error_set(err, rc, last.field, "%s", last.message);
    } else if (rc != CKKS_OK) {
        return ckks_error_set(err, rc, finer.field, "%s", finer.message);
    }
    if (rc != CKKS_OK) return rc;
    c->scores = s.scores;
    return note_limits(c, err);
}

/* ---- both layouts ---- */

void compile_trade(compilation *c, compile_layout layout) {
    compile_summary *s = &c->report->summary;
    const plan *p = &c->program.plan;
    compile_trade_row *row = &s->trade[s->trade_count++];
    *row = (compile_trade_row){.layout = layout,
                               .rows_per_request = c->program.is_batch ? params_slot_count_max(p->params) : 1,
                               .replay_ns = c->proof.replay_ns};
    for (uint32_t i = 0; i < p->input_count; i++)
        row->request_bytes +=
            packing_poly_bytes(p->params, p->values[i].level, false, p->values[i].batch_count);
    if (!packing_key_set_bytes(&row->key_bytes, p->params, p->keys, p->key_count)) row->key_bytes = 0;
}

/* seconds for the whole batch */
static double batch_seconds(const compile_trade_row *row, uint64_t batch) {
    const uint64_t requests = (batch + row->rows_per_request - 1) / row->rows_per_request;
    return (double)requests * (double)row->replay_ns * 1e-9;
}

typedef struct outcome {
    ir_graph graph;
    parameter_choice choice;
    emitted_program program;
    proof proof;
    double promised_error, polynomial_error;
    double *scores;
} outcome;

static void outcome_keep(outcome *out, const compilation *c) {
    *out = (outcome){c->graph, c->choice,         c->program,
                     c->proof, c->promised_error, c->report->summary.polynomial_error,
                     c->scores};
}

static void outcome_restore(compilation *c, const outcome *from) {
    c->graph = from->graph;
    c->choice = from->choice;
    c->program = from->program;
    c->program.plan.params = &c->choice.params;
    c->proof = from->proof;
    c->promised_error = from->promised_error;
    c->report->summary.polynomial_error = from->polynomial_error;
    c->scores = from->scores;
}

/* A model that suits one layout alone gets that one, and a note says why not the other. */
ckks_status compile_auto(compilation *c, ckks_error *err) {
    outcome *many = arena_take(&c->memory, 1, sizeof *many),
            *graph = arena_take(&c->memory, 1, sizeof *graph);
    ckks_error no_throughput = {0}, no_latency = {0};
    if (!many || !graph) return NO_MEMORY(err);
    outcome_keep(graph, c);
    const ckks_status throughput = compile_throughput(c, &no_throughput);
    if (throughput == CKKS_RESOURCE_EXHAUSTED)
        return ckks_error_set(err, throughput, no_throughput.field, "%s", no_throughput.message);
    if (throughput == CKKS_OK) {
        compile_trade(c, COMPILE_LAYOUT_THROUGHPUT);
        outcome_keep(many, c);
    }
    outcome_restore(c, graph);
    const ckks_status latency = compile_latency(c, &no_latency);
    if (latency != CKKS_OK && throughput != CKKS_OK)
        return ckks_error_set(err, latency, no_latency.field, "%s", no_latency.message);
    if (latency == CKKS_OK) compile_trade(c, COMPILE_LAYOUT_LATENCY);
    if (latency != CKKS_OK) {
        outcome_restore(c, many);
        return report_note(c->report, err, "the latency layout does not serve: %s", no_latency.message);
    }
    if (throughput != CKKS_OK)
        return report_note(c->report, err, "the throughput layout does not serve: %s", no_throughput.message);
    const compile_trade_row *row = c->report->summary.trade;
    if (batch_seconds(&row[0], c->options.batch) < batch_seconds(&row[1], c->options.batch))
        outcome_restore(c, many);
    return CKKS_OK;
}
