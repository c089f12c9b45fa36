"""A loop that reads its loss in every step, or only at its end: what does each wait cost?

    python hidden_waits.py

On a GPU a step is a matrix product. Without one, a thread stands in for the device, and sleeps for as long as
kernels would run.
"""

import queue
import threading
import time

import torch

FETCH_S, KERNELS_S = 0.009, 0.010  # of a step: the next batch on the host, and the kernels of the stand-in


class StandIn:
    """Runs what is launched, one after the other, and notes when."""

    def __init__(self):
        self.queue, self.spans = queue.Queue(), []
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            seconds, start = self.queue.get(), time.perf_counter()
            time.sleep(seconds)
            self.spans.append((start, time.perf_counter()))
            self.queue.task_done()

    def launch(self):
        self.queue.put(KERNELS_S)

    def item(self):
        self.queue.join()

    def ran(self):
        return self.spans


class Gpu:
    """A matrix product as a step, and its sum as the loss; events note when it ran."""

    def __init__(self):
        self.x, self.marks = torch.randn(4096, 4096, device="cuda"), []
        torch.cuda.synchronize()
        self.zero, self.at = self.mark(), time.perf_counter()

    def mark(self):
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def launch(self):
        start = self.mark()
        self.loss = (self.x @ self.x).sum()
        self.marks.append((start, self.mark()))

    def item(self):
        return self.loss.item()

    def ran(self):
        return [[self.at + self.zero.elapsed_time(mark) / 1e3 for mark in pair] for pair in self.marks]


class Device:
    """A GPU, or a thread that stands in for one. It notes what the host did as well."""

    def __init__(self):
        self.on = Gpu() if torch.cuda.is_available() else StandIn()
        self.on.launch()  # the first launch is slower
        self.on.item()
        self.host, self.step = [], -1

    def fetch(self):
        """The host makes the next batch."""
        self.step += 1
        start = time.perf_counter()
        time.sleep(FETCH_S)
        self.host.append((start, time.perf_counter(), "load", self.step))

    def launch(self):
        """The host launches the kernels of a step, and goes on."""
        self.on.launch()

    def item(self):
        """The host reads the loss: it waits for all that was launched."""
        start = time.perf_counter()
        self.on.item()
        self.host.append((start, time.perf_counter(), "wait", self.step, 0, "loss"))

    @property
    def step_s(self):
        """Seconds of a step, once the loss was read after the last one."""
        return (self.host[-1][1] - self.host[0][0]) / (self.step + 1)

    def two_steps(self, first=10):
        """The rows of two steps of the device for a picture, in milliseconds from the first one's start."""
        ran = self.on.ran()
        zero, last = (ran[first + at][0] for at in (1, 3))
        kernels = [(*span, "compute", step) for step, span in enumerate(ran, -1)]

        def row(bars):
            shown = [bar for bar in bars if bar[0] < last and bar[1] > zero]
            return [
                (1e3 * (start - zero), 1e3 * (min(end, last) - zero), *what) for start, end, *what in shown
            ]

        return {"steps": 2, "host": row(self.host), "kernels": row(kernels)}


def train(device, reads, steps=30):
    """A loop that reads the loss in every step, or at the end."""
    for _ in range(steps):
        device.fetch()
        device.launch()
        if reads:
            device.item()
    device.item()


def main():
    for reads in (True, False):
        device = Device()
        train(device, reads)
        where = "in every step" if reads else "at the end"
        print(f"read {where}: {device.step_s * 1e3:.1f} ms a step")


if __name__ == "__main__":
    main()
