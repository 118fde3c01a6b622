#include "client/ctl/study.h"
#include "client/ctl/top.h"

#include "client/lib/rpc_internal.h"
#include "client/lib/wipe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* without --encrypted: at most so many rows, and not much longer than so */
#define DEFAULT_ROWS    100u
#define DEFAULT_SECONDS 10.0
#define REPEATS_MIN     3u

static ckks_status no_memory(ckks_error *err) {
    return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for figures");
}

void study_fini(study *s) {
    if (!s) return;
    rows_fini(&s->data);
    range_report_fini(&s->ranges);
    local_keys_fini(&s->keys);
    clear_run_fini(&s->clear);
    *s = (study){0};
}

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

/* ---- rows ---- */

/* rows outside go, in place */
static ckks_status keep_inside(study *s, ckks_error *err) {
    uint64_t kept = 0;
    for (uint64_t r = 0; r < s->data.count; r++) {
        if (s->ranges.is_outside[r]) continue;
        memmove(s->data.values + kept * s->data.width, s->data.values + r * s->data.width,
                s->data.width * sizeof *s->data.values);
        if (s->data.has_labels && kept != r) {
            char *text = s->data.labels.text[kept];
            s->data.labels.text[kept] = s->data.labels.text[r];
            s->data.labels.text[r] = text;
        }
        kept++;
    }
    s->data.count = kept;
    if (kept) return CKKS_OK;
    range_print(stderr, &s->ranges, s->row_count);
    return ckks_error_set(err, CKKS_OUT_OF_RANGE, "data",
                          "no row is within the ranges that the model was made for");
}

static ckks_status load_rows(study *s, const study_options *options, ckks_error *err) {
    onnx_model *original = NULL;
    ckks_status rc = rows_load(&s->data, s->model, &options->source, options->common, err);
    if (rc != CKKS_OK) return rc;
    s->row_count = s->data.count;
    s->has_labels = s->data.has_labels;
    s->has_classes = client_model_label_count(s->model) != 0;
    if (options->onnx_path) rc = onnx_model_load(&original, options->onnx_path, err);
    if (rc == CKKS_OK && original && onnx_model_input_count(original) != s->data.width)
        rc = ckks_error_set(err, CKKS_SIGNATURE_MISMATCH, "onnx", "%s takes %u numbers, the package %u",
                            options->onnx_path, onnx_model_input_count(original), s->data.width);
    if (rc == CKKS_OK) rc = range_check(&s->ranges, s->model, s->package, original, &s->data, err);
    onnx_model_destroy(original);
    return rc == CKKS_OK ? keep_inside(s, err) : rc;
}

/* ---- in the clear ---- */

/* the label of scores; "" without classes. *margin as decrypted scores have it */
static ckks_status label_of(char label[256], double *margin, const client_model *model, const double *scores,
                            ckks_error *err) {
    client_prediction p;
    const ckks_status rc = client_postprocess(&p, model, scores, err);
    if (rc != CKKS_OK) return rc;
    snprintf(label, 256, "%s", p.has_label ? p.label : "");
    *margin = p.margin;
    client_prediction_fini(&p);
    return CKKS_OK;
}

static ckks_status account_clear(study *s, ckks_error *err) {
    const uint32_t width = s->model->score_count;
    const double factor = fabs(client_score_factor(s->model));
    double low = INFINITY, high = -INFINITY, margin;
    char original[256], polynomial[256];
    for (uint64_t r = 0; r < s->data.count; r++) {
        const double *exact = s->clear.original + r * width, *close = s->clear.polynomial + r * width;
        for (uint32_t k = 0; k < width && s->clear.has_original; k++)
            s->polynomial_error = fmax(s->polynomial_error, factor * fabs(exact[k] - close[k]));
        for (uint32_t k = 0; k < width; k++) low = fmin(low, close[k]), high = fmax(high, close[k]);
        ckks_status rc = label_of(polynomial, &margin, s->model, close, err);
        if (rc == CKKS_OK && s->clear.has_original) rc = label_of(original, &margin, s->model, exact, err);
        if (rc != CKKS_OK) return rc;
        if (s->has_labels) s->right_polynomial += data_label_equal(polynomial, s->data.labels.text[r]);
        if (!s->clear.has_original) continue;
        s->agreeing_polynomial += strcmp(polynomial, original) == 0;
        if (s->has_labels) s->right_original += data_label_equal(original, s->data.labels.text[r]);
    }
    s->score_range = factor * (high - low);
    s->promised_error =
        factor * (s->model->description->has_promised_error ? s->model->description->promised_error : 0);
    s->polynomial_ms = median(s->clear.polynomial_ms, s->data.count);
    if (s->clear.has_original) s->original_ms = median(s->clear.original_ms, s->data.count);
    return CKKS_OK;
}

