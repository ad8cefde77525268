"""How a command ends: with 0, or with one line that says what went wrong.

What the user can put right ends with 2, Ctrl-C with 130, quietly, and a reader that leaves the
pipe with what a shell counts for that.
"""

import errno
import os
import re
import sys
from collections.abc import Callable
from typing import Any

from jumok.cli.printing import say

READER_LEFT = 141  # 128 + SIGPIPE, as a shell counts

_EXTRA_OF = {
    "torch": "torch",
    "tokenizers": "torch",
    "gguf": "torch",
    "jinja2": "torch",
    "transformers": "hf",
    "matplotlib": "view",
    "starlette": "view",
    "uvicorn": "view",
    "anywidget": "view",
    "ipywidgets": "view",
    "traitlets": "view",
}


class Refusal(Exception):
    """Something the user can put right; the message says what, in one line."""


def exit_code(command: Callable[[], Any]) -> int:
    """Run a command; the code with which the process should end."""
    try:
        code = command()
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of a pipe has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_LEFT
    except SystemExit:  # so does the parser end when the reader leaves while a command prints
        return READER_LEFT
    except Exception as error:
        if type(error).__name__ == "Abort":  # how the parser reports Ctrl-C
            return 130
        if os.environ.get("JUMOK_DEBUG"):
            raise
        if hasattr(error, "format_message"):  # the parser's: an unknown option and the like
            say(f"jumok: {_said_by_parser(error)}; see jumok --help")
        else:
            say(f"jumok: {_complaint(error)}")
        return 2
    return code if isinstance(code, int) else 0


def _said_by_parser(error: Any) -> str:
    """What is wrong with an option, in the words that commands use themselves."""
    message = str(error.format_message()).rstrip(".")
    found = re.match(r"Invalid value for '(-[\w-]+)[^:]*:(.*)\b(integer|number|float)\b", message)
    if found is None:
        return message
    name, said, kind = found.groups()
    quoted = re.search(r"'(.*?)'", said)  # older parsers say what was given, newer ones know it
    faults: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()
    value = quoted[1] if quoted else faults[0].get("input", "") if faults else ""
    return f"{name} {value}: {'a whole number' if kind == 'integer' else 'a number'}"


def _complaint(error: Exception) -> str:
    """One line that says what went wrong and what to do."""
    if _out_of_memory(error):
        return "not enough memory for this model and text; try a shorter text or a smaller model"
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").split(".")[0]
        if package in _EXTRA_OF:
            return f"this needs {package}: pip install 'jumok[{_EXTRA_OF[package]}]'"
    if isinstance(error, (Refusal, ValueError, LookupError, OSError)):
        return _reason(error)
    kind = type(error).__name__
    return f"this is a fault in jumok ({kind}: {_reason(error)}); JUMOK_DEBUG=1 shows where"


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def _out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    said = str(error).lower()
    signs = ("out of memory", "allocate memory", "not enough memory", "failed to map segment")
    return isinstance(error, (RuntimeError, ImportError, OSError)) and any(s in said for s in signs)


def short_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning in one line, as `warnings.showwarning` is called."""
    say(f"jumok: note: {_reason(message) if isinstance(message, Warning) else message}")
