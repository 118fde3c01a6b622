/* ckksctl encrypt, decrypt: the two ends of `infer` apart, for machines that must not meet the network. */
#include "client/ctl/rows.h"

#include "client/lib/wipe.h"

#include <stdlib.h>
#include <string.h>

typedef struct arguments {
    ctl_options common;
    const char *model;
    rows_source source;
    const char *output;
    const char *files[4096];
    uint32_t file_count;
    bool use_public, raw;
} arguments;

enum { OPTION_PUBLIC = CTL_KEY_FIRST, OPTION_ROWS, OPTION_RAW };

/* ---- encrypt ---- */

static const struct argp_option encrypt_options[] = {
    {"output", 'o', "PREFIX", 0, "files are PREFIX000001.ct and so on (default: the name of ROWS and -)", 0},
    {"public", OPTION_PUBLIC, 0, 0, "encrypt with the public key: no secret key is needed here", 0},
    {"rows", OPTION_ROWS, "N", 0, "the first N rows only", 0},
    {0}};

static error_t parse_encrypt(int key, char *argument, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->common;
        return 0;
    case 'o':
        a->output = ctl_take_output(state, argument, "output");
        return 0;
    case OPTION_PUBLIC:
        a->use_public = true;
        return 0;
    case OPTION_ROWS:
        a->source.limit = ctl_take_count(state, argument, UINT32_MAX, "rows");
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num == 0)
            a->model = ctl_take_model(state, argument);
        else
            ctl_take_one(state, &a->source.path, argument);
        return 0;
    case ARGP_KEY_END:
        ctl_need(state, a->model, "MODEL", "a server's model, or its package or saved metadata");
        ctl_need(state, a->source.path, "ROWS", "a file of rows, or - for standard input");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp encrypt_parser = {
    encrypt_options,
    parse_encrypt,
    "MODEL ROWS",
    "Encrypt rows into files, one a request.\v"
    "With saved metadata this needs no network. What comes out may be sent by anyone who has your key set's "
    "id:\n\n"
    "Examples:\n"
    "  ckksctl encrypt mnist.meta digits.npy -o outbox/digit-\n"
    "  ckksctl encrypt mnist.meta digits.npy --public --key alice -o outbox/digit-\n"
    "  ckksctl infer mnist outbox/digit-000001.ct -o result.ct     (elsewhere)\n"
    "  ckksctl decrypt mnist.meta result.ct --key alice\n",
    ctl_common_children,
    0,
    0};

typedef struct encryptor {
    client_secret_key *secret;
    client_public_key *public;
} encryptor;

static ckks_status encryptor_open(encryptor *e, const arguments *a, const client_model *model,
                                  ckks_error *err) {
    ckks_status rc;
    key_paths paths;
    uint8_t *image = NULL;
    size_t size = 0;
    if ((rc = key_paths_for(&paths, a->common.profile.key, &model->params, err)) != CKKS_OK) return rc;
    if (!a->use_public) return ctl_load_secret(&e->secret, &a->common, paths.secret, err);
    rc = file_read(&image, &size, paths.public, UINT64_C(1) << 30, err);
    if (rc == CKKS_NOT_FOUND && err) err->code = rc = CKKS_KEY_MISSING;
    if (rc == CKKS_OK) rc = client_public_key_import(&e->public, image, size, a->common.allow_insecure, err);
    free(image);
    return rc;
}

static ckks_status write_request(const arguments *a, const client_model *model, const encryptor *e,
                                 const double *elements, uint32_t row_count, const char *path,
                                 ckks_error *err) {
    ckks_status rc;
    client_ciphertexts list = {0};
    uint8_t *image = NULL;
    size_t size = 0;
    (void)a;
    if ((rc = client_encrypt(&list, model, e->secret, e->public, elements, row_count, err)) == CKKS_OK &&
        (rc = client_ciphertexts_export(&image, &size, &list, model, err)) == CKKS_OK)
        rc = file_write(path, image, size, 0644, true, err);
    free(image);
    client_ciphertexts_fini(&list);
    return rc;
}

