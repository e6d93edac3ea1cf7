"""Conversion of frames to and from Arrow tables with lerobot's column types, and their Parquet files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embodied_rl.datasets.lerobot.dataset_files import KEY, FilePlace, damaged, find_file, remove_beyond
from embodied_rl.datasets.lerobot.info import Feature, Info
from embodied_rl.interfaces.sim import Array
from embodied_rl.system.atomic_write import make_folder, replace_file

ROWS_OF_PICTURES = 64
"""Rows of one group in a file with pictures, so that one picture is read without the others."""

MEGABYTE = 1 << 20


def make_frames_table(features: Mapping[str, Feature], values: Mapping[str, Any]) -> pa.Table:
    """Make a table of frames, without videos; values are arrays [n, *shape], lists of texts or lists of PNG bytes."""
    kept = {name: feature for name, feature in features.items() if feature.dtype != "video"}
    return pa.table({name: make_column(feature, values[name]) for name, feature in kept.items()})


def make_column(feature: Feature, values: Any) -> pa.Array:
    """Make the column of one feature of n frames."""
    if feature.dtype == "string":
        return pa.array(list(values), pa.string())
    if feature.dtype == "image":
        pictures = pa.array(list(values), pa.binary())
        return pa.StructArray.from_arrays([pictures, pa.nulls(len(pictures), pa.string())], ["bytes", "path"])
    array = np.ascontiguousarray(values, np.dtype(feature.dtype)).reshape(-1, *feature.shape)
    column = pa.array(array.ravel())
    if feature.shape == (1,):
        return column
    if len(feature.shape) == 1:
        return pa.FixedSizeListArray.from_arrays(column, feature.shape[0])
    for size in reversed(feature.shape):
        column = pa.ListArray.from_arrays(pa.array(np.arange(0, len(column) + 1, size, dtype=np.int32)), column)
    return column


def read_numbers(column: pa.ChunkedArray | pa.Array, feature: Feature, where: str) -> Array:
    """Convert a numeric column to an array [n, *shape].

    Raises:
        DatasetError: values are missing, or have another shape or type than in meta/info.json.
    """
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    length = len(array)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    while pa.types.is_list(array.type) or pa.types.is_fixed_size_list(array.type) or pa.types.is_large_list(array.type):
        array = array.flatten()
    if array.null_count or len(array) != length * int(np.prod(feature.shape)):
        raise damaged(f"{where}: values are missing, or not of the shape {feature.shape} of meta/info.json")
    flat = array.to_numpy(zero_copy_only=False)
    if flat.dtype.kind in "biuf":
        with np.errstate(invalid="ignore"):  # NaN is found below
            found = flat.astype(np.dtype(feature.dtype), copy=False)
        if found is flat or found.dtype.kind == "f" or np.array_equal(found, flat):  # only floats may be rounded
            return found.reshape(length, *feature.shape)
    raise damaged(f"{where}: a column has dtype {flat.dtype}, but meta/info.json declares {feature.dtype}")


def write_table(table: pa.Table, path: Path) -> None:
    """Write a table of frames or episodes to a file, replacing it."""
    pictured = any(pa.types.is_struct(entry.type) for entry in table.schema)
    make_folder(path.parent, KEY)
    with replace_file(path, KEY) as temporary:
        pq.write_table(
            table, temporary, compression="snappy", use_dictionary=False,
            row_group_size=ROWS_OF_PICTURES if pictured else None,
        )  # fmt: skip


def open_file(path: Path) -> pq.ParquetFile:
    """Open a Parquet file; raise `DatasetError` if it is missing or damaged."""
    try:
        return pq.ParquetFile(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise damaged(f"{path} is missing or damaged ({error})") from error


def read_file(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a Parquet file; raise `DatasetError` if it is missing or damaged, or lacks a column."""
    with open_file(path) as file:
        if missing := set(columns or ()) - set(file.schema_arrow.names):
            raise damaged(f"{path} has no column '{min(missing)}' of meta/info.json")
        try:
            return file.read(columns=columns)
        except (OSError, pa.ArrowInvalid) as error:
            raise damaged(f"{path} is damaged ({error})") from error


class DataFiles:
    """A writer for the files of frames; it keeps the last file in memory, and rewrites it with each episode.

    Args:
        last: the last file that holds frames, or None.
        rows: number of valid rows in the last file; a killed writer may have left more.
    """

    def __init__(self, folder: Path, info: Info, last: FilePlace | None, rows: int):
        self._folder, self._info, self._place = folder, info, last
        self._table, self._size = None, 0
        remove_beyond(folder / "data", last, ".parquet")
        if last is None:
            return
        path = find_file(folder, info.data_file(last))
        table = read_file(path)
        if len(table) < rows:
            raise damaged(f"{path} holds {len(table)} frames, and the episodes need {rows} of it")
        wanted = make_frames_table(info.features, dict.fromkeys(info.features, ())).schema
        if table.schema.remove_metadata() != wanted:
            return  # another program wrote it: the next episode starts a new file
        if len(table) > rows:
            table = table.slice(0, rows)
            write_table(table, path)
        self._table, self._size = table, path.stat().st_size

    def append(self, table: pa.Table) -> FilePlace:
        """Write the frames of one episode; return the place of their file."""
        if self._place is None:
            self._place = FilePlace(0, 0)
        elif self._table is None or self._size + table.nbytes >= self._info.data_files_size_in_mb * MEGABYTE:
            self._place, self._table = self._place.following(self._info.chunks_size), None
        self._table = table if self._table is None else pa.concat_tables([self._table, table])
        path = find_file(self._folder, self._info.data_file(self._place))
        write_table(self._table, path)
        self._size = path.stat().st_size
        return self._place
