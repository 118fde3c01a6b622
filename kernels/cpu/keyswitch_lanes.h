/*
 * Key switching on vector units; template, included once per instruction set. The words of
 * keyswitch_scalar.c.
 *
 * Between an inverse transform and the conversion, residues are centred whole numbers in doubles (AVX2) or
 * centred and shifted integers (AVX-512): what the conversion is defined on, so its correction costs nothing,
 * and a conversion from one prime alone is no work at all: the forward transform loads the source's residues
 * as they are. With AVX-512 it also does the conversion as it loads. The division by P rides on the forward
 * transform's store.
 */
#include "kernels/cpu/ntt_vector.h"
#include "kernels/cpu/pair_lanes.h"

/* ---- base conversion ---- */

#if LANES == 8

/* a residue between inverse transform and conversion: shifted, see ntt_vector.h */
typedef uint64_t source_word;

/* inverse transform times (D/s)^-1 */
static void source_limb(source_word *y, const uint64_t *x, const base_conversion *conversion, uint32_t source,
                        const ckks_context *context) {
    vector_inverse_shifted_avx512(y, x, conversion->hat_inverse[source],
                                  context_ntt(context, conversion->source[source]));
}

/* The conversion of the sources y[source_count][N] to one prime, transformed, to out[N]. What the shifts of
 * the sources add up to is taken off at the start. */
static void convert_limb(uint64_t *out, const source_word *y, const base_conversion *conversion,
                         const ckks_context *context, uint32_t prime_index, const forward_store *store) {
    const ntt_table *ntt = context_ntt(context, prime_index);
    const modulus *m = &ntt->m;
    const uint32_t count = conversion->source_count, stride = params_prime_count(context_params(context));
    forward_source from = {.words = y, .stride = (size_t)1 << ntt->log_n, .count = count};
    uint64_t shifts = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t s = context_ntt(context, conversion->source[i])->m.value;
        from.words_below = s;
        from.factor[i] = conversion->hat[(size_t)i * stride + prime_index];
        from.quotient[i] = mod_shoup_fast(from.factor[i], m);
        shifts = mod_add(shifts, mod_mul(mod_reduce128(s >> 1, m), from.factor[i], m), m->value);
    }
    from.start = mod_negate(shifts, m->value);
    vector_forward_source_avx512(out, &from, ntt, store);
}

#else

/* a residue between inverse transform and conversion: centred */
typedef double source_word;

/* inverse transform times (D/s)^-1, centred */
static void source_limb(source_word *y, const uint64_t *x, const base_conversion *conversion, uint32_t source,
                        const ckks_context *context) {
    vector_inverse_f64_avx2(y, x, conversion->hat_inverse[source],
                            context_ntt(context, conversion->source[source]));
}

#define FEW_SOURCES 3u

/* sum of y[i] * hat[i], each product within 0.55 q since |y| < 2^49 */
ALWAYS void convert_few(double *out, const double *y, const lanes_constant *hat, uint32_t count, size_t n,
                        const lanes_prime *prime) {
    const lanes_prime p = *prime;
    for (size_t k = 0; k < n; k += LANES) {
        f64 sum = f64_multiply_constant(f64_load(y + k), hat[0], &p);
        for (uint32_t i = 1; i < count; i++)
            sum = f64_add(sum, f64_multiply_constant(f64_load(y + i * n + k), hat[i], &p));
        f64_store(out + k, sum);
    }
}

static void convert_many(double *out, const double *y, const lanes_constant *hat, uint32_t count, size_t n,
                         const lanes_constant *carry, const lanes_prime *prime) {
    const lanes_prime p = *prime;
    for (size_t k = 0; k < n; k += LANES) {
        f64 acc = f64_all(0);
        for (uint32_t i = 0; i < count;) {
            const uint32_t end = i + CENTRED_TERMS < count ? i + CENTRED_TERMS : count;
            centred_sum sum = centred_zero();
            for (; i < end; i++) centred_add(&sum, f64_load(y + i * n + k), hat[i].w);
            acc = centred_fold(&sum, acc, carry, &p);
        }
        f64_store(out + k, acc);
    }
}

