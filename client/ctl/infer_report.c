/* Figures of a run, for people and for scripts. */
#include "client/ctl/infer.h"

#include "kernels/base/bytes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* sorts `values` */
static double median(double *values, uint64_t count) {
    if (!count) return 0;
    qsort(values, (size_t)count, sizeof *values, compare_doubles);
    return count % 2 ? values[count / 2] : 0.5 * (values[count / 2 - 1] + values[count / 2]);
}

typedef enum timing_kind {
    TIMING_ENCRYPT,
    TIMING_QUEUE,
    TIMING_STAGE,
    TIMING_REPLAY,
    TIMING_TOTAL,
    TIMING_DECRYPT
} timing_kind;

static double timing_of(const row_result *r, timing_kind kind) {
    switch (kind) {
    case TIMING_ENCRYPT:
        return r->encrypt_ms;
    case TIMING_QUEUE:
        return (double)r->timing.queue_ns * 1e-6;
    case TIMING_STAGE:
        return (double)r->timing.stage_ns * 1e-6;
    case TIMING_REPLAY:
        return (double)r->timing.replay_ns * 1e-6;
    case TIMING_TOTAL:
        return (double)r->timing.total_ns * 1e-6;
    default:
        return r->decrypt_ms;
    }
}

/* over requests: rows that came along in another row's request have no timing of their own */
static double timing_median(double *scratch, const infer_job *job, timing_kind kind) {
    uint64_t count = 0;
    for (uint64_t i = 0; i < job->data->count; i++)
        if (job->results[i].timing.total_ns) scratch[count++] = timing_of(&job->results[i], kind);
    return median(scratch, count);
}

/* label of clear scores in *label and its margin; "" where the model has none */
static ckks_status clear_label(char label[256], double *margin, const client_model *model,
                               const double *scores, ckks_error *err) {
    client_prediction p;
    const ckks_status rc = client_postprocess(&p, model, scores, err);
    if (rc != CKKS_OK) return rc;
    snprintf(label, 256, "%s", p.has_label ? p.label : "");
    *margin = p.margin;
    client_prediction_fini(&p);
    return CKKS_OK;
}

static ckks_status account_polynomial(infer_figures *out, const infer_job *job, const clear_run *clear,
                                      uint64_t i, ckks_error *err) {
    const client_model *m = job->model;
    const double *expected = clear->polynomial + i * m->score_count, *got = job->scores + i * m->score_count;
    char label[256];
    double margin;
    ckks_status rc = clear_label(label, &margin, m, expected, err);
    if (rc != CKKS_OK) return rc;
    for (uint32_t k = 0; k < m->score_count; k++)
        out->largest_difference = fmax(out->largest_difference, fabs(expected[k] - got[k]));
    if (!job->results[i].prediction.has_label) return CKKS_OK;
    if (margin < out->stated_error) {
        out->excluded++;
    } else {
        out->compared++;
        out->agreeing += !strcmp(label, job->results[i].prediction.label);
    }
    if (out->has_labels) out->right_polynomial += data_label_equal(label, job->data->labels.text[i]);
    return CKKS_OK;
}

static void account_range(infer_figures *out, const double *scores, uint64_t count) {
    double low = INFINITY, high = -INFINITY;
    for (uint64_t i = 0; i < count; i++) low = fmin(low, scores[i]), high = fmax(high, scores[i]);
    out->score_range = high - low;
}

