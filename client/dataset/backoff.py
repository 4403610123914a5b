"""The pauses between retries.

They grow exponentially and are random, so that many readers that lose their server together do not
come back together.
"""

from __future__ import annotations

FIRST_PAUSE_SECONDS = 0.1
"""The longest pause before the first retry. Each further retry doubles it."""
MAX_PAUSE_SECONDS = 5.0
"""The longest pause."""


def draw_pause(retry: int) -> float:
    """Draw the pause before a retry: between half of its longest pause and all of it.

    Parameters
    ----------
    retry : int
        The number of retries before this one.

    Returns
    -------
    float
        The pause in seconds.
    """
    import tenacity  # only a failed read needs it

    half = {"multiplier": FIRST_PAUSE_SECONDS / 2, "max": MAX_PAUSE_SECONDS / 2}
    wait = tenacity.wait_exponential(**half) + tenacity.wait_random_exponential(**half)
    state = tenacity.RetryCallState(tenacity.Retrying(), fn=None, args=(), kwargs={})
    state.attempt_number = retry + 1
    return wait(state)
