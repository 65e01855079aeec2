"""What deploy/ says of the server against the schemas of Kubernetes, against HAProxy, and against the server's sources.

No cluster is needed. HAProxy is run in front of stubs where it is installed; no model is.
"""

import http.client
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = sorted((ROOT / "deploy/kubernetes").glob("*.yaml"))
HAPROXY = ROOT / "deploy/haproxy.cfg"
KUBERNETES = "1.37"

Document = dict[str, Any]


class Unique(yaml.SafeLoader):
    """Refuses a key that is there twice, which YAML's loader takes and Kubernetes does not."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = {str(key) for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"twice: {twice}", node.start_mark)
        return super().construct_mapping(node, deep)


def documents() -> Iterator[Document]:
    for path in MANIFESTS:
        yield from yaml.load_all(path.read_text(), Unique)


def the(kind: str) -> Document:
    """The one document of a kind."""
    (found,) = (document for document in documents() if document["kind"] == kind)
    return found


def pod() -> Document:
    return the("Deployment")["spec"]["template"]["spec"]


def container() -> Document:
    (only,) = pod()["containers"]
    return only


def source(path: str) -> str:
    return (ROOT / "crates" / path).read_text()


# What the server offers, by its sources.


def routes(function: str) -> set[str]:
    """The paths one function of the server's interface serves."""
    found = re.search(rf"fn {function}\(\).*?\n}}", source("serve/src/api.rs"), re.DOTALL)
    assert found, f"no function {function} in api.rs"
    return set(re.findall(r'\.route\("([^"]+)"', found[0]))


def metrics() -> set[str]:
    """As they are read: what is constant is registered without its ending."""
    code = source("serve/src/metrics.rs")
    constant = re.findall(r'register\(\s*"([^"]+)",\s*"[^"]+",\s*Info::new', code)
    return set(re.findall(r'register\(\s*"([^"]+)"', code)) - set(constant) | {f"{name}_info" for name in constant}


def flags() -> set[str]:
    """All flags of `forerun serve`, as they are typed."""
    found: set[str] = set()
    for place in ("serve/flags.rs", "template.rs", "flags/model.rs", "flags/draft.rs", "flags/sampling.rs"):
        said = ""
        for line in source(f"cli/src/{place}").splitlines():
            field = re.match(r" {4}(?:pub\(super\) )?(\w+): .*,$", line)
            if field and "#[arg(" in said:
                aliases = "".join(re.findall(r"visible_alias(?:es)? = (\[.*?\]|\".*?\")", said))
                names = {field[1].replace("_", "-"), *re.findall(r'"(.*?)"', aliases)}
                found |= {f"--{name}" for name in names if re.search(r"\blong\b", said)}
                found |= {f"-{field[1][0]}" for _ in re.findall(r"\bshort\b", said)}
            if field or line.startswith("}"):
                said = ""
            elif not line.lstrip().startswith("//"):
                said += line
    shorts = re.findall(r'\("(-\w+)", "(--[\w-]+)"\)', source("cli/src/args.rs"))
    return found | {short for short, long in shorts if long in found}


def default(flag: str) -> int:
    """What a flag of the server is where it is not given."""
    found = re.search(rf"default_value_t = (\d+)\)\]\n +(?:pub\(super\) )?{flag}: ", source("cli/src/serve/flags.rs"))
    assert found, f"no default of {flag} in flags.rs"
    return int(found[1])


def arguments() -> dict[str, str | None]:
    """The flags the container is started with, and their values."""
    given: dict[str, str | None] = {}
    flag = None
    for word in container()["args"]:
        if word.startswith("-"):
            assert word not in given, f"{word} is there twice"
            flag = word
            given[flag] = None
        else:
            assert flag and given[flag] is None, f"{word} belongs to no flag"
            given[flag] = word
    return given


