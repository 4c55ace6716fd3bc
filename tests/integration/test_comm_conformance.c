/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Every operation of a communicator against its definition: transports × types × reductions × sizes
 * × numbers of ranks, on real processes. Values are small whole numbers, so that every type holds
 * them and their sums exactly; the expected value of an element is computed in double from those of
 * all ranks. COMM_CASES=all runs every number of ranks from 1 to 8.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/integration/comm_processes.h"

/* ---- elements -------------------------------------------------------------------------------- */

static void put(enum comm_type type, double value, void *to, int64_t i)
{
    float single = (float)value;
    uint32_t bits;

    switch (type) {
    case COMM_UINT8:
    case COMM_BOOL:
        ((uint8_t *)to)[i] = (uint8_t)value;
        return;
    case COMM_INT8:
        ((int8_t *)to)[i] = (int8_t)value;
        return;
    case COMM_INT32:
        ((int32_t *)to)[i] = (int32_t)value;
        return;
    case COMM_INT64:
        ((int64_t *)to)[i] = (int64_t)value;
        return;
    case COMM_FP16:
        ((_Float16 *)to)[i] = (_Float16)single;
        return;
    case COMM_BF16: /* to the nearest, ties to even */
        memcpy(&bits, &single, sizeof(bits));
        ((uint16_t *)to)[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
        return;
    case COMM_FP32:
        ((float *)to)[i] = single;
        return;
    case COMM_FP64:
        ((double *)to)[i] = value;
        return;
    case COMM_COMPLEX64:
        ((float *)to)[2 * i] = single;
        ((float *)to)[2 * i + 1] = -single;
        return;
    case COMM_COMPLEX128:
        ((double *)to)[2 * i] = value;
        ((double *)to)[2 * i + 1] = -value;
        return;
    }
}

/* Element i of rank r's send buffer. */
static double value_of(const struct comm_call *call, int r, int64_t i)
{
    int64_t mixed = r * 7 + i * 3 + i / 5;

    if (call->type == COMM_BOOL)
        return (double)(mixed % 3 == 0);
    if (call->operation <= COMM_REDUCE_SCATTER && call->reduction == COMM_PROD)
        return (double)(1 + mixed % 2);
    return (double)(1 + mixed % 5);
}

static double reduced(const struct comm_call *call, int world, int64_t i)
{
    double result = value_of(call, 0, i);

    for (int r = 1; r < world; r++) {
        double x = value_of(call, r, i);
        if (call->reduction == COMM_MAX)
            result = fmax(result, x);
        else if (call->reduction == COMM_MIN)
            result = fmin(result, x);
        else if (call->reduction == COMM_PROD)
            result *= x;
        else
            result += x;
    }
    return call->reduction == COMM_AVG ? result / world : result;
}

/* ---- one case -------------------------------------------------------------------------------- */

#define UNEVEN    1 /* all_gather and all_to_all by sizes */
#define ANY_ORDER 2 /* the device's library may add in an order of its own */

struct test_case {
    enum comm_operation operation;
    int form; /* one of them, or 0 */
};

static const struct test_case cases[] = {
    {COMM_ALL_REDUCE, 0},
    {COMM_REDUCE, 0},
    {COMM_REDUCE_SCATTER, 0},
    {COMM_ALL_GATHER, 0},
    {COMM_ALL_GATHER, UNEVEN},
    {COMM_BROADCAST, 0},
    {COMM_SCATTER, 0},
    {COMM_ALL_TO_ALL, 0},
    {COMM_ALL_TO_ALL, UNEVEN},
    {COMM_MESSAGES, 0},
    {COMM_BARRIER, 0},
    {COMM_ALL_REDUCE, ANY_ORDER},
    {COMM_REDUCE_SCATTER, ANY_ORDER},
};
static const char *const form_names[] = {
    [UNEVEN] = " by sizes", [ANY_ORDER] = " in any order", [0] = ""};
#define CASES (sizeof(cases) / sizeof(cases[0]))

/* Elements from rank a to rank b in the uneven forms (all_gather: b = 0). */
static int64_t uneven(int64_t count, int a, int b)
{
    return (count * (1 + (a + 2 * b) % 3) + 2) / 3;
}

/* Where rank a's elements for rank b begin in its send buffer. */
static int64_t uneven_first(int64_t count, int a, int b)
{
    int64_t first = 0;

    for (int p = 0; p < b; p++)
        first += uneven(count, a, p);
    return first;
}

/* What element i of this rank's receive buffer must be, of those that rank `from` has sent. */
static double expected(const struct comm_call *call, const struct comm *comm, int from, int64_t i)
{
    int64_t count = call->count;

    switch (call->operation) {
    case COMM_ALL_REDUCE:
    case COMM_REDUCE:
        return reduced(call, comm->world, i);
    case COMM_REDUCE_SCATTER:
        return reduced(call, comm->world, comm->rank * count + i);
    case COMM_ALL_TO_ALL:
        return value_of(call, from,
                        call->send_counts ? uneven_first(count, from, comm->rank) + i
                                          : comm->rank * count + i);
    case COMM_SCATTER:
        return value_of(call, call->root, comm->rank * count + i);
    case COMM_BROADCAST:
        return value_of(call, call->root, i);
    default:
        return value_of(call, from, i);
    }
}

static int compare(const struct comm_call *call, const struct comm *comm, int from, const void *got,
                   int64_t first, int64_t count, struct fleet_error *err)
{
    size_t size = comm_type_size(call->type);

    for (int64_t i = 0; i < count; i++) {
        char wanted[16];
        put(call->type, expected(call, comm, from, i), wanted, 0);
        if (memcmp(wanted, (const char *)got + (size_t)(first + i) * size, size) != 0)
            return fleet_error(err, -EBADMSG, "wrong element %lld of %lld from rank %d: not %g",
                               (long long)i, (long long)count, from, expected(call, comm, from, i));
    }
    return 0;
}

struct buffers {
    char *send, *receive;
    size_t bytes;                       /* of each */
    char *device_send, *device_receive; /* their copies in the device's memory, if there is one */
    int64_t send_counts[COMM_PROCESSES_MAX], receive_counts[COMM_PROCESSES_MAX];
};

static int check_parts(const struct comm_call *call, const struct comm *comm, const char *got,
                       struct fleet_error *err)
{
    int64_t first = 0;
    int rc = 0;

    for (int r = 0; r < comm->world && rc == 0; r++) {
        int64_t count = call->receive_counts ? call->receive_counts[r] : call->count;
        rc = compare(call, comm, r, got, first, count, err);
        first += count;
    }
    return rc;
}

static int check(const struct comm_call *call, const struct comm *comm, const char *got,
                 struct fleet_error *err)
{
    if (call->operation == COMM_BARRIER ||
        (call->operation == COMM_REDUCE && comm->rank != call->root))
        return 0;
    if (call->operation == COMM_ALL_GATHER || call->operation == COMM_ALL_TO_ALL)
        return check_parts(call, comm, got, err);
    return compare(call, comm, -1, got, 0, call->count, err);
}

static void fill_counts(struct buffers *b, struct comm_call *call, const struct comm *comm)
{
    bool is_gather = call->operation == COMM_ALL_GATHER;

    for (int r = 0; r < comm->world; r++) {
        b->send_counts[r] = uneven(call->count, comm->rank, is_gather ? 0 : r);
        b->receive_counts[r] = uneven(call->count, r, is_gather ? 0 : comm->rank);
    }
    call->receive_counts = b->receive_counts;
    call->send_counts = is_gather ? NULL : b->send_counts;
}

/* ---- over the memory of a device ------------------------------------------------------------- */

static void *on_device(const struct buffers *b, const void *memory)
{
    const char *at = memory;

    if (at >= b->send && at < b->send + b->bytes)
        return b->device_send + (at - b->send);
    return at ? b->device_receive + (at - b->receive) : NULL;
}

/* Run the call over copies in the device's memory. */
static int run_on_device(struct comm *comm, struct comm_call call, const struct buffers *b,
                         struct fleet_error *err)
{
    const struct backend_vtable *v = comm_queue->vtable;
    struct comm_message messages[4];
    int rc;

    v->copy_in(comm_queue, b->device_send, b->send, b->bytes);
    v->copy_in(comm_queue, b->device_receive, b->receive, b->bytes);
    for (int i = 0; i < call.message_count; i++) {
        messages[i] = call.messages[i];
        messages[i].data = on_device(b, messages[i].data);
    }
    call.messages = messages;
    call.send = on_device(b, call.send);
    call.receive = on_device(b, call.receive);
    call.queue = comm_queue;
    rc = comm_run(comm, &call, comm_patience(), err);
    if (rc == 0) {
        v->copy_out(comm_queue, b->send, b->device_send, b->bytes);
        v->copy_out(comm_queue, b->receive, b->device_receive, b->bytes);
    }
    return rc;
}

static int run_call(struct comm *comm, const struct comm_call *call, const struct buffers *b,
                    struct fleet_error *err)
{
    return comm_queue ? run_on_device(comm, *call, b, err)
                      : comm_run(comm, call, comm_patience(), err);
}

/* ---- running --------------------------------------------------------------------------------- */

/* Two messages each way around the ring, posted in another order than they arrive. */
static int run_messages(struct comm *comm, const struct comm_call *call, struct buffers *b,
                        struct fleet_error *err)
{
    int next = (comm->rank + 1) % comm->world, last = (comm->rank + comm->world - 1) % comm->world;
    size_t bytes = (size_t)call->count * comm_type_size(call->type);
    char *second = b->receive + bytes;
    const struct comm_message messages[] = {
        {.peer = last,
         .is_receive = true,
         .data = b->receive,
         .count = call->count,
         .type = call->type},
        {.peer = next, .data = b->send, .count = call->count, .type = call->type},
        {.peer = next, .data = b->send, .count = call->count, .type = call->type},
        {.peer = last,
         .is_receive = true,
         .data = second,
         .count = call->count,
         .type = call->type},
    };
    const struct comm_call all = {.operation = COMM_MESSAGES,
                                  .messages = messages,
                                  .message_count = comm->world == 1 ? 0 : 4};
    int rc = run_call(comm, &all, b, err);

    if (comm->world == 1)
        return rc;
    if (rc == 0)
        rc = compare(call, comm, last, b->receive, 0, call->count, err);
    return rc == 0 ? compare(call, comm, last, second, 0, call->count, err) : rc;
}

static int run_case(struct comm *comm, const struct test_case *x, struct comm_call call,
                    struct buffers *b, struct fleet_error *err)
{
    int64_t elements = call.count * comm->world;
    bool in_place = call.operation == COMM_BROADCAST ||
                    (call.operation == COMM_ALL_REDUCE && call.count % 2 == 0);
    int rc;

    for (int64_t i = 0; i < elements; i++)
        put(call.type, value_of(&call, comm->rank, i), b->send, i);
    memset(b->receive, 0x55, (size_t)(2 * elements) * comm_type_size(call.type));
    if (x->form == UNEVEN)
        fill_counts(b, &call, comm);
    call.any_order = x->form == ANY_ORDER;
    call.send = b->send;
    call.receive = in_place ? b->send : b->receive;
    if (call.operation == COMM_BROADCAST && comm->rank != call.root)
        call.receive = b->receive;
    if (call.operation == COMM_MESSAGES)
        rc = run_messages(comm, &call, b, err);
    else
        rc = run_call(comm, &call, b, err);
    if (rc == 0 && call.operation != COMM_MESSAGES)
        rc = check(&call, comm, call.receive, err);
    return rc < 0 ? fleet_error_wrap(err, "%s%s %s of %lld %s", comm_operation_name(call.operation),
                                     form_names[x->form], comm_reduction_name(call.reduction),
                                     (long long)call.count, comm_type_name(call.type))
                  : 0;
}

/* ---- tables ---------------------------------------------------------------------------------- */

struct table {
    const int64_t *bytes; /* sizes, ended by -1 */
    int64_t bytes_max;
    bool all_types;     /* else fp32 and int8 */
    bool has_all_cases; /* else all_reduce, broadcast, messages */
};

static bool is_reduced(enum comm_type type, enum comm_reduction reduction)
{
    if (type == COMM_BOOL)
        return reduction == COMM_MAX || reduction == COMM_MIN;
    return type < COMM_COMPLEX64 && (type > COMM_INT64 || reduction != COMM_AVG);
}

/* An order of the device's library: the quotient of three ranks depends on it. */
static bool has_form(const struct comm *comm, const struct test_case *x,
                     enum comm_reduction reduction)
{
    return x->form != ANY_ORDER ||
           (comm_queue && (reduction != COMM_AVG || (comm->world & (comm->world - 1)) == 0));
}

static bool is_chosen(const struct table *table, const struct test_case *x, enum comm_type type,
                      enum comm_reduction reduction)
{
    bool reduces = x->operation <= COMM_REDUCE_SCATTER;
    bool is_large_one = x->operation == COMM_ALL_REDUCE || x->operation == COMM_BROADCAST ||
                        x->operation == COMM_MESSAGES;

    if (!table->all_types && type != COMM_FP32 && (type != COMM_INT8 || !table->has_all_cases))
        return false;
    if (!table->has_all_cases && (!is_large_one || reduction != COMM_SUM))
        return false;
    return reduces ? is_reduced(type, reduction) : reduction == COMM_SUM;
}

static int run_table(struct comm *comm, const void *argument, struct fleet_error *err)
{
    const struct table *table = argument;
    size_t room = (size_t)(table->bytes_max + 64) * (size_t)comm->world;
    struct buffers b = {.send = calloc(2, room), .receive = calloc(2, room), .bytes = 2 * room};
    int rc = 0;

    fleet_assert(b.send && b.receive);
    if (comm_queue) {
        b.device_send = comm_queue->vtable->allocate(comm_queue, b.bytes, err);
        b.device_receive = comm_queue->vtable->allocate(comm_queue, b.bytes, err);
        if (!b.device_send || !b.device_receive)
            return -ENOMEM;
    }
    for (size_t c = 0; c < CASES; c++)
        for (int type = 0; type < COMM_TYPES; type++)
            for (int reduction = 0; reduction < COMM_REDUCTIONS; reduction++)
                for (const int64_t *bytes = table->bytes; *bytes >= 0 && rc == 0; bytes++) {
                    struct comm_call call = {.operation = cases[c].operation,
                                             .type = (enum comm_type)type,
                                             .reduction = (enum comm_reduction)reduction};
                    if (!is_chosen(table, &cases[c], call.type, call.reduction) ||
                        !has_form(comm, &cases[c], call.reduction))
                        continue;
                    /* sizes below 64 are counts of elements */
                    call.count = *bytes < 64 ? *bytes : *bytes / (int64_t)comm_type_size(call.type);
                    call.root = (type + reduction) % comm->world;
                    rc = run_case(comm, &cases[c], call, &b, err);
                }
    if (comm_queue) {
        comm_queue->vtable->deallocate(comm_queue, b.device_send);
        comm_queue->vtable->deallocate(comm_queue, b.device_receive);
    }
    free(b.send);
    free(b.receive);
    return rc;
}

/* More is too much for kernels on the emulator and ranks that meet in files. */
static bool is_for_fakes(const struct table *table, int world)
{
    return world == 3 && table->bytes_max < 100000;
}

static void check_outcomes(const struct comm_way *way, int world, const struct comm_outcome *out)
{
    for (int r = 0; r < world; r++) {
        if (out[r].rc != 0 || !out[r].has_ended)
            fail_msg("%s, rank %d of %d: %d %s", way->name, r, world, out[r].rc, out[r].text);
        if (!comm_has_used(way, &out[r]))
            fail_msg("%s, rank %d of %d has not used its library", way->name, r, world);
    }
    if (comm_on_gpu())
        print_message("NCCL %d: %d ranks on the GPU, %ld calls of the first\n", out[0].nccl_version,
                      world, out[0].library_calls);
}

static void run_ways(const struct table *table, const int *worlds)
{
    static const int on_gpu[] = {2, 4, 0};

    for (worlds = comm_on_gpu() ? on_gpu : worlds; *worlds; worlds++)
        for (size_t w = 0; w < sizeof(comm_ways) / sizeof(comm_ways[0]); w++) {
            struct comm_outcome out[COMM_PROCESSES_MAX];
            if (!comm_has_way(&comm_ways[w]) ||
                (comm_ways[w].on_device && !comm_on_gpu() && !is_for_fakes(table, *worlds)))
                continue;
            comm_processes_run(*worlds, &comm_ways[w], run_table, table, -1, out);
            check_outcomes(&comm_ways[w], *worlds, out);
        }
}

static void test_comm__every_operation_on_every_type_in_every_world(void **state)
{
    static const int64_t bytes[] = {0, 1, 17, -1};
    static const int few[] = {1, 3, 0}, some[] = {1, 2, 3, 8, 0};
    static const int all[] = {1, 2, 3, 4, 5, 6, 7, 8, 0};
    const struct table table = {bytes, 17 * 16, true, true};

    (void)state;
    run_ways(&table, comm_all_cases() ? all : comm_few_cases() ? few : some);
}

static void test_comm__every_operation_on_what_fills_buffers(void **state)
{
    static const int64_t usual[] = {4096, (1 << 20) + 12, -1}, less[] = {4096, 120012, -1};
    static const int few[] = {3, 0}, some[] = {2, 3, 0}, all[] = {2, 3, 4, 5, 6, 7, 8, 0};
    const struct table table = {comm_few_cases() ? less : usual, (1 << 20) + 12, false, true};

    (void)state;
    run_ways(&table, comm_all_cases() ? all : comm_few_cases() ? few : some);
}

static void test_comm__every_operation_on_uneven_ranges_of_a_device(void **state)
{
    static const int64_t bytes[] = {4096, 20012, -1};
    static const int worlds[] = {3, 0};
    const struct table table = {bytes, 20012, false, true};

    (void)state;
    run_ways(&table, worlds);
}

static void test_comm__large_operations(void **state)
{
    static const int64_t large[] = {64 << 20, -1}, less[] = {1 << 20, -1};
    static const int some[] = {2, 0}, all[] = {2, 3, 4, 0};
    const struct table table = {comm_few_cases() ? less : large, 64 << 20, false, comm_all_cases()};

    (void)state;
    run_ways(&table, comm_all_cases() ? all : some);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm__every_operation_on_every_type_in_every_world),
        cmocka_unit_test(test_comm__every_operation_on_what_fills_buffers),
        cmocka_unit_test(test_comm__every_operation_on_uneven_ranges_of_a_device),
        cmocka_unit_test(test_comm__large_operations),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
