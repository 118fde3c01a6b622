/* ckksctl infer: the whole way of a row, there and back. */
#include "client/ctl/infer.h"
#include "client/ctl/ranges.h"

#include "client/lib/wipe.h"
#include "kernels/base/bytes.h"

#include <stdlib.h>
#include <string.h>

typedef struct arguments {
    ctl_options common;
    const char *model;
    rows_source source;
    const char *reference, *original, *output;
    uint8_t key_set[32];
    bool has_key_set;
    uint8_t pin[32];
    bool is_pinned, raw, use_public, summary_only;
    uint32_t concurrency, top;
} arguments;

enum {
    OPTION_LABELS = CTL_KEY_FIRST,
    OPTION_LABEL_COLUMN,
    OPTION_REFERENCE,
    OPTION_ORIGINAL,
    OPTION_PIN,
    OPTION_RAW,
    OPTION_PUBLIC,
    OPTION_SUMMARY,
    OPTION_ROWS,
    OPTION_CONCURRENCY,
    OPTION_KEY_SET,
    OPTION_TOP
};
static const struct argp_option options[] = {
    {"rows", OPTION_ROWS, "N", 0, "the first N rows only", 0},
    {"labels", OPTION_LABELS, "FILE", 0, "true labels (one a line, .npy or IDX): prints the accuracy", 0},
    {"label-column", OPTION_LABEL_COLUMN, "NAME", 0, "the CSV file's column of true labels", 0},
    {"reference", OPTION_REFERENCE, "PACKAGE", 0, "also run this package in the clear and compare", 0},
    {"original", OPTION_ORIGINAL, "ONNX", 0, "also run the original model in the clear", 0},
    {"top", OPTION_TOP, "K", 0, "of each row only the K largest values, with their places, from 0 on", 0},
    {"summary", OPTION_SUMMARY, 0, 0, "print figures only, not each row", 0},
    {"raw", OPTION_RAW, 0, 0, "do not round results (see below)", 0},
    {"pin", OPTION_PIN, "DIGEST", 0, "refuse any other package than the one of this SHA-256", 0},
    {"public", OPTION_PUBLIC, 0, 0, "encrypt with the public key (results still need the secret one)", 0},
    {"output", 'o', "FILE", 0,
     "write results to a CSV file, part by part: an interrupted run goes on where it stopped (with an "
     "encrypted "
     "request file: where to save its result)",
     0},
    {"key-set", OPTION_KEY_SET, "ID", 0, "with an encrypted request file: its owner's key set (64 digits)",
     0},
    {"concurrency", OPTION_CONCURRENCY, "N", 0, "requests under way at a time (default 1, with --output 2)",
     0},
    {0}};

