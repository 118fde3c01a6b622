#include "client/compile/layout.h"

#include <math.h>

#define GIANT_COST 4.0
#define KEY_COST   0.25

#define NO_MEMORY(err) ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for diagonals")

uint32_t layout_period(uint32_t element_count) {
    uint32_t period = 1;
    while (period < element_count) period *= 2;
    return period;
}

ckks_status layout_create(layout_matrix *out, const sparse *m, arena *memory, ckks_error *err) {
    const uint32_t r = layout_period(m->row_count), c = layout_period(m->column_count);
    const uint32_t narrow = r < c ? r : c;
    double **table = arena_take(memory, narrow, sizeof *table);
    if (!table) return NO_MEMORY(err);
    *out = (layout_matrix){.slot_count = r < c ? c : r, .fold_from = c, .fold_to = r < c ? r : c};
    for (uint32_t i = 0; i < m->row_count; i++)
        for (uint32_t e = m->row_start[i]; e < m->row_start[i + 1]; e++) {
            if (m->value[e] == 0) continue;
            const uint32_t column = m->column[e];
            const uint32_t step = (column - i) & (narrow - 1);
            const uint32_t slot = r < c ? (column - step) & (c - 1) : i;
            if (!table[step] && !(table[step] = arena_take(memory, out->slot_count, sizeof **table)))
                return NO_MEMORY(err);
            table[step][slot] += m->value[e];
        }
    for (uint32_t k = 0; k < narrow; k++) out->count += table[k] != NULL;
    if (!out->count) {
        if (!(table[0] = arena_take(memory, out->slot_count, sizeof **table))) return NO_MEMORY(err);
        out->count = 1;
    }
    out->diagonals = arena_take(memory, out->count, sizeof *out->diagonals);
    if (!out->diagonals) return NO_MEMORY(err);
    uint32_t at = 0;
    for (uint32_t k = 0; k < narrow; k++)
        if (table[k]) out->diagonals[at++] = (layout_diagonal){k, table[k]};
    return CKKS_OK;
}

/* marks which babies (below stride) and giants (by multiple) occur; mark[] is zeroed by the caller */
static void mark_steps(uint8_t *baby, uint8_t *giant, const layout_matrix *m, uint32_t stride) {
    for (uint32_t d = 0; d < m->count; d++) {
        baby[m->diagonals[d].step % stride] = 1;
        giant[m->diagonals[d].step / stride] = 1;
    }
}

static double split_cost(const uint8_t *baby, const uint8_t *giant, uint32_t stride, uint32_t span,
                         const layout_rotations *rotations) {
    double cost = 0;
    for (uint32_t b = 1; b < stride; b++)
        if (baby[b]) cost += 1.0 + (rotations->is_used[b] ? 0 : KEY_COST);
    for (uint32_t g = 1; g * stride < span; g++)
        if (giant[g]) cost += GIANT_COST + (rotations->is_used[g * stride] ? 0 : KEY_COST);
    return cost;
}

static ckks_status list_steps(uint32_t **out, uint32_t *count, const uint8_t *mark, uint32_t mark_count,
                              uint32_t factor, layout_rotations *rotations, arena *memory, ckks_error *err) {
    *count = 0;
    for (uint32_t i = 0; i < mark_count; i++) *count += mark[i];
    if (!(*out = arena_take(memory, *count, sizeof **out))) return NO_MEMORY(err);
    uint32_t at = 0;
    for (uint32_t i = 0; i < mark_count; i++) {
        if (!mark[i]) continue;
        (*out)[at++] = i * factor;
        rotations->is_used[i * factor] = 1;
    }
    return CKKS_OK;
}

ckks_status layout_choose_split(layout_split *out, const layout_matrix *m, layout_rotations *rotations,
                                arena *memory, ckks_error *err) {
    arena scratch = {0};
    ckks_status rc = CKKS_OK;
    const uint32_t span = m->diagonals[m->count - 1].step + 1;
    uint32_t best = 1;
    double best_cost = INFINITY;
    uint8_t *baby, *giant;
    CKKS_ASSERT(span <= rotations->capacity);
    for (uint32_t stride = 1; stride < 2 * span; stride *= 2) {
        arena_reset(&scratch);
        baby = arena_take(&scratch, stride, 1);
        giant = arena_take(&scratch, span / stride + 1, 1);
        if (!baby || !giant) goto exhausted;
        mark_steps(baby, giant, m, stride);
        const double cost = split_cost(baby, giant, stride, span, rotations);
        if (cost < best_cost) best_cost = cost, best = stride;
    }
    arena_reset(&scratch);
    baby = arena_take(&scratch, best, 1);
    giant = arena_take(&scratch, span / best + 1, 1);
    if (!baby || !giant) goto exhausted;
    mark_steps(baby, giant, m, best);
    out->stride = best;
    rc = list_steps(&out->babies, &out->baby_count, baby, best, 1, rotations, memory, err);
    if (rc == CKKS_OK)
        rc =
            list_steps(&out->giants, &out->giant_count, giant, span / best + 1, best, rotations, memory, err);
    arena_fini(&scratch);
    return rc;
exhausted:
    arena_fini(&scratch);
    return NO_MEMORY(err);
}
