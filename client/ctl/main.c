/* ckksctl: the front door. One word chooses a subcommand; each parses its own options and teaches by
 * examples. */
#include "client/ctl/ctl.h"

#include "kernels/base/team_wait.h"
#include "proto/frame.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *text;
} commands[] = {
    {"profile", command_profile, "remember a server, a token file and where keys are"},
    {"keygen", command_keygen, "make a secret key and the evaluation keys that models need"},
    {"register", command_register, "upload evaluation keys (never the secret key)"},
    {"infer", command_infer, "encrypt rows, have a model evaluate them, decrypt the result"},
    {"encrypt", command_encrypt, "encrypt rows into files"},
    {"decrypt", command_decrypt, "decrypt result files"},
    {"inspect", command_inspect, "say what is in one of our files (never secrets)"},
    {"status", command_status, "is the server there, what does it serve, which keys does it have"},
    {"models", command_models, "what the server's models need and promise"},
    {"metadata", command_metadata, "save a model's metadata, to make keys offline"},
    {"doctor", command_doctor, "check everything between here and a first answer"},
    {"token", command_token, "make access tokens (for operators)"},
    {"try", command_try, "will my model run encrypted, how well, how fast: all on this machine"},
    {"compile", command_compile, "turn an ONNX model into a package"},
    {"check", command_check, "compare a package with its original model, on real rows"},
    {"explain", command_explain, "where time, levels and memory of a package go, layer by layer"},
    {"bench", command_bench, "time operations and programs on this machine"},
    {"version", command_version, "print versions"},
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
                "  4  the server refused\n"
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
 * same */
static bool is_parsing;
static void report_usage(int status, void *command) {
    if (!is_parsing || status != EXIT_USAGE) return;
    printf("{\"error\": {\"code\": \"CKKS_INVALID_ARGUMENT\", \"from_server\": false, \"field\": \"command "
           "line\", "
           "\"message\": \"wrong command line: standard error says what\", \"advice\": \"%s --help\", "
           "\"exit\": %d}}\n",
           (const char *)command, EXIT_USAGE);
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
        if (client_init(&err) != CKKS_OK) return ctl_fail(NULL, &err);
        is_parsing = has_json(argc, argv) && on_exit(report_usage, name) == 0;
        const int code = commands[i].run(argc - 1, argv + 1);
        is_parsing = false;
        /* a result that could not be written is no result */
        if (fflush(stdout) != 0 || ferror(stdout)) {
            fprintf(stderr, "ckksctl: the output cannot be written\n");
            return code ? code : EXIT_OTHER;
        }
        return code;
    }
    is_parsing = has_json(argc, argv);
    report_usage(EXIT_USAGE, "ckksctl");
    fprintf(stderr, "ckksctl: there is no command \"%s\"; `ckksctl --help` lists them\n", argv[1]);
    return EXIT_USAGE;
}
