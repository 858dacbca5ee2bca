"""Speed and memory, as ratios measured side by side in one run. ``python -m benchmarks [name …]`` runs and records them."""
