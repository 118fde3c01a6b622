#include "client/compile/layout_search.h"

#include <math.h>
#include <string.h>

#define PROPOSALS_MAX 40u
/* layers with more weights are not looked at in advance */
#define LOOKAHEAD_ENTRIES_MAX (1u << 20)

#define NO_MEMORY(err) ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory to lay out values")

typedef struct search {
    const ir_graph *g;
    uint32_t slot_count;
    const layout_rotations *rotations;
    arena *memory;
    slot_map *maps;
    uint32_t *group;     /* [node]: the first node that shares its map */
    double *elementwise; /* [group]: cost of products and polynomials for each ciphertext */
    bool *is_chosen;     /* [group] */
} search;

typedef struct proposals {
    uint32_t count;
    slot_map maps[PROPOSALS_MAX];
} proposals;

/* ---- values that share a map ---- */

static uint32_t group_of(const search *s, uint32_t node) {
    while (s->group[node] != node) node = s->group[node];
    return node;
}
static void join(search *s, uint32_t a, uint32_t b) {
    a = group_of(s, a), b = group_of(s, b);
    s->group[a > b ? a : b] = a < b ? a : b;
}

static double elementwise_cost(const ir_node *n) {
    return n->kind == IR_PRODUCT      ? LAYOUT_PRODUCT_COST
           : n->kind == IR_POLYNOMIAL ? 2 * sqrt(n->degree + 1.0) * LAYOUT_PRODUCT_COST
                                      : 0;
}

static void make_groups(search *s) {
    const ir_graph *g = s->g;
    for (uint32_t i = 0; i < g->count; i++) s->group[i] = i;
    for (uint32_t i = 0; i < g->count; i++) {
        const ir_node *n = &g->nodes[i];
        if (!n->use_count || n->kind == IR_INPUT || n->kind == IR_LINEAR) continue;
        join(s, i, n->a);
        if (n->kind == IR_PRODUCT) join(s, i, n->b);
    }
    for (uint32_t i = 0; i < g->count; i++)
        if (g->nodes[i].use_count) s->elementwise[group_of(s, i)] += elementwise_cost(&g->nodes[i]);
}

/* ---- proposals ---- */

/* keeps the map if there is room, its elements have places of their own, and it is new */
static ckks_status propose(const search *s, proposals *list, const slot_map *map, ckks_error *err) {
    if (list->count == PROPOSALS_MAX || map->period > s->slot_count || map->block_count > LAYOUT_BLOCKS_MAX)
        return CKKS_OK;
    arena scratch = {0};
    uint8_t *taken = arena_take(&scratch, map->block_count, map->period);
    bool is_good = taken != NULL;
    for (uint32_t i = 0; i < map->count && is_good; i++) {
        uint8_t *mark = &taken[(size_t)map->block[i] * map->period + map->slot[i]];
        is_good = !*mark;
        *mark = 1;
    }
    arena_fini(&scratch);
    if (!taken) return NO_MEMORY(err);
    for (uint32_t k = 0; k < list->count && is_good; k++) is_good = !slot_map_equal(map, &list->maps[k]);
    if (is_good) list->maps[list->count++] = *map;
    return CKKS_OK;
}

static ckks_status propose_dense(const search *s, proposals *list, uint32_t count, uint32_t period_max,
                                 ckks_error *err) {
    slot_map map;
    ckks_status rc = CKKS_OK;
    const uint32_t period = layout_period(count);
    for (uint32_t p = period; rc == CKKS_OK && (p == period || (p <= period_max && p <= s->slot_count));
         p *= 2) {
        if ((rc = slot_map_dense(&map, count, 1, p > s->slot_count ? 1 : p, s->slot_count, s->memory, err)) !=
            CKKS_OK)
            break;
        rc = propose(s, list, &map, err);
        if (rc == CKKS_OK && p > period && p / period * count <= s->slot_count) {
            rc = slot_map_dense(&map, count, p / period, p, s->slot_count, s->memory, err);
            if (rc == CKKS_OK) rc = propose(s, list, &map, err);
        }
    }
    return rc;
}

/* each row where its only, or first, column is: gathers and elementwise layers need no rotation so */
static ckks_status propose_inherited(const search *s, proposals *list, const ir_term *term, ckks_error *err) {
    const sparse *m = term->matrix;
    const slot_map *x = &s->maps[term->from];
    slot_map map = {.count = m->row_count,
                    .block_count = x->block_count,
                    .period = x->period,
                    .channel_pitch = x->channel_pitch};
    map.block = arena_take(s->memory, map.count, sizeof *map.block);
    map.slot = arena_take(s->memory, map.count, sizeof *map.slot);
    if (!map.block || !map.slot) return NO_MEMORY(err);
    for (uint32_t i = 0; i < map.count; i++) {
        if (m->row_start[i] == m->row_start[i + 1]) return CKKS_OK;
        const uint32_t column = m->column[m->row_start[i]];
        map.block[i] = x->block[column];
        map.slot[i] = x->slot[column];
    }
    return propose(s, list, &map, err);
}

