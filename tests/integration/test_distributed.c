/* SPDX-License-Identifier: Apache-2.0 */

/*
 * fleet.h by real processes that load libfleet.so, three for each case: every operation against
 * values computed by hand, and every wrong use, which must be one error and no hang. The last tests
 * look at the library as a file: its symbols, and a C++ program made from the installed package.
 */
#include <errno.h>

#include "include/fleet/fleet_cpu.h"
#include "include/fleet/fleet_role.h"
#include "tests/integration/library_processes.h"

#define WORLD 3

static struct fleet_tensor of(int32_t *data, int64_t count)
{
    return (struct fleet_tensor){data, FLEET_INT32, 1, {count}};
}

/* ---- every operation ------------------------------------------------------------------------- */

static void reductions(void)
{
    int32_t a[2] = {rank + 1, 10 * rank}, parts[3] = {rank, 10 + rank, 20 + rank}, mine = -1;
    struct fleet_tensor t = of(a, 2), in = of(parts, 3), out = of(&mine, 1);

    CHECK(fleet_env_init(&err) == 0);
    CHECK(fleet_env_init(&err) == 0 && fleet_is_initialized());
    CHECK(fleet_rank(NULL) == rank && fleet_world_size(NULL) == WORLD);
    CHECK(fleet_all_reduce(&t, FLEET_SUM, NULL, NULL, &err) == 0);
    CHECK(a[0] == 6 && a[1] == 30);
    a[0] = rank;
    CHECK(fleet_reduce(&t, 2, FLEET_MAX, NULL, NULL, &err) == 0);
    CHECK(a[0] == rank || rank == 2);
    CHECK(rank != 2 || (a[0] == 2 && a[1] == 30));
    CHECK(fleet_reduce_scatter(&out, &in, FLEET_SUM, NULL, NULL, &err) == 0);
    CHECK(mine == 30 * rank + 3);
    CHECK(fleet_barrier(NULL, &err) == 0);
}

static void copies(void)
{
    int32_t one = rank + 5, all[3] = {0}, list[3] = {10 * rank, 10 * rank + 1, 10 * rank + 2};
    struct fleet_tensor t = of(&one, 1), out = of(all, 3), in = of(list, 3);

    CHECK(fleet_env_init(&err) == 0);
    CHECK(fleet_all_gather(&out, &t, NULL, NULL, &err) == 0);
    CHECK(all[0] == 5 && all[1] == 6 && all[2] == 7);
    CHECK(fleet_all_to_all(&out, &in, NULL, NULL, &err) == 0);
    CHECK(all[0] == rank && all[1] == 10 + rank && all[2] == 20 + rank);
    CHECK(fleet_scatter(&t, rank == 1 ? &in : NULL, 1, NULL, NULL, &err) == 0);
    CHECK(one == 10 + rank);
    CHECK(fleet_broadcast(&t, 2, NULL, NULL, &err) == 0 && one == 12);
}

static void messages(void)
{
    int32_t mine = 100 + rank, got = 0;
    struct fleet_p2p both[2] = {{true, (rank + 1) % WORLD, of(&got, 1)},
                                {false, (rank + 2) % WORLD, of(&mine, 1)}};
    struct fleet_tensor t = of(&got, 1), own = of(&mine, 1);
    struct fleet_task *task = NULL;

    CHECK(fleet_env_init(&err) == 0);
    CHECK(fleet_batch_p2p(both, 2, NULL, NULL, &err) == 0);
    CHECK(got == 100 + (rank + 1) % WORLD);
    if (rank == 0)
        CHECK(fleet_send(&own, 1, NULL, NULL, &err) == 0);
    if (rank == 1)
        CHECK(fleet_recv(&t, 0, NULL, NULL, &err) == 0 && got == 100);
    if (rank == 1)
        CHECK(fleet_send(&own, 2, NULL, &task, &err) == 0);
    if (rank == 2)
        CHECK(fleet_recv(&t, 1, NULL, &task, &err) == 0);
    CHECK(rank == 0 || fleet_task_wait(task, &err) == 0);
    CHECK(rank != 2 || got == 101);
    fleet_task_free(task);
    CHECK(fleet_all_reduce(&own, FLEET_SUM, NULL, &task, &err) == 0);
    CHECK(fleet_barrier(NULL, &err) == -EBUSY);
    CHECK(fleet_task_wait(task, &err) == 0 && mine == 303);
    CHECK(fleet_task_done(task, &err) == 1);
    fleet_task_free(task);
}

