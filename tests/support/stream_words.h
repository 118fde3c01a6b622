/*
 * The small vocabulary of the tests of large files of rows: a run over a system that fails, another run that
 * comes in between, and a server that is a function. The sources under test are compiled in here. Included by
 * one test file.
 */
#ifndef CKKS_TESTS_STREAM_WORDS_H
#define CKKS_TESTS_STREAM_WORDS_H

#include "client/ctl/ctl.h"
#include "client/ctl/infer.h"
#include "client/lib/rpc_internal.h"
#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"
#include "tests/support/alloc_fault.h"
#include "tests/support/model_fixture.h"
#include "tests/support/temporary.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
// cmocka wants others first
#include <cmocka.h>

/* ---- somebody else, who comes in before the n-th call, step by step ---- */

#define MOMENTS 3u
static struct {
    uint64_t at[MOMENTS], calls;
    void (*step)(uint32_t number);
} meanwhile;

static void a_moment(void) {
    meanwhile.calls++;
    for (uint32_t i = 0; meanwhile.step && i < MOMENTS; i++)
        if (meanwhile.at[i] == meanwhile.calls) meanwhile.step(i);
}
static int other_flock(int fd, int how) {
    a_moment();
    return flock(fd, how);
}
static int other_access(const char *path, int how) {
    a_moment();
    return access(path, how);
}
static ckks_status other_file_read(uint8_t **out, size_t *size, const char *path, uint64_t size_max,
                                   ckks_error *err) {
    a_moment();
    return file_read(out, size, path, size_max, err);
}

/* ---- a system whose n-th call fails; a write that fails wrote half before ---- */

static struct { uint64_t fail_at, calls; } disk;

static bool disk_fails(void) {
    a_moment();
    if (++disk.calls != disk.fail_at) return false;
    errno = ENOSPC;
    return true;
}
static ssize_t disk_write(int fd, const void *data, size_t bytes) {
    if (disk_fails()) return -1;
    if (disk.calls + 1 == disk.fail_at && bytes > 1) bytes /= 2;
    return write(fd, data, bytes);
}
static int disk_sync(int fd) {
    (void)fd;
    return disk_fails() ? -1 : 0;
}
static int disk_truncate(int fd, off_t bytes) {
    return disk_fails() ? -1 : ftruncate(fd, bytes);
}
static int disk_rename(const char *from, const char *to) {
    return disk_fails() ? -1 : rename(from, to);
}
static int disk_unlink(const char *path) {
    return disk_fails() ? -1 : unlink(path);
}
static int disk_open(const char *path, int flags, ...) {
    return disk_fails() ? -1 : open(path, flags, 0644);
}

/* ---- a server that is a function; its n-th request fails, or somebody presses Ctrl-C in it ---- */

static struct {
    uint64_t fail_at, interrupt_at;
    _Atomic uint64_t calls;
} server;

static ckks_status ciphertexts_of(client_ciphertexts *out, const void *data, size_t bytes, ckks_error *err) {
    *out = (client_ciphertexts){.count = 1, .items = calloc(1, sizeof *out->items)};
    if (out->items && (out->items[0].packed = malloc(bytes + 1))) {
        memcpy(out->items[0].packed, data, bytes);
        out->items[0].packed_bytes = bytes;
        return CKKS_OK;
    }
    client_ciphertexts_fini(out);
    return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory");
}
static ckks_status fake_encrypt(client_ciphertexts *out, const client_model *model,
                                const client_secret_key *secret, const client_public_key *public,
                                const double *elements, uint32_t row_count, ckks_error *err) {
    (void)secret, (void)public;
    return ciphertexts_of(out, elements, (size_t)row_count * model->element_count * sizeof *elements, err);
}
static ckks_status fake_infer(client_ciphertexts *out, rpc_connection *connection, const client_model *model,
                              const uint8_t key_set[32], const client_ciphertexts *inputs,
                              uint32_t timeout_ms, rpc_timing *timing, ckks_error *err) {
    (void)connection, (void)model, (void)key_set, (void)timeout_ms, (void)timing;
    const uint64_t call = atomic_fetch_add(&server.calls, 1) + 1;
    if (call == server.interrupt_at) raise(SIGINT);
    if (call == server.fail_at) return ckks_error_set(err, CKKS_UNAVAILABLE, "server", "gone");
    return ciphertexts_of(out, inputs->items[0].packed, inputs->items[0].packed_bytes, err);
}
static ckks_status fake_decrypt(double *scores, const client_model *model, const client_secret_key *secret,
                                const client_ciphertexts *outputs, uint32_t row_count, ckks_error *err) {
    double element[64];
    (void)secret, (void)err;
    CKKS_ASSERT(model->element_count <= 64);
    for (uint32_t r = 0; r < row_count; r++) {
        memcpy(element, outputs->items[0].packed + r * model->element_count * sizeof *element,
               model->element_count * sizeof *element);
        memcpy(scores + (size_t)r * model->score_count, element, model->score_count * sizeof *scores);
    }
    return CKKS_OK;
}

