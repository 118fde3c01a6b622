#include "kernels/cpu/memory_limit.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define PATH_SIZE 4096
#define LINE_SIZE 4096

/* UINT64_MAX for a file that is absent or says "max". */
static uint64_t read_limit(const char *path) {
    uint64_t limit = UINT64_MAX;
    FILE *file = fopen(path, "re");
    if (!file) return UINT64_MAX;
    if (fscanf(file, "%" SCNu64, &limit) != 1) limit = UINT64_MAX; /* NOLINT(cert-err34-c) */
    fclose(file);
    return limit;
}

/* The smallest limit of `group` and of those above it, up to the mount point: inside a container the path may
 * be the host's, and then only the mount point itself is there. */
static uint64_t limit_of(const char *mount, const char *group, const char *file) {
    char above[LINE_SIZE], path[PATH_SIZE];
    uint64_t smallest = UINT64_MAX;
    snprintf(above, sizeof above, "%s", group);
    for (;;) {
        if ((size_t)snprintf(path, sizeof path, "%s%s/%s", mount, above, file) < sizeof path) {
            const uint64_t limit = read_limit(path);
            if (limit < smallest) smallest = limit;
        }
        char *slash = strrchr(above, '/');
        if (!slash) return smallest;
        *slash = 0;
    }
}

static bool names_memory(const char *controllers) {
    for (const char *at = controllers; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strcspn(at, ",") == 6 && strncmp(at, "memory", 6) == 0) return true;
    return false;
}

uint64_t memory_limit_of_groups(const char *membership, const char *mount) {
    char line[LINE_SIZE], hierarchy[PATH_SIZE];
    uint64_t smallest = UINT64_MAX;
    FILE *file = fopen(membership, "re");
    if (!file) return UINT64_MAX;
    snprintf(hierarchy, sizeof hierarchy, "%s/memory", mount);
    while (fgets(line, sizeof line, file)) { /* NUMBER:CONTROLLERS:PATH */
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        uint64_t limit = UINT64_MAX;
        if (!group) continue;
        *group++ = 0, controllers++;
        group[strcspn(group, "\n")] = 0;
        if (controllers[0] == 0)
            limit = limit_of(mount, group, "memory.max");
        else if (names_memory(controllers))
            limit = limit_of(hierarchy, group, "memory.limit_in_bytes");
        if (limit < smallest) smallest = limit;
    }
    fclose(file);
    return smallest;
}
