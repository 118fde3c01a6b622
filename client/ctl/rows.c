#include "client/ctl/rows.h"

#include "client/lib/wipe.h"

#include <stdlib.h>
#include <string.h>

void rows_fini(rows *r) {
    if (!r) return;
    wipe_free(r->values);
    data_labels_fini(&r->labels);
    *r = (rows){0};
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* the model's columns as csv_select takes them; free *out */
static ckks_status model_columns(data_column **out, const client_model *model, ckks_error *err) {
    const Ckksd__V1__ModelDescription *d = model->description;
    if (!(*out = calloc(d->n_columns + 1, sizeof **out)))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory");
    for (size_t i = 0; i < d->n_columns; i++)
        (*out)[i] = (data_column){.name = d->columns[i]->name,
                                  .is_categorical = d->columns[i]->kind == 2,
                                  .categories = (const char *const *)d->columns[i]->categories,
                                  .category_count = (uint32_t)d->columns[i]->n_categories,
                                  .refuses_unknown = d->columns[i]->unknown_is_refused,
                                  .refuses_missing = d->columns[i]->has_missing_is_imputed &&
                                                     !d->columns[i]->missing_is_imputed};
    return CKKS_OK;
}

ckks_status rows_select(data_matrix *out, const csv_table *table, const client_model *model,
                        const rows_source *source, bool tell, const ctl_options *options, ckks_error *err) {
    ckks_status rc;
    data_column *columns = NULL;
    uint32_t ignored = 0;
    if ((rc = model_columns(&columns, model, err)) != CKKS_OK) return rc;
    rc = csv_select(out, &ignored, table, columns, (uint32_t)model->description->n_columns,
                    source->label_column, err);
    free(columns);
    if (rc != CKKS_OK) return rc;
    if (ignored && tell)
        ctl_note(options, "%s: %u column%s that the model does not know %s ignored", base_name(source->path),
                 ignored, ignored == 1 ? "" : "s", ignored == 1 ? "is" : "are");
    return CKKS_OK;
}

static ckks_status from_csv(data_matrix *matrix, rows *out, const data_file *file, const client_model *model,
                            const rows_source *source, const ctl_options *options, ckks_error *err) {
    ckks_status rc;
    uint32_t label = 0;
    if ((rc = rows_select(matrix, &file->csv, model, source, true, options, err)) != CKKS_OK) return rc;
    if (!source->label_column || source->labels_path) return CKKS_OK;
    if ((rc = csv_find(&label, &file->csv, source->label_column, err)) != CKKS_OK) return rc;
    out->has_labels = true;
    return data_labels_from_csv(&out->labels, &file->csv, label, err);
}

/* A file of one axis is one row, unless rows have one number. */
static void one_axis_is_a_row(data_matrix *m, const client_model *model) {
    if (m->axis_count != 1 || model->raw_count == 1 || m->row_count != model->raw_count) return;
    m->column_count = m->row_count;
    m->row_count = 1;
}

static ckks_status check_width(const data_matrix *m, const client_model *model, const char *path,
                               ckks_error *err) {
    const Ckksd__V1__ModelDescription *d = model->description;
    if (m->column_count != model->raw_count)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "rows",
                              "%s: rows have %llu numbers, the model takes %u", path,
                              (unsigned long long)m->column_count, model->raw_count);
    if (m->axis_count != d->n_input_shape + 1) return CKKS_OK;
    for (size_t i = 0; i < d->n_input_shape; i++)
        if (m->shape[i + 1] != d->input_shape[i])
            return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "rows",
                                  "%s: axis %zu has %llu elements, the model takes %u", path, i + 1,
                                  (unsigned long long)m->shape[i + 1], d->input_shape[i]);
    return CKKS_OK;
}

/* ---- labels ---- */

static bool looks_like_text(const uint8_t *bytes, size_t size) {
    return !gzip_is(bytes, size) && !(size >= 2 && !bytes[0] && !bytes[1]) &&
           !(size >= 6 && !memcmp(bytes, "\x93NUMPY", 6));
}

