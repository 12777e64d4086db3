"""The command `gpulayer`; also `python -m gpulayer.cli`."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import traceback
from typing import NoReturn

from gpulayer.cli.app import ELSEWHERE, command

_INTERRUPTED = 130
_PIPE = 141  # 128 + SIGPIPE, which a shell knows


def main() -> NoReturn:
    """Run what the command line says, and exit."""
    sys.exit(run(sys.argv[1:]))


def run(words: list[str]) -> int:
    """Run a command line; its exit code. What goes wrong is one line on stderr."""
    words = list(words)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal whose letters are not ours
    debug = words[:1] == ["--debug"]
    if debug:
        words.pop(0)
    try:
        if words and words[0] in ELSEWHERE:
            from gpulayer.cli.elsewhere import run_elsewhere

            return run_elsewhere(words[0], words[1:])
        code = command().main(words, prog_name="gpulayer", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except KeyboardInterrupt:
        if debug:
            raise
        return _INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter would say so once more
        return _PIPE
    except Exception as error:  # noqa: BLE001 no traceback of ours, unless it is asked for
        if debug and not hasattr(error, "format_message"):
            traceback.print_exc()
        return _said(error)


def _said(error: Exception) -> int:
    """Say what went wrong; the exit code for it."""
    if type(error).__name__ == "NoArgsIsHelpError":
        getattr(error, "show", str)()
        return 2
    if type(error).__name__ == "Abort":
        return _INTERRUPTED
    from gpulayer.cli.errors import explained
    from gpulayer.words import visible

    lines, code = explained(error)
    with contextlib.suppress(OSError):  # nobody reads it, or the terminal is gone
        sys.stderr.write("".join(f"{visible(line)}\n" for line in lines))
        sys.stderr.flush()
    return code


if __name__ == "__main__":
    main()
