/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/free_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"

int free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(address);
    FLEET_AUTO_CLOSE int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    fleet_assert(bind(fd, (struct sockaddr *)&address, size) == 0);
    fleet_assert(getsockname(fd, (struct sockaddr *)&address, &size) == 0);
    return ntohs(address.sin_port);
}
