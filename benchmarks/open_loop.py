"""Does the open-loop generator hold its schedule? Against a null server in another process, on the same processors.

    python benchmarks/open_loop.py [--rates 1000 2000 5000] [--seconds 5]

The rate that was sent must be within 1 % of the rate that was due; shown beside it is how late single requests were.
"""

from __future__ import annotations

import argparse
import os
import statistics

from facefleet.bench.load.connection import Target
from facefleet.bench.load.null_server import null_server
from facefleet.bench.load.schedule import ARRIVALS
from facefleet.bench.load.serve import Client, schedule_error
from facefleet.bench.stats import quantile
from facefleet.config import this_machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", nargs="*", type=float, default=[1000.0, 2000.0, 5000.0])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bytes", type=int, default=1000)
    arguments = parser.parse_args()
    machine = this_machine()
    print(f"{machine.cpu}, {machine.threads} threads, load {os.getloadavg()[0]:.2f}")
    print(
        f"{'arrivals':8} {'due/s':>8} {'sent/s':>8} {'off':>7} {'late p50':>9} {'late p99':>9} {'answers':>8} "
        f"{'p99 ms':>7}"
    )
    worst = 0.0
    for name, arrivals in ARRIVALS.items():
        for rate in arguments.rates:
            rounds = []
            for _ in range(arguments.rounds):
                with null_server() as url:
                    client = Client(target=Target.of(url), bodies=[bytes(arguments.bytes)], headers={})
                    rounds.append(client.open(arrivals(rate, arguments.seconds)))
            off = schedule_error(rounds)
            worst = max(worst, off)
            late = sorted(each for sent in rounds for each in sent.late_s)
            answers = sorted(each for sent in rounds for each in sent.latencies_s)
            sent_rate = statistics.fmean(sent.planned / sent.send_s for sent in rounds)
            print(
                f"{name:8} {rate:8.0f} {sent_rate:8.1f} {100 * off:6.3f}% {1000 * quantile(late, 50):8.3f} "
                f"{1000 * quantile(late, 99):9.3f} {len(answers):8} {1000 * quantile(answers, 99):7.2f}"
            )
    print(f"off by at most {100 * worst:.3f} %: {'held' if worst <= 0.01 else 'NOT held'}")


if __name__ == "__main__":
    main()
