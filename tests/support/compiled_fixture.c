#include "tests/support/compiled_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
// cmocka wants these first
#include <cmocka.h>

void must(ckks_status rc, const ckks_error *err) {
    char text[480];
    if (rc != CKKS_OK) fail_msg("%s", ckks_error_print(err, text, sizeof text));
}

ckks_status compiled_try(compiled *out, const compile_options *options, ckks_error *err) {
    *out = (compiled){0};
    *err = (ckks_error){0};
    const ckks_status rc = compile_model(&out->bytes, &out->size, &out->report, options, err);
    if (rc != CKKS_OK) {
        assert_null(out->bytes);
        assert_int_equal(err->code, rc);
        return rc;
    }
    compile_report_summary(out->report, &out->summary);
    return package_parse(&out->package, out->bytes, out->size, options->allow_insecure, err);
}

void compiled_make(compiled *out, const compile_options *options) {
    ckks_error err;
    must(compiled_try(out, options, &err), &err);
}

void compiled_fini(compiled *c) {
    package_destroy(c->package);
    compile_report_destroy(c->report);
    free(c->bytes);
}

void rows_read(file_rows *r, const char *path) {
    ckks_error err = {0};
    uint32_t ignored;
    must(data_file_read(&r->file, path, &err), &err);
    if (r->file.format == DATA_CSV)
        must(csv_select(&r->matrix, &ignored, &r->file.csv, NULL, 0, NULL, &err), &err);
    else
        r->matrix = r->file.matrix;
}

void rows_fini(file_rows *r) {
    if (r->file.format == DATA_CSV) data_matrix_fini(&r->matrix);
    data_file_fini(&r->file);
}
