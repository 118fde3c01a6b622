/* Which values the activations of a model see, in the clear: what polynomials must hold for. */
#include "client/compile/lower.h"
#include "client/compile/table.h"
#include "client/lib/crypto.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NO_MEMORY(err) ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory to observe the model")

typedef struct observer {
    const onnx_model *model;
    lowered_model lowered;
    ir_run run;
    uint32_t count;
    uint32_t *nodes; /* [count]: activations that something uses */
    onnx_layer_range *ranges;
} observer;

static ckks_status list_activations(observer *o, arena *memory, ckks_error *err) {
    ir_graph *g = &o->lowered.graph;
    ir_count_uses(g);
    o->nodes = arena_take(memory, g->count, sizeof *o->nodes);
    o->ranges = calloc((size_t)g->count + 1, sizeof *o->ranges);
    if (!o->nodes || !o->ranges) return NO_MEMORY(err);
    for (uint32_t i = 0; i < g->count; i++) {
        if (g->nodes[i].kind != IR_ACTIVATION || !g->nodes[i].use_count) continue;
        o->ranges[o->count] = (onnx_layer_range){g->nodes[i].source, INFINITY, -INFINITY, 0, 0};
        o->nodes[o->count++] = i;
    }
    return ir_run_init(&o->run, g, memory, err);
}

static void take_row(observer *o, uint64_t row) {
    const ir_graph *g = &o->lowered.graph;
    for (uint32_t k = 0; k < o->count; k++) {
        onnx_layer_range *r = &o->ranges[k];
        const uint32_t from = g->nodes[o->nodes[k]].a;
        for (uint32_t i = 0; i < g->nodes[from].count; i++) {
            const double x = o->run.values[from][i];
            if (x < r->minimum) r->minimum = x, r->minimum_row = row;
            if (x > r->maximum) r->maximum = x, r->maximum_row = row;
        }
    }
}

static ckks_status observe_row(observer *o, const double *raw, uint64_t row, ckks_error *err) {
    const model_table *t = o->model->table;
    size_t count = onnx_model_input_count(o->model);
    double *values = malloc(count * sizeof *values);
    if (!values) return NO_MEMORY(err);
    memcpy(values, raw, count * sizeof *values);
    ckks_status rc = client_apply_steps(&values, &count, t->steps, t->step_count, err);
    if (rc == CKKS_OK && count != t->element_count)
        rc =
            ckks_error_set(err, CKKS_INTERNAL, "preprocess", "%zu elements, not %u", count, t->element_count);
    if (rc == CKKS_OK) rc = ir_run_row(&o->run, &o->lowered.graph, values, err);
    if (rc == CKKS_OK) take_row(o, row);
    free(values);
    return rc;
}

ckks_status onnx_observe(onnx_layer_range **out, uint32_t *count, const onnx_model *model, const double *rows,
                         uint64_t row_count, ckks_error *err) {
    arena memory = {0};
    observer o = {.model = model};
    const size_t width = onnx_model_input_count(model);
    /* lowering records refusals in the model; this one has none, so nothing is written */
    ckks_status rc = model_lower(&o.lowered, (onnx_model *)(uintptr_t)model, &memory, err);
    *out = NULL, *count = 0;
    if (rc == CKKS_OK) rc = list_activations(&o, &memory, err);
    for (uint64_t r = 0; r < row_count && rc == CKKS_OK; r++) rc = observe_row(&o, rows + r * width, r, err);
    if (rc == CKKS_OK) *out = o.ranges, *count = o.count, o.ranges = NULL;
    free(o.ranges);
    arena_fini(&memory);
    return rc;
}
