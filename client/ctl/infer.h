/* `ckksctl infer` in parts: what each row gave (infer_run.c), the same in the clear (infer_clear.c), the
 * account of all of it (infer_report.c). */
#ifndef CKKS_CTL_INFER_H
#define CKKS_CTL_INFER_H

#include "client/ctl/rows.h"

/* The same rows without encryption: the polynomial model (what the program computes) and the original (what
 * it approximates). */
typedef struct clear_run {
    bool has_polynomial, has_original;
    double *polynomial, *original;       /* scores [row][score_count], owned */
    double *polynomial_ms, *original_ms; /* [row], owned */
} clear_run;
/* clear_polynomial: CKKS_SIGNATURE_MISMATCH if the package is not the one the model was made from. */
ckks_status clear_polynomial(clear_run *run, const client_model *model, const rows *data,
                             const char *package_path, bool allow_insecure, ckks_error *err);
ckks_status clear_polynomial_of(clear_run *run, const client_model *model, const rows *data,
                                const package *served, ckks_error *err);
ckks_status clear_original(clear_run *run, const client_model *model, const rows *data, const char *onnx_path,
                           ckks_error *err);
void clear_run_fini(clear_run *run);

typedef struct row_result {
    bool is_done, is_plausible;
    client_prediction prediction;
    uint32_t *top; /* [top_count] places of the largest values, largest first; owned */
    uint32_t top_count;
    double encrypt_ms, decrypt_ms;
    rpc_timing timing;
} row_result;

typedef struct infer_job {
    rpc_connection *connection;
    const client_model *model;
    const client_secret_key *secret;
    const client_public_key *public; /* not NULL: encrypt with it */
    uint8_t key_set[32];
    const rows *data;
    uint32_t concurrency;
    double step;  /* rounding; 0 = raw */
    uint32_t top; /* so many of the largest values of a row are wanted; 0 = all values */
    ctl_bar *bar;
    row_result *results; /* [data->count] */
    double *scores;      /* [data->count][score_count], as decrypted, not rounded */
    double *shown;       /* the same, rounded */
} infer_job;
/* infer_check_rows preprocesses every row, so that the first bad one is refused before anything is sent. */
ckks_status infer_check_rows(const client_model *model, const rows *data, ckks_error *err);
/* infer_run evaluates every row; stops at the first failure. Blocks. */
ckks_status infer_run(infer_job *job, ckks_error *err);

/* infer_send_file evaluates an encrypted request file and saves the result file: no secret key is needed
 * here. key_set: the id under which the owner's keys are registered. */
ckks_status infer_send_file(rpc_connection *connection, const client_model *model, const uint8_t key_set[32],
                            const char *request_path, const char *result_path, ckks_error *err);
/* infer_is_request_file: does the file begin as one of ours does? */
bool infer_is_request_file(const char *path);

typedef struct infer_figures {
    uint64_t row_count;
    bool has_labels, has_polynomial, has_original;
    uint64_t right, right_polynomial, right_original;
    uint64_t compared, excluded, agreeing; /* with the clear polynomial model */
    uint64_t implausible;
    double stated_error, largest_difference, score_range;
    double encrypt_ms, queue_ms, stage_ms, replay_ms, total_ms, decrypt_ms, polynomial_ms,
        original_ms; /* medians */
    uint64_t key_bytes, request_bytes, reply_bytes;
    uint64_t attempts;
} infer_figures;
ckks_status infer_account(infer_figures *out, const infer_job *job, const clear_run *clear, ckks_error *err);
void infer_print_rows(const infer_job *job);
void infer_print_figures(const infer_figures *f, const client_model *model);
void infer_print_json(const infer_job *job, const infer_figures *f, bool with_rows, bool is_raw);

/* ---- a large file of rows into a CSV of results (infer_stream.c) ---- */

#define INFER_STREAM_WORKERS_MAX 64u

typedef struct infer_stream_job {
    rpc_connection *connection;
    const client_model *model;
    const client_secret_key *secret;
    const client_public_key *public; /* not NULL: encrypt with it */
    uint8_t key_set[32];
    uint32_t concurrency; /* parts under way at a time: each takes the memory of one request */
    double step;          /* rounding; 0 = raw */
    uint32_t top;         /* so many of the largest values of a row; 0 = all */
    const char *output;
    ctl_bar *bar;
    bool has_label; /* filled in */
} infer_stream_job;

typedef struct infer_stream_figures {
    uint64_t resumed_rows, rows; /* by an earlier run; by this one */
    uint64_t implausible, requests, replay_ns, request_bytes;
    uint64_t begin_ns;
    double seconds;
    bool is_complete;
} infer_stream_figures;

/* infer_stream writes the results of all rows to job->output, or goes on with an interrupted run's. Blocks.
 * SIGINT: parts under way are finished, then CKKS_CANCELLED. */
ckks_status infer_stream(infer_stream_figures *out, infer_stream_job *job, const rows_source *source,
                         const ctl_options *options, ckks_error *err);
void infer_stream_print(const infer_stream_figures *f, const infer_stream_job *job, bool json);

#endif
