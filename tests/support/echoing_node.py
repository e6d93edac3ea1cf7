"""A node in a process of its own: it answers what comes on /ping/… on /pong/…, and ends when its input does.

python -m tests.support.echoing_node '{"domain": 20, "tag": "…"}'
"""

import json
import sys
import threading

from embodied_rl.deployment.transport.environment import RosEnvironment
from embodied_rl.deployment.transport.opening import open_transport
from embodied_rl.deployment.transport.qos import QoS

TYPES = {"joints": "sensor_msgs/msg/JointState", "image": "sensor_msgs/msg/Image"}
KEPT = QoS(depth=300)


def main() -> None:
    environment = RosEnvironment(range="LOCALHOST", **json.loads(sys.argv[1]))
    with open_transport("dds", "echo", environment) as node:
        for name, type_name in TYPES.items():
            publisher = node.create_publisher(f"/pong/{name}", type_name, KEPT)
            answer = lambda message, *_, publisher=publisher: publisher.publish(message)  # noqa: E731
            node.create_subscription(f"/ping/{name}", type_name, KEPT, answer)
        status = node.create_publisher("/status", "std_msgs/msg/String", "latched")
        for word in ("starting", "ready"):
            status.publish(node.messages.make("std_msgs/msg/String", data=word))
        node.create_publisher("/mute", "std_msgs/msg/String", "deadman")
        node.start()
        print("ready", flush=True)
        ended = threading.Thread(target=sys.stdin.read)
        ended.start()
        ended.join()


if __name__ == "__main__":
    main()
