#include "client/ctl/journal.h"

#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define JOURNAL_BYTES_MAX (UINT64_C(64) << 20)

struct journal {
    char *path, *part_path, *journal_path, *identity;
    int part, lines;
    uint64_t part_bytes, rows; /* that whole lines stand for */
    bool is_open, is_finished;
};

static ckks_status write_all(int fd, const char *path, const char *text, size_t bytes, ckks_error *err) {
    while (bytes) {
        const ssize_t written = write(fd, text, bytes);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return file_io_error(err, path, "write");
        text += written, bytes -= (size_t)written;
    }
    return fdatasync(fd) == 0 ? CKKS_OK : file_io_error(err, path, "write");
}

static char *with_suffix(const char *path, const char *suffix) {
    char *joined = malloc(strlen(path) + strlen(suffix) + 1);
    if (joined) strcpy(stpcpy(joined, path), suffix);
    return joined;
}

static ckks_status foreign(const journal *j, const char *why, ckks_error *err) {
    return ckks_error_set(err, CKKS_FAILED_PRECONDITION, "output",
                          "%.120s %s: remove it and %.120s to begin again", j->journal_path, why,
                          j->part_path);
}

/* a decimal number and the blank behind it */
static bool read_number(const char **at, uint64_t *out, uint64_t max) {
    char *end;
    errno = 0;
    if (**at < '0' || **at > '9') return false;
    const unsigned long long value = strtoull(*at, &end, 10);
    if (errno || value > max || *end != ' ') return false;
    *out = value;
    *at = end + 1;
    return true;
}

#define CHECK_DIGITS 16u

/* of a line up to its check, in this journal: a digit that changed would lose results, or number rows wrongly
 */
static ckks_status line_check(const journal *j, char check[CHECK_DIGITS + 1], const char *line, size_t bytes,
                              ckks_error *err) {
    uint8_t digest[SHA256_BYTES];
    hash_state *hash = hash_create();
    if (!hash) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a journal");
    hash_update(hash, j->identity, strlen(j->identity));
    hash_update(hash, line, bytes);
    hash_finish(hash, digest);
    hash_destroy(hash);
    hex_encode(check, digest, CHECK_DIGITS / 2);
    return CKKS_OK;
}

/* "ROWS BYTES OFFSET LINE DIGEST CHECK" */
static bool read_line(const char *line, const char *check, rows_place *place, uint64_t *bytes) {
    char digest[65] = {0};
    uint64_t number;
    const size_t size = strlen(line);
    if (size < CHECK_DIGITS || strcmp(line + size - CHECK_DIGITS, check) != 0) return false;
    if (!read_number(&line, &place->row, UINT64_MAX) || !read_number(&line, bytes, INT64_MAX) ||
        !read_number(&line, &place->offset, INT64_MAX) || !read_number(&line, &number, UINT32_MAX))
        return false;
    place->line = (uint32_t)number;
    if (strlen(line) != 65 + CHECK_DIGITS || line[64] != ' ') return false;
    memcpy(digest, line, 64);
    return hex_decode(place->digest, sizeof place->digest, digest);
}

/* Whole lines only: the last one may have been cut off. *kept: bytes of the journal up to the last good line.
 */
static ckks_status read_journal(journal *j, rows_place **places, uint32_t *count, size_t *kept, char *text,
                                size_t size, const char *identity, ckks_error *err) {
    const size_t identity_bytes = strlen(identity);
    if (size < identity_bytes || memcmp(text, identity, identity_bytes) != 0)
        return foreign(j, "is of another run (model, options or format)", err);
    uint32_t lines = 0;
    for (size_t i = identity_bytes; i < size; i++) lines += text[i] == '\n';
    if (!(*places = malloc(((size_t)lines + 1) * sizeof **places)))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a journal");
    *kept = identity_bytes;
    for (char *at = text + identity_bytes, *end; *count < lines && (end = strchr(at, '\n')); at = end + 1) {
        rows_place *place = &(*places)[*count];
        uint64_t bytes = 0;
        *end = 0;
        const uint64_t before = *count ? place[-1].row : 0;
        char check[CHECK_DIGITS + 1];
        const size_t checked = (size_t)(end - at) > CHECK_DIGITS ? (size_t)(end - at) - CHECK_DIGITS : 0;
        const ckks_status rc = line_check(j, check, at, checked, err);
        if (rc != CKKS_OK) return rc;
        if (!read_line(at, check, place, &bytes) || place->row < before || bytes < j->part_bytes)
            return foreign(j, "is damaged", err);
        j->part_bytes = bytes, j->rows = place->row;
        ++*count;
        *kept = (size_t)(end + 1 - text);
    }
    return CKKS_OK;
}

