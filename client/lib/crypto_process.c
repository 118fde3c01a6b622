/*
 * Where elements go in slots, and what happens to scores after decryption. Pure arithmetic in binary64, the
 * same on every machine but for libm's last bit. An affine step computes (x - offset) * scale.
 */
#include "client/lib/crypto.h"

#include "client/lib/wipe.h"
#include "kernels/base/bytes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    POST_AFFINE = 1,
    POST_SOFTMAX,
    POST_SIGMOID,
    POST_ARGMAX,
    POST_LABEL_MAP,
    POST_BINARY,
    POST_SOFTMAX_ZERO,
    POST_PROBIT,
    POST_EXP,
    POST_LOG_SOFTMAX,
    POST_SQRT,
    POST_ONE_VS_ONE
};
enum { LAYOUT_LATENCY = 1, LAYOUT_THROUGHPUT = 2 };

/* list[i], the one value for all, or a default where the list is empty */
static double pick(const double *list, size_t count, size_t i, double absent) {
    return count == 0 ? absent : count == 1 ? list[0] : list[i];
}

static ckks_status check_width(size_t list, size_t width, const char *field, ckks_error *err) {
    if (list <= 1 || list == width) return CKKS_OK;
    return ckks_error_set(err, CKKS_MALFORMED, field, "%zu values for %zu elements", list, width);
}

/* ---- layout ---- */

uint32_t client_slot_count(const client_model *model) {
    return model->description->input_layout->slot_count;
}

uint32_t client_rows_per_request(const client_model *model) {
    const Ckksd__V1__InputLayout *l = model->description->input_layout;
    return l->kind == LAYOUT_THROUGHPUT ? (l->sample_count_max ? l->sample_count_max : l->slot_count) : 1;
}

static uint32_t count_ciphertexts(const value_signature *signatures, uint32_t count) {
    uint32_t total = 0; /* at most 2^12 * 2^16 */
    for (uint32_t i = 0; i < count; i++) total += signatures[i].batch_count;
    return total;
}
uint32_t client_input_ciphertexts(const client_model *model) {
    return count_ciphertexts(model->inputs, model->input_count);
}
uint32_t client_output_ciphertexts(const client_model *model) {
    return count_ciphertexts(model->outputs, model->output_count);
}

ckks_status client_check_rows(const client_model *model, uint32_t row_count, ckks_error *err) {
    const Ckksd__V1__InputLayout *l = model->description->input_layout;
    const uint32_t most = client_rows_per_request(model);
    if (row_count && row_count <= most && row_count <= (l->kind == LAYOUT_LATENCY ? 1 : l->slot_count))
        return CKKS_OK;
    return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "rows", "%u rows, %s%u go into one request", row_count,
                          most > 1 ? "1 to " : "", most);
}

ckks_status client_slots(double *slots, const client_model *model, const double *elements, uint32_t row_count,
                         uint32_t ciphertext, ckks_error *err) {
    const Ckksd__V1__InputLayout *l = model->description->input_layout;
    const uint32_t slot_count = l->slot_count;
    ckks_status rc;
    if ((rc = client_check_rows(model, row_count, err)) != CKKS_OK) return rc;
    memset(slots, 0, slot_count * sizeof *slots);
    if (l->kind == LAYOUT_THROUGHPUT) {
        if (ciphertext >= model->element_count)
            return ckks_error_set(err, CKKS_MALFORMED, "input_layout", "ciphertext %u", ciphertext);
        for (uint32_t s = 0; s < row_count; s++)
            slots[s] = elements[(size_t)s * model->element_count + ciphertext];
        return CKKS_OK;
    }
    for (uint32_t i = 0; i < model->element_count; i++) {
        if (i >= l->n_input || i >= l->n_slot || l->slot[i] >= slot_count)
            return ckks_error_set(err, CKKS_MALFORMED, "input_layout", "element %u", i);
        if (l->input[i] == ciphertext) slots[l->slot[i]] = elements[i];
    }
    return CKKS_OK;
}

