/* SPDX-License-Identifier: Apache-2.0 */

/*
 * fleet_rpc.h by real processes that load libfleet.so: calls in all directions, each wrong use, a
 * function that fails or sleeps, many calls at once, a worker that is killed, and a stranger that
 * has another secret.
 */
#include <errno.h>

#include "include/fleet/fleet_rpc.h"
#include "tests/integration/library_processes.h"

static const char *name_of(int of)
{
    static const char *const names[] = {"first", "second", "third"};
    return names[of];
}

/* ---- functions ------------------------------------------------------------------------------- */

static int echo(const void *in, size_t in_bytes, void **out, size_t *out_bytes, void *argument,
                struct fleet_error *e)
{
    (void)argument, (void)e;
    *out = malloc(in_bytes + 1);
    memcpy(*out, in, in_bytes);
    *out_bytes = in_bytes;
    return 0;
}

static int refuse(const void *in, size_t in_bytes, void **out, size_t *out_bytes, void *argument,
                  struct fleet_error *e)
{
    (void)in, (void)out, (void)out_bytes, (void)argument;
    e->code = -EDOM;
    (void)snprintf(e->text, sizeof(e->text), "%zu bytes are not a number", in_bytes);
    return -EDOM;
}

static int gate[2]; /* a pipe: `blocked` reads a byte from it */

static int blocked(const void *in, size_t in_bytes, void **out, size_t *out_bytes, void *argument,
                   struct fleet_error *e)
{
    char byte;

    (void)in, (void)in_bytes, (void)out, (void)out_bytes, (void)argument, (void)e;
    return read(gate[0], &byte, 1) == 1 ? 0 : -EIO;
}

static int open_gate(const void *in, size_t in_bytes, void **out, size_t *out_bytes, void *argument,
                     struct fleet_error *e)
{
    (void)in, (void)in_bytes, (void)out, (void)out_bytes, (void)argument, (void)e;
    return write(gate[1], "x", 1) == 1 ? 0 : -EIO;
}

/* Asks the first worker on behalf of its caller. */
static int relay(const void *in, size_t in_bytes, void **out, size_t *out_bytes, void *argument,
                 struct fleet_error *e)
{
    (void)argument;
    return fleet_rpc_call("first", "echo", in, in_bytes, 0, out, out_bytes, e);
}

static void begin(void)
{
    CHECK(pipe(gate) == 0);
    CHECK(fleet_rpc_register("echo", echo, NULL, &err) == 0);
    CHECK(fleet_rpc_register("fail", refuse, NULL, &err) == 0);
    CHECK(fleet_rpc_register("blocked", blocked, NULL, &err) == 0);
    CHECK(fleet_rpc_register("open", open_gate, NULL, &err) == 0);
    CHECK(fleet_rpc_register("relay", relay, NULL, &err) == 0);
    CHECK(fleet_rpc_init(name_of(rank), rank, world, master, &err) == 0);
}

