/* Waiting awake: what a thread does between two looks at what it waits for. */
#ifndef CKKS_BASE_RELAX_H
#define CKKS_BASE_RELAX_H

static inline void cpu_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
