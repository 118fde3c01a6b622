/*
 * The catalogue of device kernels: what each computes, word for word. A back end may run one launch as one
 * kernel, as several, or fuse inside; only the words count. The slow definition of each is in kernels/cpu
 * (scalar), the oracle of every faster version.
 *
 * All words are u64. Inputs that are values hold canonical residues in [0, q); so do all outputs. Polynomials
 * are in the evaluation domain unless the kernel says otherwise. Index lists that a kernel reads on the
 * device are given twice: the device copy that it reads and the host copy that the front end derives accesses
 * from; both must stay alive as long as a recording that uses them.
 *
 * Inexact steps are defined by the *centred* representative: for a source basis D = prod q_i and residues
 * x_i, y_i  = x_i * (D/q_i)^-1 mod q_i            (canonical) c_j  = sum_i y_i * (D/q_i) - #{i : y_i > q_i/2}
 * * D      mod target prime j
 * ("base conversion"). Nothing is added before it, so conversion commutes with automorphisms.
 */
#ifndef CKKS_KERNELS_H
#define CKKS_KERNELS_H

#include "kernels/value.h"

#ifdef __cplusplus
#define _Static_assert static_assert
#endif

/* A parameter set made resident on one device (device_tables_acquire). */
typedef struct device_tables device_tables;

/* Limb i is prime q_first + i of q for i < q_count, and p[i - q_count] after that. */
typedef struct kernel_basis {
    uint32_t q_first;
    uint32_t q_count;
    uint32_t p_count;
} kernel_basis;
static inline uint32_t basis_limb_count(kernel_basis b) {
    return b.q_count + b.p_count;
}
/* index in the full prime list (all q, then all p) */
static inline uint32_t basis_prime(kernel_basis b, uint32_t limb, uint32_t q_count_full) {
    return limb < b.q_count ? b.q_first + limb : q_count_full + (limb - b.q_count);
}

/* Polynomials in device memory: component c, limb i starts at words + (c * component_stride + i) * N,
 * component_stride in limbs (at least the limb count). */
typedef struct kernel_poly {
    uint64_t *words;
    uint32_t component_count;
    uint32_t component_stride;
    kernel_basis basis;
} kernel_poly;

/* The key table: recorded kernels read keys through entries at a fixed device address, so that another
 * resident key set is an ordered write of this table, never a new recording. A key's words are
 * [digit][2][limb][N], digits as many as its level has, limbs q[0..key_level] then all p; component 0 is b =
 * -a*s + e + gadget, component 1 is a. A key may be of a higher level than the launch that uses it. For the
 * public key: [2][q[0..level]][N].
 * A device may want the residues narrow (device_key_layout), limbs where they are:
 *   KEY_NARROW  the residues of each limb one after the other in key_residue_bytes bytes, little-endian, from
 *               the start of the limb;
 *   KEY_SPLIT   each 256 residues where their words were: the low 32 bits of each, behind them the next 16
 *               bits of each, behind those the highest two (primes are below 2^50), four residues a byte.
 * What is behind them is nobody's. Kernels take a key in a layout that their device does not keep as
 * absent. */
typedef enum key_layout { KEY_WORDS, KEY_NARROW, KEY_SPLIT } key_layout;
typedef struct key_table_entry {
    uint64_t address;      /* device address of the words; 0 = absent */
    uint32_t q_limb_count; /* key level + 1 */
    uint32_t layout;       /* key_layout */
} key_table_entry;
_Static_assert(sizeof(key_table_entry) == 16, "device layout");
/* KEY_SPLIT: residues that lie together, and where their parts begin, in bytes */
#define KEY_SPLIT_RESIDUES 256u
#define KEY_SPLIT_MIDDLE   1024u
#define KEY_SPLIT_TOP      1536u
/* of a residue of a KEY_NARROW key: 4 to 7 */
static inline uint32_t key_residue_bytes(uint64_t prime) {
    const uint32_t bytes = (71u - (uint32_t)__builtin_clzll(prime)) / 8;
    return bytes < 4 ? 4 : bytes;
}

