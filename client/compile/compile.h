/*
 * From an ONNX file to a model package: the public entry of client/compile.
 *
 * Two independent halves. The *clear* half reads an ONNX model and evaluates it as it is (onnx_model_*,
 * onnx_interpret): what a prediction would be without encryption. The *compiler* (compile_model) turns the
 * same model into a package: it recognises operators, folds linear chains, fits polynomials over the ranges
 * that the calibration rows show, lays vectors out in slots, fixes levels and exact scales, chooses
 * parameters, and proves the result on this machine by running it encrypted under a secret key that it throws
 * away.
 *
 * No calibration row enters the package; what does enter are ranges: of each raw column, of the encrypted
 * input and of the outputs, widened.
 *
 * Threads: no shared state; each call on its own objects may run on any thread. compile_model blocks for
 * seconds.
 */
#ifndef CKKS_CLIENT_COMPILE_H
#define CKKS_CLIENT_COMPILE_H

#include "kernels/base/status.h"
#include "kernels/scheme/params.h"

#include <stddef.h>
#include <stdio.h>

/* ---- the model in the clear ---- */

typedef struct onnx_model onnx_model;

/* onnx_model_load reads and checks a file (blocks on I/O); onnx_model_parse does the same for bytes in memory
 * (which may be freed afterwards). Checks: sizes, types, order of nodes, missing and doubly defined values,
 * shapes; every operator must be known, and all unknown ones are named in one message. External data is
 * refused. CKKS_MALFORMED, CKKS_UNSUPPORTED, CKKS_TOO_LARGE, CKKS_IO; err->field is the node, tensor or path.
 * The caller owns *out; onnx_model_destroy accepts NULL. */
ckks_status onnx_model_load(onnx_model **out, const char *path, ckks_error *err);
ckks_status onnx_model_parse(onnx_model **out, const void *bytes, size_t size, ckks_error *err);
void onnx_model_destroy(onnx_model *model);

/* Numbers of one row: raw input elements (without the batch axis), and scores: what the encrypted program
 * computes, before the softmax, sigmoid, argmax or label map that a client applies afterwards. */
uint32_t onnx_model_input_count(const onnx_model *model);
uint32_t onnx_model_score_count(const onnx_model *model);

/* A number of a raw row, as a table has it. */
typedef struct onnx_column {
    const char *name;              /* NULL: the model takes one matrix, whose columns have no names */
    bool is_text;                  /* the raw number is the index of a category, -1 for any other text */
    const char *const *categories; /* [category_count] */
    uint32_t category_count;
    bool refuses_unknown; /* -1 is no input for this model */
    bool takes_missing;   /* NaN is filled in by the model */
} onnx_column;
/* onnx_model_peek is onnx_model_load for the sake of the columns: operators that cannot run encrypted are no
 * error. */
ckks_status onnx_model_peek(onnx_model **out, const char *path, ckks_error *err);
/* onnx_model_column: index below onnx_model_input_count. Pointers are the model's. */
onnx_column onnx_model_column(const onnx_model *model, uint32_t index);
/* onnx_model_is_table: the client does more than hand the numbers over. */
bool onnx_model_is_table(const onnx_model *model);

/* onnx_interpret evaluates the original model (exact activations, binary64) on rows[row_count][input_count]
 * of raw inputs, as a CSV or npy has them, into scores[row_count][score_count]: what decrypted scores
 * multiplied by the package's factor (client_score_factor) must be. CKKS_OUT_OF_RANGE if a score is not
 * finite, or a category is not one that the model takes. */
ckks_status onnx_interpret(double *scores, const onnx_model *model, const double *rows, uint64_t row_count,
                           ckks_error *err);

/* What goes into an activation, over some rows. */
typedef struct onnx_layer_range {
    const char *source; /* the ONNX node of the activation; the model's */
    double minimum, maximum;
    uint64_t minimum_row, maximum_row;
} onnx_layer_range;
/* onnx_observe runs the exact model on rows of raw inputs and says what each activation saw, in the order of
 * the graph. Free *out with free(). */
ckks_status onnx_observe(onnx_layer_range **out, uint32_t *count, const onnx_model *model, const double *rows,
                         uint64_t row_count, ckks_error *err);

/* ---- the compiler ---- */

/* Calibration rows: raw inputs, as the model takes them: missing values NaN, categories as numbers of
 * onnx_column. Borrowed. */
typedef struct compile_calibration {
    const double *values; /* [row_count][column_count] */
    uint64_t row_count;   /* at least 1 */
    uint32_t column_count;
    const char *const *column_names; /* [column_count], or NULL: a plain tensor (npy, IDX), or the names that
                                        the model itself has */
} compile_calibration;

/* How rows lie in ciphertexts. Latency: one row over the slots of few ciphertexts. Throughput: one slot per
 * row, one ciphertext per element, up to N/2 rows at once, no rotation keys. */
typedef enum compile_layout {
    COMPILE_LAYOUT_LATENCY = 1,
    COMPILE_LAYOUT_THROUGHPUT,
    COMPILE_LAYOUT_AUTO /* the one that is faster for `batch` rows, measured on this machine */
} compile_layout;

