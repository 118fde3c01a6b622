#include "client/compile/layout.h"

#include <math.h>

#define NO_MEMORY(err) ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for diagonals")

uint32_t layout_period(uint32_t element_count) {
    uint32_t period = 1;
    while (period < element_count) period *= 2;
    return period;
}

ckks_status slot_map_dense(slot_map *out, uint32_t count, uint32_t spread, uint32_t period_min,
                           uint32_t slot_count, arena *memory, ckks_error *err) {
    const uint32_t room = slot_count / spread; /* elements of a block */
    CKKS_ASSERT(room >= 1);
    *out = (slot_map){.count = count, .block_count = (count + room - 1) / room};
    out->period = out->block_count > 1 ? slot_count : layout_period(count * spread);
    if (out->period < period_min) out->period = period_min;
    out->block = arena_take(memory, count, sizeof *out->block);
    out->slot = arena_take(memory, count, sizeof *out->slot);
    if (!out->block || !out->slot) return NO_MEMORY(err);
    for (uint32_t i = 0; i < count; i++) {
        out->block[i] = i / room;
        out->slot[i] = i % room * spread;
    }
    return CKKS_OK;
}

bool slot_map_equal(const slot_map *a, const slot_map *b) {
    if (a->count != b->count || a->block_count != b->block_count || a->period != b->period) return false;
    for (uint32_t i = 0; i < a->count; i++)
        if (a->block[i] != b->block[i] || a->slot[i] != b->slot[i]) return false;
    return true;
}

/* ---- diagonals ---- */

static void set_shape(layout_matrix *out, const slot_map *y, const slot_map *x) {
    const uint32_t r = y->period, c = x->period;
    *out = (layout_matrix){
        .slot_count = r < c ? c : r, .modulus = r < c ? r : c, .fold_from = c, .fold_to = r < c ? r : c};
}

/* where entry (row's slot, column's slot) goes */
static uint32_t entry_step(const layout_matrix *m, uint32_t y_slot, uint32_t x_slot) {
    return (x_slot - y_slot) & (m->modulus - 1);
}
static uint32_t entry_slot(const layout_matrix *m, uint32_t y_slot, uint32_t x_slot, uint32_t step) {
    return m->fold_from > m->fold_to ? (x_slot - step) & (m->fold_from - 1) : y_slot;
}

ckks_status layout_create(layout_matrix *out, const sparse *m, const slot_map *y, uint32_t y_block,
                          const slot_map *x, uint32_t x_block, arena *memory, ckks_error *err) {
    set_shape(out, y, x);
    double **table = arena_take(memory, out->modulus, sizeof *table);
    if (!table) return NO_MEMORY(err);
    for (uint32_t i = 0; i < m->row_count; i++) {
        if (y->block[i] != y_block) continue;
        for (uint32_t e = m->row_start[i]; e < m->row_start[i + 1]; e++) {
            const uint32_t column = m->column[e];
            if (m->value[e] == 0 || x->block[column] != x_block) continue;
            const uint32_t step = entry_step(out, y->slot[i], x->slot[column]);
            if (!table[step] && !(table[step] = arena_take(memory, out->slot_count, sizeof **table)))
                return NO_MEMORY(err);
            table[step][entry_slot(out, y->slot[i], x->slot[column], step)] += m->value[e];
        }
    }
    for (uint32_t k = 0; k < out->modulus; k++) out->count += table[k] != NULL;
    out->diagonals = arena_take(memory, out->count, sizeof *out->diagonals);
    if (!out->diagonals) return NO_MEMORY(err);
    uint32_t at = 0;
    for (uint32_t k = 0; k < out->modulus; k++)
        if (table[k]) out->diagonals[at++] = (layout_diagonal){k, table[k]};
    return CKKS_OK;
}

/* ---- baby steps and giant steps ---- */

/* Steps as signed numbers: the circle is cut at its widest gap, so that neighbours stay neighbours. */
typedef struct step_list {
    uint32_t count;
    int32_t *steps;    /* ascending; entry i is that of diagonal (first + i) mod count */
    uint32_t first;    /* diagonal */
    int32_t low, span; /* all are in [low, low + span) */
    uint32_t *stamp;   /* [2 * stamp_capacity + ...]: marks of babies, then of giants */
    uint32_t capacity; /* of each half */
    uint32_t now;
} step_list;

static ckks_status cut_circle(step_list *out, const uint32_t *steps, uint32_t count, uint32_t modulus,
                              arena *scratch, ckks_error *err) {
    uint32_t widest = 0, first = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t before = i ? steps[i - 1] : steps[count - 1];
        const uint32_t gap = i ? steps[i] - before : steps[i] + modulus - before;
        if (gap > widest) widest = gap, first = i;
    }
    *out = (step_list){.count = count, .first = first};
    out->steps = arena_take(scratch, count, sizeof *out->steps);
    if (!out->steps) return NO_MEMORY(err);
    /* zero stays zero where it is among them */
    const int32_t shift = first == 0 ? 0 : (int32_t)modulus;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t at = (first + i) % count;
        out->steps[i] = (int32_t)steps[at] - (at >= first ? shift : 0);
    }
    out->low = out->steps[0];
    out->span = out->steps[count - 1] - out->low + 1;
    out->capacity = 2 * modulus + 4;
    out->stamp = arena_take(scratch, 2 * (uint64_t)out->capacity, sizeof *out->stamp);
    return out->stamp ? CKKS_OK : NO_MEMORY(err);
}

