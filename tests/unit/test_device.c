/* The device's execution model: streams, events, errors, memory. Recording is in test_device_record.c, but
 * for what a node says that it waits for. */
#include "kernels/cpu/device_cpu.h"
#include "kernels/cpu/team.h"
#include "kernels/device_graph.h"
#include "tests/support/alloc_fault.h"
#include "tests/support/device_fixture.h"
#include "tests/support/library_fault.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
// cmocka wants the four above first
#include <cmocka.h>

#define assert_ok(call) assert_status(call, CKKS_OK)
static void assert_status(ckks_status actual, ckks_status expected) {
    assert_string_equal(ckks_status_name(actual), ckks_status_name(expected));
}

static kernel_poly poly_in(uint64_t *words) {
    return device_fixture_poly(words, 1, (kernel_basis){0, 1, 0});
}
static ckks_status negate(device_fixture *f, device_stream *stream, uint64_t *out, uint64_t *a) {
    const kernel_unary_args args = {f->tables, poly_in(out), poly_in(a)};
    return device_launch(stream, KERNEL_NEGATE, &args, NULL);
}
/* adds 1 to every word */
static ckks_status increment(device_fixture *f, device_stream *stream, uint64_t *words) {
    const kernel_scalars_args args = {f->tables, poly_in(words), poly_in(words), {1}, 0};
    return device_launch(stream, KERNEL_ADD_SCALARS, &args, NULL);
}

static void record_event(device_event *event, device_stream *stream) {
    assert_ok(device_event_record(event, stream, NULL));
}
static void wait_for(device_stream *stream, device_event *event) {
    assert_ok(device_stream_wait(stream, event, NULL));
}

static void stream_runs_its_work_in_order(void **state) {
    (void)state;
    device_fixture f;
    device_fixture_open(&f, NULL, 1);
    uint64_t *zero = calloc(f.n, 8), *out = malloc(f.n * 8);
    uint64_t *a = device_fixture_upload(&f, zero, f.n * 8), *b = device_fixture_upload(&f, NULL, f.n * 8);
    for (int i = 0; i < 100; i++) assert_ok(increment(&f, f.stream, a));
    assert_ok(negate(&f, f.stream, b, a));
    for (int i = 0; i < 50; i++) assert_ok(increment(&f, f.stream, a));
    assert_ok(device_copy(f.stream, b + 1, a + 1, (f.n - 1) * 8, NULL));
    device_fixture_download(&f, out, b, f.n * 8);
    assert_true(out[0] == f.params->prime[0] - 100);
    for (uint32_t i = 1; i < f.n; i++) assert_true(out[i] == 150);
    device_free(f.dev, a), device_free(f.dev, b);
    free(zero), free(out);
    device_fixture_close(&f);
}

static void launch_returns_before_the_work_is_done(void **state) {
    (void)state;
    device_fixture f;
    device_fixture_open(&f, fixture_context(13, 2, 1, 1), 1);
    uint64_t *zero = calloc(f.n, 8);
    uint64_t *a = device_fixture_upload(&f, zero, f.n * 8);
    device_event *done;
    assert_ok(device_event_create(f.dev, &done, NULL));
    assert_true(device_event_is_complete(done)); /* never recorded */
    /* a busy machine may run the stream before us once, not every time */
    bool was_ahead = false;
    uint64_t expected = 0;
    for (int attempt = 0; attempt < (fixture_is_short() ? 1 : 20) && !was_ahead; attempt++) {
        for (int i = 0; i < 500; i++) assert_ok(increment(&f, f.stream, a));
        assert_ok(device_event_record(done, f.stream, NULL));
        was_ahead = !device_event_is_complete(done);
        assert_ok(device_event_synchronize(done, NULL));
        assert_true(device_event_is_complete(done));
        expected += 500;
        assert_true(a[17] == expected);
    }
    assert_true(was_ahead || fixture_is_short());
    device_event_destroy(done);
    device_free(f.dev, a);
    free(zero);
    device_fixture_close(&f);
}

static void queue_longer_than_its_bound_still_runs_everything(void **state) {
    (void)state;
    device_fixture f;
    device_fixture_open(&f, NULL, 1);
    uint64_t *zero = calloc(f.n, 8);
    uint64_t *a = device_fixture_upload(&f, zero, f.n * 8);
    const uint64_t launches = fixture_is_short() ? 500 : 10000;
    for (uint64_t i = 0; i < launches; i++) assert_ok(increment(&f, f.stream, a));
    assert_ok(device_stream_synchronize(f.stream, NULL));
    assert_true(a[0] == launches);
    device_free(f.dev, a);
    free(zero);
    device_fixture_close(&f);
}

