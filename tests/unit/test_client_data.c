/* Readers of .npy, IDX, gzip and CSV: what they read, and what they refuse with a reason. */
#include "client/lib/data.h"
#include "tests/support/alloc_fault.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include <cmocka.h>

/* ---- building blocks ---- */

/* an .npy of format 1.0 with this header text and these data bytes */
static size_t make_npy(uint8_t *out, const char *header, const void *data, size_t data_bytes) {
    const size_t length = strlen(header);
    static const uint8_t magic[8] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0};
    memcpy(out, magic, sizeof magic);
    out[8] = (uint8_t)length, out[9] = (uint8_t)(length >> 8);
    for (size_t i = 0; i < length; i++) out[10 + i] = (uint8_t)header[i];
    memcpy(out + 10 + length, data, data_bytes);
    return 10 + length + data_bytes;
}

static size_t make_gzip(uint8_t *out, size_t capacity, const void *data, size_t size) {
    z_stream z = {0};
    union {
        const void *in;
        Bytef *z;
    } input = {.in = data};
    assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = input.z, z.avail_in = (uInt)size;
    z.next_out = out, z.avail_out = (uInt)capacity;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    const size_t used = capacity - z.avail_out;
    deflateEnd(&z);
    return used;
}

/* ---- npy ---- */

static void npy_reads_every_plain_number_type(void **state) {
    (void)state;
    static const struct {
        const char *descr;
        uint8_t bytes[8];
        size_t width;
        double expected;
    } table[] = {
        {"|b1", {1}, 1, 1},
        {"|u1", {200}, 1, 200},
        {"|i1", {0xff}, 1, -1},
        {"<u2", {0x34, 0x12}, 2, 0x1234},
        {">u2", {0x12, 0x34}, 2, 0x1234},
        {"<i2", {0xfe, 0xff}, 2, -2},
        {"<i4", {0, 0, 0, 0x80}, 4, -2147483648.0},
        {">i4", {0, 0, 1, 0}, 4, 256},
        {"<u4", {0xff, 0xff, 0xff, 0xff}, 4, 4294967295.0},
        {"<i8", {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, 8, -1},
        {"<u8", {0, 0, 0, 0, 0, 0, 0, 0x80}, 8, 9223372036854775808.0},
        {"<f2", {0x00, 0x3e}, 2, 1.5},
        {"<f2", {0x01, 0x00}, 2, 0x1p-24},
        {"<f4", {0, 0, 0x20, 0xc1}, 4, -10},
        {">f4", {0xc1, 0x20, 0, 0}, 4, -10},
        {"<f8", {0, 0, 0, 0, 0, 0, 0xf8, 0x3f}, 8, 1.5},
        {"=f8", {0, 0, 0, 0, 0, 0, 0xf8, 0x3f}, 8, 1.5},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        uint8_t file[256];
        char header[128];
        data_matrix m;
        ckks_error err = {0};
        snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (1,), }   \n",
                 table[i].descr);
        const size_t size = make_npy(file, header, table[i].bytes, table[i].width);
        assert_int_equal(npy_parse(&m, file, size, &err), CKKS_OK);
        assert_int_equal(m.row_count, 1);
        assert_true(m.values[0] == table[i].expected);
        data_matrix_fini(&m);
    }
}

static void npy_flattens_axes_after_the_first(void **state) {
    (void)state;
    uint8_t file[256], data[12];
    data_matrix m;
    for (int i = 0; i < 12; i++) data[i] = (uint8_t)i;
    const size_t size =
        make_npy(file, "{\"shape\": (2, 3, 2), 'fortran_order': False, 'descr': '|u1'}\n", data, 12);
    assert_int_equal(npy_parse(&m, file, size, NULL), CKKS_OK);
    assert_int_equal(m.row_count, 2);
    assert_int_equal(m.column_count, 6);
    assert_true(m.values[7] == 7);
    data_matrix_fini(&m);
}

