#include "client/ctl/explain.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void explanation_fini(explanation *e) {
    free(e->rows);
    *e = (explanation){0};
}

/* a layer of the report joins the row; names of kinds are listed */
static void take_layer(explain_row *row, const Ckksd__V1__ReportLayer *l, bool is_first) {
    const size_t used = strlen(row->kind);
    snprintf(row->kind + used, sizeof row->kind - used, "%s%s", used ? "+" : "", l->kind ? l->kind : "");
    if (is_first) row->elements_in = l->elements_in;
    row->elements_out = l->elements_out;
    row->ciphertexts = l->ciphertexts;
    row->period = l->period;
    row->diagonals += l->diagonals;
    if (!l->has_degree) return;
    row->degree = l->degree;
    row->interval_low = l->interval_low, row->interval_high = l->interval_high;
}

static ckks_status fill_rows(explanation *e, const plan_part *parts, ckks_error *err) {
    const Ckksd__V1__CompileReport *report = e->package->manifest->report;
    const size_t layer_count = report ? report->n_layers : 0;
    size_t at = 0;
    if (!(e->rows = calloc((size_t)e->count + 1, sizeof *e->rows)))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for layers");
    for (uint32_t i = 0; i < e->count; i++) {
        explain_row *row = &e->rows[i];
        *row = (explain_row){.source = parts[i].source,
                             .level_in = parts[i].level_in,
                             .level_out = parts[i].level_out,
                             .scale_log2 = log2(parts[i].scale_out),
                             .operations = parts[i].count,
                             .rotations = parts[i].rotations,
                             .key_switches = parts[i].key_switches,
                             .measured_ms = -1,
                             .predicted_ms = -1,
                             .weight_bytes = parts[i].weight_bytes};
        for (bool is_first = true; at < layer_count && report->layers[at]->source &&
                                   strcmp(report->layers[at]->source, row->source) == 0;
             at++, is_first = false)
            take_layer(row, report->layers[at], is_first);
    }
    return CKKS_OK;
}

static ckks_status time_parts(explanation *e, plan_clock *clock, const plan_part *parts,
                              const explain_options *options, ckks_error *err) {
    const plan *p = &e->package->plan;
    ctl_bar bar = {0};
    ctl_bar_begin(&bar, options->common, "measuring", false);
    ckks_status rc = plan_clock_time(&e->measured_ms, clock, p, 5, 0.2, err);
    e->measured_ms *= 1e-6;
    for (uint32_t i = 0; i < e->count && rc == CKKS_OK; i++) {
        plan_excerpt excerpt;
        rc = plan_excerpt_make(&excerpt, p, parts[i].first, parts[i].count, err);
        if (rc == CKKS_OK) rc = plan_clock_time(&e->rows[i].measured_ms, clock, &excerpt.plan, 4, 0.05, err);
        e->rows[i].measured_ms *= 1e-6;
        plan_excerpt_fini(&excerpt);
        ctl_bar_update(&bar, i + 1, e->count);
    }
    ctl_bar_end(&bar);
    return rc;
}

static ckks_status take_memory(explanation *e, plan_clock *clock, ckks_error *err) {
    workload *work;
    const ckks_status rc = workload_prepare(&work, clock->dev, &e->package->plan, NULL, err);
    if (rc != CKKS_OK) return rc;
    workload_memory_account(work, &e->memory);
    workload_destroy(work);
    e->has_memory = true;
    return CKKS_OK;
}

static ckks_status predict(explanation *e, const plan_part *parts, const explain_options *options,
                           ckks_error *err) {
    ckks_status rc = cost_model_get(&e->cost, &e->package->plan, options->device_kind, options->calibrates,
                                    options->common, err);
    if (rc != CKKS_OK) return rc;
    e->is_unsteady = e->cost.is_unsteady;
    const plan *p = &e->package->plan;
    for (uint32_t i = 0; i < e->count; i++) {
        cost_count(e->rows[i].passes, p, parts[i].first, parts[i].count);
        e->rows[i].predicted_ms = 1e-6 * cost_sum(&e->cost, e->rows[i].passes);
    }
    e->predicted_ms = 1e-6 * cost_predict(&e->cost, p, 0, p->operation_count);
    return CKKS_OK;
}

