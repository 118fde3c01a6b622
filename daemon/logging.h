/*
 * Log lines on stderr: key=value, one line each. Where they go to the journal each line starts with its
 * priority, "<6>"; on a terminal with the local time; in a file with time= (UTC) and level=. Values of peers
 * are quoted and escaped, so that a line is a line. Tokens, secrets and payload bytes are never passed here.
 */
#ifndef CKKSD_LOGGING_H
#define CKKSD_LOGGING_H

#include "kernels/base/log.h"
#include "kernels/base/status.h"

#include <stddef.h>

/* logging_start installs the process's sink. Call before any thread starts. */
void logging_start(log_level level);

/* log_level_parse: error, warning, notice, info, debug; false on another word. */
bool log_level_parse(log_level *out, const char *text);

/* log_quote writes `text` for use as a value: bare if it is plain, else in quotes with \xNN for what is not
 * printable; cut (with "...") at the capacity. Returns buffer. */
char *log_quote(char *buffer, size_t capacity, const char *text);

/* log_error writes "event=EVENT error=CODE field=... message=..." */
void log_error(log_level level, const char *event, const ckks_error *err);

#endif
