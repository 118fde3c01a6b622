/*
 * What the subcommands of ckksctl share: common options, the profile behind them, exit codes, errors with a
 * way out, a progress bar, JSON.
 *
 * stdout carries results, stderr everything else; a script reads stdout with --json and the exit code.
 */
#ifndef CKKS_CTL_H
#define CKKS_CTL_H

#include "client/lib/files_keys.h"
#include "client/lib/rpc.h"
#include "kernels/device.h"

#include <argp.h>
#include <stdio.h>

/* Stable: scripts depend on them. Printed by `ckksctl --help`. */
typedef enum ctl_exit {
    EXIT_GOOD = 0,
    EXIT_OTHER = 1,         /* out of memory, disk, our own fault */
    EXIT_USAGE = 2,         /* the command line */
    EXIT_INPUT = 3,         /* a file or a row that cannot be used */
    EXIT_REFUSED = 4,       /* the server said no */
    EXIT_UNREACHABLE = 5,   /* no server answers */
    EXIT_KEY = 6,           /* a key is missing, unknown, evicted, sealed or of other parameters */
    EXIT_UNTRUSTED = 7,     /* what the server sent is not safe to use */
    EXIT_MISMATCH = 8,      /* it ran, but results differ from what was expected */
    EXIT_INTERRUPTED = 130, /* by SIGINT, at a place where the same command goes on */
} ctl_exit;

/* ---- common options ---- */

#define CTL_PATH_MAX KEY_PATH_MAX

typedef struct ctl_profile {
    char name[64];
    char server[RPC_ADDRESS_MAX];
    char token_file[CTL_PATH_MAX];
    char ca_file[CTL_PATH_MAX];
    char key[CTL_PATH_MAX]; /* folder or prefix */
} ctl_profile;

typedef struct ctl_options {
    const char *profile_name, *server, *token_file, *ca_file, *key; /* NULL = the profile's */
    const char *passphrase_file;
    bool json, quiet, allow_insecure;
    uint32_t timeout_ms;
    uint32_t spin_us;    /* bench load alone */
    ctl_profile profile; /* filled by ctl_resolve */
} ctl_options;

/* The child parser of every subcommand; its input is the subcommand's ctl_options. */
extern const struct argp ctl_common_argp;
extern const struct argp_child ctl_common_children[];

/* Long options of the subcommands have numbers from here on. */
enum { CTL_KEY_FIRST = 0x1000, CTL_COMMON_FIRST = 0x2000 };

/* ctl_resolve merges the command line over the profile over defaults. */
ckks_status ctl_resolve(ctl_options *options, ckks_error *err);
/* ctl_connect dials the profile's server with its token. */
ckks_status ctl_connect(rpc_connection **out, const ctl_options *options, ckks_error *err);
/* ctl_load_secret asks for a passphrase where the file needs one. */
ckks_status ctl_load_secret(client_secret_key **out, const ctl_options *options, const char *path,
                            ckks_error *err);
/* ctl_split_model cuts a server's "name/version"; *version is NULL without one. Free *name with free().
 * CKKS_UNTRUSTED_SERVER where one of them is empty. */
ckks_status ctl_split_model(char **name, const char **version, const char *text, ckks_error *err);
/* ctl_is_ready: has the server loaded the models that it had at its start? */
ckks_status ctl_is_ready(bool *out, rpc_connection *connection, ckks_error *err);
/* ctl_model: a file that exists (package or saved metadata), else a model of the server, unless it is the
 * path of a file that is missing (CKKS_NOT_FOUND); *connection is opened when it is first needed and stays
 * the caller's. Waits for a server that is still loading its models, up to the time-out of a call. */
ckks_status ctl_model(client_model **out, rpc_connection **connection, const ctl_options *options,
                      const char *text, const uint8_t *pin, ckks_error *err);

/* ctl_check_output: a result could not be written to `path`: said before there is a result to lose.
 * CKKS_INVALID_ARGUMENT for a folder, CKKS_NOT_FOUND without the folder that it is in, CKKS_PERMISSION_DENIED
 * where that cannot be written. ctl_check_output_below: for commands that make missing folders. path may be
 * NULL. */
ckks_status ctl_check_output(const char *path, ckks_error *err);
ckks_status ctl_check_output_below(const char *path, ckks_error *err);

/* ---- profiles (profile.c) ---- */

/* profile_load: name NULL or "" = the one that CKKSCTL_PROFILE names, else the current one, which may not
 * exist yet and is all empty then. CKKS_NOT_FOUND for any other that does not exist; *out has its name then.
 */
ckks_status profile_load(ctl_profile *out, const char *name, ckks_error *err);
ckks_status profile_save(const ctl_profile *profile, bool make_current, ckks_error *err);
ckks_status profile_delete(const char *name, ckks_error *err);
/* profile_names: *current is the name of the current profile. Free *names with profile_names_free. */
ckks_status profile_names(char ***names, size_t *count, char current[64], ckks_error *err);
void profile_names_free(char **names, size_t count);
/* ctl_home: the user's folder, of $HOME or, where that says nothing (cron, a service), of the system's list
 * of users: else keys would be made wherever the command happens to run. NULL: none is known. One thread. */
const char *ctl_home(void);
const char *profile_path(char path[CTL_PATH_MAX], const char *file);

/* ---- messages ---- */