/* two streams take turns on one buffer: only the events order them */
static void events_order_two_streams(void **state) {
    (void)state;
    device_fixture f;
    device_fixture_open(&f, NULL, 1);
    device_stream *other;
    device_event *here, *there;
    uint64_t *zero = calloc(f.n, 8);
    uint64_t *a = device_fixture_upload(&f, zero, f.n * 8);
    assert_ok(device_stream_create(f.dev, &other, NULL));
    assert_ok(device_event_create(f.dev, &here, NULL));
    assert_ok(device_event_create(f.dev, &there, NULL));
    const uint64_t q = f.params->prime[0];
    uint64_t expected = 0;
    for (int round = 0; round < 200; round++) {
        assert_ok(increment(&f, f.stream, a));
        assert_ok(device_event_record(here, f.stream, NULL));
        assert_ok(device_stream_wait(other, here, NULL));
        assert_ok(negate(&f, other, a, a));
        assert_ok(device_event_record(there, other, NULL));
        assert_ok(device_stream_wait(f.stream, there, NULL));
        expected = (q - (expected + 1) % q) % q;
    }
    assert_ok(device_stream_synchronize(f.stream, NULL));
    for (uint32_t i = 0; i < f.n; i++) assert_true(a[i] == expected);
    device_event_destroy(here), device_event_destroy(there);
    device_stream_destroy(other);
    device_free(f.dev, a);
    free(zero);
    device_fixture_close(&f);
}

/* a wait is for the record that was the latest when it was called, not for one that comes after */
static void wait_is_for_the_latest_record_at_the_call(void **state) {
    (void)state;
    device_fixture f;
    device_fixture_open(&f, fixture_context(13, 2, 1, 1), 1);
    device_stream *slow = f.stream, *fast, *waiter;
    device_event *event;
    uint64_t *zero = calloc(f.n, 8), *seen = malloc(8);
    uint64_t *a = device_fixture_upload(&f, zero, f.n * 8);
    assert_ok(device_stream_create(f.dev, &fast, NULL));
    assert_ok(device_stream_create(f.dev, &waiter, NULL));
    assert_ok(device_event_create(f.dev, &event, NULL));
    for (int i = 0; i < 1000; i++) assert_ok(increment(&f, slow, a));
    assert_ok(device_event_record(event, slow, NULL));
    assert_ok(device_stream_wait(waiter, event, NULL));
    assert_ok(device_event_record(event, fast, NULL)); /* completes at once */
    assert_ok(device_event_synchronize(event, NULL));
    assert_ok(device_copy_out(waiter, seen, a, 8, NULL));
    assert_ok(device_stream_synchronize(waiter, NULL));
    assert_true(*seen == 1000);
    device_event_destroy(event);
    device_stream_destroy(fast), device_stream_destroy(waiter);
    device_free(f.dev, a);
    free(zero), free(seen);
    device_fixture_close(&f);
}

static void elapsed_time_is_that_of_the_work_between(void **state) {
    (void)state;
    device_fixture f;
    device_fixture_open(&f, fixture_context(13, 2, 1, 1), 1);
    device_event *from, *to;
    uint64_t *zero = calloc(f.n, 8);
    uint64_t *a = device_fixture_upload(&f, zero, f.n * 8);
    assert_ok(device_event_create(f.dev, &from, NULL));
    assert_ok(device_event_create(f.dev, &to, NULL));
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    assert_ok(device_event_record(from, f.stream, NULL));
    for (int i = 0; i < 500; i++) assert_ok(increment(&f, f.stream, a));
    assert_ok(device_event_record(to, f.stream, NULL));
    assert_ok(device_event_synchronize(to, NULL));
    clock_gettime(CLOCK_MONOTONIC, &end);
    const uint64_t outside =
        (uint64_t)(end.tv_sec - begin.tv_sec) * 1000000000u + (uint64_t)end.tv_nsec - (uint64_t)begin.tv_nsec;
    const uint64_t inside = device_event_elapsed_ns(from, to);
    assert_in_range(inside, 100000, outside); /* 500 passes over 64 KiB take more than 0.1 ms */
    assert_true(device_event_elapsed_ns(to, from) == 0);
    device_event_destroy(from), device_event_destroy(to);
    device_free(f.dev, a);
    free(zero);
    device_fixture_close(&f);
}

