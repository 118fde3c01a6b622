/*
 * numpy's .npy: magic, version, header length, a Python dictionary in text, raw elements. The dictionary is
 * read by a parser that knows exactly the three keys that the format defines, in any order, and nothing else
 * of Python.
 */
#include "client/lib/data.h"
#include "client/lib/wipe.h"
#include "kernels/base/bytes.h"

#include <math.h>
#include <stdlib.h>

void data_matrix_fini(data_matrix *matrix) {
    if (!matrix) return;
    wipe_free(matrix->values);
    *matrix = (data_matrix){0};
}

ckks_status data_matrix_allocate(data_matrix *out, const uint64_t *shape, uint32_t axis_count,
                                 ckks_error *err) {
    *out = (data_matrix){.row_count = 1, .column_count = 1, .axis_count = axis_count};
    uint64_t total = 1;
    for (uint32_t i = 0; i < axis_count; i++) {
        out->shape[i] = shape[i];
        if (shape[i] == 0) return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "shape", "axis %u is empty", i);
        if (!size_multiply(&total, total, shape[i]) || total > DATA_ELEMENTS_MAX)
            return ckks_error_set(err, CKKS_TOO_LARGE, "shape", "more than %llu elements",
                                  (unsigned long long)DATA_ELEMENTS_MAX);
        if (i == 0)
            out->row_count = shape[0];
        else
            out->column_count *= shape[i];
    }
    out->values = malloc((size_t)total * sizeof *out->values);
    if (!out->values)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for %llu elements",
                              (unsigned long long)total);
    return CKKS_OK;
}

/* ---- the header's text ---- */

typedef struct npy_text {
    const char *at, *end;
} npy_text;

static void skip_blanks(npy_text *t) {
    while (t->at < t->end && (*t->at == ' ' || *t->at == '\t' || *t->at == '\n')) t->at++;
}
static bool take(npy_text *t, char c) {
    skip_blanks(t);
    if (t->at >= t->end || *t->at != c) return false;
    t->at++;
    return true;
}
static bool take_word(npy_text *t, const char *word) {
    const size_t size = strlen(word);
    skip_blanks(t);
    if ((size_t)(t->end - t->at) < size || memcmp(t->at, word, size) != 0) return false;
    t->at += size;
    return true;
}
/* a quoted string of at most capacity - 1 characters */
static bool take_string(npy_text *t, char *out, size_t capacity) {
    skip_blanks(t);
    if (t->at >= t->end || (*t->at != '\'' && *t->at != '"')) return false;
    const char quote = *t->at++;
    size_t size = 0;
    while (t->at < t->end && *t->at != quote) {
        if (size + 1 >= capacity || *t->at == '\\') return false;
        out[size++] = *t->at++;
    }
    if (t->at >= t->end) return false;
    t->at++;
    out[size] = 0;
    return true;
}
static bool take_number(npy_text *t, uint64_t *out) {
    skip_blanks(t);
    uint64_t value = 0;
    const char *begin = t->at;
    while (t->at < t->end && *t->at >= '0' && *t->at <= '9') {
        if (!size_multiply(&value, value, 10) || !size_add(&value, value, (uint64_t)(*t->at - '0')))
            return false;
        t->at++;
    }
    *out = value;
    return t->at > begin;
}
static bool take_shape(npy_text *t, uint64_t *shape, uint32_t *axis_count) {
    *axis_count = 0;
    if (!take(t, '(')) return false;
    while (!take(t, ')')) {
        if (*axis_count == DATA_AXES_MAX || !take_number(t, &shape[*axis_count])) return false;
        (*axis_count)++;
        take(t, 'L'); /* old writers */
        if (!take(t, ',') && (t->at >= t->end || *t->at != ')')) return false;
    }
    return true;
}

typedef struct npy_header {
    char descr[16];
    bool is_fortran;
    uint64_t shape[DATA_AXES_MAX];
    uint32_t axis_count;
} npy_header;

static ckks_status parse_header(npy_header *out, const char *text, size_t size, ckks_error *err) {
    npy_text t = {text, text + size};
    unsigned seen = 0;
    if (!take(&t, '{')) return ckks_error_set(err, CKKS_MALFORMED, "header", "no dictionary");
    while (!take(&t, '}')) {
        char key[16];
        unsigned bit = 0;
        bool is_good = false;
        if (!take_string(&t, key, sizeof key) || !take(&t, ':'))
            return ckks_error_set(err, CKKS_MALFORMED, "header", "a key was expected");
        if (!strcmp(key, "descr")) {
            bit = 1;
            is_good = take_string(&t, out->descr, sizeof out->descr);
            if (!is_good)
                return ckks_error_set(err, CKKS_UNSUPPORTED, "descr",
                                      "not a plain number type (structured arrays are not read)");
        } else if (!strcmp(key, "fortran_order")) {
            bit = 2;
            out->is_fortran = take_word(&t, "True");
            is_good = out->is_fortran || take_word(&t, "False");
        } else if (!strcmp(key, "shape")) {
            bit = 4;
            is_good = take_shape(&t, out->shape, &out->axis_count);
        }
        if (!is_good || (seen & bit))
            return ckks_error_set(err, CKKS_MALFORMED, key,
                                  "unknown, repeated or unreadable (at most %u axes)", DATA_AXES_MAX);
        seen |= bit;
        if (!take(&t, ',') && (t.at >= t.end || *t.at != '}'))
            return ckks_error_set(err, CKKS_MALFORMED, key, "a comma or the end was expected");
    }
    skip_blanks(&t);
    if (t.at != t.end || seen != 7)
        return ckks_error_set(err, CKKS_MALFORMED, "header",
                              "descr, fortran_order and shape are needed, nothing else");
    return CKKS_OK;
}

