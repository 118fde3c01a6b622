/*
 * The transforms as kernels; template, included once per instruction set. One limb of one component is one
 * task; those of one prime follow each other, so that its roots are read once.
 */
#include "kernels/cpu/team.h"

typedef struct transform_shape {
    const kernel_unary_args *args;
    uint32_t n;
} transform_shape;

typedef struct transform_task {
    uint64_t *out;
    const uint64_t *in;
    const ntt_table *table;
} transform_task;

static transform_task transform_task_of(const transform_shape *s, uint32_t task) {
    const kernel_unary_args *args = s->args;
    const uint32_t i = task / args->out.component_count, c = task % args->out.component_count;
    return (transform_task){poly_limb(&args->out, c, i, s->n),
                            poly_limb(&args->a, c, basis_find(args->a.basis, args->out.basis, i), s->n),
                            tables_ntt(args->tables, args->out.basis, i)};
}

static void forward_task(const void *context, uint32_t task) {
    const transform_task t = transform_task_of(context, task);
    ISA(vector_forward)(t.out, t.in, t.table, NULL);
}

static void inverse_task(const void *context, uint32_t task) {
    const transform_task t = transform_task_of(context, task);
    ISA(vector_inverse)(t.out, t.in, t.table);
}

static void transform_all(const kernel_unary_args *args, team_task run) {
    const transform_shape shape = {args, tables_n(args->tables)};
    const uint32_t count = args->out.component_count * basis_limb_count(args->out.basis);
    team_each(count, (size_t)count * shape.n >= TEAM_WORDS_HEAVY, run, &shape);
}

void ISA(cpu_ntt_forward)(const void *arguments) {
    transform_all(arguments, forward_task);
}
void ISA(cpu_ntt_inverse)(const void *arguments) {
    transform_all(arguments, inverse_task);
}
