/*
 * Elements picked and placed one by one, where constants say: GatherElements, GatherND, Trilu, Compress,
 * ReverseSequence; ScatterElements, ScatterND; CumSum, which adds all elements before.
 */
#include "client/compile/operator.h"

#include <math.h>
#include <string.h>

static ckks_status no_memory(const model_node *node, ckks_error *err) {
    return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory to move elements");
}

static uint32_t stride_of(const tensor *t, uint32_t axis) {
    uint32_t stride = 1;
    for (uint32_t i = axis + 1; i < t->rank; i++) stride *= t->dims[i];
    return stride;
}

static void coordinates(uint32_t at[TENSOR_RANK_MAX], const tensor *t, uint32_t flat) {
    for (uint32_t i = t->rank; i-- > 0;) {
        at[i] = flat % t->dims[i];
        flat /= t->dims[i];
    }
}

/* an index that counts from the end where it is negative */
static ckks_status read_index(uint32_t *out, const model_node *node, double index, uint32_t size,
                              ckks_error *err) {
    const double at = index < 0 ? index + size : index;
    if (!(at >= 0 && at < size) || at != floor(at))
        return node_error(node, err, "index %g of an axis of %u", index, size);
    *out = (uint32_t)at;
    return CKKS_OK;
}

/* ---- picks: each output element is an element of input 0, or 0 ---- */

typedef struct picking {
    const model_node *node;
    const tensor *const *in;
    arena *memory;
    tensor shape;    /* of the output; no data */
    uint32_t *index; /* [shape.count]; MODEL_NONE: 0 */
} picking;

static ckks_status start_picking(picking *p, const int64_t *dims, uint32_t rank, ckks_error *err) {
    const ckks_status rc = tensor_shape(&p->shape, dims, rank, COMPUTED_MAX, p->node->label, err);
    if (rc != CKKS_OK) return rc;
    p->index = arena_take(p->memory, p->shape.count, sizeof *p->index);
    return p->index ? CKKS_OK : no_memory(p->node, err);
}

static ckks_status same_shape(picking *p, const tensor *t, ckks_error *err) {
    int64_t dims[TENSOR_RANK_MAX];
    for (uint32_t i = 0; i < t->rank; i++) dims[i] = t->dims[i];
    return start_picking(p, dims, t->rank, err);
}

/* like GatherElements and ScatterElements: element i of `indices` names a place of x, its other coordinates
 * being i's own */
static ckks_status element_place(uint32_t *out, const model_node *node, const tensor *x,
                                 const tensor *indices, uint32_t axis, uint32_t i, ckks_error *err) {
    uint32_t at[TENSOR_RANK_MAX];
    coordinates(at, indices, i);
    const ckks_status rc = read_index(&at[axis], node, indices->data[i], x->dims[axis], err);
    *out = 0;
    for (uint32_t k = 0; rc == CKKS_OK && k < x->rank; k++) {
        if (at[k] >= x->dims[k]) return node_error(node, err, "its indices are larger than its data");
        *out += at[k] * stride_of(x, k);
    }
    return rc;
}

static ckks_status pick_elements(picking *p, ckks_error *err) {
    const tensor *x = p->in[0], *indices = p->in[1];
    uint32_t axis;
    ckks_status rc = node_axis(&axis, p->node, node_int(p->node, "axis", 0), x->rank, err);
    if (rc == CKKS_OK && indices->rank != x->rank)
        return node_error(p->node, err, "indices of %u axes for %u", indices->rank, x->rank);
    if (rc == CKKS_OK) rc = same_shape(p, indices, err);
    for (uint32_t i = 0; rc == CKKS_OK && i < p->shape.count; i++)
        rc = element_place(&p->index[i], p->node, x, indices, axis, i, err);
    return rc;
}

/* like GatherND and ScatterND: entry i of the first axes of `indices` names a slice of x, `batch` coordinates
 * being i's own; where it begins */
