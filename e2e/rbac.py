#!/usr/bin/env python3
"""What the controller may do against what it did: rules of its roles, and the API server's audit log.

    rbac.py AUDIT-LOG [ROLES.json]     ROLES: kubectl get clusterroles,roles -A -o json

Prints, a line each, requests that its roles forbade, and, with ROLES, verbs that are granted and were never used;
exit 1 if there are any. What no request shows is in UNSEEN, with the reason.
"""
import json
import subprocess
import sys

USER = "system:serviceaccount:fleetjob-system:fleetjob-controller"
UNSEEN = {
    # Checked by the admission plug-in OwnerReferencesPermissionEnforcement, which is on here; no request.
    ("update", "fleetjob.dev", "fleetjobs/finalizers"),
    ("update", "", "services/finalizers"),
    # Checked within a server-side apply, a patch, of what is not there yet; no request.
    ("create", "discovery.k8s.io", "endpointslices"),
    # Only where a former version made the hub's Service the owner of the identity.
    ("patch", "", "secrets"),
    # Only when somebody has changed the hub's Service.
    ("patch", "", "services"),
    # Only when somebody takes off the labels of a worker.
    ("patch", "", "pods"),
    # Only while a pod of a job that had the same name is on its way out.
    ("get", "", "pods"),
    # Only when the answer to a write was lost.
    ("get", "fleetjob.dev", "fleetjobs"),
    # Only where one of the two gang schedulers is installed; here there is none.
    ("create", "scheduling.volcano.sh", "podgroups"),
    ("patch", "scheduling.volcano.sh", "podgroups"),
    ("create", "scheduling.x-k8s.io", "podgroups"),
    ("patch", "scheduling.x-k8s.io", "podgroups"),
}


def requests(path):
    for line in open(path, encoding="utf-8"):
        try:
            event = json.loads(line)
        except ValueError:  # being written, or left by an API server that was killed
            continue
        if event["user"].get("username") != USER or "objectRef" not in event:
            continue
        target = event["objectRef"]
        resource = "/".join(filter(None, [target.get("resource"), target.get("subresource")]))
        yield event, (event["verb"], target.get("apiGroup", ""), resource), target.get("name", "")


def is_forbidden(event, asked):
    """By the roles. An API server that has just started, or has just got the roles, may not know them yet and
    forbids what they grant: it is asked again, once for the same. A 403 without this annotation has another reason."""
    if event.get("annotations", {}).get("authorization.k8s.io/decision") != "forbid":
        return False
    target = event["objectRef"]
    what = target.get("resource", "") + ("." + target["apiGroup"] if target.get("apiGroup") else "")
    what += "/" + target["name"] if target.get("name") else ""
    where = ["-n", target["namespace"]] if target.get("namespace") else ["-A"]
    part = ["--subresource", target["subresource"]] if target.get("subresource") else []
    command = ["kubectl", "auth", "can-i", "--quiet", "--as", USER, event["verb"], what, *where, *part]
    key = tuple(command)
    if key not in asked:
        asked[key] = subprocess.run(command, check=False).returncode != 0
    return asked[key]


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
    log, roles = sys.argv[1], sys.argv[2:]
    used, asked, bad = {}, {}, 0
    for event, what, name in requests(log):
        used.setdefault(what, set()).add(name)
        if is_forbidden(event, asked):
            print("forbidden:", event["verb"], event["requestURI"])
            bad += 1
    if not used:
        sys.exit(f"{log} has no request of {USER}")
    for what, names in rules(roles[0]) if roles else ():
        if what in UNSEEN or what in used and (names is None or used[what] & set(names)):
            continue
        print("granted and never used:", *what, names or "")
        bad += 1
    print(f"{len(used)} kinds of requests, {bad} complaints")
    sys.exit(1 if bad else 0)


main()
