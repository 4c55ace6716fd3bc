/* SPDX-License-Identifier: Apache-2.0 */

/* Finds the configuration, and keeps its secrets up to date. */
#include <errno.h>
#include <openssl/evp.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <curl/curl.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/base/yaml.h"
#include "libfleet/kube/config_internal.h"
#include "libfleet/kube/exec.h"

#define SERVICE_ACCOUNT "/var/run/secrets/kubernetes.io/serviceaccount"
#define NEVER_READ      (-1e300)

/* ---- secrets --------------------------------------------------------------------------------- */

void kube_secret_set(struct kube_secret *secret, char *text, size_t size)
{
    if (secret->text)
        OPENSSL_cleanse(secret->text, secret->size);
    free(secret->text);
    secret->text = text;
    secret->size = size;
}

static void secret_release(struct kube_secret *secret)
{
    kube_secret_set(secret, NULL, 0);
    free(secret->file);
    *secret = (struct kube_secret){0};
}

void kube_secret_from_file(struct kube_secret *secret, const char *folder, const char *file)
{
    secret->file = fleet_file_join(folder, file);
    secret->read_ms = NEVER_READ;
}

/* Token files often end in a line end, which must not go into a header. */
static size_t trimmed_size(const char *text, size_t size)
{
    while (size > 0 && strchr(" \t\r\n", text[size - 1]))
        size--;
    return size;
}

static int secret_refresh(struct kube_secret *secret, double now_ms, struct fleet_error *err)
{
    char *text;
    size_t size;
    int rc;

    if (!secret->file || now_ms - secret->read_ms < KUBE_CONFIG_REFRESH_MS)
        return 0;
    rc = fleet_file_read(secret->file, KUBE_CONFIG_SIZE_MAX, &text, &size, err);
    if (rc < 0)
        return secret->text ? 0 : rc; /* the file is being replaced: keep the earlier text */
    size = trimmed_size(text, size);
    text[size] = '\0';
    if (size == 0) { /* … or being written */
        free(text);
        return secret->text ? 0 : fleet_error(err, -ENODATA, "%s is empty", secret->file);
    }
    kube_secret_set(secret, text, size);
    secret->read_ms = now_ms;
    return 0;
}

int kube_config_refresh_files(struct kube_config *config, double now_ms, struct fleet_error *err)
{
    int rc;

    if ((rc = secret_refresh(&config->ca, now_ms, err)) < 0 ||
        (rc = secret_refresh(&config->client_certificate, now_ms, err)) < 0 ||
        (rc = secret_refresh(&config->client_key, now_ms, err)) < 0 ||
        (rc = secret_refresh(&config->token, now_ms, err)) < 0)
        return rc;
    return 0;
}

int kube_config_refresh(struct kube_config *config, double now_ms, int64_t now_wall_ms,
                        struct fleet_error *err)
{
    int rc = kube_config_refresh_files(config, now_ms, err);
    bool is_urgent;

    if (rc < 0 || !kube_exec_is_due(config, now_wall_ms, &is_urgent))
        return rc;
    rc = kube_exec_run_now(config, err);
    return rc < 0 && !is_urgent ? 0 : rc; /* the current credential is valid for a few more
                                           * seconds */
}

void kube_config_doubt(struct kube_config *config)
{
    config->ca.read_ms = config->token.read_ms = NEVER_READ;
    config->client_certificate.read_ms = config->client_key.read_ms = NEVER_READ;
    if (config->exec.argv)
        config->exec.expires_wall_ms = -1;
}

static void free_list(char **list)
{
    for (char **p = list; p && *p; p++)
        free(*p);
    free(list);
}

void kube_config_release(struct kube_config *config)
{
    free(config->server);
    free(config->namespace_);
    free(config->tls_server_name);
    free(config->proxy);
    secret_release(&config->ca);
    secret_release(&config->client_certificate);
    secret_release(&config->client_key);
    secret_release(&config->token);
    free_list(config->exec.argv);
    free_list(config->exec.env);
    free(config->exec.api_version);
    *config = (struct kube_config){0};
}

/* ---- where to look --------------------------------------------------------------------------- */

