"""Prompts through chat templates: the same tokens as transformers makes, and every refusal."""

from __future__ import annotations

from typing import Any

import pytest

from ppdbench.errors import ConfigError
from ppdbench.tasks import ChatOptions, Row, build_examples, encode_prompt, load_task
from ppdbench.tasks.chat_options import read_settings, setting_text
from tests.tasks.conftest import CHAT, byte_tokenizer

TEMPLATES = {
    "bos and roles": CHAT,
    "a system text of its own": (
        "{% for m in messages %}{% if loop.first and m.role != 'system' %}<system>Be kind.\n"
        "{% endif %}<{{ m.role }}>\n{{ m.content }}</s>\n{% endfor %}"
        "{% if add_generation_prompt %}<assistant>\n{% endif %}"
    ),
    "thinking": (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% if enable_thinking is defined and "
        "enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
    ),
    "no system role": (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}"
        "{{ raise_exception('System role not supported') }}{% endif %}"
        "[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[model]{% endif %}"
    ),
    "deaf to system texts": (
        "{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}\n{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    ),
}
SPEAKING = [name for name in TEMPLATES if "system role" not in name and "deaf" not in name]


def worded(name: str) -> Any:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATES[name]
    return tokenizer


def asked(tokenizer: Any, **options: Any) -> tuple[list[int], str]:
    task = load_task("gsm8k")
    (example,) = build_examples(task, [Row(0, {"question": "Où est 1+1?", "answer": "#### 2"})])
    chat = ChatOptions(**options).template(tokenizer)
    encoded = encode_prompt(task, example, tokenizer, max_tokens=999, chat=chat)
    return encoded.ids, example.prompt.text


def by_transformers(tokenizer: Any, text: str, system: str | None = None, **settings: Any) -> Any:
    messages = [{"role": "user", "content": text}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False, **settings
    )


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_prompt_has_the_tokens_that_transformers_gives_it(name: str) -> None:
    tokenizer = worded(name)
    ids, text = asked(tokenizer)
    assert ids == by_transformers(tokenizer, text)
    assert ids.count(tokenizer.bos_token_id) == TEMPLATES[name].count("{{ bos_token }}")


@pytest.mark.parametrize("system", ["Be brief.", ""])
@pytest.mark.parametrize("name", SPEAKING)
def test_a_system_text_stands_before_the_prompt(name: str, system: str) -> None:
    tokenizer = worded(name)
    ids, text = asked(tokenizer, system=system)
    assert ids == by_transformers(tokenizer, text, system)
    assert ids != asked(tokenizer)[0]


@pytest.mark.parametrize(("value", "state"), [(False, "off"), (True, "on")])
def test_settings_reach_the_template_and_say_whether_it_thinks(value: bool, state: str) -> None:
    tokenizer = worded("thinking")
    ids, text = asked(tokenizer, settings={"enable_thinking": value})
    assert ids == by_transformers(tokenizer, text, enable_thinking=value)
    assert ids != by_transformers(tokenizer, text, enable_thinking=not value)
    chat = ChatOptions(settings={"enable_thinking": value}).template(tokenizer)
    assert chat is not None
    assert chat.thinking == state


def test_a_switch_that_nobody_sets_is_told_from_a_template_without_one() -> None:
    states = {}
    for name in ("thinking", "bos and roles"):
        chat = ChatOptions().template(worded(name))
        assert chat is not None
        states[name] = chat.thinking
    assert states == {"thinking": "default", "bos and roles": None}


def test_the_hash_is_of_the_template_alone() -> None:
    prints = {
        (name, system): made.fingerprint
        for name in SPEAKING
        for system in (None, "Be brief.")
        if (made := ChatOptions(system=system).template(worded(name))) is not None
    }
    assert len(set(prints.values())) == len(SPEAKING)
    assert all(prints[name, None] == prints[name, "Be brief."] for name in SPEAKING)


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("no system role", {"system": "x"}, "System role not supported; leave --system out, or"),
        ("deaf to system texts", {"system": "x"}, "--system: the chat template leaves system"),
        ("thinking", {"settings": {"enable_thinkng": False}}, "no enable_thinkng; it reads enable"),
        ("bos and roles", {"settings": {"x": 1}}, "reads no x; it reads no setting"),
        ("bos and roles", {"settings": {"bos_token": "x"}}, "given that already"),
        ("bos and roles", {"settings": {"messages": "x"}}, "given that already"),
    ],
)
def test_what_a_template_does_nothing_with_is_refused(
    name: str, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        ChatOptions(**options).template(worded(name))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"mode": "on"}, "--chat on: this tokenizer has no chat template"),
        ({"system": "x"}, "--system: this tokenizer has no chat template"),
        ({"settings": {"x": 1}}, "--chat-set: this tokenizer has no chat template"),
    ],
)
def test_without_a_template_only_what_needs_none_goes(options: dict[str, Any], why: str) -> None:
    assert ChatOptions().template(byte_tokenizer()) is None
    with pytest.raises(ConfigError, match=why):
        ChatOptions(**options).template(byte_tokenizer())


def test_of_several_templates_the_default_is_taken_or_none_can_be() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = {"default": CHAT, "rag": "{{ messages }}"}
    chat = ChatOptions().template(tokenizer)
    assert chat is not None
    assert chat.text == CHAT
    tokenizer.chat_template = {"tools": CHAT, "rag": CHAT}
    with pytest.raises(ConfigError, match=r"several chat templates \(tools, rag\)"):
        ChatOptions().template(tokenizer)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"mode": "maybe"}, "--chat 'maybe': use auto, on or off"),
        ({"mode": "off", "system": "x"}, "--system is for chat templates; leave it or --chat off"),
        ({"mode": "off", "settings": {"x": 1}}, "--chat-set is for chat templates"),
        ({"settings": {"x": [1]}}, "--chat-set x: use a text, a number, true or false, not a list"),
        ({"settings": {"x": float("nan")}}, "--chat-set x: nan is no number that"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        ChatOptions(**options)


def test_settings_are_read_as_yaml_reads_scalars() -> None:
    pairs = ["a=false", "b=3", "c=1.5", "d=null", "e=26 Jul 2024", "f=2024-07-26", "g='false'"]
    assert read_settings([*pairs, "h=x=y", "i="]) == {
        "a": False,
        "b": 3,
        "c": 1.5,
        "d": None,
        "e": "26 Jul 2024",
        "f": "2024-07-26",
        "g": "false",
        "h": "x=y",
        "i": None,
    }


@pytest.mark.parametrize("value", [True, None, 3, 1.5, "x", "false", "3", "a: b", "é\n'\"", ""])
def test_a_setting_reads_back_as_it_was(value: Any) -> None:
    assert read_settings([f"x={setting_text(value)}"]) == {"x": value}


@pytest.mark.parametrize(
    ("pairs", "why"),
    [
        (["enable_thinking"], "write KEY=VALUE"),
        (["=false"], "write KEY=VALUE"),
        (["x=1", "x=2"], "--chat-set x is given twice"),
        (["x={"], "no plain YAML"),
    ],
)
def test_settings_that_are_no_pairs_are_refused(pairs: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read_settings(pairs)
