/*
 * Kernels that work position by position, in plain C.
 */
#include "kernels/cpu/pointwise_piece.h"

static void negate_block(uint64_t *out, const uint64_t *a, uint64_t q) {
    for (uint32_t k = 0; k < BLOCK; k++) out[k] = mod_negate(a[k], q);
}
static void add_block(uint64_t *out, const uint64_t *a, const uint64_t *b, uint64_t q) {
    for (uint32_t k = 0; k < BLOCK; k++) out[k] = mod_add(a[k], b[k], q);
}
static void subtract_block(uint64_t *out, const uint64_t *a, const uint64_t *b, uint64_t q) {
    for (uint32_t k = 0; k < BLOCK; k++) out[k] = mod_sub(a[k], b[k], q);
}
static void multiply_block(uint64_t *out, const uint64_t *a, const uint64_t *b, const modulus *m) {
    for (uint32_t k = 0; k < BLOCK; k++) out[k] = mod_mul(a[k], b[k], m);
}

static void copy_piece(const void *arguments, const piece *p) {
    const kernel_unary_args *args = arguments;
    for (uint32_t c = 0; c < args->out.component_count; c++)
        copy_block(words_out(&args->out, c, p), words_in(&args->a, c, &args->out, p));
}
void cpu_copy_scalar(const void *arguments) {
    const kernel_unary_args *args = arguments;
    pieces_each(args->tables, args->out.basis, copy_piece, args);
}

static void negate_piece(const void *arguments, const piece *p) {
    const kernel_unary_args *args = arguments;
    for (uint32_t c = 0; c < args->out.component_count; c++)
        negate_block(words_out(&args->out, c, p), words_in(&args->a, c, &args->out, p), p->m->value);
}
void cpu_negate_scalar(const void *arguments) {
    const kernel_unary_args *args = arguments;
    pieces_each(args->tables, args->out.basis, negate_piece, args);
}

static void add_piece(const void *arguments, const piece *p) {
    const kernel_binary_args *args = arguments;
    for (uint32_t c = 0; c < args->out.component_count; c++) {
        uint64_t *out = words_out(&args->out, c, p);
        const uint64_t *a = words_if_any(&args->a, c, &args->out, p);
        const uint64_t *b = words_if_any(&args->b, c, &args->out, p);
        if (a && b)
            add_block(out, a, b, p->m->value);
        else
            copy_block(out, a ? a : b);
    }
}
void cpu_add_scalar(const void *arguments) {
    const kernel_binary_args *args = arguments;
    pieces_each(args->tables, args->out.basis, add_piece, args);
}

static void subtract_piece(const void *arguments, const piece *p) {
    const kernel_binary_args *args = arguments;
    for (uint32_t c = 0; c < args->out.component_count; c++) {
        uint64_t *out = words_out(&args->out, c, p);
        const uint64_t *a = words_if_any(&args->a, c, &args->out, p);
        const uint64_t *b = words_if_any(&args->b, c, &args->out, p);
        if (a && b)
            subtract_block(out, a, b, p->m->value);
        else if (a)
            copy_block(out, a);
        else
            negate_block(out, b, p->m->value);
    }
}
void cpu_subtract_scalar(const void *arguments) {
    const kernel_binary_args *args = arguments;
    pieces_each(args->tables, args->out.basis, subtract_piece, args);
}

static void add_plain_piece(const void *arguments, const piece *p) {
    const kernel_binary_args *args = arguments;
    add_block(words_out(&args->out, 0, p), words_in(&args->a, 0, &args->out, p),
              words_in(&args->b, 0, &args->out, p), p->m->value);
    for (uint32_t c = 1; c < args->out.component_count; c++)
        copy_block(words_out(&args->out, c, p), words_in(&args->a, c, &args->out, p));
}
void cpu_add_plain_scalar(const void *arguments) {
    const kernel_binary_args *args = arguments;
    pieces_each(args->tables, args->out.basis, add_plain_piece, args);
}