static ckks_status encrypt_rows(const arguments *a, const client_model *model, const encryptor *e,
                                const rows *data, uint64_t *files, ckks_error *err) {
    const uint32_t per_request = client_rows_per_request(model);
    const char *prefix = a->output ? a->output : !strcmp(a->source.path, "-") ? "rows" : a->source.path;
    ckks_status rc = CKKS_OK;
    ctl_bar bar;
    double *elements = malloc((size_t)per_request * model->element_count * sizeof *elements);
    if (!elements) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for rows");
    if (a->output && (rc = file_make_parents(prefix, err)) != CKKS_OK) goto out;
    ctl_bar_begin(&bar, &a->common, "encrypting", false);
    for (uint64_t first = 0; first < data->count && rc == CKKS_OK; first += per_request) {
        char path[CTL_PATH_MAX];
        const uint64_t left = data->count - first;
        const uint32_t count = left < per_request ? (uint32_t)left : per_request;
        for (uint32_t k = 0; k < count && rc == CKKS_OK; k++) {
            ckks_error inner = {0};
            rc = client_preprocess(elements + (size_t)k * model->element_count, model,
                                   data->values + (first + k) * data->width, &inner);
            if (rc != CKKS_OK)
                ckks_error_set(err, rc, inner.field, "row %llu: %s", (unsigned long long)first + k + 1,
                               inner.message);
        }
        if (rc != CKKS_OK) break;
        if (snprintf(path, sizeof path, "%s%s%06llu.ct", prefix, a->output ? "" : "-",
                     (unsigned long long)++*files) >= (int)sizeof path)
            rc = ckks_error_set(err, CKKS_INVALID_ARGUMENT, "output", "the path is too long");
        else
            rc = write_request(a, model, e, elements, count, path, err);
        ctl_bar_update(&bar, first + count, data->count);
    }
    ctl_bar_end(&bar);
out:
    wipe_free(elements);
    return rc;
}

int command_encrypt(int argc, char **argv) {
    arguments a = {0};
    ckks_error err = {0};
    rpc_connection *c = NULL;
    client_model *model = NULL;
    encryptor e = {0};
    rows data = {0};
    uint64_t files = 0;
    argp_parse(&encrypt_parser, argc, argv, 0, NULL, &a);
    ckks_status rc = ctl_resolve(&a.common, &err);
    if (rc == CKKS_OK) rc = ctl_model(&model, &c, &a.common, a.model, NULL, &err);
    if (rc == CKKS_OK) rc = rows_load(&data, model, &a.source, &a.common, &err);
    if (rc == CKKS_OK) rc = encryptor_open(&e, &a, model, &err);
    if (rc == CKKS_OK) rc = encrypt_rows(&a, model, &e, &data, &files, &err);
    if (rc == CKKS_OK && a.common.json) {
        json_writer j;
        json_begin(&j);
        json_object(&j, NULL);
        json_integer(&j, "rows", data.count);
        json_integer(&j, "files", files);
        json_close_object(&j);
        json_end(&j);
    } else if (rc == CKKS_OK) {
        ctl_note(&a.common, "%llu file%s written", (unsigned long long)files, files == 1 ? "" : "s");
    }
    client_secret_key_destroy(e.secret);
    client_public_key_destroy(e.public);
    rows_fini(&data);
    client_model_destroy(model);
    rpc_close(c);
    return rc == CKKS_OK ? EXIT_GOOD : ctl_fail(&a.common, &err);
}

/* ---- decrypt ---- */

static const struct argp_option decrypt_options[] = {
    {"raw", OPTION_RAW, 0, 0, "do not round results: never pass such values on", 0}, {0}};

static error_t parse_decrypt(int key, char *argument, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->common;
        return 0;
    case OPTION_RAW:
        a->raw = true;
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num == 0)
            a->model = ctl_take_model(state, argument);
        else if (a->file_count == sizeof a->files / sizeof *a->files)
            ctl_refuse_more(state, argument);
        else
            a->files[a->file_count++] = argument;
        return 0;
    case ARGP_KEY_END:
        ctl_need(state, a->model, "MODEL", "a server's model, or its package or saved metadata");
        ctl_need(state, a->files[0], "RESULT", "a result file to decrypt");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp decrypt_parser = {
    decrypt_options,
    parse_decrypt,
    "MODEL RESULT...",
    "Decrypt result files and print predictions, rounded to the precision that the model promises.\v"
    "Example:\n"
    "  ckksctl decrypt mnist.meta result.ct --key alice\n",
    ctl_common_children,
    0,
    0};

