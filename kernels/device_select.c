#include "kernels/device_select.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool is_supported(const gpu_card *card) {
    return card->major >= GPU_MAJOR_MIN;
}

/* "0 (NVIDIA H200, sm_90, GPU-...), 1 (...)", as much as fits */
static void list_cards(char *text, size_t size, const gpu_inventory *g, bool with_uuid) {
    size_t used = 0;
    text[0] = 0;
    for (uint32_t i = 0; i < g->count && used + 1 < size; i++) {
        const gpu_card *c = &g->cards[i];
        const int n = snprintf(text + used, size - used, "%s%u (%.60s, %d.%d%s%s)", i ? ", " : "", i, c->name,
                               c->major, c->minor, with_uuid ? ", " : "", with_uuid ? c->uuid : "");
        if (n < 0) break;
        used += (size_t)n;
    }
}

/* What to do comes after the colon: `auto`, which does something else, leaves it out. */
#define OR_CPU ", or take the CPU (kind = cpu in [device], --device cpu)"

static ckks_status refuse_machine(const gpu_inventory *g, ckks_error *err) {
    const int major = g->needed_version / 1000, minor = g->needed_version % 1000 / 10;
    const char *cause = g->cause ? g->cause : "no reason given";
    switch (g->presence) {
    case GPU_NO_DRIVER:
        return ckks_error_set(
            err, CKKS_NOT_FOUND, "device",
            "no NVIDIA driver on this machine: install one for CUDA %d.%d or newer, give the "
            "container its card (--gpus all)" OR_CPU,
            major, minor);
    case GPU_DRIVER_TOO_OLD:
        return ckks_error_set(
            err, CKKS_NOT_FOUND, "device",
            "the NVIDIA driver is for CUDA %d.%d and this build needs %d.%d: update the driver" OR_CPU,
            g->driver_version / 1000, g->driver_version % 1000 / 10, major, minor);
    case GPU_NOT_USABLE:
        return ckks_error_set(err, CKKS_NOT_FOUND, "device",
                              "the NVIDIA driver gives no access to a GPU (%.120s): nvidia-smi must work for "
                              "this user" OR_CPU,
                              cause);
    default:
        return ckks_error_set(
            err, CKKS_NOT_FOUND, "device",
            "the NVIDIA driver finds no GPU: give the container its card (--gpus all), unset "
            "CUDA_VISIBLE_DEVICES" OR_CPU);
    }
}

static ckks_status choose_first(uint32_t *index, char *reason, uint32_t reason_size, const gpu_inventory *g,
                                ckks_error *err) {
    char cards[300];
    for (uint32_t i = 0; i < g->count; i++) {
        if (!is_supported(&g->cards[i])) continue;
        *index = i;
        if (g->count == 1)
            snprintf(reason, reason_size, "the only GPU");
        else if (i == 0)
            snprintf(reason, reason_size, "the first of %u GPUs", g->count);
        else
            snprintf(reason, reason_size, "GPU %u of %u, the first of compute capability %d.0 or newer", i,
                     g->count, GPU_MAJOR_MIN);
        return CKKS_OK;
    }
    list_cards(cards, sizeof cards, g, false);
    return ckks_error_set(
        err, CKKS_NOT_FOUND, "device",
        "compute capability %d.0 or newer is needed and this machine has GPU %.130s: another "
        "card is needed" OR_CPU,
        GPU_MAJOR_MIN, cards);
}

static ckks_status choose_named(uint32_t *index, char *reason, uint32_t reason_size, const gpu_inventory *g,
                                const char *selector, ckks_error *err) {
    char cards[300];
    char *end = NULL;
    const long number = strtol(selector, &end, 10);
    uint32_t found = g->count;
    list_cards(cards, sizeof cards, g, true);
    if (*end == 0 && (number < 0 || number >= (long)g->count))
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "device", "there is no GPU %.20s; there is %s",
                              selector, cards);
    if (*end == 0) found = (uint32_t)number;
    for (uint32_t i = 0; *end != 0 && i < g->count; i++)
        if (strcasecmp(selector, g->cards[i].uuid) == 0) found = i;
    if (found == g->count)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "device",
                              "'%.48s' is no index and no UUID of a GPU here; there is %s", selector, cards);
    const gpu_card *card = &g->cards[found];
    if (!is_supported(card))
        return ckks_error_set(
            err, CKKS_UNSUPPORTED, "device",
            "GPU %u, %.60s, has compute capability %d.%d and %d.0 is needed: select a newer card" OR_CPU,
            found, card->name, card->major, card->minor, GPU_MAJOR_MIN);
    *index = found;
    snprintf(reason, reason_size, "GPU %u, selected by %s", found, *end ? "UUID" : "index");
    return CKKS_OK;
}

ckks_status gpu_choose(uint32_t *index, char *reason, uint32_t reason_size, const gpu_inventory *inventory,
                       const char *selector, ckks_error *err) {
    if (inventory->presence != GPU_PRESENT || inventory->count == 0) return refuse_machine(inventory, err);
    if (!selector || !*selector) return choose_first(index, reason, reason_size, inventory, err);
    return choose_named(index, reason, reason_size, inventory, selector, err);
}
