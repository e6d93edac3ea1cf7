"""The model card of an exported policy (README.md with metadata, as Hugging Face's Hub reads it)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from embodied_rl.checkpoints.policy_format import PolicyMetadata
from embodied_rl.config.hub import HubName
from embodied_rl.reports.report import Report
from embodied_rl.system.untrusted_files import make_printable

NAME = "README.md"


def make_card(
    name: HubName, form: str, metadata: PolicyMetadata, report: Report | None, base: str | None = None
) -> str:
    """Return the text of a model card. Machine paths and typed commands are left out.

    Args:
        name: where it is uploaded.
        form: format of the exported checkpoint.
        metadata: of the policy file.
        report: of the run that made it; None without one.
        base: for format=peft, the checkpoint that the adapters belong to: a folder, or a name on the Hub.
    """
    tags = ["robotics", "reinforcement-learning", "embodied-rl", metadata.policy]
    head = [f"library_name: {form}", "pipeline_tag: robotics", f"tags: {json.dumps(tags)}"]
    head += [f"base_model: {base}"] if base is not None and not Path(base).exists() else []
    robot = metadata.embodiment
    use = f"embodied-rl import policy={metadata.policy} policy.checkpoint={name} sim=<simulator> out=<file>"
    if form == "peft":
        use = "PeftModel.from_pretrained(<base model>, <this folder>)  # of the package peft"
    lines = [
        f"# {name.repo}",
        f"A `{metadata.policy}` policy of embodied-rl, exported as a checkpoint of {form}.",
        "## Success",
        *(["No evaluation was stored with it."] if report is None else _describe_success(report)),
        "## Robot",
        f"- cameras: {', '.join(robot.cameras) or 'none'}",
        f"- state: {', '.join(robot.state_names)}",
        f"- action: {', '.join(robot.action_names)}; {robot.executed} of a chunk are executed",
        "## Use",
        f"```\n{use}\n```",
    ]
    body = "\n".join(line if line.startswith(("-", "|")) else f"\n{line}" for line in lines)
    return "---\n" + "\n".join(head) + f"\n---\n{make_printable(body)}\n"


def _describe_success(report: Report) -> list[str]:
    found = report.metadata
    rows = [("all", report.overall), *report.families.items()]
    return [
        f"On {report.success.episodes} episodes of `{found.get('simulator')}` (split `{found.get('split')}`, never "
        f"trained on), with Wilson's 95 % intervals:",
        "",
        "| task family | success | 95 % interval | episodes |",
        "|---|---|---|---|",
        *(
            f"| {name} | {each.success.rate:.1%} | {each.success.low:.1%} – {each.success.high:.1%} | "
            f"{each.success.episodes} |"
            for name, each in rows
        ),
        _describe_origin(found),
    ]


def _describe_origin(found: Mapping[str, Any]) -> str:
    parts = [f"{key} `{found[key]}`" for key in ("algorithm", "seed", "commit", "episodes_sha256") if key in found]
    return f"{found.get('kind', 'evaluation')}: {', '.join(parts)}."
