/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_KUBE_CONFIG_H
#define LIBFLEET_KUBE_CONFIG_H

/*
 * The address of the API server and our credentials for it.
 *
 * Two sources: the service account that Kubernetes mounts into a pod, and kubeconfig files. Values
 * from files are read again while the program runs, because tokens live for an hour and a CA is
 * rotated. Inline values never change. A token may also come from a credential plug-in (an `exec`
 * block), which is run again shortly before the token expires.
 *
 * A kubeconfig that switches TLS verification off or impersonates a user is refused.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fleet_error;

#define KUBE_CONFIG_SIZE_MAX   (1u << 20) /* of a kubeconfig, a certificate, a token */
#define KUBE_CONFIG_REFRESH_MS 60000.0    /* a file is read again after this time */
#define KUBE_EXEC_TIMEOUT_MS   20000      /* how long a credential plug-in may take */

/* A text that is in the configuration, or in a file that may change. */
struct kube_secret {
    char *file;     /* NULL: inline */
    char *text;     /* NULL: there is none (yet) */
    size_t size;    /* bytes of text */
    double read_ms; /* when the file was read last, monotonic */
};

struct kube_exec {           /* a credential plug-in; argv NULL: none */
    char **argv;             /* [.., NULL] */
    char **env;              /* ["NAME=value", …, NULL], added to ours */
    char *api_version;       /* client.authentication.k8s.io/v1 or v1beta1 */
    bool wants_cluster;      /* the plug-in gets the description of the cluster */
    int64_t expires_wall_ms; /* when its credential expires; 0: never; -1: not run yet */
};

struct kube_config {
    char *server;          /* "https://172.31.250.1:6443", no slash at the end */
    char *namespace_;      /* the default one, "default" if none is given */
    char *tls_server_name; /* the name in the certificate, if not the server's; or NULL */
    char *proxy;           /* URL, or NULL: as the environment says */
    struct kube_secret ca; /* PEM; none: the system's authorities */
    struct kube_secret client_certificate, client_key; /* PEM; none: no client certificate */
    struct kube_secret token;                          /* none: no bearer token */
    struct kube_exec exec;
};

/*
 * The usual search: `path` if not NULL; else the files of $KUBECONFIG as if they were one, of two
 * entries with one name the first; else the pod's service account, if there is one; else
 * ~/.kube/config. `context` NULL means the current one.
 *
 * -ENOENT: nothing found (with the places); -EINVAL: with file and field; -errno of reading.
 */
int kube_config_load(const char *path, const char *context, struct kube_config *out,
                     struct fleet_error *err);

/* The service account below `folder` (NULL: where Kubernetes mounts it) and the address in the
 * environment. -ENOENT: this is not a pod. */
int kube_config_in_cluster(const char *folder, struct kube_config *out, struct fleet_error *err);

/* A kubeconfig's text; relative paths in it are below `folder`. -EINVAL with the field. */
int kube_config_decode(const char *text, size_t size, const char *folder, const char *context,
                       struct kube_config *out, struct fleet_error *err);

/* Free what it holds and zero it. Fine on a zeroed one. */
void kube_config_release(struct kube_config *config);

/*
 * Bring the secrets up to date: read files older than KUBE_CONFIG_REFRESH_MS, run the plug-in if
 * its token expires within a minute. If a file cannot be read now or is empty, its last text
 * stays. If the plug-in fails, its last credential stays until that expires. Fails only if there
 * is no earlier value: -errno with the file, or the error of the plug-in. Blocks while the
 * plug-in runs; http.h runs it beside its loop.
 */
int kube_config_refresh(struct kube_config *config, double now_ms, int64_t now_wall_ms,
                        struct fleet_error *err);

/* The files alone. */
int kube_config_refresh_files(struct kube_config *config, double now_ms, struct fleet_error *err);

/* The server answered 401, or its certificate could not be verified: read and run again at the next
 * refresh, at any age. */
void kube_config_doubt(struct kube_config *config);

/* Put `text`, heap of `size` bytes and a NUL, in its place; the old one is wiped. For exec.c. */
void kube_secret_set(struct kube_secret *secret, char *text, size_t size);

#endif
