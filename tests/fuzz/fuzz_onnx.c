/*
 * An ONNX file from a stranger: read, lowered and, if it makes sense, run on one row, by the interpreter and
 * by the compiler's graph, which must say the same.
 */
#include "client/compile/lower.h"
#include "client/compile/model.h"
#include "client/compile/table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* the largest number that takes part in a sum: rounding errors are a share of it */
static double largest_part(const ir_graph *g, const ir_run *run) {
    double most = 1;
    for (uint32_t k = 0; k < g->count; k++) {
        const ir_node *n = &g->nodes[k];
        for (uint32_t i = 0; n->use_count && i < n->count; i++) most = fmax(most, fabs(run->values[k][i]));
        for (uint32_t t = 0; n->use_count && t < n->term_count; t++) {
            const sparse *m = n->terms[t].matrix;
            const double *x = run->values[n->terms[t].from];
            for (uint32_t e = 0; e < sparse_entry_count(m); e++)
                most = fmax(most, fabs(m->value[e] * x[m->column[e]]));
        }
    }
    return most;
}

static bool is_steep(const ir_graph *g) {
    for (uint32_t k = 0; k < g->count; k++)
        if (g->nodes[k].use_count && g->nodes[k].kind != IR_INPUT && g->nodes[k].kind != IR_LINEAR)
            return true;
    return false;
}

static void compare(onnx_model *model, const double *row, const double *scores) {
    arena memory = {0};
    lowered_model lowered;
    ir_run run;
    ckks_error err = {0};
    if (model->table->is_table || model_lower(&lowered, model, &memory, &err) != CKKS_OK) goto out;
    ir_graph *g = &lowered.graph;
    ir_count_uses(g);
    if (g->nodes[0].count != onnx_model_input_count(model)) goto out;
    if (ir_run_init(&run, g, &memory, &err) != CKKS_OK || ir_run_row(&run, g, row, &err) != CKKS_OK) goto out;
    const double allowed = 1e-9 * largest_part(g, &run);
    /* a product or a function can make any error larger */
    for (uint32_t i = 0; !is_steep(g) && i < g->nodes[g->output].count; i++)
        if (!(fabs(run.values[g->output][i] - scores[i]) <= allowed)) {
            fprintf(stderr, "score %u: %g, the graph has %g\n", i, scores[i], run.values[g->output][i]);
            abort();
        }
out:
    arena_fini(&memory);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    onnx_model *model;
    ckks_error err = {0};
    if (onnx_model_parse(&model, data, size, &err) != CKKS_OK) {
        if (!err.code || !err.message[0]) abort(); /* no refusal without a reason */
        return 0;
    }
    const uint32_t count = onnx_model_input_count(model);
    double *row = calloc(count, sizeof *row);
    double *scores = calloc(onnx_model_score_count(model), sizeof *scores);
    for (uint32_t i = 0; row && i < count; i++) row[i] = (i % 5) * 0.5 - 0.75;
    if (row && scores && onnx_interpret(scores, model, row, 1, &err) == CKKS_OK) compare(model, row, scores);
    free(scores);
    free(row);
    onnx_model_destroy(model);
    return 0;
}
