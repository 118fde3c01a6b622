/*
 * Every test that opens a device, and the daemon with its injected faults, in one program: in a bundle the
 * CUDA code is there once, not in each test.
 *
 *   device-tests                     lists the tests
 *   device-tests NAME [ARGUMENT...]  runs one
 *   device-tests --each NAME[:ARGUMENT]...
 *                                    runs several in this process, which pays for its device once; says where
 * each begins and how it ended, and (by CKKSD_TEST_OPENED) whether it used a card. The exit code is the
 * number that failed.
 *
 * CKKSD_DEVICE_TEST=NAME: what this program is when it is started with arguments of its own: a test that
 * starts itself once more, the daemon of a test.
 */
#include "device_tests.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define DECLARE(name) int main_##name(int argc, char **argv);
DEVICE_TESTS(DECLARE)
DECLARE(ckksd)

typedef struct entry {
    const char *name;
    int (*run)(int argc, char **argv);
} entry;
#define ENTRY(name) {#name, main_##name},
static const entry entries[] = {{"ckksd", main_ckksd}, DEVICE_TESTS(ENTRY)};
#define ENTRY_COUNT (sizeof entries / sizeof *entries)

static int run(const char *name, int argc, char **argv) {
    for (size_t i = 0; i < ENTRY_COUNT; i++)
        if (!strcmp(name, entries[i].name)) return entries[i].run(argc, argv);
    fprintf(stderr, "device-tests: there is no test %s\n", name);
    return 2;
}

/* the back end adds a line to that file for each card that it opens */
static off_t bytes_of_opened(void) {
    const char *path = getenv("CKKSD_TEST_OPENED");
    struct stat now;
    return path && stat(path, &now) == 0 ? now.st_size : 0;
}

static int run_each(int count, char **names) {
    int failed = 0;
    for (int i = 0; i < count; i++) {
        char name[64];
        char *argument = strchr(names[i], ':');
        if (argument) argument++;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(names[i], ":"), names[i]);
        char *argv[] = {name, argument, NULL};
        const off_t before = bytes_of_opened();
        printf("--- %s\n", names[i]);
        fflush(stdout);
        setenv("CKKSD_DEVICE_TEST", name, 1);
        const int rc = run(name, argument ? 2 : 1, argv);
        fflush(stderr);
        printf("--- %s: %d%s\n", names[i], rc, bytes_of_opened() > before ? ", card" : "");
        fflush(stdout);
        failed += rc != 0;
    }
    return failed;
}

int main(int argc, char **argv) {
    const char *again = getenv("CKKSD_DEVICE_TEST");
    if (argc > 1 && again) return run(again, argc, argv);
    if (argc > 2 && !strcmp(argv[1], "--each")) return run_each(argc - 2, argv + 2);
    if (argc > 1) {
        setenv("CKKSD_DEVICE_TEST", argv[1], 1);
        return run(argv[1], argc - 1, argv + 1);
    }
    for (size_t i = 1; i < ENTRY_COUNT; i++) puts(entries[i].name);
    return 0;
}
