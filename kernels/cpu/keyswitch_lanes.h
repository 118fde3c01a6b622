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
#include "kernels/cpu/team.h"
#if defined(__AVX512IFMA__)
#include "kernels/cpu/permute_lanes.h"
#else
#include "kernels/cpu/pair_lanes.h"
#endif

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

/* words that one core's second cache keeps beside what else it is busy with */
#define CACHE_WORDS ((size_t)1 << 17)

typedef struct up_shape {
    const kernel_mod_up_args *args;
    const ckks_context *context;
    uint32_t n, limbs, digits, digit_size, limbs_out;
    source_word *source; /* [batch][limb][N] */
} up_shape;

static const uint64_t *up_input(const up_shape *s, uint32_t entry, uint32_t limb) {
    return poly_limb(&s->args->a, 0, limb, s->n) + (size_t)entry * s->args->a_batch_stride * s->n;
}

static void up_source_task(const void *context, uint32_t task) {
    const up_shape *s = context;
    const uint32_t entry = task / s->limbs, limb = task % s->limbs;
    source_limb(s->source + (size_t)task * s->n, up_input(s, entry, limb),
                context_mod_up(s->context, s->limbs - 1, limb / s->digit_size), limb % s->digit_size,
                s->context);
}

static void up_limb(const up_shape *s, uint32_t entry, uint32_t digit, uint32_t limb) {
    const ckks_params *params = context_params(s->context);
    const kernel_basis basis = {0, s->limbs, params->p_count};
    uint64_t *out = s->args->out + (((size_t)entry * s->digits + digit) * s->limbs_out + limb) * s->n;
    if (limb < s->limbs && limb / s->digit_size == digit)
        memcpy(out, up_input(s, entry, limb), (size_t)s->n * sizeof *out);
    else
        convert_limb(out, s->source + ((size_t)entry * s->limbs + (size_t)digit * s->digit_size) * s->n,
                     context_mod_up(s->context, s->limbs - 1, digit), s->context,
                     basis_prime(basis, limb, params->q_count), NULL);
}

/* by limb: the roots of one prime serve all digits, where the sources stay in the cache meanwhile */
static void up_limb_task(const void *context, uint32_t task) {
    const up_shape *s = context;
    const uint32_t per_entry = s->digits * s->limbs_out, within = task % per_entry;
    if ((size_t)s->limbs * s->n <= CACHE_WORDS)
        up_limb(s, task / per_entry, within % s->digits, within / s->digits);
    else
        up_limb(s, task / per_entry, within / s->limbs_out, within % s->limbs_out);
}

void ISA(cpu_mod_up)(const void *arguments) {
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
        .source = (source_word *)(void *)args->scratch,
    };
    const uint32_t sources = args->batch_count * limbs,
                   converted = args->batch_count * shape.digits * shape.limbs_out;
    team_each(sources, (size_t)sources * shape.n >= TEAM_WORDS_HEAVY, up_source_task, &shape);
    team_each(converted, (size_t)converted * shape.n >= TEAM_WORDS_HEAVY, up_limb_task, &shape);
}

/* ---- key product ---- */

/* What every limb of one launch shares. */
typedef struct product_shape {
    const ckks_context *context;
    const key_table_entry *keys;
    uint32_t key_count;
    uint32_t n, log_n, q_limbs, p_limbs, digits;
    lanes_turns turns;
} product_shape;

/* One item's part in one limb of one out: sum over digits of permute_g(digit[d]) * key, plus, where they are
 * there, P * permute_g(add[c]). */
typedef struct limb_product {
    uint32_t prime, galois_element;
    uint32_t count; /* digits; 0 = the key is absent */
    const uint64_t *digit[CKKS_PRIMES_MAX];
    const uint64_t *key; /* component c of digit d at key + (2 d + c) * component_words */
    size_t component_words;
    uint32_t residue_bytes; /* of the key's residues: 8, or fewer where they are narrow */
    const uint64_t *add[2];
    bool is_added;        /* to what out holds */
    uint32_t part, parts; /* of the limb's blocks; 0 parts: all of them */
} limb_product;