/* ---- errors ---- */

static void asynchronous_failure_is_sticky_until_recovered(void **state) {
    (void)state;
    device_fixture f;
    device_fixture_open(&f, NULL, 1);
    uint64_t *zero = calloc(f.n, 8);
    uint64_t *a = device_fixture_upload(&f, zero, f.n * 8);
    ckks_error err = {0};
    device_fault_set(f.dev, 2, true);
    assert_ok(increment(&f, f.stream, a));
    assert_ok(increment(&f, f.stream, a)); /* accepted; fails on the stream */
    assert_ok(increment(&f, f.stream, a)); /* skipped */
    assert_status(device_stream_synchronize(f.stream, &err), CKKS_DEVICE_ERROR);
    assert_int_equal(err.code, CKKS_DEVICE_ERROR);
    assert_string_equal(err.message, "injected asynchronous failure");
    assert_status(device_stream_synchronize(f.stream, NULL), CKKS_DEVICE_ERROR);
    /* a card runs what is behind an injected failure, and nobody believes what that leaves */
    const uint64_t left = device_get_kind(f.dev) == DEVICE_CPU ? 1 : 2;
    assert_true(a[0] == left);
    assert_ok(device_stream_recover(f.stream, NULL));
    assert_ok(device_stream_synchronize(f.stream, NULL));
    assert_ok(increment(&f, f.stream, a));
    assert_ok(device_stream_synchronize(f.stream, NULL));
    assert_true(a[0] == left + 1);
    device_free(f.dev, a);
    free(zero);
    device_fixture_close(&f);
}

/* work that waits for failed work does not run on what the failure left behind */
static void failure_travels_with_events_until_its_stream_recovers(void **state) {
    (void)state;
    device_fixture f;
    device_fixture_open(&f, NULL, 1);
    device_stream *other;
    device_event *event, *good;
    uint64_t *zero = calloc(f.n, 8);
    uint64_t *a = device_fixture_upload(&f, zero, f.n * 8);
    assert_ok(device_stream_create(f.dev, &other, NULL));
    assert_ok(device_event_create(f.dev, &event, NULL));
    assert_ok(device_event_create(f.dev, &good, NULL));
    device_fault_set(f.dev, 1, true);
    assert_ok(increment(&f, f.stream, a));
    assert_ok(device_event_record(event, f.stream, NULL));
    assert_status(device_event_synchronize(event, NULL), CKKS_DEVICE_ERROR);
    assert_true(device_event_is_complete(event));
    assert_ok(device_stream_wait(other, event, NULL));
    assert_ok(increment(&f, other, a));
    assert_status(device_stream_synchronize(other, NULL), CKKS_DEVICE_ERROR);
    const uint64_t left = device_get_kind(f.dev) == DEVICE_CPU ? 0 : 1;
    assert_true(a[0] == left);
    assert_ok(device_stream_recover(other, NULL));
    assert_ok(device_stream_wait(other, event, NULL)); /* the first stream is still failed */
    assert_status(device_stream_synchronize(other, NULL), CKKS_DEVICE_ERROR);
    assert_ok(device_stream_recover(f.stream, NULL));
    record_event(good, f.stream), wait_for(other, good); /* mends nothing */
    assert_status(device_stream_synchronize(other, NULL), CKKS_DEVICE_ERROR);
    assert_ok(device_stream_recover(other, NULL));
    assert_ok(device_event_synchronize(event, NULL));
    assert_ok(device_stream_wait(other, event, NULL));
    assert_ok(increment(&f, other, a));
    assert_ok(device_stream_synchronize(other, NULL));
    assert_true(a[0] == left + 1);
    device_event_destroy(event), device_event_destroy(good);
    device_stream_destroy(other);
    device_free(f.dev, a);
    free(zero);
    device_fixture_close(&f);
}