/* The conversion of the sources y[source_count][N] to one prime, transformed, to out[N]. */
static void convert_limb(uint64_t *out, const double *y, const base_conversion *conversion,
                         const ckks_context *context, uint32_t prime_index, const forward_store *store) {
    const ntt_table *ntt = context_ntt(context, prime_index);
    const modulus *m = &ntt->m;
    const uint32_t count = conversion->source_count, stride = params_prime_count(context_params(context));
    const size_t n = (size_t)1 << ntt->log_n;
    if (count == 1) { /* D/s = 1 */
        const double source = (double)context_ntt(context, conversion->source[0])->m.value;
        vector_forward_f64_avx2(out, y, 0.5 * source / (double)m->value, ntt, store);
        return;
    }
    const lanes_prime p = lanes_prime_of(m);
    lanes_constant hat[CKKS_DIGIT_SIZE_MAX + 2];
    double *to = (double *)(void *)out;
    for (uint32_t i = 0; i < count; i++)
        hat[i] = lanes_constant_residue(conversion->hat[(size_t)i * stride + prime_index], m, &p);
    if (count == 2)
        convert_few(to, y, hat, 2, n, &p);
    else if (count == FEW_SOURCES)
        convert_few(to, y, hat, FEW_SOURCES, n, &p);
    else {
        const lanes_constant carry = lanes_constant_residue(mod_reduce128((uint128)1 << 50, m), m, &p);
        convert_many(to, y, hat, count, n, &carry, &p);
    }
    vector_forward_f64_avx2(out, to, count <= FEW_SOURCES ? 0.55 * count : 0.501, ntt, store);
}

#endif

void ISA(cpu_mod_up)(const void *arguments) {
    const kernel_mod_up_args *args = arguments;
    const ckks_context *context = device_tables_context(args->tables);
    const ckks_params *params = context_params(context);
    const uint32_t n = params_n(params), limbs = args->a.basis.q_count, level = limbs - 1;
    const uint32_t digit_size = params->digit_size, digits = params_digit_count(params, level);
    const uint32_t limbs_out = limbs + params->p_count;
    const size_t a_batch = (size_t)args->a_batch_stride * n;
    source_word *scratch = (source_word *)(void *)args->scratch;

#pragma omp parallel for collapse(2)                                                                         \
    schedule(dynamic) if ((size_t)args->batch_count * limbs * n >= TEAM_WORDS_HEAVY)
    for (uint32_t b = 0; b < args->batch_count; b++)
        for (uint32_t i = 0; i < limbs; i++)
            source_limb(scratch + ((size_t)b * limbs + i) * n, poly_limb(&args->a, 0, i, n) + b * a_batch,
                        context_mod_up(context, level, i / digit_size), i % digit_size, context);

#pragma omp parallel for collapse(3)                                                                         \
    schedule(dynamic) if ((size_t)args->batch_count * digits * limbs_out * n >= TEAM_WORDS_HEAVY)
    for (uint32_t b = 0; b < args->batch_count; b++)
        for (uint32_t d = 0; d < digits; d++)
            for (uint32_t j = 0; j < limbs_out; j++) {
                const kernel_basis basis = {0, limbs, params->p_count};
                uint64_t *out = args->out + (((size_t)b * digits + d) * limbs_out + j) * n;
                if (j < limbs && j / digit_size == d)
                    memcpy(out, poly_limb(&args->a, 0, j, n) + b * a_batch, (size_t)n * sizeof *out);
                else
                    convert_limb(out, scratch + ((size_t)b * limbs + (size_t)d * digit_size) * n,
                                 context_mod_up(context, level, d), context,
                                 basis_prime(basis, j, params->q_count), NULL);
            }
}

/* ---- key product ---- */

/* What every limb of one launch shares. */
typedef struct product_shape {
    const kernel_key_product_args *args;
    const ckks_context *context;
    uint32_t n, log_n, q_limbs, p_limbs, digits;
    lanes_turns turns;
} product_shape;

/* One limb of one launch. */
typedef struct product_limb {
    lanes_prime p;
    sum_shape sums;
    lanes_constant p_product;
    uint32_t limb;
} product_limb;

/* the words of digit 0, component 0, one limb of a key; NULL if the key cannot serve this launch. Where p
 * follows q depends on the key's level, not on the launch's. A digit has two components. */
static const uint64_t *key_limb(const product_shape *shape, uint32_t key, uint32_t limb,
                                size_t *component_words) {
    if (key >= shape->args->key_count) return NULL;
    const key_table_entry *entry = &shape->args->keys[key];
    if (!entry->address || entry->q_limb_count < shape->q_limbs) return NULL;
    const size_t key_limbs = (size_t)entry->q_limb_count + shape->p_limbs;
    const size_t at = limb < shape->q_limbs ? limb : entry->q_limb_count + (limb - shape->q_limbs);
    *component_words = key_limbs * shape->n;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): a device address, as the key table holds it
    return (const uint64_t *)(uintptr_t)entry->address + at * shape->n;
}

static void add_scaled(pair_block *block, const product_limb *l, const block_turn *turn,
                       const uint64_t *add) {
    const lanes_prime p = l->p;
    for (uint32_t v = 0; v < BLOCK_VECTORS; v++) {
        double *at = block->at[0] + v * LANES;
        const f64 product =
            f64_multiply_constant(f64_from_word(block_turn_load(turn, add, v)), l->p_product, &p);
        f64_store(at, f64_reduce(f64_add(f64_load(at), product), &p));
    }
}

