"""The bridge between a policy and a robot: topics in, commands out, the policy asked beside the control loop."""
