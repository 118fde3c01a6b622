#include "client/ctl/rows_stream.h"

#include "client/lib/wipe.h"
#include "kernels/base/hash.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define READ_BYTES     (1u << 18)
#define PART_BYTES_MAX (UINT64_C(1) << 30)

struct rows_stream {
    const client_model *model;
    rows_source source;
    const ctl_options *options;
    rows_place place;
    bool told_ignored;
    rows whole;     /* values NULL: the file is read as it goes */
    uint64_t limit; /* rows; UINT64_MAX = all */
    FILE *file;
    uint64_t file_bytes;
    char *buffer; /* the header, then what was read of the rows */
    size_t header_bytes, used, capacity;
    bool is_at_end;
};

static ckks_status read_error(const rows_stream *s, ckks_error *err) {
    return ckks_error_set(err, CKKS_IO, "file", "%.200s: read: %s", s->source.path, strerror(errno));
}

/* more bytes behind the buffer's */
static ckks_status fill(rows_stream *s, ckks_error *err) {
    if (s->capacity - s->used < READ_BYTES) {
        const size_t capacity = 2 * s->capacity + READ_BYTES;
        char *moved = capacity > PART_BYTES_MAX ? NULL : wipe_grow(s->buffer, s->used, capacity);
        if (!moved)
            return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "%.200s: no memory for its rows",
                                  s->source.path);
        s->buffer = moved, s->capacity = capacity;
    }
    const size_t got = fread(s->buffer + s->used, 1, READ_BYTES, s->file);
    if (!got && ferror(s->file)) return read_error(s, err);
    s->used += got;
    s->is_at_end = got < READ_BYTES;
    return CKKS_OK;
}

/* One record from `from` on: where it ends (behind its line feed), and how many lines it has. A line feed
 * inside quotes ends none; csv_parse refuses what is no CSV. */
static ckks_status find_record(rows_stream *s, size_t from, size_t *end, uint32_t *lines, ckks_error *err) {
    bool is_quoted = false;
    *lines = 0;
    for (size_t at = from;; at++) {
        while (at == s->used && !s->is_at_end) {
            const ckks_status rc = fill(s, err);
            if (rc != CKKS_OK) return rc;
        }
        if (at == s->used) {
            *end = at;
            *lines += at > from;
            return CKKS_OK;
        }
        if (s->buffer[at] == '"') is_quoted = !is_quoted;
        if (s->buffer[at] != '\n') continue;
        ++*lines;
        if (is_quoted) continue;
        *end = at + 1;
        return CKKS_OK;
    }
}

/* only blank lines follow */
static bool is_blank(const char *text, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (text[i] != '\n' && text[i] != '\r' && text[i] != ' ' && text[i] != '\t') return false;
    return true;
}

/* Is it CSV that can be read as it goes? */
static bool is_plain_csv(FILE *f) {
    uint8_t head[6] = {0};
    const size_t got = fread(head, 1, sizeof head, f);
    rewind(f);
    return got >= 2 && !gzip_is(head, got) && memcmp(head, "\x93NUMPY", sizeof head) != 0 &&
           !(!head[0] && !head[1]);
}

static ckks_status open_csv(rows_stream *s, ckks_error *err) {
    uint32_t lines;
    struct stat st;
    if (fstat(fileno(s->file), &st) != 0) return read_error(s, err);
    s->file_bytes = (uint64_t)st.st_size;
    const ckks_status rc = find_record(s, 0, &s->header_bytes, &lines, err);
    s->place.offset = s->header_bytes;
    s->place.line = lines + 1;
    return rc;
}

ckks_status rows_stream_open(rows_stream **out, const client_model *model, const rows_source *source,
                             const ctl_options *options, ckks_error *err) {
    ckks_status rc;
    struct stat st;
    *out = NULL;
    rows_stream *s = calloc(1, sizeof *s);
    if (!s) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for rows");
    s->model = model, s->source = *source, s->options = options;
    s->limit = source->limit ? source->limit : UINT64_MAX;
    const bool is_file =
        strcmp(source->path, "-") != 0 && stat(source->path, &st) == 0 && S_ISREG(st.st_mode);
    /* no buffer of the library's, which would keep the end of the file */
    if (is_file && (s->file = fopen(source->path, "re")) && setvbuf(s->file, NULL, _IONBF, 0) == 0 &&
        is_plain_csv(s->file)) {
        rc = open_csv(s, err);
    } else {
        rows_source all = *source;
        all.label_column = all.labels_path = NULL;
        rc = rows_load(&s->whole, model, &all, options, err);
    }
    if (rc == CKKS_OK) *out = s, s = NULL;
    rows_stream_close(s);
    return rc;
}

void rows_stream_close(rows_stream *s) {
    if (!s) return;
    if (s->file) fclose(s->file);
    rows_fini(&s->whole);
    wipe_free(s->buffer);
    free(s);
}

