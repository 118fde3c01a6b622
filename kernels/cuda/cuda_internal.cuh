/*
 * What the CUDA back end's files share: error checking, resident tables, arithmetic paths.
 *
 * Two word-equal data paths. PathF64 keeps residues as centred doubles and multiplies by FMA (cards with
 * full-rate FP64); PathI64 keeps lazy 64-bit residues with Shoup and Barrett (all others). Kernels are
 * templates over the path.
 *
 * FP64 bounds (q < 2^50), asserted in debug builds (CKKS_DEBUG_BOUNDS; convert.cuh has those of a sum):
 *   multiply   |x| <= 4q, |w| <= q/2 (or |x| <= q, |w| < q): the quotient b is off by at most 0.85, |result|
 * <= 0.85 q forward    a group of at most 4 stages starts reduced (|x| <= q/2 + 1): ends within q/2 + 4 *
 * 0.85 q < 4q inverse    sums are reduced after every second stage and at the end of a group: |x| <= 3.4 q
 * inside
 */
#ifndef CKKS_CUDA_INTERNAL_CUH
#define CKKS_CUDA_INTERNAL_CUH

#include <cuda_runtime.h>

extern "C" {
#include "kernels/device_backend.h"
#include "kernels/scheme/internal.h"
}

typedef uint64_t u64;
typedef uint32_t u32;

/* ---- host side ---- */