ckks_status infer_account(infer_figures *out, const infer_job *job, const clear_run *clear, ckks_error *err) {
    const client_model *m = job->model;
    const uint64_t count = job->data->count;
    ckks_status rc = CKKS_OK;
    double *scratch = malloc((size_t)count * sizeof *scratch);
    if (!scratch) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for figures");
    *out = (infer_figures){.row_count = count,
                           .has_labels = job->data->has_labels,
                           .has_polynomial = clear->has_polynomial,
                           .has_original = clear->has_original,
                           .stated_error =
                               m->description->has_promised_error ? m->description->promised_error : 0,
                           .key_bytes = m->key_bytes};
    account_range(out, clear->has_polynomial ? clear->polynomial : job->scores, count * m->score_count);
    for (uint64_t i = 0; i < count && rc == CKKS_OK; i++) {
        const row_result *r = &job->results[i];
        char label[256];
        double margin;
        out->implausible += !r->is_plausible;
        out->attempts += r->timing.attempts;
        if (r->timing.request_bytes)
            out->request_bytes = r->timing.request_bytes, out->reply_bytes = r->timing.reply_bytes;
        if (out->has_labels && r->prediction.has_label)
            out->right += data_label_equal(r->prediction.label, job->data->labels.text[i]);
        if (clear->has_polynomial) rc = account_polynomial(out, job, clear, i, err);
        if (rc == CKKS_OK && clear->has_original && out->has_labels) {
            rc = clear_label(label, &margin, m, clear->original + i * m->score_count, err);
            if (rc == CKKS_OK) out->right_original += data_label_equal(label, job->data->labels.text[i]);
        }
    }
    out->encrypt_ms = timing_median(scratch, job, TIMING_ENCRYPT);
    out->queue_ms = timing_median(scratch, job, TIMING_QUEUE);
    out->stage_ms = timing_median(scratch, job, TIMING_STAGE);
    out->replay_ms = timing_median(scratch, job, TIMING_REPLAY);
    out->total_ms = timing_median(scratch, job, TIMING_TOTAL);
    out->decrypt_ms = timing_median(scratch, job, TIMING_DECRYPT);
    if (clear->has_polynomial) out->polynomial_ms = median(clear->polynomial_ms, count);
    if (clear->has_original) out->original_ms = median(clear->original_ms, count);
    free(scratch);
    return rc;
}

/* ---- for people ---- */

void infer_print_rows(const infer_job *job) {
    for (uint64_t i = 0; i < job->data->count; i++) {
        const client_prediction *p = &job->results[i].prediction;
        printf("%llu", (unsigned long long)i + 1);
        const row_result *r = &job->results[i];
        if (p->has_label) printf("\t%s", p->label);
        for (uint32_t k = 0; k < r->top_count; k++) {
            printf("\t%u", r->top[k]);
            ctl_print_value(p->values[r->top[k]], job->step);
        }
        for (uint32_t k = 0; k < p->value_count && !job->top; k++) ctl_print_value(p->values[k], job->step);
        printf("%s\n", job->results[i].is_plausible ? "" : "\t(outside of what this model produces)");
    }
}

static double percent(uint64_t part, uint64_t whole) {
    return whole ? 100.0 * (double)part / (double)whole : 0;
}

void infer_print_figures(const infer_figures *f, const client_model *model) {
    char keys[32], request[32], reply[32];
    const Ckksd__V1__ModelDescription *d = model->description;
    printf("model        %s%s%s\n", d->name, d->version ? "/" : "", d->version ? d->version : "");
    printf("rows         %llu\n", (unsigned long long)f->row_count);
    if (f->has_labels) {
        printf("accuracy     encrypted %.1f %%", percent(f->right, f->row_count));
        if (f->has_polynomial)
            printf(", clear polynomial %.1f %%", percent(f->right_polynomial, f->row_count));
        if (f->has_original) printf(", clear original %.1f %%", percent(f->right_original, f->row_count));
        printf("\n");
    }
    if (f->has_polynomial) {
        if (f->compared + f->excluded)
            printf("agreement    %llu of %llu labels as the clear polynomial model has them (%llu left out: "
                   "margin below %.1e)\n",
                   (unsigned long long)f->agreeing, (unsigned long long)f->compared,
                   (unsigned long long)f->excluded, f->stated_error);
        printf("difference   %.1e at most, %.1e of the range of scores\n", f->largest_difference,
               f->score_range > 0 ? f->largest_difference / f->score_range : 0);
    }
    printf("median ms   ");
    if (f->has_original) printf(" clear original %.3f,", f->original_ms);
    if (f->has_polynomial) printf(" clear polynomial %.3f,", f->polynomial_ms);
    printf(" encrypt %.2f, queue %.2f, stage %.2f, replay %.2f, total %.2f, decrypt %.2f\n", f->encrypt_ms,
           f->queue_ms, f->stage_ms, f->replay_ms, f->total_ms, f->decrypt_ms);
    printf("bytes        keys %s once; request %s, reply %s\n", ctl_bytes(keys, f->key_bytes),
           ctl_bytes(request, f->request_bytes), ctl_bytes(reply, f->reply_bytes));
    if (f->implausible)
        printf("warning      %llu rows gave scores outside of what this model produces: wrong key, or a "
               "faulty server\n",
               (unsigned long long)f->implausible);
}