/* A tensor of channels and places on a grid. */
typedef struct grid {
    uint32_t channels, height, width;
    uint32_t pitch_y, pitch_x, pitch_c;
    uint32_t gap_y, gap_x; /* channels share the gaps between places: gap_y * gap_x of them */
} grid;

static bool grid_of(grid *out, const ir_node *n) {
    if (n->rank != 3 && n->rank != 4) return false;
    *out = (grid){.channels = n->dims[1],
                  .height = n->rank == 4 ? n->dims[2] : 1,
                  .width = n->dims[n->rank - 1],
                  .gap_y = 1,
                  .gap_x = 1};
    return n->dims[0] == 1 && (uint64_t)out->channels * out->height * out->width == n->count;
}

static uint32_t grid_extent(const grid *g) {
    return (g->height - 1) * g->pitch_y + (g->width - 1) * g->pitch_x +
           (g->gap_y - 1) * (g->pitch_y / g->gap_y) + (g->gap_x - 1) * (g->pitch_x / g->gap_x) + 1;
}

static ckks_status propose_grid(const search *s, proposals *list, const grid *g, ckks_error *err) {
    const uint32_t shared = g->gap_y * g->gap_x, groups = (g->channels + shared - 1) / shared;
    if (g->pitch_c > s->slot_count || grid_extent(g) > g->pitch_c) return CKKS_OK;
    const uint32_t room = s->slot_count / g->pitch_c; /* groups of a block */
    slot_map map = {.count = g->channels * g->height * g->width,
                    .block_count = (groups + room - 1) / room,
                    .channel_pitch = g->pitch_c};
    map.period = map.block_count > 1 ? s->slot_count : layout_period(groups) * g->pitch_c;
    map.block = arena_take(s->memory, map.count, sizeof *map.block);
    map.slot = arena_take(s->memory, map.count, sizeof *map.slot);
    if (!map.block || !map.slot) return NO_MEMORY(err);
    uint32_t at = 0;
    for (uint32_t c = 0; c < g->channels; c++)
        for (uint32_t y = 0; y < g->height; y++)
            for (uint32_t x = 0; x < g->width; x++, at++) {
                const uint32_t group = c / shared, place = c % shared;
                map.block[at] = group / room;
                map.slot[at] = group % room * g->pitch_c + y * g->pitch_y + x * g->pitch_x +
                               place / g->gap_x * (g->pitch_y / g->gap_y) +
                               place % g->gap_x * (g->pitch_x / g->gap_x);
            }
    return propose(s, list, &map, err);
}

/* how far the places that a row reads lie from those that another row reads: by the first and the last of
 * them, since at a border one or the other is cut off */
static void row_distances(uint32_t out[2], const sparse *m, const slot_map *x, uint32_t row, uint32_t other) {
    uint32_t low[2] = {UINT32_MAX, UINT32_MAX}, high[2] = {0, 0};
    const uint32_t rows[2] = {row, other};
    for (int k = 0; k < 2; k++)
        for (uint32_t e = m->row_start[rows[k]]; e < m->row_start[rows[k] + 1]; e++) {
            const uint32_t slot = x->slot[m->column[e]];
            if (slot < low[k]) low[k] = slot;
            if (slot > high[k]) high[k] = slot;
        }
    /* a row without entries is nowhere */
    const bool are_there = low[0] != UINT32_MAX && low[1] != UINT32_MAX;
    out[0] = are_there && low[1] > low[0] ? low[1] - low[0] : 0;
    out[1] = are_there && high[1] > high[0] ? high[1] - high[0] : 0;
}

static ckks_status propose_pitch(const search *s, proposals *list, grid g, const slot_map *x,
                                 ckks_error *err) {
    ckks_status rc = CKKS_OK;
    const uint32_t gaps_x = g.width > 1 ? g.pitch_x : 1;
    /* rows of other channels between the rows, evenly */
    uint32_t gaps_y = g.height > 1 ? g.pitch_y / (g.width * g.pitch_x) : 1;
    while (gaps_y > 1 && g.pitch_y % gaps_y) gaps_y--;
    g.pitch_c = layout_period(grid_extent(&g));
    rc = propose_grid(s, list, &g, err);
    grid wider = g;
    wider.pitch_c = x->channel_pitch;
    if (rc == CKKS_OK && wider.pitch_c > g.pitch_c) rc = propose_grid(s, list, &wider, err);
    for (uint32_t way = 1; way < 4 && rc == CKKS_OK;
         way++) { /* channels in the gaps of rows, columns, both */
        grid shared = g;
        if ((way & 1) && gaps_x > 1) shared.gap_x = gaps_x;
        if ((way & 2) && gaps_y > 1) shared.gap_y = gaps_y;
        shared.pitch_c = layout_period(grid_extent(&shared));
        if (shared.gap_x * shared.gap_y > 1 && g.channels > 1) rc = propose_grid(s, list, &shared, err);
    }
    return rc;
}

