"""Renders deploy/helm/memwatch with Helm's own engine, and validates it and the plain manifests against Kubernetes' schemas.

    check_chart.py DEPLOY OUT

DEPLOY is the folder deploy/ of the tree; the packaged chart is written to OUT.
"""

import copy
import sys
from pathlib import Path

import helm_python as helm
import kubernetes_validate.utils
import yaml

# appArmorProfile exists since 1.30.
OLDEST = (1, 30)
# Labels that only Helm's objects have.
OWN_LABELS = ["app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart"]


def versions():
    found = [tuple(int(part) for part in version.split(".")[:2]) for version in kubernetes_validate.utils.all_versions()]
    return [".".join(map(str, version)) for version in sorted(set(found)) if version >= OLDEST]


def documents(text):
    return [document for document in yaml.safe_load_all(text) if document]


def judge(objects, version):
    """Validates every object against the schema of this Kubernetes version, except kinds of the Prometheus operator."""
    for one in objects:
        if one["apiVersion"] != "monitoring.coreos.com/v1":
            kubernetes_validate.validate(one, version, strict=True)


def rendered(chart, values, release="memwatch"):
    made = chart.render(values, name=release, namespace="memwatch")
    return [one for name, text in sorted(made.items()) if name.endswith(".yaml") for one in documents(text)]


def without_own(node):
    """Returns the object without the labels that only Helm's objects have."""
    if isinstance(node, dict):
        return {key: without_own(value) for key, value in node.items() if key not in OWN_LABELS}
    return [without_own(item) for item in node] if isinstance(node, list) else node


def of_kind(objects, kind):
    return next(one for one in objects if one["kind"] == kind)


def container(objects):
    return of_kind(objects, "DaemonSet")["spec"]["template"]["spec"]["containers"][0]


def check_lint(folder):
    report = helm.lint(folder, strict=True)
    # Severity 1 is advice, such as to add an icon.
    assert report["total_charts_linted"] == 1 and not report["errors"], report
    assert all(message["severity"] == 1 for message in report["messages"]), report
    print("helm lint: nothing wrong")


def check_equal(chart, deploy):
    """Checks that the chart with default values equals deploy/kubernetes."""
    plain = documents((deploy / "kubernetes/daemonset.yaml").read_text())
    plain += documents((deploy / "kubernetes/podmonitor.yaml").read_text())
    ours = rendered(chart, {"podMonitor": {"enabled": True}})
    for kind in ["DaemonSet", "NetworkPolicy", "PodMonitor"]:
        want, got = copy.deepcopy(of_kind(plain, kind)), without_own(of_kind(ours, kind))
        # The plain manifests rely on the default pull policy for tags other than `latest`, and have a label only on the DaemonSet.
        if kind == "DaemonSet":
            want["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"] = "IfNotPresent"
        want["metadata"].setdefault("labels", {"app.kubernetes.io/name": "memwatch"})
        assert got == want, f"{kind} of the chart is not the plain one:\n{yaml.dump(got)}\nand\n{yaml.dump(want)}"
    print("without values the chart is what deploy/kubernetes has")


