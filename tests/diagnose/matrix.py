"""Every fault against explain, over seeds: how often the first cause is right, wrong or none. Run it for the table."""

from __future__ import annotations

import sys
import time
from collections import Counter

import numpy as np

from padiff.diagnose.causes import explain
from tests.diagnose.faults import FAULTS, scene


def main(seeds: int) -> None:
    total: Counter[str] = Counter()
    for name, (causes, maker) in FAULTS.items():
        seen: Counter[str] = Counter()
        start = time.perf_counter()
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            found = [cause.name for cause in explain(scene(maker(rng), rng))]
            first = found[0] if found else "none"
            verdict = "right" if first in causes or (not causes and not found) else "none" if not found else "wrong"
            total[verdict] += 1
            if verdict != "right":
                seen[f"{verdict}: {', '.join(found)}"] += 1
        took = 1000 * (time.perf_counter() - start) / seeds
        print(f"{name:32} {took:6.0f} ms  {dict(seen) or ''}")
    print(dict(total))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