static ckks_status run_clear(study *s, const study_options *options, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    if (options->onnx_path) rc = clear_original(&s->clear, s->model, &s->data, options->onnx_path, err);
    if (rc == CKKS_OK) rc = clear_polynomial_of(&s->clear, s->model, &s->data, s->package, err);
    return rc == CKKS_OK ? account_clear(s, err) : rc;
}

/* ---- encrypted ---- */

/* which places the largest scores have: encrypted, and in the clear */
static ckks_status account_top(study_device *d, const study *s, uint64_t row, const double *scores,
                               ckks_error *err) {
    const uint32_t width = s->model->score_count, wanted = s->top < width ? s->top : width;
    uint32_t *places = malloc((2 * (size_t)wanted + 1) * sizeof *places), *other = places + wanted;
    if (!places) return no_memory(err);
    const uint32_t count = top_select(places, scores, width, wanted);
    top_select(other, s->clear.polynomial + row * width, width, wanted);
    d->top_places += count;
    d->top_common += top_common(places, other, count);
    if (s->clear.has_original) {
        top_select(other, s->clear.original + row * width, width, wanted);
        d->top_common_original += top_common(places, other, count);
    }
    wipe_free(places);
    return CKKS_OK;
}

static ckks_status account_row(study_device *d, const study *s, uint64_t row, const double *scores,
                               ckks_error *err) {
    const client_model *m = s->model;
    const double *close = s->clear.polynomial + row * m->score_count;
    const double factor = fabs(client_score_factor(m));
    char encrypted[256], polynomial[256], original[256];
    double margin, unused;
    d->rows++;
    d->implausible += !client_scores_are_plausible(m, scores, m->score_count);
    for (uint32_t k = 0; k < m->score_count; k++)
        d->largest_error = fmax(d->largest_error, factor * fabs(scores[k] - close[k]));
    ckks_status rc = s->top ? account_top(d, s, row, scores, err) : CKKS_OK;
    if (rc == CKKS_OK) rc = label_of(encrypted, &unused, m, scores, err);
    if (rc == CKKS_OK) rc = label_of(polynomial, &margin, m, close, err);
    if (rc != CKKS_OK || !s->has_classes) return rc;
    if (factor * margin < s->promised_error) {
        d->excluded++;
    } else {
        d->compared++;
        d->agreeing += strcmp(encrypted, polynomial) == 0;
    }
    if (s->has_labels) d->right += data_label_equal(encrypted, s->data.labels.text[row]);
    if (!s->clear.has_original) return CKKS_OK;
    rc = label_of(original, &unused, m, s->clear.original + row * m->score_count, err);
    if (rc != CKKS_OK) return rc;
    d->agreeing_original += strcmp(encrypted, original) == 0;
    if (s->has_labels) d->right_original += data_label_equal(original, s->data.labels.text[row]);
    return CKKS_OK;
}

typedef struct measurements {
    double *encrypt, *stage, *replay, *decrypt;
    uint64_t count;
} measurements;

static ckks_status run_request(study_device *d, local_server *server, const study *s, uint64_t first,
                               uint32_t row_count, bool is_repeat, double *elements, double *scores,
                               measurements *times, ckks_error *err) {
    const client_model *m = s->model;
    local_timing t;
    ckks_status rc;
    for (uint32_t k = 0; k < row_count; k++)
        if ((rc = client_preprocess(elements + (size_t)k * m->element_count, m,
                                    s->data.values + (first + k) * s->data.width, err)) != CKKS_OK)
            return rc;
    if ((rc = local_infer(scores, &t, server, m, &s->keys, elements, row_count, err)) != CKKS_OK) return rc;
    times->encrypt[times->count] = t.encrypt_ms, times->stage[times->count] = t.stage_ms;
    times->replay[times->count] = t.replay_ms, times->decrypt[times->count] = t.decrypt_ms;
    times->count++;
    d->request_bytes = t.request_bytes, d->reply_bytes = t.reply_bytes;
    for (uint32_t k = 0; k < row_count && rc == CKKS_OK && !is_repeat; k++)
        rc = account_row(d, s, first + k, scores + (size_t)k * m->score_count, err);
    return rc;
}