static ckks_status slice_place(uint32_t *out, const model_node *node, const tensor *x, const tensor *indices,
                               uint32_t batch, uint32_t i, ckks_error *err) {
    const uint32_t depth = indices->dims[indices->rank - 1];
    uint32_t at[TENSOR_RANK_MAX];
    coordinates(at, indices, i * depth);
    *out = 0;
    for (uint32_t k = 0; k < batch; k++) *out += at[k] * stride_of(x, k);
    for (uint32_t k = 0; k < depth; k++) {
        uint32_t coordinate = 0;
        const ckks_status rc =
            read_index(&coordinate, node, indices->data[(size_t)i * depth + k], x->dims[batch + k], err);
        if (rc != CKKS_OK) return rc;
        *out += coordinate * stride_of(x, batch + k);
    }
    return CKKS_OK;
}

static ckks_status check_slices(const model_node *node, const tensor *x, const tensor *indices,
                                uint32_t batch, ckks_error *err) {
    if (!indices->rank || indices->rank <= batch || x->rank < batch || !indices->dims[indices->rank - 1] ||
        indices->dims[indices->rank - 1] > x->rank - batch)
        return node_error(node, err, "its indices do not fit its data");
    for (uint32_t i = 0; i < batch; i++)
        if (indices->dims[i] != x->dims[i]) return node_error(node, err, "its batches are not equal");
    return CKKS_OK;
}

static ckks_status pick_slices(picking *p, ckks_error *err) {
    const tensor *x = p->in[0], *indices = p->in[1];
    const int64_t batch = node_int(p->node, "batch_dims", 0);
    int64_t dims[2 * TENSOR_RANK_MAX];
    uint32_t rank = 0, run = 1, begin;
    if (batch < 0 || batch >= TENSOR_RANK_MAX) return node_error(p->node, err, "batch_dims are out of range");
    ckks_status rc = check_slices(p->node, x, indices, (uint32_t)batch, err);
    if (rc != CKKS_OK) return rc;
    for (uint32_t i = 0; i + 1 < indices->rank; i++) dims[rank++] = indices->dims[i];
    for (uint32_t i = (uint32_t)batch + indices->dims[indices->rank - 1]; i < x->rank; i++) {
        dims[rank++] = x->dims[i];
        run *= x->dims[i];
    }
    if ((rc = start_picking(p, dims, rank, err)) != CKKS_OK) return rc;
    for (uint32_t i = 0; i < p->shape.count; i++) {
        if (i % run == 0) rc = slice_place(&begin, p->node, x, indices, (uint32_t)batch, i / run, err);
        if (rc != CKKS_OK) return rc;
        p->index[i] = begin + i % run;
    }
    return CKKS_OK;
}

static ckks_status pick_triangle(picking *p, ckks_error *err) {
    const tensor *x = p->in[0], *k = p->in[1];
    const bool is_upper = node_int(p->node, "upper", 1) != 0;
    if (x->rank < 2 || (k && k->count != 1)) return node_error(p->node, err, "needs a matrix and one number");
    const double shift = k ? k->data[0] : 0;
    const ckks_status rc = same_shape(p, x, err);
    const uint32_t columns = x->dims[x->rank - 1], rows = x->dims[x->rank - 2];
    for (uint32_t i = 0; rc == CKKS_OK && i < p->shape.count; i++) {
        const double over = (double)(i % columns) - (double)(i / columns % rows) - shift;
        p->index[i] = (is_upper ? over >= 0 : over <= 0) ? i : MODEL_NONE;
    }
    return rc;
}

