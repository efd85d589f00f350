"""Chat templates of models' authors: rendered as transformers does, but bounded."""

from __future__ import annotations

import time

import pytest

from ppdbench.errors import ConfigError
from ppdbench.tasks.chat import render_chat
from tests.tasks.conftest import byte_tokenizer

# Shaped like those of real models.
TEMPLATES = {
    "chatml": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "system first": "{% for message in messages %}{% if loop.first and messages[0]['role'] != "
    "'system' %}{{ '<|im_start|>system\nYou are helpful<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] | trim + '<|im_end|>'}}"
    "{% endfor %}",
    "llama 3": "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ "
    "message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
    "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}",
    "llama 2": "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}"
    "{% set loop_messages = messages %}{% set system_message = false %}{% endif %}"
    "{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/...') }}{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>' ~ system_message ~ message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}"
    "{% endif %}{% endfor %}",
    "namespaces": "{%- set ns = namespace(n=0, last='', names=[]) %}\n"
    "{%- for message in messages[::-1] %}\n  {%- set ns.n = ns.n + 1 %}\n"
    "  {%- if loop.last %}{% set ns.last = message.role|upper %}{% endif %}\n"
    "  {%- set ns.names = ns.names + [message.role] %}\n{%- endfor %}\n"
    "{{ ns.n }} {{ ns.last }} {{ ns.names | join(', ') }} {{ ns.names }}",
    "macros and tools": "{% macro show(message, open='<') -%}{{ open }}{{ message.role }}"
    "{% if caller %}{{ caller() }}{% endif %}{%- endmacro %}"
    "{%- if tools is defined and tools is not none %}{{ tools | tojson(indent=4) }}{%- endif %}"
    "{%- for message in messages if message.role in ['user', 'assistant'] %}"
    "{{- show(message) }}{%- call show(message, open='[') %}!{% endcall %}"
    "{%- if loop.index0 > 5 %}{% break %}{% else %}{% continue %}{% endif %}{%- endfor %}"
    "{%- if strftime_now is defined %}{{ strftime_now('%%') }}{% endif %}"
    "{{ messages | tojson }}{{ messages | map(attribute='role') | list | length }}",
    "generation": "{% for message in messages %}\n"
    "    {% if message.role == 'assistant' %}\n"
    "        {% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}\n"
    "    {% else %}{{ message.content.split('</think>')[-1].lstrip('\n') }}\n    {% endif %}\n"
    "{% endfor %}{{ undefined_name }}{{ messages[0].nothing is defined }}",
    "selections": "{% set system = messages | selectattr('role', 'equalto', 'system') | list %}"
    "{% set rest = messages | rejectattr('role', 'equalto', 'system') | list %}"
    "{{ system | length }}{{ (rest | first).content[:3] }}{{ (rest | last)['content'][-3:] }}"
    "{{ dict(a=1).items() | list }}{{ 'é<' | tojson }}{{ ('a\nb' | indent(2)) }}"
    "{{ 7 // 2 }}{{ 7 % 2 }}{{ 1.5 * 2 }}{{ 'ab' * 2 }}{{ 'a' in 'abc' }}{{ none }}{{ true }}",
}
TALKS = (
    [{"role": "user", "content": " hi\n"}],
    [
        {"role": "user", "content": "héllo <&> {{ x }}"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "</think>\n\nmore"},
    ],
)


def talk(template: str) -> str:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    return render_chat(tokenizer, TALKS[1])


@pytest.mark.parametrize("messages", TALKS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_messages_are_rendered_as_transformers_renders_them(name, messages):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATES[name]
    stock = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert render_chat(tokenizer, messages) == stock


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{% set ns = namespace(a='x') %}{% for i in range(99) %}{% set ns.a = ns.a ~ ns.a %}"
         "{% endfor %}", "a text would have more than 4000000 characters"),
        ("{% set ns = namespace(a=[1]) %}{% for i in range(99) %}{% set ns.a = [ns.a, ns.a] %}"
         "{% endfor %}{{ ns.a }}", "nested more than 50 deep|takes more than"),
        ("{% set ns = namespace(a=dict(b=1)) %}{% for i in range(40) %}"
         "{% set ns.a = dict(b=ns.a, c=ns.a) %}{% endfor %}{{ ns.a }}", "takes more than"),
        ("{{ messages | tojson(indent=10000000) }}", "10000000 is more than"),
        ("{{ ([1] * 100000) | tojson(separators=['x' * 1000000, ':']) }}", "more than"),
        ("{{ ('a\n' * 1000) | indent(100000) }}", "a text would have more than"),
        ("{{ namespace }}", "no text for a"),
        ("{{ messages[0].get }}", "no text for a"),
        ("{{ namespace(_a=1) }}", "begins with an underscore"),
        ("{{ strftime_now.__globals__.x }}", "unsafe"),
        ("{{ raise_exception }}", "no text for a function"),
        ("{{ lipsum(1000000) }}", "'lipsum' is undefined"),
        ("{% include 'x' %}", "no loader"),
    ],
)  # fmt: skip
def test_hostile_chat_templates_end_quickly_in_one_line(template, why):
    start = time.perf_counter()
    with pytest.raises(ConfigError, match=f"chat template failed.*({why}).*; use plain") as caught:
        talk(template)
    assert "\n" not in str(caught.value)
    assert time.perf_counter() - start < 20


def test_an_unfinished_template_names_its_line():
    with pytest.raises(ConfigError, match=r"chat template failed: .*endfor"):
        talk("a\n{% for x in messages %}")
