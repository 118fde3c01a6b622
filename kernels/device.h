/*
 * The only door to hardware: memory, streams, events, copies, recording, kernel launches.
 *
 * Nothing above this header knows which implementation runs. A front end (device.c) checks arguments, counts
 * calls for failure injection, accounts memory and keeps the recorded launches with their dependencies; a
 * back end (device_backend.h; cpu/, cuda/) does the work.
 *
 * Semantics follow CUDA's: work on one stream runs in order; two streams are ordered only by events;
 * everything called on a stream is asynchronous unless it says otherwise. A failure that happens later, on
 * the stream, is sticky for that stream: it surfaces at the next synchronise or event wait on the host, with
 * the first cause.
 *
 * Recording: between device_record_begin and device_record_end, launches, copies, event records and waits on
 * the stream (and on streams joined to it through events) are appended to a graph instead of running.
 * Allocation and host synchronisation *by the recording thread* are then refused with
 * CKKS_RECORDING_VIOLATION.
 *
 * The raw replay of a graph is in device_graph.h, for graph_program alone.
 *
 * Threads: a device may be used by any thread; a stream, an event and a recording by one thread at a time.
 */
#ifndef CKKS_DEVICE_H
#define CKKS_DEVICE_H

#include "kernels/kernels.h"

typedef struct device device;
typedef struct device_stream device_stream;
typedef struct device_event device_event;
typedef struct device_graph device_graph;

typedef enum device_kind { DEVICE_AUTO = 0, DEVICE_CPU = 1, DEVICE_CUDA = 2 } device_kind;

typedef struct device_config {
    device_kind kind;     /* AUTO takes a GPU if there is one, else the CPU */
    const char *selector; /* CUDA: index or UUID; NULL = the first. CPU: ignored */
    uint32_t threads;     /* CPU: of each stream's team; 0 = all cores that the process may use */
    uint64_t bytes_max;   /* memory budget; 0 = what the device has */
} device_config;

/* device_open: the caller owns *out and returns it with device_close (NULL is fine; all streams, events,
 * graphs and memory must be gone, asserted). Loads every kernel. Blocks. */
ckks_status device_open(device **out, const device_config *config, ckks_error *err);
void device_close(device *dev);
/* device_describe: "CPU, 2 threads, scalar", "NVIDIA H200 (sm_90), 139 GiB". Static for the device's life. */
const char *device_describe(const device *dev);
/* device_reason: why this device was taken, in a few words: "auto: the only GPU", "auto: no NVIDIA driver on
 * this machine, so the CPU". Static for the device's life. */
const char *device_reason(const device *dev);
/* device_hardware_id: the card's UUID as nvidia-smi prints it; "" for a CPU. */
const char *device_hardware_id(const device *dev);
/* device_is_lost: an error came (a trap, an illegal address, an uncorrectable memory error) after which no
 * call on this device can succeed again in this process. Any thread; does not block. */
bool device_is_lost(const device *dev);
device_kind device_get_kind(const device *dev);
/* device_has_kernel: whether device_launch finds a version of the kernel here. */
bool device_has_kernel(const device *dev, kernel_id kernel);
/* device_key_layout: how keys lie in this device's memory: where it is not KEY_WORDS, KERNEL_NARROW_KEY makes
 * it of what was uploaded as words. */
key_layout device_key_layout(const device *dev);
/* device_id is unique within the process and never 0: it goes into value signatures. */
uint32_t device_id(const device *dev);

/* ---- memory ---- */

typedef enum memory_purpose {
    MEMORY_STATIC, /* weights, tables, descriptors */
    MEMORY_KEYS,
    MEMORY_ARENA,    /* slot arenas */
    MEMORY_RETAINED, /* inputs and outputs of programs */
    MEMORY_STAGING,  /* pinned host memory */
    MEMORY_PURPOSE_COUNT
} memory_purpose;

/* device_allocate: VALUE_ALIGNMENT-aligned, uninitialised device memory. Blocks. CKKS_RESOURCE_EXHAUSTED if
 * over the device's budget or memory. device_free accepts NULL; no pending work may touch the memory. */
ckks_status device_allocate(device *dev, void **out, uint64_t bytes, memory_purpose purpose, ckks_error *err);
void device_free(device *dev, void *address);
/* host memory that copies run on at full speed (CUDA: pinned). Counted under MEMORY_STAGING. */
ckks_status device_allocate_host(device *dev, void **out, uint64_t bytes, ckks_error *err);
void device_free_host(device *dev, void *address);

typedef struct device_memory_account {
    uint64_t bytes_max;  /* budget */
    uint64_t bytes_used; /* device memory, all purposes without STAGING */
    uint64_t bytes_by_purpose[MEMORY_PURPOSE_COUNT];
    uint64_t allocation_count; /* live allocations */
} device_memory_account;
void device_memory(const device *dev, device_memory_account *out);
/* device_bytes_free: what the card says is free now, whoever has the rest; 0 for a CPU. May take a while:
 * not for a request's path. */
uint64_t device_bytes_free(const device *dev);
/* device_owns: does [address, address + bytes) lie inside one live device allocation? */
bool device_owns(const device *dev, const void *address, uint64_t bytes);