/*
 * X(ID, argument struct)
 */
#define KERNEL_TABLE(X)                                                                                      \
    X(KERNEL_COPY, kernel_unary_args)                /* out = a; out may have fewer limbs (drop level) */    \
    X(KERNEL_NEGATE, kernel_unary_args)              /* out = -a */                                          \
    X(KERNEL_ADD, kernel_binary_args)                /* out = a + b; a component one side lacks counts 0 */  \
    X(KERNEL_SUBTRACT, kernel_binary_args)           /* out = a - b */                                       \
    X(KERNEL_ADD_PLAIN, kernel_binary_args)          /* component 0 += b (1 component), others copied */     \
    X(KERNEL_MULTIPLY_PLAIN, kernel_binary_args)     /* each component times b (1 component) */              \
    X(KERNEL_ADD_SCALARS, kernel_scalars_args)       /* component 0 += scalar[limb] at every position */     \
    X(KERNEL_MULTIPLY_SCALARS, kernel_scalars_args)  /* each limb times scalar[limb] */                      \
    X(KERNEL_MULTIPLY, kernel_binary_args)           /* 2 x 2 -> 3 components: a0b0, a0b1 + a1b0, a1b1; */   \
                                                     /* 2n x 2n -> 3n: n ciphertexts one after the other */  \
    X(KERNEL_SQUARE, kernel_unary_args)              /* 2 -> 3 components: the words of MULTIPLY(a, a) */    \
    X(KERNEL_NTT_FORWARD, kernel_unary_args)         /* coefficients -> evaluations; in place allowed */     \
    X(KERNEL_NTT_INVERSE, kernel_unary_args)         /* evaluations -> coefficients; in place allowed */     \
    X(KERNEL_AUTOMORPHISM, kernel_automorphism_args) /* out = a(X^g) */                                      \
    X(KERNEL_MOD_UP, kernel_mod_up_args)             /* digits of a polynomial, each extended to QP */       \
    X(KERNEL_KEY_PRODUCT, kernel_key_product_args)   /* sum over digits of digit x key, for many keys */     \
    X(KERNEL_SWITCH_PRODUCT, kernel_switch_product_args)     /* MOD_UP and KEY_PRODUCT, digits never seen */ \
    X(KERNEL_MOD_DOWN, kernel_mod_down_args)                 /* divide by P, or by P * q_l; QP -> Q */       \
    X(KERNEL_KEY_SWITCH, kernel_key_switch_args)             /* MOD_UP, KEY_PRODUCT and MOD_DOWN */          \
    X(KERNEL_HOISTED_SWITCH, kernel_hoisted_switch_args)     /* KEY_SWITCH under many keys, one MOD_UP */    \
    X(KERNEL_RESCALE, kernel_rescale_args)                   /* divide by q_l */                             \
    X(KERNEL_MULTIPLY_RESCALE, kernel_multiply_rescale_args) /* RESCALE of MULTIPLY_PLAIN */                 \
    X(KERNEL_DIAGONAL_SUM, kernel_diagonal_sum_args) /* sums of plaintext x ciphertext over a sparse list */ \
    X(KERNEL_PERMUTE_SUM, kernel_permute_sum_args)   /* sum over a list of permuted polynomials */           \
    X(KERNEL_MATRIX_PRODUCT, kernel_matrix_product_args) /* clear matrix times a batch of ciphertexts */     \
    X(KERNEL_UNPACK, kernel_unpack_args) /* packed bits -> residues, range and padding check */              \
    X(KERNEL_EXPAND, kernel_expand_args) /* uniform residues from a 32-byte seed */                          \
    X(KERNEL_CHECK_NONZERO, kernel_check_nonzero_args) /* verdict bit if a component is all zero */          \
    X(KERNEL_NARROW_KEY, kernel_narrow_key_args)       /* a key from KEY_WORDS to the device's, in place */  \
    X(KERNEL_PACK, kernel_pack_args)                   /* residues -> packed bits */                         \
    X(KERNEL_SAMPLE, kernel_sample_args)           /* small noise or a ternary polynomial from a counter */  \
    X(KERNEL_COUNTER_ADVANCE, kernel_counter_args) /* counter += blocks */

