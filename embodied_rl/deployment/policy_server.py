"""The former place of the policy client, which scripts may still import from."""

raise ImportError(
    "embodied_rl.deployment.policy_server.client is called embodied_rl.deployment.policy_client.client now: "
    "from embodied_rl.deployment.policy_client.client import PolicyClient"
)
