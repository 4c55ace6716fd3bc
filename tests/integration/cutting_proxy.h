/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_CUTTING_PROXY_H
#define TESTS_INTEGRATION_CUTTING_PROXY_H

/*
 * A proxy of TCP between a client of the test and a server, as processes of their own. It cuts
 * connections after a number of bytes, as often as the test says, and may kill the server then. So
 * a fault happens at a known byte, however busy the machine is.
 */
#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct cutting_proxy {
    int port;
    pid_t pid;
    struct cutting_orders {
        atomic_long after;      /* bytes of one direction in one connection, for the first cut; the
                              others come at the first byte */
        atomic_bool is_answer;  /* of the server's direction; else of the client's */
        atomic_int cuts;        /* how many connections are still to be cut */
        atomic_int kill_server; /* kill this process at the cut; 0: none */
        atomic_int done;        /* cuts so far */
    } * orders;
};

static inline int proxy_socket(int port, bool is_server, int *out_port)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        abort();
    if (!is_server) {
        if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
            return fd;
        (void)close(fd);
        return -1;
    }
    if (bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0 || listen(fd, 64) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &size) != 0)
        abort();
    *out_port = ntohs(address.sin_port);
    return fd;
}

/* Must this connection end now? */
static inline bool is_cut(struct cutting_orders *orders, bool is_answer, long seen)
{
    int left = atomic_load(&orders->cuts);
    long after = atomic_load(&orders->done) > 0 ? 1 : atomic_load(&orders->after);

    if (is_answer != atomic_load(&orders->is_answer) || seen < after)
        return false;
    while (left > 0)
        if (atomic_compare_exchange_weak(&orders->cuts, &left, left - 1)) {
            int server = atomic_load(&orders->kill_server);
            if (server > 0)
                (void)kill(server, SIGKILL);
            atomic_fetch_add(&orders->done, 1);
            return true;
        }
    return false;
}

static inline void proxy_relay(int client, int server, struct cutting_orders *orders)
{
    struct pollfd fds[2] = {{.fd = client, .events = POLLIN}, {.fd = server, .events = POLLIN}};
    long seen[2] = {0, 0};
    char buffer[4096];

    while (poll(fds, 2, -1) > 0)
        for (int i = 0; i < 2; i++) {
            ssize_t got;
            if (!fds[i].revents)
                continue;
            got = read(fds[i].fd, buffer, sizeof(buffer));
            if (got <= 0)
                return;
            seen[i] += got;
            if (is_cut(orders, i == 1, seen[i]) ||
                send(fds[1 - i].fd, buffer, (size_t)got, MSG_NOSIGNAL) != got)
                return;
        }
}

static inline void proxy_serve(int listener, int server_port, struct cutting_orders *orders)
{
    (void)signal(SIGCHLD, SIG_IGN);
    for (;;) {
        int client = accept(listener, NULL, NULL);
        if (client >= 0 && fork() == 0) {
            int server = proxy_socket(server_port, false, NULL);
            (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (server >= 0)
                proxy_relay(client, server, orders);
            _exit(0);
        }
        if (client >= 0)
            (void)close(client);
    }
}

static inline void cutting_proxy_start(struct cutting_proxy *proxy, int server_port)
{
    int listener = proxy_socket(0, true, &proxy->port);

    proxy->orders = mmap(NULL, sizeof(*proxy->orders), PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (proxy->orders == MAP_FAILED)
        abort();
    proxy->pid = fork();
    if (proxy->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        proxy_serve(listener, server_port, proxy->orders);
    }
    (void)close(listener);
}

/* Cut the next `cuts` connections after `after` bytes of requests or answers. */
static inline void cutting_proxy_cut(struct cutting_proxy *proxy, int cuts, long after,
                                     bool is_answer, pid_t kill_server)
{
    atomic_store(&proxy->orders->cuts, 0);
    atomic_store(&proxy->orders->done, 0);
    atomic_store(&proxy->orders->after, after);
    atomic_store(&proxy->orders->is_answer, is_answer);
    atomic_store(&proxy->orders->kill_server, kill_server);
    atomic_store(&proxy->orders->cuts, cuts);
}

static inline void cutting_proxy_stop(struct cutting_proxy *proxy)
{
    (void)kill(proxy->pid, SIGKILL);
    (void)waitpid(proxy->pid, NULL, 0);
    (void)munmap(proxy->orders, sizeof(*proxy->orders));
}

#endif
