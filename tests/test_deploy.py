"""The files in deploy/: what they run are commands of ours with options that there are, and names and ports fit."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from stretto.api.server import Listen
from stretto.cli.main import app
from stretto.cli.roles import role_options
from stretto.cli.serve_config import read_serve_config

DEPLOY = Path(__file__).parent.parent / "deploy"
FILES = sorted(path.relative_to(DEPLOY).as_posix() for path in DEPLOY.rglob("*.yaml"))
COMMANDS: Any = typer.main.get_command(app)
DEFAULTS = Listen()
PORTS = {
    "http": DEFAULTS.http_port,
    "grpc": DEFAULTS.grpc_port,
    "management": DEFAULTS.management_port,
    "cluster": 9300,
}
SECRET = "stretto"


def documents(file: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / file).read_text()))


def pods(document: Any) -> Iterator[dict[str, Any]]:
    """Every description of a pod, wherever in the document it is."""
    if isinstance(document, dict):
        if "containers" in document:
            yield document
        for value in document.values():
            yield from pods(value)
    elif isinstance(document, list):
        for value in document:
            yield from pods(value)


def arguments(container: dict[str, Any]) -> list[str] | None:
    """Of `stretto`; None where the container runs something else."""
    if container.get("command") == ["/bin/sh", "-c"]:
        (script,) = container["args"]
        words = shlex.split(script)
        return words[words.index("stretto") + 1 :]
    assert "command" not in container
    return container.get("args")


def served(file: str) -> Iterator[tuple[dict[str, Any], dict[str, Any], list[str]]]:
    """(pod, container, arguments)"""
    for document in documents(file):
        for pod in pods(document):
            for container in pod["containers"]:
                given = arguments(container)
                if given is not None:
                    yield pod, container, given


def parsed(given: list[str]) -> dict[str, Any]:
    """The values of the options of a command. Raises where there is no such command or option, or a value is wrong."""
    name, *rest = given
    command = COMMANDS.commands[name]
    values = dict(command.make_context(name, rest).params)
    return {"command": name} | values


def test_something_is_looked_at() -> None:
    assert FILES == ["kuberay/stretto.yaml", "kubernetes/keda.yaml", "kubernetes/stretto.yaml"]
    commands = sorted(given[0] for file in FILES for _, _, given in served(file))
    assert commands == ["front-end", "scheduler", "serve", "worker"]


@pytest.mark.parametrize("file", FILES)
def test_names_are_given_once(file: str) -> None:
    names = [(document["kind"], document["metadata"]["name"]) for document in documents(file)]
    assert len(set(names)) == len(names)
    for document in documents(file):
        assert document["apiVersion"] and document["kind"]


@pytest.mark.parametrize("file", FILES)
def test_every_command_and_option_is_there(file: str) -> None:
    for _, _, given in served(file):
        parsed(given)


def test_the_scheduler_has_the_places_that_its_manifest_names(tmp_path: Path) -> None:
    given = next(each for _, _, each in served("kubernetes/stretto.yaml") if each[0] == "scheduler")
    (tmp_path / "management-token").write_text("a-token-of-some-length\n")
    words = [word.replace("/secrets/", f"{tmp_path}/") for word in given[1:]]
    context = COMMANDS.commands["scheduler"].make_context("scheduler", words)
    (spec,) = role_options(context, configured(tmp_path)).service.fleet()
    assert f"--worker={spec.device}*{spec.workers}" in given


@pytest.mark.parametrize("file", FILES)
def test_selectors_and_services_find_pods(file: str) -> None:
    labels = [
        document["spec"]["template"]["metadata"]["labels"]
        for document in documents(file)
        if document["kind"] == "Deployment"
    ]
    for document in documents(file):
        spec = document.get("spec", {})
        if document["kind"] == "Deployment":
            assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
        elif document["kind"] == "Service":
            assert spec["selector"] in labels
        elif document["kind"] == "PodDisruptionBudget":
            assert spec["selector"]["matchLabels"] in labels


@pytest.mark.parametrize("file", FILES)
def test_ports_are_those_that_are_listened_on(file: str) -> None:
    for pod, container, given in served(file):
        values = parsed(given)
        named = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
        for name, number in named.items():
            assert number == PORTS[name], f"{container['name']}: {name}"
            if name != "cluster":
                assert values[f"{name}_port"] == number
                host = values["management_host" if name == "management" else "host"]
                assert host == "0.0.0.0", f"{container['name']}: {name} could not be reached"
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            if probe in container:
                call = container[probe]["httpGet"]
                assert call["port"] in named
                assert call["path"] == ("/v2/health/ready" if probe == "readinessProbe" else "/v2/health/live")
        if "drain_s" in values and values["command"] != "scheduler":
            assert values["drain_grace"] + values["drain_s"] < pod["terminationGracePeriodSeconds"]
    pods_ports = {name for _, container, _ in served(file) for name in (p["name"] for p in container.get("ports", ()))}
    for document in documents(file):
        if document["kind"] == "Service":
            for port in document["spec"]["ports"]:
                assert port["targetPort"] in pods_ports
                assert port["port"] == PORTS[port["targetPort"]]


@pytest.mark.parametrize("file", FILES)
def test_secrets_are_mounted_where_they_are_named(file: str) -> None:
    for pod, container, given in served(file):
        paths = [word.partition("=")[2] if "=" in word else word for word in given]
        secrets = [path for path in paths if path.startswith("/secrets/")]
        assert secrets
        assert any(mount["mountPath"] == "/secrets" for mount in container["volumeMounts"])
        assert [volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume] == [SECRET]
        assert {path.removeprefix("/secrets/") for path in secrets} <= {"key", "token", "management-token"}


def test_roles_meet_at_the_service_of_the_scheduler() -> None:
    file = "kubernetes/stretto.yaml"
    services = {each["metadata"]["name"]: each["spec"] for each in documents(file) if each["kind"] == "Service"}
    by_command = {given[0]: parsed(given) for _, _, given in served(file)}
    host, _, port = by_command["worker"]["scheduler"].removeprefix("tcp://").partition(":")
    assert by_command["front-end"]["scheduler"] == by_command["worker"]["scheduler"]
    assert {"name": "cluster", "port": int(port), "targetPort": "cluster"} in services[host]["ports"]
    assert by_command["scheduler"]["bind"].endswith(f":{port}")
    assert by_command["scheduler"]["repository"] == by_command["front-end"]["repository"]


def test_keda_reads_a_metric_of_ours_and_scales_the_workers(tmp_path: Path) -> None:
    authentication, scaled = documents("kubernetes/keda.yaml")
    deployments = [each for each in documents("kubernetes/stretto.yaml") if each["kind"] == "Deployment"]
    target = scaled["spec"]["scaleTargetRef"]["name"]
    assert target in [each["metadata"]["name"] for each in deployments]
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]
    assert authentication["spec"]["secretTargetRef"][0]["name"] == SECRET
    assert trigger["metadata"]["url"] == f"http://stretto-scheduler:{PORTS['management']}/metrics"
    source = (DEPLOY.parent / "stretto" / "api" / "metrics.py").read_text()
    assert f'"{trigger["metadata"]["valueLocation"]}"' in source
    bounds = read_serve_config(configured(tmp_path)).values
    assert bounds["autoscale"] == [f"{scaled['spec']['minReplicaCount']}:{scaled['spec']['maxReplicaCount']}"]
    assert bounds["autoscale_actuator"] == "advice"


def configured(folder: Path) -> Path:
    """The scheduler's configuration file, where its option looks for it."""
    pod, container, given = next(each for each in served("kubernetes/stretto.yaml") if each[2][0] == "scheduler")
    maps = {
        each["metadata"]["name"]: each for each in documents("kubernetes/stretto.yaml") if each["kind"] == "ConfigMap"
    }
    path = parsed(given)["config"]
    mount = next(each for each in container["volumeMounts"] if each["mountPath"] == str(path.parent))
    volume = next(each for each in pod["volumes"] if each["name"] == mount["name"])
    file = folder / path.name
    file.write_text(maps[volume["configMap"]["name"]]["data"][path.name])
    return file


def test_the_images_install_what_the_roles_need() -> None:
    for file, extra in (("Dockerfile", "cluster"), ("kuberay/Dockerfile", "ray")):
        text = (DEPLOY / file).read_text()
        assert f"[{extra}]" in text
        for line in text.splitlines():
            words = line.split()
            if words[:1] == ["COPY"]:
                for name in [word for word in words[1:-1] if not word.startswith("--")]:
                    assert (DEPLOY.parent / name).exists(), name
    version = f"{documents('kuberay/stretto.yaml')[0]['spec']['rayVersion']}-"
    assert f"FROM rayproject/ray:{version}" in (DEPLOY / "kuberay" / "Dockerfile").read_text()
