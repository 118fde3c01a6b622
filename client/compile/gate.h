/*
 * Activations that exporters take apart: x * Sigmoid(x), x * (1 + Erf(x / sqrt 2)) / 2, x * Clip(x + 3, 0, 6)
 * / 6, x * Tanh(Softplus(x)) and their many spellings.
 */
#ifndef CKKS_COMPILE_GATE_H
#define CKKS_COMPILE_GATE_H

#include "client/compile/ir.h"

/* outer * f(inner * x) */
typedef struct gate {
    uint32_t from; /* node of x */
    ir_function function;
    double inner, outer;
} gate;

/* gate_find says whether `made`, a product or a sum about to be appended, is such a function of an earlier
 * node, element by element, whatever operators spell it. It compares values, not spellings: what `made`
 * computes is evaluated over a grid, so that any order of factors and constants is found. */
bool gate_find(gate *out, const ir_graph *g, const ir_node *made);

#endif
