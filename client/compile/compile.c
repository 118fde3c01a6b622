/*
 * The stages in order: read, lower, peel and fold, calibrate, substitute, then parameter set after parameter
 * set until one keeps the promise, and the package.
 */
#include "client/compile/compile.h"

#include "client/compile/compile_internal.h"
#include "client/compile/describe.h"
#include "client/compile/table.h"
#include "client/lib/crypto.h"
#include "kernels/base/hash.h"
#include "proto/package.h"
#include "proto/packing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define DEFAULT_RANGE_MARGIN 0.25
#define DEFAULT_CHECK_ROWS   8u
#define DEFAULT_CHECK_NS     UINT64_C(3000000000)
/* with more scores, no rescale is tried */
#define UNSCALED_SCORES_MIN 2048u
/* elements and scores beyond this size are scaled by powers of two */
#define INPUT_SIZE_MAX 16.0
#define SCORE_SIZE_MAX 64.0

/* where looking for fewer keys ends: a key costs as much as so many hoisted rotations */
#define KEY_COST_MAX 1000.0

#define NO_MEMORY(err) ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory to compile")

static void progress(const compilation *c, const char *stage, uint64_t done, uint64_t total) {
    if (c->options.progress) c->options.progress(c->options.progress_context, stage, done, total);
}

/* ---- options and rows ---- */

static ckks_status check_options(compilation *c, const compile_options *options, ckks_error *err) {
    compile_options *o = &c->options;
    *o = *options;
    if (!o->onnx_path)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "onnx_path", "no ONNX file is named");
    if (!o->calibration.values || !o->calibration.row_count)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "calibration", "no calibration rows");
    if (!o->security_bits) o->security_bits = 128;
    if (o->security_bits != 128 && o->security_bits != 192 && o->security_bits != 256)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "security_bits", "%u: 128, 192 and 256 are defined",
                              o->security_bits);
    if (o->log_n && (o->log_n < CKKS_LOG_N_MIN || o->log_n > CKKS_LOG_N_MAX))
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "log_n", "%u is not within %u to %u", o->log_n,
                              CKKS_LOG_N_MIN, CKKS_LOG_N_MAX);
    if (o->range_margin == 0) o->range_margin = DEFAULT_RANGE_MARGIN;
    if (!(o->target_error >= 0 && o->target_error < 1))
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "target_error", "%g is not between 0 and 1",
                              o->target_error);
    if (!(o->range_margin > 0 && o->range_margin <= 10))
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "range_margin", "%g is not between 0 and 10",
                              o->range_margin);
    if (!o->layout) o->layout = COMPILE_LAYOUT_LATENCY;
    if (o->layout > COMPILE_LAYOUT_AUTO)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "layout", "there is no layout %u", o->layout);
    if (o->layout == COMPILE_LAYOUT_AUTO && !o->batch)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "batch",
                              "the layout is chosen by the batch: how many rows?");
    if (!o->check_rows) o->check_rows = DEFAULT_CHECK_ROWS, c->check_limit_ns = DEFAULT_CHECK_NS;
    if (o->check_rows > o->calibration.row_count) o->check_rows = (uint32_t)o->calibration.row_count;
    return CKKS_OK;
}

static ckks_status check_cell(const compilation *c, uint64_t row, uint32_t column, ckks_error *err) {
    const model_column *m = &c->model->columns[column];
    const compile_calibration *data = &c->options.calibration;
    const double x = data->values[row * data->column_count + column];
    const char *name = m->name              ? m->name
                       : data->column_names ? data->column_names[column]
                                            : arena_format(&c->report->memory, "column %u", column + 1);
    if (!name) return NO_MEMORY(err);
    if (isinf(x) || (isnan(x) && !m->takes_missing))
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "calibration",
                              "row %llu, %s is missing or not a number: fill it in first",
                              (unsigned long long)row + 1, name);
    if (m->is_text && (x != floor(x) || x < (m->refuses_unknown ? 0 : -1) || x >= m->category_count))
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "calibration",
                              "row %llu, %s is no category that the model knows", (unsigned long long)row + 1,
                              name);
    return CKKS_OK;
}

