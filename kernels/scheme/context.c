/*
 * Tables of one parameter set. Everything is computed once, from the verified primes and roots, into two
 * allocations: transform tables (the bulk: 8 * N words per prime) and conversion constants.
 *
 * Base conversions: a digit that a level cuts short is its own source basis, and is named by its last prime
 * alone; so there are q_count of them in all, as there are of rescales and of merged ModDowns.
 */
#include "kernels/scheme/encoder_roots.h"
#include "kernels/scheme/internal.h"

#include <sodium.h>
#include <stdlib.h>

#define TABLE_WORDS      8u /* per prime and coefficient */
#define CACHE_LINE_WORDS 8u
_Static_assert(sizeof(double) == sizeof(uint64_t), "tables of both lie in one allocation");

struct ckks_context {
    ckks_params params;
    ntt_table ntt[CKKS_PRIMES_MAX];
    uint64_t *ntt_words;
    uint64_t *conversion_words;
    double *roots;
    base_conversion mod_up[CKKS_PRIMES_MAX]; /* by index of the digit's last prime */
    base_conversion mod_down;
    base_conversion mod_down_rescale[CKKS_PRIMES_MAX]; /* by level */
    base_conversion rescale[CKKS_PRIMES_MAX];          /* by level */
    uint64_t p_product[CKKS_PRIMES_MAX], p_product_shoup[CKKS_PRIMES_MAX];
};

/* ---- transform tables ---- */

static void fill_powers(uint64_t *power, uint64_t *shoup, uint64_t root, uint32_t log_n, const modulus *m) {
    const uint64_t root_shoup = mod_shoup(root, m->value);
    uint64_t w = 1;
    for (uint32_t i = 0; i < 1u << log_n; i++) {
        const uint32_t at = bit_reverse(i, log_n);
        power[at] = w;
        shoup[at] = mod_shoup_fast(w, m);
        w = mod_mul_shoup(w, root, root_shoup, m->value);
    }
}

static void fill_centred(double *out, const uint64_t *residue, size_t n, uint64_t q) {
    for (size_t i = 0; i < n; i++)
        out[i] = residue[i] > q >> 1 ? -(double)(q - residue[i]) : (double)residue[i];
}

/* words: 8 * N; a double is as wide as a word */
static void fill_ntt(ntt_table *t, uint64_t *words, const ckks_params *p, uint32_t prime_index) {
    const size_t n = params_n(p);
    t->m = modulus_create(p->prime[prime_index]);
    t->log_n = p->log_n;
    t->n_inverse = mod_inverse(n, &t->m);
    t->n_inverse_shoup = mod_shoup(t->n_inverse, t->m.value);
    t->forward = words, t->forward_shoup = words + n;
    t->inverse = words + 2 * n, t->inverse_shoup = words + 3 * n;
    fill_powers(words, words + n, p->psi[prime_index], p->log_n, &t->m);
    fill_powers(words + 2 * n, words + 3 * n, mod_inverse(p->psi[prime_index], &t->m), p->log_n, &t->m);
    double *roots = (double *)(void *)(words + 4 * n);
    fill_centred(roots, t->forward, n, t->m.value);
    fill_centred(roots + n, t->inverse, n, t->m.value);
    t->forward_f64 = roots, t->inverse_f64 = roots + n;
    uint64_t *shoup52 = words + 6 * n;
    for (size_t i = 0; i < n; i++)
        shoup52[i] = t->forward_shoup[i] >> 12, shoup52[n + i] = t->inverse_shoup[i] >> 12;
    t->forward_shoup52 = shoup52, t->inverse_shoup52 = shoup52 + n;
}

/* ---- base conversions ---- */

/* words of one conversion: hat, product, product_inverse and its Shoup quotients */
static size_t conversion_size(uint32_t source_count, uint32_t prime_count) {
    return ((size_t)source_count + 3) * prime_count;
}

static uint64_t product_except(const base_conversion *c, const ckks_params *p, uint32_t except,
                               const modulus *m) {
    uint64_t product = 1;
    for (uint32_t i = 0; i < c->source_count; i++)
        if (i != except) product = mod_mul(product, mod_reduce128(p->prime[c->source[i]], m), m);
    return product;
}

/* fill_conversion: c->source is set; takes conversion_size words from *words. */
static void fill_conversion(base_conversion *c, uint64_t **words, const ckks_context *context) {
    const ckks_params *p = &context->params;
    const uint32_t prime_count = params_prime_count(p), none = UINT32_MAX;
    uint64_t *hat = *words, *product = hat + (size_t)c->source_count * prime_count;
    uint64_t *inverse = product + prime_count, *inverse_shoup = inverse + prime_count;
    *words += conversion_size(c->source_count, prime_count);
    for (uint32_t i = 0; i < c->source_count; i++) {
        const modulus *m = &context->ntt[c->source[i]].m;
        c->hat_inverse[i] = mod_inverse(product_except(c, p, i, m), m);
        c->hat_inverse_shoup[i] = mod_shoup(c->hat_inverse[i], m->value);
    }
    for (uint32_t j = 0; j < prime_count; j++) {
        const modulus *m = &context->ntt[j].m;
        for (uint32_t i = 0; i < c->source_count; i++)
            hat[(size_t)i * prime_count + j] = product_except(c, p, i, m);
        product[j] = product_except(c, p, none, m);
        inverse[j] = product[j] ? mod_inverse(product[j], m) : 0;
        inverse_shoup[j] = mod_shoup(inverse[j], m->value);
    }
    c->hat = hat, c->product = product;
    c->product_inverse = inverse, c->product_inverse_shoup = inverse_shoup;
}

