/*
 * Runs the files of a corpus through a fuzz target, as a regression test: `fuzz_NAME [file or folder...]`,
 * without arguments tests/fuzz/corpus/NAME. Each input is given in a block of exactly its size, so that a
 * sanitizer sees a read past either end, and once more at an address that is 4 modulo 16, as message bodies
 * arrive. Ends with "N passed, N failed".
 */
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static unsigned passed, failed;

static uint8_t *read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    uint8_t *data = NULL;
    struct stat st;
    if (fstat(fileno(file), &st) == 0 && S_ISREG(st.st_mode)) {
        *size = (size_t)st.st_size;
        data = malloc(*size ? *size : 1);
        if (data && fread(data, 1, *size, file) != *size) {
            free(data);
            data = NULL;
        }
    }
    fclose(file);
    return data;
}

/* A crash ends the process: what is counted here are inputs that came back. */
static void run_file(const char *path) {
    size_t size;
    uint8_t *data = read_file(path, &size);
    if (!data) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        failed++;
        return;
    }
    LLVMFuzzerTestOneInput(data, size);
    uint8_t *block = malloc(size + 4); /* 16-byte aligned, here and in every sanitizer */
    if (!block || (uintptr_t)block % 16 != 0) abort();
    memcpy(block + 4, data, size);
    LLVMFuzzerTestOneInput(block + 4, size);
    free(block);
    free(data);
    passed++;
}

static void run_folder(const char *path) {
    struct dirent **entries;
    const int count = scandir(path, &entries, NULL, alphasort);
    if (count < 0) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        failed++;
        return;
    }
    for (int i = 0; i < count; i++) {
        char file[4096];
        const int length = snprintf(file, sizeof file, "%s/%s", path, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.' && length > 0 && (size_t)length < sizeof file) run_file(file);
        free(entries[i]);
    }
    free(entries);
}

static void run_path(const char *path) {
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        run_folder(path);
    else
        run_file(path);
}

int main(int argc, char **argv) {
    const char *name = strrchr(argv[0], '/');
    name = name ? name + 1 : argv[0];
    if (strncmp(name, "fuzz_", 5) == 0) name += 5;
    if (argc > 1) {
        for (int i = 1; i < argc; i++) run_path(argv[i]);
    } else {
        char folder[4096];
        snprintf(folder, sizeof folder, "tests/fuzz/corpus/%s", name);
        run_path(folder);
    }
    if (passed + failed == 0) {
        fprintf(stderr, "%s: the corpus is empty\n", name);
        failed = 1;
    }
    printf("%u passed, %u failed\n", passed, failed);
    return failed != 0;
}
