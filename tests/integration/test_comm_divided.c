/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Sums of divided gradients between devices (agent/runtime/executor/divided_sum.h), over the fakes
 * or on a GPU that all ranks share: each rank holds the bits of the sequential tree, as if the host
 * had added, and NCCL has carried the parts.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "libfleet/plan/adders.h"
#include "tests/integration/comm_processes.h"
#include "tests/support/divided_job.h"
#include "tests/support/own_folder.h"

#define SLOTS_MAX 16

static const struct comm_way *const way = COMM_WAY_NCCL;

/* Of one rank; device memory, but `host`, which has as many elements as the program. */
struct memory {
    float *slots[SLOTS_MAX], *bucket, *host;
};

static int64_t held_elements(const struct divided_job *job, int rank)
{
    return ownership_elements(&job->map, OWNERSHIP_GRADIENTS, job->program.flat_count, rank);
}

static int allocate(const struct divided_job *job, int rank, struct memory *out,
                    struct fleet_error *err)
{
    int64_t whole = job->program.flat_count;
    int64_t added = adders_elements(&job->map, whole, rank, 0, whole);
    int slots = adders_slots(job->the->leaves, job->the->world);

    out->host = malloc((size_t)whole * sizeof(float));
    out->bucket = comm_queue->vtable->allocate(comm_queue, (size_t)whole * sizeof(float), err);
    for (int i = 0; i < slots && out->bucket; i++) {
        int64_t count = i > 0 ? added : held_elements(job, rank);
        out->slots[i] =
            comm_queue->vtable->allocate(comm_queue, (size_t)(count + 1) * sizeof(float), err);
        if (!out->slots[i])
            return -ENOMEM;
    }
    return out->host && out->bucket ? 0 : -ENOMEM;
}

static void release(struct memory *m)
{
    for (int i = 0; i < SLOTS_MAX; i++)
        if (m->slots[i])
            comm_queue->vtable->deallocate(comm_queue, m->slots[i]);
    if (m->bucket)
        comm_queue->vtable->deallocate(comm_queue, m->bucket);
    free(m->host);
}

/* Two buckets a round, the later elements first. */
static int sum_rounds(const struct divided_job *job, struct comm *comm, struct divided_sum *sum,
                      const struct memory *m, struct fleet_error *err)
{
    int64_t cut = job->program.vars[2].flat_offset;
    struct divided_range ranges[] = {{cut, job->program.flat_count - cut}, {0, cut}};
    int rc = 0;

    divided_sum_begin(sum, job->the->leaves);
    for (int64_t leaf = comm->rank; leaf - comm->rank < job->the->leaves && rc == 0;
         leaf += comm->world) {
        for (int i = 0; i < 2 && rc == 0; i++) {
            divided_job_fill(job, leaf, ranges[i], m->host);
            comm_queue->vtable->copy_in(comm_queue, m->bucket, m->host,
                                        (size_t)ranges[i].count * sizeof(float));
            rc = divided_sum_add(sum, comm, comm_queue, ranges[i], m->bucket, NULL, comm_patience(),
                                 err);
        }
        divided_sum_next_round(sum);
    }
    return rc < 0 ? rc : divided_sum_share(sum, comm, comm_queue, comm_patience(), err);
}

/* A full round as a graph. It has run before, so its memory is there. */
static int graph_round(const struct divided_job *job, struct comm *comm, struct divided_sum *sum,
                       const struct memory *m, struct backend_graph **graph,
                       struct fleet_error *err)
{
    const struct comm_call end = {.operation = COMM_BARRIER, .queue = comm_queue};
    const struct run_scalars scalars = {.update_1based = 1};
    const struct divided_range all = {0, job->program.flat_count};
    int rc = backend_capture_begin(comm_queue, err);

    if (rc < 0)
        return rc;
    sum->is_captured = true;
    rc = divided_sum_add(sum, comm, comm_queue, all, m->bucket, NULL, comm_patience(), err);
    if (rc == 0 && sum->done + sum->world == sum->leaves)
        rc = divided_sum_share(sum, comm, comm_queue, comm_patience(), err);
    sum->is_captured = false;
    if (rc < 0) {
        (void)backend_capture_end(comm_queue, NULL, NULL);
        return rc;
    }
    rc = backend_capture_end(comm_queue, graph, err);
    if (rc == 0)
        rc = backend_replay(comm_queue, *graph, &scalars, err);
    return rc < 0 ? rc : comm_run(comm, &end, comm_patience(), err);
}

/* All rounds, each as one bucket; the full ones as graphs if `captures`. */
static int sum_whole(const struct divided_job *job, struct comm *comm, struct divided_sum *sum,
                     const struct memory *m, bool captures, struct fleet_error *err)
{
    const struct divided_range all = {0, job->program.flat_count};
    int rc = 0;

    divided_sum_begin(sum, job->the->leaves);
    for (int64_t leaf = comm->rank; leaf - comm->rank < job->the->leaves && rc == 0;
         leaf += comm->world) {
        struct backend_graph *graph = NULL;

        if (leaf < job->the->leaves)
            divided_job_fill(job, leaf, all, m->host);
        comm_queue->vtable->copy_in(comm_queue, m->bucket, m->host,
                                    (size_t)all.count * sizeof(float));
        if (captures && divided_sum_is_full(sum))
            rc = graph_round(job, comm, sum, m, &graph, err);
        else
            rc = divided_sum_add(sum, comm, comm_queue, all, m->bucket, NULL, comm_patience(), err);
        backend_graph_free(comm_queue, graph); /* before the communicator */
        divided_sum_next_round(sum);
    }
    if (rc == 0 && (!captures || job->the->leaves % job->the->world != 0))
        rc = divided_sum_share(sum, comm, comm_queue, comm_patience(), err);
    return rc;
}

