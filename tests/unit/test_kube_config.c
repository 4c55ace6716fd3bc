/* SPDX-License-Identifier: Apache-2.0 */

/* kubeconfig and service account: what is taken, what is read again, what is refused. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/kube/api_error.h"
#include "libfleet/kube/config.h"

static const char sample[] =
    "apiVersion: v1\n"
    "kind: Config\n"
    "current-context: main\n"
    "clusters:\n"
    "- name: here\n"
    "  cluster: {server: \"https://10.0.0.1:6443/\", certificate-authority-data: Q0EgdGV4dA==}\n"
    "- name: there\n"
    "  cluster:\n"
    "    server: http://127.0.0.1:1\n"
    "    tls-server-name: api.example\n"
    "    certificate-authority: ca.pem\n"
    "users:\n"
    "- name: me\n"
    "  user: {token: secret}\n"
    "- name: you\n"
    "  user: {client-certificate: /abs/c.pem, client-key-data: S0VZ, tokenFile: t}\n"
    "contexts:\n"
    "- {name: main, context: {cluster: here, user: me}}\n"
    "- {name: other, context: {cluster: there, user: you, namespace: work}}\n"
    "- {name: broken, context: {cluster: nowhere, user: me}}\n";

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/test_kube_config.XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    char command[128];

    (void)state;
    snprintf(command, sizeof(command), "rm -rf %s", folder);
    return system(command);
}

static char *write_file(const char *name, const char *text)
{
    char *path = fleet_file_join(folder, name);

    assert_int_equal(fleet_file_write(path, text, strlen(text), NULL), 0);
    return path;
}

static void test_kube_config__follows_the_current_context(void **state)
{
    struct kube_config config;
    struct fleet_error err;

    (void)state;
    if (kube_config_decode(sample, strlen(sample), "/etc/k", NULL, &config, &err) < 0)
        fail_msg("%s", err.text);
    assert_string_equal(config.server, "https://10.0.0.1:6443");
    assert_string_equal(config.namespace_, "default");
    assert_string_equal(config.ca.text, "CA text");
    assert_int_equal(config.ca.size, 7);
    assert_null(config.ca.file);
    assert_string_equal(config.token.text, "secret");
    kube_config_release(&config);
}

static void test_kube_config__files_are_below_the_folder_of_the_file(void **state)
{
    struct kube_config config;

    (void)state;
    assert_int_equal(kube_config_decode(sample, strlen(sample), "/etc/k", "other", &config, NULL),
                     0);
    assert_string_equal(config.namespace_, "work");
    assert_string_equal(config.tls_server_name, "api.example");
    assert_string_equal(config.ca.file, "/etc/k/ca.pem");
    assert_string_equal(config.client_certificate.file, "/abs/c.pem");
    assert_string_equal(config.client_key.text, "KEY");
    assert_string_equal(config.token.file, "/etc/k/t");
    assert_null(config.token.text);
    kube_config_release(&config);
}

static void test_kube_config__names_what_is_wrong(void **state)
{
    static const struct {
        const char *text, *context, *message;
    } cases[] = {
        {sample, "broken", "clusters: there is no \"nowhere\""},
        {sample, "none", "contexts: there is no \"none\""},
        {"{}", NULL, "current-context: is not set"},
        {"current-context: a\ncontexts: [{name: a, context: {cluster: c}}]\n"
         "clusters: [{name: c, cluster: {server: \"ftp://x\"}}]\n",
         NULL, "cluster \"c\": server: \"ftp://x\" is not an http or https URL"},
        {"current-context: a\ncontexts: [{name: a, context: {cluster: c}}]\n"
         "clusters: [{name: c, cluster: {server: \"https://x\", "
         "insecure-skip-tls-verify: true}}]\n",
         NULL,
         "cluster \"c\": insecure-skip-tls-verify: is not supported; give the "
         "certificate-authority"},
        {"current-context: a\ncontexts: [{name: a, context: {cluster: c}}]\n"
         "clusters: [{name: c, cluster: {server: \"https://x\", certificate-authority-data: \"?\"}"
         "}]",
         NULL, "cluster \"c\": certificate-authority-data: is not base64"},
        {"current-context: a\ncontexts: [{name: a, context: {cluster: c}}]\n"
         "clusters: [{name: c, cluster: {server: \"https://\"}}]\n",
         NULL, "cluster \"c\": server: \"https://\" is not an http or https URL"},
        {"current-context: a\ncontexts: [{name: a, context: {cluster: c, user: u}}]\n"
         "clusters: [{name: c, cluster: {server: \"https://x\"}}]\n"
         "users: [{name: u, user: {token: t, as: somebody}}]\n",
         NULL, "user \"u\": as: is not supported; use a token, a client certificate or exec"},
        {"current-context: a\ncontexts: [{name: a, context: {cluster: c, user: u}}]\n"
         "clusters: [{name: c, cluster: {server: \"https://x\"}}]\n"
         "users: [{name: u, user: {exec: {apiVersion: v, command: c, interactiveMode: Always}}}]\n",
         NULL, "user \"u\": exec: interactiveMode: \"Always\": there is no terminal to ask at"},
        {"a: *b\n", NULL, "line 1, column 4: a: no complete value has the anchor \"b\""},
        {"a: 1\na: 2\n", NULL, "line 2, column 1: duplicate key \"a\", first on line 1"},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        struct kube_config config;
        struct fleet_error err;
        assert_int_equal(kube_config_decode(cases[i].text, strlen(cases[i].text), "",
                                            cases[i].context, &config, &err),
                         -EINVAL);
        assert_string_equal(err.text, cases[i].message);
    }
}

static void test_kube_config__reads_a_rotated_token_again(void **state)
{
    FLEET_AUTO_FREE char *token = write_file("token", "one\n");
    FLEET_AUTO_FREE char *ca = write_file("ca.crt", "CA");
    FLEET_AUTO_FREE char *space = write_file("namespace", "team-a\n");
    struct kube_config config;
    struct fleet_error err;

    (void)state;
    unsetenv("KUBERNETES_SERVICE_HOST");
    assert_int_equal(kube_config_in_cluster(folder, &config, &err), -ENOENT);
    setenv("KUBERNETES_SERVICE_HOST", "fd00::1", 1);
    setenv("KUBERNETES_SERVICE_PORT", "443", 1);
    assert_int_equal(kube_config_in_cluster(folder, &config, &err), 0);
    assert_string_equal(config.server, "https://[fd00::1]:443");
    assert_string_equal(config.namespace_, "team-a");

    assert_int_equal(kube_config_refresh(&config, 1000, 0, &err), 0);
    assert_string_equal(config.token.text, "one"); /* without the line end */
    free(write_file("token", "two"));
    assert_int_equal(kube_config_refresh(&config, 2000, 0, &err), 0);
    assert_string_equal(config.token.text, "one"); /* fresh enough */
    assert_int_equal(kube_config_refresh(&config, 1000 + KUBE_CONFIG_REFRESH_MS, 0, &err), 0);
    assert_string_equal(config.token.text, "two");
    free(write_file("token", "three"));
    kube_config_doubt(&config); /* the server said 401 */
    assert_int_equal(kube_config_refresh(&config, 1001 + KUBE_CONFIG_REFRESH_MS, 0, &err), 0);
    assert_string_equal(config.token.text, "three");
    free(write_file("token", "\n"));
    kube_config_doubt(&config); /* being written just now: the same */
    assert_int_equal(kube_config_refresh(&config, 1002 + KUBE_CONFIG_REFRESH_MS, 0, &err), 0);
    assert_string_equal(config.token.text, "three");
    (void)unlink(token);
    kube_config_doubt(&config); /* being replaced just now: what we have will do */
    assert_int_equal(kube_config_refresh(&config, 1e9, 0, &err), 0);
    assert_string_equal(config.token.text, "three");
    kube_config_release(&config);
    unsetenv("KUBERNETES_SERVICE_HOST");
    (void)ca;
    (void)space;
}

