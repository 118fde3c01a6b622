#include "client/ctl/ranges.h"

#include "client/lib/wipe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static ckks_status no_memory(ckks_error *err) {
    return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for ranges");
}

void range_report_fini(range_report *report) {
    if (!report) return;
    free(report->list);
    free(report->is_outside);
    *report = (range_report){0};
}

double range_beyond(const range_violation *v) {
    const double span = v->high > v->low ? v->high - v->low : 1;
    return fmax(fmax(v->low - v->minimum, v->maximum - v->high), 0) / span;
}

static ckks_status add(range_report *out, const range_violation *v, ckks_error *err) {
    range_violation *grown = realloc(out->list, ((size_t)out->count + 1) * sizeof *grown);
    if (!grown) return no_memory(err);
    out->list = grown;
    grown[out->count++] = *v;
    return CKKS_OK;
}

/* one value of one row against a range; NaN is not outside: whether it is filled in is another question */
static void take(range_violation *v, double x, uint64_t row) {
    v->minimum = fmin(v->minimum, x);
    v->maximum = fmax(v->maximum, x);
    if (!(x < v->low || x > v->high)) return;
    if (!v->row_count++) v->first_row = row + 1;
}

static bool outside(const range_violation *v, double x) {
    return x < v->low || x > v->high || isinf(x);
}

static ckks_status check_columns(range_report *out, const client_model *model, const rows *data,
                                 ckks_error *err) {
    const Ckksd__V1__ModelDescription *d = model->description;
    for (size_t c = 0; c < d->n_columns; c++) {
        const Ckksd__V1__Column *column = d->columns[c];
        range_violation v = {.kind = RANGE_COLUMN,
                             .low = column->has_minimum ? column->minimum : -INFINITY,
                             .high = column->has_maximum ? column->maximum : INFINITY,
                             .minimum = INFINITY,
                             .maximum = -INFINITY};
        snprintf(v.name, sizeof v.name, "%s", column->name);
        for (uint64_t r = 0; r < data->count; r++) {
            const double x = data->values[r * data->width + c];
            take(&v, x, r);
            if (outside(&v, x) || (isnan(x) && column->has_missing_is_imputed && !column->missing_is_imputed))
                out->is_outside[r] = true;
        }
        const ckks_status rc = v.row_count ? add(out, &v, err) : CKKS_OK;
        if (rc != CKKS_OK) return rc;
    }
    return CKKS_OK;
}

static ckks_status check_element_row(range_violation *list, range_report *out, const client_model *model,
                                     const double *raw, uint64_t row, ckks_error *err) {
    const Ckksd__V1__ModelDescription *d = model->description;
    size_t count = model->raw_count;
    ckks_error inner = {0};
    double *values = malloc(count * sizeof *values);
    if (!values) return no_memory(err);
    memcpy(values, raw, count * sizeof *values);
    ckks_status rc = client_apply_steps(&values, &count, d->preprocess, d->n_preprocess, &inner);
    if (rc == CKKS_OUT_OF_RANGE) { /* a category that a step refuses */
        out->is_outside[row] = true;
        rc = CKKS_OK;
    } else if (rc != CKKS_OK) {
        ckks_error_set(err, rc, inner.field, "%s", inner.message);
    } else {
        for (uint32_t i = 0; i < model->element_count && i < count; i++) {
            take(&list[i], values[i], row);
            if (outside(&list[i], values[i]) || isnan(values[i])) out->is_outside[row] = true;
        }
    }
    wipe_free(values);
    return rc;
}

/* what is encrypted; where each element is a column, the column has said it */
static ckks_status check_elements(range_report *out, const client_model *model, const rows *data,
                                  ckks_error *err) {
    const Ckksd__V1__ModelDescription *d = model->description;
    range_violation *list = calloc(model->element_count, sizeof *list);
    ckks_status rc = list ? CKKS_OK : no_memory(err);
    for (uint32_t i = 0; i < model->element_count && rc == CKKS_OK; i++) {
        list[i] = (range_violation){.kind = RANGE_ELEMENT,
                                    .low = d->has_minimum ? d->minimum : -INFINITY,
                                    .high = d->has_maximum ? d->maximum : INFINITY,
                                    .minimum = INFINITY,
                                    .maximum = -INFINITY};
        if (d->n_columns == model->element_count)
            snprintf(list[i].name, sizeof list[i].name, "%.60s, prepared", d->columns[i]->name);
        else
            snprintf(list[i].name, sizeof list[i].name, "element %u", i);
    }
    for (uint64_t r = 0; r < data->count && rc == CKKS_OK; r++)
        rc = check_element_row(list, out, model, data->values + r * data->width, r, err);
    for (uint32_t i = 0; i < model->element_count && rc == CKKS_OK; i++)
        if (list[i].row_count) rc = add(out, &list[i], err);
    free(list);
    return rc;
}

