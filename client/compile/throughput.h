/*
 * The throughput layout: one slot per sample, one ciphertext per element, up to N/2 samples at once. A value
 * is a batch of ciphertexts, a linear layer a matrix of whole numbers times the batch: no rotations, so no
 * rotation keys, and since a clear number is no polynomial it costs no level either.
 *
 * Scales have two sizes. Inputs are small, 2^value_bits, and so are results of activations, 2^result_bits; a
 * linear layer multiplies by weights and leaves its result large, 2^(value_bits + weight_bits), which is what
 * products and polynomials want for their rescale: the only levels that are spent. The last layer ends at
 * 2^(result_bits + weight_bits). Weights are rounded to multiples of their scale, so that the plan's own
 * numbers are exact: what rounding changes shows in the clear.
 */
#ifndef CKKS_COMPILE_THROUGHPUT_H
#define CKKS_COMPILE_THROUGHPUT_H

#include "client/compile/emit.h"

#define WEIGHT_BITS_LEAST 6 /* of a layer between activations */

typedef struct throughput_choice {
    uint32_t log_n, value_bits, result_bits, weight_bits;
    bool secret_key_only; /* inputs under the secret key alone: less noise than under the public key */
    uint32_t bits;        /* of all q and p */
    uint64_t cost; /* bits of one ciphertext of a request, for all requests of the batch; half as much again
                      where inputs under the public key are not served */
} throughput_choice;

/* throughput_choices lists what could carry the graph, cheapest first: for batches of `batch` samples, with
 * `security_bits` (0: whatever), at 2^log_n alone unless that is 0. *out is in `memory`. CKKS_UNSUPPORTED
 * naming the node where the layout does not serve; CKKS_INSECURE_PARAMETERS where nothing fits. */
ckks_status throughput_choices(throughput_choice **out, uint32_t *count, const ir_graph *g, uint64_t batch,
                               uint32_t security_bits, uint32_t log_n, arena *memory, ckks_error *err);

/* throughput_graph rewrites a graph so that this layout can carry it: no layer reads a layer, and what layers
 * and products both read is there twice. Scores are the same, but for rounding; *out lives in in->memory and
 * has not been observed. Where nothing is to be done, *is_changed is false and *out is not set. */
ckks_status throughput_graph(ir_graph *out, bool *is_changed, const ir_graph *in, ckks_error *err);

/* throughput_levels: the level that each node's value has, levels[count]; only products and polynomials
 * spend any. throughput_is_large: is the node's value wanted at the large scale?
 * throughput_is_last: is it the scores, and nothing else's operand? */
void throughput_levels(uint32_t *levels, const ir_graph *g);
bool throughput_is_large(const ir_graph *g, uint32_t node);
bool throughput_is_last(const ir_graph *g, uint32_t node);

/* throughput_parameters makes the choice's primes. CKKS_INVALID_ARGUMENT where there are not enough. */
ckks_status throughput_parameters(ckks_params *out, const throughput_choice *choice, const ir_graph *g,
                                  arena *memory, ckks_error *err);

/* program_emit_throughput: `params` of throughput_parameters must outlive the plan. CKKS_PRECISION naming the
 * node whose observed values do not fit. */
ckks_status program_emit_throughput(emitted_program *out, const ir_graph *g, const throughput_choice *choice,
                                    const ckks_params *params, arena *memory, ckks_error *err);

#endif