static ckks_status pick_where(picking *p, ckks_error *err) {
    const tensor *x = p->in[0], *condition = p->in[1];
    const bool is_flat = !node_attribute(p->node, "axis");
    uint32_t axis = 0, kept = 0, entry = 0;
    int64_t dims[TENSOR_RANK_MAX];
    ckks_status rc = CKKS_OK;
    if (!is_flat) rc = node_axis(&axis, p->node, node_int(p->node, "axis", 0), x->rank, err);
    if (rc != CKKS_OK) return rc;
    const uint32_t size = is_flat ? x->count : x->dims[axis], stride = is_flat ? 1 : stride_of(x, axis);
    if (condition->rank != 1 || condition->count > size)
        return node_error(p->node, err, "a condition of %u for an axis of %u", condition->count, size);
    for (uint32_t i = 0; i < condition->count; i++) kept += condition->data[i] != 0;
    for (uint32_t i = 0; i < x->rank; i++) dims[i] = i == axis ? kept : x->dims[i];
    dims[0] = is_flat ? kept : dims[0];
    if ((rc = start_picking(p, dims, is_flat ? 1 : x->rank, err)) != CKKS_OK) return rc;
    for (uint32_t i = 0; i < x->count; i++) {
        const uint32_t at = i / stride % size;
        if (at < condition->count && condition->data[at] != 0) p->index[entry++] = i;
    }
    return CKKS_OK;
}

static ckks_status pick_reversed(picking *p, ckks_error *err) {
    const tensor *x = p->in[0], *lengths = p->in[1];
    const int64_t batch = node_int(p->node, "batch_axis", 1), time = node_int(p->node, "time_axis", 0);
    if (x->rank < 2 || batch < 0 || batch > 1 || time != 1 - batch || lengths->count != x->dims[batch])
        return node_error(p->node, err, "its axes or lengths do not fit");
    const ckks_status rc = same_shape(p, x, err);
    for (uint32_t i = 0; rc == CKKS_OK && i < p->shape.count; i++) {
        uint32_t at[TENSOR_RANK_MAX];
        coordinates(at, x, i);
        const double length = lengths->data[at[batch]];
        if (!(length >= 0 && length <= x->dims[time]))
            return node_error(p->node, err, "a length of %g", length);
        const uint32_t stride = stride_of(x, (uint32_t)time), here = at[time];
        p->index[i] = here < length ? i - here * stride + ((uint32_t)length - 1 - here) * stride : i;
    }
    return rc;
}

static ckks_status pick(picking *p, ckks_error *err) {
    static const struct {
        const char *type;
        ckks_status (*plan)(picking *p, ckks_error *err);
    } plans[] = {{"GatherElements", pick_elements},
                 {"GatherND", pick_slices},
                 {"Trilu", pick_triangle},
                 {"Compress", pick_where},
                 {"ReverseSequence", pick_reversed}};
    size_t i = 0;
    while (strcmp(plans[i].type, p->node->proto->op_type) != 0) i++;
    if (!p->in[0]->rank) return node_error(p->node, err, "its input has no axes");
    return plans[i].plan(p, err);
}

static ckks_status pick_evaluate(evaluation *e, ckks_error *err) {
    picking p = {.node = e->node, .in = e->in, .memory = e->memory};
    ckks_status rc = pick(&p, err);
    if (rc == CKKS_OK) rc = output_like(e, 0, &p.shape, err);
    if (rc != CKKS_OK) return rc;
    for (uint32_t i = 0; i < p.shape.count; i++)
        e->out[0]->data[i] = p.index[i] == MODEL_NONE ? 0 : e->in[0]->data[p.index[i]];
    e->out[0]->is_integer = e->in[0]->is_integer;
    return CKKS_OK;
}

static ckks_status pick_lower(lowering *l, const model_node *node, ckks_error *err) {
    const tensor **in;
    picking p = {.node = node, .memory = l->memory};
    sparse *m;
    uint32_t entry = 0;
    ckks_status rc = lower_inputs(&in, l, node, err);
    if (rc != CKKS_OK) return rc;
    p.in = in;
    if (!lower_only_encrypted(l, node, 0))
        return lower_refuse(l, node, "where it reads depends on encrypted data, which cannot be followed",
                            "make its indices constants, or select before encryption", err);
    if ((rc = pick(&p, err)) != CKKS_OK) return rc;
    rc = sparse_create(&m, l->memory, p.shape.count, in[0]->count, p.shape.count, err);
    if (rc != CKKS_OK) return rc;
    for (uint32_t i = 0; i < p.shape.count; i++) {
        if (p.index[i] != MODEL_NONE) m->column[entry] = p.index[i], m->value[entry++] = 1;
        m->row_start[i + 1] = entry;
    }
    return lower_linear(l, node, lower_symbol(l, node, 0)->node, m, NULL, err);
}

