/* Data files: the blocking half of data.h. */
#include "client/lib/data.h"
#include "client/lib/files.h"
#include "client/lib/wipe.h"

#include <stdlib.h>
#include <string.h>

void data_file_fini(data_file *file) {
    if (!file) return;
    data_matrix_fini(&file->matrix);
    csv_table_fini(&file->csv);
    *file = (data_file){0};
}

static ckks_status parse_plain(data_file *out, const uint8_t *bytes, size_t size, ckks_error *err) {
    if (size >= 6 && !memcmp(bytes, "\x93NUMPY", 6)) {
        out->format = DATA_NPY;
        return npy_parse(&out->matrix, bytes, size, err);
    }
    if (size >= 2 && !bytes[0] && !bytes[1]) {
        out->format = DATA_IDX;
        return idx_parse(&out->matrix, bytes, size, err);
    }
    out->format = DATA_CSV;
    return csv_parse(&out->csv, bytes, size, err);
}

ckks_status data_parse(data_file *out, const void *bytes, size_t size, ckks_error *err) {
    ckks_status rc;
    uint8_t *inflated = NULL;
    *out = (data_file){0};
    if (gzip_is(bytes, size)) {
        size_t inflated_size;
        if ((rc = gzip_inflate(&inflated, &inflated_size, bytes, size, DATA_FILE_BYTES_MAX, err)) != CKKS_OK)
            return rc;
        rc = parse_plain(out, inflated, inflated_size, err);
    } else {
        rc = parse_plain(out, bytes, size, err);
    }
    wipe_free(inflated);
    if (rc != CKKS_OK) data_file_fini(out);
    return rc;
}

ckks_status data_file_read(data_file *out, const char *path, ckks_error *err) {
    ckks_status rc;
    uint8_t *bytes = NULL;
    size_t size = 0;
    *out = (data_file){0};
    if ((rc = file_read(&bytes, &size, path, DATA_FILE_BYTES_MAX, err)) != CKKS_OK) return rc;
    rc = data_parse(out, bytes, size, err);
    if (rc != CKKS_OK) file_name_error(err, path);
    wipe_free(bytes);
    return rc;
}
