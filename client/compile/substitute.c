/*
 * How close polynomials must be to the activations that they stand for.
 *
 * Asked for a target error, they are made that close. Asked for nothing, they are made as close as the
 * default target error says, and then closer while it matters for labels. An error changes a label where the
 * margin is smaller than it and it has the other sign; so the share of labels that change is about
 *
 *     (density of margins at zero) * (mean size of the margins' errors) / 2.
 *
 * A few hundred calibration rows show both, though hardly one of them has a margin as small as the errors
 * are: the density is taken from the square root of their number nearest to zero. The rows' true labels,
 * which nobody need have, are not looked at, and a model without labels has the target error alone.
 */
#include "client/compile/compile_internal.h"

#include "client/lib/crypto.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_TARGET_ERROR 0.01
/* share of labels that polynomials may be expected to change, unless a target error is asked for */
#define LABEL_CHANGES_MAX 1e-3
/* the default target error is divided by no more than this for the sake of labels */
#define CLOSER_MAX 16.0
/* nor are polynomials of higher degrees taken for their sake: only where the error that is asked for needs
 * them
 */
#define CLOSER_DEGREE_MAX 127u
/* how often the tolerance is halved, for a choice and for the next that is another one */
#define HALVINGS      20
#define NEXT_HALVINGS 4

#define NO_MEMORY(err) ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory to compare scores")

/* ---- labels ---- */

bool compile_has_labels(const compilation *c) {
    const client_steps *s = &c->lowered.steps;
    return s->has_label || s->label_count || s->link == POST_ONE_VS_ONE;
}

/* the score above which a binary decision is for the second class: the threshold is one of what the link
 * makes of it */
static double binary_threshold(const client_steps *s) {
    if (!s->has_label || !s->is_binary) return 0;
    if (s->link == POST_SIGMOID) return log(s->threshold / (1 - s->threshold));
    if (s->link == POST_PROBIT) return 0.5 * erfc(-s->threshold / 1.4142135623730951);
    return s->threshold;
}

/* Which of the scores of a row decide: the label is for the side of zero that scores[a] - scores[b], less the
 * threshold, lies on. */
typedef struct decision {
    uint32_t a, b; /* equal: one score alone */
    double threshold;
} decision;

static decision decide(const compilation *c, const double *scores) {
    const uint32_t count = c->score_count;
    decision d = {0, 0, 0};
    if (count == 1) return (decision){0, 0, binary_threshold(&c->lowered.steps)};
    if (c->lowered.steps.link == POST_ONE_VS_ONE) {
        for (uint32_t i = 1; i < count; i++)
            if (fabs(scores[i]) < fabs(scores[d.a])) d.a = d.b = i;
        return d;
    }
    for (uint32_t i = 1; i < count; i++)
        if (scores[i] > scores[d.a]) d.a = i;
    d.b = d.a ? 0 : 1;
    for (uint32_t i = 0; i < count; i++)
        if (i != d.a && scores[i] > scores[d.b]) d.b = i;
    return d;
}

static double margin_of(const decision *d, const double *scores, double factor) {
    return factor * (scores[d->a] - (d->a == d->b ? 0 : scores[d->b])) - d->threshold;
}

static uint32_t label_of(const compilation *c, const double *scores, double factor) {
    if (c->lowered.steps.link == POST_ONE_VS_ONE)
        return client_pair_winner(scores, client_pair_classes(c->score_count));
    const decision d = decide(c, scores);
    return c->score_count == 1 ? margin_of(&d, scores, factor) > 0 : d.a;
}

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

ckks_status compile_label_changes(double *share, const compilation *c, const double *scores,
                                  ckks_error *err) {
    const uint64_t rows = c->data.row_count;
    const double nearest = fmax(1, floor(sqrt((double)rows)));
    double error = 0, *margins = malloc((size_t)rows * sizeof *margins);
    if (!margins) return NO_MEMORY(err);
    for (uint64_t r = 0; r < rows; r++) {
        const double *exact = c->original + r * c->score_count;
        const decision d = decide(c, exact);
        const double margin = margin_of(&d, exact, 1);
        error += fabs(margin_of(&d, scores + r * c->score_count, c->score_scale) - margin);
        margins[r] = fabs(margin);
    }
    qsort(margins, (size_t)rows, sizeof *margins, compare_doubles);
    const double width = margins[(uint64_t)nearest - 1], mean = error / (double)rows;
    *share = mean > 0 ? fmin(1, 0.5 * mean * nearest / ((double)rows * fmax(width, mean * 1e-9))) : 0;
    free(margins);
    return CKKS_OK;
}

