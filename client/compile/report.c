#include "client/compile/report.h"

#include "proto/packing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NO_MEMORY(err) ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for the report")

ckks_status report_create(compile_report **out, ckks_error *err) {
    *out = calloc(1, sizeof **out);
    return *out ? CKKS_OK : NO_MEMORY(err);
}

void compile_report_destroy(compile_report *report) {
    if (!report) return;
    arena_fini(&report->memory);
    free(report);
}

ckks_status report_refusals(compile_report *report, const onnx_model *model, ckks_error *err) {
    report->refusals = arena_take(&report->memory, model->refusal_count, sizeof *report->refusals);
    if (!report->refusals) return NO_MEMORY(err);
    for (uint32_t i = 0; i < model->refusal_count; i++) {
        const compile_refusal *r = &model->refusals[i];
        compile_refusal *copy = &report->refusals[i];
        copy->node = arena_text(&report->memory, r->node);
        copy->type = arena_text(&report->memory, r->type);
        copy->reason = arena_text(&report->memory, r->reason);
        copy->way_out = arena_text(&report->memory, r->way_out);
        if (!copy->node || !copy->type || !copy->reason || !copy->way_out) return NO_MEMORY(err);
        report->refusal_count = i + 1;
    }
    return CKKS_OK;
}

static uint32_t bit_width(uint64_t prime) {
    return prime ? (uint32_t)lround(log2((double)prime)) : 0;
}

/* "50 + 6 x 40 bits, keys 2 x 50": the first prime carries the result, each further one a level */
static void describe_primes(char *text, size_t size, const ckks_params *params) {
    const uint32_t levels = params->q_count - 1;
    int used = snprintf(text, size, "%u", bit_width(params->prime[0]));
    if (levels > 1)
        used += snprintf(text + used, size - (size_t)used, " + %u x %u", levels, bit_width(params->prime[1]));
    if (levels == 1) used += snprintf(text + used, size - (size_t)used, " + %u", bit_width(params->prime[1]));
    used += snprintf(text + used, size - (size_t)used, " bits");
    if (params->p_count > 1)
        snprintf(text + used, size - (size_t)used, ", keys %u x %u", params->p_count,
                 bit_width(params->prime[params->q_count]));
    if (params->p_count == 1)
        snprintf(text + used, size - (size_t)used, ", keys %u", bit_width(params->prime[params->q_count]));
}

ckks_status report_program(compile_report *report, const emitted_program *program, ckks_error *err) {
    const ckks_params *params = program->plan.params;
    compile_summary *s = &report->summary;
    report->layers = arena_take(&report->memory, program->layer_count, sizeof *report->layers);
    if (!report->layers) return NO_MEMORY(err);
    for (uint32_t i = 0; i < program->layer_count; i++) {
        report->layers[i] = program->layers[i];
        if (!(report->layers[i].source = arena_text(&report->memory, program->layers[i].source)))
            return NO_MEMORY(err);
    }
    report->layer_count = program->layer_count;
    s->log_n = params->log_n;
    s->level_count = params->q_count;
    s->depth = program->plan.values[0].level;
    s->security_bits = params_security_bits(params);
    s->log_qp = params_log_qp(params);
    s->key_count = program->plan.key_count;
    s->operation_count = program->plan.operation_count;
    s->plain_count = program->plan.plain_count;
    s->rotation_count = program->rotation_count;
    if (!packing_key_set_bytes(&s->key_bytes, params, program->plan.keys, program->plan.key_count))
        s->key_bytes = 0;
    s->request_bytes =
        packing_poly_bytes(params, program->plan.values[0].level, false, program->plan.values[0].batch_count);
    describe_primes(report->parameters, sizeof report->parameters, params);
    return CKKS_OK;
}

ckks_status report_note(compile_report *report, ckks_error *err, const char *format, ...) {
    char text[256];
    va_list arguments;
    if (report->note_count == sizeof report->notes / sizeof *report->notes) return CKKS_OK;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (!(report->notes[report->note_count] = arena_text(&report->memory, text))) return NO_MEMORY(err);
    report->note_count++;
    return CKKS_OK;
}

uint32_t compile_report_refusals(const compile_report *report, const compile_refusal **out) {
    *out = report->refusals;
    return report->refusal_count;
}

