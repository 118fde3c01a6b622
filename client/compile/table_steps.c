/*
 * From lanes to steps. Each element begins as its raw column; then, wave after wave, every lane whose next
 * step is of one kind takes it, all together where a step is about many elements. Neighbours that are the
 * one-hot codes of one value share a place until that value is expanded, so that the package says "one-hot"
 * where the pipeline did.
 */
#include "client/compile/table.h"

#include <math.h>
#include <string.h>

#define NO_MEMORY(err) ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for preprocessing steps")

typedef Ckksd__V1__PreprocessStep step;

enum {
    STEP_AFFINE = 1,
    STEP_ONE_HOT,
    STEP_IMPUTE,
    STEP_NORMALISE,
    STEP_SELECT,
    STEP_LOOK_UP,
    STEP_TRUNCATE,
    STEP_THRESHOLD
};

typedef struct lane {
    const table_expr *chain[TABLE_DEPTH_MAX + 4];
    uint32_t length, at; /* steps, and how many are done */
    uint32_t column;
    bool is_joined; /* shares the place of the lane before it */
} lane;

typedef struct emission {
    onnx_model *m;
    arena scratch;
    lane *lanes;
    uint32_t count;
    uint32_t capacity; /* of steps */
} emission;

static ckks_status add_step(step **out, emission *e, uint32_t kind, ckks_error *err) {
    model_table *t = e->m->table;
    step *made = arena_take(&e->m->memory, 1, sizeof *made);
    if (t->step_count == e->capacity) {
        e->capacity = e->capacity ? 2 * e->capacity : 16;
        step **grown = arena_take(&e->m->memory, e->capacity, sizeof(void *));
        if (!grown) return NO_MEMORY(err);
        if (t->step_count) memcpy(grown, t->steps, t->step_count * sizeof(void *));
        t->steps = grown;
    }
    if (!made) return NO_MEMORY(err);
    ckksd__v1__preprocess_step__init(made);
    made->has_kind = 1, made->kind = kind;
    t->steps[t->step_count++] = *out = made;
    return CKKS_OK;
}

static const table_expr *next_step(const lane *l) {
    return l->at < l->length ? l->chain[l->at] : NULL;
}

static bool same_number(double a, double b) {
    return a == b || (isnan(a) && isnan(b));
}

/* ---- lanes ---- */

static void begin_lane(lane *l, const model_table *t, const table_expr *target) {
    const table_expr *e = target;
    for (; e->from; e = e->from) l->length++;
    if (e->kind == EXPR_TEXT) l->length++; /* what becomes of the category */
    uint32_t at = l->length;
    for (const table_expr *k = target; k->from; k = k->from) l->chain[--at] = k;
    if (e->kind == EXPR_TEXT) l->chain[0] = e;
    l->column = t->places[e->column];
}

/* exactly one category gives 1, all others 0: its number, or MODEL_NONE */
static uint32_t unit_code(const onnx_model *m, const table_expr *e) {
    uint32_t hit = MODEL_NONE;
    const uint32_t count = m->columns[m->table->places[e->column]].category_count;
    if (e->otherwise != 0 && !isnan(e->otherwise)) return MODEL_NONE;
    for (uint32_t k = 0; k < count; k++) {
        if (e->table[k] == 0) continue;
        if (e->table[k] != 1 || hit != MODEL_NONE) return MODEL_NONE;
        hit = k;
    }
    return hit;
}

/* are b's steps, up to a one-hot code, those of a? */
static bool shares_place(const onnx_model *m, const lane *a, const lane *b) {
    if (a->column != b->column) return false;
    for (uint32_t i = 0; i < a->length && i < b->length; i++) {
        const table_expr *x = a->chain[i], *y = b->chain[i];
        if (x->kind == EXPR_TEXT && y->kind == EXPR_TEXT)
            return unit_code(m, x) != MODEL_NONE && unit_code(m, y) != MODEL_NONE;
        if (x->kind == EXPR_ONE_HOT && y->kind == EXPR_ONE_HOT) return x->codes == y->codes;
        if (x->kind != y->kind) return false;
        /* an encoder truncates for itself: equal steps need not be one */
        if (x != y && x->kind != EXPR_TRUNCATE) return false;
    }
    return false;
}

