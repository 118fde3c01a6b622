/*
 * CSV by RFC 4180, strict where leniency could shift a value into another column: rows of another length,
 * stray quotes and blank lines in the middle are refused with their line.
 */
#include "client/lib/data.h"
#include "client/lib/wipe.h"
#include "kernels/base/bytes.h"

#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

void csv_table_fini(csv_table *table) {
    if (!table) return;
    free(table->names);
    free(table->cells);
    free(table->lines);
    wipe_free(table->text);
    *table = (csv_table){0};
}

/* The reader walks `text` and writes cells back into it: a cell never grows. */
typedef struct csv_reader {
    char *text;
    size_t at, size;
    uint32_t line;
} csv_reader;

typedef enum csv_end { CSV_CELL, CSV_ROW, CSV_FILE } csv_end;

static ckks_status read_quoted(csv_reader *r, size_t *end, ckks_error *err) {
    size_t to = r->at, from = r->at + 1;
    const uint32_t line = r->line;
    for (;; from++) {
        if (from >= r->size)
            return ckks_error_set(err, CKKS_MALFORMED, "rows", "line %u: a quote is never closed", line);
        if (r->text[from] == '"') {
            if (from + 1 < r->size && r->text[from + 1] == '"')
                from++;
            else
                break;
        } else if (r->text[from] == '\n') {
            r->line++;
        }
        r->text[to++] = r->text[from];
    }
    *end = to;
    r->at = from + 1;
    return CKKS_OK;
}

/* read_cell leaves r->at on the terminator and sets [*begin, *end); the caller NUL-terminates. */
static ckks_status read_cell(csv_reader *r, size_t *begin, size_t *end, bool *is_quoted, ckks_error *err) {
    ckks_status rc;
    while (r->at < r->size && (r->text[r->at] == ' ' || r->text[r->at] == '\t')) r->at++;
    *begin = r->at;
    *is_quoted = r->at < r->size && r->text[r->at] == '"';
    if (*is_quoted) {
        if ((rc = read_quoted(r, end, err)) != CKKS_OK) return rc;
        while (r->at < r->size && (r->text[r->at] == ' ' || r->text[r->at] == '\t')) r->at++;
        if (r->at < r->size && r->text[r->at] != ',' && r->text[r->at] != '\n' && r->text[r->at] != '\r')
            return ckks_error_set(err, CKKS_MALFORMED, "rows", "line %u: text after a closing quote",
                                  r->line);
    } else {
        while (r->at < r->size && r->text[r->at] != ',' && r->text[r->at] != '\n' && r->text[r->at] != '\r') {
            if (r->text[r->at] == '"')
                return ckks_error_set(err, CKKS_MALFORMED, "rows", "line %u: a quote inside an unquoted cell",
                                      r->line);
            r->at++;
        }
        *end = r->at;
        while (*end > *begin && (r->text[*end - 1] == ' ' || r->text[*end - 1] == '\t')) (*end)--;
    }
    if (*end - *begin > DATA_CELL_BYTES_MAX)
        return ckks_error_set(err, CKKS_TOO_LARGE, "rows", "line %u: a cell of more than %u bytes", r->line,
                              DATA_CELL_BYTES_MAX);
    return CKKS_OK;
}

/* after a cell: what ends it; moves past it */
static ckks_status read_end(csv_reader *r, csv_end *out, ckks_error *err) {
    if (r->at >= r->size) {
        *out = CSV_FILE;
        return CKKS_OK;
    }
    const char c = r->text[r->at++];
    *out = c == ',' ? CSV_CELL : CSV_ROW;
    if (c == '\r') {
        if (r->at >= r->size || r->text[r->at] != '\n')
            return ckks_error_set(err, CKKS_MALFORMED, "rows",
                                  "line %u: a carriage return without a line feed", r->line);
        r->at++;
    }
    if (c != ',') r->line++;
    return CKKS_OK;
}

typedef struct cell_list {
    const char **cell;
    size_t count, capacity;
} cell_list;

static bool push(cell_list *list, const char *cell) {
    if (list->count == list->capacity) {
        const size_t larger = list->capacity ? list->capacity * 2 : 256;
        const char **moved = realloc(list->cell, larger * sizeof *moved);
        if (!moved) return false;
        list->cell = moved, list->capacity = larger;
    }
    list->cell[list->count++] = cell;
    return true;
}

