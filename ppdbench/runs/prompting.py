"""The way that prompts reached the model, by what headers say, and of earlier runs by what was so.

Versions that did not say gave every prompt as it was, but for three tasks whose prompts went
through the tokenizer's chat template where it had one.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import UnsetType
from msgspec.structs import replace

from ppdbench.runs.records import Chat, Header
from ppdbench.tasks.chat_options import setting_text

ONCE_CHATTED = frozenset({"alpaca", "mt_bench", "spec_bench"})
WITHOUT_TEMPLATE = frozenset({"reference", "reference-draft"})
SYNTHETIC = "synthetic:"
# In place of a hash: a template, if there was one, and for those tasks alone.
UNTOLD, MIXED = "untold", "untold, for some tasks"
PLAIN = "plain"  # said of prompts that go through no template
WIDTH = 60  # characters of a system text that are told


def prompting(header: Header) -> Chat | None:
    """The chat template that the prompts of a run went through; None for plain ones."""
    if isinstance(header.chat, UnsetType):
        return as_then(header.model.name, header.data)
    return header.chat


def as_then(model: str, tasks: Collection[str]) -> Chat | None:
    """The same of a run that does not say."""
    plain = model.startswith(SYNTHETIC) or model in WITHOUT_TEMPLATE
    if plain or not ONCE_CHATTED & set(tasks):
        return None
    named = UNTOLD if set(tasks) <= ONCE_CHATTED else MIXED
    return Chat(template=named, system=None, settings={})


def prompted_alike(one: Chat | None, other: Chat | None) -> bool:
    """True if two runs may stand side by side, as far as chat templates go."""
    for this, that in ((one, other), (other, one)):
        if this is not None and this.template in (UNTOLD, MIXED):
            # Beside plain prompts nobody knows better: the tokenizer may have had no template.
            known = that is not None and that.template not in (UNTOLD, MIXED)
            as_told = (
                replace(that, template=UNTOLD, thinking=None, rendering=None)
                if that and known
                else that
            )
            return as_told in (None, this)
    return one == other or _alike_as_told(one, other)


def _alike_as_told(one: Chat | None, other: Chat | None) -> bool:
    """True if they differ in nothing but that one does not say what its template wrote."""
    if one is None or other is None or None not in (one.rendering, other.rendering):
        return False
    return replace(one, rendering=None) == replace(other, rendering=None)


def other_prompts(stored: Header, asked: Header) -> str | None:
    """Say how the prompts of two runs differ, if they do."""
    one, other = prompting(stored), prompting(asked)
    chosen = asked.config.chat
    if prompted_alike(one, other) and not (
        one is not None and other is None and chosen is not None and chosen.mode == "off"
    ):
        return None
    there, here = told_apart(one, other)
    return f"chat ({there} there, {here} here)"


def told_apart(one: Chat | None, other: Chat | None) -> tuple[str, str]:
    """Two ways of prompts in words that differ, if only by what a template wrote."""
    there, here = in_words(one), in_words(other)
    if there == here and one is not None and other is not None:
        there, here = (
            f"{words} with text {chat.rendering} around a prompt"
            for words, chat in ((there, one), (here, other))
        )
    return there, here


def in_words(found: Chat | None, *, whole: bool = False) -> str:
    """The way of prompts as people read it, a long system text shortened unless `whole`."""
    if found is None:
        return PLAIN
    words = [f"chat template {found.template}"]
    if found.system is not None:
        short = whole or len(found.system) <= WIDTH
        text = found.system if short else f"{found.system[:WIDTH]}..."
        words.append(f"system text {text!r}")
    words += [f"{name}={setting_text(value)}" for name, value in found.settings.items()]
    if found.thinking is not None:
        thinks = {"default": "as the template has it"}.get(found.thinking, found.thinking)
        words.append(f"thinking {thinks}")
    return ", ".join(words)