void compile_report_summary(const compile_report *report, compile_summary *out) {
    *out = report->summary;
}

void compile_report_predict(compile_report *report, double ms) {
    report->predicted_ms = ms;
}

/* ---- for people ---- */

/* names come from a file: nothing that moves a terminal's cursor gets out */
static void print_text(FILE *to, const char *text, int width) {
    int written = 0;
    for (; *text && written < (width ? width : 1 << 16); text++, written++)
        fputc((unsigned char)*text < 0x20 || *text == 0x7f ? '?' : *text, to);
    for (; written < width; written++) fputc(' ', to);
}

static const char *bytes_text(uint64_t bytes, char text[32]) {
    if (bytes >= 10u << 20)
        snprintf(text, 32, "%.1f MiB", (double)bytes / (1 << 20));
    else
        snprintf(text, 32, "%.1f KiB", (double)bytes / (1 << 10));
    return text;
}

#define REFUSED_NAMES_MAX 12u /* of nodes that are refused for one reason; the JSON has all */

static bool is_same_refusal(const compile_refusal *a, const compile_refusal *b) {
    return strcmp(a->reason, b->reason) == 0 && strcmp(a->way_out, b->way_out) == 0;
}

/* all nodes that are refused as `first` is, which is the first of them */
static void print_refused(FILE *to, const compile_report *report, uint32_t first) {
    const compile_refusal *all = report->refusals;
    uint32_t count = 0;
    fputs("  ", to);
    for (uint32_t i = first; i < report->refusal_count; i++) {
        if (!is_same_refusal(&all[i], &all[first]) || ++count > REFUSED_NAMES_MAX) continue;
        if (i > first) fputs(", ", to);
        print_text(to, all[i].node, 0);
        fputs(" (", to);
        print_text(to, all[i].type, 0);
        fputs(")", to);
    }
    if (count > REFUSED_NAMES_MAX) fprintf(to, " and %u more", count - REFUSED_NAMES_MAX);
    fprintf(to, ": %s\n    way out: %s\n", all[first].reason, all[first].way_out);
}

void compile_refusals_print(FILE *to, const compile_report *report) {
    for (uint32_t i = 0; i < report->refusal_count; i++) {
        bool is_first = true;
        for (uint32_t k = 0; k < i && is_first; k++)
            is_first = !is_same_refusal(&report->refusals[k], &report->refusals[i]);
        if (is_first) print_refused(to, report, i);
    }
}

static void print_refusals(FILE *to, const compile_report *report) {
    fprintf(to, "%u operator%s cannot run encrypted:\n", report->refusal_count,
            report->refusal_count == 1 ? "" : "s");
    compile_refusals_print(to, report);
}

static void print_layer(FILE *to, const emitted_layer *l) {
    char shape[32], levels[16];
    snprintf(shape, sizeof shape, "%u -> %u", l->elements_in, l->elements_out);
    snprintf(levels, sizeof levels, "%u -> %u", l->level_in, l->level_out);
    fputs("  ", to);
    print_text(to, l->source, 20);
    fprintf(to, " %-8s %-14s %-9s", l->kind, shape, levels);
    if (l->diagonals)
        fprintf(to, "%u diagonals, rotations %u hoisted + %u giant + %u folding", l->diagonals, l->babies,
                l->giants, l->folds);
    if (l->degree)
        fprintf(to, "degree %u on [%.3g, %.3g], error %.1e", l->degree, l->interval_low, l->interval_high,
                l->polynomial_error);
    fprintf(to, "\n");
}

static void print_parameters(FILE *to, const compile_report *report) {
    const compile_summary *s = &report->summary;
    fprintf(to, "  parameters    N = 2^%u; primes of %s: %u bits in all\n", s->log_n, report->parameters,
            s->log_qp);
    if (s->security_bits)
        fprintf(to, "  security      %u bits (classical, ternary secret)\n", s->security_bits);
    else
        fprintf(to, "  security      INSECURE: over the table, for tests and benchmarks only\n");
    if (s->depth)
        fprintf(to, "  depth         %u level%s: one for each layer of weights and each product in a row\n",
                s->depth, s->depth == 1 ? "" : "s");
    else
        fprintf(to, "  depth         no level: a single layer of weights\n");
}