static int32_t floor_div(int32_t a, int32_t b) {
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

/* the baby of step k: the number of [window, window + stride) that differs from it by a multiple of stride */
static int32_t baby_of(int32_t k, int32_t stride, int32_t window) {
    return k - stride * floor_div(k - window, stride);
}

static double rotation_cost(int32_t step, double cost, const layout_rotations *r) {
    if (step == 0) return 0;
    return cost + (r->is_used[(uint32_t)step & (r->capacity - 1)] ? 0 : r->key_cost);
}

static double split_cost(step_list *l, int32_t stride, int32_t window, double best,
                         const layout_rotations *rotations) {
    double cost = 0;
    const uint32_t now = ++l->now;
    const int32_t giant_low = floor_div(l->low - window, stride);
    for (uint32_t i = 0; i < l->count && cost < best; i++) {
        const int32_t baby = baby_of(l->steps[i], stride, window), giant = l->steps[i] - baby;
        uint32_t *b = &l->stamp[baby - window],
                 *g = &l->stamp[l->capacity + (uint32_t)(giant / stride - giant_low)];
        if (*b != now) cost += rotation_cost(baby, 1.0, rotations), *b = now;
        if (*g != now) cost += rotation_cost(giant, LAYOUT_GIANT_COST, rotations), *g = now;
    }
    return cost;
}

typedef struct split_choice {
    int32_t stride, window;
    double cost;
} split_choice;

static void try_stride(split_choice *best, step_list *l, int32_t stride, const layout_rotations *rotations) {
    for (int side = 0; side < 2; side++) {
        const int32_t window = side ? -(stride / 2) : 0;
        const double cost = split_cost(l, stride, window, best->cost, rotations);
        if (cost < best->cost) *best = (split_choice){stride, window, cost};
    }
}

#define STRIDES_MAX        512u
#define DIAGONALS_SEARCHED 2048u /* with more, powers of two must do */

static split_choice choose_stride(step_list *l, const layout_rotations *rotations) {
    split_choice best = {1, 0, INFINITY};
    for (int32_t stride = 1; stride < 2 * l->span; stride *= 2) try_stride(&best, l, stride, rotations);
    if (l->count > DIAGONALS_SEARCHED) return best;
    for (int32_t stride = 3; stride < l->span && stride < 64; stride++)
        try_stride(&best, l, stride, rotations);
    for (uint32_t i = 1; i < l->count && i < STRIDES_MAX; i++)
        if (l->steps[i] - l->low >= 64) try_stride(&best, l, l->steps[i] - l->low, rotations);
    return best;
}

static uint32_t place(int32_t *list, uint32_t *count, int32_t value) {
    uint32_t i = 0;
    while (i < *count && list[i] != value) i++;
    if (i == *count) list[(*count)++] = value;
    return i;
}

ckks_status layout_choose_split(layout_split *out, const layout_matrix *m, layout_rotations *rotations,
                                arena *memory, ckks_error *err) {
    arena scratch = {0};
    step_list list;
    CKKS_ASSERT(m->count >= 1);
    uint32_t *steps = arena_take(&scratch, m->count, sizeof *steps);
    ckks_status rc = steps ? CKKS_OK : NO_MEMORY(err);
    for (uint32_t i = 0; rc == CKKS_OK && i < m->count; i++) steps[i] = m->diagonals[i].step;
    if (rc == CKKS_OK) rc = cut_circle(&list, steps, m->count, m->modulus, &scratch, err);
    *out = (layout_split){.babies = arena_take(memory, m->count, sizeof *out->babies),
                          .giants = arena_take(memory, m->count, sizeof *out->giants),
                          .term_baby = arena_take(memory, m->count, sizeof *out->term_baby),
                          .term_giant = arena_take(memory, m->count, sizeof *out->term_giant),
                          .term_shift = arena_take(memory, m->count, sizeof *out->term_shift)};
    if (!out->babies || !out->giants || !out->term_baby || !out->term_giant || !out->term_shift)
        rc = NO_MEMORY(err);
    if (rc != CKKS_OK) goto out;
    const split_choice best = choose_stride(&list, rotations);
    out->cost = best.cost;
    for (uint32_t i = 0; i < m->count; i++) {
        const uint32_t diagonal = (list.first + i) % m->count;
        const int32_t baby = baby_of(list.steps[i], best.stride, best.window);
        out->term_baby[diagonal] = place(out->babies, &out->baby_count, baby);
        out->term_giant[diagonal] = place(out->giants, &out->giant_count, list.steps[i] - baby);
        /* Rotated right by the giant step, so that slots meet. Where slots are folded, a step that is a
         * number of periods of y off reads the same x from a slot as far off, which folding brings to the
         * same row. */
        out->term_shift[diagonal] = m->fold_from > m->fold_to ? m->diagonals[diagonal].step - (uint32_t)baby
                                                              : (uint32_t)(list.steps[i] - baby);
        layout_mark(rotations, baby);
        layout_mark(rotations, list.steps[i] - baby);
    }
out:
    arena_fini(&scratch);
    return rc;
}

ckks_status layout_is_cheaper_together(bool *is_cheaper, const layout_matrix *const *matrices, uint32_t count,
                                       double hoisted_cost, const layout_rotations *rotations,
                                       ckks_error *err) {
    arena scratch = {0};
    ckks_status rc = CKKS_OK;
    double apart = 0, together = LAYOUT_TRANSFORM_COST;
    layout_rotations then = *rotations; /* what splits of their own would have marked so far */
    uint8_t *is_read = arena_take(&scratch, then.capacity, 1);
    then.is_used = arena_take(&scratch, then.capacity, 1);
    if (!is_read || !then.is_used) rc = NO_MEMORY(err);
    for (uint32_t i = 0; i < then.capacity && rc == CKKS_OK; i++) then.is_used[i] = rotations->is_used[i];
    for (uint32_t k = 0; k < count && rc == CKKS_OK; k++) {
        layout_split split = {0};
        rc = layout_choose_split(&split, matrices[k], &then, &scratch, err);
        apart += split.cost + LAYOUT_TRANSFORM_COST;
        for (uint32_t d = 0; d < matrices[k]->count; d++) {
            const uint32_t step = matrices[k]->diagonals[d].step;
            if (!is_read[step]) together += rotation_cost((int32_t)step, hoisted_cost, rotations);
            is_read[step] = 1;
        }
    }
    *is_cheaper = rc == CKKS_OK && together < apart;
    arena_fini(&scratch);
    return rc;
}

/* ---- what a matrix would cost ---- */

/* sets of steps, one for each pair of blocks */
typedef struct step_sets {
    uint8_t *mark; /* [pair][modulus] */
    uint32_t modulus, x_blocks, pair_count;
} step_sets;

static ckks_status mark_steps(step_sets *out, const sparse *m, const slot_map *y, const slot_map *x,
                              arena *scratch, ckks_error *err) {
    layout_matrix shape;
    set_shape(&shape, y, x);
    *out = (step_sets){
        .modulus = shape.modulus, .x_blocks = x->block_count, .pair_count = x->block_count * y->block_count};
    out->mark = arena_take(scratch, out->pair_count, out->modulus);
    if (!out->mark) return NO_MEMORY(err);
    for (uint32_t i = 0; i < m->row_count; i++)
        for (uint32_t e = m->row_start[i]; e < m->row_start[i + 1]; e++) {
            const uint32_t column = m->column[e];
            if (m->value[e] == 0) continue;
            const size_t pair = (size_t)y->block[i] * out->x_blocks + x->block[column];
            out->mark[pair * out->modulus + entry_step(&shape, y->slot[i], x->slot[column])] = 1;
        }
    return CKKS_OK;
}

static ckks_status pair_cost(double *cost, const uint8_t *mark, uint32_t modulus,
                             const layout_rotations *rotations, double limit, ckks_error *err) {
    arena scratch = {0};
    step_list list;
    uint32_t count = 0;
    ckks_status rc = CKKS_OK;
    uint32_t *steps = arena_take(&scratch, modulus, sizeof *steps);
    if (!steps) return NO_MEMORY(err);
    for (uint32_t k = 0; k < modulus; k++)
        if (mark[k]) steps[count++] = k;
    *cost = LAYOUT_DIAGONAL_COST * count;
    if (*cost <= limit && (count > 1 || (count == 1 && steps[0]))) {
        rc = cut_circle(&list, steps, count, modulus, &scratch, err);
        if (rc == CKKS_OK) *cost += LAYOUT_TRANSFORM_COST + choose_stride(&list, rotations).cost;
    }
    arena_fini(&scratch);
    return rc;
}

static double fold_cost(const slot_map *y, const slot_map *x, const layout_rotations *rotations) {
    double cost = 0;
    for (uint32_t step = x->period; step > y->period; step /= 2)
        cost += y->block_count * rotation_cost((int32_t)(step / 2), LAYOUT_GIANT_COST, rotations);
    return cost;
}

ckks_status layout_cost(double *cost, const sparse *m, const slot_map *y, const slot_map *x,
                        const layout_rotations *rotations, double limit, ckks_error *err) {
    arena scratch = {0};
    step_sets sets;
    ckks_status rc = mark_steps(&sets, m, y, x, &scratch, err);
    *cost = fold_cost(y, x, rotations);
    for (uint32_t pair = 0; rc == CKKS_OK && pair < sets.pair_count && *cost <= limit; pair++) {
        double more = 0;
        rc = pair_cost(&more, sets.mark + (size_t)pair * sets.modulus, sets.modulus, rotations, limit - *cost,
                       err);
        *cost += more;
    }
    if (*cost > limit) *cost = INFINITY;
    arena_fini(&scratch);
    return rc;
}
