/*
 * Rows of a file in parts, so that a file of any length takes the memory of a part. A plain CSV file is read
 * as it goes; everything else (gzip, .npy, IDX, standard input) is read whole and handed out in parts.
 *
 * Threads: one at a time.
 */
#ifndef CKKS_CTL_ROWS_STREAM_H
#define CKKS_CTL_ROWS_STREAM_H

#include "client/ctl/rows.h"

typedef struct rows_stream rows_stream;

/* Where a part ends, so that a later run can go on behind it. */
typedef struct rows_place {
    uint64_t row;       /* rows before it */
    uint64_t offset;    /* byte of the file; 0 where the file is read whole */
    uint32_t line;      /* its line */
    uint8_t digest[32]; /* of the part that ends here: its bytes, or its numbers */
} rows_place;

/* rows_stream_open reads what comes before the first row. Messages name the file. The caller owns *out. */
ckks_status rows_stream_open(rows_stream **out, const client_model *model, const rows_source *source,
                             const ctl_options *options, ckks_error *err);
void rows_stream_close(rows_stream *stream); /* accepts NULL */

/* rows_stream_next hands out up to `count` rows more (none: the end) without labels, free with rows_fini, and
 * where they end. */
ckks_status rows_stream_next(rows_stream *stream, rows *out, rows_place *end, uint64_t count,
                             ckks_error *err);
/* rows_stream_skip goes to `end`, which a part that began here had before: CKKS_DIGEST_MISMATCH if other rows
 * are there now. */
ckks_status rows_stream_skip(rows_stream *stream, const rows_place *end, ckks_error *err);
/* share of the file behind us, in thousandths */
uint64_t rows_stream_done(const rows_stream *stream);

#endif