static void npy_refuses_what_it_cannot_read_safely(void **state) {
    (void)state;
    static const struct {
        const char *header;
        size_t data_bytes;
        ckks_status expected;
        const char *field;
    } table[] = {
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }", 8, CKKS_MALFORMED, "data"},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }", 16, CKKS_MALFORMED, "data"},
        {"{'descr': '<f8', 'fortran_order': True, 'shape': (1, 2), }", 16, CKKS_UNSUPPORTED, "fortran_order"},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", 8, CKKS_UNSUPPORTED, "descr"},
        {"{'descr': '<c16', 'fortran_order': False, 'shape': (1,), }", 16, CKKS_UNSUPPORTED, "descr"},
        {"{'descr': '<U4', 'fortran_order': False, 'shape': (1,), }", 16, CKKS_UNSUPPORTED, "descr"},
        {"{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (1,), }", 8, CKKS_UNSUPPORTED, "descr"},
        {"{'descr': '<f3', 'fortran_order': False, 'shape': (1,), }", 3, CKKS_UNSUPPORTED, "descr"},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (0,), }", 0, CKKS_INVALID_ARGUMENT, "shape"},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }", 8, CKKS_MALFORMED, "shape"},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1), }", 8, CKKS_MALFORMED,
         "shape"},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (4294967296, 4294967296), }", 8, CKKS_TOO_LARGE,
         "shape"},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999999999,), }", 8, CKKS_MALFORMED,
         "shape"},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (300000000,), }", 8, CKKS_TOO_LARGE, "shape"},
        {"{'descr': '<f8', 'fortran_order': False}", 8, CKKS_MALFORMED, "header"},
        {"{'descr': '<f8', 'descr': '<f8', 'fortran_order': False, 'shape': (1,)}", 8, CKKS_MALFORMED,
         "descr"},
        {"{'descr': '<f8', 'extra': 1, 'fortran_order': False, 'shape': (1,)}", 8, CKKS_MALFORMED, "extra"},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (1,)} import os", 8, CKKS_MALFORMED, "header"},
        {"{'descr': '<f8", 8, CKKS_UNSUPPORTED, "descr"},
        {"", 8, CKKS_MALFORMED, "header"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        uint8_t file[512], zeros[16] = {0};
        data_matrix m;
        ckks_error err = {0};
        const size_t size = make_npy(file, table[i].header, zeros, table[i].data_bytes);
        const ckks_status rc = npy_parse(&m, file, size, &err);
        if (rc != table[i].expected)
            printf("  %s: %s %s\n", table[i].header, ckks_status_name(rc), err.message);
        assert_int_equal(rc, table[i].expected);
        assert_string_equal(err.field, table[i].field);
        assert_null(m.values);
    }
}

static void npy_refuses_every_cut(void **state) {
    (void)state;
    uint8_t file[256];
    const double data[2] = {1, 2};
    data_matrix m;
    const size_t size =
        make_npy(file, "{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }\n", data, sizeof data);
    for (size_t cut = 0; cut < size; cut++) {
        uint8_t *exact = malloc(cut ? cut : 1); /* so that the sanitizer sees a byte too many */
        assert_non_null(exact);
        memcpy(exact, file, cut);
        assert_int_not_equal(npy_parse(&m, exact, cut, NULL), CKKS_OK);
        free(exact);
    }
    file[6] = 9;
    ckks_error err = {0};
    assert_int_equal(npy_parse(&m, file, size, &err), CKKS_UNSUPPORTED_VERSION);
}

/* ---- IDX and gzip ---- */

static const uint8_t idx_file[] = {0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 255};