static void work_on_foreign_or_host_memory_is_refused(void **state) {
    (void)state;
    device_fixture f, g;
    device_fixture_open(&f, NULL, 1);
    device_fixture_open(&g, NULL, 1);
    uint64_t *host = aligned_alloc(256, f.n * 8);
    uint64_t *a = device_fixture_upload(&f, NULL, f.n * 8),
             *foreign = device_fixture_upload(&g, NULL, f.n * 8);
    device_event *event;
    assert_ok(device_event_create(g.dev, &event, NULL));
    assert_status(negate(&f, f.stream, a, host), CKKS_INVALID_ARGUMENT);
    assert_status(negate(&f, f.stream, host, a), CKKS_INVALID_ARGUMENT);
    assert_status(negate(&f, f.stream, a, foreign), CKKS_INVALID_ARGUMENT);
    assert_status(negate(&f, f.stream, a + 16, a + 16), CKKS_INVALID_ARGUMENT); /* runs over the end */
    /* tables of another device of the same parameters: a card would follow their addresses */
    ckks_error err = {0};
    const kernel_poly own = device_fixture_poly(a, 1, (kernel_basis){0, 1, 0});
    const kernel_unary_args args = {g.tables, own, own};
    assert_status(device_launch(f.stream, KERNEL_NEGATE, &args, &err), CKKS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "NEGATE.tables");
    assert_status(device_copy(f.stream, a, foreign, 8, NULL), CKKS_INVALID_ARGUMENT);
    assert_status(device_copy_in(f.stream, host, a, 8, NULL), CKKS_INVALID_ARGUMENT);
    assert_status(device_copy_out(f.stream, host, host, 8, NULL), CKKS_INVALID_ARGUMENT);
    assert_status(device_copy(f.stream, a + 1, a, 16, NULL), CKKS_ALIASING);
    assert_status(device_fill(f.stream, a, 0, 0, NULL), CKKS_INVALID_ARGUMENT);
    assert_status(device_fill(f.stream, a, 0, f.n * 8 + 1, NULL), CKKS_INVALID_ARGUMENT);
    assert_status(device_event_record(event, f.stream, NULL), CKKS_INVALID_ARGUMENT);
    assert_status(device_stream_wait(f.stream, event, NULL), CKKS_INVALID_ARGUMENT);
    assert_ok(device_stream_synchronize(f.stream, NULL));
    assert_true(a[0] == 0xa5a5a5a5a5a5a5a5u); /* nothing ran */
    device_event_destroy(event);
    device_free(f.dev, a), device_free(g.dev, foreign);
    free(host);
    device_fixture_close(&f), device_fixture_close(&g);
}

/* ---- memory ---- */

static void memory_account_follows_every_allocation(void **state) {
    (void)state;
    device *dev;
    device_memory_account account;
    const device_config config = {.kind = DEVICE_CPU, .bytes_max = 10000};
    void *a, *b, *c, *host;
    assert_ok(device_open(&dev, &config, NULL));
    assert_ok(device_allocate(dev, &a, 1000, MEMORY_STATIC, NULL)); /* rounded up to 1024 */
    assert_ok(device_allocate(dev, &b, 4096, MEMORY_ARENA, NULL));
    assert_ok(device_allocate_host(dev, &host, 100000, NULL)); /* not device memory: no budget */
    assert_true((uintptr_t)a % VALUE_ALIGNMENT == 0 && (uintptr_t)b % VALUE_ALIGNMENT == 0);
    device_memory(dev, &account);
    assert_true(account.bytes_max == 10000 && account.bytes_used == 5120 && account.allocation_count == 3);
    assert_true(account.bytes_by_purpose[MEMORY_STATIC] == 1024);
    assert_true(account.bytes_by_purpose[MEMORY_ARENA] == 4096);
    assert_true(account.bytes_by_purpose[MEMORY_STAGING] == 100096);
    assert_true(device_owns(dev, a, 1024) && device_owns(dev, (char *)b + 4095, 1));
    assert_false(device_owns(dev, a, 1025));
    assert_false(device_owns(dev, (char *)b + 4096, 1));
    assert_false(device_owns(dev, host, 1));
    assert_false(device_owns(dev, (char *)b + 8, UINT64_MAX - 4));
    ckks_error err = {0};
    assert_status(device_allocate(dev, &c, 5121, MEMORY_KEYS, &err), CKKS_RESOURCE_EXHAUSTED);
    assert_null(c);
    assert_string_equal(err.field, "bytes");
    assert_string_equal(
        err.message,
        "0.01 MiB more are over the device's budget: 0.00 of 0.01 MiB are in use"); /* 10,000 bytes */
    assert_status(device_allocate(dev, &c, 0, MEMORY_KEYS, NULL), CKKS_INVALID_ARGUMENT);
    assert_status(device_allocate(dev, &c, 16, MEMORY_STAGING, NULL), CKKS_INVALID_ARGUMENT);
    assert_status(device_allocate(dev, &c, UINT64_MAX, MEMORY_KEYS, NULL), CKKS_RESOURCE_EXHAUSTED);
    assert_ok(device_allocate(dev, &c, 4608, MEMORY_KEYS, NULL)); /* 9728: still fits */
    device_free(dev, b), device_free(dev, c), device_free(dev, NULL), device_free_host(dev, NULL);
    device_memory(dev, &account);
    assert_true(account.bytes_used == 1024 && account.allocation_count == 2);
    assert_false(device_owns(dev, b, 1));
    device_free(dev, a), device_free_host(dev, host);
    device_memory(dev, &account);
    assert_true(account.bytes_used == 0 && account.allocation_count == 0);
    for (int i = 0; i < MEMORY_PURPOSE_COUNT; i++) assert_true(account.bytes_by_purpose[i] == 0);
    device_close(dev);
}