static ckks_status next_of_whole(rows_stream *s, rows *out, rows_place *end, uint64_t count,
                                 ckks_error *err) {
    const uint64_t left = s->whole.count - s->place.row;
    const uint64_t rows_count = left < count ? left : count;
    const size_t bytes = (size_t)rows_count * s->whole.width * sizeof *out->values;
    *out = (rows){.count = rows_count, .width = s->whole.width};
    if (!(out->values = malloc(bytes + 1)))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for rows");
    if (bytes) memcpy(out->values, s->whole.values + s->place.row * s->whole.width, bytes);
    s->place.row += rows_count;
    sha256(s->place.digest, out->values, bytes);
    *end = s->place;
    return CKKS_OK;
}

/* The header and `bytes` of rows behind it, as rows. */
static ckks_status parse_part(rows_stream *s, rows *out, size_t bytes, ckks_error *err) {
    csv_table table = {0};
    data_matrix matrix = {0};
    ckks_error inner = {0};
    ckks_status rc = csv_parse_part(&table, s->buffer, s->header_bytes + bytes, s->place.line, &inner);
    if (rc == CKKS_OK)
        rc = rows_select(&matrix, &table, s->model, &s->source, !s->told_ignored, s->options, &inner);
    if (rc == CKKS_OK && matrix.column_count != s->model->raw_count)
        rc = ckks_error_set(&inner, CKKS_INVALID_ARGUMENT, "rows",
                            "rows have %llu numbers, the model takes %u",
                            (unsigned long long)matrix.column_count, s->model->raw_count);
    s->told_ignored = true;
    if (rc == CKKS_OK) {
        *out = (rows){.count = matrix.row_count, .width = s->model->raw_count, .values = matrix.values};
        matrix.values = NULL;
    }
    csv_table_fini(&table);
    data_matrix_fini(&matrix);
    if (rc == CKKS_OK) return CKKS_OK;
    file_name_error(&inner, s->source.path);
    return ckks_error_set(err, rc, inner.field, "%s", inner.message);
}

ckks_status rows_stream_next(rows_stream *s, rows *out, rows_place *end, uint64_t count, ckks_error *err) {
    ckks_status rc;
    size_t at = s->header_bytes;
    uint32_t lines = 0;
    *out = (rows){.width = s->model->raw_count};
    if (s->limit - s->place.row < count) count = s->limit - s->place.row;
    if (s->whole.values) return next_of_whole(s, out, end, count, err);
    for (uint64_t i = 0; i < count; i++) {
        uint32_t more;
        size_t next;
        if ((rc = find_record(s, at, &next, &more, err)) != CKKS_OK) return rc;
        if (next == at) break;
        at = next, lines += more;
    }
    const size_t bytes = at - s->header_bytes;
    if (is_blank(s->buffer + s->header_bytes, bytes)) {
        /* a file that has a header and no row is refused as it is when it is read whole */
        if (!s->place.row && count && (rc = parse_part(s, out, bytes, err)) != CKKS_OK) return rc;
        *end = s->place;
        return CKKS_OK;
    }
    if ((rc = parse_part(s, out, bytes, err)) != CKKS_OK) return rc;
    sha256(s->place.digest, s->buffer + s->header_bytes, bytes);
    s->place.row += out->count, s->place.offset += bytes, s->place.line += lines;
    memmove(s->buffer + s->header_bytes, s->buffer + at, s->used - at);
    s->used -= bytes;
    *end = s->place;
    return CKKS_OK;
}

static ckks_status other_rows(const rows_stream *s, ckks_error *err) {
    return ckks_error_set(err, CKKS_DIGEST_MISMATCH, "rows", "%.200s has other rows than when it was begun",
                          s->source.path);
}

ckks_status rows_stream_skip(rows_stream *s, const rows_place *end, ckks_error *err) {
    uint8_t digest[32];
    if (end->row < s->place.row || end->offset < s->place.offset || end->row > s->limit)
        return other_rows(s, err);
    if (s->whole.values) {
        if (end->row > s->whole.count) return other_rows(s, err);
        sha256(digest, s->whole.values + s->place.row * s->whole.width,
               (size_t)(end->row - s->place.row) * s->whole.width * sizeof *s->whole.values);
    } else {
        CKKS_ASSERT(s->buffer); /* it holds the header at least */
        const uint64_t bytes = end->offset - s->place.offset;
        if (end->offset > s->file_bytes || bytes > PART_BYTES_MAX) return other_rows(s, err);
        while (s->used < s->header_bytes + bytes && !s->is_at_end) {
            const ckks_status rc = fill(s, err);
            if (rc != CKKS_OK) return rc;
        }
        if (s->used < s->header_bytes + bytes) return other_rows(s, err);
        sha256(digest, s->buffer + s->header_bytes, (size_t)bytes);
        memmove(s->buffer + s->header_bytes, s->buffer + s->header_bytes + bytes,
                s->used - s->header_bytes - (size_t)bytes);
        s->used -= (size_t)bytes;
    }
    if (memcmp(digest, end->digest, sizeof digest) != 0) return other_rows(s, err);
    s->place = *end;
    return CKKS_OK;
}

uint64_t rows_stream_done(const rows_stream *s) {
    if (s->limit != UINT64_MAX && s->limit) return s->place.row * 1000 / s->limit;
    const uint64_t all = s->whole.values ? s->whole.count : s->file_bytes;
    return all ? (s->whole.values ? s->place.row : s->place.offset) * 1000 / all : 0;
}