ckks_status client_scores(double *scores, const client_model *model, const double *const *decoded,
                          uint32_t row_count, ckks_error *err) {
    const Ckksd__V1__OutputLayout *l = model->description->output_layout;
    const uint32_t full = params_slot_count_max(&model->params), count = client_output_ciphertexts(model);
    for (uint32_t row = 0; row < row_count; row++)
        for (uint32_t i = 0; i < model->score_count; i++) {
            const bool is_latency = l->kind == LAYOUT_LATENCY;
            const uint32_t output = is_latency ? (i < l->n_output ? l->output[i] : UINT32_MAX) : i;
            const uint32_t slot = is_latency ? (i < l->n_slot ? l->slot[i] : UINT32_MAX) : row;
            if (output >= count || slot >= full || (is_latency && row))
                return ckks_error_set(err, CKKS_MALFORMED, "output_layout", "element %u", i);
            scores[(size_t)row * model->score_count + i] = decoded[output][slot];
        }
    return CKKS_OK;
}

bool client_scores_are_plausible(const client_model *model, const double *scores, uint32_t count) {
    const Ckksd__V1__ModelDescription *d = model->description;
    for (uint32_t i = 0; i < count; i++) {
        if (!isfinite(scores[i])) return false;
        if (d->has_output_minimum && scores[i] < d->output_minimum) return false;
        if (d->has_output_maximum && scores[i] > d->output_maximum) return false;
    }
    return true;
}

/* ---- precision ---- */

double client_score_factor(const client_model *model) {
    const Ckksd__V1__ModelDescription *d = model->description;
    if (!d->n_postprocess) return 1;
    const Ckksd__V1__PostprocessStep *s = d->postprocess[0];
    return s->kind == POST_AFFINE && s->n_scale == 1 && s->n_offset == 0 ? s->scale[0] : 1;
}

double client_promised_step(const client_model *model) {
    const Ckksd__V1__ModelDescription *d = model->description;
    if (!d->has_promised_error || !(d->promised_error > 0) || !isfinite(d->promised_error)) return 0;
    const double decade = pow(10.0, floor(log10(d->promised_error)));
    static const double factor[] = {1, 2, 5};
    for (int i = 0; i < 3; i++)
        if (factor[i] * decade >= d->promised_error) return factor[i] * decade;
    return 10 * decade;
}

void client_round(double *scores, uint32_t count, double step) {
    if (!(step > 0)) return;
    /* decimal steps have no exact binary64: dividing by the integer 1/step keeps 0.3 printing as 0.3 */
    const double inverse = step < 1 ? nearbyint(1 / step) : 0;
    for (uint32_t i = 0; i < count; i++) {
        const double multiple = nearbyint(scores[i] / step);
        scores[i] = inverse > 0 ? multiple / inverse : multiple * step;
    }
}

/* ---- scores to predictions ---- */

void client_prediction_fini(client_prediction *prediction) {
    if (!prediction) return;
    wipe_free(prediction->values);
    *prediction = (client_prediction){0};
}

static void post_softmax(double *v, uint32_t count, bool keep_zero) {
    double top = -INFINITY, total = 0;
    for (uint32_t i = 0; i < count; i++) top = fmax(top, v[i]);
    for (uint32_t i = 0; i < count; i++) {
        v[i] = keep_zero && fabs(v[i]) < 1e-7 ? 0 : exp(v[i] - top);
        total += v[i];
    }
    for (uint32_t i = 0; i < count && total > 0; i++) v[i] /= total;
}

static void post_log_softmax(double *v, uint32_t count) {
    double top = -INFINITY, total = 0;
    for (uint32_t i = 0; i < count; i++) top = fmax(top, v[i]);
    for (uint32_t i = 0; i < count; i++) total += exp(v[i] - top);
    for (uint32_t i = 0; i < count; i++) v[i] -= top + log(total);
}

/* the normal quantile: Newton from the middle on a monotone function, clamped where doubles end */
static double quantile(double p) {
    if (!(p > 0)) return -38;
    if (!(p < 1)) return 38;
    double low = -38, high = 38;
    for (int i = 0; i < 80; i++) {
        const double middle = 0.5 * (low + high);
        if (0.5 * erfc(-middle / 1.4142135623730951) < p)
            low = middle;
        else
            high = middle;
    }
    return 0.5 * (low + high);
}

static void choose_label(client_prediction *p, uint32_t index) {
    p->has_label = true;
    p->label_index = index;
    snprintf(p->label, sizeof p->label, "%u", index);
}

