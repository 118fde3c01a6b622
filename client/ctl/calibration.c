#include "client/ctl/calibration.h"

#include <stdlib.h>
#include <string.h>

void calibration_fini(calibration_rows *rows) {
    if (!rows) return;
    free(rows->names);
    data_matrix_fini(&rows->matrix);
    data_file_fini(&rows->file);
    *rows = (calibration_rows){0};
}

static bool is_label(const char *name, const char *label_column) {
    return label_column && strcmp(name, label_column) == 0;
}

/* the columns to read: the model's own, or the header's in its order */
static ckks_status wanted_columns(data_column **out, uint32_t *count, const char **names,
                                  const onnx_model *model, const csv_table *table, const char *label_column,
                                  ckks_error *err) {
    const uint32_t raw_count = onnx_model_input_count(model);
    const bool is_named = onnx_model_column(model, 0).name != NULL;
    *count = 0;
    if (!(*out = calloc((size_t)raw_count + table->column_count, sizeof **out)))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for columns");
    for (uint32_t i = 0; i < (is_named ? raw_count : table->column_count); i++) {
        if (!is_named && is_label(table->names[i], label_column)) continue;
        /* a file of another width is refused by its width, with the numbers: here it is read as numbers */
        const onnx_column c = *count < raw_count ? onnx_model_column(model, *count) : (onnx_column){0};
        const char *name = is_named ? c.name : table->names[i];
        names[*count] = name;
        (*out)[(*count)++] = (data_column){.name = name,
                                           .is_categorical = c.is_text,
                                           .categories = c.categories,
                                           .category_count = c.category_count,
                                           .refuses_unknown = c.refuses_unknown,
                                           .refuses_missing = !c.takes_missing};
    }
    return CKKS_OK;
}

static ckks_status from_csv(calibration_rows *out, const onnx_model *model, const char *path,
                            const char *label_column, const ctl_options *options, ckks_error *err) {
    const csv_table *table = &out->file.csv;
    data_column *columns = NULL;
    uint32_t count = 0, ignored = 0, label = 0;
    ckks_status rc = label_column ? csv_find(&label, table, label_column, err) : CKKS_OK;
    if (rc != CKKS_OK) return rc;
    out->names = calloc((size_t)onnx_model_input_count(model) + table->column_count, sizeof *out->names);
    if (!out->names) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for names");
    rc = wanted_columns(&columns, &count, out->names, model, table, label_column, err);
    if (rc == CKKS_OK && count == 0)
        rc = ckks_error_set(err, CKKS_INVALID_ARGUMENT, "header", "there is no column but the label");
    if (rc == CKKS_OK) rc = csv_select(&out->matrix, &ignored, table, columns, count, label_column, err);
    free(columns);
    const char *slash = strrchr(path, '/');
    if (rc == CKKS_OK && ignored)
        ctl_note(options, "%s: %u column%s that the model does not know %s ignored", slash ? slash + 1 : path,
                 ignored, ignored == 1 ? "" : "s", ignored == 1 ? "is" : "are");
    return rc;
}

ckks_status calibration_load(calibration_rows *out, const onnx_model *model, const char *path,
                             const char *label_column, const ctl_options *options, ckks_error *err) {
    ckks_status rc;
    ckks_error inner = {0};
    *out = (calibration_rows){0};
    if ((rc = data_file_read(&out->file, path, err)) != CKKS_OK) return rc;
    if (out->file.format == DATA_CSV) {
        rc = from_csv(out, model, path, label_column, options, &inner);
        file_name_error(&inner, path);
        if (rc != CKKS_OK) {
            calibration_fini(out);
            return ckks_error_set(err, rc, inner.field, "%s", inner.message);
        }
    } else {
        out->matrix = out->file.matrix;
        out->file.matrix = (data_matrix){0};
    }
    out->view = (compile_calibration){out->matrix.values, out->matrix.row_count,
                                      (uint32_t)out->matrix.column_count, out->names};
    return CKKS_OK;
}