static int sum_body(struct comm *comm, const void *argument, struct fleet_error *err)
{
    const struct divided_job *job = argument;
    struct memory m = {.host = NULL};
    struct divided_sum sum;
    int rc = allocate(job, comm->rank, &m, err);

    divided_sum_init(&sum, &job->program, &job->map, comm->rank, m.slots);
    comm_library_calls = 0;
    for (int update = 0; update < 3 && rc == 0; update++) { /* later ones find old sums */
        rc = update == 0 ? sum_rounds(job, comm, &sum, &m, err)
                         : sum_whole(job, comm, &sum, &m, update == 2, err);
        if (rc == 0)
            comm_queue->vtable->copy_out(comm_queue, m.host, m.slots[0],
                                         (size_t)held_elements(job, comm->rank) * sizeof(float));
        if (rc == 0)
            rc = divided_job_expect(job, comm->rank, m.host, err);
    }
    divided_sum_release(&sum);
    release(&m);
    return rc;
}

static void test_comm_divided__devices_hold_the_bits_of_the_sequential_tree(void **state)
{
    static const struct divided_case cases[] = {{2, 2, 1, false, true},  {2, 2, 2, false, true},
                                                {2, 2, 11, true, false}, {3, 3, 7, false, true},
                                                {3, 3, 12, true, true},  {4, 2, 13, false, true},
                                                {4, 4, 16, true, true},  {4, 1, 6, false, true},
                                                {5, 2, 11, true, true},  {2, 2, 23, false, false}};

    (void)state;
    (void)setenv("FAKE_NCCL_FOLDER", own_folder, 1);
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        struct comm_outcome out[COMM_PROCESSES_MAX];
        struct divided_job job;

        divided_job_make(&cases[i], divided_small, &job);
        comm_processes_run(cases[i].world, way, sum_body, &job, -1, out);
        for (int r = 0; r < cases[i].world; r++)
            if (!out[r].has_ended || out[r].rc != 0 || out[r].library_calls == 0)
                fail_msg("case %zu, rank %d: %d %s, %ld calls of NCCL", i, r, out[r].rc,
                         out[r].text, out[r].library_calls);
        divided_job_release(&job);
    }
}

/* ---- failures -------------------------------------------------------------------------------- */

#define VICTIM 1
#define SYSTEM 2 /* ncclSystemError: of a connection */

static char fault[320], reached[256]; /* FAKE_NCCL_FAIL of one rank; the file that it makes */

static int fault_body(struct comm *comm, const void *argument, struct fleet_error *err)
{
    int rc;

    if (comm->rank == VICTIM)
        (void)setenv("FAKE_NCCL_FAIL", fault, 1);
    rc = comm_open_device(comm, comm_patience(), err);
    return rc < 0 ? rc : sum_body(comm, argument, err);
}

static void test_comm_divided__each_call_that_fails_is_one_clear_error(void **state)
{
    static const struct comm_way host = {"host", COMM_NEIGHBOURS_TCP, 1, false, false, NULL};
    static const struct divided_case small = {2, 2, 2, false, true};
    struct comm_outcome out[COMM_PROCESSES_MAX];
    struct divided_job job;
    long n = 1, failures = 0;

    (void)state;
    (void)setenv("FAKE_NCCL_FOLDER", own_folder, 1);
    (void)snprintf(reached, sizeof(reached), "%s/reached", own_folder);
    divided_job_make(&small, divided_small, &job);
    for (;; n++) {
        (void)snprintf(fault, sizeof(fault), "%ld:%d:%s", n, SYSTEM, reached);
        (void)unlink(reached);
        comm_processes_run(small.world, &host, fault_body, &job, -1, out);
        for (int r = 0; r < small.world; r++)
            if (!out[r].has_ended || (out[r].rc != 0 && !out[r].text[0]))
                fail_msg("call %ld, rank %d: %d %s", n, r, out[r].rc, out[r].text);
        if (access(reached, F_OK) != 0)
            break;
        failures += out[VICTIM].rc != 0;
    }
    assert_int_equal(out[VICTIM].rc, 0);
    assert_true(failures > n / 2); /* aborting may fail without consequences */
    divided_job_release(&job);
}

/* A round of more ranks, or of more micro-batches, than a kernel adds is the host's. */
static void test_comm_divided__what_does_not_fit_a_kernel_is_the_host_s(void **state)
{
    (void)state;
    assert_true(adders_fit_device(2, 1));
    assert_true(adders_fit_device(112, 32767));
    assert_false(adders_fit_device(113, 1));
    assert_false(adders_fit_device(2, 32768));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_divided__devices_hold_the_bits_of_the_sequential_tree),
        cmocka_unit_test(test_comm_divided__each_call_that_fails_is_one_clear_error),
        cmocka_unit_test(test_comm_divided__what_does_not_fit_a_kernel_is_the_host_s),
    };

    const struct CMUnitTest on_gpu[] = {
        cmocka_unit_test(test_comm_divided__devices_hold_the_bits_of_the_sequential_tree),
        cmocka_unit_test(test_comm_divided__what_does_not_fit_a_kernel_is_the_host_s),
    };

    if (!comm_has_way(way))
        return 0;
    return comm_on_gpu() ? cmocka_run_group_tests(on_gpu, own_folder_make, own_folder_remove)
                         : cmocka_run_group_tests(tests, own_folder_make, own_folder_remove);
}