static ckks_status check_rows(const compilation *c, ckks_error *err) {
    const compile_calibration *data = &c->options.calibration;
    if (data->column_count != c->model->input_shape.count)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "calibration",
                              "rows of %u numbers, the model takes %u", data->column_count,
                              c->model->input_shape.count);
    for (uint32_t i = 0; i < data->column_count; i++)
        if (c->model->columns[i].is_text && !c->model->columns[i].name && !data->column_names)
            return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "calibration",
                                  "columns of text need names: give a CSV file with a header");
    for (uint64_t r = 0; r < data->row_count; r++)
        for (uint32_t i = 0; i < data->column_count; i++) {
            const ckks_status rc = check_cell(c, r, i, err);
            if (rc != CKKS_OK) return rc;
        }
    return CKKS_OK;
}

/* ---- front half: from ONNX to a graph of polynomials ---- */

static ckks_status read_model(compilation *c, ckks_error *err) {
    ckks_status rc;
    progress(c, "read", 0, 1);
    const char *path = c->options.onnx_path, *slash = strrchr(path, '/');
    const char *name = c->options.name ? c->options.name : slash ? slash + 1 : path;
    char *copy = arena_text(&c->report->memory, name);
    if (!copy) return NO_MEMORY(err);
    const size_t length = strlen(copy);
    if (!c->options.name && length > 5 && strcmp(copy + length - 5, ".onnx") == 0) copy[length - 5] = 0;
    c->report->name = copy;
    if ((rc = model_read_file(&c->model, path, err)) != CKKS_OK) return rc;
    /* weights are held several times over; a small file must not be able to fill the memory */
    c->memory.bytes_max = (UINT64_C(4) << 30) + 12 * c->model->memory.bytes_taken;
    rc = model_lower(&c->lowered, c->model, &c->memory, err);
    if (c->model->refusal_count) {
        const ckks_status copied = report_refusals(c->report, c->model, err);
        if (copied != CKKS_OK) return copied;
    }
    if (rc == CKKS_OK && c->model->left_out)
        rc = report_note(
            c->report, err,
            "of the model's outputs clients get the label; left out, since it is made of scores in "
            "ways that encrypted numbers do not allow: %s",
            c->model->left_out);
    return rc;
}

/* what the client makes of each raw row, by the steps that the package will have */
static ckks_status make_elements(compilation *c, ckks_error *err) {
    const compile_calibration *raw = &c->options.calibration;
    const model_table *t = c->model->table;
    double *row = NULL;
    ckks_status rc = CKKS_OK;
    c->elements = arena_take(&c->memory, raw->row_count * t->element_count, sizeof *c->elements);
    if (!c->elements) return NO_MEMORY(err);
    for (uint64_t r = 0; r < raw->row_count && rc == CKKS_OK; r++) {
        size_t count = raw->column_count;
        free(row);
        if (!(row = malloc(count * sizeof *row))) return NO_MEMORY(err);
        memcpy(row, raw->values + r * count, count * sizeof *row);
        if ((rc = client_apply_steps(&row, &count, t->steps, t->step_count, err)) != CKKS_OK) break;
        if (count != t->element_count)
            rc = ckks_error_set(err, CKKS_INTERNAL, "preprocess", "%zu elements, the program takes %u", count,
                                t->element_count);
        else
            memcpy(c->elements + r * count, row, count * sizeof *row);
    }
    free(row);
    return rc;
}

static void preprocess_rows(compilation *c) {
    for (uint64_t r = 0; r < c->data.row_count; r++)
        for (uint32_t i = 0; i < c->data.column_count; i++) {
            const uint64_t at = r * c->data.column_count + i;
            c->rows[at] = (c->elements[at] - c->preprocess.offset[i]) * c->preprocess.scale[i];
        }
}

/* the exact graph must say what ONNX says */
static ckks_status compare_with_original(const compilation *c, ckks_error *err) {
    double largest = 0;
    const uint64_t total = c->data.row_count * c->score_count;
    for (uint64_t i = 0; i < total; i++) largest = fmax(largest, fabs(c->original[i]));
    for (uint64_t i = 0; i < total; i++)
        if (!(fabs(c->scores[i] - c->original[i]) <= 1e-8 * (1 + largest)))
            return ckks_error_set(err, CKKS_INTERNAL, "lowering",
                                  "row %llu scores %.9g, the ONNX model gives %.9g",
                                  (unsigned long long)(i / c->score_count) + 1, c->scores[i], c->original[i]);
    return CKKS_OK;
}

