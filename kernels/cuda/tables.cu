/* A parameter set made resident: primes, twiddles of the card's data path, base conversions. */
#include "kernels/cuda/cuda_internal.cuh"

#include <vector>

namespace {

/* Uploads `count` elements; remembers the memory for release. */
template <class T>
ckks_status upload(CudaTables *tables, const T **out, const T *data, size_t count, ckks_error *err) {
    void *memory = nullptr;
    CUDA_TRY(cudaMalloc(&memory, count * sizeof(T)));
    tables->memory[tables->memory_count++] = memory;
    CUDA_TRY(cudaMemcpy(memory, data, count * sizeof(T), cudaMemcpyHostToDevice));
    *out = static_cast<const T *>(memory);
    return CKKS_OK;
}

double centred(u64 value, u64 q) {
    return value > q / 2 ? -(double)(q - value) : (double)value;
}

ckks_status upload_twiddles(CudaTables *tables, const ckks_context *context, ckks_error *err) {
    const GpuTables &t = tables->device;
    const size_t n = (size_t)1 << t.log_n;
    for (int inverse = 0; inverse < 2; inverse++) {
        if (tables->is_f64) {
            std::vector<double> all(t.prime_count * n);
            for (u32 i = 0; i < t.prime_count; i++) {
                const ntt_table *table = context_ntt(context, i);
                const uint64_t *w = inverse ? table->inverse : table->forward;
                for (size_t k = 0; k < n; k++) all[i * n + k] = centred(w[k], table->m.value);
            }
            const ckks_status rc =
                upload(tables, inverse ? &tables->device.inverse_f64 : &tables->device.forward_f64,
                       all.data(), all.size(), err);
            if (rc != CKKS_OK) return rc;
        } else {
            std::vector<ulonglong2> all(t.prime_count * n);
            for (u32 i = 0; i < t.prime_count; i++) {
                const ntt_table *table = context_ntt(context, i);
                const uint64_t *w = inverse ? table->inverse : table->forward;
                const uint64_t *s = inverse ? table->inverse_shoup : table->forward_shoup;
                for (size_t k = 0; k < n; k++) all[i * n + k] = make_ulonglong2(w[k], s[k]);
            }
            const ckks_status rc =
                upload(tables, inverse ? &tables->device.inverse_i64 : &tables->device.forward_i64,
                       all.data(), all.size(), err);
            if (rc != CKKS_OK) return rc;
        }
    }
    return CKKS_OK;
}

/* Conversions are collected first and uploaded as one array of constants and one of descriptors. */
struct Collector {
    const ckks_context *context;
    u32 prime_count;
    std::vector<u64> constants;
    std::vector<GpuConversion> conversions;

    void add(const base_conversion *c) {
        GpuConversion g = {};
        if (c) {
            g.source_count = c->source_count;
            for (u32 s = 0; s < c->source_count; s++) {
                const ntt_table *table = context_ntt(context, c->source[s]);
                g.source[s] = c->source[s];
                g.hat_inverse_n[s] = mod_mul(c->hat_inverse[s], table->n_inverse, &table->m);
            }
            g.hat = reinterpret_cast<const u64 *>(constants.size());
            constants.insert(constants.end(), c->hat, c->hat + (size_t)c->source_count * prime_count);
            g.product = reinterpret_cast<const u64 *>(constants.size());
            constants.insert(constants.end(), c->product, c->product + prime_count);
            g.product_inverse = reinterpret_cast<const u64 *>(constants.size());
            constants.insert(constants.end(), c->product_inverse, c->product_inverse + prime_count);
        }
        conversions.push_back(g);
    }
};

ckks_status upload_conversions(CudaTables *tables, const ckks_context *context, ckks_error *err) {
    GpuTables &t = tables->device;
    const ckks_params *params = context_params(context);
    Collector all = {context, t.prime_count, {}, {}};
    for (u32 level = 0; level < t.q_count; level++)
        for (u32 digit = 0; digit < t.dnum; digit++)
            all.add(t.p_count != 0 && digit < params_digit_count(params, level)
                        ? context_mod_up(context, level, digit)
                        : nullptr);
    const size_t mod_down = all.conversions.size();
    for (u32 level = 0; level < t.q_count; level++) {
        all.add(t.p_count != 0 ? context_mod_down(context, level, false) : nullptr);
        all.add(t.p_count != 0 && level != 0 ? context_mod_down(context, level, true) : nullptr);
    }
    const size_t rescale = all.conversions.size();
    for (u32 level = 0; level < t.q_count; level++)
        all.add(level != 0 ? context_rescale(context, level) : nullptr);

    const u64 *constants = nullptr;
    ckks_status rc = upload(tables, &constants, all.constants.data(), all.constants.size(), err);
    if (rc != CKKS_OK) return rc;
    for (GpuConversion &g : all.conversions) {
        g.hat = constants + reinterpret_cast<size_t>(g.hat);
        g.product = constants + reinterpret_cast<size_t>(g.product);
        g.product_inverse = constants + reinterpret_cast<size_t>(g.product_inverse);
    }
    const GpuConversion *conversions = nullptr;
    rc = upload(tables, &conversions, all.conversions.data(), all.conversions.size(), err);
    t.mod_up = conversions, t.mod_down = conversions + mod_down, t.rescale = conversions + rescale;
    return rc;
}

ckks_status upload_primes(CudaTables *tables, const ckks_context *context, ckks_error *err) {
    std::vector<GpuPrime> primes(tables->device.prime_count);
    for (u32 i = 0; i < tables->device.prime_count; i++) {
        const ntt_table *table = context_ntt(context, i);
        uint64_t p_product = 0, p_shoup = 0;
        context_p_product(context, i, &p_product, &p_shoup);
        primes[i] = {table->m.value,
                     table->m.barrett_high,
                     table->m.barrett_low,
                     (double)table->m.value,
                     1.0 / (double)table->m.value,
                     table->m.bits,
                     0,
                     table->n_inverse,
                     p_product};
    }
    return upload(tables, &tables->device.prime, primes.data(), primes.size(), err);
}

} // namespace

/* self: the CudaDevice; its first member is `bool is_f64`. */
ckks_status cuda_tables_create(void *self, device_tables *out, ckks_error *err) {
    const ckks_params *params = context_params(out->context);
    CudaTables *tables = static_cast<CudaTables *>(calloc(1, sizeof *tables));
    if (!tables) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "tables", "out of host memory");
    tables->is_f64 = *static_cast<const bool *>(self);
    GpuTables &t = tables->device;
    t.log_n = params->log_n, t.q_count = params->q_count, t.p_count = params->p_count,
    t.digit_size = params->digit_size;
    t.dnum = params_digit_count_full(params), t.prime_count = params_prime_count(params);
    out->self = tables;
    ckks_status rc;
    try {
        if ((rc = upload_primes(tables, out->context, err)) == CKKS_OK &&
            (rc = upload_twiddles(tables, out->context, err)) == CKKS_OK)
            rc = upload_conversions(tables, out->context, err);
    } catch (const std::bad_alloc &) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "tables", "out of host memory");
    }
    if (rc != CKKS_OK) cuda_tables_destroy(self, out);
    return rc;
}

void cuda_tables_destroy(void *, device_tables *out) {
    CudaTables *tables = static_cast<CudaTables *>(out->self);
    if (!tables) return;
    for (u32 i = 0; i < tables->memory_count; i++) cudaFree(tables->memory[i]);
    free(tables);
    out->self = nullptr;
}