/* the layer of the package whose polynomial stands for `source`, the n-th of that name */
static const Ckksd__V1__ReportLayer *find_layer(const package *p, const char *source, uint32_t nth) {
    const Ckksd__V1__CompileReport *r = p->manifest->report;
    for (size_t i = 0; r && i < r->n_layers; i++)
        if (r->layers[i]->has_interval_low && r->layers[i]->source &&
            strcmp(r->layers[i]->source, source) == 0 && nth-- == 0)
            return r->layers[i];
    return NULL;
}

static ckks_status check_layers(range_report *out, const package *served, const onnx_model *original,
                                const rows *data, ckks_error *err) {
    onnx_layer_range *ranges;
    uint32_t count;
    ckks_status rc = onnx_observe(&ranges, &count, original, data->values, data->count, err);
    for (uint32_t i = 0; i < count && rc == CKKS_OK; i++) {
        uint32_t nth = 0;
        for (uint32_t k = 0; k < i; k++) nth += strcmp(ranges[k].source, ranges[i].source) == 0;
        const Ckksd__V1__ReportLayer *layer = find_layer(served, ranges[i].source, nth);
        if (!layer) continue;
        range_violation v = {.kind = RANGE_LAYER,
                             .low = layer->interval_low,
                             .high = layer->interval_high,
                             .minimum = ranges[i].minimum,
                             .maximum = ranges[i].maximum};
        snprintf(v.name, sizeof v.name, "%.79s", ranges[i].source);
        if (v.minimum >= v.low && v.maximum <= v.high) continue;
        v.first_row = (v.maximum > v.high ? ranges[i].maximum_row : ranges[i].minimum_row) + 1;
        rc = add(out, &v, err);
    }
    free(ranges);
    return rc;
}

ckks_status range_check(range_report *out, const client_model *model, const package *served,
                        const onnx_model *original, const rows *data, ckks_error *err) {
    *out = (range_report){0};
    if (!(out->is_outside = calloc((size_t)data->count + 1, sizeof *out->is_outside))) return no_memory(err);
    ckks_status rc = check_columns(out, model, data, err);
    if (rc == CKKS_OK) rc = check_elements(out, model, data, err);
    if (rc == CKKS_OK && original) rc = check_layers(out, served, original, data, err);
    for (uint64_t r = 0; r < data->count; r++) out->outside_count += out->is_outside[r];
    if (rc != CKKS_OK) range_report_fini(out);
    return rc;
}

/* ---- printing ---- */

static const char *kind_name(range_kind kind) {
    return kind == RANGE_COLUMN ? "column" : kind == RANGE_ELEMENT ? "element" : "layer";
}

#define PRINTED_MAX 12u

void range_print(FILE *to, const range_report *report, uint64_t row_count) {
    if (!report->count && !report->outside_count) {
        fprintf(to, "ranges       every value is within what the model was made for\n");
        return;
    }
    if (report->outside_count)
        fprintf(to, "ranges       %llu of %llu rows are outside of what the model was made for\n",
                (unsigned long long)report->outside_count, (unsigned long long)row_count);
    else
        fprintf(
            to,
            "ranges       every row is accepted, but a polynomial leaves the range that it was fitted to\n");
    for (uint32_t i = 0; i < report->count && i < PRINTED_MAX; i++) {
        const range_violation *v = &report->list[i];
        fprintf(to, "             %s %s: %.4g to %.4g, made for %.4g to %.4g: %.1f %% of the range beyond",
                kind_name(v->kind), v->name, v->minimum, v->maximum, v->low, v->high, 100 * range_beyond(v));
        if (v->row_count) fprintf(to, ", %llu rows", (unsigned long long)v->row_count);
        fprintf(to, " (first row %llu)\n", (unsigned long long)v->first_row);
    }
    if (report->count > PRINTED_MAX) fprintf(to, "             and %u more\n", report->count - PRINTED_MAX);
}

void range_tell(const client_model *model, const rows *data) {
    range_report report;
    if (range_check(&report, model, NULL, NULL, data, NULL) != CKKS_OK) return;
    if (report.count) range_print(stderr, &report, data->count);
    range_report_fini(&report);
}

void range_json(json_writer *j, const range_report *report) {
    json_integer(j, "rows_outside", report->outside_count);
    json_list(j, "range_violations");
    for (uint32_t i = 0; i < report->count; i++) {
        const range_violation *v = &report->list[i];
        json_object(j, NULL);
        json_string(j, "kind", kind_name(v->kind));
        json_string(j, "name", v->name);
        json_number(j, "declared_minimum", v->low);
        json_number(j, "declared_maximum", v->high);
        json_number(j, "minimum", v->minimum);
        json_number(j, "maximum", v->maximum);
        json_number(j, "beyond", range_beyond(v));
        json_integer(j, "rows", v->row_count);
        json_integer(j, "first_row", v->first_row);
        json_close_object(j);
    }
    json_close_list(j);
}
