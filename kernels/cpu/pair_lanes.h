/*
 * Two sums of products side by side that share one factor of each term, a block of positions at a time;
 * template, included once per instruction set. Key products share the digit between the key's components,
 * diagonal sums the plaintext between the ciphertext's.
 *
 * The streams of a term lie a multiple of the ring's bytes apart, so the same position of all of them falls
 * into the same set of every cache: more streams side by side than a set has ways (8 is common) throw each
 * other out. So at most two terms (six streams) are read together, and running sums wait in a block of their
 * own, in the first-level cache, for the next two.
 */
#include "kernels/cpu/permute_lanes.h"
#include "kernels/cpu/sums_lanes.h"

typedef struct pair_term {
    const uint64_t *shared, *a, *b; /* of the block at hand; with a turn, `shared` is its source block */
} pair_term;

typedef struct pair_block {
    _Alignas(64) double at[2][PERMUTE_BLOCK]; /* what has been folded: below q in magnitude */
    word_sum running[2][BLOCK_VECTORS];
} pair_block;

#define TERMS_AT_ONCE 2u

/* begins: running sums start at zero; ends: they are folded */
ALWAYS void pair_add(pair_block *block, const pair_term *term, uint32_t count, const block_turn *turn,
                     bool begins, bool ends, const sum_shape *shape, const lanes_prime *prime) {
    const lanes_prime p = *prime;
    const sum_shape s = *shape;
    for (uint32_t v = 0; v < BLOCK_VECTORS; v++) {
        word_sum sum0 = begins ? sum_zero() : block->running[0][v];
        word_sum sum1 = begins ? sum_zero() : block->running[1][v];
        for (uint32_t t = 0; t < count; t++) {
            const w64 word =
                turn ? block_turn_load(turn, term[t].shared, v) : w64_load(term[t].shared + v * LANES);
            const term_value shared = term_of(word);
            sum_add(&sum0, shared, term_load(term[t].a + v * LANES));
            sum_add(&sum1, shared, term_load(term[t].b + v * LANES));
        }
        if (ends) {
            double *at0 = block->at[0] + v * LANES, *at1 = block->at[1] + v * LANES;
            f64_store(at0, sum_fold(&sum0, f64_load(at0), &s, &p));
            f64_store(at1, sum_fold(&sum1, f64_load(at1), &s, &p));
        } else {
            block->running[0][v] = sum0, block->running[1][v] = sum1;
        }
    }
}

ALWAYS void pair_add_some(pair_block *block, const pair_term *term, uint32_t count, const block_turn *turn,
                          bool begins, bool ends, const sum_shape *s, const lanes_prime *p) {
    if (count == 2 && begins && ends)
        pair_add(block, term, 2, turn, true, true, s, p);
    else if (count == 2 && begins)
        pair_add(block, term, 2, turn, true, false, s, p);
    else if (count == 2 && ends)
        pair_add(block, term, 2, turn, false, true, s, p);
    else if (count == 2)
        pair_add(block, term, 2, turn, false, false, s, p);
    else /* one term is the last one */
        pair_add(block, term, 1, turn, begins, true, s, p);
}

/* block += the sums of `count` terms. turn NULL: `shared` is read in place. */
static void pair_sum(pair_block *block, const pair_term *term, uint32_t count, const block_turn *turn,
                     const sum_shape *s, const lanes_prime *p) {
    _Static_assert(TERMS_AT_ONCE == 2, "one term is the last one");
    uint32_t running = 0; /* terms not folded yet */
    for (uint32_t t = 0; t < count;) {
        const uint32_t some = count - t < TERMS_AT_ONCE ? count - t : TERMS_AT_ONCE;
        const bool ends = t + some == count || running + some + TERMS_AT_ONCE > s->terms_max;
        if (turn)
            pair_add_some(block, term + t, some, turn, running == 0, ends, s, p);
        else
            pair_add_some(block, term + t, some, NULL, running == 0, ends, s, p);
        running = ends ? 0 : running + some;
        t += some;
    }
}

static void pair_store(uint64_t *out, const double *at, const lanes_prime *prime) {
    const lanes_prime p = *prime;
    for (uint32_t k = 0; k < PERMUTE_BLOCK; k += LANES)
        w64_store(out + k, f64_canonical(f64_load(at + k), &p));
}