/* the sanitizers' allocators otherwise end the process */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
__attribute__((visibility("default"))) const char *__tsan_default_options(void);
const char *__asan_default_options(void) {
    return "allocator_may_return_null=1";
}
const char *__tsan_default_options(void) {
    return "allocator_may_return_null=1";
}

static void memory_that_the_system_lacks_is_refused_and_not_accounted(void **state) {
    (void)state;
    device *dev;
    device_memory_account account;
    const device_config config = {.kind = DEVICE_CPU, .bytes_max = UINT64_MAX};
    void *a;
    assert_ok(device_open(&dev, &config, NULL));
    assert_status(device_allocate(dev, &a, (uint64_t)1 << 60, MEMORY_KEYS, NULL), CKKS_RESOURCE_EXHAUSTED);
    assert_null(a);
    device_memory(dev, &account);
    assert_true(account.bytes_used == 0 && account.allocation_count == 0);
    device_close(dev);
}

static void tables_are_shared_and_counted(void **state) {
    (void)state;
    device_fixture f;
    device_fixture_open(&f, NULL, 1);
    const device_tables *again, *others;
    ckks_context *other = fixture_context(10, 1, 1, 1);
    assert_ok(device_tables_acquire(f.dev, &again, f.context, NULL));
    assert_ok(device_tables_acquire(f.dev, &others, other, NULL));
    assert_ptr_equal(again, f.tables);
    assert_ptr_not_equal(others, f.tables);
    assert_ptr_equal(device_tables_context(others), other);
    device_tables_release(f.dev, again);
    device_tables_release(f.dev, others);
    device_tables_release(f.dev, NULL);
    assert_ptr_equal(device_tables_context(f.tables), f.context);
    context_destroy(other);
    device_fixture_close(&f);
}

/* ---- opening ---- */

static void open_says_what_it_took_and_refuses_what_is_not_there(void **state) {
    (void)state;
    device *a, *b;
    ckks_error err = {0};
    device_config config = {.kind = DEVICE_CPU, .threads = 2};
    assert_ok(device_open(&a, &config, NULL));
    assert_ok(device_open(&b, &config, NULL));
    assert_true(device_id(a) != 0 && device_id(b) != 0 && device_id(a) != device_id(b));
    assert_int_equal(device_get_kind(a), DEVICE_CPU);
    assert_non_null(strstr(device_describe(a), "CPU, 2 threads, "));
    device_memory_account account;
    device_memory(a, &account);
    assert_true(account.bytes_max > (uint64_t)64 << 20);
    device_close(a), device_close(b), device_close(NULL);
    config.kind = (device_kind)7;
    assert_status(device_open(&a, &config, &err), CKKS_INVALID_ARGUMENT);
    assert_null(a);
    config = (device_config){.kind = DEVICE_CPU, .threads = 100000};
    assert_status(device_open(&a, &config, NULL), CKKS_INVALID_ARGUMENT);
#ifndef CKKSD_CUDA
    config = (device_config){.kind = DEVICE_CUDA};
    assert_status(device_open(&a, &config, NULL), CKKS_UNSUPPORTED);
    config.kind = DEVICE_AUTO;
    assert_ok(device_open(&a, &config, NULL));
    assert_int_equal(device_get_kind(a), DEVICE_CPU);
    device_close(a);
#endif
}