/* the cost model must know which kind was chosen */
static ckks_status resolve_kind(uint32_t *kind, ckks_error *err) {
    const device_config config = {.kind = DEVICE_AUTO};
    device *dev = NULL;
    if (*kind != DEVICE_AUTO) return CKKS_OK;
    const ckks_status rc = device_open(&dev, &config, err);
    if (rc == CKKS_OK) *kind = device_get_kind(dev);
    device_close(dev);
    return rc;
}

ckks_status explain_package(explanation *out, const package *p, const explain_options *wanted,
                            ckks_error *err) {
    explain_options resolved = *wanted;
    const explain_options *options = &resolved;
    plan_part *parts = NULL;
    plan_clock clock = {0};
    *out = (explanation){.package = p, .measured_ms = -1, .predicted_ms = -1};
    ckks_status rc = resolve_kind(&resolved.device_kind, err);
    if (rc == CKKS_OK) rc = plan_parts(&parts, &out->count, &p->plan, err);
    if (rc == CKKS_OK) rc = fill_rows(out, parts, err);
    if (rc == CKKS_OK && options->predicts) rc = predict(out, parts, options, err);
    if (rc == CKKS_OK && options->measures) {
        rc = plan_clock_open(&clock, options->device_kind, p->plan.params, p->plan.keys, p->plan.key_count,
                             err);
        if (rc == CKKS_OK) {
            snprintf(out->device, sizeof out->device, "%s", device_describe(clock.dev));
            rc = take_memory(out, &clock, err);
        }
        if (rc == CKKS_OK) rc = time_parts(out, &clock, parts, options, err);
        out->is_unsteady = out->is_unsteady || clock.is_unsteady;
    }
    plan_clock_close(&clock);
    free(parts);
    if (rc != CKKS_OK) explanation_fini(out);
    return rc;
}

/* ---- a table ---- */

static void milliseconds(char text[24], double ms) {
    if (ms < 0)
        snprintf(text, 24, "-");
    else
        snprintf(text, 24, ms < 10 ? "%.3f" : "%.1f", ms);
}

/* the throughput layout has a slot for each row, and no periods */
void explain_layout(char text[32], const explain_row *row) {
    if (row->ciphertexts)
        snprintf(text, 32, "%u x %u", row->ciphertexts, row->period);
    else
        snprintf(text, 32, "by rows");
}

void explain_print(const explanation *e) {
    const Ckksd__V1__ModelDescription *d = e->package->manifest->description;
    const ckks_params *params = e->package->plan.params;
    char a[32], b[32], measured[24], predicted[24];
    printf("%s: N = 2^%u, %u levels, %u operations\n", d->name, params->log_n, params->q_count - 1,
           e->package->plan.operation_count);
    if (e->device[0]) printf("on %s\n", e->device);
    printf("  %-20s %-14s %-14s %-10s %-8s %6s %5s %5s %10s %10s %10s\n", "layer", "kind", "elements",
           "layout", "levels", "scale", "diag", "rot", "measured", "predicted", "weights");
    for (uint32_t i = 0; i < e->count; i++) {
        const explain_row *r = &e->rows[i];
        char shape[32], layout[32], levels[24], scale[24];
        snprintf(shape, sizeof shape, "%u -> %u", r->elements_in, r->elements_out);
        explain_layout(layout, r);
        snprintf(levels, sizeof levels, "%u -> %u", r->level_in, r->level_out);
        snprintf(scale, sizeof scale, "2^%.1f", r->scale_log2);
        milliseconds(measured, r->measured_ms);
        milliseconds(predicted, r->predicted_ms);
        printf("  %-20.20s %-14.14s %-14s %-10s %-8s %6s %5u %5u %7s ms %7s ms %10s\n", r->source, r->kind,
               shape, layout, levels, scale, r->diagonals, r->rotations, measured, predicted,
               ctl_bytes(a, r->weight_bytes));
        if (r->degree)
            printf("  %-20s degree %u on [%.4g, %.4g]\n", "", r->degree, r->interval_low, r->interval_high);
    }
    milliseconds(measured, e->measured_ms);
    milliseconds(predicted, e->predicted_ms);
    printf("  whole program: measured %s ms, predicted %s ms\n", measured, predicted);
    if (e->is_unsteady)
        printf(
            "  note: this machine does other work: shortest times were not reached again, take them as upper "
            "bounds\n");
    if (e->has_memory)
        printf("  memory: weights %s, each slot %s\n", ctl_bytes(a, e->memory.weights_bytes),
               ctl_bytes(b, e->memory.arena_bytes + e->memory.program_bytes));
}

