/* The instructions of ptx.cuh, as C++: what each is defined to do. */
#ifndef CKKS_CUDA_EMULATED_PTX_CUH
#define CKKS_CUDA_EMULATED_PTX_CUH

#include <cuda_runtime.h>

static inline double ptx_load_constant(const double *from) {
    return *from;
}
static inline void ptx_load_constants(double &a, double &b, const double *from) {
    const double2 pair = *reinterpret_cast<const double2 *>(from); /* aligned as the instruction demands */
    a = pair.x, b = pair.y;
}
static inline uint64_t ptx_load(const uint64_t *from) {
    return *from;
}
static inline void ptx_touch(const void *from) {
    (void)*static_cast<const volatile uint64_t *>(from);
}
static inline void ptx_prefetch(const void *) {}

/* threads.cpp: the kernel before has ended once this returns */
void emulated_wait();
static inline void ptx_wait() {
    emulated_wait();
}
static inline void ptx_launch_dependents() {}

/* threads.cpp: done when they are begun or when they are waited for, by turns */
void emulated_copy(void *to, const void *from, unsigned bytes);
void emulated_copy_commit();
void emulated_copy_wait(unsigned pending);
static inline void ptx_copy_async8(void *to, const void *from) {
    emulated_copy(to, from, 8);
}
static inline uint64_t ptx_evict_first() {
    return 0;
}
static inline void ptx_copy_async8(void *to, const void *from, uint64_t) {
    emulated_copy(to, from, 8);
}
static inline void ptx_copy_async16(void *to, const void *from, uint64_t) {
    emulated_copy(to, from, 16);
}
static inline void ptx_copy_commit() {
    emulated_copy_commit();
}
template <int PENDING> static void ptx_copy_wait() {
    emulated_copy_wait(PENDING);
}

/* Each lane gives its part of a and b and makes its part of c: lane l has a at rows l / 4 and l / 4 + 8,
 * columns l % 4 and l % 4 + 4, b at those columns as rows and column l / 4. */
static inline void ptx_matrix_step(double (&c)[4], const double (&a)[4], const double (&b)[2]) {
    const double given[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    const unsigned char(*all)[64] = emulated_exchange(given, sizeof given, "mma.sync");
    const auto of = [all](unsigned lane, unsigned which) {
        double x;
        memcpy(&x, all[lane] + 8 * which, sizeof x);
        return x;
    };
    const unsigned row = emulated_lane() >> 2, column = 2 * (emulated_lane() & 3);
    for (unsigned i = 0; i < 4; i++) {
        double sum = c[i];
        for (unsigned k = 0; k < 8; k++) {
            const double left = of(4 * row + (k & 3), (i >> 1) + 2 * (k >> 2));
            const double right = of(4 * (column + (i & 1)) + (k & 3), 4 + (k >> 2));
            sum = __fma_rn(left, right, sum);
        }
        c[i] = sum;
    }
}

#endif
