#!/usr/bin/env python3
"""Every job that the documentation shows, as one List for `kubectl apply --dry-run=server -f -`.

Whole jobs are taken as they are (docs/examples/*.yaml, ```yaml blocks with `kind: FleetJob`, except for those that begin with
"# for `fleetjob run`"), a `strategy:` block of
a reference page is put into a small job. Each gets a name of its own; on stderr the number of each kind.
"""
import glob
import json
import re
import sys

import yaml

TRAINING = {
    "model": {"name": "gpt", "layers": 1, "heads": 1, "width": 8, "context": 8},
    "data": {"tokenizer": "synthetic-markov"},
    "optimizer": {"name": "adamw", "learningRate": 0.001},
    "globalBatchSize": 8,
    "microBatchSize": 2,
    "steps": 1,
}


class Loader(yaml.SafeLoader):
    """As Kubernetes reads: dates stay text, 1e-8 is a number."""


Loader.yaml_implicit_resolvers = {
    key: [(tag, regexp) for tag, regexp in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for key, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789"))


def jobs():
    for path in sorted(glob.glob("docs/examples/*.yaml")):
        with open(path, encoding="utf-8") as file:
            yield from (("example", job) for job in yaml.load_all(file, Loader))
    for path in sorted(["README.md"] + glob.glob("docs/**/*.md", recursive=True)):
        with open(path, encoding="utf-8") as file:
            text = file.read()
        for block in re.findall(r"^```yaml\n(.*?)^```", text, re.S | re.M):
            found = yaml.load(block, Loader)
            if block.startswith("# for `fleetjob run`"):  # its paths are relative
                continue
            if isinstance(found, dict) and found.get("kind") == "FleetJob":
                yield "block", found
            elif isinstance(found, dict) and "strategy" in found and "reference/strategy" in path:
                spec = {"worker": {"replicas": 2}, "training": TRAINING, **found}
                yield "strategy", {"apiVersion": "fleetjob.dev/v1alpha1", "kind": "FleetJob", "spec": spec}


def main():
    items, kinds = [], {}
    for number, (kind, job) in enumerate(jobs()):
        job["metadata"] = {"name": f"documented-{number}"}
        items.append(job)
        kinds[kind] = kinds.get(kind, 0) + 1
    print(kinds, file=sys.stderr)
    json.dump({"apiVersion": "v1", "kind": "List", "items": items}, sys.stdout)


main()