typedef enum kernel_id {
#define X(id, type) id,
    KERNEL_TABLE(X)
#undef X
        KERNEL_COUNT
} kernel_id;

/* Every argument struct starts with `tables`. */

typedef struct kernel_unary_args {
    const device_tables *tables;
    kernel_poly out, a;
} kernel_unary_args;

typedef struct kernel_binary_args {
    const device_tables *tables;
    kernel_poly out, a, b;
} kernel_binary_args;

typedef struct kernel_scalars_args {
    const device_tables *tables;
    kernel_poly out, a;
    uint64_t scalar[CKKS_PRIMES_MAX]; /* canonical, one per limb */
    uint32_t every; /* ADD: also components `every`, 2 `every`, ...: ciphertexts one after the other; 0: no */
} kernel_scalars_args;

typedef struct kernel_automorphism_args {
    const device_tables *tables;
    kernel_poly out, a;
    uint32_t galois_element; /* odd, below 2N */
} kernel_automorphism_args;

/* MOD_UP: for each of batch_count polynomials a (1 component, basis q[0..l]) and each digit d at that level,
 * the digit's residues extended to q[0..l] and all p: limbs of the digit itself copied, the others by base
 * conversion of the digit's inverse transform, then transformed. out: [batch][digit][limb][N], limbs q[0..l]
 * then p. scratch: batch_count * (l + 1) * N words. a of batch i starts at a.words + i * a_batch_stride
 * limbs. */
typedef struct kernel_mod_up_args {
    const device_tables *tables;
    uint64_t *out;
    kernel_poly a;
    uint32_t a_batch_stride; /* limbs */
    uint32_t batch_count;
    uint64_t *scratch;
} kernel_mod_up_args;

/* KEY_PRODUCT: for each item t: component c of out[t] = sum over digits d of
 *     permute_g(digits[item.digits][d]) * key[item.key][d][c]           (basis QP at level l)
 * and, where `add` is present, component 0 of out[t] += P * permute_g(add component 0) in the q limbs.
 * permute_g is the automorphism of item.galois_element (1 = none). out[t]: [2][limb][N].
 * Items with the same `out_index` are summed into one out; an out that no item names is zero.
 * `items` and `items_host` NULL: item t is {t, uniform.key, uniform.galois_element, t}, for item_count =
 * out_count = digits_count, so that a plain rotation or relinearisation needs no list in device memory.
 * is_public: the key is a public key: one digit, limbs q[0..l] alone everywhere, digits
 * [digits_count][limb][N], out[t] [2][limb][N], key [2][q_limb_count][N]; `add` must be NULL. A key that is
 * absent or of a lower level than the launch counts as zero: never a wild read. */
typedef struct key_product_item {
    uint32_t digits; /* which batch entry of `digits` */
    uint32_t key;    /* index into the key table */
    uint32_t galois_element;
    uint32_t out_index;
} key_product_item;

typedef struct kernel_key_product_args {
    const device_tables *tables;
    uint64_t *out; /* [out_count][2][limb][N], limbs q[0..l] then p */
    uint32_t out_count;
    uint32_t level;
    const uint64_t *digits; /* [digits_count][digit][limb][N], as MOD_UP leaves them */
    uint32_t digits_count;
    const uint64_t *add; /* NULL, or [digits_count][add_component_stride limbs][N], basis q[0..l]: item t adds
                            add[item.digits] */
    uint32_t add_stride; /* limbs from one batch entry to the next */
    const key_table_entry *keys; /* device */
    uint32_t key_count;
    const key_product_item *items; /* device */
    const key_product_item *items_host;
    uint32_t item_count;
    key_product_item uniform; /* where items are NULL: key and galois_element */
    uint32_t is_public;
} kernel_key_product_args;

