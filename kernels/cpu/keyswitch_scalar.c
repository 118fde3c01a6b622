/*
 * Key switching in plain C: the definition, kept fast enough to use. Base conversions and key products add
 * their terms up in 128 bits and reduce once: a term is below 2^100, so 2^28 of them fit, far more than a
 * launch may have. Coefficients are worked through in blocks whose sums stay in the first-level cache.
 *
 * Each limb of each digit, item or component is one task; what a task calls are functions of one limb, which
 * is where a vector version differs.
 */
#include "kernels/cpu/permute_block.h"
#include "kernels/cpu/team.h"

#define SOURCES_MAX (CKKS_DIGIT_SIZE_MAX + 2u)

const uint8_t reverse_byte[256] = {
#define R2(n) (n), (n) + 2 * 64, (n) + 1 * 64, (n) + 3 * 64
#define R4(n) R2(n), R2((n) + 2 * 16), R2((n) + 1 * 16), R2((n) + 3 * 16)
#define R6(n) R4(n), R4((n) + 2 * 4), R4((n) + 1 * 4), R4((n) + 3 * 4)
    R6(0), R6(2), R6(1), R6(3)
#undef R2
#undef R4
#undef R6
};

/* y = inverse transform of x, times (D/s)^-1: the residues from which a conversion starts */
static void source_limb(uint64_t *y, const uint64_t *x, const base_conversion *conversion, uint32_t source,
                        const ntt_table *ntt) {
    const uint32_t n = 1u << ntt->log_n;
    const uint64_t w = conversion->hat_inverse[source], w_shoup = conversion->hat_inverse_shoup[source];
    const uint64_t q = ntt->m.value;
    ntt_inverse_scalar(y, x, ntt);
    if (w == 1) return;
    for (uint32_t k = 0; k < n; k++) y[k] = mod_mul_shoup(y[k], w, w_shoup, q);
}

/* The conversion of the sources y[source_count][N] to one prime, transformed: out[N], evaluation domain. */
static void convert_limb(uint64_t *out, const uint64_t *y, const base_conversion *conversion,
                         const ckks_context *context, uint32_t prime_index) {
    const ntt_table *ntt = context_ntt(context, prime_index);
    const uint32_t n = 1u << ntt->log_n, count = conversion->source_count;
    const uint32_t stride = params_prime_count(context_params(context));
    const uint64_t product_negated = mod_negate(conversion->product[prime_index], ntt->m.value);
    uint64_t half[SOURCES_MAX], hat[SOURCES_MAX];
    for (uint32_t i = 0; i < count; i++) {
        half[i] = context_ntt(context, conversion->source[i])->m.value >> 1;
        hat[i] = conversion->hat[(size_t)i * stride + prime_index];
    }
    for (uint32_t k = 0; k < n; k++) {
        uint128 sum = 0;
        uint64_t above = 0; /* how many sources are in their upper half, that is, negative when centred */
        for (uint32_t i = 0; i < count; i++) {
            const uint64_t value = y[(size_t)i * n + k];
            sum += (uint128)value * hat[i];
            above += value > half[i];
        }
        out[k] = mod_reduce128(sum + (uint128)above * product_negated, &ntt->m);
    }
    ntt_forward_scalar(out, out, ntt);
}

typedef struct up_shape {
    const kernel_mod_up_args *args;
    const ckks_context *context;
    uint32_t n, limbs, digits, digit_size, limbs_out;
} up_shape;

static const uint64_t *up_input(const up_shape *s, uint32_t entry, uint32_t limb) {
    return poly_limb(&s->args->a, 0, limb, s->n) + (size_t)entry * s->args->a_batch_stride * s->n;
}

static void up_source_task(const void *context, uint32_t task) {
    const up_shape *s = context;
    const uint32_t limb = task % s->limbs;
    source_limb(s->args->scratch + (size_t)task * s->n, up_input(s, task / s->limbs, limb),
                context_mod_up(s->context, s->limbs - 1, limb / s->digit_size), limb % s->digit_size,
                context_ntt(s->context, limb));
}

