/*
 * Whole key switches on vector units; template, included after keyswitch_lanes.h, once per instruction set.
 * The words of MOD_UP, KEY_PRODUCT and MOD_DOWN one after the other (switch_scalar.c).
 *
 * Limb by limb: the digits of one limb are converted, transformed and multiplied by the key in a buffer that
 * the thread's next limb uses again, so that digits as a whole never reach memory, and the division by P
 * follows at once. A limb's digits, parts of its products and components are pieces that threads without a
 * limb take part in (team_share).
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

/* the digits of one limb of one entry, as pieces */
typedef struct digits_fill {
    const switch_shape *shape;
    uint64_t *digits; /* room for them */
    uint32_t entry, limb;
} digits_fill;
static void digit_piece(const void *context, uint32_t digit) {
    const digits_fill *f = context;
    fill_digit(f->digits, f->shape, f->entry, digit, f->limb);
}
static void fill_digits(uint64_t *digits, const switch_shape *s, uint32_t entry, uint32_t limb) {
    const digits_fill fill = {s, digits, entry, limb};
    team_share(s->product.digits, digit_piece, &fill);
}

/* pieces of a product that a team of this width shares */
static uint32_t product_parts(const switch_shape *s, uint32_t width) {
    const uint32_t blocks = s->product.n / PERMUTE_BLOCK, parts = width == 1 ? 1 : width < 5 ? 4 : 8;
    return parts < blocks ? parts : blocks;
}

/* Places are a thread's, which its next task finds in the cache; a team wider than tasks has one per task. */
static uint32_t task_place(uint32_t width, uint32_t tasks, uint32_t task) {
    return width <= tasks ? team_member() : task;
}

/* SWITCH_PRODUCT. A task is one limb of one out. */
typedef struct limb_launch {
    const kernel_switch_product_args *args;
    const switch_shape *shape;
    uint32_t outs, entries;       /* entries that are added to one out */
    uint32_t width, tasks, parts; /* threads; limbs of outs; of their products */
} limb_launch;

typedef struct limb_job {
    const limb_launch *launch;
    const uint64_t *digits;
    uint32_t task, entry; /* entry: of those that are added */
} limb_job;

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

