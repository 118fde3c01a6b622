/*
 * A model on real rows, everything on this machine: the original, the polynomial model, and encrypted on
 * every device there is. `ckksctl try` and `ckksctl check` print it.
 */
#ifndef CKKS_CTL_STUDY_H
#define CKKS_CTL_STUDY_H

#include "client/ctl/infer.h"
#include "client/ctl/local.h"
#include "client/ctl/ranges.h"

#define STUDY_DEVICES_MAX 2u

typedef struct study_device {
    char name[128];
    double prepare_ms;
    double encrypt_ms, stage_ms, replay_ms, decrypt_ms; /* medians, of one request */
    double replay_min_ms;
    uint64_t request_bytes, reply_bytes;
    workload_memory memory;
    uint64_t rows;                  /* that ran encrypted */
    uint64_t right, right_original; /* of them, encrypted and by the original model; with labels */
    uint64_t compared, excluded,
        agreeing; /* labels, with the polynomial model; excluded: margins too small */
    uint64_t agreeing_original;
    uint64_t top_places, top_common, top_common_original; /* of the K largest of each row */
    uint64_t implausible;
    double largest_error; /* of a score, against the polynomial model, in the model's units */
} study_device;

typedef struct study {
    const client_model *model;
    const package *package;
    bool has_labels, has_classes;
    uint64_t row_count; /* read */
    rows data;          /* the rows within the ranges */
    range_report ranges;
    local_keys keys;
    clear_run clear;
    uint64_t right_original, right_polynomial, agreeing_polynomial; /* of data.count rows */
    double polynomial_error, score_range;                           /* in the model's units */
    double original_ms, polynomial_ms;                              /* medians, of one row */
    double promised_error;                                          /* in the model's units */
    uint32_t top;                                                   /* of the options */
    uint32_t device_count;
    study_device devices[STUDY_DEVICES_MAX];
} study;

typedef struct study_options {
    const ctl_options *common;
    rows_source source;
    const char *onnx_path;
    uint32_t device_kind;     /* DEVICE_AUTO: the CPU, and a GPU where there is one */
    uint64_t encrypted_count; /* rows to run encrypted; 0: as many as are quickly done */
    uint32_t top;             /* also compare which scores of a row are the `top` largest; 0: no */
} study_options;

/* study_run does all of it, with progress on a terminal. `model` and `served` (its package) must outlive
 * *out; free with study_fini, also after an error. CKKS_OUT_OF_RANGE if no row is within the ranges. */
ckks_status study_run(study *out, const client_model *model, const package *served,
                      const study_options *options, ckks_error *err);
void study_fini(study *s); /* accepts zeroed */

/* study_is_good: encrypted labels are the polynomial model's, errors within the promise. */
bool study_is_good(const study *s);
void study_print(const study *s);
void study_json(json_writer *j, const study *s);

#endif
