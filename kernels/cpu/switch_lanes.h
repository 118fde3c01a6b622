/*
 * Whole key switches on vector units; template, included after keyswitch_lanes.h, once per instruction set.
 * The words of MOD_UP, KEY_PRODUCT and MOD_DOWN one after the other (switch_scalar.c).
 *
 * Limb by limb: the digits of one limb are converted, transformed and multiplied by the key in a buffer that
 * the thread's next limb uses again, so that digits as a whole never reach memory. On one thread the division
 * by P follows at once: the limbs of P first, whose residues every other limb needs; a team divides when all
 * products are there. A team that limbs alone would not keep busy runs the three kernels one after the
 * other: they spread over limbs and digits.
 */
typedef struct switch_shape {
    product_shape product;
    const kernel_poly *a;
    size_t a_batch_words;
    uint32_t batch_count, digit_size, limbs;
    uint64_t *source; /* [batch][limb of q][N] */
    uint64_t *digits; /* [thread][digit][N]; where limbs are too few for the team: as MOD_UP leaves them */
} switch_shape;

static switch_shape switch_shape_of(const device_tables *tables, const kernel_poly *a,
                                    uint32_t a_batch_stride, uint32_t batch_count,
                                    const key_table_entry *keys, uint32_t key_count, uint64_t *scratch) {
    const ckks_context *context = device_tables_context(tables);
    const ckks_params *params = context_params(context);
    const uint32_t n = params_n(params), q_limbs = a->basis.q_count;
    switch_shape shape = {
        .product = {.context = context,
                    .keys = keys,
                    .key_count = key_count,
                    .n = n,
                    .log_n = params->log_n,
                    .q_limbs = q_limbs,
                    .p_limbs = params->p_count,
                    .digits = params_digit_count(params, q_limbs - 1)},
        .a = a,
        .a_batch_words = (size_t)a_batch_stride * n,
        .batch_count = batch_count,
        .digit_size = params->digit_size,
        .limbs = q_limbs + params->p_count,
        .source = scratch,
        .digits = scratch + (size_t)batch_count * q_limbs * n,
    };
    lanes_turns_fill(&shape.product.turns);
    return shape;
}

static const uint64_t *switch_input(const switch_shape *s, uint32_t entry, uint32_t limb) {
    return poly_limb(s->a, 0, limb, s->product.n) + entry * s->a_batch_words;
}
static uint64_t *switch_source(const switch_shape *s, uint32_t entry, uint32_t limb) {
    return s->source + ((size_t)entry * s->product.q_limbs + limb) * s->product.n;
}
static void fill_source(const switch_shape *s, uint32_t entry, uint32_t limb) {
    const base_conversion *conversion =
        context_mod_up(s->product.context, s->product.q_limbs - 1, limb / s->digit_size);
    source_limb((source_word *)(void *)switch_source(s, entry, limb), switch_input(s, entry, limb),
                conversion, limb % s->digit_size, s->product.context);
}

static bool is_own(const switch_shape *s, uint32_t digit, uint32_t limb) {
    return limb < s->product.q_limbs && limb / s->digit_size == digit;
}
/* digit d in one limb, from `digits` [digit][N], or, where it is the digit's own limb, the input */
static const uint64_t *digit_at(const switch_shape *s, const uint64_t *digits, uint32_t entry, uint32_t digit,
                                uint32_t limb) {
    return is_own(s, digit, limb) ? switch_input(s, entry, limb) : digits + (size_t)digit * s->product.n;
}
static void fill_digit(uint64_t *digits, const switch_shape *s, uint32_t entry, uint32_t digit,
                       uint32_t limb) {
    const ckks_context *context = s->product.context;
    const kernel_basis basis = {0, s->product.q_limbs, s->product.p_limbs};
    if (is_own(s, digit, limb)) return;
    convert_limb(digits + (size_t)digit * s->product.n,
                 (const source_word *)(const void *)switch_source(s, entry, digit * s->digit_size),
                 context_mod_up(context, s->product.q_limbs - 1, digit), context,
                 basis_prime(basis, limb, context_params(context)->q_count), NULL);
}

/* One limb of the product of one entry; digits: room for those of one limb. */
static void switch_limb(uint64_t *out0, uint64_t *out1, const switch_shape *s, uint64_t *digits,
                        limb_product *product, uint32_t entry, uint32_t limb, uint32_t key) {
    const ckks_context *context = s->product.context;
    const kernel_basis basis = {0, s->product.q_limbs, s->product.p_limbs};
    product->prime = basis_prime(basis, limb, context_params(context)->q_count);
    product->count = 0, product->key = NULL;
    find_key(product, &s->product, key, limb);
    for (uint32_t d = 0; d < product->count; d++) {
        fill_digit(digits, s, entry, d, limb);
        product->digit[d] = digit_at(s, digits, entry, d, limb);
    }
    run_product(out0, out1, product, &s->product);
}

