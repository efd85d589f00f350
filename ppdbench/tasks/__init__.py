"""Tasks: `tasks/NAME.yaml` and `prompts/NAME.jinja` in, prompts and token ids out.

task = load_task("squad")
rows = load_rows(task, "builtin", split=None, limit=4, offline=True)
examples = build_examples(task, rows)
encoded = encode_prompt(task, examples[0], tokenizer, max_tokens=496)
"""

from ppdbench.tasks.chat_options import ChatOptions, ChatTemplate
from ppdbench.tasks.data import Row, load_rows, load_shot_rows
from ppdbench.tasks.encode import Encoded, encode_conversation, encode_prompt
from ppdbench.tasks.examples import Example, Prompt, build_examples
from ppdbench.tasks.spec import METRICS, Dataset, Task, load_task, task_names
from ppdbench.tasks.splits import data_files, stands_in
from ppdbench.tasks.templates import Template

__all__ = [
    "METRICS",
    "ChatOptions",
    "ChatTemplate",
    "Dataset",
    "Encoded",
    "Example",
    "Prompt",
    "Row",
    "Task",
    "Template",
    "build_examples",
    "data_files",
    "encode_conversation",
    "encode_prompt",
    "load_rows",
    "load_shot_rows",
    "load_task",
    "stands_in",
    "task_names",
]
