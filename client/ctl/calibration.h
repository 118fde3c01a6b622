/* Rows of a data file in the order that an ONNX model wants, before there is a package. */
#ifndef CKKS_CTL_CALIBRATION_H
#define CKKS_CTL_CALIBRATION_H

#include "client/compile/compile.h"
#include "client/ctl/ctl.h"
#include "client/lib/data.h"

typedef struct calibration_rows {
    data_file file;
    data_matrix matrix;
    const char **names; /* of the columns; NULL for a plain tensor */
    compile_calibration view;
} calibration_rows;

/* calibration_load reads CSV, .npy or IDX. Columns that the model names are found by name, in any order, and
 * what it does not know is ignored and said; a model of one matrix takes a CSV file's columns as they come,
 * but `label_column` (NULL = none). Messages name file, line and column. Free with calibration_fini. */
ckks_status calibration_load(calibration_rows *out, const onnx_model *model, const char *path,
                             const char *label_column, const ctl_options *options, ckks_error *err);
void calibration_fini(calibration_rows *rows);

#endif
