"""The chart as `helm template` renders it, and what a test looks for in it."""
import subprocess

import yaml

CHART = "charts/fleetjob"


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def helm(*arguments):
    run = subprocess.run(["helm", *arguments], capture_output=True, text=True)
    return run.returncode, run.stdout, run.stderr


def render(*settings, release="fleetjob", namespace="fleetjob-system"):
    arguments = [part for setting in settings for part in ("--set", setting)]
    code, out, err = helm("template", release, CHART, "-n", namespace, "--kube-version", "1.34.4", *arguments)
    assert code == 0, err
    return [each for each in yaml.safe_load_all(out) if each]


def refused(*settings):
    arguments = [part for setting in settings for part in ("--set", setting)]
    code, _, err = helm("template", "fleetjob", CHART, "--kube-version", "1.34.4", *arguments)
    assert code != 0, f"{settings} was taken"
    return err


def the(objects, kind, name=None):
    found = [each for each in objects if each["kind"] == kind and name in (None, each["metadata"]["name"])]
    assert len(found) == 1, f"expected one {kind} {name or ''}, actual {[(each['kind'], each['metadata']['name']) for each in objects]}"
    return found[0]


def equal(expected, actual, what=""):
    assert expected == actual, f"{what}: expected {expected}\n  actual {actual}"


def container(objects):
    return the(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]


def options(objects):
    return dict((each.lstrip("-").split("=", 1) + [""])[:2] for each in container(objects)["args"])