/* SWITCH_PRODUCT limb by limb: each thread has room for the digits of one */
typedef struct limb_launch {
    const kernel_switch_product_args *args;
    const switch_shape *shape;
    uint32_t outs;
} limb_launch;

static void source_task(const void *context, uint32_t task) {
    const switch_shape *s = context;
    fill_source(s, task / s->product.q_limbs, task % s->product.q_limbs);
}

static void limb_task(const void *context, uint32_t task) {
    const limb_launch *launch = context;
    const kernel_switch_product_args *args = launch->args;
    const switch_shape *s = launch->shape;
    const uint32_t t = task % launch->outs, limb = task / launch->outs, n = s->product.n;
    const uint32_t entries = args->is_sum ? args->batch_count : 1;
    uint64_t *out = args->out + ((size_t)t * 2 * s->limbs + limb) * n;
    uint64_t *digits = s->digits + (size_t)team_member() * s->product.digits * n;
    limb_product product = {0};
    for (uint32_t b = t; b < t + entries; b++, product.is_added = true) {
        const key_product_item *item = args->items ? &args->items[b] : &args->uniform;
        product.galois_element = item->galois_element;
        switch_limb(out, out + (size_t)s->limbs * n, s, digits, &product, b, limb, item->key);
    }
}

/* whether a launch of so many words stays on the calling thread */
static bool is_alone(size_t words) {
    return team_width() == 1 || words < TEAM_WORDS_HEAVY;
}

#define LIMBS_PER_THREAD 2u /* fewer would leave a team waiting for its last ones */

void ISA(cpu_switch_product)(const void *arguments) {
    const kernel_switch_product_args *args = arguments;
    const switch_shape shape = switch_shape_of(args->tables, &args->a, args->a_batch_stride,
                                               args->batch_count, args->keys, args->key_count, args->scratch);
    const limb_launch launch = {args, &shape, args->is_sum ? 1 : args->batch_count};
    const uint32_t tasks = launch.outs * shape.limbs;
    const bool alone = is_alone((size_t)args->batch_count * shape.limbs * shape.product.n);
    if (alone ||
        (tasks >= LIMBS_PER_THREAD * team_width() && team_width() <= args->batch_count * shape.limbs)) {
        team_each(args->batch_count * shape.product.q_limbs, !alone, source_task, &shape);
        team_each(tasks, !alone, limb_task, &launch);
        return;
    }
    const kernel_mod_up_args up = {
        args->tables, shape.digits, args->a, args->a_batch_stride, args->batch_count, args->scratch,
    };
    ISA(cpu_mod_up)(&up);
    const kernel_key_product_args product = {
        .tables = args->tables,
        .out = args->out,
        .out_count = launch.outs,
        .level = args->a.basis.q_count - 1,
        .digits = shape.digits,
        .digits_count = args->batch_count,
        .keys = args->keys,
        .key_count = args->key_count,
        .items = args->items,
        .items_host = args->items_host,
        .item_count = args->batch_count,
        .uniform = args->uniform,
    };
    ISA(cpu_key_product)(&product);
}

/* ---- and the division by P ---- */

/* One entry of a KEY_SWITCH on one thread. */
typedef struct whole_switch {
    const kernel_key_switch_args *args;
    const switch_shape *shape;
    const base_conversion *down;
    uint64_t *product; /* [2][N]: the limb at hand */
    uint64_t *residue; /* [2][source of `down`][N] */
} whole_switch;

static void whole_limb(const whole_switch *w, uint32_t entry, uint32_t limb) {
    const kernel_key_switch_args *args = w->args;
    const uint32_t n = w->shape->product.n;
    limb_product product = {.galois_element = args->galois_element};
    if (args->add.words && limb < w->shape->product.q_limbs)
        for (uint32_t c = 0; c < args->add.component_count; c++)
            product.add[c] = poly_limb(&args->add, c, limb, n) + (size_t)entry * args->add_batch_stride * n;
    switch_limb(w->product, w->product + n, w->shape, w->shape->digits, &product, entry, limb, args->key);
}