static ckks_status prepare_rows(compilation *c, ckks_error *err) {
    ir_graph *g = &c->lowered.graph;
    const compile_calibration *raw = &c->options.calibration;
    ckks_status rc;
    c->score_count = g->nodes[g->output].count;
    c->data = (calibration){NULL, raw->row_count, c->model->table->element_count};
    c->rows = arena_take(&c->memory, raw->row_count * c->data.column_count, sizeof *c->rows);
    c->original = arena_take(&c->memory, raw->row_count * c->score_count, sizeof *c->original);
    c->scores = arena_take(&c->memory, raw->row_count * c->score_count, sizeof *c->scores);
    if (!c->rows || !c->original || !c->scores) return NO_MEMORY(err);
    progress(c, "calibrate", 0, 1);
    if ((rc = onnx_interpret(c->original, c->model, raw->values, raw->row_count, err)) != CKKS_OK) return rc;
    if ((rc = ir_peel(g, &c->preprocess, err)) != CKKS_OK) return rc;
    if ((rc = ir_fold(g, err)) != CKKS_OK) return rc;
    if ((rc = make_elements(c, err)) != CKKS_OK) return rc;
    preprocess_rows(c);
    c->data.rows = c->rows;
    if ((rc = graph_observe(g, &c->data, c->scores, err)) != CKKS_OK) return rc;
    return compare_with_original(c, err);
}

/* raw numbers in the thousands cost precision: the client divides each column by a power of two, and the
 * first layer takes it back */
static ckks_status scale_input(compilation *c, ckks_error *err) {
    const uint32_t count = c->data.column_count;
    double *factor = arena_take(&c->memory, count, sizeof *factor);
    bool is_needed = false;
    ir_graph scaled;
    if (!factor) return NO_MEMORY(err);
    for (uint32_t i = 0; i < count; i++) {
        double largest = 0;
        for (uint64_t r = 0; r < c->data.row_count; r++)
            largest = fmax(largest, fabs(c->rows[r * count + i]));
        factor[i] = largest > INPUT_SIZE_MAX ? exp2(ceil(log2(largest))) : 1;
        is_needed = is_needed || factor[i] != 1;
    }
    if (!is_needed) return CKKS_OK;
    ckks_status rc = graph_scale_input(&scaled, &c->lowered.graph, factor, err);
    if (rc != CKKS_OK) return rc;
    c->lowered.graph = scaled;
    c->preprocess.is_present = true;
    for (uint32_t i = 0; i < count; i++) c->preprocess.scale[i] /= factor[i];
    preprocess_rows(c);
    rc = graph_observe(&c->lowered.graph, &c->data, c->scores, err);
    return rc == CKKS_OK ? report_note(c->report, err,
                                       "large input columns are divided by powers of two before encryption")
                         : rc;
}

static ckks_status scale_scores(compilation *c, ckks_error *err) {
    const ir_node *n = &c->graph.nodes[c->graph.output];
    const double largest = fmax(fabs(n->minimum), fabs(n->maximum));
    if (largest <= SCORE_SIZE_MAX) return CKKS_OK;
    c->score_scale = exp2(ceil(log2(largest / SCORE_SIZE_MAX)));
    const ckks_status rc = graph_scale_output(&c->graph, 1 / c->score_scale, err);
    return rc == CKKS_OK ? graph_observe(&c->graph, &c->data, c->scores, err) : rc;
}

/* scores, then what is between layers */
static ckks_status scale_output(compilation *c, ckks_error *err) {
    bool is_changed;
    double factor;
    ckks_status rc = scale_scores(c, err);
    if (rc == CKKS_OK) rc = graph_scale_inner(&is_changed, &factor, &c->graph, err);
    if (rc == CKKS_OK && is_changed) {
        c->score_scale *= factor;
        rc = graph_observe(&c->graph, &c->data, c->scores, err);
        if (rc == CKKS_OK)
            rc = report_note(c->report, err,
                             "large values between layers are carried divided by powers of two");
    }
    if (rc != CKKS_OK || c->score_scale == 1) return rc;
    return report_note(c->report, err, "scores are multiplied by %g after decryption", c->score_scale);
}

