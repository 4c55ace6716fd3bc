/* SPDX-License-Identifier: Apache-2.0 */

/* Roles by description and by variables, and the files of a worker. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "include/fleet/fleet_role.h"

static struct fleet_error err;
static struct fleet_role *role;

static int setup(void **state)
{
    static const char *const names[] = {
        "PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM",          "PADDLE_TRAINER_ENDPOINTS",
        "TRAINING_ROLE",     "PADDLE_PSERVERS_IP_PORT_LIST", "POD_IP",
        "PADDLE_PORT"};
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        (void)unsetenv(names[i]);
    return 0;
}

static void set(const char *name, const char *value)
{
    assert_int_equal(setenv(name, value, 1), 0);
}

/* Reading fails, with `text` in the error. */
static void refused(const char *text)
{
    assert_int_equal(fleet_role_from_env(false, &role, &err), -EINVAL);
    if (!strstr(err.text, text))
        fail_msg("\"%s\" is not in \"%s\"", text, err.text);
}

static void test_role__a_collective_job_has_defaults(void **state)
{
    int count;

    (void)state;
    assert_int_equal(fleet_role_from_env(true, &role, &err), 0);
    assert_true(fleet_role_is_first_worker(role) && fleet_role_is_collective(role));
    assert_int_equal(fleet_role_worker_num(role), 1);
    assert_string_equal(fleet_role_worker_endpoints(role, &count)[0], "127.0.0.1:6170");
    assert_int_equal(fleet_role_server_index(role), -1);
    fleet_role_free(role);
}

static void test_role__nodes_are_distinct_hosts(void **state)
{
    (void)state;
    set("PADDLE_TRAINERS_NUM", "4");
    set("PADDLE_TRAINER_ID", "3");
    set("PADDLE_TRAINER_ENDPOINTS", "b:1,a:1,b:2,[::1]:1");
    assert_int_equal(fleet_role_from_env(true, &role, &err), 0);
    assert_int_equal(fleet_role_node_num(role), 3);
    assert_int_equal(fleet_role_worker_index(role), 3);
    assert_false(fleet_role_is_first_worker(role));
    fleet_role_free(role);
    set("PADDLE_TRAINERS_NUM", "3");
    assert_int_equal(fleet_role_from_env(true, &role, &err), -EINVAL);
    assert_non_null(strstr(err.text, "PADDLE_TRAINER_ENDPOINTS: has 4 endpoints for 3 workers"));
}

static void test_role__without_servers_it_is_a_local_run(void **state)
{
    (void)state;
    assert_int_equal(fleet_role_from_env(false, &role, &err), 0);
    assert_true(fleet_role_is_local(role) && fleet_role_is_first_worker(role));
    assert_false(fleet_role_is_collective(role));
    fleet_role_free(role);
}

static void test_role__a_server_finds_its_place(void **state)
{
    int count;

    (void)state;
    set("PADDLE_PSERVERS_IP_PORT_LIST", "10.0.0.1:7,10.0.0.2:7,10.0.0.2:70");
    refused("PADDLE_TRAINERS_NUM: required");
    set("PADDLE_TRAINERS_NUM", "2");
    refused("TRAINING_ROLE: required");
    set("TRAINING_ROLE", "SERVER");
    refused("TRAINING_ROLE is \"SERVER\", allowed: TRAINER, PSERVER, HETER_TRAINER, COORDINATOR");
    set("TRAINING_ROLE", "PSERVER");
    refused("POD_IP: required");
    set("POD_IP", "10.0.0.2");
    set("PADDLE_PORT", "9");
    refused("10.0.0.2:9, which PADDLE_PSERVERS_IP_PORT_LIST does not have");
    set("PADDLE_PORT", "70");
    assert_int_equal(fleet_role_from_env(false, &role, &err), 0);
    assert_true(fleet_role_is_server(role) && !fleet_role_is_worker(role));
    assert_int_equal(fleet_role_server_index(role), 2);
    assert_int_equal(fleet_role_server_num(role), 3);
    assert_int_equal(fleet_role_worker_num(role), 2);
    assert_string_equal(fleet_role_server_endpoints(role, &count)[1], "10.0.0.2:7");
    assert_int_equal(count, 3);
    fleet_role_free(role);
    set("TRAINING_ROLE", "TRAINER");
    refused("PADDLE_TRAINER_ID: required");
    set("PADDLE_TRAINER_ID", "2");
    refused("PADDLE_TRAINER_ID is 2, allowed: 0 to 1");
    set("PADDLE_TRAINER_ID", "x");
    refused("PADDLE_TRAINER_ID");
    set("PADDLE_TRAINER_ID", "1");
    set("PADDLE_PSERVERS_IP_PORT_LIST", "10.0.0.1:7,10.0.0.2");
    refused("PADDLE_PSERVERS_IP_PORT_LIST: endpoint 1 is \"10.0.0.2\", needed: host:port");
}

