"""What the HTTP listener knows of the daemon: its state, metrics, datasets and streams."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cryptography.x509 import load_pem_x509_certificate

from ...errors import ConfigError, SplitArrowError
from ...transport.credential_files import Reloadable
from ..auth.principal import Permission, Principal
from ..catalog.dataset import ServedDataset
from ..context import ServerContext
from ..metrics import LabelCap, Labelled, MetricType, Sample, merge_samples
from ..refusals import Refusals
from ..report import ProcessReport, StreamReport, package_version
from ..streams import MAX_DATASETS


def _read_expiry(path: Path) -> float:
    """Return when the first certificate of a file expires, in seconds since 1970."""
    try:
        return load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc.timestamp()
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the certificate {path}: {error}") from None


class Service:
    """The state of a daemon, over all of its processes. Call its methods on a thread."""

    def __init__(self, context: ServerContext) -> None:
        self.context = context
        self.reporter = context.reporter
        self.started = time.time()
        """When the daemon became ready, in seconds since 1970."""
        certificate = context.settings.tls_cert
        self._names = LabelCap(MAX_DATASETS)
        self._expiry: Reloadable[float] | None = None
        if certificate is not None:
            # The listener that uses the certificate logs failures.
            self._expiry = Reloadable(
                [certificate], lambda: _read_expiry(certificate), on_failure=lambda reason: None
            )

    def find_problem(self, reports: list[ProcessReport] | None = None) -> str | None:
        """Return why the daemon is not ready for new readers, or None if it is."""
        if self.reporter.draining:
            return "the daemon is draining"
        serving = [report for report in reports or self.reporter.reports() if report.serves]
        if not serving:
            return "no process responds"
        if not any(report.has_room for report in serving):
            return "the daemon is out of descriptors or connections"
        return None

    def samples(self) -> list[Sample]:
        """Return the metrics of all processes, and of the daemon."""
        reports = self.reporter.reports()
        merged = merge_samples(report.samples for report in reports)
        if len(reports) > 1:  # each process has bounded the names by itself
            bound = (sample.relabel("dataset", self._names.find) for sample in merged)
            merged = merge_samples([bound])
        relay = self.context.relay
        own = () if relay is None else relay.metrics.samples()
        return [*merged, *self._list_daemon_samples(reports), *own]

    def _list_daemon_samples(self, reports: list[ProcessReport]) -> Iterator[Sample]:
        metrics = self.context.daemon_metrics
        values: dict[str, float | Labelled] = {
            "build_info": {(package_version(),): 1},
            "start_time_seconds": self.started,
            "ready": int(self.find_problem(reports) is None),
            "draining": int(self.reporter.draining),
            "workers": sum(report.serves for report in reports),
            "datasets": len(self.context.catalog),
        }
        if self._expiry is not None:
            values["certificate_expiry_timestamp_seconds"] = {("server",): self._expiry.current()}
        return metrics.samples(lambda: values)

    def list_datasets(self, principal: Principal) -> list[dict[str, Any]]:
        """Return the datasets that a principal may read, for JSON."""
        catalog = self.context.catalog
        versions = dict(catalog.list_versions())
        running = count_streams(merge_samples(r.samples for r in self.reporter.reports()))
        found: list[dict[str, Any]] = []
        for name in catalog.names():
            if principal.may(Permission.READ, name):
                try:
                    dataset = catalog.lookup(name)
                except SplitArrowError:
                    continue  # removed meanwhile
                facts = describe_dataset(dataset)
                label = self.context.streams.label_of(name)
                streams = running.get(label, 0) if label == name else None
                found.append(
                    {"name": name, **facts, "version": versions.get(name), "streams": streams}
                )
        return found

    def list_streams(self, principal: Principal) -> tuple[list[StreamReport], list[Refusals]]:
        """Return the running streams and the recent refusals that a principal may see."""
        reports = self.reporter.reports(streams=True)
        streams = [
            stream
            for report in reports
            for stream in report.streams
            if principal.may(Permission.READ, stream.dataset)
        ]
        refusals = [
            refusal
            for report in reports
            for refusal in report.refusals
            if (
                principal.is_operator
                if refusal.dataset is None
                else principal.may(Permission.READ, refusal.dataset)
            )
        ]
        return streams, sorted(refusals, key=lambda refusal: -refusal.last)


def describe_dataset(dataset: ServedDataset) -> dict[str, Any]:
    """Return the facts on a dataset, for JSON. What cannot be read is None."""
    try:
        rows, nbytes, columns = dataset.rows, dataset.nbytes, len(dataset.schema)
    except SplitArrowError:
        rows = nbytes = columns = None
    return {"kind": dataset.kind, "rows": rows, "bytes": nbytes, "columns": columns}


def count_streams(samples: list[Sample]) -> dict[str, int]:
    """Return the number of running streams by the label of the dataset."""
    counts: dict[str, int] = {}
    for metric, labels, value in samples:
        if metric.name == "running_streams" and metric.type is MetricType.GAUGE:
            counts[labels[0]] = counts.get(labels[0], 0) + int(value)  # pyright: ignore[reportArgumentType]
    return counts
