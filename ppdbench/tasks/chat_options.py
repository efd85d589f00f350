"""The choice of how prompts reach a model: as they are, or as messages through its template."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from ppdbench.errors import ConfigError
from ppdbench.files.keys import kind
from ppdbench.registry import key_values
from ppdbench.tasks.chat import names_read, render_chat

AUTO, ON, OFF = MODES = ("auto", "on", "off")
Setting = str | int | float | bool | None
# Given to every template by whoever renders it.
GIVEN = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
# Names by which templates of thinking models read whether to think.
SWITCHES = ("enable_thinking", "thinking")
GREETING = "Hello."


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """The chat options as they were asked for; nothing is known of a tokenizer yet."""

    mode: str = AUTO
    system: str | None = None
    settings: Mapping[str, Setting] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError(f"--chat {self.mode!r}: use {', '.join(MODES[:-1])} or {MODES[-1]}")
        asked = self._asked()
        if self.mode == OFF and asked:
            raise ConfigError(f"{asked} is for chat templates; leave it or --chat off out")
        for name, value in self.settings.items():
            _check_setting(name, value)

    @property
    def need_template(self) -> bool:
        """True if a tokenizer without a template cannot do what was asked."""
        return self.mode == ON or bool(self._asked())

    def _asked(self) -> str | None:
        if self.system is not None:
            return "--system"
        return "--chat-set" if self.settings else None

    def template(self, tokenizer: Any) -> ChatTemplate | None:
        """The template that prompts of this tokenizer go through; None for plain prompts."""
        if self.mode == OFF:
            return None
        if not getattr(tokenizer, "chat_template", None):
            if self.need_template:
                asked = self._asked() or "--chat on"
                raise ConfigError(
                    f"{asked}: this tokenizer has no chat template; leave it out for plain prompts"
                )
            return None
        made = ChatTemplate(_text_of(tokenizer), self.system, self.settings)
        made.check(tokenizer)
        return made


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A tokenizer's chat template with what it is given besides messages."""

    text: str
    system: str | None = None
    settings: Mapping[str, Setting] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """A hash of the template's text."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def rendering(self, tokenizer: Any) -> str:
        """A hash of what it makes of a greeting: some templates write the day's date."""
        return hashlib.sha256(self.render(tokenizer, [GREETING]).encode()).hexdigest()[:16]

    @property
    def thinking(self) -> str | None:
        """`on`, `off`, `default` where nobody said, or None: the template has no such switch."""
        for switch in SWITCHES:
            if switch in self.settings:
                return "on" if self.settings[switch] else "off"
        return "default" if names_read(self.text) & {*SWITCHES} else None

    def render(self, tokenizer: Any, texts: Sequence[str], answers: Sequence[str] = ()) -> str:
        """A user's messages with the answers between them, up to the beginning of the next."""
        messages = [{"role": "user", "content": texts[0]}]
        for answer, text in zip(answers, texts[1:], strict=True):
            messages.append({"role": "assistant", "content": answer.strip()})
            messages.append({"role": "user", "content": text})
        if self.system is not None:
            messages.insert(0, {"role": "system", "content": self.system})
        return render_chat(tokenizer, messages, self.text, self.settings)

    def check(self, tokenizer: Any) -> None:
        """Refuse settings and a system text that the template does nothing with."""
        own = GIVEN | tokenizer.special_tokens_map.keys()
        known = names_read(self.text) - own
        for name in self.settings:
            if name in own:
                raise ConfigError(f"--chat-set {name}: every template is given that already")
            if name not in known:
                reads = f"it reads {', '.join(sorted(known))}" if known else "it reads no setting"
                raise ConfigError(f"--chat-set {name}: the chat template reads no {name}; {reads}")
        if self.system is not None:
            without = ChatTemplate(self.text, None, self.settings)
            if self.render(tokenizer, [GREETING]) == without.render(tokenizer, [GREETING]):
                raise ConfigError("--system: the chat template leaves system texts out; so do here")


def _text_of(tokenizer: Any) -> str:
    """The template that answers are asked through, where a tokenizer has several."""
    try:
        text: str = tokenizer.get_chat_template()
        return text
    except ValueError as error:
        named = ", ".join(tokenizer.chat_template)
        raise ConfigError(
            f"the tokenizer has several chat templates ({named}) and none that is the default; "
            "use plain prompts with --chat off"
        ) from error


def read_settings(pairs: Sequence[str]) -> dict[str, Setting]:
    """`enable_thinking=false` and the like, with values read as YAML reads them."""
    typed = key_values(pairs, "--chat-set {}", "write KEY=VALUE, as enable_thinking=false")
    return {name: _scalar(f"{name}={text}", text) for name, text in typed.items()}


def _scalar(pair: str, text: str) -> Setting:
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise ConfigError(
            f"--chat-set {pair}: the value is no plain YAML; put it in quotes"
        ) from None
    if value is None or isinstance(value, str | bool | int | float | list | dict):
        return value  # type: ignore[return-value]  # lists and mappings are refused with the rest
    return text  # a date: templates print it as it was typed


def setting_text(value: Setting) -> str:
    """A value as it is typed, so that it reads back the same."""
    return value if isinstance(value, str) and _reads_back(value) else json.dumps(value)


def _reads_back(text: str) -> bool:
    try:
        return _scalar(text, text) == text
    except ConfigError:
        return False


def _check_setting(name: str, value: object) -> None:
    if not (value is None or isinstance(value, str | bool | int | float)):
        raise ConfigError(
            f"--chat-set {name}: use a text, a number, true or false, not {kind(value)}"
        )
    if isinstance(value, int | float) and not (math.isfinite(value) and abs(value) < 1 << 63):
        raise ConfigError(f"--chat-set {name}: {value} is no number that JSON holds")