/* SWITCH_PRODUCT: KEY_PRODUCT of MOD_UP's digits, each batch entry under one key:
 *     item t = items[t], or {t, uniform.key, uniform.galois_element, t} where `items` is NULL;
 *     out[t] = sum over digits d of permute_g(digit d of a[t]) * key[d], or, with is_sum (which takes a
 *     list), the sum of all of them in out[0].
 * A list names each entry once and in order (item.digits = t, item.out_index = t, or 0 with is_sum). a as for
 * MOD_UP; out[t]: [2][limb][N]. scratch: switch_product_scratch limbs. */
typedef struct kernel_switch_product_args {
    const device_tables *tables;
    uint64_t *out;
    kernel_poly a;
    uint32_t a_batch_stride; /* limbs */
    uint32_t batch_count;
    const key_table_entry *keys; /* device */
    uint32_t key_count;
    const key_product_item *items; /* device */
    const key_product_item *items_host;
    key_product_item uniform; /* where items are NULL: key and galois_element */
    uint32_t is_sum;
    uint64_t *scratch;
} kernel_switch_product_args;
/* q_limbs: level + 1 */
static inline uint64_t switch_product_scratch(const ckks_params *params, uint32_t q_limbs,
                                              uint32_t batch_count) {
    const uint64_t digits = params_digit_count(params, q_limbs - 1);
    return batch_count * (q_limbs + digits * (q_limbs + params->p_count));
}

/* MOD_DOWN: out = (a + P * permute_g(add) - conv) * D^-1, where D is the product of all p (and of q_l when
 * `with_rescale`), conv the base conversion of the D residues of the numerator, computed in the coefficient
 * domain. Out basis q[0..l] or q[0..l-1]. a: basis QP at level l. add (words NULL = absent; basis q[0..l])
 * has add.component_count components, the rest count as zero. batch_count values: a, out and add advance by
 * their batch strides (limbs). scratch: batch * components * (p_count + 2 * (l + 1)) * N words. */
typedef struct kernel_mod_down_args {
    const device_tables *tables;
    kernel_poly out, a, add;
    uint32_t add_galois_element;
    uint32_t batch_count;
    uint32_t out_batch_stride, a_batch_stride, add_batch_stride;
    uint32_t with_rescale;
    uint64_t *scratch;
} kernel_mod_down_args;

/* KEY_SWITCH: a whole key switch: MOD_DOWN of SWITCH_PRODUCT(a, uniform), with `add` under the same
 * automorphism. out: 2 components, basis q[0..l], or q[0..l-1] with_rescale. a: 1 component, basis q[0..l].
 * add: as for MOD_DOWN. All advance by their batch strides (limbs). scratch: key_switch_scratch limbs. */
typedef struct kernel_key_switch_args {
    const device_tables *tables;
    kernel_poly out, a, add;
    uint32_t key; /* index into the key table */
    uint32_t galois_element;
    uint32_t batch_count;
    uint32_t out_batch_stride, a_batch_stride, add_batch_stride;
    uint32_t with_rescale;
    const key_table_entry *keys; /* device */
    uint32_t key_count;
    uint64_t *scratch;
} kernel_key_switch_args;
static inline uint64_t key_switch_scratch(const ckks_params *params, uint32_t q_limbs, uint32_t batch_count) {
    return switch_product_scratch(params, q_limbs, batch_count) +
           2ull * batch_count * (q_limbs + params->p_count) +
           2ull * batch_count * (params->p_count + 2 * q_limbs);
}

/* HOISTED_SWITCH: one polynomial a (1 component, basis q[0..l]) under many keys: out[t] = MOD_DOWN of
 * KEY_PRODUCT of MOD_UP(a), over the items that name out t, with `add` (words NULL = absent; 1 component,
 * basis q[0..l]). Items name digits 0, and each out has one or more. out[t]: 2 components, basis q[0..l],
 * out_batch_stride limbs behind out[t - 1]. scratch: hoisted_switch_scratch limbs. A device may lack it
 * (device_has_kernel): the three kernels write the same words. */
