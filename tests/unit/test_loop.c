/* The loop thread's queue. */
#include "daemon/loop.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct fixture {
    loop loop;
    loop_event again;
    uv_timer_t timer;
    uint64_t runs, order[3];
    uint32_t order_count;
} fixture;

static void run_again(loop_event *event) {
    fixture *f = LIST_ENTRY(event, fixture, again);
    f->runs++;
    loop_post(&f->loop, event);
}
static void on_timer(uv_timer_t *timer) {
    fixture *f = timer->data;
    if (f->runs > 1000) loop_stop(&f->loop); /* else the machine was busy with something else: another turn */
}

static void a_stream_of_events_does_not_keep_timers_from_their_turn(void **state) {
    (void)state;
    fixture f = {0};
    assert_int_equal(loop_init(&f.loop, NULL), CKKS_OK);
    f.again.run = run_again;
    assert_int_equal(uv_timer_init(&f.loop.uv, &f.timer), 0);
    f.timer.data = &f;
    assert_int_equal(uv_timer_start(&f.timer, on_timer, 20, 20), 0);
    loop_post(&f.loop, &f.again);
    alarm(60); /* a failure would be endless */
    loop_run(&f.loop);
    alarm(0);
    assert_true(f.runs > 1000);
    loop_fini(&f.loop);
}

typedef struct numbered {
    loop_event event;
    fixture *fixture;
    uint64_t number;
} numbered;

static void note(loop_event *event) {
    numbered *n = LIST_ENTRY(event, numbered, event);
    n->fixture->order[n->fixture->order_count++] = n->number;
    if (n->fixture->order_count == 2) loop_stop(&n->fixture->loop);
}

static void events_run_in_order_and_once(void **state) {
    (void)state;
    fixture f = {0};
    numbered first = {.event.run = note, .fixture = &f, .number = 1};
    numbered second = {.event.run = note, .fixture = &f, .number = 2};
    assert_int_equal(loop_init(&f.loop, NULL), CKKS_OK);
    loop_post(&f.loop, &first.event);
    loop_post(&f.loop, &second.event);
    loop_post(&f.loop, &first.event); /* it waits already */
    loop_run(&f.loop);
    assert_int_equal(f.order_count, 2);
    assert_int_equal(f.order[0], 1);
    assert_int_equal(f.order[1], 2);
    loop_close_queue(&f.loop);
    loop_post(&f.loop, &first.event); /* nobody listens any more */
    loop_drain(&f.loop);
    assert_int_equal(f.order_count, 2);
    loop_fini(&f.loop);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stream_of_events_does_not_keep_timers_from_their_turn),
        cmocka_unit_test(events_run_in_order_and_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
