/*
 * Reading data that people have: .npy, IDX (also gzip-compressed) and CSV.
 *
 * The parsers work on bytes in memory and do no I/O. What they read is hostile: every size is multiplied with
 * a check, every byte is inside the buffer, memory stays within a small factor of the input, and an error
 * says where (line, axis, byte).
 *
 * Rows are private: every destructor here overwrites what it frees.
 *
 * Deliberately absent: pickled objects, structured dtypes, complex numbers, text encodings other than UTF-8.
 */
#ifndef CKKS_CLIENT_DATA_H
#define CKKS_CLIENT_DATA_H

#include "kernels/base/status.h"

#include <stddef.h>

#define DATA_AXES_MAX        8u
#define DATA_COLUMNS_MAX     65536u
#define DATA_ELEMENTS_MAX    (UINT64_C(1) << 28) /* 2 GiB of doubles */
#define DATA_FILE_BYTES_MAX  (UINT64_C(1) << 30)
#define DATA_CELL_BYTES_MAX  4096u
#define DATA_GZIP_FACTOR_MAX 1100u /* deflate cannot exceed about 1,032 */

/* Numbers in rows of equal length. shape[0] is the row axis; the others are flattened into columns, last axis
 * fastest. A scalar file is one row of one column. NaN where a CSV cell is empty. */
typedef struct data_matrix {
    uint64_t row_count;
    uint64_t column_count;
    uint32_t axis_count;
    uint64_t shape[DATA_AXES_MAX];
    double *values; /* [row_count][column_count], owned */
} data_matrix;
void data_matrix_fini(data_matrix *matrix); /* accepts zeroed */
/* data_matrix_allocate: values uninitialised; checks the product against DATA_ELEMENTS_MAX. */
ckks_status data_matrix_allocate(data_matrix *out, const uint64_t *shape, uint32_t axis_count,
                                 ckks_error *err);

/* npy_parse: numpy format 1.0 to 3.0, C order, bool, integers, float16/32/64, either byte order. 64-bit
 * integers round to the nearest double. Refuses bytes after the array. */
ckks_status npy_parse(data_matrix *out, const void *bytes, size_t size, ckks_error *err);

/* idx_parse: the MNIST container: two zero bytes, type, axis count, u32 big-endian sizes, elements. */
ckks_status idx_parse(data_matrix *out, const void *bytes, size_t size, ckks_error *err);

/* gzip_inflate: the caller frees *out with wipe_free(). Of several streams the contents are one behind the
 * other. Refuses more than size_max bytes, and bytes after the last stream. */
ckks_status gzip_inflate(uint8_t **out, size_t *out_size, const void *bytes, size_t size, uint64_t size_max,
                         ckks_error *err);
static inline bool gzip_is(const void *bytes, size_t size) {
    return size >= 2 && ((const uint8_t *)bytes)[0] == 0x1f && ((const uint8_t *)bytes)[1] == 0x8b;
}

/* CSV text: a header line with names and rows of cells (RFC 4180: comma, quotes, LF or CRLF, UTF-8 BOM
 * skipped). Cells are trimmed of blanks unless quoted. */
typedef struct csv_table {
    uint32_t column_count;
    uint64_t row_count;
    const char **names; /* [column_count] */
    const char **cells; /* [row_count][column_count] */
    uint32_t *lines;    /* [row_count]: where the row begins, for messages */
    char *text;         /* owns the bytes */
} csv_table;
ckks_status csv_parse(csv_table *out, const void *bytes, size_t size, ckks_error *err);
/* csv_parse_part: the header and some rows of a longer file, the first of them from line `first_line` (0: the
 * one after the header). */
ckks_status csv_parse_part(csv_table *out, const void *bytes, size_t size, uint32_t first_line,
                           ckks_error *err);
void csv_table_fini(csv_table *table); /* accepts zeroed */

/* csv_number: a decimal number; empty, "NA", "NaN", "null" and "?" are NaN (a missing value). False for
 * anything else, infinities and hexadecimal included. Independent of the locale. */
bool csv_number(double *out, const char *cell);

/* A column that a model expects. */
typedef struct data_column {
    const char *name;
    bool is_categorical; /* the cell's text is looked up; the value is the category's index, -1 if unknown */
    const char *const *categories;
    uint32_t category_count;
    bool refuses_unknown; /* a text that is no category is an error naming line and value, not -1 */
    bool refuses_missing; /* nothing fills a missing value in: an error naming the line, not NaN or -1 */
} data_column;

/*
 * csv_select picks `columns` by name, in the model's order, whatever the file's order: a column that is
 * missing or occurs twice is CKKS_INVALID_ARGUMENT naming it; a header without columns to match (column_count
 * 0) takes all columns but `label_column`, in the file's order. Extra columns are ignored: *ignored_count
 * says how many, the label column not counted. Cells that are no numbers are refused with line and column.
 */
ckks_status csv_select(data_matrix *out, uint32_t *ignored_count, const csv_table *table,
                       const data_column *columns, uint32_t column_count, const char *label_column,
                       ckks_error *err);

/* csv_find: index of a name, matched exactly; CKKS_NOT_FOUND (with the nearest name of another case, if any)
 * or CKKS_INVALID_ARGUMENT if it occurs twice. */
ckks_status csv_find(uint32_t *index, const csv_table *table, const char *name, ckks_error *err);

/* Labels as text: integers print without a fraction, so that "7", 7 and 7.0 are the same label. */
typedef struct data_labels {
    uint64_t count;
    char **text; /* owned */
} data_labels;
void data_labels_fini(data_labels *labels);
ckks_status data_labels_from_matrix(data_labels *out, const data_matrix *matrix, ckks_error *err);
ckks_status data_labels_from_csv(data_labels *out, const csv_table *table, uint32_t column, ckks_error *err);
/* data_label_equal compares as text, then as numbers. */
bool data_label_equal(const char *a, const char *b);

/* ---- files (files_data.c: blocking I/O) ---- */

typedef enum data_format { DATA_NPY = 1, DATA_IDX, DATA_CSV } data_format;

typedef struct data_file {
    data_format format;
    data_matrix matrix; /* NPY, IDX */
    csv_table csv;      /* CSV */
} data_file;
/* data_file_read tells the format from the content, not from the name: npy and gzip by magic, IDX by its two
 * zero bytes, anything else is CSV. "-" reads standard input. Errors name the path. */
ckks_status data_file_read(data_file *out, const char *path, ckks_error *err);
/* data_parse: the same on bytes. */
ckks_status data_parse(data_file *out, const void *bytes, size_t size, ckks_error *err);
void data_file_fini(data_file *file);

#endif
