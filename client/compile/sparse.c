#include "client/compile/sparse.h"

ckks_status sparse_create(sparse **out, arena *memory, uint32_t row_count, uint32_t column_count,
                          uint64_t entry_count, ckks_error *err) {
    if (entry_count > SPARSE_ENTRIES_MAX)
        return ckks_error_set(err, CKKS_TOO_LARGE, "", "a linear layer would have %llu weights, over %u",
                              (unsigned long long)entry_count, SPARSE_ENTRIES_MAX);
    sparse *m = arena_take(memory, 1, sizeof *m);
    if (!m) goto exhausted;
    m->row_count = row_count;
    m->column_count = column_count;
    m->row_start = arena_take(memory, (uint64_t)row_count + 1, sizeof *m->row_start);
    m->column = arena_take(memory, entry_count, sizeof *m->column);
    m->value = arena_take(memory, entry_count, sizeof *m->value);
    if (!m->row_start || !m->column || !m->value) goto exhausted;
    *out = m;
    return CKKS_OK;
exhausted:
    return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a matrix of %u x %u", row_count,
                          column_count);
}

ckks_status sparse_gather(sparse **out, arena *memory, uint32_t row_count, uint32_t column_count,
                          const uint32_t *index, const double *value, ckks_error *err) {
    sparse *m = NULL;
    const ckks_status rc = sparse_create(&m, memory, row_count, column_count, row_count, err);
    if (rc != CKKS_OK || !m) return rc;
    for (uint32_t i = 0; i < row_count; i++) {
        m->row_start[i + 1] = i + 1;
        m->column[i] = index ? index[i] : i;
        m->value[i] = value ? value[i] : 1.0;
    }
    *out = m;
    return CKKS_OK;
}

/* Dense accumulator of one row and the columns that it touched. */
typedef struct row_sum {
    double *value;
    uint8_t *is_set;
    uint32_t column_count;
} row_sum;

static bool row_sum_init(row_sum *row, arena *scratch, uint32_t column_count) {
    row->column_count = column_count;
    row->value = arena_take(scratch, column_count, sizeof *row->value);
    row->is_set = arena_take(scratch, column_count, 1);
    return row->value && row->is_set;
}
static void row_sum_add(row_sum *row, const sparse *m, uint32_t i, double factor) {
    for (uint32_t e = m->row_start[i]; e < m->row_start[i + 1]; e++) {
        row->value[m->column[e]] += factor * m->value[e];
        row->is_set[m->column[e]] = 1;
    }
}
/* counts, or writes at `entry`, what is not zero; clears the row when writing */
static uint64_t row_sum_flush(row_sum *row, sparse *m, uint32_t entry) {
    uint64_t count = 0;
    for (uint32_t c = 0; c < row->column_count; c++) {
        if (!row->is_set[c]) continue;
        if (row->value[c] != 0.0) {
            if (m) m->column[entry + count] = c, m->value[entry + count] = row->value[c];
            count++;
        }
        row->value[c] = 0.0;
        row->is_set[c] = 0;
    }
    return count;
}

typedef void (*row_fill)(row_sum *row, const sparse *a, const sparse *b, uint32_t i);

static void fill_product(row_sum *row, const sparse *a, const sparse *b, uint32_t i) {
    for (uint32_t e = a->row_start[i]; e < a->row_start[i + 1]; e++)
        row_sum_add(row, b, a->column[e], a->value[e]);
}
static void fill_sum(row_sum *row, const sparse *a, const sparse *b, uint32_t i) {
    row_sum_add(row, a, i, 1.0);
    row_sum_add(row, b, i, 1.0);
}

/* two passes over the rows: count, then write */
static ckks_status combine(sparse **out, arena *memory, const sparse *a, const sparse *b,
                           uint32_t column_count, row_fill fill, ckks_error *err) {
    arena scratch = {0};
    row_sum row;
    sparse *m = NULL;
    ckks_status rc = CKKS_OK;
    if (!row_sum_init(&row, &scratch, column_count)) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory to fold linear layers");
        goto out;
    }
    uint64_t total = 0;
    for (uint32_t i = 0; i < a->row_count; i++) {
        fill(&row, a, b, i);
        total += row_sum_flush(&row, NULL, 0);
    }
    rc = sparse_create(&m, memory, a->row_count, column_count, total, err);
    if (rc != CKKS_OK || !m) goto out;
    for (uint32_t i = 0; i < a->row_count; i++) {
        fill(&row, a, b, i);
        m->row_start[i + 1] = m->row_start[i] + (uint32_t)row_sum_flush(&row, m, m->row_start[i]);
    }
    *out = m;
out:
    arena_fini(&scratch);
    return rc;
}

ckks_status sparse_multiply(sparse **out, arena *memory, const sparse *a, const sparse *b, ckks_error *err) {
    CKKS_ASSERT(a->column_count == b->row_count);
    return combine(out, memory, a, b, b->column_count, fill_product, err);
}

ckks_status sparse_add(sparse **out, arena *memory, const sparse *a, const sparse *b, ckks_error *err) {
    CKKS_ASSERT(a->row_count == b->row_count && a->column_count == b->column_count);
    return combine(out, memory, a, b, a->column_count, fill_sum, err);
}

/* a matrix with fewer entries is done before a team of threads has met */
#define TEAM_ENTRIES (1u << 18)

void sparse_apply_add(double *y, const sparse *m, const double *x) {
#pragma omp parallel for schedule(static) if (sparse_entry_count(m) >= TEAM_ENTRIES)
    for (uint32_t i = 0; i < m->row_count; i++) {
        double sum = 0;
        for (uint32_t e = m->row_start[i]; e < m->row_start[i + 1]; e++) sum += m->value[e] * x[m->column[e]];
        y[i] += sum;
    }
}

bool sparse_diagonal(double *diagonal, const sparse *m) {
    if (m->row_count != m->column_count) return false;
    for (uint32_t i = 0; i < m->row_count; i++) {
        diagonal[i] = 0;
        for (uint32_t e = m->row_start[i]; e < m->row_start[i + 1]; e++) {
            if (m->column[e] != i) return false;
            diagonal[i] += m->value[e];
        }
    }
    return true;
}

uint32_t sparse_diagonal_count(const sparse *m) {
    arena scratch = {0};
    const uint32_t side = m->row_count < m->column_count ? m->row_count : m->column_count;
    uint32_t modulus = 1, count = 0;
    while (modulus < side) modulus *= 2;
    uint8_t *mark = arena_take(&scratch, modulus, 1);
    if (!mark) return UINT32_MAX;
    for (uint32_t i = 0; i < m->row_count; i++)
        for (uint32_t e = m->row_start[i]; e < m->row_start[i + 1]; e++) {
            uint8_t *at = &mark[(m->column[e] - i) & (modulus - 1)];
            count += !*at;
            *at = 1;
        }
    arena_fini(&scratch);
    return count;
}