static ckks_status propose_grids(const search *s, proposals *list, const ir_node *n, const ir_term *term,
                                 ckks_error *err) {
    grid g;
    uint32_t pitch_x[2] = {1, 1}, pitch_y[2] = {1, 1};
    ckks_status rc = CKKS_OK;
    const slot_map *x = &s->maps[term->from];
    if (!grid_of(&g, n) || g.height * g.width <= 1) return CKKS_OK;
    const uint32_t middle_y = (g.height - 1) / 2, middle_x = (g.width - 1) / 2;
    const uint32_t row = middle_y * g.width + middle_x;
    if (g.width > 1) row_distances(pitch_x, term->matrix, x, row, row + 1);
    if (g.height > 1) row_distances(pitch_y, term->matrix, x, row, row + g.width);
    for (int way = 0; way < 4 && rc == CKKS_OK; way++) {
        g.pitch_x = pitch_x[way & 1], g.pitch_y = pitch_y[way >> 1];
        if (g.pitch_x && g.pitch_y) rc = propose_pitch(s, list, g, x, err);
    }
    return rc;
}

static ckks_status propose_all(const search *s, proposals *list, uint32_t node, ckks_error *err) {
    const ir_node *n = &s->g->nodes[node];
    uint32_t period_max = 1;
    ckks_status rc = CKKS_OK;
    list->count = 0;
    for (uint32_t t = 0; t < n->term_count && rc == CKKS_OK; t++) {
        const slot_map *x = &s->maps[n->terms[t].from];
        if (x->period > period_max) period_max = x->period;
        rc = propose_inherited(s, list, &n->terms[t], err);
        if (rc == CKKS_OK) rc = propose_grids(s, list, n, &n->terms[t], err);
    }
    return rc == CKKS_OK ? propose_dense(s, list, n->count, period_max, err) : rc;
}

/* ---- choice ---- */

static ckks_status own_cost(double *cost, const search *s, uint32_t node, const slot_map *map, double limit,
                            ckks_error *err) {
    const ir_node *n = &s->g->nodes[node];
    *cost = s->elementwise[group_of(s, node)] * map->block_count;
    for (uint32_t t = 0; t < n->term_count && *cost <= limit; t++) {
        double more = 0;
        const ckks_status rc = layout_cost(&more, n->terms[t].matrix, map, &s->maps[n->terms[t].from],
                                           s->rotations, limit - *cost, err);
        if (rc != CKKS_OK) return rc;
        *cost += more;
    }
    return CKKS_OK;
}

/* the cheapest map of `node` by itself */
static ckks_status cheapest(slot_map *best, double *cost, const search *s, uint32_t node, ckks_error *err) {
    proposals *list = arena_take(s->memory, 1, sizeof *list);
    if (!list) return NO_MEMORY(err);
    ckks_status rc = propose_all(s, list, node, err);
    *cost = INFINITY;
    for (uint32_t k = 0; k < list->count && rc == CKKS_OK; k++) {
        double own = 0;
        rc = own_cost(&own, s, node, &list->maps[k], *cost, err);
        if (own < *cost) *cost = own, *best = list->maps[k];
    }
    return rc;
}

static bool reads(const search *s, const ir_node *n, uint32_t group) {
    for (uint32_t t = 0; t < n->term_count; t++)
        if (group_of(s, n->terms[t].from) == group) return true;
    return false;
}

/* every value of the group takes the map */
static void assign(search *s, uint32_t group, const slot_map *map) {
    for (uint32_t i = 0; i < s->g->count; i++)
        if (s->g->nodes[i].use_count && group_of(s, i) == group) s->maps[i] = *map;
}

/* what the linear layers that read the group cost at best, if all that they read is laid out */
static ckks_status readers_cost(double *cost, const search *s, uint32_t group, ckks_error *err) {
    *cost = 0;
    for (uint32_t i = 0; i < s->g->count; i++) {
        const ir_node *n = &s->g->nodes[i];
        if (!n->use_count || n->kind != IR_LINEAR || !reads(s, n, group)) continue;
        bool is_ready = true;
        for (uint32_t t = 0; t < n->term_count; t++)
            is_ready = is_ready && s->maps[n->terms[t].from].period &&
                       sparse_entry_count(n->terms[t].matrix) <= LOOKAHEAD_ENTRIES_MAX;
        if (!is_ready) continue;
        slot_map best;
        double more = 0;
        const ckks_status rc = cheapest(&best, &more, s, i, err);
        if (rc != CKKS_OK) return rc;
        *cost += more;
    }
    return CKKS_OK;
}