static void up_limb_task(const void *context, uint32_t task) {
    const up_shape *s = context;
    const ckks_params *params = context_params(s->context);
    const kernel_basis basis = {0, s->limbs, params->p_count};
    const uint32_t limb = task % s->limbs_out, row = task / s->limbs_out;
    const uint32_t digit = row % s->digits, entry = row / s->digits;
    uint64_t *out = s->args->out + (size_t)task * s->n;
    if (limb < s->limbs && limb / s->digit_size == digit)
        memcpy(out, up_input(s, entry, limb), (size_t)s->n * sizeof *out);
    else
        convert_limb(out,
                     s->args->scratch + ((size_t)entry * s->limbs + (size_t)digit * s->digit_size) * s->n,
                     context_mod_up(s->context, s->limbs - 1, digit), s->context,
                     basis_prime(basis, limb, params->q_count));
}

void cpu_mod_up_scalar(const void *arguments) {
    const kernel_mod_up_args *args = arguments;
    const ckks_context *context = device_tables_context(args->tables);
    const ckks_params *params = context_params(context);
    const uint32_t limbs = args->a.basis.q_count;
    const up_shape shape = {
        .args = args,
        .context = context,
        .n = params_n(params),
        .limbs = limbs,
        .digits = params_digit_count(params, limbs - 1),
        .digit_size = params->digit_size,
        .limbs_out = limbs + params->p_count,
    };
    team_each(args->batch_count * limbs, true, up_source_task, &shape);
    team_each(args->batch_count * shape.digits * shape.limbs_out, true, up_limb_task, &shape);
}

/* ---- key product ---- */

/* Sums of one block of one limb, both components. */
typedef struct product_sums {
    uint128 at[2][PERMUTE_BLOCK];
} product_sums;

static void add_products(product_sums *sums, const uint64_t *digit, const uint8_t *index,
                         const uint64_t *key0, const uint64_t *key1) {
    for (uint32_t k = 0; k < PERMUTE_BLOCK; k++) {
        const uint64_t x = digit[index[k]];
        sums->at[0][k] += (uint128)x * key0[k];
        sums->at[1][k] += (uint128)x * key1[k];
    }
}

static void add_scaled(product_sums *sums, const uint64_t *add, const uint8_t *index, uint64_t factor) {
    for (uint32_t k = 0; k < PERMUTE_BLOCK; k++) sums->at[0][k] += (uint128)add[index[k]] * factor;
}

/* What every limb of one launch shares. */
typedef struct product_shape {
    const kernel_key_product_args *args;
    const ckks_context *context;
    uint32_t n, log_n, q_limbs, p_limbs, digits;
} product_shape;

/* One limb of one digit of a key, component 0. */
typedef struct key_limb {
    const uint8_t *at; /* NULL if the key cannot serve this launch */
    size_t component_bytes;
    uint32_t residue_bytes;
} key_limb;

/* Where p follows q depends on the key's level, not on the launch's. */
static key_limb key_limb_of(const product_shape *shape, uint32_t key, uint32_t digit, uint32_t limb,
                            uint32_t prime) {
    if (key >= shape->args->key_count) return (key_limb){0};
    const key_table_entry *entry = &shape->args->keys[key];
    if (!entry->address || entry->q_limb_count < shape->q_limbs || entry->layout > KEY_NARROW)
        return (key_limb){0};
    const size_t key_limbs = (size_t)entry->q_limb_count + shape->p_limbs;
    const size_t at = limb < shape->q_limbs ? limb : entry->q_limb_count + (limb - shape->q_limbs);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): a device address, as the key table holds it
    const uint64_t *words = (const uint64_t *)(uintptr_t)entry->address;
    const uint64_t q = context_ntt(shape->context, prime)->m.value;
    return (key_limb){(const uint8_t *)(words + (2 * digit * key_limbs + at) * shape->n),
                      key_limbs * shape->n * sizeof *words,
                      entry->layout == KEY_NARROW ? key_residue_bytes(q) : (uint32_t)sizeof *words};
}

/* residues begin .. begin + PERMUTE_BLOCK - 1 of both components; little-endian, as the processor is */
static void key_block(uint64_t out[2][PERMUTE_BLOCK], const key_limb *key, size_t begin) {
    for (uint32_t c = 0; c < 2; c++) {
        const uint8_t *at = key->at + c * key->component_bytes + begin * key->residue_bytes;
        for (uint32_t k = 0; k < PERMUTE_BLOCK; k++, at += key->residue_bytes) {
            out[c][k] = 0;
            memcpy(&out[c][k], at, key->residue_bytes);
        }
    }
}

