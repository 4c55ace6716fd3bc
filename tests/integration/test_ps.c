/* SPDX-License-Identifier: Apache-2.0 */

/*
 * fleet_ps.h with real servers: tables, saving and loading, wrong use, and errors that end a wait.
 */
#include <math.h>

#include "tests/integration/ps_processes.h"

static const uint64_t keys[] = {1, 2, 3, 4, 5, 6, 7, 8, 1};
#define KEYS ((int)(sizeof(keys) / sizeof(keys[0])))

/* One worker, in this process, with `servers` servers. */
static void begin(int servers, enum fleet_ps_mode mode)
{
    snapshots[0] = '\0';
    (void)setenv("FLEET_WORLD_SECRET", "a secret", 1);
    start_servers(servers, 1);
    be_worker(0, mode);
}

static void end(void)
{
    CHECK(fleet_worker_stop(ps, &err) == 0);
    servers_end_well();
}

/* ---- tables ---------------------------------------------------------------------------------- */

static void trains_a_sparse_table(int servers, float out[])
{
    struct fleet_ps_table table = sparse_table(3, 2);
    float gradients[2 * KEYS];
    int64_t rows, admitted;

    for (int i = 0; i < 2 * KEYS; i++)
        gradients[i] = (float)i + 1;
    begin(servers, FLEET_PS_HALF_ASYNC);
    CHECK(fleet_ps_table_new(ps, &table, &err) == 0);
    CHECK(fleet_ps_pull(ps, 3, keys, KEYS, true, out, &err) == 0);
    CHECK(out[0] == out[2 * KEYS - 2] && out[1] == out[2 * KEYS - 1]);
    for (int i = 0; i < 2 * KEYS; i++)
        CHECK(fabsf(out[i]) <= table.initial_range);
    CHECK(fleet_ps_push(ps, 3, keys, KEYS, gradients, NULL, NULL, &err) == 0);
    CHECK(fleet_ps_step_end(ps, &err) == 0 && fleet_ps_step(ps) == 1);
    /* Key 1 has the sum of its two gradients: 1 + 17. */
    CHECK(fleet_ps_pull(ps, 3, keys, KEYS, true, out + 2 * KEYS, &err) == 0);
    CHECK(fabsf(out[0] - table.learning_rate * 18 - out[2 * KEYS]) < 1e-6F);
    CHECK(fleet_ps_rows(ps, 3, &rows, &admitted, &err) == 0 && rows == 8 && admitted == 8);
    end();
}

static void test_ps__a_sparse_table_has_the_same_bits_on_any_servers(void **state)
{
    float one[4 * KEYS], three[4 * KEYS];

    (void)state;
    trains_a_sparse_table(1, one);
    trains_a_sparse_table(3, three);
    assert_memory_equal(one, three, sizeof(one));
}

static void trains_a_dense_table(int servers, float out[10])
{
    struct fleet_ps_table table = dense_table(0, 10);
    float first[10], gradient[10];

    table.rule = FLEET_PS_ADAM;
    for (int i = 0; i < 10; i++) {
        first[i] = (float)i;
        gradient[i] = (float)(i - 4);
    }
    begin(servers, FLEET_PS_SYNC);
    CHECK(fleet_ps_table_new(ps, &table, &err) == 0);
    CHECK(fleet_ps_set_dense(ps, 0, first, &err) == 0);
    CHECK(fleet_ps_set_dense(ps, 0, gradient, &err) == 0); /* it is set: no effect */
    CHECK(fleet_ps_pull_dense(ps, 0, out, &err) == 0);
    for (int i = 0; i < 10; i++)
        CHECK(out[i] == first[i]);
    for (int step = 0; step < 3; step++) {
        CHECK(fleet_ps_push_dense(ps, 0, gradient, &err) == 0);
        CHECK(fleet_ps_step_end(ps, &err) == 0);
    }
    CHECK(fleet_ps_pull_dense(ps, 0, out, &err) == 0);
    CHECK(out[0] > first[0] && out[4] == first[4] && out[9] < first[9]);
    end();
}

