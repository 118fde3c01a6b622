/*
 * A large file of rows into a CSV of results: parts are read, encrypted, evaluated and decrypted by several
 * workers side by side and written in the order of the rows. What is written stays written: after an
 * interruption of any kind the same command goes on behind it.
 */
#include "client/ctl/infer.h"
#include "client/ctl/journal.h"
#include "client/ctl/top.h"

#include "client/lib/rpc_internal.h"
#include "client/lib/wipe.h"
#include "kernels/base/bytes.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_PER_PART 64u /* of the latency layout: a part is synced to disk */

static atomic_int is_interrupted; /* set by a signal handler, read by every thread */
static void on_interrupt(int number) {
    (void)number;
    is_interrupted = 1;
}

typedef struct stream_team {
    const infer_stream_job *job;
    rows_stream *rows;
    journal *journal;
    pthread_mutex_t lock;
    pthread_cond_t turn;
    uint64_t next_part, next_write; /* parts handed out, parts written */
    bool is_over;
    ckks_status rc;
    ckks_error error;
    infer_stream_figures *figures;
} stream_team;

static void team_fail(stream_team *t, ckks_status rc, const ckks_error *error) {
    t->is_over = true;
    if (t->rc == CKKS_OK) t->rc = rc, t->error = *error;
}

/* ---- text ---- */

static void write_cell(FILE *to, const char *text) {
    if (!strpbrk(text, ",\"\r\n")) {
        fputs(text, to);
        return;
    }
    fputc('"', to);
    for (; *text; text++) {
        if (*text == '"') fputc('"', to);
        fputc(*text, to);
    }
    fputc('"', to);
}

/* `top` are the places of the largest values, job->top of them or all */
static void write_row(FILE *to, const infer_stream_job *job, uint64_t row, const client_prediction *p,
                      const uint32_t *top, bool is_plausible) {
    char text[CTL_VALUE_BYTES];
    fprintf(to, "%llu", (unsigned long long)row);
    if (job->has_label) {
        fputc(',', to);
        write_cell(to, p->has_label ? p->label : "");
    }
    for (uint32_t k = 0; k < p->value_count && !job->top; k++)
        fprintf(to, ",%s", ctl_value(text, p->values[k], job->step));
    for (uint32_t k = 0; k < p->value_count && k < job->top; k++)
        fprintf(to, ",%u,%s", top[k], ctl_value(text, p->values[top[k]], job->step));
    fputs(is_plausible ? ",\n" : ",implausible\n", to);
}

/* the header; how many values a row has is known from a row of zeros */
static ckks_status make_head(char **out, infer_stream_job *job, ckks_error *err) {
    client_prediction p;
    size_t size = 0;
    double *zeros = calloc(job->model->score_count, sizeof *zeros);
    FILE *to = open_memstream(out, &size);
    ckks_status rc = CKKS_OK;
    if (!zeros || !to)
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a header");
    else
        rc = client_postprocess(&p, job->model, zeros, err);
    if (rc == CKKS_OK) {
        job->has_label = p.has_label;
        fputs(p.has_label ? "row,label" : "row", to);
        for (uint32_t k = 0; k < p.value_count && !job->top; k++)
            fprintf(to, p.value_count > 1 ? ",value_%u" : ",value", k + 1);
        for (uint32_t k = 0; k < p.value_count && k < job->top; k++)
            fprintf(to, ",index_%u,value_%u", k + 1, k + 1);
        fputs(",note\n", to);
        client_prediction_fini(&p);
    }
    if (to) fclose(to);
    free(zeros);
    return rc;
}

/* ---- one part ---- */

typedef struct part {
    rows data;
    rows_place end;
    uint64_t first; /* row */
    char *text;
    size_t size;
    uint64_t implausible, requests, replay_ns, request_bytes;
} part;

static void part_fini(part *p) {
    rows_fini(&p->data);
    wipe_free(p->text);
    *p = (part){0};
}