static uint32_t product_first_block(const limb_product *product, const product_shape *shape) {
    return product->parts ? shape->n / PERMUTE_BLOCK * product->part / product->parts : 0;
}
static uint32_t product_end_block(const limb_product *product, const product_shape *shape) {
    return product->parts ? shape->n / PERMUTE_BLOCK * (product->part + 1) / product->parts
                          : shape->n / PERMUTE_BLOCK;
}

/* Sets what concerns the key; leaves count 0 if the key cannot serve this launch. Where p follows q depends
 * on the key's level, not on the launch's. A digit has two components. */
static void find_key(limb_product *product, const product_shape *shape, uint32_t key, uint32_t limb) {
    if (key >= shape->key_count) return;
    const key_table_entry *entry = &shape->keys[key];
    if (!entry->address || entry->q_limb_count < shape->q_limbs) return;
    if (entry->layout != KEY_WORDS && LANES != 8)
        return; /* no device of this instruction set asks for that */
    const size_t key_limbs = (size_t)entry->q_limb_count + shape->p_limbs;
    const size_t at = limb < shape->q_limbs ? limb : entry->q_limb_count + (limb - shape->q_limbs);
    product->component_words = key_limbs * shape->n;
    product->residue_bytes = entry->layout == KEY_WORDS
                                 ? (uint32_t)sizeof(uint64_t)
                                 : key_residue_bytes(context_ntt(shape->context, product->prime)->m.value);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): a device address, as the key table holds it
    product->key = (const uint64_t *)(uintptr_t)entry->address + at * shape->n;
    product->count = shape->digits;
}

static uint64_t p_product_of(const ckks_context *context, uint32_t prime) {
    uint64_t product = 0, shoup = 0;
    context_p_product(context, prime, &product, &shoup);
    return product;
}

#if LANES == 8

/* what a sum's halves are worth together, below 4q: high * 2^52 + low, high < 2^52 */
ALWAYS w64 fold_words(w64 low, w64 high, w64 carry, w64 carry_quotient, w64 reducer, w64 q_negated) {
    const w64 zero = _mm512_setzero_si512();
    const w64 top = w64_add(high, _mm512_srli_epi64(low, 52));
    const w64 e = _mm512_madd52hi_epu64(zero, top, carry_quotient),
              f = _mm512_madd52hi_epu64(zero, low, reducer);
    const w64 sum = _mm512_madd52lo_epu64(_mm512_madd52lo_epu64(low, top, carry), e, q_negated);
    return _mm512_and_si512(_mm512_madd52lo_epu64(sum, f, q_negated), w64_all(((uint64_t)1 << 52) - 1));
}

/* the next block's lines of a key: twice as many streams as digits are more than the processor's own
 * prefetching follows well. Behind a key's end: an address that is not there is no fault. */
#define PREFETCH(word) _mm_prefetch((const char *)(word), _MM_HINT_T0)
#define TERMS_MAX      14u /* and what was there before: 15 keep the high half below 2^52 */

/* eight residues of a key: byte b of lane l is byte l * residue_bytes + b */
typedef struct narrow_lanes {
    w64 index;
    __mmask64 is_there;
} narrow_lanes;

static narrow_lanes narrow_lanes_of(uint32_t residue_bytes) {
    uint8_t index[64] = {0};
    narrow_lanes lanes = {_mm512_setzero_si512(), 0};
    for (uint32_t i = 0; i < 64; i++) {
        if (i % 8 >= residue_bytes) continue;
        index[i] = (uint8_t)(i / 8 * residue_bytes + i % 8);
        lanes.is_there |= (__mmask64)1 << i;
    }
    lanes.index = _mm512_loadu_si512(index);
    return lanes;
}

