/*
 * Sums of products over lists, and automorphisms, on vector units; template, included once per instruction
 * set. The words of linear_scalar.c and transform_scalar.c.
 *
 * Work is cut into blocks of PERMUTE_BLOCK positions of one limb with all outputs inside, so that the inputs
 * of a block are in the first or second cache when the second output needs them.
 */
#include "kernels/cpu/pair_lanes.h"
#include "kernels/cpu/team.h"

static const modulus *limb_modulus(const ckks_context *context, kernel_basis basis, uint32_t limb) {
    return &context_ntt(context, basis_prime(basis, limb, context_params(context)->q_count))->m;
}

/* One block of one limb. */
typedef struct linear_block {
    lanes_prime p;
    sum_shape sums;
    size_t at; /* first position within [limb][N] */
} linear_block;

static linear_block linear_block_of(const ckks_context *context, kernel_basis basis, uint32_t limb,
                                    uint32_t n, uint32_t block) {
    const modulus *m = limb_modulus(context, basis, limb);
    linear_block b = {.p = lanes_prime_of(m), .at = (size_t)limb * n + (size_t)block * PERMUTE_BLOCK};
    b.sums = sum_shape_of(m, &b.p);
    return b;
}

/* ---- diagonal sum ---- */

#define LISTED_MAX SUM_TERMS_MAX

/* components c and, if has_second, c + 1 of one out; items first .. end - 1 */
static void diagonal_out(const kernel_diagonal_sum_args *args, const linear_block *b, size_t limb_words,
                         uint32_t out, uint32_t first, uint32_t end, uint32_t c, bool has_second) {
    const size_t stride = args->component_count * limb_words, at = c * limb_words + b->at;
    pair_block block;
    memset(block.at, 0, sizeof block.at);
    for (uint32_t t = first; t < end;) {
        pair_term term[LISTED_MAX];
        uint32_t count = 0;
        for (; t < end && count < LISTED_MAX; t++, count++) {
            const uint64_t *in = args->in + args->items[t].in * stride + at;
            // NOLINTNEXTLINE(performance-no-int-to-ptr): a device address, as the item holds it
            const uint64_t *plain = (const uint64_t *)(uintptr_t)args->items[t].plain + b->at;
            term[count] = (pair_term){plain, in, has_second ? in + limb_words : in};
        }
        pair_sum(&block, term, count, NULL, &b->sums, &b->p);
    }
    pair_store(args->out + out * stride + at, block.at[0], &b->p);
    if (has_second) pair_store(args->out + out * stride + at + limb_words, block.at[1], &b->p);
}

static void diagonal_task(const void *arguments, uint32_t task) {
    const kernel_diagonal_sum_args *args = arguments;
    const ckks_context *context = device_tables_context(args->tables);
    const uint32_t n = params_n(context_params(context)), per_limb = n / PERMUTE_BLOCK;
    const uint32_t limbs = basis_limb_count(args->basis), components = args->component_count;
    const linear_block b = linear_block_of(context, args->basis, task / per_limb, n, task % per_limb);
    uint32_t first = 0;
    for (uint32_t out = 0; out < args->out_count; out++) {
        uint32_t end = first; /* items of one out are contiguous and ascending */
        while (end < args->item_count && args->items[end].out == out) end++;
        for (uint32_t c = 0; c < components; c += 2)
            diagonal_out(args, &b, (size_t)limbs * n, out, first, end, c, c + 1 < components);
        first = end;
    }
}

void ISA(cpu_diagonal_sum)(const void *arguments) {
    const kernel_diagonal_sum_args *args = arguments;
    const uint32_t n = tables_n(args->tables), limbs = basis_limb_count(args->basis);
    team_each(limbs * (n / PERMUTE_BLOCK), (size_t)args->item_count * limbs * n >= TEAM_WORDS_HEAVY,
              diagonal_task, args);
}

/* ---- matrix product ---- */

#define ROWS_AT_ONCE 4u

