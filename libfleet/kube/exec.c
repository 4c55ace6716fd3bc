/* SPDX-License-Identifier: Apache-2.0 */

/* Runs a child with its stdout in a pipe, and reads until the pipe closes or a deadline; stderr
 * stays the user's. All inputs of the child are copied first, so that it may run on another
 * thread. */
#include "libfleet/kube/exec.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/child.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/memory.h"
#include "libfleet/kube/api_error.h"
#include "libfleet/kube/config.h"

#define ENV_MAX  1024
#define EARLY_MS 60000 /* a credential is replaced this long before it expires */
#define LOOK_MS  100   /* interval of checking whether to stop */

struct kube_exec_run {
    char **argv, **env; /* [.., NULL], owned */
    struct fleet_strbuf answer;
    int rc; /* result of the run; after a failure: */
    struct fleet_error err;
    atomic_bool is_stopped;
};

static char **dup_list(char *const *list)
{
    size_t count = 0;
    char **copy;

    while (list[count])
        count++;
    copy = calloc(count + 1, sizeof(*copy));
    fleet_assert(copy);
    for (size_t i = 0; i < count; i++)
        copy[i] = fleet_dup_text(list[i]);
    return copy;
}

static void free_list(char **list)
{
    for (char **p = list; p && *p; p++)
        free(*p);
    free(list);
}

/* Our environment, the plug-in's own variables, and the request. Takes ownership of `info`. */
static char **build_environment(const struct kube_exec *exec, char *info)
{
    char **env = calloc(ENV_MAX + 1, sizeof(*env));
    size_t count = 0;

    fleet_assert(env != NULL);
    for (char **e = exec->env; e && *e && count < ENV_MAX - 1; e++)
        env[count++] = fleet_dup_text(*e); /* in front, because the first of two equal names
                                            * counts */
    for (char **e = environ; *e && count < ENV_MAX - 1; e++)
        if (strncmp(*e, "KUBERNETES_EXEC_INFO=", 21) != 0)
            env[count++] = fleet_dup_text(*e);
    env[count] = info;
    return env;
}

static void add_text(cJSON *object, const char *name, const char *text)
{
    if (text)
        fleet_json_set_string(object, name, text);
}

/* The request to the plug-in, for $KUBERNETES_EXEC_INFO. */
static char *build_info(const struct kube_config *config)
{
    FLEET_AUTO_JSON cJSON *info = fleet_json_new_object();
    FLEET_AUTO_FREE unsigned char *ca = calloc(1, (config->ca.size + 2) / 3 * 4 + 1);
    cJSON *spec, *cluster;

    fleet_assert(info && ca);
    add_text(info, "apiVersion", config->exec.api_version);
    add_text(info, "kind", "ExecCredential");
    spec = fleet_json_set_object(info, "spec");
    fleet_json_set_bool(spec, "interactive", false);
    if (config->exec.wants_cluster) {
        cluster = fleet_json_set_object(spec, "cluster");
        add_text(cluster, "server", config->server);
        add_text(cluster, "tls-server-name", config->tls_server_name);
        add_text(cluster, "proxy-url", config->proxy);
        if (config->ca.text) {
            (void)EVP_EncodeBlock(ca, (const unsigned char *)config->ca.text, (int)config->ca.size);
            add_text(cluster, "certificate-authority-data", (const char *)ca);
        }
    }
    return fleet_json_print(info);
}

/* posix_spawn(), unlike base/child.h: this thread belongs to a large process, which fork() would
 * copy, and the plug-in needs no process group of its own. */
static int spawn(const struct kube_exec_run *run, int out_fd, pid_t *pid, struct fleet_error *err)
{
    posix_spawn_file_actions_t actions;
    int rc;

    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, out_fd, STDOUT_FILENO);
    rc = posix_spawnp(pid, run->argv[0], &actions, NULL, run->argv, run->env);
    posix_spawn_file_actions_destroy(&actions);
    if (rc != 0)
        return kube_error(err, KUBE_ERROR_CREDENTIAL, "run %s: %s", run->argv[0], strerror(rc));
    return 0;
}

/* Read the child's output until it closes its end. */
static int read_answer(struct kube_exec_run *run, int fd, struct fleet_error *err)
{
    double deadline = fleet_monotonic_ms() + KUBE_EXEC_TIMEOUT_MS;
    char chunk[4096];

    for (;;) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        ssize_t got;

        if (atomic_load(&run->is_stopped))
            return fleet_error(err, -ECANCELED, "its answer is not needed any more");
        if (fleet_monotonic_ms() >= deadline || run->answer.length > KUBE_CONFIG_SIZE_MAX)
            return kube_error(err, KUBE_ERROR_CREDENTIAL,
                              "it did not end within %d s or wrote over %u bytes",
                              KUBE_EXEC_TIMEOUT_MS / 1000, KUBE_CONFIG_SIZE_MAX);
        if (poll(&wait, 1, LOOK_MS) <= 0)
            continue;
        got = read(fd, chunk, sizeof(chunk));
        if (got == 0)
            return 0;
        if (got > 0)
            fleet_strbuf_append_bytes(&run->answer, chunk, (size_t)got);
        else if (errno != EINTR)
            return kube_error(err, KUBE_ERROR_CREDENTIAL, "read its answer: %s", strerror(errno));
    }
}

