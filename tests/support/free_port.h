/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_FREE_PORT_H
#define TESTS_SUPPORT_FREE_PORT_H

/*
 * Ports that tests listen at later. This needs no code of the project, so that tests of the
 * installed library have it, too.
 */

#include <netinet/in.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* Below the ports that the kernel gives to outgoing connections, which may take a free one. */
#define FREE_PORT_FIRST 20000
#define FREE_PORT_COUNT 10000

/* A socket of the loopback address; -1: the port is taken. */
static inline int free_port_bind(int type, int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr = {htonl(INADDR_LOOPBACK)},
                                  .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);

    if (fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

/*
 * A TCP port of the loopback address that no process uses now. While this process lives, no other
 * call of any process returns it: a UDP socket of the same number stays open. Aborts if there is
 * none.
 */
static inline int free_port(void)
{
    for (int i = 0; i < FREE_PORT_COUNT; i++) {
        int port = FREE_PORT_FIRST + (int)(((int64_t)getpid() * 97 + i) % FREE_PORT_COUNT);
        int claim = free_port_bind(SOCK_DGRAM, port);
        int fd = claim < 0 ? -1 : free_port_bind(SOCK_STREAM, port);
        if (fd >= 0) {
            (void)close(fd);
            return port;
        }
        if (claim >= 0)
            (void)close(claim);
    }
    abort();
}

#endif
