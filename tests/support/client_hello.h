/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_CLIENT_HELLO_H
#define TESTS_SUPPORT_CLIENT_HELLO_H

#include <openssl/ssl.h>
#include <stddef.h>

#include "libfleet/base/assert.h"

/* Write the first message of a TLS client, as a flood of half-open connections sends it. Returns
 * its size; `capacity` must have room for it. */
static inline size_t client_hello(unsigned char *out, size_t capacity)
{
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    SSL *ssl = SSL_new(context);
    BIO *sent = BIO_new(BIO_s_mem());
    int size;

    SSL_set_bio(ssl, BIO_new(BIO_s_mem()), sent);
    size = SSL_connect(ssl);
    fleet_assert(size == -1); /* it waits for the server's answer */
    size = BIO_read(sent, out, (int)capacity);
    fleet_assert(size > 0);
    SSL_free(ssl);
    SSL_CTX_free(context);
    return (size_t)size;
}

#endif
