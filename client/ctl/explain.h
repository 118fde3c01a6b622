/* What `ckksctl explain` says of a package: a row for each layer (explain.c), printed as a table, JSON
 * (cmd_explain.c) or a page (explain_html.c). */
#ifndef CKKS_CTL_EXPLAIN_H
#define CKKS_CTL_EXPLAIN_H

#include "client/ctl/cost.h"
#include "client/ctl/parts.h"

typedef struct explain_row {
    const char *source; /* the package's */
    char kind[64];
    uint32_t elements_in, elements_out; /* 0: the package does not say */
    uint32_t ciphertexts, period;       /* 0 in the throughput layout */
    uint32_t level_in, level_out;
    double scale_log2;
    uint32_t operations, diagonals, rotations, key_switches, degree;
    double interval_low, interval_high; /* with a degree */
    double measured_ms, predicted_ms;   /* negative: not known */
    double passes[COST_KERNELS];        /* what the prediction counted */
    uint64_t weight_bytes;
} explain_row;

typedef struct explanation {
    const package *package;
    uint32_t count;
    explain_row *rows;
    double measured_ms;  /* of the whole program; negative: not measured */
    double predicted_ms; /* negative: no cost model */
    cost_model cost;     /* with a prediction */
    workload_memory memory;
    bool has_memory;
    bool is_unsteady; /* some time was not reached again: the machine does other work */
    char device[128];
} explanation;

typedef struct explain_options {
    const ctl_options *common;
    uint32_t device_kind;
    bool measures, predicts, calibrates; /* calibrates: the cost model anew */
} explain_options;

/* explain_package cuts the program into layers, and times it whole and in parts where asked to. Blocks for
 * seconds. Free with explanation_fini. */
ckks_status explain_package(explanation *out, const package *p, const explain_options *options,
                            ckks_error *err);
void explanation_fini(explanation *e);

/* explain_layout: ciphertexts x period, or "by rows". */
void explain_layout(char text[32], const explain_row *row);
void explain_print(const explanation *e);
void explain_json(const explanation *e);
/* explain_html: one page without references to anything else. Free *out with free(). */
ckks_status explain_html(char **out, size_t *size, const explanation *e, ckks_error *err);

#endif
