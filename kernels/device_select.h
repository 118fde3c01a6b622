/*
 * Which card? What the driver says about this machine's GPUs, as plain data, and the choice among them: no
 * hardware is touched here, so that every answer can be tested on a machine that has none.
 */
#ifndef CKKS_DEVICE_SELECT_H
#define CKKS_DEVICE_SELECT_H

#include "kernels/base/status.h"

#include <stdint.h>

#define GPU_CARDS_MAX 32u
/* the oldest compute capability that the kernels are written for */
#define GPU_MAJOR_MIN 8

typedef struct gpu_card {
    char name[96];
    char uuid[48]; /* "GPU-8e2f...", as nvidia-smi prints it */
    int major, minor;
} gpu_card;

typedef enum gpu_presence {
    GPU_PRESENT,
    GPU_NO_DRIVER,
    GPU_DRIVER_TOO_OLD,
    GPU_NO_CARD,
    GPU_NOT_USABLE, /* the driver has cards and refuses them: `cause` */
} gpu_presence;

typedef struct gpu_inventory {
    gpu_presence presence;
    int driver_version, needed_version; /* of CUDA: 13000 is 13.0 */
    const char *cause;                  /* the driver's own words; may be NULL */
    uint32_t count;
    gpu_card cards[GPU_CARDS_MAX];
} gpu_inventory;

/*
 * gpu_choose: `selector` is an index or a UUID (case does not matter); NULL or "" takes the first card that
 * the kernels run on. reason[reason_size] says in a few words why this one. Errors, each with what to do:
 * CKKS_NOT_FOUND: no card that could be used at all (the only case in which `auto` may take the CPU);
 * CKKS_INVALID_ARGUMENT: the selector names no card; CKKS_UNSUPPORTED: it names one that is too old. Pure.
 */
ckks_status gpu_choose(uint32_t *index, char *reason, uint32_t reason_size, const gpu_inventory *inventory,
                       const char *selector, ckks_error *err);

#endif
