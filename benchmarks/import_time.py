"""How long `import jumok` takes, and what it loads: median of fresh interpreters.

python benchmarks/import_time.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys

RUNS = 15
GOAL = 0.3  # seconds
SCRIPT = """
import sys, time
start = time.perf_counter()
import jumok
print(time.perf_counter() - start)
print("torch" in sys.modules, "numpy" in sys.modules)
"""


def main() -> None:
    """Print the figure."""
    seconds = []
    for _ in range(RUNS):
        result = subprocess.run(
            [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
        )
        time, loaded = result.stdout.splitlines()
        seconds.append(float(time))
    torch, numpy = loaded.split()
    print(
        f"import jumok: median {statistics.median(seconds):.4f} s, "
        f"worst {max(seconds):.4f} s of {RUNS} (goal: below {GOAL} s)"
    )
    print(f"loads torch: {torch}, loads numpy: {numpy}")


if __name__ == "__main__":
    main()
