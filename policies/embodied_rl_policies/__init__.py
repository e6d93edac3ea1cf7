"""Built-in policies. The entry point exports `POLICIES`: name → "module:Class"."""

POLICIES = {
    "act": "embodied_rl_policies.imitation.act:ACT",
    "diffusion": "embodied_rl_policies.imitation.diffusion:Diffusion",
    "pocket": "embodied_rl_policies.pocket:Pocket",
    "pocket_tokens": "embodied_rl_policies.pocket_tokens:PocketTokens",
    "openvla": "embodied_rl_policies.openvla.autoregressive:OpenVLA",
    "openvla_oft": "embodied_rl_policies.openvla.oft:OpenVLAOFT",
    "openvla_oft_l1": "embodied_rl_policies.openvla.oft:OpenVLAOFTL1",
    "pi0": "embodied_rl_policies.pi.pi0:Pi0",
    "pi05": "embodied_rl_policies.pi.pi05:Pi05",
    "pi0_fast": "embodied_rl_policies.pi.pi0_fast:Pi0Fast",
    "smolvla": "embodied_rl_policies.smolvla.policy:SmolVLA",
    "gr00t": "embodied_rl_policies.gr00t.policy:Gr00t",
}
