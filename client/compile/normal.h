/*
 * Normalisations by a row's own statistics, as one operator writes them (op_normalise.c) or as many do
 * (normal_find.c).
 */
#ifndef CKKS_COMPILE_NORMAL_H
#define CKKS_COMPILE_NORMAL_H

#include "client/compile/groups.h"

typedef struct normal {
    groups groups;
    double *scale, *bias; /* [element_count] */
    bool is_centred;      /* the mean is taken away first */
    bool takes_sizes;     /* divided by a sum of sizes, not by the root of a sum of squares */
    double share;         /* of one element in the sum */
    double epsilon;       /* added to the sum */
    double outside;       /* added to the root; far below what a polynomial resolves */
} normal;

/* normal_append: output 0 of `node` = node `from`, normalised. */
ckks_status normal_append(lowering *l, const model_node *node, const normal *n, uint32_t from,
                          ckks_error *err);

/* normal_find fills l->normals: which values are another one, less its mean and over its deviation, scaled
 * and moved, whatever operators spell that. It compares values, not spellings, since mean(x^2) - mean(x)^2
 * and x / s - m / s take two levels more than what they mean. */
ckks_status normal_find(lowering *l, ckks_error *err);
/* normal_lower_found: output 0 of `node` as normal_find understood it; *is_done is false where there is
 * nothing found, or what it is made of is not encrypted. */
ckks_status normal_lower_found(bool *is_done, lowering *l, const model_node *node, ckks_error *err);

#endif