static void idx_reads_images_and_labels_even_compressed(void **state) {
    (void)state;
    uint8_t packed[256];
    data_file f;
    const size_t size = make_gzip(packed, sizeof packed, idx_file, sizeof idx_file);
    assert_int_equal(data_parse(&f, packed, size, NULL), CKKS_OK);
    assert_int_equal(f.format, DATA_IDX);
    assert_int_equal(f.matrix.row_count, 2);
    assert_int_equal(f.matrix.column_count, 3);
    assert_true(f.matrix.values[5] == 255);
    data_file_fini(&f);
    const uint8_t floats[] = {0, 0, 0x0D, 1, 0, 0, 0, 1, 0xc1, 0x20, 0, 0};
    assert_int_equal(idx_parse(&f.matrix, floats, sizeof floats, NULL), CKKS_OK);
    assert_true(f.matrix.values[0] == -10);
    data_matrix_fini(&f.matrix);
}

static void idx_refuses_sizes_that_are_not_there(void **state) {
    (void)state;
    static const struct {
        uint8_t bytes[24];
        size_t size;
        ckks_status expected;
    } table[] = {
        {{0, 0, 8}, 3, CKKS_MALFORMED},
        {{0, 0, 7, 1, 0, 0, 0, 1, 1}, 9, CKKS_UNSUPPORTED},
        {{0, 0, 8, 0}, 4, CKKS_MALFORMED},
        {{0, 0, 8, 9}, 4, CKKS_MALFORMED},
        {{0, 0, 8, 2, 0, 0, 0, 1}, 8, CKKS_MALFORMED},
        {{0, 0, 8, 1, 0, 0, 0, 2, 1}, 9, CKKS_MALFORMED},
        {{0, 0, 8, 1, 0, 0, 0, 1, 1, 1}, 10, CKKS_MALFORMED},
        {{0, 0, 8, 1, 0, 0, 0, 0}, 8, CKKS_INVALID_ARGUMENT},
        {{0, 0, 8, 3, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255}, 16, CKKS_TOO_LARGE},
        {{0, 0, 8, 2, 255, 255, 255, 255, 255, 255, 255, 255}, 12, CKKS_MALFORMED},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        data_matrix m;
        ckks_error err = {0};
        assert_int_equal(idx_parse(&m, table[i].bytes, table[i].size, &err), table[i].expected);
        assert_null(m.values);
    }
}

static void gzip_bombs_and_damage_are_refused(void **state) {
    (void)state;
    static uint8_t zeros[1 << 20], packed[8192];
    uint8_t *out = NULL;
    size_t out_size = 0;
    ckks_error err = {0};
    const size_t size = make_gzip(packed, sizeof packed, zeros, sizeof zeros);
    assert_int_equal(gzip_inflate(&out, &out_size, packed, size, sizeof zeros, &err), CKKS_OK);
    assert_int_equal(out_size, sizeof zeros);
    free(out);
    assert_int_equal(gzip_inflate(&out, &out_size, packed, size, sizeof zeros - 1, &err), CKKS_TOO_LARGE);
    assert_null(out);
    for (size_t cut = 2; cut < size; cut += 37)
        assert_int_equal(gzip_inflate(&out, &out_size, packed, cut, 1u << 21, NULL), CKKS_MALFORMED);
    packed[size] = 'x';
    assert_int_equal(gzip_inflate(&out, &out_size, packed, size + 1, 1u << 21, NULL), CKKS_MALFORMED);
    packed[size - 6] ^= 1; /* the checksum */
    assert_int_equal(gzip_inflate(&out, &out_size, packed, size, 1u << 21, NULL), CKKS_MALFORMED);
}

