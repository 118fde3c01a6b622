/* A model that a test compiles, and the rows of a file that it does so with. */
#ifndef CKKS_TESTS_COMPILED_FIXTURE_H
#define CKKS_TESTS_COMPILED_FIXTURE_H

#include "client/compile/compile.h"
#include "client/lib/data.h"
#include "proto/package.h"

/* Fails the test with the error's own text unless rc is CKKS_OK. */
void must(ckks_status rc, const ckks_error *err);

typedef struct compiled {
    uint8_t *bytes;
    size_t size;
    compile_report *report;
    compile_summary summary;
    package *package;
} compiled;

/* compiled_try compiles and parses what came out; after a failure nothing is held and `err` says why. */
ckks_status compiled_try(compiled *out, const compile_options *options, ckks_error *err);
/* compiled_make fails the test instead. */
void compiled_make(compiled *out, const compile_options *options);
void compiled_fini(compiled *c);

/* All rows of a file (CSV: all its columns, numbers). */
typedef struct file_rows {
    data_file file;
    data_matrix matrix;
} file_rows;
void rows_read(file_rows *r, const char *path);
void rows_fini(file_rows *r);

#endif
