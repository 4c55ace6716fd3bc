/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PRINT_INTERNAL_H
#define LIBFLEET_PROGRAM_PRINT_INTERNAL_H

/* The tables with which print.c writes a program and print_parse.c reads it. */

#include <stddef.h>

enum print_kind {
    PRINT_DOUBLE,
    PRINT_INT,
    PRINT_INT64,
    PRINT_BOOL,  /* the name alone */
    PRINT_ENUM,  /* one of `words` */
    PRINT_SET,   /* bit i stands for words[i], "data+sharding" */
    PRINT_PAIR,  /* int[2], "3x3" */
    PRINT_ORDER, /* int[4], "0,2,1,3" */
};

/* One attribute of an operator. Zero is not written. */
struct print_field {
    const char *name;
    enum print_kind kind;
    size_t offset;            /* in struct op_attributes */
    const char *const *words; /* PRINT_ENUM, PRINT_SET; ends with NULL */
};

extern const struct print_field print_fields[]; /* ends with name NULL */

/* Words of enum program_initial, in its order; ends with NULL. */
extern const char *const print_initials[];

#endif
