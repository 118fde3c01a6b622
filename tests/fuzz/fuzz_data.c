/* Data files: .npy, IDX, gzip, CSV, and selection by column name. */
#include "client/lib/data.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* what was read must be there to be read */
static void touch(const data_matrix *m) {
    volatile double sink = 0;
    for (uint64_t i = 0; i < m->row_count * m->column_count; i++) sink = m->values[i];
    (void)sink;
}

static void select_columns(const csv_table *table) {
    static const char *const categories[] = {"red", "green"};
    static const data_column wanted[] = {
        {.name = "a"}, {.name = "b", .is_categorical = true, .categories = categories, .category_count = 2}};
    data_matrix m;
    data_labels labels;
    uint32_t ignored;
    if (csv_select(&m, &ignored, table, wanted, 2, "y", NULL) == CKKS_OK) {
        if (m.column_count != 2 || ignored > table->column_count) abort();
        touch(&m);
        data_matrix_fini(&m);
    }
    if (csv_select(&m, &ignored, table, NULL, 0, "y", NULL) == CKKS_OK) {
        touch(&m);
        data_matrix_fini(&m);
    }
    if (data_labels_from_csv(&labels, table, table->column_count - 1, NULL) == CKKS_OK)
        data_labels_fini(&labels);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    data_file file;
    ckks_error err = {0};
    if (size > (1u << 20)) return 0;
    /* bodies of messages arrive 4 bytes past a 16-byte boundary; files anywhere */
    uint8_t *memory = aligned_alloc(16, (size + 4 + 15) / 16 * 16);
    if (!memory) return 0;
    memcpy(memory + 4, bytes, size);
    if (data_parse(&file, memory + 4, size, &err) == CKKS_OK) {
        if (file.format == DATA_CSV)
            select_columns(&file.csv);
        else
            touch(&file.matrix);
        data_file_fini(&file);
    } else if (!err.message[0]) {
        abort(); /* every refusal says why */
    }
    free(memory);
    return 0;
}