typedef struct kernel_hoisted_switch_args {
    const device_tables *tables;
    kernel_poly out, a, add;
    uint32_t out_count, out_batch_stride;
    const key_table_entry *keys; /* device */
    uint32_t key_count;
    const key_product_item *items; /* device */
    const key_product_item *items_host;
    uint32_t item_count;
    uint64_t *scratch;
} kernel_hoisted_switch_args;
static inline uint64_t hoisted_switch_scratch(const ckks_params *params, uint32_t q_limbs,
                                              uint32_t out_count) {
    return switch_product_scratch(params, q_limbs, 1) +
           2ull * out_count * (2 * params->p_count + 3 * q_limbs);
}

/* RESCALE: out = (a - conv) * q_l^-1, conv the base conversion from q_l alone. scratch: components * (l + 1)
 * * N words. */
typedef struct kernel_rescale_args {
    const device_tables *tables;
    kernel_poly out, a;
    uint64_t *scratch;
} kernel_rescale_args;

/* MULTIPLY_RESCALE: RESCALE of MULTIPLY_PLAIN(a, b); b: 1 component. scratch: components * N words. A device
 * may lack it (device_has_kernel): the two kernels write the same words. */
typedef struct kernel_multiply_rescale_args {
    const device_tables *tables;
    kernel_poly out, a, b;
    uint64_t *scratch;
} kernel_multiply_rescale_args;

/* DIAGONAL_SUM: out[t.out] = sum over items of plain[t.plain] * in[t.in], componentwise, all in the same
 * basis. Items of one out are contiguous and ascending. in: [in_count][components][limb][N]; plain: [limb][N]
 * each, at its own device address. */
typedef struct diagonal_item {
    uint32_t out;
    uint32_t in;
    uint64_t plain; /* device address */
} diagonal_item;

typedef struct kernel_diagonal_sum_args {
    const device_tables *tables;
    uint64_t *out; /* [out_count][components][limb][N] */
    const uint64_t *in;
    uint32_t out_count, in_count;
    uint32_t component_count;
    kernel_basis basis;
    const diagonal_item *items; /* device */
    const diagonal_item *items_host;
    uint32_t item_count;
} kernel_diagonal_sum_args;

/* PERMUTE_SUM: out = start (if not NULL) + sum over items of permute_g(in[item.in]), one component, given
 * basis. */
typedef struct permute_item {
    uint32_t in;
    uint32_t galois_element;
} permute_item;

typedef struct kernel_permute_sum_args {
    const device_tables *tables;
    kernel_poly out;       /* 1 component */
    const uint64_t *start; /* [limb][N] or NULL; may be out.words */
    const uint64_t *in;    /* entry i at in + i * in_stride * N */
    uint32_t in_stride;    /* limbs */
    uint32_t in_count;
    const permute_item *items; /* device */
    const permute_item *items_host;
    uint32_t item_count;
} kernel_permute_sum_args;

/* MATRIX_PRODUCT: out[r] = sum over columns of weight[r][column] * in[column], for ciphertexts in one basis
 * (batch layout [batch][component][limb][N]). weight: [limb][row][column] canonical residues on the device.
 * bias: NULL, or [limb][row] canonical residues on the device: component 0 of out[r] += bias[r] at every
 * position (a constant polynomial is the same number at every point). */
typedef struct kernel_matrix_product_args {
    const device_tables *tables;
    uint64_t *out;
    const uint64_t *in;
    const uint64_t *weight;
    uint32_t row_count, column_count, component_count;
    kernel_basis basis;
    const uint64_t *bias;
} kernel_matrix_product_args;

/* Verdict bits, or-ed into a device word by the ingest kernels; 0 = good. */
enum { VERDICT_RESIDUE = 1, VERDICT_PADDING = 2, VERDICT_ZERO = 4 };

/* UNPACK: each limb of out from one LSB-first bit stream of N fields of bit width(prime) bits; limbs (and
 * components) follow each other in `packed`, each zero-padded to 16 bytes. A field >= its prime sets
 * VERDICT_RESIDUE (the stored word is then unspecified but in range); a padding bit sets VERDICT_PADDING.
 * packed: 16-byte aligned device memory. */
