/*
 * The CPU as a device: memory is the process's own, tables are the context itself, kernels are C functions.
 */
#include "kernels/cpu/device_cpu.h"
#include "kernels/cpu/memory_limit.h"
#include "kernels/cpu/team.h"

#include <sched.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static void cpu_close(void *self) {
    free(self);
}

/* Keys and arenas are read from one end to the other: with pages of 4 KiB every new one is a walk of the page
 * table. Large blocks start on a large page and ask the kernel for large pages; it may decline. */
#define LARGE_PAGE ((uint64_t)2 << 20)

static ckks_status cpu_allocate(void *self, void **out, uint64_t bytes, ckks_error *err) {
    (void)self;
    const bool is_large = bytes >= 2 * LARGE_PAGE;
    if (posix_memalign(out, is_large ? LARGE_PAGE : VALUE_ALIGNMENT, bytes) == 0) {
        if (is_large) (void)madvise(*out, bytes / LARGE_PAGE * LARGE_PAGE, MADV_HUGEPAGE);
        return CKKS_OK;
    }
    *out = NULL;
    return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "bytes", "the system has no %llu bytes",
                          (unsigned long long)bytes);
}
static void cpu_release(void *self, void *address) {
    (void)self;
    free(address);
}

static ckks_status cpu_can_launch(void *self, kernel_id kernel, ckks_error *err) {
    const cpu_device *dev = self;
    if (cpu_kernel_find(kernel, dev->isa, NULL)) return CKKS_OK;
    return ckks_error_set(err, CKKS_UNSUPPORTED, kernel_name(kernel), "has no version for the CPU");
}

/* contexts hold what CPU kernels need; vector kernels that need more keep it in the context too */
static ckks_status cpu_tables_create(void *self, device_tables *tables, ckks_error *err) {
    (void)self, (void)err;
    tables->self = NULL;
    return CKKS_OK;
}
static void cpu_tables_destroy(void *self, device_tables *tables) {
    (void)self, (void)tables;
}

static ckks_status cpu_set_adversarial_order(void *self, uint64_t seed, ckks_error *err) {
    (void)err;
    cpu_device *dev = self;
    atomic_store(&dev->adversarial_seed, seed);
    atomic_store(&dev->adversarial_replays, 0);
    return CKKS_OK;
}

static const device_backend backend = {
    .kind = DEVICE_CPU,
    .close = cpu_close,
    .allocate = cpu_allocate,
    .release = cpu_release,
    .allocate_host = cpu_allocate,
    .release_host = cpu_release,
    .stream_create = cpu_stream_create,
    .stream_destroy = cpu_stream_destroy,
    .stream_synchronize = cpu_stream_synchronize,
    .stream_recover = cpu_stream_recover,
    .stream_fail = cpu_stream_fail,
    .event_create = cpu_event_create,
    .event_destroy = cpu_event_destroy,
    .event_record = cpu_event_record,
    .stream_wait = cpu_stream_wait,
    .event_synchronize = cpu_event_synchronize,
    .event_is_complete = cpu_event_is_complete,
    .event_elapsed_ns = cpu_event_elapsed_ns,
    .can_launch = cpu_can_launch,
    .run = cpu_stream_run,
    .tables_create = cpu_tables_create,
    .tables_destroy = cpu_tables_destroy,
    .graph_create = cpu_graph_create,
    .graph_destroy = cpu_graph_destroy,
    .graph_replay = cpu_graph_replay,
    .set_adversarial_order = cpu_set_adversarial_order,
};

/* the widest instruction set that any kernel really uses */
static cpu_isa isa_in_use(cpu_isa chosen) {
    cpu_isa widest = CPU_ISA_SCALAR, used = CPU_ISA_SCALAR;
    for (int kernel = 0; kernel < KERNEL_COUNT; kernel++)
        if (cpu_kernel_find((kernel_id)kernel, chosen, &used) && used > widest) widest = used;
    return widest;
}

/* the cores that this process may run on */
static uint32_t cores_allowed(void) {
    cpu_set_t set;
    long count =
        sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : sysconf(_SC_NPROCESSORS_ONLN);
    if (count < 1) count = 1;
    return count < (long)TEAM_WIDTH_MAX ? (uint32_t)count : TEAM_WIDTH_MAX;
}

ckks_status device_cpu_open(backend_device *out, const device_config *config, ckks_error *err) {
    ckks_status rc;
    if (config->threads > TEAM_WIDTH_MAX)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "threads", "%u is above %u", config->threads,
                              TEAM_WIDTH_MAX);
    const long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    if (pages <= 0 || page_bytes <= 0)
        return ckks_error_set(err, CKKS_DEVICE_ERROR, "memory", "the system does not say how much it has");
    if (sodium_init() < 0) /* picks the stream cipher's fastest version */
        return ckks_error_set(err, CKKS_INTERNAL, "libsodium", "does not start");
    cpu_device *dev = calloc(1, sizeof *dev);
    if (!dev) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "device", "out of memory");
    if ((rc = cpu_isa_choose(&dev->isa, getenv("CKKSD_ISA"), err)) != CKKS_OK) {
        free(dev);
        return rc;
    }
    dev->cores = cores_allowed();
    dev->threads = config->threads ? config->threads : dev->cores;
    const uint64_t installed = (uint64_t)pages * (uint64_t)page_bytes;
    const uint64_t limit = memory_limit_of_groups("/proc/self/cgroup", "/sys/fs/cgroup");
    *out = (backend_device){
        .backend = &backend,
        .self = dev,
        .bytes_total = limit < installed ? limit : installed,
        .keys = dev->isa == CPU_ISA_AVX512 ? KEY_NARROW : KEY_WORDS, /* key products there wait for memory */
    };
    snprintf(out->description, sizeof out->description, "CPU, %u thread%s, %s", dev->threads,
             dev->threads == 1 ? "" : "s", cpu_isa_name(isa_in_use(dev->isa)));
    return CKKS_OK;
}
