#include "client/ctl/infer.h"
#include "client/ctl/top.h"

#include "client/lib/rpc_internal.h"
#include "client/lib/wipe.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

ckks_status infer_check_rows(const client_model *model, const rows *data, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    double *elements = malloc((size_t)model->element_count * sizeof *elements);
    if (!elements) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a row");
    for (uint64_t i = 0; i < data->count && rc == CKKS_OK; i++) {
        ckks_error inner = {0};
        rc = client_preprocess(elements, model, data->values + i * data->width, &inner);
        if (rc != CKKS_OK)
            ckks_error_set(err, rc, inner.field, "row %llu: %s", (unsigned long long)i + 1, inner.message);
    }
    wipe_free(elements);
    return rc;
}

static double since_ms(uint64_t begin_ns) {
    return (double)(rpc_now_ns() - begin_ns) * 1e-6;
}

/* by the exact values, as the label is */
static ckks_status select_top(row_result *r, uint32_t wanted, ckks_error *err) {
    const client_prediction *p = &r->prediction;
    if (!wanted) return CKKS_OK;
    r->top = malloc((wanted < p->value_count ? wanted : p->value_count) * sizeof *r->top);
    if (!r->top) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for the largest values");
    r->top_count = top_select(r->top, p->values, p->value_count, wanted);
    return CKKS_OK;
}

/* Rows are grouped where the layout takes several into one request. */
static ckks_status run_request(const infer_job *job, uint64_t first, uint32_t row_count, double *elements,
                               ckks_error *err) {
    const client_model *m = job->model;
    double *scores = job->scores + first * m->score_count;
    row_result *r = &job->results[first];
    client_ciphertexts inputs = {0}, outputs = {0};
    ckks_status rc;
    uint64_t begin_ns = rpc_now_ns();
    for (uint32_t k = 0; k < row_count; k++) {
        rc = client_preprocess(elements + (size_t)k * m->element_count, m,
                               job->data->values + (first + k) * job->data->width, err);
        if (rc != CKKS_OK) goto out;
    }
    rc = client_encrypt(&inputs, m, job->public ? NULL : job->secret, job->public, elements, row_count, err);
    if (rc != CKKS_OK) goto out;
    r->encrypt_ms = since_ms(begin_ns);
    if ((rc = rpc_infer(&outputs, job->connection, m, job->key_set, &inputs, 0, &r->timing, err)) != CKKS_OK)
        goto out;
    begin_ns = rpc_now_ns();
    if ((rc = client_decrypt(scores, m, job->secret, &outputs, row_count, err)) != CKKS_OK) goto out;
    r->decrypt_ms = since_ms(begin_ns);
    for (uint32_t k = 0; k < row_count; k++) {
        double *shown = job->shown + (first + k) * m->score_count;
        row_result *one = &r[k];
        client_prediction rounded;
        memcpy(shown, scores + (size_t)k * m->score_count, m->score_count * sizeof *shown);
        client_round(shown, m->score_count, job->step);
        one->is_plausible =
            client_scores_are_plausible(m, scores + (size_t)k * m->score_count, m->score_count);
        /* the label is decided on the exact scores, the numbers shown are the rounded ones */
        if ((rc = client_postprocess(&one->prediction, m, scores + (size_t)k * m->score_count, err)) !=
            CKKS_OK)
            goto out;
        if ((rc = select_top(one, job->top, err)) != CKKS_OK) goto out;
        if ((rc = client_postprocess(&rounded, m, shown, err)) != CKKS_OK) goto out;
        double *exact = one->prediction.values;
        one->prediction.values = rounded.values, rounded.values = exact;
        client_prediction_fini(&rounded);
        one->is_done = true;
    }
out:
    client_ciphertexts_fini(&inputs);
    client_ciphertexts_fini(&outputs);
    return rc;
}

typedef struct team {
    const infer_job *job;
    pthread_mutex_t lock;
    uint64_t next, done;
    ckks_status rc;
    ckks_error error;
} team;

static void *worker(void *context) {
    team *t = context;
    const infer_job *job = t->job;
    const uint32_t per_request = client_rows_per_request(job->model);
    double *elements = malloc((size_t)per_request * job->model->element_count * sizeof *elements);
    if (job->concurrency > 1) omp_set_num_threads(1); /* requests side by side are parallel enough */
    for (;;) {
        ckks_error error = {0};
        ckks_status rc;
        pthread_mutex_lock(&t->lock);
        const uint64_t first = t->next;
        const uint64_t left = first < job->data->count ? job->data->count - first : 0;
        const uint32_t row_count = left < per_request ? (uint32_t)left : per_request;
        const bool is_over = !row_count || t->rc != CKKS_OK;
        if (!is_over) t->next += row_count;
        pthread_mutex_unlock(&t->lock);
        if (is_over) break;
        rc = elements ? run_request(job, first, row_count, elements, &error)
                      : ckks_error_set(&error, CKKS_RESOURCE_EXHAUSTED, "", "no memory for rows");
        pthread_mutex_lock(&t->lock);
        t->done += row_count;
        if (rc != CKKS_OK && t->rc == CKKS_OK) {
            t->rc = rc;
            t->error = error;
        }
        ctl_bar_update(job->bar, t->done, job->data->count);
        pthread_mutex_unlock(&t->lock);
    }
    wipe_free(elements);
    return NULL;
}

ckks_status infer_run(infer_job *job, ckks_error *err) {
    team t = {.job = job};
    pthread_t threads[64];
    uint32_t started = 0;
    pthread_mutex_init(&t.lock, NULL);
    while (started + 1 < job->concurrency && started < 64 &&
           pthread_create(&threads[started], NULL, worker, &t) == 0)
        started++;
    worker(&t); /* this thread works too */
    for (uint32_t i = 0; i < started; i++) pthread_join(threads[i], NULL);
    pthread_mutex_destroy(&t.lock);
    if (t.rc != CKKS_OK && err && err->code == CKKS_OK) *err = t.error;
    return t.rc;
}