static void set_sources(ckks_context *x) {
    const ckks_params *p = &x->params;
    for (uint32_t last = 0; last < p->q_count; last++) {
        base_conversion *up = &x->mod_up[last], *down = &x->mod_down_rescale[last];
        for (uint32_t i = last / p->digit_size * p->digit_size; i <= last; i++)
            up->source[up->source_count++] = i;
        for (uint32_t i = 0; i < p->p_count; i++) down->source[down->source_count++] = p->q_count + i;
        down->source[down->source_count++] = last;
        x->rescale[last].source[x->rescale[last].source_count++] = last;
    }
    for (uint32_t i = 0; i < p->p_count; i++) x->mod_down.source[x->mod_down.source_count++] = p->q_count + i;
}

static ckks_status fill_conversions(ckks_context *x) {
    const ckks_params *p = &x->params;
    const uint32_t prime_count = params_prime_count(p);
    set_sources(x);
    size_t count = conversion_size(x->mod_down.source_count, prime_count);
    for (uint32_t i = 0; i < p->q_count; i++)
        count += conversion_size(x->mod_up[i].source_count, prime_count) +
                 conversion_size(x->mod_down_rescale[i].source_count, prime_count) +
                 conversion_size(x->rescale[i].source_count, prime_count);
    CKKS_ASSERT(count > 0);
    uint64_t *at = x->conversion_words = malloc(count * sizeof *at);
    if (!at) return CKKS_RESOURCE_EXHAUSTED;
    fill_conversion(&x->mod_down, &at, x);
    for (uint32_t i = 0; i < p->q_count; i++) {
        fill_conversion(&x->mod_up[i], &at, x);
        fill_conversion(&x->mod_down_rescale[i], &at, x);
        fill_conversion(&x->rescale[i], &at, x);
    }
    for (uint32_t j = 0; j < prime_count; j++) {
        x->p_product[j] = x->mod_down.product[j];
        x->p_product_shoup[j] = mod_shoup(x->p_product[j], p->prime[j]);
    }
    return CKKS_OK;
}

/* ---- life ---- */

ckks_status context_create(ckks_context **out, const ckks_params *params, ckks_error *err) {
    ckks_status rc = CKKS_RESOURCE_EXHAUSTED;
    const size_t n = params_n(params);
    const int prime_count = (int)params_prime_count(params);
    *out = NULL;
    if (sodium_init() < 0) return ckks_error_set(err, CKKS_INTERNAL, "", "libsodium does not start");
    ckks_context *x = calloc(1, sizeof *x);
    if (!x) goto out;
    x->params = *params;
    x->ntt_words = malloc(((size_t)prime_count * TABLE_WORDS * n + CACHE_LINE_WORDS) * sizeof *x->ntt_words);
    if (!x->ntt_words) goto out;
    /* vectors of roots do not straddle cache lines */
    uint64_t *tables =
        x->ntt_words + (-((uintptr_t)x->ntt_words / sizeof(uint64_t)) & (CACHE_LINE_WORDS - 1));
#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < prime_count; i++)
        fill_ntt(&x->ntt[i], tables + (size_t)i * TABLE_WORDS * n, params, (uint32_t)i);
    if ((rc = fill_conversions(x)) != CKKS_OK) goto out;
    if ((rc = encoder_roots_create(&x->roots, params->log_n)) != CKKS_OK) goto out;
    *out = x, x = NULL;
out:
    context_destroy(x);
    if (rc != CKKS_OK)
        ckks_error_set(err, rc, "context", "no memory for the tables of N = 2^%u", params->log_n);
    return rc;
}

void context_destroy(ckks_context *context) {
    if (!context) return;
    free(context->ntt_words);
    free(context->conversion_words);
    free(context->roots);
    free(context);
}

/* ---- access: an index out of range is our own mistake ---- */

const ckks_params *context_params(const ckks_context *context) {
    return &context->params;
}

const ntt_table *context_ntt(const ckks_context *context, uint32_t prime_index) {
    CKKS_ASSERT(prime_index < params_prime_count(&context->params));
    return &context->ntt[prime_index];
}

const base_conversion *context_mod_up(const ckks_context *context, uint32_t level, uint32_t digit) {
    const uint32_t size = context->params.digit_size, end = (digit + 1) * size;
    CKKS_ASSERT(level < context->params.q_count && digit <= level / size);
    return &context->mod_up[end <= level + 1 ? end - 1 : level];
}

const base_conversion *context_mod_down(const ckks_context *context, uint32_t level, bool with_rescale) {
    CKKS_ASSERT(level < context->params.q_count);
    return with_rescale ? &context->mod_down_rescale[level] : &context->mod_down;
}

const base_conversion *context_rescale(const ckks_context *context, uint32_t level) {
    CKKS_ASSERT(level < context->params.q_count);
    return &context->rescale[level];
}

void context_p_product(const ckks_context *context, uint32_t prime_index, uint64_t *value, uint64_t *shoup) {
    CKKS_ASSERT(prime_index < params_prime_count(&context->params));
    *value = context->p_product[prime_index];
    *shoup = context->p_product_shoup[prime_index];
}

const double *context_encoder_roots(const ckks_context *context) {
    return context->roots;
}