static void whole_entry(const whole_switch *w, uint32_t entry, uint32_t limbs_out) {
    const kernel_key_switch_args *args = w->args;
    const switch_shape *s = w->shape;
    const ckks_context *context = s->product.context;
    const uint32_t q_count = context_params(context)->q_count;
    const size_t n = s->product.n, residues = w->down->source_count * n;
    for (uint32_t i = 0; i < s->product.q_limbs; i++) fill_source(s, entry, i);
    for (uint32_t i = 0; i < w->down->source_count; i++) {
        const uint32_t prime = w->down->source[i];
        whole_limb(w, entry, prime < q_count ? prime : s->product.q_limbs + (prime - q_count));
        for (uint32_t c = 0; c < 2; c++)
            source_limb((source_word *)(void *)(w->residue + c * residues + i * n), w->product + c * n,
                        w->down, i, context);
    }
    for (uint32_t j = 0; j < limbs_out; j++) {
        whole_limb(w, entry, j);
        for (uint32_t c = 0; c < 2; c++) {
            const forward_store store = {.minuend = w->product + c * n,
                                         .factor = w->down->product_inverse[j]};
            convert_limb(poly_limb(&args->out, c, j, (uint32_t)n) + entry * args->out_batch_stride * n,
                         (const source_word *)(const void *)(w->residue + c * residues), w->down, context, j,
                         &store);
        }
    }
}

static void whole_switches(const kernel_key_switch_args *args, const switch_shape *s, uint64_t *product) {
    const uint32_t level = s->product.q_limbs - 1;
    const whole_switch w = {
        .args = args,
        .shape = s,
        .down = context_mod_down(s->product.context, level, args->with_rescale != 0),
        .product = product,
        .residue = product + (size_t)2 * args->batch_count * s->limbs * s->product.n,
    };
    for (uint32_t b = 0; b < args->batch_count; b++) whole_entry(&w, b, level + (args->with_rescale ? 0 : 1));
}

void ISA(cpu_key_switch)(const void *arguments) {
    const kernel_key_switch_args *args = arguments;
    const switch_shape shape = switch_shape_of(args->tables, &args->a, args->a_batch_stride,
                                               args->batch_count, args->keys, args->key_count, args->scratch);
    const uint32_t n = shape.product.n, q_limbs = shape.product.q_limbs;
    uint64_t *product =
        args->scratch +
        switch_product_scratch(context_params(shape.product.context), q_limbs, args->batch_count) * n;
    if (is_alone((size_t)args->batch_count * shape.limbs * n)) {
        whole_switches(args, &shape, product);
        return;
    }
    const kernel_switch_product_args up = {
        .tables = args->tables,
        .out = product,
        .a = args->a,
        .a_batch_stride = args->a_batch_stride,
        .batch_count = args->batch_count,
        .keys = args->keys,
        .key_count = args->key_count,
        .uniform = {.key = args->key, .galois_element = args->galois_element},
        .scratch = args->scratch,
    };
    ISA(cpu_switch_product)(&up);
    const kernel_mod_down_args down = {
        .tables = args->tables,
        .out = args->out,
        .a = {product, 2, shape.limbs, {0, q_limbs, shape.product.p_limbs}},
        .add = args->add,
        .add_galois_element = args->galois_element,
        .batch_count = args->batch_count,
        .out_batch_stride = args->out_batch_stride,
        .a_batch_stride = 2 * shape.limbs,
        .add_batch_stride = args->add_batch_stride,
        .with_rescale = args->with_rescale,
        .scratch = product + (size_t)2 * args->batch_count * shape.limbs * n,
    };
    ISA(cpu_mod_down)(&down);
}

/* ---- one polynomial under many keys ---- */

typedef struct hoisted_shape {
    const kernel_hoisted_switch_args *args;
    const switch_shape *shape;
    const base_conversion *down;
    uint64_t *product; /* [slot][2][N] */
    uint64_t *residue; /* [out][2][prime of P][N] */
    bool is_by_limb;   /* a task is a limb with all outs, and digits those of a thread; else all digits stand
                          in [limb][digit][N], and a task is one out */
} hoisted_shape;

static uint64_t *hoisted_digits(const hoisted_shape *h, uint32_t limb) {
    const uint32_t at = h->is_by_limb ? team_member() : limb;
    return h->shape->digits + (size_t)at * h->shape->product.digits * h->shape->product.n;
}
static uint64_t *hoisted_residue(const hoisted_shape *h, uint32_t out, uint32_t component) {
    return h->residue + ((size_t)out * 2 + component) * h->shape->product.p_limbs * h->shape->product.n;
}