static void add_item(product_sums *sums, const product_shape *shape, const key_product_item *item,
                     uint32_t limb, uint32_t block) {
    const kernel_key_product_args *args = shape->args;
    const uint32_t limbs = shape->q_limbs + shape->p_limbs;
    const kernel_basis basis = {0, shape->q_limbs, shape->p_limbs};
    const uint32_t prime = basis_prime(basis, limb, context_params(shape->context)->q_count);
    const size_t n = shape->n, at = (size_t)block * PERMUTE_BLOCK;
    uint8_t index[PERMUTE_BLOCK];
    const size_t from = permute_block_fill(index, shape->log_n, item->galois_element, block);
    for (uint32_t d = 0; d < shape->digits; d++) {
        uint64_t residues[2][PERMUTE_BLOCK];
        const key_limb key = key_limb_of(shape, item->key, d, limb, prime);
        if (!key.at) break;
        key_block(residues, &key, at);
        const uint64_t *digit =
            args->digits + (((size_t)item->digits * shape->digits + d) * limbs + limb) * n + from;
        add_products(sums, digit, index, residues[0], residues[1]);
    }
    if (args->add && limb < shape->q_limbs) {
        uint64_t p = 0, p_shoup = 0;
        context_p_product(shape->context, limb, &p, &p_shoup);
        add_scaled(sums, args->add + ((size_t)item->digits * args->add_stride + limb) * n + from, index, p);
    }
}

static void product_limb(const product_shape *shape, uint32_t out_index, uint32_t limb) {
    const kernel_key_product_args *args = shape->args;
    const uint32_t limbs = shape->q_limbs + shape->p_limbs;
    const kernel_basis basis = {0, shape->q_limbs, shape->p_limbs};
    const uint32_t prime = basis_prime(basis, limb, context_params(shape->context)->q_count);
    const modulus m = context_ntt(shape->context, prime)->m;
    uint64_t *out = args->out + ((size_t)out_index * 2 * limbs + limb) * shape->n;
    uint64_t *out1 = out + (size_t)limbs * shape->n;
    for (uint32_t block = 0; block < shape->n / PERMUTE_BLOCK; block++) {
        product_sums sums = {0};
        if (!args->items) {
            const key_product_item item = {out_index, args->uniform.key, args->uniform.galois_element,
                                           out_index};
            add_item(&sums, shape, &item, limb, block);
        } else {
            for (uint32_t t = 0; t < args->item_count; t++)
                if (args->items[t].out_index == out_index)
                    add_item(&sums, shape, &args->items[t], limb, block);
        }
        for (uint32_t k = 0, at = block * PERMUTE_BLOCK; k < PERMUTE_BLOCK; k++, at++) {
            out[at] = mod_reduce128(sums.at[0][k], &m);
            out1[at] = mod_reduce128(sums.at[1][k], &m);
        }
    }
}

static void product_task(const void *context, uint32_t task) {
    const product_shape *shape = context;
    const uint32_t limbs = shape->q_limbs + shape->p_limbs;
    product_limb(shape, task / limbs, task % limbs);
}

void cpu_key_product_scalar(const void *arguments) {
    const kernel_key_product_args *args = arguments;
    const ckks_context *context = device_tables_context(args->tables);
    const ckks_params *params = context_params(context);
    const product_shape shape = {
        .args = args,
        .context = context,
        .n = params_n(params),
        .log_n = params->log_n,
        .q_limbs = args->level + 1,
        .p_limbs = args->is_public ? 0 : params->p_count,
        .digits = args->is_public ? 1 : params_digit_count(params, args->level),
    };
    team_each(args->out_count * (shape.q_limbs + shape.p_limbs), true, product_task, &shape);
}

static void narrow_task(const void *context, uint32_t task) {
    const kernel_narrow_key_args *args = context;
    const uint32_t n = tables_n(args->tables), limbs = basis_limb_count(args->key.basis);
    const uint32_t bytes =
        key_residue_bytes(tables_ntt(args->tables, args->key.basis, task % limbs)->m.value);
    uint64_t *words = poly_limb(&args->key, task / limbs, task % limbs, n);
    uint8_t *out = (uint8_t *)words; /* never past the word that is read next */
    for (uint32_t k = 0; k < n; k++) {
        const uint64_t word = words[k];
        memcpy(out + (size_t)k * bytes, &word, bytes);
    }
}
void cpu_narrow_key_scalar(const void *arguments) {
    const kernel_narrow_key_args *args = arguments;
    team_each(args->key.component_count * basis_limb_count(args->key.basis), true, narrow_task, args);
}