/* Zero means the default. */
typedef struct compile_options {
    const char *onnx_path;
    const char *name; /* of the model, in the package; NULL: the file's name without ".onnx" */
    compile_calibration calibration;
    uint32_t security_bits;             /* 128 (default), 192 or 256 */
    uint32_t log_n;                     /* ring degree 2^log_n; 0: the smallest that serves */
    const ckks_params *compatible_with; /* NULL, or the parameters to use, of another model: its
                                                  clients then need no other secret key. Latency layout */
    bool allow_insecure; /* accept parameters over the security table; the package says so for ever */
    double target_error; /* largest difference of a score to the original model's on the calibration rows,
                            as a share of the scores' range, that replacing activations by polynomials may
                            cause; default 0.01, or less where more than one label in 1,000 would be
                            expected to change */
    double range_margin; /* how much wider than the calibration rows show polynomials must hold, as a share
                            of the range; default 0.25 */
    bool is_for_gpu;     /* prefer what a GPU is fast at: fewer, larger steps, for more keys */
    uint64_t key_budget_bytes; /* evaluation keys, as they travel, take at most so much; 0: no limit */
    uint32_t check_rows; /* calibration rows to run encrypted before the package is written; default 8, or
                            as many as three seconds allow, at least two */
    uint32_t layout;     /* compile_layout; default latency */
    uint64_t batch;      /* rows that come together, for the choice of layout and of the ring */
    void (*progress)(void *context, const char *stage, uint64_t done, uint64_t total); /* may be NULL */
    void *progress_context;
} compile_options;

typedef struct compile_report compile_report;

/*
 * compile_model compiles into an image of a package file (*package, free with free()) and a report (which is
 * made for refusals too where the model could be read: *report may be non-NULL on error). Both outputs are
 * the caller's. Nothing is written to disk. Blocks.
 *
 * CKKS_UNSUPPORTED: some operators cannot run encrypted: err names the first; compile_report_refusals has
 * all. CKKS_PRECISION: no parameter set or degree reaches the target. CKKS_INSECURE_PARAMETERS.
 * CKKS_MALFORMED, CKKS_TOO_LARGE, CKKS_IO: the file. CKKS_INVALID_ARGUMENT: options or calibration rows.
 */
ckks_status compile_model(uint8_t **package, size_t *size, compile_report **report,
                          const compile_options *options, ckks_error *err);

/* compile_operators_print writes every ONNX operator that is known: what runs encrypted, what the client
 * does, what is computed while the model is read, and what is refused with which way out; a Markdown table,
 * or one JSON object and a newline. */
void compile_operators_print(FILE *to, bool is_json);

/* One operator that cannot run encrypted. */
typedef struct compile_refusal {
    const char *node; /* the node's name, or that of its first output */
    const char *type; /* "Conv", "ai.onnx.ml.TreeEnsembleClassifier" */
    const char *reason;
    const char *way_out;
} compile_refusal;

/* compile_report_refusals returns how many, and the list (owned by the report). */
uint32_t compile_report_refusals(const compile_report *report, const compile_refusal **out);
/* compile_refusals_print prints them for people: nodes that are refused for one reason together, with the way
 * out. */
void compile_refusals_print(FILE *to, const compile_report *report);

/* One layout of the model, to set beside the other. */
typedef struct compile_trade_row {
    uint32_t layout; /* compile_layout */
    uint32_t rows_per_request;
    uint64_t replay_ns;     /* of one full request, measured in the encrypted check on this machine's CPU */
    uint64_t request_bytes; /* of one request, seeded and packed */
    uint64_t key_bytes;
} compile_trade_row;

/* One choice of polynomials, and what it does on the calibration rows in the clear. */
typedef struct compile_closeness {
    uint32_t degree_min, degree_max;
    uint32_t depth;       /* levels of the whole model; 0: the layout is not the latency layout */
    uint32_t log_n;       /* smallest ring for them; 0: there is none, or no depth */
    double error;         /* largest difference of a score to the original model's */
    double error_share;   /* the same as a share of the scores' range, as for target_error */
    double label_changes; /* expected share of labels that differ; below 0: the model gives no labels */
} compile_closeness;

/* Figures of a successful report; strings are the report's. */
typedef struct compile_summary {
    uint32_t log_n, level_count, depth, security_bits; /* security_bits 0: insecure */
    uint32_t log_qp;
    uint32_t key_count;
    uint64_t key_bytes;     /* as it travels */
    uint64_t request_bytes; /* one encrypted input, seeded and packed */
    uint64_t weights_bytes, arena_bytes, resident_key_bytes;
    uint32_t operation_count, rotation_count, plain_count;
    double promised_error;   /* of a score against the polynomial model */
    double measured_error;   /* largest in the encrypted check */
    double polynomial_error; /* largest against the original model on the calibration rows, in the clear */
    double score_minimum, score_maximum; /* observed on the calibration rows */
    bool has_labels;                     /* clients get labels; agreement and label_changes are of them */
    double agreement;                    /* share of calibration rows with the original model's label */
    double label_changes;             /* share of labels of other rows that are expected to differ from its */
    uint32_t closeness_count, chosen; /* looser polynomials (where closer ones were chosen for the sake of
                                         labels), the chosen, and the next closer; none without activations */
    compile_closeness closeness[3];
    uint32_t checked_rows;
    double compile_seconds;
    uint64_t peak_bytes; /* most memory that this process has had so far */
    uint32_t layout;     /* compile_layout */
    uint32_t rows_per_request;
    uint32_t trade_count; /* layouts that were compiled: two for auto */
    compile_trade_row trade[2];
} compile_summary;
void compile_report_summary(const compile_report *report, compile_summary *out);

/* compile_report_predict adds what a cost model says of one request's replay. */
void compile_report_predict(compile_report *report, double ms);
/* compile_report_print writes a table for people; compile_report_json one JSON object and a newline. */
void compile_report_print(FILE *to, const compile_report *report);
void compile_report_json(FILE *to, const compile_report *report);
void compile_report_destroy(compile_report *report); /* accepts NULL */

#endif
