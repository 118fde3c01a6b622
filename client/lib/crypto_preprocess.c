/*
 * What happens to a row before encryption. Pure arithmetic in binary64, the same on every machine but for
 * libm's last bit. What each step does is written in package.proto, for other clients as well.
 *
 * Steps see the row as the step before left it. Categorical columns arrive as the index of their category,
 * -1 when unknown; missing numbers as NaN.
 */
#include "client/lib/crypto.h"

#include "client/lib/wipe.h"
#include "kernels/base/bytes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    STEP_AFFINE = 1,
    STEP_ONE_HOT,
    STEP_IMPUTE,
    STEP_NORMALISE,
    STEP_SELECT,
    STEP_LOOK_UP,
    STEP_TRUNCATE,
    STEP_THRESHOLD
};
enum { NORM_L1 = 1, NORM_L2, NORM_MAX };
enum { COLUMN_CATEGORICAL = 2 };

#define ROW_MAX (1u << 24)

typedef struct row_buffer {
    double *values;
    size_t count;
} row_buffer;

/* list[i], the one value for all, or a default where the list is empty */
static double pick(const double *list, size_t count, size_t i, double absent) {
    return count == 0 ? absent : count == 1 ? list[0] : list[i];
}

static bool is_same(double a, double b) {
    return a == b || (isnan(a) && isnan(b));
}

/* how many elements a step is about, and that its lists fit */
static ckks_status step_span(size_t *listed, const row_buffer *row, const Ckksd__V1__PreprocessStep *step,
                             ckks_error *err) {
    const size_t lists[] = {step->n_offset, step->n_scale, step->n_values};
    *listed = step->n_index ? step->n_index : row->count;
    for (size_t i = 0; i < step->n_index; i++)
        if (step->index[i] >= row->count)
            return ckks_error_set(err, CKKS_MALFORMED, "index", "element %u of %zu", step->index[i],
                                  row->count);
    for (size_t k = 0; k < sizeof lists / sizeof *lists; k++)
        if (lists[k] > 1 && lists[k] != *listed)
            return ckks_error_set(err, CKKS_MALFORMED, "preprocess", "%zu values for %zu elements", lists[k],
                                  *listed);
    return CKKS_OK;
}

static double *step_element(const row_buffer *row, const Ckksd__V1__PreprocessStep *step, size_t i) {
    return &row->values[step->n_index ? step->index[i] : i];
}

static ckks_status unknown_value(size_t element, double value, ckks_error *err) {
    return ckks_error_set(err, CKKS_OUT_OF_RANGE, "",
                          "element %zu has a category that the model does not know (%g)", element, value);
}

static ckks_status step_one_hot(row_buffer *row, const Ckksd__V1__PreprocessStep *step, ckks_error *err) {
    const size_t column = step->column, k = step->n_values;
    if (column >= row->count || k == 0 || k > ROW_MAX - row->count)
        return ckks_error_set(err, CKKS_MALFORMED, "column", "one-hot of element %zu into %zu", column, k);
    double *wide = malloc((row->count - 1 + k) * sizeof *wide);
    if (!wide) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a row");
    bool is_known = false;
    for (size_t j = 0; j < k; j++) {
        const bool hit = row->values[column] == step->values[j];
        wide[column + j] = hit ? 1.0 : 0.0;
        is_known |= hit;
    }
    if (!is_known && step->unknown_is_error) {
        free(wide);
        return unknown_value(column, row->values[column], err);
    }
    memcpy(wide, row->values, column * sizeof *wide);
    memcpy(wide + column + k, row->values + column + 1, (row->count - column - 1) * sizeof *wide);
    wipe_free(row->values);
    row->values = wide;
    row->count += k - 1;
    return CKKS_OK;
}