static int call(const char *to, const char *function, int timeout_ms)
{
    void *out = NULL;
    size_t bytes;
    int rc = fleet_rpc_call(to, function, "abc", 3, timeout_ms, &out, &bytes, &err);

    CHECK(rc < 0 || !out || (bytes == 3 && memcmp(out, "abc", 3) == 0));
    free(out);
    return rc;
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void everybody(void)
{
    struct fleet_rpc_worker one, *all;
    int count;

    begin();
    for (int i = 0; i < world; i++) {
        CHECK(call(name_of(i), "echo", 0) == 0);
        CHECK(call(name_of(i), "relay", 60000) == 0);
        CHECK(fleet_rpc_worker(name_of(i), &one, &err) == 0 && one.rank == i && one.port > 0);
    }
    CHECK(fleet_rpc_workers(&all, &count, &err) == 0 && count == world);
    CHECK(strcmp(all[2].name, "third") == 0 && strcmp(all[1].ip, "127.0.0.1") == 0);
    free(all);
    CHECK(fleet_rpc_self(&one, &err) == 0 && one.rank == rank);
    CHECK(fleet_rpc_init("again", rank, world, master, &err) == -EALREADY);
    CHECK(fleet_rpc_shutdown(&err) == 0);
    CHECK(call("first", "echo", 0) == FLEET_NOT_INITIALIZED);
    CHECK(fleet_rpc_shutdown(&err) == FLEET_NOT_INITIALIZED);
}

static void test_rpc__everybody_calls_everybody(void **state)
{
    (void)state;
    run_processes(3, everybody, -1);
}

static void errors(void)
{
    void *out;
    size_t bytes;

    begin();
    CHECK(call("nobody", "echo", 0) == -ENOENT && strstr(err.text, "\"nobody\""));
    for (int i = 0; i < world; i++) {
        CHECK(call(name_of(i), "nothing", 0) == -ENOENT);
        CHECK(strstr(err.text, "nothing of worker") && strstr(err.text, name_of(i)));
        CHECK(call(name_of(i), "fail", 0) == -EDOM && strstr(err.text, "3 bytes are not a number"));
    }
    CHECK(call("first", "a name", 0) == -EINVAL && strstr(err.text, "\"a name\""));
    CHECK(call(NULL, "echo", 0) == -EINVAL);
    CHECK(fleet_rpc_call("first", "echo", NULL, 3, 0, &out, &bytes, &err) == -EINVAL);
    CHECK(fleet_rpc_call("first", "echo", "", FLEET_RPC_BYTES_MAX + (size_t)1, 0, &out, &bytes,
                         &err) == -EMSGSIZE);
    CHECK(fleet_rpc_worker("nobody", &(struct fleet_rpc_worker){0}, &err) == -ENOENT);
    CHECK(fleet_rpc_register("", echo, NULL, &err) == -EINVAL);
    CHECK(fleet_rpc_register("x", NULL, NULL, &err) == -EINVAL);
    CHECK(fleet_rpc_shutdown(&err) == 0);
}

static void test_rpc__wrong_calls_have_one_error(void **state)
{
    (void)state;
    run_processes(2, errors, -1);
}

/* The call's limit ends while the function waits; the worker still answers other calls. */
static void limits(void)
{
    begin();
    if (rank == 1) {
        CHECK(call("first", "blocked", 100) == -ETIMEDOUT && strstr(err.text, "time limit"));
        CHECK(call("first", "echo", 0) == 0);
        CHECK(call("first", "open", 0) == 0);
    }
    CHECK(fleet_rpc_shutdown(&err) == 0);
}

static void test_rpc__a_call_ends_at_its_time_limit(void **state)
{
    (void)state;
    run_processes(2, limits, -1);
}

/* A call that the other side still carries out when both shut down is answered. */
static void in_flight(void)
{
    struct fleet_rpc_future *future;
    void *out;
    size_t bytes;

    begin();
    if (rank == 1) {
        CHECK(fleet_rpc_start("first", "blocked", NULL, 0, 0, &future, &err) == 0);
        CHECK(fleet_rpc_done(future) == 0);
        CHECK(call("first", "open", 0) == 0);
    }
    CHECK(fleet_rpc_shutdown(&err) == 0);
    if (rank == 1) {
        CHECK(fleet_rpc_done(future) == 1);
        CHECK(fleet_rpc_wait(future, &out, &bytes, &err) == 0 && bytes == 0 && !out);
        fleet_rpc_future_free(future);
    }
}

static void test_rpc__shutdown_completes_calls_in_flight(void **state)
{
    (void)state;
    run_processes(2, in_flight, -1);
}

#define MANY  1000
#define LARGE (3 << 20)

static void many(void)
{
    static struct fleet_rpc_future *futures[MANY];
    uint8_t *large = malloc(LARGE);
    void *out;
    size_t bytes;

    begin();
    for (int i = 0; i < MANY; i++)
        CHECK(fleet_rpc_start(name_of(1 - rank), "echo", &i, sizeof(i), 0, &futures[i], &err) == 0);
    for (int i = 0; i < MANY; i++) {
        CHECK(fleet_rpc_wait(futures[i], &out, &bytes, &err) == 0 && bytes == sizeof(i));
        CHECK(memcmp(out, &i, sizeof(i)) == 0);
        free(out);
        fleet_rpc_future_free(futures[i]);
    }
    for (int i = 0; i < LARGE; i++)
        large[i] = (uint8_t)(i * 7 + rank);
    CHECK(fleet_rpc_call(name_of(1 - rank), "echo", large, LARGE, 0, &out, &bytes, &err) == 0);
    CHECK(bytes == LARGE && memcmp(out, large, LARGE) == 0);
    free(out);
    free(large);
    CHECK(fleet_rpc_shutdown(&err) == 0);
}

static void test_rpc__a_thousand_calls_at_once_and_a_large_one(void **state)
{
    (void)state;
    run_processes(2, many, -1);
}

static void tensors(void)
{
    float values[6] = {1, 2, 3, 4, 5, 6};
    int64_t number = -7;
    struct fleet_tensor sent[3] = {{values, FLEET_FP32, 2, {2, 3}},
                                   {&number, FLEET_INT64, 0, {0}},
                                   {NULL, FLEET_FP64, 1, {0}}};
    struct fleet_tensor got[3], wrong = {values, FLEET_FP32, 1, {-1}};
    void *data, *out;
    size_t bytes, size;
    int count;

    begin();
    CHECK(fleet_rpc_pack(sent, 3, &data, &size, &err) == 0);
    CHECK(fleet_rpc_call(name_of(1 - rank), "echo", data, size, 0, &out, &bytes, &err) == 0);
    CHECK(fleet_rpc_unpack(out, bytes, got, 2, &count, &err) == -ENOSPC);
    CHECK(fleet_rpc_unpack(out, bytes, got, 3, &count, &err) == 0 && count == 3);
    CHECK(got[0].type == FLEET_FP32 && got[0].dimensions == 2 && got[0].shape[1] == 3);
    CHECK(memcmp(got[0].data, values, sizeof(values)) == 0);
    CHECK(got[1].dimensions == 0 && *(int64_t *)got[1].data == -7 && got[2].shape[0] == 0);
    for (size_t cut = 0; cut < bytes; cut++)
        CHECK(fleet_rpc_unpack(out, cut, got, 3, &count, &err) == -EBADMSG);
    CHECK(fleet_rpc_pack(&wrong, 1, &data, &size, &err) == -EINVAL);
    free(data);
    free(out);
    CHECK(fleet_rpc_shutdown(&err) == 0);
}

static void test_rpc__tensors_travel_as_bytes(void **state)
{
    (void)state;
    run_processes(2, tensors, -1);
}

/* The last worker kills itself while the others wait for it: in a call, and in the shutdown. */
static void killed(void)
{
    struct fleet_rpc_future *future;
    void *out;
    size_t bytes;

    begin();
    if (rank == 2) {
        CHECK(call("first", "blocked", 0) == 0);
        (void)kill(getpid(), SIGKILL);
    }
    CHECK(fleet_rpc_start("third", "blocked", NULL, 0, 0, &future, &err) == 0);
    CHECK(call("second", "echo", 0) == 0);
    CHECK(call("first", rank == 0 ? "echo" : "open", 0) == 0);
    CHECK(fleet_rpc_wait(future, &out, &bytes, &err) == -ECONNRESET && strstr(err.text, "third"));
    fleet_rpc_future_free(future);
    CHECK(fleet_rpc_shutdown(&err) == -ECONNRESET &&
          strstr(err.text, "\"third\" (rank 2) was lost"));
}

static void test_rpc__a_lost_worker_fails_its_calls_and_the_shutdown(void **state)
{
    (void)state;
    run_processes(3, killed, 2);
}

/* The second worker comes with the first one's name, then with the first one's rank. */
static void names(void)
{
    if (rank == 1) {
        CHECK(fleet_rpc_init("first", 1, world, master, &err) == -EEXIST);
        CHECK(strstr(err.text, "the name \"first\" is already that of rank 0"));
        CHECK(fleet_rpc_init("second", 1, 3, master, &err) == -EINVAL);
        CHECK(strstr(err.text, "expects 3 workers, rank 0 expects 2"));
    }
    begin();
    CHECK(fleet_rpc_shutdown(&err) == 0);
}

static void test_rpc__names_are_unique(void **state)
{
    (void)state;
    run_processes(2, names, -1);
}

static void arguments(void)
{
    CHECK(fleet_rpc_init("x", 5, 3, master, &err) == -EINVAL && strstr(err.text, "rank 5 of 3"));
    CHECK(fleet_rpc_init("x", 0, 1, "nowhere", &err) == -EINVAL && strstr(err.text, "nowhere"));
    CHECK(fleet_rpc_init("x y", 0, 1, master, &err) == -EINVAL && strstr(err.text, "\"x y\""));
    CHECK(fleet_rpc_init("x", 0, 1, NULL, &err) == -EINVAL);
    CHECK(strstr(err.text, "PADDLE_MASTER_ENDPOINT"));
    (void)setenv("PADDLE_PG_TIMEOUT", "100", 1);
    CHECK(fleet_rpc_init("x", 0, 3, master, &err) == -ETIMEDOUT);
    CHECK(strstr(err.text, "1 of 3 workers came in time; missing: rank 1, rank 2"));
    CHECK(fleet_rpc_init("x", 1, 2, master, &err) == -ECONNREFUSED || err.code == -ETIMEDOUT);
    CHECK(strstr(err.text, "rank 0 at 127.0.0.1"));
}

static void test_rpc__arguments_are_checked_and_missing_workers_named(void **state)
{
    (void)state;
    run_processes(1, arguments, -1);
}

/* A worker with another secret is refused and takes no place; then it comes with the right one. */
static void secrets(void)
{
    if (rank == 1) {
        (void)setenv("FLEET_WORLD_SECRET", "another", 1);
        CHECK(fleet_rpc_init("second", 1, world, master, &err) == -EACCES);
        (void)setenv("FLEET_WORLD_SECRET", "a secret", 1);
    }
    begin();
    CHECK(call(name_of(1 - rank), "echo", 0) == 0);
    CHECK(fleet_rpc_shutdown(&err) == 0);
}

static void test_rpc__a_worker_with_another_secret_is_refused(void **state)
{
    (void)state;
    run_processes(2, secrets, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rpc__everybody_calls_everybody),
        cmocka_unit_test(test_rpc__wrong_calls_have_one_error),
        cmocka_unit_test(test_rpc__a_call_ends_at_its_time_limit),
        cmocka_unit_test(test_rpc__shutdown_completes_calls_in_flight),
        cmocka_unit_test(test_rpc__a_thousand_calls_at_once_and_a_large_one),
        cmocka_unit_test(test_rpc__tensors_travel_as_bytes),
        cmocka_unit_test(test_rpc__a_lost_worker_fails_its_calls_and_the_shutdown),
        cmocka_unit_test(test_rpc__names_are_unique),
        cmocka_unit_test(test_rpc__arguments_are_checked_and_missing_workers_named),
        cmocka_unit_test(test_rpc__a_worker_with_another_secret_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
