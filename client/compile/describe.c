#include "client/compile/describe.h"

#include "client/compile/table.h"

#include <math.h>
#include <string.h>

#define NO_MEMORY(err)                                                                                       \
    ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for the model's description")

/* protobuf-c's messages have no const pointers; nothing writes through them */
#define UNCONST(type, pointer) ((type *)(uintptr_t)(pointer))

/* the range of a column of numbers; false: it is missing in every row */
static bool column_range(double *low, double *high, const compile_calibration *raw, uint32_t column) {
    *low = INFINITY, *high = -INFINITY;
    for (uint64_t r = 0; r < raw->row_count; r++) {
        const double x = raw->values[r * raw->column_count + column];
        if (isnan(x)) continue;
        *low = fmin(*low, x);
        *high = fmax(*high, x);
    }
    return *low <= *high;
}

static void describe_column(Ckksd__V1__Column *out, const model_column *column, const char *name,
                            const compile_calibration *raw, uint32_t number, double slack) {
    double low, high;
    ckksd__v1__column__init(out);
    out->name = UNCONST(char, name);
    out->has_kind = 1, out->kind = column->is_text ? 2 : 1;
    out->has_missing_is_imputed = 1, out->missing_is_imputed = column->takes_missing;
    if (column->is_text) {
        out->n_categories = column->category_count;
        out->categories = UNCONST(char *, column->categories);
        out->has_unknown_is_refused = 1, out->unknown_is_refused = column->refuses_unknown;
    } else if (column_range(&low, &high, raw, number)) {
        ir_widen(&low, &high, slack);
        out->has_minimum = 1, out->minimum = low;
        out->has_maximum = 1, out->maximum = high;
    }
}

static ckks_status describe_columns(Ckksd__V1__ModelDescription *d, const describe_input *in, double slack,
                                    arena *memory, ckks_error *err) {
    const compile_calibration *raw = in->raw;
    if (!raw->column_names && !in->model->columns[0].name) return CKKS_OK;
    Ckksd__V1__Column *columns = arena_take(memory, raw->column_count, sizeof *columns);
    d->columns = arena_take(memory, raw->column_count, sizeof(void *));
    if (!columns || !d->columns) return NO_MEMORY(err);
    for (uint32_t c = 0; c < raw->column_count; c++) {
        const model_column *column = &in->model->columns[c];
        const char *name = column->name ? column->name : raw->column_names ? raw->column_names[c] : NULL;
        describe_column(&columns[c], column, name, raw, c, slack);
        d->columns[c] = &columns[c];
    }
    d->n_columns = raw->column_count;
    return CKKS_OK;
}

static ckks_status describe_shape(Ckksd__V1__ModelDescription *d, const tensor *shape, arena *memory,
                                  ckks_error *err) {
    const uint32_t first = shape->rank > 1 ? 1 : 0; /* the batch axis */
    d->n_input_shape = shape->rank - first;
    d->input_shape = arena_take(memory, shape->rank, sizeof *d->input_shape);
    if (!d->input_shape) return NO_MEMORY(err);
    for (uint32_t i = first; i < shape->rank; i++) d->input_shape[i - first] = shape->dims[i];
    return CKKS_OK;
}

/* one number where all are the same */
static size_t list_length(const double *values, uint32_t count) {
    for (uint32_t i = 1; i < count; i++)
        if (values[i] != values[0]) return count;
    return 1;
}

/* the table's steps, then what ir_peel found */
static ckks_status describe_preprocess(Ckksd__V1__ModelDescription *d, const describe_input *in,
                                       uint32_t count, arena *memory, ckks_error *err) {
    const ir_preprocess *preprocess = in->preprocess;
    const model_table *t = in->model->table;
    d->preprocess = arena_take(memory, (uint64_t)t->step_count + 1, sizeof(void *));
    if (!d->preprocess) return NO_MEMORY(err);
    for (uint32_t i = 0; i < t->step_count; i++) d->preprocess[d->n_preprocess++] = t->steps[i];
    if (!preprocess->is_present) return CKKS_OK;
    Ckksd__V1__PreprocessStep *step = arena_take(memory, 1, sizeof *step);
    if (!step) return NO_MEMORY(err);
    ckksd__v1__preprocess_step__init(step);
    step->has_kind = 1, step->kind = 1;
    step->n_offset = list_length(preprocess->offset, count), step->offset = preprocess->offset;
    step->n_scale = list_length(preprocess->scale, count), step->scale = preprocess->scale;
    d->preprocess[d->n_preprocess++] = step;
    return CKKS_OK;
}

