"""The page of a command: served on a local address, or written into one file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jumok.cli.ending import Refusal
from jumok.cli.files import check_writable, write
from jumok.cli.printing import say

if TYPE_CHECKING:
    from jumok.lens.recording import Recording

HTML = (".html", ".htm")


@dataclass(frozen=True)
class PageWish:
    """What a command was asked for.

    Attributes:
        html: a file to write the page into.
        heads: whose single weights it holds first, such as ``3.1,12.4``.
        serve: whether to serve it.
        port: to serve it at; 0 for a free one.
        open_browser: whether to open it in the browser.
    """

    html: Path | None = None
    heads: str | None = None
    serve: bool = False
    port: int = 0
    open_browser: bool = True

    def __bool__(self) -> bool:
        return self.serve or self.html is not None

    def check(self) -> None:
        """Refuse before the work what can't be done."""
        if self.heads is not None and self.html is None:
            raise Refusal(
                f"--heads {self.heads} is about the file of the page; it goes with --html"
            )
        if self.html is not None:
            if self.html.suffix.lower() not in HTML:
                raise Refusal(f"--html {self.html}: the name must end in .html")
            check_writable(self.html)
        self.chosen_heads()
        if self:
            from jumok.view.server import assets

            assets()
        if self.serve:
            import uvicorn  # noqa: F401  (say that it is missing before the model runs)

    def chosen_heads(self) -> list[tuple[int, int]]:
        """(layer, head) of each."""
        found = []
        for part in self.heads.split(",") if self.heads is not None else ():
            layer, dot, head = part.strip().partition(".")
            if not (dot and layer.isdecimal() and head.isdecimal()):
                raise Refusal(f"--heads {self.heads}: write layer.head, such as 3.1,12.4")
            found.append((int(layer), int(head)))
        return found

    def write(self, recordings: Sequence["Recording"], titles: Sequence[str]) -> None:
        """Write the page into its file, if that was asked for; a title may be a whole text."""
        if self.html is None:
            return
        from jumok.tokens import shortened
        from jumok.view.page import self_contained
        from jumok.view.questions import Questions

        names = [shortened(" ".join(title.split()), 60) for title in titles]
        questions = Questions(recordings, names, transport="file")
        page = self_contained(questions, self.chosen_heads(), title=" · ".join(names))
        data = page.html.encode()
        write(self.html, lambda part: Path(part).write_bytes(data))
        say(f"wrote {self.html}")
        for sentence in page.left_out:
            say(sentence)

    def show(
        self,
        recordings: Sequence["Recording"],
        titles: Sequence[str],
        files: Sequence[Path] | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        """Serve the page until Ctrl-C, if that was asked for."""
        if self.serve:
            from jumok.cli.view import serve
            from jumok.tokens import shortened
            from jumok.view.questions import Questions

            names = [shortened(" ".join(title.split()), 60) for title in titles]
            questions = Questions(recordings, names, files)
            serve(questions, host=host, port=self.port, open_browser=self.open_browser)