static ckks_status preprocess(double *elements, const part *p, uint64_t first, uint32_t count,
                              const client_model *m, ckks_error *err) {
    for (uint32_t k = 0; k < count; k++) {
        ckks_error inner = {0};
        const ckks_status rc = client_preprocess(elements + (size_t)k * m->element_count, m,
                                                 p->data.values + (first + k) * p->data.width, &inner);
        if (rc != CKKS_OK)
            return ckks_error_set(err, rc, inner.field, "row %llu: %s",
                                  (unsigned long long)(p->first + first + k + 1), inner.message);
    }
    return CKKS_OK;
}

static ckks_status write_rows(FILE *to, part *p, const infer_stream_job *job, uint64_t first, uint32_t count,
                              double *scores, uint32_t *top, ckks_error *err) {
    const client_model *m = job->model;
    for (uint32_t k = 0; k < count; k++) {
        client_prediction exact, rounded;
        double *one = scores + (size_t)k * m->score_count;
        const bool is_plausible = client_scores_are_plausible(m, one, m->score_count);
        ckks_status rc = client_postprocess(&exact, m, one, err);
        if (rc != CKKS_OK) return rc;
        top_select(top, exact.values, exact.value_count, job->top);
        client_round(one, m->score_count, job->step);
        if ((rc = client_postprocess(&rounded, m, one, err)) == CKKS_OK) {
            /* label and order are decided on the exact scores, the numbers written are the rounded ones */
            memcpy(rounded.label, exact.label, sizeof rounded.label);
            write_row(to, job, p->first + first + k + 1, &rounded, top, is_plausible);
            p->implausible += !is_plausible;
            client_prediction_fini(&rounded);
        }
        client_prediction_fini(&exact);
        if (rc != CKKS_OK) return rc;
    }
    return CKKS_OK;
}

static ckks_status run_request(FILE *to, part *p, const infer_stream_job *job, uint64_t first, uint32_t count,
                               double *elements, double *scores, uint32_t *top, ckks_error *err) {
    const client_model *m = job->model;
    client_ciphertexts inputs = {0}, outputs = {0};
    rpc_timing timing = {0};
    ckks_status rc = preprocess(elements, p, first, count, m, err);
    if (rc == CKKS_OK)
        rc = client_encrypt(&inputs, m, job->public ? NULL : job->secret, job->public, elements, count, err);
    if (rc == CKKS_OK) rc = rpc_infer(&outputs, job->connection, m, job->key_set, &inputs, 0, &timing, err);
    if (rc == CKKS_OK) rc = client_decrypt(scores, m, job->secret, &outputs, count, err);
    if (rc == CKKS_OK) rc = write_rows(to, p, job, first, count, scores, top, err);
    p->requests++;
    p->replay_ns += timing.replay_ns;
    p->request_bytes = timing.request_bytes;
    client_ciphertexts_fini(&inputs);
    client_ciphertexts_fini(&outputs);
    return rc;
}

static ckks_status run_part(part *p, const infer_stream_job *job, double *elements, double *scores,
                            uint32_t *top, ckks_error *err) {
    const uint32_t per_request = client_rows_per_request(job->model);
    ckks_status rc = CKKS_OK;
    FILE *to = open_memstream(&p->text, &p->size);
    if (!to) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for results");
    for (uint64_t first = 0; first < p->data.count && rc == CKKS_OK; first += per_request) {
        const uint64_t left = p->data.count - first;
        rc = run_request(to, p, job, first, left < per_request ? (uint32_t)left : per_request, elements,
                         scores, top, err);
    }
    if (fclose(to) != 0 && rc == CKKS_OK)
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for results");
    return rc;
}

/* ---- the workers ---- */

/* the next rows, under the lock; false at the end */
static bool take(stream_team *t, part *p, uint64_t *number) {
    ckks_error error = {0};
    const uint32_t per_request = client_rows_per_request(t->job->model);
    if (is_interrupted) t->is_over = true;
    if (t->is_over) return false;
    const ckks_status rc =
        rows_stream_next(t->rows, &p->data, &p->end, per_request > 1 ? per_request : ROWS_PER_PART, &error);
    if (rc != CKKS_OK) team_fail(t, rc, &error);
    if (rc == CKKS_OK && !p->data.count) t->is_over = t->figures->is_complete = true;
    if (t->is_over) return false;
    p->first = p->end.row - p->data.count;
    *number = t->next_part++;
    return true;
}

