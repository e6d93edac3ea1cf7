"""The pipeline that plans itself: what the stages cost, what an allocation makes of that, which one is best."""
