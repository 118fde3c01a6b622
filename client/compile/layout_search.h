/*
 * Which slot map each value gets. Values that meet element by element (a product's operands, an activation's
 * input and output) share one; each linear layer chooses among a few: its input's places, a grid with its
 * input's pitch (so that a convolution leaves gaps where it strides), channels in those gaps, dense with more
 * or fewer repetitions. The cheapest together with the layers that read it wins.
 */
#ifndef CKKS_COMPILE_LAYOUT_SEARCH_H
#define CKKS_COMPILE_LAYOUT_SEARCH_H

#include "client/compile/ir.h"
#include "client/compile/layout.h"

/* layout_search fills maps[g->count] (of live nodes) for ciphertexts of slot_count slots; *cost is a measure
 * of the whole in hoisted rotations, each weighted with the limbs it works on. levels as graph_levels gives
 * them. rotations: only read. CKKS_TOO_LARGE if a value would need more than LAYOUT_BLOCKS_MAX ciphertexts.
 */
ckks_status layout_search(slot_map *maps, double *cost, const ir_graph *g, const uint32_t *levels,
                          uint32_t slot_count, const layout_rotations *rotations, arena *memory,
                          ckks_error *err);

#endif
