"""``python -m benchmarks [name …]``: run the named benchmarks, or all of them."""

import importlib
import sys

NAMES = ("floor", "memory", "wine", "startup", "choose", "iteration", "exact", "tierney_kadane", "methods", "sampling", "peers")

if __name__ == "__main__":
    chosen = sys.argv[1:] or NAMES
    unknown = set(chosen) - set(NAMES)
    if unknown:
        sys.exit(f"no benchmark {', '.join(sorted(unknown))}: choose from {', '.join(NAMES)}")
    for name in chosen:
        importlib.import_module(f"benchmarks.{name}").run()