/* One line into `list`. *is_blank: no cell but an empty unquoted one. */
static ckks_status read_row(csv_reader *r, cell_list *list, bool *is_blank, bool *is_last, ckks_error *err) {
    const size_t first = list->count;
    ckks_status rc;
    csv_end how = CSV_CELL;
    bool is_quoted = false;
    while (how == CSV_CELL) {
        size_t begin = 0, end = 0;
        if ((rc = read_cell(r, &begin, &end, &is_quoted, err)) != CKKS_OK) return rc;
        if ((rc = read_end(r, &how, err)) != CKKS_OK) return rc;
        r->text[end] = 0; /* text has one byte more than the file */
        if (list->count - first >= DATA_COLUMNS_MAX)
            return ckks_error_set(err, CKKS_TOO_LARGE, "rows", "more than %u columns", DATA_COLUMNS_MAX);
        if (!push(list, r->text + begin))
            return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for cells");
    }
    *is_blank = list->count - first == 1 && !is_quoted && !list->cell[first][0];
    *is_last = how == CSV_FILE || r->at >= r->size;
    return CKKS_OK;
}

static ckks_status check_header(const cell_list *names, ckks_error *err) {
    if (names->count == 1 && (strchr(names->cell[0], ';') || strchr(names->cell[0], '\t')))
        return ckks_error_set(err, CKKS_MALFORMED, "header", "the separator must be a comma");
    for (size_t i = 0; i < names->count; i++)
        if (!names->cell[i][0])
            return ckks_error_set(err, CKKS_MALFORMED, "header", "column %zu has no name%s", i + 1,
                                  i ? "" : " (row numbers? pandas leaves them out with to_csv(index=False))");
    return CKKS_OK;
}

/* What people have tables and arrays in besides, by how it begins: said as what it is, not as broken text. */
static ckks_status check_beginning(const void *bytes, size_t size, ckks_error *err) {
    static const struct {
        const char *begin, *what;
    } known[] = {
        {"PK\x03\x04", "an archive (.npz, .xlsx, .ods): save the table as CSV, one array as .npy"},
        {"PAR1", "a Parquet file: save it as CSV or .npy"},
        {"\x89HDF\r\n", "an HDF5 file: save one array as .npy"},
        {"\xff\xfe", "text in UTF-16: save it as CSV in UTF-8"},
        {"\xfe\xff", "text in UTF-16: save it as CSV in UTF-8"},
    };
    if (size == 0) return ckks_error_set(err, CKKS_MALFORMED, "file", "the file is empty");
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (size >= strlen(known[i].begin) && !memcmp(bytes, known[i].begin, strlen(known[i].begin)))
            return ckks_error_set(err, CKKS_UNSUPPORTED, "file", "%s", known[i].what);
    if (memchr(bytes, 0, size))
        return ckks_error_set(err, CKKS_MALFORMED, "file", "not text: it has NUL bytes");
    return CKKS_OK;
}

/* trailing blank lines are no rows; `blank_from` is the first of the run of blank lines being read */
static ckks_status read_rows(csv_reader *r, csv_table *table, cell_list *cells, ckks_error *err) {
    ckks_status rc;
    uint32_t blank_line = 0;
    size_t row_capacity = 0;
    bool is_last = r->at >= r->size;
    while (!is_last) {
        bool is_blank;
        const uint32_t line = r->line;
        const size_t before = cells->count;
        if ((rc = read_row(r, cells, &is_blank, &is_last, err)) != CKKS_OK) return rc;
        if (is_blank) {
            if (!blank_line) blank_line = line;
            cells->count = before;
            continue;
        }
        if (blank_line) return ckks_error_set(err, CKKS_MALFORMED, "rows", "line %u is empty", blank_line);
        if (cells->count - before != table->column_count)
            return ckks_error_set(err, CKKS_MALFORMED, "rows", "line %u has %zu cells, the header %u", line,
                                  cells->count - before, table->column_count);
        if (table->row_count == row_capacity) {
            row_capacity = row_capacity ? row_capacity * 2 : 256;
            uint32_t *moved = realloc(table->lines, row_capacity * sizeof *moved);
            if (!moved) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for rows");
            table->lines = moved;
        }
        table->lines[table->row_count++] = line;
    }
    if (!table->row_count) return ckks_error_set(err, CKKS_MALFORMED, "rows", "there is a header but no row");
    return CKKS_OK;
}

ckks_status csv_parse(csv_table *out, const void *bytes, size_t size, ckks_error *err) {
    return csv_parse_part(out, bytes, size, 0, err);
}

