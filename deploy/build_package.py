"""The build step that leaves the studies out of the wheel.

An editable install links only the packages that `pyproject.toml` lists. It needs the studies too,
because `python -m splitarrow.benchmarks.studies.NAME` runs them in a checkout.
"""

from setuptools.command.build_py import build_py

STUDIES = "splitarrow.benchmarks.studies"


class BuildPackage(build_py):
    """Build the listed packages, and link the studies into an editable install."""

    def run(self) -> None:
        """Run the step."""
        if self.editable_mode:
            self.packages = [*(self.packages or ()), STUDIES]
        super().run()
