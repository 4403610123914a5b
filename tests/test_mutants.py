"""``make mutants`` plants every kind of change, one at a time."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from judging import Judge, find_uses
from mutants import ROOT, read_equivalent
from planting import Mutant, Planter
from recording import find_function_lines, merge_records, update_lines


def changes_of(source: str) -> set[str]:
    """Return every changed version of some source."""
    tree = ast.parse(source)
    counting = Planter()
    counting.visit(ast.parse(source))
    changed = [ast.unparse(Planter(n).visit(ast.parse(source))) for n in range(counting.count)]
    assert ast.unparse(tree) not in changed
    return set(changed)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = a < b", {"x = a <= b"}),
        ("x = a is b", {"x = a is not b"}),
        ("x = a and b", {"x = a or b"}),
        ("x = a + 1", {"x = a - 1", "x = a + 2"}),
        ("x += y", {"x -= y", "pass"}),
        ("x = True", {"x = False"}),
        ("f(x)", {"pass"}),
        ("if a:\n    x = y", {"if not a:\n    x = y"}),
        ("def f():\n    return x", {"def f():\n    pass"}),
        ("raise ValueError(f'{1 + x}')", {"pass"}),
        ("def f():\n    g()\n    return None", {"def f():\n    pass\n    return None"}),
    ],
)
def test_each_kind_of_change_is_planted(source: str, expected: set[str]) -> None:
    assert changes_of(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""A docstring."""',
        "from x import y",
        "def f(a: 'b < 1') -> c[1]:\n    ...",
        "if TYPE_CHECKING:\n    x = 1 < 2",
        "@overload\ndef f(x: int = 1) -> int: ...",
        "x = 'text'",
    ],
)
def test_words_and_types_stay(source: str) -> None:
    assert changes_of(source) == set()


def test_a_change_is_met_by_the_tests_of_its_line(tmp_path: Path) -> None:
    (tmp_path / "splitarrow").mkdir()
    (tmp_path / "splitarrow" / "a.py").write_text("a = 1\nb = 2\n" + "\n" * 4 + "print(b)\n")
    lines = {"a.py": {"1": ["", "import"], "2": [""], "7": ["slow", "quick"], "9": []}}
    lines["b.py"] = {"7": ["unrelated"]}
    judge = Judge(tmp_path, {"lines": lines, "seconds": {"slow": 2.0, "quick": 0.1, "import": 1.0}})

    def tests_of(line: int) -> list[str]:
        return judge.tests_of(Mutant("a.py", line, "", ""))

    assert tests_of(7) == tests_of(8) == ["quick", "slow"]
    assert tests_of(20) == []
    assert tests_of(1) == ["quick", "import", "slow"]
    assert tests_of(2) == ["quick", "slow", "import"]


def test_the_tests_of_the_mirrored_module_come_first_and_then_those_of_its_folder() -> None:
    own, near = "tests/formats/test_a.py::own", "tests/formats/test_b.py::near"
    seconds = {"quick[1]": 0.1, "quick[2]": 0.2, "slow": 0.3, own: 3.0, near: 2.0}
    judge = Judge(ROOT, {"lines": {"formats/a.py": {"7": list(seconds)}}, "seconds": seconds})
    tests = judge.tests_of(Mutant("formats/a.py", 7, "", ""))
    assert tests == [own, near, "quick[1]", "slow", "quick[2]"]


def test_a_line_of_a_shared_fixture_is_met_by_all_tests_that_can_use_it() -> None:
    seconds = {"t/a/test_x.py::a": 1.0, "t/a/test_y.py::b": 2.0, "t/b/test_z.py::c": 3.0}
    judge = Judge(ROOT, {"lines": {"c.py": {"7": ["t/a/"]}}, "seconds": seconds})
    tests = judge.tests_of(Mutant("c.py", 7, "", ""))
    assert tests == ["t/a/test_x.py::a", "t/a/test_y.py::b"]


RECORDED_TESTS = """
import subprocess, sys
import pytest

CHILD = "from splitarrow.a import f; f({})"

def run(value):
    subprocess.run([sys.executable, "-c", CHILD.format(value)], check=True)

@pytest.fixture(scope="module")
def shared():
    run(1)

def test_shares(shared):
    pass

def test_starts_a_process():
    run(0)
"""


@pytest.mark.slow
def test_processes_that_tests_start_are_recorded(tmp_path: Path) -> None:
    """What a fixture of several tests starts counts for each of them."""
    package = tmp_path / "splitarrow"
    (package / "tests").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "a.py").write_text(
        "def f(x):\n    if x:\n        return 1\n    else:\n        return 2\n"
    )
    (package / "tests" / "test_a.py").write_text(RECORDED_TESTS)
    (package / "pytest.ini").touch()
    script = (
        "import os, sys; from pathlib import Path; from recording import record;"
        "folder = Path(sys.argv[1]); os.chdir(folder / 'splitarrow');"
        "os.environ['PYTHONPATH'] = str(folder); record(folder, ['tests/test_a.py'])"
    )
    subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], cwd=ROOT / "tests", check=True, timeout=60
    )
    recorded = json.loads((tmp_path / "lines.json").read_text())
    module, test = "tests/test_a.py", "tests/test_a.py::test_starts_a_process"
    lines = {line: set(names) for line, names in recorded["lines"]["a.py"].items()}
    assert lines == {"1": {""}, "2": {module, test}, "3": {module}, "5": {test}}


