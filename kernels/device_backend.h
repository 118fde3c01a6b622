/*
 * What an implementation of the device provides. The front end (device.c, device_record.c) has checked every
 * argument, keeps recordings and their dependencies, accounts memory and injects failures; a back end moves
 * bytes and runs kernels. `self` and the handles of streams, events and graphs are the back end's own.
 *
 * Recorded work never reaches a back end before graph_create, which receives the finished list. So a back end
 * needs no recording state.
 */
#ifndef CKKS_DEVICE_BACKEND_H
#define CKKS_DEVICE_BACKEND_H

#include "kernels/device_graph.h"

typedef enum copy_direction { COPY_IN, COPY_OUT, COPY_DEVICE } copy_direction;

/* One piece of work, eager or recorded. */
typedef struct device_operation {
    graph_node_kind kind;
    kernel_id kernel;      /* GRAPH_NODE_KERNEL */
    const void *arguments; /* its argument struct */
    copy_direction copy;   /* GRAPH_NODE_COPY */
    void *to;              /* COPY, FILL */
    const void *from;      /* COPY */
    uint64_t bytes;        /* COPY, FILL */
    uint8_t byte;          /* FILL */
} device_operation;

/* A parameter set on a device. Made by the front end; `self` is what the back end keeps of it on its side. */
struct device_tables {
    const ckks_context *context;
    void *self;
    uint32_t reference_count;
    struct device_tables *next;
    const device *dev; /* on which they are */
};

typedef struct device_backend {
    device_kind kind;
    void (*close)(void *self);

    ckks_status (*allocate)(void *self, void **out, uint64_t bytes, ckks_error *err);
    void (*release)(void *self, void *address);
    ckks_status (*allocate_host)(void *self, void **out, uint64_t bytes, ckks_error *err);
    void (*release_host)(void *self, void *address);
    uint64_t (*bytes_free)(const void *self); /* NULL: not known */

    ckks_status (*stream_create)(void *self, void **stream, ckks_error *err);
    void (*stream_destroy)(void *stream); /* waits for its work */
    ckks_status (*stream_synchronize)(void *stream, ckks_error *err);
    ckks_status (*stream_recover)(void *stream, ckks_error *err);
    /* stream_fail enqueues a failure: the stream's sticky error when its turn comes */
    ckks_status (*stream_fail)(void *stream, const ckks_error *cause, ckks_error *err);
    /* stream_trap, in fault-injection builds: enqueues work that loses the device for good. NULL: the front
     * end pretends. */
    ckks_status (*stream_trap)(void *stream, ckks_error *err);
    /* is_lost: has an error come that the device does not recover from? NULL: it has none */
    bool (*is_lost)(const void *self);

    ckks_status (*event_create)(void *self, void **event, ckks_error *err);
    void (*event_destroy)(void *event);
    ckks_status (*event_record)(void *event, void *stream, ckks_error *err);
    ckks_status (*stream_wait)(void *stream, void *event, ckks_error *err);
    ckks_status (*event_synchronize)(void *event, ckks_error *err);
    bool (*event_is_complete)(void *event);
    uint64_t (*event_elapsed_ns)(const void *from, const void *to);

    /* can_launch: CKKS_UNSUPPORTED where the kernel has no implementation here */
    ckks_status (*can_launch)(void *self, kernel_id kernel, ckks_error *err);
    /* run enqueues; `operation` and its arguments are copied */
    ckks_status (*run)(void *stream, const device_operation *operation, ckks_error *err);

    ckks_status (*tables_create)(void *self, device_tables *tables, ckks_error *err);
    void (*tables_destroy)(void *self, device_tables *tables);

    /* graph_create: operations[i] runs after the operations nodes[i].dependencies. Both arrays and what they
     * point to live at least as long as the graph. */
    ckks_status (*graph_create)(void *self, void **graph, const device_operation *operations,
                                const graph_node *nodes, uint32_t count, ckks_error *err);
    void (*graph_destroy)(void *graph);
    ckks_status (*graph_replay)(void *graph, void *stream, ckks_error *err);
    ckks_status (*set_adversarial_order)(void *self, uint64_t seed, ckks_error *err);
} device_backend;

/* What opening a back end yields. */
typedef struct backend_device {
    const device_backend *backend;
    void *self;
    uint64_t bytes_total; /* memory of the device */
    key_layout keys;      /* how it wants keys */
    char description[160];
    char reason[160];     /* why this one of several */
    char hardware_id[48]; /* UUID of the card; "" for a CPU */
} backend_device;

ckks_status device_cpu_open(backend_device *out, const device_config *config, ckks_error *err);
#ifdef CKKSD_CUDA
/* CKKS_NOT_FOUND when the machine has no usable GPU (AUTO then takes the CPU). */
ckks_status device_cuda_open(backend_device *out, const device_config *config, ckks_error *err);
#endif

#endif