static void add_item(pair_block *block, const product_shape *shape, const product_limb *l,
                     const key_product_item *item, uint32_t index) {
    const kernel_key_product_args *args = shape->args;
    const size_t n = shape->n, limbs = shape->q_limbs + shape->p_limbs;
    size_t component = 0;
    const uint64_t *key = key_limb(shape, item->key, l->limb, &component);
    block_turn turn;
    block_turn_fill(&turn, &shape->turns, shape->log_n, item->galois_element, index);
    if (key) {
        key += (size_t)index * PERMUTE_BLOCK;
        const uint64_t *digit =
            args->digits + ((size_t)item->digits * shape->digits * limbs + l->limb) * n + turn.from;
        pair_term term[CKKS_PRIMES_MAX];
        for (uint32_t d = 0; d < shape->digits; d++)
            term[d] =
                (pair_term){digit + d * limbs * n, key + 2 * d * component, key + (2 * d + 1) * component};
        pair_sum(block, term, shape->digits, &turn, &l->sums, &l->p);
    }
    if (args->add && l->limb < shape->q_limbs)
        add_scaled(block, l, &turn,
                   args->add + ((size_t)item->digits * args->add_stride + l->limb) * n + turn.from);
}

static void product_out(const product_shape *shape, uint32_t out_index, uint32_t limb) {
    const kernel_key_product_args *args = shape->args;
    const uint32_t limbs = shape->q_limbs + shape->p_limbs;
    const kernel_basis basis = {0, shape->q_limbs, shape->p_limbs};
    const uint32_t prime = basis_prime(basis, limb, context_params(shape->context)->q_count);
    const modulus *m = &context_ntt(shape->context, prime)->m;
    uint64_t p_product = 0, p_shoup = 0;
    context_p_product(shape->context, prime, &p_product, &p_shoup);
    product_limb l = {.p = lanes_prime_of(m), .limb = limb};
    l.sums = sum_shape_of(m, &l.p);
    l.p_product = lanes_constant_residue(p_product, m, &l.p);
    uint64_t *out = args->out + ((size_t)out_index * 2 * limbs + limb) * shape->n;
    for (uint32_t index = 0; index < shape->n / PERMUTE_BLOCK; index++, out += PERMUTE_BLOCK) {
        pair_block block;
        memset(block.at, 0, sizeof block.at);
        if (!args->items) {
            const key_product_item item = {out_index, args->uniform.key, args->uniform.galois_element,
                                           out_index};
            add_item(&block, shape, &l, &item, index);
        } else {
            for (uint32_t t = 0; t < args->item_count; t++)
                if (args->items[t].out_index == out_index)
                    add_item(&block, shape, &l, &args->items[t], index);
        }
        pair_store(out, block.at[0], &l.p);
        pair_store(out + (size_t)limbs * shape->n, block.at[1], &l.p);
    }
}

void ISA(cpu_key_product)(const void *arguments) {
    const kernel_key_product_args *args = arguments;
    const ckks_context *context = device_tables_context(args->tables);
    const ckks_params *params = context_params(context);
    product_shape shape = {
        .args = args,
        .context = context,
        .n = params_n(params),
        .log_n = params->log_n,
        .q_limbs = args->level + 1,
        .p_limbs = args->is_public ? 0 : params->p_count,
        .digits = args->is_public ? 1 : params_digit_count(params, args->level),
    };
    const uint32_t limbs = shape.q_limbs + shape.p_limbs;
    lanes_turns_fill(&shape.turns);
#pragma omp parallel for collapse(2)                                                                         \
    schedule(dynamic) if ((size_t)args->out_count * limbs * shape.n >= TEAM_WORDS_HEAVY)
    for (uint32_t t = 0; t < args->out_count; t++)
        for (uint32_t j = 0; j < limbs; j++) product_out(&shape, t, j);
}

/* ---- dividing by P, by P * q_l, by q_l ---- */

/* scratch per batch entry and component: the D residues, then one limb per limb of Q for the numerator where
 * something is added to it */
typedef struct down_shape {
    const kernel_mod_down_args *args;
    const ckks_context *context;
    const base_conversion *conversion;
    uint32_t n, level, components, q_count;
    size_t scratch_words;
    lanes_turns turns;
} down_shape;