/* ctl_fail prints "ckksctl: what: why" and a line with the way out, and returns the exit code. */
int ctl_fail(const ctl_options *options, const ckks_error *err);
int ctl_exit_code(const ckks_error *err);
/* ctl_note prints to stderr unless --quiet. */
void ctl_note(const ctl_options *options, const char *format, ...) __attribute__((format(printf, 2, 3)));
void ctl_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* ctl_warn_unrounded warns where results are shown with all their digits: step is 0. */
void ctl_warn_unrounded(double step);
/* ctl_bytes: "217,088 bytes" or "12.3 MiB". Returns text. */
char *ctl_bytes(char text[32], uint64_t bytes);

/* ctl_value: the value with the decimals of `step`, all of them if it is 0. Returns text. ctl_print_value
 * prints a tab and that. */
#define CTL_VALUE_BYTES 400u /* any finite double without an exponent */
const char *ctl_value(char text[CTL_VALUE_BYTES], double value, double step);
void ctl_print_value(double value, double step);

typedef struct ctl_bar {
    const char *what;
    bool is_on, is_bytes;
    uint64_t shown_ns;
} ctl_bar;
/* A bar on stderr, only where that is a terminal and neither --quiet nor --json. */
void ctl_bar_begin(ctl_bar *bar, const ctl_options *options, const char *what, bool is_bytes);
void ctl_bar_update(void *bar, uint64_t done, uint64_t total); /* a client_progress */
/* ctl_bar_rows: rows done, the share of the file behind them, and the speed of the rows since begin_ns. */
void ctl_bar_rows(ctl_bar *bar, uint64_t done, uint64_t thousandths, uint64_t rows, uint64_t begin_ns);
void ctl_bar_end(ctl_bar *bar);

/* A bar for each stage of a long piece of work: a workload_progress and a compiler's progress. */
typedef struct ctl_stages {
    ctl_bar bar;
    const ctl_options *options;
} ctl_stages;
void ctl_stage(void *stages, const char *stage, uint64_t done, uint64_t total);
void ctl_stages_end(ctl_stages *stages);

/* ctl_print_refusals lists on stderr what cannot be compiled, each with a way out (cmd_compile.c). */
struct compile_report;
void ctl_print_refusals(const struct compile_report *report);

/* ---- JSON ---- */

/* Text is kept until json_end, so that a failure half-way leaves one error object and no broken list. */
typedef struct json_writer {
    FILE *to;
    char *text;
    size_t size;
    uint32_t depth;
    bool has_items[16];
} json_writer;
void json_begin(json_writer *j);
void json_discard(json_writer *j); /* after a failure, or for a writer never used; idempotent */
void json_object(json_writer *j, const char *key); /* key NULL inside lists and at the top */
void json_list(json_writer *j, const char *key);
void json_close_object(json_writer *j);
void json_close_list(json_writer *j);
void json_string(json_writer *j, const char *key, const char *value); /* NULL = null */
void json_number(json_writer *j, const char *key, double value);      /* not finite = null */
void json_integer(json_writer *j, const char *key, uint64_t value);
void json_bool(json_writer *j, const char *key, bool value);
void json_hex(json_writer *j, const char *key, const uint8_t *data, size_t size);
void json_end(json_writer *j); /* prints to standard output, with a newline */

/* ---- subcommands: argv[0] is "ckksctl NAME" ---- */

int command_profile(int argc, char **argv);
int command_keygen(int argc, char **argv);
int command_register(int argc, char **argv);
int command_infer(int argc, char **argv);
int command_encrypt(int argc, char **argv);
int command_decrypt(int argc, char **argv);
int command_inspect(int argc, char **argv);
int command_status(int argc, char **argv);
int command_models(int argc, char **argv);
int command_metadata(int argc, char **argv);
int command_doctor(int argc, char **argv);
int command_token(int argc, char **argv);
int command_compile(int argc, char **argv);
int command_try(int argc, char **argv);
int command_check(int argc, char **argv);
int command_explain(int argc, char **argv);
int command_bench(int argc, char **argv);
int command_version(int argc, char **argv);

/* For argp parsers; what does not fit ends the program through argp_error, with the argument at fault in the
 * message, so that scripts read it (--json) as people do.
 * ctl_take_one keeps an argument that there is one of at most: *to must be NULL still.
 * ctl_refuse_more is for one that has no place at all.
 * ctl_take_model returns MODEL[/VERSION] (or the path of a file) as it is; not where it ends at its slash.
 * ctl_take_output is for a file to be written: a "-" would be a file that is called so, with a token in it,
 * say. ctl_need: at the end of the line, is `given` not NULL? `name` as the usage line has it, `what` it is.
 */
void ctl_take_one(struct argp_state *state, const char **to, const char *text);
void ctl_refuse_more(struct argp_state *state, const char *text);
const char *ctl_take_model(struct argp_state *state, const char *text);
const char *ctl_take_output(struct argp_state *state, const char *text, const char *name);
void ctl_need(struct argp_state *state, const char *given, const char *name, const char *what);
/* Values of options: a whole number from 1 to max of --name; the bits of --security; the word of --device. */
uint64_t ctl_take_count(struct argp_state *state, const char *text, uint64_t max, const char *name);
uint32_t ctl_take_security(struct argp_state *state, const char *text);
device_kind ctl_take_device(struct argp_state *state, const char *text);

#endif
