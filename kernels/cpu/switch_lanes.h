/*
 * Whole key switches on vector units; template, included after keyswitch_lanes.h, once per instruction set.
 * The words of MOD_UP, KEY_PRODUCT and MOD_DOWN one after the other (switch_scalar.c).
 *
 * Limb by limb: the digits of one limb are converted, transformed and multiplied by the key in a buffer that
 * the thread's next limb uses again, so that digits as a whole never reach memory, and the division by P
 * follows at once. Limbs that would leave threads of a team without one are cut up by digits, blocks and
 * outs.
 */
typedef struct switch_shape {
    product_shape product;
    const kernel_poly *a;
    size_t a_batch_words;
    uint32_t batch_count, digit_size, limbs;
    uint64_t *source; /* [batch][limb of q][N] */
    uint64_t *digits; /* [place][digit][N]; as many places as limbs, times entries */
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

/* One limb of the product of one entry, from digits that are there. */
static void product_of_digits(uint64_t *out0, uint64_t *out1, const switch_shape *s, const uint64_t *digits,
                              limb_product *product, uint32_t entry, uint32_t limb, uint32_t key) {
    const kernel_basis basis = {0, s->product.q_limbs, s->product.p_limbs};
    product->prime = basis_prime(basis, limb, context_params(s->product.context)->q_count);
    product->count = 0, product->key = NULL;
    find_key(product, &s->product, key, limb);
    for (uint32_t d = 0; d < product->count; d++) product->digit[d] = digit_at(s, digits, entry, d, limb);
    run_product(out0, out1, product, &s->product);
}
/* the same; digits: room for those of one limb, which are made first */
static void switch_limb(uint64_t *out0, uint64_t *out1, const switch_shape *s, uint64_t *digits,
                        limb_product *product, uint32_t entry, uint32_t limb, uint32_t key) {
    for (uint32_t d = 0; d < s->product.digits; d++) fill_digit(digits, s, entry, d, limb);
    product_of_digits(out0, out1, s, digits, product, entry, limb, key);
}

/* SWITCH_PRODUCT. A task is one limb of one out, and each thread has room for the digits of one; those that
 * are left when every thread has had as many (the rest) are cut up: their digits, each with a place of its
 * own behind the threads', then parts of their products. */
typedef struct limb_launch {
    const kernel_switch_product_args *args;
    const switch_shape *shape;
    uint32_t outs, entries;       /* entries that are added to one out */
    uint32_t width, whole, parts; /* threads; tasks before the rest; of the products of the rest */
} limb_launch;

static void source_task(const void *context, uint32_t task) {
    const switch_shape *s = context;
    fill_source(s, task / s->product.q_limbs, task % s->product.q_limbs);
}

static uint64_t *limb_out(const limb_launch *launch, uint32_t task) {
    const switch_shape *s = launch->shape;
    return launch->args->out +
           ((size_t)(task % launch->outs) * 2 * s->limbs + task / launch->outs) * s->product.n;
}
static const key_product_item *limb_item(const limb_launch *launch, uint32_t entry) {
    return launch->args->items ? &launch->args->items[entry] : &launch->args->uniform;
}
static uint64_t *digits_place(const switch_shape *s, uint32_t place) {
    return s->digits + (size_t)place * s->product.digits * s->product.n;
}

static void limb_task(const void *context, uint32_t task) {
    const limb_launch *launch = context;
    const switch_shape *s = launch->shape;
    const uint32_t t = task % launch->outs, limb = task / launch->outs;
    uint64_t *out = limb_out(launch, task), *digits = digits_place(s, team_member());
    limb_product product = {0};
    for (uint32_t b = t; b < t + launch->entries; b++, product.is_added = true) {
        const key_product_item *item = limb_item(launch, b);
        product.galois_element = item->galois_element;
        switch_limb(out, out + (size_t)s->limbs * s->product.n, s, digits, &product, b, limb, item->key);
    }
}

static uint64_t *rest_digits(const limb_launch *launch, uint32_t rest, uint32_t entry) {
    return digits_place(launch->shape, launch->width + rest * launch->entries + entry);
}
static void rest_digit_task(const void *context, uint32_t index) {
    const limb_launch *launch = context;
    const uint32_t digits = launch->shape->product.digits, digit = index % digits;
    const uint32_t entry = index / digits % launch->entries, rest = index / digits / launch->entries;
    const uint32_t task = launch->whole + rest;
    fill_digit(rest_digits(launch, rest, entry), launch->shape, task % launch->outs + entry, digit,
               task / launch->outs);
}
static void rest_product_task(const void *context, uint32_t index) {
    const limb_launch *launch = context;
    const switch_shape *s = launch->shape;
    const uint32_t rest = index / launch->parts, task = launch->whole + rest;
    uint64_t *out = limb_out(launch, task);
    limb_product product = {.part = index % launch->parts, .parts = launch->parts};
    for (uint32_t e = 0; e < launch->entries; e++, product.is_added = true) {
        const uint32_t b = task % launch->outs + e;
        const key_product_item *item = limb_item(launch, b);
        product.galois_element = item->galois_element;
        product_of_digits(out, out + (size_t)s->limbs * s->product.n, s, rest_digits(launch, rest, e),
                          &product, b, task / launch->outs, item->key);
    }
}

/* whether a launch of so many words stays on the calling thread */
static bool is_alone(size_t words) {
    return team_width() == 1 || words < TEAM_WORDS_HEAVY;
}

void ISA(cpu_switch_product)(const void *arguments) {
    const kernel_switch_product_args *args = arguments;
    const switch_shape shape = switch_shape_of(args->tables, &args->a, args->a_batch_stride,
                                               args->batch_count, args->keys, args->key_count, args->scratch);
    const uint32_t n = shape.product.n, blocks = n / PERMUTE_BLOCK;
    const bool is_team = !is_alone((size_t)args->batch_count * shape.limbs * n);
    limb_launch launch = {.args = args,
                          .shape = &shape,
                          .outs = args->is_sum ? 1 : args->batch_count,
                          .entries = args->is_sum ? args->batch_count : 1,
                          .width = is_team ? team_width() : 1};
    const uint32_t tasks = launch.outs * shape.limbs;
    launch.whole = tasks / launch.width * launch.width;
    launch.parts = launch.width < blocks ? launch.width : blocks;
    const uint32_t rest = tasks - launch.whole;
    if (launch.whole == 0) launch.width = 0; /* no thread needs a place: there may be more than places */
    team_each(args->batch_count * shape.product.q_limbs, is_team, source_task, &shape);
    team_each(launch.whole, is_team, limb_task, &launch);
    team_each(rest * launch.entries * shape.product.digits, is_team, rest_digit_task, &launch);
    team_each(rest * launch.parts, is_team, rest_product_task, &launch);
}

/* ---- and the division by P ---- */

/* A KEY_SWITCH. First the limbs that it divides by (those of P, and the dropped one), whose residues every
 * other limb needs, then the others: their products never pass through memory either. Places of threads and
 * of the rest as in SWITCH_PRODUCT. A task is one limb of one entry. */
typedef struct whole_switch {
    const kernel_key_switch_args *args;
    const switch_shape *shape;
    const base_conversion *down;
    uint64_t *product;      /* [place][2][N] */
    uint64_t *residue;      /* [entry][2][source of `down`][N] */
    uint32_t width, parts;  /* threads; of the products of the rest */
    bool is_divisor;        /* of the launch at hand: which limbs */
    uint32_t whole, places; /* tasks before the rest; of threads */
} whole_switch;

/* the limb at hand: `index` among its kind */
typedef struct whole_at {
    uint32_t entry, index, limb;
} whole_at;

static whole_at whole_task_at(const whole_switch *w, uint32_t task) {
    const product_shape *p = &w->shape->product;
    whole_at at = {.entry = task % w->args->batch_count, .index = task / w->args->batch_count};
    at.limb = at.index;
    if (w->is_divisor) {
        const uint32_t prime = w->down->source[at.index], q_count = context_params(p->context)->q_count;
        at.limb = prime < q_count ? prime : p->q_limbs + (prime - q_count);
    }
    return at;
}

static limb_product whole_product(const whole_switch *w, const whole_at *at) {
    const kernel_key_switch_args *args = w->args;
    const uint32_t n = w->shape->product.n;
    limb_product product = {.galois_element = args->galois_element};
    if (args->add.words && at->limb < w->shape->product.q_limbs)
        for (uint32_t c = 0; c < args->add.component_count; c++)
            product.add[c] =
                poly_limb(&args->add, c, at->limb, n) + (size_t)at->entry * args->add_batch_stride * n;
    return product;
}
static uint64_t *product_place(const whole_switch *w, uint32_t place) {
    return w->product + (size_t)place * 2 * w->shape->product.n;
}

/* what becomes of one component of a product [2][N]: a residue, or a limb of the result */
static void whole_leave(const whole_switch *w, const whole_at *at, uint32_t c, const uint64_t *product) {
    const kernel_key_switch_args *args = w->args;
    const ckks_context *context = w->shape->product.context;
    const size_t n = w->shape->product.n, sources = w->down->source_count;
    uint64_t *residue = w->residue + ((size_t)at->entry * 2 + c) * sources * n;
    if (w->is_divisor) {
        source_limb((source_word *)(void *)(residue + at->index * n), product + c * n, w->down, at->index,
                    context);
        return;
    }
    const forward_store store = {.minuend = product + c * n, .factor = w->down->product_inverse[at->limb]};
    convert_limb(poly_limb(&args->out, c, at->limb, (uint32_t)n) +
                     (size_t)at->entry * args->out_batch_stride * n,
                 (const source_word *)(const void *)residue, w->down, context, at->limb, &store);
}

static void whole_task(const void *context, uint32_t task) {
    const whole_switch *w = context;
    const whole_at at = whole_task_at(w, task);
    uint64_t *product = product_place(w, team_member());
    limb_product p = whole_product(w, &at);
    switch_limb(product, product + w->shape->product.n, w->shape, digits_place(w->shape, team_member()), &p,
                at.entry, at.limb, w->args->key);
    for (uint32_t c = 0; c < 2; c++) whole_leave(w, &at, c, product);
}

static void whole_digit_task(const void *context, uint32_t index) {
    const whole_switch *w = context;
    const uint32_t digits = w->shape->product.digits, rest = index / digits;
    const whole_at at = whole_task_at(w, w->whole + rest);
    fill_digit(digits_place(w->shape, w->places + rest), w->shape, at.entry, index % digits, at.limb);
}
static void whole_product_task(const void *context, uint32_t index) {
    const whole_switch *w = context;
    const uint32_t rest = index / w->parts;
    const whole_at at = whole_task_at(w, w->whole + rest);
    uint64_t *product = product_place(w, w->places + rest);
    limb_product p = whole_product(w, &at);
    p.part = index % w->parts, p.parts = w->parts;
    product_of_digits(product, product + w->shape->product.n, w->shape,
                      digits_place(w->shape, w->places + rest), &p, at.entry, at.limb, w->args->key);
}
static void whole_leave_task(const void *context, uint32_t index) {
    const whole_switch *w = context;
    const whole_at at = whole_task_at(w, w->whole + index / 2);
    whole_leave(w, &at, index % 2, product_place(w, w->places + index / 2));
}

static void whole_limbs(whole_switch *w, bool is_divisor, uint32_t count, bool is_team) {
    const uint32_t tasks = count * w->args->batch_count, rest = tasks % w->width;
    w->is_divisor = is_divisor;
    w->whole = tasks - rest;
    w->places = w->whole > 0 ? w->width : 0;
    team_each(w->whole, is_team, whole_task, w);
    team_each(rest * w->shape->product.digits, is_team, whole_digit_task, w);
    team_each(rest * w->parts, is_team, whole_product_task, w);
    team_each(rest * 2, is_team, whole_leave_task, w);
}

void ISA(cpu_key_switch)(const void *arguments) {
    const kernel_key_switch_args *args = arguments;
    const switch_shape shape = switch_shape_of(args->tables, &args->a, args->a_batch_stride,
                                               args->batch_count, args->keys, args->key_count, args->scratch);
    const ckks_context *context = shape.product.context;
    const uint32_t n = shape.product.n, q_limbs = shape.product.q_limbs, blocks = n / PERMUTE_BLOCK;
    const bool is_team = !is_alone((size_t)args->batch_count * shape.limbs * n);
    whole_switch w = {
        .args = args,
        .shape = &shape,
        .down = context_mod_down(context, q_limbs - 1, args->with_rescale != 0),
        .product =
            args->scratch + switch_product_scratch(context_params(context), q_limbs, args->batch_count) * n,
        .width = is_team ? team_width() : 1,
    };
    w.residue = w.product + (size_t)2 * args->batch_count * shape.limbs * n;
    w.parts = w.width < blocks ? w.width : blocks;
    team_each(args->batch_count * q_limbs, is_team, source_task, &shape);
    whole_limbs(&w, true, w.down->source_count, is_team);
    whole_limbs(&w, false, q_limbs - (args->with_rescale ? 1 : 0), is_team);
}

/* ---- one polynomial under many keys ---- */

typedef struct hoisted_shape {
    const kernel_hoisted_switch_args *args;
    const switch_shape *shape;
    const base_conversion *down;
    uint64_t *product; /* [slot][2][N] */
    uint64_t *residue; /* [out][2][prime of P][N] */
    uint32_t width;    /* threads */
    uint32_t first;    /* limb of the launch at hand */
} hoisted_shape;

static uint64_t *hoisted_residue(const hoisted_shape *h, uint32_t out, uint32_t component) {
    return h->residue + ((size_t)out * 2 + component) * h->shape->product.p_limbs * h->shape->product.n;
}

/* one limb of the sum of an out's products, to product [2][N] */
static void hoisted_product(uint64_t *product, const hoisted_shape *h, const uint64_t *digits, uint32_t out,
                            uint32_t limb) {
    const kernel_hoisted_switch_args *args = h->args;
    const switch_shape *s = h->shape;
    const kernel_basis basis = {0, s->product.q_limbs, s->product.p_limbs};
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
static void hoisted_out(const hoisted_shape *h, const uint64_t *digits, uint32_t out, uint32_t limb) {
    const kernel_hoisted_switch_args *args = h->args;
    const switch_shape *s = h->shape;
    const size_t n = s->product.n;
    /* a place of the thread, which its next task finds in the cache; a team wider than places has one per
     * task
     */
    const uint32_t place =
        h->width <= args->out_count * s->limbs ? team_member() : limb * args->out_count + out;
    uint64_t *product = h->product + 2 * place * n;
    hoisted_product(product, h, digits, out, limb);
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

static void hoisted_limb_task(const void *context, uint32_t task) {
    const hoisted_shape *h = context;
    const uint32_t limb = h->first + task;
    uint64_t *digits = digits_place(h->shape, team_member());
    for (uint32_t d = 0; d < h->shape->product.digits; d++) fill_digit(digits, h->shape, 0, d, limb);
    for (uint32_t out = 0; out < h->args->out_count; out++) hoisted_out(h, digits, out, limb);
}
static void hoisted_digit_task(const void *context, uint32_t task) {
    const hoisted_shape *h = context;
    const uint32_t digits = h->shape->product.digits, limb = h->first + task / digits;
    fill_digit(digits_place(h->shape, limb), h->shape, 0, task % digits, limb);
}
static void hoisted_out_task(const void *context, uint32_t task) {
    const hoisted_shape *h = context;
    const uint32_t outs = h->args->out_count, limb = h->first + task / outs;
    hoisted_out(h, digits_place(h->shape, limb), task % outs, limb);
}

/* Limbs first .. first + count - 1, a task each, its digits in a place of the thread's; those that are left
 * when every thread has had as many are cut up, by digits and by outs, and have their own places: no
 * thread's, since there is none, or there are as many limbs before them as threads. */
static void hoisted_limbs(hoisted_shape *h, uint32_t first, uint32_t count, bool is_team) {
    const uint32_t whole = count / h->width * h->width, rest = count - whole;
    h->first = first + whole;
    team_each(rest * h->shape->product.digits, is_team, hoisted_digit_task, h);
    h->first = first;
    team_each(whole, is_team, hoisted_limb_task, h);
    h->first = first + whole;
    team_each(rest * h->args->out_count, is_team, hoisted_out_task, h);
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
    const bool is_team = !is_alone((size_t)outs * shape.limbs * n);
    h.residue = h.product + 2 * (size_t)outs * shape.limbs * n;
    h.width = is_team ? team_width() : 1;
    team_each(q_limbs, is_team, source_task, &shape);
    hoisted_limbs(&h, q_limbs, p_limbs, is_team); /* their residues are what the others divide by */
    hoisted_limbs(&h, 0, q_limbs, is_team);
}