/* one label a line, no header; blank lines at the end do not count */
static ckks_status labels_from_lines(data_labels *out, const uint8_t *bytes, size_t size, ckks_error *err) {
    while (size && (bytes[size - 1] == '\n' || bytes[size - 1] == '\r')) size--;
    uint64_t count = size ? 1 : 0;
    if (memchr(bytes, 0, size))
        return ckks_error_set(err, CKKS_MALFORMED, "labels", "not text: it has NUL bytes");
    for (size_t i = 0; i < size; i++) count += bytes[i] == '\n';
    if (!count) return ckks_error_set(err, CKKS_MALFORMED, "labels", "there are no labels");
    if (!(out->text = calloc((size_t)count, sizeof *out->text)))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory");
    for (size_t at = 0; at <= size && out->count < count;) {
        const uint8_t *end = memchr(bytes + at, '\n', size - at);
        size_t length = end ? (size_t)(end - bytes) - at : size - at;
        const size_t next = at + length + 1;
        if (length && bytes[at + length - 1] == '\r') length--;
        if (!(out->text[out->count] = strndup((const char *)bytes + at, length)))
            return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory");
        out->count++;
        at = next;
    }
    return CKKS_OK;
}

static ckks_status parse_labels(data_labels *out, const uint8_t *bytes, size_t size, const char *column,
                                ckks_error *err) {
    ckks_status rc;
    data_file file;
    uint32_t index = 0;
    if (looks_like_text(bytes, size) && !column) return labels_from_lines(out, bytes, size, err);
    if ((rc = data_parse(&file, bytes, size, err)) != CKKS_OK) return rc;
    if (file.format != DATA_CSV)
        rc = data_labels_from_matrix(out, &file.matrix, err);
    else if (!column)
        rc = ckks_error_set(err, CKKS_INVALID_ARGUMENT, "labels", "which column? --label-column NAME");
    else if ((rc = csv_find(&index, &file.csv, column, err)) == CKKS_OK)
        rc = data_labels_from_csv(out, &file.csv, index, err);
    data_file_fini(&file);
    return rc;
}

static ckks_status load_labels(rows *out, const rows_source *source, ckks_error *err) {
    ckks_status rc;
    uint8_t *bytes = NULL;
    size_t size = 0;
    if ((rc = file_read(&bytes, &size, source->labels_path, DATA_FILE_BYTES_MAX, err)) != CKKS_OK) return rc;
    ckks_error inner = {0};
    rc = parse_labels(&out->labels, bytes, size, source->label_column, &inner);
    file_name_error(&inner, source->labels_path);
    if (rc != CKKS_OK && err && err->code == CKKS_OK) *err = inner;
    out->has_labels = true;
    wipe_free(bytes);
    return rc;
}

static ckks_status check_label_count(const rows *r, uint64_t row_count, ckks_error *err) {
    if (!r->has_labels || r->labels.count == row_count) return CKKS_OK;
    return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "labels", "%llu labels for %llu rows",
                          (unsigned long long)r->labels.count, (unsigned long long)row_count);
}

ckks_status rows_check_labels(const rows_source *source, uint64_t row_count, ckks_error *err) {
    rows r = {0};
    if (!source->labels_path) return CKKS_OK;
    ckks_status rc = load_labels(&r, source, err);
    if (rc == CKKS_OK) rc = check_label_count(&r, row_count, err);
    rows_fini(&r);
    return rc;
}

ckks_status rows_load(rows *out, const client_model *model, const rows_source *source,
                      const ctl_options *options, ckks_error *err) {
    ckks_status rc;
    data_file file = {0};
    data_matrix selected = {0};
    ckks_error inner = {0};
    *out = (rows){.width = model->raw_count};
    if ((rc = data_file_read(&file, source->path, err)) != CKKS_OK) return rc;
    if (file.format == DATA_CSV) {
        rc = from_csv(&selected, out, &file, model, source, options, &inner);
        file_name_error(&inner, source->path);
        if (rc != CKKS_OK && err && err->code == CKKS_OK) *err = inner;
    } else {
        if (source->label_column && !source->labels_path)
            rc = ckks_error_set(err, CKKS_INVALID_ARGUMENT, "label-column", "%s is not CSV", source->path);
        selected = file.matrix, file.matrix = (data_matrix){0};
        one_axis_is_a_row(&selected, model);
    }
    if (rc != CKKS_OK) goto out;
    if ((rc = check_width(&selected, model, source->path, err)) != CKKS_OK) goto out;
    out->values = selected.values, selected.values = NULL;
    out->count = selected.row_count;
    if (source->labels_path && (rc = load_labels(out, source, err)) != CKKS_OK) goto out;
    if ((rc = check_label_count(out, out->count, err)) != CKKS_OK) goto out;
    if (source->limit && source->limit < out->count) out->count = source->limit;
out:
    data_matrix_fini(&selected);
    data_file_fini(&file);
    if (rc != CKKS_OK) rows_fini(out);
    return rc;
}
