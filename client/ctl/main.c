/* ckksctl: the front door. One word chooses a subcommand; each parses its own options and teaches by
 * examples. */
#include "client/ctl/ctl.h"

#include "kernels/base/team_wait.h"
#include "proto/frame.h"

#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *text;
    bool has_secrets; /* keys, tokens, rows of its user */
} commands[] = {
    {"profile", command_profile, "remember a server, a token file and where keys are", false},
    {"keygen", command_keygen, "make a secret key and the evaluation keys that models need", true},
    {"register", command_register, "upload evaluation keys (never the secret key)", true},
    {"infer", command_infer, "encrypt rows, have a model evaluate them, decrypt the result", true},
    {"encrypt", command_encrypt, "encrypt rows into files", true},
    {"decrypt", command_decrypt, "decrypt result files", true},
    {"inspect", command_inspect, "say what is in one of our files (never secrets)", true},
    {"status", command_status, "is the server there, what does it serve, which keys does it have", true},
    {"models", command_models, "what the server's models need and promise", true},
    {"metadata", command_metadata, "save a model's metadata, to make keys offline", true},
    {"doctor", command_doctor, "check everything between here and a first answer", true},
    {"token", command_token, "make access tokens (for operators)", true},
    {"try", command_try, "will my model run encrypted, how well, how fast: all on this machine", false},
    {"compile", command_compile, "turn an ONNX model into a package", false},
    {"check", command_check, "compare a package with its original model, on real rows", false},
    {"explain", command_explain, "where time, levels and memory of a package go, layer by layer", false},
    {"bench", command_bench, "time operations and programs on this machine", false},
    {"version", command_version, "print versions", false},
};

static void print_help(FILE *to) {
    fprintf(to, "Usage: ckksctl COMMAND [OPTION...]\n"
                "Encrypted inference from the command line: your data and your secret key stay here.\n\n");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        fprintf(to, "  %-10s %s\n", commands[i].name, commands[i].text);
    fprintf(to, "\nA first answer:\n"
                "  ckksctl profile --server tcp://host:7000 --token-file ~/token --use\n"
                "  ckksctl keygen --for MODEL\n"
                "  ckksctl register\n"
                "  ckksctl infer MODEL rows.csv\n"
                "\nExit codes:\n"
                "  0  it worked                      5  no server answers\n"
                "  1  memory, disk, our own fault    6  a key is missing, unknown, sealed or does not fit\n"
                "  2  wrong command line             7  what the server sent is not safe to use\n"
                "  3  a file or row cannot be used   8  it ran, but results are not what was expected\n"
                "  4  the server refused           130  interrupted; the same command goes on there\n"
                "\n`ckksctl COMMAND --help` explains each command with examples.\n");
}

static error_t parse_version(int key, char *argument, struct argp_state *state) {
    (void)argument;
    if (key == ARGP_KEY_INIT) {
        state->child_inputs[0] = state->input;
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

int command_version(int argc, char **argv) {
    ctl_options common = {0};
    static const struct argp parser = {.doc = "Print the versions of the program, of the wire and of files.",
                                       .parser = parse_version,
                                       .children = ctl_common_children};
    argp_parse(&parser, argc, argv, 0, NULL, &common);
    if (common.json) {
        printf("{\"version\": \"%s\", \"wire_version\": %u, \"file_version\": 1}\n", CKKSD_VERSION,
               FRAME_WIRE_VERSION);
        return EXIT_GOOD;
    }
    printf("ckksctl %s (wire version %u, file version 1)\n", CKKSD_VERSION, FRAME_WIRE_VERSION);
    return EXIT_GOOD;
}

/* argp ends the program where a command line makes no sense; a script with --json gets its object all the
 * same, with what argp said: standard error keeps a copy until the command line is read. */
static bool is_parsing;
static char said[320];

static ssize_t copy_to_stderr(void *context, const char *text, size_t bytes) {
    const size_t used = strlen(said), room = sizeof said - 1 - used;
    (void)context;
    if (is_parsing) memcpy(said + used, text, bytes < room ? bytes : room);
    return write(STDERR_FILENO, text, bytes);
}

static void keep_what_is_said(void) {
    const cookie_io_functions_t functions = {.write = copy_to_stderr};
    FILE *copy = fopencookie(NULL, "w", functions);
    if (!copy) return;
    setvbuf(copy, NULL, _IOLBF, 0);
    stderr = copy;
}

static void report_usage(int status, void *command) {
    if (!is_parsing || status != EXIT_USAGE) return;
    char advice[80];
    const size_t name = strlen(command);
    const bool has_name = !strncmp(said, command, name) && !strncmp(said + name, ": ", 2);
    said[strcspn(said, "\n")] = 0;
    snprintf(advice, sizeof advice, "%s --help", (const char *)command);
    json_writer j;
    json_begin(&j);
    json_object(&j, NULL);
    json_object(&j, "error");
    json_string(&j, "code", ckks_status_name(CKKS_INVALID_ARGUMENT));
    json_bool(&j, "from_server", false);
    json_string(&j, "field", "command line");
    json_string(&j, "message", has_name ? said + name + 2 : said);
    json_string(&j, "advice", advice);
    json_integer(&j, "exit", EXIT_USAGE);
    json_close_object(&j);
    json_close_object(&j);
    json_end(&j);
}

/* What is in memory stays there: no core dump, no other process of this user looks in. A sanitizer's leak
 * check has to. */
#if defined(__SANITIZE_ADDRESS__)
#define IS_WATCHED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define IS_WATCHED 1
#endif
#endif
static void close_to_others(void) {
#ifndef IS_WATCHED
    (void)prctl(PR_SET_DUMPABLE, 0);
#endif
}

static bool has_json(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--json")) return true;
    return false;
}

int main(int argc, char **argv) {
    team_wait_briefly(argv); /* cores that wait for an answer belong to whoever computes it */
    argp_err_exit_status = EXIT_USAGE;
    if (argc < 2) {
        print_help(stderr);
        return EXIT_USAGE;
    }
    static char help[] = "--help";
    char *asked[] = {argv[0], argv[2], help, NULL};
    if (!strcmp(argv[1], "help") && argc == 3) argc = 3, argv = asked; /* as git and others have it */
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        print_help(stdout);
        return EXIT_GOOD;
    }
    if (!strcmp(argv[1], "--version")) return command_version(1, argv);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(argv[1], commands[i].name) != 0) continue;
        static char name[64]; /* argp and report_usage keep it */
        snprintf(name, sizeof name, "ckksctl %s", commands[i].name);
        argv[1] = name;
        ckks_error err = {0};
        if (commands[i].has_secrets) close_to_others();
        if (client_init(&err) != CKKS_OK) return ctl_fail(NULL, &err);
        is_parsing = has_json(argc, argv) && on_exit(report_usage, name) == 0;
        if (is_parsing) keep_what_is_said();
        const int code = commands[i].run(argc - 1, argv + 1);
        is_parsing = false;
        /* a result that could not be written is no result */
        if (fflush(stdout) != 0 || ferror(stdout)) {
            fprintf(stderr, "ckksctl: the output cannot be written\n");
            return code ? code : EXIT_OTHER;
        }
        return code;
    }
    if ((is_parsing = has_json(argc, argv))) keep_what_is_said();
    fprintf(stderr, "ckksctl: there is no command \"%s\"; `ckksctl --help` lists them\n", argv[1]);
    static char name[] = "ckksctl";
    report_usage(EXIT_USAGE, name);
    return EXIT_USAGE;
}