ckks_status csv_parse_part(csv_table *out, const void *bytes, size_t size, uint32_t first_line,
                           ckks_error *err) {
    ckks_status rc;
    csv_table table = {0};
    cell_list names = {0}, cells = {0};
    bool is_blank = false, is_last = false;

    *out = (csv_table){0};
    if (size >= 3 && !memcmp(bytes, "\xef\xbb\xbf", 3)) bytes = (const char *)bytes + 3, size -= 3;
    if ((rc = check_beginning(bytes, size, err)) != CKKS_OK) return rc;
    if (!(table.text = malloc(size + 1)))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory");
    memcpy(table.text, bytes, size);
    table.text[size] = 0;
    csv_reader r = {table.text, 0, size, 1};
    if ((rc = read_row(&r, &names, &is_blank, &is_last, err)) != CKKS_OK) goto out;
    if (is_blank) {
        rc = ckks_error_set(err, CKKS_MALFORMED, "header", "line 1 is empty: it has the columns' names");
        goto out;
    }
    if ((rc = check_header(&names, err)) != CKKS_OK) goto out;
    if (first_line) r.line = first_line;
    table.column_count = (uint32_t)names.count;
    rc = read_rows(&r, &table, &cells, err);
    table.names = names.cell, names.cell = NULL;
    table.cells = cells.cell, cells.cell = NULL;
    if (rc != CKKS_OK) goto out;
    *out = table, table = (csv_table){0};
out:
    free(names.cell);
    free(cells.cell);
    csv_table_fini(&table);
    return rc;
}

/* ---- numbers ---- */

static locale_t c_locale;
static pthread_once_t c_locale_once = PTHREAD_ONCE_INIT;
static void c_locale_create(void) {
    c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

bool csv_number(double *out, const char *cell) {
    static const char *const missing[] = {"", "NA", "NaN", "nan", "null", "?"};
    for (size_t i = 0; i < sizeof missing / sizeof *missing; i++)
        if (!strcmp(cell, missing[i])) {
            *out = (double)NAN;
            return true;
        }
    if (strspn(cell, "+-0123456789.eE") != strlen(cell)) return false;
    char *end;
    pthread_once(&c_locale_once, c_locale_create);
    const double value = c_locale ? strtod_l(cell, &end, c_locale) : strtod(cell, &end);
    if (end == cell || *end || !isfinite(value)) return false;
    *out = value;
    return true;
}

/* ---- selection by name ---- */

ckks_status csv_find(uint32_t *index, const csv_table *table, const char *name, ckks_error *err) {
    uint32_t found = UINT32_MAX;
    const char *near = NULL;
    for (uint32_t i = 0; i < table->column_count; i++) {
        if (!strcmp(table->names[i], name)) {
            if (found != UINT32_MAX)
                return ckks_error_set(err, CKKS_INVALID_ARGUMENT, name,
                                      "the column occurs twice, as number %u and %u", found + 1, i + 1);
            found = i;
        } else if (!strcasecmp(table->names[i], name)) {
            near = table->names[i];
        }
    }
    if (found == UINT32_MAX)
        return ckks_error_set(err, CKKS_NOT_FOUND, name, "the column is missing%s%s%s",
                              near ? " (there is \"" : "", near ? near : "", near ? "\")" : "");
    *index = found;
    return CKKS_OK;
}

static ckks_status category_value(double *out, const char *cell, const data_column *column, uint32_t line,
                                  ckks_error *err) {
    double number;
    for (uint32_t k = 0; k < column->category_count; k++)
        if (!strcmp(cell, column->categories[k])) {
            *out = k;
            return CKKS_OK;
        }
    *out = -1;
    if (column->refuses_missing && csv_number(&number, cell) && isnan(number))
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, column->name,
                              "line %u: the value is missing, and the model fills none in here", line);
    if (column->refuses_unknown)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, column->name,
                              "line %u: \"%.40s\" is a category that the model does not know", line, cell);
    return CKKS_OK;
}

static ckks_status cell_value(double *out, const char *cell, const data_column *column, const char *name,
                              uint32_t line, ckks_error *err) {
    if (column && column->is_categorical) return category_value(out, cell, column, line, err);
    if (!csv_number(out, cell))
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, name, "line %u: \"%.40s\" is not a number", line,
                              cell);
    if (column && column->refuses_missing && isnan(*out))
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, name,
                              "line %u: the value is missing, and the model fills none in here", line);
    return CKKS_OK;
}

