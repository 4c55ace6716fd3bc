/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The stream below link.h's messages: lines over a non-blocking socket, a buffer each way. Input is
 * consumed lazily: `in_taken` moves over complete lines and the buffer is compacted once, before
 * the next read, so a burst of small messages costs no copying.
 */
#include "agent/link.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "libfleet/base/error.h"

#define READ_SIZE 65536
/* bytes: the largest progress message, or several small ones */
#define OUT_SIZE (32 << 10)

int link_pair(int out_fds[2], struct fleet_error *err)
{
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, out_fds) < 0)
        return fleet_error(err, -errno, "make a socket pair: %s", strerror(errno));
    return 0;
}

void link_init(struct link *link, int fd)
{
    *link = (struct link){.fd = fd};
    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    fleet_strbuf_reserve(&link->out, OUT_SIZE);
}

/* The open descriptor whose number the variable `name` holds; it is set to close on exec, and the
 * variable is removed. */
static int descriptor_from_environment(const char *name, int *out_fd, struct fleet_error *err)
{
    const char *text = getenv(name);
    char *end = NULL;
    long fd;

    if (!text)
        return fleet_error(err, -ENOENT, "%s is not set: not started by an agent", name);
    errno = 0;
    fd = strtol(text, &end, 10);
    if (errno || end == text || *end || fd < 0 || fd > INT32_MAX ||
        fcntl((int)fd, F_SETFD, FD_CLOEXEC) < 0)
        return fleet_error(err, -EINVAL, "%s is \"%.32s\", which is no open descriptor", name,
                           text);
    (void)unsetenv(name);
    *out_fd = (int)fd;
    return 0;
}

int link_init_from_environment(struct link *link, struct fleet_error *err)
{
    int fd, rc = descriptor_from_environment(LINK_FD_ENV, &fd, err);

    *link = (struct link){.fd = -1};
    if (rc == 0)
        link_init(link, fd);
    return rc;
}

int link_listener_from_environment(int *out_fd, int *out_port, struct fleet_error *err)
{
    struct sockaddr_storage address = {0};
    socklen_t size = sizeof(address);
    int fd, is_listening = 0, rc = descriptor_from_environment(LINK_LISTEN_FD_ENV, &fd, err);

    if (rc < 0)
        return rc;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &is_listening, &(socklen_t){sizeof(int)}) < 0 ||
        !is_listening || getsockname(fd, (struct sockaddr *)&address, &size) < 0 ||
        (address.ss_family != AF_INET && address.ss_family != AF_INET6))
        return fleet_error(err, -EINVAL, "%s names descriptor %d, which is no listening TCP socket",
                           LINK_LISTEN_FD_ENV, fd);
    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    *out_fd = fd;
    *out_port = ntohs(address.ss_family == AF_INET ? ((struct sockaddr_in *)&address)->sin_port
                                                   : ((struct sockaddr_in6 *)&address)->sin6_port);
    return 0;
}

void link_release(struct link *link)
{
    if (link->fd >= 0)
        (void)close(link->fd);
    fleet_strbuf_release(&link->in);
    fleet_strbuf_release(&link->out);
    *link = (struct link){.fd = -1};
}

/* Read once into the buffer. 0: got something; -EAGAIN; -EPIPE. */
static int fill(struct link *link, struct fleet_error *err)
{
    char chunk[READ_SIZE];
    ssize_t size;

    if (link->fd < 0)
        return fleet_error(err, -EPIPE, "the link is closed");
    do
        size = recv(link->fd, chunk, sizeof(chunk), 0);
    while (size < 0 && errno == EINTR);
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return fleet_error(err, -EAGAIN, "no message yet");
    if (size < 0)
        return fleet_error(err, -EPIPE, "read the link: %s", strerror(errno));
    if (size == 0)
        return fleet_error(err, -EPIPE, "the other side closed the link");
    fleet_strbuf_consume(&link->in, link->in_taken);
    link->in_taken = 0;
    fleet_strbuf_append_bytes(&link->in, chunk, (size_t)size);
    return 0;
}

/* The next line in the buffer, NULL if it is not complete. */
static const char *next_line(struct link *link, size_t *out_size)
{
    const char *start = fleet_strbuf_text(&link->in) + link->in_taken;
    size_t left = link->in.length - link->in_taken;
    const char *newline = left ? memchr(start, '\n', left) : NULL;

    *out_size = newline ? (size_t)(newline - start) : left;
    if (!newline)
        return NULL;
    link->in_taken += *out_size + 1;
    return start;
}

int link_receive(struct link *link, struct link_message *out, struct fleet_error *err)
{
    for (;;) {
        size_t size;
        const char *line = next_line(link, &size);
        int rc;

        if (line)
            return link_message_decode(line, size, out, err);
        if (size > LINK_MESSAGE_SIZE_MAX)
            return fleet_error(err, -EFBIG, "a message is longer than %d bytes",
                               LINK_MESSAGE_SIZE_MAX);
        rc = fill(link, err);
        if (rc < 0)
            return rc;
    }
}

int link_flush(struct link *link, struct fleet_error *err)
{
    size_t sent = 0;
    int rc = link->fd < 0 ? fleet_error(err, -EPIPE, "the link is closed") : 0;

    while (rc == 0 && sent < link->out.length) {
        ssize_t n = send(link->fd, link->out.text + sent, link->out.length - sent, MSG_NOSIGNAL);
        if (n > 0)
            sent += (size_t)n;
        else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        else if (n < 0 && errno != EINTR)
            rc = fleet_error(err, -EPIPE, "write to the link: %s", strerror(errno));
    }
    fleet_strbuf_consume(&link->out, sent);
    return rc;
}

int link_send(struct link *link, const struct link_message *message, struct fleet_error *err)
{
    size_t before = link->out.length;

    link_message_encode(message, &link->out);
    if (link->out.length > LINK_QUEUE_SIZE_MAX) {
        link->out.length = before;
        link->out.text[before] = '\0';
        return fleet_error(err, -ENOBUFS, "%zu bytes wait for a reader, %d are allowed", before,
                           LINK_QUEUE_SIZE_MAX);
    }
    return link_flush(link, err);
}

bool link_wants_write(const struct link *link)
{
    return link->fd >= 0 && link->out.length > 0;
}
