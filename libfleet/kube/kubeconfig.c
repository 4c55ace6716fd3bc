/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A kubeconfig is three lists (clusters, users, contexts) that refer to each other by name, in one
 * file or spread over several. All files are read into trees first; then the references of the
 * wanted context are resolved. Paths are relative to the file that contains them.
 */
#include <errno.h>
#include <openssl/evp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <curl/curl.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/yaml.h"
#include "libfleet/kube/config_internal.h"

#define EXEC_ARGUMENT_MAX 256

/* The entry of `list` with that name, from the first file that has it: its `part` ("cluster", …),
 * and the folder for its relative paths. */
static int find_named(const struct kube_sources *sources, const char *list, const char *part,
                      const char *name, const cJSON **out, const char **out_folder,
                      struct fleet_error *err)
{
    const cJSON *item;

    for (size_t i = 0; i < sources->count; i++)
        cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(sources->items[i].root, list))
        {
            const char *here = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "name"));
            if (here && strcmp(here, name) == 0) {
                *out = cJSON_GetObjectItemCaseSensitive(item, part);
                *out_folder = sources->items[i].folder;
                return 0;
            }
        }
    return fleet_error(err, -EINVAL, "%s: there is no \"%.100s\"", list, name);
}

/* Ignore blanks and line ends, which YAML may add. */
static int decode_base64(const char *text, char **out, size_t *out_size)
{
    FLEET_AUTO_FREE char *dense = strdup(text);
    size_t size = 0, padding = 0;
    unsigned char *bytes;
    int count;

    fleet_assert(dense != NULL);
    for (; *text; text++)
        if (!strchr(" \t\r\n", *text))
            dense[size++] = *text;
    while (padding < 2 && size > padding && dense[size - 1 - padding] == '=')
        padding++;
    bytes = malloc(size / 4 * 3 + 4);
    fleet_assert(bytes != NULL);
    count = size % 4 == 0 ? EVP_DecodeBlock(bytes, (const unsigned char *)dense, (int)size) : -1;
    if (count < 0 || (size_t)count < padding) {
        free(bytes);
        return -EINVAL;
    }
    *out_size = (size_t)count - padding;
    bytes[*out_size] = '\0';
    *out = (char *)bytes;
    return 0;
}

/* "x-data" (base64) has precedence over "x" (a file), as in kubectl. */
static int decode_secret(const cJSON *from, const char *name, const char *folder,
                         struct kube_secret *secret, struct fleet_error *err)
{
    const char *data = NULL, *file = NULL;
    char data_name[64];
    int rc;

    snprintf(data_name, sizeof(data_name), "%s-data", name);
    if ((rc = fleet_json_opt_string(from, data_name, &data, err)) < 0 ||
        (rc = fleet_json_opt_string(from, name, &file, err)) < 0)
        return rc;
    if (data && *data) {
        if (decode_base64(data, &secret->text, &secret->size) < 0)
            return fleet_error(err, -EINVAL, "%s: is not base64", data_name);
    } else if (file && *file) {
        kube_secret_from_file(secret, folder, file);
    }
    return 0;
}

static int dup_optional(const cJSON *from, const char *name, char **out, struct fleet_error *err)
{
    const char *text = NULL;
    int rc = fleet_json_opt_string(from, name, &text, err);

    if (rc == 0 && text && *text)
        *out = strdup(text);
    return rc;
}

static bool is_url(const char *text)
{
    CURLU *url = curl_url();
    bool is = strncmp(text, "https://", 8) == 0 || strncmp(text, "http://", 7) == 0;

    fleet_assert(url != NULL);
    is = is && curl_url_set(url, CURLUPART_URL, text, 0) == CURLUE_OK;
    curl_url_cleanup(url);
    return is;
}

static int decode_cluster(const cJSON *cluster, const char *folder, struct kube_config *config,
                          struct fleet_error *err)
{
    bool insecure = false;
    int rc;

