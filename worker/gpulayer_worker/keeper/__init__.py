"""The keeper: the small process of a worker that owns all others.

One keeper serves one data folder. It has no network. It starts processes in groups (a group is one kernel or one
attempt), reaps them, writes their exit records, kills what they leave behind, and keeps the agent running. The agent
talks to it over a unix socket (`gpulayer_worker.keeper.client`).
"""

from __future__ import annotations

TYPE_CHECKING = False  # the keeper stays small: `typing` is never imported at run time
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from os import PathLike

__all__ = ["run"]


def run(
    data: str | PathLike[str],
    agent_argv: list[str],
    *,
    portable: bool = False,
    agent_env: Mapping[str, str] | None = None,
    containment: str | None = None,
    on_ready: Callable[[], None] | None = None,
) -> int:
    """Be the keeper of `data` until it is told to stop; call it in the main thread of a process of its own.

    Arguments:
        data: the worker's data folder; it is made with mode 0700 when missing.
        agent_argv: the agent's command line.
        portable: use nothing that only Linux has (no subreaper, no cgroup).
        agent_env: the agent's environment; None means the keeper's own.
        containment: 'cgroup', 'subreaper' or 'marker' insists on one way to find what belongs to a group; None takes
            GPULAYER_CONTAINMENT from the environment, else the best that works here.
        on_ready: called once, when the socket answers.

    Returns the exit code for the process: 0 after SIGTERM, SIGINT or an agent that ended with 0; 1 when the agent
    refused for good (code 77) or the keeper cannot start; 3 when another keeper holds the folder.
    """
    from gpulayer_worker.keeper.loop import run_keeper

    return run_keeper(
        data, agent_argv, portable=portable, agent_env=agent_env, containment=containment, on_ready=on_ready
    )
