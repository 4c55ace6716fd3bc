#!/usr/bin/env python3
"""What the controller may do against what it did: rules of its roles, and the API server's audit log.

    rbac.py AUDIT-LOG ROLES.json     ROLES: kubectl get clusterroles,roles -A -o json

Prints, a line each, requests that were forbidden, and verbs that are granted and were never used; exit 1 if
there are any. What no request shows is in UNSEEN, with the reason.
"""
import json
import sys

USER = "system:serviceaccount:fleetjob-system:fleetjob-controller"
UNSEEN = {
    # Checked by the admission plug-in OwnerReferencesPermissionEnforcement, which is on here; no request.
    ("update", "fleetjob.dev", "fleetjobs/finalizers"),
    ("update", "", "services/finalizers"),
    # Checked within a server-side apply, a patch, of what is not there yet; no request.
    ("create", "discovery.k8s.io", "endpointslices"),
    # Only when the answer to a write was lost, or a Service outlived its job for a moment.
    ("get", "fleetjob.dev", "fleetjobs"),
    ("patch", "", "services"),
    # Only where one of the two gang schedulers is installed; here there is none.
    ("create", "scheduling.volcano.sh", "podgroups"),
    ("patch", "scheduling.volcano.sh", "podgroups"),
    ("create", "scheduling.x-k8s.io", "podgroups"),
    ("patch", "scheduling.x-k8s.io", "podgroups"),
}


def requests(path):
    for line in open(path, encoding="utf-8"):
        event = json.loads(line)
        if event["user"].get("username") != USER or "objectRef" not in event:
            continue
        target = event["objectRef"]
        resource = "/".join(filter(None, [target.get("resource"), target.get("subresource")]))
        yield event, (event["verb"], target.get("apiGroup", ""), resource), target.get("name", "")


def rules(path):
    for role in json.load(open(path, encoding="utf-8"))["items"]:
        if not role["metadata"]["name"].startswith("fleetjob-controller"):
            continue
        for rule in role["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        yield (verb, group, resource), rule.get("resourceNames")


def main():
    log, roles = sys.argv[1:]
    used, granted, bad = {}, list(rules(roles)), 0
    for event, what, name in requests(log):
        used.setdefault(what, set()).add(name)
        # An API server that has just started does not know the roles yet, and forbids what they grant.
        is_granted = any(what == rule and (names is None or name in names) for rule, names in granted)
        if event.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid" and not is_granted:
            print("forbidden:", event["verb"], event["requestURI"])
            bad += 1
    if not used:
        sys.exit(f"{log} has no request of {USER}")
    for what, names in granted:
        if what in UNSEEN or what in used and (names is None or used[what] & set(names)):
            continue
        print("granted and never used:", *what, names or "")
        bad += 1
    print(f"{len(used)} kinds of requests, {bad} complaints")
    sys.exit(1 if bad else 0)


main()