static void test_kube_config__fails_where_a_secret_never_was(void **state)
{
    struct kube_config config;
    struct fleet_error err;

    (void)state;
    assert_int_equal(kube_config_decode(sample, strlen(sample), "/nowhere", "other", &config, NULL),
                     0);
    assert_int_equal(kube_config_refresh(&config, 0, 0, &err), -ENOENT);
    assert_non_null(strstr(err.text, "/nowhere/ca.pem"));
    kube_config_release(&config);
}

/* As kubectl merges them: of two entries with one name the first, paths relative to their own
 * file. */
static void test_kube_config__several_files_are_one(void **state)
{
    FLEET_AUTO_FREE char *below = fleet_file_join(folder, "below");
    FLEET_AUTO_FREE char *list = NULL;
    struct fleet_strbuf text = {0};
    struct kube_config config;
    struct fleet_error err;

    (void)state;
    (void)mkdir(below, 0700);
    free(write_file("contexts", "contexts: [{name: here, context: {cluster: c, user: u}}]\n"
                                "clusters: [{name: c, cluster: {server: \"https://first\", "
                                "certificate-authority: ca.pem}}]\n"));
    free(write_file("below/users",
                    "current-context: here\n"
                    "users: [{name: u, user: {tokenFile: t}}]\n"
                    "clusters: [{name: c, cluster: {server: \"https://second\"}}]\n"));
    fleet_strbuf_appendf(&text, "%s/nothing:%s/contexts::%s/below/users", folder, folder, folder);
    list = fleet_strbuf_take(&text);
    setenv("KUBECONFIG", list, 1);
    if (kube_config_load(NULL, NULL, &config, &err) < 0)
        fail_msg("%s", err.text);
    assert_string_equal(config.server, "https://first");
    assert_string_equal(strrchr(config.ca.file, '/'), "/ca.pem");
    assert_non_null(strstr(config.token.file, "/below/t"));
    kube_config_release(&config);

    assert_int_equal(kube_config_load(NULL, "there", &config, &err), -EINVAL);
    assert_non_null(strstr(err.text, "contexts: there is no \"there\""));
    free(write_file("contexts", "contexts: ["));
    assert_true(kube_config_load(NULL, NULL, &config, &err) < 0);
    assert_non_null(strstr(err.text, "/contexts: ")); /* which of them */
    setenv("KUBECONFIG", "/nowhere:/neither", 1);
    assert_int_equal(kube_config_load(NULL, NULL, &config, &err), -ENOENT);
    unsetenv("KUBECONFIG");
}

