"""The head's product in a decode or verify step: BF16 against int8, 1 to 8 rows.

    python benchmark/head_step.py [--vocab 248320] [--hidden 5120] [--device cpu|cuda]

Runs what is there: torch's own int8 product (one scale a row), and on a CPU the product
that the runtime of python/cpu_reference uses for W8A16 of group 128. Marlin, which SGLang
serves a packed head with on a GPU, needs a full SGLang install and is not in it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch

from specpack.evals.provenance import cpu

ROWS = (1, 2, 4, 8)
GROUP = 128
REPEATS, WARM_UP = 15, 3
BLOCK = 8192  # rows of the head made at a time: float noise of all would not fit
Step = Callable[[torch.Tensor], torch.Tensor]


def dense(codes: torch.Tensor, scales: torch.Tensor) -> Step:
    """``x @ W.T`` with the BF16 matrix that the codes stand for."""
    weight = torch.empty(codes.shape, dtype=torch.bfloat16, device=codes.device)
    for at in range(0, len(codes), BLOCK):
        block = slice(at, at + BLOCK)
        weight[block] = codes[block].to(torch.bfloat16) * scales[block, None]
    return lambda x: x @ weight.T


def one_scale_a_row(codes: torch.Tensor, scales: torch.Tensor) -> Step:
    return lambda x: torch.ops.aten._weight_int8pack_mm(x, codes, scales)


def groups_of_128(codes: torch.Tensor, scales: torch.Tensor) -> Step:
    """The CPU runtime's product for compressed-tensors W8A16."""
    if codes.device.type != "cpu":
        raise NotImplementedError("the CPU runtime's product")
    from sglang_cpu_reference.weight_only import choose, multiply, pack

    product = choose(8, *codes.shape, GROUP)
    unsigned = (codes.view(torch.uint8) ^ 128).contiguous()
    each = scales[:, None].expand(-1, codes.shape[1] // GROUP).contiguous()
    weight, packed_scales = pack(product, unsigned, each)
    return lambda x: multiply(product, x, weight, packed_scales)


STEPS = {
    "int8, one scale a row": one_scale_a_row,
    "int8, groups of 128": groups_of_128,
}


def milliseconds(step: Step, x: torch.Tensor) -> float:
    """The median time of one call."""
    wait = torch.cuda.synchronize if x.is_cuda else lambda: None
    times = []
    for _ in range(WARM_UP + REPEATS):
        wait()
        start = time.perf_counter()
        step(x)
        wait()
        times.append(time.perf_counter() - start)
    return statistics.median(times[WARM_UP:]) * 1e3


def measure(step: Step, x: torch.Tensor, exact: torch.Tensor) -> float | str:
    """Its time, or why there is none: not available, or not the same product."""
    try:
        off = (step(x).float() - exact).norm() / exact.norm()
    except (NotImplementedError, RuntimeError, ImportError) as error:
        return f"not available: {str(error).splitlines()[0][:70]}"
    return milliseconds(step, x) if off < 0.02 else f"wrong by {off:.1%}"


def made(make: Callable[..., Step], *arguments: torch.Tensor) -> Step:
    """The step; one that cannot be made says so when it is called."""
    try:
        return make(*arguments)
    except (NotImplementedError, RuntimeError, ImportError) as error:
        reason = str(error)

    def unavailable(x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError(reason)

    return unavailable


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", type=int, default=248320)
    parser.add_argument("--hidden", type=int, default=5120)
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=default)
    options = parser.parse_args()
    torch.manual_seed(0)
    shape, device = (options.vocab, options.hidden), options.device
    codes = torch.randint(-127, 128, shape, dtype=torch.int8, device=device)
    scales = (torch.rand(options.vocab, device=device) / 1e4 + 1e-4).bfloat16()
    where = torch.cuda.get_device_name() if device == "cuda" else cpu()
    threads = f", {torch.get_num_threads()} threads" if device == "cpu" else ""
    print(
        f"{shape[0]}×{shape[1]} on {device} ({where}{threads}), torch {torch.__version__}"
    )
    exact_step = dense(codes, scales)
    inputs = [torch.randn(n, options.hidden, device=device).bfloat16() for n in ROWS]
    exact = [exact_step(x).float() for x in inputs]
    times = [milliseconds(exact_step, x) for x in inputs]
    print("| product | " + " | ".join(f"{n} rows" for n in ROWS) + " |")
    print("|---" * (len(ROWS) + 1) + "|")
    print("| BF16 | " + " | ".join(f"{t:.2f} ms" for t in times) + " |")
    for name, make in STEPS.items():
        step = made(make, codes, scales)
        found = [measure(step, *pair) for pair in zip(inputs, exact, strict=True)]
        cells = (shown(f, t) for f, t in zip(found, times, strict=True))
        print(f"| {name} | " + " | ".join(cells) + " |")
        del step
    return 0


def shown(found: float | str, dense_time: float) -> str:
    if isinstance(found, str):
        return found
    return f"{found:.2f} ms ({found / dense_time:.2f})"


if __name__ == "__main__":
    sys.exit(main())
