"""Task files: what is accepted, and the one line that explains what is not."""

from __future__ import annotations

import os
from dataclasses import fields

import pytest

from ppdbench.errors import ConfigError, UnknownName
from ppdbench.tasks import load_task
from ppdbench.tasks.spec import METRICS, Dataset, Task
from tests.conftest import ROOT


def fails(path, *parts: str, error=ConfigError) -> None:
    with pytest.raises(error) as caught:
        load_task(str(path))
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, message


def test_a_file_of_the_users_own_loads(write_task):
    task = load_task(str(write_task(id=["qid", "id"], stop=["\n"], metrics=["rougeL"])))
    assert task.fields == {"question": ("question",)}
    assert task.id == ("qid", "id")
    assert task.prompt.render({"question": "why?"}) == "Q: why?\nA:"
    assert (task.stop, task.chat_stop, task.metrics) == (("\n",), (), ("rougeL",))
    assert task.dataset.hub_id is None and not task.dataset.streaming


def test_a_prompt_lies_beside_its_task_file(write_task, tmp_path):
    (tmp_path / "p.jinja").write_text("ask {{ question }}\n")
    task = load_task(str(write_task(prompt="p.jinja", prompt_text=...)))
    assert task.prompt.render({"question": "x"}) == "ask x"


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_one_last_newline_of_a_prompt_is_the_files_own(write_task, tmp_path, end):
    (tmp_path / "p.jinja").write_bytes(b"{{ question }}\n" + end)
    task = load_task(str(write_task(prompt="p.jinja", prompt_text=...)))
    assert task.prompt.render({"question": "x"}) == ("x\n" if end else "x")
    inline = load_task(str(write_task(prompt_text="{{ question }}\n")))
    assert inline.prompt.render({"question": "x"}) == "x"


def test_the_newlines_of_a_shot_are_kept(write_task):
    shot = load_task(str(write_task(shot="{{ prompt }}{{ reference }}\n\n"))).shot
    assert shot.render({"prompt": "p", "reference": "r"}) == "pr\n\n"


def test_a_shipped_prompt_can_be_named(write_task):
    task = load_task(str(write_task(prompt="gsm8k.jinja", prompt_text=...)))
    assert task.prompt.render({"question": "x"}) == "Question: x\nAnswer:"


def test_unknown_names_get_suggestions():
    fails("squat", "did you mean squad", "known: alpaca", error=UnknownName)


def test_a_missing_file_is_named(tmp_path):
    fails(tmp_path / "no.yaml", "no.yaml does not exist")
    fails(tmp_path / "folder" / "squad", "does not exist")
    (tmp_path / "dir.yaml").mkdir()
    fails(tmp_path / "dir.yaml", "cannot be read")


def test_unknown_keys_are_refused_with_the_allowed_ones(write_task):
    fails(write_task(buckets=3), "unknown key buckets", "did you mean bucket", "max_new_tokens")
    dataset = {"hub_id": None, "split": "test", "confg": "x"}
    fails(write_task(dataset=dataset), "mine.yaml", "unknown key dataset.confg", "config")


@pytest.mark.parametrize(
    "key",
    ["name", "version", "description", "dataset", "fields", "id", "reference", "bucket"],
)
def test_missing_keys_are_named(write_task, key):
    fails(write_task(**{key: ...}), "mine.yaml", f"the key {key} is missing")


def test_missing_nested_keys_are_named(write_task):
    fails(write_task(dataset={"hub_id": None}), "the key dataset.split is missing")


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("name", 3, "name must be text, not the number 3"),
        ("name", "", "name must be text, not an empty text"),
        ("version", "1", "version must be a whole number, not the text '1'"),
        ("version", True, "version must be a whole number, not true"),
        ("version", 0, "version must be 1 or more, not 0"),
        ("max_new_tokens", -8, "max_new_tokens must be 1 or more"),
        ("bucket", 3, "bucket 3 does not divide max_new_tokens 8"),
        ("bucket", 1.5, "bucket must be a whole number, not the number 1.5"),
        ("chat", True, "chat is no key of task files; --chat on, off or auto"),
        ("chat_stop", [""], "chat_stop must not hold an empty string"),
        ("stop", "x", "stop must be a list of texts"),
        ("stop", [1], "stop must be a list of texts"),
        ("stop", [""], "stop must not hold an empty string"),
        ("dataset", "squad", "dataset must be a mapping"),
        ("dataset", {"hub_id": 4, "split": "test"}, "dataset.hub_id must be text or null"),
        ("fields", {}, "fields must name at least one"),
        ("fields", {"question": 3}, "fields.question must be a column path"),
        ("fields", {"question": "a..b"}, "fields.question must be a column path"),
        ("fields", {"question": [None]}, "fields: question must name a column"),
        ("fields", {"a b": "c"}, "'a b' cannot be the name"),
        ("fields", {"range": "c"}, "'range' cannot be the name"),
        ("fields", {1: "c"}, "must be text"),
        ("id", [None], "id must be a column path"),
        ("context_field", "artcle", "context_field 'artcle' is not one of fields: question"),
        ("metrics", ["rouge9"], "rouge9"),
        ("prompt", "x.jinja", "give either prompt"),
        ("prompt_text", ..., "give either prompt"),
        ("prompt_text", "{{ qestion }}", "unknown variable 'qestion'; the template may use"),
        ("prompt_text", "a\n{{ question", "line 2"),
        ("shot", "{{ promt }}", "unknown variable 'promt'"),
    ],
)
def test_wrong_values_are_explained(write_task, key, value, expected):
    fails(write_task(**{key: value}), expected, "mine.yaml")


