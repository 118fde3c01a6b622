/* A libcuda.so.1 that says what it is told, for machines without one: the version it is for in
 * FAKE_CUDA_VERSION, what its start returns in FAKE_CUDA_START. It has no card. Built by test_device.py. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? (int)strtol(text, NULL, 10) : otherwise;
}

int cuDriverGetVersion(int *version) {
    *version = number("FAKE_CUDA_VERSION", 13000);
    return 0;
}

int cuInit(unsigned flags) {
    (void)flags;
    return number("FAKE_CUDA_START", 100); /* no card */
}

static int unknown(void) {
    return 999;
}

typedef void (*function)(void);

int cuGetProcAddress_v2(const char *name, function *out, int version, unsigned long long flags, int *found) {
    (void)version, (void)flags;
    if (found) *found = 0;
    if (!strcmp(name, "cuDriverGetVersion"))
        *out = (function)cuDriverGetVersion;
    else if (!strcmp(name, "cuInit"))
        *out = (function)cuInit;
    else if (!strcmp(name, "cuGetProcAddress"))
        *out = (function)cuGetProcAddress_v2;
    else
        *out = (function)unknown;
    return 0;
}

int cuGetProcAddress(const char *name, function *out, int version, unsigned long long flags) {
    return cuGetProcAddress_v2(name, out, version, flags, NULL);
}
