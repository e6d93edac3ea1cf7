"""Store recorded episodes, as .npz files or as a LeRobotDataset (docs/datasets.md)."""
