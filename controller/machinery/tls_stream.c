/* SPDX-License-Identifier: Apache-2.0 */

/* OpenSSL over two memory buffers. */
#include "controller/machinery/tls_stream.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"

#define CHAIN_MAX 10 /* certificates of a PEM text */

struct tls_keys {
    SSL_CTX *context; /* NULL = no certificate yet; a stream keeps the context that it began with */
};

struct tls_stream {
    SSL *ssl;
    BIO *input, *output; /* owned by `ssl` */
};

/* ---- what the server shows ------------------------------------------------------------------ */

struct tls_keys *tls_keys_new(void)
{
    struct tls_keys *keys = calloc(1, sizeof(*keys));

    fleet_assert(keys);
    return keys;
}

void tls_keys_free(struct tls_keys *keys)
{
    if (!keys)
        return;
    SSL_CTX_free(keys->context);
    free(keys);
}

static int refuse(struct fleet_error *err, const char *what)
{
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());

    ERR_clear_error();
    return fleet_error(err, -EINVAL, "%s: %s", what, reason ? reason : "refused");
}

/* The first certificate belongs to the server. */
static int use_chain(SSL_CTX *context, const char *pem, struct fleet_error *err)
{
    BIO *bio = BIO_new_mem_buf(pem, -1);
    int count = 0, rc = 0;
    X509 *certificate;

    fleet_assert(bio);
    while (rc == 0 && count < CHAIN_MAX &&
           (certificate = PEM_read_bio_X509(bio, NULL, NULL, NULL))) {
        if ((count++ == 0 ? SSL_CTX_use_certificate(context, certificate)
                          : SSL_CTX_add1_chain_cert(context, certificate)) != 1)
            rc = refuse(err, "use certificate");
        X509_free(certificate);
    }
    BIO_free(bio);
    if (rc == 0 && count == 0)
        return refuse(err, "certificate is not PEM");
    ERR_clear_error(); /* the end of the text */
    return rc;
}

static int use_key(SSL_CTX *context, const char *pem, struct fleet_error *err)
{
    BIO *bio = BIO_new_mem_buf(pem, -1);
    EVP_PKEY *key = bio ? PEM_read_bio_PrivateKey(bio, NULL, NULL, NULL) : NULL;
    int rc = 0;

    if (!key)
        rc = refuse(err, "key is not PEM");
    else if (SSL_CTX_use_PrivateKey(context, key) != 1 || SSL_CTX_check_private_key(context) != 1)
        rc = refuse(err, "key does not belong to the certificate");
    EVP_PKEY_free(key);
    BIO_free(bio);
    return rc;
}

int tls_keys_set(struct tls_keys *keys, const char *certificate_pem, const char *key_pem,
                 struct fleet_error *err)
{
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    int rc;

    fleet_assert(context);
    ERR_clear_error();
    (void)SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
    (void)SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET);
    (void)SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    (void)SSL_CTX_set_num_tickets(context, 0);
    if ((rc = use_chain(context, certificate_pem, err)) < 0 ||
        (rc = use_key(context, key_pem, err)) < 0) {
        SSL_CTX_free(context);
        return rc;
    }
    SSL_CTX_free(keys->context);
    keys->context = context;
    return 0;
}

/* ---- streams -------------------------------------------------------------------------------- */

struct tls_stream *tls_stream_new(const struct tls_keys *keys)
{
    struct tls_stream *stream;

    if (!keys->context)
        return NULL;
    stream = calloc(1, sizeof(*stream));
    fleet_assert(stream);
    stream->ssl = SSL_new(keys->context);
    stream->input = BIO_new(BIO_s_mem());
    stream->output = BIO_new(BIO_s_mem());
    fleet_assert(stream->ssl && stream->input && stream->output);
    SSL_set_bio(stream->ssl, stream->input, stream->output);
    SSL_set_accept_state(stream->ssl);
    return stream;
}

void tls_stream_free(struct tls_stream *stream)
{
    if (!stream)
        return;
    SSL_free(stream->ssl);
    free(stream);
}

void tls_stream_feed(struct tls_stream *stream, const void *bytes, size_t size)
{
    size_t written = 0;
    int rc = BIO_write_ex(stream->input, bytes, size, &written);

    fleet_assert(size == 0 || (rc == 1 && written == size)); /* it grows */
}

ssize_t tls_stream_read(struct tls_stream *stream, void *bytes, size_t size)
{
    size_t count = 0;

    ERR_clear_error();
    if (SSL_read_ex(stream->ssl, bytes, size, &count) == 1)
        return (ssize_t)count;
    switch (SSL_get_error(stream->ssl, 0)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        return 0;
    case SSL_ERROR_ZERO_RETURN:
        return -EPIPE;
    default:
        ERR_clear_error();
        return -EPROTO;
    }
}

int tls_stream_write(struct tls_stream *stream, const void *bytes, size_t size)
{
    size_t written = 0;

    ERR_clear_error();
    if (size == 0 || SSL_write_ex(stream->ssl, bytes, size, &written) == 1)
        return 0;
    ERR_clear_error();
    return -EPROTO;
}

void tls_stream_end(struct tls_stream *stream)
{
    ERR_clear_error();
    (void)SSL_shutdown(stream->ssl);
    ERR_clear_error();
}

void tls_stream_take(struct tls_stream *stream, struct fleet_strbuf *out)
{
    char bytes[4096];
    int count;

    while ((count = BIO_read(stream->output, bytes, sizeof(bytes))) > 0)
        fleet_strbuf_append_bytes(out, bytes, (size_t)count);
}
