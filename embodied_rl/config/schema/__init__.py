"""What can be configured: frozen dataclasses with their defaults and one line of documentation per key.

Simulators, policies, algorithms and curricula are plug-ins: their node holds a `name`, the keys every plug-in of that
kind has, and, in `options`, the plug-in's own keys, which are checked against the plug-in's `Config` when it is found.
"""

from embodied_rl.config.schema.commands import (
    BenchConfig,
    CollectConfig,
    CompareConfig,
    DoctorConfig,
    EnvironmentConfig,
    EvalConfig,
    ExportConfig,
    ImportConfig,
    InspectConfig,
    PlanConfig,
    PlayConfig,
    SftConfig,
    TraceConfig,
    TrainConfig,
    Video,
)
from embodied_rl.config.schema.nodes import (
    AlgoNode,
    BenchmarkNode,
    BenchmarkPart,
    CheckpointConfig,
    CurriculumNode,
    Logger,
    LoraNode,
    Plan,
    PolicyNode,
    RunConfig,
    SamplerNode,
    SimChange,
    SimNode,
    TrainLoop,
)
