/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_KUBE_META_H
#define LIBFLEET_KUBE_META_H

/*
 * What every Kubernetes object has: metadata, owners, conditions, quantities, names.
 *
 * Objects are raw JSON trees; nothing here copies one. A `struct kube_meta` is a view: its strings
 * are borrowed from the tree and live as long as it does.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

struct fleet_error;

/* ---- metadata -------------------------------------------------------------------------------- */

struct kube_meta {
    const char *namespace_;       /* "" for objects without one */
    const char *name;             /* never "" */
    const char *uid;              /* "" before the object was created */
    const char *resource_version; /* "" before; opaque, only ever compared for equality */
    int64_t generation;           /* 0 where the kind has none */
    int64_t created_wall_ms;      /* 0 before the object was created */
    int64_t deleted_wall_ms;      /* 0: not being deleted */
};

/* View the metadata of `object`. -EINVAL: no name, or a field of another type (with its path). */
int kube_meta_view(const cJSON *object, struct kube_meta *out, struct fleet_error *err);

/* The value of a label or annotation, or NULL. Keys may contain dots and slashes. */
const char *kube_meta_label(const cJSON *object, const char *key);
const char *kube_meta_annotation(const cJSON *object, const char *key);

/* Set one, making the map where it is missing. NULL removes. */
void kube_meta_set_label(cJSON *object, const char *key, const char *value);
void kube_meta_set_annotation(cJSON *object, const char *key, const char *value);

/* The ownerReference with controller: true, or NULL. */
const cJSON *kube_meta_controller(const cJSON *object);

/* The object's controller is the object with this UID. Names are not compared: they come back. */
bool kube_meta_is_controlled_by(const cJSON *object, const char *uid);

/* An ownerReference (controller and blockOwnerDeletion true) to `owner`, which must have a name and
 * a UID. Owned by the caller. */
cJSON *kube_owner_reference(const char *api_version, const char *kind,
                            const struct kube_meta *owner);

/* "namespace/name", or "name" without a namespace, into heap text: the key of queues and stores. */
char *kube_meta_key(const char *namespace_, const char *name);

/* ---- conditions ------------------------------------------------------------------------------ */

struct kube_condition {
    const char *type;            /* "Accepted" */
    const char *status;          /* "True", "False" or "Unknown" */
    const char *reason;          /* CamelCase */
    const char *message;         /* for people; cut at KUBE_MESSAGE_MAX bytes */
    int64_t observed_generation; /* 0: left out */
};

#define KUBE_MESSAGE_MAX 32768 /* longer ones are refused, and the whole status with them */

/* A copy of at most KUBE_MESSAGE_MAX bytes, never half a UTF-8 character. Owned by the caller. */
char *kube_message_cut(const char *message);

/* The condition of that type in the list `conditions` (NULL is an empty list), or NULL. */
const cJSON *kube_condition_find(const cJSON *conditions, const char *type);

/* It is there and its status is "True". */
bool kube_condition_is_true(const cJSON *conditions, const char *type);

/*
 * Set or add. lastTransitionTime becomes `now_wall_ms` when the status changes and stays otherwise.
 * Returns true if anything in the list changed: then it is worth writing.
 */
bool kube_condition_set(cJSON *conditions, const struct kube_condition *condition,
                        int64_t now_wall_ms);

/* ---- quantities ------------------------------------------------------------------------------ */

/*
 * "500m", "2", "1.5Gi", "12e3": the value times `scale` (1 for bytes, 1000 for thousandths of a
 * CPU), rounded up as Kubernetes does. -EINVAL: not a quantity; -ERANGE: negative, or beyond int64.
 */
int kube_quantity_parse(const char *text, int64_t scale, int64_t *out, struct fleet_error *err);

/* ---- names ----------------------------------------------------------------------------------- */

#define KUBE_LABEL_MAX     63  /* a DNS label; a label's value; the name part of a label's key */
#define KUBE_SUBDOMAIN_MAX 253 /* most object names; the prefix of a label's key */

/* An RFC 1123 label: 1 to KUBE_LABEL_MAX of a-z 0-9 '-', alphanumeric at both ends. */
bool kube_name_is_label(const char *name);

/* Such labels joined by dots, KUBE_SUBDOMAIN_MAX bytes at most. */
bool kube_name_is_subdomain(const char *name);

/* Of a label: "name" or "subdomain/name"; and its value, which may be empty. */
bool kube_label_key_is_valid(const char *key);
bool kube_label_value_is_valid(const char *value);

#endif