/* ---- back half: parameters, program, proof ---- */

/* the seed is public and the same for the same file and name, so that compiling twice gives the same package
 */
void compile_self_test_seed(compilation *c) {
    static const char purpose[] = "ckksd self test";
    uint8_t text[SHA256_BYTES + sizeof purpose];
    memcpy(text, c->model->digest, SHA256_BYTES);
    memcpy(text + SHA256_BYTES, purpose, sizeof purpose);
    sha256(c->program.plan.self_test_seed, text, sizeof text);
}

static ckks_status count_key_bytes(uint64_t *bytes, const plan *p, ckks_error *err) {
    key_requirement *keys;
    uint32_t count;
    ckks_status rc = plan_key_requirements(p, &keys, &count, err);
    if (rc != CKKS_OK) return rc;
    if (!packing_key_set_bytes(bytes, p->params, keys, count)) *bytes = UINT64_MAX;
    free(keys);
    return CKKS_OK;
}

/* under a budget for keys, steps that have none become dearer until few enough are left */
static ckks_status emit_program(compilation *c, ckks_error *err) {
    emit_options options = {.is_for_gpu = c->options.is_for_gpu};
    uint64_t bytes = 0, least = UINT64_MAX;
    for (;;) {
        ckks_status rc = program_emit(&c->program, &c->graph, &c->choice, &options, &c->memory, err);
        if (rc != CKKS_OK || !c->options.key_budget_bytes) return rc;
        if ((rc = count_key_bytes(&bytes, &c->program.plan, err)) != CKKS_OK) return rc;
        if (bytes <= c->options.key_budget_bytes) return CKKS_OK;
        if (bytes < least) least = bytes;
        options.key_cost = options.key_cost > 0 ? 3 * options.key_cost : 1;
        if (options.key_cost > KEY_COST_MAX)
            return ckks_error_set(err, CKKS_TOO_LARGE, "key_budget", "keys take at least %.1f MiB at 2^%u",
                                  (double)least / (1 << 20), c->choice.params.log_n);
    }
}

/* CKKS_PRECISION: these parameters do not keep the promise, the next may */
static ckks_status try_parameters(compilation *c, ckks_error *err) {
    const double allowed = PROMISE_SHARE * compile_score_range(c) / c->score_scale;
    const workload_progress report = {c->options.progress, c->options.progress_context};
    const prove_rows rows = {.rows = c->rows,
                             .scores = c->scores,
                             .row_count = c->data.row_count,
                             .element_count = c->data.column_count,
                             .score_count = c->score_count,
                             .check_count = c->options.check_rows,
                             .time_limit_ns = c->check_limit_ns};
    progress(c, "lay out", 0, 1);
    ckks_status rc = emit_program(c, err);
    if (rc != CKKS_OK) return rc;
    c->program.plan.is_insecure = c->options.allow_insecure && params_security_bits(&c->choice.params) == 0;
    compile_self_test_seed(c);
    c->promised_error = DEVIATIONS * c->program.noise;
    if (c->promised_error <= allowed || c->options.allow_insecure) {
        if ((rc = program_prove(&c->proof, &c->program, &rows, &c->memory, &report, err)) != CKKS_OK)
            return rc;
        c->promised_error = fmax(c->promised_error, MEASURED_FACTOR * c->proof.measured_error);
    }
    if (c->promised_error <= allowed || c->options.allow_insecure) return CKKS_OK;
    return ckks_error_set(
        err, CKKS_PRECISION, "parameters",
        "scores would be off by %.2g, a thousandth of their range is %.2g: values between its layers are "
        "far larger than the scores. Scale the columns (StandardScaler) or regularise more and "
        "train again%s",
        c->promised_error * c->score_scale, allowed * c->score_scale,
        c->options.log_n ? "; a larger --log-n may do" : "");
}

