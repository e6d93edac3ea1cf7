"""The schema of the configuration: frozen dataclasses with defaults and one line of documentation per key.

Simulators, policies, algorithms, curricula and scorers are plug-ins: their node holds a `name`, the keys that all
plug-ins of the kind share, and, in `options`, the plug-in's own keys, which are checked against its `Config` when it
is found.
"""

from embodied_rl.deployment.configuration import (
    BridgeConfig,
    ContractConfig,
    RecordConfig,
    RobotDoctorConfig,
    ServedNode,
)
from embodied_rl.schema.commands import (
    BenchConfig,
    CollectConfig,
    CompareConfig,
    DoctorConfig,
    EnvironmentConfig,
    EvalConfig,
    ExportConfig,
    FiguresConfig,
    ImportConfig,
    InspectConfig,
    PlanConfig,
    PlayConfig,
    SftConfig,
    TraceConfig,
    TrainConfig,
    Video,
    ViewConfig,
    WatchConfig,
)
from embodied_rl.schema.critic import CriticEvalConfig, CriticProbeConfig, CriticServeConfig, CriticTrainConfig
from embodied_rl.schema.nodes import (
    AlgoNode,
    BenchmarkNode,
    BenchmarkPart,
    CheckpointConfig,
    CurriculumNode,
    DistillNode,
    FilterNode,
    LoggerNode,
    LoraNode,
    Plan,
    PolicyNode,
    ProbesNode,
    ReplayNode,
    RewardNode,
    RunConfig,
    SamplerNode,
    SimChange,
    SimNode,
    TrainLoop,
)
from embodied_rl.schema.robots import (
    ConvertConfig,
    DeployConfig,
    FaultsNode,
    RobotConfig,
    ServeConfig,
)