/* parts are written in order; after a failure none behind it is */
static void write_in_turn(stream_team *t, part *p, uint64_t number, ckks_status rc, const ckks_error *error) {
    ckks_error local = *error;
    while (t->next_write != number) pthread_cond_wait(&t->turn, &t->lock);
    t->next_write++;
    if (rc != CKKS_OK)
        team_fail(t, rc, &local);
    else if (t->rc == CKKS_OK &&
             (rc = journal_append(t->journal, p->text, p->size, &p->end, &local)) != CKKS_OK)
        team_fail(t, rc, &local);
    if (t->rc == CKKS_OK) {
        infer_stream_figures *f = t->figures;
        f->rows += p->data.count;
        f->implausible += p->implausible;
        f->requests += p->requests;
        f->replay_ns += p->replay_ns;
        f->request_bytes = p->request_bytes;
        ctl_bar_rows(t->job->bar, f->resumed_rows + f->rows, rows_stream_done(t->rows), f->rows, f->begin_ns);
    }
    pthread_cond_broadcast(&t->turn);
}

static void *stream_worker(void *context) {
    stream_team *t = context;
    const client_model *m = t->job->model;
    const size_t per_request = client_rows_per_request(m);
    double *elements = malloc(per_request * m->element_count * sizeof *elements);
    double *scores = malloc(per_request * m->score_count * sizeof *scores);
    uint32_t *top = malloc(((size_t)t->job->top + 1) * sizeof *top);
    pthread_mutex_lock(&t->lock);
    for (;;) {
        part p = {0};
        ckks_error error = {0};
        uint64_t number;
        if (!take(t, &p, &number)) {
            part_fini(&p);
            break;
        }
        pthread_mutex_unlock(&t->lock);
        const ckks_status rc = elements && scores && top ? run_part(&p, t->job, elements, scores, top, &error)
                                                         : ckks_error_set(&error, CKKS_RESOURCE_EXHAUSTED, "",
                                                                          "no memory for rows");
        pthread_mutex_lock(&t->lock);
        write_in_turn(t, &p, number, rc, &error);
        part_fini(&p);
    }
    pthread_mutex_unlock(&t->lock);
    wipe_free(elements);
    wipe_free(scores);
    wipe_free(top);
    return NULL;
}

static void run_team(stream_team *t) {
    pthread_t threads[INFER_STREAM_WORKERS_MAX];
    uint32_t started = 0;
    struct sigaction before, now = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
    is_interrupted = 0;
    sigaction(SIGINT, &now, &before); /* the second one ends us at once */
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->turn, NULL);
    while (started + 1 < t->job->concurrency && started < INFER_STREAM_WORKERS_MAX &&
           pthread_create(&threads[started], NULL, stream_worker, t) == 0)
        started++;
    stream_worker(t); /* this thread works too */
    for (uint32_t i = 0; i < started; i++) pthread_join(threads[i], NULL);
    pthread_cond_destroy(&t->turn);
    pthread_mutex_destroy(&t->lock);
    sigaction(SIGINT, &before, NULL);
}

/* ---- the whole ---- */

/* what results depend on, beside the rows, whose digests are with the parts */
static ckks_status make_identity(char **out, const infer_stream_job *job, ckks_error *err) {
    char digest[65] = "none", parameters[65];
    size_t size = 0;
    FILE *to = open_memstream(out, &size);
    if (!to) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a journal");
    if (job->model->has_digest) hex_encode(digest, job->model->digest, sizeof job->model->digest);
    hex_encode(parameters, job->model->params.id, sizeof job->model->params.id);
    fprintf(to, "ckksctl infer journal 2, package %s, parameters %s, step %a", digest, parameters, job->step);
    if (job->top) fprintf(to, ", top %u", job->top);
    fputc('\n', to);
    return fclose(to) == 0 ? CKKS_OK
                           : ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a journal");
}