static void bytes(void)
{
    const char *words[] = {"", "one", "twenty"};
    size_t sizes[3], size = rank == 1 ? 4 : 0;
    void *all = NULL, *data = rank == 1 ? (void *)"four" : NULL;

    CHECK(fleet_env_init(&err) == 0);
    CHECK(fleet_all_gather_bytes(words[rank], strlen(words[rank]), sizes, &all, NULL, &err) == 0);
    CHECK(sizes[0] == 0 && sizes[1] == 3 && sizes[2] == 6 && !memcmp(all, "onetwenty", 9));
    free(all);
    CHECK(fleet_broadcast_bytes(&data, &size, 1, NULL, &err) == 0);
    CHECK(size == 4 && !memcmp(data, "four", 4));
    if (rank != 1)
        free(data);
    for (int i = 0; i < WORLD; i++)
        sizes[i] = strlen(words[i]);
    CHECK(fleet_scatter_bytes(&data, &size, rank == 2 ? (const void *const *)words : NULL,
                              rank == 2 ? sizes : NULL, 2, NULL, &err) == 0);
    CHECK(size == strlen(words[rank]) && !memcmp(data, words[rank], size));
    free(data);
    CHECK(fleet_scatter_bytes(NULL, &size, NULL, NULL, 2, NULL, &err) == -EINVAL);
    CHECK(fleet_scatter_bytes(&data, &size, NULL, NULL, 3, NULL, &err) == -EINVAL);
}

/* Rank r sends r + 1 rows of two elements to each rank, with values 100 r + 10 to + element. */
static void any_length(void)
{
    int32_t in[3 * 3 * 2], out[6 * 2];
    int64_t in_rows[WORLD], out_rows[WORLD] = {1, 2, 3};
    struct fleet_tensor send = {in, FLEET_INT32, 2, {(rank + 1) * (int64_t)WORLD, 2}},
                        receive = {out, FLEET_INT32, 2, {6, 2}};
    struct fleet_task *task;
    int at = 0;

    CHECK(fleet_env_init(&err) == 0);
    for (int to = 0; to < WORLD; to++) {
        in_rows[to] = rank + 1;
        for (int i = 0; i < 2 * (rank + 1); i++)
            in[at++] = 100 * rank + 10 * to + i;
    }
    CHECK(fleet_all_to_all_v(&receive, out_rows, &send, in_rows, NULL, &task, &err) == 0);
    CHECK(fleet_task_wait(task, &err) == 0);
    fleet_task_free(task);
    at = 0;
    for (int from = 0; from < WORLD; from++)
        for (int i = 0; i < 2 * (from + 1); i++)
            CHECK(out[at++] == 100 * from + 10 * rank + i);
    CHECK(fleet_all_to_all_v(&receive, out_rows, &send, NULL, NULL, NULL, &err) == -EINVAL);
    in_rows[0]++;
    CHECK(fleet_all_to_all_v(&receive, out_rows, &send, in_rows, NULL, NULL, &err) == -EINVAL);
    CHECK(strstr(err.text, "in_rows do not add up to"));
    in_rows[0] = -1;
    CHECK(fleet_all_to_all_v(&receive, out_rows, &send, in_rows, NULL, NULL, &err) == -EINVAL);
}

static void helpers(void)
{
    int32_t a = rank + 1, all[3] = {0};
    struct fleet_tensor t = of(&a, 1), out = of(all, 3);

    CHECK(fleet_util_barrier("worker", &err) == FLEET_NOT_INITIALIZED);
    CHECK(fleet_env_init(&err) == 0);
    CHECK(fleet_util_all_gather(&out, &t, "worker", &err) == 0 && all[2] == 3);
    CHECK(fleet_util_all_reduce(&t, "max", "worker", &err) == 0 && a == 3);
    CHECK(fleet_util_all_reduce(&t, "sum", "worker", &err) == 0 && a == 9);
    CHECK(fleet_util_barrier("worker", &err) == 0);
    CHECK(fleet_util_barrier("server", &err) == -ENOTSUP);
    CHECK(fleet_util_all_reduce(&t, "avg", "worker", &err) == -EINVAL &&
          strstr(err.text, "\"avg\""));
    CHECK(fleet_util_all_gather(&out, &t, "workers", &err) == -EINVAL);
}