START_A_DAEMON = """
import subprocess, sys, time
from pathlib import Path
import child_processes

def start(workplace, ends):
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    daemon = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    print(daemon.pid, flush=True)
    while not ends:
        time.sleep(1)
    return 7

workplace, ends = Path(sys.argv[1]), sys.argv[2] == "True"
(workplace / "splitarrow").mkdir()
output = workplace / "output.txt"

class Clock:  # It starts at 0, and jumps to the end once the test that hangs has its daemon.
    sleep = time.sleep
    is_started = False
    def monotonic(self):
        is_late = self.is_started and not ends and output.exists() and output.read_text()
        self.is_started = True
        return 1e9 if is_late else 0

child_processes.time = Clock()
child_processes.adopt_orphans()
print(child_processes.in_child(workplace, 60, start, ends))
"""


@pytest.mark.parametrize(("ends", "status"), [(True, "7"), (False, "None")])
def test_nothing_that_a_test_started_outlives_it(tmp_path: Path, ends: bool, status: str) -> None:
    """Neither what a test leaves that ends, nor what one leaves that hangs."""
    command = [sys.executable, "-c", START_A_DAEMON, str(tmp_path), str(ends)]
    ended = subprocess.run(
        command, cwd=ROOT / "tests", check=True, capture_output=True, text=True, timeout=60
    )
    assert ended.stdout.strip() == status
    daemon = int((tmp_path / "output.txt").read_text())
    assert not Path(f"/proc/{daemon}").exists()
    assert not (tmp_path / "t").exists()


def test_the_record_of_changed_tests_is_replaced() -> None:
    old = {
        "lines": {"a.py": {"1": ["", "t/a.py::x", "t/b.py::x"], "2": ["t/a.py::x"]}},
        "seconds": {"t/a.py::x": 1.0, "t/b.py::x": 2.0},
        "failed": ["t/a.py::y"],
        "modules": {"t/a.py": "0", "t/b.py": "1"},
        "sources": {"a.py": "x"},
    }
    new = {
        "lines": {"a.py": {"1": ["", "t/a.py::z"]}},
        "seconds": {"t/a.py::z": 3.0},
        "failed": [],
        "modules": {"t/a.py": "2"},
        "sources": {"a.py": "y"},
    }
    assert merge_records(old, new, {"t/a.py"}) == {
        "lines": {"a.py": {"1": ["", "t/b.py::x", "t/a.py::z"], "2": []}},
        "seconds": {"t/b.py::x": 2.0, "t/a.py::z": 3.0},
        "failed": [],
        "modules": {"t/a.py": "2", "t/b.py": "1"},
        "sources": {"a.py": "y"},
    }


def test_a_record_follows_the_lines_of_changed_sources(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import y\nx = 1\nz = 3\n")
    (tmp_path / "b.py").write_text("x = 1\n")
    old = {
        "lines": {"a.py": {"1": ["one"], "2": ["two"]}, "b.py": {"1": ["b"]}, "c.py": {}},
        "sources": {"a.py": "x = 1\nx = 2\n", "b.py": "x = 1\n", "c.py": ""},
        "modules": {},
    }
    assert update_lines(old, tmp_path)["lines"] == {"a.py": {"2": ["one"]}, "b.py": {"1": ["b"]}}


def test_the_tests_of_a_module_that_is_gone_leave_the_record(tmp_path: Path) -> None:
    """Otherwise pytest would not find them, and each change would count as caught."""
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "here.py").touch()
    old = {
        "lines": {"a.py": {"1": ["", "gone.py::x", "here.py::x"]}},
        "seconds": {"gone.py::x": 1.0, "here.py::x": 2.0},
        "failed": ["gone.py::y"],
        "modules": {"gone.py": "0", "here.py": "1"},
        "sources": {"a.py": "x = 1\n"},
    }
    assert update_lines(old, tmp_path) == {
        "lines": {"a.py": {"1": ["", "here.py::x"]}},
        "seconds": {"here.py::x": 2.0},
        "failed": [],
        "modules": {"here.py": "1"},
        "sources": {"a.py": "x = 1\n"},
    }


def test_each_change_that_changes_nothing_is_one_of_the_code() -> None:
    for file, code, _ in read_equivalent():
        lines = (ROOT / file).read_text().splitlines()
        assert code in [line.strip() for line in lines], (file, code)


SOURCE = """\
LIMIT = 1 << 20
class C:
    size: int = 2
    @decorate(3)
    def read(
        self, count: int = 4
    ) -> int:
        if count > LIMIT:
            return self.size
def other():
    return C().size
"""


@pytest.mark.parametrize(
    ("line", "uses"), [(1, {8}), (3, {9, 11}), (4, {8, 9}), (6, {8, 9}), (8, set[int]())]
)
def test_the_uses_of_a_line_outside_of_functions_are_found(line: int, uses: set[int]) -> None:
    assert find_uses(SOURCE, line) == uses


def test_the_lines_inside_of_functions_are_found() -> None:
    assert find_function_lines(SOURCE) == {8, 9, 11}
