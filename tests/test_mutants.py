"""``make mutants`` plants every kind of change, one at a time."""

from __future__ import annotations

import ast

import pytest
from mutants import ROOT, Judge, read_equivalent
from planting import Mutant, Planter
from recording import merge_records


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
        "x = 'text'",
    ],
)
def test_words_and_types_stay(source: str) -> None:
    assert changes_of(source) == set()


def test_a_change_is_met_by_the_tests_of_its_line() -> None:
    lines = {"a.py": {"1": ["", "import"], "7": ["slow", "quick"], "9": []}}
    judge = Judge(ROOT, {"lines": lines, "seconds": {"slow": 2.0, "quick": 0.1, "import": 1.0}})

    def tests_of(line: int) -> list[str]:
        return judge.tests_of(Mutant("a.py", line, "", ""))

    assert tests_of(7) == tests_of(8) == ["quick", "slow"]
    assert tests_of(20) == []
    assert tests_of(1) == ["quick", "import", "slow"]


def test_the_tests_of_the_mirrored_module_come_first() -> None:
    own = "tests/formats/test_a.py::own"
    lines = {"formats/a.py": {"7": ["quick", own]}}
    judge = Judge(ROOT, {"lines": lines, "seconds": {"quick": 0.1, own: 2.0}})
    assert judge.tests_of(Mutant("formats/a.py", 7, "", "")) == [own, "quick"]


def test_the_record_of_changed_tests_is_replaced() -> None:
    old = {
        "lines": {"a.py": {"1": ["", "t/a.py::x", "t/b.py::x"], "2": ["t/a.py::x"]}},
        "seconds": {"t/a.py::x": 1.0, "t/b.py::x": 2.0},
        "failed": ["t/a.py::y"],
        "modules": {"t/a.py": "0", "t/b.py": "1"},
    }
    new = {
        "lines": {"a.py": {"1": ["", "t/a.py::z"]}},
        "seconds": {"t/a.py::z": 3.0},
        "failed": [],
        "modules": {"t/a.py": "2"},
    }
    assert merge_records(old, new, {"t/a.py"}) == {
        "lines": {"a.py": {"1": ["", "t/b.py::x", "t/a.py::z"], "2": []}},
        "seconds": {"t/b.py::x": 2.0, "t/a.py::z": 3.0},
        "failed": [],
        "modules": {"t/a.py": "2", "t/b.py": "1"},
    }


def test_each_change_that_changes_nothing_is_one_of_the_code() -> None:
    for file, code, _ in read_equivalent():
        lines = (ROOT / file).read_text().splitlines()
        assert code in [line.strip() for line in lines], (file, code)
