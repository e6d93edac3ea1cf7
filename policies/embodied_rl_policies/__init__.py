"""Flow policies that train out of the box. `POLICIES` is what the entry point shows: name → "module:Class"."""

POLICIES = {"pocket": "embodied_rl_policies.pocket:Pocket"}