/* out = a + P * permute_g(add) */
static void add_permuted(uint64_t *out, const uint64_t *a, const uint64_t *add, const down_shape *shape,
                         uint32_t prime) {
    const ntt_table *ntt = context_ntt(shape->context, prime);
    const lanes_prime p = lanes_prime_of(&ntt->m);
    uint64_t product = 0, shoup = 0;
    context_p_product(shape->context, prime, &product, &shoup);
    const lanes_constant factor = lanes_constant_residue(product, &ntt->m, &p);
    for (uint32_t block = 0; block < shape->n / PERMUTE_BLOCK; block++) {
        block_turn turn;
        block_turn_fill(&turn, &shape->turns, ntt->log_n, shape->args->add_galois_element, block);
        for (uint32_t v = 0; v < BLOCK_VECTORS; v++, a += LANES, out += LANES) {
            const f64 x = f64_from_word(block_turn_load(&turn, add + turn.from, v));
            const f64 sum = f64_add(f64_load_words(a), f64_multiply_constant(x, factor, &p));
            w64_store(out, f64_canonical(f64_reduce(sum, &p), &p));
        }
    }
}

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
        add_permuted(y, a, add, shape, prime);
        a = y;
    }
    source_limb((source_word *)(void *)y, a, shape->conversion, source, shape->context);
}

static void down_limb(const down_shape *shape, uint32_t batch, uint32_t component, uint32_t limb) {
    const kernel_mod_down_args *args = shape->args;
    const base_conversion *conversion = shape->conversion;
    const uint32_t n = shape->n;
    uint64_t *scratch = down_scratch(shape, batch, component);
    uint64_t *out = poly_limb(&args->out, component, limb, n) + (size_t)batch * args->out_batch_stride * n;
    const uint64_t *a = poly_limb(&args->a, component, limb, n) + (size_t)batch * args->a_batch_stride * n;
    const uint64_t *add = down_add(shape, batch, component, limb);
    if (add) {
        uint64_t *sum = scratch + ((size_t)conversion->source_count + limb) * n;
        add_permuted(sum, a, add, shape, limb);
        a = sum;
    }
    const forward_store store = {a, conversion->product_inverse[limb]};
    convert_limb(out, (const source_word *)(const void *)scratch, conversion, shape->context, limb, &store);
}

void ISA(cpu_mod_down)(const void *arguments) {
    const kernel_mod_down_args *args = arguments;
    const ckks_context *context = device_tables_context(args->tables);
    const ckks_params *params = context_params(context);
    const uint32_t level = args->a.basis.q_count - 1;
    down_shape shape = {
        .args = args,
        .context = context,
        .conversion = context_mod_down(context, level, args->with_rescale != 0),
        .n = params_n(params),
        .level = level,
        .components = args->out.component_count,
        .q_count = params->q_count,
        .scratch_words = ((size_t)params->p_count + 2 * ((size_t)level + 1)) * params_n(params),
    };
    const uint32_t limbs_out = level + (args->with_rescale ? 0 : 1);
    lanes_turns_fill(&shape.turns);
#pragma omp parallel for collapse(3) schedule(dynamic) if ((size_t)args->batch_count * shape.components *    \
                                                               shape.conversion->source_count * shape.n >=   \
                                                           TEAM_WORDS_HEAVY)
    for (uint32_t b = 0; b < args->batch_count; b++)
        for (uint32_t c = 0; c < shape.components; c++)
            for (uint32_t i = 0; i < shape.conversion->source_count; i++) down_source(&shape, b, c, i);
#pragma omp parallel for collapse(3) schedule(                                                               \
    dynamic) if ((size_t)args->batch_count * shape.components * limbs_out * shape.n >= TEAM_WORDS_HEAVY)
    for (uint32_t b = 0; b < args->batch_count; b++)
        for (uint32_t c = 0; c < shape.components; c++)
            for (uint32_t j = 0; j < limbs_out; j++) down_limb(&shape, b, c, j);
}

void ISA(cpu_rescale)(const void *arguments) {
    const kernel_rescale_args *args = arguments;
    const ckks_context *context = device_tables_context(args->tables);
    const uint32_t n = params_n(context_params(context));
    const uint32_t level = args->a.basis.q_count - 1, components = args->a.component_count;
    const base_conversion *conversion = context_rescale(context, level);
    source_word *scratch = (source_word *)(void *)args->scratch;
#pragma omp parallel for schedule(dynamic) if ((size_t)components * n >= TEAM_WORDS_HEAVY)
    for (uint32_t c = 0; c < components; c++)
        source_limb(scratch + (size_t)c * n, poly_limb(&args->a, c, level, n), conversion, 0, context);
#pragma omp parallel for collapse(2) schedule(dynamic) if ((size_t)components * level * n >= TEAM_WORDS_HEAVY)
    for (uint32_t c = 0; c < components; c++)
        for (uint32_t j = 0; j < level; j++) {
            const forward_store store = {poly_limb(&args->a, c, j, n), conversion->product_inverse[j]};
            convert_limb(poly_limb(&args->out, c, j, n), scratch + (size_t)c * n, conversion, context, j,
                         &store);
        }
}