static void gzip_of_several_streams_is_their_contents_in_order(void **state) {
    (void)state;
    uint8_t packed[512];
    uint8_t *out = NULL;
    size_t out_size = 0, ends[3];
    ckks_error err = {0};
    size_t size = ends[0] = make_gzip(packed, sizeof packed, "a,b\n1,2\n", 8);
    size += make_gzip(packed + size, sizeof packed - size, "3,4\n", 4);
    ends[1] = size;
    size += make_gzip(packed + size, sizeof packed - size, "", 0); /* bgzip's last one is empty */
    ends[2] = size;
    assert_int_equal(gzip_inflate(&out, &out_size, packed, size, 1000, &err), CKKS_OK);
    assert_int_equal(out_size, 12);
    assert_memory_equal(out, "a,b\n1,2\n3,4\n", 12);
    free(out);
    assert_int_equal(gzip_inflate(&out, &out_size, packed, size, 11, NULL), CKKS_TOO_LARGE);
    for (size_t cut = 1; cut < size; cut++) { /* whole streams, and nothing in part */
        const bool is_whole = cut == ends[0] || cut == ends[1] || cut == ends[2];
        assert_int_equal(gzip_inflate(&out, &out_size, packed, cut, 1000, NULL),
                         is_whole ? CKKS_OK : CKKS_MALFORMED);
        if (is_whole) free(out);
    }
    packed[size] = 0x1f, packed[size + 1] = 0x8b;
    assert_int_equal(gzip_inflate(&out, &out_size, packed, size + 2, 1000, NULL), CKKS_MALFORMED);
}

/* ---- CSV ---- */

static ckks_status parse(csv_table *t, const char *text, ckks_error *err) {
    return csv_parse(t, text, strlen(text), err);
}

static const data_column columns[] = {{.name = "alpha"}, {.name = "beta"}, {.name = "gamma"}};

static void csv_columns_are_matched_by_name_in_any_order(void **state) {
    (void)state;
    static const char *const files[] = {
        "alpha,beta,gamma\n1,2,3\n4,5,6\n",
        "gamma,alpha,beta\n3,1,2\n6,4,5\n",
        "\xef\xbb\xbfgamma,label,\"alpha\", beta \r\n3,x,1,2\r\n6,\"y,\"\"z\",4,\" 5 \"\r\n\r\n",
        "extra,beta,alpha,gamma\n9,2,1,3\n9,5,4,6",
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        csv_table t;
        data_matrix m;
        uint32_t ignored;
        ckks_error err = {0};
        assert_int_equal(parse(&t, files[i], &err), CKKS_OK);
        if (i == 2) { /* a quoted cell keeps its blanks: " 5 " is no number */
            assert_int_equal(csv_select(&m, &ignored, &t, columns, 3, "label", &err), CKKS_INVALID_ARGUMENT);
            assert_string_equal(t.cells[1 * 4 + 1], "y,\"z");
            assert_string_equal(t.names[3], "beta");
            assert_int_equal(t.row_count, 2);
            csv_table_fini(&t);
            continue;
        }
        assert_int_equal(csv_select(&m, &ignored, &t, columns, 3, NULL, &err), CKKS_OK);
        for (int k = 0; k < 6; k++) assert_true(m.values[k] == k + 1);
        assert_int_equal(ignored, i == 3 ? 1 : 0);
        data_matrix_fini(&m);
        csv_table_fini(&t);
    }
}

