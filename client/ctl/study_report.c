/* What a study found, for people and for scripts. */
#include "client/ctl/study.h"

static double percent(uint64_t part, uint64_t whole) {
    return whole ? 100.0 * (double)part / (double)whole : 0;
}

static void print_quality(const study *s) {
    const study_device *d = &s->devices[0];
    const char *score = s->model->score_count == 1 ? "the score" : "a score";
    if (s->has_labels && s->has_classes) {
        printf("accuracy     ");
        if (s->clear.has_original) printf("original %.1f %%, ", percent(s->right_original, s->data.count));
        printf("polynomial %.1f %% of %llu rows; encrypted %.1f %% of %llu",
               percent(s->right_polynomial, s->data.count), (unsigned long long)s->data.count,
               percent(d->right, d->rows), (unsigned long long)d->rows);
        if (s->clear.has_original && d->rows != s->data.count)
            printf(" (on these, original %.1f %%)", percent(d->right_original, d->rows));
        printf("\n");
    }
    if (s->has_classes) {
        printf("labels       encrypted as polynomial %llu of %llu", (unsigned long long)d->agreeing,
               (unsigned long long)d->compared);
        if (d->excluded)
            printf(" (%llu left out: margin below the promised error)", (unsigned long long)d->excluded);
        if (s->clear.has_original)
            printf("; encrypted as original %llu of %llu; polynomial as original %llu of %llu",
                   (unsigned long long)d->agreeing_original, (unsigned long long)d->rows,
                   (unsigned long long)s->agreeing_polynomial, (unsigned long long)s->data.count);
        printf("\n");
    }
    if (s->top)
        printf("top %-8u encrypted as polynomial %.2f %% of places", s->top,
               percent(d->top_common, d->top_places));
    if (s->top && s->clear.has_original)
        printf(", as original %.2f %%", percent(d->top_common_original, d->top_places));
    if (s->top) printf(" (%llu rows)\n", (unsigned long long)d->rows);
    printf("error        of %s: encrypted %.1e (promised %.1e)", score, d->largest_error, s->promised_error);
    if (s->clear.has_original) printf(", polynomials %.1e", s->polynomial_error);
    printf("; scores range over %.3g\n", s->score_range);
    for (uint32_t i = 0; i < s->device_count; i++)
        if (s->devices[i].implausible)
            printf("warning      %llu rows gave scores outside of what this model produces\n",
                   (unsigned long long)s->devices[i].implausible);
}

static void print_speed(const study *s) {
    const uint32_t each = client_rows_per_request(s->model);
    char a[32], b[32], c[32], d[32];
    printf("clear        ");
    if (s->clear.has_original) printf("original %.3f ms, ", s->original_ms);
    printf("polynomial %.3f ms a row\n", s->polynomial_ms);
    printf("encrypted    medians, of one request (%u row%s)\n", each, each == 1 ? "" : "s");
    printf("             %-36s %9s %9s %9s %9s\n", "", "encrypt", "replay", "decrypt", "shortest");
    for (uint32_t i = 0; i < s->device_count; i++) {
        const study_device *v = &s->devices[i];
        printf("             %-36.36s %6.2f ms %6.2f ms %6.2f ms %6.2f ms\n", v->name, v->encrypt_ms,
               v->replay_ms, v->decrypt_ms, v->replay_min_ms);
    }
    const study_device *v = &s->devices[0];
    printf("bytes        keys %s once (made in %.2f s); request %s, reply %s\n",
           ctl_bytes(a, s->model->key_bytes), s->keys.make_ms * 1e-3, ctl_bytes(b, v->request_bytes),
           ctl_bytes(c, v->reply_bytes));
    printf("memory       weights %s, each slot %s, each client's keys %s\n",
           ctl_bytes(a, v->memory.weights_bytes),
           ctl_bytes(b, v->memory.arena_bytes + v->memory.program_bytes), ctl_bytes(d, v->memory.keys_bytes));
}

void study_print(const study *s) {
    range_print(stdout, &s->ranges, s->row_count);
    print_quality(s);
    print_speed(s);
}

static void json_device(json_writer *j, const study *s, const study_device *d) {
    json_object(j, NULL);
    json_string(j, "device", d->name);
    json_integer(j, "rows", d->rows);
    if (s->has_labels && s->has_classes) json_number(j, "accuracy", percent(d->right, d->rows) / 100);
    if (s->has_classes) {
        json_integer(j, "labels_compared", d->compared);
        json_integer(j, "labels_agreeing", d->agreeing);
        json_integer(j, "labels_excluded", d->excluded);
        if (s->clear.has_original) json_integer(j, "labels_as_original", d->agreeing_original);
    }
    if (s->top) {
        json_integer(j, "top_places", d->top_places);
        json_integer(j, "top_as_polynomial", d->top_common);
        if (s->clear.has_original) json_integer(j, "top_as_original", d->top_common_original);
    }
    json_number(j, "largest_error", d->largest_error);
    json_integer(j, "implausible", d->implausible);
    json_number(j, "prepare_ms", d->prepare_ms);
    json_number(j, "encrypt_ms", d->encrypt_ms);
    json_number(j, "stage_ms", d->stage_ms);
    json_number(j, "replay_ms", d->replay_ms);
    json_number(j, "replay_minimum_ms", d->replay_min_ms);
    json_number(j, "decrypt_ms", d->decrypt_ms);
    json_integer(j, "request_bytes", d->request_bytes);
    json_integer(j, "reply_bytes", d->reply_bytes);
    json_integer(j, "weights_bytes", d->memory.weights_bytes);
    json_integer(j, "slot_bytes", d->memory.arena_bytes + d->memory.program_bytes);
    json_integer(j, "resident_key_bytes", d->memory.keys_bytes);
    json_close_object(j);
}

void study_json(json_writer *j, const study *s) {
    json_integer(j, "rows", s->row_count);
    range_json(j, &s->ranges);
    if (s->clear.has_original) {
        if (s->has_labels && s->has_classes)
            json_number(j, "accuracy_original", percent(s->right_original, s->data.count) / 100);
        if (s->has_classes)
            json_number(j, "polynomial_as_original", percent(s->agreeing_polynomial, s->data.count) / 100);
        json_number(j, "polynomial_error", s->polynomial_error);
        json_number(j, "original_ms", s->original_ms);
    }
    if (s->has_labels && s->has_classes)
        json_number(j, "accuracy_polynomial", percent(s->right_polynomial, s->data.count) / 100);
    json_number(j, "polynomial_ms", s->polynomial_ms);
    json_number(j, "promised_error", s->promised_error);
    json_number(j, "score_range", s->score_range);
    json_integer(j, "rows_per_request", client_rows_per_request(s->model));
    json_integer(j, "key_bytes", s->model->key_bytes);
    json_number(j, "keys_ms", s->keys.make_ms);
    json_list(j, "devices");
    for (uint32_t i = 0; i < s->device_count; i++) json_device(j, s, &s->devices[i]);
    json_close_list(j);
    json_bool(j, "good", study_is_good(s));
}
