"""Scenario files: what is read from good ones, and the line and the sentence for each kind of mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from stretto.cli.run import run_scenario
from stretto.cli.scenario.load import ALL_KEYS, KINDS
from stretto.cli.scenario.read import Scenario, parse_scenario, read_scenario
from stretto.config.fields import ConfigError
from stretto.core.errors import StrettoError
from stretto.core.plan import Delays, Order
from stretto.core.profile import NS_PER_MS, Quantile
from stretto.planners.registry import ENTRIES, NAMES
from stretto.planners.sneakpeek.planner import SneakPeek
from stretto.sim.arrivals import Clients, Load, Zipf
from stretto.sim.processes import Gamma, Poisson, TwoLevel
from stretto.sim.service import Deterministic, Empirical, Lognormal

EXAMPLES = Path(__file__).parents[2] / "examples"

GOOD = """\
name = "small"
seed = 7
seconds = 12.5
warmup_seconds = 1

[cluster]
workers = 4

[[application]]
name = "classify"
slo_ms = 25

[[application.variant]]
name = "fast"
alpha_ms = 1.0
beta_ms = 5.0

[load]
kind = "poisson"
rate = 1000

[planner]
name = "symphony"
"""


def refused(text: str, folder: Path | None = None) -> tuple[int, str]:
    """The line and the message of a refused scenario."""
    with pytest.raises(ConfigError) as caught:
        parse_scenario(text, "file.toml", folder)
    label, line, message = str(caught.value).split(":", 2)
    assert label == "file.toml"
    return int(line), message.strip()


def changed(old: str, new: str) -> str:
    assert GOOD.count(old) == 1
    return GOOD.replace(old, new)


def line_in(text: str, part: str) -> int:
    """The line on which `part` begins."""
    assert text.count(part) == 1
    return text[: text.index(part)].count("\n") + 1


def test_a_small_scenario_is_read_whole() -> None:
    scenario = parse_scenario(GOOD)
    assert (scenario.name, scenario.seed, scenario.seconds, scenario.warmup_seconds) == ("small", 7, 12.5, 1.0)
    assert len(scenario.deployment.workers) == 4
    (application,) = scenario.deployment.applications
    assert (application.name, application.slo_ns) == ("classify", 25 * NS_PER_MS)
    assert application.variants[0].profiles[0].latency_ns(3) == 8 * NS_PER_MS
    assert isinstance(scenario.source, Load) and scenario.source.process == Poisson()
    assert scenario.source.expected_rates(scenario.deployment, 10) == (1000.0,)
    assert scenario.planner.name == "symphony"
    assert scenario.deployment.quantile is Quantile.P95


def test_defaults_leave_little_to_write() -> None:
    scenario = parse_scenario(
        "[cluster]\nworkers = 2\n[[application]]\nname = 'a'\n[[application.variant]]\n"
        "published = 'symphony_1080ti:ResNet50'\n[load]\nkind = 'uniform'\nrate = 5\n"
    )
    application = scenario.deployment.applications[0]
    assert application.variants[0].name == "ResNet50"
    assert application.slo_ns == 25 * NS_PER_MS or application.slo_ns > 0
    assert (scenario.seed, scenario.seconds, scenario.service) == (1, 30.0, Deterministic())


def test_an_application_may_be_replicated() -> None:
    scenario = parse_scenario(changed("slo_ms = 25", "slo_ms = 25\ncount = 3"))
    assert [each.name for each in scenario.deployment.applications] == ["classify-0", "classify-1", "classify-2"]
    assert scenario.source.expected_rates(scenario.deployment, 10) == pytest.approx([1000 / 3] * 3)


def test_groups_that_run_named_variants() -> None:
    more = '\n[[application.variant]]\nname = "good"\nalpha_ms = 2.0\nbeta_ms = 9.0\n\n[load]'
    groups = '[[cluster.group]]\ncount = 2\nvariants = ["fast"]\n[[cluster.group]]\ncount = 1\nvariants = [%s]'
    text = changed("[load]", more).replace("workers = 4", groups)
    deployment = parse_scenario(text % '"classify/good"').deployment
    assert [worker.name for worker in deployment.workers] == ["default-0", "default-1", "default-2"]
    runs = [[v.profile_on(worker.kind) is not None for v in deployment.variants] for worker in deployment.workers]
    assert runs == [[True, False], [True, False], [False, True]]
    line, message = refused(text % '"god"')
    assert line == text.splitlines().index("variants = [%s]") + 1
    assert message == "there is no variant 'god'; there are classify/fast, classify/good"
    assert len(parse_scenario(text % "").deployment.kinds) == 2  # an empty list names no variant: all of them


def test_groups_of_workers_and_latency_by_kind() -> None:
    text = changed(
        "[cluster]\nworkers = 4\n",
        '[[cluster.group]]\ncount = 2\nkind = "gpu"\nmemory_mb = 100\n[[cluster.group]]\ncount = 3\nkind = "cpu"\n',
    ).replace("beta_ms = 5.0\n", "beta_ms = 5.0\n[application.variant.on.cpu]\nalpha_ms = 10\nbeta_ms = 1\n")
    deployment = parse_scenario(text).deployment
    assert [worker.name for worker in deployment.workers] == ["gpu-0", "gpu-1", "cpu-0", "cpu-1", "cpu-2"]
    assert deployment.workers[0].memory_bytes == 100_000_000
    assert deployment.profile(0, "gpu").latency_ns(1) == 6 * NS_PER_MS
    assert deployment.profile(0, "cpu").latency_ns(1) == 11 * NS_PER_MS


def test_measured_latency_keeps_its_quantiles() -> None:
    text = changed(
        "alpha_ms = 1.0\nbeta_ms = 5.0\n",
        "[application.variant.measured]\n1 = { p50 = 4, p95 = 5, p99 = 7 }\n8 = { p50 = 9, p95 = 10, p99 = 12 }\n",
    )
    profile = parse_scenario(text).deployment.profile(0)
    assert profile.max_batch == 8
    assert [profile.latency_ns(8, quantile) // NS_PER_MS for quantile in Quantile] == [9, 9, 10, 12]


def test_zoo_makes_an_application_of_every_model_that_passes() -> None:
    start = GOOD.index("[[application]]")
    head, tail = GOOD[:start], GOOD[GOOD.index("[load]") :]
    whole = parse_scenario(f'{head}[zoo]\ntable = "symphony_1080ti"\n{tail}').deployment.applications
    steep = parse_scenario(f'{head}[zoo]\ntable = "symphony_1080ti"\nbeta_over_alpha_above = 2\n{tail}')
    flat = parse_scenario(f'{head}[zoo]\ntable = "symphony_1080ti"\nbeta_over_alpha_below = 2\n{tail}')
    assert len(whole) == 35
    assert len(steep.deployment.applications) + len(flat.deployment.applications) == len(whole)
    assert {application.name: application.slo_ns for application in whole}["NASNetMobile"] == 33 * NS_PER_MS


def test_loads() -> None:
    def load(lines: str) -> Scenario:
        return parse_scenario(changed('kind = "poisson"\nrate = 1000\n', lines))

    gamma = load('kind = "gamma"\nrate = 10\nshape = 0.1\npopularity = "zipf"\nzipf_exponent = 0.9\n').source
    assert isinstance(gamma, Load) and gamma.process == Gamma(0.1) and gamma.popularity == Zipf(0.9)
    levels = load('kind = "two_level"\nlow = 10\nhigh = 30\nlow_seconds = 5\n').source
    assert isinstance(levels, Load) and levels.process == TwoLevel(10, 30, 5, 5) and levels.rate is None
    markov = load('kind = "markov"\nd0 = [[-3, 1], [2, -12]]\nd1 = [[2, 0], [0, 10]]\n')
    assert markov.source.expected_rates(markov.deployment, 10)[0] == pytest.approx(2 * 2 / 3 + 10 / 3)
    clients = load('[[load.client]]\nkind = "poisson"\nrate = 4\ncount = 3\ndeadline_ms = 9\n').source
    assert isinstance(clients, Clients) and [each.deadline_ns for each in clients.clients] == [9 * NS_PER_MS] * 3


def test_files_are_looked_for_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "rates.csv").write_text("second,rate\n0,100\n10,300\n")
    (tmp_path / "log.csv").write_text("time_ms,application\n5,classify\n9,classify\n")
    (tmp_path / "s.toml").write_text(changed('kind = "poisson"\nrate = 1000', 'kind = "trace"\nfile = "rates.csv"'))
    (tmp_path / "l.toml").write_text(changed('kind = "poisson"\nrate = 1000', 'kind = "log"\nfile = "log.csv"'))
    trace, log = read_scenario(tmp_path / "s.toml"), read_scenario(tmp_path / "l.toml")
    assert trace.source.expected_rates(trace.deployment, 20) == pytest.approx((200.0,))
    assert sum(len(chunk) for chunk in log.source.chunks(log.deployment, 1.0, 1)) == 2
    with pytest.raises(StrettoError, match="recorded log"):
        log.at_rate(5.0)


def test_service_and_network() -> None:
    assert parse_scenario(GOOD + '[service]\nkind = "lognormal"\ncv = 0.2\n').service == Lognormal(0.2)
    assert parse_scenario(GOOD + '[service]\nkind = "empirical"\nratios = [0.9, 1.1]\n').service == Empirical(
        (0.9, 1.1)
    )
    assert parse_scenario(GOOD + '[service]\nquantile = "p99"\n').service == Deterministic(Quantile.P99)
    networked = parse_scenario(GOOD + "[network]\ncontrol_ms = 0.05\ndata_ms = 0.01\ntimer_ms = 2\n")
    assert networked.delays == Delays(control_ns=50_000, data_ns=10_000, timer_ns=2_000_000)


def test_rate_and_planner_can_be_changed() -> None:
    scenario = parse_scenario(changed('name = "symphony"\n', 'name = "clockwork"\nahead_ms = 2\n'))
    assert scenario.planner.options == {"ahead_ms": 2.0}
    assert scenario.with_planner("clockwork") is scenario
    assert scenario.with_planner("nexus").planner.options == {}
    assert scenario.at_rate(50).source.expected_rates(scenario.deployment, 1) == (50.0,)
    with pytest.raises(StrettoError, match="there are judged, shared_queue, joint, placed, priced, symphony"):
        scenario.with_planner("symfony")


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_documented_option_is_a_field_of_its_planner(entry) -> None:  # type: ignore[no-untyped-def]
    middle = {
        "flag": lambda option: True,
        "integer": lambda option: max(2, option.low),
        "number": lambda option: option.high / 2,
        "choice": lambda option: option.choices[-1],
    }
    given = [option for option in entry.options if option.kind != "file"]  # a file has to be there
    planner = entry.make({option.name: middle[option.kind](option) for option in given})
    assert callable(planner)


@pytest.mark.parametrize(
    ("old", "new", "at", "says"),
    [
        ("seed = 7", "seed = -1", "seed = -1", "seed is -1; it must be from 0 to"),
        ("seed = 7", "seed = 1.5", "seed = 1.5", "give a whole number"),
        ("seed = 7", "sed = 7", "sed = 7", 'unknown key "sed" in the top level; did you mean seed?'),
        ("seconds = 12.5", "seconds = 0", "seconds = 0", "above 0 and at most 604800"),
        ("seconds = 12.5", "seconds = nan", "seconds = nan", "seconds is nan; it must be above 0"),
        ("seconds = 12.5", "seconds = true", "seconds = true", "seconds is true; give a number"),
        ("warmup_seconds = 1", "warmup_seconds = 13", "warmup_seconds = 13", "must be below seconds, which is 12.5"),
        ('name = "small"', 'name = ""', 'name = ""', "give a text in quotes"),
        ("workers = 4", "workers = 65537", "workers = 65537", "from 1 to 65536"),
        ("workers = 4", "workers = 4\nmemory = 3", "memory = 3", "did you mean memory_mb?"),
        ("workers = 4", "", "[cluster]", "[cluster] needs workers"),
        ("[cluster]\nworkers = 4\n", "", 'name = "small"', "there is no [cluster]"),
        ("workers = 4", "workers = 4\n[[cluster.group]]\ncount = 1", "workers = 4", "not both"),
        ('name = "classify"', 'name = "a b"', 'name = "a b"', "must start with a letter or digit"),
        ("slo_ms = 25", "slo_ms = -3", "slo_ms = -3", "slo_ms is -3; it must be above 0"),
        ("slo_ms = 25", "", "[[application]]", "application classify needs slo_ms"),
        ("slo_ms = 25", "slo_ms = 25\ncount = 10001", "count = 10001", "from 1 to 10000"),
        ("slo_ms = 25", 'slo_ms = 25\npenalty = "stp"', "penalty", "did you mean step?"),
        ("alpha_ms = 1.0", 'alpha_ms = "1"', "alpha_ms", 'alpha_ms is "1"; give a number'),
        ("alpha_ms = 1.0", "", "beta_ms", "beta_ms needs alpha_ms"),
        ("beta_ms = 5.0", "", "[[application.variant]]", "[application.variant] needs beta_ms"),
        ("beta_ms = 5.0", "beta_ms = 5.0\naccuracy = 90", "accuracy = 90", "from 0 to 1"),
        ("beta_ms = 5.0", "beta_ms = 5.0\nmax_batch = 5000", "max_batch", "from 1 to 4096"),
        (
            "beta_ms = 5.0",
            'beta_ms = 5.0\npublished = "a:b"',
            "published",
            "alpha_ms and published both give a latency",
        ),
        ("alpha_ms = 1.0\nbeta_ms = 5.0", "alpha_ms = 0\nbeta_ms = 0", "alpha_ms = 0", "not both zero"),
        (
            "alpha_ms = 1.0\nbeta_ms = 5.0",
            'published = "symphony_1080ti:ResNet5O"',
            "published",
            "did you mean ResNet50?",
        ),
        ("alpha_ms = 1.0\nbeta_ms = 5.0", 'published = "symphony_v100:A"', "published", "did you mean symphony_a100?"),
        ("alpha_ms = 1.0\nbeta_ms = 5.0", "measured = { one = { p50 = 1 } }", "measured", '"one" is no batch size'),
        ("alpha_ms = 1.0\nbeta_ms = 5.0", "measured = { 1 = { p90 = 1 } }", "measured", 'unknown key "p90"'),
        (
            "beta_ms = 5.0",
            "beta_ms = 5.0\n[application.variant.on.gpu]\nalpha_ms = 1",
            "[application.variant.on",
            "no worker",
        ),
        ('kind = "poisson"', 'kind = "poison"', 'kind = "poison"', "did you mean poisson?"),
        ("rate = 1000", "rate = 2e9", "rate = 2e9", "1e+09"),
        ("rate = 1000", "", "[load]", "[load] needs rate"),
        ("rate = 1000", "rate = 1000\nshape = 2", "shape = 2", "shape does not go with the other choices"),
        ("rate = 1000", 'rate = 1000\npopularity = "zip"', "popularity", "did you mean zipf?"),
        ("rate = 1000", "rate = 1000\npopularity = [1, 2]", "popularity", "2 weights for 1 applications"),
        ("rate = 1000", "rate = 1000\npopularity = [0]", "popularity", "all of them are zero"),
        ("rate = 1000", "rate = 1000\n[load.mix.clasify]", "[load.mix.clasify]", "did you mean classify?"),
        ('kind = "poisson"', 'kind = "gamma"\nshape = 0', "shape = 0", "from 0.001"),
        ('kind = "poisson"\nrate = 1000', 'kind = "trace"\nfile = "none.csv"', "file = ", "cannot be read"),
        (
            'kind = "poisson"\nrate = 1000',
            'kind = "markov"\nd0 = [[-1]]\nd1 = [[2]]',
            'kind = "markov"',
            "must sum to zero",
        ),
        ('name = "symphony"', 'name = "simphony"', 'name = "simphony"', "did you mean symphony?"),
        ('name = "symphony"', 'name = "symphony"\nahead_ms = 1', "ahead_ms", "does not go with the other choices"),
        ('name = "symphony"', 'name = "symphony"\nexpiry_onl = true', "expiry_onl", "did you mean expiry_only?"),
        ('name = "symphony"', 'name = "clipper"\nbackoff = 1', "backoff", "from 0.01 to 0.999"),
        ('name = "symphony"', 'name = "nexus"\nquantile = "p90"', "quantile", "did you mean p99?"),
        (
            'name = "symphony"',
            'name = "nexus"\n[planner.variants]\nclassify = "slow"',
            "classify = ",
            "no variant slow",
        ),
        ('name = "symphony"', 'name = "nexus"\n[service]\ncv = 1', "cv = 1", "does not go with the other choices"),
        ('name = "symphony"', 'name = "nexus"\n[network]\ncontrol_ms = -1', "control_ms", "from 0 to"),
    ],
)
def test_each_mistake_is_told_with_its_line(old: str, new: str, at: str, says: str) -> None:
    text = changed(old, new)
    line, message = refused(text)
    assert says in message
    assert line == line_in(text, at)


def test_the_guide_names_every_option_and_kind_of_load() -> None:
    guide = (EXAMPLES.parent / "docs" / "scenario.md").read_text()
    options = [option.name for entry in ENTRIES for option in entry.options]
    missing = [key for key in (*NAMES, *options, *ALL_KEYS) if f"`{key}" not in guide and f"`[[load.{key}" not in guide]
    assert missing == ["mix"] and "`[load.mix." in guide
    assert all(f'`"{kind}"' in guide for kind in KINDS)


def test_the_second_of_two_equal_names_is_at_fault() -> None:
    variant = '[[application.variant]]\nname = "x"\nalpha_ms = 2\nbeta_ms = 2\n'
    text = f'{GOOD}[[application]]\nname = "classify" # again\nslo_ms = 5\n{variant}'
    line, message = refused(text)
    assert (line, "two applications named classify" in message) == (line_in(text, '"classify" # again'), True)


def test_a_missing_part_is_named() -> None:
    assert refused(GOOD[: GOOD.index("[load]")])[1].startswith("there is no [load]")
    start, end = GOOD.index("[[application]]"), GOOD.index("[load]")
    assert refused(GOOD[:start] + GOOD[end:])[1].startswith("there is no application")


@pytest.mark.parametrize(
    ("text", "line"), [("a = 1\nb = ?\n", 2), ("a = 1\na = 2\n", 2), ('a = "\n', 1), ("a = [1,\n\n", 1), ("[x\n", 1)]
)
def test_text_that_is_no_toml_is_told_with_its_line(text: str, line: int) -> None:
    found, message = refused(text)
    assert message.startswith("not valid TOML: ")
    assert found == line


def test_hostile_text_is_refused_in_words() -> None:
    assert "nested too deeply" in refused("a = " + "[" * 100_000)[1]
    assert "too many digits" in refused("seed = " + "9" * 10_000)[1]
    assert "from 0 to" in refused(changed("seed = 7", "seed = " + "9" * 1000))[1]


def test_unreadable_files(tmp_path: Path) -> None:
    for name, content, says in (("none.toml", None, "no such file"), ("bytes.toml", b"\xff\xfe", "not UTF-8")):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigError, match=says):
            read_scenario(tmp_path / name)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_scenario(tmp_path)


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.toml")), ids=lambda file: file.name)
def test_every_example_is_valid(file: Path) -> None:
    scenario = read_scenario(file)
    assert sum(scenario.source.expected_rates(scenario.deployment, scenario.seconds)) > 0


def test_sneakpeek_as_published_can_be_asked_for() -> None:
    published = 'name = "sneakpeek"\ntrials = 0\ncaution = 0\norder = "first_come"\ncertainty = 0.5'
    text = GOOD.replace(f'name = "{parse_scenario(GOOD).planner.name}"', published)
    planner = parse_scenario(text).session().planner
    assert isinstance(planner, SneakPeek)
    options = planner.options()
    assert (options.trials, options.caution, options.order) == (0, 0.0, Order.FIRST_COME) and planner.certainty == 0.5
    refused(text.replace("first_come", "last_come"), "last_come")


CLASSES = """\
seconds = 20
[cluster]
workers = 1
[[application]]
name = "specialists"
slo_ms = 100
[application.evidence]
accuracy = 0.95
class_shares = [1, 1]
[[application.variant]]
name = "first"
accuracy = 0.6
recall = [0.95, 0.25]
alpha_ms = 1
beta_ms = 5
[[application.variant]]
name = "second"
accuracy = 0.6
recall = [0.25, 0.95]
alpha_ms = 1
beta_ms = 5
[load]
kind = "poisson"
rate = 40
[planner]
name = "priced"
"""


def test_scenarios_take_recall_and_evidence() -> None:
    """Regression: sneakpeek in a scenario had no evidence, and was grouped by another name."""
    scenario = parse_scenario(CLASSES)
    (application,) = scenario.deployment.applications
    assert application.variants[0].recall == (0.95, 0.25) and application.classes == 2
    assert application.evidence_accuracy is not None and application.evidence_accuracy > 0.97, "five times named"
    aware = parse_scenario(CLASSES + "data_aware = true\n")
    plain_run, aware_run = (run_scenario(each).summary for each in (scenario, aware))
    assert plain_run.correct_on_time == pytest.approx(0.6, abs=0.06), "half of the classes, whatever runs"
    assert aware_run.correct_on_time > 0.85
    assert aware_run.applications[0].correct_on_time == pytest.approx(aware_run.correct_on_time)
    late = parse_scenario(CLASSES + "data_aware = true\n[network]\nevidence_ms = 60\n")
    assert run_scenario(late).summary.correct_on_time < 0.75, "evidence comes when most have been answered"
    by_windows = [run_scenario(scenario.with_planner(name)).summary for name in ("sneakpeek", "grouped")]
    assert by_windows[0].correct_on_time > by_windows[1].correct_on_time + 0.2
    forbidden = parse_scenario(CLASSES.replace("class_shares", "answers = false\nclass_shares"))
    assert run_scenario(forbidden.with_planner("sneakpeek")).summary.answered_by_evidence == 0
    line, message = refused(CLASSES.replace("class_shares = [1, 1]", "class_shares = [1, 1, 1]"))
    assert line == line_in(CLASSES, "class_shares") and "give one for each" in message
    assert "recall" in refused(CLASSES.replace("recall = [0.25, 0.95]\n", ""))[1]