static void csv_refuses_missing_and_repeated_columns(void **state) {
    (void)state;
    static const struct {
        const char *text, *field, *word;
    } table[] = {
        {"alpha,beta\n1,2\n", "gamma", "missing"},
        {"alpha,beta,gamma,beta\n1,2,3,4\n", "beta", "twice"},
        {"alpha,beta,Gamma\n1,2,3\n", "gamma", "Gamma"},
        {"alpha,beta,gamma\n1,two,3\n", "beta", "line 2"},
        {"alpha,beta,gamma\n1,2,3\n1,2,0x10\n", "gamma", "line 3"},
        {"alpha,beta,gamma\n1,2,1e999\n", "gamma", "line 2"},
        {"alpha,beta,gamma\n1,inf,3\n", "beta", "line 2"},
        {"alpha,beta,gamma\n1,\"2\"\"\",3\n", "beta", "line 2"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        csv_table t;
        data_matrix m;
        uint32_t ignored;
        ckks_error err = {0};
        assert_int_equal(parse(&t, table[i].text, &err), CKKS_OK);
        assert_int_equal(csv_select(&m, &ignored, &t, columns, 3, NULL, &err), CKKS_INVALID_ARGUMENT);
        assert_string_equal(err.field, table[i].field);
        assert_non_null(strstr(err.message, table[i].word));
        assert_null(m.values);
        csv_table_fini(&t);
    }
}

static void csv_refuses_text_that_could_shift_values(void **state) {
    (void)state;
    static const struct {
        const char *text, *word;
    } table[] = {
        {"", "empty"},
        {"a,b\n", "no row"},
        {"a,,c\n1,2,3\n", "no name"},
        {"a;b;c\n1;2;3\n", "separator"},
        {"a\tb\n1\t2\n", "separator"},
        {"a,b\n1\n", "line 2"},
        {"a,b\n1,2,3\n", "line 2"},
        {"a,b\n1,2\n\n3,4\n", "line 3 is empty"},
        {"a,b\n1,\"2\n", "never closed"},
        {"a,b\n1,2\"3\n", "quote inside"},
        {"a,b\n1,\"2\"3\n", "after a closing quote"},
        {"a,b\r1,2\r", "carriage return"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        csv_table t;
        ckks_error err = {0};
        assert_int_equal(parse(&t, table[i].text, &err), CKKS_MALFORMED);
        if (!strstr(err.message, table[i].word)) printf("  %s\n", err.message);
        assert_non_null(strstr(err.message, table[i].word));
        assert_null(t.cells);
    }
    csv_table t;
    ckks_error err = {0};
    assert_int_equal(csv_parse(&t, "a,b\n1,\0\n", 9, &err), CKKS_MALFORMED);
    static const struct {
        const char *text, *word;
        size_t bytes;
    } foreign[] = {{"PK\x03\x04\0\0", ".npz", 6},
                   {"PAR1\x15\r", "Parquet", 6},
                   {"\x89HDF\r\n\x1a\n", "HDF5", 8},
                   {"\xff\xfe"
                    "a\0",
                    "UTF-16", 4},
                   {"\xfe\xff\0a", "UTF-16", 4}};
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        ckks_error said = {0};
        assert_int_equal(csv_parse(&t, foreign[i].text, foreign[i].bytes, &said), CKKS_UNSUPPORTED);
        assert_non_null(strstr(said.message, foreign[i].word));
    }
    static const struct {
        const char *text, *message;
    } headers[] = {
        {"\na,b\n1,2\n", "line 1 is empty: it has the columns' names"},
        {"\n", "line 1 is empty: it has the columns' names"},
        {",a,b\n0,1,2\n",
         "column 1 has no name (row numbers? pandas leaves them out with to_csv(index=False))"},
        {"a,b,\n1,2,\n", "column 3 has no name"},
    };
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        ckks_error said = {0};
        assert_int_equal(parse(&t, headers[i].text, &said), CKKS_MALFORMED);
        assert_string_equal(said.field, "header");
        assert_string_equal(said.message, headers[i].message);
    }
    static char wide[DATA_CELL_BYTES_MAX + 16] = "a\n";
    memset(wide + 2, '1', DATA_CELL_BYTES_MAX + 1);
    assert_int_equal(parse(&t, wide, NULL), CKKS_TOO_LARGE);
    static char many[2 * DATA_COLUMNS_MAX + 8];
    memset(many, ',', sizeof many - 1);
    assert_int_equal(parse(&t, many, NULL), CKKS_TOO_LARGE);
}

static void csv_missing_values_are_nan_and_categories_indices(void **state) {
    (void)state;
    static const char *const colours[] = {"red", "green"};
    const data_column wanted[] = {{.name = "x"}, {"colour", true, colours, 2, false, false}};
    csv_table t;
    data_matrix m;
    uint32_t ignored;
    assert_int_equal(parse(&t, "colour,x\ngreen,\nred,NA\nblue,-1.5e2\n", NULL), CKKS_OK);
    assert_int_equal(csv_select(&m, &ignored, &t, wanted, 2, NULL, NULL), CKKS_OK);
    assert_true(isnan(m.values[0]) && isnan(m.values[2]) && m.values[4] == -150);
    assert_true(m.values[1] == 1 && m.values[3] == 0 && m.values[5] == -1);
    data_matrix_fini(&m);
    csv_table_fini(&t);
}