static ckks_status choose(search *s, uint32_t node, ckks_error *err) {
    const uint32_t group = group_of(s, node);
    proposals *list = arena_take(s->memory, 1, sizeof *list);
    double best = INFINITY;
    if (!list) return NO_MEMORY(err);
    ckks_status rc = propose_all(s, list, node, err);
    uint32_t chosen = 0;
    arena *const memory = s->memory;
    arena scratch = {0}; /* the readers' proposals are only looked at */
    s->memory = &scratch;
    for (uint32_t k = 0; k < list->count && rc == CKKS_OK; k++) {
        double own = 0, after = 0;
        rc = own_cost(&own, s, node, &list->maps[k], best, err);
        if (rc != CKKS_OK || own >= best) continue;
        arena_reset(&scratch);
        assign(s, group, &list->maps[k]);
        rc = readers_cost(&after, s, group, err);
        if (own + after < best) best = own + after, chosen = k;
    }
    arena_fini(&scratch);
    s->memory = memory;
    if (rc != CKKS_OK) return rc;
    if (!list->count)
        return ckks_error_set(err, CKKS_TOO_LARGE, s->g->nodes[node].source,
                              "%u elements need more than %u ciphertexts", s->g->nodes[node].count,
                              LAYOUT_BLOCKS_MAX);
    assign(s, group, &list->maps[chosen]);
    return CKKS_OK;
}

/* channels on powers of two, where that takes no more ciphertexts */
static ckks_status place_input(search *s, uint32_t node, ckks_error *err) {
    const ir_node *n = &s->g->nodes[node];
    proposals *list = arena_take(s->memory, 1, sizeof *list);
    slot_map dense;
    grid g;
    if (!list) return NO_MEMORY(err);
    ckks_status rc = slot_map_dense(&dense, n->count, 1, 1, s->slot_count, s->memory, err);
    if (rc == CKKS_OK && n->rank == 4 && grid_of(&g, n) && g.channels > 1) {
        g.pitch_x = 1, g.pitch_y = g.width;
        g.pitch_c = layout_period(grid_extent(&g));
        rc = propose_grid(s, list, &g, err);
    }
    if (rc != CKKS_OK) return rc;
    if (dense.block_count > LAYOUT_BLOCKS_MAX)
        return ckks_error_set(err, CKKS_TOO_LARGE, n->source, "%u elements need more than %u ciphertexts",
                              n->count, LAYOUT_BLOCKS_MAX);
    const bool is_grid = list->count && list->maps[0].block_count <= dense.block_count;
    assign(s, group_of(s, node), is_grid ? &list->maps[0] : &dense);
    return CKKS_OK;
}

ckks_status layout_search(slot_map *maps, double *cost, const ir_graph *g, const uint32_t *levels,
                          uint32_t slot_count, const layout_rotations *rotations, arena *memory,
                          ckks_error *err) {
    search s = {.g = g, .slot_count = slot_count, .rotations = rotations, .memory = memory, .maps = maps};
    s.group = arena_take(memory, g->count, sizeof *s.group);
    s.elementwise = arena_take(memory, g->count, sizeof *s.elementwise);
    s.is_chosen = arena_take(memory, g->count, sizeof *s.is_chosen);
    if (!s.group || !s.elementwise || !s.is_chosen) return NO_MEMORY(err);
    memset(maps, 0, g->count * sizeof *maps);
    make_groups(&s);
    *cost = 0;
    for (uint32_t i = 0; i < g->count; i++) {
        const ir_node *n = &g->nodes[i];
        ckks_status rc = CKKS_OK;
        double own = 0;
        if (!n->use_count || (n->kind != IR_INPUT && n->kind != IR_LINEAR)) continue;
        const uint32_t group = group_of(&s, i);
        if (!s.is_chosen[group]) rc = n->kind == IR_INPUT ? place_input(&s, i, err) : choose(&s, i, err);
        if (rc == CKKS_OK) rc = own_cost(&own, &s, i, &maps[i], INFINITY, err);
        if (rc != CKKS_OK) return rc;
        if (s.is_chosen[group]) own -= s.elementwise[group] * maps[i].block_count; /* counted already */
        s.is_chosen[group] = true;
        *cost += own * (levels[i] + 2.0);
    }
    return CKKS_OK;
}