static void print_prediction(json_writer *j, const ctl_options *o, const char *path, uint32_t row,
                             double step, const client_prediction *p, bool is_plausible) {
    if (o->json) {
        json_object(j, NULL);
        json_string(j, "file", path);
        json_integer(j, "row", row);
        if (p->has_label) json_string(j, "label", p->label);
        json_list(j, "values");
        for (uint32_t k = 0; k < p->value_count; k++) json_number(j, NULL, p->values[k]);
        json_close_list(j);
        json_bool(j, "plausible", is_plausible);
        json_close_object(j);
        return;
    }
    printf("%s", path);
    if (p->has_label) printf("\t%s", p->label);
    for (uint32_t k = 0; k < p->value_count; k++) ctl_print_value(p->values[k], step);
    printf("%s\n", is_plausible ? "" : "\t(outside of what this model produces)");
}

static ckks_status decrypt_file(json_writer *j, bool *is_plausible, const arguments *a,
                                const client_model *model, const client_secret_key *sk, const char *path,
                                ckks_error *err) {
    ckks_status rc;
    uint8_t *image = NULL;
    size_t size = 0;
    client_ciphertexts list = {0};
    double *scores = NULL;
    const double step = a->raw ? 0 : client_promised_step(model);
    ckks_error inner = {0};
    if ((rc = file_read(&image, &size, path, UINT64_C(1) << 30, err)) != CKKS_OK) return rc;
    if ((rc = client_ciphertexts_import(&list, model, false, image, size, &inner)) != CKKS_OK) goto out;
    if (list.row_count > client_rows_per_request(model)) {
        rc = ckks_error_set(&inner, CKKS_MALFORMED, "sample_count", "%u rows", list.row_count);
        goto out;
    }
    if (!(scores = malloc((size_t)list.row_count * model->score_count * sizeof *scores))) {
        rc = ckks_error_set(&inner, CKKS_RESOURCE_EXHAUSTED, "", "no memory for scores");
        goto out;
    }
    if ((rc = client_decrypt(scores, model, sk, &list, list.row_count, &inner)) != CKKS_OK) goto out;
    for (uint32_t k = 0; k < list.row_count && rc == CKKS_OK; k++) {
        client_prediction p;
        double *one = scores + (size_t)k * model->score_count;
        const bool is_good = client_scores_are_plausible(model, one, model->score_count);
        client_round(one, model->score_count, step);
        if ((rc = client_postprocess(&p, model, one, &inner)) != CKKS_OK) break;
        print_prediction(j, &a->common, path, k + 1, step, &p, is_good);
        client_prediction_fini(&p);
        *is_plausible = *is_plausible && is_good;
    }
out:
    file_name_error(&inner, path);
    if (rc != CKKS_OK && err && err->code == CKKS_OK) *err = inner;
    wipe_free(scores);
    free(image);
    client_ciphertexts_fini(&list);
    return rc;
}

int command_decrypt(int argc, char **argv) {
    arguments a = {0};
    ckks_error err = {0};
    rpc_connection *c = NULL;
    client_model *model = NULL;
    client_secret_key *sk = NULL;
    key_paths paths;
    json_writer j;
    bool is_plausible = true;
    argp_parse(&decrypt_parser, argc, argv, 0, NULL, &a);
    json_begin(&j);
    ckks_status rc = ctl_resolve(&a.common, &err);
    if (rc == CKKS_OK) rc = ctl_model(&model, &c, &a.common, a.model, NULL, &err);
    if (rc == CKKS_OK) rc = key_paths_for(&paths, a.common.profile.key, &model->params, &err);
    if (rc == CKKS_OK) rc = ctl_load_secret(&sk, &a.common, paths.secret, &err);
    if (rc == CKKS_OK) ctl_warn_unrounded(a.raw ? 0 : client_promised_step(model));
    if (rc == CKKS_OK && a.common.json) json_list(&j, NULL);
    for (uint32_t i = 0; i < a.file_count && rc == CKKS_OK; i++)
        rc = decrypt_file(&j, &is_plausible, &a, model, sk, a.files[i], &err);
    if (rc == CKKS_OK && a.common.json) {
        json_close_list(&j);
        json_end(&j);
    }
    json_discard(&j);
    client_secret_key_destroy(sk);
    client_model_destroy(model);
    rpc_close(c);
    if (rc != CKKS_OK) return ctl_fail(&a.common, &err);
    return is_plausible ? EXIT_GOOD : EXIT_MISMATCH;
}
