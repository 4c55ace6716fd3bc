/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/ps/wire.h"

#include <errno.h>
#include <openssl/err.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

#define PIECE_MAX (1 << 20) /* bytes of one call of OpenSSL */

/* ---- a socket for OpenSSL -------------------------------------------------------------------- */

/* OpenSSL's own uses write(), which raises SIGPIPE. */

static int fd_of(BIO *bio)
{
    const struct ps_wire *wire = BIO_get_data(bio);
    return wire->fd;
}

static int note_result(BIO *bio, ssize_t result, bool is_read)
{
    BIO_clear_retry_flags(bio);
    if (result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        is_read ? BIO_set_retry_read(bio) : BIO_set_retry_write(bio);
    return (int)result;
}

static int socket_read(BIO *bio, char *out, int size)
{
    return note_result(bio, recv(fd_of(bio), out, (size_t)size, MSG_DONTWAIT), true);
}

static int socket_write(BIO *bio, const char *bytes, int size)
{
    return note_result(bio, send(fd_of(bio), bytes, (size_t)size, MSG_NOSIGNAL | MSG_DONTWAIT),
                       false);
}

static long socket_control(BIO *bio, int command, long number, void *pointer)
{
    (void)bio;
    (void)number;
    (void)pointer;
    return command == BIO_CTRL_FLUSH;
}

static BIO_METHOD *method;

static void make_method(void)
{
    method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "ps_wire");
    if (!method)
        return;
    (void)BIO_meth_set_read(method, socket_read);
    (void)BIO_meth_set_write(method, socket_write);
    (void)BIO_meth_set_ctrl(method, socket_control);
}

__attribute__((destructor)) static void free_method(void)
{
    BIO_meth_free(method);
    method = NULL;
}

int ps_wire_encrypt(struct ps_wire *wire, SSL_CTX *context, bool is_server, struct fleet_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    BIO *bio;

    (void)pthread_once(&once, make_method);
    bio = method ? BIO_new(method) : NULL;
    wire->ssl = bio ? SSL_new(context) : NULL;
    if (!wire->ssl) {
        (void)BIO_free(bio);
        return fleet_error(err, -ENOMEM, "out of memory");
    }
    BIO_set_data(bio, wire);
    BIO_set_init(bio, 1);
    SSL_set_bio(wire->ssl, bio, bio); /* which owns it */
    if (is_server)
        SSL_set_accept_state(wire->ssl);
    else
        SSL_set_connect_state(wire->ssl);
    return 0;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* What a result that is not positive means. */
static ssize_t explain(const struct ps_wire *wire, int result, bool is_read, short *wants)
{
    int saved = errno, kind = SSL_get_error(wire->ssl, result);
    bool is_end = ERR_GET_REASON(ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING;

    ERR_clear_error();
    *wants = kind == SSL_ERROR_WANT_WRITE ? POLLOUT : POLLIN;
    if (kind == SSL_ERROR_WANT_READ || kind == SSL_ERROR_WANT_WRITE)
        return -EAGAIN;
    if (kind == SSL_ERROR_SSL && !is_end && !SSL_is_init_finished(wire->ssl))
        return -EACCES;
    if (is_end || kind == SSL_ERROR_ZERO_RETURN || (kind == SSL_ERROR_SYSCALL && saved == 0))
        return is_read ? 0 : -ECONNRESET;
    return kind == SSL_ERROR_SYSCALL ? -saved : -ECONNRESET;
}

static ssize_t plain(ssize_t result, short event, short *wants)
{
    *wants = event;
    if (result >= 0)
        return result;
    return errno == EWOULDBLOCK || errno == EINTR ? -EAGAIN : -errno;
}

ssize_t ps_wire_read(struct ps_wire *wire, void *out, size_t size, short *wants)
{
    int result;

    if (!wire->ssl)
        return plain(recv(wire->fd, out, size, MSG_DONTWAIT), POLLIN, wants);
    ERR_clear_error();
    errno = 0;
    result = SSL_read(wire->ssl, out, size > PIECE_MAX ? PIECE_MAX : (int)size);
    return result > 0 ? result : explain(wire, result, true, wants);
}

ssize_t ps_wire_write(struct ps_wire *wire, const struct iovec *parts, size_t count, short *wants)
{
    const struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)parts,
                                   .msg_iovlen = count};
    int result;

    if (!wire->ssl)
        return plain(sendmsg(wire->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT), POLLOUT, wants);
    while (parts->iov_len == 0)
        parts++;
    ERR_clear_error();
    errno = 0;
    result = SSL_write(wire->ssl, parts->iov_base,
                       parts->iov_len > PIECE_MAX ? PIECE_MAX : (int)parts->iov_len);
    return result > 0 ? result : explain(wire, result, false, wants);
}

void ps_wire_close(struct ps_wire *wire)
{
    SSL_free(wire->ssl);
    wire->ssl = NULL;
    if (wire->fd >= 0)
        (void)close(wire->fd);
    wire->fd = -1;
}
