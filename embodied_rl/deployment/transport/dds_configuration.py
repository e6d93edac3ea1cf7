"""The configuration of Cyclone DDS that an environment of ROS 2 means: fragments of XML."""

import os
from xml.sax.saxutils import escape

from embodied_rl.deployment.transport.environment import RosEnvironment
from embodied_rl.deployment.transport.messages import LARGEST

PARTICIPANTS = 32
"""So many participants of one host find each other without multicast, as in rmw_cyclonedds."""
LOOPBACK = "127.0.0.1"


def configure(environment: RosEnvironment, overrides: str | None = None) -> str:
    """Return the configuration: fragments of XML and of CYCLONEDDS_URI, the later ones of which win.

    Args:
        environment: what ROS 2's variables say.
        overrides: CYCLONEDDS_URI, where it is not the process's own.
    """
    given = os.environ.get("CYCLONEDDS_URI", "") if overrides is None else overrides
    general, discovery = _general(environment), _discovery(environment)
    # A stranger's message is put together only up to what is decoded; large images need more than the default buffer.
    limits = f"<MaxSampleSize>{LARGEST}B</MaxSampleSize><SocketReceiveBufferSize min='default' max='10MB'/>"
    domain = f"<General>{general}</General><Discovery>{discovery}</Discovery><Internal>{limits}</Internal>"
    return f"<CycloneDDS><Domain Id='any'>{domain}</Domain></CycloneDDS>" + (f",{given}" if given else "")


def _general(environment: RosEnvironment) -> str:
    text = "<MaxMessageSize>65500B</MaxMessageSize>" if _local(environment) else ""
    if _local(environment):
        text += f"<Interfaces><NetworkInterface address='{LOOPBACK}'/></Interfaces>"
    if environment.range in ("LOCALHOST", "OFF") or environment.loopback:
        text += "<AllowMulticast>false</AllowMulticast>"
    return text


def _discovery(environment: RosEnvironment) -> str:
    if environment.range == "OFF":
        return f"<ParticipantIndex>none</ParticipantIndex><Tag>ros_discovery_off_{os.getpid()}</Tag>"
    tag = f"<Tag>{escape(environment.tag)}</Tag>" if environment.tag else ""
    if environment.range == "SYSTEM_DEFAULT":
        return tag
    peers = (LOOPBACK,) if _local(environment) else ()
    listed = "".join(f"<Peer Address='{escape(peer)}'/>" for peer in (*peers, *environment.peers))
    index = (
        f"<ParticipantIndex>auto</ParticipantIndex><MaxAutoParticipantIndex>{PARTICIPANTS}</MaxAutoParticipantIndex>"
    )
    return tag + index + (f"<Peers>{listed}</Peers>" if listed else "")


def _local(environment: RosEnvironment) -> bool:
    """Only this machine; with peers besides, its other interfaces are needed."""
    return environment.loopback or (environment.range == "LOCALHOST" and not environment.peers)
