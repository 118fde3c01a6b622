/*
 * Kernels that work position by position, on vector units; template, included once per instruction set.
 *
 * Products are of canonical words as they are: |x * w / q| < q < 2^50, and the bound of lanes.h with w below
 * q instead of q/2 is 1/2 + 3 * 2^-54 * 2^50 < 0.69 q.
 */
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/pointwise_piece.h"

static void negate_block(uint64_t *out, const uint64_t *a, const modulus *m) {
    const w64 q = w64_all(m->value);
    for (uint32_t k = 0; k < BLOCK; k += LANES) /* q - 0 = q is one too many */
        w64_store(out + k, w64_correct(w64_sub(q, w64_load(a + k)), q));
}
static void add_block(uint64_t *out, const uint64_t *a, const uint64_t *b, const modulus *m) {
    const w64 q = w64_all(m->value);
    for (uint32_t k = 0; k < BLOCK; k += LANES)
        w64_store(out + k, w64_correct(w64_add(w64_load(a + k), w64_load(b + k)), q));
}
static void subtract_block(uint64_t *out, const uint64_t *a, const uint64_t *b, const modulus *m) {
    const w64 q = w64_all(m->value);
    for (uint32_t k = 0; k < BLOCK; k += LANES)
        w64_store(out + k, w64_correct(w64_add(w64_load(a + k), w64_sub(q, w64_load(b + k))), q));
}
static void add_scalar_block(uint64_t *out, const uint64_t *a, uint64_t scalar, const modulus *m) {
    const w64 q = w64_all(m->value), b = w64_all(scalar);
    for (uint32_t k = 0; k < BLOCK; k += LANES)
        w64_store(out + k, w64_correct(w64_add(w64_load(a + k), b), q));
}
static void scale_block(uint64_t *out, const uint64_t *a, uint64_t scalar, const modulus *m) {
    const lanes_prime p = lanes_prime_of(m);
    const lanes_constant w = lanes_constant_residue(scalar, m, &p);
    for (uint32_t k = 0; k < BLOCK; k += LANES)
        w64_store(out + k, f64_canonical(f64_multiply_constant(f64_load_words(a + k), w, &p), &p));
}

ALWAYS f64 product(f64 a, f64 b, const lanes_prime *p) {
    return f64_multiply(a, b, f64_times(b, p->q_inverse), p);
}
static void multiply_block(uint64_t *out, const uint64_t *a, const uint64_t *b, const modulus *m) {
    const lanes_prime p = lanes_prime_of(m);
    for (uint32_t k = 0; k < BLOCK; k += LANES)
        w64_store(out + k, f64_canonical(product(f64_load_words(a + k), f64_load_words(b + k), &p), &p));
}

static void negate_piece(const void *arguments, const piece *p) {
    const kernel_unary_args *args = arguments;
    for (uint32_t c = 0; c < args->out.component_count; c++)
        negate_block(words_out(&args->out, c, p), words_in(&args->a, c, &args->out, p), p->m);
}
void ISA(cpu_negate)(const void *arguments) {
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
            add_block(out, a, b, p->m);
        else
            copy_block(out, a ? a : b);
    }
}
void ISA(cpu_add)(const void *arguments) {
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
            subtract_block(out, a, b, p->m);
        else if (a)
            copy_block(out, a);
        else
            negate_block(out, b, p->m);
    }
}
void ISA(cpu_subtract)(const void *arguments) {
    const kernel_binary_args *args = arguments;
    pieces_each(args->tables, args->out.basis, subtract_piece, args);
}

static void add_plain_piece(const void *arguments, const piece *p) {
    const kernel_binary_args *args = arguments;
    add_block(words_out(&args->out, 0, p), words_in(&args->a, 0, &args->out, p),
              words_in(&args->b, 0, &args->out, p), p->m);
    for (uint32_t c = 1; c < args->out.component_count; c++)
        copy_block(words_out(&args->out, c, p), words_in(&args->a, c, &args->out, p));
}
void ISA(cpu_add_plain)(const void *arguments) {
    const kernel_binary_args *args = arguments;
    pieces_each(args->tables, args->out.basis, add_plain_piece, args);
}

static void multiply_plain_piece(const void *arguments, const piece *p) {
    const kernel_binary_args *args = arguments;
    for (uint32_t c = 0; c < args->out.component_count; c++)
        multiply_block(words_out(&args->out, c, p), words_in(&args->a, c, &args->out, p),
                       words_in(&args->b, 0, &args->out, p), p->m);
}
void ISA(cpu_multiply_plain)(const void *arguments) {
    const kernel_binary_args *args = arguments;
    pieces_each(args->tables, args->out.basis, multiply_plain_piece, args);
}

static void add_scalars_piece(const void *arguments, const piece *p) {
    const kernel_scalars_args *args = arguments;
    for (uint32_t c = 0; c < args->out.component_count; c++) {
        uint64_t *out = words_out(&args->out, c, p);
        const uint64_t *a = words_in(&args->a, c, &args->out, p);
        if (scalar_is_for(args, c))
            add_scalar_block(out, a, args->scalar[p->limb], p->m);
        else
            copy_block(out, a);
    }
}
void ISA(cpu_add_scalars)(const void *arguments) {
    const kernel_scalars_args *args = arguments;
    pieces_each(args->tables, args->out.basis, add_scalars_piece, args);
}

static void multiply_scalars_piece(const void *arguments, const piece *p) {
    const kernel_scalars_args *args = arguments;
    for (uint32_t c = 0; c < args->out.component_count; c++)
        scale_block(words_out(&args->out, c, p), words_in(&args->a, c, &args->out, p), args->scalar[p->limb],
                    p->m);
}
void ISA(cpu_multiply_scalars)(const void *arguments) {
    const kernel_scalars_args *args = arguments;
    pieces_each(args->tables, args->out.basis, multiply_scalars_piece, args);
}

/* (a0, a1) x (b0, b1): the middle term's two products, each within 0.69 q, are summed and reduced */
static void tensor_block(uint64_t *out[3], const uint64_t *const a[2], const uint64_t *const b[2],
                         const modulus *m) {
    const lanes_prime p = lanes_prime_of(m);
    for (uint32_t k = 0; k < BLOCK; k += LANES) {
        const f64 a0 = f64_load_words(a[0] + k), a1 = f64_load_words(a[1] + k);
        const f64 b0 = f64_load_words(b[0] + k), b1 = f64_load_words(b[1] + k);
        const f64 b0_over_q = f64_times(b0, p.q_inverse), b1_over_q = f64_times(b1, p.q_inverse);
        const f64 middle = f64_add(f64_multiply(a0, b1, b1_over_q, &p), f64_multiply(a1, b0, b0_over_q, &p));
        w64_store(out[0] + k, f64_canonical(f64_multiply(a0, b0, b0_over_q, &p), &p));
        w64_store(out[1] + k, f64_canonical(f64_reduce(middle, &p), &p));
        w64_store(out[2] + k, f64_canonical(f64_multiply(a1, b1, b1_over_q, &p), &p));
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

void ISA(cpu_multiply)(const void *arguments) {
    const kernel_binary_args *args = arguments;
    tensor(args->tables, &args->out, &args->a, &args->b);
}

void ISA(cpu_square)(const void *arguments) {
    const kernel_unary_args *args = arguments;
    tensor(args->tables, &args->out, &args->a, &args->a);
}