static uint32_t largest(const double *v, uint32_t count) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < count; i++)
        if (v[i] > v[best]) best = i;
    return best;
}

static double margin_to_runner_up(const double *v, uint32_t count, uint32_t best) {
    double margin = INFINITY;
    for (uint32_t i = 0; i < count; i++)
        if (i != best) margin = fmin(margin, v[best] - v[i]);
    return margin;
}

static ckks_status post_binary(client_prediction *p, const Ckksd__V1__PostprocessStep *step,
                               ckks_error *err) {
    if (p->value_count != 1)
        return ckks_error_set(err, CKKS_MALFORMED, "postprocess", "a binary decision from %u scores",
                              p->value_count);
    const double score = p->values[0];
    choose_label(p, score > step->threshold ? 1 : 0);
    if (!step->append_complement) return CKKS_OK;
    double *pair = wipe_grow(p->values, sizeof *pair, 2 * sizeof *pair);
    if (!pair) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a prediction");
    pair[0] = 1 - score, pair[1] = score;
    p->values = pair, p->value_count = 2;
    return CKKS_OK;
}

static ckks_status post_one_vs_one(client_prediction *p, const Ckksd__V1__PostprocessStep *step,
                                   ckks_error *err) {
    const uint32_t pairs = p->value_count, classes = client_pair_classes(pairs);
    if (!classes || step->n_scale != step->n_offset || (step->n_scale && step->n_scale != pairs))
        return ckks_error_set(err, CKKS_MALFORMED, "postprocess", "%u scores of pairs of classes", pairs);
    choose_label(p, client_pair_winner(p->values, classes));
    if (!step->n_scale) return CKKS_OK;
    double *probabilities = calloc(classes, sizeof *probabilities);
    if (!probabilities) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a prediction");
    for (uint32_t i = 0; i < pairs; i++)
        p->values[i] = client_pair_share(p->values[i], step->scale[i], step->offset[i]);
    const ckks_status rc = client_pair_couple(probabilities, p->values, classes, err);
    wipe_free(p->values);
    p->values = probabilities, p->value_count = classes;
    return rc;
}

static ckks_status post_label_map(client_prediction *p, const Ckksd__V1__PostprocessStep *step,
                                  ckks_error *err) {
    /* one score names two classes by its sign, unless a threshold decided before */
    if (!p->has_label)
        choose_label(p, p->value_count == 1 ? p->values[0] > 0 : largest(p->values, p->value_count));
    if (p->label_index < step->n_labels)
        snprintf(p->label, sizeof p->label, "%s", step->labels[p->label_index]);
    else if (p->label_index < step->n_integer_labels)
        snprintf(p->label, sizeof p->label, "%lld", (long long)step->integer_labels[p->label_index]);
    else
        return ckks_error_set(err, CKKS_MALFORMED, "labels", "class %u has no name", p->label_index);
    return CKKS_OK;
}

static ckks_status post_affine(client_prediction *p, const Ckksd__V1__PostprocessStep *step,
                               ckks_error *err) {
    ckks_status rc;
    if ((rc = check_width(step->n_offset, p->value_count, "offset", err)) != CKKS_OK) return rc;
    if ((rc = check_width(step->n_scale, p->value_count, "scale", err)) != CKKS_OK) return rc;
    for (uint32_t i = 0; i < p->value_count; i++)
        p->values[i] = (p->values[i] - pick(step->offset, step->n_offset, i, 0)) *
                       pick(step->scale, step->n_scale, i, 1);
    return CKKS_OK;
}