/* which layers take the levels, for those who must make their model flatter */
static ckks_status refuse_depth(const compilation *c, uint32_t depth, ckks_error *err) {
    const ir_node *worst = NULL;
    uint32_t worst_depth = 0, polynomials = 0, others = 0;
    for (uint32_t i = 0; i < c->graph.count; i++) {
        const ir_node *n = &c->graph.nodes[i];
        if (!n->use_count || n->kind == IR_INPUT) continue;
        const uint32_t levels = ir_node_depth(&c->graph, i);
        if (n->kind == IR_POLYNOMIAL) polynomials += levels;
        if (n->kind != IR_POLYNOMIAL) others++;
        if (levels >= worst_depth) worst_depth = levels, worst = n;
    }
    const uint32_t available = parameter_depth_max(c->options.security_bits);
    if (!worst || worst->kind != IR_POLYNOMIAL)
        return ckks_error_set(err, CKKS_UNSUPPORTED, "depth",
                              "the model needs %u levels, %u are available at %u bits of security without "
                              "bootstrapping: %u layers and products, one level each",
                              depth, available, c->options.security_bits, others);
    return ckks_error_set(err, CKKS_UNSUPPORTED, "depth",
                          "the model needs %u levels, %u are available at %u bits of security without "
                          "bootstrapping; activations take %u of them, most '%.40s' (%s of degree %u, %u "
                          "levels): square instead, or allow a larger --target-error",
                          depth, available, c->options.security_bits, polynomials, worst->source,
                          ir_function_name(worst->function), worst->degree, worst_depth);
}

typedef struct parameter_rank {
    uint32_t row; /* of the menu */
    double cost;
} parameter_rank;

/* rows of the menu that serve, cheapest program first */
static ckks_status rank_parameters(parameter_rank ranks[PARAMETER_ROWS_MAX], uint32_t *count, compilation *c,
                                   const parameter_wish *wish, ckks_error *err) {
    *count = 0;
    for (uint32_t row = 0; *count < PARAMETER_ROWS_MAX; row++) {
        ckks_error local = {0};
        double cost = 0;
        ckks_status rc = parameter_choose(&c->choice, &row, wish, *count ? &local : err);
        if (rc != CKKS_OK) return *count ? CKKS_OK : rc;
        rc = program_cost(&cost, &c->graph, &c->choice, err);
        if (rc == CKKS_TOO_LARGE) continue;
        if (rc != CKKS_OK) return rc;
        uint32_t at = (*count)++;
        for (; at && ranks[at - 1].cost > cost; at--) ranks[at] = ranks[at - 1];
        ranks[at] = (parameter_rank){row, cost};
    }
    return CKKS_OK;
}

/* the cheapest set of parameters that keeps the promise */
static ckks_status search_parameters(compilation *c, ckks_error *err) {
    uint32_t *levels = arena_take(&c->memory, c->graph.count, sizeof *levels);
    parameter_rank ranks[PARAMETER_ROWS_MAX];
    uint32_t count;
    ckks_error last = {0};
    if (!levels) return NO_MEMORY(err);
    const parameter_wish wish = {.depth = graph_levels(levels, &c->graph),
                                 .slot_count = 1,
                                 .security_bits = c->options.security_bits,
                                 .log_n = c->options.log_n,
                                 .allow_insecure = c->options.allow_insecure};
    ckks_status rc = rank_parameters(ranks, &count, c, &wish, &last);
    if (rc == CKKS_INSECURE_PARAMETERS && wish.log_n)
        return ckks_error_set(
            err, rc, "log_n",
            "N = 2^%u is too small for this model, a larger one is needed, or none asked for: "
            "%.160s",
            wish.log_n, last.message);
    if (rc == CKKS_NOT_FOUND && !wish.log_n && wish.depth) return refuse_depth(c, wish.depth, err);
    for (uint32_t i = 0; i < count && rc == CKKS_OK; i++) {
        uint32_t row = ranks[i].row;
        ckks_error local = {0};
        rc = parameter_choose(&c->choice, &row, &wish, &local);
        if (rc == CKKS_OK) rc = try_parameters(c, &local);
        if (rc == CKKS_OK) return CKKS_OK;
        if (!last.code || rc != CKKS_TOO_LARGE) last = local;
        if (rc != CKKS_PRECISION && rc != CKKS_TOO_LARGE) break;
        rc = CKKS_OK;
    }
    if (!last.code) return ckks_error_set(err, CKKS_TOO_LARGE, "slots", "a layer needs too many ciphertexts");
    return ckks_error_set(err, last.code, last.field, "%s", last.message);
}

