from typing import Any

def measure_block(
    golden: Any,
    candidate: Any,
    golden_type: int,
    candidate_type: int,
    chunk: int,
    atol: float,
    rtol: float,
    saturation: float,
    result: bytearray,
    sums: Any,
) -> None: ...
def measure_whole(
    golden: Any,
    candidate: Any,
    golden_type: int,
    candidate_type: int,
    chunk: int,
    atol: float,
    rtol: float,
    saturation: float,
) -> tuple[tuple[Any, ...], list[list[float]]]: ...
def measure_pairs(
    golden: Any, candidate: Any, places: Any, limits: Any, results: Any, sums: Any, chunk: int
) -> None: ...
def new_result() -> bytearray: ...
def read_result(result: bytearray) -> tuple[Any, ...]: ...
def apart_block(
    golden: Any,
    candidate: Any,
    golden_type: int,
    candidate_type: int,
    chunk: int,
    golden_power: float,
    candidate_power: float,
    golden_length: float,
    candidate_length: float,
) -> list[list[float]]: ...
def fill_uniform(seed: int, values: Any, limit: float) -> None: ...
def sketch_blocks(
    values: Any,
    type: int,
    scale: float,
    rows: int,
    groups: int,
    signs: Any,
    buckets: Any,
    group_signs: Any,
    rotations: Any,
    block_signs: Any,
    sketch: Any,
) -> None: ...
def range_at(address: int, type: int, count: int, /) -> tuple[float, float, float] | None: ...
def extrema_at(
    address: int, type: int, count: int
) -> tuple[float, float, float, int, int, int, int]: ...
def summarize_block(
    values: Any, type: int, chunk: int
) -> tuple[float, float, int, int, list[list[float]]]: ...

VERSION: int
