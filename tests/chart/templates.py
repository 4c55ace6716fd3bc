"""Goal: the chart renders what the programs expect, for every kind of values, and refuses the rest.
Method: `helm template`, and the rendered objects compared with the sources of the controller."""
import json
import re
import shutil
import subprocess
import sys
import tempfile
import yaml

from chart import CHART, read, helm, render, refused, the, equal, container, options

passed = failed = 0


# ---- the tests ---------------------------------------------------------------------------------------

def test_lint():
    code, out, err = helm("lint", "--strict", CHART)
    assert code == 0, out + err


def test_crd_is_the_committed_one_and_stays():
    crd = the(render(), "CustomResourceDefinition")
    equal("keep", crd["metadata"].pop("annotations")["helm.sh/resource-policy"])
    equal(yaml.safe_load(read("crds/fleetjobs.fleetjob.dev.yaml")), crd, "CRD")
    assert not [each for each in render("crd.install=false") if each["kind"] == "CustomResourceDefinition"]


def test_numbers_of_the_crd_stay_integers():
    code, out, _ = helm("template", "fleetjob", CHART, "--kube-version", "1.34.4")
    equal([], re.findall(r": [0-9.]+e\+?[0-9]+$", out, re.M), "numbers in floating point")


def test_pod_security_is_restricted():
    spec = the(render(), "Deployment")["spec"]["template"]["spec"]
    equal(True, spec["securityContext"]["runAsNonRoot"])
    equal("RuntimeDefault", spec["securityContext"]["seccompProfile"]["type"])
    for each in spec["containers"]:
        equal({"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}},
              each["securityContext"])
    assert not {"hostNetwork", "hostPID", "hostIPC", "volumes"} & set(spec), spec.keys()


def test_arguments_are_the_controllers():
    known = set(re.findall(r'\{"([a-z-]+)", (?:0|\'.\'), OPTION_', read("controller/command_line.c")))
    every = options(render("namespaces={a,b}", "log.verbose=true"))
    equal(set(), set(every) - known, "arguments the controller does not know")
    equal("a,b", every["watch-namespaces"])
    assert "watch-namespaces" not in options(render()), "all namespaces need no list"
    equal({"POD_IP", "POD_NAMESPACE"}, {each["name"] for each in container(render())["env"]})


def test_user_is_the_images():
    user = re.search(r"^user (\d+):(\d+)$", read("images/controller"), re.M)
    context = the(render(), "Deployment")["spec"]["template"]["spec"]["securityContext"]
    equal([int(user[1]), int(user[2])], [context["runAsUser"], context["runAsGroup"]])


def test_ports_agree():
    objects = render("hub.port=9001", "metrics.port=9002")
    equal("9001", options(objects)["hub-port"])
    equal("9002", options(objects)["probe-port"])
    equal([9001], [port["port"] for port in the(objects, "Service", "fleetjob-hub")["spec"]["ports"]])
    equal([9002], [port["port"] for port in the(objects, "Service", "fleetjob-metrics")["spec"]["ports"]])
    equal({"hub": 9001, "metrics": 9002}, {each["name"]: each["containerPort"] for each in container(objects)["ports"]})


def test_hub_service_is_the_leaders():
    hub = the(render(), "Service", "fleetjob-hub")
    assert "selector" not in hub["spec"], hub
    source = read("controller/fleetjob/job_service.c")
    name = re.search(r'"%s(-[a-z]+)", service\)', source)[1]
    assert f'"name", "{hub["spec"]["ports"][0]["name"]}")' in source, "port of the EndpointSlice"
    rules = the(render(), "Role", "fleetjob-controller")["rules"]
    slices = [rule for rule in rules if rule["resources"] == ["endpointslices"] and "patch" in rule["verbs"]]
    equal([["fleetjob-hub" + name]], [rule["resourceNames"] for rule in slices])


def test_names_in_rules_are_those_in_arguments():
    for release in ("fleetjob", "other"):
        objects = render(release=release)
        given = options(objects)
        named = {name for rule in [rule for each in objects if each["kind"] == "Role" for rule in each["rules"]]
                 for name in rule.get("resourceNames", [])}
        equal({given["lease"], given["identity-secret"], given["hub-service"], given["hub-service"] + "-leader"}, named)
        the(objects, "Lease", given["lease"])
        the(objects, "Service", given["hub-service"])


def test_every_verb_names_the_file_that_needs_it():
    for path in ("_helpers.tpl", "rbac-installation.yaml", "rbac-metrics.yaml"):
        # the comment stands behind the verb, or on the lines above it
        verbs = re.findall(r"^((?: +#.*\n)*) +- ([a-z]+)((?: #.*)?)$", read(f"{CHART}/templates/{path}"), re.M)
        assert verbs, path
        for above, verb, behind in verbs:
            files = re.findall(r"# ([a-z/_]+\.c)", above + behind)
            assert len(files) == 1, f"{path}: {verb} has no reason, or two: {above}{behind}"
            read(files[0])


def test_no_rule_is_wide():
    for each in render():
        for rule in each.get("rules", []):
            assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"], each
            if "secrets" in rule["resources"] and not rule.get("resourceNames"):
                assert not {"get", "list", "watch"} & set(rule["verbs"]), each


def test_all_namespaces_or_a_list():
    everywhere = the(render("rbac.aggregate=false"), "ClusterRole")["rules"]
    listed = render("rbac.aggregate=false", "namespaces={a,b}")
    equal([], [each["metadata"]["name"] for each in listed if each["kind"].startswith("ClusterRole")])
    for namespace in "ab":
        roles = [each for each in listed if each["kind"] == "Role" and each["metadata"]["namespace"] == namespace]
        equal([everywhere], [role["rules"] for role in roles], namespace)
        bound = [each for each in listed if each["kind"] == "RoleBinding" and each["metadata"]["namespace"] == namespace]
        equal([{"kind": "ServiceAccount", "name": "fleetjob-controller", "namespace": "fleetjob-system"}],
              bound[0]["subjects"])


def test_users_get_it_with_their_roles():
    labels = {name: the(render(), "ClusterRole", f"fleetjob-{name}")["metadata"]["labels"] for name in ("view", "edit")}
    equal("true", labels["view"]["rbac.authorization.k8s.io/aggregate-to-view"])
    equal("true", labels["edit"]["rbac.authorization.k8s.io/aggregate-to-edit"])


def test_images():
    objects = render()
    version = yaml.safe_load(read(f"{CHART}/Chart.yaml"))["appVersion"]
    equal(f"fleet.local/fleetjob-controller:{version}", container(objects)["image"])
    equal(f"fleet.local/fleetjob-runtime:{version}", options(objects)["runtime-image"])
    objects = render("image.registry=example.com/team", "image.tag=1.2", "image.runtime=other@sha256:12")
    equal("example.com/team/fleetjob-controller:1.2", container(objects)["image"])
    equal("other@sha256:12", options(objects)["runtime-image"])
    equal(None, options(objects).get("cuda-image"))
    objects = render("image.runtimeCuda=example.com/team/fleetjob-runtime-cuda:1.2")
    equal("example.com/team/fleetjob-runtime-cuda:1.2", options(objects)["cuda-image"])
    objects = render("image.pullSecrets={one,two}", "image.pullPolicy=Never")
    equal([{"name": "one"}, {"name": "two"}], the(objects, "Deployment")["spec"]["template"]["spec"]["imagePullSecrets"])
    equal(["Never", "Never"], [container(objects)["imagePullPolicy"], options(objects)["image-pull-policy"]])


def test_version_is_the_programs():
    version = re.search(r"^VERSION +:= (\S+)", read("Makefile"), re.M)[1]
    chart = yaml.safe_load(read(f"{CHART}/Chart.yaml"))
    equal([version, version], [chart["version"], chart["appVersion"]])


def test_two_replicas():
    objects = render("replicas=2")
    equal(2, the(objects, "Deployment")["spec"]["replicas"])
    budget = the(objects, "PodDisruptionBudget")["spec"]
    equal(1, budget["maxUnavailable"])
    labels = the(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert budget["selector"]["matchLabels"].items() <= labels.items()
    assert not [each for each in render() if each["kind"] == "PodDisruptionBudget"]


def test_selectors_find_the_pods():
    objects = render("podLabels.team=ours")
    labels = the(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    equal("ours", labels["team"])
    for selector in (the(objects, "Deployment")["spec"]["selector"]["matchLabels"],
                     the(objects, "Service", "fleetjob-metrics")["spec"]["selector"]):
        assert selector.items() <= labels.items(), selector


def test_extras():
    objects = render("metrics.serviceMonitor.enabled=true", "metrics.annotations.a=b", "priorityClassName=high",
                     "nodeSelector.pool=system", "tolerations[0].operator=Exists", "podAnnotations.x=y",
                     "serviceAccount.name=mine", "serviceAccount.annotations.role=arn", "affinity.nodeAffinity.a=b")
    spec = the(objects, "Deployment")["spec"]["template"]["spec"]
    the(objects, "ServiceMonitor")
    equal({"a": "b"}, the(objects, "Service", "fleetjob-metrics")["metadata"]["annotations"])
    equal(["high", {"pool": "system"}, [{"operator": "Exists"}], {"nodeAffinity": {"a": "b"}}, "mine"],
          [spec[key] for key in ("priorityClassName", "nodeSelector", "tolerations", "affinity", "serviceAccountName")])
    equal({"x": "y"}, the(objects, "Deployment")["spec"]["template"]["metadata"]["annotations"])
    the(objects, "ServiceAccount", "mine")


def test_names_fit_whatever_the_release():
    for release in ("fleetjob", "x", "a" * 53):
        for each in render(release=release):
            assert len(each["metadata"]["name"]) <= 63, each["metadata"]["name"]
    one, other = ({(each["kind"], each["metadata"]["name"]) for each in render("crd.install=false", release=release)}
                  for release in ("one", "other"))
    equal(set(), one & other, "names that two releases share")


def test_every_object_says_where_it_belongs():
    for each in render("replicas=2", "metrics.auth.enabled=true", "metrics.serviceMonitor.enabled=true", "metrics.prometheusRule.enabled=true", "networkPolicy.enabled=true"):
        if each["kind"] in ("ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"):
            continue
        equal("fleetjob-system", each["metadata"].get("namespace"), each["kind"])
        equal("fleetjob", each["metadata"]["labels"]["app.kubernetes.io/instance"], each["kind"])


def test_wrong_values_are_refused():
    for setting, word in (("replicas=3", "replicas"), ("replicas=0", "replicas"), ("replica=1", "replica"),
                          ("image.pullPolicy=Sometimes", "pullPolicy"), ("hub.port=80", "hub"), ("log.format=xml", "format"),
                          ("dataEncryption=maybe", "dataEncryption"),
                          ("namespaces={A}", "namespaces"), ("namespaces={a,a}", "namespaces"), ("image.registry=", "registry"),
                          ("metrics.annotations.a=true", "annotations"), ("image.registry=a/", "registry"),
                          ("hub.port=8080", "hub.port and metrics.port must differ"), ("image.runtime=a b", "runtime"),
                          ("image.runtimeCuda=a b", "runtimeCuda"),
                          ("serviceAccount.name=A_b", "serviceAccount/name"), ("priorityClassName=A", "priorityClassName"),
                          ("resources.limit.cpu=1", "'limit'"), ("resources.limits.cpu=true", "limits/cpu"),
                          ("extraArgs={--hub-port=1}", "extraArgs"), ("extraArgs={nonsense}", "extraArgs"), ("extraEnv[0].name=POD_IP", "extraEnv"),
                          ("metrics.serviceMonitor=true", "serviceMonitor"), ("serviceAccount.create=false", "serviceAccount.name"),
                          ("networkPolicy.hubFrom[0].podSelektor=x", "podSelektor"), ("podSecurityContext.runAsUsr=1", "runAsUsr"),
                          ("topologySpreadConstraints[0].maxSkew=1", "topologyKey"), ("fullnameOverride=A", "fullnameOverride"),
                          ("unreachableSeconds=-1", "unreachableSeconds"), ("metrics.serviceMonitor.interval=often", "interval"),
                          ("tolerations[0].kye=x", "'kye'"), ("affinity.nodeAfinity.a=b", "'nodeAfinity'"),
                          ("metrics.auth.port=80", "metrics/auth/port"), ("metrics.auth.readers[0].name=x", "namespace"),
                          ("metrics.auth.certificateSecret=A", "certificateSecret"), ("extraArgs={--metrics-auth}", "extraArgs"),
                          ("metrics.serviceMonitor.scheme=ftp", "scheme"), ("metrics.serviceMonitor.tlsConfig.serverNam=x", "serverNam"),
                          ("metrics.serviceMonitor.authorization.token=x", "'token'"), ("extraVolumes[0].name=x", "extraVolumes"),
                          ("extraVolumeMounts[0].name=x", "mountPath"), ("extraEnvFrom[0].secretReff=x", "secretReff"),
                          ("commonLabels.helm\\.sh/chart=x", "helm.sh/chart"), ("runtimeClassName=A", "runtimeClassName"),
                          ("deploymentAnnotations.a=1", "deploymentAnnotations"), ("extraObjects=x", "extraObjects"), ("metrics.auth.enabled=yes", "auth/enabled"),
                          ("networkPolicy.enabled=1", "networkPolicy/enabled"), ("networkPolicy.metricsFrom[0]=x", "metricsFrom"),
                          ("metrics.prometheusRule.extraRules=x", "extraRules"), ("podLabels.app\\.kubernetes\\.io/name=x", "app.kubernetes.io/name")):
        assert word in refused(setting), setting


def test_every_value_is_documented_and_in_the_schema():
    values, schema = yaml.safe_load(read(f"{CHART}/values.yaml")), json.loads(read(f"{CHART}/values.schema.json"))
    equal(set(values) | {"global"}, set(schema["properties"]))
    for key, value in values.items():
        inner = schema["properties"][key].get("properties")
        if inner:
            equal(set(value), set(inner), key)
            for part in value:
                equal(set(value[part]) if inner[part].get("properties") else set(), set(inner[part].get("properties", [])), f"{key}.{part}")
    text = read("docs/install.md")
    for key in values:
        assert f"`{key}" in text, f"docs/install.md does not mention {key}"


def test_a_lost_node_loses_the_controller_soon():
    def tolerations(*settings):
        return the(render(*settings), "Deployment")["spec"]["template"]["spec"]["tolerations"]
    expected = [{"key": f"node.kubernetes.io/{state}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}
                for state in ("not-ready", "unreachable")]
    equal(expected, tolerations())
    ours = {"key": "pool", "operator": "Exists"}
    equal([ours] + expected, tolerations("tolerations[0].key=pool", "tolerations[0].operator=Exists"))
    equal([5, 5], [each["tolerationSeconds"] for each in tolerations("unreachableSeconds=5")])
    own = tolerations("tolerations[0].key=node.kubernetes.io/unreachable", "tolerations[0].operator=Exists",
                      "tolerations[0].effect=NoExecute")
    equal(["node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"], [each["key"] for each in own])
    assert "tolerationSeconds" not in own[0]


def test_limits_that_cannot_work_are_refused():
    for settings, words in ((("resources.limits.memory=5",), ("resources.limits.memory is 5", "64Mi")),
                            (("resources.limits.memory=63Mi", "resources.requests.memory=1Mi"), ("63Mi", "64Mi")),
                            (("resources.limits.memory=100Mi", "resources.requests.memory=0.2Gi"), ("100Mi", "below resources.requests.memory", "0.2Gi")),
                            (("resources.limits.memory=100M", "resources.requests.memory=100Mi"), ("100M", "100Mi")),
                            (("resources.limits.cpu=1m", "resources.requests.cpu=1m"), ("resources.limits.cpu is 1m", "20m")),
                            (("resources.limits.cpu=0.04",), ("below resources.requests.cpu", "50m")),
                            (("resources.limits.memory=512MB",), ("memory",)), (("resources.limits.memory=-1",), ("memory",)),
                            (("resources.limits.nvidia=1",), ("nvidia",))):
        error = refused(*settings)
        for word in words:
            assert word in error, (settings, word, error)
    for settings in (("resources.limits.memory=64Mi",), ("resources.limits.memory=1073741824",), ("resources.limits.cpu=1",),
                     ("resources.limits.cpu=50m",), ("resources.limits.memory=1Gi", "resources.requests.memory=1024Mi"),
                     ("resources.limits=null",), ("resources.requests=null",)):
        render(*settings)


def test_metrics_need_a_token():
    objects = render("metrics.auth.enabled=true", "metrics.serviceMonitor.enabled=true")
    given = options(objects)
    equal(["", "8443", "fleetjob-metrics.fleetjob-system.svc"], [given[key] for key in ("metrics-auth", "metrics-port", "metrics-name")])
    assert "metrics-certificate" not in given
    equal({"hub": 7443, "metrics": 8443, "probes": 8080}, {each["name"]: each["containerPort"] for each in container(objects)["ports"]})
    equal({"probes"}, {container(objects)[f"{kind}Probe"]["httpGet"]["port"] for kind in ("startup", "liveness", "readiness")})
    equal([{"name": "metrics", "port": 8443, "targetPort": "metrics", "protocol": "TCP"}],
          the(objects, "Service", "fleetjob-metrics")["spec"]["ports"])
    endpoint = the(objects, "ServiceMonitor")["spec"]["endpoints"][0]
    equal("https", endpoint["scheme"])
    equal("/var/run/secrets/kubernetes.io/serviceaccount/token", endpoint["bearerTokenFile"])
    equal({"serverName": given["metrics-name"], "ca": {"secret": {"name": given["identity-secret"], "key": "ca.crt"}}}, endpoint["tlsConfig"])
    assert '"ca.crt"' in read("controller/fleetjob/install_identity.c")


def test_metrics_without_a_token_are_plain():
    objects = render("metrics.serviceMonitor.enabled=true")
    assert not [key for key in options(objects) if key.startswith("metrics-")]
    equal({"hub": 7443, "metrics": 8080}, {each["name"]: each["containerPort"] for each in container(objects)["ports"]})
    equal({"metrics"}, {container(objects)[f"{kind}Probe"]["httpGet"]["port"] for kind in ("startup", "liveness", "readiness")})
    endpoint = the(objects, "ServiceMonitor")["spec"]["endpoints"][0]
    equal("http", endpoint["scheme"])
    assert not {"bearerTokenFile", "tlsConfig", "authorization", "bearerTokenSecret"} & set(endpoint), endpoint
    equal([], [each for each in objects if each["metadata"]["name"].endswith(("-metrics-auth", "-metrics-reader"))])


def test_rights_to_review_tokens_come_with_it_alone():
    for settings in ((), ("namespaces={a}",)):
        objects = render("metrics.auth.enabled=true", *settings)
        rules = the(objects, "ClusterRole", "fleetjob-metrics-auth")["rules"]
        equal([(["authentication.k8s.io"], ["tokenreviews"], ["create"]), (["authorization.k8s.io"], ["subjectaccessreviews"], ["create"])],
              [(rule["apiGroups"], rule["resources"], rule["verbs"]) for rule in rules])
        binding = the(objects, "ClusterRoleBinding", "fleetjob-metrics-auth")
        equal([{"kind": "ServiceAccount", "name": "fleetjob-controller", "namespace": "fleetjob-system"}], binding["subjects"])
        equal("fleetjob-metrics-auth", binding["roleRef"]["name"])
        assert not [each for each in render(*settings) if "reviews" in json.dumps(each)]
    objects = render("metrics.auth.enabled=true", "metrics.auth.readers[0].name=p", "metrics.auth.readers[0].namespace=monitoring")
    equal([{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}], the(objects, "ClusterRole", "fleetjob-metrics-reader")["rules"])
    equal([{"kind": "ServiceAccount", "name": "p", "namespace": "monitoring"}],
          the(objects, "ClusterRoleBinding", "fleetjob-metrics-reader")["subjects"])
    source = read("controller/metrics_server.c")
    assert '#define PATH     "/metrics"' in source and '.verb = "get"' in source


def test_metrics_certificate_from_a_secret():
    settings = ["metrics.auth.enabled=true", "metrics.auth.certificateSecret=mine", "metrics.serviceMonitor.enabled=true"]
    objects = render(*settings, "extraVolumes[0].name=x", "extraVolumes[0].emptyDir.medium=Memory",
                     "extraVolumeMounts[0].name=x", "extraVolumeMounts[0].mountPath=/x")
    spec = the(objects, "Deployment")["spec"]["template"]["spec"]
    equal([("metrics-certificate", {"secretName": "mine", "optional": True}), ("x", None)],
          [(each["name"], each.get("secret")) for each in spec["volumes"]])
    mounts = {each["name"]: each["mountPath"] for each in container(objects)["volumeMounts"]}
    equal(mounts["metrics-certificate"], options(objects)["metrics-certificate"])
    assert "metrics-name" not in options(objects)
    equal("mine", the(objects, "ServiceMonitor")["spec"]["endpoints"][0]["tlsConfig"]["ca"]["secret"]["name"])
    for more, key, value in (("metrics.serviceMonitor.authorization.credentials.name=t", "authorization", {"credentials": {"name": "t"}}),
                             ("metrics.serviceMonitor.bearerTokenSecret.name=t", "bearerTokenSecret", {"name": "t"}),
                             ("metrics.serviceMonitor.tlsConfig.insecureSkipVerify=true", "tlsConfig", {"insecureSkipVerify": True})):
        endpoint = the(render(*settings, more), "ServiceMonitor")["spec"]["endpoints"][0]
        equal(value, endpoint[key])
        equal(key == "tlsConfig", "bearerTokenFile" in endpoint, more)


def test_settings_that_do_not_fit_are_refused():
    for settings, words in ((("metrics.auth.enabled=true", "metrics.auth.port=8080"), ("metrics.auth.port and metrics.port must differ: both are 8080",)),
                            (("metrics.auth.enabled=true", "hub.port=8443"), ("hub.port and metrics.auth.port must differ",)),
                            (("metrics.auth.enabled=true", "metrics.serviceMonitor.enabled=true", "metrics.serviceMonitor.scheme=http"),
                             ("scheme is http", "https"))):
        error = refused(*settings)
        for word in words:
            assert word in error, (settings, word, error)
    render("hub.port=8443")  # metrics.auth.port is not used


def test_extra_objects_and_labels():
    objects = render("commonLabels.team=ours", "podLabels.team=theirs", "podLabels.a=b", "deploymentAnnotations.x=y", "metrics.labels.l=m",
                     "serviceAccount.labels.s=t", "extraEnvFrom[0].secretRef.name=env", "runtimeClassName=gvisor", "metrics.auth.enabled=true",
                     "extraObjects[0].apiVersion=v1", "extraObjects[0].kind=ConfigMap", "extraObjects[0].metadata.name=a",
                     "replicas=2", "networkPolicy.enabled=true", "extraObjects[1]=kind: Secret\nmetadata: {name: '{{ .Release.Name }}-b'}")
    for each in objects:
        if each["kind"] not in ("CustomResourceDefinition", "ConfigMap", "Secret"):
            equal("ours", each["metadata"]["labels"].get("team"), each["kind"])
    deployment = the(objects, "Deployment")
    equal({"x": "y"}, deployment["metadata"]["annotations"])
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    equal(["theirs", "b"], [labels["team"], labels["a"]])
    assert "team" not in deployment["spec"]["selector"]["matchLabels"], "a selector cannot change"
    equal("m", the(objects, "Service", "fleetjob-metrics")["metadata"]["labels"]["l"])
    equal("t", the(objects, "ServiceAccount")["metadata"]["labels"]["s"])
    equal([{"secretRef": {"name": "env"}}], container(objects)["envFrom"])
    equal("gvisor", deployment["spec"]["template"]["spec"]["runtimeClassName"])
    the(objects, "ConfigMap", "a")
    the(objects, "Secret", "fleetjob-b")


def test_names_can_be_chosen():
    names = {each["metadata"]["name"] for each in render("crd.install=false", "fullnameOverride=trainer")}
    assert all(name.startswith("trainer") for name in names), names
    names = {each["metadata"]["name"] for each in render("crd.install=false", "nameOverride=trainer", release="prod")}
    assert all(name.startswith("prod-trainer") for name in names), names
    equal("other-trainer-hub", options(render("nameOverride=trainer", release="other"))["hub-service"])


def test_what_well_known_charts_have():
    objects = render("replicas=2", "extraArgs={--verbose}", "extraEnv[0].name=A", "extraEnv[0].value=b", "imagePullSecrets[0].name=one",
                     "image.pullSecrets={two}", "revisionHistoryLimit=7", "podDisruptionBudget.enabled=false",
                     "podSecurityContext.runAsUser=1000", "securityContext.readOnlyRootFilesystem=false", "serviceAccount.create=false",
                     "serviceAccount.name=mine", "topologySpreadConstraints[0].maxSkew=1", "topologySpreadConstraints[0].topologyKey=zone",
                     "topologySpreadConstraints[0].whenUnsatisfiable=ScheduleAnyway", "metrics.perJob=true")
    deployment = the(objects, "Deployment")
    spec = deployment["spec"]["template"]["spec"]
    equal(7, deployment["spec"]["revisionHistoryLimit"])
    equal([{"name": "two"}, {"name": "one"}], spec["imagePullSecrets"])
    assert {"--verbose", "--job-metrics"} <= set(container(objects)["args"])
    assert {"name": "A", "value": "b"} in container(objects)["env"]
    equal([1000, 65532], [spec["securityContext"][key] for key in ("runAsUser", "runAsGroup")])
    equal(False, container(objects)["securityContext"]["readOnlyRootFilesystem"])
    equal([], [each["kind"] for each in objects if each["kind"] in ("PodDisruptionBudget", "ServiceAccount")])
    equal("mine", spec["serviceAccountName"])
    equal(deployment["spec"]["selector"]["matchLabels"], spec["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"])


def test_network_policy_lets_workers_in():
    policy = the(render("networkPolicy.enabled=true"), "NetworkPolicy")["spec"]
    hub, metrics = policy["ingress"]
    label = re.search(r'WELLKNOWN_LABEL_JOB +WELLKNOWN_GROUP "(.+)"', read("libfleet/api/wellknown.h"))
    equal("fleetjob.dev" + label[1], hub["from"][0]["podSelector"]["matchExpressions"][0]["key"])
    equal([{}, "hub", "metrics"], [hub["from"][0]["namespaceSelector"], hub["ports"][0]["port"], metrics["ports"][0]["port"]])
    assert "from" not in metrics
    hub, metrics = the(render("networkPolicy.enabled=true", "namespaces={a,b}", "networkPolicy.hubFrom[0].ipBlock.cidr=10.0.0.0/8",
                              "networkPolicy.metricsFrom[0].podSelector.matchLabels.app=prometheus"), "NetworkPolicy")["spec"]["ingress"]
    equal(["a", "b"], hub["from"][0]["namespaceSelector"]["matchExpressions"][0]["values"])
    equal({"ipBlock": {"cidr": "10.0.0.0/8"}}, hub["from"][1])
    equal([{"podSelector": {"matchLabels": {"app": "prometheus"}}}], metrics["from"])
    assert not [each for each in render() if each["kind"] == "NetworkPolicy"]
    for settings in ((), ("metrics.auth.enabled=true",)):  # ports by the names that the container gives them
        objects = render("networkPolicy.enabled=true", *settings)
        named = {each["name"]: each["containerPort"] for each in container(objects)["ports"]}
        policy = the(objects, "NetworkPolicy")["spec"]
        equal([["hub"], ["metrics"]], [[port["port"] for port in rule["ports"]] for rule in policy["ingress"]])
        equal(int(options(objects).get("metrics-port", named["metrics"])), named["metrics"])
        assert policy["podSelector"]["matchLabels"].items() <= the(objects, "Deployment")["spec"]["template"]["metadata"]["labels"].items()
        equal(["Ingress"], policy["policyTypes"])  # what the controller dials is free


def test_alerts_use_metrics_that_exist():
    rules = the(render("metrics.prometheusRule.enabled=true", "metrics.prometheusRule.labels.release=prometheus"), "PrometheusRule")
    equal("prometheus", rules["metadata"]["labels"]["release"])
    more = the(render("metrics.prometheusRule.enabled=true", "metrics.prometheusRule.extraRules[0].alert=Mine"), "PrometheusRule")
    equal("Mine", more["spec"]["groups"][0]["rules"][-1]["alert"])
    page = read("docs/metrics.md")
    for rule in rules["spec"]["groups"][0]["rules"]:
        assert f"`{rule['alert']}`" in page, rule["alert"]
        for metric in re.findall(r"fleetjob_[a-z_]+", rule["expr"]):
            assert f"`{re.sub('_bucket$', '', metric)}`" in page, metric
    if shutil.which("promtool"):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump(rules["spec"], file)
            file.flush()
            run = subprocess.run(["promtool", "check", "rules", file.name], capture_output=True, text=True)
        assert run.returncode == 0, run.stdout + run.stderr


def test_service_monitor():
    monitor = the(render("metrics.serviceMonitor.enabled=true", "metrics.serviceMonitor.labels.release=prometheus",
                         "metrics.serviceMonitor.interval=15s"), "ServiceMonitor")
    equal("prometheus", monitor["metadata"]["labels"]["release"])
    equal("15s", monitor["spec"]["endpoints"][0]["interval"])
    endpoint = the(render("metrics.serviceMonitor.enabled=true", "metrics.serviceMonitor.scrapeTimeout=5s",
                          "metrics.serviceMonitor.relabelings[0].action=drop", "metrics.serviceMonitor.metricRelabelings[0].action=keep"),
                   "ServiceMonitor")["spec"]["endpoints"][0]
    equal(["5s", [{"action": "drop"}], [{"action": "keep"}]], [endpoint[key] for key in ("scrapeTimeout", "relabelings", "metricRelabelings")])


def test_notes():
    with tempfile.TemporaryDirectory() as folder:  # `helm template` leaves notes out, so as an object
        chart = shutil.copytree(CHART, f"{folder}/chart")
        with open(f"{chart}/templates/notes.yaml", "w", encoding="utf-8") as file:
            file.write('notes: |\n{{ include (print $.Template.BasePath "/NOTES.txt") . | indent 2 }}')
        code, out, err = helm("template", "fleetjob", chart, "-n", "x", "--kube-version", "1.34.4", "-s", "templates/notes.yaml")
    assert code == 0, err
    notes = yaml.safe_load(out)["notes"]
    for part in ("kubectl get fj -w", "-n x rollout status deployment/fleetjob-controller", "all namespaces"):
        assert part in notes, notes


for name, test in list(globals().items()):
    if not name.startswith("test_"):
        continue
    try:
        test()
        passed += 1
    except Exception as error:  # of any kind: the next test runs
        failed += 1
        print(f"  FAIL  {name}\n    | {type(error).__name__}: {error}")
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