double compile_agreement(const compilation *c) {
    uint64_t agree = 0;
    for (uint64_t r = 0; r < c->data.row_count; r++)
        agree += label_of(c, c->scores + r * c->score_count, c->score_scale) ==
                 label_of(c, c->original + r * c->score_count, 1);
    return (double)agree / (double)c->data.row_count;
}

/* ---- scores ---- */

double compile_difference(const compilation *c, const double *scores) {
    double largest = 0;
    for (uint64_t i = 0; i < c->data.row_count * c->score_count; i++)
        largest = fmax(largest, fabs(scores[i] * c->score_scale - c->original[i]));
    return largest;
}

double compile_score_range(const compilation *c) {
    const ir_node *n = &c->lowered.graph.nodes[c->lowered.graph.output];
    return fmax(n->maximum - n->minimum, 1e-3 * fmax(fabs(n->maximum), fabs(n->minimum)));
}

/* ---- the search ---- */

/* one set of polynomials, and what it does on the calibration rows */
typedef struct candidate {
    ir_graph graph;
    double *scores;
    compile_closeness is;
} candidate;

static void count_degrees(compile_closeness *is, const ir_graph *g) {
    for (uint32_t i = 0; i < g->count; i++) {
        const ir_node *n = &g->nodes[i];
        if (!n->use_count || n->kind != IR_POLYNOMIAL) continue;
        if (!is->degree_max || n->degree < is->degree_min) is->degree_min = n->degree;
        if (n->degree > is->degree_max) is->degree_max = n->degree;
    }
}

/* the smallest ring that has the levels, 0 if none or not known yet */
static uint32_t ring_for(const compilation *c, uint32_t depth) {
    const parameter_wish wish = {.depth = depth,
                                 .slot_count = 1,
                                 .security_bits = c->options.security_bits,
                                 .log_n = c->options.log_n,
                                 .allow_insecure = c->options.allow_insecure};
    parameter_choice choice;
    ckks_error none = {0};
    uint32_t row = 0;
    if (c->options.compatible_with) return c->options.compatible_with->log_n;
    if (c->options.layout != COMPILE_LAYOUT_LATENCY) return 0;
    return parameter_choose(&choice, &row, &wish, &none) == CKKS_OK ? choice.params.log_n : 0;
}

/* with errors of activations of at most `tolerance` times half their range */
static ckks_status try_tolerance(candidate *out, compilation *c, double tolerance, ckks_error *err) {
    *out = (candidate){.is.label_changes = -1};
    ckks_status rc =
        graph_substitute(&out->graph, &c->lowered.graph, tolerance, c->options.range_margin, err);
    if (rc != CKKS_OK) return rc;
    out->scores = arena_take(&c->memory, c->data.row_count * c->score_count, sizeof *out->scores);
    uint32_t *levels = arena_take(&c->memory, out->graph.count, sizeof *levels);
    if (!out->scores || !levels) return NO_MEMORY(err);
    if ((rc = graph_observe(&out->graph, &c->data, out->scores, err)) != CKKS_OK) return rc;
    out->is.error = compile_difference(c, out->scores);
    out->is.error_share = out->is.error / compile_score_range(c);
    const uint32_t depth = graph_levels(levels, &out->graph);
    out->is.log_n = ring_for(c, depth);
    out->is.depth = c->options.layout == COMPILE_LAYOUT_LATENCY ? depth : 0;
    count_degrees(&out->is, &out->graph);
    if (!compile_has_labels(c)) return CKKS_OK;
    return compile_label_changes(&out->is.label_changes, c, out->scores, err);
}

/* Of two digits, so that it is allowed when it is typed in. */
static double rounded_up(double share) {
    const double unit = pow(10, floor(log10(share)) - 1);
    return ceil(share / unit * (1 + 1e-9)) * unit;
}

