/*
 * A data race on purpose, between two threads: `make tsan` fails unless ThreadSanitizer reports it.
 */
#include <pthread.h>
#include <stdio.h>

/* volatile: a thousand accesses each, and not one that could be at the very moment of the other's */
static volatile int shared_counter;

static void *bump(void *unused) {
    (void)unused;
    for (int i = 0; i < 1000; i++) shared_counter++;
    return NULL;
}

int main(void) {
    pthread_t other;
    if (pthread_create(&other, NULL, bump, NULL) != 0) return 1;
    bump(NULL);
    pthread_join(other, NULL);
    printf("%d\n", shared_counter);
    return 0;
}
