/* Peers that show no token: what they hold of the connections, and for how long. */
#include "tests/support/local_words.h"

static void reopen(void) {
    close_server();
    assert_int_equal(open_server(NULL), CKKS_OK);
}
static int friend_of(void) {
    const int fd = greet();
    atomic_store(&s.trusts, true);
    exchange_one(fd, 256);
    atomic_store(&s.trusts, false);
    return fd;
}
/* says nothing, not even hello */
static int silent_one(void) {
    uint8_t theirs[8];
    const int fd = dial();
    assert_true(get(fd, theirs, sizeof theirs));
    return fd;
}
static transport_pipe_counts counts(void) {
    transport_pipe_counts now;
    transport_count_pipes(&s.transport, &now);
    return now;
}

static void one_stranger_more_takes_the_place_of_the_oldest(void **state) {
    (void)state;
    int strangers[5];
    s.config.unauthenticated_max = 2;
    reopen();
    const int friend = friend_of();
    for (int i = 0; i < 2; i++) strangers[i] = greet();
    assert_int_equal(counts().unauthenticated, 2);
    for (int i = 2; i < 5; i++) {
        strangers[i] = greet();
        assert_true(is_hung_up(strangers[i - 2]));
        exchange_one(strangers[i - 1], 256);
        exchange_one(strangers[i], 256);
        exchange_one(friend, 256);
        assert_int_equal(counts().unauthenticated, 2);
        close(strangers[i - 2]);
    }
    assert_int_equal(counts().displaced, 3);
    assert_int_equal(counts().refused, 0);
    /* who shows a token holds no place of theirs */
    atomic_store(&s.trusts, true);
    exchange_one(strangers[3], 256);
    atomic_store(&s.trusts, false);
    assert_int_equal(counts().unauthenticated, 1);
    const int another = greet();
    exchange_one(strangers[4], 256);
    assert_int_equal(counts().displaced, 3);
    close(another), close(strangers[3]), close(strangers[4]), close(friend);
}

static void strangers_that_fill_the_table_make_room_for_the_next(void **state) {
    (void)state;
    s.config.pipes_max = 3, s.config.unauthenticated_max = 3; /* nothing is kept for friends */
    reopen();
    int strangers[3];
    for (int i = 0; i < 3; i++) strangers[i] = greet();
    const int refused = dial();
    assert_true(is_hung_up(strangers[0])); /* its place is the next one's */
    assert_true(is_hung_up(refused));
    close(refused);
    const int friend = friend_of();
    exchange_one(strangers[1], 256);
    exchange_one(strangers[2], 256);
    assert_int_equal(counts().refused, 1);
    for (int i = 0; i < 3; i++) close(strangers[i]);
    the_server_still_serves();
    close(friend);
}

/* Two friends hold their places whatever comes, and by default most places are theirs. */
static void a_quarter_is_for_strangers_unless_it_is_said(void **state) {
    (void)state;
    s.config.pipes_max = 8, s.config.unauthenticated_max = 0;
    reopen();
    int friends[5];
    for (int i = 0; i < 5; i++) friends[i] = friend_of();
    for (int i = 0; i < 20; i++) {
        const int fd = dial();
        close(fd);
    }
    const int a = greet(), b = greet();
    for (int i = 0; i < 5; i++) exchange_one(friends[i], 256);
    assert_int_equal(s.transport.unauthenticated_max, 2);
    close(a), close(b);
    for (int i = 0; i < 5; i++) close(friends[i]);
}

static void who_shows_no_token_in_time_is_hung_up_on(void **state) {
    (void)state;
    s.config.unauthenticated_timeout_ms = 2000;
    s.config.control = s.config.bulk;
    s.config.bulk.count = 0;
    reopen();
    const int friend = friend_of(), talker = greet(), silent = silent_one();
    exchange_one(talker, 256); /* what needs no token */
    assert_true(is_hung_up(silent));
    assert_true(is_hung_up(talker));
    exchange_one(friend, 256);
    assert_int_equal(counts().expired, 2);
    assert_int_equal(counts().open, 1);
    close(friend), close(talker), close(silent);
}

/* The first message may be large, and slow. */
static void on_bulk_addresses_the_time_is_that_of_idle_connections(void **state) {
    (void)state;
    s.config.unauthenticated_timeout_ms = 100;
    s.config.control.count = 1;
    snprintf(s.config.control.item[0], sizeof s.config.control.item[0], "ipc://%s/control", s.folder);
    reopen();
    const int on_bulk = greet();
    char bulk[96];
    memcpy(bulk, s.path, sizeof bulk);
    snprintf(s.path, sizeof s.path, "%s/control", s.folder);
    const int on_control = silent_one();
    assert_true(is_hung_up(on_control));
    exchange_one(on_bulk, 256);
    assert_int_equal(counts().expired, 1);
    close(on_bulk), close(on_control);
    (void)unlink(s.path);
    memcpy(s.path, bulk, sizeof bulk);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(one_stranger_more_takes_the_place_of_the_oldest),
        TEST(strangers_that_fill_the_table_make_room_for_the_next),
        TEST(a_quarter_is_for_strangers_unless_it_is_said),
        TEST(who_shows_no_token_in_time_is_hung_up_on),
        TEST(on_bulk_addresses_the_time_is_that_of_idle_connections),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
