"""`decode --verify-distribution` and the same of `bench`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ppdbench.cli.common import RunCommand, check_exports, notice, what_is_decoded, write_exports
from ppdbench.errors import ConfigError

if TYPE_CHECKING:
    from ppdbench.bench.runner import Choice

DRAWS = 3000
NOT_HERE = ("answers", "show", "profile", "allow_code_execution", "timeline")


def verify_distribution(
    choices: Sequence[Choice],
    command: RunCommand,
    form: str,
    options: dict[str, Any],
    draws: int | None,
    *,
    asked: bool,
) -> int:
    """Draw, judge, print; 1 where outputs of a method do not follow the model."""
    from ppdbench.bench.drawing import LENGTH, PROMPTS, VerifyConfig, verify
    from ppdbench.bench.runner import DecodeConfig
    from ppdbench.report.export import PrintedOutput
    from ppdbench.report.faithful_tables import sheet
    from ppdbench.report.progress import progress
    from ppdbench.runs.running import Destination, run_folder

    if not asked:
        raise ConfigError("--draws is for --verify-distribution; give both")
    _refuse_not_here(options)
    exports = options.pop("exports")
    check_exports(exports)
    for name, usual in (("limit", PROMPTS), ("max_new_tokens", LENGTH)):
        options[name] = usual if options[name] is None else options[name]
    decoded = what_is_decoded(options)
    config = VerifyConfig(
        decode=DecodeConfig(methods=tuple(choices), **decoded, **options),
        draws=DRAWS if draws is None else draws,
    )
    if command.shard.count > 1:
        raise ConfigError("--verify-distribution draws in one process; leave --shard out")
    out = run_folder(command.out, command.resume, "faithful", config.decode.model.name)
    with progress() as report:
        tests = verify(config, Destination(out=out, resume=command.resume, report=report))
    content = [test.to_json() for test in tests]
    table = sheet(tests)
    given = content[0] if len(content) == 1 else content
    output = PrintedOutput([table], table, given)
    output.emit(form)
    write_exports(output, exports)
    notice(f"draws: {out}")
    wrong = [t.label for t, c in zip(tests, content, strict=True) if c["faithful"] == "unfaithful"]
    for label in wrong:
        notice(f"ppdbench: outputs of {label} do not follow the model's probabilities")
    return int(bool(wrong))


def _refuse_not_here(options: dict[str, Any]) -> None:
    """Refuse options that the test has no use for, and take those out that it does not read."""
    found = {f"--{name.replace('_', '-')}": options.pop(name) for name in NOT_HERE}
    source = click.get_current_context().get_parameter_source("warmup")
    found["--warmup"] = source is ParameterSource.COMMANDLINE
    found["--compile on"] = options["compile"] == "on"
    for option, given in found.items():
        if given:
            raise ConfigError(f"{option} is not for --verify-distribution; leave it out")
