/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Ranks of one machine read each other's memory (agent/runtime/comm/shm.c). Which processes they
 * let do so: the descendants of the launcher or of the agent, and no other process of the user.
 *
 * The first test looks at what the kernel is asked for. The second one tries it: it needs a kernel
 * whose Yama module restricts reading to ancestors, and skips with the reason elsewhere.
 */
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "tests/support/child_process.h"
#include "tests/unit/comm_ranks.h"

#define NOBODY 65534

/* ---- what the kernel is asked for ------------------------------------------------------------ */

static _Atomic long allowed; /* by the last PR_SET_PTRACER; 0 = none */
static _Atomic int allowed_rc;

/* In place of the C library's. */
int prctl(int option, ...)
{
    unsigned long a[4];
    va_list args;
    long rc;

    va_start(args, option);
    for (int i = 0; i < 4; i++)
        a[i] = va_arg(args, unsigned long);
    va_end(args);
    rc = syscall(SYS_prctl, option, a[0], a[1], a[2], a[3]);
    if (option == PR_SET_PTRACER) {
        atomic_store(&allowed, (long)a[0]);
        atomic_store(&allowed_rc, (int)rc);
    }
    return (int)rc;
}

static void connect_two(void)
{
    struct comm_ranks c;

    comm_ranks_init(&c, 2);
    c.neighbours = COMM_NEIGHBOURS_DIRECT;
    comm_ranks_run(&c, NULL);
    comm_ranks_release(&c);
}

static void test_comm__lets_only_descendants_of_its_starter_read(void **state)
{
    (void)state;
    atomic_store(&allowed, 0);
    assert_int_equal(unsetenv("FLEET_PEERS_PID"), 0);
    connect_two();
    assert_int_equal(atomic_load(&allowed), getppid());
    assert_int_equal(setenv("FLEET_PEERS_PID", "4321", 1), 0);
    connect_two();
    assert_int_equal(atomic_load(&allowed), 4321);
    assert_int_equal(setenv("FLEET_PEERS_PID", "-1", 1), 0); /* PR_SET_PTRACER_ANY */
    connect_two();
    assert_int_equal(atomic_load(&allowed), getppid());
    assert_int_equal(unsetenv("FLEET_PEERS_PID"), 0);
}

/* ---- who may read ---------------------------------------------------------------------------- */

static char secret[] = "only for peers";

/* A user without rights; what such a process becomes can be read again. */
static void become_a_user(void)
{
    if (getuid() == 0 && setresuid(NOBODY, NOBODY, NOBODY) != 0)
        _exit(9);
    (void)prctl(PR_SET_DUMPABLE, 1UL, 0UL, 0UL, 0UL);
}

static int read_secret(pid_t pid)
{
    char seen[sizeof(secret)] = {0};
    struct iovec local = {.iov_base = seen, .iov_len = sizeof(seen)};
    struct iovec remote = {.iov_base = secret, .iov_len = sizeof(secret)};

    if (process_vm_readv(pid, &local, 1, &remote, 1, 0) < 0)
        return errno;
    return memcmp(seen, secret, sizeof(secret)) == 0 ? 0 : EBADMSG;
}

/* The errno of a child of this process that reads `pid`; 0 = it may. */
static int as_peer(pid_t pid)
{
    pid_t child = child_process_fork();

    if (child == 0) {
        become_a_user();
        _exit(read_secret(pid));
    }
    return child_process_wait(child);
}

/* The same of a process that descends from another one: its parent ends first. */
static int as_stranger(pid_t pid)
{
    int pipes[2];
    char result = -1;
    pid_t child;

    assert_int_equal(pipe(pipes), 0);
    child = child_process_fork();
    if (child == 0) {
        pid_t parent = getpid();
        if (fork() > 0)
            _exit(0);
        become_a_user();
        while (getppid() == parent)
            (void)usleep(1000);
        result = (char)read_secret(pid);
        _exit(write(pipes[1], &result, 1) != 1);
    }
    assert_int_equal(child_process_wait(child), 0);
    (void)close(pipes[1]);
    assert_int_equal(read(pipes[0], &result, 1), 1);
    (void)close(pipes[0]);
    return result;
}

/* A process of a user without rights. It connects two ranks when it gets a byte, reports whether
 * the kernel accepted what it asked for, and stays. */
static pid_t start_rank(int to[2], int from[2])
{
    pid_t starter = getpid(), child;
    char number[24], byte;

    assert_int_equal(pipe(to), 0);
    assert_int_equal(pipe(from), 0);
    child = child_process_fork();
    if (child > 0)
        return child;
    (void)close(to[1]);
    become_a_user();
    (void)snprintf(number, sizeof(number), "%d", (int)starter);
    (void)setenv("FLEET_PEERS_PID", number, 1);
    if (write(from[1], "", 1) != 1 || read(to[0], &byte, 1) != 1)
        _exit(1);
    connect_two();
    byte = (char)(atomic_load(&allowed_rc) == 0);
    if (write(from[1], &byte, 1) != 1)
        _exit(1);
    _exit(read(to[0], &byte, 1) != 0); /* the test closes it */
}

static void test_comm__a_process_of_the_same_user_that_is_no_peer_cannot_read(void **state)
{
    int to[2], from[2], before;
    pid_t rank;
    char has_allowed = 0;

    (void)state;
    rank = start_rank(to, from);
    assert_int_equal(read(from[0], &has_allowed, 1), 1);
    before = as_peer(rank);
    assert_int_equal(write(to[1], "", 1), 1);
    assert_int_equal(read(from[0], &has_allowed, 1), 1);
    if (before != EPERM || !has_allowed) {
        print_message("this kernel restricts no reading between processes of one user (%s)\n",
                      before == 0 ? "a peer may read without leave" : strerror(before));
    } else {
        assert_int_equal(as_peer(rank), 0);
        assert_int_equal(as_stranger(rank), EPERM);
    }
    for (int i = 0; i < 2; i++) {
        (void)close(to[i]);
        (void)close(from[i]);
    }
    assert_int_equal(child_process_wait(rank), 0);
    if (before != EPERM || !has_allowed)
        skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm__lets_only_descendants_of_its_starter_read),
        cmocka_unit_test(test_comm__a_process_of_the_same_user_that_is_no_peer_cannot_read),
    };

    return cmocka_run_group_tests_name("comm_readers", tests, NULL, NULL);
}