/* a narrow load ends at most 32 bytes behind its residues: within the limb's room, 8 bytes a residue */
ALWAYS w64 key_load(const uint8_t *at, const narrow_lanes *lanes, bool is_narrow) {
    const w64 bytes = _mm512_loadu_si512(at);
    return is_narrow ? _mm512_maskz_permutexvar_epi8(lanes->is_there, lanes->index, bytes) : bytes;
}

ALWAYS void run_product_of(uint64_t *out0, uint64_t *out1, const limb_product *product,
                           const product_shape *shape, bool is_narrow) {
    const limb_product in = *product;
    const narrow_lanes lanes = narrow_lanes_of(in.residue_bytes);
    const size_t residue_bytes = is_narrow ? in.residue_bytes : sizeof(uint64_t);
    const size_t component_bytes = in.component_words * sizeof(uint64_t);
    const modulus *m = &context_ntt(shape->context, in.prime)->m;
    const uint64_t carry_word = mod_reduce128((uint128)1 << 52, m);
    const w64 q = w64_all(m->value), q_twice = w64_all(2 * m->value),
              q_negated = w64_all(((uint64_t)1 << 52) - m->value);
    const w64 carry = w64_all(carry_word), carry_quotient = w64_all(mod_shoup_fast(carry_word, m) >> 12);
    const w64 reducer = w64_all(((uint64_t)1 << 52) / m->value),
              factor = w64_all(p_product_of(shape->context, in.prime));
    const uint32_t end_block = product_end_block(product, shape);
    for (uint32_t index = product_first_block(product, shape); index < end_block; index++) {
        const size_t begin = (size_t)index * PERMUTE_BLOCK;
        block_turn turn;
        block_turn_fill(&turn, &shape->turns, shape->log_n, in.galois_element, index);
        for (uint32_t v = 0; v < BLOCK_VECTORS; v++) {
            const size_t to = begin + v * LANES, from = turn.from + (turn.at[v] & ~(LANES - 1));
            const w64 order = turn.index[turn.at[v] & (LANES - 1)];
            w64 low0 = _mm512_setzero_si512(), low1 = low0, high0 = low0, high1 = low0;
            if (in.is_added) low0 = w64_load(out0 + to), low1 = w64_load(out1 + to);
            const uint8_t *key = (const uint8_t *)in.key + to * residue_bytes;
            for (uint32_t d = 0; d < in.count; key += 2 * component_bytes) {
                const w64 x = w64_permute(w64_load(in.digit[d] + from), order);
                const w64 k0 = key_load(key, &lanes, is_narrow),
                          k1 = key_load(key + component_bytes, &lanes, is_narrow);
                PREFETCH(key + PERMUTE_BLOCK * residue_bytes);
                PREFETCH(key + component_bytes + PERMUTE_BLOCK * residue_bytes);
                low0 = _mm512_madd52lo_epu64(low0, x, k0), high0 = _mm512_madd52hi_epu64(high0, x, k0);
                low1 = _mm512_madd52lo_epu64(low1, x, k1), high1 = _mm512_madd52hi_epu64(high1, x, k1);
                if (++d % TERMS_MAX == 0) {
                    low0 = fold_words(low0, high0, carry, carry_quotient, reducer, q_negated);
                    low1 = fold_words(low1, high1, carry, carry_quotient, reducer, q_negated);
                    high0 = high1 = _mm512_setzero_si512();
                }
            }
            if (in.add[0]) {
                const w64 x = w64_permute(w64_load(in.add[0] + from), order);
                low0 = _mm512_madd52lo_epu64(low0, x, factor),
                high0 = _mm512_madd52hi_epu64(high0, x, factor);
            }
            if (in.add[1]) {
                const w64 x = w64_permute(w64_load(in.add[1] + from), order);
                low1 = _mm512_madd52lo_epu64(low1, x, factor),
                high1 = _mm512_madd52hi_epu64(high1, x, factor);
            }
            low0 = fold_words(low0, high0, carry, carry_quotient, reducer, q_negated);
            low1 = fold_words(low1, high1, carry, carry_quotient, reducer, q_negated);
            w64_store(out0 + to, w64_correct(w64_correct(low0, q_twice), q));
            w64_store(out1 + to, w64_correct(w64_correct(low1, q_twice), q));
        }
    }
}

