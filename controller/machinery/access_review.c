/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/machinery/access_review.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/kube/rest.h"

#define TROUBLE_MS 60000.0

static const struct kube_resource token_reviews = {"authentication.k8s.io", "v1", "tokenreviews",
                                                   "TokenReview", false};
static const struct kube_resource subject_access_reviews = {
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", false};

struct access_wait {
    struct entry *entry;
    struct access_wait *next;
    access_done *done;
    void *user;
};

/* A token that was reviewed, or is under review. */
struct entry {
    struct access_review *review;
    bool is_used;                      /* false: a free place */
    bool was_allowed;                  /* by its last review: rule (3) */
    uint8_t digest[FLEET_SHA256_SIZE]; /* of the token */
    struct access_verdict verdict;
    double until_ms; /* of the verdict */
    double asked_ms; /* the last time */
    struct kube_rest_call *call;
    struct access_wait *waits;
    struct access_wait *telling; /* waits whose callbacks run now, one after the other */
};

struct access_review {
    struct access_review_options options;
    struct entry entries[ACCESS_ENTRIES_MAX];
    double tokens, filled_ms; /* of the token bucket of rule (3) */
    double troubled_ms;       /* of the last on_trouble */
};

/* ---- verdicts ------------------------------------------------------------------------------- */

/* A callback may start another review or cancel a wait. */
static void report(struct entry *entry, const struct access_verdict *verdict)
{
    struct access_wait *wait;

    entry->telling = entry->waits;
    entry->waits = NULL;
    while ((wait = entry->telling)) {
        entry->telling = wait->next;
        wait->done(wait->user, verdict);
        free(wait);
    }
}

static void keep(struct entry *entry, enum access access)
{
    double now_ms = kube_now_ms(entry->review->options.io);
    struct access_verdict verdict;

    entry->verdict.access = access;
    entry->was_allowed = access == ACCESS_ALLOWED;
    entry->until_ms = now_ms + (entry->was_allowed ? ACCESS_ALLOWED_MS : ACCESS_REFUSED_MS);
    verdict = entry->verdict;
    report(entry, &verdict);
}

static void fail(struct entry *entry, const struct fleet_error *err)
{
    const struct access_verdict failed = {.access = ACCESS_FAILED};
    struct access_review *review = entry->review;
    double now_ms = kube_now_ms(review->options.io);

    entry->verdict.access = ACCESS_FAILED;
    entry->until_ms = now_ms;
    if (now_ms >= review->troubled_ms + TROUBLE_MS) {
        review->troubled_ms = now_ms;
        review->options.on_trouble(review->options.user, err);
    }
    report(entry, &failed);
}

/* ---- reviews -------------------------------------------------------------------------------- */

static cJSON *new_review(const struct kube_resource *resource, cJSON **out_spec)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf version = {0};
    cJSON *object = fleet_json_new_object();

    kube_resource_api_version(resource, &version);
    fleet_json_set_string(object, "apiVersion", version.text);
    fleet_json_set_string(object, "kind", resource->kind);
    *out_spec = fleet_json_set_object(object, "spec");
    return object;
}

static void send(struct entry *entry, const struct kube_resource *resource, const cJSON *body,
                 kube_rest_done *done)
{
    struct kube_rest_request request = {
        .verb = KUBE_CREATE, .resource = resource, .body = body, .timeout_ms = ACCESS_TIMEOUT_MS};

    entry->call = kube_rest_start(entry->review->options.io, &request, done, entry);
}

static void on_authorized(void *user, const cJSON *object, const struct fleet_error *err)
{
    struct entry *entry = user;

    entry->call = NULL;
    if (err)
        fail(entry, err);
    else
        keep(entry, cJSON_IsTrue(fleet_json_at(object, "status.allowed")) ? ACCESS_ALLOWED
                                                                          : ACCESS_FORBIDDEN);
}

/* The user that the TokenReview returned; the SubjectAccessReview has it under the name "user". */
static void copy_user(cJSON *spec, const cJSON *user)
{
    static const char *const keys[][2] = {
        {"username", "user"}, {"uid", "uid"}, {"groups", "groups"}, {"extra", "extra"}};

    for (size_t i = 0; i < FLEET_COUNT(keys); i++) {
        fleet_json_set(spec, keys[i][1],
                       fleet_json_copy(cJSON_GetObjectItemCaseSensitive(user, keys[i][0])));
    }
}

static void on_authenticated(void *user, const cJSON *object, const struct fleet_error *err)
{
    FLEET_AUTO_JSON cJSON *body = NULL;
    struct entry *entry = user;
    const struct access_review_options *options = &entry->review->options;
    const cJSON *account = fleet_json_at(object, "status.user");
    const char *name;
    cJSON *spec, *url;

    entry->call = NULL;
    if (err) {
        fail(entry, err);
        return;
    }
    name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(account, "username"));
    if (!cJSON_IsTrue(fleet_json_at(object, "status.authenticated")) || !name || !name[0]) {
        keep(entry, ACCESS_UNAUTHENTICATED);
        return;
    }
    (void)snprintf(entry->verdict.user, sizeof(entry->verdict.user), "%s", name);
    body = new_review(&subject_access_reviews, &spec);
    copy_user(spec, account);
    url = fleet_json_set_object(spec, "nonResourceAttributes");
    fleet_json_set_string(url, "path", options->path);
    fleet_json_set_string(url, "verb", options->verb);
    send(entry, &subject_access_reviews, body, on_authorized);
}

