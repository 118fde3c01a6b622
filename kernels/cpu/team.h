/*
 * How a launch's tasks are handed to a team: each thread first takes a run of neighbouring tasks of its own,
 * the same in every launch of the same shape, so that what one kernel leaves in a core's cache is what the
 * next one finds there; a thread that is done takes from the others' runs, so that one that the system has
 * taken away holds up a task, not half a launch.
 */
#ifndef CKKS_CPU_TEAM_H
#define CKKS_CPU_TEAM_H

#include <stdbool.h>
#include <stdint.h>

typedef void (*team_task)(const void *context, uint32_t task);

/* team_each runs tasks 0 .. count - 1, count below 2^26, and returns when all are done: on the calling thread
 * and in this order unless is_team, else on a team as wide as the calling thread's setting, in any order. */
void team_each(uint32_t count, bool is_team, team_task run, const void *context);

#endif