/* a matrix that gives more scores than the smallest ring has slots: its weights are what costs, and without a
 * rescale they take a third less */
static bool may_end_unscaled(const compilation *c) {
    const ir_node *n = &c->graph.nodes[c->graph.output];
    if (n->kind != IR_LINEAR || n->count <= UNSCALED_SCORES_MIN) return false;
    for (uint32_t t = 0; t < n->term_count; t++)
        if (c->graph.nodes[n->terms[t].from].kind != IR_INPUT) return false;
    return true;
}

ckks_status compile_latency(compilation *c, ckks_error *err) {
    ckks_error local = {0};
    ckks_status rc = CKKS_PRECISION;
    c->graph.ends_unscaled = may_end_unscaled(c);
    if (c->graph.ends_unscaled) rc = search_parameters(c, &local);
    if (rc == CKKS_OK) return CKKS_OK;
    const bool is_other_way = !c->graph.ends_unscaled || rc == CKKS_PRECISION || rc == CKKS_TOO_LARGE ||
                              rc == CKKS_NOT_FOUND || rc == CKKS_INSECURE_PARAMETERS;
    c->graph.ends_unscaled = false;
    return is_other_way ? search_parameters(c, err)
                        : ckks_error_set(err, rc, local.field, "%s", local.message);
}

/* the chain as it is: every level of one size, so that scales stay where they are */
static ckks_status check_chain(double *scale, const ckks_params *params, ckks_error *err) {
    *scale = exp2(round(log2((double)params->prime[params->q_count > 1 ? 1 : 0])));
    for (uint32_t i = 1; i < params->q_count; i++)
        if (fabs(log2((double)params->prime[i] / *scale)) > 0.1)
            return ckks_error_set(
                err, CKKS_UNSUPPORTED, "compatible_with",
                "its primes have several sizes (%.0f and %.0f bits), as the throughput layout "
                "wants them: the other layout has one",
                log2(*scale), log2((double)params->prime[i]));
    if (params->q_count > 1 && (double)params->prime[0] < *scale * (1u << (HEADROOM_BITS - 2)))
        return ckks_error_set(err, CKKS_UNSUPPORTED, "compatible_with",
                              "its first prime has %.0f bits, too few above scales of %.0f",
                              log2((double)params->prime[0]), log2(*scale));
    return CKKS_OK;
}

/* another model's parameters, or a refusal with the numbers */
static ckks_status compile_compatible(compilation *c, ckks_error *err) {
    const ckks_params *other = c->options.compatible_with;
    uint32_t *levels = arena_take(&c->memory, c->graph.count, sizeof *levels);
    if (!levels) return NO_MEMORY(err);
    const uint32_t depth = graph_levels(levels, &c->graph);
    ckks_status rc;
    if (c->options.layout != COMPILE_LAYOUT_LATENCY || c->options.log_n)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "compatible_with",
                              "goes with the latency layout and without a ring degree");
    if ((rc = check_chain(&c->choice.scale, other, err)) != CKKS_OK) return rc;
    if (depth > params_level_max(other))
        return ckks_error_set(
            err, CKKS_UNSUPPORTED, "compatible_with",
            "this model needs %u levels, the other's parameters have %u (N = 2^%u): compile the "
            "deeper of the two first, and this one without",
            depth, params_level_max(other), other->log_n);
    if (!c->options.allow_insecure && (rc = params_gate(other, c->options.security_bits, err)) != CKKS_OK)
        return rc;
    c->choice.params = *other;
    ckks_error local = {0};
    rc = try_parameters(c, &local);
    if (rc == CKKS_PRECISION)
        return ckks_error_set(err, rc, "compatible_with",
                              "the other's parameters (N = 2^%u, scales of 2^%.0f) do not do for this model: "
                              "%.240s",
                              other->log_n, log2(c->choice.scale), local.message);
    if (rc != CKKS_OK) return ckks_error_set(err, rc, local.field, "%s", local.message);
    return report_note(c->report, err,
                       "uses the parameters of another model: clients keep their secret key, and add the "
                       "evaluation keys that it lacks");
}

