/*
 * Sums of products over lists, in plain C: linear transforms and matrix products. As in key switching, terms
 * (below 2^100) are added up in 128 bits, a block of coefficients at a time, and reduced once.
 */
#include "kernels/cpu/permute_block.h"
#include "kernels/cpu/team.h"

static modulus limb_modulus(const ckks_context *context, kernel_basis basis, uint32_t limb) {
    return context_ntt(context, basis_prime(basis, limb, context_params(context)->q_count))->m;
}

/* the first item whose out is not below `out` */
static uint32_t diagonal_first(const diagonal_item *items, uint32_t count, uint32_t out) {
    uint32_t low = 0;
    for (uint32_t high = count; low < high;) {
        const uint32_t middle = low + (high - low) / 2;
        if (items[middle].out < out)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void add_products(uint128 *sum, const uint64_t *a, const uint64_t *b) {
    for (uint32_t k = 0; k < PERMUTE_BLOCK; k++) sum[k] += (uint128)a[k] * b[k];
}

static void diagonal_limb(const kernel_diagonal_sum_args *args, const modulus *m, uint32_t n, uint32_t out,
                          uint32_t component, uint32_t limb) {
    const size_t limbs = basis_limb_count(args->basis);
    const size_t at = ((size_t)component * limbs + limb) * n, stride = args->component_count * limbs * n;
    const uint32_t first = diagonal_first(args->items, args->item_count, out);
    const uint32_t end = diagonal_first(args->items, args->item_count, out + 1);
    for (size_t k = 0; k < n; k += PERMUTE_BLOCK) {
        uint128 sum[PERMUTE_BLOCK] = {0};
        for (uint32_t t = first; t < end; t++) {
            // NOLINTNEXTLINE(performance-no-int-to-ptr): a device address, as the item holds it
            const uint64_t *plain = (const uint64_t *)(uintptr_t)args->items[t].plain;
            add_products(sum, args->in + args->items[t].in * stride + at + k, plain + (size_t)limb * n + k);
        }
        uint64_t *to = args->out + out * stride + at + k;
        for (uint32_t i = 0; i < PERMUTE_BLOCK; i++) to[i] = mod_reduce128(sum[i], m);
    }
}

static void diagonal_task(const void *arguments, uint32_t task) {
    const kernel_diagonal_sum_args *args = arguments;
    const ckks_context *context = device_tables_context(args->tables);
    const uint32_t limbs = basis_limb_count(args->basis), row = task / args->component_count;
    const modulus m = limb_modulus(context, args->basis, row % limbs);
    diagonal_limb(args, &m, params_n(context_params(context)), row / limbs, task % args->component_count,
                  row % limbs);
}
void cpu_diagonal_sum_scalar(const void *arguments) {
    const kernel_diagonal_sum_args *args = arguments;
    team_each(args->out_count * basis_limb_count(args->basis) * args->component_count, true, diagonal_task,
              args);
}

/* residues are below 2^50: this many fit a word */
#define FOLD_TERMS 4096u

static void permute_limb(const kernel_permute_sum_args *args, const modulus *m, uint32_t log_n,
                         uint32_t limb) {
    const size_t n = (size_t)1 << log_n;
    uint64_t *out = poly_limb(&args->out, 0, limb, (uint32_t)n);
    for (uint32_t block = 0; block < n / PERMUTE_BLOCK; block++) {
        const size_t at = (size_t)block * PERMUTE_BLOCK;
        uint64_t sum[PERMUTE_BLOCK] = {0};
        uint8_t index[PERMUTE_BLOCK];
        if (args->start) memcpy(sum, args->start + limb * n + at, sizeof sum);
        for (uint32_t t = 0; t < args->item_count; t++) {
            const permute_item item = args->items[t];
            const uint64_t *in = args->in + ((size_t)item.in * args->in_stride + limb) * n +
                                 permute_block_fill(index, log_n, item.galois_element, block);
            for (uint32_t k = 0; k < PERMUTE_BLOCK; k++) sum[k] += in[index[k]];
            if (t % FOLD_TERMS == FOLD_TERMS - 1)
                for (uint32_t k = 0; k < PERMUTE_BLOCK; k++) sum[k] = mod_reduce128(sum[k], m);
        }
        for (uint32_t k = 0; k < PERMUTE_BLOCK; k++) out[at + k] = mod_reduce128(sum[k], m);
    }
}

static void permute_task(const void *arguments, uint32_t task) {
    const kernel_permute_sum_args *args = arguments;
    const ckks_context *context = device_tables_context(args->tables);
    const modulus m = limb_modulus(context, args->out.basis, task);
    permute_limb(args, &m, context_params(context)->log_n, task);
}
void cpu_permute_sum_scalar(const void *arguments) {
    const kernel_permute_sum_args *args = arguments;
    team_each(basis_limb_count(args->out.basis), true, permute_task, args);
}

/* One block of one limb: all rows, so that the block's columns are read from memory once. */
static void matrix_block(const kernel_matrix_product_args *args, const modulus *m, uint32_t n,
                         uint32_t component, uint32_t limb, uint32_t block) {
    const size_t limbs = basis_limb_count(args->basis), stride = args->component_count * limbs * n;
    const size_t at = ((size_t)component * limbs + limb) * n + (size_t)block * PERMUTE_BLOCK;
    for (uint32_t r = 0; r < args->row_count; r++) {
        const uint64_t *weight = args->weight + ((size_t)limb * args->row_count + r) * args->column_count;
        uint128 sum[PERMUTE_BLOCK];
        const uint64_t bias =
            args->bias && component == 0 ? args->bias[(size_t)limb * args->row_count + r] : 0;
        for (uint32_t k = 0; k < PERMUTE_BLOCK; k++) sum[k] = bias;
        for (uint32_t column = 0; column < args->column_count; column++) {
            const uint64_t *in = args->in + column * stride + at;
            const uint64_t w = weight[column];
            for (uint32_t k = 0; k < PERMUTE_BLOCK; k++) sum[k] += (uint128)in[k] * w;
        }
        uint64_t *out = args->out + r * stride + at;
        for (uint32_t k = 0; k < PERMUTE_BLOCK; k++) out[k] = mod_reduce128(sum[k], m);
    }
}

static void matrix_task(const void *arguments, uint32_t task) {
    const kernel_matrix_product_args *args = arguments;
    const ckks_context *context = device_tables_context(args->tables);
    const uint32_t n = params_n(context_params(context)), per_limb = n / PERMUTE_BLOCK;
    const uint32_t limbs = basis_limb_count(args->basis), row = task / per_limb;
    const modulus m = limb_modulus(context, args->basis, row % limbs);
    matrix_block(args, &m, n, row / limbs, row % limbs, task % per_limb);
}
void cpu_matrix_product_scalar(const void *arguments) {
    const kernel_matrix_product_args *args = arguments;
    team_each(args->component_count * basis_limb_count(args->basis) *
                  (tables_n(args->tables) / PERMUTE_BLOCK),
              true, matrix_task, args);
}
