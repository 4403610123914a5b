"""A caller of the server: its access to datasets, whichever service it calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import anyio
from anyio import CapacityLimiter, to_thread

from ..errors import NotFoundError, UnavailableError
from ..protocol.request import Request
from .auth.principal import Permission, Principal
from .catalog.dataset import ServedDataset
from .catalog.suggestions import suggest_names
from .context import ServerContext

_Arguments = TypeVarTuple("_Arguments")
_Result = TypeVar("_Result")

_MAX_NAME_CHARACTERS = 1024

NO_UPLOADS = "this server accepts no uploads; start it with --writable FOLDER"
"""The error of a server without a folder for uploads."""


class Caller:
    """A principal that calls a service of the server.

    Every handler gets its datasets here, and so checks the caller's grants in one place.

    Attributes
    ----------
    peer : str
        The address of the client.
    subject : str or None
        The dataset of the call, once that is known. Errors and logs name it.
    """

    def __init__(self, server: ServerContext, principal: Principal, peer: str) -> None:
        self.server = server
        self.principal = principal
        self.peer = peer
        self.subject: str | None = None

    def list_datasets(self) -> list[str]:
        """Return the names of the datasets that the caller may read."""
        may = self.principal.may
        return [name for name in self.server.catalog.names() if may(Permission.READ, name)]

    def authorize(self, permission: Permission, dataset: str) -> None:
        """Make a dataset the subject of the call, and check the caller's grants for it.

        Raises `DeniedError` if the caller lacks the permission, whether or not the dataset exists.
        """
        self.subject = dataset
        self.principal.require(permission, dataset)

    def check_draining(self, request: Request) -> None:
        """Check that the server does not drain, unless the request continues a read in progress."""
        server = self.server
        if server.draining.is_set() and not server.reads.includes(request):
            raise UnavailableError("the server is draining", stream=request.dataset)

    def find_dataset(self, name: str) -> ServedDataset:
        """Return a dataset that the caller may read.

        Raises `DeniedError` if the caller may not read it, whether or not it exists. Raises
        `NotFoundError` if it does not exist. The error suggests similar names that the caller may
        read.
        """
        if len(name) > _MAX_NAME_CHARACTERS:
            raise NotFoundError(
                f"no dataset has a name of {len(name)} characters; "
                f"the limit is {_MAX_NAME_CHARACTERS}"
            )
        self.authorize(Permission.READ, name)
        try:
            return self.server.catalog.lookup(name)
        except NotFoundError:
            clause = suggest_names(name, self.list_datasets())
            raise NotFoundError(f"no dataset {name!r}{clause}", stream=name) from None


async def run_in_thread(
    function: Callable[[*_Arguments], _Result],
    *arguments: *_Arguments,
    limiter: CapacityLimiter | None = None,
) -> _Result:
    """Run a function on a worker thread, and wait for it even if the call is cancelled.

    A request over HTTP cancels the task itself, from which anyio does not shield. What the function
    uses, and the limits that count its thread, would then be released while it runs.
    """
    results: list[_Result] = []
    errors: list[Exception] = []

    async def run() -> None:
        try:
            results.append(await to_thread.run_sync(function, *arguments, limiter=limiter))
        except Exception as error:
            errors.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
    if errors:
        raise errors.pop()
    return results[0]