static ckks_status find_program(compilation *c, ckks_error *err) {
    ckks_status rc;
    if (c->options.compatible_with) {
        rc = compile_compatible(c, err);
        if (rc == CKKS_OK) compile_trade(c, COMPILE_LAYOUT_LATENCY);
        return rc;
    }
    if (c->options.layout == COMPILE_LAYOUT_AUTO) return compile_auto(c, err);
    rc =
        c->options.layout == COMPILE_LAYOUT_THROUGHPUT ? compile_throughput(c, err) : compile_latency(c, err);
    if (rc == CKKS_OK) compile_trade(c, c->options.layout);
    return rc;
}

/* Polynomials that are closer than asked, for the sake of labels, need not be what parameters serve. */
static ckks_status find_close_program(compilation *c, ckks_error *err) {
    const uint32_t note_count = c->report->note_count;
    ckks_error cause = {0};
    ckks_status rc = scale_output(c, err);
    if (rc != CKKS_OK) return rc;
    if (!c->has_looser) return find_program(c, err);
    rc = find_program(c, &cause);
    if (rc == CKKS_OK) return CKKS_OK;
    if (rc != CKKS_PRECISION && rc != CKKS_UNSUPPORTED && rc != CKKS_TOO_LARGE && rc != CKKS_NOT_FOUND &&
        rc != CKKS_INSECURE_PARAMETERS)
        return ckks_error_set(err, rc, cause.field, "%s", cause.message);
    c->report->note_count = note_count;
    if ((rc = compile_take_looser(c, &cause, err)) != CKKS_OK) return rc;
    if ((rc = scale_output(c, err)) != CKKS_OK) return rc;
    return find_program(c, err);
}

/* ---- the package ---- */

static ckks_status fill_summary(compilation *c, ckks_error *err) {
    compile_summary *s = &c->report->summary;
    s->score_minimum = c->graph.nodes[c->graph.output].minimum * c->score_scale;
    s->score_maximum = c->graph.nodes[c->graph.output].maximum * c->score_scale;
    s->promised_error = c->promised_error * c->score_scale;
    s->measured_error = c->proof.measured_error * c->score_scale;
    s->checked_rows = c->proof.checked_rows;
    s->layout = c->program.is_batch ? COMPILE_LAYOUT_THROUGHPUT : COMPILE_LAYOUT_LATENCY;
    s->rows_per_request = c->program.is_batch ? params_slot_count_max(&c->choice.params) : 1;
    s->weights_bytes = c->proof.memory.weights_bytes;
    s->arena_bytes = c->proof.memory.arena_bytes;
    s->resident_key_bytes = c->proof.memory.keys_bytes;
    s->agreement = compile_agreement(c);
    s->has_labels = compile_has_labels(c);
    return s->has_labels ? compile_label_changes(&s->label_changes, c, c->scores, err) : CKKS_OK;
}

static ckks_status describe_layers(Ckksd__V1__CompileReport *out, compilation *c, ckks_error *err) {
    const uint32_t count = c->report->layer_count;
    Ckksd__V1__ReportLayer *layers = arena_take(&c->memory, count, sizeof *layers);
    out->layers = arena_take(&c->memory, count, sizeof(void *));
    if (!layers || !out->layers) return NO_MEMORY(err);
    for (uint32_t i = 0; i < count; i++) {
        const emitted_layer *from = &c->report->layers[i];
        Ckksd__V1__ReportLayer *to = out->layers[i] = &layers[i];
        ckksd__v1__report_layer__init(to);
        if (!(to->source = arena_text(&c->memory, from->source))) return NO_MEMORY(err);
        if (!(to->kind = arena_text(&c->memory, from->kind))) return NO_MEMORY(err);
        to->has_elements_in = 1, to->elements_in = from->elements_in;
        to->has_elements_out = 1, to->elements_out = from->elements_out;
        to->has_level_in = 1, to->level_in = from->level_in;
        to->has_level_out = 1, to->level_out = from->level_out;
        to->has_ciphertexts = 1, to->ciphertexts = from->blocks;
        to->has_period = 1, to->period = from->period;
        to->has_diagonals = 1, to->diagonals = from->diagonals;
        to->has_hoisted_rotations = 1, to->hoisted_rotations = from->babies;
        to->has_giant_rotations = 1, to->giant_rotations = from->giants;
        to->has_folding_rotations = 1, to->folding_rotations = from->folds;
        if (!from->degree) continue;
        to->has_degree = 1, to->degree = from->degree;
        to->has_interval_low = 1, to->interval_low = from->interval_low;
        to->has_interval_high = 1, to->interval_high = from->interval_high;
        to->has_polynomial_error = 1, to->polynomial_error = from->polynomial_error;
    }
    out->n_layers = count;
    return CKKS_OK;
}

