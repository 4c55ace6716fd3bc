/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_MACHINERY_ACCESS_REVIEW_H
#define CONTROLLER_MACHINERY_ACCESS_REVIEW_H

/*
 * May the holder of a bearer token do `verb` on `path`? The API server knows: a TokenReview says
 * whose token it is, a SubjectAccessReview what its holder may do (authentication.k8s.io/v1,
 * authorization.k8s.io/v1).
 *
 *   ask ── known ──────────────────────────────────────────────▶ verdict
 *     └── unknown ─▶ TokenReview ─▶ SubjectAccessReview ─▶ verdict, kept
 *
 * Invariants
 *  (1) A verdict holds for ACCESS_ALLOWED_MS or ACCESS_REFUSED_MS. A failure of the API server is
 *      not kept, and allows nothing.
 *  (2) At most ACCESS_ENTRIES_MAX tokens are remembered, as digests; the one that was refused
 *      or expired longest ago is replaced first.
 *  (3) Unknown tokens cost the API server at most ACCESS_RATE reviews a second (ACCESS_BURST at
 *      once); more get ACCESS_BUSY. A token that was allowed the last time does not count: unknown
 *      clients cannot keep it out.
 *  (4) Requests with the same token share one review.
 */

#include <stddef.h>

#include "libfleet/kube/io.h"

struct access_review;
struct access_wait;
struct fleet_error;

#define ACCESS_ALLOWED_MS  60000.0
#define ACCESS_REFUSED_MS  10000.0
#define ACCESS_ENTRIES_MAX 64
#define ACCESS_RATE        5.0 /* unknown tokens a second */
#define ACCESS_BURST       20.0
#define ACCESS_TIMEOUT_MS  4000.0 /* of each of the two reviews */
#define ACCESS_USER_SIZE   256

enum access {
    ACCESS_PENDING, /* the review is under way */
    ACCESS_ALLOWED,
    ACCESS_UNAUTHENTICATED, /* the token belongs to no user */
    ACCESS_FORBIDDEN,
    ACCESS_BUSY,   /* too many unknown tokens: ask again later */
    ACCESS_FAILED, /* the API server did not answer, or refused to review */
};

struct access_verdict {
    enum access access;
    char user[ACCESS_USER_SIZE]; /* ACCESS_ALLOWED, ACCESS_FORBIDDEN: whose token it is */
};

struct access_review_options {
    struct kube_io *io;
    const char *verb, *path; /* of a non-resource URL: "get", "/metrics"; static */
    /* The API server failed, at most once a minute. */
    void (*on_trouble)(void *user, const struct fleet_error *err);
    void *user;
};

struct access_review *access_review_new(const struct access_review_options *options);

/* Forget all; nothing of it runs any more. NULL is fine. */
void access_review_free(struct access_review *review);

/*
 * Ask about `token`. Either *out is the verdict and NULL is returned; or `done` runs once, later,
 * with it, unless access_wait_cancel() comes first. The handle is dead when `done` runs.
 */
typedef void access_done(void *user, const struct access_verdict *verdict);
struct access_wait *access_review_ask(struct access_review *review, const char *token,
                                      access_done *done, void *user, struct access_verdict *out);

/* Forget *wait, if there is one. The review itself goes on, and its verdict is kept. */
void access_wait_cancel(struct access_wait **wait);

#endif
