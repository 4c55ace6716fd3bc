/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_FS_S3_XML_H
#define DISTRIBUTED_FS_S3_XML_H

/* As much XML as S3's answers need: elements without attributes that matter, found by name. */

#include <stdbool.h>
#include <stddef.h>

struct s3_xml {
    const char *at, *end; /* the content of an element, or what is left of a text */
};

/* The content of the next element `name` in *rest, which then begins behind it; false: there is
 * none. An element that does not end counts as none. */
bool s3_xml_next(struct s3_xml *rest, const char *name, struct s3_xml *out);

/* The content of the first element `name` below `in` as heap text, with entities replaced; NULL:
 * there is none. */
char *s3_xml_text(struct s3_xml in, const char *name);

/* Replace %XX in place, as encoding-type=url asks S3 to write keys. */
void s3_xml_unescape(char *text);

#endif
