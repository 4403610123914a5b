"""The metrics of a dataset, compared with independent counts: workers, waits, stages, export."""

from __future__ import annotations

import logging
import math
import pickle
import subprocess
import sys
import weakref
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from itertools import accumulate
from time import thread_time
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_open_metrics
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_open_metrics,
)
from prometheus_client.parser import text_string_to_metric_families

import splitarrow
from helpers.faults import Faults, FaultyTransport
from helpers.files import write_file
from splitarrow import errors
from splitarrow.client.dataset import endpoints as backoff
from splitarrow.pytorch import Mixture, StreamDataset
from splitarrow.pytorch.metrics import (
    EpochMetrics,
    LoopMetrics,
    Stage,
    Telemetry,
    WorkerMetrics,
    find_bucket,
)
from splitarrow.pytorch.plan import Block, BlockBatches, DatasetPlan
from splitarrow.testing import Daemon
from splitarrow.transport import registry, tcp

torch: Any = import_module("torch")
data: Any = import_module("torch.utils.data")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("plans_in_this_process"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]
ROWS = 6_000
BATCHES = -(-ROWS // 64)
ROW_BYTES = 16
TRANSFORM_SECONDS = 0.002
CHAIN = ("plan", "wait", "join", "convert")
"""The stages that each batch passes."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("data")
    numbers: Any = pa.array(range(ROWS), pa.int64())
    table = pa.table({"n": numbers, "x": numbers.cast(pa.float64())})
    datasets = {
        "trips": write_file(folder / "trips.arrow", table, batch_rows=250),
        "more": write_file(folder / "more.arrow", table.slice(0, 2_000), batch_rows=250),
    }
    with Daemon(datasets, listen=["tcp://127.0.0.1:0"], control="grpc://127.0.0.1:0") as daemon:
        yield daemon


def open_dataset(server: Daemon, name: str = "trips", **options: Any) -> StreamDataset:
    settings: dict[str, Any] = {"batch_rows": 64, "window_rows": 500, "rank": 0, "world_size": 1}
    return StreamDataset(server.control_uri, name, **{**settings, **options})


def load(dataset: Any, workers: int, method: str = "fork", **options: Any) -> Any:
    context = method if workers else None
    return data.DataLoader(
        dataset, batch_size=None, num_workers=workers, multiprocessing_context=context, **options
    )


def spin(batch: pa.RecordBatch, seconds: float = TRANSFORM_SECONDS) -> pa.RecordBatch:
    """Return a record batch after a known processor time."""
    end = thread_time() + seconds
    while thread_time() < end:
        pass
    return batch


def find_stats(server: Daemon) -> dict[str, int]:
    with splitarrow.connect(server.control_uri) as client:
        return client.status()["stats"]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("threads", [0, 2])
def test_the_counts_are_those_of_the_daemon_and_of_the_batches(
    server: Daemon, shuffle: bool, threads: int
) -> None:
    dataset = open_dataset(server, shuffle=shuffle, threads=threads)
    assert dataset.metrics().workers == ()
    before = find_stats(server)
    batches = list(dataset)
    after = find_stats(server)
    metrics = dataset.metrics()
    (worker,) = metrics.workers
    assert (metrics.rank, worker.worker) == (0, None)
    assert (worker.steps, worker.rows) == (len(batches), ROWS)
    assert worker.rows == sum(len(batch["n"]) for batch in batches)
    assert (worker.read_rows, worker.read_bytes) == (ROWS, ROWS * ROW_BYTES)
    assert after["rows"] - before["rows"] == worker.read_rows
    assert worker.reads == after["streams_total"] - before["streams_total"]
    sent = after["bytes_sent"] - before["bytes_sent"]
    assert worker.read_bytes < sent < 1.5 * worker.read_bytes
    assert (worker.retries, worker.errors) == (0, 0)
    assert metrics.total == worker
    assert metrics.loop.waits == len(batches)
    # Each wait is within the loop, and the loop within the epoch.
    assert metrics.epoch is not None
    loop, seconds = metrics.loop, metrics.epoch.elapsed_seconds
    assert 0 < loop.p50 <= loop.p99
    assert 0 < loop.wait_seconds + loop.busy_seconds <= seconds
    assert all(worker.seconds[name] > 0 for name in ("read", "shuffle", *CHAIN))
    assert (worker.seconds["transform"], worker.seconds["collate"]) == (0, 0)


@pytest.mark.parametrize("shuffle", [False, True])
def test_uses_of_blocks_are_hits_or_reads(
    server: Daemon, shuffle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Block] = []
    select = DatasetPlan.read

    def note(self: DatasetPlan, client: Any, blocks: Sequence[Block]) -> Iterator[BlockBatches]:
        read.append(blocks[0])
        return select(self, client, blocks)

    monkeypatch.setattr(DatasetPlan, "read", note)
    dataset = open_dataset(server, shuffle=shuffle, batch_rows=125, interleave=1)
    list(dataset)
    total = dataset.metrics().total
    assert total.reads == len(read)
    # Each of the 48 batches is in one block, and four in each.
    assert (len(read) == 12) == shuffle
    assert total.block_hits == 48 - len(read)


@pytest.mark.parametrize(
    ("method", "persistent"),
    [("fork", False), ("fork", True), pytest.param("spawn", True, marks=pytest.mark.slow)],
)
def test_workers_share_their_figures_with_the_trainer(
    server: Daemon, method: str, persistent: bool
) -> None:
    dataset = open_dataset(server, shuffle=True, interleave=2)
    loader = load(dataset, 2, method, persistent_workers=persistent)
    before = find_stats(server)
    for epoch in range(2):
        dataset.set_epoch(epoch)
        rows = sum(len(batch["n"]) for batch in dataset.watch(loader))
        metrics = dataset.metrics()
        assert rows == ROWS
        assert [each.worker for each in metrics.workers] == [0, 1]
        steps = [len(range(number, BATCHES, 2)) for number in range(2)]
        assert [each.steps for each in metrics.workers] == [(epoch + 1) * each for each in steps]
        assert metrics.total.rows == (epoch + 1) * ROWS
        # The workers have one block in common, which both read.
        assert metrics.total.read_rows == find_stats(server)["rows"] - before["rows"]
        assert metrics.total.read_bytes == metrics.total.read_rows * ROW_BYTES
        assert all(each.seconds["copy"] > 0 for each in metrics.workers)
        assert metrics.loop.waits == (epoch + 1) * BATCHES
        assert metrics.epoch is not None
        assert (metrics.epoch.number, metrics.epoch.total.steps) == (epoch, BATCHES)
        assert metrics.epoch.loop.waits == BATCHES
        assert metrics.summary().startswith(f"epoch {epoch}: the loop waited ")


@pytest.mark.parametrize(
    ("workers", "threads", "seconds"),
    [
        (0, 0, 0.004),
        (0, 2, 0.004),
        pytest.param(2, 0, 0.02, marks=[pytest.mark.slow, pytest.mark.long]),
    ],
)
def test_a_transform_that_takes_time_is_the_limit(
    server: Daemon, workers: int, threads: int, seconds: float
) -> None:
    dataset = open_dataset(server, transform=partial(spin, seconds=seconds), threads=threads)
    loader = load(dataset, workers)
    assert sum(len(batch["n"]) for batch in dataset.watch(loader)) == ROWS
    metrics = dataset.metrics()
    assert metrics.total.seconds["transform"] >= BATCHES * seconds
    assert metrics.total.seconds["transform"] == max(metrics.total.seconds.values())
    assert "; transform takes " in metrics.summary()
    assert metrics.summary().endswith(" % of the loader's time")


def test_collate_and_a_device_are_stages(server: Daemon) -> None:
    def collate(tensors: dict[str, Any]) -> Any:
        spin(pa.record_batch({"n": [1]}))
        return tensors["n"]

    dataset = open_dataset(server, collate=collate, device="cpu")
    list(dataset)
    seconds = dataset.metrics().total.seconds
    assert seconds["collate"] >= BATCHES * TRANSFORM_SECONDS
    assert 0 < seconds["copy"] < seconds["collate"]
    assert seconds["convert"] < seconds["collate"]


def test_the_time_of_the_loop_is_that_between_two_batches(server: Daemon) -> None:
    dataset = open_dataset(server, batch_rows=200)
    for _ in dataset:
        spin(pa.record_batch({"n": [1]}))
    loop = dataset.metrics().loop
    assert loop.waits == ROWS // 200
    assert loop.busy_seconds >= ROWS // 200 * TRANSFORM_SECONDS


@pytest.mark.parametrize("watched", ["", "loader", "dataset"])
def test_each_epoch_logs_one_sentence_and_counts_once(
    server: Daemon, caplog: pytest.LogCaptureFixture, watched: str
) -> None:
    caplog.set_level(logging.INFO, "splitarrow.pytorch")
    dataset = open_dataset(server)
    source: Any = dataset
    if watched:
        source = dataset.watch(load(dataset, 0) if watched == "loader" else dataset)
        assert len(source) == BATCHES
    for epoch in range(2):
        dataset.set_epoch(epoch)
        assert len(list(source)) == BATCHES
        message = caplog.messages[-1]
        assert message == dataset.metrics().summary()
        assert message.startswith(f"epoch {epoch}: the loop waited ")
        assert len(caplog.messages) == epoch + 1
    assert dataset.metrics().loop.waits == 2 * BATCHES


def test_an_epoch_can_be_read_while_it_runs_and_after_a_break(
    server: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "splitarrow.pytorch")
    dataset = open_dataset(server)
    assert dataset.metrics().summary().startswith("no epoch was measured")
    for number, _ in enumerate(dataset.watch(dataset)):
        epoch = dataset.metrics().epoch
        assert epoch is not None
        assert epoch.loop.waits == epoch.total.steps == number + 1
        if number == 5:
            break
    ended = dataset.metrics().epoch
    assert ended is not None
    assert ended.loop.waits == 6
    assert ended == dataset.metrics().epoch
    assert caplog.messages == []
    # Nobody watches any more, so the dataset measures by itself.
    list(dataset)
    assert dataset.metrics().loop.waits == 6 + BATCHES


def test_iterations_in_turn_count_for_their_own_datasets(server: Daemon) -> None:
    first, second = open_dataset(server, transform=spin), open_dataset(server)
    for _ in zip(first, second, strict=True):
        pass
    for dataset in (first, second):
        assert (dataset.metrics().total.steps, dataset.metrics().total.rows) == (BATCHES, ROWS)
    assert first.metrics().total.seconds["transform"] >= BATCHES * TRANSFORM_SECONDS
    assert second.metrics().total.seconds["transform"] == 0


def test_a_loop_that_is_measured_does_not_keep_its_batch(server: Daemon) -> None:
    earlier: list[weakref.ref[Any]] = []

    def collate(tensors: dict[str, Any]) -> Any:
        assert all(each() is None for each in earlier)
        return tensors["n"]

    for batch in open_dataset(server, collate=collate):
        earlier[:] = [weakref.ref(batch)]
        del batch
    assert earlier


def test_a_mixture_measures_its_parts(server: Daemon) -> None:
    parts = [open_dataset(server, "more", transform=spin), open_dataset(server, "trips")]
    dataset = Mixture([(part, 1.0) for part in parts], stop="all")
    rows = sum(len(batch["n"]) for batch in dataset.watch(load(dataset, 2)))
    assert rows == 8_000
    metrics = dataset.metrics()
    assert [each.worker for each in metrics.workers] == [0, 1]
    assert (metrics.total.steps, metrics.total.rows) == (len(dataset), rows)
    assert metrics.total.read_bytes == metrics.total.read_rows * ROW_BYTES
    seconds = metrics.total.seconds
    assert all(seconds[name] > 0 for name in ("read", "shuffle", "join", "convert"))
    # Only the first part has a transform, and half of the first 4,000 rows are its.
    assert seconds["transform"] >= 2_000 / 64 * TRANSFORM_SECONDS
    assert all(part.metrics().workers == () for part in parts)


def test_a_mixture_joins_its_parts(server: Daemon) -> None:
    # Each batch is in one record batch of its part, which leaves only the mixture to join rows.
    dataset = Mixture([(open_dataset(server, "more", batch_rows=50), 1.0)])
    assert len(list(dataset)) == 40
    assert dataset.metrics().total.seconds["join"] > 0


def test_reads_that_continue_over_a_new_connection_are_retries(
    server: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "FIRST_PAUSE_SECONDS", 0.001)
    dataset = open_dataset(server, window_rows=ROWS)
    faults = FaultyTransport(tcp.TRANSPORT, Faults(cut_after=12))
    with registry.override_transport(faults):
        assert sum(len(batch["n"]) for batch in dataset) == ROWS
    total = dataset.metrics().total
    assert (total.reads, total.errors) == (1, 0)
    assert total.retries >= 2


def test_reads_that_fail_together_are_retries(
    server: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = DatasetPlan.read
    refused: list[Block] = []

    def refuse(self: DatasetPlan, client: Any, blocks: Sequence[Block]) -> Iterator[BlockBatches]:
        if len(blocks) > 1:
            refused.append(blocks[0])
            raise errors.ExhaustedError("too many leases")
        return read(self, client, blocks)

    monkeypatch.setattr(DatasetPlan, "read", refuse)
    dataset = open_dataset(server)
    assert len(list(dataset)) == BATCHES
    assert refused
    assert dataset.metrics().total.retries == len(refused)


def test_reads_that_fail_are_retries_and_iterations_that_fail_are_errors(
    server: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = DatasetPlan.read
    refused: list[Block] = []

    def refuse(self: DatasetPlan, client: Any, blocks: Sequence[Block]) -> Iterator[BlockBatches]:
        if len(refused) < 3:
            refused.append(blocks[0])
            raise errors.ConnectionLostError("the connection broke")
        return read(self, client, blocks)

    monkeypatch.setattr(DatasetPlan, "read", refuse)
    dataset = open_dataset(server)
    assert len(list(dataset)) == BATCHES
    assert (dataset.metrics().total.retries, dataset.metrics().total.errors) == (3, 0)

    def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError("a defect")

    broken = open_dataset(server, transform=fail)
    with pytest.raises(ValueError, match="a defect"):
        list(broken)
    next(iter(dataset))  # an iteration that is left early did not fail
    assert (broken.metrics().total.errors, dataset.metrics().total.errors) == (1, 0)
    assert broken.metrics().total.steps == 0


def test_a_pickled_dataset_counts_for_itself(server: Daemon) -> None:
    dataset = open_dataset(server)
    list(dataset)
    copy = pickle.loads(pickle.dumps(dataset))
    list(copy)
    assert dataset.metrics().total.steps == BATCHES
    assert copy.metrics().total.steps == 2 * BATCHES


LEAVE_EARLY = """
import sys
from splitarrow.pytorch import StreamDataset

dataset = StreamDataset(sys.argv[1], "trips", batch_rows=64)
batches = iter(dataset.watch(dataset))
next(batches)
"""


@pytest.mark.slow
def test_a_program_may_end_within_an_epoch(server: Daemon) -> None:
    command = [sys.executable, "-c", LEAVE_EARLY, str(server.control_uri)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""


# The sentence and the quantiles, without a daemon.

NOTHING = dict.fromkeys(["read", "shuffle", *CHAIN, "transform", "collate", "copy"], 0.0)


def make_epoch(waited: float, threads: int = 0, workers: int = 1, **seconds: float) -> EpochMetrics:
    """Return an epoch of 812 s in which each worker spent the given seconds."""
    waits = observe([0.0002] * 95 + [0.014] * 5)
    loop = LoopMetrics(waited, 800.0 - waited, waits.counts)
    each = {**NOTHING, **seconds}
    found = [WorkerMetrics(n, 9, 9, 9, 9, 9, 0, 0, 0, each) for n in range(workers)]
    return EpochMetrics(3, 812.0, threads, tuple(found), loop)


def observe(waits: list[float]) -> LoopMetrics:
    """Return what a loop measures of these waits."""
    counts = [0] * len(Telemetry(0, 0).collect().loop.counts)
    for wait in waits:
        counts[find_bucket(wait)] += 1
    return LoopMetrics(sum(waits), 0.0, tuple(counts))


@pytest.mark.parametrize(
    ("epoch", "limit"),
    [
        (make_epoch(24.4, transform=700.0), "the loop itself is the limit"),
        (
            make_epoch(200.0, transform=150.0, convert=50.0),
            "transform takes 75 % of the loader's time",
        ),
        (
            make_epoch(200.0, read=900.0, wait=120.0, convert=80.0),
            "reading takes 60 % of the loader's time",
        ),
        (
            make_epoch(200.0, read=90.0, shuffle=400.0, wait=190.0, convert=10.0),
            "shuffling takes 95 % of the loader's time",
        ),
        (
            make_epoch(200.0, threads=2, plan=150.0, convert=100.0),
            "planning batches takes 75 % of the loader's time",
        ),
        # Four threads convert, so waiting for blocks is longer.
        (
            make_epoch(200.0, threads=4, read=900.0, wait=100.0, convert=240.0, collate=160.0),
            "reading takes 50 % of the loader's time",
        ),
        (
            make_epoch(200.0, workers=2, convert=120.0, copy=30.0),
            "conversion to tensors takes 80 % of the loader's time",
        ),
        (
            make_epoch(200.0, workers=2, convert=20.0, wait=10.0),
            "starting the loader and passing batches take most of that",
        ),
    ],
)
def test_the_sentence_names_the_limit(epoch: EpochMetrics, limit: str) -> None:
    share = 3 if epoch.loop.wait_seconds < 100 else 25
    expected = f"epoch 3: the loop waited {share} % of 812 s for data (p50 0.2 ms, p99 15 ms)"
    assert epoch.summary() == f"{expected}; {limit}"


@given(st.lists(st.floats(2e-6, 500.0), min_size=1, max_size=200))
def test_quantiles_are_within_a_bucket_of_the_exact_ones(waits: list[float]) -> None:
    loop = observe(waits)
    assert loop.waits == len(waits)
    for q, estimate in ((0.5, loop.p50), (0.99, loop.p99)):
        exact = sorted(waits)[max(0, -(-int(q * 100) * len(waits) // 100) - 1)]
        assert exact / 1.3 <= estimate <= exact * 1.3


def test_no_wait_has_no_quantiles_and_a_long_one_has_the_last_bound() -> None:
    assert (observe([]).p50, observe([]).p99) == (0.0, 0.0)
    assert observe([1e5]).p50 == 800.0


def test_a_stage_leaves_out_those_within_it() -> None:
    telemetry = Telemetry(0, 0)
    with telemetry.record() as recorder:
        with Stage("convert"):
            with Stage("transform"):
                spin(pa.record_batch({"n": [1]}))
            with Stage("collate"):
                spin(pa.record_batch({"n": [1]}))
        recorder.add_step(7)
    seconds = telemetry.collect().total.seconds
    assert min(seconds["transform"], seconds["collate"]) >= TRANSFORM_SECONDS
    assert 0 < seconds["convert"] < TRANSFORM_SECONDS
    with Stage("join"):  # of no iteration
        pass
    assert telemetry.collect().total.seconds == seconds


# Export.


def export(registry: CollectorRegistry) -> dict[str, list[Any]]:
    """Return the samples that a scrape gets by the name of the metric, read by both parsers."""
    families = {
        family.name: family.samples
        for family in text_string_to_metric_families(generate_latest(registry).decode())
    }
    text = generate_open_metrics(registry).decode()
    assert {family.name for family in parse_open_metrics(text)} == {
        name.removesuffix("_total") for name in families
    }
    return families


def test_a_scrape_has_the_figures_of_each_worker_and_rank(server: Daemon) -> None:
    registry = CollectorRegistry(auto_describe=True)
    training = open_dataset(server, rank=1, world_size=2)
    training.export_metrics(registry)
    validation = open_dataset(server, "more")
    validation.export_metrics(registry, name="replaced")
    validation.export_metrics(registry, name="validation")
    list(training.watch(load(training, 2)))
    list(validation)
    families = export(registry)
    assert all(name.startswith("splitarrow_loader_") for name in families)

    def values(name: str, **labels: str) -> dict[str, float]:
        return {
            sample.labels.get("worker", ""): sample.value
            for sample in families[f"splitarrow_loader_{name}"]
            if labels.items() <= sample.labels.items()
        }

    metrics = training.metrics()
    steps = {str(each.worker): each.steps for each in metrics.workers}
    assert sum(steps.values()) == len(training)
    assert values("steps", rank="1", loader="") == steps
    assert values("rows", loader="validation") == {"trainer": 2_000}
    assert sum(values("read_bytes", rank="1").values()) == metrics.total.read_bytes
    stages = values("stage_seconds", rank="1", stage="convert")
    assert stages == {str(each.worker): each.seconds["convert"] for each in metrics.workers}
    assert values("busy_seconds", rank="1") == {"": metrics.loop.busy_seconds}
    waits = {
        (sample.name.rpartition("_")[2], sample.labels.get("le")): sample.value
        for sample in families["splitarrow_loader_wait_seconds"]
        if sample.labels["rank"] == "1"
    }
    assert waits["count", None] == waits["bucket", "+Inf"] == len(training)
    assert waits["sum", None] == metrics.loop.wait_seconds
    assert waits["bucket", "100.0"] == len(training)
    buckets = [value for (name, _), value in waits.items() if name == "bucket"]
    assert buckets == sorted(buckets)


def test_a_later_dataset_takes_the_place_of_one_of_the_same_name(server: Daemon) -> None:
    registry = CollectorRegistry(auto_describe=True)
    first, second = open_dataset(server, "more"), open_dataset(server, "more", batch_rows=100)
    for dataset in (first, second):
        dataset.export_metrics(registry)
        list(dataset)
    (steps,) = export(registry)["splitarrow_loader_steps"]
    assert steps.value == len(second) == 20


def test_an_export_names_the_extra_that_it_needs(
    server: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(errors.MissingExtraError, match=r"splitarrow\[http\]"):
        open_dataset(server).export_metrics()


def read_points(reader: InMemoryMetricReader) -> dict[tuple[str, str], dict[Any, Any]]:
    """Return the points that OpenTelemetry exports by name and unit, and by attributes."""
    found: dict[tuple[str, str], dict[Any, Any]] = {}
    exported: Any = reader.get_metrics_data()
    for resource in exported.resource_metrics if exported else ():
        for scope in resource.scope_metrics:
            assert scope.scope.name == "splitarrow.pytorch"
            for metric in scope.metrics:
                points = metric.data.data_points
                by_attributes = {frozenset(each.attributes.items()): each for each in points}
                assert len(by_attributes) == len(points)
                found[metric.name, metric.unit] = by_attributes
    return found


@pytest.mark.parametrize("takes", ["provider", "meter"])
def test_opentelemetry_gets_the_figures_of_a_scrape(server: Daemon, takes: str) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    target = provider if takes == "provider" else provider.get_meter("splitarrow.pytorch")
    registry = CollectorRegistry(auto_describe=True)
    training = open_dataset(server, rank=1, world_size=2)
    validation = open_dataset(server, "more")
    for exporter in (target, registry):
        training.export_metrics(exporter)
        training.export_metrics(exporter)
        validation.export_metrics(exporter, name="validation")
    list(training.watch(load(training, 2)))
    list(validation)
    points = read_points(reader)
    for name, samples in export(registry).items():
        figure = name.removeprefix("splitarrow_loader_")
        unit = {"seconds": "s", "bytes": "By"}.get(figure.rpartition("_")[2], "1")
        found = points.pop((f"splitarrow.loader.{figure}", unit))
        if figure != "wait_seconds":
            values = {attributes: point.value for attributes, point in found.items()}
            assert values == {frozenset(each.labels.items()): each.value for each in samples}
            continue
        for attributes, point in found.items():
            ends = [0.0, *accumulate(point.bucket_counts)]
            rank = dict(attributes)["rank"]
            own = [each for each in samples if each.labels["rank"] == rank]
            waits = {float(each.labels["le"]): each.value for each in own if "le" in each.labels}
            assert dict(zip([*point.explicit_bounds, math.inf], ends[1:], strict=True)) == waits
            (total,) = [each.value for each in own if each.name.endswith("_sum")]
            assert point.sum == pytest.approx(total)
    assert not points
    provider.shutdown()


def test_a_later_dataset_takes_the_place_of_an_earlier_one_in_opentelemetry(server: Daemon) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    first, second = open_dataset(server, "more"), open_dataset(server, "more", batch_rows=100)
    for dataset in (first, second):
        dataset.export_metrics(provider)
    list(first)
    list(second)
    points = read_points(reader)
    (steps,) = points["splitarrow.loader.steps", "1"].values()
    (waits,) = points["splitarrow.loader.wait_seconds", "s"].values()
    assert steps.value == waits.count == len(second) == 20
    provider.shutdown()


def test_a_forked_worker_exports_nothing(server: Daemon) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    shared = torch.zeros(2, dtype=torch.int64).share_memory_()

    def collect(batch: pa.RecordBatch) -> pa.RecordBatch:
        shared[0] += 1
        shared[1] += len(read_points(reader))
        return batch

    dataset = open_dataset(server, "more", transform=collect)
    dataset.export_metrics(provider)
    list(dataset.watch(load(dataset, 1)))
    calls, points = shared.tolist()
    assert calls
    assert points == 0
    assert read_points(reader)
    provider.shutdown()
