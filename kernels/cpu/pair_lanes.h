/*
 * Two sums of products side by side that share one factor of each term, a block of positions at a time;
 * template, included once per instruction set. Key products share the digit between the key's components,
 * diagonal sums the plaintext between the ciphertext's.
 */
#include "kernels/cpu/permute_lanes.h"
#include "kernels/cpu/sums_lanes.h"

typedef struct pair_term {
    const uint64_t *shared, *a, *b; /* of the block at hand; with a turn, `shared` is its source block */
} pair_term;

typedef struct pair_block {
    _Alignas(64) double at[2][PERMUTE_BLOCK]; /* the sums so far: below q in magnitude */
} pair_block;

ALWAYS void pair_add_term(word_sum *sum0, word_sum *sum1, const pair_term *term, size_t shared_at,
                          const w64 *turn, size_t k) {
    w64 word = w64_load(term->shared + shared_at);
    if (turn) word = w64_permute(word, *turn);
    const term_value shared = term_of(word);
    sum_add(sum0, shared, term_load(term->a + k));
    sum_add(sum1, shared, term_load(term->b + k));
}

/* at most as many terms as a sum takes between folds */
ALWAYS void pair_add(pair_block *block, const pair_term *term, uint32_t count, const block_turn *turn,
                     const sum_shape *shape, const lanes_prime *prime) {
    const lanes_prime p = *prime;
    const sum_shape s = *shape;
    for (uint32_t v = 0; v < BLOCK_VECTORS; v++) {
        const size_t k = (size_t)v * LANES;
        const size_t from = turn ? turn->at[v] & ~(LANES - 1) : k;
        const w64 *index = turn ? &turn->index[turn->at[v] & (LANES - 1)] : NULL;
        word_sum sum0 = sum_zero(&s), sum1 = sum_zero(&s);
        uint32_t t = 0;
        for (; t + 2 <= count; t += 2) {
            pair_add_term(&sum0, &sum1, term + t, from, index, k);
            pair_add_term(&sum0, &sum1, term + t + 1, from, index, k);
        }
        if (t < count) pair_add_term(&sum0, &sum1, term + t, from, index, k);
        f64_store(block->at[0] + k, sum_fold(&sum0, f64_load(block->at[0] + k), &s, &p));
        f64_store(block->at[1] + k, sum_fold(&sum1, f64_load(block->at[1] + k), &s, &p));
    }
}

/* block += the sums of `count` terms. turn NULL: `shared` is read in place. */
static void pair_sum(pair_block *block, const pair_term *term, uint32_t count, const block_turn *turn,
                     const sum_shape *s, const lanes_prime *p) {
    while (count > 0) {
        const uint32_t some = count < s->terms_max ? count : s->terms_max;
        if (turn)
            pair_add(block, term, some, turn, s, p);
        else
            pair_add(block, term, some, NULL, s, p);
        term += some, count -= some;
    }
}

static void pair_store(uint64_t *out, const double *at, const lanes_prime *prime) {
    const lanes_prime p = *prime;
    for (uint32_t k = 0; k < PERMUTE_BLOCK; k += LANES)
        w64_store(out + k, f64_canonical(f64_load(at + k), &p));
}
