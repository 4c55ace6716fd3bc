/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_FREE_PORT_H
#define TESTS_SUPPORT_FREE_PORT_H

/* A TCP port of the loopback address that no process uses now. Aborts if there is none. */
int free_port(void);

#endif