static void start(struct entry *entry, const char *token)
{
    FLEET_AUTO_JSON cJSON *body = NULL;
    cJSON *spec;

    entry->verdict = (struct access_verdict){.access = ACCESS_PENDING};
    body = new_review(&token_reviews, &spec);
    fleet_json_set_string(spec, "token", token);
    send(entry, &token_reviews, body, on_authenticated);
}

/* ---- entries -------------------------------------------------------------------------------- */

static struct entry *find(struct access_review *review, const uint8_t digest[FLEET_SHA256_SIZE])
{
    for (size_t i = 0; i < ACCESS_ENTRIES_MAX; i++) {
        struct entry *entry = &review->entries[i];
        if (entry->is_used && memcmp(entry->digest, digest, FLEET_SHA256_SIZE) == 0)
            return entry;
    }
    return NULL;
}

/* Is `a` evicted before `b`? */
static bool is_less_needed(const struct entry *a, const struct entry *b)
{
    if (a->is_used != b->is_used)
        return !a->is_used;
    if (a->was_allowed != b->was_allowed)
        return !a->was_allowed;
    return a->asked_ms < b->asked_ms;
}

/* A free entry for another token; NULL if all are under review. */
static struct entry *find_place(struct access_review *review)
{
    struct entry *best = NULL;

    for (size_t i = 0; i < ACCESS_ENTRIES_MAX; i++) {
        struct entry *entry = &review->entries[i];
        if (!entry->call && !entry->telling && (!best || is_less_needed(entry, best)))
            best = entry;
    }
    return best;
}

/* Take one token from the bucket of rule (3). */
static bool take_from_bucket(struct access_review *review, double now_ms)
{
    review->tokens =
        fmin(ACCESS_BURST, review->tokens + (now_ms - review->filled_ms) * ACCESS_RATE / 1000);
    review->filled_ms = now_ms;
    if (review->tokens < 1)
        return false;
    review->tokens--;
    return true;
}

static struct access_wait *new_wait(struct entry *entry, access_done *done, void *user)
{
    struct access_wait *wait = calloc(1, sizeof(*wait));

    fleet_assert(wait);
    *wait = (struct access_wait){.entry = entry, .next = entry->waits, .done = done, .user = user};
    entry->waits = wait;
    return wait;
}

/* The token's entry, with a valid verdict or a review in progress; NULL: too many reviews. */
static struct entry *look_up(struct access_review *review, const char *token)
{
    double now_ms = kube_now_ms(review->options.io);
    uint8_t digest[FLEET_SHA256_SIZE];
    struct entry *entry;

    fleet_sha256(token, strlen(token), digest);
    entry = find(review, digest);
    if (!entry || (!entry->call && now_ms >= entry->until_ms)) {
        if (!(entry && entry->was_allowed) && !take_from_bucket(review, now_ms))
            return NULL;
        if (!entry && (entry = find_place(review))) {
            *entry = (struct entry){.review = review, .is_used = true};
            memcpy(entry->digest, digest, sizeof(digest));
        }
        if (!entry)
            return NULL;
        start(entry, token);
    }
    entry->asked_ms = now_ms;
    return entry;
}

/* ---- for callers ---------------------------------------------------------------------------- */

struct access_review *access_review_new(const struct access_review_options *options)
{
    struct access_review *review = calloc(1, sizeof(*review));

    fleet_assert(review);
    review->options = *options;
    review->tokens = ACCESS_BURST;
    review->filled_ms = kube_now_ms(options->io);
    review->troubled_ms = -INFINITY;
    return review;
}

void access_review_free(struct access_review *review)
{
    if (!review)
        return;
    for (size_t i = 0; i < ACCESS_ENTRIES_MAX; i++) {
        struct entry *entry = &review->entries[i];
        kube_rest_cancel(&entry->call);
        while (entry->waits) {
            struct access_wait *wait = entry->waits;
            entry->waits = wait->next;
            free(wait);
        }
    }
    free(review);
}

struct access_wait *access_review_ask(struct access_review *review, const char *token,
                                      access_done *done, void *user, struct access_verdict *out)
{
    struct entry *entry = look_up(review, token);

    if (!entry) {
        *out = (struct access_verdict){.access = ACCESS_BUSY};
        return NULL;
    }
    if (entry->call)
        return new_wait(entry, done, user);
    *out = entry->verdict;
    return NULL;
}

/* False: it is not in that list. */
static bool unlink_wait(struct access_wait **list, const struct access_wait *wait)
{
    while (*list && *list != wait)
        list = &(*list)->next;
    if (!*list)
        return false;
    *list = wait->next;
    return true;
}

void access_wait_cancel(struct access_wait **wait)
{
    struct entry *entry;
    bool was_there;

    if (!*wait)
        return;
    entry = (*wait)->entry;
    was_there = unlink_wait(&entry->waits, *wait) || unlink_wait(&entry->telling, *wait);
    fleet_assert(was_there);
    free(*wait);
    *wait = NULL;
}