/* ---- ScatterElements, ScatterND ---- */

typedef enum scatter_kind { SCATTER_SET, SCATTER_ADD, SCATTER_MUL, SCATTER_MAX, SCATTER_MIN } scatter_kind;

typedef struct scatter {
    scatter_kind kind;
    uint32_t *place; /* [updates->count]: the element of data that each goes to */
} scatter;

static ckks_status scatter_kind_of(scatter_kind *out, const model_node *node, ckks_error *err) {
    static const char *const names[] = {"none", "add", "mul", "max", "min"};
    size_t size;
    const uint8_t *text = node_text(node, "reduction", &size);
    *out = SCATTER_SET;
    if (!text) return CKKS_OK;
    for (int i = 0; i < 5; i++)
        if (node_text_is(text, size, names[i])) {
            *out = (scatter_kind)i;
            return CKKS_OK;
        }
    return node_error(node, err, "an unknown reduction");
}

static ckks_status scatter_slices(scatter *s, const model_node *node, const tensor *const *in,
                                  ckks_error *err) {
    const tensor *x = in[0], *indices = in[1], *updates = in[2];
    ckks_status rc = check_slices(node, x, indices, 0, err);
    if (rc != CKKS_OK) return rc;
    const uint32_t depth = indices->dims[indices->rank - 1], run = stride_of(x, depth - 1);
    if ((uint64_t)indices->count / depth * run != updates->count)
        return node_error(node, err, "%u updates do not fit its indices", updates->count);
    for (uint32_t i = 0, begin = 0; i < updates->count; i++) {
        if (i % run == 0) rc = slice_place(&begin, node, x, indices, 0, i / run, err);
        if (rc != CKKS_OK) return rc;
        s->place[i] = begin + i % run;
    }
    return CKKS_OK;
}

static ckks_status scatter_read(scatter *s, const model_node *node, const tensor *const *in, arena *memory,
                                ckks_error *err) {
    const tensor *x = in[0], *indices = in[1], *updates = in[2];
    uint32_t axis;
    ckks_status rc = scatter_kind_of(&s->kind, node, err);
    if (rc != CKKS_OK) return rc;
    if (!x->rank) return node_error(node, err, "its input has no axes");
    s->place = arena_take(memory, updates->count, sizeof *s->place);
    if (!s->place) return no_memory(node, err);
    if (strcmp(node->proto->op_type, "ScatterND") == 0) return scatter_slices(s, node, in, err);
    if ((rc = node_axis(&axis, node, node_int(node, "axis", 0), x->rank, err)) != CKKS_OK) return rc;
    if (indices->rank != x->rank || indices->count != updates->count)
        return node_error(node, err, "%u updates do not fit its indices", updates->count);
    for (uint32_t i = 0; i < updates->count && rc == CKKS_OK; i++)
        rc = element_place(&s->place[i], node, x, indices, axis, i, err);
    return rc;
}

static double scattered(scatter_kind kind, double old, double update) {
    switch (kind) {
    case SCATTER_ADD:
        return old + update;
    case SCATTER_MUL:
        return old * update;
    case SCATTER_MAX:
        return fmax(old, update);
    case SCATTER_MIN:
        return fmin(old, update);
    default:
        return update;
    }
}

static ckks_status scatter_evaluate(evaluation *e, ckks_error *err) {
    scatter s = {0};
    ckks_status rc = scatter_read(&s, e->node, e->in, e->memory, err);
    if (rc == CKKS_OK) rc = output_like(e, 0, e->in[0], err);
    if (rc != CKKS_OK) return rc;
    double *y = e->out[0]->data;
    if (e->in[0]->count) memcpy(y, e->in[0]->data, e->in[0]->count * sizeof *y);
    for (uint32_t i = 0; i < e->in[2]->count; i++)
        y[s.place[i]] = scattered(s.kind, y[s.place[i]], e->in[2]->data[i]);
    e->out[0]->is_integer = e->in[0]->is_integer;
    return CKKS_OK;
}