/* `count` columns times ROWS_AT_ONCE rows (rows that do not exist repeat the last one) */
static void add_columns(double acc[ROWS_AT_ONCE][PERMUTE_BLOCK], const linear_block *b, const uint64_t *in,
                        size_t in_stride, const uint64_t *const weight[ROWS_AT_ONCE], uint32_t count) {
    const lanes_prime p = b->p;
    const sum_shape s = b->sums;
    term_value w[SUM_TERMS_MAX][ROWS_AT_ONCE];
    for (uint32_t t = 0; t < count; t++)
        for (uint32_t r = 0; r < ROWS_AT_ONCE; r++) w[t][r] = term_all(weight[r][t]);
    for (uint32_t k = 0; k < PERMUTE_BLOCK; k += LANES) {
        word_sum sum0 = sum_zero(&s), sum1 = sum_zero(&s), sum2 = sum_zero(&s), sum3 = sum_zero(&s);
        for (uint32_t t = 0; t < count; t++) {
            const term_value x = term_load(in + t * in_stride + k);
            sum_add(&sum0, x, w[t][0]), sum_add(&sum1, x, w[t][1]);
            sum_add(&sum2, x, w[t][2]), sum_add(&sum3, x, w[t][3]);
        }
        f64_store(acc[0] + k, sum_fold(&sum0, f64_load(acc[0] + k), &s, &p));
        f64_store(acc[1] + k, sum_fold(&sum1, f64_load(acc[1] + k), &s, &p));
        f64_store(acc[2] + k, sum_fold(&sum2, f64_load(acc[2] + k), &s, &p));
        f64_store(acc[3] + k, sum_fold(&sum3, f64_load(acc[3] + k), &s, &p));
    }
}

static void matrix_rows(const kernel_matrix_product_args *args, const linear_block *b, size_t limb_words,
                        uint32_t component, uint32_t limb, uint32_t row) {
    const size_t stride = args->component_count * limb_words, at = component * limb_words + b->at;
    const uint32_t rows = args->row_count - row < ROWS_AT_ONCE ? args->row_count - row : ROWS_AT_ONCE;
    _Alignas(64) double acc[ROWS_AT_ONCE][PERMUTE_BLOCK];
    for (uint32_t r = 0; r < ROWS_AT_ONCE; r++) {
        const bool has_bias = args->bias && component == 0 && r < rows;
        const uint64_t bias = has_bias ? args->bias[(size_t)limb * args->row_count + row + r] : 0;
        for (uint32_t k = 0; k < PERMUTE_BLOCK; k++) acc[r][k] = (double)bias;
    }
    for (uint32_t column = 0; column < args->column_count;) {
        const uint32_t left = args->column_count - column;
        const uint32_t count = left < b->sums.terms_max ? left : b->sums.terms_max;
        const uint64_t *weight[ROWS_AT_ONCE];
        for (uint32_t r = 0; r < ROWS_AT_ONCE; r++)
            weight[r] =
                args->weight +
                ((size_t)limb * args->row_count + row + (r < rows ? r : rows - 1)) * args->column_count +
                column;
        add_columns(acc, b, args->in + column * stride + at, stride, weight, count);
        column += count;
    }
    for (uint32_t r = 0; r < rows; r++) pair_store(args->out + (row + r) * stride + at, acc[r], &b->p);
}

static void matrix_task(const void *arguments, uint32_t task) {
    const kernel_matrix_product_args *args = arguments;
    const ckks_context *context = device_tables_context(args->tables);
    const uint32_t n = params_n(context_params(context)), per_limb = n / PERMUTE_BLOCK;
    const uint32_t limbs = basis_limb_count(args->basis), row_of_blocks = task / per_limb;
    const uint32_t component = row_of_blocks / limbs, limb = row_of_blocks % limbs;
    const linear_block b = linear_block_of(context, args->basis, limb, n, task % per_limb);
    for (uint32_t row = 0; row < args->row_count; row += ROWS_AT_ONCE)
        matrix_rows(args, &b, (size_t)limbs * n, component, limb, row);
}

void ISA(cpu_matrix_product)(const void *arguments) {
    const kernel_matrix_product_args *args = arguments;
    const uint32_t n = tables_n(args->tables), limbs = basis_limb_count(args->basis);
    team_each(args->component_count * limbs * (n / PERMUTE_BLOCK),
              (size_t)args->column_count * limbs * n >= TEAM_WORDS_HEAVY, matrix_task, args);
}

