/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/https_client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/strbuf.h"

#define PATIENCE_MS 120000.0

static int dial(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int rc = connect(fd, (struct sockaddr *)&address, sizeof(address));

    fleet_assert(rc == 0);
    (void)fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static SSL_CTX *new_context(const char *ca_pem)
{
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    BIO *bio = BIO_new_mem_buf(ca_pem, -1);
    X509 *ca = PEM_read_bio_X509(bio, NULL, NULL, NULL);

    fleet_assert(context && ca);
    (void)X509_STORE_add_cert(SSL_CTX_get_cert_store(context), ca);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    X509_free(ca);
    BIO_free(bio);
    return context;
}

/* One step of the exchange: 1 = go on, 0 = the end of the answer, -1 = failed. */
static int step(SSL *ssl, const char *request, size_t *sent, struct fleet_strbuf *out)
{
    char bytes[8192];
    size_t count = 0;
    int rc, reason;

    ERR_clear_error();
    if (!SSL_is_init_finished(ssl))
        rc = SSL_connect(ssl);
    else if (*sent < strlen(request))
        rc = SSL_write_ex(ssl, request + *sent, strlen(request) - *sent, &count);
    else
        rc = SSL_read_ex(ssl, bytes, sizeof(bytes), &count);
    if (rc == 1) {
        if (count > 0 && *sent < strlen(request))
            *sent += count;
        else
            fleet_strbuf_append_bytes(out, bytes, count);
        return 1;
    }
    reason = SSL_get_error(ssl, rc);
    if (reason == SSL_ERROR_WANT_READ || reason == SSL_ERROR_WANT_WRITE)
        return 1;
    return reason == SSL_ERROR_ZERO_RETURN ? 0 : -1;
}

int https_client_ask(const struct https_client *client, const char *request, char **out_text)
{
    SSL_CTX *context = new_context(client->ca_pem);
    SSL *ssl = SSL_new(context);
    struct fleet_strbuf text = {0};
    double end_ms = fleet_monotonic_ms() + PATIENCE_MS;
    FLEET_AUTO_CLOSE int fd = dial(client->port);
    size_t sent = 0;
    int rc = 1;

    fleet_assert(ssl);
    (void)signal(SIGPIPE, SIG_IGN); /* the server may close first */
    (void)SSL_set_fd(ssl, fd);
    (void)SSL_set1_host(ssl, client->name);
    (void)SSL_set_tlsext_host_name(ssl, client->name);
    fleet_strbuf_append(&text, "");
    while (rc > 0 && fleet_monotonic_ms() < end_ms) {
        rc = step(ssl, request, &sent, &text);
        client->turn(client->user);
    }
    SSL_free(ssl);
    SSL_CTX_free(context);
    *out_text = fleet_strbuf_take(&text);
    return rc > 0 ? -ETIMEDOUT : rc < 0 ? -EPROTO : 0;
}
