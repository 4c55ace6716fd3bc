/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_LIBRARY_H
#define CUDA_LIBRARY_H

/*
 * Opens a library that a program can do without: the file that an environment variable names, else
 * the first of some names that the loader finds. It stays open until the process ends. Any thread.
 */

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

struct fleet_error;

#define LIBRARY_NAMES_MAX 3

/* Where in `table` the pointer to a function goes. */
struct library_function {
    const char *name;
    size_t offset;
};

struct library {
    const char *title;                        /* for messages: "NCCL" */
    const char *variable;                     /* names the file; "none": there is none */
    const char *names[LIBRARY_NAMES_MAX];     /* without the variable; NULL at the end */
    const struct library_function *functions; /* name NULL at the end */
    void *table;                              /* a struct of pointers to the functions */

    /* Is the version good? 0 or -EPROTO. `file` and `table` are set. */
    int (*check)(const struct library *library, struct fleet_error *err);

    pthread_mutex_t lock; /* PTHREAD_MUTEX_INITIALIZER */
    bool is_open;
    const char *file; /* as it was opened */
};

/*
 * -ENOENT: the variable is "none", or it is not set and the loader finds no library; the error has
 * its reason. -EINVAL: the file that the variable names cannot be opened. -EPROTO: the library
 * lacks a function, or `check` refuses it.
 */
int library_open(struct library *library, struct fleet_error *err);

#endif
