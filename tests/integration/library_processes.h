/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_LIBRARY_PROCESSES_H
#define TESTS_INTEGRATION_LIBRARY_PROCESSES_H

/*
 * Tests of libfleet.so: the same function in several processes, each with the variables of its
 * rank. A process reports a failure by exit code 1 and a line on the standard error.
 */

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "include/fleet/fleet.h"
#include "tests/support/free_port.h"

#define PROCESSES_MAX 4

static int rank, world;
static struct fleet_error err;
static char master[32]; /* the address of rank 0 */

#define CHECK(x)                                                                                   \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            (void)fprintf(stderr, "rank %d, line %d: %s (%d: %s)\n", rank, __LINE__, #x, err.code, \
                          err.text);                                                               \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static inline void set_number(const char *name, int value)
{
    char text[16];

    (void)snprintf(text, sizeof(text), "%d", value);
    (void)setenv(name, text, 1);
}

/* In a child: the variables of its rank. */
static inline void become(int place, const char *endpoints)
{
    rank = place;
    (void)setenv("FLEET_WORLD_SECRET", "a secret", 1);
    (void)setenv("PADDLE_TRAINER_ENDPOINTS", endpoints, 1);
    set_number("PADDLE_TRAINERS_NUM", world);
    set_number("PADDLE_TRAINER_ID", rank);
    set_number("PADDLE_PG_TIMEOUT", 60000);
}

/* Run `body` in `count` processes. Each ends with 0, that of rank `killed` (or -1) by SIGKILL. */
static inline void run_processes(int count, void (*body)(void), int killed)
{
    char endpoints[32 * PROCESSES_MAX] = "";
    pid_t children[PROCESSES_MAX];

    world = count;
    (void)snprintf(master, sizeof(master), "127.0.0.1:%d", free_port());
    for (int i = 0; i < count; i++)
        (void)snprintf(endpoints + strlen(endpoints), 32, "%s127.0.0.1:%d", i > 0 ? "," : "",
                       free_port());
    for (int i = 0; i < count; i++) {
        children[i] = fork();
        assert_true(children[i] >= 0);
        if (children[i] == 0) {
            become(i, endpoints);
            body();
            fleet_env_release();
            _exit(0);
        }
    }
    for (int i = 0; i < count; i++) {
        int status;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        if (i == killed)
            assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        else
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

#endif
