"""The file of `stretto serve`: everything can be said there, the command line goes first, mistakes have their line."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stretto.api.limits import Limits
from stretto.api.rates import RateLimits
from stretto.cli.main import app
from stretto.cli.serve import serve
from stretto.cli.serve_config import AUTOSCALE_KEYS, KEYS, read_serve_config
from stretto.cli.serve_options import SIZES, serve_options
from stretto.config.fields import ConfigError
from stretto.planning.autoscale_options import AutoscaleOptions, Bounds

WHOLE = """
[listen]
host = "0.0.0.0"
http_port = 9000
grpc_port = -1
token_file = "token"

[workers]
workers = 3
executor = "process"

[planner]
name = "priced"
margin = 0.25

[limits]
connections = 77
keep_alive_s = 5

[clients]
client_requests = 10
client_worker_ms = 250
limit_by = "token"

[log]
log_format = "json"
record = "events.jsonl"
record_file_mb = 1.5

[autoscale]
workers = ["cpu=1:8@0.1", "gpu=0:2"]
webhook = "https://example.org/scale"
token_file = "token"
period_s = 5
start_s = 20
accuracy = 0.9
room = 0.05
calm_periods = 3

[end]
drain_grace = 4
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "serve.toml"
    file.write_text(text)
    return file


def test_every_option_of_the_command_can_stand_in_the_file() -> None:
    options = set(serve.__annotations__) - {"ctx", "repository", "config", "return", *SIZES}
    scaling = {"autoscale", *(f"autoscale_{key}" for key in AUTOSCALE_KEYS)}
    on_ray = {"engine", "address", "name", "key_file"}  # where it is served is not how
    assert options == {"planner", "replan_ms", *scaling, *on_ray, *(key for keys in KEYS.values() for key in keys)}