static void take(struct kube_secret *secret, const char *text)
{
    char *copy = text ? strdup(text) : NULL;

    fleet_assert(copy || !text);
    kube_secret_set(secret, copy, text ? strlen(text) : 0);
}

static int decode(struct kube_config *config, const struct fleet_strbuf *answer,
                  struct fleet_error *err)
{
    FLEET_AUTO_JSON cJSON *root = NULL;
    const char *token = NULL, *expires = NULL, *certificate = NULL, *key = NULL;
    int64_t expires_ms = 0;
    int rc;

    if ((rc = fleet_json_parse(fleet_strbuf_text(answer), answer->length, KUBE_CONFIG_SIZE_MAX,
                               &root, err)) < 0)
        return rc;
    if ((rc = fleet_json_opt_string(root, "status.token", &token, err)) < 0 ||
        (rc = fleet_json_opt_string(root, "status.clientCertificateData", &certificate, err)) < 0 ||
        (rc = fleet_json_opt_string(root, "status.clientKeyData", &key, err)) < 0 ||
        (rc = fleet_json_opt_string(root, "status.expirationTimestamp", &expires, err)) < 0)
        return rc;
    if (!(token && *token) && !(certificate && *certificate))
        return fleet_error(err, -EINVAL, "status: has neither token nor clientCertificateData");
    if ((certificate && *certificate) != (key && *key))
        return fleet_error(err, -EINVAL,
                           "status: clientCertificateData and clientKeyData belong together");
    if (expires && fleet_rfc3339_parse(expires, &expires_ms) < 0)
        return fleet_error(err, -EINVAL, "status.expirationTimestamp: \"%.40s\" is not a time",
                           expires);
    config->exec.expires_wall_ms = expires_ms;
    take(&config->token, token && *token ? token : NULL);
    if (certificate && *certificate) {
        take(&config->client_certificate, certificate);
        take(&config->client_key, key);
    }
    return 0;
}

/* ---- a run ----------------------------------------------------------------------------------- */

bool kube_exec_is_due(const struct kube_config *config, int64_t now_wall_ms, bool *out_is_urgent)
{
    int64_t expires = config->exec.expires_wall_ms;

    *out_is_urgent = config->exec.argv && expires != 0 && now_wall_ms >= expires;
    return config->exec.argv && expires != 0 && (expires < 0 || now_wall_ms >= expires - EARLY_MS);
}

struct kube_exec_run *kube_exec_prepare(const struct kube_config *config)
{
    struct kube_exec_run *run = calloc(1, sizeof(*run));
    struct fleet_strbuf info = {0};
    FLEET_AUTO_FREE char *text = build_info(config);

    fleet_assert(run);
    fleet_strbuf_appendf(&info, "KUBERNETES_EXEC_INFO=%s", text);
    run->argv = dup_list(config->exec.argv);
    run->env = build_environment(&config->exec, fleet_strbuf_take(&info));
    return run;
}

void kube_exec_free(struct kube_exec_run *run)
{
    if (!run)
        return;
    free_list(run->argv);
    free_list(run->env);
    fleet_strbuf_release(&run->answer);
    free(run);
}

void kube_exec_stop(struct kube_exec_run *run)
{
    atomic_store(&run->is_stopped, true);
}

static int perform(struct kube_exec_run *run, struct fleet_error *err)
{
    FLEET_AUTO_CLOSE int read_end = -1;
    FLEET_AUTO_CLOSE int write_end = -1;
    int fds[2], status, rc;
    pid_t pid;

    if (pipe2(fds, O_CLOEXEC) < 0)
        return fleet_error(err, -errno, "run %s: pipe: %s", run->argv[0], strerror(errno));
    read_end = fds[0];
    write_end = fds[1];
    if ((rc = spawn(run, write_end, &pid, err)) < 0)
        return rc;
    (void)close(write_end);
    write_end = -1;
    rc = read_answer(run, read_end, err);
    if (rc < 0)
        (void)kill(pid, SIGKILL);
    status = fleet_child_reap(pid);
    if (rc == 0 && !(WIFEXITED(status) && WEXITSTATUS(status) == 0))
        rc = kube_error(err, KUBE_ERROR_CREDENTIAL, "it failed with %s %d",
                        WIFSIGNALED(status) ? "signal" : "exit code",
                        WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return rc;
}

void kube_exec_perform(struct kube_exec_run *run)
{
    run->rc = perform(run, &run->err);
}

int kube_exec_take(struct kube_exec_run *run, struct kube_config *config, struct fleet_error *err)
{
    int rc = run->rc;

    if (rc < 0)
        *err = run->err;
    else
        rc = decode(config, &run->answer, err);
    return rc < 0 ? fleet_error_wrap(err, "credential plug-in %s", run->argv[0]) : 0;
}

int kube_exec_run_now(struct kube_config *config, struct fleet_error *err)
{
    struct kube_exec_run *run = kube_exec_prepare(config);
    int rc;

    kube_exec_perform(run);
    rc = kube_exec_take(run, config, err);
    kube_exec_free(run);
    return rc;
}