static void host_world(void)
{
    CHECK(fleet_cpu_barrier(&err) == FLEET_NOT_INITIALIZED);
    CHECK(fleet_cpu_env_init(0, 1, master, &err) == -EINVAL);
    CHECK(fleet_cpu_env_init(WORLD, WORLD, master, &err) == -EINVAL);
    CHECK(fleet_cpu_env_init(rank, WORLD, "nowhere", &err) == -EINVAL);
    CHECK(fleet_cpu_env_init(rank, WORLD, master, &err) == 0);
    CHECK(fleet_cpu_env_init(rank, WORLD, master, &err) == 0);
    for (int i = 0; i < 3; i++)
        CHECK(fleet_cpu_barrier(&err) == 0);
    CHECK(!fleet_is_initialized());
    fleet_cpu_env_release();
    fleet_cpu_env_release();
}

/* Rank 2 does not come. */
static void host_world_without_one(void)
{
    if (rank == 2)
        return;
    set_number("PADDLE_PG_TIMEOUT", rank == 0 ? 300 : 1000);
    CHECK(fleet_cpu_env_init(rank, WORLD, master, &err) < 0);
    CHECK(rank != 0 || (err.code == -ETIMEDOUT && strstr(err.text, "did not come in time")));
}

/* Rank 0 expects a row more of rank 1 and one less of rank 2. */
static void other_lengths(void)
{
    int32_t in[3] = {0}, out[3];
    int64_t in_rows[WORLD] = {1, 1, 1}, out_rows[WORLD] = {1, 1, 1};
    struct fleet_tensor send = of(in, 3), receive = of(out, 3);
    int rc;

    CHECK(fleet_env_init(&err) == 0);
    if (rank == 0) {
        out_rows[1] = 2;
        out_rows[2] = 0;
    }
    rc = fleet_all_to_all_v(&receive, out_rows, &send, in_rows, NULL, NULL, &err);
    CHECK(rank != 0 || rc == -EPROTO); /* the others may have all that they need */
}

static void groups(void)
{
    const int list[] = {2, 0};
    int32_t mine = rank + 1;
    struct fleet_tensor t = of(&mine, 1);
    struct fleet_group *group = NULL;

    CHECK(fleet_env_init(&err) == 0);
    CHECK(fleet_group_new(list, 2, 0, &group, &err) == 0);
    CHECK(fleet_group_id(group) == 1 && fleet_group_by_id(1) == group && !fleet_group_by_id(7));
    if (rank == 1) {
        CHECK(fleet_rank(group) == -1 && fleet_world_size(group) == -1);
        CHECK(!fleet_group_backend(group));
        CHECK(fleet_all_reduce(&t, FLEET_SUM, group, NULL, &err) == FLEET_NOT_MEMBER);
        CHECK(mine == 2 && strstr(err.text, "rank 1 is not a member of group 1"));
    } else {
        CHECK(fleet_rank(group) == rank / 2 && fleet_world_size(group) == 2);
        CHECK(fleet_broadcast(&t, 1, group, NULL, &err) == -EINVAL);
        CHECK(fleet_broadcast(&t, 2, group, NULL, &err) == 0 && mine == 3);
    }
    fleet_group_free(group);
    CHECK(fleet_barrier(NULL, &err) == 0);
}

static void test_distributed__reductions(void **state)
{
    (void)state;
    run_processes(WORLD, reductions, -1);
}

static void test_distributed__copies(void **state)
{
    (void)state;
    run_processes(WORLD, copies, -1);
}

static void test_distributed__messages_and_tasks(void **state)
{
    (void)state;
    run_processes(WORLD, messages, -1);
}

static void test_distributed__bytes(void **state)
{
    (void)state;
    run_processes(WORLD, bytes, -1);
}

static void test_distributed__parts_of_any_length(void **state)
{
    (void)state;
    run_processes(WORLD, any_length, -1);
}

static void test_distributed__parts_of_other_lengths_than_expected(void **state)
{
    (void)state;
    run_processes(WORLD, other_lengths, -1);
}

static void test_distributed__helpers_of_utilbase(void **state)
{
    (void)state;
    run_processes(WORLD, helpers, -1);
}

static void test_distributed__a_world_of_the_host_by_one_address(void **state)
{
    (void)state;
    run_processes(WORLD, host_world, -1);
}

static void test_distributed__a_world_of_the_host_names_who_is_missing(void **state)
{
    (void)state;
    run_processes(WORLD, host_world_without_one, -1);
}

static void test_distributed__a_group_and_a_rank_outside(void **state)
{
    (void)state;
    run_processes(WORLD, groups, -1);
}

/* ---- wrong use ------------------------------------------------------------------------------- */

