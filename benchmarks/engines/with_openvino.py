"""OpenVINO GenAI as a process that decodes when asked to; runs where it is installed.

python with_openvino.py JOB
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import openvino_genai


class Tokens(openvino_genai.StreamerBase):  # type: ignore[misc]
    """Notes when tokens came."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.first_s = self.last_s = 0.0

    def write(self, token: int | list[int]) -> openvino_genai.StreamingStatus:
        """Take one token, or several."""
        self.last_s = time.perf_counter()
        self.count += len(token) if isinstance(token, list) else 1
        self.first_s = self.first_s or self.last_s
        return openvino_genai.StreamingStatus.RUNNING

    def end(self) -> None:
        """Nothing is left to write."""


def main(job: dict[str, Any]) -> None:
    """Load the model, then answer each line with what one output took."""
    pipe = openvino_genai.LLMPipeline(job["file"], "CPU", INFERENCE_NUM_THREADS=job["threads"])
    settings = openvino_genai.GenerationConfig()
    settings.max_new_tokens = settings.min_new_tokens = job["tokens"]
    settings.ignore_eos, settings.do_sample = True, False
    settings.apply_chat_template = False
    print(
        json.dumps({"ready": f"{openvino_genai.__version__}, the file as it reads it"}), flush=True
    )
    for _ in sys.stdin:
        tokens = Tokens()
        pipe.generate(job["prompt"], settings, tokens)
        took = {"tokens": tokens.count, "seconds": tokens.last_s - tokens.first_s}
        print(json.dumps(took), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