static error_t parse(int key, char *argument, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->common;
        return 0;
    case OPTION_LABELS:
        a->source.labels_path = argument;
        return 0;
    case OPTION_LABEL_COLUMN:
        a->source.label_column = argument;
        return 0;
    case OPTION_REFERENCE:
        a->reference = argument;
        return 0;
    case OPTION_ORIGINAL:
        a->original = argument;
        return 0;
    case OPTION_SUMMARY:
        a->summary_only = true;
        return 0;
    case OPTION_RAW:
        a->raw = true;
        return 0;
    case OPTION_PUBLIC:
        a->use_public = true;
        return 0;
    case OPTION_PIN:
        if (!hex_decode(a->pin, sizeof a->pin, argument))
            argp_error(state, "--pin takes 64 hexadecimal digits");
        a->is_pinned = true;
        return 0;
    case OPTION_KEY_SET:
        if (!hex_decode(a->key_set, sizeof a->key_set, argument))
            argp_error(state, "--key-set takes 64 hexadecimal digits");
        a->has_key_set = true;
        return 0;
    case 'o':
        a->output = ctl_take_output(state, argument, "output");
        return 0;
    case OPTION_ROWS:
        a->source.limit = ctl_take_count(state, argument, UINT32_MAX, "rows");
        return 0;
    case OPTION_TOP:
        a->top = (uint32_t)ctl_take_count(state, argument, 1000000, "top");
        return 0;
    case OPTION_CONCURRENCY:
        a->concurrency = (uint32_t)ctl_take_count(state, argument, 64, "concurrency");
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

static const struct argp parser = {
    options,
    parse,
    "MODEL[/VERSION] ROWS",
    "Encrypt rows, have the server evaluate the model on them, decrypt and print the results.\v"
    "ROWS is CSV (columns are matched by name to the model's, in any order; others are ignored), .npy or IDX "
    "(gzip is "
    "fine), or - for standard input; or a request file of `ckksctl encrypt`, whose result -o saves. Values "
    "outside of the range that the model declares are refused before "
    "anything is "
    "encrypted. A result line is: row, label, values.\n\n"
    "Results are approximate and are rounded to the precision that the model promises. --raw prints every "
    "digit: do "
    "not pass such values on to anyone, since the digits below the precision carry information about your "
    "secret key.\n\n"
    "-o writes the results of any number of rows to a CSV file: columns row, label (if the model has one), "
    "values (with --top: index and value of each), note (\"implausible\" where a value is outside of what "
    "the model produces). Results so far are "
    "in "
    "FILE.part, and FILE.journal says how far they reach; after an interruption the same command goes on "
    "there, if model and rows are still the same. A model of the throughput layout takes many rows in one "
    "request.\n\n"
    "Examples:\n"
    "  ckksctl infer breast-cancer patients.csv\n"
    "  ckksctl infer credit customers.csv -o scores.csv\n"
    "  ckksctl infer retrieval queries.npy --top 10 -o nearest.csv\n"
    "  ckksctl infer mnist images-idx3.gz --labels labels-idx1.gz --summary\n"
    "  ckksctl infer credit/2 rows.csv --label-column class --json\n",
    ctl_common_children,
    0,
    0};

/* Keys that fit the model, before anything is encrypted. */
typedef struct keys {
    client_secret_key *secret;
    client_public_key *public;
    client_key_set *set;
} keys;

static void keys_fini(keys *k) {
    client_secret_key_destroy(k->secret);
    client_public_key_destroy(k->public);
    client_key_set_destroy(k->set);
}

static ckks_status load_public(client_public_key **out, const char *path, bool allow_insecure,
                               ckks_error *err) {
    uint8_t *image = NULL;
    size_t size = 0;
    ckks_status rc = file_read(&image, &size, path, UINT64_C(1) << 30, err);
    if (rc == CKKS_OK) rc = client_public_key_import(out, image, size, allow_insecure, err);
    free(image);
    return rc;
}

static ckks_status key_set_load(keys *out, const ctl_options *o, const client_model *model, const char *path,
                                ckks_error *err) {
    ckks_status rc;
    if ((rc = key_set_file_peek(&out->set, path, o->allow_insecure, err)) != CKKS_OK) {
        if (rc == CKKS_NOT_FOUND && err) err->code = rc = CKKS_KEY_MISSING;
        return rc;
    }
    if (memcmp(out->set->params.id, model->params.id, CKKS_PARAMETER_ID_BYTES) != 0)
        return ckks_error_set(err, CKKS_PARAMS_MISMATCH, "key",
                              "%s was made for other parameters than the model's", path);
    return client_requirements_cover(out->set->keys, out->set->key_count, model->keys, model->key_count, err);
}

/* a model of no keys needs the secret key alone */
static ckks_status keys_load(keys *out, const arguments *a, const client_model *model, ckks_error *err) {
    const ctl_options *o = &a->common;
    ckks_status rc;
    key_paths paths;
    if ((rc = key_paths_for(&paths, o->profile.key, &model->params, err)) != CKKS_OK) return rc;
    if (model->key_count && (rc = key_set_load(out, o, model, paths.keys, err)) != CKKS_OK) return rc;
    if ((rc = ctl_load_secret(&out->secret, o, paths.secret, err)) != CKKS_OK) return rc;
    if (out->set && memcmp(secret_key_lineage(out->secret->key), out->set->lineage, LINEAGE_BYTES) != 0)
        return ckks_error_set(err, CKKS_LINEAGE_MISMATCH, "key", "%s and %s do not belong together",
                              paths.secret, paths.keys);
    return a->use_public ? load_public(&out->public, paths.public, o->allow_insecure, err) : CKKS_OK;
}

/* What the server said is not the last word on whether it was right. */
static int verdict(const infer_figures *f) {
    if (f->implausible) return EXIT_MISMATCH;
    if (f->has_polynomial && f->agreeing != f->compared) return EXIT_MISMATCH;
    return EXIT_GOOD;
}

/* also where the model is a file */
static ckks_status model_and_connection(client_model **model, rpc_connection **connection, const arguments *a,
                                        ckks_error *err) {
    const ckks_status rc =
        ctl_model(model, connection, &a->common, a->model, a->is_pinned ? a->pin : NULL, err);
    return rc != CKKS_OK || *connection ? rc : ctl_connect(connection, &a->common, err);
}

static void say_saved(const ctl_options *o, const client_model *model, const char *path) {
    json_writer j;
    if (!o->json) {
        ctl_note(o, "%s saved; its owner reads it with ckksctl decrypt", path);
        return;
    }
    json_begin(&j);
    json_object(&j, NULL);
    json_string(&j, "model", model->description->name);
    json_string(&j, "output", path);
    json_close_object(&j);
    json_end(&j);
}

/* The request's owner decrypts the result; here only the name of the key set is needed. */
static ckks_status send_file(const arguments *a, rpc_connection **connection, ckks_error *err) {
    const ctl_options *o = &a->common;
    ckks_status rc;
    client_model *model = NULL;
    client_key_set *set = NULL;
    key_paths paths;
    uint8_t key_set[32] = {0};
    if (!a->output)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "command line",
                              "--output is missing: where to save the result");
    if ((rc = model_and_connection(&model, connection, a, err)) != CKKS_OK) goto out;
    if (a->has_key_set) {
        memcpy(key_set, a->key_set, sizeof key_set);
    } else if (model->key_count) {
        if ((rc = key_paths_for(&paths, o->profile.key, &model->params, err)) != CKKS_OK) goto out;
        if ((rc = key_set_file_peek(&set, paths.keys, o->allow_insecure, err)) != CKKS_OK) goto out;
        memcpy(key_set, set->id, sizeof key_set);
    }
    rc = infer_send_file(*connection, model, key_set, a->source.path, a->output, err);
    if (rc == CKKS_OK) say_saved(o, model, a->output);
out:
    client_key_set_destroy(set);
    client_model_destroy(model);
    return rc;
}

