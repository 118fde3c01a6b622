/*
 * Which parameters could carry a graph in the throughput layout: every combination of ring degree and scale
 * sizes within the security table, cheapest first. Whether one keeps the promise, emission and the encrypted
 * check say.
 */
#include "client/compile/throughput.h"

#include "client/compile/calibrate.h"
#include "kernels/evaluator/chebyshev.h"

#include <math.h>
#include <stdlib.h>

#define NO_MEMORY(err) ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for parameters")

#define THROUGHPUT_LEVELS_MAX 20u /* of 50 bits at most: far beyond the security table */
#define LOG_N_FIRST           12u
#define LOG_N_LAST            15u
#define VALUE_BITS_FIRST      14u
#define VALUE_BITS_LAST       40u
/* how much finer than inputs the results of activations may be: their noise is that of rounding */
#define FINER_BITS_MAX    6u
#define WEIGHT_BITS_FIRST 8u
#define WEIGHT_BITS_LAST  20u
#define CHOICES_MAX                                                                                          \
    (2u * (LOG_N_LAST - LOG_N_FIRST + 1) * (VALUE_BITS_LAST - VALUE_BITS_FIRST + 1) * (FINER_BITS_MAX + 1) * \
     (WEIGHT_BITS_LAST - WEIGHT_BITS_FIRST + 1))

void throughput_levels(uint32_t *levels, const ir_graph *g) {
    for (uint32_t i = 0; i < g->count; i++) levels[i] = 0;
    for (uint32_t i = g->count; i-- > 0;) {
        const ir_node *n = &g->nodes[i];
        if (!n->use_count || n->kind == IR_INPUT) continue;
        const uint32_t spent = n->kind == IR_PRODUCT      ? 1
                               : n->kind == IR_POLYNOMIAL ? chebyshev_depth(n->degree)
                                                          : 0;
        const uint32_t wanted = levels[i] + spent;
        for (uint32_t t = 0; t < n->term_count; t++)
            if (levels[n->terms[t].from] < wanted) levels[n->terms[t].from] = wanted;
        if (n->kind == IR_LINEAR) continue;
        if (levels[n->a] < wanted) levels[n->a] = wanted;
        if (n->kind == IR_PRODUCT && levels[n->b] < wanted) levels[n->b] = wanted;
    }
}

bool throughput_is_large(const ir_graph *g, uint32_t node) {
    if (g->nodes[node].kind == IR_LINEAR) return true;
    for (uint32_t i = node + 1; i < g->count; i++) {
        const ir_node *n = &g->nodes[i];
        if (n->use_count && n->kind != IR_LINEAR && (n->a == node || (n->kind == IR_PRODUCT && n->b == node)))
            return true;
    }
    return false;
}

bool throughput_is_last(const ir_graph *g, uint32_t node) {
    return node == g->output && g->nodes[node].use_count == 1;
}

/* ---- the chain ---- */

typedef enum rescale_kind { RESCALE_NONE, RESCALE_SAME, RESCALE_TO_SMALL } rescale_kind;
typedef enum last_scale { LAST_SMALL, LAST_LARGE, LAST_FROM_INPUT, LAST_FROM_RESULT } last_scale;

/* What the activations ask of the primes. */
typedef struct chain {
    uint32_t depth;
    rescale_kind
        kind[THROUGHPUT_LEVELS_MAX + 1]; /* by level: from large to large, or a product to a small scale */
    bool needs_key;                      /* something is relinearised */
    last_scale last;                     /* where the scores end */
    uint32_t head_bits;                  /* of the scores' size, with room */
} chain;

static ckks_status chain_set(chain *c, const ir_node *n, uint32_t level, rescale_kind kind, ckks_error *err) {
    if (level > THROUGHPUT_LEVELS_MAX)
        return ckks_error_set(err, CKKS_UNSUPPORTED, n->source, "more than %u levels of activations",
                              THROUGHPUT_LEVELS_MAX);
    if (c->kind[level] && c->kind[level] != kind)
        return ckks_error_set(err, CKKS_UNSUPPORTED, n->source,
                              "it runs beside an activation that wants another prime: compile this model "
                              "with --layout latency");
    c->kind[level] = kind;
    return CKKS_OK;
}

static ckks_status chain_fill(chain *c, const ir_graph *g, arena *memory, ckks_error *err) {
    uint32_t *levels = arena_take(memory, g->count, sizeof *levels);
    ckks_status rc = CKKS_OK;
    uint32_t product_count = 0;
    *c = (chain){0};
    if (!levels) return NO_MEMORY(err);
    throughput_levels(levels, g);
    c->depth = levels[0];
    for (uint32_t i = 0; i < g->count && rc == CKKS_OK; i++) {
        const ir_node *n = &g->nodes[i];
        if (!n->use_count) continue;
        if (n->kind == IR_PRODUCT) {
            product_count++;
            rc = chain_set(c, n, levels[i] + 1, throughput_is_large(g, i) ? RESCALE_SAME : RESCALE_TO_SMALL,
                           err);
        } else if (n->kind == IR_POLYNOMIAL) {
            c->needs_key = c->needs_key || n->degree > 1;
            const uint32_t depth = chebyshev_depth(n->degree);
            for (uint32_t l = 1; l <= depth && rc == CKKS_OK; l++)
                rc = chain_set(c, n, levels[i] + l, RESCALE_SAME, err);
        }
    }
    /* products that nothing multiplies again may keep their three components, if all do: sums need equals */
    if (c->depth > 1 || product_count > 1) c->needs_key = c->needs_key || product_count > 0;
    const ir_node *scores = &g->nodes[g->output];
    c->last = !throughput_is_large(g, g->output) ? LAST_SMALL : LAST_LARGE;
    if (scores->kind == IR_LINEAR && scores->term_count && throughput_is_last(g, g->output))
        c->last = g->nodes[scores->terms[0].from].kind == IR_INPUT ? LAST_FROM_INPUT : LAST_FROM_RESULT;
    /* a sign, and four times the room for rows beyond the calibrated ones */
    c->head_bits =
        3 + (uint32_t)fmax(0, ceil(log2(fmax(fmax(fabs(scores->minimum), fabs(scores->maximum)), 1))));
    return rc;
}

