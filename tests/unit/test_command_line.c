/* SPDX-License-Identifier: Apache-2.0 */

/* The controller's options: where each goes, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "controller/command_line.h"
#include "libfleet/base/assert.h"

#define ARGUMENTS_MAX 24

/* The words of `text` as a command line; they live until the next call. */
static int parse(const char *text, struct command_line *out)
{
    static char words[512];
    char *argv[ARGUMENTS_MAX + 1] = {(char *)"fleetjob-controller"}, *rest = NULL;
    int argc = 1;

    (void)snprintf(words, sizeof(words), "%s", text);
    for (char *word = strtok_r(words, "|", &rest); word && argc < ARGUMENTS_MAX;
         word = strtok_r(NULL, "|", &rest))
        argv[argc++] = word;
    return command_line_parse(argc, argv, out);
}

static void test_command_line__takes_every_option(void **state)
{
    struct command_line line;

    (void)state;
    assert_int_equal(
        parse(
            "--runtime-image|i|--cuda-image|g|--image-pull-policy=Never|--hub-service|s|--hub-port|1|"
            "--pod-address|::1|--namespace|n|--watch-namespaces|a, b,a|--lease|l|-v",
            &line),
        -1);
    assert_string_equal(line.runtime_image, "i");
    assert_string_equal(line.cuda_image, "g");
    assert_string_equal(line.pull_policy, "Never");
    assert_string_equal(line.hub_service, "s");
    assert_string_equal(line.pod_address, "::1");
    assert_string_equal(line.namespace_, "n");
    assert_string_equal(line.lease, "l");
    assert_int_equal(line.hub_port, 1);
    assert_int_equal(line.watched_count, 2); /* the same one twice is one */
    assert_string_equal(line.watched[0], "a");
    assert_string_equal(line.watched[1], "b");
    assert_true(line.is_verbose && !line.no_election && !line.is_json);
    assert_null(line.hub_address);
    assert_true(!line.has_metrics_auth && line.metrics_port == 8443);
    command_line_release(&line);

    assert_int_equal(parse("--runtime-image|i|--hub-address|h:1|--identity-secret|x|--probe-port|9|"
                           "--kubeconfig|k|--context|c|--log-format|json|--no-election|"
                           "--metrics-auth|--metrics-port|7|--metrics-name|m",
                           &line),
                     -1);
    assert_string_equal(line.hub_address, "h:1");
    assert_string_equal(line.identity_secret, "x");
    assert_string_equal(line.kubeconfig, "k");
    assert_string_equal(line.context, "c");
    assert_string_equal(line.lease, "fleetjob-controller");
    assert_int_equal(line.probe_port, 9);
    assert_true(line.has_metrics_auth);
    assert_int_equal(line.metrics_port, 7);
    assert_string_equal(line.metrics_name, "m");
    assert_int_equal(line.hub_port, 7443);
    assert_int_equal(line.watched_count, 0);
    assert_true(line.no_election && line.is_json && !line.is_verbose);
    command_line_release(&line);
}

static void test_command_line__refuses_what_it_cannot_understand(void **state)
{
    static const struct {
        const char *text;
        int code;
    } cases[] = {
        {"--help", 0},
        {"-h", 0},
        {"--version", 0},
        {"--runtime-image|i|--hub-service|s", 2}, /* and where is this replica? */
        {"--runtime-image|i", 2},
        {"--hub-address|h:1", 2},
        {"--runtime-image|i|--hub-address|h:1|--hub-service|s|--pod-address|p", 2},
        {"--runtime-image|i|--hub-address|h:1|more", 2},
        {"--runtime-image|i|--hub-address|h:1|--hub-port|65536", 2},
        {"--runtime-image|i|--hub-address|h:1|--probe-port|8o80", 2},
        {"--runtime-image|i|--hub-address|h:1|--log-format|yaml", 2},
        {"--runtime-image|i|--hub-address|h:1|--watch-namespaces| ,", 2}, /* not: all of them */
        {"--runtime-image|i|--hub-address|h:1|--lease", 2},
        {"--runtime-image|i|--hub-address|h:1|--metrics-auth", 2},
        {"--runtime-image|i|--hub-address|h:1|--metrics-name|m", 2},
        {"--runtime-image|i|--hub-address|h:1|--metrics-auth|--metrics-name|m|"
         "--metrics-certificate|c",
         2},
        {"--nonsense", 2},
        {"-x", 2},
    };

    (void)state;
    unsetenv("POD_IP");
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        struct command_line line;
        int code = parse(cases[i].text, &line);
        if (code != cases[i].code)
            fail_msg("%s: %d", cases[i].text, code);
        command_line_release(&line);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_command_line__takes_every_option),
        cmocka_unit_test(test_command_line__refuses_what_it_cannot_understand),
    };
    return cmocka_run_group_tests_name("command_line", tests, NULL, NULL);
}