static void test_ps__a_dense_table_is_divided_into_blocks(void **state)
{
    float one[10], three[10];

    (void)state;
    trains_a_dense_table(1, one);
    trains_a_dense_table(3, three);
    assert_memory_equal(one, three, sizeof(one));
}

static void test_ps__keys_get_rows_by_entry_rules(void **state)
{
    struct fleet_ps_table count = sparse_table(0, 1), chance = sparse_table(1, 1),
                          click = sparse_table(2, 1);
    uint64_t many[1000];
    float out[1000], ones[1000];
    int64_t rows, admitted;

    (void)state;
    for (int i = 0; i < 1000; i++) {
        many[i] = (uint64_t)i;
        ones[i] = 1;
    }
    count.entry = FLEET_PS_ENTRY_COUNT;
    count.entry_value = 2;
    chance.entry = FLEET_PS_ENTRY_PROBABILITY;
    chance.entry_value = 0.25F;
    click.entry = FLEET_PS_ENTRY_SHOW_CLICK;
    click.entry_value = 2;
    begin(2, FLEET_PS_HALF_ASYNC);
    CHECK(fleet_ps_table_new(ps, &count, &err) == 0);
    CHECK(fleet_ps_table_new(ps, &chance, &err) == 0);
    CHECK(fleet_ps_table_new(ps, &click, &err) == 0);
    CHECK(fleet_ps_pull(ps, 0, many, 10, true, out, &err) == 0 && out[0] == 0);
    CHECK(fleet_ps_push(ps, 0, many, 10, ones, NULL, NULL, &err) == 0);
    CHECK(fleet_ps_pull(ps, 0, many, 5, false, out, &err) == 0 && out[0] == 0);
    CHECK(fleet_ps_pull(ps, 0, many, 5, true, out, &err) == 0 && out[0] != 0);
    CHECK(fleet_ps_rows(ps, 0, &rows, &admitted, &err) == 0 && rows == 10 && admitted == 5);
    CHECK(fleet_ps_pull(ps, 1, many, 1000, true, out, &err) == 0);
    CHECK(fleet_ps_rows(ps, 1, &rows, &admitted, &err) == 0 && rows == 1000);
    CHECK(admitted > 180 && admitted < 320);
    CHECK(fleet_ps_push(ps, 2, many, 1, ones, NULL, NULL, &err) == -EINVAL);
    CHECK(fleet_ps_push(ps, 2, many, 1, ones, ones, ones, &err) == 0); /* a click: score 1 */
    CHECK(fleet_ps_pull(ps, 2, many, 1, true, out, &err) == 0 && out[0] == 0);
    CHECK(fleet_ps_push(ps, 2, many, 1, ones, ones, ones, &err) == 0);
    CHECK(fleet_ps_pull(ps, 2, many, 1, true, out, &err) == 0 && out[0] != 0);
    end();
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Rows 0 to 9 with i clicks each. */
static void fill(struct fleet_ps_table *table)
{
    uint64_t key;
    float one = 1, clicks;

    CHECK(fleet_ps_table_new(ps, table, &err) == 0);
    for (int i = 0; i < 10; i++) {
        key = (uint64_t)i;
        clicks = (float)i;
        CHECK(fleet_ps_push(ps, table->id, &key, 1, &one, &clicks, &clicks, &err) == 0);
    }
}

static int64_t rows_now(void)
{
    int64_t rows, admitted;

    CHECK(fleet_ps_rows(ps, 0, &rows, &admitted, &err) == 0);
    return rows;
}

static void test_ps__modes_of_a_save_and_shrink(void **state)
{
    static const struct {
        int mode;
        int64_t rows;
    } saves[] = {{0, 10}, {2, 8}, {1, 0}, {3, 10}}; /* after mode 2 no row has a delta score */
    struct fleet_ps_table table = sparse_table(0, 1);
    char folder[64], path[80];

    (void)state;
    (void)snprintf(folder, sizeof(folder), "%s", new_folder());
    begin(2, FLEET_PS_HALF_ASYNC);
    fill(&table);
    for (size_t i = 0; i < 4; i++) {
        (void)snprintf(path, sizeof(path), "%s/%d", folder, saves[i].mode);
        CHECK(fleet_save_state(ps, path, saves[i].mode, &err) == 0);
    }
    CHECK(fleet_save_state(ps, path, 4, &err) == -EINVAL && strstr(err.text, "mode is 4"));
    CHECK(fleet_ps_shrink(ps, 0, &err) == 0); /* a click decays to 0.98: above 0.8 */
    CHECK(rows_now() == 9);
    end();
    for (size_t i = 0; i < 4; i++) { /* on another number of servers */
        float out[10];
        uint64_t ten[10] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
        begin(3, FLEET_PS_HALF_ASYNC);
        CHECK(fleet_ps_table_new(ps, &table, &err) == 0);
        (void)snprintf(path, sizeof(path), "%s/%d", folder, saves[i].mode);
        CHECK(fleet_load_state(ps, path, &err) == 0);
        CHECK(rows_now() == saves[i].rows);
        CHECK(fleet_ps_pull(ps, 0, ten, 10, false, out, &err) == 0);
        CHECK(saves[i].rows < 8 || out[9] < -0.04F);
        end();
    }
    remove_folder(folder);
}

static void test_ps__a_missing_or_damaged_part_is_named(void **state)
{
    struct fleet_ps_table table = sparse_table(0, 1);
    char folder[64], path[96];
    FILE *file;

    (void)state;
    (void)snprintf(folder, sizeof(folder), "%s", new_folder());
    begin(2, FLEET_PS_HALF_ASYNC);
    CHECK(fleet_load_state(ps, folder, &err) == -ENOENT && strstr(err.text, folder));
    fill(&table);
    CHECK(fleet_save_state(ps, folder, 0, &err) == 0);
    (void)snprintf(path, sizeof(path), "%s/part-1-of-2", folder);
    file = fopen(path, "r+");
    CHECK(file && fseek(file, 60, SEEK_SET) == 0 && fputc(0x55, file) >= 0 && fclose(file) == 0);
    CHECK(fleet_load_state(ps, folder, &err) == -EBADMSG && strstr(err.text, "part-1-of-2"));
    CHECK(unlink(path) == 0);
    CHECK(fleet_load_state(ps, folder, &err) == -ENOENT && strstr(err.text, "part-1-of-2"));
    CHECK(fleet_save_state(ps, "/proc/no", 0, &err) < 0 && strstr(err.text, "/proc/no"));
    end();
    remove_folder(folder);
}

/* ---- wrong use ------------------------------------------------------------------------------- */

static void test_ps__wrong_arguments_have_one_error(void **state)
{
    struct fleet_ps_table table = sparse_table(0, 1), other;
    float out[1] = {INFINITY};
    struct fleet_server *server;
    struct fleet_role *role;

    (void)state;
    begin(1, FLEET_PS_ASYNC);
    CHECK(fleet_ps_table_new(ps, &table, &err) == 0);
    CHECK(fleet_ps_table_new(ps, &table, &err) == -EINVAL);
    CHECK(fleet_ps_pull(ps, 1, keys, 1, true, out, &err) == -EINVAL && strstr(err.text, "table"));
    CHECK(fleet_ps_pull(ps, 0, keys, -1, true, out, &err) == -EINVAL);
    CHECK(fleet_ps_pull(ps, 0, NULL, 1, true, out, &err) == -EINVAL);
    CHECK(fleet_ps_pull_dense(ps, 0, out, &err) == -EINVAL && strstr(err.text, "sparse"));
    CHECK(fleet_ps_push(ps, 0, keys, 1, out, NULL, NULL, &err) == -EINVAL);
    CHECK(strstr(err.text, "not finite"));
    CHECK(fleet_ps_push(ps, 0, keys, 1, out, out, NULL, &err) == -EINVAL);
    other = sparse_table(1, FLEET_PS_WIDTH_MAX + 1);
    CHECK(fleet_ps_table_new(ps, &other, &err) == -EINVAL && strstr(err.text, "width is 4097"));
    other = dense_table(1, (int64_t)1 << 40);
    CHECK(fleet_ps_table_new(ps, &other, &err) == -EINVAL && strstr(err.text, "elements"));
    other = dense_table(1, 4);
    other.rule = FLEET_PS_ADAGRAD;
    CHECK(fleet_ps_table_new(ps, &other, &err) == -EINVAL);
    other = sparse_table(1, 1);
    other.beta1 = 1;
    CHECK(fleet_ps_table_new(ps, &other, &err) == -EINVAL && strstr(err.text, "beta1 is 1"));
    CHECK(fleet_worker_barrier(ps, &err) == 0);
    role = role_of(FLEET_WORKER, 0);
    CHECK(fleet_server_init(role, NULL, &server, &err) == -EINVAL);
    fleet_role_free(role);
    end();
}

static void expect_option(const char *name, const char *value, int rc, const char *text)
{
    struct fleet_ps_options options;

    fleet_ps_options_init(&options);
    err.text[0] = '\0';
    if (fleet_ps_option_set(&options, name, value, &err) != rc || !strstr(err.text, text))
        fail_msg("%s = %s: %s", name, value, err.text);
}

static void test_ps__each_setting_acts_or_is_refused(void **state)
{
    struct fleet_ps_options options;

    (void)state;
    expect_option("independent_recv_thread", "true", -ENOTSUP, "independent_recv_thread is true");
    expect_option("min_send_grad_num_before_recv", "2", -ENOTSUP, "because");
    expect_option("thread_pool_size", "4", -ENOTSUP, "because");
    expect_option("runtime_split_send_recv", "true", -ENOTSUP, "because");
    expect_option("heter_worker_device_guard", "\"gpu\"", -ENOTSUP, "because");
    expect_option("lr_decay_steps", "5", -ENOTSUP, "because");
    expect_option("use_ps_gpu", "1", -ENOTSUP, "because");
    expect_option("is_fl_ps_mode", "true", -ENOTSUP, "federated");
    expect_option("with_coordinator", "true", -ENOTSUP, "federated");
    expect_option("lr_decay_steps", "10", 0, "");
    expect_option("k_steps", "x", -EINVAL, "k_steps");
    expect_option("a_sync", "1", -EINVAL, "a_sync is 1");
    expect_option("ksteps", "1", -EINVAL, "ksteps");
    fleet_ps_options_init(&options);
    CHECK(fleet_ps_options_read(
              &options, "{\"a_sync\": true, \"localsgd_configs\": {\"k_steps\": 3}}", &err) == 0);
    CHECK(options.mode == FLEET_PS_ASYNC);
    CHECK(fleet_ps_options_read(&options,
                                "{\"a_sync_configs\": {\"k_steps\": 100, \"max_merge_var_num\": 4, "
                                "\"launch_barrier\":false, \"send_queue_size\": 8, "
                                "\"send_wait_times\": 2}, \"a_sync\": true}",
                                &err) == 0);
    CHECK(options.mode == FLEET_PS_GEO && options.k_steps == 100);
    CHECK(options.max_merge_var_num == 4 && options.send_queue_size == 8);
    CHECK(options.send_wait_times == 2 && !options.launch_barrier);
    CHECK(fleet_ps_options_read(&options, "{\"a_sync_configs\": {\"use_ps_gpu\": 1}}", &err) ==
          -ENOTSUP);
    CHECK(strstr(err.text, "a_sync_configs: use_ps_gpu is 1"));
}

/* ---- where a server listens ------------------------------------------------------------------ */

static bool answers_at_home(int port)
{
    const struct sockaddr_in address = {.sin_family = AF_INET,
                                        .sin_port = htons((uint16_t)port),
                                        .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool is_there = connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0;

    (void)close(fd);
    return is_there;
}

/* 192.0.2.1 is the address of a Service in front of the server: no interface has it. */
static void test_ps__a_server_behind_an_address_listens_on_all_interfaces(void **state)
{
    struct fleet_server *server;
    struct fleet_role *role;
    int port = free_port();

    (void)state;
    worker_count = 1;
    (void)snprintf(server_list, sizeof(server_list), "192.0.2.1:%d", port);
    role = role_of(FLEET_SERVER, 0);
    CHECK(fleet_server_init(role, NULL, &server, &err) == 0);
    assert_true(answers_at_home(port));
    fleet_server_free(server);
    fleet_role_free(role);
    assert_false(answers_at_home(port));
}

/* The settings of a FleetJob's strategy, in the form in which the agent writes them. */
static void test_ps__settings_come_from_the_strategy_of_the_job(void **state)
{
    static const char text[] = "a_sync: true\na_sync_configs {\n  k_steps: 3\n  use_ps_gpu: 1\n}\n";
    char path[] = "/tmp/fleet-ps-XXXXXX";
    int fd = mkstemp(path);
    struct fleet_role *role;

    (void)state;
    CHECK(fd >= 0 && write(fd, text, sizeof(text) - 1) == (ssize_t)sizeof(text) - 1);
    (void)close(fd);
    worker_count = 1;
    (void)snprintf(server_list, sizeof(server_list), "127.0.0.1:%d", free_port());
    role = role_of(FLEET_WORKER, 0);
    (void)setenv("FLEET_STRATEGY_FILE", path, 1);
    CHECK(fleet_worker_start(role, NULL, &ps, &err) == -ENOTSUP);
    CHECK(strstr(err.text, "FLEET_STRATEGY_FILE") && strstr(err.text, "use_ps_gpu is 1"));
    (void)unlink(path);
    CHECK(fleet_worker_start(role, NULL, &ps, &err) == -ENOENT);
    (void)unsetenv("FLEET_STRATEGY_FILE");
    fleet_role_free(role);
}

/* ---- ends of a wait -------------------------------------------------------------------------- */

static int start_with(const char *secret, int timeout_ms)
{
    struct fleet_role *role = role_of(FLEET_WORKER, 0);
    struct fleet_ps_options options;
    int rc;

    fleet_ps_options_init(&options);
    options.timeout_ms = timeout_ms;
    (void)setenv("FLEET_WORLD_SECRET", secret, 1);
    rc = fleet_worker_start(role, &options, &ps, &err);
    (void)setenv("FLEET_WORLD_SECRET", "a secret", 1);
    fleet_role_free(role);
    return rc;
}

static void test_ps__another_secret_is_refused(void **state)
{
    (void)state;
    snapshots[0] = '\0';
    start_servers(1, 1);
    CHECK(start_with("another", TIMEOUT_MS) == -EACCES && strstr(err.text, "server 0"));
    kill_servers();
}

/* One side encrypts and the other does not; or both do, with different secrets. */
static void test_ps__encryption_must_be_the_same_on_both_sides(void **state)
{
    (void)state;
    snapshots[0] = '\0';
    start_servers(1, 1);
    (void)setenv("FLEET_DATA_ENCRYPTION", "AES-GCM", 1);
    CHECK(start_with("a secret", TIMEOUT_MS) == -EACCES);
    CHECK(strstr(err.text, "FLEET_DATA_ENCRYPTION"));
    CHECK(start_with("", TIMEOUT_MS) == -EINVAL); /* nothing to make a key of */
    kill_servers();
    start_servers(1, 1); /* which encrypts */
    CHECK(start_with("another", TIMEOUT_MS) == -EACCES);
    (void)unsetenv("FLEET_DATA_ENCRYPTION");
    CHECK(start_with("a secret", TIMEOUT_MS) == -EACCES);
    (void)setenv("FLEET_DATA_ENCRYPTION", "AES-GCM", 1);
    CHECK(start_with("a secret", TIMEOUT_MS) == 0);
    CHECK(fleet_worker_stop(ps, &err) == 0);
    (void)unsetenv("FLEET_DATA_ENCRYPTION");
    servers_end_well();
}

/* A short limit, but the start may take as long as it needs on a loaded machine. */
static void start_with_limit(int timeout_ms)
{
    int rc;

    while ((rc = start_with("a secret", timeout_ms)) == -ETIMEDOUT)
        ;
    CHECK(rc == 0);
}

static void test_ps__a_dead_server_is_one_error(void **state)
{
    struct fleet_ps_table table = sparse_table(0, 1);
    uint64_t key = 1;
    float out;
    int rc;

    (void)state;
    snapshots[0] = '\0';
    start_servers(1, 1);
    start_with_limit(500);
    while ((rc = fleet_ps_table_new(ps, &table, &err)) == -ETIMEDOUT)
        ;
    CHECK(rc == 0);
    kill_hard(server_pids[0]);
    CHECK(fleet_ps_pull(ps, 0, &key, 1, true, &out, &err) == -ETIMEDOUT);
    CHECK(strstr(err.text, "server 0 at 127.0.0.1"));
    CHECK(fleet_worker_stop(ps, &err) == -ETIMEDOUT);
}

static void test_ps__a_missing_worker_is_named(void **state)
{
    (void)state;
    snapshots[0] = '\0';
    start_servers(1, 2);
    start_with_limit(500);
    CHECK(fleet_ps_step_end(ps, &err) == -ETIMEDOUT && strstr(err.text, "worker 1 has not ended"));
    CHECK(fleet_worker_barrier(ps, &err) == -ETIMEDOUT &&
          strstr(err.text, "worker 1 did not come"));
    fleet_ps_free(ps);
    kill_servers();
}

static void without_workers(void)
{
    const struct fleet_server_options options = {.timeout_ms = 1};
    struct fleet_server *server;

    CHECK(fleet_server_init(role_of(FLEET_SERVER, 0), &options, &server, &err) == 0);
    CHECK(fleet_server_run(server, &err) == -ETIMEDOUT && strstr(err.text, "no worker"));
    fleet_server_free(server);
}

static void test_ps__a_server_without_workers_ends(void **state)
{
    (void)state;
    worker_count = 1;
    (void)snprintf(server_list, sizeof(server_list), "127.0.0.1:%d", free_port());
    end_well(start_worker(0, without_workers));
}

static void test_ps__names_of_paddle_in_python(void **state)
{
    (void)state;
    assert_int_equal(system("bash tests/python/run.sh ps"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ps__a_sparse_table_has_the_same_bits_on_any_servers),
        cmocka_unit_test(test_ps__a_dense_table_is_divided_into_blocks),
        cmocka_unit_test(test_ps__keys_get_rows_by_entry_rules),
        cmocka_unit_test(test_ps__modes_of_a_save_and_shrink),
        cmocka_unit_test(test_ps__a_missing_or_damaged_part_is_named),
        cmocka_unit_test(test_ps__wrong_arguments_have_one_error),
        cmocka_unit_test(test_ps__each_setting_acts_or_is_refused),
        cmocka_unit_test(test_ps__a_server_behind_an_address_listens_on_all_interfaces),
        cmocka_unit_test(test_ps__settings_come_from_the_strategy_of_the_job),
        cmocka_unit_test(test_ps__another_secret_is_refused),
        cmocka_unit_test(test_ps__encryption_must_be_the_same_on_both_sides),
        cmocka_unit_test(test_ps__a_dead_server_is_one_error),
        cmocka_unit_test(test_ps__a_missing_worker_is_named),
        cmocka_unit_test(test_ps__a_server_without_workers_ends),
        cmocka_unit_test(test_ps__names_of_paddle_in_python),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
