/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/rpc/connect.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "agent/runtime/comm/tcp_address.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/variable.h"

#define RETRY_MS 50

static int refused(const char *endpoint, int rank, int code, struct fleet_error *err)
{
    return fleet_error(err, code == ETIMEDOUT ? -ETIMEDOUT : -ECONNREFUSED,
                       "connect to rank %d at %s: %s", rank, endpoint, strerror(code));
}

int rpc_connect(const char *endpoint, int rank, double deadline_ms, struct fleet_error *err)
{
    FLEET_AUTO_CLOSE int fd = -1;
    struct sockaddr_storage address;
    struct pollfd poll_fd = {.events = POLLOUT};
    socklen_t size, code_size = sizeof(int);
    double left = deadline_ms - fleet_monotonic_ms();
    int code = 0, result, rc = tcp_address_parse(endpoint, rank, &address, &size, err);

    if (rc < 0)
        return rc;
    fd = socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return refused(endpoint, rank, errno, err);
    poll_fd.fd = fd;
    if (connect(fd, (struct sockaddr *)&address, size) != 0) {
        if (errno != EINPROGRESS)
            return refused(endpoint, rank, errno, err);
        if (poll(&poll_fd, 1, left > 1 ? (int)left : 1) < 1)
            return refused(endpoint, rank, ETIMEDOUT, err);
        if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &code_size) != 0 || code != 0)
            return refused(endpoint, rank, code ? code : errno, err);
    }
    result = fd;
    fd = -1;
    return result;
}

int rpc_connect_retry(const char *endpoint, int rank, double deadline_ms, struct fleet_error *err)
{
    for (;;) {
        const struct timespec pause = {.tv_nsec = RETRY_MS * 1000000L};
        int fd = rpc_connect(endpoint, rank, deadline_ms, err);
        if (fd >= 0 || fd == -EINVAL || fleet_monotonic_ms() >= deadline_ms)
            return fd;
        (void)nanosleep(&pause, NULL);
    }
}

int rpc_own_ip(int fd, char *out, size_t size, struct fleet_error *err)
{
    struct sockaddr_storage address;
    socklen_t length = sizeof(address);

    if (getsockname(fd, (struct sockaddr *)&address, &length) != 0 ||
        getnameinfo((struct sockaddr *)&address, length, out, (socklen_t)size, NULL, 0,
                    NI_NUMERICHOST) != 0)
        return fleet_error(err, -EIO, "cannot find this worker's own address");
    return 0;
}

void rpc_endpoint(const char *ip, int port, char *out, size_t size)
{
    (void)snprintf(out, size, strchr(ip, ':') ? "[%s]:%d" : "%s:%d", ip, port);
}

int rpc_endpoint_split(const char *endpoint, char *ip, size_t size, int *port,
                       struct fleet_error *err)
{
    const char *colon = strrchr(endpoint, ':'), *from = endpoint;
    size_t length = colon ? (size_t)(colon - endpoint) : 0;

    if (length > 2 && from[0] == '[' && from[length - 1] == ']') {
        from++;
        length -= 2;
    }
    if (length == 0 || length >= size)
        return fleet_error(err, -EINVAL, "the endpoint is \"%.100s\", needed: host:port", endpoint);
    memcpy(ip, from, length);
    ip[length] = '\0';
    return fleet_variable_parse("the endpoint's port", colon + 1, 1, 65535, port, err);
}
