/*
 * C18: the raw launch of a recording is not reachable from any public header. The sources themselves are the
 * evidence: this reads them (from the top of the source tree, where the runner starts tests).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
// cmocka wants these first
#include <cmocka.h>
#include <dirent.h>

/* who may name the raw launch: the device behind its own door, and the program */
static const char *const insiders[] = {"kernels/device_graph.h", "kernels/device_backend.h", "kernels/cpu/",
                                       "kernels/cuda/"};

static bool begins(const char *text, const char *prefix) {
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* headers of one subsystem's own files say so in their names; nothing public may include them (checked below)
 */
static bool is_insider(const char *path) {
    for (size_t i = 0; i < sizeof insiders / sizeof insiders[0]; i++)
        if (begins(path, insiders[i])) return true;
    return begins(path, "kernels/") && strstr(path, "_internal.h") != NULL;
}

/* does the text include a header that is_insider? */
static bool includes_insider(const char *text) {
    static const char directive[] = "#include \"";
    for (const char *at = text; (at = strstr(at, directive)) != NULL;) {
        char path[256] = {0};
        at += sizeof directive - 1;
        const size_t length = strcspn(at, "\"\n");
        memcpy(path, at, length < sizeof path ? length : sizeof path - 1);
        if (is_insider(path)) return true;
    }
    return false;
}

static char *read_text(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) return NULL;
    fseek(file, 0, SEEK_END);
    const long size = ftell(file);
    rewind(file);
    char *text = malloc((size_t)size + 1);
    const size_t got = fread(text, 1, (size_t)size, file);
    text[got] = 0;
    fclose(file);
    return text;
}

typedef struct census {
    bool (*is_wrong)(const char *path, const char *text);
    uint32_t headers, sources, wrong;
} census;

static void look_at(census *c, const char *path) {
    const size_t length = strlen(path);
    const bool is_header = length > 2 && strcmp(path + length - 2, ".h") == 0;
    const bool is_source = length > 2 && strcmp(path + length - 2, ".c") == 0;
    if (!is_header && !is_source) return;
    char *text = read_text(path);
    assert_non_null(text);
    c->headers += is_header;
    c->sources += is_source;
    if (c->is_wrong(path, text)) {
        print_error("%s gets past the program\n", path);
        c->wrong++;
    }
    free(text);
}

static void walk(census *c, const char *folder) {
    DIR *dir = opendir(folder);
    if (dir == NULL) return;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        char path[1024];
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (entry->d_type == DT_DIR)
            walk(c, path);
        else
            look_at(c, path);
    }
    closedir(dir);
}

static census take_census(bool (*is_wrong)(const char *path, const char *text)) {
    static const char *const folders[] = {"kernels", "proto", "client", "daemon"};
    census c = {.is_wrong = is_wrong};
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) walk(&c, folders[i]);
    assert_true(c.headers > 15); /* we are where the sources are */
    return c;
}

static bool is_header_path(const char *path) {
    return strcmp(path + strlen(path) - 2, ".h") == 0;
}

static bool public_header_names_the_launch(const char *path, const char *text) {
    return is_header_path(path) && !is_insider(path) && strstr(text, "device_graph_replay") != NULL;
}

static bool public_header_includes_an_inside_one(const char *path, const char *text) {
    return is_header_path(path) && !is_insider(path) && includes_insider(text);
}

/* outside kernels/ nobody may include them either, header or not */
static bool outsider_includes_an_inside_header(const char *path, const char *text) {
    return !begins(path, "kernels/") && includes_insider(text);
}

/* inside kernels/, only the program calls it */
static bool somebody_else_calls_the_launch(const char *path, const char *text) {
    if (is_insider(path) || begins(path, "kernels/program/capture.c") ||
        begins(path, "kernels/program/replay.c") || begins(path, "kernels/device.c") ||
        begins(path, "kernels/device_record.c"))
        return false;
    return strstr(text, "device_graph_replay(") != NULL;
}

static void no_public_header_names_or_includes_the_raw_launch(void **state) {
    (void)state;
    assert_int_equal(take_census(public_header_names_the_launch).wrong, 0);
    assert_int_equal(take_census(public_header_includes_an_inside_one).wrong, 0);
}

static void nobody_outside_the_program_launches_a_recording(void **state) {
    (void)state;
    assert_int_equal(take_census(outsider_includes_an_inside_header).wrong, 0);
    assert_int_equal(take_census(somebody_else_calls_the_launch).wrong, 0);
}

static void the_check_can_fail(void **state) {
    (void)state;
    const char *launch = "x = device_graph_replay(graph, stream, err);";
    assert_true(public_header_names_the_launch("daemon/slots.h", launch));
    assert_true(public_header_includes_an_inside_one("proto/frame.h", "#include \"kernels/device_graph.h\""));
    assert_true(outsider_includes_an_inside_header("daemon/slots.c", "#include \"kernels/device_graph.h\""));
    assert_true(somebody_else_calls_the_launch("kernels/evaluator/workspace.c", launch));
    assert_false(public_header_names_the_launch("kernels/device_graph.h", launch));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_public_header_names_or_includes_the_raw_launch),
        cmocka_unit_test(nobody_outside_the_program_launches_a_recording),
        cmocka_unit_test(the_check_can_fail),
    };
    return cmocka_run_group_tests_name("C18 no bypass", tests, NULL, NULL);
}