static void test_role__a_description_is_checked(void **state)
{
    struct fleet_role_description d = {.is_collective = true};

    (void)state;
    assert_int_equal(fleet_role_user(&d, &role, &err), -EINVAL);
    assert_non_null(strstr(err.text, "worker_endpoints or worker_num: required"));
    d = (struct fleet_role_description){.kind = FLEET_WORKER, .worker_num = 3, .current_id = 1};
    assert_int_equal(fleet_role_user(&d, &role, &err), -EINVAL);
    assert_non_null(strstr(err.text, "server_endpoints: required"));
    d.server_endpoints = "s:1";
    assert_int_equal(fleet_role_user(&d, &role, &err), 0);
    assert_int_equal(fleet_role_worker_index(role), 1);
    assert_int_equal(fleet_role_node_num(role), 1);
    fleet_role_free(role);
    d.kind = (enum fleet_role_kind)0;
    assert_int_equal(fleet_role_user(&d, &role, &err), -EINVAL);
    d.kind = FLEET_SERVER;
    assert_int_equal(fleet_role_user(&d, &role, &err), -EINVAL);
    assert_non_null(strstr(err.text, "current_id is 1, allowed: 0 to 0"));
}

/* Every number of files on every number of workers: blocks in order, without gap, sizes differ by
 * one at most. */
static void test_role__files_are_cut_into_blocks(void **state)
{
    struct fleet_role_description d = {.is_collective = true};
    int first, count;

    (void)state;
    for (d.worker_num = 1; d.worker_num < 9; d.worker_num++)
        for (int files = 0; files < 20; files++) {
            int next = 0, before = files;
            for (d.current_id = 0; d.current_id < d.worker_num; d.current_id++) {
                assert_int_equal(fleet_role_user(&d, &role, &err), 0);
                assert_int_equal(fleet_util_file_shard(role, files, &first, &count, &err), 0);
                assert_int_equal(first, next);
                assert_true(count <= before && count >= files / d.worker_num);
                next += count;
                before = count;
                fleet_role_free(role);
            }
            assert_int_equal(next, files);
        }
    d.worker_num = 3;
    d.current_id = 1;
    assert_int_equal(fleet_role_user(&d, &role, &err), 0);
    assert_int_equal(fleet_util_file_shard(role, 5, &first, &count, &err), 0);
    assert_true(first == 2 && count == 2);
    assert_int_equal(fleet_util_file_shard(role, -1, &first, &count, &err), -EINVAL);
    fleet_role_free(role);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_role__a_collective_job_has_defaults, setup),
        cmocka_unit_test_setup(test_role__nodes_are_distinct_hosts, setup),
        cmocka_unit_test_setup(test_role__without_servers_it_is_a_local_run, setup),
        cmocka_unit_test_setup(test_role__a_server_finds_its_place, setup),
        cmocka_unit_test_setup(test_role__a_description_is_checked, setup),
        cmocka_unit_test_setup(test_role__files_are_cut_into_blocks, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
