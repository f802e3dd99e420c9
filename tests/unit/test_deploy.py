"""The files of `deploy`: they parse, and what they name is what the server has."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import softdex as sdx
from serving import Client
from softdex.cli.app import load
from softdex.serve.app import Settings
from softdex.serve.endpoints import ENDPOINTS
from softdex.serve.http import MAX_HEADERS
from softdex.serve.metrics import Metrics

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
FILES = sorted(path.name for path in DEPLOY.iterdir())
UNIT, NGINX, IMAGE, GRAFANA, PROMETHEUS, ALERTS = (
    (DEPLOY / name).read_text()
    for name in ("softdex@.service", "nginx.conf", "Containerfile", "grafana.json",
                 "prometheus.yml", "alerts.yml")
)  # fmt: skip
OBJECTS = {
    each["kind"]: each for each in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
}
KSERVE = yaml.safe_load((DEPLOY / "kserve.yaml").read_text())
PODS = {
    "kubernetes": OBJECTS["Deployment"]["spec"]["template"]["spec"],
    "kserve": KSERVE["spec"]["predictor"],
}
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
STARTED = ("systemd", "image", "kubernetes", "kserve")
SETTINGS = Settings()


def service() -> configparser.SectionProxy:
    found = configparser.RawConfigParser(strict=False)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read_string(UNIT.replace("\\\n", " "))
    return found["Service"]


def instruction(name: str) -> list[str]:
    """Return the words of the last such line of the Containerfile."""
    lines = re.findall(rf"^ *{name} (\[.*\])$", IMAGE.replace("\\\n", ""), re.MULTILINE)
    return list(json.loads(lines[-1]))


def command(name: str) -> list[str]:
    """Return what a file starts, without `softdex`."""
    if name == "systemd":
        return shlex.split(service()["ExecStart"].replace("%i", "8000"))[1:]
    return list(instruction("CMD") if name == "image" else PODS[name]["containers"][0]["args"])


def parsed(words: list[str]) -> dict[str, Any]:
    """Return the options of a command line of `softdex serve`, without running it."""
    assert words[0] == "serve"
    return dict(load("serve").make_context("serve", words[1:]).params)


def directive(name: str, within: str = NGINX) -> str:
    """Return the value of the first such directive of nginx."""
    found = re.search(rf"^\s*{name}\s+([^;]+);", within, re.MULTILINE)
    assert found, name
    return found[1]


# commands, ports, files --------------------------------------------------------------------------


@pytest.mark.parametrize("name", STARTED)
def test_the_command_is_one_of_softdex(name: str) -> None:
    options = parsed(command(name))
    assert len(options["models"]) == 1
    assert options["tokens"] is not None
    assert options["host"] == ("127.0.0.1" if name == "systemd" else "0.0.0.0")


@pytest.mark.parametrize("name", PODS)
def test_a_pod_listens_and_reads_where_it_is_probed_and_mounted(name: str) -> None:
    container = PODS[name]["containers"][0]
    options, (port,) = parsed(container["args"]), container["ports"]
    assert port["containerPort"] == options["port"]
    probed = {container[kind]["httpGet"]["port"] for kind in PROBES}
    assert probed <= {options["port"], port.get("name")}
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert set(mounts.values()) == {volume["name"] for volume in PODS[name]["volumes"]}
    assert str(Path(options["tokens"]).parent) in mounts
    model = str(Path(options["models"][0]).parent)
    assert model == "/mnt/models" if name == "kserve" else model in mounts


def test_the_parts_of_kubernetes_choose_the_pods_of_the_deployment() -> None:
    spec = OBJECTS["Deployment"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels
    assert OBJECTS["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert OBJECTS["Service"]["spec"]["selector"] == labels
    port = OBJECTS["Service"]["spec"]["ports"][0]["targetPort"]
    assert port in [each["name"] for each in PODS["kubernetes"]["containers"][0]["ports"]]
    target = OBJECTS["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", "softdex")
    assert OBJECTS["Deployment"]["metadata"]["name"] == "softdex"
    assert "replicas" not in spec  # or each `apply` undoes the autoscaler


@pytest.mark.parametrize("name", PODS)
def test_pods_run_as_the_user_of_the_image_and_may_write_where_it_does(name: str) -> None:
    assert PODS[name]["securityContext"]["runAsNonRoot"] is True
    user = PODS[name]["securityContext"]["runAsUser"]
    assert f"--uid {user} " in IMAGE
    assert f"USER {user}\n" in IMAGE
    container = PODS[name]["containers"][0]
    if container["securityContext"].get("readOnlyRootFilesystem"):
        mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
        cache = re.findall(r"NUMBA_CACHE_DIR=(\S+)", IMAGE)
        assert mounts >= {*cache, "/tmp"}


def test_the_image_copies_files_that_exist_and_opens_its_port() -> None:
    for line in re.findall(r"^COPY (.*)$", IMAGE, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists()
    options = parsed(instruction("CMD"))
    assert f"EXPOSE {options['port']}\n" in IMAGE
    assert f"127.0.0.1:{options['port']}/health/ready" in IMAGE
    kept = [options["models"][0], options["events"]]
    assert [str(Path(each).parent) for each in kept] == instruction("VOLUME")
    assert json.loads(re.findall(r"^ENTRYPOINT (.*)$", IMAGE, re.MULTILINE)[0]) == ["softdex"]


# seconds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STARTED)
def test_a_copy_may_drain_and_answer_the_rest_before_it_is_killed(name: str) -> None:
    if name == "image":
        (grace,) = re.findall(r"podman stop -t (\d+)", page())
    elif name == "systemd":
        grace = service()["TimeoutStopSec"]
    else:
        grace = PODS[name]["terminationGracePeriodSeconds"]
    assert int(grace) >= parsed(command(name))["drain"] + SETTINGS.request_seconds


@pytest.mark.parametrize("name", PODS)
def test_a_pod_is_found_not_ready_well_within_its_drain(name: str) -> None:
    container = PODS[name]["containers"][0]
    probe = container["readinessProbe"]
    found = probe["failureThreshold"] * (probe["periodSeconds"] + probe["timeoutSeconds"])
    assert found < parsed(container["args"])["drain"]
    assert "preStop" not in container.get("lifecycle", {})


def test_nginx_waits_for_copies_as_they_do_for_it() -> None:
    drain = parsed(command("systemd"))["drain"]
    assert 2 * seconds(re.findall(r"fail_timeout=(\S+);", NGINX)[0]) < drain
    assert seconds(directive("keepalive_timeout")) < min(drain, SETTINGS.idle_seconds)
    assert seconds(directive("proxy_read_timeout")) > SETTINGS.timeout
    assert seconds(directive("client_body_timeout")) <= SETTINGS.header_seconds
    batch = NGINX[NGINX.index("location = /v1/recommend/batch") :]
    assert seconds(directive("proxy_read_timeout", batch)) >= SETTINGS.request_seconds
    sizes = {directive("client_max_body_size"), directive("client_max_body_size", batch)}
    assert sizes == {f"{n >> 20}m" for n in (SETTINGS.max_body, SETTINGS.max_batch_body)}
    assert MAX_HEADERS >= 4 * 8192  # large_client_header_buffers of nginx
    assert int(directive("limit_conn", NGINX).split()[1]) <= SETTINGS.max_connections


def seconds(text: str) -> float:
    assert text.endswith("s")
    return float(text[:-1])


def test_the_unit_signals_as_the_command_listens() -> None:
    assert "-HUP $MAINPID" in service()["ExecReload"]
    assert service().get("KillSignal", "SIGTERM") == "SIGTERM"
    assert service()["Type"] == "exec"  # the server does not notify
    assert "MemoryDenyWriteExecute" not in service()  # kernels are compiled at run time
    most = int(service()["LimitNOFILE"])
    assert most > 2 * SETTINGS.max_connections


# the server --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client(model: sdx.Retriever) -> Iterator[Client]:
    with sdx.serve({"cf": model}, port=0, max_wait=5) as found:
        own = Client(found.url)
        yield own
        own.close()


def probed() -> set[str]:
    """Return the paths that are probed, scraped or routed."""
    found = {c[kind]["httpGet"]["path"] for c in containers() for kind in PROBES}
    found |= set(re.findall(r"http://127\.0\.0\.1:[\d%i]+(/[\w/]+)", UNIT + IMAGE))
    return found | {job["metrics_path"] for job in yaml.safe_load(PROMETHEUS)["scrape_configs"]}


def containers() -> list[dict[str, Any]]:
    return [pod["containers"][0] for pod in PODS.values()]


def test_every_probed_path_answers(client: Client) -> None:
    assert len(probed()) == 5
    for path in probed():
        assert client.get(path).status == 200, path


def test_every_location_of_nginx_is_an_endpoint() -> None:
    known = {each.path for each in ENDPOINTS}
    places = re.findall(r"location (?:= )?(/\S*) {", NGINX)
    assert len(places) == 4
    assert set(places) <= known
    (pattern,) = re.findall(r"location ~ (\S+) {", NGINX)
    closed = [each.path for each in ENDPOINTS if re.search(pattern, each.path)]
    assert closed == [each.path for each in ENDPOINTS if each.access == "admin"]


@pytest.fixture(scope="module")
def exposed(client: Client) -> dict[str, set[str]]:
    """Labels of the metrics of a server, by name."""
    unused = Metrics()  # counters have labels once they count
    unused.request("none", 200, 0.0)
    unused.shed("wait")
    unused.reload("cf", "ok")
    unused.events(1, 0, 0.0)
    client.get("/v1/recommend/u001")
    text = unused.text().decode() + client.get("/metrics").body.decode()
    found: dict[str, set[str]] = {}
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)", text, re.MULTILINE):
        ends = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        found |= {name + end: set() for end in ends if not name.endswith("_created")}
    for name, labels in re.findall(r"^(\w+)\{(.*)\}", text, re.MULTILINE):
        if name in found:
            found[name] |= set(re.findall(r"(\w+)=\"", labels))
    return found


def test_every_metric_and_label_of_dashboard_and_alerts_is_one_of_the_server(
    exposed: dict[str, set[str]],
) -> None:
    for text in expressions():
        names = re.findall(r"softdex_\w+", text)
        assert names, text
        assert set(names) <= exposed.keys(), text
        used = re.findall(r"(\w+)(?:=~?|!=)\"", text)
        used += re.findall(r"\w+", " ".join(re.findall(r"\bby \(([^)]*)\)", text)))
        assert set(used) <= {"job", "instance"}.union(*(exposed[name] for name in names)), text


def expressions() -> list[str]:
    """Return what the dashboard and the alerts ask Prometheus."""
    panels = json.loads(GRAFANA)["panels"]
    found = [target["expr"] for panel in panels for target in panel["targets"]]
    groups = yaml.safe_load(ALERTS)["groups"]
    return found + [rule["expr"] for group in groups for rule in group["rules"]]


def test_the_dashboard_shows_every_metric(exposed: dict[str, set[str]]) -> None:
    for name in exposed:
        assert re.sub(r"_(bucket|sum|count)$", "", name) in GRAFANA, name


def test_panels_do_not_overlap_and_name_their_source() -> None:
    dashboard = json.loads(GRAFANA)
    panels = dashboard["panels"]
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)
    variables = {each["name"] for each in dashboard["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", GRAFANA)) <= variables | {"__rate_interval"}


# the page ----------------------------------------------------------------------------------------


def page() -> str:
    return (ROOT / "docs" / "deploy.md").read_text()


def test_the_page_names_every_file() -> None:
    assert len(FILES) == 8
    for name in FILES:
        assert f"(../deploy/{name})" in page(), name


def test_every_command_of_the_page_is_one_of_softdex() -> None:
    lines = re.findall(r"softdex serve [^\n`]+", page().replace("\\\n", " "))
    assert lines
    for line in lines:
        assert parsed(shlex.split(line)[1:])


# the tools, where they are -----------------------------------------------------------------------


def tool(*words: str) -> subprocess.CompletedProcess[str]:
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed")
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    path = tmp_path / "softdex@8000.service"
    path.write_text(UNIT.replace("/opt/softdex/bin/softdex", "/bin/true"))
    found = tool("systemd-analyze", "verify", str(path))
    assert (found.returncode, found.stderr) == (0, "")


def test_nginx_reads_its_file(tmp_path: Path) -> None:
    (tmp_path / "softdex.conf").write_text(NGINX.replace("listen 80;", "listen 127.0.0.1:8089;"))
    text = f"pid {tmp_path}/pid; error_log stderr; events {{}}\n"
    (tmp_path / "nginx.conf").write_text(text + f"http {{ include {tmp_path}/softdex.conf; }}\n")
    found = tool("nginx", "-t", "-e", "stderr", "-c", str(tmp_path / "nginx.conf"))
    assert found.returncode == 0, found.stderr
    assert "[warn]" not in found.stderr


def test_prometheus_reads_its_files(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("x")
    (tmp_path / "alerts.yml").write_text(ALERTS)
    text = PROMETHEUS.replace("/etc/prometheus/softdex-token", str(tmp_path / "token"))
    (tmp_path / "prometheus.yml").write_text(text)
    found = tool("promtool", "check", "config", str(tmp_path / "prometheus.yml"))
    assert found.returncode == 0, found.stderr


def test_prometheus_understands_what_the_dashboard_asks(tmp_path: Path) -> None:
    asked = [re.sub(r"\$__rate_interval", "5m", text) for text in expressions()]
    rules = [{"record": f"panel:{i}", "expr": text} for i, text in enumerate(asked)]
    groups = {"groups": [{"name": "panels", "rules": rules}]}
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(groups))
    found = tool("promtool", "check", "rules", str(tmp_path / "rules.yml"))
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize(
    ("alert", "values"),
    [
        ("SoftdexSheds", {
            'softdex_shed_total{job="softdex",reason="wait"}': "0+2x30",
            'softdex_requests_total{job="softdex",endpoint="/v1/recommend"}': "0+100x30",
        }),
        ("SoftdexReloadFailed", {'softdex_model_trouble{instance="a",model="cf"}': "1x30"}),
    ],
)  # fmt: skip
def test_an_alert_fires_when_it_should(alert: str, values: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "alerts.yml").write_text(ALERTS)
    series = [{"series": name, "values": value} for name, value in values.items()]
    (summary,) = [
        rule["annotations"]["summary"]
        for rule in yaml.safe_load(ALERTS)["groups"][0]["rules"]
        if rule["alert"] == alert
    ]
    test = {
        "rule_files": ["alerts.yml"],
        "evaluation_interval": "1m",
        "tests": [{"input_series": series, "interval": "1m", "promql_expr_test": [
            {"expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})',
             "eval_time": "20m", "exp_samples": [{"labels": "{}", "value": 1}]}]}],
    }  # fmt: skip
    assert "{{" in summary
    (tmp_path / "test.yml").write_text(yaml.safe_dump(test))
    found = tool("promtool", "test", "rules", str(tmp_path / "test.yml"))
    assert found.returncode == 0, found.stderr + found.stdout


def test_kubernetes_knows_every_field() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for each in OBJECTS.values():
        validate.validate(each, validate.latest_version(), strict=True)


def test_kubectl_reads_the_files() -> None:
    for name in ("kubernetes.yaml", "kserve.yaml"):
        words = ("annotate", "--local", "-o", "name", "-f", str(DEPLOY / name), "a=b")
        found = tool("kubectl", *words)
        assert found.returncode == 0, found.stderr
        assert "/softdex" in found.stdout