static void instruction_set_can_be_forced_by_name(void **state) {
    (void)state;
    device *dev;
    cpu_isa isa;
    ckks_error err = {0};
    const device_config config = {.kind = DEVICE_CPU, .threads = 1};
    assert_ok(cpu_isa_choose(&isa, "scalar", NULL));
    assert_int_equal(isa, CPU_ISA_SCALAR);
    cpu_isa best;
    assert_ok(cpu_isa_choose(&best, NULL, NULL));
    const ckks_status avx512 = cpu_isa_choose(&isa, "avx512", NULL);
    assert_status(avx512, best == CPU_ISA_AVX512 ? CKKS_OK : CKKS_UNSUPPORTED);
    setenv("CKKSD_ISA", "sse9", 1);
    assert_status(device_open(&dev, &config, &err), CKKS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "CKKSD_ISA");
    setenv("CKKSD_ISA", "scalar", 1);
    assert_ok(device_open(&dev, &config, NULL));
    assert_string_equal(device_describe(dev), "CPU, 1 thread, scalar");
    device_close(dev);
    unsetenv("CKKSD_ISA");
}

static void every_kernel_has_a_scalar_version(void **state) {
    (void)state;
    for (int kernel = 0; kernel < KERNEL_COUNT; kernel++) {
        assert_non_null(cpu_kernel_find((kernel_id)kernel, CPU_ISA_SCALAR, NULL));
        assert_true(strlen(kernel_name((kernel_id)kernel)) > 0);
        assert_true(kernel_arguments_size((kernel_id)kernel) > sizeof(void *));
    }
}

/* ---- injected failures ---- */

typedef struct sweep {
    device *dev;
    ckks_context *context;
} sweep;

/* Everything a program does with a device, once. Returns the first failure, everything given back. */
static ckks_status representative_sequence(const sweep *s, uint64_t *result) {
    ckks_status rc;
    const uint32_t n = params_n(context_params(s->context));
    const device_tables *tables = NULL;
    device_stream *stream = NULL, *side = NULL;
    device_event *fork = NULL, *joined = NULL;
    device_graph *graph = NULL;
    void *a = NULL, *b = NULL, *host = NULL;
#define STEP(call)                                                                                           \
    if ((rc = (call)) != CKKS_OK) goto out
    STEP(device_tables_acquire(s->dev, &tables, s->context, NULL));
    STEP(device_stream_create(s->dev, &stream, NULL));
    STEP(device_stream_create(s->dev, &side, NULL));
    STEP(device_event_create(s->dev, &fork, NULL));
    STEP(device_event_create(s->dev, &joined, NULL));
    STEP(device_allocate(s->dev, &a, n * 8, MEMORY_ARENA, NULL));
    STEP(device_allocate(s->dev, &b, n * 8, MEMORY_KEYS, NULL));
    STEP(device_allocate_host(s->dev, &host, n * 8, NULL));
    STEP(device_fill(stream, a, 0, n * 8, NULL));
    const kernel_poly pa = device_fixture_poly(a, 1, (kernel_basis){0, 1, 0});
    const kernel_poly pb = device_fixture_poly(b, 1, (kernel_basis){0, 1, 0});
    const kernel_scalars_args increment_a = {tables, pa, pa, {1}, 0}, copy_plus_2 = {tables, pb, pa, {2}, 0};
    STEP(device_launch(stream, KERNEL_ADD_SCALARS, &increment_a, NULL));
    STEP(device_stream_synchronize(stream, NULL));
    STEP(device_record_begin(stream, NULL));
    STEP(device_launch(stream, KERNEL_ADD_SCALARS, &increment_a, NULL));
    STEP(device_event_record(fork, stream, NULL));
    STEP(device_stream_wait(side, fork, NULL));
    STEP(device_launch(side, KERNEL_ADD_SCALARS, &copy_plus_2, NULL));
    STEP(device_event_record(joined, side, NULL));
    STEP(device_stream_wait(stream, joined, NULL));
    STEP(device_copy_out(stream, host, b, n * 8, NULL));
    STEP(device_record_end(stream, &graph, NULL));
    STEP(device_graph_replay(graph, stream, NULL));
    STEP(device_graph_replay(graph, stream, NULL));
    STEP(device_event_record(fork, stream, NULL));
    STEP(device_event_synchronize(fork, NULL));
    STEP(device_copy_in(stream, a, host, n * 8, NULL));
    STEP(device_copy(stream, b, a, n * 8, NULL));
    STEP(device_stream_synchronize(stream, NULL));
    *result = *(uint64_t *)b;
#undef STEP
out:
    if (stream) device_record_abort(stream);
    device_graph_destroy(graph);
    device_event_destroy(fork), device_event_destroy(joined);
    device_stream_destroy(stream), device_stream_destroy(side);
    device_free(s->dev, a), device_free(s->dev, b), device_free_host(s->dev, host);
    device_tables_release(s->dev, tables);
    return rc;
}