/* cuda_check turns a runtime status into ours, naming the call; sticky errors are said to be so. */
ckks_status cuda_check(cudaError_t status, const char *call, ckks_error *err);
#define CUDA_TRY(call)                                                                                       \
    do {                                                                                                     \
        const ckks_status cuda_try_status = cuda_check((call), #call, err);                                  \
        if (cuda_try_status != CKKS_OK) return cuda_try_status;                                              \
    } while (0)

struct GpuPrime {
    u64 q;
    u64 barrett_high, barrett_low; /* floor(2^128 / q) */
    double qd, q_inverse;
    u32 bits, pad;
    u64 n_inverse;
    u64 p_product; /* product of all p mod q */
};

/* One base conversion's constants, all canonical. hat_inverse_n has N^-1 folded in. */
struct GpuConversion {
    u32 source_count, pad;
    u32 source[CKKS_DIGIT_SIZE_MAX + 2];
    u64 hat_inverse_n[CKKS_DIGIT_SIZE_MAX + 2];
    const u64 *hat;             /* [source][prime] */
    const u64 *product;         /* [prime] */
    const u64 *product_inverse; /* [prime] */
};

/* Passed to kernels by value. */
struct GpuTables {
    u32 log_n, q_count, p_count, digit_size, dnum, prime_count;
    const GpuPrime *prime;
    const double *forward_f64, *inverse_f64;     /* [prime][N], centred */
    const ulonglong2 *forward_i64, *inverse_i64; /* [prime][N], value and Shoup quotient */
    const GpuConversion *mod_up;                 /* [level][digit] */
    const GpuConversion *mod_down;               /* [level][with_rescale] */
    const GpuConversion *rescale;                /* [level] */
};

struct CudaTables {
    GpuTables device;
    bool is_f64;
    void *memory[16];
    u32 memory_count;
};

static inline const CudaTables *cuda_tables(const device_tables *tables) {
    return static_cast<const CudaTables *>(tables->self);
}

ckks_status cuda_tables_create(void *self, device_tables *tables, ckks_error *err);
void cuda_tables_destroy(void *self, device_tables *tables);

/* A launcher enqueues one kernel of the catalogue on `stream` (which may be capturing). */
typedef cudaError_t (*cuda_launcher)(cudaStream_t stream, const void *arguments);
extern const cuda_launcher cuda_launchers[KERNEL_COUNT];

/* Overlapped launches pay up to this ring degree (notebook); CKKSD_CUDA_OVERLAP=0 switches them off. */
extern u32 gpu_overlap_log_n_max;
/* Was the last thing that this thread enqueued on the stream at hand a kernel of ours? Only then may the next
 * one start early: it waits for kernels, not for copies. */
extern thread_local bool gpu_may_overlap;

cudaError_t cuda_pointwise(cudaStream_t stream, kernel_id kernel, const void *arguments);
cudaError_t cuda_scalars(cudaStream_t stream, kernel_id kernel, const void *arguments);
cudaError_t cuda_ntt(cudaStream_t stream, const kernel_unary_args *a, bool inverse);
cudaError_t cuda_automorphism(cudaStream_t stream, const kernel_automorphism_args *a);
cudaError_t cuda_mod_up(cudaStream_t stream, const kernel_mod_up_args *a);
cudaError_t cuda_mod_down(cudaStream_t stream, const kernel_mod_down_args *a);
cudaError_t cuda_rescale(cudaStream_t stream, const kernel_rescale_args *a);
cudaError_t cuda_switch_product(cudaStream_t stream, const kernel_switch_product_args *a);
/* is_begun: cuda_product_begin did its first pass. */
cudaError_t cuda_key_switch(cudaStream_t stream, const kernel_key_switch_args *a, bool is_begun);
/* Is `product` a MULTIPLY or SQUARE whose last components are what `key_switch`, right behind it, switches?
 * Then cuda_product_begin is both the product and the first pass of the key switch. */
bool cuda_product_begins(const device_operation *product, const device_operation *key_switch);
cudaError_t cuda_product_begin(cudaStream_t stream, const device_operation *product,
                               const device_operation *key_switch);
cudaError_t cuda_key_product(cudaStream_t stream, const kernel_key_product_args *a);
cudaError_t cuda_narrow_key(cudaStream_t stream, const kernel_narrow_key_args *a);
cudaError_t cuda_diagonal_sum(cudaStream_t stream, const kernel_diagonal_sum_args *a);
cudaError_t cuda_permute_sum(cudaStream_t stream, const kernel_permute_sum_args *a);
cudaError_t cuda_matrix_product(cudaStream_t stream, const kernel_matrix_product_args *a);
cudaError_t cuda_unpack(cudaStream_t stream, const kernel_unpack_args *a);
cudaError_t cuda_expand(cudaStream_t stream, const kernel_expand_args *a);
cudaError_t cuda_check_nonzero(cudaStream_t stream, const kernel_check_nonzero_args *a);
cudaError_t cuda_pack(cudaStream_t stream, const kernel_pack_args *a);
cudaError_t cuda_sample(cudaStream_t stream, const kernel_sample_args *a);
cudaError_t cuda_counter_advance(cudaStream_t stream, const kernel_counter_args *a);

/* ---- device side ---- */

#if defined __CUDACC__ || defined CKKS_CUDA_EMULATED

#include "kernels/cuda/ptx.cuh"

#ifdef CKKS_DEBUG_BOUNDS
#define GPU_BOUND(condition)                                                                                 \
    do {                                                                                                     \
        if (!(condition)) __trap();                                                                          \
    } while (0)
#else
#define GPU_BOUND(condition) ((void)0)
#endif

__device__ __forceinline__ u64 gpu_add(u64 a, u64 b, u64 q) {
    const u64 s = a + b;
    return s >= q ? s - q : s;
}
__device__ __forceinline__ u64 gpu_sub(u64 a, u64 b, u64 q) {
    return a >= b ? a - b : a - b + q;
}

/* any 128-bit value; see mod_reduce128 */
__device__ __forceinline__ u64 gpu_reduce128(u64 high, u64 low, const GpuPrime &m) {
    /* q < 2^50 and quotient below 2^64 * 2^15: only the low word of the quotient matters */
    const u64 a = __umul64hi(low, m.barrett_low);
    const u64 b_low = low * m.barrett_high, b_high = __umul64hi(low, m.barrett_high);
    const u64 c_low = high * m.barrett_low, c_high = __umul64hi(high, m.barrett_low);
    u64 s = a + b_low, carry = s < a;
    const u64 s2 = s + c_low;
    carry += s2 < s;
    const u64 quotient = high * m.barrett_high + b_high + c_high + carry;
    u64 r = low - quotient * m.q;
    r = r >= m.q ? r - m.q : r;
    return r >= m.q ? r - m.q : r;
}
__device__ __forceinline__ u64 gpu_mul(u64 a, u64 b, const GpuPrime &m) {
    return gpu_reduce128(__umul64hi(a, b), a * b, m);
}

/* position that the automorphism g reads for evaluation position i */
__device__ __forceinline__ u32 gpu_permute(u32 i, u32 g, u32 log_n) {
    const u32 e = 2 * (__brev(i) >> (32 - log_n)) + 1;
    const u32 mask = (2u << log_n) - 1;
    return __brev(((e * g) & mask) >> 1) >> (32 - log_n);
}

/*
 * Loads that stay where they are written, before the wait for the kernel ahead or before the first use of
 * any: the compiler sinks plain ones to their uses, to save registers, and then their times add up.
 * gpu_constant: of what no kernel writes.
 */
__device__ __forceinline__ double gpu_constant(const double *from) {
    return ptx_load_constant(from);
}
__device__ __forceinline__ u64 gpu_word(const u64 *from) {
    return ptx_load(from);
}

/* A sector of a table into the first-level cache, there before what follows: for what is read behind the wait
 * for the kernel ahead. */
__device__ __forceinline__ void gpu_touch(const void *from) {
    ptx_touch(from);
}
const u32 gpu_sector = 4; /* doubles */

/* Can this back end's kernels read the key at all? */
__device__ __forceinline__ bool gpu_has_key(const key_table_entry &entry, u32 q_limbs) {
    return entry.address != 0 && entry.q_limb_count >= q_limbs && entry.layout != KEY_NARROW;
}

struct PathF64 {
    typedef double T;
    typedef double W; /* twiddle */
    typedef double C; /* constant */
    double q, qi;

    __device__ __forceinline__ explicit PathF64(const GpuPrime &m) : q(m.qd), qi(m.q_inverse) {}
    __device__ __forceinline__ PathF64(double prime, double inverse) : q(prime), qi(inverse) {}
    /* exact for x < 2^52: the exponent of 2^52 or-ed in, then subtracted */
    static __device__ __forceinline__ double from_word(u64 x) {
        return __longlong_as_double((long long)(x | 0x4330000000000000ull)) - 4503599627370496.0;
    }
    static __device__ __forceinline__ u64 to_word(double x) {
        return (u64)__double_as_longlong(x + 4503599627370496.0) & 0xfffffffffffffull;
    }
    static __device__ __forceinline__ double round(double x) {
        return __dadd_rn(__dadd_rn(x, 6755399441055744.0), -6755399441055744.0);
    }
    __device__ __forceinline__ double mul(double x, double w) const {
        GPU_BOUND(fabs(x) * fabs(w) < q * 2251799813685248.0);
        const double h = __dmul_rn(x, w);
        const double l = __fma_rn(x, w, -h);
        const double b = __dadd_rn(__fma_rn(x, __dmul_rn(w, qi), 6755399441055744.0), -6755399441055744.0);
        const double r = __dadd_rn(__fma_rn(-b, q, h), l);
        GPU_BOUND(fabs(r) <= 0.86 * q);
        return r;
    }
    /* |x| < 2^53 an integer, |x| <= 2^51 q -> |result| <= q/2 + 1 */
    __device__ __forceinline__ double reduce(double x) const {
        return __fma_rn(-round(__dmul_rn(x, qi)), q, x);
    }
    /* |x| < 1.5 q -> centred representative in [-(q-1)/2, (q-1)/2] */
    __device__ __forceinline__ double centre(double x) const {
        const double half = 0.5 * q;
        x = x > half ? x - q : x;
        return x < -half ? x + q : x;
    }
    /* |x| < q -> canonical word */
    __device__ __forceinline__ u64 canonical(double x) const { return to_word(x < 0.0 ? x + q : x); }
    __device__ __forceinline__ double load(u64 word) const {
        return from_word(word);
    } /* canonical word -> [0, q) */
    __device__ __forceinline__ C constant(u64 word) const { return centre(from_word(word)); }
    static __device__ __forceinline__ double raw(u64 word) { return __longlong_as_double((long long)word); }
    static __device__ __forceinline__ u64 unraw(double x) { return (u64)__double_as_longlong(x); }
    /* |x| <= 4q, constant centred -> canonical word / centred value */
    __device__ __forceinline__ u64 mul_canonical(double x, C w) const { return canonical(mul(x, w)); }
    __device__ __forceinline__ u64 finish(double x) const { return canonical(reduce(x)); }
    static __device__ __forceinline__ const W *twiddles(const GpuTables &t, bool inverse, u32 prime) {
        return (inverse ? t.inverse_f64 : t.forward_f64) + ((size_t)prime << t.log_n);
    }
    /* COUNT of a table, a power of two, from a multiple of it */
    template <int COUNT> static __device__ __forceinline__ void twiddles_load(W *w, const W *from) {
        if constexpr (COUNT == 1) {
            w[0] = gpu_constant(from);
        } else {
#pragma unroll
            for (int b = 0; b < COUNT; b += 2) ptx_load_constants(w[b], w[b + 1], from + b);
        }
    }
    __device__ __forceinline__ void begin_forward(double &x) const {
        x = reduce(x);
    }
    __device__ __forceinline__ void butterfly_forward(double &u, double &v, W w) const {
        const double p = mul(v, w);
        v = u - p;
        u = u + p;
    }
    __device__ __forceinline__ void butterfly_inverse(double &u, double &v, W w) const {
        const double d = u - v;
        u = u + v;
        v = mul(d, w);
    }
    __device__ __forceinline__ void reduce_sum(double &u) const {
        u = reduce(u);
    }
    /* sums of products of canonical words */
    __device__ __forceinline__ void sum_add(double &sum, u64 a, u64 b) const {
        sum += mul(load(a), load(b));
    }
    __device__ __forceinline__ void sum_fold(double &sum) const {
        sum = reduce(sum);
    }
    __device__ __forceinline__ u64 sum_finish(double sum) const {
        return finish(sum);
    }
    static const u32 sum_terms = 4; /* products between two folds: 4 * 0.85 q + q/2 < 2^52 */
    typedef double Accumulator;
    static __device__ __forceinline__ double sum_zero() {
        return 0.0;
    }
};

struct PathI64 {
    typedef u64 T;
    typedef ulonglong2 W; /* twiddle: value, Shoup quotient */
    typedef u64 C;        /* constant */
    GpuPrime m;

    __device__ __forceinline__ explicit PathI64(const GpuPrime &prime) : m(prime) {}
    __device__ __forceinline__ u64 mul_lazy(u64 x, W w) const {
        return x * w.x - __umul64hi(x, w.y) * m.q;
    } /* [0, 2q) */
    __device__ __forceinline__ u64 load(u64 word) const { return word; }
    static __device__ __forceinline__ u64 raw(u64 word) { return word; }
    static __device__ __forceinline__ u64 unraw(u64 x) { return x; }
    static __device__ __forceinline__ const W *twiddles(const GpuTables &t, bool inverse, u32 prime) {
        return (inverse ? t.inverse_i64 : t.forward_i64) + ((size_t)prime << t.log_n);
    }
    template <int COUNT> static __device__ __forceinline__ void twiddles_load(W *w, const W *from) {
#pragma unroll
        for (int b = 0; b < COUNT; b++) w[b] = __ldg(from + b);
    }
    __device__ __forceinline__ u64 fold2(u64 x) const {
        return x >= 2 * m.q ? x - 2 * m.q : x;
    }
    /* forward: values in [0, 4q) */
    __device__ __forceinline__ void begin_forward(u64 &) const {}
    __device__ __forceinline__ void butterfly_forward(u64 &u, u64 &v, W w) const {
        const u64 a = fold2(u), p = mul_lazy(v, w);
        u = a + p;
        v = a - p + 2 * m.q;
    }
    /* inverse: values in [0, 2q) */
    __device__ __forceinline__ void butterfly_inverse(u64 &u, u64 &v, W w) const {
        const u64 a = u, b = v;
        u = fold2(a + b);
        v = mul_lazy(a - b + 2 * m.q, w);
    }
    __device__ __forceinline__ void reduce_sum(u64 &) const {}
    __device__ __forceinline__ u64 finish(u64 x) const {
        x = fold2(x);
        return x >= m.q ? x - m.q : x;
    }
    __device__ __forceinline__ u64 mul_canonical(u64 x, u64 w) const {
        return gpu_mul(x, w, m);
    }
    __device__ __forceinline__ u64 constant(u64 word) const {
        return word;
    }
    struct Accumulator {
        u64 high, low;
    };
    static __device__ __forceinline__ Accumulator sum_zero() {
        return Accumulator{0, 0};
    }
    __device__ __forceinline__ void sum_add(Accumulator &sum, u64 a, u64 b) const {
        const u64 low = a * b, s = sum.low + low;
        sum.high += __umul64hi(a, b) + (s < low);
        sum.low = s;
    }
    __device__ __forceinline__ void sum_fold(Accumulator &) const {}
    __device__ __forceinline__ u64 sum_finish(const Accumulator &sum) const {
        return gpu_reduce128(sum.high, sum.low, m);
    }
    static const u32 sum_terms = 1u << 20;
};

/*
 * Programmatic dependent launch: a kernel may start while the one before it in its stream (or graph chain) is
 * finishing. Every kernel of this back end calls gpu_wait before it touches memory that another kernel may
 * write, in every thread, so that the end of one kernel still implies the end of all before it.
 */
__device__ __forceinline__ void gpu_wait() {
    ptx_wait();
}
__device__ __forceinline__ void gpu_release_next() {
    ptx_launch_dependents();
}

/*
 * gpu_launch enqueues a kernel, overlapping its start with the end of the one before. In small rings every
 * kernel asks for the same split of a multiprocessor's memory, since two kernels with different splits never
 * share one (percent for shared memory, by measurement; the notebook has the figures).
 */
static inline u32 gpu_shared_percent(u32 log_n) {
    return log_n <= 15 ? 65 : 0; /* 0: as the driver sees fit */
}
template <class... Parameters, class... Arguments>
static cudaError_t gpu_launch(void (*kernel)(Parameters...), dim3 grid, u32 threads, cudaStream_t stream,
                              u32 log_n, Arguments... arguments) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attributes[2] = {};
    config.gridDim = grid, config.blockDim = dim3(threads), config.stream = stream;
    config.attrs = attributes;
    if (gpu_may_overlap && log_n <= gpu_overlap_log_n_max) {
        cudaLaunchAttribute &overlap = attributes[config.numAttrs++];
        overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        overlap.val.programmaticStreamSerializationAllowed = 1;
    }
#if CUDART_VERSION >= 13000
    if (gpu_shared_percent(log_n) != 0 && gpu_overlap_log_n_max != 0) {
        cudaLaunchAttribute &split = attributes[config.numAttrs++];
        split.id = cudaLaunchAttributePreferredSharedMemoryCarveout;
        split.val.sharedMemCarveout = gpu_shared_percent(log_n);
    }
#endif
    gpu_may_overlap = true;
    return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

/* Blocks of this kernel that the card runs at a time. */
static inline u32 gpu_places(const void *kernel, int threads) {
    int device = 0, processors = 0, blocks = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, 0) != cudaSuccess ||
        processors < 1 || blocks < 1)
        return 396;
    return (u32)(processors * blocks);
}

/* LAUNCH_PATH picks the data path of this card. */
#define LAUNCH_PATH(host_tables, KERNEL, grid, block, stream, ...)                                           \
    return (host_tables)->is_f64 ? gpu_launch(KERNEL<PathF64>, (grid), (block), (stream),                    \
                                              (host_tables)->device.log_n, __VA_ARGS__)                      \
                                 : gpu_launch(KERNEL<PathI64>, (grid), (block), (stream),                    \
                                              (host_tables)->device.log_n, __VA_ARGS__)

#endif /* __CUDACC__ || CKKS_CUDA_EMULATED */
#endif
