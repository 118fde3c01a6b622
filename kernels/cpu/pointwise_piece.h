/*
 * How launches that work position by position are cut up: pieces of one limb and BLOCK positions, so that
 * even one limb keeps a team busy; a piece does all components, reading every operand of a position before it
 * writes it: so the output may be an input.
 */
#ifndef CKKS_CPU_POINTWISE_PIECE_H
#define CKKS_CPU_POINTWISE_PIECE_H

#include "kernels/cpu/kernels_cpu.h"
#include "kernels/cpu/team.h"

#include <string.h>

#define BLOCK 1024u
_Static_assert((1u << CKKS_LOG_N_MIN) % BLOCK == 0, "blocks tile a limb");

/* One piece of a launch: `limb` of the output, positions begin .. begin + BLOCK - 1. */
typedef struct piece {
    const modulus *m;
    uint32_t limb, begin, n;
} piece;

static inline piece piece_at(const device_tables *tables, kernel_basis basis, uint32_t index) {
    const uint32_t n = tables_n(tables), per_limb = n / BLOCK, limb = index / per_limb;
    return (piece){&tables_ntt(tables, basis, limb)->m, limb, index % per_limb * BLOCK, n};
}
static inline uint32_t piece_count(const device_tables *tables, kernel_basis basis) {
    return basis_limb_count(basis) * (tables_n(tables) / BLOCK);
}

/* pieces_each: run(arguments, piece) for every piece of a launch, on the team if there are enough */
typedef void (*piece_task)(const void *arguments, const piece *p);

typedef struct piece_launch {
    const device_tables *tables;
    kernel_basis basis;
    piece_task run;
    const void *arguments;
} piece_launch;

static inline void piece_run(const void *context, uint32_t task) {
    const piece_launch *launch = context;
    const piece p = piece_at(launch->tables, launch->basis, task);
    launch->run(launch->arguments, &p);
}
static inline void pieces_each(const device_tables *tables, kernel_basis basis, piece_task run,
                               const void *arguments) {
    const piece_launch launch = {tables, basis, run, arguments};
    const uint32_t count = piece_count(tables, basis);
    team_each(count, count * (size_t)BLOCK >= TEAM_WORDS_LIGHT, piece_run, &launch);
}

static inline uint64_t *words_out(const kernel_poly *out, uint32_t component, const piece *p) {
    return poly_limb(out, component, p->limb, p->n) + p->begin;
}
/* the operand's words of the same prime */
static inline const uint64_t *words_in(const kernel_poly *a, uint32_t component, const kernel_poly *out,
                                       const piece *p) {
    return poly_limb(a, component, basis_find(a->basis, out->basis, p->limb), p->n) + p->begin;
}
/* NULL where the operand lacks the component */
static inline const uint64_t *words_if_any(const kernel_poly *a, uint32_t component, const kernel_poly *out,
                                           const piece *p) {
    return component < a->component_count ? words_in(a, component, out, p) : NULL;
}

/* does ADD_SCALARS add to this component? */
static inline bool scalar_is_for(const kernel_scalars_args *args, uint32_t component) {
    return component == 0 || (args->every != 0 && component % args->every == 0);
}

static inline void copy_block(uint64_t *out, const uint64_t *a) {
    if (out != a) memcpy(out, a, BLOCK * sizeof *out);
}

#endif
