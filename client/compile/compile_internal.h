/* One compilation, as compile.c and compile_throughput.c see it. */
#ifndef CKKS_COMPILE_COMPILE_INTERNAL_H
#define CKKS_COMPILE_COMPILE_INTERNAL_H

#include "client/compile/calibrate.h"
#include "client/compile/emit.h"
#include "client/compile/prove.h"
#include "client/compile/report.h"

/* the promised error is at most this share of the scores' range */
#define PROMISE_SHARE 1e-3
/* how far an estimate, in deviations, and how far a measured maximum are trusted */
#define DEVIATIONS      7.0
#define MEASURED_FACTOR 2.0

typedef struct compilation {
    compile_options options; /* defaults filled in */
    arena memory;
    compile_report *report;
    onnx_model *model;
    lowered_model lowered;
    ir_preprocess preprocess;
    ir_graph graph;   /* with polynomials */
    double *elements; /* of the calibration rows, as the client's steps make them */
    double *rows;     /* the same after ir_peel's affine step */
    calibration data;
    uint32_t score_count;
    double *original, *scores; /* [row][score]: ONNX, and the polynomial graph's (as decrypted) */
    double score_scale;        /* decrypted score times this = the model's score */
    double label_changes_max;  /* expected share of labels that may change; infinite: no limit */
    bool has_looser;           /* looser polynomials would serve too, but for labels */
    ir_graph looser;
    double *looser_scores;
    parameter_choice choice;
    emitted_program program; /* its plan points to choice.params */
    proof proof;
    double promised_error; /* of a decrypted score */
    uint64_t check_limit_ns;
} compilation;

/* compile_substitute fills graph, scores and score_scale (1), looser, label_changes_max and the report's
 * polynomial_error and closeness (substitute.c). CKKS_PRECISION. compile_take_looser goes back to the
 * polynomials that the target error alone asks for, when no program was found for closer ones (`cause`). */
ckks_status compile_substitute(compilation *c, ckks_error *err);
ckks_status compile_take_looser(compilation *c, const ckks_error *cause, ckks_error *err);
double compile_score_range(const compilation *c);
/* compile_refuse_target: CKKS_PRECISION of field target_error, with the least target that may be had: scores
 * are `closest` to the original model's at best (`where`: " in ...", or ""). */
ckks_status compile_refuse_target(const compilation *c, double closest, const char *where, ckks_error *err);
/* largest difference of `scores`, as decrypted, to the original model's on the calibration rows */
double compile_difference(const compilation *c, const double *scores);
/* do clients get a label? */
bool compile_has_labels(const compilation *c);
/* compile_label_changes: the share of labels that errors like those of `scores`, as decrypted, are expected
 * to change. CKKS_RESOURCE_EXHAUSTED. */
ckks_status compile_label_changes(double *share, const compilation *c, const double *scores, ckks_error *err);
/* compile_agreement: the share of calibration rows with the original model's label. */
double compile_agreement(const compilation *c);
void compile_self_test_seed(compilation *c);

/* compile_throughput fills choice, program, proof, promised_error, scores (the plan's own, with rounded
 * weights) and the report's polynomial_error, for the throughput layout. CKKS_UNSUPPORTED, CKKS_PRECISION,
 * CKKS_INSECURE_PARAMETERS: this model does not suit it. */
ckks_status compile_throughput(compilation *c, ckks_error *err);
/* compile_auto compiles for both layouts and keeps the one whose measured time for options.batch rows is
 * shorter; the report has both. */
ckks_status compile_auto(compilation *c, ckks_error *err);
/* compile_latency is the other layout (compile.c). */
ckks_status compile_latency(compilation *c, ckks_error *err);
/* compile_trade adds what was compiled to the report's comparison. */
void compile_trade(compilation *c, compile_layout layout);

#endif
