"""A standalone Spark cluster on the loopback interface, from the jars of PySpark."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import venv
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pyspark

from helpers.waiting import wait_until
from splitarrow.pipeline import prepare_environment

SPARK_HOME = Path(pyspark.__file__).parent
SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.cores": "2",
    "spark.executor.memory": "512m",
    "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}
_START_SECONDS = 120.0
_MASTER_URI = re.compile(r"spark://127\.0\.0\.1:\d+")
_VARIABLES_OF_SPARK = ("PYSPARK_", "SPARK_", "PYTHON")


class SparkCluster:
    """A running cluster.

    Its nodes find an interpreter without packages as ``python3``, as those of a new machine do.
    Neither the packages of this process nor its ``PATH`` reach them by accident.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bare_python = folder / "bare" / "bin" / "python3"
        """The interpreter that the nodes find as ``python3``."""
        self.uri = ""
        """The URI of the master."""
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the nodes, and of ``spark-submit``."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_VARIABLES_OF_SPARK)
        }
        path = [str(self.bare_python.parent), "/usr/local/bin", "/usr/bin", "/bin"]
        if "JAVA_HOME" not in inherited and (java := shutil.which("java")):
            path.insert(1, str(Path(java).parent))
        return inherited | {
            "PATH": os.pathsep.join(path),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "TMPDIR": str(self.folder / "tmp"),
        }

    def start_node(self, name: str, *arguments: str) -> Path:
        """Start the master or a worker; return the file with its log."""
        log = self.folder / f"{name}.log"
        # A node dies with this process, however that ends, and its executors with it.
        tie = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        with log.open("ab") as output:
            self._nodes[name] = subprocess.Popen(
                [*tie, str(SPARK_HOME / "bin" / "spark-class"), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.environment,
                cwd=self.folder,
                start_new_session=True,
            )
        return log

    def start_master(self) -> None:
        """Start the master on a free port."""
        log = self.start_node(
            "master",
            "org.apache.spark.deploy.master.Master",
            *("--host", "127.0.0.1", "--port", "0", "--webui-port", "0"),
        )
        wait_until(lambda: self._find("master", log, _MASTER_URI), "the master", _START_SECONDS)
        self.uri = self._find("master", log, _MASTER_URI)

    def start_worker(self, name: str) -> None:
        """Start a worker with room for one executor, and wait until the master knows it."""
        (self.folder / f"{name}.log").unlink(missing_ok=True)
        log = self.start_node(
            name,
            "org.apache.spark.deploy.worker.Worker",
            *("--host", "127.0.0.1", "--port", "0", "--webui-port", "0"),
            *("--cores", "2", "--memory", "600m", "--work-dir", str(self.folder / "work" / name)),
            self.uri,
        )
        registered = re.compile("Successfully registered with master")
        wait_until(lambda: self._find(name, log, registered), name, _START_SECONDS)

    def _find(self, name: str, log: Path, pattern: re.Pattern[str]) -> str:
        """Return the first match in the log of a node, or an empty string; fail if it ended."""
        text = log.read_text(errors="replace")
        match = pattern.search(text)
        assert match or self._nodes[name].poll() is None, f"{name} ended:\n{text[-3000:]}"
        return match[0] if match else ""

    def submit(
        self,
        script: str | Path,
        *arguments: str,
        settings: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        seconds: float = 240.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a script with ``spark-submit`` on the cluster; return its output."""
        process = self.start_submit(script, *arguments, settings=settings, environment=environment)
        try:
            output, errors = process.communicate(timeout=seconds)
        except BaseException:
            kill_session(process)
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def start_submit(
        self,
        script: str | Path,
        *arguments: str,
        settings: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[str]:
        """Start ``spark-submit``."""
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", self.uri]
        for name, value in {**SETTINGS, **(settings or {})}.items():
            command += ["--conf", f"{name}={value}"]
        return subprocess.Popen(
            [*command, str(script), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**self.environment, **(environment or {})},
            cwd=self.folder,
            start_new_session=True,
        )

    def executors(self, worker: str) -> list[psutil.Process]:
        """Return the Java processes of a worker's executors."""
        node = psutil.Process(self._nodes[worker].pid)
        return [child for child in node.children() if "CoarseGrained" in " ".join(_command(child))]

    def processes_of_jobs(self) -> list[psutil.Process]:
        """Return the drivers and executors, and what they started: all that work in the folder."""
        nodes = {node.pid for node in self._nodes.values()}
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.pid in nodes or process.status() == psutil.STATUS_ZOMBIE:
                    continue
                if Path(process.cwd()).is_relative_to(self.folder):
                    found.append(process)
        return found

    def kill_worker(self, name: str) -> None:
        """Kill a worker alone; its executors notice by themselves."""
        self._nodes[name].kill()
        self._nodes[name].wait()

    def start_missing_workers(self) -> None:
        """Start the workers again that were killed."""
        for name, node in list(self._nodes.items()):
            if node.poll() is not None:
                self.start_worker(name)

    def stop(self) -> None:
        """Kill every process of the cluster."""
        for node in reversed(self._nodes.values()):
            kill_session(node)
        self._nodes.clear()


@contextmanager
def running_cluster(folder: Path, workers: Sequence[str] = ("a", "b")) -> Generator[SparkCluster]:
    """Run a cluster with its files below a folder, and remove its processes in any case."""
    variables = dict(os.environ)
    prepare_environment("local")
    cluster = SparkCluster(folder)
    (folder / "tmp").mkdir(parents=True)
    venv.create(folder / "bare", with_pip=False, symlinks=True)
    with ExitStack() as stack:
        stack.callback(cluster.stop)
        cluster.start_master()
        for name in workers:
            cluster.start_worker(name)
        yield cluster
    os.environ.clear()
    os.environ.update(variables)


def kill_session(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """Kill a process and all that it started: its session, which no child of Spark leaves."""
    for candidate in psutil.pids():
        with suppress(ProcessLookupError):
            if os.getsid(candidate) == process.pid:
                os.kill(candidate, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _command(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return process.cmdline()
    return []