static void test_kube_config__base64_may_be_broken_into_lines(void **state)
{
    static const char text[] = "current-context: a\n"
                               "contexts: [{name: a, context: {cluster: c, user: \"\"}}]\n"
                               "clusters:\n"
                               "- name: c\n"
                               "  cluster:\n"
                               "    server: https://x/k8s/clusters/c-1/\n"
                               "    certificate-authority-data: |\n"
                               "      Q0Eg\n"
                               "      dGV4dA==\n";
    struct kube_config config;

    (void)state;
    assert_int_equal(kube_config_decode(text, strlen(text), "", NULL, &config, NULL), 0);
    assert_string_equal(config.ca.text, "CA text");
    assert_string_equal(config.server, "https://x/k8s/clusters/c-1");
    kube_config_release(&config);
}

static void decode_with_plugin(const char *script, struct kube_config *config)
{
    FLEET_AUTO_FREE char *path = write_file("plugin.sh", script);
    char text[1024];

    assert_int_equal(chmod(path, 0755), 0);
    snprintf(text, sizeof(text),
             "current-context: a\ncontexts: [{name: a, context: {cluster: c, user: u}}]\n"
             "clusters: [{name: c, cluster: {server: \"https://x\"}}]\n"
             "users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1, "
             "command: %s, args: [\"7\"], env: [{name: FROM_CONFIG, value: v}]}}}]\n",
             path);
    assert_int_equal(kube_config_decode(text, strlen(text), folder, NULL, config, NULL), 0);
}

static void test_kube_config__runs_a_plugin_until_its_token_expires(void **state)
{
    struct kube_config config;
    struct fleet_error err;
    char expected[128];

    (void)state;
    decode_with_plugin(
        "#!/bin/sh\n"
        "echo x >>\"$(dirname \"$0\")/runs\"\n"
        "case $KUBERNETES_EXEC_INFO in *ExecCredential*) ;; *) exit 3 ;; esac\n"
        "echo '{\"kind\":\"ExecCredential\",\"status\":{\"token\":\"'$1-$FROM_CONFIG-"
        "$(wc -l <\"$(dirname \"$0\")/runs\")'\",\"expirationTimestamp\":\"1970-01-01T00:10:00Z\"}"
        "}'\n",
        &config);
    for (int run = 1; run <= 2; run++) {
        snprintf(expected, sizeof(expected), "7-v-%d", run);
        if (kube_config_refresh(&config, 0, run == 1 ? 0 : 560000, &err) < 0)
            fail_msg("%s", err.text);
        assert_string_equal(config.token.text, expected);
        assert_int_equal(kube_config_refresh(&config, 0, 1000, &err), 0); /* not run again */
        assert_string_equal(config.token.text, expected);
    }
    kube_config_release(&config);
}