    if ((rc = fleet_json_opt_bool(cluster, "insecure-skip-tls-verify", &insecure, err)) < 0 ||
        (rc = dup_optional(cluster, "server", &config->server, err)) < 0 ||
        (rc = dup_optional(cluster, "tls-server-name", &config->tls_server_name, err)) < 0 ||
        (rc = dup_optional(cluster, "proxy-url", &config->proxy, err)) < 0 ||
        (rc = decode_secret(cluster, "certificate-authority", folder, &config->ca, err)) < 0)
        return rc;
    if (insecure)
        return fleet_error(err, -EINVAL,
                           "insecure-skip-tls-verify: is not supported; give the "
                           "certificate-authority");
    if (!config->server || !is_url(config->server))
        return fleet_error(err, -EINVAL, "server: \"%.100s\" is not an http or https URL",
                           config->server ? config->server : "");
    while (config->server[strlen(config->server) - 1] == '/')
        config->server[strlen(config->server) - 1] = '\0';
    return 0;
}

/* argv = command and args. A command with a slash is relative to the file; one without is searched
 * in the PATH. */
static int decode_arguments(const cJSON *exec, const char *folder, struct kube_exec *out,
                            struct fleet_error *err)
{
    const cJSON *args = cJSON_GetObjectItemCaseSensitive(exec, "args"), *arg;
    const char *command;
    size_t count = 0;
    int rc;

    if ((rc = fleet_json_get_string(exec, "command", &command, err)) < 0)
        return rc;
    if (cJSON_GetArraySize(args) > EXEC_ARGUMENT_MAX)
        return fleet_error(err, -EINVAL, "args: more than %d", EXEC_ARGUMENT_MAX);
    out->argv = calloc((size_t)cJSON_GetArraySize(args) + 2, sizeof(*out->argv));
    fleet_assert(out->argv != NULL);
    out->argv[count++] = strchr(command, '/') ? fleet_file_join(folder, command) : strdup(command);
    cJSON_ArrayForEach(arg, args)
    {
        if (!cJSON_IsString(arg))
            return fleet_error(err, -EINVAL, "args: has an entry that is no string");
        out->argv[count++] = strdup(arg->valuestring);
    }
    return 0;
}

/* The other settings of the plug-in: version, input and terminal. */
static int decode_exec_manner(const cJSON *exec, struct kube_exec *out, struct fleet_error *err)
{
    const char *mode = "";
    int rc;

    if ((rc = fleet_json_dup_string(exec, "apiVersion", &out->api_version, err)) < 0 ||
        (rc = fleet_json_opt_bool(exec, "provideClusterInfo", &out->wants_cluster, err)) < 0 ||
        (rc = fleet_json_opt_string(exec, "interactiveMode", &mode, err)) < 0)
        return rc;
    if (strcmp(mode, "Always") == 0)
        return fleet_error(err, -EINVAL,
                           "interactiveMode: \"Always\": there is no terminal to ask at");
    return 0;
}

static int decode_exec(const cJSON *exec, const char *folder, struct kube_exec *out,
                       struct fleet_error *err)
{
    const cJSON *env = cJSON_GetObjectItemCaseSensitive(exec, "env"), *pair;
    size_t count = 0;
    int rc;

    if (!cJSON_IsObject(exec))
        return 0;
    if ((rc = decode_arguments(exec, folder, out, err)) < 0)
        return rc;
    if (cJSON_GetArraySize(env) > EXEC_ARGUMENT_MAX)
        return fleet_error(err, -EINVAL, "env: more than %d", EXEC_ARGUMENT_MAX);
    out->env = calloc((size_t)cJSON_GetArraySize(env) + 1, sizeof(*out->env));
    fleet_assert(out->env != NULL);
    cJSON_ArrayForEach(pair, env)
    {
        const char *name, *value = "";
        struct fleet_strbuf text = {0};
        if ((rc = fleet_json_get_string(pair, "name", &name, err)) < 0 ||
            (rc = fleet_json_opt_string(pair, "value", &value, err)) < 0)
            return rc;
        fleet_strbuf_appendf(&text, "%s=%s", name, value);
        out->env[count++] = fleet_strbuf_take(&text);
    }
    if ((rc = decode_exec_manner(exec, out, err)) < 0)
        return rc;
    out->expires_wall_ms = -1;
    return 0;
}

