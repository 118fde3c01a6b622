/*
 * Automorphisms a vector at a time: as permute_block.h has it for 256 positions, an aligned vector of
 * positions reads from one aligned vector, permuted inside. Which permutation depends on the Galois element
 * modulo the lanes and on where the first lane reads from: a small table, made at launch.
 */
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/permute_block.h"

#define BLOCK_VECTORS (PERMUTE_BLOCK / LANES)
#define LANES_LOG     (LANES == 8 ? 3u : 2u)

typedef struct lanes_turns {
    w64 index[LANES / 2][LANES]; /* [galois element / 2 mod LANES / 2][lane that lane 0 reads] */
} lanes_turns;

static inline uint32_t reverse_lane(uint32_t lane) {
    return reverse_byte[lane] >> (8 - LANES_LOG);
}

static inline void lanes_turns_fill(lanes_turns *turns) {
    for (uint32_t g = 1; g < LANES; g += 2)
        for (uint32_t first = 0; first < LANES; first++) {
            uint8_t lane[LANES];
            for (uint32_t j = 0; j < LANES; j++)
                lane[j] = (uint8_t)reverse_lane((reverse_lane(first) + g * reverse_lane(j)) % LANES);
            turns->index[g / 2][first] = w64_permute_index(lane);
        }
}

/* One block of positions of in(X^g). */
typedef struct block_turn {
    size_t from;               /* first position of the source block */
    const w64 *index;          /* of this Galois element */
    uint8_t at[BLOCK_VECTORS]; /* position, in the source block, that lane 0 of each vector reads */
} block_turn;

static inline void block_turn_fill(block_turn *turn, const lanes_turns *turns, uint32_t log_n,
                                   uint32_t galois_element, uint32_t block) {
    const uint32_t high_bits = log_n - PERMUTE_BLOCK_BITS;
    const uint32_t exponent =
        ((2 * reverse_bits(block, high_bits) + 1) * galois_element & ((2u << log_n) - 1)) >> 1;
    const uint32_t base = exponent >> high_bits;
    turn->from = (size_t)reverse_bits(exponent & ((1u << high_bits) - 1), high_bits) * PERMUTE_BLOCK;
    turn->index = turns->index[galois_element / 2 % (LANES / 2)];
    for (uint32_t v = 0; v < BLOCK_VECTORS; v++)
        turn->at[v] = reverse_byte[(uint8_t)(base + reverse_byte[v * LANES] * galois_element)];
}

/* vector v of the block; in: the whole limb's source block (limb + turn->from) */
ALWAYS w64 block_turn_load(const block_turn *turn, const uint64_t *in, uint32_t v) {
    const uint32_t at = turn->at[v];
    return w64_permute(w64_load(in + (at & ~(LANES - 1))), turn->index[at & (LANES - 1)]);
}
