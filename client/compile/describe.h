/* What a client must know of the model, as package.proto says it. */
#ifndef CKKS_COMPILE_DESCRIBE_H
#define CKKS_COMPILE_DESCRIBE_H

#include "client/compile/calibrate.h"
#include "client/compile/emit.h"

#include "package.pb-c.h"

/* Raw columns and elements may go beyond what the calibration rows show, as ir_range_slack says. Scores may
 * go this many ranges beyond. */
#define SCORE_SLACK 2.0

typedef struct describe_input {
    const char *name;
    const onnx_model *model;
    const compile_calibration *raw;
    const ir_graph *graph; /* observed: the encrypted input and the scores, as they travel */
    const ir_preprocess *preprocess;
    const client_steps *steps;
    const emitted_program *program;
    double score_scale;    /* the client multiplies decrypted scores by it */
    double promised_error; /* of a decrypted score, before that */
    uint32_t depth;
} describe_input;

/* describe_model fills *out; everything it points to is in `memory`. */
ckks_status describe_model(Ckksd__V1__ModelDescription *out, const describe_input *in, arena *memory,
                           ckks_error *err);

#endif
