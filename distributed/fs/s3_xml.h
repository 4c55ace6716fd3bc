/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_FS_S3_XML_H
#define DISTRIBUTED_FS_S3_XML_H

/*
 * Reads XML, as far as the answers of S3 need it: it finds elements by name and ignores attributes.
 * Pure.
 */

#include <stdbool.h>
#include <stddef.h>

struct s3_xml {
    const char *at, *end; /* the content of an element, or the rest of a text: bytes [at, end) */
};

/* Set *out to the content of the next element `name` in *rest, and move *rest behind that element.
 * False: there is no such element, or it has no end. */
bool s3_xml_next(struct s3_xml *rest, const char *name, struct s3_xml *out);

/* The content of the first element `name` below `in`, with entities replaced. The caller frees it.
 * NULL: there is none. */
char *s3_xml_text(struct s3_xml in, const char *name);

/* Replace each %XX by its byte, in place. S3 writes keys so if a request has encoding-type=url. */
void s3_xml_unescape(char *text);

#endif
