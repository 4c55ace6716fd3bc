/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/rendezvous/member_tls.h"

#include <errno.h>
#include <openssl/pem.h>
#include <stdbool.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"

static int keep_session(SSL *ssl, SSL_SESSION *session)
{
    struct member_tls *tls = SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));

    member_tls_forget(tls);
    tls->session = SSL_SESSION_dup(session); /* a broken connection spoils the original */
    return 0;
}

static void resume_session(const SSL *ssl, int where, int how)
{
    const struct member_tls *tls = SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));

    (void)how;
    if ((where & SSL_CB_HANDSHAKE_START) && tls->session && !SSL_get_session(ssl))
        (void)SSL_set_session((SSL *)ssl, tls->session);
}

void member_tls_init(struct member_tls *tls)
{
    *tls = (struct member_tls){.context = SSL_CTX_new(TLS_client_method())};
    fleet_assert(tls->context != NULL);
    SSL_CTX_set_min_proto_version(tls->context, TLS1_2_VERSION);
    (void)SSL_CTX_set_app_data(tls->context, tls);
    (void)SSL_CTX_set_session_cache_mode(tls->context,
                                         SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
    SSL_CTX_sess_set_new_cb(tls->context, keep_session);
    SSL_CTX_set_info_callback(tls->context, resume_session);
}

int member_tls_trust(struct member_tls *tls, const char *ca_pem, struct fleet_error *err)
{
    X509_STORE *store = X509_STORE_new();
    BIO *bio = BIO_new_mem_buf(ca_pem, -1);
    X509 *ca = PEM_read_bio_X509(bio, NULL, NULL, NULL);
    bool is_fine = ca && store && X509_STORE_add_cert(store, ca);

    X509_free(ca);
    BIO_free(bio);
    if (!is_fine) {
        X509_STORE_free(store);
        return fleet_error(err, -EINVAL, "the CA is not a certificate in PEM");
    }
    SSL_CTX_set_cert_store(tls->context, store); /* takes it */
    member_tls_forget(tls);
    return 0;
}

void member_tls_forget(struct member_tls *tls)
{
    SSL_SESSION_free(tls->session);
    tls->session = NULL;
}

void member_tls_release(struct member_tls *tls)
{
    member_tls_forget(tls);
    SSL_CTX_free(tls->context);
    tls->context = NULL;
}
