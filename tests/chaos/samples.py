# SPDX-License-Identifier: Apache-2.0
"""Was every sample used exactly once? From the logs of agent/runtime/step/sample_log.h."""

import collections
import json
import pathlib


def read_logs(folder):
    """(update, epoch, generation) -> {micro-batch: {replica: (first, samples)}}, and commits."""
    reads, commits = collections.defaultdict(lambda: collections.defaultdict(dict)), set()
    for path in sorted(pathlib.Path(folder).glob("*.jsonl")):
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            where = entry["epoch"], entry["generation"]
            if "commit" in entry:
                commits.add((entry["commit"], *where))
                continue
            held = reads[(entry["read"], *where)][entry["leaf"]]
            read = entry["first"], tuple(entry["samples"])
            if held.setdefault(entry["replica"], read) != read:
                raise AssertionError(f"two reads of one micro-batch differ: {held} and {entry}")
    return reads, commits


def numbers_of(update, merge, steps, batch):
    """The numbers in the endless sequence of samples that an update consists of."""
    return list(range((update - 1) * merge * batch, min(update * merge, steps) * batch))


def check(folder, steps, batch, merge, count):
    """Raise AssertionError unless each committed update has each of its samples once, from one
    replica, and no epoch of `count` samples repeats one."""
    reads, commits = read_logs(folder)
    updates = -(-steps // merge)
    missing = set(range(1, updates + 1)) - {update for update, _, _ in commits}
    assert not missing, f"no rank has logged a commit of updates {sorted(missing)}"
    sample_of = {}
    for key in sorted(commits):
        used = []
        for leaf, replicas in reads[key].items():
            assert len(replicas) == 1, f"update {key}: {sorted(replicas)} read batch {leaf}"
            first, samples = next(iter(replicas.values()))
            for number, sample in enumerate(samples, first):
                used.append(number)
                assert sample_of.setdefault(number, sample) == sample, f"number {number} moved"
        wanted = numbers_of(key[0], merge, steps, batch)
        assert sorted(used) == wanted, f"update {key} used numbers {sorted(used)}, not {wanted}"
    for epoch in range(0, steps * batch, count):
        used = [sample_of[n] for n in range(epoch, min(epoch + count, steps * batch))]
        assert len(set(used)) == len(used) and set(used) <= set(range(count)), \
            "a sample was used twice in an epoch"