static ckks_status begin_lanes(emission *e, ckks_error *err) {
    const model_table *t = e->m->table;
    uint32_t extra = 0;
    for (uint32_t g = 0; g < t->group_count; g++) extra += t->groups[g]->count;
    e->lanes = arena_take(&e->scratch, (uint64_t)t->element_count + extra, sizeof *e->lanes);
    if (!e->lanes) return NO_MEMORY(err);
    for (uint32_t i = 0; i < t->element_count; i++) {
        begin_lane(&e->lanes[e->count], t, t->elements[i]);
        if (i) e->lanes[i].is_joined = shares_place(e->m, &e->lanes[i - 1], &e->lanes[i]);
        e->count++;
    }
    return CKKS_OK;
}

/* a group needs all its members, also those that nothing else reads */
static ckks_status complete_groups(emission *e, ckks_error *err) {
    const model_table *t = e->m->table;
    for (uint32_t g = 0; g < t->group_count; g++) {
        const table_group *group = t->groups[g];
        bool *is_there = arena_take(&e->scratch, group->count, sizeof *is_there);
        if (!is_there) return NO_MEMORY(err);
        for (uint32_t i = 0; i < e->count; i++)
            for (uint32_t k = 0; k < e->lanes[i].length; k++) {
                const table_expr *x = e->lanes[i].chain[k];
                if (x->kind != EXPR_NORMALISE || x->group != group) continue;
                /* two elements from one normalised value would divide it twice */
                if (is_there[x->index])
                    return ckks_error_set(err, CKKS_UNSUPPORTED, "Normalizer",
                                          "a normalised value is used in two ways: use it in one");
                is_there[x->index] = true;
            }
        for (uint32_t k = 0; k < group->count; k++) {
            if (is_there[k]) continue;
            lane *l = &e->lanes[e->count++];
            begin_lane(l, t, group->members[k]);
            table_expr *x = table_expr_make(e->m, (table_expr){.kind = EXPR_NORMALISE,
                                                               .from = group->members[k],
                                                               .group = t->groups[g],
                                                               .index = k});
            if (!x) return NO_MEMORY(err);
            l->chain[l->length++] = x;
        }
    }
    return CKKS_OK;
}

static uint32_t places_taken(const emission *e) {
    uint32_t places = 0;
    for (uint32_t i = 0; i < e->count; i++) places += !e->lanes[i].is_joined;
    return places;
}

static ckks_status select_columns(emission *e, ckks_error *err) {
    const uint32_t places = places_taken(e);
    bool is_all = places == e->m->input_shape.count;
    step *s;
    uint32_t *index = arena_take(&e->m->memory, places, sizeof *index), at = 0;
    if (!index) return NO_MEMORY(err);
    for (uint32_t i = 0; i < e->count; i++) {
        if (e->lanes[i].is_joined) continue;
        is_all = is_all && e->lanes[i].column == at;
        index[at++] = e->lanes[i].column;
    }
    if (is_all || !places) return CKKS_OK;
    const ckks_status rc = add_step(&s, e, STEP_SELECT, err);
    if (rc == CKKS_OK) s->index = index, s->n_index = places;
    return rc;
}

/* ---- one kind of step, on every lane that is there ---- */

typedef struct batch {
    uint32_t count;
    uint32_t *index;
    double *a, *b;
} batch;

static ckks_status batch_init(batch *b, emission *e, ckks_error *err) {
    *b = (batch){.index = arena_take(&e->m->memory, e->count, sizeof *b->index),
                 .a = arena_take(&e->m->memory, e->count, sizeof *b->a),
                 .b = arena_take(&e->m->memory, e->count, sizeof *b->b)};
    return b->index && b->a && b->b ? CKKS_OK : NO_MEMORY(err);
}

static size_t shorten(const double *list, uint32_t count) {
    for (uint32_t i = 1; i < count; i++)
        if (list[i] != list[0]) return count;
    return 1;
}

/* the lanes that share a place with lane i move on with it */
static void advance(emission *e, uint32_t i) {
    e->lanes[i].at++;
    for (uint32_t k = i + 1; k < e->count && e->lanes[k].is_joined; k++) e->lanes[k].at++;
}

static bool goes_along(expr_kind kind, const table_expr *first, const table_expr *x) {
    if (x->kind != kind) return false;
    if (kind == EXPR_IMPUTE) return !first || same_number(first->b, x->b);
    if (kind == EXPR_THRESHOLD) return !first || first->a == x->a;
    return true;
}

