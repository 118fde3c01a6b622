/* Which rows leave the ranges that a model was made for: column by column, element by element, layer by
 * layer, and by how much. */
#ifndef CKKS_CTL_RANGES_H
#define CKKS_CTL_RANGES_H

#include "client/compile/compile.h"
#include "client/ctl/rows.h"
#include "proto/package.h"

typedef enum range_kind { RANGE_COLUMN = 1, RANGE_ELEMENT, RANGE_LAYER } range_kind;

typedef struct range_violation {
    range_kind kind;
    char name[80];
    double low, high;        /* declared */
    double minimum, maximum; /* seen, over all rows */
    uint64_t row_count;      /* rows outside; layers: 0, not counted */
    uint64_t first_row;      /* counted from 1 */
} range_violation;

typedef struct range_report {
    uint32_t count;
    range_violation *list;
    uint64_t outside_count; /* rows that a client would refuse */
    bool *is_outside;       /* [rows] */
} range_report;

/* range_check goes through every row; a row outside is no error. `original` (NULL: layers are not looked at)
 * is the ONNX model of `served`. Free with range_report_fini. */
ckks_status range_check(range_report *out, const client_model *model, const package *served,
                        const onnx_model *original, const rows *data, ckks_error *err);
void range_report_fini(range_report *report);
/* range_beyond: how far a violation goes, as a share of the declared range. */
double range_beyond(const range_violation *v);
void range_print(FILE *to, const range_report *report, uint64_t row_count);
/* range_tell prints on stderr what range_check finds without the original model; nothing if that fails. */
void range_tell(const client_model *model, const rows *data);
void range_json(json_writer *j, const range_report *report);

#endif