/* ---- automorphisms ---- */

static void permute_sum_block(const kernel_permute_sum_args *args, const lanes_turns *turns, const modulus *m,
                              uint32_t log_n, uint32_t limb, uint32_t block) {
    const size_t n = (size_t)1 << log_n, at = (size_t)block * PERMUTE_BLOCK;
    const w64 q = w64_all(m->value);
    _Alignas(64) uint64_t sum[PERMUTE_BLOCK] = {0};
    if (args->start) memcpy(sum, args->start + limb * n + at, sizeof sum);
    for (uint32_t t = 0; t < args->item_count; t++) {
        const permute_item item = args->items[t];
        block_turn turn;
        block_turn_fill(&turn, turns, log_n, item.galois_element, block);
        const uint64_t *in = args->in + ((size_t)item.in * args->in_stride + limb) * n + turn.from;
        for (uint32_t v = 0; v < BLOCK_VECTORS; v++) {
            uint64_t *to = sum + v * LANES;
            w64_store(to, w64_correct(w64_add(w64_load(to), block_turn_load(&turn, in, v)), q));
        }
    }
    memcpy(poly_limb(&args->out, 0, limb, (uint32_t)n) + at, sum, sizeof sum);
}

typedef struct permute_launch {
    const void *arguments;
    const ckks_context *context;
    lanes_turns turns;
} permute_launch;

static void permute_sum_task(const void *context, uint32_t task) {
    const permute_launch *launch = context;
    const kernel_permute_sum_args *args = launch->arguments;
    const uint32_t log_n = context_params(launch->context)->log_n, per_limb = (1u << log_n) / PERMUTE_BLOCK;
    permute_sum_block(args, &launch->turns, limb_modulus(launch->context, args->out.basis, task / per_limb),
                      log_n, task / per_limb, task % per_limb);
}

void ISA(cpu_permute_sum)(const void *arguments) {
    const kernel_permute_sum_args *args = arguments;
    const uint32_t n = tables_n(args->tables), limbs = basis_limb_count(args->out.basis);
    permute_launch launch = {.arguments = args, .context = device_tables_context(args->tables)};
    lanes_turns_fill(&launch.turns);
    team_each(limbs * (n / PERMUTE_BLOCK), (size_t)args->item_count * limbs * n >= TEAM_WORDS_LIGHT,
              permute_sum_task, &launch);
}

static void permute_limb(uint64_t *out, const uint64_t *in, const lanes_turns *turns, uint32_t log_n,
                         uint32_t galois_element) {
    for (uint32_t block = 0; block < (1u << log_n) / PERMUTE_BLOCK; block++, out += PERMUTE_BLOCK) {
        block_turn turn;
        block_turn_fill(&turn, turns, log_n, galois_element, block);
        for (uint32_t v = 0; v < BLOCK_VECTORS; v++)
            w64_store(out + v * LANES, block_turn_load(&turn, in + turn.from, v));
    }
}

static void automorphism_task(const void *context, uint32_t task) {
    const permute_launch *launch = context;
    const kernel_automorphism_args *args = launch->arguments;
    const uint32_t limbs = basis_limb_count(args->out.basis), c = task / limbs, i = task % limbs;
    const uint32_t log_n = context_params(launch->context)->log_n, n = 1u << log_n;
    permute_limb(poly_limb(&args->out, c, i, n),
                 poly_limb(&args->a, c, basis_find(args->a.basis, args->out.basis, i), n), &launch->turns,
                 log_n, args->galois_element);
}

void ISA(cpu_automorphism)(const void *arguments) {
    const kernel_automorphism_args *args = arguments;
    const uint32_t count = args->out.component_count * basis_limb_count(args->out.basis);
    permute_launch launch = {.arguments = args, .context = device_tables_context(args->tables)};
    lanes_turns_fill(&launch.turns);
    team_each(count, (size_t)count * tables_n(args->tables) >= TEAM_WORDS_LIGHT, automorphism_task, &launch);
}