static ckks_status post_step(client_prediction *p, const Ckksd__V1__PostprocessStep *step, ckks_error *err) {
    switch (step->kind) {
    case POST_AFFINE:
        return post_affine(p, step, err);
    case POST_SOFTMAX:
    case POST_SOFTMAX_ZERO:
        post_softmax(p->values, p->value_count, step->kind == POST_SOFTMAX_ZERO);
        return CKKS_OK;
    case POST_SIGMOID:
        for (uint32_t i = 0; i < p->value_count; i++) p->values[i] = 1 / (1 + exp(-p->values[i]));
        return CKKS_OK;
    case POST_PROBIT:
        for (uint32_t i = 0; i < p->value_count; i++) p->values[i] = quantile(p->values[i]);
        return CKKS_OK;
    case POST_EXP:
        for (uint32_t i = 0; i < p->value_count; i++) p->values[i] = exp(p->values[i]);
        return CKKS_OK;
    case POST_LOG_SOFTMAX:
        post_log_softmax(p->values, p->value_count);
        return CKKS_OK;
    case POST_SQRT: /* of a sum of squares: below zero by the error of encryption alone */
        for (uint32_t i = 0; i < p->value_count; i++) p->values[i] = sqrt(fmax(p->values[i], 0));
        return CKKS_OK;
    case POST_ONE_VS_ONE:
        return post_one_vs_one(p, step, err);
    case POST_ARGMAX:
        choose_label(p, largest(p->values, p->value_count));
        return CKKS_OK;
    case POST_LABEL_MAP:
        return post_label_map(p, step, err);
    case POST_BINARY:
        return post_binary(p, step, err);
    default:
        return ckks_error_set(err, CKKS_UNSUPPORTED, "postprocess",
                              "step of kind %u: this client is too old for the model", step->kind);
    }
}

/* The score at which a binary decision flips, pulled back through the steps before it (all monotone). */
static double binary_margin(const Ckksd__V1__ModelDescription *d, double score) {
    for (size_t i = d->n_postprocess; i-- > 0;) {
        if (d->postprocess[i]->kind != POST_BINARY) continue;
        double threshold = d->postprocess[i]->threshold;
        for (size_t k = i; k-- > 0;) {
            const Ckksd__V1__PostprocessStep *s = d->postprocess[k];
            if (s->kind == POST_SIGMOID)
                threshold = log(threshold / (1 - threshold));
            else if (s->kind == POST_AFFINE)
                threshold = threshold / pick(s->scale, s->n_scale, 0, 1) + pick(s->offset, s->n_offset, 0, 0);
            else if (s->kind == POST_PROBIT)
                threshold = 0.5 * erfc(-threshold / 1.4142135623730951);
        }
        return fabs(score - threshold);
    }
    return INFINITY;
}

/* votes may change where a pair does */
static double pair_margin(const double *scores, uint32_t count) {
    double margin = INFINITY;
    for (uint32_t i = 0; i < count; i++) margin = fmin(margin, fabs(scores[i]));
    return margin;
}

static bool has_pairs(const Ckksd__V1__ModelDescription *d) {
    for (size_t i = 0; i < d->n_postprocess; i++)
        if (d->postprocess[i]->kind == POST_ONE_VS_ONE) return true;
    return false;
}

ckks_status client_postprocess(client_prediction *out, const client_model *model, const double *scores,
                               ckks_error *err) {
    const Ckksd__V1__ModelDescription *d = model->description;
    ckks_status rc = CKKS_OK;
    *out = (client_prediction){.value_count = model->score_count, .margin = INFINITY};
    if (!(out->values = malloc((size_t)model->score_count * sizeof *out->values)))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a prediction");
    memcpy(out->values, scores, (size_t)model->score_count * sizeof *scores);
    for (size_t i = 0; i < d->n_postprocess && rc == CKKS_OK; i++)
        rc = post_step(out, d->postprocess[i], err);
    if (rc != CKKS_OK) {
        client_prediction_fini(out);
        return rc;
    }
    if (out->has_label)
        out->margin = has_pairs(d)              ? pair_margin(scores, model->score_count)
                      : model->score_count == 1 ? binary_margin(d, scores[0])
                                                : margin_to_runner_up(scores, model->score_count,
                                                                      largest(scores, model->score_count));
    return CKKS_OK;
}

uint32_t client_model_label_count(const client_model *model) {
    const Ckksd__V1__ModelDescription *d = model->description;
    uint32_t count = 0;
    for (size_t i = 0; i < d->n_postprocess; i++) {
        const Ckksd__V1__PostprocessStep *s = d->postprocess[i];
        if (s->kind == POST_ARGMAX && !count) count = model->score_count;
        if (s->kind == POST_BINARY) count = 2;
        if (s->kind == POST_ONE_VS_ONE) count = client_pair_classes(model->score_count);
        if (s->kind == POST_LABEL_MAP) count = (uint32_t)(s->n_labels ? s->n_labels : s->n_integer_labels);
    }
    return count;
}