static void run_product(uint64_t *out0, uint64_t *out1, const limb_product *product,
                        const product_shape *shape) {
    if (product->residue_bytes == sizeof(uint64_t))
        run_product_of(out0, out1, product, shape, false);
    else
        run_product_of(out0, out1, product, shape, true);
}

static void narrow_task(const void *context, uint32_t task) {
    const kernel_narrow_key_args *args = context;
    const uint32_t n = tables_n(args->tables), limbs = basis_limb_count(args->key.basis);
    const uint32_t bytes =
        key_residue_bytes(tables_ntt(args->tables, args->key.basis, task % limbs)->m.value);
    uint8_t index[64] = {0};
    for (uint32_t i = 0; i < 8 * bytes; i++) index[i] = (uint8_t)(i / bytes * 8 + i % bytes);
    const w64 order = _mm512_loadu_si512(index);
    const uint64_t *words = poly_limb(&args->key, task / limbs, task % limbs, n);
    uint8_t *out = (uint8_t *)poly_limb(&args->key, task / limbs, task % limbs, n);
    /* a store ends where the next words begin, or before */
    for (uint32_t k = 0; k < n; k += LANES, out += LANES * bytes)
        _mm512_storeu_si512(out, _mm512_maskz_permutexvar_epi8(~(__mmask64)0, order, w64_load(words + k)));
}
void ISA(cpu_narrow_key)(const void *arguments) {
    const kernel_narrow_key_args *args = arguments;
    team_each(args->key.component_count * basis_limb_count(args->key.basis), true, narrow_task, args);
}

#else

static void add_scaled(double *sum, const block_turn *turn, const uint64_t *add, const lanes_constant *factor,
                       const lanes_prime *prime) {
    const lanes_prime p = *prime;
    const lanes_constant c = *factor;
    for (uint32_t v = 0; v < BLOCK_VECTORS; v++, sum += LANES) {
        const f64 product = f64_multiply_constant(f64_from_word(block_turn_load(turn, add, v)), c, &p);
        f64_store(sum, f64_reduce(f64_add(f64_load(sum), product), &p));
    }
}

static void run_product(uint64_t *out0, uint64_t *out1, const limb_product *product,
                        const product_shape *shape) {
    const modulus *m = &context_ntt(shape->context, product->prime)->m;
    const lanes_prime p = lanes_prime_of(m);
    const sum_shape sums = sum_shape_of(m, &p);
    const lanes_constant factor = lanes_constant_residue(p_product_of(shape->context, product->prime), m, &p);
    uint64_t *const out[2] = {out0, out1};
    const uint32_t end_block = product_end_block(product, shape);
    for (uint32_t index = product_first_block(product, shape); index < end_block; index++) {
        const size_t begin = (size_t)index * PERMUTE_BLOCK;
        pair_block block;
        pair_term term[CKKS_PRIMES_MAX];
        block_turn turn;
        block_turn_fill(&turn, &shape->turns, shape->log_n, product->galois_element, index);
        memset(block.at, 0, sizeof block.at);
        if (product->is_added)
            for (uint32_t k = 0; k < PERMUTE_BLOCK; k += LANES) {
                f64_store(block.at[0] + k, f64_load_words(out0 + begin + k));
                f64_store(block.at[1] + k, f64_load_words(out1 + begin + k));
            }
        for (uint32_t d = 0; d < product->count; d++) {
            const uint64_t *key = product->key + 2 * d * product->component_words + begin;
            term[d] = (pair_term){product->digit[d] + turn.from, key, key + product->component_words};
        }
        pair_sum(&block, term, product->count, &turn, &sums, &p);
        for (uint32_t c = 0; c < 2; c++) {
            if (product->add[c]) add_scaled(block.at[c], &turn, product->add[c] + turn.from, &factor, &p);
            pair_store(out[c] + begin, block.at[c], &p);
        }
    }
}