static void summarise(study_device *d, measurements *times) {
    d->encrypt_ms = median(times->encrypt, times->count);
    d->stage_ms = median(times->stage, times->count);
    d->replay_ms = median(times->replay, times->count);
    d->replay_min_ms = times->replay[0]; /* sorted */
    d->decrypt_ms = median(times->decrypt, times->count);
}

static ckks_status run_requests(study_device *d, local_server *server, const study *s,
                                const study_options *options, ckks_error *err) {
    const uint32_t each = client_rows_per_request(s->model);
    uint64_t wanted = options->encrypted_count ? options->encrypted_count : each > 1 ? each : DEFAULT_ROWS;
    if (wanted > s->data.count) wanted = s->data.count;
    const uint64_t requests = (wanted + each - 1) / each + REPEATS_MIN, begin_ns = rpc_now_ns();
    double *memory = calloc((size_t)requests * 4, sizeof *memory);
    double *elements = malloc((size_t)each * s->model->element_count * sizeof *elements);
    double *scores = malloc((size_t)each * s->model->score_count * sizeof *scores);
    ckks_status rc = memory && elements && scores ? CKKS_OK : no_memory(err);
    measurements times = {memory, memory + requests, memory + 2 * requests, memory + 3 * requests, 0};
    ctl_bar bar = {0};
    ctl_bar_begin(&bar, options->common, "encrypted", false);
    uint64_t done = 0;
    while (done < wanted && rc == CKKS_OK) {
        const uint32_t count = wanted - done < each ? (uint32_t)(wanted - done) : each;
        rc = run_request(d, server, s, done, count, false, elements, scores, &times, err);
        done += count;
        ctl_bar_update(&bar, done, wanted);
        if (!options->encrypted_count && times.count >= REPEATS_MIN &&
            (double)(rpc_now_ns() - begin_ns) * 1e-9 > DEFAULT_SECONDS)
            break;
    }
    while (times.count < REPEATS_MIN && rc == CKKS_OK)
        rc = run_request(d, server, s, 0, done < each ? (uint32_t)done : each, true, elements, scores, &times,
                         err);
    ctl_bar_end(&bar);
    if (rc == CKKS_OK) summarise(d, &times);
    free(memory);
    wipe_free(elements);
    wipe_free(scores);
    return rc;
}

static ckks_status run_device(study *s, const study_options *options, uint32_t kind, ckks_error *err) {
    local_server server;
    study_device *d = &s->devices[s->device_count];
    ckks_status rc = local_server_open(&server, s->package, &s->keys, kind, NULL, err);
    if (rc != CKKS_OK) return rc;
    snprintf(d->name, sizeof d->name, "%s", server.description);
    d->prepare_ms = server.prepare_ms;
    d->memory = server.memory;
    rc = run_requests(d, &server, s, options, err);
    if (rc == CKKS_OK) s->device_count++;
    local_server_close(&server);
    return rc;
}

static ckks_status run_devices(study *s, const study_options *options, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    ckks_error none = {0};
    ctl_bar bar = {0};
    ctl_bar_begin(&bar, options->common, "keys", false);
    rc = local_keys_make(&s->keys, s->model, ctl_bar_update, &bar, err);
    ctl_bar_end(&bar);
    if (rc != CKKS_OK) return rc;
    if (options->device_kind != DEVICE_CUDA && (rc = run_device(s, options, DEVICE_CPU, err)) != CKKS_OK)
        return rc;
    if (options->device_kind == DEVICE_CPU) return CKKS_OK;
    rc = run_device(s, options, DEVICE_CUDA, options->device_kind == DEVICE_CUDA ? err : &none);
    return options->device_kind == DEVICE_CUDA ? rc : CKKS_OK; /* no GPU is no error */
}

ckks_status study_run(study *out, const client_model *model, const package *served,
                      const study_options *options, ckks_error *err) {
    *out = (study){.model = model, .package = served, .top = options->top};
    ckks_status rc = load_rows(out, options, err);
    if (rc == CKKS_OK) rc = run_clear(out, options, err);
    return rc == CKKS_OK ? run_devices(out, options, err) : rc;
}

bool study_is_good(const study *s) {
    for (uint32_t i = 0; i < s->device_count; i++) {
        const study_device *d = &s->devices[i];
        if (d->agreeing != d->compared || d->implausible) return false;
        if (s->promised_error > 0 && d->largest_error > s->promised_error) return false;
    }
    return true;
}