/* Settings that we do not support. Ignoring them would mean acting as another user. */
static int refuse_unsupported(const cJSON *user, struct fleet_error *err)
{
    static const char *const names[] = {"as",       "as-uid",   "as-groups",    "as-user-extra",
                                        "username", "password", "auth-provider"};

    for (size_t i = 0; i < FLEET_COUNT(names); i++)
        if (cJSON_HasObjectItem(user, names[i]))
            return fleet_error(err, -EINVAL,
                               "%s: is not supported; use a token, a client certificate "
                               "or exec",
                               names[i]);
    return 0;
}

static int decode_user(const cJSON *user, const char *folder, struct kube_config *config,
                       struct fleet_error *err)
{
    const char *token = NULL, *file = NULL;
    int rc;

    if ((rc = refuse_unsupported(user, err)) < 0 ||
        (rc = decode_secret(user, "client-certificate", folder, &config->client_certificate, err)) <
            0 ||
        (rc = decode_secret(user, "client-key", folder, &config->client_key, err)) < 0 ||
        (rc = fleet_json_opt_string(user, "token", &token, err)) < 0 ||
        (rc = fleet_json_opt_string(user, "tokenFile", &file, err)) < 0)
        return rc;
    if (file && *file) { /* the file has precedence over the text, as in kubectl */
        kube_secret_from_file(&config->token, folder, file);
    } else if (token && *token) {
        config->token.size = strlen(token);
        config->token.text = strdup(token);
    }
    if ((rc = decode_exec(cJSON_GetObjectItemCaseSensitive(user, "exec"), folder, &config->exec,
                          err)) < 0)
        return fleet_error_wrap(err, "exec");
    return 0;
}

static int follow_context(const struct kube_sources *sources, const char *context,
                          struct kube_config *config, struct fleet_error *err)
{
    const cJSON *part = NULL, *cluster = NULL, *user = NULL;
    const char *cluster_name, *user_name = NULL, *folder;
    int rc;

    if ((rc = find_named(sources, "contexts", "context", context, &part, &folder, err)) < 0)
        return rc;
    if ((rc = fleet_json_get_string(part, "cluster", &cluster_name, err)) < 0 ||
        (rc = fleet_json_opt_string(part, "user", &user_name, err)) < 0 ||
        (rc = dup_optional(part, "namespace", &config->namespace_, err)) < 0)
        return fleet_error_wrap(err, "context \"%.100s\"", context);
    if ((rc = find_named(sources, "clusters", "cluster", cluster_name, &cluster, &folder, err)) < 0)
        return rc;
    if ((rc = decode_cluster(cluster, folder, config, err)) < 0)
        return fleet_error_wrap(err, "cluster \"%.100s\"", cluster_name);
    if (!user_name || !*user_name)
        return 0;
    if ((rc = find_named(sources, "users", "user", user_name, &user, &folder, err)) < 0)
        return rc;
    if ((rc = decode_user(user, folder, config, err)) < 0)
        return fleet_error_wrap(err, "user \"%.100s\"", user_name);
    return 0;
}

int kube_sources_follow(const struct kube_sources *sources, const char *context,
                        struct kube_config *out, struct fleet_error *err)
{
    struct kube_config config = {0};
    int rc;

    for (size_t i = 0; i < sources->count && (!context || !*context); i++)
        if ((rc = fleet_json_opt_string(sources->items[i].root, "current-context", &context, err)) <
            0)
            return rc;
    if (!context || !*context)
        return fleet_error(err, -EINVAL, "current-context: is not set");
    if (follow_context(sources, context, &config, err) < 0) {
        kube_config_release(&config);
        if (err)
            err->code = -EINVAL;
        return -EINVAL;
    }
    if (!config.namespace_)
        config.namespace_ = strdup("default");
    *out = config;
    return 0;
}

int kube_config_decode(const char *text, size_t size, const char *folder, const char *context,
                       struct kube_config *out, struct fleet_error *err)
{
    FLEET_AUTO_JSON cJSON *root = NULL;
    struct kube_sources sources = {.count = 1};
    int rc;

    if ((rc = fleet_yaml_to_json(text, size, &root, err)) < 0)
        return rc;
    sources.items[0] = (struct kube_source){root, folder};
    return kube_sources_follow(&sources, context, out, err);
}