static ckks_status step_look_up(row_buffer *row, const Ckksd__V1__PreprocessStep *step, ckks_error *err) {
    if (step->column >= row->count || step->n_values != step->n_mapped)
        return ckks_error_set(err, CKKS_MALFORMED, "column", "look-up of element %u of %zu", step->column,
                              row->count);
    double *x = &row->values[step->column];
    for (size_t j = 0; j < step->n_values; j++)
        if (is_same(*x, step->values[j])) {
            *x = step->mapped[j];
            return CKKS_OK;
        }
    if (step->unknown_is_error) return unknown_value(step->column, *x, err);
    *x = step->otherwise;
    return CKKS_OK;
}

static ckks_status step_select(row_buffer *row, const Ckksd__V1__PreprocessStep *step, ckks_error *err) {
    if (step->n_index == 0 || step->n_index > ROW_MAX)
        return ckks_error_set(err, CKKS_MALFORMED, "index", "selects %zu elements", step->n_index);
    double *chosen = malloc(step->n_index * sizeof *chosen);
    if (!chosen) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a row");
    for (size_t i = 0; i < step->n_index; i++) {
        if (step->index[i] >= row->count) {
            wipe_free(chosen);
            return ckks_error_set(err, CKKS_MALFORMED, "index", "element %u of %zu", step->index[i],
                                  row->count);
        }
        chosen[i] = row->values[step->index[i]];
    }
    wipe_free(row->values);
    row->values = chosen;
    row->count = step->n_index;
    return CKKS_OK;
}

static void step_normalise(const row_buffer *row, const Ckksd__V1__PreprocessStep *step, size_t listed) {
    double total = 0;
    for (size_t i = 0; i < listed; i++) {
        const double x = fabs(*step_element(row, step, i));
        total = step->norm == NORM_MAX ? fmax(total, x) : total + (step->norm == NORM_L2 ? x * x : x);
    }
    if (step->norm == NORM_L2) total = sqrt(total);
    if (total == 0) return;
    for (size_t i = 0; i < listed; i++) *step_element(row, step, i) /= total;
}

static void step_each(const row_buffer *row, const Ckksd__V1__PreprocessStep *step, size_t listed) {
    const double replaced = step->has_replaced ? step->replaced : (double)NAN;
    for (size_t i = 0; i < listed; i++) {
        double *x = step_element(row, step, i);
        if (step->kind == STEP_AFFINE)
            *x = (*x - pick(step->offset, step->n_offset, i, 0)) * pick(step->scale, step->n_scale, i, 1);
        else if (step->kind == STEP_IMPUTE && is_same(*x, replaced))
            *x = pick(step->values, step->n_values, i, (double)NAN);
        else if (step->kind == STEP_TRUNCATE)
            *x = trunc(*x);
        else if (step->kind == STEP_THRESHOLD)
            *x = *x > pick(step->values, step->n_values, 0, 0) ? 1 : 0;
    }
}

static ckks_status apply_step(row_buffer *row, const Ckksd__V1__PreprocessStep *step, ckks_error *err) {
    ckks_status rc;
    size_t listed;
    switch (step->kind) {
    case STEP_ONE_HOT:
        return step_one_hot(row, step, err);
    case STEP_LOOK_UP:
        return step_look_up(row, step, err);
    case STEP_SELECT:
        return step_select(row, step, err);
    case STEP_AFFINE:
    case STEP_IMPUTE:
    case STEP_TRUNCATE:
    case STEP_THRESHOLD:
        if ((rc = step_span(&listed, row, step, err)) == CKKS_OK) step_each(row, step, listed);
        return rc;
    case STEP_NORMALISE:
        if (step->norm < NORM_L1 || step->norm > NORM_MAX) break;
        if ((rc = step_span(&listed, row, step, err)) == CKKS_OK) step_normalise(row, step, listed);
        return rc;
    default:
        break;
    }
    return ckks_error_set(err, CKKS_UNSUPPORTED, "preprocess",
                          "step of kind %u: this client is too old for the model", step->kind);
}