/* cuts off what no whole line stands for */
static ckks_status trim(journal *j, size_t journal_bytes, ckks_error *err) {
    struct stat st;
    if (fstat(j->part, &st) != 0) return file_io_error(err, j->part_path, "read");
    if ((uint64_t)st.st_size < j->part_bytes) return foreign(j, "counts more results than there are", err);
    if (ftruncate(j->part, (off_t)j->part_bytes) != 0 || lseek(j->part, 0, SEEK_END) < 0)
        return file_io_error(err, j->part_path, "write");
    if (ftruncate(j->lines, (off_t)journal_bytes) != 0 || lseek(j->lines, 0, SEEK_END) < 0)
        return file_io_error(err, j->journal_path, "write");
    return CKKS_OK;
}

/* Two runs on one file would mix their results: the second is refused. A run has its part locked until it
 * has ended, also when the part has its last name already. */
static ckks_status rival(const journal *j, ckks_error *err) {
    return ckks_error_set(err, CKKS_FAILED_PRECONDITION, "output", "%.200s: another run is writing it",
                          j->part_path);
}
static ckks_status lock_part(const journal *j, ckks_error *err) {
    if (flock(j->part, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return CKKS_OK;
    return rival(j, err);
}
/* What was opened as the part may have become the results of a run that ended meanwhile. */
static bool is_part_still(const journal *j) {
    struct stat opened, named;
    return fstat(j->part, &opened) == 0 && stat(j->part_path, &named) == 0 && opened.st_dev == named.st_dev &&
           opened.st_ino == named.st_ino;
}
/* The part has its last name and the journal is still there: is that so because a run is just ending? */
static bool is_ending(const journal *j) {
    const int results = open(j->path, O_RDONLY | O_CLOEXEC);
    if (results < 0) return false;
    const bool is_locked = flock(results, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    close(results);
    return is_locked;
}

/* *is_empty: the run stopped before its first line was whole, or has ended since; nothing is open then. */
static ckks_status resume(journal *j, bool *is_empty, rows_place **places, uint32_t *count,
                          const char *identity, ckks_error *err) {
    uint8_t *text = NULL;
    size_t size = 0, kept = 0;
    ckks_status rc;
    ckks_error why = {0};
    j->part = open(j->part_path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    int missing = j->part < 0 ? errno : 0;
    if (!missing && (rc = lock_part(j, err)) != CKKS_OK) return rc;
    if (!missing && !is_part_still(j)) {
        close(j->part), j->part = -1;
        missing = ENOENT;
    }
    if ((rc = file_read(&text, &size, j->journal_path, JOURNAL_BYTES_MAX, &why)) != CKKS_OK) {
        if ((*is_empty = rc == CKKS_NOT_FOUND)) rc = CKKS_OK; /* it is a journal no more */
        if (rc != CKKS_OK && err && err->code == CKKS_OK) *err = why;
        goto out;
    }
    char *ended = realloc(text, size + 1);
    if (!ended) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a journal");
        goto out;
    }
    text = (uint8_t *)ended;
    ended[size] = 0;
    if ((*is_empty = size < strlen(identity) && memcmp(text, identity, size) == 0)) goto out;
    rc = read_journal(j, places, count, &kept, ended, size, identity, err);
    if (rc != CKKS_OK || (*is_empty = *count == 0)) goto out;
    if (missing) {
        /* a run that is just ending, or has ended since; a power failure between the two steps of
         * journal_finish; or somebody's hand */
        if (is_ending(j))
            rc = rival(j, err);
        else if ((*is_empty = access(j->journal_path, F_OK) != 0))
            *count = 0;
        else if (missing == ENOENT)
            rc = foreign(j, "is left over, its results are finished or gone", err);
        else {
            errno = missing;
            rc = file_io_error(err, j->part_path, "open");
        }
        goto out;
    }
    if ((j->lines = open(j->journal_path, O_WRONLY | O_CLOEXEC)) < 0)
        rc = file_io_error(err, j->journal_path, "open");
    else
        rc = trim(j, kept, err);
out:
    free(text);
    if (*is_empty && j->part >= 0) close(j->part), j->part = -1;
    return rc;
}

/* The journal comes last: without it there is nothing to go on with. */
static ckks_status begin(journal *j, const char *identity, const char *head, ckks_error *err) {
    const mode_t mode = (mode_t)file_mode(j->path, 0644) | S_IWUSR;
    ckks_status rc;
    if ((j->part = open(j->part_path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, mode)) < 0)
        return file_io_error(err, j->part_path, "open");
    if ((rc = lock_part(j, err)) != CKKS_OK) return rc;
    /* somebody else's, who has ended or been stopped since this run looked for a journal */
    if (!is_part_still(j) || access(j->journal_path, F_OK) == 0) return rival(j, err);
    if (ftruncate(j->part, 0) != 0) {
        rc = file_io_error(err, j->part_path, "write");
        goto out;
    }
    if ((rc = write_all(j->part, j->part_path, head, strlen(head), err)) != CKKS_OK) goto out;
    j->part_bytes = strlen(head);
    if ((j->lines = open(j->journal_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644)) < 0) {
        rc = file_io_error(err, j->journal_path, "open");
        goto out;
    }
    rows_place none = {0};
    if ((rc = write_all(j->lines, j->journal_path, identity, strlen(identity), err)) != CKKS_OK ||
        (rc = journal_append(j, "", 0, &none, err)) != CKKS_OK)
        unlink(j->journal_path);
out:
    if (rc != CKKS_OK) unlink(j->part_path); /* no result is in it */
    return rc;
}

ckks_status journal_open(journal **out, rows_place **places, uint32_t *count, const char *path,
                         const char *identity, const char *head, ckks_error *err) {
    ckks_status rc;
    bool is_new = false, is_empty = false, is_special = false;
    char target[PATH_MAX];
    *out = NULL, *places = NULL, *count = 0;
    journal *j = calloc(1, sizeof *j);
    if (!j) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a journal");
    j->part = j->lines = -1;
    /* results come part by part and get their name at the end: a pipe or a device has no such end */
    if ((rc = file_resolve(target, path, &is_special, err)) == CKKS_OK && is_special)
        rc = ckks_error_set(err, CKKS_INVALID_ARGUMENT, "output",
                            "%.200s is no regular file: name one, or leave --output out to print results",
                            path);
    if (rc != CKKS_OK) {
        free(j);
        return rc;
    }
    j->path = strdup(target);
    j->part_path = with_suffix(target, ".part");
    j->journal_path = with_suffix(target, ".journal");
    j->identity = strdup(identity);
    if (!j->path || !j->part_path || !j->journal_path || !j->identity)
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a journal");
    else if ((rc = file_make_parents(path, err)) == CKKS_OK)
        is_new = access(j->journal_path, F_OK) != 0;
    if (rc == CKKS_OK && !is_new) rc = resume(j, &is_empty, places, count, identity, err);
    if (rc == CKKS_OK && is_empty && unlink(j->journal_path) != 0 && errno != ENOENT)
        rc = file_io_error(err, j->journal_path, "remove");
    if (rc == CKKS_OK && (is_new || is_empty)) rc = begin(j, identity, head, err);
    if (rc == CKKS_OK) {
        j->is_open = true;
        *out = j;
        return CKKS_OK;
    }
    free(*places);
    *places = NULL, *count = 0;
    journal_close(j);
    return rc;
}

ckks_status journal_append(journal *j, const char *text, size_t bytes, const rows_place *end,
                           ckks_error *err) {
    char line[240], digest[65];
    ckks_status rc = write_all(j->part, j->part_path, text, bytes, err);
    if (rc != CKKS_OK) return rc;
    j->part_bytes += bytes;
    const int length =
        snprintf(line, sizeof line, "%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu32 " %s ", end->row,
                 j->part_bytes, end->offset, end->line, hex_encode(digest, end->digest, sizeof end->digest));
    if ((rc = line_check(j, line + length, line, (size_t)length, err)) != CKKS_OK) return rc;
    line[length + (int)CHECK_DIGITS] = '\n';
    rc = write_all(j->lines, j->journal_path, line, (size_t)length + CHECK_DIGITS + 1, err);
    if (rc == CKKS_OK) j->rows = end->row;
    return rc;
}

ckks_status journal_finish(journal *j, ckks_error *err) {
    if (fsync(j->part) != 0) return file_io_error(err, j->part_path, "write");
    if (rename(j->part_path, j->path) != 0) return file_io_error(err, j->path, "rename");
    j->is_finished = true;
    if (unlink(j->journal_path) != 0) return file_io_error(err, j->journal_path, "remove");
    return CKKS_OK;
}

void journal_close(journal *j) {
    if (!j) return;
    /* without a row there is nothing to go on with; the part is locked until it is closed */
    if (j->is_open && !j->is_finished && !j->rows && unlink(j->journal_path) == 0) (void)unlink(j->part_path);
    if (j->part >= 0) close(j->part);
    if (j->lines >= 0) close(j->lines);
    free(j->path);
    free(j->part_path);
    free(j->journal_path);
    free(j->identity);
    free(j);
}
