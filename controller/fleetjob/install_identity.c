/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Create first, and read after a 409: two replicas that start together agree on one Secret without
 * a lock.
 */
#include "controller/fleetjob/install_identity.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/kube/api_error.h"
#include "libfleet/kube/meta.h"
#include "libfleet/kube/rest.h"

#define PEM_SIZE_MAX 65536
#define COMMON_NAME  "fleetjob installation"

struct install_identity_load {
    struct kube_io *io;
    char *namespace_, *name;
    struct kube_rest_call *call;
    struct kube_call *timer;
    struct install_identity identity; /* made by this process; used if the create succeeds */
    install_identity_done *done;
    void *user;
};

void install_identity_release(struct install_identity *identity)
{
    tls_identity_release(&identity->ca);
    memset(identity, 0, sizeof(*identity));
}

static void free_load(struct install_identity_load *load)
{
    install_identity_release(&load->identity);
    free(load->namespace_);
    free(load->name);
    free(load);
}

static void finish(struct install_identity_load *load, const struct fleet_error *err)
{
    struct install_identity identity = {0};

    if (!err) {
        identity = load->identity;
        memset(&load->identity, 0, sizeof(load->identity));
    }
    load->done(load->user, err ? NULL : &identity, err);
    free_load(load);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* data[key] of a Secret, decoded; heap, with a final NUL. */
static int read_value(const cJSON *secret, const char *key, char **out, size_t *out_size,
                      struct fleet_error *err)
{
    const char *text =
        cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(fleet_json_at(secret, "data"), key));
    size_t size = text ? strlen(text) : 0;
    unsigned char *bytes;
    int length;

    if (size == 0 || size > PEM_SIZE_MAX || size % 4 != 0)
        return fleet_error(err, -EINVAL, "data[\"%s\"] is missing or no base64 of at most %d bytes",
                           key, PEM_SIZE_MAX);
    bytes = calloc(1, size / 4 * 3 + 1);
    fleet_assert(bytes);
    length = EVP_DecodeBlock(bytes, (const unsigned char *)text, (int)size);
    if (length < 0) {
        free(bytes);
        return fleet_error(err, -EINVAL, "data[\"%s\"] is no base64", key);
    }
    length -= (text[size - 1] == '=') + (text[size - 2] == '=');
    bytes[length] = '\0';
    *out = (char *)bytes;
    *out_size = (size_t)length;
    return 0;
}

static int read_secret(const cJSON *secret, struct install_identity *out, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *hex = NULL;
    size_t size;
    int rc;

    install_identity_release(out);
    if ((rc = read_value(secret, "ca.crt", &out->ca.certificate_pem, &size, err)) < 0 ||
        (rc = read_value(secret, "ca.key", &out->ca.key_pem, &size, err)) < 0 ||
        (rc = read_value(secret, "install-key", &hex, &size, err)) < 0)
        return rc;
    if (fleet_hex_decode(hex, out->key, sizeof(out->key)) < 0)
        return fleet_error(err, -EINVAL, "data[\"install-key\"] is not %zu hexadecimal bytes",
                           sizeof(out->key));
    return 0;
}

static void on_read(void *user, const cJSON *object, const struct fleet_error *err)
{
    struct install_identity_load *load = user;
    struct fleet_error own;

    load->call = NULL;
    if (!err && read_secret(object, &load->identity, &own) < 0) {
        (void)fleet_error_wrap(&own, "Secret %s/%s", load->namespace_, load->name);
        err = &own;
    }
    finish(load, err);
}

/* ---- making ---------------------------------------------------------------------------------- */

static void on_created(void *user, const cJSON *object, const struct fleet_error *err)
{
    struct install_identity_load *load = user;
    struct kube_rest_request request = {.verb = KUBE_GET,
                                        .resource = &kube_secrets,
                                        .namespace_ = load->namespace_,
                                        .name = load->name};

    (void)object;
    load->call = NULL;
    if (err && kube_is_already_exists(err))
        load->call = kube_rest_start(load->io, &request, on_read, load);
    else
        finish(load, err);
}

static void add_value(cJSON *data, const char *key, const char *text)
{
    size_t size = strlen(text);
    FLEET_AUTO_FREE unsigned char *base64 = calloc(1, (size + 2) / 3 * 4 + 1);

    fleet_assert(base64);
    (void)EVP_EncodeBlock(base64, (const unsigned char *)text, (int)size);
    fleet_json_set_string(data, key, (const char *)base64);
}

cJSON *install_identity_build(const char *namespace_, const char *name,
                              const struct install_identity *identity)
{
    cJSON *secret = fleet_json_new_object(), *metadata, *data;
    char hex[2 * INSTALL_IDENTITY_KEY_SIZE + 1];

    fleet_hex_encode(identity->key, sizeof(identity->key), hex);
    metadata = fleet_json_set_object(secret, "metadata");
    data = fleet_json_set_object(secret, "data");
    fleet_json_set_string(secret, "apiVersion", "v1");
    fleet_json_set_string(secret, "kind", "Secret");
    fleet_json_set_string(metadata, "name", name);
    fleet_json_set_string(metadata, "namespace", namespace_);
    add_value(data, "ca.crt", identity->ca.certificate_pem);
    add_value(data, "ca.key", identity->ca.key_pem);
    add_value(data, "install-key", hex);
    kube_meta_set_label(secret, WELLKNOWN_LABEL_MANAGED_BY, WELLKNOWN_FIELD_MANAGER);
    return secret;
}

/* If a request cannot be sent, its callback is called later, as for any other failure. */
static void on_failed_time(void *user)
{
    struct fleet_error err;

    (void)fleet_error(&err, -EIO, "no CA could be made");
    finish(user, &err);
}

struct install_identity_load *install_identity_start(struct kube_io *io, const char *namespace_,
                                                     const char *name, install_identity_done *done,
                                                     void *user)
{
    struct install_identity_load *load = calloc(1, sizeof(*load));
    FLEET_AUTO_JSON cJSON *secret = NULL;
    struct kube_rest_request request = {.verb = KUBE_CREATE,
                                        .resource = &kube_secrets,
                                        .namespace_ = namespace_,
                                        .field_manager = WELLKNOWN_FIELD_MANAGER};

    fleet_assert(load);
    *load = (struct install_identity_load){.io = io,
                                           .namespace_ = strdup(namespace_),
                                           .name = strdup(name),
                                           .done = done,
                                           .user = user};
    fleet_assert(load->namespace_ && load->name);
    fleet_random_bytes(load->identity.key, sizeof(load->identity.key));
    if (tls_identity_make_ca(COMMON_NAME, INSTALL_IDENTITY_CA_DAYS, &load->identity.ca, NULL) < 0) {
        load->timer = kube_after(io, 0, on_failed_time, load);
        return load;
    }
    secret = install_identity_build(namespace_, name, &load->identity);
    request.body = secret;
    load->call = kube_rest_start(io, &request, on_created, load);
    return load;
}

void install_identity_cancel(struct install_identity_load **load)
{
    if (!*load)
        return;
    kube_rest_cancel(&(*load)->call);
    kube_cancel((*load)->io, &(*load)->timer);
    free_load(*load);
    *load = NULL;
}