/* affine, impute, truncate, threshold; *is_done: there was one */
static ckks_status emit_batch(emission *e, expr_kind kind, uint32_t step_kind, bool *is_done,
                              ckks_error *err) {
    const table_expr *first = NULL;
    uint32_t place = 0;
    batch b;
    step *s;
    ckks_status rc = batch_init(&b, e, err);
    for (uint32_t i = 0; i < e->count && rc == CKKS_OK; i++) {
        if (e->lanes[i].is_joined) continue;
        const table_expr *x = next_step(&e->lanes[i]);
        if (x && goes_along(kind, first, x)) {
            first = first ? first : x;
            b.index[b.count] = place, b.a[b.count] = x->a, b.b[b.count] = x->b;
            b.count++;
            advance(e, i);
        }
        place++;
    }
    if (rc != CKKS_OK || !first) return rc;
    *is_done = true;
    if ((rc = add_step(&s, e, step_kind, err)) != CKKS_OK) return rc;
    if (b.count < place) s->index = b.index, s->n_index = b.count;
    if (kind == EXPR_AFFINE) {
        s->offset = b.a, s->n_offset = shorten(b.a, b.count);
        s->scale = b.b, s->n_scale = shorten(b.b, b.count);
    } else if (kind == EXPR_IMPUTE) {
        s->values = b.a, s->n_values = shorten(b.a, b.count);
        if (!isnan(first->b)) s->has_replaced = 1, s->replaced = first->b;
    } else if (kind == EXPR_THRESHOLD) {
        s->values = b.a, s->n_values = 1;
    }
    return CKKS_OK;
}

static bool is_one_hot(const emission *e, const table_expr *x) {
    return x->kind == EXPR_ONE_HOT || (x->kind == EXPR_TEXT && unit_code(e->m, x) != MODEL_NONE);
}

/* lane `i`, and those that share its place, become their codes */
static ckks_status emit_one_hot(emission *e, uint32_t i, uint32_t place, ckks_error *err) {
    step *s;
    uint32_t count = 1;
    const table_expr *x = next_step(&e->lanes[i]);
    while (i + count < e->count && e->lanes[i + count].is_joined) count++;
    ckks_status rc = add_step(&s, e, STEP_ONE_HOT, err);
    if (rc != CKKS_OK) return rc;
    s->has_column = 1, s->column = place;
    s->n_values = count;
    s->values = arena_take(&e->m->memory, count, sizeof *s->values);
    if (!s->values) return NO_MEMORY(err);
    for (uint32_t k = 0; k < count; k++) {
        const table_expr *y = next_step(&e->lanes[i + k]);
        s->values[k] = y->kind == EXPR_TEXT ? unit_code(e->m, y) : y->codes->keys[y->index];
        e->lanes[i + k].at++;
        e->lanes[i + k].is_joined = false;
    }
    /* of a text column, the column itself says that unknown is refused; a subset of the codes cannot tell */
    if (x->kind == EXPR_ONE_HOT && x->codes->refuses_unknown && count == x->codes->count)
        s->has_unknown_is_error = 1, s->unknown_is_error = 1;
    return CKKS_OK;
}

static ckks_status emit_look_up(emission *e, uint32_t i, uint32_t place, ckks_error *err) {
    const table_expr *x = next_step(&e->lanes[i]);
    const bool is_text = x->kind == EXPR_TEXT;
    const uint32_t count =
        is_text ? e->m->columns[e->m->table->places[x->column]].category_count : x->codes->count;
    const double otherwise = is_text ? x->otherwise : x->codes->otherwise;
    step *s;
    ckks_status rc = add_step(&s, e, STEP_LOOK_UP, err);
    if (rc != CKKS_OK) return rc;
    s->has_column = 1, s->column = place;
    s->n_values = s->n_mapped = count;
    s->mapped = is_text ? x->table : x->codes->mapped;
    s->values = is_text ? arena_take(&e->m->memory, count, sizeof *s->values) : x->codes->keys;
    if (!s->values) return NO_MEMORY(err);
    for (uint32_t k = 0; is_text && k < count; k++) s->values[k] = k;
    if (isnan(otherwise))
        s->has_unknown_is_error = 1, s->unknown_is_error = 1;
    else
        s->has_otherwise = 1, s->otherwise = otherwise;
    advance(e, i);
    return CKKS_OK;
}