/* ---- streams and events ---- */

ckks_status device_stream_create(device *dev, device_stream **out, ckks_error *err);
/* Waits for the stream's work first. Accepts NULL. */
void device_stream_destroy(device_stream *stream);
device *device_stream_device(const device_stream *stream);
/* Blocks until all work enqueued so far has run; returns the stream's sticky error. */
ckks_status device_stream_synchronize(device_stream *stream, ckks_error *err);
/* Clears a sticky error after a synchronise, so that a quarantined slot can come back; CKKS_DEVICE_ERROR if
 * the device itself is lost. */
ckks_status device_stream_recover(device_stream *stream, ckks_error *err);

ckks_status device_event_create(device *dev, device_event **out, ckks_error *err);
void device_event_destroy(device_event *event);
ckks_status device_event_record(device_event *event, device_stream *stream, ckks_error *err);
/* Later work on `stream` waits for the event's latest record. An event never recorded does not wait. */
ckks_status device_stream_wait(device_stream *stream, device_event *event, ckks_error *err);
/* Blocks the host; returns the sticky error of the stream that recorded it. */
ckks_status device_event_synchronize(device_event *event, ckks_error *err);
/* Does not block. */
bool device_event_is_complete(device_event *event);
/* device_event_elapsed_ns: nanoseconds between two completed records of one device. */
uint64_t device_event_elapsed_ns(const device_event *from, const device_event *to);

/* ---- work ---- */

/* Asynchronous copies. The caller keeps source and destination alive and unchanged until the copy has run. */
ckks_status device_copy_in(device_stream *stream, void *device_to, const void *host_from, uint64_t bytes,
                           ckks_error *err);
ckks_status device_copy_out(device_stream *stream, void *host_to, const void *device_from, uint64_t bytes,
                            ckks_error *err);
ckks_status device_copy(device_stream *stream, void *device_to, const void *device_from, uint64_t bytes,
                        ckks_error *err);
ckks_status device_fill(device_stream *stream, void *device_to, uint8_t byte, uint64_t bytes,
                        ckks_error *err);

/* device_launch enqueues (or records) one kernel of kernels.h. `arguments` is the kernel's own struct and is
 * copied. Argument shape errors, and memory or tables of another device, are CKKS_INVALID_ARGUMENT naming
 * kernel and field, before anything is enqueued. */
ckks_status device_launch(device_stream *stream, kernel_id kernel, const void *arguments, ckks_error *err);

/* ---- tables: a parameter set made resident on a device, as every kernel's arguments name it ---- */

/* device_tables_acquire: reference-counted per (device, context): each holder keeps its own context alive
 * until it has released the tables. A back end may share what it keeps between contexts of one parameter id.
 * device_tables_release accepts NULL. */
ckks_status device_tables_acquire(device *dev, const device_tables **out, const ckks_context *context,
                                  ckks_error *err);
void device_tables_release(device *dev, const device_tables *tables);

/* ---- recording ---- */

/*
 * Streams join and leave as with CUDA's capture: an event recorded on a recording stream and waited for by
 * another stream pulls that stream in, and its work must be waited for again (through an event) before the
 * end. An event recorded outside cannot be waited for inside, nor the other way round.
 *
 * A refused or failed call on a recording stream, and a forbidden call (or device_free) by the recording
 * thread, spoil the recording: later calls and device_record_end return the first cause.
 */
ckks_status device_record_begin(device_stream *stream, ckks_error *err);
/* device_record_end, on the stream that began: on success the caller owns *out (device_graph_destroy, which
 * waits for pending replays). CKKS_RECORDING_VIOLATION if a stream was not joined again, or if two launches
 * that nothing orders touch the same memory and one writes (the message names both). On failure the recording
 * is gone and its streams are usable. */
ckks_status device_record_end(device_stream *stream, device_graph **out, ckks_error *err);
void device_record_abort(device_stream *stream);
bool device_is_recording(const device_stream *stream);
/* device_recordings: recordings begun on this device so far, planning ones included. */
uint64_t device_recordings(const device *dev);
void device_graph_destroy(device_graph *graph);

/* ---- failure injection (builds with CKKS_FAULT_INJECTION only; otherwise no code) ---- */

/* The n-th device call from now (1 = next; allocation, copy, launch, record, wait, graph call...) fails with
 * CKKS_DEVICE_ERROR or, for allocations, CKKS_RESOURCE_EXHAUSTED; 0 switches off. `asynchronous`: a launch or
 * copy is accepted and fails on the stream. device_fault_calls returns the calls counted since. */
void device_fault_set(device *dev, uint64_t nth, bool asynchronous);
uint64_t device_fault_calls(const device *dev);
/* device_fault_lose: the next work enqueued on any stream loses the device for good (CUDA: a kernel that
 * traps takes its place). */
void device_fault_lose(device *dev);
/* device_fault_hide: device_has_kernel says from now on that there is no version of the kernel, as on a back
 * end that lacks it; false ends that. */
void device_fault_hide(device *dev, kernel_id kernel, bool is_hidden);

#endif
