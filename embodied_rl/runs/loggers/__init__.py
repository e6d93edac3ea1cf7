"""The built-in loggers, one per file. The entry point refers to `LOGGERS`: name → class."""

LOGGERS = {
    "json": "embodied_rl.interfaces.logger:Logger",  # metrics.jsonl alone, which every run writes
    "tensorboard": "embodied_rl.runs.loggers.tensorboard:TensorBoard",
    "wandb": "embodied_rl.runs.loggers.wandb:WandB",
    "mlflow": "embodied_rl.runs.loggers.mlflow:MLflow",
}