/* Results go to a file as they come; what compares rows with something needs them all. */
static ckks_status run_stream(int *code, const arguments *a, rpc_connection **connection, ckks_error *err) {
    const ctl_options *o = &a->common;
    ckks_status rc;
    client_model *model = NULL;
    keys k = {0};
    ctl_bar bar = {0};
    infer_stream_figures figures = {0};
    infer_stream_job job = {
        .concurrency = a->concurrency ? a->concurrency : 2, .output = a->output, .bar = &bar};
    if (a->source.labels_path || a->reference || a->original)
        return ckks_error_set(
            err, CKKS_INVALID_ARGUMENT, "command line",
            "--output does not go with --labels, --reference and --original, which need all rows");
    if ((rc = model_and_connection(&model, connection, a, err)) != CKKS_OK) goto out;
    if ((rc = keys_load(&k, a, model, err)) != CKKS_OK) goto out;
    job.connection = *connection, job.model = model;
    job.secret = k.secret, job.public = k.public;
    if (k.set) memcpy(job.key_set, k.set->id, sizeof job.key_set);
    job.step = a->raw ? 0 : client_promised_step(model);
    job.top = a->top;
    ctl_warn_unrounded(job.step);
    ctl_bar_begin(&bar, o, "evaluating", false);
    rc = infer_stream(&figures, &job, &a->source, o, err);
    ctl_bar_end(&bar);
    if (rc != CKKS_OK && rc != CKKS_CANCELLED && figures.resumed_rows + figures.rows)
        ctl_note(o, "the results of %llu rows are kept: the same command goes on behind them",
                 (unsigned long long)figures.resumed_rows + figures.rows);
    if (rc != CKKS_OK) goto out;
    if (!o->quiet || o->json) infer_stream_print(&figures, &job, o->json);
    *code = figures.implausible ? EXIT_MISMATCH : EXIT_GOOD;
out:
    keys_fini(&k);
    client_model_destroy(model);
    return rc;
}