@pytest.mark.parametrize("name", ["../secret", "sub/../../secret", "{abs}", "link", "far/secret"])
def test_a_prompt_from_elsewhere_is_refused(write_task, tmp_path, name):
    outside, home = tmp_path / "secret", tmp_path / "home"
    outside.write_text("a secret")
    (home / "sub").mkdir(parents=True)
    (home / "link").symlink_to(outside)
    (home / "far").symlink_to(tmp_path)
    file = write_task(prompt=name.format(abs=outside), prompt_text=...).rename(home / "t.yaml")
    fails(file, "lies outside the folder of the task file", "squad.jinja")


def test_a_prompt_in_a_folder_beside_the_task_file_is_found(write_task, tmp_path):
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "p.jinja").write_text("ask {{ question }}")
    (tmp_path / "link").symlink_to(tmp_path / "prompts" / "p.jinja")
    for name in ("prompts/p.jinja", "link"):
        task = load_task(str(write_task(prompt=name, prompt_text=...)))
        assert task.prompt.render({"question": "x"}) == "ask x"


def test_a_prompt_that_is_no_file_is_refused(write_task, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", ".", ""):
        fails(write_task(prompt=name, prompt_text=...), "prompt")


def test_half_a_surrogate_pair_is_refused_with_its_line(tmp_path):
    (tmp_path / "a.yaml").write_text('version: 1\nname: "a\\ud800"\n')
    fails(tmp_path / "a.yaml", "a.yaml, line 2", "half a surrogate pair")


def test_a_missing_prompt_file_is_named(write_task):
    fails(write_task(prompt="gone.jinja", prompt_text=...), "'gone.jinja'", "squad.jinja")


def test_a_prompt_that_is_not_utf8_is_named(write_task, tmp_path):
    (tmp_path / "p.jinja").write_bytes(b"ok \xff")
    fails(write_task(prompt="p.jinja", prompt_text=...), "p.jinja is not UTF-8 (byte 3)")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"name: a\nversion: [1\nx: 2\n", "line 3"),
        (b"a: 1\nb: 2\na: 3\n", "line 3: not valid YAML: the key 'a' is given twice"),
        (b"- 1\n", "a task file is a mapping (key: value), not a list of 1"),
        (b"", "not null"),
        (b"name: \xff\n", "is not UTF-8 (byte 6)"),
        (b"a: 1\n\tb: 2\n", "line 2"),
        (b"a: !!python/object/apply:os.system [ls]\n", "line 1"),
        (b"a: 2024-13-45\n", "not YAML this program can read"),
        (b"a: " + b"[" * 5000, "not YAML this program can read"),
        (b"a: \x00\n", "not valid YAML"),
        (b"? [1]\n: 2\n", "line 1"),
    ],
)
def test_bad_yaml_is_one_line_with_its_place(tmp_path, text, expected):
    path = tmp_path / "bad.yaml"
    path.write_bytes(text)
    fails(path, "bad.yaml", expected)


def test_the_page_on_task_files_has_every_key_and_every_metric():
    page = (ROOT / "docs" / "models.md").read_text("utf-8")
    keys = {field.name for field in fields(Task)} - {"source"} | {"prompt_text"}
    keys |= {field.name for field in fields(Dataset)}
    table = page.partition("Every key there is")[2].partition("A row without")[0]
    assert [name for name in sorted({*keys, *METRICS}) if f"`{name}" not in table] == []