static void assert_nothing_left(device *dev) {
    device_memory_account account;
    device_memory(dev, &account);
    assert_true(account.allocation_count == 0 && account.bytes_used == 0);
}

static void sweep_open(sweep *s) {
    const device_config config = {.kind = DEVICE_CPU, .threads = 2};
    s->context = fixture_context(10, 1, 1, 1);
    assert_ok(device_open(&s->dev, &config, NULL));
}
static void sweep_close(sweep *s) {
    assert_nothing_left(s->dev);
    device_close(s->dev); /* asserts that streams, events, graphs and tables are gone */
    context_destroy(s->context);
}

static void every_device_call_can_fail_and_everything_comes_back(void **state) {
    (void)state;
    sweep s;
    sweep_open(&s);
    uint64_t result = 0;
    device_fault_set(s.dev, 0, false);
    assert_ok(representative_sequence(&s, &result));
    assert_true(result == 5); /* 0 + 1, twice + 1, + 2 */
    const uint64_t calls = device_fault_calls(s.dev);
    assert_true(calls > 25);
    for (int asynchronous = 0; asynchronous < 2; asynchronous++) {
        for (uint64_t nth = 1; nth <= calls; nth++) {
            device_fault_set(s.dev, nth, asynchronous);
            const ckks_status rc = representative_sequence(&s, &result);
            assert_true(rc == CKKS_DEVICE_ERROR || rc == CKKS_RESOURCE_EXHAUSTED);
            assert_nothing_left(s.dev);
        }
    }
    device_fault_set(s.dev, calls + 1, false);
    assert_ok(representative_sequence(&s, &result));
    print_message("  %llu device calls, each failed twice\n", (unsigned long long)calls);
    sweep_close(&s);
}

static void every_host_allocation_can_fail_and_everything_comes_back(void **state) {
    (void)state;
    sweep s;
    uint64_t result = 0, nth = 1;
    ckks_status rc = CKKS_OK;
    sweep_open(&s);
    for (;; nth++) {
        alloc_fault_set(nth);
        rc = representative_sequence(&s, &result);
        const bool was_reached = alloc_fault_calls() >= nth;
        alloc_fault_set(0);
        if (!was_reached) break;
        if (rc != CKKS_OK) assert_status(rc, CKKS_RESOURCE_EXHAUSTED);
        assert_nothing_left(s.dev);
    }
    assert_ok(rc);
    assert_true(nth > 30);
    print_message("  %llu host allocations, each failed once\n", (unsigned long long)nth - 1);
    sweep_close(&s);
}

/* teams, device and staging memory: what is aligned does not come from malloc */
static void every_aligned_allocation_can_fail_and_everything_comes_back(void **state) {
    (void)state;
    sweep s;
    uint64_t result = 0, nth = 1;
    ckks_status rc = CKKS_OK;
    sweep_open(&s);
    for (;; nth++) {
        library_fault_set(nth, false);
        rc = representative_sequence(&s, &result);
        const char *failed = library_fault_name();
        library_fault_set(0, false);
        if (!failed) break;
        assert_string_equal(failed, "posix_memalign");
        assert_status(rc, CKKS_RESOURCE_EXHAUSTED);
        assert_nothing_left(s.dev);
    }
    assert_ok(rc);
    assert_true(nth - 1 == 5); /* two teams, two blocks on the device and one on the host */
    sweep_close(&s);
}

static void threads_and_locks_can_fail_to_come(void **state) {
    (void)state;
    sweep s;
    uint64_t result = 0;
    sweep_open(&s);
    uint32_t nth = 1;
    for (;; nth++) {
        team_fault_thread(nth);
        const ckks_status rc = representative_sequence(&s, &result);
        assert_nothing_left(s.dev);
        if (rc == CKKS_OK) break;
        assert_status(rc, CKKS_RESOURCE_EXHAUSTED);
    }
    team_fault_thread(0);
    assert_true(nth > 4); /* of two streams, their threads and one member each */
    for (nth = 1;; nth++) {
        cpu_fault_sync_init(nth);
        const ckks_status rc = representative_sequence(&s, &result);
        assert_nothing_left(s.dev);
        if (rc == CKKS_OK) break;
        assert_status(rc, CKKS_RESOURCE_EXHAUSTED);
    }
    cpu_fault_sync_init(0);
    assert_true(nth > 8);
    sweep_close(&s);
}