ckks_status client_apply_steps(double **values, size_t *count, Ckksd__V1__PreprocessStep *const *steps,
                               size_t step_count, ckks_error *err) {
    row_buffer row = {*values, *count};
    ckks_status rc = CKKS_OK;
    for (size_t i = 0; i < step_count && rc == CKKS_OK; i++) rc = apply_step(&row, steps[i], err);
    *values = row.values, *count = row.count;
    return rc;
}

/* Raw values against what the columns declare. Where the package does not say who fills missing values, they
 * pass: a step may impute them. */
static ckks_status check_columns(const client_model *model, const double *row, ckks_error *err) {
    const Ckksd__V1__ModelDescription *d = model->description;
    for (uint32_t i = 0; i < d->n_columns; i++) {
        const Ckksd__V1__Column *c = d->columns[i];
        const char *name = c->name ? c->name : "";
        if ((c->has_minimum && row[i] < c->minimum) || (c->has_maximum && row[i] > c->maximum))
            return ckks_error_set(
                err, CKKS_OUT_OF_RANGE, name, "%g is outside of %g to %g, which the model was made for",
                row[i], c->has_minimum ? c->minimum : -INFINITY, c->has_maximum ? c->maximum : INFINITY);
        if (isinf(row[i])) return ckks_error_set(err, CKKS_OUT_OF_RANGE, name, "infinity is no input");
        if (isnan(row[i]) && c->has_missing_is_imputed && !c->missing_is_imputed)
            return ckks_error_set(err, CKKS_OUT_OF_RANGE, name,
                                  "the value is missing, and the model fills none in here");
        if (c->kind != COLUMN_CATEGORICAL) continue;
        if (row[i] != floor(row[i]) || row[i] < -1 || row[i] >= (double)c->n_categories)
            return ckks_error_set(err, CKKS_OUT_OF_RANGE, name, "%g is no category: there are %zu", row[i],
                                  c->n_categories);
        if (row[i] < 0 && c->unknown_is_refused)
            return ckks_error_set(err, CKKS_OUT_OF_RANGE, name, "a category that the model does not know");
    }
    return CKKS_OK;
}

static ckks_status check_elements(const client_model *model, const double *elements, ckks_error *err) {
    const Ckksd__V1__ModelDescription *d = model->description;
    for (uint32_t i = 0; i < model->element_count; i++) {
        char name[32];
        snprintf(name, sizeof name, "element %u", i);
        const char *field =
            d->n_columns == model->element_count && d->columns[i]->name ? d->columns[i]->name : name;
        if (!isfinite(elements[i]))
            return ckks_error_set(err, CKKS_OUT_OF_RANGE, field, "the value is missing or not finite");
        if ((d->has_minimum && elements[i] < d->minimum) || (d->has_maximum && elements[i] > d->maximum))
            return ckks_error_set(
                err, CKKS_OUT_OF_RANGE, field,
                "%g after preprocessing is outside of %g to %g: encrypted, it would spoil every result",
                elements[i], d->minimum, d->maximum);
    }
    return CKKS_OK;
}

ckks_status client_preprocess(double *elements, const client_model *model, const double *row,
                              ckks_error *err) {
    const Ckksd__V1__ModelDescription *d = model->description;
    ckks_status rc;
    size_t count = model->raw_count;
    double *values = malloc(count * sizeof *values);
    if (!values) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a row");
    memcpy(values, row, count * sizeof *values);
    if ((rc = check_columns(model, row, err)) != CKKS_OK) goto out;
    if ((rc = client_apply_steps(&values, &count, d->preprocess, d->n_preprocess, err)) != CKKS_OK) goto out;
    if (count != model->element_count) {
        rc = ckks_error_set(err, CKKS_MALFORMED, "preprocess", "gives %zu elements, the layout takes %u",
                            count, model->element_count);
        goto out;
    }
    if ((rc = check_elements(model, values, err)) != CKKS_OK) goto out;
    memcpy(elements, values, count * sizeof *elements);
out:
    wipe_free(values);
    return rc;
}