/* look-ups and one-hot codes: one step for each lane */
static ckks_status emit_codes(emission *e, bool *is_done, ckks_error *err) {
    uint32_t place = 0;
    for (uint32_t i = 0; i < e->count; i++) {
        const table_expr *x = next_step(&e->lanes[i]);
        if (e->lanes[i].is_joined) continue;
        if (x && (x->kind == EXPR_TEXT || x->kind == EXPR_LOOK_UP || x->kind == EXPR_ONE_HOT)) {
            uint32_t width = 1;
            if (is_one_hot(e, x))
                while (i + width < e->count && e->lanes[i + width].is_joined) width++;
            const ckks_status rc =
                is_one_hot(e, x) ? emit_one_hot(e, i, place, err) : emit_look_up(e, i, place, err);
            if (rc != CKKS_OK) return rc;
            *is_done = true;
            place += width - 1;
            i += width - 1;
        }
        place++;
    }
    return CKKS_OK;
}

static ckks_status emit_groups(emission *e, bool *is_done, ckks_error *err) {
    const model_table *t = e->m->table;
    for (uint32_t g = 0; g < t->group_count; g++) {
        uint32_t place = 0;
        batch b;
        step *s;
        ckks_status rc = batch_init(&b, e, err);
        if (rc != CKKS_OK) return rc;
        for (uint32_t i = 0; i < e->count; i++) {
            const table_expr *x = next_step(&e->lanes[i]);
            if (x && x->kind == EXPR_NORMALISE && x->group == t->groups[g]) b.index[b.count++] = place;
            place += i + 1 == e->count || !e->lanes[i + 1].is_joined;
        }
        if (b.count != t->groups[g]->count) continue; /* done, or some member is not ready */
        if ((rc = add_step(&s, e, STEP_NORMALISE, err)) != CKKS_OK) return rc;
        if (b.count < place) s->index = b.index, s->n_index = b.count;
        s->has_norm = 1, s->norm = t->groups[g]->norm;
        for (uint32_t i = 0; i < e->count; i++) {
            const table_expr *x = next_step(&e->lanes[i]);
            if (x && x->kind == EXPR_NORMALISE && x->group == t->groups[g]) e->lanes[i].at++;
        }
        *is_done = true;
    }
    return CKKS_OK;
}

static ckks_status emit_waves(emission *e, ckks_error *err) {
    static const struct {
        expr_kind kind;
        uint32_t step;
    } batches[] = {{EXPR_IMPUTE, STEP_IMPUTE},
                   {EXPR_TRUNCATE, STEP_TRUNCATE},
                   {EXPR_THRESHOLD, STEP_THRESHOLD},
                   {EXPR_AFFINE, STEP_AFFINE}};
    for (bool is_done = true; is_done;) {
        ckks_status rc = CKKS_OK;
        is_done = false;
        for (size_t i = 0; i < sizeof batches / sizeof *batches && rc == CKKS_OK; i++) {
            rc = emit_batch(e, batches[i].kind, batches[i].step, &is_done, err);
            /* codes expand lanes, so that what follows can go together */
            if (rc == CKKS_OK && batches[i].kind == EXPR_TRUNCATE) rc = emit_codes(e, &is_done, err);
        }
        if (rc == CKKS_OK) rc = emit_groups(e, &is_done, err);
        if (rc != CKKS_OK) return rc;
    }
    for (uint32_t i = 0; i < e->count; i++) CKKS_ASSERT(!next_step(&e->lanes[i]));
    return CKKS_OK;
}

static ckks_status drop_extra(emission *e, ckks_error *err) {
    const uint32_t count = e->m->table->element_count;
    step *s;
    if (e->count == count) return CKKS_OK;
    const ckks_status rc = add_step(&s, e, STEP_SELECT, err);
    if (rc != CKKS_OK) return rc;
    s->index = arena_take(&e->m->memory, count, sizeof *s->index), s->n_index = count;
    if (!s->index) return NO_MEMORY(err);
    for (uint32_t i = 0; i < count; i++) s->index[i] = i;
    return CKKS_OK;
}

ckks_status table_emit(onnx_model *m, ckks_error *err) {
    emission e = {.m = m};
    ckks_status rc = CKKS_OK;
    if (!m->table->is_table || !m->table->element_count) return CKKS_OK;
    rc = begin_lanes(&e, err);
    if (rc == CKKS_OK) rc = complete_groups(&e, err);
    if (rc == CKKS_OK) rc = select_columns(&e, err);
    if (rc == CKKS_OK) rc = emit_waves(&e, err);
    if (rc == CKKS_OK) rc = drop_extra(&e, err);
    arena_fini(&e.scratch);
    return rc;
}
