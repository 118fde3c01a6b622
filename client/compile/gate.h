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

/* gate_sample fills y[count] with what `made`, about to be appended, is where node `from` is x[i]. False: it
 * is no function of `from` alone, element by element. */
bool gate_sample(double *y, const ir_graph *g, const ir_node *made, uint32_t from, const double *x,
                 uint32_t count);
/* gate_step: is node *from made of one other node by a factor and an offset, the same for all elements? Then
 * that is *from, and *from was factor * it + offset. */
bool gate_step(uint32_t *from, double *factor, double *offset, const ir_graph *g);

#endif