static void print_sizes(FILE *to, const compile_report *report) {
    const compile_summary *s = &report->summary;
    char a[32], b[32], c[32];
    if (s->key_count)
        fprintf(to, "  keys          %u, %s that each client uploads once; %s in the server's memory\n",
                s->key_count, bytes_text(s->key_bytes, a), bytes_text(s->resident_key_bytes, b));
    else
        fprintf(to, "  keys          none to upload\n");
    fprintf(to, "  request       %s", bytes_text(s->request_bytes, a));
    if (s->rows_per_request > 1)
        fprintf(to, " for up to %u rows: %s a row", s->rows_per_request,
                bytes_text(s->request_bytes / s->rows_per_request, b));
    fprintf(to, "\n");
    fprintf(to, "  program       %u operations, %u rotations, %u encoded plaintexts\n", s->operation_count,
            s->rotation_count, s->plain_count);
    fprintf(to, "  memory        weights %s, workspace %s for each slot; package %s\n",
            bytes_text(s->weights_bytes, a), bytes_text(s->arena_bytes, b),
            bytes_text(report->package_bytes, c));
}

/* how many labels in 1,000 */
static const char *changes_text(double share, char text[32]) {
    if (share < 0)
        snprintf(text, 32, "-");
    else
        snprintf(text, 32, "%.2g in 1,000", 1000 * share);
    return text;
}

static void print_precision(FILE *to, const compile_report *report) {
    const compile_summary *s = &report->summary;
    char a[32];
    fprintf(to, "  scores        between %.4g and %.4g on the calibration rows\n", s->score_minimum,
            s->score_maximum);
    fprintf(to,
            "  precision     encryption adds at most %.1e to a score (promised); %.1e measured on %u "
            "encrypted row%s\n",
            s->promised_error, s->measured_error, s->checked_rows, s->checked_rows == 1 ? "" : "s");
    fprintf(to, "  original      scores differ by at most %.1e from the ONNX model's, in the clear",
            s->polynomial_error);
    if (s->has_labels) fprintf(to, "; %.2f %% of labels agree", 100 * s->agreement);
    if (s->has_labels && s->label_changes > 1e-6)
        fprintf(to, ", about %s of other rows would not", changes_text(s->label_changes, a));
    fprintf(to, "\n");
}

static void print_figures(FILE *to, const compile_report *report) {
    print_parameters(to, report);
    print_sizes(to, report);
    print_precision(to, report);
}

/* which polynomials stand for the activations, and what others would cost */
static void print_closeness(FILE *to, const compile_summary *s) {
    if (!s->closeness_count) return;
    fprintf(to, "\n  %-12s %-10s %-7s %-6s %-24s %-18s %s\n", "polynomials", "degrees", "levels", "ring",
            "largest error of a score", "labels that change", "how to get it");
    for (uint32_t i = 0; i < s->closeness_count; i++) {
        const compile_closeness *k = &s->closeness[i];
        char degrees[32], levels[16], ring[16], error[40], changes[32];
        snprintf(degrees, sizeof degrees, k->degree_min == k->degree_max ? "%u" : "%u to %u", k->degree_min,
                 k->degree_max);
        snprintf(levels, sizeof levels, k->depth ? "%u" : "-", k->depth);
        snprintf(ring, sizeof ring, k->log_n ? "2^%u" : "-", k->log_n);
        snprintf(error, sizeof error, "%.1e (%.2g %% of range)", k->error, 100 * k->error_share);
        fprintf(to, "  %-12s %-10s %-7s %-6s %-24s %-18s ",
                i < s->chosen   ? "looser"
                : i > s->chosen ? "closer"
                                : "chosen",
                degrees, levels, ring, error, changes_text(k->label_changes, changes));
        if (i != s->chosen) fprintf(to, "--target-error %.2g", k->error_share * 1.05);
        fprintf(to, "\n");
    }
}

static const char *layout_name(uint32_t layout) {
    return layout == COMPILE_LAYOUT_THROUGHPUT ? "throughput" : "latency";
}