static void csv_without_expected_columns_takes_all_but_the_label(void **state) {
    (void)state;
    csv_table t;
    data_matrix m;
    uint32_t ignored;
    assert_int_equal(parse(&t, "b,label,a\n1,yes,2\n", NULL), CKKS_OK);
    assert_int_equal(csv_select(&m, &ignored, &t, NULL, 0, "label", NULL), CKKS_OK);
    assert_int_equal(m.column_count, 2);
    assert_true(m.values[0] == 1 && m.values[1] == 2);
    data_matrix_fini(&m);
    csv_table_fini(&t);
}

static void labels_compare_as_text_and_as_numbers(void **state) {
    (void)state;
    assert_true(data_label_equal("benign", "benign"));
    assert_false(data_label_equal("benign", "Benign"));
    assert_true(data_label_equal("7", "7.0"));
    assert_false(data_label_equal("7", "8"));
    assert_false(data_label_equal("", "NaN"));
    data_matrix m;
    data_labels l;
    assert_int_equal(idx_parse(&m, (const uint8_t[]){0, 0, 8, 1, 0, 0, 0, 2, 7, 0}, 10, NULL), CKKS_OK);
    assert_int_equal(data_labels_from_matrix(&l, &m, NULL), CKKS_OK);
    assert_string_equal(l.text[0], "7");
    data_labels_fini(&l);
    data_matrix_fini(&m);
}

static void a_failed_allocation_is_an_error_and_no_more(void **state) {
    (void)state;
    static const char text[] = "a,b,y\n1,2,u\n3,4,v\n";
    uint8_t packed[256];
    const size_t size = make_gzip(packed, sizeof packed, text, sizeof text - 1);
    const data_column wanted[] = {{.name = "b"}, {.name = "a"}};
    for (uint64_t n = 1;; n++) {
        data_file f = {0};
        data_matrix m = {0};
        data_labels l = {0};
        uint32_t ignored;
        ckks_error err = {0};
        alloc_fault_set(n);
        ckks_status rc = data_parse(&f, packed, size, &err);
        if (rc == CKKS_OK) rc = csv_select(&m, &ignored, &f.csv, wanted, 2, "y", &err);
        if (rc == CKKS_OK) rc = data_labels_from_csv(&l, &f.csv, 2, &err);
        const bool has_failed = alloc_fault_calls() >= n;
        alloc_fault_set(0);
        data_labels_fini(&l);
        data_matrix_fini(&m);
        data_file_fini(&f);
        if (!has_failed) {
            assert_int_equal(rc, CKKS_OK);
            break;
        }
        assert_int_not_equal(rc, CKKS_OK);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(npy_reads_every_plain_number_type),
        cmocka_unit_test(npy_flattens_axes_after_the_first),
        cmocka_unit_test(npy_refuses_what_it_cannot_read_safely),
        cmocka_unit_test(npy_refuses_every_cut),
        cmocka_unit_test(idx_reads_images_and_labels_even_compressed),
        cmocka_unit_test(idx_refuses_sizes_that_are_not_there),
        cmocka_unit_test(gzip_bombs_and_damage_are_refused),
        cmocka_unit_test(gzip_of_several_streams_is_their_contents_in_order),
        cmocka_unit_test(csv_columns_are_matched_by_name_in_any_order),
        cmocka_unit_test(csv_refuses_missing_and_repeated_columns),
        cmocka_unit_test(csv_refuses_text_that_could_shift_values),
        cmocka_unit_test(csv_missing_values_are_nan_and_categories_indices),
        cmocka_unit_test(csv_without_expected_columns_takes_all_but_the_label),
        cmocka_unit_test(labels_compare_as_text_and_as_numbers),
        cmocka_unit_test(a_failed_allocation_is_an_error_and_no_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
