/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The client against a real API server: TLS both ways, HTTP/2, server-side apply, conflicts,
 * watches over a burst of changes, a service account's token. Skipped (77) unless
 * FLEET_TEST_KUBECONFIG names a cluster that may be written to; e2e/01-client.bats brings one.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/kube/api_error.h"
#include "libfleet/kube/config.h"
#include "libfleet/kube/http.h"
#include "libfleet/kube/rest.h"
#include "tests/support/loop_turn.h"

#define BURST       400
#define PATIENCE_MS 600000.0 /* a busy machine */

struct world {
    uv_loop_t loop;
    struct kube_config config;
    struct kube_io *io;
};

static int set_up(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    struct fleet_error err;

    assert_int_equal(uv_loop_init(&w->loop), 0);
    if (kube_config_load(getenv("FLEET_TEST_KUBECONFIG"), NULL, &w->config, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(kube_http_new(&w->loop, &w->config, NULL, &w->io, NULL), 0);
    *state = w;
    return 0;
}

static int tear_down(void **state)
{
    struct world *w = *state;

    kube_http_free(w->io);
    assert_int_equal(uv_run(&w->loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&w->loop), 0);
    kube_config_release(&w->config);
    free(w);
    return 0;
}

struct answer {
    int count;
    cJSON *object;
    struct fleet_error err;
    bool failed;
};

static void on_answer(void *user, const cJSON *object, const struct fleet_error *err)
{
    struct answer *a = user;

    a->count++;
    cJSON_Delete(a->object);
    a->object = object ? cJSON_Duplicate(object, true) : NULL;
    a->failed = err != NULL;
    if (err)
        a->err = *err;
}

static struct answer do_request(struct world *w, const struct kube_rest_request *request)
{
    struct answer a = {0};

    (void)kube_rest_start(w->io, request, on_answer, &a);
    loop_turn_until(&w->loop, &a.count, 1);
    return a;
}

static cJSON *config_map(const char *name, const char *value)
{
    cJSON *root = cJSON_CreateObject();
    cJSON *meta = cJSON_AddObjectToObject(root, "metadata");

    cJSON_AddStringToObject(root, "apiVersion", "v1");
    cJSON_AddStringToObject(root, "kind", "ConfigMap");
    cJSON_AddStringToObject(meta, "name", name);
    cJSON_AddStringToObject(cJSON_AddObjectToObject(meta, "labels"), "test", "kube-client");
    cJSON_AddStringToObject(cJSON_AddObjectToObject(root, "data"), "value", value);
    return root;
}

struct watch_log {
    int seen, bookmarks, ended, reopened;
    char version[64]; /* of the newest object seen */
};

static void on_event(void *user, enum kube_watch_type type, const cJSON *object)
{
    struct watch_log *log = user;
    const char *version = NULL;

    if (type == KUBE_WATCH_BOOKMARK)
        log->bookmarks++;
    else
        log->seen++;
    if (fleet_json_get_string(object, "metadata.resourceVersion", &version, NULL) == 0)
        (void)snprintf(log->version, sizeof(log->version), "%s", version);
}

static void on_end(void *user, const struct fleet_error *err)
{
    (void)err;
    ((struct watch_log *)user)->ended++;
}

static void count_one(void *user, const cJSON *object, const struct fleet_error *err)
{
    (void)object;
    if (err)
        fail_msg("%s", err->text);
    ++*(int *)user;
}

static void delete_all(struct world *w)
{
    struct kube_rest_request r = {.verb = KUBE_LIST,
                                  .resource = &kube_config_maps,
                                  .namespace_ = "default",
                                  .label_selector = "test=kube-client"};
    struct answer a = do_request(w, &r);
    const cJSON *item;
    int done = 0;

    cJSON_ArrayForEach(item, fleet_json_at(a.object, "items"))
    {
        struct kube_rest_request d = {
            .verb = KUBE_DELETE, .resource = &kube_config_maps, .namespace_ = "default"};
        assert_int_equal(fleet_json_get_string(item, "metadata.name", &d.name, NULL), 0);
        (void)kube_rest_start(w->io, &d, count_one, &done);
    }
    loop_turn_until(&w->loop, &done, cJSON_GetArraySize(fleet_json_at(a.object, "items")));
    cJSON_Delete(a.object);
}

/* The API server closes the watch of a client that is too slow for it, which a busy machine can
 * make of anybody; it goes on after what was seen. */
static void watch_until(struct world *w, struct kube_rest_request *list, struct watch_log *log,
                        struct kube_rest_call **watch, int value)
{
    double end = fleet_monotonic_ms() + PATIENCE_MS;

    while (log->seen < value) {
        if (fleet_monotonic_ms() > end)
            fail_msg("timed out waiting for %d events, got %d; the watch ended %d times", value,
                     log->seen, log->ended);
        if (log->ended > log->reopened) {
            log->reopened = log->ended;
            if (log->version[0])
                list->resource_version = log->version;
            *watch = kube_rest_watch(w->io, list, on_event, on_end, log);
        }
        (void)uv_run(&w->loop, UV_RUN_ONCE);
    }
    if (log->ended > log->reopened)
        *watch = NULL;
}

static void test_cluster__a_burst_is_created_watched_and_deleted(void **state)
{
    struct world *w = *state;
    struct kube_rest_request r = {.verb = KUBE_LIST,
                                  .resource = &kube_config_maps,
                                  .namespace_ = "default",
                                  .label_selector = "test=kube-client"};
    struct watch_log log = {0};
    struct kube_rest_call *watch;
    struct answer a;
    double began;
    int done = 0;

    delete_all(w);
    a = do_request(w, &r);
    assert_int_equal(
        fleet_json_get_string(a.object, "metadata.resourceVersion", &r.resource_version, NULL), 0);
    watch = kube_rest_watch(w->io, &r, on_event, on_end, &log);
    began = fleet_monotonic_ms();
    for (int i = 0; i < BURST; i++) {
        char name[32];
        FLEET_AUTO_JSON cJSON *body = NULL;
        snprintf(name, sizeof(name), "burst-%d", i);
        body = config_map(name, "x");
        (void)kube_rest_start(w->io,
                              &(struct kube_rest_request){.verb = KUBE_CREATE,
                                                          .resource = &kube_config_maps,
                                                          .namespace_ = "default",
                                                          .body = body},
                              count_one, &done);
    }
    loop_turn_until(&w->loop, &done, BURST);
    print_message("%d objects created, %.0f a second\n", BURST,
                  BURST * 1000.0 / (fleet_monotonic_ms() - began));
    watch_until(w, &r, &log, &watch, BURST);
    delete_all(w);
    watch_until(w, &r, &log, &watch, 2 * BURST);
    cJSON_Delete(a.object);
    kube_rest_cancel(&watch);
}

static void test_cluster__a_stale_update_is_a_conflict(void **state)
{
    struct world *w = *state;
    FLEET_AUTO_JSON cJSON *body = config_map("conflict", "1");
    struct kube_rest_request r = {.verb = KUBE_APPLY,
                                  .resource = &kube_config_maps,
                                  .namespace_ = "default",
                                  .name = "conflict",
                                  .body = body,
                                  .field_manager = "one"};
    struct answer first = do_request(w, &r), second;
    FLEET_AUTO_JSON cJSON *other = config_map("conflict", "2");

    if (first.failed)
        fail_msg("%s", first.err.text);
    r.body = other;
    r.field_manager = "two"; /* a field that someone else applied */
    second = do_request(w, &r);
    assert_true(second.failed && kube_is_conflict(&second.err));
    r.force = true;
    second = do_request(w, &r);
    assert_false(second.failed);
    r.verb = KUBE_UPDATE; /* from the version before that */
    r.body = first.object;
    cJSON_Delete(second.object);
    second = do_request(w, &r);
    assert_true(second.failed && kube_is_conflict(&second.err));
    cJSON_Delete(first.object);
    delete_all(w);
}

static void test_cluster__a_bad_object_is_invalid_before_it_exists(void **state)
{
    struct world *w = *state;
    FLEET_AUTO_JSON cJSON *body = config_map("Not_A_Name", "1");
    struct kube_rest_request r = {.verb = KUBE_CREATE,
                                  .resource = &kube_config_maps,
                                  .namespace_ = "default",
                                  .body = body,
                                  .dry_run = true};
    struct answer a = do_request(w, &r);

    assert_true(a.failed && kube_is_invalid(&a.err));
    assert_non_null(strstr(a.err.text, "metadata.name"));
}

static void test_cluster__a_version_that_is_gone_is_reported(void **state)
{
    struct world *w = *state;
    struct kube_rest_request r = {.verb = KUBE_LIST,
                                  .resource = &kube_config_maps,
                                  .limit = 1,
                                  .continue_token = "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3Rh"
                                                    "cnQiOiJhXHUwMDAwIn0"}; /* {"rv":1, …} */
    struct answer a = do_request(w, &r);

    /* etcd compacts every five minutes: a young cluster still knows its version 1 */
    assert_true(!a.failed || kube_is_gone(&a.err) || kube_is_invalid(&a.err));
    cJSON_Delete(a.object);
}

static void test_cluster__an_unknown_authority_is_not_trusted(void **state)
{
    struct world *w = *state;
    struct answer a;

    free(w->config.ca.file); /* the system's authorities; this cluster's is not one of them */
    free(w->config.ca.text);
    w->config.ca = (struct kube_secret){0};
    a = do_request(w, &(struct kube_rest_request){.verb = KUBE_LIST, .resource = &kube_nodes});
    assert_true(a.failed && kube_is_unreachable(&a.err));
    assert_non_null(strstr(a.err.text, "certificate"));
}

static void test_cluster__without_credentials_a_request_is_refused(void **state)
{
    struct world *w = *state;
    struct answer a;

    free(w->config.client_key.file);
    free(w->config.client_key.text);
    w->config.client_key = (struct kube_secret){0};
    a = do_request(w, &(struct kube_rest_request){.verb = KUBE_LIST, .resource = &kube_nodes});
    assert_true(a.failed && (kube_is_forbidden(&a.err) || kube_is_unauthorized(&a.err)));
    w->config.token.text = strdup("wrong");
    w->config.token.size = 5;
    a = do_request(w, &(struct kube_rest_request){.verb = KUBE_LIST, .resource = &kube_nodes});
    assert_true(a.failed && kube_is_unauthorized(&a.err));
}

/* A fresh token of the service account "default", from the API. The caller frees it. */
static char *ask_token(struct world *w)
{
    static const struct kube_resource accounts = {"", "v1", "serviceaccounts", "ServiceAccount",
                                                  true};
    FLEET_AUTO_JSON cJSON *body = cJSON_Parse("{\"apiVersion\":\"authentication.k8s.io/v1\","
                                              "\"kind\":\"TokenRequest\",\"spec\":{}}");
    struct answer a = do_request(w, &(struct kube_rest_request){.verb = KUBE_CREATE,
                                                                .resource = &accounts,
                                                                .namespace_ = "default",
                                                                .name = "default",
                                                                .subresource = "token",
                                                                .body = body});
    char *token = NULL;

    if (a.failed || fleet_json_dup_string(a.object, "status.token", &token, &a.err) < 0)
        fail_msg("%s", a.err.text);
    cJSON_Delete(a.object);
    return token;
}

static void write_secret(const char *folder, const char *name, const char *text)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, name);

    assert_int_equal(fleet_file_write(path, text, strlen(text), NULL), 0);
}