/* ---- dividing by P, by P * q_l, by q_l ---- */

/* out = (a - out) * D^-1 */
static void subtract_and_divide(uint64_t *out, const uint64_t *a, uint64_t w, uint64_t w_shoup, uint64_t q,
                                uint32_t n) {
    for (uint32_t k = 0; k < n; k++) out[k] = mod_mul_shoup(a[k] + q - out[k], w, w_shoup, q);
}

/* out = a + P * permute_g(add); out may be a */
static void add_permuted(uint64_t *out, const uint64_t *a, const uint64_t *add, uint32_t galois_element,
                         const ckks_context *context, uint32_t prime) {
    const ntt_table *ntt = context_ntt(context, prime);
    const uint64_t q = ntt->m.value;
    uint64_t p = 0, p_shoup = 0;
    context_p_product(context, prime, &p, &p_shoup);
    for (uint32_t block = 0; block < (1u << ntt->log_n) / PERMUTE_BLOCK; block++) {
        uint8_t index[PERMUTE_BLOCK];
        const uint64_t *from = add + permute_block_fill(index, ntt->log_n, galois_element, block);
        for (uint32_t k = 0, at = block * PERMUTE_BLOCK; k < PERMUTE_BLOCK; k++, at++)
            out[at] = mod_add(a[at], mod_mul_shoup(from[index[k]], p, p_shoup, q), q);
    }
}

/* scratch per batch entry and component: the D residues, then one limb per limb of Q for the numerator where
 * something is added to it */
typedef struct down_shape {
    const kernel_mod_down_args *args;
    const ckks_context *context;
    const base_conversion *conversion;
    uint32_t n, level, limbs_out, components, q_count;
    size_t scratch_words;
} down_shape;

static const uint64_t *down_add(const down_shape *shape, uint32_t batch, uint32_t component, uint32_t limb) {
    const kernel_mod_down_args *args = shape->args;
    if (!args->add.words || component >= args->add.component_count) return NULL;
    return poly_limb(&args->add, component, limb, shape->n) +
           (size_t)batch * args->add_batch_stride * shape->n;
}

static uint64_t *down_scratch(const down_shape *shape, uint32_t batch, uint32_t component) {
    return shape->args->scratch + ((size_t)batch * shape->components + component) * shape->scratch_words;
}

static void down_source(const down_shape *shape, uint32_t batch, uint32_t component, uint32_t source) {
    const kernel_mod_down_args *args = shape->args;
    const uint32_t n = shape->n, prime = shape->conversion->source[source];
    const bool is_q = prime == shape->level;
    const uint32_t limb = is_q ? shape->level : shape->level + 1 + (prime - shape->q_count);
    const uint64_t *a = poly_limb(&args->a, component, limb, n) + (size_t)batch * args->a_batch_stride * n;
    uint64_t *y = down_scratch(shape, batch, component) + (size_t)source * n;
    const uint64_t *add = is_q ? down_add(shape, batch, component, limb) : NULL;
    if (add) {
        add_permuted(y, a, add, args->add_galois_element, shape->context, prime);
        a = y;
    }
    source_limb(y, a, shape->conversion, source, context_ntt(shape->context, prime));
}

static void down_limb(const down_shape *shape, uint32_t batch, uint32_t component, uint32_t limb) {
    const kernel_mod_down_args *args = shape->args;
    const base_conversion *conversion = shape->conversion;
    const uint32_t n = shape->n;
    uint64_t *scratch = down_scratch(shape, batch, component);
    uint64_t *out = poly_limb(&args->out, component, limb, n) + (size_t)batch * args->out_batch_stride * n;
    const uint64_t *a = poly_limb(&args->a, component, limb, n) + (size_t)batch * args->a_batch_stride * n;
    const uint64_t *add = down_add(shape, batch, component, limb);
    convert_limb(out, scratch, conversion, shape->context, limb);
    if (add) {
        uint64_t *sum = scratch + ((size_t)conversion->source_count + limb) * n;
        add_permuted(sum, a, add, args->add_galois_element, shape->context, limb);
        a = sum;
    }
    subtract_and_divide(out, a, conversion->product_inverse[limb], conversion->product_inverse_shoup[limb],
                        context_ntt(shape->context, limb)->m.value, n);
}