/* However many events say it: a card's graph refuses an edge that is there already. In ascending order. */
static void a_node_names_each_node_that_it_waits_for_once(void **state) {
    (void)state;
    device_fixture f;
    device_fixture_open(&f, NULL, 1);
    uint8_t *bytes = device_fixture_upload(&f, NULL, 4);
    device_stream *side;
    device_event *event[4];
    device_graph *graph;
    assert_ok(device_stream_create(f.dev, &side, NULL));
    for (int i = 0; i < 4; i++) assert_ok(device_event_create(f.dev, &event[i], NULL));
    assert_ok(device_record_begin(f.stream, NULL));
    assert_ok(device_fill(f.stream, bytes, 0, 1, NULL)); /* node 0 */
    record_event(event[0], f.stream), record_event(event[1], f.stream);
    for (int i = 0; i < 3; i++) wait_for(side, event[i % 2]);
    assert_ok(device_fill(side, bytes + 1, 0, 1, NULL));     /* node 1 */
    assert_ok(device_fill(f.stream, bytes + 2, 0, 1, NULL)); /* node 2 */
    record_event(event[2], f.stream);
    wait_for(side, event[2]); /* side: 1 and 2 */
    record_event(event[3], side);
    for (int i = 0; i < 2; i++) wait_for(f.stream, event[3]); /* 2, and 1 before it */
    wait_for(f.stream, event[0]);
    assert_ok(device_fill(f.stream, bytes + 3, 0, 1, NULL)); /* node 3 */
    assert_ok(device_record_end(f.stream, &graph, NULL));
    const graph_node *first = device_graph_node(graph, 1), *last = device_graph_node(graph, 3);
    assert_int_equal(first->dependency_count, 1);
    assert_int_equal(first->dependencies[0], 0);
    assert_in_range(last->dependency_count, 2, 3); /* node 0 is before both: it may be named, once */
    for (uint32_t i = 0; i < last->dependency_count; i++)
        assert_int_equal(last->dependencies[i], i + 3 - last->dependency_count);
    device_graph_destroy(graph);
    for (int i = 0; i < 4; i++) device_event_destroy(event[i]);
    device_stream_destroy(side);
    device_free(f.dev, bytes);
    device_fixture_close(&f);
}

static void open_can_run_out_of_memory(void **state) {
    (void)state;
    device *dev = NULL;
    const device_config config = {.kind = DEVICE_CPU, .threads = 1};
    uint64_t nth = 1;
    for (;; nth++) {
        alloc_fault_set(nth);
        const ckks_status rc = device_open(&dev, &config, NULL);
        alloc_fault_set(0);
        if (rc == CKKS_OK) break;
        assert_status(rc, CKKS_RESOURCE_EXHAUSTED);
        assert_null(dev);
    }
    assert_true(nth > 1);
    device_close(dev);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stream_runs_its_work_in_order),
        cmocka_unit_test(launch_returns_before_the_work_is_done),
        cmocka_unit_test(queue_longer_than_its_bound_still_runs_everything),
        cmocka_unit_test(events_order_two_streams),
        cmocka_unit_test(wait_is_for_the_latest_record_at_the_call),
        cmocka_unit_test(elapsed_time_is_that_of_the_work_between),
        cmocka_unit_test(asynchronous_failure_is_sticky_until_recovered),
        cmocka_unit_test(failure_travels_with_events_until_its_stream_recovers),
        cmocka_unit_test(work_on_foreign_or_host_memory_is_refused),
        cmocka_unit_test(memory_account_follows_every_allocation),
        cmocka_unit_test(memory_that_the_system_lacks_is_refused_and_not_accounted),
        cmocka_unit_test(tables_are_shared_and_counted),
        cmocka_unit_test(open_says_what_it_took_and_refuses_what_is_not_there),
        cmocka_unit_test(instruction_set_can_be_forced_by_name),
        cmocka_unit_test(every_kernel_has_a_scalar_version),
        cmocka_unit_test(every_device_call_can_fail_and_everything_comes_back),
        cmocka_unit_test(every_host_allocation_can_fail_and_everything_comes_back),
        cmocka_unit_test(every_aligned_allocation_can_fail_and_everything_comes_back),
        cmocka_unit_test(threads_and_locks_can_fail_to_come),
        cmocka_unit_test(a_node_names_each_node_that_it_waits_for_once),
        cmocka_unit_test(open_can_run_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
