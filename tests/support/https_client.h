/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_HTTPS_CLIENT_H
#define TESTS_SUPPORT_HTTPS_CLIENT_H

/* A client of HTTPS on 127.0.0.1 that verifies the server, for servers on a loop of the same
 * thread. */

struct https_client {
    int port;
    const char *ca_pem;       /* what the server's certificate must be signed by */
    const char *name;         /* the DNS name that it must have */
    void (*turn)(void *user); /* turns the server's loop once, without waiting */
    void *user;
};

/*
 * Send `request` and read to the end: *out_text is heap text.
 * -EPROTO: the handshake failed, or the certificate is another. -ETIMEDOUT after two minutes.
 */
int https_client_ask(const struct https_client *client, const char *request, char **out_text);

#endif