#endif

/* one limb of one out of a launch */
static void product_out(const kernel_key_product_args *args, const product_shape *shape, uint32_t out_index,
                        uint32_t limb) {
    const size_t n = shape->n, limbs = shape->q_limbs + shape->p_limbs;
    const kernel_basis basis = {0, shape->q_limbs, shape->p_limbs};
    const key_product_item uniform = {out_index, args->uniform.key, args->uniform.galois_element, out_index};
    const key_product_item *items = args->items ? args->items : &uniform;
    uint64_t *out = args->out + ((size_t)out_index * 2 * limbs + limb) * n;
    limb_product product = {.prime = basis_prime(basis, limb, context_params(shape->context)->q_count)};
    for (uint32_t t = 0; t < (args->items ? args->item_count : 1); t++) {
        const key_product_item *item = &items[t];
        if (item->out_index != out_index) continue;
        product.galois_element = item->galois_element;
        product.count = 0, product.key = NULL;
        find_key(&product, shape, item->key, limb);
        for (uint32_t d = 0; d < product.count; d++)
            product.digit[d] = args->digits + (((size_t)item->digits * shape->digits + d) * limbs + limb) * n;
        if (args->add && limb < shape->q_limbs)
            product.add[0] = args->add + ((size_t)item->digits * args->add_stride + limb) * n;
        run_product(out, out + limbs * n, &product, shape);
        product.is_added = true;
    }
    if (product.is_added) return;
    memset(out, 0, n * sizeof *out);
    memset(out + limbs * n, 0, n * sizeof *out);
}

typedef struct product_launch {
    const kernel_key_product_args *args;
    const product_shape *shape;
} product_launch;

/* limbs outside: the digits of one stay in the second cache for all outs */
static void product_task(const void *context, uint32_t task) {
    const product_launch *launch = context;
    product_out(launch->args, launch->shape, task % launch->args->out_count, task / launch->args->out_count);
}

void ISA(cpu_key_product)(const void *arguments) {
    const kernel_key_product_args *args = arguments;
    const ckks_context *context = device_tables_context(args->tables);
    const ckks_params *params = context_params(context);
    product_shape shape = {
        .context = context,
        .keys = args->keys,
        .key_count = args->key_count,
        .n = params_n(params),
        .log_n = params->log_n,
        .q_limbs = args->level + 1,
        .p_limbs = args->is_public ? 0 : params->p_count,
        .digits = args->is_public ? 1 : params_digit_count(params, args->level),
    };
    const uint32_t count = args->out_count * (shape.q_limbs + shape.p_limbs);
    const product_launch launch = {args, &shape};
    lanes_turns_fill(&shape.turns);
    team_each(count, (size_t)count * shape.n >= TEAM_WORDS_HEAVY, product_task, &launch);
}

/* ---- dividing by P, by P * q_l, by q_l ---- */

/* scratch per batch entry and component: the D residues, then one limb per limb of Q for the numerator where
 * something is added to it */
typedef struct down_shape {
    const kernel_mod_down_args *args;
    const ckks_context *context;
    const base_conversion *conversion;
    uint32_t n, level, limbs_out, components, q_count;
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
    const forward_store store = {.minuend = a, .factor = conversion->product_inverse[limb]};
    convert_limb(out, (const source_word *)(const void *)scratch, conversion, shape->context, limb, &store);
}

static void down_source_task(const void *context, uint32_t task) {
    const down_shape *s = context;
    const uint32_t part = task / s->conversion->source_count;
    down_source(s, part / s->components, part % s->components, task % s->conversion->source_count);
}

