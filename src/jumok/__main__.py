"""``python -m jumok`` is the command ``jumok``."""

from jumok.cli import main

main()