static void limb_product_piece(const void *context, uint32_t part) {
    const limb_job *job = context;
    const limb_launch *launch = job->launch;
    const switch_shape *s = launch->shape;
    const uint32_t b = job->task % launch->outs + job->entry;
    const key_product_item *item = limb_item(launch, b);
    uint64_t *out = limb_out(launch, job->task);
    limb_product product = {.galois_element = item->galois_element,
                            .part = part,
                            .parts = launch->parts,
                            .is_added = job->entry > 0};
    product_of_digits(out, out + (size_t)s->limbs * s->product.n, s, job->digits, &product, b,
                      job->task / launch->outs, item->key);
}
static void limb_task(const void *context, uint32_t task) {
    const limb_launch *launch = context;
    const switch_shape *s = launch->shape;
    uint64_t *digits = digits_place(s, task_place(launch->width, launch->tasks, task));
    for (uint32_t e = 0; e < launch->entries; e++) {
        const limb_job job = {launch, digits, task, e};
        fill_digits(digits, s, task % launch->outs + e, task / launch->outs);
        team_share(launch->parts, limb_product_piece, &job);
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
    const bool is_team = !is_alone((size_t)args->batch_count * shape.limbs * shape.product.n);
    limb_launch launch = {.args = args,
                          .shape = &shape,
                          .outs = args->is_sum ? 1 : args->batch_count,
                          .entries = args->is_sum ? args->batch_count : 1,
                          .width = is_team ? team_width() : 1};
    launch.tasks = launch.outs * shape.limbs;
    launch.parts = product_parts(&shape, launch.width);
    team_each(args->batch_count * shape.product.q_limbs, is_team, source_task, &shape);
    team_each_shared(launch.tasks, is_team, limb_task, &launch);
}

/* ---- and the division by P ---- */

/* A KEY_SWITCH. First the limbs that it divides by (those of P, and the dropped one), whose residues every
 * other limb needs, then the others: their products never pass through memory either. A task is one limb of
 * one entry. */
typedef struct whole_switch {
    const kernel_key_switch_args *args;
    const switch_shape *shape;
    const base_conversion *down;
    uint64_t *product;     /* [place][2][N] */
    uint64_t *residue;     /* [entry][2][source of `down`][N] */
    uint32_t width, parts; /* threads; of a product */
    bool is_divisor;       /* of the launch at hand: which limbs */
    uint32_t tasks;        /* of it */
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

typedef struct whole_job {
    const whole_switch *w;
    whole_at at;
    uint64_t *digits, *product;
} whole_job;

static void whole_product_piece(const void *context, uint32_t part) {
    const whole_job *job = context;
    const whole_switch *w = job->w;
    limb_product p = whole_product(w, &job->at);
    p.part = part, p.parts = w->parts;
    product_of_digits(job->product, job->product + w->shape->product.n, w->shape, job->digits, &p,
                      job->at.entry, job->at.limb, w->args->key);
}
static void whole_leave_piece(const void *context, uint32_t component) {
    const whole_job *job = context;
    whole_leave(job->w, &job->at, component, job->product);
}
static void whole_task(const void *context, uint32_t task) {
    const whole_switch *w = context;
    const uint32_t place = task_place(w->width, w->tasks, task);
    const whole_job job = {w, whole_task_at(w, task), digits_place(w->shape, place), product_place(w, place)};
    fill_digits(job.digits, w->shape, job.at.entry, job.at.limb);
    team_share(w->parts, whole_product_piece, &job);
    team_share(2, whole_leave_piece, &job);
}

static void whole_limbs(whole_switch *w, bool is_divisor, uint32_t count, bool is_team) {
    w->is_divisor = is_divisor;
    w->tasks = count * w->args->batch_count;
    team_each_shared(w->tasks, is_team, whole_task, w);
}

void ISA(cpu_key_switch)(const void *arguments) {
    const kernel_key_switch_args *args = arguments;
    const switch_shape shape = switch_shape_of(args->tables, &args->a, args->a_batch_stride,
                                               args->batch_count, args->keys, args->key_count, args->scratch);
    const ckks_context *context = shape.product.context;
    const uint32_t n = shape.product.n, q_limbs = shape.product.q_limbs;
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
    w.parts = product_parts(&shape, w.width);
    team_each(args->batch_count * q_limbs, is_team, source_task, &shape);
    whole_limbs(&w, true, w.down->source_count, is_team);
    whole_limbs(&w, false, q_limbs - (args->with_rescale ? 1 : 0), is_team);
}

/* ---- one polynomial under many keys ---- */

typedef struct hoisted_shape {
    const kernel_hoisted_switch_args *args;
    const switch_shape *shape;
    const base_conversion *down;
    uint64_t *product;     /* [place][2][N] */
    uint64_t *residue;     /* [out][2][prime of P][N] */
    uint32_t width, parts; /* threads; of a product */
    uint32_t first, count; /* limbs of the launch at hand */
} hoisted_shape;

typedef struct hoisted_job {
    const hoisted_shape *h;
    uint64_t *digits, *product; /* product: of the only out */
    uint32_t limb;
} hoisted_job;

static uint64_t *hoisted_residue(const hoisted_shape *h, uint32_t out, uint32_t component) {
    return h->residue + ((size_t)out * 2 + component) * h->shape->product.p_limbs * h->shape->product.n;
}

/* one part of one limb of the sum of an out's products, to product [2][N] */
static void hoisted_product(uint64_t *product, const hoisted_shape *h, const uint64_t *digits, uint32_t out,
                            uint32_t limb, uint32_t part, uint32_t parts) {
    const kernel_hoisted_switch_args *args = h->args;
    const switch_shape *s = h->shape;
    const kernel_basis basis = {0, s->product.q_limbs, s->product.p_limbs};
    limb_product p = {.prime = basis_prime(basis, limb, context_params(s->product.context)->q_count),
                      .part = part,
                      .parts = parts};
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

/* Component c of a product: of a prime of P, the residues that every other limb needs; of the others,
 * divided.
 */
static void hoisted_leave(const hoisted_shape *h, uint32_t out, uint32_t c, uint32_t limb,
                          const uint64_t *product) {
    const kernel_hoisted_switch_args *args = h->args;
    const switch_shape *s = h->shape;
    const size_t n = s->product.n;
    uint64_t *residue = hoisted_residue(h, out, c);
    if (limb >= s->product.q_limbs) {
        const uint32_t i = limb - s->product.q_limbs;
        source_limb((source_word *)(void *)(residue + i * n), product + c * n, h->down, i,
                    s->product.context);
        return;
    }
    const forward_store store = {.minuend = product + c * n, .factor = h->down->product_inverse[limb]};
    convert_limb(poly_limb(&args->out, c, limb, (uint32_t)n) + (size_t)out * args->out_batch_stride * n,
                 (const source_word *)(const void *)residue, h->down, s->product.context, limb, &store);
}

static uint64_t *hoisted_place(const hoisted_shape *h, uint32_t out, uint32_t limb) {
    const uint32_t outs = h->args->out_count, tasks = outs * h->shape->limbs;
    return h->product + 2 * (size_t)task_place(h->width, tasks, limb * outs + out) * h->shape->product.n;
}
static void hoisted_out_piece(const void *context, uint32_t out) {
    const hoisted_job *job = context;
    uint64_t *product = hoisted_place(job->h, out, job->limb);
    hoisted_product(product, job->h, job->digits, out, job->limb, 0, 1);
    for (uint32_t c = 0; c < 2; c++) hoisted_leave(job->h, out, c, job->limb, product);
}
static void hoisted_product_piece(const void *context, uint32_t part) {
    const hoisted_job *job = context;
    hoisted_product(job->product, job->h, job->digits, 0, job->limb, part, job->h->parts);
}
static void hoisted_leave_piece(const void *context, uint32_t component) {
    const hoisted_job *job = context;
    hoisted_leave(job->h, 0, component, job->limb, job->product);
}

static void hoisted_limb_task(const void *context, uint32_t task) {
    const hoisted_shape *h = context;
    const uint32_t limb = h->first + task, place = h->width <= h->count ? team_member() : limb;
    const hoisted_job job = {h, digits_place(h->shape, place), hoisted_place(h, 0, limb), limb};
    fill_digits(job.digits, h->shape, 0, limb);
    if (h->args->out_count > 1) {
        team_share(h->args->out_count, hoisted_out_piece, &job);
        return;
    }
    team_share(h->parts, hoisted_product_piece, &job);
    team_share(2, hoisted_leave_piece, &job);
}

static void hoisted_limbs(hoisted_shape *h, uint32_t first, uint32_t count, bool is_team) {
    h->first = first;
    h->count = count;
    team_each_shared(count, is_team, hoisted_limb_task, h);
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
    h.parts = product_parts(&shape, h.width);
    team_each(q_limbs, is_team, source_task, &shape);
    hoisted_limbs(&h, q_limbs, p_limbs, is_team); /* their residues are what the others divide by */
    hoisted_limbs(&h, 0, q_limbs, is_team);
}