static void arguments(void)
{
    int32_t a[4] = {0};
    struct fleet_tensor two = of(a, 2), four = of(a, 4), bad = two, fp = two;

    CHECK(fleet_all_reduce(&two, FLEET_SUM, NULL, NULL, &err) == FLEET_NOT_INITIALIZED);
    CHECK(fleet_rank(NULL) == rank && !fleet_is_initialized() && fleet_is_available());
    CHECK(fleet_env_init(&err) == 0);
    CHECK(fleet_all_reduce(NULL, FLEET_SUM, NULL, NULL, &err) == -EINVAL);
    CHECK(fleet_all_reduce(&two, (enum fleet_reduce_op)9, NULL, NULL, &err) == -EINVAL);
    CHECK(fleet_all_reduce(&two, FLEET_AVG, NULL, NULL, &err) == -EINVAL);
    CHECK(fleet_broadcast(&two, 3, NULL, NULL, &err) == -EINVAL);
    CHECK(strstr(err.text, "rank 3"));
    bad.type = (enum fleet_type)99;
    CHECK(fleet_all_reduce(&bad, FLEET_SUM, NULL, NULL, &err) == -EINVAL);
    bad = two;
    bad.shape[0] = -1;
    CHECK(fleet_all_reduce(&bad, FLEET_SUM, NULL, NULL, &err) == -EINVAL);
    CHECK(fleet_all_gather(&four, &two, NULL, NULL, &err) == -EINVAL);
    CHECK(strstr(err.text, "out has 4 elements, needed: 3 ranks × 2 of in"));
    CHECK(fleet_all_to_all(&four, &four, NULL, NULL, &err) == -EINVAL);
    fp.type = FLEET_FP32;
    CHECK(fleet_all_to_all(&fp, &two, NULL, NULL, &err) == -EINVAL);
    CHECK(fleet_send(&two, rank, NULL, NULL, &err) == -EINVAL);
    CHECK(fleet_barrier(NULL, &err) == 0);
}

static void another_order(void)
{
    int32_t a[2] = {0};
    struct fleet_tensor t = of(a, 2);

    CHECK(fleet_env_init(&err) == 0);
    if (rank == 1)
        CHECK(fleet_barrier(NULL, &err) < 0);
    else
        CHECK(fleet_all_reduce(&t, FLEET_SUM, NULL, NULL, &err) < 0);
    CHECK(err.code == -EPROTO || err.code == -ECONNRESET);
    CHECK(fleet_barrier(NULL, &err) == -ECONNABORTED);
}

static void another_size(void)
{
    int32_t a[3] = {0};
    struct fleet_tensor t = of(a, rank == 2 ? 3 : 2);

    CHECK(fleet_env_init(&err) == 0);
    CHECK(fleet_all_reduce(&t, FLEET_SUM, NULL, NULL, &err) < 0);
}

static void a_dead_peer(void)
{
    int32_t one = 1;
    struct fleet_tensor t = of(&one, 1);

    CHECK(fleet_env_init(&err) == 0);
    CHECK(fleet_barrier(NULL, &err) == 0);
    if (rank == 1)
        (void)raise(SIGKILL);
    while (fleet_all_reduce(&t, FLEET_SUM, NULL, NULL, &err) == 0)
        continue;
    CHECK(err.code == -ECONNRESET || err.code == -EPROTO);
}

static void wrong_variables(void)
{
    struct fleet_env env;

    CHECK(fleet_env_read(&env, &err) == 0 && env.rank == rank && env.world == WORLD);
    (void)setenv("PADDLE_TRAINER_ID", "3", 1);
    CHECK(fleet_env_init(&err) == -EINVAL && strstr(err.text, "PADDLE_TRAINER_ID"));
    CHECK(fleet_rank(NULL) == -1);
    (void)setenv("PADDLE_TRAINER_ID", "0", 1);
    (void)setenv("PADDLE_TRAINER_ENDPOINTS", "127.0.0.1:1,127.0.0.1:2", 1);
    CHECK(fleet_env_init(&err) == -EINVAL && strstr(err.text, "has 2 endpoints"));
    (void)unsetenv("PADDLE_TRAINER_ENDPOINTS");
    CHECK(fleet_env_init(&err) == -EINVAL && strstr(err.text, "required for 3 ranks"));
}