/* bits of each q and, in *p, of P (0: none is needed) */
static void chain_bits(uint32_t q[THROUGHPUT_LEVELS_MAX + 1], uint32_t *p, const chain *c,
                       const throughput_choice *t) {
    const uint32_t large = t->value_bits + t->weight_bits;
    const uint32_t last[] = {[LAST_SMALL] = t->result_bits,
                             [LAST_LARGE] = large,
                             [LAST_FROM_INPUT] = large,
                             [LAST_FROM_RESULT] = t->result_bits + t->weight_bits};
    q[0] = last[c->last] + c->head_bits;
    *p = q[0];
    for (uint32_t l = 1; l <= c->depth; l++) {
        q[l] = c->kind[l] == RESCALE_TO_SMALL ? 2 * large - t->result_bits : large;
        if (*p < q[l]) *p = q[l];
    }
    if (!c->needs_key) *p = 0;
}

static bool fits(throughput_choice *t, const chain *c, uint32_t limit) {
    uint32_t q[THROUGHPUT_LEVELS_MAX + 1], p;
    chain_bits(q, &p, c, t);
    t->bits = p;
    for (uint32_t l = 0; l <= c->depth; l++) {
        t->bits += q[l];
        if (q[l] < t->log_n + 3 || q[l] > CKKS_PRIME_BITS_MAX) return false;
    }
    return !limit || t->bits <= limit;
}

static int compare_choices(const void *left, const void *right) {
    const throughput_choice *a = left, *b = right;
    if (a->cost != b->cost) return a->cost < b->cost ? -1 : 1;
    if (a->secret_key_only != b->secret_key_only) return a->secret_key_only ? 1 : -1;
    return a->weight_bits < b->weight_bits ? -1 : a->weight_bits > b->weight_bits;
}

ckks_status throughput_choices(throughput_choice **out, uint32_t *count, const ir_graph *g, uint64_t batch,
                               uint32_t security_bits, uint32_t log_n, arena *memory, ckks_error *err) {
    chain c;
    ckks_status rc = chain_fill(&c, g, memory, err);
    if (rc != CKKS_OK) return rc;
    throughput_choice *list = arena_take(memory, CHOICES_MAX, sizeof *list);
    if (!list) return NO_MEMORY(err);
    *out = list, *count = 0;
    for (uint32_t n = log_n ? log_n : LOG_N_FIRST; n <= (log_n ? log_n : LOG_N_LAST); n++) {
        const uint32_t limit = security_bits ? params_log_qp_max(n, security_bits) : 0;
        if (security_bits && !limit) continue;
        const uint64_t samples = UINT64_C(1) << (n - 1),
                       requests = batch ? (batch + samples - 1) / samples : 1;
        for (uint32_t s = VALUE_BITS_FIRST; s <= VALUE_BITS_LAST; s++)
            for (uint32_t w = WEIGHT_BITS_FIRST; w <= WEIGHT_BITS_LAST; w++)
                for (uint32_t finer = 0; finer <= (c.depth ? FINER_BITS_MAX : 0); finer++) {
                    throughput_choice t = {
                        .log_n = n, .value_bits = s, .result_bits = s + finer, .weight_bits = w};
                    if (w - finer < (uint32_t)WEIGHT_BITS_LEAST || !fits(&t, &c, limit)) continue;
                    t.cost = requests * ((uint64_t)t.bits << n);
                    list[(*count)++] = t;
                    t.secret_key_only = true;
                    t.cost = t.cost * 3 / 2; /* what is chosen only where it saves a third */
                    list[(*count)++] = t;
                }
    }
    if (!*count)
        return ckks_error_set(err, CKKS_INSECURE_PARAMETERS, log_n ? "log_n" : "parameters",
                              "no parameter set of the throughput layout carries %u levels of activations at "
                              "%u bits of security",
                              c.depth, security_bits);
    qsort(list, *count, sizeof *list, compare_choices);
    return CKKS_OK;
}

ckks_status throughput_parameters(ckks_params *out, const throughput_choice *choice, const ir_graph *g,
                                  arena *memory, ckks_error *err) {
    chain c;
    uint32_t q[THROUGHPUT_LEVELS_MAX + 1], p;
    const ckks_status rc = chain_fill(&c, g, memory, err);
    if (rc != CKKS_OK) return rc;
    chain_bits(q, &p, &c, choice);
    return params_generate(out, choice->log_n, q, c.depth + 1, &p, p ? 1 : 0, 1, err);
}