static void test_kube_config__takes_a_certificate_from_a_plugin(void **state)
{
    static const char text[] =
        "current-context: a\ncontexts: [{name: a, context: {cluster: c, user: u}}]\n"
        "clusters: [{name: c, cluster: {server: \"https://x\", certificate-authority-data: Q0E=}}"
        "]\n"
        "users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1, "
        "command: ./plugin.sh, provideClusterInfo: true, interactiveMode: IfAvailable}}}]\n";
    FLEET_AUTO_FREE char *path = write_file(
        "plugin.sh",
        "#!/bin/sh\n"
        "case $KUBERNETES_EXEC_INFO in *'\"server\":\"https://x\"'*Q0E=*) ;; *) exit 3 ;; esac\n"
        "echo '{\"status\":{\"clientCertificateData\":\"CERT\",\"clientKeyData\":\"KEY\"}}'\n");
    struct kube_config config;
    struct fleet_error err;

    (void)state;
    assert_int_equal(chmod(path, 0755), 0);
    assert_int_equal(kube_config_decode(text, strlen(text), folder, NULL, &config, NULL), 0);
    if (kube_config_refresh(&config, 0, 0, &err) < 0) /* the command is beside the file */
        fail_msg("%s", err.text);
    assert_string_equal(config.client_certificate.text, "CERT");
    assert_string_equal(config.client_key.text, "KEY");
    assert_null(config.token.text);
    kube_config_release(&config);
}

static void test_kube_config__a_token_is_good_until_it_expires(void **state)
{
    struct kube_config config;
    struct fleet_error err;

    (void)state;
    decode_with_plugin("#!/bin/sh\n"
                       "[ -e \"$0.ran\" ] && exit 3\n"
                       "touch \"$0.ran\"\n"
                       "echo '{\"status\":{\"token\":\"t\",\"expirationTimestamp\":"
                       "\"1970-01-01T00:10:00Z\"}}'\n",
                       &config);
    assert_int_equal(kube_config_refresh(&config, 0, 0, &err), 0);
    assert_int_equal(kube_config_refresh(&config, 0, 599000, &err),
                     0); /* due, failed, still good */
    assert_string_equal(config.token.text, "t");
    assert_true(kube_config_refresh(&config, 0, 600000, &err) < 0);
    assert_int_equal(kube_error_kind(&err), KUBE_ERROR_CREDENTIAL);
    kube_config_release(&config);
}

static void test_kube_config__tells_how_a_plugin_failed(void **state)
{
    struct kube_config config;
    struct fleet_error err;

    (void)state;
    decode_with_plugin("#!/bin/sh\nexit 3\n", &config);
    assert_true(kube_config_refresh(&config, 0, 0, &err) < 0);
    assert_int_equal(kube_error_kind(&err), KUBE_ERROR_CREDENTIAL);
    assert_non_null(strstr(err.text, "plugin.sh: it failed with exit code 3"));
    kube_config_release(&config);
    decode_with_plugin("#!/bin/sh\necho '{\"status\":{}}'\n", &config);
    assert_int_equal(kube_config_refresh(&config, 0, 0, &err), -EINVAL);
    assert_non_null(strstr(err.text, "status: has neither token nor clientCertificateData"));
    kube_config_release(&config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kube_config__follows_the_current_context),
        cmocka_unit_test(test_kube_config__files_are_below_the_folder_of_the_file),
        cmocka_unit_test(test_kube_config__names_what_is_wrong),
        cmocka_unit_test(test_kube_config__reads_a_rotated_token_again),
        cmocka_unit_test(test_kube_config__fails_where_a_secret_never_was),
        cmocka_unit_test(test_kube_config__runs_a_plugin_until_its_token_expires),
        cmocka_unit_test(test_kube_config__several_files_are_one),
        cmocka_unit_test(test_kube_config__base64_may_be_broken_into_lines),
        cmocka_unit_test(test_kube_config__takes_a_certificate_from_a_plugin),
        cmocka_unit_test(test_kube_config__a_token_is_good_until_it_expires),
        cmocka_unit_test(test_kube_config__tells_how_a_plugin_failed),
    };
    return cmocka_run_group_tests_name("kube_config", tests, make_folder, remove_folder);
}