/* rows of the places read their updates: of those that set, the last */
static ckks_status scatter_matrix(sparse **out, lowering *l, const model_node *node, const scatter *s,
                                  uint32_t rows, uint32_t updates, ckks_error *err) {
    uint32_t *last = arena_take(l->memory, rows, sizeof *last); /* plus one; 0: none */
    sparse *m;
    if (!last) return no_memory(node, err);
    const ckks_status rc = sparse_create(out, l->memory, rows, updates, updates, err);
    if (rc != CKKS_OK) return rc;
    m = *out;
    for (uint32_t i = 0; i < updates; i++) {
        if (s->kind == SCATTER_ADD)
            m->row_start[s->place[i] + 1]++;
        else
            m->row_start[s->place[i] + 1] = 1;
        last[s->place[i]] = i + 1;
    }
    for (uint32_t r = 0; r < rows; r++) m->row_start[r + 1] += m->row_start[r];
    uint32_t *next = arena_take(l->memory, rows, sizeof *next);
    if (!next) return no_memory(node, err);
    for (uint32_t i = 0; i < updates; i++) {
        const uint32_t row = s->place[i];
        if (s->kind != SCATTER_ADD && last[row] != i + 1) continue;
        const uint32_t entry = m->row_start[row] + next[row]++;
        m->column[entry] = i, m->value[entry] = 1;
    }
    return CKKS_OK;
}

static ckks_status scatter_lower(lowering *l, const model_node *node, ckks_error *err) {
    const tensor **in;
    scatter s = {0};
    sparse *keep, *update;
    uint32_t entry = 0;
    ckks_status rc = lower_inputs(&in, l, node, err);
    if (rc != CKKS_OK) return rc;
    if (lower_symbol(l, node, 1)->kind != SYMBOL_CONSTANT)
        return lower_refuse(l, node, "where it writes depends on encrypted data, which cannot be followed",
                            "make its indices constants", err);
    if ((rc = scatter_read(&s, node, in, l->memory, err)) != CKKS_OK) return rc;
    CKKS_ASSERT(s.place);
    if (s.kind > SCATTER_ADD)
        return lower_refuse(l, node, "it multiplies or compares what is written to one place",
                            "placing and adding are compiled: use reduction none or add", err);
    const uint32_t count = in[0]->count;
    ir_node made = {.kind = IR_LINEAR, .count = count};
    made.terms = arena_take(l->memory, 2, sizeof *made.terms);
    made.bias = arena_take(l->memory, count, sizeof *made.bias);
    if (!made.terms || !made.bias) return no_memory(node, err);
    if ((rc = scatter_matrix(&update, l, node, &s, count, in[2]->count, err)) != CKKS_OK) return rc;
    if ((rc = sparse_create(&keep, l->memory, count, count, count, err)) != CKKS_OK) return rc;
    for (uint32_t i = 0; i < count; i++) {
        const bool is_set = s.kind == SCATTER_SET && update->row_start[i] != update->row_start[i + 1];
        if (!is_set) keep->column[entry] = i, keep->value[entry++] = 1;
        keep->row_start[i + 1] = entry;
    }
    for (uint32_t side = 0; side < 3; side += 2) {
        const sparse *m = side ? update : keep;
        if (lower_is_encrypted(l, node, side))
            made.terms[made.term_count++] = (ir_term){lower_symbol(l, node, side)->node, m};
        else
            sparse_apply_add(made.bias, m, in[side]->data);
    }
    return lower_append(l, node, &made, err);
}

/* ---- CumSum ---- */

typedef struct running {
    uint32_t size, stride;
    bool is_exclusive, is_reverse;
} running;