/* what every row gives, for job->data and job->model */
static ckks_status results_init(infer_job *job, ckks_error *err) {
    const size_t rows_count = (size_t)job->data->count, scores_count = rows_count * job->model->score_count;
    job->results = calloc(rows_count, sizeof *job->results);
    job->scores = calloc(scores_count, sizeof *job->scores);
    job->shown = calloc(scores_count, sizeof *job->shown);
    return job->results && job->scores && job->shown
               ? CKKS_OK
               : ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for results");
}
static void results_fini(infer_job *job) {
    for (uint64_t i = 0; job->results && i < job->data->count; i++) {
        client_prediction_fini(&job->results[i].prediction);
        wipe_free(job->results[i].top);
    }
    wipe_free(job->results);
    wipe_free(job->scores);
    wipe_free(job->shown);
}

static void show(const arguments *a, const infer_job *job, const infer_figures *figures,
                 const clear_run *clear) {
    const bool wants_figures =
        a->summary_only || job->data->has_labels || clear->has_polynomial || clear->has_original;
    if (a->common.json) {
        infer_print_json(job, figures, !a->summary_only, a->raw);
        return;
    }
    if (!a->summary_only) infer_print_rows(job);
    if (wants_figures) infer_print_figures(figures, job->model);
}

static ckks_status run(int *code, const arguments *a, rpc_connection **connection, ckks_error *err) {
    const ctl_options *o = &a->common;
    ckks_status rc;
    client_model *model = NULL;
    keys k = {0};
    rows data = {0};
    clear_run clear = {0};
    infer_figures figures;
    ctl_bar bar = {0};
    infer_job job = {.concurrency = a->concurrency ? a->concurrency : 1, .bar = &bar};

    if ((rc = model_and_connection(&model, connection, a, err)) != CKKS_OK) goto out;
    if ((rc = rows_load(&data, model, &a->source, o, err)) != CKKS_OK) goto out;
    if ((rc = infer_check_rows(model, &data, err)) != CKKS_OK) {
        if (rc == CKKS_OUT_OF_RANGE && !o->json && !o->quiet) range_tell(model, &data);
        goto out;
    }
    if ((rc = keys_load(&k, a, model, err)) != CKKS_OK) goto out;
    if (a->reference &&
        (rc = clear_polynomial(&clear, model, &data, a->reference, o->allow_insecure, err)) != CKKS_OK)
        goto out;
    if (a->original && (rc = clear_original(&clear, model, &data, a->original, err)) != CKKS_OK) goto out;
    job.connection = *connection, job.model = model, job.data = &data;
    job.secret = k.secret, job.public = k.public;
    if (k.set) memcpy(job.key_set, k.set->id, sizeof job.key_set);
    job.step = a->raw ? 0 : client_promised_step(model);
    job.top = a->top;
    if ((rc = results_init(&job, err)) != CKKS_OK) goto out;
    ctl_warn_unrounded(job.step);
    ctl_bar_begin(&bar, o, "evaluating", false);
    rc = infer_run(&job, err);
    ctl_bar_end(&bar);
    if (rc != CKKS_OK) goto out;
    if ((rc = infer_account(&figures, &job, &clear, err)) != CKKS_OK) goto out;
    show(a, &job, &figures, &clear);
    *code = verdict(&figures);
out:
    results_fini(&job);
    clear_run_fini(&clear);
    rows_fini(&data);
    keys_fini(&k);
    client_model_destroy(model);
    return rc;
}

int command_infer(int argc, char **argv) {
    arguments a = {0};
    ckks_error err = {0};
    int code = EXIT_GOOD;
    rpc_connection *connection = NULL;
    argp_parse(&parser, argc, argv, 0, NULL, &a);
    ckks_status rc = ctl_resolve(&a.common, &err);
    if (rc == CKKS_OK) rc = ctl_check_output_below(a.output, &err);
    if (rc == CKKS_OK)
        rc = infer_is_request_file(a.source.path) ? send_file(&a, &connection, &err)
             : a.output                           ? run_stream(&code, &a, &connection, &err)
                                                  : run(&code, &a, &connection, &err);
    rpc_close(connection);
    if (rc == CKKS_OK) return code;
    code = ctl_fail(&a.common, &err);
    return rc == CKKS_CANCELLED ? EXIT_INTERRUPTED : code;
}
