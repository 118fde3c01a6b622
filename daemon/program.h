/*
 * What slots do with programs: capture and self-test a model, run a request, take a program away, bring a
 * slot back after a device error. Everything here runs on the slot's thread and may block.
 */
#ifndef CKKSD_PROGRAM_H
#define CKKSD_PROGRAM_H

#include "daemon/models.h"

/* program_bring_up: create, capture, self test. On failure the slot has no program of the model. */
ckks_status program_bring_up(slot *s, model *m, int32_t warmup, ckks_error *err);
void program_take_down(slot *s, const model *m);

#endif
