/*
 * How a card feels, by NVML, NVIDIA's management library. The library comes with the driver and is opened at
 * run time: a machine without it has no health to report, and nothing else changes.
 *
 * Reading takes up to some milliseconds and belongs on no request's path. One thread at a time for each
 * source.
 */
#ifndef CKKS_DEVICE_HEALTH_H
#define CKKS_DEVICE_HEALTH_H

#include "kernels/base/status.h"

#include <stdint.h>

/* What of a reading is known: cards and drivers differ. */
enum {
    HEALTH_TEMPERATURE = 1u << 0,
    HEALTH_POWER = 1u << 1,
    HEALTH_POWER_LIMIT = 1u << 2,
    HEALTH_UTILISATION = 1u << 3,
    HEALTH_MEMORY = 1u << 4,
    HEALTH_ECC = 1u << 5,
    HEALTH_CLOCK = 1u << 6,
    HEALTH_THROTTLE = 1u << 7,
    HEALTH_CAPABILITY = 1u << 8,
};

typedef struct device_health {
    uint32_t known;
    char name[96], driver[48];
    int major, minor; /* compute capability */
    uint32_t temperature_c;
    uint32_t power_mw, power_limit_mw;
    uint32_t utilisation_percent, memory_utilisation_percent; /* of the last second or less */
    uint32_t clock_mhz;                                       /* of the multiprocessors */
    uint64_t memory_used, memory_total;                       /* bytes, of all processes */
    uint64_t ecc_corrected, ecc_uncorrected;                  /* memory errors since the driver was loaded */
    uint64_t throttle; /* why clocks are lower than they could be: NVML's bits */
} device_health;

/* Reasons that an operator should know of; an idle or power-capped card is none. */
#define HEALTH_THROTTLE_BAD (0x8u | 0x20u | 0x40u | 0x80u)

typedef struct health_throttle_reason {
    uint64_t bit;
    const char *name; /* for a metric's label */
} health_throttle_reason;
#define HEALTH_THROTTLE_REASONS 6u
extern const health_throttle_reason health_throttle_reasons[HEALTH_THROTTLE_REASONS];

/* The few functions of NVML that are asked; 0 is success. Tests give their own. */
typedef struct health_card health_card;
typedef struct health_utilisation {
    unsigned gpu, memory;
} health_utilisation;
typedef struct health_memory {
    unsigned long long total, free, used;
} health_memory;
typedef struct health_driver {
    int (*init)(void);
    int (*shutdown)(void);
    const char *(*error_string)(int);
    int (*driver_version)(char *text, unsigned size);
    int (*count)(unsigned *out);
    int (*by_uuid)(const char *uuid, health_card **out);
    int (*by_index)(unsigned index, health_card **out);
    int (*name)(health_card *card, char *text, unsigned size);
    int (*capability)(health_card *card, int *major, int *minor);
    int (*temperature)(health_card *card, int sensor, unsigned *out);
    int (*power)(health_card *card, unsigned *mw);
    int (*power_limit)(health_card *card, unsigned *mw);
    int (*utilisation)(health_card *card, health_utilisation *out);
    int (*memory)(health_card *card, health_memory *out);
    int (*ecc_errors)(health_card *card, int type, int counter, unsigned long long *out);
    int (*clock)(health_card *card, int type, unsigned *mhz);
    int (*throttle)(health_card *card, unsigned long long *bits);
} health_driver;

typedef struct health_source health_source;

/* health_open: `uuid` names the card; NULL = card 0. `driver` NULL: libnvidia-ml.so.1. The caller owns *out.
 * CKKS_UNSUPPORTED with the reason: no library, it does not start, it lacks a function, no such card. */
ckks_status health_open(health_source **out, const char *uuid, const health_driver *driver, ckks_error *err);
void health_close(health_source *source); /* accepts NULL */
/* health_count: cards of this machine. health_select: another card. */
uint32_t health_count(const health_source *source);
ckks_status health_select(health_source *source, uint32_t index, ckks_error *err);
/* health_read: what cannot be read is not known; never fails. */
void health_read(health_source *source, device_health *out);

#endif
