/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/comm/tcp_address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "agent/runtime/comm/comm.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"

#define LISTEN_BACKLOG 1024

int tcp_address_parse(const char *text, int rank, struct sockaddr_storage *out, socklen_t *out_size,
                      struct fleet_error *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    const char *colon = text ? strrchr(text, ':') : NULL;
    char host[256];
    size_t length;
    int rc;

    if (!colon || colon == text || (size_t)(colon - text) >= sizeof(host))
        return fleet_error(err, -EINVAL, "address \"%.100s\" of rank %d is not host:port",
                           text ? text : "", rank);
    length = (size_t)(colon - text);
    if (text[0] == '[' && text[length - 1] == ']') {
        text++;
        length -= 2;
    }
    memcpy(host, text, length);
    host[length] = '\0';
    rc = getaddrinfo(host, colon + 1, &hints, &found);
    if (rc != 0)
        return fleet_error(err, -EINVAL, "address \"%.100s\" of rank %d: %s", text, rank,
                           gai_strerror(rc));
    memcpy(out, found->ai_addr, found->ai_addrlen);
    *out_size = found->ai_addrlen;
    freeaddrinfo(found);
    return 0;
}

static int bound_port(int fd)
{
    struct sockaddr_storage address;
    socklen_t size = sizeof(address);

    if (getsockname(fd, (struct sockaddr *)&address, &size) < 0)
        return -errno;
    return address.ss_family == AF_INET6
               ? ntohs(((struct sockaddr_in6 *)(void *)&address)->sin6_port)
               : ntohs(((struct sockaddr_in *)(void *)&address)->sin_port);
}

int comm_tcp_listen(const char *host, int *out_fd, int *out_port, struct fleet_error *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_NUMERICSERV | AI_PASSIVE};
    struct addrinfo *found = NULL;
    FLEET_AUTO_CLOSE int fd = -1;
    int rc = getaddrinfo(host && host[0] ? host : NULL, "0", &hints, &found), port;

    if (rc != 0)
        return fleet_error(err, -EINVAL, "listen on %s: %s", host ? host : "any", gai_strerror(rc));
    fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    rc = fd < 0 ? -1 : bind(fd, found->ai_addr, found->ai_addrlen);
    if (rc == 0)
        rc = listen(fd, LISTEN_BACKLOG);
    freeaddrinfo(found);
    port = rc == 0 ? bound_port(fd) : -errno;
    if (port < 0)
        return fleet_error(err, port, "listen on %s: %s", host ? host : "any", strerror(-port));
    *out_port = port;
    *out_fd = fd;
    fd = -1;
    return 0;
}
