/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_ENTRYPOINT_RAW_H
#define AGENT_ENTRYPOINT_RAW_H

/*
 * System calls without a C library. preload.c runs inside programs of other C libraries, glibc and
 * musl of any version, before these are ready; it may not call any of their functions, not even
 * memcpy(). The results are the kernel's: negative errno values on failure.
 */

#include <fcntl.h>
#include <stdint.h>
#include <sys/syscall.h>

#if defined(__x86_64__)

static inline long raw_call(long number, long a, long b, long c, long d, long e)
{
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = 0;
    long result;

    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

#elif defined(__aarch64__)

static inline long raw_call(long number, long a, long b, long c, long d, long e)
{
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b,
                     x2 __asm__("x2") = c, x3 __asm__("x3") = d, x4 __asm__("x4") = e,
                     x5 __asm__("x5") = 0;

    __asm__ volatile("svc 0"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory");
    return x0;
}

#else
#error "raw.h: no system calls for this architecture yet; add raw_call()"
#endif

static inline long raw_open(const char *path, int flags)
{
    return raw_call(SYS_openat, AT_FDCWD, (long)(intptr_t)path, flags, 0, 0);
}

static inline long raw_read(long fd, void *bytes, unsigned long size)
{
    return raw_call(SYS_read, fd, (long)(intptr_t)bytes, (long)size, 0, 0);
}

static inline void raw_close(long fd)
{
    (void)raw_call(SYS_close, fd, 0, 0, 0, 0);
}

#endif