/* one layout beside the other, per row of a full request */
static void print_trade(FILE *to, const compile_summary *s) {
    char a[32], b[32], c[32];
    fprintf(to, "\n  %-12s %-8s %-18s %-14s %-12s %s\n", "layout", "rows", "time of a request",
            "time of a row", "bytes a row", "keys");
    for (uint32_t i = 0; i < s->trade_count; i++) {
        const compile_trade_row *t = &s->trade[i];
        snprintf(c, sizeof c, "%.2f ms", (double)t->replay_ns * 1e-6);
        fprintf(to, "  %-12s %-8u %-18s", layout_name(t->layout), t->rows_per_request, c);
        snprintf(c, sizeof c, "%.4f ms", (double)t->replay_ns * 1e-6 / t->rows_per_request);
        fprintf(to, " %-14s %-12s %s%s\n", c, bytes_text(t->request_bytes / t->rows_per_request, a),
                bytes_text(t->key_bytes, b),
                t->layout == s->layout && s->trade_count > 1 ? "  <- chosen" : "");
    }
    fprintf(to, "  (times of this machine's CPU, shortest of the encrypted check)\n");
}

void compile_report_print(FILE *to, const compile_report *report) {
    char text[32];
    if (report->refusal_count) {
        print_refusals(to, report);
        return;
    }
    if (!report->is_complete) return;
    print_text(to, report->name, 0);
    fputs("\n", to);
    print_figures(to, report);
    print_closeness(to, &report->summary);
    fprintf(to, "\n  %-20s %-8s %-14s %-9s\n", "layer", "kind", "elements", "levels");
    for (uint32_t i = 0; i < report->layer_count; i++) print_layer(to, &report->layers[i]);
    print_trade(to, &report->summary);
    if (report->predicted_ms > 0)
        fprintf(to, "  predicted     %.2f ms a request by this machine's cost model\n", report->predicted_ms);
    for (uint32_t i = 0; i < report->note_count; i++) fprintf(to, "\n  note: %s\n", report->notes[i]);
    fprintf(to, "\n  compiled in %.1f s, with %s of memory at the peak\n", report->summary.compile_seconds,
            bytes_text(report->summary.peak_bytes, text));
}

/* ---- for programs ---- */

static void json_text(FILE *to, const char *text) {
    fputc('"', to);
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            fprintf(to, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            fprintf(to, "\\u%04x", c);
        else
            fputc(c, to);
    }
    fputc('"', to);
}

static void json_refusals(FILE *to, const compile_report *report) {
    fputs("\"refusals\":[", to);
    for (uint32_t i = 0; i < report->refusal_count; i++) {
        const compile_refusal *r = &report->refusals[i];
        fputs(i ? ",{\"node\":" : "{\"node\":", to);
        json_text(to, r->node);
        fputs(",\"operator\":", to);
        json_text(to, r->type);
        fputs(",\"reason\":", to);
        json_text(to, r->reason);
        fputs(",\"way_out\":", to);
        json_text(to, r->way_out);
        fputs("}", to);
    }
    fputs("]", to);
}

static void json_layers(FILE *to, const compile_report *report) {
    fputs(",\"layers\":[", to);
    for (uint32_t i = 0; i < report->layer_count; i++) {
        const emitted_layer *l = &report->layers[i];
        fputs(i ? ",{\"source\":" : "{\"source\":", to);
        json_text(to, l->source);
        fprintf(to,
                ",\"kind\":\"%s\",\"elements_in\":%u,\"elements_out\":%u,\"level_in\":%u,\"level_out\":%u",
                l->kind, l->elements_in, l->elements_out, l->level_in, l->level_out);
        if (l->diagonals)
            fprintf(
                to,
                ",\"diagonals\":%u,\"hoisted_rotations\":%u,\"giant_rotations\":%u,\"folding_rotations\":%u",
                l->diagonals, l->babies, l->giants, l->folds);
        if (l->degree)
            fprintf(to, ",\"degree\":%u,\"interval\":[%.9g,%.9g],\"polynomial_error\":%.3g", l->degree,
                    l->interval_low, l->interval_high, l->polynomial_error);
        fputs("}", to);
    }
    fputs("]", to);
}

