/* Rows of a data file in the order that a model wants, and labels beside them. */
#ifndef CKKS_CTL_ROWS_H
#define CKKS_CTL_ROWS_H

#include "client/ctl/ctl.h"
#include "client/lib/data.h"

typedef struct rows {
    uint64_t count;
    uint32_t width; /* model->raw_count */
    double *values; /* [count][width], raw */
    bool has_labels;
    data_labels labels; /* count of them */
} rows;

typedef struct rows_source {
    const char *path;
    const char *label_column; /* of a CSV file; NULL = none */
    const char *labels_path;  /* one label a line, .npy, IDX, or CSV with label_column; NULL = none */
    uint64_t limit;           /* first rows only; 0 = all */
} rows_source;

/* rows_load reads, matches columns by name and checks widths. Messages name file, line and column. Free with
 * rows_fini. */
ckks_status rows_load(rows *out, const client_model *model, const rows_source *source,
                      const ctl_options *options, ckks_error *err);
void rows_fini(rows *r);
/* rows_check_labels reads the labels alone: are there row_count of them? Before anything slow is begun. */
ckks_status rows_check_labels(const rows_source *source, uint64_t row_count, ckks_error *err);
/* rows_select picks the model's columns out of a CSV table by name; columns that are ignored are told about
 * when `tell`. */
ckks_status rows_select(data_matrix *out, const csv_table *table, const client_model *model,
                        const rows_source *source, bool tell, const ctl_options *options, ckks_error *err);

#endif