def check_values(chart):
    """Checks the effect of values, and that no others are required."""
    bare = rendered(chart, {
        "history": {"enabled": False}, "keep": False, "runtimeClassName": "", "networkPolicy": {"enabled": False},
        "imagePullSecrets": [{"name": "registry"}], "affinity": {"nodeAffinity": {}}, "priorityClassName": "",
    })
    assert [one["kind"] for one in bare] == ["DaemonSet"]
    assert container(bare)["args"] == ["agent"]
    pod = of_kind(bare, "DaemonSet")["spec"]["template"]["spec"]
    assert "runtimeClassName" not in pod and "history" not in [volume["name"] for volume in pod["volumes"]]
    other = rendered(chart, {
        "image": {"repository": "registry.example/memwatch", "tag": "0.2.0"}, "port": 9999, "extraArgs": ["--process-metrics", "20"],
        "history": {"size": "1G"}, "runtimeDirectory": "/run/crio", "seLinuxOptions": {"type": "spc_t"},
        "extraEnv": [{"name": "TZ", "value": "UTC"}], "podLabels": {"team": "ml"},
    }, release="gpu")
    ours = container(other)
    assert ours["image"] == "registry.example/memwatch:0.2.0"
    assert ours["args"][-4:] == ["--history-size", "1G", "--process-metrics", "20"]
    assert ours["ports"][0]["containerPort"] == 9999 and {"name": "MEMWATCH_LISTEN", "value": "0.0.0.0:9999"} in ours["env"]
    assert ours["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}
    assert {"name": "runtime", "mountPath": "/run/crio", "readOnly": True} in ours["volumeMounts"]
    daemonset = of_kind(other, "DaemonSet")
    assert daemonset["metadata"]["name"] == "gpu-memwatch"
    labels = daemonset["spec"]["template"]["metadata"]["labels"]
    assert labels["team"] == "ml" and daemonset["spec"]["selector"]["matchLabels"].items() <= labels.items()
    return bare, other


def check_tls(chart):
    """Checks that with a certificate's secret everything is served, probed and scraped through TLS."""
    encrypted = rendered(chart, {
        "tls": {"secretName": "memwatch-tls"}, "podMonitor": {"enabled": True, "tlsConfig": {"serverName": "memwatch"}},
        "networkPolicy": {"egress": [{"ports": [{"protocol": "TCP", "port": 4318}]}]},
    })
    ours = container(encrypted)
    environment = {one["name"]: one["value"] for one in ours["env"]}
    assert environment["MEMWATCH_TLS_CERT"] == "/etc/memwatch/tls/tls.crt" and environment["MEMWATCH_TLS_KEY"] == "/etc/memwatch/tls/tls.key"
    assert "MEMWATCH_INSECURE" not in environment
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"]:
        assert ours[probe]["httpGet"]["scheme"] == "HTTPS", ours[probe]
    assert {"name": "tls", "mountPath": "/etc/memwatch/tls", "readOnly": True} in ours["volumeMounts"]
    pod = of_kind(encrypted, "DaemonSet")["spec"]["template"]["spec"]
    assert {"name": "tls", "secret": {"secretName": "memwatch-tls"}} in pod["volumes"]
    [endpoint] = of_kind(encrypted, "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert endpoint["scheme"] == "https" and endpoint["tlsConfig"] == {"serverName": "memwatch"}
    assert of_kind(encrypted, "NetworkPolicy")["spec"]["egress"] == [{"ports": [{"protocol": "TCP", "port": 4318}]}]
    return encrypted


def check_refusals(chart):
    for values, name in [({"imgae": {}}, "imgae"), ({"port": "many"}, "port"), ({"history": {"directory": "here"}}, "directory")]:
        try:
            chart.render(values, name="memwatch", namespace="memwatch")
        except helm.HelmError as error:
            assert name in str(error), error
        else:
            raise AssertionError(f"{values} was taken")
    print("values that do not exist, or are of another kind, are refused by name")


def check_judge(objects, version):
    """Checks the validation itself: a field that does not exist is reported."""
    wrong = copy.deepcopy(of_kind(objects, "DaemonSet"))
    wrong["spec"]["template"]["spec"]["hostPid"] = True
    try:
        kubernetes_validate.validate(wrong, version, strict=True)
    except kubernetes_validate.ValidationError:
        return
    raise AssertionError("the schemas take any field")


def main():
    deploy, out = Path(sys.argv[1]), Path(sys.argv[2])
    folder = deploy / "helm/memwatch"
    check_lint(folder)
    with helm.Chart.load(folder) as chart:
        check_equal(chart, deploy)
        check_refusals(chart)
        renderings = [rendered(chart, None), *check_values(chart), check_tls(chart)]
    plain = documents((deploy / "kubernetes/daemonset.yaml").read_text())
    for version in versions():
        for objects in [plain, *renderings]:
            judge(objects, version)
        check_judge(plain, version)
    print(f"the plain manifests and {len(renderings)} renderings fit the schemas of Kubernetes {', '.join(versions())}")
    print(helm.package(folder, destination=out))


if __name__ == "__main__":
    main()
