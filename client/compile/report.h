/* What compile_model tells about its work. Owns all its texts. */
#ifndef CKKS_COMPILE_REPORT_H
#define CKKS_COMPILE_REPORT_H

#include "client/compile/arena.h"
#include "client/compile/compile.h"
#include "client/compile/emit.h"
#include "client/compile/model.h"

struct compile_report {
    double predicted_ms; /* 0: not predicted */
    arena memory;
    const char *name;
    bool is_complete; /* a package was made */
    compile_summary summary;
    uint32_t refusal_count;
    compile_refusal *refusals;
    uint32_t layer_count;
    emitted_layer *layers;
    uint32_t note_count;
    const char *notes[8];
    char parameters[96]; /* "50 + 6 x 40 bits, keys 2 x 50" */
    uint64_t package_bytes;
};

ckks_status report_create(compile_report **out, ckks_error *err);
/* copies the model's refusals */
ckks_status report_refusals(compile_report *report, const onnx_model *model, ckks_error *err);
/* copies the program's layers and its parameters' figures */
ckks_status report_program(compile_report *report, const emitted_program *program, ckks_error *err);
ckks_status report_note(compile_report *report, ckks_error *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
