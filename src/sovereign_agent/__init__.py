"""Six mechanisms for agents that keep running, each of which names exactly the claim it earns."""