static ckks_status build_package(compilation *c, uint8_t **package_bytes, size_t *size, ckks_error *err) {
    Ckksd__V1__ModelDescription description;
    Ckksd__V1__CompileReport report;
    package *parsed = NULL;
    const describe_input in = {.name = c->report->name,
                               .model = c->model,
                               .raw = &c->options.calibration,
                               .graph = &c->graph,
                               .preprocess = &c->preprocess,
                               .steps = &c->lowered.steps,
                               .program = &c->program,
                               .score_scale = c->score_scale,
                               .promised_error = c->promised_error,
                               .depth = c->program.plan.values[0].level};
    ckks_status rc = describe_model(&description, &in, &c->memory, err);
    if (rc != CKKS_OK) return rc;
    ckksd__v1__compile_report__init(&report);
    report.producer = (char[]){"ckksctl " CKKSD_VERSION};
    report.has_source_digest = 1;
    report.source_digest = (ProtobufCBinaryData){SHA256_BYTES, c->model->digest};
    report.has_clear_agreement = 1, report.clear_agreement = c->report->summary.agreement;
    report.has_calibration_rows = 1;
    report.calibration_rows = (uint32_t)(c->data.row_count > UINT32_MAX ? UINT32_MAX : c->data.row_count);
    if ((rc = describe_layers(&report, c, err)) != CKKS_OK) return rc;
    if (c->proof.replay_ns) report.has_replay_ns = 1, report.replay_ns = c->proof.replay_ns;
    if ((rc = package_build(package_bytes, size, &c->program.plan, &description, &report, err)) != CKKS_OK)
        return rc;
    /* what a daemon will say of it */
    rc = package_parse(&parsed, *package_bytes, *size, c->options.allow_insecure, err);
    package_destroy(parsed);
    return rc;
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void account_effort(compile_summary *s, uint64_t begin_ns) {
    struct rusage usage = {0};
    getrusage(RUSAGE_SELF, &usage);
    s->compile_seconds = (double)(now_ns() - begin_ns) * 1e-9;
    s->peak_bytes = (uint64_t)usage.ru_maxrss * 1024;
}

ckks_status compile_model(uint8_t **package_bytes, size_t *size, compile_report **report,
                          const compile_options *options, ckks_error *err) {
    compilation c = {0};
    const uint64_t begin_ns = now_ns();
    ckks_status rc;
    *package_bytes = NULL, *size = 0, *report = NULL;
    if ((rc = report_create(&c.report, err)) != CKKS_OK) return rc;
    if ((rc = check_options(&c, options, err)) != CKKS_OK) goto out;
    if ((rc = read_model(&c, err)) != CKKS_OK) goto out;
    if ((rc = check_rows(&c, err)) != CKKS_OK) goto out;
    if ((rc = prepare_rows(&c, err)) != CKKS_OK) goto out;
    if ((rc = scale_input(&c, err)) != CKKS_OK) goto out;
    if ((rc = compile_substitute(&c, err)) != CKKS_OK) goto out;
    if ((rc = find_close_program(&c, err)) != CKKS_OK) goto out;
    if ((rc = fill_summary(&c, err)) != CKKS_OK) goto out;
    if ((rc = report_program(c.report, &c.program, err)) != CKKS_OK) goto out;
    if ((rc = build_package(&c, package_bytes, size, err)) != CKKS_OK) goto out;
    c.report->package_bytes = *size;
    account_effort(&c.report->summary, begin_ns);
    c.report->is_complete = true;
out:
    if (rc != CKKS_OK) free(*package_bytes), *package_bytes = NULL, *size = 0;
    *report = c.report;
    onnx_model_destroy(c.model);
    arena_fini(&c.memory);
    return rc;
}
