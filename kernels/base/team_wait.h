/*
 * How the OpenMP teams of host code wait (encoding, encryption, keys; kernels on a CPU device have teams of
 * their own, cpu/team.h). GNU's runtime lets an idle team spin for milliseconds before it sleeps: a client on
 * the daemon's own machine would take that time from whoever computes its answer. The runtime reads its
 * setting before main and offers no call to change it, so the program sets the variable and executes itself
 * again, once. The daemon does without: it is a host only while it loads a model.
 */
#ifndef CKKS_BASE_TEAM_WAIT_H
#define CKKS_BASE_TEAM_WAIT_H

/* team_wait_briefly: the first call in main, before threads and open files. Does nothing where the
 * environment already chooses (OMP_WAIT_POLICY or GOMP_SPINCOUNT) or the runtime is another one that can be
 * told. Executes the program again with the same arguments, or returns if that cannot be done: waiting then
 * costs more, nothing else changes. */
void team_wait_briefly(char **argv);

#endif
