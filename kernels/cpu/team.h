/*
 * A stream's team: the stream's own thread, the owner, and width - 1 members that live as long as the team.
 *
 * How a launch's tasks are handed out: each thread first takes a run of neighbouring tasks of its own, the
 * same in every launch of the same shape, so that what one kernel leaves in a core's cache is what the next
 * one finds there; a thread that is done takes from the others' runs. Nobody waits for a member that has not
 * come: a launch is over when its tasks are, so one that the system has taken away holds up the task it has,
 * and one that sleeps holds up nothing.
 *
 * How threads wait: for some microseconds they look, then they sleep (a futex). Launches of a replay follow
 * each other faster than that, so members are awake for a whole replay; where others want the cores, a thread
 * that sleeps gets one sooner when it is woken than one that has used up its share by looking. A member that
 * wakes up on its owner's core moves to another one that it may use: there the two would only take turns.
 *
 * Tasks may be nested (a task that hands out tasks runs them itself). A team is not carried over a fork: the
 * child has none of its threads, nor its stream's.
 */
#ifndef CKKS_CPU_TEAM_H
#define CKKS_CPU_TEAM_H

#include "kernels/base/status.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define TEAM_WIDTH_MAX 1024u

typedef struct team team;
typedef void (*team_task)(const void *context, uint32_t task);

/* team_create starts width - 1 threads, width 1 .. TEAM_WIDTH_MAX; the caller owns *out and returns it with
 * team_destroy, which accepts NULL and joins them; no launch may be running. CKKS_RESOURCE_EXHAUSTED when
 * there is no memory or no thread: none is left behind. */
ckks_status team_create(team **out, uint32_t width, ckks_error *err);
void team_destroy(team *t);

/* Starts a thread that takes no signals: the process's are for its own threads. `name`: at most 15
 * characters. 0 on success. */
int team_thread_start(pthread_t *out, const char *name, void *(*run)(void *), void *argument);
/* Builds with CKKS_FAULT_INJECTION only: the nth start of a thread from now fails (0 = none). */
void team_fault_thread(uint32_t nth);

/* team_enter makes `t` the calling thread's team (NULL: none) and returns the one it had. One thread at a
 * time may be in a team. */
team *team_enter(team *t);
/* team_rouse: work is about to come: members that sleep wake up and look for it. Any thread; does not block.
 */
void team_rouse(team *t);

/* team_fit: launches of the calling thread's team run on at most `width` threads (at least 1) from now on.
 * Between launches; does nothing without a team. */
void team_fit(uint32_t width);
/* team_width: threads that a launch from here may run on; 1 without a team and inside a task. */
uint32_t team_width(void);
/* team_member: which of them runs this: 0 .. width - 1. The owner is 0. */
uint32_t team_member(void);

/* team_each runs tasks 0 .. count - 1, count below 2^26, and returns when all are done: on the calling thread
 * and in this order unless is_team, else on its team, in any order. What the caller wrote before is seen by
 * the tasks, and what they wrote by the caller. */
void team_each(uint32_t count, bool is_team, team_task run, const void *context);
/* team_each_shared: team_each for tasks that use team_share: threads that find no task, or no more, help
 * those that are at one, even if there is only one. */
void team_each_shared(uint32_t count, bool is_team, team_task run, const void *context);
/* team_share, inside a task: runs pieces 0 .. count - 1, count below 2^26, on the calling thread and on those
 * of its team that have nothing else to do just then, and returns when all are done. A piece may use what
 * belongs to the thread that runs it (team_member): it is in no task of its own. What was written before is
 * seen by the pieces, and what they wrote afterwards. Outside tasks, and inside pieces, on the calling thread
 * alone. */
void team_share(uint32_t count, team_task run, const void *context);

#endif