static void down_source_task(const void *context, uint32_t task) {
    const down_shape *s = context;
    const uint32_t sources = s->conversion->source_count, part = task / sources;
    down_source(s, part / s->components, part % s->components, task % sources);
}
static void down_limb_task(const void *context, uint32_t task) {
    const down_shape *s = context;
    const uint32_t part = task / s->limbs_out;
    down_limb(s, part / s->components, part % s->components, task % s->limbs_out);
}

void cpu_mod_down_scalar(const void *arguments) {
    const kernel_mod_down_args *args = arguments;
    const ckks_context *context = device_tables_context(args->tables);
    const ckks_params *params = context_params(context);
    const uint32_t level = args->a.basis.q_count - 1;
    const down_shape shape = {
        .args = args,
        .context = context,
        .conversion = context_mod_down(context, level, args->with_rescale != 0),
        .n = params_n(params),
        .level = level,
        .limbs_out = level + (args->with_rescale ? 0 : 1),
        .components = args->out.component_count,
        .q_count = params->q_count,
        .scratch_words = ((size_t)params->p_count + 2 * ((size_t)level + 1)) * params_n(params),
    };
    const uint32_t parts = args->batch_count * shape.components;
    team_each(parts * shape.conversion->source_count, true, down_source_task, &shape);
    team_each(parts * shape.limbs_out, true, down_limb_task, &shape);
}

/* out = (a * b - out) * w */
static void subtract_from_product(uint64_t *out, const uint64_t *a, const uint64_t *b, uint64_t w,
                                  uint64_t w_shoup, const modulus *m, uint32_t n) {
    for (uint32_t k = 0; k < n; k++)
        out[k] = mod_mul_shoup(mod_mul(a[k], b[k], m) + m->value - out[k], w, w_shoup, m->value);
}

typedef struct rescale_shape {
    const ckks_context *context;
    const kernel_poly *out, *a, *times; /* times: NULL, or what a is multiplied by first */
    const base_conversion *conversion;
    uint64_t *scratch;
    uint32_t n, level;
} rescale_shape;

static void rescale_source_task(const void *context, uint32_t component) {
    const rescale_shape *s = context;
    const ntt_table *ntt = context_ntt(s->context, s->level);
    uint64_t *y = s->scratch + (size_t)component * s->n;
    const uint64_t *a = poly_limb(s->a, component, s->level, s->n);
    if (s->times) {
        const uint64_t *times = poly_limb(s->times, 0, s->level, s->n);
        for (uint32_t k = 0; k < s->n; k++) y[k] = mod_mul(a[k], times[k], &ntt->m);
        a = y;
    }
    source_limb(y, a, s->conversion, 0, ntt);
}
static void rescale_limb_task(const void *context, uint32_t task) {
    const rescale_shape *s = context;
    const uint32_t component = task / s->level, limb = task % s->level;
    const modulus *m = &context_ntt(s->context, limb)->m;
    const uint64_t w = s->conversion->product_inverse[limb],
                   w_shoup = s->conversion->product_inverse_shoup[limb];
    const uint64_t *a = poly_limb(s->a, component, limb, s->n);
    uint64_t *out = poly_limb(s->out, component, limb, s->n);
    convert_limb(out, s->scratch + (size_t)component * s->n, s->conversion, s->context, limb);
    if (s->times)
        subtract_from_product(out, a, poly_limb(s->times, 0, limb, s->n), w, w_shoup, m, s->n);
    else
        subtract_and_divide(out, a, w, w_shoup, m->value, s->n);
}

static void rescale_all(const device_tables *tables, const kernel_poly *out, const kernel_poly *a,
                        const kernel_poly *times, uint64_t *scratch) {
    const ckks_context *context = device_tables_context(tables);
    const uint32_t level = a->basis.q_count - 1, components = a->component_count;
    const rescale_shape shape = {context,          out,  a, times, context_rescale(context, level), scratch,
                                 tables_n(tables), level};
    team_each(components, true, rescale_source_task, &shape);
    team_each(components * level, true, rescale_limb_task, &shape);
}

void cpu_rescale_scalar(const void *arguments) {
    const kernel_rescale_args *args = arguments;
    rescale_all(args->tables, &args->out, &args->a, NULL, args->scratch);
}

void cpu_multiply_rescale_scalar(const void *arguments) {
    const kernel_multiply_rescale_args *args = arguments;
    rescale_all(args->tables, &args->out, &args->a, &args->b, args->scratch);
}
