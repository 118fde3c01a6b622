/*
 * A file of results that grows part by part and can be gone on with after any interruption: `PATH.part` has
 * the results so far, `PATH.journal` one line per part that is whole, and PATH appears, by renaming, when all
 * is there. A part counts once its line is on disk behind its bytes; what an interrupted write left behind
 * that is cut off.
 *
 * Threads: one at a time.
 */
#ifndef CKKS_CTL_JOURNAL_H
#define CKKS_CTL_JOURNAL_H

#include "client/ctl/rows_stream.h"

typedef struct journal journal;

/* journal_open begins, or goes on where an earlier run stopped; `identity` is one line that says what the
 * results depend on. *places[*count] (free with free()) are the parts of the earlier run. `head` starts the
 * results of a new run. CKKS_FAILED_PRECONDITION if the journal is of another run or damaged, or another run
 * is writing the same file; CKKS_INVALID_ARGUMENT where `path` is a pipe, a device or a folder. The caller
 * owns *out. Blocks. */
ckks_status journal_open(journal **out, rows_place **places, uint32_t *count, const char *path,
                         const char *identity, const char *head, ckks_error *err);
/* journal_append adds a part. Blocks until it is on disk. */
ckks_status journal_append(journal *j, const char *text, size_t bytes, const rows_place *end,
                           ckks_error *err);
/* journal_finish puts the file in its place and removes the journal. */
ckks_status journal_finish(journal *j, ckks_error *err);
/* journal_close: what was appended stays; without a row both files go, unless they cannot. Accepts NULL. */
void journal_close(journal *j);

#endif