static void remove_folder(const char *folder)
{
    FLEET_AUTO_FREE char *token = fleet_file_join(folder, "token");
    FLEET_AUTO_FREE char *ca = fleet_file_join(folder, "ca.crt");

    assert_int_equal(unlink(token) + unlink(ca) + rmdir(folder), 0);
}

/* As in a pod: address from the environment, CA and token from a folder, where the token goes bad
 * and is replaced while the program runs. */
static void test_cluster__a_service_account_survives_a_new_token(void **state)
{
    struct world *w = *state, pod = {0};
    struct kube_rest_request r = {.verb = KUBE_LIST, .resource = &kube_nodes};
    char folder[] = "/tmp/test_kube_cluster.XXXXXX", host[128], *port;
    FLEET_AUTO_FREE char *token = ask_token(w);
    struct answer a;

    (void)kube_config_refresh(&w->config, 0, 0, NULL);
    assert_non_null(mkdtemp(folder));
    write_secret(folder, "ca.crt", w->config.ca.text);
    write_secret(folder, "token", token);
    snprintf(host, sizeof(host), "%s", w->config.server + strlen("https://"));
    port = strchr(host, ':');
    *port++ = '\0';
    setenv("KUBERNETES_SERVICE_HOST", host, 1);
    setenv("KUBERNETES_SERVICE_PORT", port, 1);
    assert_int_equal(kube_config_in_cluster(folder, &pod.config, NULL), 0);
    assert_int_equal(uv_loop_init(&pod.loop), 0);
    assert_int_equal(kube_http_new(&pod.loop, &pod.config, NULL, &pod.io, NULL), 0);

    a = do_request(&pod, &r);
    assert_true(a.failed && kube_is_forbidden(&a.err)); /* known, and without rights */
    assert_non_null(strstr(a.err.text, "system:serviceaccount:default:default"));
    write_secret(folder, "token", "went bad");
    kube_config_doubt(&pod.config);
    a = do_request(&pod, &r);
    assert_true(a.failed && kube_is_unauthorized(&a.err));
    write_secret(folder, "token", token);
    a = do_request(&pod, &r); /* read again because of the 401, not because of its age */
    assert_true(a.failed && kube_is_forbidden(&a.err));

    kube_http_free(pod.io);
    assert_int_equal(uv_run(&pod.loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&pod.loop), 0);
    kube_config_release(&pod.config);
    remove_folder(folder);
    unsetenv("KUBERNETES_SERVICE_HOST");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_cluster__a_burst_is_created_watched_and_deleted),
        TEST(test_cluster__a_stale_update_is_a_conflict),
        TEST(test_cluster__a_bad_object_is_invalid_before_it_exists),
        TEST(test_cluster__a_version_that_is_gone_is_reported),
        TEST(test_cluster__an_unknown_authority_is_not_trusted),
        TEST(test_cluster__without_credentials_a_request_is_refused),
        TEST(test_cluster__a_service_account_survives_a_new_token),
    };
    const char *config = getenv("FLEET_TEST_KUBECONFIG");

    if (!config || !*config)
        return 77;
    return cmocka_run_group_tests_name("kube_cluster", tests, NULL, NULL);
}