/* Which column of the file feeds each column of the model. */
static ckks_status map_columns(uint32_t *map, uint32_t *ignored_count, const csv_table *table,
                               const data_column *columns, uint32_t column_count, const char *label_column,
                               ckks_error *err) {
    ckks_status rc;
    uint32_t label = UINT32_MAX;
    for (uint32_t i = 0; i < column_count; i++) {
        rc = csv_find(&map[i], table, columns[i].name, err);
        if (rc != CKKS_OK) return CKKS_INVALID_ARGUMENT;
    }
    if (label_column && csv_find(&label, table, label_column, NULL) != CKKS_OK) label = UINT32_MAX;
    *ignored_count = table->column_count - column_count;
    for (uint32_t i = 0; i < column_count; i++)
        if (map[i] == label) return CKKS_OK; /* the model reads it: not an extra column */
    if (label != UINT32_MAX) (*ignored_count)--;
    return CKKS_OK;
}

ckks_status csv_select(data_matrix *out, uint32_t *ignored_count, const csv_table *table,
                       const data_column *columns, uint32_t column_count, const char *label_column,
                       ckks_error *err) {
    ckks_status rc;
    uint32_t *map = NULL, width = column_count;
    *out = (data_matrix){0};
    *ignored_count = 0;
    if (!(map = malloc(((size_t)table->column_count + column_count) * sizeof *map)))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory");
    if (column_count) {
        rc = map_columns(map, ignored_count, table, columns, column_count, label_column, err);
        if (rc != CKKS_OK) goto out;
    } else {
        for (uint32_t i = 0; i < table->column_count; i++)
            if (!label_column || strcmp(table->names[i], label_column) != 0) map[width++] = i;
    }
    if (!width) {
        rc = ckks_error_set(err, CKKS_INVALID_ARGUMENT, "header", "there is no column but the label");
        goto out;
    }
    const uint64_t shape[2] = {table->row_count, width};
    if ((rc = data_matrix_allocate(out, shape, 2, err)) != CKKS_OK) goto out;
    for (uint64_t row = 0; row < table->row_count && rc == CKKS_OK; row++)
        for (uint32_t i = 0; i < width && rc == CKKS_OK; i++)
            rc = cell_value(&out->values[row * width + i], table->cells[row * table->column_count + map[i]],
                            column_count ? &columns[i] : NULL, table->names[map[i]], table->lines[row], err);
    if (rc != CKKS_OK) data_matrix_fini(out);
out:
    free(map);
    return rc;
}

/* ---- labels ---- */

void data_labels_fini(data_labels *labels) {
    if (!labels) return;
    for (uint64_t i = 0; labels->text && i < labels->count; i++) wipe_free(labels->text[i]);
    free(labels->text);
    *labels = (data_labels){0};
}

static ckks_status labels_allocate(data_labels *out, uint64_t count, ckks_error *err) {
    *out = (data_labels){0};
    if (!(out->text = calloc((size_t)count, sizeof *out->text)))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for %llu labels",
                              (unsigned long long)count);
    out->count = count;
    return CKKS_OK;
}

ckks_status data_labels_from_matrix(data_labels *out, const data_matrix *matrix, ckks_error *err) {
    ckks_status rc;
    *out = (data_labels){0};
    if (matrix->column_count != 1)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "labels",
                              "one label a row is needed, each row has %llu numbers",
                              (unsigned long long)matrix->column_count);
    if ((rc = labels_allocate(out, matrix->row_count, err)) != CKKS_OK) return rc;
    for (uint64_t i = 0; i < matrix->row_count; i++) {
        char text[40];
        snprintf(text, sizeof text, "%.17g", matrix->values[i]);
        if (!(out->text[i] = strdup(text))) {
            data_labels_fini(out);
            return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for labels");
        }
    }
    return CKKS_OK;
}

ckks_status data_labels_from_csv(data_labels *out, const csv_table *table, uint32_t column, ckks_error *err) {
    ckks_status rc;
    if ((rc = labels_allocate(out, table->row_count, err)) != CKKS_OK) return rc;
    for (uint64_t i = 0; i < table->row_count; i++)
        if (!(out->text[i] = strdup(table->cells[i * table->column_count + column]))) {
            data_labels_fini(out);
            return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for labels");
        }
    return CKKS_OK;
}

bool data_label_equal(const char *a, const char *b) {
    double x, y;
    return !strcmp(a, b) || (csv_number(&x, a) && csv_number(&y, b) && x == y);
}