static void json_summary(FILE *to, const compile_report *report) {
    const compile_summary *s = &report->summary;
    fprintf(to, ",\"log_n\":%u,\"log_qp\":%u,\"security_bits\":%u,\"levels\":%u,\"depth\":%u", s->log_n,
            s->log_qp, s->security_bits, s->level_count - 1, s->depth);
    fprintf(to, ",\"keys\":%u,\"key_bytes\":%llu,\"request_bytes\":%llu,\"package_bytes\":%llu", s->key_count,
            (unsigned long long)s->key_bytes, (unsigned long long)s->request_bytes,
            (unsigned long long)report->package_bytes);
    fprintf(to, ",\"weights_bytes\":%llu,\"arena_bytes\":%llu,\"resident_key_bytes\":%llu",
            (unsigned long long)s->weights_bytes, (unsigned long long)s->arena_bytes,
            (unsigned long long)s->resident_key_bytes);
    fprintf(to, ",\"operations\":%u,\"rotations\":%u,\"plaintexts\":%u", s->operation_count,
            s->rotation_count, s->plain_count);
    fprintf(to,
            ",\"promised_error\":%.6g,\"measured_error\":%.6g,\"checked_rows\":%u,\"polynomial_error\":%.6g",
            s->promised_error, s->measured_error, s->checked_rows, s->polynomial_error);
    fprintf(to, ",\"score_minimum\":%.9g,\"score_maximum\":%.9g", s->score_minimum, s->score_maximum);
    fprintf(to, ",\"compile_seconds\":%.6g,\"peak_bytes\":%llu", s->compile_seconds,
            (unsigned long long)s->peak_bytes);
    if (s->has_labels)
        fprintf(to, ",\"agreement\":%.9g,\"label_changes\":%.6g", s->agreement, s->label_changes);
}

static void json_closeness(FILE *to, const compile_summary *s) {
    fputs(",\"polynomials\":[", to);
    for (uint32_t i = 0; i < s->closeness_count; i++) {
        const compile_closeness *k = &s->closeness[i];
        fprintf(to,
                "%s{\"chosen\":%s,\"degree_min\":%u,\"degree_max\":%u,\"error\":%.6g,"
                "\"error_share\":%.6g",
                i ? "," : "", i == s->chosen ? "true" : "false", k->degree_min, k->degree_max, k->error,
                k->error_share);
        if (k->depth) fprintf(to, ",\"depth\":%u", k->depth);
        if (k->log_n) fprintf(to, ",\"log_n\":%u", k->log_n);
        if (k->label_changes >= 0) fprintf(to, ",\"label_changes\":%.6g", k->label_changes);
        fputs("}", to);
    }
    fputs("]", to);
}

static void json_trade(FILE *to, const compile_summary *s) {
    fprintf(to, ",\"layout\":\"%s\",\"rows_per_request\":%u,\"trade\":[", layout_name(s->layout),
            s->rows_per_request);
    for (uint32_t i = 0; i < s->trade_count; i++) {
        const compile_trade_row *t = &s->trade[i];
        fprintf(to,
                "%s{\"layout\":\"%s\",\"rows_per_request\":%u,\"replay_ns\":%llu,\"request_bytes\":%llu,"
                "\"key_bytes\":%llu}",
                i ? "," : "", layout_name(t->layout), t->rows_per_request, (unsigned long long)t->replay_ns,
                (unsigned long long)t->request_bytes, (unsigned long long)t->key_bytes);
    }
    fputs("]", to);
}

void compile_report_json(FILE *to, const compile_report *report) {
    fputs("{\"model\":", to);
    json_text(to, report->name ? report->name : "");
    fprintf(to, ",\"compiled\":%s,", report->is_complete ? "true" : "false");
    json_refusals(to, report);
    if (report->is_complete) {
        json_summary(to, report);
        json_closeness(to, &report->summary);
        json_trade(to, &report->summary);
        json_layers(to, report);
        if (report->predicted_ms > 0) fprintf(to, ",\"predicted_ms\":%.6g", report->predicted_ms);
        fputs(",\"notes\":[", to);
        for (uint32_t i = 0; i < report->note_count; i++) {
            if (i) fputs(",", to);
            json_text(to, report->notes[i]);
        }
        fputs("]", to);
    }
    fputs("}\n", to);
}