static ckks_status describe_layouts(Ckksd__V1__ModelDescription *d, const describe_input *in, arena *memory,
                                    ckks_error *err) {
    const slot_map *x = &in->program->input_map, *y = &in->program->output_map;
    const bool is_batch = in->program->is_batch;
    const uint32_t samples = params_slot_count_max(in->program->plan.params);
    Ckksd__V1__InputLayout *input = arena_take(memory, 1, sizeof *input);
    Ckksd__V1__OutputLayout *output = arena_take(memory, 1, sizeof *output);
    if (!input || !output) return NO_MEMORY(err);
    ckksd__v1__input_layout__init(input);
    input->has_kind = 1, input->kind = is_batch ? 2 : 1;
    input->has_element_count = 1, input->element_count = in->graph->nodes[0].count;
    input->has_slot_count = 1, input->slot_count = is_batch ? samples : x->period;
    input->n_input = x->count, input->input = x->block; /* no lists in a batch */
    input->n_slot = x->count, input->slot = x->slot;
    input->has_sample_count_max = 1, input->sample_count_max = is_batch ? samples : 1;
    input->has_secret_key_only = in->program->secret_key_only;
    input->secret_key_only = in->program->secret_key_only;
    ckksd__v1__output_layout__init(output);
    output->has_kind = 1, output->kind = is_batch ? 2 : 1;
    output->has_element_count = 1, output->element_count = in->graph->nodes[in->graph->output].count;
    output->has_slot_count = 1, output->slot_count = is_batch ? samples : y->period;
    output->n_output = y->count, output->output = y->block;
    output->n_slot = y->count, output->slot = y->slot;
    d->input_layout = input;
    d->output_layout = output;
    return CKKS_OK;
}

/* ---- postprocessing ---- */

typedef struct step_list {
    Ckksd__V1__PostprocessStep steps[5];
    Ckksd__V1__PostprocessStep *list[5];
    double factor;
} step_list;

static Ckksd__V1__PostprocessStep *add_step(Ckksd__V1__ModelDescription *d, step_list *list, uint32_t kind) {
    Ckksd__V1__PostprocessStep *step = &list->steps[d->n_postprocess];
    ckksd__v1__postprocess_step__init(step);
    step->has_kind = 1, step->kind = kind;
    list->list[d->n_postprocess++] = step;
    return step;
}

static ckks_status describe_postprocess(Ckksd__V1__ModelDescription *d, const client_steps *s,
                                        double score_scale, arena *memory, ckks_error *err) {
    step_list *list = arena_take(memory, 1, sizeof *list);
    if (!list) return NO_MEMORY(err);
    d->postprocess = list->list;
    if (score_scale != 1) {
        Ckksd__V1__PostprocessStep *step = add_step(d, list, POST_AFFINE);
        list->factor = score_scale;
        step->n_scale = 1, step->scale = &list->factor;
    }
    if (s->link) {
        Ckksd__V1__PostprocessStep *step = add_step(d, list, s->link);
        step->n_scale = step->n_offset = s->pair_count;
        step->scale = s->pair_scale, step->offset = s->pair_offset;
    }
    if (s->link == POST_ONE_VS_ONE) {
        /* it has chosen the label */
    } else if (s->has_label && s->is_binary) {
        Ckksd__V1__PostprocessStep *step = add_step(d, list, POST_BINARY);
        step->has_threshold = 1, step->threshold = s->threshold;
        step->has_append_complement = 1, step->append_complement = s->append_complement;
    } else if (s->has_label) {
        add_step(d, list, POST_ARGMAX);
    }
    if (s->label_count) {
        Ckksd__V1__PostprocessStep *step = add_step(d, list, POST_LABEL_MAP);
        step->n_labels = s->labels ? s->label_count : 0;
        step->labels = UNCONST(char *, s->labels);
        step->n_integer_labels = s->labels ? 0 : s->label_count;
        step->integer_labels = s->label_numbers;
    }
    return CKKS_OK;
}

ckks_status describe_model(Ckksd__V1__ModelDescription *out, const describe_input *in, arena *memory,
                           ckks_error *err) {
    const ir_node *input = &in->graph->nodes[0], *scores = &in->graph->nodes[in->graph->output];
    double low, high, score_low = scores->minimum, score_high = scores->maximum;
    const double slack = ir_range_slack(in->graph);
    ckks_status rc;
    ckksd__v1__model_description__init(out);
    out->name = UNCONST(char, in->name);
    if ((rc = describe_columns(out, in, slack, memory, err)) != CKKS_OK) return rc;
    if (in->model->input_count == 1 &&
        (rc = describe_shape(out, &in->model->input_shape, memory, err)) != CKKS_OK)
        return rc;
    if ((rc = describe_preprocess(out, in, input->count, memory, err)) != CKKS_OK) return rc;
    if ((rc = describe_layouts(out, in, memory, err)) != CKKS_OK) return rc;
    if ((rc = describe_postprocess(out, in->steps, in->score_scale, memory, err)) != CKKS_OK) return rc;
    ir_input_range(&low, &high, in->graph);
    ir_widen(&score_low, &score_high, SCORE_SLACK);
    out->has_promised_error = 1, out->promised_error = in->promised_error;
    out->has_minimum = 1, out->minimum = low;
    out->has_maximum = 1, out->maximum = high;
    out->has_output_minimum = 1, out->output_minimum = score_low;
    out->has_output_maximum = 1, out->output_maximum = score_high;
    out->has_depth = 1, out->depth = in->depth;
    return CKKS_OK;
}