ckks_status infer_stream(infer_stream_figures *out, infer_stream_job *job, const rows_source *source,
                         const ctl_options *options, ckks_error *err) {
    ckks_status rc;
    char *head = NULL, *identity = NULL;
    rows_place *places = NULL;
    uint32_t place_count = 0;
    stream_team t = {.job = job, .figures = out};
    *out = (infer_stream_figures){0};
    if ((rc = rows_stream_open(&t.rows, job->model, source, options, err)) != CKKS_OK) goto out;
    if ((rc = make_head(&head, job, err)) != CKKS_OK) goto out;
    if ((rc = make_identity(&identity, job, err)) != CKKS_OK) goto out;
    rc = journal_open(&t.journal, &places, &place_count, job->output, identity, head, err);
    if (rc != CKKS_OK) goto out;
    for (uint32_t i = 0; i < place_count && rc == CKKS_OK; i++)
        if (places[i].row) rc = rows_stream_skip(t.rows, &places[i], err);
    if (rc != CKKS_OK) goto out;
    out->resumed_rows = place_count ? places[place_count - 1].row : 0;
    if (out->resumed_rows)
        ctl_note(options, "going on behind row %llu of an earlier run",
                 (unsigned long long)out->resumed_rows);
    out->begin_ns = rpc_now_ns();
    run_team(&t);
    out->seconds = (double)(rpc_now_ns() - out->begin_ns) * 1e-9;
    rc = t.rc;
    if (rc != CKKS_OK && err && err->code == CKKS_OK) *err = t.error;
    if (rc == CKKS_OK && out->is_complete) rc = journal_finish(t.journal, err);
    if (rc == CKKS_OK && !out->is_complete)
        rc = ckks_error_set(err, CKKS_CANCELLED, "",
                            "interrupted behind row %llu: the same command goes on there",
                            (unsigned long long)out->resumed_rows + out->rows);
out:
    journal_close(t.journal);
    rows_stream_close(t.rows);
    free(places);
    free(identity);
    free(head);
    return rc;
}

void infer_stream_print(const infer_stream_figures *f, const infer_stream_job *job, bool json) {
    const double rate = f->seconds > 0 ? (double)f->rows / f->seconds : 0;
    char bytes[32];
    json_writer j;
    if (!json) {
        printf("rows         %llu", (unsigned long long)f->resumed_rows + f->rows);
        if (f->resumed_rows)
            printf(", %llu of them from an earlier run", (unsigned long long)f->resumed_rows);
        printf("\nrows/s       %.0f (%llu rows in %.1f s, %llu requests of up to %u rows, %s each)\n", rate,
               (unsigned long long)f->rows, f->seconds, (unsigned long long)f->requests,
               client_rows_per_request(job->model), ctl_bytes(bytes, f->request_bytes));
        printf("replay       %.2f ms a request\n",
               f->requests ? (double)f->replay_ns * 1e-6 / (double)f->requests : 0.0);
        if (f->implausible) printf("implausible  %llu rows\n", (unsigned long long)f->implausible);
        printf("output       %s\n", job->output);
        return;
    }
    json_begin(&j);
    json_object(&j, NULL);
    json_string(&j, "output", job->output);
    json_integer(&j, "rows", f->resumed_rows + f->rows);
    json_integer(&j, "resumed_rows", f->resumed_rows);
    json_number(&j, "seconds", f->seconds);
    json_number(&j, "rows_per_second", rate);
    json_integer(&j, "rows_per_request", client_rows_per_request(job->model));
    json_integer(&j, "requests", f->requests);
    json_integer(&j, "request_bytes", f->request_bytes);
    json_number(&j, "replay_ms", f->requests ? (double)f->replay_ns * 1e-6 / (double)f->requests : 0.0);
    json_integer(&j, "implausible", f->implausible);
    json_close_object(&j);
    json_end(&j);
}