/* NOLINTBEGIN(bugprone-suspicious-include) */
#include "client/ctl/output.c"
#include "client/ctl/rows.c"
#include "client/ctl/rows_stream.c"
#include "client/ctl/top.c"
#define write     disk_write
#define fdatasync disk_sync
#define fsync     disk_sync
#define ftruncate disk_truncate
#define rename    disk_rename
#define unlink    disk_unlink
#define open      disk_open
#define flock     other_flock
#define access    other_access
#define file_read other_file_read
#include "client/ctl/journal.c"
#undef write
#undef fdatasync
#undef fsync
#undef ftruncate
#undef rename
#undef unlink
#undef open
#undef flock
#undef access
#undef file_read
#define client_encrypt fake_encrypt
#define rpc_infer      fake_infer
#define client_decrypt fake_decrypt
#include "client/ctl/infer_stream.c"
/* NOLINTEND(bugprone-suspicious-include) */

/* ---- a run ---- */

#define ROWS 200u /* four parts of at most 64 */

static char folder[64], input[96], output[96], part_path[112], journal_path[112];
static model_fixture fixture;
static client_model *model;
static char *undisturbed;
static ctl_options options = {.quiet = true};

static char *slurp(const char *path, size_t *size) {
    FILE *f = fopen(path, "re");
    *size = 0;
    if (!f) return NULL;
    char *text = calloc(1, 1 << 16);
    assert_non_null(text);
    *size = fread(text, 1, (1 << 16) - 1, f);
    fclose(f);
    return text;
}
static void spill(const char *path, const void *data, size_t size) {
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, size, f), size);
    fclose(f);
}
static void write_rows_file(uint32_t row_count, double first) {
    FILE *f = fopen(input, "we");
    assert_non_null(f);
    fputs("alpha,beta,gamma,delta\n", f);
    for (uint32_t i = 0; i < row_count; i++)
        fprintf(f, "%.3f,%.3f,%.3f,%.3f\n", i ? (double)(i % 19) - 9 : first, (double)(i * 7 % 17) - 8, 0.5,
                (double)(i % 3));
    fclose(f);
}
static void clean(void) {
    (void)unlink(output), (void)unlink(part_path), (void)unlink(journal_path);
}

static uint32_t wanted_top; /* --top */

static ckks_status run_with(const client_model *with, double step, uint32_t concurrency,
                            infer_stream_figures *figures, ckks_error *err) {
    ctl_bar bar = {0};
    infer_stream_job job = {.model = with,
                            .concurrency = concurrency,
                            .step = step,
                            .top = wanted_top,
                            .output = output,
                            .bar = &bar};
    const rows_source source = {.path = input};
    *err = (ckks_error){0};
    disk.calls = 0, atomic_store(&server.calls, 0);
    return infer_stream(figures, &job, &source, &options, err);
}
static ckks_status run(uint32_t concurrency, infer_stream_figures *figures, ckks_error *err) {
    return run_with(model, 1e-3, concurrency, figures, err);
}

static void no_faults(void) {
    disk.fail_at = 0, server.fail_at = server.interrupt_at = 0;
    alloc_fault_set(0);
}

/* The same command goes on, and the results are those of an undisturbed run. */
static void must_go_on(const char *after) {
    ckks_error err;
    infer_stream_figures figures;
    size_t size;
    no_faults();
    const ckks_status rc = run(2, &figures, &err);
    if (rc != CKKS_OK) fail_msg("after %s: %s: %s", after, ckks_status_name(rc), err.message);
    char *text = slurp(output, &size);
    assert_non_null(text);
    if (strcmp(text, undisturbed) != 0) fail_msg("after %s: other results", after);
    free(text);
    assert_int_equal(figures.resumed_rows + figures.rows, ROWS);
    assert_true(access(part_path, F_OK) != 0 && access(journal_path, F_OK) != 0);
}

static int set_up(void **state) {
    ckks_error err;
    infer_stream_figures figures;
    size_t size;
    (void)state;
    temporary_folder(folder, sizeof folder, "test-stream");
    snprintf(input, sizeof input, "%s/rows.csv", folder);
    snprintf(output, sizeof output, "%s/out.csv", folder);
    snprintf(part_path, sizeof part_path, "%s.part", output);
    snprintf(journal_path, sizeof journal_path, "%s.journal", output);
    model_fixture_init(&fixture);
    if (!(model = model_fixture_model(&fixture))) return -1;
    write_rows_file(ROWS, 1);
    if (run(3, &figures, &err) != CKKS_OK) {
        fprintf(stderr, "%s: %s\n", err.field, err.message);
        return -1;
    }
    undisturbed = slurp(output, &size);
    return undisturbed && figures.is_complete ? 0 : -1;
}
static int tear_down(void **state) {
    (void)state;
    clean();
    (void)unlink(input);
    free(undisturbed);
    client_model_destroy(model);
    return rmdir(folder);
}

#endif