/* of one entry limb by limb: the roots of a prime serve all components */
static void down_limb_task(const void *context, uint32_t task) {
    const down_shape *s = context;
    const uint32_t row = task / s->components;
    down_limb(s, row / s->limbs_out, task % s->components, row % s->limbs_out);
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
        .limbs_out = level + (args->with_rescale ? 0 : 1),
        .components = args->out.component_count,
        .q_count = params->q_count,
        .scratch_words = ((size_t)params->p_count + 2 * ((size_t)level + 1)) * params_n(params),
    };
    const uint32_t parts = args->batch_count * shape.components;
    const uint32_t sources = parts * shape.conversion->source_count, limbs = parts * shape.limbs_out;
    lanes_turns_fill(&shape.turns);
    team_each(sources, (size_t)sources * shape.n >= TEAM_WORDS_HEAVY, down_source_task, &shape);
    team_each(limbs, (size_t)limbs * shape.n >= TEAM_WORDS_HEAVY, down_limb_task, &shape);
}

/* RESCALE, and with `times` that of a product: the dropped limb of the product is made in the scratch, the
 * others as the transforms leave, so that the product is never written. */
typedef struct rescale_shape {
    const ckks_context *context;
    const kernel_poly *out, *a, *times;
    const base_conversion *conversion;
    uint64_t *scratch; /* [component][N] */
    uint32_t n, level;
} rescale_shape;

static void multiply_limb(uint64_t *out, const uint64_t *a, const uint64_t *b, size_t n, const modulus *m) {
    const lanes_prime p = lanes_prime_of(m);
    for (size_t k = 0; k < n; k += LANES) {
        const f64 w = f64_load_words(b + k);
        const f64 product = f64_multiply(f64_load_words(a + k), w, f64_times(w, p.q_inverse), &p);
        w64_store(out + k, f64_canonical(product, &p));
    }
}

static uint64_t *rescale_source(const rescale_shape *s, uint32_t component) {
    return s->scratch + (size_t)component * s->n;
}
static void rescale_source_task(const void *context, uint32_t component) {
    const rescale_shape *s = context;
    uint64_t *y = rescale_source(s, component);
    const uint64_t *a = poly_limb(s->a, component, s->level, s->n);
    if (s->times) {
        multiply_limb(y, a, poly_limb(s->times, 0, s->level, s->n), s->n,
                      &context_ntt(s->context, s->level)->m);
        a = y;
    }
    source_limb((source_word *)(void *)y, a, s->conversion, 0, s->context);
}
static void rescale_limb_task(const void *context, uint32_t task) {
    const rescale_shape *s = context;
    const uint32_t limb = task / s->a->component_count, component = task % s->a->component_count;
    const forward_store store = {.minuend = poly_limb(s->a, component, limb, s->n),
                                 .times = s->times ? poly_limb(s->times, 0, limb, s->n) : NULL,
                                 .factor = s->conversion->product_inverse[limb]};
    convert_limb(poly_limb(s->out, component, limb, s->n),
                 (const source_word *)(const void *)rescale_source(s, component), s->conversion, s->context,
                 limb, &store);
}

static void rescale_all(const device_tables *tables, const kernel_poly *out, const kernel_poly *a,
                        const kernel_poly *times, uint64_t *scratch) {
    const ckks_context *context = device_tables_context(tables);
    const uint32_t level = a->basis.q_count - 1, components = a->component_count;
    const rescale_shape shape = {
        .context = context,
        .out = out,
        .a = a,
        .times = times,
        .conversion = context_rescale(context, level),
        .scratch = scratch,
        .n = params_n(context_params(context)),
        .level = level,
    };
    team_each(components, (size_t)components * shape.n >= TEAM_WORDS_HEAVY, rescale_source_task, &shape);
    team_each(components * level, (size_t)components * level * shape.n >= TEAM_WORDS_HEAVY, rescale_limb_task,
              &shape);
}

void ISA(cpu_rescale)(const void *arguments) {
    const kernel_rescale_args *args = arguments;
    rescale_all(args->tables, &args->out, &args->a, NULL, args->scratch);
}

void ISA(cpu_multiply_rescale)(const void *arguments) {
    const kernel_multiply_rescale_args *args = arguments;
    rescale_all(args->tables, &args->out, &args->a, &args->b, args->scratch);
}