def seconds(text: str) -> int:
    found = re.fullmatch(r"(\d+)(s|m|h)", text)
    assert found, f"{text} is no time"
    return int(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


# Schemas.


def only(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    """An object with these fields and no others."""
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def many(items: dict[str, Any], most: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1, "maxItems": most}


NAME = {"type": "string", "pattern": r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", "maxLength": 253}
GROUP = {"type": "string", "pattern": r"^$|^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", "maxLength": 253}
KIND = {"type": "string", "pattern": r"^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$", "maxLength": 63}
PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
LABELS = {"type": "object", "additionalProperties": {"type": "string", "maxLength": 63}, "minProperties": 1}
DURATION = {"type": "string", "pattern": r"^([0-9]{1,5}(h|m|s|ms)){1,4}$"}
METADATA = only({"name": NAME, "labels": LABELS, "annotations": {"type": "object"}}, "name")


def resource(group: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    fields = {"apiVersion": {"const": group}, "kind": {"const": kind}, "metadata": METADATA, "spec": spec}
    return only(fields, *fields)


PICKER = only(
    {
        "group": GROUP,
        "kind": KIND,
        "name": NAME,
        "port": only({"number": PORT}, "number"),
        "failureMode": {"enum": ["FailOpen", "FailClose"]},
    },
    "name",
) | {
    # A picker that is a Service, as it is unless said otherwise, is reached at a port.
    "if": {"properties": {"kind": {"const": "Service"}}},
    "then": {"required": ["port"]},
}
POOL = only(
    {
        "selector": only({"matchLabels": LABELS}, "matchLabels"),
        "targetPorts": many(only({"number": PORT}, "number"), 8) | {"uniqueItems": True},
        "appProtocol": {"enum": ["http", "kubernetes.io/h2c"]},
        "endpointPickerRef": PICKER,
    },
    "selector",
    "targetPorts",
)
REFERENCE = {"group": GROUP, "kind": KIND, "name": NAME, "namespace": NAME, "port": PORT}
MATCH = only(
    {
        "path": only(
            {"type": {"enum": ["Exact", "PathPrefix", "RegularExpression"]}, "value": {"type": "string", "pattern": "^/"}}
        ),
        "method": {"enum": ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"]},
    }
)
RULE = only(
    {
        "name": NAME,
        "matches": many(MATCH, 64),
        "backendRefs": many(only(REFERENCE | {"weight": {"type": "integer", "minimum": 0}}, "name"), 16),
        "timeouts": only({"request": DURATION, "backendRequest": DURATION}),
    }
)
ROUTE = only(
    {
        "parentRefs": many(only(REFERENCE | {"sectionName": NAME}, "name"), 32),
        "hostnames": many({"type": "string"}, 16),
        "rules": many(RULE, 16),
    }
)
OURS = {
    "InferencePool": resource("inference.networking.k8s.io/v1", "InferencePool", POOL),
    "HTTPRoute": resource("gateway.networking.k8s.io/v1", "HTTPRoute", ROUTE),
}


def test_all_kinds_are_there() -> None:
    kinds = sorted(document["kind"] for document in documents())
    core = ["ConfigMap", "Deployment", "HorizontalPodAutoscaler", "PodDisruptionBudget", "Service"]
    assert kinds == sorted([*core, *OURS])


def name_of(document: Document) -> str:
    return document["kind"]


@pytest.mark.parametrize("document", [it for it in documents() if it["kind"] not in OURS], ids=name_of)
def test_a_document_is_what_kubernetes_takes(document: Document) -> None:
    assert kubernetes_validate.validate(document, KUBERNETES, strict=True) == KUBERNETES


@pytest.mark.parametrize("document", [it for it in documents() if it["kind"] in OURS], ids=name_of)
def test_a_document_is_what_the_gateway_takes(document: Document) -> None:
    jsonschema.Draft202012Validator(OURS[document["kind"]]).validate(document)


# How the pod lives.


@pytest.mark.parametrize("probe", ["startupProbe", "livenessProbe", "readinessProbe"])
def test_a_probe_asks_what_the_server_offers_without_a_key(probe: str) -> None:
    ask = container()[probe]["httpGet"]
    expected = "/livez" if probe == "livenessProbe" else "/readyz"
    assert ask["path"] == expected and expected in routes("open")
    assert {"name": ask["port"], "containerPort": default("port")} in container()["ports"]


def test_a_large_model_has_the_time_to_load() -> None:
    probe = container()["startupProbe"]
    patience = probe["periodSeconds"] * probe["failureThreshold"]
    assert patience >= 1200
    assert the("Deployment")["spec"]["progressDeadlineSeconds"] > patience


def test_a_pod_that_is_not_ready_is_left_out_within_a_second() -> None:
    probe = container()["readinessProbe"]
    assert (probe["periodSeconds"], probe["failureThreshold"]) == (1, 1)


def test_a_pod_is_not_killed_before_its_texts_have_ended() -> None:
    """A few seconds are for last words: what was broken off is told so."""
    sleep = container()["lifecycle"]["preStop"]["sleep"]["seconds"]
    shutdown = int(arguments()["--shutdown-timeout"] or default("shutdown_timeout"))
    assert sleep >= 5
    assert pod()["terminationGracePeriodSeconds"] > sleep + shutdown + 5


def test_no_pod_goes_before_another_is_ready() -> None:
    strategy = the("Deployment")["spec"]["strategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    assert the("Deployment")["spec"]["replicas"] > the("PodDisruptionBudget")["spec"]["maxUnavailable"]


def test_the_container_may_do_nothing_but_serve() -> None:
    context, own = pod()["securityContext"], container()["securityContext"]
    assert context["runAsNonRoot"] and context["runAsUser"] > 0
    assert own["readOnlyRootFilesystem"] and own["allowPrivilegeEscalation"] is False
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert pod()["automountServiceAccountToken"] is False


def test_flags_exist() -> None:
    known = flags()
    assert {"-m", "-md", "--host", "--served-model-name"} <= known
    assert set(arguments()) <= known
    for flag in ("-m", "-md", "-np", "--api-key-file", "--ctx-size", "--max-queued-requests"):
        assert arguments()[flag], flag


def test_files_are_where_volumes_are() -> None:
    mounts = {mount["mountPath"]: mount for mount in container()["volumeMounts"]}
    for flag in ("-m", "-md", "--api-key-file"):
        mount = mounts[str(Path(arguments()[flag] or "").parent)]
        assert mount["readOnly"]
        (volume,) = (volume for volume in pod()["volumes"] if volume["name"] == mount["name"])
        assert ("secret" if flag == "--api-key-file" else "persistentVolumeClaim") in volume


def test_the_processors_are_whole_and_the_memory_is_what_was_asked_for() -> None:
    resources = container()["resources"]
    assert resources["requests"] == resources["limits"]
    assert resources["limits"]["cpu"].isdigit()


def test_the_image_is_the_one_that_is_built() -> None:
    build = (ROOT / "deploy/Containerfile").read_text()
    name, tag = container()["image"].split(":")
    assert f"-t {name} " in build and tag == "latest"
    assert 'ENTRYPOINT ["forerun", "serve", "--host", "0.0.0.0"]' in build


def test_hadolint_finds_nothing_in_the_image_s_file() -> None:
    # Debian's packages have no versions of their own here; the base of the last stages is one of the file's own; lists of packages
    # stay only in stages that are not shipped.
    ignored = [f"--ignore={rule}" for rule in ("DL3008", "DL3006", "DL3009")]
    done = subprocess.run(["hadolint", *ignored, ROOT / "deploy/Containerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_variant_of_the_image_has_its_tools_and_its_system() -> None:
    stages = set(re.findall(r"^FROM \S+ AS (\S+)", (ROOT / "deploy/Containerfile").read_text(), re.MULTILINE))
    variants = {stage.removeprefix("tools-") for stage in stages if stage.startswith("tools-")}
    assert variants == {"cpu", "vulkan", "cuda"} == {stage.removeprefix("system-") for stage in stages if stage.startswith("system-")}


def features(command: list[str], environment: dict[str, str]) -> set[str]:
    """The processor features a compiler call may use."""
    environment = os.environ | {"RUSTC_BOOTSTRAP": "1"} | environment
    said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment)
    return set(re.findall(r'target_feature="(.+)"', said.stdout))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="compares with the oldest x86-64 processor")
def test_packages_and_the_image_run_on_other_processors_than_the_builder_s() -> None:
    assert "tools/package.sh portable" in (ROOT / "deploy/Containerfile").read_text()
    (flags,) = re.findall(r'^ *RUSTFLAGS=("\$.*") CARGO_TARGET_DIR', (ROOT / "tools/package.sh").read_text(), re.MULTILINE)
    given = subprocess.run(["bash", "-c", f"echo {flags}"], capture_output=True, text=True, check=True).stdout.strip()
    # `cargo rustc --print` says what flags cargo takes from environment and configuration, and compiles nothing.
    ask = ["cargo", "rustc", "-q", "-Zunstable-options", "-p", "forerun-verify", "--lib", "--print", "cfg"]
    allowed = features(["rustc", "--print", "cfg"], {})
    assert features(ask, {"RUSTFLAGS": given}) <= allowed


# How documents find each other.


def test_all_select_the_pods() -> None:
    labels = the("Deployment")["spec"]["template"]["metadata"]["labels"]
    by_labels = [the(kind)["spec"]["selector"]["matchLabels"] for kind in ("Deployment", "PodDisruptionBudget", "InferencePool")]
    (spread,) = pod()["topologySpreadConstraints"]
    for selector in [*by_labels, the("Service")["spec"]["selector"], spread["labelSelector"]["matchLabels"]]:
        assert selector and selector.items() <= labels.items()


def test_all_reach_the_port() -> None:
    (port,) = the("Service")["spec"]["ports"]
    assert {"name": port["targetPort"], "containerPort": default("port")} in container()["ports"]
    assert the("InferencePool")["spec"]["targetPorts"] == [{"number": default("port")}]


def test_the_route_leads_to_the_pool_and_to_what_the_server_offers() -> None:
    group, _ = the("InferencePool")["apiVersion"].split("/")
    pool = {"group": group, "kind": "InferencePool", "name": the("InferencePool")["metadata"]["name"]}
    served = {f"/v1{path}" for path in routes("openai")} | routes("guarded")
    for rule in the("HTTPRoute")["spec"]["rules"]:
        assert rule["backendRefs"] == [pool]
        assert {match["path"]["value"] for match in rule["matches"]} <= served
        assert seconds(rule["timeouts"]["request"]) > default("timeout")


def test_the_autoscaler_scales_the_deployment() -> None:
    target, deployment = the("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"], the("Deployment")
    assert target == {key: deployment[key] for key in ("apiVersion", "kind")} | {"name": deployment["metadata"]["name"]}


def test_the_autoscaler_reads_metrics_the_server_has_by_the_adapters_rule() -> None:
    (rule,) = yaml.load(the("ConfigMap")["data"]["config.yaml"], Unique)["rules"]
    series = re.match(r'\{__name__=~"([^"]+)"', rule["seriesQuery"])
    assert series
    name = re.sub(r"\$\{(\d)\}", r"\\\1", rule["name"]["as"])
    offered = {re.sub(rule["name"]["matches"], name, metric) for metric in metrics() if re.search(series[1], metric)}
    read = [metric["pods"]["metric"]["name"] for metric in the("HorizontalPodAutoscaler")["spec"]["metrics"]]
    assert sorted(read) == sorted(offered)
    assert {"vllm_num_requests_waiting", "vllm_kv_cache_usage_perc"} <= offered
    assert {"<<.Series>>", "<<.LabelMatchers>>", "<<.GroupBy>>"} <= set(re.findall("<<.*?>>", rule["metricsQuery"]))


def test_the_autoscaler_asks_for_what_a_replica_can_have() -> None:
    metrics_read = [metric["pods"] for metric in the("HorizontalPodAutoscaler")["spec"]["metrics"]]
    wanted = {pods["metric"]["name"]: str(pods["target"]["averageValue"]) for pods in metrics_read}
    assert 0 < int(wanted["vllm_num_requests_running"]) < int(arguments()["-np"] or 0)
    assert 0 < int(wanted["vllm_num_requests_waiting"]) < int(arguments()["--max-queued-requests"] or 0)
    assert re.fullmatch(r"[1-9]\d{0,2}m", wanted["vllm_kv_cache_usage_perc"]), "a share of 1, in thousandths"


def test_caches_are_not_thrown_away_for_a_short_lull() -> None:
    down = the("HorizontalPodAutoscaler")["spec"]["behavior"]["scaleDown"]
    assert down["stabilizationWindowSeconds"] >= 900
    assert [policy["value"] for policy in down["policies"] if policy["type"] == "Pods"] == [1]


def test_metrics_that_are_named_exist() -> None:
    """Also in comments; the one that is said to be missing is."""
    named = {name for path in (*MANIFESTS, HAPROXY) for name in re.findall(r"\bvllm:[a-z_]+[a-z]", path.read_text())}
    assert named & metrics() >= {"vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc"}
    assert named - metrics() == {"vllm:lora_requests_info"}


# HAProxy.

installed = pytest.mark.skipif(not shutil.which("haproxy"), reason="haproxy is not installed")


def section(name: str) -> str:
    found = re.search(rf"^{name}\n((?:[ \n].*\n|\n)*)", HAPROXY.read_text(), re.MULTILINE)
    assert found, f"no section {name}"
    return found[1]


@installed
def test_haproxy_takes_its_configuration_without_a_warning() -> None:
    done = subprocess.run(["haproxy", "-dW", "-c", "-f", str(HAPROXY)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_haproxy_checks_what_the_server_offers_without_a_key() -> None:
    asked = re.findall(r"option httpchk GET (\S+)", HAPROXY.read_text())
    assert asked == ["/readyz"] and set(asked) <= routes("open")
    assert "default-server check inter 500ms fall 1 rise 1\n" in section("backend replicas")


def test_haproxy_is_more_patient_than_the_server() -> None:
    for side in ("server", "client"):
        found = re.search(rf"^ +timeout {side} (\w+)$", section("defaults"), re.MULTILINE)
        assert found and seconds(found[1]) > default("timeout")


def test_conversations_have_the_same_replicas() -> None:
    replicas = re.findall(r"^ +server (\w+) (\S+)$", section("backend replicas"), re.MULTILINE)
    tracked = re.findall(r"^ +server (\w+) (\S+) track replicas/(\w+)$", section("backend conversations"), re.MULTILINE)
    assert len(replicas) == 4
    assert tracked == [(name, address, name) for name, address in replicas]


MANNERS = ["refuses", "is lost", "cannot be reached"]


class Replica(ThreadingHTTPServer):
    """Answers as a server would whose model takes no time; `manner` is what it does with a request."""

    daemon_threads = True

    def __init__(self, name: str) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.name = name
        self.ready = True
        self.manner = "answers"
        self.asked = 0
        self.left = threading.Event()
        # A stream's events are sent as the test lets them.
        self.turns = threading.Semaphore(0)
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def turn_bad(self, manner: str) -> None:
        self.manner = manner
        if manner == "cannot be reached":
            self.end()

    def end(self) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, *_: object) -> None:
        """Broken connections are what is tested."""


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Replica

    def log_message(self, *_: object) -> None:
        pass

    def say(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self.say(200 if self.server.ready else 503, {})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.server.asked += 1
        match self.server.manner:
            case "answers":
                self.say(200, self.server.name)
            case "refuses":
                self.say(503, {})
            case "is lost":
                self.close_connection = True
            case "thinks":
                self.think()
            case "streams":
                self.stream()

    def think(self) -> None:
        """Until the client is gone."""
        self.close_connection = True
        self.connection.settimeout(10)
        try:
            data = self.connection.recv(1)
        except ConnectionError:
            data = b""
        except TimeoutError:
            return
        if not data:
            self.server.left.set()

    def stream(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for _ in range(10):
            assert self.server.turns.acquire(timeout=10)
            if self.server.manner == "is lost":
                self.close_connection = True
                return
            data = f"data: {self.server.name}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")


class Proxy:
    """HAProxy with deploy/haproxy.cfg, its addresses replaced, in front of four replicas."""

    def __init__(self, folder: Path) -> None:
        self.replicas = [Replica(f"r{number}") for number in range(1, 5)]
        self.port, self.figures = free_port(), free_port()
        text = HAPROXY.read_text()
        for replica in self.replicas:
            text, count = re.subn(rf"( server {replica.name}) \S+", rf"\1 127.0.0.1:{replica.server_port}", text)
            assert count == 2
        text = text.replace("127.0.0.1:8000", f"127.0.0.1:{self.port}").replace("127.0.0.1:8404", f"127.0.0.1:{self.figures}")
        text = text.replace("/run/haproxy/admin.sock", str(folder / "admin.sock"))
        # Whoever runs the tests need not be root.
        text = re.sub(r"^ +(user|group) .*\n", "", text, flags=re.MULTILINE)
        configuration = folder / "haproxy.cfg"
        configuration.write_text(text)
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(["haproxy", "-db", "-f", str(configuration)], stdout=log, stderr=log)
        wait_until(self.is_there, 5, "HAProxy listens")

    def is_there(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except ConnectionRefusedError:
            return False
        return True

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(5)
        for replica in self.replicas:
            replica.end()

    def up(self, backend: str = "replicas") -> list[str]:
        """The replicas that HAProxy takes for ready, by what it tells Prometheus."""
        with response_of(self.figures, "GET", "/metrics") as response:
            said = response.read().decode()
        return re.findall(rf'^haproxy_server_status{{proxy="{backend}",server="(\w+)",state="UP"}} 1$', said, re.MULTILINE)

    def ask(self, conversation: str | None = None) -> tuple[int, Any]:
        with self.request(conversation) as response:
            return response.status, json.loads(response.read())

    @contextmanager
    def request(self, conversation: str | None = None) -> Iterator[http.client.HTTPResponse]:
        headers = {"X-Conversation-Id": conversation} if conversation else {}
        with response_of(self.port, "POST", "/v1/chat/completions", headers) as response:
            yield response


@contextmanager
def response_of(port: int, method: str, path: str, headers: dict[str, str] | None = None) -> Iterator[http.client.HTTPResponse]:
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    line.putrequest(method, path)
    body = b"{}" if method == "POST" else b""
    for name, value in ({"content-length": str(len(body))} | (headers or {})).items():
        line.putheader(name, value)
    line.endheaders()
    if body:
        # The body comes a moment after the head, as many clients send it.
        time.sleep(0.05)
        line.send(body)
    try:
        yield line.getresponse()
    finally:
        line.close()


def free_port() -> int:
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        return line.getsockname()[1]


def wait_until(true: Callable[[], Any], patience: float, what: str) -> None:
    deadline = time.monotonic() + patience
    while not true():
        assert time.monotonic() < deadline, f"{what}: not within {patience} s"
        time.sleep(0.02)


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Proxy]:
    running = Proxy(tmp_path)
    yield running
    running.stop()


def turn(replicas: list[Replica], response: http.client.HTTPResponse) -> bytes:
    """Lets the stream have its next event, and gives it."""
    for replica in replicas:
        replica.turns.release()
    line = response.readline()
    while line == b"\n":
        line = response.readline()
    return line


@installed
@pytest.mark.parametrize("manner", MANNERS)
def test_another_replica_answers_what_three_do_not(proxy: Proxy, manner: str) -> None:
    good, *bad = proxy.replicas
    for replica in bad:
        replica.turn_bad(manner)
    assert [proxy.ask() for _ in range(4)] == [(200, good.name)] * 4
    assert manner == "cannot be reached" or sum(replica.asked for replica in bad) > 0


@installed
@pytest.mark.parametrize("manner", MANNERS)
def test_another_replica_continues_a_conversation(proxy: Proxy, manner: str) -> None:
    status, home = proxy.ask("one")
    assert status == 200
    (bad,) = (replica for replica in proxy.replicas if replica.name == home)
    bad.turn_bad(manner)
    status, name = proxy.ask("one")
    assert status == 200 and name != home
    assert manner == "cannot be reached" or bad.asked > 1


@installed
def test_a_stream_that_has_begun_is_not_begun_again(proxy: Proxy) -> None:
    for replica in proxy.replicas:
        replica.manner = "streams"
    with proxy.request() as response:
        assert turn(proxy.replicas, response).startswith(b"data: ")
        for replica in proxy.replicas:
            replica.manner = "is lost"
        assert turn(proxy.replicas, response) == b""
    assert sum(replica.asked for replica in proxy.replicas) == 1


@installed
def test_tokens_are_not_held_back(proxy: Proxy) -> None:
    """An event is made when the one before has been read. Held back for full packets, each would take 0.2 s."""
    for replica in proxy.replicas:
        replica.manner = "streams"
    with proxy.request() as response:
        started = time.monotonic()
        assert all(turn(proxy.replicas, response).startswith(b"data: ") for _ in range(10))
        assert time.monotonic() - started < 1


@installed
def test_a_replica_that_stops_gets_no_requests_and_keeps_its_stream(proxy: Proxy) -> None:
    for replica in proxy.replicas:
        replica.manner = "streams"
    with proxy.request() as response:
        first = turn(proxy.replicas, response)
        (busy,) = (replica for replica in proxy.replicas if first == f"data: {replica.name}\n".encode())
        others = sorted(replica.name for replica in proxy.replicas if replica is not busy)
        busy.ready = False
        wait_until(lambda: sorted(proxy.up()) == others, 3, "the replica is left out")
        wait_until(lambda: sorted(proxy.up("conversations")) == others, 1, "there too")
        for replica in proxy.replicas:
            replica.manner = "answers"
        answers = [proxy.ask(conversation) for conversation in (None, None, None, "a", "b", "c", "d", "e", "f")]
        assert {status for status, _ in answers} == {200} and busy.name not in {name for _, name in answers}
        rest = [turn([busy], response) for _ in range(9)]
        assert rest == [first] * 9 and response.read() == b"\n"
    busy.ready = True
    wait_until(lambda: busy.name in proxy.up(), 3, "it is back")


@installed
def test_a_conversation_stays_with_its_replica(proxy: Proxy) -> None:
    names = [f"conversation {number}" for number in range(8)]
    homes = [{proxy.ask(name)[1] for _ in range(3)} for name in names]
    assert all(len(home) == 1 for home in homes)
    assert len(set.union(*homes)) > 1


@installed
def test_a_client_that_leaves_is_not_waited_for(proxy: Proxy) -> None:
    for replica in proxy.replicas:
        replica.manner = "thinks"
    with socket.create_connection(("127.0.0.1", proxy.port), 5) as line:
        line.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}")
        wait_until(lambda: sum(replica.asked for replica in proxy.replicas) == 1, 3, "a replica is asked")
    wait_until(lambda: any(replica.left.is_set() for replica in proxy.replicas), 3, "it hears that the client is gone")


@installed
def test_where_no_replica_is_ready_clients_are_told_when_to_come_again(proxy: Proxy) -> None:
    for replica in proxy.replicas:
        replica.ready = False
    wait_until(lambda: proxy.up() == [], 3, "none is ready")
    with proxy.request() as response:
        assert (response.status, response.headers["content-type"]) == (503, "application/json")
        assert int(response.headers["retry-after"]) > 0
        assert set(json.loads(response.read())["error"]) == {"message", "type", "param", "code"}