typedef struct kernel_unpack_args {
    const device_tables *tables;
    kernel_poly out;
    const uint8_t *packed;
    uint64_t packed_bytes;
    uint32_t *verdict;
} kernel_unpack_args;

/* EXPAND: limb i of component c of out from seed (32 bytes of device memory), purpose, polynomial + c and the
 * limb's prime index, as scheme/expand.h defines. */
typedef struct kernel_expand_args {
    const device_tables *tables;
    kernel_poly out;
    const uint8_t *seed;
    uint32_t purpose;
    uint32_t polynomial;
} kernel_expand_args;

/* CHECK_NONZERO: VERDICT_ZERO if every word of a (1 component) is zero. */
typedef struct kernel_check_nonzero_args {
    const device_tables *tables;
    kernel_poly a;
    uint32_t *verdict;
} kernel_check_nonzero_args;

/* NARROW_KEY: each limb of key, in place, to KEY_NARROW or KEY_SPLIT, whichever the device keeps. key:
 * components [digit][2] one after the other. */
typedef struct kernel_narrow_key_args {
    const device_tables *tables;
    kernel_poly key;
} kernel_narrow_key_args;

typedef struct kernel_pack_args {
    const device_tables *tables;
    uint8_t *packed;
    uint64_t packed_bytes;
    kernel_poly a;
} kernel_pack_args;

/* Random stream: ChaCha20 (IETF, zero nonce) with `key`, block counter in device memory. */
typedef struct random_state {
    uint8_t key[32];
    uint64_t counter; /* next unused block; its high 32 bits are the nonce's first word, the low 32 the block
                         counter */
} random_state;
_Static_assert(sizeof(random_state) == 40, "device layout");

typedef enum sample_kind {
    SAMPLE_TERNARY = 1, /* uniform in {-1, 0, 1}: 16 bytes per coefficient, u128 mod 3 minus 1 */
    SAMPLE_ERROR = 2,   /* centred binomial 21 + 21: 8 bytes per coefficient, bits 0..20 minus bits 21..41 */
    SAMPLE_FLOOD =
        3, /* uniform in [-2^flood_bits, 2^flood_bits): 8 bytes per coefficient, flood_bits <= 48 */
} sample_kind;

/* SAMPLE: one polynomial of small signed coefficients, written as *coefficient-domain* residues to every limb
 * of out (1 component); coefficient i uses the bytes at i * bytes_per_coefficient of the stream from block
 * counter + block_offset. */
typedef struct kernel_sample_args {
    const device_tables *tables;
    kernel_poly out;
    const random_state *random; /* device */
    uint64_t block_offset;
    uint32_t kind; /* sample_kind */
    uint32_t flood_bits;
} kernel_sample_args;
/* 64-byte blocks that one SAMPLE consumes */
static inline uint64_t sample_block_count(uint32_t kind, uint32_t n) {
    return kind == SAMPLE_TERNARY ? (uint64_t)n * 16 / 64 : (uint64_t)n * 8 / 64;
}

typedef struct kernel_counter_args {
    const device_tables *tables;
    random_state *random; /* device */
    uint64_t block_count;
} kernel_counter_args;

/* ---- what a launch touches: the one place that knows (kernel_access.c) ---- */

typedef struct kernel_access {
    const void *address;
    uint64_t bytes;
    bool is_write;
} kernel_access;

#define KERNEL_ACCESS_MAX 16u

const char *kernel_name(kernel_id kernel);
size_t kernel_arguments_size(kernel_id kernel);

/* kernel_describe validates shapes (CKKS_INVALID_ARGUMENT naming kernel and field) and lists the memory that
 * the launch reads and writes. Plaintexts, items, keys and tables are static bindings and are not listed.
 * Pure. */
ckks_status kernel_describe(kernel_id kernel, const void *arguments,
                            kernel_access accesses[KERNEL_ACCESS_MAX], uint32_t *access_count,
                            ckks_error *err);

/* device_tables_context: the host-side tables behind a resident parameter set. */
const ckks_context *device_tables_context(const device_tables *tables);

#endif