static void json_known(json_writer *j, const char *key, double value) {
    json_number(j, key, value < 0 ? (double)NAN : value);
}

static void json_passes(json_writer *j, const char *key, const double passes[COST_KERNELS]) {
    json_object(j, key);
    for (int k = 0; k < COST_KERNELS; k++)
        if (passes[k] > 0) json_number(j, cost_kernel_name((cost_kernel)k), passes[k]);
    json_close_object(j);
}

/* the cost model and, where it was measured just now, what it was fitted to */
static void json_cost(json_writer *j, const cost_model *cost) {
    json_object(j, "cost");
    json_number(j, "largest_probe_error", cost->fit);
    json_passes(j, "ns", cost->pass_ns);
    json_list(j, "probes");
    for (uint32_t i = 0; i < cost->probe_count; i++) {
        json_object(j, NULL);
        json_string(j, "name", cost->probes[i].name);
        json_number(j, "measured_ns", cost->probes[i].ns);
        json_number(j, "fitted_ns", cost_sum(cost, cost->probes[i].passes));
        json_passes(j, "passes", cost->probes[i].passes);
        json_close_object(j);
    }
    json_close_list(j);
    json_close_object(j);
}

void explain_json(const explanation *e) {
    json_writer j;
    json_begin(&j);
    json_object(&j, NULL);
    json_string(&j, "model", e->package->manifest->description->name);
    json_integer(&j, "log_n", e->package->plan.params->log_n);
    json_integer(&j, "levels", e->package->plan.params->q_count - 1);
    if (e->device[0]) json_string(&j, "device", e->device);
    json_known(&j, "measured_ms", e->measured_ms);
    json_known(&j, "predicted_ms", e->predicted_ms);
    json_bool(&j, "steady", !e->is_unsteady);
    if (e->has_memory) {
        json_integer(&j, "weights_bytes", e->memory.weights_bytes);
        json_integer(&j, "slot_bytes", e->memory.arena_bytes + e->memory.program_bytes);
        json_integer(&j, "resident_key_bytes", e->memory.keys_bytes);
    }
    json_list(&j, "layers");
    for (uint32_t i = 0; i < e->count; i++) {
        const explain_row *r = &e->rows[i];
        json_object(&j, NULL);
        json_string(&j, "source", r->source);
        json_string(&j, "kind", r->kind);
        json_integer(&j, "elements_in", r->elements_in);
        json_integer(&j, "elements_out", r->elements_out);
        json_integer(&j, "ciphertexts", r->ciphertexts);
        json_integer(&j, "period", r->period);
        json_integer(&j, "level_in", r->level_in);
        json_integer(&j, "level_out", r->level_out);
        json_number(&j, "scale_log2", r->scale_log2);
        json_integer(&j, "operations", r->operations);
        json_integer(&j, "diagonals", r->diagonals);
        json_integer(&j, "rotations", r->rotations);
        json_integer(&j, "relinearisations", r->key_switches);
        if (r->degree) {
            json_integer(&j, "degree", r->degree);
            json_number(&j, "interval_low", r->interval_low);
            json_number(&j, "interval_high", r->interval_high);
        }
        json_known(&j, "measured_ms", r->measured_ms);
        json_known(&j, "predicted_ms", r->predicted_ms);
        if (e->predicted_ms >= 0) json_passes(&j, "passes", r->passes);
        json_integer(&j, "weight_bytes", r->weight_bytes);
        json_close_object(&j);
    }
    json_close_list(&j);
    if (e->predicted_ms >= 0) json_cost(&j, &e->cost);
    json_close_object(&j);
    json_end(&j);
}