/* ---- elements ---- */

static double half_to_double(uint16_t h) {
    const int exponent = (h >> 10) & 31, fraction = h & 1023;
    const double sign = h & 0x8000 ? -1.0 : 1.0;
    if (exponent == 31) return fraction ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0) return sign * ldexp((double)fraction, -24);
    return sign * ldexp((double)(fraction + 1024), exponent - 25);
}

static uint64_t read_word(const uint8_t *at, uint32_t width, bool is_big) {
    uint64_t word = 0;
    for (uint32_t i = 0; i < width; i++) word |= (uint64_t)at[is_big ? width - 1 - i : i] << (8 * i);
    return word;
}

/* kind as numpy writes it: b, i, u, f */
static double element(const uint8_t *at, char kind, uint32_t width, bool is_big) {
    const uint64_t word = read_word(at, width, is_big);
    if (kind == 'b') return word != 0;
    if (kind == 'u') return (double)word;
    if (kind == 'i') {
        const unsigned shift = (64 - 8 * width) & 63u; /* width is 1 to 8 */
        return (double)((int64_t)(word << shift) >> shift);
    }
    if (width == 2) return half_to_double((uint16_t)word);
    if (width == 4) {
        const uint32_t bits = (uint32_t)word;
        float f;
        memcpy(&f, &bits, sizeof f);
        return (double)f;
    }
    double d;
    memcpy(&d, &word, sizeof d);
    return d;
}

static bool type_is_known(char kind, uint32_t width) {
    switch (kind) {
    case 'b':
        return width == 1;
    case 'i':
    case 'u':
        return width == 1 || width == 2 || width == 4 || width == 8;
    case 'f':
        return width == 2 || width == 4 || width == 8;
    default:
        return false;
    }
}

ckks_status npy_parse(data_matrix *out, const void *bytes, size_t size, ckks_error *err) {
    const uint8_t *b = bytes;
    ckks_status rc;
    *out = (data_matrix){0};
    if (size < 10 || memcmp(b, "\x93NUMPY", 6) != 0)
        return ckks_error_set(err, CKKS_MALFORMED, "magic", "not an .npy file");
    const uint32_t prefix = b[6] == 1 ? 10 : 12;
    if (b[6] < 1 || b[6] > 3 || b[7] != 0)
        return ckks_error_set(err, CKKS_UNSUPPORTED_VERSION, "version",
                              ".npy format %u.%u (1.0 to 3.0 are read)", b[6], b[7]);
    if (size < prefix) return ckks_error_set(err, CKKS_MALFORMED, "header", "cut short");
    const uint64_t header_bytes = prefix == 10 ? bytes_read_u16(b + 8) : bytes_read_u32(b + 8);
    if (header_bytes > size - prefix)
        return ckks_error_set(err, CKKS_MALFORMED, "header", "says %llu bytes, the file has %zu",
                              (unsigned long long)header_bytes, size - prefix);
    npy_header h = {0};
    if ((rc = parse_header(&h, (const char *)b + prefix, (size_t)header_bytes, err)) != CKKS_OK) return rc;

    const char order = h.descr[0], kind = order ? h.descr[1] : 0;
    const uint32_t width =
        kind && h.descr[2] >= '1' && h.descr[2] <= '9' && !h.descr[3] ? (uint32_t)(h.descr[2] - '0') : 0;
    if ((order != '<' && order != '>' && order != '|' && order != '=') || !type_is_known(kind, width))
        return ckks_error_set(
            err, CKKS_UNSUPPORTED, "descr",
            "type '%s' (bool, integers and float16/32/64 are read: numpy's astype converts)", h.descr);
    if (h.is_fortran && h.axis_count > 1)
        return ckks_error_set(err, CKKS_UNSUPPORTED, "fortran_order",
                              "column order is not read: save numpy.ascontiguousarray(x)");
    if ((rc = data_matrix_allocate(out, h.shape, h.axis_count, err)) != CKKS_OK) return rc;
    const uint64_t count = out->row_count * out->column_count; /* at most DATA_ELEMENTS_MAX */
    const uint64_t rest = size - prefix - header_bytes;
    if (count * width != rest) {
        data_matrix_fini(out);
        return ckks_error_set(err, CKKS_MALFORMED, "data", "the shape needs %llu bytes, the file has %llu",
                              (unsigned long long)count * width, (unsigned long long)rest);
    }
    const uint8_t *data = b + prefix + header_bytes;
    for (uint64_t i = 0; i < count; i++)
        out->values[i] = element(data + i * width, kind, width, order == '>');
    return CKKS_OK;
}
