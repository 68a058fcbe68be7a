"""Tables as data of fine-tuning: CSV, Parquet and Arrow files, folders of datasets, and tables in memory."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import BackendError, DataError, FileError
from gradloom.llm.data import read_samples
from gradloom.llm.data_files import data_files
from gradloom.llm.data_files import test_file as file_to_test
from gradloom.llm.row_readers import reader_of
from gradloom.llm.text_rows import text_rows
from gradloom.llm.tokenizer import Tokenizer
from tests.cli.command import run
from tests.llm.chats import CHATML
from tests.llm.random_models import write
from tests.llm.small_tokenizers import byte_bpe

arrow = pytest.importorskip("pyarrow")
feather, ipc, parquet = (pytest.importorskip(f"pyarrow.{name}") for name in ("feather", "ipc", "parquet"))

TEXTS = [{"text": f"once upon {i}"} for i in range(7)]
PAIRS = [{"prompt": f"q{i}", "completion": f"a {i}"} for i in range(5)]
LABELLED = [{"text": f"text {i}", "label": "ab"[i % 2]} for i in range(6)]
NUMBERS = [{"text": f"text {i}", "label": i / 2} for i in range(6)]
CALL = [{"type": "function", "function": {"name": "add", "arguments": {"x": 1, "y": 2}}}]
OTHER = [{"type": "function", "function": {"name": "time", "arguments": {"zone": "UTC"}}}]
CHATS = [
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0.5}]},
    {"messages": [{"role": "user", "content": "c"}, {"role": "assistant", "content": None, "tool_calls": CALL}]},
    {"messages": [{"role": "assistant", "content": None, "tool_calls": OTHER},
                  {"role": "tool", "content": "d", "name": "time"}, {"role": "assistant", "content": "e"}]},
]  # fmt: skip
SIDES = [
    {"prompt": [{"role": "user", "content": f"q{i}"}], "chosen": [{"role": "assistant", "content": f"good {i}"}],
     "rejected": [{"role": "assistant", "content": "bad"}]}
    for i in range(4)
]  # fmt: skip
# a template that prints all that it gets
SOURCE = CHATML.replace(
    "message['content'] + '<|im_end|>'",
    "(message['content'] or '') + (message.keys() | join(',')) + (message.tool_calls | tojson if message.tool_calls"
    " else '') + '<|im_end|>'",
)


def tokenizer() -> Tokenizer:
    return Tokenizer(byte_bpe(chat_template=SOURCE), "small")


def write_as(folder: Path, kind: str, rows: list[dict[str, Any]], name: str = "d") -> Path:
    path, table = folder / f"{name}.{kind}", arrow.Table.from_pylist(rows)
    if kind == "parquet":
        parquet.write_table(table, path, row_group_size=3)
    elif kind == "feather":
        feather.write_feather(table, str(path), "zstd")
    elif kind in ("arrow", "ipc"):
        make = ipc.new_stream if kind == "arrow" else ipc.new_file
        with arrow.OSFile(str(path), "wb") as file, make(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    else:
        text = table.to_pandas().to_csv(index=False, sep="\t" if kind.startswith("tsv") else ",")
        data = text.encode()
        path.write_bytes(gzip.compress(data) if kind.endswith(".gz") else data)
    return path


TEXT = gl.llm.Form("texts")
ARROW = ["parquet", "arrow", "ipc", "feather"]
CSV = ["csv", "csv.gz", "tsv", "tsv.gz"]


def same(one: Any, other: Any) -> None:
    np.testing.assert_array_equal(one.tokens, other.tokens)
    np.testing.assert_array_equal(one.counted, other.counted)
    np.testing.assert_array_equal(one.starts, other.starts)
    for mine, its in ((one.values, other.values), (one.weights, other.weights)):
        assert (mine is None) == (its is None)
        if mine is not None:
            np.testing.assert_array_equal(mine, its)
    assert one.classes == other.classes


CASES = {
    "texts": (TEXTS, TEXT), "pairs": (PAIRS, TEXT), "chats": (CHATS, TEXT),
    "sides": (SIDES, gl.llm.Form("preferences", 2)),
    "classes": (LABELLED, gl.llm.Form("labelled", last=True, labels="classes")),
    "numbers": (NUMBERS, gl.llm.Form("labelled", last=True, labels="numbers")),
    "margins": ([{"chosen": f"good {i}", "rejected": "bad", "margin": i / 2} for i in range(4)],
                gl.llm.Form("preferences", 2)),
    "judged": ([row | {"label": i % 2 == 0} for i, row in enumerate(PAIRS)], gl.llm.Form("judged")),
    "weights": ([row | {"weight": 0.5 + i} for i, row in enumerate(PAIRS)], TEXT),
}  # fmt: skip


@pytest.mark.parametrize("kind", ARROW + CSV)
@pytest.mark.parametrize("case", CASES)
def test_rows_are_those_of_jsonl(tmp_path: Path, kind: str, case: str) -> None:
    rows, form = CASES[case]
    if kind in CSV and case in ("chats", "sides"):
        pytest.skip("cells are texts")
    path = write_as(tmp_path, kind, rows)
    made = read_samples(path, tokenizer(), form=form)
    same(made, read_samples(rows, tokenizer(), form=form))
    assert made.report.path == str(path)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["pyarrow", "batch", "pandas", "polars", "datasets"])
def test_tables_in_memory(kind: str, case: str) -> None:
    module = pytest.importorskip("pyarrow" if kind == "batch" else kind)
    rows, form = CASES[case]
    table = {
        "pyarrow": lambda: arrow.Table.from_pylist(rows),
        "batch": lambda: arrow.RecordBatch.from_pylist(rows),
        "pandas": lambda: module.DataFrame(rows),
        "polars": lambda: module.from_arrow(arrow.Table.from_pylist(rows)),
        "datasets": lambda: module.Dataset(arrow.Table.from_pylist(rows)),
    }[kind]()
    same(read_samples(table, tokenizer(), form=form), read_samples(rows, tokenizer(), form=form))


def test_missing_values_are_absent_keys() -> None:
    pandas = pytest.importorskip("pandas")
    rows = pandas.DataFrame({"instruction": ["a", "b"], "input": ["x", None], "output": ["c", "d"]})
    listed = [{"instruction": "a", "input": "x", "output": "c"}, {"instruction": "b", "output": "d"}]
    same(read_samples(rows, tokenizer()), read_samples(listed, tokenizer()))
    with pytest.raises(DataError, match="data: sample 2: the keys are text; need label, as in sample 1"):
        frame = pandas.DataFrame({"text": ["a", "b"], "label": ["x", None]})
        read_samples(frame, tokenizer(), form=gl.llm.Form("labelled", labels="classes"))


def test_the_rows_of_a_large_file_are_converted_a_few_at_a_time(tmp_path: Path, monkeypatch: Any) -> None:
    path = write_as(tmp_path, "parquet", [{"text": str(i)} for i in range(2000)])
    lines, seen = iter(reader_of(path)), []
    original = parquet.ParquetFile.iter_batches

    def counting(self: Any, **options: Any) -> Any:
        for batch in original(self, **options):
            seen.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", counting)
    assert [next(lines) for _ in range(3)] == [(i + 1, {"text": str(i)}) for i in range(3)]
    assert sum(seen) <= 256
    assert [row["text"] for _, row in lines] == [str(i) for i in range(3, 2000)]  # type: ignore[index]


BAD = [{"text": "abc"}, {"text": "bcd"}, {"text": None}]


@pytest.mark.parametrize("kind", ARROW)
def test_a_bad_row_is_named_by_its_number(tmp_path: Path, kind: str) -> None:
    path = write_as(tmp_path, kind, BAD)
    with pytest.raises(DataError) as caught:
        read_samples(path, tokenizer())
    assert str(caught.value).startswith(f"{path}:3: the keys are none; need text, as in row 1; mend the row, or skip")
    assert len(read_samples(path, tokenizer(), skip_bad_lines=True)) == 2


@pytest.mark.parametrize(("value", "name"), [(1.5, "number"), (b"a", "bytes"), (True, "truth value")])
def test_a_column_of_another_type_is_one_line(tmp_path: Path, value: Any, name: str) -> None:
    path = write_as(tmp_path, "parquet", [{"text": value}])
    with pytest.raises(DataError) as caught:
        read_samples(path, tokenizer())
    assert f"{path}:1: text is a {name}; need a text" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ARROW)
@pytest.mark.parametrize("damage", ["cut", "noise", "empty"])
def test_damaged_files_are_one_line(tmp_path: Path, kind: str, damage: str) -> None:
    path = write_as(tmp_path, kind, [{"text": f"{i} once upon a time" * 9} for i in range(300)])
    data = path.read_bytes()
    noise = np.random.default_rng(0).integers(0, 256, len(data), np.uint8).tobytes()
    path.write_bytes({"cut": data[: len(data) // 2], "noise": noise, "empty": b""}[damage])
    with pytest.raises((FileError, DataError)) as caught:
        read_samples(path, tokenizer())
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)


def test_bytes_changed_at_random_raise_no_other_errors(tmp_path: Path) -> None:
    for kind in ARROW:
        data = write_as(tmp_path, kind, CHATS * 5).read_bytes()
        rng = np.random.default_rng(1)
        for _ in range(60):
            changed = bytearray(data)
            for at in rng.integers(0, len(data), 3):
                changed[at] = rng.integers(0, 256)
            path = tmp_path / f"changed.{kind}"
            path.write_bytes(changed)
            try:
                read_samples(path, tokenizer())
            except (FileError, DataError) as error:
                assert "\n" not in str(error)


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    path = write_as(tmp_path, "parquet", TEXTS)
    monkeypatch.setattr("gradloom.base.extras.import_module", _no_module)
    with pytest.raises(BackendError) as caught:
        read_samples(path, tokenizer())
    assert str(caught.value) == f"{path}: requires pyarrow, not installed; run pip install 'gradloom[parquet]'"


def _no_module(name: str) -> Any:
    raise ImportError(name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"text,label\na,b,c\n", ":2: has 3 cells and the header 2 (text, label)"),
        (b'text\n"a\n', ": is no CSV"),
        (b"text,text\na,b\n", ": the first line is 'text,text'; need different names of columns"),
        (
            b"text\na\nb\xff\n",
            ": byte 8 is not UTF-8 (invalid start byte); encoding can name another encoding, such as cp1252",
        ),
        (b"text\n", ": 0 lines, no sample to train on"),
        (b"other\na\n", ":2: the keys are other; need messages"),
    ],
)
def test_csv_that_cannot_be_read(tmp_path: Path, text: bytes, message: str) -> None:
    path = tmp_path / "d.csv"
    path.write_bytes(text)
    with pytest.raises(DataError) as caught:
        read_samples(path, tokenizer())
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_columns_that_are_not_used_may_hold_anything(tmp_path: Path) -> None:
    import datetime

    rows = [{"text": f"abc {i}", "at": datetime.datetime(2020, 1, 1), "id": None, "raw": b"\xff"} for i in range(3)]
    table = arrow.Table.from_pylist(rows)
    times = arrow.array([2**62, 1, None], arrow.timestamp("ns"))
    table = table.append_column("far", times).append_column("day", arrow.array([2**30, 1, 2], arrow.date32()))
    same(read_samples(table, tokenizer()), read_samples([{"text": row["text"]} for row in rows], tokenizer()))
    parquet.write_table(table, tmp_path / "d.parquet")
    assert [row["id"] for row in text_rows(tmp_path / "d.parquet")] == [None] * 3


def test_a_feather_file_of_version_1(tmp_path: Path) -> None:
    (tmp_path / "d.feather").write_bytes(b"FEA1" + bytes(40))
    with pytest.raises(FileError, match="d.feather: is a Feather file of version 1; write it as version 2"):
        read_samples(tmp_path / "d.feather", tokenizer())


def test_a_series_is_no_table() -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(DataError, match="data: sample 1: is .*; need a dict with texts as keys; a text is"):
        read_samples(pandas.Series(["a", "b"]), tokenizer())


def test_two_columns_of_one_name_are_one_line(tmp_path: Path) -> None:
    """As in CSV: nothing tells which of them is meant."""
    table = arrow.table([["first"], ["second"]], names=["text", "text"])
    parquet.write_table(table, tmp_path / "d.parquet")
    frame = pytest.importorskip("pandas").DataFrame([["first", "second"]], columns=["text", "text"])
    for source in (table, tmp_path / "d.parquet", frame):
        with pytest.raises(DataError, match="two columns have the name 'text'"):
            read_samples(source, tokenizer())


def test_cells_that_are_no_numbers(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text("text,label\na,1.5\nb,1_000\n")
    with pytest.raises(DataError, match=r"d.csv:3: label is a text; need a number"):
        read_samples(path, tokenizer(), form=gl.llm.Form("labelled", last=True, labels="numbers"))


def test_texts_to_score_are_read_by_the_same_reader(tmp_path: Path) -> None:
    for kind in ARROW + CSV:
        assert text_rows(write_as(tmp_path, kind, TEXTS)) == TEXTS
    path = tmp_path / "latin.csv"
    path.write_bytes("text\ncaf\xe9\n".encode("latin-1"))
    assert text_rows(path, "latin-1") == [{"text": "caf\xe9"}]
    same(read_samples(path, tokenizer(), encoding="latin-1"), read_samples([{"text": "caf\xe9"}], tokenizer()))
    path.with_suffix(".txt").write_bytes(path.read_bytes())
    assert text_rows(path.with_suffix(".txt"), "latin-1")[1] == {"text": "caf\xe9"}
    (tmp_path / "utf-8.txt").write_text("text\ncaf\xe9\n", encoding="utf-8")
    read = [
        read_samples(path.with_suffix(".txt"), tokenizer(), encoding="latin-1"),
        read_samples(tmp_path / "utf-8.txt", tokenizer()),
    ]
    assert read[0].tokens.tolist() == read[1].tokens.tolist()
    with pytest.raises(gl.SettingError, match="encoding='rot13': must be a character encoding"):
        read_samples(path, tokenizer(), encoding="rot13")
    with pytest.raises(DataError, match="data: is in memory; encoding='iso8859-1' requires"):
        read_samples(TEXTS, tokenizer(), encoding="latin-1")
    with pytest.raises(DataError, match="encoding='iso8859-1' requires a .csv or .txt"):
        text_rows(write_as(tmp_path, "parquet", TEXTS), "latin-1")


# ---- folders ---------------------------------------------------------------------------------------------------------


def test_a_folder_of_tables(tmp_path: Path) -> None:
    train, valid = write_as(tmp_path, "parquet", TEXTS, "train"), write_as(tmp_path, "csv", TEXTS, "valid")
    files = data_files(tmp_path)
    assert (files.train, files.valid, files.test) == (str(train), str(valid), None)
    write_as(tmp_path, "csv", TEXTS, "train")
    with pytest.raises(DataError, match=r"contains train.csv and train.parquet; remove one"):
        data_files(tmp_path)


def hub(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    for name, part in (("train-00000-of-00002", TEXTS[:4]), ("train-00001-of-00002", TEXTS[4:])):
        write_as(tmp_path / "data", "parquet", part, name)
    write_as(tmp_path / "data", "parquet", TEXTS[:3], "validation-00000-of-00001")
    write_as(tmp_path / "data", "parquet", TEXTS[3:], "test-00000-of-00001")
    return tmp_path


def test_shards_as_the_hub_has_them(tmp_path: Path) -> None:
    files = data_files(hub(tmp_path))
    assert len(files.paths) == 4 and files.paths[1] == str(tmp_path / "data" / "train-00001-of-00002.parquet")
    for path, rows in ((files.train, TEXTS), (files.valid, TEXTS[:3]), (file_to_test(tmp_path), TEXTS[3:])):
        assert path is not None
        same(read_samples(path, tokenizer()), read_samples(rows, tokenizer()))
    (tmp_path / "data" / "train-00001-of-00002.parquet").unlink()
    with pytest.raises(FileError, match=r"train-\*-of-00002.parquet"):
        read_samples(data_files(tmp_path).train, tokenizer())


def saved(folder: Path, *parts: list[dict[str, Any]]) -> Path:
    """A folder as Dataset.save_to_disk writes it."""
    folder.mkdir(parents=True)
    names = [f"data-{i:05}-of-{len(parts):05}" for i in range(len(parts))]
    for name, rows in zip(names, parts, strict=True):
        write_as(folder, "arrow", rows, name)
    (folder / "dataset_info.json").write_text("{}")
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": f"{name}.arrow"} for name in names]}))
    return folder


def test_a_folder_that_datasets_wrote(tmp_path: Path) -> None:
    folder = saved(tmp_path / "one", TEXTS[:4], TEXTS[4:])
    same(read_samples(folder, tokenizer()), read_samples(TEXTS, tokenizer()))
    assert len(data_files(folder).paths) == 2 and file_to_test(folder) == str(folder)
    both = tmp_path / "both"
    saved(both / "train", TEXTS)
    saved(both / "test", TEXTS[:2])
    assert (data_files(both).train, data_files(both).test) == (str(both / "train"), str(both / "test"))
    for state in ("", "{}", "[]", '{"_data_files": [{"filename": "../x.arrow"}]}', '{"_data_files": []}'):
        (folder / "state.json").write_text(state)
        with pytest.raises(FileError, match="state.json has no list of files"):
            read_samples(folder, tokenizer())


@pytest.mark.slow
def test_folders_of_datasets_itself(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_list(CHATS[:1] * 5)
    made.save_to_disk(str(tmp_path / "one"), num_shards=2)
    same(read_samples(tmp_path / "one", tokenizer()), read_samples(CHATS[:1] * 5, tokenizer()))
    datasets.DatasetDict(train=made, test=made.select([4, 0])).save_to_disk(str(tmp_path / "both"))
    same(read_samples(file_to_test(tmp_path / "both"), tokenizer()), read_samples(CHATS[:1] * 2, tokenizer()))


# ---- commands --------------------------------------------------------------------------------------------------------


def test_commands_take_tables(capsys: Any, tmp_path: Path) -> None:
    """finetune on shards of the hub's layout and on a folder of datasets, evaluate, plan, verify and predict."""
    model = write(tmp_path, "llama", context=64)
    data = hub(tmp_path / "hub" if (tmp_path / "hub").mkdir() is None else tmp_path)
    out = tmp_path / "a.gguf"
    more = ["--context", 32, "--quiet"]
    given = ["--out", out, "--steps", 2, *more, "--batch-size", 2]
    for resume in ([], ["--resume"]):
        code, _, err = run(capsys, "finetune", model, data, *given, *resume)
        assert code == 0, err
    folder = saved(tmp_path / "saved", TEXTS)
    code, _, err = run(capsys, "finetune", model, folder, "--out", tmp_path / "b.gguf", "--steps", 1, *more)
    assert code == 0, err
    for command in (["evaluate", model, data], ["evaluate", model, folder], ["plan", model, folder]):
        code, _, err = run(capsys, *command, "--context", 32)
        assert code == 0, err
    labelled = write_as(tmp_path, "csv", [{"text": row["text"], "label": row["label"]} for row in LABELLED])
    head = tmp_path / "head.gguf"
    given = ["--objective", "classify", "--out", head, "--steps", 1, "--val-split", 0, *more]
    code, _, err = run(capsys, "finetune", model, labelled, *given)
    assert code == 0, err
    tables = [write_as(tmp_path, kind, LABELLED) for kind in ("parquet", "csv")]
    found = [run(capsys, "predict", model, "--lora", head, table)[1] for table in tables]
    assert found[0] == found[1] and found[0].count("\n") == 7
