/*
 * Groups of elements that share a statistic: what normalisations and softmaxes within a row are made of.
 * Every element is in one group, all groups are of one size.
 */
#ifndef CKKS_COMPILE_GROUPS_H
#define CKKS_COMPILE_GROUPS_H

#include "client/compile/operator.h"

typedef struct groups {
    uint32_t element_count, count, run; /* count groups of `run` elements */
    uint32_t *group;                    /* [element_count]: which one an element belongs to */
    uint32_t *member;                   /* [element_count]: elements in the order of groups */
    int64_t dims[TENSOR_RANK_MAX];      /* x's, 1 in the axes within a group */
} groups;

/* groups_by_axes: elements of x that agree in every axis but those of is_within[x->rank] are one group. x has
 * elements. */
ckks_status groups_by_axes(groups *g, const model_node *node, const tensor *x, const bool *is_within,
                           arena *memory, ckks_error *err);
/* groups_by_runs: `run` elements that follow each other; run divides x->count. dims are not set. */
ckks_status groups_by_runs(groups *g, const model_node *node, const tensor *x, uint32_t run, arena *memory,
                           ckks_error *err);

/* Layers of them, appended: one number for each group, share * the sum of its elements + bias[group] (NULL:
 * nothing); each element minus its group's mean; each element's own copy of its group's number, times
 * scale[element] (NULL: 1). */
ckks_status groups_append_sum(uint32_t *out, lowering *l, const model_node *node, const groups *g,
                              uint32_t from, double share, const double *bias, ckks_error *err);
ckks_status groups_append_centred(uint32_t *out, lowering *l, const model_node *node, const groups *g,
                                  uint32_t from, ckks_error *err);
ckks_status groups_append_spread(uint32_t *out, lowering *l, const model_node *node, const groups *g,
                                 uint32_t from, const double *scale, ckks_error *err);
/* groups_softmax appends all but the last node of every group's softmax, made of polynomials, and gives that
 * one to append: a function, or the product of a and b. With is_log the logarithm of it is a - b. */
ckks_status groups_softmax(ir_node *last, lowering *l, const model_node *node, const groups *g, uint32_t from,
                           bool is_log, ckks_error *err);

#endif