def test_what_it_says_is_done(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0123456789abcdef\n")
    said = read_serve_config(written(tmp_path, WHOLE))
    defaults = {name: None for name in serve.__annotations__} | {
        **{"repository": "zoo", "management_host": "127.0.0.1", "management_port": 8082, "management_grpc_port": 8083},
        **{"threads": 1, "device": "cpu", "max_body_mb": 64.0, "max_message_mb": 4.0, "in_flight_mb": 512.0},
        **{"reload_s": 2.0, "hang_s": 10.0, "drain_s": 30.0, "front_ends": 1},
        **{"load_s": 60.0, "worker_rss_mb": None, "ready_all": False, "tell_failures": False},
        **{"record_file_mb": 256.0, "record_total_mb": 10_000.0, "log_level": "info"},
    }
    options = serve_options(defaults | said.values, said)
    assert (options.listen.host, options.listen.http_port, options.listen.grpc_port) == ("0.0.0.0", 9000, None)
    assert options.listen.tokens == ("0123456789abcdef",), "a path is looked up beside the file"
    assert options.listen.rates == RateLimits(10, 250, "token")
    assert options.record == tmp_path / "events.jsonl" and options.record_options.part_bytes == 1_500_000
    assert (options.drain_grace_s, options.drain_s) == (4, 30)
    assert options.listen.limits.connections == 77 and options.listen.limits.keep_alive_s == 5
    assert options.listen.limits.body_bytes == 64_000_000
    assert (options.listen.limits.message_bytes, options.listen.limits.memory_bytes) == (4_000_000, 512_000_000)
    scaling = options.service.autoscale
    assert scaling is not None
    assert scaling.bounds == (("cpu", Bounds(1, 8, 0.1)), ("gpu", Bounds(0, 2)))
    assert (scaling.actuator, scaling.webhook) == ("webhook", "https://example.org/scale")
    assert (scaling.token, scaling.accuracy) == ("0123456789abcdef", 0.9)
    assert scaling.options == AutoscaleOptions(period_s=5, start_s=20, room=0.05, calm_periods=3)
    assert (options.service.workers, options.service.executor) == (3, "process")
    assert (options.service.planner, options.service.planner_options) == ("priced", {"margin": 0.25})


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("[listen]\nhost = 3\n", 2, "host"),
        ("[listen]\nhttp_prot = 3\n", 2, "did you mean http_port"),
        ("[workers]\nworkers = -1\n", 2, "from 0 to 1024"),
        ("[workers]\nexecutor = 'fibre'\n", 2, "thread"),
        ("[workers]\nworker = [\n  'cpu',\n  'cpu,variants=x',\n]\n", 4, "is not threads=N, kind=NAME or variant=NAME"),
        ("[planner]\nname = 'priced'\nmargin = 2\n", 3, "margin"),
        ("[planner]\nname = 'nexus'\nmargin = 0.2\n", 3, "unknown key"),
        ("[limits]\nconnections = 0\n", 2, "connections"),
        ("[lissen]\nhost = 'x'\n", 1, "lissen"),
        ("[autoscale]\nworkers = '1:8'\n", 2, "give a list"),
        ("[autoscale]\nactuator = 'cloud'\n", 2, "advice"),
        ("[autoscale]\nroom = 0.9\n", 1, "room of autoscaling is 0.9"),
        ("[autoscale]\nrom = 0.1\n", 2, "did you mean room"),
    ],
)
def test_a_mistake_is_told_with_its_line(tmp_path: Path, text: str, line: int, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_serve_config(written(tmp_path, text))
    assert caught.value.line == line and says in caught.value.message


NAMED = """
[workers]
worker = [
  "cpu*2,variant=mlp",
  "cpu,variant=mnist/%s",
]
"""


def test_a_worker_of_the_file_is_named_for_a_variant_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import stretto.api.run

    asked = []
    monkeypatch.setattr(stretto.api.run, "run", lambda options, *_: asked.append(options) or True)

    def serving(*given: str) -> Any:
        return CliRunner().invoke(app, ["serve", "zoo:mnist", "--config", str(tmp_path / "serve.toml"), *given])

    written(tmp_path, NAMED % "resnet")
    assert serving().exit_code == 0
    assert [spec.variants for spec in asked[0].service.fleet()] == [("mlp",), ("mnist/resnet",)]
    file = written(tmp_path, NAMED % "resent")
    result = serving()
    assert result.exit_code == 2
    assert f"{file}:5: worker 'cpu,variant=mnist/resent': there is no variant 'mnist/resent'" in result.stderr
    assert "there are mnist/cnn" in result.stderr
    assert serving("--workers", "1").exit_code == 0, "the command line goes first"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--autoscale", "8"), "from MIN to MAX workers"),
        (("--autoscale", "1:8", "--autoscale-actuator", "cloud"), "no actuator 'cloud'"),
        (("--autoscale", "1:8", "--autoscale-actuator", "webhook"), "needs an address"),
        (("--autoscale", "1:8", "--autoscale-webhook", "gopher://x"), "no address for a webhook"),
        (("--autoscale", "1:8", "--autoscale-accuracy", "7"), "accuracy of 7"),
        (("--autoscale", "1:8", "--autoscale-by", "stars"), "not scaled by 'stars'; there are signals, judge"),
        (("--autoscale", "1:8", "--autoscale-by", "judge", "--planner", "symphony"), "no judge to follow"),
        (("--autoscale-accuracy", "0.9"), "is for a fleet that is scaled; give --autoscale 1:8"),
    ],
)
def test_autoscaling_that_makes_no_sense_is_refused_at_once(given: tuple[str, ...], says: str) -> None:
    result = CliRunner().invoke(app, ["serve", "zoo:mnist", *given])
    assert result.exit_code == 2 and says in result.stderr


def test_all_limits_can_be_set(tmp_path: Path) -> None:
    names = [each.name for each in fields(Limits)]
    file = written(tmp_path, "[limits]\n" + "".join(f"{name} = 7\n" for name in names))
    assert set(read_serve_config(file).limits) == set(names)


def test_the_command_serves_the_default_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `stretto serve REPO` says, without a word about the planner."""
    import stretto.api.run
    from stretto.planners.registry import DEFAULT_PLANNER

    asked = []
    monkeypatch.setattr(stretto.api.run, "run", lambda options, *_: asked.append(options) or True)
    result = CliRunner().invoke(app, ["serve", "zoo:mnist"])
    assert result.exit_code == 0, result.output
    assert [options.service.planner for options in asked] == [DEFAULT_PLANNER] == ["judged"]


def test_front_ends_can_be_in_the_file(tmp_path: Path) -> None:
    assert read_serve_config(written(tmp_path, "[listen]\nfront_ends = 4\n")).values["front_ends"] == 4
    with pytest.raises(ConfigError, match="from 1 to 64"):
        read_serve_config(written(tmp_path, "[listen]\nfront_ends = 65\n"))
