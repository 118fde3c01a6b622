/* Limits of control groups, on folders made for the purpose. */
#include "kernels/cpu/memory_limit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

static char folder[] = "/tmp/test-memory-limit.XXXXXX";

static const char *at(const char *name) {
    static char path[2][512];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[0], "%s/%s", folder, name);
    return path[turn];
}
static void folder_add(const char *name) {
    assert_int_equal(mkdir(at(name), 0700), 0);
}
static void file_set(const char *name, const char *text) {
    FILE *file = fopen(at(name), "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}
static uint64_t limit_for(const char *membership) {
    file_set("self", membership);
    return memory_limit_of_groups(at("self"), folder);
}

static void the_smallest_limit_on_the_way_up_counts(void **state) {
    (void)state;
    folder_add("system.slice");
    folder_add("system.slice/ckksd.service");
    file_set("system.slice/ckksd.service/memory.max", "max\n");
    file_set("system.slice/memory.max", "3000000000\n");
    assert_int_equal(limit_for("0::/system.slice/ckksd.service\n"), 3000000000u);
    file_set("system.slice/ckksd.service/memory.max", "1000000000\n");
    assert_int_equal(limit_for("0::/system.slice/ckksd.service\n"), 1000000000u);
    file_set("system.slice/ckksd.service/memory.max", "4000000000\n");
    assert_int_equal(limit_for("0::/system.slice/ckksd.service\n"), 3000000000u);
}

static void a_path_of_the_host_falls_back_to_the_mount_point(void **state) {
    (void)state;
    assert_true(limit_for("0::/docker/0123456789ab\n") == UINT64_MAX);
    file_set("memory.max", "2000000000\n");
    assert_int_equal(limit_for("0::/docker/0123456789ab\n"), 2000000000u);
    assert_int_equal(limit_for("0::/\n"), 2000000000u);
    assert_int_equal(remove(at("memory.max")), 0);
}

static void version_one_has_a_hierarchy_of_its_own(void **state) {
    (void)state;
    folder_add("memory");
    folder_add("memory/job");
    file_set("memory/memory.limit_in_bytes", "9223372036854771712\n");
    file_set("memory/job/memory.limit_in_bytes", "500000000\n");
    assert_int_equal(limit_for("9:cpu,cpuacct:/job\n4:hugetlb,memory:/job\n0::/\n"), 500000000u);
    assert_true(limit_for("9:cpu,cpuacct:/job\n5:memoryless:/job\n0::/\n") == UINT64_MAX);
}

static void what_cannot_be_read_sets_no_limit(void **state) {
    (void)state;
    assert_true(memory_limit_of_groups(at("absent"), folder) == UINT64_MAX);
    assert_true(limit_for("") == UINT64_MAX);
    assert_true(limit_for("nonsense\n::\n:\n") == UINT64_MAX);
    file_set("system.slice/memory.max", "plenty\n");
    assert_true(limit_for("0::/system.slice\n") == UINT64_MAX);
}

static int make(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}
static int clear(void **state) {
    char command[600];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_smallest_limit_on_the_way_up_counts),
        cmocka_unit_test(a_path_of_the_host_falls_back_to_the_mount_point),
        cmocka_unit_test(version_one_has_a_hierarchy_of_its_own),
        cmocka_unit_test(what_cannot_be_read_sets_no_limit),
    };
    return cmocka_run_group_tests(tests, make, clear);
}
