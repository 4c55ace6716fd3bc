/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_FIELD_ROW_H
#define LIBFLEET_BASE_FIELD_ROW_H

/*
 * One line for each field, for tables (field.h) of objects that only programs read: messages,
 * files, records.
 *
 *     static const struct fleet_field fields[] = {
 *         ROW_INT(struct thing, "step", step, 0, STEP_MAX, FLEET_REQUIRED),
 *         ROW_STRING(struct thing, "path", path, 4096, FLEET_NOT_EMPTY),
 *         ROW_END,
 *     };
 *     static const struct fleet_object type = ROW_OBJECT_TYPE("thing", struct thing, fields);
 *
 * Unknown keys of such an object are left alone, so that a newer program may say more. An absent
 * field that is not required is 0, false, the first choice, "" or as the row says.
 */

#include <stddef.h>

#include "libfleet/base/field.h"

#define ROW_END      \
    {                \
        .name = NULL \
    }

#define ROW_OBJECT_TYPE(name_, type, fields_)                                    \
    {                                                                            \
        .name = (name_), .fields = (fields_), .size = sizeof(type), .open = true \
    }

#define ROW(type, name_, kind_, member, flags_, ...)                     \
    {                                                                    \
        .name = (name_), .kind = FLEET_FIELD_##kind_, .flags = (flags_), \
        .offset = offsetof(type, member), __VA_ARGS__                    \
    }

#define ROW_BOOL(type, name, member, flags) ROW(type, name, BOOL, member, flags, .unset = 0)

/* int64_t and int, low <= value <= high. */
#define ROW_INT(type, name, member, low, high, flags_)                                   \
    ROW(type, name, INT, member, (flags_) | FLEET_MIN | FLEET_MAX, .min = (double)(low), \
        .max = (double)(high))
#define ROW_INT32(type, name, member, low, high, flags_)                                   \
    ROW(type, name, INT32, member, (flags_) | FLEET_MIN | FLEET_MAX, .min = (double)(low), \
        .max = (double)(high))

/* double; `missing` stands for null and for an absent field. */
#define ROW_NUMBER(type, name, member, missing, flags_) \
    ROW(type, name, NUMBER, member, (flags_) | FLEET_NULL, .unset = (missing))

/* char *, at most `max` bytes, never NULL when read; char[]. */
#define ROW_STRING(type, name, member, max_, flags_) \
    ROW(type, name, STRING, member, (flags_) | FLEET_NEVER_NULL, .count_max = (max_))
#define ROW_CHARS(type, name, member, flags_) \
    ROW(type, name, CHARS, member, flags_, .count_max = sizeof(((type *)0)->member) - 1)

/* uint8_t[] as hexadecimal digits; a pointer and a size_t as base64. */
#define ROW_HEX(type, name, member, flags_) \
    ROW(type, name, HEX, member, flags_, .count_max = sizeof(((type *)0)->member))
#define ROW_BASE64(type, name, member, max_, flags_) \
    ROW(type, name, BASE64, member, flags_, .count_max = (max_))

/* An enum as one of `words`, which end with NULL. */
#define ROW_ENUM(type, name, member, words, flags_) \
    ROW(type, name, ENUM, member, flags_, .choices = (words))

/* A struct; a pointer and a count of structs. */
#define ROW_OBJECT(type, name, member, object_, flags_) \
    ROW(type, name, OBJECT, member, flags_, .object = &(object_))
#define ROW_OBJECTS(type, name, member, max_, object_, flags_)                             \
    ROW(type, name, LIST, member, flags_, .count_max = (max_), .item = FLEET_FIELD_OBJECT, \
        .object = &(object_))

/* An array in the struct and, right behind it, the number of its elements. */
#define ROW_ARRAY(type, name, member, object_, flags_)                                 \
    ROW(type, name, LIST, member, (flags_) | FLEET_INLINE, .item = FLEET_FIELD_OBJECT, \
        .object = &(object_),                                                          \
        .count_max = sizeof(((type *)0)->member) / sizeof(((type *)0)->member[0]))

#endif