static ckks_status running_read(running *r, const model_node *node, const tensor *const *in,
                                ckks_error *err) {
    uint32_t axis;
    if (in[1]->count != 1) return node_error(node, err, "its axis is not one number");
    const double wanted = in[1]->data[0];
    if (!(fabs(wanted) <= TENSOR_RANK_MAX)) return node_error(node, err, "axis %g", wanted);
    const ckks_status rc = node_axis(&axis, node, (int64_t)wanted, in[0]->rank, err);
    if (rc != CKKS_OK) return rc;
    *r = (running){in[0]->dims[axis], stride_of(in[0], axis), node_int(node, "exclusive", 0) != 0,
                   node_int(node, "reverse", 0) != 0};
    return CKKS_OK;
}

/* the places along the axis that place `at` adds: [*first, *end) */
static void running_window(uint32_t *first, uint32_t *end, const running *r, uint32_t at) {
    *first = r->is_reverse ? at + r->is_exclusive : 0;
    *end = r->is_reverse ? r->size : at + !r->is_exclusive;
}

static ckks_status running_evaluate(evaluation *e, ckks_error *err) {
    running r = {.size = 1, .stride = 1};
    uint32_t first, end;
    ckks_status rc = running_read(&r, e->node, e->in, err);
    if (rc == CKKS_OK) rc = output_like(e, 0, e->in[0], err);
    if (rc == CKKS_OK) rc = evaluation_work(e, e->in[0]->count, r.size, err);
    for (uint32_t i = 0; rc == CKKS_OK && i < e->in[0]->count; i++) {
        const uint32_t at = i / r.stride % r.size, base = i - at * r.stride;
        running_window(&first, &end, &r, at);
        for (uint32_t k = first; k < end; k++) e->out[0]->data[i] += e->in[0]->data[base + k * r.stride];
    }
    e->out[0]->is_integer = e->in[0]->is_integer;
    return rc;
}

static ckks_status running_lower(lowering *l, const model_node *node, ckks_error *err) {
    const tensor **in;
    running r = {.size = 1, .stride = 1};
    sparse *m;
    uint32_t entry = 0, first, end;
    ckks_status rc = lower_inputs(&in, l, node, err);
    if (rc != CKKS_OK) return rc;
    if (!lower_only_encrypted(l, node, 0))
        return lower_refuse(l, node, "its axis depends on the input", "make it a constant", err);
    if ((rc = running_read(&r, node, in, err)) != CKKS_OK) return rc;
    const uint32_t count = in[0]->count;
    if ((rc = sparse_create(&m, l->memory, count, count, (uint64_t)count * r.size, err)) != CKKS_OK)
        return rc;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t at = i / r.stride % r.size, base = i - at * r.stride;
        running_window(&first, &end, &r, at);
        for (uint32_t k = first; k < end; k++, entry++)
            m->column[entry] = base + k * r.stride, m->value[entry] = 1;
        m->row_start[i + 1] = entry;
    }
    return lower_linear(l, node, lower_symbol(l, node, 0)->node, m, NULL, err);
}

#define PICK(type, inputs_min, inputs_max, note)                                                             \
    { "", type, inputs_min, inputs_max, 1, 0, pick_evaluate, pick_lower, note }
#define SCATTER(type)                                                                                        \
    { "", type, 3, 3, 1, 0, scatter_evaluate, scatter_lower, "constant indices; values set or added" }

const operator_row operators_place[] = {
    PICK("GatherElements", 2, 2, "constant indices"),
    PICK("GatherND", 2, 2, "constant indices"),
    PICK("Trilu", 1, 2, NULL),
    PICK("Compress", 2, 2, "constant condition"),
    PICK("ReverseSequence", 2, 2, "constant lengths"),
    SCATTER("Scatter"),
    SCATTER("ScatterElements"),
    SCATTER("ScatterND"),
    {"", "CumSum", 2, 2, 1, 0, running_evaluate, running_lower, "constant axis"},
    {0},
};