/* one limb of the sum of an out's products, to product [2][N] */
static void hoisted_product(uint64_t *product, const hoisted_shape *h, uint32_t out, uint32_t limb) {
    const kernel_hoisted_switch_args *args = h->args;
    const switch_shape *s = h->shape;
    const kernel_basis basis = {0, s->product.q_limbs, s->product.p_limbs};
    const uint64_t *digits = hoisted_digits(h, limb);
    limb_product p = {.prime = basis_prime(basis, limb, context_params(s->product.context)->q_count)};
    if (args->add.words && limb < s->product.q_limbs) p.add[0] = poly_limb(&args->add, 0, limb, s->product.n);
    for (uint32_t i = 0; i < args->item_count; i++) {
        if (args->items[i].out_index != out) continue;
        p.galois_element = args->items[i].galois_element;
        p.count = 0, p.key = NULL;
        find_key(&p, &s->product, args->items[i].key, limb);
        for (uint32_t d = 0; d < p.count; d++) p.digit[d] = digit_at(s, digits, 0, d, limb);
        run_product(product, product + s->product.n, &p, &s->product);
        p.is_added = true;
    }
}

/* of a prime of P: the residues that every other limb needs; of the others: the product, divided */
static void hoisted_out(const hoisted_shape *h, uint32_t out, uint32_t limb, uint32_t slot) {
    const kernel_hoisted_switch_args *args = h->args;
    const switch_shape *s = h->shape;
    const size_t n = s->product.n;
    uint64_t *product = h->product + 2 * slot * n;
    hoisted_product(product, h, out, limb);
    for (uint32_t c = 0; c < 2; c++) {
        uint64_t *residue = hoisted_residue(h, out, c);
        if (limb >= s->product.q_limbs) {
            const uint32_t i = limb - s->product.q_limbs;
            source_limb((source_word *)(void *)(residue + i * n), product + c * n, h->down, i,
                        s->product.context);
            continue;
        }
        const forward_store store = {.minuend = product + c * n, .factor = h->down->product_inverse[limb]};
        convert_limb(poly_limb(&args->out, c, limb, (uint32_t)n) + (size_t)out * args->out_batch_stride * n,
                     (const source_word *)(const void *)residue, h->down, s->product.context, limb, &store);
    }
}

static void hoisted_task(const hoisted_shape *h, uint32_t task, uint32_t first_limb) {
    const uint32_t outs = h->args->out_count;
    if (!h->is_by_limb) {
        const uint32_t limb = first_limb + task / outs;
        hoisted_out(h, task % outs, limb, limb * outs + task % outs);
        return;
    }
    for (uint32_t d = 0; d < h->shape->product.digits; d++)
        fill_digit(hoisted_digits(h, first_limb + task), h->shape, 0, d, first_limb + task);
    for (uint32_t t = 0; t < outs; t++) hoisted_out(h, t, first_limb + task, team_member());
}
static void hoisted_p_task(const void *context, uint32_t task) {
    const hoisted_shape *h = context;
    hoisted_task(h, task, h->shape->product.q_limbs);
}
static void hoisted_q_task(const void *context, uint32_t task) {
    hoisted_task(context, task, 0);
}
static void hoisted_digit_task(const void *context, uint32_t task) {
    const hoisted_shape *h = context;
    const uint32_t digits = h->shape->product.digits;
    fill_digit(hoisted_digits(h, task / digits), h->shape, 0, task % digits, task / digits);
}

void ISA(cpu_hoisted_switch)(const void *arguments) {
    const kernel_hoisted_switch_args *args = arguments;
    const switch_shape shape =
        switch_shape_of(args->tables, &args->a, 0, 1, args->keys, args->key_count, args->scratch);
    const uint32_t q_limbs = shape.product.q_limbs, p_limbs = shape.product.p_limbs, outs = args->out_count;
    const size_t n = shape.product.n;
    hoisted_shape h = {
        .args = args,
        .shape = &shape,
        .down = context_mod_down(shape.product.context, q_limbs - 1, false),
        .product =
            args->scratch + switch_product_scratch(context_params(shape.product.context), q_limbs, 1) * n,
    };
    const bool is_team = !is_alone(outs * shape.limbs * n);
    h.residue = h.product + 2 * (size_t)outs * shape.limbs * n;
    h.is_by_limb = !is_team || shape.limbs >= LIMBS_PER_THREAD * team_width();
    team_each(q_limbs, is_team, source_task, &shape);
    if (!h.is_by_limb) team_each(shape.product.digits * shape.limbs, is_team, hoisted_digit_task, &h);
    team_each(h.is_by_limb ? p_limbs : p_limbs * outs, is_team, hoisted_p_task, &h);
    team_each(h.is_by_limb ? q_limbs : q_limbs * outs, is_team, hoisted_q_task, &h);
}