static void multiply_plain_piece(const void *arguments, const piece *p) {
    const kernel_binary_args *args = arguments;
    for (uint32_t c = 0; c < args->out.component_count; c++)
        multiply_block(words_out(&args->out, c, p), words_in(&args->a, c, &args->out, p),
                       words_in(&args->b, 0, &args->out, p), p->m);
}
void cpu_multiply_plain_scalar(const void *arguments) {
    const kernel_binary_args *args = arguments;
    pieces_each(args->tables, args->out.basis, multiply_plain_piece, args);
}

static void add_scalars_piece(const void *arguments, const piece *p) {
    const kernel_scalars_args *args = arguments;
    const uint64_t q = p->m->value, scalar = args->scalar[p->limb];
    for (uint32_t c = 0; c < args->out.component_count; c++) {
        uint64_t *out = words_out(&args->out, c, p);
        const uint64_t *a = words_in(&args->a, c, &args->out, p);
        if (scalar_is_for(args, c))
            for (uint32_t k = 0; k < BLOCK; k++) out[k] = mod_add(a[k], scalar, q);
        else
            copy_block(out, a);
    }
}
void cpu_add_scalars_scalar(const void *arguments) {
    const kernel_scalars_args *args = arguments;
    pieces_each(args->tables, args->out.basis, add_scalars_piece, args);
}

static void multiply_scalars_piece(const void *arguments, const piece *p) {
    const kernel_scalars_args *args = arguments;
    const uint64_t q = p->m->value, w = args->scalar[p->limb], w_shoup = mod_shoup(w, q);
    for (uint32_t c = 0; c < args->out.component_count; c++) {
        uint64_t *out = words_out(&args->out, c, p);
        const uint64_t *a = words_in(&args->a, c, &args->out, p);
        for (uint32_t k = 0; k < BLOCK; k++) out[k] = mod_mul_shoup(a[k], w, w_shoup, q);
    }
}
void cpu_multiply_scalars_scalar(const void *arguments) {
    const kernel_scalars_args *args = arguments;
    pieces_each(args->tables, args->out.basis, multiply_scalars_piece, args);
}

/* (a0, a1) x (b0, b1): the middle term is summed before its one reduction (each product is below 2^100) */
static void tensor_block(uint64_t *out[3], const uint64_t *const a[2], const uint64_t *const b[2],
                         const modulus *m) {
    for (uint32_t k = 0; k < BLOCK; k++) {
        const uint64_t a0 = a[0][k], a1 = a[1][k], b0 = b[0][k], b1 = b[1][k];
        out[0][k] = mod_mul(a0, b0, m);
        out[1][k] = mod_reduce128((uint128)a0 * b1 + (uint128)a1 * b0, m);
        out[2][k] = mod_mul(a1, b1, m);
    }
}

typedef struct tensor_operands {
    const kernel_poly *out, *a, *b;
} tensor_operands;

static void tensor_piece(const void *operands, const piece *p) {
    const kernel_poly *out = ((const tensor_operands *)operands)->out;
    const kernel_poly *a = ((const tensor_operands *)operands)->a,
                      *b = ((const tensor_operands *)operands)->b;
    for (uint32_t e = 0; 2 * e < a->component_count; e++) {
        uint64_t *to[3] = {words_out(out, 3 * e, p), words_out(out, 3 * e + 1, p),
                           words_out(out, 3 * e + 2, p)};
        const uint64_t *const from_a[2] = {words_in(a, 2 * e, out, p), words_in(a, 2 * e + 1, out, p)};
        const uint64_t *const from_b[2] = {words_in(b, 2 * e, out, p), words_in(b, 2 * e + 1, out, p)};
        tensor_block(to, from_a, from_b, p->m);
    }
}
static void tensor(const device_tables *tables, const kernel_poly *out, const kernel_poly *a,
                   const kernel_poly *b) {
    const tensor_operands operands = {out, a, b};
    pieces_each(tables, out->basis, tensor_piece, &operands);
}

void cpu_multiply_scalar(const void *arguments) {
    const kernel_binary_args *args = arguments;
    tensor(args->tables, &args->out, &args->a, &args->b);
}

void cpu_square_scalar(const void *arguments) {
    const kernel_unary_args *args = arguments;
    tensor(args->tables, &args->out, &args->a, &args->a);
}