/* ---- for scripts ---- */

static void json_top(json_writer *j, const row_result *r) {
    json_list(j, "top");
    for (uint32_t k = 0; k < r->top_count; k++) {
        json_object(j, NULL);
        json_integer(j, "index", r->top[k]);
        json_number(j, "value", r->prediction.values[r->top[k]]);
        json_close_object(j);
    }
    json_close_list(j);
}

static void json_values(json_writer *j, const client_prediction *p, const double *scores,
                        uint32_t score_count) {
    json_list(j, "values");
    for (uint32_t k = 0; k < p->value_count; k++) json_number(j, NULL, p->values[k]);
    json_close_list(j);
    json_list(j, "scores");
    for (uint32_t k = 0; k < score_count; k++) json_number(j, NULL, scores[k]);
    json_close_list(j);
}

static void json_rows(json_writer *j, const infer_job *job) {
    const client_model *m = job->model;
    json_list(j, "rows");
    for (uint64_t i = 0; i < job->data->count; i++) {
        const client_prediction *p = &job->results[i].prediction;
        json_object(j, NULL);
        json_integer(j, "row", i + 1);
        if (p->has_label) json_string(j, "label", p->label);
        if (job->top)
            json_top(j, &job->results[i]);
        else
            json_values(j, p, job->shown + i * m->score_count, m->score_count);
        json_bool(j, "plausible", job->results[i].is_plausible);
        json_close_object(j);
    }
    json_close_list(j);
}

static void json_summary(json_writer *j, const infer_figures *f) {
    json_object(j, "summary");
    json_integer(j, "rows", f->row_count);
    if (f->has_labels) {
        json_number(j, "accuracy", percent(f->right, f->row_count) / 100);
        if (f->has_polynomial)
            json_number(j, "accuracy_polynomial", percent(f->right_polynomial, f->row_count) / 100);
        if (f->has_original)
            json_number(j, "accuracy_original", percent(f->right_original, f->row_count) / 100);
    }
    if (f->has_polynomial) {
        json_integer(j, "labels_compared", f->compared);
        json_integer(j, "labels_agreeing", f->agreeing);
        json_integer(j, "labels_excluded", f->excluded);
        json_number(j, "stated_error", f->stated_error);
        json_number(j, "largest_difference", f->largest_difference);
        json_number(j, "largest_difference_relative",
                    f->score_range > 0 ? f->largest_difference / f->score_range : 0);
        json_number(j, "score_range", f->score_range);
    }
    json_integer(j, "implausible", f->implausible);
    json_object(j, "median_ms");
    if (f->has_original) json_number(j, "clear_original", f->original_ms);
    if (f->has_polynomial) json_number(j, "clear_polynomial", f->polynomial_ms);
    json_number(j, "encrypt", f->encrypt_ms);
    json_number(j, "queue", f->queue_ms);
    json_number(j, "stage", f->stage_ms);
    json_number(j, "replay", f->replay_ms);
    json_number(j, "total", f->total_ms);
    json_number(j, "decrypt", f->decrypt_ms);
    json_close_object(j);
    json_integer(j, "key_bytes", f->key_bytes);
    json_integer(j, "request_bytes", f->request_bytes);
    json_integer(j, "reply_bytes", f->reply_bytes);
    json_integer(j, "attempts", f->attempts);
    json_close_object(j);
}

void infer_print_json(const infer_job *job, const infer_figures *f, bool with_rows, bool is_raw) {
    const client_model *m = job->model;
    json_writer j;
    json_begin(&j);
    json_object(&j, NULL);
    json_string(&j, "model", m->description->name);
    json_string(&j, "version", m->description->version);
    if (m->has_digest) json_hex(&j, "digest", m->digest, sizeof m->digest);
    json_bool(&j, "raw", is_raw);
    json_number(&j, "rounded_to", job->step);
    if (with_rows) json_rows(&j, job);
    json_summary(&j, f);
    json_close_object(&j);
    json_end(&j);
}
