/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/launch_endpoints.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli/launch.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"

/* A socket that has this address; -errno. */
static int take(const char *host, const char *port, struct fleet_error *err)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    int one = 1, fd, rc = getaddrinfo(host, port, &hints, &list);

    if (rc != 0)
        return fleet_error(err, -EINVAL, "%s:%s: %s", host, port, gai_strerror(rc));
    fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    rc = fd < 0 ? -errno : 0;
    if (rc == 0)
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (rc == 0 && bind(fd, list->ai_addr, list->ai_addrlen) < 0)
        rc = -errno;
    freeaddrinfo(list);
    if (rc == 0)
        return fd;
    if (fd >= 0)
        (void)close(fd);
    if (rc == -EADDRNOTAVAIL)
        return fleet_error(err, rc, "%s:%s is not an address of this machine", host, port);
    return fleet_error(err, rc, "%s:%s: %s", host, port, strerror(-rc));
}

static int port_of(int fd)
{
    struct sockaddr_in address = {0};
    socklen_t size = sizeof(address);

    return getsockname(fd, (struct sockaddr *)&address, &size) < 0 ? 0 : ntohs(address.sin_port);
}

void launch_endpoints_at(const struct fleet_strbuf *list, int index, char **host, char **port)
{
    const char *at = list->text, *colon;
    size_t length;

    for (int i = 0; i < index; i++)
        at += strcspn(at, ",") + 1;
    length = strcspn(at, ",");
    for (colon = at + length; *colon != ':'; colon--)
        fleet_assert(colon > at);
    free(*host);
    free(*port);
    *host = strndup(at, (size_t)(colon - at));
    *port = strndup(colon + 1, (size_t)(at + length - colon - 1));
    fleet_assert(*host && *port);
}

/* `count` endpoints in *out, with a socket each in sockets[]. */
static int make_list(const char *given, int first_port, int count, struct fleet_strbuf *out,
                     int *sockets, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *host = NULL, *port = NULL;

    if (given)
        fleet_strbuf_append(out, given);
    for (int i = 0; i < count; i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf number = {0};
        if (given)
            launch_endpoints_at(out, i, &host, &port);
        else
            fleet_strbuf_appendf(&number, "%d", first_port > 0 ? first_port + i : 0);
        sockets[i] = take(given ? host : "127.0.0.1", given ? port : number.text, err);
        if (sockets[i] < 0)
            return sockets[i];
        if (!given)
            fleet_strbuf_appendf(out, "%s127.0.0.1:%d", i > 0 ? "," : "", port_of(sockets[i]));
    }
    return 0;
}

/* No worker listens where a server does. Two sockets that do not listen may have one address, so
 * the system does not notice. */
static int check_apart(const struct launch_options *o, const struct launch_endpoints *endpoints,
                       struct fleet_error *err)
{
    FLEET_AUTO_FREE char *host = NULL, *port = NULL, *other_host = NULL, *other_port = NULL;

    for (int w = 0; w < o->workers; w++) {
        launch_endpoints_at(&endpoints->workers, w, &host, &port);
        for (int s = 0; s < o->servers; s++) {
            launch_endpoints_at(&endpoints->servers, s, &other_host, &other_port);
            if (strcmp(host, other_host) == 0 && strcmp(port, other_port) == 0)
                return fleet_error(err, -EINVAL, "%s:%s is the address of server %d, too", host,
                                   port, s);
        }
    }
    return 0;
}

int launch_endpoints_make(const struct launch_options *o, struct launch_endpoints *out,
                          struct fleet_error *err)
{
    int count = o->servers + o->workers, rc;
    int next_port =
        o->start_port > 0 && !o->server_endpoints ? o->start_port + o->servers : o->start_port;
    FLEET_AUTO_FREE int *sockets = calloc((size_t)count, sizeof(*sockets));

    fleet_assert(sockets);
    for (int i = 0; i < count; i++)
        sockets[i] = -1;
    *out = (struct launch_endpoints){0};
    rc = make_list(o->server_endpoints, o->start_port, o->servers, &out->servers, sockets, err);
    if (rc < 0)
        rc = fleet_error_wrap(err, "servers");
    if (rc == 0) {
        rc = make_list(o->worker_endpoints, next_port, o->workers, &out->workers,
                       sockets + o->servers, err);
        if (rc == 0)
            rc = check_apart(o, out, err);
        if (rc < 0)
            rc = fleet_error_wrap(err, "workers");
    }
    for (int i = 0; i < count; i++) /* held until now, so that no two free ports are the same */
        if (sockets[i] >= 0)
            (void)close(sockets[i]);
    if (rc < 0)
        launch_endpoints_release(out);
    return rc;
}

void launch_endpoints_release(struct launch_endpoints *endpoints)
{
    fleet_strbuf_release(&endpoints->servers);
    fleet_strbuf_release(&endpoints->workers);
}
