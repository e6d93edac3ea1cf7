"""DDS domains of this process: their Cyclone DDS configuration, opening and closing."""

import os
import threading
from dataclasses import dataclass
from xml.sax.saxutils import escape

from cyclonedds.core import DDSException
from cyclonedds.domain import Domain

from embodied_rl.deployment.transport import raw_cdr
from embodied_rl.deployment.transport.environment import RosEnvironment
from embodied_rl.deployment.transport.messages import MAX_MESSAGE_BYTES
from embodied_rl.interfaces.errors import UserError

MAX_PARTICIPANTS = 32
"""Participants of one host that find each other without multicast, as in rmw_cyclonedds."""
LOOPBACK = "127.0.0.1"


@dataclass
class _Domain:
    entity: Domain
    configuration: str
    users: int = 0


_DOMAINS: dict[int, _Domain] = {}
_DOMAINS_LOCK = threading.Lock()


def make_configuration(environment: RosEnvironment, overrides: str | None = None) -> str:
    """Return the configuration of Cyclone DDS, as XML.

    Args:
        overrides: appended, so that they win; by default the environment variable CYCLONEDDS_URI.
    """
    overrides = os.environ.get("CYCLONEDDS_URI", "") if overrides is None else overrides
    # With peers on other machines the other interfaces are needed, too.
    local = environment.localhost_only or (environment.range == "LOCALHOST" and not environment.peers)
    general = ""
    if local:
        general = "<MaxMessageSize>65500B</MaxMessageSize>"
        general += f"<Interfaces><NetworkInterface address='{LOOPBACK}'/></Interfaces>"
    if environment.range in ("LOCALHOST", "OFF") or environment.localhost_only:
        general += "<AllowMulticast>false</AllowMulticast>"
    # Samples larger than the decoder's limit are not assembled; large images need more than the default buffer.
    limits = f"<MaxSampleSize>{MAX_MESSAGE_BYTES}B</MaxSampleSize>"
    limits += "<SocketReceiveBufferSize min='default' max='10MB'/>"
    discovery = f"<Tag>{escape(environment.tag)}</Tag>" if environment.tag else ""
    if environment.range == "OFF":
        discovery = f"<ParticipantIndex>none</ParticipantIndex><Tag>ros_discovery_off_{os.getpid()}</Tag>"
    elif environment.range != "SYSTEM_DEFAULT":
        discovery += "<ParticipantIndex>auto</ParticipantIndex>"
        discovery += f"<MaxAutoParticipantIndex>{MAX_PARTICIPANTS}</MaxAutoParticipantIndex>"
        peers = (*((LOOPBACK,) if local else ()), *environment.peers)
        listed = "".join(f"<Peer Address='{escape(peer)}'/>" for peer in peers)
        discovery += f"<Peers>{listed}</Peers>" if listed else ""
    domain = f"<General>{general}</General><Discovery>{discovery}</Discovery><Internal>{limits}</Internal>"
    return f"<CycloneDDS><Domain Id='any'>{domain}</Domain></CycloneDDS>" + (f",{overrides}" if overrides else "")


def open_domain(environment: RosEnvironment) -> None:
    """Configure a domain on its first use in this process: Cyclone DDS allows one configuration per domain.

    Raises:
        UserError: the configuration is rejected, or the domain is open with another one.
    """
    configuration = make_configuration(environment)
    with _DOMAINS_LOCK:
        known = _DOMAINS.get(environment.domain)
        if known is None:
            try:
                entity = Domain(environment.domain, configuration)
            except (DDSException, UnicodeEncodeError) as error:
                raise UserError(
                    f"Cyclone DDS does not open domain {environment.domain}: {error}. It printed the reason above; "
                    "check CYCLONEDDS_URI, and that nothing else in this process opens the domain",
                    code="dds-domain-not-opened",
                ) from error
            known = _DOMAINS[environment.domain] = _Domain(entity, configuration)
        if known.configuration != configuration:
            raise UserError(
                f"domain {environment.domain} is open in this process with another configuration: use one "
                "environment for all nodes of a process",
                code="dds-domain-configured-otherwise",
            )
        known.users += 1


def close_domain(domain: int) -> None:
    """Close a domain after its last use."""
    with _DOMAINS_LOCK:
        known = _DOMAINS[domain]
        known.users -= 1
        if known.users == 0:
            del _DOMAINS[domain]
            raw_cdr.delete(known.entity)