static int add_file(struct kube_sources *sources, const char *path, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *text = NULL;
    const char *slash = strrchr(path, '/');
    struct kube_source source;
    size_t size;
    int rc;

    if (sources->count == KUBE_SOURCES_MAX)
        return fleet_error(err, -EINVAL, "more than %d files", KUBE_SOURCES_MAX);
    if ((rc = fleet_file_read(path, KUBE_CONFIG_SIZE_MAX, &text, &size, err)) < 0)
        return rc;
    if ((rc = fleet_yaml_to_json(text, size, &source.root, err)) < 0)
        return fleet_error_wrap(err, "%s", path);
    source.folder = strndup(path, slash ? (size_t)(slash - path) + (slash == path) : 0);
    fleet_assert(source.folder != NULL);
    sources->items[sources->count++] = source;
    return 0;
}

static void sources_release(struct kube_sources *sources)
{
    for (size_t i = 0; i < sources->count; i++) {
        cJSON_Delete(sources->items[i].root);
        free((char *)sources->items[i].folder);
    }
}

static int load_file(const char *path, const char *context, struct kube_config *out,
                     struct fleet_error *err)
{
    struct kube_sources sources = {0};
    int rc = add_file(&sources, path, err);

    if (rc == 0 && (rc = kube_sources_follow(&sources, context, out, err)) < 0)
        (void)fleet_error_wrap(err, "%s", path);
    sources_release(&sources);
    return rc;
}

/* Files separated by colons; like kubectl, skips those that do not exist. */
static int load_list(const char *list, const char *context, struct kube_config *out,
                     struct fleet_error *err)
{
    FLEET_AUTO_FREE char *copy = strdup(list);
    struct kube_sources sources = {0};
    char *rest = copy, *path;
    int rc = 0;

    fleet_assert(copy != NULL);
    while (rc == 0 && (path = strsep(&rest, ":")))
        if (*path && access(path, F_OK) == 0)
            rc = add_file(&sources, path, err);
    if (rc == 0 && sources.count == 0)
        rc = fleet_error(err, -ENOENT, "KUBECONFIG=%.200s: no such file", list);
    else if (rc == 0 && (rc = kube_sources_follow(&sources, context, out, err)) < 0)
        (void)fleet_error_wrap(err, "KUBECONFIG=%.200s", list);
    sources_release(&sources);
    return rc;
}

static int load_home(const char *context, struct kube_config *out, struct fleet_error *err)
{
    const char *home = getenv("HOME");
    FLEET_AUTO_FREE char *path = NULL;

    if (home && *home)
        path = fleet_file_join(home, ".kube/config");
    if (!path || access(path, F_OK) != 0)
        return fleet_error(err, -ENOENT,
                           "no Kubernetes configuration: KUBECONFIG is not set, this is not a pod, "
                           "and there is no %s",
                           path ? path : "~/.kube/config");
    return load_file(path, context, out, err);
}

int kube_config_load(const char *path, const char *context, struct kube_config *out,
                     struct fleet_error *err)
{
    const char *list = getenv("KUBECONFIG");
    int rc;

    if (path)
        return load_file(path, context, out, err);
    if (list && *list)
        return load_list(list, context, out, err);
    rc = kube_config_in_cluster(NULL, out, err);
    return rc == -ENOENT ? load_home(context, out, err) : rc;
}

/* The namespace file; "default" if it is missing. */
static char *read_namespace(const char *folder)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, "namespace");
    char *text;
    size_t size;

    if (fleet_file_read(path, 256, &text, &size, NULL) < 0)
        return strdup("default");
    text[trimmed_size(text, size)] = '\0';
    return text;
}

int kube_config_in_cluster(const char *folder, struct kube_config *out, struct fleet_error *err)
{
    const char *host = getenv("KUBERNETES_SERVICE_HOST");
    const char *port = getenv("KUBERNETES_SERVICE_PORT");
    struct kube_config config = {0};
    struct fleet_strbuf server = {0};

    if (!folder)
        folder = SERVICE_ACCOUNT;
    if (!host || !*host || !port || !*port || access(folder, F_OK) != 0)
        return fleet_error(err, -ENOENT,
                           "not in a pod: KUBERNETES_SERVICE_HOST or %.200s is missing", folder);
    fleet_strbuf_appendf(&server, strchr(host, ':') ? "https://[%s]:%s" : "https://%s:%s", host,
                         port);
    config.server = fleet_strbuf_take(&server);
    config.namespace_ = read_namespace(folder);
    kube_secret_from_file(&config.ca, folder, "ca.crt");
    kube_secret_from_file(&config.token, folder, "token");
    *out = config;
    return 0;
}