ckks_status compile_refuse_target(const compilation *c, double closest, const char *where, ckks_error *err) {
    const double range = compile_score_range(c), share = rounded_up(closest / range);
    char way_out[128];
    if (share <= 1)
        snprintf(way_out, sizeof way_out, "give --target-error %.2g or more%s", share,
                 share <= DEFAULT_TARGET_ERROR ? ", or leave it out" : "");
    else
        snprintf(way_out, sizeof way_out,
                 "scale the columns (StandardScaler) or regularise more and train again");
    return ckks_error_set(err, CKKS_PRECISION, "target_error",
                          "scores would differ by %.3g from the original model's%s, %.3g is the target: %s",
                          closest, where, c->options.target_error * range, way_out);
}

/* tighter and tighter polynomials until the scores on the calibration rows are as close as asked */
static ckks_status reach_error(candidate *out, double *tolerance, compilation *c, ckks_error *err) {
    double closest = INFINITY;
    for (int halvings = 0; halvings < HALVINGS; halvings++) {
        *tolerance = ldexp(0.1, -halvings);
        const ckks_status rc = try_tolerance(out, c, *tolerance, err);
        if (rc != CKKS_OK || out->is.error_share <= c->options.target_error) return rc;
        closest = fmin(closest, out->is.error);
    }
    return compile_refuse_target(c, closest, "", err);
}

/* the next set that is closer; false: there is none near */
static bool find_closer(candidate *out, const candidate *than, double *tolerance, compilation *c) {
    ckks_error none = {0};
    for (int halvings = 0; halvings < NEXT_HALVINGS; halvings++) {
        *tolerance /= 2;
        if (try_tolerance(out, c, *tolerance, &none) != CKKS_OK) return false;
        if (out->is.degree_max > CLOSER_DEGREE_MAX) return false;
        if (out->is.error < than->is.error) return true;
    }
    return false;
}

static void take(compilation *c, const candidate *from) {
    c->graph = from->graph;
    c->scores = from->scores;
    c->report->summary.polynomial_error = from->is.error;
}

static void list_closeness(compilation *c, const candidate *from, bool is_chosen) {
    compile_summary *s = &c->report->summary;
    if (is_chosen) s->chosen = s->closeness_count;
    s->closeness[s->closeness_count++] = from->is;
}

ckks_status compile_substitute(compilation *c, ckks_error *err) {
    const bool is_asked = c->options.target_error != 0;
    const double closest = DEFAULT_TARGET_ERROR / CLOSER_MAX;
    candidate *all = arena_take(&c->memory, 3, sizeof *all), *first = &all[0], *at = &all[1], *next = &all[2];
    double tolerance;
    bool has_next = true;
    if (!all) return NO_MEMORY(err);
    c->score_scale = 1;
    c->label_changes_max = INFINITY;
    if (!is_asked) c->options.target_error = DEFAULT_TARGET_ERROR;
    const ckks_status rc = reach_error(first, &tolerance, c, err);
    if (rc != CKKS_OK) return rc;
    *at = *first;
    if (!first->is.degree_max) { /* nothing stands for anything */
        take(c, first);
        return CKKS_OK;
    }
    while ((has_next = find_closer(next, at, &tolerance, c))) {
        if (is_asked || at->is.label_changes <= LABEL_CHANGES_MAX || at->is.error_share <= closest ||
            (c->options.layout == COMPILE_LAYOUT_LATENCY && !next->is.log_n))
            break;
        *at = *next;
    }
    if (!is_asked && at->is.label_changes <= LABEL_CHANGES_MAX && compile_has_labels(c))
        c->label_changes_max = LABEL_CHANGES_MAX;
    c->has_looser = at->is.error < first->is.error;
    c->looser = first->graph, c->looser_scores = first->scores;
    if (c->has_looser) list_closeness(c, first, false);
    list_closeness(c, at, true);
    if (has_next) list_closeness(c, next, false);
    take(c, at);
    return CKKS_OK;
}

ckks_status compile_take_looser(compilation *c, const ckks_error *cause, ckks_error *err) {
    compile_summary *s = &c->report->summary;
    c->has_looser = false;
    c->graph = c->looser, c->scores = c->looser_scores;
    c->score_scale = 1;
    c->label_changes_max = INFINITY;
    s->chosen = 0, s->polynomial_error = s->closeness[0].error;
    s->trade_count = 0;
    return report_note(c->report, err, "closer polynomials would keep more labels, but do not serve: %.150s",
                       cause->message);
}