static void encryption_refused(void)
{
    (void)setenv("FLEET_DATA_ENCRYPTION", "aes", 1);
    CHECK(fleet_env_init(&err) == -EINVAL && strstr(err.text, "FLEET_DATA_ENCRYPTION: is \"aes\""));
    CHECK(fleet_cpu_env_init(rank, world, master, &err) == -EINVAL);
    (void)setenv("FLEET_DATA_ENCRYPTION", "AES-GCM", 1);
    (void)setenv("FLEET_WORLD_SECRET", "", 1);
    CHECK(fleet_env_init(&err) == -EINVAL && strstr(err.text, "needs FLEET_WORLD_SECRET"));
    (void)unsetenv("FLEET_WORLD_SECRET");
    CHECK(fleet_env_init(&err) == -EINVAL && strstr(err.text, "needs FLEET_WORLD_SECRET"));
}

static void encrypted(void)
{
    (void)setenv("FLEET_DATA_ENCRYPTION", "AES-GCM", 1);
    reductions();
}

/* Rank 2 does not encrypt, so no rank takes it for one of the world. */
static void partly_encrypted(void)
{
    (void)setenv("FLEET_DATA_ENCRYPTION", rank == 2 ? "None" : "AES-GCM", 1);
    set_number("PADDLE_PG_TIMEOUT", 2000);
    CHECK(fleet_env_init(&err) < 0);
}

static void test_distributed__wrong_arguments(void **state)
{
    (void)state;
    run_processes(WORLD, arguments, -1);
}

static void test_distributed__another_order_on_another_rank(void **state)
{
    (void)state;
    run_processes(WORLD, another_order, -1);
}

static void test_distributed__another_size_on_another_rank(void **state)
{
    (void)state;
    run_processes(WORLD, another_size, -1);
}

static void test_distributed__a_dead_peer(void **state)
{
    (void)state;
    run_processes(WORLD, a_dead_peer, 1);
}

static void test_distributed__wrong_variables(void **state)
{
    (void)state;
    run_processes(WORLD, wrong_variables, -1);
}

static void test_distributed__encryption_needs_a_secret(void **state)
{
    (void)state;
    run_processes(WORLD, encryption_refused, -1);
}

static void test_distributed__encryption(void **state)
{
    (void)state;
    run_processes(WORLD, encrypted, -1);
}

static void test_distributed__encryption_on_some_ranks_only(void **state)
{
    (void)state;
    run_processes(WORLD, partly_encrypted, -1);
}

/* ---- the library as a file ------------------------------------------------------------------- */

static void test_distributed__sizes_of_structures(void **state)
{
    (void)state;
    assert_int_equal(sizeof(struct fleet_error), 520);
    assert_int_equal(sizeof(struct fleet_tensor), 80);
    assert_int_equal(sizeof(struct fleet_env), 16);
    assert_int_equal(sizeof(struct fleet_p2p), 88);
}

/* The same functions from Python, with the results that Paddle's pages print. */
static void test_distributed__examples_of_paddle_in_python(void **state)
{
    (void)state;
    assert_int_equal(system("bash tests/python/run.sh collectives messages streams rpc host roles "
                            "training data files layers recompute"),
                     0);
}

static void test_distributed__symbols_and_installed_package(void **state)
{
    (void)state;
    assert_int_equal(system("bash tests/install/library.sh"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_distributed__reductions),
        cmocka_unit_test(test_distributed__copies),
        cmocka_unit_test(test_distributed__messages_and_tasks),
        cmocka_unit_test(test_distributed__bytes),
        cmocka_unit_test(test_distributed__parts_of_any_length),
        cmocka_unit_test(test_distributed__parts_of_other_lengths_than_expected),
        cmocka_unit_test(test_distributed__helpers_of_utilbase),
        cmocka_unit_test(test_distributed__a_world_of_the_host_by_one_address),
        cmocka_unit_test(test_distributed__a_world_of_the_host_names_who_is_missing),
        cmocka_unit_test(test_distributed__a_group_and_a_rank_outside),
        cmocka_unit_test(test_distributed__wrong_arguments),
        cmocka_unit_test(test_distributed__another_order_on_another_rank),
        cmocka_unit_test(test_distributed__another_size_on_another_rank),
        cmocka_unit_test(test_distributed__a_dead_peer),
        cmocka_unit_test(test_distributed__wrong_variables),
        cmocka_unit_test(test_distributed__encryption_needs_a_secret),
        cmocka_unit_test(test_distributed__encryption),
        cmocka_unit_test(test_distributed__encryption_on_some_ranks_only),
        cmocka_unit_test(test_distributed__sizes_of_structures),
        cmocka_unit_test(test_distributed__examples_of_paddle_in_python),
        cmocka_unit_test(test_distributed__symbols_and_installed_package),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
