#include "kernels/device_health.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY "libnvidia-ml.so.1"

/* NVML's own numbers */
enum { SENSOR_GPU = 0, CLOCK_SM = 1, ECC_CORRECTED = 0, ECC_UNCORRECTED = 1, ECC_SINCE_LOAD = 0 };

const health_throttle_reason health_throttle_reasons[HEALTH_THROTTLE_REASONS] = {
    {0x1u, "idle"},
    {0x4u, "power_cap"},
    {0x8u, "hardware_slowdown"},
    {0x20u, "software_thermal"},
    {0x40u, "hardware_thermal"},
    {0x80u, "power_brake"},
};

struct health_source {
    health_driver driver;
    void *library; /* NULL: the driver was given */
    health_card *card;
};

/* ---- the library ---- */

typedef struct symbol {
    const char *name;
    size_t offset;
    const char *former; /* what older drivers call it; NULL: the same */
} symbol;
#define SYMBOL(name, field)                                                                                  \
    { name, offsetof(health_driver, field), NULL }
static const symbol symbols[] = {
    SYMBOL("nvmlInit_v2", init),
    SYMBOL("nvmlShutdown", shutdown),
    SYMBOL("nvmlErrorString", error_string),
    SYMBOL("nvmlSystemGetDriverVersion", driver_version),
    SYMBOL("nvmlDeviceGetCount_v2", count),
    SYMBOL("nvmlDeviceGetHandleByUUID", by_uuid),
    SYMBOL("nvmlDeviceGetHandleByIndex_v2", by_index),
    SYMBOL("nvmlDeviceGetName", name),
    SYMBOL("nvmlDeviceGetCudaComputeCapability", capability),
    SYMBOL("nvmlDeviceGetTemperature", temperature),
    SYMBOL("nvmlDeviceGetPowerUsage", power),
    SYMBOL("nvmlDeviceGetEnforcedPowerLimit", power_limit),
    SYMBOL("nvmlDeviceGetUtilizationRates", utilisation),
    SYMBOL("nvmlDeviceGetMemoryInfo", memory),
    SYMBOL("nvmlDeviceGetTotalEccErrors", ecc_errors),
    SYMBOL("nvmlDeviceGetClockInfo", clock),
    {"nvmlDeviceGetCurrentClocksEventReasons", offsetof(health_driver, throttle),
     "nvmlDeviceGetCurrentClocksThrottleReasons"},
};

static ckks_status load(health_source *s, ckks_error *err) {
    s->library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!s->library)
        return ckks_error_set(err, CKKS_UNSUPPORTED, "health", LIBRARY " is not on this machine");
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *address = dlsym(s->library, symbols[i].name);
        if (!address && symbols[i].former) address = dlsym(s->library, symbols[i].former);
        if (!address)
            return ckks_error_set(err, CKKS_UNSUPPORTED, "health", LIBRARY " has no %s", symbols[i].name);
        /* C has no cast from an object's address to a function's; POSIX says that this is one */
        memcpy((char *)&s->driver + symbols[i].offset, &address, sizeof address);
    }
    return CKKS_OK;
}

static ckks_status complain(const health_source *s, int status, const char *what, ckks_error *err) {
    const char *text = s->driver.error_string(status);
    return ckks_error_set(err, CKKS_UNSUPPORTED, "health", "%s: %.120s", what, text ? text : "unknown error");
}

ckks_status health_open(health_source **out, const char *uuid, const health_driver *driver, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    *out = NULL;
    health_source *s = calloc(1, sizeof *s);
    if (!s) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "health", "out of memory");
    if (driver)
        s->driver = *driver;
    else
        rc = load(s, err);
    int status = rc == CKKS_OK ? s->driver.init() : 0;
    if (rc == CKKS_OK && status != 0) rc = complain(s, status, "NVML does not start", err);
    if (rc != CKKS_OK) {
        if (s->library) dlclose(s->library);
        free(s);
        return rc;
    }
    const bool is_named = uuid && *uuid;
    status = is_named ? s->driver.by_uuid(uuid, &s->card) : s->driver.by_index(0, &s->card);
    if (status != 0) {
        rc = complain(s, status, is_named ? uuid : "no card", err);
        health_close(s);
        return rc;
    }
    *out = s;
    return CKKS_OK;
}

void health_close(health_source *source) {
    if (!source) return;
    (void)source->driver.shutdown();
    if (source->library) dlclose(source->library);
    free(source);
}

uint32_t health_count(const health_source *source) {
    unsigned count = 0;
    return source->driver.count(&count) == 0 ? count : 0;
}

ckks_status health_select(health_source *source, uint32_t index, ckks_error *err) {
    health_card *card = NULL;
    const int status = source->driver.by_index(index, &card);
    if (status != 0) return complain(source, status, "no such card", err);
    source->card = card;
    return CKKS_OK;
}

/* ---- reading ---- */

/* It goes into logs, metric labels and terminals. */
static void make_plain(char *text, size_t size) {
    text[size - 1] = 0;
    for (char *c = text; *c; c++)
        if (*c < ' ' || *c > '~' || *c == '"' || *c == '\\') *c = '?';
}

static void read_text(const health_source *s, device_health *out) {
    if (s->driver.name(s->card, out->name, sizeof out->name) != 0) out->name[0] = 0;
    if (s->driver.driver_version(out->driver, sizeof out->driver) != 0) out->driver[0] = 0;
    make_plain(out->name, sizeof out->name);
    make_plain(out->driver, sizeof out->driver);
}

static void read_ecc(const health_source *s, device_health *out) {
    unsigned long long corrected = 0, uncorrected = 0;
    if (s->driver.ecc_errors(s->card, ECC_CORRECTED, ECC_SINCE_LOAD, &corrected) != 0 ||
        s->driver.ecc_errors(s->card, ECC_UNCORRECTED, ECC_SINCE_LOAD, &uncorrected) != 0)
        return;
    out->known |= HEALTH_ECC;
    out->ecc_corrected = corrected, out->ecc_uncorrected = uncorrected;
}

void health_read(health_source *source, device_health *out) {
    const health_driver *d = &source->driver;
    health_card *card = source->card;
    health_utilisation utilisation;
    health_memory memory;
    unsigned long long bits;
    *out = (device_health){0};
    read_text(source, out);
    if (d->capability(card, &out->major, &out->minor) == 0) out->known |= HEALTH_CAPABILITY;
    if (d->temperature(card, SENSOR_GPU, &out->temperature_c) == 0) out->known |= HEALTH_TEMPERATURE;
    if (d->power(card, &out->power_mw) == 0) out->known |= HEALTH_POWER;
    if (d->power_limit(card, &out->power_limit_mw) == 0) out->known |= HEALTH_POWER_LIMIT;
    if (d->clock(card, CLOCK_SM, &out->clock_mhz) == 0) out->known |= HEALTH_CLOCK;
    if (d->utilisation(card, &utilisation) == 0) {
        out->known |= HEALTH_UTILISATION;
        out->utilisation_percent = utilisation.gpu, out->memory_utilisation_percent = utilisation.memory;
    }
    if (d->memory(card, &memory) == 0) {
        out->known |= HEALTH_MEMORY;
        out->memory_used = memory.used, out->memory_total = memory.total;
    }
    if (d->throttle(card, &bits) == 0) {
        out->known |= HEALTH_THROTTLE;
        out->throttle = bits;
    }
    read_ecc(source, out);
}
